/* cache_cuda.cu -- the exact memory: scores, which rows every block keeps, sessions brought up to date. */
#include "cuda/early.cuh"
#include "ops/cache/cache_cuda.cuh"

enum { THREADS = 256, COLUMNS = 128 };

/* ---- scores ---- */

static __global__ void score_simple(const float *m, const float *beta, float *score, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) score[i] = beta ? m[i] / beta[i] : m[i];
}
/* a warp per row and head */
static __global__ void score_betav(const float *beta, const act *v, float *score, int64_t n, int64_t V) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    float sum = 0;
    if (i >= n) return;
    for (int64_t j = threadIdx.x % 32; j < V; j += 32) sum += f32(v[i * V + j]) * f32(v[i * V + j]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) score[i] = beta[i] * sqrtf(sum);
}

extern "C" void HL_OP(cache_score)(struct hl_pool *pool, const struct hl_score *a) {
    struct hl_cuda *cuda = hl_cuda_of(pool);
    const int64_t n = a->T * a->HV;
    if (n == 0) return;
    if (a->evict == HOLA_EVICT_BETAE || a->evict == HOLA_EVICT_E)
        launch(cuda, score_simple, blocks_for(n, THREADS), THREADS, 0, a->m,
               a->evict == HOLA_EVICT_E ? a->beta : (const real *)NULL, a->score, n);
    if (a->evict == HOLA_EVICT_BETAV)
        launch(cuda, score_betav, blocks_for(n * 32, THREADS), THREADS, 0, a->beta, (const act *)a->v,
               a->score, n, a->V);
}

/* ---- selection ---- */

static __device__ __forceinline__ void write_kept(const struct cache_dev &c, const struct chooser &s,
                                                  int64_t at, int kept) {
    for (int64_t i = threadIdx.x; i < c.a.window; i += blockDim.x) {
        const int32_t id = i < kept ? s.id[i] : NO_ROW;
        c.id[at * c.a.window + i] = id;
        if (c.a.sel) c.a.sel[at * c.a.window + i] = i < kept ? id : -1;
    }
}

/* grid (n HV, groups): a thread block walks `span` blocks of one value head of a segment. The scores of the
 * next block are under way while this one's are ranked. With several groups, what the others than the first keep
 * is of their own blocks alone, until pick_all. */
static __global__ void pick(const struct cache_dev c, int span) {
    let_others_start(); /* readers begin with what is not chosen here */
    const int64_t n = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV, score = c.a.K + c.a.V;
    const struct hl_seg seg = c.rows.seg[n];
    const struct chooser s = chooser_at(c, shared_memory());
    const int w = (int)c.a.window, C = (int)c.a.chunk, group = blockIdx.y, groups = gridDim.y,
              last = c.rows.block_first[n + 1], open = (int)(seg.pos % C);
    const bool latest = c.a.evict == HOLA_EVICT_RECENCY;
    struct memory m = {};
    int kept = 0, b = c.rows.block_first[n] + group * span;
    const int end = groups > 1 ? min(b + span, last) : last;
    float ahead = 0;
    bool early = false;
    if (seg.state) m = memory_of(c, seg, h);
    if (seg.state && group == 0) {
        kept = (int)kept_at(c, seg.pos);
        for (int i = threadIdx.x; i < kept; i += blockDim.x) s.id[i] = -1 - i, s.key[i] = rank_of(m.score[i]);
        __syncthreads();
    }
    for (int64_t first = (int64_t)group * span * C - open; b < end;
         b++, first += C) { /* the block's first row, counted from the segment's */
        write_kept(c, s, b * c.a.HV + h, kept);
        if (first + C > seg.len || (b + 1 == last && !seg.state)) break;
        for (int x = threadIdx.x; x < C; x += blockDim.x) {
            const int64_t id = first + x < 0 ? -1 - (w + x) : seg.row + first + x;
            s.id[kept + x] = (int32_t)id;
            s.key[kept + x] = rank_of(early && x == (int)threadIdx.x ? ahead : column(c, m, h, id, score));
        }
        early = true;
        if (first + C + threadIdx.x < seg.len)
            ahead = column(c, m, h, seg.row + first + C + threadIdx.x, score);
        if (latest) {
            __syncthreads();
            for (int x = threadIdx.x; x < kept + C; x += blockDim.x) s.key[x] = x;
        }
        kept = choose(s, kept, kept + C, w);
    }
    for (int i = threadIdx.x; i < w; i += blockDim.x) {
        if (groups > 1)
            c.found[((n * c.a.HV + h) * groups + group) * w + i] = i < kept ? s.id[i] : (int)NO_ROW;
        else if (seg.state && i < kept) c.last[(n * c.a.HV + h) * w + i] = s.id[i];
    }
}

/* grid (n HV, blocks of the longest segment + 1): what a block of a later group keeps is the best of the groups
 * before it and of its own group so far; behind the last block, what is kept after the segment. */
