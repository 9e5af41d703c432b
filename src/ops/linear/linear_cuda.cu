/* linear_cuda.cu -- see linear.h: selects the kernel for each product. Up to 16 rows: gemv_cuda.cuh; up to 64:
 * gemm_small_m_cuda.cuh; matrices with few outputs: gemm_small_n_cuda.cuh; FP8: gemm_fp8_cuda.cuh; everything else:
 * cuBLASLt (cuda/gemm.c), where gemm_padded_cuda.cuh rounds up odd numbers of outputs. */
#include "ops/cuda_ops.cuh"
#include "ops/linear/gemm_small_m_cuda.cuh"
#include "ops/linear/gemm_small_n_cuda.cuh"
#include "ops/linear/gemm_fp8_cuda.cuh"
#include "ops/linear/gemm_padded_cuda.cuh"

/* Which parts are computed together as one small-N product; returns whether there are any. Never with float
 * activations. */
static bool find_small_n(const struct hl_linear *a, bool *is_small_n) {
    int64_t all = 0;
    for (int p = 0; p < a->n; p++) {
        const int64_t rows = a->part[p].W.rows;
        is_small_n[p] = !a->ld && !a->ldx && a->part[p].W.precision != HOLA_PRECISION_FP8 && a->K <= SMALL_N_K &&
                        HL_ACT_DTYPE == HOLA_BF16 && rows <= SMALL_N_ROWS && all + rows <= SMALL_N_ALL &&
                        a->K % WIDE == 0;
        if (is_small_n[p]) all += rows;
    }
    return all > 0;
}

/* Merges adjacent parts whose weights, outputs and gradients are contiguous. In FP8, blocks of a weight keep their
 * boundaries. */
static struct hl_linear merged(const struct hl_linear *a) {
    const int64_t size = a->out_real ? (int64_t)sizeof(float) : (int64_t)sizeof(act);
    struct hl_linear m = *a;
    m.n = 0;
    for (int p = 0; p < a->n; p++) {
        const struct hl_linear_part *next = &a->part[p];
        struct hl_linear_part *last = m.n ? &m.part[m.n - 1] : NULL;
        const int64_t rows = last ? last->W.rows : 0;
        const bool blocks = last && last->W.precision == next->W.precision &&
                            (last->W.precision != HOLA_PRECISION_FP8 || rows % HL_FP8_BLOCK == 0);
        if (blocks && a->ld && !last->from && !next->from && next->W.data == (const act *)last->W.data + rows * a->K &&
            (!next->out || next->out == (char *)last->out + rows * size) &&
            (!next->dout || next->dout == (const act *)last->dout + rows) &&
            (next->dW ? last->dW && next->dW == last->dW + rows * a->K : !last->dW))
            last->W.rows += next->W.rows;
        else m.part[m.n++] = *next;
    }
    return m;
}

static struct hl_gemm product(int64_t M, int64_t N, int64_t K, const void *A, const void *B, void *C) {
    struct hl_gemm g = {M, N, K, false, false, A, B, C, K, N, N, HL_ACT_DTYPE, HL_ACT_DTYPE, 1.0f, 0.0f, NULL};
    return g;
}

extern "C" void HL_OP(linear_forward)(struct hl_backend *backend, const struct hl_linear *parts) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct hl_linear all = merged(parts), *a = &all;
    bool is_small_n[HL_LINEAR_MAX], is_fp8[HL_LINEAR_MAX];
    if (a->M == 0 || a->n == 0) return;
    const bool any_fp8 = fp8_find(c, a, is_fp8), dense = !a->ld && !a->ldx && !any_fp8;
    if (dense && gemv_fits(a)) {
        gemv(c, a);
        return;
    }
    if (dense && small_m_fits(c, a)) {
        small_m(c, a);
        return;
    }
#ifndef HL_CUDA_F32
    if (!any_fp8 && pads(a)) {
        padded_forward(c, a);
        return;
    }
#endif
    const bool any_small_n = find_small_n(a, is_small_n);
    fp8_forward(backend, c, a, is_fp8);
    for (int p = 0; p < a->n; p++) {
        const struct hl_linear_part *part = &a->part[p];
        if (is_small_n[p] || is_fp8[p]) continue;
        struct hl_gemm g = product(a->M, part->W.rows, a->K, a->x, part->W.data, part->out);
        g.b_trans = true, g.ldb = a->K;
        if (a->ld) g.ldc = a->ld;
        if (a->ldx) g.lda = a->ldx;
        if (part->from) g.beta = 1.0f, g.add = part->from;
        if (a->out_real) g.out = HOLA_F32;
        hl_cuda_gemm(c, &g);
    }
