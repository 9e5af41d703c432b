/* pair_cpu.h -- products inside a chunk with per-channel decay, for gla, gsa and kda (docs/math.md, "Per-channel
 * decay"). G_i: sum of the log decays of the chunk's rows up to i.
 *
 *     scores_ij = sum_c X_ic Y_jc exp(G_ic - G_jc)                                  j <= i
 *     rows_i    = sum_j A_ij Y_j exp(G_i - G_j)        cols_j = sum_i A_ij X_i exp(G_i - G_j)
 *
 * Rows are in blocks of 16. With r_I and R_I = G at the first and last row of block I, a decay from j in block J to i
 * in block I is exp(G_i - r_I) exp(r_I - R_J) exp(R_J - G_j): for J < I no factor exceeds 1. For J = I the middle one
 * does: it is used where it stays below exp(60); the other channels of a block, the wide ones, are computed pair by
 * pair. Decays below exp(-60) are 0. */
#ifndef HL_PAIR_CPU_H
#define HL_PAIR_CPU_H
#include "ops/gdn/gdn_cpu.h"

enum { PAIR = 16, PAIRS = HL_CHUNK / PAIR, PAIR_SETS = 2 };

struct pair {
    int64_t n, c, ld, blocks; /* rows, channels, row stride of all arrays here, blocks of rows in use */
    int64_t sets;             /* of X: 1 or 2, each of n rows */
    double *G;                /* [n][ld] */
    real *in, *out;           /* [16 blocks][ld]: exp(G_i - r_I), exp(R_I - G_i) */
    real *from, *to, *end;    /* [PAIRS][ld]: exp(r_I), exp(G_last - R_I); [ld]: exp(G_last) */
    real *gap;                /* [PAIRS][PAIRS][ld]: exp(r_I - R_J), J <= I; 0 for J = I in wide channels */
    int32_t *wide[PAIRS];     /* the wide channels of a block */
    int64_t wides[PAIRS];
    const real *x[PAIR_SETS], *y; /* rows as given */
    int64_t ldx[PAIR_SETS], ldy;
    real *X; /* [16 blocks x sets][ld]: X_i exp(G_i - r_I), 16 rows of each set in turn; rows past n are 0 */
    real *Y; /* [16 blocks][ld]: Y_j exp(R_J - G_j); rows past n are 0 */
    real *Z; /* [128][ld]: Y or X seen from one block */
    real *mm;
};
/* index of row i of set s in X, in scores and in the inputs of rows and cols */
static inline int64_t pair_row(const struct pair *p, int64_t s, int64_t i) {
    return (i / PAIR * p->sets + s) * PAIR + i % PAIR;
}
static inline int64_t pair_reals(int64_t c) {
    const int64_t ld = gdn_ld(c);
    return ld * HL_CHUNK * 2 + ld * (2 * HL_CHUNK + 2 * PAIRS + 1 + PAIRS * PAIRS + PAIRS + 5 * HL_CHUNK) + 64;
}
/* n <= VL lanes */
static inline vr get(const real *p, int64_t n) { return n == VL ? v_load(p) : v_load_n(p, n); }
static inline void put(real *p, vr x, int64_t n) {
    if (n == VL) v_store(p, x);
    else v_store_n(p, x, n);
}
/* y = f x, by channel */
static inline void row_times(real *y, const real *x, const real *f, int64_t n) {
    int64_t j = 0;
    for (; j + VL <= n; j += VL) v_store(y + j, v_load(f + j) * v_load(x + j));
    if (j < n) v_store_n(y + j, v_load_n(f + j, n - j) * v_load_n(x + j, n - j), n - j);
}
/* y += a f x */
static inline void row_add_times(real *y, real a, const real *x, const real *f, int64_t n) {
    int64_t j = 0;
    for (; j + VL <= n; j += VL) v_store(y + j, v_load(y + j) + a * v_load(f + j) * v_load(x + j));
    if (j < n) v_store_n(y + j, v_load_n(y + j, n - j) + a * v_load_n(f + j, n - j) * v_load_n(x + j, n - j), n - j);
}

#ifdef HL_ISA
/* Allocates the arrays from *mem; the caller sets mm. */
struct pair HL_OP(pair_carve)(int64_t c, int64_t sets, real *mm, real **mem);
/* Decays of n rows, g `stride` apart. */
void HL_OP(pair_decays)(struct pair *p, const real *g, int64_t stride, int64_t n);
void HL_OP(pair_set_x)(struct pair *p, int64_t s, const real *x, int64_t ldx);
void HL_OP(pair_set_y)(struct pair *p, const real *y, int64_t ldy);
/* out [16 blocks x sets][HL_CHUNK]; entries above the diagonal within a block of 16 are undefined, those further right
 * are not written */
void HL_OP(pair_scores)(const struct pair *p, real *out);
/* A laid out like scores, zero above the diagonal; out like X, and like Y */
void HL_OP(pair_rows)(const struct pair *p, const real *A, real *out);
void HL_OP(pair_cols)(const struct pair *p, const real *A, real *out);
/* X_i exp(G_i), laid out like X; Y_j exp(G_last - G_j), like Y; out may be X or Y itself */
void HL_OP(pair_from_start)(const struct pair *p, real *out);
void HL_OP(pair_to_end)(const struct pair *p, real *out);
#endif

#endif
