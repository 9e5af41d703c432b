/* test_cache_view.c -- the look into the exact memory against what is known without it: what is kept are the tokens with
 * the largest m, what a query reads is what H2O's scores grow by, what recency keeps are the latest tokens. */
#include "model/cache_view.h"
#include "mixers/gdn/gdn_layer.h"
#include "model/session.h"
#include "models.h"

enum { BETAE = 0, RECENCY = 4, H2O = 5, VALUE_HEADS = 8, GDN = 11, N = 300 };

static void kept_of(hola_model *m, const int32_t *ids, int64_t n, int64_t layer, int64_t head, int64_t *pos,
                    int64_t *count, hola_status want) {
    hola_session *y;
    CHECK_OK(hola_session_new(&y, m));
    CHECK_OK(hola_session_feed(y, ids, n, NULL));
    assert_int_equal(hl_session_kept(y, layer, head, pos, NULL, count), want);
    hola_session_free(y);
}

/* Which tokens a memory of the latest ones holds is known without a model. */
static void test_kept(void **state) {
    enum { WINDOW = 8, CHUNK = 32, LONGEST = 700 };
    hola_model *m = variant_model(RECENCY, 1, NULL), *betae = variant_model(BETAE, 1, NULL),
               *gdn = variant_model(GDN, 1, NULL);
    int32_t *ids = random_ids(LONGEST, 97, 9);
    int64_t pos[WINDOW], count;
    (void)state;
    const int64_t lengths[] = {1, 31, 32, 33, 64, 100, 512, 513, LONGEST};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int64_t closed = lengths[i] / CHUNK * CHUNK;
        kept_of(m, ids, lengths[i], 1, 1, pos, &count, HOLA_OK);
        assert_int_equal(count, closed < WINDOW ? closed : WINDOW);
        for (int64_t k = 0; k < count; k++) assert_int_equal(pos[k], closed - count + k);
        kept_of(betae, ids, lengths[i], 0, 0, pos, &count, HOLA_OK);
        for (int64_t k = 0; k < count; k++)
            assert_true(pos[k] >= 0 && pos[k] < closed && (k == 0 || pos[k] > pos[k - 1]));
    }
    assert_true(pos[0] < LONGEST / CHUNK * CHUNK - WINDOW); /* not the latest ones here */
    kept_of(gdn, ids, 10, 0, 0, pos, &count, HOLA_EINVAL);
    kept_of(m, ids, 10, 2, 0, pos, &count, HOLA_EINVAL);
    kept_of(m, ids, 10, 0, 2, pos, &count, HOLA_EINVAL);
    free(ids);
    hola_model_free(m);
    hola_model_free(betae);
    hola_model_free(gdn);
}

/* The number of tokens among the w with the largest m of the closed blocks (ties: the older) that are kept. */
static int64_t largest_kept(const struct hl_cache_view_head *h, const float *m, int64_t closed, int64_t w) {
    int64_t found = 0;
    for (int64_t i = 0; i < h->kept; i++) {
        int64_t better = 0;
        for (int64_t t = 0; t < closed; t++) better += m[t] > m[h->pos[i]] || (m[t] == m[h->pos[i]] && t < h->pos[i]);
        found += better < w;
    }
    return found;
}

static void test_largest(void **state) {
    const int which[] = {BETAE, 1, 7, 8, 10};
    int32_t *ids = random_ids(N, 97, 3);
    (void)state;
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        hola_model *m = variant_model(which[i], 2, NULL);
        const hola_config *c = hola_model_config(m);
        const int64_t closed = N / c->cache_chunk * c->cache_chunk;
        struct hl_cache_view v;
        CHECK_OK(hl_cache_view_make(&v, m, ids, N, 150));
        for (int64_t j = 0; j < v.layers * v.heads; j++) {
            struct hl_cache_view_head *h = &v.head[j];
            assert_int_equal(h->kept, closed < c->cache_window ? closed : c->cache_window);
            assert_int_equal(largest_kept(h, h->m, closed, c->cache_window), h->kept);
            for (int64_t k = 0; k < h->kept; k++) {
                assert_true(h->score[k] == h->m[h->pos[k]]);
                assert_true(k == 0 || h->pos[k] > h->pos[k - 1]);
            }
            if (closed == c->cache_window) continue;
            h->m[h->pos[0]] = 0; /* a wrong m is seen */
            assert_true(largest_kept(h, h->m, closed, c->cache_window) < h->kept);
        }
        hl_cache_view_free(&v);
        hola_model_free(m);
    }
    free(ids);
}

