/* gdn_case.h -- one batch for the delta rule with all its buffers; test_gdn.c (float) and
 * grad_gdn.c (double) compare the fast forms with the reference on the same cases. */
#ifndef HL_GDN_CASE_H
#define HL_GDN_CASE_H
#include "check.h"
#include "backend/backend.h"

enum { CASE_SEGS = 16 };
/* GATE_RESETS: random, but wiped by -60 in the first 20 of 64 tokens: decays near 1 beside sums near -1200 */
enum case_gate { GATE_RANDOM, GATE_RESETS, GATE_ZERO, GATE_NONE };

struct gdn_shape {
    int64_t H, HV, K, V;
    enum case_gate gate;
    double g_lo;       /* random: g ~ U(g_lo, 0) */
    double b_lo, b_hi; /* beta ~ U(b_lo, b_hi) */
};

struct gdn_case {
    struct hl_gdn a; /* out and everything after it belong to the run */
    struct hl_rows rows;
    struct hl_seg seg[CASE_SEGS];
    int64_t T, qk, v, b, S, chunks; /* reals of q, of v, of g, of one segment's state */
};

static inline struct gdn_case *case_new(const struct gdn_shape *f, const int64_t *len, int64_t n, uint64_t seed) {
    struct gdn_case *c = calloc(1, sizeof *c);
    assert_non_null(c);
    for (int64_t s = 0; s < n; s++) {
        c->seg[s] = (struct hl_seg){.row = c->T, .len = len[s]};
        c->T += len[s];
    }
    c->rows = (struct hl_rows){.T = c->T, .n = n, .seg = c->seg};
    c->qk = c->T * f->H * f->K;
    c->v = c->T * f->HV * f->V;
    c->b = c->T * f->HV;
    c->S = f->HV * f->K * f->V;
    c->chunks = hl_chunks_before(&c->rows, n);
    real *q = check_random(c->qk, -1, 1, seed), *k = check_random(c->qk, -1, 1, seed + 1);
    for (int64_t i = 0; i < c->qk; i += f->K) {
        double q2 = 1e-6, k2 = 1e-6;
        for (int64_t j = i; j < i + f->K; j++) q2 += (double)(q[j] * q[j]), k2 += (double)(k[j] * k[j]);
        for (int64_t j = i; j < i + f->K; j++) q[j] = (real)(q[j] / sqrt(q2)), k[j] = (real)(k[j] / sqrt(k2));
    }
    c->a = (struct hl_gdn){.rows = &c->rows, .H = f->H, .HV = f->HV, .K = f->K, .V = f->V, .q = q, .k = k};
    c->a.v = check_random(c->v, -1, 1, seed + 2);
    c->a.beta = check_random(c->b, f->b_lo, f->b_hi, seed + 3);
    real *g = f->gate == GATE_NONE   ? NULL
              : f->gate == GATE_ZERO ? check_zero(c->b)
                                     : check_random(c->b, f->g_lo, 0, seed + 4);
    for (int64_t i = 0; i < c->b && f->gate == GATE_RESETS; i++)
        if (i / f->HV % 64 < 20) g[i] = -60;
    c->a.g = g;
    c->a.dout = check_random(c->v, -1, 1, seed + 5);
    return c;
}

static inline void case_free(struct gdn_case *c) {
    check_free((real *)c->a.q, c->qk);
    check_free((real *)c->a.k, c->qk);
    check_free((real *)c->a.v, c->v);
    check_free((real *)c->a.beta, c->b);
    if (c->a.g) check_free((real *)c->a.g, c->b);
    check_free((real *)c->a.dout, c->v);
    free(c);
}

/* The results of one pass over a case. */
struct gdn_result {
    real *out, *m, *S; /* S: [segments][HV][K][V], states after a session's pass */
    real *h, *v_new, *A, *dq, *dk, *dv, *dg, *dbeta;
};

/* Every segment's state starts with the same numbers. */
static inline struct gdn_result result_new(const struct gdn_case *c) {
    struct gdn_result r = {.out = check_new(c->v),
                           .m = check_new(c->b),
                           .S = check_new(c->rows.n * c->S),
                           .h = check_new(c->chunks * c->S),
                           .v_new = check_new(c->v),
                           .A = check_new(c->b * HL_CHUNK),
                           .dq = check_new(c->qk),
                           .dk = check_new(c->qk),
                           .dv = check_new(c->v),
                           .dg = check_new(c->b),
                           .dbeta = check_new(c->b)};
    for (int64_t s = 0; s < c->rows.n; s++) check_fill(r.S + s * c->S, c->S, -0.1, 0.1, 99);
    return r;
}

static inline void result_free(const struct gdn_case *c, struct gdn_result *r) {
    check_free(r->out, c->v);
    check_free(r->m, c->b);
    check_free(r->S, c->rows.n * c->S);
    check_free(r->h, c->chunks * c->S);
    check_free(r->v_new, c->v);
    check_free(r->A, c->b * HL_CHUNK);
    check_free(r->dq, c->qk);
    check_free(r->dk, c->qk);
    check_free(r->dv, c->v);
    check_free(r->dg, c->b);
    check_free(r->dbeta, c->b);
}

