/* save.c -- writes a model directory: floats of one type, or codes for the large matrices. */
#include "core/file.h"
#include "model/config.h"
#include "model/model.h"
#include "model/quant_file.h"
#include <stdlib.h>
#include <string.h>

/* ---- codes ---- */

struct making {
    const hola_model *m;
    hola_dtype dtype;
    struct hl_quant *codes;
    hola_status *status; /* [params.n] */
};

static void make_codes(void *ctx, int64_t i, int worker) {
    const struct making *c = ctx;
    const struct hl_tensor *t = &c->m->params.tensor[i];
    (void)worker;
    if (!hl_quant_file_takes(&c->m->params, i) || c->m->codes[i].dtype == c->dtype) return;
    if (!hl_quant_file_new(&c->codes[i], c->dtype, t->dim[0], t->dim[1])) c->status[i] = HOLA_ENOMEM;
    else if (!hl_quant_make(&c->codes[i], c->m->rows + t->offset)) c->status[i] = HOLA_ENUMERIC;
}

hola_status hl_model_make_codes(const hola_model *m, hola_dtype dtype, struct hl_quant *codes) {
    struct making c = {.m = m, .dtype = dtype, .codes = codes, .status = calloc((size_t)m->params.n, sizeof *c.status)};
    hola_status s = HOLA_OK;
    if (!c.status) return hl_fail(HOLA_ENOMEM, "no memory for the codes of weights");
    hl_pool_run(m->backend->pool, m->params.n, make_codes, &c);
    for (int64_t i = 0; i < m->params.n && s == HOLA_OK; i++)
        if (c.status[i] != HOLA_OK)
            s = hl_fail(c.status[i], "%s: %s", m->params.tensor[i].name,
                        c.status[i] == HOLA_ENOMEM ? "no memory for its codes" : "holds values that are not finite");
    free(c.status);
    return s;
}

/* ---- the files of a directory ---- */

/* The contents of a file: one entry per tensor, two for one stored as codes. */
struct contents {
    const hola_model *m;
    hola_dtype dtype;
    int64_t n;
    struct hl_st_entry *entry;
    struct hl_quant *codes;           /* [params.n], those created for this file */
    char (*name)[HL_QUANT_FILE_NAME]; /* [params.n], names of scales */
};

static hola_status fill(struct contents *c) {
    const hola_model *m = c->m;
    hola_status s = hl_is_quant(c->dtype) ? hl_model_make_codes(m, c->dtype, c->codes) : HOLA_OK;
    for (int64_t i = 0; i < m->params.n && s == HOLA_OK; i++) {
        const struct hl_tensor *t = &m->params.tensor[i];
        if (hl_is_quant(c->dtype) && hl_quant_file_takes(&m->params, i)) {
            hl_quant_file_entries(&c->entry[c->n], c->codes[i].code ? &c->codes[i] : &m->codes[i], t->name, c->name[i]);
            c->n += 2;
            continue;
        }
        struct hl_st_entry *e = &c->entry[c->n++];
        *e = (struct hl_st_entry){.name = t->name, .ndim = t->ndim, .src = m->rows + t->offset};
        e->dtype = hl_is_quant(c->dtype) ? m->stored[i] : c->dtype;
        memcpy(e->dim, t->dim, sizeof t->dim);
    }
    return s;
}

static hola_status save_rows(const hola_model *m, const char *dir, hola_dtype dtype, const char *config) {
    const size_t n = (size_t)m->params.n;
    hola_status s = HOLA_OK;
    char *weights = hl_path_join(dir, "model.safetensors"), *cfg = hl_path_join(dir, "config.json");
    struct contents c = {.m = m,
                         .dtype = dtype,
                         .entry = calloc(2 * n, sizeof *c.entry),
                         .codes = calloc(n, sizeof *c.codes),
                         .name = calloc(n, sizeof *c.name)};
    if (!weights || !cfg || !c.entry || !c.codes || !c.name) s = hl_fail(HOLA_ENOMEM, "%s: no memory to save", dir);
    if (s == HOLA_OK) s = fill(&c);
    if (s == HOLA_OK) s = hl_st_write(weights, c.entry, c.n, NULL);
    /* the config is written last: a directory that has one is complete */
    if (s == HOLA_OK) s = hl_write_file(cfg, config, (int64_t)strlen(config));
    for (size_t i = 0; c.codes && i < n; i++) hl_quant_file_free(&c.codes[i]);
    free(weights);
    free(cfg);
    free(c.entry);
    free(c.codes);
    free(c.name);
    return s;
}

struct directory {
    const char *dir, *config;
    hola_dtype dtype;
};
static hola_status save_directory(const hola_model *m, void *ctx) {
    const struct directory *d = ctx;
    return save_rows(m, d->dir, d->dtype, d->config);
}

hola_status hl_model_save_with(const hola_model *m, hola_status (*save)(const hola_model *m, void *ctx), void *ctx) {
    hola_model *w = (hola_model *)m; /* only the form of the weights changes, under the lock */
    pthread_mutex_lock(&w->lock);
    const bool had_rows = w->rows != NULL;
    hola_status s = hl_model_need_rows(w);
    if (s == HOLA_OK) s = save(m, ctx);
    if (!had_rows) {
        free(w->rows);
        w->rows = NULL;
    }
    pthread_mutex_unlock(&w->lock);
    return s;
}

hola_status hl_model_saved_config(const hola_model *m, hola_dtype dtype, char **out) {
    *out = NULL;
    if ((unsigned)dtype >= HOLA_DTYPE_COUNT) return hl_fail(HOLA_EINVAL, "dtype: %d is unknown", (int)dtype);
    /* type of everything not stored as codes */
    const hola_dtype others = hl_is_quant(dtype) ? m->stored[m->params.final_norm] : dtype;
    return hl_config_text(&m->cfg, m->config_text, others, out);
}

hola_status hola_model_save(const hola_model *m, const char *dir, hola_dtype dtype) {
    HL_NEED(m, "the model");
    HL_NEED(dir, "dir");
    char *config;
    hola_status s = hl_model_saved_config(m, dtype, &config);
    if (s == HOLA_OK) s = hl_make_dirs(dir);
    if (s == HOLA_OK) s = hl_model_save_with(m, save_directory, &(struct directory){dir, config, dtype});
    free(config);
    return s;
}
