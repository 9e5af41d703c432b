/* engine.h -- many conversations with one model: requests in, tokens out. No network in it.
 *
 * One thread owns the model. In every round it takes what came in, lets waiting sequences join, feeds one token to
 * every sequence that writes, in one pass, and then reads pieces of prompts for about as long again. On a CPU every
 * sequence gets the bits that it would get alone.
 *
 * Requests and operations are structs that the caller fills and hands over; they come back through the caller's queue
 * with their last event. Memory is known in advance: one session for each of `parallel` sequences, one more for the
 * prompt that several answers share, and `cache_mem` for snapshots and idle conversations. */
#ifndef HL_ENGINE_H
#define HL_ENGINE_H
#include "serve/conversation.h"
#include "serve/errors.h"
#include "serve/metrics.h"
#include "serve/queue.h"
#include <stdatomic.h>

struct hl_serve_opts {
    hola_model *model;
    const hola_tokenizer *tokenizer;
    int32_t eos;             /* -1: none */
    int64_t parallel, queue; /* sequences under way; requests that wait */
    int64_t cache_mem;       /* bytes */
    int64_t sessions;        /* conversations at most */
    const char *session_dir; /* NULL: conversations end with the engine */
    hola_dtype session_dtype;
    double lock_wait;     /* seconds to wait for another process to leave the folder */
    double timeout_queue; /* seconds that a request may wait */
    double save_after;    /* seconds from a turn's end until it is on the disk at the latest */
    double lease;         /* > 0: others share the folder, a session is somebody's for so many seconds */
};

struct hl_serve_engine;
hola_status hl_serve_open(struct hl_serve_engine **out, const struct hl_serve_opts *opt);
/* From now on requests are refused, and those that wait; what runs goes on for `drain` seconds. May be called again,
 * with less. */
void hl_serve_stop(struct hl_serve_engine *e, double drain);
bool hl_serve_ended(struct hl_serve_engine *e); /* all requests have come back, all conversations are saved */
void hl_serve_close(struct hl_serve_engine *e); /* waits for that */

/* ---- requests ---- */

enum hl_fork { HL_FORK_NONE, HL_FORK_DROPPED, HL_FORK_KEPT };
enum hl_finish { HL_FINISH_NONE, HL_FINISH_STOP, HL_FINISH_LENGTH };

struct hl_logit_bias {
    int32_t id;
    float add;
};
struct hl_prompt {
    int32_t *ids; /* malloced */
    int64_t n;
};
struct hl_serve_request {
    struct hl_message message;
    /* the caller's, from here: */
    int64_t prompts, n; /* n answers to each prompt; the answer j to prompt i is choice i n + j */
    struct hl_prompt *prompt;
    int64_t max_tokens;
    hola_sampling sampling;
    double presence, frequency;
    struct hl_logit_bias *bias;
    int64_t n_bias;
    uint64_t seed; /* choice i takes seed + i */
    char **stop;
    int64_t *stop_len, n_stop;
    int32_t stop_id[8]; /* tokens that end an answer as EOS does */
    int n_stop_id;
    bool ignore_eos, cache_prompt;
    bool score_prompt; /* events for the prompt's tokens, too */
    int logprobs;      /* -1: none; else the token's, and so many of the likeliest */
    /* a turn of a conversation: */
    char session[HL_ID_MOST + 1], fork_id[HL_ID_MOST + 1];
    enum hl_fork fork;
    int64_t position;              /* where the prompt was made to follow; elsewhere: busy */
    int64_t closes;                /* so many tokens of the prompt close the last answer */
    struct hl_message_spans spans; /* of the prompt */
    int64_t answer_from; /* the token of the prompt where the answer's message begins; -1: a text, no messages */
    struct hl_queue *events;
    void *owner;
    atomic_bool cancelled, held; /* held: it is not stepped while this is set. Nudge the engine (hl_serve_nudge) */
    /* the engine's: */
    struct hl_queue *inbox; /* of the engine that has it */
    _Atomic int64_t unread; /* events with tokens that nobody has freed yet; it is not stepped beyond some hundreds */
    _Atomic int64_t prompt_total, prompt_read; /* anyone may look: how far its prompts are read */
    struct hl_serve_request *next;
    double came;
    int64_t begun, live; /* sequences that have begun; that are under way */
    hola_session *lead;  /* its prompt, read, for the answers that have not begun */
    struct hl_tape lead_tape;
    int64_t lead_cached;
    enum hl_error error;
    char reason[256];
    struct hl_conversation *conversation; /* whose turn it is; of a fork that is kept: the new one */
    struct hl_conversation *source;       /* of a fork: what is copied */
    int64_t copies;                       /* sequences that have yet to copy it */
};
void hl_serve_request_free(struct hl_serve_request *r); /* all that it points to, and itself */

