/* cache_rows_cpu.c -- where the rows of columns are, in the batch or in a session's state, as reals or in F16; and how
 * they get from one to the other (cache_cpu.h). */
#include "ops/cache/cache_cpu.h"
#include "ops/cache/cache_rows.h"
#include <stdlib.h>

/* The keys, or the values, of a head. */
struct rows {
    const char *state;
    const real *batch;
    int64_t D, ld; /* numbers of a row; row stride in the batch */
    bool half;     /* the state is in F16, and rows of the batch are read rounded to it */
};
static struct rows keys_of(const struct hl_cache_head *d) {
    const struct hl_cache *a = d->a;
    return (struct rows){d->k, (const real *)a->k + (d->row * a->H + d->hk) * a->K, a->K, a->H * a->K,
                         a->row_dtype == HOLA_F16};
}
static struct rows values_of(const struct hl_cache_head *d) {
    const struct hl_cache *a = d->a;
    return (struct rows){d->v, (const real *)a->v + (d->row * a->HV + d->h) * a->V, a->V, a->HV * a->V,
                         a->row_dtype == HOLA_F16};
}
static const void *slot_of(const struct rows *r, int64_t id) {
    return r->state + (-1 - id) * r->D * (r->half ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(real));
}

static void copy_row(const struct rows *r, int64_t id, real *to) {
    if (r->half && id < 0) rows_of_f16(to, slot_of(r, id), r->D);
    else if (r->half) rows_rounded(to, r->batch + id * r->ld, r->D);
    else memcpy(to, id < 0 ? slot_of(r, id) : r->batch + id * r->ld, (size_t)r->D * sizeof(real));
}
static void copy_rows(const struct rows *r, const int64_t *id, int64_t n, real *to) {
    for (int64_t i = 0; i < n; i++) copy_row(r, id[i], to + i * hl_cache_ld(r->D));
}

/* Are the n rows contiguous? Ids are in order of position: rows of the batch ascend, slots descend. */
static bool contiguous(const int64_t *id, int64_t n) {
    return n > 0 && (id[0] < 0) == (id[n - 1] < 0) && llabs(id[n - 1] - id[0]) == n - 1;
}
static const real *rows_at(const struct rows *r, const int64_t *id, int64_t n, real *buffer, int64_t *ld) {
    if (!r->half && contiguous(id, n)) {
        *ld = id[0] < 0 ? r->D : r->ld;
        return id[0] < 0 ? slot_of(r, id[0]) : r->batch + id[0] * r->ld;
    }
    copy_rows(r, id, n, buffer);
    *ld = hl_cache_ld(r->D);
    return buffer;
}

const real *HL_OP(cache_keys)(const struct hl_cache_head *d, const int64_t *id, int64_t n, real *buffer, int64_t *ld) {
    const struct rows r = keys_of(d);
    return rows_at(&r, id, n, buffer, ld);
}
const real *HL_OP(cache_values)(const struct hl_cache_head *d, const int64_t *id, int64_t n, real *buffer,
                                int64_t *ld) {
    const struct rows r = values_of(d);
    return rows_at(&r, id, n, buffer, ld);
}
void HL_OP(cache_gather_values)(const struct hl_cache_head *d, const int64_t *id, int64_t n, real *to) {
    const struct rows r = values_of(d);
    copy_rows(&r, id, n, to);
}

/* Column `id` to slot `slot`. */
static void store_row(const struct rows *r, int64_t id, int64_t slot) {
    void *to = (void *)(uintptr_t)slot_of(r, -1 - slot);
    const size_t size = r->half ? sizeof(uint16_t) : sizeof(real);
    if (r->half && id >= 0) rows_to_f16(to, r->batch + id * r->ld, r->D);
    else memcpy(to, id < 0 ? slot_of(r, id) : r->batch + id * r->ld, (size_t)r->D * size);
}

/* Columns [from, from + n) go to the slots from `slot` on. In ascending order no slot is overwritten before it
 * is read: kept rows only move to lower slots, and the open block only receives new rows. */
static void store(const struct hl_cache_selection *p, const struct hl_cache_head *d, int64_t from, int64_t slot,
                  int64_t n) {
    const struct rows keys = keys_of(d), values = values_of(d);
    for (int64_t i = 0; i < n; i++, slot++) {
        int64_t id = p->id[from + i];
        d->score[slot] = p->score[from + i];
        if (d->factor) d->factor[slot] = hl_cache_factor_of(d, id);
        if (id == -1 - slot) continue;
        store_row(&keys, id, slot);
        store_row(&values, id, slot);
    }
}

void HL_OP(cache_store)(const struct hl_cache_selection *p, const struct hl_cache_head *d, int64_t m) {
    const int64_t w = d->a->window;
    for (int64_t i = 0; i < p->n; i++) {
        int64_t slot = -1 - p->id[i];
        d->at[i] = slot < 0 ? d->pos + p->id[i] : slot < w ? d->at[slot] : d->pos - d->open + slot - w;
    }
    store(p, d, 0, 0, p->n);
    store(p, d, p->n, w, m);
}
