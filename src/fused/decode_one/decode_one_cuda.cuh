/* decode_one_cuda.cuh -- shared by the parts of the decoding kernel: arguments, a warp's view of its block, tasks, and
 * the words that blocks exchange (listed in decode_one.h).
 *
 * The latency of a token is the chain of exchanges between blocks, six per layer, so the code between two exchanges is
 * kept minimal. Weights do not depend on data and are in shared memory before they are needed (weight_stream.cuh). A
 * warp polls only the columns that it multiplies. */
#ifndef HL_DECODE_ONE_CUDA_CUH
#define HL_DECODE_ONE_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_cuda.cuh"
#include "cuda/fastmath.cuh"
#include "cuda/mbarrier.cuh"
#include "fused/decode_one/words.cuh"
#include "ops/topk/topk_order.cuh"
extern "C" {
#include "cuda/device.h"
#include "fused/decode_one/decode_one.h"
}

enum {
    WARPS = HL_DECODE_WARPS,
    THREADS = WARPS * 32, /* compute threads */
    COLS = HL_DECODE_COLS,
    LAYER_BUFFERS = HL_DECODE_LAYER_BUFFERS,
    ROWS = HL_DECODE_ONE_ROWS,
    HEADER_WORDS = 16, /* before the row words: the arrival counter, */
    ARGMAX_WORD = 4,   /* the argmax of each row, */
    TOKEN_WORD = 8     /* and the token of a prelaunched kernel */
};
/* The phases of a layer, and the head after the last one. */
enum kind { IN, MIXER, OUT, MLP, DOWN, PHASES, HEAD = PHASES };

/* The sizes and options of a model: run-time arguments, or constants (preset), which give less code and no register
 * spills. Spills are slow here: shared memory leaves almost no L1 cache, so they go to L2.
 *
 * a_at, b_at, z_at, in_rows: the first rows of a, b and z in W_in, and its number of rows. With low-rank projections
 * (rule other than HL_DECODE_DELTA) the order is q, k, v, inner values of the decay (a_at), z, b. warp_rows: state rows
 * per warp. width, stride, warp_steps: as in hl_decode_shared. head_per_warp: the columns of o that a warp multiplies
 * belong to one head. warp_slots: maximum cache slots per warp, for all warps but one; a multiple of 4. */
template <int RULE> struct runtime_sizes {
    static constexpr int rule = RULE;
    int low, kv, d, I, H, HV, K, V, qk, vv, a_at, b_at, z_at, in_rows, tiles, group, warp_rows, width, stride,
        warp_steps;
    bool gated, decay, beta, cache, rms, head_per_warp;
    float inv_d, inv_K, inv_V; /* 1 / d etc. */
    static constexpr int pieces = HL_DECODE_PIECES, warp_slots = 80;
    static constexpr bool one_task = false, poll_missing = false;
    static constexpr int in_units = 0, mlp_units = 0, out_units = 0; /* maximum units per block; 0: unknown */
};
/* ATTENTION: cos and sin of the new tokens' angles, [rows][K / 2]. */
template <int RULE, int ROWS_OF> struct angles {};
template <int ROWS_OF> struct angles<HL_DECODE_ATTENTION, ROWS_OF> {
    float2 angle[ROWS_OF * HL_DECODE_ATTENTION_D / 2];
};
template <int RULE> struct runtime_one_row : runtime_sizes<RULE>, angles<RULE, 1> {
    static constexpr int M = 1, max_rows = 1; /* rows, and maximum rows */
};
template <int RULE> struct runtime_rows : runtime_sizes<RULE>, angles<RULE, ROWS> {
    static constexpr int max_rows = ROWS;
    int M;
};
/* One row, with a cache. ONE_TASK: for devices with at least SMS multiprocessors, where a block has at most one mixer
 * task of each kind and a small, known number of units. Without the code for more, a layer has a fifth less code.
 * POLL_MISSING: words.cuh. */
