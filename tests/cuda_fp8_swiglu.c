/* cuda_fp8_swiglu.c -- op gate_up_backward: the gradients of SwiGLU and of the layer before it in one, whose results are
 * those of the two ops to the bit; which of them it takes; wrong versions. */
#include "cuda.h"

extern int hl_emu_no_fp8 __attribute__((weak)); /* the emulated library lacks these products */
extern int hl_fp8_design;

struct layer {
    int64_t M, D, K, ld; /* ld: of gate and up, side by side */
    bool plain;          /* weights that are not in FP8 */
    int without;         /* products that the library lacks */
    bool codes_alone;    /* whether the gradients of gate and up exist as codes alone */
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

static void as_the_two_ops(void **state) {
    static const struct layer layers[] = {
        {16, 128, 16, 256, .codes_alone = true},  {144, 128, 64, 256, .codes_alone = true},
        {400, 256, 80, 512, .codes_alone = true}, {272, 128, 48, 320, .codes_alone = true}, /* a gap in every row */
        {144, 96, 64, 192, .plain = false}, /* a block of 128 would be of both */
        {40, 128, 64, 256, .plain = false}, /* too few rows for FP8 */
        {144, 128, 64, 256, .plain = true},       {144, 128, 64, 256, .without = 1},
        {144, 128, 64, 256, .without = 2},
    };
    struct dev d = dev_open(false);
    (void)state;
    if (d.backend->fp8->open(d.backend, &(struct hl_fp8_sizes){0}) != HOLA_OK) {
        print_message("%s\n", hola_last_error());
        dev_close(&d);
        skip();
    }
    dev_close(&d);
    for (hl_fp8_design = 0; hl_fp8_design < 2; hl_fp8_design++)
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
            const struct layer *l = &layers[i];
            if (l->without && !&hl_emu_no_fp8) continue;
            d = dev_open(false); /* which asks its library again */
            CHECK_OK(d.backend->fp8->open(d.backend, &(struct hl_fp8_sizes){0}));
            if (l->without) hl_emu_no_fp8 = l->without;
            struct result want = results(&d, l, APART), got = results(&d, l, TOGETHER);
            struct result other = results(&d, l, WITH_OTHER_DY), exchanged = results(&d, l, EXCHANGED);
            if (l->without) hl_emu_no_fp8 = 0;
            if (!same(&want, &got, l)) fail_msg("layer %d: not those of the two ops", (int)i);
            assert_false(same(&want, &other, l) || same(&want, &exchanged, l));
            assert_int_equal(untouched(&d, &got, l), l->codes_alone);
            assert_false(untouched(&d, &want, l));
            drop(&want, l), drop(&got, l), drop(&other, l), drop(&exchanged, l);
            dev_close(&d);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_two_ops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
