/* template.c -- see template.h. */
#define _GNU_SOURCE
#include "serve/template.h"
#include "core/file.h"
#include "core/json.h"
#include "tokenizer/gguf_keys.h"
#include "tokenizer/tokenizer.h"
#include <stdlib.h>
#include <string.h>

enum { STOPS = 8, MOST_FILE = 1 << 20 };
struct part {
    const char *before, *behind;
};
struct builtin {
    const char *name, *sign; /* sign: what in a chat_template of Hugging Face tells that it is this one */
    struct part part[HL_ROLES];
    const char *stop;
    bool system_in_user; /* the system's text stands in the next user's message */
    bool nothing_opens;  /* an answer begins right behind the question */
};
/* In the order in which auto looks for them; plain is what is left. */
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

struct hl_template {
    char *name;
    struct part part[HL_ROLES];
    struct part bare[HL_ROLES]; /* without special tokens: as they decode */
    const char *stop[STOPS];
    int stops;
    bool system_in_user, nothing_opens;
    const hola_tokenizer *tokenizer;
    struct hl_added specials;     /* of the tokenizer */
    hola_tokenizer *first, *more; /* views that know none of them: for a text's beginning, for what follows */
    struct hl_added raw, normalised;
    json_t *file; /* whose strings the parts are */
    char *store[2 * HL_ROLES];
};

/* ---- special tokens ---- */

static bool uses(const struct hl_template *t, const char *token) {
    for (int r = 0; r < HL_ROLES; r++)
        if (strstr(t->part[r].before, token) || strstr(t->part[r].behind, token)) return true;
    return false;
}

/* Those of a list that are neither special nor the template's own. */
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

