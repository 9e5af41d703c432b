/* server.c -- connections: one thread, epoll, timeouts. Requests are handled in exchange.c. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "core/thread.h"
#include "model/model.h"
#include "serve/server_internal.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_SIZE = 16 << 10, GATHER_MOST = 64 << 10, LINGER_BYTES = 64 << 20 };
static char listener_mark, wake_mark; /* epoll data values of those two */

double hl_server_now(void) { return hl_clock(); }

/* ---- one connection ---- */

static int64_t unsent(const struct hl_connection *c) { return c->out.n - c->out_at; }

void hl_connection_want(struct hl_connection *c, struct hl_server *s) {
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
static void drop(struct hl_server *s, struct hl_connection *c) {
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
    s->connections--;
    atomic_store(&hl_serve_metrics(s->o.engine)->connections, s->connections);
}

/* Frees connections between two rounds, when no event can refer to them any more. */
static void bury(struct hl_server *s) {
    for (struct hl_connection *c = s->first, *next; c; c = next) {
        next = c->next;
        if (!c->dead) continue;
        *(c->previous ? &c->previous->next : &s->first) = c->next;
        if (c->next) c->next->previous = c->previous;
        free(c);
    }
}

/* Sends nothing more, but keeps reading, because a reset could destroy the response in transit. */
static void linger(struct hl_server *s, struct hl_connection *c) {
    if (c->left) {
        drop(s, c);
        return;
    }
    shutdown(c->fd, SHUT_WR);
    c->stage = HL_CONNECTION_LINGERS;
    set_deadline(s, c, 2);
    hl_text_free(&c->in);
    hl_connection_want(c, s);
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
    if (!c->dead && c->left && !c->exchange && unsent(c) == 0) drop(s, c);
}

static void flush(struct hl_server *s, struct hl_connection *c) {
    while (!c->dead && unsent(c) > 0) {
        const ssize_t n = send(c->fd, c->out.data + c->out_at, (size_t)unsent(c), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n <= 0) {
            drop(s, c);
            return;
        }
        c->out_at += n;
        c->taken = hl_clock();
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
    if (!c->dead) hl_connection_want(c, s);
}

/* ---- exchanges ---- */

void hl_exchange_send(struct hl_exchange *x, const char *data, int64_t n) {
    struct hl_connection *c = x->connection;
    if (!c) return;
    if (unsent(c) == 0) c->taken = hl_clock();
    if (hl_text_put(&c->out, data, n) != HOLA_OK) drop(x->server, c);
    else if (x->streaming && x->server->gathering && unsent(c) < GATHER_MOST) {
        if (!c->waits_flush) c->next_flush = x->server->to_flush, x->server->to_flush = c;
        c->waits_flush = true;
    } else if (x->streaming) flush(x->server, c);
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
        json_decref(x->choice[i].logprobs);
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
    flush(s, c);
}

static struct hl_exchange *new_exchange(struct hl_server *s, struct hl_connection *c) {
    struct hl_exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->server = s, x->connection = c;
    x->http = c->http;
    x->began = hl_clock();
    x->keep_alive = c->http->keep_alive && !s->stopping;
    x->old = c->http->minor == 0;
    snprintf(x->id, sizeof x->id, "%016llx%08llx", (unsigned long long)(s->salt ^ (s->serial * 0x9e3779b97f4a7c15u)),
             (unsigned long long)s->serial);
    s->serial++;
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
        drop(s, c);
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
        flush(s, c);
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
        drop(s, c);
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
                drop(s, c);
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
    hl_connection_want(c, s);
}

/* ---- epoll events ---- */

static void readable(struct hl_server *s, struct hl_connection *c) {
    char data[READ_SIZE];
    const ssize_t n = recv(c->fd, data, sizeof data, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == EWOULDBLOCK)) return;
    if (n < 0) {
        drop(s, c);
        return;
    }
    if (n == 0) {
        c->left = true;
        if (c->stage != HL_CONNECTION_ANSWERS) drop(s, c);
        else hl_connection_want(c, s);
        return;
    }
    if (c->stage == HL_CONNECTION_LINGERS) {
        c->out_at += n; /* counts discarded bytes */
        if (c->out_at > LINGER_BYTES) drop(s, c);
        return;
    }
    if (hl_text_put(&c->in, data, n) != HOLA_OK) drop(s, c);
    else process(s, c);
}

/* The client sends no more: cancels its work, unless it is not a generation. */
static void half_closed(struct hl_server *s, struct hl_connection *c) {
    c->left = true;
    if (c->exchange && c->exchange->submitted) drop(s, c);
    else if (!c->exchange && unsent(c) == 0 && c->in.n == 0) drop(s, c);
    else hl_connection_want(c, s);
}

static void handle(struct hl_server *s, struct hl_connection *c, uint32_t events) {
    if (c->dead) return;
    if (events & (EPOLLERR | EPOLLHUP)) {
        drop(s, c);
        return;
    }
    if (events & EPOLLOUT) flush(s, c);
    if (!c->dead && events & EPOLLIN) readable(s, c);
    if (!c->dead && events & EPOLLRDHUP && !(events & EPOLLIN)) half_closed(s, c);
}

static void greet(struct hl_server *s) {
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                               "Retry-After: 1\r\nConnection: close\r\nContent-Length: 116\r\n\r\n"
                               "{\"error\": {\"message\": \"too many connections\", \"type\": \"unavailable_error\", "
                               "\"param\": null, \"code\": \"overloaded\"}}";
    for (int k = 0; k < 64; k++) {
        const int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->listener, NULL); /* until descriptors are free again */
            s->accepting = false;
            s->accept_again = hl_clock() + 0.1;
        }
        if (fd < 0) return;
        struct hl_connection *c = s->connections < s->o.connections ? calloc(1, sizeof *c) : NULL;
        struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        if (!c || epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev) != 0) {
            s->refused_connections++;
            (void)!send(fd, full, strlen(full), MSG_NOSIGNAL | MSG_DONTWAIT);
            shutdown(fd, SHUT_WR);
            close(fd);
            free(c);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        c->fd = fd, c->events = ev.events;
        set_deadline(s, c, s->o.timeout_idle);
        c->next = s->first;
        if (s->first) s->first->previous = c;
        s->first = c;
        s->connections++;
        atomic_store(&hl_serve_metrics(s->o.engine)->connections, s->connections);
    }
}

