/* sample.h -- sampling a token from logits: penalty, top-k, top-p, min-p, temperature, in this order. */
#ifndef HL_SAMPLE_H
#define HL_SAMPLE_H
#include "core/status.h"
#include "ops/topk/topk.h"

hola_status hl_sampling_check(const hola_sampling *p);
/* Checks and copies a caller's struct of any size; NULL: the defaults. */
hola_status hl_sampling_take(hola_sampling *to, const hola_sampling *p);
/* u: a uniform number in [0, 1). Equal logits are ordered by id. work: room for vocab. */
int32_t hl_sample(const float *logits, int64_t vocab, const hola_sampling *p, const int32_t *recent, int64_t n_recent,
                  double u, struct hl_candidate *work);

/* The most candidates that sampling can need, largest first; 0: all. */
int64_t hl_sample_needs(const hola_sampling *p);
/* The same choice from that many candidates, sorted; modifies them. */
int32_t hl_sample_few(struct hl_candidate *c, int64_t n, const hola_sampling *p, const int32_t *recent,
                      int64_t n_recent, double u);

#endif
