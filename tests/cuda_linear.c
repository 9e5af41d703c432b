/* cuda_linear.c -- linear layers on a CUDA device against the reference: GEMMs, the small-M and
 * small-N kernels, rows whose bits do not depend on M, the same bits twice, wrong versions that
 * must be caught, and, on a real device, the speed of decoding. */
#include "cuda_speed.h"

static const struct hl_ops *ref;
static int setup(void **state) {
    (void)state;
    ref = hl_ops_named("cpu-ref");
    return ref == NULL;
}

struct layer {
    int64_t M, K, N[HL_LINEAR_MAX];
    int n;
    bool out_real, add, other, dx_add; /* add to out; other: to the same numbers elsewhere */
};
struct arrays { /* on the host */
    real *x, *dx, *W[HL_LINEAR_MAX], *out[HL_LINEAR_MAX], *dout[HL_LINEAR_MAX], *dW[HL_LINEAR_MAX];
};

static struct arrays arrays_new(const struct dev *d, const struct layer *l) {
    struct arrays a;
    a.x = check_random(l->M * l->K, -1, 1, 1), a.dx = check_random(l->M * l->K, -1, 1, 2);
    dev_round(d, a.x, l->M * l->K), dev_round(d, a.dx, l->M * l->K);
    for (int p = 0; p < l->n; p++) {
        const int64_t out = l->M * l->N[p], w = l->N[p] * l->K;
        a.W[p] = check_random(w, -1, 1, 10u + p), a.dW[p] = check_random(w, -1, 1, 20u + p);
        a.out[p] = check_random(out, -1, 1, 30u + p), a.dout[p] = check_random(out, -1, 1, 40u + p);
        dev_round(d, a.W[p], w), dev_round(d, a.dout[p], out);
        if (!l->out_real) dev_round(d, a.out[p], out);
    }
    return a;
}
static void arrays_free(struct arrays *a, const struct layer *l) {
    check_free(a->x, l->M * l->K), check_free(a->dx, l->M * l->K);
    for (int p = 0; p < l->n; p++) {
        check_free(a->W[p], l->N[p] * l->K), check_free(a->dW[p], l->N[p] * l->K);
        check_free(a->out[p], l->M * l->N[p]), check_free(a->dout[p], l->M * l->N[p]);
    }
}
static struct hl_linear host_args(const struct layer *l, const struct arrays *a) {
    struct hl_linear s = {.M = l->M, .K = l->K, .x = a->x, .n = l->n, .dx = a->dx};
    s.out_real = l->out_real, s.dx_add = l->dx_add;
    for (int p = 0; p < l->n; p++) {
        s.part[p] = (struct hl_linear_part){.out = a->out[p], .dout = a->dout[p], .dW = a->dW[p]};
        if (l->add || l->other) s.part[p].from = a->out[p];
        s.part[p].W =
            (struct hl_weight){.data = a->W[p], .layout = HL_ROWS, .dtype = HOLA_F32, .rows = l->N[p], .cols = l->K};
    }
    return s;
}
static void on_device(const struct dev *d, const struct layer *l, struct arrays *a, bool backward) {
    struct hl_linear s = host_args(l, a);
    s.x = dev_act(d, a->x, l->M * l->K), s.dx = dev_act(d, a->dx, l->M * l->K);
    for (int p = 0; p < l->n; p++) {
        const int64_t out = l->M * l->N[p], w = l->N[p] * l->K;
        s.part[p].W.data = dev_act(d, a->W[p], w), s.part[p].dW = dev_real(d, a->dW[p], w);
        s.part[p].out = l->out_real ? (void *)dev_real(d, a->out[p], out) : dev_act(d, a->out[p], out);
        s.part[p].dout = dev_act(d, a->dout[p], out);
        if (l->add) s.part[p].from = s.part[p].out;
        if (l->other) { /* and out itself starts as nothing */
            s.part[p].from = s.part[p].out;
            s.part[p].out = l->out_real ? (void *)dev_real(d, NULL, out) : dev_act(d, NULL, out);
        }
    }
    d->ops->linear_forward(d->backend, &s);
    if (backward) d->ops->linear_backward(d->backend, &s);
    dev_drop(d, s.x), dev_act_take(d, s.dx, a->dx, l->M * l->K);
    for (int p = 0; p < l->n; p++) {
        const int64_t out = l->M * l->N[p], w = l->N[p] * l->K;
        dev_drop(d, s.part[p].W.data), dev_real_take(d, s.part[p].dW, a->dW[p], w);
        if (l->out_real) dev_real_take(d, s.part[p].out, a->out[p], out);
        else dev_act_take(d, s.part[p].out, a->out[p], out);
        dev_drop(d, s.part[p].dout);
        if (l->other) dev_drop(d, s.part[p].from);
    }
}

