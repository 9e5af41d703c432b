/* server_internal.h -- shared by the server's files. Everything belongs to the server's thread, except exchanges in
 * preparation, which belong to the preparation thread. */
#ifndef HL_SERVER_INTERNAL_H
#define HL_SERVER_INTERNAL_H
#include "core/text.h"
#include "serve/http_parse.h"
#include "serve/server.h"
#include <jansson.h>

enum { HL_OUT_MOST = 256 << 10, HL_INLINE_MOST = 64 << 10 };

enum hl_connection_stage {
    HL_CONNECTION_IDLE, /* between two requests */
    HL_CONNECTION_HEAD,
    HL_CONNECTION_BODY,
    HL_CONNECTION_ANSWERS,
    HL_CONNECTION_LINGERS /* answered and closing; further input is discarded */
};
struct hl_connection {
    int fd;
    uint32_t events; /* the events epoll watches */
    enum hl_connection_stage stage;
    struct hl_connection *next, *previous;
    struct hl_http *http; /* NULL between requests */
    struct hl_text in;    /* received, not yet parsed */
    struct hl_text out;
    int64_t out_at;
    double deadline, taken; /* deadline of this stage; when the client last accepted a byte */
    struct hl_exchange *exchange;
    struct hl_connection *next_flush;
    bool waits_flush;        /* it is in the list of connections with data to send */
    bool left, closes, dead; /* the client has closed its side; close after the answer; gone */
};

/* An error response. */
struct hl_problem {
    enum hl_error error;
    char param[64]; /* empty: none */
    char reason[384];
};
#define HL_PROBLEM_PRINTF HL_PRINTF(4, 5)
bool hl_problem_set(struct hl_problem *p, enum hl_error error, const char *param, const char *fmt,
                    ...) HL_PROBLEM_PRINTF; /* returns false */

struct hl_choice {
    struct hl_text text, fresh; /* the whole text; for a stream: what has not been sent */
    struct hl_ids ids;
    int64_t ids_sent;
    json_t *logprobs; /* not yet sent, or all */
    int64_t offset;   /* character offset of the next token in the text */
    json_t *echo;     /* of a prompt's first choice: the prompt's logprobs, for the other choices */
    int64_t echo_offset;
    enum hl_finish finish;
    bool begun, echoed; /* the role was sent; the prompt's text was sent */
};

/* A request and its response. */
struct hl_exchange {
    struct hl_message message; /* to and from the preparation thread */
    struct hl_server *server;
    struct hl_connection *connection; /* NULL: the client is gone */
    struct hl_http *http;
    int endpoint;
    char id[HL_ID_MOST + 1];         /* X-Request-Id */
    const char *origin;              /* one allowed by --cors; NULL: none */
    bool head_only, keep_alive, old; /* old: HTTP/1.0 */
    double began, sent;              /* sent: time of a stream's last output */
    double reached;                  /* when some of it was last given to the socket; for --log debug */
    int64_t read, cached, written;   /* tokens */
    struct hl_problem problem;
    json_t *answer; /* of an immediate answer; NULL: later, or a problem */
    int status;
    /* a generation: */
    struct hl_serve_request *request;
    bool chat, stream, usage, echo, token_ids, submitted, streaming, finished;
    int64_t choices;
    struct hl_choice *choice;
    char name[40];     /* cmpl-... */
    const char *model; /* its name in the request */
    char *head;        /* the start of each event of its stream; NULL: none sent yet */
    int n_head;
    int64_t created;
    double queue_s, prompt_s, predicted_s;
    /* an operation: */
    struct hl_op *op;
    struct hl_exchange *next, *previous; /* list of exchanges whose request or operation is in the engine */
};

struct hl_count {
    int endpoint, code;
    int64_t n;
};
struct hl_server {
    struct hl_server_opts o;
    int listener, epoll, wake, port;
    bool accepting, stopping, closed;
    double accept_again; /* out of file descriptors until then */
    _Atomic int signals;
    int seen_signals;
    struct hl_connection *first, *to_flush;
    bool gathering; /* events are being handled: their output is sent together */
    double now;     /* when the present round or its events began */
    int64_t round_events;
    struct hl_text line;       /* a chunk of a stream */
    int64_t connections, dead; /* dead: closed ones that are still in the list */
    double next_look;
    struct hl_queue events, ops, prepared, readings; /* readings: to the preparation thread */
    pthread_t reader;
    bool has_reader;
    struct hl_exchange *exchanges;
    int64_t n_exchanges;
    struct hl_count *count;
    int n_counts;
    int64_t rejected[HL_ERROR_COUNT], refused_connections;
    int64_t created;
    uint64_t model_hash;
    char fingerprint[64], **alias;
    int aliases;
    int64_t session_bytes;
    int32_t context; /* an ordinary token, used as context to decode a single piece */
    uint64_t salt, serial;
};

