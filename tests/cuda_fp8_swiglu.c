/* cuda_fp8_swiglu.c -- SwiGLU in one op with the layer before it (gate_up_backward) or behind it (down_forward,
 * down_backward): the results are those of the two ops to the bit; where the matrix between them exists only as codes;
 * wrong versions. */
#include "cuda.h"

extern int hl_emu_no_fp8 __attribute__((weak)); /* the emulated library lacks these products */

struct layer {
    int64_t M, D, K, ld; /* ld: of gate and up, side by side */
    bool plain;          /* weights that are not in FP8 */
    int without;         /* products that the library lacks */
    bool codes_alone;    /* whether the numbers between the two ops exist as codes alone */
};
struct result {
    real *pair, *dx, *dW;
};
enum how { APART, TOGETHER, WITH_OTHER_DY, EXCHANGED };

static struct result results(const struct dev *d, const struct layer *l, enum how how) {
    const int64_t pair = l->M * l->ld, n = l->M * l->D, x = l->M * l->K, w = 2 * l->D * l->K;
    real *in[5] = {check_random(pair, -4, 4, 1), check_random(n, -1, 1, how == WITH_OTHER_DY ? 9 : 2),
                   check_random(x, -1, 1, 3), check_random(w, -1, 1, 4), check_random(w, -1, 1, 5)};
    for (int i = 0; i < 4; i++) dev_round(d, in[i], (int64_t[]){pair, n, x, w}[i]);
    uint16_t *gate = dev_act(d, in[0], pair), *up = gate + l->D;
    void *dx = dev_act(d, NULL, x), *dy = dev_act(d, in[1], n), *W = dev_act(d, in[3], w), *at = dev_act(d, in[2], x);
    real *dW = dev_real(d, in[4], w);
    struct hl_gate_up a = {
        .swiglu = {.M = l->M, .D = l->D, .gate = gate, .up = up, .ld = l->ld, .dy = dy, .dgate = gate, .dup = up},
        .linear = {.M = l->M, .K = l->K, .x = at, .dx = dx, .ld = l->ld, .n = 2}};
    if (how == EXCHANGED) a.swiglu.gate = up, a.swiglu.up = gate;
    for (int p = 0; p < 2; p++)
        a.linear.part[p] =
            (struct hl_linear_part){.dout = p ? up : gate,
                                    .dW = dW + p * l->D * l->K,
                                    .W = {.data = (uint16_t *)W + p * l->D * l->K,
                                          .layout = HL_ROWS,
                                          .dtype = HOLA_BF16,
                                          .rows = l->D,
                                          .cols = l->K,
                                          .precision = l->plain ? HOLA_PRECISION_AUTO : HOLA_PRECISION_FP8}};
    d->backend->fp8->stale(d->backend);
    if (how == APART) {
        d->ops->swiglu_backward(d->backend, &a.swiglu);
        d->ops->linear_backward(d->backend, &a.linear);
    } else d->ops->gate_up_backward(d->backend, &a);
    const struct result r = {check_new(pair), check_new(x), check_new(w)};
    dev_act_take(d, gate, r.pair, pair), dev_act_take(d, dx, r.dx, x), dev_real_take(d, dW, r.dW, w);
    dev_drop(d, dy), dev_drop(d, W), dev_drop(d, at);
    for (int i = 0; i < 5; i++) check_free(in[i], (int64_t[]){pair, n, x, w, w}[i]);
    return r;
}
static void drop(struct result *r, const struct layer *l) {
    check_free(r->pair, l->M * l->ld), check_free(r->dx, l->M * l->K), check_free(r->dW, 2 * l->D * l->K);
}
static bool same(const struct result *a, const struct result *b, const struct layer *l) {
    return !memcmp(a->dx, b->dx, (size_t)(l->M * l->K) * sizeof(real)) &&
           !memcmp(a->dW, b->dW, (size_t)(2 * l->D * l->K) * sizeof(real));
}
/* gate and up as they were */
static bool untouched(const struct dev *d, const struct result *r, const struct layer *l) {
    real *pair = check_random(l->M * l->ld, -4, 4, 1);
    dev_round(d, pair, l->M * l->ld);
    const bool is = !memcmp(pair, r->pair, (size_t)(l->M * l->ld) * sizeof(real));
    check_free(pair, l->M * l->ld);
    return is;
}