#ifndef HL_CUDA_F32
    const struct small_n t = small_n_open(a, is_small_n);
    if (any_small_n) small_n_forward(c, &t);
#endif
    (void)any_small_n;
}

/* swiglu: its gradients are dout, and not computed yet; NULL: dout is there. xt: the codes of x by columns; NULL: x is
 * there. */
static void backward(struct hl_backend *backend, const struct hl_linear *parts, const struct hl_swiglu *swiglu,
                     const struct fp8_form *xt) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct hl_linear all = merged(parts), *a = &all;
    bool is_small_n[HL_LINEAR_MAX] = {}, is_fp8[HL_LINEAR_MAX] = {}, dx_add = a->dx_add;
    if (a->M == 0 || a->n == 0) return;
    const bool any_small_n = find_small_n(a, is_small_n), any_fp8 = fp8_find(c, a, is_fp8);
    if (swiglu && !fp8_fits_swiglu(a, is_fp8, swiglu)) {
        HL_OP(swiglu_backward)(backend, swiglu);
        swiglu = NULL;
    }
#ifndef HL_CUDA_F32
    if (!any_fp8 && pads(a)) {
        padded_backward(c, a);
        return;
    }
    struct small_n t = small_n_open(a, is_small_n);
    if (any_small_n) small_n_backward_w(c, &t);
    if (any_small_n && a->dx) small_n_backward_x(c, &t, dx_add);
#endif
    dx_add = dx_add || any_small_n;
    struct fp8_back fp8 = {0};
    if (any_fp8) fp8 = fp8_back_open(backend, c, a, is_fp8, swiglu, xt);
    for (int p = 0; p < a->n; p++) {
        const struct hl_linear_part *part = &a->part[p];
        const int64_t N = part->W.rows, ld = a->ld ? a->ld : N;
        if (is_small_n[p]) continue;
        struct fp8_done done = {false, false};
        if (is_fp8[p]) done = fp8_backward(&fp8, p, dx_add);
        if (a->dx && !done.dx) {
            struct hl_gemm g = product(a->M, a->K, N, part->dout, part->W.data, a->dx);
            g.lda = ld;
            if (a->ldx) g.ldc = a->ldx;
            if (dx_add) g.beta = 1.0f;
            hl_cuda_gemm(c, &g);
        }
        dx_add = true;
        if (part->dW && !done.dW) {
            struct hl_gemm g = product(N, a->K, a->M, part->dout, a->x, part->dW);
            g.a_trans = true, g.lda = ld;
            if (a->ldx) g.ldb = a->ldx;
            g.out = HOLA_F32, g.beta = 1.0f;
            hl_cuda_gemm(c, &g);
        }
    }
}

extern "C" void HL_OP(linear_backward)(struct hl_backend *backend, const struct hl_linear *a) {
    backward(backend, a, NULL, NULL);
}

#ifndef HL_CUDA_F32
extern "C" void HL_OP(gate_up_backward)(struct hl_backend *backend, const struct hl_gate_up *a) {
    backward(backend, &a->linear, &a->swiglu, NULL);
}
extern "C" void HL_OP(down_forward)(struct hl_backend *backend, const struct hl_down *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct fp8_down t = fp8_down_open(backend, c, a);
    if (!t.w) {
        HL_OP(swiglu_forward)(backend, &a->swiglu);
        HL_OP(linear_forward)(backend, &a->linear);
        return;
    }
    const int64_t M = a->linear.M, K = a->linear.K;
    char *room = (char *)hl_cuda_scratch(c, fp8_bytes(M, K));
    if (!room) return;
    const struct fp8_form x = fp8_take(&room, M, K), xt = a->recompute ? (struct fp8_form){} : t.xt;
    const struct hl_gemm out = fp8_product_out(&a->linear, a->linear.part, x, t.w);
    swiglu_output(c, &a->swiglu, x, xt);
    hl_cuda_gemm(c, &out);
}
extern "C" void HL_OP(down_backward)(struct hl_backend *backend, const struct hl_down *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct fp8_down t = fp8_down_open(backend, c, a);
    if (a->recompute && t.w) swiglu_output(c, &a->swiglu, (struct fp8_form){}, t.xt);
    else if (a->recompute) HL_OP(swiglu_forward)(backend, &a->swiglu);
    backward(backend, &a->linear, NULL, t.w ? &t.xt : NULL);
}
#endif
