/* encode.c -- conversations as tokens: a prompt awaiting an answer, and a training example with all answers. */
#define _GNU_SOURCE
#include "chat/template_internal.h"
#include <stdlib.h>
#include <string.h>

struct encoding {
    const struct hl_template *t;
    struct hl_ids ids;
    struct hl_text run; /* text not yet encoded */
    bool begins;        /* nothing but BOS comes before it */
    hola_status s;
};

static void put_id(struct encoding *e, int32_t id) {
    if (e->s == HOLA_OK) e->s = hl_ids_room(&e->ids, 1);
    if (e->s == HOLA_OK) e->ids.data[e->ids.n++] = id;
}
static void put_bos(struct encoding *e) {
    const int32_t bos = hola_tokenizer_bos(e->t->tokenizer);
    if (bos >= 0) put_id(e, bos);
}
static hola_status put_text(struct hl_ids *to, const hola_tokenizer *t, const char *text, int64_t len) {
    int32_t *ids = NULL;
    int64_t n = 0;
    hola_status s = len > 0 ? hola_tokenizer_encode(t, text, len, 1, &ids, &n) : HOLA_OK;
    if (s == HOLA_OK) s = hl_ids_room(to, n);
    if (s == HOLA_OK && n > 0) memcpy(to->data + to->n, ids, (size_t)n * sizeof *ids), to->n += n;
    free(ids);
    return s;
}
static void flush(struct encoding *e) {
    if (e->s != HOLA_OK || e->run.n == 0) return;
    e->s = put_text(&e->ids, e->begins ? e->t->first : e->t->more, e->run.data, e->run.n);
    hl_text_clear(&e->run);
    e->begins = false;
}
static void add_content(struct encoding *e, const char *text, int64_t len) {
    if (e->s == HOLA_OK) e->s = hl_text_put(&e->run, text, len);
}
/* Returns the position after the first special token in it; -1: none. (What a template puts after an answer starts with
 * the token that ends it: hl_template_teaches.) */
static int64_t add_part(struct encoding *e, const char *text) {
    int64_t len = (int64_t)strlen(text), begin, end, behind = -1;
    int32_t id;
    while (hl_template_special(e->t, text, len, &begin, &end, &id)) {
        add_content(e, text, begin);
        if (id >= 0) {
            flush(e);
            put_id(e, id);
            e->begins = false;
            if (behind < 0) behind = e->ids.n;
        }
        text += end, len -= end;
    }
    add_content(e, text, len);
    return behind;
}

/* Where message i of m goes in a template that puts the system text into the user's message. */
struct place {
    bool inside; /* the system's: merged with the next message */
    bool opened; /* the user message was already opened before the system text */
};
static struct place place_of(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, int64_t i) {
    if (!t->system_in_user) return (struct place){false, false};
    return (struct place){m[i].role == HL_ROLE_SYSTEM && i + 1 < n && m[i + 1].role != HL_ROLE_ASSISTANT,
                          i > 0 && m[i - 1].role == HL_ROLE_SYSTEM};
}
static void open_message(struct encoding *e, enum hl_role role, struct place p) {
    if (p.inside && !p.opened) add_part(e, e->t->part[HL_ROLE_USER].before);
    if (!(p.opened && role == HL_ROLE_USER)) add_part(e, e->t->part[role].before);
}

/* ---- a prompt ---- */

hola_status hl_template_tokens(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool begins,
                               bool closes, struct hl_chat_tokens *out) {
    struct encoding e = {.t = t, .begins = begins};
    *out = (struct hl_chat_tokens){.answer_from = -1, .span = calloc((size_t)n + 1, sizeof *out->span)};
    if (!out->span) return hl_fail(HOLA_ENOMEM, "chat template: no memory");
    if (begins) put_bos(&e);
    if (closes) {
        add_part(&e, t->part[HL_ROLE_ASSISTANT].behind);
        flush(&e);
        out->closes = e.ids.n;
    }
    int64_t from = e.ids.n;
    for (int64_t i = 0; i < n; i++) {
        const bool continued = i + 1 == n && m[i].role == HL_ROLE_ASSISTANT;
        const struct place p = place_of(t, m, n, i);
        open_message(&e, m[i].role, p);
        add_content(&e, m[i].content, m[i].len);
        if (!continued) add_part(&e, t->part[m[i].role].behind);
        if (p.inside) continue;
        flush(&e);
        if (continued) out->answer_from = from;
        else out->span[out->spans++] = (struct hl_chat_span){m[i].role, from, e.ids.n};
        from = e.ids.n;
    }
    if (out->answer_from < 0) {
        out->answer_from = e.ids.n;
        if (!t->nothing_opens) add_part(&e, t->part[HL_ROLE_ASSISTANT].before);
        flush(&e);
    }
    hl_text_free(&e.run);
    out->ids = e.ids;
    if (e.s != HOLA_OK) hl_chat_tokens_free(out);
    return e.s;
}

void hl_chat_tokens_free(struct hl_chat_tokens *x) {
    free(x->ids.data);
    free(x->span);
    *x = (struct hl_chat_tokens){0};
}

int hl_template_stops(const struct hl_template *t) { return t->stops; }

const char *hl_template_stop(const struct hl_template *t, int i, int32_t *id) {
    const int64_t n = (int64_t)strlen(t->stop[i]);
    struct hl_found f;
    *id = hl_added_find(&t->specials, t->stop[i], n, 0, &f) && f.begin == 0 && f.end == n ? f.id : -1;
    return t->stop[i];
}

/* ---- a lesson ---- */

