/* grad_head.c -- gradients of the cross-entropy and of the embedding against finite differences, in double. */
#include "check.h"
#include "backend/backend.h"

enum { M = 21, D = 24, V = 61 };

struct head {
    const struct hl_ops *ops;
    struct hl_backend *pool;
    real *x, *W, *logits;
    int32_t target[M];
    double nll[M];
};

static struct hl_xent head_args(struct head *h) {
    struct hl_xent a = {.M = M, .D = D, .x = h->x, .target = h->target, .nll = h->nll, .logits = h->logits};
    a.W = (struct hl_weight){.data = h->W, .layout = HL_ROWS, .rows = V, .cols = D};
    a.scale = 0.5;
    return a;
}
static double head_loss(void *ctx) {
    struct head *h = ctx;
    struct hl_xent a = head_args(h);
    double s = 0;
    h->ops->xent(h->pool, &a);
    for (int t = 0; t < M; t++) s += h->nll[t];
    return 0.5 * s;
}

static void check_xent(const struct hl_ops *ops) {
    struct head h = {.ops = ops, .pool = check_backend_open(2, hl_linear_scratch())};
    real *dx = check_new(M * D), *dW = check_zero(V * D);
    struct hl_xent a;
    h.x = check_random(M * D, -1, 1, 1);
    h.W = check_random(V * D, -1, 1, 2);
    h.logits = check_new(M * V);
    for (int t = 0; t < M; t++) h.target[t] = t % 5 == 3 ? -100 : t * 7 % V;
    a = head_args(&h);
    a.dx = dx;
    a.dW = dW;
    ops->xent(h.pool, &a);
    CHECK_GRADIENT(head_loss, &h, h.x, dx, M * D, 1e-6);
    CHECK_GRADIENT(head_loss, &h, h.W, dW, V * D, 1e-6);
    for (int k = 0; k < D; k++) assert_true(dx[3 * D + k] == 0); /* an ignored row */

    h.target[0] = 8; /* the gradient of other targets is caught */
    assert_true(check_gradient(head_loss, &h, h.x, dx, M * D, 1e-5) > 1e-3);

    hl_backend_close(h.pool);
    check_free(dx, M * D);
    check_free(dW, V * D);
    check_free(h.x, M * D);
    check_free(h.W, V * D);
    check_free(h.logits, M * V);
}

struct lookup {
    const struct hl_ops *ops;
    struct hl_backend *pool;
    real *E, *out, *c;
    int32_t ids[M];
};
static struct hl_embed lookup_args(struct lookup *l) {
    struct hl_embed a = {.T = M, .D = D, .ids = l->ids, .out = l->out, .dout = l->c};
    a.E = (struct hl_weight){.data = l->E, .layout = HL_ROWS, .rows = V, .cols = D};
    return a;
}
static double lookup_loss(void *ctx) {
    struct lookup *l = ctx;
    struct hl_embed a = lookup_args(l);
    double s = 0;
    l->ops->embed_forward(l->pool, &a);
    for (int i = 0; i < M * D; i++) s += l->out[i] * l->c[i];
    return s;
}
static void check_embed(const struct hl_ops *ops) {
    struct lookup l = {.ops = ops, .pool = check_backend_open(2, hl_linear_scratch())};
    real *dE = check_zero(V * D);
    struct hl_embed a;
    l.E = check_random(V * D, -1, 1, 1);
    l.c = check_random(M * D, -1, 1, 2);
    l.out = check_new(M * D);
    for (int t = 0; t < M; t++) l.ids[t] = t * t % 13; /* some come several times */
    a = lookup_args(&l);
    a.dE = dE;
    ops->embed_backward(l.pool, &a);
    CHECK_GRADIENT(lookup_loss, &l, l.E, dE, V * D, 1e-6);
    l.ids[5] = 60;
    assert_true(check_gradient(lookup_loss, &l, l.E, dE, V * D, 1e-5) > 1e-3);
    hl_backend_close(l.pool);
    check_free(dE, V * D);
    check_free(l.E, V * D);
    check_free(l.c, M * D);
    check_free(l.out, M * D);
}

static void test_gradients(void **state) {
    (void)state;
    check_xent(hl_ops_named("cpu-ref"));
    check_embed(hl_ops_named("cpu-ref"));
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        if (!ops) continue;
        check_xent(ops);
        check_embed(ops);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
