/* generate.c -- text from a session, token by token, to the first of: EOS, a stop string, the length, the caller's word.
 *
 * A token is chosen, told to the caller and fed, in this order. Where nobody looks at the logits, feeding and the next
 * choice are one call, which brings only the candidates from the device. */
#include "model/session.h"
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 256 }; /* the default length */

struct writing {
    hola_session *s;
    hola_generate_opts o;
    hola_sampling sampling;
    hola_detokenizer *text;
    int64_t n;
    int32_t id, eos;
    bool chosen; /* the next token is known already: id */
    hola_end end;
};

static hola_status choose(struct writing *w) {
    if (w->chosen) return w->chosen = false, HOLA_OK;
    return hola_session_sample(w->s, &w->sampling, &w->id);
}

/* Feeds the token; last: the session is to have logits after it. */
static hola_status feed(struct writing *w, bool last) {
    if (w->o.history) return hola_history_feed(w->o.history, &w->id, 1, NULL);
    if (last || w->o.keep_logits) return hola_session_feed(w->s, &w->id, 1, NULL);
    w->chosen = true;
    return hola_session_step_sample(&w->s, 1, &w->id, &w->sampling, &w->id);
}

static bool tell(struct writing *w, int32_t id, bool end) {
    int64_t len;
    const char *text = hola_detokenizer_take(w->text, end, &len);
    if (!w->o.on_token || (id < 0 && len == 0)) return true;
    return w->o.on_token(w->o.ctx, id, text, len);
}

static hola_status write_text(struct writing *w) {
    const int64_t most = w->o.max_tokens ? w->o.max_tokens : TOKENS;
    for (;;) {
        bool stopped;
        hola_status s = choose(w);
        if (s != HOLA_OK) return s;
        if (w->id == w->eos && !w->o.ignore_eos) return w->end = HOLA_END_EOS, HOLA_OK;
        s = hola_detokenizer_add(w->text, w->id, &stopped);
        if (s != HOLA_OK) return s;
        w->n++;
        const bool goes_on = tell(w, w->id, stopped), last = stopped || !goes_on || w->n == most;
        w->end = stopped ? HOLA_END_STOP : !goes_on ? HOLA_END_CANCELLED : HOLA_END_LENGTH;
        s = feed(w, last);
        if (s != HOLA_OK || last) return s;
    }
}

static hola_status begin(struct writing *w, const hola_tokenizer *t, const hola_generate_opts *opt) {
    int32_t before[8];
    hola_status s =
        hl_options_take(&w->o, sizeof w->o, opt, HL_SIZE_UP_TO(hola_generate_opts, ctx), "hola_generate_opts");
    if (s == HOLA_OK && w->o.history && hl_history_session(w->o.history) != w->s)
        s = hl_fail(HOLA_EINVAL, "generate: the history is of another session");
    if (s == HOLA_OK) s = hl_sampling_take(&w->sampling, w->o.sampling);
    if (s == HOLA_OK) s = hola_detokenizer_new(&w->text, t, w->o.stop, w->o.stop_len, w->o.n_stop);
    if (s != HOLA_OK) return s;
    hola_detokenizer_begin(w->text, before, hola_session_recent(w->s, before, 8));
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
    if (n) *n = w.n;
    if (end) *end = w.end;
    return s;
}
