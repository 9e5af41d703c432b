/* eval_paper.c -- the paper's figures next to those of this evaluation: benchmarks in rows, models in columns, each
 * with its size. A model of a different size is always marked as such. */
#include "cli/eval.h"
#include "plot/page.h"
#include <math.h>
#include <string.h>

enum { FIGURES = 13, MODELS = 3 };
struct figure {
    const char *title, *task, *metric; /* no task: the mean of the rows marked `mean` */
    bool mean;
    double value[MODELS]; /* fractions in percent; 0: not given */
};
struct table {
    const char *title, *training, *note;
    double parameters;
    const char *model[MODELS];
    struct figure figure[FIGURES];
};
static const struct table tables[] = {
    {"340M parameters",
     "15B tokens",
     "The perplexity of WikiText is per word. The mean is that of the six accuracies above it.",
     340e6,
     {"GDN", "HOLA, recency", "HOLA"},
     {{"WikiText", "wikitext", "word_perplexity", false, {27.32, 25.04, 22.92}},
      {"LAMBADA", "lambada_openai", "perplexity", false, {30.95, 32.33, 30.26}},
      {"ARC-easy", "arc_easy", "acc", true, {46.13, 46.13, 46.00}},
      {"ARC-challenge", "arc_challenge", "acc_norm", true, {23.72, 24.40, 24.06}},
      {"HellaSwag", "hellaswag", "acc_norm", true, {35.88, 35.62, 35.91}},
      {"PIQA", "piqa", "acc", true, {65.07, 65.34, 65.02}},
      {"WinoGrande", "winogrande", "acc", true, {50.43, 52.80, 51.54}},
      {"LAMBADA", "lambada_openai", "acc", true, {34.02, 34.72, 34.54}},
      {"Mean", NULL, "acc", false, {42.54, 43.17, 42.85}},
      {"FDA", "fda", "contains", false, {11.7, 16.9, 20.1}},
      {"SWDE", "swde", "contains", false, {29.0, 29.9, 35.9}},
      {"SQuAD", "squad_completion", "contains", false, {32.5, 0, 33.8}},
      {"BoolQ", "boolq", "acc", false, {54.8, 0, 58.4}}}},
    {"46M parameters",
     "0.5B tokens",
     "The probes here are our own: only the order of models can be compared. Whether the paper's perplexity of "
     "WikiText is per word or per token is not known, so it is shown with both.",
     46e6,
     {"GDN", "HOLA"},
     {{"Pass key, far", "passkey", "far", false, {55, 75}},
      {"Pass key, mean", "passkey", "acc", false, {60, 69}},
      {"1 key", "multikey", "keys_1", false, {78, 97}},
      {"4 keys", "multikey", "keys_4", false, {41, 77}},
      {"8 keys", "multikey", "keys_8", false, {35, 67}},
      {"16 keys", "multikey", "keys_16", false, {31, 41}},
      {"WikiText", "wikitext", "word_perplexity", false, {70.21, 59.5}},
      {"WikiText", "wikitext", "token_perplexity", false, {70.21, 59.5}}}},
};

static const double lengths[] = {2048, 4096, 8192, 16384, 32768};
static const struct {
    const char *name;
    double value[5];
} niah[] = {
    {"GDN", {1, 1, .83, .30, .14}}, {"HOLA, recency", {1, .93, .74, .50, .24}}, {"HOLA", {1, .99, .98, .94, .58}}};
const char eval_paper_lines_note[] = "Dashed: the paper's models of 340M parameters, 100 prompts a length.";

json_t *eval_paper_lines(const char *task) {
    json_t *all = json_array();
    for (size_t i = 0; strcmp(task, "niah_single_1") == 0 && i < sizeof niah / sizeof *niah; i++) {
        json_t *points = json_array();
        char name[64];
        snprintf(name, sizeof name, "%s, paper, 340M", niah[i].name);
        for (int k = 0; k < 5; k++) json_array_append_new(points, json_pack("[f, f]", lengths[k], niah[i].value[k]));
        json_array_append_new(all, json_pack("{s:s, s:o}", "name", name, "points", points));
    }
    return all;
}

/* ---- the tables ---- */

/* Our value and error, as fractions; NAN: missing. The mean needs all of its rows. */
static double ours(const struct table *t, const struct eval_model *m, const struct figure *f, double *error) {
    double sum = 0, squares = 0, n = 0;
    const struct hl_figure *y = f->task ? eval_figure(m, f->task, f->metric) : NULL;
    *error = y ? y->error : NAN;
    if (f->task) return y ? y->value : NAN;
    for (int i = 0; i < FIGURES && t->figure[i].title; i++) {
        double e;
        if (!t->figure[i].mean) continue;
        sum += ours(t, m, &t->figure[i], &e), squares += e * e, n++;
    }
    *error = sqrt(squares) / n;
    return sum / n;
}

