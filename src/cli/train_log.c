/* train_log.c -- see train_log.h. */
#define _POSIX_C_SOURCE 200809L
#include "cli/train_log.h"
#include "cli/cli.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void begin(void *ctx, const struct hl_train_begin *b) {
    struct train_log *l = ctx;
    char parameters[CLI_GROUPED], tokens[CLI_GROUPED], batch[CLI_GROUPED];
    l->begin = *b;
    fprintf(stderr, "%s parameters | %s training tokens | %s tokens per step, %lld steps, %.3g epochs\n",
            cli_grouped(parameters, b->parameters), cli_grouped(tokens, b->train_tokens),
            cli_grouped(batch, b->tokens_per_step), (long long)b->steps, b->epochs);
    if (b->step > 0) fprintf(stderr, "resuming at step %lld\n", (long long)b->step);
}

static const char *duration(char buf[32], double seconds) {
    long long s = seconds > 0 && seconds < 1e12 ? (long long)seconds : 0;
    if (s >= 86400) snprintf(buf, 32, "%lldd %02lldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600) snprintf(buf, 32, "%lldh %02lldm", s / 3600, s / 60 % 60);
    else snprintf(buf, 32, "%lldm %02llds", s / 60, s % 60);
    return buf;
}

static void step(void *ctx, const struct hl_metric *m, double seconds) {
    struct train_log *l = ctx;
    const struct hl_train_begin *b = &l->begin;
    const bool shown = l->terminal || m->step % l->every == 0 || m->step == b->steps || m->step == b->step + 1;
    char line[512], eta[32];
    int n;
    l->average = l->last.step ? 0.9 * l->average + 0.1 * seconds : seconds;
    l->last = *m;
    if (!shown && !isfinite(m->val_loss)) return;
    n = snprintf(line, sizeof line, "step %*lld/%lld | loss %.6f | norm %.4f | lr %.2e | %.2f ms | %.0f tok/s",
                 snprintf(NULL, 0, "%lld", (long long)b->steps), (long long)m->step, (long long)b->steps, m->loss,
                 m->grad_norm, m->lr, 1e3 * seconds, m->tok_per_s);
    if (b->peak > 0)
        n += snprintf(line + n, sizeof line - (size_t)n, " | %.0f%% of peak",
                      100 * b->flop_per_token * m->tok_per_s / b->peak);
    n += snprintf(line + n, sizeof line - (size_t)n, " | ETA %s",
                  duration(eta, l->average * (double)(b->steps - m->step)));
    if (m->skipped > 0) n += snprintf(line + n, sizeof line - (size_t)n, " | %lld skipped", (long long)m->skipped);
    if (isfinite(m->val_loss)) snprintf(line + n, sizeof line - (size_t)n, " | val loss %.6f", m->val_loss);
    if (!l->terminal) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    l->open = !isfinite(m->val_loss); /* lines with an evaluation stay */
    fprintf(stderr, "\r%s\033[K%s", line, l->open ? "" : "\n");
}

static void note(void *ctx, const char *text) {
    train_log_end(ctx);
    cli_fail("%s", text);
}

void train_log_begin(struct train_log *l, int64_t every) {
    *l = (struct train_log){.terminal = isatty(2), .every = every};
}

struct hl_train_report train_log_report(struct train_log *l) {
    return (struct hl_train_report){.ctx = l, .begin = begin, .step = step, .note = note};
}

void train_log_end(struct train_log *l) {
    if (l->open) fputc('\n', stderr);
    l->open = false;
}
