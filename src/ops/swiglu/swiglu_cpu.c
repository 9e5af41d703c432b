/* swiglu_cpu.c -- SwiGLU over the flat arrays: no element needs another one. */
#include "ops/ops.h"
#include "ops/simd.h"

enum {
    TASK = 16384, /* elements of one task, a multiple of VL */
    SMALL = 8192, /* elements worth no other thread */
};

static inline vr get(const real *p, int64_t n) { return n == VL ? v_load(p) : v_load_n(p, n); }
static inline void put(real *p, vr x, int64_t n) {
    if (n == VL) v_store(p, x);
    else v_store_n(p, x, n);
}

static void run(struct hl_pool *pool, const struct hl_swiglu *a, hl_task task) {
    int64_t n = hl_pieces(a->M * a->D, TASK);
    if (a->M * a->D > SMALL) hl_pool_run(pool, n, task, (void *)(uintptr_t)a);
    else if (n) task((void *)(uintptr_t)a, 0, 0);
}

static inline void forward(const struct hl_swiglu *a, int64_t i, int64_t n) {
    vr g = get((const real *)a->gate + i, n);
    put((real *)a->y + i, g * v_sigmoid(g) * get((const real *)a->up + i, n), n);
}

static void forward_block(void *ctx, int64_t block, int worker) {
    const struct hl_swiglu *a = ctx;
    int64_t i = block * TASK, end = a->M * a->D < i + TASK ? a->M * a->D : i + TASK;
    (void)worker;
    for (; i + VL <= end; i += VL) forward(a, i, VL);
    if (i < end) forward(a, i, end - i);
}

void HL_OP(swiglu_forward)(struct hl_backend *backend, const struct hl_swiglu *a) {
    run(hl_backend_pool(backend), a, forward_block);
}

static inline void backward(const struct hl_swiglu *a, int64_t i, int64_t n) {
    vr g = get((const real *)a->gate + i, n), up = get((const real *)a->up + i, n);
    vr s = v_sigmoid(g), dys = get((const real *)a->dy + i, n) * s;
    put((real *)a->dup + i, dys * g, n);
    put((real *)a->dgate + i, dys * up * (1 + g * (1 - s)), n);
}

static void backward_block(void *ctx, int64_t block, int worker) {
    const struct hl_swiglu *a = ctx;
    int64_t i = block * TASK, end = a->M * a->D < i + TASK ? a->M * a->D : i + TASK;
    (void)worker;
    for (; i + VL <= end; i += VL) backward(a, i, VL);
    if (i < end) backward(a, i, end - i);
}

void HL_OP(swiglu_backward)(struct hl_backend *backend, const struct hl_swiglu *a) {
    run(hl_backend_pool(backend), a, backward_block);
}
