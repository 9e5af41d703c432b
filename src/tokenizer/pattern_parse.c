/* pattern_parse.c -- a pattern's text to the program of pattern.h, through a tree. */
#include "tokenizer/bpe.h"
#include "tokenizer/pattern_program.h"
#include "tokenizer/unicode.h"
#include <stdlib.h>

enum { NODES = 1024, DEPTH = 30, MOST = 1000, FOREVER = -1 };
enum kind { EMPTY, SET, LOOK, CAT, ALT, REPEAT };
struct node {
    enum kind kind;
    int a, b;     /* children; SET, LOOK: a is the set */
    int min, max; /* REPEAT */
    bool lazy, at_end;
};

#define WORDS (HL_NO_CHARACTER / 64 + 1)
struct parser {
    struct hl_program *p;
    const char *text, *where;
    int64_t len, at;
    int depth;
    bool any_case;
    struct node node[NODES];
    int nodes;
    uint64_t bits[WORDS]; /* the set being built */
    hola_status status;   /* the first failure; then `at` no longer advances */
};

static int fail(struct parser *q, const char *what) {
    int64_t n = q->len - q->at < 12 ? q->len - q->at : 12;
    while (n > 0 && !hl_is_utf8(q->text + q->at, n)) n--;
    if (q->status == HOLA_OK)
        q->status = hl_fail(HOLA_ENOTSUP, "%s: %s, at character %lld: \"%.*s\"", q->where, what, (long long)q->at + 1,
                            (int)n, q->text + q->at);
    return 0;
}

/* ---- sets ---- */

static void put_range(struct parser *q, uint32_t from, uint32_t to) { /* both included */
    for (uint32_t c = from; c <= to; c++) {
        if (c % 64 == 0 && to - c >= 63) q->bits[c / 64] = UINT64_MAX, c += 63;
        else q->bits[c / 64] |= (uint64_t)1 << (c % 64);
    }
}
static bool has(const struct parser *q, uint32_t c) { return q->bits[c / 64] >> (c % 64) & 1; }

static void complement(struct parser *q) {
    for (int i = 0; i < WORDS; i++) q->bits[i] = ~q->bits[i];
}

/* All characters with a category of the mask or a flag of the class. */
static void put_classes(struct parser *q, uint32_t categories, int flags) {
    for (uint32_t c = 0, end; c < HL_NO_CHARACTER; c = end) {
        int class = hl_class_range(c, &end);
        if ((categories >> (class & HL_CATEGORY) & 1) || (class & flags)) put_range(q, c, end - 1);
    }
}
static void put_spaces(struct parser *q) {
    for (uint32_t c = 0; c <= 0x3000; c++)
        if (hl_is_space(c)) put_range(q, c, c);
}

/* Adds the other case of ASCII letters in the set, and the two non-ASCII characters that fold to ASCII. */
static void fold_case(struct parser *q) {
    for (uint32_t c = 'a'; c <= 'z'; c++)
        if (has(q, c) || has(q, c - 32)) put_range(q, c, c), put_range(q, c - 32, c - 32);
    if (has(q, 's')) put_range(q, 0x17f, 0x17f);
    if (has(q, 'k')) put_range(q, 0x212a, 0x212a);
}

/* The index of the set in q->bits, which is then cleared. */
static int take_set(struct parser *q) {
    struct hl_charset s = {0};
    int room = 0;
    for (uint32_t c = 0; c <= HL_NO_CHARACTER; c++) {
        bool in = has(q, c);
        if (c % 64 == 0 && HL_NO_CHARACTER - c >= 64 && q->bits[c / 64] == (s.n % 2 ? UINT64_MAX : 0)) {
            c += 63;
            continue;
        }
        if (in == (s.n % 2 != 0)) continue;
        if (s.n == room) {
            uint32_t *more = realloc(s.edge, sizeof *more * (size_t)(room = room ? 2 * room : 64));
            if (!more) {
                free(s.edge);
                if (q->status == HOLA_OK) q->status = hl_fail(HOLA_ENOMEM, "%s: no memory for a pattern", q->where);
                return 0;
            }
            s.edge = more;
        }
        s.edge[s.n++] = c;
    }
    memset(q->bits, 0, sizeof q->bits);
    for (int i = 0; i < q->p->sets; i++)
        if (q->p->set[i].n == s.n && (s.n == 0 || !memcmp(q->p->set[i].edge, s.edge, sizeof *s.edge * (size_t)s.n))) {
            free(s.edge);
            return i;
        }
    if (q->p->sets == HL_PATTERN_SETS) {
        free(s.edge);
        return fail(q, "too many classes of characters");
    }
    q->p->set[q->p->sets] = s;
    return q->p->sets++;
}

