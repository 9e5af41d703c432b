/* recall.h -- how well a model recalls facts (data/recall.h), and means with their errors. */
#ifndef HL_EVAL_RECALL_H
#define HL_EVAL_RECALL_H
#include "data/recall.h"

/* The fraction of right answers (argmax over all logits) per sample: out [samples]. */
hola_status hl_recall_measure(hola_model *m, const struct hl_recall *task, uint64_t seed, int64_t samples, double *out);

struct hl_mean {
    double mean, error; /* standard error of the mean */
};
struct hl_mean hl_mean(const double *x, int64_t n);
/* The same for x - y, paired by sample. */
struct hl_mean hl_mean_difference(const double *x, const double *y, int64_t n);

#endif
