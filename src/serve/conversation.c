/* conversation.c -- see conversation.h. */
#define _GNU_SOURCE
#include "serve/conversation.h"
#include "core/clock.h"
#include "core/rng.h"
#include <stdlib.h>
#include <string.h>

hola_status hl_message_spans_add(struct hl_message_spans *s, struct hl_message_span x) {
    if (s->n == s->room) {
        const int64_t room = 2 * s->room + 8;
        struct hl_message_span *more = realloc(s->span, (size_t)room * sizeof *more);
        if (!more) return hl_fail(HOLA_ENOMEM, "no memory for %lld messages", (long long)room);
        s->span = more, s->room = room;
    }
    s->span[s->n++] = x;
    return HOLA_OK;
}

bool hl_id_valid(const char *id) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t n = strlen(id);
    return n > 0 && n <= HL_ID_MOST && id[0] != '.' && id[0] != '_' && id[0] != '-' && strspn(id, letters) == n;
}

/* ---- the table ---- */

void hl_conversations_init(struct hl_conversations *t) {
    memset(t, 0, sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
}
void hl_conversations_free(struct hl_conversations *t) {
    while (t->newest) {
        struct hl_conversation *c = t->newest;
        hl_conversation_remove(t, c);
        hl_conversation_free(c);
    }
    pthread_mutex_destroy(&t->lock);
}

static struct hl_conversation **bucket_of(struct hl_conversations *t, const char *id) {
    return &t->bucket[hl_fnv1a(id) % HL_CONVERSATION_BUCKETS];
}
struct hl_conversation *hl_conversation_find(struct hl_conversations *t, const char *id) {
    struct hl_conversation *c = *bucket_of(t, id);
    while (c && strcmp(c->id, id) != 0) c = c->chain;
    return c;
}

static void unlink_use(struct hl_conversations *t, struct hl_conversation *c) {
    *(c->newer ? &c->newer->older : &t->newest) = c->older;
    *(c->older ? &c->older->newer : &t->oldest) = c->newer;
}
static void link_newest(struct hl_conversations *t, struct hl_conversation *c) {
    c->newer = NULL, c->older = t->newest;
    *(t->newest ? &t->newest->newer : &t->oldest) = c;
    t->newest = c;
}

struct hl_conversation *hl_conversation_add(struct hl_conversations *t, const char *id) {
    struct hl_conversation *c = calloc(1, sizeof *c);
    if (!c || !(c->metadata = json_object())) {
        free(c);
        return NULL;
    }
    memcpy(c->id, id, strlen(id) + 1);
    c->created = c->used = (int64_t)time(NULL);
    pthread_mutex_lock(&t->lock);
    c->chain = *bucket_of(t, id);
    *bucket_of(t, id) = c;
    link_newest(t, c);
    t->n++;
    pthread_mutex_unlock(&t->lock);
    return c;
}

void hl_conversation_remove(struct hl_conversations *t, struct hl_conversation *c) {
    struct hl_conversation **at = bucket_of(t, c->id);
    pthread_mutex_lock(&t->lock);
    while (*at != c) at = &(*at)->chain;
    *at = c->chain;
    unlink_use(t, c);
    t->n--;
    c->deleted = true;
    pthread_mutex_unlock(&t->lock);
}

void hl_conversation_free(struct hl_conversation *c) {
    hl_conversation_forget(c);
    json_decref(c->metadata);
    free(c);
}

void hl_conversation_touch(struct hl_conversations *t, struct hl_conversation *c) {
    c->used = (int64_t)time(NULL);
    if (c->deleted) return;
    pthread_mutex_lock(&t->lock);
    unlink_use(t, c);
    link_newest(t, c);
    pthread_mutex_unlock(&t->lock);
}

bool hl_conversation_peek(struct hl_conversations *t, const char *id, struct hl_peek *out) {
    pthread_mutex_lock(&t->lock);
    const struct hl_conversation *c = hl_conversation_find(t, id);
    if (c) *out = (struct hl_peek){c->position, c->open};
    pthread_mutex_unlock(&t->lock);
    return c;
}

/* ---- one conversation ---- */

void hl_conversation_forget(struct hl_conversation *c) {
    hola_session_free(c->session);
    c->session = NULL;
    hl_tape_free(&c->tape);
    free(c->spans.span);
    c->spans = (struct hl_message_spans){0};
}

void hl_conversation_changed(struct hl_conversation *c) {
    if (c->revision == c->saved_revision) c->changed = hl_clock();
    c->revision++;
}

static void set_position(struct hl_conversations *t, struct hl_conversation *c) {
    const struct hl_message_span *last = c->spans.n ? &c->spans.span[c->spans.n - 1] : NULL;
    pthread_mutex_lock(&t->lock);
    c->position = c->tape.n;
    c->open = last && last->role == HL_ROLE_ASSISTANT && !last->closed;
    pthread_mutex_unlock(&t->lock);
}

void hl_conversation_turn(struct hl_conversations *t, struct hl_conversation *c) {
    if (c->turns == HL_TURNS_MOST) memmove(c->turn, c->turn + 1, sizeof c->turn - sizeof *c->turn), c->turns--;
    if (c->turns == 0 || c->turn[c->turns - 1] != c->tape.n) c->turn[c->turns++] = c->tape.n;
    set_position(t, c);
    hl_conversation_changed(c);
    hl_conversation_touch(t, c);
}

void hl_conversation_cut(struct hl_conversations *t, struct hl_conversation *c, int64_t position) {
    c->tape.n = position;
    while (c->turns > 0 && c->turn[c->turns - 1] > position) c->turns--;
    if (position > 0 && (c->turns == 0 || c->turn[c->turns - 1] < position)) c->turn[c->turns++] = position;
    while (c->spans.n > 0 && c->spans.span[c->spans.n - 1].from >= position) c->spans.n--;
    struct hl_message_span *last = c->spans.n ? &c->spans.span[c->spans.n - 1] : NULL;
    if (last && last->to > position) last->to = position, last->closed = false;
    set_position(t, c);
    hl_conversation_changed(c);
    hl_conversation_touch(t, c);
}

/* ---- JSON ---- */

static json_t *integers(const int64_t *x, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_integer(x[i]));
    return list;
}

