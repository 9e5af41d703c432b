/* test_transformer.c -- whole transformers: any cut of a text and any number of threads give the same bits; sessions
 * grow by pages or keep a ring; memory that runs out; sessions of other models; weights in fewer bits. */
#define _GNU_SOURCE
#include "models.h"
#include "core/file.h"
#include "model/session.h"
#include "ops/attention/attention_cpu.h"
#include "temp.h"

enum { N = 2 * HL_PAGE_TOKENS + 60, WINDOW = 20 };
#define SHAPE "\"model_type\":\"transformer\",\"num_heads\":4,\"num_kv_heads\":2,"
static const char *const configs[] = {
    "{" TINY SHAPE "\"window_size\":null}",
    "{" TINY SHAPE "\"qkv_bias\":true,\"qk_norm\":true,\"window_size\":20,\"rope_theta\":1000}",
    "{" TINY SHAPE "\"qk_norm\":true,\"window_size\":1}",
    "{" TINY "\"model_type\":\"transformer\",\"num_heads\":3,\"window_size\":300}",
    "{" TINY "\"model_type\":\"transformer\",\"num_heads\":24,\"num_kv_heads\":1}",
};
enum { CONFIGS = sizeof configs / sizeof *configs, GROWS = 0, RING = 1 };

static hola_model *model(int i, int threads, const char *backend) {
    hola_config c;
    hola_model *m;
    CHECK_OK(hl_config_parse(&c, configs[i], (int64_t)strlen(configs[i]), "test"));
    CHECK_OK(hola_model_new(&m, &c, 7, &(hola_options){.threads = threads, .backend = backend}));
    return m;
}

/* Not closely: to the bit. The reference differs from the fast forms by rounding alone. */
static void any_cut_has_the_same_bits(void **state) {
    static const int64_t pieces[] = {
        1, 19, 20, 21, ATTENTION_KEYS, HL_PAGE_TOKENS - 1, HL_PAGE_TOKENS, HL_PAGE_TOKENS + 1};
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        hola_model *ref = model(i, 1, "cpu-ref");
        int32_t *ids = random_ids(N, ref->cfg.vocab_size, 5);
        double *right = scores(ref, ids, N, N);
        for (int b = 0; check_backend(b); b++) {
            if (!hl_ops_named(check_backend(b))) continue;
            hola_model *m = model(i, 1, check_backend(b)), *threads = model(i, 3, check_backend(b));
            double *whole = scores(m, ids, N, N);
            assert_true(farthest(whole, right, N - 1) < 2e-5);
            for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
                double *cut = scores(k % 2 ? threads : m, ids, N, pieces[k]);
                if (memcmp(cut, whole, (N - 1) * sizeof *cut) != 0)
                    fail_msg("config %d, %s: pieces of %d change the bits", i, check_backend(b), (int)pieces[k]);
                free(cut);
            }
            free(whole);
            hola_model_free(m), hola_model_free(threads);
        }
        free(ids), free(right);
        hola_model_free(ref);
    }
}

/* A window is really one: tokens before it do not matter, the first one in it does. One layer sees the window, two see
 * nearly twice as far. */
static void windows_end(void **state) {
    const int64_t vocab = 97, reach = 2 * (WINDOW - 1);
    hola_model *m = model(RING, 1, NULL);
    int32_t *ids = random_ids(100, vocab, 5);
    float want[97], got[97];
    hola_session *s;
    (void)state;
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_feed(s, ids, 100, want));
    for (int64_t back = reach; back <= reach + 1; back++) {
        const int32_t keep = ids[99 - back];
        ids[99 - back] = (keep + 1) % (int32_t)vocab;
        hola_session_reset(s);
        CHECK_OK(hola_session_feed(s, ids, 100, got));
        assert_int_equal(memcmp(got, want, sizeof got) == 0, back > reach);
        ids[99 - back] = keep;
    }
    hola_session_free(s);
    free(ids);
    hola_model_free(m);
}

/* Bytes follow the pages exactly; with a window they stay. */
static void sizes(void **state) {
    (void)state;
    for (int i = GROWS; i <= RING; i++) {
        hola_model *m = model(i, 1, NULL);
        int32_t *ids = random_ids(N, m->cfg.vocab_size, 5);
        const int64_t row = 2 * 24 * (int64_t)sizeof(real), layers = 2; /* keys and values: 2 heads of 12 each */
        hola_session *s;
        CHECK_OK(hola_session_new(&s, m));
        const int64_t empty = hola_session_bytes(s);
        assert_int_equal(empty, i == GROWS ? 0 : layers * WINDOW * row);
        for (int64_t k = 0; k < N; k += 50) {
            const int64_t n = k + 50 < N ? 50 : N - k;
            CHECK_OK(hola_session_feed(s, ids + k, n, NULL));
            const int64_t pages = i == GROWS ? hl_pieces(k + n, HL_PAGE_TOKENS) : 0;
            assert_int_equal(hola_session_bytes(s), empty + pages * layers * HL_PAGE_TOKENS * row);
        }
        hola_session_reset(s);
        assert_int_equal(hola_session_bytes(s), empty);
        hola_session_free(s);
        free(ids);
        hola_model_free(m);
    }
}

