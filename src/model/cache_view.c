/* cache_view.c -- see cache_view.h. The text is fed in pieces, as in a session; after each layer of a piece the write
 * magnitudes are copied out. The query is a separate piece: what it saw follows from the state before it and from its
 * own q and k. */
#include "model/cache_view.h"
#include "core/half.h"
#include "mixers/exact_memory.h"
#include "model/session.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct watch {
    hola_model *m;
    struct hl_cache_view *v;
    char *state, *held;  /* backend block; host copy of the state before the query */
    int64_t pos;         /* of the piece's first token */
    bool query;          /* the piece is only the query */
    void *raw;           /* buffer for a layer's m, q or k of a piece, in the backend's format */
    real *q, *k, *value; /* for the query, of one layer */
    real *out;           /* contributions of the state and the memory */
    real *gate;          /* its contribution to the head gates, if gates are per token */
    hola_status failed;
};

/* ---- where things are in a state ---- */

static int64_t kept_at(const hola_config *c, int64_t pos) {
    const int64_t closed = pos / c->cache_chunk * c->cache_chunk;
    return closed < c->cache_window ? closed : c->cache_window;
}
static struct hl_cache_layout layout(const hola_model *m) {
    const hola_config *c = &m->cfg;
    const int64_t size = m->state.row == HOLA_F32 ? (int64_t)sizeof(real) : (int64_t)sizeof(uint16_t);
    return hl_cache_layout(c->head_dim, c->head_v_dim, c->cache_window, c->cache_chunk, size, hl_memory_has_factors(c));
}
/* The exact memory's parts are the last of each layer. */
static const char *head_of(const hola_model *m, const char *state, int64_t layer, int64_t head) {
    const int first = m->state.n - (hl_memory_has_factors(&m->cfg) ? HL_MEMORY_PARTS : HL_MEMORY_FACTOR);
    return state + layer * m->state.layer + m->state.at[first] + head * m->state.stride[first];
}

static hola_status check_head(const hola_model *m, int64_t layer, int64_t head) {
    if (!hl_has_exact_memory(&m->cfg)) return hl_fail(HOLA_EINVAL, "this model has no exact memory");
    if (layer < 0 || layer >= m->cfg.num_hidden_layers || head < 0 || head >= m->cfg.num_v_heads)
        return hl_fail(HOLA_EINVAL, "layer %lld, head %lld", (long long)layer, (long long)head);
    return HOLA_OK;
}

hola_status hl_session_kept(const hola_session *y, int64_t layer, int64_t head, int64_t *pos, float *score,
                            int64_t *count) {
    const hola_model *m = y->model;
    hola_status s = check_head(m, layer, head);
    *count = 0;
    if (s != HOLA_OK) return s;
    const int64_t n = kept_at(&m->cfg, hola_session_position(y));
    const char *held = head_of(m, y->now.state.fixed, layer, head);
    real *raw = score ? malloc((size_t)(n + 1) * sizeof *raw) : NULL;
    if (score && !raw) return hl_fail(HOLA_ENOMEM, "memory view: no memory for %lld scores", (long long)n);
    hl_get(m->backend, pos, held + layout(m).pos, n * (int64_t)sizeof *pos);
    if (score) hl_get(m->backend, raw, held + layout(m).score, n * (int64_t)sizeof *raw);
    s = hl_finish(m->backend);
    for (int64_t i = 0; score && i < n; i++) score[i] = (float)raw[i];
    free(raw);
    if (s != HOLA_OK) return s;
    for (int64_t i = 1; i < n; i++) /* some policies keep them unordered */
        for (int64_t k = i; k > 0 && pos[k] < pos[k - 1]; k--) {
            const int64_t p = pos[k];
            pos[k] = pos[k - 1], pos[k - 1] = p;
            if (!score) continue;
            const float x = score[k];
            score[k] = score[k - 1], score[k - 1] = x;
        }
    *count = n;
    return HOLA_OK;
}

/* ---- watching a pass ---- */

