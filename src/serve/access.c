/* access.c -- who may ask what: the list of endpoints, and the checks of a request's head: its path and method, Host and
 * Origin, the key, the type of the body. */
#define _GNU_SOURCE
#include "serve/server_internal.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

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
bool hl_method_known(const char *method) { return method_of(method) != 0; }
void hl_endpoint_methods(int endpoint, char out[64]) {
    const int m = endpoints[endpoint].methods;
    snprintf(out, 64, "Allow: %s%s%s%sOPTIONS\r\n", m & GET ? "GET, HEAD, " : "", m & POST ? "POST, " : "",
             m & DELETE ? "DELETE, " : "", m & PUT ? "PUT, " : "");
}

bool hl_exchange_is_page(const struct hl_exchange *x) {
    return x->endpoint >= HL_AT_PAGE && x->endpoint <= HL_AT_SCRIPT;
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
    if (x->server->o.no_page && hl_exchange_is_page(x)) x->endpoint = HL_AT_NOTHING;
    if (!host_allowed(x->server, h->host))
        return hl_problem_set(p, HL_HOST_NOT_ALLOWED, "", "Host: not a name of this server (--allow-host)");
    if (!origin_allowed(x)) return hl_problem_set(p, HL_ORIGIN_NOT_ALLOWED, "", "Origin: not allowed here (--cors)");
    if (is_preflight(x)) return true;
    const int method = method_of(h->method);
    const bool open = x->endpoint == HL_AT_HEALTH || hl_exchange_is_page(x);
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
