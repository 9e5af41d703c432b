/* test_quant.c -- weights as 8-bit and 4-bit codes: how far from the floats, through files and back, in sessions. */
#define _GNU_SOURCE
#include "models.h"
#include "model/quant.h"
#include "ops/matmul/dot.h"
#include "ops/matmul/weight.h"
#include "temp.h"

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
static void product_new(struct product *p, struct hl_pool *pool, int64_t M, int64_t N, int64_t K) {
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
static void run(const struct hl_ops *ops, struct hl_pool *pool, const struct product *p,
                const struct hl_codes *c, real *out) {
    void *panels = malloc((size_t)hl_panel_bytes(p->N, p->K, c->dtype));
    struct hl_linear a = {.M = p->M, .K = p->K, .x = p->x, .n = 1};
    assert_non_null(panels);
    hl_codes_pack(panels, c);
    a.part[0].W = (struct hl_weight){
        .data = panels, .layout = HL_PANELS, .dtype = c->dtype, .rows = p->N, .cols = p->K};
    a.part[0].out = out;
    ops->linear_forward(pool, &a);
    free(panels);
}

/* Odd columns, columns that fill no group, one row and many; and one scale of many that is wrong. */
static void test_error(void **state) {
    static const int64_t Ks[] = {31, 33, 64, 127, 129, 200, 257, 384, 2049}, Ms[] = {1, 5, 16};
    struct hl_pool *pool = check_pool(2, hl_linear_scratch());
    (void)state;
    for (int k = 0; k < 9; k++)
        for (int t = 0; t < 2; t++) {
            struct product p;
            struct hl_codes c;
            product_new(&p, pool, Ms[k % 3], 61 + k, Ks[k]);
            real *got = check_new(p.M * p.N);
            assert_true(hl_quant_new(&c, types[t], p.N, p.K));
            assert_true(hl_codes_make(&c, p.W));
            const int64_t groups = hl_codes_groups(c.dtype, p.K);
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
                    const double want = (double)p.exact[m * p.N + p.N - 1],
                                 d = (double)got[m * p.N + p.N - 1] - want;
                    off += d * d, norm += want * want;
                }
                if (p.K - (groups - 1) * hl_group_size(c.dtype) >= 8 || groups == 1)
                    assert_true(off > norm * allowed(c.dtype) * allowed(c.dtype));
                *last ^= 0x80;
            }
            hl_quant_free(&c);
            check_free(got, p.M * p.N);
            product_free(&p);
        }
    hl_pool_free(pool);
}

/* The integer sums are the same in every instruction set, and so are the numbers made of them where both fuse the
 * multiplication with the addition. */
static void test_vnni(void **state) {
#if defined(__x86_64__)
    void hl_avx512_dot(const struct hl_dot *);
    (void)state;
    if (!__builtin_cpu_supports("avx512vnni") || !hl_ops_named("cpu-avx512")) {
        print_message("SKIP: no AVX512-VNNI here\n");
        skip();
    }
    enum { K = 200, ROWS = 5, N = 27 };
    real *W = weights(HL_PANEL * K, 3), *a = check_new(ROWS * N), *b = check_new(ROWS * N), scale[ROWS * 8];
    int16_t x[ROWS * 256];
    int32_t sum[ROWS * 8] = {0};
    for (int t = 0; t < 2; t++) {
        const int64_t G = hl_group_size(types[t]);
        void *panel = malloc((size_t)hl_panel_bytes(HL_PANEL, K, types[t]));
        hl_panel_pack(panel, types[t], W, HL_PANEL, K);
        for (int i = 0; i < ROWS * 256; i++) x[i] = (int16_t)(i % 256 < K ? check_mix((uint64_t)i) : 0);
        memset(sum, 0, sizeof sum);
        for (int i = 0; i < ROWS * 8; i++) scale[i] = (real)(i + 1) * (real)1e-5;
        for (int i = 0; i < ROWS; i++)
            for (int k = 0; k < K; k++) sum[i * 8 + k / G] += x[i * 256 + k];
        struct hl_dot d = {.dtype = types[t], .B = panel, .K = K, .x = x, .scale = scale, .sum = sum};
        d.xs = 256, d.gs = 8, d.ldc = d.n = N, d.mr = ROWS;
        d.C = a;
        hl_avx512_dot(&d);
        d.C = b;
        hl_avx512vnni_dot(&d);
        assert_memory_equal(a, b, ROWS * N * sizeof(real));
        x[3 * 256 + 7] ^= 1;
        hl_avx512vnni_dot(&d);
        assert_memory_not_equal(a, b, ROWS * N * sizeof(real));
        free(panel);
    }
    check_free(W, HL_PANEL * K);
    check_free(a, ROWS * N);
    check_free(b, ROWS * N);
#else
    (void)state;
    skip();
#endif
}

