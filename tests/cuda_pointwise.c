/* cuda_pointwise.c -- norms, gate, swiglu and conv on a CUDA device against the reference; sessions of the
 * convolution; the same bits twice; wrong versions that must be caught; on a real device, their speed. */
#include "cuda_speed.h"
#include "pointwise.h"

static const struct hl_ops *ref;
static int setup(void **state) {
    (void)state;
    ref = hl_ops_named("cpu-ref");
    return ref == NULL;
}

/* ---- a case on the device: every array has a twin there, and the op's pointers are changed to those ---- */

static bool is_real(const char *name) {
    static const char *const reals[] = {"w",     "dw",    "r",      "g",       "dg",      "beta",
                                        "dbeta", "A_log", "dA_log", "dt_bias", "ddt_bias"};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (!strcmp(name, reals[i])) return true;
    return false;
}
static void round_acts(const struct dev *d, struct pw *c) {
    for (int i = 0; i < c->n; i++)
        if (!is_real(c->v[i].name) && !c->v[i].out) dev_round(d, c->v[i].p, c->v[i].rows * c->v[i].width);
}
static void run_on_device(const struct dev *d, const struct kind *k, struct pw *c) {
    struct pw there = *c;
    void *twin[MAX_ARRAYS];
    for (int i = 0; i < c->n; i++) {
        const int64_t n = c->v[i].rows * c->v[i].width;
        twin[i] = is_real(c->v[i].name) ? (void *)dev_real(d, c->v[i].p, n) : dev_act(d, c->v[i].p, n);
        for (size_t w = 0; w < sizeof there.op / sizeof(void *); w++)
            if (!memcmp((char *)&there.op + w * sizeof(void *), &c->v[i].p, sizeof(void *)))
                memcpy((char *)&there.op + w * sizeof(void *), &twin[i], sizeof(void *));
    }
    if (k == &kind_conv) {
        there.rows.seg = there.seg, there.op.conv.rows = &there.rows;
        CHECK_OK(d->backend->storage.cut_rows(d->backend, &there.rows, 64));
    }
    k->forward(d->ops, d->backend, &there);
    k->backward(d->ops, d->backend, &there);
    for (int i = 0; i < c->n; i++) {
        const int64_t n = c->v[i].rows * c->v[i].width;
        if (is_real(c->v[i].name)) dev_real_take(d, twin[i], c->v[i].p, n);
        else dev_act_take(d, twin[i], c->v[i].p, n);
    }
}

static double worst_seen[2];
static void compare(const struct dev *d, const struct kind *k, int64_t M, int64_t D, int variant) {
    struct pw want = {0}, got = {0}, again = {0};
    const char *name;
    k->build(&want, M, D, variant), k->build(&got, M, D, variant), k->build(&again, M, D, variant);
    round_acts(d, &want), round_acts(d, &got), round_acts(d, &again);
    k->forward(ref, d->backend, &want);
    k->backward(ref, d->backend, &want);
    run_on_device(d, k, &got);
    run_on_device(d, k, &again);
    const double e = pw_distance(&got, &want, &name), tol = d->f32 ? 1e-5 : 3e-3;
    if (e > worst_seen[d->f32]) worst_seen[d->f32] = e;
    if (!(e <= tol))
        fail_msg("%s %s variant %d, %d x %d: %s is %.3g away", d->ops->name, k->name, variant, (int)M, (int)D, name, e);
    for (int i = 0; i < got.n; i++)
        assert_memory_equal(got.v[i].p, again.v[i].p, (size_t)(got.v[i].rows * got.v[i].width) * sizeof(real));
    pw_free(&want), pw_free(&got), pw_free(&again);
}

