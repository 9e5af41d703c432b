/* api_sessions.c -- /v1/sessions: converts requests to engine operations and results to responses. */
#define _GNU_SOURCE
#include "core/json.h"
#include "serve/server_internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { METADATA_MOST = 16, METADATA_BYTES = 512, LIST_MOST = 1000 };

/* ---- requests ---- */

/* A query parameter, unescaped, as a copy that the caller frees; NULL: absent. */
static char *query_value(const char *query, const char *name) {
    const size_t n = strlen(name);
    while (query && *query) {
        const size_t len = strcspn(query, "&");
        if (len > n && strncmp(query, name, n) == 0 && query[n] == '=') {
            char *value = strndup(query + n + 1, len - n - 1);
            if (value && !hl_http_unescape(value)) value[0] = 1, value[1] = 0; /* never a valid value */
            return value;
        }
        query += len + (query[len] == '&');
    }
    return NULL;
}

static bool query_only(struct hl_exchange *x, const char *const *names) {
    for (const char *q = x->http->query; q && *q;) {
        const size_t len = strcspn(q, "&"), key = strcspn(q, "=&");
        bool known = len == 0;
        for (int i = 0; names[i] && !known; i++) known = strlen(names[i]) == key && !strncmp(names[i], q, key);
        if (!known) return hl_problem_set(&x->problem, HL_UNKNOWN_FIELD, "query", "an unknown field in the query");
        q += len + (q[len] == '&');
    }
    return true;
}

static bool query_integer(struct hl_exchange *x, const char *name, int64_t most, int64_t *out) {
    char *text = query_value(x->http->query, name), *end;
    if (!text) return true;
    const long long n = strtoll(text, &end, 10);
    const bool ok = text[0] >= '0' && text[0] <= '9' && !*end && strlen(text) < 19 && n <= most;
    free(text);
    if (!ok)
        return hl_problem_set(&x->problem, HL_INVALID_VALUE, name, "%s: not an integer from 0 to %" PRId64, name, most);
    *out = n;
    return true;
}

static bool body_integer(struct hl_exchange *x, const json_t *root, const char *name, int64_t *out) {
    const json_t *v = json_object_get(root, name);
    if (!v || json_is_null(v)) return true;
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return hl_problem_set(&x->problem, HL_INVALID_VALUE, name, "%s: not an integer from 0", name);
    *out = json_integer_value(v);
    return true;
}

static bool body_id(struct hl_exchange *x, const json_t *root, char out[HL_ID_MOST + 1]) {
    const json_t *v = json_object_get(root, "id");
    if (!v || json_is_null(v)) return true;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v) ||
        !hl_id_valid(json_string_value(v)))
        return hl_problem_set(&x->problem, HL_INVALID_VALUE, "id",
                              "id: must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with "
                              "a letter or digit");
    memcpy(out, json_string_value(v), json_string_length(v) + 1);
    return true;
}

static bool body_metadata(struct hl_exchange *x, const json_t *root, json_t **out) {
    json_t *v = json_object_get(root, "metadata");
    const char *key;
    json_t *value;
    if (!v || json_is_null(v)) return true;
    if (!json_is_object(v) || json_object_size(v) > METADATA_MOST)
        return hl_problem_set(&x->problem, HL_INVALID_VALUE, "metadata", "metadata: not an object of up to %d strings",
                              METADATA_MOST);
    json_object_foreach(v, key, value) {
        if (!json_is_string(value) || json_string_length(value) > METADATA_BYTES || strlen(key) > 64)
            return hl_problem_set(&x->problem, HL_INVALID_VALUE, "metadata",
                                  "metadata: a value that is no string of up to %d bytes", METADATA_BYTES);
    }
    *out = json_deep_copy(v); /* it goes to another thread */
    return true;
}

/* The id in the path; others are not found. */
static bool path_id(struct hl_exchange *x, char out[HL_ID_MOST + 1]) {
    const char *id = x->http->path + strlen("/v1/sessions/");
    const size_t n = strcspn(id, "/");
    if (n <= HL_ID_MOST) memcpy(out, id, n), out[n] = 0;
    if (n <= HL_ID_MOST && hl_id_valid(out)) return true;
    return hl_problem_set(&x->problem, HL_SESSION_NOT_FOUND, "", "there is no such session");
}

