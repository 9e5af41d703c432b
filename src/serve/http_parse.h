/* http_parse.h -- a strict HTTP/1.1 request parser: ambiguous requests are refused.
 *
 * Bytes arrive in pieces of any size; the result does not depend on the split. All sizes are bounded. */
#ifndef HL_HTTP_PARSE_H
#define HL_HTTP_PARSE_H
#include "core/text.h"
#include "serve/errors.h"

enum { HL_HTTP_LINE = 8 << 10, HL_HTTP_HEADER = 16 << 10, HL_HTTP_FIELDS = 100 };
enum hl_http_stage {
    HL_HTTP_NOTHING, /* no byte yet */
    HL_HTTP_HEAD,    /* in the request line or the fields */
    HL_HTTP_BODY,    /* the fields are complete: check them before feeding more (hl_http_go_on) */
    HL_HTTP_DONE,
    HL_HTTP_REFUSED /* see error and reason; the connection must be closed */
};
/* Headers that are used: the struct member, the header name, whether it may repeat. */
#define HL_HTTP_FIELD_LIST(X)                       \
    X(host, "host")                                 \
    X(origin, "origin")                             \
    X(authorization, "authorization")               \
    X(content_type, "content-type")                 \
    X(content_length, "content-length")             \
    X(transfer_encoding, "transfer-encoding")       \
    X(expect, "expect")                             \
    X(connection, "connection")                     \
    X(request_id, "x-request-id")                   \
    X(if_none_match, "if-none-match")               \
    X(cors_method, "access-control-request-method") \
    X(cors_headers, "access-control-request-headers")
struct hl_http {
    enum hl_http_stage stage;
    int64_t max_body;
    /* valid from when the fields are complete until the reset: */
    const char *method, *path, *query; /* path: decoded; query NULL: none */
#define HL_HTTP_FIELD(name, text) const char *name;
    HL_HTTP_FIELD_LIST(HL_HTTP_FIELD) /* NULL: not sent */
#undef HL_HTTP_FIELD
    int minor; /* HTTP/1.minor */
    bool keep_alive, expects_continue;
    int64_t body_length; /* as announced; -1: chunked */
    struct hl_text body;
    enum hl_error error;
    const char *reason;
    /* internal: */
    struct hl_text head;
    int64_t line, fields; /* bytes of this line; lines so far */
    bool cr, looked;
    int chunk; /* position in a chunk: see http_parse.c */
    int64_t chunk_left, digits, trailer;
};

/* Consumes bytes up to the end of the request and returns how many. Stops when the fields are complete. */
int64_t hl_http_feed(struct hl_http *h, const char *data, int64_t n);
void hl_http_go_on(struct hl_http *h); /* allows the body */
void hl_http_reset(struct hl_http *h); /* prepares for the next request; frees all memory */

/* Decodes %41 to A, in place; false: bad hex digits, or a NUL. */
bool hl_http_unescape(char *text);

#endif
