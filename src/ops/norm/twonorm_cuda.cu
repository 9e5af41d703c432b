/* twonorm_cuda.cu -- see norm.h: both norms of one x, L2 for the state, RMS for the exact memory's read. Grid and
 * ownership as in norm_cuda.cu: a row is in the registers of `lanes` lanes. */
#include "ops/cuda_ops.cuh"
#include "ops/norm/norm_cuda.cuh"

struct two {
    struct norm l2, rms; /* one x, one dx (written, not added to) */
};
template <int lanes, int N> static __global__ void __launch_bounds__(FWD_THREADS) two_fwd(struct two a) {
    const int lane = threadIdx.x % lanes;
    const int64_t m = (int64_t)blockIdx.x * (FWD_THREADS / lanes) + threadIdx.x / lanes, D = a.l2.D;
    const bool in = m < a.l2.M;
    float x[N][WIDE], y[WIDE], w[WIDE], sum = 0.0f;
    pdl_wait(), pdl_trigger();
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
    enum { GROUPS = THREADS / lanes };
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
    if (a.rms.part) add_groups<lanes>(dw, a.rms.part + blockIdx.x * D, D);
}

extern "C" void HL_OP(twonorm_forward)(struct hl_backend *backend, const struct hl_twonorm *n) {
    const struct hl_l2norm *a = n->l2;
    const struct hl_rmsnorm *b = n->rms;
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct two t = {l2(a), rms(b)};
    if (a->M == 0) return;
    if (!fits(&t.l2) || t.l2.D / WIDE > 64) {
        HL_OP(l2norm_forward)(backend, a);
        HL_OP(rmsnorm_forward)(backend, b);
        return;
    }
#define RUN(lanes, N) launch_pdl(c, two_fwd<lanes, N>, blocks_for(a->M, FWD_THREADS / lanes), FWD_THREADS, 0, t)
    BY_WIDTH(t.l2.D / WIDE, RUN)
#undef RUN
}
extern "C" void HL_OP(twonorm_backward)(struct hl_backend *backend, const struct hl_twonorm *n) {
    const struct hl_l2norm *a = n->l2;
    const struct hl_rmsnorm *b = n->rms;
    struct hl_cuda *c = hl_cuda_of(backend);
    struct two t = {l2(a), rms(b)};
    if (a->M == 0) return;
    if (!fits(&t.l2) || t.l2.D / WIDE > 64 || a->dx_add) {
        HL_OP(l2norm_backward)(backend, a);
        HL_OP(rmsnorm_backward)(backend, b);
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
