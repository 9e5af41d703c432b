#define _POSIX_C_SOURCE 200809L
/* bench_lookup.c -- text with drafts by look-up against text without, of the same seed, in turns.
 *
 *   make bench-lookup ARGS="DIR [threads [tokens [cpu]]]"
 *   make bench-lookup ARGS="BACKEND [PRESET [tokens]]": cuda or cpu; default: 340m, 512
 * Kinds of text: novel, sampled at temperature 1 from all tokens; the model's own greedy text; and two that repeat a
 * source, which is the text itself, or the text with one id of 11 changed. Columns: ms a token without and with drafts,
 * medians of 5 turns, their ratio, and tokens per pass. cpu: processor time of the whole process instead of the
 * clock's, for one thread on a busy machine.
 *
 * On a device drafts may change a text of random weights where two ids are nearly as likely. So the model there has a
 * head by which id i is followed by one other id, and no text repeats itself (write_head); all its work is done. First
 * come the times of a step, and of passes over n rows, which src/model/generate.c has as constants (cost_of). */
#include "core/clock.h"
#include "model/session.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TURNS = 5, PROMPT = 200, MOST = 4096 };

static clockid_t clock_id = CLOCK_MONOTONIC;
static double now(void) {
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static void check(hola_status s) {
    if (s == HOLA_OK) return;
    fprintf(stderr, "%s\n", hola_last_error());
    exit(1);
}

struct text {
    hola_session *s;
    int32_t id[MOST];
    int64_t n, passes, position;
};
/* A pass has moved the session. */
static bool hear(void *ctx, int32_t id, const char *text, int64_t len) {
    struct text *t = ctx;
    (void)text, (void)len;
    if (id < 0) return true;
    const int64_t at = hola_session_position(t->s);
    t->passes += at != t->position;
    t->position = at;
    t->id[t->n++] = id;
    return true;
}

/* Seconds a token. */
static double write_text(const hola_session *prompt, struct text *t, hola_generate_opts o) {
    t->n = t->passes = 0;
    if (!t->s) check(hola_session_new(&t->s, prompt->model)); /* once: freeing one drops a device's graphs */
    check(hl_restore_point_copy(prompt->model, &t->s->now, &prompt->now, HL_ALL_CHANGES));
    t->position = hola_session_position(t->s);
    o.on_token = hear, o.ctx = t, o.ignore_eos = true;
    const double start = now();
    check(hola_generate(t->s, NULL, &o, NULL, NULL));
    return (now() - start) / (double)t->n;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void compare(const hola_session *prompt, const char *what, const hola_sampling *p, int64_t tokens,
                    int64_t spoil) {
    static struct text plain, drafts;
    static int32_t source[MOST];
    const int64_t vocab = prompt->model->cfg.vocab_size;
    double t[2][TURNS];
    hola_generate_opts o = HOLA_GENERATE_INIT;
    o.sampling = p, o.max_tokens = tokens;
    for (int i = 0; i < TURNS; i++) {
        o.lookup = -1, o.n_source = 0;
        t[0][i] = write_text(prompt, &plain, o);
        for (int64_t j = 0; j < plain.n; j++)
            source[j] = spoil > 1 && j % spoil == 7 ? (int32_t)((plain.id[j] + 1) % vocab) : plain.id[j];
        o.lookup = 3;
        if (spoil) o.source = source, o.n_source = plain.n;
        t[1][i] = write_text(prompt, &drafts, o);
        if (plain.n != drafts.n || memcmp(plain.id, drafts.id, (size_t)plain.n * sizeof *plain.id)) {
            fprintf(stderr, "%s: another text\n", what);
            exit(1);
        }
    }
    qsort(t[0], TURNS, sizeof(double), by_size), qsort(t[1], TURNS, sizeof(double), by_size);
    const double a = t[0][TURNS / 2], b = t[1][TURNS / 2];
    printf("%-28s %8.3f %8.3f %6.2f times %6.2f tokens a pass\n", what, 1e3 * a, 1e3 * b, a / b,
           (double)drafts.n / (double)drafts.passes);
    fflush(stdout);
    hola_session_free(plain.s), hola_session_free(drafts.s);
    plain.s = drafts.s = NULL;
}

static hola_session *prompt_of(hola_model *m) {
    const int64_t vocab = m->cfg.vocab_size;
    int32_t ids[PROMPT];
    hola_session *s;
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)vocab);
    check(hola_session_new(&s, m));
    check(hola_session_feed(s, ids, PROMPT, NULL));
    return s;
}

/* ---- with the weights of no file ---- */

static int32_t follower(int64_t id, int64_t vocab) { return (int32_t)((id * 21 + 12347) % vocab); }

/* Large embeddings, and for each the head's row of its follower points the same way. */
static void write_head(hola_model *m) {
    const int64_t d = m->cfg.hidden_size, vocab = m->cfg.vocab_size;
    real *embed = m->rows + m->params.tensor[m->params.embed].offset,
         *head = m->rows + m->params.tensor[m->params.head].offset;
    for (int64_t i = 0; i < vocab; i++) {
        double sum = 0;
        for (int64_t j = 0; j < d; j++) sum += (double)embed[i * d + j] * embed[i * d + j];
        const double one = sqrt((double)d / sum);
        for (int64_t j = 0; j < d; j++) head[follower(i, vocab) * d + j] = (real)(embed[i * d + j] * one * 0.02);
        for (int64_t j = 0; j < d; j++) embed[i * d + j] *= (real)(one * 16);
    }
}

