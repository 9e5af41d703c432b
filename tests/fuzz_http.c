/* fuzz_http.c -- any bytes as an HTTP request: refused with a reason, or complete, or waiting for more; never more than
 * the limits allow; and the same however the bytes are cut. The first byte says how. */
#define _GNU_SOURCE
#include "mutate.h"
#include "serve/http_parse.h"

enum { MAX_BODY = 4096 };
static const char *const seeds[] = {
    "\003GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "\007POST /v1/completions HTTP/1.1\r\nHost: [::1]:8080\r\nContent-Type: application/json\r\nContent-Length: 17\r\n"
    "X-Request-Id: abc\r\nExpect: 100-continue\r\n\r\n{\"prompt\": \"abc\"}",
    "\001POST /a%20b?x=1&y=%41 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
    "chunked\r\n\r\n5\r\nabcde\r\n10;x=y\r\n0123456789"
    "abcdef\r\n0\r\nTrailer: x\r\n\r\n",
    "\005GET http://example.com/health HTTP/1.0\r\nConnection: keep-alive, close\r\nOrigin: null\r\n\r\n",
    "\002OPTIONS * HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nAccess-Control-Request-Method: POST\r\n\r\n",
    "\011DELETE /v1/sessions/a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\nGET /next HTTP/1.1\r\n",
    "\013GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
};
enum { SEEDS = sizeof seeds / sizeof *seeds };

static struct seed seed_at(size_t i) {
    return i < SEEDS ? (struct seed){seeds[i], strlen(seeds[i])} : (struct seed){NULL, 0};
}

/* In pieces of `step` bytes; how many bytes were taken. */
static int64_t read_all(struct hl_http *h, const char *data, int64_t n, int64_t step) {
    int64_t at = 0, end = 0;
    while (h->stage < HL_HTTP_DONE) {
        if (h->stage == HL_HTTP_BODY && !h->looked) {
            hl_http_go_on(h);
            continue;
        }
        if (end < n) end = end + step < n ? end + step : n;
        const int64_t took = hl_http_feed(h, data + at, end - at);
        MUST(took >= 0 && took <= end - at);
        at += took;
        if (at == n && !(h->stage == HL_HTTP_BODY && !h->looked)) break;
        MUST(took > 0 || end < n || h->stage >= HL_HTTP_BODY);
    }
    return at;
}

static bool same_text(const char *a, const char *b) { return !a == !b && (!a || strcmp(a, b) == 0); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    struct hl_http a = {.max_body = MAX_BODY}, b = {.max_body = MAX_BODY};
    const char *text = (const char *)data + 1;
    const int64_t n = (int64_t)size - 1, x = read_all(&a, text, n, n + 1), y = read_all(&b, text, n, 1 + data[0] % 16);
    MUST(x == y && a.stage == b.stage && a.error == b.error);
    MUST(a.body.n <= MAX_BODY && a.head.n <= HL_HTTP_LINE + HL_HTTP_HEADER + 2);
    if (a.stage == HL_HTTP_REFUSED) MUST(a.error != HL_NO_ERROR && a.reason && a.reason[0]);
    if (a.stage == HL_HTTP_DONE) {
        MUST(a.method && a.method[0] && a.path && a.body.data && a.body.n == b.body.n);
        MUST(memcmp(a.body.data, b.body.data, (size_t)a.body.n) == 0);
        MUST(a.body_length < 0 || a.body.n == a.body_length);
        MUST(same_text(a.method, b.method) && same_text(a.path, b.path) && same_text(a.query, b.query));
#define SAME(field, name) MUST(same_text(a.field, b.field) && !(a.field && strpbrk(a.field, "\r\n")));
        HL_HTTP_FIELD_LIST(SAME)
#undef SAME
        MUST(a.minor == 0 || a.host);
        MUST(!(a.content_length && a.transfer_encoding));
    }
    hl_http_reset(&a), hl_http_reset(&b);
    return 0;
}
