/* cuda_attention.c -- softmax attention and rotary positions on a GPU against the references: head sizes, groups,
 * windows, packed documents around every tile size, joint rows, sessions cut at any place, the same bits every time and
 * for any cut, mistakes that must be seen. */
#define _POSIX_C_SOURCE 200809L
#include "cuda_attention.h"
#include "cuda_older.h"

/* bf16: P, dS and the results are rounded */
static double tolerance(const struct dev *d) { return d->f32 ? 2e-5 : 6e-3; }

static double worst[2][3]; /* by build: out, lse, gradients */
static void note(const struct dev *d, int what, const real *got, const real *want, int64_t rows, int64_t width) {
    worst[d->f32][what] = fmax(worst[d->f32][what], check_distance(got, want, rows, width));
}

static void check_result(const struct dev *d, const struct attention_case *c, const struct attention_shape *f,
                         const struct attention_result *got, const struct attention_result *want, bool backward) {
    const int64_t q = f->H * f->D, kv = f->HK * f->D;
    const double tol = tolerance(d);
    note(d, 0, got->out, want->out, c->T, q);
    note(d, 1, got->lse, want->lse, c->T, f->H);
    CHECK_NEAR(got->out, want->out, c->T, q, tol, SHAPE_FMT, SHAPE_ARG(f));
    CHECK_NEAR(got->lse, want->lse, c->T, f->H, tol, SHAPE_FMT, SHAPE_ARG(f));
    if (!backward) return;
    note(d, 2, got->dq, want->dq, c->T, q);
    note(d, 2, got->dk, want->dk, c->T, kv);
    note(d, 2, got->dv, want->dv, c->T, kv);
    CHECK_NEAR(got->dq, want->dq, c->T, q, 2 * tol, SHAPE_FMT, SHAPE_ARG(f));
    CHECK_NEAR(got->dk, want->dk, c->T, kv, 2 * tol, SHAPE_FMT, SHAPE_ARG(f));
    CHECK_NEAR(got->dv, want->dv, c->T, kv, 2 * tol, SHAPE_FMT, SHAPE_ARG(f));
}

/* A training pass, joint rows or not. */
static void compare(const struct dev *d, const struct attention_shape *f, const int64_t *len, int64_t n, bool joint) {
    struct attention_case *c = dev_case(d, f, len, n, 7);
    struct hl_backend *host = check_backend_open(1, 0);
    struct attention_result want = result_new(c), got = result_new(c);
    run_training(hl_ops_named("cpu-ref"), host, c, &want, true);
    dev_training(d, c, &got, joint, true);
    check_result(d, c, f, &got, &want, true);
    result_free(c, &want), result_free(c, &got);
    hl_backend_close(host);
    case_free(c);
}

static const int64_t edges[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 2, 256, 257};
enum { EDGES = sizeof edges / sizeof *edges };

static void shapes(void **state) {
    static const struct attention_shape shape[] = {
        {2, 2, 64, 0, 2},  {4, 1, 64, 0, 2},   {2, 1, 128, 0, 2},  {3, 3, 128, 0, 8},   {2, 1, 64, 2, 2},
        {1, 1, 64, 63, 2}, {1, 1, 128, 64, 2}, {2, 1, 64, 128, 2}, {1, 1, 128, 129, 2}, {2, 2, 64, 200, 2},
        {2, 1, 16, 0, 2},  {2, 2, 10, 0, 2},   {1, 1, 80, 33, 2},  {1, 1, 256, 0, 2},   {1, 1, 300, 0, 2}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
            const bool slow = dev_slow(&d), plain = f32 || shape[i].D % 64 || shape[i].D > 128;
            if (dev_least() && i % 3) continue;
            compare(&d, &shape[i], edges, !slow ? EDGES : plain ? 6 : i < 4 ? EDGES - 1 : 10, i % 2);
        }
        dev_close(&d);
    }
    print_message("bf16: out %.1e lse %.1e gradients %.1e; f32: %.1e %.1e %.1e\n", worst[0][0], worst[0][1],
                  worst[0][2], worst[1][0], worst[1][1], worst[1][2]);
}

/* One long sequence, more tiles than there are blocks. */
static void long_sequence(void **state) {
    static const struct attention_shape shape[] = {{2, 1, 128, 0, 4}, {2, 2, 64, 300, 4}};
    (void)state;
    struct dev d = dev_open(false);
    const int64_t len[2] = {dev_slow(&d) ? 700 : 3000, 130};
    for (int i = 0; i < 2; i++) compare(&d, &shape[i], len, 2, false);
    dev_close(&d);
}

