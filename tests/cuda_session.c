/* cuda_session.c -- sessions whose state lives on a device: clones, marks, points and files of them, and a file
 * that goes from the device to the CPU. */
#define _GNU_SOURCE
#include "cuda.h"
#include "models.h"
#include "model/session.h"
#include "model/cache_view.h"
#include "temp.h"
#include <math.h>

#define BODY                                                                                          \
    "{\"model_type\":\"hola\",\"hidden_size\":64,\"num_heads\":2,\"head_dim\":32,\"expand_v\":1,"     \
    "\"num_hidden_layers\":2,\"vocab_size\":101,\"intermediate_size\":96,\"initializer_range\":0.15," \
    "\"cache_gate_init\":0.5,\"cache_window\":8,\"cache_chunk\":16}"
enum { VOCAB = 101 };

static hola_model *model_on(const char *backend) {
    hola_options opt = {.threads = 1, .backend = backend};
    hola_config cfg;
    hola_model *m;
    CHECK_OK(hl_config_parse(&cfg, BODY, (int64_t)strlen(BODY), "config"));
    if (hola_model_new(&m, &cfg, 7, &opt) == HOLA_OK) return m;
    print_message("%s\n", hola_last_error());
    return NULL;
}
static hola_session *after(hola_model *m, const int32_t *ids, int64_t n) {
    hola_session *s;
    float logits[VOCAB];
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_feed(s, ids, n, logits));
    return s;
}
/* Both give the same bits for some tokens, over the end of a block. */
static void alike(hola_session *a, hola_session *b, const int32_t *ids, const char *what) {
    float x[VOCAB], y[VOCAB];
    assert_int_equal(hola_session_position(a), hola_session_position(b));
    assert_memory_equal(hola_session_logits(a), hola_session_logits(b), sizeof x);
    for (int i = 0; i < 6; i++) {
        CHECK_OK(hola_session_feed(a, ids + i, 1, x));
        CHECK_OK(hola_session_feed(b, ids + i, 1, y));
        if (memcmp(x, y, sizeof x)) fail_msg("%s: other logits", what);
    }
}

/* A memory of the latest tokens, token by token: where they stood is known. */
static void positions_of_what_is_kept(void **state) {
    hola_config cfg;
    hola_model *m;
    int32_t *ids = random_ids(40, VOCAB, 3);
    int64_t pos[8], count;
    (void)state;
    CHECK_OK(hl_config_parse(&cfg, BODY, (int64_t)strlen(BODY), "config"));
    cfg.cache_evict = HOLA_EVICT_RECENCY;
    if (hola_model_new(&m, &cfg, 7, &(hola_options){.threads = 1, .backend = "cuda"}) != HOLA_OK) skip();
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    for (int i = 0; i < 40; i++) CHECK_OK(hola_session_feed(s, ids + i, 1, NULL));
    for (int64_t head = 0; head < 4; head++) {
        CHECK_OK(hl_session_kept(s, head / 2, head % 2, pos, NULL, &count));
        assert_int_equal(count, 8);
        for (int64_t i = 0; i < count; i++) assert_int_equal(pos[i], 32 - count + i);
    }
    hola_session_free(s);
    hola_model_free(m);
    free(ids);
}

/* One set per layer: no fused kernel knows of other heads, so these models are decoded op by op, alone and in a batch;
 * and over the ends of blocks the heads keep the same tokens. Those of a set per head keep different ones. */
static void one_set_per_layer(void **state) {
    enum { SESSIONS = 2, PROMPT = 20, STEPS = 30 };
    int32_t *ids = random_ids(PROMPT + STEPS, VOCAB, 3);
    (void)state;
    for (int layer_set = 0; layer_set < 2; layer_set++) {
        hola_config cfg;
        hola_model *m;
        hola_session *s[SESSIONS];
        struct hl_decode decode;
        float logits[SESSIONS * VOCAB];
        int64_t apart = 0, pos[2][8], count;
        CHECK_OK(hl_config_parse(&cfg, BODY, (int64_t)strlen(BODY), "config"));
        cfg.head_dim = cfg.head_v_dim = 64;
        cfg.cache_layer_set = layer_set;
        if (hola_model_new(&m, &cfg, 7, &(hola_options){.threads = 1, .backend = "cuda"}) != HOLA_OK) skip();
        for (int i = 0; i < SESSIONS; i++) s[i] = after(m, ids + i, PROMPT - i);
        for (int64_t n = 1; n <= SESSIONS; n++) {
            const struct hl_rows rows = {.T = n, .n = n};
            assert_true((hl_decode_plan(m, &rows, &decode) == HL_BY_OPS) == layer_set);
        }
        for (int t = PROMPT; t < PROMPT + STEPS; t++) {
            const int32_t next[SESSIONS] = {ids[t], ids[t - 1]};
            CHECK_OK(hola_session_step(s, t % 3 ? SESSIONS : 1, next, logits));
        }
        for (int i = 0; i < SESSIONS * 2; i++) {
            for (int64_t head = 0; head < 2; head++) {
                CHECK_OK(hl_session_kept(s[i / 2], i % 2, head, pos[head], NULL, &count));
                assert_int_equal(count, 8);
            }
            apart += memcmp(pos[0], pos[1], sizeof pos[0]) != 0;
        }
        assert_true((apart == 0) == layer_set);
        for (int i = 0; i < SESSIONS; i++) hola_session_free(s[i]);
        hola_model_free(m);
    }
    free(ids);
}