/* The score of the j-th row that the query saw, in the state of a session that stands before or after it. */
static double score_of(const hola_session *y, const hola_config *c, int64_t layer, int64_t head, int64_t slot) {
    const struct hl_cache_layout at =
        hl_cache_layout(c->head_dim, c->head_v_dim, c->cache_window, c->cache_chunk, sizeof(real), false);
    const struct hl_state_layout *state = &y->model->state;
    const char *p = y->now.state.fixed + layer * state->layer + state->at[STATE_MEMORY] + head * at.bytes + at.score;
    return (double)((const real *)p)[slot];
}

/* H2O adds up what every row has been given, so the query's shares are a difference of two states. */
static void read_as_scored(hola_model *m) {
    const int64_t queries[] = {0, 5, 32, 40, 97, 190}; /* none that closes its block */
    const hola_config *c = hola_model_config(m);
    int32_t *ids = random_ids(N, 97, 4);
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
        const int64_t q = queries[i];
        hola_session *before, *after;
        struct hl_cache_view v;
        CHECK_OK(hl_cache_view_make(&v, m, ids, N, q));
        CHECK_OK(hola_session_new(&before, m));
        CHECK_OK(hola_session_new(&after, m));
        if (q) CHECK_OK(hola_session_feed(before, ids, q, NULL));
        CHECK_OK(hola_session_feed(after, ids, q + 1, NULL));
        for (int64_t j = 0; j < v.layers * v.heads; j++) {
            const struct hl_cache_view_head *h = &v.head[j];
            double sum = (double)h->p_sink, off = 0;
            assert_int_equal(h->seen, h->seen_kept + q % c->cache_chunk + 1);
            assert_int_equal(h->seen_pos[h->seen - 1], q);
            for (int64_t k = 0; k < h->seen; k++) {
                const int64_t slot = k < h->seen_kept ? k : c->cache_window + k - h->seen_kept;
                const double was = k + 1 < h->seen ? score_of(before, c, j / v.heads, j % v.heads, slot) : 0;
                const double grew = score_of(after, c, j / v.heads, j % v.heads, slot) - was;
                assert_true(fabs((double)h->p[k] - grew) < 1e-5);
                off += fabs((double)h->p[k] * 1.1 - grew); /* a tenth too much would be seen */
                sum += (double)h->p[k];
            }
            assert_true(fabs(sum - 1) < 1e-5);
            assert_true(off > 1e-5 * (double)h->seen);
            assert_true(fabs((double)h->gate - 1 / (1 + exp(-0.5))) < 1e-6);
        }
        hl_cache_view_free(&v);
        hola_session_free(before);
        hola_session_free(after);
    }
    free(ids);
    hola_model_free(m);
}
static void test_read(void **state) {
    hola_config grouped = variant_config(VALUE_HEADS); /* a key for several value heads */
    const hola_options opt = {.threads = 1};
    hola_model *m;
    (void)state;
    read_as_scored(variant_model(H2O, 1, NULL));
    grouped.cache_evict = HOLA_EVICT_H2O;
    assert_true(grouped.num_v_heads > grouped.num_heads);
    CHECK_OK(hola_model_new(&m, &grouped, 7, &opt));
    read_as_scored(m);
}

static int named(const char *name) {
    int i = 0;
    while (strcmp(variants[i].name, name)) i++;
    return i;
}

/* Kept keys are not alike where the model says so, and are where it does not. */
static void test_redundancy(void **state) {
    int32_t *ids = random_ids(N, 97, 8);
    (void)state;
    for (int with = 0; with < 2; with++) {
        hola_model *m = variant_model(with ? named("hola, near-duplicates last") : BETAE, 1, NULL);
        struct hl_cache_view v;
        float alike = 0;
        CHECK_OK(hl_cache_view_make(&v, m, ids, N, N - 1));
        for (int64_t i = 0; i < v.layers * v.heads; i++)
            for (int64_t j = 0; j < v.head[i].kept; j++) alike = fmaxf(alike, v.head[i].alike[j]);
        assert_true(with ? alike <= 0.4f + 1e-6f : alike > 0.5f);
        hl_cache_view_free(&v);
        hola_model_free(m);
    }
    free(ids);
}

