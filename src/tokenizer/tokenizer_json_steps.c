/* tokenizer_json_steps.c -- the "normalizer" and the "pre_tokenizer" of a tokenizer.json. */
#include "tokenizer/tokenizer_json.h"
#include <stdio.h>
#include <stdlib.h>

/* Calls one(t, member, path) on the members of a Sequence, also of one inside another, or on the object itself. */
static hola_status each(hola_tokenizer *t, const json_t *object, const char *list, const char *path, int depth,
                        hola_status (*one)(hola_tokenizer *, const json_t *, const char *)) {
    hola_status s = HOLA_OK;
    if (!object || json_is_null(object)) return HOLA_OK;
    if (strcmp(hl_json_type(object), "Sequence") != 0) return one(t, object, path);
    const json_t *members = json_object_get(object, list);
    if (!json_is_array(members)) return hl_json_bad(path, list, "not an array");
    if (depth > 8) return hl_json_refuse(path, list, "too many inside each other");
    for (size_t i = 0; i < json_array_size(members) && s == HOLA_OK; i++)
        s = each(t, json_array_get(members, i), list, path, depth + 1, one);
    return s;
}

/* One more level of cuts, its pattern made of {"Regex": text} or {"String": text}. NULL: no pattern is needed. */
static hola_status add_level(struct hl_cuts **cuts, const json_t *pattern, enum hl_pattern_kind kind, const char *text,
                             struct hl_level level, bool bytes, const char *field, const char *path) {
    char where[1024];
    hola_status s;
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    if (!*cuts && !(*cuts = calloc(1, sizeof **cuts))) return hl_fail(HOLA_ENOMEM, "%s: %s", path, field);
    if ((*cuts)->n == HL_LEVELS) return hl_json_refuse(path, field, "too many that cut words");
    snprintf(where, sizeof where, "%.900s: %s", path, field);
    if (pattern && !json_is_string(regex) && !json_is_string(string))
        return hl_json_bad(path, field, "neither Regex nor String");
    if (pattern) text = json_string_value(regex ? regex : string), kind = regex ? HL_PATTERN_REGEX : HL_PATTERN_STRING;
    s = hl_pattern_new(&level.pattern, kind, text, text ? (int64_t)strlen(text) : 0, bytes, where);
    if (s == HOLA_OK) (*cuts)->level[(*cuts)->n++] = level;
    return s;
}

/* ---- normalizer ---- */

static hola_status copy_text(struct hl_step *p, const json_t *text, const char *field, const char *path) {
    if (!json_is_string(text)) return hl_json_bad(path, field, "not a text");
    p->len = (int64_t)json_string_length(text);
    p->text = malloc((size_t)p->len + 1);
    if (!p->text) return hl_fail(HOLA_ENOMEM, "%s: %s", path, field);
    memcpy(p->text, json_string_value(text), (size_t)p->len + 1);
    return HOLA_OK;
}

static hola_status read_normalizer(hola_tokenizer *t, const json_t *n, const char *path) {
    static const struct {
        const char *type;
        enum hl_step_kind kind;
    } known[] = {{"NFC", HL_NFC},         {"NFD", HL_NFD},
                 {"NFKC", HL_NFKC},       {"NFKD", HL_NFKD},
                 {"Strip", HL_STRIP},     {"Lowercase", HL_LOWERCASE},
                 {"Prepend", HL_PREPEND}, {"StripAccents", HL_STRIP_ACCENTS},
                 {"Replace", HL_REPLACE}};
    const char *type = hl_json_type(n);
    size_t i = 0;
    while (i < sizeof known / sizeof known[0] && strcmp(type, known[i].type) != 0) i++;
    if (i == sizeof known / sizeof known[0]) return hl_json_refuse_type(path, "normalizer", n);
    if (t->normaliser.n == HL_STEPS) return hl_json_refuse(path, "normalizer", "too many steps");
    struct hl_step *p = &t->normaliser.step[t->normaliser.n++]; /* what is in it is freed with the rest */
    *p = (struct hl_step){.kind = known[i].kind};
    if (p->kind == HL_STRIP)
        p->left = hl_json_flag(n, "strip_left", true), p->right = hl_json_flag(n, "strip_right", true);
    if (p->kind == HL_PREPEND) return copy_text(p, json_object_get(n, "prepend"), "normalizer.Prepend.prepend", path);
    if (p->kind != HL_REPLACE) return HOLA_OK;
    hola_status s = copy_text(p, json_object_get(n, "content"), "normalizer.Replace.content", path);
    if (s == HOLA_OK && !json_is_object(json_object_get(n, "pattern")))
        s = hl_json_bad(path, "normalizer.Replace.pattern", "missing");
    return s == HOLA_OK
               ? add_level(&p->what, json_object_get(n, "pattern"), HL_PATTERN_REGEX, NULL,
                           (struct hl_level){.behavior = HL_ISOLATED}, false, "normalizer.Replace.pattern", path)
               : s;
}