static void copies_of_a_session(void **state) {
    hola_model *m = model_on("cuda");
    char *dir = temp_new(), *path = hl_path_join(dir, "session");
    float logits[VOCAB];
    (void)state;
    if (!m) skip();
    int32_t *ids = random_ids(100, VOCAB, 3);
    hola_session *a = after(m, ids, 43), *b, *c, *d = after(m, ids + 9, 20);
    CHECK_OK(hola_session_clone(&b, a));
    CHECK_OK(hola_session_save(a, path, HOLA_F32));
    CHECK_OK(hola_session_load(d, path));
    CHECK_OK(hola_session_mark(b));
    CHECK_OK(hola_session_feed(b, ids + 60, 10, NULL)); /* closes a block */
    CHECK_OK(hola_session_rollback(b, 10));
    c = after(m, ids, 43);
    alike(a, d, ids + 80, "loaded");
    alike(b, c, ids + 80, "rolled back");
    /* a session that was not rolled back is another */
    hola_session *wrong = after(m, ids, 43);
    CHECK_OK(hola_session_feed(wrong, ids + 60, 1, logits));
    assert_memory_not_equal(logits, hola_session_logits(c), sizeof logits);
    hola_session_free(a), hola_session_free(b), hola_session_free(c), hola_session_free(d);
    hola_session_free(wrong);
    free(ids), free(path);
    temp_remove(dir);
    hola_model_free(m);
}

static void history_on_a_device(void **state) {
    hola_model *m = model_on("cuda");
    const hola_history_opts opt = {.every = 16, .most = 3};
    float logits[VOCAB];
    hola_session *a, *b;
    hola_history *h, *g;
    int64_t reused;
    (void)state;
    if (!m) skip();
    int32_t *ids = random_ids(100, VOCAB, 3);
    CHECK_OK(hola_session_new(&a, m));
    CHECK_OK(hola_session_new(&b, m));
    CHECK_OK(hola_history_new(&h, a, &opt));
    CHECK_OK(hola_history_new(&g, b, &opt));
    CHECK_OK(hola_history_prompt(h, ids, 50, logits, &reused));
    ids[40] = (ids[40] + 1) % VOCAB;
    CHECK_OK(hola_history_prompt(h, ids, 52, logits, &reused));
    assert_int_equal(reused, 32);
    CHECK_OK(hola_history_prompt(g, ids, 52, logits, &reused));
    assert_int_equal(reused, 0);
    alike(a, b, ids + 70, "a changed prompt");
    hola_history_free(h), hola_history_free(g);
    hola_session_free(a), hola_session_free(b);
    free(ids);
    hola_model_free(m);
}

/* The file is the same kind of thing on both: near, as the two compute in other types. */
static void from_device_to_cpu(void **state) {
    hola_model *m = model_on("cuda-f32"), *host = model_on("cpu");
    char *dir = temp_new(), *path = hl_path_join(dir, "session");
    float x[VOCAB], y[VOCAB];
    double far = 0;
    (void)state;
    if (!m) skip();
    int32_t *ids = random_ids(100, VOCAB, 3);
    hola_session *a = after(m, ids, 43), *b;
    CHECK_OK(hola_session_new(&b, host));
    CHECK_OK(hola_session_save(a, path, HOLA_F32));
    CHECK_OK(hola_session_load(b, path));
    for (int i = 0; i < 8; i++) {
        CHECK_OK(hola_session_feed(a, ids + 60 + i, 1, x));
        CHECK_OK(hola_session_feed(b, ids + 60 + i, 1, y));
        for (int k = 0; k < VOCAB; k++) far = fmax(far, fabs((double)x[k] - (double)y[k]));
    }
    assert_true(far < 1e-3);
    hola_session_free(a), hola_session_free(b);
    free(ids), free(path);
    temp_remove(dir);
    hola_model_free(m), hola_model_free(host);
}

/* Rows of the exact memory are bf16 on the device and floats in the file and on the CPU: there and back nothing is
 * lost, and the session is the smaller one there. */
