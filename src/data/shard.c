/* shard.c -- reading and writing token shards. */
#define _POSIX_C_SOURCE 200809L
#include "data/shard.h"
#include "core/hash.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* By width: the start of a header. */
static const struct {
    int32_t magic, version;
    int width;
} kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};
enum { FLAGGED_MAGIC = 20261118, FLAGGED_VERSION = 1 };

static uint32_t load32(const unsigned char *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static void store32(unsigned char *p, uint32_t x) {
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(x >> 8 * i);
}

/* ---- reading ---- */

static int64_t bytes_of_bits(int64_t n) { return (n + 7) / 8; }

/* Contribution of token i to the checksum: the sum is independent of how writes are split. */
static uint64_t sum_of(int64_t i, uint32_t id, uint32_t flags) {
    return hl_hash_mix(hl_hash_mix((uint64_t)i + 1) ^ ((uint64_t)id << 2 | flags));
}

static uint64_t checksum(const struct hl_shard *s) {
    uint64_t sum = (uint64_t)s->width;
    uint8_t flags[512];
    for (int64_t at = 0; at < s->n; at += 512) {
        const int64_t take = s->n - at < 512 ? s->n - at : 512;
        hl_shard_flags(s, at, take, flags);
        for (int64_t i = 0; i < take; i++) {
            const unsigned char *p = s->data + (at + i) * s->width;
            sum += sum_of(at + i, s->width == 2 ? (uint32_t)(p[0] | p[1] << 8) : load32(p), flags[i]);
        }
    }
    return sum;
}

/* The bits after the tokens, and the checksum of both. */
static hola_status parse_flags(struct hl_shard *s, const unsigned char *head) {
    const int64_t bits = bytes_of_bits(s->n);
    bool clean = true;
    s->trained = s->data + s->n * s->width;
    s->begins = s->trained + bits;
    for (int i = 24; i < HL_SHARD_HEADER; i++) clean &= head[i] == 0;
    if (s->n % 8) clean &= s->trained[bits - 1] >> s->n % 8 == 0 && s->begins[bits - 1] >> s->n % 8 == 0;
    const uint64_t sum = (uint64_t)load32(head + 20) << 32 | load32(head + 16);
    return clean && sum == checksum(s) ? HOLA_OK : hl_fail(HOLA_EFORMAT, "%s: damaged: its checksum differs", s->path);
}

static hola_status parse_header(struct hl_shard *s, const unsigned char *head, int64_t size) {
    int32_t magic, version, count;
    int64_t room;
    if (size < HL_SHARD_HEADER)
        return hl_fail(HOLA_EFORMAT, "%s: not a token shard: only %" PRId64 " bytes", s->path, size);
    magic = (int32_t)load32(head), version = (int32_t)load32(head + 4), count = (int32_t)load32(head + 8);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        if (magic == kinds[k].magic) {
            if (version != kinds[k].version)
                return hl_fail(HOLA_EFORMAT, "%s: token shard of version %d, not %d", s->path, (int)version,
                               (int)kinds[k].version);
            s->width = kinds[k].width;
        }
    if (magic == FLAGGED_MAGIC) {
        const uint32_t width = load32(head + 12);
        if (version != FLAGGED_VERSION)
            return hl_fail(HOLA_EFORMAT, "%s: shard of conversations of version %d, not %d", s->path, (int)version,
                           FLAGGED_VERSION);
        if (width != 2 && width != 4) return hl_fail(HOLA_EFORMAT, "%s: tokens of %u bytes", s->path, (unsigned)width);
        s->width = (int)width;
    }
    if (!s->width) return hl_fail(HOLA_EFORMAT, "%s: not a token shard: magic number %d", s->path, (int)magic);
    if (count < 0) return hl_fail(HOLA_EFORMAT, "%s: a count of %d tokens", s->path, (int)count);
    const int64_t flags = magic == FLAGGED_MAGIC ? 2 * bytes_of_bits(count) : 0;
    room = size - HL_SHARD_HEADER - flags;
    if (room < (int64_t)count * s->width)
        return hl_fail(HOLA_EFORMAT, "%s: truncated: %" PRId64 " of %d tokens are there", s->path,
                       room > 0 ? room / s->width : 0, (int)count);
    if (room != (int64_t)count * s->width)
        return hl_fail(HOLA_EFORMAT, "%s: %" PRId64 " bytes after the last of %d tokens", s->path,
                       room - (int64_t)count * s->width, (int)count);
    s->n = count;
    s->data = head + HL_SHARD_HEADER;
    return magic == FLAGGED_MAGIC ? parse_flags(s, head) : HOLA_OK;
}

hola_status hl_shard_parse(struct hl_shard *s, const void *bytes, int64_t size, const char *path) {
    hola_status status;
    *s = (struct hl_shard){.path = strdup(path)};
    if (!s->path) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    status = parse_header(s, bytes, size);
    if (status != HOLA_OK) hl_shard_close(s);
    return status;
}

hola_status hl_shard_open(struct hl_shard *s, const char *path) {
    struct hl_map map;
    hola_status status = hl_map_open(&map, path);
    *s = (struct hl_shard){0};
    if (status == HOLA_OK) status = hl_shard_parse(s, map.data, map.size, path);
    if (status == HOLA_OK) s->map = map;
    else hl_map_close(&map);
    return status;
}

void hl_shard_close(struct hl_shard *s) {
    hl_map_close(&s->map);
    free(s->path);
    *s = (struct hl_shard){0};
}

/* Widens ids and returns the largest, so that the loop has no branch. */
static uint32_t widen(const struct hl_shard *s, int64_t at, int64_t count, int32_t *out) {
    const unsigned char *p = s->data + at * s->width;
    uint32_t top = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t id = s->width == 2 ? (uint32_t)(p[2 * i] | p[2 * i + 1] << 8) : load32(p + 4 * i);
        top = id > top ? id : top;
        out[i] = (int32_t)id;
    }
    return top;
}

