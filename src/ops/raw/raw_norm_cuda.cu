/* raw_norm_cuda.cu -- q and k of the raw calls (include/hola_ops.h): the norm, and a factor of q, in one pass over memory
 * each way. `lanes` adjacent threads share a row of K numbers. */
#include "ops/raw/raw_cuda.cuh"

enum { THREADS = 256, MOST = 8 /* most numbers of a row per lane: K <= 256 */ };

struct keys {
    const act *x[2]; /* q, k; backward: their normalised copies */
    act *y[2];       /* their outputs; backward: dq, dk in place */
    float *r[2], factor[2];
    int64_t rows, all; /* of each, and in total */
    int K, lanes;
    bool norm;
};
static __device__ __forceinline__ float lanes_sum(float x, int lanes) {
    for (int i = lanes / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
/* a lane's part of a row: 16 bytes at a time if VECTOR, else one by one */
template <bool VECTOR>
static __device__ __forceinline__ void load_row(float x[MOST], const act *row, int lane, int lanes, int K) {
    enum { N = VECTOR ? WIDE : 1 };
#pragma unroll
    for (int i = 0; i < MOST / N; i++) {
        const int at = (i * lanes + lane) * N;
        if constexpr (VECTOR) {
            if (at < K) load_wide(x + i * N, row + at);
            else
                for (int j = 0; j < N; j++) x[i * N + j] = 0.0f;
        } else x[i] = at < K ? f32(row[at]) : 0.0f;
    }
}
template <bool VECTOR>
static __device__ __forceinline__ void store_row(act *row, const float x[MOST], int lane, int lanes, int K) {
    enum { N = VECTOR ? WIDE : 1 };
#pragma unroll
    for (int i = 0; i < MOST / N; i++) {
        const int at = (i * lanes + lane) * N;
        if (at >= K) continue;
        if constexpr (VECTOR) store_wide(row + at, x + i * N);
        else put(row + at, x[i]);
    }
}
/* grid: rows of q, then of k */
template <bool VECTOR, bool BACK> static __global__ void __launch_bounds__(THREADS) norm_keys(const struct keys a) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / a.lanes;
    const int lane = threadIdx.x % a.lanes, which = i >= a.rows;
    const int64_t row = i - which * a.rows;
    const bool in = i < a.all;
    /* (a runtime index would put the arguments on the stack) */
    const act *from = which ? a.x[1] : a.x[0];
    act *to = which ? a.y[1] : a.y[0];
    float *norms = which ? a.r[1] : a.r[0];
    const float s = which ? a.factor[1] : a.factor[0];
    float x[MOST] = {}, y[MOST] = {}, sum = 0.0f;
    if (in) load_row<VECTOR>(x, from + row * a.K, lane, a.lanes, a.K);
    if (BACK && in) load_row<VECTOR>(y, to + row * a.K, lane, a.lanes, a.K);
#pragma unroll
    for (int j = 0; j < MOST; j++) sum += x[j] * (BACK ? y[j] : x[j]);
    sum = lanes_sum(sum, a.lanes);
    if (!in) return;
    if constexpr (BACK) { /* x = s n, n the unit row: dx = r (s dy - n (n.(s dy))) */
        const float r = a.norm ? norms[row] : 1.0f, along = a.norm ? sum / s : 0.0f;
#pragma unroll
        for (int j = 0; j < MOST; j++) y[j] = r * (s * y[j] - along * x[j]);
    } else {
        const float r = a.norm ? 1.0f / sqrtf(sum + (float)HL_L2_EPS) : 1.0f;
        if (norms && lane == 0) norms[row] = r;
#pragma unroll
        for (int j = 0; j < MOST; j++) y[j] = r * s * x[j];
    }
    store_row<VECTOR>(to + row * a.K, y, lane, a.lanes, a.K);
}
template <bool BACK> static void launch_keys(struct hl_cuda *c, const struct raw_norm *x, struct keys a) {
    const bool vector = x->K % WIDE == 0;
    a.K = x->K, a.rows = x->rows, a.all = x->norm ? 2 * x->rows : x->rows, a.norm = x->norm;
    a.factor[0] = x->factor, a.factor[1] = 1.0f;
    a.lanes = 32;
    while (vector && a.lanes > 1 && a.lanes / 2 * WIDE >= a.K) a.lanes /= 2;
    const unsigned blocks = blocks_for(a.all * a.lanes, THREADS);
    if (a.rows > 0) launch(c, vector ? norm_keys<true, BACK> : norm_keys<false, BACK>, blocks, THREADS, 0, a);
}
extern "C" void HL_OP(raw_norm)(struct hl_cuda *c, const struct raw_norm *x) {
    struct keys a = {{x->q, x->k}, {x->to_q, x->to_k}, {x->norm ? x->rq : NULL, x->norm ? x->rk : NULL}};
    launch_keys<false>(c, x, a);
}
extern "C" void HL_OP(raw_norm_back)(struct hl_cuda *c, const struct raw_norm *x, act *dq, act *dk) {
    struct keys a = {{x->to_q, x->to_k}, {dq, dk}, {x->rq, x->rk}};
    launch_keys<true>(c, x, a);
}
