/* spm.h -- what a SentencePiece model (tokenizer.model) holds. */
#ifndef HL_SPM_H
#define HL_SPM_H
#include "tokenizer/tokenizer.h"

struct hl_spm_text { /* in the file */
    const char *data;
    int64_t len;
};
struct hl_spm {
    const char *path;
    float *score; /* [pieces], malloced */
    int64_t model_type;
    struct hl_spm_text bos, eos; /* the names of these pieces */
    bool byte_fallback, suffix, add_prefix, squeeze, escape;
};

/* Reads all fields, and into t->bpe.piece the pieces, whose texts are in the file. m->score is to be freed, and t by the
 * caller, after a failure too. */
hola_status hl_spm_parse(struct hl_spm *m, hola_tokenizer *t, const char *data, int64_t size, const char *path);
/* The control piece of this name; -1: none. */
int32_t hl_spm_control(const struct hl_bpe *b, const struct hl_spm_text *name);

#endif
