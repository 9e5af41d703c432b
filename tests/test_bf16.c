/* test_bf16.c -- products with BF16 operands (ops/linear/bf16.h): every instruction set against the reference, the same
 * bits on all of them, in every batch and for any number of threads; rounding, NaN, infinities and subnormals; training
 * and inference with them. */
#include "check.h"
#include "model/model.h"
#include "ops/linear/bf16.h"
#include "ops/linear/weight.h"

/* Two matrices that share x: [N][K] with BF16 operands, and [5][K] without. kind 0: plain rows; 1 + dtype: panels. */
enum { OTHER = 5, KINDS = 1 + HOLA_F16 + 1 };
struct layer {
    int64_t M, N, K;
    real *x, *W, *V, *dout, *dother;
    void *panels[KINDS];
};
static struct layer layer_new(int64_t M, int64_t N, int64_t K) {
    struct layer l = {.M = M, .N = N, .K = K};
    l.x = check_random(M * K, -1, 1, 1), l.W = check_random(N * K, -1, 1, 2), l.V = check_random(OTHER * K, -1, 1, 3);
    l.dout = check_random(M * N, -1, 1, 4), l.dother = check_random(M * OTHER, -1, 1, 5);
    for (int kind = 1; kind < KINDS; kind++) {
        l.panels[kind] = malloc((size_t)hl_panel_bytes(N, K, (hola_dtype)(kind - 1)));
        assert_non_null(l.panels[kind]);
        hl_panel_pack(l.panels[kind], (hola_dtype)(kind - 1), l.W, N, K);
    }
    return l;
}
static void layer_free(struct layer *l) {
    check_free(l->x, l->M * l->K), check_free(l->W, l->N * l->K), check_free(l->V, OTHER * l->K);
    check_free(l->dout, l->M * l->N), check_free(l->dother, l->M * OTHER);
    for (int kind = 1; kind < KINDS; kind++) free(l->panels[kind]);
}

struct results {
    real *out, *other, *dx, *dW, *dV;
};
static struct results results_new(const struct layer *l) {
    return (struct results){.out = check_new(l->M * l->N),
                            .other = check_new(l->M * OTHER),
                            .dx = check_new(l->M * l->K),
                            .dW = check_random(l->N * l->K, -1, 1, 6),
                            .dV = check_random(OTHER * l->K, -1, 1, 7)};
}
static void results_free(const struct layer *l, struct results *r) {
    check_free(r->out, l->M * l->N), check_free(r->other, l->M * OTHER), check_free(r->dx, l->M * l->K);
    check_free(r->dW, l->N * l->K), check_free(r->dV, OTHER * l->K);
}

static struct hl_linear args(const struct layer *l, const struct results *r, int kind, hola_precision how) {
    struct hl_linear a = {.M = l->M, .K = l->K, .x = l->x, .n = 2, .dx = r->dx};
    struct hl_weight W = {.data = l->W, .rows = l->N, .cols = l->K, .precision = how};
    if (kind) W.layout = HL_PANELS, W.dtype = (hola_dtype)(kind - 1), W.data = l->panels[kind];
    a.part[0] = (struct hl_linear_part){.W = W, .out = r->out, .dout = l->dout, .dW = r->dW};
    a.part[1] = (struct hl_linear_part){
        .W = {.data = l->V, .rows = OTHER, .cols = l->K}, .out = r->other, .dout = l->dother, .dW = r->dV};
    return a;
}
/* Backward passes are of plain rows. */
static struct results run(const struct hl_ops *ops, struct hl_backend *pool, const struct layer *l, int kind,
                          hola_precision how) {
    struct results r = results_new(l);
    const struct hl_linear a = args(l, &r, kind, how);
    ops->linear_forward(pool, &a);
    if (kind == 0) ops->linear_backward(pool, &a);
    return r;
}

/* The last window of a comparison may hold one row of few numbers, some of them close to 0. */
static double allowed(int64_t width) { return width < 16 ? 1e-4 : 2e-6; }

