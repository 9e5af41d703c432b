/* session.h -- inside a session, and restore points: copies to roll back to. */
#ifndef HL_SESSION_H
#define HL_SESSION_H
#include "core/text.h"
#include "model/model.h"
#include "model/sample.h"

/* A session without its state and logits. */
struct hl_position {
    int64_t pos;
    uint64_t seed;
    bool has_logits;
    int32_t recent[HOLA_RECENT];       /* the id at position p is in [p % HOLA_RECENT] */
    uint64_t begins[HOLA_RECENT / 64]; /* its bit: a call began there, so tokens can be replayed with the same calls */
};

/* A session at some point, or a saved copy of it. */
struct hl_restore_point {
    struct hl_position at;
    float *logits; /* [vocab]; NULL if the session never produced logits */
    struct hl_state state;
    bool ranked; /* includes the parts of the state that change when blocks close */
};

struct hola_session {
    hola_model *model;
    struct hl_restore_point now;
    struct hl_restore_point *mark;  /* or NULL */
    struct hl_restore_point *draft; /* or NULL: where the draft being checked began */
    int64_t generation;             /* incremented whenever the session moves other than forward */
    struct hl_candidate *work;      /* of the sampler; NULL until first used */
    bool not_finite;                /* the latest logits are not all finite */
    struct {
        hola_on_progress f; /* or NULL */
        void *ctx;
        int64_t before, total; /* of a feed that this one is part of; total 0: none */
    } progress;
};

hola_status hl_restore_point_new(struct hl_restore_point **out, hola_model *m);
void hl_restore_point_free(hola_model *m, struct hl_restore_point *p);
/* The position, the logits and the parts of the state with any of these kinds of change (enum hl_state_change). */
enum { HL_ALL_CHANGES = HL_REPLACED | HL_RANKED | HL_GROWS };
hola_status hl_restore_point_copy(const hola_model *m, struct hl_restore_point *to, const struct hl_restore_point *from,
                                  unsigned changes);

/* Allocates logits if there are none yet. */
hola_status hl_restore_point_logits(const hola_model *m, struct hl_restore_point *p);

/* hola_session_feed; want: keep the logits at the end even if they are not copied out (logits). */
hola_status hl_session_feed(hola_session *y, const int32_t *ids, int64_t n, float *logits, bool want);
/* The same when replaying tokens after a rollback: no progress reports, not cancellable. */
hola_status hl_session_feed_again(hola_session *y, const int32_t *ids, int64_t n, bool want);
const hola_session *hl_history_session(const hola_history *h);
/* Reports the progress of a feed; HOLA_ECANCELLED: stop there. The model's lock is not held. */
hola_status hl_session_report(hola_session *y, int64_t done, int64_t total);

/* Feeds tokens to each of n sessions of one model in shared passes: each gets the same bits as on its own. logits
 * [n][vocab_size]: after each session's last token. */
hola_status hl_sessions_feed(hola_session *const *y, const struct hl_ids *ids, int64_t n, float *logits);

/* rollback.c: marks the place before a draft, independent of the caller's mark; and returns to it as if nothing had
 * been fed since. No history may have recorded the discarded tokens. */
hola_status hl_session_draft_mark(hola_session *y);
hola_status hl_session_draft_drop(hola_session *y);
void hl_session_draft_end(hola_session *y); /* frees the mark */
/* history.c: tokens that may be fed directly to the session before one must go through the history. */
int64_t hl_history_room(const hola_history *h);
/* Host work for which a step has time while a device computes: run(ctx) is called once, or not at all if the step fails
 * early. The model's lock is held: it must not use the model. */
struct hl_meanwhile {
    void (*run)(void *ctx);
    void *ctx;
};
/* session_step.c: like hola_session_step_sample, each session with its own sampling, whose fields are not checked.
 * meanwhile: NULL: nothing. */
