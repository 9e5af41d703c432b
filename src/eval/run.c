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
    const int64_t most = m->backend->host ? most_host : most_device;
    /* of a transformer, whose sessions grow, one as long as its texts in training */
    const int64_t fits = (m->backend->host ? host : device) / hl_state_size(&m->state, m->cfg.max_position_embeddings);
    return fits < 2 ? 2 : fits < most ? fits : most;
}

/* Requests that one thread turns into tokens. */
enum { PART = 64 };
struct part {
    struct hl_items items;
    int64_t first, n;
    hola_status status;
};
struct tokenizing {
    const struct hl_engine *e;
    struct hl_eval_opts opts;
    struct part *part;
};

static bool is_scored(const struct hl_engine *e, int64_t i) {
    return !e->answer[i].done && e->set->request[i].kind != HL_ASK_GENERATE;
}

static void tokenize_part(void *ctx, int64_t k, int worker) {
    const struct tokenizing *t = ctx;
    struct part *p = &t->part[k];
    (void)worker;
    hl_items_free(&p->items);
    p->status = HOLA_OK;
    for (int64_t i = p->first; p->status == HOLA_OK && i < p->first + p->n; i++)
        if (is_scored(t->e, i)) p->status = hl_items_add(&p->items, &t->opts, &t->e->set->request[i], i);
}

/* Many requests in parallel; a few large texts sequentially, each by all threads. */
static hola_status tokenize_all(struct hl_engine *e, struct hl_items *items) {
    const int64_t n = hl_pieces(e->set->n, PART);
    struct tokenizing t = {.e = e, .opts = *e->opts, .part = calloc((size_t)n + 1, sizeof *t.part)};
    hola_status st = t.part ? HOLA_OK : hl_fail(HOLA_ENOMEM, "eval: no memory for %lld requests", (long long)n);
    for (int64_t k = 0; st == HOLA_OK && k < n; k++) {
        t.part[k].first = k * PART;
        t.part[k].n = e->set->n - k * PART < PART ? e->set->n - k * PART : PART;
    }
    if (n > 1) t.opts.threads = 1;
    if (st == HOLA_OK && n > 1) hl_pool_run(e->model->backend->pool, n, tokenize_part, &t);
    else if (st == HOLA_OK && n == 1) tokenize_part(&t, 0, 0);
    for (int64_t k = 0; st == HOLA_OK && k < n; k++) {
        if (t.part[k].status != HOLA_OK) tokenize_part(&t, k, 0); /* run again for its error message */
        st = t.part[k].status;
        if (st == HOLA_OK) st = hl_items_join(items, &t.part[k].items);
    }
    for (int64_t k = 0; t.part && k < n; k++) hl_items_free(&t.part[k].items);
    free(t.part);
    return st;
}

static hola_status tokenize(struct hl_engine *e, struct hl_items *items) {
    hola_status st = tokenize_all(e, items);
    for (int64_t i = 0, k = 0; st == HOLA_OK && i < e->set->n; i++) {
        const struct hl_request *r = &e->set->request[i];
        if (r->kind == HL_ASK_GENERATE && !e->answer[i].done)
            e->work += r->context.n / 4 + r->max_new; /* close enough for a progress bar */
        if (!is_scored(e, i)) continue;
        if (r->kind == HL_ASK_IDS) {
            e->answer[i].top = calloc((size_t)r->n_ids + 1, sizeof *e->answer[i].top);
            if (!e->answer[i].top) return hl_fail(HOLA_ENOMEM, "eval: no memory for an answer");
        }
        e->answer[i].greedy = true;
        if (k == items->n || items->item[k].request != i) st = hl_engine_answered(e, i); /* nothing to score */
        for (; k < items->n && items->item[k].request == i; k++) e->work += items->item[k].n;
    }
    return st;
}

hola_status hl_eval_check(hola_model *m, const struct hl_eval_opts *o, const struct hl_set *s) {
    struct hl_answer *none = calloc((size_t)s->n + 1, sizeof *none);
    struct hl_engine e = {.model = m, .opts = o, .set = s, .answer = none};
    struct hl_items items = {0};
    hola_status st = none ? tokenize_all(&e, &items) : hl_fail(HOLA_ENOMEM, "eval: no memory for answers");
    hl_items_free(&items);
    for (int64_t i = 0; st == HOLA_OK && i < s->n; i++) {
        const struct hl_request *r = &s->request[i];
        struct hl_ids ids = {0};
        bool cut = false;
        /* prompts are truncated or were generated to length, so this fails only if there is no room at all */
        if (r->kind != HL_ASK_GENERATE || r->max_new < o->max_length) continue;
        st = hl_prompt_ids(o, r, &ids, &cut);
        free(ids.data);
    }
    free(none);
    return st;
}

hola_status hl_eval_run(hola_model *m, const struct hl_eval_opts *o, const struct hl_set *s, struct hl_answer *answer,
                        const struct hl_eval_hooks *hooks) {
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
