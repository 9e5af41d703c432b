/* mqar_numpy.h -- the very examples of zoology's multiquery_ar(seed=..). The
 * task and its settings are data/mqar.h's, which has random numbers of its own, example by example; here a
 * set is made whole, from numpy's stream: all keys, then all values, then all places. */
#ifndef HL_MQAR_NUMPY_H
#define HL_MQAR_NUMPY_H
#include "data/mqar.h"

/* inputs, labels [examples][length]. Where m->random_non_queries, the tokens between the queries are those of
 * torch.randint after torch.manual_seed(torch_seed). m->answers must be false. */
hola_status hl_mqar_numpy_make(const struct hl_mqar *m, uint32_t seed, uint32_t torch_seed, int64_t examples,
                               int32_t *inputs, int32_t *labels);

#endif
