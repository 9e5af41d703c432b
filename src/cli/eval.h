/* eval.h -- what the files of hola eval share: options, results, and where they go. */
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
    int profile, bos, retrieval, precision, backend, ruler;
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
    struct hl_eval_opts how; /* bos, retrieval and max_length settled */
    struct eval_result *result;
    int n;
};
struct eval_report {
    const struct eval_opts *opts;
    struct eval_model *model;
    int n;
    json_t *read; /* files of --results: names and notes lie in them */
};

/* eval_report.c */
int eval_print_table(const struct eval_report *r);
json_t *eval_json(const struct eval_report *r); /* NULL: no memory */
/* eval_page.c: results beside the paper's, as one file */
hola_status eval_page_write(const char *path, const struct eval_report *r);

void eval_quote(struct hl_text *out, const char *text); /* text from outside: names of files and models */
/* eval_curve.c: Figure 1, the paper's lines and ours */
void eval_curve_put(struct hl_text *out, const struct eval_report *r);
/* eval_results.c: adds what is in a file of --json; models of the same hash are one */
hola_status eval_results_read(struct eval_report *r, const char *path);

/* eval_journal.c: answers, line by line in a file, so that an evaluation that was interrupted goes on */
struct eval_journal {
    FILE *f;
    char *path;
    int64_t found; /* answers that were there */
};
/* Opens DIR/TASK-KEY.jsonl, KEY a hash of `settings` (which it takes over), and takes the answers in it. A
 * line that a kill cut short is dropped. */
hola_status eval_journal_open(struct eval_journal *j, const char *dir, const char *task, json_t *settings,
                              const struct hl_set *s, struct hl_answer *a);
hola_status eval_journal_put(struct eval_journal *j, const struct hl_request *r, int64_t i, const struct hl_answer *a);
hola_status eval_journal_flush(struct eval_journal *j);
void eval_journal_close(struct eval_journal *j); /* zeroed ones too */

/* The samples file: one object per request. */
hola_status eval_samples_add(struct hl_writer *w, const char *model, const char *task, const struct hl_set *s,
                             const struct hl_answer *a);

/* eval_requests.c: requests from a file, answers to stdout, a line each */
int eval_requests(const char *path, hola_model *m, const struct hl_eval_opts *o);

#endif
