/* feature_map_cuda.cu -- see feature_map.h: one pass over memory; a thread owns 16 bytes of each array. Block of 256
 * threads, no shared memory. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "cuda/row_pieces.cuh"

enum { THREADS = 256 };

template <int kind> static __device__ __forceinline__ float value(float x) {
    const float relu = fmaxf(x, 0.0f);
    if (kind == HOLA_MAP_RELU) return relu;
    if (kind == HOLA_MAP_SQRELU) return relu * relu;
    return kind == HOLA_MAP_SIGMOID ? sigmoid(x) : silu(x);
}
template <int kind> static __device__ __forceinline__ float slope(float x) {
    if (kind == HOLA_MAP_RELU) return x > 0.0f ? 1.0f : 0.0f;
    if (kind == HOLA_MAP_SQRELU) return 2.0f * fmaxf(x, 0.0f);
    const float s = sigmoid(x);
    return kind == HOLA_MAP_SIGMOID ? s * (1.0f - s) : s * (1.0f + x * (1.0f - s));
}

template <int kind, int wide> static __global__ void map_fwd(const act *x, act *y, const struct cut c) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * wide, at = place<wide>(c, i);
    pdl_wait(), pdl_trigger();
    if (i >= c.n) return;
    float v[WIDE];
    if (wide > 1) {
        load_wide(v, x + at);
        for (int j = 0; j < WIDE; j++) v[j] = value<kind>(v[j]);
        store_wide(y + i, v);
    } else put(y + i, value<kind>(f32(x[at])));
}

template <int kind, int wide> static __global__ void map_bwd(const act *x, const act *dy, act *dx, const struct cut c) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * wide, at = place<wide>(c, i);
    if (i >= c.n) return;
    float v[WIDE], d[WIDE];
    if (wide > 1) {
        load_wide(v, x + at), load_wide(d, dy + i);
        for (int j = 0; j < WIDE; j++) d[j] *= slope<kind>(v[j]);
        store_wide(dx + at, d);
    } else put(dx + at, f32(dy[i]) * slope<kind>(f32(x[at])));
}

template <int kind> static void forward(struct hl_cuda *c, const struct hl_feature_map *a) {
    const struct cuts k = cuts_of(a->M, a->D, a->ld);
    const act *x = (const act *)a->x;
    act *y = (act *)a->y;
    if (k.wide.n > 0)
        launch_pdl(c, map_fwd<kind, WIDE>, blocks_for(k.wide.n, THREADS * WIDE), THREADS, 0, x, y, k.wide);
    if (k.narrow.n > 0)
        launch_pdl(c, map_fwd<kind, 1>, blocks_for(k.narrow.n, THREADS), THREADS, 0, x + k.whole, y + k.whole,
                   k.narrow);
}
template <int kind> static void backward(struct hl_cuda *c, const struct hl_feature_map *a) {
    const struct cuts k = cuts_of(a->M, a->D, a->ld);
    const act *x = (const act *)a->x, *dy = (const act *)a->dy;
    act *dx = (act *)a->dx;
    if (k.wide.n > 0)
        launch(c, map_bwd<kind, WIDE>, blocks_for(k.wide.n, THREADS * WIDE), THREADS, 0, x, dy, dx, k.wide);
    if (k.narrow.n > 0)
        launch(c, map_bwd<kind, 1>, blocks_for(k.narrow.n, THREADS), THREADS, 0, x + k.whole, dy + k.whole,
               dx + k.whole, k.narrow);
}

extern "C" void HL_OP(feature_map_forward)(struct hl_backend *backend, const struct hl_feature_map *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    switch (a->kind) {
    case HOLA_MAP_RELU: forward<HOLA_MAP_RELU>(c, a); return;
    case HOLA_MAP_SQRELU: forward<HOLA_MAP_SQRELU>(c, a); return;
    case HOLA_MAP_SIGMOID: forward<HOLA_MAP_SIGMOID>(c, a); return;
    default: forward<HOLA_MAP_SWISH>(c, a);
    }
}
extern "C" void HL_OP(feature_map_backward)(struct hl_backend *backend, const struct hl_feature_map *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    switch (a->kind) {
    case HOLA_MAP_RELU: backward<HOLA_MAP_RELU>(c, a); return;
    case HOLA_MAP_SQRELU: backward<HOLA_MAP_SQRELU>(c, a); return;
    case HOLA_MAP_SIGMOID: backward<HOLA_MAP_SIGMOID>(c, a); return;
    default: backward<HOLA_MAP_SWISH>(c, a);
    }
}
