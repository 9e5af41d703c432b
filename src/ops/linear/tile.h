/* tile.h -- what the register tiles share (tile_cpu.c, bf16_dot_cpu.c): unrolling, one function per height, stores. */
#ifndef HL_TILE_H
#define HL_TILE_H
#include "ops/linear/kernel.h"

/* Unrolled, and with a branch for every check of the undefined-behaviour sanitizer, a tile would take clang minutes;
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

/* A single row is bound by memory: prefetch AHEAD bytes, beyond the hardware prefetcher. */
enum { AHEAD = 2048 };

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

/* C is needed only at the end */
INLINE void fetch_sums(int mr, const struct hl_tile *t) {
    for (int i = 0; i < mr; i++)
        for (int c = 0; c < t->n; c += 64 / (int)sizeof(real)) __builtin_prefetch(t->C + i * t->ldc + c, 1);
}

/* KERNELS(k): k(1) ... k(HL_MR); HEIGHTS(r): their names r1 ... */
#if defined(__AVX512F__) || defined(HL_NEON)
#define KERNELS(k) k(1) k(2) k(3) k(4) k(5) k(6) k(7) k(8) k(9) k(10) k(11) k(12)
#define HEIGHTS(r) r##1, r##2, r##3, r##4, r##5, r##6, r##7, r##8, r##9, r##10, r##11, r##12
#elif defined(__AVX2__)
#define KERNELS(k) k(1) k(2) k(3) k(4) k(5) k(6)
#define HEIGHTS(r) r##1, r##2, r##3, r##4, r##5, r##6
#else
#define KERNELS(k) k(1) k(2) k(3) k(4)
#define HEIGHTS(r) r##1, r##2, r##3, r##4
#endif

/* A tile cut off on the right runs the same instructions on a buffer outside the matrix. */
static inline void run_or_cut(const struct hl_tile *t, void (*run)(const struct hl_tile *)) {
    if (t->n == HL_PANEL) {
        run(t);
        return;
    }
    real C[HL_MR * HL_PANEL] = {0};
    struct hl_tile e = *t;
    size_t bytes = (size_t)t->n * sizeof(real);
    e.C = C;
    e.ldc = HL_PANEL;
    for (int i = 0; t->add && i < t->mr; i++) memcpy(C + i * HL_PANEL, t->C + i * t->ldc, bytes);
    run(&e);
    for (int i = 0; i < t->mr; i++) memcpy(t->C + i * t->ldc, C + i * HL_PANEL, bytes);
}

#endif
