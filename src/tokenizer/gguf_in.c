/* gguf_in.c -- the tokenizer of a GGUF file as the content of a tokenizer.model or a tokenizer.json. */
#include "tokenizer/gguf_keys.h"
#include "tokenizer/tokenizer.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 24 }; /* tokens */

struct keys {
    const struct hl_gguf *g;
    const struct hl_gguf_value *tokens, *scores, *types, *merges;
    int64_t n; /* tokens, without the padding at their end */
    int64_t bos, eos;
};

static hola_status read_arrays(struct keys *k) {
    static const char *const counted[] = {"scores", "token_type"};
    hola_status s = hl_gguf_array(k->g, "tokenizer.ggml.tokens", HL_GGUF_STRING, &k->tokens);
    if (s == HOLA_OK) s = hl_gguf_array(k->g, "tokenizer.ggml.scores", HL_GGUF_F32, &k->scores);
    if (s == HOLA_OK) s = hl_gguf_array(k->g, "tokenizer.ggml.token_type", HL_GGUF_I32, &k->types);
    if (s == HOLA_OK) s = hl_gguf_array(k->g, "tokenizer.ggml.merges", HL_GGUF_STRING, &k->merges);
    if (s != HOLA_OK) return s;
    if (!k->tokens || k->tokens->n < 1 || k->tokens->n > MOST)
        return hl_fail(HOLA_EFORMAT, "%s: tokenizer.ggml.tokens: 1 to %d are possible", k->g->path, MOST);
    for (int i = 0; i < 2; i++) {
        const struct hl_gguf_value *v = i ? k->types : k->scores;
        if (v && v->n != k->tokens->n)
            return hl_fail(HOLA_EFORMAT, "%s: tokenizer.ggml.%s: %lld for %lld tokens", k->g->path, counted[i],
                           (long long)v->n, (long long)k->tokens->n);
    }
    k->bos = k->eos = -1;
    s = hl_gguf_int(k->g, "tokenizer.ggml.bos_token_id", 0, k->tokens->n - 1, &k->bos);
    return s == HOLA_OK ? hl_gguf_int(k->g, "tokenizer.ggml.eos_token_id", 0, k->tokens->n - 1, &k->eos) : s;
}

static int32_t type_of(const struct keys *k, int64_t i) {
    int32_t type = HL_PIECE_NORMAL;
    if (k->types) memcpy(&type, k->types->data + 4 * i, 4);
    return type;
}

/* Vocabularies are filled up with tokens that no text has. */
static bool is_padding(const struct keys *k, int64_t i, const char *text, int64_t len) {
    char name[32];
    const int n = snprintf(name, sizeof name, "[PAD%lld]", (long long)i);
    return type_of(k, i) == HL_PIECE_UNUSED && len == n && memcmp(text, name, (size_t)n) == 0;
}
static void drop_padding(struct keys *k) {
    const char *at = k->tokens->data;
    int64_t len;
    for (int64_t i = 0; i < k->tokens->n; i++) {
        const char *text = hl_gguf_next_string(&at, &len);
        if (!is_padding(k, i, text, len)) k->n = i + 1;
    }
}

/* ---- tokenizer.model: a protobuf ---- */

static void put_varint(struct hl_text *t, uint64_t v) {
    for (; v >= 0x80; v >>= 7) hl_text_put(t, &(char){(char)(v | 0x80)}, 1);
    hl_text_put(t, &(char){(char)v}, 1);
}
static void put_number(struct hl_text *t, unsigned field, uint64_t v) {
    put_varint(t, field << 3);
    put_varint(t, v);
}
static void put_bytes(struct hl_text *t, unsigned field, const char *data, int64_t len) {
    put_varint(t, field << 3 | 2);
    put_varint(t, (uint64_t)len);
    hl_text_put(t, data, len);
}
static void put_message(struct hl_text *t, unsigned field, struct hl_text *message) {
    put_bytes(t, field, message->data, message->n);
    t->failed |= message->failed;
    hl_text_clear(message);
}

