/* training_plot.c -- four panels over the steps: loss, learning rate, gradient norm, tokens per second. */
#include "plot/training_plot.h"
#include "plot/svg.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 1080, PANEL_W = 460, PANEL_H = 250, LEFT = 66, TOP = 34, GAP_X = 540, GAP_Y = 330, POINTS = 800 };

static const char *const colors[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                     "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};
enum { COLORS = sizeof colors / sizeof *colors };

/* ---- panels ---- */

struct panel {
    const char *title;
    size_t field, other; /* of struct hl_metric; other: dashed on top, 0: none */
    bool log;            /* spikes stay inside the frame and do not flatten the rest */
};
#define AT(f) offsetof(struct hl_metric, f)
static const struct panel panels[] = {{"loss, nats per token (dashed: validation)", AT(loss), AT(val_loss), false},
                                      {"learning rate", AT(lr), 0, false},
                                      {"gradient norm, logarithmic", AT(grad_norm), 0, true},
                                      {"tokens per second", AT(tok_per_s), 0, false}};

static double value(const struct hl_metric *m, size_t field, bool log) {
    const double x = *(const double *)((const char *)m + field);
    return log ? log10(x) : x; /* of 0: not finite, left out */
}

struct range {
    double x0, x1, y0, y1;
    bool log; /* y is a logarithm */
};

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The top is the 99.5th percentile of all runs, so that a few spikes do not flatten the curve. */
static bool y_range(const struct hl_plot_run *run, int n, const struct panel *p, struct range *r) {
    int64_t count = 0, all = 0;
    for (int i = 0; i < n; i++) all += 2 * run[i].history->n;
    double *v = malloc((size_t)(all + 1) * sizeof *v);
    if (!v) return false;
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < run[i].history->n; k++) {
            double a = value(&run[i].history->at[k], p->field, p->log),
                   b = p->other ? value(&run[i].history->at[k], p->other, p->log) : (double)NAN;
            if (isfinite(a)) v[count++] = a;
            if (isfinite(b)) v[count++] = b;
        }
    qsort(v, (size_t)count, sizeof *v, ascending);
    r->y0 = count ? v[0] : 0;
    r->y1 = count ? v[(int64_t)((p->log ? 1 : 0.995) * (double)(count - 1) + 0.5)] : 1;
    r->log = p->log;
    double margin = 0.04 * (r->y1 - r->y0);
    if (margin < 1e-6 * fabs(r->y1)) margin = 1e-6 * fabs(r->y1); /* ticks must be distinct */
    if (margin <= 0) margin = 1;
    r->y0 -= margin, r->y1 += margin;
    free(v);
    return true;
}

/* 1, 2 or 5 times a power of ten: about `n` steps in the range */
static double tick_step(double range, int n) {
    double raw = range / n, power = pow(10, floor(log10(raw))), f = raw / power;
    return power * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);
}

static double to_x(const struct range *r, double x) { return (x - r->x0) / (r->x1 - r->x0) * PANEL_W; }
static double to_y(const struct range *r, double y) {
    double v = PANEL_H * (1 - (y - r->y0) / (r->y1 - r->y0));
    return v < 0 ? 0 : v > PANEL_H ? PANEL_H : v;
}

static void axes(struct hl_text *t, const struct range *r) {
    double sx = tick_step(r->x1 - r->x0, 6), sy = tick_step(r->y1 - r->y0, 5);
    for (double y = ceil(r->y0 / sy) * sy; y <= r->y1; y += sy) {
        char label[32]; /* 160000, not 1.6e+05 */
        if (r->log) snprintf(label, sizeof label, "%.2g", pow(10, y));
        else snprintf(label, sizeof label, "%.*g", fabs(y) < 1e4 ? 4 : 7, fabs(y) < 1e-9 * sy ? 0 : y);
        hl_svg_level(t, to_y(r, y), PANEL_W, label);
    }
    for (double x = ceil(r->x0 / sx) * sx; x <= r->x1; x += sx)
        hl_text_printf(t, "<path d='M%.1f 0v%d' class='g'/><text x='%.1f' y='%d' class='x'>%.7g</text>\n", to_x(r, x),
                       PANEL_H, to_x(r, x), PANEL_H + 17, x);
    hl_text_printf(t, "<text x='%d' y='%d' class='x'>step</text>\n", PANEL_W / 2, PANEL_H + 34);
}

