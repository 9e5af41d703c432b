/* sequences.c -- see lanes.h. */
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
    out->lane = calloc((size_t)most, sizeof *out->lane);
    for (; out->lane && out->n < most; out->n++) {
        out->lane[out->n].state = hl_alloc(m->backend, m->state.bytes);
        if (!out->lane[out->n].state) break;
    }
    if (out->n == 0) {
        hl_sequences_free(out);
        return hl_fail(HOLA_ENOMEM, "session: %lld bytes do not fit in memory", (long long)m->state.bytes);
    }
    return HOLA_OK;
}

void hl_sequences_free(struct hl_sequences *l) {
    for (int64_t i = 0; i < l->n; i++) hl_release(l->model->backend, l->lane[i].state);
    free(l->lane);
    *l = (struct hl_sequences){0};
}

void hl_sequence_reset(const struct hl_sequences *l, int64_t i) {
    hl_zero(l->model->backend, l->lane[i].state, l->model->state.bytes);
    l->lane[i].pos = 0;
}

void hl_sequence_copy(const struct hl_sequences *l, int64_t to, int64_t from) {
    hl_copy(l->model->backend, l->lane[to].state, l->lane[from].state, l->model->state.bytes);
    l->lane[to].pos = l->lane[from].pos;
}

/* One pass: pieces of several stretches side by side. */
struct pass {
    int64_t n, rows;
    struct hl_seg *seg;
    int64_t *stretch, *from; /* [n]: of which stretch, from which of its tokens on */
    int32_t *ids, *next;     /* [rows] */
};

static void add(struct pass *p, const struct hl_sequences *l, const struct hl_feed *s, int64_t which,
                int64_t from, int64_t len) {
    const struct hl_sequence *lane = &l->lane[s->lane];
    p->seg[p->n] = (struct hl_seg){.row = p->rows, .len = len, .pos = lane->pos, .state = lane->state};
    p->stretch[p->n] = which, p->from[p->n] = from;
    memcpy(p->ids + p->rows, s->ids + from, (size_t)len * sizeof *p->ids);
    if (s->next) memcpy(p->next + p->rows, s->next + from, (size_t)len * sizeof *p->next);
    p->rows += len;
    p->n++;
}

/* Runs what was gathered; the model's lock is held. */
static hola_status flush(struct pass *p, const struct hl_sequences *l, const struct hl_feed *s) {
    hola_model *m = l->model;
    const int64_t T = p->rows;
    if (T == 0) return HOLA_OK;
    const bool scored = s[p->stretch[0]].next;
    struct hl_rows rows = {.T = T, .n = p->n, .seg = p->seg};
    hola_status st = hl_model_need_panels(m);
    if (st == HOLA_OK) st = hl_activations_reserve(&m->infer, &m->cfg, &rows, scored ? T : 1);
    if (st != HOLA_OK) return st;
    hl_model_forward(m, &m->infer, &rows, hl_activations_put(&m->infer, m->infer.ids, p->ids, T));
    if (scored) {
        hl_model_loss(m, &m->infer, T, hl_activations_put(&m->infer, m->infer.target, p->next, T), 0, NULL);
        const double *nll = hl_activations_nll(&m->infer, T);
        const int32_t *top = hl_activations_top(&m->infer, T);
        for (int64_t i = 0; i < p->n; i++)
            for (int64_t j = 0; j < p->seg[i].len; j++) {
                s[p->stretch[i]].logprob[p->from[i] + j] = -nll[p->seg[i].row + j];
                s[p->stretch[i]].top[p->from[i] + j] = top[p->seg[i].row + j] != 0;
            }
    }
    for (int64_t i = 0; i < p->n; i++) {
        const struct hl_feed *one = &s[p->stretch[i]];
        const struct hl_seg *seg = &p->seg[i];
        l->lane[one->lane].pos += seg->len;
        if (one->logits && p->from[i] + seg->len == one->n)
            hl_session_read_logits(m, seg->row + seg->len - 1, 1, one->logits);
    }
    p->n = p->rows = 0;
    return hl_finish(m->backend);
}

static hola_status run(struct pass *p, const struct hl_sequences *l, const struct hl_feed *s, int64_t n) {
    const int64_t most = hl_model_rows(l->model);
    hola_status st = HOLA_OK;
    for (int64_t i = 0; st == HOLA_OK && i < n; i++)
        for (int64_t from = 0, len; st == HOLA_OK && from < s[i].n; from += len) {
            len = s[i].n - from < most ? s[i].n - from : most;
            /* (a piece that another of its lane follows fills a pass) */
            if (p->rows + len > most) st = flush(p, l, s);
            if (st == HOLA_OK) add(p, l, &s[i], i, from, len);
        }
    return st == HOLA_OK ? flush(p, l, s) : st;
}

hola_status hl_sequences_run(const struct hl_sequences *l, const struct hl_feed *s, int64_t n) {
    hola_model *m = l->model;
    const size_t most = (size_t)hl_model_rows(m);
    hola_status st = HOLA_OK;
    for (int64_t i = 0; st == HOLA_OK && i < n; i++) {
        HL_ASSERT(s[i].lane >= 0 && s[i].lane < l->n && !s[i].next == !s[0].next);
        st = hl_model_check_ids(m, s[i].ids, s[i].n);
        for (int64_t j = 0; st == HOLA_OK && s[i].next && j < s[i].n; j++)
            if (s[i].next[j] >= 0) st = hl_model_check_ids(m, s[i].next + j, 1);
    }
    if (st != HOLA_OK) return st;
    struct pass p = {.seg = malloc(most * sizeof *p.seg),
                     .stretch = malloc(most * sizeof *p.stretch),
                     .from = malloc(most * sizeof *p.from),
                     .ids = malloc(most * sizeof *p.ids),
                     .next = malloc(most * sizeof *p.next)};
    if (p.seg && p.stretch && p.from && p.ids && p.next) {
        pthread_mutex_lock(&m->lock);
        st = run(&p, l, s, n);
        pthread_mutex_unlock(&m->lock);
    } else st = hl_fail(HOLA_ENOMEM, "score: no memory for %zu rows", most);
    free(p.seg), free(p.stretch), free(p.from), free(p.ids), free(p.next);
    return st;
}
