/* decode_one.h -- one token of each of a few sessions, through all layers and the head in one go.
 *
 * The same function as the ops of a layer one after another (model/layer.c), on the same states, for backends
 * where starting each of them costs more than its work. Pointers are the backend's but for `rows` and those
 * that are called the host's: a token is little, and to hand it over with the launch is quicker than a copy. */
#ifndef HL_DECODE_H
#define HL_DECODE_H
#include "core/rows.h"
#include "ops/cache/policy.h"
#include "ops/topk/topk.h"

enum {
    HL_DECODE_ONE_ROWS = 4,
    HL_DECODE_WARPS = 8,   /* that compute; two more bring weights and what the memories need */
    HL_DECODE_COLS = 8,    /* columns of a state that a thread block takes */
    HL_DECODE_STEPS = 4,   /* steps of 32 columns of a chunk that a warp takes at most */
    HL_DECODE_CHUNKS = 4,  /* chunks that the MLP's inner size has at most */
    HL_DECODE_BATCH = 8,   /* groups of 8 outputs of one row between two sums over its warps */
    HL_DECODE_SMALL = 656, /* floats of a task of the memories that its warps share */
    HL_DECODE_LAPS = 4     /* layers after which the place of a layer's words is used again */
};

/* The weights of a layer; NULL: there is none. */
struct hl_decode_layer {
    const void *in; /* q, k, v, a, b, g, one behind the other */
    const void *o, *gate, *up, *down;
    const real *attn_norm, *mlp_norm, *o_norm, *conv[3];
    const real *A_log, *dt_bias, *q_norm, *k_norm, *tau, *sink, *cache_gate;
};

struct hl_decode {
    const struct hl_rows *rows; /* one row a segment, each with a state */
    bool *refused;              /* set: whether this device cannot; then nothing was done */
    int64_t d, I, H, HV, K, V, L, vocab, window, chunk, conv;
    bool gated, decay, beta, neg_eigval, cache, rms;
    struct hl_policy policy;
    real eps;
    int64_t S, tail[3], cache_at, layer_bytes; /* a layer's parts in a session's state */
    const struct hl_decode_layer *layer;       /* [L] */
    const struct hl_decode_layer *host;        /* the same table, where the host can read it */
    const void *embed, *head;
    const real *final_norm;
    const int32_t *ids;      /* for decode_many */
    const int32_t *host_ids; /* for decode */
    real *logits;            /* [rows][vocab]; NULL: not wanted */
    real *host_logits;       /* instead on the host, there when decode returns */
    /* Called before that, as parts of rows come, in order; or NULL. */
    void (*came)(void *ctx, int64_t row, int64_t from, int64_t to);
    void *ctx;
    /* [rows], or NULL: the largest logit of each, of equals the lowest id, on the host when decode returns; id -1:
     * not all are finite. */
    struct hl_candidate *host_best;
    void *memory; /* hl_decode_one_bytes() of them, kept from token to token; zeros before the first */
};

/* Whether sizes and kinds are ones that the op knows. */
bool hl_decode_one_takes(const struct hl_decode *a);
int64_t hl_decode_one_bytes(const struct hl_decode *a);

/* ---- for the op ---- */

/* Thread blocks hand results on as words of 8 bytes: the value and the number of the layer's pass it belongs
 * to, which the reader waits for. Where a row's words lie, in words, each on an even one: */
struct hl_decode_words {
    int64_t in;     /* [(2 H K + HV V (2 with a gate)) / 2]: pairs of q, k, v, z */
    int64_t ab;     /* [2][HV]: raw decay, write strength */
    int64_t z;      /* [HV][window + chunk, made even]: logits of the cache's read */
    int64_t o;      /* [HV V / 2] */
    int64_t h, x;   /* [d / 2]: the residual stream between mixer and MLP, and after */
    int64_t act;    /* [I / 2] */
    int64_t row;    /* words of a row */
    int64_t scores; /* from the memory's start: [L][HL_DECODE_ONE_ROWS][HV][V / HL_DECODE_COLS] */
    int64_t all;
};
struct hl_decode_words hl_decode_words(const struct hl_decode *a);

/* A thread block's shared memory, in bytes. */
struct hl_decode_shared {
    int32_t layers;  /* the table of weights */
    int32_t seg;     /* the segments */
    int32_t filled;  /* int [rows][2]: kept slots, the new token's slot */
    int32_t id;      /* int [warps]: where there is one row, its token */
    int32_t scalars; /* float [L][HV][5] */
    int32_t sums;    /* float [2][HL_DECODE_BATCH][warps][8]: parts of outputs, of two products in turn */
    int32_t squares; /* float [2][rows][warps]: parts of their sums of squares, likewise */
    int32_t parts;   /* float [rows][HV V / 32]: the same of the heads' outputs */
    int32_t small;   /* float [HL_DECODE_SMALL]: parts of sums */
    int32_t S;       /* float [K][8]: a task's state */
    int32_t v, k;    /* bf16 [slots][8], [2 warps][K]: the cache's values and keys */
    int32_t barrier; /* [depth][3]: halves of a place are full, it is empty; [2]: the same of S, v and k */
    int32_t ring;    /* [depth][8][stride]: weights */
    int32_t chunk;   /* columns that a place holds */
    int32_t stride;  /* bytes from row to row in a place */
    int32_t each;    /* steps of a chunk that a warp takes */
    int32_t flight;  /* halves of places that are on their way at a time */
    int32_t depth, bytes;
};
struct hl_decode_shared hl_decode_shared(const struct hl_decode *a);

#endif