/* Whether the normalizer is U+2581 before the text, or none, and then U+2581 for every space. */
static bool is_llama(const json_t *n) {
    const json_t *list = json_object_get(n, "normalizers");
    bool sequence = strcmp(hl_json_type(n), "Sequence") == 0;
    size_t count = sequence ? json_array_size(list) : 1, i = 0;
    const json_t *one = sequence ? json_array_get(list, 0) : n;
    if (strcmp(hl_json_type(one), "Prepend") == 0 && hl_json_is(json_object_get(one, "prepend"), HL_META_TEXT))
        one = json_array_get(list, ++i);
    return i + 1 == count && strcmp(hl_json_type(one), "Replace") == 0 &&
           hl_json_is(json_object_get(json_object_get(one, "pattern"), "String"), " ") &&
           hl_json_is(json_object_get(one, "content"), HL_META_TEXT);
}

/* ---- pre_tokenizer ---- */

static hola_status add_words(hola_tokenizer *t, const json_t *pattern, enum hl_pattern_kind kind, const char *text,
                             struct hl_level level, const char *field, const char *path) {
    if (t->bpe.words == HL_WORDS_SPACES || t->bpe.space_is_meta)
        return hl_json_refuse(path, field, "not supported after Metaspace");
    t->bpe.words = HL_WORDS_PATTERN;
    return add_level(&t->bpe.cuts, pattern, kind, text, level, t->bpe.byte_level, field, path);
}

static bool read_behavior(const json_t *behavior, enum hl_behavior *b) {
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    for (int i = 0; i < 5; i++)
        if (hl_json_is(behavior, names[i])) return *b = (enum hl_behavior)i, true;
    return false;
}

static hola_status read_split(hola_tokenizer *t, const json_t *p, const char *path) {
    struct hl_level level = {.invert = hl_json_flag(p, "invert", false)};
    if (!read_behavior(json_object_get(p, "behavior"), &level.behavior))
        return hl_json_refuse(path, "pre_tokenizer.Split.behavior", "not known");
    if (!json_is_object(json_object_get(p, "pattern")))
        return hl_json_bad(path, "pre_tokenizer.Split.pattern", "missing");
    return add_words(t, json_object_get(p, "pattern"), HL_PATTERN_REGEX, NULL, level, "pre_tokenizer.Split.pattern",
                     path);
}

static hola_status read_byte_level(hola_tokenizer *t, const json_t *p, const char *path) {
    bool again = t->bpe.byte_level, cut = t->bpe.words != HL_WORDS_JOINED;
    if (again) return hl_json_refuse(path, "pre_tokenizer", "ByteLevel twice");
    if (hl_json_flag(p, "add_prefix_space", true)) {
        if (cut)
            return hl_json_refuse(path, "pre_tokenizer.ByteLevel.add_prefix_space", "after another that cuts words");
        t->prefix = HL_PREFIX_UNSPACED;
    }
    if (hl_json_flag(p, "use_regex", true)) {
        hola_status s = add_words(t, NULL, HL_PATTERN_REGEX, HL_GPT2_PATTERN,
                                  (struct hl_level){.behavior = HL_ISOLATED}, "pre_tokenizer.ByteLevel", path);
        if (s != HOLA_OK) return s;
    }
    t->bpe.byte_level = true; /* from now on the text is bytes */
    return HOLA_OK;
}

/* Numbers as Rust knows them: those of Unicode 17, thirteen more than in patterns. */
#define NUMBER "[\\p{N}\xf0\x91\xb7\xa0-\xf0\x91\xb7\xa9\xf0\x96\xbf\xb4-\xf0\x96\xbf\xb6]"

static hola_status read_digits(hola_tokenizer *t, const json_t *p, const char *path) {
    bool single = hl_json_flag(p, "individual_digits", false);
    return add_words(t, NULL, HL_PATTERN_REGEX, single ? NUMBER : NUMBER "+",
                     (struct hl_level){.behavior = HL_ISOLATED}, "pre_tokenizer.Digits", path);
}

