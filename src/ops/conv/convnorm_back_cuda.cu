/* convnorm_back_cuda.cu -- see convnorm_cuda.cuh: the backward pass, from the gradients of both norms to that
 * of the convolution's input; what the forward pass did not store is computed again. Instructions are what
 * limits it, so two rows inside a segment are taken without asking anything. */
#include "cuda/partials.cuh"
#include "ops/conv/convnorm_cuda.cuh"

enum { V = WIDE, RING = 8, BACK_PER_SM = 2, PLACE = THREADS * 16 }; /* RING: rows on their way */

/* Where a walk is: x of the TAPS - 1 rows before, and of as many rows of dx what is known so far; the next row
 * to be fetched. */
struct walk {
    float h[TAPS - 1][V], dx[TAPS - 1][V], w[TAPS][V], dw[TAPS][V], gamma[V], dgamma[V];
    const act *next_x, *next_dy, *next_dyt;
    act *to; /* dx of the row TAPS - 1 before the next one */
    char *ring;
    int next, t1, low, end; /* t1: the stretch's end; dx is wanted from row low on; end: the segment's */
    bool live;
};

template <bool two> static __device__ __forceinline__ char *slot_of(const struct walk &k, int row) {
    return k.ring + (unsigned)row % RING * (two ? 3 : 2) * PLACE;
}
template <bool two>
static __device__ __forceinline__ void fetch(const struct conv_norm &a, struct walk &k, int stop) {
    char *slot = slot_of<two>(k, k.next);
    if (k.next < stop) {
        copy_async(slot, k.next_x), copy_async(slot + PLACE, k.next_dy);
        if (two) copy_async(slot + 2 * PLACE, k.next_dyt), k.next_dyt += a.c.C;
        k.next_x += a.c.ld, k.next_dy += a.c.C, k.next++;
    }
    copy_commit();
}

/* The rows before row t: those of dx get no more, and those of x are not seen any more. */
static __device__ __forceinline__ void leave_segment(const struct conv_norm &a, struct walk &k, int t) {
    for (int i = 0; i < TAPS - 1; i++) {
        const int row = t - (TAPS - 1) + i;
        if (k.live && row >= k.low && row < k.t1) store_wide(k.to + i * a.c.ld, k.dx[i]);
        for (int v = 0; v < V; v++) k.h[i][v] = k.dx[i][v] = 0.0f;
    }
}

/* Sigmoid of u, and the thread's shares of y.y, y.dy and y.(dyt gamma), y being SiLU(u). */
template <bool two>
static __device__ __forceinline__ void look_at(const struct walk &k, const char *slot, const float *u,
                                               float *s, float *sums) {
    float dy[V], dyt[V];
    load_wide(dy, (const act *)(slot + PLACE));
    if (two) load_wide(dyt, (const act *)(slot + 2 * PLACE));
    sums[0] = sums[1] = sums[2] = 0.0f;
    for (int v = 0; v < V; v++) {
        s[v] = quick_sigmoid(u[v]);
        const float y = u[v] * s[v];
        sums[0] += y * y, sums[1] += y * dy[v];
        if (two) sums[2] += y * (dyt[v] * k.gamma[v]);
    }
}

/* A row, with the sums of its head: its gradient goes to the rows it looked at. counted: its part of dw and dgamma
 * is this stretch's. dx: of the row TAPS - 1 before, which is now whole. */
