/* norm_cuda.cuh -- shared by the norm kernels: a row is in the registers of 4 to 32 lanes, 16 bytes at a time; the L2
 * norm is the RMS norm without weights, its sum not divided by D. */
#ifndef HL_NORM_CUDA_CUH
#define HL_NORM_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"
#include "cuda/pdl.cuh"
#include "cuda/reduce.cuh"
#include "cuda/packed.cuh"

enum {
    FWD_THREADS = 256,
    THREADS = 128,
    MOST_WIDE = 256, /* pieces of 16 bytes of the widest row kept in registers */
    PER_SM = 8       /* blocks of THREADS threads of a backward pass, each with its part of dw */
};

struct norm {
    int64_t M, D, z_heads, z_ld;
    float share, eps; /* r = 1/sqrt(share sum(x^2) + eps) */
    const act *x, *z, *dy;
    const float *w; /* NULL: ones */
    act *y, *dx, *dz;
    float *r, *part; /* part [blocks][D]: partial sums of dw */
    bool dx_add, z_sigmoid;
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

/* the weights of one piece; ones if there are none */
static __device__ __forceinline__ void load_w(float *w, const struct norm &a, int64_t c) {
    if (a.w) load_floats(w, a.w + c);
    else fill(w, 1.0f);
}

/* start of row m of z and dz */
static __device__ __forceinline__ int64_t z_row(const struct norm &a, int64_t m) {
    if (a.z_heads == 0) return m * a.D;
    const unsigned t = (unsigned)m / (unsigned)a.z_heads;
    return t * a.z_ld + (m - t * a.z_heads) * a.D;
}

/* The gate, SiLU or sigma, without a branch; s is sigma(z). */
struct gate_kind {
    float one; /* 0: sigma */
};
static __device__ __forceinline__ struct gate_kind gate_kind_of(const struct norm &a) {
    const struct gate_kind k = {a.z_sigmoid ? 0.0f : 1.0f};
    return k;
}
static __device__ __forceinline__ float gate(struct gate_kind k, float z, float s) {
    return s * (k.one > 0.0f ? z : 1.0f);
}
static __device__ __forceinline__ float gate_at(const struct norm &a, int64_t m, int64_t c) {
    const float z = f32(a.z[z_row(a, m) + c]);
    return gate(gate_kind_of(a), z, sigmoid(z));
}

/* The block's part of dw from those of its groups of lanes, in order. */
template <int lanes, int N, int threads = THREADS>
static __device__ __forceinline__ void add_groups(const float (&dw)[N][WIDE], float *part, int64_t D) {
    enum { GROUPS = threads / lanes, COLS = lanes * N * WIDE };
    const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
    float *sums = (float *)shared_memory(); /* [GROUPS][COLS] */
    for (int i = 0; i < N; i++)
        for (int j = 0; j < WIDE; j++) sums[group * COLS + (i * lanes + lane) * WIDE + j] = dw[i][j];
    __syncthreads();
    for (int c = threadIdx.x; c < COLS && c < D; c += threads) {
        float s = 0.0f;
        for (int g = 0; g < GROUPS; g++) s += sums[g * COLS + c];
        part[c] = s;
    }
}

/* ---- the host's side ---- */

static bool fits(const struct norm *n) { return n->D % WIDE == 0 && n->D / WIDE <= MOST_WIDE && n->z_ld % WIDE == 0; }
static int lanes_for(int64_t pieces) { return pieces <= 4 ? 4 : pieces <= 8 ? 8 : pieces <= 16 ? 16 : 32; }
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

static struct norm rms(const struct hl_rmsnorm *a) {
    struct norm n = {a->M, a->D, a->z_heads, a->z_ld, 1.0f / (float)a->D, (float)a->eps};
    n.x = (const act *)a->x, n.z = (const act *)a->z, n.dy = (const act *)a->dy;
    n.w = a->w, n.y = (act *)a->y, n.dx = (act *)a->dx, n.dz = (act *)a->dz;
    n.r = a->r, n.dx_add = a->dx_add, n.z_sigmoid = a->z_sigmoid;
    return n;
}
static struct norm l2(const struct hl_l2norm *a) {
    struct norm n = {a->M, a->D, 0, 0, 1.0f, (float)HL_L2_EPS};
    n.x = (const act *)a->x, n.dy = (const act *)a->dy, n.y = (act *)a->y, n.dx = (act *)a->dx;
    n.r = a->r, n.dx_add = a->dx_add;
    return n;
}

#endif
