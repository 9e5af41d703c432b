/* model.h -- inside a model: its tensors in two forms, the passes over it, a session's state block. */
#ifndef HL_MODEL_H
#define HL_MODEL_H
#include "fused/decode_batch/decode_batch.h"
#include "model/activations.h"
#include "model/params.h"
#include <pthread.h>

/* Where the parts of a session's state block lie, in bytes from a layer's start. Everything that
 * changes per token is in that block: copying it copies the session. */
struct hl_state_layout {
    int64_t S, tail_q, tail_k, tail_v, cache;
    int64_t layer; /* bytes of one layer */
    int64_t bytes; /* of the whole block */
};
struct hl_state_layout hl_state_layout(const hola_config *cfg, int64_t act_size);

/* A token at a time in one go (decode.c), where the backend can. */
struct hl_decoder {
    bool off, always;              /* tests: one op after another; however many rows */
    struct hl_decode_layer *layer; /* [L] */
    bool stale;                    /* not as last put to `block` */
    char *block;                   /* the backend's: that table, then the op's memory */
};

struct hola_model {
    hola_config cfg;
    char *config_text; /* the config.json it was loaded from, for its unknown fields; or NULL */
    struct hl_params params;
    hola_dtype *stored; /* [params.n]: each tensor's type in the file */
    struct hl_backend *backend;

    /* The weights in three forms, any of which may be absent. Rows: all tensors as reals in one block on the
     * host; what files are read into and written from. Panels: what inference reads, where the backend's arrays
     * are: the matrices packed in their stored type (on a device: plain rows of its activations' type), beside
     * a block of the small tensors. Master: the rows that training reads and writes; on a device a block of
     * their own there, with a second copy in the activations' type for the products. */
    real *rows;
    struct hl_quant
        *codes; /* [params.n]: as in the file, until the panels are made; empty: stored as floats */
    real *small;
    char *panels;
    real *master;             /* on the host: the rows */
    void *half;               /* NULL on the host */
    bool stale;               /* training has changed the weights since the panels were made */
    bool ahead;               /* ... since the device's master was copied to the rows */
    bool training;            /* a trainer holds the master */
    struct hl_weight *weight; /* [params.n]: the view that inference uses */

    struct hl_state_layout state;
    uint64_t hash;        /* of configuration and weights (hash.c); 0: not known */
    pthread_mutex_t lock; /* guards `infer` and the change of form */
    struct hl_activations infer;
    struct hl_candidate *top; /* where the backend's arrays are: room for top_room of them */
    int64_t top_room;
    struct hl_decoder decoder;
};

enum { HL_MASTER_SLACK = 1 << 16 };
hola_status hl_model_need_rows(hola_model *m);   /* before saving */
hola_status hl_model_need_panels(hola_model *m); /* before inference */
hola_status hl_model_need_master(hola_model *m); /* before training, and to bring changed rows to a device */
void hl_model_drop_master(hola_model *m);        /* after training */
void hl_model_drop_panels(hola_model *m);
void hl_model_drop_codes(hola_model *m);
/* Tensor i as reals, from whichever form is there. */
void hl_model_read(const hola_model *m, int64_t i, real *out);

/* Tensor i as the ops of a pass see it. */
struct hl_weight hl_model_weight(const hola_model *m, enum hl_pass pass, int64_t i);
const real *hl_model_vector(const hola_model *m, enum hl_pass pass, int64_t i); /* NULL for i = -1 */

/* Rows of a pass at inference: what a processor's caches hold, what keeps a device busy. */
int64_t hl_model_rows(const hola_model *m);
hola_status hl_model_check_ids(const hola_model *m, const int32_t *ids, int64_t n);
/* Fills acts->lastn: the normed residual stream after the last layer. ids (and targets below) are where the
 * backend's arrays are: hl_activations_put. */
void hl_model_forward(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows,
                      const int32_t *ids);
/* grads: a block laid out as the rows. Takes acts->grad.dn, the gradient of lastn. */
void hl_model_backward(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows,
                       const int32_t *ids, real *grads);
/* The loss of every row (acts->nll); with grads also their gradient times scale, into acts->grad.dn
 * and the head's. target < 0: no loss. */
void hl_model_loss(hola_model *m, struct hl_activations *acts, int64_t T, const int32_t *target, double scale,
                   real *grads);

/* decode.c: whether these rows (each a token of a session) can go through all layers in one go; then *out is ready
 * but for ids and logits. */
bool hl_decode_open(hola_model *m, const struct hl_rows *rows, struct hl_decode *out);
void hl_decode_close(hola_model *m);

/* hash.c: the same for models that give the same numbers, whatever form their weights are in; never 0. Reads all
 * weights the first time, over the pool. The lock is held. */
hola_status hl_model_hash(hola_model *m, uint64_t *out);

/* session.c: what a session is of, and its state block, where the backend's arrays are. */
const hola_model *hl_session_model(const hola_session *s);
const char *hl_session_state(const hola_session *s);

/* layer.c: one layer. x in acts->layer[l].x; the result goes to `out` ([T][d], may be that x). */
void hl_layer_forward(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows, int64_t l,
                      void *out);
void hl_layer_backward(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows, int64_t l,
                       real *grads);

#endif