static hola_status make_spm(const struct keys *k, struct hl_text *out) {
    struct hl_text in = {0};
    const char *at = k->tokens->data, *end[2] = {NULL, NULL};
    int64_t end_len[2] = {0}, len;
    bool prefix = true, squeeze = false, bytes = false;
    hola_status s = hl_gguf_bool(k->g, "tokenizer.ggml.add_space_prefix", &prefix);
    if (s == HOLA_OK) s = hl_gguf_bool(k->g, "tokenizer.ggml.remove_extra_whitespaces", &squeeze);
    if (s == HOLA_OK && (!k->scores || !k->types))
        s = hl_fail(HOLA_EFORMAT, "%s: tokenizer.ggml.%s: missing", k->g->path, k->scores ? "token_type" : "scores");
    for (int64_t i = 0; i < k->n && s == HOLA_OK; i++) {
        const char *text = hl_gguf_next_string(&at, &len);
        const int32_t type = type_of(k, i);
        if (i == k->bos) end[0] = text, end_len[0] = len;
        if (i == k->eos) end[1] = text, end_len[1] = len;
        bytes |= type == HL_PIECE_BYTE;
        put_bytes(&in, 1, text, len);
        put_varint(&in, 2 << 3 | 5);
        hl_text_put(&in, k->scores->data + 4 * i, 4);
        put_number(&in, 3, (uint64_t)(uint32_t)type);
        put_message(out, 1, &in);
    }
    put_number(&in, 3, 2); /* BPE */
    put_number(&in, 35, bytes);
    for (int i = 0; i < 2; i++)
        if (end[i]) put_bytes(&in, i ? 47 : 46, end[i], end_len[i]);
    put_message(out, 2, &in);
    put_number(&in, 3, prefix);
    put_number(&in, 4, squeeze);
    put_number(&in, 5, true);
    put_message(out, 3, &in);
    hl_text_free(&in);
    return s == HOLA_OK ? hl_text_status(out) : s;
}

/* ---- tokenizer.json ---- */

static const struct hl_gguf_pre *named_pre(const struct hl_gguf *g) {
    const struct hl_gguf_pre *p = hl_gguf_pre;
    while (p->name && !hl_gguf_is(g, "tokenizer.ggml.pre", p->name)) p++;
    return p->name ? p : NULL;
}

static hola_status bad_token(const struct keys *k, const char *key, int64_t i, const char *what) {
    return hl_fail(HOLA_EFORMAT, "%s: tokenizer.ggml.%s: number %lld %s", k->g->path, key, (long long)i, what);
}

/* Tokens go into vocab; those that are special, or found in a text before it is cut into words, into added. */
static hola_status put_tokens(const struct keys *k, json_t *vocab, json_t *added, json_t *seen) {
    const char *at = k->tokens->data;
    int64_t len;
    for (int64_t i = 0; i < k->n; i++) {
        const char *text = hl_gguf_next_string(&at, &len);
        const int32_t type = type_of(k, i);
        const bool special = type == HL_PIECE_CONTROL || type == HL_PIECE_UNKNOWN || i == k->bos || i == k->eos;
        if (is_padding(k, i, text, len)) continue; /* an id that no token has */
        json_t *name = memchr(text, 0, (size_t)len) ? NULL : json_stringn(text, (size_t)len);
        if (!name) return bad_token(k, "tokens", i, "is no text in UTF-8");
        const bool twice = json_object_get(seen, json_string_value(name)) != NULL;
        json_object_set_new(seen, json_string_value(name), json_true());
        if (special || type == HL_PIECE_USER)
            json_array_append_new(added, json_pack("{s:I, s:O, s:b, s:b}", "id", (json_int_t)i, "content", name,
                                                   "special", special, "normalized", false));
        else json_object_set_new(vocab, json_string_value(name), json_integer(i));
        json_decref(name);
        if (twice) return bad_token(k, "tokens", i, "is there twice");
    }
    return HOLA_OK;
}

static hola_status put_merges(const struct keys *k, json_t *merges) {
    const char *at = k->merges ? k->merges->data : NULL;
    int64_t len;
    if (!at) return hl_fail(HOLA_EFORMAT, "%s: tokenizer.ggml.merges: missing", k->g->path);
    for (int64_t i = 0; i < k->merges->n; i++) {
        const char *text = hl_gguf_next_string(&at, &len);
        json_t *merge = json_stringn(text, (size_t)len);
        if (!merge) return bad_token(k, "merges", i, "is no text in UTF-8");
        json_array_append_new(merges, merge);
    }
    return HOLA_OK;
}

/* What stands before and behind a text, which is how a tokenizer.json says what they are. */
static json_t *post_processor(const struct keys *k, const json_t *added) {
    json_t *single = json_array();
    for (int end = 0; end < 2; end++) {
        const int64_t id = end ? k->eos : k->bos;
        for (size_t i = 0; i < json_array_size(added); i++) {
            const json_t *a = json_array_get(added, i);
            if (json_integer_value(json_object_get(a, "id")) == id)
                json_array_append_new(single, json_pack("{s:{s:O, s:i}}", "SpecialToken", "id",
                                                        json_object_get(a, "content"), "type_id", 0));
        }
        if (!end) json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
    }
    return json_pack("{s:s, s:o}", "type", "TemplateProcessing", "single", single);
}

