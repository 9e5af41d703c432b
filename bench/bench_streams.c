#define _GNU_SOURCE
/* bench_streams.c -- many clients of a server at once, and when each of their tokens came: for serve_promises.py.
 *
 *   build/cc/bench/streams PORT TOKENS [spin] <requests
 *
 * Each line of stdin is the body of one streamed POST /v1/completions; an empty line ends them. All are sent, one
 * connection each. "ready" is printed when every stream has had so many tokens or has ended. When all have ended, or
 * stdin has, one line of JSON is printed: for each stream its status, when it began and when its tokens came, and the
 * pauses of this program itself, in seconds of CLOCK_MONOTONIC.
 *
 * A pause is more than a millisecond between two looks at the sockets: tokens that came in it look later than they
 * were, and a gap that one explains says nothing of the server. With `spin` the program never sleeps, so that every
 * pause is seen; without, only those outside of epoll_wait are. */
#include "core/clock.h"
#include "core/text.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 256, RECEIVE = 1 << 16, PAUSES = 1000 };
#define PAUSE 1e-3 /* seconds */

struct stream {
    int fd, status;
    bool done;
    double began, ended;
    struct hl_text rest; /* an event that is not complete */
    double *at;
    int64_t n, room;
};
struct pause {
    double from, to;
};
static struct {
    struct stream *stream;
    int64_t n, open, room, tokens;
    int epoll;
    bool spin, told, eof;
    double looked;
    struct pause pause[PAUSES];
    int pauses;
} all;

static void die(const char *what) {
    fprintf(stderr, "bench_streams: %s: %s\n", what, strerror(errno));
    exit(1);
}
static void *grown(void *p, size_t bytes) {
    p = realloc(p, bytes);
    if (!p) die("memory");
    return p;
}

/* ---- one stream ---- */

static void end(struct stream *s) {
    s->done = true;
    s->ended = hl_clock();
    close(s->fd);
    all.open--;
}
static bool has(const char *p, int64_t n, const char *what) { return memmem(p, (size_t)n, what, strlen(what)); }

static void note_tokens(struct stream *s, const char *p, int64_t n, double now) {
    static const char token[] = "\"finish_reason\":null";
    for (const char *end = p + n; (p = memmem(p, (size_t)(end - p), token, sizeof token - 1)); p += sizeof token - 1) {
        if (s->n == s->room) s->room = 2 * s->room + 256, s->at = grown(s->at, (size_t)s->room * sizeof *s->at);
        s->at[s->n++] = now;
    }
}

/* Whole events are looked at, once. */
static void take(struct stream *s) {
    static char data[RECEIVE];
    const ssize_t got = recv(s->fd, data, sizeof data, MSG_DONTWAIT);
    const double now = hl_clock();
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0 || hl_text_put(&s->rest, data, got) != HOLA_OK) {
        end(s);
        return;
    }
    const char *p = s->rest.data;
    if (s->status == 0 && s->rest.n >= 12) s->status = atoi(p + 9);
    int64_t whole = s->rest.n;
    while (whole >= 2 && !(p[whole - 1] == '\n' && p[whole - 2] == '\n')) whole--;
    if (whole < 2) whole = 0;
    note_tokens(s, p, whole, now);
    const bool refused = s->status != 0 && s->status != 200;
    if (refused || has(p, whole, "data: [DONE]") || has(p, whole, "\"error\":")) {
        end(s);
        return;
    }
    memmove(s->rest.data, p + whole, (size_t)(s->rest.n - whole));
    s->rest.n -= whole;
}

