/* test_head.c -- cross-entropy, embedding, AdamW and sum of squares: every fast backend against the
 * reference, the same bits for any number of threads, and the accuracy of the vector exponential. */
#include "check.h"
#include "backend/backend.h"
#include "ops/simd.h"

/* ---- cross-entropy ---- */

struct head {
    int64_t M, D, V;
    real *x, *W, *logits, *dx, *dW;
    double *nll;
    int32_t *target, *correct;
    void *panels;
};

static void head_new(struct head *h, int64_t M, int64_t D, int64_t V, double range) {
    int64_t rows = M < HL_XENT_ROWS ? M : HL_XENT_ROWS;
    *h = (struct head){.M = M, .D = D, .V = V};
    h->x = check_random(M * D, -range, range, 1);
    h->W = check_random(V * D, -1, 1, 2);
    h->logits = check_new(rows * V);
    h->dx = check_new(M * D);
    h->dW = check_random(V * D, -1, 1, 3);
    h->nll = malloc((size_t)M * sizeof *h->nll);
    h->target = malloc((size_t)M * sizeof *h->target);
    h->correct = malloc((size_t)M * sizeof *h->correct);
    h->panels = malloc((size_t)hl_panel_bytes(V, D, HOLA_BF16));
    assert_true(h->nll && h->target && h->correct && h->panels);
    hl_panel_pack(h->panels, HOLA_BF16, h->W, V, D);
    for (int64_t t = 0; t < M; t++) h->target[t] = t % 7 == 5 ? -100 : (int32_t)(t * 31 % V);
}
static void head_free(struct head *h) {
    int64_t rows = h->M < HL_XENT_ROWS ? h->M : HL_XENT_ROWS;
    check_free(h->x, h->M * h->D);
    check_free(h->W, h->V * h->D);
    check_free(h->logits, rows * h->V);
    check_free(h->dx, h->M * h->D);
    check_free(h->dW, h->V * h->D);
    free(h->nll);
    free(h->target);
    free(h->correct);
    free(h->panels);
}
static void head_run(const struct hl_ops *ops, struct hl_backend *pool, struct head *h, bool gradient, bool panels) {
    struct hl_xent a = {.M = h->M, .D = h->D, .x = h->x, .target = h->target, .nll = h->nll, .logits = h->logits};
    a.correct = h->correct;
    a.W = (struct hl_weight){.data = h->W, .layout = HL_ROWS, .rows = h->V, .cols = h->D};
    if (panels) {
        a.W.data = h->panels;
        a.W.layout = HL_PANELS;
        a.W.dtype = HOLA_BF16;
    }
    a.scale = (real)0.3;
    if (gradient) {
        a.dx = h->dx;
        a.dW = h->dW;
    }
    ops->xent(pool, &a);
}
/* worst error of nll, relative to itself or, where it is small, to 1 */
static double nll_error(const struct head *a, const struct head *b) {
    double worst = 0;
    for (int64_t t = 0; t < a->M; t++) {
        double e = fabs(a->nll[t] - b->nll[t]) / fmax(1, fabs(b->nll[t]));
        if (!(e <= worst)) worst = e == e ? e : 1e30;
    }
    return worst;
}

static void compare_heads(struct hl_backend *pool, const struct hl_ops *ops, const int64_t d[3], double range) {
    double allowed = d[1] == 1 && range <= 1 ? 2e-7 : 3e-6; /* the former: logits of one rounding */
    struct head want, got;
    head_new(&want, d[0], d[1], d[2], range);
    head_new(&got, d[0], d[1], d[2], range);
    for (int panels = 1; panels >= 0; panels--) {
        bool gradient = !panels;
        head_run(hl_ops_named("cpu-ref"), pool, &want, gradient, panels);
        head_run(ops, pool, &got, gradient, panels);
        if (!(nll_error(&got, &want) <= allowed)) fail_msg("%s: nll is %.3g off", ops->name, nll_error(&got, &want));
    }
    CHECK_NEAR(got.dx, want.dx, d[0], d[1], 1e-5, "%s dx M %d", ops->name, (int)d[0]);
    CHECK_NEAR(got.dW, want.dW, d[2], d[1], 1e-5, "%s dW M %d", ops->name, (int)d[0]);
    if (d[2] > 1) { /* another target for one row must show everywhere */
        got.target[0] = (int32_t)((got.target[0] + 1) % d[2]);
        check_fill(got.dW, d[2] * d[1], -1, 1, 3);
        head_run(ops, pool, &got, true, false);
        assert_true(nll_error(&got, &want) > 1e-4);
        CHECK_FAR(got.dx, want.dx, d[0], d[1], 1e-3);
        CHECK_FAR(got.dW, want.dW, d[2], d[1], 1e-3);
    }
    head_free(&want);
    head_free(&got);
}

