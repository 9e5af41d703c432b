/* test_bindings.c -- what hola.h has for bindings of other languages. */
#include "models.h"
#include "model/session.h"

static void sizes(void **state) {
    (void)state;
    assert_int_equal(hola_sizeof("hola_config"), sizeof(hola_config));
    assert_int_equal(hola_sizeof("hola_options"), sizeof(hola_options));
    assert_int_equal(hola_sizeof("hola_tensor_info"), sizeof(hola_tensor_info));
    assert_int_equal(hola_sizeof("hola_sampling"), sizeof(hola_sampling));
    assert_int_equal(hola_sizeof("hola_history_opts"), sizeof(hola_history_opts));
    assert_int_equal(hola_sizeof("hola_train_opts"), sizeof(hola_train_opts));
    assert_int_equal(hola_sizeof("hola"), 0);
    assert_int_equal(hola_sizeof(""), 0);
    assert_true(hola_cuda_devices() >= 0);
    assert_true(!hola_cuda_version() == !hola_cuda_arch());
}

static void config_from_text(void **state) {
    static const char good[] = "{\"model_type\": \"hola\", \"hidden_size\": 96, \"num_heads\": 3, \"head_dim\": 32}";
    hola_config c;
    (void)state;
    CHECK_OK(hola_config_parse(&c, good, (int64_t)strlen(good)));
    assert_int_equal(c.hidden_size, 96);
    assert_int_equal(c.num_v_heads, 3);
    assert_int_equal(c.head_v_dim, 64);
    c.hidden_size = 7;
    assert_int_equal(hola_config_parse(&c, good, (int64_t)strlen(good) - 1), HOLA_EFORMAT);
    assert_int_equal(hola_config_parse(&c, good, 0), HOLA_EFORMAT);
    assert_int_equal(hola_config_parse(&c, good, -1), HOLA_EINVAL);
    assert_int_equal(hola_config_parse(&c, "{\"model_type\": \"x\"}", 19), HOLA_ENOTSUP);
    assert_int_equal(c.hidden_size, 7); /* untouched by failures */
}

static void kept_positions(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    const hola_config *c = hola_model_config(m);
    int32_t *ids = random_ids(200, c->vocab_size, 3);
    int64_t pos[64], count = -1;
    float score[64], *logits = malloc((size_t)c->vocab_size * sizeof *logits);
    hola_session *s;
    (void)state;
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_kept(s, 0, 0, pos, score, &count));
    assert_int_equal(count, 0);
    CHECK_OK(hola_session_feed(s, ids, 200, logits));
    for (int64_t layer = 0; layer < c->num_hidden_layers; layer++) {
        CHECK_OK(hola_session_kept(s, layer, c->num_v_heads - 1, pos, NULL, &count));
        assert_int_equal(count, c->cache_window);
        for (int64_t i = 0; i < count; i++) assert_true(pos[i] >= 0 && pos[i] < 192 && (i == 0 || pos[i - 1] < pos[i]));
    }
    assert_int_equal(hola_session_kept(s, c->num_hidden_layers, 0, pos, score, &count), HOLA_EINVAL);
    assert_int_equal(hola_session_kept(s, 0, c->num_v_heads, pos, score, &count), HOLA_EINVAL);
    hola_session_free(s);
    hola_model_free(m);
    free(ids), free(logits);
}

/* Against one session per sequence. */
static void many_scores(void **state) {
    const int64_t starts[] = {0, 5, 12, 14, 90}, asked[] = {2, 6, 1, 40};
    (void)state;
    for (int v = 0; v < VARIANTS; v += 5) {
        hola_model *m = variant_model(v, 2, NULL);
        int32_t *ids = random_ids(90, m->cfg.vocab_size, 9);
        double sum[4], logprobs[90];
        bool greedy[4];
        memcpy(ids + 5, ids, 4 * sizeof *ids); /* two that begin alike */
        CHECK_OK(hola_model_score(m, ids, starts, asked, 4, sum, greedy));
        for (int i = 0; i < 4; i++) {
            const int64_t n = starts[i + 1] - starts[i];
            double want = 0;
            hola_session *s;
            CHECK_OK(hola_session_new(&s, m));
            CHECK_OK(hola_session_score(s, ids + starts[i], ids + starts[i] + 1, n - 1, logprobs));
            for (int64_t k = n - 1 - asked[i]; k < n - 1; k++) want += logprobs[k];
            assert_true(fabs(want - sum[i]) < 1e-3);
            hola_session_free(s);
        }
        assert_true(fabs(sum[0] - sum[1]) > 1e-2);
        int64_t wrong[] = {2, 7, 1, 40};
        assert_int_equal(hola_model_score(m, ids, starts, wrong, 4, sum, greedy), HOLA_EINVAL);
        wrong[1] = 0;
        assert_int_equal(hola_model_score(m, ids, starts, wrong, 4, sum, greedy), HOLA_EINVAL);
        ids[3] = (int32_t)m->cfg.vocab_size;
        assert_int_equal(hola_model_score(m, ids, starts, asked, 4, sum, greedy), HOLA_EINVAL);
        CHECK_OK(hola_model_score(m, ids, starts, asked, 0, sum, greedy));
        free(ids);
        hola_model_free(m);
    }
}

/* The likeliest next token is greedy, another is not. */
static void greedy_tokens(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    int32_t *ids = random_ids(22, m->cfg.vocab_size, 4), best = 0;
    const int64_t starts[] = {0, 11, 22}, asked[] = {1, 1};
    float *logits = malloc((size_t)m->cfg.vocab_size * sizeof *logits);
    double sum[2];
    bool greedy[2];
    hola_session *s;
    (void)state;
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_feed(s, ids, 10, logits));
    for (int32_t i = 1; i < m->cfg.vocab_size; i++)
        if (logits[i] > logits[best]) best = i;
    memcpy(ids + 11, ids, 10 * sizeof *ids);
    ids[10] = best, ids[21] = best ? 0 : 1;
    CHECK_OK(hola_model_score(m, ids, starts, asked, 2, sum, greedy));
    assert_true(greedy[0] && !greedy[1] && sum[0] > sum[1]);
    hola_session_free(s);
    hola_model_free(m);
    free(ids), free(logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),       cmocka_unit_test(config_from_text), cmocka_unit_test(kept_positions),
        cmocka_unit_test(many_scores), cmocka_unit_test(greedy_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
