/* gguf_out.c -- a tokenizer file as the keys of a GGUF file. */
#define _POSIX_C_SOURCE 200809L
#include "tokenizer/gguf_keys.h"
#include "tokenizer/spm.h"
#include "tokenizer/tokenizer_json.h"
#include <stdlib.h>
#include <sys/stat.h>

enum { MOST_CONFIG = 1 << 26 }; /* bytes of a tokenizer_config.json */

/* A tokenizer file, and the model that it is for. */
struct from {
    const char *path, *data;
    int64_t size, vocab;
    bool llama, add_bos;
};

/* The pieces that a vocabulary has beyond the tokenizer's. */
static void put_padding(struct hl_gguf_keys *k, int64_t from, int64_t vocab) {
    char text[32];
    for (int64_t i = from; i < vocab; i++) {
        const int n = snprintf(text, sizeof text, "[PAD%lld]", (long long)i);
        hl_gguf_put_item_string(k, text, n);
    }
}

static hola_status check_size(const struct from *from, int64_t size) {
    if (size <= from->vocab) return HOLA_OK;
    return hl_fail(HOLA_EINVAL, "%s: %lld tokens, and the model has a vocabulary of %lld", from->path, (long long)size,
                   (long long)from->vocab);
}

static void put_id(struct hl_gguf_keys *k, const char *key, int64_t id) {
    if (id >= 0) hl_gguf_put_int(k, key, id);
}
/* hola puts BOS before a text, where there is one, and no EOS behind it. */
static void put_ends(struct hl_gguf_keys *k, int32_t bos, int32_t eos, bool add_bos) {
    put_id(k, "tokenizer.ggml.bos_token_id", bos);
    put_id(k, "tokenizer.ggml.eos_token_id", eos);
    hl_gguf_put_bool(k, "tokenizer.ggml.add_bos_token", bos >= 0 && add_bos);
    hl_gguf_put_bool(k, "tokenizer.ggml.add_eos_token", false);
}
static void put_model(struct hl_gguf_keys *k, const char *model, const char *pre) {
    hl_gguf_put_string(k, "tokenizer.ggml.model", model, (int64_t)strlen(model));
    hl_gguf_put_string(k, "tokenizer.ggml.pre", pre, (int64_t)strlen(pre));
}

/* ---- SentencePiece ---- */

static void put_pieces(struct hl_gguf_keys *k, const struct hl_spm *m, const struct hl_bpe *b, int64_t vocab) {
    const float score = -1000; /* of padding */
    const int32_t type = HL_PIECE_UNUSED;
    hl_gguf_put_array(k, "tokenizer.ggml.tokens", HL_GGUF_STRING, vocab);
    for (int64_t i = 0; i < b->size; i++) hl_gguf_put_item_string(k, b->piece[i].text, b->piece[i].len);
    put_padding(k, b->size, vocab);
    hl_gguf_put_array(k, "tokenizer.ggml.scores", HL_GGUF_F32, vocab);
    hl_gguf_put_item(k, m->score, b->size * 4);
    for (int64_t i = b->size; i < vocab; i++) hl_gguf_put_item(k, &score, 4);
    hl_gguf_put_array(k, "tokenizer.ggml.token_type", HL_GGUF_I32, vocab);
    for (int64_t i = 0; i < vocab; i++) {
        const int32_t own = i < b->size ? b->piece[i].type : type;
        hl_gguf_put_item(k, &own, 4);
    }
}

static hola_status put_spm(struct hl_gguf_keys *k, const struct from *from) {
    hola_tokenizer t = {.bpe.unknown = -1};
    struct hl_spm m;
    int32_t unknown = -1;
    hola_status s = hl_spm_parse(&m, &t, from->data, from->size, from->path);
    if (s == HOLA_OK) s = check_size(from, t.bpe.size);
    if (s == HOLA_OK && !m.byte_fallback)
        s = hl_fail(HOLA_ENOTSUP, "%s: no byte pieces, which the tokenizers of GGUF need", from->path);
    if (s == HOLA_OK && !m.escape)
        s = hl_fail(HOLA_ENOTSUP, "%s: spaces that are not U+2581, as GGUF wants them", from->path);
    for (int64_t i = 0; s == HOLA_OK && i < t.bpe.size; i++)
        if (t.bpe.piece[i].type == HL_PIECE_UNKNOWN) unknown = (int32_t)i;
    if (s == HOLA_OK) {
        put_model(k, "llama", "default");
        put_pieces(k, &m, &t.bpe, from->vocab);
        put_ends(k, hl_spm_control(&t.bpe, &m.bos), hl_spm_control(&t.bpe, &m.eos), from->add_bos);
        put_id(k, "tokenizer.ggml.unknown_token_id", unknown);
        hl_gguf_put_bool(k, "tokenizer.ggml.add_space_prefix", m.add_prefix);
        hl_gguf_put_bool(k, "tokenizer.ggml.remove_extra_whitespaces", m.squeeze);
    }
    free(m.score), free(t.unknown_text), free(t.bpe.piece);
    return s;
}

