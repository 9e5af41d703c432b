/* fuzz_shard.c -- any bytes as a token shard: refused with a message, or every token can be read, and the ids
 * are below the vocabulary where they were said to be. */
#define _GNU_SOURCE
#include "mutate.h"
#include "data/shard.h"
#include <unistd.h>

enum { VOCAB = 300 };

/* A shard of conversations, whose checksum is right. */
static struct seed talk(void) {
    static char file[HL_SHARD_HEADER + 2 * 21 + 2 * 3];
    struct hl_shards w;
    char dir[] = "/tmp/hola-fuzz-XXXXXX", path[64];
    int32_t ids[21];
    uint8_t flags[21];
    if (file[0]) return (struct seed){file, sizeof file};
    for (int k = 0; k < 21; k++) ids[k] = 3 * k, flags[k] = (uint8_t)(k % 4);
    MUST(mkdtemp(dir) && hl_shards_begin(&w, dir, "train", VOCAB, 100) == HOLA_OK);
    w.flagged = true;
    MUST(hl_shards_write(&w, ids, flags, 21) == HOLA_OK && hl_shards_end(&w) == HOLA_OK);
    snprintf(path, sizeof path, "%s/train_000000.bin", dir);
    FILE *f = fopen(path, "rb");
    MUST(f && fread(file, 1, sizeof file, f) == sizeof file && fgetc(f) == EOF);
    fclose(f);
    hl_shards_free(&w);
    rmdir(dir);
    return (struct seed){file, sizeof file};
}

static struct seed seed_at(size_t i) {
    static char file[3][HL_SHARD_HEADER + 64];
    static const int32_t head[3][3] = {{20240520, 1, 24}, {20240801, 7, 16}, {20240520, 1, 0}};
    size_t bytes = i < 3 ? (size_t)head[i][2] * (i == 1 ? 4 : 2) : 0;
    if (i == 3) return talk();
    if (i > 3) return (struct seed){NULL, 0};
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
    MUST((size_t)s.n * (size_t)s.width + HL_SHARD_HEADER + (s.trained ? 2 * (((size_t)s.n + 7) / 8) : 0) == size);
    int32_t *ids = malloc((size_t)s.n * sizeof *ids + 1);
    MUST(ids);
    status = hl_shard_read(&s, 0, s.n, VOCAB, ids);
    MUST(status == hl_shard_verify(&s, VOCAB));
    MUST(status == HOLA_OK || strncmp(hola_last_error(), "f: token ", 9) == 0);
    for (int64_t i = 0; i < s.n && status == HOLA_OK; i++) MUST(ids[i] >= 0 && ids[i] < VOCAB);
    if (hl_shard_read(&s, s.n / 2, s.n - s.n / 2, 0, ids) == HOLA_OK)
        for (int64_t i = 0; i < s.n - s.n / 2; i++) MUST(ids[i] >= 0);
    uint8_t *flags = malloc((size_t)s.n + 1);
    MUST(flags);
    if (s.trained) hl_shard_flags(&s, 0, s.n, flags);
    for (int64_t i = 0; s.trained && i < s.n; i++) MUST(flags[i] <= (HL_TOKEN_TRAINED | HL_TOKEN_BEGINS));
    free(flags);
    free(ids);
    hl_shard_close(&s);
    return 0;
}
