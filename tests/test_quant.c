/* test_quant.c -- weights quantised to 8 and 4 bits: the error of products, rows and panels, the choice of scales.
 * (Models of such weights: test_quant_model.c.) */
#include "check.h"
#include "model/quant_file.h"
#include "ops/linear/quant_dot.h"
#include "ops/linear/weight.h"
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

static const hola_dtype types[] = {HOLA_INT8, HOLA_INT4};
/* Of a product: a step is 1/127 or 1/8 of a group's largest number, which is about 2.8 (of 128) or 2.5 (of 64)
 * deviations of a bell away from 0, and rounding to steps is off by 1/sqrt(12) of one. */
static double allowed(hola_dtype t) { return t == HOLA_INT8 ? 0.0068 : 0.088; }

/* a bell-shaped weight, as trained ones are */
static real *weights(int64_t n, uint64_t seed) {
    real *w = check_new(n);
    for (int64_t i = 0; i < n; i++) {
        double x = 0;
        for (int k = 0; k < 6; k++) x += check_uniform(&seed, -1, 1);
        w[i] = (real)(0.02 * x);
    }
    return w;
}

/* ---- the product ---- */

struct product {
    int64_t M, N, K;
    real *x, *W, *exact;
};
static void product_new(struct product *p, struct hl_backend *pool, int64_t M, int64_t N, int64_t K) {
    *p = (struct product){M, N, K, weights(M * K, 5), weights(N * K, 6), check_new(M * N)};
    struct hl_linear a = {.M = M, .K = K, .x = p->x, .n = 1};
    a.part[0].W = (struct hl_weight){.data = p->W, .rows = N, .cols = K};
    a.part[0].out = p->exact;
    hl_ops_named("cpu-ref")->linear_forward(pool, &a);
}
static void product_free(struct product *p) {
    check_free(p->x, p->M * p->K);
    check_free(p->W, p->N * p->K);
    check_free(p->exact, p->M * p->N);
}
static void run(const struct hl_ops *ops, struct hl_backend *pool, const struct product *p, const struct hl_quant *c,
                real *out) {
    void *panels = malloc((size_t)hl_panel_bytes(p->N, p->K, c->dtype));
    struct hl_linear a = {.M = p->M, .K = p->K, .x = p->x, .n = 1};
    assert_non_null(panels);
    hl_quant_pack(panels, c);
    a.part[0].W =
        (struct hl_weight){.data = panels, .layout = HL_PANELS, .dtype = c->dtype, .rows = p->N, .cols = p->K};
    a.part[0].out = out;
    ops->linear_forward(pool, &a);
    free(panels);
}

/* Odd columns, columns that fill no group, one row and many; and one scale of many that is wrong. */
static void test_error(void **state) {
    static const int64_t Ks[] = {31, 33, 64, 127, 129, 200, 257, 384, 2049}, Ms[] = {1, 5, 16};
    struct hl_backend *pool = check_backend_open(2, hl_linear_scratch());
    (void)state;
    for (int k = 0; k < 9; k++)
        for (int t = 0; t < 2; t++) {
            struct product p;
            struct hl_quant c;
            product_new(&p, pool, Ms[k % 3], 61 + k, Ks[k]);
            real *got = check_new(p.M * p.N);
            assert_true(hl_quant_file_new(&c, types[t], p.N, p.K));
            assert_true(hl_quant_make(&c, p.W));
            const int64_t groups = hl_quant_groups(c.dtype, p.K);
            for (int b = 0; check_backend(b); b++) {
                const struct hl_ops *ops = hl_ops_named(check_backend(b));
                if (!ops) continue;
                run(ops, pool, &p, &c, got);
                CHECK_NEAR(got, p.exact, p.M, p.N, 1.35 * allowed(c.dtype), "%s %s K %d", ops->name,
                           hola_dtype_name(c.dtype), (int)p.K);
                /* one scale of one row; a group of few columns would not show */
                uint16_t *last = &c.scale[(p.N - 1) * groups + groups - 1];
                *last ^= 0x80; /* twice or half of it */
                run(ops, pool, &p, &c, got);
                double off = 0, norm = 0;
                for (int64_t m = 0; m < p.M; m++) {
                    const double want = (double)p.exact[m * p.N + p.N - 1], d = (double)got[m * p.N + p.N - 1] - want;
                    off += d * d, norm += want * want;
                }
                if (p.K - (groups - 1) * hl_group_size(c.dtype) >= 8 || groups == 1)
                    assert_true(off > norm * allowed(c.dtype) * allowed(c.dtype));
                *last ^= 0x80;
            }
            hl_quant_file_free(&c);
            check_free(got, p.M * p.N);
            product_free(&p);
        }
    hl_backend_close(pool);
}

