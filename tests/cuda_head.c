/* cuda_head.c -- embedding, cross-entropy, AdamW and the sum of squares on a CUDA device against the
 * reference, the same bits twice, wrong versions that must be caught, and, on a real device, their speed. */
#include "cuda_speed.h"

static const struct hl_ops *ref;
static int setup(void **state) {
    (void)state;
    ref = hl_ops_named("cpu-ref");
    return ref == NULL;
}

/* ---- embedding ---- */

/* skew: most positions hold one token */
static void embed_case(const struct dev *d, int64_t T, int64_t D, int64_t rows, bool skew) {
    real *E = check_random(rows * D, -1, 1, 1), *dout = check_random(T * D, -1, 1, 2);
    real *dE = check_random(rows * D, -1, 1, 3), *out = check_new(T * D), *want = check_new(T * D);
    real *got = check_new(rows * D), *again = check_new(rows * D);
    int32_t *ids = malloc((size_t)T * sizeof *ids + 1);
    uint64_t seed = 4;
    for (int64_t t = 0; t < T; t++) {
        const bool common = skew && check_uniform(&seed, 0, 1) < 0.8;
        ids[t] = common ? (int32_t)(rows / 2) : (int32_t)check_uniform(&seed, 0, (double)rows);
    }
    dev_round(d, E, rows * D), dev_round(d, dout, T * D);
    struct hl_embed a = {.T = T, .D = D, .ids = ids, .out = want, .dout = dout};
    a.E = (struct hl_weight){.data = E, .layout = HL_ROWS, .dtype = HOLA_F32, .rows = rows, .cols = D};
    struct hl_embed b = a;
    b.ids = dev_put(d, ids, T * 4), b.E.data = dev_act(d, E, rows * D), b.dout = dev_act(d, dout, T * D);
    for (int i = 0; i < 2; i++) {
        b.out = dev_act(d, NULL, T * D), b.dE = dev_real(d, dE, rows * D);
        d->ops->embed_forward(d->backend, &b);
        d->ops->embed_backward(d->backend, &b);
        dev_act_take(d, b.out, out, T * D);
        dev_real_take(d, b.dE, i ? again : got, rows * D);
    }
    a.dE = dE;
    ref->embed_forward(d->backend, &a);
    ref->embed_backward(d->backend, &a);
    assert_memory_equal(out, want, (size_t)(T * D) * sizeof(real));
    assert_memory_equal(got, again, (size_t)(rows * D) * sizeof(real));
    CHECK_NEAR(got, dE, rows, D, 1e-5, "embed %d x %d of %d", (int)T, (int)D, (int)rows);
    dev_drop(d, b.ids), dev_drop(d, b.E.data), dev_drop(d, b.dout);
    check_free(E, rows * D), check_free(dout, T * D), check_free(dE, rows * D), check_free(out, T * D);
    check_free(want, T * D), check_free(got, rows * D), check_free(again, rows * D);
    free(ids);
}
static void test_embed(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        embed_case(&d, 1, 16, 61, false), embed_case(&d, 300, 24, 61, false), embed_case(&d, 700, 17, 258, true);
        embed_case(&d, 200, 264, 3000, true), embed_case(&d, 65, 8, 1, false), embed_case(&d, 0, 8, 5, false);
        if (!dev_slow(&d)) embed_case(&d, 30000, 512, 2000, true), embed_case(&d, 8192, 1024, 32000, false);
        dev_close(&d);
    }
}

/* ---- cross-entropy ---- */

