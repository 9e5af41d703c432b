/* gsa_cpu.h -- shared by the chunked forms of gated slot attention: the read of the slots' keys for one chunk and query
 * head (docs/math.md, "GSA"). The read of their values is gla's (gla_cpu.h) with (q, k, v, g) = (p, s, v, f). */
#ifndef HL_GSA_CPU_H
#define HL_GSA_CPU_H
#include "ops/gla/gla_cpu.h"

static inline int64_t gsa_scratch_reals(int64_t K, int64_t V, int64_t M) {
    return gla_scratch_reals(M, V) + 2 * (K * M + 16) + 6 * HL_CHUNK * gdn_ld(M) + HL_CHUNK * gdn_ld(K) +
           2 * HL_CHUNK * HL_CHUNK;
}

struct gsa_slots {
    int64_t K, M;
    struct gla_rows k;
    real *s;     /* [C][ld]: 1 - exp(f) */
    real *z, *p; /* [C][ld]: logits, and their softmax */
    real *P;     /* [C][C]: q k^T, 0 above the diagonal */
    real *mm;
};

#ifdef HL_ISA
struct gsa_slots HL_OP(gsa_slots_carve)(int64_t K, int64_t M, real *mm, real **mem);
/* s of n rows */
void HL_OP(gsa_slots_load)(struct gsa_slots *w, int64_t n, int64_t ld, struct gla_rows f, struct gla_rows k);
/* P, z and p of one query head; decays: of the chunk's slots, Y being s. Kt NULL: the slots are still empty. */
void HL_OP(gsa_slots_read)(struct gsa_slots *w, const struct pair *decays, struct gla_rows q, const real *Kt);
void HL_OP(gsa_step)(struct hl_pool *pool, const struct hl_gsa *a);
/* s = 1 - exp(f), n of them; p = softmax of z */
void HL_OP(gsa_strengths)(real *s, const real *f, int64_t n);
void HL_OP(gsa_softmax)(real *p, const real *z, int64_t n);
#endif

#endif
