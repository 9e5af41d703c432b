/* test_linear.c -- linear layers: every fast backend against the reference, the same bits for a row in every batch
 * and for any number of threads, bf16 and f16 rounding. */
#include "check.h"
#include "ops/linear/weight.h"
#include "backend/backend.h"

enum { PARTS = 3 };

/* One linear layer of up to PARTS matrices [N + i][K], in plain rows and as panels of every dtype. */
struct layer {
    int64_t M, N, K;
    int n;
    real *x, *W[PARTS], *dout[PARTS];
    void *panels[PARTS][HOLA_DTYPE_COUNT];
};

static void layer_new(struct layer *l, int64_t M, int64_t N, int64_t K, int n) {
    *l = (struct layer){.M = M, .N = N, .K = K, .n = n};
    l->x = check_random(M * K, -1, 1, 1);
    for (int p = 0; p < n; p++) {
        l->W[p] = check_random((N + p) * K, -1, 1, 20u + (unsigned)p);
        l->dout[p] = check_random(M * (N + p), -1, 1, 30u + (unsigned)p);
        for (int d = 0; d < HOLA_DTYPE_COUNT; d++) {
            l->panels[p][d] = malloc((size_t)hl_panel_bytes(N + p, K, (hola_dtype)d));
            assert_non_null(l->panels[p][d]);
            hl_panel_pack(l->panels[p][d], (hola_dtype)d, l->W[p], N + p, K);
        }
    }
}
static void layer_free(struct layer *l) {
    check_free(l->x, l->M * l->K);
    for (int p = 0; p < l->n; p++) {
        check_free(l->W[p], (l->N + p) * l->K);
        check_free(l->dout[p], l->M * (l->N + p));
        for (int d = 0; d < HOLA_DTYPE_COUNT; d++) free(l->panels[p][d]);
    }
}

/* kind 0: plain rows; 1 + dtype: panels */
static struct hl_linear layer_args(const struct layer *l, int kind) {
    struct hl_linear a = {.M = l->M, .K = l->K, .x = l->x, .n = l->n};
    for (int p = 0; p < l->n; p++) {
        struct hl_weight W = {.data = l->W[p], .layout = HL_ROWS, .rows = l->N + p, .cols = l->K};
        if (kind > 0) {
            W.layout = HL_PANELS;
            W.dtype = (hola_dtype)(kind - 1);
            W.data = l->panels[p][kind - 1];
        }
        a.part[p].W = W;
        a.part[p].dout = l->dout[p];
    }
    return a;
}

/* out[p] on its own, added to what is there, or to the same numbers elsewhere */
enum start { FROM_NOTHING, FROM_ITSELF, FROM_ANOTHER, STARTS };
static void forward(const struct hl_ops *ops, struct hl_backend *pool, const struct layer *l, int kind,
                    enum start start, real *out[PARTS]) {
    struct hl_linear a = layer_args(l, kind);
    real *from[PARTS];
    for (int p = 0; p < l->n; p++) {
        from[p] = check_random(l->M * (l->N + p), -1, 1, 77);
        out[p] = start == FROM_ITSELF ? check_random(l->M * (l->N + p), -1, 1, 77) : check_new(l->M * (l->N + p));
        a.part[p].out = out[p];
        a.part[p].from = start == FROM_NOTHING ? NULL : start == FROM_ITSELF ? out[p] : from[p];
    }
    ops->linear_forward(pool, &a);
    for (int p = 0; p < l->n; p++) check_free(from[p], l->M * (l->N + p));
}
static void free_outputs(const struct layer *l, real *out[PARTS]) {
    for (int p = 0; p < l->n; p++) check_free(out[p], l->M * (l->N + p));
}

/* Allowed: rounding. The last window may hold one row of few numbers, some of them close to zero. */
static double allowed(int64_t width) { return width < 16 ? 1e-4 : 2e-6; }
/* ... and that of x to 16 bits, where the weights are quantised */
static double allowed_kind(int64_t width, int kind) {
    return kind > 0 && hl_is_quant((hola_dtype)(kind - 1)) ? 20 * allowed(width) : allowed(width);
}

