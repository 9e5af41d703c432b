/* test_history.c -- going back: marks and rollback, points on the way, prompts that begin alike. Everything is
 * compared to the bit with a session that never saw what was taken back. */
#define _GNU_SOURCE
#include "models.h"
#include "mixers/gdn/gdn_layer.h"
#include "model/session.h"
#include "temp.h"

static hola_session *session_of(hola_model *m) {
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    return s;
}

/* Feeds ids[0, n) in the given lengths, over and over; the last call gives the logits. */
static void feed_in(hola_session *s, const int32_t *ids, int64_t n, const int64_t *lengths, int count, float *logits) {
    for (int64_t i = 0, c = 0, len; i < n; i += len, c++) {
        len = lengths[c % count] < n - i ? lengths[c % count] : n - i;
        CHECK_OK(hola_session_feed(s, ids + i, len, i + len == n ? logits : NULL));
    }
}

/* They are the same and stay the same. */
static void go_on_alike(hola_session *a, hola_session *b, const int32_t *ids, const char *what) {
    hola_model *m = a->model;
    const size_t bytes = (size_t)m->cfg.vocab_size * sizeof(float);
    float *x = malloc(bytes), *y = malloc(bytes);
    assert_int_equal(hola_session_position(a), hola_session_position(b));
    assert_true(hola_session_logits(a) && hola_session_logits(b));
    if (memcmp(hola_session_logits(a), hola_session_logits(b), bytes)) fail_msg("%s: other logits", what);
    for (int i = 0; i < 50; i++) { /* over a block's end at least once */
        CHECK_OK(hola_session_feed(a, ids + i, 1, x));
        CHECK_OK(hola_session_feed(b, ids + i, 1, y));
        if (memcmp(x, y, bytes)) fail_msg("%s: other logits after %d more tokens", what, i + 1);
    }
    free(x), free(y);
}

static void rollback_is_exact(void **state) {
    const int64_t marks[] = {0, 1, 31, 32, 33, 60, 100, 250}, ahead[] = {1, 3, 8, 40, 100};
    const int64_t ways[][3] = {{1, 1, 1}, {100, 100, 100}, {3, 1, 7}};
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 1, NULL);
        int32_t *ids = random_ids(600, m->cfg.vocab_size, 77), *other = random_ids(200, m->cfg.vocab_size, 5);
        float *logits = malloc((size_t)m->cfg.vocab_size * sizeof *logits);
        for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
            for (size_t j = 0; j < sizeof ahead / sizeof *ahead; j++) {
                const int64_t *way = ways[(i + j) % 3], back = 1 + (int64_t)(i * 7 + j * 3) % ahead[j];
                hola_session *a = session_of(m), *b = session_of(m);
                if (marks[i]) CHECK_OK(hola_session_feed(a, ids, marks[i], logits));
                if (marks[i]) CHECK_OK(hola_session_feed(b, ids, marks[i], logits));
                CHECK_OK(hola_session_mark(a));
                feed_in(a, ids + marks[i], ahead[j], way, 3, NULL);
                CHECK_OK(hola_session_rollback(a, back));
                if (ahead[j] > back) feed_in(b, ids + marks[i], ahead[j] - back, way, 3, logits);
                if (marks[i] + ahead[j] > back) go_on_alike(a, b, other, variants[v].name);
                /* and back once more, to the same mark */
                if (marks[i]) {
                    hola_session *c = session_of(m);
                    CHECK_OK(hola_session_feed(c, ids, marks[i], logits));
                    CHECK_OK(hola_session_rollback(a, hola_session_position(a) - marks[i]));
                    go_on_alike(a, c, other + 60, variants[v].name);
                    hola_session_free(c);
                }
                hola_session_free(a), hola_session_free(b);
            }
        free(ids), free(other), free(logits);
        hola_model_free(m);
    }
}

