/* convnorm_back_cuda.cu -- see convnorm_cuda.cuh: the backward pass, from the gradients of both norms, of one, or of
 * the convolution alone, to that of the convolution's input; values that the forward pass did not store are recomputed.
 * It is instruction-bound, so pairs of rows inside a segment run without any test. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/conv/convnorm_cuda.cuh"

enum { V = WIDE, RING = 8, PER_SM = 2, PLACE = THREADS * 16 }; /* RING: rows in flight */
/* norms: 2, both; 1, the L2 norm; 0, none. Their arrays: x, a gradient for each norm or of y. */
template <int norms> struct kind {
    enum { ARRAYS = norms == 2 ? 3 : 2 };
};

/* State of a scan: x of the previous TAPS - 1 rows, the partial dx of as many rows, and the next row to fetch. */
struct walk {
    float h[TAPS - 1][V], dx[TAPS - 1][V], w[TAPS][V], dw[TAPS][V], gamma[V], dgamma[V];
    const act *next_x, *next_dy;
    const float *next_r;
    act *to; /* dx of the row TAPS - 1 before the next one */
    char *ring;
    float *factors;         /* the L2 norm's, RING of them as well */
    int next, t1, low, end; /* t1: end of the range; dx is needed from row low on; end: of the segment */
    bool live;
};

template <int norms> static __device__ __forceinline__ char *slot_of(const struct walk &k, int row) {
    return k.ring + (unsigned)row % RING * kind<norms>::ARRAYS * PLACE;
}
static __device__ __forceinline__ float *factor_of(const struct walk &k, int row) {
    return k.factors + (unsigned)row % RING * THREADS;
}
template <int norms> static __device__ __forceinline__ void fetch(const struct conv_norm &a, struct walk &k, int stop) {
    char *slot = slot_of<norms>(k, k.next);
    if (k.next < stop) {
        if (norms > 0) copy_async4(factor_of(k, k.next), k.next_r), k.next_r += a.heads;
        copy_async(slot, k.next_x), copy_async(slot + PLACE, k.next_dy);
        if (norms == 2) copy_async(slot + 2 * PLACE, (const char *)k.next_dy + a.apart);
        k.next_x += a.c.ld, k.next_dy += a.c.C, k.next++;
    }
    copy_commit();
}

/* At a segment start, row t: earlier rows of dx are complete, and earlier rows of x are no longer visible. */
static __device__ __forceinline__ void leave_segment(const struct conv_norm &a, struct walk &k, int t) {
    for (int i = 0; i < TAPS - 1; i++) {
        const int row = t - (TAPS - 1) + i;
        if (k.live && row >= k.low && row < k.t1) store_wide(k.to + i * a.c.ld, k.dx[i]);
        for (int v = 0; v < V; v++) k.h[i][v] = k.dx[i][v] = 0.0f;
    }
}

/* The RMS norm's factor, from that of the L2 norm */
static __device__ __forceinline__ float rms_factor(const struct conv_norm &a, float r) {
    return r * fast_rsqrt(a.share + r * r * (a.eps - (float)HL_L2_EPS * a.share));
}

/* u becomes y = SiLU(u), slope its derivative; returns the thread's part of the norms' projection on y: y.dy r^3 +
 * y.(dyt gamma) rt^3 / K. Without norms slope becomes the gradient of u. */
template <int norms>
static __device__ __forceinline__ float look_at(const struct conv_norm &a, const struct walk &k, const char *slot,
                                                float r, float rt, float *u, float *slope) {
    float dy[V], dyt[V], sum = 0.0f, sum_t = 0.0f;
    load_wide(dy, (const act *)(slot + PLACE));
    if (norms == 2) load_wide(dyt, (const act *)(slot + 2 * PLACE));
    for (int v = 0; v < V; v++) {
        const float s = fast_sigmoid(u[v]), y = u[v] * s;
        slope[v] = s + (y - y * s), u[v] = y;
        if (norms == 0) slope[v] *= dy[v];
        sum += y * dy[v];
        if (norms == 2) sum_t += y * (dyt[v] * k.gamma[v]);
    }
    return sum * (r * r * r) + (norms == 2 ? sum_t * (rt * rt * rt * a.share) : 0.0f);
}

/* A row, with `along` of its head: its gradient is added to the rows it read. counted: it contributes to this range's
 * dw and dgamma. dx: of the row TAPS - 1 earlier, which is now complete. */
