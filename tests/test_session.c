/* test_session.c -- the streaming form: any split of the input, batches, save and load. */
#define _GNU_SOURCE
#include "models.h"
#include "model/session.h"
#include <unistd.h>

/* A token more or less in the exact memory moves a log-probability by far more than rounding, and two
 * scores can lie closer together than rounding: such a pair may fall either way. With random models of
 * these sizes it does not happen up to the lengths used here. */
static void any_split(void **state) {
    const int64_t pieces[] = {1, 7, 31, 64, 255, 256, 257, 1 << 20};
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 2, NULL);
        const int64_t n = 700;
        int32_t *ids = random_ids(n, m->cfg.vocab_size, 11);
        double *whole = scores(m, ids, n, n);
        for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
            double *got = scores(m, ids, n, pieces[p]);
            double e = farthest(got, whole, n - 1);
            if (!(e < 2e-5)) fail_msg("%s: pieces of %d are %.3g away", variants[v].name, (int)pieces[p], e);
            free(got);
        }
        free(whole);
        free(ids);
        hola_model_free(m);
    }
}

static void named_lengths(void **state) {
    const int64_t lengths[] = {2, 255, 256, 257, 1000, 5000};
    (void)state;
    hola_model *m = variant_model(10, 2, NULL); /* window 64, block 256 */
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int64_t n = lengths[i];
        int32_t *ids = random_ids(n, m->cfg.vocab_size, 23);
        double *prefill = scores(m, ids, n, n), *decode = scores(m, ids, n, 1),
               *split = scores(m, ids, n, n / 3 + 1);
        double e = fmax(farthest(decode, prefill, n - 1), farthest(split, prefill, n - 1));
        if (!(e < 2e-5)) fail_msg("length %d: %.3g away", (int)n, e);
        free(prefill);
        free(decode);
        free(split);
        free(ids);
    }
    hola_model_free(m);
}

/* The tests above must be able to fail: a session that lost its memory gives other numbers. */
static void forgetting_is_caught(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 2, NULL);
        const int64_t n = 300;
        int32_t *ids = random_ids(n, m->cfg.vocab_size, 11);
        double *whole = scores(m, ids, n, n), *got = calloc((size_t)n, sizeof *got);
        hola_session *s;
        CHECK_OK(hola_session_new(&s, m));
        CHECK_OK(hola_session_score(s, ids, ids + 1, 290, got));
        hola_session_reset(s);
        CHECK_OK(hola_session_score(s, ids + 290, ids + 291, 9, got + 290));
        assert_true(farthest(got, whole, 290) < 2e-5);
        assert_true(farthest(got + 290, whole + 290, 9) > 1e-3);
        hola_session_free(s);
        free(whole);
        free(got);
        free(ids);
        hola_model_free(m);
    }
}

/* Sessions at different positions, stepped together: each gets the bits it gets alone. */
static void batch_is_alone(void **state) {
    enum { N = 5, STEPS = 40 };
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 2, NULL);
        const int64_t vocab = m->cfg.vocab_size;
        int32_t *ids = random_ids(N * 1000, vocab, 5);
        float *together = malloc((size_t)(N * vocab) * sizeof(float)),
              *alone = malloc((size_t)vocab * sizeof(float));
        hola_session *a[N], *b[N];
        for (int i = 0; i < N; i++) {
            CHECK_OK(hola_session_new(&a[i], m));
            CHECK_OK(hola_session_new(&b[i], m));
            CHECK_OK(hola_session_feed(a[i], ids + i * 1000, 1 + 37 * i, NULL));
            CHECK_OK(hola_session_feed(b[i], ids + i * 1000, 1 + 37 * i, NULL));
        }
        for (int t = 0; t < STEPS; t++) {
            hola_session *batch[N];
            int32_t next[N];
            int n = 0, who[N];
            for (int i = 0; i < N; i++) /* some sit out */
                if ((t + i) % 3) {
                    batch[n] = a[i];
                    who[n] = i;
                    next[n++] = ids[i * 1000 + 500 + t];
                }
            CHECK_OK(hola_session_step(batch, n, next, together));
            for (int j = 0; j < n; j++) {
                CHECK_OK(hola_session_feed(b[who[j]], &next[j], 1, alone));
                if (memcmp(alone, together + j * vocab, (size_t)vocab * sizeof(float)))
                    fail_msg("%s: step %d, session %d differs from running alone", variants[v].name, t,
                             who[j]);
            }
        }
        for (int i = 0; i < N; i++) {
            assert_int_equal(hola_session_position(a[i]), hola_session_position(b[i]));
            hola_session_free(a[i]);
            hola_session_free(b[i]);
        }
        free(ids);
        free(together);
        free(alone);
        hola_model_free(m);
    }
}

static void threads_do_not_matter(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v += 4) {
        double *first = NULL;
        const int64_t n = 400;
        for (int threads = 1; threads <= 3; threads++) {
            hola_model *m = variant_model(v, threads, NULL);
            int32_t *ids = random_ids(n, m->cfg.vocab_size, 3);
            double *lp = scores(m, ids, n, 97);
            if (!first) first = lp;
            else {
                assert_memory_equal(lp, first, (size_t)(n - 1) * sizeof *lp);
                free(lp);
            }
            free(ids);
            hola_model_free(m);
        }
        free(first);
    }
}

