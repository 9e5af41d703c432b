/* gsa_ref.c -- the reference: gated slot attention token by token, and its gradient from the last token to the first,
 * with the states of all tokens kept. */
#include "ops/gsa/gsa_cpu.h"
#include <stdlib.h>
#include <string.h>

static real *new_reals(int64_t n) {
    real *p = calloc((size_t)n, sizeof *p);
    HL_ASSERT(p);
    return p;
}

/* The slots of a key head; at: row and key head. */
static void step(const struct hl_gsa *a, int64_t at, real *Kt, real *Vt) {
    const real *k = (const real *)a->k + at * a->K, *v = (const real *)a->v + at * a->V, *f = a->f + at * a->M;
    for (int64_t m = 0; m < a->M; m++) {
        const real alpha = R_EXP(f[m]), s = -R_EXPM1(f[m]);
        for (int64_t c = 0; c < a->K; c++) Kt[c * a->M + m] = alpha * Kt[c * a->M + m] + s * k[c];
        for (int64_t j = 0; j < a->V; j++) Vt[m * a->V + j] = alpha * Vt[m * a->V + j] + s * v[j];
    }
}

/* p = softmax(q^T Kt), q of row and query head `at` */
static void weigh(const struct hl_gsa *a, int64_t at, const real *Kt, real *p) {
    const real *q = (const real *)a->q + at * a->K;
    real most = -INFINITY, sum = 0;
    for (int64_t m = 0; m < a->M; m++) {
        p[m] = 0;
        for (int64_t c = 0; c < a->K; c++) p[m] += q[c] * Kt[c * a->M + m];
        if (p[m] > most) most = p[m];
    }
    for (int64_t m = 0; m < a->M; m++) sum += p[m] = R_EXP(p[m] - most);
    for (int64_t m = 0; m < a->M; m++) p[m] /= sum;
}

static void forward_head(const struct hl_gsa *a, const struct hl_seg *s, int64_t hk) {
    const int64_t KM = a->K * a->M, MV = a->M * a->V, group = a->H / a->HK;
    real *Kt = new_reals(KM), *Vt = new_reals(MV), *p = new_reals(a->M);
    real *kept_k = s->state ? (real *)(s->state + a->Kt_off) + hk * KM : NULL;
    real *kept_v = s->state ? (real *)(s->state + a->Vt_off) + hk * MV : NULL;
    if (s->state) memcpy(Kt, kept_k, (size_t)KM * sizeof *Kt);
    if (s->state) memcpy(Vt, kept_v, (size_t)MV * sizeof *Vt);
    for (int64_t row = s->row; row < s->row + s->len; row++) {
        step(a, row * a->HK + hk, Kt, Vt);
        for (int64_t at = row * a->H + hk * group, h = 0; h < group; h++, at++) {
            real *out = (real *)a->out + at * a->V;
            weigh(a, at, Kt, p);
            if (a->p) memcpy((real *)a->p + at * a->M, p, (size_t)a->M * sizeof *p);
            for (int64_t j = 0; j < a->V; j++) {
                out[j] = 0;
                for (int64_t m = 0; m < a->M; m++) out[j] += p[m] * Vt[m * a->V + j];
            }
        }
    }
    if (s->state) memcpy(kept_k, Kt, (size_t)KM * sizeof *Kt);
    if (s->state) memcpy(kept_v, Vt, (size_t)MV * sizeof *Vt);
    free(Kt);
    free(Vt);
    free(p);
}

void HL_OP(gsa_forward)(struct hl_backend *backend, const struct hl_gsa *a) {
    (void)backend;
    HL_ASSERT(a->H % a->HK == 0);
    for (int64_t s = 0; s < a->rows->n; s++)
        for (int64_t hk = 0; hk < a->HK; hk++) forward_head(a, &a->rows->seg[s], hk);
}

