/* bpe_train.c -- see bpe_train.h.
 *
 * Pairs are in a heap by (count, ids); counts change in the meantime, so a pair popped with a stale count is pushed
 * back with the new one. Each pair lists the words it was seen in, and a merge touches only those. */
#include "tokenizer/bpe_train.h"
#include "tokenizer/bpe_train_words.h"
#include "tokenizer/byte_json.h"
#include "tokenizer/pretoken.h"
#include "tokenizer/tokenizer_json.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = 1024 }; /* longer ones are not language, and would be scanned at every merge */

struct pair {
    uint64_t key; /* left << 32 | right */
    int64_t count;
    int32_t *in; /* words */
    int64_t n, room;
};
struct token {
    int64_t at; /* in store */
    int32_t len, left, right;
};
struct hl_bpe_trainer {
    struct hl_pool *pool;
    struct hl_pattern *words;
    struct hl_words_bag *bag; /* one per worker; merged into the first at the end */
    int32_t **symbols;        /* of each word */
    int32_t *lengths;
    struct token *token;
    int64_t tokens, token_room;
    char *store;
    int64_t used, store_room;
    struct hl_table by_text; /* hash of a token's text, probed upwards -> token */
    int32_t (*merge)[3];     /* left, right, token */
    int64_t merges, merge_room;
    struct pair *pair;
    int64_t pairs, pair_room;
    struct hl_table by_key; /* pair.key -> place in pair[] */
    int64_t *heap, heap_n, heap_room;
    int64_t *fresh, fresh_n, fresh_room; /* pairs whose count a merge increased */
};

/* Room for entry n of an array; on failure *s says so and the array stays. */
static void *grown(void *data, int64_t n, int64_t *room, size_t size, hola_status *s) {
    int64_t more = *room ? 2 * *room : 256;
    void *p;
    *s = HOLA_OK;
    if (n < *room) return data;
    p = realloc(data, (size_t)more * size);
    if (!p) *s = hl_fail(HOLA_ENOMEM, "tokenizer: training, %lld entries", (long long)more);
    if (p) *room = more;
    return p ? p : data;
}
#define GROW(array, n, room) ((array) = grown(array, n, &(room), sizeof *(array), &s))

/* ---- tokens ---- */

static const char *text_of(const struct hl_bpe_trainer *t, int64_t id) { return t->store + t->token[id].at; }

/* The token with this text, created if there is none. */
static hola_status token_of(struct hl_bpe_trainer *t, const char *text, int64_t len, int32_t *id) {
    uint64_t key = hl_mix(hl_text_hash(text, len)) >> 1;
    const struct hl_slot *known;
    hola_status s;
    for (; (known = hl_table_get(&t->by_text, key)); key++) {
        *id = (int32_t)known->value;
        if (t->token[*id].len == len && memcmp(text_of(t, *id), text, (size_t)len) == 0) return HOLA_OK;
    }
    do GROW(t->store, t->used + len, t->store_room);
    while (s == HOLA_OK && t->store_room <= t->used + len);
    if (s == HOLA_OK) GROW(t->token, t->tokens, t->token_room);
    if (s != HOLA_OK) return s;
    memcpy(t->store + t->used, text, (size_t)len);
    *id = (int32_t)t->tokens;
    t->token[t->tokens++] = (struct token){t->used, (int32_t)len, -1, -1};
    t->used += len;
    return hl_table_put(&t->by_text, key, (uint64_t)*id);
}

static hola_status first_tokens(struct hl_bpe_trainer *t) {
    int32_t id;
    /* special tokens have a text that no bytes can have, so that no merge ever matches them */
    hola_status s = token_of(t, "\xff<s>\xff", 5, &id);
    if (s == HOLA_OK) s = token_of(t, "\xff</s>\xff", 6, &id);
    for (uint32_t c = 0; c < 512 && s == HOLA_OK; c++) { /* in the order of the characters they are written as */
        int byte = hl_byte_of_char(c);
        char text = (char)byte;
        if (byte >= 0) s = token_of(t, &text, 1, &id);
    }
    return s;
}

