/* test_cache.c -- the exact memory: every backend against the reference and against its definition; one
 * sequence fed whole, in pieces, and token by token; ties, NaN, threads and neighbours in the batch. */
#include "cache_case.h"

static struct hl_backend *one, *three;

static const hola_evict kinds[] = {HOLA_EVICT_BETAE, HOLA_EVICT_E,         HOLA_EVICT_BETAV, HOLA_EVICT_RECENCY,
                                   HOLA_EVICT_H2O,   HOLA_EVICT_STREAMING, HOLA_EVICT_LOLA,  HOLA_EVICT_LTE};
enum { KINDS = sizeof kinds / sizeof *kinds };
static const double tol = 2e-5;

static struct batch *mixed(struct shape s, uint64_t seed) {
    const int64_t C = s.chunk, len[] = {3 * C + 7, 1, C - 1, C, C + 1};
    return batch_new(s, len, 5, seed);
}

/* Every backend on `got` against the reference on `want`, which hold the same inputs; frees both. */
static void compare(struct batch *got, struct batch *want, double allowed) {
    batch_run(want, "cpu-ref", one, true);
    for (int i = 0; check_backend(i); i++) {
        if (!hl_ops_named(check_backend(i))) continue;
        batch_clear(got);
        batch_run(got, check_backend(i), one, true);
        batch_near(got, want, allowed, true, check_backend(i));
    }
    batch_free(got);
    batch_free(want);
}
static void against_ref(struct shape s, uint64_t seed) { compare(mixed(s, seed), mixed(s, seed), tol); }

static void test_against_ref(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {0, 16}, {16, 4}, {5, 1}};
    static const int64_t kv[][2] = {{16, 16}, {24, 24}, {64, 64}, {128, 128}, {16, 32}};
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int e = 0; e < KINDS; e++)
            for (int d = 0; d < 5; d++)
                for (int64_t rep = 1; rep <= 2; rep++)
                    against_ref((struct shape){wc[i][0], wc[i][1], 2, 2 * rep, kv[d][0], kv[d][1], kinds[e]},
                                (uint64_t)(i * 1000 + e * 100 + d * 10) + (uint64_t)rep);
}

/* the paper's sizes; more columns than are brought together at once; blocks of several tiles */
static void test_large_blocks(void **state) {
    (void)state;
    for (int e = 0; e < KINDS; e++) against_ref((struct shape){64, 256, 1, 1, 16, 24, kinds[e]}, 40 + (uint64_t)e);
    against_ref((struct shape){64, 256, 1, 1, 128, 128, HOLA_EVICT_BETAE}, 50);
    against_ref((struct shape){600, 200, 1, 1, 16, 16, HOLA_EVICT_BETAE}, 51);
    against_ref((struct shape){70, 700, 1, 1, 16, 16, HOLA_EVICT_H2O}, 52);
    against_ref((struct shape){2, 4, 1, 1024, 2, 2, HOLA_EVICT_BETAE}, 53); /* as many value heads as configs allow */
    assert_true(hl_cache_scratch(512, 512, 4096, 4096) < 16 << 20);
}

/* A closed gate leaves out as it is, to the bit, and still has a gradient; sigma(gate) would be far away. */
static void test_linear_gate(void **state) {
    const struct shape s = {4, 16, 1, 3, 24, 16, HOLA_EVICT_BETAE};
    struct batch *b = with_linear_gate(mixed(s, 61), true), *other = mixed(s, 61);
    real *before = check_new(b->nv);
    (void)state;
    compare(with_linear_gate(mixed(s, 60), true), with_linear_gate(mixed(s, 60), true), tol);
    memcpy(other->gate, b->gate, (size_t)s.HV * sizeof(real));
    for (int i = -1; i < 0 || check_backend(i); i++) {
        const char *who = i < 0 ? "cpu-ref" : check_backend(i);
        if (!hl_ops_named(who)) continue;
        batch_clear(b), batch_clear(other);
        memcpy(before, b->out, (size_t)b->nv * sizeof(real));
        batch_run(b, who, one, true), batch_run(other, who, one, true);
        for (int64_t t = 0; t < b->T; t++)
            assert_memory_equal(b->out + t * s.HV * s.V, before + t * s.HV * s.V, (size_t)s.V * sizeof(real));
        assert_true(fabs((double)b->dgate[0]) > 1e-3);
        CHECK_FAR(b->out, other->out, b->T, s.HV * s.V, 1e-2);
        CHECK_FAR(b->dgate, other->dgate, 1, s.HV, 1e-2);
    }
    check_free(before, b->nv);
    batch_free(b), batch_free(other);
}