enum { SMS = 132 };
template <int D, int INNER, int HEAD_SIZE, bool GATE, bool ONE_TASK, bool POLL_MISSING> struct preset {
    static constexpr int rule = HL_DECODE_DELTA, low = 0, M = 1, max_rows = 1, d = D, I = INNER, H = D / HEAD_SIZE,
                         HV = H, K = HEAD_SIZE, V = K;
    static constexpr int qk = D, vv = D, a_at = 3 * D, b_at = a_at + HV, z_at = b_at + HV, in_rows = z_at + GATE * vv;
    static constexpr int tiles = V / COLS, group = 1, warp_rows = K / WARPS;
    static constexpr int width = D, stride = 2 * D + 64, warp_steps = D / 32 / WARPS, pieces = (I + D - 1) / D,
                         warp_slots = 48;
    static constexpr bool gated = GATE, decay = true, beta = true, cache = true, rms = true, head_per_warp = true;
    static constexpr bool one_task = ONE_TASK, poll_missing = POLL_MISSING;
    static constexpr int in_units = ONE_TASK * ((in_rows + 8 * SMS - 1) / (8 * SMS)),
                         mlp_units = ONE_TASK * ((2 * I + 8 * SMS - 1) / (8 * SMS)),
                         out_units = ONE_TASK * ((D + 8 * SMS - 1) / (8 * SMS)); /* and of DOWN */
    static_assert(HV * tiles <= SMS || !ONE_TASK, "one_task");
    static_assert(V % (32 * warp_steps) == 0, "head_per_warp");
    static constexpr float inv_d = 1.0f / D, inv_K = 1.0f / K, inv_V = 1.0f / V;
};
/* One row of a model with low-rank projections, whose concatenated head outputs are as wide as the stream. */
template <int RULE, int D, int INNER, int HEADS, int KEY, int LOW, bool CACHE> struct low_rank_preset {
    static constexpr bool kda = RULE == HL_DECODE_KDA;
    static constexpr int rule = RULE, low = LOW, M = 1, max_rows = 1, d = D, I = INNER, H = HEADS, HV = HEADS, K = KEY;
    static constexpr int V = D / HEADS, qk = HEADS * KEY, vv = D, a_at = 2 * qk + vv, z_at = a_at + LOW;
    static constexpr int b_at = z_at + (kda ? LOW : vv), in_rows = b_at + (kda ? HV : 0);
    static constexpr int tiles = V / COLS, group = 1, warp_rows = K / WARPS;
    static constexpr int width = D, stride = 2 * D + 64, warp_steps = D / 32 / WARPS, pieces = (I + D - 1) / D,
                         warp_slots = 48;
    static constexpr bool gated = true, decay = false, beta = kda, cache = CACHE, rms = CACHE, head_per_warp = true;
    static constexpr bool one_task = true, poll_missing = D > 512;
    static constexpr int in_units = (in_rows + 8 * SMS - 1) / (8 * SMS), mlp_units = (2 * I + 8 * SMS - 1) / (8 * SMS),
                         out_units = (D + 8 * SMS - 1) / (8 * SMS);
    static_assert(HV * tiles <= SMS, "one_task");
    static_assert(V % (32 * warp_steps) == 0, "head_per_warp");
    static constexpr float inv_d = 1.0f / D, inv_K = 1.0f / K, inv_V = 1.0f / V;
};
/* One row of a transformer with as many key heads as query heads. */
template <int D, int INNER, int HEAD_SIZE> struct attention_preset : angles<HL_DECODE_ATTENTION, 1> {
    static constexpr int rule = HL_DECODE_ATTENTION, low = 0, M = 1, max_rows = 1, d = D, I = INNER, H = D / HEAD_SIZE;
    static constexpr int HV = H, kv = H, K = HEAD_SIZE, V = K, qk = D, vv = D, a_at = 3 * D, in_rows = a_at;
    static constexpr int z_at = in_rows, b_at = in_rows, tiles = V / COLS, group = 1, warp_rows = K / WARPS;
    static constexpr int width = D, stride = 2 * D + 64, warp_steps = D / 32 / WARPS, pieces = (I + D - 1) / D,
                         warp_slots = 48;
    static constexpr bool gated = false, decay = false, beta = false, cache = false, rms = false, head_per_warp = true;
    static constexpr bool one_task = true, poll_missing = D > 512;
    static constexpr int in_units = (in_rows + 8 * SMS - 1) / (8 * SMS), mlp_units = (2 * I + 8 * SMS - 1) / (8 * SMS),
                         out_units = (D + 8 * SMS - 1) / (8 * SMS);
    static_assert(HV * tiles <= SMS, "one_task");
    static constexpr float inv_d = 1.0f / D, inv_K = 1.0f / K, inv_V = 1.0f / V;
};
/* One row of a GSA model. */
template <int D, int INNER, int HEADS> struct slots_preset {
    static constexpr int rule = HL_DECODE_GSA, low = 0, M = 1, max_rows = 1, d = D, I = INNER, H = HEADS, HV = HEADS;
    static constexpr int K = D / HEADS, V = K, qk = D, vv = D, a_at = 3 * D, in_rows = a_at + HV * HL_DECODE_SLOTS;
    static constexpr int z_at = in_rows, b_at = in_rows, tiles = V / COLS, group = 1, warp_rows = K / WARPS;
    static constexpr int width = D, stride = 2 * D + 64, warp_steps = D / 32 / WARPS, pieces = (I + D - 1) / D,
                         warp_slots = 48;
    static constexpr bool gated = false, decay = false, beta = false, cache = false, rms = false, head_per_warp = true;
    static constexpr bool one_task = true, poll_missing = D > 512;
    static constexpr int in_units = (in_rows + 8 * SMS - 1) / (8 * SMS), mlp_units = (2 * I + 8 * SMS - 1) / (8 * SMS),
                         out_units = (D + 8 * SMS - 1) / (8 * SMS);
    static_assert(HV * tiles <= SMS, "one_task");
    static constexpr float inv_d = 1.0f / D, inv_K = 1.0f / K, inv_V = 1.0f / V;
};
struct arguments {
    int L, vocab, window, chunk, slots, even_slots, task_slots, slot_tasks;
    struct hl_policy policy;
    float beta_scale, eps, lower_bound, inv_normalizer, clamp_min;
    int64_t k_off, v_off, page_layer;
    char *const *pages; /* [ROWS][HL_DECODE_PAGES] */
    int64_t S, Vt, tail_q, tail_k, tail_v, cache_at, layer_bytes;
    struct hl_cache_layout at;
    int w_in, w_z, w_ab, w_logits, w_o, w_h, w_x, w_act, row_words; /* offsets: hl_decode_words */
    int64_t scores;
    struct hl_decode_shared s;
    struct hl_seg seg[ROWS];
    int32_t ids[ROWS];
    const struct hl_decode_layer *layer;
    const bf16 *embed, *head;
    const float *final_norm;
    float *logits;
    uint32_t tag;          /* lowest bit of every logit (cuda/mapped_output.c) */
    uint64_t *argmax;      /* [ROWS]: maximum over all blocks (topk_order.cuh); 0 between tokens */
    uint64_t *host_argmax; /* [ROWS] in host memory, or NULL: the largest logit and its id */
    uint64_t *words;
    struct hl_prelaunch_slot request;
};
template <class sizes> struct decode_args : sizes, arguments {};

