/* record.c -- the bytes of a conversation's file; see store.h and docs/format.md. */
#include "core/hash.h"
#include "model/session.h"
#include "serve/store.h"
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, MOST_ABOUT = 64 << 20 };
static const char magic[8] = {'H', 'O', 'L', 'A', 'C', 'O', 'N', 'V'};

struct head {
    char magic[8];
    uint32_t version, zero;
    uint64_t model, about, ids, session;
    uint64_t head_sum, body_sum; /* head_sum: of the 48 bytes before; body_sum: of about, ids and calls */
};
_Static_assert(sizeof(struct head) == HL_RECORD_HEAD, "the file's header");

void hl_stored_free(struct hl_stored *r) {
    json_decref(r->about);
    hl_tape_free(&r->tape);
    if (r->state) hl_snapshot_free(r->model, r->state);
    *r = (struct hl_stored){0};
}

hola_status hl_stored_pack(const struct hl_stored *r, uint64_t model, char **head, int64_t *size) {
    char *about = json_dumps(r->about, JSON_COMPACT);
    const int64_t n = about ? (int64_t)strlen(about) : 0, ids = r->tape.n;
    *size = HL_RECORD_HEAD + n + 5 * ids;
    *head = about ? malloc((size_t)*size) : NULL;
    if (!*head) {
        free(about);
        return hl_fail(HOLA_ENOMEM, "no memory for a session's file");
    }
    struct head h = {.version = VERSION,
                     .model = model,
                     .about = (uint64_t)n,
                     .ids = (uint64_t)ids,
                     .session = (uint64_t)r->session_bytes};
    char *p = *head + HL_RECORD_HEAD;
    memcpy(p, about, (size_t)n);
    if (ids > 0) {
        memcpy(p + n, r->tape.ids, (size_t)ids * 4);
        memcpy(p + n + 4 * ids, r->tape.begins, (size_t)ids);
    }
    memcpy(h.magic, magic, sizeof magic);
    h.head_sum = hl_hash(0, &h, offsetof(struct head, head_sum));
    h.body_sum = hl_hash(0, p, n + 5 * ids);
    memcpy(*head, &h, sizeof h);
    free(about);
    return HOLA_OK;
}

static bool read_head(struct head *h, const char *data, int64_t size, uint64_t model) {
    if (size < HL_RECORD_HEAD) return false;
    memcpy(h, data, sizeof *h);
    return memcmp(h->magic, magic, sizeof magic) == 0 && h->version == VERSION && h->zero == 0 && h->model == model &&
           h->head_sum == hl_hash(0, h, offsetof(struct head, head_sum)) && h->about <= MOST_ABOUT;
}

int64_t hl_stored_about_end(const char *head, int64_t size, uint64_t model) {
    struct head h;
    return read_head(&h, head, size, model) ? HL_RECORD_HEAD + (int64_t)h.about : -1;
}

/* The metadata, the ids and their calls. */
static hola_status read_text(struct hl_stored *r, const struct head *h, struct hl_bytes *from) {
    const int64_t n = (int64_t)h->about, ids = (int64_t)h->ids, rest = n + 5 * ids;
    char *p = malloc((size_t)rest + 1);
    hola_status s = p ? hl_tape_room(&r->tape, ids) : hl_fail(HOLA_ENOMEM, "%s: no memory for it", from->path);
    if (s == HOLA_OK) s = hl_bytes_read(from, p, rest);
    if (s == HOLA_OK && h->body_sum != hl_hash(0, p, rest))
        s = hl_fail(HOLA_EFORMAT, "%s: damaged: the checksum does not fit", from->path);
    if (s == HOLA_OK) r->about = json_loadb(p, (size_t)n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (s == HOLA_OK && !json_is_object(r->about))
        s = hl_fail(HOLA_EFORMAT, "%s: damaged: its description is none", from->path);
    if (s == HOLA_OK && ids > 0) {
        memcpy(r->tape.ids, p + n, (size_t)ids * 4);
        memcpy(r->tape.begins, p + n + 4 * ids, (size_t)ids);
        r->tape.n = ids;
    }
    free(p);
    return s;
}

hola_status hl_stored_read(struct hl_stored *r, struct hl_bytes *from, uint64_t model) {
    char bytes[HL_RECORD_HEAD];
    struct head h;
    *r = (struct hl_stored){.model = r->model};
    hola_status s = from->size < HL_RECORD_HEAD ? HOLA_EFORMAT : hl_bytes_read(from, bytes, sizeof bytes);
    if (s == HOLA_EIO) return s;
    if (s != HOLA_OK || !read_head(&h, bytes, sizeof bytes, model))
        return hl_fail(HOLA_EFORMAT, "%s: not a session of this model", from->path);
    const uint64_t rest = (uint64_t)from->size - HL_RECORD_HEAD;
    if (h.about > rest || h.ids > (rest - h.about) / 5 || rest - h.about - 5 * h.ids != h.session)
        return hl_fail(HOLA_EFORMAT, "%s: damaged: cut off, or something added", from->path);
    s = read_text(r, &h, from);
    if (s == HOLA_OK && h.session > 0 && r->model)
        s = hl_snapshot_read(&r->state, r->model, model, from, (int64_t)h.session);
    if (s != HOLA_OK) hl_stored_free(r);
    return s;
}
