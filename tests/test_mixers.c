/* test_mixers.c -- a mixer that no file of src/ knows trains, decodes, is saved, loaded and rolled back; one with a
 * state of fixed size and one whose state grows. */
#define _GNU_SOURCE
#include "mixers_case.h"
#include "core/file.h"
#include "model/session.h"
#include "temp.h"

enum { N = 700, SOME = 90 }; /* over two pages and more */
static const char *const backends[] = {"cpu-ref", "cpu-base", "cpu", NULL};

static void training_lowers_the_loss(void **state) {
    (void)state;
    for (int i = 0; i < MIXERS; i++) {
        hola_model *m = mixer_model(i, 2, NULL);
        hola_trainer *t;
        double first = 0, last = 0;
        int32_t ids[120];
        for (int k = 0; k < 120; k++) ids[k] = (int32_t)(k * k % 13);
        CHECK_OK(hola_trainer_new(&t, m, NULL));
        for (int step = 0; step < 30; step++) {
            CHECK_OK(hola_trainer_accumulate(t, ids, 120, NULL, 0, 1.0 / 119, &last, NULL));
            if (step == 0) first = last;
            CHECK_OK(hola_trainer_update(t, 3e-3, NULL));
        }
        assert_true(last < 0.7 * first);
        hola_trainer_free(t);
        hola_model_free(m);
    }
}

/* Prefill = decoding = any cut; packed documents = separate ones. */
static void any_cut_is_the_whole(void **state) {
    const int64_t pieces[] = {1, 7, 255, 256, 257};
    (void)state;
    for (int i = 0; i < MIXERS; i++)
        for (int b = 0; backends[b]; b++) {
            hola_model *m = mixer_model(i, 2, backends[b]);
            int32_t *ids = random_ids(N, m->cfg.vocab_size, 5);
            double *whole = scores(m, ids, N, N);
            for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
                double *cut = scores(m, ids, N, pieces[k]);
                for (int64_t j = 0; j < N - 1; j++) assert_true(fabs(whole[j] - cut[j]) < 2e-5);
                free(cut);
            }
            const int64_t starts[] = {0, 1, 30, 130};
            double packed, sum = 0, one;
            hola_trainer *t;
            CHECK_OK(hola_trainer_new(&t, m, NULL));
            CHECK_OK(hola_trainer_evaluate(t, ids, 200, starts, 4, &packed, NULL));
            for (int k = 1; k < 4; k++) {
                const int64_t n = (k < 3 ? starts[k + 1] : 200) - starts[k];
                CHECK_OK(hola_trainer_evaluate(t, ids + starts[k], n, NULL, 0, &one, NULL));
                sum += one;
            }
            assert_true(fabs(packed - sum) < 1e-4 * fabs(sum));
            hola_trainer_free(t);
            free(ids), free(whole);
            hola_model_free(m);
        }
}

static void feed(hola_session *s, const int32_t *ids, int64_t n, float *logits) {
    CHECK_OK(hola_session_feed(s, ids, n, logits));
}

/* Saved and loaded, cloned, rolled back, gone back by a history, in a batch: always what a lone session gives. */
static void sessions(void **state) {
    char *dir = temp_new(), *path = hl_path_join(dir, "session"), *model = hl_path_join(dir, "m");
    (void)state;
    for (int i = 0; i < MIXERS; i++) {
        hola_model *m = mixer_model(i, 2, NULL), *again;
        const int64_t vocab = m->cfg.vocab_size;
        const size_t bytes = (size_t)vocab * sizeof(float);
        float *want = malloc(bytes), *got = malloc(bytes), *many = malloc(3 * bytes);
        int32_t *ids = random_ids(N, vocab, 9);
        hola_session *s[3], *lone, *copy, *other;
        CHECK_OK(hola_model_save(m, model, HOLA_F32));
        CHECK_OK(hola_model_load(&again, model, NULL));
        for (int k = 0; k < 3; k++) CHECK_OK(hola_session_new(&s[k], m));
        CHECK_OK(hola_session_new(&lone, m));
        CHECK_OK(hola_session_new(&other, again));
        feed(lone, ids, 300, NULL), feed(lone, ids + 300, 1, want);

        feed(s[0], ids, 300, NULL);
        CHECK_OK(hola_session_save(s[0], path, HOLA_F32));
        CHECK_OK(hola_session_clone(&copy, s[0]));
        CHECK_OK(hola_session_load(other, path)); /* of the model that was saved and loaded */
        feed(other, ids + 300, 1, got), assert_memory_equal(got, want, bytes);
        feed(copy, ids + 300, 1, got), assert_memory_equal(got, want, bytes);

        feed(s[1], ids, 300, NULL);
        CHECK_OK(hola_session_mark(s[1]));
        feed(s[1], ids + 400, SOME, NULL);
        CHECK_OK(hola_session_rollback(s[1], SOME));
        feed(s[1], ids + 300, 1, got), assert_memory_equal(got, want, bytes);

        hola_history *h;
        int64_t reused;
        CHECK_OK(hola_history_new(&h, s[2], &(hola_history_opts){.every = 100}));
        CHECK_OK(hola_history_feed(h, ids, 300, got));
        CHECK_OK(hola_history_feed(h, ids + 500, SOME, got));
        CHECK_OK(hola_history_prompt(h, ids, 301, got, &reused));
        assert_int_equal(reused, 300);
        assert_memory_equal(got, want, bytes);
        hola_history_free(h);

        for (int k = 0; k < 3; k++) hola_session_reset(s[k]), feed(s[k], ids + k, 50, NULL);
        CHECK_OK(hola_session_step(s, 3, ids + 60, many));
        for (int k = 0; k < 3; k++) {
            hola_session_reset(lone), feed(lone, ids + k, 50, NULL), feed(lone, ids + 60 + k, 1, want);
            assert_memory_equal(many + k * vocab, want, bytes);
        }
        for (int k = 0; k < 3; k++) hola_session_free(s[k]);
        hola_session_free(lone), hola_session_free(other), hola_session_free(copy);
        free(want), free(got), free(many), free(ids);
        hola_model_free(m), hola_model_free(again);
    }
    free(path), free(model);
    temp_remove(dir);
}

