/* test_library.c -- what programs build on: options of any size, logits that nobody asked for, text in and out, progress,
 * tokens by name. */
#define _GNU_SOURCE
#include "models.h"
#include "temp.h"
#pragma GCC diagnostic ignored "-Wunused-function" /* of the tokenizer's cases only the models are used */
#include "tokenizer_case.h"
#include "core/text.h"

/* ---- options ---- */

static void options_of_any_size(void **state) {
    const hola_config cfg = variant_config(0);
    hola_model *m;
    (void)state;
    CHECK_OK(hola_model_new(&m, &cfg, 1, &(hola_options){.threads = 1})); /* size 0: the fields of 0.2 */
    assert_int_equal(hl_pool_threads(m->backend->pool), 1);
    hola_model_free(m);
    CHECK_OK(hola_model_new(&m, &cfg, 1,
                            &(hola_options){.size = sizeof(hola_options), .threads = 2, .backend = "cpu-base"}));
    assert_int_equal(hl_pool_threads(m->backend->pool), 2);
    assert_string_equal(m->backend->ops.name, "cpu-base");
    hola_model_free(m);
    CHECK_FAILS(hola_model_new(&m, &cfg, 1, &(hola_options){.size = 8}), HOLA_EINVAL, "hola_options: size 8");
    /* a program of a later version, with fields that are not known here */
    struct {
        hola_options o;
        char more[16];
    } later = {.o = {.size = sizeof later, .threads = 1}};
    CHECK_OK(hola_model_new(&m, &cfg, 1, &later.o));
    hola_model_free(m);
    later.more[3] = 1;
    CHECK_FAILS(hola_model_new(&m, &cfg, 1, &later.o), HOLA_ENOTSUP, "hola_options: byte");
    later.o.size = sizeof later.o; /* what lies behind it is no matter of ours */
    CHECK_OK(hola_model_new(&m, &cfg, 1, &later.o));

    hola_session *s;
    hola_history *h;
    hola_trainer *t;
    hola_sampling p = hola_sampling_default();
    int32_t id = 3;
    CHECK_OK(hola_session_new(&s, m));
    CHECK_FAILS(hola_history_new(&h, s, &(hola_history_opts){.size = 9}), HOLA_EINVAL, "hola_history_opts: size 9");
    CHECK_FAILS(hola_trainer_new(&t, m, &(hola_train_opts){.size = 9}), HOLA_EINVAL, "hola_train_opts: size 9");
    CHECK_OK(hola_session_feed(s, &id, 1, NULL));
    p.size = 16;
    CHECK_FAILS(hola_session_sample(s, &p, &id), HOLA_EINVAL, "hola_sampling: size 16");
    CHECK_FAILS(hola_session_step_sample(&s, 1, &id, &p, &id), HOLA_EINVAL, "hola_sampling: size 16");
    CHECK_FAILS(hola_generate(s, NULL, &(hola_generate_opts){.size = 9}, NULL, NULL), HOLA_EINVAL, "size 9");
    p.size = 0;
    CHECK_OK(hola_session_sample(s, &p, &id));
    hola_session_free(s);
    hola_model_free(m);
}

static void best_backend(void **state) {
    hola_model *m = variant_model(0, 1, "auto");
    (void)state;
    assert_string_equal(m->backend->host ? "cpu" : "cuda", hl_backend_best());
    hola_model_free(m);
}

/* ---- logits that nobody asked for ---- */

static void sampling_needs_no_buffer(void **state) {
    enum { N = 700 }; /* more than a pass */
    hola_model *m = variant_model(0, 2, NULL);
    const int64_t vocab = m->cfg.vocab_size;
    int32_t *ids = random_ids(N, vocab, 3), a, b;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    hola_session *s, *t;
    (void)state;
    const int64_t lengths[] = {1, 2, 513, N};
    for (int i = 0; i < 4; i++) {
        CHECK_OK(hola_session_new(&s, m));
        CHECK_OK(hola_session_new(&t, m));
        CHECK_FAILS(hola_session_sample(s, NULL, &a), HOLA_EINVAL, "empty");
        CHECK_OK(hola_session_feed(s, ids, lengths[i], NULL));
        CHECK_OK(hola_session_feed(t, ids, lengths[i], logits));
        assert_non_null(hola_session_logits(s));
        assert_memory_equal(hola_session_logits(s), logits, (size_t)vocab * sizeof *logits);
        CHECK_OK(hola_session_sample(s, NULL, &a));
        CHECK_OK(hola_session_sample(t, NULL, &b));
        assert_int_equal(a, b);
        CHECK_OK(hola_session_step(&s, 1, ids, NULL));
        assert_null(hola_session_logits(s));
        CHECK_FAILS(hola_session_sample(s, NULL, &a), HOLA_EINVAL, "no logits");
        hola_session_free(s), hola_session_free(t);
    }
    free(ids), free(logits);
    hola_model_free(m);
}

