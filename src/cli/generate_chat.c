/* generate_chat.c -- hola generate -i: interactive chat on one session that never reprocesses the past.
 *
 * The history keeps a point at the end of every turn, for /undo. */
#define _GNU_SOURCE
#include "cli/generate.h"
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>
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

#ifdef HL_HAVE_LIBEDIT
/* The next key, 0 after Ctrl-C: libedit's own function would continue reading after a signal. SIGINT is blocked except
 * during the wait here (lines_read), so that none is lost between the check and the wait. */
static int read_key(EditLine *e, wchar_t *key) {
    mbstate_t state = {0};
    sigset_t open;
    (void)e;
    pthread_sigmask(SIG_SETMASK, NULL, &open);
    sigdelset(&open, SIGINT);
    for (;;) {
        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        char byte;
        if (ppoll(&in, 1, NULL, &open) < 0 && errno == EINTR) {
            if (gen_interrupted()) return 0;
            continue;
        }
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0) return (int)n;
        const size_t used = mbrtowc(key, &byte, 1, &state);
        if (used == (size_t)-1) *key = (unsigned char)byte; /* invalid in this locale */
        if (used != (size_t)-2) return 1;                   /* -2: incomplete character */
    }
}

/* A line from libedit, or NULL. */
static const char *edit_line(struct lines *l) {
    HistEvent ev;
    sigset_t old, interrupt;
    int n = 0;
    sigemptyset(&interrupt), sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &old);
    const char *got = gen_interrupted() ? NULL : el_gets(l->edit, &n);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!got || n <= 0 || gen_interrupted()) return NULL;
    if (l->past && n > 1) history(l->past, &ev, H_ENTER, got);
    free(l->line);
    l->line = strndup(got, (size_t)n - (got[n - 1] == '\n'));
    return l->line;
}
#endif

static void lines_open(struct lines *l) {
    *l = (struct lines){.terminal = isatty(STDIN_FILENO)};
#ifdef HL_HAVE_LIBEDIT
    HistEvent ev;
    setlocale(LC_CTYPE, ""); /* enables multi-byte keys */
    if (!l->terminal) return;
    l->edit = el_init("hola", stdin, stderr, stderr);
    l->past = history_init();
    if (l->past) history(l->past, &ev, H_SETSIZE, 500);
    if (!l->edit) return;
    el_set(l->edit, EL_PROMPT, sign);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_GETCFN, read_key);
    if (l->past) el_set(l->edit, EL_HIST, history, l->past);
    el_source(l->edit, NULL);
#endif
}

/* The next line without its newline, valid until the next call; NULL: end of input, or Ctrl-C (gen_interrupted). */
static const char *lines_read(struct lines *l) {
#ifdef HL_HAVE_LIBEDIT
    if (l->edit) return edit_line(l);
#endif
    if (l->terminal) fputs("> ", stderr), fflush(stderr);
    const ssize_t n = getline(&l->line, &l->room, stdin);
    if (n < 0 && gen_interrupted()) clearerr(stdin);
    if (n < 0) return NULL;
    if (n > 0 && l->line[n - 1] == '\n') l->line[n - 1] = 0;
    return l->line;
}

/* The next line; Ctrl-C discards the typed text, twice in a row it ends the conversation, like Ctrl-D. */
static const char *lines_next(struct lines *l) {
    for (int interrupts = 0; interrupts < 2; interrupts++) {
        const char *line = lines_read(l);
        if (line || !gen_interrupted() || !l->terminal) {
            gen_forget_interrupt(); /* a late Ctrl-C from the previous answer must not affect the next one */
            return line;
        }
        gen_forget_interrupt();
        fputs(interrupts ? "" : "\n(Ctrl-C again, or Ctrl-D, ends the conversation)\n", stderr);
#ifdef HL_HAVE_LIBEDIT
        if (l->edit) el_reset(l->edit);
#endif
    }
    return NULL;
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
    int64_t begin[TURNS]; /* where the latest turns began */
    int turns;
    bool ended;
};

