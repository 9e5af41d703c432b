/* api_fields.c -- builds a generation request from JSON: every field is checked, every error names its field. */
#define _GNU_SOURCE
#include "serve/server_internal.h"
#include "tokenizer/tokenizer.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { PROMPTS_MOST = 128, CHOICES_MOST = 16, STOPS_MOST = 16, STOP_BYTES = 256, BIASES_MOST = 1024, TOP_MOST = 20 };

/* ---- values ---- */

static const json_t *field(const json_t *root, const char *name) {
    const json_t *x = json_object_get(root, name);
    return json_is_null(x) ? NULL : x;
}

/* A value for a message: short, on one line. */
static const char *shown(const json_t *x, char out[64]) {
    char *text = json_dumps(x, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    snprintf(out, 64, "%.50s%s", text ? text : "?", text && strlen(text) > 50 ? "..." : "");
    free(text);
    return out;
}

static bool wrong(struct hl_problem *p, const char *name, const json_t *x, const char *want) {
    char value[64];
    return hl_problem_set(p, HL_INVALID_VALUE, name, "%s: %s is not %s", name, shown(x, value), want);
}

static bool integer(struct hl_problem *p, const json_t *root, const char *name, int64_t lo, int64_t hi, int64_t *out) {
    const json_t *x = field(root, name);
    char want[96];
    if (!x) return true;
    snprintf(want, sizeof want, "an integer from %" PRId64 " to %" PRId64, lo, hi);
    if (!json_is_integer(x) || json_integer_value(x) < lo || json_integer_value(x) > hi) return wrong(p, name, x, want);
    *out = json_integer_value(x);
    return true;
}
static bool number(struct hl_problem *p, const json_t *root, const char *name, double lo, double hi, double *out) {
    const json_t *x = field(root, name);
    char want[96];
    if (!x) return true;
    snprintf(want, sizeof want, "a number from %g to %g", lo, hi);
    if (!json_is_number(x) || !(json_number_value(x) >= lo && json_number_value(x) <= hi))
        return wrong(p, name, x, want);
    *out = json_number_value(x);
    return true;
}
static bool boolean(struct hl_problem *p, const json_t *root, const char *name, bool *out) {
    const json_t *x = field(root, name);
    if (!x) return true;
    if (!json_is_boolean(x)) return wrong(p, name, x, "true or false");
    *out = json_is_true(x);
    return true;
}

bool hl_api_only(struct hl_problem *p, const json_t *root, const char *const *names) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, key, value) {
        bool known = false;
        for (int i = 0; names[i] && !known; i++) known = !strcmp(names[i], key);
        if (!known) {
            char name[48];
            snprintf(name, sizeof name, "%.40s", key);
            for (char *c = name; *c; c++)
                if (*c < 0x20 || *c > 0x7e) *c = '?';
            return hl_problem_set(p, HL_UNKNOWN_FIELD, name, "%s: there is no such field", name);
        }
    }
    return true;
}

bool hl_api_ids(const struct hl_server *s, struct hl_problem *p, const json_t *list, const char *param, int32_t **ids,
                int64_t *n) {
    const int64_t vocab = hola_model_config(s->o.model)->vocab_size, count = (int64_t)json_array_size(list);
    *n = 0;
    *ids = malloc((size_t)(count + 1) * sizeof **ids);
    if (!*ids) return hl_problem_set(p, HL_INTERNAL, param, "%s: no memory for its tokens", param);
    for (int64_t i = 0; i < count; i++) {
        const json_t *x = json_array_get(list, (size_t)i);
        if (!json_is_integer(x) || json_integer_value(x) < 0 || json_integer_value(x) >= vocab) {
            char value[64], message[160];
            snprintf(message, sizeof message, "%s: %s is not a token id below %" PRId64, param, shown(x, value), vocab);
            return hl_problem_set(p, HL_INVALID_VALUE, param, "%s", message);
        }
        (*ids)[(*n)++] = (int32_t)json_integer_value(x);
    }
    return true;
}

/* ---- fields of both endpoints ---- */