/* ---- tokenizer.json ---- */

/* The entry of hl_gguf_pre that says the same; NULL: none. Whether ByteLevel trims offsets changes no token. */
static const struct hl_gguf_pre *find_pre(const json_t *pre_tokenizer, bool whole_words) {
    json_t *copy = json_deep_copy(pre_tokenizer), *list = json_object_get(copy, "pretokenizers");
    json_t *last = list ? json_array_get(list, json_array_size(list) - 1) : copy;
    const struct hl_gguf_pre *found = NULL;
    json_object_del(last, "trim_offsets");
    if (last && !json_object_get(last, "use_regex")) json_object_set_new(last, "use_regex", json_true());
    for (const struct hl_gguf_pre *p = hl_gguf_pre; p->name && !found; p++) {
        json_t *own = json_loads(p->json, 0, NULL);
        if (p->whole_words == whole_words && json_equal(own, copy)) found = p;
        json_decref(own);
    }
    json_decref(copy);
    return found;
}

static hola_status refuse(const char *path, const char *what) {
    return hl_fail(HOLA_ENOTSUP, "%s: %s: a GGUF file for llama.cpp cannot say this", path, what);
}

/* A tokenizer.json that tokenizer.ggml.* can express. */
static hola_status check_json(const json_t *root, const char *path) {
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    const json_t *n = json_object_get(root, "normalizer"), *added = json_object_get(root, "added_tokens");
    if (n && !json_is_null(n)) return refuse(path, "normalizer");
    if (strcmp(hl_json_type(json_object_get(root, "decoder")), "ByteLevel") != 0) return refuse(path, "decoder");
    for (size_t i = 0; i < json_array_size(added); i++)
        for (int f = 0; f < 3; f++)
            if (hl_json_flag(json_array_get(added, i), flags[f], false)) return refuse(path, flags[f]);
    return HOLA_OK;
}

struct token {
    const char *text;
    int32_t type;
};

static void put_tokens(struct hl_gguf_keys *k, const json_t *root, const hola_tokenizer *t, int64_t vocab,
                       struct token *token) {
    const json_t *added = json_object_get(root, "added_tokens");
    const char *text;
    json_t *id;
    json_object_foreach(json_object_get(json_object_get(root, "model"), "vocab"), text, id)
        token[json_integer_value(id)] = (struct token){text, HL_PIECE_NORMAL};
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *a = json_array_get(added, i);
        token[json_integer_value(json_object_get(a, "id"))] =
            (struct token){json_string_value(json_object_get(a, "content")),
                           hl_json_flag(a, "special", false) ? HL_PIECE_CONTROL : HL_PIECE_USER};
    }
    hl_gguf_put_array(k, "tokenizer.ggml.tokens", HL_GGUF_STRING, vocab);
    for (int64_t i = 0; i < t->bpe.size; i++) {
        if (token[i].text) hl_gguf_put_item_string(k, token[i].text, (int64_t)strlen(token[i].text));
        else put_padding(k, i, i + 1);
    }
    put_padding(k, t->bpe.size, vocab);
    hl_gguf_put_array(k, "tokenizer.ggml.token_type", HL_GGUF_I32, vocab);
    for (int64_t i = 0; i < vocab; i++) {
        const int32_t type = token[i].text ? token[i].type : HL_PIECE_UNUSED;
        hl_gguf_put_item(k, &type, 4);
    }
}

static void put_merges(struct hl_gguf_keys *k, const json_t *merges) {
    hl_gguf_put_array(k, "tokenizer.ggml.merges", HL_GGUF_STRING, (int64_t)json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *m = json_array_get(merges, i);
        struct hl_text both = {0};
        if (json_is_string(m)) hl_text_puts(&both, json_string_value(m));
        else
            hl_text_printf(&both, "%s %s", json_string_value(json_array_get(m, 0)),
                           json_string_value(json_array_get(m, 1)));
        hl_gguf_put_item_string(k, both.data, both.n);
        k->text.failed |= both.failed;
        hl_text_free(&both);
    }
}

