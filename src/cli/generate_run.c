/* generate_run.c -- one sequence: its prompt, then token by token to its end; what is said about it. */
#define _POSIX_C_SOURCE 200809L
#include "cli/generate.h"
#include "cli/progress.h"
#include "core/clock.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const ends[] = {"", "length", "eos", "stop", "interrupt"}; /* in the order of gen_end */

/* ---- Ctrl-C ---- */

static volatile sig_atomic_t interrupted;
static void note(int sig) {
    if (interrupted) { /* nobody listens: end at once, as it would have */
        signal(sig, SIG_DFL);
        raise(sig);
    }
    interrupted = 1;
}
/* No SA_RESTART: a line that is being read ends too. */
void gen_catch_signals(void) {
    struct sigaction a = {.sa_handler = note};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a write error like any other */
}
bool gen_interrupted(void) { return interrupted; }
void gen_forget_interrupt(void) { interrupted = 0; }

/* ---- life ---- */

int gen_run_begin(struct gen_run *r, const struct gen *g, hola_session *s) {
    *r = (struct gen_run){.g = g, .session = s};
    r->logits = malloc((size_t)g->vocab * sizeof *r->logits);
    if (g->o->logits) r->logprobs = json_array();
    return r->logits ? CLI_OK : cli_fail("no memory for %" PRId64 " logits", g->vocab);
}

void gen_run_free(struct gen_run *r) {
    free(r->logits), free(r->ids);
    json_decref(r->logprobs);
    hl_text_free(&r->text.text);
}

static hola_status feed(struct gen_run *r, const int32_t *ids, int64_t n, float *logits) {
    return r->history ? hola_history_feed(r->history, ids, n, logits) : hola_session_feed(r->session, ids, n, logits);
}

int gen_run_prompt(struct gen_run *r, const struct gen_prompt *p) {
    const double start = hl_clock();
    struct progress show;
    hola_status s = HOLA_OK;
    int64_t fed = 0;
    progress_begin(&show);
    show.on = show.on && !r->g->o->quiet;
    while (s == HOLA_OK && fed < p->n && !gen_interrupted()) {
        const int64_t len = p->n - fed < r->g->piece ? p->n - fed : r->g->piece;
        s = feed(r, p->ids + fed, len, fed + len == p->n ? r->logits : NULL);
        fed += len;
        if (fed < p->n)
            progress_show(&show, (double)fed / (double)p->n, "reading: %" PRId64 " of %" PRId64 " tokens", fed, p->n);
    }
    progress_end(&show);
    r->prompt_tokens += fed;
    r->prefill += hl_clock() - start;
    hl_text_free(&r->text.text);
    gen_text_begin(&r->text, r->g, r->session, r->g->o->json || r->g->o->prompts);
    r->end = fed < p->n ? GEN_INTERRUPT : GEN_GOES_ON;
    return s == HOLA_OK ? CLI_OK : cli_fail_library();
}

/* ---- tokens ---- */

struct top {
    double logit;
    int32_t id;
};
/* The n largest, in order, by insertion: n is small. */
static int64_t top_logits(const float *x, int64_t vocab, int64_t n, struct top *out) {
    int64_t have = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (have == n && (double)x[i] <= out[n - 1].logit) continue;
        int64_t k = have < n ? have++ : n - 1;
        for (; k > 0 && out[k - 1].logit < (double)x[i]; k--) out[k] = out[k - 1];
        out[k] = (struct top){(double)x[i], (int32_t)i};
    }
    return have;
}

/* The token's log-probability as the model gave it, and those of the likeliest. */
static bool note_logprobs(struct gen_run *r, int32_t id) {
    const float *x = hola_session_logits(r->session);
    const int64_t n = r->g->o->logits;
    struct top *top = calloc((size_t)n, sizeof *top);
    json_t *list = json_array();
    double sum = 0;
    if (!top) return json_decref(list), false;
    const int64_t have = top_logits(x, r->g->vocab, n, top);
    for (int64_t i = 0; i < r->g->vocab; i++) sum += exp((double)x[i] - top[0].logit);
    const double log_sum = top[0].logit + log(sum);
    bool ok = true;
    for (int64_t i = 0; i < have; i++)
        ok = !json_array_append_new(list,
                                    json_pack("{s:i, s:f}", "id", (int)top[i].id, "logprob", top[i].logit - log_sum)) &&
             ok;
    free(top);
    return !json_array_append_new(r->logprobs, json_pack("{s:i, s:f, s:o}", "id", (int)id, "logprob",
                                                         (double)x[id] - log_sum, "top", list)) &&
           ok;
}

