/* context_plot.h -- time per token and memory over the length of the context, as one SVG. */
#ifndef HL_CONTEXT_PLOT_H
#define HL_CONTEXT_PLOT_H
#include "core/status.h"

enum { HL_CONTEXT_CURVES = 6, HL_CONTEXT_POINTS = 32 };

struct hl_context_point {
    int64_t tokens, bytes; /* bytes: of the session */
    double seconds;        /* per token */
    bool simulated;        /* not measured: extrapolated; of a curve, these come last */
};
struct hl_context_curve {
    const char *name;
    struct hl_context_point point[HL_CONTEXT_POINTS];
    int points;
};
/* title: of what, where it was measured */
hola_status hl_context_plot(const char *path, const char *title, const struct hl_context_curve *curve, int n);

#endif
