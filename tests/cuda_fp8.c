#define _GNU_SOURCE
/* cuda_fp8.c -- FP8 on a CUDA device: the quantising kernel against the reference bit for bit, products of codes
 * against sums in double (in the emulator the product itself is a model), linear layers and training against the CPU's
 * simulation, a library without these products, wrong versions. */
#include "cuda.h"
#include "backend/fp8_host.h"
#include "model/trainer.h"
#include "model/model.h"

extern int hl_emu_no_fp8 __attribute__((weak)); /* the emulated library lacks these products */

static const struct hl_ops *ref;
static int setup(void **state) {
    (void)state;
    ref = hl_ops_named("cpu-ref");
    return ref == NULL;
}
/* Skips where the device is not of Hopper's kind. */
static struct dev fp8_open(bool f32, const struct hl_fp8_sizes *s) {
    struct dev d = dev_open(f32);
    if (d.backend->fp8->open(d.backend, s) != HOLA_OK) {
        print_message("%s\n", hola_last_error());
        hl_backend_close(d.backend);
        skip();
    }
    return d;
}
static const struct hl_fp8_sizes any_size = {.tokens = 1024, .wide = 1024, .weight = 1 << 20};

/* ---- the kernel ---- */

struct forms {
    uint8_t *codes, *codes_t;
    float *scale, *scale_t;
    int64_t n, scales, scales_t;
};
static struct forms forms_new(bool blocks, int64_t rows, int64_t cols) {
    struct forms f = {
        .n = rows * cols, .scales = hl_fp8_scales(blocks, rows, cols), .scales_t = hl_fp8_scales(blocks, cols, rows)};
    f.codes = malloc((size_t)f.n), f.codes_t = malloc((size_t)f.n);
    f.scale = malloc((size_t)f.scales * 4), f.scale_t = malloc((size_t)f.scales_t * 4);
    assert_true(f.codes && f.codes_t && f.scale && f.scale_t);
    return f;
}
static void forms_free(struct forms *f) { free(f->codes), free(f->codes_t), free(f->scale), free(f->scale_t); }

/* Both forms by the reference. x has a row stride of ld. */
static struct forms wanted(const struct dev *d, const real *x, struct hl_fp8_quantise q) {
    struct forms f = forms_new(q.blocks, q.rows, q.cols);
    q.x = x, q.codes = f.codes, q.codes_t = f.codes_t, q.scale = f.scale, q.scale_t = f.scale_t;
    ref->fp8_quantise(d->backend, &q);
    return f;
}
static void *fetched(const struct dev *d, void *p, int64_t bytes) {
    void *host = malloc((size_t)bytes);
    assert_non_null(host);
    hl_get(d->backend, host, p, bytes);
    CHECK_OK(hl_finish(d->backend));
    hl_release(d->backend, p);
    return host;
}
/* On the device; forms: 1 rows, 2 columns, 3 both. What is not asked for is left NULL. */
static struct forms made(const struct dev *d, const real *x, struct hl_fp8_quantise q, int which) {
    struct forms f = forms_new(q.blocks, q.rows, q.cols);
    const int64_t bytes[] = {f.n, f.scales * 4, f.n, f.scales_t * 4};
    void *dev[4];
    for (int i = 0; i < 4; i++) { /* 0xff: NaN, and a code that is not made */
        void *host = malloc((size_t)bytes[i]);
        memset(host, 0xff, (size_t)bytes[i]);
        dev[i] = dev_put(d, host, bytes[i]);
        free(host);
    }
    forms_free(&f);
    q.x = dev_act(d, x, q.rows * q.ld);
    if (which & 1) q.codes = dev[0], q.scale = dev[1];
    if (which & 2) q.codes_t = dev[2], q.scale_t = dev[3];
    d->ops->fp8_quantise(d->backend, &q);
    f.codes = fetched(d, dev[0], bytes[0]), f.scale = fetched(d, dev[1], bytes[1]);
    f.codes_t = fetched(d, dev[2], bytes[2]), f.scale_t = fetched(d, dev[3], bytes[3]);
    dev_drop(d, q.x);
    return f;
}
static bool untouched(const void *p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        if (((const uint8_t *)p)[i] != 0xff) return false;
    return true;
}
static int64_t different(const struct forms *a, const struct forms *b, int which) {
    int64_t n = 0;
    for (int64_t i = 0; i < a->n; i++)
        n += ((which & 1) && a->codes[i] != b->codes[i]) + ((which & 2) && a->codes_t[i] != b->codes_t[i]);
    for (int64_t i = 0; i < a->scales; i++) n += (which & 1) && memcmp(a->scale + i, b->scale + i, 4) != 0;
    for (int64_t i = 0; i < a->scales_t; i++) n += (which & 2) && memcmp(a->scale_t + i, b->scale_t + i, 4) != 0;
    return n;
}

