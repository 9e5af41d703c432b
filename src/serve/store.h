/* store.h -- conversations as files in one folder, written atomically (docs/format.md describes the bytes).
 *
 * A file "ID.MODEL.session" holds a whole conversation: metadata as JSON, its ids, the calls that fed them, and the
 * session as hola_session_save writes it. Files are private to the user, links are never followed. A folder is used by
 * one process at a time, or shared by several: then a process that changes a conversation holds a lease on it
 * (lease.h), "ID.MODEL.lease". Reads and writes run on a separate thread, because disks can be slow. */
#ifndef HL_STORE_H
#define HL_STORE_H
#include "core/file.h"
#include "serve/lease.h"
#include "serve/queue.h"
#include "serve/tape.h"
#include <jansson.h>

enum { HL_ID_MOST = 64 };

struct hl_stored { /* a conversation being written to or read from disk */
    json_t *about;
    struct hl_tape tape;
    int64_t session_bytes; /* to write: of the session as hola_session_save writes it, with this type */
    hola_dtype dtype;
    hola_model *model;              /* of the session; NULL: it is skipped */
    struct hl_restore_point *state; /* read, or to write; NULL: none */
};
void hl_stored_free(struct hl_stored *r);

/* Packs everything that comes before the session. */
hola_status hl_stored_pack(const struct hl_stored *r, uint64_t model, char **head, int64_t *size);
/* Reads a whole file. Every length is checked before use, every byte before it returns. */
hola_status hl_stored_read(struct hl_stored *r, struct hl_bytes *from, uint64_t model);
/* Only the metadata; the first HL_RECORD_HEAD bytes tell how long it is. */
enum { HL_RECORD_HEAD = 64 };
int64_t hl_stored_about_end(const char *head, int64_t size, uint64_t model); /* -1: no such file */

struct hl_store;
/* Creates the folder if needed. Waits up to `wait` seconds for another process to release it. lease > 0: others may
 * share it, and leases last this many seconds. */
hola_status hl_store_open(struct hl_store **out, const char *dir, uint64_t model, double wait, double lease);
void hl_store_close(struct hl_store *s); /* finishes pending jobs first */
/* Calls back with the id and metadata (`about`, borrowed) of every conversation of this model; NULL for a damaged
 * one. */
void hl_store_list(struct hl_store *s, void (*each)(void *ctx, const char *id, json_t *about), void *ctx);

/* ---- a shared folder; these calls are synchronous, on any thread ---- */

struct hl_stamp { /* identifies a file version. All 0: none */
    uint64_t inode;
    int64_t size, seconds, nanoseconds;
};
bool hl_stamp_same(const struct hl_stamp *a, const struct hl_stamp *b);
/* The current stamp of its file and, if it is not `known`, its metadata (caller frees; NULL: damaged). false: no such
 * file. */
bool hl_store_look(struct hl_store *s, const char *id, struct hl_stamp *known, bool *same, json_t **about);
void hl_store_ids(struct hl_store *s, void (*each)(void *ctx, const char *id), void *ctx);
/* Takes a lease, renewed until it is released, by a job or explicitly. */
enum hl_lease_answer hl_store_claim(struct hl_store *s, const char *id, char token[HL_TOKEN + 1]);
void hl_store_release(struct hl_store *s, const char *id, const char *token);
bool hl_store_lost(struct hl_store *s, const char *token); /* another process has taken it */
bool hl_store_claimed(struct hl_store *s, const char *id); /* by any process */
/* Deletes it no matter who holds it. HL_LEASE_OTHERS: no such file. */
enum hl_lease_answer hl_store_delete(struct hl_store *s, const char *id);

/* ---- jobs ---- */

enum hl_store_verb { HL_STORE_SAVE, HL_STORE_LOAD, HL_STORE_REMOVE };
struct hl_store_job {
    struct hl_message message; /* its kind on return is reply_kind */
    char id[HL_ID_MOST + 1];
    int reply_kind;
    enum hl_store_verb verb;
    struct hl_stored record;  /* to save, or loaded */
    int64_t revision;         /* the caller's */
    char token[HL_TOKEN + 1]; /* shared folder: saved only while this lease is held; it is then released */
    bool lost;                /* the lease was lost */
    struct hl_stamp stamp;    /* of the file written or read */
    hola_status status;
    char error[256];
    void *ctx; /* the caller's */
};
/* Sends the job to the store's thread; it returns through the queue `reply` as a message of kind reply_kind. */
void hl_store_ask(struct hl_store *s, struct hl_store_job *j, struct hl_queue *reply);
/* The same, synchronously on this thread. */
void hl_store_do(struct hl_store *s, struct hl_store_job *j);

#endif
