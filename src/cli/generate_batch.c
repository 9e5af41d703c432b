/* generate_batch.c -- many prompts: up to --parallel sequences are stepped together, each joins when one ends.
 *
 * Every one starts from a copy of the same session, empty or loaded, and gives what it gives alone. */
#define _POSIX_C_SOURCE 200809L
#include "cli/generate.h"
#include "core/clock.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct batch {
    const struct gen *g;
    const hola_session *base;
    const struct gen_prompt *prompt;
    int64_t n, joined, printed; /* prompts; those that have begun; those whose result is out */
    struct gen_run *run;        /* [n] */
    bool *done;                 /* [n] */
    int64_t active, *who;       /* [parallel]: which of them are under way */
    hola_session **session;     /* these four [parallel] for a step */
    int32_t *ids;
    float *logits; /* where --logits wants them, else NULL */
    double decode; /* seconds of all steps */
    int64_t tokens, read;
    double prefill;
};

/* One line: line feeds, tabs and backslashes written as \n, \t, \\. */
static void print_line(const char *p, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (p[i] == '\n') fputs("\\n", stdout);
        else if (p[i] == '\r') fputs("\\r", stdout);
        else if (p[i] == '\t') fputs("\\t", stdout);
        else if (p[i] == '\\') fputs("\\\\", stdout);
        else putchar(p[i]);
    putchar('\n');
}

/* Results come in the order of the prompts, as soon as all before them are there. */
static int print_ready(struct batch *b) {
    int rc = CLI_OK;
    for (; rc == CLI_OK && b->printed < b->n && b->done[b->printed]; b->printed++) {
        struct gen_run *r = &b->run[b->printed];
        if (b->g->o->json) {
            json_t *root = gen_run_json(r);
            if (root && json_object_set_new(root, "prompt", json_integer(b->printed))) root = NULL;
            rc = cli_print_json(root);
        } else print_line(r->text.text.data, r->text.text.n);
        hola_session_free(r->session);
        gen_run_free(r);
        r->session = NULL;
    }
    fflush(stdout);
    return rc;
}

/* The next prompt is read, on a copy of the base. */
static int join(struct batch *b) {
    const int64_t i = b->joined++;
    hola_session *s;
    if (hola_session_clone(&s, b->base) != HOLA_OK) return cli_fail_library();
    int rc = gen_run_begin(&b->run[i], b->g, s);
    if (rc == CLI_OK) rc = gen_run_prompt(&b->run[i], &b->prompt[i]);
    b->prefill += b->run[i].prefill;
    b->read += b->run[i].prompt_tokens;
    b->who[b->active++] = i;
    return rc;
}

/* Every active sequence chooses; those that end leave. */
static int choose(struct batch *b) {
    int rc = CLI_OK;
    int64_t stay = 0;
    for (int64_t k = 0; rc == CLI_OK && k < b->active; k++) {
        struct gen_run *r = &b->run[b->who[k]];
        const int64_t before = r->n;
        rc = gen_run_choose(r);
        b->tokens += r->n - before;
        if (r->end == GEN_GOES_ON) b->who[stay++] = b->who[k];
        else b->done[b->who[k]] = true, gen_text_flush(&r->text, true, NULL);
    }
    b->active = stay;
    return rc;
}

static int step(struct batch *b) {
    for (int64_t k = 0; k < b->active; k++) {
        struct gen_run *r = &b->run[b->who[k]];
        b->session[k] = r->session;
        b->ids[k] = r->ids[r->n - 1];
        r->pending = false;
    }
    if (b->active == 0) return CLI_OK;
    hola_status s = b->logits ? hola_session_step(b->session, b->active, b->ids, b->logits)
                              : hola_session_step_sample(b->session, b->active, b->ids, &b->g->o->sampling, b->ids);
    for (int64_t k = 0; k < b->active && s == HOLA_OK && !b->logits; k++) {
        struct gen_run *r = &b->run[b->who[k]];
        r->chosen = true, r->next = b->ids[k];
    }
    return s == HOLA_OK ? CLI_OK : cli_fail_library();
}

static int run_batch(struct batch *b) {
    int rc = CLI_OK;
    while (rc == CLI_OK && b->printed < b->n) {
        while (rc == CLI_OK && b->active < b->g->o->parallel && b->joined < b->n && !gen_interrupted()) rc = join(b);
        const double start = hl_clock();
        if (rc == CLI_OK) rc = choose(b);
        if (rc == CLI_OK) rc = step(b);
        const double time = hl_clock() - start;
        b->decode += time;
        for (int64_t k = 0; k < b->active; k++) b->run[b->who[k]].decode += time;
        if (rc == CLI_OK) rc = print_ready(b);
        if (gen_interrupted() && b->active == 0) break;
    }
    return rc;
}

int gen_batch(const struct gen *g, hola_session *base, const struct gen_prompt *p, int64_t n) {
    const size_t most = (size_t)(g->o->parallel < n ? g->o->parallel : n);
    struct batch b = {.g = g, .base = base, .prompt = p, .n = n};
    b.run = calloc((size_t)n, sizeof *b.run);
    b.done = calloc((size_t)n, sizeof *b.done);
    b.who = calloc(most + 1, sizeof *b.who);
    b.session = calloc(most + 1, sizeof(hola_session *));
    b.ids = calloc(most + 1, sizeof *b.ids);
    if (g->o->logits) b.logits = malloc(most * (size_t)g->vocab * sizeof *b.logits);
    int rc = CLI_FAILED;
    if (b.run && b.done && b.who && b.session && b.ids && (b.logits || !g->o->logits)) rc = run_batch(&b);
    else cli_fail("no memory for %" PRId64 " prompts", n);
    if (rc == CLI_OK && !g->o->quiet)
        fprintf(stderr,
                "%" PRId64 " prompts, %zu at a time: read %" PRId64 " tokens, %.1f/s; wrote %" PRId64
                ", %.1f/s; %" PRId64 " bytes per session\n",
                b.printed, most, b.read, b.prefill > 0 ? (double)b.read / b.prefill : 0, b.tokens,
                b.decode > 0 ? (double)b.tokens / b.decode : 0, hola_session_bytes(base));
    for (int64_t i = b.printed; b.run && i < b.joined; i++) {
        hola_session_free(b.run[i].session);
        gen_run_free(&b.run[i]);
    }
    free(b.run), free(b.done), free(b.who), free(b.session), free(b.ids), free(b.logits);
    return rc;
}
