/* cache_cuda.cu -- the exact memory: scores, selection of each block's kept rows, and the session states.
 *
 * Which selection kernel runs:
 *   select_each_block    no sessions and fewer than LONG blocks: every block ranks all rows before it, all blocks at
 *                        once. grid (blocks HV), THREADS threads; shared: the rows' keys, radix select's counts.
 *                        Not with near-duplicates ranked last: what a block keeps then depends on the previous block.
 *   select_walk          otherwise: a thread block processes the blocks of one value head in order, merging each into
 *                        the kept rows. grid (n HV, groups), up to 1024 threads; shared: a selector of w + C columns.
 *   select_merge_groups  after select_walk, if few long sequences were split into groups of blocks, each processed by
 *                        its own thread block: merges the groups' kept rows. grid (most blocks + 1, n HV); shared: a
 *                        selector of (groups + 1) w columns.
 *   select_measured      scores measured against the state (cache_measure_cuda.cu).
 * Each waits for the previous kernel (PDL) and triggers the next one immediately: the readers load the block's own rows
 * before they wait for the selection. Single tokens of sessions (cache_step_cuda.cu) and policies that move with reads
 * (cache_rowwise_cuda.cu) select in their own kernels. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/cache/cache_distinct_cuda.cuh"

enum { THREADS = 256, COLUMNS = 128, OPEN_ROWS = 16 };

/* ---- scores ---- */

static __global__ void score_write(const float *m, const float *beta, float *score, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) score[i] = beta ? m[i] / beta[i] : m[i];
}
/* a warp per row and head */
static __global__ void score_value(const float *beta, const act *v, float *score, int64_t n, int64_t V) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    float sum = 0;
    if (i >= n) return;
    for (int64_t j = threadIdx.x % 32; j < V; j += 32) sum += f32(v[i * V + j]) * f32(v[i * V + j]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) score[i] = beta[i] * sqrtf(sum);
}
/* One set per layer: a thread per row. */
static __global__ void score_layer(float *score, int64_t T, int64_t HV) {
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0;
    if (t >= T) return;
    for (int64_t h = 0; h < HV; h++) sum += score[t * HV + h] * score[t * HV + h];
    for (int64_t h = 0; h < HV; h++) score[t * HV + h] = sqrtf(sum);
}

extern "C" void HL_OP(cache_score)(struct hl_backend *backend, const struct hl_score *a) {
    struct hl_cuda *cuda = hl_cuda_of(backend);
    const int64_t n = a->T * a->HV;
    if (n == 0) return;
    if (a->policy.score == HL_SCORE_WRITE || a->policy.score == HL_SCORE_RESIDUAL)
        launch(cuda, score_write, blocks_for(n, THREADS), THREADS, 0, a->m,
               a->policy.score == HL_SCORE_RESIDUAL ? a->beta : (const real *)NULL, a->score, n);
    if (a->policy.score == HL_SCORE_VALUE)
        launch(cuda, score_value, blocks_for(n * 32, THREADS), THREADS, 0, a->beta, (const act *)a->v, a->score, n,
               a->V);
    if (a->policy.layer_set) launch(cuda, score_layer, blocks_for(a->T, THREADS), THREADS, 0, a->score, a->T, a->HV);
}

/* ---- selection ---- */

/* A thread block processes `span` blocks of one value head of a segment. The scores of the next block are loaded while
 * those of the current one are ranked. With several groups, all but the first keep only rows of their own blocks, until
 * select_merge_groups. DISTINCT: near-duplicates rank last. */
