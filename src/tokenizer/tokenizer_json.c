/* tokenizer_json.c -- reads a tokenizer.json of Hugging Face's tokenizers, those of the BPE family.
 *
 * Every field is either supported or must have its neutral value; anything else is refused by name, since a tokenizer
 * that is almost right makes a model silently wrong. */
#include "tokenizer/tokenizer_json.h"
#include <stdlib.h>

enum { MAX_FILE = 1 << 28 };

hola_status hl_json_refuse(const char *path, const char *field, const char *what) {
    return hl_fail(HOLA_ENOTSUP, "%s: %s: %s", path, field, what);
}
hola_status hl_json_bad(const char *path, const char *field, const char *what) {
    return hl_fail(HOLA_EFORMAT, "%s: %s: %s", path, field, what);
}

const char *hl_json_type(const json_t *object) {
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

hola_status hl_json_refuse_type(const char *path, const char *field, const json_t *object) {
    return hl_fail(HOLA_ENOTSUP, "%s: %s: type \"%.40s\" is not supported", path, field, hl_json_type(object));
}

/* {"String": text} */
static bool pattern_is(const json_t *object, const char *text) {
    return hl_json_is(json_object_get(json_object_get(object, "pattern"), "String"), text);
}

/* ---- decoder ---- */

struct decoding {
    bool fuse, bytes;
};

static hola_status read_decoder(hola_tokenizer *t, const json_t *d, struct decoding *k, const char *path) {
    const char *type = hl_json_type(d);
    if (strcmp(type, "ByteLevel") == 0) t->decoder = HL_DECODE_BYTES;
    else if (strcmp(type, "ByteFallback") == 0) k->bytes = true;
    else if (strcmp(type, "Fuse") == 0) k->fuse = true;
    else if (strcmp(type, "Metaspace") == 0)
        t->decoder = strcmp(hl_json_prepend_scheme(d), "never") == 0 ? HL_DECODE_SPACES : HL_DECODE_METASPACE;
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
    } else return hl_json_refuse_type(path, "decoder", d);
    return HOLA_OK;
}

static hola_status read_decoders(hola_tokenizer *t, const json_t *d, bool *bytes, const char *path) {
    struct decoding k = {false, false};
    hola_status s = HOLA_OK;
    const json_t *list = json_object_get(d, "decoders");
    if (!d || json_is_null(d)) return hl_json_refuse(path, "decoder", "missing");
    t->decoder = HL_DECODE_BYTES;
    if (strcmp(hl_json_type(d), "Sequence") != 0) s = read_decoder(t, d, &k, path);
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

static hola_status put_added(hola_tokenizer *t, const json_t *a, bool llama) {
    const char *text = json_string_value(json_object_get(a, "content"));
    int32_t id = (int32_t)json_integer_value(json_object_get(a, "id"));
    bool normalised = hl_json_flag(a, "normalized", !hl_json_flag(a, "special", false));
    struct hl_added *list = normalised ? &t->normalised : &t->raw;
    struct hl_text copy = {0};
    int64_t len = (int64_t)strlen(text);
    bool changed = false;
    hola_status s = HOLA_OK;
    if (len == 0) return HOLA_OK;
    if (normalised && llama) {
        s = hl_tokenizer_rewrite(t, text, len, &copy);
        t->rewrite = changed = true;
    } else if (normalised) s = hl_normalise(&t->normaliser, false, text, len, &copy, &changed);
    if (changed) text = copy.data, len = copy.n;
    if (s == HOLA_OK && len > 0) s = hl_added_put(list, text, len, id);
    free(copy.data);
    if (s != HOLA_OK || len == 0) return s;
    struct hl_added_token *last = &list->token[list->n - 1];
    if (changed) /* it decodes to the text it matched */
        t->bpe.piece[id].text = last->text, t->bpe.piece[id].len = last->len;
    last->lstrip = hl_json_flag(a, "lstrip", false);
    last->rstrip = hl_json_flag(a, "rstrip", false);
    last->single_word = hl_json_flag(a, "single_word", false);
    return HOLA_OK;
}

/* Stores their original texts, and their types in the pieces. */
static hola_status read_added(hola_tokenizer *t, const json_t *root, bool llama, const char *path) {
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
        s = put_added(t, a, llama);
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

/* The tokens that a TemplateProcessing adds before and after a text. */
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

/* RobertaProcessing and BertProcessing: ["<s>", 0] before a text, ["</s>", 2] after it. */
static void read_pair(hola_tokenizer *t, const json_t *root, const json_t *processor) {
    int32_t before = named(root, json_string_value(json_array_get(json_object_get(processor, "cls"), 0)));
    int32_t after = named(root, json_string_value(json_array_get(json_object_get(processor, "sep"), 0)));
    if (before >= 0) t->bos = before;
    if (after >= 0) t->eos = after;
}

static hola_status read_ends(hola_tokenizer *t, const json_t *root, const char *path) {
    static const char *const bos[] = {"<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>"};
    static const char *const eos[] = {"</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>"};
    const json_t *p = json_object_get(root, "post_processor"), *list = json_object_get(p, "processors");
    bool many = strcmp(hl_json_type(p), "Sequence") == 0;
    for (size_t i = 0; p && !json_is_null(p) && i < (many ? json_array_size(list) : 1); i++) {
        const json_t *one = many ? json_array_get(list, i) : p;
        const char *type = hl_json_type(one);
        if (strcmp(type, "TemplateProcessing") == 0) read_template(t, root, one);
        else if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) read_pair(t, root, one);
        else if (strcmp(type, "ByteLevel") != 0) return hl_json_refuse_type(path, "post_processor", one);
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
    bool bytes = false, llama = false;
    hola_status s = hl_json_object(&root, data, size, MAX_FILE, path);
    if (s != HOLA_OK) return s;
    const json_t *n = json_object_get(root, "normalizer"), *p = json_object_get(root, "pre_tokenizer");
    t->bpe.words = HL_WORDS_JOINED;
    s = check_top(root, path);
    if (s == HOLA_OK) s = hl_json_steps(t, n, p, &llama, path);
    if (s == HOLA_OK) s = read_decoders(t, json_object_get(root, "decoder"), &bytes, path);
    if (s == HOLA_OK) s = added_size(json_object_get(root, "added_tokens"), &more, path);
    if (s == HOLA_OK) s = hl_json_model(t, json_object_get(root, "model"), more, bytes, path);
    if (s == HOLA_OK) s = read_added(t, root, llama, path);
    if (s == HOLA_OK) s = read_ends(t, root, path);
    json_decref(root);
    return s;
}
