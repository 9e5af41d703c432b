/* rows.h -- which rows of a batch belong together, and the weights ops read.
 *
 * Activations are [T][channels] with the rows of all sequences one after another, never padded. A
 * segment is a run of rows of one sequence: a document in training, a prompt piece or a single token
 * in a session. Ops that look along a sequence (convolution, delta rule, cache) walk the segments. */
#ifndef HL_ROWS_H
#define HL_ROWS_H
#include "core/real.h"
#include "core/status.h"

enum {
    HL_CHUNK = 64,             /* rows of one chunk of the chunked delta rule */
    HL_STEP_ROWS = HOLA_STEPS, /* rows of a session's segment up to which a CPU computes token by token */
    HL_FEW = 12,               /* rows of a session's segment up to which kernels may go row by row */
    HL_PAGE_TOKENS = 256       /* tokens of a page of state that grows with the position */
};

struct hl_seg {
    int64_t row, len; /* rows [row, row+len) of the batch */
    int64_t pos;      /* tokens of this sequence before them: the absolute block grid */
    char *state;      /* the session's state block; NULL: starts empty (pos = 0), nothing kept */
};

struct hl_dev_rows;
struct hl_rows {
    int64_t T, n; /* rows, segments */
    const struct hl_seg *seg;
    const struct hl_dev_rows *dev; /* the same cut up on a device (cuda/cuda.h); NULL on the CPU */
    bool tiled;                    /* attention and rotary positions walk them: a device also cuts them into tiles */
    char *const *const *pages;     /* [n]: each session's pages, on the host; NULL: no part of the state grows */
    /* Cut by a device itself (ops/raw): seg is NULL, and a state on 16 bytes is there for all segments or for none.
     * ragged: dev's chunks and blocks are bounds, spans past the last have no rows, segments may have none, and longest
     * is a guess. */
    bool on_device, states, ragged;
};

/* The next piece of a session's call with `left` tokens to go; most: a multiple of HL_CHUNK. On a CPU a cut after whole
 * chunks changes no bit, unless it leaves so few rows that they go one by one, which rounds differently: then the piece
 * is a chunk shorter, or, if it has but one, takes them too. */
static inline int64_t hl_piece(int64_t left, int64_t most) {
    if (left <= most) return left;
    if (left - most > HL_FEW) return most;
    return most > HL_CHUNK ? most - HL_CHUNK : left;
}

/* Segments are cut into pieces of `size` rows on the grid of absolute positions of each segment's own
 * first row (chunks of the delta rule) or of the sequence (blocks of the cache). */
static inline int64_t hl_pieces(int64_t len, int64_t size) { return (len + size - 1) / size; }
static inline int64_t hl_seg_blocks(const struct hl_seg *s, int64_t C) {
    return (s->pos + s->len - 1) / C - s->pos / C + 1;
}
/* Sums over the segments before i (i = n: all of them). */
static inline int64_t hl_chunks_before(const struct hl_rows *r, int64_t i) {
    int64_t n = 0;
    for (int64_t s = 0; s < i; s++) n += hl_pieces(r->seg[s].len, HL_CHUNK);
    return n;
}
static inline int64_t hl_blocks_before(const struct hl_rows *r, int64_t i, int64_t C) {
    int64_t n = 0;
    for (int64_t s = 0; s < i; s++) n += hl_seg_blocks(&r->seg[s], C);
    return n;
}

/* A power of two, at least 2048, that no position of these rows reaches: work recorded for it serves all of them. */
static inline int64_t hl_rows_reach(const struct hl_rows *r) {
    int64_t reach = 2048;
    for (int64_t i = 0; i < r->n; i++)
        while (r->seg[i].pos + r->seg[i].len > reach) reach *= 2;
    return reach;
}

/* A matrix [rows][cols] as stored: plain rows of `real`, or panels for inference: 32 rows interleaved,
 * element (i, j) at ((i / 32) * cols + j) * 32 + i % 32 in dtype, rows past the end zero. A panel feeds
 * the matrix product without packing, and makes one row's result the same in a batch of any size. */
enum { HL_PANEL = 32 };
enum hl_layout { HL_ROWS, HL_PANELS };
struct hl_weight {
    const void *data;
    enum hl_layout layout; /* HL_ROWS: dtype is that of `real` on the CPU, of the activations on a GPU */
    hola_dtype dtype;
    int64_t rows, cols;
    bool fp8; /* its products are computed in FP8 where their sizes fit (ops/linear/fp8.h); plain rows alone */
};

#endif
