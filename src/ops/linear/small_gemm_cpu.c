/* small_gemm_cpu.c -- the small product: strips of A are packed (or read in place if already contiguous), panels of B
 * are read in place if their columns are contiguous. */
#include "ops/linear/kernel.h"

enum { STRIPS = 32 * 1024, PANELS = HL_SMALL_GEMM_SCRATCH - STRIPS }; /* reals of scratch for A and for B */

/* Rows [0, rows) and columns [0, n) of an operand, arranged so that k is the outer dimension. */
static void pack(real *dst, int64_t ds, const real *src, int64_t si, int64_t sk, int64_t rows, int64_t width,
                 int64_t n) {
    if (sk == 1) HL_OP(pack_transpose)(dst, ds, src, si, rows, width, n);
    else if (si == 1) HL_OP(pack_copy)(dst, ds, src, sk, rows, width, n);
    else
        for (int64_t k = 0; k < n; k++) {
            for (int64_t r = 0; r < rows; r++) dst[k * ds + r] = src[r * si + k * sk];
            for (int64_t r = rows; r < width; r++) dst[k * ds + r] = 0;
        }
}

/* One block: rows [0, m) of A, whose strips are packed here, times columns [0, n) of B. */
struct block {
    const struct hl_small_gemm *a;
    const real *A, *B; /* at the block's first element */
    real *C;
    int64_t m, n, kc;
    bool add;
};

static void run_block(const struct block *b, real *strips, real *panels) {
    const struct hl_small_gemm *a = b->a;
    bool A_lies = a->ai == 1 && HL_MR >= 12; /* a strip then uses most of each cache line */
    if (!A_lies)
        for (int64_t i = 0; i < b->m; i += HL_MR) {
            int64_t mr = b->m - i < HL_MR ? b->m - i : HL_MR;
            pack(strips + i / HL_MR * HL_AS * b->kc, HL_AS, b->A + i * a->ai, a->ai, a->ak, mr, mr, b->kc);
        }
    for (int64_t j = 0; j < b->n; j += HL_PANEL) {
        int64_t nr = b->n - j < HL_PANEL ? b->n - j : HL_PANEL;
        bool B_lies = a->bn == 1 && nr == HL_PANEL;
        struct hl_tile t = {.kc = b->kc, .ldc = a->ldc, .n = (int)nr, .alpha = a->alpha, .add = b->add};
        if (!B_lies) pack(panels, HL_PANEL, b->B + j * a->bn, a->bn, a->bk, nr, HL_PANEL, b->kc);
        t.B = B_lies ? b->B + j : panels;
        t.bs = B_lies ? a->bk : HL_PANEL;
        t.as = A_lies ? a->ak : HL_AS;
        for (int64_t i = 0; i < b->m; i += HL_MR) {
            t.mr = (int)(b->m - i < HL_MR ? b->m - i : HL_MR);
            t.A = A_lies ? b->A + i : strips + i / HL_MR * HL_AS * b->kc;
            t.C = b->C + i * a->ldc + j;
            HL_OP(tile)(&t);
        }
    }
}

void HL_OP(small_gemm)(const struct hl_small_gemm *a, real *scratch) {
    enum { MB = STRIPS / HL_KC / HL_AS * HL_MR }; /* rows of a block whose strips fit */
    _Static_assert(PANELS >= HL_PANEL * HL_KC, "a panel of B fits");
    if (a->K <= 0 && !a->add)
        for (int64_t i = 0; i < a->M; i++) memset(a->C + i * a->ldc, 0, (size_t)a->N * sizeof(real));
    for (int64_t k = 0; k < a->K; k += HL_KC)
        for (int64_t i = 0; i < a->M; i += MB) {
            struct block b = {.a = a, .n = a->N, .add = a->add || k > 0};
            b.kc = a->K - k < HL_KC ? a->K - k : HL_KC;
            b.m = a->M - i < MB ? a->M - i : MB;
            b.A = a->A + i * a->ai + k * a->ak;
            b.B = a->B + k * a->bk;
            b.C = a->C + i * a->ldc;
            run_block(&b, scratch, scratch + STRIPS);
        }
}
