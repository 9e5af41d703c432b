/* session.c -- one sequence in constant memory: a block of state and a position.
 *
 * Tokens go through the model in pieces of up to HL_FEED rows, each continuing from the state that the
 * piece before left; a piece of one row is decoding. The activations belong to the model, so a session
 * is its state block alone, and any number of sessions can share a pass. */
#include "model/model.h"
#include <stdlib.h>
#include <string.h>

enum { HL_FEED = 512 };

struct hola_session {
    hola_model *model;
    int64_t pos;
    char *state;
};

hola_status hola_session_new(hola_session **out, hola_model *m) {
    *out = NULL;
    pthread_mutex_lock(&m->lock);
    hola_status s = hl_model_need_panels(m);
    pthread_mutex_unlock(&m->lock);
    if (s != HOLA_OK) return s;
    hola_session *y = calloc(1, sizeof *y);
    char *state = aligned_alloc(64, (size_t)m->state.bytes);
    if (!y || !state) {
        free(y);
        free(state);
        return hl_fail(HOLA_ENOMEM, "session: %lld bytes do not fit in memory", (long long)m->state.bytes);
    }
    y->model = m;
    y->state = state;
    hola_session_reset(y);
    *out = y;
    return HOLA_OK;
}

void hola_session_free(hola_session *s) {
    if (!s) return;
    free(s->state);
    free(s);
}

void hola_session_reset(hola_session *s) {
    memset(s->state, 0, (size_t)s->model->state.bytes);
    s->pos = 0;
}

int64_t hola_session_position(const hola_session *s) { return s->pos; }
int64_t hola_session_bytes(const hola_session *s) { return s->model->state.bytes + (int64_t)sizeof *s; }

/* The model's lock is held. The pass leaves the normed stream of all rows in m->infer.lastn. */
static hola_status run(hola_model *m, const struct hl_rows *rows, const int32_t *ids, bool logits) {
    hola_status s = hl_model_need_panels(m);
    if (s == HOLA_OK) s = hl_acts_reserve(&m->infer, &m->cfg, rows, logits);
    if (s == HOLA_OK) hl_model_forward(m, &m->infer, rows, ids);
    return s;
}

/* logits of n rows of the normed stream, from row `first` on */
static void read_logits(hola_model *m, int64_t first, int64_t n, float *out) {
    const int64_t d = m->cfg.hidden_size, vocab = m->cfg.vocab_size;
    struct hl_linear a = {.K = d, .n = 1};
    a.part[0].W = hl_model_weight(m, HL_INFER, m->params.head);
    a.part[0].out = m->infer.logits;
    for (int64_t i = 0; i < n; i += HL_XENT_ROWS) {
        a.M = n - i < HL_XENT_ROWS ? n - i : HL_XENT_ROWS;
        a.x = m->infer.lastn + (first + i) * d;
        m->ops->linear_forward(m->pool, &a);
        for (int64_t j = 0; j < a.M * vocab; j++) out[i * vocab + j] = (float)m->infer.logits[j];
    }
}

hola_status hola_session_feed(hola_session *y, const int32_t *ids, int64_t n, float *logits) {
    hola_model *m = y->model;
    hola_status s =
        n < 1 ? hl_fail(HOLA_EINVAL, "feed: %lld tokens", (long long)n) : hl_model_check_ids(m, ids, n);
    if (s != HOLA_OK) return s;
    pthread_mutex_lock(&m->lock);
    for (int64_t i = 0; s == HOLA_OK && i < n; i += HL_FEED) {
        struct hl_seg seg = {.len = n - i < HL_FEED ? n - i : HL_FEED, .pos = y->pos, .state = y->state};
        struct hl_rows rows = {.T = seg.len, .n = 1, .seg = &seg};
        const bool last = i + seg.len == n;
        s = run(m, &rows, ids + i, last && logits);
        if (s != HOLA_OK) break;
        y->pos += seg.len;
        if (last && logits) read_logits(m, seg.len - 1, 1, logits);
    }
    pthread_mutex_unlock(&m->lock);
    return s;
}

hola_status hola_session_score(hola_session *y, const int32_t *ids, const int32_t *next, int64_t n,
                               double *logprobs) {
    hola_model *m = y->model;
    hola_status s =
        n < 1 ? hl_fail(HOLA_EINVAL, "score: %lld tokens", (long long)n) : hl_model_check_ids(m, ids, n);
    if (s == HOLA_OK) s = hl_model_check_ids(m, next, n);
    if (s != HOLA_OK) return s;
    pthread_mutex_lock(&m->lock);
    for (int64_t i = 0; s == HOLA_OK && i < n; i += HL_FEED) {
        struct hl_seg seg = {.len = n - i < HL_FEED ? n - i : HL_FEED, .pos = y->pos, .state = y->state};
        struct hl_rows rows = {.T = seg.len, .n = 1, .seg = &seg};
        s = run(m, &rows, ids + i, true);
        if (s != HOLA_OK) break;
        y->pos += seg.len;
        hl_model_loss(m, &m->infer, seg.len, next + i, 0, NULL);
        for (int64_t j = 0; j < seg.len; j++) logprobs[i + j] = -m->infer.nll[j];
    }
    pthread_mutex_unlock(&m->lock);
    return s;
}

hola_status hola_session_step(hola_session *const *y, int64_t n, const int32_t *ids, float *logits) {
    if (n < 1) return hl_fail(HOLA_EINVAL, "step: %lld sessions", (long long)n);
    hola_model *m = y[0]->model;
    hola_status s = hl_model_check_ids(m, ids, n);
    for (int64_t i = 0; s == HOLA_OK && i < n; i++) {
        if (y[i]->model != m)
            s = hl_fail(HOLA_EINVAL, "step: session %lld is of another model", (long long)i);
        for (int64_t j = 0; s == HOLA_OK && j < i; j++)
            if (y[i] == y[j])
                s = hl_fail(HOLA_EINVAL, "step: sessions %lld and %lld are the same", (long long)j,
                            (long long)i);
    }
    if (s != HOLA_OK) return s;
    struct hl_seg *seg = calloc((size_t)n, sizeof *seg);
    if (!seg) return hl_fail(HOLA_ENOMEM, "step: %lld sessions", (long long)n);
    for (int64_t i = 0; i < n; i++)
        seg[i] = (struct hl_seg){.row = i, .len = 1, .pos = y[i]->pos, .state = y[i]->state};
    struct hl_rows rows = {.T = n, .n = n, .seg = seg};
    pthread_mutex_lock(&m->lock);
    s = run(m, &rows, ids, logits != NULL);
    if (s == HOLA_OK) {
        for (int64_t i = 0; i < n; i++) y[i]->pos++;
        if (logits) read_logits(m, 0, n, logits);
    }
    pthread_mutex_unlock(&m->lock);
    free(seg);
    return s;
}
