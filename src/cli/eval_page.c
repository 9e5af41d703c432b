/* eval_page.c -- hola eval --html: models, every figure with its size, count and chance level, charts, the paper's
 * figures, and the settings. One self-contained file; the design is that of src/plot/page.h. */
#include "cli/eval.h"
#include "plot/page.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

HL_PAGE_FILE(hl_eval_js, "src/cli/eval.js");

/* The last two components of a path distinguish models and leave room for figures. */
static const char *short_name(const char *dir) {
    const char *p = dir + strlen(dir);
    for (int slashes = 0; p > dir; p--)
        if (p[-1] == '/' && p[0] && ++slashes == 2) break;
    return p;
}

void eval_page_model(struct hl_text *out, const struct eval_report *r, int m) {
    if (r->n > 1) hl_text_printf(out, "%c ", 'A' + m);
    hl_page_quote(out, short_name(r->model[m].dir));
}

/* Only as many decimals as the error justifies. */
void eval_page_number(struct hl_text *out, double value, double error, enum eval_unit unit) {
    char text[EVAL_NUMBER], off[EVAL_NUMBER];
    const double scale = unit == EVAL_SHARE ? 100 : 1;
    if (!isfinite(value)) {
        hl_text_puts(out, "<span>&ndash;</span>");
        return;
    }
    if (unit == EVAL_COUNT || fabs(value * scale) >= 1e5) eval_number(text, value * scale, unit);
    else snprintf(text, sizeof text, "%.*f", unit == EVAL_BITS ? 4 : 2, value * scale);
    hl_text_printf(out, "<span>%s", text);
    if (isfinite(error) && unit != EVAL_COUNT) {
        if (error * scale >= 1e5) eval_number(off, error * scale, EVAL_PERPLEXITY);
        else snprintf(off, sizeof off, "%.*f", unit == EVAL_BITS ? 4 : 2, error * scale);
        hl_text_printf(out, " <small>&plusmn; %s</small>", off);
    }
    hl_text_puts(out, "</span>");
}

/* ---- models ---- */

static void put_models(struct hl_text *out, const struct eval_report *r) {
    char size[EVAL_NUMBER];
    hl_text_puts(out,
                 "<h2>Models</h2>\n<div class=\"wide\"><table class=\"models\"><thead><tr><th class=\"t\">model</th>"
                 "<th>parameters</th><th>weights</th><th>max_length, tokens</th><th class=\"t\">SHA-256</th></tr>"
                 "</thead><tbody>\n");
    for (int m = 0; m < r->n; m++) {
        const struct eval_model *x = &r->model[m];
        hl_text_printf(out, "<tr><td class=\"t\"><span><span class=\"key dot\" style=\"color: var(--s%d)\"></span> ",
                       m % 8);
        if (r->n > 1) hl_text_printf(out, "%c ", 'A' + m);
        hl_page_quote(out, x->dir);
        hl_text_printf(out,
                       "</span><td><span>%s</span><td><span>%s</span><td><span>%lld</span><td class=\"t\"><code>%.16s"
                       "</code></tr>\n",
                       eval_size(size, x->parameters), hola_dtype_name(x->dtype), (long long)x->how.max_length,
                       x->sha256);
    }
    hl_text_puts(out, "</tbody></table></div>\n");
}

/* ---- results ---- */

static const char *unit_name(enum eval_unit u) {
    return u == EVAL_SHARE ? "%" : u == EVAL_BITS ? "bits" : u == EVAL_COUNT ? "count" : "perplexity";
}

static void put_comparison(struct hl_text *out, const struct eval_report *r, int m, const struct eval_row *row) {
    const enum eval_unit unit = eval_unit(row->metric);
    const double scale = unit == EVAL_SHARE ? 100 : 1;
    struct hl_comparison c;
    char text[EVAL_NUMBER];
    hl_text_puts(out, "<td>");
    if (!eval_compare(r, m, row->task->name, row->metric, &c)) return;
    const bool better = unit == EVAL_SHARE ? c.difference > 0 : c.difference < 0, sure = isfinite(c.p) && c.p < 0.05;
    if (fabs(c.difference * scale) >= 1e5) eval_number(text, c.difference * scale, unit);
    else snprintf(text, sizeof text, "%.*f", unit == EVAL_BITS ? 4 : 2, c.difference * scale);
    hl_text_printf(out, "<span>%s%s%s%s", sure ? better ? "<b class=\"up\">" : "<b class=\"down\">" : "",
                   c.difference > 0 ? "+" : "", text, sure ? "</b>" : "");
    if (isfinite(c.p) && c.p < 0.0001) hl_text_puts(out, " <small>p &lt; 0.0001</small>");
    else if (isfinite(c.p)) hl_text_printf(out, " <small>p %.4f</small>", c.p);
    hl_text_puts(out, "</span>");
}

