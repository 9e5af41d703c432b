/* eval_files.c -- the files of hola eval: samples, prompts, page, answers. */
#define _POSIX_C_SOURCE 200809L
#include "cli/eval.h"
#include <stdlib.h>
#include <string.h>

/* Whether files can be created in DIR. */
static hola_status try_dir(const char *dir) {
    struct hl_writer w = {0};
    char *path = hl_path_join(dir, "answers");
    hola_status st = path ? hl_make_dirs(dir) : hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
    if (st == HOLA_OK) st = hl_writer_open(&w, path);
    hl_writer_abort(&w);
    free(path);
    return st;
}

hola_status eval_files_open(struct eval_files *w, const struct eval_opts *o) {
    hola_status st = o->out ? try_dir(o->out) : HOLA_OK;
    *w = (struct eval_files){0};
    if (st == HOLA_OK && o->html) st = hl_writer_open(&w->page, o->html);
    if (st == HOLA_OK && o->samples) st = hl_writer_open(&w->samples, o->samples);
    if (st == HOLA_OK && o->dump) st = hl_writer_open(&w->dump, o->dump);
    return st;
}

void eval_files_failed(struct eval_files *w) {
    if (w->n < (int)(sizeof w->why / sizeof *w->why)) w->why[w->n++] = strdup(hola_last_error());
}

static hola_status write_page(struct hl_writer *w, const struct eval_report *r) {
    struct hl_text page = {0};
    eval_page_put(&page, r);
    hola_status st = hl_text_status(&page);
    if (st == HOLA_OK) st = hl_writer_write(w, page.data, page.n);
    if (st == HOLA_OK) st = hl_writer_commit(w);
    hl_text_free(&page);
    return st;
}

int eval_files_close(struct eval_files *w, const struct eval_report *r, bool whole) {
    /* a writer that failed during the run has already recorded its message */
    if (whole && r->opts->html && write_page(&w->page, r) != HOLA_OK) eval_files_failed(w);
    if (whole && r->opts->dump && w->dump.failed == HOLA_OK && hl_writer_commit(&w->dump) != HOLA_OK)
        eval_files_failed(w);
    if (whole && r->opts->samples && w->samples.failed == HOLA_OK && hl_writer_commit(&w->samples) != HOLA_OK)
        eval_files_failed(w);
    hl_writer_abort(&w->page);
    hl_writer_abort(&w->dump);
    hl_writer_abort(&w->samples);
    const int rc = w->n > 0 ? CLI_FAILED : CLI_OK;
    for (int i = 0; i < w->n; i++) {
        cli_fail("%s", w->why[i] ? w->why[i] : "a file could not be written");
        free(w->why[i]);
    }
    w->n = 0;
    return rc;
}
