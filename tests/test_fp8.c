/* test_fp8.c -- 8-bit floats: every code, rounding of random and of halfway numbers against a search among all codes,
 * what is too large or no number; scales; quantised matrices and products on them; a training step. */
#include "check.h"
#include "backend/fp8_host.h"
#include "core/fp8.h"
#include "model/model.h"

static const enum hl_fp8 formats[] = {HL_E4M3, HL_E5M2};
static double largest(enum hl_fp8 f) { return f == HL_E4M3 ? 448 : 57344; }

/* A code by its definition. */
static double defined(int code, enum hl_fp8 f) {
    const int m = f == HL_E4M3 ? 3 : 2, bias = f == HL_E4M3 ? 7 : 15, e = (code & 0x7f) >> m, n = code & ((1 << m) - 1);
    const double sign = code & 0x80 ? -1 : 1;
    if (f == HL_E4M3 && (code & 0x7f) == 0x7f) return NAN;
    if (f == HL_E5M2 && e == 31) return n ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(1 + ldexp(n, -m), e - bias) : ldexp(n, 1 - bias - m));
}

static void codes_are_as_defined(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int c = 0; c < 256; c++) {
            const double want = defined(c, formats[k]);
            const float got = hl_from_fp8((uint8_t)c, formats[k]);
            if (isnan(want)) {
                assert_true(isnan(got));
                continue;
            }
            assert_true((double)got == want && !signbit(got) == !(c & 0x80));
            if (isfinite(want)) assert_int_equal(hl_to_fp8(got, formats[k]), c);
        }
}

/* The nearest finite code by search; of two, the even one. */
static int nearest(double x, enum hl_fp8 f) {
    int best = 0;
    for (int c = 1; c < 0x7f; c++) {
        const double v = defined(c, f), d = fabs(v - fabs(x)), b = fabs(defined(best, f) - fabs(x));
        if (isfinite(v) && (d < b || (d == b && c % 2 == 0))) best = c;
    }
    return signbit(x) ? best | 0x80 : best;
}
typedef uint8_t (*rounding)(float x, enum hl_fp8 f);
static int64_t wrong(rounding to, enum hl_fp8 f) {
    int64_t n = 0;
    uint64_t seed = 7;
    for (int i = 0; i < 60000; i++) { /* of all magnitudes, twice the range on both sides */
        const double e = check_uniform(&seed, f == HL_E4M3 ? -13 : -20, f == HL_E4M3 ? 11 : 18);
        const float x = (float)(exp2(e) * (check_uniform(&seed, -1, 1) < 0 ? -1 : 1));
        n += to(x, f) != nearest((double)x, f);
    }
    for (int c = 0; c < (f == HL_E4M3 ? 0x7e : 0x7b); c++) { /* halfway between two codes, and a hair beside */
        const float half = (float)((defined(c, f) + defined(c + 1, f)) / 2);
        const float x[3] = {half, nextafterf(half, 0), nextafterf(half, INFINITY)};
        for (int k = 0; k < 3; k++)
            n += (to(x[k], f) != nearest((double)x[k], f)) + (to(-x[k], f) != nearest(-(double)x[k], f));
    }
    return n;
}
static uint8_t ties_away(float x, enum hl_fp8 f) { return hl_to_fp8(nextafterf(x, x * INFINITY), f); }
static uint8_t without_subnormals(float x, enum hl_fp8 f) {
    return fabsf(x) < (f == HL_E4M3 ? 0x1p-6f : 0x1p-14f) ? (signbit(x) ? 0x80 : 0) : hl_to_fp8(x, f);
}

static void rounding_is_to_the_nearest(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        const enum hl_fp8 f = formats[k];
        assert_int_equal(wrong(hl_to_fp8, f), 0);
        assert_true(wrong(ties_away, f) > 10);
        assert_true(wrong(without_subnormals, f) > 10);
        const uint8_t most = f == HL_E4M3 ? 0x7e : 0x7b;
        const float too_large[] = {(float)largest(f), (float)largest(f) * 1.01f, 1e30f, 3.4e38f, INFINITY};
        for (int i = 0; i < 5; i++) {
            assert_int_equal(hl_to_fp8(too_large[i], f), most);
            assert_int_equal(hl_to_fp8(-too_large[i], f), most | 0x80);
        }
        assert_int_equal(hl_to_fp8(NAN, f), 0x7f);
        assert_int_equal(hl_to_fp8(-NAN, f), 0x7f);
        assert_int_equal(hl_to_fp8(0.0f, f), 0);
        assert_int_equal(hl_to_fp8(-0.0f, f), 0x80);
        assert_int_equal(hl_to_fp8(0x1p-149f, f), 0);
    }
}