/* What is not a number in x is not one in out, in that row alone; a row of zeros gives zeros. */
static void test_not_finite(void **state) {
    struct hl_pool *pool = check_pool(1, hl_linear_scratch());
    struct product p;
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct hl_codes c;
        product_new(&p, pool, 4, 40, 150);
        real *got = check_new(p.M * p.N);
        p.x[1 * p.K + 149] = (real)NAN;
        p.x[2 * p.K + 3] = -(real)INFINITY;
        memset(p.x + 3 * p.K, 0, (size_t)p.K * sizeof(real));
        assert_true(hl_quant_new(&c, types[t], p.N, p.K));
        assert_true(hl_codes_make(&c, p.W));
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
        assert_false(hl_codes_make(&c, p.W));
        hl_quant_free(&c);
        check_free(got, p.M * p.N);
        product_free(&p);
    }
    hl_pool_free(pool);
}

/* ---- codes ---- */

/* Rows, panels and single elements agree; codes of what codes stand for stand for the same. */
static void test_codes(void **state) {
    static const int64_t Ns[] = {1, 32, 45}, Ks[] = {1, 7, 32, 100, 128, 131, 300};
    (void)state;
    for (int n = 0; n < 3; n++)
        for (int k = 0; k < 7; k++)
            for (int t = 0; t < 2; t++) {
                const int64_t N = Ns[n], K = Ks[k];
                struct hl_codes c, again;
                real *W = weights(N * K, 8), *back = check_new(N * K);
                memset(W, 0, (size_t)(K < 5 ? 1 : 5) * sizeof(real)); /* zeros, and a group of nothing else */
                if (N > 1) memset(W + K, 0, (size_t)K * sizeof(real));
                if (N > 2) W[2 * K] = (real)1e-40, W[3 * K] = (real)3e38;
                void *panels = malloc((size_t)hl_panel_bytes(N, K, types[t]));
                assert_true(hl_quant_new(&c, types[t], N, K) && hl_quant_new(&again, types[t], N, K));
                assert_true(hl_codes_make(&c, W));
                hl_codes_read(&c, back);
                hl_codes_pack(panels, &c);
                for (int64_t i = 0; i < N * K; i++) {
                    const double step = fabs((double)hl_from_bf16(
                        c.scale[i / K * hl_codes_groups(types[t], K) + i % K / hl_group_size(types[t])]));
                    assert_true(back[i] == hl_codes_at(panels, types[t], K, i / K, i % K));
                    if (types[t] == HOLA_INT8)
                        assert_true(fabs((double)back[i] - (double)W[i]) <= 0.5001 * step);
                    else assert_true(fabs((double)back[i] - (double)W[i]) <= 1.8 * step);
                }
                assert_true(hl_codes_make(&again, back));
                if (K > 1) assert_memory_equal(c.code, again.code, (size_t)(N * hl_codes_row(types[t], K)));
                hl_codes_read(&again, W);
                for (int64_t i = 0; i < N * K; i++) assert_true(W[i] == back[i]);
                free(panels);
                hl_quant_free(&c);
                hl_quant_free(&again);
                check_free(W, N * K);
                check_free(back, N * K);
            }
}

/* ---- models ---- */

/* Saved as codes and loaded: what the floats give that the codes stand for, and not what the first ones gave; all
 * at once, token by token and side by side agree. Allowed: x rounded to 16 bits, through a model whose random weights
 * forgive little. */
