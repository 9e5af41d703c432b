/* conversation.h -- the server's sessions: an id, all ids ever fed, the state, and what is said about them.
 *
 * The table belongs to the engine's thread. Other threads may only call hl_conversation_peek. A conversation's state
 * is in memory, or on the disk with its ids and messages; one that was never fed has none. */
#ifndef HL_CONVERSATION_H
#define HL_CONVERSATION_H
#include "chat/template.h"
#include "serve/store.h"

enum { HL_TURNS_MOST = 64, HL_CONVERSATION_BUCKETS = 1 << 12 };
struct hl_message_span { /* a message: tokens [from, to), with what the template puts around it */
    enum hl_role role;
    bool closed; /* what the template puts behind it has been fed */
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
    int64_t known_from;               /* older ids than this one are not known: it came as a session file */
    int64_t revision, saved_revision; /* of all that a file holds; equal: the file is as the memory */
    double changed;                   /* hl_clock of the first change that is not saved */
    hola_session *session;            /* NULL: on the disk, or never fed, or to be rebuilt from the tape */
    struct hl_tape tape;
    struct hl_message_spans spans;
    bool on_disk;  /* tape and spans are on the disk alone */
    bool has_file; /* there is one, of whatever revision */
    bool open;     /* the last message is an answer that the template has not closed */
    bool damaged, deleted;
    int writers, copies; /* requests that change it, and that wait to copy it */
    int held;            /* requests that began with a copy of it, and still point to it */
    bool loading, saving, load_failed, save_failed;
    bool parking;             /* memory goes as soon as it is saved */
    char token[HL_TOKEN + 1]; /* of the lease, while it is ours; "": none (a folder that is shared) */
    struct hl_stamp stamp;    /* of the file that it was last the same as */
    void *ending;             /* the request or operation whose end waits for the disk */
    bool ending_is_op;
    int64_t counted; /* bytes of the budget that it takes while idle */
    int turns;
    int64_t turn[HL_TURNS_MOST]; /* where the last ones ended */
    json_t *metadata;
    struct hl_conversation *chain, *newer, *older;
};

struct hl_conversations {
    pthread_mutex_t lock; /* of what peek reads */
    struct hl_conversation *bucket[HL_CONVERSATION_BUCKETS];
    struct hl_conversation *newest, *oldest;
    int64_t n;
};
void hl_conversations_init(struct hl_conversations *t);
void hl_conversations_free(struct hl_conversations *t);

bool hl_id_valid(const char *id); /* [A-Za-z0-9][A-Za-z0-9._-]{0,63} */
struct hl_conversation *hl_conversation_find(struct hl_conversations *t, const char *id);
/* NULL: no memory. The id is not in the table. */
struct hl_conversation *hl_conversation_add(struct hl_conversations *t, const char *id);
/* Out of the table; it is freed by hl_conversation_free once nobody uses it. */
void hl_conversation_remove(struct hl_conversations *t, struct hl_conversation *c);
void hl_conversation_free(struct hl_conversation *c);
void hl_conversation_touch(struct hl_conversations *t, struct hl_conversation *c); /* used now */

/* The state and all that is on the disk too goes from memory. */
void hl_conversation_forget(struct hl_conversation *c);
/* A turn ended, at the position that the tape has. */
void hl_conversation_turn(struct hl_conversations *t, struct hl_conversation *c);
/* All behind the position goes: ids, turns, messages. */
void hl_conversation_cut(struct hl_conversations *t, struct hl_conversation *c, int64_t position);
/* Something changed that a file should hold. */
void hl_conversation_changed(struct hl_conversation *c);

struct hl_peek {
    int64_t position;
    bool open;
};
bool hl_conversation_peek(struct hl_conversations *t, const char *id, struct hl_peek *out); /* false: none */

/* What clients see of it; NULL: no memory. */
json_t *hl_conversation_json(const struct hl_conversation *c, int64_t state_bytes);
/* What its file says about it, and back: false where it cannot be. */
json_t *hl_conversation_about(const struct hl_conversation *c);
bool hl_conversation_from(struct hl_conversation *c, const json_t *about, bool spans);

#endif