/* The integer sums are the same with and without the dot-product instructions of a processor, and so are the numbers
 * made of them. */
#if defined(__x86_64__)
void hl_avx512_dot(const struct hl_dot *);
enum { DOT_ROWS = 5 };
static void (*const plain_dot)(const struct hl_dot *) = hl_avx512_dot;
static void (*const special_dot)(const struct hl_dot *) = hl_avx512vnni_dot;
static bool has_special_dot(void) { return __builtin_cpu_supports("avx512vnni") && hl_ops_named("cpu-avx512"); }
#elif defined(__aarch64__)
void hl_neon_dot(const struct hl_dot *);
enum { DOT_ROWS = 3 };
static void (*const plain_dot)(const struct hl_dot *) = hl_neon_dot;
static void (*const special_dot)(const struct hl_dot *) = hl_dotprod_dot;
static bool has_special_dot(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
#else
enum { DOT_ROWS = 1 };
static void (*const plain_dot)(const struct hl_dot *) = NULL, (*const special_dot)(const struct hl_dot *) = NULL;
static bool has_special_dot(void) { return false; }
#endif
static void test_special_dot(void **state) {
    (void)state;
    if (!has_special_dot()) {
        print_message("SKIP: no dot-product instructions here\n");
        skip();
    }
    enum { K = 200, N = 27, WHOLE = HL_PANEL, MOST = 127 * 256 + 127 };
    real *W = weights(HL_PANEL * K, 3), *a = check_new(DOT_ROWS * WHOLE), *b = check_new(DOT_ROWS * WHOLE);
    real scale[DOT_ROWS * 8];
    int16_t x[DOT_ROWS * 256];
    int32_t sum[DOT_ROWS * 8] = {0};
    for (int turn = 0; turn < 4 * DOT_ROWS; turn++) { /* type, whole or cut panel, rows */
        const hola_dtype type = types[turn % 2];
        const int64_t G = hl_group_size(type);
        void *panel = malloc((size_t)hl_panel_bytes(HL_PANEL, K, type));
        hl_panel_pack(panel, type, W, HL_PANEL, K);
        for (int i = 0; i < DOT_ROWS * 256; i++) {
            const int r = (int16_t)check_mix((uint64_t)i);
            x[i] = (int16_t)(i % 256 >= K ? 0 : i % 9 == 0 || r > MOST ? MOST : i % 9 == 1 || r < -MOST ? -MOST : r);
        }
        memset(sum, 0, sizeof sum);
        for (int i = 0; i < DOT_ROWS * 8; i++) scale[i] = (real)(i + 1) * (real)1e-5;
        for (int i = 0; i < DOT_ROWS; i++)
            for (int k = 0; k < K; k++) sum[i * 8 + k / G] += x[i * 256 + k];
        struct hl_dot d = {.dtype = type, .B = panel, .K = K, .x = x, .scale = scale, .sum = sum};
        d.xs = 256, d.gs = 8, d.ldc = d.n = turn / 2 % 2 ? N : WHOLE, d.mr = 1 + turn / 4;
        const size_t bytes = (size_t)(d.mr * d.ldc) * sizeof(real);
        d.C = a;
        plain_dot(&d);
        d.C = b;
        special_dot(&d);
        assert_memory_equal(a, b, bytes);
        x[(d.mr - 1) * 256 + 7] ^= 1;
        special_dot(&d);
        assert_memory_not_equal(a, b, bytes);
        free(panel);
    }
    check_free(W, HL_PANEL * K);
    check_free(a, DOT_ROWS * WHOLE);
    check_free(b, DOT_ROWS * WHOLE);
}

/* What is not a number in x is not one in out, in that row alone; a row of zeros gives zeros. */
static void test_not_finite(void **state) {
    struct hl_backend *pool = check_backend_open(1, hl_linear_scratch());
    struct product p;
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct hl_quant c;
        product_new(&p, pool, 4, 40, 150);
        real *got = check_new(p.M * p.N);
        p.x[1 * p.K + 149] = (real)NAN;
        p.x[2 * p.K + 3] = -(real)INFINITY;
        memset(p.x + 3 * p.K, 0, (size_t)p.K * sizeof(real));
        assert_true(hl_quant_file_new(&c, types[t], p.N, p.K));
        assert_true(hl_quant_make(&c, p.W));
        for (int b = 0; check_backend(b); b++) {
            const struct hl_ops *ops = hl_ops_named(check_backend(b));
            if (!ops) continue;
            run(ops, pool, &p, &c, got);
            for (int64_t i = 0; i < p.N; i++) {
                assert_true(isfinite(got[i]) && !isfinite(got[p.N + i]) && !isfinite(got[2 * p.N + i]));
                assert_true(got[3 * p.N + i] == 0);
            }
        }
        p.W[77] = (real)NAN;
        assert_false(hl_quant_make(&c, p.W));
        hl_quant_file_free(&c);
        check_free(got, p.M * p.N);
        product_free(&p);
    }
    hl_backend_close(pool);
}

