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

/* The same in pieces: begin with the total, add pieces whose sizes are multiples of HL_HASH_STEP except the last. */
enum { HL_HASH_LANES = 4, HL_HASH_STEP = 8 * HL_HASH_LANES };
struct hl_hash_run {
    uint64_t start, lane[HL_HASH_LANES], tail[HL_HASH_LANES];
};
void hl_hash_begin(struct hl_hash_run *r, uint64_t before, int64_t n);
void hl_hash_add(struct hl_hash_run *r, const void *data, int64_t n);
uint64_t hl_hash_end(const struct hl_hash_run *r);

#endif
