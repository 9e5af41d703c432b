/* tokenizer_json.c -- reads a tokenizer.json of Hugging Face's tokenizers, those of the BPE family.
 *
 * Every field either means something here or must have the value that means nothing; all else is refused by
 * name, as a tokenizer that is nearly right is a model that is quietly wrong. */
#include "tokenizer/tokenizer_json.h"
#include <stdlib.h>

enum { MAX_FILE = 1 << 28 };

hola_status hl_json_refuse(const char *path, const char *field, const char *what) {
    return hl_fail(HOLA_ENOTSUP, "%s: %s: %s", path, field, what);
}
hola_status hl_json_bad(const char *path, const char *field, const char *what) {
    return hl_fail(HOLA_EFORMAT, "%s: %s: %s", path, field, what);
}

static const char *type_of(const json_t *object) {
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

static hola_status refuse_type(const char *path, const char *field, const json_t *object) {
    return hl_fail(HOLA_ENOTSUP, "%s: %s: type \"%.40s\" is not supported", path, field, type_of(object));
}

/* {"String": text} */
static bool pattern_is(const json_t *object, const char *text) {
    return hl_json_is(json_object_get(json_object_get(object, "pattern"), "String"), text);
}

/* The members of a Sequence, or the object itself; calls one(t, member, path) on each. */
static hola_status each(hola_tokenizer *t, const json_t *object, const char *list, const char *path,
                        hola_status (*one)(hola_tokenizer *, const json_t *, const char *)) {
    hola_status s = HOLA_OK;
    if (!object || json_is_null(object)) return HOLA_OK;
    if (strcmp(type_of(object), "Sequence") != 0) return one(t, object, path);
    const json_t *members = json_object_get(object, list);
    if (!json_is_array(members)) return hl_json_bad(path, list, "not an array");
    for (size_t i = 0; i < json_array_size(members) && s == HOLA_OK; i++) s = one(t, json_array_get(members, i), path);
    return s;
}

/* ---- normalizer ---- */

static hola_status read_normalizer(hola_tokenizer *t, const json_t *n, const char *path) {
    const char *type = type_of(n);
    if (strcmp(type, "Prepend") == 0) {
        if (!hl_json_is(json_object_get(n, "prepend"), HL_META_TEXT))
            return hl_json_refuse(path, "normalizer.Prepend", "only U+2581 is known");
        t->prefix = HL_PREFIX_ALWAYS;
    } else if (strcmp(type, "Replace") == 0) {
        if (!pattern_is(n, " ") || !hl_json_is(json_object_get(n, "content"), HL_META_TEXT))
            return hl_json_refuse(path, "normalizer.Replace", "only \" \" to U+2581 is known");
        t->bpe.space_is_meta = true;
    } else return refuse_type(path, "normalizer", n);
    return HOLA_OK;
}

/* ---- pre_tokenizer ---- */

static hola_status read_split(hola_tokenizer *t, const json_t *p, const char *path) {
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
    static const struct {
        const char *regex;
        enum hl_words words;
    } known[] = {
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", HL_WORDS_GPT2},
        {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", HL_WORDS_GPT2},
        {LLAMA "\\p{N}{1,3}" REST, HL_WORDS_LLAMA3},
        {LLAMA "\\p{N}" REST, HL_WORDS_QWEN2},
    };
    const json_t *regex = json_object_get(json_object_get(p, "pattern"), "Regex");
    const json_t *behavior = json_object_get(p, "behavior");
    bool invert = hl_json_flag(p, "invert", false);
    /* these patterns match all of a text, so keeping the matches and cutting at them are the same */
    if (!(hl_json_is(behavior, "Isolated") && !invert) && !(hl_json_is(behavior, "Removed") && invert))
        return hl_json_refuse(path, "pre_tokenizer.Split.behavior", "only Isolated is known");
    if (t->bpe.words != HL_WORDS_JOINED) return hl_json_refuse(path, "pre_tokenizer", "two that cut words");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (hl_json_is(regex, known[i].regex)) return t->bpe.words = known[i].words, HOLA_OK;
    return hl_json_refuse(path, "pre_tokenizer.Split.pattern", "not one of GPT-2, Llama 3 and Qwen 2");
}

static hola_status read_byte_level(hola_tokenizer *t, const json_t *p, const char *path) {
    bool cut = t->bpe.words != HL_WORDS_JOINED;
    if (hl_json_flag(p, "use_regex", true)) {
        if (cut) return hl_json_refuse(path, "pre_tokenizer.ByteLevel.use_regex", "after another that cuts words");
        t->bpe.words = HL_WORDS_GPT2;
    }
    if (hl_json_flag(p, "add_prefix_space", true)) {
        if (cut)
            return hl_json_refuse(path, "pre_tokenizer.ByteLevel.add_prefix_space", "after another that cuts words");
        t->prefix = HL_PREFIX_UNSPACED;
    }
    t->bpe.byte_level = true;
    return HOLA_OK;
}

/* always, first or never; files of old have add_prefix_space instead. */
static const char *prepend_scheme(const json_t *p) {
    const char *scheme = json_string_value(json_object_get(p, "prepend_scheme"));
    return scheme ? scheme : hl_json_flag(p, "add_prefix_space", true) ? "always" : "never";
}

static hola_status read_metaspace(hola_tokenizer *t, const json_t *p, const char *path) {
    const char *scheme = prepend_scheme(p);
    if (!hl_json_is(json_object_get(p, "replacement"), HL_META_TEXT))
        return hl_json_refuse(path, "pre_tokenizer.Metaspace.replacement", "only U+2581 is known");
    if (t->bpe.words != HL_WORDS_JOINED) return hl_json_refuse(path, "pre_tokenizer", "two that cut words");
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
    const char *type = type_of(p);
    if (strcmp(type, "Split") == 0) return read_split(t, p, path);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(t, p, path);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(t, p, path);
    return refuse_type(path, "pre_tokenizer", p);
}

static hola_status check_steps(const hola_tokenizer *t, bool normalizer, const char *path) {
    const struct hl_bpe *b = &t->bpe;
    if (t->prefix == HL_PREFIX_ALWAYS && !b->space_is_meta)
        return hl_json_refuse(path, "normalizer.Prepend", "without Replace");
    if (normalizer && (b->byte_level || b->words >= HL_WORDS_GPT2))
        return hl_json_refuse(path, "normalizer", "not known together with this pre_tokenizer");
    if (b->byte_level && b->space_is_meta) return hl_json_refuse(path, "pre_tokenizer", "Metaspace and ByteLevel");
    return HOLA_OK;
}

/* ---- decoder ---- */

struct decoding {
    bool fuse, bytes;
};

static hola_status read_decoder(hola_tokenizer *t, const json_t *d, struct decoding *k, const char *path) {
    const char *type = type_of(d);
    if (strcmp(type, "ByteLevel") == 0) t->decoder = HL_DECODE_BYTES;
    else if (strcmp(type, "ByteFallback") == 0) k->bytes = true;
    else if (strcmp(type, "Fuse") == 0) k->fuse = true;
    else if (strcmp(type, "Metaspace") == 0)
        t->decoder = strcmp(prepend_scheme(d), "never") == 0 ? HL_DECODE_SPACES : HL_DECODE_METASPACE;
    else if (strcmp(type, "Replace") == 0) {
        if (!pattern_is(d, HL_META_TEXT) || !hl_json_is(json_object_get(d, "content"), " "))
            return hl_json_refuse(path, "decoder.Replace", "only U+2581 to \" \" is known");
        t->decoder = HL_DECODE_SPACES;
    } else if (strcmp(type, "Strip") == 0) {
        if (!k->fuse || !hl_json_is(json_object_get(d, "content"), " ") ||
            json_integer_value(json_object_get(d, "start")) != 1 ||
            json_integer_value(json_object_get(d, "stop")) != 0 || t->decoder != HL_DECODE_SPACES)
            return hl_json_refuse(path, "decoder.Strip", "only one space at the front, after Replace and Fuse");
        t->decoder = HL_DECODE_STRIP;
    } else return refuse_type(path, "decoder", d);
    return HOLA_OK;
}

static hola_status read_decoders(hola_tokenizer *t, const json_t *d, bool *bytes, const char *path) {
    struct decoding k = {false, false};
    hola_status s = HOLA_OK;
    const json_t *list = json_object_get(d, "decoders");
    if (!d || json_is_null(d)) return hl_json_refuse(path, "decoder", "there is none");
    t->decoder = HL_DECODE_BYTES;
    if (strcmp(type_of(d), "Sequence") != 0) s = read_decoder(t, d, &k, path);
    else if (!json_is_array(list)) s = hl_json_bad(path, "decoder.decoders", "not an array");
    else
        for (size_t i = 0; i < json_array_size(list) && s == HOLA_OK; i++)
            s = read_decoder(t, json_array_get(list, i), &k, path);
    *bytes = k.bytes;
    return s;
}

/* ---- added tokens ---- */

/* One more than the largest id among them. */
static hola_status added_size(const json_t *list, int64_t *size, const char *path) {
    *size = 0;
    if (list && !json_is_null(list) && !json_is_array(list)) return hl_json_bad(path, "added_tokens", "not an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *a = json_array_get(list, i), *id = json_object_get(a, "id");
        const char *text = json_string_value(json_object_get(a, "content"));
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= HL_JSON_MAX_ID || !text ||
            strlen(text) > HL_JSON_MAX_TOKEN)
            return hl_json_bad(path, "added_tokens", "an id or content that is impossible");
        if (json_integer_value(id) >= *size) *size = json_integer_value(id) + 1;
    }
    return HOLA_OK;
}

static hola_status put_added(hola_tokenizer *t, const json_t *a, bool normalizer) {
    const char *text = json_string_value(json_object_get(a, "content"));
    int32_t id = (int32_t)json_integer_value(json_object_get(a, "id"));
    bool normalised = hl_json_flag(a, "normalized", !hl_json_flag(a, "special", false));
    struct hl_added *list = normalised ? &t->normalised : &t->raw;
    struct hl_text copy = {0};
    int64_t len = (int64_t)strlen(text);
    hola_status s = HOLA_OK;
    if (len == 0) return HOLA_OK;
    if (normalised && normalizer) {
        s = hl_tokenizer_rewrite(t, text, len, &copy);
        text = copy.data, len = copy.n;
        t->rewrite = true;
    }
    if (s == HOLA_OK) s = hl_added_put(list, text, len, id);
    free(copy.data);
    if (s != HOLA_OK) return s;
    struct hl_added_token *last = &list->token[list->n - 1];
    if (normalised && normalizer) /* it decodes to what it matched */
        t->bpe.piece[id].text = last->text, t->bpe.piece[id].len = last->len;
    last->lstrip = hl_json_flag(a, "lstrip", false);
    last->rstrip = hl_json_flag(a, "rstrip", false);
    last->single_word = hl_json_flag(a, "single_word", false);
    return HOLA_OK;
}

/* Their texts, as written, into the store; what they are, into the pieces. */
static hola_status read_added(hola_tokenizer *t, const json_t *root, bool normalizer, const char *path) {
    const json_t *list = json_object_get(root, "added_tokens"), *in_vocab;
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    int64_t bytes = 1, at = 0;
    hola_status s = HOLA_OK;
    for (size_t i = 0; i < json_array_size(list); i++)
        bytes += (int64_t)json_string_length(json_object_get(json_array_get(list, i), "content"));
    t->added_store = malloc((size_t)bytes);
    if (!t->added_store) return hl_fail(HOLA_ENOMEM, "%s: added_tokens", path);
    for (size_t i = 0; i < json_array_size(list) && s == HOLA_OK; i++) {
        const json_t *a = json_array_get(list, i);
        const char *text = json_string_value(json_object_get(a, "content"));
        json_int_t id = json_integer_value(json_object_get(a, "id"));
        struct hl_token_piece *p = &t->bpe.piece[id];
        in_vocab = json_object_get(vocab, text);
        if (in_vocab ? json_integer_value(in_vocab) != id : p->type != HL_PIECE_NONE)
            return hl_fail(HOLA_EFORMAT,
                           "%s: added_tokens: id %lld belongs to another token, or the token has another id", path,
                           (long long)id);
        p->type = hl_json_flag(a, "special", false) ? HL_PIECE_CONTROL : HL_PIECE_USER;
        p->len = (int32_t)strlen(text);
        p->text = memcpy(t->added_store + at, text, (size_t)p->len);
        at += p->len;
        s = put_added(t, a, normalizer);
    }
    hl_added_sort(&t->raw), hl_added_sort(&t->normalised);
    return s;
}

/* ---- begin and end of text ---- */

static int32_t named(const json_t *root, const char *name) {
    const json_t *list = json_object_get(root, "added_tokens");
    for (size_t i = 0; name && i < json_array_size(list); i++) {
        const json_t *a = json_array_get(list, i);
        if (hl_json_is(json_object_get(a, "content"), name))
            return (int32_t)json_integer_value(json_object_get(a, "id"));
    }
    return -1;
}

/* What a TemplateProcessing puts before and behind a text. */
static void read_template(hola_tokenizer *t, const json_t *root, const json_t *processor) {
    const json_t *single = json_object_get(processor, "single");
    bool before = true;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *part = json_array_get(single, i), *special = json_object_get(part, "SpecialToken");
        int32_t id = named(root, json_string_value(json_object_get(special, "id")));
        if (json_object_get(part, "Sequence")) before = false;
        if (special && id >= 0 && before) t->bos = id;
        if (special && id >= 0 && !before) t->eos = id;
    }
}

