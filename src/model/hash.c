/* hash.c -- the hash that binds a snapshot to its model.
 *
 * A row's hash is the sum of (bits of the float) x (key of its column), a tensor's hash the sum of its mixed row
 * hashes. Sums are independent of order, so rows and panels hash the same without conversion, and each panel is a
 * separate task. 46m takes 10 ms on two cores. */
#include "core/half.h"
#include "core/hash.h"
#include "core/rng.h"
#include "model/config.h"
#include "model/model.h"
#include <stdlib.h>

static uint32_t key_of(int64_t column) { return (uint32_t)hl_hash_mix((uint64_t)column + 1) | 1; }

/* A tensor in memory, and the sums of its panels of rows. */
struct job {
    const void *data;
    enum hl_layout layout;
    hola_dtype dtype;
    int64_t rows, cols;
    const uint32_t *key; /* [cols] */
    uint64_t *sum;       /* [panels] */
};

static void add_lane(uint64_t acc[HL_PANEL], const struct job *j, int64_t at, uint32_t key) {
    if (j->dtype == HOLA_F32) {
        const uint32_t *x = (const uint32_t *)j->data + at;
        for (int i = 0; i < HL_PANEL; i++) acc[i] += (uint64_t)x[i] * key;
        return;
    }
    const uint16_t *x = (const uint16_t *)j->data + at;
    if (j->dtype == HOLA_BF16)
        for (int i = 0; i < HL_PANEL; i++) acc[i] += (uint64_t)((uint32_t)x[i] << 16) * key;
    else
        for (int i = 0; i < HL_PANEL; i++) acc[i] += (uint64_t)hl_bits_of_float(hl_from_f16(x[i])) * key;
}

static void hash_panel(void *ctx, int64_t p, int worker) {
    const struct job *j = ctx;
    const int64_t first = p * HL_PANEL, n = j->rows - first < HL_PANEL ? j->rows - first : HL_PANEL;
    uint64_t acc[HL_PANEL] = {0}, sum = 0;
    (void)worker;
    if (j->layout == HL_PANELS)
        for (int64_t c = 0; c < j->cols; c++) add_lane(acc, j, (p * j->cols + c) * HL_PANEL, j->key[c]);
    else
        for (int64_t i = 0; i < n; i++) {
            const real *row = (const real *)j->data + (first + i) * j->cols;
            for (int64_t c = 0; c < j->cols; c++) acc[i] += (uint64_t)hl_bits_of_float((float)row[c]) * j->key[c];
        }
    for (int64_t i = 0; i < n; i++) sum += hl_hash_mix(acc[i] + hl_hash_mix((uint64_t)(first + i)));
    j->sum[p] = sum;
}

/* Whether tensor i is directly readable as floats, 32 or 16 bits; otherwise it is copied as rows. */
static bool readable(const hola_model *m, int64_t i) {
    if (m->ahead) return false;
    return m->rows || (m->backend->host && m->weight[i].data && m->weight[i].dtype <= HOLA_F16);
}

static hola_status hash_tensor(const hola_model *m, int64_t i, uint64_t *out) {
    const struct hl_tensor *t = &m->params.tensor[i];
    struct job j = {.layout = HL_ROWS, .rows = t->dim[0], .cols = t->count / t->dim[0]};
    const int64_t panels = hl_pieces(j.rows, HL_PANEL);
    const bool here = readable(m, i);
    uint32_t *key = malloc((size_t)j.cols * sizeof *key);
    uint64_t *sum = calloc((size_t)panels, sizeof *sum);
    real *copy = here ? NULL : malloc((size_t)t->count * sizeof *copy);
    const bool room = key && sum && (here || copy);
    if (room) {
        for (int64_t c = 0; c < j.cols; c++) key[c] = key_of(c);
        j.key = key, j.sum = sum;
        if (!here) hl_model_read(m, i, copy), j.data = copy;
        else if (m->rows) j.data = m->rows + t->offset;
        else j.data = m->weight[i].data, j.layout = m->weight[i].layout, j.dtype = m->weight[i].dtype;
        hl_pool_run(m->backend->pool, panels, hash_panel, &j);
        *out = hl_fnv1a(t->name);
        for (int64_t p = 0; p < panels; p++) *out += sum[p];
        *out = hl_hash_mix(*out);
    }
    free(key), free(sum), free(copy);
    return room ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory to look at it", t->name);
}

hola_status hl_model_hash(hola_model *m, uint64_t *out) {
    uint64_t h = hl_config_hash(&m->cfg);
    if (m->stale || m->training) m->hash = 0; /* it may have changed since */
    for (int64_t i = 0; m->hash == 0 && i < m->params.n; i++) {
        uint64_t one = 0;
        hola_status s = hash_tensor(m, i, &one);
        if (s != HOLA_OK) return s;
        h = hl_hash_mix(h ^ one) + one;
        if (i + 1 == m->params.n) m->hash = h ? h : 1;
    }
    *out = m->hash;
    return HOLA_OK;
}
