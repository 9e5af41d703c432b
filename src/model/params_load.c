/* params_load.c -- loads weights from safetensors files into a model's block. */
#include "model/quant_file.h"
#include <string.h>

static bool has_shape(const struct hl_st_tensor *got, int ndim, const int64_t *dim) {
    return got->ndim == ndim && memcmp(got->dim, dim, (size_t)ndim * sizeof *dim) == 0;
}

/* Before February 2025, fla stored the gate rows and then the up rows in one gate_proj [2I][d], without an up_proj.
 * Returns that tensor if the file has it; i is either of the two. */
static const struct hl_st_tensor *old_gate_and_up(const struct hl_params *p, const struct hl_stfile *f, int64_t i) {
    const struct hl_layer_params *l = p->tensor[i].layer < 0 ? NULL : &p->layer[p->tensor[i].layer];
    if (!l || (i != l->gate_proj && i != l->up_proj)) return NULL;
    const struct hl_tensor *gate = &p->tensor[l->gate_proj];
    const struct hl_st_tensor *both = hl_st_find(f, gate->name);
    if (!both || hl_st_find(f, p->tensor[l->up_proj].name)) return NULL;
    return has_shape(both, 2, (const int64_t[2]){2 * gate->dim[0], gate->dim[1]}) ? both : NULL;
}

static hola_status check_finite(const struct hl_tensor *t, const char *dir, const real *x) {
    int bad = 0;
    for (int64_t j = 0; j < t->count; j++) bad |= x[j] - x[j] != 0; /* infinities and NaN give NaN */
    return bad ? hl_fail(HOLA_ENUMERIC, "%s: %s: holds values that are not finite", dir, t->name) : HOLA_OK;
}

static hola_status load_codes(const struct hl_tensor *t, const struct hl_stfile *f, const char *dir, real *x,
                              struct hl_quant *keep) {
    struct hl_quant c;
    hola_status s = hl_quant_file_load(&c, t, f, dir);
    if (s != HOLA_OK) return s;
    hl_quant_read(&c, x);
    if (keep) *keep = c;
    else hl_quant_file_free(&c);
    return check_finite(t, dir, x);
}

static hola_status load_tensor(const struct hl_params *p, const struct hl_stfile *f, const char *dir, int64_t i,
                               real *x, struct hl_quant *codes) {
    const struct hl_tensor *t = &p->tensor[i];
    const struct hl_st_tensor *got = hl_st_find(f, t->name), *both = old_gate_and_up(p, f, i);
    int64_t first = 0;
    if (both) {
        got = both;
        first = i == p->layer[t->layer].up_proj ? t->count : 0;
    } else if (!got) {
        return hl_fail(HOLA_EFORMAT, "%s: %s: missing", dir, t->name);
    } else if (hl_quant_file_takes(p, i) && hl_quant_file_type(got) != HOLA_DTYPE_COUNT) {
        return load_codes(t, f, dir, x, codes ? &codes[i] : NULL);
    } else if (!has_shape(got, t->ndim, t->dim)) {
        char a[200], b[200];
        return hl_fail(HOLA_EFORMAT, "%s: %s: shape %s, expected %s", dir, t->name,
                       hl_st_shape(a, sizeof a, got->ndim, got->dim), hl_st_shape(b, sizeof b, t->ndim, t->dim));
    }
    hola_status s = hl_st_read(got, first, t->count, x);
    return s == HOLA_OK ? check_finite(t, dir, x) : s;
}

hola_status hl_params_load(const struct hl_params *p, const struct hl_stfile *f, const char *dir, real *block,
                           struct hl_quant *codes) {
    for (int64_t i = 0; i < p->n; i++) {
        const struct hl_tensor *t = &p->tensor[i];
        int64_t end = i + 1 < p->n ? p->tensor[i + 1].offset : p->total;
        if (t->optional && !hl_st_find(f, t->name)) {
            hl_params_init_tensor(p, i, block, 0); /* from the config */
            continue;
        }
        hola_status s = load_tensor(p, f, dir, i, block + t->offset, codes);
        if (s != HOLA_OK) return s;
        memset(block + t->offset + t->count, 0, (size_t)(end - t->offset - t->count) * sizeof(real));
    }
    return HOLA_OK;
}