/* Feeds the user's text, answers, and adds a point. */
static int turn(struct chat *c, const struct gen_prompt *p) {
    struct gen_run *r = c->r;
    if (c->turns == TURNS) memmove(c->begin, c->begin + 1, sizeof c->begin - sizeof *c->begin), c->turns--;
    c->begin[c->turns++] = hola_session_position(r->session);
    r->earlier += r->n;
    r->n = 0; /* -n applies per answer */
    int rc = gen_run_prompt(r, p);
    if (rc == CLI_OK) rc = gen_run_all(r, true);
    putchar('\n');
    cli_flush();
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
    if (!*path) fprintf(stderr, "/save needs the name of a file\n");
    else if (hola_session_save(r->session, path, (hola_dtype)r->g->o->dtype) != HOLA_OK)
        cli_fail_library(); /* the conversation continues */
    else fprintf(stderr, "%s: %lld tokens\n", path, (long long)hola_session_position(r->session));
    return CLI_OK;
}

static int reset(struct chat *c) {
    struct gen_run *r = c->r;
    const uint64_t seed = hola_session_seed_of(r->session);
    if (r->history && hola_history_rollback(r->history, hola_session_position(r->session)) != HOLA_OK)
        return cli_fail_library();
    if (!r->history) hola_session_reset(r->session), hola_session_seed(r->session, seed);
    c->turns = 0;
    fprintf(stderr, "a new conversation\n");
    return CLI_OK;
}

static int help(void) {
    fputs("/undo        take back the last turn\n"
          "/reset       start over: the model forgets everything\n"
          "/save FILE   save the session, for --load-session\n"
          "/quit        end the conversation (so does Ctrl-D, or Ctrl-C twice)\n"
          "//text       say '/text'\n"
          "Ctrl-C while the model writes ends its answer.\n",
          stderr);
    return CLI_OK;
}

/* Whether a line like "/word ..." is a command. A path ("/usr/bin is") is not. */
static bool is_command(const char *line, size_t *len) {
    *len = strcspn(line, " \t");
    return line[0] == '/' && *len > 1 && strspn(line + 1, "abcdefghijklmnopqrstuvwxyz") == *len - 1;
}

static int do_command(struct chat *c, const char *line, size_t len) {
    const char *rest = line + len + strspn(line + len, " \t");
    static const char *const names[] = {"/undo", "/reset", "/save", "/help", "/quit", "/exit", NULL};
    int which = 0;
    while (names[which] && (strlen(names[which]) != len || strncmp(names[which], line, len) != 0)) which++;
    if (names[which] && which != 2 && *rest) return fprintf(stderr, "%s takes nothing else\n", names[which]), CLI_OK;
    switch (which) {
    case 0: return undo(c);
    case 1: return reset(c);
    case 2: return save(c->r, rest);
    case 3: return help();
    case 4:
    case 5: c->ended = true; return CLI_OK;
    default: fprintf(stderr, "%.*s is not a command; /help lists them\n", (int)len, line);
    }
    return CLI_OK;
}

static int answer(struct chat *c, const char *line) {
    const struct gen_opts *o = c->r->g->o;
    struct gen_prompt p = {0};
    char *text = NULL;
    size_t len;
    if (is_command(line, &len)) return do_command(c, line, len);
    if (line[0] == '/' && line[1] == '/') line++;
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
        fprintf(stderr,
                "Ctrl-C ends an answer or takes back a line, Ctrl-D ends the conversation; /help lists commands\n");
    if (first->n > 0) rc = turn(&c, first);
    while (rc == CLI_OK && !c.ended && !ferror(stdout) && (line = lines_next(&c.lines))) rc = answer(&c, line);
    if (c.lines.terminal) fputc('\n', stderr);
    lines_close(&c.lines);
    hola_history_free(r->history);
    r->history = NULL;
    return rc;
}
