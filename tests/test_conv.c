/* test_conv.c -- the convolution along sequences: any cut into segments gives the same bits, sessions
 * carry their tails, nothing crosses a start, and wrong versions that must be caught. */
#include "pointwise.h"

enum { T = 150, OFF = 64 }; /* OFF: where the tail lies in a state block */

static struct hl_backend *one, *three;

static int setup(void **state) {
    (void)state;
    one = check_backend_open(1, 0);
    three = check_backend_open(3, 0);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    hl_backend_close(one);
    hl_backend_close(three);
    return 0;
}

/* a state block whose tail is NaN: at position 0 nobody may read it */
static char *block_new(int64_t W, int64_t C) {
    real *b = check_new(OFF / (int64_t)sizeof(real) + (W - 1) * C);
    return (char *)b;
}
static void block_free(char *b, int64_t W, int64_t C) {
    check_free((real *)b, OFF / (int64_t)sizeof(real) + (W - 1) * C);
}
static const real *tail(const char *b) { return (const real *)(b + OFF); }

static struct hl_conv conv_args(const struct hl_rows *rows, int64_t C, int64_t W, const real *x, const real *w,
                                real *y) {
    return (struct hl_conv){.rows = rows, .C = C, .W = W, .x = x, .w = w, .y = y, .tail_off = OFF};
}

/* Feeds x in pieces of the lengths given, the last one repeated, through one session. */
static void feed(const struct hl_ops *o, struct hl_conv a, char *block, const int64_t *lens, int n) {
    for (int64_t t = 0, i = 0; t < T; i++) {
        int64_t len = lens[i < n ? i : n - 1];
        struct hl_seg seg = {.len = t + len < T ? len : T - t, .pos = t, .state = block};
        struct hl_rows rows = {.T = seg.len, .n = 1, .seg = &seg};
        struct hl_conv piece = a;
        piece.rows = &rows;
        piece.x = (const real *)a.x + t * a.C;
        piece.y = (real *)a.y + t * a.C;
        o->conv_forward(i % 2 ? three : one, &piece);
        t += seg.len;
    }
}

static void splits(const struct hl_ops *o, int64_t C, int64_t W) {
    static const int64_t lens[][5] = {{T}, {1}, {2}, {1, 1, 2, 5, 3}, {70, 1}, {64, 64, 1, 2, 3}, {3, 90, 4}};
    static const int counts[] = {1, 1, 1, 5, 2, 5, 3};
    real *x = check_random(T * C, -2, 2, 1), *w = check_random(C * W, -1, 1, 2);
    real *whole = check_new(T * C), *y = check_new(T * C);
    struct hl_seg seg = {.len = T};
    struct hl_rows rows = {.T = T, .n = 1, .seg = &seg};
    struct hl_conv a = conv_args(&rows, C, W, x, w, whole);
    o->conv_forward(one, &a); /* a training segment: no state */
    a.y = y;
    for (int i = 0; i < 7; i++) {
        char *block = block_new(W, C);
        check_poison(y, T * C);
        feed(o, a, block, lens[i], counts[i]);
        if (memcmp(y, whole, (size_t)(T * C) * sizeof(real)))
            fail_msg("%s: C %d W %d: split %d differs from the whole", o->name, (int)C, (int)W, i);
        assert_memory_equal(tail(block), x + (T - W + 1) * C, (size_t)((W - 1) * C) * sizeof(real));
        block_free(block, W, C);
    }
    check_free(x, T * C);
    check_free(w, C * W);
    check_free(whole, T * C);
    check_free(y, T * C);
}

static void test_split_is_whole(void **state) {
    static const int64_t Cs[] = {16, 24, 100, 512};
    (void)state;
    for (int b = -1; b < 0 || check_backend(b); b++) {
        const struct hl_ops *o = hl_ops_named(b < 0 ? "cpu-ref" : check_backend(b));
        for (int c = 0; o && c < 4; c++) {
            splits(o, Cs[c], 4);
            splits(o, Cs[c], 2 + c * 2);
        }
    }
}

