/* norm_cuda.cu -- see norm.h: one pass over memory. A row is in the registers of 4 to 32 lanes, 16 bytes at
 * a time; the L2 norm is the RMS norm without weights, its sum not divided by D. Rows that do not fit (odd
 * or very wide ones) are read twice by a warp. */
#include "cuda/early.cuh"
#include "cuda/partials.cuh"
#include "cuda/quick.cuh"
#include "cuda/raw.cuh"

enum {
    FWD_THREADS = 256,
    THREADS = 128,
    MOST_WIDE = 256, /* pieces of 16 bytes of the widest row kept in registers */
    PER_SM = 8       /* blocks of the backward pass, each with its part of dw */
};

struct norm {
    int64_t M, D, z_heads, z_ld;
    float share, eps; /* r = 1/sqrt(share sum(x^2) + eps) */
    const act *x, *z, *dy;
    const float *w; /* NULL: ones */
    act *y, *dx, *dz;
    float *r, *part; /* part [blocks][D]: partial sums of dw */
    bool dx_add;
};

template <int lanes> static __device__ __forceinline__ float group_sum(float x) {
    for (int i = lanes / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
static __device__ __forceinline__ void load_floats(float *x, const float *p) {
    for (int j = 0; j < WIDE; j += 4) {
        const float4 u = *(const float4 *)(p + j);
        x[j] = u.x, x[j + 1] = u.y, x[j + 2] = u.z, x[j + 3] = u.w;
    }
}
static __device__ __forceinline__ void fill(float *x, float v) {
    for (int j = 0; j < WIDE; j++) x[j] = v;
}

/* the weights of one piece; ones where there are none */
static __device__ __forceinline__ void load_w(float *w, const struct norm &a, int64_t c) {
    if (a.w) load_floats(w, a.w + c);
    else fill(w, 1.0f);
}

/* where row m of z and dz begins */
static __device__ __forceinline__ int64_t z_row(const struct norm &a, int64_t m) {
    if (a.z_heads == 0) return m * a.D;
    const unsigned t = (unsigned)m / (unsigned)a.z_heads;
    return t * a.z_ld + (m - t * a.z_heads) * a.D;
}

/* `lanes` lanes own a row: piece i * lanes + lane of 16 bytes, i < N */
template <int lanes, int N, bool gated>
static __global__ void __launch_bounds__(FWD_THREADS) norm_fwd(struct norm a) {
    const int lane = threadIdx.x % lanes;
    const int64_t m = (int64_t)blockIdx.x * (FWD_THREADS / lanes) + threadIdx.x / lanes, D = a.D;
    const bool in = m < a.M;
    const int64_t at_z = gated ? z_row(a, m) : 0;
    uint4 z[N];
    float x[N][WIDE], sum = 0.0f;
    wait_for_others(), let_others_start();
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
            if (gated) x[i][j] *= quick_silu(g[j]);
        }
        store_wide(a.y + m * D + c, x[i]);
    }
}

/* One piece of a row: x becomes r x and dy the gradient u before the gate; u r x is added to dw, and the
 * piece's part of the dot product of u w and r x is returned. */
template <bool gated>
static __device__ __forceinline__ float back_piece(const struct norm &a, int64_t at_z, float r,
                                                   const float *w, float *x, float *dy, float *z, float *dw) {
    float dot = 0.0f;
    for (int j = 0; j < WIDE; j++) {
        x[j] *= r;
        if (gated) {
            const float s = quick_sigmoid(z[j]), d = dy[j];
            dy[j] = d * z[j] * s;
            z[j] = d * x[j] * w[j] * s * (1.0f + z[j] * (1.0f - s));
        }
        dw[j] += dy[j] * x[j];
        dot += x[j] * dy[j] * w[j];
    }
    if (gated) store_wide(a.dz + at_z, z);
    return dot;
}

/* A block walks over its rows with dw in registers, then adds up its groups of lanes in order. The row
 * itself is kept as stored and unpacked twice: registers are what limits the loads under way. */
