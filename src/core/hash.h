/* hash.h -- a fast 64-bit checksum of bytes: against accidents, not against people. */
#ifndef HL_HASH_H
#define HL_HASH_H
#include <stdint.h>

static inline uint64_t hl_hash_mix(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}
/* Of n bytes, going on from another one's result. */
uint64_t hl_hash(uint64_t before, const void *data, int64_t n);

#endif