struct loss {
    int64_t M, D, V;
    real *x, *W, *dx, *dW;
    double *nll;
    int32_t *target, *correct;
};
static struct loss loss_new(const struct dev *d, int64_t M, int64_t D, int64_t V) {
    struct loss l = {.M = M, .D = D, .V = V};
    uint64_t seed = 9;
    l.x = check_random(M * D, -1, 1, 5), l.W = check_random(V * D, -4 / sqrt((double)D), 4 / sqrt((double)D), 6);
    l.dx = check_new(M * D), l.dW = check_random(V * D, -0.01, 0.01, 7);
    l.nll = malloc((size_t)M * sizeof *l.nll), l.target = malloc((size_t)M * sizeof *l.target);
    l.correct = malloc((size_t)M * sizeof *l.correct);
    for (int64_t i = 0; i < M; i++)
        l.target[i] = i % 7 == 3 ? -1 : (int32_t)check_uniform(&seed, 0, (double)V), l.nll[i] = NAN;
    dev_round(d, l.x, M * D), dev_round(d, l.W, V * D);
    return l;
}
static void loss_free(struct loss *l) {
    check_free(l->x, l->M * l->D), check_free(l->W, l->V * l->D);
    check_free(l->dx, l->M * l->D), check_free(l->dW, l->V * l->D);
    free(l->nll);
    free(l->target);
    free(l->correct);
}
static void loss_run(const struct dev *d, struct loss *l, bool backward) {
    const int64_t rows = l->M < d->backend->xent_rows ? l->M : d->backend->xent_rows;
    struct hl_xent a = {.M = l->M, .D = l->D, .scale = (real)0.125};
    a.W = (struct hl_weight){.data = dev_act(d, l->W, l->V * l->D), .layout = HL_ROWS, .rows = l->V, .cols = l->D};
    a.x = dev_act(d, l->x, l->M * l->D), a.target = dev_put(d, l->target, l->M * 4);
    a.nll = dev_put(d, l->nll, l->M * 8), a.logits = dev_act(d, NULL, rows * l->V);
    a.correct = dev_put(d, l->correct, l->M * 4);
    a.dx = backward ? dev_act(d, NULL, l->M * l->D) : NULL, a.dW = dev_real(d, l->dW, l->V * l->D);
    d->ops->xent(d->backend, &a);
    hl_get(d->backend, l->nll, a.nll, l->M * 8);
    hl_get(d->backend, l->correct, a.correct, l->M * 4);
    if (backward) dev_act_take(d, a.dx, l->dx, l->M * l->D);
    dev_real_take(d, a.dW, l->dW, l->V * l->D);
    dev_drop(d, a.W.data), dev_drop(d, a.x), dev_drop(d, a.target), dev_drop(d, a.nll), dev_drop(d, a.logits);
    dev_drop(d, a.correct);
}
static void loss_ref(const struct dev *d, struct loss *l) {
    struct hl_xent a = {.M = l->M, .D = l->D, .x = l->x, .target = l->target, .nll = l->nll, .scale = (real)0.125};
    a.W = (struct hl_weight){.data = l->W, .layout = HL_ROWS, .dtype = HOLA_F32, .rows = l->V, .cols = l->D};
    a.dx = l->dx, a.dW = l->dW;
    ref->xent(d->backend, &a);
}
/* the means of the losses apart, and the worst single ones */
static void losses_near(const struct loss *got, const struct loss *want, double tol) {
    double mean = 0, all = 0;
    for (int64_t i = 0; i < got->M; i++) {
        if (want->target[i] < 0) assert_true(got->nll[i] == 0);
        mean += got->nll[i] - want->nll[i], all += want->nll[i];
        if (!(fabs(got->nll[i] - want->nll[i]) <= tol * 10))
            fail_msg("loss %d of %d is %g, not %g", (int)i, (int)got->M, got->nll[i], want->nll[i]);
    }
    if (!(fabs(mean) <= tol * all + 1e-9)) fail_msg("the mean loss is off by %g of %g", mean, all);
}
static void xent_case(const struct dev *d, int64_t M, int64_t D, int64_t V) {
    struct loss want = loss_new(d, M, D, V), got = loss_new(d, M, D, V), again = loss_new(d, M, D, V);
    const double tol = d->f32 ? 2e-5 : 8e-3; /* of bf16 logits, some 2^-9 of their size */
    loss_run(d, &got, true);
    loss_run(d, &again, true);
    assert_memory_equal(got.dx, again.dx, (size_t)(M * D) * sizeof(real));
    assert_memory_equal(got.dW, again.dW, (size_t)(V * D) * sizeof(real));
    loss_run(d, &again, false);
    assert_memory_equal(got.nll, again.nll, (size_t)M * sizeof(double));
    loss_ref(d, &want);
    losses_near(&got, &want, d->f32 ? 1e-6 : 3e-3);
    CHECK_NEAR(got.dx, want.dx, M, D, tol, "xent %d x %d of %d", (int)M, (int)D, (int)V);
    CHECK_NEAR(got.dW, want.dW, V, D, tol, "xent %d x %d of %d", (int)M, (int)D, (int)V);
    for (int64_t i = 0; i < M; i++) want.target[i] = (want.target[i] + 1) % (int32_t)V; /* and others count */
    for (int64_t i = 0; i < V * D; i++) want.dW[i] = 0;
    loss_ref(d, &want);
    CHECK_FAR(got.dx, want.dx, M, D, tol);
    loss_free(&want), loss_free(&got), loss_free(&again);
}
/* Logits that are small integers: the target is correct where it is the first of the largest. */
static void correct_case(const struct dev *d, int64_t V) {
    struct loss l = loss_new(d, 40, 8, V);
    for (int64_t v = 0; v < V * 8; v++) l.W[v] = (real)(v % 8 == 0 ? v / 8 * 7919 % 5 : 0);
    for (int64_t i = 0; i < 40 * 8; i++) l.x[i] = 1;
    l.W[3 * 8] = l.W[(V / 2) * 8] = l.W[(V - 1) * 8] = 9;
    for (int64_t i = 0; i < 40; i++)
        l.target[i] = (int32_t)(i % 4 == 1 ? 3 : i % 4 == 2 ? V / 2 : i % 4 == 3 ? V - 1 : i);
    l.target[5] = -1;
    for (int backward = 0; backward < 2; backward++) {
        for (int64_t i = 0; i < 40; i++) l.correct[i] = 7;
        loss_run(d, &l, backward);
        for (int64_t i = 0; i < 40; i++) assert_int_equal(l.correct[i], l.target[i] == 3);
    }
    loss_free(&l);
}
static void test_xent(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        xent_case(&d, 1, 16, 61), xent_case(&d, 33, 24, 258), xent_case(&d, 20, 16, 512), xent_case(&d, 70, 32, 64);
        xent_case(&d, 3, 8, 16000), xent_case(&d, 2, 8, 32000), xent_case(&d, 2, 8, 50304), xent_case(&d, 2, 4, 16387);
        xent_case(&d, 2, 8, 70000);
        correct_case(&d, 61), correct_case(&d, 16000);
        if (!dev_slow(&d)) xent_case(&d, 8192 + 100, 16, 64), xent_case(&d, 10, 64, 32000);
        dev_close(&d);
    }
}

