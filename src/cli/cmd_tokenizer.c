/* cmd_tokenizer.c -- hola tokenizer: train a tokenizer, encode a text, decode ids. */
#define _POSIX_C_SOURCE 200809L
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "tokenizer/bpe_train.h"
#include "data/source.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- train ---- */

struct train_opts {
    const char *out, *field;
    int64_t vocab, least, threads;
    bool json;
};
#define OPTS struct train_opts
static const struct arg train_options[] = {
    OPT_NEEDED('o', "out", out, "FILE", "tokenizer.json to write"),
    OPT_INT(0, "vocab-size", vocab, HL_TRAIN_LEAST, 1 << 20, "N", "size of the vocabulary (default 32000)"),
    OPT_INT(0, "min-frequency", least, 1, INT64_MAX, "N", "least number of occurrences for a merge (default 2)"),
    OPT_STRING(0, "field", field, "NAME", "field of a JSON object that holds the text (default text)"),
    OPT_THREADS,
    OPT_JSON,
    OPT_END,
};
#undef OPTS
static const struct args_command train_command = {
    "tokenizer train", "-o FILE [options] INPUT...",
    "Trains a byte-level BPE with GPT-2's word pattern on .txt and .jsonl files, also as .gz, .xz or .zst,\n"
    "directories of these, or - for standard input. Ids: 0 is <s>, 1 is </s>, 2 to 257 are the bytes; then\n"
    "come the merges.",
    train_options};

/* Texts counted per batch, so that all threads have work. */
enum { BATCH_TEXTS = 4096, BATCH_BYTES = 1 << 24 };

struct batch {
    struct hl_train_text text[BATCH_TEXTS];
    int64_t n, bytes;
};

static hola_status count_batch(struct hl_bpe_trainer *t, struct batch *b) {
    hola_status s = hl_bpe_trainer_count(t, b->text, b->n);
    for (int64_t i = 0; i < b->n; i++) free((char *)b->text[i].text);
    b->n = b->bytes = 0;
    return s;
}

static hola_status count_all(struct hl_bpe_trainer *t, struct hl_source *source, const char *field,
                             struct progress *bar, int64_t *bytes) {
    struct batch *b = calloc(1, sizeof *b);
    struct hl_record r = {0};
    hola_status s = HOLA_OK;
    if (!b) return hl_fail(HOLA_ENOMEM, "tokenizer: %zu bytes", sizeof *b);
    for (;;) {
        int64_t done, all;
        s = hl_source_next(source, &r);
        if (s != HOLA_OK || !r.text) break;
        if (r.json) s = hl_record_decode(&r, field);
        if (s != HOLA_OK) {
            free(r.text);
            break;
        }
        b->text[b->n++] = (struct hl_train_text){r.text, r.len};
        b->bytes += r.len, *bytes += r.len;
        if (b->n == BATCH_TEXTS || b->bytes >= BATCH_BYTES) s = count_batch(t, b);
        if (s != HOLA_OK) break;
        hl_source_progress(source, &done, &all);
        progress_show(bar, all > 0 ? (double)done / (double)all : -1, "words of %.1f MB", 1e-6 * (double)*bytes);
    }
    hola_status last = count_batch(t, b);
    free(b);
    return s != HOLA_OK ? s : last;
}

struct showing {
    struct progress *bar;
    int64_t size;
};
static void show_merges(void *ctx, int64_t tokens) {
    struct showing *s = ctx;
    progress_show(s->bar, (double)tokens / (double)s->size, "%" PRId64 " tokens", tokens);
}

