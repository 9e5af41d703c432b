/* sequences.c -- see sequences.h. */
#include "model/sequences.h"
#include "model/session.h"
#include <stdlib.h>
#include <string.h>

hola_status hl_sequences_new(struct hl_sequences *out, hola_model *m, int64_t most) {
    *out = (struct hl_sequences){.model = m};
    pthread_mutex_lock(&m->lock);
    hola_status s = hl_model_need_panels(m);
    pthread_mutex_unlock(&m->lock);
    if (s != HOLA_OK) return s;
    out->sequence = calloc((size_t)most, sizeof *out->sequence);
    if (!out->sequence) return hl_fail(HOLA_ENOMEM, "sequences: no memory for %lld", (long long)most);
    for (; out->n < most; out->n++) {
        s = hl_state_new(&out->sequence[out->n].state, &m->state, m->backend, &m->states);
        if (s != HOLA_OK) break;
    }
    if (out->n > 0) return HOLA_OK;
    hl_sequences_free(out);
    return s;
}

void hl_sequences_free(struct hl_sequences *q) {
    for (int64_t i = 0; i < q->n; i++) hl_state_free(&q->sequence[i].state, q->model->backend, &q->model->states);
    free(q->sequence);
    *q = (struct hl_sequences){0};
}

void hl_sequence_reset(const struct hl_sequences *q, int64_t i) {
    hl_state_clear(&q->sequence[i].state, &q->model->state, q->model->backend);
    q->sequence[i].pos = 0;
}

hola_status hl_sequence_copy(const struct hl_sequences *q, int64_t to, int64_t from) {
    const hola_model *m = q->model;
    struct hl_sequence *a = &q->sequence[to], *b = &q->sequence[from];
    hola_status s = hl_state_reserve(&a->state, &m->state, m->backend, b->pos);
    if (s != HOLA_OK) return s;
    hl_state_copy(&a->state, &b->state, &m->state, m->backend, b->pos, HL_ALL_CHANGES);
    a->pos = b->pos;
    return HOLA_OK;
}

/* One pass: pieces of several feeds. */
struct pass {
    int64_t n, rows;
    struct hl_seg *seg;
    char *const **pages;  /* [n] */
    int64_t *feed, *from; /* [n]: which feed, and its first token */
    int32_t *ids, *next;  /* [rows] */
    float **to;           /* [n]: for the logits of those that end */
};

static void add(struct pass *p, const struct hl_sequences *q, const struct hl_feed *f, int64_t which, int64_t from,
                int64_t len) {
    const struct hl_sequence *y = &q->sequence[f->sequence];
    p->seg[p->n] = (struct hl_seg){.row = p->rows, .len = len, .pos = y->pos, .state = y->state.fixed};
    p->pages[p->n] = y->state.page;
    p->feed[p->n] = which, p->from[p->n] = from;
    memcpy(p->ids + p->rows, f->ids + from, (size_t)len * sizeof *p->ids);
    if (f->next) memcpy(p->next + p->rows, f->next + from, (size_t)len * sizeof *p->next);
    p->rows += len;
    p->n++;
}

static void take_scores(const struct pass *p, const struct hl_feed *f, const double *nll, const int32_t *correct) {
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t j = 0; j < p->seg[i].len; j++) {
            f[p->feed[i]].logprob[p->from[i] + j] = -nll[p->seg[i].row + j];
            f[p->feed[i]].correct[p->from[i] + j] = correct[p->seg[i].row + j] != 0;
        }
}

/* Whether piece i ends a feed that wants logits. */
static bool wants_logits(const struct pass *p, const struct hl_feed *f, int64_t i) {
    const struct hl_feed *one = &f[p->feed[i]];
    return one->logits && p->from[i] + p->seg[i].len == one->n;
}
/* The logits of the last rows of all feeds that end, in one product: the rows are gathered where the residual stream
 * was. */
static void read_logits(hola_model *m, struct pass *p, const struct hl_feed *f) {
    const int64_t row = m->cfg.hidden_size * m->backend->act_size, vocab = m->cfg.vocab_size;
    const int64_t room = hl_session_logits_room(m);
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) {
        if (!wants_logits(p, f, i)) continue;
        const int64_t at = p->seg[i].row + p->seg[i].len - 1;
        hl_copy(m->backend, (char *)m->infer.last + n * row, (char *)m->infer.lastn + at * row, row);
        p->to[n++] = f[p->feed[i]].logits;
    }
    for (int64_t i = 0, some; i < n; i += some) {
        some = 1; /* rows that are adjacent at their caller's, too */
        while (some < room && i + some < n && p->to[i + some] == p->to[i] + some * vocab) some++;
        hl_session_head(m, (char *)m->infer.last + i * row, some);
        hl_session_take_logits(m, some, p->to[i]);
    }
}

