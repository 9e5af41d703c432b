/* engine.h -- many conversations with one model: requests in, tokens out. No networking.
 *
 * One thread owns the model. Each round it takes new requests, admits waiting sequences, decodes one token for all
 * generating sequences in one pass, and then reads prompt pieces for about as long. On a CPU every sequence gets the
 * same bits as on its own.
 *
 * Requests and operations are structs that the caller fills and submits; they return through the caller's queue with
 * their last event. Memory is bounded: one session for each of `parallel` sequences, one for the prompt that several
 * answers share, and `cache_mem` for snapshots and idle conversations. */
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
    int64_t parallel, queue; /* parallel: active sequences; queue: waiting requests */
    int64_t cache_mem;       /* bytes */
    int64_t sessions;        /* conversations at most */
    const char *session_dir; /* NULL: conversations are lost when the engine closes */
    hola_dtype session_dtype;
    double lock_wait;       /* seconds to wait for another process to release the folder */
    double timeout_queue;   /* most seconds that a request may wait */
    double save_after;      /* most seconds from the end of a turn until it is on disk */
    double lease;           /* > 0: the folder is shared, and sessions are leased for this many seconds */
    hola_sampling sampling; /* of most requests: what a device prepares for */
    bool overlap;           /* makes text while the next step runs; always on a device */
    double slow_gap;        /* seconds; > 0: logs the start, and steps that end so much after the one before */
};

struct hl_serve_engine;
hola_status hl_serve_open(struct hl_serve_engine **out, const struct hl_serve_opts *opt);
/* Refuses new and waiting requests from now on; running ones continue for `drain` seconds. May be called again with a
 * shorter time. */
void hl_serve_stop(struct hl_serve_engine *e, double drain);
bool hl_serve_ended(struct hl_serve_engine *e); /* all requests have been returned and all conversations saved */
void hl_serve_close(struct hl_serve_engine *e); /* waits for that first */

/* Bytes that malloc gives a server's thread while so many sequences join; vocab: of the engine's thread, 0: of others.
 * The second writes as many and frees them, in the calling thread: of use where malloc keeps them (mallopt). */
int64_t hl_serve_heap(int64_t parallel, int64_t vocab);
void hl_serve_ready_heap(int64_t bytes);

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
    /* set by the caller: */
    int64_t prompts, n; /* n answers per prompt; answer j to prompt i is choice i n + j */
    struct hl_prompt *prompt;
    int64_t max_tokens;
    hola_sampling sampling;
    double presence, frequency;
    struct hl_logit_bias *bias;
    int64_t n_bias;
    uint64_t seed; /* choice i uses seed + i */
    char **stop;
    int64_t *stop_len, n_stop;
    int32_t stop_id[8]; /* tokens that end an answer like EOS */
    int n_stop_id;
    bool ignore_eos, cache_prompt;
    bool score_prompt; /* also send events for the prompt's tokens */
    int logprobs;      /* -1: none; else the token's own and this many top ones */
    /* a turn of a conversation: */
    char session[HL_ID_MOST + 1], fork_id[HL_ID_MOST + 1];
    enum hl_fork fork;
    int64_t position;              /* the position the prompt was built for; busy if the conversation is elsewhere */
    int64_t closes;                /* this many leading prompt tokens close the previous answer */
    struct hl_message_spans spans; /* of the prompt */
    int64_t answer_from;           /* prompt token where the answer's message begins; -1: plain text, no messages */
    struct hl_queue *events;
    void *owner;
    atomic_bool cancelled, held; /* held: not stepped while set. Call hl_serve_nudge after a change */
    /* set by the engine: */
    struct hl_queue *inbox;                    /* of the engine that owns it */
    _Atomic int64_t unread;                    /* token events not yet freed; the request pauses at a few hundred */
    _Atomic int64_t prompt_total, prompt_read; /* readable by any thread: prompt tokens in total and read so far */
    struct hl_serve_request *next;
    double came;
    int64_t begun, live; /* sequences started; sequences active */
    hola_session *lead;  /* its prompt after reading, for answers that have not started */
    struct hl_tape lead_tape;
    int64_t lead_cached;
    enum hl_error error;
    char reason[256];
    struct hl_conversation *conversation; /* whose turn it is; for a kept fork: the new conversation */
    struct hl_conversation *source;       /* for a fork: the conversation to copy */
    int64_t copies;                       /* sequences that have yet to copy it */
};
void hl_serve_request_free(struct hl_serve_request *r); /* with everything it points to */

