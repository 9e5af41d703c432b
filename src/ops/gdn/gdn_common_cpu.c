/* gdn_common_cpu.c -- chunk code shared by forward and backward (docs/math.md, "The delta rule", in chunks): decays,
 * scores, the inverse A, and triangular products. */
#include "ops/gdn/gdn_cpu.h"

enum {
    C = HL_CHUNK,
    STRIP = 12 /* rows of a triangle multiplied at once: whole tiles of small_gemm */
};

/* exp over an array of full vectors */
static void exp_all(real *x, int64_t n) {
    for (int64_t j = 0; j < n; j += VL) v_store(x + j, v_exp(v_load(x + j)));
}

/* Decays, always from differences of log decays: exp(-G_j) alone would overflow. The cumulative sum is kept in double,
 * as a chunk may reach -4000 while adjacent rows differ by 1e-3. */
static void load_decay(struct gdn_chunk *x, const real *g, int64_t stride) {
    double G[C], sum = 0;
    for (int64_t i = 0; i < C; i++) {
        if (g && i < x->n) sum += (double)g[i * stride];
        G[i] = sum;
        x->eG[i] = (real)sum;
    }
    for (int64_t i = 0; i < C; i++) x->eL[i] = (real)(sum - G[i]);
    exp_all(x->eG, C);
    x->end = x->eG[C - 1]; /* rows past n add nothing */
    exp_all(x->eL, C);
    for (int64_t i = 0; x->D && i < x->n; i++) {
        real *d = x->D + i * C;
        int64_t used = (i + VL) / VL * VL; /* whole vectors up to the diagonal */
        for (int64_t j = 0; j <= i; j++) d[j] = (real)(G[i] - G[j]);
        for (int64_t j = i + 1; j < used; j++) d[j] = -1000; /* exp gives 0 */
        exp_all(d, used);
        for (int64_t j = used; j < C; j++) d[j] = 0;
    }
}

/* P and M: scores times decay. Scores above the diagonal are not computed or read. */
static void apply_decay(struct gdn_chunk *x, real scale) {
    for (int64_t i = 0; i < x->n; i++) {
        const real *d = x->D + i * C;
        real *p = x->P + i * C, *m = x->M + i * C;
        int64_t j = 0;
        for (; j + VL <= i; j += VL) {
            v_store(p + j, scale * v_load(p + j) * v_load(d + j));
            v_store(m + j, v_load(m + j) * v_load(d + j));
        }
        v_store(p + j, scale * v_load_n(p + j, i + 1 - j) * v_load(d + j));
        v_store(m + j, v_load_n(m + j, i - j) * v_load(d + j));
        for (j += VL; j < C; j += VL) {
            v_store(p + j, v_set(0));
            v_store(m + j, v_set(0));
        }
    }
}

void HL_OP(gdn_chunk_load)(struct gdn_chunk *x, const struct hl_gdn *a, int64_t row, int64_t n, int64_t hv) {
    int64_t width = a->H * a->K, head = hv / (a->HV / a->H) * a->K;
    const real *q = (const real *)a->q + row * width + head, *k = (const real *)a->k + row * width + head;
    x->row = row;
    x->n = n;
    x->hv = hv;
    x->ldx = gdn_ld(a->K);
    x->M = x->P + n * C; /* one product computes the scores of q and k */
    for (int64_t i = 0; i < n; i++) {
        row_copy(x->X + i * x->ldx, q + i * width, a->K);
        row_copy(x->X + (n + i) * x->ldx, k + i * width, a->K);
        x->beta[i] = a->beta[(row + i) * a->HV + hv];
    }
    load_decay(x, a->g ? a->g + row * a->HV + hv : NULL, a->HV);
    if (!x->D) return;
    HL_OP(gdn_lower)(x->P, x->X, x->ldx, x->X + n * x->ldx, x->ldx, n, a->K, x->mm);
    apply_decay(x, 1 / R_SQRT((real)a->K));
}

/* Row i = e_i - sum_{j<i} L_ij row_j; row j is zero right of column j. */
void HL_OP(gdn_inverse)(const struct gdn_chunk *x, real *A) {
    for (int64_t i = 0; i < x->n; i++) {
        const real *m = x->M + i * C;
        for (int64_t c = 0; c < C; c += VL) {
            vr sum = v_set(0);
            for (int64_t j = c; j < i; j++) sum += m[j] * v_load(A + j * C + c);
            v_store(A + i * C + c, -x->beta[i] * sum);
        }
        A[i * C + i] = 1;
    }
}

void HL_OP(gdn_tri)(const struct gdn_tri *t, real *mm) {
    for (int64_t i = 0; i < t->n; i += STRIP) {
        int64_t m = t->n - i < STRIP ? t->n - i : STRIP;
        struct hl_small_gemm p = {.M = m, .N = t->N, .K = i + m, .alpha = 1, .add = t->add};
        p.A = t->T + i * t->ldt, p.ai = t->ldt, p.ak = 1;
        p.B = t->B, p.bk = t->ldb, p.bn = 1;
        p.C = t->C + i * t->ldc, p.ldc = t->ldc;
        HL_OP(small_gemm)(&p, mm);
    }
}

void HL_OP(gdn_tri_trans)(const struct gdn_tri *t, real *mm) {
    for (int64_t i = 0; i < t->n; i += STRIP) {
        int64_t m = t->n - i < STRIP ? t->n - i : STRIP;
        struct hl_small_gemm p = {.M = m, .N = t->N, .K = t->n - i, .alpha = 1, .add = t->add};
        p.A = t->T + i * t->ldt + i, p.ai = 1, p.ak = t->ldt;
        p.B = t->B + i * t->ldb, p.bk = t->ldb, p.bn = 1;
        p.C = t->C + i * t->ldc, p.ldc = t->ldc;
        HL_OP(small_gemm)(&p, mm);
    }
}

void HL_OP(gdn_lower)(real *out, const real *Y, int64_t ldy, const real *B, int64_t ldb, int64_t n, int64_t N,
                      real *mm) {
    /* columns [0, half) need all rows, the others the later ones */
    int64_t half = n < HL_PANEL ? n : HL_PANEL;
    struct hl_small_gemm p = {.M = 2 * n, .N = half, .K = N, .alpha = 1, .ldc = C};
    p.A = Y, p.ai = ldy, p.ak = 1;
    p.B = B, p.bk = 1, p.bn = ldb;
    p.C = out;
    HL_OP(small_gemm)(&p, mm);
    if (half == n) return;
    p.M = p.N = n - half;
    p.B = B + half * ldb;
    for (int64_t i = half; i < 2 * n; i += n) {
        p.A = Y + i * ldy;
        p.C = out + i * C + half;
        HL_OP(small_gemm)(&p, mm);
    }
}
