/* decode_batch.c -- see decode_batch.h: the supported sizes. */
#include "fused/decode_batch/decode_batch.h"

bool hl_decode_batch_takes(const struct hl_decode *a) {
    const bool heads = a->K == a->V && (a->K == 64 || a->K == 128 || a->K == 256);
    const int64_t vv = a->HV * a->V;
    const bool widths = a->d % 64 == 0 && a->I % 8 == 0 && vv % 8 == 0 && a->d <= HL_DECODE_BATCH_D &&
                        a->I <= HL_DECODE_BATCH_K && vv <= HL_DECODE_BATCH_K;
    return a->rule == HL_DECODE_DELTA && heads && widths && a->conv == 4 && a->rows->T <= HL_DECODE_BATCH_ROWS &&
           !(a->cache && !hl_policy_is_plain(&a->policy));
}
