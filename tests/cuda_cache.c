/* cuda_cache.c -- the exact memory on a device against the reference: odd shapes, tiles, ties, wrong
 * versions; and how long training's sizes take. */
#include "cuda_cache.h"

/* Forward and backward on the device, results into b. */
static void run(const struct dev *d, struct batch *b) {
    const int64_t HV = b->s.HV;
    struct hl_cache x = upload(d, b);
    struct hl_rows rows = b->rows;
    x.rows = &rows;
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, b->s.chunk));
    d->ops->cache_forward(d->backend, &x);
    d->ops->cache_backward(d->backend, &x);
    CHECK_OK(hl_finish(d->backend));
    hl_get(d->backend, b->sel, x.sel, b->ns * (int64_t)sizeof *b->sel);
    dev_act_take(d, x.out, b->out, b->nv), dev_act_take(d, x.read, b->read, b->nv);
    dev_real_take(d, x.lse, b->lse, b->T * HV);
    dev_act_take(d, x.dq, b->dq, b->nq), dev_act_take(d, x.dk, b->dk, b->nq), dev_act_take(d, x.dv, b->dv, b->nv);
    if (x.dtau) dev_real_take(d, x.dtau, b->dtau, HV);
    dev_real_take(d, x.dsink, b->dsink, HV), dev_real_take(d, x.dgate, b->dgate, HV);
    if (b->s.evict == HOLA_EVICT_LTE) {
        dev_real_take(d, x.dscore, b->dscore, b->T * HV);
        x.dscore = NULL;
    }
    if (b->token) dev_act_take(d, x.dtoken_gate, b->dtoken, b->T * HV);
    x.out = x.read = x.dq = x.dk = x.dv = x.dtoken_gate = NULL;
    x.lse = x.dtau = x.dsink = x.dgate = NULL;
    drop(d, &x);
}

static double worst[2]; /* of f32 and bf16, to be printed */

/* Out of `rows` rows; dk and dq in bf16 carry p and ds rounded as well. */
static void near(const struct dev *d, const struct batch *b, const struct batch *want, double tol) {
    const struct shape *s = &b->s;
    const struct {
        const char *name;
        const real *got, *want;
        int64_t rows, width;
        double by;
    } all[] = {{"out", b->out, want->out, b->T, s->HV * s->V, 1},  {"read", b->read, want->read, b->T, s->HV * s->V, 1},
               {"lse", b->lse, want->lse, b->T, s->HV, 1},         {"dq", b->dq, want->dq, b->T, s->H * s->K, 2},
               {"dk", b->dk, want->dk, b->T, s->H * s->K, 2},      {"dv", b->dv, want->dv, b->T, s->HV * s->V, 1},
               {"dtau", b->dtau, want->dtau, 1, s->HV, 20},        {"dsink", b->dsink, want->dsink, 1, s->HV, 10},
               {"dgate", b->dgate, want->dgate, 1, s->HV, 10},     {"dscore", b->dscore, want->dscore, b->T, s->HV, 2},
               {"dtoken", b->dtoken, want->dtoken, b->T, s->HV, 2}};
    assert_memory_equal(b->sel, want->sel, (size_t)b->ns * sizeof *b->sel);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i].got || (all[i].got == b->dscore && s->evict != HOLA_EVICT_LTE)) continue;
        const double e = check_distance(all[i].got, all[i].want, all[i].rows, all[i].width);
        if (!(e <= tol * all[i].by))
            fail_msg("%s: evict %d sinks %d w %d C %d heads %d/%d K %d V %d: %s is %.3g away", d->ops->name,
                     (int)s->evict, (int)b->a.policy.sinks, (int)s->window, (int)s->chunk, (int)s->H, (int)s->HV,
                     (int)s->K, (int)s->V, all[i].name, e);
        if (e / all[i].by > worst[d->f32 ? 0 : 1]) worst[d->f32 ? 0 : 1] = e / all[i].by;
    }
}
static void compare(const struct dev *d, struct batch *got, struct batch *want, double tol) {
    batch_run(want, judge(want), host, true);
    run(d, got);
    near(d, got, want, tol);
    batch_free(got);
    batch_free(want);
}
static void against_ref(const struct dev *d, struct shape s, uint64_t seed) {
    compare(d, mixed(d, s, seed), mixed(d, s, seed), tol_of(d));
}

