/* acts.h -- the activations of one pass over a batch of rows.
 *
 * One table names every buffer and says what the backward pass needs of it. At inference all layers
 * share one set. In training each layer has its own KEEP buffers; the CHEAP ones (a norm, a
 * convolution or a product away from kept ones) are shared too and computed again when `recompute`
 * is on, which halves the memory for a few percent of time. */
#ifndef HL_ACTS_H
#define HL_ACTS_H
#include "ops/ops.h"

/* X(name, reals per row, KEEP | CHEAP). Widths use the names of struct hl_dims. */
#define HL_ACTS_LIST(X)                                                        \
    X(x, d, KEEP)      /* residual stream into the layer */                    \
    X(xn, d, CHEAP)    /* its RMSNorm */                                       \
    X(r_attn, 1, KEEP) /* and that norm's factor */                            \
    X(q0, qk, KEEP)    /* projections, before the convolution */               \
    X(k0, qk, KEEP)                                                            \
    X(v0, vv, KEEP)                                                            \
    X(z, gated ? vv : 0, KEEP) /* output gate */                               \
    X(a, decay ? HV : 0, KEEP) /* raw decay and write strength */              \
    X(b, HV, KEEP)                                                             \
    X(q1, qk, CHEAP) /* after convolution and SiLU */                          \
    X(k1, qk, CHEAP)                                                           \
    X(v1, vv, CHEAP)                                                           \
    X(q, qk, CHEAP) /* L2-normalised: what the state sees */                   \
    X(k, qk, CHEAP)                                                            \
    X(r_q, H, CHEAP)                                                           \
    X(r_k, H, CHEAP)                                                           \
    X(qt, rms ? qk : 0, CHEAP) /* RMSNorm-gamma: what the cache's read sees */ \
    X(kt, rms ? qk : 0, CHEAP)                                                 \
    X(r_qt, H, CHEAP)                                                          \
    X(r_kt, H, CHEAP)                                                          \
    X(beta, HV, KEEP)                                                          \
    X(g, decay ? HV : 0, KEEP)                                                 \
    X(m, HV, KEEP) /* write magnitude */                                       \
    X(score, cache ? HV : 0, KEEP)                                             \
    X(v_new, vv, KEEP)                                                         \
    X(A, HV *HL_CHUNK, KEEP)                                                   \
    X(o, vv, KEEP) /* state read + gated cache read */                         \
    X(read, cache ? vv : 0, KEEP)                                              \
    X(lse, cache ? HV : 0, KEEP)                                               \
    X(r_o, HV, KEEP)                                                           \
    X(y, vv, CHEAP) /* output norm and gate */                                 \
    X(h, d, KEEP)   /* residual stream between mixer and MLP */                \
    X(hn, d, CHEAP)                                                            \
    X(r_mlp, 1, KEEP)                                                          \
    X(gate, I, KEEP)                                                           \
    X(up, I, KEEP)                                                             \
    X(act, I, CHEAP)

/* What the backward pass hands from op to op; one set for all layers. */
#define HL_GRADS_LIST(X)                                                    \
    X(dx, d) /* of the residual stream, updated in place down the layers */ \
    X(dn, d) /* of a normed stream */                                       \
    X(dact, I)                                                              \
    X(dy, vv)                                                               \
    X(dout, vv)                                                             \
    X(dz, vv)                                                               \
    X(dq, qk)                                                               \
    X(dk, qk)                                                               \
    X(dv, vv)                                                               \
    X(dqt, qk)                                                              \
    X(dkt, qk)                                                              \
    X(dq1, qk)                                                              \
    X(dk1, qk)                                                              \
    X(dq0, qk)                                                              \
    X(dk0, qk)                                                              \
    X(dv0, vv)                                                              \
    X(dg, HV)                                                               \
    X(dbeta, HV)                                                            \
    X(da, HV)                                                               \
    X(db, HV)

struct hl_dims {
    int64_t d, I, H, HV, K, V, qk, vv, L, vocab;
    bool gated, decay, rms, cache;
};
struct hl_dims hl_dims(const hola_config *cfg);

#define HL_FIELD(name, ...) real *name;
struct hl_layer_acts {
    HL_ACTS_LIST(HL_FIELD)
    real *S;      /* [chunks][HV][K][V] */
    int64_t *sel; /* [blocks][HV][window] */
};
struct hl_grads {
    HL_GRADS_LIST(HL_FIELD)
};
#undef HL_FIELD

enum hl_pass { HL_INFER, HL_TRAIN };
struct hl_acts {
    enum hl_pass pass;
    bool recompute;
    int64_t rows, chunks, blocks; /* capacity */
    struct hl_layer_acts *layer;  /* [L] */
    real *last, *lastn, *r_last;  /* final residual stream [rows][d], its norm, the factors [rows] */
    real *logits;                 /* [min(rows, HL_XENT_ROWS)][vocab], where asked for */
    double *nll;                  /* [rows] */
    struct hl_grads grad;         /* HL_TRAIN */
    real *block, *S_block;
    int64_t *sel_block;
};

/* Makes room for a batch; what is there already is kept if it is large enough. */
hola_status hl_acts_reserve(struct hl_acts *a, const hola_config *cfg, const struct hl_rows *rows,
                            bool logits);
void hl_acts_free(struct hl_acts *a);

#endif
