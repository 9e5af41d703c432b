/* cmd_prepare.c -- hola prepare: text to token shards. */
#define _POSIX_C_SOURCE 200809L
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "data/prepare.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct prepare_opts {
    const char *out, *tokenizer, *field, *look;
    int64_t val_tokens, shard_tokens, seed, threads, samples, facts, length;
    double val;
    int format, generate, loss_on;
    bool split_lines, skip_bad, no_bos, force, json;
};

enum { FORMAT_CHAT = HL_FORMAT_JSONL + 1 };
static const char *const formats[] = {"auto", "text", "jsonl", "chat", NULL}; /* in the order of hl_format */
static const char *const lessons[] = {"answers", "all", NULL};
static const char *const tasks[] = {"nothing", "recall", "mqar", NULL}; /* of hl_generate */

#define OPTS struct prepare_opts
static const struct arg options[] = {
    OPT_NEEDED('o', "out", out, "DIR", "directory to write"),
    OPT_STRING(0, "tokenizer", tokenizer, "PATH", "tokenizer.model, tokenizer.json, a directory with one, or byte"),
    OPT_REAL(0, "val", val, 0, 0.5, "X", "fraction of the documents kept for validation (default 0.005)"),
    OPT_INT(0, "val-tokens", val_tokens, 1, INT64_MAX, "N", "at most N tokens for validation"),
    OPT_INT(0, "shard-tokens", shard_tokens, 1, INT32_MAX, "N", "tokens per file (default 100000000)"),
    OPT_CHOICE(0, "format", format, formats, "format of all inputs (default: by name, then by content)"),
    OPT_STRING(0, "chat-template", look, "NAME",
               "how conversations look: plain, chatml, llama2, llama3, mistral, zephyr, a JSON file, or none"),
    OPT_CHOICE(0, "loss-on", loss_on, lessons, "the tokens of conversations that are trained on (default answers)"),
    OPT_STRING(0, "field", field, "NAME", "field of a JSON object that holds the text (default text)"),
    OPT_FLAG(0, "split-lines", split_lines, "treat every line of a text as a document"),
    OPT_FLAG(0, "skip-bad", skip_bad, "skip malformed lines of JSON instead of failing"),
    OPT_FLAG(0, "no-bos", no_bos, "put no BOS token before documents"),
    OPT_INT('s', "seed", seed, 0, INT64_MAX, "N", "seed that selects the validation documents (default 0)"),
    OPT_THREADS,
    OPT_FLAG(0, "force", force, "replace an existing dataset"),
    OPT_CHOICE(0, "generate", generate, tasks, "generate a synthetic task instead of reading inputs"),
    OPT_INT(0, "samples", samples, 1, INT64_MAX, "N", "sequences to generate (default 10000)"),
    OPT_INT(0, "facts", facts, 1, 1 << 28, "N", "facts (pairs) in a generated sequence"),
    OPT_INT(0, "length", length, 1, 1 << 28, "N", "tokens in a generated sequence"),
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "prepare", "-o DIR --tokenizer PATH [options] INPUT...",
    "Writes token shards, train_*.bin and val_*.bin, from text. Inputs are .txt (one document per file)\n"
    "and .jsonl files (one document per line), also as .gz, .xz or .zst, directories of these, or - for\n"
    "standard input. --format chat reads conversations, of which only the answers are trained on: lines with\n"
    "{\"messages\": [{\"role\", \"content\"}, ...]} or {\"prompt\", \"completion\"}.",
    options};

static void show(void *ctx, const struct hl_prepare_counts *c) {
    struct progress *p = ctx;
    char documents[CLI_GROUPED];
    double mb = 1e-6 * (double)c->bytes, seconds = progress_seconds(p);
    progress_show(p, c->all > 0 ? (double)c->done / (double)c->all : -1, "%s docs  %.1f MB  %.2f M tokens  %.1f MB/s",
                  cli_grouped(documents, c->documents), mb, 1e-6 * (double)c->tokens, seconds > 0 ? mb / seconds : 0);
}

