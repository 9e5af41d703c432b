/* adamw_cuda.cu -- see adamw.h: one pass over all arrays, four elements per thread; grid n / (4 THREADS). The sum of
 * squares: up to SUM_BLOCKS blocks leave partial sums in scratch memory, which one block adds up in order. */
#include "ops/cuda_ops.cuh"

enum { THREADS = 256, SUM_BLOCKS = 1024 };

struct adamw {
    int64_t n;
    float *p, *m, *v;
    act *half;
    const float *grad;
    float lr, beta1, beta2, rest1, rest2, eps, weight_decay, unbias1, unbias2, grad_scale; /* rest = 1 - beta */
};

static __device__ __forceinline__ void step(const struct adamw &a, float grad, float *p, float *m, float *v) {
    const float g = a.grad_scale * grad;
    *m = a.beta1 * *m + a.rest1 * g;
    *v = a.beta2 * *v + a.rest2 * g * g;
    const float u = *v * a.unbias2, root = u > 0.0f ? u * rsqrtf(u) : 0.0f;
    *p -= a.lr * (__fdividef(*m * a.unbias1, root + a.eps) + a.weight_decay * *p);
}
static __device__ __forceinline__ void put4(float *p, float4 x) { *(float4 *)p = x; }
static __device__ __forceinline__ void put4(bf16 *p, float4 x) {
    *(uint2 *)p = make_uint2(pack2(x.x, x.y), pack2(x.z, x.w));
}

static __global__ void __launch_bounds__(THREADS) adamw_step(struct adamw a) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (i + 4 <= a.n) {
        float4 p = *(float4 *)(a.p + i), m = *(float4 *)(a.m + i), v = *(float4 *)(a.v + i);
        const float4 g = *(const float4 *)(a.grad + i);
        step(a, g.x, &p.x, &m.x, &v.x);
        step(a, g.y, &p.y, &m.y, &v.y);
        step(a, g.z, &p.z, &m.z, &v.z);
        step(a, g.w, &p.w, &m.w, &v.w);
        *(float4 *)(a.p + i) = p, *(float4 *)(a.m + i) = m, *(float4 *)(a.v + i) = v;
        if (a.half) put4(a.half + i, p);
    } else
        for (int64_t k = i; k < a.n; k++) {
            step(a, a.grad[k], a.p + k, a.m + k, a.v + k);
            if (a.half) put(a.half + k, a.p[k]);
        }
}

extern "C" void HL_OP(adamw)(struct hl_backend *backend, const struct hl_adamw *a) {
    struct adamw s = {a->n, a->p, a->m, a->v, (act *)a->half, a->grad};
    s.lr = (float)a->lr, s.eps = (float)a->eps, s.weight_decay = (float)a->weight_decay;
    s.beta1 = (float)a->beta1, s.rest1 = (float)(1 - a->beta1), s.unbias1 = (float)(1 / a->bias1);
    s.beta2 = (float)a->beta2, s.rest2 = (float)(1 - a->beta2), s.unbias2 = (float)(1 / a->bias2);
    s.grad_scale = (float)a->grad_scale;
    if (a->n > 0) launch(hl_cuda_of(backend), adamw_step, blocks_for(a->n, THREADS * 4), THREADS, 0, s);
}

/* ---- sum of squares ---- */

static __device__ __forceinline__ double block_sum_double(double x, double *room) {
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < THREADS / 32; i++) x += room[i];
    return x;
}
static __device__ __forceinline__ double square(float x) { return (double)x * (double)x; }

static __global__ void __launch_bounds__(THREADS) sumsq_part(const float *x, int64_t n, double *part) {
    __shared__ double room[THREADS / 32];
    const int64_t stride = (int64_t)gridDim.x * THREADS * 4;
    double s = 0;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4; i < n; i += stride) {
        if (i + 4 <= n) {
            const float4 u = *(const float4 *)(x + i);
            s += (square(u.x) + square(u.y)) + (square(u.z) + square(u.w));
        } else
            for (int64_t k = i; k < n; k++) s += square(x[k]);
    }
    s = block_sum_double(s, room);
    if (threadIdx.x == 0) part[blockIdx.x] = s;
}
static __global__ void sumsq_all(double *part, int n) {
    __shared__ double room[THREADS / 32];
    double s = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) s += part[i];
    s = block_sum_double(s, room);
    if (threadIdx.x == 0) part[n] = s;
}

extern "C" void HL_OP(sumsq)(struct hl_backend *backend, const struct hl_sumsq *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const int blocks = (int)min((int64_t)SUM_BLOCKS, (a->n + THREADS * 4 - 1) / (THREADS * 4));
    double *part = (double *)hl_cuda_scratch(c, (SUM_BLOCKS + 1) * (int64_t)sizeof(double));
    *a->out = 0;
    if (!part || blocks == 0) return;
    launch(c, sumsq_part, (unsigned)blocks, THREADS, 0, a->x, a->n, part);
    launch(c, sumsq_all, 1, THREADS, 0, part, blocks);
    hl_backend_get(backend, a->out, part + blocks, sizeof(double));
}
