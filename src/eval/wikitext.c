/* wikitext.c -- perplexity: WikiText's pages, assembled from its lines and detokenised as in the harness, and any text
 * file. Words and bytes are counted on the original page, the likelihood is that of the detokenised text. */
#include "eval/jsonl.h"
#include "eval/tasks.h"
#include <math.h>
#include <stdlib.h>

/* ---- detokeniser ---- */

/* *a becomes *a with the replacement; *b is the other buffer, and they swap. */
static hola_status swap_replace(struct hl_text *a, struct hl_text *b, const char *old, const char *new_text) {
    b->n = 0;
    hola_status st = hl_py_replace(b, hl_span_text(a), old, new_text);
    const struct hl_text t = *a;
    *a = *b, *b = t;
    return st;
}

/* re.sub("/' [0-9]/", "/'[0-9]/"): a bug of the harness, reproduced */
static hola_status slip(struct hl_text *a, struct hl_text *b) {
    struct hl_span s = hl_span_text(a);
    hola_status st = HOLA_OK;
    b->n = 0;
    for (int64_t i = 0; st == HOLA_OK && i < s.n;) {
        const char *p = s.p + i;
        const bool hit =
            s.n - i >= 5 && p[0] == '/' && p[1] == '\'' && p[2] == ' ' && p[3] >= '0' && p[3] <= '9' && p[4] == '/';
        st = hl_text_add(b, hit ? hl_span_of("/'[0-9]/") : (struct hl_span){p, 1});
        i += hit ? 5 : 1;
    }
    const struct hl_text t = *a;
    *a = *b, *b = t;
    return st;
}

/* Strips white space inside a pair of brackets or quotes: from an opener to the next closer, then continues after
 * it. */
static hola_status tighten(struct hl_text *a, struct hl_text *b, char open, char close) {
    struct hl_span s = hl_span_text(a);
    hola_status st = HOLA_OK;
    b->n = 0;
    while (st == HOLA_OK && s.n > 0) {
        const char *p = memchr(s.p, open, (size_t)s.n);
        const char *q = p ? memchr(p + 1, close, (size_t)(s.p + s.n - p - 1)) : NULL;
        if (!q) break;
        st = hl_text_add(b, (struct hl_span){s.p, p + 1 - s.p});
        if (st == HOLA_OK) st = hl_text_add(b, hl_py_strip((struct hl_span){p + 1, q - p - 1}));
        if (st == HOLA_OK) st = hl_text_add(b, (struct hl_span){q, 1});
        s.n -= q + 1 - s.p, s.p = q + 1;
    }
    if (st == HOLA_OK) st = hl_text_add(b, s);
    const struct hl_text t = *a;
    *a = *b, *b = t;
    return st;
}