/* At most POINTS points, each the mean of the steps that fall together; a gap where nothing is finite. */
static void curve(struct hl_text *t, const struct hl_metrics_history *h, size_t field, const struct range *r,
                  const char *color, bool dashed) {
    const int64_t bin = (h->n + POINTS - 1) / POINTS;
    int64_t drawn = 0;
    hl_text_printf(t, "<path fill='none' stroke-width='1.4' stroke='%s'%s d='", color,
                   dashed ? " stroke-dasharray='5 3'" : "");
    for (int64_t i = 0, pen = 0; i < h->n; i += bin) {
        double sum = 0, steps = 0;
        int64_t k = 0;
        for (int64_t j = i; j < i + bin && j < h->n; j++) {
            double v = value(&h->at[j], field, r->log);
            if (isfinite(v)) sum += v, steps += (double)h->at[j].step, k++;
        }
        if (k > 0)
            hl_text_printf(t, "%c%.2f %.2f", pen ? 'L' : 'M', to_x(r, steps / (double)k), to_y(r, sum / (double)k)),
                drawn++;
        pen = k > 0 || (dashed && pen); /* evaluations are far apart: one line through them */
    }
    hl_text_printf(t, drawn == 1 ? "h1'/>\n" : "'/>\n"); /* a single point is still visible */
}

static void put_panel(struct hl_text *t, const struct hl_plot_run *run, int n, int i, struct range r) {
    const struct panel *p = &panels[i];
    if (!y_range(run, n, p, &r)) {
        t->failed = true;
        return;
    }
    hl_svg_panel(t, LEFT + i % 2 * GAP_X, TOP + 24 * ((n + 1) / 2) + i / 2 * GAP_Y, PANEL_W, PANEL_H, "", p->title);
    axes(t, &r);
    for (int k = 0; k < n; k++) {
        curve(t, run[k].history, p->field, &r, colors[k % COLORS], false);
        /* of a single run the evaluations get a color of their own */
        if (p->other) curve(t, run[k].history, p->other, &r, n == 1 ? colors[1] : colors[k % COLORS], true);
    }
    hl_text_printf(t, "</g>\n");
}

static void legend(struct hl_text *t, const struct hl_plot_run *run, int n) {
    for (int k = 0; k < n; k++) {
        const struct hl_metrics_history *h = run[k].history;
        const int x = LEFT + k % 2 * GAP_X, y = 18 + k / 2 * 24;
        hl_text_printf(t, "<path d='M%d %dh22' stroke='%s' stroke-width='3'/><text x='%d' y='%d'>", x, y - 4,
                       colors[k % COLORS], x + 28, y);
        const size_t len = strlen(run[k].name);
        if (len > 48) hl_text_printf(t, "...");
        hl_svg_escape(t, run[k].name + (len > 48 ? len - 48 : 0)); /* the end distinguishes runs */
        const struct hl_metric *best = hl_plot_best(h);
        if (best) hl_text_printf(t, ": best validation loss %.4f, step %" PRId64, best->val_loss, best->step);
        else if (h->n > 0)
            hl_text_printf(t, ": step %" PRId64 ", loss %.4f", h->at[h->n - 1].step, h->at[h->n - 1].loss);
        hl_text_printf(t, "</text>\n");
    }
}

static void put_svg(struct hl_text *t, const struct hl_plot_run *run, int n) {
    const int height = TOP + 24 * ((n + 1) / 2) + 2 * GAP_Y;
    struct range r = {.x0 = 0, .x1 = 1};
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < run[i].history->n; k++)
            if ((double)run[i].history->at[k].step > r.x1) r.x1 = (double)run[i].history->at[k].step;
    hl_svg_begin(t, WIDTH, height, 12);
    legend(t, run, n);
    for (int i = 0; i < 4; i++) put_panel(t, run, n, i, r);
    hl_text_printf(t, "</svg>\n");
}

const struct hl_metric *hl_plot_best(const struct hl_metrics_history *h) {
    const struct hl_metric *best = NULL;
    for (int64_t i = 0; i < h->n; i++)
        if (isfinite(h->at[i].val_loss) && (!best || h->at[i].val_loss < best->val_loss)) best = &h->at[i];
    return best;
}

hola_status hl_plot_write(const char *path, const struct hl_plot_run *run, int n, int refresh) {
    struct hl_text t = {0};
    const size_t len = strlen(path);
    if (len > 4 && !strcmp(path + len - 4, ".svg")) put_svg(&t, run, n);
    else hl_plot_page(&t, run, n, refresh);
    return hl_svg_write(&t, path);
}
