/* weight.h -- one element of a stored weight in any layout and type; operands as products round them. For references. */
#ifndef HL_WEIGHT_H
#define HL_WEIGHT_H
#include "core/half.h"
#include "ops/linear/quant.h"

/* index of element (i, j) in data, in elements */
static inline int64_t hl_weight_index(const struct hl_weight *w, int64_t i, int64_t j) {
    return w->layout == HL_ROWS ? i * w->cols + j : (i / HL_PANEL * w->cols + j) * HL_PANEL + i % HL_PANEL;
}
static inline real hl_weight_at(const struct hl_weight *w, int64_t i, int64_t j) {
    if (w->layout == HL_PANELS && hl_is_quant(w->dtype)) return hl_quant_at(w->data, w->dtype, w->cols, i, j);
    const int64_t at = hl_weight_index(w, i, j);
    if (w->layout == HL_ROWS) return ((const real *)w->data)[at];
    if (w->dtype == HOLA_BF16) return hl_from_bf16(((const uint16_t *)w->data)[at]);
    if (w->dtype == HOLA_F16) return hl_from_f16(((const uint16_t *)w->data)[at]);
    return ((const float *)w->data)[at];
}
/* x as an operand of W's products: rounded if its precision is BF16 (bf16.h). */
static inline double hl_operand(const struct hl_weight *W, real x) {
    if (W->precision != HOLA_PRECISION_BF16 || (W->layout == HL_PANELS && hl_is_quant(W->dtype))) return (double)x;
    const float f = (float)x;
    return isnormal(f) || !isfinite(f) ? (double)hl_from_bf16(hl_to_bf16(f)) : 0;
}

#endif
