/* exchange.c -- one request and its response: access checks, routing, headers, errors, the log. */
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
#include <strings.h>
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

static bool is_page(const struct hl_exchange *x) { return x->endpoint >= HL_AT_PAGE && x->endpoint <= HL_AT_SCRIPT; }

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
    if (!is_page(x) || (status != 200 && status != 304)) hl_text_puts(out, "Cache-Control: no-store\r\n");
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

/* ---- endpoints ---- */

enum { GET = 1, POST = 2, DELETE = 4, PUT = 8 };
static const struct {
    const char *name; /* * matches an id, ** the rest */
    int methods;
} endpoints[] = {
    [HL_AT_NOTHING] = {"other", 0},
    [HL_AT_PAGE] = {"/", GET},
    [HL_AT_STYLE] = {"/page.css", GET},
    [HL_AT_SCRIPT] = {"/page.js", GET},
    [HL_AT_HEALTH] = {"/health", GET},
    [HL_AT_MODELS] = {"/v1/models", GET},
    [HL_AT_MODEL] = {"/v1/models/**", GET},
    [HL_AT_COMPLETIONS] = {"/v1/completions", POST},
    [HL_AT_CHAT] = {"/v1/chat/completions", POST},
    [HL_AT_TOKENIZE] = {"/tokenize", POST},
    [HL_AT_DETOKENIZE] = {"/detokenize", POST},
    [HL_AT_TEMPLATE] = {"/apply-template", POST},
    [HL_AT_METRICS] = {"/metrics", GET},
    [HL_AT_SESSIONS] = {"/v1/sessions", GET | POST},
    [HL_AT_SESSION] = {"/v1/sessions/*", GET | POST | DELETE},
    [HL_AT_FORK] = {"/v1/sessions/*/fork", POST},
    [HL_AT_ROLLBACK] = {"/v1/sessions/*/rollback", POST},
    [HL_AT_SAVE] = {"/v1/sessions/*/save", POST},
    [HL_AT_FILE] = {"/v1/sessions/*/file", GET | PUT},
    [HL_AT_MESSAGES] = {"/v1/sessions/*/messages", GET},
    [HL_AT_TOKENS] = {"/v1/sessions/*/tokens", GET},
    [HL_AT_MEMORY] = {"/v1/sessions/*/memory", GET},
};
const char *hl_endpoint_name(int endpoint) { return endpoints[endpoint].name; }

static bool matches(const char *pattern, const char *path) {
    for (; *pattern; pattern++, path++) {
        if (*pattern == '*') {
            const bool any = pattern[1] == '*'; /* a model's id may contain slashes */
            const size_t n = strcspn(path, any ? "" : "/");
            if (n == 0) return false;
            path += n - 1, pattern += any;
        } else if (*pattern != *path) return false;
    }
    return !*path;
}
static int endpoint_of(const char *path) {
    for (int i = 1; i < HL_ENDPOINTS; i++)
        if (matches(endpoints[i].name, path)) return i;
    return HL_AT_NOTHING;
}
static int method_of(const char *m) {
    return !strcmp(m, "GET") || !strcmp(m, "HEAD") ? GET
           : !strcmp(m, "POST")                    ? POST
           : !strcmp(m, "DELETE")                  ? DELETE
           : !strcmp(m, "PUT")                     ? PUT
                                                   : 0;
}
static void allowed(int endpoint, char out[64]) {
    const int m = endpoints[endpoint].methods;
    snprintf(out, 64, "Allow: %s%s%s%sOPTIONS\r\n", m & GET ? "GET, HEAD, " : "", m & POST ? "POST, " : "",
             m & DELETE ? "DELETE, " : "", m & PUT ? "PUT, " : "");
}

/* ---- access ---- */

static bool in_list(const struct hl_server_list *l, const char *text, size_t n) {
    for (int i = 0; i < l->n; i++)
        if (strlen(l->item[i]) == n && strncasecmp(l->item[i], text, n) == 0) return true;
    return false;
}

static bool host_allowed(const struct hl_server *s, const char *host) {
    if (!host) return true; /* HTTP/1.0, which no browser uses */
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (n > strlen(host)) return false;
    if (host[n] && (host[n] != ':' || strspn(host + n + 1, "0123456789") != strlen(host + n + 1))) return false;
    const char *bare = host;
    if (host[0] == '[') bare++, n -= 2;
    if ((n == 9 && strncasecmp(bare, "localhost", 9) == 0) || (n == 3 && strncmp(bare, "::1", 3) == 0)) return true;
    if (strncmp(bare, "127.", 4) == 0 && strspn(bare, "0123456789.") == n && n <= 15) return true;
    if (strlen(s->o.host) == n && strncasecmp(bare, s->o.host, n) == 0) return true;
    return in_list(&s->o.hosts, host, strlen(host)) || in_list(&s->o.hosts, bare, n);
}

/* The server's own origin, or one allowed by --cors, which the response then names. */
static bool origin_allowed(struct hl_exchange *x) {
    const struct hl_http *h = x->http;
    const struct hl_server *s = x->server;
    if (!h->origin) return true;
    for (int i = 0; i < s->o.cors.n; i++)
        if (strcmp(s->o.cors.item[i], h->origin) == 0) x->origin = s->o.cors.item[i];
    if (x->origin) return true;
    const size_t skip = !strncasecmp(h->origin, "http://", 7) ? 7 : !strncasecmp(h->origin, "https://", 8) ? 8 : 0;
    return skip && h->host && strcasecmp(h->origin + skip, h->host) == 0;
}