/* t: the tokenizer of this JSON text, so that all in it is known to be right. */
static hola_status put_gpt2(struct hl_gguf_keys *k, const json_t *root, const hola_tokenizer *t,
                            const struct from *from) {
    const json_t *model = json_object_get(root, "model");
    const struct hl_gguf_pre *pre =
        find_pre(json_object_get(root, "pre_tokenizer"), hl_json_flag(model, "ignore_merges", false));
    hola_status s = check_json(root, from->path);
    if (s == HOLA_OK && !pre) s = refuse(from->path, "pre_tokenizer");
    if (s != HOLA_OK) return s;
    struct token *token = calloc((size_t)from->vocab + 1, sizeof *token);
    if (!token) return hl_fail(HOLA_ENOMEM, "%s: %lld tokens", from->path, (long long)from->vocab);
    put_model(k, "gpt2", pre->name);
    put_tokens(k, root, t, from->vocab, token);
    put_merges(k, json_object_get(model, "merges"));
    put_ends(k, t->bos, t->eos, from->add_bos);
    free(token);
    return HOLA_OK;
}

static hola_status put_json(struct hl_gguf_keys *k, const struct from *from) {
    hola_tokenizer *t = NULL;
    json_t *root = NULL;
    hola_status s = hola_tokenizer_load(&t, from->path); /* what follows may trust the file */
    if (s == HOLA_OK) s = check_size(from, t->size);
    if (s == HOLA_OK) s = hl_json_object(&root, from->data, from->size, from->size, from->path);
    if (s == HOLA_OK && from->llama) s = put_gpt2(k, root, t, from);
    else if (s == HOLA_OK) {
        put_ends(k, t->bos, t->eos, from->add_bos);
        hl_gguf_put_string(k, "tokenizer.huggingface.json", from->data, from->size);
    }
    json_decref(root);
    hola_tokenizer_free(t);
    return s;
}

/* ---- any file ---- */

static hola_status copy_keys(struct hl_gguf_keys *k, const char *path) {
    struct hl_gguf *g;
    hola_status s = hl_gguf_open(&g, path);
    for (int64_t i = 0; s == HOLA_OK && i < g->n_values; i++)
        if (strncmp(g->value[i].key, "tokenizer.", 10) == 0) hl_gguf_put_value(k, &g->value[i]);
    hl_gguf_close(g);
    return s;
}

/* The tokenizer_config.json beside a tokenizer. */
static hola_status put_config(struct hl_gguf_keys *k, struct from *from) {
    const char *slash = strrchr(from->path, '/'), *chat;
    char *dir = strndup(from->path, slash ? (size_t)(slash - from->path) : 0), *path;
    struct hl_map map = {0};
    struct stat st;
    json_t *root = NULL;
    path = dir ? hl_path_join(dir, "tokenizer_config.json") : NULL;
    hola_status s = path ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory", from->path);
    if (s == HOLA_OK && stat(path, &st) == 0) {
        s = hl_map_open(&map, path);
        if (s == HOLA_OK) s = hl_json_object(&root, map.data, map.size, MOST_CONFIG, path);
    }
    from->add_bos = !json_is_false(json_object_get(root, "add_bos_token"));
    chat = json_string_value(json_object_get(root, "chat_template"));
    if (chat) hl_gguf_put_string(k, "tokenizer.chat_template", chat, (int64_t)strlen(chat));
    json_decref(root);
    hl_map_close(&map);
    free(dir), free(path);
    return s;
}

hola_status hl_gguf_put_tokenizer(struct hl_gguf_keys *k, const char *path, int64_t vocab, bool llama) {
    struct hl_map map = {0};
    struct stat st;
    if (hl_is_gguf(path)) return copy_keys(k, path);
    char *file = hl_tokenizer_file(path);
    if (!file) return hl_fail(HOLA_ENOMEM, "%s: no memory for its name", path);
    const bool none = stat(path, &st) == 0 && S_ISDIR(st.st_mode) && stat(file, &st) != 0;
    hola_status s = none ? HOLA_OK : hl_map_open(&map, file);
    if (s == HOLA_OK && !none) {
        struct from from = {.path = file, .data = map.data, .size = map.size, .vocab = vocab, .llama = llama};
        s = put_config(k, &from);
        if (s == HOLA_OK) s = (hl_is_tokenizer_json(map.data, map.size) ? put_json : put_spm)(k, &from);
    }
    hl_map_close(&map);
    free(file);
    return s;
}
