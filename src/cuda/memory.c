/* memory.c -- a device's memory as a backend's (struct hl_memory), scratch, and the rows of a pass cut up. */
#include "cuda/device.h"
#include "ops/ops.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

extern const struct hl_memory hl_cuda_memory, hl_cuda_f32_memory;

struct hl_cuda *hl_cuda_of(struct hl_pool *pool) {
    return hl_pool_device(pool);
}
const char *hl_cuda_name(const struct hl_cuda *c) { return c->name; }
int hl_cuda_sms(const struct hl_cuda *c) { return c->sms; }

void hl_cuda_fail(struct hl_cuda *c, hola_status s, const char *format, ...) {
    va_list args;
    if (c->failure != HOLA_OK) return;
    c->failure = s;
    va_start(args, format);
    vsnprintf(c->message, sizeof c->message, format, args);
    va_end(args);
}

void *hl_cuda_scratch(struct hl_cuda *c, int64_t bytes) {
    if (bytes > c->scratch_bytes) {
        hl_cuda_wait(c);
        hl_cuda_free(c, c->scratch);
        c->scratch_bytes = 0;
        c->scratch = hl_cuda_malloc(c, bytes);
        if (!c->scratch) {
            int64_t left, used;
            hl_cuda_room(c, &left, &used);
            hl_cuda_fail(c, HOLA_ENOMEM, "device memory: %.1f MB of scratch do not fit beside %.1f MB in use",
                         (double)bytes * 1e-6, (double)used * 1e-6);
            return NULL;
        }
        c->scratch_bytes = bytes;
    }
    return c->scratch;
}

static void *dev_alloc(struct hl_pool *pool, int64_t bytes) {
    return hl_cuda_malloc(hl_cuda_of(pool), bytes > 0 ? bytes : 1);
}
static void dev_release(struct hl_pool *pool, void *p) {
    if (p) hl_cuda_free(hl_cuda_of(pool), p);
}
static void dev_zero(struct hl_pool *pool, void *p, int64_t bytes) {
    if (bytes > 0) hl_cuda_memset(hl_cuda_of(pool), p, 0, bytes);
}
static void dev_copy(struct hl_pool *pool, void *to, const void *from, int64_t bytes) {
    if (bytes > 0) hl_cuda_memcpy(hl_cuda_of(pool), to, from, bytes, HL_ON_DEVICE);
}
static void dev_put(struct hl_pool *pool, void *to, const void *host, int64_t bytes) {
    if (bytes > 0) hl_cuda_memcpy(hl_cuda_of(pool), to, host, bytes, HL_TO_DEVICE);
}
/* What comes to the host, logits above all, comes through memory that the device writes by itself, and from there
 * by all threads: the driver's own way into memory it does not know takes longer for the logits of a token than
 * half of the layers, and half as long again for those of many sessions. In parts, so that the next one is on its
 * way meanwhile. */
enum { PART = 2 << 20, STAGE = HL_PARTS * PART, PIECE = 256 << 10 };
void *hl_cuda_stage(struct hl_cuda *c, int64_t bytes) {
    if (!c->stage) c->stage = hl_cuda_malloc_host(c, STAGE);
    return bytes <= STAGE ? c->stage : NULL;
}
struct from_stage {
    char *to;
    const char *from;
    int64_t bytes;
};
static void take_piece(void *ctx, int64_t i, int worker) {
    const struct from_stage *s = ctx;
    const int64_t at = i * PIECE, left = s->bytes - at;
    (void)worker;
    memcpy(s->to + at, s->from + at, (size_t)(left < PIECE ? left : PIECE));
}
static void dev_get(struct hl_pool *pool, void *host, const void *from, int64_t bytes) {
    struct hl_cuda *c = hl_cuda_of(pool);
    if (bytes > 0) hl_cuda_stage(c, 0);
    if (!c->stage && bytes > 0) hl_cuda_memcpy(c, host, from, bytes, HL_TO_HOST);
    for (int64_t at = 0; c->stage && at < bytes; at += STAGE) {
        const int64_t n = bytes - at < STAGE ? bytes - at : STAGE, parts = hl_pieces(n, PART);
        for (int i = 0; i < parts; i++)
            hl_cuda_get(c, c->stage + i * PART, (const char *)from + at + i * PART,
                        n - i * PART < PART ? n - i * PART : PART, i);
        for (int i = 0; i < parts; i++) {
            struct from_stage s = {(char *)host + at + i * PART, c->stage + i * PART,
                                   n - i * PART < PART ? n - i * PART : PART};
            hl_cuda_got(c, i);
            hl_pool_run(pool, hl_pieces(s.bytes, PIECE), take_piece, &s);
        }
    }
}
/* Threads that sleep take longer to come than all the rows together; so they are called while the device still works,
 * and one of them waits for the part that all need next. */