/* A gate of 0 for every token is the head's own, to the bit; others are not. */
static void test_token_gate(void **state) {
    static const hola_evict some[] = {HOLA_EVICT_BETAE, HOLA_EVICT_H2O, HOLA_EVICT_LTE};
    (void)state;
    for (int e = 0; e < 3; e++) {
        const struct shape s = {6, 16, 2, 4, 24, 16, some[e]};
        compare(with_token_gate(mixed(s, 62), 1), with_token_gate(mixed(s, 62), 1), tol);
        compare(with_linear_gate(with_token_gate(mixed(s, 63), 2), false),
                with_linear_gate(with_token_gate(mixed(s, 63), 2), false), tol);
    }
    const struct shape s = {6, 16, 2, 4, 24, 16, HOLA_EVICT_BETAE};
    struct batch *b = mixed(s, 64), *zero = with_token_gate(mixed(s, 64), 3);
    memset(zero->token, 0, (size_t)(zero->T * s.HV) * sizeof(real));
    for (int i = -1; i < 0 || check_backend(i); i++) {
        const char *who = i < 0 ? "cpu-ref" : check_backend(i);
        if (!hl_ops_named(who)) continue;
        batch_clear(b), batch_clear(zero);
        batch_run(b, who, one, true), batch_run(zero, who, one, true);
        assert_memory_equal(b->out, zero->out, (size_t)b->nv * sizeof(real));
        assert_memory_equal(b->dq, zero->dq, (size_t)b->nq * sizeof(real));
        assert_memory_equal(b->dgate, zero->dgate, (size_t)s.HV * sizeof(real));
    }
    batch_free(b), batch_free(zero);
}

/* ---- the definition, and wrong versions of it ---- */

static void test_definition(void **state) {
    const struct shape s = {4, 16, 1, 2, 24, 16, HOLA_EVICT_BETAE};
    struct batch *b = mixed(s, 7);
    real *want = check_new(b->nv), *dv = check_new(b->nv);
    (void)state;
    for (int64_t i = 0; i < b->T * s.HV; i++) b->score[i] = (real)(check_mix((uint64_t)i) % 6); /* many ties */
    for (int i = -1; i < 0 || check_backend(i); i++) {
        const char *who = i < 0 ? "cpu-ref" : check_backend(i);
        if (!hl_ops_named(who)) continue;
        for (int w = RIGHT; w <= DROPS_KEPT; w++) {
            batch_clear(b);
            memcpy(want, b->out, (size_t)b->nv * sizeof(real));
            memcpy(dv, b->dv, (size_t)b->nv * sizeof(real));
            plain_run(b, want, dv, (enum wrong)w);
            batch_run(b, who, one, true);
            if (w == RIGHT || w == DROPS_KEPT) CHECK_NEAR(b->out, want, b->T, s.HV * s.V, tol, "%s", who);
            else CHECK_FAR(b->out, want, b->T, s.HV * s.V, 1e-2);
            if (w == RIGHT) CHECK_NEAR(b->dv, dv, b->T, s.HV * s.V, tol, "%s", who);
            else CHECK_FAR(b->dv, dv, b->T, s.HV * s.V, 1e-2);
        }
    }
    check_free(want, b->nv);
    check_free(dv, b->nv);
    batch_free(b);
}

/* The batch against plain_run, which is wrong in one way or right. */
static void by_definition(struct batch *b, enum wrong wrong) {
    const struct shape *s = &b->s;
    real *want = check_new(b->nv), *dv = check_new(b->nv);
    for (int i = -1; i < 0 || check_backend(i); i++) {
        const char *who = i < 0 ? "cpu-ref" : check_backend(i);
        if (!hl_ops_named(who)) continue;
        batch_clear(b);
        memcpy(want, b->out, (size_t)b->nv * sizeof(real));
        memcpy(dv, b->dv, (size_t)b->nv * sizeof(real));
        plain_run(b, want, dv, wrong);
        batch_run(b, who, one, true);
        if (wrong == RIGHT) {
            CHECK_NEAR(b->out, want, b->T, s->HV * s->V, tol, "%s", who);
            CHECK_NEAR(b->dv, dv, b->T, s->HV * s->V, tol, "%s", who);
        } else {
            CHECK_FAR(b->out, want, b->T, s->HV * s->V, 1e-2);
            CHECK_FAR(b->dv, dv, b->T, s->HV * s->V, 1e-2);
        }
    }
    check_free(want, b->nv);
    check_free(dv, b->nv);
    batch_free(b);
}

