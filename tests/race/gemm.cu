/* gemm.cu -- matrix products by plain loops, in place of cuBLAS (src/cuda/gemm.c) where racecheck looks: it finds hazards
 * inside of cuBLAS's kernels, takes minutes for them, and ends with an error of its own where it is told to leave them
 * out. */
#include "cuda/common.cuh"
extern "C" {
#include "cuda/device.h"
#include "ops/linear/fp8.h"
}

static __device__ float number_at(const void *x, hola_dtype t, int64_t i) {
    return t == HOLA_BF16 ? f32(((const bf16 *)x)[i]) : ((const float *)x)[i];
}
/* A thread has an element. */
static __global__ void product(const struct hl_gemm g) {
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i = at / g.N, j = at % g.N;
    if (i >= g.M) return;
    float sum = 0;
    for (int64_t k = 0; k < g.K && g.a_scale; k++)
        sum += hl_from_fp8(((const uint8_t *)g.A)[i * g.lda + k], g.a_e5m2 ? HL_E5M2 : HL_E4M3) *
               hl_from_fp8(((const uint8_t *)g.B)[j * g.ldb + k], HL_E4M3) *
               (g.a_scale[k / HL_FP8_BLOCK * g.M + i] *
                g.b_scale[g.b_blocks ? j / HL_FP8_BLOCK * ((g.K + 511) / 512 * 4) + k / HL_FP8_BLOCK
                                     : k / HL_FP8_BLOCK * g.N + j]);
    for (int64_t k = 0; k < g.K && !g.a_scale; k++)
        sum += number_at(g.A, g.in, g.a_trans ? k * g.lda + i : i * g.lda + k) *
               number_at(g.B, g.in, g.b_trans ? j * g.ldb + k : k * g.ldb + j);
    sum *= g.alpha;
    if (g.beta != 0) sum += g.beta * number_at(g.add ? g.add : g.C, g.out, i * g.ldc + j);
    if (g.out == HOLA_BF16) put((bf16 *)g.C + i * g.ldc + j, sum);
    else put((float *)g.C + i * g.ldc + j, sum);
}

extern "C" void hl_cuda_gemm(struct hl_cuda *c, const struct hl_gemm *g) {
    if (g->M > 0 && g->N > 0) launch(c, product, blocks_for(g->M * g->N, 128), 128, 0, *g);
}
extern "C" bool hl_cuda_gemm_has(struct hl_cuda *c, const struct hl_gemm *g) {
    (void)c, (void)g;
    return true;
}
extern "C" void hl_gemm_close(struct hl_cuda *c) { (void)c; }