/* Bytes per token; not finite if there are no tokens. */
static double per_token(int64_t bytes, int64_t tokens) { return (double)bytes / (double)tokens; }

static json_t *split_json(const struct hl_prepare_result *r, enum hl_split i) {
    json_t *x = json_pack("{s:I, s:I, s:I, s:o, s:I}", "documents", (json_int_t)r->split[i].documents, "bytes",
                          (json_int_t)r->split[i].bytes, "tokens", (json_int_t)r->split[i].tokens, "bytes_per_token",
                          cli_json_number(per_token(r->split[i].bytes, r->split[i].tokens)), "shards",
                          (json_int_t)r->split[i].shards);
    if (r->look[0]) json_object_set_new(x, "trained", json_integer(r->split[i].trained));
    return x;
}

static int print_json(const struct hl_prepare_result *r) {
    json_t *x =
        json_pack("{s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:o, s:f, s:o, s:o}", "documents", (json_int_t)r->all.documents,
                  "bytes", (json_int_t)r->all.bytes, "tokens", (json_int_t)r->all.tokens, "bytes_per_token",
                  cli_json_number(per_token(r->all.bytes, r->all.tokens)), "empty", (json_int_t)r->empty, "skipped",
                  (json_int_t)r->bad, "vocab_size", (json_int_t)r->vocab, "bos_token_id",
                  r->bos < 0 ? json_null() : json_integer(r->bos), "seconds", r->seconds, "train",
                  split_json(r, HL_SPLIT_TRAIN), "val", split_json(r, HL_SPLIT_VAL));
    if (r->look[0])
        json_object_update_new(x, json_pack("{s:s, s:b, s:I, s:I}", "chat_template", r->look, "chat_template_guessed",
                                            r->guessed, "answers", (json_int_t)r->answers, "without_answer",
                                            (json_int_t)r->unanswered));
    return cli_print_json(x);
}

static void print_row(const char *name, int64_t documents, int64_t bytes, int64_t tokens, int64_t shards) {
    char a[CLI_GROUPED], b[CLI_GROUPED], c[CLI_GROUPED];
    printf("%-6s %14s %18s %18s", name, cli_grouped(a, documents), cli_grouped(b, bytes), cli_grouped(c, tokens));
    if (bytes > 0 && tokens > 0) printf(" %12.3f", per_token(bytes, tokens));
    else printf(" %12s", "-");
    printf(" %7" PRId64 "\n", shards);
}

/* For conversations: what is trained on, and what was left out. */
static void print_lessons(const struct hl_prepare_result *r) {
    char trained[CLI_GROUPED], answers[CLI_GROUPED], without[CLI_GROUPED];
    const int64_t n = r->split[HL_SPLIT_TRAIN].trained + r->split[HL_SPLIT_VAL].trained;
    printf("trained: %s tokens (%.1f %%), %s answer%s\n", cli_grouped(trained, n),
           100 * (double)n / (double)r->all.tokens, cli_grouped(answers, r->answers), r->answers == 1 ? "" : "s");
    if (r->unanswered)
        printf("left out: %s conversation%s without an answer\n", cli_grouped(without, r->unanswered),
               r->unanswered == 1 ? "" : "s");
    printf("chat template: %s%s\n", r->look, r->guessed ? " (the tokenizer names none; --chat-template)" : "");
}