/* rows measured against the state; a bias on the logits of kept rows; a gate per token; near-duplicates last, with fewer
 * kinds of keys than places and with more, and with equal scores */
static void test_variants(void **state) {
    static const struct {
        hola_evict evict;
        enum wrong wrong;
    } all[] = {{HOLA_EVICT_LOLA, RIGHT}, {HOLA_EVICT_LOLA, MEASURED_ONCE}, {HOLA_EVICT_LOLA, RAW_KEYS},
               {HOLA_EVICT_LTE, RIGHT},  {HOLA_EVICT_LTE, NO_BIAS},        {HOLA_EVICT_LTE, LATEST}};
    (void)state;
    const struct shape plain = {6, 16, 1, 2, 24, 16, HOLA_EVICT_BETAE};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        by_definition(mixed((struct shape){6, 16, 1, 2, 24, 16, all[n].evict}, 17), all[n].wrong);
    by_definition(with_token_gate(mixed(plain, 18), 4), RIGHT);
    by_definition(with_token_gate(mixed(plain, 18), 4), ONE_GATE);
    by_definition(with_redundancy(mixed(plain, 19), 4, 5), RIGHT);
    by_definition(with_redundancy(mixed(plain, 19), 4, 5), LEAVES_EMPTY);
    for (int ties = 0; ties < 2; ties++)
        for (enum wrong wrong = ONE_GATE; wrong <= BRINGS_BACK; wrong++) {
            const int64_t len[] = {200, 30}; /* long enough for rows to come back */
            struct batch *b = with_redundancy(batch_new(plain, len, 2, 20), 12, 6);
            for (int64_t i = 0; ties && i < b->T * plain.HV; i++) b->score[i] = (real)(check_mix((uint64_t)i) % 6);
            /* ties are won by the first rows, so that none of the others could come back */
            if (wrong == LEAVES_EMPTY || (ties && wrong == BRINGS_BACK)) batch_free(b);
            else by_definition(b, wrong == ONE_GATE ? RIGHT : wrong);
        }
}

/* scores that are equal, not numbers, infinite, negative zero */
static void test_odd_scores(void **state) {
    static const real odd[] = {0, -0.0f, NAN, INFINITY, -INFINITY, 1, 1, 0.5f, -1, -NAN};
    (void)state;
    for (int64_t n = 1; n <= 10; n += 3)
        for (int e = 0; e < 3; e++) {
            const struct shape s = {7, 12, 2, 2, 16, 16, kinds[e]};
            struct batch *want = mixed(s, 21), *got = mixed(s, 21);
            for (int64_t i = 0; i < want->T * s.HV; i++)
                want->score[i] = got->score[i] = odd[check_mix((uint64_t)(i + e)) % (uint64_t)n];
            compare(got, want, tol);
        }
}

/* ---- sessions ---- */

/* On every backend, a batch of one segment equals the same rows fed to a session; frees b. */
static void streams(struct batch *b, double allowed) {
    const struct shape *s = &b->s;
    real *out = check_new(b->nv);
    for (int i = -1; i < 0 || check_backend(i); i++) {
        const char *who = i < 0 ? "cpu-ref" : check_backend(i);
        static const struct {
            int64_t size;
            bool grows;
        } cut[] = {{1, false}, {7, false}, {17, false}, {2, true}, {1 << 20, false}};
        if (!hl_ops_named(who)) continue;
        batch_clear(b);
        memset(b->out, 0, (size_t)b->nv * sizeof(real));
        batch_run(b, who, one, false);
        for (int c = 0; c < 5; c++) {
            memset(out, 0, (size_t)b->nv * sizeof(real));
            batch_feed(b, who, one, cut[c].size, cut[c].grows, out);
            CHECK_NEAR(out, b->out, b->T, s->HV * s->V, allowed, "%s evict %d sinks %d w %d C %d in pieces of %d", who,
                       (int)s->evict, (int)b->a.policy.sinks, (int)s->window, (int)s->chunk, (int)cut[c].size);
        }
    }
    check_free(out, b->nv);
    batch_free(b);
}
static struct batch *single(struct shape s, int64_t T, uint64_t seed) { return batch_new(s, &T, 1, seed); }

