/* connection.c -- connections: reading and parsing requests, sending answers, timeouts; all on the server's thread.
 * Requests are handled in exchange.c. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "serve/server_internal.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_SIZE = 16 << 10, GATHER_MOST = 64 << 10, LINGER_BYTES = 64 << 20, REFUSED_MOST = 64, LINGER_SECONDS = 2 };

#define SLOW_SENDS 0.006 /* seconds */

/* ---- one connection ---- */

static int64_t unsent(const struct hl_connection *c) { return c->out.n - c->out_at; }

/* Sets which events epoll watches. */
static void watch(struct hl_server *s, struct hl_connection *c) {
    uint32_t events = 0;
    const bool reads = c->stage != HL_CONNECTION_ANSWERS && !c->left;
    if (reads || c->stage == HL_CONNECTION_LINGERS) events |= EPOLLIN;
    if (!c->left) events |= EPOLLRDHUP;
    if (unsent(c) > 0) events |= EPOLLOUT;
    if (events == c->events || c->dead) return;
    c->events = events;
    struct epoll_event ev = {.events = events, .data.ptr = c};
    epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &ev);
}

static void forget(struct hl_exchange *x) {
    struct hl_server *s = x->server;
    *(x->previous ? &x->previous->next : &s->exchanges) = x->next;
    if (x->next) x->next->previous = x->previous;
    s->n_exchanges--;
    hl_exchange_free(x);
}

static void set_deadline(struct hl_server *s, struct hl_connection *c, double seconds) {
    c->deadline = hl_clock() + seconds;
    if (c->deadline < s->next_look) s->next_look = c->deadline;
}

/* The client is gone: cancels its request. */
void hl_connection_drop(struct hl_server *s, struct hl_connection *c) {
    struct hl_exchange *x = c->exchange;
    if (c->dead) return;
    c->dead = true;
    if (x && c->stage == HL_CONNECTION_BODY) { /* no other thread has it */
        x->http = NULL;
        forget(x);
        x = NULL;
    }
    c->exchange = NULL;
    if (x) {
        x->connection = NULL;
        if (x->submitted && x->request) {
            atomic_fetch_add(&hl_serve_metrics(s->o.engine)->disconnects, 1);
            atomic_store(&x->request->cancelled, true);
            atomic_store(&x->request->held, false);
            hl_serve_nudge(s->o.engine);
        }
    }
    if (c->http) hl_http_reset(c->http), free(c->http), c->http = NULL;
    close(c->fd);
    hl_text_free(&c->in), hl_text_free(&c->out);
    s->connections--, s->dead++;
    atomic_store(&hl_serve_metrics(s->o.engine)->connections, s->connections);
}

/* Frees connections between two rounds, when no event can refer to them any more. */
void hl_connections_free_dead(struct hl_server *s) {
    for (struct hl_connection *c = s->dead > 0 ? s->first : NULL, *next; c; c = next) {
        next = c->next;
        if (!c->dead) continue;
        *(c->previous ? &c->previous->next : &s->first) = c->next;
        if (c->next) c->next->previous = c->previous;
        free(c);
    }
    s->dead = 0;
}

/* Sends nothing more, but keeps reading, because a reset could destroy the response in transit. */
static void linger(struct hl_server *s, struct hl_connection *c) {
    if (c->left) {
        hl_connection_drop(s, c);
        return;
    }
    shutdown(c->fd, SHUT_WR);
    c->stage = HL_CONNECTION_LINGERS;
    set_deadline(s, c, LINGER_SECONDS);
    hl_text_free(&c->in);
    watch(s, c);
}

static void process(struct hl_server *s, struct hl_connection *c);

/* The response has been sent. */
static void answered(struct hl_server *s, struct hl_connection *c) {
    if (c->closes) {
        linger(s, c);
        return;
    }
    c->stage = HL_CONNECTION_IDLE;
    set_deadline(s, c, s->o.timeout_idle);
    process(s, c);
    if (!c->dead && c->left && !c->exchange && unsent(c) == 0) hl_connection_drop(s, c);
}

/* For --log debug: some of a stream was sent. */
static void note_gap(struct hl_exchange *x) {
    const double now = hl_clock(), gap = now - x->reached;
    if (x->reached > 0 && gap >= SLOW_SENDS)
        fprintf(stderr, "http: %.1f ms between two sends of the stream %s\n", 1e3 * gap, x->id);
    x->reached = now;
}

