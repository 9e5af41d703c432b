/* gdn_plain_cuda.cu -- the delta rule token by token (gdn.h), for any head size up to 512: float activations, odd head
 * sizes and GPUs before Hopper, and the reference for the other variants on a GPU.
 *
 * Grid: a warp per segment, value head and COLS columns of V (tiles fastest), WARPS a block. A warp scans its
 * segment; lane l holds rows l, l + 32, ... of its columns of the state in registers. No shared memory, no
 * barrier. Cost: one warp-wide sum per column and token for each of k^T S, q^T S. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_cuda.cuh"

enum { COLS = 4, WARPS = 4, ROWS = 16, /* a lane's rows: K <= 512 */ STEP = 16 };

struct args {
    const act *q, *k, *v;
    const float *g, *beta;
    act *out, *v_new;
    float *sums; /* [tiles][T][HV] */
    const struct hl_seg *seg;
    int64_t S_off, T;
    int H, HV, K, V, tiles, segments;
};

/* One token: S becomes the next state; returns the columns' share of |beta e|^2. k, q: the lane's rows. */
template <int R>
static __device__ __forceinline__ float token(float S[COLS][R], const float k[R], const float q[R], float alpha,
                                              float beta, const act *v, act *out, act *v_new, int cols, float scale) {
    float sum = 0.0f;
    for (int j = 0; j < COLS; j++) {
        float ks = 0.0f, qs = 0.0f;
#pragma unroll
        for (int i = 0; i < R; i++) {
            S[j][i] *= alpha;
            ks += k[i] * S[j][i];
        }
        const float r = j < cols ? beta * (f32(v[j]) - warp_sum(ks)) : 0.0f * warp_sum(ks);
#pragma unroll
        for (int i = 0; i < R; i++) {
            S[j][i] += k[i] * r;
            qs += q[i] * S[j][i];
        }
        qs = warp_sum(qs);
        sum += r * r;
        if (threadIdx.x % 32 || j >= cols) continue;
        put(out + j, scale * qs);
        if (v_new) put(v_new + j, r);
    }
    return sum;
}

template <int R> static __global__ void __launch_bounds__(32 * WARPS) scan_tokens(const struct args a) {
    const int64_t id = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32, tile = (int)(id % a.tiles), hv = (int)(id / a.tiles % a.HV);
    const int64_t s = id / a.tiles / a.HV;
    if (s >= a.segments) return;
    const struct hl_seg seg = a.seg[s];
    const int col = tile * COLS, cols = min((int)COLS, a.V - col), hk = hv / (a.HV / a.H);
    float *session = seg.state ? (float *)(seg.state + a.S_off) + (int64_t)hv * a.K * a.V + col : NULL;
    const float scale = 1.0f / sqrtf((float)a.K);
    float S[COLS][R];
#pragma unroll
    for (int j = 0; j < COLS; j++)
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int row = lane + 32 * i;
            S[j][i] = session && j < cols && row < a.K ? session[(int64_t)row * a.V + j] : 0.0f;
        }
    for (int64_t t = seg.row; t < seg.row + seg.len; t++) {
        const int64_t b = t * a.HV + hv, at = b * a.V + col;
        const act *kt = a.k + (t * a.H + hk) * a.K, *qt = a.q + (t * a.H + hk) * a.K;
        float k[R], q[R];
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int row = lane + 32 * i;
            k[i] = row < a.K ? f32(kt[row]) : 0.0f;
            q[i] = row < a.K ? f32(qt[row]) : 0.0f;
        }
        const float sum = token<R>(S, k, q, a.g ? expf(a.g[b]) : 1.0f, a.beta[b], a.v + at, a.out + at,
                                   a.v_new ? a.v_new + at : NULL, cols, scale);
        if (lane == 0) a.sums[tile * a.T * a.HV + b] = sum;
    }
#pragma unroll
    for (int j = 0; j < COLS; j++)
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int row = lane + 32 * i;
            if (session && j < cols && row < a.K) session[(int64_t)row * a.V + j] = S[j][i];
        }
}

/* ---- A = (I + L)^-1 for the backward pass: a block per chunk and value head, thread j has column j of k
 * k^T, then of the inverse ---- */

