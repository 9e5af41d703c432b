/* model_load.c -- creating, loading, inspecting and freeing models. */
#include "model/model.h"
#include "core/file.h"
#include "core/process.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "model/gguf_model.h"
#include "model/quant_file.h"
#include <stdlib.h>
#include <string.h>

static int64_t lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* ---- opening and freeing ---- */

/* Fails if the backend lacks an op of the mixer, and names it. */
static hola_status check_backend(const struct hl_backend *b, const struct hl_mixer *mixer) {
    if (mixer->host_op && !b->host)
        return hl_fail(HOLA_ENOTSUP, "%s: the op %s is not available", b->ops.name, mixer->host_op);
    return mixer->ops ? hl_backend_require(b, mixer->ops) : HOLA_OK;
}

hola_status hl_model_precision(const struct hl_backend *b, hola_precision how, bool training) {
    if ((unsigned)how >= HOLA_PRECISION_COUNT) return hl_fail(HOLA_EINVAL, "precision: %d is unknown", (int)how);
    if (how == HOLA_PRECISION_FP8 && !training) return hl_fail(HOLA_EINVAL, "precision: fp8 is of training only");
    if (how == HOLA_PRECISION_BF16 && !b->host && b->act_size != 2)
        return hl_fail(HOLA_ENOTSUP, "precision: bf16 is not for cuda-f32, whose activations are floats; cuda has it");
    return HOLA_OK;
}

static hola_status model_open(hola_model **out, const hola_config *cfg, const hola_options *opt) {
    hola_options o;
    *out = NULL;
    hola_status s = hl_options_take(&o, sizeof o, opt, HL_SIZE_UP_TO(hola_options, backend), "hola_options");
    if (s != HOLA_OK) return s;
    hola_model *m = calloc(1, sizeof *m);
    if (!m) return hl_fail(HOLA_ENOMEM, "model: %zu bytes", sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->states.lock, NULL), pthread_mutex_init(&m->staging.lock, NULL);
    m->staging.most = 2;
    m->cfg = *cfg;
    s = hl_backend_open(&m->backend, o.backend, o.threads);
    if (s != HOLA_OK) goto fail;
    m->infer = (struct hl_activations){.pass = HL_INFER, .backend = m->backend};
    m->precision = o.precision;
    s = hl_model_precision(m->backend, o.precision, false);
    if (s == HOLA_OK) s = hl_params_new(&m->params, cfg); /* checks the config */
    if (s != HOLA_OK) goto fail;
    const struct hl_mixer *mixer = hl_mixer_of(cfg->model_type);
    s = check_backend(m->backend, mixer);
    if (s != HOLA_OK) goto fail;
    int64_t scratch = hl_linear_scratch(), own = mixer->scratch ? mixer->scratch(cfg) : 0;
    if (own > scratch) scratch = own;
    s = hl_backend_reserve(m->backend, scratch);
    if (s != HOLA_OK) goto fail;
    m->stored = calloc((size_t)m->params.n, sizeof *m->stored);
    m->weight = calloc((size_t)m->params.n, sizeof *m->weight);
    m->codes = calloc((size_t)m->params.n, sizeof *m->codes);
    m->rows = hl_large_alloc(lines(m->params.total * (int64_t)sizeof(real)));
    if (!m->stored || !m->weight || !m->codes || !m->rows) {
        s = hl_fail(HOLA_ENOMEM, "weights: %lld numbers do not fit in memory", (long long)m->params.total);
        goto fail;
    }
    *out = m;
    return HOLA_OK;
fail:
    hola_model_free(m);
    return s;
}

/* F16, not BF16: rows of a prompt and rows of single tokens differ by the rounding of their sums, and where that flips
 * the last bit of a row, a shorter mantissa makes it count (docs/notes/cpu.md). On a device rows are activations. */
void hl_model_lay_out_states(hola_model *m) {
    const hola_dtype act = m->backend->act_size == 2 ? HOLA_BF16 : HOLA_F32;
    bool small = m->backend->host;
    for (int64_t i = 0; i < m->params.n; i++)
        small = small && !(m->params.tensor[i].quantised && m->stored[i] == HOLA_F32);
    m->state = hl_state_layout(&m->cfg, act, small ? HOLA_F16 : act);
}

hola_status hola_model_new(hola_model **out, const hola_config *cfg, uint64_t seed, const hola_options *opt) {
    HL_NEED(out, "out");
    *out = NULL;
    HL_NEED(cfg, "the config");
    hola_status s = model_open(out, cfg, opt);
    if (s == HOLA_OK) hl_model_lay_out_states(*out);
    if (s == HOLA_OK) hl_params_init(&(*out)->params, (*out)->backend->pool, (*out)->rows, seed);
    return s;
}