static const void *fetch(struct watch *w, const void *from, int64_t bytes) {
    hl_get(w->m->backend, w->raw, from, bytes);
    const hola_status s = hl_finish(w->m->backend);
    if (s != HOLA_OK) w->failed = s;
    return w->raw;
}
static void fetch_acts(struct watch *w, const void *from, int64_t n, real *out) {
    const void *x = fetch(w, from, n * w->m->backend->act_size);
    for (int64_t i = 0; i < n; i++) out[i] = hl_state_number(x, w->m->state.act, i);
}
/* A key or value of the query as the memory reads it. */
static void fetch_row(struct watch *w, const void *from, int64_t n, real *out) {
    fetch_acts(w, from, n, out);
    for (int64_t i = 0; i < n && w->m->state.row == HOLA_F16; i++) out[i] = (real)hl_from_f16(hl_cache_to_f16(out[i]));
}
static double scalar(struct watch *w, const struct hl_exact_memory *memory, int tensor, int64_t head) {
    const real *x = memory->tensor[tensor].vector;
    return *(const real *)fetch(w, x + head, sizeof *x);
}

/* Recomputes the read from the weights p: `added` needs it separately from the state's output. */
static double added_by(const struct watch *w, const struct hl_cache_view_head *o, const char *values, int64_t head) {
    const hola_config *c = &w->m->cfg;
    const int64_t V = c->head_v_dim;
    double added = 0, state = 0;
    for (int64_t i = 0; i < V; i++) {
        double read = (double)o->p[o->seen - 1] * (double)w->value[head * V + i];
        for (int64_t j = 0; j + 1 < o->seen; j++) {
            const int64_t slot = j < o->seen_kept ? j : c->cache_window + j - o->seen_kept;
            read += (double)o->p[j] * (double)hl_state_number(values, w->m->state.row, slot * V + i);
        }
        read *= (double)o->gate;
        const double rest = (double)w->out[head * V + i] - read;
        added += read * read, state += rest * rest;
    }
    return state > 0 ? sqrt(added / state) : 0;
}

/* the softmax of cache.h for the query, over the kept rows and its own */
static void read_of(struct watch *w, const struct hl_exact_memory *memory, int64_t head) {
    const int64_t layer = memory->l->index;
    const hola_config *c = &w->m->cfg;
    const struct hl_cache_layout at = layout(w->m);
    const char *held = head_of(w->m, w->held, layer, head);
    const int64_t K = c->head_dim, hk = head / (c->num_v_heads / c->num_heads);
    const int64_t kept = kept_at(c, w->pos), first = w->pos / c->cache_chunk * c->cache_chunk;
    const double tau = scalar(w, memory, HL_MEMORY_TAU, head), sink = scalar(w, memory, HL_MEMORY_SINK, head);
    struct hl_cache_view_head *o = &w->v->head[layer * w->v->heads + head];
    double max = sink, sum;
    const real gate = (real)scalar(w, memory, HL_MEMORY_GATE, head),
               *token = hl_memory_gates_tokens(c) ? w->gate : NULL;
    const struct hl_cache read = {
        .HV = 1, .gate = &gate, .token_gate = token ? token + head : NULL, .linear_gate = c->cache_gate_linear};
    o->gate = (float)hl_cache_lambda(&read, 0, 0);
    o->seen_kept = kept;
    o->seen = kept + w->pos - first + 1;
    for (int64_t j = 0; j < o->seen; j++) {
        const int64_t slot = j < kept ? j : c->cache_window + j - kept;
        double z = 0;
        for (int64_t i = 0; i < K; i++) {
            const real k =
                j + 1 < o->seen ? hl_state_number(held + at.k, w->m->state.row, slot * K + i) : w->k[hk * K + i];
            z += (double)w->q[hk * K + i] * (double)k;
        }
        o->p[j] = (float)(z * tau / sqrt((double)K));
        if (j < kept && hl_memory_is_learned(c)) o->p[j] += (float)hl_logsigmoid(((const real *)(held + at.score))[j]);
        o->seen_pos[j] = j < kept ? ((const int64_t *)(held + at.pos))[j] : first + j - kept;
        max = fmax(max, (double)o->p[j]);
    }
    sum = exp(sink - max);
    for (int64_t j = 0; j < o->seen; j++) sum += exp((double)o->p[j] - max);
    for (int64_t j = 0; j < o->seen; j++) o->p[j] = (float)(exp((double)o->p[j] - max) / sum);
    o->p_sink = (float)(exp(sink - max) / sum);
    o->added = (float)added_by(w, o, held + at.v, head);
}