static double worst_seen[2];
static double distance(const struct layer *l, const struct arrays *a, const struct arrays *b) {
    double e = check_distance(a->dx, b->dx, l->M, l->K);
    for (int p = 0; p < l->n; p++) {
        e = fmax(e, check_distance(a->out[p], b->out[p], l->M, l->N[p]));
        e = fmax(e, check_distance(a->dW[p], b->dW[p], l->N[p], l->K));
    }
    return e;
}
static void compare(const struct dev *d, const struct layer *l) {
    struct arrays want = arrays_new(d, l), got = arrays_new(d, l), again = arrays_new(d, l);
    const struct hl_linear s = host_args(l, &want);
    const double tol = d->f32 ? 5e-6 : 6e-3;
    on_device(d, l, &got, true);
    on_device(d, l, &again, true);
    assert_true(distance(l, &got, &again) == 0);
    ref->linear_forward(d->backend, &s);
    ref->linear_backward(d->backend, &s);
    const double e = distance(l, &got, &want);
    if (!(e <= tol))
        fail_msg("%s: %d x %d, %d parts, first of %d: %.3g away", d->ops->name, (int)l->M, (int)l->K, l->n,
                 (int)l->N[0], e);
    worst_seen[d->f32] = fmax(worst_seen[d->f32], e);
    got.dW[l->n - 1][0] += 10, got.out[l->n - 1][0] += 10; /* one wrong number shows */
    assert_true(distance(l, &got, &want) > tol);
    arrays_free(&want, l), arrays_free(&got, l), arrays_free(&again, l);
}

static const struct layer layers[] = {
    {1, 16, {4}, .n = 1},
    {3, 24, {5, 40, 1}, .n = 3, .add = true},
    {3, 24, {5, 40, 1}, .n = 3, .other = true},
    {16, 304, {20, 4}, .n = 2, .other = true},
    {33, 40, {24, 4, 4}, .n = 3, .other = true},
    {40, 64, {24, 40}, .n = 2, .out_real = true, .other = true},
    {8, 100, {7}, .n = 1, .out_real = true},
    {2, 1032, {12, 4, 4}, .n = 3, .out_real = true, .add = true},
    {5, 300, {64}, .n = 1, .dx_add = true},
    {9, 16, {4}, .n = 1},
    {16, 304, {20, 4}, .n = 2, .add = true},
    {17, 64, {32, 4, 4}, .n = 3, .dx_add = true},
    {33, 40, {24, 4, 4}, .n = 3, .add = true},
    {130, 264, {4, 4}, .n = 2, .out_real = true},
    {70, 72, {6, 6, 40, 1, 16, 16}, .n = 6, .out_real = true, .add = true},
    {100, 100, {16, 4}, .n = 2, .dx_add = true},
    {64, 32, {16, 16}, .n = 2},
    {40, 48, {17}, .n = 1},
    {50, 264, {70, 4}, .n = 2, .out_real = true, .other = true},
    {65, 264, {70, 4}, .n = 2},
};
static const struct layer big_layers[] = {
    {100, 1024, {1024, 512, 4, 4}, .n = 4},
    {4100, 512, {8, 8}, .n = 2, .dx_add = true},
    {40, 2816, {1024}, .n = 1, .add = true},
};
static void test_linear(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) compare(&d, &layers[i]);
        for (size_t i = 0; !dev_slow(&d) && i < sizeof big_layers / sizeof *big_layers; i++)
            compare(&d, &big_layers[i]);
        dev_close(&d);
    }
    print_message("linear: %.2g away with bf16, %.2g with float\n", worst_seen[0], worst_seen[1]);
}

