/* snapshot.c -- sessions as files; docs/format.md describes the bytes.
 *
 * A header of 128 bytes, the latest ids, the latest logits, then every layer's numbers without padding. Scores of the
 * exact memory are always stored as floats and positions as integers, so that later evictions are the same. */
#include "core/file.h"
#include "core/half.h"
#include "core/hash.h"
#include "model/session.h"
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, HEADER = 128, SUM_AT = 56, RECENT_BYTES = HOLA_RECENT * 4, HAS_LOGITS = 1 };
static const char magic[8] = {'H', 'O', 'L', 'A', 'S', 'E', 'S', 'S'};

struct header {
    char magic[8];
    uint32_t version, dtype;
    uint64_t model, size;
    int64_t pos;
    uint64_t seed;
    uint32_t vocab, flags;
    uint64_t sum;
    char zero[HEADER - SUM_AT - 8];
};
_Static_assert(sizeof(struct header) == HEADER && offsetof(struct header, sum) == SUM_AT, "the file's header");

static int64_t size_of(enum hl_state_kind kind, hola_dtype dtype) {
    return kind == HL_STATE_POSITION ? 8 : kind == HL_STATE_SCORE || dtype == HOLA_F32 ? 4 : 2;
}
int64_t hl_snapshot_bytes(const hola_model *m, hola_dtype dtype, int64_t pos) {
    int64_t bytes = HEADER + RECENT_BYTES + m->cfg.vocab_size * 4, count[HL_STATE_KINDS];
    hl_state_count(&m->state, pos, count);
    for (int kind = 0; kind < HL_STATE_KINDS; kind++) bytes += count[kind] * size_of((enum hl_state_kind)kind, dtype);
    return bytes;
}

uint64_t hl_snapshot_sum(const char *data, int64_t size) {
    return hl_hash(hl_hash(0, data, SUM_AT), data + SUM_AT + 8, size - SUM_AT - 8);
}

/* ---- out ---- */

struct copy {
    hola_dtype dtype;
    const struct hl_state_layout *state;
    char *file; /* where the next part goes */
    int64_t pos;
};

/* The type of a part's numbers in the state; HOLA_F32: real. */
static hola_dtype type_in_state(const struct copy *c, enum hl_state_kind kind) {
    return kind == HL_STATE_ACT ? c->state->act : kind == HL_STATE_ROW ? c->state->row : HOLA_F32;
}
static void put_number(void *at, hola_dtype type, int64_t i, float x) {
    if (type == HOLA_F32) ((real *)at)[i] = x;
    else ((uint16_t *)at)[i] = type == HOLA_BF16 ? hl_to_bf16(x) : hl_cache_to_f16(x);
}

static bool put_part(void *ctx, const struct hl_state_part *part, void *at, int64_t n) {
    struct copy *c = ctx;
    const enum hl_state_kind kind = part->kind;
    const hola_dtype type = kind == HL_STATE_SCORE ? HOLA_F32 : c->dtype, here = type_in_state(c, kind);
    uint32_t wrong = 0;
    if (kind == HL_STATE_POSITION) memcpy(c->file, at, (size_t)n * 8);
    for (int64_t i = 0; kind != HL_STATE_POSITION && i < n; i++) {
        const float y = (float)hl_state_number(at, here, i);
        const uint16_t half = type == HOLA_BF16 ? hl_to_bf16(y) : type == HOLA_F16 ? hl_to_f16(y) : 0;
        const uint32_t bits = hl_bits_of_float(type == HOLA_BF16  ? hl_from_bf16(half)
                                               : type == HOLA_F16 ? hl_from_f16(half)
                                                                  : y);
        wrong |= (bits & 0x7f800000u) == 0x7f800000u;
        if (type == HOLA_F32) memcpy(c->file + i * 4, &bits, 4);
        else memcpy(c->file + i * 2, &half, 2);
    }
    c->file += n * size_of(kind, c->dtype);
    return !wrong;
}

/* Allocates the whole file in memory and fills everything but the state. */
static hola_status open_file(const hola_session *y, const char *path, hola_dtype dtype, char **out, int64_t *size) {
    hola_model *m = y->model;
    uint64_t model;
    pthread_mutex_lock(&m->lock);
    hola_status s = hl_model_hash(m, &model);
    pthread_mutex_unlock(&m->lock);
    if (s != HOLA_OK) return s;
    *size = hl_snapshot_bytes(m, dtype, y->now.at.pos);
    *out = calloc(1, (size_t)*size);
    if (!*out) return hl_fail(HOLA_ENOMEM, "%s: no memory for %lld bytes", path, (long long)*size);
    const struct header h = {.version = VERSION,
                             .dtype = dtype,
                             .model = model,
                             .size = (uint64_t)*size,
                             .pos = y->now.at.pos,
                             .seed = y->now.at.seed,
                             .vocab = (uint32_t)m->cfg.vocab_size,
                             .flags = y->now.at.has_logits ? HAS_LOGITS : 0};
    memcpy(*out, &h, sizeof h);
    memcpy(*out, magic, sizeof magic);
    memcpy(*out + HEADER, y->now.at.recent, RECENT_BYTES);
    if (y->now.at.has_logits) memcpy(*out + HEADER + RECENT_BYTES, y->now.logits, (size_t)m->cfg.vocab_size * 4);
    return HOLA_OK;
}