/* ---- AdamW and the norm ---- */

static void adamw_case(const struct dev *d, int64_t n, bool half) {
    real *p = check_random(n, -1, 1, 1), *m = check_random(n, -0.1, 0.1, 2), *v = check_random(n, 0, 0.01, 3);
    real *g = check_random(n, -3, 3, 4), *gp = check_new(n), *gm = check_new(n), *gv = check_new(n), *gh = check_new(n);
    struct hl_adamw a = {.n = n, .p = p, .m = m, .v = v, .grad = g, .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95};
    a.eps = 1e-8, a.weight_decay = 0.1, a.bias1 = 1 - 0.9 * 0.9, a.bias2 = 1 - 0.95 * 0.95, a.grad_scale = 0.37;
    struct hl_adamw b = a;
    b.p = dev_real(d, p, n), b.m = dev_real(d, m, n), b.v = dev_real(d, v, n), b.grad = dev_real(d, g, n);
    b.half = half ? dev_act(d, NULL, n) : NULL;
    d->ops->adamw(d->backend, &b);
    dev_real_take(d, b.p, gp, n), dev_real_take(d, b.m, gm, n), dev_real_take(d, b.v, gv, n);
    if (half) dev_act_take(d, b.half, gh, n);
    CHECK_FAR(gp, p, 1, n, 1e-3); /* the old ones */
    ref->adamw(d->backend, &a);
    CHECK_NEAR(gp, p, 1, n, 1e-6, "adamw %d", (int)n);
    CHECK_NEAR(gm, m, 1, n, 1e-6, "adamw %d", (int)n);
    CHECK_NEAR(gv, v, 1, n, 1e-6, "adamw %d", (int)n);
    dev_round(d, gp, n);
    if (half) assert_memory_equal(gh, gp, (size_t)n * sizeof(real));
    double want, got = NAN, again = NAN;
    struct hl_sumsq s = {.n = n, .x = g, .out = &want};
    ref->sumsq(d->backend, &s);
    s.x = b.grad, s.out = &got;
    d->ops->sumsq(d->backend, &s);
    s.out = &again;
    d->ops->sumsq(d->backend, &s);
    assert_true(got == again && fabs(got - want) <= 1e-12 * want);
    dev_drop(d, b.grad);
    check_free(p, n), check_free(m, n), check_free(v, n), check_free(g, n);
    check_free(gp, n), check_free(gm, n), check_free(gv, n), check_free(gh, n);
}
static void test_adamw(void **state) {
    static const int64_t ns[] = {1, 3, 4, 17, 1024, 1027, 40003};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        double zero = 1;
        struct hl_sumsq none = {.n = 0, .out = &zero};
        for (int i = 0; i < 7; i++) adamw_case(&d, ns[i], i != 2);
        if (!dev_slow(&d)) adamw_case(&d, 3000005, true);
        d.ops->sumsq(d.backend, &none);
        assert_true(zero == 0);
        dev_close(&d);
    }
}

