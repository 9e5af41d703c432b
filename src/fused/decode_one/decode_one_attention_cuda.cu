/* decode_one_attention_cuda.cu -- the one-kernel decoder for transformers. */
#include "fused/decode_one/decode_one_kernel.cuh"

#ifndef HL_CUDA_F32
void hl_decode_one_attention(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    if (launch_preset<struct attention_preset<512, 960, 64>>(c, p, y)) return;
    if (launch_preset<struct attention_preset<1024, 2816, 64>>(c, p, y)) return;
    launch_sizes<HL_DECODE_ATTENTION>(c, p, y);
}
#endif