extern int hl_emu_sms __attribute__((weak)); /* the emulated device's multiprocessors */
enum { DESIGNS = 4 };                        /* each op's own choice, 0, 1, 2 */
/* The designs whose blocks iterate run on one multiprocessor, so that they do so here as well. */
static void all_variants(const struct kind *k, const int64_t *Ms, const int64_t *Ds, int shapes) {
    const int usual = hl_pointwise_design, sms = &hl_emu_sms ? hl_emu_sms : 0;
    worst_seen[0] = worst_seen[1] = 0;
    for (int f = 0; f < 2 * DESIGNS; f++) {
        hl_pointwise_design = f / 2 - 1;
        if (sms) hl_emu_sms = hl_pointwise_design != 0 ? 1 : sms;
        struct dev d = dev_open(f % 2);
        for (int i = 0; i < shapes; i++)
            for (int v = 0; v < k->variants; v++)
                if (!dev_slow(&d) || Ms[i] * Ds[i] <= (dev_least() ? 6000 : 40000)) compare(&d, k, Ms[i], Ds[i], v);
        dev_close(&d);
    }
    hl_pointwise_design = usual;
    if (sms) hl_emu_sms = sms;
    print_message("%s: %.2g away with bf16, %.2g with float\n", k->name, worst_seen[0], worst_seen[1]);
}

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
static void test_rmsnorm(void **state) {
    static const int64_t Ms[] = {1,  7,  33,   64, 300,  2,    9,   5,   3,  40, 20,   5,   2,
                                 70, 37, 1500, 19, 1031, 1201, 257, 141, 77, 0,  2000, 5000};
    static const int64_t Ds[] = {16,  24,   64, 80,   100, 128, 256, 512, 1024, 1,  200,  2048, 4100,
                                 512, 1024, 16, 2048, 32,  32,  128, 264, 520,  16, 1024, 128};
    (void)state;
    all_variants(&kind_rms, Ms, Ds, COUNT(Ms));
}
static void test_l2norm(void **state) {
    static const int64_t Ms[] = {1, 7, 33, 64, 30, 9, 5, 3, 0, 5000},
                         Ds[] = {16, 24, 64, 80, 100, 128, 256, 2048, 16, 256};
    (void)state;
    all_variants(&kind_l2, Ms, Ds, COUNT(Ms));
}
/* Both norms of one x in one op: what the reference's two give, one after the other. */
static void both_norms(const struct dev *d, int64_t M, int64_t D, bool dx_add, bool wrong) {
    const int64_t n = M * D;
    real *host[] = {check_random(n, -0.01, 0.01, 1), check_random(n, -1, 1, 2),    check_random(n, -1, 1, 3),
                    check_random(n, -1, 1, 4),       check_random(D, 0.5, 1.5, 5), check_random(D, -1, 1, 6)};
    real *want[] = {check_new(n), check_new(n), check_new(M), check_new(M)}, *got[2], *dw = check_new(D);
    enum { X, DY_L2, DY_RMS, DX, W, DW, ARRAYS };
    for (int i = X; i <= DX; i++) dev_round(d, host[i], n);
    void *there[ARRAYS];
    for (int i = 0; i < ARRAYS; i++) there[i] = i < W ? dev_act(d, host[i], n) : dev_real(d, host[i], D);
    struct hl_l2norm l2 = {.M = M, .D = D, .x = host[X], .y = want[0], .r = want[2], .dy = host[DY_L2]};
    struct hl_rmsnorm rms = {.M = M, .D = D, .eps = (real)1e-6, .x = host[X], .w = host[W], .y = want[1]};
    rms.r = want[3], rms.dy = host[DY_RMS], rms.dw = host[DW];
    l2.dx = rms.dx = host[DX], l2.dx_add = dx_add, rms.dx_add = true;
    struct hl_l2norm a = l2;
    struct hl_rmsnorm b = rms;
    ref->l2norm_forward(d->backend, &l2), ref->rmsnorm_forward(d->backend, &rms);
    ref->l2norm_backward(d->backend, &l2), ref->rmsnorm_backward(d->backend, &rms);
    a.x = b.x = there[X], a.dy = there[DY_L2], b.dy = there[DY_RMS], a.dx = b.dx = there[DX];
    b.w = there[W], b.dw = there[DW];
    a.y = dev_act(d, NULL, n), b.y = dev_act(d, NULL, n);
    a.r = dev_real(d, NULL, M), b.r = dev_real(d, NULL, M);
    const struct hl_twonorm two = {&a, &b};
    d->ops->twonorm_forward(d->backend, &two);
    if (wrong) b.dy = there[DY_L2]; /* this must be seen */
    d->ops->twonorm_backward(d->backend, &two);
    for (int i = 0; i < 2; i++) got[i] = check_new(n), dev_act_take(d, i ? b.y : a.y, got[i], n);
    const double tol = d->f32 ? 1e-5 : 3e-3;
    for (int i = 0; i < 2; i++) CHECK_NEAR(got[i], want[i], M, D, tol, "norm %d of %d", i, (int)D);
    dev_act_take(d, there[DX], got[0], n), dev_real_take(d, there[DW], dw, D);
    if (wrong) {
        CHECK_FAR(got[0], host[DX], M, D, tol);
        CHECK_FAR(dw, host[DW], 1, D, tol);
    } else {
        CHECK_NEAR(got[0], host[DX], M, D, tol, "dx of %d", (int)D);
        CHECK_NEAR(dw, host[DW], 1, D, tol, "dw of %d", (int)D);
    }
    for (int i = 0; i < ARRAYS; i++) check_free(host[i], i < W ? n : D);
    for (int i = 0; i < 2; i++) check_free(want[i], n), check_free(want[2 + i], M), check_free(got[i], n);
    check_free(dw, D);
    dev_drop(d, there[DY_L2]), dev_drop(d, there[DY_RMS]), dev_drop(d, there[X]), dev_drop(d, there[W]);
    dev_drop(d, a.r), dev_drop(d, b.r);
}
static void test_twonorm(void **state) {
    static const int64_t Ms[] = {1, 7, 300, 33, 70, 9, 5, 3}, Ds[] = {16, 64, 128, 256, 512, 40, 100, 1024};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int i = 0; i < COUNT(Ms); i++) both_norms(&d, Ms[i], Ds[i], i % 3 == 2, false);
        both_norms(&d, 70, 128, false, true);
        dev_close(&d);
    }
}
static void test_gate(void **state) {
    static const int64_t Ms[] = {1, 7, 300, 1000, 65, 3, 0, 4000}, Ds[] = {1, 4, 6, 16, 40, 300, 4, 8};
    (void)state;
    all_variants(&kind_gate, Ms, Ds, COUNT(Ms));
}
static void test_kda_gate(void **state) {
    static const int64_t Ms[] = {1, 7, 300, 65, 3, 0, 100}, Ds[] = {1, 64, 40, 5, 300, 8, 128};
    (void)state;
    all_variants(&kind_kda_gate, Ms, Ds, COUNT(Ms));
}
static void test_map(void **state) {
    static const int64_t Ms[] = {1, 7, 33, 300, 0, 2000}, Ds[] = {1, 24, 100, 65, 16, 128};
    (void)state;
    all_variants(&kind_map, Ms, Ds, COUNT(Ms));
}
static void test_swiglu(void **state) {
    static const int64_t Ms[] = {1, 7, 3, 100}, Ds[] = {16, 101, 2816, 4001};
    (void)state;
    all_variants(&kind_swiglu, Ms, Ds, COUNT(Ms));
}