static bool read_rollback(struct hl_exchange *x, json_t *root, struct hl_op *op) {
    static const char *const names[] = {"tokens", "turns", "position", NULL};
    if (!hl_api_only(&x->problem, root, names) || !body_integer(x, root, "tokens", &op->a) ||
        !body_integer(x, root, "turns", &op->b) || !body_integer(x, root, "position", &op->c))
        return false;
    const int given = (op->a >= 0) + (op->b >= 0) + (op->c >= 0);
    if (given == 1) return true;
    return hl_problem_set(&x->problem, given ? HL_INVALID_VALUE : HL_MISSING_FIELD, "tokens",
                          "one of tokens, turns and position is needed");
}

bool hl_api_session(struct hl_exchange *x, json_t *root) {
    static const char *const none[] = {NULL}, *const make[] = {"id", "metadata", NULL},
                             *const just[] = {"metadata", NULL}, *const fork[] = {"id", "position", NULL},
                             *const page[] = {"limit", "after", NULL}, *const range[] = {"from", "to", NULL},
                             *const where[] = {"layer", "head", "since", NULL};
    const char *method = x->http->method;
    const bool get = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    struct hl_problem *p = &x->problem;
    struct hl_op *op = x->op = calloc(1, sizeof *op);
    if (!op) return hl_problem_set(p, HL_INTERNAL, "", "no memory for the request");
    op->a = op->b = op->c = -1;
    if (x->endpoint != HL_AT_SESSIONS && !path_id(x, op->id)) return false;
    switch ((enum hl_endpoint)x->endpoint) {
    case HL_AT_SESSIONS:
        op->op = get ? HL_OP_LIST : HL_OP_CREATE;
        if (!get)
            return hl_api_only(p, root, make) && body_id(x, root, op->id) && body_metadata(x, root, &op->metadata);
        op->a = 100;
        char *after = query_value(x->http->query, "after");
        const bool valid = !after || hl_id_valid(after);
        if (after && valid) memcpy(op->id, after, strlen(after) + 1);
        free(after);
        if (!valid) return hl_problem_set(p, HL_INVALID_VALUE, "after", "after: not an id");
        return query_only(x, page) && query_integer(x, "limit", LIST_MOST, &op->a);
    case HL_AT_SESSION:
        op->op = get ? HL_OP_GET : !strcmp(method, "DELETE") ? HL_OP_DELETE : HL_OP_UPDATE;
        if (op->op != HL_OP_UPDATE) return true;
        if (!hl_api_only(p, root, just) || !body_metadata(x, root, &op->metadata)) return false;
        return op->metadata || hl_problem_set(p, HL_MISSING_FIELD, "metadata", "metadata: needed");
    case HL_AT_FORK:
        op->op = HL_OP_FORK;
        return hl_api_only(p, root, fork) && body_id(x, root, op->new_id) && body_integer(x, root, "position", &op->a);
    case HL_AT_ROLLBACK: op->op = HL_OP_ROLLBACK; return read_rollback(x, root, op);
    case HL_AT_SAVE: op->op = HL_OP_SAVE; return hl_api_only(p, root, none);
    case HL_AT_FILE:
        op->op = get ? HL_OP_FILE : HL_OP_PUT;
        if (get) return true;
        op->bytes = x->http->body.data, op->n_bytes = x->http->body.n;
        x->http->body = (struct hl_text){0};
        return op->bytes || hl_problem_set(p, HL_INVALID_VALUE, "", "the file is empty");
    case HL_AT_MESSAGES: op->op = HL_OP_MESSAGES; return true;
    case HL_AT_TOKENS:
        op->op = HL_OP_TOKENS;
        op->a = 0;
        return query_only(x, range) && query_integer(x, "from", INT32_MAX, &op->a) &&
               query_integer(x, "to", INT32_MAX, &op->b);
    case HL_AT_MEMORY:
        op->op = HL_OP_MEMORY;
        return query_only(x, where) && query_integer(x, "layer", INT32_MAX, &op->a) &&
               query_integer(x, "head", INT32_MAX, &op->b) && query_integer(x, "since", INT64_MAX / 16, &op->c);
    default: return hl_problem_set(p, HL_NOT_FOUND, "", "there is nothing at this path");
    }
}

/* ---- responses ---- */

