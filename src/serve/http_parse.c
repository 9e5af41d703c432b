/* http_parse.c -- see http_parse.h. RFC 9112 without its optional leniency. */
#define _GNU_SOURCE
#include "serve/http_parse.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum chunk_stage { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER };

static void refuse(struct hl_http *h, enum hl_error error, const char *reason) {
    h->stage = HL_HTTP_REFUSED;
    h->error = error;
    h->reason = reason;
}

void hl_http_reset(struct hl_http *h) {
    const int64_t max = h->max_body;
    hl_text_free(&h->head);
    hl_text_free(&h->body);
    *h = (struct hl_http){.max_body = max};
}

static bool is_token(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}
static int hex(unsigned char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool hl_http_unescape(char *text) {
    char *to = text;
    for (const char *p = text; *p; p++) {
        if (*p != '%') {
            *to++ = *p;
            continue;
        }
        const int a = hex((unsigned char)p[1]), b = a < 0 ? -1 : hex((unsigned char)p[2]);
        if (b < 0 || (a == 0 && b == 0)) return false;
        *to++ = (char)(16 * a + b);
        p += 2;
    }
    *to = 0;
    return true;
}

/* ---- the request line ---- */

static void read_target(struct hl_http *h, char *target) {
    if (strncasecmp(target, "http://", 7) == 0) { /* same as its path */
        char *end = target + 7 + strcspn(target + 7, "/?");
        target = *end == '/' ? end : target + 6;
        if (*end != '/') memmove(target + 1, end, strlen(end) + 1); /* no path: "/", then the query */
    }
    if (target[0] != '/' && !(strcmp(target, "*") == 0 && strcmp(h->method, "OPTIONS") == 0)) {
        refuse(h, HL_BAD_REQUEST, "the request's target does not begin with a slash");
        return;
    }
    char *query = strchr(target, '?');
    if (query) *query++ = 0;
    h->query = query;
    h->path = target;
    /* an escaped slash is not a separator, and none of our names contains one */
    for (const char *p = target; (p = strchr(p, '%')) != NULL; p++)
        if (p[1] == '2' && (p[2] == 'f' || p[2] == 'F')) h->path = "";
    if (h->path == target && !hl_http_unescape(target)) refuse(h, HL_BAD_REQUEST, "a wrong escape in the path");
}

static void read_request_line(struct hl_http *h, char *line) {
    char *first = strchr(line, ' '), *last = strrchr(line, ' ');
    if (!first || first == line || last == first) {
        refuse(h, HL_BAD_REQUEST, "the request line is none");
        return;
    }
    *first = *last = 0;
    const char *version = last + 1;
    h->method = line;
    for (const char *p = line; *p; p++)
        if (!is_token((unsigned char)*p)) refuse(h, HL_BAD_REQUEST, "a method with a wrong character");
    if (first + 1 == last) refuse(h, HL_BAD_REQUEST, "the request's target is empty");
    for (const unsigned char *p = (const unsigned char *)first + 1; *p; p++)
        if (*p < 0x21 || *p > 0x7e || *p == '#') refuse(h, HL_BAD_REQUEST, "a target with a wrong character");
    if (h->stage == HL_HTTP_REFUSED) return;
    if (strncmp(version, "HTTP/", 5) || strlen(version) != 8 || version[5] < '0' || version[5] > '9' ||
        version[6] != '.' || version[7] < '0' || version[7] > '9')
        refuse(h, HL_BAD_REQUEST, "the request line does not end with a version of HTTP");
    else if (version[5] != '1') refuse(h, HL_BAD_VERSION, "only HTTP/1.1 and 1.0 are spoken here");
    else {
        h->minor = version[7] > '0';
        h->keep_alive = h->minor;
        read_target(h, first + 1);
    }
}

/* ---- fields ---- */

static void read_field(struct hl_http *h, char *line) {
    char *colon = line;
    while (is_token((unsigned char)*colon)) colon++;
    if (colon == line || *colon != ':') {
        refuse(h, HL_BAD_REQUEST, *line == ' ' || *line == '\t' ? "a folded field" : "a field without a proper name");
        return;
    }
    *colon = 0;
    char *value = colon + 1, *end = value + strlen(value);
    while (*value == ' ' || *value == '\t') value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) *--end = 0;
    for (const unsigned char *p = (const unsigned char *)value; *p; p++)
        if ((*p < 0x20 && *p != '\t') || *p == 0x7f) refuse(h, HL_BAD_REQUEST, "a control character in a field");
#define TAKE(field, text)                                                          \
    if (strcasecmp(line, text) == 0) {                                             \
        if (h->field) refuse(h, HL_BAD_REQUEST, "a field that came twice: " text); \
        h->field = value;                                                          \
    }
    HL_HTTP_FIELD_LIST(TAKE)
#undef TAKE
}

