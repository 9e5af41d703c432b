/* api_other.c -- requests answered without the engine's thread: models, tokens, templates, metrics, health. */
#define _GNU_SOURCE
#include "core/json.h"
#include "serve/server_internal.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- models ---- */

static json_t *sampling(const hola_sampling *p) {
    return json_pack("{s:f, s:I, s:f, s:f, s:f, s:I}", "temperature", p->temp, "top_k", (json_int_t)p->top_k, "top_p",
                     p->top_p, "min_p", p->min_p, "repeat_penalty", p->repeat_penalty, "repeat_last_n",
                     (json_int_t)p->repeat_last_n);
}

static json_t *model(const struct hl_server *s, const char *id) {
    const hola_config *c = hola_model_config(s->o.model);
    const bool memory = c->model_type == HOLA_TYPE_HOLA && c->cache_evict != HOLA_EVICT_NONE;
    json_t *meta = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:s, s:b, s:I, s:s, s:o, s:{s:I, s:I, s:I, s:I}}", "parameters",
        (json_int_t)hola_config_parameters(c), "vocab_size", (json_int_t)c->vocab_size, "layers",
        (json_int_t)c->num_hidden_layers, "heads", (json_int_t)c->num_v_heads, "cache_window",
        (json_int_t)(memory ? c->cache_window : 0), "cache_chunk", (json_int_t)(memory ? c->cache_chunk : 0),
        "cache_evict", hola_evict_name(memory ? c->cache_evict : HOLA_EVICT_NONE), "session_bytes",
        (json_int_t)s->session_bytes, "chat_template", hl_template_name(s->o.chat), "chat_template_guessed",
        (int)s->o.template_guessed, "trained_length", (json_int_t)c->max_position_embeddings, "backend", s->o.backend,
        "defaults", sampling(&s->o.sampling), "limits", "parallel", (json_int_t)s->o.parallel, "queue",
        (json_int_t)s->o.queue, "max_body", (json_int_t)s->o.max_body, "predict", (json_int_t)s->o.predict);
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", id, "object", "model", "created", (json_int_t)s->created,
                     "owned_by", "hola", "meta", meta);
}

static json_t *models(const struct hl_server *s) {
    json_t *data = json_array();
    for (int i = 0; i < s->o.aliases.n; i++) json_array_append_new(data, model(s, s->o.aliases.item[i]));
    return json_pack("{s:s, s:o}", "object", "list", "data", data);
}

static void one_model(struct hl_exchange *x) {
    const struct hl_server *s = x->server;
    const char *id = x->http->path + strlen("/v1/models/");
    for (int i = 0; i < s->o.aliases.n; i++)
        if (!strcmp(s->o.aliases.item[i], id)) {
            x->answer = model(s, id);
            return;
        }
    hl_problem_set(&x->problem, HL_MODEL_NOT_FOUND, "model", "model: there is no such model");
}

/* ---- tokens ---- */

static bool flag(struct hl_problem *p, const json_t *root, const char *name, bool *out) {
    const json_t *v = json_object_get(root, name);
    if (!v || json_is_null(v)) return true;
    if (!json_is_boolean(v)) return hl_problem_set(p, HL_INVALID_VALUE, name, "%s: not true or false", name);
    *out = json_is_true(v);
    return true;
}

static json_t *piece(const hola_tokenizer *t, hola_detokenizer *d, int32_t id) {
    int64_t n = 0;
    (void)t;
    if (hola_detokenizer_add(d, id, NULL) != HOLA_OK) return json_string("");
    const char *p = hola_detokenizer_piece(d, &n);
    json_t *text = json_stringn(p, (size_t)n);
    if (!text) { /* not UTF-8: return bytes */
        text = json_array();
        for (int64_t i = 0; i < n; i++) json_array_append_new(text, json_integer((unsigned char)p[i]));
    }
    hola_detokenizer_take(d, true, &n);
    return text;
}

static void tokenize(struct hl_exchange *x, const json_t *root) {
    static const char *const names[] = {"content", "add_special", "with_pieces", NULL};
    const hola_tokenizer *t = x->server->o.tokenizer;
    const json_t *content = json_object_get(root, "content");
    bool special = false, pieces = false;
    if (!hl_api_only(&x->problem, root, names) || !flag(&x->problem, root, "add_special", &special) ||
        !flag(&x->problem, root, "with_pieces", &pieces))
        return;
    if (!json_is_string(content)) {
        hl_problem_set(&x->problem, content ? HL_INVALID_VALUE : HL_MISSING_FIELD, "content",
                       "content: must be a string");
        return;
    }
    int32_t *ids = NULL;
    int64_t n = 0;
    hola_detokenizer *d = NULL;
    if (hola_tokenizer_encode(t, json_string_value(content), (int64_t)json_string_length(content), 1, &ids, &n) !=
            HOLA_OK ||
        hola_detokenizer_new(&d, t, NULL, NULL, 0) != HOLA_OK) {
        hl_problem_set(&x->problem, HL_INTERNAL, "content", "%s", hola_last_error());
        free(ids);
        return;
    }
    json_t *list = json_array();
    const int32_t bos = hola_tokenizer_bos(t);
    for (int64_t i = special && bos >= 0 ? -1 : 0; i < n; i++) {
        const int32_t id = i < 0 ? bos : ids[i];
        json_array_append_new(list, pieces ? json_pack("{s:i, s:o}", "id", (int)id, "piece", piece(t, d, id))
                                           : json_integer(id));
    }
    hola_detokenizer_free(d);
    free(ids);
    x->answer = json_pack("{s:o}", "tokens", list);
}

