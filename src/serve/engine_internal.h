/* engine_internal.h -- shared by the engine's files. Everything here belongs to the engine's thread. */
#ifndef HL_ENGINE_INTERNAL_H
#define HL_ENGINE_INTERNAL_H
#include "core/text.h"
#include "model/session.h"
#include "serve/engine.h"
#include "serve/pace.h"
#include "serve/prefix.h"

/* A device takes a step in one or two milliseconds; a prompt read for no longer is read at a fraction of its rate. Gaps
 * between tokens may be 10 ms (docs/serve.md): this is a step and the prompts after it; the rest is the clients' way. */
#define HL_GAP_DEVICE 0.008 /* seconds */
enum { HL_READ_PIECE = HL_PACE_UNIT, HL_SNAPSHOT_EVERY = 8192, HL_UNREAD_MOST = 512 };
enum { HL_FROM_CALLER, HL_FROM_CALLER_OP, HL_FROM_DISK, HL_FROM_STOP }; /* kinds of messages in the inbox */

enum hl_stage {
    HL_STAGE_LOADING, /* its conversation is being loaded from disk */
    HL_STAGE_READING,
    HL_STAGE_WRITING,
    HL_STAGE_CLOSING /* finished, but its last token is not yet fed */
};
/* What a round of the engine did: for the log, why a gap between tokens was long (engine_start.c). */
struct hl_round {
    int64_t joined, stepped, replayed; /* sequences; whether the step was a captured graph */
    int64_t prompts, tokens;           /* of passes over prompts */
    double admit, step, read, after;   /* seconds; after: what the first tokens of several prompts took of `read` */
    double ended;                      /* when its step ended; 0: it made none */
};
/* An active sequence: an answer to a prompt, or a conversation being rebuilt from its ids. */
struct hl_serve_stream {
    struct hl_serve_request *r;     /* NULL: a rebuild */
    struct hl_conversation *c;      /* whose turn it is; NULL: no conversation */
    struct hl_conversation *source; /* what it starts as a copy of; NULL: nothing, or done */
    struct hl_op *op;               /* for a rebuild: answered when it is done */
    enum hl_stage stage;
    int64_t choice;
    hola_session *session; /* its own, unless it is the conversation's */
    struct hl_tape own, *tape;
    const int32_t *ids;   /* the prompt */
    const uint8_t *calls; /* for a rebuild: the calls to replay */
    int64_t n, read, cached;
    bool fresh; /* the next piece starts a new call */
    hola_detokenizer *text;
    int32_t pending;                /* sampled, not yet fed */
    bool has_pending, snapshot_due; /* snapshot_due: of its prompt, once the first token is out */
    int64_t written, turn_begin;
    struct hl_ids out; /* generated ids, if a penalty needs them */
    enum hl_finish finish;
    double came, began, read_at, last_token;
    /* A possible stop string in a conversation's answer: the state before it, and the text added since. */
    bool marked;
    int64_t mark_position, held_back; /* bytes of text not yet sent */
    struct hl_text since_mark;
};

struct hl_later {
    struct hl_serve_stream *st;
    int32_t id;
};

struct hl_serve_engine {
    struct hl_serve_opts o;
    int64_t vocab;
    hola_tokenizer *more; /* tokenizer for continuing a text */
    pthread_t thread;
    bool started;
    struct hl_queue inbox;
    struct hl_conversations conversations;
    struct hl_prefix_cache prefixes;
    struct hl_store *store;
    int64_t disk_jobs, n_on_disk; /* pending disk jobs; conversations that are only on disk */
    struct hl_op *deferred;       /* operations waiting for the disk */
    struct hl_serve_metrics metrics;
    struct hl_serve_stream **stream; /* [parallel + rebuilds], active */
    int64_t streams, room, turn;     /* turn: which one reads next */
    struct hl_serve_request *waiting, **last_waiting;
    int64_t n_waiting, n_requests; /* waiting requests; all requests in the engine */
    hola_session **batch;          /* these five have room for all streams */
    int32_t *ids;
    hola_sampling *samplings;
    struct hl_serve_stream **who;
    float *logits;
    struct hl_candidate *work;                       /* [vocab] */
    float *adjusted;                                 /* [vocab] */
    struct hl_pace pace;                             /* of reading prompts */
    struct hl_round round;                           /* the present one */
    double join_for;                                 /* seconds that sequences may spend joining before the next step */
    int64_t idle_bytes, session_cost, session_bytes; /* session_cost: includes everything kept with the state */
    double next_save_look;
    /* engine_emit.c: events that are put into their queue together, and their memory */
    bool gathering, passing; /* passing: the tokens in `later` are being passed on */
    struct hl_queue *gathered_for;
    struct hl_message *gathered, *last_gathered;
    struct hl_event_block *block;
    struct hl_later *later; /* [room] tokens whose text is still to be made */
    int64_t n_later;
    _Atomic int64_t overlapped; /* tokens whose text was made while a step ran */
    bool stopping;
    double deadline;
    atomic_bool ended;
};

