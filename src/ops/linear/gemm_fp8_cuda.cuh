/* gemm_fp8_cuda.cuh -- FP8 linear layers (fp8.h): operands are quantised to scratch memory, weights only once after
 * every change, and multiplied by cuBLASLt. Products without a library kernel are left to the caller. */
#ifndef HL_GEMM_FP8_CUDA_CUH
#define HL_GEMM_FP8_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/fp8.cuh"
#ifndef HL_CUDA_F32
#include "ops/linear/swiglu_fp8_cuda.cuh"
#endif

/* Which parts are in FP8; returns whether there are any. */
static bool fp8_find(const struct hl_cuda *c, const struct hl_linear *a, bool *is_fp8) {
    bool any = false;
    for (int p = 0; p < a->n; p++) {
        is_fp8[p] = hl_cuda_fp8_on(c) && a->part[p].W.precision == HOLA_PRECISION_FP8 &&
                    hl_fp8_fits(a->M, a->part[p].W.rows, a->K);
        any = any || is_fp8[p];
    }
    return any;
}

static int64_t fp8_bytes(int64_t rows, int64_t cols) {
    return hl_pieces(rows * cols, 256) * 256 + hl_pieces(hl_fp8_scales(false, rows, cols), 64) * 256;
}
static struct fp8_form fp8_take(char **from, int64_t rows, int64_t cols) {
    const struct fp8_form f = {(uint8_t *)*from, (float *)(*from + hl_pieces(rows * cols, 256) * 256)};
    *from += fp8_bytes(rows, cols);
    return f;
}

/* form: of [rows][cols]; transposed: of [cols][rows]; NULL: not wanted */
static void fp8_make(struct hl_backend *backend, const void *x, int64_t rows, int64_t cols, int64_t ld,
                     enum hl_fp8 format, const struct fp8_form *form, const struct fp8_form *transposed) {
    struct hl_fp8_quantise q = {rows, cols, ld, x, format};
    if (form) q.codes = form->codes, q.scale = form->scale;
    if (transposed) q.codes_t = transposed->codes, q.scale_t = transposed->scale;
    if (form || transposed) HL_OP(fp8_quantise)(backend, &q);
}
static const struct hl_fp8_weight *fp8_weight(struct hl_backend *backend, struct hl_cuda *c,
                                              const struct hl_weight *W) {
    bool fill = false;
    const struct hl_fp8_weight *w =
        hl_cuda_fp8_weight(c, W->data, W->rows, W->cols, hl_fp8_scales(true, W->rows, W->cols),
                           hl_fp8_scales(true, W->cols, W->rows), &fill);
    if (!w || !fill) return w;
    const struct hl_fp8_quantise q = {W->rows, W->cols,  W->cols,    W->data,  HL_E4M3,
                                      true,    w->codes, w->codes_t, w->scale, w->scale_t};
    HL_OP(fp8_quantise)(backend, &q);
    return w;
}

/* C [M][N] = A B^T, with one form of each */
static struct hl_gemm fp8_product(int64_t M, int64_t N, int64_t K, struct fp8_form A, struct fp8_form B, bool blocks,
                                  void *C) {
    struct hl_gemm g = {M, N, K, false, true, A.codes, B.codes, C, K, K, N, HL_ACT_DTYPE, HL_ACT_DTYPE, 1.0f, 0.0f};
    g.a_scale = A.scale, g.b_scale = B.scale, g.b_blocks = blocks;
    return g;
}

static struct hl_gemm fp8_product_out(const struct hl_linear *a, const struct hl_linear_part *part, struct fp8_form x,
                                      const struct hl_fp8_weight *w) {
    struct hl_gemm g = fp8_product(a->M, part->W.rows, a->K, x, (struct fp8_form){w->codes, w->scale}, true, part->out);
    if (a->ld) g.ldc = a->ld;
    if (part->from) g.beta = 1.0f, g.add = part->from;
    if (a->out_real) g.out = HOLA_F32;
    return g;
}
static struct hl_gemm fp8_product_dW(const struct hl_linear *a, const struct hl_linear_part *part, struct fp8_form dt,
                                     struct fp8_form xt) {
    struct hl_gemm g = fp8_product(part->W.rows, a->K, a->M, dt, xt, false, part->dW);
    g.a_e5m2 = HL_FP8_GRADIENTS == HL_E5M2, g.out = HOLA_F32, g.beta = 1.0f;
    return g;
}

/* Clears is_fp8 of parts that were not computed. */
static void fp8_forward(struct hl_backend *backend, struct hl_cuda *c, const struct hl_linear *a, bool *is_fp8) {
    struct fp8_form x = {NULL, NULL};
    bool made = false;
    for (int p = 0; p < a->n; p++) {
        const struct hl_linear_part *part = &a->part[p];
        if (!is_fp8[p]) continue;
        if (!x.codes) {
            char *room = (char *)hl_cuda_scratch(c, fp8_bytes(a->M, a->K));
            if (!room) return;
            x = fp8_take(&room, a->M, a->K);
        }
        const struct hl_fp8_weight *w = fp8_weight(backend, c, &part->W);
        if (!w) return;
        const struct hl_gemm g = fp8_product_out(a, part, x, w);
        is_fp8[p] = hl_cuda_gemm_has(c, &g);
        if (!is_fp8[p]) continue;
        if (!made) fp8_make(backend, a->x, a->M, a->K, a->ldx ? a->ldx : a->K, HL_E4M3, &x, NULL);
        made = true;
        hl_cuda_gemm(c, &g);
    }
}

/* ---- backward ---- */

static void fp8_swiglu_gradients(struct hl_cuda *c, const struct hl_swiglu *s, struct fp8_form d, struct fp8_form dt) {
#ifndef HL_CUDA_F32
    swiglu_gradients(c, s, d, dt);
#endif
}

