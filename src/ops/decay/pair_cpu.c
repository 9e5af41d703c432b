/* pair_cpu.c -- see pair_cpu.h. */
#include "ops/decay/pair_cpu.h"

enum { C = HL_CHUNK };
#define LEAST (-60)    /* smaller exponents give 0; exponents above 60 are never used */
#define LEAST_G (-100) /* smaller log decays erase everything anyway; it bounds G, whose differences matter */

static int64_t padded(const struct pair *p) { return (p->c + 15) / 16 * 16; } /* channels, in whole vectors */

struct pair HL_OP(pair_carve)(int64_t c, int64_t sets, real *mm, real **mem) {
    const real *base = *mem;
    struct pair p = {.c = c, .ld = gdn_ld(c), .sets = sets, .mm = mm};
    p.G = (double *)gdn_take(mem, C * p.ld * (int64_t)(sizeof(double) / sizeof(real)));
    p.in = gdn_take(mem, C * p.ld), p.out = gdn_take(mem, C * p.ld);
    p.from = gdn_take(mem, PAIRS * p.ld), p.to = gdn_take(mem, PAIRS * p.ld), p.end = gdn_take(mem, p.ld);
    p.gap = gdn_take(mem, PAIRS * PAIRS * p.ld);
    for (int i = 0; i < PAIRS; i++) p.wide[i] = (int32_t *)gdn_take(mem, p.ld);
    p.X = gdn_take(mem, sets * C * p.ld);
    p.Y = gdn_take(mem, C * p.ld);
    p.Z = gdn_take(mem, 2 * C * p.ld);
    HL_ASSERT(*mem - base <= pair_reals(c));
    return p;
}

/* ---- decays ---- */

static inline vr decay(vr x) { return v_select((vi)(x < LEAST), v_set(0), v_exp(x)); }
/* to = exp(a - b); b NULL: exp(a) */
static void difference(real *to, const double *a, const double *b, int64_t n) {
    if (b)
        for (int64_t c = 0; c < n; c++) to[c] = (real)(a[c] - b[c]);
    else
        for (int64_t c = 0; c < n; c++) to[c] = (real)a[c];
    for (int64_t c = 0; c < n; c += VL) v_store(to + c, decay(v_load(to + c)));
}

/* The middle factor of a block with itself; channels where it would be too large are listed instead. */
static void own_gap(struct pair *p, int64_t I, const double *r, const double *R) {
    real *gap = p->gap + I * (PAIRS + 1) * p->ld;
    const int64_t n = padded(p);
    p->wides[I] = 0;
    for (int64_t c = 0; c < n; c++) gap[c] = (real)(r[c] - R[c]);
    for (int64_t c = 0; c < p->c; c++)
        if (gap[c] > -LEAST) p->wide[I][p->wides[I]++] = (int32_t)c;
    for (int64_t c = 0; c < n; c += VL) v_store(gap + c, v_exp(v_min(v_load(gap + c), v_set(-LEAST))));
    for (int64_t i = 0; i < p->wides[I]; i++) gap[p->wide[I][i]] = 0;
}

void HL_OP(pair_decays)(struct pair *p, const real *g, int64_t stride, int64_t n) {
    const int64_t width = padded(p), ld = p->ld;
    p->n = n;
    p->blocks = hl_pieces(n, PAIR);
    for (int64_t i = 0; i < n; i++) {
        double *G = p->G + i * ld;
        const real *row = g + i * stride;
        for (int64_t c = 0; c < p->c; c++) {
            const double x = row[c] < LEAST_G ? LEAST_G : (double)row[c];
            G[c] = i ? G[c - ld] + x : x;
        }
        for (int64_t c = p->c; c < width; c++) G[c] = 0;
    }
    for (int64_t I = 0; I < p->blocks; I++) {
        const int64_t i0 = I * PAIR, i1 = i0 + PAIR < n ? i0 + PAIR : n;
        const double *r = p->G + i0 * ld, *R = p->G + (i1 - 1) * ld;
        for (int64_t i = i0; i < i1; i++) {
            difference(p->in + i * ld, p->G + i * ld, r, width);
            difference(p->out + i * ld, R, p->G + i * ld, width);
        }
        for (int64_t J = 0; J < I; J++)
            difference(p->gap + (I * PAIRS + J) * ld, r, p->G + ((J + 1) * PAIR - 1) * ld, width);
        own_gap(p, I, r, R);
        difference(p->from + I * ld, r, NULL, width);
        difference(p->to + I * ld, p->G + (n - 1) * ld, R, width);
    }
    difference(p->end, p->G + (n - 1) * ld, NULL, width);
}