/* Accepted values that have no effect. */
static bool changes_nothing(const char *name, const json_t *x, int64_t n) {
    const char *text = json_string_value(x);
    if (json_is_array(x) && json_array_size(x) == 0) return true;
    if (!strcmp(name, "best_of")) return json_is_integer(x) && json_integer_value(x) == n;
    if (!strcmp(name, "suffix")) return text && !*text;
    if (!strcmp(name, "tool_choice") || !strcmp(name, "function_call"))
        return text && (!strcmp(text, "none") || !strcmp(text, "auto"));
    if (!strcmp(name, "response_format")) {
        const char *type = json_string_value(json_object_get(x, "type"));
        return json_object_size(x) == 1 && type && !strcmp(type, "text");
    }
    text = json_string_value(json_array_get(x, 0));
    return !strcmp(name, "modalities") && json_array_size(x) == 1 && text && !strcmp(text, "text");
}

static bool read_unsupported(struct hl_problem *p, const json_t *root, int64_t n) {
    static const char *const names[] = {
        "best_of",         "suffix",     "tools", "tool_choice", "functions",         "function_call",
        "response_format", "modalities", "audio", "prediction",  "web_search_options"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *x = field(root, names[i]);
        if (x && !changes_nothing(names[i], x, n))
            return hl_problem_set(p, HL_UNSUPPORTED, names[i], "%s: not supported", names[i]);
    }
    return true;
}

static bool read_stop(struct hl_problem *p, const json_t *root, struct hl_serve_request *r) {
    const json_t *x = field(root, "stop");
    const int64_t n = json_is_array(x) ? (int64_t)json_array_size(x) : 1;
    if (!x) return true;
    if (!json_is_string(x) && (!json_is_array(x) || n > STOPS_MOST))
        return wrong(p, "stop", x, "a string or a list of up to 16");
    r->stop = calloc((size_t)n + 1, sizeof *r->stop);
    r->stop_len = calloc((size_t)n + 1, sizeof *r->stop_len);
    for (int64_t i = 0; r->stop && r->stop_len && i < n; i++) {
        const json_t *one = json_is_array(x) ? json_array_get(x, (size_t)i) : x;
        const size_t len = json_string_length(one);
        if (!json_is_string(one) || len < 1 || len > STOP_BYTES)
            return wrong(p, "stop", one, "a string of 1 to 256 bytes");
        r->stop[i] = malloc(len + 1);
        if (!r->stop[i]) break;
        memcpy(r->stop[i], json_string_value(one), len);
        r->stop_len[i] = (int64_t)len;
        r->n_stop++;
    }
    return r->n_stop == n || hl_problem_set(p, HL_INTERNAL, "stop", "stop: no memory");
}

static bool read_bias(const struct hl_server *s, struct hl_problem *p, const json_t *root, struct hl_serve_request *r) {
    const int64_t vocab = hola_model_config(s->o.model)->vocab_size;
    const json_t *x = field(root, "logit_bias");
    const char *key;
    json_t *value;
    if (!x) return true;
    if (!json_is_object(x) || json_object_size(x) > BIASES_MOST)
        return hl_problem_set(p, HL_INVALID_VALUE, "logit_bias", "logit_bias: not an object of up to %d ids",
                              BIASES_MOST);
    r->bias = calloc(json_object_size(x) + 1, sizeof *r->bias);
    if (!r->bias) return hl_problem_set(p, HL_INTERNAL, "logit_bias", "logit_bias: no memory");
    json_object_foreach((json_t *)(uintptr_t)x, key, value) {
        char *end;
        const long long id = strtoll(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end || id >= vocab)
            return hl_problem_set(p, HL_INVALID_VALUE, "logit_bias",
                                  "logit_bias: a key is not a token id below %" PRId64, vocab);
        if (!json_is_number(value) || !(fabs(json_number_value(value)) <= 100))
            return wrong(p, "logit_bias", value, "a number from -100 to 100");
        r->bias[r->n_bias++] = (struct hl_logit_bias){(int32_t)id, (float)json_number_value(value)};
    }
    return true;
}

