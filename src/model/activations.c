/* activations.c -- one block for all row buffers, cut by the table in acts.h. */
#include "model/activations.h"
#include <stdlib.h>
#include <string.h>

struct hl_dims hl_dims(const hola_config *c) {
    struct hl_dims s = {.d = c->hidden_size,
                        .I = c->intermediate_size,
                        .H = c->num_heads,
                        .HV = c->num_v_heads,
                        .K = c->head_dim,
                        .V = c->head_v_dim,
                        .L = c->num_hidden_layers,
                        .vocab = c->vocab_size,
                        .gated = c->use_gate,
                        .decay = c->model_type != HOLA_TYPE_DELTA_NET,
                        .beta = c->use_beta};
    s.qk = s.H * s.K;
    s.vv = s.HV * s.V;
    s.cache = c->model_type == HOLA_TYPE_HOLA && c->cache_evict != HOLA_EVICT_NONE;
    s.rms = s.cache && c->cache_norm == HOLA_NORM_RMS;
    return s;
}

enum kind { KEEP, CHEAP };

/* Every buffer starts on 256 bytes: a cache line, and what a device copies best. */
static int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/* The row of all projections; 0: their parts would not begin on 16 bytes, or it is not wanted. */
static int64_t joint_row(const struct hl_activations *a, const struct hl_dims *s) {
    const int64_t few = s->HV * (s->decay + s->beta);
    if (a->pass != HL_TRAIN || a->backend->host || s->qk % 8 || s->vv % 8 || few % 8) return 0;
    const int64_t row = 2 * s->qk + s->vv + few + (s->gated ? s->vv : 0);
    return (row + 63) / 64 * 64; /* rows begin on whole lines of memory */
}
static int64_t paired_row(const struct hl_activations *a, const struct hl_dims *s) {
    return a->pass != HL_TRAIN || a->backend->host || s->I % 8 ? 0 : 2 * s->I;
}
/* The parts of such a row, in the order of the weights. */
static void cut_row(const struct hl_dims *s, char *row, int64_t size, void **q, void **k, void **v, void **a,
                    void **b, void **z) {
    *q = row;
    *k = row + s->qk * size;
    *v = row + 2 * s->qk * size;
    row += (2 * s->qk + s->vv) * size;
    if (s->decay) *a = row, row += s->HV * size;
    if (s->beta) *b = row, row += s->HV * size;
    if (s->gated) *z = row;
}

/* Hands out the buffers from `at` (NULL: only counts) and returns how many bytes they take. */
static int64_t place(struct hl_activations *a, const struct hl_dims *s, int64_t rows, char *at) {
    const int64_t d = s->d, I = s->I, H = s->H, HV = s->HV, qk = s->qk, vv = s->vv;
    const int64_t ACT = a->backend->act_size, REAL = (int64_t)sizeof(real);
    const bool gated = s->gated, decay = s->decay, rms = s->rms, cache = s->cache;
    const bool share_cheap = a->pass == HL_INFER || a->recompute, joint = joint_row(a, s) > 0,
               paired = paired_row(a, s) > 0;
    int64_t used = 0;
    void *row;
    a->joint = joint_row(a, s);
    a->paired = paired_row(a, s);
#define TAKE(to, width, type)                              \
    (to) = at && (width) > 0 ? (void *)(at + used) : NULL; \
    used += padded(rows * (width) * (type));
    for (int64_t l = 0; l < s->L; l++) {
        struct hl_layer_activations *y = &a->layer[l], *first = &a->layer[0];
#define PLACE(name, width, kind, type)                                        \
    if (l > 0 && (a->pass == HL_INFER || ((kind) == CHEAP && share_cheap))) { \
        y->name = first->name;                                                \
    } else {                                                                  \
        TAKE(y->name, width, type)                                            \
    }
        HL_ACTS_LIST(PLACE)
#undef PLACE
        if (a->pass == HL_INFER) y->h = y->x; /* branches are added in place */
        TAKE(row, a->joint, ACT)
        if (row) cut_row(s, row, ACT, &y->q0, &y->k0, &y->v0, &y->a, &y->b, &y->z);
        TAKE(row, a->paired, ACT)
        if (row) y->gate = row, y->up = (char *)row + I * ACT;
    }
#define PLACE(name, width, type) TAKE(a->grad.name, width, type)
    if (a->pass == HL_TRAIN) {
        struct hl_grads *g = &a->grad;
        HL_GRADS_LIST(PLACE)
        TAKE(row, a->joint, ACT)
        if (row) cut_row(s, row, ACT, &g->dq0, &g->dk0, &g->dv0, &g->da, &g->db, &g->dz);
        TAKE(a->last, d, ACT)
    } else a->last = a->layer[0].x;
#undef PLACE
    TAKE(a->lastn, d, ACT)
    TAKE(a->r_last, 1, REAL)
    TAKE(a->nll, 1, (int64_t)sizeof(double))
    TAKE(a->top, a->pass == HL_INFER, (int64_t)sizeof(int32_t))
    if (!a->backend->host) {
        TAKE(a->ids, 1, (int64_t)sizeof(int32_t))
        TAKE(a->target, 1, (int64_t)sizeof(int32_t))
    }
#undef TAKE
    return used;
}

static hola_status no_room(const struct hl_activations *a, const char *what, int64_t bytes) {
    return hl_fail(HOLA_ENOMEM, "%s: %.1f MB do not fit in %s memory", what, (double)bytes * 1e-6,
                   a->backend->host ? "the" : "the device's");
}