template <int norms>
static __device__ __forceinline__ void back_row(struct walk &k, const char *slot, bool counted, float r, float rt,
                                                float along, const float *x, const float *y, const float *slope,
                                                float *dx) {
    float dy[V], dyt[V];
    if (norms > 0) load_wide(dy, (const act *)(slot + PLACE));
    if (norms == 2) load_wide(dyt, (const act *)(slot + 2 * PLACE));
    for (int v = 0; v < V; v++) {
        const float mine = norms == 2 ? rt * dyt[v] : 0.0f;
        const float dn = norms > 0 ? r * dy[v] + (norms == 2 ? mine * k.gamma[v] : 0.0f) - y[v] * along : 1.0f;
        const float du = dn * slope[v];
        if (counted) {
            if (norms == 2) k.dgamma[v] += mine * y[v];
            for (int i = 0; i + 1 < TAPS; i++) k.dw[i][v] += du * k.h[i][v];
            k.dw[TAPS - 1][v] += du * x[v];
        }
        dx[v] = k.dx[0][v] + k.w[0][v] * du;
        for (int i = 0; i + 2 < TAPS; i++) k.dx[i][v] = k.dx[i + 1][v] + k.w[i + 1][v] * du;
        k.dx[TAPS - 2][v] = k.w[TAPS - 1][v] * du;
    }
    move_on<V>(k.h, x);
}

/* Rows t and t + 1, of this stretch and of one segment whose dx is wanted from TAPS - 1 rows before t. */
template <int lanes, int norms>
static __device__ __forceinline__ void two_rows(const struct conv_norm &a, struct walk &k, int t) {
    const char *slot[PAIR] = {slot_of<norms>(k, t), slot_of<norms>(k, t + 1)};
    float x[PAIR][V], y[PAIR][V], slope[PAIR][V], r[PAIR], rt[PAIR], along[PAIR], dx[V];
    for (int j = 0; j < PAIR; j++)
        r[j] = norms > 0 ? *factor_of(k, t + j) : 0.0f, load_wide(x[j], (const act *)slot[j]);
    conv_row<V>(y[0], k.w, k.h, x[0]);
    conv_second<V>(y[1], k.w, k.h, x[0], x[1]);
    for (int j = 0; j < PAIR; j++) {
        rt[j] = norms == 2 ? rms_factor(a, r[j]) : 0.0f;
        along[j] = look_at<norms>(a, k, slot[j], r[j], rt[j], y[j], slope[j]);
    }
    if (norms > 0) head_sums<lanes, PAIR>(along);
    for (int j = 0; j < PAIR; j++) {
        back_row<norms>(k, slot[j], true, r[j], rt[j], along[j], x[j], y[j], slope[j], dx);
        if (k.live) store_wide(k.to, dx);
        k.to += a.c.ld;
    }
}
template <int lanes, int norms>
static __device__ __forceinline__ void one_row(const struct conv_norm &a, struct walk &k, int t) {
    const char *slot = slot_of<norms>(k, t);
    float x[V], y[V], slope[V], dx[V];
    const float r = norms > 0 ? *factor_of(k, t) : 0.0f, rt = norms == 2 ? rms_factor(a, r) : 0.0f;
    load_wide(x, (const act *)slot);
    conv_row<V>(y, k.w, k.h, x);
    float along = look_at<norms>(a, k, slot, r, rt, y, slope);
    if (norms > 0) head_sums<lanes, 1>(&along);
    back_row<norms>(k, slot, t < k.t1, r, rt, along, x, y, slope, dx);
    if (k.live && t - (TAPS - 1) >= k.low) store_wide(k.to, dx);
    k.to += a.c.ld;
}

template <int lanes, int norms>
static __device__ __forceinline__ void next_pair(const struct conv_norm &a, struct walk &k, int t, int stop) {
    copy_wait<RING - PAIR>();
    two_rows<lanes, norms>(a, k, t);
    fetch<norms>(a, k, stop), fetch<norms>(a, k, stop);
}

