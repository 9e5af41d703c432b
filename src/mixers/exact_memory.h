/* exact_memory.h -- the exact memory of tokens that surprised the state (paper eq. 6, 7), for any mixer with keys,
 * values and a write magnitude m = beta |e|.
 *
 * It is not a mixer: a mixer embeds its tensors, buffers and state parts among its own, tells it which arrays to read,
 * and calls it after its own read, to which the memory's read is added. HOLA is Gated DeltaNet plus this.
 * ops/cache/cache.h has the equations.
 *
 * A policy that measures rows against the state (hl_memory_measures) also needs from the mixer: r of the keys' L2 norm,
 * the state S [HV][K][V] in the session's state, and S at block ends, which the mixer's op writes to block_S of the
 * memory's buffers. */
#ifndef HL_EXACT_MEMORY_H
#define HL_EXACT_MEMORY_H
#include "mixers/mixer.h"

/* Its tensors, in file order from the index given by the mixer; its state parts. */
enum {
    HL_MEMORY_Q_NORM,
    HL_MEMORY_K_NORM,
    HL_MEMORY_SINK,
    HL_MEMORY_GATE,
    HL_MEMORY_GATE_PROJ, /* with a gate per token */
    HL_MEMORY_TAU,
    HL_MEMORY_LTE_IN, /* from here on: the learned score */
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
    void *qt, *kt; /* RMSNorm-gamma of q and k, used by the read; NULL with cache_norm l2 */
    real *r_qt, *r_kt;
    real *score; /* the policy's score, if it is not the head's m */
    void *read;
    real *lse;
    int64_t *sel;     /* [blocks][HV][window] */
    real *block_S;    /* [blocks][HV][K][V]: the mixer's state after each block, if rows are measured against it */
    real *u;          /* [T][HV][cache_lte_dim]: the learned score's first layer */
    void *token_gate; /* [T][HV], with a gate per token */
};
struct hl_memory_grads {
    void *dqt, *dkt;
    real *dscore; /* with a learned score */
    void *dtoken_gate;
};

/* Sizes of the mixer's heads. */
struct hl_memory_heads {
    int64_t H, HV, K, V;
};
/* Whether a model uses one: its mixer supports it, and cache_evict is not none. */
bool hl_has_exact_memory(const hola_config *c);
/* Whether its tensors and fields exist: for types where it is optional (kda), not if cache_evict is none. */
bool hl_memory_possible(const hola_config *c);
/* Checks beyond the ranges of single fields. */
hola_status hl_memory_config_check(const hola_config *c, const char *where);
bool hl_memory_has_own_norm(const hola_config *c); /* cache_norm rms */
bool hl_memory_measures(const hola_config *c);     /* rows are measured against the mixer's state */
bool hl_memory_has_factors(const hola_config *c);  /* HL_MEMORY_FACTOR is a part of the state */
bool hl_memory_is_learned(const hola_config *c);   /* op lte gives the scores */
bool hl_memory_gates_tokens(const hola_config *c); /* a gate per token */

void hl_memory_tensors(const hola_config *c, const struct hl_memory_heads *h, struct hl_tensor_spec *out);
int hl_memory_state(const hola_config *c, const struct hl_memory_heads *h, struct hl_state_part *out);
int64_t hl_memory_scratch(const hola_config *c, const struct hl_memory_heads *h);
/* field: offset of a struct hl_memory_acts (hl_memory_grads) in the mixer's. */
void hl_memory_buffers(const struct hl_buffers_for *f, const struct hl_memory_heads *h, struct hl_buffers *acts,
                       size_t acts_field, struct hl_buffers *grads, size_t grads_field);

/* A layer's memory with its inputs. q, k per key head, the rest per value head. */
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
/* The read's norm of q or k. The mixer runs it, fused with its own norm if possible. */
struct hl_rmsnorm hl_memory_norm(const struct hl_exact_memory *m, bool query);
void hl_memory_forward(const struct hl_exact_memory *m);
/* Computes dqt and dkt, the gradients of the read's q and k; adds to dv. With a gate per token it writes dxn, to which
 * the mixer's projections then add. */
void hl_memory_backward(const struct hl_exact_memory *m);

#endif
