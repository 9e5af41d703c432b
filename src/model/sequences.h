/* sequences.h -- many sequences in one pass, never padded: what scoring thousands of short texts needs.
 *
 * A lane is the state of one sequence. A stretch is the next tokens of a lane, fed or scored. Stretches
 * are cut into pieces from their own first token on, and pieces share passes as they fit, so what a lane
 * gets does not depend on the others (on the CPU: to the bit). */
#ifndef HL_LANES_H
#define HL_LANES_H
#include "model/model.h"

struct hl_sequence {
    int64_t pos; /* tokens fed */
    char *state; /* where the backend's arrays are */
};
struct hl_sequences {
    hola_model *model;
    struct hl_sequence *lane;
    int64_t n;
};
/* Up to `most` lanes, fewer (but one) where memory is short. */
hola_status hl_sequences_new(struct hl_sequences *out, hola_model *m, int64_t most);
void hl_sequences_free(struct hl_sequences *l);
void hl_sequence_reset(const struct hl_sequences *l, int64_t i);
void hl_sequence_copy(const struct hl_sequences *l, int64_t to, int64_t from);

struct hl_feed {
    int64_t lane;
    const int32_t *ids, *next; /* next NULL: fed only; next[i] < 0: not asked, logprob 0 */
    int64_t n;
    double *logprob; /* [n]: log p(next[i] | all up to ids[i]) */
    bool *top;       /* [n]: whether next[i] is the most likely token there, the lowest id of equals */
    float *logits;   /* of what is fed: [vocab_size] after its last token; NULL: not asked */
};
/* All stretches fed, or all scored; no two of one lane. */
hola_status hl_sequences_run(const struct hl_sequences *l, const struct hl_feed *s, int64_t n);

#endif
