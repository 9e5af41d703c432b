/* params.c -- builds the table of tensors and initializes weights. */
#include "model/params.h"
#include "core/pool.h"
#include "core/rng.h"
#include "model/config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_PER_LAYER = HL_MIXER_TENSORS + 5 };

/* ---- the table ---- */

/* Appends a tensor named by prefix and the spec's name. Returns its index, -1 for a spec without a name. */
static int64_t add(struct hl_params *p, int64_t layer, const char *prefix, const struct hl_tensor_spec *spec) {
    const int64_t align = 64 / (int64_t)sizeof(real);
    struct hl_tensor *t = &p->tensor[p->n];
    if (!spec->name) return -1;
    int len = snprintf(t->name, sizeof t->name, "%s%s", prefix, spec->name);
    HL_ASSERT(len > 0 && len < (int)sizeof t->name);
    t->count = 1;
    for (t->ndim = 0; t->ndim < 3 && spec->dim[t->ndim] > 0; t->ndim++) {
        t->dim[t->ndim] = spec->dim[t->ndim];
        t->count *= spec->dim[t->ndim];
    }
    t->offset = p->total;
    t->layer = layer;
    t->init = spec->init;
    t->value = spec->value;
    t->trained = !spec->frozen;
    t->optional = spec->optional;
    t->memory = spec->memory;
    t->matrix = t->ndim == 2 && !spec->plain;
    t->quantised = t->matrix && !spec->unquantised;
    p->total += (t->count + align - 1) / align * align;
    return p->n++;
}
static int64_t add_matrix(struct hl_params *p, int64_t layer, const char *prefix, const char *name, int64_t rows,
                          int64_t cols) {
    return add(p, layer, prefix, &(struct hl_tensor_spec){.name = name, .dim = {rows, cols}});
}
static int64_t add_norm(struct hl_params *p, int64_t layer, const char *prefix, const char *name, int64_t n) {
    return add(p, layer, prefix,
               &(struct hl_tensor_spec){.name = name, .dim = {n}, .init = HL_INIT_CONSTANT, .value = 1});
}

static void add_layer(struct hl_params *p, int64_t i, const struct hl_tensor_spec *mixer) {
    const int64_t d = p->cfg.hidden_size, I = p->cfg.intermediate_size;
    struct hl_layer_params *l = &p->layer[i];
    char block[48], attn[64], mlp[64];
    snprintf(block, sizeof block, "model.layers.%lld.", (long long)i);
    snprintf(attn, sizeof attn, "%sattn.", block);
    snprintf(mlp, sizeof mlp, "%smlp.", block);
    l->attn_norm = add_norm(p, i, block, "attn_norm.weight", d);
    for (int j = 0; j < HL_MIXER_TENSORS; j++) l->mixer[j] = add(p, i, attn, &mixer[j]);
    l->mlp_norm = add_norm(p, i, block, "mlp_norm.weight", d);
    l->gate_proj = add_matrix(p, i, mlp, "gate_proj.weight", I, d);
    l->up_proj = add_matrix(p, i, mlp, "up_proj.weight", I, d);
    l->down_proj = add_matrix(p, i, mlp, "down_proj.weight", d, I);
}

hola_status hl_params_new(struct hl_params *p, const hola_config *cfg) {
    hola_status s = hola_config_check(cfg);
    *p = (struct hl_params){0};
    if (s != HOLA_OK) return s;
    int64_t L = cfg->num_hidden_layers, d = cfg->hidden_size, room = L * TENSORS_PER_LAYER + 3;
    p->cfg = *cfg;
    p->tensor = calloc((size_t)room, sizeof *p->tensor);
    p->layer = calloc((size_t)L, sizeof *p->layer);
    if (!p->tensor || !p->layer) {
        hl_params_free(p);
        return hl_fail(HOLA_ENOMEM, "model: no memory for a table of %lld tensors", (long long)room);
    }
    struct hl_tensor_spec mixer[HL_MIXER_TENSORS] = {{0}};
    hl_mixer_of(cfg->model_type)->tensors(cfg, mixer);
    p->embed = add_matrix(p, -1, "model.embeddings", ".weight", cfg->vocab_size, d);
    p->tensor[p->embed].matrix = cfg->tie_word_embeddings;
    for (int64_t i = 0; i < L; i++) add_layer(p, i, mixer);
    p->final_norm = add_norm(p, -1, "model.norm", ".weight", d);
    p->head = cfg->tie_word_embeddings ? p->embed : add_matrix(p, -1, "lm_head", ".weight", cfg->vocab_size, d);
    for (int64_t i = 0; i < p->n; i++)
        if (p->tensor[i].trained) p->trained += p->tensor[i].count;
    return HOLA_OK;
}

void hl_params_free(struct hl_params *p) {
    free(p->tensor);
    free(p->layer);
    *p = (struct hl_params){0};
}

int64_t hl_params_find(const struct hl_params *p, const char *name) {
    for (int64_t i = 0; i < p->n; i++)
        if (strcmp(p->tensor[i].name, name) == 0) return i;
    return -1;
}

int64_t hola_config_parameters(const hola_config *cfg) {
    if (!cfg) return 0;
    struct hl_params p;
    int64_t n;
    if (hl_params_new(&p, cfg) != HOLA_OK) return 0;
    n = p.trained;
    hl_params_free(&p);
    return n;
}

/* ---- initialisation ---- */

/* in (0, 1): never 0, whose logarithm is -inf */
static double open_uniform(uint64_t seed, uint64_t stream, int64_t i) {
    return ((double)(hl_rng_bits(seed, stream, (uint64_t)i) >> 11) + 0.5) * 0x1p-53;
}

static double dt_bias(double u) {
    double lo = log(0.001), hi = log(0.1);
    double dt = fmax(exp(lo + u * (hi - lo)), 1e-4);
    return dt + log(-expm1(-dt)); /* the inverse of softplus */
}

void hl_params_init_tensor(const struct hl_params *p, int64_t i, real *block, uint64_t seed) {
    const struct hl_tensor *t = &p->tensor[i];
    int64_t end = i + 1 < p->n ? p->tensor[i + 1].offset : p->total;
    uint64_t stream = hl_fnv1a(t->name);
    real *x = block + t->offset;
    memset(x + t->count, 0, (size_t)(end - t->offset - t->count) * sizeof(real));
    switch (t->init) {
    case HL_INIT_NORMAL:
        hl_rng_normals(seed, stream, t->value > 0 ? t->value : p->cfg.initializer_range, x, t->count);
        return;
    case HL_INIT_A_LOG:
        for (int64_t j = 0; j < t->count; j++)
            x[j] = (real)log(t->value + (16 - t->value) * open_uniform(seed, stream, j));
        return;
    case HL_INIT_DT_BIAS:
        for (int64_t j = 0; j < t->count; j++) x[j] = (real)dt_bias(hl_rng_uniform(seed, stream, (uint64_t)j));
        return;
    case HL_INIT_CONSTANT: break;
    }
    for (int64_t j = 0; j < t->count; j++) x[j] = (real)t->value;
}

struct fresh {
    const struct hl_params *p;
    real *block;
    uint64_t seed;
};
static void fresh_tensor(void *ctx, int64_t i, int worker) {
    const struct fresh *f = ctx;
    (void)worker;
    hl_params_init_tensor(f->p, i, f->block, f->seed);
}

void hl_params_init(const struct hl_params *p, struct hl_pool *pool, real *block, uint64_t seed) {
    struct fresh f = {p, block, seed};
    hl_pool_run(pool, p->n, fresh_tensor, &f);
}
