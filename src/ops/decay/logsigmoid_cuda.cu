/* logsigmoid_cuda.cu -- the gate of GLA and GSA (decay.h). Forward: a thread per V adjacent channels of a token.
 * Backward: a thread keeps its channels and iterates over every ROWS-th token, so that the bias gradient stays in its
 * registers; blocks write partial sums, which sum_partials adds in a fixed order. */
#include "ops/cuda_ops.cuh"
#include "cuda/packed.cuh"
#include "cuda/pdl.cuh"
#include "cuda/reduce.cuh"

enum { THREADS = 256, PER_SM = 4 };

struct logsigmoid {
    int64_t T, C, ld;
    const act *x;
    const float *bias, *dg;
    float inverse, clamp_min;
    float *g, *part; /* part: [blocks][C] */
    act *dx;
};

static __device__ __forceinline__ float log_sigmoid(float x) { return fminf(x, 0.0f) - log1pf(__expf(-fabsf(x))); }
template <int V> static __device__ __forceinline__ void load_bias(float *to, const float *bias, int64_t c) {
#pragma unroll
    for (int i = 0; i < V; i++) to[i] = bias ? bias[c + i] : 0.0f;
}
/* V floats; V = 1, or a multiple of 4 */
template <int V> static __device__ __forceinline__ void load_floats(float *x, const float *p) {
    if constexpr (V == 1) x[0] = p[0];
    else
#pragma unroll
        for (int i = 0; i < V; i += 4) load_wide(x + i, p + i);
}

template <int V> static __global__ void __launch_bounds__(THREADS) forward(const struct logsigmoid p) {
    typedef typename packed_of<V>::type packed;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, units = p.C / V, t = i / units, c = i % units * V;
    float x[V], bias[V];
    pdl_wait(), pdl_trigger();
    if (t >= p.T) return;
    unpack(x, *(const packed *)(p.x + t * p.ld + c));
    load_bias<V>(bias, p.bias, c);
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = fmaxf(p.inverse * log_sigmoid(x[j] + bias[j]), p.clamp_min);
    float *g = p.g + t * p.C + c;
    if constexpr (V == 1) g[0] = x[0];
    else
#pragma unroll
        for (int j = 0; j < V; j += 4) store_wide(g + j, x + j);
}

/* Block (x, y): every gridDim.x-th group of rows, units of V channels from y * THREADS on. */
template <int V> static __global__ void __launch_bounds__(THREADS) backward(const struct logsigmoid p) {
    typedef typename packed_of<V>::type packed;
    __shared__ float sums[THREADS][V];
    const int64_t first = (int64_t)blockIdx.y * THREADS;
    const int units = (int)min(p.C / V - first, (int64_t)THREADS), rows = THREADS / units;
    const int mine = threadIdx.x / units, u = threadIdx.x % units;
    const int64_t c = (first + u) * V;
    float bias[V], sum[V] = {};
    load_bias<V>(bias, p.bias, c);
    if (mine < rows)
        for (int64_t t = (int64_t)blockIdx.x * rows + mine; t < p.T; t += (int64_t)gridDim.x * rows) {
            float x[V], dg[V];
            unpack(x, *(const packed *)(p.x + t * p.ld + c));
            load_floats<V>(dg, p.dg + t * p.C + c);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float y = x[j] + bias[j];
                /* without a bound clamp_min is -infinity, and the comparison always holds */
                const bool passes = p.clamp_min == -INFINITY || p.inverse * log_sigmoid(y) >= p.clamp_min;
                x[j] = passes ? dg[j] * sigmoid(-y) * p.inverse : 0.0f;
                sum[j] += x[j];
            }
            store_packed((packed *)(p.dx + t * p.ld + c), x);
        }
    if (!p.part) return;
#pragma unroll
    for (int j = 0; j < V; j++) sums[threadIdx.x][j] = sum[j];
    __syncthreads();
    if ((int)threadIdx.x >= units) return;
    for (int r = 1; r < rows; r++)
#pragma unroll
        for (int j = 0; j < V; j++) sum[j] += sums[r * units + u][j];
#pragma unroll
    for (int j = 0; j < V; j++) p.part[blockIdx.x * p.C + c + j] = sum[j];
}

static struct logsigmoid open_gate(const struct hl_logsigmoid *a) {
    struct logsigmoid p = {a->T, a->C, a->ld ? a->ld : a->C, (const act *)a->x, a->bias, a->dg};
    p.inverse = 1.0f / a->normalizer, p.clamp_min = a->clamp_min;
    p.g = a->g, p.dx = (act *)a->dx;
    return p;
}
static bool is_wide(const struct logsigmoid *p) {
    return p->C % WIDE == 0 && p->ld % WIDE == 0 && (uintptr_t)p->x % 16 == 0 && (uintptr_t)p->dx % 16 == 0;
}
extern "C" void HL_OP(logsigmoid_forward)(struct hl_backend *backend, const struct hl_logsigmoid *a) {
    const struct logsigmoid p = open_gate(a);
    const bool wide = is_wide(&p);
    if (a->T * a->C == 0) return;
    launch_pdl(hl_cuda_of(backend), wide ? forward<WIDE> : forward<1>,
               blocks_for(a->T * (a->C / (wide ? WIDE : 1)), THREADS), THREADS, 0, p);
}
extern "C" void HL_OP(logsigmoid_backward)(struct hl_backend *backend, const struct hl_logsigmoid *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct logsigmoid p = open_gate(a);
    const bool wide = is_wide(&p);
    const int64_t units = a->C / (wide ? WIDE : 1), most = PER_SM * hl_cuda_sms(c);
    const int64_t blocks = min((a->T * min(units, (int64_t)THREADS) + 2 * THREADS - 1) / (2 * THREADS), most);
    if (a->T * a->C == 0) return;
    if (a->dbias && !(p.part = (float *)hl_cuda_scratch(c, blocks * a->C * (int64_t)sizeof(float)))) return;
    launch(c, wide ? backward<WIDE> : backward<1>, dim3((unsigned)blocks, blocks_for(units, THREADS)), THREADS, 0, p);
    if (a->dbias) sum_partials(c, a->dbias, p.part, blocks, a->C);
}