/* ---- X and Y with their decays ---- */

static void clear(real *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

void HL_OP(pair_set_x)(struct pair *p, int64_t s, const real *x, int64_t ldx) {
    p->x[s] = x, p->ldx[s] = ldx;
    for (int64_t i = 0; i < p->blocks * PAIR; i++) {
        real *to = p->X + pair_row(p, s, i) * p->ld;
        if (i < p->n) row_times(to, x + i * ldx, p->in + i * p->ld, p->c);
        else clear(to, p->c);
    }
}
void HL_OP(pair_set_y)(struct pair *p, const real *y, int64_t ldy) {
    p->y = y, p->ldy = ldy;
    for (int64_t i = 0; i < p->blocks * PAIR; i++) {
        if (i < p->n) row_times(p->Y + i * p->ld, y + i * ldy, p->out + i * p->ld, p->c);
        else clear(p->Y + i * p->ld, p->c);
    }
}
void HL_OP(pair_from_start)(const struct pair *p, real *out) {
    const int64_t rows = p->sets * PAIR;
    for (int64_t i = 0; i < p->blocks * rows; i++)
        row_times(out + i * p->ld, p->X + i * p->ld, p->from + i / rows * p->ld, p->c);
}
void HL_OP(pair_to_end)(const struct pair *p, real *out) {
    for (int64_t i = 0; i < p->blocks * PAIR; i++)
        row_times(out + i * p->ld, p->Y + i * p->ld, p->to + i / PAIR * p->ld, p->c);
}

/* Z = Y of the blocks up to I, decayed until block I begins. */
static void see_y(const struct pair *p, int64_t I) {
    for (int64_t j = 0; j < (I + 1) * PAIR; j++)
        row_times(p->Z + j * p->ld, p->Y + j * p->ld, p->gap + (I * PAIRS + j / PAIR) * p->ld, p->c);
}
/* Z = X of the blocks from J on, decayed since block J ended. */
static void see_x(const struct pair *p, int64_t J) {
    const int64_t rows = p->sets * PAIR;
    for (int64_t i = J * rows; i < p->blocks * rows; i++)
        row_times(p->Z + (i - J * rows) * p->ld, p->X + i * p->ld, p->gap + (i / rows * PAIRS + J) * p->ld, p->c);
}

/* ---- the wide channels of a block, pair by pair ---- */

/* e[i][j] = exp(G_i - G_j) of rows i, j of block I in channel c; 0 above the diagonal; returns the rows in use */
static int64_t wide_decays(const struct pair *p, int64_t I, int64_t c, real e[PAIR][PAIR]) {
    const int64_t i0 = I * PAIR, n = p->n - i0 < PAIR ? p->n - i0 : PAIR;
    const double *G = p->G + i0 * p->ld + c;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < PAIR; j++) e[i][j] = j <= i ? (real)(G[i * p->ld] - G[j * p->ld]) : -1000;
        for (int64_t j = 0; j < PAIR; j += VL) v_store(e[i] + j, decay(v_load(e[i] + j)));
    }
    return n;
}
static void wide_scores(const struct pair *p, int64_t I, real *out) {
    real e[PAIR][PAIR];
    for (int64_t w = 0; w < p->wides[I]; w++) {
        const int64_t c = p->wide[I][w], n = wide_decays(p, I, c, e);
        const real *y = p->y + I * PAIR * p->ldy + c;
        for (int64_t s = 0; s < p->sets; s++)
            for (int64_t i = 0; i < n; i++) {
                const real x = p->x[s][(I * PAIR + i) * p->ldx[s] + c];
                real *to = out + pair_row(p, s, I * PAIR + i) * C + I * PAIR;
                for (int64_t j = 0; j <= i; j++) to[j] += x * y[j * p->ldy] * e[i][j];
            }
    }
}
static void wide_rows(const struct pair *p, int64_t I, const real *A, real *out) {
    real e[PAIR][PAIR];
    for (int64_t w = 0; w < p->wides[I]; w++) {
        const int64_t c = p->wide[I][w], n = wide_decays(p, I, c, e);
        const real *y = p->y + I * PAIR * p->ldy + c;
        for (int64_t s = 0; s < p->sets; s++)
            for (int64_t i = 0; i < n; i++) {
                const int64_t row = pair_row(p, s, I * PAIR + i);
                const real *a = A + row * C + I * PAIR;
                for (int64_t j = 0; j <= i; j++) out[row * p->ld + c] += a[j] * y[j * p->ldy] * e[i][j];
            }
    }
}
static void wide_cols(const struct pair *p, int64_t J, const real *A, real *out) {
    real e[PAIR][PAIR];
    for (int64_t w = 0; w < p->wides[J]; w++) {
        const int64_t c = p->wide[J][w], n = wide_decays(p, J, c, e);
        for (int64_t s = 0; s < p->sets; s++)
            for (int64_t i = 0; i < n; i++) {
                const real x = p->x[s][(J * PAIR + i) * p->ldx[s] + c];
                const real *a = A + pair_row(p, s, J * PAIR + i) * C + J * PAIR;
                for (int64_t j = 0; j <= i; j++) out[(J * PAIR + j) * p->ld + c] += a[j] * x * e[i][j];
            }
    }
}

