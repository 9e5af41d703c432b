/* test_attention.c -- the fast attention, rotary positions and biases against the reference over shapes and lengths
 * around every tile, page and window; and bit for bit against themselves: any number of threads, any batch, any cut. */
#include "attention_case.h"
#include "ops/attention/attention_cpu.h"

#define BITS(x, y, n) (memcmp(x, y, (size_t)(n) * sizeof(real)) == 0)

static const int64_t lengths[] = {1,
                                  2,
                                  7,
                                  17,
                                  ATTENTION_KEYS - 1,
                                  ATTENTION_KEYS,
                                  ATTENTION_KEYS + 1,
                                  HL_PAGE_TOKENS - 1,
                                  HL_PAGE_TOKENS,
                                  HL_PAGE_TOKENS + 37};
enum { LENGTHS = sizeof lengths / sizeof *lengths, MANY_HEADS = 100, FEW_LENGTHS = 7 }; /* of so many heads, a few */
static int64_t lengths_of(const struct attention_shape *f) { return f->H > MANY_HEADS ? FEW_LENGTHS : LENGTHS; }
static const struct attention_shape shapes[] = {
    {1, 1, 64, 0, 1},   {2, 1, 64, 0, 4},   {4, 2, 32, 0, 1},  {3, 3, 8, 0, 8},    {2, 2, 128, 0, 1},
    {1, 1, 6, 0, 5},    {2, 1, 34, 1, 1},   {2, 2, 16, 2, 1},  {4, 1, 64, 20, 2},  {2, 2, 64, ATTENTION_KEYS - 1, 1},
    {2, 1, 16, 256, 1}, {1, 1, 300, 33, 1}, {140, 1, 4, 0, 2}, {150, 1, 4, 40, 2}, {2, 1, 64, ATTENTION_KEYS + 1, 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes };
/* rows of the first piece, and of every one after it */
static const int64_t cuts[][2] = {{1, 1},    {ATTENTION_KEYS, 1}, {ATTENTION_KEYS - 1, 2},
                                  {100, 31}, {257, 64},           {9999, 1}};
enum { CUTS = sizeof cuts / sizeof *cuts };

static struct hl_backend *open_pool(int threads) {
    return check_backend_open(threads, hl_attention_scratch(1, 1, 512));
}

static void compare(struct hl_backend *pool, const struct attention_shape *f) {
    struct attention_case *c = case_new(f, lengths, lengths_of(f), 11);
    struct attention_result want = result_new(c), got = result_new(c);
    const int64_t q = f->H * f->D, kv = f->HK * f->D;
    run_training(hl_ops_named("cpu-ref"), NULL, c, &want, true);
    for (int b = 0; check_backend(b); b++) {
        if (!hl_ops_named(check_backend(b))) continue;
        run_training(hl_ops_named(check_backend(b)), pool, c, &got, true);
        CHECK_NEAR(got.out, want.out, c->T, q, 2e-6, SHAPE_FMT, SHAPE_ARG(f));
        CHECK_NEAR(got.lse, want.lse, c->T, f->H, 2e-6, SHAPE_FMT, SHAPE_ARG(f));
        CHECK_NEAR(got.dv, want.dv, c->T, kv, 1e-5, SHAPE_FMT, SHAPE_ARG(f));
        if (f->window == 1) continue; /* the others are 0, and only rounding is left */
        CHECK_NEAR(got.dq, want.dq, c->T, q, 4e-5, SHAPE_FMT, SHAPE_ARG(f));
        CHECK_NEAR(got.dk, want.dk, c->T, kv, 4e-5, SHAPE_FMT, SHAPE_ARG(f));
    }
    result_free(c, &want);
    result_free(c, &got);
    case_free(c);
}
static void fast_is_the_reference(void **state) {
    struct hl_backend *pool = open_pool(2);
    (void)state;
    for (int i = 0; i < SHAPES; i++) compare(pool, &shapes[i]);
    hl_backend_close(pool);
}

/* One thread, all segments together, no state: everything else must give these bits. */
static void bits_of(const struct hl_ops *ops, struct hl_backend *one, struct hl_backend *many,
                    const struct attention_shape *f) {
    struct attention_case *c = case_new(f, lengths, lengths_of(f), 12);
    struct attention_result want = result_new(c), got = result_new(c);
    run_training(ops, one, c, &want, true);
    run_training(ops, many, c, &got, true);
    if (!BITS(got.out, want.out, c->q) || !BITS(got.lse, want.lse, c->T * f->H) || !BITS(got.dq, want.dq, c->q) ||
        !BITS(got.dk, want.dk, c->kv) || !BITS(got.dv, want.dv, c->kv))
        fail_msg("threads change the bits: %s, " SHAPE_FMT, ops->name, SHAPE_ARG(f));
    for (int64_t s = 0; s < c->rows.n; s++) { /* each segment alone, at another place */
        struct hl_seg seg = c->seg[s];
        struct hl_rows rows = {.T = c->T, .n = 1, .seg = &seg};
        struct hl_attention a = c->a;
        a.rows = &rows, a.out = got.out, a.lse = got.lse, a.dq = got.dq, a.dk = got.dk, a.dv = got.dv;
        check_poison(got.out, c->q), check_poison(got.dk, c->kv);
        ops->attention_forward(one, &a);
        ops->attention_backward(one, &a);
        const int64_t q = seg.row * f->H * f->D, kv = seg.row * f->HK * f->D;
        if (!BITS(got.out + q, want.out + q, seg.len * f->H * f->D) ||
            !BITS(got.dk + kv, want.dk + kv, seg.len * f->HK * f->D))
            fail_msg("packing changes the bits: %s, " SHAPE_FMT, ops->name, SHAPE_ARG(f));
    }
    for (int i = 0; i < CUTS; i++) {
        check_poison(got.out, c->q);
        run_sessions(ops, cuts[i][1] > 1 ? many : one, c, &got, cuts[i][0], cuts[i][1]);
        if (!BITS(got.out, want.out, c->q))
            fail_msg("pieces of %d, then %d, change the bits: %s, " SHAPE_FMT, (int)cuts[i][0], (int)cuts[i][1],
                     ops->name, SHAPE_ARG(f));
    }
    result_free(c, &want);
    result_free(c, &got);
    case_free(c);
}
static void bits_do_not_depend(void **state) {
    struct hl_backend *one = open_pool(1), *many = open_pool(3);
    (void)state;
    for (int b = 0; check_backend(b); b++)
        for (int i = 0; hl_ops_named(check_backend(b)) && i < SHAPES; i++)
            bits_of(hl_ops_named(check_backend(b)), one, many, &shapes[i]);
    hl_backend_close(one);
    hl_backend_close(many);
}

/* Versions that the comparison must catch: a window that is one key too long, a key head taken modulo, a session that
 * forgets the last row of its ring. */
static void wrong_versions_are_caught(void **state) {
    static const int64_t len[] = {300, 70};
    struct hl_backend *pool = open_pool(1);
    struct attention_case *c = case_new(&(struct attention_shape){4, 2, 16, 40, 2}, len, 2, 13);
    struct attention_result want = result_new(c), got = result_new(c);
    const struct hl_ops *ref = hl_ops_named("cpu-ref"), *fast = hl_ops_named("cpu-base");
    (void)state;
    run_training(ref, NULL, c, &want, true);
    c->a.window++;
    run_training(fast, pool, c, &got, true);
    CHECK_FAR(got.out, want.out, c->T, 64, 1e-4);
    CHECK_FAR(got.dk, want.dk, c->T, 32, 1e-4);
    c->a.window--;
    for (int64_t i = 0; i < c->T * 4; i++) /* heads 1 and 2 change places: groups {0, 2} and {1, 3} */
        if (i % 4 == 1)
            for (int64_t d = 0; d < 16; d++) {
                real *q = (real *)c->a.q + i * 16 + d, keep = q[0];
                q[0] = q[16], q[16] = keep;
            }
    run_training(fast, pool, c, &got, false);
    for (int64_t i = 0; i < c->T * 4; i++)
        if (i % 4 == 1)
            for (int64_t d = 0; d < 16; d++) {
                real *o = got.out + i * 16 + d, keep = o[0];
                o[0] = o[16], o[16] = keep;
            }
    CHECK_FAR(got.out, want.out, c->T, 64, 1e-4);
    result_free(c, &want);
    result_free(c, &got);
    case_free(c);
    hl_backend_close(pool);
}

/* ---- rotary positions and biases ---- */

static void rope_is_the_reference(void **state) {
    static const int64_t heads[][2] = {{1, 2}, {3, 6}, {2, 64}, {4, 34}, {1, 128}, {2, 300}};
    struct hl_backend *one = open_pool(1), *many = open_pool(3);
    const struct hl_seg seg[] = {{.len = 70}, {.row = 70, .len = 1, .pos = 31999}, {.row = 71, .len = 33, .pos = 7}};
    const struct hl_rows rows = {.T = 104, .n = 3, .seg = seg};
    (void)state;
    for (int b = 0; check_backend(b); b++)
        for (size_t i = 0; hl_ops_named(check_backend(b)) && i < sizeof heads / sizeof *heads; i++) {
            const struct hl_ops *ops = hl_ops_named(check_backend(b)), *ref = hl_ops_named("cpu-ref");
            const int64_t H = heads[i][0], D = heads[i][1], n = rows.T * H * D;
            real *x = check_random(n, -1, 1, i), *want = check_new(n), *got = check_new(n), *again = check_new(n);
            struct hl_rope a = {.rows = &rows, .H = H, .D = D, .theta = 10000, .x = x, .y = want};
            ref->rope_forward(NULL, &a);
            a.y = got;
            ops->rope_forward(many, &a);
            CHECK_NEAR(got, want, rows.T, H * D, 2e-6, "rope %s, %d x %d", ops->name, (int)H, (int)D);
            memcpy(again, x, (size_t)n * sizeof(real));
            a.x = a.y = again; /* in place */
            ops->rope_forward(one, &a);
            assert_true(BITS(again, got, n));
            a.dy = a.dx = again;
            ops->rope_backward(many, &a);
            CHECK_NEAR(again, x, rows.T, H * D, 2e-6, "back %s, %d x %d", ops->name, (int)H, (int)D);
            check_free(x, n), check_free(want, n), check_free(got, n), check_free(again, n);
        }
    hl_backend_close(one);
    hl_backend_close(many);
}

static void bias_is_the_reference(void **state) {
    static const int64_t size[][2] = {{1, 1}, {3, 64}, {200, 65}, {65, 130}, {1000, 24}};
    struct hl_backend *pool = open_pool(2);
    (void)state;
    for (int b = 0; check_backend(b); b++)
        for (size_t i = 0; hl_ops_named(check_backend(b)) && i < sizeof size / sizeof *size; i++) {
            const struct hl_ops *ops = hl_ops_named(check_backend(b)), *ref = hl_ops_named("cpu-ref");
            const int64_t M = size[i][0], N = size[i][1];
            real *x = check_random(M * N, -1, 1, 1), *y = check_random(M * N, -1, 1, 1),
                 *bias = check_random(N, -1, 1, 2);
            real *want = check_random(N, -1, 1, 3), *got = check_random(N, -1, 1, 3);
            struct hl_bias a = {.M = M, .N = N, .b = bias, .x = x, .dx = x, .db = want};
            ref->bias_forward(NULL, &a);
            ref->bias_backward(NULL, &a);
            a.x = y, a.dx = y, a.db = got;
            ops->bias_forward(pool, &a);
            ops->bias_backward(pool, &a);
            assert_true(BITS(x, y, M * N));
            CHECK_NEAR(got, want, 1, N, 2e-6, "bias %s, %d x %d", ops->name, (int)M, (int)N);
            check_free(x, M * N), check_free(y, M * N), check_free(bias, N), check_free(want, N), check_free(got, N);
        }
    hl_backend_close(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_is_the_reference),     cmocka_unit_test(bits_do_not_depend),
        cmocka_unit_test(wrong_versions_are_caught), cmocka_unit_test(rope_is_the_reference),
        cmocka_unit_test(bias_is_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