/* One set per layer: all heads keep the tokens whose m has the largest norm over the heads, however the text is fed;
 * without the option, or ranked by a head's own m, others are kept. */
static void test_layer_set(void **state) {
    static const char *const names[] = {"hola, one set per layer", "hola, value heads 4",
                                        "kda with exact memory e, one set per layer, a gate per token"};
    int32_t *ids = random_ids(N, 97, 12);
    (void)state;
    for (int n = 0; n < 3; n++) {
        hola_model *m = variant_model(named(names[n]), 1, NULL);
        const hola_config *c = hola_model_config(m);
        const int64_t closed = N / c->cache_chunk * c->cache_chunk, w = c->cache_window;
        struct hl_cache_view v;
        hola_session *y;
        float norm[N];
        int64_t own = 0, joint = 0, others = 0, pos[8], count;
        CHECK_OK(hl_cache_view_make(&v, m, ids, N, N - 1));
        CHECK_OK(hola_session_new(&y, m));
        for (int64_t i = 0, piece = 1; i < N; i += piece, piece = i % 3 ? 1 : 40)
            CHECK_OK(hola_session_feed(y, ids + i, piece < N - i ? piece : N - i, NULL));
        for (int64_t j = 0; j < v.layers * v.heads; j++) {
            const struct hl_cache_view_head *h = &v.head[j], *first = &v.head[j / v.heads * v.heads];
            for (int64_t t = 0; t < N; t++) {
                double sum = 0;
                for (int64_t i = 0; i < v.heads; i++) sum += (double)first[i].m[t] * (double)first[i].m[t];
                norm[t] = (float)sqrt(sum);
            }
            joint += largest_kept(h, norm, closed, w);
            own += largest_kept(h, h->m, closed, w);
            others += memcmp(h->pos, first->pos, (size_t)w * sizeof *h->pos) != 0;
            for (int64_t i = 0; i < w && n == 0; i++)
                assert_true(fabsf(h->score[i] - norm[h->pos[i]]) < 1e-5f && h->score[i] == first->score[i]);
            CHECK_OK(hl_session_kept(y, j / v.heads, j % v.heads, pos, NULL, &count));
            assert_true(count == w && h->kept == w);
            assert_memory_equal(pos, h->pos, (size_t)w * sizeof *pos);
        }
        const int64_t all = v.layers * v.heads * w;
        assert_true(n == 1 ? others > 0 : others == 0);
        assert_true((joint == all) == (n == 0) && (own == all) == (n == 1));
        hl_cache_view_free(&v);
        hola_session_free(y);
        hola_model_free(m);
    }
    free(ids);
}

/* A token's own gates: those of two tokens differ, and without what tokens add they are the heads'. */
static void test_token_gate(void **state) {
    hola_model *m = variant_model(named("hola, a gate per token"), 1, NULL);
    int32_t *ids = random_ids(N, 97, 9);
    struct hl_cache_view v, w;
    (void)state;
    CHECK_OK(hl_cache_view_make(&v, m, ids, N, N - 1));
    CHECK_OK(hl_cache_view_make(&w, m, ids, N, N - 2));
    for (int64_t i = 0; i < v.layers * v.heads; i++) {
        assert_true(fabsf(v.head[i].gate - w.head[i].gate) > 1e-6f);
        assert_true(fabs((double)v.head[i].gate - 1 / (1 + exp(-0.5))) > 1e-6);
        assert_true(v.head[i].added > 0 && v.head[i].added < 1e3f);
    }
    hl_cache_view_free(&v), hl_cache_view_free(&w);
    free(ids);
    hola_model_free(m);
}

