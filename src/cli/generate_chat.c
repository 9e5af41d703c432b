/* generate_chat.c -- hola generate -i: lines in, text out, on one session that never reads the past again.
 *
 * The history keeps a point at the end of every turn, which is what /undo goes back to. */
#define _GNU_SOURCE
#include "cli/generate.h"
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HL_HAVE_LIBEDIT
#include <histedit.h>
#endif

/* ---- lines ---- */

struct lines {
    bool terminal;
    char *line;
    size_t room;
#ifdef HL_HAVE_LIBEDIT
    EditLine *edit;
    History *past;
#endif
};

#ifdef HL_HAVE_LIBEDIT
static char *sign(EditLine *e) {
    static char text[] = "> ";
    (void)e;
    return text;
}
#endif

static void lines_open(struct lines *l) {
    *l = (struct lines){.terminal = isatty(STDIN_FILENO)};
#ifdef HL_HAVE_LIBEDIT
    HistEvent ev;
    setlocale(LC_CTYPE, ""); /* so that a key may be more than one byte */
    if (!l->terminal) return;
    l->edit = el_init("hola", stdin, stderr, stderr);
    l->past = history_init();
    if (l->past) history(l->past, &ev, H_SETSIZE, 500);
    if (!l->edit) return;
    el_set(l->edit, EL_PROMPT, sign);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_SIGNAL, 1);
    if (l->past) el_set(l->edit, EL_HIST, history, l->past);
    el_source(l->edit, NULL);
#endif
}

/* The next line without its line feed, lent until the next call; NULL: no more, or Ctrl-C. */
static const char *lines_next(struct lines *l) {
#ifdef HL_HAVE_LIBEDIT
    if (l->edit) {
        HistEvent ev;
        int n = 0;
        const char *got = el_gets(l->edit, &n);
        if (!got || n <= 0) return NULL;
        if (l->past && n > 1) history(l->past, &ev, H_ENTER, got);
        free(l->line);
        l->line = strndup(got, (size_t)n - (got[n - 1] == '\n'));
        return l->line;
    }
#endif
    if (l->terminal) fputs("> ", stderr), fflush(stderr);
    const ssize_t n = getline(&l->line, &l->room, stdin);
    if (n < 0) return NULL;
    if (n > 0 && l->line[n - 1] == '\n') l->line[n - 1] = 0;
    return l->line;
}

static void lines_close(struct lines *l) {
#ifdef HL_HAVE_LIBEDIT
    if (l->past) history_end(l->past);
    if (l->edit) el_end(l->edit);
#endif
    free(l->line);
}

/* ---- turns ---- */

enum { TURNS = 64 };
struct chat {
    struct gen_run *r;
    struct lines lines;
    int64_t begin[TURNS]; /* where the last turns began */
    int turns;
};

/* Reads what was said, answers, and keeps the point. */
static int turn(struct chat *c, const struct gen_prompt *p) {
    struct gen_run *r = c->r;
    if (c->turns == TURNS) memmove(c->begin, c->begin + 1, sizeof c->begin - sizeof *c->begin), c->turns--;
    c->begin[c->turns++] = hola_session_position(r->session);
    r->earlier += r->n;
    r->n = 0; /* -n counts anew */
    int rc = gen_run_prompt(r, p);
    if (rc == CLI_OK) rc = gen_run_all(r, stdout);
    if (rc == CLI_OK) rc = gen_run_feed(r);
    putchar('\n');
    fflush(stdout);
    gen_forget_interrupt();
    if (rc == CLI_OK && r->history && hola_history_keep(r->history) != HOLA_OK) rc = cli_fail_library();
    return rc;
}

static int undo(struct chat *c) {
    struct gen_run *r = c->r;
    if (!r->history) return fprintf(stderr, "a loaded session cannot be undone\n"), CLI_OK;
    if (c->turns == 0) return fprintf(stderr, "nothing to undo\n"), CLI_OK;
    const int64_t k = hola_session_position(r->session) - c->begin[--c->turns];
    if (hola_history_rollback(r->history, k) != HOLA_OK) return cli_fail_library();
    fprintf(stderr, "undid %lld tokens\n", (long long)k);
    return CLI_OK;
}

static int save(const struct gen_run *r, const char *path) {
    if (hola_session_save(r->session, path, (hola_dtype)r->g->o->dtype) != HOLA_OK)
        cli_fail_library(); /* the conversation goes on */
    else fprintf(stderr, "%s: %lld tokens\n", path, (long long)hola_session_position(r->session));
    return CLI_OK;
}

static int answer(struct chat *c, const char *line) {
    const struct gen_opts *o = c->r->g->o;
    struct gen_prompt p = {0};
    char *text = NULL;
    if (!strcmp(line, "/undo")) return undo(c);
    if (!strncmp(line, "/save ", 6)) return save(c->r, line + 6);
    const char *before = o->in_prefix ? o->in_prefix : "", *after = o->in_suffix ? o->in_suffix : "\n";
    const int n = asprintf(&text, "%s%s%s", before, line, after);
    if (n < 0) return cli_fail("no memory for a line");
    const bool first = hola_session_position(c->r->session) == 0;
    int rc = gen_encode(c->r->g, text, n, first, "the line", &p);
    if (rc == CLI_OK && p.n > 0) rc = turn(c, &p);
    free(p.ids);
    free(text);
    return rc;
}

int gen_chat(struct gen_run *r, const struct gen_prompt *first) {
    struct chat c = {.r = r};
    const hola_history_opts few = {.most = 4};
    const char *line;
    int rc = CLI_OK;
    if (hola_session_position(r->session) == 0 && hola_history_new(&r->history, r->session, &few) != HOLA_OK)
        return cli_fail_library();
    lines_open(&c.lines);
    if (c.lines.terminal && !r->g->o->quiet)
        fprintf(stderr, "Ctrl-C ends an answer, Ctrl-D the conversation; /undo, /save FILE\n");
    if (first->n > 0) rc = turn(&c, first);
    while (rc == CLI_OK && !ferror(stdout) && (line = lines_next(&c.lines))) rc = answer(&c, line);
    if (c.lines.terminal) fputc('\n', stderr);
    lines_close(&c.lines);
    hola_history_free(r->history);
    r->history = NULL;
    return rc;
}