static int print_table(const struct hl_prepare_result *r) {
    static const char *const names[] = {"train", "val"};
    printf("%-6s %14s %18s %18s %12s %7s\n", "split", "documents", "bytes", "tokens", "bytes/token", "shards");
    for (int i = 0; i < HL_SPLITS; i++)
        print_row(names[i], r->split[i].documents, r->split[i].bytes, r->split[i].tokens, r->split[i].shards);
    print_row("all", r->all.documents, r->all.bytes, r->all.tokens,
              r->split[HL_SPLIT_TRAIN].shards + r->split[HL_SPLIT_VAL].shards);
    printf("%.1f s, %.1f MB/s, vocabulary %" PRId64, r->seconds, 1e-6 * (double)r->all.bytes / r->seconds, r->vocab);
    if (r->bos >= 0) printf(", BOS %d", (int)r->bos);
    if (r->empty) printf(", %" PRId64 " empty documents left out", r->empty);
    if (r->bad) printf(", %" PRId64 " malformed lines skipped", r->bad);
    printf("\n");
    if (r->look[0]) print_lessons(r);
    return CLI_OK;
}

static int run_prepare(const struct prepare_opts *o, const char *const *inputs, int n) {
    struct progress bar;
    struct hl_prepare_result r;
    const bool chat = o->format == FORMAT_CHAT;
    struct hl_prepare_opts p = {
        .out = o->out,
        .tokenizer = o->tokenizer,
        .inputs = inputs,
        .n_inputs = n,
        .field = o->field,
        .source = {.format = chat ? HL_FORMAT_JSONL : (enum hl_format)o->format, .split_lines = o->split_lines},
        .chat = chat,
        .look = o->look,
        .loss_on_all = o->loss_on == 1,
        .skip_bad = o->skip_bad,
        .no_bos = o->no_bos,
        .force = o->force,
        .val = o->val,
        .val_tokens = o->val_tokens,
        .shard_tokens = o->shard_tokens,
        .seed = (uint64_t)o->seed,
        .threads = (int)o->threads,
        .generate = (enum hl_generate)o->generate,
        .samples = o->samples,
        .recall = hl_recall_default(),
        .mqar = hl_mqar_default(),
        .progress = show,
        .ctx = &bar};
    hola_status s;
    p.mqar.answers = true;
    if (o->facts) p.recall.facts = p.mqar.pairs = o->facts;
    if (p.recall.keys < 2 * p.recall.facts) p.recall.keys = 2 * p.recall.facts;
    if (p.recall.queries > p.recall.facts) p.recall.queries = p.recall.facts;
    if (o->length) p.recall.length = p.mqar.length = o->length;
    if (o->length && p.recall.distance > o->length / 4) p.recall.distance = o->length / 4;
    signal(SIGXFSZ, SIG_IGN); /* treat a file size limit as an ordinary write error */
    progress_begin(&bar);
    s = hl_prepare(&p, &r);
    progress_end(&bar);
    if (s != HOLA_OK) return cli_fail_library();
    return o->json ? print_json(&r) : print_table(&r);
}

int cmd_prepare(int argc, char **argv) {
    struct prepare_opts o = {.val = 0.005, .shard_tokens = 100000000, .field = "text", .samples = 10000, .loss_on = -1};
    const char **inputs = calloc((size_t)argc + 1, sizeof *inputs);
    int n, rc;
    if (!inputs) return cli_fail("out of memory");
    n = args_split(options, &argc, argv, inputs);
    rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) goto done;
    if (o.format == 0 && (o.look || o.loss_on >= 0)) o.format = FORMAT_CHAT;
    if (o.format != FORMAT_CHAT && (o.look || o.loss_on >= 0))
        rc = cli_usage("prepare", "--chat-template and --loss-on are for conversations (--format chat)");
    else if (o.generate && (n > 0 || o.tokenizer))
        rc = cli_usage("prepare", "--generate takes neither inputs nor a tokenizer");
    else if (!o.generate && !o.tokenizer) rc = cli_usage("prepare", "--tokenizer PATH is required");
    else if (!o.generate) rc = cli_check_inputs("prepare", inputs, n);
    if (rc == ARGS_RUN) rc = run_prepare(&o, inputs, n);
done:
    free(inputs);
    return rc;
}