/* ---- codes ---- */

/* Rows, panels and single elements agree; quantising what was read back changes nothing. */
static void test_rows_and_panels(void **state) {
    static const int64_t Ns[] = {1, 32, 45}, Ks[] = {1, 7, 32, 100, 128, 131, 300};
    (void)state;
    for (int n = 0; n < 3; n++)
        for (int k = 0; k < 7; k++)
            for (int t = 0; t < 2; t++) {
                const int64_t N = Ns[n], K = Ks[k];
                struct hl_quant c, again;
                real *W = weights(N * K, 8), *back = check_new(N * K);
                memset(W, 0, (size_t)(K < 5 ? 1 : 5) * sizeof(real)); /* zeros, and a group of nothing else */
                if (N > 1) memset(W + K, 0, (size_t)K * sizeof(real));
                if (N > 2) W[2 * K] = (real)1e-40, W[3 * K] = (real)3e38;
                void *panels = malloc((size_t)hl_panel_bytes(N, K, types[t]));
                assert_true(hl_quant_file_new(&c, types[t], N, K) && hl_quant_file_new(&again, types[t], N, K));
                assert_true(hl_quant_make(&c, W));
                hl_quant_read(&c, back);
                hl_quant_pack(panels, &c);
                for (int64_t i = 0; i < N * K; i++) {
                    const double step = fabs((double)hl_from_bf16(
                        c.scale[i / K * hl_quant_groups(types[t], K) + i % K / hl_group_size(types[t])]));
                    assert_true(back[i] == hl_quant_at(panels, types[t], K, i / K, i % K));
                    if (types[t] == HOLA_INT8) assert_true(fabs((double)back[i] - (double)W[i]) <= 0.5001 * step);
                    else assert_true(fabs((double)back[i] - (double)W[i]) <= 1.8 * step);
                }
                assert_true(hl_quant_make(&again, back));
                if (K > 1) assert_memory_equal(c.code, again.code, (size_t)(N * hl_quant_row(types[t], K)));
                hl_quant_read(&again, W);
                for (int64_t i = 0; i < N * K; i++) assert_true(W[i] == back[i]);
                free(panels);
                hl_quant_file_free(&c);
                hl_quant_file_free(&again);
                check_free(W, N * K);
                check_free(back, N * K);
            }
}

static double error_of(const float *x, int n, double scale) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double c = rint((double)x[i] / scale);
        c = c < -8 ? -8 : c > 7 ? 7 : c;
        sum += ((double)x[i] - scale * c) * ((double)x[i] - scale * c);
    }
    return sum;
}
/* INT4's scale is as good as the best of a thousand; of an odd number of columns the last half byte is a 0. */
static void test_best_scale(void **state) {
    enum { ROWS = 100, COLS = 63 };
    real *W = weights(ROWS * COLS, 3), *back = check_new(ROWS * COLS);
    struct hl_quant c;
    double got = 0, least = 0;
    (void)state;
    assert_true(hl_quant_file_new(&c, HOLA_INT4, ROWS, COLS));
    assert_true(hl_quant_make(&c, W));
    hl_quant_read(&c, back);
    for (int r = 0; r < ROWS; r++) {
        const real *x = W + r * COLS;
        double most = 0, best = INFINITY;
        for (int i = 0; i < COLS; i++) {
            most = fmax(most, fabs((double)x[i]));
            got += ((double)x[i] - (double)back[r * COLS + i]) * ((double)x[i] - (double)back[r * COLS + i]);
        }
        for (int i = 0; i < 500; i++)
            for (int sign = -1; sign <= 1; sign += 2)
                best = fmin(best, error_of(x, COLS, sign * most / (5.5 + 0.01 * i)));
        least += best;
        assert_int_equal(c.code[(r + 1) * hl_quant_row(HOLA_INT4, COLS) - 1] >> 4, 8);
    }
    if (!(got < 1.02 * least)) fail_msg("an error of %g, the least is %g: %g", got, least, got / least);
    hl_quant_file_free(&c);
    check_free(W, ROWS * COLS);
    check_free(back, ROWS * COLS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error),           cmocka_unit_test(test_special_dot), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_rows_and_panels), cmocka_unit_test(test_best_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
