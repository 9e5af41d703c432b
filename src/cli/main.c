/* main.c -- hola <command> [options]: a table of commands. */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/suggest.h"
#include "core/thread.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} commands[] = {
    {"demo", cmd_demo, "show what the exact memory is for, in a few minutes"},
    {"prepare", cmd_prepare, "turn text into token shards for training"},
    {"tokenizer", cmd_tokenizer, "train a byte-level BPE; encode and decode text"},
    {"init", cmd_init, "write a new model with random weights"},
    {"train", cmd_train, "train a model, with checkpoints, metrics and plots; resumable"},
    {"plot", cmd_plot, "plot the curves of one or more runs"},
    {"score", cmd_score, "compute the log-probability of every token, and the perplexity"},
    {"generate", cmd_generate, "continue a prompt, chat, save and restore sessions"},
    {"serve", cmd_serve, "serve a model: OpenAI API, sessions, a page that shows its memory"},
    {"eval", cmd_eval, "run benchmarks as lm-evaluation-harness defines them"},
    {"inspect", cmd_inspect, "show what is in a model, or in its exact memory"},
    {"convert", cmd_convert, "store a model's weights as f32, bf16, f16, int8 or int4"},
    {"bench", cmd_bench, "measure speed on this machine"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

/* If a standard stream is closed, the next opened file would get its number, and messages would be written to that
 * file. Opens /dev/null instead, in the wrong direction, so that using the stream still fails. */
static void keep_standard_streams(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", fd ? O_RDONLY : O_WRONLY);
    signal(SIGPIPE, SIG_IGN); /* treat a closed pipe as an ordinary write error until the end (end_of_output) */
    signal(SIGXFSZ, SIG_IGN); /* likewise a file size limit: partial output is then cleaned up */
}

static int print_commands(void) {
    printf("usage: hola <command> [options]\n\n");
    for (int i = 0; i < COMMANDS; i++) printf("  %-10s %s\n", commands[i].name, commands[i].about);
    printf("\n'hola <command> --help' lists the options of a command; 'hola --version' prints the "
           "version.\n");
    return CLI_OK;
}

static int run_command(int argc, char **argv) {
    char *help[] = {NULL, "--help", NULL};
    const bool version = !strcmp(argv[0], "--version") || !strcmp(argv[0], "-V") || !strcmp(argv[0], "version");
    struct suggest near;
    if (version && argc == 1) return printf("hola %s\n", hola_version()), CLI_OK;
    if (!strcmp(argv[0], "help") || !strcmp(argv[0], "--help") || !strcmp(argv[0], "-h")) {
        if (argc == 1) return print_commands();
        help[0] = argv[1]; /* hola help score */
        argc = 2, argv = help;
    }
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(argv[0], commands[i].name)) return commands[i].run(argc, argv);
    suggest_begin(&near, argv[0]);
    for (int i = 0; i < COMMANDS; i++) suggest_try(&near, commands[i].name);
    cli_fail("unknown command '%s'%s; see 'hola help'", argv[0], suggest_text(&near, ""));
    return CLI_USAGE;
}

/* ---- a small stack ---- */

struct call {
    int argc, rc;
    char **argv;
    sigset_t signals;
};
static void *run_call(void *ctx) {
    struct call *c = ctx;
    pthread_sigmask(SIG_SETMASK, &c->signals, NULL);
    c->rc = run_command(c->argc, c->argv);
    return NULL;
}

/* With a small limit (ulimit -s) the command runs on a thread, which has a stack of its own, and gets all signals. */
static int run_with_stack(int argc, char **argv) {
    struct call c = {.argc = argc, .argv = argv};
    struct rlimit limit;
    pthread_t thread;
    sigset_t all;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= HL_STACK) return run_command(argc, argv);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &c.signals);
    const bool started = hl_thread_start(&thread, run_call, &c);
    if (started) pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, &c.signals, NULL);
    return started ? c.rc : cli_fail("a stack of %d kB is too small (ulimit -s)", (int)(limit.rlim_cur >> 10));
}

/* If output could not be written, the command failed, whatever it returned. If the reader is gone (hola inspect | head
 * -1), hola dies of SIGPIPE silently, like other programs. */
static int end_of_output(int rc) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    cli_flush();
    const int error = cli_flush_error();
    if (!error && !ferror(stdout)) return rc;
    if (error == EPIPE || (poll(&out, 1, 0) == 1 && out.revents & POLLERR)) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    if (rc != CLI_OK) return rc;
    return cli_fail("standard output: %s", error ? strerror(error) : "cannot write");
}

int main(int argc, char **argv) {
    int rc;
    keep_standard_streams();
    if (argc < 2) {
        cli_fail("no command given; see 'hola help'");
        return CLI_USAGE;
    }
    rc = run_with_stack(argc - 1, argv + 1);
    return end_of_output(rc);
}
