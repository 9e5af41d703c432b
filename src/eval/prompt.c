/* prompt.c -- see prompt.h. Follows lm-evaluation-harness, including its peculiarities: a context is encoded alone, and
 * a continuation is the part of the whole encoding after that many tokens. */
#include "eval/prompt.h"
#include <stdlib.h>

void hl_items_free(struct hl_items *p) {
    for (int64_t i = 0; i < p->n_blocks; i++) free(p->blocks[i]);
    free(p->blocks);
    free(p->item);
    *p = (struct hl_items){0};
}

static hola_status no_memory(void) { return hl_fail(HOLA_ENOMEM, "eval: no memory for the tokens of a request"); }

hola_status hl_prompt_encode(const struct hl_eval_opts *o, struct hl_span text, bool special, struct hl_ids *out) {
    const int32_t bos = hola_tokenizer_bos(o->tokenizer);
    const bool with = special && o->bos != HL_BOS_NEVER && bos >= 0;
    int32_t *ids = NULL;
    int64_t n = 0;
    hola_status st = hola_tokenizer_encode(o->tokenizer, text.p, text.n, text.n > 1 << 16 ? o->threads : 1, &ids, &n);
    if (st == HOLA_OK) st = hl_ids_room(out, n + 1);
    if (st == HOLA_OK && with) out->data[out->n++] = bos;
    if (st == HOLA_OK && n > 0) memcpy(out->data + out->n, ids, (size_t)n * sizeof *ids);
    if (st == HOLA_OK) out->n += n;
    free(ids);
    return st;
}

static int32_t prefix_token(const hola_tokenizer *t) {
    return hola_tokenizer_bos(t) >= 0 ? hola_tokenizer_bos(t) : hola_tokenizer_eos(t);
}
static hola_status no_prefix(void) {
    return hl_fail(HOLA_EINVAL, "the tokenizer has neither BOS nor EOS to put before the first token of a text");
}

/* Permanent room for n ids. */
static int32_t *block(struct hl_items *p, int64_t n) {
    if (p->n_blocks == p->room_blocks) {
        int32_t **more = realloc(p->blocks, (size_t)(p->room_blocks * 2 + 64) * sizeof *more);
        if (!more) return NULL;
        p->blocks = more;
        p->room_blocks = p->room_blocks * 2 + 64;
    }
    int32_t *b = malloc((size_t)(n + 1) * sizeof *b);
    if (b) p->blocks[p->n_blocks++] = b;
    return b;
}

static hola_status add(struct hl_items *p, const struct hl_item *item) {
    if (p->n == p->room) {
        struct hl_item *more = realloc(p->item, (size_t)(p->room * 2 + 64) * sizeof *more);
        if (!more) return no_memory();
        p->item = more;
        p->room = p->room * 2 + 64;
    }
    p->item[p->n++] = *item;
    return HOLA_OK;
}

hola_status hl_items_join(struct hl_items *p, struct hl_items *more) {
    hola_status st = HOLA_OK;
    int32_t **blocks = realloc(p->blocks, (size_t)(p->n_blocks + more->n_blocks + 1) * sizeof *blocks);
    if (!blocks) return no_memory();
    p->blocks = blocks;
    if (more->n_blocks > 0) memcpy(blocks + p->n_blocks, more->blocks, (size_t)more->n_blocks * sizeof *blocks);
    p->n_blocks += more->n_blocks, p->room_blocks = p->n_blocks + 1;
    more->n_blocks = 0; /* handed over */
    p->cut = p->cut || more->cut;
    for (int64_t i = 0; st == HOLA_OK && i < more->n; i++) st = add(p, &more->item[i]);
    return st;
}

/* ---- loglikelihood ---- */

/* c, context tokens; t, the continuation's. */
static hola_status pair(const struct hl_eval_opts *o, const struct hl_request *r, struct hl_ids *c, struct hl_ids *t) {
    struct hl_span context = hl_py_rstrip(r->context);
    struct hl_text whole = {0};
    struct hl_ids all = {0};
    hola_status st;
    if (r->context.n == 0) {
        const int32_t first = prefix_token(o->tokenizer);
        if (first < 0) return no_prefix();
        st = hl_prompt_encode(o, r->text, false, t);
        if (st == HOLA_OK) st = hl_ids_room(c, 1);
        if (st == HOLA_OK) c->data[c->n++] = first;
        if (st == HOLA_OK && t->n > 0 && t->data[0] == first)
            memmove(t->data, t->data + 1, (size_t)--t->n * sizeof *t->data);
        return st;
    }
    st = hl_text_add(&whole, r->context);
    if (st == HOLA_OK) st = hl_text_add(&whole, r->text);
    if (st == HOLA_OK) st = hl_prompt_encode(o, hl_span_text(&whole), true, &all);
    if (st == HOLA_OK) st = hl_prompt_encode(o, context, true, c);
    const int64_t rest = all.n - c->n;
    if (st == HOLA_OK && rest > 0) st = hl_ids_room(t, rest);
    if (st == HOLA_OK && rest > 0) {
        memcpy(t->data, all.data + c->n, (size_t)rest * sizeof *t->data);
        t->n = rest;
    }
    free(whole.data);
    free(all.data);
    return st;
}

