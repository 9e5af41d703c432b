/* shard.h -- token shards, llm.c's format: 256 little-endian int32 (magic, version, token count, zeros), then
 * the tokens: uint16 (magic 20240520, version 1) or, for vocabularies over 65,536, uint32 (20240801, 7).
 *
 * A shard of conversations also says which tokens are trained and where conversations begin. It has a magic of its own,
 * so that nothing trains on it as if it were text: 20261118, version 1, count, bytes of a token (2 or 4), checksum (two
 * int32), zeros; the tokens; ceil(count / 8) bytes with a bit for every token that is trained, the lowest first; the same
 * for those that begin a conversation. */
#ifndef HL_SHARD_H
#define HL_SHARD_H
#include "core/file.h"
#include "core/text.h"

enum { HL_SHARD_HEADER = 1024, HL_SHARD_VOCAB16 = 65536 };

/* One file, mapped. Magic, version, and the count against the file's size are checked when it is opened, and so is the
 * checksum of one that has it. */
struct hl_shard {
    char *path;
    struct hl_map map;                     /* empty: the bytes are lent (hl_shard_parse) */
    const unsigned char *data;             /* the first token */
    int64_t n;                             /* tokens */
    int width;                             /* bytes of a token: 2 or 4 */
    const unsigned char *trained, *begins; /* bits; NULL: a shard of text */
};
enum { HL_TOKEN_TRAINED = 1, HL_TOKEN_BEGINS = 2 }; /* flags of a token */
hola_status hl_shard_open(struct hl_shard *s, const char *path);
hola_status hl_shard_parse(struct hl_shard *s, const void *bytes, int64_t size, const char *path); /* lent */
void hl_shard_close(struct hl_shard *s);                                                           /* zeroed ones too */
/* Tokens [at, at + count). vocab > 0: an id that is not below it is an error that names file and place. */
hola_status hl_shard_read(const struct hl_shard *s, int64_t at, int64_t count, int64_t vocab, int32_t *out);
/* The flags of tokens [at, at + count) of a shard that has them. */
void hl_shard_flags(const struct hl_shard *s, int64_t at, int64_t count, uint8_t *out);
/* Every token of the file, as hl_shard_read checks it. */
hola_status hl_shard_verify(const struct hl_shard *s, int64_t vocab);

/* DIR/NAME_000000.bin, DIR/NAME_000001.bin, ...: a new file every shard_tokens tokens, each whole or not
 * there at all. Nothing written: no file. */
struct hl_shards {
    char *dir, *name;
    int64_t shard_tokens;
    int width;
    int64_t tokens, files; /* written so far; files that are in place */
    int64_t in_file;       /* tokens of the open one */
    bool keep;             /* hl_shards_free leaves the files in place; the caller sets it */
    struct hl_writer file;
    bool flagged;                   /* shards of conversations; the caller sets it before the first token */
    struct hl_text trained, begins; /* bits of the open file */
    uint64_t sum;
};
hola_status hl_shards_begin(struct hl_shards *w, const char *dir, const char *name, int64_t vocab,
                            int64_t shard_tokens);
/* flags: of each token, in shards of conversations; else NULL. */
hola_status hl_shards_write(struct hl_shards *w, const int32_t *ids, const uint8_t *flags, int64_t n);
hola_status hl_shards_end(struct hl_shards *w); /* the last file gets into place */
/* Unless keep is set, removes the files this writer put in place. Zeroed ones too. */
void hl_shards_free(struct hl_shards *w);

#endif
