/* normalise.c -- the steps of a normalizer. See normalise.h. */
#include "tokenizer/normalise.h"
#include "tokenizer/unicode.h"
#include <stdlib.h>

hola_status hl_normaliser_finish(struct hl_normaliser *n) {
    bool needed = false;
    for (int i = 0; i < n->n; i++) needed = needed || n->step[i].kind <= HL_LOWERCASE;
    return needed && !n->forms ? hl_forms_new(&n->forms) : HOLA_OK;
}

void hl_normaliser_free(struct hl_normaliser *n) {
    for (int i = 0; i < n->n; i++) {
        hl_cuts_free(n->step[i].what);
        free(n->step[i].text);
    }
    hl_forms_free(n->forms);
    *n = (struct hl_normaliser){0};
}

static hola_status put_char(struct hl_text *out, uint32_t c) {
    char b[4];
    if (c < 0x80) return b[0] = (char)c, hl_text_put(out, b, 1);
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) b[i] = (char)(0x80 | (c & 0x3f));
    b[0] = (char)((0xf00 >> n & 0xff) | c);
    return hl_text_put(out, b, n);
}

/* ---- NFC and its kin ---- */

struct run { /* characters that may interact */
    struct sign {
        uint32_t c;
        int combining;
    } * sign;
    int64_t n, room;
};

static hola_status put_parts(const struct hl_forms *f, struct run *r, uint32_t c, bool compatible) {
    uint32_t part[HL_MOST_PARTS];
    int n = hl_decompose(f, c, compatible, part);
    hola_status s = HOLA_OK;
    for (int i = 0; i < n && s == HOLA_OK; i++) s = put_parts(f, r, part[i], compatible);
    if (n > 0) return s;
    if (r->n == r->room) {
        int64_t room = r->room ? 2 * r->room : 64;
        struct sign *more = realloc(r->sign, (size_t)room * sizeof *more);
        if (!more) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld characters", (long long)room);
        r->sign = more, r->room = room;
    }
    r->sign[r->n++] = (struct sign){c, hl_combining(c)};
    return HOLA_OK;
}

/* Sorts marks by class, stably. A bottom-up merge sort, since a text may consist of marks only. */
static hola_status order(struct run *r) {
    struct sign *other = NULL;
    for (int64_t from = 0, end; from < r->n; from = end) {
        bool sorted = true;
        for (end = from + 1; end < r->n && r->sign[from].combining > 0 && r->sign[end].combining > 0; end++)
            sorted = sorted && r->sign[end - 1].combining <= r->sign[end].combining;
        int64_t n = end - from;
        if (sorted) continue;
        if (!other && !(other = malloc((size_t)r->n * sizeof *other)))
            return hl_fail(HOLA_ENOMEM, "tokenizer: %lld characters", (long long)r->n);
        for (int64_t width = 1; width < n; width *= 2) {
            struct sign *x = r->sign + from;
            for (int64_t lo = 0; lo < n; lo += 2 * width) {
                int64_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
                for (int64_t a = lo, b = mid, k = lo; k < hi; k++)
                    other[k] = b == hi || (a < mid && x[a].combining <= x[b].combining) ? x[a++] : x[b++];
            }
            memcpy(x, other, (size_t)n * sizeof *x);
        }
    }
    free(other);
    return HOLA_OK;
}

static void compose(const struct hl_forms *f, struct run *r) {
    int64_t n = 0, starter = -1;
    for (int64_t i = 0; i < r->n; i++) {
        struct sign x = r->sign[i];
        bool reaches = starter >= 0 && (n - 1 == starter || r->sign[n - 1].combining < x.combining);
        uint32_t both = reaches ? hl_compose(f, r->sign[starter].c, x.c) : 0;
        if (both) {
            r->sign[starter].c = both;
            continue;
        }
        if (x.combining == 0) starter = n;
        r->sign[n++] = x;
    }
    r->n = n;
}

static hola_status put_run(const struct hl_forms *f, struct run *r, bool composes, struct hl_text *out) {
    hola_status s = order(r);
    if (composes && s == HOLA_OK) compose(f, r);
    for (int64_t i = 0; i < r->n && s == HOLA_OK; i++) s = put_char(out, r->sign[i].c);
    r->n = 0;
    return s;
}

/* Characters below this one are unchanged and do not compose with preceding ones. */
static uint32_t first_that_matters(enum hl_step_kind kind) {
    return kind == HL_NFC ? 0x300 : kind == HL_NFD ? 0xc0 : 0xa0;
}

