/* session.h -- inside a session, and restore points: copies of one to go back to. */
#ifndef HL_SESSION_H
#define HL_SESSION_H
#include "core/text.h"
#include "model/model.h"
#include "model/sample.h"

/* All of a session but its state and its logits. */
struct hl_position {
    int64_t pos;
    uint64_t seed;
    bool has_logits;
    int32_t recent[HOLA_RECENT];       /* the id at position p is in [p % HOLA_RECENT] */
    uint64_t begins[HOLA_RECENT / 64]; /* its bit: a call began there, so that tokens can be fed again alike */
};

/* A session at some point, or a copy of it to go back to. */
struct hl_restore_point {
    struct hl_position at;
    float *logits; /* [vocab]; NULL in a session that never was asked for any */
    struct hl_state state;
    bool ranked; /* parts of the state that change as blocks close are in it too */
};

struct hola_session {
    hola_model *model;
    struct hl_restore_point now;
    struct hl_restore_point *mark;  /* or NULL */
    struct hl_restore_point *draft; /* or NULL: where the draft that is being checked began */
    int64_t generation;             /* raised whenever it goes anywhere but forward */
    struct hl_candidate *work;      /* the sampler's, once there is one */
    bool not_finite;                /* the logits that came last are not all finite */
    struct {
        hola_on_progress f; /* or NULL */
        void *ctx;
        int64_t before, total; /* of a feed that this one is a part of; total 0: of none */
    } progress;
};

hola_status hl_restore_point_new(struct hl_restore_point **out, hola_model *m);
void hl_restore_point_free(hola_model *m, struct hl_restore_point *p);
/* The position, the logits and the parts of the state that change in one of these ways (enum hl_state_change). */
enum { HL_ALL_CHANGES = HL_REPLACED | HL_RANKED | HL_GROWS };
hola_status hl_restore_point_copy(const hola_model *m, struct hl_restore_point *to, const struct hl_restore_point *from,
                                  unsigned changes);

/* Room for logits, where there is none yet. */
hola_status hl_restore_point_logits(const hola_model *m, struct hl_restore_point *p);

/* hola_session_feed; want: the session is to have the logits at the end, whether they are copied out (logits) or not. */
hola_status hl_session_feed(hola_session *y, const int32_t *ids, int64_t n, float *logits, bool want);
/* The same for tokens that were fed before, on the way back: nobody is told and nobody can cancel it. */
hola_status hl_session_feed_again(hola_session *y, const int32_t *ids, int64_t n, bool want);
const hola_session *hl_history_session(const hola_history *h);
/* Tells how far a feed has come; HOLA_ECANCELLED: it is to end there. The model's lock is not held. */
hola_status hl_session_report(hola_session *y, int64_t done, int64_t total);

/* Feeds each of n sessions of one model its tokens, in passes that they share: each gets the bits that it would
 * get alone. logits [n][vocab_size]: after each one's last. */
hola_status hl_sessions_feed(hola_session *const *y, const struct hl_ids *ids, int64_t n, float *logits);

/* rollback.c: marks the place before a draft, beside the caller's mark; and goes back there, as if nothing had been fed
 * since. No history may have seen what is taken back. */
hola_status hl_session_draft_mark(hola_session *y);
hola_status hl_session_draft_drop(hola_session *y);
void hl_session_draft_end(hola_session *y); /* frees the mark */
/* history.c: how many tokens may go to the session directly before one must go through the history. */
int64_t hl_history_room(const hola_history *h);
/* session_step.c: as hola_session_feed_sample, but logits that are not finite are no error: next is -1 there. */
hola_status hl_session_feed_sample(hola_session *y, const int32_t *ids, int64_t n, const hola_sampling *p,
                                   int32_t *next);

/* rollback.c: before len tokens are fed: the state has room for them, and the mark has what they overwrite. */
hola_status hl_session_prepare(hola_session *s, int64_t len);

/* session.c, the model's lock held: n tokens went in; begin: they, or the first of them, began a call. */
void hl_session_advanced(hola_session *y, const int32_t *ids, int64_t n, bool begin);
/* The logits of rows [first, first + n) of a pass's normed stream: into m->infer.logits, as reals, of which there is
 * room for logits_room rows; to the host from there; and both, as many rows at a time as there is room for. */
int64_t hl_session_logits_room(const hola_model *m);
void hl_session_head(hola_model *m, int64_t first, int64_t n);
void hl_session_take_logits(hola_model *m, int64_t n, float *out);
void hl_session_read_logits(hola_model *m, int64_t first, int64_t n, float *logits);

/* session_step.c: keeps the logits of n sessions; those that are not numbers are refused. */
hola_status hl_session_keep_logits(hola_session *const *y, int64_t n, const float *logits);
/* The number in [0, 1) that decides after pos tokens. */
double hl_session_uniform(const hola_session *y, int64_t pos);

static inline int32_t hl_position_id(const struct hl_position *w, int64_t pos) { return w->recent[pos % HOLA_RECENT]; }
static inline bool hl_position_begins(const struct hl_position *w, int64_t pos) {
    return w->begins[pos % HOLA_RECENT / 64] >> (pos % 64) & 1;
}

/* snapshot.c: a session as bytes (*file is malloced; path is for messages), and bytes as this session: nothing
 * is taken over unless all of it is right. */
hola_status hl_snapshot_make(const hola_session *s, const char *path, hola_dtype dtype, char **file, int64_t *size);
hola_status hl_snapshot_parse(hola_session *s, const char *data, int64_t size, const char *path);
int64_t hl_snapshot_bytes(const hola_model *m, hola_dtype dtype, int64_t pos);
uint64_t hl_snapshot_sum(const char *data, int64_t size); /* what a file's checksum should be */

#endif
