/* session.c -- one sequence: its state, position, latest ids and logits.
 *
 * Tokens go through the model in pieces (piece_rows), each continuing from the state left by the previous one; a piece
 * of one row is decoding. The activations belong to the model, so a session is little more than its state, and any
 * number of sessions can share a pass. */
#include "model/session.h"
#include "model/sequences.h"
#include "core/half.h"
#include "core/rng.h"
#include <stdlib.h>
#include <string.h>

hola_status hl_session_new(hola_session **out, hola_model *m) {
    *out = NULL;
    pthread_mutex_lock(&m->lock);
    hola_status s = hl_model_need_panels(m);
    pthread_mutex_unlock(&m->lock);
    if (s != HOLA_OK) return s;
    hola_session *y = calloc(1, sizeof *y);
    if (!y) return hl_fail(HOLA_ENOMEM, "session: no memory");
    s = hl_state_new(&y->now.state, &m->state, m->backend, &m->states);
    if (s != HOLA_OK) {
        free(y);
        return s;
    }
    y->model = m;
    y->now.ranked = true;
    *out = y;
    return HOLA_OK;
}

hola_status hola_session_new(hola_session **out, hola_model *m) {
    HL_NEED(out, "out");
    *out = NULL;
    HL_NEED(m, "the model");
    hola_status s = hl_session_new(out, m);
    if (s == HOLA_OK) hola_session_reset(*out);
    return s;
}

hola_status hola_session_clone(hola_session **out, const hola_session *from) {
    hola_session *y;
    HL_NEED(out, "out");
    *out = NULL;
    HL_NEED(from, "the session");
    hola_status s = hl_session_new(&y, from->model);
    if (s == HOLA_OK) s = hl_restore_point_copy(y->model, &y->now, &from->now, HL_ALL_CHANGES);
    if (s == HOLA_OK) *out = y;
    else hola_session_free(y);
    return s;
}

void hola_session_free(hola_session *s) {
    if (!s) return;
    hl_state_free(&s->now.state, s->model->backend, &s->model->states);
    hl_restore_point_free(s->model, s->mark);
    hl_restore_point_free(s->model, s->draft);
    free(s->now.logits);
    free(s->work);
    free(s);
}

void hola_session_reset(hola_session *s) {
    if (!s) return;
    hl_restore_point_free(s->model, s->mark);
    hl_restore_point_free(s->model, s->draft);
    s->mark = s->draft = NULL;
    s->generation++;
    s->now.at = (struct hl_position){0};
    hl_state_clear(&s->now.state, &s->model->state, s->model->backend);
}

int64_t hola_session_position(const hola_session *s) { return s ? s->now.at.pos : 0; }
int64_t hola_session_bytes(const hola_session *s) {
    return s ? s->model->state.bytes + s->now.state.pages * s->model->state.page : 0;
}
const float *hola_session_logits(const hola_session *s) { return s && s->now.at.has_logits ? s->now.logits : NULL; }

int64_t hola_session_recent(const hola_session *s, int32_t *ids, int64_t n) {
    if (!s || !ids) return 0;
    const int64_t pos = s->now.at.pos;
    if (n > HOLA_RECENT) n = HOLA_RECENT;
    if (n > pos) n = pos;
    if (n < 0) n = 0;
    for (int64_t i = 0; i < n; i++) ids[i] = hl_position_id(&s->now.at, pos - n + i);
    return n;
}

void hl_session_advanced(hola_session *y, const int32_t *ids, int64_t n, bool begin) {
    struct hl_position *w = &y->now.at;
    w->has_logits = false;
    for (int64_t i = n > HOLA_RECENT ? n - HOLA_RECENT : 0; i < n; i++) {
        const int64_t p = w->pos + i;
        uint64_t *word = &w->begins[p % HOLA_RECENT / 64];
        w->recent[p % HOLA_RECENT] = ids[i];
        *word &= ~((uint64_t)1 << p % 64);
        *word |= (uint64_t)(begin && i == 0) << p % 64;
    }
    w->pos += n;
}

/* The model's lock is held. The pass leaves the normalized stream of all rows in m->infer.lastn; logits: how many rows'
 * logits will be read. */