/* A state on the host: room for pos tokens. */
static hola_status host_state(struct hl_state *s, const hola_model *m, int64_t pos, const char *path) {
    const int64_t pages = m->state.page > 0 ? hl_pieces(pos, HL_PAGE_TOKENS) : 0;
    *s = (struct hl_state){.fixed = calloc(1, (size_t)m->state.bytes + 1)};
    if (s->fixed && pages > 0) s->page = calloc((size_t)pages, sizeof *s->page);
    while (s->page && s->pages < pages && (s->page[s->pages] = calloc(1, (size_t)m->state.page))) s->pages++;
    if (s->fixed && s->pages == pages) return HOLA_OK;
    return hl_fail(HOLA_ENOMEM, "%s: no memory for a state of %lld bytes", path,
                   (long long)hl_state_size(&m->state, pos));
}
static void free_host_state(struct hl_state *s) {
    for (int64_t i = 0; i < s->pages; i++) free(s->page[i]);
    free(s->page);
    free(s->fixed);
}
/* The session's state on the host: the state itself, or a copy that the caller frees. */
static hola_status state_here(const hola_session *y, struct hl_state *state, const char *path) {
    hola_model *m = y->model;
    *state = y->now.state;
    if (m->backend->host) return HOLA_OK;
    hola_status s = host_state(state, m, y->now.at.pos, path);
    if (s != HOLA_OK) return s;
    pthread_mutex_lock(&m->lock);
    hl_get(m->backend, state->fixed, y->now.state.fixed, m->state.bytes);
    for (int64_t i = 0; i < state->pages; i++) hl_get(m->backend, state->page[i], y->now.state.page[i], m->state.page);
    s = hl_finish(m->backend);
    pthread_mutex_unlock(&m->lock);
    return s;
}

hola_status hl_snapshot_make(const hola_session *y, const char *path, hola_dtype dtype, char **file, int64_t *size) {
    const hola_model *m = y->model;
    struct hl_state state = {0};
    *file = NULL;
    if ((unsigned)dtype > HOLA_F16)
        return hl_fail(HOLA_EINVAL, "dtype: a session cannot be saved as %s", hola_dtype_name(dtype));
    hola_status s = open_file(y, path, dtype, file, size);
    if (s == HOLA_OK) s = state_here(y, &state, path);
    if (s == HOLA_OK) {
        struct copy c = {
            .dtype = dtype, .state = &m->state, .file = *file + HEADER + RECENT_BYTES + m->cfg.vocab_size * 4};
        if (!hl_state_visit(&state, &m->state, y->now.at.pos, put_part, &c))
            s = hl_fail(HOLA_ENUMERIC, "%s: the session's state is not finite in %s", path, hola_dtype_name(dtype));
    }
    if (state.fixed != y->now.state.fixed) free_host_state(&state);
    if (s == HOLA_OK) {
        const uint64_t sum = hl_snapshot_sum(*file, *size);
        memcpy(*file + SUM_AT, &sum, sizeof sum);
        return HOLA_OK;
    }
    free(*file);
    *file = NULL;
    return s;
}

hola_status hola_session_save(const hola_session *y, const char *path, hola_dtype dtype) {
    HL_NEED(y, "the session");
    HL_NEED(path, "path");
    char *file;
    int64_t size;
    hola_status s = hl_snapshot_make(y, path, dtype, &file, &size);
    if (s == HOLA_OK) s = hl_write_file(path, file, size);
    free(file);
    return s;
}

/* ---- in ---- */

static bool get_part(void *ctx, const struct hl_state_part *part, void *at, int64_t n) {
    struct copy *c = ctx;
    const enum hl_state_kind kind = part->kind;
    int64_t *position = at;
    const hola_dtype type = kind == HL_STATE_SCORE ? HOLA_F32 : c->dtype, here = type_in_state(c, kind);
    const int64_t closed = part->block > 0 ? c->pos - c->pos % part->block : c->pos;
    uint32_t wrong = 0;
    if (kind == HL_STATE_POSITION) memcpy(at, c->file, (size_t)n * 8);
    for (int64_t i = 0; kind == HL_STATE_POSITION && i < n && i < closed; i++) /* number of filled positions */
        wrong |= position[i] < 0 || position[i] >= closed;
    for (int64_t i = 0; kind != HL_STATE_POSITION && i < n; i++) {
        uint16_t half = 0;
        uint32_t bits = 0;
        if (type == HOLA_F32) memcpy(&bits, c->file + i * 4, 4);
        else memcpy(&half, c->file + i * 2, 2);
        const float y = type == HOLA_BF16  ? hl_from_bf16(half)
                        : type == HOLA_F16 ? hl_from_f16(half)
                                           : hl_float_of_bits(bits);
        put_number(at, here, i, y);
        wrong |= (hl_bits_of_float(y) & 0x7f800000u) == 0x7f800000u ||
                 (hl_bits_of_float((float)hl_state_number(at, here, i)) & 0x7f800000u) == 0x7f800000u;
    }
    c->file += n * size_of(kind, c->dtype);
    return !wrong;
}