static void add(int port, const char *body, size_t n) {
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct hl_text out = {0};
    const int on = 1;
    if (all.n == all.room) {
        all.room = 2 * all.room + 64;
        all.stream = grown(all.stream, (size_t)all.room * sizeof *all.stream);
    }
    struct stream *s = &all.stream[all.n++];
    *s = (struct stream){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .began = hl_clock()};
    if (s->fd < 0 || connect(s->fd, (const struct sockaddr *)&to, sizeof to) != 0) die("connect");
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    hl_text_printf(&out,
                   "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n\r\n",
                   n);
    hl_text_put(&out, body, (int64_t)n);
    if (hl_text_status(&out) != HOLA_OK) die("memory");
    for (int64_t sent = 0; sent < out.n;) {
        const ssize_t k = send(s->fd, out.data + sent, (size_t)(out.n - sent), MSG_NOSIGNAL);
        if (k < 0) die("send");
        sent += k;
    }
    hl_text_free(&out);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uint64_t)all.n};
    if (epoll_ctl(all.epoll, EPOLL_CTL_ADD, s->fd, &ev) != 0) die("epoll_ctl");
    all.open++;
}

/* ---- all ---- */

static void look(void) {
    struct epoll_event ev[EVENTS];
    const double begin = all.spin && all.looked > 0 ? all.looked : hl_clock();
    const int n = epoll_wait(all.epoll, ev, EVENTS, all.spin ? 0 : 50);
    const double woken = hl_clock();
    for (int i = 0; i < n; i++) {
        if (ev[i].data.u64) take(&all.stream[ev[i].data.u64 - 1]);
        else {
            char more[256];
            all.eof |= read(0, more, sizeof more) <= 0;
        }
    }
    const double now = hl_clock(), from = all.spin ? begin : woken;
    if (now - from > PAUSE && all.pauses < PAUSES) all.pause[all.pauses++] = (struct pause){from, now};
    all.looked = now;
}
static void tell(void) {
    bool ready = !all.told;
    for (int64_t i = 0; ready && i < all.n; i++) ready = all.stream[i].done || all.stream[i].n >= all.tokens;
    if (!ready) return;
    all.told = true;
    puts("ready");
    fflush(stdout);
}
static void print(void) {
    printf("{\"pauses\":[");
    for (int i = 0; i < all.pauses; i++) printf("%s[%.6f,%.6f]", i ? "," : "", all.pause[i].from, all.pause[i].to);
    printf("],\"streams\":[");
    for (int64_t i = 0; i < all.n; i++) {
        const struct stream *s = &all.stream[i];
        printf("%s{\"status\":%d,\"done\":%s,\"began\":%.6f,\"ended\":%.6f,\"at\":[", i ? "," : "", s->status,
               s->done ? "true" : "false", s->began, s->ended);
        for (int64_t k = 0; k < s->n; k++) printf("%s%.6f", k ? "," : "", s->at[k]);
        printf("]}");
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (argc < 3 || argc > 4 || (argc == 4 && strcmp(argv[3], "spin") != 0)) {
        fprintf(stderr, "usage: bench_streams PORT TOKENS [spin] <requests\n");
        return 2;
    }
    all.tokens = atoll(argv[2]);
    all.spin = argc == 4;
    all.epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN};
    if (all.epoll < 0) die("epoll_create1");
    struct hl_text bodies = {0};
    while ((n = getline(&line, &room, stdin)) > 1) hl_text_put(&bodies, line, n);
    free(line);
    if (hl_text_status(&bodies) != HOLA_OK) die("memory");
    if (epoll_ctl(all.epoll, EPOLL_CTL_ADD, 0, &ev) != 0 && errno != EPERM) die("stdin"); /* EPERM: a file */
    const char *end_of = bodies.data + bodies.n;
    for (const char *p = bodies.data, *next; p && p < end_of; p = next) {
        next = memchr(p, '\n', (size_t)(end_of - p));
        next = next ? next + 1 : end_of;
        add(atoi(argv[1]), p, (size_t)(next - p));
        if (next < end_of) look();
    }
    while (all.open > 0 && !all.eof) {
        look();
        tell();
    }
    tell();
    print();
    for (int64_t i = 0; i < all.n; i++) free(all.stream[i].at), hl_text_free(&all.stream[i].rest);
    free(all.stream);
    hl_text_free(&bodies);
    return 0;
}
