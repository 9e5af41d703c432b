/* cache_step_cuda.cu -- one new token of every session: append, read, merge a full block.
 *
 * grid (splits, HV, n), READ_THREADS threads: a thread block reads READ_SLOTS slots of one head (split-K over the
 * slots), a warp WARP_ROWS of them. All loads are issued at once, and each lane copies what it reads itself, so no
 * barrier is needed. Shared memory: the split's keys and values, then a partial softmax of every group of lanes. A
 * block writes its partial softmax; the last one of a head to arrive (an atomic counter) combines those of all splits
 * in order, and merges a full block. The grid depends on the number of sessions alone and positions are read on the
 * device, so that a captured graph can be replayed. PDL: rows of the state are loaded before pdl_wait, since the
 * previous kernel does not write them. */
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_measure_cuda.cuh"
#include "ops/cache/cache_step_cuda.cuh"

enum { READ_WARPS = 8, WARP_ROWS = 8, READ_THREADS = 32 * READ_WARPS, READ_SLOTS = READ_WARPS * WARP_ROWS };

static int64_t splits_of(const struct hl_cache *a) { return (a->window + a->chunk + READ_SLOTS - 1) / READ_SLOTS; }
/* Counters of arrived splits, one per head, then the splits' results. */
static int64_t counts_bytes(const struct hl_cache *a) { return (a->rows->n * a->HV * 4 + 255) / 256 * 256; }
int64_t HL_OP(cache_step_scratch)(const struct hl_cache *a) {
    return counts_bytes(a) + a->rows->n * a->HV * splits_of(a) * (a->V + 2) * 4;
}

static __device__ __forceinline__ bool has_row(const struct filled &f, int slot) {
    return slot < f.kept || (slot >= f.w && slot < f.fresh);
}
/* whether any slot of split i is filled, including the new row; the number of such splits */
static __device__ __forceinline__ bool split_used(const struct filled &f, int i) {
    const int from = i * READ_SLOTS;
    return from < f.kept || (from + READ_SLOTS > f.w && from <= f.fresh);
}
static __device__ __forceinline__ int splits_used(const struct filled &f, int splits) {
    int n = 0;
    for (int i = 0; i < splits; i++) n += split_used(f, i);
    return n;
}

/* A warp's reads: LANES lanes share a row, with PIECES of 16 bytes each; GROUPS rows at a time, EACH times. */
template <int D> struct reading {
    enum {
        UNITS = D / WIDE,
        LANES = UNITS < 32 ? UNITS : 32,
        PIECES = UNITS / LANES,
        GROUPS = 32 / LANES,
        EACH = WARP_ROWS / GROUPS,
        COLS = PIECES * WIDE,
        PARTIALS = READ_WARPS * GROUPS, /* partial softmaxes of a block, one a group */
    };
    uint4 raw[PIECES]; /* q, as loaded */
    float q[COLS], acc[COLS], z[EACH], row_max, sum;
};
template <int D> static __device__ __forceinline__ int slot_of(int j) {
    typedef struct reading<D> R;
    return (threadIdx.x / 32) * WARP_ROWS + j * R::GROUPS + threadIdx.x % 32 / R::LANES;
}
/* the first number of a lane's piece i */
template <int D> static __device__ __forceinline__ int piece_at(int i) {
    return (threadIdx.x % reading<D>::LANES + i * reading<D>::LANES) * WIDE;
}
/* Starts copying the lane's pieces of the filled rows of `all` [slots][D]; zeros for the others. */
template <int D>
static __device__ __forceinline__ void prefetch_rows(act *tile, const act *all, const struct filled &f, int first) {
    typedef struct reading<D> R;
#pragma unroll
    for (int j = 0; j < R::EACH; j++) {
        const int slot = slot_of<D>(j);
        const bool filled_slot = has_row(f, first + slot);
        if (first + slot == f.fresh) continue;
#pragma unroll
        for (int i = 0; i < R::PIECES; i++)
            copy_async(tile + slot * D + piece_at<D>(i),
                       filled_slot ? all + (int64_t)(first + slot) * D + piece_at<D>(i) : all, filled_slot ? 16 : 0);
    }
}
/* The same for the new row, if this lane has it. */
template <int D>
static __device__ __forceinline__ void prefetch_new(act *tile, const act *row, const struct filled &f, int first) {
    typedef struct reading<D> R;
#pragma unroll
    for (int j = 0; j < R::EACH; j++)
#pragma unroll
        for (int i = 0; i < R::PIECES; i++)
            if (first + slot_of<D>(j) == f.fresh)
                copy_async(tile + slot_of<D>(j) * D + piece_at<D>(i), row + piece_at<D>(i));
}
/* Stores the new row in its slot of the state. */
template <int D>
static __device__ __forceinline__ void store_new(act *kept, const act *tile, const struct filled &f, int first) {
    typedef struct reading<D> R;
#pragma unroll
    for (int j = 0; j < R::EACH; j++)
#pragma unroll
        for (int i = 0; i < R::PIECES; i++)
            if (first + slot_of<D>(j) == f.fresh)
                *(uint4 *)(kept + (int64_t)f.fresh * D + piece_at<D>(i)) =
                    *(const uint4 *)(tile + slot_of<D>(j) * D + piece_at<D>(i));
}