/* every eviction, odd head sizes, no window, blocks of one row */
static void test_odd_shapes(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {0, 16}, {16, 4}, {5, 1}, {5, 7}};
    static const int64_t kv[][2] = {{24, 24}, {16, 32}, {80, 100}};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int i = 0; i < 5; i++)
            for (int e = 0; e < KINDS; e++) {
                const int64_t *k = kv[(i + e) % 3], group = 1 + (i + e) % 2;
                if ((dev_slow(&d) && (i + e + f) % 3) || (dev_least() && (i + e) % 4)) continue;
                against_ref(&d, (struct shape){wc[i][0], wc[i][1], 2, 2 * group, k[0], k[1], kinds[e]},
                            (uint64_t)(i * 100 + e * 10));
            }
        dev_close(&d);
    }
}

/* a gate that is a factor, and one that is closed: rows and tiles */
static void test_linear_gate(void **state) {
    static const struct shape all[] = {{5, 7, 2, 4, 24, 24, HOLA_EVICT_BETAE},
                                       {20, 70, 1, 2, 64, 64, HOLA_EVICT_BETAE},
                                       {4, 16, 1, 2, 16, 32, HOLA_EVICT_H2O},
                                       {64, 256, 2, 2, 128, 128, HOLA_EVICT_BETAE}};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            if (dev_slow(&d) && i == 3) continue;
            compare(&d, with_linear_gate(mixed(&d, all[i], 70 + i), true),
                    with_linear_gate(mixed(&d, all[i], 70 + i), true), tol_of(&d));
        }
        dev_close(&d);
    }
}

/* A gate per token; keys with near-duplicates: rows, tiles and every kernel that selects. And versions that are wrong in
 * what they alone have. */
static void test_variants(void **state) {
    static const struct {
        struct shape s;
        bool big;
    } all[] = {{{5, 7, 2, 4, 24, 24, HOLA_EVICT_BETAE}, false},     {{20, 70, 1, 1, 64, 64, HOLA_EVICT_BETAE}, false},
               {{8, 40, 1, 2, 64, 64, HOLA_EVICT_BETAE}, false},    {{4, 16, 1, 2, 16, 32, HOLA_EVICT_H2O}, false},
               {{6, 20, 1, 2, 64, 64, HOLA_EVICT_LOLA}, false},     {{6, 20, 1, 2, 64, 64, HOLA_EVICT_LTE}, false},
               {{64, 256, 2, 2, 128, 128, HOLA_EVICT_BETAE}, true}, {{64, 256, 1, 1, 256, 256, HOLA_EVICT_BETAE}, true},
               {{64, 256, 1, 2, 128, 128, HOLA_EVICT_LTE}, true}};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            const struct shape s = all[i].s;
            if (dev_slow(&d) && (all[i].big || (dev_least() && (i + (size_t)f) % 3))) continue;
            struct batch *x[6];
            for (int j = 0; j < 6; j++) {
                x[j] = mixed(&d, s, 90 + i);
                if (j / 2 != 1) with_token_gate(x[j], 3);
                if (j / 2 > 0) with_redundancy(x[j], s.window + 3, 4);
                rounded(&d, x[j]);
            }
            for (int j = 0; j < 6; j += 2) compare(&d, x[j], x[j + 1], tol_of(&d));
        }
        const struct shape s = {6, 16, 1, 2, f ? 24 : 64, f ? 16 : 64, HOLA_EVICT_BETAE};
        for (enum wrong wrong = ONE_GATE; wrong <= BRINGS_BACK; wrong++)
            for (int right = 0; right < 2; right++) {
                const int64_t len[] = {200, 30};
                struct batch *b = rounded(&d, batch_new(s, len, 2, 17));
                if (wrong == ONE_GATE) with_token_gate(b, 5);
                else with_redundancy(b, wrong == LEAVES_EMPTY ? 4 : 12, 6);
                rounded(&d, b);
                real *want = check_new(b->nv);
                memcpy(want, b->out, (size_t)b->nv * sizeof(real));
                plain_run(b, want, NULL, right ? RIGHT : wrong);
                run(&d, b);
                if (right) CHECK_NEAR(b->out, want, b->T, s.HV * s.V, tol_of(&d), "%s", d.ops->name);
                else CHECK_FAR(b->out, want, b->T, s.HV * s.V, 1e-2);
                check_free(want, b->nv);
                batch_free(b);
            }
        dev_close(&d);
    }
}