/* The rows of a range, and TAPS - 1 more of its last segment for the last dx. */
template <int lanes, int norms>
static __device__ __forceinline__ void walk_back(const struct conv_norm &a, struct walk &k, int t0, int64_t c) {
    const bool early = k.t1 - t0 >= RING; /* the first rows are then of the range */
    k.next = k.low = t0;
    k.next_x = a.c.x + t0 * a.c.ld + c, k.next_dy = a.dy + t0 * a.c.C + c;
    k.to = a.c.dx + (t0 - (TAPS - 1)) * a.c.ld + c;
    k.next_r = norms > 0 ? a.r + t0 * a.heads + c / a.K : NULL;
    if (early)
#pragma unroll 1
        for (int i = 0; i < RING; i++) fetch<norms>(a, k, k.t1);
    const struct hl_seg last = a.c.seg[a.c.row_seg[k.t1 - 1]], first = a.c.seg[a.c.row_seg[t0]];
    const int stop = (int)min((int64_t)k.t1 + TAPS - 1, last.row + last.len);
    k.end = (int)(first.row + first.len);
    if (!early)
#pragma unroll 1
        for (int i = 0; i < RING; i++) fetch<norms>(a, k, stop);
    for (int i = 0; i < TAPS - 1; i++) {
        const int row = t0 - (TAPS - 1) + i;
        for (int v = 0; v < V; v++) k.h[i][v] = k.dx[i][v] = 0.0f;
        if (row >= first.row) load_row<V>(k.h[i], a.c.x + row * a.c.ld + c);
    }
    for (int t = t0; t < stop;) {
        if (t == k.end) {
            const struct hl_seg seg = a.c.seg[a.c.row_seg[t]];
            leave_segment(a, k, t);
            k.low = t, k.end = (int)(seg.row + seg.len);
        }
        const int whole = min(k.t1, k.end) - PAIR; /* the last row that begins a pair */
        while (t - (TAPS - 1) >= k.low && t <= whole) {
            next_pair<lanes, norms>(a, k, t, stop), t += PAIR;
            if (norms == 2 && t <= whole) /* again: fewer register moves */
                next_pair<lanes, norms>(a, k, t, stop), t += PAIR;
        }
        if (t == k.end || t == stop) continue;
        copy_wait<RING - 1>();
        one_row<lanes, norms>(a, k, t);
        fetch<norms>(a, k, stop);
        t++;
    }
    leave_segment(a, k, stop);
}

/* A thread's n numbers, added up over the block's rows of threads in order. They lie [n][C / V] in memory, so that
 * neighbours write neighbours. */
template <int n> static __device__ __forceinline__ void block_columns(float *to, const float *mine, int64_t C) {
    const int across = (int)blockDim.x, all = (int)(C / V), x = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    float *sums = (float *)shared_memory();
    __syncthreads();
    for (int i = 0; i < n; i++) sums[(threadIdx.y * n + i) * across + threadIdx.x] = mine[i];
    __syncthreads();
    for (int i = (int)threadIdx.y; x < all && i < n; i += (int)blockDim.y) {
        float s = 0.0f;
        for (int y = 0; y < (int)blockDim.y; y++) s += sums[(y * n + i) * across + threadIdx.x];
        to[i * all + x] = s;
    }
}

template <int lanes, int norms>
static __global__ void __launch_bounds__(THREADS, PER_SM) conv_norm_bwd(struct conv_norm a) {
    const int64_t mine = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
    const int t0 = (int)stretch_begin(a.c.T, 0);
    struct walk k;
    k.live = mine < a.c.C; /* the others participate, since whole warps sum */
    k.t1 = (int)stretch_begin(a.c.T, 1);
    k.ring = shared_memory() + (threadIdx.y * blockDim.x + threadIdx.x) * 16;
    k.factors =
        (float *)(shared_memory() + RING * kind<norms>::ARRAYS * PLACE) + threadIdx.y * blockDim.x + threadIdx.x;
    const int64_t c = k.live ? mine : (int64_t)(threadIdx.x % lanes) * V;
    for (int v = 0; v < V; v++) {
        for (int i = 0; i < TAPS; i++) k.dw[i][v] = 0.0f;
        k.gamma[v] = norms == 2 ? a.gamma[c % a.K + v] : 0.0f, k.dgamma[v] = 0.0f;
    }
    load_taps<V>(k.w, a.c.w, c);
    pdl_wait(), pdl_trigger();
    if (t0 < k.t1) walk_back<lanes, norms>(a, k, t0, c);
    copy_wait<0>();
    float trans[V * TAPS];
    for (int v = 0; v < V; v++)
        for (int i = 0; i < TAPS; i++) trans[v * TAPS + i] = k.dw[i][v];
    float *part = a.part + (int64_t)blockIdx.y * a.c.C * TAPS, *gamma_part = a.gamma_part + (int64_t)blockIdx.y * a.c.C;
    block_columns<V * TAPS>(part, trans, a.c.C);
    if (norms == 2) block_columns<V>(gamma_part, k.dgamma, a.c.C);
}

