/* engine_ops.c -- operations on conversations requested by clients. Each is executed between two steps; those that need
 * data from disk wait for it. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "model/cache_view.h"
#include "serve/engine_internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void reply_json(struct hl_op *op, json_t *json) {
    op->json = json;
    hl_op_reply(op, json ? HL_NO_ERROR : HL_INTERNAL, "%s", json ? "" : "no memory for the answer");
}
static json_t *describe(const struct hl_serve_engine *e, const struct hl_conversation *c) {
    return hl_conversation_json(c, c->session ? hola_session_bytes(c->session) : e->session_bytes);
}
static void defer(struct hl_serve_engine *e, struct hl_op *op) {
    op->tried = true;
    op->message.next = e->deferred ? &e->deferred->message : NULL;
    e->deferred = op;
}

/* ---- operations that do not need the state ---- */

static void reply_error(struct hl_op *op, enum hl_error error, const char *id) {
    hl_op_reply(op, error,
                error == HL_SESSION_EXISTS      ? "id: there is a session '%s' already"
                : error == HL_TOO_MANY_SESSIONS ? "no room for the session '%s'"
                                                : "the session '%s' cannot be made",
                id);
}

static void create(struct hl_serve_engine *e, struct hl_op *op) {
    enum hl_error error;
    struct hl_conversation *c = hl_conversation_copy(e, NULL, op->id, 0, &error);
    if (!c) {
        reply_error(op, error, op->id);
        return;
    }
    if (op->metadata) json_decref(c->metadata), c->metadata = json_incref(op->metadata);
    if (e->o.lease > 0) op->claims = c;
    reply_json(op, describe(e, c));
}

static void list(struct hl_serve_engine *e, struct hl_op *op) {
    struct hl_conversation *c = e->conversations.newest;
    json_t *data = json_array();
    if (op->id[0]) {
        c = hl_conversation_find(&e->conversations, op->id);
        if (!c) {
            json_decref(data);
            hl_op_reply(op, HL_INVALID_VALUE, "after: there is no session '%s'", op->id);
            return;
        }
        c = c->older;
    }
    for (; c && (int64_t)json_array_size(data) < op->a; c = c->older) json_array_append_new(data, describe(e, c));
    reply_json(op, json_pack("{s:s, s:o, s:b}", "object", "list", "data", data, "has_more", c != NULL));
}

static void delete (struct hl_serve_engine *e, struct hl_op *op, struct hl_conversation *c) {
    const enum hl_lease_answer gone = e->o.lease > 0 ? hl_store_delete(e->store, c->id) : HL_LEASE_MINE;
    if (gone == HL_LEASE_LOCKED || gone == HL_LEASE_FAILED) {
        hl_op_reply(op, gone == HL_LEASE_LOCKED ? HL_SESSION_BUSY : HL_DISK_FULL, "the session '%s' cannot be removed",
                    c->id);
        return;
    }
    if (gone == HL_LEASE_OTHERS && c->has_file) { /* another server deleted it first */
        hl_op_reply(op, HL_SESSION_NOT_FOUND, "there is no session '%s'", c->id);
        hl_shared_drop(e, c);
        return;
    }
    json_t *json = json_pack("{s:s, s:s, s:b}", "id", c->id, "object", "session.deleted", "deleted", 1);
    if (e->store && e->o.lease <= 0 && (c->has_file || c->on_disk || c->saving)) hl_serve_remove_file(e, c->id);
    hl_serve_unidle(e, c);
    if (c->on_disk) e->n_on_disk--;
    hl_conversation_remove(&e->conversations, c);
    hl_serve_idle(e, c); /* its requests end at the next sweep; it is freed with the last of them */
    reply_json(op, json);
}

static void get(const struct hl_serve_engine *e, struct hl_op *op, const struct hl_conversation *c) {
    json_t *json = describe(e, c);
    if (json && e->o.lease > 0 && hl_store_claimed(e->store, c->id)) json_object_set_new(json, "busy", json_true());
    reply_json(op, json);
}