/* One set per layer: rows, tiles and every kernel that selects. And versions that are wrong. */
static void test_layer_set(void **state) {
    static const struct shape all[] = {{5, 7, 2, 4, 24, 24, HOLA_EVICT_BETAE},
                                       {20, 70, 1, 2, 64, 64, HOLA_EVICT_BETAE},
                                       {4, 16, 1, 4, 16, 32, HOLA_EVICT_BETAE},
                                       {64, 256, 4, 4, 128, 128, HOLA_EVICT_BETAE}};
    static const enum wrong versions[] = {RIGHT, SET_PER_HEAD, LARGEST_HEAD};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (!dev_slow(&d) || i + (size_t)f < (dev_least() ? 1 : 3))
                compare(&d, with_layer_set(mixed(&d, all[i], 110 + i), i),
                        with_layer_set(mixed(&d, all[i], 110 + i), i), tol_of(&d));
        for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
            for (int64_t len = 60; len <= 300; len += 240) { /* selected by each block, or by a walk over many */
                const struct shape s = {6, 16, 1, 2, f ? 24 : 64, f ? 16 : 64, HOLA_EVICT_BETAE};
                if (dev_slow(&d) && len == 300 && (f || i)) continue;
                struct batch *b = with_layer_set(rounded(&d, batch_new(s, &len, 1, 18)), 3);
                real *want = check_new(b->nv);
                memcpy(want, b->out, (size_t)b->nv * sizeof(real));
                plain_run(b, want, NULL, versions[i]);
                run(&d, b);
                if (versions[i] == RIGHT) CHECK_NEAR(b->out, want, b->T, s.HV * s.V, tol_of(&d), "%s", d.ops->name);
                else CHECK_FAR(b->out, want, b->T, s.HV * s.V, 1e-2);
                check_free(want, b->nv);
                batch_free(b);
            }
        dev_close(&d);
    }
}

/* the tiles of the tensor cores: windows and blocks around 32, 64 and 128 */
static void test_tiles(void **state) {
    static const struct {
        int64_t window, chunk, group, K;
        bool big;
    } all[] = {{20, 70, 1, 64, false},  {40, 33, 2, 64, false},  {64, 128, 1, 64, false}, {0, 65, 1, 128, false},
               {33, 40, 1, 128, false}, {3, 20, 2, 256, false},  {64, 256, 1, 64, true},  {64, 256, 1, 128, true},
               {64, 256, 2, 128, true}, {64, 256, 1, 256, true}, {70, 200, 2, 256, true}, {100, 130, 1, 256, true},
               {65, 63, 2, 64, true},   {1, 1, 4, 64, true},     {64, 129, 4, 128, true}};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            if (!dev_slow(&d) || (!all[i].big && !f))
                against_ref(
                    &d,
                    (struct shape){all[i].window, all[i].chunk, 1, all[i].group, all[i].K, all[i].K, kinds[i % KINDS]},
                    500 + i);
        dev_close(&d);
    }
}

/* Blocks of four tiles of queries, with and without kept rows, and a short one, in every size that tensor cores take:
 * the backward pass has heads of 256 in two parts, the second of which adds to what the first left. */