template <int lanes, int N, bool gated>
static __global__ void __launch_bounds__(THREADS) norm_bwd(struct norm a) {
    enum { GROUPS = THREADS / lanes, COLS = lanes * N * WIDE };
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
                const float u = gated ? dy[j] * quick_silu(z[j]) : dy[j];
                old[j] += r * (u * w[j] - r * x[j] * dot);
            }
            store_wide(a.dx + m * D + c, old);
        }
    }
    if (!a.part) return;
    float *sums = (float *)shared_memory(); /* [GROUPS][COLS] */
    for (int i = 0; i < N; i++)
        for (int j = 0; j < WIDE; j++) sums[group * COLS + (i * lanes + lane) * WIDE + j] = dw[i][j];
    __syncthreads();
    for (int c = threadIdx.x; c < COLS && c < D; c += THREADS) {
        float s = 0.0f;
        for (int g = 0; g < GROUPS; g++) s += sums[g * COLS + c];
        a.part[blockIdx.x * D + c] = s;
    }
}

/* ---- both norms of one x: L2 for the state, RMS for the exact memory's read ---- */

struct two {
    struct norm l2, rms; /* one x, one dx (written, not added to) */
};
template <int lanes, int N> static __global__ void __launch_bounds__(FWD_THREADS) two_fwd(struct two a) {
    const int lane = threadIdx.x % lanes;
    const int64_t m = (int64_t)blockIdx.x * (FWD_THREADS / lanes) + threadIdx.x / lanes, D = a.l2.D;
    const bool in = m < a.l2.M;
    float x[N][WIDE], y[WIDE], w[WIDE], sum = 0.0f;
    wait_for_others(), let_others_start();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int64_t c = (i * lanes + lane) * WIDE;
        fill(x[i], 0.0f);
        if (in && c < D) load_wide(x[i], a.l2.x + m * D + c);
        for (int j = 0; j < WIDE; j++) sum += x[i][j] * x[i][j];
    }
    sum = group_sum<lanes>(sum);
    const float r1 = rsqrtf(sum + a.l2.eps), r2 = rsqrtf(sum * a.rms.share + a.rms.eps);
    if (!in) return;
    if (lane == 0) a.l2.r[m] = r1, a.rms.r[m] = r2;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int64_t c = (i * lanes + lane) * WIDE;
        if (c >= D) continue;
        load_w(w, a.rms, c);
        for (int j = 0; j < WIDE; j++) y[j] = r1 * x[i][j], x[i][j] *= r2 * w[j];
        store_wide(a.l2.y + m * D + c, y);
        store_wide(a.rms.y + m * D + c, x[i]);
    }
}

template <int lanes, int N> static __global__ void __launch_bounds__(THREADS) two_bwd(struct two a) {
    enum { GROUPS = THREADS / lanes, COLS = lanes * N * WIDE };
    const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
    const int64_t D = a.l2.D, M = a.l2.M;
    float dw[N][WIDE], x[WIDE], dy[WIDE], dz[WIDE], w[WIDE];
    for (int i = 0; i < N; i++) fill(dw[i], 0.0f);
    for (int64_t m0 = (int64_t)blockIdx.x * GROUPS; m0 < M; m0 += (int64_t)gridDim.x * GROUPS) {
        const int64_t m = m0 + group;
        const bool in = m < M;
        const float r1 = in ? a.l2.r[m] : 0.0f, r2 = in ? a.rms.r[m] : 0.0f;
        uint4 kx[N], k1[N], k2[N];
        float dot1 = 0.0f, dot2 = 0.0f; /* x.dy, x.(dy w) */
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t c = (i * lanes + lane) * WIDE, at = m * D + c;
            if (!in || c >= D) continue;
            kx[i] = *(const uint4 *)(a.l2.x + at);
            k1[i] = *(const uint4 *)(a.l2.dy + at), k2[i] = *(const uint4 *)(a.rms.dy + at);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t c = (i * lanes + lane) * WIDE;
            if (!in || c >= D) continue;
            unpack(x, kx[i]), unpack(dy, k1[i]), unpack(dz, k2[i]), load_w(w, a.rms, c);
            for (int j = 0; j < WIDE; j++) {
                dot1 += x[j] * dy[j];
                dot2 += x[j] * dz[j] * w[j];
                dw[i][j] += dz[j] * r2 * x[j];
            }
        }
        dot1 = group_sum<lanes>(dot1) * r1 * r1 * r1;
        dot2 = group_sum<lanes>(dot2) * r2 * r2 * r2 * a.rms.share;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t c = (i * lanes + lane) * WIDE;
            if (!in || c >= D) continue;
            unpack(x, kx[i]), unpack(dy, k1[i]), unpack(dz, k2[i]), load_w(w, a.rms, c);
            for (int j = 0; j < WIDE; j++) x[j] = r1 * dy[j] + r2 * dz[j] * w[j] - x[j] * (dot1 + dot2);
            store_wide(a.l2.dx + m * D + c, x);
        }
    }
    if (!a.rms.part) return;
    float *sums = (float *)shared_memory(); /* [GROUPS][COLS] */
    for (int i = 0; i < N; i++)
        for (int j = 0; j < WIDE; j++) sums[group * COLS + (i * lanes + lane) * WIDE + j] = dw[i][j];
    __syncthreads();
    for (int c = threadIdx.x; c < COLS && c < D; c += THREADS) {
        float s = 0.0f;
        for (int g = 0; g < GROUPS; g++) s += sums[g * COLS + c];
        a.rms.part[blockIdx.x * D + c] = s;
    }
}

