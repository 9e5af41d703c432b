/* conv_back_cuda.cu -- see conv.h: the backward pass, which recomputes u. */
#include "ops/cuda_ops.cuh"
#include "cuda/reduce.cuh"
#include "ops/conv/conv_cuda.cuh"

enum { BACK_WIDE = 4, BACK_PER_SM = 4, BATCH = 4 };

/* du of one row from the last W rows of x */
template <int V, int W>
static __device__ __forceinline__ void silu_backward(float *du, const float (*w)[V], const float (*h)[V]) {
    for (int v = 0; v < V; v++) {
        float u = 0.0f;
        for (int i = 0; i < W; i++) u = add_tap(u, w[i][v], h[i][v]);
        const float s = fast_sigmoid(u);
        du[v] *= s * (1.0f + u * (1.0f - s));
    }
}
static __device__ __forceinline__ int seg_end(const struct conv &a, int t) {
    const struct hl_seg s = a.seg[a.row_seg[t]];
    return (int)(s.row + s.len);
}

/* State of a scan: h and d hold the last W rows of x and du; also the segment ends of rows t and r = t - W + 1. */
template <int V, int W> struct walk {
    float h[W][V], d[W][V], w[W][V], dw[W][V];
    int t0, t1, end, r_end;
};

/* Row t gives du[t], which completes dx[r]. dw sums only the rows of the range. inside: t and r are in the range and in
 * one segment. */
template <bool inside, int V, int W>
static __device__ __forceinline__ void back_row(const struct conv &a, struct walk<V, W> &k, int t,
                                                typename packed_of<V>::type x, typename packed_of<V>::type dy,
                                                act *to) {
    const int r = t - W + 1;
    for (int i = 0; i + 1 < W; i++)
        for (int v = 0; v < V; v++) k.h[i][v] = k.h[i + 1][v], k.d[i][v] = k.d[i + 1][v];
    unpack(k.h[W - 1], x), unpack(k.d[W - 1], dy);
    if (!inside && t == k.end && t < a.T) {
        k.end = seg_end(a, t);
        for (int i = 0; i + 1 < W; i++)
            for (int v = 0; v < V; v++) k.h[i][v] = 0.0f;
    }
    silu_backward<V, W>(k.d[W - 1], k.w, k.h);
    if (!inside && t >= a.T)
        for (int v = 0; v < V; v++) k.d[W - 1][v] = 0.0f;
    if (inside || t < k.t1)
        for (int i = 0; i < W; i++)
            for (int v = 0; v < V; v++) k.dw[i][v] += k.d[W - 1][v] * k.h[i][v];
    if (!inside && r < k.t0) return;
    float dx[V];
    if (!inside && r == k.r_end) k.r_end = seg_end(a, r);
    for (int v = 0; v < V; v++) dx[v] = k.w[W - 1][v] * k.d[0][v];
    for (int i = 1; i < W; i++)
        if (inside || r + i < k.r_end)
            for (int v = 0; v < V; v++) dx[v] += k.w[W - 1 - i][v] * k.d[i][v];
    store_packed((typename packed_of<V>::type *)to, dx);
}