static hola_status run(hola_model *m, struct hl_rows *rows, const int32_t *ids, int64_t logits) {
    hola_status s = hl_model_need_panels(m);
    if (s == HOLA_OK) s = hl_activations_reserve(&m->infer, &m->cfg, rows, logits);
    if (s == HOLA_OK) hl_model_forward(m, &m->infer, rows, hl_activations_put(&m->infer, m->infer.ids, ids, rows->T));
    return s;
}

void hl_session_head(hola_model *m, const void *x, int64_t n) {
    struct hl_linear a = {.M = n, .K = m->cfg.hidden_size, .n = 1, .x = x, .out_real = true};
    a.part[0].W = hl_model_weight(m, HL_INFER, m->params.head);
    a.part[0].out = m->infer.logits;
    m->backend->ops.linear_forward(m->backend, &a);
}
void hl_session_take_logits(hola_model *m, int64_t n, float *out) {
    const int64_t count = n * m->cfg.vocab_size;
    if (sizeof(real) == sizeof(float)) hl_get(m->backend, out, m->infer.logits, count * (int64_t)sizeof(float));
    else
        for (int64_t j = 0; j < count; j++) out[j] = (float)((real *)m->infer.logits)[j];
}
int64_t hl_session_logits_room(const hola_model *m) {
    return m->infer.logits_bytes / (m->cfg.vocab_size * (int64_t)sizeof(real));
}

void hl_session_read_logits(hola_model *m, int64_t first, int64_t n, float *logits) {
    const int64_t room = hl_session_logits_room(m);
    for (int64_t i = 0; i < n; i += room) {
        const int64_t some = n - i < room ? n - i : room;
        hl_session_head(m, (char *)m->infer.lastn + (first + i) * m->cfg.hidden_size * m->backend->act_size, some);
        hl_session_take_logits(m, some, logits + i * m->cfg.vocab_size);
    }
}

void hola_session_on_progress(hola_session *y, hola_on_progress f, void *ctx) {
    if (y) y->progress.f = f, y->progress.ctx = ctx;
}

hola_status hl_session_report(hola_session *y, int64_t done, int64_t total) {
    if (!y->progress.f || y->progress.f(y->progress.ctx, done, total)) return HOLA_OK;
    return hl_fail(HOLA_ECANCELLED, "cancelled after %lld of %lld tokens", (long long)done, (long long)total);
}

/* What to do after a piece was fed: row `row` of the call's n is the piece's first. */
struct feeding {
    int64_t logits; /* rows whose logits are needed: 0, 1 (the call's last), or n: all */
    float *out;     /* [logits][vocab] */
    const int32_t *next;
    double *logprobs; /* [n]; NULL: not scored */
};
static void read_piece(hola_model *m, const struct feeding *f, int64_t row, int64_t len, int64_t n) {
    const int64_t vocab = m->cfg.vocab_size;
    if (f->logprobs) {
        hl_model_loss(m, &m->infer, len, hl_activations_put(&m->infer, m->infer.target, f->next + row, len), 0, NULL);
        const double *nll = hl_activations_nll(&m->infer, len);
        for (int64_t j = 0; j < len; j++) f->logprobs[row + j] = -nll[j];
    }
    if (f->logits == n) hl_session_read_logits(m, 0, len, f->out + row * vocab);
    else if (f->logits && row + len == n) hl_session_read_logits(m, len - 1, 1, f->out);
}

/* The length of the pieces of n tokens. A device reads a long prompt faster in larger pieces: it splits a sequence into
 * parts that run side by side, and what it does once a piece then counts less. They are taken if their activations need
 * at most an eighth of the memory that is left. */
static int64_t piece_rows(hola_model *m, int64_t n) {
    const int64_t usual = hl_model_rows(m), large = 4 * usual;
    struct hl_activations a = {.pass = m->infer.pass, .backend = m->backend};
    int64_t bytes, left = 0, used;
    if (m->backend->host || n <= usual) return usual;
    pthread_mutex_lock(&m->lock);
    const bool there = m->infer.rows >= large;
    m->backend->storage.free_memory(m->backend, &left, &used);
    pthread_mutex_unlock(&m->lock);
    if (there) return large;
    return hl_activations_bytes(&a, &m->cfg, large, 1, &bytes) == HOLA_OK && bytes <= left / 8 ? large : usual;
}

