/* decode_one.c -- see decode_one.h: which sizes the kernel takes, and the layout of its memory. */
#include "fused/decode_one/decode_one.h"
#include "core/carve.h"

enum {
    SMEM_BYTES = 226 << 10,
    MAX_DEPTH = 32,
    MIN_DEPTH = 4,
    IN_FLIGHT = 32 << 10, /* bytes: enough to keep memory busy; words would queue behind more */
    MAX_WIDTH = 32 * HL_DECODE_STEPS * HL_DECODE_WARPS
};

struct hl_decode_words hl_decode_words(const struct hl_decode *a) {
    const int64_t qk = a->H * a->K, vv = a->HV * a->V;
    struct hl_decode_words w = {0};
    w.ab = w.in + qk + (a->gated ? vv : vv / 2);
    w.logits = w.ab + 2 * a->HV;
    w.o = w.logits + a->HV * ((a->window + a->chunk + 1) / 2 * 2);
    w.h = w.o + vv / 2;
    w.x = w.h + a->d / 2;
    w.act = w.x + a->d / 2;
    w.row = (w.act + a->I / 2 + 15) / 16 * 16;
    w.scores = 16 + w.row * HL_DECODE_ONE_ROWS * HL_DECODE_LAYER_BUFFERS; /* 16: the header's words */
    w.all = w.scores + a->L * HL_DECODE_ONE_ROWS * a->HV * (a->V / HL_DECODE_COLS);
    return w;
}

int64_t hl_decode_one_bytes(const struct hl_decode *a) { return hl_decode_words(a).all * 8; }

static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Reserves n bytes. */
static int32_t cut(struct hl_carve *c, int64_t n) {
    const int64_t at = c->used;
    hl_carve(c, n, 1);
    return (int32_t)at;
}

/* A row of weights starts 64 bytes further in the banks than the one before, so that 8 lanes read two of
 * them without a bank conflict. */
struct hl_decode_shared hl_decode_shared(const struct hl_decode *a) {
    const int64_t M = a->rows->T, vv = a->HV * a->V, slots = a->cache ? a->window + a->chunk : 0;
    struct hl_decode_shared s = {0};
    struct hl_carve c = {.align = 128};
    s.width = (int32_t)((max(a->d, vv) + 63) / 64 * 64);
    s.warp_steps = (s.width / 32 + HL_DECODE_WARPS - 1) / HL_DECODE_WARPS;
    s.stride = 2 * s.width + 64;
    s.layers = cut(&c, a->L * (int64_t)sizeof(struct hl_decode_layer));
    s.seg = cut(&c, M * (int64_t)sizeof(struct hl_seg));
    s.filled = cut(&c, M * 8);
    s.id = cut(&c, HL_DECODE_WARPS * 4);
    s.scalars = cut(&c, a->L * a->HV * 5 * 4);
    s.sums = cut(&c, 2 * HL_DECODE_UNITS * HL_DECODE_WARPS * 8 * 4);
    s.squares = cut(&c, 2 * M * HL_DECODE_WARPS * 4);
    s.parts = cut(&c, M * (vv / 32) * 4);
    s.scratch = cut(&c, HL_DECODE_SCRATCH * 4);
    s.S = cut(&c, a->K * HL_DECODE_COLS * 4);
    s.v = cut(&c, slots * HL_DECODE_COLS * 2);
    s.k = cut(&c, slots ? 2 * HL_DECODE_WARPS * a->K * 2 : 0);
    s.barrier = cut(&c, (MAX_DEPTH * 3 + 2) * 8);
    s.ring = (int32_t)c.used;
    s.depth = c.used < SMEM_BYTES ? (int32_t)((SMEM_BYTES - c.used) / (8 * s.stride)) : 0;
    if (s.depth > MAX_DEPTH) s.depth = MAX_DEPTH;
    s.in_flight = (int32_t)max(2, IN_FLIGHT / (8 * s.width));
    s.bytes = (int32_t)c.used + s.depth * 8 * s.stride;
    return s;
}

bool hl_decode_one_takes(const struct hl_decode *a) {
    const int64_t ab = (a->decay ? a->HV : 0) + (a->beta ? a->HV : 0);
    const bool heads = a->K % 32 == 0 && a->K <= 256 && a->V % 32 == 0 && a->V <= 512;
    const int64_t width = max(a->d, a->HV * a->V);
    const bool widths = a->d % 64 == 0 && a->I % 32 == 0 && width <= MAX_WIDTH && a->I <= HL_DECODE_PIECES * a->d;
    if (!heads || !widths || a->conv != 4 || a->L > 128 || a->rows->T > HL_DECODE_ONE_ROWS) return false;
    if (a->cache && (a->window + a->chunk > 512 || a->policy.moves_with_reads)) return false;
    if (a->gated && ab % 2) return false; /* z is published in pairs of rows */
    return a->L * a->HV <= 4096 && hl_decode_shared(a).depth >= MIN_DEPTH;
}
