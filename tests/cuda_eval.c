/* cuda_eval.c -- the evaluation engine on a CUDA device (emulated, or real): the answers of the CPU, together and
 * alone. */
#include "eval_case.h"

static hola_model *model_on(const char *backend) { return byte_model("{" TINY HOLA "\"expand_v\":1}", backend, 1); }
static struct hl_set some_kinds(void) {
    const struct eval_case c = {
        .docs = 4, .texts = 2, .prompts = 3, .lists = 1, .grow = 5, .text = 150, .prompt = 17, .max_new = 4};
    return make_set(&c);
}
static hola_model *device(void) {
    struct hl_backend *b = NULL;
    if (hl_backend_open(&b, "cuda-f32", 1) != HOLA_OK) {
        print_message("%s\n", hola_last_error());
        skip();
    }
    hl_backend_close(b);
    return model_on("cuda-f32");
}

/* The largest distance of answers that must be the same in all else. */
static double apart(const struct hl_answer *x, const struct hl_answer *y, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(x[i].done && x[i].tokens == y[i].tokens && x[i].greedy == y[i].greedy);
        assert_true(hl_span_equal(hl_span_text(&x[i].text), hl_span_text(&y[i].text)));
        worst = fmax(worst, fabs(x[i].loglikelihood - y[i].loglikelihood));
    }
    return worst;
}

static void test_answers(void **state) {
    hola_model *gpu = device(), *cpu = model_on("cpu");
    const struct hl_eval_opts o = {.bos = HL_BOS_DOUBLE, .max_length = 64, .tokenizer = tok};
    struct hl_set s = some_kinds();
    struct hl_answer *want = answers(cpu, &o, &s), *got = answers(gpu, &o, &s);
    double wrong = 0;
    (void)state;
    const double worst = apart(got, want, s.n);
    for (int64_t i = 1; i < s.n; i++) /* those of their neighbours */
        wrong = fmax(wrong, fabs(got[i].loglikelihood - want[i - 1].loglikelihood));
    if (!(worst < 2e-3)) fail_msg("a log-likelihood is %g off", worst);
    assert_true(wrong > 0.1);
    hl_answers_free(want, s.n);
    hl_answers_free(got, s.n);
    hl_set_free(&s);
    hola_model_free(cpu);
    hola_model_free(gpu);
}

/* Each request by itself: no padding, no neighbour, no order shows. */
static void test_alone(void **state) {
    hola_model *gpu = device();
    const struct hl_eval_opts o = {.bos = HL_BOS_DOUBLE, .max_length = 64, .tokenizer = tok};
    struct hl_set s = some_kinds();
    struct hl_answer *all = answers(gpu, &o, &s);
    double worst = 0;
    (void)state;
    for (int64_t i = s.n - 1; i >= 0; i -= 2) {
        struct hl_set one = s;
        one.request = &s.request[i], one.n = 1;
        struct hl_answer *a = answers(gpu, &o, &one);
        worst = fmax(worst, apart(&all[i], a, 1));
        hl_answers_free(a, 1);
    }
    if (!(worst < 1e-4)) fail_msg("alone a log-likelihood is %g off", worst);
    hl_answers_free(all, s.n);
    hl_set_free(&s);
    hola_model_free(gpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers), cmocka_unit_test(test_alone)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