/* bypasses L1: the kernel that wrote q may have finished after this one started */
template <int D> static __device__ __forceinline__ void load_query(struct reading<D> &r, const act *q) {
#pragma unroll
    for (int i = 0; i < reading<D>::PIECES; i++) r.raw[i] = __ldcg((const uint4 *)(q + piece_at<D>(i)));
}
template <int D> static __device__ __forceinline__ void unpack_query(struct reading<D> &r) {
#pragma unroll
    for (int i = 0; i < reading<D>::PIECES; i++) load_wide(r.q + i * WIDE, (const act *)&r.raw[i]);
}
/* The logits of the lane's rows, and their partial softmax. */
template <int D, enum hl_score_kind KIND>
static __device__ __forceinline__ void score_keys(struct reading<D> &r, const act *tile, const struct filled &f,
                                                  int first, float scale, const float *score) {
    typedef struct reading<D> R;
#pragma unroll
    for (int j = 0; j < R::EACH; j++) {
        r.z[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < R::PIECES; i++) {
            float k[WIDE];
            load_wide(k, tile + slot_of<D>(j) * D + piece_at<D>(i));
#pragma unroll
            for (int x = 0; x < WIDE; x++) r.z[j] += r.q[i * WIDE + x] * k[x];
        }
    }
    r.row_max = -INFINITY, r.sum = 0.0f;
#pragma unroll
    for (int j = 0; j < R::EACH; j++) {
#pragma unroll
        for (int n = 1; n < R::LANES; n *= 2) r.z[j] += __shfl_xor_sync(0xffffffffu, r.z[j], n);
        const int slot = first + slot_of<D>(j);
        r.z[j] = has_row(f, slot) || slot == f.fresh ? r.z[j] * scale : -INFINITY;
        if (KIND == HL_SCORE_LEARNED && slot < f.kept) r.z[j] += log_sigmoid(score[slot]);
        r.row_max = fmaxf(r.row_max, r.z[j]);
    }
#pragma unroll
    for (int j = 0; j < R::EACH; j++) {
        r.z[j] = r.z[j] == -INFINITY ? 0.0f : expf(r.z[j] - r.row_max);
        r.sum += r.z[j];
    }
}
template <int D> static __device__ __forceinline__ void add_values(struct reading<D> &r, const act *tile) {
    typedef struct reading<D> R;
#pragma unroll
    for (int x = 0; x < R::COLS; x++) r.acc[x] = 0.0f;
#pragma unroll
    for (int j = 0; j < R::EACH; j++)
#pragma unroll
        for (int i = 0; i < R::PIECES; i++) {
            float v[WIDE];
            load_wide(v, tile + slot_of<D>(j) * D + piece_at<D>(i));
#pragma unroll
            for (int x = 0; x < WIDE; x++) r.acc[i * WIDE + x] += r.z[j] * v[x];
        }
}
/* The block's partial softmax from those of its groups, in order, to `result`: [D] sums, the largest logit, the
 * denominator.
 * partials: [PARTIALS][D + 4] */
