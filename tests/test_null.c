/* test_null.c -- every function of hola.h with NULL where something is needed: HOLA_EINVAL and a line, or nothing done
 * and 0, -1, false or NULL; never a crash. A function of hola.h that is not here fails the test. */
#define _GNU_SOURCE
#include "models.h"
#include "temp.h"

static char covered[8192]; /* " name name ... " */

/* REFUSED(hola_f(...)): it returns HOLA_EINVAL and says that something is NULL. */
#define REFUSED(call)                                                                        \
    do {                                                                                     \
        note(#call);                                                                         \
        hl_fail(HOLA_EINVAL, "-");                                                           \
        if ((call) != HOLA_EINVAL) fail_msg("%s: not HOLA_EINVAL", #call);                   \
        if (!strstr(hola_last_error(), "NULL") && !strstr(hola_last_error(), "not there") && \
            !strstr(hola_last_error(), "no text") && !strstr(hola_last_error(), "no ids"))   \
            fail_msg("%s: '%s'", #call, hola_last_error());                                  \
    } while (0)
#define GIVES(call, want)                                           \
    do {                                                            \
        note(#call);                                                \
        if ((call) != (want)) fail_msg("%s: not %s", #call, #want); \
    } while (0)
#define SURVIVES(call) \
    do {               \
        note(#call);   \
        call;          \
    } while (0)

static void note(const char *call) {
    const size_t n = strcspn(call, "("), have = strlen(covered);
    assert_true(have + n + 2 < sizeof covered);
    snprintf(covered + have, sizeof covered - have, " %.*s ", (int)n, call);
}

struct things {
    hola_config cfg;
    hola_model *m;
    hola_session *s;
    hola_history *h;
    hola_trainer *t;
    hola_tokenizer *k;
    hola_detokenizer *d;
    int32_t ids[4], *new_ids;
    int64_t n;
    float logits[4 * 97];
    double p[4];
    char *text;
    bool flag;
};

static void models_and_config(struct things *x) {
    hola_model *m = x->m, *out = m;
    hola_tensor_info info;
    REFUSED(hola_config_preset(NULL, "46m", HOLA_TYPE_HOLA));
    REFUSED(hola_config_preset(&x->cfg, NULL, HOLA_TYPE_HOLA));
    REFUSED(hola_config_read(NULL, "x"));
    REFUSED(hola_config_read(&x->cfg, NULL));
    REFUSED(hola_config_check(NULL));
    GIVES(hola_config_parameters(NULL), 0);
    REFUSED(hola_model_new(NULL, &x->cfg, 1, NULL));
    REFUSED(hola_model_new(&out, NULL, 1, NULL));
    assert_null(out);
    REFUSED(hola_model_load(NULL, "x", NULL));
    out = m;
    REFUSED(hola_model_load(&out, NULL, NULL));
    assert_null(out);
    REFUSED(hola_model_save(NULL, "x", HOLA_F32));
    REFUSED(hola_model_save(m, NULL, HOLA_F32));
    GIVES(hola_model_config(NULL), NULL);
    GIVES(hola_model_tensor_count(NULL), 0);
    REFUSED(hola_model_tensor(NULL, 0, &info));
    REFUSED(hola_model_tensor(m, 0, NULL));
    REFUSED(hola_model_tensor_read(NULL, 0, x->logits));
    REFUSED(hola_model_tensor_read(m, 0, NULL));
    SURVIVES(hola_model_free(NULL));
    SURVIVES(hola_free(NULL));
}

static void text(struct things *x) {
    static const char *const stop[] = {NULL};
    hola_tokenizer *out;
    hola_detokenizer *d;
    REFUSED(hola_tokenizer_load(NULL, "byte"));
    REFUSED(hola_tokenizer_load(&out, NULL));
    SURVIVES(hola_tokenizer_free(NULL));
    GIVES(hola_tokenizer_size(NULL), 0);
    GIVES(hola_tokenizer_bos(NULL), -1);
    GIVES(hola_tokenizer_eos(NULL), -1);
    REFUSED(hola_tokenizer_encode(NULL, "x", 1, 0, &x->new_ids, &x->n));
    REFUSED(hola_tokenizer_encode(x->k, NULL, 1, 0, &x->new_ids, &x->n));
    REFUSED(hola_tokenizer_encode(x->k, "x", 1, 0, NULL, &x->n));
    REFUSED(hola_tokenizer_encode(x->k, "x", 1, 0, &x->new_ids, NULL));
    REFUSED(hola_tokenizer_decode(NULL, x->ids, 1, &x->text, &x->n));
    REFUSED(hola_tokenizer_decode(x->k, NULL, 1, &x->text, &x->n));
    REFUSED(hola_tokenizer_decode(x->k, x->ids, 1, NULL, &x->n));
    REFUSED(hola_tokenizer_decode(x->k, x->ids, 1, &x->text, NULL));
    REFUSED(hola_tokenizer_piece(NULL, 0, &x->text, &x->n));
    REFUSED(hola_tokenizer_piece(x->k, 0, NULL, &x->n));
    REFUSED(hola_tokenizer_piece(x->k, 0, &x->text, NULL));
    GIVES(hola_tokenizer_special(NULL, "x"), -1);
    GIVES(hola_tokenizer_special(x->k, NULL), -1);
    GIVES(hola_tokenizer_is_special(NULL, 256), false);
    REFUSED(hola_detokenizer_new(NULL, x->k, NULL, NULL, 0));
    REFUSED(hola_detokenizer_new(&d, x->k, NULL, NULL, 1));
    REFUSED(hola_detokenizer_new(&d, x->k, stop, NULL, 1));
    SURVIVES(hola_detokenizer_free(NULL));
    SURVIVES(hola_detokenizer_begin(NULL, x->ids, 1));
    SURVIVES(hola_detokenizer_begin(x->d, NULL, 3));
    REFUSED(hola_detokenizer_add(NULL, 1, &x->flag));
    CHECK_OK(hola_detokenizer_add(x->d, 1, NULL));
    GIVES(hola_detokenizer_take(NULL, true, &x->n), NULL);
    GIVES(hola_detokenizer_take(x->d, true, NULL), NULL);
    GIVES(hola_detokenizer_piece(NULL, &x->n), NULL);
    GIVES(hola_detokenizer_piece(x->d, NULL), NULL);
}

static void sessions(struct things *x) {
    hola_session *s = x->s, *out = s, *none[1] = {NULL};
    int32_t *ids = x->ids, id;
    REFUSED(hola_session_new(NULL, x->m));
    REFUSED(hola_session_new(&out, NULL));
    assert_null(out);
    REFUSED(hola_session_clone(NULL, s));
    REFUSED(hola_session_clone(&out, NULL));
    SURVIVES(hola_session_free(NULL));
    SURVIVES(hola_session_reset(NULL));
    GIVES(hola_session_position(NULL), 0);
    GIVES(hola_session_bytes(NULL), 0);
    REFUSED(hola_session_feed(NULL, ids, 2, x->logits));
    REFUSED(hola_session_feed(s, NULL, 2, x->logits));
    REFUSED(hola_session_feed_text(NULL, x->k, "x", 1, &x->n));
    REFUSED(hola_session_feed_text(s, NULL, "x", 1, &x->n));
    REFUSED(hola_session_feed_text(s, x->k, NULL, 1, &x->n));
    SURVIVES(hola_session_on_progress(NULL, NULL, NULL));
    REFUSED(hola_session_feed_each(NULL, ids, 2, x->logits));
    REFUSED(hola_session_feed_each(s, NULL, 2, x->logits));
    REFUSED(hola_session_feed_each(s, ids, 2, NULL));
    REFUSED(hola_session_score(NULL, ids, ids, 2, x->p));
    REFUSED(hola_session_score(s, NULL, ids, 2, x->p));
    REFUSED(hola_session_score(s, ids, NULL, 2, x->p));
    REFUSED(hola_session_score(s, ids, ids, 2, NULL));
    REFUSED(hola_session_step(NULL, 1, ids, x->logits));
    REFUSED(hola_session_step(none, 1, ids, x->logits));
    REFUSED(hola_session_step(&s, 1, NULL, x->logits));
    REFUSED(hola_session_step_sample(NULL, 1, ids, NULL, ids));
    REFUSED(hola_session_step_sample(none, 1, ids, NULL, ids));
    REFUSED(hola_session_step_sample(&s, 1, NULL, NULL, ids));
    REFUSED(hola_session_step_sample(&s, 1, ids, NULL, NULL));
    REFUSED(hola_session_feed_sample(NULL, ids, 2, NULL, ids));
    REFUSED(hola_session_feed_sample(s, NULL, 2, NULL, ids));
    REFUSED(hola_session_feed_sample(s, ids, 2, NULL, NULL));
    GIVES(hola_session_logits(NULL), NULL);
    GIVES(hola_session_recent(NULL, ids, 1), 0);
    GIVES(hola_session_recent(s, NULL, 1), 0);
    SURVIVES(hola_session_seed(NULL, 1));
    GIVES(hola_session_seed_of(NULL), 0);
    REFUSED(hola_session_sample(NULL, NULL, &id));
    REFUSED(hola_session_sample(s, NULL, NULL));
    REFUSED(hola_session_save(NULL, "x", HOLA_F32));
    REFUSED(hola_session_save(s, NULL, HOLA_F32));
    REFUSED(hola_session_load(NULL, "x"));
    REFUSED(hola_session_load(s, NULL));
    REFUSED(hola_session_mark(NULL));
    REFUSED(hola_session_rollback(NULL, 1));
    REFUSED(hola_generate(NULL, x->k, NULL, NULL, NULL));
    assert_int_equal(hola_session_position(s), 0); /* nothing of all that was fed */
}

static void history_and_training(struct things *x) {
    hola_history *h;
    hola_trainer *t;
    REFUSED(hola_history_new(NULL, x->s, NULL));
    REFUSED(hola_history_new(&h, NULL, NULL));
    SURVIVES(hola_history_free(NULL));
    REFUSED(hola_history_feed(NULL, x->ids, 1, NULL));
    REFUSED(hola_history_feed(x->h, NULL, 1, NULL));
    REFUSED(hola_history_keep(NULL));
    REFUSED(hola_history_prompt(NULL, x->ids, 1, x->logits, &x->n));
    REFUSED(hola_history_prompt(x->h, NULL, 1, x->logits, &x->n));
    REFUSED(hola_history_rollback(NULL, 1));
    REFUSED(hola_trainer_new(NULL, x->m, NULL));
    REFUSED(hola_trainer_new(&t, NULL, NULL));
    SURVIVES(hola_trainer_free(NULL));
    REFUSED(hola_trainer_accumulate(NULL, x->ids, 2, NULL, 0, 1, NULL, NULL));
    REFUSED(hola_trainer_accumulate_masked(NULL, x->ids, 2, NULL, 0, NULL, 1, NULL, NULL));
    REFUSED(hola_trainer_evaluate_masked(NULL, x->ids, 2, NULL, 0, NULL, NULL, NULL));
    REFUSED(hola_trainer_accumulate(x->t, NULL, 2, NULL, 0, 1, NULL, NULL));
    REFUSED(hola_trainer_evaluate(NULL, x->ids, 2, NULL, 0, NULL, NULL));
    REFUSED(hola_trainer_evaluate(x->t, NULL, 2, NULL, 0, NULL, NULL));
    REFUSED(hola_trainer_update(NULL, 1, NULL));
}

static void bindings(struct things *x) {
    const int64_t starts[] = {0, 4}, asked[] = {1};
    REFUSED(hola_config_parse(NULL, "{}", 2));
    REFUSED(hola_config_parse(&x->cfg, NULL, 2));
    REFUSED(hola_session_kept(NULL, 0, 0, &x->n, NULL, &x->n));
    REFUSED(hola_session_kept(x->s, 0, 0, NULL, NULL, &x->n));
    REFUSED(hola_session_kept(x->s, 0, 0, &x->n, NULL, NULL));
    REFUSED(hola_model_score(NULL, x->ids, starts, asked, 1, x->p, &x->flag));
    REFUSED(hola_model_score(x->m, NULL, starts, asked, 1, x->p, &x->flag));
    REFUSED(hola_model_score(x->m, x->ids, NULL, asked, 1, x->p, &x->flag));
    REFUSED(hola_model_score(x->m, x->ids, starts, NULL, 1, x->p, &x->flag));
    REFUSED(hola_model_score(x->m, x->ids, starts, asked, 1, NULL, &x->flag));
    REFUSED(hola_model_score(x->m, x->ids, starts, asked, 1, x->p, NULL));
    GIVES(hola_sizeof(NULL), 0);
}

/* Every function that hola.h declares was called above, but for those that take no pointers. */
static void all_of_them(void) {
    static const char *const plain[] = {
        "hola_last_error", "hola_status_text", "hola_version",      "hola_model_type_name", "hola_cache_norm_name",
        "hola_dtype_name", "hola_evict_name",  "hola_cuda_devices", "hola_cuda_version",    "hola_cuda_arch"};
    FILE *f = fopen("include/hola.h", "r");
    char line[256], name[80];
    int n = 0;
    if (!f) {
        print_message("SKIP functions of hola.h: not run in the source tree\n");
        return;
    }
    while (fgets(line, sizeof line, f)) {
        const char *p = strncmp(line, "HOLA_API", 8) ? NULL : strstr(line, "hola_");
        while (p && p[strspn(p, "abcdefghijklmnopqrstuvwxyz_0123456789")] != '(') p = strstr(p + 5, "hola_");
        if (!p) continue;
        bool known = false;
        snprintf(name, sizeof name, " %.*s ", (int)strcspn(p, "("), p);
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
            known |= strlen(plain[i]) == strlen(name) - 2 && !strncmp(plain[i], name + 1, strlen(plain[i]));
        if (!known && !strstr(covered, name)) fail_msg("%s is not tested with NULL", name);
        n++;
    }
    fclose(f);
    assert_true(n > 60);
}

static void null_is_refused(void **state) {
    struct things x = {.cfg = variant_config(0), .ids = {1, 2, 3, 4}};
    (void)state;
    x.m = variant_model(0, 1, NULL);
    CHECK_OK(hola_session_new(&x.s, x.m));
    CHECK_OK(hola_history_new(&x.h, x.s, NULL));
    CHECK_OK(hola_tokenizer_load(&x.k, "byte"));
    CHECK_OK(hola_detokenizer_new(&x.d, x.k, NULL, NULL, 0));
    models_and_config(&x);
    text(&x);
    sessions(&x);
    CHECK_OK(hola_trainer_new(&x.t, x.m, NULL));
    history_and_training(&x);
    bindings(&x);
    all_of_them();
    hola_trainer_free(x.t);
    hola_detokenizer_free(x.d);
    hola_tokenizer_free(x.k);
    hola_history_free(x.h);
    hola_session_free(x.s);
    hola_model_free(x.m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(null_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