static void rows_keep_their_bits(void **state) {
    hola_model *m = model_on("cuda"), *host = model_on("cpu");
    char *dir = temp_new(), *path = hl_path_join(dir, "session"), *again = hl_path_join(dir, "again");
    int64_t size, other;
    (void)state;
    if (!m) skip();
    int32_t *ids = random_ids(100, VOCAB, 3);
    hola_session *a = after(m, ids, 43), *b = after(host, ids, 5), *c = after(m, ids + 9, 20);
    assert_int_equal(hola_session_bytes(b) - hola_session_bytes(a), 2 * 2 * (8 + 16) * (32 + 32) * 2);
    CHECK_OK(hola_session_feed(a, ids + 43, 1, NULL)); /* a row of decoding among those of the prompt */
    CHECK_OK(hola_session_feed(a, ids + 44, 1, (float[VOCAB]){0}));
    CHECK_OK(hola_session_save(a, path, HOLA_F32));
    CHECK_OK(hola_session_load(b, path));
    CHECK_OK(hola_session_save(b, again, HOLA_F32));
    CHECK_OK(hola_session_load(c, again));
    char *x = temp_read(dir, "session", &size), *y = temp_read(dir, "again", &other);
    assert_int_equal(size, other);
    assert_memory_equal(x, y, (size_t)size);
    alike(a, c, ids + 80, "through the CPU");
    CHECK_OK(hola_session_feed(b, ids + 80, 1, NULL)); /* the CPU's rows are no bf16: another file */
    CHECK_OK(hola_session_save(b, again, HOLA_F32));
    free(y);
    y = temp_read(dir, "again", &other);
    assert_memory_not_equal(x, y, (size_t)size);
    free(x), free(y);
    hola_session_free(a), hola_session_free(b), hola_session_free(c);
    free(ids), free(path), free(again);
    temp_remove(dir);
    hola_model_free(m), hola_model_free(host);
}

static bool count_calls(void *calls, int64_t done, int64_t total) {
    assert_true(done < total);
    ++*(int *)calls;
    return true;
}
static double furthest(const float *x, const float *y) {
    double most = 0;
    for (int i = 0; i < VOCAB; i++) most = fmax(most, fabs((double)(x[i] - y[i])));
    return most;
}
/* A device takes a long prompt in one piece where pieces of 8192 tokens would be two, to the same logits. */
static void long_prompts(void **state) {
    enum { USUAL = 8192, N = USUAL + 300 };
    const char body[] =
        "{\"model_type\":\"hola\",\"hidden_size\":32,\"num_heads\":1,\"head_dim\":32,\"expand_v\":1,"
        "\"num_hidden_layers\":1,\"vocab_size\":101,\"intermediate_size\":32,\"initializer_range\":0.15,"
        "\"cache_gate_init\":0.5,\"cache_window\":8,\"cache_chunk\":64}";
    int32_t *ids = random_ids(N, VOCAB, 5);
    hola_config cfg;
    hola_model *m;
    hola_session *whole, *cut, *wrong;
    float x[VOCAB], y[VOCAB], z[VOCAB];
    int calls = 0;
    (void)state;
    CHECK_OK(hl_config_parse(&cfg, body, (int64_t)strlen(body), "config"));
    if (hola_model_new(&m, &cfg, 7, &(hola_options){.threads = 1, .backend = "cuda"}) != HOLA_OK) skip();
    CHECK_OK(hola_session_new(&whole, m));
    CHECK_OK(hola_session_new(&cut, m));
    CHECK_OK(hola_session_feed(cut, ids, USUAL, NULL));
    CHECK_OK(hola_session_clone(&wrong, cut));
    CHECK_OK(hola_session_feed(cut, ids + USUAL, N - USUAL, y));
    CHECK_OK(hola_session_feed(wrong, ids + USUAL + 20, N - USUAL - 20, z)); /* without 20 tokens */
    hola_session_on_progress(whole, count_calls, &calls);
    CHECK_OK(hola_session_feed(whole, ids, N, x));
    assert_int_equal(calls, 0);
    const double right = furthest(x, y), different = furthest(x, z);
    print_message("in one piece and in two: %.4f apart; without 20 tokens: %.4f\n", right, different);
    assert_true(right < 0.05 && different > 4 * right);
    hola_session_free(whole), hola_session_free(cut), hola_session_free(wrong);
    hola_model_free(m);
    free(ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(positions_of_what_is_kept),
                                       cmocka_unit_test(one_set_per_layer),
                                       cmocka_unit_test(copies_of_a_session),
                                       cmocka_unit_test(history_on_a_device),
                                       cmocka_unit_test(from_device_to_cpu),
                                       cmocka_unit_test(rows_keep_their_bits),
                                       cmocka_unit_test(long_prompts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