static void test_xent(void **state) {
    static const int64_t dims[][3] = {{1, 16, 61},    {3, 5, 1},      {40, 100, 7},
                                      {33, 64, 1000}, {600, 24, 333}, {9, 1, 32000}};
    struct hl_backend *pool = check_backend_open(2, hl_linear_scratch());
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        for (size_t i = 0; ops && i < sizeof dims / sizeof *dims; i++) compare_heads(pool, ops, dims[i], 1);
        if (ops) compare_heads(pool, ops, (const int64_t[]){20, 1, 500}, 300); /* logits up to 300 */
    }
    hl_backend_close(pool);
}

static void test_xent_threads(void **state) {
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        struct head one, two;
        if (!ops) continue;
        head_new(&one, 70, 48, 500, 1);
        head_new(&two, 70, 48, 500, 1);
        for (int threads = 1; threads <= 3; threads += 2) {
            struct hl_backend *pool = check_backend_open(threads, hl_linear_scratch());
            head_run(ops, pool, threads == 1 ? &one : &two, true, false);
            hl_backend_close(pool);
        }
        assert_memory_equal(one.nll, two.nll, 70 * sizeof *one.nll);
        assert_memory_equal(one.dx, two.dx, 70 * 48 * sizeof(real));
        assert_memory_equal(one.dW, two.dW, 500 * 48 * sizeof(real));
        head_free(&one);
        head_free(&two);
    }
}

/* A few rows, whose logits are all there, and the same among many, of which blocks are: the same bits. */
static void test_xent_company(void **state) {
    static const hola_dtype types[] = {HOLA_BF16, HOLA_INT8};
    enum { M = 600, D = 40, V = 1500, FEW = 7, FIRST = 113 };
    struct hl_backend *pool = check_backend_open(2, hl_linear_scratch());
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        struct head h;
        double few[FEW];
        if (!ops) continue;
        head_new(&h, M, D, V, 1);
        for (int i = 0; i < 2; i++) {
            struct hl_weight W = {.data = h.panels, .layout = HL_PANELS, .rows = V, .cols = D, .dtype = types[i]};
            struct hl_xent a = {.M = FEW, .D = D, .x = h.x + FIRST * D, .W = W, .nll = few, .logits = h.logits};
            assert_true(hl_panel_bytes(V, D, types[i]) <= hl_panel_bytes(V, D, HOLA_BF16));
            hl_panel_pack(h.panels, types[i], h.W, V, D);
            a.target = h.target + FIRST;
            ops->xent(pool, &a);
            a.M = M, a.x = h.x, a.target = h.target, a.nll = h.nll;
            ops->xent(pool, &a);
            assert_memory_equal(few, h.nll + FIRST, sizeof few);
            assert_true(few[0] > 1 && few[0] != h.nll[FIRST + 1]);
        }
        head_free(&h);
    }
    hl_backend_close(pool);
}

/* Logits are small integers, so that equals are many: the target is correct where it is the first of the
 * largest, and nowhere else. */
static void test_correct(void **state) {
    enum { V = 1000, M = 600 };
    struct hl_backend *pool = check_backend_open(2, hl_linear_scratch());
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        struct head h;
        if (!ops) continue;
        head_new(&h, M, 1, V, 1);
        for (int64_t v = 0; v < V; v++) h.W[v] = (real)(v * 7919 % 5);
        h.W[3] = h.W[501] = h.W[999] = 9;
        for (int64_t t = 0; t < M; t++) h.x[t] = 1, h.target[t] = (int32_t)(t % 8 == 1 ? 3 : t % 8 == 2 ? 501 : t);
        h.target[0] = 999, h.target[7] = -1;
        head_run(ops, pool, &h, false, false);
        for (int64_t t = 0; t < M; t++)
            if (h.correct[t] != (h.target[t] == 3)) fail_msg("%s: row %d", ops->name, (int)t);
        h.W[2] = 9; /* an equal before it */
        head_run(ops, pool, &h, false, false);
        for (int64_t t = 0; t < M; t++) assert_int_equal(h.correct[t], h.target[t] == 2);
        head_free(&h);
    }
    hl_backend_close(pool);
}

/* Two classes with logits 0 and z (x = 1, W = logits): the second gradient is exp(z) / (1 + exp(z)), down to
 * the smallest exponentials; huge logits neither overflow nor lose the loss. */
