/* api_answer.c -- the response to a generation, whole or as a stream of server-sent events. */
#define _GNU_SOURCE
#include "core/json.h"
#include "core/clock.h"
#include "serve/server_internal.h"
#include "tokenizer/tokenizer.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const finishes[] = {NULL, "stop", "length"};

/* ---- tokens as text ---- */

/* The text of one token, independent of context; its bytes if they are not valid text; or its name. */
json_t *hl_piece_text(const struct hl_server *s, int32_t id) {
    const hola_tokenizer *t = s->o.tokenizer;
    const int32_t both[2] = {s->context, id};
    char *one = NULL, *two = NULL;
    int64_t n = 0, m = 0;
    if (id >= t->size) return json_sprintf("<%d>", (int)id);
    if (!t->plain_bytes && t->bpe.piece[id].type == HL_PIECE_CONTROL)
        return json_stringn(t->bpe.piece[id].text, (size_t)t->bpe.piece[id].len);
    if (t->plain_bytes && id > 255) return json_string(id == t->bos ? "<bos>" : "<eos>");
    json_t *out = NULL;
    if (hola_tokenizer_decode(t, both, 1, &one, &n) == HOLA_OK &&
        hola_tokenizer_decode(t, both, 2, &two, &m) == HOLA_OK && m >= n) {
        out = json_stringn(two + n, (size_t)(m - n)); /* NULL if it is not valid UTF-8 */
        struct hl_text bytes = {0};
        if (!out) hl_text_puts(&bytes, "bytes:");
        for (int64_t i = n; !out && i < m; i++) hl_text_printf(&bytes, "\\x%02x", (unsigned char)two[i]);
        if (!out && hl_text_status(&bytes) == HOLA_OK) out = json_stringn(bytes.data, (size_t)bytes.n);
        hl_text_free(&bytes);
    }
    free(one), free(two);
    return out ? out : json_string("");
}

static json_t *bytes_of(const struct hl_event *ev) {
    json_t *list = json_array();
    for (int64_t i = 0; i < ev->n_piece; i++) json_array_append_new(list, json_integer((unsigned char)ev->piece[i]));
    return list;
}
static int64_t characters(const char *p, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0, k; i<n; i += k> 0 ? k : 1, count++) k = hl_utf8_character((const unsigned char *)p + i, n - i);
    return count;
}

static json_t *chat_entry(const struct hl_server *s, int32_t id, double logprob, json_t *bytes) {
    return json_pack("{s:i, s:o, s:f, s:o}", "id", (int)id, "token", hl_piece_text(s, id), "logprob", logprob, "bytes",
                     bytes);
}

/* Adds a token to a choice's log-probabilities. */
static void note_chat(struct hl_exchange *x, struct hl_choice *c, const struct hl_event *ev) {
    json_t *top = json_array(), *entry = chat_entry(x->server, ev->id, ev->logprob, bytes_of(ev));
    bool there = ev->n_top == 0;
    for (int64_t i = 0; i < ev->n_top; i++) {
        there |= ev->top[i].id == ev->id;
        json_array_append_new(top, chat_entry(x->server, ev->top[i].id, ev->top[i].logprob, json_null()));
    }
    if (!there) json_array_append_new(top, chat_entry(x->server, ev->id, ev->logprob, bytes_of(ev)));
    json_object_set_new(entry, "top_logprobs", top);
    if (!c->logprobs) c->logprobs = json_array();
    json_array_append_new(c->logprobs, entry);
}

