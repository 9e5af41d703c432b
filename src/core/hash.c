/* hash.c -- see hash.h: four lanes of multiply and rotate, so that memory is the bottleneck, not the multiplier. */
#include "core/hash.h"
#include <string.h>

enum { LANES = HL_HASH_LANES };
static const uint64_t odd[LANES] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0x165667b19e3779f9u, 0x27d4eb2f165667c5u};

static uint64_t turn(uint64_t x, int by) { return x << by | x >> (64 - by); }

void hl_hash_begin(struct hl_hash_run *r, uint64_t before, int64_t n) {
    *r = (struct hl_hash_run){.start = hl_hash_mix(before + (uint64_t)n)};
    for (int i = 0; i < LANES; i++) r->lane[i] = r->start + odd[i];
}

void hl_hash_add(struct hl_hash_run *r, const void *data, int64_t n) {
    const unsigned char *p = data;
    uint64_t lane[LANES], word[LANES];
    memcpy(lane, r->lane, sizeof lane);
    for (; n >= HL_HASH_STEP; n -= HL_HASH_STEP, p += HL_HASH_STEP) {
        memcpy(word, p, sizeof word);
        for (int i = 0; i < LANES; i++) lane[i] = turn(lane[i] ^ word[i] * odd[i], 29) * odd[0];
    }
    memcpy(r->lane, lane, sizeof lane);
    if (n > 0) memcpy(r->tail, p, (size_t)n);
}

uint64_t hl_hash_end(const struct hl_hash_run *r) {
    uint64_t h = r->start;
    for (int i = 0; i < LANES; i++) h = hl_hash_mix(h ^ hl_hash_mix(r->lane[i] ^ r->tail[i] * odd[i]));
    return h;
}

uint64_t hl_hash(uint64_t before, const void *data, int64_t n) {
    struct hl_hash_run r;
    hl_hash_begin(&r, before, n);
    hl_hash_add(&r, data, n);
    return hl_hash_end(&r);
}
