/* sample.h -- the choice of a token from its logits: penalty, top-k, top-p, min-p, temperature, in this order. */
#ifndef HL_SAMPLE_H
#define HL_SAMPLE_H
#include "core/status.h"
#include "ops/topk/topk.h"

hola_status hl_sampling_check(const hola_sampling *p);
/* A caller's, of any size, checked; NULL: the default. */
hola_status hl_sampling_take(hola_sampling *to, const hola_sampling *p);
/* u: a number in [0, 1) that decides. Equal logits stand in the order of their ids. work: room for vocab. */
int32_t hl_sample(const float *logits, int64_t vocab, const hola_sampling *p, const int32_t *recent, int64_t n_recent,
                  double u, struct hl_candidate *work);

/* How many of the largest logits the choice needs, at most; 0: all. */
int64_t hl_sample_needs(const hola_sampling *p);
/* The same choice from so many, in order; they change. */
int32_t hl_sample_few(struct hl_candidate *c, int64_t n, const hola_sampling *p, const int32_t *recent,
                      int64_t n_recent, double u);

#endif
