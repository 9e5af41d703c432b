/* feature_map_cpu.c -- feature maps, elementwise over the flat arrays. */
#include "ops/ops.h"
#include "ops/simd.h"

enum {
    TASK = 16384, /* elements of one task, a multiple of VL */
    SMALL = 8192, /* below this many elements, use one thread */
};
#define INLINE static inline __attribute__((always_inline))

INLINE vr get(const real *p, int64_t n) { return n == VL ? v_load(p) : v_load_n(p, n); }
INLINE void put(real *p, vr x, int64_t n) {
    if (n == VL) v_store(p, x);
    else v_store_n(p, x, n);
}

INLINE vr value(hola_feature_map kind, vr x) {
    const vr relu = v_max(x, v_set(0));
    if (kind == HOLA_MAP_RELU) return relu;
    if (kind == HOLA_MAP_SQRELU) return relu * relu;
    return kind == HOLA_MAP_SIGMOID ? v_sigmoid(x) : x * v_sigmoid(x);
}
INLINE vr slope(hola_feature_map kind, vr x) {
    if (kind == HOLA_MAP_RELU) return v_select((vi)(x > 0), v_set(1), v_set(0));
    if (kind == HOLA_MAP_SQRELU) return 2 * v_max(x, v_set(0));
    const vr s = v_sigmoid(x);
    return kind == HOLA_MAP_SIGMOID ? s * (1 - s) : s * (1 + x * (1 - s));
}

/* Compiled for each kind: `kind` is a constant. */
INLINE void walk(const struct hl_feature_map *op, hola_feature_map kind, bool back, int64_t i, int64_t end) {
    const struct hl_feature_map copy = *op, *a = &copy; /* stores cannot change it */
    for (; i < end; i += VL) {
        const int64_t n = end - i < VL ? end - i : VL;
        const vr x = get((const real *)a->x + i, n);
        if (back) put((real *)a->dx + i, get((const real *)a->dy + i, n) * slope(kind, x), n);
        else put((real *)a->y + i, value(kind, x), n);
    }
}
INLINE void block(const struct hl_feature_map *a, bool back, int64_t i) {
    const int64_t all = a->M * a->D, end = all < i + TASK ? all : i + TASK;
    switch (a->kind) {
    case HOLA_MAP_RELU: walk(a, HOLA_MAP_RELU, back, i, end); return;
    case HOLA_MAP_SQRELU: walk(a, HOLA_MAP_SQRELU, back, i, end); return;
    case HOLA_MAP_SIGMOID: walk(a, HOLA_MAP_SIGMOID, back, i, end); return;
    default: walk(a, HOLA_MAP_SWISH, back, i, end);
    }
}
static void forward_block(void *ctx, int64_t i, int worker) { (void)worker, block(ctx, false, i * TASK); }
static void backward_block(void *ctx, int64_t i, int worker) { (void)worker, block(ctx, true, i * TASK); }

static void run(struct hl_backend *backend, const struct hl_feature_map *a, hl_task task) {
    const int64_t n = hl_pieces(a->M * a->D, TASK);
    if (a->M * a->D > SMALL) hl_pool_run(hl_backend_pool(backend), n, task, (void *)(uintptr_t)a);
    else if (n) task((void *)(uintptr_t)a, 0, 0);
}
void HL_OP(feature_map_forward)(struct hl_backend *backend, const struct hl_feature_map *a) {
    run(backend, a, forward_block);
}
void HL_OP(feature_map_backward)(struct hl_backend *backend, const struct hl_feature_map *a) {
    run(backend, a, backward_block);
}