static bool any_model_has(const struct eval_report *r, const struct table *t, const struct figure *f) {
    double error;
    for (int m = 0; m < r->n; m++)
        if (isfinite(ours(t, &r->model[m], f, &error))) return true;
    return false;
}

/* WikiText alone identifies the paper's table only if the model's size matches. */
static bool applies(const struct eval_report *r, const struct table *t) {
    for (int m = 0; m < r->n; m++)
        if (fabs((double)r->model[m].parameters / t->parameters - 1) < 0.15)
            for (int i = 0; i < FIGURES && t->figure[i].title; i++)
                if (any_model_has(r, t, &t->figure[i])) return true;
    for (int i = 0; i < FIGURES && t->figure[i].title; i++)
        if (t->figure[i].task && strcmp(t->figure[i].task, "wikitext") != 0 && any_model_has(r, t, &t->figure[i]))
            return true;
    return false;
}

static void put_warning(struct hl_text *out, const struct eval_report *r, const struct table *t) {
    int others = 0;
    char size[EVAL_NUMBER];
    for (int m = 0; m < r->n; m++) {
        if (fabs((double)r->model[m].parameters / t->parameters - 1) < 0.15) continue;
        hl_text_puts(out, others++ ? ", " : "<p class=\"warn\">Of another size than the paper's models: ");
        eval_page_model(out, r, m);
        hl_text_printf(out, " (%s)", eval_size(size, r->model[m].parameters));
    }
    if (others)
        hl_text_printf(out,
                       ". The paper's have %s and were trained on %s. Do not read a difference between them as one "
                       "of the method.</p>\n",
                       t->title, t->training);
}

static void put_row(struct hl_text *out, const struct eval_report *r, const struct table *t, const struct figure *f) {
    const enum eval_unit unit = eval_unit(f->metric);
    const char *kind = unit == EVAL_PERPLEXITY ? f->metric : strcmp(f->metric, "acc_norm") ? "%" : "%, per character";
    int64_t n = 0;
    for (int m = 0; f->task && m < r->n; m++) {
        const struct eval_result *y = eval_result_of(&r->model[m], f->task);
        if (y && y->documents > n) n = y->documents;
    }
    hl_text_printf(out, "<tr><th scope=\"row\">%s <small>", f->title);
    for (const char *p = kind; *p; p++) hl_text_put(out, *p == '_' ? " " : p, 1);
    hl_text_puts(out, "</small></th>");
    for (int i = 0; i < MODELS && t->model[i]; i++) {
        hl_text_puts(out, "<td>");
        eval_page_number(out, f->value[i] > 0 ? f->value[i] / (unit == EVAL_SHARE ? 100 : 1) : NAN, NAN, unit);
    }
    for (int m = 0; m < r->n; m++) {
        double error, value = ours(t, &r->model[m], f, &error);
        hl_text_puts(out, "<td>");
        eval_page_number(out, value, error, unit);
    }
    hl_text_puts(out, "<td>");
    if (n > 0) hl_text_printf(out, "<span>%lld</span>", (long long)n);
    hl_text_puts(out, "</tr>\n");
}

static void put_table(struct hl_text *out, const struct eval_report *r, const struct table *t) {
    char size[EVAL_NUMBER];
    hl_text_printf(out, "<h2>Beside the paper: %s, %s</h2>\n", t->title, t->training);
    put_warning(out, r, t);
    hl_text_puts(out, "<div class=\"wide\"><table class=\"paper\"><thead><tr><th class=\"t\">benchmark</th>");
    for (int i = 0; i < MODELS && t->model[i]; i++)
        hl_text_printf(out, "<th data-l=\"%s, paper, %.0fM\">%s<br><small>paper, %.0fM</small></th>", t->model[i],
                       t->parameters * 1e-6, t->model[i], t->parameters * 1e-6);
    for (int m = 0; m < r->n; m++) {
        hl_text_puts(out, "<th>");
        eval_page_model(out, r, m);
        hl_text_printf(out, "<br><small>%s</small></th>", eval_size(size, r->model[m].parameters));
    }
    hl_text_puts(out,
                 "<th data-l=\"documents (of this evaluation)\">n<br><small>ours</small></th></tr></thead><tbody>\n");
    for (int i = 0; i < FIGURES && t->figure[i].title; i++)
        if (any_model_has(r, t, &t->figure[i])) put_row(out, r, t, &t->figure[i]);
    hl_text_printf(out, "</tbody></table></div>\n<p class=\"note\">%s The paper's figures are of all documents.</p>\n",
                   t->note);
}

void eval_paper_put(struct hl_text *out, const struct eval_report *r) {
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (applies(r, &tables[i])) put_table(out, r, &tables[i]);
}