/* Reads config.json and keeps its text for unknown fields. */
static hola_status read_config(const char *dir, hola_config *cfg, char **text) {
    struct hl_map map = {0};
    char *path = hl_path_join(dir, "config.json");
    if (!path) return hl_fail(HOLA_ENOMEM, "%s: no memory for its name", dir);
    hola_status s = hl_map_open(&map, path);
    if (s == HOLA_OK) s = hl_config_parse(cfg, map.data, map.size, path);
    if (s == HOLA_OK) {
        *text = calloc(1, (size_t)map.size + 1);
        if (*text) memcpy(*text, map.data, (size_t)map.size);
        else s = hl_fail(HOLA_ENOMEM, "%s: %lld bytes", path, (long long)map.size);
    }
    hl_map_close(&map);
    free(path);
    return s;
}

/* The config and the tensors of a model directory or a GGUF file. */
static hola_status open_files(const char *path, hola_config *cfg, char **text, struct hl_stfile **f) {
    if (hl_is_gguf(path)) return hl_gguf_model_open(f, cfg, text, path);
    hola_status s = read_config(path, cfg, text);
    return s == HOLA_OK ? hl_st_open(f, path) : s;
}

hola_status hola_model_load(hola_model **out, const char *dir, const hola_options *opt) {
    HL_NEED(out, "out");
    *out = NULL;
    HL_NEED(dir, "dir");
    return hl_model_load_as(out, dir, NULL, opt);
}

hola_status hl_model_load_as(hola_model **out, const char *dir, const hola_config *as, const hola_options *opt) {
    hola_config cfg;
    char *text = NULL;
    struct hl_stfile *f = NULL;
    hola_model *m = NULL;
    hola_status s = open_files(dir, &cfg, &text, &f);
    *out = NULL;
    if (as) cfg = *as;
    if (s == HOLA_OK) s = model_open(&m, &cfg, opt);
    for (int64_t i = 0; s == HOLA_OK && as && i < m->params.n; i++)
        m->params.tensor[i].optional |= m->params.tensor[i].memory;
    if (s == HOLA_OK) s = hl_params_load(&m->params, f, dir, m->rows, m->codes);
    if (s == HOLA_OK) {
        for (int64_t i = 0; i < m->params.n; i++) {
            const struct hl_st_tensor *t = hl_st_find(f, m->params.tensor[i].name);
            m->stored[i] = m->codes[i].code  ? m->codes[i].dtype
                           : t && !t->blocks ? t->dtype
                                             : HOLA_F32; /* up_proj inside an old gate_proj; missing tensors */
        }
        hl_model_lay_out_states(m);
        m->config_text = text;
        text = NULL;
        *out = m;
        m = NULL;
    }
    hl_st_close(f);
    free(text);
    hola_model_free(m);
    return s;
}

void hola_model_free(hola_model *m) {
    if (!m) return;
    if (m->backend) {
        hl_activations_free(&m->infer);
        hl_decode_close(m);
        if (m->candidates) hl_release(m->backend, m->candidates);
        hl_model_drop_panels(m);
        hl_model_drop_master(m);
    }
    hl_model_drop_codes(m);
    free(m->codes);
    free(m->rows);
    free(m->weight);
    free(m->stored);
    free(m->config_text);
    hl_params_free(&m->params);
    hl_state_pool_free(&m->states, m->backend);
    for (char *block; (block = hl_state_pool_take(&m->staging));) free(block);
    free(m->staging.block);
    hl_backend_close(m->backend);
    pthread_mutex_destroy(&m->lock), pthread_mutex_destroy(&m->states.lock), pthread_mutex_destroy(&m->staging.lock);
    free(m);
}

const hola_config *hola_model_config(const hola_model *m) { return m ? &m->cfg : NULL; }
int64_t hola_model_tensor_count(const hola_model *m) { return m ? m->params.n : 0; }

static hola_status tensor_index(const hola_model *m, int64_t i) {
    if (i >= 0 && i < m->params.n) return HOLA_OK;
    return hl_fail(HOLA_EINVAL, "tensor %lld: there are %lld", (long long)i, (long long)m->params.n);
}

hola_status hola_model_tensor(const hola_model *m, int64_t i, hola_tensor_info *out) {
    HL_NEED(m, "the model");
    HL_NEED(out, "out");
    hola_status s = tensor_index(m, i);
    if (s != HOLA_OK) return s;
    const struct hl_tensor *t = &m->params.tensor[i];
    *out = (hola_tensor_info){
        .name = t->name, .ndim = t->ndim, .count = t->count, .trained = t->trained, .dtype = m->stored[i]};
    memcpy(out->dim, t->dim, sizeof out->dim);
    return HOLA_OK;
}

hola_status hola_model_tensor_read(const hola_model *m, int64_t i, float *out) {
    HL_NEED(m, "the model");
    HL_NEED(out, "out");
    hola_status s = tensor_index(m, i);
    if (s != HOLA_OK) return s;
    hola_model *w = (hola_model *)m;
    real *t = malloc((size_t)m->params.tensor[i].count * sizeof(real));
    if (!t) return hl_fail(HOLA_ENOMEM, "%s: no memory to read it", m->params.tensor[i].name);
    pthread_mutex_lock(&w->lock);
    hl_model_read(m, i, t);
    pthread_mutex_unlock(&w->lock);
    for (int64_t j = 0; j < m->params.tensor[i].count; j++) out[j] = (float)t[j];
    free(t);
    return HOLA_OK;
}