/* The next special token or place for one in a template's text: *id is -1 where the tokenizer has none. */
static bool next_special(const struct hl_template *t, const char *text, int64_t len, int64_t *begin, int64_t *end,
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

/* The text that a part leaves when it is decoded. */
static char *bare(const struct hl_template *t, const char *text) {
    char *out = calloc(1, strlen(text) + 1);
    int64_t len = (int64_t)strlen(text), begin, end;
    int32_t id;
    while (out && next_special(t, text, len, &begin, &end, &id)) {
        strncat(out, text, (size_t)begin);
        text += end, len -= end;
    }
    if (out) strncat(out, text, (size_t)len);
    return out;
}

/* ---- life ---- */

static hola_status from_file(struct hl_template *t, const char *path) {
    static const char *const keys[] = {NULL, "system", "user", "assistant"};
    struct hl_map map;
    hola_status s = hl_map_open(&map, path);
    if (s == HOLA_OK) s = hl_json_object(&t->file, map.data, map.size, MOST_FILE, path);
    hl_map_close(&map);
    if (s != HOLA_OK) return s;
    t->part[HL_ROLE_TEXT] = (struct part){"", ""};
    for (int r = 1; r < HL_ROLES; r++) {
        const json_t *pair = json_object_get(t->file, keys[r]);
        t->part[r] =
            (struct part){json_string_value(json_array_get(pair, 0)), json_string_value(json_array_get(pair, 1))};
        if (json_array_size(pair) != 2 || !t->part[r].before || !t->part[r].behind)
            return hl_fail(HOLA_EFORMAT, "%s: \"%s\" is not a list of two strings", path, keys[r]);
    }
    const json_t *stop = json_object_get(t->file, "stop");
    if (stop && (!json_is_array(stop) || json_array_size(stop) > STOPS))
        return hl_fail(HOLA_EFORMAT, "%s: \"stop\" is not a list of up to %d strings", path, STOPS);
    for (size_t i = 0; i < json_array_size(stop); i++) {
        const json_t *x = json_array_get(stop, i);
        if (!json_is_string(x) || json_string_length(x) == 0)
            return hl_fail(HOLA_EFORMAT, "%s: \"stop\" holds something else than strings", path);
        t->stop[t->stops++] = json_string_value(x);
    }
    return HOLA_OK;
}

/* The built-in one that the model's chat_template looks like; NULL: none, or no such file. */
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

hola_status hl_template_open(struct hl_template **out, const char *name, const char *model_dir,
                             const hola_tokenizer *tokenizer, bool *guessed) {
    struct hl_template *t = calloc(1, sizeof *t);
    *out = NULL, *guessed = false;
    if (!t) return hl_fail(HOLA_ENOMEM, "chat template: no memory");
    t->tokenizer = tokenizer;
    if (!name) {
        name = guess(model_dir);
        *guessed = !name;
        if (!name) name = "plain";
    }
    const struct builtin *b = NULL;
    for (int i = 0; i < BUILTINS; i++)
        if (!strcmp(builtins[i].name, name)) b = &builtins[i];
    t->name = strdup(name);
    hola_status s = t->name ? HOLA_OK : hl_fail(HOLA_ENOMEM, "chat template: no memory");
    if (s == HOLA_OK && !b) s = from_file(t, name);
    if (b) {
        memcpy(t->part, b->part, sizeof t->part);
        t->system_in_user = b->system_in_user, t->nothing_opens = b->nothing_opens;
        if (b->stop) t->stop[t->stops++] = b->stop;
    }
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
        const struct part *p = &t->part[m[i].role];
        int64_t k = i; /* the system's texts that stand in this message */
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

/* ---- tokens ---- */

struct encoding {
    const struct hl_template *t;
    struct hl_ids ids;
    struct hl_text run; /* text that is not yet encoded */
    bool begins;        /* nothing but BOS stands before it */
    hola_status s;
};

static void put_id(struct encoding *e, int32_t id) {
    if (e->s == HOLA_OK) e->s = hl_ids_room(&e->ids, 1);
    if (e->s == HOLA_OK) e->ids.data[e->ids.n++] = id;
}
static void flush(struct encoding *e) {
    int32_t *ids = NULL;
    int64_t n = 0;
    if (e->s != HOLA_OK || e->run.n == 0) return;
    e->s = hola_tokenizer_encode(e->begins ? e->t->first : e->t->more, e->run.data, e->run.n, 1, &ids, &n);
    if (e->s == HOLA_OK) e->s = hl_ids_room(&e->ids, n);
    if (e->s == HOLA_OK && n > 0) memcpy(e->ids.data + e->ids.n, ids, (size_t)n * sizeof *ids), e->ids.n += n;
    free(ids);
    hl_text_clear(&e->run);
    e->begins = false;
}
static void add_content(struct encoding *e, const char *text, int64_t len) {
    if (e->s == HOLA_OK) e->s = hl_text_put(&e->run, text, len);
}
static void add_part(struct encoding *e, const char *text) {
    int64_t len = (int64_t)strlen(text), begin, end;
    int32_t id;
    while (next_special(e->t, text, len, &begin, &end, &id)) {
        add_content(e, text, begin);
        if (id >= 0) {
            flush(e);
            put_id(e, id);
            e->begins = false;
        }
        text += end, len -= end;
    }
    add_content(e, text, len);
}

/* The template's stops: a special token's name is a token, anything else a text. */
static hola_status add_stops(const struct hl_template *t, struct hl_serve_request *r) {
    char **stop = realloc(r->stop, (size_t)(r->n_stop + t->stops + 1) * sizeof *stop);
    if (stop) r->stop = stop;
    int64_t *len = stop ? realloc(r->stop_len, (size_t)(r->n_stop + t->stops + 1) * sizeof *len) : NULL;
    if (!len) return hl_fail(HOLA_ENOMEM, "chat template: no memory");
    r->stop_len = len;
    for (int i = 0; i < t->stops; i++) {
        const int64_t n = (int64_t)strlen(t->stop[i]);
        struct hl_found f;
        if (hl_added_find(&t->specials, t->stop[i], n, 0, &f) && f.begin == 0 && f.end == n) {
            if (r->n_stop_id < (int)(sizeof r->stop_id / sizeof *r->stop_id)) r->stop_id[r->n_stop_id++] = f.id;
            continue;
        }
        r->stop[r->n_stop] = strdup(t->stop[i]);
        if (!r->stop[r->n_stop]) return hl_fail(HOLA_ENOMEM, "chat template: no memory");
        r->stop_len[r->n_stop++] = n;
    }
    return HOLA_OK;
}

hola_status hl_template_prompt(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool begins,
                               bool closes, struct hl_serve_request *r) {
    struct encoding e = {.t = t, .begins = begins};
    const int32_t bos = hola_tokenizer_bos(t->tokenizer);
    if (begins && bos >= 0) put_id(&e, bos);
    r->closes = 0;
    if (closes) {
        add_part(&e, t->part[HL_ROLE_ASSISTANT].behind);
        flush(&e);
        r->closes = e.ids.n;
    }
    r->answer_from = -1;
    int64_t from = e.ids.n;
    for (int64_t i = 0; i < n; i++) {
        const struct part *p = &t->part[m[i].role], *user = &t->part[HL_ROLE_USER];
        const bool continued = i + 1 == n && m[i].role == HL_ROLE_ASSISTANT;
        const bool inside =
            t->system_in_user && m[i].role == HL_ROLE_SYSTEM && i + 1 < n && m[i + 1].role != HL_ROLE_ASSISTANT;
        const bool opened = i > 0 && t->system_in_user && m[i - 1].role == HL_ROLE_SYSTEM;
        if (inside && !opened) add_part(&e, user->before);
        if (!(opened && m[i].role == HL_ROLE_USER)) add_part(&e, p->before);
        add_content(&e, m[i].content, m[i].len);
        if (!continued) add_part(&e, p->behind);
        if (inside) continue; /* one message with the next */
        flush(&e);
        if (continued) r->answer_from = from;
        else if (e.s == HOLA_OK)
            e.s = hl_message_spans_add(&r->spans, (struct hl_message_span){m[i].role, true, from, e.ids.n});
        from = e.ids.n;
    }
    if (r->answer_from < 0) {
        r->answer_from = e.ids.n;
        if (!t->nothing_opens) add_part(&e, t->part[HL_ROLE_ASSISTANT].before);
        flush(&e);
    }
    if (e.s == HOLA_OK) e.s = add_stops(t, r);
    r->prompt = e.s == HOLA_OK ? calloc(1, sizeof *r->prompt) : NULL;
    hl_text_free(&e.run);
    if (!r->prompt) {
        free(e.ids.data);
        return e.s == HOLA_OK ? hl_fail(HOLA_ENOMEM, "chat template: no memory") : e.s;
    }
    r->prompts = 1;
    r->prompt[0] = (struct hl_prompt){e.ids.data, e.ids.n};
    return HOLA_OK;
}

void hl_template_strip(const struct hl_template *t, enum hl_role role, const char **text, int64_t *len) {
    const int64_t before = (int64_t)strlen(t->bare[role].before), behind = (int64_t)strlen(t->bare[role].behind);
    if (before > 0 && *len >= before && memcmp(*text, t->bare[role].before, (size_t)before) == 0)
        *text += before, *len -= before;
    if (behind > 0 && *len >= behind && memcmp(*text + *len - behind, t->bare[role].behind, (size_t)behind) == 0)
        *len -= behind;
}
