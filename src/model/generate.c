/* generate.c -- generates text from a session, until EOS, a stop string, the maximum length, or the caller stops it.
 *
 * Each token is sampled, reported to the caller and fed, in this order. If the caller does not need the logits, feeding
 * and sampling the next token are one call, which copies only the candidates from the device.
 *
 * With a draft (model/lookup.h), the token and the draft are fed in one pass, and a token is sampled after each. Draft
 * tokens are accepted as long as they match the samples; the first mismatching sample is valid too, but not fed. The
 * session then rolls back to before the pass, and the next pass starts with the accepted tokens: rows of a pass are
 * cheap, passes are not. */
#include "model/lookup.h"
#include "model/session.h"
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = 256, /* the default length */
    /* The default of lookup: how many ids must match; negative: off. On a device a pass rounds differently from a step,
     * so the text may go on differently where two ids are as likely; whoever asks for drafts accepts that. */
    LOOKUP_ON_HOST = 3,
    LOOKUP_ON_DEVICE = -1
};
_Static_assert((int)HL_DRAFT_ROWS > (int)HL_STEP_ROWS, "arrays below");

struct writing {
    hola_session *s;
    hola_generate_opts o;
    hola_sampling sampling;
    hola_detokenizer *text;
    int64_t n, most; /* tokens; negative: no limit */
    int32_t id, eos;
    hola_end end;
    bool looks; /* drafting enabled; used from here on: */
    struct hl_lookup lookup;
    /* Accepted ids of the last pass with a draft. back: the session is before them, at the draft's mark; otherwise
     * after them. */
    int32_t pass[HL_DRAFT_ROWS];
    int64_t passed;
    bool back;
    /* Samples: known[at] is the next. All but the last are the last ids of the pass; the last is not fed. */
    int32_t known[HL_DRAFT_ROWS];
    int64_t count, at;
};

static hola_status choose(struct writing *w) {
    if (w->at < w->count) return w->id = w->known[w->at++], HOLA_OK;
    return hola_session_sample(w->s, &w->sampling, &w->id);
}
static void know(struct writing *w, const int32_t *ids, int64_t n) {
    memcpy(w->known, ids, (size_t)n * sizeof *ids);
    w->count = n, w->at = 0;
}

/* ---- feeding what was chosen ---- */

/* Makes the session's text end with the first `keep` ids of the pass, and n more. want: with logits. */
static hola_status settle(struct writing *w, int64_t keep, const int32_t *more, int64_t n, bool want) {
    int32_t ids[HL_DRAFT_ROWS];
    hola_status s = HOLA_OK;
    if (!w->back && (keep < w->passed || (want && n == 0 && keep > 0))) {
        s = hl_session_draft_drop(w->s);
        w->back = true;
    }
    if (!w->back) keep = 0; /* already fed */
    memcpy(ids, w->pass, (size_t)keep * sizeof *ids);
    if (n > 0) memcpy(ids + keep, more, (size_t)n * sizeof *ids);
    w->passed = 0, w->back = false;
    w->count = w->at = 0;
    if (s != HOLA_OK || keep + n == 0) return s;
    if (w->o.history) return hola_history_feed(w->o.history, ids, keep + n, NULL);
    return hl_session_feed(w->s, ids, keep + n, NULL, want);
}

/* Maximum draft length: the pass ends before the text's last token, which is fed alone, and before a token that the
 * history must see. Negative: that is the token itself. */
static int64_t draft_room(const struct writing *w) {
    const int64_t first = w->back ? w->passed : 0;
    int64_t k = hl_session_draft_rows(w->s->model) - first - 1;
    if (w->most >= 0 && k > w->most - w->n - 1) k = w->most - w->n - 1;
    if (w->o.history && k > hl_history_room(w->o.history) - first - 1) k = hl_history_room(w->o.history) - first - 1;
    return k;
}