template <bool DISTINCT>
static __global__ void __launch_bounds__(1024) select_walk(const struct cache_dev c, int span) {
    pdl_wait(), pdl_trigger(); /* readers start with rows that are not selected here */
    const int64_t n = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV, score = c.a.K + c.a.V;
    const struct hl_seg seg = c.rows.seg[n];
    const struct selector s = selector_at(c, shared_memory());
    const int w = (int)c.a.window, C = (int)c.a.chunk, group = blockIdx.y, groups = gridDim.y,
              last = c.rows.block_first[n + 1], open = (int)(seg.pos % C);
    struct cache_slots m = {};
    int kept = 0, b = c.rows.block_first[n] + group * span;
    const int end = groups > 1 ? min(b + span, last) : last;
    float ahead = 0;
    bool early = false;
    if (seg.state) m = cache_slots_of(c, seg, h);
    if (seg.state && group == 0) {
        kept = (int)kept_at(c, seg.pos);
        for (int i = threadIdx.x; i < kept; i += blockDim.x) s.id[i] = -1 - i, s.key[i] = rank_of(m.score[i]);
        __syncthreads();
    }
    for (int64_t first = (int64_t)group * span * C - open; b < end;
         b++, first += C) { /* the block's first row, relative to the segment */
        write_kept(c, s, b * c.a.HV + h, kept);
        if (first + C > seg.len || (b + 1 == last && !seg.state)) break;
        for (int x = threadIdx.x; x < C; x += blockDim.x) {
            const int64_t id = first + x < 0 ? -1 - (w + x) : seg.row + first + x;
            s.id[kept + x] = (int32_t)id;
            s.key[kept + x] = rank_of(early && x == (int)threadIdx.x ? ahead : column(c, m, h, id, score));
        }
        early = true;
        if (first + C + threadIdx.x < seg.len) ahead = column(c, m, h, seg.row + first + C + threadIdx.x, score);
        if (c.a.policy.by_position) {
            __syncthreads();
            for (int x = threadIdx.x; x < kept + C; x += blockDim.x) s.key[x] = rank_of_position(x, c.a.policy.sinks);
        }
        kept = DISTINCT ? select_distinct(c, m, h, s, kept + C, w) : select_top(s, kept, kept + C, w);
    }
    for (int i = threadIdx.x; i < w; i += blockDim.x) {
        if (groups > 1) c.group_kept[((n * c.a.HV + h) * groups + group) * w + i] = i < kept ? s.id[i] : (int)NO_ROW;
        else if (seg.state && i < kept) c.kept_after[(n * c.a.HV + h) * w + i] = s.id[i];
    }
}

/* Selection for a block of a later group: the best of the rows kept by earlier groups and by its own group so far. The
 * thread block after a segment's last block computes the rows kept after the segment. */
static __global__ void __launch_bounds__(1024) select_merge_groups(const struct cache_dev c, int span, int groups) {
    pdl_wait(), pdl_trigger();
    const int64_t n = blockIdx.y / c.a.HV, h = blockIdx.y % c.a.HV;
    const struct hl_seg seg = c.rows.seg[n];
    const struct selector s = selector_at(c, shared_memory(), (groups + 1) * c.a.window);
    const int w = (int)c.a.window, i = blockIdx.x, b = c.rows.block_first[n] + i, end = c.rows.block_first[n + 1];
    const int before = b < end ? i / span : groups; /* groups */
    const int32_t *found = c.group_kept + (n * c.a.HV + h) * groups * w, *own = c.id + (b * c.a.HV + h) * w;
    struct cache_slots m = {};
    int all = 0;
    if (b > end || before == 0 || (b == end && !seg.state)) return;
    if (seg.state) m = cache_slots_of(c, seg, h);
    for (int j0 = 0; j0 < before * w + (b < end ? w : 0); j0 += blockDim.x) {
        const int j = j0 + threadIdx.x;
        const int32_t id = j < before * w                    ? found[j]
                           : b < end && j < (before + 1) * w ? own[j - before * w]
                                                             : (int32_t)NO_ROW;
        const float score = id == (int32_t)NO_ROW ? 0 : column(c, m, h, id, c.a.K + c.a.V);
        const int at = compact_index(id != (int32_t)NO_ROW, &all, s.warp);
        if (id != (int32_t)NO_ROW) s.id[at] = id, s.key[at] = rank_of(c.a.policy, at, &score);
    }
    const int kept = select_top(s, min(all, w), all, w);
    if (b < end) write_kept(c, s, b * c.a.HV + h, kept);
    else
        for (int j = threadIdx.x; j < kept; j += blockDim.x) c.kept_after[(n * c.a.HV + h) * w + j] = s.id[j];
}

