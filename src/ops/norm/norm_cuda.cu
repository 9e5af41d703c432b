/* norm_cuda.cu -- see norm.h: one pass over memory (norm_cuda.cuh). Other rows (odd or very wide ones) are read twice
 * by a warp. */
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"
#include "ops/norm/norm_rows_cuda.cuh"

/* the gate and its slope, s being sigma(z) */
static __device__ __forceinline__ float gate(const struct norm &a, float z, float s) { return a.z_sigmoid ? s : z * s; }
static __device__ __forceinline__ float gate_slope(const struct norm &a, float z, float s) {
    return s * (a.z_sigmoid ? 1.0f - s : 1.0f + z * (1.0f - s));
}

/* `lanes` lanes own a row: piece i * lanes + lane of 16 bytes, i < N */
template <int lanes, int N, bool gated> static __global__ void __launch_bounds__(FWD_THREADS) norm_fwd(struct norm a) {
    const int lane = threadIdx.x % lanes;
    const int64_t m = (int64_t)blockIdx.x * (FWD_THREADS / lanes) + threadIdx.x / lanes, D = a.D;
    const bool in = m < a.M;
    const int64_t at_z = gated ? z_row(a, m) : 0;
    uint4 z[N];
    float x[N][WIDE], sum = 0.0f;
    pdl_wait(), pdl_trigger();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int64_t c = (i * lanes + lane) * WIDE;
        fill(x[i], 0.0f);
        if (!in || c >= D) continue;
        load_wide(x[i], a.x + m * D + c);
        if (gated) z[i] = *(const uint4 *)(a.z + at_z + c);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        for (int j = 0; j < WIDE; j++) sum += x[i][j] * x[i][j];
    const float r = rsqrtf(group_sum<lanes>(sum) * a.share + a.eps);
    if (!in) return;
    if (lane == 0) a.r[m] = r;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int64_t c = (i * lanes + lane) * WIDE;
        float w[WIDE], g[WIDE];
        if (c >= D) continue;
        load_w(w, a, c);
        if (gated) unpack(g, z[i]);
        for (int j = 0; j < WIDE; j++) {
            x[i][j] *= r * w[j];
            if (gated) x[i][j] *= gate(a, g[j], fast_sigmoid(g[j]));
        }
        store_wide(a.y + m * D + c, x[i]);
    }
}

/* One piece of a row: x becomes r x and dy the gradient u before the gate; u r x is added to dw, and the
 * piece's part of the dot product of u w and r x is returned. */
template <bool gated>
static __device__ __forceinline__ float back_piece(const struct norm &a, int64_t at_z, float r, const float *w,
                                                   float *x, float *dy, float *z, float *dw) {
    float dot = 0.0f;
    for (int j = 0; j < WIDE; j++) {
        x[j] *= r;
        if (gated) {
            const float s = fast_sigmoid(z[j]), d = dy[j];
            dy[j] = d * gate(a, z[j], s);
            z[j] = d * x[j] * w[j] * gate_slope(a, z[j], s);
        }
        dw[j] += dy[j] * x[j];
        dot += x[j] * dy[j] * w[j];
    }
    if (gated) store_wide(a.dz + at_z, z);
    return dot;
}

/* A block iterates over its rows with dw in registers. The row is kept packed and unpacked twice, since registers limit
 * the loads in flight. */
template <int lanes, int N, bool gated> static __global__ void __launch_bounds__(THREADS) norm_bwd(struct norm a) {
    enum { GROUPS = THREADS / lanes };
    const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
    const int64_t D = a.D;
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
                const float u = gated ? dy[j] * gate(a, z[j], fast_sigmoid(z[j])) : dy[j];
                old[j] += r * (u * w[j] - r * x[j] * dot);
            }
            store_wide(a.dx + m * D + c, old);
        }
    }
    if (a.part) add_groups<lanes>(dw, a.part + blockIdx.x * D, D);
}

/* ---- any width: a warp reads its row twice ---- */

