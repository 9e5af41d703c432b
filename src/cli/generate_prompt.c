/* generate_prompt.c -- reads the prompts of hola generate. */
#define _GNU_SOURCE
#include "cli/generate.h"
#include "tokenizer/tokenizer.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A vocabulary padded to a round number is normal. One that is mostly unknown to the tokenizer is a mistake, and the
 * text would be full of gaps. */
static void warn_of_unknown_ids(const struct gen *g, const char *path) {
    const int64_t known = hola_tokenizer_size(g->t);
    char a[CLI_GROUPED], b[CLI_GROUPED];
    if (g->vocab - known > g->vocab / 8 && !g->o->quiet)
        fprintf(stderr, "hola: warning: the model has %s tokens, %s has %s: the others print as nothing\n",
                cli_grouped(a, g->vocab), path, cli_grouped(b, known));
}

int gen_open_tokenizer(struct gen *g) {
    const struct gen_opts *o = g->o;
    const char *path = o->tokenizer ? o->tokenizer : o->model;
    if (hola_tokenizer_load(&g->t, path) != HOLA_OK) return o->ids && !o->tokenizer ? CLI_OK : cli_fail_library();
    if (hola_tokenizer_size(g->t) > g->vocab)
        return cli_fail("%s: %" PRId64 " tokens, more than the model's %" PRId64, path, hola_tokenizer_size(g->t),
                        g->vocab);
    warn_of_unknown_ids(g, path);
    if (hola_tokenizer_eos(g->t) >= 0) g->eos = hola_tokenizer_eos(g->t);
    g->more = hl_tokenizer_continuing(g->t);
    bool guessed;
    if (o->chat && hl_template_open(&g->look, o->chat_template, o->model, g->t, &guessed) != HOLA_OK)
        return cli_fail_library();
    if (o->chat && guessed && !o->quiet)
        fprintf(stderr, "the model names no chat template that hola knows: 'plain' is used (--chat-template)\n");
    return g->more ? CLI_OK : cli_fail("no memory for the tokenizer");
}

void gen_close_tokenizer(struct gen *g) {
    hl_template_free(g->look);
    free(g->more);
    hola_tokenizer_free(g->t);
}

/* Encodes a question with the chat template, opening the answer. */
static int encode_question(const struct gen *g, const char *text, int64_t len, bool first, struct gen_prompt *out) {
    const struct hl_chat_message m = {.role = HL_ROLE_USER, .content = text, .len = len};
    struct hl_chat_tokens x;
    if (hl_template_tokens(g->look, &m, 1, first && !g->o->no_bos, false, &x) != HOLA_OK) return cli_fail_library();
    *out = (struct gen_prompt){x.ids.data, x.ids.n};
    x.ids.data = NULL; /* ownership moved */
    hl_chat_tokens_free(&x);
    return CLI_OK;
}

int gen_encode(const struct gen *g, const char *text, int64_t len, bool first, const char *what,
               struct gen_prompt *out) {
    int32_t bos = -1, *ids;
    *out = (struct gen_prompt){0};
    if (!g->t) return cli_fail("%s: holds no tokenizer; --tokenizer names one, --ids takes ids", g->o->model);
    if (g->look) return encode_question(g, text, len, first, out);
    if (first && !g->o->no_bos) bos = hola_tokenizer_bos(g->t);
    if (hola_tokenizer_encode(first ? g->t : g->more, text, len, (int)g->o->threads, &ids, &out->n))
        return cli_fail_library();
    out->ids = malloc((size_t)(out->n + 1) * sizeof *ids);
    if (!out->ids) {
        free(ids);
        return cli_fail("%s: no memory for its tokens", what);
    }
    memcpy(out->ids + (bos >= 0), ids, (size_t)out->n * sizeof *ids);
    if (bos >= 0) out->ids[0] = bos, out->n++;
    free(ids);
    if (first && out->n == 0) {
        free(out->ids);
        *out = (struct gen_prompt){0};
        return cli_fail("%s: empty, and there is no BOS to begin with", what);
    }
    return CLI_OK;
}

