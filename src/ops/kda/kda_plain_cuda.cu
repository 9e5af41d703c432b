/* kda_plain_cuda.cu -- KDA token by token (kda.h), for any head size up to 512: float activations, odd head sizes and
 * chips before Hopper, and the reference for the other variants on a GPU. It stores v_new but not A, which
 * kda_back_plain_cuda.cu does not need.
 *
 * Grid: a warp per segment, value head and COLS columns of V (tiles fastest), WARPS a block. A warp scans its segment;
 * lane l holds rows l, l + 32, ... of its columns of the state in registers. No shared memory, no barrier. Cost: one
 * warp-wide sum per column and token for each of k^T S, q^T S. */
#include "ops/cuda_ops.cuh"
#include "ops/kda/kda_cuda.cuh"

enum { COLS = 4, WARPS = 4, ROWS = 16 /* a lane's rows: K <= 512 */ };

struct args {
    const act *q, *k, *v;
    const float *g, *beta;
    act *out, *v_new;
    float *sums; /* [tiles][T][HV] */
    const struct hl_seg *seg;
    int64_t S_off, T;
    int H, HV, K, V, tiles, segments;
};

/* A lane's rows of a token. */
template <int R> struct token { float k[R], q[R], alpha[R]; };

/* S becomes the next state; returns the columns' share of |beta e|^2 */
template <int R>
static __device__ __forceinline__ float step(float S[COLS][R], const struct token<R> &x, float beta, const act *v,
                                             act *out, act *v_new, int cols, float scale) {
    float sum = 0.0f;
    for (int j = 0; j < COLS; j++) {
        float ks = 0.0f, qs = 0.0f;
#pragma unroll
        for (int i = 0; i < R; i++) {
            S[j][i] *= x.alpha[i];
            ks += x.k[i] * S[j][i];
        }
        ks = warp_sum(ks);
        const float r = j < cols ? beta * (f32(v[j]) - ks) : 0.0f;
#pragma unroll
        for (int i = 0; i < R; i++) {
            S[j][i] += x.k[i] * r;
            qs += x.q[i] * S[j][i];
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
    const int64_t id = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, s = id / a.tiles / a.HV;
    const int lane = threadIdx.x % 32, tile = (int)(id % a.tiles), hv = (int)(id / a.tiles % a.HV);
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
        const int64_t b = t * a.HV + hv, at = b * a.V + col, qk = (t * a.H + hk) * a.K;
        struct token<R> x;
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int row = lane + 32 * i;
            const bool in = row < a.K;
            x.k[i] = in ? f32(a.k[qk + row]) : 0.0f;
            x.q[i] = in ? f32(a.q[qk + row]) : 0.0f;
            x.alpha[i] = in ? expf(a.g[b * a.K + row]) : 0.0f;
        }
        const float sum = step<R>(S, x, a.beta[b], a.v + at, a.out + at, a.v_new ? a.v_new + at : NULL, cols, scale);
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

extern "C" void HL_OP(kda_run_plain)(struct hl_backend *backend, const struct hl_kda *a) {
    const int64_t rows = a->rows->T * a->HV, tiles = (a->V + COLS - 1) / COLS;
    struct hl_cuda *c = hl_cuda_of(backend);
    HL_ASSERT(a->K <= 32 * ROWS);
    struct args x = {(const act *)a->q, (const act *)a->k, (const act *)a->v, a->g, a->beta};
    x.out = (act *)a->out, x.v_new = (act *)a->v_new;
    x.sums = (float *)hl_cuda_scratch(c, tiles * rows * (int64_t)sizeof(float));
    if (!x.sums) return;
    x.seg = a->rows->dev->seg, x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.K = (int)a->K, x.V = (int)a->V, x.tiles = (int)tiles;
    x.segments = (int)a->rows->n;
    launch(c,
           a->K <= 64    ? scan_tokens<2>
           : a->K <= 128 ? scan_tokens<4>
           : a->K <= 256 ? scan_tokens<8>
                         : scan_tokens<ROWS>,
           blocks_for(a->rows->n * a->HV * tiles, WARPS), 32 * WARPS, 0, x);
    HL_OP(gdn_scores)(backend, a->m, x.sums, tiles, rows);
}
