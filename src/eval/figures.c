/* figures.c -- the figures of a task: means, perplexities, standard errors, and comparisons of two models. */
#include "eval/eval.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *const hl_test_names[] = {"none", "mcnemar", "paired", "unpaired", NULL};

void hl_metrics_free(struct hl_metrics *m) {
    for (int i = 0; i < m->count; i++) free(m->metric[i].x), free(m->metric[i].w);
    m->count = 0;
}

void hl_metric_put(struct hl_metrics *m, const char *name, double value, double error) {
    HL_ASSERT(m->count < HL_METRICS);
    struct hl_figure *f = &m->metric[m->count++];
    *f = (struct hl_figure){.value = value, .error = error, .chance = NAN};
    snprintf(f->name, sizeof f->name, "%s", name);
}

static double *copy(const double *x, int64_t n) {
    double *y = x ? malloc((size_t)(n + 1) * sizeof *y) : NULL;
    HL_ASSERT(y || !x);
    if (y && n > 0) memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

/* The standard error of sum(x) / sum(w) over random documents (delta method); for a mean, the usual one. */
static double ratio_error(const double *x, const double *w, int64_t n, double ratio, double all) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) {
        const double off = x[i] - ratio * (w ? w[i] : 1);
        squares += off * off;
    }
    return n > 1 ? sqrt(squares * (double)n / (double)(n - 1)) / all : NAN;
}

void hl_metric_ratio(struct hl_metrics *m, const char *name, const double *x, const double *w, int64_t n,
                     bool exponent) {
    double sum = 0, all = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i], all += w ? w[i] : 1;
    const double ratio = n > 0 ? sum / all : NAN, error = ratio_error(x, w, n, ratio, all);
    hl_metric_put(m, name, exponent ? exp(ratio) : ratio, exponent ? exp(ratio) * error : error);
    struct hl_figure *f = &m->metric[m->count - 1];
    f->x = copy(x, n), f->w = copy(w, n);
    f->n = n, f->exponent = exponent;
}

void hl_metric_mean(struct hl_metrics *m, const char *name, const double *x, int64_t n) {
    hl_metric_ratio(m, name, x, NULL, n, false);
}

void hl_metric_chance(struct hl_metrics *m, double chance) { m->metric[m->count - 1].chance = chance; }

/* ---- two models ---- */

static double two_sided(double z) { return erfc(fabs(z) / sqrt(2)); }

/* Two-sided binomial test on the documents that only one model has right. */
static double coin(int64_t a, int64_t b) {
    const int64_t n = a + b, less = a < b ? a : b;
    double p = 0;
    for (int64_t k = 0; k <= less; k++)
        p += exp(lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma((double)(n - k) + 1) - (double)n * log(2));
    return 2 * p < 1 ? 2 * p : 1;
}

static bool mcnemar(const struct hl_figure *a, const struct hl_figure *b, double *p) {
    int64_t only_a = 0, only_b = 0;
    if (a->w || b->w || a->exponent) return false;
    for (int64_t i = 0; i < a->n; i++) {
        const double x = a->x[i], y = b->x[i];
        if ((x != 0 && x != 1) || (y != 0 && y != 1)) return false;
        only_a += x > y, only_b += y > x;
    }
    *p = coin(only_a, only_b);
    return true;
}

static bool same_weights(const struct hl_figure *a, const struct hl_figure *b) {
    if (!a->x || !b->x || a->n != b->n || !a->w != !b->w || a->exponent != b->exponent) return false;
    for (int64_t i = 0; a->w && i < a->n; i++)
        if (a->w[i] != b->w[i]) return false;
    return true;
}

/* Paired test on per-document differences; for perplexities, on the scale of log-likelihoods. */
static double paired(const struct hl_figure *a, const struct hl_figure *b) {
    double *d = malloc((size_t)a->n * sizeof *d), sum = 0, all = 0;
    HL_ASSERT(d);
    for (int64_t i = 0; i < a->n; i++) d[i] = b->x[i] - a->x[i], sum += d[i], all += a->w ? a->w[i] : 1;
    const double error = ratio_error(d, a->w, a->n, sum / all, all);
    free(d);
    return sum == 0 ? 1 : two_sided(sum / all / error); /* no spread: 0 */
}

struct hl_comparison hl_figure_compare(const struct hl_figure *a, const struct hl_figure *b) {
    struct hl_comparison y = {.difference = b->value - a->value, .p = NAN};
    if (!isfinite(y.difference)) return y;
    if (same_weights(a, b)) {
        if (mcnemar(a, b, &y.p)) y.test = HL_TEST_MCNEMAR;
        else if (a->n >= HL_LEAST_PAIRS) y.test = HL_TEST_PAIRED, y.p = paired(a, b);
    } else if (isfinite(a->error) && isfinite(b->error)) {
        const double error = hypot(a->error, b->error);
        y.test = HL_TEST_UNPAIRED;
        y.p = error > 0 ? two_sided(y.difference / error) : y.difference == 0;
    }
    return y;
}
