/* cuda_gdn_back.c -- the backward pass of the delta rule on a device against the reference; what a forward
 * pass would have kept is computed here. Then with the device's own forward pass, and times on a real
 * device. */
#define _POSIX_C_SOURCE 200809L
#include "cuda.h"
#include "cuda_older.h"
#include "gdn_case.h"

/* v_new (rows beta_t e_t) and A = (I + L)^-1 of one value head and segment, token by token */
static void keep_head(const struct gdn_case *c, int64_t s, int64_t hv, real *v_new, real *A) {
    const struct hl_gdn *a = &c->a;
    const struct hl_seg *seg = &c->seg[s];
    const int64_t K = a->K, V = a->V, hk = hv / (a->HV / a->H);
    double *S = calloc((size_t)(K * V), sizeof *S), L[HL_CHUNK];
    assert_non_null(S);
    for (int64_t t = 0; t < seg->len; t++) {
        const int64_t at = (seg->row + t) * a->HV + hv, i = t % HL_CHUNK;
        const real *k = (const real *)a->k + ((seg->row + t) * a->H + hk) * K;
        const double beta = (double)a->beta[at];
        double decay = 0;
        for (int64_t x = 0; x < K * V; x++) S[x] *= a->g ? exp((double)a->g[at]) : 1;
        for (int64_t j = 0; j < V; j++) {
            double e = (double)((const real *)a->v)[at * V + j];
            for (int64_t x = 0; x < K; x++) e -= (double)k[x] * S[x * V + j];
            for (int64_t x = 0; x < K; x++) S[x * V + j] += beta * e * (double)k[x];
            v_new[at * V + j] = (real)(beta * e);
        }
        for (int64_t j = i - 1; j >= 0; j--) { /* L_ij, the decay summed from i down */
            const real *kj = (const real *)a->k + ((seg->row + t - i + j) * a->H + hk) * K;
            decay += a->g ? (double)a->g[at - (i - j - 1) * a->HV] : 0;
            L[j] = 0;
            for (int64_t x = 0; x < K; x++) L[j] += (double)k[x] * (double)kj[x];
            L[j] *= beta * exp(decay);
        }
        for (int64_t x = 0; x < HL_CHUNK; x++) {
            double sum = x == i;
            for (int64_t j = x; j < i; j++) sum -= L[j] * (double)A[(at - (i - j) * a->HV) * HL_CHUNK + x];
            A[at * HL_CHUNK + x] = (real)sum;
        }
    }
    free(S);
}

static struct gdn_case *new_case(const struct dev *d, const struct gdn_shape *f, const int64_t *len, int64_t n) {
    struct gdn_case *c = case_new(f, len, n, 7);
    dev_round(d, (real *)c->a.q, c->qk);
    dev_round(d, (real *)c->a.k, c->qk);
    dev_round(d, (real *)c->a.v, c->v);
    dev_round(d, (real *)c->a.dout, c->v);
    return c;
}

/* The case on the device, ready for the backward pass; own: v_new and A are left for the forward pass. */
static struct hl_gdn upload(const struct dev *d, const struct gdn_case *c, struct hl_rows *rows, bool own) {
    struct hl_gdn a = c->a;
    *rows = c->rows;
    CHECK_OK(d->backend->storage.cut_rows(d->backend, rows, 0));
    a.rows = rows;
    a.q = dev_act(d, c->a.q, c->qk), a.k = dev_act(d, c->a.k, c->qk), a.v = dev_act(d, c->a.v, c->v);
    a.dout = dev_act(d, c->a.dout, c->v);
    a.g = c->a.g ? dev_real(d, c->a.g, c->b) : NULL;
    a.beta = dev_real(d, c->a.beta, c->b);
    real *v_new = check_new(c->v), *A = check_new(c->b * HL_CHUNK);
    for (int64_t s = 0; s < c->rows.n && !own; s++)
        for (int64_t hv = 0; hv < a.HV; hv++) keep_head(c, s, hv, v_new, A);
    a.v_new = dev_act(d, v_new, c->v), a.A = dev_act(d, A, c->b * HL_CHUNK);
    check_free(v_new, c->v);
    check_free(A, c->b * HL_CHUNK);
    a.out = own ? dev_act(d, NULL, c->v) : NULL;
    a.m = own ? dev_real(d, NULL, c->b) : NULL;
    a.dq = dev_act(d, NULL, c->qk), a.dk = dev_act(d, NULL, c->qk), a.dv = dev_act(d, NULL, c->v);
    a.dg = a.g ? dev_real(d, NULL, c->b) : NULL;
    a.dbeta = dev_real(d, NULL, c->b);
    return a;
}
static void drop(const struct dev *d, struct hl_gdn *a) {
    const void *all[] = {a->q, a->k, a->v, a->dout, a->g, a->beta, a->v_new, a->A, a->out, a->m};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) dev_drop(d, all[i]);
}
static void take(const struct dev *d, const struct gdn_case *c, struct hl_gdn *a, struct gdn_result *r) {
    dev_act_take(d, a->dq, r->dq, c->qk);
    dev_act_take(d, a->dk, r->dk, c->qk);
    dev_act_take(d, a->dv, r->dv, c->v);
    if (a->dg) dev_real_take(d, a->dg, r->dg, c->b);
    dev_real_take(d, a->dbeta, r->dbeta, c->b);
}

