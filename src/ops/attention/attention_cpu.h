/* attention_cpu.h -- shared by the CPU files of attention: tile sizes, scratch memory, visible keys.
 *
 * Tiles of keys are aligned to absolute positions. The order of computation for a row (one query of one head) depends
 * only on its position: within a tile every product is one chain of multiply-adds, weights are summed lane by lane, and
 * tiles are combined with a running maximum. Keys that a row does not see have weight 0, which changes no bit of a sum.
 * So a row has the same bits in every batch, prompt piece and group of rows. */
#ifndef HL_ATTENTION_CPU_H
#define HL_ATTENTION_CPU_H
#include "ops/linear/small_gemm.h"

enum {
    ATTENTION_ROWS = 128, /* rows of a tile */
    ATTENTION_KEYS = 128  /* keys of a tile, which never crosses a page */
};

struct hl_attention_work {
    int64_t ldd, ldk;           /* leading dimensions for rows of D and of ATTENTION_KEYS */
    real *mm;                   /* scratch of small_gemm */
    real *q, *v, *O;            /* forward: [ROWS][ldd], [KEYS][ldd], [ROWS][ldd] */
    real *max, *sum;            /* [ROWS] */
    real *S, *dS;               /* [ROWS][ldk]; dS: backward */
    real *dout, *k;             /* backward: [ROWS][ldd], [KEYS][ldd] */
    real *qT, *doutT, *kT, *vT; /* backward: [D][ldk]; ROWS = KEYS */
    real *R;                    /* backward: [ROWS], dout . out */
    int64_t bytes;
};
struct hl_attention_work hl_attention_worker(struct hl_pool *pool, int worker, int64_t D);

/* The first key that a query at position t sees. */
static inline int64_t hl_attention_first(const struct hl_attention *a, int64_t t) {
    return a->window && t >= a->window ? t - a->window + 1 : 0;
}

#endif