/* decoding: a row has the same bits among any number up to 64 (float: eight) */
static void test_few_rows(void **state) {
    static const int Ms[] = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63};
    struct layer l = {.K = 520, .N = {37, 4}, .n = 2, .out_real = true};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        const int most = f ? 8 : 64;
        for (int wide = 1; wide <= (f ? 1 : 4); wide++) { /* every number of outputs of a block */
            l.N[0] = wide * (dev_slow(&d) ? 30 : 1000), l.M = most;
            struct arrays all = arrays_new(&d, &l);
            on_device(&d, &l, &all, false);
            for (size_t i = 0; i < sizeof Ms / sizeof *Ms && Ms[i] < most; i += dev_least() ? 6 : 1) {
                l.M = Ms[i];
                struct arrays some = arrays_new(&d, &l);
                on_device(&d, &l, &some, false);
                for (int p = 0; p < l.n; p++)
                    assert_memory_equal(some.out[p], all.out[p], (size_t)(l.M * l.N[p]) * sizeof(real));
                arrays_free(&some, &l);
            }
            l.M = most;
            arrays_free(&all, &l);
        }
        dev_close(&d);
    }
}

/* Parts that lie side by side in every row, as do their weights: the parts one by one, and the room between the
 * rows stays as it is, NaN; with `room`, that up to a multiple of 8 outputs may become 0. swapped: the parts' weights
 * are given in another order, which must show. */
static double side_by_side(const struct dev *d, const struct layer *l, bool room, bool swapped) {
    enum { GAP = 8 };
    struct arrays want = arrays_new(d, l), got = arrays_new(d, l);
    const struct hl_linear ask = host_args(l, &want);
    struct hl_linear a = {.M = l->M, .K = l->K, .n = l->n};
    int64_t all = 0, at = 0;
    for (int p = 0; p < l->n; p++) all += l->N[p];
    const int64_t ld = all + GAP, M = l->M, K = l->K, size = d->backend->act_size;
    real *W = check_new(all * K), *dW = check_new(all * K), *out = check_new(M * ld), *dout = check_new(M * ld);
    for (int p = 0; p < l->n; at += l->N[p++]) {
        memcpy(W + at * K, want.W[p], (size_t)(l->N[p] * K) * sizeof(real));
        memcpy(dW + at * K, want.dW[p], (size_t)(l->N[p] * K) * sizeof(real));
        for (int64_t m = 0; m < M; m++)
            memcpy(dout + m * ld + at, want.dout[p] + m * l->N[p], (size_t)l->N[p] * sizeof(real));
    }
    char *dev_W = dev_act(d, W, all * K), *dev_out = dev_act(d, out, M * ld), *dev_dout = dev_act(d, dout, M * ld);
    real *dev_dW = dev_real(d, dW, all * K);
    a.x = dev_act(d, want.x, M * K), a.dx = dev_act(d, NULL, M * K), a.ld = ld, a.room = room;
    at = 0;
    for (int p = 0; p < l->n; at += l->N[p++])
        a.part[p] = (struct hl_linear_part){.W = {dev_W + at * K * size, HL_ROWS, HOLA_BF16, l->N[p], K},
                                            .out = dev_out + at * size,
                                            .dout = dev_dout + at * size,
                                            .dW = dev_dW + at * K};
    if (swapped) {
        const void *first = a.part[0].W.data;
        a.part[0].W.data = a.part[1].W.data, a.part[1].W.data = first;
    }
    d->ops->linear_forward(d->backend, &a);
    d->ops->linear_backward(d->backend, &a);
    ref->linear_forward(d->backend, &ask);
    ref->linear_backward(d->backend, &ask);
    dev_act_take(d, dev_out, out, M * ld), dev_real_take(d, dev_dW, dW, all * K);
    dev_act_take(d, a.dx, got.dx, M * K);
    at = 0;
    for (int p = 0; p < l->n; at += l->N[p++]) {
        memcpy(got.dW[p], dW + at * K, (size_t)(l->N[p] * K) * sizeof(real));
        for (int64_t m = 0; m < M; m++)
            memcpy(got.out[p] + m * l->N[p], out + m * ld + at, (size_t)l->N[p] * sizeof(real));
    }
    for (int64_t m = 0; m < M; m++)
        for (int64_t i = all; i < ld; i++)
            assert_true(isnan(out[m * ld + i]) || (room && i < (all + 7) / 8 * 8 && out[m * ld + i] == 0));
    const double e = distance(l, &got, &want);
    dev_drop(d, dev_W), dev_drop(d, dev_dout), dev_drop(d, a.x);
    check_free(W, all * K), check_free(dW, all * K), check_free(out, M * ld), check_free(dout, M * ld);
    arrays_free(&want, l), arrays_free(&got, l);
    return e;
}
static void test_side_by_side(void **state) {
    static const struct layer some[] = {{40, 64, {24, 24, 16, 4, 4, 16}, .n = 6},
                                        {3, 40, {8, 8}, .n = 2},
                                        {70, 32, {16, 16, 8}, .n = 3},
                                        {70, 64, {24, 24, 8, 4}, .n = 4},
                                        {33, 40, {3, 16}, .n = 2}};
    static const struct layer big = {8200, 16, {512, 1024, 4, 4, 512}, .n = 5};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        const double tol = f ? 5e-6 : 6e-3;
        for (int i = 0; i < 10; i++) {
            assert_true(side_by_side(&d, &some[i / 2], i % 2, false) <= tol);
            assert_true(side_by_side(&d, &some[i / 2], i % 2, true) > tol);
        }
        if (!dev_slow(&d)) assert_true(side_by_side(&d, &big, false, false) <= tol);
        dev_close(&d);
    }
}

