/* decode_one_gsa_cuda.cu -- the one-kernel decoder for GSA models. */
#include "fused/decode_one/decode_one_kernel.cuh"

#ifndef HL_CUDA_F32
void hl_decode_one_gsa(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    if (launch_preset<struct slots_preset<512, 864, 4>>(c, p, y)) return;
    if (launch_preset<struct slots_preset<1024, 2816, 4>>(c, p, y)) return;
    launch_sizes<HL_DECODE_GSA>(c, p, y);
}
#endif
