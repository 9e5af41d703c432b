/* eval_figures.c -- see eval.h: units, numbers, and the set of figures. */
#include "cli/eval.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum eval_unit eval_unit(const char *metric) {
    if (strstr(metric, "perplexity")) return EVAL_PERPLEXITY;
    if (strcmp(metric, "bits_per_byte") == 0) return EVAL_BITS;
    if (!strcmp(metric, "tokens") || !strcmp(metric, "words") || !strcmp(metric, "bytes")) return EVAL_COUNT;
    return EVAL_SHARE;
}

char *eval_number(char buf[EVAL_NUMBER], double x, enum eval_unit unit) {
    char digits[EVAL_NUMBER];
    if (!isfinite(x)) snprintf(buf, EVAL_NUMBER, "-");
    else if (unit == EVAL_COUNT && fabs(x) < 1e15) return cli_grouped(buf, (int64_t)x);
    else if (fabs(x) < 1000) snprintf(buf, EVAL_NUMBER, "%.4f", x);
    else if (fabs(x) < 1e5) snprintf(buf, EVAL_NUMBER, "%.1f", x);
    else { /* 7.8e7, not 7.8e+07 */ snprintf(digits, sizeof digits, "%.1e", x);
        char *e = strchr(digits, 'e');
        *e = 0;
        snprintf(buf, EVAL_NUMBER, "%.20se%d", digits, atoi(e + 1));
    }
    return buf;
}

char *eval_size(char buf[EVAL_NUMBER], int64_t n) {
    if (n < 1000000) snprintf(buf, EVAL_NUMBER, "%.0fk", (double)n * 1e-3);
    else if (n < 1000000000) snprintf(buf, EVAL_NUMBER, "%.1fM", (double)n * 1e-6);
    else snprintf(buf, EVAL_NUMBER, "%.2fB", (double)n * 1e-9);
    return buf;
}

const struct eval_result *eval_result_of(const struct eval_model *m, const char *task) {
    for (int i = 0; task && i < m->n; i++)
        if (strcmp(m->result[i].task->name, task) == 0) return &m->result[i];
    return NULL;
}

const struct hl_figure *eval_figure(const struct eval_model *m, const char *task, const char *metric) {
    const struct eval_result *y = eval_result_of(m, task);
    for (int k = 0; y && k < y->metrics.count; k++)
        if (strcmp(y->metrics.metric[k].name, metric) == 0) return &y->metrics.metric[k];
    return NULL;
}

int64_t eval_documents(const struct eval_result *y, const char *metric) {
    int lengths = 0;
    for (int k = 0; k < y->metrics.count; k++) {
        const struct hl_figure *f = &y->metrics.metric[k];
        if (strcmp(f->name, metric) == 0 && f->n > 0) return f->n;
        lengths += isdigit((unsigned char)f->name[0]) != 0;
    }
    /* an earlier run's: the same number for every length */
    return isdigit((unsigned char)metric[0]) && lengths > 0 ? y->documents / lengths : y->documents;
}

bool eval_compare(const struct eval_report *r, int m, const char *task, const char *metric, struct hl_comparison *out) {
    const struct hl_figure *a = eval_figure(&r->model[0], task, metric), *b = eval_figure(&r->model[m], task, metric);
    *out = (struct hl_comparison){.difference = NAN, .p = NAN};
    if (!a || !b || m == 0 || eval_unit(metric) == EVAL_COUNT) return false;
    const struct eval_result *x = eval_result_of(&r->model[0], task), *y = eval_result_of(&r->model[m], task);
    if (strcmp(x->sha256, y->sha256) != 0 || x->documents != y->documents) return false;
    *out = hl_figure_compare(a, b);
    return isfinite(out->difference);
}

int eval_rows(const struct eval_report *r, struct eval_row **rows) {
    int n = 0, most = 1;
    for (int m = 0; m < r->n; m++)
        for (int i = 0; i < r->model[m].n; i++) most += r->model[m].result[i].metrics.count;
    *rows = calloc((size_t)most, sizeof **rows);
    if (!*rows) return -1;
    for (int m = 0; m < r->n; m++)
        for (int i = 0; i < r->model[m].n; i++)
            for (int k = 0; k < r->model[m].result[i].metrics.count; k++) {
                const struct eval_result *y = &r->model[m].result[i];
                int at = n;
                for (int j = 0; j < n; j++) { /* after the last row of its task */
                    const struct eval_row *row = &(*rows)[j];
                    if (row->task != y->task) continue;
                    at = strcmp(row->metric, y->metrics.metric[k].name) == 0 ? -1 : j + 1;
                    if (at < 0) break;
                }
                if (at < 0) continue;
                memmove(*rows + at + 1, *rows + at, (size_t)(n - at) * sizeof **rows);
                (*rows)[at].task = y->task;
                memcpy((*rows)[at].metric, y->metrics.metric[k].name, sizeof(*rows)[at].metric);
                n++;
            }
    return n;
}