static void update(struct hl_serve_engine *e, struct hl_op *op, struct hl_conversation *c) {
    json_decref(c->metadata);
    c->metadata = json_incref(op->metadata);
    hl_conversation_changed(c);
    reply_json(op, describe(e, c));
}

static void save(struct hl_serve_engine *e, struct hl_op *op, struct hl_conversation *c) {
    if (!e->store) hl_op_reply(op, HL_INVALID_VALUE, "there is no session folder (--session-dir)");
    else if (c->on_disk || (c->has_file && c->revision == c->saved_revision)) reply_json(op, describe(e, c));
    else if (op->tried && !c->saving && c->save_failed)
        hl_op_reply(op, HL_DISK_FULL, "the session '%s' could not be written", c->id);
    else {
        hl_serve_save(e, c);
        if (c->saving) defer(e, op);
        else hl_op_reply(op, HL_DISK_FULL, "the session '%s' could not be written", c->id);
    }
}

/* ---- operations that need it ---- */

static void fork_now(struct hl_serve_engine *e, struct hl_op *op, struct hl_conversation *c) {
    enum hl_error error;
    const int64_t at = op->a < 0 ? c->position : op->a;
    if (at > c->position || (at < c->position && c->known_from > 0)) {
        hl_op_reply(op, HL_INVALID_VALUE, "position: %" PRId64 ", the session has %" PRId64 " tokens%s", at,
                    c->position, c->known_from > 0 ? " and came as a file" : "");
        return;
    }
    struct hl_conversation *to = hl_conversation_copy(e, c, op->new_id, at, &error);
    hola_status s = HOLA_OK;
    if (!to) {
        reply_error(op, error, op->new_id);
        return;
    }
    if (e->o.lease > 0) op->claims = to;
    to->metadata = (json_decref(to->metadata), json_deep_copy(c->metadata));
    if (!to->metadata) to->metadata = json_object();
    if (at < c->position) s = hl_serve_rebuild(e, to, op);
    else if (c->session) s = hola_session_clone(&to->session, c->session);
    if (s != HOLA_OK) {
        op->claims = NULL;
        hl_serve_unmake(e, to);
        hl_op_reply(op, HL_INTERNAL, "%s", hola_last_error());
    } else if (at == c->position) {
        hl_serve_idle(e, to);
        reply_json(op, describe(e, to));
    }
}

static void rollback(struct hl_serve_engine *e, struct hl_op *op, struct hl_conversation *c) {
    int64_t to = op->c;
    if (op->a >= 0) to = op->a <= c->position ? c->position - op->a : -1;
    if (op->b >= 0) {
        /* a turn that is no longer listed cannot be rolled back */
        const int64_t left = c->turns - op->b, first = c->turns < HL_TURNS_MOST ? 0 : -1;
        to = op->b == 0 ? c->position : left > 0 ? c->turn[left - 1] : left == 0 ? first : -1;
    }
    if (to < 0 || to > c->position || (to < c->position && c->known_from > 0)) {
        hl_op_reply(op, HL_INVALID_VALUE, "%s: out of range, the session has %" PRId64 " tokens",
                    op->a >= 0   ? "tokens"
                    : op->b >= 0 ? "turns"
                                 : "position",
                    c->position);
        return;
    }
    op->c = 0;
    if (to == c->position) {
        json_t *json = describe(e, c);
        if (json) json_object_set_new(json, "reread", json_integer(0));
        reply_json(op, json);
        return;
    }
    hl_serve_unidle(e, c);
    hola_session_free(c->session);
    c->session = NULL;
    hl_conversation_cut(&e->conversations, c, to);
    if (hl_serve_rebuild(e, c, op) != HOLA_OK) {
        c->damaged = true;
        hl_op_reply(op, HL_INTERNAL, "%s", hola_last_error());
    }
}