static void test_exp_through_xent(void **state) {
    enum { N = 3000 };
    struct hl_backend *pool = check_backend_open(1, hl_linear_scratch());
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        double worst = 0;
        if (!ops) continue;
        for (int i = 0; i < N; i++) {
            real x = 1, W[2] = {0, (real)(-90 + 0.06 * i)}, logits[2], dx, dW[2] = {0};
            int32_t target = 0;
            double nll, z = (double)W[1], p = 1 / (1 + exp(-z));
            struct hl_xent a = {.M = 1, .D = 1, .x = &x, .target = &target, .nll = &nll, .logits = logits, .scale = 1};
            a.W = (struct hl_weight){.data = W, .layout = HL_ROWS, .rows = 2, .cols = 1};
            a.dx = &dx;
            a.dW = dW;
            ops->xent(pool, &a);
            assert_true(fabs(nll - log1p(exp(z))) <= 1e-6 * fmax(1, nll));
            if (z < -87.3) assert_true(dW[1] >= 0 && (double)dW[1] < 1.3e-38);
            else worst = fmax(worst, fabs((double)dW[1] / p - 1));
        }
        if (!(worst < 4e-7)) fail_msg("%s: exponential off by %.3g", ops->name, worst);
    }
    hl_backend_close(pool);
}

static void test_v_exp(void **state) {
    double worst = 0;
    (void)state;
    for (int i = 0; i < 179000; i++) {
        real x = (real)(-90 + 1e-3 * i);
        double y = (double)v_exp(v_set(x))[0], e = exp((double)x);
        if (x < -87.3f) assert_true(y == 0);
        else if (x > 88.3f) assert_true(isinf(y));
        else worst = fmax(worst, fabs(y / e - 1));
    }
    assert_true(worst < 2e-7);
    assert_true(isnan(v_exp(v_set((real)NAN))[0]));
    assert_true(v_exp(v_set(0))[0] == 1);
}

/* ---- embedding ---- */

enum { ROWS = 77, TOKENS = 400 };

static void embed_ids(int32_t *ids) {
    for (int t = 0; t < TOKENS; t++) ids[t] = t % 3 ? t * 29 % ROWS : 5;
}
static void compare_embed(const struct hl_ops *ops, int64_t D) {
    real *E = check_random(ROWS * D, -1, 1, 1), *dout = check_random(TOKENS * D, -1, 1, 2);
    real *want = check_new(TOKENS * D), *got = check_new(TOKENS * D);
    real *dwant = check_random(ROWS * D, -1, 1, 3), *dgot = check_random(ROWS * D, -1, 1, 3);
    struct hl_backend *pool = check_backend_open(3, 64);
    int32_t ids[TOKENS];
    struct hl_embed a = {.T = TOKENS, .D = D, .ids = ids, .dout = dout};
    embed_ids(ids);
    for (int kind = 0; kind <= HOLA_DTYPE_COUNT; kind++) {
        void *panels = NULL;
        a.E = (struct hl_weight){.data = E, .layout = HL_ROWS, .rows = ROWS, .cols = D};
        if (kind > 0) {
            a.E.layout = HL_PANELS;
            a.E.dtype = (hola_dtype)(kind - 1);
            a.E.data = panels = malloc((size_t)hl_panel_bytes(ROWS, D, a.E.dtype));
            assert_non_null(panels);
            hl_panel_pack(panels, a.E.dtype, E, ROWS, D);
        }
        a.out = want;
        hl_ops_named("cpu-ref")->embed_forward(pool, &a);
        a.out = got;
        ops->embed_forward(pool, &a);
        assert_memory_equal(got, want, (size_t)(TOKENS * D) * sizeof(real));
        const double most = kind == 1 + HOLA_INT4 ? 0.2 : kind == 1 + HOLA_INT8 ? 0.0045 : 0.004;
        for (int64_t j = 0; j < D; j++) assert_true(fabs((double)(got[j] - E[5 * D + j])) < most);
        free(panels);
    }
    a.dE = dwant;
    hl_ops_named("cpu-ref")->embed_backward(pool, &a);
    a.dE = dgot;
    ops->embed_backward(pool, &a);
    assert_memory_equal(dgot, dwant, (size_t)(ROWS * D) * sizeof(real)); /* the same order: the same bits */
    ids[7] = 0;
    check_fill(dgot, ROWS * D, -1, 1, 3);
    ops->embed_backward(pool, &a);
    CHECK_FAR(dgot, dwant, ROWS, D, 1e-3);
    hl_backend_close(pool);
    check_free(E, ROWS * D);
    check_free(dout, TOKENS * D);
    check_free(want, TOKENS * D);
    check_free(got, TOKENS * D);
    check_free(dwant, ROWS * D);
    check_free(dgot, ROWS * D);
}
static void test_embed(void **state) {
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        if (!ops) continue;
        compare_embed(ops, 1);
        compare_embed(ops, 100);
        compare_embed(ops, 256);
    }
}