/* the worst distances so far, printed at the end */
static double worst[2][5];
static void compare(const struct dev *d, const struct gdn_shape *f, const int64_t *len, int64_t n, bool own) {
    struct gdn_case *c = new_case(d, f, len, n);
    struct gdn_result want = result_new(c), got = result_new(c);
    struct hl_rows rows;
    run_training(hl_ops_named("cpu-ref"), d->backend, c, &want, true);
    struct hl_gdn a = upload(d, c, &rows, own);
    if (own) d->ops->gdn_forward(d->backend, &a);
    d->ops->gdn_backward(d->backend, &a);
    take(d, c, &a, &got);
    /* dg is a small difference of large sums in some windows */
    static const char *const name[] = {"dq", "dk", "dv", "dbeta", "dg"};
    const double tol[] = {8e-3, 8e-3, 8e-3, 8e-3, 2e-2};
    const real *x[5] = {got.dq, got.dk, got.dv, got.dbeta, got.dg},
               *y[5] = {want.dq, want.dk, want.dv, want.dbeta, want.dg};
    const int64_t width[5] = {f->H * f->K, f->H * f->K, f->HV * f->V, f->HV, f->HV};
    for (int i = 0; i < 5; i++) {
        if (i == 4 && !a.g) continue;
        const double e = check_distance(x[i], y[i], c->T, width[i]);
        if (e > worst[d->f32][i]) worst[d->f32][i] = e;
        CHECK_NEAR(x[i], y[i], c->T, width[i], d->f32 ? 1e-4 : tol[i], "%s " SHAPE_FMT, name[i], SHAPE_ARG(f));
    }
    drop(d, &a);
    result_free(c, &want);
    result_free(c, &got);
    case_free(c);
}

/* sizes of the tensor-core forms, and those that only the plain one takes; some with several value heads per
 * key head */
static const struct gdn_shape shapes[] = {
    {1, 1, 64, 64, GATE_RANDOM, -0.1, 0, 1},   {1, 2, 64, 128, GATE_RANDOM, -0.1, 0, 1},
    {1, 1, 128, 64, GATE_RANDOM, -0.1, 0, 1},  {1, 1, 128, 128, GATE_RANDOM, -0.1, 0, 1},
    {1, 1, 256, 128, GATE_RANDOM, -0.1, 0, 1}, {1, 1, 256, 64, GATE_NONE, 0, 0, 1},
    {1, 1, 64, 192, GATE_RANDOM, -0.1, 0, 1},  {1, 1, 64, 256, GATE_RANDOM, -0.1, 0, 1},
    {1, 1, 256, 256, GATE_RANDOM, -0.1, 0, 1}, {2, 4, 16, 16, GATE_RANDOM, -0.1, 0, 1},
    {1, 1, 24, 40, GATE_RANDOM, -0.1, 0, 1},   {1, 1, 80, 100, GATE_RANDOM, -0.1, 0, 1}};

static void all_shapes(void **state) {
    (void)state;
    static const int64_t few[] = {65, 1, 130}, many[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 3 * 64 + 7};
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        const bool slow = dev_slow(&d), least = dev_least();
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            if (!slow || !f32 || i == 0 || (i > 8 && !least))
                compare(&d, &shapes[i],
                        least  ? few + 2
                        : slow ? few
                               : many,
                        least  ? 1
                        : slow ? 3
                               : sizeof many / sizeof *many,
                        false);
        if (!slow) {
            const struct gdn_shape big = {2, 2, 256, 256, GATE_RANDOM, -0.1, 0, 1};
            compare(&d, &big, many + 3, 4, false);
        }
        dev_close(&d);
    }
}

