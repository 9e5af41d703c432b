/* eval_table.c -- the results of hola eval on a terminal: figures in rows, models in columns, each after the first with
 * its difference to the first and the p value of that difference. Columns are as wide as what they hold. A narrow
 * terminal gets the task on a line of its own, then fewer models a table, then fewer columns. */
#define _POSIX_C_SOURCE 200809L
#include "cli/eval.h"
#include "cli/terminal.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The columns: four that all models share, then four for each model. */
enum { TASK, METRIC, DOCUMENTS, CHANCE, SHARED };
enum { VALUE, ERROR, DIFFERENCE, P, PER_MODEL };
enum { CELL = 48 };

struct grid {
    char (*cell)[CELL]; /* rows x columns; row 0 is the head */
    int *width;         /* of each column */
    int rows, columns;
};
struct layout {
    bool headings;               /* the task is a line above its figures */
    bool left_out[SHARED], bare; /* bare: values without their errors */
    int models;                  /* besides the first, per table */
};

static char letter(int m) { return (char)('A' + m); }
static int column_of(int m, int what) { return SHARED + m * PER_MODEL + what; }
static char *cell(const struct grid *g, int row, int column) { return g->cell[row * g->columns + column]; }

static int characters(const char *text) {
    int n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

/* ---- the cells ---- */

/* A standard error in about six characters. */
static void put_error(char text[CELL], double x) {
    char digits[EVAL_NUMBER];
    if (!isfinite(x)) return;
    if (x < 1e5)
        snprintf(digits, sizeof digits, "%.*f", x < 10 ? 4 : x < 100 ? 3 : x < 1000 ? 2 : x < 10000 ? 1 : 0, x);
    else eval_number(digits, x, EVAL_PERPLEXITY);
    snprintf(text, CELL, "± %s", digits);
}

static void fill_shared(const struct eval_report *r, const struct eval_row *row, const struct grid *g, int at) {
    const struct eval_result *y = NULL;
    double chance = NAN;
    for (int m = 0; m < r->n && !y; m++) y = eval_result_of(&r->model[m], row->task->name);
    for (int m = 0; m < r->n && !isfinite(chance); m++) {
        const struct hl_figure *f = eval_figure(&r->model[m], row->task->name, row->metric);
        if (f) chance = f->chance;
    }
    snprintf(cell(g, at, TASK), CELL, "%s", row->task->name);
    snprintf(cell(g, at, METRIC), CELL, "%s", row->metric);
    snprintf(cell(g, at, DOCUMENTS), CELL, "%" PRId64, eval_documents(y, row->metric));
    if (isfinite(chance)) snprintf(cell(g, at, CHANCE), CELL, "%.4f", chance);
}

static void fill_model(const struct eval_report *r, const struct eval_row *row, const struct grid *g, int at, int m) {
    const struct hl_figure *f = eval_figure(&r->model[m], row->task->name, row->metric);
    struct hl_comparison c;
    char digits[EVAL_NUMBER];
    snprintf(cell(g, at, column_of(m, VALUE)), CELL, "%s", f ? eval_number(digits, f->value, eval_unit(f->name)) : "-");
    if (f) put_error(cell(g, at, column_of(m, ERROR)), f->error);
    if (eval_compare(r, m, row->task->name, row->metric, &c))
        snprintf(cell(g, at, column_of(m, DIFFERENCE)), CELL, "%s%s", c.difference > 0 ? "+" : "",
                 eval_number(digits, c.difference, EVAL_PERPLEXITY));
    if (!isfinite(c.p)) return;
    if (c.p < 0.0001) snprintf(cell(g, at, column_of(m, P)), CELL, "<0.0001 **");
    else snprintf(cell(g, at, column_of(m, P)), CELL, "%.4f%s", c.p, c.p < 0.01 ? " **" : c.p < 0.05 ? " *" : "");
}

static void fill_head(const struct eval_report *r, const struct grid *g) {
    static const char *const shared[SHARED] = {"task", "metric", "n", "chance"};
    for (int i = 0; i < SHARED; i++) snprintf(cell(g, 0, i), CELL, "%s", shared[i]);
    for (int m = 0; m < r->n; m++) {
        if (r->n > 1) snprintf(cell(g, 0, column_of(m, VALUE)), CELL, "%c", letter(m));
        else snprintf(cell(g, 0, column_of(m, VALUE)), CELL, "value");
        snprintf(cell(g, 0, column_of(m, ERROR)), CELL, "± error");
        if (m > 0) snprintf(cell(g, 0, column_of(m, DIFFERENCE)), CELL, "%c - A", letter(m));
        if (m > 0) snprintf(cell(g, 0, column_of(m, P)), CELL, "p");
    }
}

static bool grid_fill(struct grid *g, const struct eval_report *r, const struct eval_row *row, int rows) {
    g->rows = rows + 1, g->columns = SHARED + r->n * PER_MODEL;
    g->cell = calloc((size_t)g->rows * (size_t)g->columns, sizeof *g->cell);
    g->width = calloc((size_t)g->columns, sizeof *g->width);
    if (!g->cell || !g->width) return false;
    fill_head(r, g);
    for (int i = 0; i < rows; i++) {
        fill_shared(r, &row[i], g, i + 1);
        for (int m = 0; m < r->n; m++) fill_model(r, &row[i], g, i + 1, m);
    }
    for (int c = 0; c < g->columns; c++) {
        bool any = g->rows == 1 || c < SHARED; /* a column without any figure takes no room */
        for (int i = 1; i < g->rows; i++) any |= cell(g, i, c)[0] != 0;
        for (int i = 0; any && i < g->rows; i++)
            if (characters(cell(g, i, c)) > g->width[c]) g->width[c] = characters(cell(g, i, c));
    }
    return true;
}

/* ---- what fits ---- */

static int shown_width(const struct grid *g, const struct layout *l, int column) {
    if (column < SHARED) return l->left_out[column] || (column == TASK && l->headings) ? 0 : g->width[column];
    return l->bare && (column - SHARED) % PER_MODEL == ERROR ? 0 : g->width[column];
}

/* Spaces before a column: one between a value and its error. */
static int space_before(const struct layout *l, int column) {
    if (column == TASK) return 0;
    if (column == METRIC) return 2; /* after the task, or below it */
    return !l->bare && column >= SHARED && (column - SHARED) % PER_MODEL == ERROR ? 1 : 2;
}

static int model_width(const struct grid *g, const struct layout *l, int m) {
    int n = 0;
    for (int c = column_of(m, 0); c < column_of(m, PER_MODEL); c++)
        if (shown_width(g, l, c) > 0) n += space_before(l, c) + shown_width(g, l, c);
    return n;
}

/* How many models fit beside the first, none or up to all; -1: not even the first. */
static int fits(const struct grid *g, const struct layout *l, int models, int columns) {
    int n = 0, widest = 0;
    for (int c = 0; c < SHARED; c++)
        if (shown_width(g, l, c) > 0) n += space_before(l, c) + shown_width(g, l, c);
    n += model_width(g, l, 0);
    if (n > columns) return -1;
    for (int m = 1; m < models; m++)
        if (model_width(g, l, m) > widest) widest = model_width(g, l, m);
    return widest == 0 || (columns - n) / widest > models - 1 ? models - 1 : (columns - n) / widest;
}

/* The first layout with room for one model more than the first. Headings lose nothing, so they may also be taken to
 * show more models at once. */
static struct layout choose(const struct grid *g, int models, int columns) {
    struct layout l = {.headings = false};
    const int need = models > 1;
    const int as_it_is = fits(g, &l, models, columns);
    l.headings = true;
    const int with_headings = fits(g, &l, models, columns);
    l.headings = as_it_is < need || (as_it_is < models - 1 && with_headings > as_it_is);
    if (fits(g, &l, models, columns) < need) l.bare = true;
    if (fits(g, &l, models, columns) < need) l.left_out[DOCUMENTS] = true;
    if (fits(g, &l, models, columns) < need) l.left_out[CHANCE] = true;
    l.models = fits(g, &l, models, columns);
    return l;
}

/* ---- printing ---- */

/* Text to the left, figures to the right; an error next to its value, the stars of a p value after it. Spaces are owed
 * until something follows them: no line ends with one. */
static void put_cell(const struct grid *g, const struct layout *l, int row, int column, int *owed) {
    const char *text = cell(g, row, column);
    const int width = shown_width(g, l, column), pad = width - characters(text);
    const int what = column < SHARED ? -1 : (column - SHARED) % PER_MODEL;
    const bool left = column < DOCUMENTS || what == ERROR || what == P;
    if (width == 0) return;
    *owed += space_before(l, column) + (left ? 0 : pad);
    if (*text) {
        printf("%*s%s", *owed, "", text);
        *owed = 0;
    }
    if (left) *owed += pad;
}

static void put_row(const struct grid *g, const struct layout *l, int row, int from, int to) {
    int owed = 0;
    for (int c = 0; c < column_of(1, 0); c++) put_cell(g, l, row, c, &owed);
    for (int c = column_of(from, 0); c < column_of(to, 0); c++) put_cell(g, l, row, c, &owed);
    printf("\n");
}

static void put_block(const struct grid *g, const struct layout *l, int from, int to) {
    put_row(g, l, 0, from, to);
    for (int i = 1; i < g->rows; i++) {
        if (l->headings && (i == 1 || strcmp(cell(g, i, TASK), cell(g, i - 1, TASK)) != 0))
            printf("%s\n", cell(g, i, TASK));
        put_row(g, l, i, from, to);
    }
}

/* One paragraph, broken between words. */
static void put_wrapped(int columns, const char *fmt, ...) CLI_PRINTF(2, 3);
static void put_wrapped(int columns, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    int at = 0;
    for (char *word = text, *end; *word; word = end) {
        char *from = word + strspn(word, " ");
        end = from + strcspn(from, " ");
        const char last = *end;
        *end = 0;
        const int n = characters(from);
        if (at > 0 && at + 1 + n > columns) printf("\n"), at = 0;
        at += printf("%s%s", at > 0 ? " " : "", from) - (int)strlen(from) + n;
        *end = last;
    }
    printf("\n");
}

/* Which tests the p values come from. */
static void put_tests(const struct eval_report *r, const struct eval_row *row, int rows, int columns) {
    bool seen[4] = {false};
    for (int m = 1; m < r->n; m++)
        for (int i = 0; i < rows; i++) {
            struct hl_comparison c;
            if (eval_compare(r, m, row[i].task->name, row[i].metric, &c)) seen[c.test] = true;
        }
    if (!seen[HL_TEST_MCNEMAR] && !seen[HL_TEST_PAIRED] && !seen[HL_TEST_UNPAIRED]) return;
    put_wrapped(columns,
                "p: probability of a difference this large between equal models, two-sided (* below 0.05, ** below "
                "0.01; not corrected for the number of rows).%s%s%s",
                seen[HL_TEST_MCNEMAR] ? " Answers right or wrong: McNemar's exact test." : "",
                seen[HL_TEST_PAIRED] ? " Others: normal test on differences of the same documents." : "",
                seen[HL_TEST_UNPAIRED] ? " Documents not known: normal test on the two errors." : "");
}

static void put_notes(const struct eval_report *r, const struct layout *l, int columns) {
    const struct hl_eval_opts *h = &r->model[0].how;
    for (int i = 0; i < r->model[0].n; i++) {
        const struct eval_result *y = &r->model[0].result[i];
        if (y->note) put_wrapped(columns, "%s: %s", y->task->name, y->note);
    }
    if (h->limit > 0) put_wrapped(columns, "only the first %" PRId64 " documents of each task", h->limit);
    if (l->bare)
        put_wrapped(columns, "a wider terminal also shows the errors%s%s", l->left_out[DOCUMENTS] ? ", n" : "",
                    l->left_out[CHANCE] ? ", chance" : "");
    put_wrapped(columns, "profile %s, bos %s, retrieval %s, max_length %" PRId64 ", log-likelihoods %s",
                hl_profile_names[h->profile], hl_bos_names[h->bos], hl_retrieval_names[h->retrieval], h->max_length,
                hl_precision_names[h->precision]);
}

int eval_print_table(const struct eval_report *r) {
    /* a file or a pipe is as wide as the documents that quote it */
    const bool terminal = isatty(STDOUT_FILENO);
    const int columns = terminal ? terminal_columns(STDOUT_FILENO) : 120;
    struct eval_row *row = NULL;
    struct grid g = {0};
    const int rows = eval_rows(r, &row);
    char size[EVAL_NUMBER];
    if (rows < 0 || !grid_fill(&g, r, row, rows)) {
        free(row), free(g.cell), free(g.width);
        return cli_fail("out of memory for the result");
    }
    for (int m = 0; m < r->n; m++) {
        if (r->n > 1) printf("%c  ", letter(m));
        printf("%s: %s parameters, %s%s\n", r->model[m].dir, eval_size(size, r->model[m].parameters),
               hola_dtype_name(r->model[m].dtype), r->failed && r->model[m].n == 0 ? " (not evaluated)" : "");
    }
    struct layout l = {.headings = false}; /* lines of a file name their task */
    if (terminal) l = choose(&g, r->n, columns);
    else l.models = fits(&g, &l, r->n, columns);
    const int step = l.models > 0 ? l.models : 1;
    for (int from = 1; from == 1 || from < r->n; from += step) {
        printf("\n");
        put_block(&g, &l, from, from + step < r->n ? from + step : r->n);
    }
    printf("\n");
    put_tests(r, row, rows, terminal ? columns : 1 << 20);
    put_notes(r, &l, terminal ? columns : 1 << 20);
    free(row), free(g.cell), free(g.width);
    return CLI_OK;
}