/* One step for several sessions at different positions, together and alone. */
static void test_sessions_together(void **state) {
    enum { N = 5, C = 100, W = 4, LEN = 12 };
    static const int64_t lens[N] = {1, 3, 1, 2, 5}; /* of one step; 12 rows in all */
    (void)state;
    for (int b = -1; b < 0 || check_backend(b); b++) {
        const struct hl_ops *o = hl_ops_named(b < 0 ? "cpu-ref" : check_backend(b));
        real *x = check_random(LEN * C, -2, 2, 3), *w = check_random(C * W, -1, 1, 4);
        real *y = check_new(LEN * C), *alone = check_new(LEN * C);
        struct hl_seg seg[N], lone[N];
        struct hl_rows rows = {.T = LEN, .n = N, .seg = seg};
        for (int64_t i = 0, t = 0; i < N; t += lens[i++]) {
            seg[i] = (struct hl_seg){.row = t, .len = lens[i], .state = block_new(W, C)};
            lone[i] = (struct hl_seg){.len = lens[i], .state = block_new(W, C)};
        }
        for (int step = 0; o && step < 4; step++) {
            struct hl_conv a = conv_args(&rows, C, W, x, w, y);
            o->conv_forward(three, &a);
            for (int64_t i = 0, t = 0; i < N; t += lens[i++]) {
                struct hl_rows just = {.T = lens[i], .n = 1, .seg = &lone[i]};
                a = conv_args(&just, C, W, x + t * C, w, alone + t * C);
                o->conv_forward(one, &a);
                seg[i].pos += lens[i];
                lone[i].pos += lens[i];
                assert_memory_equal(tail(seg[i].state), tail(lone[i].state), (W - 1) * C * sizeof(real));
            }
            assert_memory_equal(y, alone, LEN * C * sizeof(real));
        }
        for (int i = 0; i < N; i++) {
            block_free(seg[i].state, W, C);
            block_free(lone[i].state, W, C);
        }
        check_free(x, LEN * C);
        check_free(w, C * W);
        check_free(y, LEN * C);
        check_free(alone, LEN * C);
    }
}

/* A document's rows get the same bits wherever it stands in the batch, dx too. */
static void test_documents_apart(void **state) {
    enum { C = 80, W = 4 };
    (void)state;
    for (int b = -1; b < 0 || check_backend(b); b++) {
        const struct hl_ops *o = hl_ops_named(b < 0 ? "cpu-ref" : check_backend(b));
        struct pw all = {0};
        if (!o) continue;
        conv_build(&all, T, C, W);
        conv_forward(o, one, &all);
        conv_backward(o, three, &all);
        for (int64_t i = 0; i < all.rows.n; i++) {
            struct hl_seg seg = {.len = all.seg[i].len};
            struct hl_rows rows = {.T = seg.len, .n = 1, .seg = &seg};
            struct hl_conv a = all.op.conv;
            int64_t at = all.seg[i].row * C, n = seg.len * C;
            real *y = check_new(n), *dx = check_new(n), *dw = check_zero(C * W);
            a.rows = &rows;
            a.x = (const real *)a.x + at;
            a.dy = (const real *)a.dy + at;
            a.y = y, a.dx = dx, a.dw = dw;
            o->conv_forward(one, &a);
            o->conv_backward(one, &a);
            assert_memory_equal(y, (const real *)all.op.conv.y + at, (size_t)n * sizeof(real));
            assert_memory_equal(dx, (const real *)all.op.conv.dx + at, (size_t)n * sizeof(real));
            check_free(y, n);
            check_free(dx, n);
            check_free(dw, C * W);
        }
        pw_free(&all);
    }
}

static void test_wrong_conv(void **state) {
    enum { C = 24, W = 4 };
    const struct hl_ops *ref = hl_ops_named("cpu-ref");
    struct pw want = {0}, got = {0};
    (void)state;
    conv_build(&want, T, C, W);
    conv_forward(ref, one, &want);
    conv_backward(ref, one, &want);
    conv_build(&got, T, C, W); /* reads across the starts */
    got.rows.n = 1;
    got.seg[0].len = T;
    conv_forward(ref, one, &got);
    conv_backward(ref, one, &got);
    CHECK_FAR((const real *)got.op.conv.y, (const real *)want.op.conv.y, T, C, 1e-2);
    CHECK_FAR((const real *)got.op.conv.dx, (const real *)want.op.conv.dx, T, C, 1e-2);
    CHECK_FAR(got.op.conv.dw, want.op.conv.dw, C, W, 1e-3);
    real *x = pw_get(&got, "x")->p, *y = check_new(T * C);
    for (int i = 0; i < T * C; i++) y[i] = x[i] * hl_sigmoid(x[i]);
    CHECK_FAR(y, (const real *)want.op.conv.y, T, C, 1e-2); /* no convolution */
    for (int i = 0; i < C; i++)                             /* taps in the wrong order: w[0] on the current row */
        for (int j = 0; j < W; j++) pw_get(&got, "w")->p[i * W + j] = want.op.conv.w[i * W + W - 1 - j];
    memcpy(got.seg, want.seg, sizeof got.seg);
    got.rows.n = want.rows.n;
    conv_forward(ref, one, &got);
    CHECK_FAR((const real *)got.op.conv.y, (const real *)want.op.conv.y, T, C, 1e-2);
    check_free(y, T * C);
    pw_free(&want);
    pw_free(&got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_is_whole),
        cmocka_unit_test(test_sessions_together),
        cmocka_unit_test(test_documents_apart),
        cmocka_unit_test(test_wrong_conv),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