hola_status hl_bpe_trainer_new(struct hl_bpe_trainer **out, int threads) {
    struct hl_bpe_trainer *t = calloc(1, sizeof *t);
    hola_status s = t ? hl_pool_new(&t->pool, threads) : hl_fail(HOLA_ENOMEM, "tokenizer: training");
    *out = NULL;
    if (s == HOLA_OK) {
        t->bag = calloc((size_t)hl_pool_threads(t->pool), sizeof *t->bag);
        s = hl_pattern_new(&t->words, HL_PATTERN_REGEX, HL_GPT2_PATTERN, sizeof HL_GPT2_PATTERN - 1, false,
                           "tokenizer");
    }
    if (s == HOLA_OK) {
        s = t->bag ? first_tokens(t) : hl_fail(HOLA_ENOMEM, "tokenizer: training");
    }
    if (s == HOLA_OK) *out = t, t = NULL;
    hl_bpe_trainer_free(t);
    return s;
}

void hl_bpe_trainer_free(struct hl_bpe_trainer *t) {
    if (!t) return;
    for (int64_t i = 0; t->symbols && i < t->bag[0].n; i++) free(t->symbols[i]);
    for (int i = 0; t->bag && i < hl_pool_threads(t->pool); i++) hl_bag_free(&t->bag[i]);
    for (int64_t i = 0; i < t->pairs; i++) free(t->pair[i].in);
    free(t->bag), free(t->symbols), free(t->lengths), free(t->token), free(t->store), free(t->merge);
    free(t->pair), free(t->heap), free(t->fresh);
    hl_table_free(&t->by_text), hl_table_free(&t->by_key);
    hl_pattern_free(t->words);
    hl_pool_free(t->pool);
    free(t);
}

int64_t hl_bpe_trainer_size(const struct hl_bpe_trainer *t) { return t->tokens; }
int64_t hl_bpe_trainer_words(const struct hl_bpe_trainer *t) { return t->bag[0].n; }

/* ---- counting words ---- */

struct counting {
    struct hl_bpe_trainer *t;
    const struct hl_train_text *texts;
    hola_status *status;
};

static void count_text(void *ctx, int64_t i, int worker) {
    struct counting *c = ctx;
    const struct hl_train_text *x = &c->texts[i];
    for (int64_t at = 0, end, seen; at < x->len && c->status[i] == HOLA_OK; at = end) {
        end = hl_pattern_match(c->t->words, x->text, x->len, at, &seen); /* the pattern matches everywhere */
        if (end - at <= MAX_WORD) c->status[i] = hl_bag_add(&c->t->bag[worker], x->text + at, end - at, 1);
    }
}

hola_status hl_bpe_trainer_count(struct hl_bpe_trainer *t, const struct hl_train_text *texts, int64_t n) {
    struct counting c = {t, texts, calloc((size_t)n + 1, sizeof *c.status)};
    hola_status s = c.status ? HOLA_OK : hl_fail(HOLA_ENOMEM, "tokenizer: %lld texts", (long long)n);
    if (s == HOLA_OK) hl_pool_run(t->pool, n, count_text, &c);
    for (int64_t i = 0; i < n && s == HOLA_OK; i++)
        if (c.status[i] != HOLA_OK) s = hl_fail(c.status[i], "tokenizer: no memory for all different words");
    free(c.status);
    return s;
}

static hola_status gather(struct hl_bpe_trainer *t) {
    hola_status s = HOLA_OK;
    for (int k = 1; k < hl_pool_threads(t->pool); k++) {
        for (int64_t i = 0; i < t->bag[k].n && s == HOLA_OK; i++) {
            const struct hl_word *w = &t->bag[k].word[i];
            s = hl_bag_add(&t->bag[0], t->bag[k].store + w->at, w->len, w->count);
        }
        hl_bag_free(&t->bag[k]);
    }
    return s;
}

/* ---- pairs ---- */

/* Whether pair a is merged before pair b. */
static bool before(const struct hl_bpe_trainer *t, int64_t a, int64_t b, int64_t count_a, int64_t count_b) {
    return count_a != count_b ? count_a > count_b : t->pair[a].key < t->pair[b].key;
}

/* The heap orders pairs by their count when pushed, which is stored with them. */
static hola_status push(struct hl_bpe_trainer *t, int64_t pair) {
    int64_t i = t->heap_n, count = t->pair[pair].count;
    hola_status s;
    GROW(t->heap, 2 * i + 1, t->heap_room);
    if (s != HOLA_OK) return s;
    for (t->heap_n++; i > 0; i = (i - 1) / 2) {
        int64_t up = (i - 1) / 2;
        if (!before(t, pair, t->heap[2 * up], count, t->heap[2 * up + 1])) break;
        t->heap[2 * i] = t->heap[2 * up], t->heap[2 * i + 1] = t->heap[2 * up + 1];
    }
    t->heap[2 * i] = pair, t->heap[2 * i + 1] = count;
    return HOLA_OK;
}

