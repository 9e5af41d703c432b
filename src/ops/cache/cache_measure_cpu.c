/* cache_measure_cpu.c -- how well the state recalls the rows that a finished block may keep: the scores of
 * HL_SCORE_RECALL (cache.h), CACHE_STEP rows at a time. */
#include "ops/cache/cache_cpu.h"
#include "ops/simd.h"

/* |v - y| */
static real distance(const real *v, const real *y, int64_t n) {
    vr sum = {0};
    int64_t j = 0;
    for (; j + VL <= n; j += VL) {
        vr e = v_load(v + j) - v_load(y + j);
        sum += e * e;
    }
    if (j < n) {
        vr e = v_load_n(v + j, n - j) - v_load_n(y + j, n - j);
        sum += e * e;
    }
    return R_SQRT(v_sum(sum));
}

void HL_OP(cache_measure)(const struct hl_cache_head *d, struct hl_cache_work *w, const real *S, int64_t m) {
    const struct hl_cache *a = d->a;
    const int64_t K = a->K, V = a->V, all = w->chosen.n + m, ldx = hl_cache_ld(K);
    for (int64_t c = 0; c < all; c += CACHE_STEP) {
        const int64_t n = all - c < CACHE_STEP ? all - c : CACHE_STEP, *id = w->chosen.id + c;
        struct hl_small_gemm p = {.M = n, .N = V, .K = K, .ai = ldx, .ak = 1, .bk = V, .bn = 1, .alpha = 1};
        int64_t ld;
        const real *k = HL_OP(cache_keys)(d, id, n, w->rows, &ld), *v;
        for (int64_t i = 0; i < n; i++) { /* unit keys; a gathered key is normalized in place */
            const real f = hl_cache_factor_of(d, id[i]);
            for (int64_t x = 0; x < K; x++)
                w->rows[i * ldx + x] = hl_cache_unweighted(k[i * ld + x] * f, a->k_weight, x);
        }
        p.A = w->rows, p.B = S;
        p.C = w->O, p.ldc = hl_cache_ld(V);
        HL_OP(small_gemm)(&p, w->mm);
        v = HL_OP(cache_values)(d, id, n, w->rows, &ld);
        for (int64_t i = 0; i < n; i++) w->chosen.score[c + i] = distance(v + i * ld, w->O + i * p.ldc, V);
    }
}