/* ---- AdamW, sum of squares ---- */

struct state {
    real *p, *m, *v;
};
static struct state state_new(int64_t n) {
    return (struct state){check_random(n, -1, 1, 1), check_random(n, -0.1, 0.1, 2), check_random(n, 0, 0.01, 3)};
}
static void state_free(struct state *s, int64_t n) {
    check_free(s->p, n);
    check_free(s->m, n);
    check_free(s->v, n);
}
static void step(const struct hl_ops *ops, struct hl_backend *pool, struct state *s, const real *grad, int64_t n,
                 double bias1) {
    struct hl_adamw a = {.n = n, .p = s->p, .m = s->m, .v = s->v, .grad = grad, .lr = 4e-4, .beta1 = 0.9};
    a.beta2 = 0.95;
    a.eps = 1e-8;
    a.weight_decay = 0.01;
    a.bias1 = bias1;
    a.bias2 = 1 - 0.95 * 0.95;
    a.grad_scale = 0.5;
    ops->adamw(pool, &a);
}
/* what changed in p, so that p itself does not hide it */
static void subtract(real *p, const real *q, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = (real)((double)p[i] - (double)q[i]);
}

static void compare_adamw(const struct hl_ops *ops, int64_t n) {
    struct hl_backend *pool = check_backend_open(2, 64);
    struct state want = state_new(n), got = state_new(n), wrong = state_new(n), old = state_new(n);
    real *grad = check_random(n, -0.1, 0.1, 4);
    step(hl_ops_named("cpu-ref"), pool, &want, grad, n, 1 - 0.9 * 0.9);
    step(ops, pool, &got, grad, n, 1 - 0.9 * 0.9);
    step(ops, pool, &wrong, grad, n, 1);
    CHECK_NEAR(got.p, want.p, 1, n, 1e-7, "%s p", ops->name);
    subtract(want.p, old.p, n);
    subtract(got.p, old.p, n);
    subtract(wrong.p, old.p, n);
    CHECK_NEAR(got.p, want.p, 1, n, 3e-4, "%s change of p", ops->name); /* p = 1 rounds it so */
    CHECK_NEAR(got.m, want.m, 1, n, 2e-7, "%s m", ops->name);
    CHECK_NEAR(got.v, want.v, 1, n, 2e-7, "%s v", ops->name);
    CHECK_FAR(wrong.p, want.p, 1, n, 0.1);
    hl_backend_close(pool);
    state_free(&want, n);
    state_free(&got, n);
    state_free(&wrong, n);
    state_free(&old, n);
    check_free(grad, n);
}
static void test_adamw(void **state) {
    static const int64_t sizes[] = {1, 5, 16391, 100003};
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        for (int i = 0; ops && i < 4; i++) compare_adamw(ops, sizes[i]);
    }
}

static void test_sumsq(void **state) {
    static const int64_t sizes[] = {0, 1, 31, 33, 16384, 100003};
    real *x = check_random(100003, -1, 1, 1);
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        for (int i = 0; ops && i < 6; i++) {
            double want, got[3];
            struct hl_sumsq a = {.n = sizes[i], .x = x, .out = &want};
            hl_ops_named("cpu-ref")->sumsq(NULL, &a);
            for (int threads = 1; threads <= 3; threads++) {
                struct hl_backend *pool = check_backend_open(threads, 64);
                a.out = &got[threads - 1];
                ops->sumsq(pool, &a);
                hl_backend_close(pool);
            }
            assert_true(fabs(got[0] - want) <= 1e-13 * want);
            assert_true(got[0] == got[1] && got[0] == got[2]);
            if (sizes[i] > 1) { /* a lost last number shows */
                assert_true(fabs(got[0] - (double)x[sizes[i] - 1] * (double)x[sizes[i] - 1] - want) > 1e-13 * want);
            }
        }
    }
    check_free(x, 100003);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xent),
        cmocka_unit_test(test_xent_threads),
        cmocka_unit_test(test_xent_company),
        cmocka_unit_test(test_correct),
        cmocka_unit_test(test_exp_through_xent),
        cmocka_unit_test(test_v_exp),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_sumsq),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
