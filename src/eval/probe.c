/* probe.c -- see probe.h. */
#include "eval/probe.h"
#include "eval/pyrandom.h"
#include "eval/ruler_internal.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAD                                                                                                \
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will " \
    "quiz "                                                                                                 \
    "you about the important information there.\n"
#define FILLER HL_NOISE "\n"

const double hl_probe_depth[HL_PROBE_DEPTHS] = {0.1, 0.3, 0.5, 0.7, 0.9};

static const char *const words[HL_PROBE_WORDS] = {
    "apple",  "river",  "stone",  "cloud",  "piano",  "castle", "garden", "window", "bridge", "forest", "island",
    "silver", "copper", "orange", "yellow", "purple", "winter", "summer", "spring", "autumn", "horse",  "sheep",
    "wolf",   "lion",   "bear",   "snake",  "fish",   "bird",   "king",   "queen",  "doctor", "teacher"};

static int64_t draw_key(uint64_t *r) { return 10000 + hl_splitmix_below(r, 90000); }

/* The hidden facts and the questions. */
struct quiz {
    int keys;     /* 0: PK */
    double depth; /* PK */
    int word[HL_PROBE_WORDS];
    int64_t value[HL_PROBE_WORDS];
};

static int64_t place(const struct quiz *z, int fact, int64_t fillers) {
    if (!z->keys) return (int64_t)floor(z->depth * (double)fillers + 0.5);
    return fact * fillers / z->keys;
}

/* The text up to the answer of question `ask`. */
static void put_text(const struct quiz *z, int64_t fillers, int ask, struct hl_text *out) {
    const int facts = z->keys ? z->keys : 1;
    int next = 0;
    hl_text_clear(out);
    hl_text_puts(out, HEAD);
    for (int64_t i = 0; i <= fillers; i++) {
        for (; next < facts && place(z, next, fillers) == i; next++) {
            const int64_t v = z->value[next];
            if (z->keys) hl_text_printf(out, "The pass key for %s is %" PRId64 ".\n", words[z->word[next]], v);
            else hl_text_printf(out, "The pass key is %" PRId64 ". Remember it. %" PRId64 " is the pass key.\n", v, v);
        }
        if (i < fillers) hl_text_puts(out, FILLER);
    }
    if (!z->keys) hl_text_puts(out, "What is the pass key? The pass key is");
    else {
        const char *w = words[z->word[ask]];
        hl_text_printf(out, "What is the pass key for %s? The pass key for %s is", w, w);
    }
}

static hola_status encode(const hola_tokenizer *t, const struct hl_text *text, int32_t **ids, int64_t *n) {
    if (text->failed) return hl_fail(HOLA_ENOMEM, "probe: no memory");
    return hola_tokenizer_encode(t, text->data, text->n, 1, ids, n);
}

/* Tokens of BOS, text and answer for the longest question. */
static hola_status measure(const struct quiz *z, const hola_tokenizer *t, int64_t fillers, struct hl_text *text,
                           int64_t *most) {
    *most = 0;
    for (int q = 0; q < (z->keys ? z->keys : 1); q++) {
        int32_t *ids = NULL;
        int64_t n;
        put_text(z, fillers, q, text);
        hl_text_printf(text, " %" PRId64, z->value[q]);
        hola_status s = encode(t, text, &ids, &n);
        free(ids);
        if (s != HOLA_OK) return s;
        n += hola_tokenizer_bos(t) >= 0;
        if (n > *most) *most = n;
    }
    return HOLA_OK;
}

/* The maximum filler that fits: exponential search from a guess, then bisection. Without a guess, one is derived from
 * the size of eight lines. */
static hola_status fit(const struct quiz *z, const hola_tokenizer *t, int64_t length, struct hl_text *text,
                       int64_t *fillers) {
    int64_t good = -1, bad = length, n = *fillers, step = 1, none, eight, tokens; /* a line is at least one token */
    if (n < 1) {
        hola_status s = measure(z, t, 0, text, &none);
        if (s == HOLA_OK) s = measure(z, t, 8, text, &eight);
        if (s != HOLA_OK) return s;
        n = eight > none ? (length - none) * 8 / (eight - none) : 0;
    }
    while (bad - good > 1) {
        if (n <= good || n >= bad) n = good + (bad - good) / 2;
        hola_status s = measure(z, t, n, text, &tokens);
        if (s != HOLA_OK) return s;
        if (tokens <= length) good = n, n += step;
        else bad = n, n -= step;
        step *= 2;
    }
    if (good < 0)
        return hl_fail(HOLA_EINVAL, "probe: a length of %" PRId64 " tokens is too short with this tokenizer", length);
    *fillers = good;
    return HOLA_OK;
}

/* Tokens that contain a digit count; a separate space token before them does not. */
static hola_status mark_digits(struct hl_probe *p, const hola_tokenizer *t) {
    p->digit = calloc((size_t)(p->n - p->answer + 1), sizeof *p->digit);
    if (!p->digit) return hl_fail(HOLA_ENOMEM, "probe: no memory");
    for (int64_t i = p->answer; i < p->n; i++) {
        char *piece;
        int64_t len;
        hola_status s = hola_tokenizer_decode(t, p->ids + i, 1, &piece, &len);
        if (s != HOLA_OK) return s;
        for (int64_t j = 0; j < len; j++) p->digit[i - p->answer] |= piece[j] >= '0' && piece[j] <= '9';
        free(piece);
    }
    return HOLA_OK;
}

