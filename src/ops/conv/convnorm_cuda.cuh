/* convnorm_cuda.cuh -- the convolution of queries or keys and the norms of its heads in one pass, without storing the
 * intermediate result. A thread owns V adjacent channels and iterates over a range of rows; the lanes of a head sum
 * their squares. Rows come through a ring of cp.async copies in shared memory, in which every thread reads only what it
 * copied itself: no barriers. */
#ifndef HL_CONVNORM_CUDA_CUH
#define HL_CONVNORM_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"
#include "ops/conv/conv_cuda.cuh"

enum { TAPS = 4, PAIR = 2 }; /* rows are processed in pairs, so that their sums overlap */

struct conv_norm {
    struct conv c; /* its y and dy are not used */
    int64_t K;     /* channels of a head */
    int heads;
    float eps, share;
    const float *gamma; /* NULL: no RMS norm */
    act *y, *yt;        /* L2 and RMS norm */
    float *r;           /* [T][heads]: the L2 norm's factors */
    const act *dy;
    int64_t apart;            /* bytes from dy to dyt, the RMS norm's: a thread has one address for both */
    float *part, *gamma_part; /* [blocks][C][TAPS], [blocks][C]: of dw, of gamma's gradient */
};

static struct conv_norm open_conv_norm(const struct hl_conv *c, const struct hl_l2norm *l, const struct hl_rmsnorm *r) {
    struct conv_norm a = {open_conv(c), l->D};
    a.heads = (int)(a.c.C / a.K), a.r = l->r;
    a.y = (act *)l->y, a.dy = (const act *)l->dy;
    if (!r) return a;
    a.eps = (float)r->eps, a.share = 1.0f / (float)r->D, a.gamma = r->w;
    a.yt = (act *)r->y, a.apart = (int64_t)((intptr_t)r->dy - (intptr_t)l->dy);
    return a;
}
/* Whether the kernels can do this convolution, without norms. */
static inline bool ring_takes(const struct conv *a) {
    return a->W == TAPS && a->w && a->C % WIDE == 0 && a->ld % WIDE == 0;
}
/* Lanes per head with WIDE channels each; 0: unsupported heads. The same for both directions, since the backward pass
 * needs different inputs after separate ops. */
static inline int head_lanes(const struct conv_norm *a) {
    const int64_t lanes = a->K / WIDE;
    if (a->K % WIDE != 0 || a->c.C % a->K != 0 || !ring_takes(&a->c)) return 0;
    return lanes == 4 || lanes == 8 || lanes == 16 || lanes == 32 ? (int)lanes : 0;
}
#define BY_LANES(lanes, RUN) \
    switch (lanes) {         \
    case 4: RUN(4); break;   \
    case 8: RUN(8); break;   \
    case 16: RUN(16); break; \
    case 32: RUN(32); break; \
    }

/* Like conv_shape; a warp stays within one range. */
static inline void conv_norm_shape(struct hl_cuda *c, const struct conv_norm *a, int per_sm, dim3 *grid, dim3 *block) {
    unsigned across = 32;
    while (across < THREADS && across * WIDE < a->c.C) across *= 2;
    *block = dim3(across, THREADS / across);
    grid->x = blocks_for(a->c.C, across * WIDE);
    grid->y = min(blocks_for(a->c.T, LEAST * (int64_t)block->y), blocks_for(per_sm * hl_cuda_sms(c), grid->x));
}

/* w[i][v]: tap i of channel c + v */
template <int V> static __device__ __forceinline__ void load_taps(float (*w)[V], const float *from, int64_t c) {
    for (int v = 0; v < V; v++) {
        float taps[TAPS];
        load_wide(taps, from + (c + v) * TAPS);
        for (int i = 0; i < TAPS; i++) w[i][v] = taps[i];
    }
}
/* the sums of a head's lanes, of n numbers at a time */
template <int lanes, int n> static __device__ __forceinline__ void head_sums(float *x) {
#pragma unroll
    for (int i = lanes / 2; i > 0; i /= 2)
        for (int k = 0; k < n; k++) x[k] += __shfl_xor_sync(0xffffffffu, x[k], i);
}

/* u of the row x after the rows h */
template <int V>
static __device__ __forceinline__ void conv_row(float *u, const float (*w)[V], const float (*h)[V], const float *x) {
    for (int v = 0; v < V; v++) {
        u[v] = 0.0f;
        for (int i = 0; i + 1 < TAPS; i++) u[v] = add_tap(u[v], w[i][v], h[i][v]);
        u[v] = add_tap(u[v], w[TAPS - 1][v], x[v]);
    }
}
/* u of the row after x, which is y */
template <int V>
static __device__ __forceinline__ void conv_second(float *u, const float (*w)[V], const float (*h)[V], const float *x,
                                                   const float *y) {
    for (int v = 0; v < V; v++) {
        u[v] = 0.0f;
        for (int i = 0; i + 2 < TAPS; i++) u[v] = add_tap(u[v], w[i][v], h[i + 1][v]);
        u[v] = add_tap(u[v], w[TAPS - 2][v], x[v]);
        u[v] = add_tap(u[v], w[TAPS - 1][v], y[v]);
    }
}
template <int V> static __device__ __forceinline__ void move_on(float (*h)[V], const float *x) {
    for (int v = 0; v < V; v++) {
        for (int i = 0; i + 2 < TAPS; i++) h[i][v] = h[i + 1][v];
        h[TAPS - 2][v] = x[v];
    }
}

#endif
