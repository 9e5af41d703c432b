/* gdn_step_cuda.cu -- decoding: segments of a few tokens that have a state (ARCHITECTURE sec. 5).
 *
 * A block owns COLS columns of one value head's state, read from memory once and written once whatever
 * the number of tokens; a thread holds 4 neighbouring columns of K COLS / 1024 neighbouring rows. The
 * read after the write needs no second pass:  q^T S_t = alpha q^T S_{t-1} + (q.k) beta e,  so a token
 * costs one sum over the block. */
#include "cuda/early.cuh"
#include "ops/gdn/gdn_prep_cuda.cuh"

enum { THREADS = 256, STEP_ROWS = 8 /* tokens of a segment */ };

struct args {
    const act *q, *k, *v;
    const float *g, *beta;
    act *out;
    float *sums; /* [tiles][T][HV] */
    const struct hl_seg *seg;
    int64_t S_off, T;
    int H, HV, V, tiles;
};

/* N activations */
template <int N> static __device__ __forceinline__ void load_row(float x[N], const act *p) {
    const int wide = N % WIDE ? 0 : N;
#pragma unroll
    for (int i = 0; i < wide; i += WIDE) load_wide(x + i, p + i);
#pragma unroll
    for (int i = wide; i < N; i++) x[i] = f32(p[i]);
}

/* k^T S, q^T S of the thread's 4 columns and q.k, summed over the block in a fixed order */
template <int COLS>
static __device__ __forceinline__ void sum_rows(float x[9], float (*part)[COLS / 4][THREADS / 32]) {
    const int quads = COLS / 4, lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % quads;
#pragma unroll
    for (int i = 0; i < 9; i++) {
#pragma unroll
        for (int n = quads; n < 32; n *= 2) x[i] += __shfl_xor_sync(0xffffffffu, x[i], n);
        if (lane < quads) part[i][quad][warp] = x[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 9; i++) {
        const float4 p = *(const float4 *)part[i][quad], r = *(const float4 *)(part[i][quad] + 4);
        x[i] = ((p.x + p.y) + (p.z + p.w)) + ((r.x + r.y) + (r.z + r.w));
    }
}

template <int K, int COLS>
static __global__ void __launch_bounds__(THREADS, 4) step_tokens(const struct args a) {
    const int quads = COLS / 4, R = K * quads / THREADS;
    __shared__ __align__(16) float part[2][9][quads][THREADS / 32];
    const int tile = blockIdx.x % a.tiles, hv = blockIdx.x / a.tiles % a.HV, s = blockIdx.x / a.tiles / a.HV;
    const struct hl_seg seg = a.seg[s];
    const int quad = threadIdx.x % quads, first = threadIdx.x / quads * R, hk = hv / (a.HV / a.H);
    float *kept = (float *)(seg.state + a.S_off) + ((int64_t)hv * K + first) * a.V + tile * COLS + 4 * quad;
    float4 S[R]; /* rows from `first` */
#pragma unroll
    for (int i = 0; i < R; i++) S[i] = *(const float4 *)(kept + (int64_t)i * a.V);
    wait_for_others(); /* no kernel right before this one writes states */
    let_others_start();
    for (int t = 0; t < (int)seg.len; t++) {
        const int64_t row = seg.row + t, b = row * a.HV + hv, at = b * a.V + tile * COLS + 4 * quad;
        const int64_t qk = (row * a.H + hk) * K + first;
        const float alpha = a.g ? expf(a.g[b]) : 1.0f, beta = a.beta[b], scale = 1.0f / sqrtf((float)K);
        float k[R], q[R], v[4], r[4], x[9] = {0.0f};
        load_row<R>(k, a.k + qk);
        load_row<R>(q, a.q + qk);
        load_row<4>(v, a.v + at);
#pragma unroll
        for (int i = 0; i < R; i++) {
            x[0] += k[i] * S[i].x, x[1] += k[i] * S[i].y, x[2] += k[i] * S[i].z, x[3] += k[i] * S[i].w;
            x[4] += q[i] * S[i].x, x[5] += q[i] * S[i].y, x[6] += q[i] * S[i].z, x[7] += q[i] * S[i].w;
            x[8] += q[i] * k[i];
        }
        sum_rows<COLS>(x, part[t % 2]);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            r[j] = beta * (v[j] - alpha * x[j]);
            sum += r[j] * r[j];
            if (first == 0) put(a.out + at + j, scale * (alpha * x[4 + j] + x[8] * r[j]));
        }
#pragma unroll
        for (int n = 1; n < quads; n *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
        if (threadIdx.x == 0) a.sums[tile * a.T * a.HV + b] = sum;
#pragma unroll
        for (int i = 0; i < R; i++) {
            S[i].x = alpha * S[i].x + k[i] * r[0], S[i].y = alpha * S[i].y + k[i] * r[1];
            S[i].z = alpha * S[i].z + k[i] * r[2], S[i].w = alpha * S[i].w + k[i] * r[3];
        }
    }
#pragma unroll
    for (int i = 0; i < R; i++) *(float4 *)(kept + (int64_t)i * a.V) = S[i];
}

template <int K>
static void launch_step(struct hl_cuda *c, const struct args *a, int64_t segments, int cols) {
    const unsigned blocks = (unsigned)(segments * a->HV * a->tiles);
    if (cols == 32) launch_early(c, step_tokens<K, 32>, blocks, THREADS, 0, *a);
    else launch_early(c, step_tokens<K, 16>, blocks, THREADS, 0, *a);
}

/* Few blocks: narrow tiles, to spread the state over the chip. */
extern "C" bool HL_OP(gdn_step)(struct hl_pool *pool, const struct hl_gdn *a) {
    const bool known = a->K == 64 || a->K == 128 || a->K == 256;
    const int64_t pairs = a->rows->n * a->HV, rows = a->rows->T * a->HV;
    const int cols = pairs * (a->V / 32) >= 132 ? 32 : 16;
    if (!known || a->V % 32 || a->A || a->v_new || a->rows->dev->longest > STEP_ROWS) return false;
    for (int64_t s = 0; s < a->rows->n; s++)
        if (!a->rows->seg[s].state || (uintptr_t)(a->rows->seg[s].state + a->S_off) % 16) return false;
    const int64_t tiles = a->V / cols;
    struct hl_cuda *c = hl_cuda_of(pool);
    struct args x = {(const act *)a->q, (const act *)a->k, (const act *)a->v, a->g, a->beta, (act *)a->out};
    x.sums = (float *)hl_cuda_scratch(c, tiles * rows * (int64_t)sizeof(float));
    if (!x.sums) return true;
    x.seg = a->rows->dev->seg, x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V, x.tiles = (int)tiles;
    if (a->K == 64) launch_step<64>(c, &x, a->rows->n, cols);
    else if (a->K == 128) launch_step<128>(c, &x, a->rows->n, cols);
    else launch_step<256>(c, &x, a->rows->n, cols);
    HL_OP(gdn_scores)(pool, a->m, x.sums, tiles, rows);
    return true;
}
