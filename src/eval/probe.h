/* probe.h -- pass keys hidden in filler, asked for by teacher forcing: one key at a depth (PK), several keys
 * one of which is asked for (MK). Nothing of it depends on anything but the tokenizer: own seeds, own texts.
 *
 *   PK  HEAD G..G "The pass key is 78967. ..." G..G "What is the pass key? The pass key is" " 78967"
 *   MK  HEAD G.. "The pass key for river is 27390." G.. .. "What is the pass key for river? .. is" " 27390"
 *
 * with as many lines of filler G as fit the length, BOS and answer included. */
#ifndef HL_PROBE_H
#define HL_PROBE_H
#include "core/status.h"

enum { HL_PROBE_DEPTHS = 5, HL_PROBE_SAMPLES = 100, HL_PROBE_CONTEXTS = 50, HL_PROBE_WORDS = 32 };
extern const double hl_probe_depth[HL_PROBE_DEPTHS]; /* 0.1 0.3 0.5 0.7 0.9 */

struct hl_probe {
    int32_t *ids; /* BOS where the tokenizer has one, text, answer */
    int64_t n;
    int64_t answer;         /* ids[answer..n) are the answer: each is to be predicted from all before it */
    bool *digit;            /* [n - answer]: that token holds digits, and counts; the others come for free */
    int64_t key;            /* the number asked for */
    const char *word;       /* MK: whose; lent for ever */
    int64_t fillers, place; /* lines of filler; how many stand before the fact */
};
/* Sample `sample` at depth `depth` of hl_probe_depth in `length` tokens. fillers: NULL, or a guess of how
 * many lines fit, replaced by the number that did: saves time from sample to sample, changes nothing. */
hola_status hl_probe_pk(struct hl_probe *out, const hola_tokenizer *t, int64_t length, int depth, int64_t sample,
                        int64_t *fillers);
/* Context `sample` with `keys` (1 to 32) facts, and its `keys` questions: out [keys]. */
hola_status hl_probe_mk(struct hl_probe *out, const hola_tokenizer *t, int64_t length, int keys, int64_t sample,
                        int64_t *fillers);
void hl_probe_free(struct hl_probe *p); /* what it holds; zeroed ones too */

struct hl_probe_tally {
    int64_t samples, exact;       /* exact: all digits right */
    int64_t digits, digits_right; /* the accuracy to report */
    int64_t tokens, tokens_right; /* tokens without digits included */
};
/* Adds one sample: argmax[i] is the likeliest token where ids[answer + i] stands. */
void hl_probe_score(const struct hl_probe *p, const int32_t *argmax, struct hl_probe_tally *tally);

#endif
