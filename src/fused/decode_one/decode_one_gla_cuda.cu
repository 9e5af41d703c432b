/* decode_one_gla_cuda.cu -- the one-kernel decoder for GLA models. */
#include "fused/decode_one/decode_one_kernel.cuh"

#ifndef HL_CUDA_F32
void hl_decode_one_gla(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    if (launch_preset<struct low_rank_preset<HL_DECODE_GLA, 512, 928, 4, 64, 16, false>>(c, p, y)) return;
    if (launch_preset<struct low_rank_preset<HL_DECODE_GLA, 1024, 2816, 4, 128, 16, false>>(c, p, y)) return;
    launch_sizes<HL_DECODE_GLA>(c, p, y);
}
#endif
