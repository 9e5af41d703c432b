/* watch.h -- detects divergence and overfitting from a run's losses.
 *
 * Diverged: for HL_WATCH_STEPS steps in a row the loss was more than `limit` nats above the run's lowest mean (over
 * about 20 steps), or not finite; or the run ends that far above its first loss. The result depends only on the losses,
 * so a resumed run replays those in its metrics.jsonl. */
#ifndef HL_WATCH_H
#define HL_WATCH_H
#include "train/metrics.h"
#include <stdbool.h>

enum { HL_WATCH_STEPS = 100, HL_WATCH_MEAN = 20, HL_WATCH_RISES = 3 };

struct hl_watch {
    double limit;              /* nats; 0: off */
    double first, mean, low;   /* losses; low: of the means */
    int64_t steps, above;      /* steps with a loss; consecutive steps above the limit */
    double low_val;            /* the lowest validation loss; NaN: none yet */
    int64_t low_step, low_gap; /* its step; evaluations since */
    bool warned;               /* already warned of a rising validation loss since the lowest one */
};
void hl_watch_begin(struct hl_watch *w, double limit);
void hl_watch_add(struct hl_watch *w, const struct hl_metric *m);
bool hl_watch_diverged(const struct hl_watch *w);
/* Whether a run that ends with this loss has diverged. */
bool hl_watch_ended_badly(const struct hl_watch *w, double loss);
/* True once per lowest validation loss: when HL_WATCH_RISES evaluations since then were all above it. */
bool hl_watch_rising(struct hl_watch *w, const struct hl_metric *m);

#endif