hola_status hl_wikitext_detokenize(struct hl_span page, struct hl_text *out) {
    static const char *const first[][2] = {{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}, {" : ", ": "}, {" ; ", "; "},
                                           {" . ", ". "},  {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "}};
    static const char *const last[][2] = {
        {"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},  {" \xc2\xb0 ", "\xc2\xb0"},
        {" \n", "\n"},       {"\n ", "\n"},    {" N ", " 1 "}, {" 's", "'s"}};
    static const char pairs[][2] = {{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}};
    struct hl_text other = {0};
    hola_status st = hl_text_add(out, page);
    if (st == HOLA_OK) st = swap_replace(out, &other, "s '", "s'");
    if (st == HOLA_OK) st = slip(out, &other);
    for (size_t i = 0; st == HOLA_OK && i < sizeof first / sizeof *first; i++)
        st = swap_replace(out, &other, first[i][0], first[i][1]);
    for (size_t i = 0; st == HOLA_OK && i < sizeof pairs / sizeof *pairs; i++)
        st = tighten(out, &other, pairs[i][0], pairs[i][1]);
    for (size_t i = 0; st == HOLA_OK && i < sizeof last / sizeof *last; i++)
        st = swap_replace(out, &other, last[i][0], last[i][1]);
    free(other.data);
    return st;
}

/* ---- pages ---- */

static hola_status no_memory(void) { return hl_fail(HOLA_ENOMEM, "eval: no memory for a document"); }

static hola_status add_text(struct hl_set *out, struct hl_span counted, struct hl_span scored) {
    struct hl_doc *d;
    hola_status st = hl_set_doc(out, &d);
    if (st != HOLA_OK) return st;
    d->words = hl_py_words(counted);
    d->bytes = counted.n;
    const struct hl_request r = {.kind = HL_ASK_ROLLING, .text = hl_set_keep(out, scored)};
    return r.text.p ? hl_set_ask(out, &r) : no_memory();
}

static hola_status add_page(struct hl_set *out, struct hl_span page) {
    struct hl_text text = {0};
    hola_status st = hl_wikitext_detokenize(page, &text);
    if (st == HOLA_OK) st = add_text(out, page, hl_span_text(&text));
    free(text.data);
    return st;
}

/* " = Title = " and not " = = Section = = " */
static hola_status is_title(struct hl_span line, bool *title) {
    struct hl_text a = {0}, b = {0};
    hola_status st = hl_text_add(&a, line);
    if (st == HOLA_OK) st = swap_replace(&a, &b, "= = =", "===");
    if (st == HOLA_OK) st = swap_replace(&a, &b, "= =", "==");
    const struct hl_span s = hl_py_strip(hl_span_text(&a));
    *title = s.n >= 2 && memcmp(s.p, "= ", 2) == 0 && memcmp(s.p + s.n - 2, " =", 2) == 0;
    free(a.data);
    free(b.data);
    return st;
}

hola_status hl_wikitext_pages(struct hl_span file, const struct hl_eval_opts *o, struct hl_set *out) {
    hola_status st = HOLA_OK;
    struct hl_span page = {file.p, 0};
    for (int64_t at = 0; st == HOLA_OK && at <= file.n && !hl_set_full(out, o);) {
        const char *end = memchr(file.p + at, '\n', (size_t)(file.n - at));
        const int64_t len = end ? end - file.p - at : file.n - at;
        bool title = false;
        if (memchr(file.p + at, '=', (size_t)len)) st = is_title((struct hl_span){file.p + at, len}, &title);
        if (st != HOLA_OK) break;
        if (title) { /* lines joined: without the newline before this one */
            page.n = file.p + at - page.p - (at > 0 && page.p < file.p + at);
            if (hl_py_strip(page).n > 0) st = add_page(out, page);
            page.p = file.p + at;
        }
        at += len + 1;
    }
    page.n = file.p + file.n - page.p;
    if (st == HOLA_OK && !hl_set_full(out, o) && hl_py_strip(page).n > 0) st = add_page(out, page);
    return st;
}

static bool ends_with(const char *s, const char *end) {
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

hola_status hl_wikitext_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    (void)t;
    if (!ends_with(out->file, ".jsonl")) {
        struct hl_map map;
        hola_status st = hl_map_open(&map, out->file);
        if (st == HOLA_OK) st = hl_wikitext_pages((struct hl_span){map.data, map.size}, o, out);
        hl_map_close(&map);
        return st;
    }
    struct hl_rowfile f;
    hola_status st = hl_rowfile_open(&f, out->file);
    while (st == HOLA_OK && !hl_set_full(out, o)) {
        struct hl_span page;
        st = hl_rowfile_next(&f);
        if (st != HOLA_OK || !f.now) break;
        st = hl_row_text(&f, "page", &page);
        if (st == HOLA_OK) st = add_page(out, page);
    }
    hl_rowfile_close(&f);
    return st;
}

hola_status hl_text_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    struct hl_map map;
    (void)t, (void)o;
    hola_status st = hl_map_open(&map, out->file);
    const struct hl_span text = {map.data, map.size};
    const char *zero = st == HOLA_OK ? memchr(text.p, 0, (size_t)text.n) : NULL;
    if (zero) st = hl_fail(HOLA_EFORMAT, "%s: a zero byte at %lld: not a text", out->file, (long long)(zero - text.p));
    if (st == HOLA_OK) st = add_text(out, text, text);
    hl_map_close(&map);
    return st;
}

/* ---- perplexity ---- */

void hl_perplexity_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out) {
    const size_t bytes = (size_t)(s->docs + 1) * sizeof(double);
    double *nats = malloc(bytes), *bits = malloc(bytes), *w = malloc(bytes), *b = malloc(bytes), *n = malloc(bytes);
    double W = 0, B = 0, N = 0;
    (void)t;
    HL_ASSERT(nats && bits && w && b && n);
    for (int64_t i = 0; i < s->docs; i++) {
        nats[i] = -a[i].loglikelihood, bits[i] = nats[i] / log(2);
        w[i] = (double)s->doc[i].words, b[i] = (double)s->doc[i].bytes, n[i] = (double)a[i].tokens;
        W += w[i], B += b[i], N += n[i];
    }
    hl_metric_ratio(out, "word_perplexity", nats, w, s->docs, true);
    hl_metric_ratio(out, "byte_perplexity", nats, b, s->docs, true);
    hl_metric_ratio(out, "bits_per_byte", bits, b, s->docs, false);
    hl_metric_ratio(out, "token_perplexity", nats, n, s->docs, true);
    hl_metric_put(out, "tokens", N, NAN);
    hl_metric_put(out, "words", W, NAN);
    hl_metric_put(out, "bytes", B, NAN);
    free(nats), free(bits), free(w), free(b), free(n);
}
