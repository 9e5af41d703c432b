/* hash.c -- see hash.h: four lanes of multiply and rotate, so that memory is the bottleneck, not the multiplier. */
#include "core/hash.h"
#include <string.h>

enum { LANES = 4 };
static const uint64_t odd[LANES] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0x165667b19e3779f9u, 0x27d4eb2f165667c5u};

static uint64_t turn(uint64_t x, int by) { return x << by | x >> (64 - by); }

uint64_t hl_hash(uint64_t before, const void *data, int64_t n) {
    const unsigned char *p = data;
    uint64_t lane[LANES], word[LANES], h = hl_hash_mix(before + (uint64_t)n);
    int64_t left = n;
    for (int i = 0; i < LANES; i++) lane[i] = h + odd[i];
    for (; left >= (int64_t)sizeof word; left -= (int64_t)sizeof word, p += sizeof word) {
        memcpy(word, p, sizeof word);
        for (int i = 0; i < LANES; i++) lane[i] = turn(lane[i] ^ word[i] * odd[i], 29) * odd[0];
    }
    memset(word, 0, sizeof word);
    if (left > 0) memcpy(word, p, (size_t)left);
    for (int i = 0; i < LANES; i++) h = hl_hash_mix(h ^ hl_hash_mix(lane[i] ^ word[i] * odd[i]));
    return h;
}