static void test_whole_blocks(void **state) {
    static const int64_t sizes[] = {64, 128, 256}, len[] = {456, 40};
    (void)state;
    struct dev d = dev_open(false);
    for (int i = 0; i < 3; i++) {
        const struct shape s = {64, 256, 3, 3, sizes[i], sizes[i], HOLA_EVICT_BETAE};
        compare(&d, rounded(&d, batch_new(s, len, 2, 60)), rounded(&d, batch_new(s, len, 2, 60)), tol_of(&d));
    }
    dev_close(&d);
}

/* Rows measured against the state, and learned scores, in the sizes of the presets and in one odd one; and versions that
 * are wrong in what they alone have. */
static void test_measured_and_learned(void **state) {
    static const int64_t sizes[] = {64, 128, 256};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int e = 0; e < 2; e++) {
            const hola_evict evict = e ? HOLA_EVICT_LTE : HOLA_EVICT_LOLA;
            for (int i = 0; i < 3; i++) {
                const struct shape s = {40, dev_slow(&d) ? 48 : 256, 1 + (i > 0), 2, sizes[i], sizes[i], evict};
                const int64_t len[] = {3 * s.chunk + 5, s.chunk};
                if (dev_slow(&d) && (f || (dev_least() && i))) continue;
                compare(&d, rounded(&d, batch_new(s, len, 2, 70)), rounded(&d, batch_new(s, len, 2, 70)), tol_of(&d));
            }
            const struct shape s = {6, 16, 1, 2, f ? 24 : 64, f ? 16 : 64, evict};
            for (int w = 0; w < 2; w++) {
                const enum wrong wrong = !w ? RIGHT : e ? NO_BIAS : MEASURED_ONCE;
                struct batch *b = mixed(&d, s, 17);
                real *want = check_new(b->nv);
                memcpy(want, b->out, (size_t)b->nv * sizeof(real));
                plain_run(b, want, NULL, wrong);
                run(&d, b);
                if (wrong == RIGHT) CHECK_NEAR(b->out, want, b->T, s.HV * s.V, tol_of(&d), "%s", d.ops->name);
                else CHECK_FAR(b->out, want, b->T, s.HV * s.V, 1e-2);
                check_free(want, b->nv);
                batch_free(b);
            }
        }
        dev_close(&d);
    }
}

/* a sequence of many blocks, whose selection is made in groups of them */
static void test_long(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {20, 8}, {7, 3}};
    (void)state;
    struct dev d = dev_open(false);
    for (int i = 0; i < 3; i++)
        for (int e = 0; e < 4; e++) {
            const int64_t C = wc[i][1], len[] = {(e == 0 ? 70 : 19) * C + 5, 2 * C};
            const struct shape s = {wc[i][0], C, 1, 2, 64, 64, kinds[e]};
            if ((dev_slow(&d) && (i + e) % 3) || (dev_least() && i + e)) continue;
            struct batch *got = rounded(&d, batch_new(s, len, 2, 40 + (uint64_t)e)),
                         *want = rounded(&d, batch_new(s, len, 2, 40 + (uint64_t)e));
            for (int64_t j = 0; j < got->T * s.HV; j++) /* ties, among them between groups */
                got->score[j] = want->score[j] = (real)(check_mix((uint64_t)j) % 50);
            compare(&d, got, want, tol_of(&d));
        }
    dev_close(&d);
}

