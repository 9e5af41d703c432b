/* score.c -- scores items in waves: identical prefixes are fed once and their state copied, then the rest of every item
 * is scored. A wave has as many items as there are states. */
#include "core/half.h"
#include "eval/engine.h"
#include "model/sequences.h"
#include <math.h>
#include <stdlib.h>

enum { LANES_HOST = 32, LANES_DEVICE = 512 };

/* Longest prefix first, equal ones adjacent, else in request order. */
static int by_prefix(const void *a, const void *b) {
    const struct hl_item *x = a, *y = b;
    if (x->prefix != y->prefix) return x->prefix > y->prefix ? -1 : 1;
    const int c = x->prefix ? memcmp(x->ids, y->ids, (size_t)x->prefix * sizeof *x->ids) : 0;
    if (c) return c;
    if (x->request != y->request) return x->request < y->request ? -1 : 1;
    return x->ids < y->ids ? -1 : x->ids > y->ids;
}
static bool same_prefix(const struct hl_item *x, const struct hl_item *y) {
    return x->prefix == y->prefix &&
           (x->prefix == 0 || memcmp(x->ids, y->ids, (size_t)x->prefix * sizeof *x->ids) == 0);
}

struct wave {
    struct hl_sequences sequences;
    struct hl_feed *feed, *score; /* [sequences] */
    double *logprob;              /* room for `rows` of them */
    bool *correct;
    int64_t rows;
    int64_t *left; /* [requests]: items without an answer */
};

static hola_status wave_room(struct wave *w, int64_t rows) {
    if (rows <= w->rows) return HOLA_OK;
    free(w->logprob), free(w->correct);
    w->logprob = malloc((size_t)rows * sizeof *w->logprob);
    w->correct = malloc((size_t)rows * sizeof *w->correct);
    w->rows = w->logprob && w->correct ? rows : 0;
    return w->rows ? HOLA_OK : hl_fail(HOLA_ENOMEM, "eval: no memory for %lld scores", (long long)rows);
}

/* Feeds the distinct prefixes of item[0..n), and leaves each item's state in the sequence with its index. */
static hola_status feed_prefixes(struct wave *w, const struct hl_item *item, int64_t n, int64_t *fed) {
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && same_prefix(&item[i], &item[i - 1])) continue;
        hl_sequence_reset(&w->sequences, i);
        if (item[i].prefix == 0) continue;
        w->feed[k++] = (struct hl_feed){.sequence = i, .ids = item[i].ids, .n = item[i].prefix};
        *fed += item[i].prefix;
    }
    hola_status st = k > 0 ? hl_sequences_run(&w->sequences, w->feed, k) : HOLA_OK;
    for (int64_t i = 1; st == HOLA_OK && i < n; i++)
        if (same_prefix(&item[i], &item[i - 1])) st = hl_sequence_copy(&w->sequences, i, i - 1);
    return st;
}

static double round_bf16(double x) { return (double)hl_from_bf16(hl_to_bf16((float)x)); }

/* Adds one item's scores to its request's answer. */
static hola_status take(struct hl_engine *e, struct wave *w, const struct hl_item *item, const struct hl_feed *s) {
    struct hl_answer *a = &e->answer[item->request];
    const bool bf16 = e->opts->precision == HL_PRECISION_BF16;
    double sum = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (s->next[i] < 0) continue;
        if (!isfinite(s->logprob[i]))
            return hl_fail(HOLA_ENUMERIC, "document %lld: a log-probability is not a finite number",
                           (long long)e->set->request[item->request].doc);
        sum = bf16 ? (double)((float)sum + (float)round_bf16(s->logprob[i])) : sum + s->logprob[i];
        a->greedy = a->greedy && s->correct[i];
        a->tokens++;
        if (a->top) a->top[item->prefix + i] = s->correct[i];
    }
    a->loglikelihood += bf16 ? round_bf16(sum) : sum;
    return --w->left[item->request] == 0 ? hl_engine_answered(e, item->request) : HOLA_OK;
}

static hola_status run_wave(struct hl_engine *e, struct wave *w, const struct hl_item *item, int64_t n) {
    int64_t rows = 0, fed = 0;
    for (int64_t i = 0; i < n; i++) rows += item[i].n - item[i].prefix;
    hola_status st = wave_room(w, rows);
    if (st == HOLA_OK) st = feed_prefixes(w, item, n, &fed);
    rows = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = item[i].prefix;
        w->score[i] = (struct hl_feed){.sequence = i,
                                       .ids = item[i].ids + from,
                                       .next = item[i].next + from,
                                       .n = item[i].n - from,
                                       .logprob = w->logprob + rows,
                                       .correct = w->correct + rows};
        rows += item[i].n - from;
    }
    if (st == HOLA_OK) st = hl_sequences_run(&w->sequences, w->score, n);
    for (int64_t i = 0; st == HOLA_OK && i < n; i++) st = take(e, w, &item[i], &w->score[i]);
    if (st == HOLA_OK) hl_engine_progress(e, rows + fed);
    return st;
}

/* Items that make a wave: as many as there are sequences, but limited to a few passes of rows, so that progress is
 * visible and little is lost on an interruption. */
static int64_t wave_size(const struct hl_engine *e, const struct wave *w, const struct hl_item *item, int64_t n) {
    const int64_t most = 4 * hl_model_rows(e->model);
    int64_t k = 0;
    for (int64_t rows = 0; k < n && k < w->sequences.n; k++) {
        rows += item[k].n - (k > 0 && same_prefix(&item[k], &item[k - 1]) ? item[k].prefix : 0);
        if (k > 0 && rows > most) break;
    }
    return k;
}

/* Items without a prefix: longest first. */
static int by_length(const void *a, const void *b) {
    const struct hl_item *x = a, *y = b;
    if (x->n != y->n) return x->n > y->n ? -1 : 1;
    if (x->request != y->request) return x->request < y->request ? -1 : 1;
    return x->ids < y->ids ? -1 : x->ids > y->ids; /* windows of one text */
}

hola_status hl_engine_score(struct hl_engine *e, struct hl_items *items) {
    struct wave w = {0};
    int64_t n = items->n, most = hl_engine_room(e->model, LANES_HOST, LANES_DEVICE);
    if (n == 0) return HOLA_OK;
    qsort(items->item, (size_t)n, sizeof *items->item, by_prefix);
    int64_t bare = n;
    while (bare > 0 && items->item[bare - 1].prefix == 0) bare--;
    qsort(items->item + bare, (size_t)(n - bare), sizeof *items->item, by_length);
    hola_status st = hl_sequences_new(&w.sequences, e->model, most < n ? most : n);
    w.feed = calloc((size_t)most, sizeof *w.feed), w.score = calloc((size_t)most, sizeof *w.score);
    w.left = calloc((size_t)e->set->n, sizeof *w.left);
    if (st == HOLA_OK && (!w.feed || !w.score || !w.left)) st = hl_fail(HOLA_ENOMEM, "eval: no memory for a wave");
    for (int64_t i = 0; st == HOLA_OK && i < n; i++) w.left[items->item[i].request]++;
    for (int64_t i = 0, k; st == HOLA_OK && i < n; i += k) {
        k = wave_size(e, &w, items->item + i, n - i);
        st = run_wave(e, &w, items->item + i, k);
    }
    hl_sequences_free(&w.sequences);
    free(w.feed), free(w.score), free(w.left), free(w.logprob), free(w.correct);
    return st;
}