static void compare(struct hl_backend *pool, const struct layer *l, int kind) {
    struct results want = run(hl_ops_named("cpu-ref"), pool, l, kind, HOLA_PRECISION_BF16);
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        if (!ops) continue;
        struct results got = run(ops, pool, l, kind, HOLA_PRECISION_BF16);
        CHECK_NEAR(got.out, want.out, l->M, l->N, allowed(l->N), "%s kind %d out M %d N %d K %d", ops->name, kind,
                   (int)l->M, (int)l->N, (int)l->K);
        CHECK_NEAR(got.other, want.other, l->M, OTHER, allowed(OTHER), "%s the other, M %d K %d", ops->name, (int)l->M,
                   (int)l->K);
        if (kind == 0) {
            CHECK_NEAR(got.dx, want.dx, l->M, l->K, allowed(l->K), "%s dx M %d N %d K %d", ops->name, (int)l->M,
                       (int)l->N, (int)l->K);
            CHECK_NEAR(got.dW, want.dW, l->N, l->K, allowed(l->K), "%s dW M %d N %d K %d", ops->name, (int)l->M,
                       (int)l->N, (int)l->K);
        }
        results_free(l, &got);
    }
    results_free(l, &want);
}

/* Sizes around every tile (4, 6, 12 rows), panel (32 columns), group of strips (36, 48 rows), pair (2 numbers) and
 * piece (512 numbers), in each of the three products. */
static void shapes(void **state) {
    static const int64_t Ms[] = {1, 2, 5, 11, 13, 24, 25, 47, 49, 130, 513}, Ns[] = {1, 4, 31, 33, 100, 545},
                         Ks[] = {1, 2, 3, 16, 101, 511, 513};
    struct hl_backend *pool = check_backend_open(2, hl_linear_scratch());
    (void)state;
    for (int m = 0; m < 11; m++)
        for (int n = 0; n < 6; n++)
            for (int k = 0; k < 7; k++) {
                const int64_t work = Ms[m] * Ns[n] * Ks[k];
                if (work > 300000 && (m + n + k) % 12) continue; /* the reference takes its time */
                struct layer l = layer_new(Ms[m], Ns[n], Ks[k]);
                for (int kind = 0; kind < KINDS; kind++)
                    if (work < 30000 || kind == 0 || (m + n + k) % KINDS == kind) compare(pool, &l, kind);
                layer_free(&l);
            }
    hl_backend_close(pool);
}

/* What the comparisons must not accept: floats instead of BF16, x cut off instead of rounded, a pair left out, one sum
 * of a piece lost. */
static void wrong_products(void **state) {
    struct hl_backend *pool = check_backend_open(1, hl_linear_scratch());
    const struct hl_ops *ref = hl_ops_named("cpu-ref");
    struct layer l = layer_new(50, 70, 514);
    struct results want = run(ref, pool, &l, 0, HOLA_PRECISION_BF16),
                   floats = run(ref, pool, &l, 0, HOLA_PRECISION_AUTO);
    const double far = check_distance(floats.out, want.out, l.M, l.N);
    (void)state;
    print_message("x W^T of random numbers, BF16 and floats: %.3g apart\n", far);
    assert_true(far > 1e-3 && far < 1e-2);
    CHECK_FAR(floats.dx, want.dx, l.M, l.K, 1e-3);
    CHECK_FAR(floats.dW, want.dW, l.N, l.K, 1e-3);
    for (int64_t i = 0; i < l.M; i++) l.x[i * l.K + 512] = l.x[i * l.K + 513] = 0;
    struct results less = run(ref, pool, &l, 0, HOLA_PRECISION_BF16);
    CHECK_FAR(less.out, want.out, l.M, l.N, 1e-2);
    results_free(&l, &less);
    for (int64_t i = 0; i < l.M * l.K; i++) l.x[i] = hl_float_of_bits(hl_bits_of_float(l.x[i]) & 0xffff0000u);
    less = run(ref, pool, &l, 0, HOLA_PRECISION_BF16);
    CHECK_FAR(less.out, want.out, l.M, l.N, 1e-3);
    results_free(&l, &less), results_free(&l, &want), results_free(&l, &floats);
    layer_free(&l);
    hl_backend_close(pool);
}

