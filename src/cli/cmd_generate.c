/* cmd_generate.c -- hola generate: text from a prompt. This file has the options and the top-level flow. */
#define _GNU_SOURCE
#include "cli/generate.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const dtypes[] = {"f32", "bf16", "f16", NULL}; /* in the order of hola_dtype */

#define OPTS struct gen_opts
static const struct arg options[] = {
    OPT_MODEL,
    OPT_STRING('p', "prompt", prompt, "TEXT", "prompt: the text to continue"),
    OPT_STRING('f', "file", file, "FILE", "read the prompt from a file, without a final newline; -: standard input"),
    OPT_STRING(0, "ids", ids, "FILE", "read the prompt as token ids: a JSON array, used as it is"),
    OPT_STRING(0, "prompts", prompts, "FILE", "many prompts: one per line, or .jsonl; decoded in a batch"),
    OPT_INT(0, "parallel", parallel, 1, 4096, "N", "prompts decoded at the same time (default 16)"),
    OPT_INT('n', "predict", predict, -1, INT32_MAX, "N",
            "tokens to generate (default 256; -1, the default with -i: until EOS)"),
    OPT_REAL(0, "temp", sampling.temp, 0, 1000, "X",
             "temperature (default 0.8); 0: greedy, always the likeliest token"),
    OPT_INT(0, "top-k", sampling.top_k, 0, INT32_MAX, "N", "sample from the N likeliest tokens (default 40; 0: all)"),
    OPT_REAL(0, "top-p", sampling.top_p, 0.0001, 1, "X",
             "nucleus sampling: smallest set with this probability (default 0.95)"),
    OPT_REAL(0, "min-p", sampling.min_p, 0, 1, "X", "drop tokens below X times the highest probability (default 0.05)"),
    OPT_REAL(0, "repeat-penalty", sampling.repeat_penalty, 0.01, 100, "X",
             "penalty on repeated tokens (default 1: off)"),
    OPT_INT(0, "repeat-last-n", sampling.repeat_last_n, 0, HOLA_RECENT, "N",
            "recent tokens the penalty applies to (default 64)"),
    OPT_INT('s', "seed", seed, 0, INT64_MAX, "N", "sampling seed (default: random)"),
    OPT_FLAG(0, "chat", chat, "the prompt is a question: put it in the model's chat template and end with the answer"),
    OPT_STRING(0, "chat-template", chat_template, "NAME",
               "the same with this template: plain, chatml, llama2, llama3, mistral, zephyr or a JSON file"),
    OPT_LIST(0, "stop", stop, "TEXT", "stop before this text; may be given several times"),
    OPT_INT(0, "lookup", lookup, 0, 64, "N",
            "draft what followed the last N tokens earlier in the text: faster, same text (default 3; 0, a GPU: off)"),
    OPT_FLAG(0, "ignore-eos", ignore_eos, "continue after the EOS token"),
    OPT_FLAG(0, "no-bos", no_bos, "do not put the tokenizer's BOS first"),
    OPT_FLAG('i', "interactive", interactive, "hold a conversation, one line from the keyboard or a pipe at a time"),
    OPT_STRING(0, "in-prefix", in_prefix, "TEXT", "put before every line of input"),
    OPT_STRING(0, "in-suffix", in_suffix, "TEXT", "put after every line of input (default: a newline)"),
    OPT_STRING(0, "save-session", save, "FILE", "save the session to a file at the end"),
    OPT_STRING(0, "load-session", load, "FILE", "continue a saved session; the prompt follows its text"),
    OPT_CHOICE(0, "session-dtype", dtype, dtypes, "type of the numbers in that file (default f32: exact)"),
    OPT_INT(0, "logits", logits, 0, 1000, "N", "with --json: the N likeliest tokens at every position"),
    OPT_STRING(0, "tokenizer", tokenizer, "PATH", "tokenizer: a directory, a file or \"byte\" (default: the model's)"),
    OPT_THREADS,
    OPT_BACKEND,
    OPT_PRECISION,
    OPT_FLAG('q', "quiet", quiet, "do not report speed and memory on stderr"),
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "generate", "[-m DIR] (-p TEXT | -f FILE | --prompts FILE | -i) [options]",
    "Continues a prompt. Memory and time per token do not grow with the length of the text.", options};

static int check_usage(const struct gen_opts *o) {
    const int prompts = !!o->prompt + !!o->file + !!o->ids + !!o->prompts;
    if (prompts > 1) return cli_usage("generate", "only one of -p, -f, --ids and --prompts can be given");
    if (o->prompts && o->interactive) return cli_usage("generate", "--prompts cannot be used with -i");
    if (o->prompts && o->save) return cli_usage("generate", "--prompts cannot be used with --save-session");
    if (o->interactive && o->json) return cli_usage("generate", "--json cannot be used with -i");
    if (o->interactive && o->file && !strcmp(o->file, "-"))
        return cli_usage("generate", "-f - cannot be used with -i: both would read standard input");
    if (o->chat && (o->interactive || o->ids || o->prompts))
        return cli_usage("generate", "--chat takes one question, of -p or -f; hola serve holds conversations");
    if (o->logits && !o->json) return cli_usage("generate", "--logits needs --json");
    for (int i = 0; i < o->stop.n; i++)
        if (!*o->stop.item[i]) return cli_usage("generate", "--stop needs a text");
    return ARGS_RUN;
}

