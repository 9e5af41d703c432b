/* engine_shared.c -- sessions in a folder that several servers share; see engine_internal.h and docs/serve.md.
 *
 * Checking a file's stamp and taking a lease run on the engine's thread: a few system calls each. Sessions are read and
 * written by the disk thread, as always. */
#define _GNU_SOURCE
#include "serve/engine_internal.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool hl_shared_peek(struct hl_serve_engine *e, const char *id, struct hl_peek *out) {
    struct hl_stamp stamp = {0};
    struct hl_conversation c = {0};
    json_t *about;
    bool same;
    if (!hl_store_look(e->store, id, &stamp, &same, &about)) return false;
    c.metadata = json_object();
    const bool is = about && c.metadata && hl_conversation_from(&c, about, false);
    *out = is ? (struct hl_peek){c.position, c.open} : (struct hl_peek){0}; /* the engine will report it as damaged */
    json_decref(c.metadata), json_decref(about);
    return true;
}

/* ---- syncing the table with the folder ---- */

void hl_shared_drop(struct hl_serve_engine *e, struct hl_conversation *c) {
    hl_serve_unidle(e, c);
    if (c->on_disk) e->n_on_disk--, c->on_disk = false;
    hl_conversation_remove(&e->conversations, c);
    hl_serve_idle(e, c); /* freed with its last user */
}

/* Drops its outdated state from memory. */
static void forget(struct hl_serve_engine *e, struct hl_conversation *c) {
    hl_serve_unidle(e, c);
    hl_conversation_forget(c);
    if (!c->on_disk) e->n_on_disk++;
    c->on_disk = true;
    c->revision = c->saved_revision = 0;
    c->stamp = (struct hl_stamp){0};
}

bool hl_shared_refresh(struct hl_serve_engine *e, struct hl_conversation *c) {
    struct hl_stamp stamp = c->stamp;
    json_t *about;
    bool same;
    if (!hl_store_look(e->store, c->id, &stamp, &same, &about)) return false;
    if (same) return true;
    forget(e, c);
    c->stamp = stamp;
    c->has_file = true;
    c->damaged = !about || !hl_conversation_from(c, about, false);
    c->saved_position = c->position;
    json_decref(about);
    return true;
}

struct hl_conversation *hl_shared_look(struct hl_serve_engine *e, const char *id) {
    struct hl_conversation *c = hl_conversation_find(&e->conversations, id);
    const bool is_new = !c;
    if (c && (c->token[0] || c->loading || c->saving)) return c; /* in use here */
    if (is_new && !hl_store_claimed(e->store, id)) {             /* no entry for a session that does not exist */
        struct hl_stamp stamp = {0};
        json_t *about;
        bool same;
        const bool is = hl_store_look(e->store, id, &stamp, &same, &about);
        json_decref(about);
        if (!is) return NULL;
    }
    if (is_new) {
        c = hl_conversation_add(&e->conversations, id);
        if (!c) return NULL;
        c->on_disk = true;
        e->n_on_disk++;
    }
    if (hl_shared_refresh(e, c)) return c;
    hl_shared_drop(e, c);
    return NULL;
}

static void look_at(void *ctx, const char *id) {
    struct hl_serve_engine *e = ctx;
    if (hl_id_valid(id) && !hl_conversation_find(&e->conversations, id)) hl_shared_look(e, id);
}
static int by_use(const void *a, const void *b) {
    const struct hl_conversation *const *x = a, *const *y = b;
    return ((*x)->used > (*y)->used) - ((*x)->used < (*y)->used);
}

void hl_shared_list(struct hl_serve_engine *e) {
    for (struct hl_conversation *c = e->conversations.newest, *next; c; c = next) {
        next = c->older;
        hl_shared_look(e, c->id);
    }
    hl_store_ids(e->store, look_at, e);
    const int64_t n = e->conversations.n;
    struct hl_conversation **all = malloc((size_t)(n + 1) * sizeof *all);
    int64_t k = 0;
    for (struct hl_conversation *c = e->conversations.newest; all && c; c = c->older) all[k++] = c;
    if (all) qsort(all, (size_t)k, sizeof *all, by_use);
    for (int64_t i = 0; i < k; i++) {
        const int64_t used = all[i]->used;
        hl_conversation_touch(&e->conversations, all[i]);
        all[i]->used = used;
    }
    free(all);
}

/* ---- leases ---- */

