/* state.c -- see state.h. */
#include "model/state.h"
#include <stdlib.h>
#include <string.h>

enum { LINE = 64 };
static int64_t lines(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

static int64_t number_size(const struct hl_state_layout *y, enum hl_state_kind kind) {
    const hola_dtype type = kind == HL_STATE_ACT ? y->act : kind == HL_STATE_ROW ? y->row : HOLA_F32;
    return kind == HL_STATE_POSITION ? (int64_t)sizeof(int64_t)
           : type == HOLA_F32        ? (int64_t)sizeof(real)
                                     : (int64_t)sizeof(uint16_t);
}
static int64_t part_bytes(const struct hl_state_layout *y, const struct hl_state_part *p) {
    const int64_t tokens = p->change == HL_GROWS ? HL_PAGE_TOKENS : 1;
    return lines(tokens * p->count * number_size(y, p->kind));
}

/* The end of the run of parts starting at i that are stored head by head as one record; a part without heads is a run
 * by itself. */
static int record_end(const struct hl_state_layout *y, int i) {
    int end = i + 1;
    while (y->part[i].heads > 0 && end < y->n && y->part[end].heads == y->part[i].heads) end++;
    return end;
}

struct hl_state_layout hl_state_layout(const hola_config *cfg, hola_dtype act, hola_dtype row) {
    struct hl_state_layout y = {.layers = cfg->num_hidden_layers, .act = act, .row = row};
    y.n = hl_mixer_of(cfg->model_type)->state(cfg, y.part);
    HL_ASSERT(y.n <= HL_STATE_PARTS);
    for (int i = 0, end; i < y.n; i = end) {
        int64_t record = 0, *used = y.part[i].change == HL_GROWS ? &y.page_layer : &y.layer;
        end = record_end(&y, i);
        for (int j = i; j < end; j++) {
            HL_ASSERT(y.part[j].change != HL_GROWS || y.part[j].heads == 0);
            y.at[j] = *used + record;
            record += part_bytes(&y, &y.part[j]);
            if (y.part[j].block > 0) y.block = y.part[j].block;
            y.ranked = y.ranked || y.part[j].change == HL_RANKED;
        }
        for (int j = i; j < end; j++) y.stride[j] = record;
        *used += record * (y.part[i].heads > 0 ? y.part[i].heads : 1);
    }
    y.bytes = y.layers * y.layer;
    y.page = y.layers * y.page_layer;
    return y;
}

int64_t hl_state_block(const hola_config *cfg) { return hl_state_layout(cfg, HOLA_F32, HOLA_F32).block; }

static int64_t pages_for(int64_t tokens) { return hl_pieces(tokens, HL_PAGE_TOKENS); }

int64_t hl_state_size(const struct hl_state_layout *y, int64_t pos) {
    return y->bytes + (y->page > 0 ? pages_for(pos) * y->page : 0);
}

double hl_state_traffic(const struct hl_state_layout *y, int64_t pos) {
    double bytes = 0, kept = 0;
    for (int i = 0; i < y->n; i++) /* kept rows: the number of positions */
        if (y->part[i].kind == HL_STATE_POSITION) kept = (double)y->part[i].count;
    for (int i = 0; i < y->n; i++) {
        const struct hl_state_part *p = &y->part[i];
        const double all = (double)(p->count * number_size(y, p->kind) * (p->heads > 0 ? p->heads : 1));
        const double block = (double)p->block;
        if (p->change == HL_GROWS) bytes += all * (double)pos;
        else if (p->block == 0) bytes += p->kind == HL_STATE_ACT ? all : 2 * all; /* a ring is only read */
        else if (p->kind == HL_STATE_ROW) bytes += all * (kept + block / 2) / (kept + block);
    }
    return bytes * (double)y->layers;
}

/* ---- memory ---- */

char *hl_state_pool_take(struct hl_state_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    char *block = pool->n > 0 ? pool->block[--pool->n] : NULL;
    pthread_mutex_unlock(&pool->lock);
    return block;
}
bool hl_state_pool_keep(struct hl_state_pool *pool, char *block) {
    pthread_mutex_lock(&pool->lock);
    bool room = pool->n < pool->room;
    if (!room && pool->n < pool->most) {
        char **more = realloc(pool->block, (size_t)(2 * pool->room + 16) * sizeof *more);
        if (more) pool->block = more, pool->room = 2 * pool->room + 16;
        room = more != NULL;
    }
    room = room && pool->n < pool->most;
    if (room) pool->block[pool->n++] = block;
    pthread_mutex_unlock(&pool->lock);
    return room;
}
bool hl_state_pool_add(struct hl_state_pool *pool, const struct hl_state_layout *y, struct hl_backend *b,
                       hl_go_on go_on, void *ctx) {
    enum { SLICE = 4 << 20 }; /* a millisecond or two, if the memory is new */
    pthread_mutex_lock(&pool->lock);
    const bool full = pool->n >= pool->most;
    pthread_mutex_unlock(&pool->lock);
    char *block = full ? NULL : hl_alloc(b, y->bytes > 0 ? y->bytes : 1);
    int64_t at = 0;
    for (; block && at < y->bytes && go_on(ctx); at += SLICE)
        hl_zero(b, block + at, y->bytes - at < SLICE ? y->bytes - at : SLICE);
    /* a device's block is kept also if a request came in the meantime: its release would end all captured graphs */
    if (block && (at >= y->bytes || !b->host) && hl_state_pool_keep(pool, block)) return true;
    if (block) hl_release(b, block);
    return false;
}
int64_t hl_state_pool_kept(struct hl_state_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    const int64_t n = pool->n;
    pthread_mutex_unlock(&pool->lock);
    return n;
}
void hl_state_pool_free(struct hl_state_pool *pool, struct hl_backend *b) {
    for (int64_t i = 0; i < pool->n; i++) hl_release(b, pool->block[i]);
    free(pool->block);
    pool->block = NULL, pool->n = pool->room = 0;
}

hola_status hl_state_new(struct hl_state *s, const struct hl_state_layout *y, struct hl_backend *b,
                         struct hl_state_pool *pool) {
    char *block = hl_state_pool_take(pool);
    *s = (struct hl_state){.fixed = block ? block : hl_alloc(b, y->bytes > 0 ? y->bytes : 1)};
    if (s->fixed) return HOLA_OK;
    return hl_fail(HOLA_ENOMEM, "session: %lld bytes do not fit in memory", (long long)y->bytes);
}

void hl_state_free(struct hl_state *s, struct hl_backend *b, struct hl_state_pool *pool) {
    for (int64_t i = 0; i < s->pages; i++) hl_release(b, s->page[i]);
    if (s->fixed && !hl_state_pool_keep(pool, s->fixed)) hl_release(b, s->fixed);
    free(s->page);
    *s = (struct hl_state){0};
}

hola_status hl_state_reserve(struct hl_state *s, const struct hl_state_layout *y, struct hl_backend *b,
                             int64_t tokens) {
    const int64_t wanted = y->page > 0 ? pages_for(tokens) : 0;
    if (wanted <= s->pages) return HOLA_OK;
    char **page = realloc(s->page, (size_t)wanted * sizeof *page);
    if (page) s->page = page;
    while (page && s->pages < wanted && (s->page[s->pages] = hl_alloc(b, y->page))) s->pages++;
    if (page && s->pages == wanted) return HOLA_OK;
    return hl_fail(HOLA_ENOMEM, "session: no memory for %lld tokens, %lld fit", (long long)tokens,
                   (long long)(s->pages * HL_PAGE_TOKENS));
}

void hl_state_clear(struct hl_state *s, const struct hl_state_layout *y, struct hl_backend *b) {
    for (; s->pages > 0; s->pages--) hl_release(b, s->page[s->pages - 1]);
    hl_zero(b, s->fixed, y->bytes);
}

/* ---- copies ---- */

/* [begin, end) of every layer. */
static void copy_range(char *to, const char *from, const struct hl_state_layout *y, struct hl_backend *b, int64_t begin,
                       int64_t end) {
    if (begin == 0 && end == y->layer) hl_copy(b, to, from, y->bytes);
    else if (end > begin) hl_copy_strided(b, to + begin, from + begin, end - begin, y->layer, y->layers);
}

void hl_state_copy(struct hl_state *to, const struct hl_state *from, const struct hl_state_layout *y,
                   struct hl_backend *b, int64_t pos, unsigned changes) {
    int64_t begin = 0, end = 0; /* adjacent parts that are copied together */
    for (int i = 0, next; i < y->n; i = next) {
        const struct hl_state_part *p = &y->part[i];
        next = record_end(y, i);
        if (p->change == HL_GROWS || !(p->change & changes)) continue;
        if (y->at[i] != end) copy_range(to->fixed, from->fixed, y, b, begin, end), begin = y->at[i];
        end = y->at[i] + y->stride[i] * (p->heads > 0 ? p->heads : 1);
    }
    copy_range(to->fixed, from->fixed, y, b, begin, end);
    if (!(changes & HL_GROWS) || y->page == 0) return;
    HL_ASSERT(to->pages >= pages_for(pos));
    for (int64_t i = 0; i < pages_for(pos); i++) hl_copy(b, to->page[i], from->page[i], y->page);
}

/* ---- visits ---- */

/* The tokens of a growing part that are in page i. */
static int64_t tokens_in(int64_t pos, int64_t i) {
    const int64_t left = pos - i * HL_PAGE_TOKENS;
    return left < HL_PAGE_TOKENS ? left : HL_PAGE_TOKENS;
}

bool hl_state_visit(const struct hl_state *s, const struct hl_state_layout *y, int64_t pos, hl_state_visitor visit,
                    void *ctx) {
    for (int64_t l = 0; l < y->layers; l++)
        for (int i = 0, end; i < y->n; i = end) {
            const int64_t heads = y->part[i].heads > 0 ? y->part[i].heads : 1;
            end = record_end(y, i);
            for (int64_t h = 0; y->part[i].change != HL_GROWS && h < heads; h++)
                for (int j = i; j < end; j++)
                    if (!visit(ctx, &y->part[j], s->fixed + l * y->layer + y->at[j] + h * y->stride[j],
                               y->part[j].count))
                        return false;
            for (int64_t g = 0; y->part[i].change == HL_GROWS && g < pages_for(pos); g++)
                if (!visit(ctx, &y->part[i], s->page[g] + l * y->page_layer + y->at[i],
                           tokens_in(pos, g) * y->part[i].count))
                    return false;
        }
    return true;
}

void hl_state_count(const struct hl_state_layout *y, int64_t pos, int64_t count[HL_STATE_KINDS]) {
    memset(count, 0, HL_STATE_KINDS * sizeof *count);
    for (int i = 0; i < y->n; i++) {
        const struct hl_state_part *p = &y->part[i];
        const int64_t times = p->change == HL_GROWS ? pos : p->heads > 0 ? p->heads : 1;
        count[p->kind] += y->layers * times * p->count;
    }
}
