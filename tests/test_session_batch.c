/* test_session_batch.c -- many sessions of a model: that come and go, in memory that others left, with choices, and with one
 * among them whose numbers are none. */
#include "models.h"
#include "model/session.h"
#include "tokenizer/tokenizer.h"

enum { CROWD = 64, ROUNDS = 200, LONGEST = 200 };
static int32_t chosen(hola_session *s) {
    const hola_sampling p = {.repeat_penalty = 1.1, .repeat_last_n = 20, .top_p = 0.99, .temp = 1};
    int32_t id;
    CHECK_OK(hola_session_sample(s, &p, &id));
    return id;
}
/* What a sequence of this number writes when nobody else is there. */
static void write_alone(hola_model *m, int number, const int32_t *ids, int64_t n, int32_t *out) {
    float *logits = malloc((size_t)m->cfg.vocab_size * sizeof *logits);
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    hola_session_seed(s, (uint64_t)number);
    CHECK_OK(hola_session_feed(s, ids, 1 + number % 70, logits));
    for (int64_t i = 0; i < n; i++) {
        out[i] = chosen(s);
        CHECK_OK(hola_session_feed(s, &out[i], 1, logits));
    }
    free(logits);
    hola_session_free(s);
}

/* 64 places, taken and left at random: each sequence writes what it writes alone. */
static void come_and_go(void **state) {
    hola_model *m = variant_model(0, 2, NULL);
    const int64_t vocab = m->cfg.vocab_size;
    int32_t *ids = random_ids(1000, vocab, 5), alone[LONGEST], *text[CROWD];
    float *logits = malloc((size_t)(CROWD * vocab) * sizeof *logits);
    hola_session *at[CROWD] = {0};
    int number[CROWD], begun = 0, ended = 0, written[CROWD];
    uint64_t seed = 1;
    (void)state;
    for (int i = 0; i < CROWD; i++) text[i] = calloc(LONGEST, sizeof **text);
    for (int round = 0; round < ROUNDS; round++) {
        hola_session *batch[CROWD];
        int32_t next[CROWD];
        int n = 0;
        for (int i = 0; i < CROWD; i++) {
            const double dice = check_uniform(&seed, 0, 1);
            if (!at[i] && dice < 0.3) { /* one comes */
                number[i] = begun++;
                written[i] = 0;
                CHECK_OK(hola_session_new(&at[i], m));
                hola_session_seed(at[i], (uint64_t)number[i]);
                CHECK_OK(hola_session_feed(at[i], ids + number[i] % 900, 1 + number[i] % 70, logits));
            } else if (at[i] && (dice < 0.02 || written[i] == LONGEST)) { /* one goes */
                write_alone(m, number[i], ids + number[i] % 900, written[i], alone);
                ended++;
                if (memcmp(alone, text[i], (size_t)written[i] * sizeof *alone))
                    fail_msg("sequence %d: other tokens than alone", number[i]);
                hola_session_free(at[i]);
                at[i] = NULL;
            } else if (at[i] && dice > 0.1) { /* some wait */
                next[n] = text[i][written[i]++] = chosen(at[i]);
                batch[n++] = at[i];
            }
        }
        if (n > 0) CHECK_OK(hola_session_step(batch, n, next, logits));
    }
    assert_true(ended > 100);
    /* a sequence of another number is another text */
    int32_t other[50];
    write_alone(m, 3, ids + 3, 50, alone);
    write_alone(m, 3 + 70, ids + 3, 50, other); /* same prompt, other seed */
    assert_memory_not_equal(alone, other, sizeof other);
    for (int i = 0; i < CROWD; i++) hola_session_free(at[i]), free(text[i]);
    free(ids), free(logits);
    hola_model_free(m);
}