static bool key_allowed(const struct hl_server *s, const char *authorization) {
    if (s->o.keys.n == 0) return true;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0) return false;
    const char *key = authorization + 7;
    const size_t n = strlen(key);
    bool any = false;
    for (int i = 0; i < s->o.keys.n; i++) { /* constant time: compares all keys in full, even after a match */
        const char *want = s->o.keys.item[i];
        const size_t m = strlen(want);
        unsigned char differs = n != m;
        for (size_t k = 0; k < n; k++) differs |= (unsigned char)key[k] ^ (unsigned char)want[m ? k % m : 0];
        any |= !differs;
    }
    return any;
}

static bool is_json(const char *type) {
    if (!type || strncasecmp(type, "application/json", 16) != 0) return false;
    type += 16;
    while (*type == ' ') type++;
    return !*type || *type == ';';
}

static bool is_options(const struct hl_exchange *x) { return !strcmp(x->http->method, "OPTIONS"); }
/* A browser's CORS preflight request: it carries no key. */
static bool is_preflight(const struct hl_exchange *x) { return x->origin && is_options(x) && x->http->cors_method; }

bool hl_exchange_check(struct hl_exchange *x) {
    const struct hl_http *h = x->http;
    struct hl_problem *p = &x->problem;
    const size_t n = h->request_id ? strlen(h->request_id) : 0;
    if (n > 0 && n <= HL_ID_MOST &&
        strspn(h->request_id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n)
        memcpy(x->id, h->request_id, n + 1);
    x->head_only = !strcmp(h->method, "HEAD");
    x->endpoint = endpoint_of(h->path);
    if (x->server->o.no_page && is_page(x)) x->endpoint = HL_AT_NOTHING;
    if (!host_allowed(x->server, h->host))
        return hl_problem_set(p, HL_HOST_NOT_ALLOWED, "", "Host: not a name of this server (--allow-host)");
    if (!origin_allowed(x)) return hl_problem_set(p, HL_ORIGIN_NOT_ALLOWED, "", "Origin: not allowed here (--cors)");
    if (is_preflight(x)) return true;
    const int method = method_of(h->method);
    const bool open = x->endpoint == HL_AT_HEALTH || is_page(x);
    if (!open && !key_allowed(x->server, h->authorization))
        return hl_problem_set(p, HL_INVALID_API_KEY, "", "Authorization: a key is needed, and this is none");
    if (x->server->stopping) return hl_problem_set(p, HL_SHUTTING_DOWN, "", "the server is shutting down");
    if (is_options(x) && (x->endpoint != HL_AT_NOTHING || !strcmp(h->path, "*"))) return true;
    if (x->endpoint == HL_AT_NOTHING) return hl_problem_set(p, HL_NOT_FOUND, "", "there is nothing at this path");
    if (!(endpoints[x->endpoint].methods & method))
        return hl_problem_set(p, HL_METHOD_NOT_ALLOWED, "", "not a method of %s", endpoints[x->endpoint].name);
    if (method == POST && !is_json(h->content_type))
        return hl_problem_set(p, HL_UNSUPPORTED_MEDIA, "", "Content-Type: must be application/json");
    if (method == PUT && (!h->content_type || strcasecmp(h->content_type, "application/octet-stream") != 0))
        return hl_problem_set(p, HL_UNSUPPORTED_MEDIA, "", "Content-Type: must be application/octet-stream");
    return true;
}

void hl_exchange_problem(struct hl_exchange *x) {
    const enum hl_error e = x->problem.error;
    char more[96] = "";
    if (e == HL_METHOD_NOT_ALLOWED) allowed(x->endpoint, more);
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

/* ---- complete requests ---- */

/* A preflight names the headers that will come: OpenAI's client for browsers sends a dozen of its own. */
static void options(struct hl_exchange *x) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_, ";
    const char *names = x->http->cors_headers;
    char more[1024], allow[64], cors[960] = "";
    allowed(x->endpoint, allow);
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
    if (is_options(x)) options(x);
    else if (is_page(x)) page(x);
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
    const char *method = x->http && x->http->method && method_of(x->http->method) ? x->http->method : "-";
    hl_server_count(x->server, x->endpoint, x->status);
    if (x->server->o.log == HL_LOG_NONE) return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    if (x->server->o.log == HL_LOG_JSON)
        fprintf(stderr,
                "{\"time\":\"%s.%03dZ\",\"id\":\"%s\",\"call\":\"%s %s\",\"status\":%d,\"read\":%" PRId64
                ",\"cached\":%" PRId64 ",\"written\":%" PRId64 ",\"seconds\":%.4f}\n",
                date, (int)(now.tv_nsec / 1000000), x->id, method, endpoints[x->endpoint].name, x->status, x->read,
                x->cached, x->written, seconds);
    else
        fprintf(stderr, "%s.%03dZ %s %s %s %d read %" PRId64 " cached %" PRId64 " wrote %" PRId64 " in %.4f s\n", date,
                (int)(now.tv_nsec / 1000000), x->id, method, endpoints[x->endpoint].name, x->status, x->read, x->cached,
                x->written, seconds);
}
