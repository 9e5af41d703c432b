/* activations.c -- one memory block for all buffers of a pass, laid out from the buffer lists of block and mixer. */
#include "model/activations.h"
#include "core/carve.h"
#include "mixers/exact_memory.h"
#include "model/state.h"
#include <stdlib.h>
#include <string.h>

/* ---- the block's own buffers ---- */

static int64_t paired_row(const struct hl_activations *a, const hola_config *c) {
    const bool one = a->pass == HL_TRAIN && !a->backend->host && c->intermediate_size % 8 == 0;
    return one ? 2 * c->intermediate_size : 0;
}

static void list_block(const struct hl_activations *a, const hola_config *c, struct hl_buffers *acts,
                       struct hl_buffers *grads) {
    const int64_t d = c->hidden_size, I = c->intermediate_size, pair = paired_row(a, c);
#define ADD(name, numbers, ...) \
    hl_buffer_add(              \
        acts, (struct hl_buffer){.field = offsetof(struct hl_layer_activations, name), .width = numbers, __VA_ARGS__})
    ADD(x, d, .cheap = false);
    ADD(xn, d, .cheap = true);
    ADD(r_attn, 1, .element = HL_ELEMENT_REAL);
    ADD(h, a->pass == HL_TRAIN ? d : 0, .cheap = false); /* otherwise branches are added to x in place */
    ADD(hn, d, .cheap = true);
    ADD(r_mlp, 1, .element = HL_ELEMENT_REAL);
    if (pair) ADD(pair, pair, .cheap = false);
    ADD(gate, I, .inside = pair > 0);
    ADD(up, I, .inside = pair > 0, .offset = I);
    ADD(act, I, .cheap = true);
#undef ADD
    if (a->pass != HL_TRAIN) return;
    const size_t field[] = {offsetof(struct hl_gradients, dx), offsetof(struct hl_gradients, dn),
                            offsetof(struct hl_gradients, dact)};
    for (int i = 0; i < 3; i++) hl_buffer_add(grads, (struct hl_buffer){.field = field[i], .width = i == 2 ? I : d});
}

/* ---- placing ---- */

/* Walks over all buffers, assigning or only counting them. Each is 256-byte aligned: at least a cache line, and best
 * for device copies. */
struct placing {
    struct hl_carve block;
    int64_t act_size;
    int64_t units[3]; /* by enum hl_unit */
};
static void *take(struct placing *p, int64_t bytes) { return bytes > 0 ? hl_carve(&p->block, bytes, 1) : NULL; }
static int64_t element_size(const struct placing *p, enum hl_element e) {
    return e == HL_ELEMENT_ACT ? p->act_size : e == HL_ELEMENT_REAL ? (int64_t)sizeof(real) : (int64_t)sizeof(int64_t);
}
/* to: the struct whose pointers the list fills. shared: NULL, or the struct of the layer that owns shared buffers:
 * those selected by `which`, and the brief ones, are taken from it. */
enum share { SHARE_BRIEF, SHARE_CHEAP, SHARE_ALL };
static void place(struct placing *p, const struct hl_buffers *list, void *to, const void *shared, enum share which) {
    char *owner = NULL;
    for (int i = 0; i < list->n; i++) {
        const struct hl_buffer *b = &list->buffer[i];
        const int64_t size = element_size(p, b->element);
        char *at = NULL;
        if (shared && (which == SHARE_ALL || b->brief || (which == SHARE_CHEAP && b->cheap)))
            memcpy(&at, (const char *)shared + b->field, sizeof at);
        else if (b->inside) at = owner && b->width > 0 ? owner + b->offset * size : NULL;
        else at = take(p, p->units[b->unit] * b->width * size);
        if (!b->inside) owner = at;
        memcpy((char *)to + b->field, &at, sizeof at);
    }
}