/* The comparison sees a mark that misses what it should hold: the exact memory, or the convolutions' tails. */
static void a_poor_mark_is_caught(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    const int64_t vocab = m->cfg.vocab_size;
    int32_t *ids = random_ids(600, vocab, 77);
    float *x = malloc((size_t)vocab * sizeof *x), *y = malloc((size_t)vocab * sizeof *y);
    (void)state;
    for (int wrong = 0; wrong < 3; wrong++) {
        hola_session *a = session_of(m);
        CHECK_OK(hola_session_feed(a, ids, 90, x));
        CHECK_OK(hola_session_mark(a));
        if (wrong == 1) a->mark->ranked = true; /* claims to have the exact memory, which will change */
        if (wrong == 1)
            memset(a->mark->state.fixed + m->state.at[STATE_MEMORY], 0,
                   (size_t)(m->state.layer - m->state.at[STATE_MEMORY]));
        CHECK_OK(hola_session_feed(a, ids + 90, 20, NULL));
        if (wrong == 2)
            memset(a->mark->state.fixed + m->state.at[TAIL_Q], 0,
                   (size_t)(m->state.at[STATE_MEMORY] - m->state.at[TAIL_Q]));
        CHECK_OK(hola_session_rollback(a, 20));
        assert_memory_equal(hola_session_logits(a), x, (size_t)vocab * sizeof *x);
        CHECK_OK(hola_session_feed(a, ids + 300, 1, y));
        hola_session *b = session_of(m);
        CHECK_OK(hola_session_feed(b, ids, 90, NULL));
        float *z = malloc((size_t)vocab * sizeof *z);
        CHECK_OK(hola_session_feed(b, ids + 300, 1, z));
        assert_int_equal(!memcmp(y, z, (size_t)vocab * sizeof *z), wrong == 0);
        free(z);
        hola_session_free(a), hola_session_free(b);
    }
    free(ids), free(x), free(y);
    hola_model_free(m);
}

static int32_t best(const float *x, int64_t n) {
    int32_t k = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[k]) k = i;
    return k;
}
/* Drafts of 6 tokens, right up to a random place, are checked in one pass and the wrong ones taken back: the text is
 * that of one token at a time. */
static void speculation(void **state) {
    enum { DRAFT = 6, LENGTH = 200 };
    (void)state;
    for (int v = 0; v < VARIANTS; v += 3) {
        hola_model *m = variant_model(v, 1, NULL);
        const int64_t vocab = m->cfg.vocab_size;
        int32_t *ids = random_ids(50, vocab, 9), text[LENGTH + DRAFT + 1], draft[DRAFT];
        float *each = malloc((size_t)(DRAFT * vocab) * sizeof *each);
        hola_session *plain = session_of(m), *s = session_of(m);
        int taken_back = 0;
        CHECK_OK(hola_session_feed(plain, ids, 50, each));
        CHECK_OK(hola_session_feed(s, ids, 50, each));
        for (int i = 0; i < LENGTH + DRAFT + 1; i++) {
            text[i] = best(hola_session_logits(plain), vocab);
            CHECK_OK(hola_session_feed(plain, &text[i], 1, each));
        }
        for (int n = 0, kept; n < LENGTH; n += kept) {
            const int right = 1 + (int)(check_mix((uint64_t)n) % DRAFT); /* the first one we know from the logits */
            assert_int_equal(best(hola_session_logits(s), vocab), text[n]);
            for (int i = 0; i < DRAFT; i++) draft[i] = i < right ? text[n + i] : (int32_t)((text[n + i] + 1) % vocab);
            CHECK_OK(hola_session_mark(s));
            CHECK_OK(hola_session_feed_each(s, draft, DRAFT, each));
            for (kept = 1; kept < DRAFT && best(each + (kept - 1) * vocab, vocab) == draft[kept];) kept++;
            assert_int_equal(kept, right);
            taken_back += DRAFT - kept;
            CHECK_OK(hola_session_rollback(s, DRAFT - kept));
            assert_int_equal(hola_session_position(s), 50 + n + kept);
        }
        assert_true(taken_back > 50);
        hola_session_free(plain), hola_session_free(s);
        free(ids), free(each);
        hola_model_free(m);
    }
}

static void wrong_rollbacks(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    int32_t *ids = random_ids(2000, m->cfg.vocab_size, 7);
    hola_session *s = session_of(m);
    (void)state;
    CHECK_FAILS(hola_session_rollback(s, 1), HOLA_EINVAL, "rollback: 1 of 0 tokens");
    CHECK_FAILS(hola_session_rollback(s, -1), HOLA_EINVAL, "rollback: -1 of 0");
    CHECK_OK(hola_session_feed(s, ids, 10, NULL));
    CHECK_FAILS(hola_session_rollback(s, 1), HOLA_EINVAL, "no mark at or before token 9");
    CHECK_OK(hola_session_mark(s));
    CHECK_FAILS(hola_session_rollback(s, 1), HOLA_EINVAL, "no mark at or before token 9");
    CHECK_OK(hola_session_rollback(s, 0));
    CHECK_OK(hola_session_feed(s, ids, HOLA_RECENT + 1, NULL));
    CHECK_FAILS(hola_session_rollback(s, 1), HOLA_EINVAL, "the mark is 1025 tokens back");
    assert_int_equal(hola_session_position(s), HOLA_RECENT + 11);
    hola_session_reset(s);
    CHECK_OK(hola_session_feed(s, ids, 10, NULL));
    CHECK_FAILS(hola_session_rollback(s, 1), HOLA_EINVAL, "no mark");
    hola_session_free(s);
    free(ids);
    hola_model_free(m);
}

