/* grad_attention.c -- rotary positions, biases and softmax attention in double: gradients against finite differences,
 * and the reference's sessions against its whole sequences. */
#include "attention_case.h"

static const struct hl_ops *ref(void) { return hl_ops_named("cpu-ref"); }

struct objective {
    struct attention_case *c;
    struct attention_result *r;
};
/* sum of dout * out, so that its gradient is the backward pass for dout */
static double objective(void *ctx) {
    struct objective *o = ctx;
    double sum = 0;
    run_training(ref(), NULL, o->c, o->r, false);
    for (int64_t i = 0; i < o->c->q; i++) sum += (double)o->r->out[i] * (double)((const real *)o->c->a.dout)[i];
    return sum;
}

static void check_shape(const struct attention_shape *f) {
    static const int64_t len[] = {9, 1, 14};
    struct attention_case *c = case_new(f, len, 3, 31);
    struct attention_result r = result_new(c);
    struct objective o = {c, &r};
    run_training(ref(), NULL, c, &r, true);
    CHECK_GRADIENT(objective, &o, (real *)c->a.q, r.dq, c->q, 1e-6);
    CHECK_GRADIENT(objective, &o, (real *)c->a.k, r.dk, c->kv, 1e-6);
    CHECK_GRADIENT(objective, &o, (real *)c->a.v, r.dv, c->kv, 1e-6);
    /* the comparison must see a small mistake */
    r.dv[0] *= (real)1.001;
    assert_true(check_gradient(objective, &o, (real *)c->a.v, r.dv, c->kv, 1e-5) > 1e-6);
    result_free(c, &r);
    case_free(c);
}
static void reference_is_the_derivative(void **state) {
    (void)state;
    check_shape(&(struct attention_shape){1, 1, 4, 0, 2});
    check_shape(&(struct attention_shape){4, 2, 6, 0, 2});
    check_shape(&(struct attention_shape){3, 1, 4, 5, 2});
    check_shape(&(struct attention_shape){2, 2, 4, 1, 2});
}

/* A first token sees itself alone; a window of one always does. */
static void one_key_is_its_value(void **state) {
    static const int64_t len[] = {1, 7};
    (void)state;
    struct attention_case *c = case_new(&(struct attention_shape){2, 2, 4, 1, 2}, len, 2, 5);
    struct attention_result r = result_new(c);
    run_training(ref(), NULL, c, &r, false);
    CHECK_NEAR(r.out, (const real *)c->a.v, c->T, c->a.H * c->a.D, 1e-15, "window 1");
    result_free(c, &r);
    case_free(c);
}

static void sessions_are_sequences(void **state) {
    static const int64_t len[] = {1, 5, 24, HL_PAGE_TOKENS, 2 * HL_PAGE_TOKENS + 3}, window[] = {0, 1, 5, 24};
    static const int64_t cut[][2] = {{1, 1}, {23, 1}, {7, 30}, {HL_PAGE_TOKENS, 1}, {HL_PAGE_TOKENS - 1, 2}, {999, 1}};
    (void)state;
    for (size_t w = 0; w < sizeof window / sizeof *window; w++) {
        struct attention_case *c = case_new(&(struct attention_shape){4, 2, 4, window[w], 2}, len, 5, 8);
        struct attention_result want = result_new(c), got = result_new(c);
        run_training(ref(), NULL, c, &want, false);
        for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
            check_poison(got.out, c->q);
            run_sessions(ref(), NULL, c, &got, cut[i][0], cut[i][1]);
            CHECK_NEAR(got.out, want.out, c->T, c->a.H * c->a.D, 0, "window %d, cut %d", (int)window[w], (int)i);
        }
        result_free(c, &want);
        result_free(c, &got);
        case_free(c);
    }
}

/* ---- rotary positions ---- */

enum { ROPE_T = 9, ROPE_H = 3, ROPE_D = 8, ROPE_N = ROPE_T * ROPE_H * ROPE_D };
static const struct hl_seg rope_seg[] = {{.len = 4}, {.row = 4, .len = 5, .pos = 100}};
static const struct hl_rows rope_rows = {.T = ROPE_T, .n = 2, .seg = rope_seg};

/* The definition: numbers i and i + D/2 of a head as a complex number, times exp(i t theta^(-2i/D)). */
static void rope_is_its_definition(void **state) {
    real *x = check_random(ROPE_N, -1, 1, 3), *y = check_new(ROPE_N), *back = check_new(ROPE_N);
    const struct hl_rope a = {&rope_rows, .H = ROPE_H, .D = ROPE_D, .theta = 10000,
                              .x = x,     .y = y,      .dy = y,     .dx = back};
    (void)state;
    ref()->rope_forward(NULL, &a);
    for (int64_t r = 0; r < ROPE_T; r++)
        for (int64_t h = 0; h < ROPE_H; h++)
            for (int64_t i = 0; i < ROPE_D / 2; i++) {
                const int64_t at = (r * ROPE_H + h) * ROPE_D + i;
                const double t = r < 4 ? (double)r : (double)(r - 4 + 100);
                const double phase =
                    atan2((double)x[at + ROPE_D / 2], (double)x[at]) + t * pow(10000, -0.25 * (double)i);
                const double size = hypot((double)x[at], (double)x[at + ROPE_D / 2]);
                assert_true(fabs((double)y[at] - size * cos(phase)) < 1e-12);
                assert_true(fabs((double)y[at + ROPE_D / 2] - size * sin(phase)) < 1e-12);
            }
    ref()->rope_backward(NULL, &a); /* a rotation's gradient turns back */
    CHECK_NEAR(back, x, ROPE_T, ROPE_H * ROPE_D, 1e-14, "rope");
    CHECK_FAR(y, x, ROPE_T, ROPE_H * ROPE_D, 1e-2);
    check_free(x, ROPE_N);
    check_free(y, ROPE_N);
    check_free(back, ROPE_N);
}

/* ---- biases ---- */

static void bias_adds_and_sums(void **state) {
    enum { M = 5, N = 7 };
    real *x = check_random(M * N, -1, 1, 3), *y = check_new(M * N), *b = check_random(N, -1, 1, 4);
    real *db = check_random(N, -1, 1, 5);
    const struct hl_bias a = {.M = M, .N = N, .b = b, .x = y, .dx = x, .db = db};
    double before[N];
    (void)state;
    for (int i = 0; i < N; i++) before[i] = (double)db[i];
    memcpy(y, x, sizeof(real) * M * N);
    ref()->bias_forward(NULL, &a);
    ref()->bias_backward(NULL, &a);
    for (int i = 0; i < N; i++) {
        double sum = before[i];
        for (int m = 0; m < M; m++) {
            assert_true(y[m * N + i] == x[m * N + i] + b[i]);
            sum += (double)x[m * N + i];
        }
        assert_true(fabs(sum - (double)db[i]) < 1e-13);
    }
    check_free(x, M * N);
    check_free(y, M * N);
    check_free(b, N);
    check_free(db, N);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_the_derivative), cmocka_unit_test(one_key_is_its_value),
        cmocka_unit_test(sessions_are_sequences),      cmocka_unit_test(rope_is_its_definition),
        cmocka_unit_test(bias_adds_and_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
