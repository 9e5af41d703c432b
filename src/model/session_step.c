/* session_step.c -- one token for each of several sessions in one pass, or a few tokens of one session, and sampling
 * after each.
 *
 * There are three ways through the model (enum hl_decode_way). Sampling needs only a few logits (model/sample.h): the
 * backend finds the largest ones, and only those are copied to the host. */
#include "core/half.h"
#include "model/session.h"
#include <stdlib.h>
#include <string.h>

/* pos: number of tokens up to and including the one before these logits */
static hola_status not_finite(int64_t pos) {
    return hl_fail(HOLA_ENUMERIC, "the logits after token %lld are not finite", (long long)pos - 1);
}
static bool all_finite(const float *x, int64_t n) {
    const uint32_t exponent = 0x7f800000u;
    uint32_t wrong = 0;
    for (int64_t j = 0; j < n; j++) wrong |= (hl_bits_of_float(x[j]) & exponent) == exponent;
    return !wrong;
}

struct keeping {
    hola_session *const *y;
    float *logits; /* [sessions][vocab_size]; for one session: may be its own buffer */
};
/* Logits [from, to) of session i; they arrive in parts, in order. */
static void keep_part(void *ctx, int64_t i, int64_t from, int64_t to) {
    const struct keeping *k = ctx;
    hola_session *y = k->y[i];
    const float *logits = k->logits + i * y->model->cfg.vocab_size;
    const bool wrong = !all_finite(logits + from, to - from);
    if (logits != y->now.logits) memcpy(y->now.logits + from, logits + from, (size_t)(to - from) * sizeof *logits);
    y->not_finite = (from > 0 && y->not_finite) || wrong;
    y->now.at.has_logits = false;
}
static void keep_one(void *ctx, int64_t i, int worker) {
    const struct keeping *k = ctx;
    (void)worker;
    keep_part(ctx, i, 0, k->y[i]->model->cfg.vocab_size);
}
/* Called when all parts have been stored. */
static hola_status check_kept(hola_session *const *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i]->now.at.has_logits = !y[i]->not_finite;
    for (int64_t i = 0; i < n; i++)
        if (y[i]->not_finite) return not_finite(y[i]->now.at.pos);
    return HOLA_OK;
}
hola_status hl_session_keep_logits(hola_session *const *y, int64_t n, const float *logits) {
    struct keeping k = {y, (float *)logits};
    hl_pool_run(y[0]->model->backend->pool, n, keep_one, &k);
    return check_kept(y, n);
}
/* Copies a row from a buffer that will be reused to its caller, and stores it from there. */
static void take_row(void *ctx, int64_t i, const void *row) {
    const struct keeping *k = ctx;
    const int64_t vocab = k->y[i]->model->cfg.vocab_size;
    memcpy(k->logits + i * vocab, row, (size_t)vocab * sizeof(float));
    keep_part(ctx, i, 0, vocab);
}

/* Results of a step besides the states: logits, the k largest of each session, or neither. */
struct want {
    float *logits;            /* NULL: none */
    struct keeping keep;      /* where to store them */
    bool kept;                /* the sessions already have them */
    int64_t k;                /* 0: none */
    struct hl_candidate *top; /* [sessions][k], on the host */
    const struct hl_meanwhile *meanwhile;
};

/* Makes room for the most candidates of these rows in backend memory: a release later would make captured graphs
 * worthless. */
static hola_status need_candidates(hola_model *m, int64_t rows) {
    const int64_t n = rows * HL_TOPK_MOST;
    if (n <= m->candidates_room) return HOLA_OK;
    if (m->candidates) hl_release(m->backend, m->candidates);
    m->candidates_room = 0;
    m->candidates = hl_alloc(m->backend, n * (int64_t)sizeof *m->candidates);
    if (!m->candidates) return hl_fail(HOLA_ENOMEM, "sample: no memory for %lld candidates", (long long)n);
    m->candidates_room = n;
    return HOLA_OK;
}
static void find_candidates(hola_model *m, int64_t n, int64_t k) {
    const struct hl_topk top = {
        .M = n, .V = m->cfg.vocab_size, .k = k, .logits = m->infer.logits, .out = m->candidates};
    m->backend->ops.topk(m->backend, &top);
}
static void fetch_candidates(hola_model *m, int64_t n, struct want *w) {
    hl_get(m->backend, w->top, m->candidates, n * w->k * (int64_t)sizeof *w->top);
}