/* gate and up side by side in rows of both: the bits of two arrays, and nothing between the rows is touched */
static void test_swiglu_rows(void **state) {
    static const int64_t Ds[] = {24, 20, 8};
    enum { M = 37, GAP = 8 };
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int i = 0; i < 3; i++) {
            const int64_t D = Ds[i], ld = 2 * D + GAP, n = M * D;
            real *rows = check_random(M * ld, -3, 3, 5), *dy = check_random(n, -1, 1, 6), *got = check_new(M * ld),
                 *part[2] = {check_new(n), check_new(n)}, *y[2] = {check_new(n), check_new(n)};
            dev_round(&d, rows, M * ld);
            for (int64_t k = 0; k < 2 * n; k++) part[k / n][k % n] = rows[k % n / D * ld + k / n * D + k % D];
            char *x = dev_act(&d, rows, M * ld);
            struct hl_swiglu a = {.M = M, .D = D, .ld = ld, .gate = x, .up = x + D * d.backend->act_size};
            struct hl_swiglu b = {.M = M, .D = D, .gate = dev_act(&d, part[0], n), .up = dev_act(&d, part[1], n)};
            a.dgate = (void *)a.gate, a.dup = (void *)a.up, b.dgate = (void *)b.gate, b.dup = (void *)b.up;
            a.dy = b.dy = dev_act(&d, dy, n), a.y = dev_act(&d, NULL, n), b.y = dev_act(&d, NULL, n);
            d.ops->swiglu_forward(d.backend, &a), d.ops->swiglu_forward(d.backend, &b);
            d.ops->swiglu_backward(d.backend, &a), d.ops->swiglu_backward(d.backend, &b);
            dev_act_take(&d, a.y, y[0], n), dev_act_take(&d, b.y, y[1], n), dev_act_take(&d, x, got, M * ld);
            dev_act_take(&d, (void *)b.gate, part[0], n), dev_act_take(&d, (void *)b.up, part[1], n);
            assert_memory_equal(y[0], y[1], (size_t)n * sizeof(real));
            for (int64_t k = 0; k < M * ld; k++) {
                const int64_t col = k % ld, at = k / ld * D + col % D;
                assert_true(got[k] == (col < 2 * D ? part[col / D][at] : rows[k]));
            }
            dev_drop(&d, a.dy);
            check_free(rows, M * ld), check_free(got, M * ld), check_free(dy, n);
            for (int k = 0; k < 2; k++) check_free(part[k], n), check_free(y[k], n);
        }
        dev_close(&d);
    }
}
static void test_conv(void **state) {
    static const int64_t Ms[] = {1, 3, 31, 32, 33, 64, 150, 150, 70, 0, 35, 19, 301, 300, 100};
    static const int64_t Ds[] = {16, 24, 64, 100, 40, 16, 24, 17, 300, 16, 1024, 2048, 128, 264, 1032};
    (void)state;
    all_variants(&kind_conv, Ms, Ds, COUNT(Ms));
}