static hola_status read_punctuation(hola_tokenizer *t, const json_t *p, const char *path) {
    struct hl_level level = {.behavior = HL_ISOLATED};
    const json_t *behavior = json_object_get(p, "behavior");
    if (behavior && !read_behavior(behavior, &level.behavior))
        return hl_json_refuse(path, "pre_tokenizer.Punctuation.behavior", "not known");
    return add_words(t, NULL, HL_PATTERN_PUNCTUATION, NULL, level, "pre_tokenizer.Punctuation", path);
}

static hola_status read_metaspace(hola_tokenizer *t, const json_t *p, const char *path) {
    const char *scheme = hl_json_prepend_scheme(p);
    if (!hl_json_is(json_object_get(p, "replacement"), HL_META_TEXT))
        return hl_json_refuse(path, "pre_tokenizer.Metaspace.replacement", "only U+2581 is known");
    if (t->bpe.words != HL_WORDS_JOINED || t->bpe.byte_level)
        return hl_json_refuse(path, "pre_tokenizer.Metaspace", "not supported after another");
    t->bpe.space_is_meta = true;
    if (hl_json_flag(p, "split", true)) t->bpe.words = HL_WORDS_SPACES;
    if (t->prefix == HL_PREFIX_ALWAYS) return HOLA_OK; /* the normalizer's is there already */
    if (strcmp(scheme, "always") == 0) t->prefix = HL_PREFIX_UNSPACED;
    else if (strcmp(scheme, "first") == 0) t->prefix = HL_PREFIX_FIRST;
    else if (strcmp(scheme, "never") != 0)
        return hl_json_refuse(path, "pre_tokenizer.Metaspace.prepend_scheme", "not supported");
    return HOLA_OK;
}

static hola_status read_pre_tokenizer(hola_tokenizer *t, const json_t *p, const char *path) {
    const char *type = hl_json_type(p);
    if (strcmp(type, "Split") == 0) return read_split(t, p, path);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(t, p, path);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(t, p, path);
    if (strcmp(type, "Digits") == 0) return read_digits(t, p, path);
    if (strcmp(type, "Punctuation") == 0) return read_punctuation(t, p, path);
    if (strcmp(type, "Whitespace") == 0)
        return add_words(t, NULL, HL_PATTERN_WORDS, NULL, (struct hl_level){.behavior = HL_REMOVED, .invert = true},
                         "pre_tokenizer.Whitespace", path);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_words(t, NULL, HL_PATTERN_REGEX, "\\s", (struct hl_level){.behavior = HL_REMOVED},
                         "pre_tokenizer.WhitespaceSplit", path);
    return hl_json_refuse_type(path, "pre_tokenizer", p);
}

hola_status hl_json_steps(hola_tokenizer *t, const json_t *normalizer, const json_t *pre_tokenizer, bool *llama,
                          const char *path) {
    hola_status s = each(t, normalizer, "normalizers", path, 0, read_normalizer);
    bool meta = false;
    *llama = false;
    if (s != HOLA_OK) return s;
    if (is_llama(normalizer)) {
        *llama = true;
        if (t->normaliser.n == 2) t->prefix = HL_PREFIX_ALWAYS;
    }
    s = each(t, pre_tokenizer, "pretokenizers", path, 0, read_pre_tokenizer);
    if (s != HOLA_OK) return s;
    meta = t->bpe.space_is_meta;
    if (*llama && (t->bpe.words == HL_WORDS_PATTERN || t->bpe.byte_level)) { /* which want to see U+2581 itself */
        *llama = false;
        if (t->prefix == HL_PREFIX_ALWAYS) t->prefix = HL_PREFIX_NONE;
    }
    if (meta && t->bpe.byte_level) return hl_json_refuse(path, "pre_tokenizer", "Metaspace and ByteLevel");
    if (*llama) {
        hl_normaliser_free(&t->normaliser);
        t->bpe.space_is_meta = true;
    }
    if (t->bpe.cuts) hl_cuts_finish(t->bpe.cuts);
    for (int i = 0; i < t->normaliser.n; i++)
        if (t->normaliser.step[i].what) hl_cuts_finish(t->normaliser.step[i].what);
    return hl_normaliser_finish(&t->normaliser);
}
