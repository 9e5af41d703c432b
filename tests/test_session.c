/* test_session.c -- the streaming form: any split of the input, batches, save and load. */
#define _GNU_SOURCE
#include "models.h"
#include <unistd.h>

/* A token more or less in the exact memory moves a log-probability by far more than rounding, and two
 * scores can lie closer together than rounding: such a pair may fall either way. With random models of
 * these sizes it does not happen up to the lengths used here. */
static void any_split(void **state) {
    const int64_t pieces[] = {1, 31, 64, 255, 256, 257, 1 << 20};
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 2, NULL);
        const int64_t n = 530;
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

/* n tokens behind p others, in the pieces of a server that has time for `most` at once; the logits at the end. */
static void feed_pieces(hola_model *m, const int32_t *ids, int64_t p, int64_t n, int64_t most, float *logits) {
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    if (p > 0) CHECK_OK(hola_session_feed(s, ids, p, NULL));
    for (int64_t i = 0, len; i < n; i += len) {
        len = most % HL_CHUNK == 0 ? hl_piece(n - i, most) : n - i < most ? n - i : most;
        CHECK_OK(hola_session_feed(s, ids + p + i, len, logits));
    }
    hola_session_free(s);
}

/* A prompt that is read in pieces (hl_piece), from any position on, gives the bits of one that is read at once; cuts
 * elsewhere do not. */
static void pieces_change_no_bit(void **state) {
    const int64_t at[] = {0, 7, 290, 35, 7, 0, 40}, lengths[] = {65, 77, 70, 131, 205, 520, 140};
    float whole[97], got[97];
    int others = 0;
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 1, "cpu");
        int32_t *ids = random_ids(900, m->cfg.vocab_size, 17);
        /* (h2o adds up the weights of a tile's reads: a cut moves a score by a rounding) */
        const bool same = !strstr(variants[v].name, "h2o");
        for (int k = 0; k < 7; k++) {
            const int64_t p = at[k], n = lengths[k];
            feed_pieces(m, ids, p, n, 1 << 20, whole);
            feed_pieces(m, ids, p, n, k % 2 ? HL_CHUNK : 2 * HL_CHUNK, got);
            if (same && memcmp(got, whole, sizeof got))
                fail_msg("%s: %d tokens at %d in pieces: other bits", variants[v].name, (int)n, (int)p);
            feed_pieces(m, ids, p, n, 60, got);
            others += memcmp(got, whole, sizeof got) != 0;
        }
        free(ids);
        hola_model_free(m);
    }
    assert_true(others > 50);
}

static void named_lengths(void **state) {
    const int64_t lengths[] = {2, 255, 256, 257, 1000, 5000};
    (void)state;
    hola_model *m = variant_model(10, 2, NULL); /* window 64, block 256 */
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int64_t n = lengths[i];
        int32_t *ids = random_ids(n, m->cfg.vocab_size, 23);
        double *prefill = scores(m, ids, n, n), *decode = scores(m, ids, n, 1), *split = scores(m, ids, n, n / 3 + 1);
        double e = fmax(farthest(decode, prefill, n - 1), farthest(split, prefill, n - 1));
        if (!(e < 2e-5)) fail_msg("length %d: %.3g away", (int)n, e);
        free(prefill);
        free(decode);
        free(split);
        free(ids);
    }
    hola_model_free(m);
}

/* The logits after each of many tokens, over more than one pass: they give the log-probabilities of a score, and the
 * last ones are kept. */
static void each_logits(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v += 5) {
        hola_model *m = variant_model(v, 2, NULL);
        const int64_t vocab = m->cfg.vocab_size, n = 2 * hl_model_rows(m) + 30;
        int32_t *ids = random_ids(n, vocab, 13);
        float *logits = malloc((size_t)(n * vocab) * sizeof *logits);
        double *want = scores(m, ids, n, n), *got = calloc((size_t)n, sizeof *got);
        hola_session *s;
        CHECK_OK(hola_session_new(&s, m));
        CHECK_OK(hola_session_feed_each(s, ids, n, logits));
        for (int64_t i = 0; i < n - 1; i++) {
            const float *z = logits + i * vocab;
            double sum = 0;
            for (int64_t j = 0; j < vocab; j++) sum += exp((double)z[j]);
            got[i] = (double)z[ids[i + 1]] - log(sum);
        }
        assert_true(farthest(got, want, n - 1) < 2e-5);
        assert_true(farthest(got, want + 1, n - 2) > 1e-3);
        assert_memory_equal(hola_session_logits(s), logits + (n - 1) * vocab, (size_t)vocab * sizeof *logits);
        hola_session_free(s);
        free(ids), free(logits), free(want), free(got);
        hola_model_free(m);
    }
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
        float *together = malloc((size_t)(N * vocab) * sizeof(float)), *alone = malloc((size_t)vocab * sizeof(float));
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
                    fail_msg("%s: step %d, session %d differs from running alone", variants[v].name, t, who[j]);
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_split),
                                       cmocka_unit_test(pieces_change_no_bit),
                                       cmocka_unit_test(named_lengths),
                                       cmocka_unit_test(each_logits),
                                       cmocka_unit_test(forgetting_is_caught),
                                       cmocka_unit_test(batch_is_alone),
                                       cmocka_unit_test(threads_do_not_matter),
                                       cmocka_unit_test(save_and_load),
                                       cmocka_unit_test(wrong_calls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