static bool read_session(struct hl_problem *p, const json_t *root, struct hl_serve_request *r) {
    const json_t *id = field(root, "session"), *fork = field(root, "fork");
    if (fork && !id) return hl_problem_set(p, HL_INVALID_VALUE, "fork", "fork: only with a session");
    if (!id) return true;
    if (!json_is_string(id) || json_string_length(id) != strlen(json_string_value(id)) ||
        !hl_id_valid(json_string_value(id)))
        return wrong(p, "session", id, "an id");
    snprintf(r->session, sizeof r->session, "%s", json_string_value(id));
    if (json_is_true(fork)) r->fork = HL_FORK_DROPPED;
    else if (json_is_string(fork) && json_string_length(fork) == strlen(json_string_value(fork)) &&
             hl_id_valid(json_string_value(fork))) {
        r->fork = HL_FORK_KEPT;
        snprintf(r->fork_id, sizeof r->fork_id, "%s", json_string_value(fork));
    } else if (fork && !json_is_false(fork)) return wrong(p, "fork", fork, "true or a new id");
    if (r->n > 1 && r->fork != HL_FORK_DROPPED)
        return hl_problem_set(p, HL_INVALID_VALUE, "n",
                              "n: %" PRId64 ", but a session takes one answer (or fork: true)", r->n);
    return true;
}

static bool read_model(struct hl_exchange *x, const json_t *root) {
    const struct hl_server_list *all = &x->server->o.aliases;
    const json_t *name = field(root, "model");
    char value[64];
    x->model = all->item[0];
    if (!name) return true;
    if (!json_is_string(name)) return wrong(&x->problem, "model", name, "a string");
    for (int i = 0; i < all->n; i++) {
        x->model = all->item[i];
        if (!strcmp(x->model, json_string_value(name))) return true;
    }
    return hl_problem_set(&x->problem, HL_MODEL_NOT_FOUND, "model", "model: there is no %s", shown(name, value));
}

static bool read_stream(struct hl_exchange *x, const json_t *root) {
    struct hl_problem *p = &x->problem;
    static const char *const names[] = {"include_usage", "include_obfuscation", NULL};
    const json_t *options = field(root, "stream_options");
    bool ignored;
    if (!boolean(p, root, "stream", &x->stream)) return false;
    if (!options) return true;
    if (!json_is_object(options)) return wrong(p, "stream_options", options, "an object");
    if (!hl_api_only(p, options, names) || !boolean(p, options, "include_usage", &x->usage) ||
        !boolean(p, options, "include_obfuscation", &ignored))
        return false;
    if (!x->stream) return hl_problem_set(p, HL_INVALID_VALUE, "stream_options", "stream_options: only with stream");
    return true;
}

#define COMMON_NAMES                                                                                                   \
    "model", "max_tokens", "n", "stream", "stream_options", "stop", "temperature", "top_p", "top_k", "min_p",          \
        "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty", "logit_bias", "seed",              \
        "ignore_eos", "cache_prompt", "return_token_ids", "session", "fork", "user", "metadata", "store",              \
        "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort",         \
        "verbosity", "parallel_tool_calls", "best_of", "suffix", "tools", "tool_choice", "functions", "function_call", \
        "response_format", "modalities", "audio", "prediction", "web_search_options", "logprobs"