/* The sum over p of part[p][i] for every i: warps take every WARPS-th p, then one warp adds the sums of all. Of the
 * taps and of gamma in one launch, gamma's blocks first: they have more to add. p counts blocks and, for gamma, their
 * heads; i counts `width` threads, then the numbers of a thread, of which it has `each` in a row of out. */
enum { WARPS = 32 };
struct sums {
    float *out; /* NULL: not needed */
    const float *part;
    int P, n, blocks, heads, width, apart, each;
    int64_t stride;
};
/* Of block_columns, with `each` numbers of each of C / V threads, `width` of which belong to a head */
static struct sums column_sums(float *out, const float *part, int64_t blocks, int64_t C, int each, int width) {
    const int all = (int)(C / V), heads = all / width, n = width * each;
    const struct sums s = {out, part, (int)blocks * heads, n, out ? (int)blocks_for(n, 32) : 0, heads, width,
                           all, each, (int64_t)all * each};
    return s;
}
static __global__ void __launch_bounds__(32 * WARPS) add_both(struct sums a, struct sums b) {
    __shared__ float warp_sums[WARPS][32];
    const bool first = (int)blockIdx.x < a.blocks;
    const struct sums s = first ? a : b;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32,
              i = ((int)blockIdx.x - (first ? 0 : a.blocks)) * 32 + lane;
    float sum = 0.0f;
    pdl_wait(), pdl_trigger();
    if (i < s.n) { /* tested once: loads of several p are then in flight together */
        const float *part = s.part + i / s.width * s.apart + i % s.width;
#pragma unroll 8
        for (int p = warp; p < s.P; p += WARPS) sum += part[p / s.heads * s.stride + p % s.heads * s.width];
    }
    warp_sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || i >= s.n) return;
    for (int k = 1; k < WARPS; k++) sum += warp_sums[k][lane];
    s.out[i % s.width * s.each + i / s.width] += sum;
}

template <int lanes, int norms> static void run(struct hl_cuda *c, struct conv_norm a, float *dw, float *dgamma) {
    dim3 grid, block;
    conv_norm_shape(c, &a, PER_SM, &grid, &block);
    a.part = (float *)hl_cuda_scratch(c, grid.y * a.c.C * (TAPS + 1) * (int64_t)sizeof(float));
    if (!a.part) return;
    a.gamma_part = a.part + grid.y * a.c.C * TAPS;
    const size_t shared = RING * (kind<norms>::ARRAYS * PLACE + (norms > 0 ? THREADS * 4 : 0));
    launch_pdl(c, conv_norm_bwd<lanes, norms>, grid, block, shared, a);
    const struct sums taps = column_sums(dw, a.part, grid.y, a.c.C, V * TAPS, (int)(a.c.C / V)),
                      gamma = column_sums(dgamma, a.gamma_part, grid.y, a.c.C, V, lanes);
    if (taps.blocks + gamma.blocks > 0)
        launch_pdl(c, add_both, (unsigned)(taps.blocks + gamma.blocks), 32 * WARPS, 0, gamma, taps);
}

extern "C" void HL_OP(convnorm_backward)(struct hl_backend *backend, const struct hl_convnorm *n) {
    const struct hl_conv *conv = n->conv;
    const struct hl_l2norm *l2 = n->l2;
    const struct hl_rmsnorm *rms = n->rms;
    struct hl_cuda *c = hl_cuda_of(backend);
    struct conv_norm a = open_conv_norm(conv, l2, rms);
    const int lanes = head_lanes(&a);
    if (a.c.T == 0) return;
    if (!lanes) {
        if (rms) {
            const struct hl_twonorm both = {l2, rms};
            HL_OP(twonorm_backward)(backend, &both);
        } else HL_OP(l2norm_backward)(backend, l2);
        HL_OP(conv_backward)(backend, conv);
        return;
    }
    float *dgamma = rms ? rms->dw : NULL;
#define RUN(n) rms ? run<n, 2>(c, a, conv->dw, dgamma) : run<n, 1>(c, a, conv->dw, dgamma)
    BY_LANES(lanes, RUN)
#undef RUN
}

extern "C" bool HL_OP(conv_ring_backward)(struct hl_cuda *c, const struct hl_conv *conv) {
    struct conv_norm a = {open_conv(conv)};
    if (!ring_takes(&a.c)) return false;
    a.dy = a.c.dy;
    run<4, 0>(c, a, conv->dw, NULL);
    return true;
}
