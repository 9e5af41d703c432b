/* fuzz_serve.c -- any bytes as the JSON of a request, or as the file of a conversation: refused with a reason that names
 * a field, or whole: every id below the vocabulary, every number in its range. The first byte says which. */
#define _GNU_SOURCE
#define MUTATE_RUNS 8000
#include "mutate.h"
#include "core/hash.h"
#include "model/config.h"
#include "serve/server_internal.h"

static const char *const seeds[] = {
    "\001{\"prompt\": \"abc\", \"max_tokens\": 5, \"n\": 2, \"stop\": [\"a\", \"bc\"], \"temperature\": 0.5, "
    "\"logprobs\": 3, "
    "\"echo\": true, \"logit_bias\": {\"5\": -1.5}, \"seed\": 7}",
    "\001{\"prompt\": [[1, 2], [3]], \"stream\": true, \"stream_options\": {\"include_usage\": true}, \"top_p\": 0.5}",
    "\001{\"prompt\": [1, 2, 3], \"session\": \"a\", \"fork\": \"b\", \"tools\": [], \"response_format\": {\"type\": "
    "\"text\"}}",
    "\002{\"messages\": [{\"role\": \"system\", \"content\": \"x\"}, {\"role\": \"user\", \"content\": [{\"type\": "
    "\"text\", "
    "\"text\": \"y\"}]}], \"max_completion_tokens\": 3, \"logprobs\": true, \"top_logprobs\": 2}",
    "\002{\"messages\": [{\"role\": \"user\", \"content\": \"y\"}, {\"role\": \"assistant\", \"content\": \"z\", "
    "\"name\": \"n\"}]}",
};
enum { TEXTS = sizeof seeds / sizeof *seeds, MODEL = 77 };

