/* server.h -- HTTP in front of the engine: one epoll thread for all connections, one for requests that take long to
 * parse. docs/serve.md documents the interface. */
#ifndef HL_SERVER_H
#define HL_SERVER_H
#include "serve/engine.h"
#include "serve/prompt.h"

enum hl_server_log { HL_LOG_TEXT, HL_LOG_JSON, HL_LOG_NONE, HL_LOG_DEBUG }; /* DEBUG: text, and the engine's own */
struct hl_server_list {
    const char *const *item;
    int n;
};
struct hl_server_opts {
    hola_model *model;
    const hola_tokenizer *tokenizer;
    struct hl_serve_engine *engine;
    const struct hl_template *chat;
    bool template_guessed;
    const char *host;
    int port;     /* 0: any free port */
    int listener; /* > 0: use this listening socket instead */
    struct hl_server_list keys, cors, hosts, aliases;
    const char *backend; /* its name, for /v1/models */
    int64_t predict, parallel, queue, max_body, connections;
    hola_sampling sampling;
    double timeout_header, timeout_body, timeout_idle, timeout_send, timeout_drain;
    bool no_page;
    enum hl_server_log log;
};

struct hl_server;
/* Listens: connections wait until hl_server_run. */
hola_status hl_server_open(struct hl_server **out, const struct hl_server_opts *opt);
int hl_server_port(const struct hl_server *s);
void hl_server_run(struct hl_server *s); /* runs until stopped and all clients are served */
/* May be called from a signal handler: the first call lets running requests finish, the second ends now. */
void hl_server_stop(struct hl_server *s);
void hl_server_close(struct hl_server *s); /* the engine belongs to the caller and keeps running */

#endif
