/* cuda_lte.c -- the learned score on a device against the reference: forward, backward, sessions, a wrong weight; and
 * how long training's sizes take. */
#include "cuda.h"
#include "lte_case.h"

static struct hl_backend *host;

static double tol_of(const struct dev *d) { return d->f32 ? 2e-5 : 4e-3; } /* bf16: of dk and dv, which are rounded */

static struct lte_batch *rounded(const struct dev *d, struct lte_batch *b) {
    dev_round(d, b->k, b->nk), dev_round(d, b->v, b->nv);
    dev_round(d, b->dk, b->nk), dev_round(d, b->dv, b->nv);
    return b;
}
/* The batch's arrays on the device; rows must still be given. */
static struct hl_lte upload(const struct dev *d, const struct lte_batch *b) {
    struct hl_lte x = b->a;
    x.k = dev_act(d, b->k, b->nk), x.v = dev_act(d, b->v, b->nv);
    const real **w[] = {&x.w_in, &x.conv1, &x.conv2, &x.bias1, &x.bias2, &x.w_out, &x.b_out};
    real **g[] = {&x.dw_in, &x.dconv1, &x.dconv2, &x.dbias1, &x.dbias2, &x.dw_out, &x.db_out};
    for (int i = 0; i < LTE_WEIGHTS; i++) {
        *w[i] = dev_real(d, b->weight[i], lte_count(b, i));
        *g[i] = dev_real(d, b->grad[i], lte_count(b, i));
    }
    x.u = dev_real(d, NULL, b->T * b->nr), x.score = dev_real(d, NULL, b->ns), x.dscore = dev_real(d, b->dscore, b->ns);
    x.dk = dev_act(d, b->dk, b->nk), x.dv = dev_act(d, b->dv, b->nv);
    return x;
}
/* Results to the host where b is given; everything is freed. */
static void take(const struct dev *d, struct hl_lte *x, struct lte_batch *b) {
    real *g[] = {x->dw_in, x->dconv1, x->dconv2, x->dbias1, x->dbias2, x->dw_out, x->db_out};
    const void *all[] = {x->k,     x->v,     x->w_in,  x->conv1, x->conv2, x->bias1,
                         x->bias2, x->w_out, x->b_out, x->u,     x->dscore};
    dev_real_take(d, x->score, b->score, b->ns);
    dev_act_take(d, x->dk, b->dk, b->nk), dev_act_take(d, x->dv, b->dv, b->nv);
    for (int i = 0; i < LTE_WEIGHTS; i++) dev_real_take(d, g[i], b->grad[i], lte_count(b, i));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) dev_drop(d, all[i]);
}

static void run(const struct dev *d, struct lte_batch *b) {
    struct hl_lte x = upload(d, b);
    struct hl_rows rows = b->rows;
    x.rows = &rows;
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, b->s.chunk));
    d->ops->lte_forward(d->backend, &x);
    d->ops->lte_backward(d->backend, &x);
    CHECK_OK(hl_finish(d->backend));
    take(d, &x, b);
}

static const struct lte_shape shapes[] = {{4, 16, 1, 1, 16, 16, 16}, {6, 7, 2, 4, 24, 40, 5},
                                          {4, 1, 1, 2, 8, 8, 3},     {4, 33, 1, 3, 10, 6, 33},
                                          {9, 40, 1, 2, 64, 64, 16}, {64, 256, 2, 2, 128, 128, 16}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void test_against_ref(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int i = 0; i < SHAPES - dev_slow(&d); i++) {
            const int64_t C = shapes[i].chunk, len[] = {2 * C + 7, 1, C - 1 + (C == 1), C, C + 1};
            struct lte_batch *got = rounded(&d, lte_new(shapes[i], len, 5, 3));
            struct lte_batch *want = rounded(&d, lte_new(shapes[i], len, 5, 3));
            lte_run(want, "cpu-ref", host, true);
            run(&d, got);
            lte_near(got, want, tol_of(&d), d.ops->name);
            /* one tap off */
            lte_clear(want), rounded(&d, want);
            want->weight[LTE_CONV1][1] += (real)0.1;
            lte_run(want, "cpu-ref", host, true);
            CHECK_FAR(got->score, want->score, got->T, shapes[i].HV, 1e-3);
            CHECK_FAR(got->grad[LTE_IN], want->grad[LTE_IN], 1, got->nw, 1e-4);
            lte_free(got), lte_free(want);
        }
        dev_close(&d);
    }
}

