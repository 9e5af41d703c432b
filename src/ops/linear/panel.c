/* panel.c -- weights as panels: 32 rows interleaved, in their stored dtype. */
#include "ops/linear/weight.h"
#include "ops/linear/kernel.h"
#include "ops/linear/linear.h"
#include <string.h>

int64_t hl_linear_scratch(void) { return HL_BLOCK_SCRATCH * (int64_t)sizeof(real); }

int64_t hl_panel_bytes(int64_t rows, int64_t cols, hola_dtype dtype) {
    const int64_t panels = hl_pieces(rows, HL_PANEL);
    if (hl_is_quant(dtype)) return panels * hl_quant_panel(dtype, cols);
    return panels * HL_PANEL * cols * (dtype == HOLA_F32 ? 4 : 2);
}

/* Group by group: quantised, then interleaved. */
static void pack_quant(char *to, hola_dtype dtype, const real *rows_in, int64_t rows, int64_t cols) {
    const int64_t G = hl_group_size(dtype);
    uint8_t code[HL_PANEL * HL_GROUP_MAX];
    uint16_t scale[HL_PANEL];
    real x[HL_PANEL * HL_GROUP_MAX];
    for (int64_t i = 0; i < rows; i += HL_PANEL)
        for (int64_t k = 0; k < cols; k += G) {
            struct hl_quant c = {.dtype = dtype, .code = code, .scale = scale};
            c.rows = rows - i < HL_PANEL ? rows - i : HL_PANEL;
            c.cols = cols - k < G ? cols - k : G;
            for (int64_t r = 0; r < c.rows; r++)
                memcpy(x + r * c.cols, rows_in + (i + r) * cols + k, (size_t)c.cols * sizeof(real));
            HL_ASSERT(hl_quant_make(&c, x));
            hl_quant_pack(to, &c);
            to += hl_quant_block(dtype, c.cols);
        }
}

void hl_panel_pack(void *out, hola_dtype dtype, const real *rows_in, int64_t rows, int64_t cols) {
    if (hl_is_quant(dtype)) {
        pack_quant(out, dtype, rows_in, rows, cols);
        return;
    }
    for (int64_t p = 0; p < hl_pieces(rows, HL_PANEL); p++)
        for (int64_t j = 0; j < cols; j++)
            for (int64_t r = 0; r < HL_PANEL; r++) {
                int64_t i = p * HL_PANEL + r, at = (p * cols + j) * HL_PANEL + r;
                float x = i < rows ? (float)rows_in[i * cols + j] : 0;
                if (dtype == HOLA_F32) ((float *)out)[at] = x;
                else ((uint16_t *)out)[at] = dtype == HOLA_BF16 ? hl_to_bf16(x) : hl_to_f16(x);
            }
}
