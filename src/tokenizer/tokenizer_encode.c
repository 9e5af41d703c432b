/* tokenizer_encode.c -- text to ids: segments between added tokens, blocks encoded in parallel, one result. */
#define _POSIX_C_SOURCE 200809L
#include "tokenizer/tokenizer.h"
#include "core/pool.h"
#include "tokenizer/pretoken.h"
#include <pthread.h>
#include <stdlib.h>

enum { BLOCK = 1 << 17 }; /* approximate bytes per task: fixed, so that results do not depend on threads */

/* ---- caches kept for the next text ---- */

enum { KEPT = 64 };
struct hl_caches {
    pthread_mutex_t lock;
    struct hl_bpe_work *idle[KEPT];
    int n;
};

hola_status hl_caches_new(struct hl_caches **out) {
    *out = calloc(1, sizeof **out);
    if (!*out || pthread_mutex_init(&(*out)->lock, NULL)) {
        free(*out);
        *out = NULL;
        return hl_fail(HOLA_ENOMEM, "tokenizer: no lock");
    }
    return HOLA_OK;
}

void hl_caches_free(struct hl_caches *c) {
    if (!c) return;
    for (int i = 0; i < c->n; i++) hl_bpe_work_free(c->idle[i]);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static hola_status take(struct hl_caches *c, struct hl_bpe_work **w) {
    *w = NULL;
    pthread_mutex_lock(&c->lock);
    if (c->n > 0) *w = c->idle[--c->n];
    pthread_mutex_unlock(&c->lock);
    return *w ? HOLA_OK : hl_bpe_work_new(w);
}

static void put_back(struct hl_caches *c, struct hl_bpe_work *w) {
    pthread_mutex_lock(&c->lock);
    if (c->n < KEPT) c->idle[c->n++] = w, w = NULL;
    pthread_mutex_unlock(&c->lock);
    hl_bpe_work_free(w);
}

/* ---- the plan: items to encode, in order ---- */

struct item {
    const char *text;
    int64_t len;
    int32_t token; /* an added token; -1: encode the text */
    bool prefix;   /* with a space before it */
};

struct group { /* items that one task encodes */
    int64_t first, end;
    struct hl_ids ids;
    hola_status status;
};

struct plan {
    const hola_tokenizer *t;
    struct item *item;
    int64_t items, item_room;
    struct group *group;
    int64_t groups;
    struct hl_text *copy; /* rewritten segments */
    int64_t copies;
};

static hola_status add_item(struct plan *p, struct item item) {
    if (p->items == p->item_room) {
        int64_t room = p->item_room ? 2 * p->item_room : 16;
        struct item *more = realloc(p->item, (size_t)room * sizeof *more);
        if (!more) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld parts of a text", (long long)room);
        p->item = more, p->item_room = room;
    }
    p->item[p->items++] = item;
    return HOLA_OK;
}

/* Whether splitting the text at i leaves the words on both sides unchanged. */
static bool may_cut(const struct hl_bpe *b, const char *text, int64_t len, int64_t i) {
    if (b->words == HL_WORDS_JOINED) return hl_bpe_may_cut(b, text, len, i);
    if (b->words == HL_WORDS_SPACES) return text[i] == ' ' || (len - i >= 3 && memcmp(text + i, HL_META_TEXT, 3) == 0);
    unsigned char before = (unsigned char)text[i - 1];
    return text[i] == ' ' && before < 0x80 && (b->cuts->cut_after[before / 64] >> before % 64 & 1);
}

static int64_t next_cut(const struct hl_bpe *b, const char *text, int64_t len, int64_t from) {
    if (b->words == HL_WORDS_JOINED && b->uncut) return len;
    while (from < len && !may_cut(b, text, len, from)) from++;
    return from < len ? from : len;
}

static hola_status add_blocks(struct plan *p, const char *text, int64_t len, bool prefix) {
    hola_status s = HOLA_OK;
    for (int64_t at = 0, end; at < len && s == HOLA_OK; at = end) {
        end = next_cut(&p->t->bpe, text, len, at + BLOCK);
        s = add_item(p, (struct item){text + at, end - at, -1, prefix && at == 0});
    }
    return s;
}

static bool begins_with_space(const hola_tokenizer *t, const char *text, int64_t len) {
    return text[0] == ' ' || (t->bpe.space_is_meta && len >= 3 && memcmp(text, HL_META_TEXT, 3) == 0);
}

hola_status hl_tokenizer_rewrite(const hola_tokenizer *t, const char *text, int64_t len, struct hl_text *out) {
    const char *space = t->bpe.space_is_meta ? HL_META_TEXT : " ";
    int64_t width = (int64_t)strlen(space), at = 0;
    bool after_space = t->squeeze;
    hola_status s = hl_text_room(out, 3 * len + 4);
    if (s != HOLA_OK) return s;
    while (t->squeeze && at < len && text[at] == ' ') at++;
    if (at == len) return HOLA_OK;
    if (t->prefix == HL_PREFIX_ALWAYS) memcpy(out->data, space, (size_t)width), out->n = width;
    for (; at < len; at++) {
        if (text[at] != ' ') out->data[out->n++] = text[at];
        else if (!after_space) memcpy(out->data + out->n, space, (size_t)width), out->n += width;
        after_space = t->squeeze && text[at] == ' ';
    }
    while (t->squeeze && out->n >= width && memcmp(out->data + out->n - width, space, (size_t)width) == 0)
        out->n -= width;
    return HOLA_OK;
}

static hola_status add_copy(struct plan *p, const char **text, int64_t *len) {
    struct hl_text *more = realloc(p->copy, (size_t)(p->copies + 1) * sizeof *more);
    hola_status s;
    if (!more) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld parts of a text", (long long)p->copies + 1);
    p->copy = more;
    more += p->copies++;
    *more = (struct hl_text){0};
    bool changed = true;
    if (p->t->rewrite) s = hl_tokenizer_rewrite(p->t, *text, *len, more);
    else s = hl_normalise(&p->t->normaliser, p->t->continuing, *text, *len, more, &changed);
    if (changed) *text = more->data, *len = more->n;
    return s;
}

/* A segment between added tokens of the original text. */
static hola_status add_segment(struct plan *p, const char *text, int64_t len, bool first) {
    const hola_tokenizer *t = p->t;
    struct hl_found f;
    hola_status s = t->rewrite || t->normaliser.n > 0 ? add_copy(p, &text, &len) : HOLA_OK;
    for (int64_t at = 0, end; at < len && s == HOLA_OK; at = end) {
        bool found = hl_added_find(&t->normalised, text, len, at, &f);
        int64_t n = (found ? f.begin : len) - at;
        bool prefix = !t->rewrite && t->prefix == HL_PREFIX_ALWAYS && at == 0;
        if (n > 0 && !prefix && (t->prefix == HL_PREFIX_UNSPACED || (t->prefix == HL_PREFIX_FIRST && first && at == 0)))
            prefix = !begins_with_space(t, text + at, n);
        if (n > 0) s = add_blocks(p, text + at, n, prefix);
        if (s == HOLA_OK && found) s = add_item(p, (struct item){.token = f.id});
        end = found ? f.end : len;
    }
    return s;
}

static hola_status add_text(struct plan *p, const char *text, int64_t len) {
    struct hl_found f;
    hola_status s = HOLA_OK;
    for (int64_t at = 0, end; at < len && s == HOLA_OK; at = end) {
        bool found = hl_added_find(&p->t->raw, text, len, at, &f);
        int64_t n = (found ? f.begin : len) - at;
        if (n > 0) s = add_segment(p, text + at, n, at == 0);
        if (s == HOLA_OK && found) s = add_item(p, (struct item){.token = f.id});
        end = found ? f.end : len;
    }
    return s;
}

static hola_status make_groups(struct plan *p) {
    int64_t bytes = 0;
    p->group = calloc((size_t)p->items + 1, sizeof *p->group);
    if (!p->group) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld parts of a text", (long long)p->items);
    for (int64_t i = 0; i < p->items; i++) {
        if (p->groups == 0 || bytes >= BLOCK) p->group[p->groups++].first = i, bytes = 0;
        p->group[p->groups - 1].end = i + 1;
        bytes += p->item[i].len + 1;
    }
    return HOLA_OK;
}

/* ---- doing it ---- */

/* A block with a prepended space: copies the part that the space can affect. */
static hola_status encode_prefixed(const struct hl_bpe *b, struct hl_bpe_work *w, const struct item *it,
                                   struct hl_ids *out) {
    int64_t cut = next_cut(b, it->text, it->len, 1);
    char *copy = malloc((size_t)cut + 1);
    hola_status s;
    if (!copy) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld bytes of text", (long long)cut);
    copy[0] = ' ';
    memcpy(copy + 1, it->text, (size_t)cut);
    s = hl_bpe_encode(b, w, copy, cut + 1, out);
    free(copy);
    if (s != HOLA_OK) return s;
    return hl_bpe_encode(b, w, it->text + cut, it->len - cut, out);
}

static hola_status encode_items(const struct plan *p, struct group *g, struct hl_bpe_work *w) {
    const struct hl_bpe *b = &p->t->bpe;
    hola_status s = HOLA_OK;
    for (int64_t i = g->first; i < g->end && s == HOLA_OK; i++) {
        const struct item *it = &p->item[i];
        if (it->token >= 0) {
            s = hl_ids_room(&g->ids, 1);
            if (s == HOLA_OK) g->ids.data[g->ids.n++] = it->token;
        } else if (it->prefix) s = encode_prefixed(b, w, it, &g->ids);
        else s = hl_bpe_encode(b, w, it->text, it->len, &g->ids);
    }
    return s;
}

static void encode_group(void *ctx, int64_t i, int worker) {
    struct plan *p = ctx;
    struct group *g = &p->group[i];
    struct hl_bpe_work *w;
    (void)worker;
    g->status = take(p->t->caches, &w);
    if (g->status != HOLA_OK) return;
    g->status = encode_items(p, g, w);
    put_back(p->t->caches, w);
}

static hola_status run(struct plan *p, int threads) {
    struct hl_pool *pool = NULL;
    if (threads == 1 || p->groups < 3) {
        for (int64_t i = 0; i < p->groups; i++) {
            encode_group(p, i, 0);
            if (p->group[i].status != HOLA_OK) return p->group[i].status;
        }
        return HOLA_OK;
    }
    hola_status s = hl_pool_new(&pool, threads);
    if (s != HOLA_OK) return s;
    hl_pool_run(pool, p->groups, encode_group, p);
    hl_pool_free(pool);
    for (int64_t i = 0; i < p->groups; i++) /* the message belongs to the thread that failed */
        if (p->group[i].status != HOLA_OK)
            return hl_fail(p->group[i].status, "tokenizer: out of memory, or a word of 2 GiB or more");
    return HOLA_OK;
}

/* All groups' ids in one array. */
static hola_status collect(struct plan *p, int32_t **ids, int64_t *n) {
    int64_t total = 0;
    if (p->groups == 1 && !p->t->fuse_unknown) {
        *ids = p->group[0].ids.data, *n = p->group[0].ids.n;
        p->group[0].ids = (struct hl_ids){0};
        if (*ids) return HOLA_OK;
    }
    for (int64_t i = 0; i < p->groups; i++) total += p->group[i].ids.n;
    *ids = malloc((size_t)(total + 1) * sizeof **ids);
    if (!*ids) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld ids", (long long)total);
    *n = 0;
    for (int64_t i = 0; i < p->groups; i++) {
        const struct hl_ids *g = &p->group[i].ids;
        if (!p->t->fuse_unknown && g->n > 0) {
            memcpy(*ids + *n, g->data, (size_t)g->n * sizeof **ids);
            *n += g->n;
            continue;
        }
        for (int64_t k = 0; k < g->n; k++)
            if (g->data[k] != p->t->bpe.unknown || *n == 0 || (*ids)[*n - 1] != g->data[k]) (*ids)[(*n)++] = g->data[k];
    }
    return HOLA_OK;
}

static hola_status encode_bytes(const char *text, int64_t len, int32_t **ids, int64_t *n) {
    *ids = malloc((size_t)(len + 1) * sizeof **ids);
    if (!*ids) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld ids", (long long)len);
    for (int64_t i = 0; i < len; i++) (*ids)[i] = (unsigned char)text[i];
    *n = len;
    return HOLA_OK;
}

hola_status hola_tokenizer_encode(const hola_tokenizer *t, const char *text, int64_t len, int threads, int32_t **ids,
                                  int64_t *n) {
    struct plan p = {.t = t};
    hola_status s;
    HL_NEED(ids, "ids");
    HL_NEED(n, "n");
    *ids = NULL, *n = 0;
    HL_NEED(t, "the tokenizer");
    if (len < 0 || (len > 0 && !text)) return hl_fail(HOLA_EINVAL, "tokenizer: no text");
    if (t->plain_bytes) return encode_bytes(text, len, ids, n);
    s = add_text(&p, text, len);
    if (s == HOLA_OK) s = make_groups(&p);
    if (s == HOLA_OK) s = run(&p, threads);
    if (s == HOLA_OK) s = collect(&p, ids, n);
    for (int64_t i = 0; i < p.groups; i++) free(p.group[i].ids.data);
    for (int64_t i = 0; i < p.copies; i++) free(p.copy[i].data);
    free(p.group), free(p.item), free(p.copy);
    return s;
}
