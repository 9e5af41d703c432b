/* serve_case.h -- an engine with a small model, requests to it, and the result of each request alone. */
#ifndef HL_SERVE_CASE_H
#define HL_SERVE_CASE_H
#include "models.h"
#include "temp.h"
#include "core/clock.h"
#include "model/session.h"
#include "serve/engine.h"

enum { CASE_VOCAB = 260, CASE_MOST = 64 };
#define CASE_CONFIG                                                                                            \
    "{\"model_type\":\"hola\",\"hidden_size\":48,\"num_hidden_layers\":2,\"num_heads\":2,\"head_dim\":16,"     \
    "\"expand_v\":1,\"intermediate_size\":80,\"vocab_size\":260,\"initializer_range\":0.3,\"cache_window\":8," \
    "\"cache_chunk\":32,\"cache_gate_init\":0.5}"

struct rig {
    hola_model *model;
    hola_tokenizer *t;
    struct hl_serve_opts o;
    struct hl_serve_engine *e;
    struct hl_queue events;
    int64_t under_way;
};

static bool case_overlap; /* as with a device: text is made while the next step runs */

/* NULL: the backend is not here. */
static inline hola_model *case_model_on(const char *backend) {
    hola_config cfg;
    hola_model *m = NULL;
    const hola_options opt = {.threads = 1, .backend = backend};
    CHECK_OK(hl_config_parse(&cfg, CASE_CONFIG, (int64_t)strlen(CASE_CONFIG), "case"));
    if (hola_model_new(&m, &cfg, 7, &opt) != HOLA_OK) print_message("%s\n", hola_last_error());
    return m;
}
static inline hola_model *case_model(void) {
    hola_model *m = case_model_on("cpu");
    assert_non_null(m);
    return m;
}
static inline void rig_start(struct rig *g) {
    CHECK_OK(hl_serve_open(&g->e, &g->o));
    hl_queue_init(&g->events, -1);
    g->under_way = 0;
}
static inline void rig_open_with(struct rig *g, hola_model *model, const char *dir) {
    *g = (struct rig){.model = model};
    CHECK_OK(hola_tokenizer_load(&g->t, "byte"));
    g->o = (struct hl_serve_opts){.model = g->model,
                                  .tokenizer = g->t,
                                  .eos = 257,
                                  .parallel = 4,
                                  .queue = 256,
                                  .cache_mem = 64 << 20,
                                  .sessions = 100,
                                  .session_dir = dir,
                                  .session_dtype = HOLA_F32,
                                  .timeout_queue = 300,
                                  .save_after = 10,
                                  .overlap = case_overlap,
                                  .sampling = hola_sampling_default()};
    rig_start(g);
}
static inline void rig_open(struct rig *g, const char *dir) { rig_open_with(g, case_model(), dir); }
static inline void rig_stop(struct rig *g) {
    hl_serve_close(g->e);
    assert_null(hl_queue_take(&g->events, 0));
    hl_queue_free(&g->events);
}
static inline void rig_close(struct rig *g) {
    rig_stop(g);
    hola_tokenizer_free(g->t);
    hola_model_free(g->model);
}

/* ---- requests ---- */

enum { ENDLESS = 1 << 30 }; /* tokens: more than an engine answers before it is told to stop, however fast it is */
struct answer {             /* one choice; of an answer that is longer, the first ids and the first text */
    int32_t ids[4096];
    int64_t n;
    char text[16384];
    int64_t n_text;
    double logprob[256];
    enum hl_finish finish;
    int64_t prompt_n, cached_n, predicted_n;
};
struct asked { /* the outcome of a request */
    struct hl_serve_request *r;
    struct answer *answer; /* [choices] */
    int64_t choices, prompt_tokens, cancel_after;
    bool ended;
    enum hl_error error;
    char reason[256], session[HL_ID_MOST + 1];
    int64_t position;
};

static const hola_sampling case_sampling = {.repeat_penalty = 1.1, .repeat_last_n = 20, .top_p = 0.99, .temp = 1};

