/* test_bf16_model.c -- models whose products have BF16 operands: gradients of the stored vectors, training beside that
 * in floats, sessions, and what is refused. */
#define _GNU_SOURCE
#include "models.h"
#include "temp.h"
#include "vectors.h"

/* Losses, logits and gradients of the vectors, to what 8 bits of each operand leave of them. */
static void vectors_in_bf16(void **state) {
    (void)state;
    vector_precision = HOLA_PRECISION_BF16;
    vectors_on("cpu-ref", 2e-2, 0.1, 0.5);
    for (int b = 0; check_backend(b); b++)
        if (hl_ops_named(check_backend(b))) vectors_on(check_backend(b), 2e-2, 0.1, 0.5);
    vectors_catch(2e-5);
    vector_precision = HOLA_PRECISION_AUTO;
}

/* ---- training ---- */

enum { STEPS = 200, TOKENS = 192 };
/* Text whose next id is one of four: the loss goes to log 4. */
static void some_text(int32_t *ids, int step) {
    uint64_t seed = (uint64_t)step;
    ids[0] = step % 50;
    for (int i = 1; i < TOKENS; i++) ids[i] = (5 * ids[i - 1] + (int32_t)check_uniform(&seed, 0, 4)) % 50;
}
static void train(const char *backend, int threads, hola_precision how, bool recompute, int steps, double *losses) {
    hola_config cfg;
    hola_model *m;
    hola_trainer *t;
    int32_t ids[TOKENS];
    const hola_options where = {.threads = threads, .backend = backend};
    const hola_train_opts opt = {.size = sizeof opt, .max_tokens = TOKENS, .precision = how, .recompute = recompute};
    CHECK_OK(hola_config_preset(&cfg, "46m", HOLA_TYPE_HOLA));
    cfg.hidden_size = 64, cfg.num_hidden_layers = 2, cfg.num_heads = cfg.num_v_heads = 2, cfg.head_dim = 32;
    cfg.head_v_dim = 32, cfg.intermediate_size = 96, cfg.vocab_size = 50, cfg.cache_chunk = 64;
    CHECK_OK(hola_model_new(&m, &cfg, 1, &where));
    CHECK_OK(hola_trainer_new(&t, m, &opt));
    for (int k = 0; k < steps; k++) {
        some_text(ids, k);
        CHECK_OK(hola_trainer_accumulate(t, ids, TOKENS, NULL, 0, 1.0 / TOKENS, &losses[k], NULL));
        losses[k] /= TOKENS - 1;
        CHECK_OK(hola_trainer_update(t, 3e-3, NULL));
    }
    hola_trainer_free(t);
    assert_int_equal(m->training_precision, HOLA_PRECISION_AUTO);
    hola_model_free(m);
}
static double mean(const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum / n;
}

/* Within 0.3 % of floats, over all steps and over the last. The same bits for any number of threads, with --recompute,
 * and nearly the same on another instruction set. */
static void training_goes_alike(void **state) {
    static double plain[STEPS], bf16[STEPS], again[STEPS];
    (void)state;
    train("cpu", 2, HOLA_PRECISION_AUTO, false, STEPS, plain);
    train("cpu", 2, HOLA_PRECISION_BF16, false, STEPS, bf16);
    const double all = mean(bf16, STEPS) / mean(plain, STEPS) - 1;
    const double last = mean(bf16 + STEPS - 20, 20) / mean(plain + STEPS - 20, 20) - 1;
    print_message("loss of %d steps: %.5f, last 20 %.5f; in BF16 %+.3f %% and %+.3f %%\n", (int)STEPS,
                  mean(plain, STEPS), mean(plain + STEPS - 20, 20), 100 * all, 100 * last);
    assert_true(mean(plain + STEPS - 20, 20) < plain[0] / 2);
    /* 20 steps are noise of 0.2 to 0.4 %, by the compiler's order of operations */
    assert_true(fabs(all) < 3e-3 && fabs(last) < 1e-2 && bf16[STEPS - 1] != plain[STEPS - 1]);
    train("cpu", 1, HOLA_PRECISION_BF16, true, 30, again);
    for (int k = 0; k < 30; k++) assert_true(again[k] == bf16[k]);
    train("cpu-base", 2, HOLA_PRECISION_BF16, false, STEPS, again);
    assert_true(fabs(mean(again, STEPS) / mean(bf16, STEPS) - 1) < 3e-3);
}

