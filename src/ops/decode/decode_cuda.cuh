/* decode_cuda.cuh -- what the parts of the decoding kernel share: arguments, words handed from block to
 * block, and the stream of weights.
 *
 * One thread block per multiprocessor runs through all layers. Weights do not depend on the data: every lane
 * knows which 16 bytes it will multiply next, through all layers, and keeps `depth` copies of them under way
 * into its own places of a ring in shared memory. So memory stays busy while the blocks wait for each other's
 * results. Those come as words with a number in them (decode.h): no barrier, the reader looks until the
 * number is right. The time is that of about six such exchanges a layer, so what stands between them must be
 * few instructions. */
#ifndef HL_DECODE_CUDA_CUH
#define HL_DECODE_CUDA_CUH
#include "ops/cache/cache_cuda.cuh"

enum {
    WARPS = HL_DECODE_WARPS,
    THREADS = WARPS * 32,
    COLS = HL_DECODE_COLS,
    BATCH = HL_DECODE_BATCH,
    LAPS = HL_DECODE_LAPS,
    ROWS = HL_DECODE_ROWS,
    COUNTER = 16 /* words before the rows' */
};
/* The phases of a layer: products, and the two memories between the first two; behind the layers the head. */
enum kind { IN, MEMORIES, OUT, MLP, DOWN, PHASES, HEAD = PHASES };

struct decode {
    int M, d, I, H, HV, K, V, L, vocab, window, chunk, slots, share, shares, tiles, group;
    int qk, vv, a_at, b_at, z_at, in_rows; /* rows of all matrices of IN together: q, k, v, a, b, z */
    bool gated, decay, beta, cache, rms;
    hola_evict evict;
    float top, eps;
    int64_t S, tail_q, tail_k, tail_v, cache_at, layer_bytes;
    struct hl_cache_layout at;
    int w_in, w_ab, w_z, w_o, w_h, w_x, w_act, row; /* hl_decode_words */
    int64_t scores;
    struct hl_decode_shared s;
    const struct hl_seg *seg;
    const struct hl_decode_layer *layer;
    const bf16 *embed, *head;
    const float *final_norm;
    const int32_t *ids;
    float *logits;
    uint64_t *words;
};

/* Which row, value head and part of it a task is. */
struct task {
    int m, h, part;
};

/* What a thread block knows, and where its stream of weights stands. */
struct block {
    char *shared;
    int warp, lane, in_head;     /* in_head: whose q and k lie in shared memory */
    uint32_t number;             /* of layer 0's words */
    uint64_t passes;             /* tokens before this one */
    uint64_t *now, *before;      /* words of row 0, of this layer and of the last */
    struct task look, tile;      /* its first tasks */
    int phase, end, unit, units; /* the stream: where it is */
    int each, limit, K, steps; /* ... rows of a group, the last row, their length, this warp's share of it */
    int left, flight, in_at, out_at;
    const bf16 *base, *next;
};

static __device__ __forceinline__ const struct hl_decode_layer &layer_of(const struct decode &a,
                                                                         const struct block &b, int l) {
    return ((const struct hl_decode_layer *)(b.shared + a.s.layers))[l];
}
static __device__ __forceinline__ const struct hl_seg &seg_of(const struct decode &a, const struct block &b,
                                                              int m) {
    return ((const struct hl_seg *)(b.shared + a.s.seg))[m];
}
static __device__ __forceinline__ char *state_of(const struct decode &a, const struct block &b, int l,
                                                 int m) {
    return seg_of(a, b, m).state + l * a.layer_bytes;
}
/* a number of a value head of a layer */
enum scalar { DECAY, BIAS, SCALE, SINK, LAMBDA, SCALARS };
static __device__ __forceinline__ float *scalars_of(const struct decode &a, const struct block &b, int l,
                                                    int h) {
    return (float *)(b.shared + a.s.scalars) + (l * a.HV + h) * SCALARS;
}

/* ---- words ---- */

static __device__ __forceinline__ uint64_t *words_of(const struct decode &a, int l) {
    return a.words + COUNTER + (int64_t)(l % LAPS) * ROWS * a.row;
}
static __device__ __forceinline__ void give(uint64_t *p, uint32_t value, uint32_t number) {
    const uint64_t word = (uint64_t)number << 32 | value;
#ifdef HL_CUDA_EMU
    *p = word;
#else
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(word) : "memory");
#endif
}
struct two {
    uint64_t x, y;
};
static __device__ __forceinline__ uint64_t look(const uint64_t *p) {
#ifdef HL_CUDA_EMU
    return *p;
#else
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
    return word;
#endif
}
static __device__ __forceinline__ struct two look_two(const uint64_t *p) {
    struct two w;
#ifdef HL_CUDA_EMU
    w.x = p[0], w.y = p[1];
#else
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(w.x), "=l"(w.y) : "l"(p) : "memory");
#endif
    return w;
}
static __device__ __forceinline__ bool fresh(uint64_t word, uint32_t number) {
    return (uint32_t)(word >> 32) == number;
}
static __device__ __forceinline__ void look_again() {
#ifdef HL_CUDA_EMU
    fprintf(stderr, "decode: a word was never written\n"), abort();
#endif
}
/* Waits for pairs of words, N of them `stride` words apart, of which the last is at `last`. All are asked for
 * before any is looked at. */