/* Magnitudes that differ from place to place, zeros, tiny rows, and what is not finite. */
static real *numbers(const struct dev *d, int64_t rows, int64_t cols, int64_t ld, uint64_t seed, bool finite) {
    real *x = malloc((size_t)(rows * ld) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < rows * ld; i++)
        x[i] = (real)(check_uniform(&seed, -1, 1) * exp2((double)(i / ld * 11 % 43 - 21) + (double)(i % ld * 3 % 13)));
    for (int64_t j = 0; j < cols; j++) x[j] = 0, x[2 * ld + j] *= (real)0x1p-115;
    for (int64_t i = 0; i < rows; i++) x[i * ld + 5] = 0, x[i * ld + 6] *= (real)0x1p60;
    if (!finite) x[(rows - 1) * ld + cols - 1] = (real)NAN, x[7 * ld + 9] = (real)-INFINITY;
    dev_round(d, x, rows * ld);
    return x;
}

static void quantises_as_wanted(const struct dev *d, struct hl_fp8_quantise q, int which, uint64_t seed, bool finite) {
    real *x = numbers(d, q.rows, q.cols, q.ld, seed, finite);
    struct forms want = wanted(d, x, q), got = made(d, x, q, which);
    struct hl_fp8_quantise other = q;
    other.blocks = !q.blocks;
    if (different(&got, &want, which))
        fail_msg("%s: %d x %d: %d numbers differ", d->ops->name, (int)q.rows, (int)q.cols,
                 (int)different(&got, &want, which));
    if (!(which & 1)) assert_true(untouched(got.codes, got.n) && untouched(got.scale, 4 * got.scales));
    if (!(which & 2)) assert_true(untouched(got.codes_t, got.n) && untouched(got.scale_t, 4 * got.scales_t));
    struct forms wrong = made(d, x, other, 3); /* another kind of blocks shows */
    wrong.scales = wrong.scales_t = 0;
    assert_true(different(&wrong, &want, 3) > 0);
    got.codes[got.n - 1] ^= 1, got.codes_t[0] ^= 1; /* and so does one wrong code */
    assert_true(different(&got, &want, which) > 0);
    forms_free(&want), forms_free(&got), forms_free(&wrong);
    free(x);
}
static void quantises_to_the_bit(void **state) {
    static const struct {
        int64_t rows, cols, ld;
    } shapes[] = {{16, 16, 16},     {128, 128, 128}, {144, 272, 320}, {272, 48, 48},
                  {32, 1040, 1040}, {400, 144, 192}, {656, 400, 400}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = fp8_open(f32, &any_size);
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            for (int v = 0; v < 12; v++) {
                const struct hl_fp8_quantise q = {.rows = shapes[k].rows,
                                                  .cols = shapes[k].cols,
                                                  .ld = shapes[k].ld,
                                                  .format = v & 1 ? HL_E5M2 : HL_E4M3,
                                                  .blocks = v & 2};
                quantises_as_wanted(&d, q, 1 + v / 4, 100 * k + (uint64_t)v, v % 3 > 0);
            }
        dev_close(&d);
    }
}

/* ---- products ---- */