static int train(const struct train_opts *o, const char *const *inputs, int n) {
    struct hl_bpe_trainer *t = NULL;
    struct hl_source *source = NULL;
    struct progress bar;
    struct showing showing = {&bar, o->vocab};
    int64_t bytes = 0;
    char a[CLI_GROUPED], b[CLI_GROUPED], c[CLI_GROUPED];
    hola_status s = hl_source_open(&source, inputs, n, &(struct hl_source_opts){0});
    progress_begin(&bar);
    if (s == HOLA_OK) s = hl_bpe_trainer_new(&t, (int)o->threads);
    if (s == HOLA_OK) s = count_all(t, source, o->field, &bar, &bytes);
    if (s == HOLA_OK && bytes == 0)
        s = hl_fail(HOLA_EINVAL, "%s: no text to train on", n == 1 ? inputs[0] : "the inputs");
    if (s == HOLA_OK) s = hl_bpe_trainer_run(t, o->vocab, o->least, show_merges, &showing);
    if (s == HOLA_OK) s = hl_bpe_trainer_write(t, o->out);
    progress_end(&bar);
    int64_t size = t ? hl_bpe_trainer_size(t) : 0, words = t ? hl_bpe_trainer_words(t) : 0;
    hl_bpe_trainer_free(t);
    hl_source_free(source);
    if (s != HOLA_OK) return cli_fail_library();
    if (size < o->vocab)
        fprintf(stderr,
                "hola: warning: %s tokens, not the %s asked for: no other pair occurs %s times or more; train on more "
                "text or with a smaller --min-frequency\n",
                cli_grouped(a, size), cli_grouped(b, o->vocab), cli_grouped(c, o->least));
    if (o->json)
        return cli_print_json(json_pack("{s:s, s:I, s:I, s:I, s:f}", "file", o->out, "vocab_size", (json_int_t)size,
                                        "bytes", (json_int_t)bytes, "words", (json_int_t)words, "seconds",
                                        progress_seconds(&bar)));
    printf("%s: %s tokens from %s different words in %s bytes, %.1f s\n", o->out, cli_grouped(a, size),
           cli_grouped(b, words), cli_grouped(c, bytes), progress_seconds(&bar));
    return CLI_OK;
}

static int run_train(int argc, char **argv) {
    struct train_opts o = {.vocab = 32000, .least = 2, .field = "text"};
    const char **inputs = calloc((size_t)argc + 1, sizeof *inputs);
    int n, rc;
    if (!inputs) return cli_fail("out of memory");
    n = args_split(train_options, &argc, argv, inputs);
    rc = args_parse(&train_command, argc, argv, &o);
    if (rc == ARGS_RUN) rc = cli_check_inputs(train_command.name, inputs, n);
    if (rc == ARGS_RUN) rc = train(&o, inputs, n);
    free(inputs);
    return rc;
}

/* ---- encode ---- */

struct text_opts {
    const char *tokenizer, *file, *ids;
    int64_t threads;
    bool json;
};
#define OPTS struct text_opts
#define OPT_TOKENIZER \
    OPT_NEEDED(0, "tokenizer", tokenizer, "PATH", "tokenizer.model, tokenizer.json, a directory with one, or byte")
static const struct arg encode_options[] = {
    OPT_TOKENIZER, OPT_STRING('f', "file", file, "FILE", "text file; -: standard input"), OPT_THREADS, OPT_JSON,
    OPT_END,
};
static const struct arg decode_options[] = {
    OPT_TOKENIZER,
    OPT_NEEDED(0, "ids", ids, "FILE", "token ids, as a JSON array"),
    OPT_JSON,
    OPT_END,
};
static const struct args_command encode_command = {
    "tokenizer encode", "--tokenizer PATH (-f FILE | TEXT) [options]",
    "Prints the token ids of a text as a JSON array. No BOS or EOS is added.", encode_options};
static const struct args_command decode_command = {
    "tokenizer decode", "--tokenizer PATH --ids FILE [options]",
    "Prints the text of token ids, byte for byte; special tokens are left out.", decode_options};

/* Reads a whole file; the caller frees *text. */
static int read_all(const char *path, char **text, int64_t *len) {
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    size_t room = 1 << 16, n = 0, got = 1;
    char *data = f ? malloc(room) : NULL;
    if (!f) return cli_fail("%s: %s", path, strerror(errno));
    errno = 0;
    while (data && got > 0) {
        if (n == room) {
            char *more = realloc(data, room *= 2);
            if (!more) free(data);
            data = more;
            if (!data) break;
        }
        got = fread(data + n, 1, room - n, f);
        n += got;
    }
    int failed = ferror(f) ? errno : 0;
    if (f != stdin) fclose(f);
    *text = data, *len = (int64_t)n;
    if (data && !failed) return CLI_OK;
    free(data);
    *text = NULL;
    return failed ? cli_fail("%s: %s", path, strerror(failed))
                  : cli_fail("%s: too large for this machine's memory", path);
}

static int print_ids(const int32_t *ids, int64_t n, bool json) {
    if (json) printf("{\"tokens\": %" PRId64 ", \"ids\": ", n);
    putchar('[');
    for (int64_t i = 0; i < n; i++) printf(i ? ", %d" : "%d", (int)ids[i]);
    puts(json ? "]}" : "]");
    return CLI_OK;
}

