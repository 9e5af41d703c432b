/* weights.c -- converts a model's weights between the forms for files, inference and training (model.h). */
#include "core/half.h"
#include "core/process.h"
#include "model/model.h"
#include "model/quant_file.h"
#include "ops/linear/weight.h"
#include <stdlib.h>
#include <string.h>

static int64_t lines(int64_t bytes) { return (bytes + 255) / 256 * 256; }
static bool packed(const hola_model *m, int64_t i) { return m->params.tensor[i].matrix || i == m->params.embed; }
static int64_t row_length(const struct hl_tensor *t) { return t->count / t->dim[0]; }
static hola_dtype act_dtype(const hola_model *m) { return m->backend->act_size == 2 ? HOLA_BF16 : HOLA_F32; }

struct hl_weight hl_model_weight(const hola_model *m, enum hl_pass pass, int64_t i) {
    const struct hl_tensor *t = &m->params.tensor[i];
    if (pass == HL_INFER) return m->weight[i];
    struct hl_weight w = {.data = m->master + t->offset, .rows = t->dim[0], .cols = row_length(t)};
    if (hl_model_takes(&m->params, i, m->training_precision)) w.precision = m->training_precision;
    if (m->half) {
        w.data = (char *)m->half + t->offset * m->backend->act_size;
        w.dtype = act_dtype(m);
    }
    return w;
}

const real *hl_model_vector(const hola_model *m, enum hl_pass pass, int64_t i) {
    if (i < 0) return NULL;
    return pass == HL_INFER ? m->weight[i].data : m->master + m->params.tensor[i].offset;
}

/* ---- rows ---- */

/* Panels back to rows, bit for bit. */
static void unpack(const struct hl_weight *w, real *out) {
    for (int64_t i = 0; i < w->rows; i++)
        for (int64_t j = 0; j < w->cols; j++) *out++ = hl_weight_at(w, i, j);
}

void hl_model_read(const hola_model *m, int64_t i, real *out) {
    const struct hl_tensor *t = &m->params.tensor[i];
    const size_t bytes = (size_t)t->count * sizeof(real);
    if (m->ahead) hl_get(m->backend, out, m->master + t->offset, (int64_t)bytes);
    else if (m->rows) memcpy(out, m->rows + t->offset, bytes);
    else if (m->weight[i].layout == HL_PANELS) unpack(&m->weight[i], out);
    else memcpy(out, m->weight[i].data, bytes);
}

hola_status hl_model_need_rows(hola_model *m) {
    const int64_t bytes = m->params.total * (int64_t)sizeof(real);
    if (m->rows && !m->ahead) return HOLA_OK;
    real *rows = m->rows ? m->rows : hl_large_alloc(lines(bytes));
    if (!rows) return hl_fail(HOLA_ENOMEM, "weights: %lld numbers do not fit in memory", (long long)m->params.total);
    memset(rows, 0, (size_t)bytes);
    for (int64_t i = 0; i < m->params.n; i++) hl_model_read(m, i, rows + m->params.tensor[i].offset);
    m->rows = rows;
    m->ahead = false;
    return hl_finish(m->backend);
}

/* ---- panels ---- */

void hl_model_drop_panels(hola_model *m) {
    hl_release(m->backend, m->panels);
    hl_release(m->backend, m->small);
    m->panels = NULL;
    m->small = NULL;
}

void hl_model_drop_codes(hola_model *m) {
    for (int64_t i = 0; m->codes && i < m->params.n; i++) hl_quant_file_free(&m->codes[i]);
}

static int64_t packed_bytes(const hola_model *m, int64_t i) {
    const struct hl_tensor *t = &m->params.tensor[i];
    return lines(m->backend->host ? hl_panel_bytes(t->dim[0], row_length(t), m->stored[i])
                                  : t->count * m->backend->act_size);
}

/* n host reals to a device as activations */
static hola_status put_acts(const hola_model *m, void *to, const real *from, int64_t n) {
    enum { PIECE = 1 << 20 };
    if (m->backend->act_size == (int64_t)sizeof(real)) {
        hl_put(m->backend, to, from, n * m->backend->act_size);
        return hl_finish(m->backend);
    }
    hola_status s = HOLA_OK;
    uint16_t *half = malloc(PIECE * sizeof *half);
    if (!half) return hl_fail(HOLA_ENOMEM, "weights: no memory to copy them");
    for (int64_t i = 0; s == HOLA_OK && i < n; i += PIECE) {
        const int64_t len = n - i < PIECE ? n - i : PIECE;
        for (int64_t j = 0; j < len; j++) half[j] = hl_to_bf16((float)from[i + j]);
        hl_put(m->backend, (uint16_t *)to + i, half, len * (int64_t)sizeof *half);
        s = hl_finish(m->backend);
    }
    free(half);
    return s;
}

