/* kept.c -- see kept.h. */
#include "model/kept.h"
#include "model/model.h"
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

hola_status hl_session_kept(const hola_session *y, int64_t layer, int64_t head, int64_t *pos,
                            int64_t *count) {
    const hola_model *m = hl_session_model(y);
    const hola_config *c = &m->cfg;
    *count = 0;
    if (!hl_dims(c).cache) return hl_fail(HOLA_EINVAL, "this model has no exact memory");
    if (layer < 0 || layer >= c->num_hidden_layers || head < 0 || head >= c->num_v_heads)
        return hl_fail(HOLA_EINVAL, "layer %lld, head %lld", (long long)layer, (long long)head);
    const struct hl_cache_layout at =
        hl_cache_layout(c->head_dim, c->head_v_dim, c->cache_window, c->cache_chunk);
    const int64_t closed = hola_session_position(y) / c->cache_chunk * c->cache_chunk;
    const int64_t n = closed < c->cache_window ? closed : c->cache_window;
    m->ops->mem->get(m->pool, pos,
                     hl_session_state(y) + layer * m->state.layer + m->state.cache + head * at.bytes + at.pos,
                     n * (int64_t)sizeof *pos);
    hola_status s = m->ops->mem->finish(m->pool);
    if (s != HOLA_OK) return s;
    qsort(pos, (size_t)n, sizeof *pos, ascending);
    *count = n;
    return HOLA_OK;
}