/* lola: the scores after a whole number of blocks are those of the kept rows against the state then. */
static void test_recall(void **state) {
    static const char *const names[] = {"hola lola", "hola lola, l2, value heads 4"};
    int32_t *ids = random_ids(N, 97, 6);
    (void)state;
    for (int n = 0; n < 2; n++) {
        hola_model *m = variant_model(named(names[n]), 1, NULL);
        const hola_config *c = hola_model_config(m);
        const int64_t K = c->head_dim, V = c->head_v_dim, closed = N / c->cache_chunk * c->cache_chunk;
        const bool rms = c->cache_norm == HOLA_NORM_RMS;
        const struct hl_cache_layout at = hl_cache_layout(K, V, c->cache_window, c->cache_chunk, sizeof(real), rms);
        struct hl_cache_view v;
        hola_session *y;
        CHECK_OK(hl_cache_view_make(&v, m, ids, N, 150));
        CHECK_OK(hola_session_new(&y, m));
        CHECK_OK(hola_session_feed(y, ids, closed, NULL));
        for (int64_t j = 0; j < v.layers * v.heads; j++) {
            const int64_t l = j / v.heads, h = j % v.heads;
            const char *layer = y->now.state.fixed + l * m->state.layer,
                       *p = layer + m->state.at[STATE_MEMORY] + h * at.bytes;
            const real *S = (const real *)(const void *)(layer + m->state.at[STATE_S]) + h * K * V;
            char name[80];
            snprintf(name, sizeof name, "model.layers.%d.attn.cache_k_norm.weight", (int)l);
            const int64_t tensor = hl_params_find(&m->params, name);
            const real *weight = rms ? hl_model_vector(m, HL_INFER, tensor) : NULL;
            for (int64_t i = 0; i < v.head[j].kept; i++) {
                const real *k = (const real *)(const void *)(p + at.k) + i * K,
                           *value = (const real *)(const void *)(p + at.v) + i * V;
                const double f = rms ? (double)((const real *)(const void *)(p + at.factor))[i] : 1;
                double sum = 0, length = 0;
                for (int64_t a = 0; a < K; a++) {
                    const double x = f * (double)k[a] / (rms ? (double)weight[a] : 1);
                    length += x * x;
                }
                assert_true(fabs(length - 1) < 1e-3); /* a unit key */
                for (int64_t b = 0; b < V; b++) {
                    double e = (double)value[b];
                    for (int64_t a = 0; a < K; a++)
                        e -= f * (double)k[a] / (rms ? (double)weight[a] : 1) * (double)S[a * V + b];
                    sum += e * e;
                }
                assert_true(fabs(sqrt(sum) - (double)v.head[j].score[i]) < 1e-4 * (1 + sqrt(sum)));
            }
        }
        hl_cache_view_free(&v);
        hola_session_free(y);
        hola_model_free(m);
    }
    free(ids);
}

/* lte: a score far below zero leaves a kept row nothing of the read. */
static void test_learned(void **state) {
    int32_t *ids = random_ids(N, 97, 7);
    double share[2] = {0};
    (void)state;
    for (int low = 0; low < 2; low++) {
        hola_model *m = variant_model(named("hola lte, value heads 4"), 1, NULL);
        struct hl_cache_view v;
        for (int64_t i = 0; low && i < m->params.n; i++) {
            const struct hl_tensor *t = &m->params.tensor[i];
            if (!strstr(t->name, "cache_lte_out.bias")) continue;
            for (int64_t j = 0; j < t->count; j++) m->rows[t->offset + j] = -80;
        }
        CHECK_OK(hl_cache_view_make(&v, m, ids, N, 150));
        for (int64_t j = 0; j < v.layers * v.heads; j++) {
            double sum = (double)v.head[j].p_sink;
            for (int64_t i = 0; i < v.head[j].seen; i++) {
                sum += (double)v.head[j].p[i];
                if (i < v.head[j].seen_kept) share[low] += (double)v.head[j].p[i];
            }
            assert_true(fabs(sum - 1) < 1e-5);
            for (int64_t i = 0; low && i < v.head[j].kept; i++) assert_true(v.head[j].score[i] < -20);
        }
        hl_cache_view_free(&v);
        hola_model_free(m);
    }
    assert_true(share[0] > 0.1 && share[1] < 1e-6);
    free(ids);
}

