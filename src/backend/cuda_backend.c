/* cuda_backend.c -- a CUDA device as a backend: storage, copies to the host, rows of a pass, graphs, collectives. */
#include "backend/cuda_backend.h"
#include "cuda/device.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

extern const struct hl_ops hl_cuda_ops, hl_cuda_f32_ops;

static void *dev_alloc(struct hl_backend *b, int64_t bytes) { return hl_cuda_malloc(b->device, bytes > 0 ? bytes : 1); }
static void dev_release(struct hl_backend *b, void *p) {
    if (p) hl_cuda_free(b->device, p);
}
static void dev_zero(struct hl_backend *b, void *p, int64_t bytes) {
    if (bytes > 0) hl_cuda_memset(b->device, p, 0, bytes);
}
static void dev_copy(struct hl_backend *b, void *to, const void *from, int64_t bytes) {
    if (bytes > 0) hl_cuda_memcpy(b->device, to, from, bytes, HL_ON_DEVICE);
}
static void dev_copy_strided(struct hl_backend *b, void *to, const void *from, int64_t bytes, int64_t stride,
                             int64_t n) {
    if (bytes > 0 && n > 0) hl_cuda_copy_strided(b->device, to, from, bytes, stride, n);
}
static void dev_put(struct hl_backend *b, void *to, const void *host, int64_t bytes) {
    if (bytes > 0) hl_cuda_memcpy(b->device, to, host, bytes, HL_TO_DEVICE);
}
/* ---- copies to the host ---- */

/* Copies go through a staging buffer in pinned memory, written by the device, and from there by all threads: the
 * driver's own copy to pageable memory takes longer for one token's logits than half of the layers, and half as long
 * again for those of many sessions. The buffer is split in parts, so that one is copied out while the next is in
 * flight. */
enum { PIECE = 256 << 10 };
struct staged {
    char *to;
    const char *from;
    int64_t bytes;
};
static void copy_piece(void *ctx, int64_t i, int worker) {
    const struct staged *s = ctx;
    const int64_t at = i * PIECE, left = s->bytes - at;
    (void)worker;
    memcpy(s->to + at, s->from + at, (size_t)(left < PIECE ? left : PIECE));
}
static void dev_get(struct hl_backend *b, void *host, const void *from, int64_t bytes) {
    struct hl_cuda *c = b->device;
    if (bytes > 0) hl_cuda_stage(c, 0);
    if (!c->stage && bytes > 0) hl_cuda_memcpy(c, host, from, bytes, HL_TO_HOST);
    for (int64_t at = 0; c->stage && at < bytes; at += HL_STAGE_BYTES) {
        const int64_t n = bytes - at < HL_STAGE_BYTES ? bytes - at : HL_STAGE_BYTES,
                      parts = hl_pieces(n, HL_STAGE_PART);
        for (int i = 0; i < parts; i++)
            hl_cuda_get(c, c->stage + i * HL_STAGE_PART, (const char *)from + at + i * HL_STAGE_PART,
                        n - i * HL_STAGE_PART < HL_STAGE_PART ? n - i * HL_STAGE_PART : HL_STAGE_PART, i);
        for (int i = 0; i < parts; i++) {
            struct staged s = {(char *)host + at + i * HL_STAGE_PART, c->stage + i * HL_STAGE_PART,
                               n - i * HL_STAGE_PART < HL_STAGE_PART ? n - i * HL_STAGE_PART : HL_STAGE_PART};
            hl_cuda_got(c, i);
            hl_pool_run(b->pool, hl_pieces(s.bytes, PIECE), copy_piece, &s);
        }
    }
}
/* Waking a thread takes longer than copying all the rows. So the threads start while the device is still working, and
 * one of them waits for the next part that all need. */