/* The rows of a range, and W - 1 more for the last dx. x and dy are loaded BATCH rows ahead. */
template <int V, int W>
static __device__ __forceinline__ void walk_back(const struct conv &a, struct walk<V, W> &k, int64_t c) {
    typedef typename packed_of<V>::type packed;
    packed x[BATCH], dy[BATCH];
    const int begin = (int)a.seg[a.row_seg[k.t0]].row, stop = k.t1 + W - 1, last = min(stop, (int)a.T);
    const int64_t C = a.C, ld = a.ld;
    const act *from_x = a.x + k.t0 * ld + c, *from_dy = a.dy + k.t0 * C + c;
    act *to = a.dx + (k.t0 - W + 1) * ld + c;
    k.end = k.r_end = seg_end(a, k.t0);
    for (int i = 0; i < W; i++) {
        for (int v = 0; v < V; v++) k.h[i][v] = k.d[i][v] = 0.0f;
        if (i > 0 && k.t0 - W + i >= begin) load_row<V>(k.h[i], from_x + (i - W) * ld);
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++)
        if (k.t0 + b < last) x[b] = *(const packed *)(from_x + b * ld), dy[b] = *(const packed *)(from_dy + b * C);
    for (int t = k.t0; t < stop; t += BATCH, to += BATCH * ld) {
        from_x += BATCH * ld, from_dy += BATCH * C;
        if (t - W + 1 >= k.t0 && t + 2 * BATCH <= k.t1 && t + BATCH <= k.end && k.end == k.r_end) {
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const packed now_x = x[b], now_dy = dy[b];
                x[b] = *(const packed *)(from_x + b * ld), dy[b] = *(const packed *)(from_dy + b * C);
                back_row<true>(a, k, t + b, now_x, now_dy, to + b * ld);
            }
            continue;
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (t + b < stop) back_row<false>(a, k, t + b, x[b], dy[b], to + b * ld);
            if (t + BATCH + b < last)
                x[b] = *(const packed *)(from_x + b * ld), dy[b] = *(const packed *)(from_dy + b * C);
        }
    }
}

template <int V, int W> static __global__ void __launch_bounds__(THREADS, BACK_PER_SM) conv_bwd(struct conv a) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
    struct walk<V, W> k;
    k.t0 = (int)stretch_begin(a.T, 0), k.t1 = (int)stretch_begin(a.T, 1);
    for (int i = 0; i < W; i++)
        for (int v = 0; v < V; v++) k.dw[i][v] = 0.0f;
    if (c < a.C && k.t0 < k.t1) {
        load_weights<V, W>(k.w, a.w, c);
        walk_back<V, W>(a, k, c);
    }
    if (!a.part) return;
    float *sums = (float *)shared_memory() + (threadIdx.y * blockDim.x + threadIdx.x) * (V * W);
    for (int v = 0; v < V; v++)
        for (int i = 0; i < W; i++) sums[v * W + i] = k.dw[i][v];
    __syncthreads();
    if (threadIdx.y > 0 || c >= a.C) return;
    for (int j = 0; j < V * W; j++) { /* the threads of other rows, in order */
        float s = 0.0f;
        for (unsigned y = 0; y < blockDim.y; y++) s += sums[y * blockDim.x * (V * W) + j];
        a.part[(blockIdx.y * a.C + c) * W + j] = s;
    }
}

template <int V, int W> static void backward(struct hl_cuda *c, struct conv a, float *dw) {
    dim3 grid, block;
    conv_shape(c, &a, V, BACK_PER_SM, &grid, &block);
    if (dw && !(a.part = (float *)hl_cuda_scratch(c, grid.y * a.C * W * (int64_t)sizeof(float)))) return;
    launch(c, conv_bwd<V, W>, grid, block, dw ? THREADS * V * W * sizeof(float) : 0, a);
    if (dw) sum_partials(c, dw, a.part, grid.y, a.C * W);
}
/* longer filters would not fit into the registers of wide threads */
template <int W> static void choose(struct hl_cuda *c, const struct conv *a, float *dw) {
    if (W <= 4 && conv_wide(a, BACK_WIDE)) backward<W <= 4 ? (int)BACK_WIDE : 1, W>(c, *a, dw);
    else backward<1, W>(c, *a, dw);
}

extern "C" void HL_OP(conv_backward)(struct hl_backend *backend, const struct hl_conv *p) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct conv a = open_conv(p);
    float *dw = a.w ? p->dw : NULL;
    if (a.T == 0 || HL_OP(conv_ring_backward)(c, p)) return;
    switch (a.W) {
    case 1: choose<1>(c, &a, dw); break;
    case 2: choose<2>(c, &a, dw); break;
    case 3: choose<3>(c, &a, dw); break;
    case 4: choose<4>(c, &a, dw); break;
    case 5: choose<5>(c, &a, dw); break;
    case 6: choose<6>(c, &a, dw); break;
    case 7: choose<7>(c, &a, dw); break;
    case 8: choose<8>(c, &a, dw); break;
    }
}
