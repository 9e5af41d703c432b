/* ruler_punkt.c -- sentence boundaries: Punkt (Kiss and Strunk 2006) as in NLTK 3.9, with NLTK's parameters. Every . ?
 * and ! followed by white space or closing punctuation is a candidate; the word before it and the word after it decide.
 *
 * Files of nltk_data/tokenizers/punkt_tab/english: abbrev_types.txt, sent_starters.txt (a word per line),
 * collocations.tab (two words), ortho_context.tab (a word and a sum of the ORTHO bits below). */
#include "eval/ruler_internal.h"
#include "core/file.h"
#include "tokenizer/bpe.h"
#include "tokenizer/unicode.h"
#include <stdlib.h>
#include <string.h>

enum { ABBREVIATIONS, STARTERS, COLLOCATIONS, ORTHO, FILES };
enum { BEG_UC = 2, MID_UC = 4, UNK_UC = 8, BEG_LC = 16, MID_LC = 32, UNK_LC = 64 };
enum { ANY_UC = BEG_UC | MID_UC | UNK_UC, ANY_LC = BEG_LC | MID_LC | UNK_LC };

struct hl_punkt {
    struct hl_map file[FILES];
    struct hl_spans list[FILES]; /* a collocation is stored as its line, with the tab */
};

static hola_status read_lines(struct hl_punkt *p, int i, const char *dir, const char *name) {
    char full[128] = "nltk_data/tokenizers/punkt_tab/english/", *path;
    strcat(full, name);
    hola_status s = hl_ruler_file(dir, full, "NLTK's punkt_tab (nltk.download('punkt_tab')) for essays", &path);
    if (s == HOLA_OK) s = hl_map_open(&p->file[i], path);
    const char *c = p->file[i].data, *end = c ? c + p->file[i].size : c;
    for (const char *q; s == HOLA_OK && c < end; c = q + 1) {
        const char *tab;
        q = memchr(c, '\n', (size_t)(end - c));
        if (!q) q = end;
        tab = i == ORTHO ? memchr(c, '\t', (size_t)(q - c)) : NULL;
        if (i == ORTHO && !tab) s = hl_fail(HOLA_EFORMAT, "%s: a line without a tab", path);
        else s = hl_spans_add(&p->list[i], c, (tab ? tab : q) - c, tab ? atoi(tab + 1) : 0);
    }
    hl_spans_sort(&p->list[i], false);
    free(path);
    return s;
}

hola_status hl_punkt_new(struct hl_punkt **out, const char *dir) {
    static const char *const name[FILES] = {"abbrev_types.txt", "sent_starters.txt", "collocations.tab",
                                            "ortho_context.tab"};
    hola_status s = HOLA_OK;
    struct hl_punkt *p = *out = calloc(1, sizeof *p);
    if (!p) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    for (int i = 0; i < FILES && s == HOLA_OK; i++) s = read_lines(p, i, dir, name[i]);
    return s;
}

void hl_punkt_free(struct hl_punkt *p) {
    for (int i = 0; p && i < FILES; i++) {
        hl_map_close(&p->file[i]);
        free(p->list[i].at);
    }
    free(p);
}

/* ---- words ---- */

static bool one_of(char c, const char *set) { return c && strchr(set, c); }
static bool non_word(const char *t, const char *end) { return t < end && one_of(*t, ")\";}]*:@'({[?!"); }

/* Bytes of a run of - or . or of ". . ." at t; 0: none. */
static int64_t multi_char(const char *t, const char *end) {
    int64_t n = 0;
    while (t + n < end && t[n] == '-') n++;
    if (n >= 2) return n;
    for (n = 0; t + n < end && t[n] == '.';) n++;
    if (n >= 2) return n;
    for (n = 0; t + n + 1 < end && t[n] == '.' && t[n + 1] == ' ';) n += 2;
    if (n >= 6 || (n == 4 && t + n < end && t[n] == '.')) {
        if (t + n < end && t[n] == '.') return n + 1;
        return n >= 6 ? n - 1 : 0; /* the last one needs no space after it */
    }
    return 0;
}

static bool word_ends(const char *t, const char *end) {
    if (t >= end || *t == ' ' || non_word(t, end) || multi_char(t, end)) return true;
    return *t == ',' && (t + 1 >= end || t[1] == ' ' || non_word(t + 1, end) || multi_char(t + 1, end));
}