struct streaming {
    struct hl_cuda *c;
    int64_t each, rows; /* bytes per row; rows per part */
    void (*row)(void *, int64_t, const void *);
    void *ctx;
    pthread_mutex_t one;
    atomic_bool arrived[HL_PARTS];
};
static void stream_row(void *ctx, int64_t i, int worker) {
    struct streaming *t = ctx;
    const int64_t part = i / t->rows;
    (void)worker;
    while (!atomic_load_explicit(&t->arrived[part], memory_order_acquire)) {
        if (pthread_mutex_trylock(&t->one)) continue;
        if (!atomic_load_explicit(&t->arrived[part], memory_order_acquire)) hl_cuda_got(t->c, (int)part);
        atomic_store_explicit(&t->arrived[part], true, memory_order_release);
        pthread_mutex_unlock(&t->one);
    }
    t->row(t->ctx, i, t->c->stage + part * HL_STAGE_PART + i % t->rows * t->each);
}
static bool dev_stream_rows(struct hl_backend *b, const void *from, int64_t each, int64_t n,
                            void (*row)(void *, int64_t, const void *), void *ctx) {
    struct streaming t = {.c = b->device, .each = each, .row = row, .ctx = ctx};
    t.rows = HL_STAGE_PART / (each > 0 ? each : 1);
    if (t.rows < 1 || hl_pieces(n, t.rows) > HL_PARTS) return false;
    hl_cuda_stage(t.c, 0);
    if (!t.c->stage) return false;
    pthread_mutex_init(&t.one, NULL);
    for (int i = 0; i < hl_pieces(n, t.rows); i++) {
        const int64_t some = n - i * t.rows < t.rows ? n - i * t.rows : t.rows;
        hl_cuda_get(t.c, t.c->stage + i * HL_STAGE_PART, (const char *)from + i * t.rows * each, some * each, i);
    }
    hl_pool_run(b->pool, n, stream_row, &t);
    pthread_mutex_destroy(&t.one);
    return true;
}
static hola_status dev_status(struct hl_backend *b) {
    struct hl_cuda *c = b->device;
    const hola_status s = c->failure;
    c->failure = HOLA_OK;
    return s == HOLA_OK ? s : hl_fail(s, "%s", c->message);
}
static hola_status dev_finish(struct hl_backend *b) {
    hl_cuda_wait(b->device);
    return dev_status(b);
}

/* ---- the rows of a pass ---- */

/* Carves n items of `size` bytes out of the block; *dev is their address on the device. */
static void *carve(struct hl_cuda *c, int64_t *at, int64_t n, int64_t size, const void **dev) {
    void *host = c->rows_host ? c->rows_host + *at : NULL;
    if (c->rows_dev) *dev = c->rows_dev + *at;
    *at += (n * size + 255) / 256 * 256;
    return host;
}

static void cut_segment(const struct hl_seg *s, int32_t index, int64_t C, struct hl_dev_span *chunk, int64_t *chunks,
                        struct hl_dev_span *block, int64_t *blocks) {
    for (int64_t r = 0; r < s->len; r += HL_CHUNK) {
        const int64_t left = s->len - r;
        chunk[(*chunks)++] = (struct hl_dev_span){
            .row = (int32_t)(s->row + r), .len = (int32_t)(left < HL_CHUNK ? left : HL_CHUNK), .seg = index};
    }
    for (int64_t r = 0; r < s->len;) {
        const int64_t skip = (s->pos + r) % C, left = s->len - r;
        const int64_t len = left < C - skip ? left : C - skip;
        block[(*blocks)++] = (struct hl_dev_span){
            .row = (int32_t)(s->row + r), .len = (int32_t)len, .seg = index, .skip = (int32_t)skip};
        r += len;
    }
}

/* The longest work starts first: later queries have more keys before them, and earlier keys more queries after them. */
static int by_skip(const void *a, const void *b) {
    const struct hl_dev_span *x = a, *y = b;
    return x->skip != y->skip ? (x->skip < y->skip) - (x->skip > y->skip) : (x->row > y->row) - (x->row < y->row);
}
static void cut_tiles(const struct hl_rows *rows, int64_t size, bool keys, struct hl_dev_span *tile) {
    enum { GROUP_ROWS = 16384 }; /* of keys: float gradients of this many queries about fit in a 50 MB cache */
    struct hl_dev_span *to = tile, *group = tile;
    int64_t n = 0;
    for (int64_t i = 0; i < rows->n; i++) {
        const struct hl_seg *s = &rows->seg[i];
        for (int64_t r = 0; r < s->len; r += size)
            *to++ = (struct hl_dev_span){.row = (int32_t)(s->row + r),
                                         .len = (int32_t)(s->len - r < size ? s->len - r : size),
                                         .seg = (int32_t)i,
                                         .skip = (int32_t)(keys ? s->len - r : s->pos + r)};
        n += s->len;
        if ((!keys || n < GROUP_ROWS) && i + 1 < rows->n) continue;
        qsort(group, (size_t)(to - group), sizeof *group, by_skip);
        n = 0, group = to;
    }
    for (; keys && tile < to; tile++) {
        const struct hl_seg *s = &rows->seg[tile->seg];
        tile->skip = (int32_t)(s->pos + tile->row - s->row);
    }
}
static int64_t pages_of(const struct hl_rows *rows, int64_t i) {
    const struct hl_seg *s = &rows->seg[i];
    return rows->pages && rows->pages[i] && s->state ? hl_pieces(s->pos + s->len, HL_PAGE_TOKENS) : 0;
}

