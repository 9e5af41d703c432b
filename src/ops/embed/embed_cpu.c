/* embed_cpu.c -- forward in pieces of tokens; backward in slices of columns, each over all tokens in order, so that
 * repeated tokens are added in the same order for any number of threads. */
#include "ops/linear/weight.h"
#include "ops/ops.h"
#include "ops/simd.h"

enum { SLICE = 64, TASK = 16384 }; /* columns per backward task; numbers per forward task */

struct pieces {
    const struct hl_embed *a;
    int64_t size; /* tokens or columns of a task */
};

static void forward_task(void *ctx, int64_t i, int worker) {
    const struct pieces *p = ctx;
    const struct hl_embed *a = p->a;
    (void)worker;
    for (int64_t t = i * p->size; t < a->T && t < (i + 1) * p->size; t++) {
        real *out = (real *)a->out + t * a->D;
        if (a->E.layout == HL_ROWS)
            memcpy(out, (const real *)a->E.data + a->ids[t] * a->D, (size_t)a->D * sizeof(real));
        else
            for (int64_t j = 0; j < a->D; j++) out[j] = hl_weight_at(&a->E, a->ids[t], j);
    }
}

void HL_OP(embed_forward)(struct hl_backend *backend, const struct hl_embed *a) {
    struct pieces p = {a, hl_pieces(TASK, a->D)};
    hl_pool_run(hl_backend_pool(backend), hl_pieces(a->T, p.size), forward_task, &p);
}

static void backward_task(void *ctx, int64_t i, int worker) {
    const struct pieces *p = ctx;
    const struct hl_embed *a = p->a;
    int64_t j0 = i * p->size, n = a->D - j0 < p->size ? a->D - j0 : p->size;
    (void)worker;
    for (int64_t t = 0; t < a->T; t++) {
        const real *dout = (const real *)a->dout + t * a->D + j0;
        real *dE = a->dE + a->ids[t] * a->D + j0;
        int64_t j = 0;
        if (t + 8 < a->T) __builtin_prefetch(a->dE + a->ids[t + 8] * a->D + j0, 1);
        for (; j + VL <= n; j += VL) v_store(dE + j, v_load(dE + j) + v_load(dout + j));
        for (; j < n; j++) dE[j] += dout[j];
    }
}

void HL_OP(embed_backward)(struct hl_backend *backend, const struct hl_embed *a) {
    struct pieces p = {a, a->T * a->D <= TASK ? a->D : SLICE};
    hl_pool_run(hl_backend_pool(backend), hl_pieces(a->D, p.size), backward_task, &p);
}