/* Order by position with a protected prefix: every kernel that selects, and prefixes of several groups of blocks. */
static void test_first_rows(void **state) {
    static const int64_t wc[][3] = {{4, 16, 3}, {20, 3, 70}, {7, 5, 19}, {9, 8, 40}}; /* window, block, blocks */
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int i = 0; i < 4; i++) {
            const int64_t w = wc[i][0], C = wc[i][1], len[] = {wc[i][2] * C + 2, C + 1}, sinks[] = {0, 1, 4, w, w + 3};
            for (int n = 0; n < 5; n++) {
                const struct shape s = {w, C, 1, 2, f ? 24 : 64, f ? 16 : 64, HOLA_EVICT_RECENCY};
                if (dev_slow(&d) && (f ? (i + n) % 4 : (i * 2 + n) % (dev_least() ? 10 : 3))) continue;
                struct batch *got = with_sinks(rounded(&d, batch_new(s, len, 2, 80)), sinks[n]),
                             *want = with_sinks(rounded(&d, batch_new(s, len, 2, 80)), sinks[n]),
                             *wrong =
                                 with_sinks(rounded(&d, batch_new(s, len, 2, 80)), sinks[n] < w ? sinks[n] + 1 : 0);
                batch_run(want, judge(want), host, true);
                batch_run(wrong, judge(wrong), host, false);
                run(&d, got);
                assert_memory_equal(got->sel, want->sel, (size_t)got->ns * sizeof *got->sel);
                CHECK_NEAR(got->out, want->out, got->T, s.HV * s.V, tol_of(&d), "sinks %d", (int)sinks[n]);
                CHECK_NEAR(got->dv, want->dv, got->T, s.HV * s.V, tol_of(&d), "sinks %d", (int)sinks[n]);
                CHECK_FAR(got->out, wrong->out, got->T, s.HV * s.V, 2 * tol_of(&d));
                batch_free(got), batch_free(want), batch_free(wrong);
            }
        }
        dev_close(&d);
    }
}

/* ---- the definition, and wrong versions of it ---- */

static void test_definition(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int usual = dev_least(); usual < 2; usual++) {
            const struct shape s = {6, 16, 1, 2, usual ? 64 : 24, usual ? 64 : 16, HOLA_EVICT_BETAE};
            struct batch *b = mixed(&d, s, 7);
            real *want = check_new(b->nv), *dv = check_new(b->nv), *out0 = check_new(b->nv), *dv0 = check_new(b->nv);
            const size_t size = (size_t)b->nv * sizeof(real);
            const double tol = tol_of(&d);
            for (int64_t i = 0; i < b->T * s.HV; i++) b->score[i] = (real)(check_mix((uint64_t)i) % 6); /* many ties */
            memcpy(out0, b->out, size), memcpy(dv0, b->dv, size);
            run(&d, b);
            for (int w = RIGHT; w <= DROPS_KEPT; w++) {
                memcpy(want, out0, size), memcpy(dv, dv0, size);
                plain_run(b, want, dv, (enum wrong)w);
                if (w == RIGHT || w == DROPS_KEPT) CHECK_NEAR(b->out, want, b->T, s.HV * s.V, tol, "%d", f);
                else CHECK_FAR(b->out, want, b->T, s.HV * s.V, 2 * tol);
                if (w == RIGHT) CHECK_NEAR(b->dv, dv, b->T, s.HV * s.V, tol, "%d", f);
                else CHECK_FAR(b->dv, dv, b->T, s.HV * s.V, 2 * tol);
            }
            check_free(out0, b->nv), check_free(dv0, b->nv);
            check_free(want, b->nv), check_free(dv, b->nv);
            batch_free(b);
        }
        dev_close(&d);
    }
}

/* scores that are equal, not numbers, infinite, negative zero */
static void test_odd_scores(void **state) {
    static const real odd[] = {0, -0.0f, NAN, INFINITY, -INFINITY, 1, 1, 0.5f, -1, -NAN};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int64_t n = 1; n <= 10; n += 3) {
            const struct shape s = {7, 12, 1, 2, f ? 24 : 64, f ? 16 : 64, HOLA_EVICT_BETAE};
            struct batch *want = mixed(&d, s, 21), *got = mixed(&d, s, 21);
            for (int64_t i = 0; i < want->T * s.HV; i++)
                want->score[i] = got->score[i] = odd[check_mix((uint64_t)i) % (uint64_t)n];
            compare(&d, got, want, tol_of(&d));
            if (dev_slow(&d)) n += dev_least() ? 9 : 3;
        }
        dev_close(&d);
    }
}

