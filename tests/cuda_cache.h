/* cuda_cache.h -- shared by the tests of the exact memory on a device: a batch there, and timing. */
#ifndef HL_CUDA_CACHE_H
#define HL_CUDA_CACHE_H
#include "cache_case.h"
#include "cuda.h"

static struct hl_backend *host;

static const hola_evict kinds[] = {HOLA_EVICT_BETAE, HOLA_EVICT_E,    HOLA_EVICT_BETAV, HOLA_EVICT_RECENCY,
                                   HOLA_EVICT_H2O,   HOLA_EVICT_LOLA, HOLA_EVICT_LTE};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Same inputs on both sides. */
static inline struct batch *rounded(const struct dev *d, struct batch *b) {
    dev_round(d, b->q, b->nq), dev_round(d, b->k, b->nq);
    dev_round(d, b->v, b->nv), dev_round(d, b->dout, b->nv);
    dev_round(d, b->out, b->nv), dev_round(d, b->dv, b->nv);
    if (b->token) dev_round(d, b->token, b->T * b->s.HV);
    return b;
}
static inline struct batch *mixed(const struct dev *d, struct shape s, uint64_t seed) {
    const int64_t C = s.chunk, len[] = {3 * C + 7, 1, C - 1, C, C + 1};
    return rounded(d, batch_new(s, len, 5, seed));
}

/* The batch's arrays on the device; x.rows must still be given. */
static inline struct hl_cache upload(const struct dev *d, const struct batch *b) {
    const int64_t HV = b->s.HV, n = b->T * HV;
    struct hl_cache x = b->a;
    x.q = dev_act(d, b->q, b->nq), x.k = dev_act(d, b->k, b->nq), x.v = dev_act(d, b->v, b->nv);
    x.score = x.recall = dev_real(d, b->score, n);
    if (b->joined) { /* one set per layer: by the device's own op */
        real *joined = dev_real(d, NULL, n);
        const struct hl_score a = {
            .T = b->T, .HV = HV, .V = b->s.V, .policy = b->a.policy, .m = x.score, .score = joined};
        d->ops->cache_score(d->backend, &a);
        dev_drop(d, x.score);
        x.score = x.recall = joined;
    }
    x.dscore = dev_real(d, NULL, n);
    x.r_state = b->a.r_state ? dev_real(d, b->r, b->T * b->s.H) : NULL;
    x.k_weight = b->a.k_weight ? dev_real(d, b->weight, b->s.K) : NULL;
    x.block_S = b->nS ? dev_real(d, b->S, b->nS) : NULL;
    x.tau = dev_real(d, b->tau, HV), x.sink = dev_real(d, b->sink, HV), x.gate = dev_real(d, b->gate, HV);
    x.out = dev_act(d, b->out, b->nv), x.dout = dev_act(d, b->dout, b->nv), x.dv = dev_act(d, b->dv, b->nv);
    x.read = dev_act(d, NULL, b->nv), x.lse = dev_real(d, NULL, n);
    x.sel = dev_put(d, b->sel, b->ns * (int64_t)sizeof *b->sel);
    x.dq = dev_act(d, NULL, b->nq), x.dk = dev_act(d, NULL, b->nq);
    x.dtau = b->a.dtau ? dev_real(d, b->dtau, HV) : NULL, x.dsink = dev_real(d, b->dsink, HV),
    x.dgate = dev_real(d, b->dgate, HV);
    x.token_gate = b->token ? dev_act(d, b->token, n) : NULL, x.dtoken_gate = b->token ? dev_act(d, NULL, n) : NULL;
    return x;
}
static inline void drop(const struct dev *d, const struct hl_cache *x) {
    const void *all[] = {x->q,      x->k,       x->v,        x->score,   x->tau,        x->sink,
                         x->gate,   x->out,     x->dout,     x->dv,      x->read,       x->lse,
                         x->sel,    x->dq,      x->dk,       x->dtau,    x->dsink,      x->dgate,
                         x->dscore, x->r_state, x->k_weight, x->block_S, x->token_gate, x->dtoken_gate};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) dev_drop(d, all[i]);
}

static inline double tol_of(const struct dev *d) { return d->f32 ? 2e-5 : 6e-3; }

/* the reference, except where it would take too long */
static inline const char *judge(const struct batch *b) { return b->nv > 200000 ? "cpu" : "cpu-ref"; }

/* ---- speed ---- */

static int warm = 3, repeats = 20; /* 0 and 1 under a profiler */

static inline double milliseconds(const struct dev *d, const struct hl_cache *x,
                                  void (*op)(struct hl_backend *, const struct hl_cache *)) {
    for (int i = 0; i < warm; i++) op(d->backend, x);
    hl_cuda_timer_start(hl_cuda_of(d->backend));
    for (int i = 0; i < repeats; i++) op(d->backend, x);
    return 1e3 * hl_cuda_timer_stop(hl_cuda_of(d->backend)) / repeats;
}

#endif