static int64_t next_word(const char *t, const char *end) {
    int64_t n = multi_char(t, end);
    uint32_t c;
    if (n > 0) return n;
    n = hl_utf8(t, end - t, &c);
    n = n ? n : 1;
    if (one_of(*t, "(\"`{[:;&#*@)}]-,")) return n;
    while (!word_ends(t + n, end)) {
        int k = hl_utf8(t + n, end - t - n, &c);
        n += k ? k : 1;
    }
    return n;
}

struct word {
    const char *text;
    int64_t n;
    char type[128]; /* in lower case; a number is ##number## */
    int64_t type_n;
    bool period, ends, abbreviation, ellipsis;
};

/* -?[.,]?\d[\d,.-]*\.? */
static bool is_number(const char *t, int64_t n) {
    int64_t i = n > 0 && t[0] == '-';
    if (i < n && one_of(t[i], ".,")) i++;
    if (i >= n || t[i] < '0' || t[i] > '9') return false;
    while (i < n && ((t[i] >= '0' && t[i] <= '9') || one_of(t[i], ",.-"))) i++;
    return i == n;
}

static hola_status word_type(struct word *w) {
    struct hl_text low = {.data = NULL};
    if (is_number(w->text, w->n)) hl_text_puts(&low, "##number##");
    else hl_py_lower(&low, (struct hl_span){w->text, w->n});
    if (low.failed) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    /* longer than any list entry */
    w->type_n = low.n < (int64_t)sizeof w->type ? low.n : (int64_t)sizeof w->type - 1;
    memcpy(w->type, low.data, (size_t)w->type_n);
    hl_text_free(&low);
    return HOLA_OK;
}

static bool listed(const struct hl_punkt *p, int list, const char *t, int64_t n) {
    return hl_spans_find(&p->list[list], t, n) != NULL;
}

/* Decides by the word alone. */
static hola_status first_pass(const struct hl_punkt *p, const char *t, int64_t n, struct word *w) {
    int64_t dots = 0;
    *w = (struct word){.text = t, .n = n, .period = t[n - 1] == '.'};
    hola_status s = word_type(w);
    while (dots < n && t[n - 1 - dots] == '.') dots++;
    if (n == 1 && one_of(*t, ".?!")) w->ends = true;
    else if (dots == n && n > 1) w->ellipsis = true;
    else if (dots == 1) {
        int64_t m = w->type_n - 1, dash = m;
        /* (a number in lower case is itself, and no abbreviation) */
        while (dash > 0 && w->type[dash - 1] != '-') dash--;
        bool known = !is_number(t, n) &&
                     (listed(p, ABBREVIATIONS, w->type, m) || listed(p, ABBREVIATIONS, w->type + dash, m - dash));
        w->abbreviation = known;
        w->ends = !known;
    }
    return s;
}

static uint32_t first_char(const struct word *w) {
    uint32_t c;
    return hl_utf8(w->text, w->n, &c) ? c : 0;
}
static bool first_upper(const struct word *w) { return hl_py_lower_char(first_char(w)) != first_char(w); }
static bool first_lower(const struct word *w) {
    uint32_t c = first_char(w);
    return c < 128 ? c >= 'a' && c <= 'z' : hl_is_letter(c) && c < 0x530 && !first_upper(w);
}
static bool initial(const struct word *w) {
    uint32_t c;
    int k = hl_utf8(w->text, w->n, &c);
    return k && w->n == k + 1 && w->period && hl_is_word(c) && !(c >= '0' && c <= '9');
}
static int64_t without_period(const struct word *w) {
    return w->type_n > 1 && w->type[w->type_n - 1] == '.' ? w->type_n - 1 : w->type_n;
}

enum starter { NO, YES, UNKNOWN };
static int ortho(const struct hl_punkt *p, const struct word *w) {
    const struct hl_ruler_span *f = hl_spans_find(&p->list[ORTHO], w->type, w->ends ? without_period(w) : w->type_n);
    return f ? f->value : 0;
}
static enum starter starts(const struct hl_punkt *p, const struct word *w) {
    int bits = ortho(p, w);
    if (w->n == 1 && one_of(*w->text, ";:,.!?")) return NO;
    if (first_upper(w) && (bits & ANY_LC) && !(bits & MID_UC)) return YES;
    if (first_lower(w) && ((bits & ANY_UC) || !(bits & BEG_LC))) return NO;
    return UNKNOWN;
}