struct product {
    int64_t M, N, K;
    bool blocks, e5m2, add, real_out;
};
/* The largest error of C in units of sum over |a b| of what the codes say, beside what rounding to bf16 may do. */
static double product_error(const struct dev *d, const struct product *p, int64_t shift) {
    const int64_t M = p->M, N = p->N, K = p->K;
    real *a = numbers(d, M, K, K, 1, true), *b = numbers(d, N, K, K, 2, true), *C = check_random(M * N, -1, 1, 3);
    const struct hl_fp8_quantise qa = {.rows = M, .cols = K, .ld = K, .format = p->e5m2 ? HL_E5M2 : HL_E4M3};
    const struct hl_fp8_quantise qb = {.rows = N, .cols = K, .ld = K, .blocks = p->blocks};
    struct hl_gemm g = {.M = M, .N = N, .K = K, .b_trans = true, .lda = K, .ldb = K, .ldc = N, .alpha = 1};
    double worst = 0;
    g.beta = p->add, g.a_e5m2 = p->e5m2, g.b_blocks = p->blocks;
    g.in = g.out = d->f32 || p->real_out ? HOLA_F32 : HOLA_BF16;
    for (int64_t i = 0; i < M * K; i++)
        a[i] = (real)(a[i] == 0 ? 0 : ldexp(frexp((double)a[i], &(int){0}), (int)(i % 4)));
    for (int64_t i = 0; i < N * K; i++)
        b[i] = (real)(b[i] == 0 ? 0 : ldexp(frexp((double)b[i], &(int){0}), (int)(i % 3)));
    struct forms fa = wanted(d, a, qa), fb = wanted(d, b, qb);
    real *da = malloc((size_t)(M * K) * sizeof *da), *db = malloc((size_t)(N * K) * sizeof *db);
    struct hl_fp8_quantise va = qa, vb = qb;
    va.codes = fa.codes, va.scale = fa.scale, vb.codes = fb.codes, vb.scale = fb.scale;
    hl_fp8_dequantise(&va, false, da), hl_fp8_dequantise(&vb, false, db);
    void *dev[4] = {dev_put(d, fa.codes, fa.n), dev_put(d, fb.codes, fb.n), dev_put(d, fa.scale, 4 * fa.scales),
                    dev_put(d, fb.scale, 4 * fb.scales)};
    g.A = dev[0], g.B = dev[1], g.a_scale = dev[2], g.b_scale = (float *)dev[3] + shift;
    if (g.out == HOLA_BF16)
        for (int64_t i = 0; i < M * N; i++) C[i] = hl_from_bf16(hl_to_bf16(C[i]));
    real *got = check_new(M * N);
    g.C = g.out == HOLA_BF16 ? dev_act(d, C, M * N) : dev_real(d, C, M * N);
    assert_true(hl_cuda_gemm_has(d->backend->device, &g));
    hl_cuda_gemm(d->backend->device, &g);
    if (g.out == HOLA_BF16) dev_act_take(d, g.C, got, M * N);
    else dev_real_take(d, g.C, got, M * N);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            double s = p->add ? (double)C[i * N + j] : 0, all = 1e-30;
            for (int64_t k = 0; k < K; k++) {
                s += (double)da[i * K + k] * (double)db[j * K + k];
                all += fabs((double)da[i * K + k] * (double)db[j * K + k]);
            }
            const double rounding = g.out == HOLA_BF16 ? 0x1p-8 * fabs(s) : 0;
            const double e = (fabs((double)got[i * N + j] - s) - rounding) / all;
            worst = e == e ? fmax(worst, e) : INFINITY;
        }
    for (int i = 0; i < 4; i++) dev_drop(d, dev[i]);
    check_free(got, M * N), check_free(C, M * N);
    forms_free(&fa), forms_free(&fb);
    free(a), free(b), free(da), free(db);
    return worst;
}

/* Hopper's tensor cores align 32 products to the largest before they add them, with 13 bits or so behind it; 128 of
 * them in four steps, then in floats. */
#define PRODUCT_ERROR 0x1p-9

static void products_are_sums_of_codes(void **state) {
    static const struct product products[] = {
        {32, 48, 64, .blocks = true},
        {64, 272, 144, .blocks = true, .add = true},
        {144, 160, 272, .blocks = true, .e5m2 = true},
        {48, 144, 400, .real_out = true, .add = true},
        {160, 32, 1040, .real_out = true, .add = true, .e5m2 = true},
    };
    struct dev d = fp8_open(false, &any_size);
    double worst = 0;
    (void)state;
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const double e = product_error(&d, &products[i], 0);
        if (!(e <= PRODUCT_ERROR))
            fail_msg("%d x %d x %d: %.3g of the sum of magnitudes", (int)products[i].M, (int)products[i].N,
                     (int)products[i].K, e);
        worst = fmax(worst, e);
    }
    print_message("products: at most %.2g of the sum of magnitudes away\n", worst);
    /* scales of other rows (cuBLASLt wants tables of scales at multiples of 16 bytes) */
    assert_true(product_error(&d, &products[3], 4) > PRODUCT_ERROR);
    dev_close(&d);
}