static hola_status make_one(const struct quiz *z, const hola_tokenizer *t, int64_t fillers, int ask,
                            struct hl_text *text, struct hl_probe *out) {
    int32_t *before = NULL, *all = NULL;
    int64_t n_before, n, same = 0, bos = hola_tokenizer_bos(t) >= 0;
    *out = (struct hl_probe){.key = z->value[ask],
                             .word = z->keys ? words[z->word[ask]] : NULL,
                             .fillers = fillers,
                             .place = place(z, ask, fillers)};
    put_text(z, fillers, ask, text);
    hola_status s = encode(t, text, &before, &n_before);
    hl_text_printf(text, " %" PRId64, z->value[ask]);
    if (s == HOLA_OK) s = encode(t, text, &all, &n);
    if (s == HOLA_OK) {
        /* the answer starts where the tokens differ from those of the text alone */
        while (same < n_before && same < n && before[same] == all[same]) same++;
        out->ids = malloc((size_t)(n + 1) * sizeof *out->ids);
        if (!out->ids) s = hl_fail(HOLA_ENOMEM, "probe: no memory");
    }
    if (s == HOLA_OK) {
        if (bos) out->ids[0] = hola_tokenizer_bos(t);
        memcpy(out->ids + bos, all, (size_t)n * sizeof *all);
        out->n = n + bos;
        out->answer = same + bos;
        s = mark_digits(out, t);
    }
    free(before);
    free(all);
    return s;
}

static hola_status make_all(const struct quiz *z, const hola_tokenizer *t, int64_t length, int64_t *guess,
                            struct hl_probe *out) {
    const int asks = z->keys ? z->keys : 1;
    struct hl_text text = {.data = NULL};
    int64_t fillers = guess ? *guess : 0;
    if (length < 1 || length > 1 << 28) return hl_fail(HOLA_EINVAL, "probe: a length of %" PRId64, length);
    for (int q = 0; q < asks; q++) out[q] = (struct hl_probe){.ids = NULL};
    hola_status s = fit(z, t, length, &text, &fillers);
    for (int q = 0; q < asks && s == HOLA_OK; q++) s = make_one(z, t, fillers, q, &text, &out[q]);
    if (s == HOLA_OK && guess) *guess = fillers;
    for (int q = 0; q < asks && s != HOLA_OK; q++) hl_probe_free(&out[q]);
    hl_text_free(&text);
    return s;
}

hola_status hl_probe_pk(struct hl_probe *out, const hola_tokenizer *t, int64_t length, int depth, int64_t sample,
                        int64_t *fillers) {
    if (depth < 0 || depth >= HL_PROBE_DEPTHS || sample < 0 || sample > 0xffff)
        return hl_fail(HOLA_EINVAL, "probe: depth %d, sample %" PRId64, depth, sample);
    uint64_t r = (uint64_t)1 << 32 | (uint64_t)depth << 16 | (uint64_t)sample;
    struct quiz z = {.depth = hl_probe_depth[depth]};
    z.value[0] = draw_key(&r);
    return make_all(&z, t, length, fillers, out);
}

hola_status hl_probe_mk(struct hl_probe *out, const hola_tokenizer *t, int64_t length, int keys, int64_t sample,
                        int64_t *fillers) {
    if (keys < 1 || keys > HL_PROBE_WORDS || sample < 0 || sample > 0xffff)
        return hl_fail(HOLA_EINVAL, "probe: %d keys, sample %" PRId64, keys, sample);
    uint64_t r = (uint64_t)2 << 32 | (uint64_t)keys << 16 | (uint64_t)sample;
    struct quiz z = {.keys = keys};
    for (int i = 0; i < HL_PROBE_WORDS; i++) z.word[i] = i;
    for (int i = HL_PROBE_WORDS - 1; i > 0; i--) {
        int64_t j = hl_splitmix_below(&r, i + 1);
        int w = z.word[i];
        z.word[i] = z.word[j];
        z.word[j] = w;
    }
    for (int i = 0; i < keys; i++) z.value[i] = draw_key(&r);
    return make_all(&z, t, length, fillers, out);
}

void hl_probe_free(struct hl_probe *p) {
    free(p->ids);
    free(p->digit);
    *p = (struct hl_probe){.ids = NULL};
}

void hl_probe_score(const struct hl_probe *p, const int32_t *argmax, struct hl_probe_tally *tally) {
    bool exact = true;
    for (int64_t i = 0; i < p->n - p->answer; i++) {
        const bool right = argmax[i] == p->ids[p->answer + i];
        tally->tokens++;
        tally->tokens_right += right;
        if (!p->digit[i]) continue;
        tally->digits++;
        tally->digits_right += right;
        exact &= right;
    }
    tally->samples++;
    tally->exact += exact;
}
