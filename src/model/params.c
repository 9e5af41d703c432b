/* params.c -- builds the table of tensors and draws fresh weights. */
#include "model/params.h"
#include "core/pool.h"
#include "core/rng.h"
#include "model/config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_PER_LAYER = sizeof(struct hl_layer_params) / sizeof(int64_t) };

/* ---- the table ---- */

/* Appends a tensor, prefix and suffix making its name; a size of 0 ends the shape. Returns its index. */
static int64_t add(struct hl_params *p, const char *prefix, const char *suffix, const int64_t dim[3],
                   enum hl_init init) {
    const int64_t align = 64 / (int64_t)sizeof(real);
    struct hl_tensor *t = &p->tensor[p->n];
    int len = snprintf(t->name, sizeof t->name, "%s%s", prefix, suffix);
    HL_ASSERT(len > 0 && len < (int)sizeof t->name);
    t->count = 1;
    for (t->ndim = 0; t->ndim < 3 && dim[t->ndim] > 0; t->ndim++) {
        t->dim[t->ndim] = dim[t->ndim];
        t->count *= dim[t->ndim];
    }
    t->offset = p->total;
    t->init = init;
    t->layer = -1;
    t->trained = true;
    t->matrix = t->ndim == 2;
    p->total += (t->count + align - 1) / align * align;
    return p->n++;
}
#define SHAPE(...) ((const int64_t[3]){__VA_ARGS__})

static void add_attention(struct hl_params *p, struct hl_layer_params *l, const char *at) {
    const hola_config *c = &p->cfg;
    int64_t d = c->hidden_size, K = hl_key_dim(c), V = hl_value_dim(c), HV = c->num_v_heads, W = c->conv_size;
    bool decay = c->model_type != HOLA_TYPE_DELTA_NET;
    l->q_proj = add(p, at, "q_proj.weight", SHAPE(K, d), HL_INIT_NORMAL);
    l->k_proj = add(p, at, "k_proj.weight", SHAPE(K, d), HL_INIT_NORMAL);
    l->v_proj = add(p, at, "v_proj.weight", SHAPE(V, d), HL_INIT_NORMAL);
    if (decay) l->a_proj = add(p, at, "a_proj.weight", SHAPE(HV, d), HL_INIT_NORMAL);
    if (c->use_beta) l->b_proj = add(p, at, "b_proj.weight", SHAPE(HV, d), HL_INIT_NORMAL);
    if (c->use_gate) l->g_proj = add(p, at, "g_proj.weight", SHAPE(V, d), HL_INIT_NORMAL);
    l->o_proj = add(p, at, "o_proj.weight", SHAPE(d, V), HL_INIT_NORMAL);
    if (W > 0) {
        l->q_conv = add(p, at, "q_conv1d.weight", SHAPE(K, 1, W), HL_INIT_NORMAL);
        l->k_conv = add(p, at, "k_conv1d.weight", SHAPE(K, 1, W), HL_INIT_NORMAL);
        l->v_conv = add(p, at, "v_conv1d.weight", SHAPE(V, 1, W), HL_INIT_NORMAL);
    }
    if (decay) {
        l->A_log = add(p, at, "A_log", SHAPE(HV), HL_INIT_A_LOG);
        l->dt_bias = add(p, at, "dt_bias", SHAPE(HV), HL_INIT_DT_BIAS);
    }
    l->o_norm = add(p, at, "o_norm.weight", SHAPE(c->head_v_dim), HL_INIT_ONE);
}

/* With cache_evict none the tensors stay, so that a rewritten model keeps them, but nothing trains them. */
static void add_cache(struct hl_params *p, struct hl_layer_params *l, const char *at) {
    const hola_config *c = &p->cfg;
    int64_t first = p->n;
    if (c->cache_norm == HOLA_NORM_RMS) {
        l->cache_q_norm = add(p, at, "cache_q_norm.weight", SHAPE(c->head_dim), HL_INIT_ONE);
        l->cache_k_norm = add(p, at, "cache_k_norm.weight", SHAPE(c->head_dim), HL_INIT_ONE);
    }
    l->cache_sink = add(p, at, "cache_sink", SHAPE(c->num_v_heads), HL_INIT_ZERO);
    l->cache_gate = add(p, at, "cache_gate", SHAPE(c->num_v_heads), HL_INIT_GATE);
    l->cache_tau = add(p, at, "cache_tau", SHAPE(c->num_v_heads), HL_INIT_TAU);
    if (c->cache_tau_freeze) p->tensor[l->cache_tau].trained = false;
    if (!hl_has_cache(c))
        for (int64_t i = first; i < p->n; i++) p->tensor[i].trained = false;
}