static bool read_common(struct hl_exchange *x, const json_t *root) {
    const struct hl_server *s = x->server;
    struct hl_problem *p = &x->problem;
    struct hl_serve_request *r = x->request = calloc(1, sizeof *r);
    int64_t seed = -1, last_n;
    if (!r) return hl_problem_set(p, HL_INTERNAL, "", "no memory for the request");
    r->n = 1;
    r->logprobs = -1;
    r->cache_prompt = true;
    r->answer_from = -1;
    r->sampling = s->o.sampling;
    r->max_tokens = x->chat ? s->o.predict : 16;
    last_n = r->sampling.repeat_last_n;
    if (!read_model(x, root) || !integer(p, root, "max_tokens", 0, INT32_MAX, &r->max_tokens) ||
        !integer(p, root, "n", 1, CHOICES_MOST, &r->n) || !read_stream(x, root) || !read_stop(p, root, r) ||
        !number(p, root, "temperature", 0, 100, &r->sampling.temp) ||
        !number(p, root, "top_p", 1e-12, 1, &r->sampling.top_p) ||
        !integer(p, root, "top_k", 0, INT32_MAX, &r->sampling.top_k) ||
        !number(p, root, "min_p", 0, 1, &r->sampling.min_p) ||
        !number(p, root, "repeat_penalty", 0.01, 100, &r->sampling.repeat_penalty) ||
        !integer(p, root, "repeat_last_n", 0, HOLA_RECENT, &last_n) ||
        !number(p, root, "presence_penalty", -2, 2, &r->presence) ||
        !number(p, root, "frequency_penalty", -2, 2, &r->frequency) || !read_bias(s, p, root, r) ||
        !integer(p, root, "seed", 0, INT64_MAX, &seed) || !boolean(p, root, "ignore_eos", &r->ignore_eos) ||
        !boolean(p, root, "cache_prompt", &r->cache_prompt) || !boolean(p, root, "return_token_ids", &x->token_ids) ||
        !read_session(p, root, r) || !read_unsupported(p, root, r->n))
        return false;
    r->sampling.repeat_last_n = last_n;
    uint64_t random = 0;
    if (seed < 0 && getrandom(&random, sizeof random, 0) != sizeof random) random = 0;
    r->seed = seed < 0 ? random >> 33 : (uint64_t)seed; /* short enough to type */
    return true;
}

/* Allocates the choices and names the response. */
static bool finish(struct hl_exchange *x) {
    struct hl_serve_request *r = x->request;
    uint64_t random = 0;
    if (r->prompts * r->n > PROMPTS_MOST)
        return hl_problem_set(&x->problem, HL_INVALID_VALUE, "n",
                              "n: %" PRId64 " answers to %" PRId64 " prompts are more than %d", r->n, r->prompts,
                              PROMPTS_MOST);
    x->choice = calloc((size_t)(r->prompts * r->n), sizeof *x->choice);
    if (!x->choice) return hl_problem_set(&x->problem, HL_INTERNAL, "", "no memory for the answers");
    x->choices = r->prompts * r->n;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = (uint64_t)(uintptr_t)x;
    snprintf(x->name, sizeof x->name, "%s-%016" PRIx64, x->chat ? "chatcmpl" : "cmpl", random);
    x->created = (int64_t)time(NULL);
    return true;
}

/* Looks up the session it continues, in its current state. */
static bool look_at_session(struct hl_exchange *x, struct hl_peek *at) {
    struct hl_serve_request *r = x->request;
    *at = (struct hl_peek){0};
    if (!r->session[0]) return true;
    if (!hl_serve_peek(x->server->o.engine, r->session, at))
        return hl_problem_set(&x->problem, HL_SESSION_NOT_FOUND, "session", "session: there is no '%s'", r->session);
    r->position = at->position;
    return true;
}

/* ---- completions ---- */

static bool encode(struct hl_exchange *x, const json_t *text, bool begins, struct hl_prompt *out) {
    const struct hl_server *s = x->server;
    const int32_t bos = begins ? hola_tokenizer_bos(s->o.tokenizer) : -1;
    hola_tokenizer *more = begins ? NULL : hl_tokenizer_continuing(s->o.tokenizer);
    int32_t *ids = NULL;
    int64_t n = 0;
    hola_status st = begins || more ? hola_tokenizer_encode(begins ? s->o.tokenizer : more, json_string_value(text),
                                                            (int64_t)json_string_length(text), 1, &ids, &n)
                                    : HOLA_ENOMEM;
    free(more);
    out->ids = st == HOLA_OK ? malloc((size_t)(n + 1) * sizeof *ids) : NULL;
    if (out->ids) {
        if (bos >= 0) out->ids[0] = bos;
        if (n > 0) memcpy(out->ids + (bos >= 0), ids, (size_t)n * sizeof *ids);
        out->n = n + (bos >= 0);
    }
    free(ids);
    if (!out->ids) return hl_problem_set(&x->problem, HL_INTERNAL, "prompt", "prompt: %s", hola_last_error());
    if (begins && out->n == 0)
        return hl_problem_set(&x->problem, HL_INVALID_VALUE, "prompt",
                              "prompt: empty, and there is no BOS to begin with");
    return true;
}