struct taking {
    struct hl_cuda *c;
    int64_t each, rows; /* bytes of a row; rows of a part */
    void (*row)(void *, int64_t, const void *);
    void *ctx;
    pthread_mutex_t one;
    atomic_bool there[HL_PARTS];
};
static void take_when_there(void *ctx, int64_t i, int worker) {
    struct taking *t = ctx;
    const int64_t part = i / t->rows;
    (void)worker;
    while (!atomic_load_explicit(&t->there[part], memory_order_acquire)) {
        if (pthread_mutex_trylock(&t->one)) continue;
        if (!atomic_load_explicit(&t->there[part], memory_order_acquire)) hl_cuda_got(t->c, (int)part);
        atomic_store_explicit(&t->there[part], true, memory_order_release);
        pthread_mutex_unlock(&t->one);
    }
    t->row(t->ctx, i, t->c->stage + part * PART + i % t->rows * t->each);
}
static bool dev_take(struct hl_pool *pool, const void *from, int64_t each, int64_t n,
                     void (*row)(void *, int64_t, const void *), void *ctx) {
    struct taking t = {.c = hl_cuda_of(pool), .each = each, .row = row, .ctx = ctx};
    t.rows = PART / (each > 0 ? each : 1);
    if (t.rows < 1 || hl_pieces(n, t.rows) > HL_PARTS) return false;
    hl_cuda_stage(t.c, 0);
    if (!t.c->stage) return false;
    pthread_mutex_init(&t.one, NULL);
    for (int i = 0; i < hl_pieces(n, t.rows); i++) {
        const int64_t some = n - i * t.rows < t.rows ? n - i * t.rows : t.rows;
        hl_cuda_get(t.c, t.c->stage + i * PART, (const char *)from + i * t.rows * each, some * each, i);
    }
    hl_pool_run(pool, n, take_when_there, &t);
    pthread_mutex_destroy(&t.one);
    return true;
}
static hola_status dev_status(struct hl_pool *pool) {
    struct hl_cuda *c = hl_cuda_of(pool);
    const hola_status s = c->failure;
    c->failure = HOLA_OK;
    return s == HOLA_OK ? s : hl_fail(s, "%s", c->message);
}
static hola_status dev_finish(struct hl_pool *pool) {
    hl_cuda_wait(hl_cuda_of(pool));
    return dev_status(pool);
}

/* ---- rows ---- */

/* Takes n items of `size` bytes off the block; *dev is where they will be on the device. */
static void *carve(struct hl_cuda *c, int64_t *at, int64_t n, int64_t size, const void **dev) {
    void *host = c->rows_host ? c->rows_host + *at : NULL;
    if (c->rows_dev) *dev = c->rows_dev + *at;
    *at += (n * size + 255) / 256 * 256;
    return host;
}

static void cut_segment(const struct hl_seg *s, int32_t index, int64_t C, struct hl_piece *chunk,
                        int64_t *chunks, struct hl_piece *block, int64_t *blocks) {
    for (int64_t r = 0; r < s->len; r += HL_CHUNK) {
        const int64_t left = s->len - r;
        chunk[(*chunks)++] = (struct hl_piece){
            .row = (int32_t)(s->row + r), .len = (int32_t)(left < HL_CHUNK ? left : HL_CHUNK), .seg = index};
    }
    for (int64_t r = 0; r < s->len;) {
        const int64_t skip = (s->pos + r) % C, left = s->len - r;
        const int64_t len = left < C - skip ? left : C - skip;
        block[(*blocks)++] = (struct hl_piece){
            .row = (int32_t)(s->row + r), .len = (int32_t)len, .seg = index, .skip = (int32_t)skip};
        r += len;
    }
}