static void test_sessions(void **state) {
    enum { N = 150, SIDE = 3 };
    char *dir = temp_new();
    (void)state;
    for (int v = 0; v < VARIANTS; v += 3)
        for (int t = 0; t < 2; t++) {
            hola_model *m = variant_model(v, 2, NULL), *q, *f;
            int32_t *ids = random_ids(N, m->cfg.vocab_size, 9);
            CHECK_OK(hola_model_save(m, dir, types[t]));
            CHECK_OK(hola_model_load(&q, dir, NULL));
            CHECK_OK(hola_model_save(q, dir, HOLA_F32));
            CHECK_OK(hola_model_load(&f, dir, NULL));
            double *first = scores(m, ids, N, N), *want = scores(f, ids, N, N);
            double *all = scores(q, ids, N, N), *single = scores(q, ids, N, 1);
            if (farthest(all, want, N - 1) > 2e-3 || farthest(single, want, N - 1) > 2e-3)
                fail_msg("%s: %g and %g from the floats", variants[v].name, farthest(all, want, N - 1),
                         farthest(single, want, N - 1));
            assert_true(farthest(all, first, N - 1) > 2e-2);
            hola_session *s[SIDE], *alone;
            float *side = malloc(SIDE * 97 * sizeof *side), one[97];
            for (int i = 0; i < SIDE; i++) CHECK_OK(hola_session_new(&s[i], q));
            CHECK_OK(hola_session_new(&alone, q));
            for (int k = 0; k < 40; k++) {
                const int32_t step[SIDE] = {ids[k], ids[k + 50], ids[k + 90]};
                CHECK_OK(hola_session_step(s, SIDE, step, side));
                CHECK_OK(hola_session_feed(alone, &ids[k + 50], 1, one));
                assert_memory_equal(one, side + 97, sizeof one);
            }
            for (int i = 0; i < SIDE; i++) hola_session_free(s[i]);
            hola_session_free(alone);
            free(side);
            free(first);
            free(want);
            free(all);
            free(single);
            free(ids);
            hola_model_free(m);
            hola_model_free(q);
            hola_model_free(f);
        }
    temp_remove(dir);
}

/* Types as stored; back to floats the values that the codes stand for; from there on floats. */
static void test_back(void **state) {
    char *dir = temp_new();
    (void)state;
    for (int t = 0; t < 2; t++) {
        hola_model *m = variant_model(0, 1, NULL), *q, *f;
        hola_trainer *trainer;
        const hola_train_opts opt = {.max_tokens = 8};
        int64_t codes = 0;
        CHECK_OK(hola_model_save(m, dir, types[t]));
        CHECK_OK(hola_model_load(&q, dir, NULL));
        CHECK_OK(hola_model_save(q, dir, HOLA_F32));
        CHECK_OK(hola_model_load(&f, dir, NULL));
        for (int64_t i = 0; i < hola_model_tensor_count(q); i++) {
            hola_tensor_info info, plain;
            CHECK_OK(hola_model_tensor(q, i, &info));
            CHECK_OK(hola_model_tensor(f, i, &plain));
            const bool small = info.ndim != 2 || strstr(info.name, "a_proj") || strstr(info.name, "b_proj");
            assert_int_equal(info.dtype, small ? HOLA_F32 : types[t]);
            assert_int_equal(plain.dtype, HOLA_F32);
            codes += !small;
            float *a = malloc((size_t)info.count * 4), *b = malloc((size_t)info.count * 4);
            CHECK_OK(hola_model_tensor_read(q, i, a));
            CHECK_OK(hola_model_tensor_read(f, i, b));
            assert_memory_equal(a, b, (size_t)info.count * 4);
            free(a);
            free(b);
        }
        assert_int_equal(codes, 2 + 2 * 8);
        CHECK_OK(hola_trainer_new(&trainer, q, &opt)); /* training takes them as floats */
        hola_trainer_free(trainer);
        hola_tensor_info info;
        CHECK_OK(hola_model_tensor(q, 0, &info));
        assert_int_equal(info.dtype, HOLA_F32);
        hola_model_free(m);
        hola_model_free(q);
        hola_model_free(f);
    }
    temp_remove(dir);
}

/* ---- files from elsewhere ---- */

