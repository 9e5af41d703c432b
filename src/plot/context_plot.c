/* context_plot.c -- see context_plot.h. All axes are logarithmic; extrapolated points are dashed, with open marks. */
#include "plot/context_plot.h"
#include "plot/svg.h"
#include <math.h>
#include <stdio.h>

enum {
    WIDTH = 1084,
    HEIGHT = 400,
    PANEL_W = 440,
    PANEL_H = 260,
    LEFT = 70,
    TOP = 78,
    GAP_X = 530,
    EDGE = 24,
    BELOW = 10
};
static const char *const color[HL_CONTEXT_CURVES] = {"#c8321e", "#2a6fb5", "#2e8b57", "#b8860b", "#7b3fa0", "#555555"};

/* One of the two panels: milliseconds, or megabytes. */
struct panel {
    const struct hl_context_curve *curve;
    int curves;
    bool memory;
    double x_lo, x_hi, y_lo, y_hi; /* logarithms: base 2 of tokens, base 10 of y */
};

static double value(const struct panel *p, const struct hl_context_point *q) {
    return p->memory ? (double)q->bytes * 1e-6 : q->seconds * 1e3;
}
static double to_x(const struct panel *p, int64_t tokens) {
    const double x = log2((double)tokens);
    return EDGE + (p->x_hi > p->x_lo ? (x - p->x_lo) / (p->x_hi - p->x_lo) : 0.5) * (PANEL_W - 2 * EDGE);
}
static double to_y(const struct panel *p, double y) {
    return PANEL_H - BELOW - (log10(y) - p->y_lo) / (p->y_hi - p->y_lo) * (PANEL_H - 2 * BELOW);
}

/* Whole powers of ten on y, so that lines have round numbers. */
static void find_limits(struct panel *p) {
    double lo = INFINITY, hi = -INFINITY;
    p->x_lo = INFINITY, p->x_hi = -INFINITY;
    for (int k = 0; k < p->curves; k++)
        for (int i = 0; i < p->curve[k].points; i++) {
            const struct hl_context_point *q = &p->curve[k].point[i];
            const double x = log2((double)q->tokens), y = log10(fmax(value(p, q), 1e-6));
            p->x_lo = fmin(p->x_lo, x), p->x_hi = fmax(p->x_hi, x);
            lo = fmin(lo, y), hi = fmax(hi, y);
        }
    p->y_lo = floor(lo), p->y_hi = ceil(hi);
    if (!(p->y_hi > p->y_lo)) p->y_hi = p->y_lo + 1;
}

static void axes(struct hl_text *t, const struct panel *p) {
    for (double y = p->y_lo; y <= p->y_hi; y++) {
        char label[32];
        snprintf(label, sizeof label, "%g", pow(10, y));
        hl_svg_level(t, to_y(p, pow(10, y)), PANEL_W, label);
    }
    for (double x = ceil(p->x_lo); x <= p->x_hi; x += 2) {
        const int64_t tokens = (int64_t)1 << (int)x;
        const double at = to_x(p, tokens);
        char label[32];
        if (tokens >= 1 << 20) snprintf(label, sizeof label, "%lldM", (long long)(tokens >> 20));
        else snprintf(label, sizeof label, "%lldk", (long long)(tokens >> 10));
        hl_text_printf(t, "<path d='M%.1f %dv5' stroke='#999'/><text x='%.1f' y='%d' class='x'>%s</text>\n", at,
                       PANEL_H, at, PANEL_H + 19, label);
    }
    hl_text_printf(t, "<text x='%d' y='%d' class='x'>tokens of context</text>\n", PANEL_W / 2, PANEL_H + 42);
}

