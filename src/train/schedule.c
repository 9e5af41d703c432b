/* schedule.c -- see schedule.h. */
#include "train/schedule.h"
#include <math.h>
#include <stddef.h>

const char *const hl_schedule_names[] = {"cosine", "linear", "constant", "wsd", NULL};

double hl_schedule_lr(const struct hl_schedule *s, int64_t step) {
    const double pi = 3.14159265358979323846, n1 = (double)(step + 1);
    double part;
    if (step < s->warmup) return s->peak * (n1 / (double)(s->warmup + 1));
    if (s->kind == HL_CONSTANT) return s->peak;
    if (s->kind == HL_WSD) {
        if (step < s->steps - s->decay) return s->peak;
        part = 1 - (n1 - (double)(s->steps - s->decay)) / (double)(s->decay + 1);
    } else {
        const double p = (n1 - (double)s->warmup) / (double)(s->steps - s->warmup + 1);
        part = s->kind == HL_COSINE ? 0.5 * (1 + cos(pi * p)) : 1 - p;
    }
    if (part < 0) part = 0; /* steps after the last */
    return s->peak * (s->floor + (1 - s->floor) * part);
}