/* ---- the convolution's sessions ---- */

enum { ROWS = 70, OFF = 64 };

/* Feeds x [ROWS][C] in pieces of the lengths given (the last one repeated) to two sessions, the second of
 * which is one piece behind; y and the tails must be those of the whole, bit for bit. */
static void splits(const struct dev *d, int64_t C, int64_t W) {
    static const int64_t lens[][4] = {{ROWS}, {1}, {2, 1}, {1, 5, 3, 1}, {40, 1, 2, 33}};
    static const int counts[] = {1, 1, 2, 4, 4};
    const int64_t bytes = OFF + (W - 1) * C * (int64_t)sizeof(real), size = d->backend->act_size;
    real *x = check_random(ROWS * C, -2, 2, 1), *w = check_random(C * W, -1, 1, 2);
    real *whole = check_new(ROWS * C), *y = check_new(2 * ROWS * C), *tail = check_new((W - 1) * C);
    dev_round(d, x, ROWS * C);
    struct hl_seg one = {.len = ROWS};
    struct hl_rows rows = {.T = ROWS, .n = 1, .seg = &one};
    struct hl_conv a = {.rows = &rows, .C = C, .W = W, .tail_off = OFF};
    char *dx = dev_act(d, x, ROWS * C), *in = dev_act(d, NULL, 2 * ROWS * C), *out = dev_act(d, NULL, 2 * ROWS * C);
    a.w = dev_real(d, w, C * W), a.x = dx, a.y = dev_act(d, NULL, ROWS * C);
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, 64));
    d->ops->conv_forward(d->backend, &a); /* a training segment: no state */
    dev_act_take(d, a.y, whole, ROWS * C);
    for (int s = 0; s < 5; s += dev_least() ? 4 : 1) {
        real *block[2] = {dev_real(d, NULL, bytes / 4), dev_real(d, NULL, bytes / 4)}; /* NaN: not to be read */
        int64_t at[2] = {0, 0};
        for (int i = 0; at[0] < ROWS || at[1] < ROWS; i++) {
            struct hl_seg seg[2];
            struct hl_rows piece = {.seg = seg};
            for (int j = 0; j < 2; j++) { /* the second session is one piece behind */
                const int turn = i - j;
                const int64_t len = turn < 0 ? 0 : lens[s][turn < counts[s] ? turn : counts[s] - 1];
                const int64_t take = at[j] + len < ROWS ? len : ROWS - at[j];
                if (take == 0) continue;
                seg[piece.n++] = (struct hl_seg){.row = piece.T, .len = take, .pos = at[j], .state = (char *)block[j]};
                hl_copy(d->backend, in + piece.T * C * size, dx + at[j] * C * size, take * C * size);
                piece.T += take;
            }
            a.rows = &piece, a.x = in, a.y = out;
            CHECK_OK(d->backend->storage.cut_rows(d->backend, &piece, 64));
            d->ops->conv_forward(d->backend, &a);
            real *part = check_new(piece.T * C);
            void *copy = hl_alloc(d->backend, piece.T * C * size);
            hl_copy(d->backend, copy, out, piece.T * C * size);
            dev_act_take(d, copy, part, piece.T * C);
            for (int64_t k = 0; k < piece.n; k++) {
                const int j = seg[k].state == (char *)block[1];
                memcpy(y + (j * ROWS + at[j]) * C, part + seg[k].row * C, (size_t)(seg[k].len * C) * sizeof(real));
                at[j] += seg[k].len;
            }
            check_free(part, piece.T * C);
        }
        for (int j = 0; j < 2; j++) {
            assert_memory_equal(y + j * ROWS * C, whole, (size_t)(ROWS * C) * sizeof(real));
            hl_get(d->backend, tail, (char *)block[j] + OFF, (W - 1) * C * (int64_t)sizeof(real));
            assert_memory_equal(tail, x + (ROWS - W + 1) * C, (size_t)((W - 1) * C) * sizeof(real));
            dev_drop(d, block[j]);
        }
    }
    dev_drop(d, dx), dev_drop(d, in), dev_drop(d, out), dev_drop(d, a.w);
    check_free(x, ROWS * C), check_free(w, C * W), check_free(whole, ROWS * C);
    check_free(y, 2 * ROWS * C), check_free(tail, (W - 1) * C);
}
static void test_conv_sessions(void **state) {
    const int usual = hl_pointwise_design;
    (void)state;
    for (int f = 0; f < 2 * DESIGNS; f++) {
        hl_pointwise_design = f / 2 - 1;
        struct dev d = dev_open(f % 2);
        splits(&d, 16, 4), splits(&d, 17, 4);
        if (!dev_least() && f < 2) splits(&d, 24, 2), splits(&d, 136, 3), splits(&d, 8, 8);
        dev_close(&d);
    }
    hl_pointwise_design = usual;
}