/* The characters that are not in a set. */
static int opposite(struct parser *q, int set) {
    const struct hl_charset *s = &q->p->set[set];
    for (int i = 0; i < s->n; i += 2) put_range(q, s->edge[i], i + 1 < s->n ? s->edge[i + 1] - 1 : HL_NO_CHARACTER);
    complement(q);
    return take_set(q);
}

/* ---- tree ---- */

static int add(struct parser *q, struct node n) {
    if (q->nodes == NODES) return fail(q, "a pattern that is too long");
    q->node[q->nodes] = n;
    return q->nodes++;
}
static int add_set(struct parser *q) { return add(q, (struct node){.kind = SET, .a = take_set(q)}); }

/* The character at q->at; 0 at the end. */
static int peek(const struct parser *q, int64_t ahead) {
    return q->status == HOLA_OK && q->at + ahead < q->len ? (unsigned char)q->text[q->at + ahead] : 0;
}
static bool skip(struct parser *q, const char *what) {
    int64_t n = (int64_t)strlen(what);
    if (q->status != HOLA_OK || q->len - q->at < n || memcmp(q->text + q->at, what, (size_t)n) != 0) return false;
    q->at += n;
    return true;
}

static uint32_t character(struct parser *q) {
    uint32_t c = 0;
    int n = q->at < q->len ? hl_utf8(q->text + q->at, q->len - q->at, &c) : 0;
    if (n == 0 || c == 0) return (uint32_t)fail(q, "not a character");
    q->at += n;
    return c;
}

