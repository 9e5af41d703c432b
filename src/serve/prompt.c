/* prompt.c -- see prompt.h. */
#define _POSIX_C_SOURCE 200809L
#include "serve/prompt.h"
#include <stdlib.h>
#include <string.h>

/* Adds the template's stops: a special token's name becomes a token, anything else a text. */
static hola_status add_stops(const struct hl_template *t, struct hl_serve_request *r) {
    const size_t room = (size_t)(r->n_stop + hl_template_stops(t) + 1);
    char **stop = realloc(r->stop, room * sizeof *stop);
    if (stop) r->stop = stop;
    int64_t *len = stop ? realloc(r->stop_len, room * sizeof *len) : NULL;
    if (!len) return hl_fail(HOLA_ENOMEM, "chat template: no memory");
    r->stop_len = len;
    for (int i = 0; i < hl_template_stops(t); i++) {
        int32_t id;
        const char *text = hl_template_stop(t, i, &id);
        if (id >= 0) {
            if (r->n_stop_id < (int)(sizeof r->stop_id / sizeof *r->stop_id)) r->stop_id[r->n_stop_id++] = id;
            continue;
        }
        r->stop[r->n_stop] = strdup(text);
        if (!r->stop[r->n_stop]) return hl_fail(HOLA_ENOMEM, "chat template: no memory");
        r->stop_len[r->n_stop++] = (int64_t)strlen(text);
    }
    return HOLA_OK;
}

hola_status hl_template_prompt(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool begins,
                               bool closes, struct hl_serve_request *r) {
    struct hl_chat_tokens x;
    hola_status s = hl_template_tokens(t, m, n, begins, closes, &x);
    if (s != HOLA_OK) return s;
    for (int64_t i = 0; i < x.spans && s == HOLA_OK; i++)
        s = hl_message_spans_add(&r->spans,
                                 (struct hl_message_span){x.span[i].role, true, x.span[i].from, x.span[i].to});
    r->closes = x.closes, r->answer_from = x.answer_from;
    if (s == HOLA_OK) s = add_stops(t, r);
    r->prompt = s == HOLA_OK ? calloc(1, sizeof *r->prompt) : NULL;
    if (s == HOLA_OK && !r->prompt) s = hl_fail(HOLA_ENOMEM, "chat template: no memory");
    if (s == HOLA_OK) {
        r->prompts = 1;
        r->prompt[0] = (struct hl_prompt){x.ids.data, x.ids.n};
        x.ids.data = NULL; /* ownership moved */
    }
    hl_chat_tokens_free(&x);
    return s;
}
