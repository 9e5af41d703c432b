/* snapshot.c -- a session as a file of fixed size; docs/format.md has its bytes.
 *
 * A header of 128 bytes, the last ids, the last logits, then every layer's numbers without the padding they have
 * in memory. Scores of the exact memory stay floats and its positions integers in any type, so that evictions
 * go on as they would have. */
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
_Static_assert(sizeof(struct header) == HEADER && offsetof(struct header, sum) == SUM_AT,
               "the file's header");

/* ---- the parts of a state block, in the file's order ---- */

enum kind { NUMBERS, ROWS, SCORES, PLACES }; /* ROWS: activations in memory */
typedef bool (*visitor)(void *ctx, enum kind kind, int64_t at, int64_t count);

/* Stops where a visitor says false, and says so too. */
static bool visit_cache(const hola_model *m, int64_t at, visitor visit, void *ctx) {
    const hola_config *c = &m->cfg;
    const int64_t w = c->cache_window, n = w + c->cache_chunk;
    const struct hl_cache_layout l =
        hl_cache_layout(c->head_dim, c->head_v_dim, w, c->cache_chunk, m->backend->act_size);
    for (int64_t h = 0; h < c->num_v_heads; h++, at += l.bytes)
        if (!visit(ctx, ROWS, at + l.k, n * c->head_dim) || !visit(ctx, ROWS, at + l.v, n * c->head_v_dim) ||
            !visit(ctx, SCORES, at + l.score, n) || !visit(ctx, PLACES, at + l.pos, w))
            return false;
    return true;
}
static bool visit_state(const hola_model *m, visitor visit, void *ctx) {
    const struct hl_dims s = hl_dims(&m->cfg);
    const int64_t tail = m->cfg.conv_size > 1 ? m->cfg.conv_size - 1 : 0;
    for (int64_t l = 0; l < s.L; l++) {
        const int64_t at = l * m->state.layer;
        if (!visit(ctx, NUMBERS, at + m->state.S, s.HV * s.K * s.V) ||
            !visit(ctx, NUMBERS, at + m->state.tail_q, tail * s.qk) ||
            !visit(ctx, NUMBERS, at + m->state.tail_k, tail * s.qk) ||
            !visit(ctx, NUMBERS, at + m->state.tail_v, tail * s.vv) ||
            (s.cache && !visit_cache(m, at + m->state.cache, visit, ctx)))
            return false;
    }
    return true;
}

static int64_t size_of(enum kind kind, hola_dtype dtype) {
    return kind == PLACES ? 8 : kind == SCORES || dtype == HOLA_F32 ? 4 : 2;
}
struct count {
    hola_dtype dtype;
    int64_t bytes;
};
static bool count_part(void *ctx, enum kind kind, int64_t at, int64_t n) {
    struct count *c = ctx;
    (void)at;
    c->bytes += n * size_of(kind, c->dtype);
    return true;
}
int64_t hl_snapshot_bytes(const hola_model *m, hola_dtype dtype) {
    struct count c = {.dtype = dtype, .bytes = HEADER + RECENT_BYTES + m->cfg.vocab_size * 4};
    visit_state(m, count_part, &c);
    return c.bytes;
}

uint64_t hl_snapshot_sum(const char *data, int64_t size) {
    return hl_hash(hl_hash(0, data, SUM_AT), data + SUM_AT + 8, size - SUM_AT - 8);
}

/* ---- out ---- */

struct copy {
    hola_dtype dtype;
    bool half;          /* activations are bf16 */
    char *state, *file; /* file: where the next part lies */
    int64_t pos, chunk;
};