/* The sum of x over this thread and those before it. THREADS threads; contains barriers, so memory read before the call
 * may be overwritten after it. */
static __device__ __forceinline__ int inclusive_scan(int x, int *warps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = 1; d < 32; d *= 2) {
        const int y = __shfl_up_sync(0xffffffffu, x, d);
        if (lane >= d) x += y;
    }
    if (lane == 31) warps[warp] = x;
    __syncthreads();
    for (int i = 0; i < warp; i++) x += warps[i];
    __syncthreads();
    return x;
}
/* The w-th largest of n > w keys, by radix select; *equal: how many of the keys equal to it are among the best w. smem:
 * 256 counts, two numbers, 8 for inclusive_scan */
static __device__ __forceinline__ uint32_t radix_select(const uint32_t *key, int n, int w, int *smem, int *equal) {
    uint32_t least = 0, seen = 0; /* seen: bits that are known */
    int *found = smem + 256, left = w;
    for (int shift = 24; shift >= 0; shift -= 8) {
        smem[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS)
            if ((key[i] & seen) == least) atomicAdd(smem + (key[i] >> shift & 255), 1);
        __syncthreads();
        const int mine = smem[255 - threadIdx.x], upto = inclusive_scan(mine, found + 2);
        if (upto >= left && upto - mine < left) found[0] = 255 - threadIdx.x, found[1] = left - (upto - mine);
        __syncthreads();
        least |= (uint32_t)found[0] << shift, seen |= 255u << shift;
        left = found[1];
    }
    *equal = left;
    return least;
}
/* Every block independently selects from all rows before it. A thread has `each` adjacent rows. */
static __global__ void select_each_block(const struct cache_dev c) {
    pdl_wait(), pdl_trigger();
    const int64_t h = blockIdx.x % c.a.HV;
    const struct hl_dev_span p = c.rows.block[blockIdx.x / c.a.HV];
    const int first = (int)c.rows.seg[p.seg].row, n = p.row - first, w = (int)c.a.window;
    uint32_t *key = (uint32_t *)shared_memory();
    int *smem = (int *)key + (n + 3) / 4 * 4, equal = 0;
    int32_t *id = c.id + (int64_t)blockIdx.x * w;
    int64_t *sel = c.a.sel ? c.a.sel + (int64_t)blockIdx.x * w : NULL;
    for (int i = min(n, w) + threadIdx.x; i < w; i += THREADS) {
        id[i] = NO_ROW;
        if (sel) sel[i] = -1;
    }
    for (int i = threadIdx.x; i < n; i += THREADS)
        key[i] = rank_of(c.a.policy, i, c.a.score + (int64_t)(first + i) * c.a.HV + h);
    __syncthreads();
    const uint32_t least = n > w ? radix_select(key, n, w, smem, &equal) : 0;
    const int each = (n + THREADS - 1) / THREADS, from = threadIdx.x * each, end = min(from + each, n);
    int better = 0, same = 0;
    for (int i = from; i < end; i++) better += n <= w || key[i] > least, same += key[i] == least;
    same = n > w ? same : 0;
    const int betters = inclusive_scan(better, smem) - better, sames = inclusive_scan(same, smem) - same;
    int at = betters + min(sames, equal), ties = equal - sames; /* of equal keys the older rows */
    for (int i = from; i < end; i++) {
        const bool tie = n > w && key[i] == least && ties-- > 0;
        if (!tie && n > w && key[i] <= least) continue;
        id[at] = first + i;
        if (sel) sel[at] = first + i;
        at++;
    }
}