static void compare_forward(struct hl_backend *pool, const struct layer *l, int kind, enum start start) {
    real *want[PARTS], *got[PARTS];
    forward(hl_ops_named("cpu-ref"), pool, l, kind, start, want);
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        if (!ops) continue;
        forward(ops, pool, l, kind, start, got);
        for (int p = 0; p < l->n; p++)
            CHECK_NEAR(got[p], want[p], l->M, l->N + p, allowed_kind(l->N, kind), "%s M %d N %d K %d kind %d start %d",
                       ops->name, (int)l->M, (int)l->N + p, (int)l->K, kind, (int)start);
        free_outputs(l, got);
    }
    free_outputs(l, want);
}

struct gradients {
    real *dx, *dW[PARTS];
};
static struct gradients backward(const struct hl_ops *ops, struct hl_backend *pool, const struct layer *l, bool add) {
    struct hl_linear a = layer_args(l, 0);
    struct gradients g = {0};
    a.dx = g.dx = add ? check_random(l->M * l->K, -1, 1, 78) : check_new(l->M * l->K);
    a.dx_add = add;
    for (int p = 0; p < l->n; p++) a.part[p].dW = g.dW[p] = check_random((l->N + p) * l->K, -1, 1, 79);
    ops->linear_backward(pool, &a);
    return g;
}
static void free_gradients(const struct layer *l, struct gradients *g) {
    check_free(g->dx, l->M * l->K);
    for (int p = 0; p < l->n; p++) check_free(g->dW[p], (l->N + p) * l->K);
}

static void compare_backward(struct hl_backend *pool, const struct layer *l, bool add) {
    struct gradients want = backward(hl_ops_named("cpu-ref"), pool, l, add);
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        struct gradients got;
        if (!ops) continue;
        got = backward(ops, pool, l, add);
        CHECK_NEAR(got.dx, want.dx, l->M, l->K, allowed(l->K), "%s dx M %d N %d K %d", ops->name, (int)l->M, (int)l->N,
                   (int)l->K);
        for (int p = 0; p < l->n; p++)
            CHECK_NEAR(got.dW[p], want.dW[p], l->N + p, l->K, allowed(l->K), "%s dW M %d N %d K %d", ops->name,
                       (int)l->M, (int)l->N + p, (int)l->K);
        free_gradients(l, &got);
    }
    free_gradients(l, &want);
}

static void test_shapes(void **state) {
    static const int64_t Ms[] = {1, 2, 3, 7, 13, 33, 64, 257}, Ns[] = {1, 4, 31, 32, 33, 100, 512},
                         Ks[] = {1, 3, 16, 100, 257, 512};
    struct hl_backend *pool = check_backend_open(2, hl_linear_scratch());
    (void)state;
    for (int m = 0; m < 8; m++)
        for (int n = 0; n < 7; n++)
            for (int k = 0; k < 6; k++) {
                struct layer l;
                int64_t work = Ms[m] * Ns[n] * Ks[k], turn = m + n + k;
                if (work > 500000 && turn % 8) continue; /* the reference takes its time */
                layer_new(&l, Ms[m], Ns[n], Ks[k], 1 + (int)(turn % PARTS));
                for (int kind = 0; kind <= HOLA_DTYPE_COUNT; kind++)
                    if (work < 50000 || turn % (HOLA_DTYPE_COUNT + 1) == kind)
                        compare_forward(pool, &l, kind, (enum start)((turn + kind) % STARTS));
                compare_backward(pool, &l, turn % 2);
                layer_free(&l);
            }
    hl_backend_close(pool);
}

/* What the comparisons must not accept: the last column of K left out, a part of dx left out. */
static void test_wrong(void **state) {
    struct hl_backend *pool = check_backend_open(1, hl_linear_scratch());
    const struct hl_ops *ref = hl_ops_named("cpu-ref");
    struct layer l;
    real *want[PARTS], *got[PARTS];
    struct gradients right, wrong;
    (void)state;
    layer_new(&l, 64, 100, 257, 2);
    forward(ref, pool, &l, 0, FROM_NOTHING, want);
    right = backward(ref, pool, &l, false);

    forward(ref, pool, &l, 1 + HOLA_BF16, FROM_NOTHING, got); /* rounded weights are not the weights */
    CHECK_FAR(got[0], want[0], l.M, l.N, 1e-4);
    free_outputs(&l, got);
    for (int64_t i = 0; i < l.N; i++) l.W[0][i * l.K + l.K - 1] = 0;
    forward(ref, pool, &l, 0, FROM_NOTHING, got);
    CHECK_FAR(got[0], want[0], l.M, l.N, 1e-3);
    free_outputs(&l, got);
    memset(l.dout[1], 0, (size_t)(l.M * (l.N + 1)) * sizeof(real));
    wrong = backward(ref, pool, &l, false);
    CHECK_FAR(wrong.dx, right.dx, l.M, l.K, 1e-2);
    CHECK_FAR(wrong.dW[1], right.dW[1], l.N + 1, l.K, 1e-2);
    free_gradients(&l, &wrong);

    free_outputs(&l, want);
    free_gradients(&l, &right);
    layer_free(&l);
    hl_backend_close(pool);
}