static void put_result(struct hl_text *out, const struct eval_report *r, const struct eval_row *row, bool first) {
    const enum eval_unit unit = eval_unit(row->metric);
    const struct eval_result *y = NULL;
    double chance = NAN;
    for (int m = 0; m < r->n; m++) {
        const struct hl_figure *f = eval_figure(&r->model[m], row->task->name, row->metric);
        if (!y) y = eval_result_of(&r->model[m], row->task->name);
        if (f && !isfinite(chance)) chance = f->chance;
    }
    hl_text_printf(
        out,
        "<tr%s><th scope=\"row\">%s <small>%s</small></th><td class=\"m\"><span>%s</span><td class=\"m\"><span>"
        "%lld</span><td class=\"m\">",
        first ? " class=\"first\"" : "", row->task->name, row->metric, unit_name(unit),
        (long long)eval_documents(y, row->metric));
    if (isfinite(chance)) eval_page_number(out, chance, NAN, unit);
    for (int m = 0; m < r->n; m++) {
        const struct hl_figure *f = eval_figure(&r->model[m], row->task->name, row->metric);
        hl_text_puts(out, "<td>");
        eval_page_number(out, f ? f->value : NAN, f ? f->error : NAN, unit);
        if (m > 0) put_comparison(out, r, m, row);
    }
    hl_text_puts(out, "</tr>\n");
}

static void put_results(struct hl_text *out, const struct eval_report *r, const struct eval_row *row, int rows) {
    char size[EVAL_NUMBER];
    hl_text_puts(out,
                 "<h2>Results</h2>\n<div class=\"wide\"><table class=\"results\"><thead><tr><th class=\"t\">task</th>"
                 "<th>unit</th><th data-l=\"documents\">n</th><th>chance</th>");
    for (int m = 0; m < r->n; m++) {
        hl_text_puts(out, "<th>");
        eval_page_model(out, r, m);
        hl_text_printf(out, "<br><small>%s</small></th>", eval_size(size, r->model[m].parameters));
        if (m > 0) hl_text_printf(out, "<th class=\"n\">%c &minus; A</th>", 'A' + m);
    }
    hl_text_puts(out, "</tr></thead><tbody>\n");
    for (int i = 0; i < rows; i++) put_result(out, r, &row[i], i > 0 && row[i].task != row[i - 1].task);
    hl_text_puts(out, "</tbody></table></div>\n<p class=\"note\">&plusmn;: one standard error over documents. Of "
                      "perplexities and bits, less is better.");
    if (r->n > 1)
        hl_text_puts(out,
                     " p: how likely a difference this large is by chance alone, two-sided, for each row by itself "
                     "(McNemar's exact test where answers are right or wrong, else a normal test on the differences "
                     "of the same documents); in bold below 0.05.");
    hl_text_puts(out, "</p>\n");
}

/* ---- data for eval.js ---- */

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* Rows of fractions that are not lengths, which are drawn as curves. */
static json_t *shares_json(const struct eval_report *r, const struct eval_row *row, int rows) {
    json_t *all = json_array();
    for (int i = 0; i < rows; i++) {
        json_t *values = json_array();
        double chance = NAN;
        int64_t n = 0;
        for (int m = 0; m < r->n && eval_unit(row[i].metric) == EVAL_SHARE; m++) {
            const struct hl_figure *f = eval_figure(&r->model[m], row[i].task->name, row[i].metric);
            if (!f || !isfinite(f->value)) continue;
            chance = f->chance;
            n = eval_documents(eval_result_of(&r->model[m], row[i].task->name), row[i].metric);
            json_array_append_new(values, json_pack("{s:i, s:f, s:o}", "m", m, "v", f->value, "e", number(f->error)));
        }
        if (json_array_size(values) > 0 && !isdigit((unsigned char)row[i].metric[0]))
            json_array_append_new(all, json_pack("{s:s, s:s, s:I, s:o, s:O}", "task", row[i].task->name, "metric",
                                                 row[i].metric, "n", (json_int_t)n, "chance", number(chance), "values",
                                                 values));
        json_decref(values);
    }
    return all;
}