/* The points from a to b; the extrapolated part is dashed. */
static void line(struct hl_text *t, const struct panel *p, int k, int a, int b, bool dashed) {
    if (b <= a) return;
    hl_text_printf(t, "<path fill='none' stroke-width='2' stroke='%s' stroke-dasharray='%s' d='", color[k],
                   dashed ? "3 4" : "none");
    for (int i = a; i <= b; i++) {
        const struct hl_context_point *q = &p->curve[k].point[i];
        hl_text_printf(t, "%c%.1f %.1f", i == a ? 'M' : 'L', to_x(p, q->tokens), to_y(p, value(p, q)));
    }
    hl_text_printf(t, "'/>\n");
}
/* Of each curve another shape: a circle, and paths around the point. */
static void mark(struct hl_text *t, int k, double x, double y, bool open) {
    static const char *const shape[HL_CONTEXT_CURVES] = {
        NULL, "m-3.5-3.5h7v7h-7z", "m0-4.5l4.5 8h-9z", "m0-5l5 5l-5 5l-5-5z", "m0 4.5l4.5-8h-9z", "m-5-2h10v4h-10z"};
    if (shape[k]) hl_text_printf(t, "<path d='M%.1f %.1f%s'", x, y, shape[k]);
    else hl_text_printf(t, "<circle cx='%.1f' cy='%.1f' r='4'", x, y);
    hl_text_printf(t, " fill='%s' stroke='%s' stroke-width='1.5'/>\n", open ? "white" : color[k], color[k]);
}
static void draw_curve(struct hl_text *t, const struct panel *p, int k) {
    const struct hl_context_curve *c = &p->curve[k];
    int measured = 0;
    while (measured < c->points && !c->point[measured].simulated) measured++;
    line(t, p, k, 0, measured - 1, false);
    line(t, p, k, measured > 0 ? measured - 1 : 0, c->points - 1, true);
    for (int i = 0; i < c->points; i++)
        mark(t, k, to_x(p, c->point[i].tokens), to_y(p, value(p, &c->point[i])), c->point[i].simulated);
}

/* One line, or two where there are more curves than two. */
static void legend(struct hl_text *t, const char *title, const struct hl_context_curve *curve, int n) {
    const int each = n > 2 ? 165 : 190;
    int x = LEFT, y = 24;
    for (int k = 0; k < n; k++, x += each) {
        hl_text_printf(t, "<path d='M%d %dh34' stroke-width='2' stroke='%s'/>\n", x, y, color[k]);
        mark(t, k, x + 17, y, false);
        hl_text_printf(t, "<text x='%d' y='%d'>", x + 42, y + 4);
        hl_svg_escape(t, curve[k].name);
        hl_text_printf(t, "</text>\n");
    }
    if (n > 2) x = LEFT, y = 44;
    hl_text_printf(t, "<path d='M%d %dh34' stroke-width='2' stroke='#777' stroke-dasharray='3 4'/>\n", x, y);
    hl_text_printf(t, "<text x='%d' y='%d'>simulated: does not fit, or took too long</text>\n<text x='%d' y='%d'>",
                   x + 42, y + 4, x + 340, y + 4);
    hl_svg_escape(t, title);
    hl_text_printf(t, "</text>\n");
}

hola_status hl_context_plot(const char *path, const char *title, const struct hl_context_curve *curve, int n) {
    static const char *const titles[] = {"time per token, ms", "memory of a session, MB"};
    struct hl_text t = {0};
    if (n < 1 || n > HL_CONTEXT_CURVES) return hl_fail(HOLA_EINVAL, "%s: %d curves", path, n);
    hl_svg_begin(&t, WIDTH, HEIGHT, 13);
    legend(&t, title, curve, n);
    for (int i = 0; i < 2; i++) {
        struct panel p = {.curve = curve, .curves = n, .memory = i == 1};
        find_limits(&p);
        hl_svg_panel(&t, LEFT + i * GAP_X, TOP, PANEL_W, PANEL_H, "", titles[i]);
        axes(&t, &p);
        for (int k = 0; k < n; k++) draw_curve(&t, &p, k);
        hl_text_printf(&t, "</g>\n");
    }
    hl_text_printf(&t, "</svg>\n");
    return hl_svg_write(&t, path);
}