void hl_connection_flush(struct hl_server *s, struct hl_connection *c) {
    if (s->o.log == HL_LOG_DEBUG && unsent(c) > 0 && c->exchange && c->exchange->streaming) note_gap(c->exchange);
    while (!c->dead && unsent(c) > 0) {
        const ssize_t n = send(c->fd, c->out.data + c->out_at, (size_t)unsent(c), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n <= 0) {
            hl_connection_drop(s, c);
            return;
        }
        c->out_at += n;
        c->taken = hl_clock(); /* not s->now: a round that makes a large answer takes seconds */
    }
    if (c->dead) return;
    struct hl_exchange *x = c->exchange;
    const int64_t left = unsent(c);
    if (left == 0) hl_text_free(&c->out), c->out_at = 0;
    else if (c->out_at > HL_OUT_MOST) {
        memmove(c->out.data, c->out.data + c->out_at, (size_t)left);
        c->out.n = left, c->out_at = 0;
    }
    if (x && x->request && x->submitted) {
        const bool held = left > HL_OUT_MOST, was = atomic_load(&x->request->held);
        if (held != was && (held || left < HL_OUT_MOST / 2)) {
            atomic_store(&x->request->held, held);
            if (!held) hl_serve_nudge(s->o.engine);
        }
    }
    if (!x && left == 0 && c->stage == HL_CONNECTION_ANSWERS) answered(s, c);
    if (!c->dead) watch(s, c);
}

/* ---- exchanges ---- */

void hl_exchange_send(struct hl_exchange *x, const char *data, int64_t n) {
    struct hl_connection *c = x->connection;
    if (!c) return;
    if (unsent(c) == 0) c->taken = hl_clock();
    if (hl_text_put(&c->out, data, n) != HOLA_OK) hl_connection_drop(x->server, c);
    else if (x->streaming && x->server->gathering && unsent(c) < GATHER_MOST) {
        if (!c->waits_flush) c->next_flush = x->server->to_flush, x->server->to_flush = c;
        c->waits_flush = true;
    } else if (x->streaming) hl_connection_flush(x->server, c);
}

void hl_exchange_close(struct hl_exchange *x) {
    if (x->connection) x->connection->closes = true;
}

void hl_exchange_free(struct hl_exchange *x) {
    if (x->http) hl_http_reset(x->http), free(x->http);
    json_decref(x->answer);
    hl_serve_request_free(x->request);
    hl_op_free(x->op);
    for (int64_t i = 0; i < x->choices; i++) {
        hl_text_free(&x->choice[i].text), hl_text_free(&x->choice[i].fresh);
        free(x->choice[i].ids.data);
        json_decref(x->choice[i].logprobs), json_decref(x->choice[i].echo);
    }
    free(x->choice), free(x->head);
    free(x);
}

void hl_exchange_done(struct hl_exchange *x) {
    struct hl_server *s = x->server;
    struct hl_connection *c = x->connection;
    hl_server_log(x);
    forget(x);
    if (!c || c->dead) return;
    c->exchange = NULL;
    hl_connection_flush(s, c);
}

static void new_id(struct hl_server *s, char id[HL_ID_MOST + 1]) {
    snprintf(id, HL_ID_MOST + 1, "%016llx%08llx", (unsigned long long)(s->salt ^ (s->serial * 0x9e3779b97f4a7c15u)),
             (unsigned long long)s->serial);
    s->serial++;
}

static struct hl_exchange *new_exchange(struct hl_server *s, struct hl_connection *c) {
    struct hl_exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->server = s, x->connection = c;
    x->http = c->http;
    x->began = hl_clock();
    x->keep_alive = c->http->keep_alive && !s->stopping;
    x->old = c->http->minor == 0;
    new_id(s, x->id);
    x->next = s->exchanges;
    if (s->exchanges) s->exchanges->previous = x;
    s->exchanges = x;
    s->n_exchanges++;
    return x;
}