static __device__ __forceinline__ float gate_at(const struct norm &a, int64_t m, int64_t c) {
    const float z = f32(a.z[z_row(a, m) + c]);
    return gate(a, z, sigmoid(z));
}
static __global__ void norm_fwd_any(struct norm a) {
    const int64_t m = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, D = a.D;
    pdl_wait(), pdl_trigger();
    if (m >= a.M) return;
    float sum = 0.0f;
    for (int64_t c = threadIdx.x % 32; c < D; c += 32) sum += f32(a.x[m * D + c]) * f32(a.x[m * D + c]);
    const float r = rsqrtf(warp_sum(sum) * a.share + a.eps);
    if (threadIdx.x % 32 == 0) a.r[m] = r;
    for (int64_t c = threadIdx.x % 32; c < D; c += 32) {
        float y = r * f32(a.x[m * D + c]);
        if (a.w) y *= a.w[c];
        if (a.z) y *= gate_at(a, m, c);
        put(a.y + m * D + c, y);
    }
}

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
            put(a.dz + z_row(a, m) + c, f32(a.dy[i]) * xh * w * gate_slope(a, z, s));
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

/* backward: two rows per warp instead of one if that gives a lane four pieces in flight instead of two */
static int back_lanes(int64_t pieces) { return pieces > 32 && pieces <= 64 ? 16 : lanes_for(pieces); }

/* What runs if no design is forced: bench_pointwise on an H200, 46m shapes. */
enum { FORWARD_DESIGN = 0, BACKWARD_DESIGN = 2 };

/* Design 2 gives a block four rounds, however many blocks that takes. */
template <int lanes, int N, bool gated> static void run_forward(struct hl_cuda *c, const struct norm *n) {
    enum { AHEAD = 4 / N, GROUPS = FWD_THREADS / lanes };
    const int64_t all = (n->M + GROUPS - 1) / GROUPS, most = forward_blocks<N, gated>::PER_SM * hl_cuda_sms(c);
    const int64_t blocks = hl_pointwise_design_or(FORWARD_DESIGN) == 2 && all > most ? (all + 3) / 4 : min(all, most);
    launch_pdl(c, norm_fwd_rows<lanes, N, AHEAD, gated>, (unsigned)blocks, FWD_THREADS, 0, *n);
}
#define FORWARD(lanes, N) n->z ? run_forward<lanes, N, true>(c, n) : run_forward<lanes, N, false>(c, n)
/* The kernels of norm_rows_cuda.cuh; false: a row is too wide, or the old ones are asked for. */
static bool forward_rows(struct hl_cuda *c, const struct norm *n) {
    const int64_t pieces = n->D / WIDE;
    if (hl_pointwise_design_or(FORWARD_DESIGN) == 0 || !fits(n) || pieces > 128) return false;
    if (pieces <= 4) FORWARD(4, 1);
    else if (pieces <= 8) FORWARD(8, 1);
    else if (pieces <= 16) FORWARD(16, 1);
    else if (pieces <= 32) FORWARD(32, 1);
    else if (pieces <= 64) FORWARD(32, 2);
    else FORWARD(32, 4);
    return true;
}

static void forward(struct hl_cuda *c, const struct norm *n) {
    if (n->M == 0 || forward_rows(c, n)) return;
    if (!fits(n)) {
        launch_pdl(c, norm_fwd_any, blocks_for(n->M, THREADS / 32), THREADS, 0, *n);
        return;
    }
#define RUN(lanes, N)                                                                                                 \
    launch_pdl(c, n->z ? norm_fwd<lanes, N, true> : norm_fwd<lanes, N, false>, blocks_for(n->M, FWD_THREADS / lanes), \
               FWD_THREADS, 0, *n)
    BY_WIDTH(n->D / WIDE, RUN)
#undef RUN
}

