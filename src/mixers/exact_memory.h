/* exact_memory.h -- the read-out over tokens that surprised the state (paper eq. 6, 7), for any mixer that has keys,
 * values and a write magnitude m = beta |e|.
 *
 * It is not a mixer: a mixer embeds its tensors, its buffers and its parts of the state among its own, says which
 * arrays feed it, and calls it after its own read, to which the memory's is added. So HOLA is Gated DeltaNet with
 * this. ops/cache/cache.h has the equations.
 *
 * A policy that measures rows against the state (hl_memory_measures) also needs from the mixer: r of the keys' L2
 * norm, its own state S [HV][K][V] among the parts of the session's state, and S at the ends of blocks, which the
 * mixer's own op writes to block_S of the memory's buffers. */
#ifndef HL_EXACT_MEMORY_H
#define HL_EXACT_MEMORY_H
#include "mixers/mixer.h"

/* Its tensors, in file order from the index that the mixer gives it; its parts of the state. */
enum {
    HL_MEMORY_Q_NORM,
    HL_MEMORY_K_NORM,
    HL_MEMORY_SINK,
    HL_MEMORY_GATE,
    HL_MEMORY_TAU,
    HL_MEMORY_LTE_IN, /* from here on the learned score's */
    HL_MEMORY_LTE_CONV1,
    HL_MEMORY_LTE_BIAS1,
    HL_MEMORY_LTE_CONV2,
    HL_MEMORY_LTE_BIAS2,
    HL_MEMORY_LTE_OUT,
    HL_MEMORY_LTE_BIAS_OUT,
    HL_MEMORY_TENSORS
};
enum { HL_MEMORY_K, HL_MEMORY_V, HL_MEMORY_SCORE, HL_MEMORY_POSITION, HL_MEMORY_FACTOR, HL_MEMORY_PARTS };

struct hl_memory_acts {
    void *qt, *kt; /* RMSNorm-gamma of q and k: what the read sees; NULL with cache_norm l2 */
    real *r_qt, *r_kt;
    real *score; /* what the policy ranks by, where that is not m */
    void *read;
    real *lse;
    int64_t *sel;  /* [blocks][HV][window] */
    real *block_S; /* [blocks][HV][K][V]: the mixer's state after blocks, where rows are measured against it */
    real *u;       /* [T][HV][cache_lte_dim]: the learned score's first layer */
};
struct hl_memory_grads {
    void *dqt, *dkt;
    real *dscore; /* with a learned score */
};

/* Sizes of the heads that feed it. */
struct hl_memory_heads {
    int64_t H, HV, K, V;
};
/* Whether a model has one that is read and written: its mixer can feed one, and cache_evict is not none. */
bool hl_has_exact_memory(const hola_config *c);
/* Whether its tensors and fields are there: with types that may go without one (kda) not where cache_evict is none. */
bool hl_memory_possible(const hola_config *c);
bool hl_memory_has_own_norm(const hola_config *c); /* cache_norm rms */
bool hl_memory_measures(const hola_config *c);     /* rows are measured against the mixer's state */
bool hl_memory_has_factors(const hola_config *c);  /* HL_MEMORY_FACTOR is a part of the state */
bool hl_memory_is_learned(const hola_config *c);   /* op lte gives the scores */

void hl_memory_tensors(const hola_config *c, const struct hl_memory_heads *h, struct hl_tensor_spec *out);
int hl_memory_state(const hola_config *c, const struct hl_memory_heads *h, struct hl_state_part *out);
int64_t hl_memory_scratch(const hola_config *c, const struct hl_memory_heads *h);
/* field: offset of a struct hl_memory_acts (hl_memory_grads) in the mixer's. */
void hl_memory_buffers(const struct hl_buffers_for *f, const struct hl_memory_heads *h, struct hl_buffers *acts,
                       size_t acts_field, struct hl_buffers *grads, size_t grads_field);

/* A layer's memory with what feeds it. q, k of key heads, the rest of value heads. */
struct hl_exact_memory {
    const struct hl_layer *l;
    struct hl_memory_heads heads;
    const struct hl_layer_tensor *tensor; /* by HL_MEMORY_* */
    int64_t state;                        /* bytes into seg->state */
    const struct hl_memory_acts *a;
    const struct hl_memory_grads *d;
    const void *q1, *k1; /* before any norm */
    const void *q, *k;   /* L2-normalised: read with cache_norm l2 */
    const void *v;
    const real *m, *beta;
    const real *r_k; /* r of k's L2 norm */
    int64_t S;       /* bytes into seg->state: the mixer's state */
    void *out;       /* the read is added to it */
    const void *dout;
    void *dq1, *dk1, *dv; /* added to; dq1 and dk1 by the norm (hl_memory_norm) */
};
/* The read's own norm of q or k. The mixer runs it, with its own norm in one op where there is one. */
struct hl_rmsnorm hl_memory_norm(const struct hl_exact_memory *m, bool query);
void hl_memory_forward(const struct hl_exact_memory *m);
/* Leaves dqt and dkt, the gradients of what was read; adds to dv. */
void hl_memory_backward(const struct hl_exact_memory *m);

#endif