static void test_streaming(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {0, 16}, {16, 4}, {5, 1}, {30, 16}};
    (void)state;
    for (int e = 0; e < KINDS; e++) {
        for (int i = 0; i < 5; i++)
            streams(
                single((struct shape){wc[i][0], wc[i][1], 1, 2, 24, 16, kinds[e]}, 9 * wc[i][1] + 5, 60 + (uint64_t)e),
                tol);
        streams(single((struct shape){64, 256, 1, 1, 16, 16, kinds[e]}, 4 * 256, 70 + (uint64_t)e), tol);
    }
    streams(single((struct shape){64, 256, 1, 1, 64, 128, HOLA_EVICT_BETAE}, 700, 80), tol);
}

static void test_redundancy(void **state) {
    static const hola_evict some[] = {HOLA_EVICT_BETAE, HOLA_EVICT_BETAV, HOLA_EVICT_H2O, HOLA_EVICT_LOLA,
                                      HOLA_EVICT_LTE};
    static const int64_t wc[][2] = {{4, 16}, {16, 4}, {5, 1}, {30, 16}, {0, 8}};
    (void)state;
    for (int e = 0; e < 5; e++)
        for (int i = 0; i < 5; i++)
            for (int64_t groups = 3; groups < 60; groups *= 4) {
                const struct shape s = {wc[i][0], wc[i][1], 1, 2, 24, 16, some[e]};
                compare(with_redundancy(mixed(s, 66), groups, 7), with_redundancy(mixed(s, 66), groups, 7), tol);
                streams(with_redundancy(single(s, 9 * s.chunk + 5, 67), groups, 8), tol);
            }
    const struct shape s = {64, 256, 1, 1, 128, 128, HOLA_EVICT_BETAE};
    compare(with_redundancy(mixed(s, 68), 40, 9), with_redundancy(mixed(s, 68), 40, 9), tol);
}

/* One set per layer: the heads keep the same rows, those that the definition ranks first. */
static void test_layer_set(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {16, 4}, {5, 1}, {30, 16}, {0, 8}};
    (void)state;
    for (int i = 0; i < 5; i++)
        for (int64_t group = 1; group <= 2; group++) {
            const uint64_t seed = (uint64_t)(10 * i + group);
            const struct shape s = {wc[i][0], wc[i][1], 2, 2 * group, 24, 16, HOLA_EVICT_BETAE};
            struct batch *b = with_layer_set(mixed(s, 71), seed);
            compare(with_token_gate(with_layer_set(mixed(s, 71), seed), 3),
                    with_token_gate(with_layer_set(mixed(s, 71), seed), 3), tol);
            streams(with_layer_set(single(s, 9 * s.chunk + 5, 72), seed), tol);
            batch_run(b, "cpu", one, false);
            for (int64_t j = 0; j < b->blocks * s.HV; j++)
                assert_memory_equal(b->sel + j * s.window, b->sel + j / s.HV * s.HV * s.window,
                                    (size_t)s.window * sizeof *b->sel);
            batch_free(b);
        }
    const struct shape s = {4, 16, 2, 4, 24, 16, HOLA_EVICT_BETAE}, large = {64, 256, 1, 4, 64, 64, HOLA_EVICT_BETAE};
    static const enum wrong versions[] = {RIGHT, SET_PER_HEAD, LARGEST_HEAD, LATER_TIES, LATEST};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
        by_definition(with_layer_set(mixed(s, 73), 1), versions[i]);
    compare(with_layer_set(mixed(large, 74), 2), with_layer_set(mixed(large, 74), 2), tol);
}

