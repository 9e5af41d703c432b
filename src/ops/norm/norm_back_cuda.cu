/* norm_back_cuda.cu -- see norm.h: the backward pass. Rows that fit the registers of `lanes` lanes are read once, by
 * blocks that iterate over rows with dw in registers; piece i * lanes + lane of 16 bytes belongs to `lane`, i < N. Other
 * rows (odd or very wide ones) are read twice by a warp. */
#include "ops/cuda_ops.cuh"
#include "ops/norm/norm_cuda.cuh"

enum { BACK_THREADS = 256, MOST_NARROW = 128 }; /* MOST_NARROW: pieces of the widest row of norm_bwd */

/* the slope of the gate */
static __device__ __forceinline__ float gate_slope(struct gate_kind k, float z, float s) {
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

/* Rows at a time, and blocks per multiprocessor: as many as the registers allow. */
template <int N, bool gated> struct back_shape {
    enum { ROWS = N == 1 ? 2 : 1, PER_SM = N > 2 ? (gated ? 1 : 2) : N == 1 || gated ? 2 : 3 };
};

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
    for (int j = 0; j < WIDE; j++) p.u[j] *= gate(kind, g[j], fast_sigmoid(g[j]));
}
/* The same of a gate, whose gradient is written here. */
static __device__ __forceinline__ void open_gated(struct piece &p, struct gate_kind kind, float r, uint4 x, uint4 dy,
                                                  uint4 z, const float *w, act *dz) {
    float g[WIDE];
    unpack(p.x, x), unpack(p.u, dy), unpack(g, z);
    for (int j = 0; j < WIDE; j++) {
        const float s = fast_sigmoid(g[j]), d = p.u[j];
        p.u[j] = d * gate(kind, g[j], s);
        g[j] = d * (r * p.x[j]) * w[j] * gate_slope(kind, g[j], s);
    }
    store_wide(dz, g);
}

/* Rows of one piece a lane stay unpacked in between, wider ones only packed, since registers limit the loads in
 * flight. */
template <int lanes, int N, bool gated>
static __global__ void __launch_bounds__(BACK_THREADS, back_shape<N, gated>::PER_SM) norm_bwd(struct norm a) {
    enum { GROUPS = BACK_THREADS / lanes, ROWS = back_shape<N, gated>::ROWS, KEPT = N == 1 };
    const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
    const int64_t D = a.D;
    const struct gate_kind kind = gate_kind_of(a);
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

/* ---- rows of more than MOST_NARROW pieces: eight for each lane of a warp ---- */

/* One piece of a row: x becomes r x and dy the gradient u before the gate; u r x is added to dw, and the
 * piece's part of the dot product of u w and r x is returned. */
template <bool gated>
static __device__ __forceinline__ float back_piece(const struct norm &a, int64_t at_z, float r, const float *w,
                                                   float *x, float *dy, float *z, float *dw) {
    const struct gate_kind kind = gate_kind_of(a);
    float dot = 0.0f;
    for (int j = 0; j < WIDE; j++) {
        x[j] *= r;
        if (gated) {
            const float s = fast_sigmoid(z[j]), d = dy[j];
            dy[j] = d * gate(kind, z[j], s);
            z[j] = d * x[j] * w[j] * gate_slope(kind, z[j], s);
        }
        dw[j] += dy[j] * x[j];
        dot += x[j] * dy[j] * w[j];
    }
    if (gated) store_wide(a.dz + at_z, z);
    return dot;
}

/* A row is kept packed and unpacked twice. */
template <bool gated> static __global__ void __launch_bounds__(THREADS) norm_bwd_wide(struct norm a) {
    enum { lanes = 32, N = MOST_WIDE / lanes, GROUPS = THREADS / lanes };
    const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
    const int64_t D = a.D;
    const struct gate_kind kind = gate_kind_of(a);
    float dw[N][WIDE], x[WIDE], dy[WIDE], z[WIDE], w[WIDE], old[WIDE];
    for (int i = 0; i < N; i++) fill(dw[i], 0.0f);
    for (int64_t m0 = (int64_t)blockIdx.x * GROUPS; m0 < a.M; m0 += (int64_t)gridDim.x * GROUPS) {
        const int64_t m = m0 + group;
        const bool in = m < a.M;
        const float r = in ? a.r[m] : 0.0f;
        const int64_t at_z = gated ? z_row(a, m) : 0;
        uint4 kx[N], kdy[N], kz[N], kold[N];
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t c = (i * lanes + lane) * WIDE, at = m * D + c;
            if (!in || c >= D) continue;
            kx[i] = *(const uint4 *)(a.x + at), kdy[i] = *(const uint4 *)(a.dy + at);
            if (gated) kz[i] = *(const uint4 *)(a.z + at_z + c);
            if (a.dx_add) kold[i] = *(const uint4 *)(a.dx + at);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t c = (i * lanes + lane) * WIDE;
            if (!in || c >= D) continue;
            unpack(x, kx[i]), unpack(dy, kdy[i]), load_w(w, a, c);
            if (gated) unpack(z, kz[i]);
            dot += back_piece<gated>(a, at_z + c, r, w, x, dy, z, dw[i]);
        }
        dot = group_sum<lanes>(dot) * a.share;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t c = (i * lanes + lane) * WIDE;
            if (!in || c >= D) continue;
            unpack(x, kx[i]), unpack(dy, kdy[i]), load_w(w, a, c);
            fill(old, 0.0f);
            if (gated) unpack(z, kz[i]);
            if (a.dx_add) unpack(old, kold[i]);
            for (int j = 0; j < WIDE; j++) {
                const float u = gated ? dy[j] * gate(kind, z[j], fast_sigmoid(z[j])) : dy[j];
                old[j] += r * (u * w[j] - r * x[j] * dot);
            }
            store_wide(a.dx + m * D + c, old);
        }
    }
    if (a.part) add_groups<lanes, N>(dw, a.part + blockIdx.x * D, D);
}

