/* gsa_step_cuda.cu -- decoding: segments of at most STEP_ROWS tokens that have a state, which is read from memory once
 * and written once.
 *
 * Grid: a block per segment and key head. Block: THREADS; a thread has 4 adjacent slots of some rows of Kt [K][M], and
 * 4 adjacent columns of some slots of Vt [M][V], in registers. Loads of both start before pdl_wait: the previous kernel
 * does not write states. Shared memory: the warps' sums, s, exp(f), p. */
#include "cuda/pdl.cuh"
#include "ops/gsa/gsa_cuda.cuh"

enum { STEP_ROWS = 8, THREADS = 512, WARPS = THREADS / 32 };

/* A state [N][COLS] of which a thread has R rows, LANES apart. */
template <int N, int COLS> struct part {
    enum { QUADS = COLS / 4, LANES = THREADS / QUADS, R = N / LANES };
    static __device__ __forceinline__ int first() { return threadIdx.x / QUADS; }
    static __device__ __forceinline__ int column() { return threadIdx.x % QUADS * 4; }
    static __device__ __forceinline__ void load(float4 S[R], const float *from) {
#pragma unroll
        for (int i = 0; i < R; i++) S[i] = *(const float4 *)(from + (first() + i * LANES) * COLS + column());
    }
    static __device__ __forceinline__ void store(float *to, const float4 S[R]) {
#pragma unroll
        for (int i = 0; i < R; i++) *(float4 *)(to + (first() + i * LANES) * COLS + column()) = S[i];
    }
    /* x^T S, summed in a fixed order, to sum [COLS]; barriers before and after */
    static __device__ __forceinline__ void read(float *sum, float (*sums)[COLS], const float4 S[R], const float x[R]) {
        float o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < R; i++)
            o[0] += x[i] * S[i].x, o[1] += x[i] * S[i].y, o[2] += x[i] * S[i].z, o[3] += x[i] * S[i].w;
#pragma unroll
        for (int n = QUADS; n < 32; n *= 2)
#pragma unroll
            for (int j = 0; j < 4; j++) o[j] += __shfl_xor_sync(0xffffffffu, o[j], n);
        __syncthreads();
        enum { EACH = QUADS < 32 ? 1 : QUADS / 32 }; /* warps that share a row */
        if (QUADS >= 32 || threadIdx.x % 32 < QUADS)
            *(float4 *)(sums[threadIdx.x / 32 / EACH] + column()) = make_float4(o[0], o[1], o[2], o[3]);
        __syncthreads();
        if (threadIdx.x < COLS) {
            float all = sums[0][threadIdx.x];
#pragma unroll
            for (int w = 1; w < WARPS / EACH; w++) all += sums[w][threadIdx.x];
            sum[threadIdx.x] = all;
        }
        __syncthreads();
    }
};