struct inverse {
    const act *k;
    const float *g, *beta;
    act *A;
    const struct hl_dev_span *chunk;
    int H, HV, K;
};

static __global__ void __launch_bounds__(CHUNK) inverse_chunk(const struct inverse a) {
    __shared__ struct gdn_decay d;
    __shared__ float k[STEP][CHUNK]; /* a few columns of k, transposed */
    __shared__ __align__(16) float L[CHUNK * INVERSE_LD];
    const int hv = blockIdx.x % a.HV, hk = hv / (a.HV / a.H), j = threadIdx.x;
    const struct hl_dev_span p = a.chunk[blockIdx.x / a.HV];
    const int64_t b = (int64_t)p.row * a.HV + hv;
    float x[CHUNK];
    if (threadIdx.x < 32) {
        const struct gdn_gates gates = gdn_read_gates(a.g ? a.g + b : NULL, a.beta + b, a.HV, p.len);
        gdn_sum_gates(&d, &gates);
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++) x[i] = 0.0f;
    for (int c = 0; c < a.K; c += STEP) {
        const act *row = a.k + ((int64_t)(p.row + j) * a.H + hk) * a.K + c;
        __syncthreads();
        for (int n = 0; n < STEP; n++) k[n][j] = j < p.len && c + n < a.K ? f32(row[n]) : 0.0f;
        __syncthreads();
        for (int n = 0; n < STEP; n++)
#pragma unroll
            for (int i = 0; i < CHUNK; i++) x[i] += k[n][i] * k[n][j];
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        if (i > j) L[j * INVERSE_LD + i] = d.beta[i] * x[i] * decay_between(&d, i, j);
    __syncthreads();
    /* column j of the inverse by forward substitution */
#pragma unroll
    for (int i = 0; i < CHUNK; i++) x[i] = i == j ? 1.0f : 0.0f;
#pragma unroll
    for (int n = 0; n < CHUNK - 1; n++)
#pragma unroll
        for (int i = n + 1; i < CHUNK; i++) x[i] -= L[n * INVERSE_LD + i] * x[n];
    for (int i = 0; i < CHUNK; i++)
        if (i < p.len) put(a.A + (b + (int64_t)i * a.HV) * CHUNK + j, x[i]);
}

static void launch_inverse(struct hl_cuda *c, const struct hl_gdn *a) {
    const struct hl_dev_rows *rows = a->rows->dev;
    const struct inverse x = {(const act *)a->k, a->g,      a->beta,    (act *)a->A,
                              rows->chunk,       (int)a->H, (int)a->HV, (int)a->K};
    launch(c, inverse_chunk, (unsigned)(rows->chunks * a->HV), CHUNK, 0, x);
}

extern "C" void HL_OP(gdn_run_plain)(struct hl_backend *backend, const struct hl_gdn *a) {
    const int64_t rows = a->rows->T * a->HV, tiles = (a->V + COLS - 1) / COLS;
    struct hl_cuda *c = hl_cuda_of(backend);
    HL_ASSERT(a->K <= 32 * ROWS);
    struct args x = {(const act *)a->q, (const act *)a->k, (const act *)a->v, a->g, a->beta};
    x.out = (act *)a->out, x.v_new = (act *)a->v_new;
    x.sums = (float *)hl_cuda_scratch(c, tiles * rows * (int64_t)sizeof(float));
    if (!x.sums) return;
    if (a->A) launch_inverse(c, a);
    x.seg = a->rows->dev->seg, x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.K = (int)a->K, x.V = (int)a->V, x.tiles = (int)tiles;
    x.segments = (int)a->rows->n;
    const unsigned blocks = blocks_for(a->rows->n * a->HV * tiles, WARPS);
    if (a->K <= 64) launch(c, scan_tokens<2>, blocks, 32 * WARPS, 0, x);
    else if (a->K <= 128) launch(c, scan_tokens<4>, blocks, 32 * WARPS, 0, x);
    else if (a->K <= 256) launch(c, scan_tokens<8>, blocks, 32 * WARPS, 0, x);
    else launch(c, scan_tokens<ROWS>, blocks, 32 * WARPS, 0, x);
    if (a->m) HL_OP(gdn_scores)(backend, a->m, x.sums, tiles, rows);
}
