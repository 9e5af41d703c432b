/* activations.h -- the activations of one pass over a batch of rows.
 *
 * Each block has a few buffers (listed in activations.c); the mixer lists its own (mixers/mixer.h). At inference all
 * layers share one set. In training each layer has its own set. With `recompute`, buffers that are cheap to recompute
 * (one norm, convolution or product) are shared too, which halves the memory for a few percent of time. */
#ifndef HL_ACTIVATIONS_H
#define HL_ACTIVATIONS_H
#include "mixers/mixer.h"

struct hl_layer_activations {
    void *x;      /* residual stream into the layer */
    void *xn;     /* its RMSNorm */
    real *r_attn; /* factor of that norm */
    void *h;      /* residual stream between mixer and MLP */
    void *hn;
    real *r_mlp;
    void *pair;      /* training on a device: gate and up of a token in one row */
    void *gate, *up; /* of the SwiGLU */
    void *act;
    void *mixer; /* the mixer's own struct */
};
/* Gradients passed between ops in the backward pass; one set for all layers. */
struct hl_gradients {
    void *dx; /* of the residual stream, updated in place down the layers */
    void *dn; /* of a normalized stream */
    void *dact;
    void *mixer;
};

struct hl_activations {
    enum hl_pass pass;
    struct hl_backend *backend; /* set by the owner, as is pass */
    bool recompute;
    int64_t paired;                     /* row stride of gate and up; 0: separate arrays */
    int64_t rows, chunks, blocks;       /* capacity */
    struct hl_layer_activations *layer; /* [L] */
    void *last, *lastn;                 /* final residual stream [rows][d], its norm */
    real *r_last;                       /* and the factors [rows] */
    void *logits;                       /* logits of a slice of rows: `logits_bytes` */
    int64_t logits_bytes;
    double *nll, *nll_host;          /* [rows]; nll_host: host copy, if it is a separate array */
    int32_t *correct, *correct_host; /* [rows]: whether the target was the most likely token; inference only */
    int32_t *ids, *target;           /* [rows], if the backend's arrays are not in host memory */
    struct hl_gradients grad;        /* HL_TRAIN */
    /* called by the backward pass when the gradients of parameters [first, first + n) are complete; NULL: not used */
    void (*ready)(void *ctx, int64_t first, int64_t n);
    void *ready_ctx;
    /* called after each layer of a forward pass; NULL: not used (cache_view.c) */
    void (*watch)(void *ctx, const struct hl_layer *l);
    void *watch_ctx;
    char *block; /* all buffers */
    char *mixer; /* the mixer's structs of pointers, one per layer and one for gradients */
};

/* Reserves memory for a batch and splits its rows if the backend needs that; memory that is large enough is reused.
 * logits: the most rows whose logits are needed at once. */
hola_status hl_activations_reserve(struct hl_activations *a, const hola_config *cfg, struct hl_rows *rows,
                                   int64_t logits);
void hl_activations_free(struct hl_activations *a);
/* Bytes needed for `rows` rows in `pieces` segments of equal length, all with logits; only pass, backend and recompute
 * of `a` are read. */
hola_status hl_activations_bytes(struct hl_activations *a, const hola_config *cfg, int64_t rows, int64_t pieces,
                                 int64_t *bytes);
/* n ids in memory the backend can read: copied to `there` (a->ids or a->target), or ids itself. */
const int32_t *hl_activations_put(const struct hl_activations *a, int32_t *there, const int32_t *ids, int64_t n);
/* The losses of n rows, on the host. */
const double *hl_activations_nll(const struct hl_activations *a, int64_t n);
/* Whether the target was the most likely token, for each row, on the host. */
const int32_t *hl_activations_correct(const struct hl_activations *a, int64_t n);

#endif