/* Order by position with a protected prefix, down to windows that hold nothing else. */
static void test_first_rows(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {16, 4}, {5, 1}, {9, 7}, {0, 8}, {30, 16}};
    (void)state;
    for (int i = 0; i < 6; i++) {
        const int64_t w = wc[i][0], C = wc[i][1], sinks[] = {0, 1, 4, w, w + 3};
        for (int n = 0; n < 5; n++) {
            const struct shape s = {w, C, 1, 2, 24, 16, HOLA_EVICT_RECENCY};
            compare(with_sinks(mixed(s, 90), sinks[n]), with_sinks(mixed(s, 90), sinks[n]), tol);
            streams(with_sinks(single(s, 9 * C + 5, 95), sinks[n]), tol);
            struct batch *b = with_sinks(single(s, 9 * C + 5, 100), sinks[n]);
            real *right = check_zero(b->nv), *forgets = check_zero(b->nv), *more = check_zero(b->nv);
            plain_run(b, right, NULL, RIGHT);
            plain_run(b, forgets, NULL, FORGETS_FIRST);
            plain_run(b, more, NULL, ONE_FIRST_MORE);
            for (int k = -1; k < 0 || check_backend(k); k++) {
                const char *who = k < 0 ? "cpu-ref" : check_backend(k);
                if (!hl_ops_named(who)) continue;
                memset(b->out, 0, (size_t)b->nv * sizeof(real));
                batch_run(b, who, one, false);
                CHECK_NEAR(b->out, right, b->T, s.HV * s.V, tol, "%s sinks %d", who, (int)sinks[n]);
                if (sinks[n] > 0 && w > 0) CHECK_FAR(b->out, forgets, b->T, s.HV * s.V, 1e-2);
                if (sinks[n] < w) CHECK_FAR(b->out, more, b->T, s.HV * s.V, 1e-2);
            }
            check_free(right, b->nv), check_free(forgets, b->nv), check_free(more, b->nv);
            batch_free(b);
        }
    }
}

/* logits far outside the range of exp, above and below a sink that is as far out */
static void test_large_logits(void **state) {
    static const real sink[] = {300, -300, 0, 100}, tau[] = {1, 60, -60, 30};
    const struct shape s = {6, 20, 2, 4, 24, 16, HOLA_EVICT_BETAE};
    struct batch *b[] = {mixed(s, 23), mixed(s, 23), single(s, 70, 24)};
    (void)state;
    for (int i = 0; i < 3; i++) {
        memcpy(b[i]->sink, sink, sizeof sink);
        memcpy(b[i]->tau, tau, sizeof tau);
    }
    compare(b[0], b[1], 1e-3); /* a logit of 300 is known to 2e-5 */
    streams(b[2], 1e-3);
}

/* ---- bits: threads, neighbours ---- */

static void same_bits(const real *x, const real *y, int64_t n) { assert_memory_equal(x, y, (size_t)n * sizeof(real)); }

static void test_bits(void **state) {
    (void)state;
    for (int e = 0; e < KINDS; e++)
        for (int i = 0; check_backend(i); i++) {
            const struct shape s = {9, 20, 2, 4, 24, 40, kinds[e]};
            const char *who = check_backend(i);
            if (!hl_ops_named(who)) continue;
            struct batch *x = mixed(s, 5), *y = mixed(s, 5), *alone = batch_new(s, &x->seg[4].len, 1, 6);
            batch_run(x, who, one, true);
            batch_run(y, who, three, true);
            same_bits(x->out, y->out, x->nv), same_bits(x->read, y->read, x->nv), same_bits(x->dv, y->dv, x->nv);
            same_bits(x->dq, y->dq, x->nq), same_bits(x->dk, y->dk, x->nq);
            same_bits(x->dtau, y->dtau, s.HV), same_bits(x->dsink, y->dsink, s.HV), same_bits(x->dgate, y->dgate, s.HV);
            /* the last segment by itself */
            int64_t at = x->seg[4].row, qk = at * s.H * s.K, vo = at * s.HV * s.V;
            memcpy(alone->q, x->q + qk, (size_t)alone->nq * sizeof(real));
            memcpy(alone->k, x->k + qk, (size_t)alone->nq * sizeof(real));
            memcpy(alone->v, x->v + vo, (size_t)alone->nv * sizeof(real));
            memcpy(alone->dout, x->dout + vo, (size_t)alone->nv * sizeof(real));
            memcpy(alone->score, x->score + at * s.HV, (size_t)(alone->T * s.HV) * sizeof(real));
            memcpy(alone->r, x->r + at * s.H, (size_t)(alone->T * s.H) * sizeof(real));
            memcpy(alone->weight, x->weight, (size_t)s.K * sizeof(real));
            if (alone->nS) memcpy(alone->S, x->S + x->nS - alone->nS, (size_t)alone->nS * sizeof(real));
            memcpy(alone->tau, x->tau, (size_t)s.HV * sizeof(real));
            memcpy(alone->sink, x->sink, (size_t)s.HV * sizeof(real));
            memcpy(alone->gate, x->gate, (size_t)s.HV * sizeof(real));
            batch_clear(y);
            memcpy(alone->out, y->out + vo, (size_t)alone->nv * sizeof(real));
            memcpy(alone->dv, y->dv + vo, (size_t)alone->nv * sizeof(real));
            batch_run(alone, who, three, true);
            same_bits(alone->out, x->out + vo, alone->nv), same_bits(alone->dv, x->dv + vo, alone->nv);
            same_bits(alone->dq, x->dq + qk, alone->nq), same_bits(alone->dk, x->dk + qk, alone->nq);
            batch_free(x), batch_free(y), batch_free(alone);
        }
}