static hola_status dev_cut_rows(struct hl_backend *b, struct hl_rows *rows, int64_t C) {
    struct hl_cuda *c = b->device;
    struct hl_dev_rows *d = &c->rows;
    const int64_t n = rows->n;
    struct hl_seg *seg = NULL;
    int32_t *row_seg = NULL, *chunk_first = NULL, *block_first = NULL;
    struct hl_dev_span *chunk = NULL, *block = NULL, *tile = NULL, *wide_tile = NULL, *key_tile = NULL;
    int32_t *page_first = NULL, *zeros = NULL;
    const char **page = NULL;
    int64_t at = 0, pages = 0;
    if (C < 1) C = INT32_MAX;
    d->chunks = hl_chunks_before(rows, n);
    d->blocks = hl_blocks_before(rows, n, C);
    d->tiles = d->wide_tiles = 0;
    for (int64_t i = 0; i < n; i++) {
        if (rows->tiled) d->tiles += hl_pieces(rows->seg[i].len, HL_TILE);
        if (rows->tiled) d->wide_tiles += hl_pieces(rows->seg[i].len, HL_WIDE_TILE);
        pages += pages_of(rows, i);
    }
    for (int place = 0; place < 2; place++) { /* first counts, then offsets */
        at = 0;
        seg = carve(c, &at, n, sizeof *seg, (const void **)&d->seg);
        row_seg = carve(c, &at, rows->T, sizeof *row_seg, (const void **)&d->row_seg);
        chunk_first = carve(c, &at, n + 1, sizeof *chunk_first, (const void **)&d->chunk_first);
        block_first = carve(c, &at, n + 1, sizeof *block_first, (const void **)&d->block_first);
        chunk = carve(c, &at, d->chunks, sizeof *chunk, (const void **)&d->chunk);
        block = carve(c, &at, d->blocks, sizeof *block, (const void **)&d->block);
        tile = carve(c, &at, d->tiles, sizeof *tile, (const void **)&d->tile);
        wide_tile = carve(c, &at, d->wide_tiles, sizeof *wide_tile, (const void **)&d->wide_tile);
        key_tile = carve(c, &at, d->tiles, sizeof *key_tile, (const void **)&d->key_tile);
        zeros = carve(c, &at, rows->tiled ? n * HL_ZEROS : 0, sizeof *zeros, (const void **)&d->zeros);
        page_first = carve(c, &at, n + 1, sizeof *page_first, (const void **)&d->page_first);
        page = carve(c, &at, pages, sizeof *page, (const void **)&d->page);
        if (place == 0 && at > c->rows_room) {
            hl_cuda_wait(c);
            hl_cuda_free(c, c->rows_dev);
            hl_cuda_free_host(c, c->rows_host);
            c->rows_room = 0;
            const int64_t room = pages ? 2 * at : at; /* headroom, so that growing sessions do not move the tables with
                                                       * every page */
            c->rows_dev = hl_cuda_malloc(c, room);
            c->rows_host = hl_cuda_malloc_host(c, room);
            if (!c->rows_dev || !c->rows_host)
                return hl_fail(HOLA_ENOMEM, "device memory: no memory for a table of %lld rows", (long long)rows->T);
            c->rows_room = room;
        }
    }
    hl_cuda_wait(c); /* the previous table may still be in flight */
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
    if (rows->tiled) {
        cut_tiles(rows, HL_TILE, false, tile);
        cut_tiles(rows, HL_WIDE_TILE, false, wide_tile);
        cut_tiles(rows, HL_TILE, true, key_tile);
        memset(zeros, 0, (size_t)(n * HL_ZEROS) * sizeof *zeros);
    }
    pages = 0;
    for (int64_t i = 0; i < n; i++) {
        page_first[i] = (int32_t)pages;
        for (int64_t p = 0; p < pages_of(rows, i); p++) page[pages++] = rows->pages[i][p];
    }
    page_first[n] = (int32_t)pages;
    hl_cuda_memcpy(c, c->rows_dev, c->rows_host, at, HL_TO_DEVICE);
    rows->dev = d;
    return HOLA_OK;
}

