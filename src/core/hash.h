/* hash.h -- a fast 64-bit checksum of bytes: detects corruption, not tampering. */
#ifndef HL_HASH_H
#define HL_HASH_H
#include <stdint.h>

static inline uint64_t hl_hash_mix(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}
/* Hashes n bytes, continuing from a previous result. */
uint64_t hl_hash(uint64_t before, const void *data, int64_t n);

#endif