static bool note_id(struct gen_run *r, int32_t id) {
    const bool all = r->g->o->json || r->g->o->prompts;
    if (!r->ids || (all && r->n == r->room)) {
        const int64_t room = all ? 2 * r->room + 64 : 1;
        int32_t *more = realloc(r->ids, (size_t)room * sizeof *more);
        if (!more) return false;
        r->ids = more, r->room = room;
    }
    r->ids[all ? r->n : 0] = id;
    r->n++;
    return true;
}

int gen_run_choose(struct gen_run *r) {
    const struct gen_opts *o = r->g->o;
    int32_t id;
    if (gen_interrupted()) r->end = GEN_INTERRUPT;
    else if (o->predict >= 0 && r->n >= o->predict) r->end = GEN_LENGTH;
    if (r->end != GEN_GOES_ON) return CLI_OK;
    if (r->chosen) id = r->next, r->chosen = false;
    else if (hola_session_sample(r->session, &o->sampling, &id) != HOLA_OK) return cli_fail_library();
    if (id == r->g->eos && !o->ignore_eos) {
        r->end = GEN_EOS;
        return CLI_OK;
    }
    if ((r->logprobs && !note_logprobs(r, id)) || !note_id(r, id)) return cli_fail("no memory for the result");
    if (!gen_text_add(&r->text, id)) return CLI_FAILED;
    r->pending = true;
    if (r->text.stopped) r->end = GEN_STOP;
    else if (o->predict >= 0 && r->n >= o->predict) r->end = GEN_LENGTH;
    return CLI_OK;
}

static int32_t last_id(const struct gen_run *r) { return r->ids[r->g->o->json || r->g->o->prompts ? r->n - 1 : 0]; }

int gen_run_feed(struct gen_run *r) {
    const int32_t id = r->pending ? last_id(r) : 0;
    const struct gen_opts *o = r->g->o;
    if (!r->pending) return CLI_OK;
    r->pending = false;
    if (r->history || r->logprobs || o->save) /* where somebody will look at the logits */
        return feed(r, &id, 1, r->logits) == HOLA_OK ? CLI_OK : cli_fail_library();
    r->chosen = hola_session_step_sample(&r->session, 1, &id, &o->sampling, &r->next) == HOLA_OK;
    return r->chosen ? CLI_OK : cli_fail_library();
}

int gen_run_all(struct gen_run *r, FILE *out) {
    const double start = hl_clock();
    int rc = CLI_OK;
    while (rc == CLI_OK && r->end == GEN_GOES_ON) {
        rc = gen_run_feed(r);
        if (rc == CLI_OK) rc = gen_run_choose(r);
        if (rc == CLI_OK) gen_text_flush(&r->text, r->end != GEN_GOES_ON, out);
        if (out && ferror(out)) break; /* main will say so */
    }
    r->decode += hl_clock() - start;
    return rc;
}

/* ---- results ---- */

static double rate(int64_t n, double seconds) { return seconds > 0 ? (double)n / seconds : 0; }

json_t *gen_run_json(const struct gen_run *r) {
    json_t *ids = json_array();
    for (int64_t i = 0; i < r->n; i++)
        if (json_array_append_new(ids, json_integer(r->ids[i]))) return NULL;
    json_t *root =
        json_pack("{s:I, s:o, s:o, s:f, s:f, s:I, s:I, s:I, s:s, s:I}", "prompt_tokens", (json_int_t)r->prompt_tokens,
                  "ids", ids, "text", gen_text_json(r->text.text.data, r->text.text.n), "tok_per_s",
                  rate(r->n, r->decode), "prefill_tok_per_s", rate(r->prompt_tokens, r->prefill), "memory_bytes",
                  (json_int_t)hola_session_bytes(r->session), "resident_bytes", (json_int_t)cli_resident_bytes(),
                  "position", (json_int_t)hola_session_position(r->session), "end", ends[r->end], "seed",
                  (json_int_t)hola_session_seed_of(r->session));
    if (root && r->logprobs && json_object_set(root, "logprobs", r->logprobs)) {
        json_decref(root);
        return NULL;
    }
    return root;
}

void gen_run_report(const struct gen_run *r) {
    char prompt[CLI_GROUPED], n[CLI_GROUPED], bytes[CLI_GROUPED];
    const int64_t written = r->earlier + r->n;
    if (r->g->o->quiet) return;
    fprintf(stderr,
            "read %s tokens, %.1f/s; wrote %s, %.1f/s; end: %s; session %s bytes, process %.1f MB; seed %" PRIu64 "\n",
            cli_grouped(prompt, r->prompt_tokens), rate(r->prompt_tokens, r->prefill), cli_grouped(n, written),
            rate(written, r->decode), ends[r->end], cli_grouped(bytes, hola_session_bytes(r->session)),
            (double)cli_resident_bytes() * 1e-6, hola_session_seed_of(r->session));
}
