/* activations.h -- the activations of one pass over a batch of rows.
 *
 * One table names every buffer and says what the backward pass needs of it. At inference all layers
 * share one set. In training each layer has its own KEEP buffers; the CHEAP ones (a norm, a
 * convolution or a product away from kept ones) are shared too and computed again when `recompute`
 * is on, which halves the memory for a few percent of time. */
#ifndef HL_ACTS_H
#define HL_ACTS_H
#include "backend/backend.h"

/* X(name, numbers per row, KEEP | CHEAP, ACT | REAL). Widths use the names of struct hl_dims; ACT: of the
 * backend's activation type. */
#define HL_ACTS_LIST(X)                                                             \
    X(x, d, KEEP, ACT)               /* residual stream into the layer */           \
    X(xn, d, CHEAP, ACT)             /* its RMSNorm */                              \
    X(r_attn, 1, KEEP, REAL)         /* and that norm's factor */                   \
    X(q0, joint ? 0 : qk, KEEP, ACT) /* projections, before the convolution */      \
    X(k0, joint ? 0 : qk, KEEP, ACT)                                                \
    X(v0, joint ? 0 : vv, KEEP, ACT)                                                \
    X(z, gated && !joint ? vv : 0, KEEP, ACT) /* output gate */                     \
    X(a, decay && !joint ? HV : 0, KEEP, ACT) /* raw decay and write strength */    \
    X(b, joint ? 0 : HV, KEEP, ACT)                                                 \
    X(q1, qk, CHEAP, ACT) /* after convolution and SiLU */                          \
    X(k1, qk, CHEAP, ACT)                                                           \
    X(v1, vv, CHEAP, ACT)                                                           \
    X(q, qk, CHEAP, ACT) /* L2-normalised: what the state sees */                   \
    X(k, qk, CHEAP, ACT)                                                            \
    X(r_q, H, CHEAP, REAL)                                                          \
    X(r_k, H, CHEAP, REAL)                                                          \
    X(qt, rms ? qk : 0, CHEAP, ACT) /* RMSNorm-gamma: what the cache's read sees */ \
    X(kt, rms ? qk : 0, CHEAP, ACT)                                                 \
    X(r_qt, H, CHEAP, REAL)                                                         \
    X(r_kt, H, CHEAP, REAL)                                                         \
    X(beta, HV, KEEP, REAL)                                                         \
    X(g, decay ? HV : 0, KEEP, REAL)                                                \
    X(m, HV, KEEP, REAL) /* write magnitude */                                      \
    X(score, cache ? HV : 0, KEEP, REAL)                                            \
    X(v_new, vv, KEEP, ACT)                                                         \
    X(A, HV *HL_CHUNK, KEEP, ACT)                                                   \
    X(o, vv, KEEP, ACT) /* state read + gated cache read */                         \
    X(read, cache ? vv : 0, KEEP, ACT)                                              \
    X(lse, cache ? HV : 0, KEEP, REAL)                                              \
    X(r_o, HV, KEEP, REAL)                                                          \
    X(y, vv, CHEAP, ACT) /* output norm and gate */                                 \
    X(h, d, KEEP, ACT)   /* residual stream between mixer and MLP */                \
    X(hn, d, CHEAP, ACT)                                                            \
    X(r_mlp, 1, KEEP, REAL)                                                         \
    X(gate, paired ? 0 : I, KEEP, ACT)                                              \
    X(up, paired ? 0 : I, KEEP, ACT)                                                \
    X(act, I, CHEAP, ACT)