template <bool two>
static __device__ __forceinline__ void back_row(const struct conv_norm &a, struct walk &k, const char *slot,
                                                bool counted, const float *x, const float *u, const float *s,
                                                const float *sums, float *dx) {
    const float r = rsqrtf(sums[0] + (float)HL_L2_EPS), rt = two ? rsqrtf(sums[0] * a.share + a.eps) : 0.0f;
    const float along = sums[1] * r * r * r + (two ? sums[2] * rt * rt * rt * a.share : 0.0f);
    float dy[V], dyt[V];
    load_wide(dy, (const act *)(slot + PLACE));
    if (two) load_wide(dyt, (const act *)(slot + 2 * PLACE));
    for (int v = 0; v < V; v++) {
        const float y = u[v] * s[v], mine = two ? rt * dyt[v] : 0.0f;
        const float dn = r * dy[v] + (two ? mine * k.gamma[v] : 0.0f) - y * along;
        const float du = dn * (s[v] * (1.0f + u[v] - y));
        if (counted) {
            if (two) k.dgamma[v] += mine * y;
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
template <int lanes, bool two>
static __device__ __forceinline__ void two_rows(const struct conv_norm &a, struct walk &k, int t) {
    const char *slot[PAIR] = {slot_of<two>(k, t), slot_of<two>(k, t + 1)};
    float x[PAIR][V], u[PAIR][V], s[PAIR][V], sums[PAIR * 3], dx[V];
    for (int j = 0; j < PAIR; j++) load_wide(x[j], (const act *)slot[j]);
    conv_row<V>(u[0], k.w, k.h, x[0]);
    conv_second<V>(u[1], k.w, k.h, x[0], x[1]);
    for (int j = 0; j < PAIR; j++) look_at<two>(k, slot[j], u[j], s[j], sums + j * 3);
    head_sums<lanes, PAIR * 3>(sums);
    for (int j = 0; j < PAIR; j++) {
        back_row<two>(a, k, slot[j], true, x[j], u[j], s[j], sums + j * 3, dx);
        if (k.live) store_wide(k.to, dx);
        k.to += a.c.ld;
    }
}
template <int lanes, bool two>
static __device__ __forceinline__ void one_row(const struct conv_norm &a, struct walk &k, int t) {
    const char *slot = slot_of<two>(k, t);
    float x[V], u[V], s[V], sums[3], dx[V];
    load_wide(x, (const act *)slot);
    conv_row<V>(u, k.w, k.h, x);
    look_at<two>(k, slot, u, s, sums);
    head_sums<lanes, 3>(sums);
    back_row<two>(a, k, slot, t < k.t1, x, u, s, sums, dx);
    if (k.live && t - (TAPS - 1) >= k.low) store_wide(k.to, dx);
    k.to += a.c.ld;
}

/* The rows of a stretch, and TAPS - 1 more of its last segment for the last dx. */
template <int lanes, bool two>
static __device__ __forceinline__ void walk_back(const struct conv_norm &a, struct walk &k, int t0,
                                                 int64_t c) {
    const struct hl_seg last = a.c.seg[a.c.row_seg[k.t1 - 1]], first = a.c.seg[a.c.row_seg[t0]];
    const int stop = (int)min((int64_t)k.t1 + TAPS - 1, last.row + last.len);
    k.next = k.low = t0, k.end = (int)(first.row + first.len);
    k.next_x = a.c.x + t0 * a.c.ld + c, k.next_dy = a.dy + t0 * a.c.C + c;
    k.next_dyt = two ? a.dyt + t0 * a.c.C + c : NULL;
    k.to = a.c.dx + (t0 - (TAPS - 1)) * a.c.ld + c;
#pragma unroll 1
    for (int i = 0; i < RING; i++) fetch<two>(a, k, stop);
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
            copy_wait<RING - PAIR>();
            two_rows<lanes, two>(a, k, t);
            fetch<two>(a, k, stop), fetch<two>(a, k, stop);
            t += PAIR;
        }
        if (t == k.end || t == stop) continue;
        copy_wait<RING - 1>();
        one_row<lanes, two>(a, k, t);
        fetch<two>(a, k, stop);
        t++;
    }
    leave_segment(a, k, stop);
}

/* a thread's numbers, added up over the block's rows of threads in order */
template <int n>
static __device__ __forceinline__ void block_rows(float *to, const float *mine, bool write, int64_t c) {
    float *sums = (float *)shared_memory() + (threadIdx.y * blockDim.x + threadIdx.x) * n;
    __syncthreads();
    for (int i = 0; i < n; i++) sums[i] = mine[i];
    __syncthreads();
    if (threadIdx.y > 0 || !write) return;
#pragma unroll 4
    for (int i = 0; i < n; i++) {
        float s = 0.0f;
        for (unsigned y = 0; y < blockDim.y; y++) s += sums[y * blockDim.x * n + i];
        to[c + i] = s;
    }
}

template <int lanes, bool two>
static __global__ void __launch_bounds__(THREADS, BACK_PER_SM) conv_norm_bwd(struct conv_norm a) {
    const int64_t mine = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
    const int t0 = (int)stretch_begin(a.c.T, 0);
    struct walk k;
    k.live = mine < a.c.C; /* the others go along: warps add up as a whole */
    k.t1 = (int)stretch_begin(a.c.T, 1);
    k.ring = shared_memory() + (threadIdx.y * blockDim.x + threadIdx.x) * 16;
    const int64_t c = k.live ? mine : (int64_t)(threadIdx.x % lanes) * V;
    for (int v = 0; v < V; v++) {
        for (int i = 0; i < TAPS; i++) k.dw[i][v] = 0.0f;
        k.gamma[v] = two ? a.gamma[c % a.K + v] : 0.0f, k.dgamma[v] = 0.0f;
    }
    load_taps<V>(k.w, a.c.w, c);
    if (t0 < k.t1) walk_back<lanes, two>(a, k, t0, c);
    copy_wait<0>();
    float turned[V * TAPS];
    for (int v = 0; v < V; v++)
        for (int i = 0; i < TAPS; i++) turned[v * TAPS + i] = k.dw[i][v];
    block_rows<V * TAPS>(a.part + (int64_t)blockIdx.y * a.c.C * TAPS, turned, k.live, c * TAPS);
    if (two) block_rows<V>(a.gamma_part + (int64_t)blockIdx.y * a.c.C, k.dgamma, k.live, c);
}

extern "C" void HL_OP(twonorm_backward)(struct hl_pool *, const struct hl_l2norm *,
                                        const struct hl_rmsnorm *);
extern "C" void HL_OP(convnorm_backward)(struct hl_pool *pool, const struct hl_conv *conv,
                                         const struct hl_l2norm *l2, const struct hl_rmsnorm *rms) {
    struct hl_cuda *c = hl_cuda_of(pool);
    struct conv_norm a = open_conv_norm(conv, l2, rms);
    const int lanes = head_lanes(&a);
    dim3 grid, block;
    if (a.c.T == 0) return;
    if (!lanes) {
        if (rms) HL_OP(twonorm_backward)(pool, l2, rms);
        else HL_OP(l2norm_backward)(pool, l2);
        HL_OP(conv_backward)(pool, conv);
        return;
    }
    conv_norm_shape(c, &a, BACK_PER_SM, &grid, &block);
    a.part = (float *)hl_cuda_scratch(c, grid.y * a.c.C * (TAPS + 1) * (int64_t)sizeof(float));
    if (!a.part) return;
    a.gamma_part = a.part + grid.y * a.c.C * TAPS;
#define RUN(n)                                                                     \
    launch(c, rms ? conv_norm_bwd<n, true> : conv_norm_bwd<n, false>, grid, block, \
           RING *(rms ? 3 : 2) * PLACE, a)
    BY_LANES(lanes, RUN)
#undef RUN
    if (conv->dw) sum_partials(c, conv->dw, a.part, grid.y, a.c.C * TAPS);
    if (rms && rms->dw) sum_partials(c, rms->dw, a.gamma_part, grid.y * (a.c.C / a.K), a.K);
}