/* Checks that the file is complete, undamaged, and of this model. */
static hola_status check_header(hola_model *m, const struct header *h, const char *data, int64_t size,
                                const char *path) {
    uint64_t model;
    if (size < HEADER || memcmp(data, magic, sizeof magic) != 0)
        return hl_fail(HOLA_EFORMAT, "%s: not a session", path);
    if (h->version != VERSION)
        return hl_fail(HOLA_ENOTSUP, "%s: a session of version %u, this hola reads %d", path, h->version, VERSION);
    if (h->size != (uint64_t)size)
        return hl_fail(HOLA_EFORMAT, "%s: %lld bytes, should be %llu: cut off, or something added", path,
                       (long long)size, (unsigned long long)h->size);
    if (h->sum != hl_snapshot_sum(data, size))
        return hl_fail(HOLA_EFORMAT, "%s: damaged: the checksum does not fit", path);
    pthread_mutex_lock(&m->lock);
    hola_status s = hl_model_hash(m, &model);
    pthread_mutex_unlock(&m->lock);
    if (s != HOLA_OK) return s;
    if (h->model != model)
        return hl_fail(HOLA_EINVAL, "%s: a session of another model (other weights or configuration)", path);
    if (h->dtype > HOLA_F16 || h->flags > HAS_LOGITS || h->pos < 0 || h->pos > INT64_MAX / 2 ||
        h->vocab != m->cfg.vocab_size || (m->state.page > 0 && h->pos > size) ||
        size != hl_snapshot_bytes(m, (hola_dtype)h->dtype, h->pos))
        return hl_fail(HOLA_EFORMAT, "%s: a field of its header cannot be", path);
    return HOLA_OK;
}

static hola_status check_small(const hola_model *m, const struct hl_position *w, const float *logits,
                               const char *path) {
    hola_status s = hl_model_check_ids(m, w->recent, HOLA_RECENT);
    uint32_t wrong = 0;
    for (int64_t i = 0; i < m->cfg.vocab_size; i++) wrong |= (hl_bits_of_float(logits[i]) & 0x7f800000u) == 0x7f800000u;
    if (s != HOLA_OK || wrong) return hl_fail(HOLA_EFORMAT, "%s: its last ids or logits cannot be", path);
    return HOLA_OK;
}

hola_status hl_snapshot_parse(hola_session *y, const char *data, int64_t size, const char *path) {
    hola_model *m = y->model;
    const int64_t vocab = m->cfg.vocab_size;
    struct header h = {0};
    if (size >= HEADER) memcpy(&h, data, sizeof h);
    hola_status s = check_header(m, &h, data, size, path);
    if (s != HOLA_OK) return s;
    struct hl_position w = {.pos = h.pos, .seed = h.seed, .has_logits = h.flags & HAS_LOGITS};
    struct copy c = {.dtype = (hola_dtype)h.dtype,
                     .state = &m->state,
                     .file = (char *)(uintptr_t)data + HEADER + RECENT_BYTES + vocab * 4,
                     .pos = h.pos};
    struct hl_state state;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    s = host_state(&state, m, h.pos, path);
    if (s == HOLA_OK && !logits) s = hl_fail(HOLA_ENOMEM, "%s: no memory for it", path);
    if (s == HOLA_OK) {
        memcpy(w.recent, data + HEADER, RECENT_BYTES);
        memcpy(logits, data + HEADER + RECENT_BYTES, (size_t)vocab * 4);
        s = check_small(m, &w, logits, path);
    }
    if (s == HOLA_OK && !hl_state_visit(&state, &m->state, h.pos, get_part, &c))
        s = hl_fail(HOLA_EFORMAT, "%s: its state holds numbers that cannot be", path);
    if (s == HOLA_OK) s = hl_state_reserve(&y->now.state, &m->state, m->backend, h.pos);
    if (s == HOLA_OK) {
        const struct hl_state pages = y->now.state;
        y->now.state.pages = 0; /* the reset must not free them */
        hola_session_reset(y);
        y->now.state = pages;
        y->now.at = w;
        free(y->now.logits);
        y->now.logits = logits, logits = NULL;
        pthread_mutex_lock(&m->lock);
        hl_put(m->backend, y->now.state.fixed, state.fixed, m->state.bytes);
        for (int64_t i = 0; i < state.pages; i++)
            hl_put(m->backend, y->now.state.page[i], state.page[i], m->state.page);
        s = hl_finish(m->backend);
        pthread_mutex_unlock(&m->lock);
    }
    free(logits);
    free_host_state(&state);
    return s;
}

hola_status hola_session_load(hola_session *y, const char *path) {
    HL_NEED(y, "the session");
    HL_NEED(path, "path");
    struct hl_map map;
    hola_status s = hl_map_open(&map, path);
    if (s == HOLA_OK) s = hl_snapshot_parse(y, map.data, map.size, path);
    hl_map_close(&map);
    return s;
}