/* A state of fixed size stays; one that grows does so in pages, and a damaged file of it is refused. */
static void sizes(void **state) {
    (void)state;
    for (int i = 0; i < MIXERS; i++) {
        hola_model *m = mixer_model(i, 1, NULL);
        hola_session *s;
        int32_t *ids = random_ids(N, m->cfg.vocab_size, 2);
        const int64_t page = 2 * 2 * HL_PAGE_TOKENS * attn_width(&m->cfg) * (int64_t)sizeof(real);
        CHECK_OK(hola_session_new(&s, m));
        const int64_t empty = hola_session_bytes(s);
        for (int64_t k = 0; k < N; k += 100) {
            feed(s, ids + k, 100, NULL);
            const int64_t pages = i == 1 ? (k + 100 + HL_PAGE_TOKENS - 1) / HL_PAGE_TOKENS : 0;
            assert_int_equal(hola_session_bytes(s), empty + pages * page);
        }
        char *file;
        int64_t size, longer = N + 1, wrong = INT64_MAX / 2;
        CHECK_OK(hl_snapshot_make(s, "f", HOLA_F32, &file, &size));
        assert_int_equal(size, hl_snapshot_bytes(m, HOLA_F32, N));
        for (int k = 0; i == 1 && k < 2; k++) { /* a position that the file has no rows for */
            memcpy(file + 32, k ? &wrong : &longer, 8);
            const uint64_t sum = hl_snapshot_sum(file, size);
            memcpy(file + 56, &sum, 8);
            assert_int_equal(hl_snapshot_parse(s, file, size, "f"), HOLA_EFORMAT);
        }
        free(file), free(ids);
        hola_session_free(s);
        hola_model_free(m);
    }
}

static int64_t pages_left;
static void *(*real_alloc)(struct hl_backend *, int64_t);
static void *few_pages(struct hl_backend *b, int64_t bytes) { return pages_left-- > 0 ? real_alloc(b, bytes) : NULL; }
/* Running out of memory is one line that says how many tokens fit; the session goes on from where it was. */
static void out_of_memory(void **state) {
    hola_model *m = mixer_model(1, 1, NULL);
    hola_session *s;
    int32_t *ids = random_ids(N, m->cfg.vocab_size, 2);
    float logits[97];
    (void)state;
    CHECK_OK(hola_session_new(&s, m));
    feed(s, ids, 200, NULL);
    real_alloc = m->backend->storage.alloc;
    m->backend->storage.alloc = few_pages, pages_left = 1;
    assert_int_equal(hola_session_feed(s, ids + 200, 500, logits), HOLA_ENOMEM);
    assert_non_null(strstr(hola_last_error(), "512 fit"));
    assert_int_equal(hola_session_position(s), 200);
    m->backend->storage.alloc = real_alloc;
    feed(s, ids + 200, 312, logits);
    assert_int_equal(s->now.state.pages, 2);
    free(ids);
    hola_session_free(s);
    hola_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(training_lowers_the_loss),
                                       cmocka_unit_test(any_cut_is_the_whole), cmocka_unit_test(sessions),
                                       cmocka_unit_test(sizes), cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
