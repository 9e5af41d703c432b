/* fuzz_shard.c -- any bytes as a token shard: refused with a message, or every token can be read, and the ids
 * are below the vocabulary where they were said to be. */
#include "mutate.h"
#include "data/shard.h"

enum { VOCAB = 300 };

static struct seed seed_at(size_t i) {
    static char file[3][HL_SHARD_HEADER + 64];
    static const int32_t head[3][3] = {{20240520, 1, 24}, {20240801, 7, 16}, {20240520, 1, 0}};
    size_t bytes = i < 3 ? (size_t)head[i][2] * (i == 1 ? 4 : 2) : 0;
    if (i >= 3) return (struct seed){NULL, 0};
    memcpy(file[i], head[i], sizeof head[i]);
    for (size_t k = 0; k < bytes; k++) file[i][HL_SHARD_HEADER + k] = (char)(k % (i == 1 ? 4 : 2) ? 0 : k);
    return (struct seed){file[i], HL_SHARD_HEADER + bytes};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct hl_shard s;
    hola_status status = hl_shard_parse(&s, data, (int64_t)size, "f");
    if (status != HOLA_OK) {
        MUST(status == HOLA_EFORMAT && !s.path && strncmp(hola_last_error(), "f: ", 3) == 0);
        return 0;
    }
    MUST(s.n >= 0 && (s.width == 2 || s.width == 4));
    MUST((size_t)s.n * (size_t)s.width + HL_SHARD_HEADER == size);
    int32_t *ids = malloc((size_t)s.n * sizeof *ids + 1);
    MUST(ids);
    status = hl_shard_read(&s, 0, s.n, VOCAB, ids);
    MUST(status == hl_shard_verify(&s, VOCAB));
    MUST(status == HOLA_OK || strncmp(hola_last_error(), "f: token ", 9) == 0);
    for (int64_t i = 0; i < s.n && status == HOLA_OK; i++) MUST(ids[i] >= 0 && ids[i] < VOCAB);
    if (hl_shard_read(&s, s.n / 2, s.n - s.n / 2, 0, ids) == HOLA_OK)
        for (int64_t i = 0; i < s.n - s.n / 2; i++) MUST(ids[i] >= 0);
    free(ids);
    hl_shard_close(&s);
    return 0;
}