/* A session whose open rows are in the state, as the exact memory leaves them there. */
static void feed(const struct dev *d, const struct lte_batch *b, int64_t size) {
    const struct lte_shape *s = &b->s;
    const int64_t act = d->backend->act_size, C = s->chunk;
    const struct hl_cache_layout l = hl_cache_layout(s->K, s->V, s->window, C, act, false);
    struct hl_lte x = upload(d, b);
    char *state = hl_alloc(d->backend, s->HV * l.bytes), *there = malloc((size_t)(s->HV * l.bytes));
    real *got = check_new(b->ns);
    assert_true(state && there);
    memset(there, 0xff, (size_t)(s->HV * l.bytes));
    hl_put(d->backend, state, there, s->HV * l.bytes);
    for (int64_t t = 0; t < b->T; t += size) {
        struct hl_seg g = {.row = t, .len = size < b->T - t ? size : b->T - t, .pos = t, .state = state};
        struct hl_rows rows = {.T = b->T, .n = 1, .seg = &g};
        const int64_t end = t + g.len, last = end / C * C, open = t / C * C;
        x.rows = &rows;
        CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, C));
        d->ops->lte_forward(d->backend, &x);
        hl_get(d->backend, got, x.score, b->ns * (int64_t)sizeof *got);
        hl_get(d->backend, there, state, s->HV * l.bytes);
        CHECK_OK(hl_finish(d->backend));
        for (int64_t j = open; j < end; j++)
            for (int64_t h = 0; h < s->HV; h++) {
                const real *slots = (const real *)(const void *)(there + h * l.bytes + l.score) + s->window;
                const real y = j < t ? slots[j - open] : got[j * s->HV + h];
                const double want = j < last ? (double)b->score[j * s->HV + h] : 0;
                if (j < t && last <= t) continue; /* open before, and still */
                if (!(fabs((double)y - want) <= 2e-4 * (1 + fabs(want))))
                    fail_msg("%s: pieces of %d: row %d: %g, expected %g", d->ops->name, (int)size, (int)j, (double)y,
                             want);
            }
        for (int64_t j = last > t ? last : t; j < end; j++) /* rows that stay open */
            for (int64_t h = 0; h < s->HV; h++) {
                const int64_t slot = s->window + j % C;
                hl_copy(d->backend, state + h * l.bytes + l.k + slot * s->K * act,
                        (const char *)x.k + (j * s->H + h * s->H / s->HV) * s->K * act, s->K * act);
                hl_copy(d->backend, state + h * l.bytes + l.v + slot * s->V * act,
                        (const char *)x.v + (j * s->HV + h) * s->V * act, s->V * act);
            }
    }
    check_free(got, b->ns);
    struct lte_batch *sink = lte_new(*s, &b->T, 1, 1);
    take(d, &x, sink);
    lte_free(sink);
    hl_release(d->backend, state);
    free(there);
}
static void test_sessions(void **state) {
    static const int64_t sizes[] = {1, 3, 7, 17, 1 << 20};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int i = 0; i < SHAPES - dev_slow(&d); i++) {
            const int64_t T = 3 * shapes[i].chunk + 3;
            struct lte_batch *b = rounded(&d, lte_new(shapes[i], &T, 1, 23));
            lte_run(b, "cpu-ref", host, false);
            for (int c = 0; c < 5; c++)
                if (!dev_slow(&d) || (i + c + f) % 2 == 0) feed(&d, b, sizes[c]);
            lte_free(b);
        }
        dev_close(&d);
    }
}

static void test_speed(void **state) {
    (void)state;
    struct dev d = dev_open(false);
    for (int64_t K = 128; K <= 256 && !dev_slow(&d); K *= 2) {
        int64_t len[8];
        for (int i = 0; i < 8; i++) len[i] = 8192;
        struct lte_batch *b = lte_new((struct lte_shape){64, 256, 4, 4, K, K, 16}, len, 8, 3);
        struct hl_lte x = upload(&d, b);
        struct hl_rows rows = b->rows;
        x.rows = &rows;
        CHECK_OK(d.backend->storage.cut_rows(d.backend, &rows, 256));
        for (int back = 0; back < 2; back++) {
            void (*op)(struct hl_backend *, const struct hl_lte *) = back ? d.ops->lte_backward : d.ops->lte_forward;
            for (int i = 0; i < 3; i++) op(d.backend, &x);
            hl_cuda_timer_start(hl_cuda_of(d.backend));
            for (int i = 0; i < 20; i++) op(d.backend, &x);
            print_message("learned score, 65536 rows, 4 heads x %d, %s: %.3f ms\n", (int)K,
                          back ? "backward" : "forward", 1e3 * hl_cuda_timer_stop(hl_cuda_of(d.backend)) / 20);
        }
        take(&d, &x, b);
        lte_free(b);
    }
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_ref), cmocka_unit_test(test_sessions),
                                       cmocka_unit_test(test_speed)};
    host = check_backend_open(1, hl_lte_scratch(256, 64, 256, 256));
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hl_backend_close(host);
    return failed;
}