/* logits far outside the range of exp, above and below a sink that is as far out */
static void test_large_logits(void **state) {
    static const real sink[] = {300, -300, 0, 100}, tau[] = {1, 30, -30, 20};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        const struct shape s = {6, 20, 2, 4, f ? 24 : 64, f ? 16 : 64, HOLA_EVICT_BETAE};
        struct batch *got = mixed(&d, s, 23), *want = mixed(&d, s, 23);
        for (int i = 0; i < 4; i++) {
            got->sink[i] = want->sink[i] = sink[i];
            got->tau[i] = want->tau[i] = tau[i];
        }
        compare(&d, got, want, f ? 1e-3 : 3e-2);
        dev_close(&d);
    }
}

/* ---- bits ---- */

static void test_bits(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        const struct shape s = {9, 40, 1, 2, f ? 24 : 64, f ? 16 : 64, HOLA_EVICT_BETAE};
        struct batch *x = mixed(&d, s, 5), *y = mixed(&d, s, 5), *frozen = mixed(&d, s, 5);
        run(&d, x), run(&d, y);
        assert_memory_equal(x->out, y->out, (size_t)x->nv * sizeof(real));
        assert_memory_equal(x->dq, y->dq, (size_t)x->nq * sizeof(real));
        assert_memory_equal(x->dk, y->dk, (size_t)x->nq * sizeof(real));
        assert_memory_equal(x->dv, y->dv, (size_t)x->nv * sizeof(real));
        assert_memory_equal(x->dtau, y->dtau, (size_t)s.HV * sizeof(real));
        frozen->a.dtau = NULL; /* a temperature that is not trained */
        run(&d, frozen);
        assert_memory_equal(x->dk, frozen->dk, (size_t)x->nq * sizeof(real));
        assert_memory_equal(x->dsink, frozen->dsink, (size_t)s.HV * sizeof(real));
        batch_free(frozen);
        batch_free(x), batch_free(y);
        dev_close(&d);
    }
}

static void test_score(void **state) {
    enum { T = 70, HV = 3, V = 24, N = T * HV };
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        real *m = check_random(N, 0, 2, 1), *beta = check_random(N, 0.1, 1, 2), *v = check_random(N * V, -1, 1, 3);
        real *want = check_new(N), *got = check_new(N);
        dev_round(&d, v, N * V);
        for (int e = 0; e < 6; e++) {
            struct hl_policy policy = policy_of(kinds[e % 3]);
            policy.layer_set = e >= 3;
            struct hl_score a = {T, HV, V, policy, m, beta, v, want};
            struct hl_score b = {T,
                                 HV,
                                 V,
                                 policy,
                                 dev_real(&d, m, N),
                                 dev_real(&d, beta, N),
                                 dev_act(&d, v, N * V),
                                 dev_real(&d, NULL, N)};
            hl_ops_named("cpu-ref")->cache_score(host, &a);
            d.ops->cache_score(d.backend, &b);
            dev_real_take(&d, b.score, got, N);
            CHECK_NEAR(got, want, T, HV, 1e-6, "score %d", e);
            if (e > 0) CHECK_FAR(got, m, T, HV, 1e-2);
            for (int64_t i = 0; i < N && e >= 3; i++) assert_true(got[i] == got[i / HV * HV]);
            a.policy.layer_set = false;
            hl_ops_named("cpu-ref")->cache_score(host, &a);
            if (e >= 3) CHECK_FAR(got, want, T, HV, 1e-2);
            dev_drop(&d, b.m), dev_drop(&d, b.beta), dev_drop(&d, b.v);
        }
        check_free(m, N), check_free(beta, N), check_free(v, N * V), check_free(want, N), check_free(got, N);
        dev_close(&d);
    }
}

/* ---- speed ---- */