/* Packs a matrix as panels, on the host. */
static void pack_matrix(void *ctx, int64_t i, int worker) {
    const hola_model *m = ctx;
    const struct hl_weight *w = &m->weight[i];
    char *to = (char *)(uintptr_t)w->data;
    (void)worker;
    if (w->layout != HL_PANELS) return;
    if (m->codes[i].code && m->codes[i].dtype == w->dtype) hl_quant_pack(to, &m->codes[i]);
    else hl_panel_pack(to, w->dtype, m->rows + m->params.tensor[i].offset, w->rows, w->cols);
}

/* Sets location and form of tensor i; fills it at once, except for panels. */
static hola_status place_tensor(hola_model *m, int64_t i, char *to) {
    const struct hl_tensor *t = &m->params.tensor[i];
    const real *from = m->rows + t->offset;
    struct hl_weight *w = &m->weight[i];
    *w = (struct hl_weight){.data = to, .rows = t->dim[0], .cols = row_length(t)};
    if (!packed(m, i)) {
        hl_put(m->backend, to, from, t->count * (int64_t)sizeof(real));
        return hl_finish(m->backend);
    }
    if (!m->backend->host) {
        w->dtype = act_dtype(m);
        return put_acts(m, to, from, t->count);
    }
    w->layout = HL_PANELS;
    w->dtype = m->stored[i];
    if (hl_model_takes(&m->params, i, m->precision)) w->precision = m->precision;
    return HOLA_OK;
}

/* Packs from the rows; the rows stay. */
static hola_status make_panels(hola_model *m) {
    int64_t bytes = 0, small = 0;
    hola_status s = hl_model_need_rows(m);
    if (s != HOLA_OK) return s;
    for (int64_t i = 0; i < m->params.n; i++)
        if (packed(m, i)) bytes += packed_bytes(m, i);
        else small += lines(m->params.tensor[i].count * (int64_t)sizeof(real));
    hl_model_drop_panels(m);
    m->panels = hl_alloc(m->backend, bytes);
    m->small = hl_alloc(m->backend, small);
    if (!m->panels || !m->small) {
        hl_model_drop_panels(m);
        return hl_fail(HOLA_ENOMEM, "weights: %.1f MB do not fit in %s memory", (double)bytes * 1e-6,
                       m->backend->host ? "the" : "the device's");
    }
    char *p = m->panels, *q = (char *)m->small;
    for (int64_t i = 0; s == HOLA_OK && i < m->params.n; i++) {
        s = place_tensor(m, i, packed(m, i) ? p : q);
        if (packed(m, i)) p += packed_bytes(m, i);
        else q += lines(m->params.tensor[i].count * (int64_t)sizeof(real));
    }
    if (s == HOLA_OK && m->backend->host) hl_pool_run(m->backend->pool, m->params.n, pack_matrix, m);
    if (s != HOLA_OK) hl_model_drop_panels(m);
    m->stale = false;
    m->hash = 0;
    m->panels_made++;
    return s;
}

hola_status hl_model_need_panels(hola_model *m) {
    if (m->panels && !m->stale) return HOLA_OK;
    hola_status s = make_panels(m);
    if (s != HOLA_OK || m->training || !m->backend->host) return s;
    free(m->rows); /* can be restored from the panels, bit for bit */
    m->rows = NULL;
    hl_model_drop_codes(m);
    return HOLA_OK;
}

/* ---- master ---- */

hola_status hl_model_need_master(hola_model *m) {
    const int64_t n = m->params.total;
    hola_status s = hl_model_need_rows(m);
    if (s != HOLA_OK) return s;
    for (int64_t i = 0; i < m->params.n; i++) /* training from here on would invalidate the codes */
        if (hl_is_quant(m->stored[i])) m->stored[i] = HOLA_F32;
    hl_model_drop_codes(m);
    if (m->backend->host) {
        m->master = m->rows;
        return HOLA_OK;
    }
    /* slightly longer, so that ranks can split it into equal parts */
    if (!m->master) m->master = hl_alloc(m->backend, (n + HL_MASTER_SLACK) * (int64_t)sizeof(real));
    if (!m->half) m->half = hl_alloc(m->backend, (n + HL_MASTER_SLACK) * m->backend->act_size);
    if (!m->master || !m->half) {
        hl_model_drop_master(m);
        return hl_fail(HOLA_ENOMEM, "weights: %.1f MB do not fit in the device's memory",
                       (double)(n * ((int64_t)sizeof(real) + m->backend->act_size)) * 1e-6);
    }
    hl_put(m->backend, m->master, m->rows, n * (int64_t)sizeof(real));
    s = put_acts(m, m->half, m->rows, n);
    return s;
}

void hl_model_drop_master(hola_model *m) {
    if (!m->backend->host) {
        hl_release(m->backend, m->master);
        hl_release(m->backend, m->half);
    }
    m->master = NULL;
    m->half = NULL;
}
