/* ids.c -- reading token ids for commands. */
#include "cli/cli.h"
#include "core/status.h"
#include "core/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The array in the file, or NULL after printing an error. */
static json_t *load_array(const char *path) {
    json_error_t err;
    json_t *root;
    bool unread;
    const bool input = strcmp(path, "-") == 0;
    FILE *f = input ? stdin : fopen(path, "rb");
    if (input) path = "standard input";
    if (!f) return cli_fail("%s: %s", path, strerror(errno)), NULL;
    errno = 0;
    root = json_loadf(f, 0, &err);
    unread = ferror(f);
    if (unread) cli_fail("%s: %s", path, strerror(errno));
    if (!input) fclose(f);
    if (root && json_is_array(root)) return root;
    if (root) cli_fail("%s: not a JSON array of token ids", path);
    if (!root && !unread) cli_fail("%s:%d: not a JSON array of token ids: %s", path, err.line, err.text);
    json_decref(root);
    return NULL;
}

static int bad_id(const char *path, int64_t i, const json_t *value, int64_t vocab) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    int rc = cli_fail("%s: [%lld]: %.60s is not a token id (0 to %lld)", path, (long long)i, text ? text : "?",
                      (long long)vocab - 1);
    free(text);
    return rc;
}

int cli_ids_read(const char *path, int64_t vocab, int32_t **ids, int64_t *n) {
    json_t *root = load_array(path);
    int rc = CLI_FAILED;
    *ids = NULL;
    *n = root ? (int64_t)json_array_size(root) : 0;
    if (!root) return rc;
    if (*n == 0) {
        cli_fail("%s: the array is empty", path);
        goto done;
    }
    *ids = malloc((size_t)*n * sizeof **ids);
    if (!*ids) {
        cli_fail("%s: no memory for %lld token ids", path, (long long)*n);
        goto done;
    }
    for (int64_t i = 0; i < *n; i++) {
        const json_t *value = json_array_get(root, (size_t)i);
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= vocab) {
            bad_id(path, i, value, vocab);
            goto done;
        }
        (*ids)[i] = (int32_t)id;
    }
    rc = CLI_OK;
done:
    if (rc != CLI_OK) free(*ids), *ids = NULL;
    json_decref(root);
    return rc;
}

/* Reads a whole file, pipe or standard input ("-"). */
static hola_status read_text(struct hl_text *text, const char *path) {
    const bool input = strcmp(path, "-") == 0;
    FILE *f = input ? stdin : fopen(path, "rb");
    const char *name = input ? "standard input" : path;
    hola_status s = f ? HOLA_OK : hl_fail(HOLA_EIO, "%s: %s", path, strerror(errno));
    for (bool more = s == HOLA_OK; s == HOLA_OK && more;) {
        s = hl_text_room(text, 1 << 16);
        if (s != HOLA_OK) break;
        errno = 0;
        const size_t got = fread(text->data + text->n, 1, 1 << 16, f);
        text->n += (int64_t)got;
        more = got > 0;
        if (ferror(f)) s = hl_fail(HOLA_EIO, "%s: %s", name, strerror(errno));
    }
    if (s == HOLA_OK && text->n == 0) s = hl_fail(HOLA_EFORMAT, "%s: empty file", name);
    if (f && !input) fclose(f);
    return s;
}

int cli_ids_encode(const char *tokenizer, const char *text_path, int64_t vocab, int32_t **ids, int64_t *n) {
    struct hl_text text = {0};
    hola_tokenizer *t = NULL;
    hola_status s = hola_tokenizer_load(&t, tokenizer);
    int rc = CLI_OK;
    *ids = NULL, *n = 0;
    if (s == HOLA_OK) s = read_text(&text, text_path);
    if (s == HOLA_OK) s = hola_tokenizer_encode(t, text.data, text.n, 0, ids, n);
    if (s != HOLA_OK) {
        rc = cli_fail_library();
    } else if (hola_tokenizer_size(t) > vocab) {
        rc = cli_fail("%s: %" PRId64 " tokens, more than the model's %" PRId64, tokenizer, hola_tokenizer_size(t),
                      vocab);
    } else if (hola_tokenizer_bos(t) >= 0) { /* like every document in training */
        int32_t *with_bos = realloc(*ids, (size_t)(*n + 1) * sizeof **ids);
        if (with_bos) {
            memmove(with_bos + 1, with_bos, (size_t)*n * sizeof *with_bos);
            with_bos[0] = hola_tokenizer_bos(t);
            *ids = with_bos;
            ++*n;
        } else rc = cli_fail("%s: no memory for its tokens", text_path);
    }
    if (rc != CLI_OK) free(*ids), *ids = NULL, *n = 0;
    hl_text_free(&text);
    hola_tokenizer_free(t);
    return rc;
}