static int64_t blocks_left;
static void *(*real_alloc)(struct hl_backend *, int64_t);
static void *few(struct hl_backend *b, int64_t bytes) { return blocks_left-- > 0 ? real_alloc(b, bytes) : NULL; }

/* The message names the length that fits; what was fed stays, and shorter pieces still go. */
static void memory_runs_out(void **state) {
    hola_model *m = model(GROWS, 1, NULL);
    int32_t *ids = random_ids(N, m->cfg.vocab_size, 5);
    double lp[HL_PAGE_TOKENS];
    hola_session *s;
    (void)state;
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_score(s, ids, ids + 1, 200, lp)); /* the activations are there now */
    real_alloc = m->backend->storage.alloc;
    m->backend->storage.alloc = few;
    blocks_left = 1;
    CHECK_OK(hola_session_score(s, ids, ids + 1, 150, lp));
    blocks_left = 0;
    assert_int_equal(hola_session_score(s, ids, ids + 1, 200, lp), HOLA_ENOMEM);
    assert_string_equal(hola_last_error(), "session: no memory for 550 tokens, 512 fit");
    assert_int_equal(hola_session_position(s), 350);
    CHECK_OK(hola_session_score(s, ids, ids + 1, 162, lp));
    hola_session *copy;
    assert_int_equal(hola_session_clone(&copy, s), HOLA_ENOMEM);
    m->backend->storage.alloc = real_alloc;
    CHECK_OK(hola_session_score(s, ids, ids + 1, 1, lp));
    hola_session_free(s);
    free(ids);
    hola_model_free(m);
}

/* A saved session is of one model: another type, or another window, refuses it and stays as it was. */
static void other_models_refuse(void **state) {
    static const char *const others[] = {"{" TINY "\"model_type\":\"delta_net\",\"num_heads\":3}",
                                         "{" TINY SHAPE "\"window_size\":21}", "{" TINY SHAPE "\"rope_theta\":500}"};
    char *dir = temp_new(), *path = hl_path_join(dir, "session");
    hola_model *m = model(GROWS, 1, NULL);
    int32_t *ids = random_ids(N, m->cfg.vocab_size, 5);
    hola_session *s;
    (void)state;
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_feed(s, ids, 300, NULL));
    CHECK_OK(hola_session_save(s, path, HOLA_F32));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        hola_config c;
        hola_model *other;
        hola_session *t;
        CHECK_OK(hl_config_parse(&c, others[i], (int64_t)strlen(others[i]), "test"));
        CHECK_OK(hola_model_new(&other, &c, 7, &(hola_options){.threads = 1}));
        CHECK_OK(hola_session_new(&t, other));
        CHECK_OK(hola_session_feed(t, ids, 3, NULL));
        assert_true(hola_session_load(t, path) != HOLA_OK);
        assert_non_null(strstr(hola_last_error(), "another"));
        assert_int_equal(hola_session_position(t), 3);
        hola_session_free(t);
        hola_model_free(other);
    }
    hola_session_free(s);
    hola_model_free(m);
    free(ids), free(path);
    temp_remove(dir);
}

/* Stored in fewer bits: as close as the bits allow, and still the same for any cut. */
static void fewer_bits(void **state) {
    static const struct {
        hola_dtype dtype;
        double most;
    } cases[] = {{HOLA_BF16, 0.2}, {HOLA_INT8, 0.3}, {HOLA_INT4, 8}};
    char *dir = temp_new(), *path = hl_path_join(dir, "m");
    hola_model *m = model(GROWS, 1, NULL);
    int32_t *ids = random_ids(N, m->cfg.vocab_size, 5);
    double *whole = scores(m, ids, N, N);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hola_model *few_bits;
        CHECK_OK(hola_model_save(m, path, cases[i].dtype));
        CHECK_OK(hola_model_load(&few_bits, path, &(hola_options){.threads = 2}));
        double *got = scores(few_bits, ids, N, N), *cut = scores(few_bits, ids, N, 37);
        const double e = farthest(got, whole, N - 1);
        if (!(e > 1e-6 && e < cases[i].most)) fail_msg("%s: %g away", hola_dtype_name(cases[i].dtype), e);
        assert_memory_equal(got, cut, (N - 1) * sizeof *got);
        free(got), free(cut);
        hola_model_free(few_bits);
    }
    free(ids), free(whole), free(path);
    hola_model_free(m);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_has_the_same_bits),
        cmocka_unit_test(windows_end),
        cmocka_unit_test(sizes),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(other_models_refuse),
        cmocka_unit_test(fewer_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