/* Rows [m, m + count) computed alone have the bits they have among all. */
static void compare_rows(const struct hl_ops *ops, struct hl_backend *pool, const struct layer *l, int kind, int64_t m,
                         int64_t count, real *all[PARTS]) {
    struct layer few = *l;
    real *out[PARTS];
    few.M = count;
    few.x = l->x + m * l->K;
    forward(ops, pool, &few, kind, FROM_NOTHING, out);
    for (int p = 0; p < l->n; p++)
        if (memcmp(out[p], all[p] + m * (l->N + p), (size_t)(count * (l->N + p)) * sizeof(real)))
            fail_msg("%s kind %d K %d: rows %d+%d differ in a batch of %d", ops->name, kind, (int)l->K, (int)m,
                     (int)count, (int)l->M);
    free_outputs(&few, out);
}

/* Exchanges two columns of x and W: the same sums, in another order. */
static void exchange(struct layer *l, int64_t i, int64_t j) {
    for (int64_t m = 0; m < l->M; m++) {
        const real x = l->x[m * l->K + i];
        l->x[m * l->K + i] = l->x[m * l->K + j], l->x[m * l->K + j] = x;
    }
    for (int64_t n = 0; n < l->N; n++) {
        const real w = l->W[0][n * l->K + i];
        l->W[0][n * l->K + i] = l->W[0][n * l->K + j], l->W[0][n * l->K + j] = w;
    }
    for (int d = 0; d < HOLA_DTYPE_COUNT; d++) hl_panel_pack(l->panels[0][d], (hola_dtype)d, l->W[0], l->N, l->K);
}
/* A single row summed in another order does not have the same bits. */
static void check_order_matters(const struct hl_ops *ops, struct hl_backend *pool, struct layer *l, int kind,
                                real *all[PARTS]) {
    struct layer row = *l;
    real *out[PARTS];
    row.M = row.n = 1;
    exchange(l, 0, l->K - 1);
    forward(ops, pool, &row, kind, FROM_NOTHING, out);
    assert_memory_not_equal(out[0], all[0], (size_t)l->N * sizeof(real));
    free_outputs(&row, out);
    exchange(l, 0, l->K - 1);
}

static void test_rows_alone(void **state) {
    static const int64_t Ks[] = {7, 512, 1000}, Ns[] = {100, 100, 290}; /* 290: one row takes two panels at a time */
    struct hl_backend *pool = check_backend_open(2, hl_linear_scratch());
    (void)state;
    for (int b = 0; check_backend(b); b++)
        for (int k = 0; k < 3; k++) {
            const struct hl_ops *ops = hl_ops_named(check_backend(b));
            struct layer l;
            if (!ops) continue;
            layer_new(&l, 257, Ns[k], Ks[k], 2);
            for (int kind = 0; kind <= HOLA_DTYPE_COUNT; kind++) {
                real *all[PARTS];
                forward(ops, pool, &l, kind, FROM_NOTHING, all);
                for (int64_t m = 0; m < l.M; m += 37) compare_rows(ops, pool, &l, kind, m, 1, all);
                for (int64_t n = 2; n < 40; n += n < 16 ? 1 : 7) compare_rows(ops, pool, &l, kind, 3 * n, n, all);
                if (k == 2 && kind <= 1 + HOLA_F16) check_order_matters(ops, pool, &l, kind, all);
                free_outputs(&l, all);
            }
            layer_free(&l);
        }
    hl_backend_close(pool);
}

