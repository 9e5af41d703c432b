/* ruler_words.c -- wonderwords' lists, as RULER's tasks order them. */
#include "eval/ruler_internal.h"
#include "core/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hl_lexicon {
    struct hl_map file[3];
    struct hl_spans noun, adjective; /* cwe: noun holds all words */
    uint32_t *pair;                  /* adjective << 16 | noun, sorted, unique; NULL for cwe */
    int64_t n_pairs;
};

static hola_status read_list(struct hl_lexicon *w, int file, const struct hl_ruler_opts *o, const char *kind,
                             struct hl_spans *out) {
    char name[256], *path;
    snprintf(name, sizeof name, "wonderwords/%s/%slist.txt", o->words ? o->words : "master", kind);
    hola_status s = hl_ruler_file(o->data, name, "the word lists of the Python package wonderwords", &path);
    if (s == HOLA_OK) s = hl_map_open(&w->file[file], path);
    const char *p = w->file[file].data, *end = p ? p + w->file[file].size : p;
    for (const char *q; s == HOLA_OK && p < end; p = q + 1) {
        q = memchr(p, '\n', (size_t)(end - p));
        if (!q) q = end;
        const char *stop = q; /* some lines have a trailing space */
        while (stop > p && (stop[-1] == ' ' || stop[-1] == '\r' || stop[-1] == '\t')) stop--;
        if (stop > p) s = hl_spans_add(out, p, stop - p, 0);
        if (s == HOLA_OK && out->n > 65535) s = hl_fail(HOLA_EFORMAT, "%s: more than 65,535 words", path);
    }
    if (s == HOLA_OK && out->n == 0) s = hl_fail(HOLA_EFORMAT, "%s: no words", path);
    free(path);
    return s;
}

/* "adjective-" of x is a prefix of that of y */
static bool begins(const struct hl_ruler_span *x, const struct hl_ruler_span *y) {
    return y->n > x->n && memcmp(x->text, y->text, (size_t)x->n) == 0 && y->text[x->n] == '-';
}
static int dashed(const void *a, const void *b) { /* by "adjective-" */
    const struct hl_ruler_span *x = a, *y = b;
    int c = memcmp(x->text, y->text, (size_t)(x->n < y->n ? x->n : y->n));
    if (c || x->n == y->n) return c;
    return x->n < y->n ? (begins(x, y) ? -1 : '-' - (unsigned char)y->text[x->n])
                       : (begins(y, x) ? 1 : (unsigned char)x->text[y->n] - '-');
}

struct pair_word {
    struct hl_text text;
    uint32_t pair;
};
static int by_text(const void *a, const void *b) {
    const struct pair_word *x = a, *y = b;
    return strcmp(x->text.data, y->text.data);
}

/* Adjectives i to j - 1, the first of which the others begin with ("blue", "blue-eyed"): their pairs
 * interleave, and may be the same word. */
static hola_status merge_group(struct hl_lexicon *w, int64_t i, int64_t j) {
    int64_t n = (j - i) * w->noun.n;
    struct pair_word *word = calloc((size_t)n, sizeof *word);
    bool bad = !word;
    for (int64_t k = 0; !bad && k < n; k++) {
        int64_t a = i + k / w->noun.n, b = k % w->noun.n;
        hl_text_put(&word[k].text, w->adjective.at[a].text, w->adjective.at[a].n);
        hl_text_put(&word[k].text, "-", 1);
        hl_text_put(&word[k].text, w->noun.at[b].text, w->noun.at[b].n);
        word[k].pair = (uint32_t)a << 16 | (uint32_t)b;
        bad = word[k].text.failed;
    }
    if (!bad) qsort(word, (size_t)n, sizeof *word, by_text);
    for (int64_t k = 0; !bad && k < n; k++)
        if (k == 0 || by_text(&word[k], &word[k - 1]) != 0) w->pair[w->n_pairs++] = word[k].pair;
    for (int64_t k = 0; word && k < n; k++) hl_text_free(&word[k].text);
    free(word);
    return bad ? hl_fail(HOLA_ENOMEM, "ruler: no memory") : HOLA_OK;
}

static hola_status make_pairs(struct hl_lexicon *w) {
    hola_status s = HOLA_OK;
    hl_spans_sort(&w->noun, true);
    hl_spans_sort(&w->adjective, true);
    qsort(w->adjective.at, (size_t)w->adjective.n, sizeof *w->adjective.at, dashed);
    w->pair = malloc((size_t)(w->noun.n * w->adjective.n) * sizeof *w->pair);
    if (!w->pair) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    for (int64_t i = 0, j; s == HOLA_OK && i < w->adjective.n; i = j) {
        for (j = i + 1; j < w->adjective.n && begins(&w->adjective.at[i], &w->adjective.at[j]);) j++;
        if (j - i > 1) {
            s = merge_group(w, i, j);
            continue;
        }
        for (int64_t k = 0; k < w->noun.n; k++) w->pair[w->n_pairs++] = (uint32_t)i << 16 | (uint32_t)k;
    }
    return s;
}

hola_status hl_lexicon_new(struct hl_lexicon **out, const struct hl_ruler_opts *o, bool pairs) {
    struct hl_lexicon *w = calloc(1, sizeof *w);
    *out = w;
    if (!w) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    hola_status s = read_list(w, 0, o, "noun", &w->noun);
    if (s == HOLA_OK) s = read_list(w, 1, o, "adjective", pairs ? &w->adjective : &w->noun);
    if (s == HOLA_OK && !pairs) s = read_list(w, 2, o, "verb", &w->noun);
    if (s != HOLA_OK) return s;
    if (pairs) return make_pairs(w);
    hl_spans_sort(&w->noun, true);
    return HOLA_OK;
}

void hl_lexicon_free(struct hl_lexicon *w) {
    if (!w) return;
    for (int i = 0; i < 3; i++) hl_map_close(&w->file[i]);
    free(w->noun.at);
    free(w->adjective.at);
    free(w->pair);
    free(w);
}

int64_t hl_lexicon_count(const struct hl_lexicon *w) { return w->pair ? w->n_pairs : w->noun.n; }

void hl_lexicon_get(const struct hl_lexicon *w, int64_t i, struct hl_text *out) {
    const struct hl_ruler_span *noun = &w->noun.at[w->pair ? w->pair[i] & 0xffff : i];
    if (w->pair) {
        const struct hl_ruler_span *a = &w->adjective.at[w->pair[i] >> 16];
        hl_text_put(out, a->text, a->n);
        hl_text_put(out, "-", 1);
    }
    hl_text_put(out, noun->text, noun->n);
}
