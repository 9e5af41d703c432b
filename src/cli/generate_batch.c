/* generate_batch.c -- many prompts: up to --parallel sequences are decoded in one batch; a new one joins when one ends.
 *
 * Each starts from a copy of the same session, empty or loaded, and gets the same result as on its own. */
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
    int64_t n, joined, printed; /* prompts; started; printed */
    struct gen_run *run;        /* [n] */
    hola_detokenizer **text;    /* [n], for active ones */
    int32_t *next;              /* [n]: the token sampled in the last step; -1: none */
    bool *done;                 /* [n] */
    int64_t active, *who;       /* [parallel]: indices of active sequences */
    hola_session **session;     /* these four [parallel] for a step */
    int32_t *ids;
    float *logits; /* if --logits needs them, else NULL */
    double decode; /* seconds in all steps */
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

/* Prints results in prompt order, as soon as all earlier ones are complete. */
static int print_ready(struct batch *b) {
    int rc = CLI_OK;
    for (; rc == CLI_OK && b->printed < b->n && b->done[b->printed]; b->printed++) {
        struct gen_run *r = &b->run[b->printed];
        if (b->g->o->json) {
            json_t *root = gen_run_json(r);
            if (root && json_object_set_new(root, "prompt", json_integer(b->printed))) root = NULL;
            rc = cli_print_json(root);
        } else print_line(r->text.data, r->text.n);
        hola_detokenizer_free(b->text[b->printed]);
        hola_session_free(r->session);
        gen_run_free(r);
        r->session = NULL;
    }
    cli_flush();
    return rc;
}

static hola_status begin_text(struct batch *b, int64_t i, const hola_session *s) {
    const struct arg_list *stop = &b->g->o->stop;
    int32_t before[8];
    hola_status st = hola_detokenizer_new(&b->text[i], b->g->t, stop->item, NULL, stop->n);
    if (st == HOLA_OK) hola_detokenizer_begin(b->text[i], before, hola_session_recent(s, before, 8));
    b->next[i] = -1;
    return st;
}

/* Feeds the next prompt to a copy of the base session. */
static int join(struct batch *b) {
    const int64_t i = b->joined++;
    hola_session *s;
    if (hola_session_clone(&s, b->base) != HOLA_OK) return cli_fail_library();
    int rc = gen_run_begin(&b->run[i], b->g, s);
    if (rc == CLI_OK) rc = gen_run_prompt(&b->run[i], &b->prompt[i]);
    if (rc == CLI_OK && begin_text(b, i, s) != HOLA_OK) rc = cli_fail_library();
    b->prefill += b->run[i].prefill;
    b->read += b->run[i].prompt_tokens;
    b->who[b->active++] = i;
    return rc;
}

static bool long_enough(const struct gen_run *r) { return r->g->o->predict >= 0 && r->n >= r->g->o->predict; }

/* Takes sequence i's next token; its end tells whether another may follow. Feeds nothing. */
static int choose_one(struct batch *b, int64_t i) {
    struct gen_run *r = &b->run[i];
    int32_t id = b->next[i];
    bool stopped;
    if (gen_interrupted()) r->end = GEN_INTERRUPT;
    else if (long_enough(r)) r->end = GEN_LENGTH;
    if (r->end != GEN_GOES_ON) return CLI_OK;
    if (id < 0 && hola_session_sample(r->session, &b->g->o->sampling, &id) != HOLA_OK) return cli_fail_library();
    b->next[i] = -1;
    if (id == b->g->eos && !b->g->o->ignore_eos) {
        r->end = GEN_EOS;
        return CLI_OK;
    }
    if (!gen_run_note(r, id)) return cli_fail("no memory for the result");
    if (hola_detokenizer_add(b->text[i], id, &stopped) != HOLA_OK) return cli_fail_library();
    r->end = stopped ? GEN_STOP : long_enough(r) ? GEN_LENGTH : GEN_GOES_ON;
    r->unfed = r->end != GEN_GOES_ON;
    return CLI_OK;
}

/* Samples for every active sequence; removes those that ended. */
static int choose(struct batch *b) {
    int rc = CLI_OK;
    int64_t stay = 0;
    for (int64_t k = 0; rc == CLI_OK && k < b->active; k++) {
        struct gen_run *r = &b->run[b->who[k]];
        const int64_t before = r->n;
        rc = choose_one(b, b->who[k]);
        b->tokens += r->n - before;
        if (r->end == GEN_GOES_ON) {
            b->who[stay++] = b->who[k];
            continue;
        }
        int64_t len;
        const char *text = hola_detokenizer_take(b->text[b->who[k]], true, &len);
        b->done[b->who[k]] = true;
        if (!gen_run_text(r, text, len)) rc = cli_fail("no memory for the result");
    }
    b->active = stay;
    return rc;
}

static int step(struct batch *b) {
    for (int64_t k = 0; k < b->active; k++) {
        struct gen_run *r = &b->run[b->who[k]];
        b->session[k] = r->session;
        b->ids[k] = r->ids[r->n - 1];
    }
    if (b->active == 0) return CLI_OK;
    hola_status s = b->logits ? hola_session_step(b->session, b->active, b->ids, b->logits)
                              : hola_session_step_sample(b->session, b->active, b->ids, &b->g->o->sampling, b->ids);
    for (int64_t k = 0; k < b->active && s == HOLA_OK && !b->logits; k++) b->next[b->who[k]] = b->ids[k];
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
    b.text = calloc((size_t)n, sizeof(hola_detokenizer *));
    b.next = calloc((size_t)n, sizeof *b.next);
    b.who = calloc(most + 1, sizeof *b.who);
    b.session = calloc(most + 1, sizeof(hola_session *));
    b.ids = calloc(most + 1, sizeof *b.ids);
    if (g->o->logits) b.logits = malloc(most * (size_t)g->vocab * sizeof *b.logits);
    int rc = CLI_FAILED;
    if (b.run && b.done && b.text && b.next && b.who && b.session && b.ids && (b.logits || !g->o->logits))
        rc = run_batch(&b);
    else cli_fail("no memory for %" PRId64 " prompts", n);
    char read[CLI_GROUPED], wrote[CLI_GROUPED], bytes[CLI_GROUPED];
    if (rc == CLI_OK && !g->o->quiet)
        fprintf(stderr,
                "%" PRId64 " prompts, %zu at a time: read %s tokens, %.1f/s; wrote %s, %.1f/s; %s bytes per session\n",
                b.printed, most, cli_grouped(read, b.read), b.prefill > 0 ? (double)b.read / b.prefill : 0,
                cli_grouped(wrote, b.tokens), b.decode > 0 ? (double)b.tokens / b.decode : 0,
                cli_grouped(bytes, hola_session_bytes(base)));
    for (int64_t i = b.printed; b.run && i < b.joined; i++) {
        if (b.text) hola_detokenizer_free(b.text[i]);
        hola_session_free(b.run[i].session);
        gen_run_free(&b.run[i]);
    }
    free(b.run), free(b.done), free(b.text), free(b.next), free(b.who), free(b.session), free(b.ids), free(b.logits);
    return rc;
}
