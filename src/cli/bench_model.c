/* bench_model.c -- times of whole passes: training steps, prefill, decoding. Two models are timed alternately, step by
 * step, so that their ratio is robust to a noisy machine. */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench.h"
#include "core/clock.h"
#include "core/process.h"
#include "model/session.h"
#include "ops/linear/quant.h"
#include "train/memory.h"
#include <stdlib.h>
#include <string.h>

/* ---- each op of the table, timed ---- */

static struct hl_ops untimed; /* the model's own op table, while it runs on the timed one */
static struct bench_op timed[BENCH_OPS];
enum {
#define INDEX(name, arg, need, where) OP_##name,
    HL_OPS_LIST(INDEX)
#undef INDEX
        OP_COUNT
};
_Static_assert((int)OP_COUNT <= (int)BENCH_OPS, "BENCH_OPS is too small");
#define TIMED(op, arg, need, where)                                     \
    static void timed_##op(struct hl_backend *b, const struct arg *a) { \
        double t = hl_clock();                                          \
        untimed.op(b, a);                                               \
        hl_finish(b);                                                   \
        timed[OP_##op].seconds += hl_clock() - t;                       \
        timed[OP_##op].calls++;                                         \
    }
HL_OPS_LIST(TIMED)
#undef TIMED

/* Each op is synchronized, so nothing may be captured into a graph meanwhile. */
static struct hl_graphs graphs;

int bench_ops_start(hola_model *m) {
    untimed = m->backend->ops;
    graphs = m->backend->graphs;
    m->backend->graphs = (struct hl_graphs){0};
#define TIME(op, arg, need, where)                   \
    timed[OP_##op] = (struct bench_op){.name = #op}; \
    if (untimed.op) m->backend->ops.op = timed_##op;
    HL_OPS_LIST(TIME)
#undef TIME
    return OP_COUNT;
}

void bench_ops_stop(hola_model *m, struct bench_op out[BENCH_OPS]) {
    m->backend->ops = untimed;
    m->backend->graphs = graphs;
    memcpy(out, timed, sizeof timed);
}
static bool is_timed(const hola_model *m) { return m->backend->ops.rmsnorm_forward == timed_rmsnorm_forward; }

/* ---- training ---- */

enum { MAX_REPEATS = 64 };

static int32_t *some_ids(int64_t n, int64_t vocab) {
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    uint64_t x = 88172645463325252u;
    for (int64_t i = 0; ids && i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        ids[i] = (int32_t)(x % (uint64_t)vocab);
    }
    return ids;
}

struct run {
    hola_model *m;
    hola_trainer *trainer;
    double forward[MAX_REPEATS], both[MAX_REPEATS], update[MAX_REPEATS];
};

/* The forward pass is also timed alone before the step, so that the step's time can be split. */
static hola_status train_step(struct run *r, const int32_t *ids, int64_t n, const int64_t *starts, int64_t docs,
                              int i) {
    double loss, norm, t0 = hl_clock(), t1, t2;
    hola_status s = HOLA_OK;
    if (!is_timed(r->m)) s = hola_trainer_evaluate(r->trainer, ids, n, starts, docs, &loss, NULL);
    t1 = hl_clock();
    if (s == HOLA_OK) s = hola_trainer_accumulate(r->trainer, ids, n, starts, docs, 1.0 / (double)n, &loss, NULL);
    t2 = hl_clock();
    if (s == HOLA_OK) s = hola_trainer_update(r->trainer, 1e-4, &norm);
    r->forward[i] = t1 - t0;
    r->both[i] = t2 - t1;
    r->update[i] = hl_clock() - t2;
    return s;
}

static int64_t bytes_used(const hola_model *m) {
    int64_t left, used;
    m->backend->storage.free_memory(m->backend, &left, &used);
    return m->backend->host ? hl_resident_bytes() : used;
}

hola_status bench_train(hola_model *m, hola_model *other, const struct bench_training *how, int repeats,
                        struct bench_train *out) {
    const int64_t batch = how->batch, seq = how->seq, n = batch * seq;
    const hola_train_opts opt = {
        .size = sizeof opt, .max_tokens = n, .precision = how->precision, .recompute = how->recompute};
    const struct hl_slice_shape shape = {n, batch, how->recompute, how->precision == HOLA_PRECISION_FP8};
    struct run r[2] = {{.m = m}, {.m = other}};
    struct hl_memory memory = {0};
    int64_t used = 0;
    int32_t *ids = some_ids(n, m->cfg.vocab_size);
    int64_t *starts = malloc((size_t)batch * sizeof *starts);
    hola_status s = ids && starts ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%lld tokens", (long long)n);
    double ratio[MAX_REPEATS], total[MAX_REPEATS];
    for (int64_t i = 0; s == HOLA_OK && i < batch; i++) starts[i] = i * seq;
    if (s == HOLA_OK && !other) s = hl_memory_predict(&memory, m, &shape, 1, n);
    for (int k = 0; s == HOLA_OK && k < 2 && r[k].m; k++) {
        s = hola_trainer_new(&r[k].trainer, r[k].m, &opt);
        if (s == HOLA_OK) s = train_step(&r[k], ids, n, starts, batch, 0); /* warm-up */
    }
    if (!other) used = bytes_used(m);
    for (int i = 0; s == HOLA_OK && i < repeats; i++)
        for (int k = 0; s == HOLA_OK && k < 2 && r[k].m; k++) s = train_step(&r[k], ids, n, starts, batch, i);
    for (int i = 0; i < repeats; i++) {
        total[i] = r[0].both[i] + r[0].update[i];
        ratio[i] = (r[1].both[i] + r[1].update[i]) / total[i];
        r[0].both[i] -= r[0].forward[i];
    }
    *out = (struct bench_train){.seconds = bench_median(total, repeats),
                                .forward = bench_median(r[0].forward, repeats),
                                .backward = bench_median(r[0].both, repeats),
                                .update = bench_median(r[0].update, repeats),
                                .predicted = hl_memory_total(&memory),
                                .used = used,
                                .ratio = other ? bench_median(ratio, repeats) : 0};
    out->tokens_per_s = (double)n / out->seconds;
    out->flops = 6.0 * (double)hola_config_parameters(&m->cfg) * out->tokens_per_s;
    hola_trainer_free(r[0].trainer);
    hola_trainer_free(r[1].trainer);
    free(ids);
    free(starts);
    return s;
}

/* ---- inference ---- */

/* Parameters multiplied per token, without the head. */
static int64_t inner_parameters(const hola_model *m) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->params.n; i++)
        if (m->params.tensor[i].matrix && i != m->params.embed && i != m->params.head) n += m->params.tensor[i].count;
    return n;
}
static int64_t weight_bytes(const struct hl_weight *w, int64_t count) {
    if (hl_is_quant(w->dtype))
        return w->rows * (hl_quant_row(w->dtype, w->cols) + 2 * hl_quant_groups(w->dtype, w->cols));
    return count * (w->dtype != HOLA_F32 ? 2 : 4);
}
/* Bytes read or written per decoded token: every weight once, and the session's state after pos tokens. */
static double decode_bytes(const hola_model *m, int64_t pos) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->params.n; i++) {
        if (i == m->params.embed && i != m->params.head) continue; /* only one row of it is read */
        bytes += weight_bytes(&m->weight[i], m->params.tensor[i].count);
    }
    return (double)bytes + hl_state_traffic(&m->state, pos);
}