static struct dev open_fp8(void) {
    struct dev d = dev_open(false);
    if (d.backend->fp8->open(d.backend, &(struct hl_fp8_sizes){0}) != HOLA_OK) {
        print_message("%s\n", hola_last_error());
        dev_close(&d);
        skip();
    }
    return d;
}
/* Every layer on a device that has not been asked for a product yet. */
static void each(const struct layer *layers, size_t n, void (*check)(const struct dev *, const struct layer *)) {
    for (size_t i = 0; i < n; i++) {
        if (layers[i].without && !&hl_emu_no_fp8) continue;
        struct dev d = open_fp8();
        if (layers[i].without) hl_emu_no_fp8 = layers[i].without;
        check(&d, &layers[i]);
        if (layers[i].without) hl_emu_no_fp8 = 0;
        dev_close(&d);
    }
}

/* Whether the library had every product that it was asked for: a real one may lack some of these small ones. */
static bool has_all(const struct dev *d) {
    return dev_emulated(d->backend) || d->backend->fp8->refused(d->backend) == 0;
}

static void check_gate_up(const struct dev *d, const struct layer *l) {
    struct result want = results(d, l, APART), got = results(d, l, TOGETHER);
    struct result other = results(d, l, WITH_OTHER_DY), exchanged = results(d, l, EXCHANGED);
    if (!same(&want, &got, l)) fail_msg("%d x %d x %d: not those of the two ops", (int)l->M, (int)l->D, (int)l->K);
    assert_false(same(&want, &other, l) || same(&want, &exchanged, l));
    if (has_all(d)) assert_int_equal(untouched(d, &got, l), l->codes_alone);
    assert_false(untouched(d, &want, l));
    drop(&want, l), drop(&got, l), drop(&other, l), drop(&exchanged, l);
}
static void gate_up_as_two_ops(void **state) {
    static const struct layer layers[] = {
        {16, 128, 16, 256, .codes_alone = true},  {144, 128, 64, 256, .codes_alone = true},
        {400, 256, 80, 512, .codes_alone = true}, {272, 128, 48, 320, .codes_alone = true}, /* a gap in every row */
        {144, 96, 64, 192, .plain = false}, /* a block of 128 would be of both */
        {40, 128, 64, 256, .plain = false}, /* too few rows for FP8 */
        {144, 128, 64, 256, .plain = true},       {144, 128, 64, 256, .without = 1},
        {144, 128, 64, 256, .without = 2},
    };
    (void)state;
    each(layers, sizeof layers / sizeof *layers, check_gate_up);
}

/* ---- the layer behind SwiGLU ---- */