static void assert_same(const struct layer *l, const struct results *a, const struct results *b, bool backward) {
    assert_memory_equal(a->out, b->out, (size_t)(l->M * l->N) * sizeof(real));
    if (!backward) return;
    assert_memory_equal(a->dx, b->dx, (size_t)(l->M * l->K) * sizeof(real));
    assert_memory_equal(a->dW, b->dW, (size_t)(l->N * l->K) * sizeof(real));
}

/* One to three threads, and every instruction set: AVX512-BF16 is the last of them where the processor has it. (dx also
 * has the terms of the other matrix, whose sums are of each set's own; without it all bits agree.) */
static void same_bits_everywhere(void **state) {
    static const int64_t sizes[][3] = {{300, 190, 601}, {64, 1100, 1030}, {7, 96, 515}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct layer l = layer_new(sizes[i][0], sizes[i][1], sizes[i][2]);
        struct results first[KINDS] = {{0}};
        memset(l.dother, 0, (size_t)(l.M * OTHER) * sizeof(real));
        for (int kind = 0; kind < KINDS; kind++)
            for (int b = 0; check_backend(b); b++)
                for (int threads = 1; threads <= 3; threads++) {
                    struct hl_backend *pool = check_backend_open(threads, hl_linear_scratch());
                    const struct hl_ops *ops = hl_ops_named(check_backend(b));
                    if (ops) {
                        struct results r = run(ops, pool, &l, kind, HOLA_PRECISION_BF16);
                        if (!first[kind].out) first[kind] = r;
                        else assert_same(&l, &r, &first[kind], kind == 0), results_free(&l, &r);
                    }
                    hl_backend_close(pool);
                }
        /* BF16 weights stored as such: the bits of the rows they came from */
        assert_memory_equal(first[0].out, first[1 + HOLA_F32].out, (size_t)(l.M * l.N) * sizeof(real));
        assert_memory_equal(first[0].out, first[1 + HOLA_BF16].out, (size_t)(l.M * l.N) * sizeof(real));
        for (int kind = 0; kind < KINDS; kind++) results_free(&l, &first[kind]);
        layer_free(&l);
    }
}

/* Rows computed alone have the bits they have among all: prefill and decoding multiply alike. */
static void rows_alone(void **state) {
    struct hl_backend *pool = check_backend_open(2, hl_linear_scratch());
    (void)state;
    for (int b = 0; check_backend(b); b++)
        for (int kind = 0; kind < KINDS; kind++) {
            const struct hl_ops *ops = hl_ops_named(check_backend(b));
            if (!ops) continue;
            struct layer l = layer_new(257, 100, 1029);
            struct results all = run(ops, pool, &l, kind, HOLA_PRECISION_BF16);
            for (int64_t n = 1; n < 60; n += n < 16 ? 1 : 7) {
                struct layer few = l;
                few.M = n, few.x = l.x + 3 * n * l.K, few.dout = l.dout + 3 * n * l.N;
                struct results r = run(ops, pool, &few, kind, HOLA_PRECISION_BF16);
                assert_memory_equal(r.out, all.out + 3 * n * l.N, (size_t)(n * l.N) * sizeof(real));
                results_free(&few, &r);
            }
            results_free(&l, &all);
            layer_free(&l);
        }
    hl_backend_close(pool);
}