/* logits: room for one vocabulary; prefill does not request any */
typedef hola_status (*pass)(hola_session *s, const int32_t *ids, int64_t n, float *logits);
static hola_status pass_prefill(hola_session *s, const int32_t *ids, int64_t n, float *logits) {
    (void)logits;
    return hola_session_feed(s, ids, n, NULL);
}
static hola_status pass_decode(hola_session *s, const int32_t *ids, int64_t n, float *logits) {
    hola_status st = HOLA_OK;
    for (int64_t i = 0; st == HOLA_OK && i < n; i++) st = hola_session_feed(s, ids + i, 1, logits);
    return st;
}

/* A growing state starts every repetition at the same length. */
static hola_status go_back(hola_session *s, int64_t tokens, int64_t before) {
    if (s->model->state.page == 0) return HOLA_OK;
    if (before > 0) return hola_session_rollback(s, tokens);
    hola_session_reset(s);
    return HOLA_OK;
}

static hola_status infer(hola_model *m, hola_model *other, int64_t tokens, int64_t before, int repeats, pass p,
                         struct bench_infer *out) {
    hola_model *models[2] = {m, other};
    hola_session *sess[2] = {NULL, NULL};
    int32_t *ids = some_ids(tokens + before, m->cfg.vocab_size);
    float *logits = malloc((size_t)m->cfg.vocab_size * sizeof *logits);
    hola_status s = ids && logits ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%lld tokens", (long long)tokens);
    double time[2][MAX_REPEATS], ratio[MAX_REPEATS];
    for (int k = 0; s == HOLA_OK && k < 2 && models[k]; k++) {
        s = hola_session_new(&sess[k], models[k]);
        if (s == HOLA_OK && before) s = hola_session_feed(sess[k], ids + tokens, before, NULL);
        if (s == HOLA_OK && before && models[k]->state.page > 0) s = hola_session_mark(sess[k]);
    }
    for (int i = -1; s == HOLA_OK && i < repeats; i++) /* -1: warm-up */
        for (int k = 0; s == HOLA_OK && k < 2 && models[k]; k++) {
            double t = hl_clock();
            s = p(sess[k], ids, tokens, logits);
            if (i >= 0) time[k][i] = hl_clock() - t;
            if (s == HOLA_OK) s = go_back(sess[k], tokens, before);
        }
    if (s == HOLA_OK) {
        for (int i = 0; i < repeats; i++) ratio[i] = other ? time[1][i] / time[0][i] : 0;
        *out = (struct bench_infer){.seconds = bench_median(time[0], repeats), .ratio = bench_median(ratio, repeats)};
        out->tokens_per_s = (double)tokens / out->seconds;
        out->flops = 2.0 * (double)inner_parameters(m) * out->tokens_per_s;
        out->bytes = decode_bytes(m, before + tokens / 2) * out->tokens_per_s;
    }
    hola_session_free(sess[0]);
    hola_session_free(sess[1]);
    free(logits);
    free(ids);
    return s;
}

