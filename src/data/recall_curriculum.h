/* recall_curriculum.h -- learning to recall: the batches of a short training.
 *
 * The curriculum goes from few facts to many and from near to far. A sequence has 2, 4, 8, .. up to most_facts facts,
 * each number equally often; the larger numbers join one after another during the first two thirds of the training.
 * Half of the sequences ask at once (a distance of 0 to 4), so that a model finds out what to do; the others after
 * up to `task.distance` tokens, a limit that is reached after an eighth of the training. Between the facts stands as
 * much filler as there are facts, if task.length has room for it.
 * Only the answers are learnt: nothing else can be predicted but the filler. */
#ifndef HL_RECALL_CURRICULUM_H
#define HL_RECALL_CURRICULUM_H
#include "data/recall.h"

struct hl_recall_curriculum {
    struct hl_recall task; /* task.length: of the longest sequence; task.queries: the most questions of one */
    int64_t most_facts;
    int64_t steps, batch_tokens;
    uint64_t seed;
};
hola_status hl_recall_curriculum_check(const struct hl_recall_curriculum *c);

/* Documents one after another, as a trainer takes them. */
struct hl_recall_batch {
    int32_t *ids;
    uint8_t *mask;
    int64_t *starts;
    int64_t tokens, documents, answers;
};
hola_status hl_recall_batch_new(struct hl_recall_batch *b, const struct hl_recall_curriculum *c);
void hl_recall_batch_free(struct hl_recall_batch *b);
/* The batch of step 0, 1, ..: the same for every model. */
hola_status hl_recall_batch_make(struct hl_recall_batch *b, const struct hl_recall_curriculum *c, int64_t step);

#endif