/* ---- progress ---- */

struct told {
    int64_t done[8], total;
    int n, most; /* stop after so many */
};
static bool tell(void *ctx, int64_t done, int64_t total) {
    struct told *t = ctx;
    assert_true(t->n < 8);
    t->done[t->n++] = done, t->total = total;
    return t->n < t->most;
}

static void progress_and_cancel(void **state) {
    enum { N = 1700 };
    hola_model *m = variant_model(0, 2, NULL);
    int32_t *ids = random_ids(N, m->cfg.vocab_size, 4), id;
    double *p = calloc(N, sizeof *p);
    hola_session *s, *copy;
    hola_history *h;
    struct told t = {.most = 8};
    (void)state;
    CHECK_OK(hola_session_new(&s, m));
    hola_session_on_progress(s, tell, &t);
    CHECK_OK(hola_session_feed(s, ids, 512, NULL));
    assert_int_equal(t.n, 0); /* one pass */
    hola_session_reset(s);
    CHECK_OK(hola_session_feed(s, ids, N, NULL));
    assert_int_equal(t.n, 3);
    assert_true(t.done[0] == 512 && t.done[1] == 1024 && t.done[2] == 1536 && t.total == N);
    CHECK_OK(hola_session_clone(&copy, s)); /* without it */
    CHECK_OK(hola_session_feed(copy, ids, N, NULL));
    assert_int_equal(t.n, 3);

    t = (struct told){.most = 2};
    hola_session_reset(s);
    CHECK_FAILS(hola_session_feed(s, ids, N, NULL), HOLA_ECANCELLED, "after 1024 of 1700 tokens");
    assert_int_equal(hola_session_position(s), 1024);
    CHECK_FAILS(hola_session_sample(s, NULL, &id), HOLA_EINVAL, "no logits");
    t = (struct told){.most = 8};
    CHECK_OK(hola_session_feed(s, ids + 1024, N - 1024, NULL)); /* goes on */
    hola_session_reset(s);
    t = (struct told){.most = 1};
    CHECK_FAILS(hola_session_score(s, ids, ids, N, p), HOLA_ECANCELLED, "after 512 of 1700 tokens");

    hola_session_reset(s);
    CHECK_OK(hola_history_new(&h, s, NULL));
    t = (struct told){.most = 8};
    CHECK_OK(hola_history_feed(h, ids, N, NULL));
    assert_true(t.n == 3 && t.done[2] == 1536 && t.total == N);
    t = (struct told){.most = 1};
    CHECK_OK(hola_history_rollback(h, 100)); /* feeds tokens again, of which nobody is told */
    assert_int_equal(t.n, 0);
    assert_int_equal(hola_session_position(s), N - 100);
    t = (struct told){.most = 2};
    CHECK_FAILS(hola_history_prompt(h, ids + 1, N - 1, NULL, NULL), HOLA_ECANCELLED, "after 1024 of 1699");
    CHECK_OK(hola_history_keep(h)); /* it knows how far it came */
    assert_int_equal(hola_session_position(s), 1024);
    hola_history_free(h);
    hola_session_free(s), hola_session_free(copy);
    free(ids), free(p);
    hola_model_free(m);
}

/* ---- tokens and texts ---- */

static void tokens_by_name(void **state) {
    hola_tokenizer *t;
    char *text;
    int64_t len;
    (void)state;
    CHECK_OK(hola_tokenizer_load(&t, "byte"));
    CHECK_OK(hola_tokenizer_piece(t, 'x', &text, &len));
    assert_true(len == 1 && !strcmp(text, "x"));
    hola_free(text);
    CHECK_OK(hola_tokenizer_piece(t, 257, &text, &len));
    assert_int_equal(hola_tokenizer_special(t, text), 257);
    assert_int_equal(len, strlen(text));
    hola_free(text);
    assert_int_equal(hola_tokenizer_special(t, "x"), -1);
    assert_true(hola_tokenizer_is_special(t, 256) && !hola_tokenizer_is_special(t, 255));
    assert_false(hola_tokenizer_is_special(t, 258));
    CHECK_FAILS(hola_tokenizer_piece(t, 258, &text, &len), HOLA_EINVAL, "not below");
    CHECK_FAILS(hola_tokenizer_piece(t, -1, &text, &len), HOLA_EINVAL, "not below");
    hola_tokenizer_free(t);
}