/* Chips before Hopper. */
static void older(void **state) {
    static const int64_t len[] = {66, 1, 130};
    static const struct attention_shape shape[] = {{2, 1, 64, 0, 2}, {1, 1, 128, 50, 2}};
    (void)state;
    struct dev d = dev_open_older();
    for (int i = 0; i < 2; i++) compare(&d, &shape[i], len, 3, false);
    dev_close_older(&d);
}

/* Sessions cut at odd places: the reference's results; where no piece is a single row, the bits of one pass. */
static void sessions(void **state) {
    static const struct attention_shape shape[] = {{2, 1, 64, 0, 2},    {2, 2, 128, 0, 2}, {2, 1, 64, 100, 2},
                                                   {1, 1, 128, 128, 2}, {2, 1, 64, 7, 2},  {2, 1, 24, 0, 2},
                                                   {1, 1, 20, 5, 2}};
    static const int64_t cut[][2] = {{1000, 1000}, {1, 1}, {17, 1}, {100, 77}, {129, 3}, {256, 1}, {255, 130}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        struct hl_backend *host = check_backend_open(1, 0);
        for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
            const struct attention_shape *f = &shape[i];
            const bool wgmma = !f32 && f->D % 64 == 0;
            const int64_t len[3] = {dev_slow(&d) && f32 ? 131 : 290, 65, 130};
            struct attention_case *c = dev_case(&d, f, len, 3, 11);
            struct attention_result want = result_new(c), whole = result_new(c), got = result_new(c);
            run_training(hl_ops_named("cpu-ref"), host, c, &want, false);
            dev_training(&d, c, &whole, false, false);
            for (size_t j = 0; j < sizeof cut / sizeof *cut; j++) {
                if (dev_slow(&d) && (i + j) % 3 && (j > 1 || i > 2)) continue;
                if (dev_least() && j > 2) continue;
                check_poison(got.out, c->q);
                dev_sessions(&d, c, &got, cut[j][0], cut[j][1]);
                CHECK_NEAR(got.out, want.out, c->T, f->H * f->D, tolerance(&d), "cut %d, %d; " SHAPE_FMT,
                           (int)cut[j][0], (int)cut[j][1], SHAPE_ARG(f));
                if (wgmma && (cut[j][0] == 1000 || cut[j][0] == 100))
                    assert_memory_equal(got.out, whole.out, c->q * sizeof(real));
            }
            result_free(c, &want), result_free(c, &whole), result_free(c, &got);
            case_free(c);
        }
        hl_backend_close(host);
        dev_close(&d);
    }
}

/* The same bits every time; a document's do not depend on what it is packed with; nor a session's on the others. */
static void same_bits(void **state) {
    static const int64_t len[] = {140, 20, 129};
    (void)state;
    struct dev d = dev_open(false);
    for (int64_t D = 64; D <= 128; D *= 2) {
        const struct attention_shape f = {2, 1, D, 0, 2};
        const int64_t q = 2 * D;
        struct attention_case *all = dev_case(&d, &f, len, 3, 5), *one = dev_case(&d, &f, len, 1, 5);
        struct attention_result x = result_new(all), y = result_new(all), z = result_new(one);
        dev_training(&d, all, &x, false, true);
        dev_training(&d, all, &y, false, true);
        memcpy((real *)one->a.q, all->a.q, one->q * sizeof(real));
        memcpy((real *)one->a.k, all->a.k, one->kv * sizeof(real));
        memcpy((real *)one->a.v, all->a.v, one->kv * sizeof(real));
        memcpy((real *)one->a.dout, all->a.dout, one->q * sizeof(real));
        dev_training(&d, one, &z, false, true);
        assert_memory_equal(x.out, y.out, all->q * sizeof(real));
        assert_memory_equal(x.dq, y.dq, all->q * sizeof(real));
        assert_memory_equal(x.dk, y.dk, all->kv * sizeof(real));
        assert_memory_equal(x.dv, y.dv, all->kv * sizeof(real));
        assert_memory_equal(x.out, z.out, len[0] * q * sizeof(real));
        assert_memory_equal(x.dq, z.dq, len[0] * q * sizeof(real));
        assert_memory_equal(x.dk, z.dk, len[0] * D * sizeof(real));
        assert_memory_equal(x.dv, z.dv, len[0] * D * sizeof(real));
        dev_sessions(&d, all, &x, 138, 1);
        dev_sessions(&d, one, &z, 138, 1);
        assert_memory_equal(x.out, z.out, len[0] * q * sizeof(real));
        result_free(all, &x), result_free(all, &y), result_free(one, &z);
        case_free(all), case_free(one);
    }
    dev_close(&d);
}

