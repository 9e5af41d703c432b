/* cuda_convnorm.c -- the convolution and the norms of its heads in one pass, on a CUDA device against the
 * reference's ops one by one: rows that lie apart, sequences of all lengths, sessions in pieces, the same
 * bits twice, wrong versions that must be caught; on a real device, its speed. */
#include "cuda_speed.h"

static const struct hl_ops *ref;
static int setup(void **state) {
    (void)state;
    ref = hl_ops_named("cpu-ref");
    return ref == NULL;
}

enum { MOST = 64, GAP = 8 };
struct shape {
    int64_t T, H, K, W;
    bool two, apart; /* both norms; rows of x and dx GAP numbers apart */
};
struct arrays { /* on the host; r: the L2 norm's factors */
    real *x, *w, *gamma, *dy, *dyt, *y, *yt, *dx, *dw, *dgamma, *r;
};
struct cut {
    struct hl_rows rows;
    struct hl_seg seg[MOST];
};

static void cut(struct cut *c, int64_t T) {
    static const int64_t lens[] = {1, 2, 3, 1, 40, 7, 64, 2};
    c->rows = (struct hl_rows){.T = T, .seg = c->seg};
    for (int64_t t = 0; t < T; t += lens[c->rows.n++ % 8]) {
        const int64_t len = lens[c->rows.n % 8];
        assert_true(c->rows.n < MOST);
        c->seg[c->rows.n] = (struct hl_seg){.row = t, .len = t + len < T ? len : T - t};
    }
}
static struct arrays arrays_new(const struct dev *d, const struct shape *s) {
    const int64_t C = s->H * s->K, n = s->T * C;
    struct arrays a = {.x = check_random(n, -2, 2, 1), .w = check_random(C * s->W, -1, 1, 2)};
    a.gamma = check_random(s->K, 0.5, 1.5, 3), a.dy = check_random(n, -1, 1, 4);
    a.dyt = check_random(n, -1, 1, 5), a.dw = check_random(C * s->W, -1, 1, 6);
    a.dgamma = check_random(s->K, -1, 1, 7);
    for (int64_t i = 0; i < C; i++) a.x[i] *= 0.01f; /* a sequence of its own, where the L2 norm's epsilon counts */
    a.y = check_new(n), a.yt = check_new(n), a.dx = check_new(n), a.r = check_new(s->T * s->H);
    dev_round(d, a.x, n), dev_round(d, a.dy, n), dev_round(d, a.dyt, n);
    return a;
}
static void arrays_free(struct arrays *a, const struct shape *s) {
    const int64_t C = s->H * s->K, n = s->T * C;
    real *const big[] = {a->x, a->dy, a->dyt, a->y, a->yt, a->dx};
    for (int i = 0; i < 6; i++) check_free(big[i], n);
    check_free(a->w, C * s->W), check_free(a->dw, C * s->W);
    check_free(a->gamma, s->K), check_free(a->dgamma, s->K), check_free(a->r, s->T * s->H);
}

/* the ops one by one */
static void on_host(const struct dev *d, const struct shape *s, struct arrays *a) {
    const int64_t C = s->H * s->K, n = s->T * C, M = s->T * s->H;
    struct cut c;
    real *between = check_new(n), *d_between = check_new(n), *rt = check_new(M);
    cut(&c, s->T);
    struct hl_conv conv = {.rows = &c.rows, .C = C, .W = s->W, .x = a->x, .w = a->w, .y = between};
    conv.dy = d_between, conv.dx = a->dx, conv.dw = a->dw;
    struct hl_l2norm l = {.M = M, .D = s->K, .x = between, .y = a->y, .r = a->r, .dy = a->dy, .dx = d_between};
    struct hl_rmsnorm m = {.M = M, .D = s->K, .eps = (real)1e-6, .x = between, .w = a->gamma, .y = a->yt};
    m.r = rt, m.dy = a->dyt, m.dx = d_between, m.dw = a->dgamma, m.dx_add = true;
    ref->conv_forward(d->backend, &conv);
    ref->l2norm_forward(d->backend, &l), ref->l2norm_backward(d->backend, &l);
    if (s->two) ref->rmsnorm_forward(d->backend, &m), ref->rmsnorm_backward(d->backend, &m);
    ref->conv_backward(d->backend, &conv);
    check_free(between, n), check_free(d_between, n), check_free(rt, M);
}

