/* gate_cuda.cu -- see gate.h: forward, a thread per token and head; backward, a thread owns a head and iterates over
 * tokens, and gate_sums adds the blocks' partial sums. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"

enum { THREADS = 256, HEADS = THREADS, PER_SM = 4 }; /* of the backward pass: heads per block, blocks */

struct gate {
    int64_t T, H, ld; /* ld: of a, b, da, db */
    float beta_max;   /* 1, or 2 with negative eigenvalues */
    const act *a, *b;
    const float *A_log, *dt_bias, *dg, *dbeta, *g_in;
    float *g, *beta, *part;
    act *da, *db;
};

static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

static __global__ void gate_fwd(struct gate p) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    pdl_wait(), pdl_trigger();
    if (i >= p.T * p.H) return;
    const int64_t h = i % p.H, at = i / p.H * p.ld + h;
    p.beta[i] = p.b ? p.beta_max * sigmoid(f32(p.b[at])) : 1.0f;
    if (p.a) p.g[i] = -expf(p.A_log[h]) * softplus(f32(p.a[at]) + p.dt_bias[h]);
}

/* Block (x, y): every gridDim.x-th group of rows, heads from y * HEADS. A thread keeps its head, so the
 * sums over rows stay in its registers; part [gridDim.x][2][H]: d A_log, d dt_bias. */
static __global__ void gate_bwd(struct gate p) {
    __shared__ float sums[2][THREADS];
    const int h0 = blockIdx.y * HEADS, heads = (int)min(p.H - h0, (int64_t)HEADS), rows = THREADS / heads;
    const int mine = threadIdx.x / heads, h = h0 + threadIdx.x % heads;
    const float decay = p.a ? -expf(p.A_log[h]) : 0.0f, bias = p.a ? p.dt_bias[h] : 0.0f;
    float dA = 0.0f, dbias = 0.0f;
    if (mine < rows)
        for (int64_t t = (int64_t)blockIdx.x * rows + mine; t < p.T; t += (int64_t)gridDim.x * rows) {
            const int64_t i = t * p.H + h, at = t * p.ld + h;
            if (p.b) {
                const float s = sigmoid(f32(p.b[at]));
                put(p.db + at, p.dbeta[i] * p.beta_max * s * (1.0f - s));
            }
            if (p.a) {
                const float da = decay * sigmoid(f32(p.a[at]) + bias) * p.dg[i];
                put(p.da + at, da);
                dbias += da;
                dA += p.dg[i] * p.g_in[i];
            }
        }
    if (!p.a) return;
    sums[0][threadIdx.x] = dA, sums[1][threadIdx.x] = dbias;
    __syncthreads();
    if (threadIdx.x >= heads) return;
    for (int r = 1; r < rows; r++) {
        dA += sums[0][r * heads + threadIdx.x];
        dbias += sums[1][r * heads + threadIdx.x];
    }
    p.part[(int64_t)blockIdx.x * 2 * p.H + h] = dA;
    p.part[((int64_t)blockIdx.x * 2 + 1) * p.H + h] = dbias;
}
/* dA_log and ddt_bias need not be contiguous: each adds its half of every partial */
static __global__ void gate_sums(struct gate p, int64_t blocks, float *dA_log, float *ddt_bias) {
    const int64_t h = threadIdx.x / 32 + (int64_t)blockIdx.x * (THREADS / 32);
    float dA = 0.0f, dbias = 0.0f;
    if (h >= p.H) return;
    for (int64_t k = threadIdx.x % 32; k < blocks; k += 32)
        dA += p.part[k * 2 * p.H + h], dbias += p.part[(k * 2 + 1) * p.H + h];
    dA = warp_sum(dA), dbias = warp_sum(dbias);
    if (threadIdx.x % 32 == 0) dA_log[h] += dA, ddt_bias[h] += dbias;
}

static struct gate open_gate(const struct hl_gate *a) {
    struct gate p = {a->T, a->H, a->ld ? a->ld : a->H, a->neg_eigval ? 2.0f : 1.0f};
    p.a = (const act *)a->a, p.b = (const act *)a->b;
    p.A_log = a->A_log, p.dt_bias = a->dt_bias, p.dg = a->dg, p.dbeta = a->dbeta;
    p.g = a->g, p.g_in = a->g, p.beta = a->beta;
    p.da = (act *)a->da, p.db = (act *)a->db;
    return p;
}

extern "C" void HL_OP(gate_forward)(struct hl_backend *backend, const struct hl_gate *a) {
    if (a->T * a->H > 0)
        launch_pdl(hl_cuda_of(backend), gate_fwd, blocks_for(a->T * a->H, THREADS), THREADS, 0, open_gate(a));
}

extern "C" void HL_OP(gate_backward)(struct hl_backend *backend, const struct hl_gate *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct gate p = open_gate(a);
    const int64_t blocks = min((a->T * a->H + 2 * THREADS - 1) / (2 * THREADS), (int64_t)(PER_SM * hl_cuda_sms(c)));
    if (blocks == 0 || (!a->a && !a->b)) return;
    if (a->a && !(p.part = (float *)hl_cuda_scratch(c, blocks * 2 * a->H * (int64_t)sizeof(float)))) return;
    launch(c, gate_bwd, dim3((unsigned)blocks, blocks_for(a->H, HEADS)), THREADS, 0, p);
    if (a->a) launch(c, gate_sums, blocks_for(a->H, THREADS / 32), THREADS, 0, p, blocks, a->dA_log, a->ddt_bias);
}
