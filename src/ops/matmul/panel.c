/* panel.c -- weights as panels: 32 rows interleaved, in the dtype they are kept in. */
#include "ops/matmul/weight.h"
#include "ops/matmul/kernel.h"
#include "ops/matmul/matmul.h"

int64_t hl_linear_scratch(void) { return HL_BLOCK_SCRATCH * (int64_t)sizeof(real); }

int64_t hl_panel_bytes(int64_t rows, int64_t cols, hola_dtype dtype) {
    return hl_pieces(rows, HL_PANEL) * HL_PANEL * cols * (dtype == HOLA_F32 ? 4 : 2);
}

void hl_panel_pack(void *out, hola_dtype dtype, const real *rows_in, int64_t rows, int64_t cols) {
    for (int64_t p = 0; p < hl_pieces(rows, HL_PANEL); p++)
        for (int64_t j = 0; j < cols; j++)
            for (int64_t r = 0; r < HL_PANEL; r++) {
                int64_t i = p * HL_PANEL + r, at = (p * cols + j) * HL_PANEL + r;
                float x = i < rows ? (float)rows_in[i * cols + j] : 0;
                if (dtype == HOLA_F32) ((float *)out)[at] = x;
                else ((uint16_t *)out)[at] = dtype == HOLA_BF16 ? hl_to_bf16(x) : hl_to_f16(x);
            }
}
