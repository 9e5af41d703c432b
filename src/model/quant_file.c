/* quant_file.c -- reading codes from files, with every length and scale checked, and writing them. */
#include "model/quant_file.h"
#include "model/quant_blocks.h"
#include <stdlib.h>
#include <string.h>

bool hl_quant_file_takes(const struct hl_params *p, int64_t i) { return p->tensor[i].quantised; }

bool hl_quant_file_new(struct hl_quant *c, hola_dtype dtype, int64_t rows, int64_t cols) {
    *c = (struct hl_quant){.dtype = dtype, .rows = rows, .cols = cols};
    c->code = malloc((size_t)(rows * hl_quant_row(dtype, cols)));
    c->scale = malloc((size_t)(rows * hl_quant_groups(dtype, cols)) * sizeof *c->scale);
    if (c->code && c->scale) return true;
    hl_quant_file_free(c);
    return false;
}

void hl_quant_file_free(struct hl_quant *c) {
    free(c->code);
    free(c->scale);
    *c = (struct hl_quant){0};
}

/* ---- reading ---- */

hola_dtype hl_quant_file_type(const struct hl_st_tensor *t) {
    return t->blocks                  ? hl_blocks_type(t)
           : !strcmp(t->stored, "I8") ? HOLA_INT8
           : !strcmp(t->stored, "U8") ? HOLA_INT4
                                      : HOLA_DTYPE_COUNT;
}

static hola_status check_shape(const struct hl_st_tensor *t, const char *dir, int64_t rows, int64_t cols) {
    const int64_t dim[2] = {rows, cols};
    char a[200], b[200];
    if (t->ndim == 2 && t->dim[0] == rows && t->dim[1] == cols) return HOLA_OK;
    return hl_fail(HOLA_EFORMAT, "%s: %s: %s %s, expected %s", dir, t->name, t->stored,
                   hl_st_shape(a, sizeof a, t->ndim, t->dim), hl_st_shape(b, sizeof b, 2, dim));
}

static hola_status check_scales(const struct hl_quant *c, const char *dir, const char *name) {
    const int64_t n = c->rows * hl_quant_groups(c->dtype, c->cols);
    for (int64_t i = 0; i < n; i++) {
        const uint16_t magnitude = c->scale[i] & 0x7fff;
        if (magnitude == 0 || magnitude >= 0x7f80)
            return hl_fail(HOLA_ENUMERIC, "%s: %s: scale %lld is %s", dir, name, (long long)i,
                           magnitude ? "not finite" : "zero");
    }
    return HOLA_OK;
}

static hola_status load_blocks(struct hl_quant *out, const struct hl_tensor *t, const struct hl_st_tensor *blocks,
                               const char *dir) {
    hola_status s = check_shape(blocks, dir, t->dim[0], t->dim[1]);
    if (s != HOLA_OK) return s;
    if (!hl_quant_file_new(out, hl_quant_file_type(blocks), t->dim[0], t->dim[1]))
        return hl_fail(HOLA_ENOMEM, "%s: %s: no memory for its codes", dir, t->name);
    hl_blocks_take(blocks, out);
    return HOLA_OK;
}

hola_status hl_quant_file_load(struct hl_quant *out, const struct hl_tensor *t, const struct hl_stfile *f,
                               const char *dir) {
    const struct hl_st_tensor *code = hl_st_find(f, t->name), *scale;
    const hola_dtype dtype = hl_quant_file_type(code);
    const int64_t rows = t->dim[0], cols = t->dim[1], row = hl_quant_row(dtype, cols);
    char name[HL_QUANT_FILE_NAME];
    *out = (struct hl_quant){0};
    if (code->blocks) return load_blocks(out, t, code, dir);
    snprintf(name, sizeof name, "%s_scale", t->name);
    scale = hl_st_find(f, name);
    if (!scale) return hl_fail(HOLA_EFORMAT, "%s: %s: missing, and %s is %s", dir, name, t->name, code->stored);
    if (strcmp(scale->stored, "BF16") != 0)
        return hl_fail(HOLA_EFORMAT, "%s: %s: stored as %s, expected BF16", dir, name, scale->stored);
    hola_status s = check_shape(code, dir, rows, row);
    if (s == HOLA_OK) s = check_shape(scale, dir, rows, hl_quant_groups(dtype, cols));
    if (s != HOLA_OK) return s;
    if (code->bytes != rows * row) /* the file reader does not check sizes of types other than floats */
        return hl_fail(HOLA_EFORMAT, "%s: %s: %lld bytes, expected %lld", dir, t->name, (long long)code->bytes,
                       (long long)(rows * row));
    if (!hl_quant_file_new(out, dtype, rows, cols))
        return hl_fail(HOLA_ENOMEM, "%s: %s: no memory for its codes", dir, t->name);
    memcpy(out->code, code->data, (size_t)code->bytes);
    memcpy(out->scale, scale->data, (size_t)scale->bytes);
    s = check_scales(out, dir, name);
    if (s != HOLA_OK) hl_quant_file_free(out);
    return s;
}

/* ---- writing ---- */

void hl_quant_file_entries(struct hl_st_entry e[2], const struct hl_quant *c, const char *name,
                           char name_scale[HL_QUANT_FILE_NAME]) {
    snprintf(name_scale, HL_QUANT_FILE_NAME, "%s_scale", name);
    e[0] = (struct hl_st_entry){
        .name = name, .dtype = c->dtype, .ndim = 2, .dim = {c->rows, hl_quant_row(c->dtype, c->cols)}, .raw = c->code};
    e[1] = (struct hl_st_entry){.name = name_scale,
                                .dtype = HOLA_BF16,
                                .ndim = 2,
                                .dim = {c->rows, hl_quant_groups(c->dtype, c->cols)},
                                .raw = c->scale};
}
