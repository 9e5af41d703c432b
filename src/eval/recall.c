/* recall.c -- see recall.h. */
#include "eval/recall.h"
#include "core/argmax.h"
#include <math.h>
#include <stdlib.h>

/* Feeds a sequence up to each answer in turn, checks the logits there, and continues with the true answer. */
static hola_status one_sample(hola_session *y, const struct hl_recall *r, const int32_t *ids, const uint8_t *mask,
                              int64_t vocab, float *logits, double *out) {
    int64_t fed = 0, right = 0;
    hola_session_reset(y);
    for (int64_t t = 0; t < r->length; t++) {
        if (!mask[t]) continue;
        hola_status s = hola_session_feed(y, ids + fed, t - fed, logits);
        if (s != HOLA_OK) return s;
        fed = t;
        right += hl_argmax(logits, vocab) == ids[t];
    }
    *out = (double)right / (double)r->queries;
    return HOLA_OK;
}

hola_status hl_recall_measure(hola_model *m, const struct hl_recall *task, uint64_t seed, int64_t samples,
                              double *out) {
    const int64_t vocab = hola_model_config(m)->vocab_size;
    hola_session *y = NULL;
    hola_status s = hl_recall_check(task);
    if (s == HOLA_OK) s = hola_session_new(&y, m);
    if (s != HOLA_OK) return s;
    int32_t *ids = malloc((size_t)task->length * sizeof *ids);
    uint8_t *mask = malloc((size_t)task->length);
    float *logits = malloc((size_t)vocab * sizeof *logits);
    if (!ids || !mask || !logits) s = hl_fail(HOLA_ENOMEM, "recall: no memory");
    for (int64_t i = 0; s == HOLA_OK && i < samples; i++) {
        s = hl_recall_make(task, seed, i, ids, mask);
        if (s == HOLA_OK) s = one_sample(y, task, ids, mask, vocab, logits, &out[i]);
    }
    hola_session_free(y);
    free(ids);
    free(mask);
    free(logits);
    return s;
}

struct hl_mean hl_mean_difference(const double *x, const double *y, int64_t n) {
    struct hl_mean r = {0, 0};
    double squares = 0;
    for (int64_t i = 0; i < n; i++) r.mean += (x[i] - (y ? y[i] : 0)) / (double)n;
    for (int64_t i = 0; i < n; i++) {
        const double e = x[i] - (y ? y[i] : 0) - r.mean;
        squares += e * e;
    }
    if (n > 1) r.error = sqrt(squares / (double)(n - 1) / (double)n);
    return r;
}

struct hl_mean hl_mean(const double *x, int64_t n) {
    return hl_mean_difference(x, NULL, n);
}