static hola_status put_form(const struct hl_forms *f, enum hl_step_kind kind, const char *text, int64_t len,
                            struct hl_text *out) {
    bool compatible = kind == HL_NFKC || kind == HL_NFKD, composes = kind == HL_NFC || kind == HL_NFKC;
    uint32_t c, least = first_that_matters(kind);
    struct run r = {0};
    hola_status s = hl_text_room(out, len);
    for (int64_t i = 0, end; i < len && s == HOLA_OK; i = end) {
        int n = hl_utf8(text + i, len - i, &c);
        end = i + (n ? n : 1);
        if (n > 0 && c >= least) {
            s = put_parts(f, &r, c, compatible);
            continue;
        }
        s = put_run(f, &r, composes, out);
        if (n == 1) { /* in a run of ASCII only the last can compose with what follows */
            while (end < len && (unsigned char)text[end] < 0x80) end++;
            if (s == HOLA_OK) s = hl_text_put(out, text + i, end - 1 - i);
            c = (unsigned char)text[end - 1];
        }
        if (s == HOLA_OK) s = n ? put_parts(f, &r, c, false) : hl_text_put(out, text + i, 1);
    }
    if (s == HOLA_OK) s = put_run(f, &r, composes, out);
    free(r.sign);
    return s;
}

/* A quick check whether a form leaves the text unchanged. */
static bool is_plain(enum hl_step_kind kind, const char *text, int64_t len) {
    uint32_t c, least = first_that_matters(kind);
    for (int64_t i = 0; i < len;) {
        if ((unsigned char)text[i] < 0x80) {
            i++;
            continue;
        }
        int n = hl_utf8(text + i, len - i, &c);
        if (n > 0 && c >= least) return false;
        i += n ? n : 1;
    }
    return true;
}

/* ---- the other steps ---- */

static hola_status put_lower(const struct hl_forms *f, const char *text, int64_t len, struct hl_text *out) {
    hola_status s = hl_text_room(out, len);
    uint32_t c;
    for (int64_t i = 0, n; i < len && s == HOLA_OK; i += n ? n : 1) {
        n = hl_utf8(text + i, len - i, &c);
        if (n == 0) s = hl_text_put(out, text + i, 1);
        else if (c == 0x130) s = hl_text_puts(out, "i\xcc\x87"); /* the one that maps to two */
        else s = put_char(out, hl_lower(f, c));
    }
    return s;
}

static hola_status strip_accents(const char *text, int64_t len, struct hl_text *out) {
    hola_status s = hl_text_room(out, len);
    uint32_t c;
    for (int64_t i = 0, n; i < len && s == HOLA_OK; i += n ? n : 1) {
        n = hl_utf8(text + i, len - i, &c);
        if (n == 0 || c < 0x300 || !(hl_class(c) & HL_MARK)) s = hl_text_put(out, text + i, n ? n : 1);
    }
    return s;
}

static hola_status strip(const struct hl_step *p, bool continuing, const char *text, int64_t len, struct hl_text *out) {
    uint32_t c;
    int64_t from = 0;
    for (int n; p->left && !continuing && from < len; from += n)
        if (!(n = hl_utf8(text + from, len - from, &c)) || !hl_is_space(c)) break;
    while (p->right && len > from) {
        int64_t begin = len - 1;
        while (begin > from && len - begin < 4 && ((unsigned char)text[begin] & 0xc0) == 0x80) begin--;
        if (hl_utf8(text + begin, len - begin, &c) != len - begin || !hl_is_space(c)) break;
        len = begin;
    }
    return hl_text_put(out, text + from, len - from);
}

static hola_status replace(const struct hl_step *p, const char *text, int64_t len, struct hl_text *out) {
    struct hl_cutter cutter;
    struct hl_piece piece;
    hola_status s = hl_text_room(out, len);
    hl_cutter_begin(&cutter, p->what, text, len);
    while (s == HOLA_OK && hl_cutter_next(&cutter, &piece))
        s = piece.match ? hl_text_put(out, p->text, p->len)
                        : hl_text_put(out, text + piece.begin, piece.end - piece.begin);
    hl_cutter_end(&cutter);
    return s;
}

static hola_status run_step(const struct hl_normaliser *n, const struct hl_step *p, bool continuing, const char *text,
                            int64_t len, struct hl_text *out) {
    switch (p->kind) {
    case HL_LOWERCASE: return put_lower(n->forms, text, len, out);
    case HL_STRIP_ACCENTS: return strip_accents(text, len, out);
    case HL_STRIP: return strip(p, continuing, text, len, out);
    case HL_REPLACE: return replace(p, text, len, out);
    case HL_PREPEND:
        if (len > 0 && !continuing) hl_text_put(out, p->text, p->len);
        return hl_text_put(out, text, len);
    default: return put_form(n->forms, p->kind, text, len, out);
    }
}

hola_status hl_normalise(const struct hl_normaliser *n, bool continuing, const char *text, int64_t len,
                         struct hl_text *out, bool *changed) {
    hola_status s = HOLA_OK;
    *changed = false;
    for (int i = 0; i < n->n && s == HOLA_OK; i++) {
        struct hl_text next = {0};
        if (n->step[i].kind < HL_LOWERCASE && is_plain(n->step[i].kind, text, len)) continue;
        s = run_step(n, &n->step[i], continuing, text, len, &next);
        hl_text_free(out);
        *out = next, *changed = true;
        text = out->data, len = out->n;
    }
    return s;
}
