/* ruler_niah.c -- needles in a haystack: one to four of them in lines of noise, in distractor needles, or in essays. */
#include "eval/ruler_internal.h"
#include <stdlib.h>
#include <string.h>

enum type { NUMBERS, WORDS, UUIDS };
enum haystack { NOISE, ESSAY, NEEDLES };
enum { MOST = 4, DEPTHS = 40 };

static const struct setting {
    enum haystack haystack;
    enum type key, value;
    int keys, values, queries;
} settings[] = {
    [HL_NIAH_SINGLE_1] = {NOISE, WORDS, NUMBERS, 1, 1, 1},     [HL_NIAH_SINGLE_2] = {ESSAY, WORDS, NUMBERS, 1, 1, 1},
    [HL_NIAH_SINGLE_3] = {ESSAY, WORDS, UUIDS, 1, 1, 1},       [HL_NIAH_MULTIKEY_1] = {ESSAY, WORDS, NUMBERS, 4, 1, 1},
    [HL_NIAH_MULTIKEY_2] = {NEEDLES, WORDS, NUMBERS, 1, 1, 1}, [HL_NIAH_MULTIKEY_3] = {NEEDLES, UUIDS, UUIDS, 1, 1, 1},
    [HL_NIAH_MULTIVALUE] = {ESSAY, WORDS, NUMBERS, 1, 4, 1},   [HL_NIAH_MULTIQUERY] = {ESSAY, WORDS, NUMBERS, 4, 1, 4},
};
static const char *const type_name[] = {"number", "word", "uuid"};

struct niah {
    const struct setting *set;
    struct hl_lexicon *words;
    struct hl_punkt *punkt;
    json_t *essays;
    struct hl_text essay;     /* words with one space between them */
    struct hl_spans word;     /* in it */
    struct hl_text repeated;  /* NVIDIA, beyond its end */
    struct hl_spans sentence; /* of the first `split` words */
    int64_t split;
    struct hl_text key[MOST], value[MOST][MOST], needle[MOST];
};

/* ---- data ---- */

/* re.sub(r"\s+", " ", text).split(" "): white space at an end leaves an empty word there. */
static hola_status cut_words(struct niah *w, const char *t, int64_t n) {
    hola_status s = HOLA_OK;
    for (int64_t i = 0; i < n;) {
        int k = hl_py_space((struct hl_span){t + i, n - i});
        if (k == 0) {
            hl_text_put(&w->essay, t + i++, 1);
            continue;
        }
        hl_text_put(&w->essay, " ", 1);
        for (; k > 0; k = hl_py_space((struct hl_span){t + i, n - i})) i += k;
    }
    if (w->essay.failed) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    const char *p = w->essay.data, *end = p + w->essay.n;
    for (bool more = true; more && s == HOLA_OK;) {
        const char *q = memchr(p, ' ', (size_t)(end - p));
        more = q != NULL;
        s = hl_spans_add(&w->word, p, (q ? q : end) - p, 0);
        p = q ? q + 1 : end;
    }
    return s;
}

static hola_status read_essays(struct niah *w, const char *dir) {
    hola_status s = hl_ruler_json(dir, "PaulGrahamEssays.json",
                                  "Paul Graham's essays, {\"text\": ..}; NVIDIA/RULER's download_paulgraham_essay.py "
                                  "writes it",
                                  &w->essays);
    if (s != HOLA_OK) return s;
    json_t *text = json_object_get(w->essays, "text");
    if (!json_is_string(text) || json_string_length(text) == 0)
        return hl_fail(HOLA_EFORMAT, "%s/PaulGrahamEssays.json: no \"text\"", dir);
    s = cut_words(w, json_string_value(text), (int64_t)json_string_length(text));
    return s == HOLA_OK ? hl_punkt_new(&w->punkt, dir) : s;
}

static hola_status niah_open(struct hl_ruler_gen *g) {
    struct niah *w = g->state = calloc(1, sizeof *w);
    hola_status s = HOLA_OK;
    if (!w) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    w->set = &settings[g->o->task];
    w->split = -1;
    g->step = w->set->haystack == ESSAY ? 500 : g->length < 4096 ? 5 : 25;
    g->probe = g->step;
    if (w->set->key == WORDS) s = hl_lexicon_new(&w->words, g->o, true);
    if (s == HOLA_OK && w->set->haystack == ESSAY) s = read_essays(w, g->o->data);
    g->cap = g->nvidia ? 0 : w->word.n;
    g->cap_late = true;
    return s;
}

static void niah_close(struct hl_ruler_gen *g) {
    struct niah *w = g->state;
    if (!w) return;
    hl_lexicon_free(w->words);
    hl_punkt_free(w->punkt);
    json_decref(w->essays);
    hl_text_free(&w->essay);
    hl_text_free(&w->repeated);
    free(w->word.at);
    free(w->sentence.at);
    for (int i = 0; i < MOST; i++) {
        hl_text_free(&w->key[i]);
        hl_text_free(&w->needle[i]);
        for (int j = 0; j < MOST; j++) hl_text_free(&w->value[i][j]);
    }
    free(w);
}