/* A step and a choice in one are the two, one after the other; and the logits are gone. */
static void step_and_sample(void **state) {
    static const hola_sampling how[] = {
        {0, 1.1, 20, 0, 0.99, 0, 1}, {0, 1, 64, 40, 0.95, 0.05, 0.8}, {0, 1, 0, 0, 1, 0, 0}};
    hola_model *m = variant_model(0, 1, NULL);
    const int64_t vocab = m->cfg.vocab_size;
    int32_t *ids = random_ids(100, vocab, 5), x[3], y[3], wrong = 0;
    float *logits = malloc((size_t)(3 * vocab) * sizeof *logits);
    (void)state;
    for (size_t h = 0; h < sizeof how / sizeof *how; h++) {
        hola_session *a[3], *b[3];
        for (int i = 0; i < 3; i++) {
            CHECK_OK(hola_session_new(&a[i], m));
            CHECK_OK(hola_session_new(&b[i], m));
            hola_session_seed(a[i], (uint64_t)i), hola_session_seed(b[i], (uint64_t)i);
            CHECK_OK(hola_session_feed(a[i], ids + i, 40, NULL));
            CHECK_OK(hola_session_feed(b[i], ids + i, 40, NULL));
            x[i] = y[i] = ids[50 + i];
        }
        for (int t = 0; t < 20; t++) {
            CHECK_OK(hola_session_step(a, 3, x, logits));
            for (int i = 0; i < 3; i++) CHECK_OK(hola_session_sample(a[i], &how[h], &x[i]));
            CHECK_OK(hola_session_step_sample(b, 3, y, &how[h], y));
            assert_memory_equal(x, y, sizeof x);
            assert_null(hola_session_logits(b[0]));
            int32_t other;
            CHECK_OK(hola_session_sample(a[0], &how[(h + 1) % 3], &other));
            wrong += other != y[0];
        }
        for (int i = 0; i < 3; i++) hola_session_free(a[i]), hola_session_free(b[i]);
    }
    assert_true(wrong > 5); /* another way of choosing is another text */
    assert_int_equal(hola_session_step_sample(NULL, 0, NULL, NULL, NULL), HOLA_EINVAL);
    free(ids), free(logits);
    hola_model_free(m);
}

/* Prompts of several sessions in passes that they share: each gets the bits that it gets alone, also behind a mark. */
static void fed_together(void **state) {
    enum { N = 4 };
    (void)state;
    for (int v = 0; v < VARIANTS; v += 5) {
        hola_model *m = variant_model(v, 2, NULL);
        const int64_t vocab = m->cfg.vocab_size, len[N] = {1, 40, 2 * hl_model_rows(m) + 5, 31};
        int32_t *all = random_ids(len[2] + N, vocab, 5);
        float *logits = malloc((size_t)(N * vocab) * sizeof *logits), *alone = malloc((size_t)vocab * sizeof *alone);
        hola_session *y[N], *z[N];
        struct hl_ids ids[N];
        for (int i = 0; i < N; i++) {
            ids[i] = (struct hl_ids){.data = all + i, .n = len[i]};
            for (int k = 0; k < 2; k++) {
                hola_session **s = k ? &z[i] : &y[i];
                CHECK_OK(hola_session_new(s, m));
                CHECK_OK(hola_session_feed(*s, all + 7, 10 + i, NULL));
                CHECK_OK(hola_session_mark(*s));
            }
        }
        CHECK_OK(hl_sessions_feed(y, ids, N, logits));
        for (int i = 0; i < N; i++) {
            CHECK_OK(hola_session_feed(z[i], ids[i].data, ids[i].n, alone));
            assert_memory_equal(logits + i * vocab, alone, (size_t)vocab * sizeof *alone);
            assert_memory_equal(hola_session_logits(y[i]), alone, (size_t)vocab * sizeof *alone);
            assert_memory_equal(&y[i]->now.at, &z[i]->now.at, sizeof y[i]->now.at);
            assert_memory_equal(y[i]->now.state.fixed, z[i]->now.state.fixed, (size_t)m->state.bytes);
        }
        assert_memory_not_equal(logits, logits + vocab, (size_t)vocab * sizeof *logits);
        for (int i = 0; i < 2; i++) { /* over the end of a block, and not */
            CHECK_OK(hola_session_rollback(y[i], len[i]));
            CHECK_OK(hola_session_rollback(z[i], len[i]));
            CHECK_OK(hola_session_feed(y[i], all, 60, logits));
            CHECK_OK(hola_session_feed(z[i], all, 60, alone));
            assert_memory_equal(logits, alone, (size_t)vocab * sizeof *alone);
        }
        const int64_t pos = hola_session_position(y[3]);
        ids[2].n = 0;
        assert_int_equal(hl_sessions_feed(y, ids, N, logits), HOLA_EINVAL);
        ids[2] = (struct hl_ids){.data = (int32_t[]){-1}, .n = 1};
        assert_int_equal(hl_sessions_feed(y, ids, N, logits), HOLA_EINVAL);
        assert_int_equal(hola_session_position(y[3]), pos);
        for (int i = 0; i < N; i++) hola_session_free(y[i]), hola_session_free(z[i]);
        free(all), free(logits), free(alone);
        hola_model_free(m);
    }
}

