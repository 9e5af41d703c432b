/* gdn_cuda.cu -- see gdn.h: which form of the forward pass a batch takes. The choice depends on shapes
 * alone. */
#include "ops/gdn/gdn_prep_cuda.cuh"

extern "C" void HL_OP(gdn_forward)(struct hl_pool *pool, const struct hl_gdn *a) {
    HL_ASSERT(a->HV % a->H == 0 && !a->v_new == !a->A && a->rows->dev);
    if (HL_OP(gdn_step)(pool, a) || HL_OP(gdn_chunk)(pool, a)) return;
    if (a->A) HL_OP(gdn_plain_inverse)(pool, a);
    HL_OP(gdn_plain)(pool, a);
}