/* The read of one query head: Kt, Vt after the token; adds to their gradients. tmp: 2M */
static void backward_read(const struct hl_gsa *a, int64_t at, const real *Kt, const real *Vt, real *dKt, real *dVt,
                          real *tmp) {
    const real *q = (const real *)a->q + at * a->K, *dout = (const real *)a->dout + at * a->V;
    real *p = tmp, *dp = tmp + a->M, *dq = (real *)a->dq + at * a->K, mean = 0;
    weigh(a, at, Kt, p);
    for (int64_t m = 0; m < a->M; m++) {
        dp[m] = 0;
        for (int64_t j = 0; j < a->V; j++) {
            dp[m] += dout[j] * Vt[m * a->V + j];
            dVt[m * a->V + j] += p[m] * dout[j];
        }
        mean += p[m] * dp[m];
    }
    for (int64_t c = 0; c < a->K; c++) {
        dq[c] = 0;
        for (int64_t m = 0; m < a->M; m++) {
            real dz = p[m] * (dp[m] - mean);
            dq[c] += dz * Kt[c * a->M + m];
            dKt[c * a->M + m] += dz * q[c];
        }
    }
}

/* The write; Kt, Vt before the token. Turns the gradients of the slots after it into those before it. */
static void backward_write(const struct hl_gsa *a, int64_t at, const real *Kt, const real *Vt, real *dKt, real *dVt) {
    const real *k = (const real *)a->k + at * a->K, *v = (const real *)a->v + at * a->V, *f = a->f + at * a->M;
    real *dk = (real *)a->dk + at * a->K, *dv = (real *)a->dv + at * a->V;
    memset(dk, 0, (size_t)a->K * sizeof *dk);
    memset(dv, 0, (size_t)a->V * sizeof *dv);
    for (int64_t m = 0; m < a->M; m++) {
        const real alpha = R_EXP(f[m]), s = -R_EXPM1(f[m]);
        real dalpha = 0;
        for (int64_t c = 0; c < a->K; c++) {
            real *d = &dKt[c * a->M + m];
            dk[c] += *d * s;
            dalpha += *d * (Kt[c * a->M + m] - k[c]); /* s = 1 - alpha */
            *d *= alpha;
        }
        for (int64_t j = 0; j < a->V; j++) {
            real *d = &dVt[m * a->V + j];
            dv[j] += *d * s;
            dalpha += *d * (Vt[m * a->V + j] - v[j]);
            *d *= alpha;
        }
        a->df[at * a->M + m] = alpha * dalpha;
    }
}

void HL_OP(gsa_backward)(struct hl_backend *backend, const struct hl_gsa *a) {
    const int64_t KM = a->K * a->M, MV = a->M * a->V, group = a->H / a->HK;
    (void)backend;
    HL_ASSERT(a->H % a->HK == 0);
    for (int64_t i = 0; i < a->rows->n * a->HK; i++) {
        const struct hl_seg *s = &a->rows->seg[i / a->HK];
        const int64_t hk = i % a->HK;
        real *Kt = new_reals((s->len + 1) * KM), *Vt = new_reals((s->len + 1) * MV); /* slots before each token */
        real *dKt = new_reals(KM), *dVt = new_reals(MV), *tmp = new_reals(2 * a->M);
        for (int64_t t = 0; t < s->len; t++) {
            memcpy(Kt + (t + 1) * KM, Kt + t * KM, (size_t)KM * sizeof *Kt);
            memcpy(Vt + (t + 1) * MV, Vt + t * MV, (size_t)MV * sizeof *Vt);
            step(a, (s->row + t) * a->HK + hk, Kt + (t + 1) * KM, Vt + (t + 1) * MV);
        }
        for (int64_t t = s->len - 1; t >= 0; t--) {
            const int64_t row = s->row + t;
            for (int64_t h = hk * group; h < (hk + 1) * group; h++)
                backward_read(a, row * a->H + h, Kt + (t + 1) * KM, Vt + (t + 1) * MV, dKt, dVt, tmp);
            backward_write(a, row * a->HK + hk, Kt + t * KM, Vt + t * MV, dKt, dVt);
        }
        free(Kt);
        free(Vt);
        free(dKt);
        free(dVt);
        free(tmp);
    }
}

/* (the fast forms' scratch, here because this file is compiled once for all instruction sets) */
int64_t hl_gsa_scratch(int64_t K, int64_t V, int64_t M) { return gsa_scratch_reals(K, V, M) * (int64_t)sizeof(real); }
