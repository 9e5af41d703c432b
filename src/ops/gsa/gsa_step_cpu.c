/* gsa_step_cpu.c -- the recurrence for segments of a few tokens. One task per key head decays, writes and reads the
 * slots' keys in one pass and their values in another, with the softmax in between. */
#include "ops/gsa/gsa_cpu.h"

enum { MOST = 1024 }; /* slots, channels of a value head */

/* The keys of the slots [K][M], decayed by column; z = q^T Kt. */
static void step_keys(const struct hl_gsa *a, real *Kt, const real *alpha, const real *s, const real *k, const real *q,
                      real *z) {
    for (int64_t c = 0; c < a->K; c++) {
        real *row = Kt + c * a->M;
        for (int64_t m = 0; m < a->M; m += VL) {
            const int64_t n = a->M - m < VL ? a->M - m : VL;
            const vr x = get(alpha + m, n) * get(row + m, n) + k[c] * get(s + m, n);
            put(row + m, x, n);
            put(z + m, (c ? get(z + m, n) : v_set(0)) + q[c] * x, n);
        }
    }
}
/* The values [M][V], decayed by row; out = p^T Vt. */
static void step_values(const struct hl_gsa *a, real *Vt, const real *alpha, const real *s, const real *v,
                        const real *p, real *out) {
    for (int64_t m = 0; m < a->M; m++) {
        real *row = Vt + m * a->V;
        for (int64_t j = 0; j < a->V; j += VL) {
            const int64_t n = a->V - j < VL ? a->V - j : VL;
            const vr x = alpha[m] * get(row + j, n) + s[m] * get(v + j, n);
            put(row + j, x, n);
            put(out + j, (m ? get(out + j, n) : v_set(0)) + p[m] * x, n);
        }
    }
}

struct job {
    const struct hl_gsa *a;
};

/* Later query heads of a group use the updated slots: with alpha = 1 and s = 0 they only read. */
static void token(const struct hl_gsa *a, int64_t row, int64_t hk, real *Kt, real *Vt) {
    const int64_t at = row * a->HK + hk, group = a->H / a->HK;
    const real *k = (const real *)a->k + at * a->K, *v = (const real *)a->v + at * a->V, *f = a->f + at * a->M;
    real alpha[MOST], s[MOST], z[MOST], p[MOST], out[MOST];
    for (int64_t m = 0; m < a->M; m += VL) {
        const int64_t n = a->M - m < VL ? a->M - m : VL;
        put(alpha + m, v_exp(get(f + m, n)), n);
    }
    HL_OP(gsa_strengths)(s, f, a->M);
    for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
        step_keys(a, Kt, alpha, s, k, (const real *)a->q + (row * a->H + h) * a->K, z);
        HL_OP(gsa_softmax)(p, z, a->M);
        if (a->p) row_copy((real *)a->p + (row * a->H + h) * a->M, p, a->M);
        step_values(a, Vt, alpha, s, v, p, out);
        row_copy((real *)a->out + (row * a->H + h) * a->V, out, a->V);
        for (int64_t m = 0; m < a->M; m++) alpha[m] = 1, s[m] = 0;
    }
}

static void task(void *ctx, int64_t i, int worker) {
    const struct hl_gsa *a = ((const struct job *)ctx)->a;
    const int64_t hk = i % a->HK;
    const struct hl_seg *seg = &a->rows->seg[i / a->HK];
    (void)worker;
    if (gdn_chunked(a->hk, seg)) return;
    real *Kt = (real *)(seg->state + a->Kt_off) + hk * a->K * a->M;
    real *Vt = (real *)(seg->state + a->Vt_off) + hk * a->M * a->V;
    for (int64_t t = 0; t < seg->len; t++) token(a, seg->row + t, hk, Kt, Vt);
}

void HL_OP(gsa_step)(struct hl_pool *pool, const struct hl_gsa *a) {
    struct job j = {a};
    HL_ASSERT(a->M <= MOST && a->V <= MOST);
    hl_pool_run(pool, a->rows->n * a->HK, task, &j);
}
