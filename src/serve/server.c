/* server.c -- the server's life and its main loop: one thread with epoll (connection.c), and one that prepares long
 * requests. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "core/thread.h"
#include "model/model.h"
#include "serve/server_internal.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define SLOW_ROUND 0.003              /* seconds */
static char listener_mark, wake_mark; /* epoll data values of those two */

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
    s->now = hl_clock();
    struct hl_message *m = hl_queue_take(&s->prepared, 0), *next;
    for (; m; m = next) {
        next = m->next;
        hl_exchange_prepared((struct hl_exchange *)m);
    }
    s->gathering = true; /* a send() costs more than an event: several tokens may share one */
    for (m = hl_queue_take(&s->events, 0); m; m = next) {
        struct hl_event *ev = (struct hl_event *)m;
        next = m->next;
        s->round_events++;
        hl_answer_event(ev->request->owner, ev);
        hl_event_free(ev);
    }
    s->gathering = false;
    while (s->to_flush) {
        struct hl_connection *c = s->to_flush;
        s->to_flush = c->next_flush;
        c->waits_flush = false;
        if (!c->dead) hl_connection_flush(s, c);
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
    hl_connections_turn_down(s);
}

/* For --log debug: why tokens may have waited here. */
static double processor_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void note_round(const struct hl_server *s, double began, double worked, int sockets) {
    const double took = hl_clock() - began, ms = 1e3;
    if (took < SLOW_ROUND) return;
    fprintf(stderr, "http: %.1f ms for a round, %.1f of them on a processor: %d sockets, %" PRId64 " events\n",
            ms * took, ms * (processor_time() - worked), sockets, s->round_events);
}

void hl_server_run(struct hl_server *s) {
    const bool notes = s->o.log == HL_LOG_DEBUG;
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
        const double began = s->now = hl_clock(), worked = notes ? processor_time() : 0;
        s->round_events = 0;
        for (int i = 0; i < n; i++) {
            if (ev[i].data.ptr == &listener_mark) hl_connections_accept(s);
            else if (ev[i].data.ptr != &wake_mark) hl_connection_event(s, ev[i].data.ptr, ev[i].events);
            if (!hl_queue_empty(&s->events)) take_news(s); /* tokens do not wait for a burst of requests */
        }
        take_news(s);
        note_signals(s);
        if (s->stopping && s->n_exchanges == 0) {
            hl_connections_drop_idle(s); /* until now, they could learn that the server is shutting down */
            if (give_up == long_ago) give_up = hl_clock() + 1; /* responses in transit */
        }
        hl_connections_time_out(s);
        if (!s->accepting && !s->stopping && hl_clock() >= s->accept_again) {
            struct epoll_event again = {.events = EPOLLIN, .data.ptr = &listener_mark};
            s->accepting = epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &again) == 0;
        }
        hl_connections_free_dead(s);
        if (notes) note_round(s, began, worked, n);
    }
    for (struct hl_connection *c = s->first; c; c = c->next) hl_connection_drop(s, c); /* idle connections */
    hl_connections_free_dead(s);
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
    hola_session *session = NULL;
    if (st == HOLA_OK) st = hola_session_new(&session, opt->model);
    if (st == HOLA_OK) s->session_bytes = hola_session_bytes(session);
    hola_session_free(session);
    if (st == HOLA_OK) {
        int32_t *ids = NULL;
        int64_t n = 0;
        st = hola_tokenizer_encode(opt->tokenizer, "a", 1, 1, &ids, &n);
        s->context = n > 0 ? ids[n - 1] : 0;
        free(ids);
    }
    if (st == HOLA_OK) hl_serve_ready_heap(hl_serve_heap(opt->parallel, 0)); /* of this thread, which will run it */
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