/* Buffers for a step of these rows. Logits are reals, up to twice the size of activations. */
static hola_status reserve(hola_model *m, struct hl_rows *rows, const struct want *w) {
    const bool logits = w->logits || w->k;
    hola_status s = hl_activations_reserve(&m->infer, &m->cfg, rows, logits ? 2 * rows->T : 0);
    return s == HOLA_OK && w->k ? need_candidates(m, rows->T) : s;
}

/* HL_BY_ONE_KERNEL; false: the device refused. Logits, or the largest one, arrive before the kernel has ended. */
static bool step_one(hola_model *m, struct hl_rows *rows, struct hl_decode d, const int32_t *ids, struct want *w,
                     hola_status *s) {
    bool refused = false;
    d.refused = &refused;
    d.host_ids = ids;
    if (w->k > 1) {
        *s = reserve(m, rows, w);
        if (*s != HOLA_OK) return true;
        d.logits = m->infer.logits;
    }
    if (w->k == 1) d.host_argmax = w->top;
    if (w->logits) d.host_logits = (real *)w->logits, d.on_logits = keep_part, d.ctx = &w->keep;
    m->backend->ops.decode_one(m->backend, &d);
    if (refused) return false;
    if (w->k > 1) find_candidates(m, rows->T, w->k), fetch_candidates(m, rows->T, w);
    w->kept = w->logits;
    *s = w->k == 1 || w->logits ? m->backend->storage.status(m->backend) : hl_finish(m->backend);
    return true;
}

/* HL_BY_OPS and HL_BY_BATCH: runs all rows through the model, to logits if there is room for all of them, to candidates
 * if wanted. */
static void run_rows(hola_model *m, struct hl_rows *rows, const int32_t *ids, bool room, const struct hl_decode *batch,
                     int64_t k) {
    bool refused = !batch;
    if (batch) {
        struct hl_decode d = *batch;
        d.ids = ids, d.logits = room ? m->infer.logits : NULL, d.refused = &refused;
        m->backend->ops.decode_batch(m->backend, &d);
    }
    if (refused) {
        hl_model_forward(m, &m->infer, rows, ids);
        if (room) hl_session_head(m, m->infer.lastn, rows->T);
    }
    if (k) find_candidates(m, rows->T, k);
}

/* room: all logits are in m->infer.logits. */
static void fetch_logits(hola_model *m, int64_t n, bool room, struct want *w) {
    const int64_t each = m->cfg.vocab_size * (int64_t)sizeof(real);
    if (room && m->backend->storage.stream_rows && sizeof(real) == sizeof(float))
        w->kept = m->backend->storage.stream_rows(m->backend, m->infer.logits, each, n, take_row, &w->keep);
    if (room && !w->kept) hl_session_take_logits(m, n, w->logits);
    if (!room) hl_session_read_logits(m, 0, n, w->logits);
}

/* The key of a pass that is always the same work, so that a device can replay it: one row per session, or a draft in a
 * pass of a fixed size (fill_pass). 0: another pass. */
static uint64_t key_of(const hola_model *m, const struct hl_rows *rows, uint64_t how) {
    const uint64_t DRAFT = (uint64_t)1 << 48;
    const int64_t blocks = m->state.block > 0 ? hl_blocks_before(rows, rows->n, m->state.block) : 0;
    /* positions change a step's work only where a state grows with them */
    const uint64_t reach = m->state.page > 0 ? (uint64_t)__builtin_ctzll((uint64_t)hl_rows_reach(rows)) : 0;
    if (rows->n == rows->T) return reach << 56 | how;
    return rows->T == HL_DRAFT_ROWS && rows->n == 2 ? DRAFT | (uint64_t)blocks << 40 | how : 0;
}