/* ---- linear layers against the simulation ---- */

enum { PARTS = 3 };
struct layer {
    int64_t M, K, N[PARTS], ld; /* ld: outputs side by side, weights one behind the other */
    int n, without;             /* parts; the one that is not in FP8, -1: none */
    bool add, dx_add;
};
struct arrays {
    real *x, *dx, *W, *out, *dout, *dW; /* weights of all parts one after another; outputs by ld or by part */
    int64_t nx, nW, nout;
};
static int64_t out_at(const struct layer *l, int p) {
    int64_t at = 0;
    for (int q = 0; q < p; q++) at += l->ld ? l->N[q] : l->M * l->N[q];
    return at;
}
static int64_t weight_at(const struct layer *l, int p) {
    int64_t at = 0;
    for (int q = 0; q < p; q++) at += l->N[q] * l->K;
    return at;
}
static struct arrays arrays_new(const struct dev *d, const struct layer *l) {
    struct arrays a = {.nx = l->M * l->K, .nW = weight_at(l, l->n)};
    a.nout = l->ld ? l->M * l->ld : out_at(l, l->n);
    a.x = check_random(a.nx, -1, 1, 1), a.dx = check_random(a.nx, -1, 1, 2), a.W = check_random(a.nW, -1, 1, 3);
    a.out = check_random(a.nout, -1, 1, 4), a.dout = check_random(a.nout, -1, 1, 5),
    a.dW = check_random(a.nW, -1, 1, 6);
    dev_round(d, a.x, a.nx), dev_round(d, a.dx, a.nx), dev_round(d, a.W, a.nW);
    dev_round(d, a.out, a.nout), dev_round(d, a.dout, a.nout);
    return a;
}
static void arrays_free(struct arrays *a) {
    check_free(a->x, a->nx), check_free(a->dx, a->nx), check_free(a->W, a->nW);
    check_free(a->out, a->nout), check_free(a->dout, a->nout), check_free(a->dW, a->nW);
}

static void on_device(const struct dev *d, const struct layer *l, struct arrays *a, int times) {
    const int64_t size = d->backend->act_size;
    struct hl_linear s = {.M = l->M, .K = l->K, .n = l->n, .ld = l->ld, .dx_add = l->dx_add};
    char *W = dev_act(d, a->W, a->nW), *out = dev_act(d, a->out, a->nout), *dout = dev_act(d, a->dout, a->nout);
    real *dW = dev_real(d, a->dW, a->nW);
    s.x = dev_act(d, a->x, a->nx), s.dx = dev_act(d, a->dx, a->nx);
    for (int p = 0; p < l->n; p++) {
        s.part[p] =
            (struct hl_linear_part){.out = out + out_at(l, p) * size,
                                    .dout = dout + out_at(l, p) * size,
                                    .dW = dW + weight_at(l, p),
                                    .W = {.data = W + weight_at(l, p) * size,
                                          .layout = HL_ROWS,
                                          .dtype = d->f32 ? HOLA_F32 : HOLA_BF16,
                                          .rows = l->N[p],
                                          .cols = l->K,
                                          .precision = p != l->without ? HOLA_PRECISION_FP8 : HOLA_PRECISION_AUTO}};
        if (l->add) s.part[p].from = s.part[p].out;
    }
    d->backend->fp8->stale(d->backend);
    for (int i = 0; i < times; i++) d->ops->linear_forward(d->backend, &s);
    d->ops->linear_backward(d->backend, &s);
    dev_act_take(d, out, a->out, a->nout), dev_act_take(d, (void *)s.dx, a->dx, a->nx);
    dev_real_take(d, dW, a->dW, a->nW);
    dev_drop(d, s.x), dev_drop(d, W), dev_drop(d, dout);
}
/* The same on a host backend, one part after another where they lie side by side. */
static void on_host(struct hl_backend *b, const struct layer *l, struct arrays *a) {
    bool add = l->dx_add;
    for (int pass = 0; pass < 2; pass++) /* those in FP8 last, as always */
        for (int p = 0; p < l->n; p++) {
            const int64_t N = l->N[p], ld = l->ld ? l->ld : N, at = out_at(l, p);
            real *out = check_new(l->M * N), *dout = check_new(l->M * N);
            if ((p != l->without) != (pass == 1)) {
                check_free(out, l->M * N), check_free(dout, l->M * N);
                continue;
            }
            for (int64_t i = 0; i < l->M; i++)
                for (int64_t j = 0; j < N; j++)
                    out[i * N + j] = a->out[at + i * ld + j], dout[i * N + j] = a->dout[at + i * ld + j];
            struct hl_linear s = {.M = l->M, .K = l->K, .n = 1, .x = a->x, .dx = a->dx, .dx_add = add};
            s.part[0] =
                (struct hl_linear_part){.W = {.data = a->W + weight_at(l, p),
                                              .rows = N,
                                              .cols = l->K,
                                              .precision = p != l->without ? HOLA_PRECISION_FP8 : HOLA_PRECISION_AUTO},
                                        .out = out,
                                        .dout = dout,
                                        .from = l->add ? out : NULL,
                                        .dW = a->dW + weight_at(l, p)};
            add = true;
            b->ops.linear_forward(b, &s);
            b->ops.linear_backward(b, &s);
            for (int64_t i = 0; i < l->M; i++)
                for (int64_t j = 0; j < N; j++) a->out[at + i * ld + j] = out[i * N + j];
            check_free(out, l->M * N), check_free(dout, l->M * N);
        }
}
static double distance(const struct layer *l, const struct arrays *a, const struct arrays *b) {
    double e = fmax(check_distance(a->dx, b->dx, l->M, l->K), check_distance(a->dW, b->dW, a->nW / l->K, l->K));
    return fmax(e, check_distance(a->out, b->out, a->nout / 16, 16));
}

