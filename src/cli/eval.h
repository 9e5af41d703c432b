/* eval.h -- shared by the files of hola eval: options, results, output. */
#ifndef HOLA_CLI_EVAL_H
#define HOLA_CLI_EVAL_H
#include "cli/args.h"
#include "cli/cli.h"
#include "core/file.h"
#include "eval/eval.h"

struct eval_opts {
    struct arg_list models, results;
    const char *data, *tasks, *text, *tokenizer, *out, *samples, *html, *requests, *lengths, *prompts, *dump;
    int64_t limit, max_length, seed, threads;
    int64_t length[16]; /* of --length */
    int n_lengths;
    int profile, bos, retrieval, precision, products, backend, ruler;
    bool truncate, json, list;
};

struct eval_result {
    const struct hl_task *task;
    struct hl_metrics metrics;
    int version;
    int64_t documents, requests;
    char *file;
    const char *split, *note;
    char sha256[65];
    double seconds;
};
struct eval_model {
    const char *dir;
    char sha256[65];
    hola_dtype dtype;
    int64_t parameters;
    struct hl_eval_opts how; /* with bos, retrieval and max_length resolved */
    struct eval_result *result;
    int n;
};
enum { EVAL_MODELS = 26 }; /* the most in a report: A to Z */
struct eval_report {
    const struct eval_opts *opts;
    struct eval_model *model;
    int n;
    json_t *read;       /* parsed --results files, which own names and notes */
    const char *failed; /* why it ended early; NULL: it did not */
};

/* eval_run.c: checks everything, runs the tasks (none if --results is given), reports */
int eval_run_all(const struct eval_opts *o, const struct hl_task **task, int n);

/* eval_files.c: additional output files. All are opened before anything is computed, so that an unwritable path fails
 * at once; a later failure affects only that file. */
struct eval_files {
    struct hl_writer samples, dump, page;
    char *why[4]; /* error messages, one per failure */
    int n;
};
hola_status eval_files_open(struct eval_files *w, const struct eval_opts *o);
void eval_files_failed(struct eval_files *w); /* preserves hola_last_error() */
/* Writes the page and renames the files into place (whole: everything was computed), or drops them; prints errors. */
int eval_files_close(struct eval_files *w, const struct eval_report *r, bool whole);

/* eval_figures.c: how the table, the JSON and the page format a figure */
enum eval_unit { EVAL_SHARE, EVAL_PERPLEXITY, EVAL_BITS, EVAL_COUNT };
enum eval_unit eval_unit(const char *metric);
/* Human-readable: 0.2512, 207.5, 7.8e7; counts with commas. Returns buf. */
enum { EVAL_NUMBER = 40 };
char *eval_number(char buf[EVAL_NUMBER], double x, enum eval_unit unit);
char *eval_size(char buf[EVAL_NUMBER], int64_t parameters); /* 46.4M */
const struct eval_result *eval_result_of(const struct eval_model *m, const char *task);
const struct hl_figure *eval_figure(const struct eval_model *m, const char *task, const char *metric);
/* The documents behind a figure: those of its length, where a task has several. */
int64_t eval_documents(const struct eval_result *y, const char *metric);
/* Model m compared with the first; false: a figure is missing, the data differ, or it is a count. */
bool eval_compare(const struct eval_report *r, int m, const char *task, const char *metric, struct hl_comparison *out);
/* All rows of all models, ordered by first occurrence: row i's task and metric; NULL: the end. */
struct eval_row {
    const struct hl_task *task;
    char metric[32];
};
int eval_rows(const struct eval_report *r, struct eval_row **rows); /* returns the count; malloced; -1: out of memory */

/* eval_table.c */
int eval_print_table(const struct eval_report *r);
/* eval_json.c */
json_t *eval_json(const struct eval_report *r); /* NULL: out of memory */
/* eval_page.c: everything on one page */
void eval_page_put(struct hl_text *out, const struct eval_report *r);
void eval_page_number(struct hl_text *out, double value, double error, enum eval_unit unit); /* shares in percent */
void eval_page_model(struct hl_text *out, const struct eval_report *r, int m);               /* "B hola/best" */
/* eval_paper.c: the paper's results next to these models, with both sizes; nothing if no task is shared */
void eval_paper_put(struct hl_text *out, const struct eval_report *r);
json_t *eval_paper_lines(const char *task); /* S-NIAH-1 over lengths; [] for other tasks */
extern const char eval_paper_lines_note[];
/* eval_results.c: adds the contents of a --json file; models with the same hash are merged */
hola_status eval_results_read(struct eval_report *r, const char *path);

/* eval_journal.c: answers, one per line in a file, so that an interrupted evaluation can resume */
struct eval_journal {
    FILE *f;
    char *path;
    int64_t found; /* answers found in the file */
};
/* Opens DIR/TASK-KEY.jsonl, where KEY is a hash of `settings` (ownership is taken), and reads its answers. A line
 * truncated by a kill is dropped. */
hola_status eval_journal_open(struct eval_journal *j, const char *dir, const char *task, json_t *settings,
                              const struct hl_set *s, struct hl_answer *a);
hola_status eval_journal_put(struct eval_journal *j, const struct hl_request *r, int64_t i, const struct hl_answer *a);
hola_status eval_journal_flush(struct eval_journal *j);
void eval_journal_close(struct eval_journal *j); /* also accepts a zeroed one */

/* The samples file: one object per request. */
hola_status eval_samples_add(struct hl_writer *w, const char *model, const char *task, int64_t length,
                             const struct hl_set *s, const struct hl_answer *a);

/* eval_requests.c: requests from a file, answers to stdout, one per line */
int eval_requests(const char *path, hola_model *m, const struct hl_eval_opts *o);

#endif