static hola_status dev_rows(struct hl_pool *pool, struct hl_rows *rows, int64_t C) {
    struct hl_cuda *c = hl_cuda_of(pool);
    struct hl_dev_rows *d = &c->rows;
    const int64_t n = rows->n;
    struct hl_seg *seg = NULL;
    int32_t *row_seg = NULL, *chunk_first = NULL, *block_first = NULL;
    struct hl_piece *chunk = NULL, *block = NULL;
    int64_t at = 0;
    if (C < 1) C = INT32_MAX;
    d->chunks = hl_chunks_before(rows, n);
    d->blocks = hl_blocks_before(rows, n, C);
    for (int place = 0; place < 2; place++) { /* counts, then places */
        at = 0;
        seg = carve(c, &at, n, sizeof *seg, (const void **)&d->seg);
        row_seg = carve(c, &at, rows->T, sizeof *row_seg, (const void **)&d->row_seg);
        chunk_first = carve(c, &at, n + 1, sizeof *chunk_first, (const void **)&d->chunk_first);
        block_first = carve(c, &at, n + 1, sizeof *block_first, (const void **)&d->block_first);
        chunk = carve(c, &at, d->chunks, sizeof *chunk, (const void **)&d->chunk);
        block = carve(c, &at, d->blocks, sizeof *block, (const void **)&d->block);
        if (place == 0 && at > c->rows_room) {
            hl_cuda_wait(c);
            hl_cuda_free(c, c->rows_dev);
            hl_cuda_free_host(c, c->rows_host);
            c->rows_room = 0;
            c->rows_dev = hl_cuda_malloc(c, at);
            c->rows_host = hl_cuda_malloc_host(c, at);
            if (!c->rows_dev || !c->rows_host)
                return hl_fail(HOLA_ENOMEM, "device memory: no room for a table of %lld rows",
                               (long long)rows->T);
            c->rows_room = at;
        }
    }
    hl_cuda_wait(c); /* the last table may be on its way still */
    int64_t chunks = 0, blocks = 0;
    d->longest = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct hl_seg *s = &rows->seg[i];
        seg[i] = *s;
        if (s->len > d->longest) d->longest = s->len;
        for (int64_t r = 0; r < s->len; r++) row_seg[s->row + r] = (int32_t)i;
        chunk_first[i] = (int32_t)chunks;
        block_first[i] = (int32_t)blocks;
        cut_segment(s, (int32_t)i, C, chunk, &chunks, block, &blocks);
    }
    chunk_first[n] = (int32_t)chunks;
    block_first[n] = (int32_t)blocks;
    hl_cuda_memcpy(c, c->rows_dev, c->rows_host, at, HL_TO_DEVICE);
    rows->dev = d;
    return HOLA_OK;
}

static bool dev_replay(struct hl_pool *pool, uint64_t key) { return hl_cuda_replay(hl_cuda_of(pool), key); }
static void dev_room(struct hl_pool *pool, int64_t *free_bytes, int64_t *used) {
    hl_cuda_room(hl_cuda_of(pool), free_bytes, used);
}
static void dev_recorded(struct hl_pool *pool, uint64_t key) { hl_cuda_recorded(hl_cuda_of(pool), key); }

static hola_status dev_link(struct hl_pool *pool, int rank, int size, void (*broadcast)(void *, int64_t)) {
    return hl_cuda_link(hl_cuda_of(pool), rank, size, broadcast);
}
static void dev_reduce(struct hl_pool *pool, real *x, int64_t first, int64_t n, int64_t part) {
    hl_cuda_reduce(hl_cuda_of(pool), x, first, n, part);
}
static void dev_reduced(struct hl_pool *pool) { hl_cuda_reduced(hl_cuda_of(pool)); }
static void dev_share(struct hl_pool *pool, void *block, int64_t bytes) {
    hl_cuda_share(hl_cuda_of(pool), block, bytes);
}

#define MEMORY(size)                                                                                        \
    {                                                                                                       \
        .alloc = dev_alloc, .release = dev_release, .zero = dev_zero, .copy = dev_copy, .put = dev_put,     \
        .get = dev_get, .take = dev_take, .rows = dev_rows, .finish = dev_finish, .status = dev_status,     \
        .replay = dev_replay, .recorded = dev_recorded, .link = dev_link, .reduce = dev_reduce,             \
        .reduced = dev_reduced, .share = dev_share, .room = dev_room, .act_size = (size), .xent_rows = 8192 \
    }
const struct hl_memory hl_cuda_memory = MEMORY(2), hl_cuda_f32_memory = MEMORY(4);
