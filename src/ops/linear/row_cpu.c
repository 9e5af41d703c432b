/* row_cpu.c -- one row of x times several panels of floats at a time: decoding. A panel alone has too few sums to hide
 * the latency of a multiply-add. Every sum is the tile's (tile_cpu.c), number by number. */
#include "ops/linear/convert.h"
#include "ops/linear/kernel.h"
#include "ops/linear/unroll.h"

enum { NV = HL_PANEL / VL, AHEAD = 2048 /* bytes to prefetch, beyond the hardware prefetcher */ };

INLINE vr load(const char *p, int64_t at, hola_dtype dtype) {
    if (dtype == HOLA_BF16) return v_load_bf16((const uint16_t *)p + at);
    if (dtype == HOLA_F16) return v_load_f16((const uint16_t *)p + at);
    return v_load((const real *)p + at);
}

/* Numbers [k, end) of x; `ahead`: from a panel's column to what is prefetched meanwhile. */
INLINE void sum(const struct hl_one_row *r, const char *B, hola_dtype dtype, int64_t k, int64_t end, int64_t ahead,
                vr acc[HL_ROW_PANELS][NV]) {
    const int64_t column = HL_PANEL * (dtype == HOLA_F32 ? (int64_t)sizeof(real) : 2);
    for (; k < end; k++) {
        const vr x = v_set(r->x[k]);
        UNROLL
        for (int p = 0; p < HL_ROW_PANELS; p++) {
            const char *b = B + p * r->step + k * column;
            UNROLL
            for (int64_t line = 0; line < column; line += 64) __builtin_prefetch(b + ahead + line);
            UNROLL
            for (int v = 0; v < NV; v++) acc[p][v] += x * load(b, v * VL, dtype);
        }
    }
}

INLINE void row(const struct hl_one_row *r, hola_dtype dtype) {
    const int64_t size = dtype == HOLA_F32 ? (int64_t)sizeof(real) : 2, turn = r->K - AHEAD / (HL_PANEL * size);
    for (int64_t k = 0; k < r->K; k += HL_KC) {
        const int64_t end = k + HL_KC < r->K ? k + HL_KC : r->K, near = turn < k ? k : turn < end ? turn : end;
        vr acc[HL_ROW_PANELS][NV];
        UNROLL
        for (int p = 0; p < HL_ROW_PANELS; p++) {
            UNROLL
            for (int v = 0; v < NV; v++) acc[p][v] = (vr){0};
        }
        sum(r, r->B, dtype, k, near, AHEAD, acc);
        sum(r, r->B, dtype, near, end, AHEAD + (HL_ROW_PANELS - 1) * r->step, acc); /* of the next panels */
        UNROLL
        for (int p = 0; p < HL_ROW_PANELS; p++) {
            UNROLL
            for (int v = 0; v < NV; v++) {
                real *C = r->C + p * HL_PANEL + v * VL;
                v_store(C, (r->add || k > 0 ? v_load(C) : (vr){0}) + acc[p][v]);
            }
        }
    }
}

void HL_OP(one_row)(const struct hl_one_row *r) {
    if (r->dtype == HOLA_BF16) row(r, HOLA_BF16);
    else if (r->dtype == HOLA_F16) row(r, HOLA_F16);
    else row(r, HOLA_F32);
}