/* The gradient of one long segment is divided by blocks where threads would be idle; the second shape in windows of two
 * blocks, for two threads. */
static void test_long_bits(void **state) {
    static const int threads[] = {2, 3, 7, 16};
    static const int64_t len[] = {410};
    (void)state;
    for (int i = 0; check_backend(i); i++)
        for (int k = 0; k < 4; k++) {
            const hola_evict evict = k < 2 ? HOLA_EVICT_LTE : k == 2 ? HOLA_EVICT_RECENCY : HOLA_EVICT_BETAE;
            const struct shape s =
                k % 2 ? (struct shape){200, 50, 1, 4, 64, 64, evict} : (struct shape){9, 20, 2, 4, 24, 40, evict};
            const char *who = check_backend(i);
            if (!hl_ops_named(who)) continue;
            struct batch *want = batch_new(s, len, 1, 5), *x = batch_new(s, len, 1, 5), *y = batch_new(s, len, 1, 5);
            batch_run(want, "cpu-ref", one, true);
            batch_run(x, who, one, true);
            for (int t = 0; t < 4; t++) {
                struct hl_backend *pool = check_backend_open(threads[t], 0);
                batch_clear(y);
                batch_run(y, who, pool, true);
                batch_near(y, want, tol, true, who);
                same_bits(x->dq, y->dq, x->nq), same_bits(x->dk, y->dk, x->nq), same_bits(x->dv, y->dv, x->nv);
                same_bits(x->dtau, y->dtau, s.HV), same_bits(x->dsink, y->dsink, s.HV);
                same_bits(x->dgate, y->dgate, s.HV);
                if (evict == HOLA_EVICT_LTE) same_bits(x->dscore, y->dscore, x->T * s.HV);
                y->dout[x->nv - 1] += 1; /* the last row changes what the first kept ones receive */
                batch_clear(y);
                batch_run(y, who, pool, true);
                y->dout[x->nv - 1] = x->dout[x->nv - 1];
                assert_memory_not_equal(x->dk, y->dk, (size_t)x->nq * sizeof(real));
                hl_backend_close(pool);
            }
            batch_free(want), batch_free(x), batch_free(y);
        }
}

/* Three sessions at different places, one token each, then a prompt piece beside single tokens: the bits
 * of every one are those it gets alone. */
static void test_session_bits(void **state) {
    (void)state;
    for (int e = 0; e < KINDS; e++)
        for (int i = 0; check_backend(i); i++) {
            const struct shape s = {6, 8, 1, 2, 24, 16, kinds[e]};
            const int64_t len[] = {30, 41, 24}, before[] = {7, 23, 16}, more[] = {1, 17, 1};
            const char *who = check_backend(i);
            const struct hl_ops *ops = hl_ops_named(who);
            if (!ops) continue;
            struct batch *b = batch_new(s, len, 3, 31);
            const int64_t S = batch_state_bytes(b, sizeof(real)), bytes = S + s.HV * s.K * s.V * (int64_t)sizeof(real);
            char *st = calloc(6, (size_t)bytes);
            real *out = check_new(b->nv);
            struct hl_seg g[3];
            assert_non_null(st);
            b->a.read = NULL, b->a.lse = NULL, b->a.sel = NULL;
            batch_clear(b);
            memcpy(out, b->out, (size_t)b->nv * sizeof(real));
            for (int alone = 0; alone < 2; alone++) {
                int64_t at[3] = {0}, step = 0;
                b->a.out = alone ? out : b->out;
                for (; step < 4; step++) {
                    for (int n = 0; n < 3; n++) {
                        int64_t add = step == 0 ? before[n] : step == 3 ? more[n] : 1;
                        if (at[n] + add > len[n]) add = len[n] - at[n];
                        g[n] = (struct hl_seg){b->seg[n].row + at[n], add, at[n], st + (3 * alone + n) * bytes};
                        at[n] += add;
                    }
                    forward_three(ops, b, g, S, alone ? one : three, alone);
                }
            }
            same_bits(out, b->out, b->nv);
            assert_memory_equal(st, st + 3 * bytes, (size_t)(3 * bytes));
            check_free(out, b->nv);
            free(st);
            batch_free(b);
        }
}