/* Splits that each start from an empty state would be far off. */
static void splits_matter(const struct dev *d, const struct gdn_shape *f) {
    struct gdn_case *whole = new_case(d, f, (int64_t[]){800}, 1), *cut = new_case(d, f, (int64_t[]){384, 416}, 2);
    struct gdn_result want = result_new(whole), wrong = result_new(cut);
    assert_memory_equal(whole->a.k, cut->a.k, (size_t)whole->qk * sizeof(real));
    run_training(hl_ops_named("cpu-ref"), d->backend, whole, &want, true);
    run_training(hl_ops_named("cpu-ref"), d->backend, cut, &wrong, true);
    CHECK_FAR(wrong.dq, want.dq, whole->T, f->H * f->K, 2e-2);
    CHECK_FAR(wrong.dk, want.dk, whole->T, f->H * f->K, 2e-2);
    CHECK_FAR(wrong.dv, want.dv, whole->T, f->HV * f->V, 2e-2);
    result_free(whole, &want), result_free(cut, &wrong);
    case_free(whole), case_free(cut);
}
/* Sequences that are scanned in splits, beside short ones; little decay, so that the states between them
 * matter. */
static void splits(void **state) {
    (void)state;
    static const struct gdn_shape small = {1, 1, 64, 64, GATE_RANDOM, -0.001, 0, 0.3},
                                  large = {1, 1, 256, 128, GATE_RANDOM, -0.001, 0, 0.3},
                                  /* more decay: what dg is a small difference of grows with the length */
        longest = {1, 1, 256, 128, GATE_RANDOM, -0.01, 0, 0.3}, narrow = {1, 1, 256, 64, GATE_RANDOM, -0.01, 0, 0.3},
                                  odd = {1, 2, 128, 64, GATE_RANDOM, -0.001, 0, 0.3},
                                  wide = {1, 1, 128, 128, GATE_RANDOM, -0.001, 0, 0.3},
                                  vanishing = {2, 16, 64, 64, GATE_RANDOM, -3, 0, 1};
    static const int64_t len[] = {800, 70, 1, 2, 64, 65, 3, 1}, longer[] = {36 * 64, 3}, parts[] = {1300, 70};
    struct dev d = dev_open(false);
    splits_matter(&d, &small);
    compare(&d, &small, len, 2, false);
    compare(&d, &wide, len, 8, false);         /* so many that blocks are wide */
    compare(&d, &vanishing, longer, 2, false); /* transitions are 0 before splits end */
    compare(&d, dev_slow(&d) ? &narrow : &longest, parts, 2, true);
    if (!dev_slow(&d)) compare(&d, &large, len, 2, true), compare(&d, &odd, len, 2, true);
    dev_close(&d);
}

/* A segment's gradients do not depend on the others, even where their inputs are not numbers: its last chunk is copied
 * together with the next segment's first rows. */
static void neighbours(void **state) {
    static const struct gdn_shape batch[] = {{1, 1, 64, 64, GATE_RANDOM, -0.001, 0, 0.3},
                                             {1, 1, 128, 192, GATE_RANDOM, -0.1, 0, 1}};
    static const int64_t len[2][3] = {{801, 70, 30}, {67, 66, 2}};
    (void)state;
    struct dev d = dev_open(false);
    for (int i = 0; i < 2; i++) {
        const struct gdn_shape *f = &batch[i];
        struct gdn_case *c = new_case(&d, f, len[i], 3);
        struct gdn_result r[2] = {result_new(c), result_new(c)};
        const int64_t rows = len[i][0];
        for (int n = 0; n < 2; n++) {
            struct hl_rows batch_rows;
            struct hl_gdn a = upload(&d, c, &batch_rows, true);
            d.ops->gdn_forward(d.backend, &a);
            d.ops->gdn_backward(d.backend, &a);
            take(&d, c, &a, &r[n]);
            drop(&d, &a);
            for (int64_t x = rows * f->K; x < c->T * f->K; x++) ((real *)c->a.q)[x] = ((real *)c->a.k)[x] = NAN;
            for (int64_t x = rows * f->V; x < c->T * f->V; x++) ((real *)c->a.v)[x] = ((real *)c->a.dout)[x] = NAN;
        }
        assert_memory_equal(r[0].dq, r[1].dq, (size_t)(rows * f->K) * sizeof(real));
        assert_memory_equal(r[0].dk, r[1].dk, (size_t)(rows * f->K) * sizeof(real));
        assert_memory_equal(r[0].dv, r[1].dv, (size_t)(rows * f->V) * sizeof(real));
        assert_memory_equal(r[0].dg, r[1].dg, (size_t)rows * sizeof(real));
        assert_memory_equal(r[0].dbeta, r[1].dbeta, (size_t)rows * sizeof(real));
        assert_true(isnan(r[1].dq[rows * f->K]));
        for (int n = 0; n < 2; n++) result_free(c, &r[n]);
        case_free(c);
    }
    dev_close(&d);
}