static void add_layer(struct hl_params *p, int64_t i) {
    const int64_t d = p->cfg.hidden_size, I = p->cfg.intermediate_size;
    struct hl_layer_params *l = &p->layer[i];
    int64_t first = p->n;
    char block[48], attn[64], mlp[64];
    memset(l, 0xff, sizeof *l); /* every index -1 */
    snprintf(block, sizeof block, "model.layers.%lld.", (long long)i);
    snprintf(attn, sizeof attn, "%sattn.", block);
    snprintf(mlp, sizeof mlp, "%smlp.", block);
    l->attn_norm = add(p, block, "attn_norm.weight", SHAPE(d), HL_INIT_ONE);
    add_attention(p, l, attn);
    if (p->cfg.model_type == HOLA_TYPE_HOLA) add_cache(p, l, attn);
    l->mlp_norm = add(p, block, "mlp_norm.weight", SHAPE(d), HL_INIT_ONE);
    l->gate_proj = add(p, mlp, "gate_proj.weight", SHAPE(I, d), HL_INIT_NORMAL);
    l->up_proj = add(p, mlp, "up_proj.weight", SHAPE(I, d), HL_INIT_NORMAL);
    l->down_proj = add(p, mlp, "down_proj.weight", SHAPE(d, I), HL_INIT_NORMAL);
    for (int64_t j = first; j < p->n; j++) p->tensor[j].layer = i;
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
    p->embed = add(p, "model.embeddings", ".weight", SHAPE(cfg->vocab_size, d), HL_INIT_NORMAL);
    p->tensor[p->embed].matrix = cfg->tie_word_embeddings;
    for (int64_t i = 0; i < L; i++) add_layer(p, i);
    p->final_norm = add(p, "model.norm", ".weight", SHAPE(d), HL_INIT_ONE);
    p->head = cfg->tie_word_embeddings
                  ? p->embed
                  : add(p, "lm_head", ".weight", SHAPE(cfg->vocab_size, d), HL_INIT_NORMAL);
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
    struct hl_params p;
    int64_t n;
    if (hl_params_new(&p, cfg) != HOLA_OK) return 0;
    n = p.trained;
    hl_params_free(&p);
    return n;
}

/* ---- fresh weights ---- */

/* (0, 1): never 0, whose logarithm is -inf */
static double open_uniform(uint64_t seed, uint64_t stream, int64_t i) {
    return ((double)(hl_rng_bits(seed, stream, (uint64_t)i) >> 11) + 0.5) * 0x1p-53;
}

static double dt_bias(double u) {
    double lo = log(0.001), hi = log(0.1);
    double dt = fmax(exp(lo + u * (hi - lo)), 1e-4);
    return dt + log(-expm1(-dt)); /* softplus of it is dt again */
}

void hl_params_init_tensor(const struct hl_params *p, int64_t i, real *block, uint64_t seed) {
    const struct hl_tensor *t = &p->tensor[i];
    int64_t end = i + 1 < p->n ? p->tensor[i + 1].offset : p->total;
    uint64_t stream = hl_fnv1a(t->name);
    real *x = block + t->offset, fill = 0;
    memset(x + t->count, 0, (size_t)(end - t->offset - t->count) * sizeof(real));
    switch (t->init) {
    case HL_INIT_NORMAL: hl_rng_normals(seed, stream, p->cfg.initializer_range, x, t->count); return;
    case HL_INIT_A_LOG:
        for (int64_t j = 0; j < t->count; j++) x[j] = (real)log(16 * open_uniform(seed, stream, j));
        return;
    case HL_INIT_DT_BIAS:
        for (int64_t j = 0; j < t->count; j++)
            x[j] = (real)dt_bias(hl_rng_uniform(seed, stream, (uint64_t)j));
        return;
    case HL_INIT_ONE: fill = 1; break;
    case HL_INIT_ZERO: fill = 0; break;
    case HL_INIT_GATE: fill = (real)p->cfg.cache_gate_init; break;
    case HL_INIT_TAU: fill = (real)p->cfg.cache_tau_init; break;
    }
    for (int64_t j = 0; j < t->count; j++) x[j] = fill;
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