/* [T][C] with GAP numbers of NaN after each row, or without */
static void *spread(const struct dev *d, const struct shape *s, const real *x, int64_t C) {
    const int64_t ld = C + (s->apart ? GAP : 0);
    real *wide = check_new(s->T * ld);
    for (int64_t t = 0; x && t < s->T; t++) memcpy(wide + t * ld, x + t * C, (size_t)C * sizeof(real));
    void *p = dev_act(d, wide, s->T * ld);
    check_free(wide, s->T * ld);
    return p;
}
static void gather(const struct dev *d, const struct shape *s, void *p, real *x, int64_t C) {
    const int64_t ld = C + (s->apart ? GAP : 0);
    real *wide = check_new(s->T * ld);
    dev_act_take(d, p, wide, s->T * ld);
    for (int64_t t = 0; t < s->T; t++) {
        memcpy(x + t * C, wide + t * ld, (size_t)C * sizeof(real));
        for (int64_t i = C; i < ld; i++) assert_true(isnan(wide[t * ld + i])); /* not ours to write */
    }
    check_free(wide, s->T * ld);
}

/* whole: as if the rows were one sequence; eps of the RMS norm; forget: the factors on the way back */
static void on_device(const struct dev *d, const struct shape *s, struct arrays *a, bool whole, double eps,
                      bool forget) {
    const int64_t C = s->H * s->K, n = s->T * C, M = s->T * s->H;
    struct cut c;
    cut(&c, s->T);
    if (whole) c.rows.n = 1, c.seg[0].len = s->T;
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &c.rows, 64));
    struct hl_conv conv = {.rows = &c.rows, .C = C, .W = s->W, .x = spread(d, s, a->x, C)};
    conv.w = dev_real(d, a->w, C * s->W), conv.y = dev_act(d, NULL, n), conv.dy = dev_act(d, NULL, n);
    conv.dx = spread(d, s, NULL, C), conv.dw = dev_real(d, a->dw, C * s->W), conv.ld = s->apart ? C + GAP : 0;
    struct hl_l2norm l = {.M = M, .D = s->K, .x = conv.y, .y = dev_act(d, NULL, n)};
    l.r = dev_real(d, NULL, M), l.dy = dev_act(d, a->dy, n), l.dx = (void *)conv.dy;
    struct hl_rmsnorm m = {.M = M, .D = s->K, .eps = (real)eps, .x = conv.y, .y = dev_act(d, NULL, n)};
    m.r = dev_real(d, NULL, M), m.dy = dev_act(d, a->dyt, n), m.dx = l.dx, m.dx_add = true;
    m.w = dev_real(d, a->gamma, s->K), m.dw = dev_real(d, a->dgamma, s->K);
    const struct hl_convnorm all = {&conv, &l, s->two ? &m : NULL};
    d->ops->convnorm_forward(d->backend, &all);
    hl_get(d->backend, a->r, l.r, M * (int64_t)sizeof(real));
    if (forget) hl_copy(d->backend, l.r, l.r + M / 2, M / 2 * (int64_t)sizeof(real));
    d->ops->convnorm_backward(d->backend, &all);
    gather(d, s, conv.dx, a->dx, C);
    dev_act_take(d, l.y, a->y, n), dev_act_take(d, m.y, a->yt, n);
    dev_real_take(d, conv.dw, a->dw, C * s->W), dev_real_take(d, m.dw, a->dgamma, s->K);
    dev_drop(d, conv.x), dev_drop(d, conv.y), dev_drop(d, conv.dy), dev_drop(d, conv.w);
    dev_drop(d, l.r), dev_drop(d, l.dy), dev_drop(d, m.r), dev_drop(d, m.dy), dev_drop(d, m.w);
}

static double distance(const struct shape *s, const struct arrays *a, const struct arrays *b) {
    const int64_t C = s->H * s->K;
    double e = fmax(check_distance(a->y, b->y, s->T, C), check_distance(a->dx, b->dx, s->T, C));
    e = fmax(e, check_distance(a->r, b->r, s->T, s->H));
    e = fmax(e, check_distance(a->dw, b->dw, C, s->W));
    if (!s->two) return e;
    return fmax(e, fmax(check_distance(a->yt, b->yt, s->T, C), check_distance(a->dgamma, b->dgamma, 1, s->K)));
}