/* A block of the head's logits (linear_block) is the whole product's, and the loss the reference's. */
static void head(void **state) {
    enum { M = 130, D = 100, V = 700 };
    struct hl_backend *pool = check_backend_open(2, hl_linear_scratch());
    real *x = check_random(M * D, -1, 1, 1), *W = check_random(V * D, -1, 1, 2), *logits = check_new(M * V);
    int32_t target[M];
    (void)state;
    for (int i = 0; i < M; i++) target[i] = i % 9 ? i * 37 % V : -1;
    for (int with = 0; with < 2; with++) {
        double want[M], got[M], floats[M];
        real *dx[2] = {check_new(M * D), check_new(M * D)}, *dW[2] = {check_zero(V * D), check_zero(V * D)};
        struct hl_xent a = {.M = M, .D = D, .x = x, .target = target, .nll = want, .logits = logits, .scale = 0.01f};
        a.W = (struct hl_weight){.data = W, .rows = V, .cols = D, .precision = HOLA_PRECISION_BF16};
        if (with) a.dx = dx[0], a.dW = dW[0];
        hl_ops_named("cpu-ref")->xent(pool, &a);
        for (int b = 0; check_backend(b); b++) {
            const struct hl_ops *ops = hl_ops_named(check_backend(b));
            if (!ops) continue;
            a.nll = got;
            if (with) a.dx = dx[1], a.dW = dW[1], memset(dW[1], 0, V * D * sizeof(real));
            ops->xent(pool, &a);
            for (int i = 0; i < M; i++) assert_true(fabs(got[i] - want[i]) < 2e-5);
            /* the logits' gradient is rounded: where the last bit of a float decides, to the neighbour */
            if (with) CHECK_NEAR(dx[1], dx[0], M, D, 1e-3, "%s dx", ops->name);
            if (with) CHECK_NEAR(dW[1], dW[0], V, D, 1e-3, "%s dW", ops->name);
        }
        a.W.precision = HOLA_PRECISION_AUTO, a.nll = floats;
        hl_ops_named("cpu")->xent(pool, &a);
        double far = 0;
        for (int i = 0; i < M; i++) far = fmax(far, fabs(floats[i] - want[i]));
        assert_true(far > 1e-3); /* it was BF16 */
        for (int i = 0; i < 2; i++) check_free(dx[i], M * D), check_free(dW[i], V * D);
    }
    check_free(x, M * D), check_free(W, V * D), check_free(logits, M * V);
    hl_backend_close(pool);
}

/* ---- rounding ---- */

/* x as the second and the first number of a pair, in a row of its own, and as a column, times 1. */
static void check_operand(const struct hl_ops *ops, struct hl_backend *pool, real x, double want) {
    enum { K = 37, N = 32 };
    for (int at = 0; at < K; at += at == 1 ? 15 : 1) {
        real row[K] = {0}, W[N * K] = {0}, out[2 * N], from[2 * K] = {0}, dx[2 * K], dout[2 * N] = {0};
        struct hl_linear a = {.M = 1, .K = K, .x = row, .n = 1};
        a.part[0] = (struct hl_linear_part){.W = {.data = W, .rows = N, .cols = K, .precision = HOLA_PRECISION_BF16},
                                            .out = out};
        for (int i = 0; i < N; i++) W[i * K + at] = 1;
        row[at] = x;
        ops->linear_forward(pool, &a);
        for (int i = 0; i < N; i++)
            if (isnan(want) ? !isnan(out[i]) : (double)out[i] != want)
                fail_msg("%s: %.9g at %d counts as %.9g, not %.9g", ops->name, (double)x, at, (double)out[i], want);
        a.part[0].dout = dout, a.dx = dx, a.x = from, a.M = 2; /* as a weight, which is read by columns */
        for (int i = 0; i < N * K; i++) W[i] = 0;
        W[at] = x, dout[0] = 1;
        ops->linear_backward(pool, &a);
        if (isnan(want) ? !isnan(dx[at]) : (double)dx[at] != want)
            fail_msg("%s: a weight of %.9g counts as %.9g, not %.9g", ops->name, (double)x, (double)dx[at], want);
    }
}

