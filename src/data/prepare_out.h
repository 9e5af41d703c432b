/* prepare_out.h -- the directory that prepare writes: documents in, splits, shards and dataset.json out. */
#ifndef HL_PREPARE_OUT_H
#define HL_PREPARE_OUT_H
#include "core/json.h"
#include "data/prepare.h"
#include "data/shard.h"

struct hl_out {
    const struct hl_prepare_opts *opts;
    struct hl_prepare_result *result;
    int32_t front;                  /* token put in front of every document; -1: none */
    char *tokenizer;                /* the file to copy; NULL: none */
    const char *called;             /* what dataset.json calls the tokenizer; NULL: none */
    const struct hl_template *look; /* whose file goes along; NULL: none */
    bool flagged;                   /* conversations */

    bool started, made_dir, done;
    int lock; /* the directory's; -1 before it is taken */
    struct hl_shards shards[HL_SPLITS];
    struct hl_document {
        int32_t *ids;
        uint8_t *flags; /* of conversations */
        int64_t n, bytes;
    } last; /* held back: it may have to be val */
    bool copied, copied_look;
};

/* Looks whether the directory may be written; changes nothing. */
hola_status hl_out_check(const struct hl_prepare_opts *o);
/* The next document; its ids and flags are taken over. The directory comes into being with the first one. */
hola_status hl_out_add(struct hl_out *w, struct hl_document *d);
/* Puts the last document, the shards and dataset.json in place; `about` holds further fields for it. */
hola_status hl_out_end(struct hl_out *w, json_t *about);
/* Without a hl_out_end that succeeded: removes what was written. */
void hl_out_free(struct hl_out *w);

#endif