/* The scores of heads; with one set per layer their norm, which of one head are the same bits. */
static void test_score(void **state) {
    enum { T = 300, HV = 3, V = 24, N = T * HV };
    real *m = check_random(N, 0, 2, 1), *beta = check_random(N, 0.1, 1, 2), *v = check_random(N * V, -1, 1, 3);
    real *want = check_new(N), *got = check_new(N), *alone = check_new(N);
    (void)state;
    for (int e = 0; e < 6; e++) {
        struct hl_score a = {.T = T, .HV = HV, .V = V, .m = m, .beta = beta, .v = v};
        a.policy = policy_of(kinds[e % 3]);
        a.policy.layer_set = e >= 3;
        for (int64_t i = 0; i < N; i++) {
            double sum = 0;
            for (int64_t j = 0; j < V; j++) sum += (double)v[i * V + j] * (double)v[i * V + j];
            want[i] = e % 3 == 0 ? m[i] : e % 3 == 1 ? m[i] / beta[i] : (real)((double)beta[i] * sqrt(sum));
        }
        memcpy(alone, want, N * sizeof *want);
        for (int64_t t = 0; t < T && a.policy.layer_set; t++) {
            double sum = 0;
            for (int64_t h = 0; h < HV; h++) sum += (double)want[t * HV + h] * (double)want[t * HV + h];
            for (int64_t h = 0; h < HV; h++) want[t * HV + h] = (real)sqrt(sum);
        }
        for (int i = -1; i < 0 || check_backend(i); i++) {
            const char *who = i < 0 ? "cpu-ref" : check_backend(i);
            if (!hl_ops_named(who)) continue;
            a.score = got;
            check_poison(got, N);
            hl_ops_named(who)->cache_score(three, &a);
            CHECK_NEAR(got, want, T, HV, 1e-6, "%s", who);
            if (e > 0) CHECK_FAR(got, m, T, HV, 1e-2);
            if (!a.policy.layer_set) continue;
            CHECK_FAR(got, alone, T, HV, 1e-2);
            struct hl_score one_head = a;
            one_head.T = N, one_head.HV = 1;
            hl_ops_named(who)->cache_score(three, &one_head);
            one_head.policy.layer_set = false, one_head.score = alone;
            hl_ops_named(who)->cache_score(three, &one_head);
            same_bits(got, alone, N);
            const real was = m[5 * HV + 1]; /* NaN in one head of row 5 */
            m[5 * HV + 1] = NAN;
            if (e == 3) hl_ops_named(who)->cache_score(three, &a);
            for (int64_t j = 0; j < N && e == 3; j++) assert_true((got[j] != got[j]) == (j / HV == 5));
            m[5 * HV + 1] = was;
        }
    }
    check_free(m, N), check_free(beta, N), check_free(v, N * V), check_free(want, N), check_free(got, N);
    check_free(alone, N);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_ref),  cmocka_unit_test(test_large_blocks), cmocka_unit_test(test_definition),
        cmocka_unit_test(test_odd_scores),   cmocka_unit_test(test_streaming),    cmocka_unit_test(test_bits),
        cmocka_unit_test(test_long_bits),    cmocka_unit_test(test_session_bits), cmocka_unit_test(test_score),
        cmocka_unit_test(test_large_logits), cmocka_unit_test(test_first_rows),   cmocka_unit_test(test_variants),
        cmocka_unit_test(test_token_gate),   cmocka_unit_test(test_redundancy),   cmocka_unit_test(test_linear_gate),
        cmocka_unit_test(test_layer_set),
    };
    int failed;
    one = check_backend_open(1, hl_cache_scratch(128, 128, 600, 700));
    three = check_backend_open(3, hl_cache_scratch(128, 128, 600, 700));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    hl_backend_close(one);
    hl_backend_close(three);
    return failed;
}