enum hl_event_kind {
    HL_EVENT_PROMPT, /* a token of a prompt, with its log-probability */
    HL_EVENT_TOKEN,  /* a sampled token, and the text that is now final */
    HL_EVENT_FINISH, /* a choice is complete: the rest of its text, and statistics */
    HL_EVENT_END     /* the last event: the request belongs to the caller again */
};
struct hl_top {
    int32_t id;
    double logprob;
};
struct hl_event {
    struct hl_message message;    /* kind: an enum hl_event_kind */
    struct hl_event_block *block; /* the memory that it is in, with its texts; NULL: its own */
    struct hl_serve_request *request;
    int64_t choice;
    int32_t id;
    double logprob; /* NAN: none (the first token of a prompt) */
    int64_t n_top, n_piece, n_text;
    struct hl_top *top;
    char *piece, *text; /* the token's bytes; the text's */
    /* HL_EVENT_FINISH */
    enum hl_finish finish;
    int64_t prompt_n, cached_n, predicted_n;
    double queue_s, prompt_s, predicted_s;
    /* HL_EVENT_END */
    enum hl_error error;
    char reason[256];             /* message */
    char session[HL_ID_MOST + 1]; /* the conversation it continued */
    int64_t position;
};
void hl_event_free(struct hl_event *e);

void hl_serve_submit(struct hl_serve_engine *e, struct hl_serve_request *r);
void hl_serve_nudge(struct hl_serve_engine *e); /* after cancelled or held changed */

/* ---- operations on conversations ---- */

enum hl_op_kind {
    HL_OP_CREATE,   /* id (empty: generated), metadata */
    HL_OP_LIST,     /* limit in a; lists from after id (empty: from the start) */
    HL_OP_GET,      /* id */
    HL_OP_DELETE,   /* id */
    HL_OP_UPDATE,   /* id, metadata */
    HL_OP_FORK,     /* id, new_id (empty: generated), position in a (-1: now) */
    HL_OP_ROLLBACK, /* id, tokens in a, or turns in b, or position in c; the others -1 */
    HL_OP_SAVE,     /* id */
    HL_OP_FILE,     /* id -> bytes */
    HL_OP_PUT,      /* id, bytes */
    HL_OP_MESSAGES, /* id -> ids, spans */
    HL_OP_TOKENS,   /* id, from a to b (-1: the end) -> ids */
    HL_OP_MEMORY,   /* id, layer in a, head in b (-1: all), since in c (-1: always) -> ids of the kept tokens */
    HL_OP_COUNT
};
struct hl_op {
    struct hl_message message; /* any kind; returned unchanged */
    enum hl_op_kind op;
    char id[HL_ID_MOST + 1], new_id[HL_ID_MOST + 1];
    int64_t a, b, c;
    json_t *metadata; /* or NULL */
    char *bytes;      /* input or output; malloced */
    int64_t n_bytes;
    struct hl_queue *reply;
    void *owner;
    /* result */
    enum hl_error error;
    char reason[256];
    json_t *json;
    int32_t *ids; /* and, for kept tokens, their positions */
    int64_t n_ids, *positions;
    struct hl_message_spans spans;
    bool nothing_new;               /* HL_OP_MEMORY: unchanged */
    bool tried;                     /* the engine's: the disk was queried */
    struct hl_serve_engine *engine; /* these two: what must be on disk before the reply */
    struct hl_conversation *claims;
};
void hl_serve_do(struct hl_serve_engine *e, struct hl_op *op);
void hl_op_free(struct hl_op *op);

/* Callable from any thread. */
bool hl_serve_peek(struct hl_serve_engine *e, const char *id, struct hl_peek *out); /* false: not found */
struct hl_serve_metrics *hl_serve_metrics(struct hl_serve_engine *e);

#endif