static void file(struct hl_serve_engine *e, struct hl_op *op, struct hl_conversation *c) {
    hola_session *s = c->session, *empty = NULL;
    hola_status st = s ? HOLA_OK : hola_session_new(&empty, e->o.model);
    if (st == HOLA_OK) st = hl_snapshot_make(s ? s : empty, c->id, e->o.session_dtype, &op->bytes, &op->n_bytes);
    hola_session_free(empty);
    hl_op_reply(op, st == HOLA_OK ? HL_NO_ERROR : HL_INTERNAL, "%s", st == HOLA_OK ? "" : hola_last_error());
}

/* A session file has the last 1024 ids. Earlier ids are unknown: stored as 0 and never shown. */
static void put(struct hl_serve_engine *e, struct hl_op *op) {
    enum hl_error error = HL_INVALID_VALUE;
    int32_t recent[HOLA_RECENT];
    const int32_t none = 0;
    hola_session *s;
    hola_status st = hola_session_new(&s, e->o.model);
    if (st == HOLA_OK) st = hl_snapshot_parse(s, op->bytes, op->n_bytes, "the file");
    if (st == HOLA_OK && hola_session_position(s) > INT32_MAX)
        st = hl_fail(HOLA_EINVAL, "the file: %" PRId64 " tokens are too many", hola_session_position(s));
    if (st != HOLA_OK) {
        hola_session_free(s);
        hl_op_reply(op, st == HOLA_ENOMEM ? HL_INTERNAL : HL_INVALID_VALUE, "%s", hola_last_error());
        return;
    }
    struct hl_conversation *c = hl_conversation_copy(e, NULL, op->id, 0, &error);
    if (!c) {
        hola_session_free(s);
        reply_error(op, error, op->id);
        return;
    }
    const int64_t n = hola_session_position(s), have = hola_session_recent(s, recent, HOLA_RECENT);
    if (hl_tape_room(&c->tape, n) != HOLA_OK) {
        hola_session_free(s);
        hl_serve_unmake(e, c);
        hl_op_reply(op, HL_INTERNAL, "%s", hola_last_error());
        return;
    }
    c->known_from = n - have;
    for (int64_t i = 0; i < n; i++) hl_tape_add(&c->tape, i < n - have ? &none : recent + i - (n - have), 1, i == 0);
    if (have > 0) hl_message_spans_add(&c->spans, (struct hl_message_span){HL_ROLE_TEXT, true, n - have, n});
    c->session = s;
    hl_conversation_turn(&e->conversations, c);
    hl_serve_idle(e, c);
    if (e->o.lease > 0) op->claims = c;
    reply_json(op, describe(e, c));
}

static void copy_ids(struct hl_op *op, const struct hl_conversation *c, int64_t from, int64_t to) {
    op->n_ids = to - from;
    op->ids = malloc((size_t)(op->n_ids + 1) * sizeof *op->ids);
    if (op->ids && op->n_ids > 0) memcpy(op->ids, c->tape.ids + from, (size_t)op->n_ids * sizeof *op->ids);
}

static void messages(struct hl_op *op, const struct hl_conversation *c) {
    hola_status s = HOLA_OK;
    for (int64_t i = 0; s == HOLA_OK && i < c->spans.n; i++) s = hl_message_spans_add(&op->spans, c->spans.span[i]);
    copy_ids(op, c, 0, c->tape.n);
    hl_op_reply(op, s == HOLA_OK && op->ids ? HL_NO_ERROR : HL_INTERNAL, "no memory for the answer");
}

static void tokens(struct hl_op *op, const struct hl_conversation *c) {
    const int64_t n = c->tape.n, to = op->b < 0 ? n : op->b;
    if (op->a >= 0 && op->a < c->known_from) op->a = c->known_from;
    if (op->a < 0 || op->a > n || to > n || op->a > to) {
        hl_op_reply(op, HL_INVALID_VALUE, "%s: out of range, the session has %" PRId64 " tokens",
                    op->a < 0 || op->a > n ? "from" : "to", n);
        return;
    }
    copy_ids(op, c, op->a, to);
    hl_op_reply(op, op->ids ? HL_NO_ERROR : HL_INTERNAL, "no memory for the answer");
}

