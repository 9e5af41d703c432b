/* activations.h -- the activations of one pass over a batch of rows.
 *
 * The block has a few buffers (activations.c lists them), the mixer lists its own (mixers/mixer.h). At inference all
 * layers share one set. In training each layer has its own; the cheap ones (a norm, a convolution or a product away
 * from others) are shared too and computed again when `recompute` is on, which halves the memory for a few percent of
 * time. */
#ifndef HL_ACTIVATIONS_H
#define HL_ACTIVATIONS_H
#include "mixers/mixer.h"

struct hl_layer_activations {
    void *x;      /* residual stream into the layer */
    void *xn;     /* its RMSNorm */
    real *r_attn; /* and that norm's factor */
    void *h;      /* residual stream between mixer and MLP */
    void *hn;
    real *r_mlp;
    void *pair;      /* training on a device: gate and up of a token are one row */
    void *gate, *up; /* of the SwiGLU */
    void *act;
    void *mixer; /* the mixer's own struct */
};
/* What the backward pass hands from op to op; one set for all layers. */
struct hl_gradients {
    void *dx; /* of the residual stream, updated in place down the layers */
    void *dn; /* of a normed stream */
    void *dact;
    void *mixer;
};

struct hl_activations {
    enum hl_pass pass;
    struct hl_backend *backend; /* from the owner, as the pass */
    bool recompute;
    int64_t paired;                     /* numbers of a row of gate and up; 0: each is an array */
    int64_t rows, chunks, blocks;       /* capacity */
    struct hl_layer_activations *layer; /* [L] */
    void *last, *lastn;                 /* final residual stream [rows][d], its norm */
    real *r_last;                       /* and the factors [rows] */
    void *logits;                       /* room for `logits_bytes` of them */
    int64_t logits_bytes;
    double *nll, *nll_host;          /* [rows]; the host's copy where they are not one */
    int32_t *correct, *correct_host; /* [rows]: whether the target was the most likely token; inference only */
    int32_t *ids, *target;           /* [rows], where the backend's arrays are not the host's */
    struct hl_gradients grad;        /* HL_TRAIN */
    /* called by the backward pass when parameters [first, first + n) have their gradients; NULL: not wanted */
    void (*ready)(void *ctx, int64_t first, int64_t n);
    void *ready_ctx;
    /* called after each layer of a forward pass; NULL: not wanted (cache_view.c) */
    void (*watch)(void *ctx, const struct hl_layer *l);
    void *watch_ctx;
    char *block; /* all buffers */
    char *mixer; /* the mixer's structs of pointers, one a layer and one for gradients */
};

/* Makes room for a batch and cuts its rows up where the backend wants that; what is there already is kept if it
 * is large enough. logits: rows whose logits are wanted at a time, at most. */
hola_status hl_activations_reserve(struct hl_activations *a, const hola_config *cfg, struct hl_rows *rows,
                                   int64_t logits);
void hl_activations_free(struct hl_activations *a);
/* Bytes that reserving would take for `rows` rows in `pieces` segments of equal length, all with logits; `a` has pass,
 * backend and recompute alone. */
hola_status hl_activations_bytes(struct hl_activations *a, const hola_config *cfg, int64_t rows, int64_t pieces,
                                 int64_t *bytes);
/* n ids as the backend's ops can read them: brought `there` (a->ids or a->target), or where they are. */
const int32_t *hl_activations_put(const struct hl_activations *a, int32_t *there, const int32_t *ids, int64_t n);
/* The losses of n rows, on the host. */
const double *hl_activations_nll(const struct hl_activations *a, int64_t n);
/* Which of them had the target as the most likely token, likewise. */
const int32_t *hl_activations_correct(const struct hl_activations *a, int64_t n);

#endif