/* The biases of the rows that blocks keep; n: total length of all lists. */
static __global__ void kept_biases(const struct cache_dev c, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    pdl_wait(), pdl_trigger();
    if (i >= n) return;
    const int64_t list = i / c.a.window, h = list % c.a.HV;
    const struct hl_seg seg = c.rows.seg[c.rows.block[list / c.a.HV].seg];
    const int32_t id = c.id[i];
    struct cache_slots m = {};
    if (seg.state) m = cache_slots_of(c, seg, h);
    c.bias[i] = id == (int32_t)NO_ROW ? 0.0f : log_sigmoid(column(c, m, h, id, c.a.K + c.a.V));
}

/* grid (n HV, columns): after all reads, the state receives the kept rows, of which some were in the open block. */
static __global__ void store_kept(const struct cache_dev c) {
    const int64_t n = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV, w = c.a.window, C = c.a.chunk;
    const int64_t x = (int64_t)blockIdx.y * COLUMNS + threadIdx.x, end = c.a.K + c.a.V + 2;
    const struct hl_seg seg = c.rows.seg[n];
    if (!seg.state || x >= end) return;
    /* unless a block was completed, the kept rows are the same */
    if (seg.pos / C < (seg.pos + seg.len) / C)
        keep_rows(c, cache_slots_of(c, seg, h), h, c.kept_after + (n * c.a.HV + h) * w,
                  (int)kept_at(c, seg.pos + seg.len), seg, seg.pos / C * C, x, end);
}
/* grid (n HV, columns, groups of OPEN_ROWS): then the new rows of the open block. */
static __global__ void store_open(const struct cache_dev c) {
    const int64_t n = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV;
    const int64_t x = (int64_t)blockIdx.y * COLUMNS + threadIdx.x;
    const struct hl_seg seg = c.rows.seg[n];
    if (!seg.state || x >= c.a.K + c.a.V + 1) return;
    const struct cache_slots m = cache_slots_of(c, seg, h);
    const struct hl_dev_span p = c.rows.block[c.rows.block_first[n + 1] - 1];
    const int64_t first = (int64_t)blockIdx.z * OPEN_ROWS;
    const int left = (int)((seg.pos + seg.len) % c.a.chunk - p.skip - first);
    float value[OPEN_ROWS]; /* loads in flight */
#pragma unroll
    for (int i = 0; i < OPEN_ROWS; i++) value[i] = i < left ? column(c, m, h, p.row + first + i, x) : 0.0f;
#pragma unroll
    for (int i = 0; i < OPEN_ROWS; i++)
        if (i < left) put_column(c, m, c.a.window + p.skip + first + i, x, value[i]);
}
static void store(struct hl_cuda *cuda, const struct cache_dev *c) {
    const int64_t most = min(c->T, c->a.chunk); /* lengths of segments change where a captured graph is replayed */
    const unsigned heads = (unsigned)(c->a.rows->n * c->a.HV), columns = blocks_for(c->a.K + c->a.V + 2, COLUMNS);
    launch(cuda, store_kept, dim3(heads, columns), COLUMNS, 0, *c);
    launch(cuda, store_open, dim3(heads, columns, blocks_for(most, OPEN_ROWS)), COLUMNS, 0, *c);
}

/* ---- forward ---- */

static bool all_steps(const struct hl_rows *r) {
    if (r->on_device) return false;
    for (int64_t i = 0; i < r->n; i++)
        if (!r->seg[i].state || r->seg[i].len != 1) return false;
    return true;
}

