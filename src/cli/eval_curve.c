/* eval_curve.c -- Figure 1 as a drawing: needles found over the length of the prompt, the paper's models and ours. */
#include "cli/eval.h"
#include <math.h>
#include <stdlib.h>

enum { WIDTH = 640, HEIGHT = 300, LEFT = 50, RIGHT = 190, TOP = 15, BOTTOM = 40, LEAST = 10, MOST = 17 };

static double x_of(double length) { return LEFT + (log2(length) - LEAST) / (MOST - LEAST) * (WIDTH - LEFT - RIGHT); }
static double y_of(double part) { return TOP + (1 - part) * (HEIGHT - TOP - BOTTOM); }

/* The points of a line, then its name beside the last one. */
struct line {
    double length[HL_METRICS], value[HL_METRICS];
    int n;
    const char *name, *style;
};
static void put_line(struct hl_text *out, const struct line *l) {
    hl_text_printf(out, "<polyline fill=none %s points=\"", l->style);
    for (int i = 0; i < l->n; i++) hl_text_printf(out, "%.1f,%.1f ", x_of(l->length[i]), y_of(l->value[i]));
    hl_text_printf(out, "\"/>\n<text x=%.1f y=%.1f>", x_of(l->length[l->n - 1]) + 6, y_of(l->value[l->n - 1]) + 4);
    eval_quote(out, l->name);
    hl_text_puts(out, "</text>\n");
}

static void put_axes(struct hl_text *out) {
    hl_text_printf(out, "<svg viewBox=\"0 0 %d %d\" width=%d font-size=12 fill=currentColor>\n", WIDTH, HEIGHT, WIDTH);
    for (int i = LEAST; i <= MOST; i++)
        hl_text_printf(out, "<text x=%.1f y=%d text-anchor=middle>%dk</text>\n", x_of(exp2(i)), HEIGHT - BOTTOM + 18,
                       1 << (i - 10));
    for (int i = 0; i <= 4; i++)
        hl_text_printf(out,
                       "<line x1=%d x2=%d y1=%.1f y2=%.1f stroke=currentColor stroke-opacity=.2 />\n<text x=%d "
                       "y=%.1f text-anchor=end>%.2f</text>\n",
                       LEFT, WIDTH - RIGHT, y_of(i / 4.0), y_of(i / 4.0), LEFT - 6, y_of(i / 4.0) + 4, i / 4.0);
}

/* A model's figures of niah_single_1, shortest prompts first. */
static void take_figures(const struct eval_model *m, struct line *l) {
    for (int i = 0; i < m->n; i++)
        for (int k = 0; m->result[i].task == hl_task_find("niah_single_1") && k < m->result[i].metrics.count; k++) {
            const double length = atof(m->result[i].metrics.metric[k].name);
            int at = l->n;
            if (length < 1 << LEAST || length > 1 << MOST || l->n == HL_METRICS) continue;
            for (; at > 0 && l->length[at - 1] > length; at--)
                l->length[at] = l->length[at - 1], l->value[at] = l->value[at - 1];
            l->length[at] = length, l->value[at] = m->result[i].metrics.metric[k].value;
            l->n++;
        }
}

void eval_curve_put(struct hl_text *out, const struct eval_report *r) {
    static const struct line paper[] = {
        {{2048, 4096, 8192, 16384, 32768}, {1, 1, .83, .30, .14}, 5, "GDN, paper", "stroke=#999 stroke-dasharray=2,3"},
        {{2048, 4096, 8192, 16384, 32768},
         {1, .93, .74, .50, .24},
         5,
         "recency, paper",
         "stroke=#999 stroke-dasharray=6,3"},
        {{2048, 4096, 8192, 16384, 32768}, {1, .99, .98, .94, .58}, 5, "HOLA, paper", "stroke=#999"}};
    static const char *const style[] = {"stroke=#1f77b4 stroke-width=2", "stroke=#d62728 stroke-width=2",
                                        "stroke=#2ca02c stroke-width=2", "stroke=#9467bd stroke-width=2"};
    put_axes(out);
    for (size_t i = 0; i < sizeof paper / sizeof *paper; i++) put_line(out, &paper[i]);
    for (int i = 0; i < r->n; i++) {
        struct line l = {.name = r->model[i].dir, .style = style[i % 4]};
        take_figures(&r->model[i], &l);
        if (l.n > 0) put_line(out, &l);
    }
    hl_text_puts(out, "</svg>\n");
}