/* ---- the exact memory ---- */

static json_t *kept_by_head(const hola_session *s, int64_t layer, int64_t head, int64_t *pos, float *score,
                            int64_t *count) {
    json_t *positions = json_array(), *scores = json_array();
    *count = 0;
    if (s && hl_session_kept(s, layer, head, pos, score, count) != HOLA_OK) *count = 0;
    for (int64_t i = 0; i < *count; i++) {
        json_array_append_new(positions, json_integer(pos[i]));
        json_array_append_new(scores, json_real((double)score[i]));
    }
    return json_pack("{s:I, s:I, s:o, s:o}", "layer", (json_int_t)layer, "head", (json_int_t)head, "positions",
                     positions, "scores", scores);
}

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void memory(struct hl_serve_engine *e, struct hl_op *op, struct hl_conversation *c) {
    const hola_config *m = hola_model_config(e->o.model);
    const int64_t layers = m->num_hidden_layers, heads = m->num_v_heads, n = c->tape.n;
    const int64_t closed = m->cache_chunk > 0 ? n - n % m->cache_chunk : n;
    if (m->model_type != HOLA_TYPE_HOLA || m->cache_evict == HOLA_EVICT_NONE) {
        hl_op_reply(op, HL_NO_MEMORY, "this model has no exact memory");
        return;
    }
    if (op->a >= layers || op->b >= heads) {
        hl_op_reply(op, HL_INVALID_VALUE, "%s: out of range", op->a >= layers ? "layer" : "head");
        return;
    }
    if (op->c >= closed) {
        op->nothing_new = true;
        hl_op_reply(op, HL_NO_ERROR, "%s", "");
        return;
    }
    const int64_t most = layers * heads * (m->cache_window + 1);
    int64_t *pos = malloc((size_t)most * sizeof *pos), count, all = 0;
    float *score = malloc((size_t)(m->cache_window + 1) * sizeof *score);
    json_t *kept = json_array();
    for (int64_t l = 0; pos && score && l < layers; l++)
        for (int64_t h = 0; h < heads; h++) {
            if ((op->a >= 0 && l != op->a) || (op->b >= 0 && h != op->b)) continue;
            json_array_append_new(kept, kept_by_head(c->session, l, h, pos + all, score, &count));
            all += count;
        }
    if (pos) qsort(pos, (size_t)all, sizeof *pos, ascending);
    op->ids = malloc((size_t)(all + 1) * sizeof *op->ids);
    for (int64_t i = 0; pos && op->ids && i < all; i++)
        if (pos[i] >= c->known_from && (op->n_ids == 0 || pos[i] != pos[op->n_ids - 1])) {
            pos[op->n_ids] = pos[i];
            op->ids[op->n_ids++] = c->tape.ids[pos[i]];
        }
    op->positions = pos;
    free(score);
    json_t *json =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:o}", "object", "session.memory", "id", c->id,
                  "position", (json_int_t)n, "closed", (json_int_t)closed, "window", (json_int_t)m->cache_window,
                  "chunk", (json_int_t)m->cache_chunk, "evict", hola_evict_name(m->cache_evict), "layers",
                  (json_int_t)layers, "heads", (json_int_t)heads, "kept", kept);
    if (pos && op->ids && score) reply_json(op, json);
    else {
        json_decref(json);
        reply_json(op, NULL);
    }
}

/* ---- dispatch ---- */

/* Shared folder: an operation that changes a session takes its lease first; one that copies it waits until no one holds
 * it. */
