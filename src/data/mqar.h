/* mqar.h -- multi-query associative recall as zoology generates it (data/multiquery_ar.py).
 *
 *   k1 v1 k2 v2 .. kD vD | slots of two tokens: a key from the first part, or nothing
 *
 * Keys are in [1, V/2), values in [V/2, V), D distinct ones of each. Every key is queried once, in one of the (N -
 * 2D)/2 slots; slot i = 1, 2, .. has weight i^(a-1), so queries cluster early. The label at a query is its value,
 * elsewhere HL_MQAR_NONE. The value itself is not in the input. */
#ifndef HL_MQAR_H
#define HL_MQAR_H
#include "core/status.h"

enum { HL_MQAR_NONE = -100 };

struct hl_mqar {
    int64_t vocab, length, pairs; /* V, N even, D; V > N and 4 D <= N */
    double power;                 /* a */
    bool random_non_queries;      /* replace zeros by uniform random tokens of [0, V) */
    bool answers;                 /* not in zoology: the value follows its query, for next-token training */
};
struct hl_mqar hl_mqar_default(void); /* 8192, 256, 16, 0.01, true, false */
hola_status hl_mqar_check(const struct hl_mqar *m);
/* Example `index` of a seed: inputs [length]; labels [length], or NULL. */
hola_status hl_mqar_make(const struct hl_mqar *m, uint64_t seed, int64_t index, int32_t *inputs, int32_t *labels);

#endif
