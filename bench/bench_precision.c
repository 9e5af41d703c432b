#define _POSIX_C_SOURCE 200809L
/* bench_precision.c -- the same model in floats and with BF16 operands (--precision bf16), taking turns.
 *
 *   make bench-precision ARGS="[PRESET [THREADS [ROUNDS [all|train|prefill|decode [cpu]]]]]"
 * Training steps of 4 x 1024 tokens, prefill of 512 tokens and 64 decoded tokens of BF16 weights: the median of the
 * rounds of each, and the median of their ratios. With `cpu`, CPU time instead of wall time, for busy machines. */
#include "model/model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 4, SEQ = 1024, PREFILL = 512, DECODE = 64, MOST = 64 };
static clockid_t the_clock = CLOCK_MONOTONIC;
static double now(void) {
    struct timespec t;
    clock_gettime(the_clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static void must(hola_status s) {
    if (s == HOLA_OK) return;
    fprintf(stderr, "%s\n", hola_last_error());
    exit(1);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_size);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

struct side {
    hola_model *m;
    hola_trainer *t;
    hola_session *s;
    double time[MOST], loss;
};
static int32_t ids[BATCH * SEQ];
static float *logits;

static void step(struct side *x) {
    int64_t starts[BATCH];
    for (int i = 0; i < BATCH; i++) starts[i] = i * SEQ;
    must(hola_trainer_accumulate(x->t, ids, BATCH * SEQ, starts, BATCH, 1.0 / (BATCH * SEQ), &x->loss, NULL));
    must(hola_trainer_update(x->t, 1e-4, NULL));
}
static void prefill(struct side *x) {
    hola_session_reset(x->s);
    must(hola_session_feed(x->s, ids, PREFILL, NULL));
}
static void decode(struct side *x) {
    for (int i = 0; i < DECODE; i++) must(hola_session_feed(x->s, ids + i, 1, logits));
}

static void measure(const char *what, void (*run)(struct side *), struct side side[2], int rounds, int tokens) {
    double ratio[MOST], time[2];
    for (int i = -1; i < rounds; i++) /* -1: warm-up */
        for (int k = 0; k < 2; k++) {
            const double t = now();
            run(&side[k]);
            if (i >= 0) side[k].time[i] = now() - t;
        }
    for (int i = 0; i < rounds; i++) ratio[i] = side[0].time[i] / side[1].time[i];
    for (int k = 0; k < 2; k++) time[k] = median(side[k].time, rounds);
    printf("%-9s floats %9.2f ms, %8.1f tokens/s; BF16 %9.2f ms, %8.1f tokens/s: %.2f times\n", what, time[0] * 1e3,
           tokens / time[0], time[1] * 1e3, tokens / time[1], median(ratio, rounds));
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *preset = argc > 1 ? argv[1] : "46m", *only = argc > 4 ? argv[4] : "all";
    const int threads = argc > 2 ? atoi(argv[2]) : 0, asked = argc > 3 ? atoi(argv[3]) : 5;
    const int rounds = asked < 1 ? 1 : asked > MOST ? MOST : asked;
    const hola_train_opts train = {.size = sizeof train, .max_tokens = BATCH * SEQ};
    struct side side[2] = {{0}};
    hola_config cfg;
    if (argc > 5 && !strcmp(argv[5], "cpu")) the_clock = CLOCK_PROCESS_CPUTIME_ID;
    must(hola_config_preset(&cfg, preset, HOLA_TYPE_HOLA));
    logits = malloc((size_t)cfg.vocab_size * sizeof *logits);
    for (int i = 0; i < BATCH * SEQ; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)cfg.vocab_size);
    for (int k = 0; k < 2; k++) {
        const hola_precision how = k ? HOLA_PRECISION_BF16 : HOLA_PRECISION_AUTO;
        const hola_options opt = {.size = sizeof opt, .threads = threads, .precision = how};
        must(hola_model_new(&side[k].m, &cfg, 1, &opt));
        for (int64_t i = 0; i < side[k].m->params.n; i++) side[k].m->stored[i] = HOLA_BF16;
        hl_model_lay_out_states(side[k].m);
        hola_train_opts o = train;
        o.precision = how;
        if (!strcmp(only, "all") || !strcmp(only, "train")) must(hola_trainer_new(&side[k].t, side[k].m, &o));
    }
    printf("%s, %s time\n", preset, the_clock == CLOCK_MONOTONIC ? "wall" : "CPU");
    if (side[0].t) {
        measure("train", step, side, rounds, BATCH * SEQ);
        printf("          loss %.6f, %.6f\n", side[0].loss / (BATCH * SEQ), side[1].loss / (BATCH * SEQ));
    }
    for (int k = 0; k < 2; k++) {
        hola_trainer_free(side[k].t);
        must(hola_session_new(&side[k].s, side[k].m));
    }
    if (!strcmp(only, "all") || !strcmp(only, "prefill")) measure("prefill", prefill, side, rounds, PREFILL);
    if (!strcmp(only, "all") || !strcmp(only, "decode")) measure("decode", decode, side, rounds, DECODE);
    for (int k = 0; k < 2; k++) hola_session_free(side[k].s), hola_model_free(side[k].m);
    free(logits);
    return 0;
}