static bool one_prompt(struct hl_exchange *x, const json_t *from, bool begins, struct hl_prompt *out) {
    if (json_is_string(from)) return encode(x, from, begins, out);
    if (!json_is_array(from)) return wrong(&x->problem, "prompt", from, "a string or a list of ids");
    if (begins && json_array_size(from) == 0)
        return hl_problem_set(&x->problem, HL_INVALID_VALUE, "prompt", "prompt: no ids");
    return hl_api_ids(x->server, &x->problem, from, "prompt", &out->ids, &out->n);
}

static bool read_prompts(struct hl_exchange *x, const json_t *root, bool begins) {
    struct hl_serve_request *r = x->request;
    const json_t *prompt = field(root, "prompt"), *first = json_array_get(prompt, 0);
    if (!prompt) return hl_problem_set(&x->problem, HL_MISSING_FIELD, "prompt", "prompt: needed");
    const bool many = json_is_array(prompt) && (json_is_string(first) || json_is_array(first));
    const int64_t n = many ? (int64_t)json_array_size(prompt) : 1;
    if (n > PROMPTS_MOST)
        return hl_problem_set(&x->problem, HL_INVALID_VALUE, "prompt", "prompt: %" PRId64 ", more than %d", n,
                              PROMPTS_MOST);
    if (n > 1 && r->session[0])
        return hl_problem_set(&x->problem, HL_INVALID_VALUE, "prompt", "prompt: a session takes one at a time");
    r->prompt = calloc((size_t)n, sizeof *r->prompt);
    if (!r->prompt) return hl_problem_set(&x->problem, HL_INTERNAL, "prompt", "prompt: no memory");
    r->prompts = n;
    for (int64_t i = 0; i < n; i++)
        if (!one_prompt(x, many ? json_array_get(prompt, (size_t)i) : prompt, begins, &r->prompt[i])) return false;
    return true;
}

bool hl_api_completion(struct hl_exchange *x, json_t *root) {
    static const char *const names[] = {COMMON_NAMES, "prompt", "echo", NULL};
    struct hl_problem *p = &x->problem;
    struct hl_peek at;
    int64_t logprobs = -1;
    if (!hl_api_only(p, root, names) || !read_common(x, root) || !boolean(p, root, "echo", &x->echo) ||
        !integer(p, root, "logprobs", 0, TOP_MOST, &logprobs) || !look_at_session(x, &at))
        return false;
    if (x->echo && x->request->session[0])
        return hl_problem_set(p, HL_INVALID_VALUE, "echo", "echo: not with a session");
    x->request->logprobs = (int)logprobs;
    x->request->score_prompt = x->echo && logprobs >= 0;
    return read_prompts(x, root, at.position == 0) && finish(x);
}

/* ---- chat ---- */

/* A message's content: a string, or text parts joined by line feeds, stored in `store`. */
static bool read_content(struct hl_problem *p, const json_t *content, struct hl_text *store, int64_t *begin,
                         int64_t *len) {
    *begin = store->n;
    if (json_is_string(content)) hl_text_put(store, json_string_value(content), (int64_t)json_string_length(content));
    else if (json_is_array(content)) {
        for (size_t i = 0; i < json_array_size(content); i++) {
            const json_t *part = json_array_get(content, i), *text = json_object_get(part, "text");
            const char *type = json_string_value(json_object_get(part, "type"));
            if (!type || strcmp(type, "text") != 0)
                return hl_problem_set(p, type ? HL_UNSUPPORTED : HL_INVALID_VALUE, "messages",
                                      "messages: a part that is not text");
            if (!json_is_string(text))
                return hl_problem_set(p, HL_INVALID_VALUE, "messages", "messages: a part without text");
            if (i > 0) hl_text_puts(store, "\n");
            hl_text_put(store, json_string_value(text), (int64_t)json_string_length(text));
        }
        hl_text_put(store, "", 0);
    } else return hl_problem_set(p, HL_INVALID_VALUE, "messages", "messages: a content that is neither text nor parts");
    *len = store->n - *begin;
    return hl_text_status(store) == HOLA_OK || hl_problem_set(p, HL_INTERNAL, "messages", "messages: no memory");
}

