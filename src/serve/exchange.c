/* exchange.c -- one request and its response: headers, errors, the body, the log. Who may ask what: access.c. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "core/hash.h"
#include "core/json.h"
#include "serve/server_internal.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- errors ---- */

static const struct {
    int status;
    const char *type, *code;
} errors[] = {
#define ROW(name, status, type, code) {status, type, code},
    HL_ERROR_LIST(ROW)
#undef ROW
};
int hl_error_status(enum hl_error e) { return errors[e].status; }
const char *hl_error_code(enum hl_error e) { return errors[e].code; }

bool hl_problem_set(struct hl_problem *p, enum hl_error error, const char *param, const char *fmt, ...) {
    va_list ap;
    p->error = error;
    snprintf(p->param, sizeof p->param, "%s", param);
    va_start(ap, fmt);
    vsnprintf(p->reason, sizeof p->reason, fmt, ap);
    va_end(ap);
    return false;
}

json_t *hl_problem_json(const struct hl_problem *p) {
    return json_pack("{s:{s:o, s:s, s:o, s:s}}", "error", "message",
                     hl_json_text(p->reason, (int64_t)strlen(p->reason)), "type", errors[p->error].type, "param",
                     p->param[0] ? json_string(p->param) : json_null(), "code", errors[p->error].code);
}

/* ---- headers ---- */

static const char *phrase(int status) {
    static const struct {
        int status;
        const char *text;
    } phrases[] = {{200, "OK"},
                   {201, "Created"},
                   {204, "No Content"},
                   {304, "Not Modified"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {409, "Conflict"},
                   {413, "Content Too Large"},
                   {414, "URI Too Long"},
                   {415, "Unsupported Media Type"},
                   {417, "Expectation Failed"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"},
                   {507, "Insufficient Storage"}};
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (phrases[i].status == status) return phrases[i].text;
    return "";
}

void hl_exchange_headers(struct hl_exchange *x, struct hl_text *out, int status, const char *type, const char *more) {
    char date[64];
    struct tm tm;
    const time_t now = time(NULL);
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    x->status = status;
    hl_text_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, phrase(status), date);
    if (type) hl_text_printf(out, "Content-Type: %s\r\n", type);
    hl_text_printf(out, "X-Request-Id: %s\r\nX-Content-Type-Options: nosniff\r\n", x->id);
    if (!hl_exchange_is_page(x) || (status != 200 && status != 304)) hl_text_puts(out, "Cache-Control: no-store\r\n");
    if (x->origin)
        hl_text_printf(out, "Access-Control-Allow-Origin: %s\r\nAccess-Control-Expose-Headers: X-Request-Id\r\n",
                       x->origin);
    if (x->server->o.cors.n > 0) hl_text_puts(out, "Vary: Origin\r\n");
    if (!x->connection || x->connection->closes) hl_text_puts(out, "Connection: close\r\n");
    else if (x->old) hl_text_puts(out, "Connection: keep-alive\r\n");
    hl_text_puts(out, more);
}

void hl_exchange_answer(struct hl_exchange *x, int status, const char *type, const char *body, int64_t n,
                        const char *more) {
    struct hl_text out = {0};
    hl_exchange_headers(x, &out, status, type, more);
    const bool empty = status == 204 || status == 304; /* by definition: no length either */
    if (!empty) hl_text_printf(&out, "Content-Length: %" PRId64 "\r\n", n);
    hl_text_puts(&out, "\r\n");
    if (!x->head_only && !empty) hl_text_put(&out, body, n);
    if (hl_text_status(&out) == HOLA_OK) hl_exchange_send(x, out.data, out.n);
    else hl_exchange_close(x);
    hl_text_free(&out);
    hl_exchange_done(x);
}

void hl_exchange_json(struct hl_exchange *x, int status, json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(json);
    if (!text) {
        static const char none[] =
            "{\"error\": {\"message\": \"no memory for the answer\", \"type\": \"server_error\", "
            "\"param\": null, \"code\": \"internal\"}}";
        hl_exchange_answer(x, 500, "application/json", none, (int64_t)strlen(none), "");
        return;
    }
    hl_exchange_answer(x, status, "application/json", text, (int64_t)strlen(text), "");
    free(text);
}

/* ---- complete requests ---- */

void hl_exchange_problem(struct hl_exchange *x) {
    const enum hl_error e = x->problem.error;
    char more[96] = "";
    if (e == HL_METHOD_NOT_ALLOWED) hl_endpoint_methods(x->endpoint, more);
    if (e == HL_INVALID_API_KEY) snprintf(more, sizeof more, "WWW-Authenticate: Bearer\r\n");
    if (errors[e].status == 503 || e == HL_SESSION_BUSY) snprintf(more, sizeof more, "Retry-After: 1\r\n");
    x->server->rejected[e]++;
    json_t *json = hl_problem_json(&x->problem);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    const char *body = text ? text : "{}";
    hl_exchange_answer(x, errors[e].status, "application/json", body, (int64_t)strlen(body), more);
    free(text);
}

/* A preflight names the headers that will come: OpenAI's client for browsers sends a dozen of its own. */
static void options(struct hl_exchange *x) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_, ";
    const char *names = x->http->cors_headers;
    char more[1024], allow[64], cors[960] = "";
    hl_endpoint_methods(x->endpoint, allow);
    if (!names || !*names || strlen(names) > 640 || strspn(names, letters) != strlen(names))
        names = "Authorization, Content-Type, X-Request-Id";
    if (x->origin)
        snprintf(cors, sizeof cors,
                 "Access-Control-Allow-Methods: GET, POST, PUT, DELETE\r\nAccess-Control-Allow-Headers: %s\r\n"
                 "Access-Control-Max-Age: 600\r\n",
                 names);
    snprintf(more, sizeof more, "%s%s", cors, allow);
    hl_exchange_answer(x, 204, NULL, "", 0, more);
}