static int64_t pop(struct hl_bpe_trainer *t, int64_t *count) {
    int64_t top = t->heap[0], n = --t->heap_n, last = t->heap[2 * n], last_count = t->heap[2 * n + 1], i = 0;
    *count = t->heap[1];
    for (int64_t c = 1; c < n; c = 2 * i + 1) {
        if (c + 1 < n && before(t, t->heap[2 * c + 2], t->heap[2 * c], t->heap[2 * c + 3], t->heap[2 * c + 1])) c++;
        if (!before(t, t->heap[2 * c], last, t->heap[2 * c + 1], last_count)) break;
        t->heap[2 * i] = t->heap[2 * c], t->heap[2 * i + 1] = t->heap[2 * c + 1];
        i = c;
    }
    t->heap[2 * i] = last, t->heap[2 * i + 1] = last_count;
    return top;
}

/* Increments (word >= 0: it is now in that word) or decrements a pair's count. */
static hola_status change(struct hl_bpe_trainer *t, int32_t left, int32_t right, int64_t by, int64_t word) {
    uint64_t key = (uint64_t)left << 32 | (uint32_t)right;
    const struct hl_slot *known = hl_table_get(&t->by_key, key);
    int64_t i = known ? (int64_t)known->value : t->pairs;
    hola_status s;
    if (!known) {
        GROW(t->pair, t->pairs, t->pair_room);
        if (s != HOLA_OK) return s;
        t->pair[t->pairs++] = (struct pair){.key = key};
        if ((s = hl_table_put(&t->by_key, key, (uint64_t)i)) != HOLA_OK) return s;
    }
    struct pair *p = &t->pair[i];
    p->count += by;
    if (by < 0 || (p->n > 0 && p->in[p->n - 1] == word)) return HOLA_OK;
    if (p->n == 0) {
        GROW(t->fresh, t->fresh_n, t->fresh_room);
        if (s != HOLA_OK) return s;
        t->fresh[t->fresh_n++] = i;
    }
    GROW(p->in, p->n, p->room);
    if (s != HOLA_OK) return s;
    p->in[p->n++] = (int32_t)word;
    return HOLA_OK;
}

static hola_status push_fresh(struct hl_bpe_trainer *t) {
    hola_status s = HOLA_OK;
    for (int64_t i = 0; i < t->fresh_n && s == HOLA_OK; i++)
        if (t->pair[t->fresh[i]].count > 0) s = push(t, t->fresh[i]);
    t->fresh_n = 0;
    return s;
}

static hola_status first_pairs(struct hl_bpe_trainer *t) {
    const struct hl_words_bag *b = &t->bag[0];
    int32_t of_byte[256] = {0};
    hola_status s = HOLA_OK;
    for (int32_t i = 2; i < HL_TRAIN_LEAST; i++) of_byte[(unsigned char)*text_of(t, i)] = i;
    t->symbols = calloc((size_t)b->n + 1, sizeof *t->symbols);
    t->lengths = calloc((size_t)b->n + 1, sizeof *t->lengths);
    if (!t->symbols || !t->lengths) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld words", (long long)b->n);
    for (int64_t w = 0; w < b->n && s == HOLA_OK; w++) {
        int32_t n = t->lengths[w] = b->word[w].len;
        int32_t *x = t->symbols[w] = malloc((size_t)n * sizeof *x);
        if (!x) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld words", (long long)b->n);
        for (int32_t i = 0; i < n; i++) x[i] = of_byte[(unsigned char)b->store[b->word[w].at + i]];
        for (int32_t i = 0; i + 1 < n && s == HOLA_OK; i++) s = change(t, x[i], x[i + 1], b->word[w].count, w);
    }
    return s == HOLA_OK ? push_fresh(t) : s;
}

/* ---- merging ---- */

static hola_status merge_word(struct hl_bpe_trainer *t, int64_t w, int32_t left, int32_t right, int32_t id) {
    int32_t *x = t->symbols[w], n = t->lengths[w], kept = 0;
    int64_t count = t->bag[0].word[w].count;
    hola_status s = HOLA_OK;
    for (int32_t i = 0; i < n && s == HOLA_OK; kept++) {
        if (x[i] != left || i + 1 == n || x[i + 1] != right) {
            x[kept] = x[i++];
            continue;
        }
        if (kept > 0) s = change(t, x[kept - 1], left, -count, w);
        if (kept > 0 && s == HOLA_OK) s = change(t, x[kept - 1], id, count, w);
        if (i + 2 < n && s == HOLA_OK) s = change(t, right, x[i + 2], -count, w);
        if (i + 2 < n && s == HOLA_OK) s = change(t, id, x[i + 2], count, w);
        x[kept] = id;
        i += 2;
    }
    t->lengths[w] = kept;
    return s;
}