/* engine_start.c */
hola_status hl_serve_prepare(struct hl_serve_engine *e); /* before the thread starts */
void hl_serve_refill_memory(struct hl_serve_engine *e);  /* while it is idle */
/* Logs a gap of more than o.slow_gap, from the end of the last step to the present one's; last: that round. */
void hl_serve_note_gap(const struct hl_serve_engine *e, const struct hl_round *last);

/* engine_join.c */
void hl_serve_accept(struct hl_serve_engine *e, struct hl_serve_request *r); /* queues it or refuses it */
void hl_serve_admit(struct hl_serve_engine *e); /* admits waiting requests while there is room */
/* Starts if its state is in memory; otherwise loads it from disk and is called again. */
void hl_serve_stream_begin(struct hl_serve_engine *e, struct hl_serve_stream *st);
/* Removes it from the list and frees it */
void hl_serve_stream_leave(struct hl_serve_engine *e, struct hl_serve_stream *st);
hola_status hl_serve_make_streams(struct hl_serve_engine *e, int64_t room); /* room for so many sequences */
void hl_serve_request_fail(struct hl_serve_request *r, enum hl_error error, const char *fmt, ...) HL_PRINTF(3, 4);
void hl_serve_request_maybe_end(struct hl_serve_engine *e,
                                struct hl_serve_request *r); /* sends its END event once nothing is left of it */
/* Starts rebuilding the conversation's state; op (or NULL) is answered at the end. */
hola_status hl_serve_rebuild(struct hl_serve_engine *e, struct hl_conversation *c, struct hl_op *op);

bool hl_scores(const struct hl_serve_stream *st); /* whether the prompt's tokens are sent as events too */
/* engine_read.c: reads prompt pieces for about this many seconds, at least one; once: one */
void hl_serve_read(struct hl_serve_engine *e, double seconds, bool once);
/* Stores a copy for later prompts */
void hl_serve_stream_snapshot(struct hl_serve_engine *e, struct hl_serve_stream *st);

/* engine_write.c */
void hl_serve_step(struct hl_serve_engine *e); /* one token for every generating sequence */
void hl_serve_stream_prompt_read(struct hl_serve_engine *e,
                                 struct hl_serve_stream *st); /* logits are ready: samples the first token */
void hl_serve_stream_end(struct hl_serve_engine *e, struct hl_serve_stream *st, enum hl_finish finish);
void hl_serve_stream_drop(struct hl_serve_engine *e,
                          struct hl_serve_stream *st); /* the client is gone, or its request failed */
void hl_serve_stream_fail(struct hl_serve_engine *e, struct hl_serve_stream *st, hola_status s);
void hl_logprobs(const float *logits, int64_t vocab, int32_t id, int n, double *logprob, struct hl_top *top);

/* engine_emit.c */
bool hl_serve_held(struct hl_serve_request *r); /* its reader is behind: do not step it */
void hl_serve_emit(struct hl_serve_engine *e, struct hl_serve_request *r, struct hl_event *ev);
void hl_serve_gather(struct hl_serve_engine *e, bool on); /* while on, events wait for each other */
/* An event of this token; of a sampled one with the text that became final. NULL: no memory. */
struct hl_event *hl_event_token(struct hl_serve_engine *e, const struct hl_serve_stream *st, enum hl_event_kind kind,
                                int32_t id, const float *logits);
