/* eval_page.c -- hola eval --html: the paper's tables with the results of this evaluation beside them, then
 * every figure with its settings. One file, nothing from elsewhere. */
#include "cli/eval.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    "body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: "
    "#222; background: #fff; }\n"
    "h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }\n"
    ".wide { overflow-x: auto; }\n"
    "table { border-collapse: collapse; font-variant-numeric: tabular-nums; }\n"
    "th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }\n"
    "th:first-child, td:first-child { text-align: left; }\n"
    "tr.ours td { background: #eef6ff; } tr.ours td:first-child { font-weight: 600; }\n"
    "small { color: #666; } code { font-size: .9em; }\n"
    "@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; } th, td { border-color: "
    "#444; }\n"
    "  tr.ours td { background: #1d2a38; } small { color: #999; } }\n";

/* ---- the paper ---- */

enum { COLUMNS = 13, ROWS = 4 };
struct column {
    const char *title, *task, *metric;
    double scale; /* of ours, to the paper's unit; 0: the mean of the columns marked `mean` */
    bool mean;
};
struct table {
    const char *title, *note;
    int columns;
    struct column column[COLUMNS];
    struct {
        const char *name;
        double value[COLUMNS]; /* 0: not given */
    } row[ROWS];
};
static const struct table tables[] = {
    {"Table 1: 340M parameters, 15B tokens",
     "Wiki. is the word perplexity; ARC-c and Hella. are acc_norm, the others acc; Avg. is the mean of the "
     "six "
     "accuracies.",
     13,
     {{"Wiki.", "wikitext", "word_perplexity", 1, false},
      {"LMB ppl", "lambada_openai", "perplexity", 1, false},
      {"ARC-e", "arc_easy", "acc", 100, true},
      {"ARC-c", "arc_challenge", "acc_norm", 100, true},
      {"Hella.", "hellaswag", "acc_norm", 100, true},
      {"PIQA", "piqa", "acc", 100, true},
      {"Wino.", "winogrande", "acc", 100, true},
      {"LMB acc", "lambada_openai", "acc", 100, true},
      {"Avg.", NULL, NULL, 0, false},
      {"FDA", "fda", "contains", 100, false},
      {"SWDE", "swde", "contains", 100, false},
      {"SQuAD", "squad_completion", "contains", 100, false},
      {"BoolQ", "boolq", "acc", 100, false}},
     {{"GDN, paper", {27.32, 30.95, 46.13, 23.72, 35.88, 65.07, 50.43, 34.02, 42.54, 11.7, 29.0, 32.5, 54.8}},
      {"HOLA + recency, paper", {25.04, 32.33, 46.13, 24.40, 35.62, 65.34, 52.80, 34.72, 43.17, 16.9, 29.9, 0, 0}},
      {"HOLA, paper", {22.92, 30.26, 46.00, 24.06, 35.91, 65.02, 51.54, 34.54, 42.85, 20.1, 35.9, 33.8, 58.4}}}},
    {"Figure 1: S-NIAH-1, part of the needles found, over the length of the prompt",
     "100 samples a length: differences below 0.14 are within two standard errors.",
     5,
     {{"2k", "niah_single_1", "2048", 1, false},
      {"4k", "niah_single_1", "4096", 1, false},
      {"8k", "niah_single_1", "8192", 1, false},
      {"16k", "niah_single_1", "16384", 1, false},
      {"32k", "niah_single_1", "32768", 1, false}},
     {{"GDN, paper", {1.00, 1.00, .83, .30, .14}},
      {"HOLA + recency, paper", {1.00, .93, .74, .50, .24}},
      {"HOLA, paper", {1.00, .99, .98, .94, .58}}}},
    {"Table 3: 46M parameters, recall of pass keys",
     "The probes are defined anew here: only the order of models can be compared. Whether the paper's Wiki. "
     "counts "
     "words or tokens is not known: both are shown.",
     8,
     {{"far", "passkey", "far", 1, false},
      {"mean", "passkey", "acc", 1, false},
      {"1 key", "multikey", "keys_1", 1, false},
      {"4 keys", "multikey", "keys_4", 1, false},
      {"8 keys", "multikey", "keys_8", 1, false},
      {"16 keys", "multikey", "keys_16", 1, false},
      {"Wiki. (word)", "wikitext", "word_perplexity", 1, false},
      {"Wiki. (token)", "wikitext", "token_perplexity", 1, false}},
     {{"GDN, paper", {.55, .60, .78, .41, .35, .31, 70.21, 70.21}},
      {"HOLA, paper", {.75, .69, .97, .77, .67, .41, 59.5, 59.5}}}},
};

/* ---- writing ---- */

/* Text from outside: names of files and models. */
void eval_quote(struct hl_text *out, const char *text) {
    struct hl_text valid = {0};
    if (hl_text_add_valid(&valid, hl_span_of(text)) != HOLA_OK) out->failed = true;
    for (int64_t i = 0; i < valid.n; i++)
        if (strchr("<>&\"'", valid.data[i]) && valid.data[i]) hl_text_printf(out, "&#%d;", valid.data[i]);
        else hl_text_put(out, valid.data + i, 1);
    hl_text_free(&valid);
}

static const struct hl_figure *figure(const struct eval_model *m, const char *task, const char *metric) {
    for (int i = 0; task && i < m->n; i++)
        for (int k = 0; strcmp(m->result[i].task->name, task) == 0 && k < m->result[i].metrics.count; k++)
            if (strcmp(m->result[i].metrics.metric[k].name, metric) == 0) return &m->result[i].metrics.metric[k];
    return NULL;
}

