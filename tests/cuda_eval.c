/* cuda_eval.c -- the evaluation engine on a CUDA device (emulated, or real): the answers of the CPU. */
#include "eval/eval.h"
#include "models.h"

enum { VOCAB = 258 };

static hola_model *byte_model(const char *backend) {
    hola_config cfg = variant_config(0);
    const hola_options opt = {.threads = 1, .backend = backend};
    hola_model *m;
    cfg.vocab_size = VOCAB;
    CHECK_OK(hola_model_new(&m, &cfg, 11, &opt));
    return m;
}
static struct hl_span some_text(struct hl_set *s, int64_t n, uint64_t seed) {
    char *p = hl_set_bytes(s, n + 1);
    for (int64_t i = 0; i < n; i++) p[i] = (char)('a' + check_mix(seed + (uint64_t)i) % 26);
    return (struct hl_span){p, n};
}
static struct hl_set make_set(void) {
    struct hl_set s = {0};
    struct hl_doc *d;
    for (uint64_t i = 0; i < 4; i++) {
        const struct hl_span context = some_text(&s, (int64_t)(1 + i * 15), 1000 * i);
        CHECK_OK(hl_set_doc(&s, &d));
        for (uint64_t k = 0; k < 3; k++) {
            struct hl_request r = {.context = context, .text = some_text(&s, (int64_t)(1 + k), 77 * i + k)};
            CHECK_OK(hl_set_ask(&s, &r));
        }
    }
    CHECK_OK(hl_set_doc(&s, &d));
    CHECK_OK(hl_set_ask(&s, &(struct hl_request){.kind = HL_ASK_ROLLING, .text = some_text(&s, 150, 5)}));
    CHECK_OK(hl_set_doc(&s, &d));
    const struct hl_request r = {.kind = HL_ASK_GENERATE, .context = some_text(&s, 20, 9), .max_new = 4};
    CHECK_OK(hl_set_ask(&s, &r));
    return s;
}

static void test_answers(void **state) {
    struct hl_pool *pool = NULL;
    const struct hl_ops *ops;
    if (hl_backend_open("cuda-f32", 1, &ops, &pool) != HOLA_OK) {
        print_message("%s\n", hola_last_error());
        skip();
    }
    hl_pool_free(pool);
    hola_model *cpu = byte_model("cpu"), *gpu = byte_model("cuda-f32");
    struct hl_eval_opts o = {.bos = HL_BOS_DOUBLE, .max_length = 64};
    struct hl_set s = make_set();
    struct hl_answer *want = calloc((size_t)s.n, sizeof *want), *got = calloc((size_t)s.n, sizeof *got);
    hola_tokenizer *t;
    double worst = 0, apart = 0;
    (void)state;
    CHECK_OK(hola_tokenizer_load(&t, "byte"));
    o.tokenizer = t;
    CHECK_OK(hl_eval_run(cpu, &o, &s, want, NULL));
    CHECK_OK(hl_eval_run(gpu, &o, &s, got, NULL));
    for (int64_t i = 0; i < s.n; i++) {
        assert_true(got[i].done && got[i].tokens == want[i].tokens && got[i].greedy == want[i].greedy);
        assert_true(hl_span_equal(hl_span_text(&got[i].text), hl_span_text(&want[i].text)));
        worst = fmax(worst, fabs(got[i].loglikelihood - want[i].loglikelihood));
        if (i > 0)
            apart = fmax(apart, fabs(got[i].loglikelihood - want[i - 1].loglikelihood)); /* the wrong ones */
    }
    if (!(worst < 2e-3)) fail_msg("a log-likelihood is %g off", worst);
    assert_true(apart > 0.1);
    hl_answers_free(want, s.n);
    hl_answers_free(got, s.n);
    hl_set_free(&s);
    hola_tokenizer_free(t);
    hola_model_free(cpu);
    hola_model_free(gpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