template <int D>
static __device__ __forceinline__ void write_partial(const struct reading<D> &r, float *partials, float *result) {
    typedef struct reading<D> R;
    enum { LD = D + 4 };
    float *mine = partials + (threadIdx.x / R::LANES) * LD, row_max = -INFINITY, sum = 0.0f, acc = 0.0f;
#pragma unroll
    for (int i = 0; i < R::PIECES; i++)
#pragma unroll
        for (int x = 0; x < WIDE; x += 4) store_wide(mine + piece_at<D>(i) + x, r.acc + i * WIDE + x);
    if (threadIdx.x % R::LANES == 0) mine[D] = r.row_max, mine[D + 1] = r.sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R::PARTIALS; i++) row_max = fmaxf(row_max, partials[i * LD + D]);
#pragma unroll
    for (int i = 0; i < R::PARTIALS; i++) {
        const float rescale = expf(partials[i * LD + D] - row_max); /* 0: no row */
        sum += rescale * partials[i * LD + D + 1];
        if (threadIdx.x < D) acc += rescale * partials[i * LD + threadIdx.x];
    }
    if (threadIdx.x < D) result[threadIdx.x] = acc;
    if (threadIdx.x == 0) result[D] = row_max, result[D + 1] = sum;
}

/* A column of the read: all splits and the sink combined. */
static __device__ __forceinline__ float read_column(const struct cache_dev &c, const struct filled &f,
                                                    const float *result, int splits, float sink, int x) {
    enum { PER_STEP = 8 };
    const int V = (int)c.a.V;
    float row_max = sink, sum = 1, acc = 0;
    for (int i0 = 0; i0 < splits; i0 += PER_STEP) {
        float maxima[PER_STEP], sums[PER_STEP], accs[PER_STEP], new_max = row_max;
#pragma unroll
        for (int i = 0; i < PER_STEP; i++) {
            const bool used = i0 + i < splits && split_used(f, i0 + i);
            const float *at = result + (i0 + i) * (V + 2);
            maxima[i] = used ? __ldcg(at + V) : -INFINITY, sums[i] = used ? __ldcg(at + V + 1) : 0.0f;
            accs[i] = used && x < V ? __ldcg(at + x) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < PER_STEP; i++) new_max = fmaxf(new_max, maxima[i]);
        sum *= expf(row_max - new_max), acc *= expf(row_max - new_max), row_max = new_max;
#pragma unroll
        for (int i = 0; i < PER_STEP; i++) {
            const float rescale = expf(maxima[i] - row_max);
            sum += rescale * sums[i], acc += rescale * accs[i];
        }
    }
    return acc / sum;
}

/* KIND of scores: learned ones bias the logits of kept rows, measured ones have factors; HL_SCORE_NONE stands for all
 * others */
