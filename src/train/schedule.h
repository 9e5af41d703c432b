/* schedule.h -- the learning rate of each step.
 *
 * For step n of N, counted from 0, with warmup U: n < U: (n+1)/(U+1) of the peak; after that, with
 * p = (n+1-U)/(N-U+1) and floor f,
 *     cosine    f + (1-f) (1 + cos(pi p))/2
 *     linear    f + (1-f) (1 - p)
 *     constant  1
 *     wsd       1 until the last D steps, then f + (1-f) (1 - q), q = (n+1-(N-D))/(D+1) */
#ifndef HL_SCHEDULE_H
#define HL_SCHEDULE_H
#include <stdint.h>

enum hl_schedule_kind { HL_COSINE, HL_LINEAR, HL_CONSTANT, HL_WSD, HL_SCHEDULES };
extern const char *const hl_schedule_names[]; /* NULL-terminated */

struct hl_schedule {
    enum hl_schedule_kind kind;
    double peak, floor; /* floor: a fraction of the peak */
    int64_t warmup, steps, decay;
};
double hl_schedule_lr(const struct hl_schedule *s, int64_t step);

#endif