/* ---- wrong versions: what the device computes for a slightly different question must be seen ---- */

static void test_wrong(void **state) {
    enum { M = 70, D = 64 };
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        const double tol = f ? 1e-5 : 3e-3;
        struct pw want = {0}, got = {0};
        rms_build(&want, M, D, 1), rms_build(&got, M, D, 1);
        round_acts(&d, &want), round_acts(&d, &got);
        kind_rms.forward(ref, d.backend, &want), kind_rms.backward(ref, d.backend, &want);
        got.op.rms.eps = (real)1.1e-6;
        run_on_device(&d, &kind_rms, &got);
        CHECK_FAR(pw_get(&got, "y")->p, pw_get(&want, "y")->p, M, D, tol);
        CHECK_FAR(pw_get(&got, "dx")->p, pw_get(&want, "dx")->p, M, D, tol);
        pw_free(&want), pw_free(&got);
        want = got = (struct pw){0};
        conv_build(&want, M, D, 4), conv_build(&got, M, D, 4);
        round_acts(&d, &want), round_acts(&d, &got);
        kind_conv.forward(ref, d.backend, &want), kind_conv.backward(ref, d.backend, &want);
        got.rows.n = 1, got.seg[0].len = M; /* sequences that run into each other */
        run_on_device(&d, &kind_conv, &got);
        CHECK_FAR(pw_get(&got, "y")->p, pw_get(&want, "y")->p, M, D, tol);
        CHECK_FAR(pw_get(&got, "dx")->p, pw_get(&want, "dx")->p, M, D, tol);
        CHECK_FAR(pw_get(&got, "dw")->p, pw_get(&want, "dw")->p, D, 4, tol);
        pw_free(&want), pw_free(&got);
        dev_close(&d);
    }
}

/* ---- speed ---- */

enum { BIG = 65536 };