/* Reads a whole stream; *text is malloced. */
static int read_all(FILE *f, const char *path, char **text, int64_t *len) {
    size_t n = 0, room = 0;
    *text = NULL;
    for (;;) {
        if (n == room) {
            room = room ? 2 * room : 1 << 16;
            char *more = realloc(*text, room);
            if (!more) return cli_fail("%s: no memory for %zu bytes", path, room);
            *text = more;
        }
        const size_t got = fread(*text + n, 1, room - n, f);
        n += got;
        if (got == 0) break;
    }
    if (ferror(f)) return cli_fail("%s: %s", path, strerror(errno));
    if (n > 0 && (*text)[n - 1] == '\n') n--; /* a trailing newline comes from the editor */
    *len = (int64_t)n;
    return CLI_OK;
}

static int read_file(const struct gen *g, const char *path, bool first, struct gen_prompt *out) {
    const bool input = strcmp(path, "-") == 0;
    const char *name = input ? "standard input" : path;
    FILE *f = input ? stdin : fopen(path, "rb");
    char *text = NULL;
    int64_t len = 0;
    if (!f) return cli_fail("%s: %s", path, strerror(errno));
    int rc = read_all(f, name, &text, &len);
    if (rc == CLI_OK) rc = gen_encode(g, text, len, first, name, out);
    if (!input) fclose(f);
    free(text);
    return rc;
}

int gen_read_prompt(const struct gen *g, bool first, struct gen_prompt *out) {
    const struct gen_opts *o = g->o;
    *out = (struct gen_prompt){0};
    if (o->ids) return cli_ids_read(o->ids, g->vocab, &out->ids, &out->n);
    if (o->prompt) return gen_encode(g, o->prompt, (int64_t)strlen(o->prompt), first, "the prompt", out);
    if (o->file) return read_file(g, o->file, first, out);
    if (o->interactive) return CLI_OK; /* the first interactive line is the prompt */
    if (!isatty(STDIN_FILENO)) return read_file(g, "-", first, out);
    if (!first) return CLI_OK;
    return cli_usage("generate", "a prompt is needed: -p TEXT, -f FILE, or a pipe");
}

/* ---- many prompts ---- */

/* The text of a line of .jsonl: a string, or an object's "prompt" or "text". */
static int line_json(const char *path, int64_t number, const char *line, size_t len, json_t **root,
                     const json_t **text) {
    json_error_t err;
    *root = json_loadb(line, len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &err);
    if (!*root) return cli_fail("%s:%" PRId64 ": not JSON: %s", path, number, err.text);
    *text = json_is_object(*root) ? json_object_get(*root, "prompt") : *root;
    if (!*text) *text = json_object_get(*root, "text");
    if (json_is_string(*text)) return CLI_OK;
    return cli_fail("%s:%" PRId64 ": neither a string nor an object with a \"prompt\"", path, number);
}

static int read_line(const struct gen *g, bool first, int64_t number, const char *line, size_t len,
                     struct gen_prompt *out) {
    const char *path = g->o->prompts, *dot = strrchr(path, '.');
    json_t *root = NULL;
    const json_t *text = NULL;
    char what[64];
    int rc = CLI_OK;
    *out = (struct gen_prompt){0};
    snprintf(what, sizeof what, "line %" PRId64 " of the prompts", number);
    if (dot && !strcmp(dot, ".jsonl")) {
        rc = line_json(path, number, line, len, &root, &text);
        if (rc == CLI_OK) line = json_string_value(text), len = json_string_length(text);
    }
    if (rc == CLI_OK) rc = gen_encode(g, line, (int64_t)len, first, what, out);
    json_decref(root);
    return rc;
}

int gen_read_prompts(const struct gen *g, bool first, struct gen_prompt **out, int64_t *n) {
    const char *path = g->o->prompts;
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    char *line = NULL;
    size_t room = 0;
    ssize_t len;
    int rc = CLI_OK;
    *out = NULL, *n = 0;
    if (!f) return cli_fail("%s: %s", path, strerror(errno));
    while (rc == CLI_OK && (errno = 0, len = getline(&line, &room, f)) >= 0) {
        struct gen_prompt *more = realloc(*out, (size_t)(*n + 1) * sizeof *more);
        if (len > 0 && line[len - 1] == '\n') len--;
        if (more) *out = more;
        rc = more ? read_line(g, first, *n + 1, line, (size_t)len, &more[*n]) : cli_fail("%s: no memory", path);
        if (rc == CLI_OK) ++*n;
    }
    if (rc == CLI_OK && ferror(f)) rc = cli_fail("%s: %s", path, strerror(errno));
    if (rc == CLI_OK && *n == 0) rc = cli_fail("%s: no prompts in it", path);
    if (f != stdin) fclose(f);
    free(line);
    return rc;
}
