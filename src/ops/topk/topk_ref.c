/* topk_ref.c -- see topk.h: every logit in turn is inserted into the sorted list of the k largest so far. */
#include "ops/ops.h"

void HL_OP(topk)(struct hl_backend *backend, const struct hl_topk *a) {
    (void)backend;
    HL_ASSERT(a->k >= 1 && a->k <= a->V && a->k <= HL_TOPK_MOST);
    for (int64_t m = 0; m < a->M; m++) {
        const real *x = a->logits + m * a->V;
        struct hl_candidate *out = a->out + m * a->k;
        bool finite = true;
        int64_t n = 0;
        for (int64_t v = 0; v < a->V; v++) {
            finite = finite && isfinite(x[v]);
            int64_t at = n < a->k ? n++ : a->k;
            for (; at > 0 && x[v] > x[out[at - 1].id]; at--)
                if (at < a->k) out[at] = out[at - 1];
            if (at < a->k) out[at] = (struct hl_candidate){(float)x[v], (int32_t)v};
        }
        if (!finite) out[0] = (struct hl_candidate){0, -1};
    }
}