/* Wrong ones: a window off by one, documents that see each other, a head of another group, the diagonal left out. */
static void mistakes(void **state) {
    static const int64_t len[] = {130, 40}, joined[] = {170};
    static const struct attention_shape f = {4, 2, 64, 60, 2};
    (void)state;
    struct dev d = dev_open(false);
    const double tol = 2 * tolerance(&d);
    const int64_t q = f.H * f.D, kv = f.HK * f.D;
    struct hl_backend *host = check_backend_open(1, 0);
    struct attention_case *c = dev_case(&d, &f, len, 2, 3), *one = dev_case(&d, &f, joined, 1, 3);
    struct attention_result want = result_new(c), got = result_new(c);
    run_training(hl_ops_named("cpu-ref"), host, c, &want, true);
    for (int wrong = 0; wrong < 3; wrong++) {
        struct attention_case *x = wrong == 1 ? one : c;
        struct hl_attention keep = x->a;
        if (wrong == 0) x->a.window = 59;
        if (wrong == 2) x->a.scale *= (real)1.03;
        dev_training(&d, x, &got, false, true);
        x->a = keep;
        CHECK_FAR(got.out, want.out, c->T, q, tol);
        CHECK_FAR(got.dq, want.dq, c->T, q, tol);
        CHECK_FAR(got.dk, want.dk, c->T, kv, tol);
        CHECK_FAR(got.dv, want.dv, c->T, kv, tol);
    }
    dev_sessions(&d, c, &got, 100, 1);
    CHECK_NEAR(got.out, want.out, c->T, q, tol, "sessions");
    c->a.window = 59;
    dev_sessions(&d, c, &got, 100, 1);
    CHECK_FAR(got.out, want.out, c->T, q, tol);
    result_free(c, &want), result_free(c, &got);
    case_free(c), case_free(one);
    hl_backend_close(host);
    dev_close(&d);
}

/* ---- rotary positions ---- */

static void rope(void **state) {
    static const int64_t size[] = {64, 128, 16, 10, 256, 24};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        struct hl_backend *host = check_backend_open(1, 0);
        for (size_t i = 0; i < sizeof size / sizeof *size; i++)
            for (int joint = 0; joint < 2; joint++) {
                const int64_t D = size[i], H = 3, ld = H * D + 16 * joint, T = 3 + 130 + 9;
                struct hl_seg seg[3] = {
                    {.row = 0, .len = 3, .pos = 100000}, {.row = 3, .len = 130}, {133, 9, 255, NULL}};
                struct hl_rows rows = {.T = T, .n = 3, .seg = seg, .tiled = true};
                struct hl_rope a = {.rows = &rows, .H = H, .D = D, .theta = 10000};
                real *x = check_random(T * H * D, -1, 1, 3), *want = check_new(T * H * D), *got = check_new(T * ld);
                dev_round(&d, x, T * H * D);
                for (int backward = 0; backward < 2; backward++) {
                    a.x = a.dy = x, a.y = a.dx = want, a.ld = 0;
                    (backward ? hl_ops_named("cpu-ref")->rope_backward : hl_ops_named("cpu-ref")->rope_forward)(host,
                                                                                                                &a);
                    for (int64_t t = 0; t < T; t++) memcpy(got + t * ld, x + t * H * D, (size_t)(H * D) * sizeof(real));
                    for (int64_t t = 0; t < T; t++)
                        for (int64_t j = H * D; j < ld; j++) got[t * ld + j] = 0;
                    void *dev = dev_act(&d, got, T * ld);
                    CHECK_OK(d.backend->storage.cut_rows(d.backend, &rows, 64));
                    a.x = a.y = dev, a.dy = a.dx = dev, a.ld = joint ? ld : 0;
                    (backward ? d.ops->rope_backward : d.ops->rope_forward)(d.backend, &a);
                    dev_act_take(&d, dev, got, T * ld);
                    for (int64_t t = 0; t < T; t++)
                        CHECK_NEAR(got + t * ld, want + t * H * D, 1, H * D, f32 ? 1e-5 : 4e-3, "row %d, D %d", (int)t,
                                   (int)D);
                    CHECK_FAR(got + 4 * ld, want + 5 * H * D, 1, H * D, 1e-2);
                    for (int64_t t = 0; t < T; t++)
                        for (int64_t j = H * D; j < ld; j++) assert_true(got[t * ld + j] == 0);
                }
                check_free(x, T * H * D), check_free(want, T * H * D), check_free(got, T * ld);
            }
        hl_backend_close(host);
        dev_close(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rope),          cmocka_unit_test(shapes),
                                       cmocka_unit_test(long_sequence), cmocka_unit_test(older),
                                       cmocka_unit_test(sessions),      cmocka_unit_test(same_bits),
                                       cmocka_unit_test(mistakes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