static void save_and_load(void **state) {
    const hola_dtype types[] = {HOLA_F32, HOLA_BF16, HOLA_F16, HOLA_INT8, HOLA_INT4};
    char dir[] = "/tmp/hola-test-XXXXXX", path[64];
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int v = 0; v < VARIANTS; v++)
        for (int t = 0; t < 5; t++) {
            hola_model *m = variant_model(v, 2, NULL), *once, *twice;
            const int64_t n = 150;
            int32_t *ids = random_ids(n, m->cfg.vocab_size, 9);
            CHECK_OK(hola_model_save(m, dir, types[t]));
            CHECK_OK(hola_model_load(&once, dir, NULL));
            double *a = scores(m, ids, n, n), *b = scores(once, ids, n, n);
            if (t == 0) assert_memory_equal(a, b, (size_t)(n - 1) * sizeof *a);
            else assert_true(farthest(a, b, n - 1) > 0);
            /* saved from the packed form, read again: the same to the bit */
            CHECK_OK(hola_model_save(once, dir, types[t]));
            CHECK_OK(hola_model_load(&twice, dir, NULL));
            double *c = scores(twice, ids, n, n);
            assert_memory_equal(b, c, (size_t)(n - 1) * sizeof *a);
            free(a);
            free(b);
            free(c);
            free(ids);
            hola_model_free(m);
            hola_model_free(once);
            hola_model_free(twice);
        }
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    assert_int_equal(rmdir(dir), 0); /* and nothing else was left there */
}

static void wrong_calls(void **state) {
    hola_model *m = variant_model(0, 1, NULL), *other = variant_model(0, 1, NULL);
    hola_session *a, *b, *pair[2];
    int32_t bad[2] = {5, 97}, ok[2] = {5, 6};
    double lp[2];
    (void)state;
    CHECK_OK(hola_session_new(&a, m));
    CHECK_OK(hola_session_new(&b, other));
    assert_int_equal(hola_session_feed(a, bad, 2, NULL), HOLA_EINVAL);
    assert_string_equal(hola_last_error(), "token 1: id 97 is not in the vocabulary of 97");
    bad[1] = -1;
    assert_int_equal(hola_session_score(a, ok, bad, 2, lp), HOLA_EINVAL);
    assert_int_equal(hola_session_feed(a, ok, 0, NULL), HOLA_EINVAL);
    assert_int_equal(hola_session_feed(a, ok, -3, NULL), HOLA_EINVAL);
    assert_int_equal(hola_session_position(a), 0);
    pair[0] = a;
    pair[1] = a;
    assert_int_equal(hola_session_step(pair, 2, ok, NULL), HOLA_EINVAL);
    pair[1] = b;
    assert_int_equal(hola_session_step(pair, 2, ok, NULL), HOLA_EINVAL);
    hola_session_free(a);
    hola_session_free(b);
    hola_model_free(m);
    hola_model_free(other);
    hola_options opt = {.backend = "abacus"};
    hola_config cfg = variant_config(0);
    assert_int_equal(hola_model_new(&m, &cfg, 0, &opt), HOLA_EINVAL);
    assert_null(m);
}

/* ---- many at once ---- */

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
        {1.1, 20, 0, 0.99, 0, 1}, {1, 64, 40, 0.95, 0.05, 0.8}, {1, 0, 0, 1, 0, 0}};
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

/* ---- memory that comes back as NaN ---- */

enum { SHELF = 64 };
static struct {
    void *p;
    int64_t bytes;
} shelf[SHELF]; /* what was released, to be handed out again at once */
static int64_t poisoned;

static void *poison_alloc(struct hl_pool *pool, int64_t bytes) {
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
static void poison_release(struct hl_pool *pool, void *data) {
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
        struct hl_ops ops = *p->ops;
        struct hl_memory mem = *p->ops->mem;
        int32_t *ids = random_ids(100, m->cfg.vocab_size, 5), want[60], got[60];
        mem.alloc = poison_alloc, mem.release = poison_release;
        ops.mem = &mem;
        p->ops = p->infer.ops = &ops;
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
            assert_memory_equal(b->now.state, c->now.state, (size_t)p->state.bytes);
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
        CHECK_OK(hola_session_feed(s[i], ids, 3, NULL));
        assert_null(hola_session_logits(s[i]));
        assert_int_equal(hola_session_sample(s[i], NULL, &id), HOLA_EINVAL);
    }
    ((float *)s[1]->now.state)[5] = NAN;
    assert_int_equal(hola_session_step(s, 3, ids, logits), HOLA_ENUMERIC);
    assert_string_equal(hola_last_error(), "the logits after token 3 are not finite");
    assert_non_null(hola_session_logits(s[0]));
    assert_null(hola_session_logits(s[1]));
    assert_non_null(hola_session_logits(s[2]));
    assert_int_equal(hola_session_feed(s[1], ids, 2, logits), HOLA_ENUMERIC);
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_split),
                                       cmocka_unit_test(named_lengths),
                                       cmocka_unit_test(forgetting_is_caught),
                                       cmocka_unit_test(batch_is_alone),
                                       cmocka_unit_test(threads_do_not_matter),
                                       cmocka_unit_test(save_and_load),
                                       cmocka_unit_test(come_and_go),
                                       cmocka_unit_test(step_and_sample),
                                       cmocka_unit_test(freed_sessions_leave_nothing),
                                       cmocka_unit_test(not_a_number_is_refused),
                                       cmocka_unit_test(wrong_calls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