/* The model, and its tokenizer. */
static int open_model(struct gen *g) {
    const struct gen_opts *o = g->o;
    const hola_options opt = {
        .threads = (int)o->threads, .backend = cli_backend(o->backend), .precision = (hola_precision)o->products};
    if (hola_model_load(&g->model, o->model, &opt) != HOLA_OK) return cli_fail_library();
    g->vocab = hola_model_config(g->model)->vocab_size;
    g->eos = (int32_t)hola_model_config(g->model)->eos_token_id;
    return gen_open_tokenizer(g);
}

/* The stop texts of the chat template; its stop tokens are handled in generate_run.c. */
static void add_stops(const struct gen *g, struct gen_opts *o) {
    for (int i = 0; i < hl_template_stops(g->look) && o->stop.n < ARG_LIST_MOST; i++) {
        int32_t id;
        const char *text = hl_template_stop(g->look, i, &id);
        if (id < 0) o->stop.item[o->stop.n++] = text;
    }
}

static int open_session(const struct gen *g, hola_session **s) {
    uint64_t seed = (uint64_t)g->o->seed;
    if (hola_session_new(s, g->model) != HOLA_OK) return cli_fail_library();
    if (g->o->load && hola_session_load(*s, g->o->load) != HOLA_OK) return cli_fail_library();
    if (g->o->load && g->o->seed < 0) return CLI_OK; /* keep the loaded session's own */
    if (g->o->seed < 0 && getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = 0;
    hola_session_seed(*s, g->o->seed < 0 ? seed >> 33 : seed); /* short enough to type */
    return CLI_OK;
}

static int many(const struct gen *g, hola_session *s) {
    struct gen_prompt *p = NULL;
    int64_t n = 0;
    int rc = gen_read_prompts(g, hola_session_position(s) == 0, &p, &n);
    if (rc == CLI_OK) rc = gen_batch(g, s, p, n);
    for (int64_t i = 0; i < n; i++) free(p[i].ids);
    free(p);
    return rc;
}

/* Whether text and report end up in one file or pipe: what the text leaves open is then closed before the report. */
static bool one_log(void) {
    struct stat out, err;
    return !isatty(STDOUT_FILENO) && fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
           out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

static int one(const struct gen *g, hola_session *s) {
    const struct gen_opts *o = g->o;
    const bool first = hola_session_position(s) == 0;
    struct gen_prompt p = {0};
    struct gen_run r;
    int rc = gen_run_begin(&r, g, s);
    if (rc == CLI_OK) rc = gen_read_prompt(g, first, &p);
    if (rc == CLI_OK && o->interactive) rc = gen_chat(&r, &p);
    else if (rc == CLI_OK && p.n == 0 && !hola_session_logits(s) && o->predict != 0)
        rc = cli_fail("%s: saved without logits, so a prompt is needed to continue", o->load);
    else if (rc == CLI_OK) {
        rc = gen_run_prompt(&r, &p);
        r.source = (struct gen_prompt){p.ids, p.n > HOLA_RECENT ? p.n - HOLA_RECENT : 0};
        if (rc == CLI_OK) rc = gen_run_all(&r, !o->json);
    }
    if (rc == CLI_OK && o->save && hola_session_save(s, o->save, (hola_dtype)o->dtype) != HOLA_OK)
        rc = cli_fail_library();
    if (rc == CLI_OK && o->json) rc = cli_print_json(gen_run_json(&r));
    else if (rc == CLI_OK && isatty(STDOUT_FILENO) && !o->interactive) putchar('\n');
    cli_flush();
    if (rc == CLI_OK && !o->json && !o->interactive && !o->quiet && one_log()) fputc('\n', stderr);
    if (rc == CLI_OK) gen_run_report(&r);
    free(p.ids);
    gen_run_free(&r);
    return rc;
}

int cmd_generate(int argc, char **argv) {
    struct gen_opts o = {
        .predict = INT64_MIN, .seed = -1, .parallel = 16, .lookup = -1, .sampling = hola_sampling_default()};
    struct gen g = {.o = &o};
    hola_session *s = NULL;
    int rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    o.chat |= o.chat_template != NULL;
    rc = check_usage(&o);
    if (rc != ARGS_RUN) return rc;
    if (o.predict == INT64_MIN) o.predict = o.interactive ? -1 : 256;
    rc = open_model(&g);
    if (rc == CLI_OK && g.look) add_stops(&g, &o);
    if (rc == CLI_OK) rc = open_session(&g, &s);
    if (rc == CLI_OK) gen_catch_signals();
    if (rc == CLI_OK) rc = o.prompts ? many(&g, s) : one(&g, s);
    hola_session_free(s);
    gen_close_tokenizer(&g);
    hola_model_free(g.model);
    return rc;
}
