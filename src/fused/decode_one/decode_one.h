/* decode_one.h -- one token of each of up to four sessions, through all layers and the head, in one kernel.
 *
 * It computes the same as the layer's ops, on the same session states, for devices where launching an op costs more
 * than running it. Pointers are device pointers, except rows, host and host_*.
 *
 * The path of a token through the kernel (decode_token in decode_one_cuda.cu): there is one thread block per SM, and
 * all are resident (cooperative launch). In a block, warps 0 to 7 compute; warp 8 streams weights into a ring in shared
 * memory, far ahead of their use; warp 9 prefetches the inputs of the mixer's tasks (weight_stream.cuh). Blocks
 * exchange results as 8-byte words in global memory, epoch << 32 | value, where the value is two bf16 or one float. A
 * reader polls a word until it has the epoch of this token and layer, previous tokens * L + layer + 1.
 *
 *   phase  computes                              polls (published by)             publishes
 *   IN     q k v a b z = W_in norm(x);           x of layer l - 1 (DOWN);         in: pairs of q, k, v, z
 *          causal conv and SiLU on q, k, v       layer 0: the embedding           ab: decay and beta, raw
 *   MIXER  1. q.k of a head's cached slots       in: q (IN)                       logits: one per slot
 *          2. delta rule and softmax read, for   in: q, k, v; ab (IN);            o: pairs, of 8 columns
 *             8 columns of a value head          logits of the head (MIXER 1)     scores: a part of the sum
 *   OUT    h = x + W_o (norm(o) silu(z))         o (MIXER), in: z (IN); x (DOWN)  h: pairs
 *   MLP    act = silu(W_gate n) (W_up n),        h (OUT)                          act: pairs
 *          n = norm(h)
 *   DOWN   x = h + W_down act                    act (MLP); h (OUT)               x: pairs
 *   after the last layer:
 *   HEAD   logits = W_head norm(x)               x of layer L - 1 (DOWN)          logits; argmax by an atomic
 *   end    warp 9: scores of the new rows        scores of all layers (MIXER 2)
 *          merge of full cache blocks            the count of finished blocks
 *
 * So a layer is six exchanges in sequence. In the products a block owns units of 8 rows of the matrix: it publishes
 * their outputs and polls the whole input. Words are never cleared. Layer l + 4 reuses the words of layer l: by then
 * every block is done with layer l. */
#ifndef HL_DECODE_ONE_H
#define HL_DECODE_ONE_H
#include "core/rows.h"
#include "ops/cache/policy.h"
#include "ops/topk/topk.h"

enum {
    HL_DECODE_ONE_ROWS = 4,
    HL_DECODE_WARPS = 8,         /* compute warps */
    HL_DECODE_COLS = 8,          /* state columns per mixer task */
    HL_DECODE_STEPS = 4,         /* maximum steps of 32 columns of a piece of weights per warp */
    HL_DECODE_PIECES = 4,        /* maximum pieces per row of the MLP's down matrix */
    HL_DECODE_UNITS = 8,         /* units times rows whose partial sums fit in shared memory */
    HL_DECODE_SCRATCH = 656,     /* floats shared by the warps of a mixer task */
    HL_DECODE_PAGES = 4096,      /* maximum pages per session */
    HL_DECODE_ATTENTION_D = 128, /* largest head size of ATTENTION */
    HL_DECODE_SLOTS = 64,        /* slots of a GSA model */
    HL_DECODE_PAD = 16,          /* padding between rows of decay_rows, against bank conflicts */
    HL_DECODE_LAYER_BUFFERS = 4  /* layer l + 4 reuses the words of layer l */
};

/* The mixers that the kernel supports. KDA and GLA decay each key channel by its own factor, computed by a low-rank
 * projection: IN publishes its `low` inner values, and every tile task multiplies them by its head's rows of the second
 * matrix, which is cheaper than another exchange. KDA's output gate works the same way: the tile tasks compute z. GLA
 * writes v itself, does not normalise q and k, and has no convolution. GSA: slots.cuh. ATTENTION: attention.cuh; its
 * heads are the query heads. */
enum hl_decode_rule { HL_DECODE_DELTA, HL_DECODE_KDA, HL_DECODE_GLA, HL_DECODE_GSA, HL_DECODE_ATTENTION };

/* The weights of a layer; NULL where the model has none. */
struct hl_decode_layer {
    const void *in;          /* q, k, v (HL_DECODE_DELTA: a, b, g, too), contiguous */
    const void *low, *decay; /* KDA: f_proj.0, .1; GLA: gk_proj.0, .1: [low][d], [H K][low]; GSA: f_proj in low */
    const void *z;           /* KDA: g_proj.0 [low][d]; GLA: g_proj [HV V][d] */
    const void *z_up, *b;    /* KDA: g_proj.1 [HV V][low], b_proj */
    const real *decay_bias, *z_bias; /* KDA: dt_bias, g_proj.1.bias; GLA: gk_proj.1.bias */
    const void *o, *gate, *up, *down;
    const real *attn_norm, *mlp_norm, *o_norm, *conv[3];
    const real *A_log, *dt_bias, *q_norm, *k_norm, *tau, *sink, *cache_gate;
};

