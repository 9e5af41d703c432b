/* grad_raw.c -- the double references of the raw calls (raw_gdn_ref.h, raw_cache_ref.h) against finite differences, and the reference of
 * src/ops/gdn, which was written apart from it, against both. */
#include "check.h"
#include "raw_cache_ref.h"
#include "raw_gdn_ref.h"
#include "gdn_case.h"

static double *numbers(int64_t n, double lo, double hi, uint64_t seed) { return check_random(n, lo, hi, seed); }

struct sizes {
    int64_t qk, v, b, S;
};
static struct sizes sizes_of(const struct gdn_ref *a) {
    return (struct sizes){a->T * a->H * a->K, a->T * a->HV * a->V, a->T * a->HV, a->N * a->HV * a->K * a->V};
}
static void open_ref(struct gdn_ref *a, bool decay, bool states) {
    const struct sizes n = sizes_of(a);
    a->q = numbers(n.qk, -1, 1, 1), a->k = numbers(n.qk, -0.6, 0.6, 2), a->v = numbers(n.v, -1, 1, 3);
    a->g = decay ? numbers(n.b, -0.7, 0, 4) : NULL, a->beta = numbers(n.b, 0.1, 0.9, 5);
    a->A_log = numbers(a->HV, -1, 0.5, 6), a->dt_bias = numbers(a->HV, -1, 1, 7);
    a->h0 = states ? numbers(n.S, -1, 1, 8) : NULL, a->dht = states ? numbers(n.S, -1, 1, 9) : NULL;
    a->dout = numbers(n.v, -1, 1, 10);
    a->out = check_new(n.v), a->ht = check_new(n.S), a->m = check_new(n.b);
    a->dq = check_new(n.qk), a->dk = check_new(n.qk), a->dv = check_new(n.v), a->dg = check_new(n.b);
    a->dbeta = check_new(n.b), a->dh0 = check_new(n.S), a->dA_log = check_new(a->HV), a->ddt_bias = check_new(a->HV);
}
static void close_ref(struct gdn_ref *a) {
    const struct sizes n = sizes_of(a);
    check_free(a->q, n.qk), check_free(a->k, n.qk), check_free(a->v, n.v), check_free(a->beta, n.b);
    if (a->g) check_free(a->g, n.b);
    check_free(a->A_log, a->HV), check_free(a->dt_bias, a->HV), check_free(a->dout, n.v);
    if (a->h0) check_free(a->h0, n.S), check_free(a->dht, n.S);
    check_free(a->out, n.v), check_free(a->ht, n.S), check_free(a->m, n.b), check_free(a->dq, n.qk);
    check_free(a->dk, n.qk), check_free(a->dv, n.v), check_free(a->dg, n.b), check_free(a->dbeta, n.b);
    check_free(a->dh0, n.S), check_free(a->dA_log, a->HV), check_free(a->ddt_bias, a->HV);
}

/* out.dout + ht.dht */
static double objective(void *ctx) {
    const struct gdn_ref *a = ctx;
    const struct sizes n = sizes_of(a);
    double sum = 0;
    gdn_ref_run(a, 0);
    for (int64_t i = 0; i < n.v; i++) sum += a->out[i] * a->dout[i];
    for (int64_t i = 0; a->dht && i < n.S; i++) sum += a->ht[i] * a->dht[i];
    return sum;
}