static void time_norms(const struct dev *d, void *const *x, int64_t D) {
    char what[64];
    const int64_t M = (int64_t)BIG * 1024 / D, n = (int64_t)BIG * 1024;
    float *w = noise(d, D, true), *dw = noise(d, D, true), *r = noise(d, M, true);
    struct hl_rmsnorm a = {.M = M, .D = D, .eps = (real)1e-6, .x = x[0], .w = w, .y = x[1], .r = r};
    a.dy = x[2], a.dx = x[3], a.dw = dw;
    snprintf(what, sizeof what, "rmsnorm fwd %d", (int)D);
    TIME(d, what, n * 4, d->ops->rmsnorm_forward(d->backend, &a));
    snprintf(what, sizeof what, "rmsnorm bwd %d", (int)D);
    TIME(d, what, n * 6, d->ops->rmsnorm_backward(d->backend, &a));
    a.dx_add = true;
    snprintf(what, sizeof what, "rmsnorm bwd %d, added", (int)D);
    TIME(d, what, n * 8, d->ops->rmsnorm_backward(d->backend, &a));
    a.dx_add = false, a.z = x[4], a.dz = x[5];
    snprintf(what, sizeof what, "rmsnorm fwd %d, gated", (int)D);
    TIME(d, what, n * 6, d->ops->rmsnorm_forward(d->backend, &a));
    snprintf(what, sizeof what, "rmsnorm bwd %d, gated", (int)D);
    TIME(d, what, n * 10, d->ops->rmsnorm_backward(d->backend, &a));
    struct hl_l2norm l = {.M = M, .D = D, .x = x[0], .y = x[1], .r = r, .dy = x[2], .dx = x[3]};
    snprintf(what, sizeof what, "l2norm fwd %d", (int)D);
    TIME(d, what, n * 4, d->ops->l2norm_forward(d->backend, &l));
    snprintf(what, sizeof what, "l2norm bwd %d", (int)D);
    TIME(d, what, n * 6, d->ops->l2norm_backward(d->backend, &l));
    dev_drop(d, w), dev_drop(d, dw), dev_drop(d, r);
}
static void time_conv(const struct dev *d, void *const *x) {
    enum { C = 1024, N = 32 };
    const int64_t n = (int64_t)BIG * C;
    struct hl_seg seg[N];
    struct hl_rows rows = {.T = BIG, .n = N, .seg = seg};
    for (int i = 0; i < N; i++) seg[i] = (struct hl_seg){.row = i * (BIG / N), .len = BIG / N};
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, 64));
    struct hl_conv a = {.rows = &rows, .C = C, .W = 4, .x = x[0], .y = x[1], .dy = x[2], .dx = x[3]};
    a.w = noise(d, C * 4, true), a.dw = noise(d, C * 4, true);
    TIME(d, "conv fwd 1024", n * 4, d->ops->conv_forward(d->backend, &a));
    TIME(d, "conv bwd 1024", n * 6, d->ops->conv_backward(d->backend, &a));
    dev_drop(d, a.w), dev_drop(d, a.dw);
}
static void time_rest(const struct dev *d, void *const *x) {
    enum { H = 4, I = 2816 };
    const int64_t n = (int64_t)BIG * I, h = (int64_t)BIG * H;
    struct hl_swiglu s = {.M = BIG, .D = I, .gate = x[0], .up = x[1], .y = x[2], .dy = x[3]};
    s.dgate = x[4], s.dup = x[5];
    TIME(d, "swiglu fwd 2816", n * 6, d->ops->swiglu_forward(d->backend, &s));
    TIME(d, "swiglu bwd 2816", n * 10, d->ops->swiglu_backward(d->backend, &s));
    struct hl_gate g = {.T = BIG, .H = H, .a = x[0], .b = x[1], .da = x[2], .db = x[3]};
    float *r[6];
    for (int i = 0; i < 6; i++) r[i] = noise(d, h, true);
    g.A_log = r[0], g.dt_bias = r[0] + 64, g.g = r[1], g.beta = r[2], g.dg = r[3], g.dbeta = r[4];
    g.dA_log = r[5], g.ddt_bias = r[5] + 64;
    TIME(d, "gate fwd 4 heads", h * 12, d->ops->gate_forward(d->backend, &g));
    TIME(d, "gate bwd 4 heads", h * 20, d->ops->gate_backward(d->backend, &g));
    for (int i = 0; i < 6; i++) dev_drop(d, r[i]);
}
static void test_speed(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    if (!dev_slow(&d)) {
        void *x[6];
        for (int i = 0; i < 6; i++) x[i] = noise(&d, (int64_t)BIG * 2816, false);
        time_norms(&d, x, 1024), time_norms(&d, x, 256), time_norms(&d, x, 128);
        time_conv(&d, x);
        time_rest(&d, x);
        for (int i = 0; i < 6; i++) dev_drop(&d, x[i]);
    }
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),       cmocka_unit_test(test_l2norm),      cmocka_unit_test(test_twonorm),
        cmocka_unit_test(test_gate),          cmocka_unit_test(test_kda_gate),    cmocka_unit_test(test_map),
        cmocka_unit_test(test_swiglu),        cmocka_unit_test(test_swiglu_rows), cmocka_unit_test(test_conv),
        cmocka_unit_test(test_conv_sessions), cmocka_unit_test(test_wrong),       cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
