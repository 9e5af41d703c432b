/* tile_cpu.c -- C[mr][n] (= or +=) alpha A B for one strip of A and one panel of B, in registers. */
#include "ops/linear/kernel.h"
#include "ops/linear/convert.h"

/* Unrolled, and with a branch for every check of the undefined-behaviour sanitizer, this file would take clang minutes;
 * the address sanitizer stays on. */
#define INLINE static inline __attribute__((always_inline, no_sanitize("undefined")))
/* Full unrolling: accumulators indexed by a loop variable would be in memory. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 12")
#endif

/* Vectors of a row of accumulators: the whole panel if it fits the registers, else a part. */
enum { FULL = HL_PANEL / VL, PART = 2, ROWS_FULL = PART * HL_MR / FULL };

/* x in every lane. x - 0 is x for every x, so this is one broadcasting load (0 + x is not: -0). */
INLINE vr spread(real x) { return x - (vr){0}; }

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

/* A single row is bound by memory: prefetch AHEAD bytes, beyond the hardware prefetcher. */
enum { AHEAD = 2048 };
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

/* One form for both cases, so that compilers cannot fuse the multiply-add in only one of them. */
INLINE void put(int mr, int nv, const struct hl_tile *t, int64_t c, vr acc[HL_MR][FULL]) {
    vr alpha = spread(t->alpha);
    real *C = t->C + c;
    UNROLL
    for (int i = 0; i < mr; i++, C += t->ldc) {
        UNROLL
        for (int j = 0; j < nv; j++) v_store(C + j * VL, (t->add ? v_load(C + j * VL) : (vr){0}) + alpha * acc[i][j]);
    }
}

INLINE void rows(int mr, hola_dtype dtype, const struct hl_tile *t) {
    int nv = mr <= ROWS_FULL ? FULL : PART;
    for (int i = 0; i < mr; i++) /* prefetch C, which is needed only at the end */
        for (int c = 0; c < t->n; c += 64 / (int)sizeof(real)) __builtin_prefetch(t->C + i * t->ldc + c, 1);
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
KERNEL(1)
KERNEL(2)
KERNEL(3)
KERNEL(4)
#if defined(__AVX2__) || defined(HL_NEON)
KERNEL(5)
KERNEL(6)
#endif
#if defined(__AVX512F__) || defined(HL_NEON)
KERNEL(7)
KERNEL(8)
KERNEL(9)
KERNEL(10)
KERNEL(11)
KERNEL(12)
#define HEIGHTS(r) r##1, r##2, r##3, r##4, r##5, r##6, r##7, r##8, r##9, r##10, r##11, r##12
#elif defined(__AVX2__)
#define HEIGHTS(r) r##1, r##2, r##3, r##4, r##5, r##6
#else
#define HEIGHTS(r) r##1, r##2, r##3, r##4
#endif

static void run(const struct hl_tile *t) {
    static void (*const kernel[HOLA_DTYPE_COUNT][HL_MR])(const struct hl_tile *) = {
        [HOLA_F32] = {HEIGHTS(rows_)}, [HOLA_BF16] = {HEIGHTS(rows_bf16_)}, [HOLA_F16] = {HEIGHTS(rows_f16_)}};
    kernel[t->dtype][t->mr - 1](t);
}

/* A tile cut off on the right runs the same instructions on a buffer outside the matrix. */
static void cut(const struct hl_tile *t) {
    real C[HL_MR * HL_PANEL] = {0};
    struct hl_tile e = *t;
    size_t bytes = (size_t)t->n * sizeof(real);
    e.C = C;
    e.ldc = HL_PANEL;
    for (int i = 0; t->add && i < t->mr; i++) memcpy(C + i * HL_PANEL, t->C + i * t->ldc, bytes);
    run(&e);
    for (int i = 0; i < t->mr; i++) memcpy(t->C + i * t->ldc, C + i * HL_PANEL, bytes);
}

void HL_OP(tile)(const struct hl_tile *t) {
    if (t->n == HL_PANEL) run(t);
    else cut(t);
}
