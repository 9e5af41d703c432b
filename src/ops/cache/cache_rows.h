/* cache_rows.h -- rows of keys and values in F16: converted from and to reals, n numbers at a time. */
#ifndef HL_CACHE_ROWS_H
#define HL_CACHE_ROWS_H
#include "ops/cache/cache.h"
#include "ops/linear/convert.h"

/* v_min and v_max give their second operand if one is NaN, so a NaN stays. */
static inline vr v_f16_range(vr x) { return v_max(v_set(-HL_CACHE_MOST), v_min(v_set(HL_CACHE_MOST), x)); }
static inline vr v_load_f16_n(const uint16_t *p, int64_t n) {
    uint16_t t[VL] = {0};
    memcpy(t, p, (size_t)n * sizeof *t);
    return v_load_f16(t);
}

/* The numbers of hl_cache_to_f16. */
static inline void rows_to_f16(uint16_t *to, const real *from, int64_t n) {
    uint16_t t[VL];
    int64_t i = 0;
    for (; i + VL <= n; i += VL) v_store_f16(to + i, v_f16_range(v_load(from + i)));
    if (i == n) return;
    v_store_f16(t, v_f16_range(v_load_n(from + i, n - i)));
    memcpy(to + i, t, (size_t)(n - i) * sizeof *t);
}
static inline void rows_of_f16(real *to, const uint16_t *from, int64_t n) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) v_store(to + i, v_load_f16(from + i));
    if (i < n) v_store_n(to + i, v_load_f16_n(from + i, n - i), n - i);
}
/* To F16 and back. */
static inline void rows_rounded(real *to, const real *from, int64_t n) {
    uint16_t t[VL];
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t m = n - i < VL ? n - i : VL;
        rows_to_f16(t, from + i, m);
        rows_of_f16(to + i, t, m);
    }
}

#endif