static void after_layer(void *ctx, const struct hl_layer *l) {
    struct watch *w = ctx;
    struct hl_exact_memory memory;
    hl_mixer_of(w->m->cfg.model_type)->memory(l, &memory);
    const bool rms = hl_memory_has_own_norm(&w->m->cfg);
    const int64_t HV = memory.heads.HV, qk = memory.heads.H * memory.heads.K;
    const real *m = fetch(w, memory.m, l->T * HV * (int64_t)sizeof *m);
    for (int64_t h = 0; h < HV; h++)
        for (int64_t t = 0; t < l->T; t++) w->v->head[l->index * HV + h].m[w->pos + t] = (float)m[t * HV + h];
    if (!w->query) return;
    fetch_acts(w, rms ? memory.a->qt : memory.q, qk, w->q);
    fetch_row(w, rms ? memory.a->kt : memory.k, qk, w->k);
    fetch_row(w, memory.v, HV * memory.heads.V, w->value);
    fetch_acts(w, memory.out, HV * memory.heads.V, w->out);
    if (memory.a->token_gate) fetch_acts(w, memory.a->token_gate, HV, w->gate);
    for (int64_t h = 0; h < HV; h++) read_of(w, &memory, h);
}

/* Feeds tokens [w->pos, end); the model's lock is held. */
static hola_status feed(struct watch *w, const int32_t *ids, int64_t end) {
    hola_model *m = w->m;
    const int64_t most = hl_model_rows(m);
    for (int64_t n; w->pos < end; w->pos += n) {
        n = hl_piece(end - w->pos, most);
        struct hl_seg seg = {.len = n, .pos = w->pos, .state = w->state};
        struct hl_rows rows = {.T = n, .n = 1, .seg = &seg};
        hola_status s = hl_activations_reserve(&m->infer, &m->cfg, &rows, 0);
        if (s != HOLA_OK) return s;
        m->infer.watch = after_layer;
        m->infer.watch_ctx = w;
        hl_model_forward(m, &m->infer, &rows, hl_activations_put(&m->infer, m->infer.ids, ids + w->pos, n));
        m->infer.watch = NULL;
        s = hl_finish(m->backend);
        if (s == HOLA_OK) s = w->failed;
        if (s != HOLA_OK) return s;
    }
    return HOLA_OK;
}

static hola_status copy_state(struct watch *w) {
    hl_get(w->m->backend, w->held, w->state, w->m->state.bytes);
    return hl_finish(w->m->backend);
}

/* The cosine of two kept keys. */
static double cosine(const char *keys, hola_dtype type, int64_t K, int64_t i, int64_t j) {
    double ij = 0, ii = 0, jj = 0;
    for (int64_t d = 0; d < K; d++) {
        const double x = (double)hl_state_number(keys, type, i * K + d),
                     y = (double)hl_state_number(keys, type, j * K + d);
        ij += x * y, ii += x * x, jj += y * y;
    }
    return ii > 0 && jj > 0 ? ij / sqrt(ii * jj) : 0;
}

static void list_kept(const struct watch *w, int64_t layer, int64_t head) {
    const struct hl_cache_layout at = layout(w->m);
    const char *held = head_of(w->m, w->held, layer, head);
    struct hl_cache_view_head *o = &w->v->head[layer * w->v->heads + head];
    o->kept = kept_at(&w->m->cfg, w->v->n);
    for (int64_t i = 0; i < o->kept; i++) { /* they are sorted */
        o->pos[i] = ((const int64_t *)(held + at.pos))[i];
        o->score[i] = (float)((const real *)(held + at.score))[i];
        o->alike[i] = -1;
        for (int64_t j = 0; j < i; j++) {
            const float x = (float)cosine(held + at.k, w->m->state.row, w->m->cfg.head_dim, i, j);
            o->alike[i] = fmaxf(o->alike[i], x), o->alike[j] = fmaxf(o->alike[j], x);
        }
    }
}