/* ---- any width ---- */

/* the gradient before the gate */
static __device__ __forceinline__ float ungated(const struct norm &a, int64_t m, int64_t c) {
    return f32(a.dy[m * a.D + c]) * (a.z ? gate_at(a, m, c) : 1.0f);
}
static __global__ void norm_bwd_any(struct norm a) {
    const int64_t m = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, D = a.D;
    if (m >= a.M) return;
    const float r = a.r[m];
    float dot = 0.0f;
    for (int64_t c = threadIdx.x % 32; c < D; c += 32)
        dot += r * f32(a.x[m * D + c]) * ungated(a, m, c) * (a.w ? a.w[c] : 1.0f);
    dot = warp_sum(dot) * a.share;
    for (int64_t c = threadIdx.x % 32; c < D; c += 32) {
        const int64_t i = m * D + c;
        const float w = a.w ? a.w[c] : 1.0f, xh = r * f32(a.x[i]), d = r * (ungated(a, m, c) * w - xh * dot);
        if (a.z) {
            const float z = f32(a.z[z_row(a, m) + c]), s = sigmoid(z);
            put(a.dz + z_row(a, m) + c, f32(a.dy[i]) * xh * w * gate_slope(gate_kind_of(a), z, s));
        }
        put(a.dx + i, a.dx_add ? f32(a.dx[i]) + d : d);
    }
}
/* before norm_bwd_any, which may overwrite dy: a thread sums one column over the block's rows */
static __global__ void norm_dw_any(struct norm a) {
    const int64_t D = a.D;
    for (int64_t c = threadIdx.x; c < D; c += THREADS) {
        float s = 0.0f;
        for (int64_t m = blockIdx.x; m < a.M; m += gridDim.x) s += ungated(a, m, c) * a.r[m] * f32(a.x[m * D + c]);
        a.part[blockIdx.x * D + c] = s;
    }
}

/* ---- choice of kernel ---- */

static bool room_for_parts(struct hl_cuda *c, struct norm *n, int64_t blocks) {
    n->part = (float *)hl_cuda_scratch(c, blocks * n->D * (int64_t)sizeof(float));
    return n->part != NULL;
}
template <int lanes, int N, bool gated> static void run(struct hl_cuda *c, struct norm *n, float *dw) {
    enum { EACH = BACK_THREADS / lanes * back_shape<N, gated>::ROWS }; /* rows per block at a time */
    const int64_t most = back_shape<N, gated>::PER_SM * hl_cuda_sms(c), blocks = min((n->M + EACH - 1) / EACH, most);
    if (dw && !room_for_parts(c, n, blocks)) return;
    launch(c, norm_bwd<lanes, N, gated>, (unsigned)blocks, BACK_THREADS,
           dw ? BACK_THREADS * N * WIDE * sizeof(float) : 0, *n);
    if (dw) sum_partials(c, dw, n->part, blocks, n->D);
}
/* a warp for every row, four at a time in a block */
static void run_wide(struct hl_cuda *c, struct norm *n, float *dw) {
    enum { EACH = THREADS / 32 };
    const int64_t blocks = min((n->M + EACH - 1) / EACH, (int64_t)(PER_SM * hl_cuda_sms(c)));
    if (dw && !room_for_parts(c, n, blocks)) return;
    if (fits(n)) {
        launch(c, n->z ? norm_bwd_wide<true> : norm_bwd_wide<false>, (unsigned)blocks, THREADS,
               dw ? THREADS / 32 * MOST_WIDE * WIDE * sizeof(float) : 0, *n);
    } else {
        if (dw) launch(c, norm_dw_any, (unsigned)blocks, THREADS, 0, *n);
        launch(c, norm_bwd_any, blocks_for(n->M, THREADS / 32), THREADS, 0, *n);
    }
    if (dw) sum_partials(c, dw, n->part, blocks, n->D);
}
static void backward(struct hl_cuda *c, struct norm *n, float *dw) {
    const int64_t pieces = n->D / WIDE;
    if (n->M == 0) return;
#define RUN(lanes, N) n->z ? run<lanes, N, true>(c, n, dw) : run<lanes, N, false>(c, n, dw)
    if (!fits(n) || pieces > MOST_NARROW) run_wide(c, n, dw);
    else if (pieces <= 4) RUN(4, 1);
    else if (pieces <= 8) RUN(8, 1);
    else if (pieces <= 16) RUN(16, 1);
    else if (pieces <= 32) RUN(32, 1);
    else if (pieces <= 64) RUN(32, 2);
    else RUN(32, 4);
#undef RUN
}

extern "C" void HL_OP(rmsnorm_backward)(struct hl_backend *backend, const struct hl_rmsnorm *a) {
    struct norm n = rms(a);
    backward(hl_cuda_of(backend), &n, a->dw);
}
extern "C" void HL_OP(l2norm_backward)(struct hl_backend *backend, const struct hl_l2norm *a) {
    struct norm n = l2(a);
    backward(hl_cuda_of(backend), &n, NULL);
}
