/* norm_rows_cuda.cuh -- the norms' kernels for rows that fit the registers of `lanes` lanes: blocks stay and iterate over
 * rows, as many blocks as run at once. Piece i * lanes + lane of 16 bytes belongs to `lane`, i < N. */
#ifndef HL_NORM_ROWS_CUDA_CUH
#define HL_NORM_ROWS_CUDA_CUH
#include "cuda/fastmath.cuh"
#include "ops/norm/norm_cuda.cuh"

enum { BACK_THREADS = 256 };

/* start of row m of z and dz */
static __device__ __forceinline__ int64_t z_row(const struct norm &a, int64_t m) {
    if (a.z_heads == 0) return m * a.D;
    const unsigned t = (unsigned)m / (unsigned)a.z_heads;
    return t * a.z_ld + (m - t * a.z_heads) * a.D;
}

/* The gate, SiLU or sigma, and its slope without a branch; s is sigma(z). */
struct gate_kind {
    float one; /* 0: sigma */
};
static __device__ __forceinline__ float gate_of(struct gate_kind k, float z, float s) {
    return s * (k.one > 0.0f ? z : 1.0f);
}
static __device__ __forceinline__ float slope_of(struct gate_kind k, float z, float s) {
    return s * (k.one + (k.one > 0.0f ? z : 1.0f) * (1.0f - s));
}

/* One row of a group of lanes, packed. */
template <int lanes, int N>
static __device__ __forceinline__ void load_pieces(uint4 *to, const act *row, int lane, int64_t D) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (i * lanes + lane) * WIDE;
        if (c < D) to[i] = *(const uint4 *)(row + c);
    }
}

/* Blocks per multiprocessor: as many as the registers allow; the grids have no more. */
template <int N, bool gated> struct forward_blocks {
    enum { PER_SM = N > 2 || (N == 2 && gated) ? 2 : gated ? 3 : 4 };
};
template <int N, int ROWS, bool gated> struct backward_blocks {
    enum { PER_SM = N > 2 ? (gated ? 1 : 2) : ROWS > 1 || (N == 2 && gated) ? 2 : 3 };
};

/* AHEAD rows are in flight while one is computed; the weights stay in registers. */
template <int lanes, int N, int AHEAD, bool gated>
static __global__ void __launch_bounds__(FWD_THREADS, forward_blocks<N, gated>::PER_SM) norm_fwd_rows(struct norm a) {
    enum { GROUPS = FWD_THREADS / lanes };
    const int lane = threadIdx.x % lanes;
    const int64_t D = a.D, step = (int64_t)gridDim.x * GROUPS, first = (int64_t)blockIdx.x * GROUPS;
    const int group = threadIdx.x / lanes;
    const struct gate_kind kind = {a.z_sigmoid ? 0.0f : 1.0f};
    uint4 next[AHEAD][N], next_z[gated ? AHEAD : 1][N];
    float w[N][WIDE], x[N][WIDE];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (i * lanes + lane) * WIDE;
        fill(w[i], 1.0f);
        if (a.w && c < D) load_floats(w[i], a.w + c);
    }
    pdl_wait(), pdl_trigger();
#pragma unroll
    for (int b = 0; b < AHEAD; b++) {
        const int64_t m = first + b * step + group;
        if (m >= a.M) continue;
        load_pieces<lanes, N>(next[b], a.x + m * D, lane, D);
        if (gated) load_pieces<lanes, N>(next_z[b], a.z + z_row(a, m), lane, D);
    }
    for (int64_t m0 = first; m0 < a.M; m0 += AHEAD * step) {
#pragma unroll
        for (int b = 0; b < AHEAD; b++) {
            const int64_t m = m0 + b * step + group, later = m + AHEAD * step;
            const bool in = m < a.M;
            float sum = 0.0f, g[WIDE];
            uint4 z[N];
            if (m0 + b * step >= a.M) break; /* the whole block */
#pragma unroll
            for (int i = 0; i < N; i++) {
                fill(x[i], 0.0f);
                if (in && (i * lanes + lane) * WIDE < D) unpack(x[i], next[b][i]);
                if (gated) z[i] = next_z[b][i];
            }
            if (later < a.M) {
                load_pieces<lanes, N>(next[b], a.x + later * D, lane, D);
                if (gated) load_pieces<lanes, N>(next_z[b], a.z + z_row(a, later), lane, D);
            }
#pragma unroll
            for (int i = 0; i < N; i++)
                for (int j = 0; j < WIDE; j++) sum += x[i][j] * x[i][j];
            const float r = rsqrtf(group_sum<lanes>(sum) * a.share + a.eps);
            if (in && lane == 0) a.r[m] = r;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int c = (i * lanes + lane) * WIDE;
                if (!in || c >= D) continue;
                if (gated) unpack(g, z[i]);
                for (int j = 0; j < WIDE; j++) {
                    x[i][j] *= r * w[i][j];
                    if (gated) x[i][j] *= gate_of(kind, g[j], fast_sigmoid(g[j]));
                }
                store_wide(a.y + m * D + c, x[i]);
            }
        }
    }
}

