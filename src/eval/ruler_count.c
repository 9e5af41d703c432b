/* ruler_count.c -- word counting: a numbered list with ten common words (cwe), and coded words whose frequencies fall
 * as 1/rank^2 (fwe). */
#include "eval/ruler_internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- common words ---- */

enum { COMMON = 10, NVIDIA_PROBE = 4096 };
#define CWE_QUESTION                                                                                       \
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the " \
    "ones "                                                                                                \
    "that appear most often.\n"
#define CWE_ASK "\nQuestion: What are the 10 most common words in the above list?"
#define CWE_PREFIX "Answer: The top 10 words that appear most often in the list are:"

struct cwe {
    struct hl_lexicon *words;
    int32_t *order;        /* the words, shuffled */
    json_t *more;          /* NVIDIA: english_words.json, when there are not enough */
    struct hl_spans other; /* in it */
    struct hl_mt own;      /* the harness's generator, which continues from list to list */
};

static hola_status read_more(struct hl_ruler_gen *g) {
    struct cwe *w = g->state;
    const char *key;
    json_t *value;
    hola_status s =
        hl_ruler_json(g->o->data, "english_words.json",
                      "NVIDIA/RULER's scripts/data/synthetic/json/english_words.json at this length", &w->more);
    if (s != HOLA_OK) return s;
    json_object_foreach(w->more, key, value) {
        if (!json_is_string(value)) return hl_fail(HOLA_EFORMAT, "english_words.json: %s is not a string", key);
        s = hl_spans_add(&w->other, json_string_value(value), (int64_t)json_string_length(value), 0);
        if (s != HOLA_OK) return s;
    }
    return HOLA_OK;
}

static void put_word(struct cwe *w, bool other, int64_t i, struct hl_text *out) {
    if (other) hl_text_put(out, w->other.at[i].text, w->other.at[i].n);
    else hl_lexicon_get(w->words, w->order[i], out);
}

/* "1. word 2. word ..": the first ten of n drawn words `common` times each, the others `rare` times. The
 * ten go as such a list to names and, where there is a draft, to its references. */
static hola_status put_list(struct hl_ruler_gen *g, int64_t n, int64_t common, int64_t rare, struct hl_text *out,
                            struct hl_text *names, struct hl_draft *d) {
    struct cwe *w = g->state;
    const int64_t ten = n < COMMON ? n : COMMON, total = ten * common + (n - ten) * rare;
    const bool other = n > hl_lexicon_count(w->words);
    hola_status s = other && !w->more ? read_more(g) : HOLA_OK;
    if (s == HOLA_OK && other && n > w->other.n)
        s = hl_fail(HOLA_EINVAL, "ruler_cwe: %lld words are needed at this length, english_words.json has %lld",
                    (long long)n, (long long)w->other.n);
    if (s != HOLA_OK) return s;
    int64_t *drawn = malloc((size_t)(n + 1) * sizeof *drawn);
    int32_t *list = malloc((size_t)(total + 1) * sizeof *list);
    s = drawn && list ? hl_py_sample(&g->random, other ? w->other.n : hl_lexicon_count(w->words), n, drawn)
                      : hl_fail(HOLA_ENOMEM, "ruler: no memory");
    if (s == HOLA_OK) {
        struct hl_mt inner;
        int64_t k = 0;
        hl_py_seed(&inner, g->inner_seed);
        for (int64_t i = 0; i < ten * common; i++) list[k++] = (int32_t)(i % ten);
        for (int64_t i = 0; i < (n - ten) * rare; i++) list[k++] = (int32_t)(ten + i % (n - ten));
        hl_py_shuffle(g->nvidia ? &inner : &w->own, list, total);
        for (int64_t i = 0; i < total; i++) {
            hl_text_printf(out, i ? " %lld. " : "%lld. ", (long long)(i + 1));
            put_word(w, other, drawn[list[i]], out);
        }
    }
    for (int64_t i = 0; i < ten && s == HOLA_OK; i++) {
        struct hl_text one = {.data = NULL};
        put_word(w, other, drawn[i], &one);
        hl_text_printf(names, i ? " %lld. " : "%lld. ", (long long)(i + 1));
        if (one.failed) s = hl_fail(HOLA_ENOMEM, "ruler: no memory");
        else hl_text_put(names, one.data, one.n);
        if (s == HOLA_OK && d) s = hl_draft_ref(d, one.data, one.n);
        hl_text_free(&one);
    }
    free(drawn);
    free(list);
    return s;
}

static hola_status put_cwe(struct hl_ruler_gen *g, int64_t n, bool example, struct hl_text *out, struct hl_text *names,
                           struct hl_draft *d) {
    const bool small = g->o->length < 4096;
    hl_text_puts(out, CWE_QUESTION);
    hola_status s = example ? put_list(g, n, small ? 3 : 10, small ? 1 : 3, out, names, d)
                            : put_list(g, n, small ? 6 : 30, small ? 1 : 3, out, names, d);
    hl_text_puts(out, CWE_ASK " " CWE_PREFIX);
    return s;
}

