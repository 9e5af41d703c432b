/* sequences.h -- many sequences in one pass without padding, for scoring thousands of short texts.
 *
 * A feed is the next tokens of a sequence, to be fed or scored. Feeds are split into pieces counted from their own
 * first token, and pieces are packed into passes, so a sequence's result does not depend on the others (on the CPU: bit
 * for bit). */
#ifndef HL_SEQUENCES_H
#define HL_SEQUENCES_H
#include "model/model.h"

struct hl_sequence {
    int64_t pos; /* tokens fed */
    struct hl_state state;
};
struct hl_sequences {
    hola_model *model;
    struct hl_sequence *sequence;
    int64_t n;
};
/* Up to `most` sequences; fewer, but at least one, if memory is short. */
hola_status hl_sequences_new(struct hl_sequences *out, hola_model *m, int64_t most);
void hl_sequences_free(struct hl_sequences *q);
void hl_sequence_reset(const struct hl_sequences *q, int64_t i);
hola_status hl_sequence_copy(const struct hl_sequences *q, int64_t to, int64_t from);

struct hl_feed {
    int64_t sequence;
    const int32_t *ids, *next; /* next NULL: feed only; next[i] < 0: not scored, logprob 0 */
    int64_t n;
    double *logprob; /* [n]: log p(next[i] | all up to ids[i]) */
    bool *correct;   /* [n]: whether next[i] is the most likely token (ties: the lowest id) */
    float *logits;   /* when feeding: [vocab_size] after the last token; NULL: not wanted */
};
/* Either all feeds are scored or none; at most one per sequence. */
hola_status hl_sequences_run(const struct hl_sequences *q, const struct hl_feed *f, int64_t n);

#endif
