/* training_plot.h -- loss curves as one self-contained file: SVG, or HTML with the SVG in it and values under the mouse. */
#ifndef HL_PLOT_H
#define HL_PLOT_H
#include "train/metrics.h"

struct hl_plot_run {
    const char *name;
    const struct hl_metrics_history *history;
};
/* path ends with .svg: SVG; else HTML. refresh: seconds after which a browser loads the page again; 0: never. */
hola_status hl_plot_write(const char *path, const struct hl_plot_run *run, int n, int refresh);

#endif