/* Feeds piece by piece; the lock is released between pieces, so that other sessions get their turn. */
static hola_status feed_rows(hola_session *y, const int32_t *ids, int64_t n, const struct feeding *f) {
    hola_model *m = y->model;
    const int64_t feed = piece_rows(m, n);
    hola_status s = HOLA_OK;
    for (int64_t i = 0, len; s == HOLA_OK && i < n; i += len) {
        len = hl_piece(n - i, feed);
        struct hl_seg seg = {.len = len, .pos = y->now.at.pos, .state = y->now.state.fixed};
        char *const *pages;
        struct hl_rows rows = {.T = seg.len, .n = 1, .seg = &seg, .pages = &pages};
        const bool last = i + seg.len == n;
        pthread_mutex_lock(&m->lock);
        s = hl_session_prepare(y, seg.len);
        pages = y->now.state.page;
        if (s == HOLA_OK) s = run(m, &rows, ids + i, f->logprobs || f->logits == n ? seg.len : f->logits && last);
        if (s == HOLA_OK) {
            hl_session_advanced(y, ids + i, seg.len, i == 0);
            read_piece(m, f, i, seg.len, n);
            s = hl_finish(m->backend);
        }
        pthread_mutex_unlock(&m->lock);
        if (s == HOLA_OK && !last)
            s = hl_session_report(y, y->progress.before + i + seg.len, y->progress.total ? y->progress.total : n);
    }
    return s;
}

static hola_status check_feed(const hola_session *y, const int32_t *ids, int64_t n, const char *what) {
    if (n < 1) return hl_fail(HOLA_EINVAL, "%s: %lld tokens", what, (long long)n);
    return hl_model_check_ids(y->model, ids, n);
}

hola_status hl_session_feed(hola_session *y, const int32_t *ids, int64_t n, float *logits, bool want) {
    hola_status s = check_feed(y, ids, n, "feed");
    if (s == HOLA_OK && want) s = hl_restore_point_logits(y->model, &y->now);
    if (s != HOLA_OK) return s;
    if (want && !logits) logits = y->now.logits;
    if (n == 1) return hola_session_step(&y, 1, ids, want ? logits : NULL);
    s = feed_rows(y, ids, n, &(struct feeding){.logits = want, .out = logits});
    return s == HOLA_OK && want ? hl_session_keep_logits(&y, 1, logits) : s;
}

hola_status hl_session_feed_again(hola_session *y, const int32_t *ids, int64_t n, bool want) {
    const hola_on_progress f = y->progress.f;
    y->progress.f = NULL;
    const hola_status s = hl_session_feed(y, ids, n, NULL, want);
    y->progress.f = f;
    return s;
}

hola_status hola_session_feed(hola_session *y, const int32_t *ids, int64_t n, float *logits) {
    HL_NEED(y, "the session");
    HL_NEED(ids, "ids");
    return hl_session_feed(y, ids, n, logits, true);
}

hola_status hola_session_feed_each(hola_session *y, const int32_t *ids, int64_t n, float *logits) {
    HL_NEED(y, "the session");
    HL_NEED(ids, "ids");
    HL_NEED(logits, "logits");
    if (n == 1) return hola_session_step(&y, 1, ids, logits);
    hola_status s = check_feed(y, ids, n, "feed");
    if (s == HOLA_OK) s = hl_restore_point_logits(y->model, &y->now);
    if (s == HOLA_OK) s = feed_rows(y, ids, n, &(struct feeding){.logits = n, .out = logits});
    return s == HOLA_OK ? hl_session_keep_logits(&y, 1, logits + (n - 1) * y->model->cfg.vocab_size) : s;
}

hola_status hola_session_score(hola_session *y, const int32_t *ids, const int32_t *next, int64_t n, double *logprobs) {
    HL_NEED(y, "the session");
    HL_NEED(ids, "ids");
    HL_NEED(next, "next");
    HL_NEED(logprobs, "logprobs");
    hola_status s = check_feed(y, ids, n, "score");
    if (s == HOLA_OK) s = hl_model_check_ids(y->model, next, n);
    return s == HOLA_OK ? feed_rows(y, ids, n, &(struct feeding){.next = next, .logprobs = logprobs}) : s;
}