/* ---- memory that comes back as NaN ---- */

enum { SHELF = 64 };
static struct {
    void *p;
    int64_t bytes;
} shelf[SHELF]; /* what was released, to be handed out again at once */
static int64_t poisoned;

static void *poison_alloc(struct hl_backend *pool, int64_t bytes) {
    int64_t *p = NULL;
    (void)pool;
    for (int i = 0; i < SHELF && !p; i++)
        if (shelf[i].p && shelf[i].bytes == bytes) p = shelf[i].p, shelf[i].p = NULL;
    if (!p) p = aligned_alloc(256, (size_t)(256 + (bytes + 255) / 256 * 256));
    assert_non_null(p);
    p[0] = bytes;
    memset(p + 32, 0xff, (size_t)bytes); /* NaN in every real */
    return p + 32;
}
static void poison_release(struct hl_backend *pool, void *data) {
    int64_t *p = data ? (int64_t *)data - 32 : NULL;
    (void)pool;
    if (!p) return;
    memset(p + 32, 0xff, (size_t)p[0]);
    poisoned++;
    for (int i = 0; i < SHELF; i++)
        if (!shelf[i].p) {
            shelf[i].p = p, shelf[i].bytes = p[0];
            return;
        }
    free(p);
}

/* Sessions in memory that others left full of NaN write what they write in fresh memory. */
static void freed_sessions_leave_nothing(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 1, NULL), *p = variant_model(v, 1, NULL);
        int32_t *ids = random_ids(100, m->cfg.vocab_size, 5), want[60], got[60];
        p->backend->storage.alloc = poison_alloc, p->backend->storage.release = poison_release;
        poisoned = 0;
        for (int round = 0; round < 4; round++) {
            write_alone(m, 40 + round, ids, 60, want);
            write_alone(p, 40 + round, ids, 60, got);
            assert_memory_equal(got, want, sizeof got);
            hola_session *a, *b, *c; /* clones, marks and resets too */
            CHECK_OK(hola_session_new(&a, p));
            CHECK_OK(hola_session_feed(a, ids, 50, NULL));
            CHECK_OK(hola_session_clone(&b, a));
            CHECK_OK(hola_session_mark(a));
            CHECK_OK(hola_session_feed(a, ids, 30, NULL));
            CHECK_OK(hola_session_rollback(a, 30));
            CHECK_OK(hola_session_new(&c, p));
            CHECK_OK(hola_session_feed(c, ids, 50, NULL));
            assert_memory_equal(b->now.state.fixed, c->now.state.fixed, (size_t)p->state.bytes);
            double la, lb, lc;
            CHECK_OK(hola_session_score(a, ids + 50, ids + 51, 1, &la));
            CHECK_OK(hola_session_score(b, ids + 50, ids + 51, 1, &lb));
            CHECK_OK(hola_session_score(c, ids + 50, ids + 51, 1, &lc));
            assert_true(la == lc && lb == lc);
            hola_session_free(a), hola_session_free(b), hola_session_free(c);
        }
        assert_true(poisoned > 10);
        free(ids);
        hola_model_free(m), hola_model_free(p);
        for (int i = 0; i < SHELF; i++) free(shelf[i].p), shelf[i].p = NULL;
    }
}