template <int M, int K, int V>
static __global__ void __launch_bounds__(THREADS) step_tokens(const struct hl_gsa a, const struct hl_seg *segs) {
    typedef struct part<K, M> keys;
    typedef struct part<M, V> values;
    __shared__ __align__(16) float key_sums[WARPS][M], value_sums[WARPS][V], decay[M], s[M], p[M], out[V];
    const int hk = blockIdx.x % (int)a.HK, group = (int)(a.H / a.HK), m = keys::column(), v = values::column();
    const struct hl_seg seg = segs[blockIdx.x / a.HK];
    float *Kt = (float *)(seg.state + a.Kt_off) + (int64_t)hk * K * M;
    float *Vt = (float *)(seg.state + a.Vt_off) + (int64_t)hk * M * V;
    float4 A[keys::R], B[values::R];
    keys::load(A, Kt);
    values::load(B, Vt);
    pdl_wait(), pdl_trigger();
    for (int64_t t = seg.row; t < seg.row + seg.len; t++) {
        const act *k = (const act *)a.k + (t * a.HK + hk) * K + keys::first();
        const act *y = (const act *)a.v + (t * a.HK + hk) * V + v;
        if (threadIdx.x < M) {
            const float f = a.f[(t * a.HK + hk) * M + threadIdx.x];
            decay[threadIdx.x] = expf(f), s[threadIdx.x] = -expm1f(f);
        }
        __syncthreads();
        const float4 d = *(const float4 *)(decay + m), w = *(const float4 *)(s + m);
        const float4 z = make_float4(f32(y[0]), f32(y[1]), f32(y[2]), f32(y[3]));
#pragma unroll
        for (int i = 0; i < keys::R; i++) {
            const float x = f32(k[i * keys::LANES]);
            A[i].x = d.x * A[i].x + x * w.x, A[i].y = d.y * A[i].y + x * w.y;
            A[i].z = d.z * A[i].z + x * w.z, A[i].w = d.w * A[i].w + x * w.w;
        }
#pragma unroll
        for (int i = 0; i < values::R; i++) {
            const int row = values::first() + i * values::LANES;
            const float e = decay[row], x = s[row];
            B[i].x = e * B[i].x + x * z.x, B[i].y = e * B[i].y + x * z.y;
            B[i].z = e * B[i].z + x * z.z, B[i].w = e * B[i].w + x * z.w;
        }
        for (int h = hk * group; h < (hk + 1) * group; h++) {
            const act *q = (const act *)a.q + (t * a.H + h) * K + keys::first();
            float x[keys::R], r[values::R];
#pragma unroll
            for (int i = 0; i < keys::R; i++) x[i] = f32(q[i * keys::LANES]);
            keys::read(p, key_sums, A, x);
            if (threadIdx.x < 32) { /* softmax */
                float most = -INFINITY, sum = 0.0f;
#pragma unroll
                for (int i = threadIdx.x; i < M; i += 32) most = fmaxf(most, p[i]);
                most = warp_max(most);
#pragma unroll
                for (int i = threadIdx.x; i < M; i += 32) p[i] = expf(p[i] - most), sum += p[i];
                sum = warp_sum(sum);
#pragma unroll
                for (int i = threadIdx.x; i < M; i += 32) {
                    p[i] /= sum;
                    if (a.p) put((act *)a.p + (t * a.H + h) * M + i, p[i]);
                }
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < values::R; i++) r[i] = p[values::first() + i * values::LANES];
            values::read(out, value_sums, B, r);
            if (threadIdx.x < V) put((act *)a.out + (t * a.H + h) * V + threadIdx.x, out[threadIdx.x]);
        }
    }
    keys::store(Kt, A);
    values::store(Vt, B);
}

static bool knows(int64_t n) { return n == 64 || n == 128 || n == 256; }
extern "C" bool HL_OP(gsa_step_fits)(const struct hl_gsa *a) {
    if (a->M != 64 || !knows(a->K) || !knows(a->V) || a->rows->dev->longest > STEP_ROWS) return false;
    for (int64_t s = 0; s < a->rows->n; s++) {
        const char *state = a->rows->seg[s].state;
        if (!state || (uintptr_t)(state + a->Kt_off) % 16 || (uintptr_t)(state + a->Vt_off) % 16) return false;
    }
    return true;
}
template <int K> static void launch_step(struct hl_cuda *c, const struct hl_gsa *a) {
    launch_pdl(c,
               a->V == 64    ? step_tokens<64, K, 64>
               : a->V == 128 ? step_tokens<64, K, 128>
                             : step_tokens<64, K, 256>,
               (unsigned)(a->rows->n * a->HK), THREADS, 0, *a, a->rows->dev->seg);
}
extern "C" void HL_OP(gsa_run_step)(struct hl_backend *backend, const struct hl_gsa *a) {
    (a->K == 64 ? launch_step<64> : a->K == 128 ? launch_step<128> : launch_step<256>)(hl_cuda_of(backend), a);
}
