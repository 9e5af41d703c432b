/* rows.h -- how the rows of a batch form sequences, and the weights that ops read.
 *
 * Activations are [T][channels] with the rows of all sequences one after another, never padded. A segment is a run of
 * rows of one sequence: a document in training, a prompt piece or a single token in a session. Ops along a sequence
 * (convolution, delta rule, cache) iterate over the segments. */
#ifndef HL_ROWS_H
#define HL_ROWS_H
#include "core/real.h"
#include "core/status.h"

enum {
    HL_CHUNK = 64,             /* rows per chunk of the chunked delta rule */
    HL_STEP_ROWS = HOLA_STEPS, /* a CPU computes session segments up to this long token by token */
    HL_DRAFT_ROWS = 32,        /* a device checks a draft in a pass of this many rows, one of them or more unused */
    HL_FEW = 12,               /* kernels may process session segments up to this long row by row */
    HL_PAGE_TOKENS = 256       /* tokens per page of a growing state */
};

struct hl_seg {
    int64_t row, len; /* rows [row, row+len) of the batch */
    int64_t pos;      /* tokens of this sequence before them; blocks start at absolute positions */
    char *state;      /* the session's state block; NULL: starts empty (pos = 0), nothing is kept */
};

struct hl_dev_rows;
struct hl_rows {
    int64_t T, n; /* rows, segments */
    const struct hl_seg *seg;
    const struct hl_dev_rows *dev; /* the same, split up on a device (cuda/cuda.h); NULL on the CPU */
    bool tiled;                    /* used by attention and rotary positions: a device also splits them into tiles */
    char *const *const *pages;     /* [n]: each session's pages, on the host; NULL: the state has no growing part */
    /* Split by the device (ops/raw): seg is NULL, and all segments or none have a (16-byte aligned) state. ragged:
     * dev's chunks and blocks are upper bounds, spans past the last are empty, segments may be empty, and longest is an
     * estimate. */
    bool on_device, states, ragged;
};

/* The size of the next piece of a session's call with `left` tokens remaining; most: a multiple of HL_CHUNK. On a CPU,
 * splitting after whole chunks changes no bit, unless so few rows remain that they run one by one, which rounds
 * differently: then the piece is a chunk shorter, or, if it is a single chunk, includes them. */
static inline int64_t hl_piece(int64_t left, int64_t most) {
    if (left <= most) return left;
    if (left - most > HL_FEW) return most;
    return most > HL_CHUNK ? most - HL_CHUNK : left;
}

/* Segments are split into pieces of `size` rows, aligned to each segment's first row (chunks of the delta rule) or to
 * absolute positions of the sequence (blocks of the cache). */
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

/* A power of two, at least 2048, greater than all positions of these rows: a graph captured for it serves all of
 * them. */
static inline int64_t hl_rows_reach(const struct hl_rows *r) {
    int64_t reach = 2048;
    for (int64_t i = 0; i < r->n; i++)
        while (r->seg[i].pos + r->seg[i].len > reach) reach *= 2;
    return reach;
}

/* A matrix [rows][cols] as stored: plain rows of `real`, or panels for inference: 32 rows interleaved, element (i, j)
 * at ((i / 32) * cols + j) * 32 + i % 32 in dtype, rows past the end zero. A panel feeds the matrix product without
 * packing, and a row's result is the same in a batch of any size. */
enum { HL_PANEL = 32 };
enum hl_layout { HL_ROWS, HL_PANELS };
struct hl_weight {
    const void *data;
    enum hl_layout layout; /* HL_ROWS: dtype is that of `real` on the CPU, of the activations on a GPU */
    hola_dtype dtype;
    int64_t rows, cols;
    /* of its products. FP8: where their sizes fit (ops/linear/fp8.h), plain rows alone. BF16: on the CPU (bf16.h there),
     * unless quantised */
    hola_precision precision;
};

#endif