/* Replaces the first `from` in the header with as many bytes. */
static void patch(char *bytes, const char *near, const char *from, const char *to) {
    char *at = strstr(bytes + 8, near);
    at = at ? strstr(at, from) : NULL;
    assert_true(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
}

static void test_hostile(void **state) {
    static const struct {
        const char *near, *from, *to, *says;
        hola_status status;
    } bad[] = {
        {"k_proj.weight\"", "I8", "U8", "k_proj.weight: U8 [32,48], expected [32,24]", HOLA_EFORMAT},
        {"k_proj.weight\"", "I8", "I7", "k_proj.weight: stored as I7", HOLA_ENOTSUP},
        {"k_proj.weight\"", "[32,48]", "[48,32]", "k_proj.weight: I8 [48,32], expected [32,48]",
         HOLA_EFORMAT},
        {"k_proj.weight_scale\"", "BF16", "F16 ", "k_proj.weight_scale: stored as F16 , expected BF16",
         HOLA_EFORMAT},
        {"k_proj.weight_scale\"", "[32,1]", "[16,2]", "k_proj.weight_scale: BF16 [16,2], expected [32,1]",
         HOLA_EFORMAT},
        {"k_proj.weight_scale\"", "scale", "skale", "k_proj.weight_scale: missing", HOLA_EFORMAT},
        {"a_proj.weight\"", "F32", "I8 ", "a_proj.weight: stored as I8", HOLA_ENOTSUP},
    };
    static const uint16_t scales[] = {0, 0x8000, 0x7fc0, 0x7f80, 0xff80};
    hola_model *m = variant_model(0, 1, NULL), *q = NULL;
    char *dir = temp_new(), *good;
    int64_t size;
    (void)state;
    CHECK_OK(hola_model_save(m, dir, HOLA_INT8));
    good = temp_read(dir, "model.safetensors", &size);
    char *bytes = malloc((size_t)size);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(bytes, good, (size_t)size);
        patch(bytes, bad[i].near, bad[i].from, bad[i].to);
        temp_write(dir, "model.safetensors", bytes, size);
        CHECK_FAILS(hola_model_load(&q, dir, NULL), bad[i].status, bad[i].says);
    }
    const char *header = strstr(good + 8, "v_proj.weight_scale\"");
    const int64_t at =
        8 + *(const int64_t *)(const void *)good + strtoll(strstr(header, "offsets\":[") + 10, NULL, 10);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        memcpy(bytes, good, (size_t)size);
        memcpy(bytes + at + 6, &scales[i], 2);
        temp_write(dir, "model.safetensors", bytes, size);
        CHECK_FAILS(hola_model_load(&q, dir, NULL), HOLA_ENUMERIC,
                    i < 2 ? "scale 3 is zero" : "scale 3 is not finite");
    }
    const uint16_t large = 0x7f7f; /* 127 times it is infinite */
    memcpy(bytes, good, (size_t)size);
    memcpy(bytes + at + 6, &large, 2);
    temp_write(dir, "model.safetensors", bytes, size);
    CHECK_FAILS(hola_model_load(&q, dir, NULL), HOLA_ENUMERIC,
                "v_proj.weight: holds values that are not finite");
    free(bytes);
    free(good);
    hola_model_free(m);
    temp_remove(dir);
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
    struct hl_codes c;
    double got = 0, least = 0;
    (void)state;
    assert_true(hl_quant_new(&c, HOLA_INT4, ROWS, COLS));
    assert_true(hl_codes_make(&c, W));
    hl_codes_read(&c, back);
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
        assert_int_equal(c.code[(r + 1) * hl_codes_row(HOLA_INT4, COLS) - 1] >> 4, 8);
    }
    if (!(got < 1.02 * least)) fail_msg("an error of %g, the least is %g: %g", got, least, got / least);
    hl_quant_free(&c);
    check_free(W, ROWS * COLS);
    check_free(back, ROWS * COLS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error),   cmocka_unit_test(test_vnni),       cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_codes),   cmocka_unit_test(test_sessions),   cmocka_unit_test(test_back),
        cmocka_unit_test(test_hostile), cmocka_unit_test(test_best_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