json_t *hl_conversation_json(const struct hl_conversation *c, int64_t state_bytes) {
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:b, s:I, s:s?, s:o, s:O}", "id", c->id, "object", "session",
                     "created", (json_int_t)c->created, "used", (json_int_t)c->used, "position",
                     (json_int_t)(c->writers ? c->tape.n : c->position), "saved_position",
                     (json_int_t)c->saved_position, "where", c->on_disk ? "disk" : "memory", "busy",
                     c->writers > 0 || c->copies > 0, "bytes", (json_int_t)state_bytes, "parent",
                     c->parent[0] ? c->parent : NULL, "turns", integers(c->turn, c->turns), "metadata", c->metadata);
}

json_t *hl_conversation_about(const struct hl_conversation *c) {
    json_t *spans = json_array();
    for (int64_t i = 0; i < c->spans.n; i++) {
        const struct hl_message_span *x = &c->spans.span[i];
        json_array_append_new(
            spans, json_pack("[i, b, I, I]", (int)x->role, (int)x->closed, (json_int_t)x->from, (json_int_t)x->to));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:s?, s:b, s:o, s:o, s:O}", "created", (json_int_t)c->created, "used",
                     (json_int_t)c->used, "position", (json_int_t)c->tape.n, "known_from", (json_int_t)c->known_from,
                     "parent", c->parent[0] ? c->parent : NULL, "open", (int)c->open, "turns",
                     integers(c->turn, c->turns), "messages", spans, "metadata", c->metadata);
}

static bool integer(const json_t *root, const char *key, int64_t *out) {
    const json_t *x = json_object_get(root, key);
    *out = json_integer_value(x);
    return json_is_integer(x) && *out >= 0;
}

static bool read_turns(struct hl_conversation *c, const json_t *list) {
    c->turns = 0;
    if (!json_is_array(list) || json_array_size(list) > HL_TURNS_MOST) return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        const int64_t at = json_integer_value(x), before = c->turns ? c->turn[c->turns - 1] : 0;
        if (!json_is_integer(x) || at < before || at > c->position) return false;
        c->turn[c->turns++] = at;
    }
    return true;
}

static bool read_spans(struct hl_conversation *c, const json_t *list) {
    int64_t at = 0;
    if (!json_is_array(list)) return false;
    c->spans.n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i), *role = json_array_get(row, 0), *closed = json_array_get(row, 1),
                     *from = json_array_get(row, 2), *to = json_array_get(row, 3);
        const struct hl_message_span x = {(enum hl_role)json_integer_value(role), json_is_true(closed),
                                          json_integer_value(from), json_integer_value(to)};
        if (json_array_size(row) != 4 || !json_is_integer(role) || !json_is_boolean(closed) || !json_is_integer(from) ||
            !json_is_integer(to) || json_integer_value(role) < 0 || json_integer_value(role) >= HL_ROLES ||
            x.from < at || x.to < x.from || x.to > c->position || hl_message_spans_add(&c->spans, x) != HOLA_OK)
            return false;
        at = x.to;
    }
    return true;
}

bool hl_conversation_from(struct hl_conversation *c, const json_t *about, bool spans) {
    const json_t *parent = json_object_get(about, "parent"), *metadata = json_object_get(about, "metadata");
    if (!integer(about, "created", &c->created) || !integer(about, "used", &c->used) ||
        !integer(about, "position", &c->position) || !integer(about, "known_from", &c->known_from) ||
        c->known_from > c->position || !json_is_object(metadata) || !json_is_boolean(json_object_get(about, "open")) ||
        !read_turns(c, json_object_get(about, "turns")))
        return false;
    if (json_is_string(parent) && hl_id_valid(json_string_value(parent)))
        memcpy(c->parent, json_string_value(parent), json_string_length(parent) + 1);
    else if (!json_is_null(parent)) return false;
    c->open = json_is_true(json_object_get(about, "open"));
    json_t *copy = json_deep_copy(metadata);
    if (!copy) return false;
    json_decref(c->metadata);
    c->metadata = copy;
    return !spans || read_spans(c, json_object_get(about, "messages"));
}
