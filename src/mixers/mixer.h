/* mixer.h -- what a token mixer is to the rest of the model.
 *
 * A layer is norm, mixer, residual, norm, SwiGLU, residual (model/block.c). The mixer is everything between the
 * normed stream and the residual, its output projection included. Each one is a struct of tables and functions;
 * nothing outside its folder knows which mixers there are. docs/architecture.md shows how to add one. */
#ifndef HL_MIXER_H
#define HL_MIXER_H
#include "backend/backend.h"
#include "fused/decode_batch/decode_batch.h"

enum { HL_MIXER_TENSORS = 32, HL_STATE_PARTS = 16, HL_BUFFERS = 64 };
enum hl_pass { HL_INFER, HL_TRAIN };

/* ---- config fields ---- */

/* Groups of fields of hola_config; a mixer has one or more of them. model/config_json.c lists the fields. */
enum hl_config_group {
    HL_GROUP_ALL = 1,          /* every model */
    HL_GROUP_HEADS = 2,        /* heads of the delta rule */
    HL_GROUP_DELTA_NET = 4,    /* without decay, head sizes given by expand_k and expand_v */
    HL_GROUP_GATED = 8,        /* with decay, head sizes given by head_dim and expand_v */
    HL_GROUP_MEMORY = 16,      /* exact memory */
    HL_GROUP_TRANSFORMER = 32, /* softmax attention */
    HL_GROUP_GLA = 64,
    HL_GROUP_GSA = 128,
    HL_GROUP_KDA = 256
};

/* ---- tensors ---- */

enum hl_init {
    HL_INIT_NORMAL,   /* N(0, value^2); value 0: initializer_range */
    HL_INIT_CONSTANT, /* value */
    HL_INIT_A_LOG,    /* log U(value, 16) */
    HL_INIT_DT_BIAS   /* softplus^-1 of a step log-uniform in [0.001, 0.1] */
};
struct hl_tensor_spec {
    const char *name; /* after "model.layers.N.attn."; NULL: this model has none */
    int64_t dim[3];   /* a 0 ends the shape */
    enum hl_init init;
    double value;     /* HL_INIT_CONSTANT, HL_INIT_NORMAL, HL_INIT_A_LOG */
    bool frozen;      /* not trained */
    bool plain;       /* two dimensions, but no linear op multiplies with it: reals, as all that is no matrix */
    bool unquantised; /* a matrix that stays as floats in INT8 and INT4 files */
    bool optional;    /* files may lack it: it then has its start value */
    bool memory;      /* of the exact memory */
};

/* ---- a session's state ---- */

/* How a part changes as tokens come, which says what a mark must copy:
 * REPLACED: all of it with every token; a mark copies it.
 * RANKED: rows are appended to the open block, and a full block is merged into the rows that are kept. A mark
 *   copies it only when a block closes after the mark: until then the position tells what to ignore.
 * GROWS: `count` numbers are appended per token, in pages. A rollback is a smaller position; nothing is copied. */
enum hl_state_change { HL_REPLACED = 1, HL_RANKED = 2, HL_GROWS = 4 };
enum hl_state_kind {
    HL_STATE_REAL,
    HL_STATE_ACT,     /* activations, as the backend stores them */
    HL_STATE_SCORE,   /* reals that are saved as floats whatever the type of the file */
    HL_STATE_POSITION /* int64: where a kept row stood; the first min(count, closed tokens) are in use */
};
struct hl_state_part {
    const char *name;
    enum hl_state_kind kind;
    enum hl_state_change change;
    int64_t count; /* numbers (HL_GROWS: per token), of one head where heads > 0 */
    int64_t heads; /* > 0: parts that follow each other with the same number lie head by head, as one record */
    int64_t block; /* of kept rows: tokens of a block; 0: none */
};

/* ---- activations ---- */

/* A buffer that the mixer's struct of activations or gradients points to. */
enum hl_unit { HL_PER_ROW, HL_PER_CHUNK, HL_PER_BLOCK }; /* token; HL_CHUNK rows; block of the exact memory */
enum hl_element { HL_ELEMENT_ACT, HL_ELEMENT_REAL, HL_ELEMENT_INT64 };
struct hl_buffer {
    size_t field;  /* offset of its pointer in the struct */
    int64_t width; /* numbers per unit; 0: the pointer is NULL */
    enum hl_element element;
    enum hl_unit unit;
    bool cheap;  /* quickly computed again from others: shared by the layers under --recompute */
    bool brief;  /* used during the layer's forward only: always shared by the layers */
    bool inside; /* lies in the last buffer before it that does not, `offset` numbers into its rows */
    int64_t offset;
};
struct hl_buffers {
    int n;
    struct hl_buffer buffer[HL_BUFFERS];
};
/* What a mixer needs to know to list its buffers. */
struct hl_buffers_for {
    const hola_config *cfg;
    enum hl_pass pass;
    bool host;
};
void hl_buffer_add(struct hl_buffers *list, struct hl_buffer b);
/* Training on a device: the outputs of n projections of one input as parts of one row, so that one product makes them.
 * Returns the row's numbers; 0: each is an array, because parts would not begin on 16 bytes, or it is not wanted. */