/* Ours in a column: value and error in the paper's unit; NAN: not there. */
static double ours(const struct table *t, const struct eval_model *m, int column, double *error) {
    const struct column *c = &t->column[column];
    const struct hl_figure *f = figure(m, c->task, c->metric);
    double sum = 0, squares = 0, n = 0, e;
    *error = f ? f->error * c->scale : NAN;
    if (c->scale > 0) return f ? f->value * c->scale : NAN;
    for (int i = 0; i < t->columns; i++)
        if (t->column[i].mean) sum += ours(t, m, i, &e), squares += e * e, n++;
    *error = sqrt(squares) / n;
    return sum / n;
}

static void cell(struct hl_text *out, double value, double error, bool unit) {
    const int digits = unit ? 3 : 2;
    if (!isfinite(value)) hl_text_puts(out, "<td>&ndash;</td>");
    else if (!isfinite(error)) hl_text_printf(out, "<td>%.*f</td>", digits, value);
    else hl_text_printf(out, "<td>%.*f <small>&plusmn; %.*f</small></td>", digits, value, digits, error);
}

static void put_table(struct hl_text *out, const struct table *t, const struct eval_report *r) {
    hl_text_printf(out, "<h2>%s</h2>\n<div class=wide><table><tr><th>", t->title);
    for (int c = 0; c < t->columns; c++) hl_text_printf(out, "<th>%s", t->column[c].title);
    for (int i = 0; i < ROWS && t->row[i].name; i++) {
        hl_text_printf(out, "\n<tr><td>%s", t->row[i].name);
        for (int c = 0; c < t->columns; c++)
            cell(out, t->row[i].value[c] > 0 ? t->row[i].value[c] : NAN, NAN,
                 t->column[c].scale == 1 && t->row[i].value[c] < 2);
    }
    for (int m = 0; m < r->n; m++) {
        hl_text_puts(out, "\n<tr class=ours><td>");
        eval_quote(out, r->model[m].dir);
        for (int c = 0; c < t->columns; c++) {
            double error, value = ours(t, &r->model[m], c, &error);
            cell(out, value, error, t->column[c].scale == 1 && value < 2);
        }
    }
    hl_text_printf(out, "\n</table></div>\n<p><small>%s</small></p>\n", t->note);
}

static void put_result(struct hl_text *out, const struct eval_model *m, const struct eval_result *y) {
    for (int k = 0; k < y->metrics.count; k++) {
        const struct hl_figure *f = &y->metrics.metric[k];
        hl_text_puts(out, "<tr><td>");
        eval_quote(out, m->dir);
        hl_text_printf(out, "<td>%s<td>%lld<td>%s", y->task->name, (long long)y->documents, f->name);
        cell(out, f->value, f->error, true);
        hl_text_printf(out, "<td>%d<td>%s<td><code>%.12s</code><td>%s</tr>\n", y->version, y->split ? y->split : "",
                       y->sha256, y->note ? y->note : "");
    }
}

static void put_model(struct hl_text *out, const struct eval_model *m) {
    const struct hl_eval_opts *h = &m->how;
    char seed[32] = "their own", limit[32] = "none";
    if (h->seed >= 0) snprintf(seed, sizeof seed, "%lld", (long long)h->seed);
    if (h->limit > 0) snprintf(limit, sizeof limit, "%lld", (long long)h->limit);
    hl_text_puts(out, "<tr><td>");
    eval_quote(out, m->dir);
    hl_text_printf(out,
                   "<td>%.1fM<td>%s<td><code>%.16s</code><td>%s<td>%s<td>%s<td>%lld<td>%s<td>%s<td>%s"
                   "</tr>\n",
                   (double)m->parameters * 1e-6, hola_dtype_name(m->dtype), m->sha256, hl_profile_names[h->profile],
                   hl_bos_names[h->bos], hl_retrieval_names[h->retrieval], (long long)h->max_length,
                   hl_precision_names[h->precision], limit, seed);
}

static void put_page(struct hl_text *out, const struct eval_report *r) {
    hl_text_printf(out,
                   "<!doctype html>\n<html lang=en><meta charset=utf-8>\n<meta name=viewport "
                   "content=\"width=device-width\">\n<title>hola eval</title>\n<style>\n%s</style>\n"
                   "<h1>Evaluation</h1>\n",
                   style);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        put_table(out, &tables[i], r);
        if (strncmp(tables[i].title, "Figure 1", 8) == 0) eval_curve_put(out, r);
    }
    hl_text_puts(out, "<h2>All figures</h2>\n<div class=wide><table><tr><th>model<th>task<th>n<th>metric<th>value "
                      "&plusmn; standard error<th>version<th>split<th>data<th></tr>\n");
    for (int m = 0; m < r->n; m++)
        for (int i = 0; i < r->model[m].n; i++) put_result(out, &r->model[m], &r->model[m].result[i]);
    hl_text_puts(out, "</table></div>\n<h2>Settings</h2>\n<div class=wide><table><tr><th>model<th>parameters<th>weights"
                      "<th>hash<th>profile<th>bos<th>retrieval<th>max_length<th>sums<th>limit<th>seed</tr>\n");
    for (int m = 0; m < r->n; m++) put_model(out, &r->model[m]);
    hl_text_printf(out, "</table></div>\n<p><small>hola %s</small></p>\n</html>\n", hola_version());
}

hola_status eval_page_write(const char *path, const struct eval_report *r) {
    struct hl_text out = {0};
    put_page(&out, r);
    hola_status st = hl_text_status(&out);
    if (st == HOLA_OK) st = hl_write_file(path, out.data, out.n);
    hl_text_free(&out);
    return st;
}
