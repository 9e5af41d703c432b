/* generate.c -- greedy decoding of many prompts, a session each, a token of all at a time; when one has
 * ended the next prompt takes its place. A session gets the bits that it would get alone. */
#include "eval/engine.h"
#include "model/model.h"
#include <stdlib.h>

enum { SLOTS_HOST = 16, SLOTS_DEVICE = 64 };

struct slot {
    hola_session *session;
    int64_t request;
    struct hl_ids out;
};
struct batch {
    struct slot *slot;
    int64_t n, room; /* in use, made */
    hola_session **session;
    int32_t *ids;
    float *logits; /* [vocabulary] */
    bool cut;
};

static int32_t likeliest(const float *z, int64_t n) {
    int64_t best = 0;
    for (int64_t v = 1; v < n; v++)
        if (z[v] > z[best]) best = v;
    return (int32_t)best;
}

/* Cuts the text at the first occurrence of a string that ends it; whether there was one. */
static bool cut_at(struct hl_text *t, const char *stop) {
    const int64_t at = stop && *stop ? hl_py_find(hl_span_text(t), stop) : -1;
    if (at >= 0) t->n = at;
    return at >= 0;
}

/* EOS as a text: it ends an output, too. */
static const char *eos_text(const hola_tokenizer *t, char room[64]) {
    const struct hl_piece *p = t->eos >= 0 && !t->plain_bytes ? &t->bpe.piece[t->eos] : NULL;
    if (!p || p->len <= 0 || p->len >= 64) return NULL;
    memcpy(room, p->text, (size_t)p->len);
    room[p->len] = 0;
    return room;
}

/* The answer so far; *ended: nothing that could follow changes it, or what it is for. */
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

/* Takes the next token of a slot; *ended: the answer is complete. */
static hola_status advance(const struct hl_engine *e, struct slot *s, int32_t id, bool *ended) {
    hola_status st;
    *ended = id == hola_tokenizer_eos(e->opts->tokenizer) || id >= hola_tokenizer_size(e->opts->tokenizer);
    if (*ended) return s->out.n > 0 ? HOLA_OK : look(e, s, ended);
    st = hl_ids_room(&s->out, 1);
    if (st != HOLA_OK) return st;
    s->out.data[s->out.n++] = id;
    *ended = s->out.n >= e->set->request[s->request].max_new;
    return look(e, s, ended);
}

/* Reads the prompt of request i into slot b->n; takes it into use unless the first token ends it. */
static hola_status begin(struct hl_engine *e, struct batch *b, int64_t i) {
    struct slot *s = &b->slot[b->n];
    struct hl_ids prompt = {0};
    bool ended = false;
    hola_status st = hl_prompt_ids(e->opts, &e->set->request[i], &prompt, &b->cut);
    if (st == HOLA_OK && !s->session) st = hola_session_new(&s->session, e->model);
    if (st == HOLA_OK) {
        hola_session_reset(s->session);
        s->request = i;
        s->out.n = 0;
        st = hola_session_feed(s->session, prompt.data, prompt.n, b->logits);
    }
    if (st == HOLA_OK)
        st = advance(e, s, likeliest(b->logits, hola_model_config(e->model)->vocab_size), &ended);
    if (st == HOLA_OK) hl_engine_progress(e, e->set->request[i].context.n / 4);
    if (st == HOLA_OK && ended) st = hl_engine_answered(e, i);
    if (st == HOLA_OK && !ended) b->n++;
    if (ended) hl_engine_progress(e, e->set->request[i].max_new);
    free(prompt.data);
    return st;
}

/* One token of every slot in use; those that end give their place to the last one. */
static hola_status step(struct hl_engine *e, struct batch *b) {
    const hola_sampling greedy = {.repeat_penalty = 1, .top_p = 1};
    bool *ended = calloc((size_t)b->n, sizeof *ended);
    if (!ended) return hl_fail(HOLA_ENOMEM, "eval: no memory for a batch");
    for (int64_t i = 0; i < b->n; i++) {
        b->session[i] = b->slot[i].session;
        b->ids[i] = b->slot[i].out.data[b->slot[i].out.n - 1];
    }
    hola_status st = hola_session_step_sample(b->session, b->n, b->ids, &greedy, b->ids);
    for (int64_t i = 0; st == HOLA_OK && i < b->n; i++) st = advance(e, &b->slot[i], b->ids[i], &ended[i]);
    for (int64_t i = b->n; st == HOLA_OK && i-- > 0;) {
        if (!ended[i]) continue;
        const struct slot s = b->slot[i];
        hl_engine_progress(e, e->set->request[s.request].max_new);
        st = hl_engine_answered(e, s.request);
        b->slot[i] = b->slot[--b->n];
        b->slot[b->n] = s;
    }
    free(ended);
    return st;
}

hola_status hl_engine_generate(struct hl_engine *e) {
    const int64_t vocab = hola_model_config(e->model)->vocab_size;
    struct batch b = {.room = hl_engine_room(e->model, SLOTS_HOST, SLOTS_DEVICE)};
    int64_t next = 0;
    b.slot = calloc((size_t)b.room, sizeof *b.slot), b.session = calloc((size_t)b.room, sizeof *b.session);
    b.ids = calloc((size_t)b.room, sizeof *b.ids), b.logits = calloc((size_t)vocab, sizeof *b.logits);
    hola_status st =
        b.slot && b.session && b.ids && b.logits ? HOLA_OK : hl_fail(HOLA_ENOMEM, "eval: no memory");
    while (st == HOLA_OK) {
        while (next < e->set->n && (e->answer[next].done || e->set->request[next].kind != HL_ASK_GENERATE))
            next++;
        if (next < e->set->n && b.n < b.room) st = begin(e, &b, next++);
        else if (b.n > 0) st = step(e, &b);
        else break;
    }
    if (b.cut) hl_engine_warn(e, "some prompts are longer than max_length allows and lost their beginning");
    for (int64_t i = 0; b.slot && i < b.room; i++)
        hola_session_free(b.slot[i].session), free(b.slot[i].out.data);
    free(b.slot), free(b.session), free(b.ids), free(b.logits);
    return st;
}
