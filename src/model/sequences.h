/* sequences.h -- many sequences in one pass, never padded: what scoring thousands of short texts needs.
 *
 * A feed is the next tokens of a sequence, fed or scored. Feeds are cut into pieces from their own first token on, and
 * pieces share passes as they fit, so what a sequence gets does not depend on the others (on the CPU: to the bit). */
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
/* Up to `most` sequences, fewer (but one) where memory is short. */
hola_status hl_sequences_new(struct hl_sequences *out, hola_model *m, int64_t most);
void hl_sequences_free(struct hl_sequences *q);
void hl_sequence_reset(const struct hl_sequences *q, int64_t i);
hola_status hl_sequence_copy(const struct hl_sequences *q, int64_t to, int64_t from);

struct hl_feed {
    int64_t sequence;
    const int32_t *ids, *next; /* next NULL: fed only; next[i] < 0: not asked, logprob 0 */
    int64_t n;
    double *logprob; /* [n]: log p(next[i] | all up to ids[i]) */
    bool *correct;   /* [n]: whether next[i] is the most likely token there, the lowest id of equals */
    float *logits;   /* of what is fed: [vocab_size] after its last token; NULL: not asked */
};
/* All fed, or all scored; no two of one sequence. */
hola_status hl_sequences_run(const struct hl_sequences *q, const struct hl_feed *f, int64_t n);

#endif
