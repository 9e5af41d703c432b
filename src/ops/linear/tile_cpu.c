/* tile_cpu.c -- C[mr][n] (= or +=) alpha A B for one strip of A and one panel of B, in registers. */
#include "ops/linear/tile.h"
#include "ops/linear/convert.h"

INLINE vr load(const void *B, int64_t at, hola_dtype dtype) {
    if (dtype == HOLA_BF16) return v_load_bf16((const uint16_t *)B + at);
    if (dtype == HOLA_F16) return v_load_f16((const uint16_t *)B + at);
    return v_load((const real *)B + at);
}

/* Row i of a column of the strip. ARM multiplies by a register lane: four rows are then one load. */
INLINE real factor(const real *A, int i, int mr) {
#ifdef HL_NEON
    if (i < mr / 4 * 4) return v_load(A + i / 4 * 4)[i % 4];
#endif
    (void)mr;
    return A[i];
}

INLINE void fetch(const void *B, int64_t at, hola_dtype dtype) {
    const int64_t size = dtype == HOLA_F32 ? (int64_t)sizeof(real) : 2;
    UNROLL
    for (int64_t line = 0; line < HL_PANEL * size; line += 64)
        __builtin_prefetch((const char *)B + at * size + AHEAD + line);
}

/* The sums of a piece over columns [c, c + nv*VL). mr, nv and dtype are constants in every caller, so
 * acc lives in registers. */
INLINE void sum(int mr, int nv, hola_dtype dtype, vr acc[HL_MR][FULL], const struct hl_tile *t, int64_t c) {
    const real *A = t->A;
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < nv; j++) acc[i][j] = (vr){0};
    }
    for (int64_t k = t->kc; k > 0; k--, A += t->as, c += t->bs) {
        vr b[FULL];
        if (mr == 1) fetch(t->B, c, dtype);
        UNROLL
        for (int j = 0; j < nv; j++) b[j] = load(t->B, c + j * VL, dtype);
        UNROLL
        for (int i = 0; i < mr; i++) {
            UNROLL
            for (int j = 0; j < nv; j++) acc[i][j] += spread(factor(A, i, mr)) * b[j];
        }
    }
}

INLINE void rows(int mr, hola_dtype dtype, const struct hl_tile *t) {
    int nv = mr <= ROWS_FULL ? FULL : PART;
    fetch_sums(mr, t);
    for (int c = 0; c < t->n; c += nv * VL) {
        vr acc[HL_MR][FULL];
        sum(mr, nv, dtype, acc, t, c);
        put(mr, nv, t, c, acc);
    }
}

/* One function per height and dtype. */
#define KERNEL(m)                                                                 \
    static void rows_##m(const struct hl_tile *t) { rows(m, HOLA_F32, t); }       \
    static void rows_bf16_##m(const struct hl_tile *t) { rows(m, HOLA_BF16, t); } \
    static void rows_f16_##m(const struct hl_tile *t) { rows(m, HOLA_F16, t); }
KERNELS(KERNEL)

static void run(const struct hl_tile *t) {
    static void (*const kernel[HOLA_DTYPE_COUNT][HL_MR])(const struct hl_tile *) = {
        [HOLA_F32] = {HEIGHTS(rows_)}, [HOLA_BF16] = {HEIGHTS(rows_bf16_)}, [HOLA_F16] = {HEIGHTS(rows_f16_)}};
    kernel[t->dtype][t->mr - 1](t);
}

void HL_OP(tile)(const struct hl_tile *t) { run_or_cut(t, run); }