static void check_flags(int flags, bool decay, bool states, double scale) {
    static const int64_t cu[] = {0, 5, 5, 6, 11};
    struct gdn_ref a = {.T = 11, .N = 4, .H = 2, .HV = 4, .K = 3, .V = 4, .cu = cu, .flags = flags, .scale = scale};
    open_ref(&a, decay, states);
    const struct sizes n = sizes_of(&a);
    gdn_ref_run(&a, 1);
    CHECK_GRADIENT(objective, &a, a.q, a.dq, n.qk, 1e-6);
    CHECK_GRADIENT(objective, &a, a.k, a.dk, n.qk, 1e-6);
    CHECK_GRADIENT(objective, &a, a.v, a.dv, n.v, 1e-6);
    CHECK_GRADIENT(objective, &a, a.beta, a.dbeta, n.b, 1e-6);
    if (decay) CHECK_GRADIENT(objective, &a, a.g, a.dg, n.b, 1e-6);
    if (flags & HOLA_GDN_GATE) CHECK_GRADIENT(objective, &a, a.A_log, a.dA_log, a.HV, 1e-6);
    if (flags & HOLA_GDN_GATE) CHECK_GRADIENT(objective, &a, a.dt_bias, a.ddt_bias, a.HV, 1e-6);
    if (states) CHECK_GRADIENT(objective, &a, a.h0, a.dh0, n.S, 1e-6);
    /* the comparison must see a small mistake */
    if (states) a.dh0[6] += 0.01, assert_true(check_gradient(objective, &a, a.h0, a.dh0, n.S, 1e-5) > 1e-6);
    close_ref(&a);
}
static void reference_is_the_derivative(void **state) {
    (void)state;
    check_flags(0, true, true, 0.7);
    check_flags(0, false, false, 0.5);
    check_flags(HOLA_GDN_NORM, true, true, 1.0);
    check_flags(HOLA_GDN_NORM | HOLA_GDN_GATE | HOLA_GDN_SIGMOID | HOLA_GDN_NEG, true, true, 0.3);
    check_flags(HOLA_GDN_GATE | HOLA_GDN_SIGMOID, true, false, 1.5);
}

/* src/ops/gdn's reference, which the model is compared with, has the same states and gradients of them */
static void references_agree(void **state) {
    static const int64_t cu[] = {0, 5, 6, 11};
    struct gdn_ref a = {.T = 11, .N = 3, .H = 2, .HV = 4, .K = 4, .V = 3, .cu = cu, .scale = 0.5};
    struct hl_seg seg[3];
    struct hl_rows rows = {.T = 11, .n = 3, .seg = seg};
    (void)state;
    open_ref(&a, true, true);
    const struct sizes n = sizes_of(&a);
    gdn_ref_run(&a, 1);
    double *S = check_new(n.S), *out = check_new(n.v), *m = check_new(n.b), *dq = check_new(n.qk);
    double *dk = check_new(n.qk), *dv = check_new(n.v), *dg = check_new(n.b), *dbeta = check_new(n.b);
    double *dh0 = check_new(n.S);
    memcpy(S, a.h0, (size_t)n.S * sizeof *S);
    for (int i = 0; i < 3; i++)
        seg[i] = (struct hl_seg){cu[i], cu[i + 1] - cu[i], 0, (char *)(S + i * a.HV * a.K * a.V)};
    struct hl_gdn op = {.rows = &rows, .H = 2, .HV = 4, .K = 4, .V = 3, .q = a.q, .k = a.k, .v = a.v, .g = a.g};
    op.beta = a.beta, op.out = out, op.m = m, op.dout = a.dout, op.h0 = a.h0, op.dht = a.dht;
    op.dq = dq, op.dk = dk, op.dv = dv, op.dg = dg, op.dbeta = dbeta, op.dh0 = dh0;
    hl_ops_named("cpu-ref")->gdn_forward(NULL, &op);
    hl_ops_named("cpu-ref")->gdn_backward(NULL, &op);
    CHECK_NEAR(out, a.out, a.T, a.HV * a.V, 1e-12, "references");
    CHECK_NEAR(S, a.ht, a.N, n.S / a.N, 1e-12, "references");
    CHECK_NEAR(m, a.m, a.T, a.HV, 1e-12, "references");
    CHECK_NEAR(dq, a.dq, a.T, a.H * a.K, 1e-12, "references");
    CHECK_NEAR(dk, a.dk, a.T, a.H * a.K, 1e-12, "references");
    CHECK_NEAR(dv, a.dv, a.T, a.HV * a.V, 1e-12, "references");
    CHECK_NEAR(dg, a.dg, a.T, a.HV, 1e-12, "references");
    CHECK_NEAR(dbeta, a.dbeta, a.T, a.HV, 1e-12, "references");
    CHECK_NEAR(dh0, a.dh0, a.N, n.S / a.N, 1e-12, "references");
    check_free(S, n.S), check_free(out, n.v), check_free(m, n.b), check_free(dq, n.qk), check_free(dk, n.qk);
    check_free(dv, n.v), check_free(dg, n.b), check_free(dbeta, n.b), check_free(dh0, n.S);
    close_ref(&a);
}

