/* sha256.c -- see sha256.h. The constants are the first 32 bits of the fractional parts of the cube roots of the first
 * 64 primes, and, for the initial state, of the square roots of the first 8. */
#include "core/sha256.h"
#include "core/file.h"
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void take_block(uint32_t h[8], const unsigned char *p) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t x = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
        const uint32_t y = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + x + w[i - 7] + y;
    }
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], k = h[7];
    for (int i = 0; i < 64; i++) {
        const uint32_t s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25), s0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
        const uint32_t t1 = k + s1 + ((e & f) ^ (~e & g)) + round_constant[i] + w[i];
        const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        k = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e, h[5] += f, h[6] += g, h[7] += k;
}

static void take_plain(uint32_t h[8], const unsigned char *p, int64_t n) {
    for (; n > 0; n--, p += 64) take_block(h, p);
}

#if defined(__x86_64__)
/* The same with the processor's SHA instructions, five times as fast: a model of gigabytes is hashed while it is
 * read. */
__attribute__((target("sha,sse4.1"))) static void take_rounds(uint32_t h[8], const unsigned char *p, int64_t n) {
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i dcba = _mm_loadu_si128((const __m128i *)h), hgfe = _mm_loadu_si128((const __m128i *)(h + 4));
    const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    for (; n > 0; n--, p += 64) {
        const __m128i abef0 = abef, cdgh0 = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), order);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            const __m128i k = _mm_loadu_si128((const __m128i *)(round_constant + 4 * i)),
                          m = _mm_add_epi32(w[i % 4], k);
            const __m128i last = w[(i + 3) % 4];
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, m);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(m, 0x0e));
            if (i >= 12) continue;
            w[i % 4] =
                _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
            w[i % 4] = _mm_sha256msg2_epu32(w[i % 4], last);
        }
        abef = _mm_add_epi32(abef, abef0), cdgh = _mm_add_epi32(cdgh, cdgh0);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)h, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(h + 4), _mm_alignr_epi8(dchg, feba, 8));
}
static bool has_rounds(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}
#endif

static void take_blocks(uint32_t h[8], const unsigned char *p, int64_t n) {
#if defined(__x86_64__)
    if (has_rounds()) {
        take_rounds(h, p, n);
        return;
    }
#endif
    take_plain(h, p, n);
}

void hl_sha256_begin(struct hl_sha256 *s) {
    *s = (struct hl_sha256){
        .h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void hl_sha256_add(struct hl_sha256 *s, const void *data, int64_t n) {
    const unsigned char *p = data;
    int64_t held = (int64_t)(s->bytes % 64);
    s->bytes += (uint64_t)n;
    while (n > 0) {
        if (held == 0 && n >= 64) {
            take_blocks(s->h, p, n / 64);
            p += n / 64 * 64, n %= 64;
            continue;
        }
        const int64_t some = n < 64 - held ? n : 64 - held;
        memcpy(s->block + held, p, (size_t)some);
        p += some, n -= some, held += some;
        if (held == 64) take_blocks(s->h, s->block, 1), held = 0;
    }
}

void hl_sha256_end(struct hl_sha256 *s, char hex[65]) {
    const uint64_t bits = s->bytes * 8;
    unsigned char tail[8];
    hl_sha256_add(s, "\x80", 1);
    while (s->bytes % 64 != 56) hl_sha256_add(s, "", 1);
    for (int i = 0; i < 8; i++) tail[i] = (unsigned char)(bits >> (56 - 8 * i));
    hl_sha256_add(s, tail, 8);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", (unsigned)s->h[i]);
}

hola_status hl_sha256_file(struct hl_sha256 *s, const char *path) {
    struct hl_map m;
    hola_status st = hl_map_open(&m, path);
    if (st == HOLA_OK) hl_sha256_add(s, m.data, m.size);
    hl_map_close(&m);
    return st;
}