/* Its event is made by hl_serve_pass_on, at the latest before any other; false: now. */
bool hl_serve_later(struct hl_serve_engine *e, struct hl_serve_stream *st, int32_t id);
void hl_serve_pass_on(struct hl_serve_engine *e);

/* engine_ops.c, engine_sessions.c */
void hl_serve_run_op(struct hl_serve_engine *e, struct hl_op *op);
void hl_serve_disk_reply(struct hl_serve_engine *e, struct hl_store_job *j);
void hl_serve_save(struct hl_serve_engine *e, struct hl_conversation *c);
void hl_serve_load(struct hl_serve_engine *e, struct hl_conversation *c);
/* Saves what is due; seconds until the next save, or -1 */
double hl_serve_save_due(struct hl_serve_engine *e, bool all);
/* No longer in use: counted as idle and may be evicted */
void hl_serve_idle(struct hl_serve_engine *e, struct hl_conversation *c);
void hl_serve_unidle(struct hl_serve_engine *e, struct hl_conversation *c); /* in use */
bool hl_serve_make_room(struct hl_serve_engine *e, int64_t bytes);          /* frees budget; false: not enough */
void hl_serve_turn_ended(struct hl_serve_engine *e, struct hl_serve_stream *st);
void hl_serve_remove_file(struct hl_serve_engine *e, const char *id);
void hl_op_reply(struct hl_op *op, enum hl_error error, const char *fmt, ...) HL_PRINTF(3, 4);
bool hl_new_id(struct hl_serve_engine *e, char id[HL_ID_MOST + 1]);
/* A copy of the conversation up to a position, in the table, without state; NULL: error is set. */
struct hl_conversation *hl_conversation_copy(struct hl_serve_engine *e, const struct hl_conversation *c, const char *id,
                                             int64_t position, enum hl_error *error);
void hl_serve_unmake(struct hl_serve_engine *e, struct hl_conversation *c); /* drops a copy that no one has seen */
void hl_serve_count(struct hl_serve_engine *e);                             /* updates the gauges */
void hl_serve_request_end(struct hl_serve_engine *e, struct hl_serve_request *r); /* sends its END event */

/* engine_shared.c: a shared folder (opts.lease > 0). The disk holds the current version of a session except while a
 * turn or operation here holds its lease. When that ends, the session is written, the lease released, and only then the
 * client is told. */
bool hl_shared_peek(struct hl_serve_engine *e, const char *id, struct hl_peek *out); /* for any thread */
/* Its current version; NULL: none */
struct hl_conversation *hl_shared_look(struct hl_serve_engine *e, const char *id);
/* All sessions, current versions */
void hl_shared_list(struct hl_serve_engine *e);
/* Makes memory match the disk, or leaves it on disk only; false: its file is gone. */
bool hl_shared_refresh(struct hl_serve_engine *e, struct hl_conversation *c);
bool hl_shared_claim(struct hl_serve_engine *e, struct hl_conversation *c, enum hl_error *error);
bool hl_shared_lost(struct hl_serve_engine *e, const struct hl_conversation *c);
/* Writes changes and releases the lease; ending (a request or operation) is answered after that. false: answer now. */
bool hl_shared_commit(struct hl_serve_engine *e, struct hl_conversation *c, void *ending, bool is_op);
void hl_shared_committed(struct hl_serve_engine *e, struct hl_conversation *c, struct hl_store_job *j);
/* The lease was lost */
void hl_shared_fail(struct hl_serve_engine *e, const struct hl_conversation *c, struct hl_serve_request *r);
void hl_shared_release(struct hl_serve_engine *e, struct hl_conversation *c);
bool hl_shared_settle(struct hl_op *op); /* for an operation that needs a lease; true: it is answered later */
void hl_shared_drop(struct hl_serve_engine *e, struct hl_conversation *c); /* removed from the folder */

#endif