static void scales_are_the_least(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 20000; i++) {
            const enum hl_fp8 f = formats[k];
            /* the largest code itself, times powers of two, and its neighbours among them */
            float x = (float)(i < 600 ? ldexp(largest(f), i / 3 - 110) : exp2(check_uniform(&seed, -148, 127.9)));
            if (i < 600) x = i % 3 == 0 ? x : nextafterf(x, i % 3 == 1 ? 0 : INFINITY);
            int e;
            const float s = hl_fp8_scale(hl_fp8_bits(x), f), inverse = hl_fp8_inverse(s);
            assert_true(frexpf(s, &e) == 0.5f && s * inverse == 1);
            assert_true((double)x / (double)s <= largest(f));
            assert_true(s == 0x1p-126f || (double)x / ((double)s / 2) > largest(f));
        }
    assert_true(hl_fp8_scale(0, HL_E4M3) == 1);
    assert_true(isnan(hl_fp8_scale(hl_fp8_bits(INFINITY), HL_E4M3)));
    assert_true(isnan(hl_fp8_scale(hl_fp8_bits(NAN) & 0x7fffffffu, HL_E5M2)));
    assert_true(hl_fp8_inverse(NAN) == 1);
}

/* ---- matrices ---- */

struct forms {
    struct hl_fp8_quantise q;
    real *x, *row, *column; /* the matrix; what its two forms say */
};
static struct forms quantised(struct hl_backend *b, const real *x, int64_t rows, int64_t cols, enum hl_fp8 f,
                              bool blocks) {
    struct forms t = {.q = {.rows = rows, .cols = cols, .ld = cols, .x = x, .format = f, .blocks = blocks}};
    const int64_t n = rows * cols;
    t.q.codes = malloc((size_t)n), t.q.codes_t = malloc((size_t)n);
    t.q.scale = malloc((size_t)hl_fp8_scales(blocks, rows, cols) * sizeof(float));
    t.q.scale_t = malloc((size_t)hl_fp8_scales(blocks, cols, rows) * sizeof(float));
    t.row = check_new(n), t.column = check_new(n);
    b->ops.fp8_quantise(b, &t.q);
    hl_fp8_dequantise(&t.q, false, t.row);
    hl_fp8_dequantise(&t.q, true, t.column);
    return t;
}
static void forms_free(struct forms *t) {
    free(t->q.codes), free(t->q.codes_t), free(t->q.scale), free(t->q.scale_t);
    check_free(t->row, t->q.rows * t->q.cols), check_free(t->column, t->q.rows * t->q.cols);
}

/* What number (i, j) should become with the largest magnitude of its part of the matrix, by search. */
static double should(const real *x, int64_t rows, int64_t cols, int64_t i, int64_t j, enum hl_fp8 f, bool blocks,
                     bool transposed) {
    const int64_t i0 = blocks || transposed ? i / 128 * 128 : i, i1 = blocks || transposed ? i0 + 128 : i + 1;
    const int64_t j0 = blocks || !transposed ? j / 128 * 128 : j, j1 = blocks || !transposed ? j0 + 128 : j + 1;
    double most = 0, s = 0x1p-126;
    for (int64_t a = i0; a < i1 && a < rows; a++)
        for (int64_t b = j0; b < j1 && b < cols; b++) most = fmax(most, fabs((double)x[a * cols + b]));
    while (most / s > largest(f)) s *= 2;
    if (most == 0) return 0;
    return defined(nearest((double)x[i * cols + j] / s, f), f) * s;
}

static void matrices_are_quantised_in_blocks(void **state) {
    static const int64_t sizes[][2] = {{16, 16}, {128, 128}, {144, 304}, {272, 48}};
    struct hl_backend *b;
    (void)state;
    CHECK_OK(hl_backend_open(&b, "cpu", 2));
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int variant = 0; variant < 4; variant++) {
            const int64_t R = sizes[k][0], C = sizes[k][1];
            const enum hl_fp8 f = formats[variant % 2];
            const bool blocks = variant / 2;
            uint64_t seed = k;
            real *x = check_new(R * C);
            for (int64_t i = 0; i < R * C; i++) /* magnitudes that differ from row to row, and zeros; one row is tiny */
                x[i] = (real)(check_uniform(&seed, -1, 1) * exp2((double)(i / C * 7 % 40 - 20) + (double)(i % C % 5)));
            for (int64_t j = 0; j < C; j++) x[3 * C + j] = 0, x[5 * C + j] *= (real)0x1p-120;
            for (int64_t i = 0; i < R; i++) x[i * C + 2] = 0;
            struct forms t = quantised(b, x, R, C, f, blocks);
            int64_t apart = 0;
            for (int64_t i = 0; i < R; i += 1 + i % 5)
                for (int64_t j = 0; j < C; j += 1 + j % 3) {
                    assert_true((double)t.row[i * C + j] == should(x, R, C, i, j, f, blocks, false));
                    assert_true((double)t.column[i * C + j] == should(x, R, C, i, j, f, blocks, true));
                    apart += (double)t.row[i * C + j] != should(x, R, C, i, j, f, !blocks, false);
                }
            assert_true(apart > 0); /* the other kind of blocks shows */
            if (blocks)
                for (int64_t i = 0; i < R * C; i++) assert_true(t.row[i] == t.column[i]);
            forms_free(&t);
            check_free(x, R * C);
        }
    hl_backend_close(b);
}