static void note_completion(struct hl_exchange *x, struct hl_choice *c, const struct hl_event *ev, int64_t length) {
    if (!c->logprobs)
        c->logprobs = json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
    json_t *l = c->logprobs, *token = hl_piece_text(x->server, ev->id), *top = json_null();
    if (!isnan(ev->logprob) && ev->n_top > 0) {
        top = json_object();
        for (int64_t i = 0; i < ev->n_top; i++) {
            json_t *name = hl_piece_text(x->server, ev->top[i].id);
            if (!json_object_getn(top, json_string_value(name), json_string_length(name)))
                json_object_setn_new(top, json_string_value(name), json_string_length(name),
                                     json_real(ev->top[i].logprob));
            json_decref(name);
        }
        if (!json_object_getn(top, json_string_value(token), json_string_length(token)))
            json_object_setn_new(top, json_string_value(token), json_string_length(token), json_real(ev->logprob));
    }
    json_array_append_new(json_object_get(l, "tokens"), token);
    json_array_append_new(json_object_get(l, "token_logprobs"),
                          isnan(ev->logprob) ? json_null() : json_real(ev->logprob));
    json_array_append_new(json_object_get(l, "top_logprobs"), top);
    json_array_append_new(json_object_get(l, "text_offset"), json_integer(c->offset));
    c->offset += length;
}

/* ---- parts of a response ---- */

static json_t *base(const struct hl_exchange *x, const char *object) {
    return json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", x->name, "object", object, "created", (json_int_t)x->created,
                     "model", x->model, "system_fingerprint", x->server->fingerprint);
}

static json_t *usage(const struct hl_exchange *x) {
    const json_int_t prompt = x->read + x->cached;
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", (json_int_t)x->written,
                     "total_tokens", prompt + x->written, "prompt_tokens_details", "cached_tokens",
                     (json_int_t)x->cached);
}

/* A turn of a session that stays: then there is one choice. */
static bool names_session(const struct hl_exchange *x) {
    return x->request->session[0] && x->request->fork != HL_FORK_DROPPED;
}

/* The end of a response, apart from its text. */
static void add_ending(const struct hl_exchange *x, json_t *root, const struct hl_event *end) {
    json_object_set_new(root, "seed", json_integer((json_int_t)x->request->seed));
    if (names_session(x))
        json_object_set_new(root, "session",
                            json_pack("{s:s, s:I}", "id", end->session, "position", (json_int_t)end->position));
    json_object_set_new(root, "timings",
                        json_pack("{s:f, s:f, s:f, s:I, s:I, s:I}", "queue_ms", 1e3 * x->queue_s, "prompt_ms",
                                  1e3 * x->prompt_s, "predicted_ms", 1e3 * x->predicted_s, "cache_n",
                                  (json_int_t)x->cached, "prompt_n", (json_int_t)x->read, "predicted_n",
                                  (json_int_t)x->written));
}

static json_t *token_ids(struct hl_choice *c, int64_t from) {
    json_t *list = json_array();
    for (int64_t i = from; i < c->ids.n; i++) json_array_append_new(list, json_integer(c->ids.data[i]));
    return list;
}

static json_t *logprobs_of(struct hl_exchange *x, struct hl_choice *c) {
    json_t *l = c->logprobs;
    c->logprobs = NULL;
    if (x->request->logprobs < 0) return json_null();
    if (x->chat) return json_pack("{s:o}", "content", l ? l : json_array());
    return l ? l : json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
}

/* ---- whole ---- */

static void answer_whole(struct hl_exchange *x, const struct hl_event *end) {
    json_t *root = base(x, x->chat ? "chat.completion" : "text_completion"), *choices = json_array();
    for (int64_t i = 0; i < x->choices; i++) {
        struct hl_choice *c = &x->choice[i];
        json_t *one = json_pack("{s:I, s:s?, s:o}", "index", (json_int_t)i, "finish_reason", finishes[c->finish],
                                "logprobs", logprobs_of(x, c)),
               *text = hl_json_text(c->text.data ? c->text.data : "", c->text.n);
        if (x->chat) json_object_set_new(one, "message", json_pack("{s:s, s:o}", "role", "assistant", "content", text));
        else json_object_set_new(one, "text", text);
        if (x->token_ids) json_object_set_new(one, "token_ids", token_ids(c, 0));
        json_array_append_new(choices, one);
    }
    json_object_set_new(root, "choices", choices);
    json_object_set_new(root, "usage", usage(x));
    add_ending(x, root, end);
    hl_exchange_json(x, 200, root);
}

/* ---- as a stream ---- */

