/* decode_one.c -- see decode_one.h: the supported sizes and the memory layout. */
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
    const int64_t pairs_of_z = a->rule == HL_DECODE_KDA ? a->low / 2 : a->gated ? vv / 2 : 0;
    w.z = w.in + qk + vv / 2 + (a->low + a->HV * a->slots) / 2 + pairs_of_z;
    w.ab = w.z + (a->rule == HL_DECODE_KDA ? vv / 2 : 0);
    w.logits = w.ab + 2 * a->HV;
    w.o = w.logits + a->HV * ((a->window + a->chunk + a->slots + 1) / 2 * 2 + a->splits * (a->V + 2));
    w.h = w.o + vv / 2;
    w.x = w.h + a->d / 2;
    w.act = w.x + a->d / 2;
    w.row = (w.act + a->I / 2 + 15) / 16 * 16;
    w.scores = 16 + w.row * HL_DECODE_ONE_ROWS * HL_DECODE_LAYER_BUFFERS; /* 16: the header's words */
    w.pages = w.scores + a->L * HL_DECODE_ONE_ROWS * a->HV * (a->V / HL_DECODE_COLS);
    w.all = w.pages + (a->splits ? HL_DECODE_ONE_ROWS * HL_DECODE_PAGES : 0);
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

/* Each row of weights is offset by 64 bytes in the banks from the previous one, so that 8 lanes read two rows without a
 * bank conflict. */
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
    s.slot_values = cut(&c, a->slots * HL_DECODE_COLS * 4);
    s.reads = cut(&c, a->splits ? HL_DECODE_WARPS * (HL_DECODE_ATTENTION_D + 2) * 4 : 0);
    if (a->low > 0) {
        s.alpha = cut(&c, (a->K + 2 * a->low + HL_DECODE_COLS) * 4);
        s.decay_rows = cut(&c, a->K * (a->low + HL_DECODE_PAD) * 2);
        s.z_rows = cut(&c, a->rule == HL_DECODE_KDA ? HL_DECODE_COLS * a->low * 2 : 0);
    }
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
    if (!heads || !widths || a->L > 128 || a->rows->T > HL_DECODE_ONE_ROWS) return false;
    const bool conv = a->rule == HL_DECODE_DELTA || a->rule == HL_DECODE_KDA;
    if (a->conv != (conv ? 4 : 0)) return false;
    if (a->rule == HL_DECODE_KDA && (a->low % 32 || a->low > 256)) return false;
    if (a->rule == HL_DECODE_GLA && a->low != 16) return false;
    if (a->rule == HL_DECODE_GSA && (a->slots != HL_DECODE_SLOTS || a->HV * a->V != a->d)) return false;
    if (a->cache && (a->window + a->chunk > 512 || !hl_policy_is_plain(&a->policy))) return false;
    if (a->rule == HL_DECODE_ATTENTION) {
        if ((a->V != 64 && a->V != 128) || a->HV * a->V != a->d) return false;
        for (int64_t i = 0; i < a->rows->T; i++)
            if (a->rows->seg[i].pos >= (int64_t)HL_DECODE_PAGES * HL_PAGE_TOKENS) return false;
    }
    if (a->gated && a->rule == HL_DECODE_DELTA && ab % 2) return false; /* z is published in pairs of rows */
    return a->L * a->HV <= 4096 && hl_decode_shared(a).depth >= MIN_DEPTH;
}