static void what_is_not_finite_stays_so(void **state) {
    struct hl_backend *b;
    (void)state;
    CHECK_OK(hl_backend_open(&b, "cpu", 1));
    for (int k = 0; k < 2; k++) {
        real *x = check_random(32 * 32, -1, 1, 5);
        x[4 * 32 + 7] = k ? (real)NAN : (real)INFINITY;
        struct forms t = quantised(b, x, 32, 32, HL_E4M3, false);
        for (int i = 0; i < 32; i++)
            for (int j = 0; j < 32; j++) {
                assert_true(isnan(t.row[i * 32 + j]) == (i == 4));
                assert_true(isnan(t.column[i * 32 + j]) == (j == 7));
            }
        forms_free(&t);
        check_free(x, 32 * 32);
    }
    hl_backend_close(b);
}

/* ---- products ---- */

enum { M = 160, K = 144, N = 272 };
struct product {
    real *x, *W, *V, *out, *out2, *dout, *dout2, *dx, *dW, *dV;
};
static struct hl_linear product_args(const struct product *p, bool fp8) {
    struct hl_linear a = {.M = M, .K = K, .x = p->x, .dx = p->dx, .n = 2};
    a.part[0] = (struct hl_linear_part){
        .W = {.data = p->W, .rows = N, .cols = K, .precision = fp8 ? HOLA_PRECISION_FP8 : HOLA_PRECISION_AUTO},
        .out = p->out,
        .dout = p->dout,
        .dW = p->dW};
    a.part[1] = (struct hl_linear_part){/* not in FP8 */
                                        .W = {.data = p->V, .rows = 10, .cols = K},
                                        .out = p->out2,
                                        .dout = p->dout2,
                                        .dW = p->dV};
    return a;
}
/* C += A B^T of what the forms say, in double; the rows of A and B are what is given */
static double sum_over(const real *a, int64_t as, const real *b, int64_t bs, int64_t n) {
    double s = 0;
    for (int64_t k = 0; k < n; k++) s += (double)a[k * as] * (double)b[k * bs];
    return s;
}

static void products_are_of_what_the_codes_say(void **state) {
    struct hl_backend *b;
    const struct hl_fp8_sizes sizes = {.tokens = M, .wide = N, .weight = N * K};
    struct product p = {.x = check_random(M * K, -1, 1, 1),
                        .W = check_random(N * K, -1, 1, 2),
                        .V = check_random(10 * K, -1, 1, 3),
                        .out = check_new(M * N),
                        .out2 = check_new(M * 10),
                        .dout = check_random(M * N, -1, 1, 4),
                        .dout2 = check_random(M * 10, -1, 1, 5),
                        .dx = check_new(M * K),
                        .dW = check_zero(N * K),
                        .dV = check_zero(10 * K)};
    const struct hl_linear a = product_args(&p, true);
    real *out = check_new(M * N), *dx = check_new(M * K), *dW = check_new(N * K), *plain = check_new(M * N);
    (void)state;
    CHECK_OK(hl_backend_open(&b, "cpu", 2));
    CHECK_OK(hl_backend_reserve(b, hl_linear_scratch()));
    CHECK_OK(b->fp8->open(b, &sizes));
    b->ops.linear_forward(b, &a);
    b->ops.linear_backward(b, &a);
    struct forms x = quantised(b, p.x, M, K, HL_E4M3, false), W = quantised(b, p.W, N, K, HL_E4M3, true),
                 d = quantised(b, p.dout, M, N, HL_FP8_GRADIENTS, false);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            out[i * N + j] = (real)sum_over(x.row + i * K, 1, W.row + j * K, 1, K);
            plain[i * N + j] = (real)sum_over(p.x + i * K, 1, p.W + j * K, 1, K);
        }
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < K; j++)
            dx[i * K + j] =
                (real)(sum_over(d.row + i * N, 1, W.column + j, K, N) + sum_over(p.dout2 + i * 10, 1, p.V + j, K, 10));
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < K; j++) dW[i * K + j] = (real)sum_over(d.column + i, N, x.column + j, K, M);
    assert_true(check_distance(p.out, out, M, N) < 1e-6);
    assert_true(check_distance(p.dx, dx, M, K) < 1e-6);
    assert_true(check_distance(p.dW, dW, N, K) < 1e-6);
    const double coarse = check_distance(plain, out, M, N); /* what FP8 is away from floats: it was used */
    print_message("x W^T of random numbers, FP8 and floats: %.3g apart\n", coarse);
    assert_true(coarse > 0.01 && coarse < 0.05);
    b->fp8->close(b);
    b->ops.linear_forward(b, &a); /* ... and no longer */
    assert_true(check_distance(p.out, plain, M, N) < 1e-6);
    forms_free(&x), forms_free(&W), forms_free(&d);
    check_free(out, M * N), check_free(dx, M * K), check_free(dW, N * K), check_free(plain, M * N);
    check_free(p.x, M * K), check_free(p.W, N * K), check_free(p.V, 10 * K), check_free(p.out, M * N);
    check_free(p.out2, M * 10), check_free(p.dout, M * N), check_free(p.dout2, M * 10), check_free(p.dx, M * K);
    check_free(p.dW, N * K), check_free(p.dV, 10 * K);
    hl_backend_close(b);
}