/* Few long sequences: their blocks are split into groups, which are processed in parallel. */
enum { SPAN = 4, GROUPS = 16, LONG = 16 /* blocks */ };
static int64_t most_blocks(const struct hl_cache *a) {
    int64_t most = 0;
    if (a->rows->on_device) return hl_pieces(a->rows->ragged ? a->rows->T : a->rows->dev->longest, a->chunk);
    for (int64_t i = 0; i < a->rows->n; i++) {
        const int64_t blocks = hl_seg_blocks(&a->rows->seg[i], a->chunk);
        if (blocks > most) most = blocks;
    }
    return most;
}
static int64_t group_span(const struct hl_cuda *cuda, const struct hl_cache *a, int64_t blocks) {
    if (blocks < LONG || a->policy.redundancy > 0 || /* each selection depends on the previous one */
        a->rows->n * a->HV > hl_cuda_sms(cuda))
        return blocks;
    return blocks > SPAN * GROUPS ? hl_pieces(blocks, GROUPS) : (int64_t)SPAN;
}

extern "C" void HL_OP(cache_forward)(struct hl_backend *backend, const struct hl_cache *a) {
    struct hl_cuda *cuda = hl_cuda_of(backend);
    struct cache_dev c = cache_dev_of(a);
    const int64_t n = a->rows->n;
    bool states = a->rows->states;
    if (a->rows->T == 0) return;
    for (int64_t i = 0; i < n && !a->rows->on_device; i++) states = states || a->rows->seg[i].state;
    const bool measured = a->policy.score == HL_SCORE_RECALL, learned = a->policy.score == HL_SCORE_LEARNED;
    if (!a->policy.moves_with_reads && cache_usual(a) && all_steps(a->rows)) {
        if (measured) HL_OP(cache_measure_step)(cuda, &c);
        void *scratch = hl_cuda_scratch(cuda, HL_OP(cache_step_scratch)(a));
        if (scratch) HL_OP(cache_step)(cuda, &c, scratch);
        return;
    }
    if (a->policy.moves_with_reads || !cache_tiled(a)) {
        char *scratch = (char *)hl_cuda_scratch(cuda, n * a->HV * c.at.bytes);
        if (scratch) HL_OP(cache_rowwise)(cuda, &c, scratch);
        return;
    }
    const int64_t most = most_blocks(a), span = group_span(cuda, a, most), groups = hl_pieces(most, span);
    const int64_t heads = n * a->HV;
    const int64_t lists = c.rows.blocks * a->HV;
    c.id = (int32_t *)hl_cuda_scratch(cuda, (lists * (1 + learned) + heads + groups * heads) * a->window * 4 + 4);
    if (!c.id) return;
    c.kept_after = c.id + lists * a->window;
    c.group_kept = c.kept_after + heads * a->window;
    c.bias = (float *)(c.group_kept + groups * heads * a->window);
    const int64_t apart = ((most - 1) * a->chunk + 3) / 4 * 16 + (256 + 2 + THREADS / 32) * 4;
    if (measured) HL_OP(cache_select_measured)(cuda, &c);
    else if (a->window > 0 && !states && !a->policy.redundancy && most < LONG && apart <= 48 << 10)
        launch_pdl(cuda, select_each_block, (unsigned)(c.rows.blocks * a->HV), THREADS, (size_t)apart, c);
    else if (a->window > 0)
        launch_pdl(cuda, a->policy.redundancy > 0 ? select_walk<true> : select_walk<false>,
                   dim3((unsigned)heads, (unsigned)groups), selector_threads(a), (size_t)selector_bytes(a), c,
                   (int)span);
    if (a->window > 0 && groups > 1 && !measured) /* LONG blocks or more */
        launch_pdl(cuda, select_merge_groups, dim3((unsigned)most + 1, (unsigned)heads), selector_threads(a),
                   (size_t)selector_bytes(a, (groups + 1) * a->window), c, (int)span, (int)groups);
    if (a->window > 0 && learned)
        launch_pdl(cuda, kept_biases, blocks_for(lists * a->window, THREADS), THREADS, 0, c, lists * a->window);
    HL_OP(cache_read)(cuda, &c, states);
    if (states && hl_cache_factors(a)) HL_OP(cache_store_factors)(cuda, &c);
    if (states) store(cuda, &c);
}
