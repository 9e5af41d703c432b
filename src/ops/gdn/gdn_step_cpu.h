/* gdn_step_cpu.h -- a token on a tile of columns of a state [K][V], for gdn, kda and gla: the sums down the columns,
 * and the write. The next tile is prefetched in both passes, half in each, so that memory is never idle. */
#ifndef HL_GDN_STEP_CPU_H
#define HL_GDN_STEP_CPU_H
#include "ops/gdn/gdn_cpu.h"

enum { GROUP = 4 /* vectors of columns summed together: with k and q, 8 chains of multiply-adds */ };
#define INLINE static inline __attribute__((always_inline))

INLINE vr load(const real *p, int64_t n) { return n >= VL ? v_load(p) : v_load_n(p, n); }
INLINE void store(real *p, vr x, int64_t n) {
    if (n >= VL) v_store(p, x);
    else v_store_n(p, x, n);
}

/* prefetches every second cache line of nv vectors of a row */
INLINE void fetch(int nv, const real *row, int line) {
    for (int j = 64 * line; j < nv * HL_VBYTES; j += 128) __builtin_prefetch((const char *)row + j, 1, 2);
}

/* Columns of a state; next: prefetched meanwhile; n: lanes of the last vector. */
struct columns {
    real *S;
    const real *next;
    int64_t ld, K, n;
};
INLINE struct columns from(const struct columns *c, int64_t j, int64_t n) {
    return (struct columns){c->S + j, c->next + j, c->ld, c->K, n < VL ? n : VL};
}

/* ks = k^T S, qs = q^T S */
INLINE void read_columns(int nv, struct columns c, const real *k, const real *q, real *ks, real *qs) {
    vr sk[GROUP], sq[GROUP];
    for (int j = 0; j < nv; j++) sk[j] = sq[j] = v_set(0);
    for (int64_t i = 0; i < c.K; i++) {
        fetch(nv, c.next + i * c.ld, 0);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            vr s = load(c.S + i * c.ld + j * VL, j + 1 < nv ? VL : c.n);
            sk[j] += k[i] * s;
            sq[j] += q[i] * s;
        }
    }
    for (int j = 0; j < nv; j++) {
        v_store(ks + j * VL, sk[j]);
        v_store(qs + j * VL, sq[j]);
    }
}

/* S = alpha S + k r^T; alphas: one alpha per row instead */
INLINE void write_columns(int nv, struct columns c, const real *k, real alpha, const real *alphas, const real *r) {
    vr rv[GROUP];
    for (int j = 0; j < nv; j++) rv[j] = v_load(r + j * VL);
    for (int64_t i = 0; i < c.K; i++) {
        fetch(nv, c.next + i * c.ld, 1);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            int64_t lanes = j + 1 < nv ? VL : c.n;
            real *s = c.S + i * c.ld + j * VL;
            store(s, (alphas ? alphas[i] : alpha) * load(s, lanes) + k[i] * rv[j], lanes);
        }
    }
}

#endif
