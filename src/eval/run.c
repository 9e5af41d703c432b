/* run.c -- answers the requests of a set: tokens first, then those to score, then those to generate. */
#include "eval/engine.h"
#include "model/model.h"
#include <stdlib.h>

void hl_engine_progress(struct hl_engine *e, int64_t tokens) {
    const struct hl_eval_hooks *h = e->hooks;
    e->done += tokens;
    if (h && h->progress) h->progress(h->ctx, e->work > 0 ? (double)e->done / (double)e->work : 1, e->done);
}

hola_status hl_engine_answered(struct hl_engine *e, int64_t i) {
    e->answer[i].done = true;
    return e->hooks && e->hooks->answered ? e->hooks->answered(e->hooks->ctx, i, &e->answer[i]) : HOLA_OK;
}

void hl_engine_warn(const struct hl_engine *e, const char *text) {
    if (e->hooks && e->hooks->warn) e->hooks->warn(e->hooks->ctx, text);
}

int64_t hl_engine_room(const hola_model *m, int64_t most_host, int64_t most_device) {
    const int64_t host = (int64_t)1 << 29, device = (int64_t)1 << 34; /* bytes */
    const int64_t most = m->ops->mem->host ? most_host : most_device;
    const int64_t fits = (m->ops->mem->host ? host : device) / m->state.bytes;
    return fits < 2 ? 2 : fits < most ? fits : most;
}

static hola_status tokenize(struct hl_engine *e, struct hl_items *items) {
    hola_status st = HOLA_OK;
    for (int64_t i = 0; st == HOLA_OK && i < e->set->n; i++) {
        const struct hl_request *r = &e->set->request[i];
        const int64_t before = items->n;
        if (e->answer[i].done) continue;
        if (r->kind == HL_ASK_GENERATE) {
            e->work += r->context.n / 4 + r->max_new; /* near enough, for a bar */
            continue;
        }
        if (r->kind == HL_ASK_IDS) {
            e->answer[i].top = calloc((size_t)r->n_ids + 1, sizeof *e->answer[i].top);
            if (!e->answer[i].top) return hl_fail(HOLA_ENOMEM, "eval: no memory for an answer");
        }
        e->answer[i].greedy = true;
        st = hl_items_add(items, e->opts, r, i);
        for (int64_t k = before; k < items->n; k++) e->work += items->item[k].n;
        if (st == HOLA_OK && items->n == before) st = hl_engine_answered(e, i); /* nothing to score */
    }
    return st;
}

hola_status hl_eval_run(hola_model *m, const struct hl_eval_opts *o, const struct hl_set *s,
                        struct hl_answer *answer, const struct hl_eval_hooks *hooks) {
    struct hl_engine e = {.model = m, .opts = o, .set = s, .answer = answer, .hooks = hooks};
    struct hl_items items = {0};
    hola_status st = tokenize(&e, &items);
    if (st == HOLA_OK && items.cut)
        hl_engine_warn(&e, "some contexts are longer than max_length and lost their beginning");
    if (st == HOLA_OK) st = hl_engine_score(&e, &items);
    hl_items_free(&items);
    if (st == HOLA_OK) st = hl_engine_generate(&e);
    return st;
}