static hola_status read_ends(hola_tokenizer *t, const json_t *root, const char *path) {
    static const char *const bos[] = {"<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>"};
    static const char *const eos[] = {"</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>"};
    const json_t *p = json_object_get(root, "post_processor"), *list = json_object_get(p, "processors");
    bool many = strcmp(type_of(p), "Sequence") == 0;
    for (size_t i = 0; p && !json_is_null(p) && i < (many ? json_array_size(list) : 1); i++) {
        const json_t *one = many ? json_array_get(list, i) : p;
        if (strcmp(type_of(one), "TemplateProcessing") == 0) read_template(t, root, one);
        else if (strcmp(type_of(one), "ByteLevel") != 0) return refuse_type(path, "post_processor", one);
    }
    for (int i = 0; i < 4; i++) {
        if (t->bos < 0) t->bos = named(root, bos[i]);
        if (t->eos < 0) t->eos = named(root, eos[i]);
    }
    return HOLA_OK;
}

/* ---- the file ---- */

static hola_status check_top(const json_t *root, const char *path) {
    static const char *const known[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                        "pre_tokenizer", "post_processor", "decoder", "model"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) found = found || strcmp(key, known[i]) == 0;
        if (!found) return hl_fail(HOLA_ENOTSUP, "%s: \"%.60s\" is not a field of tokenizer.json", path, key);
        if ((strcmp(key, "truncation") == 0 || strcmp(key, "padding") == 0) && !json_is_null(value))
            return hl_json_refuse(path, key, "not supported");
    }
    return HOLA_OK;
}