static const struct shape shapes[] = {
    {1, 1, 32, 4, true, false},   {150, 2, 64, 4, true, true},   {150, 2, 64, 4, false, false},
    {70, 4, 128, 4, true, false}, {150, 1, 128, 4, true, false}, {40, 2, 256, 4, true, false},
    {41, 3, 16, 4, true, false},  {33, 5, 32, 4, true, true},    {3, 2, 128, 4, true, false},
    {70, 2, 24, 4, true, true},   {70, 2, 17, 4, true, false},   {70, 2, 64, 3, true, false},
    {70, 2, 512, 4, true, false}, /* the last four: one by one here as well */
};
static void test_shapes(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        const double tol = f ? 1e-5 : 4e-3;
        double worst = 0;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const struct shape *s = &shapes[i];
            struct arrays want = arrays_new(&d, s), got = arrays_new(&d, s), again = arrays_new(&d, s);
            on_host(&d, s, &want);
            on_device(&d, s, &got, false, 1e-6, false), on_device(&d, s, &again, false, 1e-6, false);
            assert_true(distance(s, &got, &again) == 0);
            const double e = distance(s, &got, &want);
            if (!(e <= tol)) fail_msg("%s, shape %d: %.3g away", d.ops->name, (int)i, e);
            worst = fmax(worst, e);
            arrays_free(&want, s), arrays_free(&got, s), arrays_free(&again, s);
        }
        print_message("%s: %.2g away\n", d.ops->name, worst);
        dev_close(&d);
    }
}
static void test_wrong(void **state) {
    static const struct shape s = {70, 2, 64, 4, true, false};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        const double tol = f ? 1e-5 : 4e-3;
        const int64_t C = s.H * s.K;
        struct arrays want = arrays_new(&d, &s), got = arrays_new(&d, &s), eps = arrays_new(&d, &s);
        on_host(&d, &s, &want);
        on_device(&d, &s, &got, true, 1e-6, false); /* sequences that run into each other */
        CHECK_FAR(got.y, want.y, s.T, C, tol);
        CHECK_FAR(got.yt, want.yt, s.T, C, tol);
        CHECK_FAR(got.dx, want.dx, s.T, C, tol);
        CHECK_FAR(got.dw, want.dw, C, s.W, tol);
        on_device(&d, &s, &eps, false, 1e-2, false);
        CHECK_FAR(eps.yt, want.yt, s.T, C, tol);
        CHECK_FAR(eps.dgamma, want.dgamma, 1, s.K, tol);
        on_device(&d, &s, &eps, false, 1e-6, true); /* the factors of other rows */
        CHECK_FAR(eps.dx, want.dx, s.T, C, tol);
        arrays_free(&want, &s), arrays_free(&got, &s), arrays_free(&eps, &s);
        dev_close(&d);
    }
}