/* ---- the exact memory ---- */

static double cache_objective(void *ctx) {
    const struct cache_ref *a = ctx;
    double sum = 0;
    cache_ref_run(a, 0);
    for (int64_t i = 0; i < a->T * a->HV * a->V; i++) sum += a->out[i] * a->dout[i];
    return sum;
}
static void check_cache(bool gate, bool recency) {
    static const int64_t cu[] = {0, 9, 9, 10, 21};
    struct cache_ref a = {.T = 21, .N = 4, .H = 2, .HV = 4, .K = 3, .V = 2, .window = 3, .chunk = 4, .cu = cu};
    const int64_t qk = a.T * a.H * a.K, v = a.T * a.HV * a.V, b = a.T * a.HV;
    a.recency = recency, a.scale = 0.8;
    a.q = numbers(qk, -1, 1, 1), a.k = numbers(qk, -1, 1, 2), a.v = numbers(v, -1, 1, 3), a.dout = numbers(v, -1, 1, 4);
    a.score = numbers(b, 0, 1, 5), a.sink = numbers(a.HV, -1, 1, 6), a.tau = numbers(a.HV, 0.5, 3, 7);
    double *gates = numbers(a.HV, -1, 1, 8);
    a.gate = gate ? gates : NULL;
    a.out = check_new(v), a.dq = check_new(qk), a.dk = check_new(qk), a.dv = check_new(v);
    a.dsink = check_new(a.HV), a.dtau = check_new(a.HV), a.dgate = check_new(a.HV);
    cache_ref_run(&a, 1);
    CHECK_GRADIENT(cache_objective, &a, a.q, a.dq, qk, 1e-6);
    CHECK_GRADIENT(cache_objective, &a, a.k, a.dk, qk, 1e-6);
    CHECK_GRADIENT(cache_objective, &a, a.v, a.dv, v, 1e-6);
    CHECK_GRADIENT(cache_objective, &a, a.sink, a.dsink, a.HV, 1e-6);
    CHECK_GRADIENT(cache_objective, &a, a.tau, a.dtau, a.HV, 1e-6);
    if (gate) CHECK_GRADIENT(cache_objective, &a, a.gate, a.dgate, a.HV, 1e-6);
    a.dsink[0] += 0.01; /* the comparison must see a small mistake */
    assert_true(check_gradient(cache_objective, &a, a.sink, a.dsink, a.HV, 1e-5) > 1e-6);
    check_free(a.q, qk), check_free(a.k, qk), check_free(a.v, v), check_free(a.dout, v), check_free(a.score, b);
    check_free(a.sink, a.HV), check_free(a.tau, a.HV), check_free(gates, a.HV), check_free(a.out, v);
    check_free(a.dq, qk), check_free(a.dk, qk), check_free(a.dv, v), check_free(a.dsink, a.HV);
    check_free(a.dtau, a.HV), check_free(a.dgate, a.HV);
}
static void cache_reference_is_the_derivative(void **state) {
    (void)state;
    check_cache(true, false);
    check_cache(false, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_the_derivative),
        cmocka_unit_test(references_agree),
        cmocka_unit_test(cache_reference_is_the_derivative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