static void best_of(double *best, double start) {
    const double took = hl_clock() - start;
    if (took < *best) *best = took;
}
/* The least of several times, in microseconds: of a step, of a pass, and of a pass that is taken back. */
static void passes(const hola_session *prompt, const hola_sampling *p) {
    enum { TIMES = 30 };
    static const int64_t lens[] = {2, 8, 16, 31};
    const int64_t vocab = prompt->model->cfg.vocab_size;
    int32_t ids[HL_DRAFT_ROWS] = {1}, next[HL_DRAFT_ROWS];
    hola_session *s;
    double step = 1;
    for (int i = 1; i < HL_DRAFT_ROWS; i++) ids[i] = follower(ids[i - 1], vocab);
    check(hola_session_clone(&s, prompt));
    for (int i = 0; i < TIMES; i++) {
        const double start = hl_clock();
        for (int j = 0; j < 8; j++) check(hola_session_step_sample(&s, 1, ids, p, ids));
        best_of(&step, start);
    }
    printf("a step: %.1f us\n", 1e6 * (step /= 8));
    for (int n = 0; n < 4 && lens[n] <= hl_session_draft_rows(s->model); n++) {
        const int64_t replayed = s->model->steps_replayed;
        double pass = 1, back = 1;
        for (int i = 0; i < TIMES; i++) { /* all within a block of the exact memory, if it has 256 tokens */
            check(hl_restore_point_copy(s->model, &s->now, &prompt->now, HL_ALL_CHANGES));
            double start = hl_clock();
            check(hl_session_feed_sample(s, ids, lens[n], p, next));
            best_of(&pass, start);
            check(hl_restore_point_copy(s->model, &s->now, &prompt->now, HL_ALL_CHANGES));
            start = hl_clock();
            check(hl_session_draft_mark(s));
            check(hl_session_feed_sample(s, ids, lens[n], p, next));
            check(hl_session_draft_drop(s));
            check(hl_finish(s->model->backend));
            best_of(&back, start);
        }
        printf(
            "a pass over %2d: %.1f us, %.2f steps; marked and taken back: %.1f us, %.2f steps; %lld of %d replayed\n",
            (int)lens[n], 1e6 * pass, pass / step, 1e6 * back, back / step,
            (long long)(s->model->steps_replayed - replayed), 2 * TIMES);
    }
    hl_session_draft_end(s);
    hola_session_free(s);
}

static void with_preset(int argc, char **argv) {
    const hola_options opt = {.backend = argv[1]};
    const int64_t asked = argc > 3 ? atoi(argv[3]) : 512, tokens = asked < 1 ? 1 : asked > MOST ? MOST : asked;
    const hola_sampling greedy = {.repeat_penalty = 1, .top_p = 1}, sampled = hola_sampling_default();
    hola_config cfg;
    hola_model *m;
    check(hola_config_preset(&cfg, argc > 2 ? argv[2] : "340m", HOLA_TYPE_HOLA));
    cfg.tie_word_embeddings = false;
    check(hola_model_new(&m, &cfg, 1, &opt));
    write_head(m);
    hola_session *prompt = prompt_of(m);
    passes(prompt, &greedy);
    compare(prompt, "novel", &greedy, tokens, 0);
    compare(prompt, "novel, sampled", &sampled, tokens, 0);
    compare(prompt, "repeats a source", &greedy, tokens, 1);
    compare(prompt, "... sampled", &sampled, tokens, 1);
    compare(prompt, "repeats it, 1 of 11 differs", &greedy, tokens, 11);
    compare(prompt, "... sampled", &sampled, tokens, 11);
    hola_session_free(prompt);
    hola_model_free(m);
}

int main(int argc, char **argv) {
    hola_model *m;
    if (argc < 2)
        return fprintf(stderr, "usage: bench_lookup DIR [threads [tokens [cpu]]] | BACKEND [PRESET [tokens]]\n"), 2;
    if (!strncmp(argv[1], "cuda", 4) || !strcmp(argv[1], "cpu")) return with_preset(argc, argv), 0;
    const hola_options opt = {.threads = argc > 2 ? atoi(argv[2]) : 0, .backend = "cpu"};
    const int64_t asked = argc > 3 ? atoi(argv[3]) : 256, tokens = asked < 1 ? 1 : asked > MOST ? MOST : asked;
    if (argc > 4) clock_id = CLOCK_PROCESS_CPUTIME_ID;
    check(hola_model_load(&m, argv[1], &opt));
    hola_session *s = prompt_of(m);
    const hola_sampling any = {.repeat_penalty = 1, .top_p = 1, .temp = 1}, greedy = {.repeat_penalty = 1, .top_p = 1};
    compare(s, "novel", &any, tokens, 0);
    compare(s, "greedy", &greedy, tokens, 0);
    compare(s, "repeats a source", &any, tokens, 1);
    compare(s, "repeats it, 1 of 11 differs", &any, tokens, 11);
    hola_session_free(s);
    hola_model_free(m);
    return 0;
}
