/* mixer.h -- the interface between a token mixer and the rest of the model.
 *
 * A layer is norm, mixer, residual, norm, SwiGLU, residual (model/block.c). The mixer is everything between the normed
 * stream and the residual, including its output projection. Each mixer is a struct of tables and functions; code
 * outside this folder does not depend on the list of mixers. docs/architecture.md shows how to add one. */
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
    bool plain;       /* two dimensions, but not used by a linear op: stored as reals, like all non-matrices */
    bool unquantised; /* a matrix that stays float in INT8 and INT4 files */
    bool optional;    /* may be missing in files: it then has its initial value */
    bool memory;      /* belongs to the exact memory */
};

/* ---- a session's state ---- */

/* How a part changes per token, which determines what a mark must copy:
 * REPLACED: rewritten by every token; a mark copies it.
 * RANKED: rows are appended to the open block, and a full block is merged into the kept rows. A mark copies it only
 *   when a block closes after the mark: until then the position determines what to ignore.
 * GROWS: `count` numbers are appended per token, in pages. A rollback just lowers the position; nothing is copied. */
enum hl_state_change { HL_REPLACED = 1, HL_RANKED = 2, HL_GROWS = 4 };
enum hl_state_kind {
    HL_STATE_REAL,
    HL_STATE_ACT,     /* activations, as the backend stores them */
    HL_STATE_ROW,     /* rows of the exact memory, in the layout's type (hl_state_layout.row) */
    HL_STATE_SCORE,   /* reals, saved as floats in every file type */
    HL_STATE_POSITION /* int64: positions of kept rows; the first min(count, closed tokens) are in use */
};
enum { HL_STATE_KINDS = HL_STATE_POSITION + 1 };
struct hl_state_part {
    const char *name;
    enum hl_state_kind kind;
    enum hl_state_change change;
    int64_t count; /* numbers (HL_GROWS: per token), per head if heads > 0 */
    int64_t heads; /* > 0: adjacent parts with the same number are interleaved by head, as one record */
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
    bool cheap;  /* cheap to recompute from others: shared by the layers under --recompute */
    bool brief;  /* used only during the layer's forward pass: always shared by the layers */
    bool inside; /* stored inside the last preceding buffer that is not, `offset` numbers into its rows */
    int64_t offset;
};
struct hl_buffers {
    int n;
    struct hl_buffer buffer[HL_BUFFERS];
};
/* The input for listing a mixer's buffers. */
struct hl_buffers_for {
    const hola_config *cfg;
    enum hl_pass pass;
    bool host;
    bool recompute;             /* --recompute: what an op can do without is not kept */
    struct hl_backend *backend; /* NULL: no optional buffers */
};
void hl_buffer_add(struct hl_buffers *list, struct hl_buffer b);
/* Training on a device: places the outputs of n projections of one input in one row, so that one product computes them.
 * Returns the numbers per row; 0: separate arrays, because parts would not be 16-byte aligned, or it is not wanted. */
int64_t hl_joint_row(enum hl_pass pass, bool host, int n, const int64_t *width);
/* The n outputs, as parts of one row that field `row` points to (joint > 0), or as arrays. */
void hl_buffer_add_row(struct hl_buffers *list, int64_t joint, size_t row, int n, const size_t *field,
                       const int64_t *width);

/* ---- one layer in a pass ---- */

struct hl_layer_tensor {
    struct hl_weight W; /* a matrix for linear ops; data NULL: this model has none */
    const real *vector; /* anything else */
    real *grad;         /* NULL in a forward pass */
};
struct hl_layer {
    struct hl_backend *backend;
    const hola_config *cfg;
    const struct hl_rows *rows;
    enum hl_pass pass;
    int64_t index, T;     /* which layer; rows */
    hola_dtype row_dtype; /* of the exact memory's rows: as in struct hl_cache */
    struct hl_layer_tensor tensor[HL_MIXER_TENSORS];
    int64_t state[HL_STATE_PARTS]; /* byte offset into seg->state, or, for a growing part, into a page */
    void *acts, *grads;            /* the mixer's own structs; grads in training only */
    /* the residual stream before the layer, its norm, and the stream plus the mixer's output (at inference the same
     * buffer as x) */
    const void *x, *xn;
    void *h;
    /* backward: the gradient of h, and that of xn, which the mixer writes */
    void *dh, *dxn;
};