/* ---- products ---- */

void HL_OP(pair_scores)(const struct pair *p, real *out) {
    const int64_t rows = p->sets * PAIR;
    for (int64_t I = 0; I < p->blocks; I++) {
        struct hl_small_gemm m = {.M = rows, .N = (I + 1) * PAIR, .K = p->c, .alpha = 1, .ldc = C};
        see_y(p, I);
        m.A = p->X + I * rows * p->ld, m.ai = p->ld, m.ak = 1;
        m.B = p->Z, m.bk = 1, m.bn = p->ld;
        m.C = out + I * rows * C;
        HL_OP(small_gemm)(&m, p->mm);
        wide_scores(p, I, out);
    }
}

void HL_OP(pair_rows)(const struct pair *p, const real *A, real *out) {
    const int64_t rows = p->sets * PAIR;
    for (int64_t I = 0; I < p->blocks; I++) {
        struct hl_small_gemm m = {.M = rows, .N = p->c, .K = (I + 1) * PAIR, .alpha = 1, .ldc = p->ld};
        see_y(p, I);
        m.A = A + I * rows * C, m.ai = C, m.ak = 1;
        m.B = p->Z, m.bk = p->ld, m.bn = 1;
        m.C = out + I * rows * p->ld;
        HL_OP(small_gemm)(&m, p->mm);
        for (int64_t s = 0; s < p->sets; s++)
            for (int64_t i = I * PAIR; i < (I + 1) * PAIR && i < p->n; i++) {
                real *row = out + pair_row(p, s, i) * p->ld;
                row_times(row, row, p->in + i * p->ld, p->c);
            }
        wide_rows(p, I, A, out);
    }
}

void HL_OP(pair_cols)(const struct pair *p, const real *A, real *out) {
    const int64_t rows = p->sets * PAIR;
    for (int64_t J = 0; J < p->blocks; J++) {
        struct hl_small_gemm m = {.M = PAIR, .N = p->c, .K = (p->blocks - J) * rows, .alpha = 1, .ldc = p->ld};
        see_x(p, J);
        m.A = A + J * rows * C + J * PAIR, m.ai = 1, m.ak = C;
        m.B = p->Z, m.bk = p->ld, m.bn = 1;
        m.C = out + J * PAIR * p->ld;
        HL_OP(small_gemm)(&m, p->mm);
        for (int64_t j = J * PAIR; j < (J + 1) * PAIR && j < p->n; j++)
            row_times(out + j * p->ld, out + j * p->ld, p->out + j * p->ld, p->c);
        wide_cols(p, J, A, out);
    }
}
