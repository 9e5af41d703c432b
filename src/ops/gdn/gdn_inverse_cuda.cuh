/* gdn_inverse_cuda.cuh -- A = (I + L)^-1 of a chunk, by the first warpgroup of a block, synchronised at named barrier
 * 1. For gdn_prep and kda_prep. */
#ifndef HL_GDN_INVERSE_CUDA_CUH
#define HL_GDN_INVERSE_CUDA_CUH
#include "ops/gdn/gdn_cuda.cuh"

/* ---- (I + L)^-1, in 16 x 16 blocks: those on the diagonal by substitution, then twice
 *     (X 0; L Y)^-1 = (X^-1 0; -Y^-1 L X^-1 Y^-1)
 * of blocks of 16 and of 32. Below the diagonal a warp has 8 columns, which depend on no others. ---- */

/* warp b: block (b, b), a column of it in each of 16 lanes */
static __device__ __forceinline__ void invert_diagonal(const float *L_t, float *A, int b) {
    const int col = threadIdx.x % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = i == col ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < 15; j++)
#pragma unroll
        for (int i = (j + 1) / 4 * 4; i < 16; i += 4) { /* L is 0 where i <= j */
            const float4 L = *(const float4 *)(L_t + (16 * b + j) * INVERSE_LD + 16 * b + i);
            x[i] -= L.x * x[j], x[i + 1] -= L.y * x[j], x[i + 2] -= L.z * x[j], x[i + 3] -= L.w * x[j];
        }
    __syncwarp(); /* all lanes have read L */
    if (threadIdx.x % 32 < 16)
#pragma unroll
        for (int i = 0; i < 16; i++) A[(16 * b + i) * INVERSE_LD + 16 * b + col] = x[i];
}

/* an operand of mma_tf32, rounded to nearest: the tensor core would truncate it */
static __device__ __forceinline__ uint32_t tf32(float x) { return __float_as_uint(x) + 0x1000u; }

/* acc += X Y: X 16 x 16, X(r, c) at x[r * xr + c * xc]; Y 16 x 8, at rows of INVERSE_LD */
static __device__ __forceinline__ void block_product(float acc[4], const float *x, int xr, int xc, const float *y) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int c = 0; c < 16; c += 8) {
        const float *p = x + g * xr + (c + t) * xc, *r = y + (c + t) * INVERSE_LD + g;
        const uint32_t a[4] = {tf32(p[0]), tf32(p[8 * xr]), tf32(p[4 * xc]), tf32(p[8 * xr + 4 * xc])};
        const uint32_t b[2] = {tf32(r[0]), tf32(r[4 * INVERSE_LD])};
        mma_tf32(acc, a, b);
    }
}
static __device__ __forceinline__ void write_block(float *A, const float acc[4], float sign) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++)
        *(float2 *)(A + (g + 8 * h) * INVERSE_LD + 2 * t) = make_float2(sign * acc[2 * h], sign * acc[2 * h + 1]);
}
/* N x N blocks below the diagonal, at block (at + N, at), 8 columns from `col` on; L X^-1 is stored in place of the
 * result */
template <int N> static __device__ __forceinline__ void invert_below(const float *L_t, float *A, int at, int col) {
    float acc[N][4] = {}, last[N][4] = {}, *X = A + 16 * at * INVERSE_LD + 16 * at + col;
    const float *Y = A + 16 * (at + N) * (INVERSE_LD + 1);
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int k = 0; k < N; k++)
            if (k >= col / 16)
                block_product(acc[i], L_t + 16 * (at + k) * INVERSE_LD + 16 * (at + N + i), 1, INVERSE_LD,
                              X + 16 * k * INVERSE_LD);
    X += 16 * N * INVERSE_LD;
#pragma unroll
    for (int i = 0; i < N; i++) write_block(X + 16 * i * INVERSE_LD, acc[i], 1.0f);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int k = 0; k <= i; k++)
            block_product(last[i], Y + 16 * i * INVERSE_LD + 16 * k, INVERSE_LD, 1, X + 16 * k * INVERSE_LD);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N; i++) write_block(X + 16 * i * INVERSE_LD, last[i], -1.0f);
}

/* A from L, just written by the warps. They may be one array: L transposed is above the diagonal, A on and below it, and a
 * diagonal block of L, with its zeros, is not needed after that of A is known. */
static __device__ __forceinline__ void invert_unit(const float *L_t, float *A) {
    const int warp = threadIdx.x / 32, group = 128;
    named_barrier_sync(1, group);
    invert_diagonal(L_t, A, warp);
    named_barrier_sync(1, group);
    invert_below<1>(L_t, A, warp / 2 * 2, warp % 2 * 8);
    named_barrier_sync(1, group);
    invert_below<2>(L_t, A, 0, warp * 8);
    named_barrier_sync(1, group);
}
/* rows of A to memory, 16 bytes per thread; zeros to the right of the diagonal blocks */
static __device__ __forceinline__ void write_A(const float *A, bf16 *to, int64_t stride, int len) {
    const int col = threadIdx.x % 8 * 8;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int row = 16 * n + threadIdx.x / 8;
        const float *p = A + row * INVERSE_LD + col;
        const float4 x = *(const float4 *)p, y = *(const float4 *)(p + 4);
        uint4 u = make_uint4(pack2(x.x, x.y), pack2(x.z, x.w), pack2(y.x, y.y), pack2(y.z, y.w));
        if (col / 16 > n) u = make_uint4(0u, 0u, 0u, 0u);
        if (row < len) *(uint4 *)(to + row * stride + col) = u;
    }
}

#endif