template <int lanes, int N, int ROWS, bool gated>
static void run_backward(struct hl_cuda *c, struct norm *n, float *dw) {
    enum { EACH = BACK_THREADS / lanes * ROWS }; /* rows per block at a time */
    const int64_t most = backward_blocks<N, ROWS, gated>::PER_SM * hl_cuda_sms(c);
    const int64_t blocks = min((n->M + EACH - 1) / EACH, most);
    if (dw && !(n->part = (float *)hl_cuda_scratch(c, blocks * n->D * (int64_t)sizeof(float)))) return;
    launch(c, norm_bwd_rows<lanes, N, ROWS, gated>, (unsigned)blocks, BACK_THREADS,
           dw ? BACK_THREADS * N * WIDE * sizeof(float) : 0, *n);
    if (dw) sum_partials(c, dw, n->part, blocks, n->D);
}
#define BACKWARD(lanes, N, ROWS) \
    n->z ? run_backward<lanes, N, ROWS, true>(c, n, dw) : run_backward<lanes, N, ROWS, false>(c, n, dw)
#define NARROW(lanes)                  \
    if (second) BACKWARD(lanes, 1, 2); \
    else BACKWARD(lanes, 1, 1)
/* Design 2: narrow rows in pairs; those of up to 64 pieces one per warp, with more warps. */
static bool backward_rows(struct hl_cuda *c, struct norm *n, float *dw) {
    const int64_t pieces = n->D / WIDE;
    const int design = hl_pointwise_design_or(BACKWARD_DESIGN);
    const bool second = design == 2;
    if (design == 0 || !fits(n) || pieces > 128) return false;
    if (pieces <= 4) {
        NARROW(4);
    } else if (pieces <= 8) {
        NARROW(8);
    } else if (pieces <= 16) {
        NARROW(16);
    } else if (pieces <= 32) {
        NARROW(32);
    } else if (pieces > 64) BACKWARD(32, 4, 1);
    else if (second) BACKWARD(32, 2, 1);
    else BACKWARD(16, 4, 1);
    return true;
}

static void backward(struct hl_cuda *c, struct norm *n, float *dw) {
    if (n->M == 0 || backward_rows(c, n, dw)) return;
    const int64_t each = THREADS / (fits(n) ? back_lanes(n->D / WIDE) : 32); /* rows per block at a time */
    const int64_t blocks = min((n->M + each - 1) / each, (int64_t)(PER_SM * hl_cuda_sms(c)));
    if (n->M == 0) return;
    if (dw && !(n->part = (float *)hl_cuda_scratch(c, blocks * n->D * (int64_t)sizeof(float)))) return;
#define RUN(lanes, N)                                                                                 \
    launch(c, n->z ? norm_bwd<lanes, N, true> : norm_bwd<lanes, N, false>, (unsigned)blocks, THREADS, \
           dw ? THREADS *N *WIDE * sizeof(float) : 0, *n)
    if (fits(n) && back_lanes(n->D / WIDE) < lanes_for(n->D / WIDE)) RUN(16, 4);
    else if (fits(n)) {
        BY_WIDTH(n->D / WIDE, RUN)
    } else {
        if (dw) launch(c, norm_dw_any, (unsigned)blocks, THREADS, 0, *n);
        launch(c, norm_bwd_any, blocks_for(n->M, THREADS / 32), THREADS, 0, *n);
    }
#undef RUN
    if (dw) sum_partials(c, dw, n->part, blocks, n->D);
}

extern "C" void HL_OP(rmsnorm_forward)(struct hl_backend *backend, const struct hl_rmsnorm *a) {
    const struct norm n = rms(a);
    forward(hl_cuda_of(backend), &n);
}
extern "C" void HL_OP(rmsnorm_backward)(struct hl_backend *backend, const struct hl_rmsnorm *a) {
    struct norm n = rms(a);
    backward(hl_cuda_of(backend), &n, a->dw);
}
extern "C" void HL_OP(l2norm_forward)(struct hl_backend *backend, const struct hl_l2norm *a) {
    const struct norm n = l2(a);
    forward(hl_cuda_of(backend), &n);
}
extern "C" void HL_OP(l2norm_backward)(struct hl_backend *backend, const struct hl_l2norm *a) {
    struct norm n = l2(a);
    backward(hl_cuda_of(backend), &n, NULL);
}