static void operands_are_rounded(void **state) {
    static const struct {
        float x, want;
    } some[] = {{0, 0},
                {-0.0f, 0},
                {1 + 0x1p-8f, 1},           /* halfway: to even */
                {1 + 0x3p-8f, 1 + 0x1p-6f}, /* halfway: to even, upwards */
                {1 + 0x1p-8f + 0x1p-23f, 1 + 0x1p-7f},
                {-1 - 0x1p-8f - 0x1p-23f, -1 - 0x1p-7f},
                {0x1.fffffep0f, 2},
                {3.38e38f, 0x1.fcp127f},
                {3.4028234e38f, INFINITY}, /* the largest float rounds up */
                {INFINITY, INFINITY},
                {-INFINITY, -INFINITY},
                {NAN, NAN},
                {0x1p-126f, 0x1p-126f}, /* the least normal number */
                {0x1.fffffcp-127f, 0},  /* subnormal */
                {-0x1p-149f, 0}};
    struct hl_backend *pool = check_backend_open(1, hl_linear_scratch());
    (void)state;
    for (int b = -1; b < 0 || check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(b < 0 ? "cpu-ref" : check_backend(b));
        for (size_t i = 0; ops && i < sizeof some / sizeof *some; i++)
            if (isfinite(some[i].want)) check_operand(ops, pool, some[i].x, (double)some[i].want);
        /* times the zeros of the other weights, what is not finite is NaN */
        if (ops) check_operand(ops, pool, NAN, NAN);
    }
    for (int b = 0; check_backend(b); b++) { /* one number, so no zeros */
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        for (size_t i = 0; ops && i < sizeof some / sizeof *some; i++) {
            real one = 1, x = some[i].x, out;
            struct hl_linear a = {.M = 1, .K = 1, .x = &x, .n = 1};
            a.part[0] = (struct hl_linear_part){
                .W = {.data = &one, .rows = 1, .cols = 1, .precision = HOLA_PRECISION_BF16}, .out = &out};
            ops->linear_forward(pool, &a);
            if (isnan(some[i].want) ? !isnan(out) : out != some[i].want)
                fail_msg("%s: %.9g counts as %.9g", ops->name, (double)x, (double)out);
        }
    }
    hl_backend_close(pool);
}

/* Every way of packing rounds as hl_to_bf16 does, for random floats of all sizes. */
static void every_rounding_is_the_same(void **state) {
    enum { N = 4096 };
    real *x = check_new(N);
    uint16_t narrow[N];
    uint32_t pairs[N / 2];
    extern const struct hl_bf16_dot hl_base_bf16_dot;
    const struct hl_bf16_dot *dots[] = {
        &hl_base_bf16_dot,
#if defined(__x86_64__) && !defined(HL_ONE_ISA)
        __builtin_cpu_supports("avx512bf16") && hl_ops_named("cpu-avx512") ? &hl_avx512bf16_bf16_dot : NULL,
#endif
    };
    (void)state;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < N; i++) x[i] = hl_float_of_bits((uint32_t)check_mix((uint64_t)(round * N + i)));
        for (size_t d = 0; d < sizeof dots / sizeof *dots && dots[d]; d++) {
            dots[d]->narrow(narrow, x, N);
            dots[d]->pair(pairs, 16, x, HOLA_F32, 16, 16, 16, N / 16);
            for (int i = 0; i < N; i++) {
                const uint16_t want = isnormal(x[i]) || !isfinite(x[i]) ? hl_to_bf16(x[i]) : signbit(x[i]) ? 0x8000 : 0;
                assert_int_equal(narrow[i], want);
                assert_int_equal(pairs[i / 32 * 16 + i % 16] >> (i / 16 % 2 ? 16 : 0) & 0xffff, want);
            }
        }
    }
    check_free(x, N);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),
        cmocka_unit_test(wrong_products),
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(rows_alone),
        cmocka_unit_test(head),
        cmocka_unit_test(operands_are_rounded),
        cmocka_unit_test(every_rounding_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
