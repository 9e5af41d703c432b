/* conversation.h -- the server's sessions: an id, all ids fed so far, the state, and metadata.
 *
 * The table belongs to the engine's thread. Other threads may only call hl_conversation_peek. A conversation's state is
 * in memory, or on disk together with its ids and messages; one that was never fed has no state. */
#ifndef HL_CONVERSATION_H
#define HL_CONVERSATION_H
#include "chat/template.h"
#include "serve/store.h"

enum { HL_TURNS_MOST = 64, HL_CONVERSATION_BUCKETS = 1 << 12 };
struct hl_message_span { /* a message: tokens [from, to), including the template's tokens around it */
    enum hl_role role;
    bool closed; /* the template's tokens after it have been fed */
    int64_t from, to;
};
struct hl_message_spans {
    struct hl_message_span *span;
    int64_t n, room;
};
hola_status hl_message_spans_add(struct hl_message_spans *s, struct hl_message_span x);

struct hl_conversation {
    char id[HL_ID_MOST + 1], parent[HL_ID_MOST + 1];
    int64_t created, used; /* seconds since 1970 */
    int64_t position, saved_position;
    int64_t known_from;               /* ids before this position are unknown: it was loaded from a session file */
    int64_t revision, saved_revision; /* revision of the file's contents; equal: the file is up to date */
    double changed;                   /* hl_clock of the first unsaved change */
    hola_session *session;            /* NULL: on disk, never fed, or to be rebuilt from the tape */
    struct hl_tape tape;
    struct hl_message_spans spans;
    bool on_disk;  /* tape and spans are only on disk */
    bool has_file; /* a file exists, of any revision */
    bool open;     /* the last message is an answer that the template has not closed */
    bool damaged, deleted;
    int writers, copies; /* requests that modify it; requests waiting to copy it */
    int held;            /* requests that began with a copy of it and still point to it */
    bool loading, saving, load_failed, save_failed;
    bool parking;             /* free its memory as soon as it is saved */
    char token[HL_TOKEN + 1]; /* token of our lease; "": none (shared folder) */
    struct hl_stamp stamp;    /* of the file version it last matched */
    void *ending;             /* the request or operation whose completion waits for the disk */
    bool ending_is_op;
    int64_t counted; /* bytes charged to the budget while idle */
    int turns;
    int64_t turn[HL_TURNS_MOST]; /* ends of the latest turns */
    json_t *metadata;
    struct hl_conversation *chain, *newer, *older;
};

struct hl_conversations {
    pthread_mutex_t lock; /* guards what peek reads */
    struct hl_conversation *bucket[HL_CONVERSATION_BUCKETS];
    struct hl_conversation *newest, *oldest;
    int64_t n;
};
void hl_conversations_init(struct hl_conversations *t);
void hl_conversations_free(struct hl_conversations *t);

bool hl_id_valid(const char *id); /* [A-Za-z0-9][A-Za-z0-9._-]{0,63} */
struct hl_conversation *hl_conversation_find(struct hl_conversations *t, const char *id);
/* NULL: out of memory. The id must not be in the table. */
struct hl_conversation *hl_conversation_add(struct hl_conversations *t, const char *id);
/* Removes it from the table; hl_conversation_free frees it when it is no longer in use. */
void hl_conversation_remove(struct hl_conversations *t, struct hl_conversation *c);
void hl_conversation_free(struct hl_conversation *c);
void hl_conversation_touch(struct hl_conversations *t, struct hl_conversation *c); /* marks it as used now */

/* Drops the state, and everything that is also on disk, from memory. */
void hl_conversation_forget(struct hl_conversation *c);
/* Ends a turn at the tape's current position. */
void hl_conversation_turn(struct hl_conversations *t, struct hl_conversation *c);
/* Discards everything after the position: ids, turns, messages. */
void hl_conversation_cut(struct hl_conversations *t, struct hl_conversation *c, int64_t position);
/* Records a change that must be saved. */
void hl_conversation_changed(struct hl_conversation *c);

struct hl_peek {
    int64_t position;
    bool open;
};
bool hl_conversation_peek(struct hl_conversations *t, const char *id, struct hl_peek *out); /* false: not found */

/* What clients see of it; NULL: out of memory. */
json_t *hl_conversation_json(const struct hl_conversation *c, int64_t state_bytes);
/* The metadata in its file, written and parsed; false: invalid. */
json_t *hl_conversation_about(const struct hl_conversation *c);
bool hl_conversation_from(struct hl_conversation *c, const json_t *about, bool spans);

#endif