static int64_t niah_least(const struct hl_ruler_gen *g, int64_t index) {
    const struct niah *w = g->state;
    (void)index;
    return w->set->haystack == ESSAY ? 0 : w->set->keys * w->set->values;
}

/* ---- one text ---- */

static void draw(struct hl_ruler_gen *g, enum type type, struct hl_text *out) {
    struct niah *w = g->state;
    char uuid[37];
    if (type == NUMBERS) hl_text_printf(out, "%lld", (long long)hl_py_randint(&g->random, 1000000, 9999999));
    else if (type == UUIDS) hl_py_uuid4(&g->random, uuid), hl_text_puts(out, uuid);
    else hl_lexicon_get(w->words, hl_py_below(&g->random, hl_lexicon_count(w->words)), out);
}

static void begin_needle(struct hl_ruler_gen *g, struct hl_text *out) {
    const struct niah *w = g->state;
    hl_text_printf(out, "One of the special magic %ss for ", type_name[w->set->value]);
}

/* Keys, their values, and their needles, in final order. */
static hola_status draw_needles(struct hl_ruler_gen *g) {
    struct niah *w = g->state;
    struct hl_mt inner;
    int32_t order[MOST];
    int n = w->set->keys * w->set->values;
    bool bad = false;
    hl_py_seed(&inner, g->inner_seed);
    for (int i = 0; i < n; i++) order[i] = i;
    hl_py_shuffle(&inner, order, n);
    for (int i = 0; i < w->set->keys; i++) {
        hl_text_clear(&w->key[i]);
        draw(g, w->set->key, &w->key[i]);
        bad |= w->key[i].failed;
        for (int j = 0; j < w->set->values; j++) {
            hl_text_clear(&w->value[i][j]);
            draw(g, w->set->value, &w->value[i][j]);
            bad |= w->value[i][j].failed;
        }
    }
    for (int i = 0; i < n && !bad; i++) {
        int key = order[i] / w->set->values;
        struct hl_text *needle = &w->needle[i];
        hl_text_clear(needle);
        begin_needle(g, needle);
        hl_text_puts(needle, w->key[key].data);
        hl_text_puts(needle, " is: ");
        hl_text_puts(needle, w->value[key][order[i] % w->set->values].data);
        hl_text_puts(needle, ".");
        bad |= needle->failed;
    }
    return bad ? hl_fail(HOLA_ENOMEM, "ruler: no memory") : HOLA_OK;
}