static bool put_part(void *ctx, enum kind kind, int64_t at, int64_t n) {
    struct copy *c = ctx;
    const real *x = (const real *)(c->state + at);
    const uint16_t *row = kind == ROWS && c->half ? (const uint16_t *)x : NULL;
    const hola_dtype type = kind == SCORES ? HOLA_F32 : c->dtype;
    uint32_t wrong = 0;
    if (kind == PLACES) memcpy(c->file, c->state + at, (size_t)n * 8);
    for (int64_t i = 0; kind != PLACES && i < n; i++) {
        const float y = row ? hl_from_bf16(row[i]) : (float)x[i];
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

/* The whole file in memory, but for the state. */
static hola_status open_file(const hola_session *y, const char *path, hola_dtype dtype, char **out,
                             int64_t *size) {
    hola_model *m = y->model;
    uint64_t model;
    pthread_mutex_lock(&m->lock);
    hola_status s = hl_model_hash(m, &model);
    pthread_mutex_unlock(&m->lock);
    if (s != HOLA_OK) return s;
    *size = hl_snapshot_bytes(m, dtype);
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
    if (y->now.at.has_logits)
        memcpy(*out + HEADER + RECENT_BYTES, y->now.logits, (size_t)m->cfg.vocab_size * 4);
    return HOLA_OK;
}

/* The state block on the host: itself, or a copy that is the caller's to free. */
static hola_status state_here(const hola_session *y, char **state) {
    hola_model *m = y->model;
    *state = y->now.state;
    if (m->backend->host) return HOLA_OK;
    *state = malloc((size_t)m->state.bytes);
    if (!*state) return hl_fail(HOLA_ENOMEM, "session: %lld bytes", (long long)m->state.bytes);
    pthread_mutex_lock(&m->lock);
    hl_get(m->backend, *state, y->now.state, m->state.bytes);
    hola_status s = hl_finish(m->backend);
    pthread_mutex_unlock(&m->lock);
    return s;
}

hola_status hl_snapshot_make(const hola_session *y, const char *path, hola_dtype dtype, char **file,
                             int64_t *size) {
    char *state = NULL;
    *file = NULL;
    if ((unsigned)dtype > HOLA_F16)
        return hl_fail(HOLA_EINVAL, "dtype: %d is none for a session", (int)dtype);
    hola_status s = open_file(y, path, dtype, file, size);
    if (s == HOLA_OK) s = state_here(y, &state);
    if (s == HOLA_OK) {
        struct copy c = {.dtype = dtype,
                         .half = y->model->backend->act_size == 2,
                         .state = state,
                         .file = *file + HEADER + RECENT_BYTES + y->model->cfg.vocab_size * 4};
        if (!visit_state(y->model, put_part, &c))
            s = hl_fail(HOLA_ENUMERIC, "%s: the session's state is not finite in %s", path,
                        hola_dtype_name(dtype));
    }
    if (state != y->now.state) free(state);
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
    char *file;
    int64_t size;
    hola_status s = hl_snapshot_make(y, path, dtype, &file, &size);
    if (s == HOLA_OK) s = hl_write_file(path, file, size);
    free(file);
    return s;
}

/* ---- in ---- */

static bool get_part(void *ctx, enum kind kind, int64_t at, int64_t n) {
    struct copy *c = ctx;
    real *x = (real *)(c->state + at);
    uint16_t *row = kind == ROWS && c->half ? (uint16_t *)x : NULL;
    const hola_dtype type = kind == SCORES ? HOLA_F32 : c->dtype;
    const int64_t closed = c->pos - (kind == PLACES ? c->pos % c->chunk : 0);
    uint32_t wrong = 0;
    if (kind == PLACES) memcpy(c->state + at, c->file, (size_t)n * 8);
    for (int64_t i = 0; kind == PLACES && i < n && i < closed; i++) /* those that are filled */
        wrong |= ((int64_t *)x)[i] < 0 || ((int64_t *)x)[i] >= closed;
    for (int64_t i = 0; kind != PLACES && i < n; i++) {
        uint16_t half = 0;
        uint32_t bits = 0;
        if (type == HOLA_F32) memcpy(&bits, c->file + i * 4, 4);
        else memcpy(&half, c->file + i * 2, 2);
        const float y = type == HOLA_BF16  ? hl_from_bf16(half)
                        : type == HOLA_F16 ? hl_from_f16(half)
                                           : hl_float_of_bits(bits);
        if (row) row[i] = hl_to_bf16(y);
        else x[i] = y;
        wrong |= (hl_bits_of_float(row ? hl_from_bf16(row[i]) : y) & 0x7f800000u) == 0x7f800000u;
    }
    c->file += n * size_of(kind, c->dtype);
    return !wrong;
}

/* That the file is whole, as it was written, and of this model. */
static hola_status check_header(hola_model *m, const struct header *h, const char *data, int64_t size,
                                const char *path) {
    uint64_t model;
    if (size < HEADER || memcmp(data, magic, sizeof magic) != 0)
        return hl_fail(HOLA_EFORMAT, "%s: not a session", path);
    if (h->version != VERSION)
        return hl_fail(HOLA_ENOTSUP, "%s: a session of version %u, this hola reads %d", path, h->version,
                       VERSION);
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
        h->vocab != m->cfg.vocab_size || size != hl_snapshot_bytes(m, (hola_dtype)h->dtype))
        return hl_fail(HOLA_EFORMAT, "%s: a field of its header cannot be", path);
    return HOLA_OK;
}

static hola_status check_small(const hola_model *m, const struct hl_position *w, const float *logits,
                               const char *path) {
    hola_status s = hl_model_check_ids(m, w->recent, HOLA_RECENT);
    uint32_t wrong = 0;
    for (int64_t i = 0; i < m->cfg.vocab_size; i++)
        wrong |= (hl_bits_of_float(logits[i]) & 0x7f800000u) == 0x7f800000u;
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
                     .half = m->backend->act_size == 2,
                     .state = calloc(1, (size_t)m->state.bytes),
                     .file = (char *)(uintptr_t)data + HEADER + RECENT_BYTES + vocab * 4,
                     .pos = h.pos,
                     .chunk = m->cfg.cache_chunk};
    float *logits = malloc((size_t)vocab * sizeof *logits);
    if (!c.state || !logits) s = hl_fail(HOLA_ENOMEM, "%s: no memory for it", path);
    if (s == HOLA_OK) {
        memcpy(w.recent, data + HEADER, RECENT_BYTES);
        memcpy(logits, data + HEADER + RECENT_BYTES, (size_t)vocab * 4);
        s = check_small(m, &w, logits, path);
    }
    if (s == HOLA_OK && !visit_state(m, get_part, &c))
        s = hl_fail(HOLA_EFORMAT, "%s: its state holds numbers that cannot be", path);
    if (s == HOLA_OK) {
        hola_session_reset(y);
        y->now.at = w;
        free(y->now.logits);
        y->now.logits = logits, logits = NULL;
        pthread_mutex_lock(&m->lock);
        hl_put(m->backend, y->now.state, c.state, m->state.bytes);
        s = hl_finish(m->backend);
        pthread_mutex_unlock(&m->lock);
    }
    free(logits);
    free(c.state);
    return s;
}

hola_status hola_session_load(hola_session *y, const char *path) {
    struct hl_map map;
    hola_status s = hl_map_open(&map, path);
    if (s == HOLA_OK) s = hl_snapshot_parse(y, map.data, map.size, path);
    hl_map_close(&map);
    return s;
}
