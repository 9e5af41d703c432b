/* ids.c -- the token ids that a command works on. */
#include "cli/cli.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The array in the file, or NULL after a message. */
static json_t *load_array(const char *path) {
    json_error_t err;
    json_t *root;
    bool unread;
    FILE *f = fopen(path, "rb");
    if (!f) return cli_fail("%s: %s", path, strerror(errno)), NULL;
    errno = 0;
    root = json_loadf(f, 0, &err);
    unread = ferror(f);
    if (unread) cli_fail("%s: %s", path, strerror(errno));
    fclose(f);
    if (root && json_is_array(root)) return root;
    if (root) cli_fail("%s: not a JSON array of token ids", path);
    if (!root && !unread) cli_fail("%s:%d: not a JSON array of token ids: %s", path, err.line, err.text);
    json_decref(root);
    return NULL;
}

static int bad_id(const char *path, int64_t i, const json_t *value, int64_t vocab) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    int rc = cli_fail("%s: [%lld]: %.60s is not a token id of this model (0 to %lld)", path, (long long)i,
                      text ? text : "?", (long long)vocab - 1);
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

/* This version reads no tokenizers: every directory is one without. */
int cli_ids_encode(const char *dir, const char *text_path, int64_t vocab, int32_t **ids, int64_t *n) {
    (void)text_path, (void)vocab;
    *ids = NULL, *n = 0;
    return cli_fail("%s: no usable tokenizer here; --ids takes token ids instead of text", dir);
}