/* ---- sessions ---- */

static hola_model *load(const char *dir, hola_precision how, const char *backend) {
    const hola_options opt = {.size = sizeof opt, .threads = 2, .backend = backend, .precision = how};
    hola_model *m;
    CHECK_OK(hola_model_load(&m, dir, &opt));
    return m;
}

/* A BF16 model: prefill, token by token and any split agree far better than BF16 and floats do; sessions side by side
 * have the bits of one alone. */
static void sessions(void **state) {
    enum { N = 150 };
    char *dir = temp_new();
    double worst = 0, least = INFINITY;
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 2, NULL);
        int32_t *ids = random_ids(N, m->cfg.vocab_size, 9);
        CHECK_OK(hola_model_save(m, dir, HOLA_BF16));
        hola_model *f = load(dir, HOLA_PRECISION_AUTO, NULL), *q = load(dir, HOLA_PRECISION_BF16, NULL);
        double *floats = scores(f, ids, N, N), *all = scores(q, ids, N, N);
        const double apart = farthest(all, floats, N - 1);
        static const int64_t pieces[] = {1, 3, 12, 13, 50, 64};
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            double *split = scores(q, ids, N, pieces[i]);
            worst = fmax(worst, farthest(split, all, N - 1));
            if (getenv("HOLA_VERBOSE"))
                print_message("%s: pieces of %d %.2g apart, floats %.2g\n", variants[v].name, (int)pieces[i],
                              farthest(split, all, N - 1), apart);
            free(split);
        }
        least = fmin(least, apart);
        check_side_by_side(q, ids);
        free(floats), free(all), free(ids);
        hola_model_free(m), hola_model_free(f), hola_model_free(q);
    }
    print_message("log-probabilities: splits at most %.2g apart, floats at least %.2g\n", worst, least);
    assert_true(worst < 0.05 && least > 2e-3);
    temp_remove(dir);
}

/* INT8 and INT4 weights have products of their own: nothing changes. */
static void quantised_weights(void **state) {
    enum { N = 80 };
    char *dir = temp_new();
    hola_model *m = variant_model(0, 2, NULL);
    int32_t *ids = random_ids(N, m->cfg.vocab_size, 9);
    (void)state;
    CHECK_OK(hola_model_save(m, dir, HOLA_INT8));
    hola_model *f = load(dir, HOLA_PRECISION_AUTO, NULL), *q = load(dir, HOLA_PRECISION_BF16, NULL);
    double *want = scores(f, ids, N, N), *got = scores(q, ids, N, N);
    assert_memory_equal(got, want, (N - 1) * sizeof *got);
    free(want), free(got), free(ids);
    hola_model_free(m), hola_model_free(f), hola_model_free(q);
    temp_remove(dir);
}

static void refused(void **state) {
    hola_config cfg;
    hola_model *m;
    hola_trainer *t;
    (void)state;
    CHECK_OK(hola_config_preset(&cfg, "46m", HOLA_TYPE_HOLA));
    cfg.num_hidden_layers = 1, cfg.vocab_size = 50;
    assert_int_equal(hola_model_new(&m, &cfg, 1, &(hola_options){.size = sizeof(hola_options), .precision = 7}),
                     HOLA_EINVAL);
    assert_string_equal(hola_last_error(), "precision: 7 is unknown");
    assert_int_equal(
        hola_model_new(&m, &cfg, 1, &(hola_options){.size = sizeof(hola_options), .precision = HOLA_PRECISION_FP8}),
        HOLA_EINVAL);
    assert_string_equal(hola_last_error(), "precision: fp8 is of training only");
    CHECK_OK(hola_model_new(&m, &cfg, 1, NULL));
    const hola_train_opts opt = {.size = sizeof opt, .precision = HOLA_PRECISION_COUNT};
    assert_int_equal(hola_trainer_new(&t, m, &opt), HOLA_EINVAL);
    assert_string_equal(hola_last_error(), "precision: 3 is unknown");
    hola_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_in_bf16), cmocka_unit_test(training_goes_alike),
        cmocka_unit_test(sessions),        cmocka_unit_test(quantised_weights),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
