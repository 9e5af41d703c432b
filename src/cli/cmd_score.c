/* cmd_score.c -- hola score: log p(token | all previous tokens) for every token but the first; perplexity. */
#define _POSIX_C_SOURCE 200809L
#include "cli/args.h"
#include "cli/cli.h"
#include "core/clock.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct score_opts {
    const char *model, *file, *tokenizer;
    struct arg_list ids;
    int64_t split, threads;
    int mode, backend, products;
    bool json;
};

enum { PREFILL, DECODE };
static const char *const modes[] = {"prefill", "decode", NULL};

#define OPTS struct score_opts
static const struct arg options[] = {
    OPT_MODEL,
    OPT_LIST(0, "ids", ids, "FILE", "token ids, as a JSON array, - for standard input; several are texts of their own"),
    OPT_STRING('f', "file", file, "FILE",
               "text file, - for standard input; the tokenizer's BOS is put before the text"),
    OPT_STRING(0, "tokenizer", tokenizer, "PATH", "tokenizer: a directory, a file or \"byte\" (default: the model's)"),
    OPT_CHOICE(0, "mode", mode, modes, "feed all tokens at once (default) or one by one"),
    OPT_INT(0, "split", split, 0, INT64_MAX, "N", "feed the first N tokens at once, the rest as --mode says"),
    OPT_THREADS,
    OPT_BACKEND,
    OPT_PRECISION,
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "score", "[-m DIR] (--ids FILE | -f FILE) [options]",
    "Computes the log-probability of every token given those before it, and the perplexity. All modes agree.", options};

/* Scores ids[1..n) in pieces of the size given by the options; the last token is never fed. */
static hola_status score(hola_session *s, const struct score_opts *o, const int32_t *ids, int64_t n, double *logprobs) {
    int64_t fed = 0, last = n - 1;
    hola_status st = HOLA_OK;
    while (fed < last && st == HOLA_OK) {
        int64_t piece = o->mode == DECODE ? 1 : last - fed;
        if (fed == 0 && o->split > 0) piece = o->split < last ? o->split : last;
        st = hola_session_score(s, ids + fed, ids + fed + 1, piece, logprobs + fed);
        fed += piece;
    }
    return st;
}

static int print_result(const struct score_opts *o, const double *logprobs, int64_t n, double time) {
    double nll = 0;
    json_t *list;
    for (int64_t i = 0; i < n - 1; i++) {
        if (!isfinite(logprobs[i]))
            return cli_fail("%s: the log-probability of token %" PRId64 " is not a finite number", o->model, i + 1);
        nll -= logprobs[i];
    }
    double ppl = n > 1 ? exp(nll / (double)(n - 1)) : NAN; /* one token: nothing was predicted */
    if (!o->json) {
        printf("tokens    %" PRId64 "\nnll       %.6f\n", n, nll);
        if (n > 1) printf("ppl       %.6g\ntokens/s  %.1f\n", ppl, time > 0 ? (double)(n - 1) / time : 0.0);
        else printf("ppl       - (one token: there is nothing to predict)\n");
        return CLI_OK;
    }
    list = json_array();
    for (int64_t i = 0; i < n - 1; i++)
        if (json_array_append_new(list, json_real(logprobs[i]))) return cli_print_json(NULL);
    return cli_print_json(json_pack("{s:I, s:o, s:f, s:o}", "tokens", (json_int_t)n, "logprobs", list, "nll", nll,
                                    "ppl", cli_json_number(ppl)));
}

/* One text: the file of token ids, or the text file. */
static int score_text(const struct score_opts *o, hola_model *m, const char *ids_file) {
    const int64_t vocab = hola_model_config(m)->vocab_size;
    hola_session *s = NULL;
    int32_t *ids = NULL;
    int64_t n;
    int rc = ids_file ? cli_ids_read(ids_file, vocab, &ids, &n)
                      : cli_ids_encode(o->tokenizer ? o->tokenizer : o->model, o->file, vocab, &ids, &n);
    double *logprobs = rc == CLI_OK ? malloc((size_t)n * sizeof *logprobs) : NULL;
    if (rc == CLI_OK && !logprobs) rc = cli_fail("no memory for %" PRId64 " log-probabilities", n);
    if (rc == CLI_OK && hola_session_new(&s, m) != HOLA_OK) rc = cli_fail_library();
    const double start = hl_clock();
    if (rc == CLI_OK && score(s, o, ids, n, logprobs) != HOLA_OK) rc = cli_fail_library();
    if (rc == CLI_OK) rc = print_result(o, logprobs, n, hl_clock() - start);
    free(logprobs);
    free(ids);
    hola_session_free(s);
    return rc;
}

int cmd_score(int argc, char **argv) {
    struct score_opts o = {0};
    hola_model *m = NULL;
    int rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    if (!o.ids.n == !o.file) return cli_usage("score", "either --ids FILE or -f FILE is required");
    hola_options opt = {
        .threads = (int)o.threads, .backend = cli_backend(o.backend), .precision = (hola_precision)o.products};
    rc = hola_model_load(&m, o.model, &opt) == HOLA_OK ? CLI_OK : cli_fail_library();
    if (rc == CLI_OK && o.file) rc = score_text(&o, m, NULL);
    for (int i = 0; rc == CLI_OK && i < o.ids.n; i++) rc = score_text(&o, m, o.ids.item[i]);
    hola_model_free(m);
    return rc;
}