hola_status bench_prefill(hola_model *m, hola_model *other, int64_t tokens, int repeats, struct bench_infer *out) {
    return infer(m, other, tokens, 0, repeats, pass_prefill, out);
}

/* Starts with a full memory and an empty block; whole blocks are timed, so the mean fill is measured. */
hola_status bench_decode(hola_model *m, hola_model *other, int64_t tokens, int repeats, struct bench_infer *out) {
    return infer(m, other, tokens, 512, repeats, pass_decode, out);
}

/* n sequences in one batch, one token each at a time, at different positions. */
hola_status bench_decode_batch(hola_model *m, int64_t n, int64_t tokens, bool with_logits, int repeats,
                               struct bench_infer *out) {
    const hola_sampling likeliest = {.repeat_penalty = 1, .top_p = 1};
    hola_session **sess = calloc((size_t)n, sizeof *sess);
    int32_t *ids = some_ids(n * tokens + 512, m->cfg.vocab_size);
    float *logits = malloc((size_t)(n * m->cfg.vocab_size) * sizeof *logits);
    int32_t *next = calloc((size_t)n, sizeof *next);
    hola_status s = sess && ids && logits && next ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%lld sessions", (long long)n);
    double time[MAX_REPEATS];
    for (int64_t i = 0; s == HOLA_OK && i < n; i++) {
        s = hola_session_new(&sess[i], m);
        if (s == HOLA_OK) s = hola_session_feed(sess[i], ids, 256 + i * 7 % 256, NULL);
    }
    for (int i = -1; s == HOLA_OK && i < repeats; i++) {
        double t = hl_clock();
        for (int64_t j = 0; s == HOLA_OK && j < tokens; j++)
            s = with_logits ? hola_session_step(sess, n, ids + j * n, logits)
                            : hola_session_step_sample(sess, n, ids + j * n, &likeliest, next);
        if (i >= 0) time[i] = hl_clock() - t;
    }
    if (s == HOLA_OK) {
        *out = (struct bench_infer){.seconds = bench_median(time, repeats)};
        out->tokens_per_s = (double)(n * tokens) / out->seconds;
        const int64_t middle = hola_session_position(sess[n / 2]) - (repeats + 1) * tokens / 2;
        out->bytes = (decode_bytes(m, middle) + (double)(n - 1) * hl_state_traffic(&m->state, middle)) *
                     (double)tokens / out->seconds;
    }
    for (int64_t i = 0; sess && i < n; i++) hola_session_free(sess[i]);
    free(sess);
    free(next);
    free(logits);
    free(ids);
    return s;
}

enum { CONTEXT_PIECE = 4096 };
/* Feeds the session up to `tokens` tokens in all, then times some more. */
static hola_status measure_at(hola_session *y, int64_t tokens, const int32_t *ids, float *logits,
                              struct bench_context *out) {
    enum { TIMED_TOKENS = 64 };
    hola_model *m = y->model;
    hola_status s = HOLA_OK;
    for (int64_t n; s == HOLA_OK && (n = tokens - hola_session_position(y)) > 0;)
        s = hola_session_feed(y, ids, n < CONTEXT_PIECE ? n : CONTEXT_PIECE, NULL);
    if (s == HOLA_OK) s = pass_decode(y, ids, 4, logits); /* warm-up */
    const double t = hl_clock();
    if (s == HOLA_OK) s = pass_decode(y, ids, TIMED_TOKENS, logits);
    *out = (struct bench_context){
        .tokens = tokens, .session = hola_session_bytes(y), .seconds_per_token = (hl_clock() - t) / TIMED_TOKENS};
    out->bytes = decode_bytes(m, tokens + TIMED_TOKENS / 2) / out->seconds_per_token;
    out->resident = bytes_used(m);
    return s;
}

hola_status bench_contexts(hola_model *m, int64_t tokens, struct bench_context out[2]) {
    hola_session *y = NULL;
    int32_t *ids = some_ids(CONTEXT_PIECE, m->cfg.vocab_size);
    float *logits = malloc((size_t)m->cfg.vocab_size * sizeof *logits);
    hola_status s = ids && logits ? hola_session_new(&y, m) : hl_fail(HOLA_ENOMEM, "%d tokens", CONTEXT_PIECE);
    if (s == HOLA_OK) s = measure_at(y, 1000, ids, logits, &out[0]);
    if (s == HOLA_OK) s = measure_at(y, tokens, ids, logits, &out[1]);
    hola_session_free(y);
    free(logits);
    free(ids);
    return s;
}