/* connection.c */
void hl_connections_accept(struct hl_server *s);
void hl_connection_event(struct hl_server *s, struct hl_connection *c, uint32_t events); /* from epoll */
void hl_connection_flush(struct hl_server *s, struct hl_connection *c);                  /* sends what it can */
void hl_connection_drop(struct hl_server *s, struct hl_connection *c); /* the client is gone: cancels its request */
void hl_connections_time_out(struct hl_server *s);                     /* closes overdue ones; sets s->next_look */
void hl_connections_drop_idle(struct hl_server *s);                    /* those without a request */
void hl_connections_turn_down(struct hl_server *s);                    /* shutdown: bodies are not waited for */
void hl_connections_free_dead(struct hl_server *s); /* between two rounds, when no event can refer to them any more */
void hl_exchange_send(struct hl_exchange *x, const char *data, int64_t n);
void hl_exchange_done(struct hl_exchange *x);  /* its response is complete; frees it */
void hl_exchange_close(struct hl_exchange *x); /* the connection is not reused */
void hl_exchange_free(struct hl_exchange *x);

/* access.c */
bool hl_exchange_check(struct hl_exchange *x); /* headers are complete: may the body follow? */
bool hl_exchange_is_page(const struct hl_exchange *x);
const char *hl_endpoint_name(int endpoint);
void hl_endpoint_methods(int endpoint, char out[64]); /* its Allow header */
bool hl_method_known(const char *method);

/* exchange.c */
void hl_exchange_begin(struct hl_exchange *x);    /* the request is complete */
void hl_exchange_prepared(struct hl_exchange *x); /* after preparation */
void hl_exchange_prepare(struct hl_exchange *x);  /* on any thread */
void hl_exchange_problem(struct hl_exchange *x);  /* responds with x->problem */
void hl_exchange_answer(struct hl_exchange *x, int status, const char *type, const char *body, int64_t n,
                        const char *more);
void hl_exchange_json(struct hl_exchange *x, int status, json_t *json);
void hl_exchange_headers(struct hl_exchange *x, struct hl_text *out, int status, const char *type, const char *more);
json_t *hl_problem_json(const struct hl_problem *p);
void hl_server_count(struct hl_server *s, int endpoint, int code);
void hl_server_log(struct hl_exchange *x);
int hl_error_status(enum hl_error e);
const char *hl_error_code(enum hl_error e);

/* api_fields.c: builds a generation request from its JSON; false: x->problem */
bool hl_api_completion(struct hl_exchange *x, json_t *root);
bool hl_api_chat(struct hl_exchange *x, json_t *root);
bool hl_api_only(struct hl_problem *p, const json_t *root, const char *const *names); /* rejects unknown fields */
bool hl_api_messages(struct hl_problem *p, const json_t *list, struct hl_chat_message **out, int64_t *n,
                     struct hl_text *store);
bool hl_api_ids(const struct hl_server *s, struct hl_problem *p, const json_t *list, const char *param, int32_t **ids,
                int64_t *n);

/* api_answer.c: the response */
void hl_answer_event(struct hl_exchange *x, struct hl_event *ev);
void hl_answer_silence(struct hl_exchange *x); /* sends an SSE comment as a keep-alive */
json_t *hl_piece_text(const struct hl_server *s, int32_t id);

/* api_other.c: models, tokenize, templates, metrics; api_sessions.c */
void hl_api_prepare_other(struct hl_exchange *x, json_t *root);
bool hl_api_session(struct hl_exchange *x, json_t *root); /* fills x->op; false: x->problem */
void hl_api_session_answer(struct hl_exchange *x);        /* x->op is done */

enum hl_endpoint {
    HL_AT_NOTHING,
    HL_AT_PAGE,
    HL_AT_STYLE,
    HL_AT_SCRIPT,
    HL_AT_HEALTH,
    HL_AT_MODELS,
    HL_AT_MODEL,
    HL_AT_COMPLETIONS,
    HL_AT_CHAT,
    HL_AT_TOKENIZE,
    HL_AT_DETOKENIZE,
    HL_AT_TEMPLATE,
    HL_AT_METRICS,
    HL_AT_SESSIONS,
    HL_AT_SESSION,
    HL_AT_FORK,
    HL_AT_ROLLBACK,
    HL_AT_SAVE,
    HL_AT_FILE,
    HL_AT_MESSAGES,
    HL_AT_TOKENS,
    HL_AT_MEMORY,
    HL_ENDPOINTS
};
/* The page's files, compiled into the program (page.c). */
struct hl_page_file {
    const char *data;
    int64_t size;
    const char *type;
};
struct hl_page_file hl_page_file(int endpoint);

#endif
