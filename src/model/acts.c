/* acts.c -- one block for all row buffers, cut by the table in acts.h. */
#include "model/acts.h"
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
                        .decay = c->model_type != HOLA_TYPE_DELTA_NET};
    s.qk = s.H * s.K;
    s.vv = s.HV * s.V;
    s.cache = c->model_type == HOLA_TYPE_HOLA && c->cache_evict != HOLA_EVICT_NONE;
    s.rms = s.cache && c->cache_norm == HOLA_NORM_RMS;
    return s;
}

enum kind { KEEP, CHEAP };

/* Every buffer starts on a cache line. */
static int64_t padded(int64_t reals) { return (reals + 15) / 16 * 16; }

/* Hands out the buffers from `at` (NULL: only counts) and returns how many reals they take. */
static int64_t place(struct hl_acts *a, const struct hl_dims *s, int64_t rows, real *at) {
    const int64_t d = s->d, I = s->I, H = s->H, HV = s->HV, qk = s->qk, vv = s->vv;
    const bool gated = s->gated, decay = s->decay, rms = s->rms, cache = s->cache;
    const bool share_cheap = a->pass == HL_INFER || a->recompute;
    int64_t used = 0;
    for (int64_t l = 0; l < s->L; l++) {
        struct hl_layer_acts *y = &a->layer[l], *first = &a->layer[0];
        (void)first;
#define PLACE(name, width, kind)                                              \
    if (l > 0 && (a->pass == HL_INFER || ((kind) == CHEAP && share_cheap))) { \
        y->name = first->name;                                                \
    } else {                                                                  \
        y->name = at && (width) > 0 ? at + used : NULL;                       \
        used += padded(rows * (width));                                       \
    }
        HL_ACTS_LIST(PLACE)
#undef PLACE
        if (a->pass == HL_INFER) y->h = y->x; /* branches are added in place */
    }
#define PLACE(name, width)                \
    a->grad.name = at ? at + used : NULL; \
    used += padded(rows * (width));
    if (a->pass == HL_TRAIN) {
        HL_GRADS_LIST(PLACE)
    }
#undef PLACE
    a->last = a->pass == HL_INFER ? a->layer[0].x : at ? at + used : NULL;
    if (a->pass == HL_TRAIN) used += padded(rows * d);
    a->lastn = at ? at + used : NULL;
    used += padded(rows * d);
    a->r_last = at ? at + used : NULL;
    used += padded(rows);
    return used;
}

static void *block_new(int64_t bytes) {
    return bytes > 0 ? aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64)) : NULL;
}

static hola_status no_room(const char *what, int64_t bytes) {
    return hl_fail(HOLA_ENOMEM, "%s: %.1f MB do not fit in memory", what, (double)bytes * 1e-6);
}

/* The buffers whose size depends on how the rows are cut, not on their number. */
static hola_status reserve_pieces(struct hl_acts *a, const hola_config *cfg, const struct hl_dims *s,
                                  int64_t chunks, int64_t blocks) {
    if (chunks > a->chunks) {
        int64_t each = chunks * s->HV * s->K * s->V;
        free(a->S_block);
        a->chunks = 0;
        a->S_block = block_new(s->L * each * (int64_t)sizeof(real));
        if (!a->S_block) return no_room("chunk states", s->L * each * (int64_t)sizeof(real));
        for (int64_t l = 0; l < s->L; l++) a->layer[l].S = a->S_block + l * each;
        a->chunks = chunks;
    }
    if (s->cache && blocks > a->blocks) {
        int64_t each = blocks * s->HV * cfg->cache_window;
        free(a->sel_block);
        a->blocks = 0;
        a->sel_block = block_new((s->L * each + 1) * (int64_t)sizeof(int64_t));
        if (!a->sel_block) return no_room("cache selections", s->L * each * (int64_t)sizeof(int64_t));
        for (int64_t l = 0; l < s->L; l++) a->layer[l].sel = a->sel_block + l * each;
        a->blocks = blocks;
    }
    return HOLA_OK;
}

hola_status hl_acts_reserve(struct hl_acts *a, const hola_config *cfg, const struct hl_rows *rows,
                            bool logits) {
    const struct hl_dims s = hl_dims(cfg);
    if (!a->layer) {
        a->layer = calloc((size_t)s.L, sizeof *a->layer);
        if (!a->layer) return no_room("activations", s.L * (int64_t)sizeof *a->layer);
    }
    if (rows->T > a->rows) {
        int64_t need = place(a, &s, rows->T, NULL), bytes = need * (int64_t)sizeof(real);
        free(a->block);
        free(a->nll);
        free(a->logits);
        a->rows = 0;
        a->logits = NULL;
        a->block = block_new(bytes);
        a->nll = block_new(rows->T * (int64_t)sizeof(double));
        if (!a->block || !a->nll) return no_room("activations", bytes);
        place(a, &s, rows->T, a->block);
        a->rows = rows->T;
    }
    if (logits && !a->logits) {
        int64_t n = a->rows < HL_XENT_ROWS ? a->rows : HL_XENT_ROWS;
        int64_t bytes = n * s.vocab * (int64_t)sizeof(real);
        a->logits = block_new(bytes);
        if (!a->logits) return no_room("logits", bytes);
    }
    if (a->pass == HL_TRAIN)
        return reserve_pieces(a, cfg, &s, hl_chunks_before(rows, rows->n),
                              hl_blocks_before(rows, rows->n, s.cache ? cfg->cache_chunk : 1));
    return HOLA_OK;
}

void hl_acts_free(struct hl_acts *a) {
    free(a->layer);
    free(a->block);
    free(a->S_block);
    free(a->sel_block);
    free(a->logits);
    free(a->nll);
    *a = (struct hl_acts){.pass = a->pass, .recompute = a->recompute};
}