/* A session's pass: states are read from r->S and written there. keep: as a training pass does. */
static inline void run_session(const struct hl_ops *ops, struct hl_backend *pool, const struct gdn_case *c,
                               struct gdn_result *r, bool keep) {
    struct hl_seg seg[CASE_SEGS];
    struct hl_rows rows = c->rows;
    struct hl_gdn a = c->a;
    for (int64_t s = 0; s < rows.n; s++) {
        seg[s] = c->seg[s];
        seg[s].state = (char *)(r->S + s * c->S - 8); /* S_off is not zero */
    }
    rows.seg = seg;
    a.rows = &rows;
    a.S_off = 8 * (int64_t)sizeof(real);
    a.out = r->out;
    a.m = r->m;
    if (keep) a.h = r->h, a.v_new = r->v_new, a.A = r->A;
    ops->gdn_forward(pool, &a);
}

/* A training pass: forward, or forward and backward. */
static inline void run_training(const struct hl_ops *ops, struct hl_backend *pool, const struct gdn_case *c,
                                struct gdn_result *r, bool backward) {
    struct hl_gdn a = c->a;
    a.out = r->out, a.m = r->m;
    a.h = r->h, a.v_new = r->v_new, a.A = r->A;
    ops->gdn_forward(pool, &a);
    if (!backward) return;
    a.dq = r->dq, a.dk = r->dk, a.dv = r->dv, a.dbeta = r->dbeta;
    a.dg = a.g ? r->dg : NULL;
    ops->gdn_backward(pool, &a);
}

#define SHAPE_FMT "H%d HV%d K%d V%d gate %d lo %g beta %g..%g"
#define SHAPE_ARG(f) \
    (int)(f)->H, (int)(f)->HV, (int)(f)->K, (int)(f)->V, (int)(f)->gate, (f)->g_lo, (f)->b_lo, (f)->b_hi

static inline void check_outputs(const struct gdn_case *c, const struct gdn_shape *f, const struct gdn_result *got,
                                 const struct gdn_result *want, double tol) {
    CHECK_NEAR(got->out, want->out, c->T, f->HV * f->V, tol, SHAPE_FMT, SHAPE_ARG(f));
    CHECK_NEAR(got->m, want->m, c->T, f->HV, tol, SHAPE_FMT, SHAPE_ARG(f));
}
static inline void check_gradients(const struct gdn_case *c, const struct gdn_shape *f, const struct gdn_result *got,
                                   const struct gdn_result *want, double tol) {
    CHECK_NEAR(got->dq, want->dq, c->T, f->H * f->K, tol, SHAPE_FMT, SHAPE_ARG(f));
    CHECK_NEAR(got->dk, want->dk, c->T, f->H * f->K, tol, SHAPE_FMT, SHAPE_ARG(f));
    CHECK_NEAR(got->dv, want->dv, c->T, f->HV * f->V, tol, SHAPE_FMT, SHAPE_ARG(f));
    CHECK_NEAR(got->dbeta, want->dbeta, c->T, f->HV, tol, SHAPE_FMT, SHAPE_ARG(f));
    if (f->gate != GATE_NONE) CHECK_NEAR(got->dg, want->dg, c->T, f->HV, tol, SHAPE_FMT, SHAPE_ARG(f));
}

/* Every fast backend against the reference: a training pass with gradients, a session's with states. */
static inline void compare_backends(struct hl_backend *pool, const struct gdn_shape *f, const int64_t *len, int64_t n,
                                    double tol, double grad_tol) {
    struct gdn_case *c = case_new(f, len, n, 7);
    struct gdn_result train = result_new(c), session = result_new(c);
    const struct hl_ops *ref = hl_ops_named("cpu-ref");
    run_training(ref, pool, c, &train, true);
    run_session(ref, pool, c, &session, false);
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        struct gdn_result got;
        if (!ops) continue;
        got = result_new(c);
        run_training(ops, pool, c, &got, true);
        check_outputs(c, f, &got, &train, tol);
        check_gradients(c, f, &got, &train, grad_tol);
        result_free(c, &got);
        for (int keep = 0; keep < 2; keep++) {
            got = result_new(c);
            run_session(ops, pool, c, &got, keep);
            check_outputs(c, f, &got, &session, tol);
            CHECK_NEAR(got.S, session.S, n * f->HV * f->K, f->V, tol, SHAPE_FMT, SHAPE_ARG(f));
            result_free(c, &got);
        }
    }
    result_free(c, &train);
    result_free(c, &session);
    case_free(c);
}

