/* common.cuh -- shared by all kernels: the activation type, vectorised loads and stores, warp and block reductions,
 * tensor cores (mma, ldmatrix), cp.async, loads and stores with a memory order, kernel launches.
 *
 * Every .cu file is compiled twice: HL_ISA=cuda with bf16 activations, HL_ISA=cuda_f32 (and HL_CUDA_F32) with float
 * ones, for checking. The tests compile it again with a C++ compiler and HL_CUDA_EMU, against the emulator's own
 * cuda_runtime.h and cuda_bf16.h. Inline PTX needs an emulated counterpart there (emu_...), so it belongs in the
 * headers of this folder, not in the op files. */
#ifndef HL_CUDA_COMMON_CUH
#define HL_CUDA_COMMON_CUH
#include <math.h> /* these before extern "C": their C++ parts must not be inside it */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
extern "C" {
#include "cuda/cuda.h"
}

typedef __nv_bfloat16 bf16;
#ifdef HL_CUDA_F32
typedef float act;
#define HL_ACT_DTYPE HOLA_F32
#else
typedef bf16 act;
#define HL_ACT_DTYPE HOLA_BF16
#endif

__device__ __forceinline__ float f32(float x) { return x; }
__device__ __forceinline__ float f32(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void put(float *p, float x) { *p = x; }
__device__ __forceinline__ void put(bf16 *p, float x) { *p = __float2bfloat16(x); }
/* two floats to a packed pair of bf16, the first in the low half: for mma fragments and 4-byte stores */
__device__ __forceinline__ uint32_t pack2(float lo, float hi) {
#ifdef HL_CUDA_EMU
    return __float2bfloat16(lo).bits | (uint32_t)__float2bfloat16(hi).bits << 16;
#else
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
#endif
}
__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

/* ---- vectorised loads and stores: WIDE activations, 16 bytes at a time ---- */

enum { WIDE = 16 / sizeof(act) };
__device__ __forceinline__ void load_wide(float *x, const bf16 *p) {
    const uint4 u = *(const uint4 *)p;
    x[0] = low(u.x), x[1] = high(u.x), x[2] = low(u.y), x[3] = high(u.y);
    x[4] = low(u.z), x[5] = high(u.z), x[6] = low(u.w), x[7] = high(u.w);
}
__device__ __forceinline__ void load_wide(float *x, const float *p) {
    const float4 u = *(const float4 *)p;
    x[0] = u.x, x[1] = u.y, x[2] = u.z, x[3] = u.w;
}
__device__ __forceinline__ void store_wide(bf16 *p, const float *x) {
    *(uint4 *)p = make_uint4(pack2(x[0], x[1]), pack2(x[2], x[3]), pack2(x[4], x[5]), pack2(x[6], x[7]));
}
__device__ __forceinline__ void store_wide(float *p, const float *x) {
    *(float4 *)p = make_float4(x[0], x[1], x[2], x[3]);
}

/* ---- warp and block reductions: a fixed tree, so the same input gives the same bits ---- */

__device__ __forceinline__ float warp_sum(float x) {
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
/* over the whole block, with the result in every thread; shared: 33 floats of shared memory */
__device__ __forceinline__ float block_sum(float x, float *shared) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = warp_sum(x);
    __syncthreads(); /* the previous call may still be reading */
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_sum(lane < (blockDim.x + 31) / 32 ? shared[lane] : 0.0f);
        if (lane == 0) shared[32] = x;
    }
    __syncthreads();
    return shared[32];
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

/* ---- tensor cores: one mma of a warp, and ldmatrix ----
 * mma_bf16: D[16][8] += A[16][16] B[16][8]; lane l, g = l/4, t = l%4 holds
 *   a[0] A[g][2t..], a[1] A[g+8][2t..], a[2] A[g][2t+8..], a[3] A[g+8][2t+8..]  (pairs along the row)
 *   b[0] B[2t..][g], b[1] B[2t+8..][g]                                         (pairs along the column)
 *   d[0] D[g][2t], d[1] D[g][2t+1], d[2] D[g+8][2t], d[3] D[g+8][2t+1]
 * So accumulators packed by pack2 are A fragments of the next mma.
 * ldmatrix: n 8x8 matrices; lane l gives the address of row l%8 of matrix l/8 (16 bytes in shared memory,
 * 16-byte aligned) and receives row l/4, columns 2(l%4).. of each; _trans: of each one transposed. */
__device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
#ifdef HL_CUDA_EMU
    emu_mma_bf16(d, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
/* mma_tf32: D[16][8] += A[16][8] B[8][8]; lane l, g = l/4, t = l%4 holds as floats
 *   a[0] A[g][t], a[1] A[g+8][t], a[2] A[g][t+4], a[3] A[g+8][t+4]; b[0] B[t][g], b[1] B[t+4][g]; d as above */
__device__ __forceinline__ void mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]) {
#ifdef HL_CUDA_EMU
    emu_mma_tf32(d, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
__device__ __forceinline__ void ldmatrix4(uint32_t r[4], const void *row) {
#ifdef HL_CUDA_EMU
    emu_ldmatrix(r, 4, row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}
__device__ __forceinline__ void ldmatrix4_trans(uint32_t r[4], const void *row) {
#ifdef HL_CUDA_EMU
    emu_ldmatrix(r, 4, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}

/* two matrices, transposed; lanes 0 to 15 give the addresses */
__device__ __forceinline__ void ldmatrix2_trans(uint32_t r[2], const void *row) {
#ifdef HL_CUDA_EMU
    emu_ldmatrix(r, 2, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}

/* ---- cp.async: global to shared memory, 16 bytes each; `filled` < 16: the rest is filled with zeros ---- */

__device__ __forceinline__ void copy_async(void *shared, const void *global, int filled = 16) {
#ifdef HL_CUDA_EMU
    emu_copy_async(shared, global, 16, filled);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(filled)
                 : "memory");
#endif
}
__device__ __forceinline__ void copy_async4(void *shared, const void *global) { /* 4 bytes */
#ifdef HL_CUDA_EMU
    emu_copy_async(shared, global, 4, 4);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global)
                 : "memory");
#endif
}
__device__ __forceinline__ void copy_commit() {
#ifdef HL_CUDA_EMU
    emu_copy_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* waits until at most `groups` of this thread's commit groups are in flight; a barrier must follow */
template <int groups> __device__ __forceinline__ void copy_wait() {
#ifdef HL_CUDA_EMU
    emu_copy_wait(groups);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

/* ---- global memory accesses that plain C cannot express ---- */

/* Spins until *p >= n, with acquire semantics: earlier writes of the blocks that raised it are then visible. (The
 * emulator runs kernels sequentially.) */
__device__ __forceinline__ void spin_acquire(const int *p, int n) {
#ifdef HL_CUDA_EMU
    __threadfence();
#else
    int x = 0;
    for (;;) {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
        if (x >= n) break;
        __nanosleep(100);
    }
#endif
}
/* its counterpart: *p = n with release semantics */
__device__ __forceinline__ void store_release(int *p, int n) {
#ifdef HL_CUDA_EMU
    __threadfence();
    *p = n;
#else
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(n) : "memory");
#endif
}
/* a predicated 16-byte store: the compiler splits a store inside an if into four of 4 bytes */
__device__ __forceinline__ void store_if(void *p, uint4 x, bool yes) {
#ifdef HL_CUDA_EMU
    if (yes) *(uint4 *)p = x;
#else
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p st.global.v4.u32 [%0], {%1,%2,%3,%4};\n}" ::"l"(p),
                 "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"((uint32_t)yes)
                 : "memory");
#endif
}

/* ---- launches ---- */

/* the block's dynamic shared memory, 128-byte aligned */
__device__ __forceinline__ char *shared_memory() {
#ifdef HL_CUDA_EMU
    return emu_shared;
#else
    extern __shared__ __align__(128) char hl_shared[];
    return hl_shared;
#endif
}

#ifdef HL_CUDA_EMU
template <class... P, class... A>
static void launch(struct hl_cuda *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args) {
    (void)c;
    auto body = [=] { kernel(args...); };
    emu_run(
        grid, block, shared, [](void *ctx) { (*(decltype(body) *)ctx)(); }, &body);
}
#else
/* opts in to more than 48 KB of dynamic shared memory */
extern "C" void hl_cuda_allow_shared(struct hl_cuda *c, const void *kernel, size_t shared);
extern "C" cudaStream_t hl_cuda_stream(struct hl_cuda *c);
extern "C" void hl_cuda_launched(struct hl_cuda *c, cudaError_t e); /* keeps the first failure */
template <class... P, class... A>
static void launch(struct hl_cuda *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args) {
    if (shared > 48 << 10) hl_cuda_allow_shared(c, (const void *)kernel, shared);
    kernel<<<grid, block, shared, hl_cuda_stream(c)>>>(args...);
    hl_cuda_launched(c, cudaGetLastError());
}
#endif

static inline unsigned blocks_for(int64_t n, int64_t each) { return (unsigned)((n + each - 1) / each); }

#endif