/* A conversation's file, as the server writes it. */
static struct seed file_seed(void) {
    static char *file;
    static int64_t size;
    if (!file) {
        int32_t ids[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
        uint8_t begins[9] = {1, 0, 0, 1, 1, 0, 0, 0, 1};
        char *packed;
        struct hl_stored r = {.tape = {ids, begins, 9, 9}, .session_bytes = 9};
        r.about = json_pack("{s:i, s:i, s:i, s:i, s:s, s:b, s:[i, i], s:[[i, b, i, i], [i, b, i, i]], s:{s:s}}",
                            "created", 5, "used", 6, "position", 9, "known_from", 0, "parent", "p", "open", 1, "turns",
                            4, 9, "messages", 2, 1, 0, 4, 3, 0, 4, 9, "metadata", "title", "x");
        MUST(r.about && hl_stored_pack(&r, MODEL, &packed, &size) == HOLA_OK);
        json_decref(r.about);
        file = malloc((size_t)size + 10);
        MUST(file);
        file[0] = 3;
        memcpy(file + 1, packed, (size_t)size);
        memcpy(file + 1 + size, "the state", 9);
        size += 9;
        free(packed);
    }
    return (struct seed){file, (size_t)size + 1};
}

static struct seed seed_at(size_t i) {
    if (i < TEXTS) return (struct seed){seeds[i], strlen(seeds[i])};
    return i < TEXTS + 2 ? file_seed() : (struct seed){NULL, 0};
}

/* ---- requests ---- */

static struct hl_server server;
static void open_server(void) {
    static const char json[] =
        "{\"model_type\":\"hola\",\"hidden_size\":16,\"num_hidden_layers\":1,\"num_heads\":1,\"head_dim\":16,"
        "\"expand_v\":1,\"intermediate_size\":16,\"vocab_size\":260,\"cache_window\":4,\"cache_chunk\":32}";
    static const char *const names[] = {"tiny"};
    hola_config cfg;
    hola_tokenizer *t;
    struct hl_template *chat;
    bool guessed;
    if (server.o.engine) return;
    MUST(hl_config_parse(&cfg, json, (int64_t)strlen(json), "fuzz") == HOLA_OK);
    MUST(hola_model_new(&server.o.model, &cfg, 1, &(hola_options){.threads = 1}) == HOLA_OK);
    MUST(hola_tokenizer_load(&t, "byte") == HOLA_OK);
    MUST(hl_template_open(&chat, "chatml", ".", t, &guessed) == HOLA_OK);
    server.o.tokenizer = t, server.o.chat = chat;
    server.o.aliases = (struct hl_server_list){names, 1};
    server.o.sampling = hola_sampling_default();
    const struct hl_serve_opts e = {.model = server.o.model, .tokenizer = t, .eos = 257, .parallel = 1, .sessions = 1};
    MUST(hl_serve_open(&server.o.engine, &e) == HOLA_OK);
}

static void check_request(const struct hl_serve_request *r) {
    MUST(r->prompts >= 1 && r->n >= 1 && r->prompts * r->n <= 128 && r->n_stop <= 16 + 8);
    for (int64_t i = 0; i < r->prompts; i++)
        for (int64_t k = 0; k < r->prompt[i].n; k++) MUST(r->prompt[i].ids[k] >= 0 && r->prompt[i].ids[k] < 260);
    for (int64_t i = 0; i < r->n_stop; i++) MUST(r->stop_len[i] >= 1 && r->stop_len[i] <= 256);
    for (int64_t i = 0; i < r->n_bias; i++) MUST(r->bias[i].id >= 0 && r->bias[i].id < 260);
    MUST(r->max_tokens >= 0 && r->logprobs >= -1 && r->logprobs <= 20 && r->sampling.top_p > 0 &&
         r->sampling.temp >= 0);
    for (int64_t i = 0; i < r->spans.n; i++) MUST(r->spans.span[i].to <= r->prompt[0].n);
    MUST(r->answer_from <= r->prompt[0].n);
}

static void try_request(const char *text, size_t n, bool chat) {
    open_server();
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    struct hl_exchange *x = calloc(1, sizeof *x);
    MUST(x);
    x->server = &server;
    if (json_is_object(root)) {
        const bool ok = chat ? hl_api_chat(x, root) : hl_api_completion(x, root);
        MUST(ok == (x->problem.error == HL_NO_ERROR));
        if (ok) check_request(x->request);
        else {
            json_t *said = hl_problem_json(&x->problem);
            MUST(said && x->problem.reason[0]);
            json_decref(said);
        }
    }
    json_decref(root);
    hl_exchange_free(x);
}

/* ---- files ---- */

/* The sums fit, so that what lies behind them is looked at, too. */
static void mend_sums(char *file, size_t n) {
    uint64_t about, ids, sum;
    if (n < HL_RECORD_HEAD) return;
    memcpy(&about, file + 24, 8), memcpy(&ids, file + 32, 8);
    sum = hl_hash(0, file, 48);
    memcpy(file + 48, &sum, 8);
    if (about > n || ids > n || HL_RECORD_HEAD + about + 5 * ids > n) return;
    sum = hl_hash(0, file + HL_RECORD_HEAD, (int64_t)(about + 5 * ids));
    memcpy(file + 56, &sum, 8);
}

static void try_file(const char *data, size_t n) {
    struct hl_stored r = {0};
    char *file = malloc(n + 1);
    MUST(file);
    memcpy(file, data, n);
    mend_sums(file, n);
    const int64_t end = hl_stored_about_end(file, (int64_t)n, MODEL);
    MUST(end < 0 || end >= HL_RECORD_HEAD);
    struct hl_bytes from = {.data = file, .size = (int64_t)n, .path = "file"};
    if (hl_stored_read(&r, &from, MODEL) == HOLA_OK) {
        struct hl_conversations table;
        hl_conversations_init(&table);
        struct hl_conversation *c = hl_conversation_add(&table, "x");
        MUST(c);
        if (hl_conversation_from(c, r.about, true)) {
            for (int i = 0; i < c->turns; i++) MUST(c->turn[i] >= 0 && c->turn[i] <= c->position);
            for (int64_t i = 0; i < c->spans.n; i++) MUST(c->spans.span[i].to <= c->position);
            MUST(c->known_from <= c->position && (!c->parent[0] || hl_id_valid(c->parent)));
        }
        hl_conversations_free(&table);
        hl_stored_free(&r);
    } else MUST(strstr(hola_last_error(), "file"));
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    if (data[0] % 3 == 0) try_file((const char *)data + 1, size - 1);
    else try_request((const char *)data + 1, size - 1, data[0] % 3 == 2);
    return 0;
}
