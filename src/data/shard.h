/* shard.h -- token shards in llm.c's format: 256 little-endian int32 (magic, version, token count, zeros), then the
 * tokens: uint16 (magic 20240520, version 1) or, for vocabularies over 65,536, uint32 (20240801, 7).
 *
 * A shard of conversations also records which tokens are trained and where conversations begin. It has its own magic,
 * so that it is never trained on as plain text: 20261118, version 1, count, bytes per token (2 or 4), checksum (two
 * int32), zeros; the tokens; ceil(count / 8) bytes with one bit per token, lowest first, for trained tokens; the same
 * for tokens that begin a conversation. */
#ifndef HL_SHARD_H
#define HL_SHARD_H
#include "core/file.h"
#include "core/text.h"

enum { HL_SHARD_HEADER = 1024, HL_SHARD_VOCAB16 = 65536 };

/* One mapped file. Opening checks magic, version, the count against the file's size, and the checksum if there is
 * one. */
struct hl_shard {
    char *path;
    struct hl_map map;                     /* empty: the caller owns the bytes (hl_shard_parse) */
    const unsigned char *data;             /* the first token */
    int64_t n;                             /* tokens */
    int width;                             /* bytes per token: 2 or 4 */
    const unsigned char *trained, *begins; /* bit arrays; NULL: a shard of text */
};
enum { HL_TOKEN_TRAINED = 1, HL_TOKEN_BEGINS = 2 }; /* flags of a token */
hola_status hl_shard_open(struct hl_shard *s, const char *path);
hola_status hl_shard_parse(struct hl_shard *s, const void *bytes, int64_t size, const char *path); /* borrows bytes */
void hl_shard_close(struct hl_shard *s);                                                           /* also accepts a
                                                                                                    * zeroed one */
/* Tokens [at, at + count). vocab > 0: an id >= vocab is an error that names the file and position. */
hola_status hl_shard_read(const struct hl_shard *s, int64_t at, int64_t count, int64_t vocab, int32_t *out);
/* The flags of tokens [at, at + count); the shard must have flags. */
void hl_shard_flags(const struct hl_shard *s, int64_t at, int64_t count, uint8_t *out);
/* Checks every token of the file like hl_shard_read. */
hola_status hl_shard_verify(const struct hl_shard *s, int64_t vocab);

/* DIR/NAME_000000.bin, DIR/NAME_000001.bin, ...: a new file every shard_tokens tokens, each written atomically. If
 * nothing is written there is no file. */
struct hl_shards {
    char *dir, *name;
    int64_t shard_tokens;
    int width;
    int64_t tokens, files; /* tokens written so far; files in place */
    int64_t in_file;       /* tokens in the open file */
    bool keep;             /* hl_shards_free leaves the files in place; set by the caller */
    struct hl_writer file;
    bool flagged;                   /* shards of conversations; set by the caller before the first token */
    struct hl_text trained, begins; /* bits for the open file */
    uint64_t sum;
};
hola_status hl_shards_begin(struct hl_shards *w, const char *dir, const char *name, int64_t vocab,
                            int64_t shard_tokens);
/* flags: one per token for shards of conversations, else NULL. */
hola_status hl_shards_write(struct hl_shards *w, const int32_t *ids, const uint8_t *flags, int64_t n);
hola_status hl_shards_end(struct hl_shards *w); /* finishes the last file */
/* Unless keep is set, removes the files this writer put in place. Also accepts a zeroed one. */
void hl_shards_free(struct hl_shards *w);

#endif