static hola_status make_json(const struct keys *k, struct hl_text *out) {
    const struct hl_gguf_pre *pre = named_pre(k->g);
    json_t *vocab = json_object(), *merges = json_array(), *added = json_array(), *seen = json_object();
    const char *name = "";
    int64_t len = 0;
    hola_status s = hl_gguf_string(k->g, "tokenizer.ggml.pre", &name, &len);
    if (s == HOLA_OK && !pre)
        s = hl_fail(HOLA_ENOTSUP, "%s: tokenizer.ggml.pre: \"%.*s\" is not known", k->g->path,
                    (int)(len < 60 ? len : 60), name);
    if (s == HOLA_OK) s = put_tokens(k, vocab, added, seen);
    if (s == HOLA_OK) s = put_merges(k, merges);
    json_decref(seen);
    if (s != HOLA_OK) {
        json_decref(vocab), json_decref(merges), json_decref(added);
        return s;
    }
    json_t *ends = post_processor(k, added);
    json_t *root = json_pack("{s:s, s:o, s:n, s:o, s:o, s:o, s:{s:s, s:b, s:o, s:o}}", "version", "1.0", "added_tokens",
                             added, "normalizer", "pre_tokenizer", json_loads(pre->json, 0, NULL), "post_processor",
                             ends, "decoder", json_pack("{s:s}", "type", "ByteLevel"), "model", "type", "BPE",
                             "ignore_merges", pre->whole_words, "vocab", vocab, "merges", merges);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    if (text) hl_text_puts(out, text), hl_text_puts(out, "\n");
    else s = hl_fail(HOLA_ENOMEM, "%s: no memory for its tokenizer", k->g->path);
    free(text);
    json_decref(root);
    return s == HOLA_OK ? hl_text_status(out) : s;
}

/* ---- either ---- */

hola_status hl_gguf_refuse_copy(const char *path) {
    if (!hl_is_gguf(path)) return HOLA_OK;
    return hl_fail(HOLA_ENOTSUP, "%s: a GGUF file; hola convert makes a directory of it, with a tokenizer file", path);
}

hola_status hl_gguf_tokenizer_config(const struct hl_gguf *g, char **out) {
    const char *chat = NULL;
    int64_t len = 0;
    bool bos = true;
    *out = NULL;
    hola_status s = hl_gguf_string(g, "tokenizer.chat_template", &chat, &len);
    if (s == HOLA_OK) s = hl_gguf_bool(g, "tokenizer.ggml.add_bos_token", &bos);
    if (s != HOLA_OK || (!chat && bos)) return s;
    json_t *root = json_pack("{s:b}", "add_bos_token", bos);
    if (chat && json_object_set_new(root, "chat_template", json_stringn(chat, (size_t)len)) != 0)
        s = hl_fail(HOLA_EFORMAT, "%s: tokenizer.chat_template: not UTF-8, or no memory", g->path);
    if (s == HOLA_OK && !(*out = json_dumps(root, JSON_INDENT(1)))) s = hl_fail(HOLA_ENOMEM, "%s: no memory", g->path);
    json_decref(root);
    return s;
}

hola_status hl_gguf_tokenizer_config_read(const char *path, char **out) {
    struct hl_gguf *g;
    *out = NULL;
    hola_status s = hl_gguf_open(&g, path);
    if (s == HOLA_OK) s = hl_gguf_tokenizer_config(g, out);
    hl_gguf_close(g);
    return s;
}

bool hl_gguf_has_tokenizer(const struct hl_gguf *g) {
    return hl_gguf_find(g, "tokenizer.huggingface.json") ||
           (hl_gguf_find(g, "tokenizer.ggml.model") && !hl_gguf_is(g, "tokenizer.ggml.model", "none"));
}

hola_status hl_gguf_tokenizer(const struct hl_gguf *g, struct hl_text *out, const char **name) {
    struct keys k = {.g = g};
    const char *json = NULL, *model = NULL;
    int64_t len = 0;
    *name = "tokenizer.json";
    hola_status s = hl_gguf_string(g, "tokenizer.huggingface.json", &json, &len);
    if (s != HOLA_OK) return s;
    if (json && !hl_gguf_find(g, "tokenizer.ggml.tokens")) return hl_text_put(out, json, len);
    s = hl_gguf_string(g, "tokenizer.ggml.model", &model, &len);
    if (s != HOLA_OK) return s;
    const bool spm = hl_gguf_is(g, "tokenizer.ggml.model", "llama");
    if (!hl_gguf_has_tokenizer(g))
        return hl_fail(HOLA_EIO,
                       "%s: holds no tokenizer; name one (--tokenizer PATH), or take bytes as tokens "
                       "(--tokenizer byte)",
                       g->path);
    if (!spm && !hl_gguf_is(g, "tokenizer.ggml.model", "gpt2"))
        return hl_fail(HOLA_ENOTSUP, "%s: tokenizer.ggml.model: \"%.*s\" is not supported (llama, gpt2 are)", g->path,
                       (int)(len < 60 ? len : 60), model);
    s = read_arrays(&k);
    if (s == HOLA_OK) drop_padding(&k);
    if (s == HOLA_OK) s = spm ? make_spm(&k, out) : make_json(&k, out);
    if (spm) *name = "tokenizer.model";
    return s;
}