static void page(struct hl_exchange *x) {
    const struct hl_page_file f = hl_page_file(x->endpoint);
    const char *known = x->http->if_none_match;
    char type[64], tag[24], more[512];
    snprintf(type, sizeof type, "%s; charset=utf-8", f.type);
    snprintf(tag, sizeof tag, "\"%016" PRIx64 "\"", hl_hash(0, f.data, f.size));
    snprintf(more, sizeof more,
             "Cache-Control: no-cache\r\nETag: %s\r\nReferrer-Policy: no-referrer\r\n"
             "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
             "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
             tag);
    const bool same = known && (strstr(known, tag) || !strcmp(known, "*"));
    hl_exchange_answer(x, same ? 304 : 200, same ? NULL : type, f.data, same ? 0 : f.size, more);
}

void hl_exchange_begin(struct hl_exchange *x) {
    if (!strcmp(x->http->method, "OPTIONS")) options(x);
    else if (hl_exchange_is_page(x)) page(x);
    else if (x->server->has_reader && x->http->body.n > HL_INLINE_MOST && !strcmp(x->http->method, "POST"))
        hl_queue_put(&x->server->readings, &x->message);
    else {
        hl_exchange_prepare(x);
        hl_exchange_prepared(x);
    }
}

/* The body as an object; NULL without a problem if none is expected. */
static json_t *read_body(struct hl_exchange *x) {
    struct hl_http *h = x->http;
    json_error_t err;
    if (strcmp(h->method, "POST") != 0) return NULL;
    if (h->body.n == 0 && x->endpoint == HL_AT_SAVE) return json_object();
    if (h->body.n == 0) {
        hl_problem_set(&x->problem, HL_INVALID_JSON, "", "the body is empty");
        return NULL;
    }
    /* jansson ignores a NUL after a number */
    json_t *root = memchr(h->body.data, 0, (size_t)h->body.n)
                       ? NULL
                       : json_loadb(h->body.data, (size_t)h->body.n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &err);
    if (!root) hl_problem_set(&x->problem, HL_INVALID_JSON, "", "the body is not JSON in UTF-8");
    else if (!json_is_object(root)) {
        json_decref(root);
        root = NULL;
        hl_problem_set(&x->problem, HL_INVALID_JSON, "", "the body is not a JSON object");
    }
    hl_text_free(&h->body);
    return root;
}

