/* probe.h -- pass keys hidden in filler and queried by teacher forcing: one key at a depth (PK), or several keys, one
 * of which is asked for (MK). Everything depends on the tokenizer alone: fixed seeds and texts.
 *
 *   PK  HEAD G..G "The pass key is 78967. ..." G..G "What is the pass key? The pass key is" " 78967"
 *   MK  HEAD G.. "The pass key for river is 27390." G.. .. "What is the pass key for river? .. is" " 27390"
 *
 * with as many lines of filler G as fit the length, including BOS and answer. */
#ifndef HL_PROBE_H
#define HL_PROBE_H
#include "core/status.h"

enum { HL_PROBE_DEPTHS = 5, HL_PROBE_SAMPLES = 100, HL_PROBE_CONTEXTS = 50, HL_PROBE_WORDS = 32 };
extern const double hl_probe_depth[HL_PROBE_DEPTHS]; /* 0.1 0.3 0.5 0.7 0.9 */

struct hl_probe {
    int32_t *ids; /* BOS if the tokenizer has one, text, answer */
    int64_t n;
    int64_t answer;         /* ids[answer..n) are the answer: each is predicted from all tokens before it */
    bool *digit;            /* [n - answer]: the token contains digits and counts; others do not */
    int64_t key;            /* the number asked for */
    const char *word;       /* MK: the name of the key; static */
    int64_t fillers, place; /* lines of filler, total and before the fact */
};
/* Sample `sample` at depth `depth` of hl_probe_depth in `length` tokens. fillers: NULL, or a guess of the number of
 * lines that fit, replaced with the actual one: saves time, does not affect the result. */
hola_status hl_probe_pk(struct hl_probe *out, const hola_tokenizer *t, int64_t length, int depth, int64_t sample,
                        int64_t *fillers);
/* Context `sample` with `keys` (1 to 32) facts, and its `keys` questions: out [keys]. */
hola_status hl_probe_mk(struct hl_probe *out, const hola_tokenizer *t, int64_t length, int keys, int64_t sample,
                        int64_t *fillers);
void hl_probe_free(struct hl_probe *p); /* frees its contents; also accepts zeroed ones */

struct hl_probe_tally {
    int64_t samples, exact;       /* exact: all digits right */
    int64_t digits, digits_right; /* the accuracy to report */
    int64_t tokens, tokens_right; /* including tokens without digits */
};
/* Adds one sample: argmax[i] is the most likely token at the position of ids[answer + i]. */
void hl_probe_score(const struct hl_probe *p, const int32_t *argmax, struct hl_probe_tally *tally);

#endif