template <int D, enum hl_score_kind KIND>
static __global__ void __launch_bounds__(READ_THREADS, 3)
    read_step(const struct cache_dev c, int *counts, float *result, int splits) {
    const int64_t h = blockIdx.y, n = blockIdx.z, head = n * c.a.HV + h;
    const int split = blockIdx.x, first = split * READ_SLOTS;
    const struct hl_seg seg = c.rows.seg[n];
    const struct cache_slots m = cache_slots_of(c, seg, h);
    const struct filled f = filled_at(c, seg.pos);
    act *K = (act *)shared_memory(), *V = K + READ_SLOTS * D;
    float *partials = (float *)(V + READ_SLOTS * D);
    __shared__ int last;
    result += head * splits * (D + 2);
    if (!split_used(f, split)) {
        pdl_wait(), pdl_trigger();
        return;
    }
    const bool has_new = f.fresh >= first && f.fresh < first + READ_SLOTS;
    const int64_t hk = (seg.row * c.a.H + h / c.group) * D, hv = (seg.row * c.a.HV + h) * D;
    /* small loads first: they would wait behind the many copies */
    const float sink = c.a.sink[h], gate = c.a.gate[h], tau = c.a.tau[h];
    struct reading<D> r;
    prefetch_rows<D>(K, m.k, f, first), prefetch_rows<D>(V, m.v, f, first);
    copy_commit();
    pdl_wait(), pdl_trigger();
    load_query<D>(r, (const act *)c.a.q + hk);
    if (has_new) prefetch_new<D>(K, (const act *)c.a.k + hk, f, first);
    if (has_new) prefetch_new<D>(V, (const act *)c.a.v + hv, f, first);
    copy_commit();
    if (has_new && threadIdx.x == 0) m.score[f.fresh] = column(c, m, h, seg.row, 2 * D);
    if (KIND == HL_SCORE_RECALL && has_new && threadIdx.x == 0) m.factor[f.fresh] = factor_of(c, m, h, seg.row);
    copy_wait<0>();
    unpack_query<D>(r);
    score_keys<D, KIND>(r, K, f, first, tau / sqrtf((float)D), m.score);
    add_values<D>(r, V);
    if (has_new) store_new<D>(m.k, K, f, first), store_new<D>(m.v, V, f, first);
    write_partial<D>(r, partials, result + split * (D + 2));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(counts + head, 1) + 1 == splits_used(f, splits);
    __syncthreads();
    if (!last) return;
    __threadfence();
    const float read = read_column(c, f, result, splits, sink, threadIdx.x);
    const float open = c.a.token_gate ? gate + f32(((const act *)c.a.token_gate)[seg.row * c.a.HV + h]) : gate;
    const float y = c.a.linear_gate ? read * fmaxf(open, 0.0f) : read / (1.0f + expf(-open));
    act *out = (act *)c.a.out + hv + threadIdx.x;
    if (threadIdx.x < D) put(out, f32(*out) + y);
    if (c.a.window > 0 && f.fresh == f.w + (int)c.a.chunk - 1)
        merge_full<D, KIND == HL_SCORE_RECALL, false>(c, seg, h, shared_memory());
}

static __global__ void clear_counts(int *counts, int n) {
    pdl_wait(), pdl_trigger();
    for (int i = threadIdx.x; i < n; i += READ_THREADS) counts[i] = 0;
}

template <int D, enum hl_score_kind KIND>
static void run(struct hl_cuda *cuda, const struct cache_dev *c, int *counts, float *result) {
    const int splits = (int)splits_of(&c->a);
    const size_t selector = (size_t)selector_bytes(&c->a), tiles = 2 * READ_SLOTS * D * sizeof(act),
                 partials = reading<D>::PARTIALS * (D + 4) * 4, shared = tiles + partials;
    launch_pdl(cuda, read_step<D, KIND>, dim3((unsigned)splits, (unsigned)c->a.HV, (unsigned)c->a.rows->n),
               READ_THREADS, shared > selector ? shared : selector, *c, counts, result, splits);
}
template <int D> static void any(struct hl_cuda *cuda, const struct cache_dev *c, int *counts, float *result) {
    if (c->a.policy.score == HL_SCORE_LEARNED) run<D, HL_SCORE_LEARNED>(cuda, c, counts, result);
    else if (hl_cache_factors(&c->a)) run<D, HL_SCORE_RECALL>(cuda, c, counts, result);
    else run<D, HL_SCORE_NONE>(cuda, c, counts, result);
}
void HL_OP(cache_step)(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch) {
    int *counts = (int *)scratch;
    float *result = (float *)((char *)scratch + counts_bytes(&c->a));
    launch_pdl(cuda, clear_counts, 1, READ_THREADS, 0, counts, (int)(c->a.rows->n * c->a.HV));
    if (c->a.K == 64) any<64>(cuda, c, counts, result);
    if (c->a.K == 128) any<128>(cuda, c, counts, result);
    if (c->a.K == 256) any<256>(cuda, c, counts, result);
}