static void all_gates(void **state) {
    (void)state;
    static const struct gdn_shape gates[] = {
        {1, 2, 64, 64, GATE_RANDOM, -0.001, 0, 1}, {1, 1, 64, 64, GATE_RANDOM, -5, 0, 1},
        {1, 1, 64, 64, GATE_RANDOM, -60, 0, 1},    {1, 1, 64, 64, GATE_RESETS, -0.01, 0, 1},
        {1, 1, 64, 64, GATE_RANDOM, -1e30, 0, 1},  {1, 1, 64, 64, GATE_ZERO, 0, 0.999, 1},
        {1, 1, 64, 64, GATE_NONE, 0, 0, 1e-4},     {1, 1, 64, 64, GATE_RANDOM, -0.1, 0, 2}};
    static const int64_t len[] = {150, 3};
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = 0; i < sizeof gates / sizeof *gates; i++) {
            struct gdn_shape f = gates[i];
            if (dev_least() && i) continue;
            if (f32 && dev_slow(&d)) f.K = 40, f.V = 24; /* the same kernels as for 64 */
            compare(&d, &f, len, 2, false);
        }
        dev_close(&d);
    }
}

/* Twenty rows of A lost show in every gradient behind it; the same input gives the same bits. */
static void wrong_is_caught(void **state) {
    (void)state;
    struct dev d = dev_open(false);
    const struct gdn_shape f = {1, 1, 64, 64, GATE_RANDOM, -0.1, 0, 1};
    const int64_t len[] = {100};
    struct gdn_case *c = new_case(&d, &f, len, 1);
    struct gdn_result r[3] = {result_new(c), result_new(c), result_new(c)};
    for (int i = 0; i < 3; i++) {
        struct hl_rows rows;
        struct hl_gdn a = upload(&d, c, &rows, false);
        if (i == 2)
            hl_zero(d.backend, (char *)a.A + 40 * HL_CHUNK * d.backend->act_size, 20 * HL_CHUNK * d.backend->act_size);
        d.ops->gdn_backward(d.backend, &a);
        take(&d, c, &a, &r[i]);
        drop(&d, &a);
    }
    assert_memory_equal(r[0].dq, r[1].dq, (size_t)c->qk * sizeof(real));
    assert_memory_equal(r[0].dk, r[1].dk, (size_t)c->qk * sizeof(real));
    assert_memory_equal(r[0].dv, r[1].dv, (size_t)c->v * sizeof(real));
    assert_memory_equal(r[0].dg, r[1].dg, (size_t)c->b * sizeof(real));
    assert_memory_equal(r[0].dbeta, r[1].dbeta, (size_t)c->b * sizeof(real));
    CHECK_FAR(r[2].dv, r[0].dv, c->T, f.V, 1e-2);
    CHECK_FAR(r[2].dk, r[0].dk, c->T, f.K, 1e-2);
    CHECK_FAR(r[2].dbeta, r[0].dbeta, c->T, 1, 1e-2);
    CHECK_FAR(r[2].dg, r[0].dg, c->T, 1, 1e-2);
    for (int i = 0; i < 3; i++) result_free(c, &r[i]);
    case_free(c);
    dev_close(&d);
}

static void with_forward(void **state) {
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        const int64_t len[] = {65, 1, 130};
        if (d.ops->gdn_forward) {
            compare(&d, &shapes[0], len, 3, true);
            compare(&d, &shapes[9], len, 3, true);
            if (!dev_slow(&d)) compare(&d, &shapes[1], len, 3, true), compare(&d, &shapes[4], len, 3, true);
        }
        dev_close(&d);
    }
}

