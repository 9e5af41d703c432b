/* snapshot.c -- sessions as files; docs/format.md describes the bytes.
 *
 * A header of 128 bytes, the latest ids, the latest logits, then every layer's numbers without padding. Scores of the
 * exact memory are always stored as floats and positions as integers, so that later evictions are the same. */
#include "core/file.h"
#include "core/half.h"
#include "core/hash.h"
#include "model/session.h"
#include "model/snapshot_numbers.h"
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
};

/* The type of a part's numbers in the state; HOLA_F32: real. */
static hola_dtype type_in_state(const struct hl_state_layout *y, enum hl_state_kind kind) {
    return kind == HL_STATE_ACT ? y->act : kind == HL_STATE_ROW ? y->row : HOLA_F32;
}

static bool put_part(void *ctx, const struct hl_state_part *part, void *at, int64_t n) {
    struct copy *c = ctx;
    const enum hl_state_kind kind = part->kind;
    const hola_dtype type = kind == HL_STATE_SCORE ? HOLA_F32 : c->dtype, here = type_in_state(c->state, kind);
    bool wrong = false;
    if (kind == HL_STATE_POSITION) memcpy(c->file, at, (size_t)n * 8);
    else wrong = hl_numbers_write(c->file, type, at, here, n);
    c->file += n * size_of(kind, c->dtype);
    return !wrong;
}

/* Allocates the whole file in memory and fills everything but the state. */
static hola_status open_file(const hola_model *m, uint64_t model, const struct hl_restore_point *p, const char *path,
                             hola_dtype dtype, char **out, int64_t *size) {
    *size = hl_snapshot_bytes(m, dtype, p->at.pos);
    *out = calloc(1, (size_t)*size);
    if (!*out) return hl_fail(HOLA_ENOMEM, "%s: no memory for %lld bytes", path, (long long)*size);
    const struct header h = {.version = VERSION,
                             .dtype = dtype,
                             .model = model,
                             .size = (uint64_t)*size,
                             .pos = p->at.pos,
                             .seed = p->at.seed,
                             .vocab = (uint32_t)m->cfg.vocab_size,
                             .flags = p->at.has_logits ? HAS_LOGITS : 0};
    memcpy(*out, &h, sizeof h);
    memcpy(*out, magic, sizeof magic);
    memcpy(*out + HEADER, p->at.recent, RECENT_BYTES);
    if (p->at.has_logits) memcpy(*out + HEADER + RECENT_BYTES, p->logits, (size_t)m->cfg.vocab_size * 4);
    return HOLA_OK;
}