static __global__ void pick_all(const struct cache_dev c, int span, int groups) {
    let_others_start();
    const int64_t n = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV;
    const struct hl_seg seg = c.rows.seg[n];
    const struct chooser s = chooser_at(c, shared_memory(), (groups + 1) * c.a.window);
    const int w = (int)c.a.window, i = blockIdx.y, b = c.rows.block_first[n] + i,
              end = c.rows.block_first[n + 1];
    const int before = b < end ? i / span : groups; /* groups */
    const int32_t *found = c.found + (n * c.a.HV + h) * groups * w, *own = c.id + (b * c.a.HV + h) * w;
    struct memory m = {};
    int all = 0;
    if (b > end || before == 0 || (b == end && !seg.state)) return;
    if (seg.state) m = memory_of(c, seg, h);
    for (int j0 = 0; j0 < before * w + (b < end ? w : 0); j0 += blockDim.x) {
        const int j = j0 + threadIdx.x;
        const int32_t id = j < before * w                    ? found[j]
                           : b < end && j < (before + 1) * w ? own[j - before * w]
                                                             : (int32_t)NO_ROW;
        const uint32_t key = id == (int32_t)NO_ROW ? 0 : rank_of(column(c, m, h, id, c.a.K + c.a.V));
        const int at = place_of(id != (int32_t)NO_ROW, &all, s.warp);
        if (id != (int32_t)NO_ROW)
            s.id[at] = id, s.key[at] = c.a.evict == HOLA_EVICT_RECENCY ? (uint32_t)at : key;
    }
    const int kept = choose(s, min(all, w), all, w);
    if (b < end) write_kept(c, s, b * c.a.HV + h, kept);
    else
        for (int j = threadIdx.x; j < kept; j += blockDim.x) c.last[(n * c.a.HV + h) * w + j] = s.id[j];
}

/* grid (n HV, columns): when everybody has read, the state gets the kept rows and the open block's. */
static __global__ void store(const struct cache_dev c) {
    const int64_t n = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV, w = c.a.window, C = c.a.chunk;
    const int64_t x = (int64_t)blockIdx.y * COLUMNS + threadIdx.x, end = c.a.K + c.a.V + 2;
    const struct hl_seg seg = c.rows.seg[n];
    if (!seg.state || x >= end) return;
    const struct memory m = memory_of(c, seg, h);
    const struct hl_piece p = c.rows.block[c.rows.block_first[n + 1] - 1];
    const int64_t open = (seg.pos + seg.len) % C;
    /* without a whole block there is nothing new among the kept */
    if (seg.pos / C < (seg.pos + seg.len) / C)
        keep_rows(c, m, h, c.last + (n * c.a.HV + h) * w, (int)kept_at(c, seg.pos + seg.len), seg,
                  seg.pos / C * C, x, end);
    for (int64_t i = p.skip; i < open && x + 1 < end; i++)
        put_column(c, m, w + i, x, column(c, m, h, p.row + i - p.skip, x));
}

/* ---- forward ---- */

static bool all_steps(const struct hl_rows *r) {
    for (int64_t i = 0; i < r->n; i++)
        if (!r->seg[i].state || r->seg[i].len != 1) return false;
    return true;
}

/* Few long sequences: their blocks are walked in groups, all at once. */
enum { SPAN = 4, GROUPS = 16, LONG = 16 /* blocks */ };
static int64_t most_blocks(const struct hl_cache *a) {
    int64_t most = 0;
    for (int64_t i = 0; i < a->rows->n; i++) {
        const int64_t blocks = hl_seg_blocks(&a->rows->seg[i], a->chunk);
        if (blocks > most) most = blocks;
    }
    return most;
}
static int64_t group_span(const struct hl_cuda *cuda, const struct hl_cache *a, int64_t blocks) {
    if (blocks < LONG || a->rows->n * a->HV > hl_cuda_sms(cuda)) return blocks;
    return blocks > SPAN * GROUPS ? hl_pieces(blocks, GROUPS) : (int64_t)SPAN;
}

extern "C" void HL_OP(cache_forward)(struct hl_pool *pool, const struct hl_cache *a) {
    struct hl_cuda *cuda = hl_cuda_of(pool);
    struct cache_dev c = cache_dev_of(a);
    const int64_t n = a->rows->n;
    bool states = false;
    if (a->rows->T == 0) return;
    for (int64_t i = 0; i < n; i++) states = states || a->rows->seg[i].state;
    if (a->evict != HOLA_EVICT_H2O && cache_usual(a) && all_steps(a->rows)) {
        void *scratch = hl_cuda_scratch(cuda, HL_OP(cache_step_scratch)(a));
        if (scratch) HL_OP(cache_step)(cuda, &c, scratch);
        return;
    }
    if (a->evict == HOLA_EVICT_H2O || !cache_tiled(a)) {
        char *scratch = (char *)hl_cuda_scratch(cuda, n * a->HV * c.at.bytes);
        if (scratch) HL_OP(cache_stream)(cuda, &c, scratch);
        return;
    }
    const int64_t most = most_blocks(a), span = group_span(cuda, a, most), groups = hl_pieces(most, span);
    const int64_t heads = n * a->HV;
    c.id =
        (int32_t *)hl_cuda_scratch(cuda, ((c.rows.blocks + n) * a->HV + groups * heads) * a->window * 4 + 4);
    if (!c.id) return;
    c.last = c.id + c.rows.blocks * a->HV * a->window;
    c.found = c.last + heads * a->window;
    if (a->window > 0)
        launch(cuda, pick, dim3((unsigned)heads, (unsigned)groups), chooser_threads(a),
               (size_t)chooser_bytes(a), c, (int)span);
    if (a->window > 0 && groups > 1)
        launch(cuda, pick_all, dim3((unsigned)heads, (unsigned)most + 1), chooser_threads(a),
               (size_t)chooser_bytes(a, (groups + 1) * a->window), c, (int)span, (int)groups);
    HL_OP(cache_read)(cuda, &c, states);
    if (states)
        launch(cuda, store, dim3((unsigned)(n * a->HV), blocks_for(a->K + a->V + 2, COLUMNS)), COLUMNS, 0, c);
}