hola_status hl_step_sample_each(hola_session *const *y, int64_t n, const int32_t *ids, const hola_sampling *p,
                                int32_t *next, const struct hl_meanwhile *meanwhile);
/* Like hola_session_feed_sample, but non-finite logits are not an error: next is -1. n: 1 to hl_session_draft_rows. */
hola_status hl_session_feed_sample(hola_session *y, const int32_t *ids, int64_t n, const hola_sampling *p,
                                   int32_t *next);

int64_t hl_session_draft_rows(const hola_model *m);
/* Whether a device replays a pass over a draft as a captured graph. */
bool hl_session_replays(const hola_model *m);
/* Whether the few largest logits are enough for it, in a draft too: a device then copies only these to the host. */
bool hl_session_samples_few(const hola_model *m, const hola_sampling *p);

/* rollback.c: before feeding len tokens: makes room in the state and saves what they overwrite to the mark. */
hola_status hl_session_prepare(hola_session *s, int64_t len);

/* session.c, the model's lock held: n tokens were fed; begin: the first of them began a call. */
void hl_session_advanced(hola_session *y, const int32_t *ids, int64_t n, bool begin);
/* Logits of n rows x of the normalized stream: computed as reals into m->infer.logits, which has room for logits_room
 * rows; copied from there to the host; or, for rows [first, first + n) of a pass, both, in slices that fit. */
int64_t hl_session_logits_room(const hola_model *m);
void hl_session_head(hola_model *m, const void *x, int64_t n);
void hl_session_take_logits(hola_model *m, int64_t n, float *out);
void hl_session_read_logits(hola_model *m, int64_t first, int64_t n, float *logits);

/* session_step.c: stores the logits of n sessions; non-finite ones are refused. */
hola_status hl_session_keep_logits(hola_session *const *y, int64_t n, const float *logits);
/* The uniform number in [0, 1) used for sampling after pos tokens. */
double hl_session_uniform(const hola_session *y, int64_t pos);

static inline int32_t hl_position_id(const struct hl_position *w, int64_t pos) { return w->recent[pos % HOLA_RECENT]; }
static inline bool hl_position_begins(const struct hl_position *w, int64_t pos) {
    return w->begins[pos % HOLA_RECENT / 64] >> (pos % 64) & 1;
}

/* An empty session whose state is uninitialized. */
hola_status hl_session_new(hola_session **out, hola_model *m);

/* snapshot.c: serializes a session (*file is malloced; path is used in messages), and restores one: on any error the
 * session is unchanged. */
hola_status hl_snapshot_make(const hola_session *s, const char *path, hola_dtype dtype, char **file, int64_t *size);
hola_status hl_snapshot_parse(hola_session *s, const char *data, int64_t size, const char *path);
/* The first in two steps: a copy on the host of what the file holds, and the file. The second takes no lock (model:
 * hl_model_hash), so that it can run beside a pass. */
hola_status hl_snapshot_copy(struct hl_restore_point **out, const hola_session *y, const char *path);
hola_status hl_snapshot_pack(const hola_model *m, uint64_t model, const struct hl_restore_point *p, const char *path,
                             hola_dtype dtype, char **file, int64_t *size);
/* The second in two steps. The first reads and checks the next `size` bytes; its state is on the host. It takes no lock
 * (model: hl_model_hash), so that it can run beside a pass. The second makes a session of it. */
struct hl_bytes;
hola_status hl_snapshot_read(struct hl_restore_point **out, hola_model *m, uint64_t model, struct hl_bytes *from,
                             int64_t size);
hola_status hl_snapshot_session(hola_session **out, hola_model *m, struct hl_restore_point *p); /* frees p */
void hl_snapshot_free(hola_model *m, struct hl_restore_point *p);
int64_t hl_snapshot_bytes(const hola_model *m, hola_dtype dtype, int64_t pos);
uint64_t hl_snapshot_sum(const char *data, int64_t size); /* the expected checksum of a file */

#endif
