/* kda_gate_cuda.cu -- the gates of KDA (decay.h): one pass over memory.
 *
 * Forward: a thread per VEC adjacent channels of a token and head. Backward: grid (groups of tokens, heads, groups of
 * channels), a thread keeps its channels and iterates over tokens, so that sums over tokens stay in registers; partial
 * sums of the blocks are added in a fixed order (reduce.cuh). Softplus is recomputed instead of reading g. */
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"
#include "cuda/pdl.cuh"
#include "cuda/reduce.cuh"

enum { THREADS = 256, PER_SM = 8 };

struct gate {
    int64_t T, ld_x, ld_b;
    int HV, K;
    float lower_bound, beta_max; /* beta_max: 1, or 2 with negative eigenvalues */
    const act *x, *b;
    const float *A_log, *dt_bias, *dg, *dbeta;
    float *g, *beta, *part, *part_A; /* part: [blocks][HV][K], part_A: [blocks][HV] */
    act *dx, *db;
};

/* log(1 + e^x) = max(x, 0) + log(1 + t), t = e^-|x|, and log(1 + t) / t by a polynomial on [0, 1], 1.4e-7 off. log1pf
 * takes four times as many instructions, which take longer than the memory accesses. */
static __device__ __forceinline__ float softplus(float x) {
    const float c[] = {-0.49999648f, 0.33321324f,  -0.24857163f, 0.19153656f,
                       -0.13753805f, 0.079204567f, -0.03006581f, 0.0053648292f};
    const float t = fast_exp2(-1.4426950408889634f * fabsf(x));
    float y = c[7];
#pragma unroll
    for (int i = 6; i >= 0; i--) y = fmaf(y, t, c[i]);
    return fmaxf(x, 0.0f) + t * fmaf(y, t, 1.0f);
}
template <int VEC> static __device__ __forceinline__ void load(float x[VEC], const act *p) {
    if (VEC == 1) x[0] = f32(*p);
    else
#pragma unroll
        for (int i = 0; i < VEC; i += WIDE) load_wide(x + i, p + i);
}
template <int VEC> static __device__ __forceinline__ void load_floats(float x[VEC], const float *p) {
    if (VEC == 1) x[0] = *p;
    else
#pragma unroll
        for (int i = 0; i < VEC; i += 4) *(float4 *)(x + i) = *(const float4 *)(p + i);
}

template <int VEC> static __global__ void __launch_bounds__(THREADS) gate_fwd(const struct gate p) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int units = p.K / VEC, c = (int)(i % units) * VEC, h = (int)(i / units % p.HV);
    const int64_t t = i / units / p.HV;
    float x[VEC], bias[VEC];
    pdl_wait(), pdl_trigger();
    if (t >= p.T) return;
    const float A = expf(p.A_log[h]);
    load<VEC>(x, p.x + t * p.ld_x + h * p.K + c);
    load_floats<VEC>(bias, p.dt_bias + h * p.K + c);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        const float a = x[j] + bias[j];
        x[j] = p.lower_bound != 0.0f ? p.lower_bound * fast_sigmoid(A * a) : -A * softplus(a);
    }
    float *g = p.g + (t * p.HV + h) * p.K + c;
    if (VEC == 1) g[0] = x[0];
    else
#pragma unroll
        for (int j = 0; j < VEC; j += 4) *(float4 *)(g + j) = *(const float4 *)(x + j);
    if (c == 0) p.beta[t * p.HV + h] = p.beta_max * sigmoid(f32(p.b[t * p.ld_b + h]));
}

/* units: threads per token; the block processes THREADS / units tokens at a time */
template <int VEC> static __global__ void __launch_bounds__(THREADS) gate_bwd(const struct gate p, int units) {
    __shared__ float sums[THREADS * VEC], sum[33];
    const int h = blockIdx.y, rows = THREADS / units, mine = threadIdx.x / units;
    const int c = (blockIdx.z * units + threadIdx.x % units) * VEC;
    const bool in = mine < rows && c < p.K;
    const float A = expf(p.A_log[h]), lb = p.lower_bound;
    float bias[VEC] = {}, dbias[VEC] = {}, dA = 0.0f;
    if (in) load_floats<VEC>(bias, p.dt_bias + h * p.K + c);
    for (int64_t t = (int64_t)blockIdx.x * rows + mine; in && t < p.T; t += (int64_t)gridDim.x * rows) {
        float x[VEC], dg[VEC];
        load<VEC>(x, p.x + t * p.ld_x + h * p.K + c);
        load_floats<VEC>(dg, p.dg + (t * p.HV + h) * p.K + c);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const float a = x[j] + bias[j], s = fast_sigmoid(lb != 0.0f ? A * a : a);
            if (lb != 0.0f) {
                x[j] = dg[j] * lb * s * (1.0f - s) * A;
                dA += x[j] * a;
            } else {
                x[j] = -A * s * dg[j];
                dA -= dg[j] * A * softplus(a);
            }
            dbias[j] += x[j];
        }
        act *dx = p.dx + t * p.ld_x + h * p.K + c;
        if (VEC == 1) put(dx, x[0]);
        else
#pragma unroll
            for (int j = 0; j < VEC; j += WIDE) store_wide(dx + j, x + j);
        if (c > 0) continue;
        const float s = sigmoid(f32(p.b[t * p.ld_b + h]));
        put(p.db + t * p.ld_b + h, p.dbeta[t * p.HV + h] * p.beta_max * s * (1.0f - s));
    }
