/* quant.c -- quantises and dequantises weights, as rows and as panels. */
#include "ops/linear/quant.h"
#include "core/half.h"
#include <string.h>

/* ---- choosing scales and codes ---- */

static int clamp(float x, int low, int high) {
    const float r = rintf(x);
    return r < (float)low ? low : r > (float)high ? high : (int)r;
}

/* A group of zeros, or of numbers too small for a scale, gets codes of 0 and any nonzero scale. */
static uint16_t usable(float scale) {
    const uint16_t h = hl_to_bf16(scale);
    return (h & 0x7f80) == 0 || (h & 0x7f80) == 0x7f80 ? hl_to_bf16(1) : h;
}

static uint16_t make_int8(const float *x, int64_t n, float most, int8_t *code) {
    const uint16_t scale = usable(fabsf(most) / 127);
    const float inverse = 1 / hl_from_bf16(scale);
    for (int64_t i = 0; i < n; i++) code[i] = (int8_t)clamp(x[i] * inverse, -127, 127);
    return scale;
}

/* Codes for a given scale; also sum x code and sum code^2, which give the error and the best scale for these codes. */
static void round_int4(const float *x, int64_t n, float scale, int8_t *code, double *xc, double *cc) {
    const float inverse = 1 / scale;
    float sum_xc = 0, sum_cc = 0; /* two steps: works for any magnitude */
    for (int64_t i = 0; i < n; i++) {
        const float steps = x[i] * inverse;
        float r = rintf(steps);
        r = r < -8 ? -8 : r > 7 ? 7 : r;
        code[i] = (int8_t)r;
        sum_xc += steps * r;
        sum_cc += r * r;
    }
    *xc = (double)scale * (double)sum_xc;
    *cc = (double)sum_cc;
}

/* Tries mapping the number of largest magnitude to -8 (the scale may be negative), -7, 7, or clipping it slightly, and
 * takes the least squared error. For fixed codes, sum x code / sum code^2 is the best scale. */
static uint16_t make_int4(const float *x, int64_t n, float most, int8_t *code) {
    static const float at[] = {-8, -7, 7, -8.6f, -9.3f, -7.5f, 7.6f, 8.2f};
    uint16_t best = usable(0);
    double least = 0;
    memset(code, 0, (size_t)n);
    if (most == 0) return best;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        int8_t tried[HL_GROUP_INT4];
        double xc, cc;
        uint16_t scale = usable(most / at[i]);
        round_int4(x, n, hl_from_bf16(scale), tried, &xc, &cc);
        if (cc > 0) scale = usable((float)(xc / cc));
        const double s = (double)hl_from_bf16(scale), error = s * s * cc - 2 * s * xc; /* minus sum x^2 */
        if (error >= least) continue;
        least = error;
        best = scale;
        memcpy(code, tried, (size_t)n);
    }
    if (best & 0x8000 && !memchr(code, -8, (size_t)n)) { /* normalizes: one of two equivalent forms */
        for (int64_t i = 0; i < n; i++) code[i] = (int8_t)-code[i];
        best ^= 0x8000;
    }
    return best;
}

static bool make_row(const struct hl_quant *c, const real *x, uint8_t *out, uint16_t *scale) {
    const int64_t G = hl_group_size(c->dtype);
    int8_t code[HL_GROUP_MAX];
    float group[HL_GROUP_MAX];
    for (int64_t k = 0; k < c->cols; k += G) {
        const int64_t n = c->cols - k < G ? c->cols - k : G;
        float most = 0, bad = 0;
        for (int64_t i = 0; i < n; i++) {
            group[i] = (float)x[k + i];
            bad += group[i] - group[i]; /* NaN if it is not finite */
            if (fabsf(group[i]) > fabsf(most)) most = group[i];
        }
        if (bad != 0) return false;
        if (c->dtype == HOLA_INT8) {
            *scale++ = make_int8(group, n, most, (int8_t *)out + k);
            continue;
        }
        *scale++ = make_int4(group, n, most, code);
        if (n % 2) code[n] = 0;
        for (int64_t i = 0; i < n; i += 2) out[(k + i) / 2] = (uint8_t)((code[i] + 8) | (code[i + 1] + 8) << 4);
    }
    return true;
}