static void *dev_copy_of(const struct dev *d, const void *from, int64_t n) {
    void *p = hl_alloc(d->backend, n * d->backend->act_size);
    assert_non_null(p);
    hl_copy(d->backend, p, from, n * d->backend->act_size);
    return p;
}
static void time_training(const struct dev *d, int64_t n, int64_t len, int64_t K) {
    const struct shape s = {64, 256, 4, 4, K, K, HOLA_EVICT_BETAE};
    struct hl_seg *seg = calloc((size_t)n, sizeof *seg);
    struct hl_rows rows = {.T = n * len, .n = n, .seg = seg};
    const int64_t T = n * len, nv = T * s.HV * K;
    real *fill = check_random(nv, -1, 1, 9);
    struct hl_cache x = {.rows = &rows, .H = 4, .HV = 4, .K = K, .V = K, .window = 64, .chunk = 256};
    for (int64_t i = 0; i < n; i++) seg[i] = (struct hl_seg){.row = i * len, .len = len};
    x.q = dev_act(d, fill, nv);
    check_fill(fill, nv, -1, 1, 10);
    x.k = dev_act(d, fill, nv);
    x.v = dev_copy_of(d, x.k, nv), x.dout = dev_copy_of(d, x.q, nv), x.out = dev_copy_of(d, x.q, nv);
    x.read = dev_copy_of(d, x.q, nv), x.dq = dev_copy_of(d, x.q, nv);
    x.dk = dev_copy_of(d, x.q, nv), x.dv = dev_copy_of(d, x.q, nv);
    x.score = dev_real(d, fill, T * 4), x.lse = dev_real(d, fill, T * 4), x.tau = dev_real(d, fill, 4);
    x.sink = dev_real(d, fill, 4), x.gate = dev_real(d, fill, 4), x.dsink = dev_real(d, fill, 4);
    x.dgate = dev_real(d, fill, 4);
    x.sel = hl_alloc(d->backend, n * hl_pieces(len, 256) * 4 * 64 * 8);
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, 256));
    const double fwd = milliseconds(d, &x, d->ops->cache_forward);
    const double bwd = milliseconds(d, &x, d->ops->cache_backward);
    print_message("%s %lld x %lld tokens, 4 heads x %lld: forward %.3f ms, backward %.3f ms\n", d->ops->name,
                  (long long)n, (long long)len, (long long)K, fwd, bwd);
    CHECK_OK(hl_finish(d->backend));
    drop(d, &x);
    check_free(fill, nv);
    free(seg);
}
static void test_speed(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        if (!dev_slow(&d)) {
            if (!f) time_training(&d, 32, 2048, 128), time_training(&d, 16, 2048, 256);
            if (!f) time_training(&d, 32, 2048, 64);
            if (!f && repeats == 20) time_training(&d, 64, 2048, 256), time_training(&d, 1, 32768, 256);
            if (f && repeats == 20) time_training(&d, 4, 512, 128);
        }
        dev_close(&d);
    }
}

/* [test] [repeats of what is timed; 1 for a profiler] */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd_shapes),   cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_whole_blocks), cmocka_unit_test(test_measured_and_learned),
        cmocka_unit_test(test_long),         cmocka_unit_test(test_first_rows),
        cmocka_unit_test(test_definition),   cmocka_unit_test(test_odd_scores),
        cmocka_unit_test(test_large_logits), cmocka_unit_test(test_bits),
        cmocka_unit_test(test_score),        cmocka_unit_test(test_linear_gate),
        cmocka_unit_test(test_variants),     cmocka_unit_test(test_layer_set),
        cmocka_unit_test(test_speed),
    };
    int failed;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (argc > 2) repeats = atoi(argv[2]), warm = repeats > 1 ? 3 : 0;
    host = check_backend_open(1, hl_cache_scratch(256, 256, 600, 700));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    print_message("largest distances: f32 %.2g, bf16 %.2g\n", worst[0], worst[1]);
    hl_backend_close(host);
    return failed;
}