void hl_exchange_prepare(struct hl_exchange *x) {
    json_t *root = read_body(x);
    if (x->problem.error == HL_NO_ERROR) {
        if (x->endpoint == HL_AT_COMPLETIONS) hl_api_completion(x, root);
        else if (x->endpoint == HL_AT_CHAT) hl_api_chat(x, root);
        else if (x->endpoint >= HL_AT_SESSIONS) hl_api_session(x, root);
        else hl_api_prepare_other(x, root);
    }
    json_decref(root);
}

void hl_exchange_prepared(struct hl_exchange *x) {
    struct hl_server *s = x->server;
    if (x->problem.error == HL_NO_ERROR && s->stopping && (x->request || x->op))
        hl_problem_set(&x->problem, HL_SHUTTING_DOWN, "", "the server is shutting down");
    if (x->problem.error != HL_NO_ERROR) hl_exchange_problem(x);
    else if (x->request && (!x->connection || x->connection->left)) { /* the client left before it began */
        atomic_fetch_add(&hl_serve_metrics(s->o.engine)->disconnects, 1);
        hl_exchange_close(x);
        hl_exchange_done(x);
    } else if (x->request) {
        x->submitted = true;
        x->sent = hl_clock();
        x->request->owner = x;
        x->request->events = &s->events;
        hl_serve_submit(s->o.engine, x->request);
    } else if (x->op) {
        x->op->owner = x;
        x->op->reply = &s->ops;
        hl_serve_do(s->o.engine, x->op);
    } else if (x->endpoint == HL_AT_METRICS) {
        const char *text = json_string_value(x->answer);
        hl_exchange_answer(x, 200, "text/plain; version=0.0.4; charset=utf-8", text ? text : "",
                           text ? (int64_t)strlen(text) : 0, "");
    } else {
        json_t *json = x->answer;
        x->answer = NULL;
        hl_exchange_json(x, x->status ? x->status : 200, json);
    }
}

/* ---- statistics and log ---- */

void hl_server_count(struct hl_server *s, int endpoint, int code) {
    for (int i = 0; i < s->n_counts; i++)
        if (s->count[i].endpoint == endpoint && s->count[i].code == code) {
            s->count[i].n++;
            return;
        }
    struct hl_count *more = realloc(s->count, (size_t)(s->n_counts + 1) * sizeof *more);
    if (!more) return;
    s->count = more;
    more[s->n_counts++] = (struct hl_count){endpoint, code, 1};
}

void hl_server_log(struct hl_exchange *x) {
    char date[64];
    struct tm tm;
    struct timespec now;
    const double seconds = hl_clock() - x->began;
    const char *method = x->http && x->http->method && hl_method_known(x->http->method) ? x->http->method : "-";
    hl_server_count(x->server, x->endpoint, x->status);
    if (x->server->o.log == HL_LOG_NONE) return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    if (x->server->o.log == HL_LOG_JSON)
        fprintf(stderr,
                "{\"time\":\"%s.%03dZ\",\"id\":\"%s\",\"call\":\"%s %s\",\"status\":%d,\"read\":%" PRId64
                ",\"cached\":%" PRId64 ",\"written\":%" PRId64 ",\"seconds\":%.4f}\n",
                date, (int)(now.tv_nsec / 1000000), x->id, method, hl_endpoint_name(x->endpoint), x->status, x->read,
                x->cached, x->written, seconds);
    else
        fprintf(stderr, "%s.%03dZ %s %s %s %d read %" PRId64 " cached %" PRId64 " wrote %" PRId64 " in %.4f s\n", date,
                (int)(now.tv_nsec / 1000000), x->id, method, hl_endpoint_name(x->endpoint), x->status, x->read,
                x->cached, x->written, seconds);
}