static void begin_stream(struct hl_exchange *x) {
    struct hl_text out = {0};
    if (x->streaming || !x->connection) return;
    if (x->old) hl_exchange_close(x);
    hl_exchange_headers(x, &out, 200, "text/event-stream; charset=utf-8", "X-Accel-Buffering: no\r\n");
    hl_text_puts(&out, x->old ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
    x->streaming = true;
    if (hl_text_status(&out) == HOLA_OK) hl_exchange_send(x, out.data, out.n);
    hl_text_free(&out);
}

/* A chunk is made in the server's line, behind room for its length. */
enum { LENGTH_MOST = 18 };
static struct hl_text *begin_chunk(struct hl_exchange *x) {
    struct hl_text *out = &x->server->line;
    hl_text_clear(out);
    hl_text_put(out, "                  ", LENGTH_MOST);
    return out;
}
/* False: there was no memory for it. */
static bool send_chunk(struct hl_exchange *x) {
    struct hl_text *out = &x->server->line;
    int64_t from = LENGTH_MOST, n = out->n - from;
    if (!x->old) hl_text_puts(out, "\r\n");
    if (hl_text_status(out) != HOLA_OK) {
        hl_text_free(out);
        return false;
    }
    if (!x->old) out->data[--from] = '\n', out->data[--from] = '\r';
    for (; !x->old && n > 0; n /= 16) out->data[--from] = "0123456789abcdef"[n % 16];
    begin_stream(x);
    x->sent = x->server->now;
    hl_exchange_send(x, out->data + from, out->n - from);
    return true;
}
static void send_raw(struct hl_exchange *x, const char *data, int64_t n) {
    hl_text_put(begin_chunk(x), data, n);
    send_chunk(x);
}

/* The part shared by all events of a stream: up to the choice's index. */
static bool make_head(struct hl_exchange *x) {
    if (x->head) return true;
    json_t *root = base(x, x->chat ? "chat.completion.chunk" : "text_completion");
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text) return false;
    text[strlen(text) - 1] = 0; /* leave the object open */
    x->n_head = asprintf(&x->head, "data: %s,\"choices\":[{\"index\":", text);
    if (x->n_head < 0) x->head = NULL;
    free(text);
    return x->head != NULL;
}

/* A text-only event, identical to what chunk() would produce: with a GPU there are 100,000 per second. */
static bool send_text(struct hl_exchange *x, int64_t i, const struct hl_text *text) {
    static const char to_text[] = ",\"finish_reason\":null,\"text\":\"",
                      to_content[] = ",\"finish_reason\":null,\"delta\":{\"content\":\"";
    char index[24];
    if (x->request->logprobs >= 0 || x->token_ids || !make_head(x)) return false;
    struct hl_text *out = begin_chunk(x);
    hl_text_put(out, x->head, x->n_head);
    if (x->choices == 1) hl_text_put(out, "0", 1);
    else hl_text_put(out, index, snprintf(index, sizeof index, "%" PRId64, i));
    if (x->chat) hl_text_put(out, to_content, sizeof to_content - 1);
    else hl_text_put(out, to_text, sizeof to_text - 1);
    hl_json_put(out, text->data, text->n);
    hl_text_puts(out, x->chat ? "\"},\"logprobs\":null}]" : "\",\"logprobs\":null}]");
    hl_text_puts(out, x->usage ? ",\"usage\":null}\n\n" : "}\n\n");
    return send_chunk(x);
}

static void send_data(struct hl_exchange *x, json_t *root) {
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(root);
    if (text) hl_text_printf(begin_chunk(x), "data: %s\n\n", text), send_chunk(x);
    free(text);
}

