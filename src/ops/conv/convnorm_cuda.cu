/* convnorm_cuda.cu -- see convnorm_cuda.cuh: the forward pass. norms: 2, both; 1, the L2 norm. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/conv/conv_session_cuda.cuh"
#include "ops/conv/convnorm_cuda.cuh"

enum { V = WIDE, RING = 8, PER_SM = 4, PAIRS = 2 }; /* RING: rows in flight; PAIRS: of an iteration */

struct walk {
    float w[TAPS][V], h[TAPS - 1][V], gamma[V]; /* h: x of the TAPS - 1 rows before */
    const act *next_x;                          /* the next row to fetch */
    act *y, *yt;
    float *r; /* only in a head's first thread */
    char *ring;
    int next, t1; /* t1: end of the range */
    bool live;
};

static __device__ __forceinline__ char *slot_of(const struct walk &k, int row) {
    return k.ring + (unsigned)row % RING * (THREADS * 16);
}
static __device__ __forceinline__ void fetch(const struct conv_norm &a, struct walk &k) {
    if (k.next < k.t1) {
        copy_async(slot_of(k, k.next), k.next_x);
        k.next_x += a.c.ld, k.next++;
    }
    copy_commit();
}

/* One row: u becomes its SiLU; the thread's share of the sum of squares. */
static __device__ __forceinline__ float silu_row(float *u) {
    float sum = 0.0f;
    for (int v = 0; v < V; v++) u[v] *= fast_sigmoid(u[v]), sum += u[v] * u[v];
    return sum;
}
template <int norms>
static __device__ __forceinline__ void norm_row(const struct conv_norm &a, struct walk &k, float *u, float sum) {
    float y[V];
    const float r = fast_rsqrt(sum + (float)HL_L2_EPS), rt = fast_rsqrt(sum * a.share + a.eps);
    for (int v = 0; v < V; v++) y[v] = r * u[v];
    if (k.live) store_wide(k.y, y);
    if (k.r) *k.r = r, k.r += a.heads;
    k.y += a.c.C;
    if (norms == 2) {
        for (int v = 0; v < V; v++) u[v] *= rt * k.gamma[v];
        if (k.live) store_wide(k.yt, u);
        k.yt += a.c.C;
    }
}

/* n rows from row t on, all of one segment */
template <int lanes, int norms, int n>
static __device__ __forceinline__ void next_rows(const struct conv_norm &a, struct walk &k, int t) {
    float x[n][V], u[n][V], sum[n];
    copy_wait<RING - n>();
#pragma unroll
    for (int j = 0; j < n; j++) {
        load_wide(x[j], (const act *)slot_of(k, t + j));
        conv_row<V>(u[j], k.w, k.h, x[j]);
        move_on<V>(k.h, x[j]);
        sum[j] = silu_row(u[j]);
    }
    for (int j = 0; j < n; j++) fetch(a, k);
    head_sums<lanes, n>(sum);
#pragma unroll
    for (int j = 0; j < n; j++) norm_row<norms>(a, k, u[j], sum[j]);
}

template <int lanes, int norms>
static __global__ void __launch_bounds__(THREADS, PER_SM) conv_norm_fwd(struct conv_norm a) {
    const int64_t mine = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
    const int t0 = (int)stretch_begin(a.c.T, 0);
    struct walk k;
    k.live = mine < a.c.C; /* the others participate, since whole warps sum */
    k.t1 = (int)stretch_begin(a.c.T, 1);
    const int64_t c = k.live ? mine : (int64_t)(threadIdx.x % lanes) * V;
    k.next = t0, k.next_x = a.c.x + t0 * a.c.ld + c;
    k.y = a.y + t0 * a.c.C + c, k.yt = norms == 2 ? a.yt + t0 * a.c.C + c : NULL;
    k.r = k.live && threadIdx.x % lanes == 0 ? a.r + t0 * a.heads + c / a.K : NULL;
    k.ring = shared_memory() + (threadIdx.y * blockDim.x + threadIdx.x) * 16;
    load_taps<V>(k.w, a.c.w, c);
    for (int v = 0; v < V; v++) k.gamma[v] = norms == 2 ? a.gamma[c % a.K + v] : 0.0f;
    pdl_wait(), pdl_trigger();
#pragma unroll 1
    for (int i = 0; i < RING; i++) fetch(a, k);
    for (int t = t0; t < k.t1;) {
        const int end = min(enter_segment<V, TAPS>(k.h, a.c, t, c), k.t1);
        while (t + PAIRS * PAIR <= end) {
#pragma unroll
            for (int i = 0; i < PAIRS; i++, t += PAIR) next_rows<lanes, norms, PAIR>(a, k, t);
        }
        if (t + PAIR <= end) next_rows<lanes, norms, PAIR>(a, k, t), t += PAIR;
        if (t < end) next_rows<lanes, norms, 1>(a, k, t++);
    }
}

template <int lanes, int norms> static void run(struct hl_cuda *c, const struct conv_norm *a) {
    dim3 grid, block;
    conv_norm_shape(c, a, PER_SM, &grid, &block);
    launch_pdl(c, conv_norm_fwd<lanes, norms>, grid, block, THREADS * RING * 16, *a);
}

extern "C" void HL_OP(convnorm_forward)(struct hl_backend *backend, const struct hl_convnorm *n) {
    const struct hl_conv *conv = n->conv;
    const struct hl_l2norm *l2 = n->l2;
    const struct hl_rmsnorm *rms = n->rms;
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct conv_norm a = open_conv_norm(conv, l2, rms);
    const int lanes = head_lanes(&a);
    if (a.c.T == 0) return;
    if (!lanes || all_single(conv->rows)) {
        HL_OP(conv_forward)(backend, conv);
        if (rms) {
            const struct hl_twonorm both = {l2, rms};
            HL_OP(twonorm_forward)(backend, &both);
        } else HL_OP(l2norm_forward)(backend, l2);
        return;
    }
#define RUN(n) rms ? run<n, 2>(c, &a) : run<n, 1>(c, &a)
    BY_LANES(lanes, RUN)
#undef RUN
    keep_tails(c, &a.c, conv->rows);
}
