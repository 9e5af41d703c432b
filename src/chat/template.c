/* template.c -- see template.h: the built-in templates, and conversations as text. */
#define _GNU_SOURCE
#include "chat/template_internal.h"
#include "core/file.h"
#include "core/json.h"
#include "tokenizer/gguf_keys.h"
#include "tokenizer/tokenizer.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_FILE = 1 << 20 };
const char *const hl_role_names[] = {"text", "system", "user", "assistant"};

struct builtin {
    const char *name, *sign; /* sign: identifies this template in a Hugging Face chat_template */
    struct hl_template_part part[HL_ROLES];
    const char *stop;
    bool system_in_user, nothing_opens;
};
/* In detection order; plain is the fallback. */
static const struct builtin builtins[] = {
    {"chatml",
     "<|im_start|>",
     {{"", ""},
      {"<|im_start|>system\n", "<|im_end|>\n"},
      {"<|im_start|>user\n", "<|im_end|>\n"},
      {"<|im_start|>assistant\n", "<|im_end|>\n"}},
     "<|im_end|>",
     false,
     false},
    {"llama3",
     "<|start_header_id|>",
     {{"", ""},
      {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
      {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
      {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"}},
     "<|eot_id|>",
     false,
     false},
    {"llama2",
     "<<SYS>>",
     {{"", ""}, {"<<SYS>>\n", "\n<</SYS>>\n\n"}, {"[INST] ", " [/INST]"}, {" ", " {eos}{bos}"}},
     NULL,
     true,
     true},
    {"mistral", "[INST]", {{"", ""}, {"", "\n\n"}, {"[INST] ", " [/INST]"}, {"", "{eos}"}}, NULL, true, false},
    {"zephyr",
     "<|user|>",
     {{"", ""}, {"<|system|>\n", "{eos}\n"}, {"<|user|>\n", "{eos}\n"}, {"<|assistant|>\n", "{eos}\n"}},
     NULL,
     false,
     false},
    {"plain", NULL, {{"", ""}, {"", "\n\n"}, {"User:\n", "\n\n"}, {"Assistant:\n", "\n\n"}}, "\n\nUser:", false, false},
};
enum { BUILTINS = sizeof builtins / sizeof *builtins };

enum hl_role hl_role_named(const char *name) {
    for (int k = 1; k < HL_ROLES; k++)
        if (!strcmp(hl_role_names[k], name)) return (enum hl_role)k;
    return strcmp(name, "developer") ? HL_ROLE_TEXT : HL_ROLE_SYSTEM;
}

static const struct builtin *builtin_named(const char *name) {
    for (int i = 0; i < BUILTINS; i++)
        if (!strcmp(builtins[i].name, name)) return &builtins[i];
    return NULL;
}

/* ---- special tokens ---- */

static bool uses(const struct hl_template *t, const char *token) {
    for (int r = 0; r < HL_ROLES; r++)
        if (strstr(t->part[r].before, token) || strstr(t->part[r].behind, token)) return true;
    return false;
}

/* The entries of a list that are neither special nor the template's own. */
static hola_status without_specials(const struct hl_template *t, struct hl_added *to, const struct hl_added *from) {
    hola_status s = HOLA_OK;
    for (int64_t i = 0; s == HOLA_OK && i < from->n; i++) {
        const struct hl_added_token *x = &from->token[i];
        if (t->tokenizer->bpe.piece[x->id].type == HL_PIECE_CONTROL || uses(t, x->text)) continue;
        s = hl_added_put(to, x->text, x->len, x->id);
        if (s != HOLA_OK) break;
        struct hl_added_token *y = &to->token[to->n - 1];
        y->lstrip = x->lstrip, y->rstrip = x->rstrip, y->single_word = x->single_word;
    }
    hl_added_sort(to);
    return s;
}

static hola_status find_specials(struct hl_template *t) {
    const hola_tokenizer *k = t->tokenizer;
    hola_status s = HOLA_OK;
    for (int64_t i = 0; s == HOLA_OK && !k->plain_bytes && i < k->size; i++) {
        const struct hl_token_piece *p = &k->bpe.piece[i];
        if (p->len > 0 && (p->type == HL_PIECE_CONTROL || p->type == HL_PIECE_USER))
            s = hl_added_put(&t->specials, p->text, p->len, (int32_t)i);
    }
    hl_added_sort(&t->specials);
    if (s == HOLA_OK) s = without_specials(t, &t->raw, &k->raw);
    if (s == HOLA_OK) s = without_specials(t, &t->normalised, &k->normalised);
    t->more = hl_tokenizer_continuing(k);
    t->first = malloc(sizeof *t->first);
    if (s != HOLA_OK || !t->more || !t->first) return hl_fail(HOLA_ENOMEM, "chat template: no memory");
    *t->first = *k;
    t->first->raw = t->more->raw = t->raw;
    t->first->normalised = t->more->normalised = t->normalised;
    return HOLA_OK;
}

bool hl_template_special(const struct hl_template *t, const char *text, int64_t len, int64_t *begin, int64_t *end,
                         int32_t *id) {
    struct hl_found f;
    const char *bos = memmem(text, (size_t)len, "{bos}", 5), *eos = memmem(text, (size_t)len, "{eos}", 5);
    const bool found = hl_added_find(&t->specials, text, len, 0, &f);
    *begin = *end = len, *id = -1;
    if (found) *begin = f.begin, *end = f.end, *id = f.id;
    if (bos && bos - text < *begin) *begin = bos - text, *end = *begin + 5, *id = hola_tokenizer_bos(t->tokenizer);
    if (eos && eos - text < *begin) *begin = eos - text, *end = *begin + 5, *id = hola_tokenizer_eos(t->tokenizer);
    return *begin < len;
}

/* The text that a part decodes to. */
static char *bare(const struct hl_template *t, const char *text) {
    char *out = calloc(1, strlen(text) + 1);
    int64_t len = (int64_t)strlen(text), begin, end;
    int32_t id;
    while (out && hl_template_special(t, text, len, &begin, &end, &id)) {
        strncat(out, text, (size_t)begin);
        text += end, len -= end;
    }
    if (out) strncat(out, text, (size_t)len);
    return out;
}

/* ---- life ---- */

static void from_builtin(struct hl_template *t, const struct builtin *b) {
    memcpy(t->part, b->part, sizeof t->part);
    t->builtin = true, t->system_in_user = b->system_in_user, t->nothing_opens = b->nothing_opens;
    if (b->stop) t->stop[t->stops++] = b->stop;
}

static hola_status from_file(struct hl_template *t, const char *path) {
    static const char *const keys[] = {NULL, "system", "user", "assistant"};
    struct hl_map map;
    if (!strchr(path, '/') && access(path, F_OK) != 0)
        return hl_fail(HOLA_EINVAL,
                       "chat template %s: no such file, and none of plain, chatml, llama2, llama3, mistral, zephyr",
                       path);
    hola_status s = hl_map_open(&map, path);
    if (s == HOLA_OK) s = hl_json_object(&t->file, map.data, map.size, MOST_FILE, path);
    hl_map_close(&map);
    if (s != HOLA_OK) return s;
    const char *name = json_string_value(json_object_get(t->file, "template"));
    const struct builtin *b = name ? builtin_named(name) : NULL;
    if (name && !b) return hl_fail(HOLA_EFORMAT, "%s: \"template\": there is no \"%s\"", path, name);
    if (b) { /* a file that names a built-in template */
        free(t->name);
        t->name = strdup(name);
        return t->name ? from_builtin(t, b), HOLA_OK : hl_fail(HOLA_ENOMEM, "chat template: no memory");
    }
    t->part[HL_ROLE_TEXT] = (struct hl_template_part){"", ""};
    for (int r = 1; r < HL_ROLES; r++) {
        const json_t *pair = json_object_get(t->file, keys[r]);
        t->part[r] = (struct hl_template_part){json_string_value(json_array_get(pair, 0)),
                                               json_string_value(json_array_get(pair, 1))};
        if (json_array_size(pair) != 2 || !t->part[r].before || !t->part[r].behind)
            return hl_fail(HOLA_EFORMAT, "%s: \"%s\" is not a list of two strings", path, keys[r]);
    }
    const json_t *stop = json_object_get(t->file, "stop");
    if (stop && (!json_is_array(stop) || json_array_size(stop) > HL_TEMPLATE_STOPS))
        return hl_fail(HOLA_EFORMAT, "%s: \"stop\" is not a list of up to %d strings", path, HL_TEMPLATE_STOPS);
    for (size_t i = 0; i < json_array_size(stop); i++) {
        const json_t *x = json_array_get(stop, i);
        if (!json_is_string(x) || json_string_length(x) == 0)
            return hl_fail(HOLA_EFORMAT, "%s: \"stop\" holds something else than strings", path);
        t->stop[t->stops++] = json_string_value(x);
    }
    return HOLA_OK;
}

/* The built-in template that the model's chat_template resembles; NULL: none, or no such file. */
static const char *guess(const char *model_dir) {
    char *path = hl_path_join(model_dir, "tokenizer_config.json"), *config = NULL;
    struct hl_map map = {0};
    json_t *root = NULL;
    const char *name = NULL;
    if (hl_is_gguf(model_dir) && hl_gguf_tokenizer_config_read(model_dir, &config) == HOLA_OK && config)
        hl_json_object(&root, config, (int64_t)strlen(config), MOST_FILE, model_dir);
    else if (path && hl_map_open(&map, path) == HOLA_OK) hl_json_object(&root, map.data, map.size, MOST_FILE, path);
    const char *text = json_string_value(json_object_get(root, "chat_template"));
    for (int i = 0; text && !name && i < BUILTINS; i++)
        if (builtins[i].sign && strstr(text, builtins[i].sign)) name = builtins[i].name;
    json_decref(root);
    hl_map_close(&map);
    free(path), free(config);
    return name;
}

/* The template file shipped with a fine-tuned model; NULL: none. */
static char *own_file(const char *model_dir) {
    char *path = hl_path_join(model_dir, HL_TEMPLATE_FILE);
    if (path && access(path, F_OK) == 0) return path;
    free(path);
    return NULL;
}

hola_status hl_template_open(struct hl_template **out, const char *name, const char *model_dir,
                             const hola_tokenizer *tokenizer, bool *guessed) {
    struct hl_template *t = calloc(1, sizeof *t);
    char *own = name ? NULL : own_file(model_dir);
    *out = NULL, *guessed = false;
    if (!t) return free(own), hl_fail(HOLA_ENOMEM, "chat template: no memory");
    t->tokenizer = tokenizer;
    if (!name) {
        name = own ? own : guess(model_dir);
        *guessed = !name;
        if (!name) name = "plain";
    }
    const struct builtin *b = own ? NULL : builtin_named(name);
    t->name = strdup(name);
    hola_status s = t->name ? HOLA_OK : hl_fail(HOLA_ENOMEM, "chat template: no memory");
    if (s == HOLA_OK && b) from_builtin(t, b);
    else if (s == HOLA_OK) s = from_file(t, name);
    free(own);
    if (s == HOLA_OK) s = find_specials(t);
    for (int r = 0; s == HOLA_OK && r < HL_ROLES; r++) {
        t->bare[r].before = t->store[2 * r] = bare(t, t->part[r].before);
        t->bare[r].behind = t->store[2 * r + 1] = bare(t, t->part[r].behind);
        if (!t->bare[r].before || !t->bare[r].behind) s = hl_fail(HOLA_ENOMEM, "chat template: no memory");
    }
    if (s == HOLA_OK) *out = t;
    else hl_template_free(t);
    return s;
}

void hl_template_free(struct hl_template *t) {
    if (!t) return;
    hl_added_free(&t->specials), hl_added_free(&t->raw), hl_added_free(&t->normalised);
    for (int i = 0; i < 2 * HL_ROLES; i++) free(t->store[i]);
    free(t->first), free(t->more), free(t->name);
    json_decref(t->file);
    free(t);
}

const char *hl_template_name(const struct hl_template *t) { return t->name; }

hola_status hl_template_write(const struct hl_template *t, const char *path) {
    json_t *named = t->builtin ? json_pack("{s:s}", "template", t->name) : json_incref(t->file);
    char *text = named ? json_dumps(named, JSON_INDENT(2)) : NULL;
    const hola_status s =
        text ? hl_write_file(path, text, (int64_t)strlen(text)) : hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    free(text);
    json_decref(named);
    return s;
}

/* ---- text ---- */

static void put_part(const struct hl_template *t, struct hl_text *out, const char *text) {
    const hola_tokenizer *k = t->tokenizer;
    for (const char *p; (p = strstr(text, "{bos}")) != NULL || (p = strstr(text, "{eos}")) != NULL; text = p + 5) {
        const char *eos = strstr(text, "{eos}");
        if (eos && eos < p) p = eos;
        hl_text_put(out, text, p - text);
        const int32_t id = p[1] == 'b' ? k->bos : k->eos;
        if (id >= 0 && !k->plain_bytes) hl_text_put(out, k->bpe.piece[id].text, k->bpe.piece[id].len);
    }
    hl_text_puts(out, text);
}

hola_status hl_template_text(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, char **out,
                             int64_t *len) {
    struct hl_text text = {0};
    for (int64_t i = 0; i < n; i++) {
        const struct hl_template_part *p = &t->part[m[i].role];
        int64_t k = i; /* the system texts included in this message */
        if (t->system_in_user && m[i].role == HL_ROLE_SYSTEM && i + 1 < n && m[i + 1].role != HL_ROLE_ASSISTANT)
            continue;
        put_part(t, &text, p->before);
        while (t->system_in_user && m[i].role == HL_ROLE_USER && k > 0 && m[k - 1].role == HL_ROLE_SYSTEM) k--;
        for (; k < i; k++) {
            put_part(t, &text, t->part[HL_ROLE_SYSTEM].before);
            hl_text_put(&text, m[k].content, m[k].len);
            put_part(t, &text, t->part[HL_ROLE_SYSTEM].behind);
        }
        hl_text_put(&text, m[i].content, m[i].len);
        if (i + 1 < n || m[i].role != HL_ROLE_ASSISTANT) put_part(t, &text, p->behind);
    }
    if ((n == 0 || m[n - 1].role != HL_ROLE_ASSISTANT) && !t->nothing_opens)
        put_part(t, &text, t->part[HL_ROLE_ASSISTANT].before);
    const hola_status s = hl_text_put(&text, "", 0);
    *out = text.data, *len = text.n;
    if (s != HOLA_OK) hl_text_free(&text), *out = NULL;
    return s;
}

void hl_template_strip(const struct hl_template *t, enum hl_role role, const char **text, int64_t *len) {
    const int64_t before = (int64_t)strlen(t->bare[role].before), behind = (int64_t)strlen(t->bare[role].behind);
    if (before > 0 && *len >= before && memcmp(*text, t->bare[role].before, (size_t)before) == 0)
        *text += before, *len -= before;
    if (behind > 0 && *len >= behind && memcmp(*text + *len - behind, t->bare[role].behind, (size_t)behind) == 0)
        *len -= behind;
}
