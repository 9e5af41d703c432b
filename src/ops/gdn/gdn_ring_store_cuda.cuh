/* gdn_ring_store_cuda.cuh -- out, v_new and m of a chunk to memory, by STORE_THREADS threads i of a scan's producer
 * warpgroup. For gdn_ring and kda_scan. */
#ifndef HL_GDN_RING_STORE_CUDA_CUH
#define HL_GDN_RING_STORE_CUDA_CUH
#include "ops/gdn/gdn_pipeline_cuda.cuh"
#include "ops/gdn/gdn_ring_cuda.cuh"

static __device__ __forceinline__ float squares(uint32_t pair) {
    return low(pair) * low(pair) + high(pair) * high(pair);
}

/* The sums over the UNITS threads of a row, of BATCH rows, by a butterfly: each thread ends with the sum of row *n. */
template <int UNITS> static __device__ __forceinline__ float sums_of_rows(const float x[BATCH], int i, int *n) {
    const bool upper = i & UNITS / 2, odd = i & UNITS / 4;
    float y[2], sum;
#pragma unroll
    for (int j = 0; j < 2; j++)
        y[j] = (upper ? x[2 + j] : x[j]) + __shfl_xor_sync(0xffffffffu, upper ? x[j] : x[2 + j], UNITS / 2);
    sum = (odd ? y[1] : y[0]) + __shfl_xor_sync(0xffffffffu, odd ? y[0] : y[1], UNITS / 4);
#pragma unroll
    for (int m = UNITS / 8; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    *n = 2 * upper + odd;
    return sum;
}
/* v_new to memory if it is kept, and the sums of its squares */
template <int W>
static __device__ __forceinline__ void store_new(const bf16 *v_new, const struct gdn_ring_args &a,
                                                 const struct chunk_range &w, const row_store<W> &p, int c, int i) {
    enum { UNITS = row_store<W>::UNITS, STEP = row_store<W>::STEP };
    const struct chunk_rows r = rows_of(a, w, c);
    const int64_t step = (int64_t)STEP * a.HV * a.V;
    bf16 *to = a.v_new ? a.v_new + (r.row + (int64_t)p.row * a.HV) * a.V + w.col + p.col : NULL;
    float *sums = (a.sums ? a.sums + w.tile * a.T * a.HV : a.m) + r.row;
#pragma unroll
    for (int first = 0; first < CHUNK; first += BATCH * STEP) {
        uint4 x[BATCH];
        float y[BATCH];
        int n;
        p.read(x, v_new, first);
        if (to) p.write(to, x, step, r.len - first), to += BATCH * step;
#pragma unroll
        for (int j = 0; j < BATCH; j++) y[j] = squares(x[j].x) + squares(x[j].y) + (squares(x[j].z) + squares(x[j].w));
        const float sum = sums_of_rows<UNITS>(y, i, &n);
        const int row = first + n * STEP + p.row;
        if (i % (UNITS / 4) == 0 && row < r.len) sums[row * a.HV] = a.sums ? sum : sqrtf(sum);
    }
}
template <int W>
static __device__ __forceinline__ void store_out(const bf16 *out, const struct gdn_ring_args &a,
                                                 const struct chunk_range &w, const row_store<W> &p, int c) {
    enum { STEP = row_store<W>::STEP };
    const struct chunk_rows r = rows_of(a, w, c);
    const int64_t step = (int64_t)STEP * a.HV * a.V;
    bf16 *to = a.out + (r.row + (int64_t)p.row * a.HV) * a.V + w.col + p.col;
#pragma unroll
    for (int first = 0; first < CHUNK; first += BATCH * STEP) {
        uint4 x[BATCH];
        p.read(x, out, first);
        p.write(to, x, step, r.len - first), to += BATCH * step;
    }
}

#endif