/* Logits that are not numbers are refused, by the session they are of alone; the test above would see NaN. */
static void not_a_number_is_refused(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    const int64_t vocab = m->cfg.vocab_size;
    float *logits = malloc((size_t)(3 * vocab) * sizeof *logits);
    int32_t ids[] = {5, 6, 7}, id;
    hola_session *s[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hola_session_new(&s[i], m));
        CHECK_OK(hola_session_feed(s[i], ids, 2, NULL));
        CHECK_OK(hola_session_step(&s[i], 1, ids + 2, NULL));
        assert_null(hola_session_logits(s[i]));
        assert_int_equal(hola_session_sample(s[i], NULL, &id), HOLA_EINVAL);
    }
    ((float *)s[1]->now.state.fixed)[5] = NAN;
    assert_int_equal(hola_session_step(s, 3, ids, logits), HOLA_ENUMERIC);
    assert_string_equal(hola_last_error(), "the logits after token 3 are not finite");
    assert_non_null(hola_session_logits(s[0]));
    assert_null(hola_session_logits(s[1]));
    assert_non_null(hola_session_logits(s[2]));
    assert_int_equal(hola_session_feed(s[1], ids, 2, logits), HOLA_ENUMERIC);
    int32_t next[3];
    assert_int_equal(hola_session_step_sample(s, 3, ids, NULL, next), HOLA_ENUMERIC);
    assert_true(next[0] >= 0 && next[1] == -1 && next[2] >= 0);             /* the others have their choice */
    const hola_sampling all = {.repeat_penalty = 1, .top_p = 1, .temp = 1}; /* of all logits */
    assert_int_equal(hola_session_step_sample(s, 3, ids, &all, next), HOLA_ENUMERIC);
    assert_true(next[0] >= 0 && next[1] == -1 && next[2] >= 0);
    for (int i = 0; i < 3; i++) assert_null(hola_session_logits(s[i]));
    hola_session_reset(s[1]);
    CHECK_OK(hola_session_feed(s[1], ids, 2, logits));
    for (int i = 0; i < 3; i++) hola_session_free(s[i]);
    /* one logit of many: the weights of one token overflow */
    hola_model *one = variant_model(0, 1, NULL);
    real *row = one->rows + one->params.tensor[one->params.head].offset + vocab / 2 * one->cfg.hidden_size;
    for (int64_t i = 0; i < one->cfg.hidden_size; i++) row[i] = row[i] > 0 ? 1e38f : -1e38f;
    CHECK_OK(hola_session_new(&s[0], one));
    assert_int_equal(hola_session_feed(s[0], ids, 3, logits), HOLA_ENUMERIC);
    assert_true(isfinite(logits[0]) && isfinite(logits[vocab - 1]) && !isfinite(logits[vocab / 2]));
    hola_session_free(s[0]);
    hola_model_free(one);
    free(logits);
    hola_model_free(m);
}

static uint64_t latest_key;
static bool note_key(struct hl_backend *b, uint64_t key) {
    (void)b;
    latest_key = key;
    return false;
}
static uint64_t key_of_step(hola_session *s, const hola_sampling *p) {
    int32_t next = 3;
    CHECK_OK(hola_session_step_sample(&s, 1, &next, p, &next));
    return latest_key;
}
/* A graph of a step serves every position, unless the state grows; and no sampling takes new memory, which would end all
 * graphs. */
static void graphs_stay(void **state) {
    hola_sampling p = hola_sampling_default();
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 1, NULL);
        hola_session *s;
        int32_t *ids = random_ids(2100, m->cfg.vocab_size, 5);
        CHECK_OK(hola_session_new(&s, m));
        m->backend->graphs.replay = note_key;
        p.top_k = 0, p.temp = 0;
        const uint64_t greedy = key_of_step(s, &p);
        const void *room = m->candidates;
        CHECK_OK(hola_session_feed(s, ids, 2100, NULL));
        assert_int_equal(key_of_step(s, &p) == greedy, m->state.page == 0);
        p.top_k = m->cfg.vocab_size < 100 ? m->cfg.vocab_size : 100, p.temp = 1;
        assert_int_not_equal(key_of_step(s, &p), greedy);
        assert_ptr_equal(m->candidates, room);
        hola_session_free(s);
        free(ids);
        hola_model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(come_and_go),
        cmocka_unit_test(step_and_sample),
        cmocka_unit_test(fed_together),
        cmocka_unit_test(freed_sessions_leave_nothing),
        cmocka_unit_test(not_a_number_is_refused),
        cmocka_unit_test(graphs_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