template <int N>
static __device__ __forceinline__ void take(uint2 (&v)[N], const uint64_t *p, int stride, int last,
                                            uint32_t number) {
    for (;;) {
        struct two w[N];
        bool there = true;
#pragma unroll
        for (int i = 0; i < N; i++) w[i] = look_two(p + min(i * stride, last));
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] = make_uint2((uint32_t)w[i].x, (uint32_t)w[i].y);
            there = there && fresh(w[i].x, number) && fresh(w[i].y, number);
        }
        if (there) return;
        look_again();
    }
}
static __device__ __forceinline__ uint32_t take_one(const uint64_t *p, uint32_t number) {
    uint64_t w = look(p);
    while (!fresh(w, number)) {
        look_again();
        w = look(p);
    }
    return (uint32_t)w;
}
static __device__ __forceinline__ float round_bf16(float x) { return f32(__float2bfloat16(x)); }

static __device__ __forceinline__ void prefetch(const void *p) {
#ifndef HL_CUDA_EMU
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

/* ---- the stream of weights ---- */

static __device__ __forceinline__ int inner(const struct decode &a, int kind) {
    return kind == OUT ? a.vv : kind == DOWN ? a.I : a.d;
}
/* groups of 8 rows of weights; MLP: 4 of gate and the same 4 of up */
static __device__ __forceinline__ int units_of(const struct decode &a, int kind) {
    return kind == IN         ? (a.in_rows + 7) / 8
           : kind == MEMORIES ? 0
           : kind == MLP      ? a.I / 4
           : kind == HEAD     ? (a.vocab + 7) / 8
                              : a.d / 8;
}
static __device__ __forceinline__ int kind_of(const struct decode &a, int phase) {
    return phase == PHASES * a.L ? (int)HEAD : phase % PHASES;
}
/* The groups go round the blocks, from another one in every phase: who has one more is not always the same.
 * */
static __device__ __forceinline__ int first_unit(int phase) {
    return (int)((blockIdx.x + 11u * (unsigned)phase) % gridDim.x);
}
/* The steps of 32 columns that this warp takes of an inner size. */
static __device__ __forceinline__ int steps_from(int K, int warp) { return K / 32 * warp / WARPS; }

/* The first group of the next phase that has one for this block. */
static __device__ __forceinline__ bool next_phase(const struct decode &a, struct block &b) {
    do {
        if (b.phase >= b.end - 1) return false;
        b.phase++;
        const int kind = kind_of(a, b.phase);
        b.unit = first_unit(b.phase), b.units = units_of(a, kind);
        const struct hl_decode_layer &y = layer_of(a, b, kind == HEAD ? 0 : b.phase / PHASES);
        const int g = b.lane / 4;
        b.K = inner(a, kind), b.each = kind == MLP ? 4 : 8;
        b.limit = (kind == IN ? a.in_rows : kind == HEAD ? a.vocab : kind == MLP ? a.I : a.d) - 1;
        const void *W = kind == IN     ? y.in
                        : kind == OUT  ? y.o
                        : kind == DOWN ? y.down
                        : kind == HEAD ? (const void *)a.head
                        : g < 4        ? y.gate
                                       : y.up;
        const int from = steps_from(b.K, b.warp);
        b.steps = steps_from(b.K, b.warp + 1) - from;
        b.base = (const bf16 *)W + from * 32 + b.lane % 4 * 8;
    } while (b.unit >= b.units);
    return true;
}
static __device__ __forceinline__ bool next_unit(const struct decode &a, struct block &b) {
    b.unit += gridDim.x;
    if (b.unit >= b.units && !next_phase(a, b)) return false;
    const int g = b.lane / 4 & (b.each - 1);
    b.next = b.base + (int64_t)min(b.unit * b.each + g, b.limit) * b.K;
    b.left = b.steps;
    return true;
}
enum { RING_STEP = WARPS * 512 };
static __device__ __forceinline__ char *ring(const struct decode &a, const struct block &b, int at) {
    return b.shared + a.s.ring + b.warp * 512 + b.lane * 16 + at;
}
static __device__ __forceinline__ void step_on(const struct decode &a, int &at) {
    at += RING_STEP;
    if (at == a.s.depth * RING_STEP) at = 0;
}
/* As many copies under way as there are places. */
static __device__ __forceinline__ void fill(const struct decode &a, struct block &b) {
    while (b.flight < a.s.depth) {
        while (b.left == 0)
            if (!next_unit(a, b)) return;
        const int n = min(b.left, a.s.depth - b.flight);
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            copy_async(ring(a, b, b.in_at), b.next + i * 32);
            copy_commit();
            step_on(a, b.in_at);
        }
        b.next += n * 32, b.left -= n, b.flight += n;
    }
}
/* At most `groups` copies are still under way; waits for up to seven more than it must. */
static __device__ __forceinline__ void wait_for(int groups) {
    if (groups >= 40) copy_wait<40>();
    else if (groups >= 32) copy_wait<32>();
    else if (groups >= 24) copy_wait<24>();
    else if (groups >= 16) copy_wait<16>();
    else if (groups >= 8) copy_wait<8>();
    else copy_wait<0>();
}
/* The stream from a phase to before another. */
static __device__ __forceinline__ void open_stream(struct block &b, int phase, int end) {
    b.phase = phase - 1, b.end = end, b.unit = b.units = 0;
    b.left = b.flight = b.in_at = b.out_at = 0;
}

#endif