/* The header is complete. */
static void look(struct hl_server *s, struct hl_connection *c) {
    struct hl_http *h = c->http;
    struct hl_exchange *x = new_exchange(s, c);
    if (!x) {
        hl_connection_drop(s, c);
        return;
    }
    c->exchange = x;
    c->stage = HL_CONNECTION_BODY;
    set_deadline(s, c, s->o.timeout_body);
    if (!hl_exchange_check(x)) {
        c->http = NULL;
        c->stage = HL_CONNECTION_ANSWERS;
        if (h->body_length != 0 || !x->keep_alive) c->closes = true; /* the body is not read */
        hl_exchange_problem(x);
        return;
    }
    if (h->expects_continue && h->body_length != 0 && c->in.n == 0) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        hl_exchange_send(x, go_on, sizeof go_on - 1);
        hl_connection_flush(s, c);
    }
    if (!c->dead) hl_http_go_on(h);
}

/* Refuses a request that is invalid or takes too long. */
static void turn_down(struct hl_server *s, struct hl_connection *c, enum hl_error error, const char *reason) {
    struct hl_exchange *x = c->exchange;
    if (!x) x = c->exchange = new_exchange(s, c);
    c->http = NULL; /* now owned by the exchange */
    c->closes = true;
    if (!x) {
        hl_connection_drop(s, c);
        return;
    }
    c->stage = HL_CONNECTION_ANSWERS;
    hl_problem_set(&x->problem, error, "", "%s", reason);
    hl_exchange_problem(x);
}

/* Processes received requests one by one. After an immediate response it continues with the next request. */
static void process(struct hl_server *s, struct hl_connection *c) {
    while (!c->dead && c->stage <= HL_CONNECTION_BODY) {
        struct hl_http *h = c->http;
        if (!h) {
            if (c->in.n == 0) break;
            h = c->http = calloc(1, sizeof *h);
            if (!h) {
                hl_connection_drop(s, c);
                return;
            }
            h->max_body = s->o.max_body;
        }
        if (c->stage == HL_CONNECTION_IDLE) {
            c->stage = HL_CONNECTION_HEAD;
            set_deadline(s, c, s->o.timeout_header);
        }
        const int64_t took = hl_http_feed(h, c->in.data, c->in.n);
        memmove(c->in.data, c->in.data + took, (size_t)(c->in.n - took));
        c->in.n -= took;
        if (h->stage == HL_HTTP_REFUSED) turn_down(s, c, h->error, h->reason);
        else if (h->stage == HL_HTTP_BODY && !h->looked) look(s, c);
        else if (h->stage == HL_HTTP_DONE) {
            c->http = NULL;
            c->stage = HL_CONNECTION_ANSWERS;
            c->closes = !c->exchange->keep_alive;
            hl_exchange_begin(c->exchange);
        } else if (c->in.n == 0) break;
    }
    if (c->dead) return;
    if (c->in.n == 0) hl_text_free(&c->in);
    watch(s, c);
}

/* ---- epoll events ---- */

static void readable(struct hl_server *s, struct hl_connection *c) {
    char data[READ_SIZE];
    const ssize_t n = recv(c->fd, data, sizeof data, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == EWOULDBLOCK)) return;
    if (n < 0) {
        hl_connection_drop(s, c);
        return;
    }
    if (n == 0) {
        c->left = true;
        if (c->stage != HL_CONNECTION_ANSWERS) hl_connection_drop(s, c);
        else watch(s, c);
        return;
    }
    if (c->stage == HL_CONNECTION_LINGERS) {
        c->out_at += n; /* counts discarded bytes */
        if (c->out_at > LINGER_BYTES) hl_connection_drop(s, c);
        return;
    }
    if (hl_text_put(&c->in, data, n) != HOLA_OK) hl_connection_drop(s, c);
    else process(s, c);
}

/* The client sends no more: cancels its work, unless it is not a generation. */
static void half_closed(struct hl_server *s, struct hl_connection *c) {
    c->left = true;
    if (c->exchange && c->exchange->submitted) hl_connection_drop(s, c);
    else if (!c->exchange && unsent(c) == 0 && c->in.n == 0) hl_connection_drop(s, c);
    else watch(s, c);
}