/* One pass over what the session lacks, the token and a draft. */
static hola_status feed_draft(struct writing *w) {
    int32_t ids[HL_DRAFT_ROWS], next[HL_DRAFT_ROWS];
    const int64_t first = w->back ? w->passed : 0, room = draft_room(w);
    if (room < 0) return settle(w, w->passed, &w->id, 1, true);
    memcpy(ids, w->pass, (size_t)first * sizeof *ids);
    ids[first] = w->id;
    const int32_t *draft = ids + first + 1;
    const int64_t k = hl_lookup_draft(&w->lookup, ids + first + 1, room);
    hola_status s = HOLA_OK;
    if (k == 0 && (double)first + 1 <= w->lookup.cost.pass) { /* steps; first == 0: same as without drafts */
        w->passed = 0, w->back = false;
        for (int64_t i = 0; s == HOLA_OK && i < first; i++) s = hola_session_step(&w->s, 1, ids + i, NULL);
        if (s == HOLA_OK) s = hola_session_step_sample(&w->s, 1, ids + first, &w->sampling, next);
        know(w, next, 1);
        return s;
    }
    if (!w->back) s = hl_session_draft_mark(w->s);
    if (s == HOLA_OK) s = hl_session_feed_sample(w->s, ids, first + 1 + k, &w->sampling, next);
    if (s != HOLA_OK) return s;
    int64_t right = 0;
    while (right < k && next[first + right] == draft[right]) right++;
    /* If the logits after a token are not finite, the text ends with an error, but the token is reported first. */
    const bool finite = next[first + right] >= 0;
    if (!finite && right > 0) right--;
    know(w, next + first, right + 1);
    memcpy(w->pass, ids, sizeof ids);
    w->passed = first + 1 + right;
    w->back = right < k;
    if (w->back) s = hl_session_draft_drop(w->s);
    return s == HOLA_OK && !finite && right == 0 && next[first] < 0 ? settle(w, first + 1, NULL, 0, true) : s;
}

/* Feeds the token; last: the session needs logits after it. */
static hola_status feed(struct writing *w, bool last) {
    if (w->at < w->count) /* fed by an earlier pass */
        return last ? settle(w, w->passed - (w->count - 1 - w->at), NULL, 0, true) : HOLA_OK;
    if (w->looks) return last ? settle(w, w->passed, &w->id, 1, true) : feed_draft(w);
    if (w->o.history) return hola_history_feed(w->o.history, &w->id, 1, NULL);
    if (last || w->o.keep_logits) return hola_session_feed(w->s, &w->id, 1, NULL);
    w->count = 1, w->at = 0;
    return hola_session_step_sample(&w->s, 1, &w->id, &w->sampling, w->known);
}
/* Stops with the token sampled but not fed. */
static hola_status leave(struct writing *w) { return settle(w, w->passed - (w->count - w->at), NULL, 0, false); }

static bool tell(struct writing *w, int32_t id, bool end) {
    int64_t len;
    const char *text = hola_detokenizer_take(w->text, end, &len);
    if (!w->o.on_token || (id < 0 && len == 0)) return true;
    return w->o.on_token(w->o.ctx, id, text, len);
}

static hola_status write_text(struct writing *w) {
    for (;;) {
        bool stopped;
        hola_status s = choose(w);
        if (s != HOLA_OK) return s;
        if (w->id == w->eos && !w->o.ignore_eos) return w->end = HOLA_END_EOS, leave(w);
        s = hola_detokenizer_add(w->text, w->id, &stopped);
        if (s == HOLA_OK && w->looks) s = hl_lookup_add(&w->lookup, w->id);
        if (s != HOLA_OK) return s;
        w->n++;
        const bool goes_on = tell(w, w->id, stopped), last = stopped || !goes_on || w->n == w->most;
        w->end = stopped ? HOLA_END_STOP : !goes_on ? HOLA_END_CANCELLED : HOLA_END_LENGTH;
        s = feed(w, last);
        if (s != HOLA_OK || last) return s;
    }
}

/* On a device, relative to the fused kernel or, without it, to a step that is replayed op by op. A replayed pass of 340m
 * was measured on an H200: 8.8 to 9.7 steps of the fused kernel for 2 to 31 tokens. The others are estimates from the
 * number of launches, scaled by what that estimate was too low (docs/notes/decode.md): assuming too much hardly slows
 * text that repeats itself, assuming too little slows all other text. */