/* *block becomes room for that many bytes; what was in it is lost. */
static hola_status block_new(const struct hl_activations *a, void *block, int64_t bytes, const char *what) {
    void **b = block;
    hl_release(a->backend, *b);
    *b = bytes > 0 ? hl_alloc(a->backend, bytes) : NULL;
    return bytes > 0 && !*b ? no_room(a, what, bytes) : HOLA_OK;
}

/* The buffers whose size depends on how the rows are cut, not on their number. */
static hola_status reserve_pieces(struct hl_activations *a, const hola_config *cfg, const struct hl_dims *s,
                                  int64_t chunks, int64_t blocks) {
    hola_status st = HOLA_OK;
    if (chunks > a->chunks && a->backend->host) {
        const int64_t each = chunks * s->HV * s->K * s->V;
        a->chunks = 0;
        st = block_new(a, &a->S_block, s->L * each * (int64_t)sizeof(real), "chunk states");
        if (st != HOLA_OK) return st;
        for (int64_t l = 0; l < s->L; l++) a->layer[l].S = a->S_block + l * each;
        a->chunks = chunks;
    }
    if (s->cache && blocks > a->blocks) {
        const int64_t each = blocks * s->HV * cfg->cache_window;
        a->blocks = 0;
        st = block_new(a, &a->sel_block, (s->L * each + 1) * (int64_t)sizeof(int64_t), "cache selections");
        if (st != HOLA_OK) return st;
        for (int64_t l = 0; l < s->L; l++) a->layer[l].sel = a->sel_block + l * each;
        a->blocks = blocks;
    }
    return st;
}

static hola_status reserve_rows(struct hl_activations *a, const struct hl_dims *s, int64_t rows) {
    const int64_t bytes = place(a, s, rows, NULL);
    int64_t left, used;
    a->rows = 0;
    hola_status st = block_new(a, &a->block, bytes, "activations");
    if (st != HOLA_OK) {
        a->backend->storage.free_memory(a->backend, &left, &used);
        if (left == 0) return st;
        return hl_fail(
            HOLA_ENOMEM,
            "activations: %lld tokens take %.2f GB, the device has %.2f GB left: about %lld tokens at "
            "a time would fit",
            (long long)rows, (double)bytes * 1e-9, (double)left * 1e-9,
            (long long)((double)left / (double)bytes * 0.9 * (double)rows));
    }
    if (!a->backend->host) {
        free(a->nll_host);
        a->nll_host = malloc((size_t)rows * sizeof *a->nll_host);
        free(a->top_host);
        a->top_host = malloc((size_t)rows * sizeof *a->top_host);
        if (!a->nll_host || !a->top_host)
            return hl_fail(HOLA_ENOMEM, "losses: no memory for %lld rows", (long long)rows);
    }
    place(a, s, rows, a->block);
    a->rows = rows;
    return HOLA_OK;
}

hola_status hl_activations_reserve(struct hl_activations *a, const hola_config *cfg, struct hl_rows *rows,
                                   int64_t logits) {
    const struct hl_dims s = hl_dims(cfg);
    const int64_t C = s.cache ? cfg->cache_chunk : 1;
    hola_status st = HOLA_OK;
    if (!a->layer) {
        a->layer = calloc((size_t)s.L, sizeof *a->layer);
        if (!a->layer) return hl_fail(HOLA_ENOMEM, "activations: no memory for their table");
    }
    if (rows->T > a->rows) st = reserve_rows(a, &s, rows->T);
    if (st == HOLA_OK && logits > 0) {
        const int64_t n = logits < a->backend->xent_rows ? logits : a->backend->xent_rows;
        const int64_t one = s.vocab * (int64_t)sizeof(real), all = n * s.vocab * a->backend->act_size;
        const int64_t bytes = all > one ? all : one; /* at least one row of reals, for reading them */
        if (bytes > a->logits_bytes) {
            a->logits_bytes = 0;
            st = block_new(a, &a->logits, bytes, "logits");
            if (st == HOLA_OK) a->logits_bytes = bytes;
        }
    }
    if (st == HOLA_OK && a->pass == HL_TRAIN)
        st = reserve_pieces(a, cfg, &s, hl_chunks_before(rows, rows->n), hl_blocks_before(rows, rows->n, C));
    return st == HOLA_OK ? a->backend->storage.cut_rows(a->backend, rows, s.cache ? C : 0) : st;
}

void hl_activations_free(struct hl_activations *a) {
    void *const blocks[] = {a->block, a->S_block, a->sel_block, a->logits};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        if (blocks[i]) hl_release(a->backend, blocks[i]);
    free(a->layer);
    free(a->nll_host);
    free(a->top_host);
    *a = (struct hl_activations){.pass = a->pass, .backend = a->backend, .recompute = a->recompute};
}

const int32_t *hl_activations_put(const struct hl_activations *a, int32_t *there, const int32_t *ids,
                                  int64_t n) {
    if (a->backend->host) return ids;
    hl_put(a->backend, there, ids, n * (int64_t)sizeof *ids);
    return there;
}

const double *hl_activations_nll(const struct hl_activations *a, int64_t n) {
    if (a->backend->host) return a->nll;
    hl_get(a->backend, a->nll_host, a->nll, n * (int64_t)sizeof *a->nll);
    return a->nll_host;
}

const int32_t *hl_activations_top(const struct hl_activations *a, int64_t n) {
    if (a->backend->host) return a->top;
    hl_get(a->backend, a->top_host, a->top, n * (int64_t)sizeof *a->top);
    return a->top_host;
}
