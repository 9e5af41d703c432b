/* model.h -- inside a model: its weights in three forms, and passes over it. */
#ifndef HL_MODEL_H
#define HL_MODEL_H
#include "model/activations.h"
#include "model/params.h"
#include "model/state.h"
#include <pthread.h>

/* A model as the fused decoding kernels see it (decode_plan.c). */
struct hl_decoder {
    bool off, always;                       /* tests: off: one op after another; always: fused for any number of rows */
    int64_t made;                           /* panels_made when this was built; 0: not built */
    bool fits;                              /* the mixer has the kernels' form, and the weights have the layout they
                                             * need */
    struct hl_decode model;                 /* sizes and weights, without rows */
    struct hl_decode_layer *layer;          /* [L], on the host */
    bool stale;                             /* out of date with respect to `block` */
    uint64_t page_hash[HL_DECODE_ONE_ROWS]; /* of the page tables in `block` (hl_decode) */
    char *block;                            /* backend memory: that table, then decode_one's workspace */
};

struct hola_model {
    hola_config cfg;
    char *config_text; /* the config.json it was loaded from, kept for its unknown fields; or NULL */
    struct hl_params params;
    hola_dtype *stored; /* [params.n]: each tensor's type in the file */
    struct hl_backend *backend;

    /* The weights in three forms, any of which may be absent. Rows: all tensors as reals in one host block; files are
     * read into and written from it. Panels: what inference reads, in backend memory: matrices packed in their stored
     * type (on a device: plain rows in the activation type), plus a block of the small tensors. Master: the rows that
     * training reads and updates; on a device a separate block there, with a second copy in the activation type for the
     * products. */
    real *rows;
    struct hl_quant *codes; /* [params.n]: as in the file, until the panels are built; empty: stored as floats */
    real *small;
    char *panels;
    real *master;                      /* on the host: the rows */
    void *half;                        /* NULL on the host */
    int64_t panels_made;               /* counter; pointers into the panels are renewed when it changes */
    bool stale;                        /* training has changed the weights since the panels were built */
    bool ahead;                        /* ... since the device's master was last copied to the rows */
    bool training;                     /* a trainer holds the master */
    hola_precision training_precision; /* ... and computes its large products this way: hl_model_takes */
    hola_precision precision;          /* the same of inference */
    struct hl_weight *weight;          /* [params.n]: the view used by inference */

    struct hl_state_layout state; /* never changes while there are sessions */
    struct hl_state_pool states;
    struct hl_state_pool staging; /* of a device: blocks on the host, for sessions on their way from and to files */
    uint64_t hash;                /* of config and weights (hash.c); 0: not computed */
    pthread_mutex_t lock;         /* guards `infer` and changes of form */
    struct hl_activations infer;
    struct hl_candidate *candidates; /* in backend memory: room for candidates_room of them */
    int64_t candidates_room;
    int64_t steps_replayed; /* as a captured graph; counted for the server's log and bench_lookup */
    struct hl_decoder decoder;
};

/* hola_model_load of a directory under another config (NULL: its own), which may add an exact memory: its tensors then
 * get their initial values. */
hola_status hl_model_load_as(hola_model **out, const char *dir, const hola_config *as, const hola_options *opt);

/* save.c */
/* The config.json of a saved model; the caller frees it. */
hola_status hl_model_saved_config(const hola_model *m, hola_dtype dtype, char **out);
/* Calls save while m has its rows, under the lock. */
hola_status hl_model_save_with(const hola_model *m, hola_status (*save)(const hola_model *m, void *ctx), void *ctx);
/* Quantizes the large matrices to the nearest codes: codes [params.n], zeroed; empty where m already has codes of this
 * type. m has its rows. To be freed, also after a failure. */
hola_status hl_model_make_codes(const hola_model *m, hola_dtype dtype, struct hl_quant *codes);

/* Lays out the states of sessions by the types of the stored weights: where the large matrices have 16 bits or less, the
 * exact memory's rows have 16 on a CPU, too. Called once, after loading; later changes of types keep the layout. */
