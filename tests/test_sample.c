/* test_sample.c -- the choice of a token against one written down plainly: everything sorted, every sum taken. */
#include "check.h"
#include "model/sample.h"

enum { VOCAB = 300 };

static int by_logit(const void *a, const void *b) {
    const struct hl_candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The probabilities that the chain leaves, by id. */
static void plainly(const float *logits, const hola_sampling *p, const int32_t *recent, int64_t n_recent, double *out) {
    struct hl_candidate c[VOCAB];
    int64_t n = VOCAB, first = n_recent > p->repeat_last_n ? n_recent - p->repeat_last_n : 0;
    for (int32_t i = 0; i < VOCAB; i++) {
        bool seen = false;
        for (int64_t j = first; j < n_recent; j++) seen = seen || recent[j] == i;
        const double x = (double)logits[i];
        c[i] = (struct hl_candidate){logits[i], i};
        if (seen) c[i].logit = (float)(x > 0 ? x / p->repeat_penalty : x * p->repeat_penalty);
        out[i] = 0;
    }
    qsort(c, VOCAB, sizeof *c, by_logit);
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    double total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) total += exp((double)c[i].logit - (double)c[0].logit);
    int64_t k = 0;
    while (k < n) {
        sum += exp((double)c[k++].logit - (double)c[0].logit);
        if (sum >= p->top_p * total && p->top_p < 1) break;
    }
    n = k;
    for (k = 0; k < n && exp((double)c[k].logit - (double)c[0].logit) >= p->min_p * (1 - 1e-12);) k++;
    n = k;
    total = 0;
    for (int64_t i = 0; i < n; i++) total += exp(((double)c[i].logit - (double)c[0].logit) / p->temp);
    for (int64_t i = 0; i < n; i++) out[c[i].id] = exp(((double)c[i].logit - (double)c[0].logit) / p->temp) / total;
}

static void random_logits(float *x, double wide, uint64_t seed) {
    for (int i = 0; i < VOCAB; i++)
        x[i] = (float)(check_uniform(&seed, -1, 1) + check_uniform(&seed, -1, 1)) * (float)wide;
}

/* How far the shares that evenly spread u give are from the probabilities: half of the sum of differences. */
static double off(const float *logits, const hola_sampling *p, const hola_sampling *want, const int32_t *recent,
                  int64_t n_recent) {
    enum { DRAWS = 5000 };
    static double prob[VOCAB], share[VOCAB];
    struct hl_candidate work[VOCAB];
    double sum = 0;
    plainly(logits, want, recent, n_recent, prob);
    memset(share, 0, sizeof share);
    for (int i = 0; i < DRAWS; i++) {
        const int32_t id = hl_sample(logits, VOCAB, p, recent, n_recent, (i + 0.5) / DRAWS, work);
        assert_in_range(id, 0, VOCAB - 1);
        share[id] += 1.0 / DRAWS;
    }
    for (int i = 0; i < VOCAB; i++) sum += fabs(share[i] - prob[i]) / 2;
    return sum;
}

static const hola_sampling chains[] = {
    {0, 1, 64, 40, 0.95, 0.05, 0.8}, {0, 1, 0, 0, 1, 0, 1},      {0, 1, 0, 5, 1, 0, 1},
    {0, 1, 0, 1, 1, 0, 2},           {0, 1, 0, 0, 0.5, 0, 1},    {0, 1, 0, 0, 0.999, 0, 1.5},
    {0, 1, 0, 0, 1, 0.1, 0.7},       {0, 1.3, 64, 0, 0.9, 0, 1}, {0, 0.7, 3, 20, 0.9, 0.02, 0.5},
    {0, 2, 1024, 100, 0.99, 0, 10},  {0, 1, 0, VOCAB, 1, 1, 1},  {0, 1, 0, 7, 1e-9, 0, 1},
};

static void chances_are_right(void **state) {
    float logits[VOCAB];
    int32_t recent[] = {3, 299, 17, 3, 3, 150, 17};
    (void)state;
    for (size_t c = 0; c < sizeof chains / sizeof *chains; c++)
        for (int wide = 1; wide <= 9; wide += 4) {
            random_logits(logits, wide, c);
            for (int i = 0; i < 7; i++) logits[recent[i]] = (float)(i - 1); /* likely, and some not positive */
            const double e = off(logits, &chains[c], &chains[c], recent, 7);
            if (!(e < 0.03)) fail_msg("chain %d, width %d: the chances are %.3g off", (int)c, wide, e);
        }
}

/* Each part of the chain left out must show. */
static void a_missing_part_is_caught(void **state) {
    float logits[VOCAB];
    int32_t recent[] = {3, 299, 17, 3, 3, 150, 17};
    const hola_sampling all = {0, 1.5, 64, 12, 0.6, 0.2, 0.6};
    (void)state;
    random_logits(logits, 3, 5);
    for (int i = 0; i < 7; i++) logits[recent[i]] = (float)(4 + i % 3);
    assert_true(off(logits, &all, &all, recent, 7) < 0.03);
    for (int part = 0; part < 5; part++) {
        hola_sampling p = all, wide = all;
        if (part == 1) wide.top_p = 1, wide.min_p = 0; /* so that top_k has something to do */
        if (part == 2) wide.top_k = 0, wide.min_p = 0;
        if (part == 3) wide.top_k = 0, wide.top_p = 1;
        p = wide;
        if (part == 0) p.repeat_penalty = 1;
        if (part == 1) p.top_k = 0;
        if (part == 2) p.top_p = 1;
        if (part == 3) p.min_p = 0;
        if (part == 4) p.temp = 1;
        const double e = off(logits, &p, &wide, recent, 7);
        if (!(e > 0.05)) fail_msg("without part %d the chances are only %.3g off", part, e);
    }
}