static bool is_letter_or_digit(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* \p{Lu}: into the set. */
static void put_property(struct parser *q, bool not ) {
    int64_t begin = q->at + 3, end = begin;
    uint32_t categories = 0;
    while (end < q->len && end - begin < 3 && q->text[end] != '}') end++;
    if (q->any_case) fail(q, "a class of Unicode in any case");
    else if (peek(q, 2) != '{' || end >= q->len || q->text[end] != '}') fail(q, "not a general category");
    else if (!(categories = hl_categories(q->text + begin, end - begin))) fail(q, "not a general category");
    else q->at = end + 1;
    put_classes(q, not ? 0x3fffffff & ~categories : categories, 0);
    if (not ) put_range(q, HL_NO_CHARACTER, HL_NO_CHARACTER);
}

/* Adds a class such as \s to the set and returns true; else false, and *c is the escaped character. */
static bool escape(struct parser *q, uint32_t *c) {
    static const char controls[] = "rnftv", meant[] = "\r\n\f\t\v";
    int what = peek(q, 1);
    const char *control = what ? strchr(controls, what) : NULL;
    *c = 0;
    if (control) *c = (unsigned char)meant[control - controls];
    if (control) return q->at += 2, false;
    if (what == 'p' || what == 'P') return put_property(q, what == 'P'), true;
    if (!is_letter_or_digit(what)) return q->at++, *c = character(q), false;
    if (!strchr("sSdDwW", what)) return fail(q, "not a known escape"), true;
    /* a negated class must not absorb the rest of the set */
    uint64_t *before = malloc(sizeof q->bits);
    if (!before) {
        q->status = hl_fail(HOLA_ENOMEM, "%s: no memory for a pattern", q->where);
        return true;
    }
    memcpy(before, q->bits, sizeof q->bits);
    memset(q->bits, 0, sizeof q->bits);
    if (what == 's' || what == 'S') put_spaces(q);
    else
        put_classes(q, what == 'd' || what == 'D' ? (uint32_t)1 << HL_ND : 0, what == 'w' || what == 'W' ? HL_WORD : 0);
    if (what == 'w' || what == 'W') { /* Oniguruma's: some numbers of Latin-1 too, no join controls */
        static const uint32_t more[] = {0xb2, 0xb3, 0xb9, 0xbc, 0xbd, 0xbe};
        for (int i = 0; i < 6; i++) put_range(q, more[i], more[i]);
        q->bits[0x200c / 64] &= ~((uint64_t)3 << (0x200c % 64));
    }
    if (what < 'a') complement(q);
    for (int i = 0; i < WORDS; i++) q->bits[i] |= before[i];
    free(before);
    q->at += 2;
    return true;
}

/* One character of [...], or a class into the set (then false). */
static bool member(struct parser *q, uint32_t *c) {
    int next = peek(q, 0);
    if (next == '\\') return !escape(q, c);
    if (next == 0 || (next == '[' && (peek(q, 1) == '^' || peek(q, 1) == ':')) || (next == '&' && peek(q, 1) == '&'))
        return fail(q, "not known inside [...]"), false;
    if (next == '[') return q->at++, q->depth++, false; /* its members belong to the outer set */
    *c = character(q);
    return true;
}

static int bracket(struct parser *q) {
    bool not = skip(q, "[^") || (q->at++, false);
    if (peek(q, 0) == ']') return fail(q, "an empty [...]");
    for (const int depth = q->depth; q->status == HOLA_OK;) {
        uint32_t from, to;
        if (skip(q, "]")) {
            if (q->depth == depth) break;
            q->depth--;
            continue;
        }
        if (!member(q, &from)) continue;
        to = from;
        if (peek(q, 0) == '-' && peek(q, 1) != ']') {
            q->at++;
            if (peek(q, 0) == '-' || !member(q, &to) || to < from) return fail(q, "not a range");
        }
        if (q->any_case && to > 127) return fail(q, "beyond ASCII in any case");
        if (q->status == HOLA_OK) put_range(q, from, to);
    }
    if (q->any_case) fold_case(q);
    if (not ) complement(q);
    return add_set(q);
}

static int alternatives(struct parser *q);

static int group(struct parser *q) {
    bool before = q->any_case, look = false, not = false;
    int inner;
    if (skip(q, "(?i:")) q->any_case = true;
    else if (skip(q, "(?=")) look = true;
    else if (skip(q, "(?!")) look = not = true;
    else if (!skip(q, "(?:") && (peek(q, 1) == '?' || !skip(q, "("))) return fail(q, "not a known group");
    if (++q->depth > DEPTH) return fail(q, "too many groups inside each other");
    inner = alternatives(q);
    q->depth--;
    q->any_case = before;
    if (!skip(q, ")")) return fail(q, "a group without end");
    if (!look || q->status != HOLA_OK) return inner;
    if (q->node[inner].kind != SET) return fail(q, "looking ahead by more than one character");
    int set = q->node[inner].a;
    return add(q, (struct node){.kind = LOOK, .a = not ? opposite(q, set) : set, .at_end = not });
}

/* Some adjacent letters fold to the same as one ligature: ss and U+00DF. */
static bool is_ligature(int a, int b) {
    static const char pairs[][3] = {"ss", "ff", "fi", "fl", "st"};
    for (int i = 0; i < 5; i++)
        if ((a | 32) == pairs[i][0] && (b | 32) == pairs[i][1]) return true;
    return false;
}

static int atom(struct parser *q) {
    int next = peek(q, 0);
    uint32_t c = 0;
    if (next == '(') return group(q);
    if (next == '[') return bracket(q);
    if (next == '.') {
        q->at++;
        put_range(q, '\n', '\n'), complement(q);
        return add_set(q);
    }
    if (next == '$') {
        q->at++;
        put_range(q, '\n', '\n');
        return add(q, (struct node){.kind = LOOK, .a = take_set(q), .at_end = true});
    }
    if (strchr("^*+?{}", next)) return fail(q, "not known in a pattern");
    if (next == '\\') {
        if (escape(q, &c)) return add_set(q);
    } else c = character(q);
    if (q->any_case && (c > 127 || is_ligature((int)c, peek(q, 0)))) return fail(q, "these letters in any case");
    put_range(q, c, c);
    if (q->any_case) fold_case(q);
    return add_set(q);
}

static bool nullable(const struct parser *q, int i) {
    const struct node *n = &q->node[i];
    switch (n->kind) {
    case SET: return false;
    case CAT: return nullable(q, n->a) && nullable(q, n->b);
    case ALT: return nullable(q, n->a) || nullable(q, n->b);
    case REPEAT: return n->min == 0 || nullable(q, n->a);
    default: return true;
    }
}

static int number(struct parser *q) {
    int n = 0;
    if (peek(q, 0) < '0' || peek(q, 0) > '9') return fail(q, "not a number of times");
    for (; peek(q, 0) >= '0' && peek(q, 0) <= '9'; q->at++)
        if ((n = 10 * n + peek(q, 0) - '0') > MOST) return fail(q, "too many times");
    return n;
}

/* x?+ and the like, x one character: as often as possible and never less, so no x may follow. */
static int possessive(struct parser *q, int x, int repeat) {
    int look = add(q, (struct node){.kind = LOOK, .a = opposite(q, q->node[x].a), .at_end = true});
    if (q->status != HOLA_OK) return 0;
    if (q->node[repeat].max == 1) return add(q, (struct node){.kind = ALT, .a = x, .b = look});
    return add(q, (struct node){.kind = CAT, .a = repeat, .b = look});
}

static int quantified(struct parser *q) {
    int x = atom(q), times = 0;
    for (; q->status == HOLA_OK && peek(q, 0) && strchr("?*+{", peek(q, 0)); times++) {
        struct node r = {.kind = REPEAT, .a = x, .min = 0, .max = FOREVER};
        bool interval = peek(q, 0) == '{';
        if (nullable(q, x) || times > 1) return fail(q, "repeats what may be empty");
        if (skip(q, "?")) r.max = 1;
        else if (skip(q, "+")) r.min = 1;
        else if (!skip(q, "*")) {
            q->at++;
            r.min = r.max = number(q);
            if (skip(q, ",")) r.max = peek(q, 0) == '}' ? FOREVER : number(q);
            if (!skip(q, "}") || r.max == 0 || (r.max > 0 && r.max < r.min)) return fail(q, "not a number of times");
        }
        r.lazy = !interval && skip(q, "?");
        int repeat = add(q, r);
        if (interval || r.lazy || !skip(q, "+")) {
            if (!interval && peek(q, 0) && strchr("?*+{", peek(q, 0))) return fail(q, "repeats a repetition");
            if (interval && peek(q, 0) == '?') return fail(q, "repeats a repetition");
            x = repeat;
            continue;
        }
        if (q->node[x].kind != SET) return fail(q, "a possessive quantifier on more than one character");
        x = possessive(q, x, repeat);
    }
    return x;
}

static int concatenation(struct parser *q) {
    int all = -1;
    while (q->status == HOLA_OK && q->at < q->len && peek(q, 0) != '|' && peek(q, 0) != ')') {
        int one = quantified(q);
        all = all < 0 ? one : add(q, (struct node){.kind = CAT, .a = all, .b = one});
    }
    return all < 0 ? add(q, (struct node){.kind = EMPTY}) : all;
}

static int alternatives(struct parser *q) {
    int all = concatenation(q);
    while (skip(q, "|")) {
        int one = concatenation(q);
        all = add(q, (struct node){.kind = ALT, .a = all, .b = one});
    }
    return all;
}

/* ---- program ---- */

static int emit(struct parser *q, struct hl_thread_op op) {
    if (q->p->ops == HL_PATTERN_OPS) return fail(q, "a pattern that is too long");
    q->p->op[q->p->ops] = op;
    return q->p->ops++;
}
static int16_t here(const struct parser *q) { return (int16_t)q->p->ops; }

static void emit_node(struct parser *q, int i);

/* x or nothing, in order of preference. Returns the op whose jump past x must be set. */
static int emit_optional(struct parser *q, bool lazy) {
    int split = emit(q, (struct hl_thread_op){.op = HL_OP_SPLIT});
    if (lazy) q->p->op[split].y = here(q);
    else q->p->op[split].x = here(q);
    return split;
}
static void set_way_past(struct parser *q, int split, bool lazy) {
    if (lazy) q->p->op[split].x = here(q);
    else q->p->op[split].y = here(q);
}

static void emit_repeat(struct parser *q, const struct node *n) {
    int split[MOST];
    for (int k = 0; k < n->min && q->status == HOLA_OK; k++) emit_node(q, n->a);
    if (n->max == FOREVER) {
        int16_t begin = here(q);
        split[0] = emit_optional(q, n->lazy);
        emit_node(q, n->a);
        emit(q, (struct hl_thread_op){.op = HL_OP_JUMP, .x = begin});
        set_way_past(q, split[0], n->lazy);
        return;
    }
    for (int k = n->min; k < n->max && q->status == HOLA_OK; k++) {
        split[k - n->min] = emit_optional(q, n->lazy);
        emit_node(q, n->a);
    }
    for (int k = n->min; k < n->max && q->status == HOLA_OK; k++) set_way_past(q, split[k - n->min], n->lazy);
}

static void emit_node(struct parser *q, int i) {
    const struct node *n = &q->node[i];
    if (q->status != HOLA_OK) return;
    if (n->kind == SET) emit(q, (struct hl_thread_op){.op = HL_OP_SET, .x = (int16_t)n->a});
    else if (n->kind == LOOK) emit(q, (struct hl_thread_op){.op = HL_OP_LOOK, .x = (int16_t)n->a, .at_end = n->at_end});
    else if (n->kind == REPEAT) emit_repeat(q, n);
    else if (n->kind == CAT) emit_node(q, n->a), emit_node(q, n->b);
    else if (n->kind == ALT) {
        int split = emit_optional(q, false), jump;
        emit_node(q, n->a);
        jump = emit(q, (struct hl_thread_op){.op = HL_OP_JUMP});
        set_way_past(q, split, false);
        emit_node(q, n->b);
        q->p->op[jump].x = here(q);
    }
}

/* The kinds without a pattern text. */
static int built_in(struct parser *q, enum hl_pattern_kind kind) {
    if (kind == HL_PATTERN_PUNCTUATION) {
        put_classes(q, 0, HL_PUNCTUATION);
        return add_set(q);
    }
    put_classes(q, 0, HL_WORD);
    int word = add(q, (struct node){.kind = REPEAT, .a = add_set(q), .min = 1, .max = FOREVER});
    put_classes(q, 0, HL_WORD), put_spaces(q), complement(q);
    int other = add(q, (struct node){.kind = REPEAT, .a = add_set(q), .min = 1, .max = FOREVER});
    return add(q, (struct node){.kind = ALT, .a = word, .b = other});
}

static int string(struct parser *q) {
    int all = -1;
    while (q->at < q->len && q->status == HOLA_OK) {
        uint32_t c = character(q);
        put_range(q, c, c);
        int one = add_set(q);
        all = all < 0 ? one : add(q, (struct node){.kind = CAT, .a = all, .b = one});
    }
    return all < 0 ? add(q, (struct node){.kind = EMPTY}) : all;
}

hola_status hl_program_parse(struct hl_program *p, enum hl_pattern_kind kind, const char *text, int64_t len,
                             const char *where) {
    struct parser *q = calloc(1, sizeof *q);
    int top;
    if (!q) return hl_fail(HOLA_ENOMEM, "%s: no memory for a pattern", where);
    q->p = p, q->where = where, q->text = text, q->len = len;
    top = kind == HL_PATTERN_REGEX ? alternatives(q) : kind == HL_PATTERN_STRING ? string(q) : built_in(q, kind);
    if (q->at < q->len) fail(q, "not known in a pattern");
    if (q->status == HOLA_OK) emit_node(q, top);
    if (q->status == HOLA_OK) emit(q, (struct hl_thread_op){.op = HL_OP_MATCH});
    hola_status s = q->status;
    free(q);
    return s;
}
