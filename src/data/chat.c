/* chat.c -- see chat.h. */
#include "data/chat.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct talk {
    const struct hl_record *r;
    struct hl_chat_message *message;
    int64_t *begin; /* start of each message's content in store */
    int64_t n;
    struct hl_text store;
};

static hola_status wrong(const struct talk *t, int64_t i, const char *what) {
    if (i < 0) return hl_fail(HOLA_EFORMAT, "%s: line %" PRId64 ": %s", t->r->name, t->r->line, what);
    return hl_fail(HOLA_EFORMAT, "%s: line %" PRId64 ": messages[%" PRId64 "]: %s", t->r->name, t->r->line, i, what);
}

static hola_status room_for(struct talk *t, size_t n) {
    t->message = calloc(n + 1, sizeof *t->message);
    t->begin = calloc(n + 1, sizeof *t->begin);
    return t->message && t->begin ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory", t->r->name);
}

static hola_status put(struct talk *t, const json_t *text) {
    return hl_text_put(&t->store, json_string_value(text), (int64_t)json_string_length(text));
}

static hola_status read_content(struct talk *t, int64_t i, const json_t *content) {
    static const char what[] = "\"content\" is neither a text nor a list of texts";
    hola_status s = HOLA_OK;
    if (!content) return wrong(t, i, "no \"content\"");
    if (json_is_string(content)) return put(t, content);
    if (!json_is_array(content)) return wrong(t, i, what);
    for (size_t k = 0; k < json_array_size(content) && s == HOLA_OK; k++) {
        const json_t *part = json_array_get(content, k), *type = json_object_get(part, "type");
        const json_t *text = json_object_get(part, "text");
        if (!json_is_string(text) || !json_is_string(type) || strcmp(json_string_value(type), "text") != 0)
            return wrong(t, i, what);
        s = put(t, text);
    }
    return s;
}

static hola_status read_role(struct talk *t, int64_t i, const json_t *role, enum hl_role *out) {
    char what[160];
    if (!json_is_string(role)) return wrong(t, i, role ? "\"role\" is not a text" : "no \"role\"");
    *out = hl_role_named(json_string_value(role));
    if (*out != HL_ROLE_TEXT) return HOLA_OK;
    char *shown = json_dumps(role, JSON_ENCODE_ANY | JSON_ENSURE_ASCII); /* a role may contain anything, even a
                                                                          * newline */
    snprintf(what, sizeof what, "role %.60s is none of system, developer, user, assistant", shown ? shown : "");
    free(shown);
    return wrong(t, i, what);
}

static hola_status read_message(struct talk *t, const json_t *m) {
    const json_t *weight = json_object_get(m, "weight");
    const int64_t i = t->n;
    struct hl_chat_message *x = &t->message[i];
    if (!json_is_object(m)) return wrong(t, i, "not an object");
    hola_status s = read_role(t, i, json_object_get(m, "role"), &x->role);
    t->begin[i] = t->store.n;
    if (s == HOLA_OK) s = read_content(t, i, json_object_get(m, "content"));
    x->len = t->store.n - t->begin[i];
    if (s == HOLA_OK && weight) {
        const double w = json_is_number(weight) ? json_number_value(weight) : -1;
        if (w != 0 && w != 1) return wrong(t, i, "\"weight\" is neither 0 nor 1");
        x->quoted = w == 0;
    }
    t->n++;
    return s;
}

static hola_status read_messages(struct talk *t, const json_t *list) {
    if (!json_is_array(list)) return wrong(t, -1, "\"messages\" is not a list");
    hola_status s = room_for(t, json_array_size(list));
    for (size_t i = 0; i < json_array_size(list) && s == HOLA_OK; i++) s = read_message(t, json_array_get(list, i));
    return s;
}

static hola_status read_pair(struct talk *t, const json_t *prompt, const json_t *completion) {
    const json_t *text[] = {prompt, completion};
    hola_status s = room_for(t, 2);
    if (s == HOLA_OK && !json_is_string(prompt)) s = wrong(t, -1, "\"prompt\" is not a text");
    if (s == HOLA_OK && !json_is_string(completion)) s = wrong(t, -1, "\"completion\" is not a text");
    for (; t->n < 2 && s == HOLA_OK; t->n++) {
        t->message[t->n].role = t->n == 0 ? HL_ROLE_USER : HL_ROLE_ASSISTANT;
        t->begin[t->n] = t->store.n;
        t->message[t->n].len = (int64_t)json_string_length(text[t->n]);
        s = put(t, text[t->n]);
    }
    return s;
}

static hola_status read_line(const struct hl_chat *c, struct talk *t, const json_t *root) {
    const json_t *messages = json_object_get(root, "messages"), *prompt = json_object_get(root, "prompt");
    const json_t *completion = json_object_get(root, "completion");
    if (!json_is_object(root)) return wrong(t, -1, "not a JSON object");
    if (messages && !c->look) return wrong(t, -1, "\"messages\" need a chat template");
    if (messages) return read_messages(t, messages);
    if (prompt && completion) return read_pair(t, prompt, completion);
    if (prompt || completion) return wrong(t, -1, prompt ? "no field \"completion\"" : "no field \"prompt\"");
    return wrong(t, -1, "neither \"messages\" nor \"prompt\" and \"completion\"");
}

hola_status hl_chat_decode(const struct hl_chat *c, const struct hl_record *r, struct hl_lesson *out, int64_t *bytes) {
    struct talk t = {.r = r};
    json_error_t e = {.line = 0};
    json_t *root = json_loadb(r->text, (size_t)r->len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    *out = (struct hl_lesson){0};
    hola_status s = root ? read_line(c, &t, root) : wrong(&t, -1, e.text);
    if (s == HOLA_OK) s = hl_text_put(&t.store, "", 0); /* even without any text: a valid pointer */
    for (int64_t i = 0; i < t.n && s == HOLA_OK; i++) t.message[i].content = t.store.data + t.begin[i];
    if (s == HOLA_OK && c->look) s = hl_template_lesson(c->look, t.message, t.n, c->bos, out);
    else if (s == HOLA_OK) s = hl_lesson_plain(c->tokenizer, &t.message[0], &t.message[1], c->bos, out);
    if (s == HOLA_OK && c->all && out->answers > 0) memset(out->trained, 1, (size_t)out->ids.n);
    *bytes = t.store.n;
    json_decref(root);
    free(t.message);
    free(t.begin);
    hl_text_free(&t.store);
    return s;
}
