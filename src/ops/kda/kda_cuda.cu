/* kda_cuda.cu -- forward KDA on a GPU (kda.h): the table of its variants; a batch uses the first that fits. The choice
 * depends only on the shapes and the chip's architecture, so the same batch gives the same bits on every chip of a
 * kind. Chips before Hopper use `step` and `plain`. */
#include "ops/cuda_ops.cuh"
#include "ops/kda/kda_cuda.cuh"

static bool step_fits(struct hl_cuda *, const struct hl_kda *a) {
    if (!kda_step_knows(a->K, a->V) || a->A || a->v_new || a->rows->dev->longest > KDA_STEP_ROWS) return false;
    if (a->rows->on_device) return a->rows->states && !a->rows->ragged;
    for (int64_t s = 0; s < a->rows->n; s++)
        if (!a->rows->seg[s].state || (uintptr_t)(a->rows->seg[s].state + a->S_off) % 16) return false;
    return true;
}
#ifndef HL_CUDA_F32
static bool scan_fits(struct hl_cuda *c, const struct hl_kda *a) { return HL_OP(kda_scan_fits)(c, a->K, a->V); }
#endif
static bool any(struct hl_cuda *, const struct hl_kda *) { return true; }

static const struct {
    const char *name;
    bool (*fits)(struct hl_cuda *, const struct hl_kda *);
    void (*run)(struct hl_backend *, const struct hl_kda *);
} forms[] = {
    {"step", step_fits, HL_OP(kda_run_step)}, /* decoding: every state is read and written once */
#ifndef HL_CUDA_F32
    {"scan", scan_fits, HL_OP(kda_run_scan)}, /* keys of 64 and 128, values of a multiple of 64: chunks */
#endif
    {"plain", any, HL_OP(kda_run_plain)}, /* any head size, float activations, older chips: token by token */
};

static int form_of(struct hl_backend *backend, const struct hl_kda *a) {
    int i = 0;
    while (!forms[i].fits(hl_cuda_of(backend), a)) i++; /* the last one always fits */
    return i;
}
extern "C" void HL_OP(kda_forward)(struct hl_backend *backend, const struct hl_kda *a) {
    HL_ASSERT(a->HV % a->H == 0 && !a->v_new == !a->A && a->rows->dev);
    forms[form_of(backend, a)].run(backend, a);
}
extern "C" const char *HL_OP(kda_form)(struct hl_backend *backend, const struct hl_kda *a) {
    return forms[form_of(backend, a)].name;
}