static bool may_run(struct hl_serve_engine *e, struct hl_op *op, struct hl_conversation *c) {
    const bool changes = op->op == HL_OP_ROLLBACK || op->op == HL_OP_UPDATE;
    enum hl_error error = HL_SESSION_BUSY;
    if (op->claims) /* It was waiting for the disk */
        return true;
    if (c->token[0] && op->op == HL_OP_UPDATE && c->writers > 0 && !c->saving) /* Saved at the end of the turn */
        return true;
    if (changes && !c->copies && hl_shared_claim(e, c, &error)) {
        op->claims = c;
        if (hl_shared_refresh(e, c)) return true;
        hl_op_reply(op, HL_SESSION_NOT_FOUND, "there is no session '%s'", op->id);
        return false;
    }
    if (!changes && !(op->op == HL_OP_FORK && hl_store_claimed(e->store, c->id))) return true;
    hl_op_reply(op, error, error == HL_DISK_FULL ? "no lease of the session '%s'" : "the session '%s' is busy", op->id);
    return false;
}

void hl_serve_run_op(struct hl_serve_engine *e, struct hl_op *op) {
    const enum hl_op_kind k = op->op;
    const bool shared = e->o.lease > 0;
    op->engine = e;
    if (k == HL_OP_CREATE || k == HL_OP_PUT || k == HL_OP_LIST) {
        if (shared && k == HL_OP_LIST) hl_shared_list(e);
        if (k == HL_OP_CREATE) create(e, op);
        else if (k == HL_OP_PUT) put(e, op);
        else list(e, op);
        return;
    }
    struct hl_conversation *c = shared ? hl_shared_look(e, op->id) : hl_conversation_find(&e->conversations, op->id);
    if (!c) {
        op->claims = NULL;
        hl_op_reply(op, HL_SESSION_NOT_FOUND, "there is no session '%s'", op->id);
        return;
    }
    if (k == HL_OP_DELETE) {
        delete (e, op, c);
        return;
    }
    if (c->damaged) {
        hl_op_reply(op, HL_SESSION_DAMAGED, "the file of the session '%s' is damaged", op->id);
        return;
    }
    if ((k == HL_OP_FORK || k == HL_OP_ROLLBACK || k == HL_OP_FILE || k == HL_OP_SAVE) &&
        (c->writers > 0 || (k == HL_OP_ROLLBACK && c->copies > 0))) {
        hl_op_reply(op, HL_SESSION_BUSY, "the session '%s' is busy", op->id);
        return;
    }
    if (shared && !may_run(e, op, c)) return;
    const bool whole = k == HL_OP_FORK || k == HL_OP_ROLLBACK || k == HL_OP_FILE || k == HL_OP_MESSAGES ||
                       k == HL_OP_TOKENS || k == HL_OP_MEMORY || k == HL_OP_UPDATE;
    if (whole && c->on_disk) {
        /* (in a shared folder there may be a newer file by now, which is then read) */
        if (op->tried && c->load_failed) {
            hl_op_reply(op, HL_SESSION_DAMAGED, "the file of the session '%s' cannot be read", op->id);
            return;
        }
        hl_serve_load(e, c);
        defer(e, op);
        return;
    }
    if (whole && k != HL_OP_UPDATE) hl_conversation_touch(&e->conversations, c);
    switch (k) {
    case HL_OP_GET: get(e, op, c); break;
    case HL_OP_UPDATE: update(e, op, c); break;
    case HL_OP_SAVE: save(e, op, c); break;
    case HL_OP_FORK: fork_now(e, op, c); break;
    case HL_OP_ROLLBACK: rollback(e, op, c); break;
    case HL_OP_FILE: file(e, op, c); break;
    case HL_OP_MESSAGES: messages(op, c); break;
    case HL_OP_TOKENS: tokens(op, c); break;
    case HL_OP_MEMORY: memory(e, op, c); break;
    default: hl_op_reply(op, HL_INTERNAL, "no such operation"); break;
    }
}
