/* norm_cuda.cu -- see norm.h: the forward pass, one pass over memory (norm_cuda.cuh). Other rows (odd or very wide
 * ones) are read twice by a warp. */
#include "ops/cuda_ops.cuh"
#include "ops/norm/norm_cuda.cuh"

/* `lanes` lanes own a row: piece i * lanes + lane of 16 bytes, i < N */
template <int lanes, int N, bool gated> static __global__ void __launch_bounds__(FWD_THREADS) norm_fwd(struct norm a) {
    const int lane = threadIdx.x % lanes;
    const int64_t m = (int64_t)blockIdx.x * (FWD_THREADS / lanes) + threadIdx.x / lanes, D = a.D;
    const bool in = m < a.M;
    const struct gate_kind kind = gate_kind_of(a);
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
            if (gated) x[i][j] *= gate(kind, g[j], fast_sigmoid(g[j]));
        }
        store_wide(a.y + m * D + c, x[i]);
    }
}

/* any width: a warp reads its row twice */
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

static void forward(struct hl_cuda *c, const struct norm *n) {
    if (n->M == 0) return;
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

extern "C" void HL_OP(rmsnorm_forward)(struct hl_backend *backend, const struct hl_rmsnorm *a) {
    const struct norm n = rms(a);
    forward(hl_cuda_of(backend), &n);
}
extern "C" void HL_OP(l2norm_forward)(struct hl_backend *backend, const struct hl_l2norm *a) {
    const struct norm n = l2(a);
    forward(hl_cuda_of(backend), &n);
}
