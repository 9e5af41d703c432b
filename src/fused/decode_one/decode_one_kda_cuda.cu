/* decode_one_kda_cuda.cu -- the one-kernel decoder for KDA models. */
#include "fused/decode_one/decode_one_kernel.cuh"

#ifndef HL_CUDA_F32
void hl_decode_one_kda(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    if (launch_preset<struct low_rank_preset<HL_DECODE_KDA, 512, 768, 4, 128, 128, false>>(c, p, y)) return;
    if (launch_preset<struct low_rank_preset<HL_DECODE_KDA, 1024, 2816, 8, 128, 128, false>>(c, p, y)) return;
    launch_sizes<HL_DECODE_KDA>(c, p, y);
}
#endif
