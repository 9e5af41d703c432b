/* bf16_cpu.c -- a block of a product with BF16 operands (bf16.h): rounds and packs them into pairs piece by piece, and
 * runs strips of A past panels of B, as linear_cpu.c does with floats. */
#include "ops/linear/bf16.h"
#ifndef HL_DOUBLE

enum {
    PAIRS = HL_BF16_KC / 2,
    GROUP = HL_STRIPS / HL_AS * HL_MR, /* rows of A packed at a time */
    SOME = 8,                          /* rows of B at a time: reads are nearly sequential */
    DIRECT = 2 * HL_MR                 /* up to this many rows, panels of BF16 are read in place */
};

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static const struct hl_bf16_dot *best(void) {
#ifdef __AVX512F__
    if (__builtin_cpu_supports("avx512bf16")) return &hl_avx512bf16_bf16_dot;
#endif
    return &HL_OP(bf16_dot);
}

/* A run of `rows` rows, numbers k..k+kc of each, `step` apart, as pairs with the rows side by side. */
static void turn(const struct hl_bf16_dot *dot, real *to, int64_t ts, const real *from, int64_t step, int64_t rows,
                 int64_t width, int64_t kc) {
    uint32_t pairs[HL_PANEL][PAIRS];
    const int64_t n = hl_pieces(kc, 2);
    _Static_assert((int)HL_MR <= (int)HL_PANEL && (int)PAIRS <= (int)HL_KC, "they fit");
    for (int64_t i = 0; i < rows; i++) {
        pairs[i][n - 1] = 0;
        dot->narrow((uint16_t *)pairs[i], from + i * step, kc);
    }
    HL_OP(pack_transpose)(to, ts, (const real *)pairs, PAIRS, rows, width, n);
}

struct panels { /* panel j at B + j * step bytes */
    const char *B;
    int64_t step;
    hola_dtype dtype;
};
static struct panels find_panels(const struct hl_bf16_block *b, const struct hl_bf16_dot *dot, int64_t k, int64_t kc,
                                 real *room) {
    const int64_t pairs = hl_pieces(kc, 2), size = b->dtype == HOLA_F32 ? 4 : 2;
    const struct panels p = {(const char *)room, pairs * HL_PANEL * (int64_t)sizeof(uint32_t), HOLA_F32};
    const int64_t panel = b->K * HL_PANEL * size; /* stored */
    const char *stored = (const char *)b->B + b->n0 / HL_PANEL * panel + k * HL_PANEL * size;
    if (b->form == HL_BF16_PANELS && b->dtype == HOLA_BF16 && b->m <= DIRECT)
        return (struct panels){stored, panel, HOLA_BF16};
    for (int64_t j = 0; j < b->n && b->form == HL_BF16_ROWS; j += HL_PANEL)
        turn(dot, room + j * pairs, HL_PANEL, (const real *)b->B + (b->n0 + j) * b->bs + k, b->bs,
             min64(b->n - j, HL_PANEL), HL_PANEL, kc);
    for (int64_t j = 0; j < b->n && b->form == HL_BF16_PANELS; j += HL_PANEL)
        dot->pair((uint32_t *)room + j * pairs, HL_PANEL, stored + j / HL_PANEL * panel, b->dtype, HL_PANEL, HL_PANEL,
                  HL_PANEL, kc);
    for (int64_t i = 0; i < kc && b->form == HL_BF16_COLUMNS; i += SOME)
        for (int64_t j = 0; j < b->n; j += HL_PANEL)
            dot->pair((uint32_t *)room + j * pairs + i / 2 * HL_PANEL, HL_PANEL,
                      (const real *)b->B + (k + i) * b->bs + b->n0 + j, HOLA_F32, b->bs, min64(b->n - j, HL_PANEL),
                      HL_PANEL, min64(kc - i, SOME));
    return p;
}

/* Numbers k..k+kc of m rows of A, as strips. */
static void pack_strips(real *strips, const struct hl_bf16_block *b, const struct hl_bf16_dot *dot, int64_t i0,
                        int64_t m, int64_t k, int64_t kc) {
    const real *A = b->A + i0 * b->ai + k * b->ak;
    const int64_t pairs = hl_pieces(kc, 2);
    if (b->ak == 1) {
        for (int64_t i = 0; i < m; i += HL_MR, strips += HL_AS * pairs)
            turn(dot, strips, HL_AS, A + i * b->ai, b->ai, min64(m - i, HL_MR), min64(m - i, HL_MR), kc);
        return;
    }
    uint32_t side_by_side[PAIRS][HL_STRIPS];
    dot->pair(side_by_side[0], HL_STRIPS, A, HOLA_F32, b->ak, m, HL_STRIPS, kc);
    HL_OP(pack_copy)(strips, HL_AS, (const real *)side_by_side, HL_STRIPS, m, HL_MR, pairs);
}

void HL_OP(bf16_block)(const struct hl_bf16_block *b, real *scratch) {
    const struct hl_bf16_dot *dot = best();
    real *strips = scratch + HL_BLOCK * HL_KC;
    struct hl_tile tile = {.as = HL_AS, .bs = HL_PANEL, .alpha = 1, .ldc = b->ldc, .add = b->add};
    for (int64_t k = 0; k < b->K; k += HL_BF16_KC, tile.add = true) {
        const int64_t kc = min64(b->K - k, HL_BF16_KC);
        const struct panels panels = find_panels(b, dot, k, kc, scratch);
        tile.kc = kc;
        tile.dtype = panels.dtype;
        for (int64_t i = 0; i < b->m; i += HL_MR) {
            if (i % GROUP == 0) pack_strips(strips, b, dot, i, min64(b->m - i, GROUP), k, kc);
            tile.mr = (int)min64(b->m - i, HL_MR);
            tile.A = strips + i % GROUP / HL_MR * HL_AS * hl_pieces(kc, 2);
            for (int64_t j = 0; j < b->n; j += HL_PANEL) {
                tile.B = panels.B + j / HL_PANEL * panels.step;
                tile.n = (int)min64(b->n - j, HL_PANEL);
                tile.C = b->C + i * b->ldc + j;
                dot->tile(&tile);
            }
        }
    }
}
#endif