/* What the backward pass needs of one piece twice: x and the gradient before the gate. */
struct piece {
    float x[WIDE], u[WIDE];
};
template <bool gated>
static __device__ __forceinline__ void open_piece(struct piece &p, struct gate_kind kind, uint4 x, uint4 dy, uint4 z) {
    float g[WIDE];
    unpack(p.x, x), unpack(p.u, dy);
    if (!gated) return;
    unpack(g, z);
    for (int j = 0; j < WIDE; j++) p.u[j] *= gate_of(kind, g[j], fast_sigmoid(g[j]));
}
/* The same of a gate, whose gradient is written here. */
static __device__ __forceinline__ void open_gated(struct piece &p, struct gate_kind kind, float r, uint4 x, uint4 dy,
                                                  uint4 z, const float *w, act *dz) {
    float g[WIDE];
    unpack(p.x, x), unpack(p.u, dy), unpack(g, z);
    for (int j = 0; j < WIDE; j++) {
        const float s = fast_sigmoid(g[j]), d = p.u[j];
        p.u[j] = d * gate_of(kind, g[j], s);
        g[j] = d * (r * p.x[j]) * w[j] * slope_of(kind, g[j], s);
    }
    store_wide(dz, g);
}

/* ROWS rows at a time, dw in registers. Narrow rows stay unpacked in between, wider ones only packed, since registers
 * limit the loads in flight. */
template <int lanes, int N, int ROWS, bool gated>
static __global__ void __launch_bounds__(BACK_THREADS, backward_blocks<N, ROWS, gated>::PER_SM)
    norm_bwd_rows(struct norm a) {
    enum { GROUPS = BACK_THREADS / lanes, KEPT = N == 1 };
    const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
    const int64_t D = a.D;
    const struct gate_kind kind = {a.z_sigmoid ? 0.0f : 1.0f};
    float dw[N][WIDE], w[WIDE], old[WIDE];
    for (int i = 0; i < N; i++) fill(dw[i], 0.0f);
    pdl_wait(), pdl_trigger();
    if (N == 1 && lane * WIDE < D) load_w(w, a, lane * WIDE);
    for (int64_t m0 = (int64_t)blockIdx.x * GROUPS * ROWS; m0 < a.M; m0 += (int64_t)gridDim.x * GROUPS * ROWS) {
        uint4 x[ROWS][N], dy[ROWS][N], z[ROWS][N], before[ROWS][N];
        struct piece kept[KEPT ? ROWS * N : 1];
        float r[ROWS], dot[ROWS];
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            const int64_t m = m0 + k * GROUPS + group;
            dot[k] = r[k] = 0.0f;
            if (m >= a.M) continue;
            r[k] = a.r[m];
            load_pieces<lanes, N>(x[k], a.x + m * D, lane, D);
            load_pieces<lanes, N>(dy[k], a.dy + m * D, lane, D);
            if (gated) load_pieces<lanes, N>(z[k], a.z + z_row(a, m), lane, D);
            if (a.dx_add) load_pieces<lanes, N>(before[k], a.dx + m * D, lane, D);
        }
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            const int64_t m = m0 + k * GROUPS + group;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int c = (i * lanes + lane) * WIDE;
                struct piece &p = kept[KEPT ? k * N + i : 0];
                if (m >= a.M || c >= D) continue;
                if (N > 1) load_w(w, a, c);
                if (gated) open_gated(p, kind, r[k], x[k][i], dy[k][i], z[k][i], w, a.dz + z_row(a, m) + c);
                else open_piece<false>(p, kind, x[k][i], dy[k][i], x[k][i]);
                for (int j = 0; j < WIDE; j++) {
                    const float t = p.u[j] * p.x[j];
                    dw[i][j] += r[k] * t;
                    dot[k] += t * w[j];
                }
            }
        }
#pragma unroll
        for (int k = 0; k < ROWS; k++) dot[k] = group_sum<lanes>(dot[k]) * a.share * r[k] * r[k];
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            const int64_t m = m0 + k * GROUPS + group;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int c = (i * lanes + lane) * WIDE;
                struct piece &p = kept[KEPT ? k * N + i : 0];
                if (m >= a.M || c >= D) continue;
                if (N > 1) load_w(w, a, c);
                if (!KEPT) open_piece<gated>(p, kind, x[k][i], dy[k][i], z[k][i]);
                fill(old, 0.0f);
                if (a.dx_add) unpack(old, before[k][i]);
                for (int j = 0; j < WIDE; j++) old[j] += r[k] * (p.u[j] * w[j] - p.x[j] * dot[k]);
                store_wide(a.dx + m * D + c, old);
            }
        }
    }
    if (a.part) add_groups<lanes, N, BACK_THREADS>(dw, a.part + blockIdx.x * D, D);
}

#endif
