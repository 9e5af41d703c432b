/* quant.h -- quantised matrices: w = scale * code, an integer code and one BF16 scale per group of a row's columns.
 *
 * INT8: code in -128..127, groups of 128 columns. INT4: code in -8..7, groups of 64. Row format (files): the codes of a
 * row, for INT4 two per byte (column 2j in the low half, stored as code + 8); scales are separate. Panel format
 * (products): 32 rows interleaved; for each group, first the 32 scales, then 32 x the group's columns, the last group
 * rounded up to 8 columns with codes of 0:
 *     INT8: [columns / 2][32 rows][2 columns] bytes
 *     INT4: [columns / 8][32 rows] words of 32 bits; columns 2i and 2i + 1 are the bits from 4i and from 16 + 4i
 * so that a shift and a mask, or a sign extension, yield pairs of 16-bit numbers for a dot product. */
#ifndef HL_OPS_QUANT_H
#define HL_OPS_QUANT_H
#include "core/rows.h"

enum { HL_GROUP_INT8 = 128, HL_GROUP_INT4 = 64, HL_GROUP_MAX = 128, HL_CODE_STEP = 8 };

static inline bool hl_is_quant(hola_dtype t) { return t == HOLA_INT8 || t == HOLA_INT4; }
static inline int64_t hl_group_size(hola_dtype t) { return t == HOLA_INT8 ? HL_GROUP_INT8 : HL_GROUP_INT4; }

struct hl_quant { /* rows */
    hola_dtype dtype;
    int64_t rows, cols;
    uint8_t *code;   /* [rows][hl_quant_row()] */
    uint16_t *scale; /* [rows][hl_quant_groups()] */
};
static inline int64_t hl_quant_groups(hola_dtype t, int64_t cols) { return hl_pieces(cols, hl_group_size(t)); }
static inline int64_t hl_quant_row(hola_dtype t, int64_t cols) { /* bytes */
    return t == HOLA_INT8 ? cols : hl_pieces(cols, 2);
}

/* Quantises rows of real into the preallocated c->code and c->scale; false: a number is not finite. */
bool hl_quant_make(const struct hl_quant *c, const real *rows_in);
void hl_quant_read(const struct hl_quant *c, real *rows_out);

/* panels */
static inline int64_t hl_quant_block(hola_dtype t, int64_t cols) { /* bytes of a group of this many columns */
    return HL_PANEL * 2 + hl_pieces(cols, HL_CODE_STEP) * HL_CODE_STEP * HL_PANEL / (t == HOLA_INT8 ? 1 : 2);
}
static inline int64_t hl_quant_panel(hola_dtype t, int64_t cols) {
    const int64_t G = hl_group_size(t), whole = cols / G;
    return whole * hl_quant_block(t, G) + (cols % G ? hl_quant_block(t, cols % G) : 0);
}
void hl_quant_pack(void *panels, const struct hl_quant *c);
/* one element, exactly */
real hl_quant_at(const void *panels, hola_dtype t, int64_t cols, int64_t i, int64_t j);

#endif