/* So many sequences that tiles are wide; one of them is longer than the rings of buffers. */
static void many(void **state) {
    static const int64_t len[12] = {330, 66, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    (void)state;
    struct dev d = dev_open(false);
    for (int64_t K = 128; K <= (dev_slow(&d) ? 128 : 256); K *= 2) {
        const struct gdn_shape f = {1, 8, K, 128, GATE_RANDOM, -0.1, 0, 1};
        compare(&d, &f, len, 12, true);
    }
    dev_close(&d);
}

/* Chips before Hopper: the plain form for all sizes. */
static void older(void **state) {
    (void)state;
    struct dev d = dev_open_older();
    for (int i = 0; i < 6; i++) compare(&d, &shapes[i], (int64_t[]){65, 1, 130}, i ? 2 : 3, true);
    dev_close_older(&d);
}

/* Which form which head size takes, on Hopper and before. */
static void forms(void **state) {
    static const struct {
        int64_t K, V;
        const char *name;
    } want[] = {{64, 64, "fused"},    {128, 128, "fused"}, {256, 256, "fused"}, {64, 192, "chunks"},
                {256, 320, "chunks"}, {64, 100, "plain"},  {80, 64, "plain"}};
    (void)state;
    for (int chip = 0; chip < 3; chip++) { /* the last one is only emulated */
        struct dev d = chip == 2 ? dev_open_older() : dev_open(chip == 1);
        for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
            const struct hl_gdn a = {.H = 1, .HV = 1, .K = want[i].K, .V = want[i].V};
            const char *name = (d.f32 ? hl_cuda_f32_gdn_form : hl_cuda_gdn_form)(d.backend, &a, true).name;
            assert_string_equal(name, chip == 0 ? want[i].name : "plain");
        }
        if (chip == 2) dev_close_older(&d);
        else dev_close(&d);
    }
}

/* n x 2048 tokens; the kept arrays are random, which costs the same as true ones. forward: ms of the forward
 * pass, where 2.5 times that is aimed at, else 0. */
static void time_one(const struct dev *d, int64_t n, int64_t H, int64_t D, double forward) {
    struct gdn_shape f = {H, H, D, D, GATE_RANDOM, -0.1, 0, 1};
    int64_t len[CASE_SEGS];
    struct gdn_case *c;
    struct hl_rows rows;
    struct hl_seg seg[64];
    for (int i = 0; i < CASE_SEGS; i++) len[i] = 2048 * n / CASE_SEGS;
    c = new_case(d, &f, len, CASE_SEGS);
    for (int64_t i = 0; i < n; i++) seg[i] = (struct hl_seg){.row = 2048 * i, .len = 2048};
    struct hl_gdn a = upload(d, c, &rows, true);
    rows.n = n, rows.seg = seg;
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, 0));
    real *kept = check_random(c->b * HL_CHUNK, -0.1, 0.1, 3);
    dev_drop(d, a.A), dev_drop(d, a.v_new);
    a.A = dev_act(d, kept, c->b * HL_CHUNK), a.v_new = dev_act(d, c->a.v, c->v);
    check_free(kept, c->b * HL_CHUNK);
    const int repeat = d->f32 ? 2 : 20;
    for (int i = 0; i < 3; i++) d->ops->gdn_backward(d->backend, &a);
    hl_cuda_timer_start(hl_cuda_of(d->backend));
    for (int i = 0; i < repeat; i++) d->ops->gdn_backward(d->backend, &a);
    const double s = hl_cuda_timer_stop(hl_cuda_of(d->backend));
    print_message("%s %lld x 2048, %lld heads of %lld: backward %.3f ms", d->f32 ? "f32" : "bf16", (long long)n,
                  (long long)H, (long long)D, s / repeat * 1e3);
    if (forward > 0) print_message(" (aim %.2f)", 2.5 * forward);
    print_message("\n");
    drop(d, &a);
    drop(d, &(struct hl_gdn){.q = a.dq, .k = a.dk, .v = a.dv, .g = a.dg, .beta = a.dbeta});
    case_free(c);
}
static void times(void **state) {
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        if (worst[f32][0] > 0)
            print_message("%s worst distances: dq %.2g dk %.2g dv %.2g dbeta %.2g dg %.2g\n", f32 ? "f32" : "bf16",
                          worst[f32][0], worst[f32][1], worst[f32][2], worst[f32][3], worst[f32][4]);
        if (!dev_slow(&d)) {
            time_one(&d, 16, 4, f32 ? 64 : 256, f32 ? 0 : 0.316);
            if (!f32) time_one(&d, 32, 4, 128, 0.276);
        }
        dev_close(&d);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(all_shapes), cmocka_unit_test(splits),          cmocka_unit_test(neighbours),
        cmocka_unit_test(all_gates),  cmocka_unit_test(wrong_is_caught), cmocka_unit_test(with_forward),
        cmocka_unit_test(many),       cmocka_unit_test(older),           cmocka_unit_test(forms),
        cmocka_unit_test(times)};
    (void)argv;
    if (argc > 1) { /* times only */
        const struct CMUnitTest only[] = {cmocka_unit_test(times)};
        return cmocka_run_group_tests(only, NULL, NULL);
    }
    return cmocka_run_group_tests(all, NULL, NULL);
}
