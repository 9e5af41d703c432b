#define _POSIX_C_SOURCE 200809L
/* bench_lookup.c -- text with drafts by look-up against text without, of the same seed, in turns.
 *
 *   make bench-lookup ARGS="DIR [threads [tokens [cpu]]]"
 * Kinds of text: novel, sampled at temperature 1 from all tokens; the model's own greedy text; and two that repeat a
 * source, which is the text itself, or the text with one id of 11 changed. Columns: ms a token without and with drafts,
 * medians of 5 turns, their ratio, and tokens per pass. cpu: processor time of the whole process instead of the
 * clock's, for one thread on a busy machine. */
#include "hola.h"
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
    check(hola_session_clone(&t->s, prompt));
    o.on_token = hear, o.ctx = t, o.ignore_eos = true;
    const double start = now();
    check(hola_generate(t->s, NULL, &o, NULL, NULL));
    const double took = now() - start;
    hola_session_free(t->s);
    return took / (double)t->n;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void compare(const hola_session *prompt, const char *what, double temp, int64_t tokens, int64_t spoil,
                    int64_t vocab) {
    static struct text plain, drafts;
    static int32_t source[MOST];
    double t[2][TURNS];
    hola_sampling p = hola_sampling_default();
    hola_generate_opts o = HOLA_GENERATE_INIT;
    p.temp = temp, p.top_k = temp > 0 ? 0 : p.top_k, p.top_p = 1, p.min_p = 0;
    o.sampling = &p, o.max_tokens = tokens;
    for (int i = 0; i < TURNS; i++) {
        o.lookup = -1, o.n_source = 0;
        t[0][i] = write_text(prompt, &plain, o);
        for (int64_t j = 0; j < plain.n; j++)
            source[j] = spoil > 1 && j % spoil == 7 ? (int32_t)((plain.id[j] + 1) % vocab) : plain.id[j];
        o.lookup = 0;
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
}

int main(int argc, char **argv) {
    hola_model *m;
    hola_session *s;
    int32_t ids[PROMPT];
    if (argc < 2) return fprintf(stderr, "usage: bench_lookup DIR [threads [tokens [cpu]]]\n"), 2;
    const hola_options opt = {.threads = argc > 2 ? atoi(argv[2]) : 0, .backend = "cpu"};
    const int64_t asked = argc > 3 ? atoi(argv[3]) : 256, tokens = asked < 1 ? 1 : asked > MOST ? MOST : asked;
    if (argc > 4) clock_id = CLOCK_PROCESS_CPUTIME_ID;
    check(hola_model_load(&m, argv[1], &opt));
    const int64_t vocab = hola_model_config(m)->vocab_size;
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)vocab);
    check(hola_session_new(&s, m));
    check(hola_session_feed(s, ids, PROMPT, NULL));
    compare(s, "novel", 1, tokens, 0, vocab);
    compare(s, "greedy", 0, tokens, 0, vocab);
    compare(s, "repeats a source", 1, tokens, 1, vocab);
    compare(s, "repeats it, 1 of 11 differs", 1, tokens, 11, vocab);
    hola_session_free(s);
    hola_model_free(m);
    return 0;
}