static inline struct hl_serve_request *case_request(struct rig *g, const int32_t *ids, int64_t n, int64_t max) {
    struct hl_serve_request *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->prompts = r->n = 1;
    r->prompt = calloc(1, sizeof *r->prompt);
    r->prompt[0].ids = malloc((size_t)(n + 1) * sizeof *ids);
    memcpy(r->prompt[0].ids, ids, (size_t)n * sizeof *ids);
    r->prompt[0].n = n;
    r->max_tokens = max;
    r->sampling = case_sampling;
    r->seed = 1;
    r->logprobs = -1;
    r->ignore_eos = r->cache_prompt = true;
    r->answer_from = -1;
    r->events = &g->events;
    return r;
}
static inline void case_stop(struct hl_serve_request *r, const char *stop) {
    r->stop = malloc(sizeof *r->stop);
    r->stop_len = malloc(sizeof *r->stop_len);
    r->stop[0] = strdup(stop);
    r->stop_len[0] = (int64_t)strlen(stop);
    r->n_stop = 1;
}
static inline struct asked *case_submit(struct rig *g, struct hl_serve_request *r) {
    struct asked *a = calloc(1, sizeof *a);
    a->r = r;
    a->choices = r->prompts * r->n;
    a->answer = calloc((size_t)a->choices, sizeof *a->answer);
    r->owner = a;
    g->under_way++;
    hl_serve_submit(g->e, r);
    return a;
}
static inline void case_text(struct answer *x, const struct hl_event *ev) {
    if (ev->n_text == 0 || x->n_text + ev->n_text > (int64_t)sizeof x->text) return;
    memcpy(x->text + x->n_text, ev->text, (size_t)ev->n_text);
    x->n_text += ev->n_text;
}
static inline void case_take(struct rig *g, struct hl_event *ev) {
    struct asked *a = ev->request->owner;
    assert_false(a->ended);
    struct answer *x = &a->answer[ev->choice];
    switch ((enum hl_event_kind)ev->message.kind) {
    case HL_EVENT_PROMPT: a->prompt_tokens++; break;
    case HL_EVENT_TOKEN:
        assert_true(x->finish == HL_FINISH_NONE);
        if (x->n < 256) x->logprob[x->n] = ev->logprob;
        if (x->n < 4096) x->ids[x->n] = ev->id;
        x->n++;
        case_text(x, ev);
        if (a->cancel_after && x->n >= a->cancel_after) {
            atomic_store(&a->r->cancelled, true);
            hl_serve_nudge(g->e);
        }
        break;
    case HL_EVENT_FINISH:
        x->finish = ev->finish;
        case_text(x, ev);
        x->prompt_n = ev->prompt_n, x->cached_n = ev->cached_n, x->predicted_n = ev->predicted_n;
        break;
    case HL_EVENT_END:
        a->ended = true;
        a->error = ev->error;
        memcpy(a->reason, ev->reason, sizeof a->reason);
        memcpy(a->session, ev->session, sizeof a->session);
        a->position = ev->position;
        hl_serve_request_free(a->r);
        a->r = NULL;
        g->under_way--;
        break;
    }
    hl_event_free(ev);
}
/* All events that are there, at least one. */
static inline void case_take_all(struct rig *g) {
    struct hl_message *m = hl_queue_take(&g->events, 60), *next;
    if (!m) fail_msg("nothing came for a minute");
    for (; m; m = next) {
        next = m->next;
        case_take(g, (struct hl_event *)m);
    }
}
/* Until this one has ended, or all (NULL). */
static inline void case_wait(struct rig *g, const struct asked *a) {
    while (a ? !a->ended : g->under_way > 0) case_take_all(g);
}
static inline void asked_free(struct asked *a) {
    free(a->answer);
    free(a);
}
/* From the request to its answer, which must be none of an error. */
static inline struct asked *case_ask(struct rig *g, struct hl_serve_request *r) {
    struct asked *a = case_submit(g, r);
    case_wait(g, a);
    if (a->error != HL_NO_ERROR) fail_msg("a request failed: %s", a->reason);
    return a;
}

/* A turn of the conversation, where it stands now. */
static inline struct hl_serve_request *turn(struct rig *g, const char *id, const int32_t *ids, int64_t n, int64_t max) {
    struct hl_serve_request *r = case_request(g, ids, n, max);
    struct hl_peek at;
    snprintf(r->session, sizeof r->session, "%s", id);
    if (hl_serve_peek(g->e, id, &at)) r->position = at.position;
    return r;
}
static inline void take_turn(struct rig *g, const char *id, const int32_t *ids, int64_t n, int64_t max) {
    asked_free(case_ask(g, turn(g, id, ids, n, max)));
}

/* ---- operations ---- */

static inline struct hl_op *case_op(enum hl_op_kind kind, const char *id) {
    struct hl_op *op = calloc(1, sizeof *op);
    op->op = kind;
    snprintf(op->id, sizeof op->id, "%s", id);
    op->a = op->b = op->c = -1;
    return op;
}
/* Answered; the caller frees it. */
static inline struct hl_op *case_do(struct rig *g, struct hl_op *op) {
    struct hl_queue reply;
    hl_queue_init(&reply, -1);
    op->reply = &reply;
    hl_serve_do(g->e, op);
    struct hl_message *m = hl_queue_take(&reply, 60);
    if (!m) fail_msg("an operation was not answered");
    hl_queue_free(&reply);
    return op;
}
static inline void case_done(struct rig *g, struct hl_op *op, enum hl_error want) {
    case_do(g, op);
    if (op->error != want) fail_msg("operation %d on '%s': error %d (%s)", op->op, op->id, op->error, op->reason);
    hl_op_free(op);
}
static inline int64_t op_integer(const struct hl_op *op, const char *key) {
    return json_integer_value(json_object_get(op->json, key));
}

/* ---- alone ---- */

/* A turn on a session as hola generate takes it: the prompt, n tokens, each fed; the last one only if told. */
static inline void alone_turn(hola_session *s, const int32_t *ids, int64_t n, int64_t max, int32_t *out, bool last) {
    static float logits[CASE_VOCAB];
    for (int64_t i = 0; i < n; i += 1024) CHECK_OK(hola_session_feed(s, ids + i, n - i < 1024 ? n - i : 1024, logits));
    for (int64_t i = 0; i < max; i++) {
        CHECK_OK(hola_session_sample(s, &case_sampling, &out[i]));
        if (last || i + 1 < max) CHECK_OK(hola_session_feed(s, &out[i], 1, logits));
    }
}
static inline void alone(hola_model *m, const int32_t *ids, int64_t n, int64_t max, uint64_t seed, int32_t *out) {
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    hola_session_seed(s, seed);
    alone_turn(s, ids, n, max, out, false);
    hola_session_free(s);
}
/* The conversation's state is this session's, to the bit. */
static inline void check_state(struct rig *g, const char *id, const hola_session *s) {
    char *want;
    int64_t size;
    CHECK_OK(hl_snapshot_make(s, "want", HOLA_F32, &want, &size));
    struct hl_op *op = case_do(g, case_op(HL_OP_FILE, id));
    if (op->error != HL_NO_ERROR) fail_msg("%s", op->reason);
    assert_int_equal(op->n_bytes, size);
    if (memcmp(op->bytes, want, (size_t)size)) fail_msg("%s: another state than alone", id);
    hl_op_free(op);
    free(want);
}

#endif