/* A mixer task: row, value head, and index of its part of the slots or columns. */
struct task {
    int m, h, part;
};

/* A warp's view of its block. */
struct block {
    char *shared;
    int warp, lane;
    uint32_t epoch;                     /* of layer 0's words */
    uint64_t tokens_done;               /* previous tokens */
    uint64_t *words, *last_words;       /* of row 0: this layer's, and the previous layer's */
    struct task logits_task, tile_task; /* the first tasks of the block */
    int first_unit, unit_skip;          /* first unit of this phase, and its change per phase */
    int stage;                          /* of the ring of weights */
    uint32_t parity;                    /* of that stage's mbarriers */
    uint32_t task_parity;               /* the same for the task data */
    mbarrier_t barriers;                /* see hl_decode_shared.barrier */
    int sums_half, squares_half;        /* buffer in use */
    uint64_t argmax;                    /* maximum of this lane's logits (topk_order.cuh) */
};

/* The compute threads; barrier 1. */
static __device__ __forceinline__ void sync_block() { named_barrier_sync<1, THREADS>(); }
/* No barrier is needed between phases: before a phase writes to shared memory, it waits for words of other blocks.
 * Those are published after polling this block's words of the last phase, which this block publishes when it is done
 * with that phase's shared memory. racecheck cannot track an order through global memory, so its build adds a
 * barrier. */
static __device__ __forceinline__ void next_phase() {
#ifdef HL_RACECHECK
    sync_block();
#endif
}

template <class D>
static __device__ __forceinline__ const struct hl_decode_layer &layer_of(const D &a, const struct block &b, int l) {
    return ((const struct hl_decode_layer *)(b.shared + a.s.layers))[l];
}
template <class D>
static __device__ __forceinline__ const struct hl_seg &seg_of(const D &a, const struct block &b, int m) {
    return ((const struct hl_seg *)(b.shared + a.s.seg))[m];
}
template <class D> static __device__ __forceinline__ char *state_of(const D &a, const struct block &b, int l, int m) {
    return seg_of(a, b, m).state + l * a.layer_bytes;
}
/* per value head of a layer */
enum scalar { DECAY, BIAS, SCALE, SINK, LAMBDA, SCALARS };
template <class D>
static __device__ __forceinline__ float *scalars_of(const D &a, const struct block &b, int l, int h) {
    return (float *)(b.shared + a.s.scalars) + (l * a.HV + h) * SCALARS;
}

/* ---- words ---- */

/* Without one, SiLU (GSA) or nothing (GLA) follows the projections. */
template <class D> static constexpr bool has_conv = D::rule == HL_DECODE_DELTA || D::rule == HL_DECODE_KDA;
/* Of z: DELTA's and GLA's are among those of IN. */
template <class D> static __device__ __forceinline__ int z_words(const D &a) {
    return D::rule == HL_DECODE_DELTA ? a.w_in + a.qk + a.vv / 2
           : D::rule == HL_DECODE_GLA ? a.w_in + a.z_at / 2
                                      : a.w_z;
}
template <class D> static __device__ __forceinline__ uint64_t *words_of(const D &a, int l) {
    return a.words + HEADER_WORDS + (int64_t)(l % LAYER_BUFFERS) * ROWS * a.row_words;
}
static __device__ __forceinline__ float square(uint32_t v) { return low(v) * low(v) + high(v) * high(v); }
/* x / (1 + e^-x) with the approximate division, which saves a dozen instructions; not bit-equal to
 * fast_silu. */
static __device__ __forceinline__ float fast_silu_div(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
static __device__ __forceinline__ float softplus(float x) {
    const float e = __expf(x);
    return x > 20.0f ? x : e < 0.02f ? e - e * e * (0.5f - e * (1.0f / 3.0f)) : __logf(1.0f + e);
}
/* The location of word number `word` of a row of x, h, o or act: the words that one lane multiplies are adjacent. */
static __device__ __forceinline__ int swizzled(int word) { return (word & ~3) | (word & 1) << 1 | (word >> 1 & 1); }

#endif