/* The text in one go or in pieces, and whichever token is the query: the same tokens stay. */
static void test_same(void **state) {
    hola_model *m = variant_model(BETAE, 1, NULL);
    int32_t *ids = random_ids(700, 97, 5);
    struct hl_cache_view a, b;
    (void)state;
    CHECK_OK(hl_cache_view_make(&a, m, ids, 700, 699));
    CHECK_OK(hl_cache_view_make(&b, m, ids, 700, 63));
    for (int64_t j = 0; j < a.layers * a.heads; j++) {
        assert_int_equal(a.head[j].kept, b.head[j].kept);
        assert_memory_equal(a.head[j].pos, b.head[j].pos, (size_t)a.head[j].kept * sizeof *a.head[j].pos);
    }
    hl_cache_view_free(&a);
    hl_cache_view_free(&b);
    free(ids);
    hola_model_free(m);
}

static void test_refused(void **state) {
    hola_model *gdn = variant_model(GDN, 1, NULL), *none = variant_model(6, 1, NULL),
               *m = variant_model(BETAE, 1, NULL);
    const int32_t ids[3] = {1, 2, 3}, bad[3] = {1, 97, 3};
    struct hl_cache_view v;
    (void)state;
    assert_int_equal(hl_cache_view_make(&v, gdn, ids, 3, 0), HOLA_EINVAL);
    assert_int_equal(hl_cache_view_make(&v, none, ids, 3, 0), HOLA_EINVAL);
    assert_int_equal(hl_cache_view_make(&v, m, ids, 3, 3), HOLA_EINVAL);
    assert_int_equal(hl_cache_view_make(&v, m, ids, 3, -1), HOLA_EINVAL);
    assert_int_equal(hl_cache_view_make(&v, m, bad, 3, 0), HOLA_EINVAL);
    CHECK_OK(hl_cache_view_make(&v, m, ids, 1, 0));
    assert_int_equal(v.head[0].kept, 0);
    hl_cache_view_free(&v);
    hola_model_free(gdn);
    hola_model_free(none);
    hola_model_free(m);
}

/* Keys that repeat are alike. In the first layer, where the state does not depend on the gates, twice the gate adds
 * twice as much; the rest is what a model without a memory reads. */
static void test_alike_and_added(void **state) {
    const hola_options opt = {.threads = 1};
    int32_t *ids = random_ids(N, 97, 5);
    (void)state;
    double added[3][2];
    for (int i = 0; i < 3; i++) {
        hola_config c = variant_config(named("hola, linear gates"));
        hola_model *m;
        struct hl_cache_view v;
        c.cache_gate_init = 0.5 * i;
        CHECK_OK(hola_model_new(&m, &c, 7, &opt));
        CHECK_OK(hl_cache_view_make(&v, m, ids, N, 150));
        for (int h = 0; h < 2; h++) added[i][h] = (double)v.head[h].added;
        hl_cache_view_free(&v);
        hola_model_free(m);
    }
    for (int h = 0; h < 2; h++) {
        assert_true(added[0][h] == 0 && added[1][h] > 1e-3);
        assert_true(fabs(added[2][h] / added[1][h] - 2) < 1e-4);
    }

    hola_model *m = variant_model(BETAE, 1, NULL);
    struct hl_cache_view once, again;
    CHECK_OK(hl_cache_view_make(&once, m, ids, N, 150));
    for (int i = 32; i < 64; i++) ids[i] = 5; /* a block of one token: behind the convolution all keys are the same */
    CHECK_OK(hl_cache_view_make(&again, m, ids, 64, 40));
    const struct hl_cache_view_head *a = &once.head[0], *b = &again.head[0];
    for (int64_t i = 0; i < a->kept; i++) assert_true(a->alike[i] >= -1 && a->alike[i] <= 1 + 1e-6f);
    int64_t same = 0, seen = 0;
    for (int64_t i = 0; i < b->kept; i++) seen += b->pos[i] >= 36, same += b->pos[i] >= 36 && b->alike[i] > 0.9999f;
    assert_true(same == seen || seen == 1);
    hl_cache_view_free(&once), hl_cache_view_free(&again);
    hola_model_free(m);
    free(ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),       cmocka_unit_test(test_alike_and_added), cmocka_unit_test(test_largest),
        cmocka_unit_test(test_read),       cmocka_unit_test(test_recall),          cmocka_unit_test(test_redundancy),
        cmocka_unit_test(test_token_gate), cmocka_unit_test(test_learned),         cmocka_unit_test(test_same),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_layer_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