/* Whether a comma-separated list contains a word; *last: whether it is the last entry. */
static bool list_has(const char *list, const char *word, bool *last) {
    bool has = false;
    *last = false;
    while (*list) {
        const size_t n = strcspn(list, ",");
        const char *a = list, *b = list + n;
        while (a < b && (*a == ' ' || *a == '\t')) a++;
        while (b > a && (b[-1] == ' ' || b[-1] == '\t')) b--;
        *last = (size_t)(b - a) == strlen(word) && strncasecmp(a, word, (size_t)(b - a)) == 0;
        has = has || *last;
        list += n + (list[n] == ',');
    }
    return has;
}

static void read_length(struct hl_http *h) {
    const char *p = h->content_length;
    int64_t n = 0;
    for (int i = 0; p[i]; i++) {
        if (p[i] < '0' || p[i] > '9' || i == 18) {
            refuse(h, HL_BAD_REQUEST, "Content-Length is not a number of bytes");
            return;
        }
        n = 10 * n + (p[i] - '0');
    }
    if (!*p) refuse(h, HL_BAD_REQUEST, "Content-Length is empty");
    else if (n > h->max_body) refuse(h, HL_TOO_LARGE, "the body is larger than --max-body");
    h->body_length = n;
}

static void settle(struct hl_http *h) {
    bool last;
    if (h->connection) {
        if (list_has(h->connection, "close", &last)) h->keep_alive = false;
    }
    if (h->minor > 0 && !h->host) refuse(h, HL_BAD_REQUEST, "there is no Host");
    else if (h->transfer_encoding && h->content_length)
        refuse(h, HL_BAD_REQUEST, "both Content-Length and Transfer-Encoding");
    else if (h->transfer_encoding) {
        const bool chunked = list_has(h->transfer_encoding, "chunked", &last);
        if (strcasecmp(h->transfer_encoding, "chunked") == 0 && h->minor > 0) h->body_length = -1;
        else if (chunked && !last) refuse(h, HL_BAD_REQUEST, "Transfer-Encoding does not end with chunked");
        else if (h->minor == 0) refuse(h, HL_BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding");
        else refuse(h, HL_NOT_IMPLEMENTED, "Transfer-Encoding: only chunked is taken");
    } else if (h->content_length) read_length(h);
    if (h->stage != HL_HTTP_REFUSED && h->expect) {
        if (strcasecmp(h->expect, "100-continue") != 0) refuse(h, HL_EXPECTATION_FAILED, "Expect: only 100-continue");
        h->expects_continue = h->minor > 0;
    }
}

/* Called when the head is complete: parses its lines, which end with CR LF. */
static void read_head(struct hl_http *h) {
    h->stage = HL_HTTP_BODY;
    bool first = true;
    for (char *line = h->head.data; h->stage != HL_HTTP_REFUSED;) {
        char *end = strstr(line, "\r\n");
        if (end == line) break;
        *end = 0;
        if (first) read_request_line(h, line);
        else read_field(h, line);
        first = false;
        line = end + 2;
    }
    if (h->stage != HL_HTTP_REFUSED) settle(h);
}

/* One byte of the head; invalid bytes are refused at once. */
static void head_byte(struct hl_http *h, unsigned char c) {
    if (h->stage == HL_HTTP_NOTHING) h->stage = HL_HTTP_HEAD;
    if (c == 0) {
        refuse(h, HL_BAD_REQUEST, "a NUL byte");
        return;
    }
    if (h->cr != (c == '\n')) {
        refuse(h, HL_BAD_REQUEST, h->cr ? "a CR without LF" : "an LF without CR");
        return;
    }
    if (h->fields == 0 && h->line == 0 && c != '\r' && c != '\n' && !is_token(c)) {
        refuse(h, HL_BAD_REQUEST, "this is no HTTP");
        return;
    }
    h->cr = c == '\r';
    if (c == '\n' && h->line == 1 && h->fields == 0) { /* an empty line before the request is allowed */
        refuse(h, HL_BAD_REQUEST, "an empty request line");
        return;
    }
    if (hl_text_put(&h->head, (const char *)&c, 1) != HOLA_OK) {
        refuse(h, HL_INTERNAL, "no memory for the request");
        return;
    }
    h->line++;
    if (h->fields == 0 && h->line > HL_HTTP_LINE + 2) refuse(h, HL_URI_TOO_LONG, "the request line is too long");
    else if (h->head.n > HL_HTTP_LINE + HL_HTTP_HEADER || (h->fields > 0 && h->head.n - h->trailer > HL_HTTP_HEADER))
        refuse(h, HL_HEADER_TOO_LARGE, "the header is too large");
    if (c != '\n' || h->stage == HL_HTTP_REFUSED) return;
    if (h->fields == 0) h->trailer = h->head.n; /* start of the header fields */
    if (h->line == 2) {
        read_head(h);
        return;
    }
    h->line = 0;
    if (h->fields++ > HL_HTTP_FIELDS) refuse(h, HL_HEADER_TOO_LARGE, "too many fields");
}

/* ---- the body ---- */

static void add_body(struct hl_http *h, const char *data, int64_t n) {
    if (h->body.n + n > h->max_body) refuse(h, HL_TOO_LARGE, "the body is larger than --max-body");
    else if (hl_text_put(&h->body, data, n) != HOLA_OK) refuse(h, HL_INTERNAL, "no memory for the body");
}

static int64_t plain_body(struct hl_http *h, const char *data, int64_t n) {
    const int64_t left = h->body_length - h->body.n;
    if (n > left) n = left;
    add_body(h, data, n);
    if (h->stage == HL_HTTP_BODY && h->body.n == h->body_length) h->stage = HL_HTTP_DONE;
    return n;
}

/* All of a chunk except its data. */
static void chunk_byte(struct hl_http *h, unsigned char c) {
    const int x = hex(c);
    switch ((enum chunk_stage)h->chunk) {
    case SIZE:
        if (x >= 0 && h->digits < 16) {
            h->chunk_left = h->digits < 15 ? 16 * h->chunk_left + x : INT64_MAX; /* far too long in any case */
            h->digits++;
        } else if (h->digits == 0 || x >= 0) refuse(h, HL_BAD_REQUEST, "a chunk without a proper size");
        else if (c == ';') h->chunk = EXTENSION, h->trailer = 0;
        else if (c == '\r') h->chunk = SIZE_LF;
        else refuse(h, HL_BAD_REQUEST, "a chunk without a proper size");
        return;
    case EXTENSION:
        if (c == '\r') h->chunk = SIZE_LF;
        else if ((c < 0x20 && c != '\t') || ++h->trailer > 256) refuse(h, HL_BAD_REQUEST, "a wrong chunk extension");
        return;
    case SIZE_LF:
        if (c != '\n') refuse(h, HL_BAD_REQUEST, "a chunk's size without CR LF");
        else if (h->chunk_left == 0) h->chunk = TRAILER, h->line = h->trailer = 0, h->cr = false;
        else if (h->chunk_left > h->max_body - h->body.n) refuse(h, HL_TOO_LARGE, "the body is larger than --max-body");
        else h->chunk = DATA;
        return;
    case DATA_CR:
    case DATA_LF:
        if (c != (h->chunk == DATA_CR ? '\r' : '\n')) refuse(h, HL_BAD_REQUEST, "a chunk longer than its size");
        else if (h->chunk == DATA_CR) h->chunk = DATA_LF;
        else h->chunk = SIZE, h->digits = 0;
        return;
    case TRAILER: /* skipped */
        if (c == 0 || h->cr != (c == '\n')) refuse(h, HL_BAD_REQUEST, "a wrong line behind the chunks");
        else if (++h->trailer > HL_HTTP_HEADER) refuse(h, HL_HEADER_TOO_LARGE, "too much behind the chunks");
        else if (c == '\n' && h->line == 1) h->stage = HL_HTTP_DONE;
        else h->line = c == '\n' ? 0 : h->line + 1;
        h->cr = c == '\r';
        return;
    case DATA: return;
    }
}

static int64_t chunked_body(struct hl_http *h, const char *data, int64_t n) {
    int64_t i = 0;
    while (i < n && h->stage == HL_HTTP_BODY) {
        if (h->chunk != DATA) {
            chunk_byte(h, (unsigned char)data[i++]);
            continue;
        }
        const int64_t some = n - i < h->chunk_left ? n - i : h->chunk_left;
        add_body(h, data + i, some);
        h->chunk_left -= some, i += some;
        if (h->chunk_left == 0) h->chunk = DATA_CR;
    }
    return i;
}

void hl_http_go_on(struct hl_http *h) {
    h->looked = true;
    h->trailer = h->chunk_left = 0;
    if (h->stage == HL_HTTP_BODY && h->body_length == 0) h->stage = HL_HTTP_DONE;
    if (h->stage == HL_HTTP_DONE && hl_text_clear(&h->body) != HOLA_OK) refuse(h, HL_INTERNAL, "no memory");
}

int64_t hl_http_feed(struct hl_http *h, const char *data, int64_t n) {
    int64_t i = 0;
    while (i < n && h->stage <= HL_HTTP_HEAD) head_byte(h, (unsigned char)data[i++]);
    if (h->stage != HL_HTTP_BODY || !h->looked || i == n) return i;
    i += h->body_length < 0 ? chunked_body(h, data + i, n - i) : plain_body(h, data + i, n - i);
    if (h->stage == HL_HTTP_DONE && h->body.n == 0 && hl_text_clear(&h->body) != HOLA_OK)
        refuse(h, HL_INTERNAL, "no memory");
    return i;
}
