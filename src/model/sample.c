/* sample.c -- see sample.h. Candidates are sorted only as far as needed: a few dozen of 32,000, so that sampling takes
 * a tenth of a millisecond instead of three. */
#include "model/sample.h"
#include <math.h>
#include <stdlib.h>

hola_status hl_sampling_take(hola_sampling *to, const hola_sampling *p) {
    if (!p) return *to = hola_sampling_default(), HOLA_OK;
    hola_status s = hl_options_take(to, sizeof *to, p, HL_SIZE_UP_TO(hola_sampling, temp), "hola_sampling");
    return s == HOLA_OK ? hl_sampling_check(to) : s;
}

hola_status hl_sampling_check(const hola_sampling *p) {
    if (!(p->temp >= 0 && p->temp <= 1e6)) return hl_fail(HOLA_EINVAL, "temp: %g is not 0 to 1e6", p->temp);
    if (p->top_k < 0) return hl_fail(HOLA_EINVAL, "top_k: %lld is negative", (long long)p->top_k);
    if (!(p->top_p > 0 && p->top_p <= 1)) return hl_fail(HOLA_EINVAL, "top_p: %g is not over 0 and up to 1", p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1)) return hl_fail(HOLA_EINVAL, "min_p: %g is not 0 to 1", p->min_p);
    if (!(p->repeat_penalty > 0 && p->repeat_penalty <= 1e6))
        return hl_fail(HOLA_EINVAL, "repeat_penalty: %g is not over 0 and up to 1e6", p->repeat_penalty);
    if (p->repeat_last_n < 0 || p->repeat_last_n > HOLA_RECENT)
        return hl_fail(HOLA_EINVAL, "repeat_last_n: %lld is not 0 to %d", (long long)p->repeat_last_n, HOLA_RECENT);
    return HOLA_OK;
}

static bool before(struct hl_candidate a, struct hl_candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}
static int compare(const void *a, const void *b) {
    return before(*(const struct hl_candidate *)a, *(const struct hl_candidate *)b) ? -1 : 1;
}

/* Moves the m largest of c[0, n) to the front, unordered. Each round halves the rest, roughly. */
static void select_first(struct hl_candidate *c, int64_t n, int64_t m) {
    int64_t lo = 0, hi = n;
    while (hi - lo > 1 && m > lo && m < hi) {
        const struct hl_candidate pivot = c[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi - 1;
        while (i <= j) {
            while (before(c[i], pivot)) i++;
            while (before(pivot, c[j])) j--;
            if (i > j) break;
            const struct hl_candidate t = c[i];
            c[i++] = c[j], c[j--] = t;
        }
        if (m <= j + 1) hi = j + 1;
        else if (m >= i) lo = i;
        else return;
    }
}

/* Sorts the first m; *done are already sorted. */
static void order(struct hl_candidate *c, int64_t n, int64_t m, int64_t *done) {
    if (m > n) m = n;
    if (m <= *done) return;
    select_first(c + *done, n - *done, m - *done);
    qsort(c + *done, (size_t)(m - *done), sizeof *c, compare);
    *done = m;
}

static float penalised(float x, const hola_sampling *p) {
    return (float)(x > 0 ? x / p->repeat_penalty : x * p->repeat_penalty);
}
static void penalise(struct hl_candidate *c, const hola_sampling *p, const int32_t *recent, int64_t n_recent) {
    const int64_t n = n_recent < p->repeat_last_n ? n_recent : p->repeat_last_n;
    if (p->repeat_penalty == 1) return;
    for (int64_t i = n_recent - n; i < n_recent; i++) {
        bool again = false; /* once per token, however often it occurred */
        for (int64_t j = n_recent - n; j < i && !again; j++) again = recent[j] == recent[i];
        float *x = &c[recent[i]].logit;
        if (!again) *x = penalised(*x, p);
    }
}

static int64_t likeliest(const struct hl_candidate *c, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (c[i].logit > c[best].logit) best = i;
    return best;
}

/* How many of n sorted candidates remain after top-p and min-p. */
static int64_t cut_tail(struct hl_candidate *c, int64_t n, const hola_sampling *p, int64_t *ordered) {
    enum { FEW = 64 };
    double total = 0, sum = 0;
    order(c, n, 1, ordered);
    const double max = (double)c[0].logit, least = p->min_p > 0 ? max + log(p->min_p) : -INFINITY;
    for (int64_t i = 0; i < n && p->top_p < 1; i++) total += exp((double)c[i].logit - max);
    for (int64_t i = 0; i < n; i++) {
        if (i == *ordered) order(c, n, i < FEW ? FEW : 4 * i, ordered);
        if ((double)c[i].logit < least) return i;
        sum += exp((double)c[i].logit - max);
        if (p->top_p < 1 && sum >= p->top_p * total) return i + 1;
    }
    return n;
}

/* Samples one of the n candidates left by top-k; `ordered` of them are sorted. */
static int32_t choose(struct hl_candidate *work, int64_t n, int64_t ordered, const hola_sampling *p, double u) {
    if (p->top_p < 1 || p->min_p > 0) n = cut_tail(work, n, p, &ordered);
    const double max = (double)work[likeliest(work, n)].logit;
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += exp(((double)work[i].logit - max) / p->temp);
    u *= total;
    for (int64_t i = 0; i < n; i++) {
        u -= exp(((double)work[i].logit - max) / p->temp);
        if (u < 0) return work[i].id;
    }
    return work[likeliest(work, n)].id; /* rounding: u was just below total */
}

int32_t hl_sample(const float *logits, int64_t vocab, const hola_sampling *p, const int32_t *recent, int64_t n_recent,
                  double u, struct hl_candidate *work) {
    int64_t n = vocab, ordered = 0;
    for (int64_t i = 0; i < vocab; i++) work[i] = (struct hl_candidate){logits[i], (int32_t)i};
    penalise(work, p, recent, n_recent);
    if (p->temp == 0) return work[likeliest(work, n)].id;
    if (p->top_k > 0 && p->top_k < n) {
        n = p->top_k;
        order(work, vocab, n, &ordered);
    }
    return choose(work, n, ordered, p, u);
}

/* A penalty over 1 lowers recent tokens, so that others may move into the top n: at most one for each. */
int64_t hl_sample_needs(const hola_sampling *p) {
    const int64_t n = p->temp == 0 ? 1 : p->top_k < INT32_MAX ? p->top_k : INT32_MAX; /* so that sums do not overflow */
    if (n == 0 || p->repeat_penalty < 1) return 0;
    return p->repeat_penalty > 1 ? n + p->repeat_last_n : n;
}

int32_t hl_sample_few(struct hl_candidate *c, int64_t n, const hola_sampling *p, const int32_t *recent,
                      int64_t n_recent, double u) {
    const int64_t last = n_recent < p->repeat_last_n ? n_recent : p->repeat_last_n;
    for (int64_t i = 0; i < n && p->repeat_penalty != 1; i++) {
        bool came = false;
        for (int64_t j = n_recent - last; j < n_recent && !came; j++) came = recent[j] == c[i].id;
        if (came) c[i].logit = penalised(c[i].logit, p);
    }
    qsort(c, (size_t)n, sizeof *c, compare);
    if (p->temp == 0) return c[0].id;
    if (p->top_k < n) n = p->top_k;
    return choose(c, n, n, p, u);
}