static int64_t place_all(struct hl_activations *a, const hola_config *c, char *base) {
    const struct hl_mixer *mixer = hl_mixer_of(c->model_type);
    const struct hl_buffers_for f = {c, a->pass, a->backend->host, a->recompute, a->backend};
    struct hl_buffers acts = {0}, grads = {0}, mixer_acts = {0}, mixer_grads = {0};
    struct placing p = {.block = {.base = base, .align = 256},
                        .act_size = a->backend->act_size,
                        .units = {a->rows, a->chunks, a->blocks}};
    const bool infer = a->pass == HL_INFER;
    list_block(a, c, &acts, &grads);
    mixer->buffers(&f, &mixer_acts, &mixer_grads);
    a->paired = paired_row(a, c);
    for (int64_t l = 0; l < c->num_hidden_layers; l++) {
        struct hl_layer_activations *y = &a->layer[l], *first = &a->layer[0];
        const enum share which = infer ? SHARE_ALL : a->recompute ? SHARE_CHEAP : SHARE_BRIEF;
        place(&p, &acts, y, l > 0 ? first : NULL, which);
        place(&p, &mixer_acts, y->mixer, l > 0 ? first->mixer : NULL, which);
        if (infer) y->h = y->x;
    }
    place(&p, &grads, &a->grad, NULL, SHARE_ALL);
    if (!infer) place(&p, &mixer_grads, a->grad.mixer, NULL, SHARE_ALL);
    const int64_t row = c->hidden_size * p.act_size;
    a->last = infer ? a->layer[0].x : take(&p, a->rows * row);
    a->lastn = take(&p, a->rows * row);
    a->r_last = take(&p, a->rows * (int64_t)sizeof(real));
    a->nll = take(&p, a->rows * (int64_t)sizeof(double));
    a->correct = take(&p, infer ? a->rows * (int64_t)sizeof(int32_t) : 0);
    a->ids = take(&p, a->backend->host ? 0 : a->rows * (int64_t)sizeof(int32_t));
    a->target = take(&p, a->backend->host ? 0 : a->rows * (int64_t)sizeof(int32_t));
    return p.block.used;
}

/* ---- reserving ---- */

static hola_status does_not_fit(const struct hl_activations *a, const char *what, int64_t bytes) {
    return hl_fail(HOLA_ENOMEM, "%s: %.1f MB do not fit in %s memory", what, (double)bytes * 1e-6,
                   a->backend->host ? "the" : "the device's");
}

/* Allocates *block with that many bytes; old contents are lost. */
static hola_status block_new(const struct hl_activations *a, void *block, int64_t bytes, const char *what) {
    void **b = block;
    hl_release(a->backend, *b);
    *b = bytes > 0 ? hl_alloc(a->backend, bytes) : NULL;
    return bytes > 0 && !*b ? does_not_fit(a, what, bytes) : HOLA_OK;
}

static hola_status new_tables(struct hl_activations *a, const hola_config *c) {
    const struct hl_mixer *mixer = hl_mixer_of(c->model_type);
    const size_t L = (size_t)c->num_hidden_layers;
    a->layer = calloc(L, sizeof *a->layer);
    a->mixer = calloc(1, L * mixer->acts_size + mixer->grads_size);
    if (!a->layer || !a->mixer) return hl_fail(HOLA_ENOMEM, "activations: no memory for their table");
    for (size_t l = 0; l < L; l++) a->layer[l].mixer = a->mixer + l * mixer->acts_size;
    a->grad.mixer = a->mixer + L * mixer->acts_size;
    return HOLA_OK;
}

static hola_status host_copies(struct hl_activations *a) {
    if (a->backend->host) return HOLA_OK;
    free(a->nll_host), free(a->correct_host);
    a->nll_host = malloc((size_t)a->rows * sizeof *a->nll_host);
    a->correct_host = malloc((size_t)a->rows * sizeof *a->correct_host);
    if (a->nll_host && a->correct_host) return HOLA_OK;
    return hl_fail(HOLA_ENOMEM, "losses: no memory for %lld rows", (long long)a->rows);
}

static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

static hola_status reserve(struct hl_activations *a, const hola_config *c, int64_t rows, int64_t chunks,
                           int64_t blocks) {
    int64_t left = 0, used;
    a->rows = max(a->rows, rows), a->chunks = max(a->chunks, chunks), a->blocks = max(a->blocks, blocks);
    const int64_t bytes = place_all(a, c, NULL);
    hola_status s = block_new(a, &a->block, bytes, "activations");
    if (s != HOLA_OK) {
        a->backend->storage.free_memory(a->backend, &left, &used);
        if (left > 0)
            s = hl_fail(HOLA_ENOMEM,
                        "activations: %lld tokens take %.2f GB, the device has %.2f GB left: about %lld tokens "
                        "at a time would fit",
                        (long long)rows, (double)bytes * 1e-9, (double)left * 1e-9,
                        (long long)((double)left / (double)bytes * 0.9 * (double)rows));
    }
    if (s == HOLA_OK) s = host_copies(a);
    if (s == HOLA_OK) place_all(a, c, a->block);
    else a->rows = a->chunks = a->blocks = 0;
    return s;
}

