/* training_plot.h -- curves of training as one self-contained file: an SVG, or a page to zoom and read values in. */
#ifndef HL_PLOT_H
#define HL_PLOT_H
#include "core/text.h"
#include "train/metrics.h"

struct hl_plot_run {
    const char *name;
    const char *dir; /* of the run, for its settings (run.json) and size; NULL: not known */
    const struct hl_metrics_history *history;
};
/* The step with the smallest validation loss; NULL: there was no validation. */
const struct hl_metric *hl_plot_best(const struct hl_metrics_history *h);
/* training_page.c */
hola_status hl_plot_page(struct hl_text *t, const struct hl_plot_run *run, int n, int refresh);
/* path ends with .svg: SVG; else HTML. refresh: seconds after which a browser loads the page again; 0: never. */
hola_status hl_plot_write(const char *path, const struct hl_plot_run *run, int n, int refresh);

#endif
