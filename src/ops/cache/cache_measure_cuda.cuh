/* cache_measure_cuda.cuh -- how well the state recalls rows: the scores of HL_SCORE_RECALL (cache.h). */
#ifndef HL_CACHE_MEASURE_CUDA_CUH
#define HL_CACHE_MEASURE_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_cuda.cuh"

enum { MEASURED = 16, MEASURE_WARPS = 32 }; /* rows measured together; maximum warps per thread block */

/* Shared memory: the rows' unit keys [MEASURED][K], padded to whole float4; the warps' sums. */
static inline __host__ __device__ int64_t measure_ld(int64_t K) { return (K + 3) / 4 * 4; }
static inline int64_t measure_bytes(const struct hl_cache *a) {
    return MEASURED * (measure_ld(a->K) + MEASURE_WARPS + 1) * 4;
}

/* The state of value head h after a block completed by segment `seg`; NULL: not stored, as after the last block in
 * training. */
static __device__ __forceinline__ const float *state_after(const struct cache_dev &c, const struct hl_dev_span &p,
                                                           int64_t block, int64_t h) {
    const struct hl_seg s = c.rows.seg[p.seg];
    const int64_t size = c.a.K * c.a.V;
    if (p.row + p.len < s.row + s.len) return c.a.block_S + (block * c.a.HV + h) * size;
    return s.state ? (const float *)(s.state + c.a.S_off) + h * size : NULL;
}

/* f of a row: hl_cache_factor (cache.h), or the one stored in the state */
static __device__ __forceinline__ float factor_of(const struct cache_dev &c, const struct cache_slots &m, int64_t h,
                                                  int64_t id) {
    if (!c.a.r_state) return 1.0f;
    if (id < 0) return m.factor[-1 - id];
    const float r = c.a.r_state[id * c.a.H + h / c.group];
    return r * sqrtf(fmaxf(1.0f / (r * r) - (float)HL_L2_EPS, 0.0f) / (float)c.a.K + (float)HL_CACHE_EPS);
}

/* The scores of n <= MEASURED rows to score[0, n) in shared memory. All threads, a multiple of 256 of them: VT adjacent
 * threads share the columns of V, with R rows each, in MEASURED / R groups. Contains barriers, the last one after the
 * scores are written. */
template <int R>
static __device__ void measure_rows(const struct cache_dev &c, const struct cache_slots &m, int64_t h,
                                    const int32_t *id, int n, const float *S, char *smem, float *score) {
    const int K = (int)c.a.K, V = (int)c.a.V, ld = (int)measure_ld(K), lane = threadIdx.x % 32,
              VT = (int)blockDim.x * R / MEASURED, first = (int)threadIdx.x / VT * R;
    float *keys = (float *)smem, *sums = keys + MEASURED * ld, sum[R] = {};
    __syncthreads();
    for (int i = threadIdx.x; i < MEASURED * ld; i += blockDim.x) {
        const int r = i / ld, x = i % ld;
        const float w = c.a.k_weight && x < K ? c.a.k_weight[x] : 1.0f;
        const bool there = r < n && x < K && w * w > 0.0f;
        keys[i] = there ? column(c, m, h, id[r], x) * factor_of(c, m, h, id[r]) / w : 0.0f;
    }
    __syncthreads();
    for (int v = (int)threadIdx.x % VT; v < V && first < n; v += VT) {
        float y[R] = {};
        for (int k = 0; k < ld; k += 4) {
            float s[4];
#pragma unroll
            for (int i = 0; i < 4; i++) s[i] = k + i < K ? S[(int64_t)(k + i) * V + v] : 0.0f;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float4 x = *(const float4 *)(keys + (first + r) * ld + k);
                y[r] += x.x * s[0] + x.y * s[1] + x.z * s[2] + x.w * s[3];
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float e = first + r < n ? column(c, m, h, id[first + r], K + v) - y[r] : 0.0f;
            sum[r] += e * e;
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        sum[r] = warp_sum(sum[r]);
        if (lane == 0) sums[(first + r) * MEASURE_WARPS + (int)threadIdx.x % VT / 32] = sum[r];
    }
    __syncthreads();
    if ((int)threadIdx.x < n) {
        float all = 0.0f;
        for (int w = 0; w < VT / 32; w++) all += sums[threadIdx.x * MEASURE_WARPS + w];
        score[threadIdx.x] = sqrtf(all);
    }
    __syncthreads();
}
/* The same with as many groups as the columns of V leave room for. */
static __device__ __forceinline__ void measure(const struct cache_dev &c, const struct cache_slots &m, int64_t h,
                                               const int32_t *id, int n, const float *S, char *smem, float *score) {
    const int VT = c.a.V <= 64 ? 64 : c.a.V <= 128 ? 128 : 256, R = MEASURED * VT / (int)blockDim.x;
    if (R >= 16) measure_rows<16>(c, m, h, id, n, S, smem, score);
    else if (R == 8) measure_rows<8>(c, m, h, id, n, S, smem, score);
    else if (R == 4) measure_rows<4>(c, m, h, id, n, S, smem, score);
    else measure_rows<2>(c, m, h, id, n, S, smem, score);
}

#endif
