/* record.c -- the bytes of a conversation's file; see store.h and docs/format.md. */
#include "core/hash.h"
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
    free(r->session);
    *r = (struct hl_stored){0};
}

hola_status hl_stored_pack(const struct hl_stored *r, uint64_t model, char **file, int64_t *size) {
    char *about = json_dumps(r->about, JSON_COMPACT);
    const int64_t n = about ? (int64_t)strlen(about) : 0, ids = r->tape.n;
    *size = HL_RECORD_HEAD + n + 5 * ids + r->session_bytes;
    *file = about ? malloc((size_t)*size) : NULL;
    if (!*file) {
        free(about);
        return hl_fail(HOLA_ENOMEM, "no memory for a session's file");
    }
    struct head h = {.version = VERSION,
                     .model = model,
                     .about = (uint64_t)n,
                     .ids = (uint64_t)ids,
                     .session = (uint64_t)r->session_bytes};
    char *p = *file + HL_RECORD_HEAD;
    memcpy(p, about, (size_t)n);
    if (ids > 0) {
        memcpy(p + n, r->tape.ids, (size_t)ids * 4);
        memcpy(p + n + 4 * ids, r->tape.begins, (size_t)ids);
    }
    if (r->session_bytes > 0) memcpy(p + n + 5 * ids, r->session, (size_t)r->session_bytes);
    memcpy(h.magic, magic, sizeof magic);
    h.head_sum = hl_hash(0, &h, offsetof(struct head, head_sum));
    h.body_sum = hl_hash(0, p, n + 5 * ids);
    memcpy(*file, &h, sizeof h);
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

hola_status hl_stored_parse(struct hl_stored *r, const char *data, int64_t size, uint64_t model, const char *path) {
    struct head h;
    *r = (struct hl_stored){0};
    if (!read_head(&h, data, size, model)) return hl_fail(HOLA_EFORMAT, "%s: not a session of this model", path);
    const uint64_t rest = (uint64_t)size - HL_RECORD_HEAD;
    if (h.about > rest || h.ids > (rest - h.about) / 5 || rest - h.about - 5 * h.ids != h.session)
        return hl_fail(HOLA_EFORMAT, "%s: damaged: cut off, or something added", path);
    const char *p = data + HL_RECORD_HEAD;
    const int64_t n = (int64_t)h.about, ids = (int64_t)h.ids;
    if (h.body_sum != hl_hash(0, p, n + 5 * ids))
        return hl_fail(HOLA_EFORMAT, "%s: damaged: the checksum does not fit", path);
    r->about = json_loadb(p, (size_t)n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (!json_is_object(r->about)) {
        hl_stored_free(r);
        return hl_fail(HOLA_EFORMAT, "%s: damaged: its description is none", path);
    }
    hola_status s = hl_tape_room(&r->tape, ids);
    r->session = s == HOLA_OK ? malloc((size_t)h.session + 1) : NULL;
    if (!r->session) {
        hl_stored_free(r);
        return hl_fail(HOLA_ENOMEM, "%s: no memory for it", path);
    }
    if (ids > 0) {
        memcpy(r->tape.ids, p + n, (size_t)ids * 4);
        memcpy(r->tape.begins, p + n + 4 * ids, (size_t)ids);
    }
    r->tape.n = ids;
    memcpy(r->session, p + n + 5 * ids, (size_t)h.session);
    r->session_bytes = (int64_t)h.session;
    return HOLA_OK;
}