/* ---- any width: a warp reads its row twice ---- */

static __global__ void norm_fwd_any(struct norm a) {
    const int64_t m = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, D = a.D;
    wait_for_others(), let_others_start();
    if (m >= a.M) return;
    float sum = 0.0f;
    for (int64_t c = threadIdx.x % 32; c < D; c += 32) sum += f32(a.x[m * D + c]) * f32(a.x[m * D + c]);
    const float r = rsqrtf(warp_sum(sum) * a.share + a.eps);
    if (threadIdx.x % 32 == 0) a.r[m] = r;
    for (int64_t c = threadIdx.x % 32; c < D; c += 32) {
        float y = r * f32(a.x[m * D + c]);
        if (a.w) y *= a.w[c];
        if (a.z) y *= silu(f32(a.z[z_row(a, m) + c]));
        put(a.y + m * D + c, y);
    }
}

/* the gradient before the gate */
static __device__ __forceinline__ float ungated(const struct norm &a, int64_t m, int64_t c) {
    return f32(a.dy[m * a.D + c]) * (a.z ? silu(f32(a.z[z_row(a, m) + c])) : 1.0f);
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
            put(a.dz + z_row(a, m) + c, f32(a.dy[i]) * xh * w * s * (1.0f + z * (1.0f - s)));
        }
        put(a.dx + i, a.dx_add ? f32(a.dx[i]) + d : d);
    }
}
/* before norm_bwd_any, which may overwrite dy: a thread sums one column over the block's rows */
static __global__ void norm_dw_any(struct norm a) {
    const int64_t D = a.D;
    for (int64_t c = threadIdx.x; c < D; c += THREADS) {
        float s = 0.0f;
        for (int64_t m = blockIdx.x; m < a.M; m += gridDim.x)
            s += ungated(a, m, c) * a.r[m] * f32(a.x[m * D + c]);
        a.part[blockIdx.x * D + c] = s;
    }
}

/* ---- which of them ---- */

static bool fits(const struct norm *n) {
    return n->D % WIDE == 0 && n->D / WIDE <= MOST_WIDE && n->z_ld % WIDE == 0;
}
static int lanes_for(int64_t pieces) { return pieces <= 4 ? 4 : pieces <= 8 ? 8 : pieces <= 16 ? 16 : 32; }
/* backward: two rows a warp instead of one where that leaves a lane four pieces on their way instead of two */
static int back_lanes(int64_t pieces) { return pieces > 32 && pieces <= 64 ? 16 : lanes_for(pieces); }

/* RUN(lanes, N) of the fewest lanes, then pieces, that hold a row */
#define BY_WIDTH(pieces, RUN)                 \
    switch (lanes_for(pieces)) {              \
    case 4: RUN(4, 1); break;                 \
    case 8: RUN(8, 1); break;                 \
    case 16: RUN(16, 1); break;               \
    default:                                  \
        if ((pieces) <= 32) RUN(32, 1);       \
        else if ((pieces) <= 64) RUN(32, 2);  \
        else if ((pieces) <= 128) RUN(32, 4); \
        else RUN(32, 8);                      \
    }