/* A SentencePiece model, where U+2581 is a space: a token's text is what it adds to a text that it does not begin. */
static void tokens_of_a_file(void **state) {
    struct model model = random_model(3, true, true);
    static struct bytes file;
    char *dir = temp_new(), *path = hl_path_join(dir, "tokenizer.model");
    int specials = 0, spaces = 0;
    hola_tokenizer *t;
    (void)state;
    write_model(&model, &file);
    CHECK_OK(hl_write_file(path, file.data, file.n));
    CHECK_OK(hola_tokenizer_load(&t, path));
    for (int32_t id = 0; id < hola_tokenizer_size(t); id++) {
        const int32_t a = 'a' + 3, ids[] = {a, id}; /* bytes come behind the three special ones */
        char *one, *both, *before;
        int64_t n, n_both, n_before;
        CHECK_OK(hola_tokenizer_piece(t, id, &one, &n));
        CHECK_OK(hola_tokenizer_decode(t, ids, 1, &before, &n_before));
        CHECK_OK(hola_tokenizer_decode(t, ids, 2, &both, &n_both));
        if (hola_tokenizer_is_special(t, id)) {
            assert_int_equal(n_both, n_before);
            assert_int_equal(hola_tokenizer_special(t, one), id);
            specials++;
        } else {
            assert_int_equal(n_both, n_before + n);
            assert_memory_equal(both + n_before, one, (size_t)n);
            spaces += n > 0 && one[0] == ' ';
        }
        hola_free(one), hola_free(both), hola_free(before);
    }
    assert_true(specials >= 2 && spaces > 0);
    hola_tokenizer_free(t);
    free(path);
    temp_remove(dir);
}

struct heard {
    struct hl_text text;
    int32_t id[512];
    int64_t n, most; /* stop after so many tokens */
    const hola_session *s;
    bool logits;
};
static bool hear(void *ctx, int32_t id, const char *text, int64_t len) {
    struct heard *h = ctx;
    assert_true(h->n < 512);
    if (id >= 0) h->id[h->n++] = id;
    h->logits = h->s && hola_session_logits(h->s);
    CHECK_OK(hl_text_put(&h->text, text, len));
    return h->most == 0 || h->n < h->most;
}

static hola_model *byte_model(void) {
    hola_config cfg = variant_config(0);
    hola_model *m;
    cfg.vocab_size = 258, cfg.bos_token_id = 256, cfg.eos_token_id = 257;
    CHECK_OK(hola_model_new(&m, &cfg, 9, &(hola_options){.threads = 2}));
    return m;
}
static hola_session *fed(hola_model *m, const hola_tokenizer *t, uint64_t seed) {
    hola_session *s;
    int64_t n;
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_feed_text(s, t, "Once upon", -1, &n));
    assert_int_equal(n, 10); /* BOS */
    CHECK_OK(hola_session_feed_text(s, t, " a time", 7, &n));
    assert_int_equal(n, 7); /* none */
    assert_int_equal(hola_session_position(s), 17);
    hola_session_seed(s, seed);
    return s;
}

/* What hola_generate tells is what choosing and feeding by hand gives. */
static void generated_as_by_hand(void **state) {
    enum { N = 60 };
    hola_model *m = byte_model();
    hola_tokenizer *t;
    char *text;
    int64_t n, len;
    hola_end end;
    (void)state;
    CHECK_OK(hola_tokenizer_load(&t, "byte"));
    for (int way = 0; way < 3; way++) { /* plain, with logits, through a history */
        hola_session *s = fed(m, t, 5), *hand = fed(m, t, 5);
        struct heard h = {.s = s};
        hola_generate_opts o = HOLA_GENERATE_INIT;
        hola_history *past = NULL;
        int32_t ids[N];
        if (way == 2) {
            const int32_t prompt[] = {256, 'a', 'b'};
            hola_session_reset(s), hola_session_reset(hand);
            CHECK_OK(hola_history_new(&past, s, NULL));
            CHECK_OK(hola_history_feed(past, prompt, 3, NULL));
            CHECK_OK(hola_session_feed(hand, prompt, 3, NULL));
        }
        o.max_tokens = N, o.on_token = hear, o.ctx = &h, o.ignore_eos = true;
        o.keep_logits = way == 1, o.history = past;
        CHECK_OK(hola_generate(s, t, &o, &n, &end));
        assert_true(n == N && h.n == N && end == HOLA_END_LENGTH && (way != 1 || h.logits));
        for (int i = 0; i < N; i++) {
            CHECK_OK(hola_session_sample(hand, NULL, &ids[i]));
            CHECK_OK(hola_session_feed(hand, &ids[i], 1, NULL));
        }
        assert_memory_equal(ids, h.id, sizeof ids);
        CHECK_OK(hola_tokenizer_decode(t, ids, N, &text, &len));
        assert_int_equal(h.text.n, len);
        assert_memory_equal(h.text.data, text, (size_t)len);
        hola_free(text);
        /* all is fed, and the next call goes on */
        assert_int_equal(hola_session_position(s), hola_session_position(hand));
        int32_t next, want;
        CHECK_OK(hola_session_sample(s, NULL, &next));
        CHECK_OK(hola_session_sample(hand, NULL, &want));
        assert_int_equal(next, want);
        hl_text_free(&h.text);
        hola_history_free(past);
        hola_session_free(s), hola_session_free(hand);
    }
    hola_tokenizer_free(t);
    hola_model_free(m);
}