/* An example, which the harness generates and counts but does not show, and the list. */
static hola_status cwe_build(struct hl_ruler_gen *g, int64_t units, int64_t index, bool search, struct hl_draft *d) {
    struct hl_text names = {.data = NULL}, *shown = g->nvidia ? &d->text : &d->head;
    (void)index;
    (void)search;
    hola_status s = put_cwe(g, g->o->length < 4096 ? 20 : 40, true, shown, &names, NULL);
    if (s == HOLA_OK && names.failed) s = hl_fail(HOLA_ENOMEM, "ruler: no memory");
    if (s == HOLA_OK) {
        hl_text_puts(shown, g->nvidia ? " " : "");
        hl_text_put(shown, names.data, names.n);
        hl_text_puts(shown, "\n");
        hl_text_puts(&d->tail, " ");
        s = put_cwe(g, units, false, &d->text, &d->tail, d);
        d->cut = d->text.n - (int64_t)strlen(" " CWE_PREFIX);
    }
    hl_text_free(&names);
    return s;
}

/* Two newlines are this task's delimiter in the harness. */
static hola_status cwe_finish(struct hl_ruler_gen *g, struct hl_draft *d) {
    if (g->nvidia) return HOLA_OK;
    d->text.n = d->cut;
    hl_text_puts(&d->text, "\n\n" CWE_PREFIX);
    return HOLA_OK;
}

static int64_t cwe_least(const struct hl_ruler_gen *g, int64_t index) {
    (void)g;
    (void)index;
    return COMMON;
}

static hola_status cwe_open(struct hl_ruler_gen *g) {
    struct cwe *w = g->state = calloc(1, sizeof *w);
    if (!w) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    g->step = 10;
    g->probe = NVIDIA_PROBE;
    hola_status s = hl_lexicon_new(&w->words, g->o, false);
    if (s != HOLA_OK) return s;
    int64_t n = hl_lexicon_count(w->words);
    if (n < 40) return hl_fail(HOLA_EINVAL, "ruler_cwe: %lld words are too few; at least 40 are needed", (long long)n);
    if (!g->nvidia) g->cap = n;
    w->order = malloc((size_t)n * sizeof *w->order);
    if (!w->order) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    for (int64_t i = 0; i < n; i++) w->order[i] = (int32_t)i;
    hl_py_seed(&w->own, g->inner_seed);
    hl_py_shuffle(&w->own, w->order, n);
    return HOLA_OK;
}

static void cwe_close(struct hl_ruler_gen *g) {
    struct cwe *w = g->state;
    if (!w) return;
    hl_lexicon_free(w->words);
    json_decref(w->more);
    free(w->other.at);
    free(w->order);
    free(w);
}

const struct hl_ruler_kind hl_ruler_cwe = {
    .open = cwe_open, .close = cwe_close, .least = cwe_least, .build = cwe_build, .finish = cwe_finish};

/* ---- frequent words ---- */

enum { LETTERS = 6 };
#define FWE_QUESTION                                                                                 \
    "Read the following coded text and track the frequency of each coded word. Find the three most " \
    "frequently "                                                                                    \
    "appeared coded words. "
#define FWE_ASK                                                                                           \
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most " \
    "frequently "                                                                                         \
    "appeared words in the above coded text?"
#define FWE_PREFIX " Answer: According to the coded text above, the three most frequently appeared words are:"

struct fwe {
    char (*word)[LETTERS + 1]; /* by rank */
    int64_t n;
    int32_t *list; /* their occurrences */
    int64_t room;
};

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

/* The coded words: n distinct ones, sorted, shuffled; the most common is the dots. */
static hola_status draw_coded(struct hl_ruler_gen *g) {
    struct fwe *w = g->state;
    int64_t have = 0;
    struct hl_mt inner;
    int32_t *order = malloc((size_t)w->n * sizeof *order);
    char(*sorted)[LETTERS + 1] = malloc((size_t)w->n * sizeof *sorted);
    if (order && sorted)
        while (have < w->n) {
            for (; have < w->n; have++) {
                for (int i = 0; i < LETTERS; i++) sorted[have][i] = (char)('a' + hl_py_choices(&g->random, 26));
                sorted[have][LETTERS] = 0;
            }
            qsort(sorted, (size_t)w->n, sizeof *sorted, by_name);
            have = 0;
            for (int64_t i = 0; i < w->n; i++)
                if (i == 0 || strcmp(sorted[i], sorted[have - 1]) != 0) memmove(sorted[have++], sorted[i], LETTERS + 1);
        }
    if (order && sorted) {
        hl_py_seed(&inner, g->inner_seed);
        for (int64_t i = 0; i < w->n; i++) order[i] = (int32_t)i;
        hl_py_shuffle(&inner, order, w->n);
        for (int64_t i = 0; i < w->n; i++) memcpy(w->word[i], sorted[order[i]], LETTERS + 1);
        memcpy(w->word[0], "...", 4);
    }
    bool bad = !order || !sorted;
    free(order);
    free(sorted);
    return bad ? hl_fail(HOLA_ENOMEM, "ruler: no memory") : HOLA_OK;
}

