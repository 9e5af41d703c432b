/* kept.c -- see kept.h. */
#include "model/kept.h"
#include "model/model.h"
#include <stdlib.h>

enum { PIECE = 512 }; /* rows of a pass */

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The model's lock is held. Reads the text into a state block, as a session would. */
static hola_status read_text(hola_model *m, const int32_t *ids, int64_t n, char *state) {
    hola_status s = hl_model_need_panels(m);
    for (int64_t i = 0; s == HOLA_OK && i < n; i += PIECE) {
        struct hl_seg seg = {.len = n - i < PIECE ? n - i : PIECE, .pos = i, .state = state};
        struct hl_rows rows = {.T = seg.len, .n = 1, .seg = &seg};
        s = hl_acts_reserve(&m->infer, &m->cfg, &rows, 0);
        if (s != HOLA_OK) break;
        hl_model_forward(m, &m->infer, &rows, hl_acts_put(&m->infer, m->infer.ids, ids + i, seg.len));
        s = m->ops->mem->finish(m->pool);
    }
    return s;
}

hola_status hl_model_kept(hola_model *m, const int32_t *ids, int64_t n, int64_t layer, int64_t head,
                          int64_t *pos, int64_t *count) {
    const hola_config *c = &m->cfg;
    const struct hl_memory *mem = m->ops->mem;
    *count = 0;
    if (!hl_dims(c).cache) return hl_fail(HOLA_EINVAL, "this model has no exact memory");
    if (n < 1 || layer < 0 || layer >= c->num_hidden_layers || head < 0 || head >= c->num_v_heads)
        return hl_fail(HOLA_EINVAL, "layer %lld, head %lld, %lld tokens", (long long)layer, (long long)head,
                       (long long)n);
    hola_status s = hl_model_check_ids(m, ids, n);
    if (s != HOLA_OK) return s;
    char *state = mem->alloc(m->pool, m->state.bytes);
    if (!state) return hl_fail(HOLA_ENOMEM, "a state of %lld bytes", (long long)m->state.bytes);
    mem->zero(m->pool, state, m->state.bytes);
    pthread_mutex_lock(&m->lock);
    s = read_text(m, ids, n, state);
    if (s == HOLA_OK) {
        const struct hl_cache_layout at =
            hl_cache_layout(c->head_dim, c->head_v_dim, c->cache_window, c->cache_chunk);
        const int64_t closed = n / c->cache_chunk * c->cache_chunk;
        *count = closed < c->cache_window ? closed : c->cache_window;
        mem->get(m->pool, pos, state + layer * m->state.layer + m->state.cache + head * at.bytes + at.pos,
                 *count * (int64_t)sizeof *pos);
        qsort(pos, (size_t)*count, sizeof *pos, ascending);
    }
    pthread_mutex_unlock(&m->lock);
    mem->release(m->pool, state);
    return s;
}
