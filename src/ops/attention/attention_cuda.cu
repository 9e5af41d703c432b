/* attention_cuda.cu -- chooses the kernels of softmax attention:
 *     step     one new row of every session (attention_step_cuda.cu)
 *     wgmma    bf16, D = 64 and 128, Hopper and later (attention_wgmma_cuda.cu, attention_back_cuda.cu)
 *     plain    everything else (attention_plain_cuda.cu) */
#include "ops/attention/attention_cuda.cuh"

static bool in_sessions(const struct hl_rows *rows) {
    for (int64_t i = 0; i < rows->n && !rows->on_device; i++)
        if (rows->seg[i].state) return true;
    return false;
}

extern "C" void HL_OP(attention_forward)(struct hl_backend *backend, const struct hl_attention *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    HL_ASSERT(a->H % a->HK == 0 && a->rows->dev && a->rows->tiled);
    const bool sessions = in_sessions(a->rows);
    if (a->rows->dev->tiles == 0 || hl_cuda_measuring(c)) return; /* none of these kernels needs scratch memory */
    if (sessions && HL_OP(attention_step)(c, a)) return;
#ifdef HL_CUDA_F32
    HL_OP(attention_plain_forward)(c, a);
#else
    if (!HL_OP(attention_wgmma_forward)(c, a)) HL_OP(attention_plain_forward)(c, a);
#endif
    if (sessions) HL_OP(attention_append)(c, a);
}

extern "C" void HL_OP(attention_backward)(struct hl_backend *backend, const struct hl_attention *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    HL_ASSERT(a->H % a->HK == 0 && a->rows->dev && a->rows->tiled);
    if (a->rows->dev->tiles == 0) return;
#ifndef HL_CUDA_F32
    if (HL_OP(attention_wgmma_backward)(c, a)) return;
#endif
    if (!hl_cuda_measuring(c)) HL_OP(attention_plain_backward)(c, a);
}
