/* generate.c -- greedy decoding of many prompts, one session each, one token of all at a time; when some have ended,
 * the next prompts take their slots, read in shared passes. A session gets the same bits as alone. */
#include "core/argmax.h"
#include "eval/engine.h"
#include "model/session.h"
#include "tokenizer/tokenizer.h"
#include <stdlib.h>

enum { SLOTS_HOST = 16, SLOTS_DEVICE = 64 };

struct slot {
    hola_session *session;
    int64_t request;
    struct hl_ids out;
    bool ended;
    hola_status status; /* of the last token */
};
struct batch {
    struct hl_engine *engine;
    struct slot *slot;
    int64_t n, room; /* in use, made */
    int64_t next;    /* request */
    hola_session **session;
    struct hl_ids *prompt; /* [room] */
    bool *cut;             /* [room]: it is not the whole prompt */
    int32_t *ids;
    float *logits; /* [room][vocabulary] */
    bool warned;
};

/* Cuts the text at the first stop string; returns whether there was one. */
static bool cut_at(struct hl_text *t, const char *stop) {
    const int64_t at = stop && *stop ? hl_py_find(hl_span_text(t), stop) : -1;
    if (at >= 0) t->n = at;
    return at >= 0;
}

/* EOS as text: it also ends an output. */
static const char *eos_text(const hola_tokenizer *t, char room[64]) {
    const struct hl_token_piece *p = t->eos >= 0 && !t->plain_bytes ? &t->bpe.piece[t->eos] : NULL;
    if (!p || p->len <= 0 || p->len >= 64) return NULL;
    memcpy(room, p->text, (size_t)p->len);
    room[p->len] = 0;
    return room;
}

/* The answer so far; *ended: later tokens cannot change it or its score. */
static hola_status look(const struct hl_engine *e, struct slot *s, bool *ended) {
    const struct hl_request *r = &e->set->request[s->request];
    struct hl_answer *a = &e->answer[s->request];
    char room[64];
    char *text = NULL;
    int64_t len = 0;
    hola_status st = hola_tokenizer_decode(e->opts->tokenizer, s->out.data, s->out.n, &text, &len);
    a->text.n = 0;
    if (st == HOLA_OK) st = hl_text_add_valid(&a->text, (struct hl_span){text, len});
    free(text);
    if (st == HOLA_OK) {
        for (int i = 0; i < HL_UNTIL && r->until[i]; i++) *ended |= cut_at(&a->text, r->until[i]);
        *ended |= cut_at(&a->text, eos_text(e->opts->tokenizer, room));
        *ended |= r->early && hl_py_contains(hl_span_text(&a->text), r->target);
    }
    a->tokens = s->out.n;
    return st;
}

/* Takes the next token of a slot; it may end it. */
static hola_status advance(const struct hl_engine *e, struct slot *s, int32_t id) {
    hola_status st;
    s->ended = id == hola_tokenizer_eos(e->opts->tokenizer) || id >= hola_tokenizer_size(e->opts->tokenizer);
    if (s->ended) return s->out.n > 0 ? HOLA_OK : look(e, s, &s->ended);
    st = hl_ids_room(&s->out, 1);
    if (st != HOLA_OK) return st;
    s->out.data[s->out.n++] = id;
    s->ended = s->out.n >= e->set->request[s->request].max_new;
    return look(e, s, &s->ended);
}

struct taking { /* slots [first, first + n) take their tokens */
    struct batch *b;
    int64_t first;
};
static void take_one(void *ctx, int64_t i, int worker) {
    const struct taking *t = ctx;
    struct slot *s = &t->b->slot[t->first + i];
    (void)worker;
    s->status = advance(t->b->engine, s, t->b->ids[i]);
}
/* ids belong to the slots from `first` on; ended slots are replaced by the last ones. */
static hola_status take_tokens(struct batch *b, int64_t first) {
    struct hl_engine *e = b->engine;
    struct taking t = {b, first};
    hola_status st = HOLA_OK;
    hl_pool_run(e->model->backend->pool, b->n - first, take_one, &t);
    for (int64_t i = b->n; st == HOLA_OK && i-- > first;) {
        const struct slot s = b->slot[i];
        if (s.status != HOLA_OK) st = hl_fail(s.status, "eval: no memory for an answer");
        if (!s.ended || st != HOLA_OK) continue;
        hl_engine_progress(e, e->set->request[s.request].max_new);
        st = hl_engine_answered(e, s.request);
        b->slot[i] = b->slot[--b->n];
        b->slot[b->n] = s;
    }
    return st;
}