static hola_status put_coded(struct hl_ruler_gen *g, int64_t words, struct hl_draft *d) {
    struct fwe *w = g->state;
    struct hl_mt inner;
    int64_t n = 0;
    const double zeta = 1.6449340668482264; /* of 2: pi^2 / 6 */
    hl_draft_clear(d);
    if (words + 1 > w->room) { /* the frequencies sum to less than one */
        int32_t *list = realloc(w->list, (size_t)(words + 1) * sizeof *list);
        if (!list) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
        w->list = list, w->room = words + 1;
    }
    for (int64_t r = 0; r < w->n; r++) {
        int64_t times = (int64_t)((double)words * pow((double)(r + 1), -2.0) / zeta);
        for (int64_t i = 0; i < times; i++) w->list[n++] = (int32_t)r;
    }
    hl_py_seed(&inner, g->inner_seed);
    hl_py_shuffle(&inner, w->list, n);
    hl_text_puts(&d->text, FWE_QUESTION);
    for (int64_t i = 0; i < n; i++) {
        if (i) hl_text_put(&d->text, " ", 1);
        hl_text_puts(&d->text, w->word[w->list[i]]);
    }
    if ((int64_t)((double)words / 16 / zeta) < 1) return hl_ruler_too_short(g); /* an answer would not occur */
    hl_text_puts(&d->text, FWE_ASK);
    d->cut = d->text.n;
    hl_text_puts(&d->text, FWE_PREFIX);
    hola_status s = HOLA_OK;
    for (int r = 1; r <= 3 && s == HOLA_OK; r++) s = hl_draft_ref(d, w->word[r], LETTERS);
    return s;
}

/* Both tools search once for the number of words that fit, then use it for each sample, or fewer in steps. */
static hola_status fwe_search(struct hl_ruler_gen *g, int64_t *words, struct hl_draft *d) {
    int64_t tokens, n = g->length / LETTERS;
    hola_status s = draw_coded(g);
    if (s == HOLA_OK) s = put_coded(g, n, d);
    if (s == HOLA_OK) s = hl_ruler_count(g, &d->text, NULL, NULL, &tokens);
    while (s == HOLA_OK && tokens < g->length) {
        n += g->step;
        s = put_coded(g, n, d);
        if (s == HOLA_OK) s = hl_ruler_count(g, &d->text, NULL, NULL, &tokens);
    }
    *words = n - g->step;
    return s;
}

static hola_status fwe_make(struct hl_ruler_gen *g, struct hl_ruler_set *out) {
    struct hl_draft d = {.cut = -1};
    hola_status s = fwe_search(g, &out->units, &d);
    for (int64_t i = 0; s == HOLA_OK && i < g->o->samples; i++) {
        int64_t n = out->units, tokens = 0;
        s = n > 0 ? draw_coded(g) : hl_ruler_too_short(g);
        for (bool fits = false; s == HOLA_OK && !fits; n -= g->step) {
            s = n > 0 ? put_coded(g, n, &d) : hl_ruler_too_short(g);
            if (s == HOLA_OK) s = hl_ruler_count(g, &d.text, NULL, NULL, &tokens);
            fits = tokens <= g->length;
        }
        if (s == HOLA_OK) s = hl_ruler_keep(g, &d, tokens + g->reserve, out);
    }
    hl_draft_free(&d);
    return s;
}

static hola_status fwe_open(struct hl_ruler_gen *g) {
    struct fwe *w = g->state = calloc(1, sizeof *w);
    if (!w) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    if (g->nvidia) g->length -= g->reserve;
    g->step = g->length / 32;
    w->n = g->length / 50;
    if (w->n < 4) return hl_ruler_too_short(g); /* dots and three answers */
    w->word = malloc((size_t)w->n * sizeof *w->word);
    return w->word ? HOLA_OK : hl_fail(HOLA_ENOMEM, "ruler: no memory");
}

static void fwe_close(struct hl_ruler_gen *g) {
    struct fwe *w = g->state;
    if (!w) return;
    free(w->word);
    free(w->list);
    free(w);
}

const struct hl_ruler_kind hl_ruler_fwe = {.open = fwe_open, .close = fwe_close, .make = fwe_make};
