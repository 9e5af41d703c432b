/* sha256.h -- SHA-256 (FIPS 180-4) of files and texts, as 64 hex digits. */
#ifndef HL_SHA256_H
#define HL_SHA256_H
#include "core/status.h"

struct hl_sha256 {
    uint32_t h[8];
    uint64_t bytes;
    unsigned char block[64];
};
void hl_sha256_begin(struct hl_sha256 *s);
void hl_sha256_add(struct hl_sha256 *s, const void *data, int64_t n);
void hl_sha256_end(struct hl_sha256 *s, char hex[65]);
/* Adds the contents of a file. */
hola_status hl_sha256_file(struct hl_sha256 *s, const char *path);

#endif