bool hl_api_messages(struct hl_problem *p, const json_t *list, struct hl_chat_message **out, int64_t *n,
                     struct hl_text *store) {
    static const char *const names[] = {"role", "content", "name", NULL};
    *out = NULL, *n = 0;
    if (!list) return hl_problem_set(p, HL_MISSING_FIELD, "messages", "messages: needed");
    if (!json_is_array(list) || json_array_size(list) == 0) return wrong(p, "messages", list, "a list of messages");
    *out = calloc(json_array_size(list), sizeof **out);
    int64_t *begin = calloc(json_array_size(list), sizeof *begin);
    bool ok = *out && begin;
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const json_t *m = json_array_get(list, i), *role = json_object_get(m, "role");
        int64_t len = 0;
        if (!json_is_object(m)) ok = wrong(p, "messages", m, "a message");
        else ok = hl_api_only(p, m, names);
        const enum hl_role which = json_is_string(role) ? hl_role_named(json_string_value(role)) : HL_ROLE_TEXT;
        if (ok && which == HL_ROLE_TEXT)
            ok = hl_problem_set(p, role ? HL_INVALID_VALUE : HL_MISSING_FIELD, "messages",
                                "messages: a role that is none of system, developer, user, assistant");
        if (ok) ok = read_content(p, json_object_get(m, "content"), store, &begin[i], &len);
        (*out)[i] = (struct hl_chat_message){.role = which, .len = len};
    }
    for (size_t i = 0; ok && i < json_array_size(list); i++) (*out)[i].content = store->data + begin[i];
    free(begin);
    *n = (int64_t)json_array_size(list);
    return ok;
}

bool hl_api_chat(struct hl_exchange *x, json_t *root) {
    static const char *const names[] = {COMMON_NAMES, "messages", "max_completion_tokens", "top_logprobs", NULL};
    struct hl_problem *p = &x->problem;
    struct hl_chat_message *m = NULL;
    struct hl_text store = {0};
    struct hl_peek at;
    int64_t n = 0, top = 0, most = -1;
    bool logprobs = false;
    x->chat = true;
    bool ok = hl_api_only(p, root, names) && read_common(x, root) && boolean(p, root, "logprobs", &logprobs) &&
              integer(p, root, "top_logprobs", 0, TOP_MOST, &top) &&
              integer(p, root, "max_completion_tokens", 0, INT32_MAX, &most);
    if (ok && most >= 0 && field(root, "max_tokens") && x->request->max_tokens != most)
        ok = hl_problem_set(p, HL_INVALID_VALUE, "max_completion_tokens",
                            "max_completion_tokens: %" PRId64 ", but max_tokens is %" PRId64, most,
                            x->request->max_tokens);
    if (ok && most >= 0) x->request->max_tokens = most;
    if (ok && field(root, "top_logprobs") && !logprobs)
        ok = hl_problem_set(p, HL_INVALID_VALUE, "top_logprobs", "top_logprobs: only with logprobs");
    if (ok && logprobs) x->request->logprobs = (int)top;
    ok = ok && look_at_session(x, &at) && hl_api_messages(p, field(root, "messages"), &m, &n, &store);
    if (ok && hl_template_prompt(x->server->o.chat, m, n, at.position == 0, at.open, x->request) != HOLA_OK)
        ok = hl_problem_set(p, HL_INTERNAL, "messages", "messages: %s", hola_last_error());
    free(m);
    hl_text_free(&store);
    return ok && finish(x);
}