/* A state on the host: room for pos tokens. Its block is used again: new memory costs page faults. */
static hola_status host_state(struct hl_state *s, hola_model *m, int64_t pos, const char *path) {
    const int64_t pages = m->state.page > 0 ? hl_pieces(pos, HL_PAGE_TOKENS) : 0;
    char *block = hl_state_pool_take(&m->staging);
    *s = (struct hl_state){.fixed = block ? block : malloc((size_t)m->state.bytes + 1)};
    if (s->fixed && pages > 0) s->page = calloc((size_t)pages, sizeof *s->page);
    while (s->page && s->pages < pages && (s->page[s->pages] = calloc(1, (size_t)m->state.page))) s->pages++;
    if (s->fixed && s->pages == pages) return HOLA_OK;
    return hl_fail(HOLA_ENOMEM, "%s: no memory for a state of %lld bytes", path,
                   (long long)hl_state_size(&m->state, pos));
}
static void free_host_state(hola_model *m, struct hl_state *s) {
    for (int64_t i = 0; i < s->pages; i++) free(s->page[i]);
    free(s->page);
    if (s->fixed && !hl_state_pool_keep(&m->staging, s->fixed)) free(s->fixed);
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

/* state: that of p, on the host */
static hola_status pack(const hola_model *m, uint64_t model, const struct hl_restore_point *p,
                        const struct hl_state *state, const char *path, hola_dtype dtype, char **file, int64_t *size) {
    *file = NULL;
    if ((unsigned)dtype > HOLA_F16)
        return hl_fail(HOLA_EINVAL, "dtype: a session cannot be saved as %s", hola_dtype_name(dtype));
    hola_status s = open_file(m, model, p, path, dtype, file, size);
    if (s != HOLA_OK) return s;
    struct copy c = {.dtype = dtype, .state = &m->state, .file = *file + HEADER + RECENT_BYTES + m->cfg.vocab_size * 4};
    if (hl_state_visit(state, &m->state, p->at.pos, put_part, &c)) {
        const uint64_t sum = hl_snapshot_sum(*file, *size);
        memcpy(*file + SUM_AT, &sum, sizeof sum);
        return HOLA_OK;
    }
    free(*file);
    *file = NULL;
    return hl_fail(HOLA_ENUMERIC, "%s: the session's state is not finite in %s", path, hola_dtype_name(dtype));
}

hola_status hl_snapshot_make(const hola_session *y, const char *path, hola_dtype dtype, char **file, int64_t *size) {
    hola_model *m = y->model;
    struct hl_state state = {0};
    uint64_t model;
    *file = NULL;
    pthread_mutex_lock(&m->lock);
    hola_status s = hl_model_hash(m, &model);
    pthread_mutex_unlock(&m->lock);
    if (s != HOLA_OK) return s;
    s = state_here(y, &state, path);
    if (s == HOLA_OK) s = pack(m, model, &y->now, &state, path, dtype, file, size);
    if (state.fixed != y->now.state.fixed) free_host_state(m, &state);
    return s;
}

hola_status hl_snapshot_copy(struct hl_restore_point **out, const hola_session *y, const char *path) {
    hola_model *m = y->model;
    struct hl_restore_point *p = calloc(1, sizeof *p);
    hola_status s = p ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory for it", path);
    *out = NULL;
    if (s == HOLA_OK && m->backend->host) {
        s = hl_state_new(&p->state, &m->state, m->backend, &m->states);
        if (s == HOLA_OK) s = hl_restore_point_copy(m, p, &y->now, HL_ALL_CHANGES);
    } else if (s == HOLA_OK) {
        if (y->now.at.has_logits) s = hl_restore_point_logits(m, p);
        if (s == HOLA_OK && y->now.at.has_logits)
            memcpy(p->logits, y->now.logits, (size_t)m->cfg.vocab_size * sizeof *p->logits);
        if (s == HOLA_OK) p->at = y->now.at, s = state_here(y, &p->state, path);
    }
    if (s == HOLA_OK) *out = p;
    else hl_snapshot_free(m, p);
    return s;
}

hola_status hl_snapshot_pack(const hola_model *m, uint64_t model, const struct hl_restore_point *p, const char *path,
                             hola_dtype dtype, char **file, int64_t *size) {
    return pack(m, model, p, &p->state, path, dtype, file, size);
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

/* ---- in ----
 *
 * The file passes through a buffer that fits into a core's cache, where it is hashed, checked and converted: a block for
 * all of it would cost more than everything else, because the system clears its pages. */

enum { PIECE = 1 << 18, SPARE = 64, LINE = 64 };
struct in {
    struct hl_bytes *from;
    int64_t left; /* still to be read */
    struct hl_hash_run sum;
    char *buffer, *next, *end; /* [SPARE + PIECE]; what is unused of it */
    hola_dtype dtype;
    const struct hl_state_layout *state;
    int64_t pos;
    hola_status status;
};

/* Reads on; what is left of the buffer, part of a number, stays in front. */
static bool more(struct in *x) {
    const int64_t kept = x->end - x->next, n = x->left < PIECE ? x->left : PIECE;
    HL_ASSERT(kept <= SPARE);
    memmove(x->buffer + SPARE - kept, x->next, (size_t)kept);
    x->next = x->buffer + SPARE - kept, x->end = x->buffer + SPARE + n;
    if (n > 0) x->status = hl_bytes_read(x->from, x->buffer + SPARE, n);
    else x->status = hl_fail(HOLA_EFORMAT, "%s: cut off", x->from->path);
    if (x->status != HOLA_OK) return false;
    hl_hash_add(&x->sum, x->buffer + SPARE, n);
    x->left -= n;
    return true;
}

static bool get_bytes(struct in *x, void *to, int64_t n) {
    for (char *p = to; n > 0;) {
        if (x->next == x->end && !more(x)) return false;
        const int64_t some = x->end - x->next < n ? x->end - x->next : n;
        memcpy(p, x->next, (size_t)some);
        p += some, x->next += some, n -= some;
    }
    return true;
}

static bool get_part(void *ctx, const struct hl_state_part *part, void *at, int64_t n) {
    struct in *x = ctx;
    const enum hl_state_kind kind = part->kind;
    const hola_dtype type = kind == HL_STATE_SCORE ? HOLA_F32 : x->dtype, here = type_in_state(x->state, kind);
    const int64_t size = size_of(kind, x->dtype), closed = part->block > 0 ? x->pos - x->pos % part->block : x->pos;
    const int64_t each = kind == HL_STATE_POSITION ? 8 : here == HOLA_F32 ? (int64_t)sizeof(real) : 2, bytes = n * each;
    bool wrong = false;
    for (int64_t i = 0, some; i < n; i += some) {
        if (x->end - x->next < size && !more(x)) return false;
        some = (x->end - x->next) / size;
        if (some > n - i) some = n - i;
        if (kind == HL_STATE_POSITION) {
            int64_t *position = (int64_t *)at + i;
            memcpy(position, x->next, (size_t)some * 8);
            for (int64_t j = 0; j < some && i + j < closed; j++) /* number of filled positions */
                wrong |= position[j] < 0 || position[j] >= closed;
        } else wrong |= hl_numbers_read((char *)at + i * each, here, x->next, some, type);
        x->next += some * size;
    }
    if (part->change != HL_GROWS) memset((char *)at + bytes, 0, (size_t)((LINE - bytes % LINE) % LINE));
    return !wrong;
}

/* Checks everything in it but the checksum. */
static hola_status check_header(const hola_model *m, uint64_t model, const struct header *h, int64_t size,
                                const char *path) {
    if (h->model != model)
        return hl_fail(HOLA_EINVAL, "%s: a session of another model (other weights or configuration)", path);
    if (h->dtype > HOLA_F16 || h->flags > HAS_LOGITS || h->pos < 0 || h->pos > INT64_MAX / 2 ||
        h->vocab != m->cfg.vocab_size || (m->state.page > 0 && h->pos > size) ||
        size != hl_snapshot_bytes(m, (hola_dtype)h->dtype, h->pos))
        return hl_fail(HOLA_EFORMAT, "%s: a field of its header cannot be", path);
    return HOLA_OK;
}

static hola_status check_small(const hola_model *m, const struct hl_restore_point *p, const char *path) {
    hola_status s = hl_model_check_ids(m, p->at.recent, HOLA_RECENT);
    uint32_t wrong = 0;
    for (int64_t i = 0; i < m->cfg.vocab_size; i++)
        wrong |= (hl_bits_of_float(p->logits[i]) & 0x7f800000u) == 0x7f800000u;
    if (s != HOLA_OK || wrong) return hl_fail(HOLA_EFORMAT, "%s: its last ids or logits cannot be", path);
    return HOLA_OK;
}

static hola_status read_rest(struct hl_restore_point *p, hola_model *m, struct in *x) {
    const char *path = x->from->path;
    hola_status s = HOLA_OK;
    p->logits = malloc((size_t)m->cfg.vocab_size * sizeof *p->logits);
    if (!p->logits) return hl_fail(HOLA_ENOMEM, "%s: no memory for it", path);
    if (!m->backend->host) s = host_state(&p->state, m, x->pos, path);
    else {
        s = hl_state_new(&p->state, &m->state, m->backend, &m->states);
        if (s == HOLA_OK) s = hl_state_reserve(&p->state, &m->state, m->backend, x->pos);
    }
    if (s != HOLA_OK) return s;
    if (!get_bytes(x, p->at.recent, RECENT_BYTES) || !get_bytes(x, p->logits, m->cfg.vocab_size * 4)) return x->status;
    s = check_small(m, p, path);
    if (s == HOLA_OK && !hl_state_visit(&p->state, &m->state, x->pos, get_part, x))
        s = x->status != HOLA_OK ? x->status
                                 : hl_fail(HOLA_EFORMAT, "%s: its state holds numbers that cannot be", path);
    return s;
}

void hl_snapshot_free(hola_model *m, struct hl_restore_point *p) {
    if (p && !m->backend->host) free_host_state(m, &p->state), p->state = (struct hl_state){0};
    hl_restore_point_free(m, p);
}

hola_status hl_snapshot_read(struct hl_restore_point **out, hola_model *m, uint64_t model, struct hl_bytes *from,
                             int64_t size) {
    const char *path = from->path;
    struct header h = {0};
    struct in x = {.from = from, .left = size - HEADER, .state = &m->state};
    *out = NULL;
    hola_status s = size < HEADER ? HOLA_EFORMAT : hl_bytes_read(from, &h, HEADER);
    if (size < HEADER || (s == HOLA_OK && memcmp(h.magic, magic, sizeof magic) != 0))
        return hl_fail(HOLA_EFORMAT, "%s: not a session", path);
    if (s != HOLA_OK) return s;
    if (h.version != VERSION)
        return hl_fail(HOLA_ENOTSUP, "%s: a session of version %u, this hola reads %d", path, h.version, VERSION);
    if (h.size != (uint64_t)size)
        return hl_fail(HOLA_EFORMAT, "%s: %lld bytes, should be %llu: cut off, or something added", path,
                       (long long)size, (unsigned long long)h.size);
    struct hl_restore_point *p = calloc(1, sizeof *p);
    x.buffer = malloc(SPARE + PIECE);
    if (!p || !x.buffer) {
        free(p), free(x.buffer);
        return hl_fail(HOLA_ENOMEM, "%s: no memory for it", path);
    }
    x.next = x.end = x.buffer + SPARE;
    x.dtype = (hola_dtype)h.dtype, x.pos = h.pos;
    p->at = (struct hl_position){.pos = h.pos, .seed = h.seed, .has_logits = h.flags & HAS_LOGITS};
    p->ranked = true;
    hl_hash_begin(&x.sum, hl_hash(0, &h, SUM_AT), size - SUM_AT - 8);
    hl_hash_add(&x.sum, (char *)&h + SUM_AT + 8, HEADER - SUM_AT - 8);
    s = check_header(m, model, &h, size, path);
    if (s == HOLA_OK) s = read_rest(p, m, &x);
    /* With another checksum, whatever was found so far comes from that. */
    while (x.status == HOLA_OK && x.left > 0 && s != HOLA_ENOMEM) x.next = x.end, more(&x);
    if (x.status != HOLA_OK) s = x.status;
    else if (s != HOLA_ENOMEM && hl_hash_end(&x.sum) != h.sum)
        s = hl_fail(HOLA_EFORMAT, "%s: damaged: the checksum does not fit", path);
    free(x.buffer);
    if (s == HOLA_OK) *out = p;
    else hl_snapshot_free(m, p);
    return s;
}

hola_status hl_snapshot_session(hola_session **out, hola_model *m, struct hl_restore_point *p) {
    hola_status s = hl_session_new(out, m);
    if (s != HOLA_OK) {
        hl_snapshot_free(m, p);
        return s;
    }
    struct hl_restore_point *now = &(*out)->now;
    now->at = p->at;
    now->logits = p->logits, p->logits = NULL;
    if (m->backend->host) {
        const struct hl_state unset = now->state;
        now->state = p->state, p->state = unset;
    } else {
        s = hl_state_reserve(&now->state, &m->state, m->backend, p->at.pos);
        pthread_mutex_lock(&m->lock);
        if (s == HOLA_OK) hl_put(m->backend, now->state.fixed, p->state.fixed, m->state.bytes);
        for (int64_t i = 0; s == HOLA_OK && i < p->state.pages; i++)
            hl_put(m->backend, now->state.page[i], p->state.page[i], m->state.page);
        if (s == HOLA_OK) s = hl_finish(m->backend);
        pthread_mutex_unlock(&m->lock);
    }
    hl_snapshot_free(m, p);
    if (s != HOLA_OK) hola_session_free(*out), *out = NULL;
    return s;
}

hola_status hl_snapshot_parse(hola_session *y, const char *data, int64_t size, const char *path) {
    hola_model *m = y->model;
    struct hl_bytes from = {.data = data, .size = size, .path = path};
    struct hl_restore_point *p;
    hola_session *read;
    uint64_t model;
    pthread_mutex_lock(&m->lock);
    hola_status s = hl_model_hash(m, &model);
    pthread_mutex_unlock(&m->lock);
    if (s == HOLA_OK) s = hl_snapshot_read(&p, m, model, &from, size);
    if (s == HOLA_OK) s = hl_snapshot_session(&read, m, p);
    if (s != HOLA_OK) return s;
    const struct hl_restore_point before = y->now;
    y->now = read->now, read->now = before;
    hl_restore_point_free(m, y->mark), hl_restore_point_free(m, y->draft);
    y->mark = y->draft = NULL;
    y->generation++;
    hola_session_free(read);
    return HOLA_OK;
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