/* Runs the gathered pieces; the model's lock is held. */
static hola_status flush(struct pass *p, const struct hl_sequences *q, const struct hl_feed *f) {
    hola_model *m = q->model;
    const int64_t T = p->rows;
    int64_t logits = 0;
    if (T == 0) return HOLA_OK;
    const bool scored = f[p->feed[0]].next;
    struct hl_rows rows = {.T = T, .n = p->n, .seg = p->seg, .pages = (char *const *const *)p->pages};
    hola_status st = hl_model_need_panels(m);
    for (int64_t i = 0; i < p->n; i++) logits += wants_logits(p, f, i);
    if (st == HOLA_OK) st = hl_activations_reserve(&m->infer, &m->cfg, &rows, scored ? T : logits);
    if (st != HOLA_OK) return st;
    hl_model_forward(m, &m->infer, &rows, hl_activations_put(&m->infer, m->infer.ids, p->ids, T));
    if (scored) {
        hl_model_loss(m, &m->infer, T, hl_activations_put(&m->infer, m->infer.target, p->next, T), 0, NULL);
        const double *nll = hl_activations_nll(&m->infer, T);
        take_scores(p, f, nll, hl_activations_correct(&m->infer, T));
    }
    for (int64_t i = 0; i < p->n; i++) q->sequence[f[p->feed[i]].sequence].pos += p->seg[i].len;
    if (logits > 0) read_logits(m, p, f);
    p->n = p->rows = 0;
    return hl_finish(m->backend);
}

static hola_status run(struct pass *p, const struct hl_sequences *q, const struct hl_feed *f, int64_t n) {
    hola_model *m = q->model;
    const int64_t most = hl_model_rows(m);
    hola_status st = HOLA_OK;
    for (int64_t i = 0; st == HOLA_OK && i < n; i++) {
        struct hl_sequence *y = &q->sequence[f[i].sequence];
        st = hl_state_reserve(&y->state, &m->state, m->backend, y->pos + f[i].n);
    }
    for (int64_t i = 0; st == HOLA_OK && i < n; i++)
        for (int64_t from = 0, len; st == HOLA_OK && from < f[i].n; from += len) {
            len = hl_piece(f[i].n - from, most);
            /* (a pass never has two pieces of one sequence) */
            if (p->rows + len > most || from > 0) st = flush(p, q, f);
            if (st == HOLA_OK) add(p, q, &f[i], i, from, len);
        }
    return st == HOLA_OK ? flush(p, q, f) : st;
}

hola_status hl_sequences_run(const struct hl_sequences *q, const struct hl_feed *f, int64_t n) {
    hola_model *m = q->model;
    const size_t most = (size_t)hl_model_rows(m);
    hola_status st = HOLA_OK;
    for (int64_t i = 0; st == HOLA_OK && i < n; i++) {
        HL_ASSERT(f[i].sequence >= 0 && f[i].sequence < q->n && !f[i].next == !f[0].next);
        st = hl_model_check_ids(m, f[i].ids, f[i].n);
        for (int64_t j = 0; st == HOLA_OK && f[i].next && j < f[i].n; j++)
            if (f[i].next[j] >= 0) st = hl_model_check_ids(m, f[i].next + j, 1);
    }
    if (st != HOLA_OK) return st;
    struct pass p = {.seg = malloc(most * sizeof *p.seg),
                     .pages = malloc(most * sizeof *p.pages),
                     .feed = malloc(most * sizeof *p.feed),
                     .from = malloc(most * sizeof *p.from),
                     .ids = malloc(most * sizeof *p.ids),
                     .next = malloc(most * sizeof *p.next),
                     .to = malloc(most * sizeof *p.to)};
    if (p.seg && p.pages && p.feed && p.from && p.ids && p.next && p.to) {
        pthread_mutex_lock(&m->lock);
        st = run(&p, q, f, n);
        pthread_mutex_unlock(&m->lock);
    } else st = hl_fail(HOLA_ENOMEM, "score: no memory for %zu rows", most);
    free(p.seg), free(p.pages), free(p.feed), free(p.from), free(p.ids), free(p.next);
    free(p.to);
    return st;
}
