/* swiglu_cuda.cu -- see swiglu.h: one pass over memory; a thread owns 16 bytes of each array. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "cuda/row_pieces.cuh"
#include "ops/swiglu/swiglu_cuda.cuh"

enum { THREADS = 256 };

template <int wide> static __global__ void swiglu_fwd(const act *gate, const act *up, act *y, const struct cut c) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * wide, at = place<wide>(c, i);
    pdl_wait(), pdl_trigger();
    if (i >= c.n) return;
    float g[WIDE], u[WIDE];
    if (wide > 1) {
        load_wide(g, gate + at), load_wide(u, up + at);
        for (int j = 0; j < WIDE; j++) u[j] = swiglu(g[j], u[j]);
        store_wide(y + i, u);
    } else put(y + i, swiglu(f32(gate[at]), f32(up[at])));
}

template <int wide>
static __global__ void swiglu_bwd(const act *gate, const act *up, const act *dy, act *dgate, act *dup,
                                  const struct cut c) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * wide, at = place<wide>(c, i);
    if (i >= c.n) return;
    float g[WIDE], u[WIDE], d[WIDE];
    if (wide > 1) {
        load_wide(g, gate + at), load_wide(u, up + at), load_wide(d, dy + i);
        for (int j = 0; j < WIDE; j++) swiglu_gradients(&g[j], &u[j], d[j]);
        store_wide(dgate + at, g), store_wide(dup + at, u);
    } else {
        g[0] = f32(gate[at]), u[0] = f32(up[at]);
        swiglu_gradients(g, u, f32(dy[i]));
        put(dgate + at, g[0]), put(dup + at, u[0]);
    }
}

extern "C" void HL_OP(swiglu_forward)(struct hl_backend *backend, const struct hl_swiglu *a) {
    const struct cuts k = cuts_of(a->M, a->D, a->ld);
    const act *gate = (const act *)a->gate, *up = (const act *)a->up;
    act *y = (act *)a->y;
    struct hl_cuda *c = hl_cuda_of(backend);
    if (k.wide.n > 0)
        launch_pdl(c, swiglu_fwd<WIDE>, blocks_for(k.wide.n, THREADS * WIDE), THREADS, 0, gate, up, y, k.wide);
    if (k.narrow.n > 0)
        launch_pdl(c, swiglu_fwd<1>, blocks_for(k.narrow.n, THREADS), THREADS, 0, gate + k.whole, up + k.whole,
                   y + k.whole, k.narrow);
}

extern "C" void HL_OP(swiglu_backward)(struct hl_backend *backend, const struct hl_swiglu *a) {
    const struct cuts k = cuts_of(a->M, a->D, a->ld);
    const act *gate = (const act *)a->gate, *up = (const act *)a->up, *dy = (const act *)a->dy;
    act *dgate = (act *)a->dgate, *dup = (act *)a->dup;
    struct hl_cuda *c = hl_cuda_of(backend);
    if (k.wide.n > 0)
        launch(c, swiglu_bwd<WIDE>, blocks_for(k.wide.n, THREADS * WIDE), THREADS, 0, gate, up, dy, dgate, dup, k.wide);
    if (k.narrow.n > 0)
        launch(c, swiglu_bwd<1>, blocks_for(k.narrow.n, THREADS), THREADS, 0, gate + k.whole, up + k.whole,
               dy + k.whole, dgate + k.whole, dup + k.whole, k.narrow);
}
