/* eval_table.c -- the results of hola eval on a terminal: figures in rows, models in columns, each after the first with
 * its difference to the first and the p value of that difference. */
#define _POSIX_C_SOURCE 200809L
#include "cli/eval.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { TASK = 17, METRIC = 17, VALUE = 19, DIFFERENCE = 10, P = 11, FIXED = TASK + METRIC + 18 };

static int screen_width(void) {
    struct winsize w;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= 80 ? w.ws_col : 120;
}

/* Right-aligned in `width` columns, counted in characters. */
static void put_right(const char *text, int width) {
    int n = 0;
    for (const char *p = text; *p; p++) n += (*p & 0xc0) != 0x80;
    printf("%*s%s", n < width ? width - n : 0, "", text);
}

static void put_value(const struct hl_figure *f) {
    char value[EVAL_NUMBER] = "-", error[EVAL_NUMBER], both[2 * EVAL_NUMBER];
    if (f) eval_number(value, f->value, eval_unit(f->name));
    if (!f || !isfinite(f->error)) { /* aligns with numbers that have an error */
        snprintf(both, sizeof both, "%s         ", value);
    } else {
        eval_number(error, f->error, EVAL_PERPLEXITY);
        snprintf(both, sizeof both, "%s ± %-6.6s", value, error);
    }
    put_right(both, VALUE);
}

static void put_difference(const struct eval_report *r, int m, const struct eval_row *row) {
    struct hl_comparison c;
    char text[EVAL_NUMBER] = "", p[EVAL_NUMBER] = "", digits[EVAL_NUMBER];
    if (eval_compare(r, m, row->task->name, row->metric, &c)) {
        eval_number(digits, c.difference, EVAL_PERPLEXITY);
        snprintf(text, sizeof text, "%s%.30s", c.difference > 0 ? "+" : "", digits);
    }
    if (isfinite(c.p) && c.p < 0.0001) snprintf(p, sizeof p, "<0.0001");
    else if (isfinite(c.p)) snprintf(p, sizeof p, "%.4f", c.p);
    put_right(text, DIFFERENCE);
    put_right(p, P - 3);
    printf("%-3s", !isfinite(c.p) ? "" : c.p < 0.01 ? " **" : c.p < 0.05 ? " *" : "");
}

static char letter(int m) { return (char)('A' + m); }

/* Prints the first model and models `from` to `to`. */
static void put_block(const struct eval_report *r, const struct eval_row *row, int rows, int from, int to) {
    char text[64];
    printf("%-*s %-*s %8s %7s", TASK, "task", METRIC, "metric", "n", "chance");
    snprintf(text, sizeof text, "%s ± error", r->n > 1 ? "A" : "value");
    put_right(text, VALUE);
    for (int m = from; m < to; m++) {
        snprintf(text, sizeof text, "%c ± error", letter(m));
        put_right(text, VALUE);
        snprintf(text, sizeof text, "%c - A", letter(m));
        put_right(text, DIFFERENCE);
        put_right("p", P - 3);
        printf("   ");
    }
    printf("\n");
    for (int i = 0; i < rows; i++) {
        const struct eval_result *y = NULL;
        double chance = NAN;
        for (int m = 0; m < r->n && !y; m++) y = eval_result_of(&r->model[m], row[i].task->name);
        for (int m = 0; m < r->n && !isfinite(chance); m++) {
            const struct hl_figure *f = eval_figure(&r->model[m], row[i].task->name, row[i].metric);
            if (f) chance = f->chance;
        }
        printf("%-*s %-*s %8" PRId64 " ", TASK, row[i].task->name, METRIC, row[i].metric, y->documents);
        if (isfinite(chance)) printf("%7.4f", chance);
        else printf("%7s", "");
        put_value(eval_figure(&r->model[0], row[i].task->name, row[i].metric));
        for (int m = from; m < to; m++) {
            put_value(eval_figure(&r->model[m], row[i].task->name, row[i].metric));
            put_difference(r, m, &row[i]);
        }
        printf("\n");
    }
}

/* Which tests the p values come from. */
static void put_tests(const struct eval_report *r, const struct eval_row *row, int rows) {
    bool seen[4] = {false};
    for (int m = 1; m < r->n; m++)
        for (int i = 0; i < rows; i++) {
            struct hl_comparison c;
            if (eval_compare(r, m, row[i].task->name, row[i].metric, &c)) seen[c.test] = true;
        }
    if (!seen[HL_TEST_MCNEMAR] && !seen[HL_TEST_PAIRED] && !seen[HL_TEST_UNPAIRED]) return;
    printf("p: a difference this large by chance alone, two-sided (* below 0.05, ** below 0.01; not corrected for the "
           "number of rows).%s%s%s\n",
           seen[HL_TEST_MCNEMAR] ? " Answers right or wrong: McNemar's exact test." : "",
           seen[HL_TEST_PAIRED] ? " Others: normal test on differences of the same documents." : "",
           seen[HL_TEST_UNPAIRED] ? " Documents not known: normal test on the two errors." : "");
}

int eval_print_table(const struct eval_report *r) {
    struct eval_row *row = NULL;
    const int rows = eval_rows(r, &row), fits = (screen_width() - FIXED - VALUE) / (VALUE + DIFFERENCE + P);
    const int step = fits < 1 ? 1 : fits;
    char size[EVAL_NUMBER];
    if (rows < 0) return cli_fail("out of memory for the result");
    for (int m = 0; m < r->n; m++) {
        if (r->n > 1) printf("%c  ", letter(m));
        printf("%s: %s parameters, %s%s\n", r->model[m].dir, eval_size(size, r->model[m].parameters),
               hola_dtype_name(r->model[m].dtype), r->failed && r->model[m].n == 0 ? " (not evaluated)" : "");
    }
    for (int from = 1; from == 1 || from < r->n; from += step) {
        printf("\n");
        put_block(r, row, rows, from, from + step < r->n ? from + step : r->n);
    }
    printf("\n");
    put_tests(r, row, rows);
    for (int m = 0; m < r->n; m++)
        for (int i = 0; i < r->model[m].n; i++) {
            const struct eval_result *y = &r->model[m].result[i];
            if (m == 0 && y->note) printf("%s: %s\n", y->task->name, y->note);
        }
    const struct hl_eval_opts *h = &r->model[0].how;
    if (h->limit > 0) printf("only the first %" PRId64 " documents of each task\n", h->limit);
    printf("profile %s, bos %s, retrieval %s, max_length %" PRId64 ", log-likelihoods %s\n",
           hl_profile_names[h->profile], hl_bos_names[h->bos], hl_retrieval_names[h->retrieval], h->max_length,
           hl_precision_names[h->precision]);
    free(row);
    return CLI_OK;
}
