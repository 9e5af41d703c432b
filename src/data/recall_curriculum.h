/* recall_curriculum.h -- batches of a short training run on the recall task.
 *
 * The curriculum goes from few facts to many and from near to far. A sequence has 2, 4, 8, .. up to most_facts facts,
 * all equally often; the larger numbers are added one by one during the first two thirds of the training. Half of the
 * sequences query at once (a distance of 0 to 4), so that a model learns the task; the others after up to
 * `task.distance` tokens, a limit that is reached after an eighth of the training. The filler between facts is as long
 * as the facts, if task.length has room for it.
 * Only the answers are trained: apart from the filler, nothing else is predictable. */
#ifndef HL_RECALL_CURRICULUM_H
#define HL_RECALL_CURRICULUM_H
#include "data/recall.h"

struct hl_recall_curriculum {
    struct hl_recall task; /* task.length: of the longest sequence; task.queries: the most queries per sequence */
    int64_t most_facts;
    int64_t steps, batch_tokens;
    uint64_t seed;
};
hola_status hl_recall_curriculum_check(const struct hl_recall_curriculum *c);

/* Concatenated documents, as a trainer takes them. */
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