static int by_length(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A task with figures named by length: one line per model, shortest prompts first. */
static json_t *line_json(const struct eval_result *y) {
    double point[HL_METRICS][3];
    int n = 0;
    json_t *points = json_array();
    for (int k = 0; k < y->metrics.count; k++) {
        const struct hl_figure *f = &y->metrics.metric[k];
        if (!isdigit((unsigned char)f->name[0]) || !isfinite(f->value)) continue;
        point[n][0] = atof(f->name), point[n][1] = f->value, point[n][2] = f->error, n++;
    }
    qsort(point, (size_t)n, sizeof *point, by_length);
    for (int k = 0; k < n; k++)
        json_array_append_new(points, json_pack("[f, f, o]", point[k][0], point[k][1], number(point[k][2])));
    return points;
}

static json_t *curves_json(const struct eval_report *r, const struct eval_row *row, int rows) {
    json_t *all = json_array();
    for (int i = 0; i < rows; i++) {
        if (!isdigit((unsigned char)row[i].metric[0]) || (i > 0 && row[i - 1].task == row[i].task)) continue;
        json_t *lines = json_array();
        int64_t n = 0;
        for (int m = 0; m < r->n; m++) {
            const struct eval_result *y = eval_result_of(&r->model[m], row[i].task->name);
            if (!y) continue;
            n = eval_documents(y, row[i].metric);
            json_array_append_new(lines, json_pack("{s:i, s:o}", "m", m, "points", line_json(y)));
        }
        json_array_append_new(all, json_pack("{s:s, s:I, s:o, s:o, s:s}", "task", row[i].task->name, "n", (json_int_t)n,
                                             "lines", lines, "paper", eval_paper_lines(row[i].task->name), "note",
                                             eval_paper_lines_note));
    }
    return all;
}

static char *page_data(const struct eval_report *r, const struct eval_row *row, int rows) {
    json_t *models = json_array();
    for (int m = 0; m < r->n; m++) {
        struct hl_text valid = {0}, label = {0};
        char size[EVAL_NUMBER];
        hl_text_add_valid(&valid, hl_span_of(short_name(r->model[m].dir)));
        if (r->n > 1) hl_text_printf(&label, "%c ", 'A' + m);
        hl_text_put(&label, valid.data ? valid.data : "", valid.n);
        hl_text_printf(&label, " (%s)", eval_size(size, r->model[m].parameters));
        json_array_append_new(models, json_pack("{s:s%}", "label", label.data ? label.data : "", (size_t)label.n));
        hl_text_free(&valid);
        hl_text_free(&label);
    }
    json_t *root = json_pack("{s:o, s:o, s:o}", "models", models, "shares", shares_json(r, row, rows), "curves",
                             curves_json(r, row, rows));
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(7)) : NULL;
    json_decref(root);
    return text;
}

/* ---- settings ---- */

static void put_settings(struct hl_text *out, const struct eval_report *r) {
    const struct hl_eval_opts *h = &r->model[0].how;
    hl_text_printf(out,
                   "<h2>Settings</h2>\n<p>Profile %s, BOS %s, retrieval prompts %s, log-likelihoods in %s, seed of "
                   "prompts %s",
                   hl_profile_names[h->profile], hl_bos_names[h->bos], hl_retrieval_names[h->retrieval],
                   hl_precision_names[h->precision], h->seed < 0 ? "the benchmark's own" : "");
    if (h->seed >= 0) hl_text_printf(out, "%lld", (long long)h->seed);
    if (h->limit > 0) hl_text_printf(out, ", limit %lld documents of each task", (long long)h->limit);
    hl_text_puts(out,
                 ".</p>\n<details><summary>Data</summary><div class=\"wide\"><table><thead><tr><th class=\"t\">task"
                 "</th><th>version</th><th>split</th><th class=\"t\">SHA-256 of the file</th><th>seconds</th><th "
                 "class=\"t\">note</th></tr></thead><tbody>\n");
    for (int m = 0; m < r->n; m++)
        for (int i = 0; i < r->model[m].n; i++) {
            const struct eval_result *y = &r->model[m].result[i];
            if (m > 0 && eval_result_of(&r->model[0], y->task->name)) continue;
            hl_text_printf(out,
                           "<tr><th scope=\"row\">%s</th><td><span>%d</span><td><span>%s</span><td class=\"t\"><code>"
                           "%.16s</code><td><span>%.1f</span><td class=\"t\"><span>%s</span></tr>\n",
                           y->task->name, y->version, y->split ? y->split : "", y->sha256, y->seconds,
                           y->note ? y->note : "");
        }
    hl_text_puts(out, "</tbody></table></div></details>\n");
}

void eval_page_put(struct hl_text *out, const struct eval_report *r) {
    struct eval_row *row = NULL;
    const int rows = eval_rows(r, &row);
    char *data = rows >= 0 ? page_data(r, row, rows) : NULL, lead[160];
    int tasks = 0;
    for (int i = 0; i < rows; i++) tasks += i == 0 || row[i].task != row[i - 1].task;
    if (!data) {
        out->failed = true;
        free(row);
        return;
    }
    snprintf(lead, sizeof lead, "%d model%s, %d benchmark%s.", r->n, r->n == 1 ? "" : "s", tasks,
             tasks == 1 ? "" : "s");
    hl_page_begin(out, "Evaluation", lead, 0);
    if (r->n > 0 && r->model[0].how.limit > 0)
        hl_text_printf(out, "<p class=\"warn\">Only the first %lld documents of each benchmark were evaluated.</p>\n",
                       (long long)r->model[0].how.limit);
    put_models(out, r);
    put_results(out, r, row, rows);
    hl_text_puts(out, "<h2>Figures</h2>\n<div class=\"charts\" id=\"figures\"></div>\n");
    eval_paper_put(out, r);
    put_settings(out, r);
    hl_page_end(out, data, hl_eval_js, hl_eval_js_end - hl_eval_js);
    free(data);
    free(row);
}