/* Whether the server ends an answer at this token. */
static bool stops_at(const struct hl_template *t, int32_t token) {
    if (token == hola_tokenizer_eos(t->tokenizer)) return true;
    for (int i = 0; i < t->stops; i++) {
        int32_t id;
        hl_template_stop(t, i, &id);
        if (id == token) return true;
    }
    return false;
}

/* What an answer at the end of a conversation still needs to show its end: the rest of the stop string whose start
 * follows the answer. "": nothing. NULL: the end cannot be determined. */
static const char *rest_of_end(const struct hl_template *t) {
    const char *behind = t->part[HL_ROLE_ASSISTANT].behind;
    const size_t k = strlen(behind);
    int64_t begin, end, len = (int64_t)k;
    int32_t id;
    for (const char *p = behind; hl_template_special(t, p, len, &begin, &end, &id); p += end, len -= end)
        if (id >= 0 && stops_at(t, id)) return "";
    for (int i = 0; i < t->stops; i++)
        if (strstr(behind, t->stop[i])) return "";
    for (int i = 0; i < t->stops; i++)
        if (strncmp(t->stop[i], behind, k) == 0) return t->stop[i] + k;
    return NULL;
}

hola_status hl_template_teaches(const struct hl_template *t) {
    if (rest_of_end(t)) return HOLA_OK;
    return hl_fail(
        HOLA_EINVAL,
        "chat template %s: nothing tells where an answer ends: this tokenizer has no such special token, and "
        "no \"stop\" begins with what follows an answer",
        t->name);
}

/* Marks tokens [from, to) as the assistant's. */
static void learn(struct hl_lesson *l, struct encoding *e, int64_t from, int64_t to) {
    uint8_t *more = e->s == HOLA_OK ? realloc(l->trained, (size_t)e->ids.n + 1) : NULL;
    if (!more && e->s == HOLA_OK) e->s = hl_fail(HOLA_ENOMEM, "chat template: no memory");
    if (!more) return;
    l->trained = more;
    memset(more + l->ids.n, 0, (size_t)(e->ids.n - l->ids.n));
    memset(more + from, 1, (size_t)(to - from));
    l->ids.n = e->ids.n; /* trained flags are set up to here */
}

static void add_answer(struct encoding *e, struct hl_lesson *l, const struct hl_chat_message *m, bool last) {
    const struct hl_template_part *p = &e->t->part[HL_ROLE_ASSISTANT];
    if (!e->t->nothing_opens) { /* as a prompt ends */
        add_part(e, p->before);
        flush(e);
    }
    const int64_t from = e->ids.n;
    if (e->t->nothing_opens) add_part(e, p->before);
    add_content(e, m->content, m->len);
    flush(e); /* as generated: what closes it is fed separately */
    int64_t to = add_part(e, p->behind);
    flush(e);
    if (last && to < 0) {
        add_content(e, rest_of_end(e->t), (int64_t)strlen(rest_of_end(e->t)));
        flush(e);
    }
    if (to < 0) to = e->ids.n;
    if (m->quoted || m->len == 0) to = from;
    else l->answers++;
    learn(l, e, from, to);
}

static hola_status finish(struct hl_lesson *l, struct encoding *e) {
    l->ids = e->ids;
    hl_text_free(&e->run);
    if (e->s != HOLA_OK) hl_lesson_free(l);
    return e->s;
}

hola_status hl_template_lesson(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool bos,
                               struct hl_lesson *out) {
    struct encoding e = {.t = t, .begins = true, .s = hl_template_teaches(t)};
    *out = (struct hl_lesson){0};
    while (n > 0 && m[n - 1].role != HL_ROLE_ASSISTANT) n--; /* trailing messages without an answer */
    if (bos) put_bos(&e);
    for (int64_t i = 0; i < n && e.s == HOLA_OK; i++) {
        const struct place p = place_of(t, m, n, i);
        if (m[i].role == HL_ROLE_ASSISTANT) {
            add_answer(&e, out, &m[i], i + 1 == n);
            continue;
        }
        open_message(&e, m[i].role, p);
        add_content(&e, m[i].content, m[i].len);
        add_part(&e, t->part[m[i].role].behind);
        if (!p.inside) flush(&e);
    }
    learn(out, &e, e.ids.n, e.ids.n);
    return finish(out, &e);
}

hola_status hl_lesson_plain(const hola_tokenizer *t, const struct hl_chat_message *prompt,
                            const struct hl_chat_message *answer, bool bos, struct hl_lesson *out) {
    struct encoding e = {.s = HOLA_OK};
    hola_tokenizer *more = prompt->len > 0 ? hl_tokenizer_continuing(t) : NULL;
    const int32_t first = bos ? hola_tokenizer_bos(t) : -1, eos = hola_tokenizer_eos(t);
    *out = (struct hl_lesson){0};
    if (prompt->len > 0 && !more) return hl_fail(HOLA_ENOMEM, "conversation: no memory");
    if (first >= 0) put_id(&e, first);
    if (e.s == HOLA_OK) e.s = put_text(&e.ids, t, prompt->content, prompt->len);
    const int64_t from = e.ids.n;
    if (e.s == HOLA_OK) e.s = put_text(&e.ids, more ? more : t, answer->content, answer->len);
    if (eos >= 0) put_id(&e, eos);
    out->answers = answer->len > 0;
    learn(out, &e, from, answer->len > 0 ? e.ids.n : from);
    free(more);
    return finish(out, &e);
}

void hl_lesson_free(struct hl_lesson *x) {
    free(x->ids.data);
    free(x->trained);
    *x = (struct hl_lesson){0};
}
