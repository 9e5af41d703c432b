/* gdn_cuda.cu -- see gdn.h: which form of the forward pass a batch takes. The choice depends on shapes
 * alone. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_prep_cuda.cuh"

/* Few sequences would leave most of the chip idle in the walk from chunk to chunk: long ones are cut into
 * parts, for others that walk is made as short as it can be, and all else done for all chunks at once. */
extern "C" void HL_OP(gdn_forward)(struct hl_backend *backend, const struct hl_gdn *a) {
    const bool few = a->rows->n * a->HV * (a->V / 64) < 96;
    HL_ASSERT(a->HV % a->H == 0 && !a->v_new == !a->A && a->rows->dev);
    if (HL_OP(gdn_step)(backend, a)) return;
    if (few && (HL_OP(gdn_long)(backend, a) || HL_OP(gdn_scan)(backend, a))) return;
    if (HL_OP(gdn_many)(backend, a) || HL_OP(gdn_chunk)(backend, a) || HL_OP(gdn_scan)(backend, a)) return;
    if (a->A) HL_OP(gdn_plain_inverse)(backend, a);
    HL_OP(gdn_plain)(backend, a);
}