/* The text pieces of consecutive ids, with context for the first ones. */
static json_t *pieces(const struct hl_server *s, const int32_t *ids, int64_t n) {
    json_t *list = json_array();
    hola_detokenizer *d = NULL;
    if (hola_detokenizer_new(&d, s->o.tokenizer, NULL, NULL, 0) != HOLA_OK) return list;
    hola_detokenizer_begin(d, &s->context, 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t len = 0, rest;
        const char *p = "";
        if (hola_detokenizer_add(d, ids[i], NULL) == HOLA_OK) p = hola_detokenizer_piece(d, &len);
        json_array_append_new(list, hl_json_text(p, len));
        hola_detokenizer_take(d, true, &rest);
    }
    hola_detokenizer_free(d);
    return list;
}

static json_t *messages(const struct hl_exchange *x) {
    const struct hl_op *op = x->op;
    const struct hl_server *s = x->server;
    const int64_t size = hola_tokenizer_size(s->o.tokenizer);
    json_t *list = json_array();
    for (int64_t i = 0; i < op->spans.n; i++) {
        const struct hl_message_span *m = &op->spans.span[i];
        char *text = NULL;
        int64_t len = 0, n = 0;
        int32_t *ids = malloc((size_t)(m->to - m->from + 2) * sizeof *ids);
        if (!ids) break;
        /* after an ordinary token, so that a leading space is kept if this is not the first message */
        if (m->from > 0) ids[n++] = s->context;
        for (int64_t k = m->from; k < m->to; k++)
            if (op->ids[k] < size) ids[n++] = op->ids[k];
        char *before = NULL;
        int64_t skip = 0;
        if (m->from > 0 && hola_tokenizer_decode(s->o.tokenizer, ids, 1, &before, &skip) != HOLA_OK) skip = 0;
        free(before);
        if (hola_tokenizer_decode(s->o.tokenizer, ids, n, &text, &len) == HOLA_OK) {
            const char *content = text + (skip < len ? skip : len);
            len = skip < len ? len - skip : 0;
            if (m->role != HL_ROLE_TEXT) hl_template_strip(s->o.chat, m->role, &content, &len);
            json_array_append_new(list, json_pack("{s:s, s:o, s:I, s:I}", "role", hl_role_names[m->role], "content",
                                                  hl_json_text(content, len), "from", (json_int_t)m->from, "to",
                                                  (json_int_t)m->to));
        }
        free(text), free(ids);
    }
    return list;
}

static json_t *tokens(const struct hl_exchange *x) {
    const struct hl_op *op = x->op;
    json_t *ids = json_array();
    for (int64_t i = 0; i < op->n_ids; i++) json_array_append_new(ids, json_integer(op->ids[i]));
    return json_pack("{s:I, s:o, s:o}", "from", (json_int_t)op->a, "ids", ids, "pieces",
                     pieces(x->server, op->ids, op->n_ids));
}

static json_t *memory(struct hl_exchange *x) {
    struct hl_op *op = x->op;
    json_t *map = json_object(), *json = op->json;
    for (int64_t i = 0; i < op->n_ids; i++) {
        char key[24];
        json_t *piece = hl_piece_text(x->server, op->ids[i]);
        snprintf(key, sizeof key, "%" PRId64, op->positions[i]);
        json_object_set_new(map, key, piece);
    }
    json_object_set_new(json, "pieces", map);
    op->json = NULL;
    return json;
}

void hl_api_session_answer(struct hl_exchange *x) {
    struct hl_op *op = x->op;
    if (op->error != HL_NO_ERROR) {
        char param[64];
        snprintf(param, sizeof param, "%.*s", (int)strcspn(op->reason, ":"), strchr(op->reason, ':') ? op->reason : "");
        hl_problem_set(&x->problem, op->error, strchr(param, ' ') ? "" : param, "%s", op->reason);
        hl_exchange_problem(x);
        return;
    }
    json_t *json = op->json;
    const bool made = op->op == HL_OP_CREATE || op->op == HL_OP_FORK || op->op == HL_OP_PUT;
    switch (op->op) {
    case HL_OP_FILE: hl_exchange_answer(x, 200, "application/octet-stream", op->bytes, op->n_bytes, ""); return;
    case HL_OP_MESSAGES: json = messages(x); break;
    case HL_OP_TOKENS: json = tokens(x); break;
    case HL_OP_MEMORY:
        if (op->nothing_new) {
            hl_exchange_answer(x, 204, NULL, "", 0, "");
            return;
        }
        json = memory(x);
        break;
    default: op->json = NULL; break;
    }
    hl_exchange_json(x, made ? 201 : 200, json);
}
