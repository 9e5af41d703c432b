/* gemm_padded_cuda.cuh -- products whose number of outputs is not a multiple of 8, as the joint row of KDA with 4 heads,
 * which have one beta each. For its fastest kernels cuBLAS asks for extents of whole 16 bytes, besides strides (its
 * guide, "Tensor Core Usage"): 1,796 outputs violate that forward, in dx and in dW. So the weights are copied to scratch
 * memory with rows of zeros up to the next multiple, and the products run on those.
 *
 * out: columns of zeros appear in the room between the rows (hl_linear.room). dout: the same columns are set to 0, as
 * 0 times whatever is there could be NaN. dW: a product of its own, added afterwards. Grids over all 16-byte pieces or
 * rows, a thread owns one. */
#ifndef HL_GEMM_PADDED_CUDA_CUH
#define HL_GEMM_PADDED_CUDA_CUH
#include "ops/cuda_ops.cuh"

#ifndef HL_CUDA_F32
enum { PADDED_TO = 8, PADDED_THREADS = 256 };

static int64_t padded_rows(const struct hl_linear *a) { return hl_pieces(a->part[0].W.rows, PADDED_TO) * PADDED_TO; }
static bool pads(const struct hl_linear *a) {
    return a->room && a->n == 1 && a->part[0].W.rows % PADDED_TO && !a->part[0].from && !a->out_real &&
           a->K % WIDE == 0 && a->ld >= padded_rows(a) && (uintptr_t)a->part[0].W.data % 16 == 0;
}

static __global__ void __launch_bounds__(PADDED_THREADS)
    pad_weights(uint4 *to, const uint4 *W, int64_t n, int64_t all) {
    const int64_t i = (int64_t)blockIdx.x * PADDED_THREADS + threadIdx.x;
    if (i < all) to[i] = i < n ? W[i] : make_uint4(0, 0, 0, 0);
}
static __global__ void __launch_bounds__(PADDED_THREADS)
    clear_columns(act *dout, int64_t M, int from, int to, int64_t ld) {
    const int64_t m = (int64_t)blockIdx.x * PADDED_THREADS + threadIdx.x;
    for (int i = from; m < M && i < to; i++) put(dout + m * ld + i, 0.0f);
}
static __global__ void __launch_bounds__(PADDED_THREADS) add_gradient(float *dW, const float *from, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * PADDED_THREADS + threadIdx.x) * 4;
    for (int j = 0; j < 4 && i + j < n; j++) dW[i + j] += from[i + j];
}

/* Scratch memory: the padded weights, then, if wanted, room for their gradient. NULL: there is none. */
static act *padded_weights(struct hl_cuda *c, const struct hl_linear *a, bool gradient) {
    const int64_t n = padded_rows(a) * a->K, pieces = n / WIDE, own = a->part[0].W.rows * a->K / WIDE;
    act *W = (act *)hl_cuda_scratch(c, n * (int64_t)sizeof(act) + (gradient ? n * (int64_t)sizeof(float) : 0));
    if (W)
        launch(c, pad_weights, blocks_for(pieces, PADDED_THREADS), PADDED_THREADS, 0, (uint4 *)W,
               (const uint4 *)a->part[0].W.data, own, pieces);
    return W;
}
/* As the only part; on return the gradient is added, or there is no memory. */
static void padded_forward(struct hl_cuda *c, const struct hl_linear *a) {
    const int64_t N = padded_rows(a);
    const act *W = padded_weights(c, a, false);
    if (!W) return;
    struct hl_gemm g = {a->M, N, a->K, false, true, a->x, W, a->part[0].out, a->ldx ? a->ldx : a->K, a->K, a->ld};
    g.in = g.out = HL_ACT_DTYPE, g.alpha = 1.0f;
    hl_cuda_gemm(c, &g);
}
static void padded_backward(struct hl_cuda *c, const struct hl_linear *a) {
    const int64_t N = padded_rows(a), own = a->part[0].W.rows, ldx = a->ldx ? a->ldx : a->K;
    const act *W = padded_weights(c, a, true);
    act *dout = (act *)a->part[0].dout; /* const but for its room */
    if (!W) return;
    float *dW = (float *)(W + N * a->K);
    launch(c, clear_columns, blocks_for(a->M, PADDED_THREADS), PADDED_THREADS, 0, dout, a->M, (int)own, (int)N, a->ld);
    if (a->dx) {
        struct hl_gemm g = {a->M, a->K, N, false, false, dout, W, a->dx, a->ld, a->K, ldx};
        g.in = g.out = HL_ACT_DTYPE, g.alpha = 1.0f, g.beta = a->dx_add ? 1.0f : 0.0f;
        hl_cuda_gemm(c, &g);
    }
    if (!a->part[0].dW) return;
    struct hl_gemm g = {N, a->K, a->M, true, false, dout, a->x, dW, a->ld, ldx, a->K};
    g.in = HL_ACT_DTYPE, g.out = HOLA_F32, g.alpha = 1.0f;
    hl_cuda_gemm(c, &g);
    launch(c, add_gradient, blocks_for(own * a->K, 4 * PADDED_THREADS), PADDED_THREADS, 0, (float *)a->part[0].dW, dW,
           own * a->K);
}
#endif
#endif