/* A session fed in two pieces: the rows and the tail of the whole, bit for bit. */
static void test_session(void **state) {
    enum { T = 70, FIRST = 37, K = 64, H = 2, C = H * K, W = 4 };
    static const struct shape s = {T, H, K, W, true, false};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        struct arrays a = arrays_new(&d, &s);
        real *whole[2] = {check_new(T * C), check_new(T * C)}, *tail = check_new((W - 1) * C);
        char *x = dev_act(&d, a.x, T * C), *block = (char *)dev_real(&d, NULL, (W - 1) * C);
        struct hl_conv conv = {.C = C, .W = W, .w = dev_real(&d, a.w, C * W), .y = dev_act(&d, NULL, T * C)};
        struct hl_l2norm l = {.D = K, .x = conv.y, .r = dev_real(&d, NULL, T * H)};
        struct hl_rmsnorm m = {.D = K, .eps = (real)1e-6, .x = conv.y, .r = dev_real(&d, NULL, T * H)};
        m.w = dev_real(&d, a.gamma, K);
        for (int pieces = 1; pieces <= 2; pieces++) {
            char *y = dev_act(&d, NULL, T * C), *yt = dev_act(&d, NULL, T * C);
            for (int i = 0; i < pieces; i++) {
                const int64_t from = i ? FIRST : 0, len = pieces == 1 ? T : i ? T - FIRST : FIRST;
                struct hl_seg seg = {.len = len, .pos = from, .state = block};
                struct hl_rows rows = {.T = len, .n = 1, .seg = &seg};
                CHECK_OK(d.backend->storage.cut_rows(d.backend, &rows, 64));
                conv.rows = &rows, conv.x = x + from * C * d.backend->act_size, l.M = m.M = len * H;
                l.y = y + from * C * d.backend->act_size, m.y = yt + from * C * d.backend->act_size;
                const struct hl_convnorm all = {&conv, &l, &m};
                d.ops->convnorm_forward(d.backend, &all);
            }
            dev_act_take(&d, y, pieces == 1 ? whole[0] : a.y, T * C);
            dev_act_take(&d, yt, pieces == 1 ? whole[1] : a.yt, T * C);
        }
        assert_memory_equal(a.y, whole[0], (size_t)(T * C) * sizeof(real));
        assert_memory_equal(a.yt, whole[1], (size_t)(T * C) * sizeof(real));
        dev_real_take(&d, (real *)block, tail, (W - 1) * C);
        assert_memory_equal(tail, a.x + (T - W + 1) * C, (size_t)((W - 1) * C) * sizeof(real));
        dev_drop(&d, x), dev_drop(&d, conv.w), dev_drop(&d, conv.y), dev_drop(&d, l.r), dev_drop(&d, m.r);
        dev_drop(&d, m.w);
        check_free(whole[0], T * C), check_free(whole[1], T * C), check_free(tail, (W - 1) * C);
        arrays_free(&a, &s);
        dev_close(&d);
    }
}

static void time_heads(const struct dev *d, int64_t H, int64_t K) {
    enum { T = 65536, N = 32 };
    const int64_t C = H * K, n = T * C;
    char what[64];
    struct hl_seg seg[N];
    struct hl_rows rows = {.T = T, .n = N, .seg = seg};
    for (int i = 0; i < N; i++) seg[i] = (struct hl_seg){.row = i * (T / N), .len = T / N};
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, 64));
    void *x[6];
    for (int i = 0; i < 6; i++) x[i] = noise(d, n, false);
    struct hl_conv conv = {.rows = &rows, .C = C, .W = 4, .x = x[0], .dx = x[1]};
    conv.w = noise(d, C * 4, true), conv.dw = noise(d, C * 4, true);
    struct hl_l2norm l = {.M = T * H, .D = K, .y = x[2], .dy = x[3], .r = noise(d, T * H, true)};
    struct hl_rmsnorm m = {.M = T * H, .D = K, .eps = (real)1e-6, .y = x[4], .dy = x[5]};
    m.w = noise(d, K, true), m.dw = noise(d, K, true);
    const struct hl_convnorm both = {&conv, &l, &m}, alone = {&conv, &l, NULL};
    snprintf(what, sizeof what, "convnorm fwd %d x %d", (int)H, (int)K);
    TIME(d, what, n * 6, d->ops->convnorm_forward(d->backend, &both));
    snprintf(what, sizeof what, "convnorm bwd %d x %d", (int)H, (int)K);
    TIME(d, what, n * 8, d->ops->convnorm_backward(d->backend, &both));
    snprintf(what, sizeof what, "one norm, fwd %d x %d", (int)H, (int)K);
    TIME(d, what, n * 4, d->ops->convnorm_forward(d->backend, &alone));
    snprintf(what, sizeof what, "one norm, bwd %d x %d", (int)H, (int)K);
    TIME(d, what, n * 6, d->ops->convnorm_backward(d->backend, &alone));
    for (int i = 0; i < 6; i++) dev_drop(d, x[i]);
    dev_drop(d, conv.w), dev_drop(d, conv.dw), dev_drop(d, m.w), dev_drop(d, m.dw), dev_drop(d, l.r);
}
static void test_speed(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    if (!dev_slow(&d)) time_heads(&d, 4, 128), time_heads(&d, 4, 256), time_heads(&d, 8, 64);
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_session),
        cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