/* ---- the mixer ---- */

struct hl_exact_memory;
struct hl_mixer {
    const char *name;                 /* model_type in config.json */
    const char *architecture;         /* the class that config.json names */
    unsigned fields;                  /* groups of config fields, ORed */
    void (*defaults)(hola_config *c); /* differences from the common defaults; NULL: none */
    void (*preset)(hola_config *c);   /* differences from the common preset sizes; NULL: none */
    /* Checks beyond the ranges of single fields; `where` begins the message. NULL: none. */
    hola_status (*check)(const hola_config *c, const char *where);
    const char *const *ops; /* ops beyond those every backend has, NULL-terminated; NULL: none */
    const char *host_op;    /* an op that the mixer implements in plain C; devices refuse it. NULL: none */
    int64_t (*scratch)(const hola_config *c); /* bytes per worker; NULL: none */

    /* In file order, indexed by the mixer's own enum: out[HL_MIXER_TENSORS] is zeroed. */
    void (*tensors)(const hola_config *c, struct hl_tensor_spec *out);
    /* Fills out[HL_STATE_PARTS] and returns the number of parts. */
    int (*state)(const hola_config *c, struct hl_state_part *out);
    size_t acts_size, grads_size; /* sizes of its structs of pointers */
    void (*buffers)(const struct hl_buffers_for *f, struct hl_buffers *acts, struct hl_buffers *grads);

    /* h = x + mixer(xn); recomputes the cheap buffers; from dh and the kept buffers to dxn and the tensors'
     * gradients. */
    void (*forward)(const struct hl_layer *l);
    void (*recompute)(const struct hl_layer *l);
    void (*backward)(const struct hl_layer *l);

    /* The fused decoding kernels' view of a model (fused/decode_one/decode_one.h): sizes, for any layer; a layer's
     * weights, false: their layout is not supported. NULL: decoded op by op. */
    void (*decode_sizes)(const struct hl_layer *l, struct hl_decode *out);
    bool (*decode_layer)(const struct hl_layer *l, struct hl_decode_layer *out);
    /* The exact memory over this mixer's keys and values; NULL: not supported. */
    void (*memory)(const struct hl_layer *l, struct hl_exact_memory *out);
    bool tiled;           /* it has softmax attention or rotary positions (hl_rows) */
    bool memory_optional; /* off unless cache_evict enables it: the model then behaves as if it did not support one */
};

/* X(model type, name): the list of mixers. Each is an hl_mixer_<name>, and <name> is the model type in files and on the
 * command line. */
#define HL_MIXERS_LIST(X)             \
    X(HOLA, hola)                     \
    X(GATED_DELTANET, gated_deltanet) \
    X(DELTA_NET, delta_net)           \
    X(TRANSFORMER, transformer)       \
    X(GLA, gla)                       \
    X(GSA, gsa)                       \
    X(KDA, kda)
/* The mixer of a model type, or NULL. */
const struct hl_mixer *hl_mixer_of(hola_model_type type);
int hl_mixer_count(void);
/* Adds a mixer under the next free model type, for tests and experiments. Call it before other threads use models.
 * HOLA_TYPE_COUNT: the table is full. */
hola_model_type hl_mixer_register(const struct hl_mixer *m);

/* ---- for mixers ---- */

/* Adds a matrix to a group of products that share their input; skips one that the model lacks. */
void hl_layer_part(const struct hl_layer *l, struct hl_linear *a, int tensor, void *out, const void *dout);
/* The start of tensors first to last if they are contiguous, as the fused decoders need for those that share an input;
 * else NULL. Skips those that the model lacks. */
const void *hl_layer_adjacent(const struct hl_layer *l, int first, int last);
/* The output projection into the residual stream: h = x + y W^T, y [T][width]; and back: dy and W's gradient. */
void hl_layer_project(const struct hl_layer *l, int tensor, const void *y, int64_t width);
void hl_layer_project_backward(const struct hl_layer *l, int tensor, const void *y, int64_t width, void *dy);

#endif