static hola_status look(struct watch *w, const int32_t *ids) {
    hola_status s = hl_model_need_panels(w->m);
    if (s == HOLA_OK) s = feed(w, ids, w->v->query);
    if (s == HOLA_OK) s = copy_state(w);
    w->query = true;
    if (s == HOLA_OK) s = feed(w, ids, w->v->query + 1);
    w->query = false;
    if (s == HOLA_OK) s = feed(w, ids, w->v->n);
    if (s == HOLA_OK) s = copy_state(w);
    for (int64_t i = 0; s == HOLA_OK && i < w->v->layers * w->v->heads; i++)
        list_kept(w, i / w->v->heads, i % w->v->heads);
    return s;
}

/* ---- memory of the view ---- */

static hola_status allocate(struct hl_cache_view *v, const hola_config *c) {
    const int64_t heads = v->layers * v->heads, w = c->cache_window, rows = w + c->cache_chunk;
    const int64_t each = (w + rows) * 8 + (v->n + 2 * w + rows) * 4;
    v->head = calloc((size_t)heads, sizeof *v->head);
    v->block = malloc((size_t)(heads * (each + 8)));
    if (!v->head || !v->block) {
        hl_cache_view_free(v);
        return hl_fail(HOLA_ENOMEM, "memory view: no memory for %lld tokens x %lld heads", (long long)v->n,
                       (long long)heads);
    }
    int64_t *whole = v->block;
    float *part = (float *)(whole + heads * (w + rows));
    for (int64_t i = 0; i < heads; i++) {
        struct hl_cache_view_head *h = &v->head[i];
        h->pos = whole, h->seen_pos = whole + w, whole += w + rows;
        h->m = part, h->score = part + v->n, h->alike = h->score + w, h->p = h->alike + w, part = h->p + rows;
    }
    return HOLA_OK;
}

hola_status hl_cache_view_make(struct hl_cache_view *v, hola_model *m, const int32_t *ids, int64_t n, int64_t query) {
    const int64_t HV = m->cfg.num_v_heads, qk = m->cfg.num_heads * m->cfg.head_dim, vv = HV * m->cfg.head_v_dim;
    *v = (struct hl_cache_view){.n = n, .layers = m->cfg.num_hidden_layers, .heads = HV, .query = query};
    hola_status s = check_head(m, 0, 0);
    if (s == HOLA_OK && (n < 1 || query < 0 || query >= n))
        s = hl_fail(HOLA_EINVAL, "memory view: token %lld of %lld", (long long)query, (long long)n);
    if (s == HOLA_OK) s = hl_model_check_ids(m, ids, n);
    if (s == HOLA_OK) s = allocate(v, &m->cfg);
    if (s != HOLA_OK) return s;
    struct watch w = {.m = m,
                      .v = v,
                      .state = hl_alloc(m->backend, m->state.bytes),
                      .held = malloc((size_t)m->state.bytes),
                      .raw = malloc((size_t)(hl_model_rows(m) * HV + qk + vv) * sizeof(real)),
                      .q = malloc((size_t)qk * sizeof(real)),
                      .k = malloc((size_t)qk * sizeof(real)),
                      .value = malloc((size_t)vv * sizeof(real)),
                      .out = malloc((size_t)vv * sizeof(real)),
                      .gate = malloc((size_t)HV * sizeof(real))};
    if (!w.state || !w.held || !w.raw || !w.q || !w.k || !w.value || !w.out || !w.gate) {
        s = hl_fail(HOLA_ENOMEM, "memory view: %lld bytes of state do not fit in memory", (long long)m->state.bytes);
    } else {
        pthread_mutex_lock(&m->lock);
        hl_zero(m->backend, w.state, m->state.bytes);
        s = look(&w, ids);
        pthread_mutex_unlock(&m->lock);
    }
    hl_release(m->backend, w.state);
    free(w.held), free(w.raw), free(w.q), free(w.k), free(w.value), free(w.out), free(w.gate);
    if (s != HOLA_OK) hl_cache_view_free(v);
    return s;
}

void hl_cache_view_free(struct hl_cache_view *v) {
    free(v->head);
    free(v->block);
    *v = (struct hl_cache_view){0};
}