static struct hl_draft_cost cost_of(hola_model *m) {
    const struct hl_rows one = {.T = 1, .n = 1, .seg = &(struct hl_seg){.len = 1}};
    struct hl_decode d;
    if (m->backend->host) return hl_draft_on_cpu;
    pthread_mutex_lock(&m->lock);
    const bool fused = hl_decode_plan(m, &one, &d) == HL_BY_ONE_KERNEL;
    pthread_mutex_unlock(&m->lock);
    const double pass = hl_session_replays(m) ? (fused ? 9 : 3) : fused ? 19 : 6.5;
    return (struct hl_draft_cost){.pass = pass, .wrong = 0.2, .pass_alone = pass - 1};
}

/* Sources of drafts: the source text, the session's latest ids and the generated text. */
static hola_status open_lookup(struct writing *w) {
    int32_t recent[HOLA_RECENT];
    const bool host = w->s->model->backend->host;
    const int64_t asked = w->o.lookup ? w->o.lookup : host ? LOOKUP_ON_HOST : LOOKUP_ON_DEVICE;
    if (asked > HL_LOOKUP_MOST)
        return hl_fail(HOLA_EINVAL, "generate: lookup: %lld ids are more than %d", (long long)asked, HL_LOOKUP_MOST);
    if (w->o.n_source < 0 || (w->o.n_source > 0 && !w->o.source))
        return hl_fail(HOLA_EINVAL, "generate: a source of %lld ids%s", (long long)w->o.n_source,
                       w->o.source ? "" : ", which is NULL");
    hola_status s = hl_model_check_ids(w->s->model, w->o.source, w->o.n_source);
    w->looks = asked > 0 && !w->o.keep_logits && (host || hl_session_samples_few(w->s->model, &w->sampling));
    if (s != HOLA_OK || !w->looks) return s;
    const int64_t n = hola_session_recent(w->s, recent, HOLA_RECENT);
    s = hl_lookup_new(&w->lookup, asked);
    w->lookup.cost = cost_of(w->s->model);
    if (s == HOLA_OK) s = hl_lookup_source(&w->lookup, w->o.source, w->o.n_source);
    for (int64_t i = 0; s == HOLA_OK && i < n; i++) s = hl_lookup_add(&w->lookup, recent[i]);
    return s;
}

static hola_status begin(struct writing *w, const hola_tokenizer *t, const hola_generate_opts *opt) {
    int32_t before[8];
    hola_status s =
        hl_options_take(&w->o, sizeof w->o, opt, HL_SIZE_UP_TO(hola_generate_opts, ctx), "hola_generate_opts");
    if (s == HOLA_OK && w->o.history && hl_history_session(w->o.history) != w->s)
        s = hl_fail(HOLA_EINVAL, "generate: the history is of another session");
    if (s == HOLA_OK) s = hl_sampling_take(&w->sampling, w->o.sampling);
    if (s == HOLA_OK) s = open_lookup(w);
    if (s == HOLA_OK) s = hola_detokenizer_new(&w->text, t, w->o.stop, w->o.stop_len, w->o.n_stop);
    if (s != HOLA_OK) return s;
    hola_detokenizer_begin(w->text, before, hola_session_recent(w->s, before, 8));
    w->most = w->o.max_tokens ? w->o.max_tokens : TOKENS;
    w->eos = (int32_t)w->s->model->cfg.eos_token_id;
    if (t && hola_tokenizer_eos(t) >= 0) w->eos = hola_tokenizer_eos(t);
    return HOLA_OK;
}

hola_status hola_generate(hola_session *y, const hola_tokenizer *t, const hola_generate_opts *opt, int64_t *n,
                          hola_end *end) {
    struct writing w = {.s = y};
    HL_NEED(y, "the session");
    hola_status s = begin(&w, t, opt);
    if (s == HOLA_OK) s = write_text(&w);
    if (s == HOLA_OK && w.end != HOLA_END_STOP) tell(&w, -1, true);
    hola_detokenizer_free(w.text);
    hl_lookup_free(&w.lookup);
    hl_session_draft_end(y);
    if (n) *n = w.n;
    if (end) *end = w.end;
    return s;
}