hola_status hl_shard_read(const struct hl_shard *s, int64_t at, int64_t count, int64_t vocab, int32_t *out) {
    int64_t limit = vocab > 0 && vocab < (int64_t)INT32_MAX + 1 ? vocab : (int64_t)INT32_MAX + 1, i = 0;
    HL_ASSERT(at >= 0 && count >= 0 && at <= s->n && count <= s->n - at);
    if (widen(s, at, count, out) < limit) return HOLA_OK;
    while ((uint32_t)out[i] < limit) i++;
    return hl_fail(HOLA_EFORMAT, "%s: token %" PRId64 " is %" PRIu32 ", not below the vocabulary of %" PRId64, s->path,
                   at + i, (uint32_t)out[i], limit);
}

void hl_shard_flags(const struct hl_shard *s, int64_t at, int64_t count, uint8_t *out) {
    HL_ASSERT(s->trained && at >= 0 && count >= 0 && at <= s->n && count <= s->n - at);
    for (int64_t i = at; i < at + count; i++) {
        const int trained = s->trained[i / 8] >> i % 8 & 1, begins = s->begins[i / 8] >> i % 8 & 1;
        *out++ = (uint8_t)(trained * HL_TOKEN_TRAINED | begins * HL_TOKEN_BEGINS);
    }
}

hola_status hl_shard_verify(const struct hl_shard *s, int64_t vocab) {
    int32_t ids[4096];
    hola_status status = HOLA_OK;
    for (int64_t at = 0; at < s->n && status == HOLA_OK; at += 4096)
        status = hl_shard_read(s, at, s->n - at < 4096 ? s->n - at : 4096, vocab, ids);
    return status;
}

/* ---- writing ---- */

static char *file_name(const struct hl_shards *w, int64_t i) {
    size_t room = strlen(w->name) + 32;
    char *name = malloc(room), *path = NULL;
    if (name) {
        snprintf(name, room, "%s_%06" PRId64 ".bin", w->name, i);
        path = hl_path_join(w->dir, name);
    }
    free(name);
    return path;
}

hola_status hl_shards_begin(struct hl_shards *w, const char *dir, const char *name, int64_t vocab,
                            int64_t shard_tokens) {
    HL_ASSERT(shard_tokens > 0 && shard_tokens <= INT32_MAX);
    *w = (struct hl_shards){.dir = strdup(dir), .name = strdup(name)};
    if (!w->dir || !w->name) {
        hl_shards_free(w);
        return hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
    }
    w->shard_tokens = shard_tokens;
    w->width = vocab > HL_SHARD_VOCAB16 ? 4 : 2;
    return HOLA_OK;
}