bool hl_quant_make(const struct hl_quant *c, const real *x) {
    const int64_t groups = hl_quant_groups(c->dtype, c->cols), bytes = hl_quant_row(c->dtype, c->cols);
    for (int64_t i = 0; i < c->rows; i++)
        if (!make_row(c, x + i * c->cols, c->code + i * bytes, c->scale + i * groups)) return false;
    return true;
}

/* ---- rows ---- */

static int code_at(const struct hl_quant *c, int64_t i, int64_t j) {
    const uint8_t *row = c->code + i * hl_quant_row(c->dtype, c->cols);
    return c->dtype == HOLA_INT8 ? (int8_t)row[j] : (row[j / 2] >> j % 2 * 4 & 15) - 8;
}

void hl_quant_read(const struct hl_quant *c, real *out) {
    const int64_t G = hl_group_size(c->dtype), groups = hl_quant_groups(c->dtype, c->cols);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < c->cols; j++)
            *out++ = (real)code_at(c, i, j) * (real)hl_from_bf16(c->scale[i * groups + j / G]);
}

/* ---- panels ---- */

/* Position of column j (of its group) of a lane in a group's block: the byte, and for INT4 the bit. */
static int64_t byte_of(hola_dtype t, int64_t lane, int64_t j) {
    const int64_t base = HL_PANEL * 2;
    if (t == HOLA_INT8) return base + (j / 2 * HL_PANEL + lane) * 2 + j % 2;
    return base + (j / 8 * HL_PANEL + lane) * 4 + j % 2 * 2 + j % 8 / 4;
}
static int bit_of(int64_t j) { return (int)(j % 4 / 2) * 4; }

static void pack_group(uint8_t *block, const struct hl_quant *c, int64_t row, int64_t g) {
    const int64_t G = hl_group_size(c->dtype), groups = hl_quant_groups(c->dtype, c->cols), k = g * G;
    const int64_t n = c->cols - k < G ? c->cols - k : G, padded = hl_pieces(n, HL_CODE_STEP) * HL_CODE_STEP;
    memset(block, 0, (size_t)hl_quant_block(c->dtype, n));
    for (int64_t lane = 0; lane < HL_PANEL; lane++) {
        const bool real_row = row + lane < c->rows;
        if (real_row) memcpy(block + lane * 2, &c->scale[(row + lane) * groups + g], 2);
        for (int64_t j = 0; j < padded; j++) {
            const int code = real_row && j < n ? code_at(c, row + lane, k + j) : 0;
            uint8_t *to = block + byte_of(c->dtype, lane, j);
            *to = (uint8_t)(c->dtype == HOLA_INT8 ? code : *to | (code + 8) << bit_of(j));
        }
    }
}

void hl_quant_pack(void *panels, const struct hl_quant *c) {
    uint8_t *to = panels;
    const int64_t G = hl_group_size(c->dtype);
    for (int64_t i = 0; i < c->rows; i += HL_PANEL)
        for (int64_t k = 0; k < c->cols; k += G) {
            pack_group(to, c, i, k / G);
            to += hl_quant_block(c->dtype, c->cols - k < G ? c->cols - k : G);
        }
}

real hl_quant_at(const void *panels, hola_dtype t, int64_t cols, int64_t i, int64_t j) {
    const int64_t G = hl_group_size(t), lane = i % HL_PANEL;
    const uint8_t *block =
        (const uint8_t *)panels + i / HL_PANEL * hl_quant_panel(t, cols) + j / G * hl_quant_block(t, G);
    const uint8_t byte = block[byte_of(t, lane, j % G)];
    uint16_t scale;
    memcpy(&scale, block + lane * 2, 2);
    const int code = t == HOLA_INT8 ? (int8_t)byte : (byte >> bit_of(j % G) & 15) - 8;
    return (real)code * (real)hl_from_bf16(scale);
}