struct fp8_back {
    struct hl_backend *backend;
    struct hl_cuda *c;
    const struct hl_linear *a;
    char *room;
    const struct hl_swiglu *swiglu; /* its gradients are dout, and not computed yet; NULL: dout is there */
    struct fp8_form xt;             /* of all parts */
    bool made;
};
struct fp8_done {
    bool dx, dW;
};

/* swiglu, xt: NULL, or as in struct fp8_back */
static struct fp8_back fp8_back_open(struct hl_backend *backend, struct hl_cuda *c, const struct hl_linear *a,
                                     const bool *is_fp8, const struct hl_swiglu *swiglu, const struct fp8_form *xt) {
    struct fp8_back t = {backend, c, a, NULL, swiglu};
    int64_t widest = 0;
    for (int p = 0; p < a->n; p++)
        if (is_fp8[p]) widest = max(widest, fp8_bytes(a->M, a->part[p].W.rows) + fp8_bytes(a->part[p].W.rows, a->M));
    t.room = (char *)hl_cuda_scratch(c, widest + (xt ? 0 : fp8_bytes(a->K, a->M)));
    t.made = xt != NULL;
    if (xt) t.xt = *xt;
    else if (t.room) t.xt = fp8_take(&t.room, a->K, a->M);
    return t;
}

/* One part's gradients; returns what was computed. dout is read once for both. */
static struct fp8_done fp8_backward(struct fp8_back *t, int p, bool dx_add) {
    const struct hl_linear *a = t->a;
    const struct hl_linear_part *part = &a->part[p];
    const int64_t N = part->W.rows;
    struct fp8_done done = {false, false};
    char *room = t->room;
    if (!room) return done; /* the error is recorded */
    const struct fp8_form d = fp8_take(&room, a->M, N), dt = fp8_take(&room, N, a->M);
    const struct hl_fp8_weight *w = fp8_weight(t->backend, t->c, &part->W);
    if (!w) return done;
    struct hl_gemm dx = fp8_product(a->M, a->K, N, d, (struct fp8_form){w->codes_t, w->scale_t}, true, a->dx);
    struct hl_gemm dW = fp8_product_dW(a, part, dt, t->xt);
    dx.a_e5m2 = HL_FP8_GRADIENTS == HL_E5M2;
    if (a->ldx) dx.ldc = a->ldx;
    if (dx_add) dx.beta = 1.0f;
    done.dx = a->dx && hl_cuda_gemm_has(t->c, &dx);
    done.dW = part->dW && hl_cuda_gemm_has(t->c, &dW);
    const bool fused = t->swiglu && done.dx && done.dW; /* nothing needs the gradients in bf16 */
    if (fused) fp8_swiglu_gradients(t->c, t->swiglu, d, dt);
    else if (t->swiglu) HL_OP(swiglu_backward)(t->backend, t->swiglu);
    if (!fused)
        fp8_make(t->backend, part->dout, a->M, N, a->ld ? a->ld : N, HL_FP8_GRADIENTS, done.dx ? &d : NULL,
                 done.dW ? &dt : NULL);
    if (done.dx) hl_cuda_gemm(t->c, &dx);
    if (!done.dW) return done;
    if (!t->made) fp8_make(t->backend, a->x, a->M, a->K, a->ldx ? a->ldx : a->K, HL_E4M3, NULL, &t->xt);
    t->made = true;
    hl_cuda_gemm(t->c, &dW);
    return done;
}

/* ---- together with SwiGLU (ops/swiglu/swiglu.h) ---- */

#ifdef HL_CUDA_F32
static bool fp8_fits_swiglu(const struct hl_linear *, const bool *, const struct hl_swiglu *) { return false; }
#else
/* Whether the gradients of these parts, merged, are gate's and up's side by side. */
static bool fp8_fits_swiglu(const struct hl_linear *a, const bool *is_fp8, const struct hl_swiglu *s) {
    return a->n == 1 && is_fp8[0] && a->part[0].dout == s->dgate && a->part[0].W.rows == 2 * s->D && a->ld == s->ld &&
           s->dup == (act *)s->dgate + s->D && s->D % FP8_SIDE == 0 && swiglu_is_wide(s);
}

/* The layer whose x is SwiGLU's output: codes of x by rows in scratch memory; those by columns in the memory of x, until
 * the gradient of the weight needs them. */
struct fp8_down {
    struct fp8_form xt;
    const struct hl_fp8_weight *w; /* NULL: x is not codes, or there was no memory */
};
static struct fp8_down fp8_down_open(struct hl_backend *backend, struct hl_cuda *c, const struct hl_down *d) {
    const struct hl_linear *a = &d->linear;
    const struct hl_swiglu *s = &d->swiglu;
    struct fp8_down t = {};
    bool is_fp8[HL_LINEAR_MAX];
    char *room = (char *)s->y;
    if (a->n != 1 || !fp8_find(c, a, is_fp8) || a->x != s->y || a->ldx || (uintptr_t)s->y % 16 != 0 ||
        !swiglu_is_wide(s) || fp8_bytes(a->K, a->M) > a->M * a->K * (int64_t)sizeof(act))
        return t;
    t.xt = fp8_take(&room, a->K, a->M);
    const struct hl_fp8_weight *w = fp8_weight(backend, c, &a->part[0].W);
    if (!w) return t;
    /* The library is asked by shape: any codes do. */
    const struct hl_gemm out = fp8_product_out(a, a->part, t.xt, w), dW = fp8_product_dW(a, a->part, t.xt, t.xt);
    if (hl_cuda_gemm_has(c, &out) && hl_cuda_gemm_has(c, &dW)) t.w = w;
    return t;
}
#endif

#endif