/* lengths around the tile, chunk and step borders, all in one batch */
static const int64_t case_lengths[] = {1, 2, 8, 9, 15, 16, 17, 63, 64, 65, 127, 200, 3 * 64 + 7};
/* a few of them for the big heads, where the reference is slow */
static const int64_t big_lengths[] = {1, 8, 17, 64, 64 + 7};
enum {
    CASE_LENGTHS = sizeof case_lengths / sizeof *case_lengths,
    BIG_LENGTHS = sizeof big_lengths / sizeof *big_lengths
};

static inline void compare_shapes(double tol, double grad_tol) {
    static const int64_t size[][2] = {{16, 16},   {24, 24}, {64, 64},  {128, 128},
                                      {256, 256}, {16, 32}, {64, 128}, {80, 100}};
    struct hl_backend *pool = check_backend_open(2, hl_gdn_scratch(256, 256));
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int64_t group = 1; group <= (size[i][0] < 256 ? 2 : 1); group++) {
            bool big = size[i][1] >= 100;
            int64_t H = size[i][0] < 64 ? 2 : 1;
            struct gdn_shape f = {H, H * group, size[i][0], size[i][1], GATE_RANDOM, -0.1, 0, 1};
            compare_backends(pool, &f, big ? big_lengths : case_lengths, big ? BIG_LENGTHS : CASE_LENGTHS, tol,
                             grad_tol);
        }
    hl_backend_close(pool);
}

static inline void compare_gates(double tol, double grad_tol) {
    static const struct {
        enum case_gate gate;
        double lo;
    } gates[] = {{GATE_RANDOM, -0.001}, {GATE_RANDOM, -0.1},  {GATE_RANDOM, -5}, {GATE_RANDOM, -60},
                 {GATE_RESETS, -0.01},  {GATE_RANDOM, -1e30}, {GATE_ZERO, 0},    {GATE_NONE, 0}};
    static const double beta[][2] = {{0, 1}, {0, 1e-4}, {0.999, 1}, {0, 2}};
    static const int64_t len[] = {150, 3, 65};
    struct hl_backend *pool = check_backend_open(2, hl_gdn_scratch(40, 40));
    for (size_t g = 0; g < sizeof gates / sizeof *gates; g++)
        for (size_t b = 0; b < sizeof beta / sizeof *beta; b++)
            for (int64_t d = 16; d <= 40; d += 24) {
                struct gdn_shape f = {1, 2, d, d, gates[g].gate, gates[g].lo, beta[b][0], beta[b][1]};
                compare_backends(pool, &f, len, 3, tol, grad_tol);
            }
    hl_backend_close(pool);
}

/* ---- the states after blocks (block_S) ---- */

/* Segments are taken as sessions at positions 0, 5, 10, ..., so that blocks begin before them. */
static inline void place_in_blocks(struct gdn_case *c) {
    for (int64_t s = 0; s < c->rows.n; s++) c->seg[s].pos = 5 * s;
}
static inline int64_t block_count(const struct gdn_case *c, int64_t block) {
    return hl_blocks_before(&c->rows, c->rows.n, block);
}
/* The same from the definition: a session's pass over every segment, cut at the ends of its blocks. NaN where block_S
 * is not defined. */
static inline void plain_block_states(const struct hl_ops *ops, struct hl_backend *pool, const struct gdn_case *c,
                                      int64_t block, const real *start, real *to) {
    struct gdn_result r = result_new(c);
    for (int64_t i = 0; i < block_count(c, block) * c->S; i++) to[i] = (real)NAN;
    for (int64_t s = 0; s < c->rows.n; s++) {
        const struct hl_seg *g = &c->seg[s];
        real *S = r.S + s * c->S;
        memcpy(S, start + s * c->S, (size_t)c->S * sizeof(real));
        for (int64_t t = 0, n; t < g->len; t += n) {
            n = block - (g->pos + t) % block;
            if (t + n >= g->len) break;
            struct hl_seg piece = {.row = g->row + t, .len = n, .pos = g->pos + t, .state = (char *)S};
            struct hl_rows rows = {.T = c->T, .n = 1, .seg = &piece};
            struct hl_gdn a = c->a;
            a.rows = &rows, a.out = r.out, a.m = r.m;
            ops->gdn_forward(pool, &a);
            const int64_t at = hl_blocks_before(&c->rows, s, block) + (g->pos + t) / block - g->pos / block;
            memcpy(to + at * c->S, S, (size_t)c->S * sizeof(real));
        }
    }
    result_free(c, &r);
}
/* Where `want` is defined, `got` is near it. */
static inline void check_block_states(const struct gdn_case *c, int64_t block, const real *got, const real *want,
                                      double tol, const char *who) {
    for (int64_t i = 0; i < block_count(c, block); i++)
        if (want[i * c->S] == want[i * c->S])
            CHECK_NEAR(got + i * c->S, want + i * c->S, c->a.HV * c->a.K, c->a.V, tol, "%s: state after block %d of %d",
                       who, (int)i, (int)block);
}

#endif