struct hl_decode {
    const struct hl_rows *rows; /* one row per segment, each with a state */
    bool *refused;              /* set to true if this device cannot run the kernel; nothing has been changed then */
    int64_t d, I, H, HV, K, V, L, vocab, window, chunk, conv;
    bool gated, decay, beta, neg_eigval, cache, rms;
    enum hl_decode_rule rule;
    int64_t slots; /* GSA; else 0 */
    /* ATTENTION: key heads, splits of a head's keys, offsets of a layer's keys and values in a page (rows->pages) */
    int64_t kv, splits, k_off, v_off, page_layer;
    double theta;               /* of the rotary positions */
    uint64_t *page_hash;        /* [HL_DECODE_ONE_ROWS] on the host: hash of the page tables in the workspace */
    int64_t low;                /* inner size of the low-rank projections; 0: none */
    real lower_bound;           /* KDA's gate; 0: none */
    real normalizer, clamp_min; /* of GLA's and GSA's gates */
    struct hl_policy policy;
    real eps;
    int64_t S, Vt, tail[3], cache_at, layer_bytes; /* offsets of a layer's parts in a session's state; GSA: S is Kt */
    const struct hl_decode_layer *layer;           /* [L] */
    const struct hl_decode_layer *host;            /* the same table in host memory */
    const void *embed, *head;
    const real *final_norm;
    const int32_t *ids;      /* for decode_batch */
    const int32_t *host_ids; /* for decode_one: kernel arguments, which is faster than a copy */
    real *logits;            /* [rows][vocab]; NULL: not needed */
    real *host_logits;       /* instead of logits: in host memory, complete when decode_one returns */
    /* Called as logits [from, to) of a row arrive in host_logits, in order; may be NULL. */
    void (*on_logits)(void *ctx, int64_t row, int64_t from, int64_t to);
    void *ctx;
    /* [rows] or NULL: each row's largest logit, complete when decode_one returns. Ties go to the lowest id;
     * id -1 if not all logits are finite. */
    struct hl_candidate *host_argmax;
    void *workspace; /* hl_decode_one_bytes(), kept from token to token; zeros before the first */
};

/* Whether the kernel supports these sizes and options. The caller must check that the model's mixer is supported. */
bool hl_decode_one_takes(const struct hl_decode *a);
int64_t hl_decode_one_bytes(const struct hl_decode *a);

/* ---- for the kernel ---- */

/* Offsets of a row's parts, in words; every part starts at an even word. */
struct hl_decode_words {
    int64_t in;     /* [(2 H K + HV V (2 with a gate)) / 2]: pairs of q, k, v, z; with low-rank projections of q, k, v,
                       the inner values and those of z (GLA: z; GSA: the slots' raw gates) */
    int64_t z;      /* [HV V / 2]: KDA's z, published by MIXER */
    int64_t ab;     /* [2][HV]: decay and beta, raw */
    int64_t logits; /* [HV][window + chunk, rounded up to even]: of the cache read; GSA: [HV][slots]; ATTENTION:
                       [HV][splits][V + 2]: a split's sums, maximum and denominator */
    int64_t o;      /* [HV V / 2] */
    int64_t h, x;   /* [d / 2]: the residual stream between mixer and MLP, and after the MLP */
    int64_t act;    /* [I / 2] */
    int64_t row;    /* words per row */
    int64_t pages;  /* from the start of the workspace: [HL_DECODE_ONE_ROWS][HL_DECODE_PAGES] page addresses */
    int64_t scores; /* from the start of the workspace: [L][HL_DECODE_ONE_ROWS][HV][V / HL_DECODE_COLS] */
    int64_t all;
};
struct hl_decode_words hl_decode_words(const struct hl_decode *a);

/* Offsets in a block's shared memory, in bytes. */
struct hl_decode_shared {
    int32_t layers;      /* the table of weights */
    int32_t seg;         /* the segments */
    int32_t filled;      /* int [rows][2]: kept slots, the new token's slot */
    int32_t id;          /* int [warps]: the token's id, with one row */
    int32_t scalars;     /* float [L][HV][5] */
    int32_t sums;        /* float [2][HL_DECODE_UNITS][warps][8]: partial outputs, double-buffered */
    int32_t squares;     /* float [2][rows][warps]: partial sums of squares of x, double-buffered */
    int32_t parts;       /* float [rows][HV V / 32]: the same for the head outputs */
    int32_t scratch;     /* float [HL_DECODE_SCRATCH]: of a mixer task */
    int32_t S;           /* float [K][8]: a task's state */
    int32_t reads;       /* float [warps][HL_DECODE_ATTENTION_D + 2]: per-warp parts of a split */
    int32_t alpha;       /* float [K]: decay per channel; [2][low]: inner values of the low-rank projections; [8]: z */
    int32_t decay_rows;  /* bf16 [K][low + HL_DECODE_PAD]: a head's rows of the decay's second matrix; */
    int32_t slot_values; /* float [slots][8]: GSA: a task's columns of Vt; S holds those of Kt */
    int32_t z_rows;      /* bf16 [8][low]: KDA: the rows of g_proj.1 that make a task's columns of z */
    int32_t v, k;        /* bf16 [slots][8], [2 warps][K]: the cache's values and keys */
    int32_t barrier;     /* mbarriers: [depth][3]: the two halves of a stage full, stage empty; [2]: S, v and k */
    int32_t ring;        /* [depth][8][stride]: stages of weights */
    int32_t width;       /* columns of a stage */
    int32_t stride;      /* bytes between rows of a stage */
    int32_t warp_steps;  /* steps of a stage for each warp */
    int32_t in_flight;   /* maximum stage halves in flight */
    int32_t depth, bytes;
};
struct hl_decode_shared hl_decode_shared(const struct hl_decode *a);

#endif
