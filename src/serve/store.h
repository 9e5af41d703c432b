/* store.h -- conversations as files in one folder, written whole or not at all (docs/format.md has their bytes).
 *
 * A file "ID.MODEL.session" holds all of a conversation: what is said about it as JSON, its ids, the calls that fed
 * them, and the session as hola_session_save writes it. Files belong to the user alone, links are never followed, and
 * one process at a time uses a folder, or several that share it: then whoever changes a conversation has a lease of it
 * (lease.h), "ID.MODEL.lease". Writing and reading are for a thread of their own: a disk may take its time. */
#ifndef HL_STORE_H
#define HL_STORE_H
#include "serve/lease.h"
#include "serve/queue.h"
#include "serve/tape.h"
#include <jansson.h>

enum { HL_ID_MOST = 64 };

struct hl_stored { /* a conversation on its way to or from the disk */
    json_t *about;
    struct hl_tape tape;
    char *session; /* as hola_session_save writes it */
    int64_t session_bytes;
};
void hl_stored_free(struct hl_stored *r);

/* The bytes of a record, and back; path is for messages. Every length is checked before it is used. */
hola_status hl_stored_pack(const struct hl_stored *r, uint64_t model, char **file, int64_t *size);
hola_status hl_stored_parse(struct hl_stored *r, const char *data, int64_t size, uint64_t model, const char *path);
/* Only what is said about it; the first HL_RECORD_HEAD bytes say how many of the file that takes. */
enum { HL_RECORD_HEAD = 64 };
int64_t hl_stored_about_end(const char *head, int64_t size, uint64_t model); /* -1: no such file */

struct hl_store;
/* Makes the folder if it is not there. Waits up to `wait` seconds for another process to leave it. lease > 0: others may
 * share it, and leases last so many seconds. */
hola_status hl_store_open(struct hl_store **out, const char *dir, uint64_t model, double wait, double lease);
void hl_store_close(struct hl_store *s); /* what was asked for is done first */
/* Calls with the id and the `about` (borrowed) of every conversation of this model. A damaged one comes with NULL. */
void hl_store_list(struct hl_store *s, void (*each)(void *ctx, const char *id, json_t *about), void *ctx);

/* ---- a folder that is shared; all of it is done at once, on any thread ---- */

struct hl_stamp { /* of a file: another one is another version. All 0: none */
    uint64_t inode;
    int64_t size, seconds, nanoseconds;
};
bool hl_stamp_same(const struct hl_stamp *a, const struct hl_stamp *b);
/* The stamp of its file now, and where it is not `known`: what is said about it (yours; NULL: damaged). false: there is
 * no such file. */
bool hl_store_look(struct hl_store *s, const char *id, struct hl_stamp *known, bool *same, json_t **about);
void hl_store_ids(struct hl_store *s, void (*each)(void *ctx, const char *id), void *ctx);
/* A lease, which is renewed until it is given up or a job gives it up. */
enum hl_lease_answer hl_store_claim(struct hl_store *s, const char *id, char token[HL_TOKEN + 1]);
void hl_store_release(struct hl_store *s, const char *id, const char *token);
bool hl_store_lost(struct hl_store *s, const char *token); /* somebody else has taken it */
bool hl_store_claimed(struct hl_store *s, const char *id); /* by anyone */
/* Whoever has it. HL_LEASE_OTHERS: there is none. */
enum hl_lease_answer hl_store_delete(struct hl_store *s, const char *id);

/* ---- jobs ---- */

enum hl_store_verb { HL_STORE_SAVE, HL_STORE_LOAD, HL_STORE_REMOVE };
struct hl_store_job {
    struct hl_message message; /* its kind on the way back is reply_kind */
    char id[HL_ID_MOST + 1];
    int reply_kind;
    enum hl_store_verb verb;
    struct hl_stored record;  /* to be saved, or what was loaded */
    int64_t revision;         /* the caller's */
    char token[HL_TOKEN + 1]; /* of a shared folder: saved only while this is the lease, which is then given up */
    bool lost;                /* it was not */
    struct hl_stamp stamp;    /* of the file that was written or read */
    hola_status status;
    char error[256];
    void *ctx; /* the caller's */
};
/* The job goes to the store's thread and comes back through the queue `reply` as a message of kind reply_kind. */
void hl_store_ask(struct hl_store *s, struct hl_store_job *j, struct hl_queue *reply);
/* The same at once, on this thread. */
void hl_store_do(struct hl_store *s, struct hl_store_job *j);

#endif
