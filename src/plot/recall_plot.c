/* recall_plot.c -- see recall_plot.h. Both axes of x are logarithmic: facts and tokens double. */
#include "plot/recall_plot.h"
#include "plot/svg.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { WIDTH = 1084, HEIGHT = 400, PANEL_W = 440, PANEL_H = 260, LEFT = 64, TOP = 78, GAP_X = 530, EDGE = 24 };

/* distinguishable without color: each has its own mark and dash */
static const struct {
    const char *color, *dash;
} look[HL_RECALL_CURVES] = {{"#555555", "6 4"}, {"#c8321e", "none"}, {"#2a6fb5", "2 3"}, {"#2ca02c", "8 3 2 3"}};

static double to_x(const struct hl_recall_panel *p, double x) {
    const double lo = log2((double)p->point[0].x), hi = log2((double)p->point[p->points - 1].x);
    return EDGE + (hi > lo ? (log2(x) - lo) / (hi - lo) : 0.5) * (PANEL_W - 2 * EDGE);
}
/* a little room above 1, so that a curve along the top is seen */
static double to_y(double recall) { return PANEL_H - 8 - recall * (PANEL_H - 20); }

static void axes(struct hl_text *t, const struct hl_recall_panel *p, double chance) {
    for (int i = 0; i <= 5; i++) {
        char label[8];
        snprintf(label, sizeof label, "%.1f", 0.2 * i);
        hl_svg_level(t, to_y(0.2 * i), PANEL_W, label);
    }
    for (int i = 0; i < p->points; i++) {
        const struct hl_recall_point *q = &p->point[i];
        const double x = to_x(p, (double)q->x);
        hl_text_printf(t, "<path d='M%.1f %dv5' stroke='#999'/><text x='%.1f' y='%d' class='x'>%" PRId64 "</text>\n", x,
                       PANEL_H, x, PANEL_H + 19, q->x);
        if (q->times > 0)
            hl_text_printf(t, "<text x='%.1f' y='%d' class='x s'>%" PRId64 "×</text>\n", x, PANEL_H + 34, q->times);
    }
    hl_text_printf(t, "<text x='%d' y='%d' class='x'>%s</text>\n", PANEL_W / 2,
                   PANEL_H + (p->point[0].times > 0 ? 52 : 42), p->axis);
    hl_text_printf(t,
                   "<path d='M0 %.1fh%d' stroke='#999' stroke-dasharray='1 3'/><text x='%d' y='%.1f' "
                   "class='s'>chance</text>\n",
                   to_y(chance), PANEL_W, PANEL_W + 4, to_y(chance) + 4);
}

static void upright(struct hl_text *t, const struct hl_recall_panel *p, int64_t x, const char *what) {
    if (x <= 0) return;
    hl_text_printf(t,
                   "<path d='M%.1f 0v%d' stroke='#bbb' stroke-dasharray='4 4'/>"
                   "<text transform='translate(%.1f %.1f) rotate(-90)' class='s'>%s = %" PRId64 "</text>\n",
                   to_x(p, (double)x), PANEL_H, to_x(p, (double)x) - 5, to_y(0.45), what, x);
}

static void mark(struct hl_text *t, int k, double x, double y) {
    const char *c = look[k].color;
    if (k == 0) hl_text_printf(t, "<rect x='%.1f' y='%.1f' width='7' height='7' fill='%s'/>\n", x - 3.5, y - 3.5, c);
    else if (k == 1) hl_text_printf(t, "<circle cx='%.1f' cy='%.1f' r='4.2' fill='%s'/>\n", x, y, c);
    else hl_text_printf(t, "<path d='M%.1f %.1fl4.6 8h-9.2z' fill='%s'/>\n", x, y - 5, c);
}

static void curve(struct hl_text *t, const struct hl_recall_panel *p, int k) {
    hl_text_printf(t, "<path fill='none' stroke-width='2' stroke='%s' stroke-dasharray='%s' d='", look[k].color,
                   look[k].dash);
    for (int i = 0; i < p->points; i++)
        hl_text_printf(t, "%c%.1f %.1f", i ? 'L' : 'M', to_x(p, (double)p->point[i].x),
                       to_y(p->point[i].recall[k].mean));
    hl_text_printf(t, "'/>\n");
    for (int i = 0; i < p->points; i++) {
        const struct hl_mean m = p->point[i].recall[k];
        const double x = to_x(p, (double)p->point[i].x), lo = to_y(m.mean - m.error), hi = to_y(m.mean + m.error);
        hl_text_printf(t, "<path d='M%.1f %.1fh6m-3 0V%.1fm-3 0h6' fill='none' stroke='%s'/>\n", x - 3, lo, hi,
                       look[k].color);
        mark(t, k, x, to_y(m.mean));
    }
}

static void legend(struct hl_text *t, const struct hl_recall_figure *f) {
    for (int k = 0, x = LEFT; k < f->curves; k++) {
        hl_text_printf(t, "<path d='M%d 24h34' stroke-width='2' stroke='%s' stroke-dasharray='%s'/>\n", x,
                       look[k].color, look[k].dash);
        mark(t, k, x + 17, 24);
        hl_text_printf(t, "<text x='%d' y='28'>", x + 42);
        hl_svg_escape(t, f->name[k]);
        hl_text_printf(t, "</text>\n");
        x += 330;
    }
}

hola_status hl_recall_plot(const char *path, const struct hl_recall_figure *f) {
    struct hl_text t = {0};
    hl_svg_begin(&t, WIDTH, HEIGHT, 13);
    legend(&t, f);
    for (int i = 0; i < 2; i++) {
        const struct hl_recall_panel *p = &f->panel[i];
        hl_svg_panel(&t, LEFT + i * GAP_X, TOP, PANEL_W, PANEL_H, "", p->title);
        axes(&t, p, f->chance);
        upright(&t, p, p->head_size, "head size");
        upright(&t, p, p->window, "exact memory");
        for (int k = 0; k < f->curves; k++) curve(&t, p, k);
        hl_text_printf(&t, "</g>\n");
    }
    hl_text_printf(&t, "</svg>\n");
    return hl_svg_write(&t, path);
}