static void detokenize(struct hl_exchange *x, const json_t *root) {
    static const char *const names[] = {"tokens", NULL};
    const hola_tokenizer *t = x->server->o.tokenizer;
    const json_t *tokens = json_object_get(root, "tokens");
    int32_t *ids = NULL;
    int64_t n = 0, len = 0, k = 0;
    char *text = NULL;
    if (!hl_api_only(&x->problem, root, names)) return;
    if (!json_is_array(tokens)) {
        hl_problem_set(&x->problem, tokens ? HL_INVALID_VALUE : HL_MISSING_FIELD, "tokens",
                       "tokens: must be a list of ids");
        return;
    }
    if (hl_api_ids(x->server, &x->problem, tokens, "tokens", &ids, &n)) {
        for (int64_t i = 0; i < n; i++) /* a vocabulary may be larger than its tokenizer: no text */
            if (ids[i] < hola_tokenizer_size(t)) ids[k++] = ids[i];
        if (hola_tokenizer_decode(t, ids, k, &text, &len) == HOLA_OK)
            x->answer = json_pack("{s:o}", "content", hl_json_text(text, len));
        else hl_problem_set(&x->problem, HL_INTERNAL, "tokens", "%s", hola_last_error());
    }
    free(ids), free(text);
}

static void apply_template(struct hl_exchange *x, const json_t *root) {
    static const char *const names[] = {"messages", NULL};
    struct hl_chat_message *m = NULL;
    struct hl_text store = {0};
    int64_t n = 0, len = 0;
    char *text = NULL;
    if (hl_api_only(&x->problem, root, names) &&
        hl_api_messages(&x->problem, json_object_get(root, "messages"), &m, &n, &store)) {
        if (hl_template_text(x->server->o.chat, m, n, &text, &len) == HOLA_OK)
            x->answer = json_pack("{s:o}", "prompt", hl_json_text(text, len));
        else hl_problem_set(&x->problem, HL_INTERNAL, "messages", "%s", hola_last_error());
    }
    free(m), free(text);
    hl_text_free(&store);
}

/* ---- metrics ---- */

static double resident_bytes(void) {
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%*s %lld", &pages) != 1) pages = 0;
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void metrics(struct hl_exchange *x) {
    struct hl_server *s = x->server;
    struct hl_text out = {0};
    hl_text_puts(&out,
                 "# HELP hola_requests_total Requests, by endpoint and status\n# TYPE hola_requests_total counter\n");
    for (int i = 0; i < s->n_counts; i++)
        hl_text_printf(&out, "hola_requests_total{endpoint=\"%s\",code=\"%d\"} %" PRId64 "\n",
                       hl_endpoint_name(s->count[i].endpoint), s->count[i].code, s->count[i].n);
    hl_text_puts(&out, "# HELP hola_rejected_total Requests refused, by reason\n# TYPE hola_rejected_total counter\n");
    hl_text_printf(&out, "hola_rejected_total{reason=\"connections\"} %" PRId64 "\n", s->refused_connections);
    for (int i = 1; i < HL_ERROR_COUNT; i++) {
        int64_t n = s->rejected[i];
        bool first = true;
        for (int k = 1; k < HL_ERROR_COUNT; k++)
            if (k != i && !strcmp(hl_error_code((enum hl_error)k), hl_error_code((enum hl_error)i)))
                n += s->rejected[k], first = first && k > i;
        if (first)
            hl_text_printf(&out, "hola_rejected_total{reason=\"%s\"} %" PRId64 "\n", hl_error_code((enum hl_error)i),
                           n);
    }
    hl_serve_metrics_write(hl_serve_metrics(s->o.engine), &out);
    hl_text_printf(
        &out,
        "# HELP process_resident_memory_bytes Memory in use\n# TYPE process_resident_memory_bytes gauge\n"
        "process_resident_memory_bytes %.0f\n"
        "# HELP process_start_time_seconds When it began, since 1970\n# TYPE process_start_time_seconds gauge\n"
        "process_start_time_seconds %" PRId64 "\n"
        "# HELP hola_build_info What runs here\n# TYPE hola_build_info gauge\n"
        "hola_build_info{version=\"%s\",model=\"%016" PRIx64 "\",backend=\"%s\"} 1\n",
        resident_bytes(), s->created, hola_version(), s->model_hash, s->o.backend);
    if (hl_text_status(&out) == HOLA_OK) x->answer = json_stringn(out.data, (size_t)out.n);
    if (!x->answer) hl_problem_set(&x->problem, HL_INTERNAL, "", "no memory for the metrics");
    hl_text_free(&out);
}

void hl_api_prepare_other(struct hl_exchange *x, json_t *root) {
    switch ((enum hl_endpoint)x->endpoint) {
    case HL_AT_HEALTH:
        if (x->server->stopping) hl_problem_set(&x->problem, HL_SHUTTING_DOWN, "", "the server is shutting down");
        else x->answer = json_pack("{s:s}", "status", "ok");
        break;
    case HL_AT_MODELS: x->answer = models(x->server); break;
    case HL_AT_MODEL: one_model(x); break;
    case HL_AT_TOKENIZE: tokenize(x, root); break;
    case HL_AT_DETOKENIZE: detokenize(x, root); break;
    case HL_AT_TEMPLATE: apply_template(x, root); break;
    case HL_AT_METRICS: metrics(x); break;
    default: hl_problem_set(&x->problem, HL_NOT_FOUND, "", "there is nothing at this path"); break;
    }
}