int64_t hl_joint_row(enum hl_pass pass, bool host, int n, const int64_t *width);
/* The n outputs, as parts of one row that field `row` points to (joint > 0), or as arrays. */
void hl_buffer_add_row(struct hl_buffers *list, int64_t joint, size_t row, int n, const size_t *field,
                       const int64_t *width);

/* ---- one layer in a pass ---- */

struct hl_layer_tensor {
    struct hl_weight W; /* a matrix, as linear ops take it; data NULL: this model has none */
    const real *vector; /* anything else */
    real *grad;         /* NULL in a forward pass */
};
struct hl_layer {
    struct hl_backend *backend;
    const hola_config *cfg;
    const struct hl_rows *rows;
    enum hl_pass pass;
    int64_t index, T; /* which layer; rows */
    struct hl_layer_tensor tensor[HL_MIXER_TENSORS];
    int64_t state[HL_STATE_PARTS]; /* bytes into seg->state, or, of a part that grows, into a page */
    void *acts, *grads;            /* the mixer's own structs; grads in training only */
    /* the residual stream before the layer, its norm, and the stream with the mixer's output added (at inference
     * the same buffer as x) */
    const void *x, *xn;
    void *h;
    /* backward: the gradient of h, and what the mixer writes: that of xn */
    void *dh, *dxn;
};

/* ---- the mixer ---- */

struct hl_exact_memory;
struct hl_mixer {
    const char *name;                 /* model_type in config.json */
    const char *architecture;         /* the class that config.json names */
    unsigned fields;                  /* groups of config fields, or-ed */
    void (*defaults)(hola_config *c); /* what differs from the common defaults; NULL: nothing */
    void (*preset)(hola_config *c);   /* what differs from the common sizes of a preset; NULL: nothing */
    /* What ranges of single fields do not say; `where` begins the message. NULL: nothing. */
    hola_status (*check)(const hola_config *c, const char *where);
    const char *const *ops; /* ops beyond those that every backend has; NULL ends; NULL: none */
    const char *host_op;    /* an op that the mixer brings along as plain C; a device refuses it. NULL: none */
    int64_t (*scratch)(const hola_config *c); /* bytes per worker; NULL: none */

    /* In file order, by the mixer's own indices: out[HL_MIXER_TENSORS] comes zeroed. */
    void (*tensors)(const hola_config *c, struct hl_tensor_spec *out);
    /* Fills out[HL_STATE_PARTS] and returns how many. */
    int (*state)(const hola_config *c, struct hl_state_part *out);
    size_t acts_size, grads_size; /* of its structs of pointers */
    void (*buffers)(const struct hl_buffers_for *f, struct hl_buffers *acts, struct hl_buffers *grads);

    /* h = x + mixer(xn); the cheap buffers again; dh and what forward kept to dxn and the tensors' gradients. */
    void (*forward)(const struct hl_layer *l);
    void (*recompute)(const struct hl_layer *l);
    void (*backward)(const struct hl_layer *l);

    /* The fused decoding kernels' view of a model (fused/decode_one/decode_one.h): sizes, of any layer; a layer's
     * weights, false: they do not lie as the kernels want them. NULL: decoded op by op. */
    void (*decode_sizes)(const struct hl_layer *l, struct hl_decode *out);
    bool (*decode_layer)(const struct hl_layer *l, struct hl_decode_layer *out);
    /* The exact memory that reads this mixer's keys and values; NULL: it never has one. */
    void (*memory)(const struct hl_layer *l, struct hl_exact_memory *out);
    bool tiled;           /* it has softmax attention or rotary positions (hl_rows) */
    bool memory_optional; /* off unless cache_evict says otherwise: the model is then as if it could not have one */
};

/* X(model type, name): the mixers that there are. Each is an hl_mixer_<name>, and <name> is the model type in files and
 * on the command line. */
#define HL_MIXERS_LIST(X)             \
    X(HOLA, hola)                     \
    X(GATED_DELTANET, gated_deltanet) \
    X(DELTA_NET, delta_net)           \
    X(TRANSFORMER, transformer)       \
    X(GLA, gla)                       \
    X(GSA, gsa)                       \
    X(KDA, kda)
/* The mixer of a model type; NULL: there is none. */
const struct hl_mixer *hl_mixer_of(hola_model_type type);
int hl_mixer_count(void);
/* Adds a mixer under the next free model type, for tests and experiments. Call it before models are used by other
 * threads. HOLA_TYPE_COUNT: there is no place left. */
hola_model_type hl_mixer_register(const struct hl_mixer *m);

/* ---- for mixers ---- */

/* Adds a matrix to a group of products that share their input; one that the model lacks is passed over. */
void hl_layer_part(const struct hl_layer *l, struct hl_linear *a, int tensor, void *out, const void *dout);
/* Where tensors first to last start if they lie side by side, as the fused decoders want what shares its input; NULL:
 * they do not. Those that the model lacks are passed over. */
const void *hl_layer_adjacent(const struct hl_layer *l, int first, int last);
/* The output projection into the residual stream: h = x + y W^T, y [T][width]; and back: dy and W's gradient. */
void hl_layer_project(const struct hl_layer *l, int tensor, const void *y, int64_t width);
void hl_layer_project_backward(const struct hl_layer *l, int tensor, const void *y, int64_t width, void *dy);

#endif
