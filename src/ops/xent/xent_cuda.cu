/* xent_cuda.cu -- see xent.h: a GEMM for the logits of up to HL_XENT_ROWS_CUDA rows, a softmax kernel that turns them
 * into their gradients in place, and the two GEMMs with those.
 *
 * softmax: grid rows, block up to THREADS: a block owns a row. softmax_row keeps it in registers and reads it once;
 * softmax_any reads it three times, for rows that do not fit or are not a multiple of 16 bytes. */
#include "ops/cuda_ops.cuh"
#include "cuda/packed.cuh"

enum { THREADS = 1024, PIECES = 8 }; /* pieces of 16 bytes that a thread keeps of a row */

struct softmax {
    int64_t V;
    act *z; /* [rows][V] */
    const int32_t *target;
    double *nll;
    float scale;
    bool backward;
    int32_t *correct;
};

static __device__ __forceinline__ float block_max(float x, float *shared) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = warp_max(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    return warp_max(lane < (blockDim.x + 31) / 32 ? shared[lane] : -INFINITY);
}
static __device__ __forceinline__ void keep_nll(const struct softmax &a, int64_t row, int32_t target, float max,
                                                float sum) {
    if (threadIdx.x == 0) a.nll[row] = (double)logf(sum) + ((double)max - (double)f32(a.z[row * a.V + target]));
}
/* whether no other logit is larger, nor as large with a lower id; before the logits become gradients */
static __device__ __forceinline__ void keep_correct(const struct softmax &a, int64_t row, int32_t target, float max) {
    const act *z = a.z + row * a.V;
    if (!a.correct) return;
    bool beaten = f32(z[target]) != max;
    for (int64_t v = threadIdx.x; !beaten && v < target; v += blockDim.x) beaten = f32(z[v]) == max;
    beaten = __syncthreads_or(beaten);
    if (threadIdx.x == 0) a.correct[row] = !beaten;
}
/* true: this row is ignored; its gradient is 0 */
static __device__ __forceinline__ bool ignored(const struct softmax &a, int64_t row) {
    if (a.target[row] >= 0) return false;
    if (threadIdx.x == 0) a.nll[row] = 0;
    if (threadIdx.x == 0 && a.correct) a.correct[row] = 0;
    for (int64_t v = threadIdx.x; a.backward && v < a.V; v += blockDim.x) put(a.z + row * a.V + v, 0.0f);
    return true;
}

/* Block x: row x, read once and kept in registers, as stored. V is a multiple of WIDE. */
template <int N> static __global__ void __launch_bounds__(THREADS) softmax_row(struct softmax a) {
    __shared__ float shared[33], shared_max[32];
    const int64_t row = blockIdx.x;
    const unsigned pieces = (unsigned)(a.V / WIDE);
    act *z = a.z + row * a.V;
    uint4 kept[N];
    float x[WIDE], max = -INFINITY, sum = 0.0f;
    if (ignored(a, row)) return;
    const int32_t target = a.target[row];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const unsigned k = i * blockDim.x + threadIdx.x;
        if (k < pieces) kept[i] = ((const uint4 *)z)[k];
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i * blockDim.x + threadIdx.x < pieces) {
            unpack(x, kept[i]);
            for (int j = 0; j < WIDE; j++) max = fmaxf(max, x[j]);
        }
    max = block_max(max, shared_max);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i * blockDim.x + threadIdx.x < pieces) {
            unpack(x, kept[i]);
            for (int j = 0; j < WIDE; j++) x[j] = __expf(x[j] - max), sum += x[j];
            if (a.backward) store_packed(&kept[i], x); /* an exponential takes longer than to load its bytes again */
        }
    sum = block_sum(sum, shared);
    keep_nll(a, row, target, max, sum);
    keep_correct(a, row, target, max);
    if (!a.backward) return;
    __syncthreads(); /* the target's logit has been read */
    const float share = a.scale / sum;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const unsigned k = i * blockDim.x + threadIdx.x;
        if (k >= pieces) break;
        unpack(x, kept[i]);
        for (int j = 0; j < WIDE; j++) x[j] = x[j] * share - (k * WIDE + j == (unsigned)target ? a.scale : 0.0f);
        store_wide(z + (int64_t)k * WIDE, x);
    }
}

/* any V: the row is read three times */
static __global__ void softmax_any(struct softmax a) {
    __shared__ float shared[33], shared_max[32];
    const int64_t row = blockIdx.x;
    act *z = a.z + row * a.V;
    float max = -INFINITY, sum = 0.0f;
    if (ignored(a, row)) return;
    const int32_t target = a.target[row];
    for (int64_t v = threadIdx.x; v < a.V; v += blockDim.x) max = fmaxf(max, f32(z[v]));
    max = block_max(max, shared_max);
    for (int64_t v = threadIdx.x; v < a.V; v += blockDim.x) sum += __expf(f32(z[v]) - max);
    sum = block_sum(sum, shared);
    keep_nll(a, row, target, max, sum);
    keep_correct(a, row, target, max);
    if (!a.backward) return;
    __syncthreads();
    const float share = a.scale / sum;
    for (int64_t v = threadIdx.x; v < a.V; v += blockDim.x)
        put(z + v, __expf(f32(z[v]) - max) * share - (v == target ? a.scale : 0.0f));
}

static void softmax_rows(struct hl_cuda *c, const struct softmax *a, int64_t rows) {
    const int64_t pieces = a->V / WIDE;
    const bool wide = a->V % WIDE == 0;
    unsigned threads = 32;
    while (threads < THREADS && threads * (wide ? PIECES : 1) < (wide ? pieces : a->V)) threads *= 2;
    const unsigned n = (unsigned)((pieces + threads - 1) / threads);
#define RUN(N) launch(c, softmax_row<N>, (unsigned)rows, threads, 0, *a)
    if (!wide || n > PIECES) launch(c, softmax_any, (unsigned)rows, threads, 0, *a);
    else if (n <= 1) RUN(1);
    else if (n <= 2) RUN(2);
    else if (n <= 4) RUN(4);
    else RUN(8);
#undef RUN
}

extern "C" void HL_OP(xent)(struct hl_backend *backend, const struct hl_xent *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const int64_t V = a->W.rows, D = a->D, most = HL_XENT_ROWS_CUDA;
    for (int64_t row = 0; row < a->M; row += most) {
        const int64_t rows = min(most, a->M - row);
        const act *x = (const act *)a->x + row * D;
        const struct softmax s = {V,
                                  (act *)a->logits,
                                  a->target + row,
                                  a->nll + row,
                                  (float)a->scale,
                                  a->dx != NULL,
                                  a->correct ? a->correct + row : NULL};
        struct hl_gemm g = {rows, V, D, false, true, x, a->W.data, a->logits, D, D, V, HL_ACT_DTYPE, HL_ACT_DTYPE};
        g.alpha = 1.0f, g.beta = 0.0f;
        hl_cuda_gemm(c, &g);
        softmax_rows(c, &s, rows);
        if (!a->dx) continue;
        g.M = rows, g.N = D, g.K = V, g.b_trans = false;
        g.A = a->logits, g.B = a->W.data, g.C = (act *)a->dx + row * D;
        g.lda = V, g.ldb = D, g.ldc = D;
        hl_cuda_gemm(c, &g);
        g.M = V, g.N = D, g.K = rows, g.a_trans = true;
        g.A = a->logits, g.B = x, g.C = a->dW, g.lda = V, g.out = HOLA_F32, g.beta = 1.0f;
        hl_cuda_gemm(c, &g);
    }
}
