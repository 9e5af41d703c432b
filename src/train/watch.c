/* watch.c -- see watch.h. */
#include "train/watch.h"
#include <math.h>

void hl_watch_begin(struct hl_watch *w, double limit) {
    *w = (struct hl_watch){.limit = limit, .first = (double)NAN, .low = HUGE_VAL, .low_val = (double)NAN};
}

void hl_watch_add(struct hl_watch *w, const struct hl_metric *m) {
    if (isfinite(m->loss)) {
        const int64_t n = ++w->steps < HL_WATCH_MEAN ? w->steps : HL_WATCH_MEAN;
        if (w->steps == 1) w->first = w->mean = m->loss;
        w->mean += (m->loss - w->mean) / (double)n;
        if (w->mean < w->low) w->low = w->mean;
    }
    w->above = isfinite(m->loss) && m->loss <= w->low + w->limit ? 0 : w->above + 1;
    if (!isfinite(m->val_loss)) return;
    w->low_gap++;
    if (isfinite(w->low_val) && m->val_loss >= w->low_val) return;
    w->low_val = m->val_loss, w->low_step = m->step, w->low_gap = 0;
    w->warned = false;
}

bool hl_watch_diverged(const struct hl_watch *w) { return w->limit > 0 && w->above >= HL_WATCH_STEPS; }

bool hl_watch_ended_badly(const struct hl_watch *w, double loss) {
    return w->limit > 0 && loss > w->first + w->limit; /* non-finite losses: see hl_run_sound() */
}

/* The smallest rise that counts: smaller ones are noise when validating on part of the data. */
#define RISE 0.005

bool hl_watch_rising(struct hl_watch *w, const struct hl_metric *m) {
    const bool now =
        isfinite(m->val_loss) && w->low_gap >= HL_WATCH_RISES && !w->warned && m->val_loss > w->low_val * (1 + RISE);
    w->warned |= now;
    return now;
}