/* ---- prompts ---- */

static void read_prompt(void *ctx, int64_t i, int worker) {
    struct batch *b = ctx;
    struct slot *s = &b->slot[b->n + i];
    struct hl_eval_opts o = *b->engine->opts;
    (void)worker;
    o.threads = 1; /* this is one of many */
    b->prompt[i].n = 0, b->cut[i] = false;
    s->status = hl_prompt_ids(&o, &b->engine->set->request[s->request], &b->prompt[i], &b->cut[i]);
}

/* The next requests into the free slots. */
static int64_t gather(struct batch *b) {
    const struct hl_engine *e = b->engine;
    int64_t n = 0;
    for (; b->next < e->set->n && b->n + n < b->room; b->next++) {
        if (e->answer[b->next].done || e->set->request[b->next].kind != HL_ASK_GENERATE) continue;
        struct slot *s = &b->slot[b->n + n++];
        s->request = b->next;
        s->out.n = 0;
    }
    return n;
}

/* Reads the prompts that now have slots, and takes their first tokens. */
static hola_status begin(struct batch *b) {
    struct hl_engine *e = b->engine;
    const int64_t n = gather(b), first = b->n, vocab = hola_model_config(e->model)->vocab_size;
    hola_status st = HOLA_OK;
    if (n == 0) return HOLA_OK;
    hl_pool_run(e->model->backend->pool, n, read_prompt, b);
    for (int64_t i = 0; st == HOLA_OK && i < n; i++) {
        struct slot *s = &b->slot[first + i];
        if (s->status != HOLA_OK) read_prompt(b, i, 0), st = s->status; /* run again for its error message */
        if (b->cut[i] && !b->warned)
            hl_engine_warn(e, "some prompts are longer than max_length allows and lost their beginning");
        b->warned = b->warned || b->cut[i];
        if (st == HOLA_OK && !s->session) st = hola_session_new(&s->session, e->model);
        if (st == HOLA_OK) hola_session_reset(s->session);
        b->session[i] = s->session;
    }
    if (st == HOLA_OK) st = hl_sessions_feed(b->session, b->prompt, n, b->logits);
    for (int64_t i = 0; st == HOLA_OK && i < n; i++)
        b->ids[i] = (int32_t)hl_argmax(b->logits + i * vocab, vocab),
        hl_engine_progress(e, e->set->request[b->slot[first + i].request].context.n / 4);
    b->n += n;
    return st == HOLA_OK ? take_tokens(b, first) : st;
}

/* One token of every slot in use. */
static hola_status step(struct batch *b) {
    const hola_sampling greedy = {.repeat_penalty = 1, .top_p = 1};
    for (int64_t i = 0; i < b->n; i++) {
        b->session[i] = b->slot[i].session;
        b->ids[i] = b->slot[i].out.data[b->slot[i].out.n - 1];
    }
    hola_status st = hola_session_step_sample(b->session, b->n, b->ids, &greedy, b->ids);
    return st == HOLA_OK ? take_tokens(b, 0) : st;
}

hola_status hl_engine_generate(struct hl_engine *e) {
    const int64_t vocab = hola_model_config(e->model)->vocab_size;
    struct batch b = {.engine = e, .room = hl_engine_room(e->model, SLOTS_HOST, SLOTS_DEVICE)};
    const size_t room = (size_t)b.room;
    b.slot = calloc(room, sizeof *b.slot), b.session = calloc(room, sizeof *b.session);
    b.prompt = calloc(room, sizeof *b.prompt), b.cut = calloc(room, sizeof *b.cut);
    b.ids = calloc(room, sizeof *b.ids), b.logits = calloc(room * (size_t)vocab, sizeof *b.logits);
    hola_status st = b.slot && b.session && b.prompt && b.cut && b.ids && b.logits
                         ? HOLA_OK
                         : hl_fail(HOLA_ENOMEM, "eval: no memory");
    while (st == HOLA_OK) {
        /* several at a time: reading prompts together is cheaper */
        if (b.n <= b.room - b.room / 4) st = begin(&b);
        if (st == HOLA_OK && b.n > 0) st = step(&b);
        else if (st == HOLA_OK && b.next >= e->set->n) break;
    }
    for (int64_t i = 0; b.slot && b.prompt && i < b.room; i++)
        hola_session_free(b.slot[i].session), free(b.slot[i].out.data), free(b.prompt[i].data);
    free(b.slot), free(b.session), free(b.prompt), free(b.cut), free(b.ids), free(b.logits);
    return st;
}
