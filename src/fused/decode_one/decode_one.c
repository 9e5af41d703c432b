/* decode_one.c -- see decode.h: which models the op takes, and how it lays out its memory. */
#include "fused/decode_one/decode_one.h"

enum {
    SHARED = 226 << 10,
    MOST_DEPTH = 32,
    LEAST_DEPTH = 4,
    FLIGHT = 32 << 10, /* bytes: what keeps memory busy; more would only queue up, with the words behind */
    MOST_CHUNK = 32 * HL_DECODE_STEPS * HL_DECODE_WARPS
};

struct hl_decode_words hl_decode_words(const struct hl_decode *a) {
    const int64_t qk = a->H * a->K, vv = a->HV * a->V;
    struct hl_decode_words w = {0};
    w.ab = w.in + qk + (a->gated ? vv : vv / 2);
    w.z = w.ab + 2 * a->HV;
    w.o = w.z + a->HV * ((a->window + a->chunk + 1) / 2 * 2);
    w.h = w.o + vv / 2;
    w.x = w.h + a->d / 2;
    w.act = w.x + a->d / 2;
    w.row = (w.act + a->I / 2 + 15) / 16 * 16;
    w.scores = 16 + w.row * HL_DECODE_ONE_ROWS * HL_DECODE_LAPS; /* 16: the counter's line */
    w.all = w.scores + a->L * HL_DECODE_ONE_ROWS * a->HV * (a->V / HL_DECODE_COLS);
    return w;
}

int64_t hl_decode_one_bytes(const struct hl_decode *a) { return hl_decode_words(a).all * 8; }

static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

/* The next n bytes. */
static int32_t cut(int64_t *used, int64_t n) {
    const int64_t at = *used;
    *used += (n + 127) / 128 * 128;
    return (int32_t)at;
}

/* Rows of weights lie half a line of banks apart, so that 8 lanes read two of them without a conflict. */
struct hl_decode_shared hl_decode_shared(const struct hl_decode *a) {
    const int64_t M = a->rows->T, vv = a->HV * a->V, slots = a->cache ? a->window + a->chunk : 0;
    struct hl_decode_shared s = {0};
    int64_t used = 0;
    s.chunk = (int32_t)((max(a->d, vv) + 63) / 64 * 64);
    s.each = (s.chunk / 32 + HL_DECODE_WARPS - 1) / HL_DECODE_WARPS;
    s.stride = 2 * s.chunk + 64;
    s.layers = cut(&used, a->L * (int64_t)sizeof(struct hl_decode_layer));
    s.seg = cut(&used, M * (int64_t)sizeof(struct hl_seg));
    s.filled = cut(&used, M * 8);
    s.id = cut(&used, HL_DECODE_WARPS * 4);
    s.scalars = cut(&used, a->L * a->HV * 5 * 4);
    s.sums = cut(&used, 2 * HL_DECODE_BATCH * HL_DECODE_WARPS * 8 * 4);
    s.squares = cut(&used, 2 * M * HL_DECODE_WARPS * 4);
    s.parts = cut(&used, M * (vv / 32) * 4);
    s.small = cut(&used, HL_DECODE_SMALL * 4);
    s.S = cut(&used, a->K * HL_DECODE_COLS * 4);
    s.v = cut(&used, slots * HL_DECODE_COLS * 2);
    s.k = cut(&used, slots ? 2 * HL_DECODE_WARPS * a->K * 2 : 0);
    s.barrier = cut(&used, (MOST_DEPTH * 3 + 2) * 8);
    s.ring = (int32_t)used;
    s.depth = used < SHARED ? (int32_t)((SHARED - used) / (8 * s.stride)) : 0;
    if (s.depth > MOST_DEPTH) s.depth = MOST_DEPTH;
    s.flight = (int32_t)max(2, FLIGHT / (8 * s.chunk));
    s.bytes = (int32_t)used + s.depth * 8 * s.stride;
    return s;
}

bool hl_decode_one_takes(const struct hl_decode *a) {
    const int64_t ab = (a->decay ? a->HV : 0) + (a->beta ? a->HV : 0);
    const bool heads = a->K % 32 == 0 && a->K <= 256 && a->V % 32 == 0 && a->V <= 512;
    const int64_t chunk = max(a->d, a->HV * a->V);
    const bool widths =
        a->d % 64 == 0 && a->I % 32 == 0 && chunk <= MOST_CHUNK && a->I <= HL_DECODE_CHUNKS * a->d;
    if (!heads || !widths || a->conv != 4 || a->L > 128 || a->rows->T > HL_DECODE_ONE_ROWS) return false;
    if (a->cache && (a->window + a->chunk > 512 || a->policy.moves_with_reads)) return false;
    if (a->gated && ab % 2) return false; /* the gate's outputs go in pairs */
    return a->L * a->HV <= 4096 && hl_decode_shared(a).depth >= LEAST_DEPTH;
}
