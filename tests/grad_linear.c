/* grad_linear.c -- gradients of linear layers against finite differences, in double. */
#include "check.h"
#include "ops/linear/small_gemm.h"
#include "backend/backend.h"

enum { M = 19, K = 37, PARTS = 3 };
static const int64_t N[PARTS] = {33, 4, 70};

/* loss = sum of c * out, so dout = c */
struct problem {
    const struct hl_ops *ops;
    struct hl_backend *pool;
    real *x, *W[PARTS], *out[PARTS], *c[PARTS];
};

static struct hl_linear args(const struct problem *p) {
    struct hl_linear a = {.M = M, .K = K, .x = p->x, .n = PARTS};
    for (int i = 0; i < PARTS; i++) {
        a.part[i].W = (struct hl_weight){.data = p->W[i], .layout = HL_ROWS, .rows = N[i], .cols = K};
        a.part[i].out = p->out[i];
        a.part[i].dout = p->c[i];
    }
    return a;
}
static double loss(void *ctx) {
    const struct problem *p = ctx;
    struct hl_linear a = args(p);
    double s = 0;
    p->ops->linear_forward(p->pool, &a);
    for (int i = 0; i < PARTS; i++)
        for (int64_t j = 0; j < M * N[i]; j++) s += p->out[i][j] * p->c[i][j];
    return s;
}

static void check_ops(const struct hl_ops *ops) {
    struct problem p = {.ops = ops, .pool = check_backend_open(2, hl_linear_scratch())};
    real *dx = check_new(M * K), *dW[PARTS];
    struct hl_linear a;
    p.x = check_random(M * K, -1, 1, 1);
    for (int i = 0; i < PARTS; i++) {
        p.W[i] = check_random(N[i] * K, -1, 1, 10u + (unsigned)i);
        p.c[i] = check_random(M * N[i], -1, 1, 20u + (unsigned)i);
        p.out[i] = check_new(M * N[i]);
        dW[i] = check_zero(N[i] * K);
    }
    a = args(&p);
    a.dx = dx;
    for (int i = 0; i < PARTS; i++) a.part[i].dW = dW[i];
    ops->linear_backward(p.pool, &a);
    CHECK_GRADIENT(loss, &p, p.x, dx, M * K, 1e-6);
    for (int i = 0; i < PARTS; i++) CHECK_GRADIENT(loss, &p, p.W[i], dW[i], N[i] * K, 1e-6);

    /* adding twice doubles; and a gradient that lost one part is caught */
    a.dx_add = true;
    a.part[0].W.rows = N[0] - 1;
    ops->linear_backward(p.pool, &a);
    for (int64_t i = 0; i < M * K; i++) dx[i] /= 2;
    assert_true(check_gradient(loss, &p, p.x, dx, M * K, 1e-5) > 1e-3);

    hl_backend_close(p.pool);
    check_free(dx, M * K);
    check_free(p.x, M * K);
    for (int i = 0; i < PARTS; i++) {
        check_free(p.W[i], N[i] * K);
        check_free(p.c[i], M * N[i]);
        check_free(p.out[i], M * N[i]);
        check_free(dW[i], N[i] * K);
    }
}

static void test_linear(void **state) {
    (void)state;
    check_ops(hl_ops_named("cpu-ref"));
    for (int b = 0; check_backend(b); b++)
        if (hl_ops_named(check_backend(b))) check_ops(hl_ops_named(check_backend(b)));
}

/* the fast small product is the plain one to double precision, alpha and strides included */
void hl_ref_small_gemm(const struct hl_small_gemm *, real *);
void hl_base_small_gemm(const struct hl_small_gemm *, real *);
static void test_mm(void **state) {
    enum { R = 45, C = 70, D = 530 };
    real *A = check_random(R * D, -1, 1, 1), *B = check_random(C * D, -1, 1, 2);
    real *want = check_zero(R * C), *got = check_zero(R * C);
    real *scratch = aligned_alloc(64, HL_SMALL_GEMM_SCRATCH * sizeof(real));
    struct hl_small_gemm a = {
        .M = R, .N = C, .K = D, .A = A, .ai = 1, .ak = R, .B = B, .bk = 1, .bn = D, .C = want, .ldc = C};
    (void)state;
    assert_non_null(scratch);
    a.alpha = -0.25;
    a.add = true;
    hl_ref_small_gemm(&a, scratch);
    a.C = got;
    hl_base_small_gemm(&a, scratch);
    CHECK_NEAR(got, want, R, C, 1e-14, "mm");
    hl_base_small_gemm(&a, scratch);
    CHECK_FAR(got, want, R, C, 0.5);
    free(scratch);
    check_free(A, R * D);
    check_free(B, C * D);
    check_free(want, R * C);
    check_free(got, R * C);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_linear), cmocka_unit_test(test_mm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
