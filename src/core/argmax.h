/* argmax.h -- argmax: the most likely token. */
#ifndef HL_ARGMAX_H
#define HL_ARGMAX_H
#include <stdint.h>

/* The index of the largest value; ties go to the first. */
static inline int64_t hl_argmax(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

#endif
