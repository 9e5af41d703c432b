/* normalise.h -- the normalizer of a tokenizer.json: steps that rewrite a text before it is split into words.
 *
 * The four normalization forms follow Unicode 9, like Hugging Face tokenizers: characters of later versions are left
 * unchanged. Invalid UTF-8 bytes stay, and nothing is composed or reordered across them. */
#ifndef HL_NORMALISE_H
#define HL_NORMALISE_H
#include "core/text.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pretoken.h"

enum hl_step_kind {
    HL_NFC,
    HL_NFD,
    HL_NFKC,
    HL_NFKD,
    HL_LOWERCASE,
    HL_STRIP_ACCENTS,
    HL_STRIP,
    HL_REPLACE,
    HL_PREPEND
};
struct hl_step {
    enum hl_step_kind kind;
    bool left, right;     /* STRIP */
    struct hl_cuts *what; /* REPLACE: one pattern */
    char *text;           /* REPLACE: the replacement; PREPEND */
    int64_t len;
};
enum { HL_STEPS = 16 };
struct hl_normaliser {
    struct hl_step step[HL_STEPS];
    int n;
    struct hl_forms *forms; /* if a step needs them */
};

/* Prepares the steps, after the last has been added. */
hola_status hl_normaliser_finish(struct hl_normaliser *n);
void hl_normaliser_free(struct hl_normaliser *n);
/* Runs a text through all steps. *out must be empty; false in *changed: the text is unchanged and *out is not set.
 * continuing: the text continues another, so nothing is prepended or stripped at its start. */
hola_status hl_normalise(const struct hl_normaliser *n, bool continuing, const char *text, int64_t len,
                         struct hl_text *out, bool *changed);

/* ---- normalise_table.c ---- */

/* Decompositions, compositions and small letters, from the tables. */
struct hl_forms {
    struct hl_table canonical, compatible, composed, lower;
};
hola_status hl_forms_new(struct hl_forms **out);
void hl_forms_free(struct hl_forms *f);
enum { HL_MOST_PARTS = 18 }; /* of one character in one step */
/* One step of a character's decomposition; 0: it has none. */
int hl_decompose(const struct hl_forms *f, uint32_t c, bool compatible, uint32_t part[HL_MOST_PARTS]);
uint32_t hl_compose(const struct hl_forms *f, uint32_t a, uint32_t b); /* 0: they do not compose */
int hl_combining(uint32_t c);                                          /* the canonical combining class */
uint32_t hl_lower(const struct hl_forms *f, uint32_t c);

#endif