/* ---- speed ---- */

enum { SETS = 64 }; /* of weights, so that they are not in the cache already */

static void time_few_rows(const struct dev *d, int64_t M, int64_t K, const int64_t *N, int n) {
    char what[64];
    int64_t all = 0;
    struct hl_linear a = {.M = M, .K = K, .n = n};
    for (int p = 0; p < n; p++) all += N[p];
    const int sets =
        (int)(((int64_t)1 << 30) / (all * K * 2)) < SETS ? (int)(((int64_t)1 << 30) / (all * K * 2)) : SETS;
    char *W = noise(d, sets * all * K, false);
    a.x = noise(d, M * K, false);
    for (int p = 0; p < n; p++) {
        a.part[p].W = (struct hl_weight){.layout = HL_ROWS, .dtype = HOLA_BF16, .rows = N[p], .cols = K};
        a.part[p].out = noise(d, M * N[p], false);
    }
    for (int round = 0; round < 2; round++) {
        if (round == 1) hl_cuda_timer_start(hl_cuda_of(d->backend));
        for (int r = 0; r < REPEATS; r++)
            for (int s = 0; s < sets; s++) {
                char *at = W + s * all * K * 2;
                for (int p = 0; p < n; at += N[p++] * K * 2) a.part[p].W.data = at;
                d->ops->linear_forward(d->backend, &a);
            }
    }
    const double t = hl_cuda_timer_stop(hl_cuda_of(d->backend)) / (REPEATS * sets);
    snprintf(what, sizeof what, "%d row%s, %d x %d, %d parts", (int)M, M == 1 ? "" : "s", (int)all, (int)K, n);
    print_message("%-28s %8.2f us  %6.0f GB/s\n", what, 1e6 * t, 1e-9 * (double)(all * K * 2) / t);
    dev_drop(d, W), dev_drop(d, a.x);
    for (int p = 0; p < n; p++) dev_drop(d, a.part[p].out);
}
static void time_training(const struct dev *d) {
    enum { M = 65536, K = 1024 };
    static const int64_t N[6] = {1024, 1024, 1024, 1024, 4, 4};
    struct hl_linear a = {.M = M, .K = K, .x = noise(d, (int64_t)M * K, false), .dx = noise(d, (int64_t)M * K, false)};
    for (int p = 0; p < 6; p++) {
        a.part[p].W = (struct hl_weight){noise(d, N[p] * K, false), HL_ROWS, HOLA_BF16, N[p], K, false};
        a.part[p].out = noise(d, M * N[p], false), a.part[p].dout = noise(d, M * N[p], false);
        a.part[p].dW = noise(d, N[p] * K, true);
    }
    const double ops = 2.0 * M * K * 4096;
    a.n = 4;
    TIME(d, "4 products fwd (Gop/s)", ops, d->ops->linear_forward(d->backend, &a));
    TIME(d, "4 products bwd (Gop/s)", 2 * ops, d->ops->linear_backward(d->backend, &a));
    a.n = 6;
    TIME(d, "and 2 of small N fwd", ops, d->ops->linear_forward(d->backend, &a));
    TIME(d, "and 2 of small N bwd", 2 * ops, d->ops->linear_backward(d->backend, &a));
    struct hl_linear t = a;
    t.n = 2, t.part[0] = a.part[4], t.part[1] = a.part[5], t.dx_add = true;
    TIME(d, "2 of small N fwd", 2.0 * M * K, d->ops->linear_forward(d->backend, &t));
    TIME(d, "2 of small N bwd", 6.0 * M * K, d->ops->linear_backward(d->backend, &t));
    struct hl_linear h = {.M = 8192, .K = K, .n = 1, .x = a.x};
    h.part[0].W = (struct hl_weight){noise(d, 32000 * K, false), HL_ROWS, HOLA_BF16, 32000, K, false};
    h.part[0].out = noise(d, (int64_t)8192 * 32000, false);
    TIME(d, "8192 x 32000 x 1024 (Gop/s)", 2.0 * 8192 * 32000 * K, d->ops->linear_forward(d->backend, &h));
    dev_drop(d, h.part[0].W.data), dev_drop(d, h.part[0].out);
    dev_drop(d, a.x), dev_drop(d, a.dx);
    for (int p = 0; p < 6; p++) {
        dev_drop(d, a.part[p].W.data), dev_drop(d, a.part[p].out), dev_drop(d, a.part[p].dout);
        dev_drop(d, a.part[p].dW);
    }
}
/* KDA's at 46m: the joint row of 3 x 512, 2 x 128 and 4 outputs, without the 4, with them, and padded; then from 128 of
 * its columns to 512 outputs. */