struct down {
    real *out, *dx, *dW, *y; /* y: what is in its memory between the passes */
};
/* recompute: y's memory is overwritten between the passes, and computed again; forget: it is not, in spite of that */
static struct down down_results(const struct dev *d, const struct layer *l, bool together, bool recompute,
                                bool forget) {
    const int64_t M = l->M, D = l->D, N = l->K, pair = M * l->ld;
    real *in[5] = {check_random(pair, -4, 4, 1), check_random(N * D, -1, 1, 2), check_random(M * N, -1, 1, 3),
                   check_random(M * N, -1, 1, 4), check_random(N * D, -1, 1, 5)};
    const int64_t n[5] = {pair, N * D, M * N, M * N, N * D};
    for (int i = 0; i < 4; i++) dev_round(d, in[i], n[i]);
    uint16_t *gate = dev_act(d, in[0], pair), *y = dev_act(d, NULL, M * D);
    void *W = dev_act(d, in[1], n[1]), *from = dev_act(d, in[2], n[2]), *dout = dev_act(d, in[3], n[3]);
    void *out = dev_act(d, NULL, M * N), *dx = dev_act(d, NULL, M * D), *none = dev_act(d, NULL, M * D);
    real *dW = dev_real(d, in[4], n[4]);
    struct hl_down a = {.swiglu = {.M = M, .D = D, .gate = gate, .up = gate + D, .ld = l->ld, .y = y},
                        .linear = {.M = M, .K = D, .x = y, .dx = dx, .n = 1},
                        .recompute = recompute && !forget};
    a.linear.part[0] = (struct hl_linear_part){.out = out,
                                               .from = from,
                                               .dout = dout,
                                               .W = {.data = W,
                                                     .layout = HL_ROWS,
                                                     .dtype = HOLA_BF16,
                                                     .rows = N,
                                                     .cols = D,
                                                     .precision = l->plain ? HOLA_PRECISION_AUTO : HOLA_PRECISION_FP8}};
    struct down r = {check_new(M * N), check_new(M * D), check_new(N * D), check_new(M * D)};
    d->backend->fp8->stale(d->backend);
    hl_zero(d->backend, y, M * D * d->backend->act_size);
    if (together) d->ops->down_forward(d->backend, &a);
    else d->ops->swiglu_forward(d->backend, &a.swiglu), d->ops->linear_forward(d->backend, &a.linear);
    void *between = dev_act(d, NULL, M * D);
    hl_copy(d->backend, between, y, M * D * d->backend->act_size);
    dev_act_take(d, between, r.y, M * D);
    a.linear.part[0].dW = dW;
    if (recompute && together) hl_copy(d->backend, y, none, M * D * d->backend->act_size);
    if (together) d->ops->down_backward(d->backend, &a);
    else d->ops->linear_backward(d->backend, &a.linear);
    dev_act_take(d, out, r.out, M * N), dev_act_take(d, dx, r.dx, M * D), dev_real_take(d, dW, r.dW, N * D);
    dev_drop(d, gate), dev_drop(d, y), dev_drop(d, W), dev_drop(d, from), dev_drop(d, dout), dev_drop(d, none);
    for (int i = 0; i < 5; i++) check_free(in[i], n[i]);
    return r;
}
static void down_drop(struct down *r, const struct layer *l) {
    const int64_t M = l->M, D = l->D, N = l->K;
    check_free(r->out, M * N), check_free(r->dx, M * D), check_free(r->dW, N * D), check_free(r->y, M * D);
}
static bool down_same(const struct down *a, const struct down *b, const struct layer *l) {
    return !memcmp(a->out, b->out, (size_t)(l->M * l->K) * sizeof(real)) &&
           !memcmp(a->dx, b->dx, (size_t)(l->M * l->D) * sizeof(real)) &&
           !memcmp(a->dW, b->dW, (size_t)(l->K * l->D) * sizeof(real));
}

static void check_down(const struct dev *d, const struct layer *l) {
    struct down want = down_results(d, l, false, false, false), got = down_results(d, l, true, false, false);
    struct down again = down_results(d, l, true, true, false), wrong = down_results(d, l, true, true, true);
    if (!down_same(&want, &got, l) || !down_same(&want, &again, l))
        fail_msg("%d x %d x %d: not those of the two ops", (int)l->M, (int)l->D, (int)l->K);
    assert_false(down_same(&want, &wrong, l));
    const bool alone = l->codes_alone && has_all(d);
    if (has_all(d)) assert_int_equal(memcmp(want.y, got.y, (size_t)(l->M * l->D) * sizeof(real)) != 0, alone);
    for (int64_t i = 0; i < l->M * l->D && alone; i++) assert_true(again.y[i] == 0); /* no codes that nothing reads */
    down_drop(&want, l), down_drop(&got, l), down_drop(&again, l), down_drop(&wrong, l);
}
static void down_as_two_ops(void **state) {
    static const struct layer layers[] = {
        {16, 16, 16, 32, .codes_alone = true},    {144, 176, 64, 352, .codes_alone = true},
        {400, 256, 80, 512, .codes_alone = true}, {272, 48, 144, 112, .codes_alone = true},
        {40, 128, 64, 256, .plain = false},       {144, 128, 64, 256, .plain = true},
        {144, 128, 64, 256, .without = 1},        {144, 128, 64, 256, .without = 2},
    };
    (void)state;
    each(layers, sizeof layers / sizeof *layers, check_down);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gate_up_as_two_ops), cmocka_unit_test(down_as_two_ops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