/* ---- history ---- */

/* Rolls back from far and near, past points and blocks, over tokens that came in calls of any length. */
static void history_goes_back(void **state) {
    const int64_t back[] = {1, 5, 37, 64, 90, 200, 431};
    const int64_t way[] = {1, 50, 1, 1, 130, 7};
    (void)state;
    for (int v = 0; v < VARIANTS; v += 2) {
        hola_model *m = variant_model(v, 1, NULL);
        const hola_history_opts opt = {.every = 64, .most = 4};
        int32_t *ids = random_ids(900, m->cfg.vocab_size, 3);
        float *logits = malloc((size_t)m->cfg.vocab_size * sizeof *logits);
        for (size_t b = 0; b < sizeof back / sizeof *back; b++) {
            hola_session *s = session_of(m), *plain = session_of(m);
            hola_history *h, *short_one;
            CHECK_OK(hola_history_new(&h, s, &opt));
            CHECK_OK(hola_history_new(&short_one, plain, &(hola_history_opts){.every = 64, .most = 1}));
            for (int64_t i = 0, c = 0, len, n = 600, end = n - back[b]; i < n; i += len, c++) {
                len = way[c % 6] < n - i ? way[c % 6] : n - i;
                /* some tokens go past the history, as in a batch */
                if (len == 1) CHECK_OK(hola_session_feed(s, ids + i, 1, logits));
                else CHECK_OK(hola_history_feed(h, ids + i, len, NULL));
                if (i >= end) continue;
                const int64_t cut = len < end - i ? len : end - i;
                if (len == 1) CHECK_OK(hola_session_feed(plain, ids + i, 1, logits));
                else CHECK_OK(hola_history_feed(short_one, ids + i, cut, logits));
            }
            CHECK_OK(hola_history_rollback(h, back[b]));
            go_on_alike(s, plain, ids + 800, variants[v].name);
            hola_history_free(h), hola_history_free(short_one);
            hola_session_free(s), hola_session_free(plain);
        }
        free(ids), free(logits);
        hola_model_free(m);
    }
}

static void prompts_that_begin_alike(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    const int64_t vocab = m->cfg.vocab_size;
    const hola_history_opts opt = {.every = 64, .most = 6};
    int32_t *ids = random_ids(1000, vocab, 3);
    float *logits = malloc((size_t)vocab * sizeof *logits);
    hola_session *s = session_of(m), *fresh = session_of(m);
    hola_history *h, *g;
    int64_t reused;
    (void)state;
    CHECK_OK(hola_history_new(&h, s, &opt));
    CHECK_OK(hola_history_new(&g, fresh, &opt));
    CHECK_OK(hola_history_prompt(h, ids, 500, logits, &reused));
    assert_int_equal(reused, 0);
    CHECK_OK(hola_history_prompt(h, ids, 500, logits, &reused)); /* the same again: nothing to do */
    assert_int_equal(reused, 500);
    CHECK_OK(hola_history_prompt(h, ids, 600, logits, &reused)); /* longer */
    assert_int_equal(reused, 500);
    CHECK_OK(hola_history_keep(h));
    hola_session_seed(s, 77);   /* whoever goes back keeps it */
    for (int i = 0; i < 3; i++) /* another one, from token 450 + i on; the first goes back to 448 */
        for (int twice = 0; twice < 2; twice++) {
            ids[450 + i] = (int32_t)((ids[450 + i] + 1) % vocab);
            CHECK_OK(hola_history_prompt(h, ids, 700, logits, &reused));
            assert_int_equal(reused, 448);
        }
    assert_int_equal(hola_session_seed_of(s), 77);
    CHECK_OK(hola_history_prompt(g, ids, 700, logits, NULL));
    go_on_alike(s, fresh, ids + 900, "a changed prompt");
    CHECK_OK(hola_history_prompt(h, ids, 448, logits, &reused)); /* shorter, at a point without logits */
    assert_true(reused < 448 && reused % 64 == 0);
    ids[0] = (int32_t)((ids[0] + 1) % vocab);
    CHECK_OK(hola_history_prompt(h, ids, 30, logits, &reused));
    assert_int_equal(reused, 0);
    assert_int_equal(hola_session_position(s), 30);
    hola_history_free(h), hola_history_free(g);
    hola_session_free(s), hola_session_free(fresh);
    free(ids), free(logits);
    hola_model_free(m);
}