static void test_threads(void **state) {
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        struct layer l;
        real *first[PARTS], *out[PARTS];
        struct gradients first_g = {0}, g;
        if (!ops) continue;
        layer_new(&l, 300, 190, 600, 2);
        for (int threads = 1; threads <= 3; threads++) {
            struct hl_backend *pool = check_backend_open(threads, hl_linear_scratch());
            forward(ops, pool, &l, 0, FROM_ITSELF, threads == 1 ? first : out);
            g = backward(ops, pool, &l, true);
            hl_backend_close(pool);
            if (threads == 1) {
                first_g = g;
                continue;
            }
            for (int p = 0; p < l.n; p++) {
                assert_memory_equal(first[p], out[p], (size_t)(l.M * (l.N + p)) * sizeof(real));
                assert_memory_equal(first_g.dW[p], g.dW[p], (size_t)((l.N + p) * l.K) * sizeof(real));
            }
            assert_memory_equal(first_g.dx, g.dx, (size_t)(l.M * l.K) * sizeof(real));
            free_outputs(&l, out);
            free_gradients(&l, &g);
        }
        free_outputs(&l, first);
        free_gradients(&l, &first_g);
        layer_free(&l);
    }
}

/* ---- bf16 and f16 ---- */

/* Between neighbours a < b: the middle goes to the even one, the rest to the nearer one. */
static void check_rounding(uint16_t (*to)(float), float (*from)(uint16_t), uint32_t infinity) {
    for (uint32_t h = 0; h < infinity - 1; h++) {
        float a = from((uint16_t)h), b = from((uint16_t)(h + 1));
        float mid = (float)(((double)a + (double)b) / 2);
        assert_true(a < b && to(a) == h && to(-a) == (h | 0x8000u));
        assert_int_equal(to(mid), h + (h & 1u));
        assert_int_equal(to(nextafterf(mid, a)), h);
        assert_int_equal(to(nextafterf(mid, b)), h + 1);
    }
    assert_int_equal(to(INFINITY), infinity);
    assert_int_equal(to(-INFINITY), infinity | 0x8000u);
    assert_true(isinf(from((uint16_t)infinity)));
    assert_true(isnan(from(to(NAN))) && isnan(from((uint16_t)(infinity + 1))));
}
static void test_half(void **state) {
    (void)state;
    check_rounding(hl_to_bf16, hl_from_bf16, 0x7f80);
    check_rounding(hl_to_f16, hl_from_f16, 0x7c00);
    assert_int_equal(hl_to_f16(65519), 0x7bff);
    assert_int_equal(hl_to_f16(65520), 0x7c00);
    assert_int_equal(hl_to_f16(0x1p-25f), 0);
    assert_true(hl_from_f16(1) == 0x1p-24f);
    assert_int_equal(hl_to_bf16(3.4e38f), 0x7f80);
}

/* every f16, subnormals too, as a weight: the fast conversions agree with the plain one */
static void test_half_weights(void **state) {
    enum { N = 32, K = 64 };
    struct hl_backend *pool = check_backend_open(1, hl_linear_scratch());
    uint16_t W[N * K];
    real *x = check_zero(3 * K), *out = check_new(3 * N);
    (void)state;
    for (int first = 0; first < 65536; first += N * K) {
        for (int i = 0; i < N * K; i++) {
            int h = first + i;
            W[i] = (uint16_t)((h & 0x7c00) == 0x7c00 ? h ^ 0x4000 : h); /* 0 times infinity is not 0 */
        }
        for (int b = 0; check_backend(b); b++) {
            const struct hl_ops *ops = hl_ops_named(check_backend(b));
            struct hl_linear a = {.M = 3, .K = K, .x = x, .n = 1};
            if (!ops) continue;
            a.part[0].W = (struct hl_weight){.data = W, .layout = HL_PANELS, .dtype = HOLA_F16, .rows = N, .cols = K};
            a.part[0].out = out;
            for (int k = 0; k < K; k++) {
                x[K + k] = 1;
                ops->linear_forward(pool, &a);
                for (int i = 0; i < N; i++) assert_true(out[N + i] == hl_from_f16(W[k * N + i]));
                x[K + k] = 0;
            }
        }
    }
    check_free(x, 3 * K);
    check_free(out, 3 * N);
    hl_backend_close(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),  cmocka_unit_test(test_wrong), cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_threads), cmocka_unit_test(test_half),  cmocka_unit_test(test_half_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