static const struct layer layers[] = {
    {32, 64, {48}, .n = 1, .without = -1},
    {16, 32, {16}, .n = 1, .without = -1}, /* as few rows as decoding has, and few outputs */
    {144, 144, {272, 16}, .n = 2, .without = -1, .add = true, .dx_add = true},
    {48, 160, {64, 6, 128}, .n = 3, .without = 1},
    {48, 64, {128, 128, 32}, .ld = 320, .n = 3, .without = -1}, /* one product, as 128 divides the first two */
    {32, 64, {48, 32, 8}, .ld = 128, .n = 3, .without = 2},     /* three products */
    {160, 272, {128, 8, 128}, .ld = 320, .n = 3, .without = 1, .dx_add = true},
};

static void layers_are_as_simulated(void **state) {
    struct hl_backend *host;
    (void)state;
    CHECK_OK(hl_backend_open(&host, "cpu-ref", 2));
    CHECK_OK(host->fp8->open(host, &any_size));
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = fp8_open(f32, &any_size);
        const double tol = !f32 ? 6e-3 : dev_emulated(d.backend) ? 1e-5 : 2e-3;
        double worst = 0;
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
            const struct layer *l = &layers[i];
            struct arrays want = arrays_new(&d, l), got = arrays_new(&d, l), again = arrays_new(&d, l);
            on_host(host, l, &want);
            on_device(&d, l, &got, 1);
            on_device(&d, l, &again, 1);
            assert_true(distance(l, &got, &again) == 0);
            const double e = distance(l, &got, &want);
            if (!(e <= tol)) fail_msg("%s: layer %d: %.3g away", d.ops->name, (int)i, e);
            worst = fmax(worst, e);
            d.backend->fp8->close(d.backend); /* without FP8 the results are others */
            struct arrays plain = arrays_new(&d, l);
            on_device(&d, l, &plain, 1);
            assert_true(distance(l, &plain, &want) > 1.5 * tol);
            CHECK_OK(d.backend->fp8->open(d.backend, &any_size));
            arrays_free(&want), arrays_free(&got), arrays_free(&again), arrays_free(&plain);
        }
        print_message("%s: layers at most %.2g away\n", d.ops->name, worst);
        dev_close(&d);
    }
    host->fp8->close(host);
    hl_backend_close(host);
}

/* A number of rows that does not fit: the bits without FP8. */
static void odd_sizes_are_as_ever(void **state) {
    const struct layer l = {40, 64, {48}, .n = 1, .without = -1};
    struct dev d = fp8_open(false, &any_size);
    struct arrays got = arrays_new(&d, &l), plain = arrays_new(&d, &l);
    (void)state;
    on_device(&d, &l, &got, 1);
    d.backend->fp8->close(d.backend);
    on_device(&d, &l, &plain, 1);
    assert_true(distance(&l, &got, &plain) == 0);
    arrays_free(&got), arrays_free(&plain);
    dev_close(&d);
}