/* ---- speed ---- */

static void time_xent(const struct dev *d) {
    enum { M = 65536, D = 1024, V = 32000, ROWS = 8192 };
    int32_t *ids = malloc(M * sizeof *ids);
    uint64_t seed = 1;
    for (int i = 0; i < M; i++) ids[i] = (int32_t)(V * pow(check_uniform(&seed, 0, 1), 4));
    void *W = noise(d, (int64_t)V * D, false), *x = noise(d, (int64_t)M * D, false),
         *out = noise(d, (int64_t)M * D, false);
    void *target = dev_put(d, ids, M * 4);
    struct hl_weight weight = {.data = W, .layout = HL_ROWS, .rows = V, .cols = D};
    struct hl_xent a = {.M = M, .D = D, .W = weight, .x = x, .target = target, .scale = (real)(1.0 / M), .dx = out};
    a.nll = noise(d, 2 * M, true), a.logits = noise(d, (int64_t)ROWS * V, false), a.dW = noise(d, (int64_t)V * D, true);
    TIME(d, "xent 65536 x 1024 x 32000", 6.0 * M * D * V, d->ops->xent(d->backend, &a)); /* operations, not bytes */
    a.dx = NULL;
    TIME(d, "xent, the loss alone", 2.0 * M * D * V, d->ops->xent(d->backend, &a));
    struct hl_embed e = {.T = M, .D = D, .ids = target, .E = weight, .out = out, .dout = x, .dE = a.dW};
    TIME(d, "embed fwd 1024", 4.0 * M * D, d->ops->embed_forward(d->backend, &e));
    TIME(d, "embed bwd 1024", 4.0 * M * D, d->ops->embed_backward(d->backend, &e));
    dev_drop(d, W), dev_drop(d, x), dev_drop(d, out), dev_drop(d, target);
    dev_drop(d, a.nll), dev_drop(d, a.logits), dev_drop(d, a.dW);
    free(ids);
}
static void test_speed(void **state) {
    enum { N = 340000000 };
    struct dev d = dev_open(false);
    (void)state;
    if (!dev_slow(&d)) {
        double sum;
        time_xent(&d);
        struct hl_adamw a = {.n = N, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
        a.bias1 = 0.1, a.bias2 = 0.05, a.grad_scale = 1;
        a.p = noise(&d, N, true), a.m = noise(&d, N, true), a.v = noise(&d, N, true), a.grad = noise(&d, N, true);
        a.half = noise(&d, N, false);
        TIME(&d, "adamw 340M", 30.0 * N, d.ops->adamw(d.backend, &a));
        struct hl_sumsq s = {.n = N, .x = a.grad, .out = &sum};
        TIME(&d, "sumsq 340M", 4.0 * N, d.ops->sumsq(d.backend, &s));
        dev_drop(&d, a.p), dev_drop(&d, a.m), dev_drop(&d, a.v), dev_drop(&d, a.grad), dev_drop(&d, a.half);
    }
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_xent),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