/* An event of a choice: new text, its end (finish), or its role (begin). */
static json_t *chunk(struct hl_exchange *x, int64_t i, const struct hl_text *text, bool role, enum hl_finish finish) {
    struct hl_choice *c = &x->choice[i];
    json_t *root = base(x, x->chat ? "chat.completion.chunk" : "text_completion");
    json_t *one = json_pack("{s:I, s:s?}", "index", (json_int_t)i, "finish_reason", finishes[finish]);
    json_t *content = hl_json_text(text && text->data ? text->data : "", text ? text->n : 0);
    const bool has_text = text && text->n > 0;
    if (x->chat) {
        json_t *delta = json_object();
        if (role) json_object_set_new(delta, "role", json_string("assistant"));
        if (role || has_text) json_object_set(delta, "content", content);
        json_decref(content);
        json_object_set_new(one, "delta", delta);
    } else json_object_set_new(one, "text", content);
    if (!role && x->request->logprobs >= 0 && finish == HL_FINISH_NONE)
        json_object_set_new(one, "logprobs", logprobs_of(x, c));
    else json_object_set_new(one, "logprobs", json_null());
    if (x->token_ids && !role) {
        json_object_set_new(one, "token_ids", token_ids(c, c->ids_sent));
        c->ids_sent = c->ids.n;
    }
    json_object_set_new(root, "choices", json_pack("[o]", one));
    if (x->usage) json_object_set_new(root, "usage", json_null());
    return root;
}

/* Sends text that is final; rest: tokens without text, too. */
static void send_fresh(struct hl_exchange *x, int64_t i, bool rest) {
    struct hl_choice *c = &x->choice[i];
    if (!c->begun && x->chat) send_data(x, chunk(x, i, NULL, true, HL_FINISH_NONE));
    c->begun = true;
    if (c->fresh.n > 0 || (rest && c->logprobs)) {
        if (c->fresh.n == 0 || !send_text(x, i, &c->fresh)) send_data(x, chunk(x, i, &c->fresh, false, HL_FINISH_NONE));
        hl_text_clear(&c->fresh);
    }
}

static void send_finish(struct hl_exchange *x, int64_t i, const struct hl_event *end) {
    struct hl_choice *c = &x->choice[i];
    json_t *root = chunk(x, i, NULL, false, c->finish);
    if (end) add_ending(x, root, end);
    else json_object_set_new(root, "seed", json_integer((json_int_t)x->request->seed));
    send_data(x, root);
}

void hl_answer_silence(struct hl_exchange *x) {
    char text[96];
    const int64_t total = atomic_load(&x->request->prompt_total), read = atomic_load(&x->request->prompt_read);
    if (read > 0 && read < total) snprintf(text, sizeof text, ": read %" PRId64 " of %" PRId64 "\n\n", read, total);
    else snprintf(text, sizeof text, ": wait\n\n");
    send_raw(x, text, (int64_t)strlen(text));
}

static void end_stream(struct hl_exchange *x, const struct hl_event *end) {
    if (names_session(x)) send_finish(x, 0, end); /* was held back until the position is known */
    if (x->usage) {
        json_t *root = base(x, x->chat ? "chat.completion.chunk" : "text_completion");
        json_object_set_new(root, "choices", json_array());
        json_object_set_new(root, "usage", usage(x));
        add_ending(x, root, end);
        send_data(x, root);
    }
    static const char done[] = "data: [DONE]\n\n", last[] = "0\r\n\r\n";
    send_raw(x, done, sizeof done - 1);
    if (!x->old) hl_exchange_send(x, last, sizeof last - 1);
    hl_exchange_done(x);
}

/* ---- events ---- */

static void add_text(struct hl_exchange *x, int64_t i, const char *text, int64_t n) {
    struct hl_choice *c = &x->choice[i];
    if (n > 0) hl_text_put(x->stream ? &c->fresh : &c->text, text, n);
}

/* The prompt's own text comes first, with its logprobs: only the first choice of a prompt gets events for them. */
static void echo(struct hl_exchange *x, int64_t i) {
    struct hl_choice *c = &x->choice[i];
    const struct hl_choice *lead = c - i % x->request->n;
    const struct hl_prompt *p = &x->request->prompt[i / x->request->n];
    char *text;
    int64_t n;
    if (c->echoed || !x->echo) return;
    c->echoed = true;
    if (c != lead && lead->echo) c->logprobs = json_deep_copy(lead->echo), c->offset = lead->echo_offset;
    if (hola_tokenizer_decode(x->server->o.tokenizer, p->ids, p->n, &text, &n) != HOLA_OK) return;
    add_text(x, i, text, n);
    if (!x->request->score_prompt) c->offset = characters(text, n);
    free(text);
}