/* ---- training ---- */

/* Losses of some steps on one batch, taken in `slices` slices. */
static void train(const char *backend, bool fp8, bool recompute, int64_t tokens, int slices, double *losses,
                  int steps) {
    hola_config cfg;
    hola_model *m;
    hola_trainer *t;
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    const hola_options where = {.threads = 2, .backend = backend};
    const hola_train_opts opt = {.size = sizeof opt,
                                 .max_tokens = tokens,
                                 .precision = fp8 ? HOLA_PRECISION_FP8 : HOLA_PRECISION_AUTO,
                                 .recompute = recompute};
    CHECK_OK(hola_config_preset(&cfg, "46m", HOLA_TYPE_HOLA));
    cfg.hidden_size = 64, cfg.num_hidden_layers = 2, cfg.num_heads = cfg.num_v_heads = 2, cfg.head_dim = 32;
    cfg.head_v_dim = 32, cfg.intermediate_size = 96, cfg.vocab_size = 50, cfg.cache_chunk = 64;
    CHECK_OK(hola_model_new(&m, &cfg, 1, &where));
    CHECK_OK(hola_trainer_new(&t, m, &opt));
    for (int64_t i = 0; i < tokens; i++) ids[i] = (int32_t)(i * i % 47);
    for (int k = 0; k < steps; k++) {
        losses[k] = 0;
        for (int i = 0; i < slices; i++) {
            double loss;
            const int64_t n = tokens / slices;
            CHECK_OK(hola_trainer_accumulate(t, ids + i * n, n, NULL, 0, 1.0 / (double)tokens, &loss, NULL));
            losses[k] += loss / (double)tokens;
        }
        CHECK_OK(hola_trainer_update(t, 3e-3, NULL));
    }
    hola_trainer_free(t);
    assert_int_equal(m->training_precision, HOLA_PRECISION_AUTO);
    hola_model_free(m);
    free(ids);
}

static void training_goes_alike(void **state) {
    enum { STEPS = 12 };
    double plain[STEPS], fp8[STEPS], again[STEPS], odd[STEPS], odd_plain[STEPS];
    (void)state;
    train("cpu", false, false, 192, 1, plain, STEPS);
    train("cpu", true, false, 192, 1, fp8, STEPS);
    print_message("loss after %d steps: %.5f, in FP8 %.5f\n", (int)STEPS, plain[STEPS - 1], fp8[STEPS - 1]);
    assert_true(plain[STEPS - 1] < plain[0] - 1);
    assert_true(fabs(fp8[STEPS - 1] / plain[STEPS - 1] - 1) < 0.05 && fp8[STEPS - 1] != plain[STEPS - 1]);
    train("cpu", true, true, 192, 1, again, STEPS); /* --recompute: the same bits */
    for (int k = 0; k < STEPS; k++) assert_true(again[k] == fp8[k]);
    train("cpu", true, false, 192, 3, again, STEPS); /* slices: other sums and blocks, about the same losses */
    assert_true(fabs(again[STEPS - 1] / fp8[STEPS - 1] - 1) < 0.3);
    train("cpu", true, false, 187, 1, odd, STEPS); /* a number of tokens that does not fit: nothing is in FP8 */
    train("cpu", false, false, 187, 1, odd_plain, STEPS);
    for (int k = 0; k < STEPS; k++) assert_true(odd[k] == odd_plain[k]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_as_defined),        cmocka_unit_test(rounding_is_to_the_nearest),
        cmocka_unit_test(scales_are_the_least),        cmocka_unit_test(matrices_are_quantised_in_blocks),
        cmocka_unit_test(what_is_not_finite_stays_so), cmocka_unit_test(products_are_of_what_the_codes_say),
        cmocka_unit_test(training_goes_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