static int64_t logits_bytes(const struct hl_activations *a, int64_t vocab, int64_t logits) {
    const int64_t n = logits < a->backend->xent_rows ? logits : a->backend->xent_rows;
    /* room to read at least one row as reals */
    return logits > 0 ? max(n * vocab * a->backend->act_size, vocab * (int64_t)sizeof(real)) : 0;
}

static hola_status reserve_logits(struct hl_activations *a, int64_t vocab, int64_t logits) {
    const int64_t bytes = logits_bytes(a, vocab, logits);
    if (bytes <= a->logits_bytes) return HOLA_OK;
    a->logits_bytes = 0;
    hola_status s = block_new(a, &a->logits, bytes, "logits");
    if (s == HOLA_OK) a->logits_bytes = bytes;
    return s;
}

hola_status hl_activations_reserve(struct hl_activations *a, const hola_config *cfg, struct hl_rows *rows,
                                   int64_t logits) {
    const int64_t C = hl_state_block(cfg), train = a->pass == HL_TRAIN;
    const int64_t chunks = train ? hl_chunks_before(rows, rows->n) : 0;
    const int64_t blocks = C > 0 && (train || hl_memory_measures(cfg)) ? hl_blocks_before(rows, rows->n, C) : 0;
    hola_status s = a->layer ? HOLA_OK : new_tables(a, cfg);
    if (s == HOLA_OK && (rows->T > a->rows || chunks > a->chunks || blocks > a->blocks))
        s = reserve(a, cfg, rows->T, chunks, blocks);
    if (s == HOLA_OK) s = reserve_logits(a, cfg->vocab_size, logits);
    rows->tiled = hl_mixer_of(cfg->model_type)->tiled;
    return s == HOLA_OK ? a->backend->storage.cut_rows(a->backend, rows, C) : s;
}

hola_status hl_activations_bytes(struct hl_activations *a, const hola_config *cfg, int64_t rows, int64_t pieces,
                                 int64_t *bytes) {
    const int64_t C = hl_state_block(cfg), len = (rows + pieces - 1) / pieces;
    hola_status s = new_tables(a, cfg);
    *bytes = 0;
    if (s == HOLA_OK) {
        a->rows = rows;
        a->chunks = pieces * ((len + HL_CHUNK - 1) / HL_CHUNK);
        a->blocks = C > 0 ? pieces * ((len + C - 1) / C) : 0;
        *bytes = place_all(a, cfg, NULL) + logits_bytes(a, cfg->vocab_size, rows);
    }
    hl_activations_free(a);
    return s;
}

void hl_activations_free(struct hl_activations *a) {
    hl_release(a->backend, a->block);
    hl_release(a->backend, a->logits);
    free(a->layer);
    free(a->mixer);
    free(a->nll_host);
    free(a->correct_host);
    *a = (struct hl_activations){.pass = a->pass, .backend = a->backend, .recompute = a->recompute};
}

const int32_t *hl_activations_put(const struct hl_activations *a, int32_t *there, const int32_t *ids, int64_t n) {
    if (a->backend->host) return ids;
    hl_put(a->backend, there, ids, n * (int64_t)sizeof *ids);
    return there;
}

const double *hl_activations_nll(const struct hl_activations *a, int64_t n) {
    if (a->backend->host) return a->nll;
    hl_get(a->backend, a->nll_host, a->nll, n * (int64_t)sizeof *a->nll);
    return a->nll_host;
}

const int32_t *hl_activations_correct(const struct hl_activations *a, int64_t n) {
    if (a->backend->host) return a->correct;
    hl_get(a->backend, a->correct_host, a->correct, n * (int64_t)sizeof *a->correct);
    return a->correct_host;
}
