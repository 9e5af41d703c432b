/* tokenizer.h -- shared by the tokenizer's files: pieces, the merge model, the encoding steps.
 *
 * A text goes through the same steps for every tokenizer file format:
 *   1. added tokens (user-defined pieces) are cut out, each the leftmost and longest;
 *   2. the text between them is rewritten (normalised) where the file asks for more than ' ' -> U+2581;
 *   3. it is split into words: by the file's pattern, or where no merge can cross (bpe.h);
 *   4. each word is merged by byte pair encoding, or found in a cache of words merged before.
 * Steps 3 and 4 run on blocks of the text, many at a time. */
#ifndef HL_TOKENIZER_H
#define HL_TOKENIZER_H
#include "core/text.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalise.h"

enum hl_piece_type {                /* with SentencePiece's numbers */
                     HL_PIECE_NONE, /* an unused id */
                     HL_PIECE_NORMAL,
                     HL_PIECE_UNKNOWN,
                     HL_PIECE_CONTROL, /* special: never in a text, no bytes when decoded */
                     HL_PIECE_USER,    /* an added token that is part of the text */
                     HL_PIECE_UNUSED,
                     HL_PIECE_BYTE
};

/* Strings to search for in a text; see tokenizer_added.c. */
struct hl_added {
    struct hl_added_token {
        char *text;
        int32_t len, id;
        bool lstrip, rstrip, single_word;
    } * token; /* by first byte, then longest first */
    int64_t n;
    int64_t first[257]; /* index of the first token that starts with a byte */
};
hola_status hl_added_put(struct hl_added *a, const char *text, int64_t len, int32_t id);
void hl_added_sort(struct hl_added *a); /* after the last put */
void hl_added_free(struct hl_added *a);
/* Finds the first token in text[from..len): true, with its bounds (including stripped spaces). */
struct hl_found {
    int64_t begin, end;
    int32_t id;
};
bool hl_added_find(const struct hl_added *a, const char *text, int64_t len, int64_t from, struct hl_found *f);

enum hl_prefix { /* a space put before a text or segment of it */
                 HL_PREFIX_NONE,
                 HL_PREFIX_FIRST,    /* before the text's first segment, if it has no leading space */
                 HL_PREFIX_UNSPACED, /* before every segment without a leading space */
                 HL_PREFIX_ALWAYS    /* before every segment */
};

enum hl_decoding {
    HL_DECODE_BYTES,     /* pieces are bytes */
    HL_DECODE_SPM,       /* U+2581 is a space; the first one is dropped as in SentencePiece */
    HL_DECODE_STRIP,     /* U+2581 is a space; drops one leading space */
    HL_DECODE_METASPACE, /* U+2581 is a space; drops those of the first piece */
    HL_DECODE_SPACES     /* U+2581 is a space; all stay */
};

struct hola_tokenizer {
    int64_t size;
    int32_t bos, eos;
    struct hl_bpe bpe;
    struct hl_caches *caches;
    struct hl_added raw;        /* searched in the original text */
    struct hl_added normalised; /* searched after rewriting */
    enum hl_prefix prefix;
    struct hl_normaliser normaliser; /* step 2 copies the text; empty if one of the two options below suffices */
    bool continuing;                 /* the text continues another: nothing is prepended */
    bool rewrite;                    /* step 2 copies the text: spaces become U+2581 */
    bool squeeze;                    /* SentencePiece's remove_extra_whitespaces */
    bool fuse_unknown;               /* a run of unknown tokens is one, across words */
    enum hl_decoding decoder;
    char *added_store;  /* the texts of added tokens */
    char *unknown_text; /* decoded text of the unknown piece; NULL: its own text */
    bool plain_bytes;   /* the tokenizer "byte" */
};

/* The text of n ids into *out, and where in it the text of the last one begins. */
hola_status hl_tokenizer_decode_last(const hola_tokenizer *t, const int32_t *ids, int64_t n, struct hl_text *out,
                                     int64_t *last);

/* Fill the zeroed *t from a file's contents; path is for messages. On failure the caller frees t. */
hola_status hl_spm_read(hola_tokenizer *t, const char *data, int64_t size, const char *path);
hola_status hl_tokenizer_json_read(hola_tokenizer *t, const char *data, int64_t size, const char *path);

/* The tokenizer file for a path, malloced; NULL: no memory. */
char *hl_tokenizer_file(const char *path);
bool hl_is_tokenizer_json(const char *data, int64_t size);

/* A shallow copy of t (free() it) for texts that continue another: no space is prepended. NULL: no memory. */
hola_tokenizer *hl_tokenizer_continuing(const hola_tokenizer *t);

/* Step 2 for one segment; *out must be empty. */
hola_status hl_tokenizer_rewrite(const hola_tokenizer *t, const char *text, int64_t len, struct hl_text *out);

/* Memory that encoding keeps from one text to the next, one part per thread. */
hola_status hl_caches_new(struct hl_caches **out);
void hl_caches_free(struct hl_caches *c);

#endif