static void forward(struct hl_cuda *c, const struct norm *n) {
    if (n->M == 0) return;
    if (!fits(n)) {
        launch_early(c, norm_fwd_any, blocks_for(n->M, THREADS / 32), THREADS, 0, *n);
        return;
    }
#define RUN(lanes, N)                                                            \
    launch_early(c, n->z ? norm_fwd<lanes, N, true> : norm_fwd<lanes, N, false>, \
                 blocks_for(n->M, FWD_THREADS / lanes), FWD_THREADS, 0, *n)
    BY_WIDTH(n->D / WIDE, RUN)
#undef RUN
}

static void backward(struct hl_cuda *c, struct norm *n, float *dw) {
    const int64_t each = THREADS / (fits(n) ? back_lanes(n->D / WIDE) : 32); /* rows of a block at a time */
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

static struct norm rms(const struct hl_rmsnorm *a) {
    struct norm n = {a->M, a->D, a->z_heads, a->z_ld, 1.0f / (float)a->D, (float)a->eps};
    n.x = (const act *)a->x, n.z = (const act *)a->z, n.dy = (const act *)a->dy;
    n.w = a->w, n.y = (act *)a->y, n.dx = (act *)a->dx, n.dz = (act *)a->dz;
    n.r = a->r, n.dx_add = a->dx_add;
    return n;
}
static struct norm l2(const struct hl_l2norm *a) {
    struct norm n = {a->M, a->D, 0, 0, 1.0f, (float)HL_L2_EPS};
    n.x = (const act *)a->x, n.dy = (const act *)a->dy, n.y = (act *)a->y, n.dx = (act *)a->dx;
    n.r = a->r, n.dx_add = a->dx_add;
    return n;
}

extern "C" void HL_OP(rmsnorm_forward)(struct hl_pool *pool, const struct hl_rmsnorm *a) {
    const struct norm n = rms(a);
    forward(hl_cuda_of(pool), &n);
}
extern "C" void HL_OP(rmsnorm_backward)(struct hl_pool *pool, const struct hl_rmsnorm *a) {
    struct norm n = rms(a);
    backward(hl_cuda_of(pool), &n, a->dw);
}
extern "C" void HL_OP(l2norm_forward)(struct hl_pool *pool, const struct hl_l2norm *a) {
    const struct norm n = l2(a);
    forward(hl_cuda_of(pool), &n);
}
extern "C" void HL_OP(l2norm_backward)(struct hl_pool *pool, const struct hl_l2norm *a) {
    struct norm n = l2(a);
    backward(hl_cuda_of(pool), &n, NULL);
}

extern "C" void HL_OP(twonorm_forward)(struct hl_pool *pool, const struct hl_l2norm *a,
                                       const struct hl_rmsnorm *b) {
    struct hl_cuda *c = hl_cuda_of(pool);
    const struct two t = {l2(a), rms(b)};
    if (a->M == 0) return;
    if (!fits(&t.l2) || t.l2.D / WIDE > 64) {
        forward(c, &t.l2);
        forward(c, &t.rms);
        return;
    }
#define RUN(lanes, N) \
    launch_early(c, two_fwd<lanes, N>, blocks_for(a->M, FWD_THREADS / lanes), FWD_THREADS, 0, t)
    BY_WIDTH(t.l2.D / WIDE, RUN)
#undef RUN
}
extern "C" void HL_OP(twonorm_backward)(struct hl_pool *pool, const struct hl_l2norm *a,
                                        const struct hl_rmsnorm *b) {
    struct hl_cuda *c = hl_cuda_of(pool);
    struct two t = {l2(a), rms(b)};
    if (a->M == 0) return;
    if (!fits(&t.l2) || t.l2.D / WIDE > 64 || a->dx_add) {
        backward(c, &t.l2, NULL);
        backward(c, &t.rms, b->dw);
        return;
    }
    const int64_t each = THREADS / lanes_for(t.l2.D / WIDE);
    const int64_t blocks = min((a->M + each - 1) / each, (int64_t)(PER_SM * hl_cuda_sms(c)));
    if (b->dw && !(t.rms.part = (float *)hl_cuda_scratch(c, blocks * a->D * (int64_t)sizeof(float)))) return;
#define RUN(lanes, N) \
    launch(c, two_bwd<lanes, N>, (unsigned)blocks, THREADS, b->dw ? THREADS *N *WIDE * sizeof(float) : 0, t)
    BY_WIDTH(t.l2.D / WIDE, RUN)
#undef RUN
    if (b->dw) sum_partials(c, b->dw, t.rms.part, blocks, a->D);
}
