/* params.h -- the one table of a model's tensors: name, shape, place in memory, initialisation.
 *
 * All weights of a model live in one block of `total` reals; a tensor starts at `offset`, on 64 bytes, and
 * the padding between tensors is 0. Gradients and optimizer moments use the same offsets. */
#ifndef HL_PARAMS_H
#define HL_PARAMS_H
#include "mixers/mixer.h"

struct hl_quant;
struct hl_stfile;

struct hl_tensor {
    char name[80]; /* as in the file */
    int ndim;
    int64_t dim[3], count;
    int64_t offset; /* in reals, into the block of all tensors */
    int64_t layer;  /* -1: embeddings, final norm, head */
    enum hl_init init;
    double value; /* HL_INIT_CONSTANT, HL_INIT_NORMAL */
    bool trained;
    bool matrix;    /* the weight of a linear op (may be packed) */
    bool quantised; /* stored as codes in INT8 and INT4 files */
    bool optional;  /* a file without it has its start value */
    bool memory;    /* of the exact memory */
};

/* Indices into the table; -1: this model has none. */
struct hl_layer_params {
    int64_t attn_norm;
    int64_t mixer[HL_MIXER_TENSORS]; /* by the mixer's own indices */
    int64_t mlp_norm, gate_proj, up_proj, down_proj;
};

struct hl_params {
    hola_config cfg;
    int64_t n;       /* tensors */
    int64_t total;   /* reals of the block, padding included */
    int64_t trained; /* trained scalars, padding excluded */
    struct hl_tensor *tensor;
    int64_t embed, final_norm;
    int64_t head; /* == embed where tied */
    struct hl_layer_params *layer;
};

/* Checks the config. On failure *p is zeroed. */
hola_status hl_params_new(struct hl_params *p, const hola_config *cfg);
void hl_params_free(struct hl_params *p); /* freed or zeroed ones too */
/* The index of a tensor, -1 where there is none of that name. */
int64_t hl_params_find(const struct hl_params *p, const char *name);

/* Fills the block with fresh weights: each tensor depends on its name, its shape and the seed alone. */
void hl_params_init(const struct hl_params *p, struct hl_pool *pool, real *block, uint64_t seed);
void hl_params_init_tensor(const struct hl_params *p, int64_t i, real *block, uint64_t seed);

/* Fills the block from a model's files: every tensor present, of its shape and finite; further tensors are
 * ignored. Also takes old fla files whose gate_proj holds the gate and the up rows, and files without
 * cache_tau, which then comes from the config. dir is for messages. codes: NULL, or one for each tensor, zeroed;
 * those of tensors that are stored as codes are kept there, beside their values in the block, for hl_quant_file_free. */
hola_status hl_params_load(const struct hl_params *p, const struct hl_stfile *f, const char *dir, real *block,
                           struct hl_quant *codes);

#endif
