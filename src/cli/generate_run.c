/* generate_run.c -- one sequence: its prompt, then decoding to its end; statistics. */
#define _POSIX_C_SOURCE 200809L
#include "cli/generate.h"
#include "cli/progress.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/process.h"
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
    if (interrupted) { /* the first one is still pending: end the process at once */
        signal(sig, SIG_DFL);
        raise(sig);
    }
    interrupted = 1;
}
/* No SA_RESTART: interrupts reading a line, too. */
void gen_catch_signals(void) {
    struct sigaction a = {.sa_handler = note};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}
bool gen_interrupted(void) { return interrupted; }
void gen_forget_interrupt(void) { interrupted = 0; }

/* ---- setup ---- */

int gen_run_begin(struct gen_run *r, const struct gen *g, hola_session *s) {
    *r = (struct gen_run){.g = g, .session = s};
    if (g->o->logits) r->logprobs = json_array();
    return hl_text_clear(&r->text) == HOLA_OK ? CLI_OK : cli_fail("no memory for the text");
}

void gen_run_free(struct gen_run *r) {
    free(r->ids);
    json_decref(r->logprobs);
    hl_text_free(&r->text);
}

static bool show_progress(void *ctx, int64_t done, int64_t total) {
    progress_show(ctx, (double)done / (double)total, "reading: %" PRId64 " of %" PRId64 " tokens", done, total);
    return !gen_interrupted();
}

int gen_run_prompt(struct gen_run *r, const struct gen_prompt *p) {
    const double start = hl_clock();
    const int64_t before = hola_session_position(r->session);
    struct progress show;
    hola_status s = HOLA_OK;
    progress_begin(&show);
    show.on = show.on && !r->g->o->quiet;
    hola_session_on_progress(r->session, show_progress, &show);
    if (p->n > 0 && r->history) s = hola_history_feed(r->history, p->ids, p->n, NULL);
    else if (p->n > 0) s = hola_session_feed(r->session, p->ids, p->n, NULL);
    hola_session_on_progress(r->session, NULL, NULL);
    progress_end(&show);
    r->prompt_tokens += hola_session_position(r->session) - before;
    r->prefill += hl_clock() - start;
    r->end = s == HOLA_ECANCELLED ? GEN_INTERRUPT : GEN_GOES_ON;
    return s == HOLA_OK || s == HOLA_ECANCELLED ? CLI_OK : cli_fail_library();
}

/* ---- tokens ---- */

struct top {
    double logit;
    int32_t id;
};
/* The n largest, sorted, by insertion: n is small. */
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

/* The token's log-probability according to the model, and those of the top tokens. */
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

bool gen_run_note(struct gen_run *r, int32_t id) {
    const bool noted = (!r->logprobs || note_logprobs(r, id)) && note_id(r, id);
    r->no_memory |= !noted;
    return noted;
}

bool gen_run_text(struct gen_run *r, const char *text, int64_t len) {
    if (len > 0 && r->show) {
        fwrite(text, 1, (size_t)len, stdout);
        cli_flush();
    }
    const bool keep = r->g->o->json || r->g->o->prompts;
    if (keep && hl_text_put(&r->text, text, len) != HOLA_OK) r->no_memory = true;
    return !r->no_memory;
}

/* Whether this token ends answers in the chat template. */
static bool ends_answer(const struct gen *g, int32_t id) {
    for (int i = 0; g->look && i < hl_template_stops(g->look); i++) {
        int32_t stop;
        hl_template_stop(g->look, i, &stop);
        if (stop >= 0 && stop == id) return true;
    }
    return false;
}

static bool on_token(void *ctx, int32_t id, const char *text, int64_t len) {
    struct gen_run *r = ctx;
    r->closed = id >= 0 && ends_answer(r->g, id) && !r->g->o->ignore_eos;
    const bool noted = (id < 0 || gen_run_note(r, id)) && gen_run_text(r, text, len);
    return noted && !r->closed && !gen_interrupted() && !(r->show && ferror(stdout)); /* main reports it */
}

int gen_run_all(struct gen_run *r, bool show) {
    static const enum gen_end why[] = {
        [HOLA_END_LENGTH] = GEN_LENGTH,
        [HOLA_END_EOS] = GEN_EOS,
        [HOLA_END_STOP] = GEN_STOP,
        [HOLA_END_CANCELLED] = GEN_INTERRUPT,
    };
    const struct gen_opts *o = r->g->o;
    const hola_generate_opts opt = {.size = sizeof opt,
                                    .max_tokens = o->predict,
                                    .sampling = &o->sampling,
                                    .stop = o->stop.item,
                                    .n_stop = o->stop.n,
                                    .history = r->history,
                                    .ignore_eos = o->ignore_eos,
                                    .keep_logits = r->logprobs,
                                    .on_token = on_token,
                                    .ctx = r,
                                    .lookup = o->lookup > 0 ? o->lookup : -(o->lookup == 0),
                                    .source = r->source.ids,
                                    .n_source = r->source.n};
    const double start = hl_clock();
    hola_end end = HOLA_END_LENGTH;
    r->closed = false;
    if (r->end != GEN_GOES_ON) return CLI_OK; /* interrupted */
    r->show = show;
    const hola_status s = o->predict == 0 ? HOLA_OK : hola_generate(r->session, r->g->t, &opt, NULL, &end);
    r->decode += hl_clock() - start;
    r->end = r->closed ? GEN_EOS : why[end];
    if (r->no_memory) return cli_fail("no memory for the result");
    return s == HOLA_OK ? CLI_OK : cli_fail_library();
}

/* ---- results ---- */

static double rate(int64_t n, double seconds) { return seconds > 0 ? (double)n / seconds : 0; }

json_t *gen_run_json(const struct gen_run *r) {
    json_t *ids = json_array();
    for (int64_t i = 0; i < r->n; i++)
        if (json_array_append_new(ids, json_integer(r->ids[i]))) return NULL;
    json_t *root =
        json_pack("{s:I, s:o, s:o, s:f, s:f, s:I, s:I, s:I, s:s, s:I}", "prompt_tokens", (json_int_t)r->prompt_tokens,
                  "ids", ids, "text", hl_json_text(r->text.data, r->text.n), "tok_per_s", rate(r->n, r->decode),
                  "prefill_tok_per_s", rate(r->prompt_tokens, r->prefill), "memory_bytes",
                  (json_int_t)hola_session_bytes(r->session), "resident_bytes", (json_int_t)hl_resident_bytes(),
                  "position", (json_int_t)(hola_session_position(r->session) + r->unfed), "end", ends[r->end], "seed",
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
    if (r->g->o->quiet || ferror(stdout)) return;
    fprintf(stderr,
            "read %s tokens, %.1f/s; wrote %s, %.1f/s%s%s; session %s bytes, process %.1f MB; seed %" PRIu64 "\n",
            cli_grouped(prompt, r->prompt_tokens), rate(r->prompt_tokens, r->prefill), cli_grouped(n, written),
            rate(written, r->decode), *ends[r->end] ? "; end: " : "", ends[r->end],
            cli_grouped(bytes, hola_session_bytes(r->session)), (double)hl_resident_bytes() * 1e-6,
            hola_session_seed_of(r->session));
}