/* The first choice's answer begins: what it has so far is the prompt's. */
static void keep_echo(struct hl_exchange *x, int64_t i) {
    struct hl_choice *c = &x->choice[i];
    if (c->echo || !x->request->score_prompt || x->request->n == 1 || i % x->request->n != 0) return;
    c->echo = json_deep_copy(c->logprobs);
    c->echo_offset = c->offset;
}

static void token(struct hl_exchange *x, struct hl_event *ev) {
    struct hl_choice *c = &x->choice[ev->choice];
    const bool of_prompt = ev->message.kind == HL_EVENT_PROMPT;
    echo(x, ev->choice);
    if (!of_prompt) keep_echo(x, ev->choice);
    if (!of_prompt && hl_ids_room(&c->ids, 1) == HOLA_OK) c->ids.data[c->ids.n++] = ev->id;
    if (x->request->logprobs >= 0 && x->chat) note_chat(x, c, ev);
    else if (x->request->logprobs >= 0) {
        json_t *piece = of_prompt ? hl_piece_text(x->server, ev->id) : NULL;
        const bool special = ev->id >= x->server->o.tokenizer->size ||
                             ev->id == hola_tokenizer_bos(x->server->o.tokenizer) ||
                             ev->id == hola_tokenizer_eos(x->server->o.tokenizer);
        note_completion(x, c, ev,
                        of_prompt
                            ? (special ? 0 : characters(json_string_value(piece), (int64_t)json_string_length(piece)))
                            : characters(ev->piece, ev->n_piece));
        json_decref(piece);
    }
    add_text(x, ev->choice, ev->text, ev->n_text);
    if (x->stream && !of_prompt) send_fresh(x, ev->choice, false);
}

static void finished(struct hl_exchange *x, struct hl_event *ev) {
    struct hl_choice *c = &x->choice[ev->choice];
    echo(x, ev->choice);
    keep_echo(x, ev->choice);
    add_text(x, ev->choice, ev->text, ev->n_text);
    c->finish = ev->finish;
    x->written += ev->predicted_n;
    if (ev->choice % x->request->n == 0) x->cached += ev->cached_n, x->read += ev->prompt_n - ev->cached_n;
    if (ev->queue_s > x->queue_s) x->queue_s = ev->queue_s;
    if (ev->prompt_s > x->prompt_s) x->prompt_s = ev->prompt_s;
    if (ev->predicted_s > x->predicted_s) x->predicted_s = ev->predicted_s;
    if (!x->stream) return;
    send_fresh(x, ev->choice, true);
    if (!names_session(x)) send_finish(x, ev->choice, NULL);
}

static void ended(struct hl_exchange *x, struct hl_event *ev) {
    x->submitted = false; /* the request belongs to us again */
    if (!x->connection) {
        hl_exchange_done(x);
        return;
    }
    if (ev->error == HL_NO_ERROR) {
        if (x->stream) end_stream(x, ev);
        else answer_whole(x, ev);
        return;
    }
    hl_problem_set(&x->problem, ev->error, "", "%s", ev->reason);
    if (x->streaming) { /* too late for an HTTP status */
        send_data(x, hl_problem_json(&x->problem));
        x->server->rejected[ev->error]++;
        hl_exchange_close(x);
        hl_exchange_done(x);
    } else hl_exchange_problem(x);
}

void hl_answer_event(struct hl_exchange *x, struct hl_event *ev) {
    switch ((enum hl_event_kind)ev->message.kind) {
    case HL_EVENT_PROMPT:
    case HL_EVENT_TOKEN:
        if (x->connection) token(x, ev);
        break;
    case HL_EVENT_FINISH: finished(x, ev); break;
    case HL_EVENT_END: ended(x, ev); break;
    }
}