static void do_meanwhile(struct want *w) {
    if (w->meanwhile) w->meanwhile->run(w->meanwhile->ctx);
    w->meanwhile = NULL;
}

/* One row per session, or several rows of one. */
static hola_status step_rows(hola_model *m, struct hl_rows *rows, const int32_t *ids, struct want *w) {
    const int64_t n = rows->T;
    const bool steps = rows->n == n;
    const struct hl_graphs *graphs = &m->backend->graphs;
    struct hl_decode d;
    hola_status s = hl_model_need_panels(m);
    if (s != HOLA_OK) return s;
    const enum hl_decode_way way = steps ? hl_decode_plan(m, rows, &d) : HL_BY_OPS;
    if (way == HL_BY_ONE_KERNEL) { /* it waits for the kernel itself */
        do_meanwhile(w);
        if (step_one(m, rows, d, ids, w, &s)) return s;
    }
    s = reserve(m, rows, w);
    if (s != HOLA_OK) return s;
    const bool logits = w->logits || w->k, room = logits && hl_session_logits_room(m) >= n;
    const bool batch = way == HL_BY_BATCH && (!logits || room);
    HL_ASSERT(room || !w->k);
    ids = hl_activations_put(&m->infer, m->infer.ids, ids, n);
    const uint64_t key = key_of(m, rows, ((uint64_t)n * (HL_TOPK_MOST + 1) + (uint64_t)w->k) * 4 + room * 2 + batch);
    const bool replayed = key && graphs->replay && graphs->replay(m->backend, key);
    m->steps_replayed += replayed;
    if (!replayed) {
        run_rows(m, rows, ids, room, batch ? &d : NULL, w->k);
        if (key && graphs->recorded) graphs->recorded(m->backend, key);
    }
    do_meanwhile(w);
    if (w->k) fetch_candidates(m, n, w);
    else if (logits) fetch_logits(m, n, room, w);
    return hl_finish(m->backend);
}