enum hl_event_kind {
    HL_EVENT_PROMPT, /* a token of a prompt, with its log-probability */
    HL_EVENT_TOKEN,  /* a token that was chosen, and the text that has become certain */
    HL_EVENT_FINISH, /* a choice is complete: the rest of its text, what it took */
    HL_EVENT_END     /* the last one of a request, which is the caller's again */
};
struct hl_top {
    int32_t id;
    double logprob;
};
struct hl_event {
    struct hl_message message; /* kind: an enum hl_event_kind */
    struct hl_serve_request *request;
    int64_t choice;
    int32_t id;
    double logprob; /* NAN: none (the first token of a prompt) */
    int64_t n_top, n_piece, n_text;
    struct hl_top *top;
    char *piece, *text; /* the token's own bytes; the text's */
    /* HL_EVENT_FINISH */
    enum hl_finish finish;
    int64_t prompt_n, cached_n, predicted_n;
    double queue_s, prompt_s, predicted_s;
    /* HL_EVENT_END */
    enum hl_error error;
    char reason[256];             /* in words */
    char session[HL_ID_MOST + 1]; /* the conversation that it went on with */
    int64_t position;
};
void hl_event_free(struct hl_event *e);

void hl_serve_submit(struct hl_serve_engine *e, struct hl_serve_request *r);
void hl_serve_nudge(struct hl_serve_engine *e); /* after cancelled or held changed */

/* ---- operations on conversations ---- */

enum hl_op_kind {
    HL_OP_CREATE,   /* id (empty: one is made up), metadata */
    HL_OP_LIST,     /* limit in a, id (empty: from the beginning) after which */
    HL_OP_GET,      /* id */
    HL_OP_DELETE,   /* id */
    HL_OP_UPDATE,   /* id, metadata */
    HL_OP_FORK,     /* id, new_id (empty: one is made up), position in a (-1: now) */
    HL_OP_ROLLBACK, /* id, tokens in a, or turns in b, or position in c; the others -1 */
    HL_OP_SAVE,     /* id */
    HL_OP_FILE,     /* id -> bytes */
    HL_OP_PUT,      /* id, bytes */
    HL_OP_MESSAGES, /* id -> ids, spans */
    HL_OP_TOKENS,   /* id, from a to b (-1: the end) -> ids */
    HL_OP_MEMORY,   /* id, layer in a, head in b (-1: all), since in c (-1: always) -> ids: those that are kept */
    HL_OP_COUNT
};
struct hl_op {
    struct hl_message message; /* kind: any, it comes back */
    enum hl_op_kind op;
    char id[HL_ID_MOST + 1], new_id[HL_ID_MOST + 1];
    int64_t a, b, c;
    json_t *metadata; /* or NULL */
    char *bytes;      /* in, or out; malloced */
    int64_t n_bytes;
    struct hl_queue *reply;
    void *owner;
    /* what came of it */
    enum hl_error error;
    char reason[256];
    json_t *json;
    int32_t *ids; /* and, of kept ones, their positions */
    int64_t n_ids, *positions;
    struct hl_message_spans spans;
    bool nothing_new;               /* HL_OP_MEMORY: as it was */
    bool tried;                     /* the engine's: the disk was asked */
    struct hl_serve_engine *engine; /* these two: what is to be on the disk before it is answered */
    struct hl_conversation *claims;
};
void hl_serve_do(struct hl_serve_engine *e, struct hl_op *op);
void hl_op_free(struct hl_op *op);

/* For any thread. */
bool hl_serve_peek(struct hl_serve_engine *e, const char *id, struct hl_peek *out); /* false: there is none */
struct hl_serve_metrics *hl_serve_metrics(struct hl_serve_engine *e);

#endif