/* Rewrites the header with the final count, then renames the file. */
static hola_status finish_file(struct hl_shards *w) {
    unsigned char head[HL_SHARD_HEADER] = {0};
    hola_status s = HOLA_OK;
    int k = w->width == 4;
    store32(head, (uint32_t)(w->flagged ? FLAGGED_MAGIC : kinds[k].magic));
    store32(head + 4, (uint32_t)(w->flagged ? FLAGGED_VERSION : kinds[k].version));
    store32(head + 8, (uint32_t)w->in_file);
    if (w->flagged) {
        const uint64_t sum = w->sum + (uint64_t)w->width;
        store32(head + 12, (uint32_t)w->width);
        store32(head + 16, (uint32_t)sum), store32(head + 20, (uint32_t)(sum >> 32));
        s = hl_writer_write(&w->file, w->trained.data, w->trained.n);
        if (s == HOLA_OK) s = hl_writer_write(&w->file, w->begins.data, w->begins.n);
        w->trained.n = w->begins.n = 0;
        w->sum = 0;
        if (s != HOLA_OK) return s;
    }
    errno = EIO;
    if (fseek(w->file.f, 0, SEEK_SET) != 0)
        s = hl_fail(HOLA_EIO, "%s: cannot write: %s", w->file.path, strerror(errno));
    if (s == HOLA_OK) s = hl_writer_write(&w->file, head, sizeof head);
    if (s == HOLA_OK) s = hl_writer_commit(&w->file);
    hl_writer_abort(&w->file);
    if (s == HOLA_OK) w->files++;
    w->in_file = 0;
    return s;
}

static hola_status open_file(struct hl_shards *w) {
    static const char zeros[HL_SHARD_HEADER];
    char *path = file_name(w, w->files);
    hola_status s;
    if (!path) return hl_fail(HOLA_ENOMEM, "%s: no memory", w->dir);
    s = hl_writer_open(&w->file, path);
    if (s == HOLA_OK) s = hl_writer_write(&w->file, zeros, sizeof zeros);
    free(path);
    return s;
}

/* Adds the bits of n more tokens, and their part of the checksum. */
static hola_status put_flags(struct hl_shards *w, const int32_t *ids, const uint8_t *flags, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = w->in_file + i;
        if (at % 8 == 0 && (hl_text_put(&w->trained, "", 1) != HOLA_OK || hl_text_put(&w->begins, "", 1) != HOLA_OK))
            return hl_fail(HOLA_ENOMEM, "%s: no memory for the flags of %" PRId64 " tokens", w->dir, at);
        if (flags[i] & HL_TOKEN_TRAINED) w->trained.data[at / 8] = (char)(w->trained.data[at / 8] | 1 << at % 8);
        if (flags[i] & HL_TOKEN_BEGINS) w->begins.data[at / 8] = (char)(w->begins.data[at / 8] | 1 << at % 8);
        w->sum += sum_of(at, (uint32_t)ids[i], flags[i]);
    }
    return HOLA_OK;
}

/* Writes n ids, at most 4096, to the open file. */
static hola_status put(struct hl_shards *w, const int32_t *ids, const uint8_t *flags, int64_t n) {
    unsigned char bytes[4 * 4096];
    if (w->flagged) {
        const hola_status s = put_flags(w, ids, flags, n);
        if (s != HOLA_OK) return s;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)ids[i];
        if (ids[i] < 0 || (w->width == 2 && id >= HL_SHARD_VOCAB16))
            return hl_fail(HOLA_EINVAL, "%s: token id %d does not fit into its shards", w->dir, (int)ids[i]);
        if (w->width == 4) store32(bytes + 4 * i, id);
        else bytes[2 * i] = (unsigned char)id, bytes[2 * i + 1] = (unsigned char)(id >> 8);
    }
    return hl_writer_write(&w->file, bytes, n * w->width);
}

hola_status hl_shards_write(struct hl_shards *w, const int32_t *ids, const uint8_t *flags, int64_t n) {
    hola_status s = HOLA_OK;
    HL_ASSERT(w->flagged == (flags != NULL));
    while (n > 0 && s == HOLA_OK) {
        int64_t take = n < 4096 ? n : 4096, left;
        if (!w->file.f) s = open_file(w);
        if (s != HOLA_OK) break;
        left = w->shard_tokens - w->in_file;
        take = take < left ? take : left;
        s = put(w, ids, flags, take);
        if (s != HOLA_OK) break;
        ids += take, n -= take;
        if (flags) flags += take;
        w->tokens += take, w->in_file += take;
        if (w->in_file == w->shard_tokens) s = finish_file(w);
    }
    return s;
}

hola_status hl_shards_end(struct hl_shards *w) { return w->file.f ? finish_file(w) : HOLA_OK; }

void hl_shards_free(struct hl_shards *w) {
    hl_writer_abort(&w->file);
    for (int64_t i = 0; !w->keep && i < w->files; i++) {
        char *path = file_name(w, i);
        if (path) unlink(path);
        free(path);
    }
    hl_text_free(&w->trained);
    hl_text_free(&w->begins);
    free(w->dir);
    free(w->name);
    *w = (struct hl_shards){0};
}