static hola_status check_step(hola_session *const *y, int64_t n, const int32_t *ids) {
    if (!y || !ids) return hl_fail(HOLA_EINVAL, "step: %s is NULL", y ? "ids" : "the list of sessions");
    if (n < 1) return hl_fail(HOLA_EINVAL, "step: %lld sessions", (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (!y[i]) return hl_fail(HOLA_EINVAL, "step: session %lld is NULL", (long long)i);
    hola_status s = hl_model_check_ids(y[0]->model, ids, n);
    for (int64_t i = 0; s == HOLA_OK && i < n; i++) {
        if (y[i]->model != y[0]->model)
            s = hl_fail(HOLA_EINVAL, "step: session %lld is of another model", (long long)i);
        for (int64_t j = 0; s == HOLA_OK && j < i; j++)
            if (y[i] == y[j])
                s = hl_fail(HOLA_EINVAL, "step: sessions %lld and %lld are the same", (long long)j, (long long)i);
    }
    return s;
}
static hola_status step(hola_session *const *y, int64_t n, const int32_t *ids, struct want *w) {
    hola_model *m = y[0]->model;
    struct hl_seg *seg = calloc((size_t)n, sizeof *seg);
    char *const **pages = calloc((size_t)n, sizeof *pages);
    hola_status s = seg && pages ? HOLA_OK : hl_fail(HOLA_ENOMEM, "step: %lld sessions", (long long)n);
    if (s == HOLA_OK) {
        struct hl_rows rows = {.T = n, .n = n, .seg = seg, .pages = (char *const *const *)pages};
        pthread_mutex_lock(&m->lock);
        for (int64_t i = 0; s == HOLA_OK && i < n; i++) s = hl_session_prepare(y[i], 1);
        for (int64_t i = 0; i < n; i++) {
            seg[i] = (struct hl_seg){.row = i, .len = 1, .pos = y[i]->now.at.pos, .state = y[i]->now.state.fixed};
            pages[i] = y[i]->now.state.page;
        }
        if (s == HOLA_OK) s = step_rows(m, &rows, ids, w);
        pthread_mutex_unlock(&m->lock);
    }
    free(seg), free(pages);
    for (int64_t i = 0; s == HOLA_OK && i < n; i++) hl_session_advanced(y[i], ids + i, 1, true);
    return s;
}

static hola_status step_logits(hola_session *const *y, int64_t n, const int32_t *ids, float *logits,
                               const struct hl_meanwhile *meanwhile) {
    struct want w = {.logits = logits, .keep = {y, logits}, .meanwhile = meanwhile};
    hola_status s = check_step(y, n, ids);
    for (int64_t i = 0; s == HOLA_OK && logits && i < n; i++) s = hl_restore_point_logits(y[i]->model, &y[i]->now);
    if (s == HOLA_OK) s = step(y, n, ids, &w);
    if (s != HOLA_OK || !logits) return s;
    return w.kept ? check_kept(y, n) : hl_session_keep_logits(y, n, logits);
}
hola_status hola_session_step(hola_session *const *y, int64_t n, const int32_t *ids, float *logits) {
    return step_logits(y, n, ids, logits, NULL);
}

/* ---- with sampling ---- */

/* A sampling for each of n sessions, or one for all. */
struct samplings {
    const hola_sampling *p;
    bool each;
    const struct hl_meanwhile *meanwhile;
};
static const hola_sampling *sampling_of(const struct samplings *a, int64_t i) { return a->p + (a->each ? i : 0); }

/* From only the largest logits. */
static hola_status step_few(hola_session *const *y, int64_t n, const int32_t *ids, const struct samplings *a, int64_t k,
                            int32_t *next) {
    struct want w = {.k = k, .top = malloc((size_t)(n * k) * sizeof *w.top), .meanwhile = a->meanwhile};
    hola_status s = w.top ? step(y, n, ids, &w) : hl_fail(HOLA_ENOMEM, "step: %lld sessions", (long long)n);
    int64_t bad = -1;
    for (int64_t i = 0; s == HOLA_OK && i < n; i++) {
        const hola_sampling *p = sampling_of(a, i);
        struct hl_candidate *c = w.top + i * k;
        int32_t recent[HOLA_RECENT];
        next[i] = -1;
        if (c[0].id < 0) bad = i;
        else
            next[i] = hl_sample_few(c, k, p, recent, hola_session_recent(y[i], recent, p->repeat_last_n),
                                    hl_session_uniform(y[i], y[i]->now.at.pos));
    }
    free(w.top);
    return s == HOLA_OK && bad >= 0 ? not_finite(y[bad]->now.at.pos) : s;
}
static hola_status step_all(hola_session *const *y, int64_t n, const int32_t *ids, const struct samplings *a,
                            int32_t *next) {
    float *logits = malloc((size_t)(n * y[0]->model->cfg.vocab_size) * sizeof *logits);
    if (!logits) return hl_fail(HOLA_ENOMEM, "step: %lld sessions", (long long)n);
    hola_status s = step_logits(y, n, ids, logits, a->meanwhile);
    hola_status chosen = s == HOLA_ENUMERIC ? HOLA_OK : s;
    for (int64_t i = 0; chosen == HOLA_OK && i < n; i++) {
        next[i] = -1;
        if (hola_session_logits(y[i])) chosen = hola_session_sample(y[i], sampling_of(a, i), &next[i]);
    }
    if (s == HOLA_OK) s = chosen;
    for (int64_t i = 0; i < n; i++) y[i]->now.at.has_logits = false;
    free(logits);
    return s;
}

/* How many of the largest logits these samplings need after each of `rows` rows; 0: all. In few different numbers, since
 * a device captures a graph for each: that of greedy sampling, that of the default, and two more. */
static int64_t few(const hola_model *m, int64_t rows, const struct samplings *a, int64_t n) {
    static const int64_t numbers[] = {1, 40, 64, HL_TOPK_MOST};
    const int64_t vocab = m->cfg.vocab_size;
    int64_t k = 0, i = 0;
    for (int64_t j = 0; j < n; j++) {
        const int64_t needs = hl_sample_needs(sampling_of(a, j));
        const int64_t some = needs < vocab ? needs : vocab;
        if (some == 0 || some > HL_TOPK_MOST) return 0;
        if (some > k) k = some;
    }
    while (numbers[i] < k) i++;
    k = numbers[i] < vocab ? numbers[i] : vocab;
    return 2 * rows <= m->backend->xent_rows ? k : 0;
}

static hola_status step_sample(hola_session *const *y, int64_t n, const int32_t *ids, const struct samplings *a,
                               int32_t *next) {
    const int64_t k = few(y[0]->model, n, a, a->each ? n : 1);
    return k > 0 ? step_few(y, n, ids, a, k, next) : step_all(y, n, ids, a, next);
}
hola_status hola_session_step_sample(hola_session *const *y, int64_t n, const int32_t *ids, const hola_sampling *given,
                                     int32_t *next) {
    hola_sampling sampling;
    HL_NEED(next, "next");
    hola_status s = check_step(y, n, ids);
    if (s == HOLA_OK) s = hl_sampling_take(&sampling, given);
    return s == HOLA_OK ? step_sample(y, n, ids, &(struct samplings){&sampling, false, NULL}, next) : s;
}
hola_status hl_step_sample_each(hola_session *const *y, int64_t n, const int32_t *ids, const hola_sampling *p,
                                int32_t *next, const struct hl_meanwhile *meanwhile) {
    const hola_status s = check_step(y, n, ids);
    return s == HOLA_OK ? step_sample(y, n, ids, &(struct samplings){p, true, meanwhile}, next) : s;
}

/* ---- several tokens of one session, sampling after each ---- */

/* Ids that sampling may need: those before a pass, then the pass's own. */
struct seen {
    int64_t n;
    int32_t id[HOLA_RECENT + HL_DRAFT_ROWS];
};
static struct seen seen_before(const hola_session *y, const int32_t *ids, int64_t n) {
    struct seen x;
    x.n = hola_session_recent(y, x.id, HOLA_RECENT);
    memcpy(x.id + x.n, ids, (size_t)n * sizeof *ids);
    return x;
}
/* The ids up to row i of the pass, as many as the penalty covers. */
static const int32_t *seen_at(const struct seen *x, int64_t i, const hola_sampling *p, int64_t *n) {
    const int64_t all = x->n + i + 1;
    *n = all < p->repeat_last_n ? all : p->repeat_last_n;
    return x->id + all - *n;
}

int64_t hl_session_draft_rows(const hola_model *m) {
    return m->backend->host ? (int64_t)HL_STEP_ROWS : (int64_t)HL_DRAFT_ROWS - 1;
}
bool hl_session_replays(const hola_model *m) { return m->backend->graphs.replay && m->state.page == 0; }

/* A device replays passes of one size: the rows that a draft of n tokens lacks become a segment without a state, whose
 * results nobody reads. (The pages of a growing state make every pass different.) */
static void fill_pass(const hola_model *m, struct hl_rows *rows, struct hl_seg *seg, int32_t *ids, int64_t n) {
    if (n == 1 || n >= HL_DRAFT_ROWS || !hl_session_replays(m)) return;
    seg[1] = (struct hl_seg){.row = n, .len = HL_DRAFT_ROWS - n};
    memset(ids + n, 0, (size_t)seg[1].len * sizeof *ids);
    rows->T = HL_DRAFT_ROWS, rows->n = 2;
}

static hola_status pass_few(hola_session *y, const int32_t *given, int64_t n, const hola_sampling *p, int64_t k,
                            int32_t *next) {
    hola_model *m = y->model;
    struct want w = {.k = k, .top = malloc((size_t)(HL_DRAFT_ROWS * k) * sizeof *w.top)};
    const struct seen seen = seen_before(y, given, n);
    int32_t ids[HL_DRAFT_ROWS];
    struct hl_seg seg[2] = {{.len = n, .pos = y->now.at.pos, .state = y->now.state.fixed}};
    if (!w.top) return hl_fail(HOLA_ENOMEM, "sample: no memory for the candidates of %lld tokens", (long long)n);
    memcpy(ids, given, (size_t)n * sizeof *ids);
    pthread_mutex_lock(&m->lock);
    hola_status s = hl_session_prepare(y, n);
    char *const *pages[2] = {y->now.state.page};
    struct hl_rows rows = {.T = n, .n = 1, .seg = seg, .pages = (char *const *const *)pages};
    fill_pass(m, &rows, seg, ids, n);
    if (s == HOLA_OK) s = step_rows(m, &rows, ids, &w);
    pthread_mutex_unlock(&m->lock);
    if (s == HOLA_OK) hl_session_advanced(y, given, n, true);
    for (int64_t i = 0, recent; s == HOLA_OK && i < n; i++) {
        const int32_t *before = seen_at(&seen, i, p, &recent);
        struct hl_candidate *c = w.top + i * k;
        next[i] = c[0].id < 0 ? -1 : hl_sample_few(c, k, p, before, recent, hl_session_uniform(y, seg->pos + i + 1));
    }
    free(w.top);
    return s;
}

bool hl_session_samples_few(const hola_model *m, const hola_sampling *p) {
    return few(m, HL_DRAFT_ROWS, &(struct samplings){p, false, NULL}, 1) > 0;
}

hola_status hl_session_feed_sample(hola_session *y, const int32_t *ids, int64_t n, const hola_sampling *p,
                                   int32_t *next) {
    const int64_t vocab = y->model->cfg.vocab_size, pos = y->now.at.pos;
    const int64_t k = few(y->model, n, &(struct samplings){p, false, NULL}, 1);
    HL_ASSERT(n >= 1 && n <= (k > 0 ? hl_session_draft_rows(y->model) : HL_STEP_ROWS));
    hola_status s = hl_model_check_ids(y->model, ids, n);
    if (s != HOLA_OK || k > 0) return s == HOLA_OK ? pass_few(y, ids, n, p, k, next) : s;
    const struct seen seen = seen_before(y, ids, n);
    float *logits = malloc((size_t)(n * vocab) * sizeof *logits);
    struct hl_candidate *work = malloc((size_t)vocab * sizeof *work);
    s = logits && work ? hola_session_feed_each(y, ids, n, logits)
                       : hl_fail(HOLA_ENOMEM, "sample: no memory for the logits of %lld tokens", (long long)n);
    for (int64_t i = 0, recent; (s == HOLA_OK || s == HOLA_ENUMERIC) && i < n; i++) {
        const int32_t *before = seen_at(&seen, i, p, &recent);
        const float *x = logits + i * vocab;
        next[i] = !all_finite(x, vocab)
                      ? -1
                      : hl_sample(x, vocab, p, before, recent, hl_session_uniform(y, pos + i + 1), work);
    }
    if (s == HOLA_OK || s == HOLA_ENUMERIC) y->now.at.has_logits = false;
    free(logits), free(work);
    return s == HOLA_ENUMERIC ? HOLA_OK : s;
}

hola_status hola_session_feed_sample(hola_session *y, const int32_t *ids, int64_t n, const hola_sampling *given,
                                     int32_t *next) {
    hola_sampling p;
    HL_NEED(y, "the session");
    HL_NEED(ids, "ids");
    HL_NEED(next, "next");
    if (n < 1 || n > HL_STEP_ROWS)
        return hl_fail(HOLA_EINVAL, "feed: %lld tokens to sample after, not 1 to %d", (long long)n, HL_STEP_ROWS);
    hola_status s = hl_sampling_take(&p, given);
    if (s == HOLA_OK) s = hl_session_feed_sample(y, ids, n, &p, next);
    for (int64_t i = 0; s == HOLA_OK && i < n; i++)
        if (next[i] < 0) s = not_finite(y->now.at.pos - n + i + 1);
    return s;
}
