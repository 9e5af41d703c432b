/* train_log.c -- see train_log.h. */
#define _POSIX_C_SOURCE 200809L
#include "cli/train_log.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "core/clock.h"
#include "core/thread.h"
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DIM "2"
#define BOLD "1"
#define GREEN "32"
#define YELLOW "33"
#define RED "31"

/* ---- numbers ---- */

static const char *duration(char buf[32], double seconds) {
    const long long s = seconds > 0 && seconds < 1e12 ? (long long)(seconds + 0.5) : 0;
    if (s >= 86400) snprintf(buf, 32, "%lldd %02lldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600) snprintf(buf, 32, "%lldh %02lldm", s / 3600, s / 60 % 60);
    else snprintf(buf, 32, "%lldm %02llds", s / 60, s % 60);
    return buf;
}

/* The duration of a step or slice. */
static const char *short_time(char buf[32], double s) {
    if (s < 0.1) snprintf(buf, 32, "%.1f ms", 1e3 * s);
    else if (s < 10) snprintf(buf, 32, "%.2f s", s);
    else if (s < 100) snprintf(buf, 32, "%.1f s", s);
    else duration(buf, s);
    return buf;
}

/* The wall-clock time after waiting that long. */
static const char *clock_time(char buf[32], double seconds) {
    const time_t at = time(NULL) + (time_t)seconds;
    struct tm t;
    if (!localtime_r(&at, &t) || strftime(buf, 32, seconds < 64800 ? "%H:%M" : "%a %d %b %H:%M", &t) == 0) buf[0] = 0;
    return buf;
}

/* ---- the progress line, in pieces ---- */

enum { PIECES = 16 };
struct piece {
    char text[64];
    const char *colour; /* NULL: none */
    int rank;           /* the highest rank is dropped first if there is no room; 0: never dropped */
};
struct line {
    struct piece piece[PIECES];
    int n;
};
static void add(struct line *l, int rank, const char *colour, const char *fmt, ...) CLI_PRINTF(4, 5);
static void add(struct line *l, int rank, const char *colour, const char *fmt, ...) {
    va_list ap;
    if (l->n == PIECES) return;
    struct piece *p = &l->piece[l->n++];
    va_start(ap, fmt);
    vsnprintf(p->text, sizeof p->text, fmt, ap);
    va_end(ap);
    p->rank = rank, p->colour = colour;
}

static int width(const struct line *l) {
    int n = 0;
    for (int i = 0; i < l->n; i++) n += (int)strlen(l->piece[i].text) + (i > 0 ? 3 : 0);
    return n;
}

static void fit(struct line *l, int columns) {
    while (width(l) > columns) {
        int worst = -1;
        for (int i = 0; i < l->n; i++)
            if (l->piece[i].rank > (worst < 0 ? 0 : l->piece[worst].rank)) worst = i;
        if (worst < 0) break;
        memmove(&l->piece[worst], &l->piece[worst + 1], (size_t)(l->n - worst - 1) * sizeof l->piece[0]);
        l->n--;
    }
}

/* Prints at most `columns` characters, dropping pieces as needed. Returns the number printed. */
static int print(const struct train_log *l, const struct line *x, int columns) {
    int at = 0;
    for (int i = 0; i < x->n && at < columns; i++) {
        const struct piece *p = &x->piece[i];
        const bool paint = l->colour && p->colour;
        if (i > 0) at += fprintf(stderr, "%.*s", columns - at, " | ");
        if (paint) fprintf(stderr, "\033[%sm", p->colour);
        if (at < columns) at += fprintf(stderr, "%.*s", columns - at, p->text);
        if (paint) fputs("\033[0m", stderr);
    }
    return at;
}

/* Erases the line. A terminal that became narrower has wrapped it onto several. */
static void wipe(struct train_log *l) {
    const int columns = terminal_columns(STDERR_FILENO), above = l->drawn > 0 ? (l->drawn - 1) / columns : 0;
    if (!l->terminal) return;
    if (above > 0) fprintf(stderr, "\033[%dA\r\033[J", above);
    else fputs("\r\033[K", stderr);
    l->drawn = 0;
}

/* Fraction of the step done: whole slices, plus an estimate for the current one from the time of the previous. */
static double part_done(const struct train_log *l, double now) {
    const struct hl_train_work *w = &l->work;
    const double expected = l->slice_seconds > 0 ? l->slice_seconds : l->average;
    double inside = expected > 0 ? (now - l->slice_begun) / expected : 0;
    if (inside > 0.95) inside = 0.95;
    return w->of > 0 ? fmin(1, ((double)w->done + (w->done < w->of ? inside : 0)) / (double)w->of) : 0;
}

static void add_phase(const struct train_log *l, struct line *x, double now) {
    enum { BAR = 8 };
    static const char full[] = "########", empty[] = "........";
    const struct hl_train_work *w = &l->work;
    const int n = (int)(BAR * part_done(l, now));
    char t[32], slices[64] = "";
    if (w->of > 1)
        snprintf(slices, sizeof slices, " slice %lld/%lld", (long long)(w->done < w->of ? w->done + 1 : w->of),
                 (long long)w->of);
    switch (w->phase) {
    case HL_TRAIN_STEP:
        if (l->average <= 0) /* the first step: it may be slow, and its time is unknown */
            add(x, 0, NULL, "[%.*s%.*s]%s, %s", n, full, BAR - n, empty, slices, duration(t, now - l->phase_begun));
        else if (l->average > 1) add(x, 3, NULL, "[%.*s%.*s]%s", n, full, BAR - n, empty, slices);
        break;
    case HL_TRAIN_VALIDATION: add(x, 0, YELLOW, "validation%s", slices); break;
    case HL_TRAIN_BENCHMARKS: add(x, 0, YELLOW, "benchmarks %s", duration(t, now - l->phase_begun)); break;
    case HL_TRAIN_SAVING: add(x, 0, YELLOW, "saving"); break;
    }
}

/* Adds what is known about the last step. */
static void add_metric(const struct train_log *l, struct line *x, double seconds) {
    const struct hl_train_begin *b = &l->begin;
    const struct hl_metric *m = &l->last;
    char t[32], speed[CLI_GROUPED];
    if (isfinite(m->loss)) add(x, 1, BOLD, "loss %.4f", m->loss);
    else add(x, 1, RED, "loss not finite");
    if (!l->terminal && isfinite(m->grad_norm)) add(x, 9, NULL, "norm %.4g", m->grad_norm);
    else if (!l->terminal) add(x, 9, NULL, "norm not finite");
    else if (isfinite(l->val_loss)) add(x, 5, GREEN, "val %.4f", l->val_loss);
    add(x, 4, NULL, "%s tok/s", cli_grouped(speed, llrint(fmin(m->tok_per_s, 1e15))));
    add(x, 6, NULL, "%s", short_time(t, seconds));
    add(x, 2, NULL, "ETA %s", duration(t, l->average * (double)(b->steps - m->step)));
    add(x, 8, DIM, "lr %.2e", m->lr);
    if (l->terminal && isfinite(m->grad_norm)) add(x, 9, DIM, "norm %.3g", m->grad_norm);
    if (l->peak > 0) add(x, 10, DIM, "%.0f%% of peak", 100 * b->flop_per_token * m->tok_per_s / l->peak);
    if (m->skipped > 0) add(x, 3, YELLOW, "%lld skipped", (long long)m->skipped);
}

/* Draws the current line. The lock is held. */
static void draw(struct train_log *l) {
    struct line x = {.n = 0};
    const double now = hl_clock();
    const int columns = terminal_columns(STDERR_FILENO);
    if (!l->terminal || l->work.step == 0) return;
    add(&x, 0, BOLD, "step %lld/%lld", (long long)l->work.step, (long long)l->begin.steps);
    add_phase(l, &x, now);
    if (l->last.step) add_metric(l, &x, l->average);
    fit(&x, columns - 1);
    wipe(l);
    l->drawn = print(l, &x, columns - 1);
    l->drawn_at = now;
    fflush(stderr);
}

static void *tick(void *ctx) {
    struct train_log *l = ctx;
    pthread_mutex_lock(&l->lock);
    while (!l->quit) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 250000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&l->wake, &l->lock, &until);
        if (!l->quit && hl_clock() - l->drawn_at > 0.2) draw(l);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- permanent lines ---- */

static void say(struct train_log *l, const char *fmt, ...) CLI_PRINTF(2, 3);
static void say(struct train_log *l, const char *fmt, ...) {
    va_list ap;
    wipe(l);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

static void begin(void *ctx, const struct hl_train_begin *b) {
    struct train_log *l = ctx;
    char parameters[CLI_GROUPED], tokens[CLI_GROUPED], batch[CLI_GROUPED], steps[CLI_GROUPED], trained[CLI_GROUPED];
    pthread_mutex_lock(&l->lock);
    l->begin = *b;
    say(l, "model: %s parameters", cli_grouped(parameters, b->parameters));
    if (b->trained >= 0)
        say(l, "data: conversations of %s tokens, %s of them trained, %.3g epochs",
            cli_grouped(tokens, b->train_tokens), cli_grouped(trained, b->trained), b->epochs);
    else say(l, "data: %s training tokens, %.3g epochs", cli_grouped(tokens, b->train_tokens), b->epochs);
    say(l, "steps: %s of %s tokens, each in %lld slice%s", cli_grouped(steps, b->steps),
        cli_grouped(batch, b->tokens_per_step), (long long)b->slices, b->slices == 1 ? "" : "s");
    if (b->left > 0)
        say(l, "memory: %.2f GB predicted, %.2f GB more %s free", 1e-9 * (double)b->memory, 1e-9 * (double)b->left,
            b->device ? "of the device's are" : "are");
    else say(l, "memory: %.2f GB predicted", 1e-9 * (double)b->memory);
    if (b->step > 0) say(l, "resuming at step %lld", (long long)b->step);
    pthread_mutex_unlock(&l->lock);
}

/* Printed once, after the first slice. */
static void say_time(struct train_log *l) {
    char slice[32], step[32], all[32], at[32];
    const double seconds = l->slice_seconds * (double)l->work.of;
    const double left = seconds * (double)(l->begin.steps - l->work.step + 1);
    l->timed = true;
    say(l, "time: %s a slice, about %s a step", short_time(slice, l->slice_seconds), short_time(step, seconds));
    say(l, "end: about %s, in %s", clock_time(at, left), duration(all, left));
}

static void work(void *ctx, const struct hl_train_work *w) {
    struct train_log *l = ctx;
    const double now = hl_clock();
    pthread_mutex_lock(&l->lock);
    const bool first = w->done == 0;
    if (!first) l->slice_seconds = now - l->slice_begun;
    if (first && w->phase != l->work.phase) l->slice_seconds = 0;
    l->slice_begun = now;
    if (first) l->phase_begun = now;
    l->work = *w;
    if (w->phase == HL_TRAIN_STEP && w->done == 1 && !l->timed) say_time(l);
    if (now - l->drawn_at > 0.1) draw(l);
    pthread_mutex_unlock(&l->lock);
}

/* The line of a step in a log, and of one with an evaluation. */
static void say_step(struct train_log *l, double seconds) {
    const struct hl_metric *m = &l->last;
    struct line x = {.n = 0};
    add(&x, 0, NULL, "step %*lld/%lld", snprintf(NULL, 0, "%lld", (long long)l->begin.steps), (long long)m->step,
        (long long)l->begin.steps);
    if (l->terminal && isfinite(m->val_loss)) add(&x, 0, GREEN, "val loss %.4f", m->val_loss);
    if (l->terminal) l->val_loss = (double)NAN; /* already printed at the front */
    add_metric(l, &x, seconds);
    if (!l->terminal && isfinite(m->val_loss)) add(&x, 0, NULL, "val loss %.4f", m->val_loss);
    const int columns = isatty(STDERR_FILENO) ? terminal_columns(STDERR_FILENO) - 1 : 1 << 20; /* a dumb terminal too */
    fit(&x, columns);
    wipe(l);
    print(l, &x, columns);
    fputc('\n', stderr);
}

static void say_figures(struct train_log *l, const struct hl_train_figures *f) {
    for (int i = 0; i < f->n; i++) say(l, "  %-40s %.4f", f->at[i].name, f->at[i].value);
}

static void step(void *ctx, const struct hl_metric *m, const struct hl_train_step *x) {
    struct train_log *l = ctx;
    const struct hl_train_begin *b = &l->begin;
    pthread_mutex_lock(&l->lock);
    const bool in_log = m->step % l->every == 0 || m->step == b->steps || m->step == b->step + 1;
    l->average = l->last.step ? 0.9 * l->average + 0.1 * x->seconds : x->seconds;
    l->last = *m;
    l->peak = x->peak;
    if (isfinite(m->val_loss) || (!l->terminal && in_log)) say_step(l, x->seconds);
    if (isfinite(m->val_loss)) l->val_loss = m->val_loss;
    if (x->figure) say_figures(l, x->figure);
    if (l->terminal && hl_clock() - l->drawn_at > 0.1) draw(l);
    pthread_mutex_unlock(&l->lock);
}

static void note(void *ctx, const char *text) {
    struct train_log *l = ctx;
    pthread_mutex_lock(&l->lock);
    wipe(l);
    if (l->colour) fputs("\033[" YELLOW "m", stderr);
    fflush(stderr);
    cli_fail("%s", text);
    if (l->colour) fputs("\033[0m", stderr);
    pthread_mutex_unlock(&l->lock);
}

/* ---- start and end ---- */

static volatile sig_atomic_t rewriting; /* for train_log_stopping() */

void train_log_begin(struct train_log *l, int64_t every) {
    *l = (struct train_log){
        .terminal = terminal_rewrites(), .colour = terminal_colours(), .every = every, .val_loss = (double)NAN};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->wake, NULL);
    rewriting = l->terminal;
    if (!l->terminal) return;
    l->ticking = hl_thread_start(&l->thread, tick, l); /* without the thread the line is redrawn once per slice */
}

struct hl_train_report train_log_report(struct train_log *l) {
    return (struct hl_train_report){.ctx = l, .begin = begin, .work = work, .step = step, .note = note};
}

void train_log_end(struct train_log *l) {
    pthread_mutex_lock(&l->lock);
    l->quit = true;
    if (l->drawn > 0) wipe(l);
    fflush(stderr);
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    if (l->ticking) pthread_join(l->thread, NULL);
    l->ticking = false;
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
}

void train_log_stopping(void) {
    static const char text[] = "\r\033[Kstopping after this slice; Ctrl-C again stops at once\n";
    const size_t skip = rewriting ? 0 : 4;
    const ssize_t n = write(STDERR_FILENO, text + skip, sizeof text - 1 - skip);
    (void)n;
}