static int encode(const struct text_opts *o, const char *text, int64_t len) {
    hola_tokenizer *t = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    int rc = CLI_FAILED;
    if (hola_tokenizer_load(&t, o->tokenizer) == HOLA_OK &&
        hola_tokenizer_encode(t, text, len, (int)o->threads, &ids, &n) == HOLA_OK)
        rc = print_ids(ids, n, o->json);
    else cli_fail_library();
    free(ids);
    hola_tokenizer_free(t);
    return rc;
}

static int run_encode(int argc, char **argv) {
    struct text_opts o = {0};
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    char *text = NULL;
    int64_t len = 0;
    int n, rc;
    if (!words) return cli_fail("out of memory");
    n = args_split(encode_options, &argc, argv, words);
    rc = args_parse(&encode_command, argc, argv, &o);
    if (rc == ARGS_RUN && (n > 1 || (n == 1) == (o.file != NULL)))
        rc = cli_usage(encode_command.name, "either -f FILE or one TEXT is required");
    if (rc == ARGS_RUN && o.file) {
        rc = read_all(o.file, &text, &len);
        if (rc == CLI_OK) rc = encode(&o, text, len);
    } else if (rc == ARGS_RUN) rc = encode(&o, words[0], (int64_t)strlen(words[0]));
    free(text), free(words);
    return rc;
}

/* ---- decode ---- */

/* JSON cannot hold arbitrary bytes: invalid UTF-8 becomes U+FFFD. */
static json_t *json_text(const char *text, int64_t len) {
    char *out = malloc(3 * (size_t)len + 1);
    int64_t n = 0;
    json_t *value;
    if (!out) return NULL;
    for (int64_t i = 0, size; i < len; i += size) {
        json_t *whole = NULL;
        for (size = 4; size > 0 && !whole; size--)
            if (size <= len - i) whole = json_stringn(text + i, (size_t)size); /* NULL: invalid UTF-8 */
        size++;
        memcpy(out + n, whole ? text + i : "\xef\xbf\xbd", whole ? (size_t)size : 3);
        n += whole ? size : 3;
        json_decref(whole);
    }
    value = json_stringn_nocheck(out, (size_t)n);
    free(out);
    return value;
}

static int run_decode(int argc, char **argv) {
    struct text_opts o = {0};
    hola_tokenizer *t = NULL;
    int32_t *ids = NULL;
    char *text = NULL;
    int64_t n = 0, len = 0;
    int rc = args_parse(&decode_command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    if (hola_tokenizer_load(&t, o.tokenizer) != HOLA_OK) return cli_fail_library();
    rc = cli_ids_read(o.ids, hola_tokenizer_size(t), &ids, &n);
    if (rc == CLI_OK && hola_tokenizer_decode(t, ids, n, &text, &len) != HOLA_OK) rc = cli_fail_library();
    if (rc == CLI_OK && o.json)
        rc = cli_print_json(json_pack("{s:I, s:o}", "tokens", (json_int_t)n, "text", json_text(text, len)));
    else if (rc == CLI_OK) fwrite(text, 1, (size_t)len, stdout); /* main reports a failed write */
    free(text), free(ids);
    hola_tokenizer_free(t);
    return rc;
}

/* ---- the command ---- */

int cmd_tokenizer(int argc, char **argv) {
    static const struct {
        const char *name, *about;
        int (*run)(int argc, char **argv);
    } parts[] = {
        {"train", "train a byte-level BPE on text (writes tokenizer.json)", run_train},
        {"encode", "print the token ids of a text", run_encode},
        {"decode", "print the text of token ids", run_decode},
    };
    const char *word = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strcmp(word, parts[i].name) == 0) return parts[i].run(argc - 1, argv + 1);
    if (argc < 2) return cli_usage("tokenizer", "train, encode or decode is required");
    if (strcmp(word, "--help") != 0 && strcmp(word, "-h") != 0)
        return cli_usage("tokenizer", "train, encode or decode is required, not '%s'", word);
    printf("usage: hola tokenizer (train | encode | decode) [options]\n\n");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) printf("  %-8s %s\n", parts[i].name, parts[i].about);
    printf("\n'hola tokenizer train --help' lists the options of train, and so on; all take --json.\n");
    return CLI_OK;
}