#pragma unroll
    for (int j = 0; j < VEC; j++) sums[threadIdx.x * VEC + j] = dbias[j];
    dA = block_sum(dA, sum); /* and a barrier */
    if (threadIdx.x == 0) p.part_A[((int64_t)blockIdx.x * gridDim.z + blockIdx.z) * p.HV + h] = dA;
    for (int i = threadIdx.x; i < units * VEC; i += THREADS) {
        const int channel = blockIdx.z * units * VEC + i;
        float s = 0.0f;
        for (int r = 0; r < rows; r++) s += sums[r * units * VEC + i];
        if (channel < p.K) p.part[((int64_t)blockIdx.x * p.HV + h) * p.K + channel] = s;
    }
}

static struct gate open_gate(const struct hl_kda_gate *a) {
    struct gate p = {a->T, a->ld_x ? a->ld_x : a->HV * a->K, a->ld_b ? a->ld_b : a->HV, (int)a->HV, (int)a->K};
    p.lower_bound = a->lower_bound, p.beta_max = a->neg_eigval ? 2.0f : 1.0f;
    p.x = (const act *)a->x, p.b = (const act *)a->b, p.A_log = a->A_log, p.dt_bias = a->dt_bias;
    p.dg = a->dg, p.dbeta = a->dbeta, p.g = a->g, p.beta = a->beta, p.dx = (act *)a->dx, p.db = (act *)a->db;
    return p;
}
/* 8 channels at a time, if rows are aligned for it */
static bool wide(const struct hl_kda_gate *a, const struct gate *p) {
    return a->K % 8 == 0 && p->ld_x % 8 == 0 && (uintptr_t)a->x % 16 == 0 && (uintptr_t)a->dx % 16 == 0 &&
           (uintptr_t)a->g % 16 == 0 && (uintptr_t)a->dg % 16 == 0 && (uintptr_t)a->dt_bias % 16 == 0;
}

extern "C" void HL_OP(kda_gate_forward)(struct hl_backend *backend, const struct hl_kda_gate *a) {
    const struct gate p = open_gate(a);
    const int vec = wide(a, &p) ? 8 : 1;
    if (a->T > 0)
        launch_pdl(hl_cuda_of(backend), vec == 8 ? gate_fwd<8> : gate_fwd<1>,
                   blocks_for(a->T * a->HV * (a->K / vec), THREADS), THREADS, 0, p);
}
extern "C" void HL_OP(kda_gate_backward)(struct hl_backend *backend, const struct hl_kda_gate *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct gate p = open_gate(a);
    const int vec = wide(a, &p) ? 8 : 1, all = p.K / vec, units = all < THREADS ? all : THREADS;
    const int64_t groups = blocks_for(all, units), tokens = THREADS / units;
    const int64_t most = PER_SM * hl_cuda_sms(c) / (a->HV * groups) + 1,
                  blocks = min((int64_t)blocks_for(a->T, tokens), most);
    const int64_t HVK = a->HV * a->K;
    if (a->T == 0) return;
    p.part = (float *)hl_cuda_scratch(c, blocks * (HVK + groups * a->HV) * (int64_t)sizeof(float));
    if (!p.part) return;
    p.part_A = p.part + blocks * HVK;
    launch(c, vec == 8 ? gate_bwd<8> : gate_bwd<1>, dim3((unsigned)blocks, (unsigned)a->HV, (unsigned)groups), THREADS,
           0, p, units);
    sum_partials(c, a->ddt_bias, p.part, blocks, HVK);
    sum_partials(c, a->dA_log, p.part_A, blocks * groups, a->HV);
}
