/* prepare_out.h -- prepare's output directory: documents in; splits, shards and dataset.json out. */
#ifndef HL_PREPARE_OUT_H
#define HL_PREPARE_OUT_H
#include "core/json.h"
#include "data/prepare.h"
#include "data/shard.h"

struct hl_out {
    const struct hl_prepare_opts *opts;
    struct hl_prepare_result *result;
    int32_t front;                  /* token before every document; -1: none */
    char *tokenizer;                /* the file to copy; NULL: none */
    const char *called;             /* the tokenizer's name in dataset.json; NULL: none */
    const struct hl_template *look; /* template whose file is copied too; NULL: none */
    bool flagged;                   /* conversations */

    bool started, made_dir, done;
    int lock; /* lock of the directory; -1 before it is taken */
    struct hl_shards shards[HL_SPLITS];
    struct hl_document {
        int32_t *ids;
        uint8_t *flags; /* of conversations */
        int64_t n, bytes;
    } last; /* held back: it may become val */
    bool copied, copied_look;
};

/* Checks whether the directory may be written, without changing anything. */
hola_status hl_out_check(const struct hl_prepare_opts *o);
/* Adds a document; takes ownership of its ids and flags. The first one creates the directory. */
hola_status hl_out_add(struct hl_out *w, struct hl_document *d);
/* Puts the last document, the shards and dataset.json in place; `about` has more fields for it. */
hola_status hl_out_end(struct hl_out *w, json_t *about);
/* Removes everything written unless hl_out_end succeeded. */
void hl_out_free(struct hl_out *w);

#endif
