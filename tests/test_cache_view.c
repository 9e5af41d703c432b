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
    assert_int_equal(hl_session_kept(y, layer, head, pos, count), want);
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
        hl_cache_layout(c->head_dim, c->head_v_dim, c->cache_window, c->cache_chunk, sizeof(real));
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept), cmocka_unit_test(test_largest), cmocka_unit_test(test_read),
        cmocka_unit_test(test_same), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
