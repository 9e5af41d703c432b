/* gla_step_cpu.c -- the recurrence for segments of a few tokens: a tile of 64 columns of a state is decayed, written
 * and read in one pass; further query heads of a group read it again from cache. */
#include "ops/gdn/gdn_step_cpu.h"
#include "ops/gla/gla_cpu.h"

enum { MOST_K = 512 };

/* S = diag(alpha) S + k v^T, and o = q^T S */
INLINE void write_and_read(int nv, struct columns c, const real *alpha, const real *k, const real *v, const real *q,
                           real *o) {
    vr rv[GROUP], sum[GROUP];
    for (int j = 0; j < nv; j++) {
        rv[j] = load(v + j * VL, j + 1 < nv ? VL : c.n);
        sum[j] = v_set(0);
    }
    for (int64_t i = 0; i < c.K; i++) {
        fetch(nv, c.next + i * c.ld, 0);
        fetch(nv, c.next + i * c.ld, 1);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            const int64_t lanes = j + 1 < nv ? VL : c.n;
            real *s = c.S + i * c.ld + j * VL;
            const vr x = alpha[i] * load(s, lanes) + k[i] * rv[j];
            store(s, x, lanes);
            sum[j] += q[i] * x;
        }
    }
    for (int j = 0; j < nv; j++) v_store(o + j * VL, sum[j]);
}
INLINE void read_only(struct columns c, const real *q, real *o) {
    vr sum = v_set(0);
    for (int64_t i = 0; i < c.K; i++) sum += q[i] * load(c.S + i * c.ld, c.n);
    v_store(o, sum);
}

static real step_tile(const void *op, real *S, const real *next, int64_t row, int64_t hk, int64_t col, int64_t cols) {
    const struct hl_gla *a = op;
    real o[GDN_TILE + VL], alpha[MOST_K]; /* VL: the last vector extends past the tile */
    const int64_t at = row * a->HK + hk, group = a->H / a->HK, K = a->K;
    const int64_t whole = cols - cols % (GROUP * VL); /* columns in whole groups of vectors */
    const struct columns c = {.S = S, .next = next, .ld = a->V, .K = K};
    const real *k = (const real *)a->k + at * K, *v = (const real *)a->v + at * a->V + col, *g = a->g + at * K;
    for (int64_t i = 0; i < K; i += VL) {
        const int64_t n = K - i < VL ? K - i : VL;
        put(alpha + i, v_exp(get(g + i, n)), n);
    }
    for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
        const real *q = (const real *)a->q + (row * a->H + h) * K;
        real *out = (real *)a->out + (row * a->H + h) * a->V + col;
        int64_t j = 0;
        if (h == hk * group) {
            for (; j < whole; j += GROUP * VL) write_and_read(GROUP, from(&c, j, VL), alpha, k, v + j, q, o + j);
            for (; j < cols; j += VL) write_and_read(1, from(&c, j, cols - j), alpha, k, v + j, q, o + j);
        } else
            for (; j < cols; j += VL) read_only(from(&c, j, cols - j), q, o + j);
        row_scale(out, o, a->scale, cols);
    }
    return 0;
}

void HL_OP(gla_step)(struct hl_pool *pool, const struct hl_gla *a) {
    const struct gdn_steps steps = {a, a->rows, a->HK, a->K, a->V, a->S_off, NULL, step_tile, NULL};
    HL_ASSERT(a->K <= MOST_K);
    HL_OP(gdn_steps)(pool, &steps);
}