/* ---- timeouts ---- */

/* Closes overdue connections; returns the time until the next timeout. */
static void look_at_clocks(struct hl_server *s) {
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
            drop(s, c);
            continue;
        }
        if (unsent(c) > 0 && c->stage != HL_CONNECTION_LINGERS && now - c->taken >= s->o.timeout_send) {
            drop(s, c);
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

/* ---- the preparation thread ---- */

static void *read_long(void *ctx) {
    struct hl_server *s = ctx;
    for (bool go = true; go;) {
        struct hl_message *m = hl_queue_take(&s->readings, -1), *next;
        for (; m; m = next) {
            next = m->next;
            if (m->kind < 0) {
                go = false;
                continue;
            }
            hl_exchange_prepare((struct hl_exchange *)m);
            hl_queue_put(&s->prepared, m);
        }
    }
    return NULL;
}

/* ---- main loop ---- */

static void take_news(struct hl_server *s) {
    uint64_t n;
    (void)!read(s->wake, &n, sizeof n);
    struct hl_message *m = hl_queue_take(&s->prepared, 0), *next;
    for (; m; m = next) {
        next = m->next;
        hl_exchange_prepared((struct hl_exchange *)m);
    }
    s->gathering = true; /* a send() costs more than an event: several tokens may share one */
    for (m = hl_queue_take(&s->events, 0); m; m = next) {
        struct hl_event *ev = (struct hl_event *)m;
        next = m->next;
        hl_answer_event(ev->request->owner, ev);
        hl_event_free(ev);
    }
    s->gathering = false;
    while (s->to_flush) {
        struct hl_connection *c = s->to_flush;
        s->to_flush = c->next_flush;
        c->waits_flush = false;
        if (!c->dead) flush(s, c);
    }
    for (m = hl_queue_take(&s->ops, 0); m; m = next) {
        next = m->next;
        hl_api_session_answer(((struct hl_op *)m)->owner);
    }
}

static void stop_listening(struct hl_server *s) {
    if (s->accepting) epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->listener, NULL);
    s->accepting = false;
    close(s->listener); /* frees the port at once */
    s->listener = -1;
}

static void note_signals(struct hl_server *s) {
    const int n = atomic_load(&s->signals);
    if (n == s->seen_signals) return;
    s->seen_signals = n;
    if (!s->stopping) stop_listening(s);
    s->stopping = true;
    hl_serve_stop(s->o.engine, n > 1 ? 0 : s->o.timeout_drain);
    for (struct hl_connection *c = s->first; c; c = c->next)
        if (!c->dead && c->stage <= HL_CONNECTION_HEAD && !c->exchange) drop(s, c);
}

void hl_server_run(struct hl_server *s) {
    struct epoll_event ev[256];
    const double long_ago = 0;
    double give_up = long_ago;
    while (!s->stopping || s->n_exchanges > 0 || (s->first && hl_clock() < give_up)) {
        double wait = s->first || s->stopping ? s->next_look - hl_clock() : -1;
        if (!s->accepting && !s->stopping) wait = 0.1;
        if (s->stopping && wait > 0.1) wait = 0.1;
        const int n = epoll_wait(s->epoll, ev, 256,
                                 wait < 0 && wait != -1 ? 0
                                 : wait < 0             ? -1
                                                        : (int)(1000 * wait) + 1);
        for (int i = 0; i < n; i++) {
            if (ev[i].data.ptr == &listener_mark) greet(s);
            else if (ev[i].data.ptr != &wake_mark) handle(s, ev[i].data.ptr, ev[i].events);
        }
        take_news(s);
        note_signals(s);
        if (s->stopping && give_up == long_ago && s->n_exchanges == 0)
            give_up = hl_clock() + 1; /* responses in transit */
        look_at_clocks(s);
        if (!s->accepting && !s->stopping && hl_clock() >= s->accept_again) {
            struct epoll_event again = {.events = EPOLLIN, .data.ptr = &listener_mark};
            s->accepting = epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &again) == 0;
        }
        bury(s);
    }
    for (struct hl_connection *c = s->first; c; c = c->next) drop(s, c); /* idle connections */
    bury(s);
}