static void a_library_without_fp8(void **state) {
    (void)state;
    if (!&hl_emu_no_fp8) skip();
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const struct layer *l = &layers[i];
        struct dev d = fp8_open(false, &any_size);
        struct arrays fp8 = arrays_new(&d, l), none = arrays_new(&d, l), some = arrays_new(&d, l);
        struct arrays plain = arrays_new(&d, l);
        on_device(&d, l, &fp8, 1);
        assert_int_equal(d.backend->fp8->refused(d.backend), 0);
        hl_emu_no_fp8 = 3;
        on_device(&d, l, &none, 1);
        assert_true(d.backend->fp8->refused(d.backend) > 0);
        hl_emu_no_fp8 = 2; /* those of the weights' gradients alone */
        on_device(&d, l, &some, 1);
        hl_emu_no_fp8 = 0;
        d.backend->fp8->close(d.backend);
        on_device(&d, l, &plain, 1);
        assert_true(distance(l, &none, &plain) < 6e-3); /* other sums where parts are multiplied one by one */
        assert_true(memcmp(some.out, fp8.out, (size_t)fp8.nout * sizeof(real)) == 0);
        assert_true(memcmp(some.dx, fp8.dx, (size_t)fp8.nx * sizeof(real)) == 0);
        assert_true(check_distance(some.dW, plain.dW, plain.nW / l->K, l->K) < 1e-5);
        arrays_free(&fp8), arrays_free(&none), arrays_free(&some), arrays_free(&plain);
        dev_close(&d);
    }
}

/* A weight is quantised once until it changes: with the second forward pass it has not. */
static void weights_last_for_a_step(void **state) {
    struct dev d = fp8_open(false, &any_size);
    const struct layer l = layers[0];
    struct arrays one = arrays_new(&d, &l);
    struct hl_linear s = {.M = l.M, .K = l.K, .n = 1, .x = dev_act(&d, one.x, one.nx)};
    void *W = dev_act(&d, one.W, one.nW), *other = dev_act(&d, one.dout, one.nW);
    real *out[3];
    (void)state;
    for (int i = 0; i < 3; i++) { /* 1: other numbers, of which nothing was said; 2: and now it was */
        s.part[0] = (struct hl_linear_part){
            .W = {.data = W, .dtype = HOLA_BF16, .rows = l.N[0], .cols = l.K, .precision = HOLA_PRECISION_FP8}};
        s.part[0].out = dev_act(&d, NULL, one.nout);
        if (i == 1) hl_copy(d.backend, W, other, one.nW * 2);
        if (i == 2) d.backend->fp8->stale(d.backend);
        d.ops->linear_forward(d.backend, &s);
        out[i] = check_new(one.nout);
        dev_act_take(&d, s.part[0].out, out[i], one.nout);
    }
    assert_true(check_distance(out[1], out[0], l.M, l.N[0]) == 0);
    assert_true(check_distance(out[2], out[0], l.M, l.N[0]) > 0.1);
    for (int i = 0; i < 3; i++) check_free(out[i], one.nout);
    dev_drop(&d, s.x), dev_drop(&d, W), dev_drop(&d, other);
    arrays_free(&one);
    dev_close(&d);
}

/* ---- training ---- */

static bool forget_to_say;
static void (*say)(struct hl_backend *);
static void say_unless_forgotten(struct hl_backend *b) {
    if (!forget_to_say) say(b);
}

static bool kept_nowhere; /* with --recompute: SwiGLU's output */
static void (*down)(struct hl_backend *, const struct hl_down *);
static void down_watched(struct hl_backend *b, const struct hl_down *a) {
    assert_int_equal(a->recompute, kept_nowhere);
    down(b, a);
}