bool hl_shared_claim(struct hl_serve_engine *e, struct hl_conversation *c, enum hl_error *error) {
    *error = HL_SESSION_BUSY;
    if (c->token[0]) return false;
    const enum hl_lease_answer a = hl_store_claim(e->store, c->id, c->token);
    if (a == HL_LEASE_MINE) return true;
    c->token[0] = 0;
    if (a == HL_LEASE_FAILED) *error = HL_DISK_FULL;
    return false;
}

bool hl_shared_lost(struct hl_serve_engine *e, const struct hl_conversation *c) {
    return c->token[0] && hl_store_lost(e->store, c->token);
}

void hl_shared_release(struct hl_serve_engine *e, struct hl_conversation *c) {
    if (c->token[0]) hl_store_release(e->store, c->id, c->token);
    c->token[0] = 0;
}

/* Discards changes made here: the disk has the session, or it is gone. */
static void abandon(struct hl_serve_engine *e, struct hl_conversation *c) {
    hl_shared_release(e, c);
    if (c->deleted) return;
    if (c->has_file) forget(e, c);
    else hl_shared_drop(e, c);
}

/* ---- the end of a turn, or of an operation ---- */

bool hl_shared_commit(struct hl_serve_engine *e, struct hl_conversation *c, void *ending, bool is_op) {
    if (c->deleted || (c->has_file && c->revision == c->saved_revision && !c->damaged)) {
        hl_shared_release(e, c);
        return false;
    }
    c->ending = ending, c->ending_is_op = is_op;
    const bool broken = !c->session && c->tape.n > 0; /* its state is invalid */
    if (!broken && !hl_shared_lost(e, c)) hl_serve_save(e, c);
    if (c->saving) {
        c->writers++; /* keeps others out */
        return true;
    }
    struct hl_store_job none = {.lost = hl_shared_lost(e, c), .status = HOLA_EIO};
    c->writers++;
    c->held++;
    hl_shared_committed(e, c, &none);
    c->held--;
    if (c->deleted) hl_serve_idle(e, c);
    return true;
}

void hl_shared_fail(struct hl_serve_engine *e, const struct hl_conversation *c, struct hl_serve_request *r) {
    struct hl_peek at;
    if (!c->deleted && hl_shared_peek(e, c->id, &at))
        hl_serve_request_fail(r, HL_SESSION_BUSY, "session: '%s' was taken over by another server", c->id);
    else hl_serve_request_fail(r, HL_SESSION_NOT_FOUND, "session: '%s' was deleted", c->id);
}

void hl_shared_committed(struct hl_serve_engine *e, struct hl_conversation *c, struct hl_store_job *j) {
    void *ending = c->ending;
    const bool ok = j->status == HOLA_OK && !c->deleted, lost = j->lost || c->deleted;
    struct hl_peek at;
    c->ending = NULL;
    if (j->status == HOLA_OK && c->deleted) hl_store_delete(e->store, c->id); /* deleted here during the write */
    const bool is = !ok && lost && !c->deleted && hl_shared_peek(e, c->id, &at);
    if (ok) {
        c->stamp = j->stamp;
        hl_shared_release(e, c);
    } else abandon(e, c);
    c->writers--;
    if (c->ending_is_op) {
        struct hl_op *op = ending;
        if (ok && op->json) {
            json_object_set_new(op->json, "saved_position", json_integer((json_int_t)c->saved_position));
            json_object_set_new(op->json, "busy", json_boolean(c->writers > 0 || c->copies > 0));
        } else if (!ok) json_decref(op->json), op->json = NULL;
        if (ok) hl_queue_put(op->reply, &op->message);
        else
            hl_op_reply(op,
                        !lost ? HL_DISK_FULL
                        : is  ? HL_SESSION_BUSY
                              : HL_SESSION_NOT_FOUND,
                        "the session '%s' could not be written", c->id);
        if (!c->deleted) hl_serve_idle(e, c);
        return;
    }
    if (lost) hl_shared_fail(e, c, ending);
    else if (!ok)
        hl_serve_request_fail(ending, HL_DISK_FULL, "session: '%s' could not be written, it is as before", c->id);
    hl_serve_request_end(e, ending);
}

bool hl_shared_settle(struct hl_op *op) {
    struct hl_conversation *c = op->claims;
    struct hl_serve_engine *e = op->engine;
    op->claims = NULL;
    if (op->error == HL_NO_ERROR) return hl_shared_commit(e, c, op, true);
    if (c->revision != c->saved_revision || c->damaged) abandon(e, c);
    else hl_shared_release(e, c);
    return false;
}
