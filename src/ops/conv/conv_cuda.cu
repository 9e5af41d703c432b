/* conv_cuda.cu -- see conv.h: the forward pass, in sequences and token by token. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/conv/conv_session_cuda.cuh"

enum { FWD_WIDE = 4, FWD_PER_SM = 8, BATCH = 4 };

/* One row: h holds the last W, the newest in h[W - 1]. */
template <int V, int W>
static __device__ __forceinline__ void next_row(float (*h)[V], const float (*w)[V], typename packed_of<V>::type x,
                                                act *y) {
    float u[V];
    for (int i = 0; i + 1 < W; i++)
        for (int v = 0; v < V; v++) h[i][v] = h[i + 1][v];
    unpack(h[W - 1], x);
    for (int v = 0; v < V; v++) {
        u[v] = 0.0f;
        for (int i = 0; i < W; i++) u[v] = add_tap(u[v], w[i][v], h[i][v]);
        u[v] *= fast_sigmoid(u[v]);
    }
    store_packed((typename packed_of<V>::type *)y, u);
}

/* Rows [t, t1), as far as BATCH goes; x points at row t. */
template <class packed>
static __device__ __forceinline__ void load_rows(packed *to, const act *x, int64_t ld, int t, int t1) {
#pragma unroll
    for (int b = 0; b < BATCH; b++)
        if (t + b < t1) to[b] = *(const packed *)(x + b * ld);
}

template <int V, int W>
static __global__ void __launch_bounds__(THREADS, W <= 4 ? FWD_PER_SM : 1) conv_fwd(struct conv a) {
    typedef typename packed_of<V>::type packed;
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
    const int t0 = (int)stretch_begin(a.T, 0), t1 = (int)stretch_begin(a.T, 1);
    if (c >= a.C || t0 >= t1) return;
    float w[W][V], h[W][V];
    packed next[BATCH]; /* rows t .. t + BATCH - 1 */
    const act *x = a.x + (int64_t)t0 * a.ld + c;
    act *y = a.y + (int64_t)t0 * a.C + c;
    load_weights<V, W>(w, a.w, c);
    load_rows(next, x, a.ld, t0, t1);
    for (int t = t0, end = t0; t < t1;) {
        if (t == end || t == t0) end = enter_segment<V, W>(h + 1, a, t, c);
        const int n = min(min(t1, end) - t, (int)BATCH);
        if (n == BATCH) {
            x += BATCH * a.ld;
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const packed now = next[b];
                if (t + BATCH + b < t1) next[b] = *(const packed *)(x + b * a.ld);
                next_row<V, W>(h, w, now, y + b * a.C);
            }
        } else { /* up to the end of the segment or of the range */
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                if (b < n) next_row<V, W>(h, w, next[b], y + b * a.C);
            x += n * a.ld;
            load_rows(next, x, a.ld, t + n, t1);
        }
        t += n, y += n * a.C;
    }
}

/* Every segment is one row: a thread per channel reads its tail and shifts it by one. */
template <int W> static __global__ void conv_step(struct conv a) {
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    pdl_wait(), pdl_trigger();
    const struct hl_seg s = a.seg[blockIdx.y];
    if (c >= a.C) return;
    float h[W], u = 0.0f;
    for (int i = 0; i < W; i++) {
        look_back<1>(&h[i], a, s, s.row - W + 1 + i, c);
        u = add_tap(u, a.w ? a.w[c * W + i] : 1.0f, h[i]);
    }
    put(a.y + s.row * a.C + c, u * fast_sigmoid(u));
    if (s.state)
        for (int i = 1; i < W; i++) ((float *)(s.state + a.tail_off))[(i - 1) * a.C + c] = h[i];
}

template <int W> static void forward(struct hl_cuda *c, const struct conv *a, bool single) {
    enum { V = W <= 4 ? (int)FWD_WIDE : 4 };
    dim3 grid, block;
    if (single) {
        launch_pdl(c, conv_step<W>, dim3(blocks_for(a->C, THREADS), (unsigned)a->n), THREADS, 0, *a);
        return;
    }
    conv_shape(c, a, conv_wide(a, V) ? V : 1, FWD_PER_SM, &grid, &block);
    if (conv_wide(a, V)) launch(c, conv_fwd<V, W>, grid, block, 0, *a);
    else launch(c, conv_fwd<1, W>, grid, block, 0, *a);
}

extern "C" void HL_OP(conv_forward)(struct hl_backend *backend, const struct hl_conv *p) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct conv a = open_conv(p);
    const bool single = all_single(p->rows);
    if (a.T == 0) return;
    if (!single && HL_OP(conv_ring_forward)(c, p)) {
        keep_tails(c, &a, p->rows);
        return;
    }
    switch (a.W) {
    case 1: forward<1>(c, &a, single); break;
    case 2: forward<2>(c, &a, single); break;
    case 3: forward<3>(c, &a, single); break;
    case 4: forward<4>(c, &a, single); break;
    case 5: forward<5>(c, &a, single); break;
    case 6: forward<6>(c, &a, single); break;
    case 7: forward<7>(c, &a, single); break;
    case 8: forward<8>(c, &a, single); break;
    }
    if (!single) keep_tails(c, &a, p->rows);
}