void hl_model_lay_out_states(hola_model *m);

/* Whether this precision is meant for tensor i: it is in a large product, not in that of a gate, and for FP8 not in the
 * head's. FP8 may still not fit its size (hl_fp8_fits). */
static inline bool hl_model_takes(const struct hl_params *p, int64_t i, hola_precision how) {
    return p->tensor[i].quantised && (p->tensor[i].layer >= 0 || how != HOLA_PRECISION_FP8);
}
/* Whether the backend has it. */
hola_status hl_model_precision(const struct hl_backend *b, hola_precision how, bool training);
enum { HL_MASTER_SLACK = 1 << 16 };
hola_status hl_model_need_rows(hola_model *m);   /* before saving */
hola_status hl_model_need_panels(hola_model *m); /* before inference */
hola_status hl_model_need_master(hola_model *m); /* before training, and to copy changed rows to a device */
void hl_model_drop_master(hola_model *m);        /* after training */
void hl_model_drop_panels(hola_model *m);
void hl_model_drop_codes(hola_model *m);
/* Tensor i as reals, from any form that exists. */
void hl_model_read(const hola_model *m, int64_t i, real *out);

/* Tensor i as the ops of a pass use it. */
struct hl_weight hl_model_weight(const hola_model *m, enum hl_pass pass, int64_t i);
const real *hl_model_vector(const hola_model *m, enum hl_pass pass, int64_t i); /* NULL for i = -1 */

/* Rows per inference pass: what fits the CPU's caches, or keeps a device busy. */
int64_t hl_model_rows(const hola_model *m);
hola_status hl_model_check_ids(const hola_model *m, const int32_t *ids, int64_t n);
/* Fills acts->lastn: the normalized residual stream after the last layer. ids (and targets below) are in backend
 * memory: hl_activations_put. */
void hl_model_forward(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows, const int32_t *ids);
/* grads: a block laid out like the rows. Consumes acts->grad.dn, the gradient of lastn. */
void hl_model_backward(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows, const int32_t *ids,
                       real *grads);
/* The loss of each row (acts->nll); with grads also its gradient times scale, into acts->grad.dn and the head's
 * gradient. target < 0: no loss. */
void hl_model_loss(hola_model *m, struct hl_activations *acts, int64_t T, const int32_t *target, double scale,
                   real *grads);

/* decode_plan.c: how the next token of each of these rows (one per session) is computed. */
enum hl_decode_way {
    HL_BY_OPS,        /* op by op, like any other pass */
    HL_BY_ONE_KERNEL, /* one persistent kernel for all layers and the head: few rows */
    HL_BY_BATCH       /* fused products and one kernel per mixer: up to HL_DECODE_BATCH_ROWS rows */
};
/* *out is ready for the fused kernels except for ids, logits and refused. */
enum hl_decode_way hl_decode_plan(hola_model *m, const struct hl_rows *rows, struct hl_decode *out);
void hl_decode_close(hola_model *m);

/* hash.c: equal for models of the same configuration and weights, in any form and stored type; never 0. The first call
 * reads all weights, using the pool. The lock is held. */
hola_status hl_model_hash(hola_model *m, uint64_t *out);

/* block.c: one layer = norm, mixer, residual, norm, SwiGLU, residual. */
/* Layer `index` as its mixer sees it. grads: a block laid out like the rows; NULL in a forward pass. */
struct hl_layer hl_layer_open(const hola_model *m, const struct hl_activations *acts, const struct hl_rows *rows,
                              int64_t index, real *grads);
/* x is in acts->layer[index].x; the result goes to `out` ([T][d], which may be that x). */
void hl_block_forward(const hola_model *m, const struct hl_activations *acts, const struct hl_rows *rows, int64_t index,
                      void *out);
/* Reads the gradient of the output from acts->grad.dx and replaces it with that of x. */
void hl_block_backward(const hola_model *m, const struct hl_activations *acts, const struct hl_rows *rows,
                       int64_t index, real *grads);

#endif