static hola_status merge_pair(struct hl_bpe_trainer *t, int64_t pair) {
    int32_t left = (int32_t)(t->pair[pair].key >> 32), right = (int32_t)(uint32_t)t->pair[pair].key, id;
    int32_t *in = t->pair[pair].in;
    int64_t n = t->pair[pair].n, len = t->token[left].len + (int64_t)t->token[right].len;
    char *text = malloc((size_t)len);
    hola_status s;
    if (!text) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld bytes", (long long)len);
    memcpy(text, text_of(t, left), (size_t)t->token[left].len);
    memcpy(text + t->token[left].len, text_of(t, right), (size_t)t->token[right].len);
    t->pair[pair].in = NULL, t->pair[pair].n = t->pair[pair].room = 0;
    s = token_of(t, text, len, &id);
    if (s == HOLA_OK) GROW(t->merge, t->merges, t->merge_room);
    if (s == HOLA_OK) {
        memcpy(t->merge[t->merges++], (int32_t[3]){left, right, id}, sizeof t->merge[0]);
        for (int64_t i = 0; i < n && s == HOLA_OK; i++) s = merge_word(t, in[i], left, right, id);
        if (s == HOLA_OK) s = push_fresh(t);
    }
    free(text), free(in);
    return s;
}

hola_status hl_bpe_trainer_run(struct hl_bpe_trainer *t, int64_t size, int64_t least,
                               void (*progress)(void *ctx, int64_t tokens), void *ctx) {
    hola_status s = HOLA_OK;
    int64_t count;
    if (size < HL_TRAIN_LEAST || size > HL_JSON_MAX_ID)
        return hl_fail(HOLA_EINVAL, "tokenizer: a vocabulary of %lld tokens; %d to %d are possible", (long long)size,
                       HL_TRAIN_LEAST, HL_JSON_MAX_ID);
    if (!t->symbols) s = gather(t);
    if (s == HOLA_OK && !t->symbols) s = first_pairs(t);
    while (s == HOLA_OK && t->tokens < size && t->heap_n > 0) {
        int64_t pair = pop(t, &count);
        if (count != t->pair[pair].count) {
            if (t->pair[pair].count > 0) s = push(t, pair);
            continue;
        }
        if (count < (least > 1 ? least : 1)) break;
        s = merge_pair(t, pair);
        if (progress && t->merges % 256 == 0) progress(ctx, t->tokens);
    }
    return s;
}

/* ---- tokenizer.json ---- */

static const char bos[] = "<s>", eos[] = "</s>"; /* tokens 0 and 1 */
static char *written(const struct hl_bpe_trainer *t, int64_t id) {
    if (id < 2) return hl_byte_bpe_text(id == 0 ? bos : eos, (int64_t)strlen(id == 0 ? bos : eos));
    return hl_byte_bpe_text(text_of(t, id), t->token[id].len);
}

static json_t *vocab_json(const struct hl_bpe_trainer *t) {
    json_t *vocab = json_object();
    for (int64_t i = 0; i < t->tokens; i++) {
        char *text = written(t, i);
        int bad = !text || json_object_set_new(vocab, text, json_integer(i));
        free(text);
        if (bad) return json_decref(vocab), NULL;
    }
    return vocab;
}

static json_t *merges_json(const struct hl_bpe_trainer *t) {
    json_t *merges = json_array();
    for (int64_t i = 0; i < t->merges; i++) {
        char *left = written(t, t->merge[i][0]), *right = written(t, t->merge[i][1]);
        /* "a b" rather than ["a", "b"]: versions of tokenizers before 0.20 read it too */
        int bad = !left || !right || json_array_append_new(merges, json_sprintf("%s %s", left, right));
        free(left), free(right);
        if (bad) return json_decref(merges), NULL;
    }
    return merges;
}

hola_status hl_bpe_trainer_write(const struct hl_bpe_trainer *t, const char *path) {
    const struct hl_byte_bpe file = {.bos = bos,
                                     .eos = eos,
                                     .bos_id = 0,
                                     .eos_id = 1,
                                     .vocab = vocab_json(t),
                                     .merges = merges_json(t),
                                     .words = true};
    return hl_byte_bpe_write(path, &file);
}