static int falling(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

/* Lines of noise or of needles; needle i comes before the line of the i-th largest index. */
static hola_status put_lines(struct hl_ruler_gen *g, int64_t n, struct hl_text *out) {
    struct niah *w = g->state;
    struct hl_text lines = {.data = NULL};
    int64_t at[MOST], needles = w->set->keys * w->set->values;
    hl_text_clear(&lines);
    for (int64_t i = 0; i < n; i++) {
        if (w->set->haystack == NOISE) hl_text_puts(&lines, HL_NOISE "\n");
        else {
            begin_needle(g, &lines);
            draw(g, w->set->key, &lines);
            hl_text_puts(&lines, " is: ");
            draw(g, w->set->value, &lines);
            hl_text_puts(&lines, ".\n");
        }
    }
    hola_status s = hl_py_sample(&g->random, n, needles, at);
    if (s == HOLA_OK && lines.failed) s = hl_fail(HOLA_ENOMEM, "ruler: no memory");
    if (s == HOLA_OK) qsort(at, (size_t)needles, sizeof *at, falling);
    const char *p = lines.data;
    for (int64_t i = 0, next = needles - 1; s == HOLA_OK && i < n; i++) {
        if (next >= 0 && at[next] == i) {
            hl_text_put(out, w->needle[next].data, w->needle[next].n);
            hl_text_put(out, "\n", 1);
            next--;
        }
        const char *q = strchr(p, '\n');
        hl_text_put(out, p, q - p + (i + 1 < n));
        p = q + 1;
    }
    hl_text_free(&lines);
    return s;
}

/* The sentences of the first n words. They are the same as long as n is. */
static hola_status split_essay(struct niah *w, int64_t n, bool repeat) {
    struct hl_span s = {w->essay.data, 0};
    if (n == w->split) return HOLA_OK;
    w->split = -1;
    if (repeat && n > w->word.n) {
        hl_text_clear(&w->repeated);
        for (int64_t left = n; left > 0; left -= w->word.n) {
            int64_t k = left < w->word.n ? left : w->word.n;
            if (w->repeated.n) hl_text_put(&w->repeated, " ", 1);
            hl_text_put(&w->repeated, w->essay.data, w->word.at[k - 1].text + w->word.at[k - 1].n - w->essay.data);
        }
        if (w->repeated.failed) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
        s = hl_span_text(&w->repeated);
    } else if (n > 0) {
        const struct hl_ruler_span *last = &w->word.at[(n < w->word.n ? n : w->word.n) - 1];
        s.n = last->text + last->n - s.p;
    }
    s = hl_py_strip(s);
    w->sentence.n = 0;
    hola_status st = s.n ? hl_punkt_split(w->punkt, s.p, s.n, &w->sentence) : HOLA_OK;
    if (st == HOLA_OK) w->split = n;
    return st;
}

static hola_status put_essay(struct hl_ruler_gen *g, int64_t n, struct hl_text *out) {
    struct niah *w = g->state;
    int64_t at[MOST + 2], depth[MOST], needles = w->set->keys * w->set->values;
    hola_status s = split_essay(w, n, g->nvidia);
    if (s == HOLA_OK) s = hl_py_sample(&g->random, DEPTHS, needles, depth);
    if (s != HOLA_OK) return s;
    for (int64_t i = 0; i < needles; i++) {
        /* round(linspace(0, 100, 40)): never half-way between two */
        int64_t percent = (depth[i] * 200 + DEPTHS - 1) / (2 * (DEPTHS - 1));
        at[i] = (int64_t)((double)w->sentence.n * ((double)percent / 100.0));
    }
    qsort(at, (size_t)needles, sizeof *at, falling);
    int64_t from = 0;
    for (int64_t i = 0; i <= needles; i++) {
        int64_t to = i < needles ? at[needles - 1 - i] : w->sentence.n;
        if (i) hl_text_put(out, " ", 1);
        for (int64_t j = from; j < to; j++) {
            if (j > from) hl_text_put(out, " ", 1);
            hl_text_put(out, w->sentence.at[j].text, w->sentence.at[j].n);
        }
        if (i < needles) {
            hl_text_put(out, " ", 1);
            hl_text_put(out, w->needle[i].data, w->needle[i].n);
        }
        from = to;
    }
    return HOLA_OK;
}

/* The queried keys, as text, and the answers. */
static hola_status put_query(struct hl_ruler_gen *g, struct hl_text *query, struct hl_draft *d) {
    struct niah *w = g->state;
    int64_t key[MOST], queries = w->set->queries;
    hola_status s = hl_py_sample(&g->random, w->set->keys, queries, key);
    for (int64_t i = 0; i < queries && s == HOLA_OK; i++) {
        if (i) hl_text_puts(query, i + 1 < queries ? ", " : ", and ");
        hl_text_puts(query, w->key[key[i]].data);
        for (int j = 0; j < w->set->values && s == HOLA_OK; j++)
            s = hl_draft_ref(d, w->value[key[i]][j].data, w->value[key[i]][j].n);
    }
    return s;
}

static hola_status niah_build(struct hl_ruler_gen *g, int64_t units, int64_t index, bool search, struct hl_draft *d) {
    struct niah *w = g->state;
    struct hl_text query = {.data = NULL};
    const bool one = w->set->queries * w->set->values == 1;
    const char *t = type_name[w->set->value], *plural = one ? "" : "s";
    (void)index;
    hola_status s = draw_needles(g);
    if (s != HOLA_OK) return s;
    hl_text_printf(&d->text,
                   "%s special magic %s%s %s hidden within the following text. Make sure to memorize it. "
                   "I will quiz you about the %s%s afterwards.\n",
                   one ? "A" : "Some", t, plural, one ? "is" : "are", t, plural);
    s = w->set->haystack == ESSAY ? put_essay(g, units, &d->text) : put_lines(g, units, &d->text);
    if (s == HOLA_OK) s = put_query(g, &query, d);
    if (s == HOLA_OK && query.failed) s = hl_fail(HOLA_ENOMEM, "ruler: no memory");
    if (s == HOLA_OK) {
        hl_text_printf(&d->text, "\nWhat %s the special magic %s%s for ", one ? "is" : "are all", t, plural);
        hl_text_puts(&d->text, query.data);
        hl_text_puts(&d->text, " mentioned in the provided text?");
        d->cut = g->nvidia ? d->text.n : -1;
        struct hl_text *to = g->nvidia ? &d->text : &d->prefix;
        hl_text_printf(to, " The special magic %s%s for ", t, plural);
        hl_text_puts(to, query.data);
        hl_text_printf(to, " mentioned in the provided text %s", one ? "is" : "are");
        for (int64_t i = 0; search && i < d->n_refs; i++) {
            if (i) hl_text_puts(&d->tail, " ");
            hl_text_puts(&d->tail, d->refs[i]);
        }
    }
    hl_text_free(&query);
    return s;
}

const struct hl_ruler_kind hl_ruler_niah = {
    .open = niah_open, .close = niah_close, .least = niah_least, .build = niah_build};
