/* params.h -- the table of a model's tensors: name, shape, offset, initialisation.
 *
 * All weights of a model are in one block of `total` reals; each tensor starts at `offset`, 64-byte aligned, with zero
 * padding between tensors. Gradients and optimizer moments use the same offsets. */
#ifndef HL_PARAMS_H
#define HL_PARAMS_H
#include "mixers/mixer.h"

struct hl_quant;
struct hl_stfile;

struct hl_tensor {
    char name[80]; /* as in the file */
    int ndim;
    int64_t dim[3], count;
    int64_t offset; /* in reals, from the start of the block */
    int64_t layer;  /* -1: embeddings, final norm, head */
    enum hl_init init;
    double value; /* HL_INIT_CONSTANT, HL_INIT_NORMAL */
    bool trained;
    bool matrix;    /* weight of a linear op (may be packed) */
    bool quantised; /* stored as codes in INT8 and INT4 files */
    bool optional;  /* if the file lacks it, it gets its initial value */
    bool memory;    /* of the exact memory */
};

/* Indices into the table; -1: this model lacks the tensor. */
struct hl_layer_params {
    int64_t attn_norm;
    int64_t mixer[HL_MIXER_TENSORS]; /* indexed by the mixer */
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
void hl_params_free(struct hl_params *p); /* also accepts a freed or zeroed one */
/* The index of a tensor; -1: no such name. */
int64_t hl_params_find(const struct hl_params *p, const char *name);

/* Initializes the block: each tensor depends only on its name, its shape and the seed. */
void hl_params_init(const struct hl_params *p, struct hl_pool *pool, real *block, uint64_t seed);
void hl_params_init_tensor(const struct hl_params *p, int64_t i, real *block, uint64_t seed);

/* Fills the block from a model's files: every tensor must be present, with its shape, and finite; other tensors are
 * ignored. Also reads old fla files whose gate_proj holds gate and up rows, and files without cache_tau, which is then
 * set from the config. dir is used in messages. codes: NULL, or one per tensor, zeroed; quantised tensors are stored
 * there as codes, in addition to their values in the block, to be freed with hl_quant_file_free. */
hola_status hl_params_load(const struct hl_params *p, const struct hl_stfile *f, const char *dir, real *block,
                           struct hl_quant *codes);

#endif