static void time_kda(const struct dev *d) {
    enum { M = 65536, K = 512, LD = 1856, LOW = 128 };
    static const int64_t rows[3] = {1792, 1796, 1796};
    struct hl_linear a = {.M = M, .K = K, .n = 1, .ld = LD}, up = {.M = M, .K = LOW, .n = 1, .ldx = LD};
    a.x = noise(d, (int64_t)M * K, false), a.dx = noise(d, (int64_t)M * K, false);
    a.part[0].W = (struct hl_weight){noise(d, LD * K, false), HL_ROWS, HOLA_BF16, 0, K, HOLA_PRECISION_AUTO};
    a.part[0].out = noise(d, (int64_t)M * LD, false), a.part[0].dout = noise(d, (int64_t)M * LD, false);
    a.part[0].dW = noise(d, LD * K, true);
    for (int i = 0; i < 3; i++) {
        const double ops = 2.0 * M * K * (double)(a.part[0].W.rows = rows[i]);
        a.room = i == 2;
        print_message("%d outputs%s:\n", (int)rows[i], a.room ? ", padded" : "");
        TIME(d, "fwd (Gop/s)", ops, d->ops->linear_forward(d->backend, &a));
        TIME(d, "bwd (Gop/s)", 2 * ops, d->ops->linear_backward(d->backend, &a));
    }
    up.x = a.part[0].out, up.dx = (void *)a.part[0].dout, up.part[0] = a.part[0];
    up.part[0].W.rows = K, up.part[0].W.cols = LOW, up.part[0].out = a.dx, up.part[0].dout = a.x;
    TIME(d, "128 to 512 fwd", 2.0 * M * (LOW + K), d->ops->linear_forward(d->backend, &up));
    TIME(d, "128 to 512 bwd", 4.0 * M * (LOW + K), d->ops->linear_backward(d->backend, &up));
    dev_drop(d, a.x), dev_drop(d, a.dx), dev_drop(d, a.part[0].W.data), dev_drop(d, a.part[0].dW);
    dev_drop(d, a.part[0].out), dev_drop(d, a.part[0].dout);
}
static void test_speed(void **state) {
    static const int64_t one[] = {1024}, layer[] = {1024, 1024, 1024, 1024, 4, 4}, mlp[] = {2816, 2816},
                         head[] = {32000};
    static const int64_t Ms[] = {1, 8, 16, 32, 64};
    struct dev d = dev_open(false);
    (void)state;
    if (!dev_slow(&d)) {
        for (int i = 0; i < 5; i++) {
            time_few_rows(&d, Ms[i], 1024, one, 1), time_few_rows(&d, Ms[i], 2816, one, 1);
            time_few_rows(&d, Ms[i], 1024, layer, 6), time_few_rows(&d, Ms[i], 1024, mlp, 2);
            time_few_rows(&d, Ms[i], 1024, head, 1);
        }
        time_training(&d);
        time_kda(&d);
    }
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