hola_status hl_sessions_feed(hola_session *const *y, const struct hl_ids *ids, int64_t n, float *logits) {
    hola_model *m = y[0]->model;
    struct hl_sequence *sequence = malloc((size_t)n * sizeof *sequence);
    struct hl_feed *feed = calloc((size_t)n, sizeof *feed);
    hola_status s = sequence && feed ? HOLA_OK : hl_fail(HOLA_ENOMEM, "feed: %lld sessions", (long long)n);
    for (int64_t i = 0; s == HOLA_OK && i < n; i++) {
        s = ids[i].n < 1 ? hl_fail(HOLA_EINVAL, "feed: no tokens") : hl_restore_point_logits(m, &y[i]->now);
        if (s != HOLA_OK) break;
        pthread_mutex_lock(&m->lock);
        s = hl_session_prepare(y[i], ids[i].n);
        pthread_mutex_unlock(&m->lock);
        sequence[i] = (struct hl_sequence){.pos = y[i]->now.at.pos, .state = y[i]->now.state};
        feed[i] = (struct hl_feed){
            .sequence = i, .ids = ids[i].data, .n = ids[i].n, .logits = logits + i * m->cfg.vocab_size};
    }
    if (s == HOLA_OK) {
        s = hl_sequences_run(&(struct hl_sequences){m, sequence, n}, feed, n);
        for (int64_t i = 0; i < n; i++) /* up to where it got */
            hl_session_advanced(y[i], ids[i].data, sequence[i].pos - y[i]->now.at.pos, true);
    }
    free(sequence), free(feed);
    return s == HOLA_OK ? hl_session_keep_logits(y, n, logits) : s;
}

/* ---- the next token: randomness is a function of (seed, position), so it needs no state ---- */

enum { STREAM = 0x73616d70 };

void hola_session_seed(hola_session *y, uint64_t seed) {
    if (y) y->now.at.seed = seed;
}
uint64_t hola_session_seed_of(const hola_session *y) { return y ? y->now.at.seed : 0; }

double hl_session_uniform(const hola_session *y, int64_t pos) {
    return hl_rng_uniform(y->now.at.seed, STREAM, (uint64_t)pos);
}

/* From the few largest logits, if these are enough: a tenth of the time. */
static bool sample_few(const hola_session *y, const hola_sampling *p, const int32_t *recent, int64_t n_recent, double u,
                       int32_t *id) {
    const int64_t vocab = y->model->cfg.vocab_size, needs = hl_sample_needs(p), k = needs < vocab ? needs : vocab;
    struct hl_candidate top[HL_TOPK_MOST];
    if (sizeof(real) != sizeof(float) || k < 1 || k > HL_TOPK_MOST) return false;
    const struct hl_topk a = {.M = 1, .V = vocab, .k = k, .logits = (const real *)y->now.logits, .out = top};
    hl_ops_named("cpu")->topk(y->model->backend, &a);
    *id = hl_sample_few(top, k, p, recent, n_recent, u);
    return true;
}

hola_status hola_session_sample(hola_session *y, const hola_sampling *given, int32_t *id) {
    hola_sampling p;
    int32_t recent[HOLA_RECENT];
    HL_NEED(y, "the session");
    HL_NEED(id, "id");
    const int64_t vocab = y->model->cfg.vocab_size;
    hola_status s = hl_sampling_take(&p, given);
    if (s != HOLA_OK) return s;
    if (y->now.at.pos == 0) return hl_fail(HOLA_EINVAL, "sample: the session is empty: feed it a token first");
    if (!y->now.at.has_logits)
        return hl_fail(HOLA_EINVAL,
                       "sample: no logits: the last token came by step without logits, step_sample or score");
    const int64_t n = hola_session_recent(y, recent, p.repeat_last_n);
    const double u = hl_session_uniform(y, y->now.at.pos);
    if (sample_few(y, &p, recent, n, u, id)) return HOLA_OK;
    if (!y->work) y->work = malloc((size_t)vocab * sizeof *y->work);
    if (!y->work) return hl_fail(HOLA_ENOMEM, "sample: no memory for %lld candidates", (long long)vocab);
    *id = hl_sample(y->now.logits, vocab, &p, recent, n, u, y->work);
    return HOLA_OK;
}