static void generation_ends(void **state) {
    hola_model *m = byte_model();
    hola_tokenizer *t;
    int64_t n;
    hola_end end;
    (void)state;
    CHECK_OK(hola_tokenizer_load(&t, "byte"));
    hola_session *s = fed(m, t, 5), *other = fed(m, t, 5);
    struct heard all = {0}, h = {.most = 7};
    hola_generate_opts o = HOLA_GENERATE_INIT;
    o.max_tokens = 100, o.on_token = hear, o.ctx = &all, o.ignore_eos = true;
    CHECK_OK(hola_generate(s, t, &o, NULL, NULL));
    hola_session_free(s);

    s = fed(m, t, 5); /* the caller's word */
    o.ctx = &h;
    CHECK_OK(hola_generate(s, t, &o, &n, &end));
    assert_true(n == 7 && end == HOLA_END_CANCELLED && hola_session_position(s) == 17 + 7);
    hola_session_free(s);
    hl_text_free(&h.text);

    s = fed(m, t, 5); /* a stop string: three bytes that came */
    int64_t at = 0;
    while (at < 90 && memchr(all.text.data + at, 0, 3)) at++;
    const char *stop[] = {"something else", all.text.data + at};
    const int64_t stop_len[] = {14, 3};
    const int64_t first = (const char *)memmem(all.text.data, (size_t)all.text.n, stop[1], 3) - all.text.data;
    h = (struct heard){0};
    o.stop = stop, o.stop_len = stop_len, o.n_stop = 2;
    CHECK_OK(hola_generate(s, t, &o, &n, &end));
    assert_int_equal(end, HOLA_END_STOP);
    assert_int_equal(h.text.n, first);
    assert_memory_equal(h.text.data, all.text.data, (size_t)first);
    hola_session_free(s);
    o.stop = NULL, o.stop_len = NULL, o.n_stop = 0;

    s = fed(m, t, 5); /* EOS: where the model's is the tenth token */
    hl_text_free(&h.text);
    h = (struct heard){0};
    int32_t eos = all.id[10];
    int64_t before = 0;
    while (all.id[before] != eos) before++;
    m->cfg.eos_token_id = eos; /* without a tokenizer the model's counts */
    o.ignore_eos = false;
    CHECK_OK(hola_generate(s, NULL, &o, &n, &end));
    assert_true(end == HOLA_END_EOS && n == before && h.n == before && hola_session_position(s) == 17 + before);
    char want[16];
    snprintf(want, sizeof want, "%d ", (int)all.id[0]);
    assert_true(before == 0 || !strncmp(h.text.data, want, strlen(want) - 1)); /* ids as numbers */
    hl_text_free(&h.text), hl_text_free(&all.text);

    /* the default length; nobody listens */
    hola_session_reset(s);
    CHECK_OK(hola_session_feed_text(s, t, "x", 1, NULL));
    CHECK_OK(hola_generate(s, t, &(hola_generate_opts){.ignore_eos = true}, &n, &end));
    assert_true(n == 256 && end == HOLA_END_LENGTH);
    /* what cannot be */
    hola_history *past;
    hola_session_reset(other);
    CHECK_OK(hola_history_new(&past, other, NULL));
    CHECK_FAILS(hola_generate(s, t, &(hola_generate_opts){.history = past}, NULL, NULL), HOLA_EINVAL,
                "another session");
    CHECK_FAILS(hola_generate(other, t, NULL, NULL, NULL), HOLA_EINVAL, "empty");
    CHECK_FAILS(hola_generate(s, t, &(hola_generate_opts){.n_stop = 1}, NULL, NULL), HOLA_EINVAL, "stop strings");
    hola_history_free(past);
    hola_session_free(s), hola_session_free(other);
    hola_tokenizer_free(t);
    hola_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_any_size),      cmocka_unit_test(best_backend),
        cmocka_unit_test(sampling_needs_no_buffer), cmocka_unit_test(progress_and_cancel),
        cmocka_unit_test(tokens_by_name),           cmocka_unit_test(tokens_of_a_file),
        cmocka_unit_test(generated_as_by_hand),     cmocka_unit_test(generation_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
