/* quant_blocks.c -- see quant_blocks.h. */
#include "model/quant_blocks.h"
#include "core/half.h"
#include "model/gguf_names.h"
#include <string.h>

/* INT8 for Q8_0, INT4 for Q4_0 */
static hola_dtype kind_of(const struct hl_st_tensor *t) {
    return !t->blocks ? HOLA_DTYPE_COUNT : !strcmp(t->stored, "Q8_0") ? HOLA_INT8 : HOLA_INT4;
}

static uint16_t scale_of(const char *block) {
    uint16_t d;
    memcpy(&d, block, 2);
    return d;
}
static int code_at(const char *block, hola_dtype kind, int64_t j) {
    if (kind == HOLA_INT8) return (signed char)block[2 + j];
    return ((unsigned char)block[2 + j % 16] >> j / 16 * 4 & 15) - 8;
}

void hl_blocks_read(const struct hl_st_tensor *t, int64_t first, int64_t n, real *out) {
    const hola_dtype kind = kind_of(t);
    for (int64_t i = first; i < first + n; i++) {
        const char *block = (const char *)t->data + i / HL_BLOCK * hl_block_bytes(kind);
        *out++ = (real)hl_from_f16(scale_of(block)) * (real)code_at(block, kind, i % HL_BLOCK);
    }
}

/* ---- as our codes ---- */

/* Whether a scale can be one of our BF16 scales. */
static bool usable(uint16_t d) {
    const float x = hl_from_f16(d);
    return x != 0 && x - x == 0 && hl_from_bf16(hl_to_bf16(x)) == x;
}

hola_dtype hl_blocks_type(const struct hl_st_tensor *t) {
    const hola_dtype kind = kind_of(t);
    if (kind == HOLA_DTYPE_COUNT || t->ndim != 2) return HOLA_DTYPE_COUNT;
    const int64_t row = t->dim[1] / HL_BLOCK, group = hl_group_size(kind) / HL_BLOCK;
    const char *block = t->data;
    for (int64_t i = 0; i < t->dim[0]; i++)
        for (int64_t b = 0; b < row; b++, block += hl_block_bytes(kind)) {
            const uint16_t d = scale_of(block);
            if (b % group ? d != scale_of(block - hl_block_bytes(kind)) : !usable(d)) return HOLA_DTYPE_COUNT;
            if (kind == HOLA_INT8 && memchr(block + 2, -128, HL_BLOCK)) return HOLA_DTYPE_COUNT;
        }
    return kind;
}

static void take_row(const char *from, hola_dtype kind, int64_t cols, uint8_t *code, uint16_t *scale) {
    const int64_t group = hl_group_size(kind);
    for (int64_t j = 0; j < cols; j++) {
        const char *block = from + j / HL_BLOCK * hl_block_bytes(kind);
        const int x = code_at(block, kind, j % HL_BLOCK);
        if (j % group == 0) scale[j / group] = hl_to_bf16(hl_from_f16(scale_of(block)));
        if (kind == HOLA_INT8) code[j] = (uint8_t)x;
        else if (j % 2 == 0) code[j / 2] = (uint8_t)(x + 8);
        else code[j / 2] |= (uint8_t)((x + 8) << 4);
    }
}

void hl_blocks_take(const struct hl_st_tensor *t, const struct hl_quant *c) {
    const int64_t bytes = c->cols / HL_BLOCK * hl_block_bytes(c->dtype);
    for (int64_t i = 0; i < c->rows; i++) {
        const int64_t at = t->heads ? hl_llama_row(i, c->rows / t->heads) : i;
        take_row((const char *)t->data + at * bytes, c->dtype, c->cols, c->code + i * hl_quant_row(c->dtype, c->cols),
                 c->scale + i * hl_quant_groups(c->dtype, c->cols));
    }
}

bool hl_blocks_write(const struct hl_quant *c, int64_t i, char *out) {
    const int64_t group = hl_group_size(c->dtype), row = hl_quant_row(c->dtype, c->cols);
    const int most = c->dtype == HOLA_INT8 ? 127 : 7, least = c->dtype == HOLA_INT8 ? -127 : -8;
    const uint16_t *scale = c->scale + i * hl_quant_groups(c->dtype, c->cols);
    const uint8_t *code = c->code + i * row;
    for (int64_t b = 0; b < c->cols / HL_BLOCK; b++, out += hl_block_bytes(c->dtype)) {
        const float ours = hl_from_bf16(scale[b * HL_BLOCK / group]);
        uint16_t d = hl_to_f16(ours);
        if (!(d & 0x7fff)) d |= 1; /* never a scale of 0 */
        if ((d & 0x7c00) == 0x7c00) return false;
        const float step = ours / hl_from_f16(d); /* 1 if F16 can represent it */
        memcpy(out, &d, 2);
        if (c->dtype == HOLA_INT4) memset(out + 2, 0, HL_BLOCK / 2);
        for (int64_t j = 0; j < HL_BLOCK; j++) {
            const int64_t k = b * HL_BLOCK + j;
            const int x = c->dtype == HOLA_INT8 ? (int8_t)code[k] : (code[k / 2] >> k % 2 * 4 & 15) - 8;
            const float wanted = rintf((float)x * step);
            const int fit = wanted > (float)most ? most : wanted < (float)least ? least : (int)wanted;
            if (c->dtype == HOLA_INT8) out[2 + j] = (char)fit;
            else out[2 + j % 16] = (char)((unsigned char)out[2 + j % 16] | (fit + 8) << j / 16 * 4);
        }
    }
    return true;
}