/* ---- life ---- */

static void note_port(struct hl_server *s) {
    struct sockaddr_storage bound = {0};
    socklen_t len = sizeof bound;
    getsockname(s->listener, (struct sockaddr *)&bound, &len);
    s->port = bound.ss_family == AF_INET6  ? ntohs(((struct sockaddr_in6 *)&bound)->sin6_port)
              : bound.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&bound)->sin_port)
                                           : 0;
}

/* A listening socket owned by another process (systemd): it stays open for the next server. */
static hola_status take_listener(struct hl_server *s) {
    int on = 0;
    socklen_t len = sizeof on;
    if (getsockopt(s->o.listener, SOL_SOCKET, SO_ACCEPTCONN, &on, &len) != 0 || !on)
        return hl_fail(HOLA_EIO, "descriptor %d: not a socket that listens", s->o.listener);
    fcntl(s->o.listener, F_SETFL, fcntl(s->o.listener, F_GETFL) | O_NONBLOCK);
    fcntl(s->o.listener, F_SETFD, FD_CLOEXEC);
    s->listener = s->o.listener;
    note_port(s);
    return HOLA_OK;
}

static hola_status bind_to(struct hl_server *s) {
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *all = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", s->o.port);
    const int rc = getaddrinfo(s->o.host, port, &hints, &all);
    if (rc != 0) return hl_fail(HOLA_EIO, "%s: %s", s->o.host, gai_strerror(rc));
    int error = 0;
    for (struct addrinfo *a = all; a && s->listener < 0; a = a->ai_next) {
        const int on = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 4096) == 0) s->listener = fd;
        else {
            error = errno;
            if (fd >= 0) close(fd);
        }
    }
    freeaddrinfo(all);
    if (s->listener < 0) return hl_fail(HOLA_EIO, "%s:%s: %s", s->o.host, port, strerror(error));
    note_port(s);
    return HOLA_OK;
}

hola_status hl_server_open(struct hl_server **out, const struct hl_server_opts *opt) {
    struct hl_server *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return hl_fail(HOLA_ENOMEM, "server: no memory");
    s->o = *opt;
    s->listener = -1;
    s->created = (int64_t)time(NULL);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    hl_queue_init(&s->events, s->wake), hl_queue_init(&s->ops, s->wake), hl_queue_init(&s->prepared, s->wake);
    hl_queue_init(&s->readings, -1);
    if (getrandom(&s->salt, sizeof s->salt, 0) != sizeof s->salt) s->salt = (uint64_t)s->created;
    hola_status st = s->epoll < 0 || s->wake < 0 ? hl_fail(HOLA_EIO, "server: %s", strerror(errno)) : HOLA_OK;
    if (st == HOLA_OK) st = hl_model_hash(opt->model, &s->model_hash);
    snprintf(s->fingerprint, sizeof s->fingerprint, "hola-%s-%016llx", hola_version(),
             (unsigned long long)s->model_hash);
    if (st == HOLA_OK) {
        int32_t *ids = NULL;
        int64_t n = 0;
        st = hola_tokenizer_encode(opt->tokenizer, "a", 1, 1, &ids, &n);
        s->context = n > 0 ? ids[n - 1] : 0;
        free(ids);
    }
    if (st == HOLA_OK) st = opt->listener > 0 ? take_listener(s) : bind_to(s);
    struct epoll_event a = {.events = EPOLLIN, .data.ptr = &listener_mark},
                       b = {.events = EPOLLIN, .data.ptr = &wake_mark};
    if (st == HOLA_OK && (epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &a) != 0 ||
                          epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &b) != 0))
        st = hl_fail(HOLA_EIO, "server: %s", strerror(errno));
    s->accepting = st == HOLA_OK;
    if (st == HOLA_OK) s->has_reader = hl_thread_start(&s->reader, read_long, s);
    if (st == HOLA_OK) *out = s;
    else hl_server_close(s);
    return st;
}

int hl_server_port(const struct hl_server *s) { return s->port; }

void hl_server_stop(struct hl_server *s) {
    const uint64_t one = 1;
    atomic_fetch_add(&s->signals, 1);
    (void)!write(s->wake, &one, sizeof one);
}

void hl_server_close(struct hl_server *s) {
    struct hl_message stop = {.kind = -1};
    if (!s) return;
    if (s->has_reader) {
        hl_queue_put(&s->readings, &stop);
        pthread_join(s->reader, NULL);
    }
    if (s->listener >= 0) close(s->listener);
    if (s->epoll >= 0) close(s->epoll);
    if (s->wake >= 0) close(s->wake);
    hl_queue_free(&s->events), hl_queue_free(&s->ops), hl_queue_free(&s->prepared), hl_queue_free(&s->readings);
    free(s->count), hl_text_free(&s->line);
    free(s);
}
