/* watch.h -- what a run's losses say about the run: it diverges, it learns its data by heart.
 *
 * Diverged: for HL_WATCH_STEPS steps in a row the loss was more than `limit` nats above the lowest mean of the run
 * (mean: over about 20 steps), or not finite; or the run ends that far above its first loss. The same losses give the
 * same answer, so a resumed run is fed those of its metrics.jsonl. */
#ifndef HL_WATCH_H
#define HL_WATCH_H
#include "train/metrics.h"
#include <stdbool.h>

enum { HL_WATCH_STEPS = 100, HL_WATCH_MEAN = 20, HL_WATCH_RISES = 3 };

struct hl_watch {
    double limit;              /* nats; 0: nothing is called diverged */
    double first, mean, low;   /* losses; low: of the means */
    int64_t steps, above;      /* steps with a loss; steps in a row above the limit */
    double low_val;            /* the lowest validation loss; NaN: none yet */
    int64_t low_step, low_gap; /* where that was; evaluations since */
    bool warned;               /* of a rising validation loss, since the lowest one */
};
void hl_watch_begin(struct hl_watch *w, double limit);
void hl_watch_add(struct hl_watch *w, const struct hl_metric *m);
bool hl_watch_diverged(const struct hl_watch *w);
/* Of a run that ends with this loss. */
bool hl_watch_ended_badly(const struct hl_watch *w, double loss);
/* Once for each lowest validation loss: HL_WATCH_RISES evaluations since were all above it. */
bool hl_watch_rising(struct hl_watch *w, const struct hl_metric *m);

#endif
