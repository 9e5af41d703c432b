/* recall_plot.h -- recall over the number of facts and over the length of the context, as one SVG. */
#ifndef HL_RECALL_PLOT_H
#define HL_RECALL_PLOT_H
#include "eval/recall.h"

enum { HL_RECALL_CURVES = 4 }; /* maximum per panel */

struct hl_recall_point {
    int64_t x;     /* facts, or tokens */
    int64_t times; /* of the training length; 0: the label is x */
    struct hl_mean recall[HL_RECALL_CURVES];
};
struct hl_recall_panel {
    const char *title, *axis;
    const struct hl_recall_point *point;
    int points;
    /* vertical lines at the sizes of the memories; 0: none */
    int64_t head_size, window;
};
struct hl_recall_figure {
    const char *const *name; /* of the curves */
    int curves;
    double chance;
    struct hl_recall_panel panel[2];
};
hola_status hl_recall_plot(const char *path, const struct hl_recall_figure *f);

#endif