/* 100,000 tokens, 5 points: never more, and from the far past some are left. */
static void points_are_thinned(void **state) {
    hola_model *m = variant_model(11, 2, NULL);
    const hola_history_opts opt = {.every = 512, .most = 5};
    const int64_t n = 100000, vocab = m->cfg.vocab_size;
    int32_t *ids = random_ids(n, vocab, 3);
    float *logits = malloc((size_t)vocab * sizeof *logits);
    hola_session *s = session_of(m);
    hola_history *h;
    int64_t reused;
    (void)state;
    CHECK_OK(hola_history_new(&h, s, &opt));
    CHECK_OK(hola_history_feed(h, ids, n, logits));
    ids[n - 200]++, ids[n - 200] %= (int32_t)vocab; /* near: little is lost */
    CHECK_OK(hola_history_prompt(h, ids, n, logits, &reused));
    assert_in_range(reused, n - 2000, n - 200);
    ids[n - 15000]++, ids[n - 15000] %= (int32_t)vocab; /* far: not everything is */
    CHECK_OK(hola_history_prompt(h, ids, n, logits, &reused));
    assert_in_range(reused, 1, n - 15000);
    hola_history_free(h);
    hola_session_free(s);
    free(ids), free(logits);
    hola_model_free(m);
}

static void wrong_histories(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    int32_t *ids = random_ids(2000, m->cfg.vocab_size, 7), bad = 97;
    float *logits = malloc((size_t)m->cfg.vocab_size * sizeof *logits);
    hola_session *s = session_of(m);
    hola_history *h;
    (void)state;
    CHECK_FAILS(hola_history_new(&h, s, &(hola_history_opts){.every = -1}), HOLA_EINVAL, "every -1");
    CHECK_OK(hola_history_new(&h, s, NULL));
    CHECK_FAILS(hola_history_feed(h, ids, 0, NULL), HOLA_EINVAL, "feed: 0 tokens");
    CHECK_FAILS(hola_history_feed(h, &bad, 1, NULL), HOLA_EINVAL, "id 97");
    CHECK_FAILS(hola_history_prompt(h, &bad, 1, logits, NULL), HOLA_EINVAL, "id 97");
    CHECK_FAILS(hola_history_prompt(h, ids, 0, logits, NULL), HOLA_EINVAL, "prompt: 0");
    CHECK_FAILS(hola_history_rollback(h, 1), HOLA_EINVAL, "1 of 0");
    CHECK_OK(hola_session_feed(s, ids, HOLA_RECENT + 1, NULL));
    CHECK_FAILS(hola_history_keep(h), HOLA_EINVAL, "1025 tokens were fed without it");
    hola_history_free(h);
    CHECK_FAILS(hola_history_new(&h, s, NULL), HOLA_EINVAL, "not empty");
    hola_session_reset(s);
    CHECK_OK(hola_history_new(&h, s, NULL));
    CHECK_OK(hola_session_feed(s, ids, 10, NULL));
    CHECK_OK(hola_history_keep(h));
    hola_session_reset(s);
    CHECK_OK(hola_session_feed(s, ids, 10, NULL));
    CHECK_FAILS(hola_history_keep(h), HOLA_EINVAL, "rolled back without it");
    hola_history_free(h);
    hola_session_free(s);
    free(ids), free(logits);
    hola_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rollback_is_exact),  cmocka_unit_test(a_poor_mark_is_caught),
                                       cmocka_unit_test(speculation),        cmocka_unit_test(wrong_rollbacks),
                                       cmocka_unit_test(history_goes_back),  cmocka_unit_test(prompts_that_begin_alike),
                                       cmocka_unit_test(points_are_thinned), cmocka_unit_test(wrong_histories)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