enum { STEPS = 4, TOKENS = 160 };
struct how {
    const char *backend;
    bool fp8, recompute, forget;
    int slices;
};
static void train(const struct how *h, double losses[STEPS]) {
    static const int64_t starts[2] = {0, 30};
    const hola_options where = {.threads = 2, .backend = h->backend};
    const hola_train_opts opt = {.size = sizeof opt,
                                 .max_tokens = TOKENS,
                                 .recompute = h->recompute,
                                 .precision = h->fp8 ? HOLA_PRECISION_FP8 : HOLA_PRECISION_AUTO};
    struct hl_fp8_products products;
    hola_config cfg;
    hola_model *m;
    hola_trainer *t;
    int32_t ids[TOKENS];
    CHECK_OK(hola_config_preset(&cfg, "46m", HOLA_TYPE_GATED_DELTANET)); /* whose memory would not depend on a bit */
    cfg.hidden_size = 64, cfg.num_hidden_layers = 2, cfg.num_heads = cfg.num_v_heads = 1, cfg.head_dim = 64;
    cfg.head_v_dim = 64, cfg.intermediate_size = 128, cfg.vocab_size = 50;
    for (int i = 0; i < TOKENS; i++) ids[i] = i * i % 47;
    CHECK_OK(hola_model_new(&m, &cfg, 1, &where));
    products = *m->backend->fp8;
    say = products.stale, forget_to_say = h->forget;
    products.stale = say_unless_forgotten;
    m->backend->fp8 = &products;
    kept_nowhere = h->recompute, down = m->backend->ops.down_forward;
    if (down) m->backend->ops.down_forward = down_watched;
    CHECK_OK(hola_trainer_new(&t, m, &opt));
    for (int k = 0; k < STEPS; k++) {
        losses[k] = 0;
        for (int i = 0; i < h->slices; i++) {
            const int64_t n = TOKENS / h->slices;
            double loss;
            CHECK_OK(hola_trainer_accumulate(t, ids + i * n, n, h->slices == 1 ? starts : NULL, h->slices == 1 ? 2 : 0,
                                             1.0 / TOKENS, &loss, NULL));
            losses[k] += loss / TOKENS;
        }
        CHECK_OK(hola_trainer_update(t, 5e-3, NULL));
    }
    assert_int_equal(hl_trainer_fp8_refused(t), 0);
    hola_trainer_free(t);
    hola_model_free(m);
}
static double furthest(const double *a, const double *b) {
    double e = 0;
    for (int k = 0; k < STEPS; k++) e = fmax(e, fabs(a[k] / b[k] - 1));
    return e;
}

static void training_is_as_simulated(void **state) {
    double want[STEPS], got[STEPS], other[STEPS];
    struct dev d = fp8_open(false, &any_size); /* or skips */
    (void)state;
    dev_close(&d);
    train(&(struct how){"cpu", .fp8 = true, .slices = 1}, want);
    train(&(struct how){"cuda-f32", .fp8 = true, .slices = 1}, got);
    print_message("losses: %.2g apart with float activations", furthest(got, want));
    assert_true(furthest(got, want) < 2e-3);
    train(&(struct how){"cuda", .fp8 = true, .slices = 1}, got);
    print_message(", %.2g with bf16\n", furthest(got, want));
    assert_true(furthest(got, want) < 1e-2);
    train(&(struct how){"cuda", .fp8 = true, .recompute = true, .slices = 1}, other);
    assert_true(furthest(got, other) == 0);
    train(&(struct how){"cuda", .fp8 = true, .forget = true, .slices = 1}, other); /* weights of the first step */
    print_message("with weights that were not renewed: %.2g apart\n", furthest(got, other));
    assert_true(furthest(got, other) > 1e-2);
    train(&(struct how){"cpu", .fp8 = true, .slices = 2}, want);
    train(&(struct how){"cuda", .fp8 = true, .slices = 2}, got);
    assert_true(furthest(got, want) < 1e-2);
}

static void older_devices_are_refused(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    if (!dev_emulated(d.backend)) {
        dev_close(&d);
        skip();
    }
    setenv("EMU_OLDER", "1", 1);
    assert_int_equal(d.backend->fp8->open(d.backend, &any_size), HOLA_ENOTSUP);
    unsetenv("EMU_OLDER");
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantises_to_the_bit),     cmocka_unit_test(products_are_sums_of_codes),
        cmocka_unit_test(layers_are_as_simulated),  cmocka_unit_test(odd_sizes_are_as_ever),
        cmocka_unit_test(a_library_without_fp8),    cmocka_unit_test(weights_last_for_a_step),
        cmocka_unit_test(training_is_as_simulated), cmocka_unit_test(older_devices_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