/* ---- graphs, collectives ---- */

static bool dev_replay(struct hl_backend *b, uint64_t key) { return hl_cuda_replay(b->device, key); }
static void dev_free_memory(struct hl_backend *b, int64_t *free_bytes, int64_t *used) {
    hl_cuda_free_memory(b->device, free_bytes, used);
}
static void dev_recorded(struct hl_backend *b, uint64_t key) { hl_cuda_recorded(b->device, key); }

static hola_status dev_link(struct hl_backend *b, int rank, int size, void (*broadcast)(void *, int64_t)) {
    return hl_cuda_link(b->device, rank, size, broadcast);
}
static void dev_reduce(struct hl_backend *b, real *x, int64_t first, int64_t n, int64_t part) {
    hl_cuda_reduce(b->device, x, first, n, part);
}
static void dev_reduced(struct hl_backend *b) { hl_cuda_reduced(b->device); }
static void dev_share(struct hl_backend *b, void *block, int64_t bytes) { hl_cuda_share(b->device, block, bytes); }

struct hl_cuda *hl_cuda_of(const struct hl_backend *b) {
    return b->device;
}

/* ---- FP8 ---- */

static hola_status dev_fp8_open(struct hl_backend *b, const struct hl_fp8_sizes *s) {
    (void)s; /* room is made when it is needed */
    return hl_cuda_fp8_open(b->device);
}
static void dev_fp8_close(struct hl_backend *b) { hl_cuda_fp8_close(b->device); }
static void dev_fp8_stale(struct hl_backend *b) { ((struct hl_cuda *)b->device)->fp8_step++; }
static int64_t dev_fp8_refused(struct hl_backend *b) { return ((struct hl_cuda *)b->device)->fp8_refused; }
/* Both forms of all weights; those of the gradients of a call, and one of its x. A scale is at least for 128 numbers,
 * but for small matrices. */
static int64_t dev_fp8_bytes(const struct hl_fp8_sizes *s) {
    const int64_t codes = 2 * s->weights + 3 * s->tokens * s->wide;
    return codes + codes / HL_FP8_BLOCK * (int64_t)sizeof(float);
}
static const struct hl_fp8_products fp8 = {.open = dev_fp8_open,
                                           .close = dev_fp8_close,
                                           .stale = dev_fp8_stale,
                                           .refused = dev_fp8_refused,
                                           .bytes = dev_fp8_bytes};

static const struct hl_storage storage = {.alloc = dev_alloc,
                                          .release = dev_release,
                                          .zero = dev_zero,
                                          .copy = dev_copy,
                                          .copy_strided = dev_copy_strided,
                                          .put = dev_put,
                                          .get = dev_get,
                                          .finish = dev_finish,
                                          .status = dev_status,
                                          .cut_rows = dev_cut_rows,
                                          .free_memory = dev_free_memory,
                                          .stream_rows = dev_stream_rows};
static const struct hl_collectives collectives = {
    .link = dev_link, .reduce = dev_reduce, .reduced = dev_reduced, .share = dev_share};

hola_status hl_cuda_backend_open(struct hl_backend *b, int index, bool f32) {
    struct hl_cuda *c = NULL;
    hola_status s = hl_cuda_open(&c, index);
    if (s != HOLA_OK) return s;
    b->ops = f32 ? hl_cuda_f32_ops : hl_cuda_ops;
    b->storage = storage;
    b->graphs = (struct hl_graphs){.replay = dev_replay, .recorded = dev_recorded};
    b->collectives = &collectives;
    b->fp8 = &fp8;
    b->kda_kept = f32 ? NULL : hl_cuda_kda_kept;
    b->device = c;
    b->close = (void (*)(void *))hl_cuda_close;
    b->act_size = f32 ? 4 : 2;
    b->xent_rows = HL_XENT_ROWS_CUDA;
    return HOLA_OK;
}