void hl_connection_event(struct hl_server *s, struct hl_connection *c, uint32_t events) {
    if (c->dead) return;
    if (events & (EPOLLERR | EPOLLHUP)) {
        hl_connection_drop(s, c);
        return;
    }
    if (events & EPOLLOUT) hl_connection_flush(s, c);
    if (!c->dead && events & EPOLLIN) readable(s, c);
    if (!c->dead && events & EPOLLRDHUP && !(events & EPOLLIN)) half_closed(s, c);
}

/* One connection too many is told so. Some of these stay until their client has read it: closing a socket that still
 * holds a request would reset the connection and could destroy the answer in transit. */
static bool refuse(struct hl_server *s, int fd) {
    static const char body[] = "{\"error\": {\"message\": \"too many connections\", \"type\": \"unavailable_error\", "
                               "\"param\": null, \"code\": \"overloaded\"}}";
    char id[HL_ID_MOST + 1], out[512];
    new_id(s, id);
    const int n = snprintf(out, sizeof out,
                           "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\n"
                           "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nRetry-After: 1\r\n"
                           "Connection: close\r\nContent-Length: %d\r\n\r\n%s",
                           id, (int)sizeof body - 1, body);
    s->refused_connections++;
    (void)!send(fd, out, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
    return s->connections < s->o.connections + REFUSED_MOST;
}

static void add_connection(struct hl_server *s, int fd, bool refused) {
    struct hl_connection *c = calloc(1, sizeof *c);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    const int on = 1;
    if (!c || epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev) != 0) {
        close(fd);
        free(c);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->fd = fd, c->events = ev.events;
    if (refused) c->stage = HL_CONNECTION_LINGERS;
    set_deadline(s, c, refused ? LINGER_SECONDS : s->o.timeout_idle);
    c->next = s->first;
    if (s->first) s->first->previous = c;
    s->first = c;
    s->connections++;
    atomic_store(&hl_serve_metrics(s->o.engine)->connections, s->connections);
}

void hl_connections_accept(struct hl_server *s) {
    for (int k = 0; k < 64; k++) {
        const int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->listener, NULL); /* until descriptors are free again */
            s->accepting = false;
            s->accept_again = hl_clock() + 0.1;
        }
        if (fd < 0) return;
        const bool full = s->connections >= s->o.connections;
        if (full && !refuse(s, fd)) close(fd);
        else add_connection(s, fd, full);
    }
}

/* ---- timeouts and shutdown ---- */

void hl_connections_drop_idle(struct hl_server *s) {
    for (struct hl_connection *c = s->first; c; c = c->next)
        if (c->stage <= HL_CONNECTION_HEAD) hl_connection_drop(s, c);
}

void hl_connections_turn_down(struct hl_server *s) {
    for (struct hl_connection *c = s->first; c; c = c->next)
        if (!c->dead && c->stage == HL_CONNECTION_BODY)
            turn_down(s, c, HL_SHUTTING_DOWN, "the server is shutting down");
}

/* Closes overdue connections. */
void hl_connections_time_out(struct hl_server *s) {
    const double now = hl_clock();
    double next = now + 1;
    if (now < s->next_look) return;
    for (struct hl_connection *c = s->first; c; c = c->next) {
        if (c->dead) continue;
        if (c->stage == HL_CONNECTION_HEAD || c->stage == HL_CONNECTION_BODY) {
            if (now >= c->deadline) {
                turn_down(s, c, HL_TIMEOUT, "the request took too long");
                continue;
            }
        } else if (c->stage != HL_CONNECTION_ANSWERS && now >= c->deadline) {
            hl_connection_drop(s, c);
            continue;
        }
        if (unsent(c) > 0 && c->stage != HL_CONNECTION_LINGERS && now - c->taken >= s->o.timeout_send) {
            hl_connection_drop(s, c);
            continue;
        }
        if (c->exchange && c->exchange->submitted && c->exchange->stream) {
            if (now - c->exchange->sent >= 5) hl_answer_silence(c->exchange);
            if (!c->dead && c->exchange && c->exchange->sent + 5 < next) next = c->exchange->sent + 5;
        }
        if (c->dead) continue;
        if (unsent(c) > 0 && c->taken + s->o.timeout_send < next) next = c->taken + s->o.timeout_send;
        if (c->stage != HL_CONNECTION_ANSWERS && c->deadline < next) next = c->deadline;
    }
    s->next_look = next > now + 0.02 ? next : now + 0.02;
}