/* Decides again by the word that follows. */
static void second_pass(const struct hl_punkt *p, struct word *w, const struct word *next) {
    char both[2 * sizeof w->type + 1];
    const int64_t m = without_period(w), k = next->ends ? without_period(next) : next->type_n;
    const bool single = initial(w);
    if (!w->period) return;
    memcpy(both, w->type, (size_t)m);
    both[m] = '\t';
    memcpy(both + m + 1, next->type, (size_t)k);
    if (listed(p, COLLOCATIONS, both, m + 1 + k)) {
        w->ends = false, w->abbreviation = true;
        return;
    }
    const enum starter s = starts(p, next);
    if ((w->abbreviation || w->ellipsis) && !single)
        if (s == YES || (first_upper(next) && listed(p, STARTERS, next->type, k))) {
            w->ends = true;
            return;
        }
    if (!single && !(m == 10 && memcmp(w->type, "##number##", 10) == 0)) return;
    if (s == NO || (s == UNKNOWN && single && first_upper(next) && !(ortho(p, next) & ANY_LC)))
        w->ends = false, w->abbreviation = true;
}

/* Does a sentence end before the last word of text? */
static hola_status has_break(const struct hl_punkt *p, const char *t, const char *end, bool *yes) {
    struct word w[2];
    int n = 0;
    hola_status s = HOLA_OK;
    *yes = false;
    while (s == HOLA_OK && t < end && !*yes) {
        if (*t == ' ') {
            t++;
            continue;
        }
        int64_t k = next_word(t, end);
        s = first_pass(p, t, k, &w[n ? 1 : 0]);
        if (n++ && s == HOLA_OK) {
            second_pass(p, &w[0], &w[1]);
            *yes = w[0].ends;
            w[0] = w[1];
        }
        t += k;
    }
    return s;
}

/* ---- sentences ---- */

/* What follows a candidate at t: up to where, and where the next sentence would begin; 0: no candidate. */
static int64_t after(const char *t, const char *end, const char **next) {
    const char *q = t + 1;
    *next = q;
    if (non_word(q, end)) return 1;
    while (q < end && *q == ' ') q++;
    if (q == t + 1 || q == end) return 0;
    *next = q;
    while (q < end && *q != ' ') q++;
    return q - (t + 1);
}

/* Closing quotes and brackets at t that end the sentence before: their bytes, and with the spaces behind. */
static int64_t closing(const char *t, const char *end, int64_t *with_spaces) {
    int64_t n = 0;
    while (t + n < end && one_of(t[n], "\"')]}")) {
        n++;
        if (t + n == end || t[n] == ' ' || (end - t - n >= 2 && t[n] == '-' && t[n + 1] == '-')) {
            *with_spaces = n;
            while (t + *with_spaces < end && t[*with_spaces] == ' ') ++*with_spaces;
            return n;
        }
    }
    return 0;
}

static void realign(struct hl_spans *v) {
    int64_t n = 0, skip = 0;
    for (int64_t i = 0; i < v->n; i++) {
        struct hl_ruler_span a = v->at[i];
        a.text += skip, a.n -= skip;
        skip = 0;
        if (i + 1 < v->n) {
            const struct hl_ruler_span *b = &v->at[i + 1];
            int64_t m = closing(b->text, b->text + b->n, &skip);
            if (m) a.n = b->text + m - a.text;
        }
        if (a.n > 0) v->at[n++] = a;
    }
    v->n = n;
}

struct candidate {
    const char *word, *mark, *next;
    int64_t behind;
};

static hola_status consider(const struct hl_punkt *p, const struct candidate *c, const char **last,
                            struct hl_spans *out) {
    bool yes;
    hola_status s = has_break(p, c->word, c->mark + 1 + c->behind, &yes);
    if (s != HOLA_OK || !yes) return s;
    s = hl_spans_add(out, *last, c->mark + 1 - *last, 0);
    *last = c->next;
    return s;
}

hola_status hl_punkt_split(const struct hl_punkt *p, const char *text, int64_t n, struct hl_spans *out) {
    const char *end = text + n, *last = text;
    struct candidate old = {text, text, text, 0}; /* word to mark: the word before the candidate before */
    bool any = false;
    hola_status s = HOLA_OK;
    out->n = 0;
    for (const char *t = text; t < end && s == HOLA_OK; t++) {
        struct candidate c = {.mark = t};
        if (!one_of(*t, ".?!") || !(c.behind = after(t, end, &c.next))) continue;
        const char *space = t - 1;
        while (space > old.mark && *space != ' ') space--;
        c.word = space > old.mark ? space + 1 : old.word;
        if (any && old.mark <= c.word) s = consider(p, &old, &last, out);
        old = c;
        any = true;
    }
    if (any && s == HOLA_OK) s = consider(p, &old, &last, out);
    if (s == HOLA_OK) s = hl_spans_add(out, last, end - last, 0);
    if (s == HOLA_OK) realign(out);
    return s;
}