static void greedy(void **state) {
    float logits[VOCAB];
    struct hl_candidate work[VOCAB];
    const hola_sampling p = {0, 1, 64, 40, 0.95, 0.05, 0}, penalty = {0, 3, 64, 0, 1, 0, 0};
    const int32_t recent[] = {7};
    (void)state;
    random_logits(logits, 1, 3);
    logits[7] = logits[200] = 5;
    assert_int_equal(hl_sample(logits, VOCAB, &p, NULL, 0, 0.99, work), 7); /* of equal ones the first */
    assert_int_equal(hl_sample(logits, VOCAB, &penalty, recent, 1, 0.99, work), 200);
    logits[7] = -1, logits[200] = -2;
    for (int i = 0; i < VOCAB; i++)
        if (i != 7 && i != 200) logits[i] = -10;
    assert_int_equal(hl_sample(logits, VOCAB, &penalty, recent, 1, 0, work), 200); /* -3 and -2 */
}

static void small_vocabularies(void **state) {
    const float two[] = {1, 1}, flat[70] = {0};
    struct hl_candidate work[70];
    const hola_sampling p = hola_sampling_default();
    (void)state;
    assert_int_equal(hl_sample(two, 1, &p, NULL, 0, 0.5, work), 0);
    assert_int_equal(hl_sample(two, 2, &p, NULL, 0, 0.49, work), 0);
    assert_int_equal(hl_sample(two, 2, &p, NULL, 0, 0.51, work), 1);
    for (int i = 0; i < 38; i++) /* 40 equal ones: top-p leaves 38 of them */
        assert_int_equal(hl_sample(flat, 70, &p, NULL, 0, (i + 0.5) / 38, work), i);
}

static void wrong_settings(void **state) {
    const hola_sampling ok = hola_sampling_default();
    hola_sampling p;
    (void)state;
    CHECK_OK(hl_sampling_check(&ok));
#define REFUSED(field, value)                             \
    p = ok, p.field = (value);                            \
    assert_int_equal(hl_sampling_check(&p), HOLA_EINVAL); \
    assert_non_null(strstr(hola_last_error(), #field));
    REFUSED(temp, -0.1)
    REFUSED(temp, (double)NAN)
    REFUSED(temp, (double)INFINITY)
    REFUSED(top_k, -1)
    REFUSED(top_p, 0)
    REFUSED(top_p, 1.01)
    REFUSED(min_p, -0.1)
    REFUSED(min_p, 2)
    REFUSED(repeat_penalty, 0)
    REFUSED(repeat_last_n, -1)
    REFUSED(repeat_last_n, HOLA_RECENT + 1)
#undef REFUSED
}

/* From the largest alone the same choice, to the last bit of u; without the last of them not always. */
static void few_are_enough(void **state) {
    float logits[VOCAB];
    struct hl_candidate work[VOCAB], all[VOCAB], c[VOCAB];
    int32_t recent[HOLA_RECENT];
    int known = 0, missed = 0;
    (void)state;
    for (uint64_t i = 0; i < sizeof chains / sizeof *chains * 30; i++) {
        hola_sampling p = chains[i % (sizeof chains / sizeof *chains)];
        if (i % 7 == 0) p.temp = 0;
        const int64_t needs = hl_sample_needs(&p), n = needs < VOCAB ? needs : VOCAB;
        if (!needs) continue;
        random_logits(logits, 2, i);
        uint64_t seed = i;
        for (int j = 0; j < HOLA_RECENT; j++) recent[j] = (int32_t)check_uniform(&seed, 0, VOCAB);
        for (int j = 0; j < VOCAB; j++) all[j] = (struct hl_candidate){logits[j], j};
        for (int j = 1; j < VOCAB; j++) /* in order */
            for (int k = j; k > 0 && all[k].logit > all[k - 1].logit; k--)
                work[0] = all[k], all[k] = all[k - 1], all[k - 1] = work[0];
        for (int j = 0; j < 100; j++) {
            const double u = (j + 0.5) / 100;
            const int32_t want = hl_sample(logits, VOCAB, &p, recent, 200, u, work);
            memcpy(c, all, sizeof c);
            assert_int_equal(hl_sample_few(c, n, &p, recent, 200, u), want);
            memcpy(c, all, sizeof c);
            if (n > 1) missed += hl_sample_few(c + 1, n - 1, &p, recent, 200, u) != want;
            known++;
        }
    }
    assert_true(known > 10000 && missed > 1000);
}

/* top_k may be any number: more than there are tokens means all of them. */
static void large_top_k(void **state) {
    float logits[VOCAB];
    struct hl_candidate work[VOCAB];
    int32_t recent[HOLA_RECENT] = {0};
    hola_sampling p = {.temp = 1, .top_p = 1, .repeat_penalty = 1.1, .repeat_last_n = HOLA_RECENT};
    (void)state;
    random_logits(logits, 2, 1);
    for (int j = 0; j < 20; j++) {
        p.top_k = 0;
        const int32_t want = hl_sample(logits, VOCAB, &p, recent, 200, (j + 0.5) / 20, work);
        p.top_k = INT64_MAX;
        assert_int_equal(hl_sample(logits, VOCAB, &p, recent, 200, (j + 0.5) / 20, work), want);
        assert_true(hl_sample_needs(&p) > VOCAB);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chances_are_right),
                                       cmocka_unit_test(a_missing_part_is_caught),
                                       cmocka_unit_test(greedy),
                                       cmocka_unit_test(small_vocabularies),
                                       cmocka_unit_test(wrong_settings),
                                       cmocka_unit_test(few_are_enough),
                                       cmocka_unit_test(large_top_k)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
