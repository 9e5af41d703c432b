/* swiglu_cuda.cu -- see swiglu.h: one pass over memory, 16 bytes a thread at a time. */
#include "cuda/early.cuh"

enum { THREADS = 256 };

/* n is whole pieces of WIDE; the few numbers behind them are one more, narrow launch */
template <int wide> static __global__ void swiglu_fwd(const act *gate, const act *up, act *y, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * wide;
    wait_for_others(), let_others_start();
    if (i >= n) return;
    float g[WIDE], u[WIDE];
    if (wide > 1) {
        load_wide(g, gate + i), load_wide(u, up + i);
        for (int j = 0; j < WIDE; j++) u[j] *= silu(g[j]);
        store_wide(y + i, u);
    } else put(y + i, f32(up[i]) * silu(f32(gate[i])));
}

static __device__ __forceinline__ void turn_back(float *g, float *u, float dy) {
    const float s = sigmoid(*g), gate = *g, up = *u;
    *u = dy * gate * s;
    *g = dy * up * s * (1.0f + gate * (1.0f - s));
}
template <int wide>
static __global__ void swiglu_bwd(const act *gate, const act *up, const act *dy, act *dgate, act *dup,
                                  int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * wide;
    if (i >= n) return;
    float g[WIDE], u[WIDE], d[WIDE];
    if (wide > 1) {
        load_wide(g, gate + i), load_wide(u, up + i), load_wide(d, dy + i);
        for (int j = 0; j < WIDE; j++) turn_back(&g[j], &u[j], d[j]);
        store_wide(dgate + i, g), store_wide(dup + i, u);
    } else {
        g[0] = f32(gate[i]), u[0] = f32(up[i]);
        turn_back(g, u, f32(dy[i]));
        put(dgate + i, g[0]), put(dup + i, u[0]);
    }
}

extern "C" void HL_OP(swiglu_forward)(struct hl_pool *pool, const struct hl_swiglu *a) {
    const int64_t n = a->M * a->D, whole = n / WIDE * WIDE;
    const act *gate = (const act *)a->gate, *up = (const act *)a->up;
    act *y = (act *)a->y;
    struct hl_cuda *c = hl_cuda_of(pool);
    if (whole > 0)
        launch_early(c, swiglu_fwd<WIDE>, blocks_for(whole, THREADS * WIDE), THREADS, 0, gate, up, y, whole);
    if (n > whole)
        launch_early(c, swiglu_fwd<1>, 1, THREADS, 0, gate + whole, up + whole, y + whole, n - whole);
}

extern "C" void HL_OP(swiglu_backward)(struct hl_pool *pool, const struct hl_swiglu *a) {
    const int64_t n = a->M * a->D, whole = n / WIDE * WIDE;
    const act *gate = (const act *)a->gate, *up = (const act *)a->up, *dy = (const act *)a->dy;
    act *dgate = (act *)a->dgate, *dup = (act *)a->dup;
    struct hl_cuda *c = hl_cuda_of(pool);
    if (whole > 0)
        launch(c, swiglu_bwd<WIDE>, blocks_for(whole, THREADS * WIDE), THREADS, 0, gate, up, dy, dgate, dup,
               whole);
    if (n > whole)
        launch(c, swiglu_bwd<1>, 1, THREADS, 0, gate + whole, up + whole, dy + whole, dgate + whole,
               dup + whole, n - whole);
}