/* What the backward pass hands from op to op; one set for all layers. */
#define HL_GRADS_LIST(X)                                                         \
    X(dx, d, ACT) /* of the residual stream, updated in place down the layers */ \
    X(dn, d, ACT) /* of a normed stream */                                       \
    X(dact, I, ACT)                                                              \
    X(dy, vv, ACT)                                                               \
    X(dout, vv, ACT)                                                             \
    X(dz, joint ? 0 : vv, ACT)                                                   \
    X(dq, qk, ACT)                                                               \
    X(dk, qk, ACT)                                                               \
    X(dv, vv, ACT)                                                               \
    X(dqt, qk, ACT)                                                              \
    X(dkt, qk, ACT)                                                              \
    X(dq1, qk, ACT)                                                              \
    X(dk1, qk, ACT)                                                              \
    X(dq0, joint ? 0 : qk, ACT)                                                  \
    X(dk0, joint ? 0 : qk, ACT)                                                  \
    X(dv0, joint ? 0 : vv, ACT)                                                  \
    X(dg, HV, REAL)                                                              \
    X(dbeta, HV, REAL)                                                           \
    X(da, joint ? 0 : HV, ACT)                                                   \
    X(db, joint ? 0 : HV, ACT)

struct hl_dims {
    int64_t d, I, H, HV, K, V, qk, vv, L, vocab;
    bool gated, decay, beta, rms, cache;
};
struct hl_dims hl_dims(const hola_config *cfg);

#define HL_ACT void *
#define HL_REAL real *
#define HL_FIELD(name, width, keep, type) HL_##type name;
struct hl_layer_activations {
    HL_ACTS_LIST(HL_FIELD)
    real *S;      /* [chunks][HV][K][V]; NULL on a device */
    int64_t *sel; /* [blocks][HV][window] */
};
#undef HL_FIELD
#define HL_FIELD(name, width, type) HL_##type name;
struct hl_grads {
    HL_GRADS_LIST(HL_FIELD)
};
#undef HL_FIELD
#undef HL_ACT
#undef HL_REAL

enum hl_pass { HL_INFER, HL_TRAIN };
struct hl_activations {
    enum hl_pass pass;
    struct hl_backend *backend; /* from the owner, as the pass */
    bool recompute;
    /* Training on a device: q0, k0, v0, a, b, z of a token are one row of so many numbers, in the order of their
     * weights, and so are their gradients: one product makes them, one takes them. 0: each is an array. */
    int64_t joint;
    int64_t paired;                     /* the same of gate and up */
    int64_t rows, chunks, blocks;       /* capacity */
    struct hl_layer_activations *layer; /* [L] */
    void *last, *lastn;                 /* final residual stream [rows][d], its norm */
    real *r_last;                       /* and the factors [rows] */
    void *logits;                       /* room for `logits_bytes` of them */
    int64_t logits_bytes;
    double *nll, *nll_host; /* [rows]; the host's copy where they are not one */
    int32_t *top,
        *top_host;         /* [rows]: whether the target was the most likely token (xent.h); inference only */
    int32_t *ids, *target; /* [rows], where the backend's arrays are not the host's */
    struct hl_grads grad;  /* HL_TRAIN */
    /* called by the backward pass when parameters [first, first + n) have their gradients; NULL: not wanted */
    void (*ready)(void *ctx, int64_t first, int64_t n);
    void *ready_ctx;
    /* called after each layer of a forward pass of T rows; NULL: not wanted (view.c) */
    void (*watch)(void *ctx, int64_t layer, const struct hl_layer_activations *a, int64_t T);
    void *watch_ctx;
    char *block;
    real *S_block;
    int64_t *sel_block;
};

/* Makes room for a batch and cuts its rows up where the backend wants that; what is there already is kept if it
 * is large enough. logits: rows whose logits are wanted at a time, at most. */
hola_status hl_activations_reserve(struct hl_activations *a, const hola_config *cfg, struct hl_rows *rows,
                                   int64_t logits);
void hl_activations_free(struct hl_activations *a);
/* n ids as the backend's ops can read them: brought `there` (a->ids or a->target), or where they are. */
const int32_t *hl_activations_put(const struct hl_activations *a, int32_t *there, const int32_t *ids,
                                  int64_t n);
/* The losses of n rows, on the host. */
const double *hl_activations_nll(const struct hl_activations *a, int64_t n);
/* Which of them had the target on top, likewise. */
const int32_t *hl_activations_top(const struct hl_activations *a, int64_t n);

#endif