hola_status hl_tokenizer_json_read(hola_tokenizer *t, const char *data, int64_t size, const char *path) {
    json_t *root;
    int64_t more;
    bool bytes = false, normalizer;
    hola_status s = hl_json_object(&root, data, size, MAX_FILE, path);
    if (s != HOLA_OK) return s;
    const json_t *n = json_object_get(root, "normalizer"), *p = json_object_get(root, "pre_tokenizer");
    t->bpe.words = HL_WORDS_JOINED;
    s = check_top(root, path);
    if (s == HOLA_OK) s = each(t, n, "normalizers", path, read_normalizer);
    normalizer = t->bpe.space_is_meta || t->prefix == HL_PREFIX_ALWAYS;
    if (s == HOLA_OK) s = each(t, p, "pretokenizers", path, read_pre_tokenizer);
    if (s == HOLA_OK) s = check_steps(t, normalizer, path);
    if (s == HOLA_OK) s = read_decoders(t, json_object_get(root, "decoder"), &bytes, path);
    if (s == HOLA_OK) s = added_size(json_object_get(root, "added_tokens"), &more, path);
    if (s == HOLA_OK) s = hl_json_model(t, json_object_get(root, "model"), more, bytes, path);
    if (s == HOLA_OK) s = read_added(t, root, normalizer, path);
    if (s == HOLA_OK) s = read_ends(t, root, path);
    json_decref(root);
    return s;
}