static hola_status add_pair(struct hl_items *p, const struct hl_eval_opts *o, const struct hl_request *r, int64_t i) {
    struct hl_ids c = {0}, t = {0};
    hola_status st = pair(o, r, &c, &t);
    if (st == HOLA_OK && (t.n == 0 || c.n == 0))
        st = hl_fail(HOLA_EINVAL, "document %lld, choice %lld: its %s has no tokens", (long long)r->doc,
                     (long long)r->choice, t.n == 0 ? "continuation" : "context");
    if (st == HOLA_OK && t.n > o->max_length)
        st = hl_fail(HOLA_EINVAL, "document %lld, choice %lld: a continuation of %lld tokens, max_length is %lld",
                     (long long)r->doc, (long long)r->choice, (long long)t.n, (long long)o->max_length);
    if (st == HOLA_OK) {
        /* the last max_length + 1 tokens, of which the last is not fed */
        const int64_t all = c.n + t.n, n = all < o->max_length + 1 ? all : o->max_length + 1, drop = all - n;
        int32_t *ids = block(p, n);
        if (ids) {
            memcpy(ids, c.data + drop, (size_t)(c.n - drop) * sizeof *ids);
            memcpy(ids + c.n - drop, t.data, (size_t)t.n * sizeof *ids);
            p->cut = p->cut || drop > 0;
            st = add(p, &(struct hl_item){i, ids, ids + 1, n - 1, n - 1 - t.n});
        } else st = no_memory();
    }
    free(c.data);
    free(t.data);
    return st;
}

/* ---- rolling ---- */

/* Windows of up to M tokens, each predicted once; the last one reaches back to be M long. */
static hola_status add_windows(struct hl_items *p, const struct hl_eval_opts *o, const struct hl_request *r,
                               int64_t i) {
    const int64_t M = o->max_length;
    const int32_t first = prefix_token(o->tokenizer);
    struct hl_eval_opts how = *o;
    struct hl_ids t = {0};
    if (first < 0) return no_prefix();
    if (how.bos == HL_BOS_ALWAYS) how.bos = HL_BOS_NEVER; /* the prefix is the one */
    hola_status st = hl_prompt_encode(&how, r->text, true, &t);
    int32_t *all = st == HOLA_OK ? block(p, t.n + 1) : NULL;
    if (st == HOLA_OK && !all) st = no_memory();
    if (st == HOLA_OK) {
        all[0] = first;
        if (t.n > 0) memcpy(all + 1, t.data, (size_t)t.n * sizeof *all);
    }
    for (int64_t done = 0; st == HOLA_OK && done < t.n;) {
        const int64_t w = t.n - done < M ? t.n - done : M, end = done + w;
        const int64_t begin = done == 0 ? 0 : end - M;
        st = add(p, &(struct hl_item){i, all + begin, all + begin + 1, end - begin, done - begin});
        done = end;
    }
    free(t.data);
    return st;
}

/* ---- ids ---- */

static hola_status add_ids(struct hl_items *p, const struct hl_request *r, int64_t i) {
    int64_t from = 0, to = r->n_ids;
    while (from < to && r->next[from] < 0) from++;
    while (to > from && r->next[to - 1] < 0) to--;
    int32_t *ids = block(p, to);
    if (!ids) return no_memory();
    if (to > 0) memcpy(ids, r->ids, (size_t)to * sizeof *ids);
    return to > from ? add(p, &(struct hl_item){i, ids, r->next, to, from}) : HOLA_OK;
}

hola_status hl_items_add(struct hl_items *p, const struct hl_eval_opts *o, const struct hl_request *r, int64_t i) {
    switch (r->kind) {
    case HL_ASK_LOGLIKELIHOOD: return add_pair(p, o, r, i);
    case HL_ASK_ROLLING: return add_windows(p, o, r, i);
    case HL_ASK_IDS: return add_ids(p, r, i);
    case HL_ASK_GENERATE: break;
    }
    return HOLA_OK;
}

/* ---- generate ---- */

hola_status hl_prompt_ids(const struct hl_eval_opts *o, const struct hl_request *r, struct hl_ids *out, bool *cut) {
    const int64_t most = o->max_length - r->max_new;
    const bool keep = r->whole && !o->truncate;
    hola_status st = r->ids ? hl_ids_room(out, r->n_ids + 1) : hl_prompt_encode(o, r->context, true, out);
    if (st != HOLA_OK) return st;
    if (r->ids && r->n_ids > 0) memcpy(out->data, r->ids, (size_t)r->n_ids * sizeof *out->data);
    if (r->ids) out->n = r->n_ids;
    if (most < 1 && !keep)
        return hl_fail(HOLA_EINVAL, "%lld tokens are to be generated, max_length is %lld: no room for a prompt",
                       (long long)r->max_new, (long long)o->max_length);
    if (out->n > most && !keep) {
        *cut = true;
        memmove(out->data, out->data + out->n - most, (size_t)most * sizeof *out->data);
        out->n = most;
    }
    if (out->n == 0) {
        const int32_t first = prefix_token(o->tokenizer);
        if (first < 0) return no_prefix();
        st = hl_ids_room(out, 1);
        if (st == HOLA_OK) out->data[out->n++] = first;
    }
    return st;
}
