/* cache_step_cuda.cu -- one new token of every session: append, read, merge a full block.
 *
 * One launch whose size depends on the number of sessions alone; positions are read on the device, so that a recorded
 * graph can be played again. A block has READ_SLOTS slots of a head, a warp some of them, all asked for at once: each
 * lane copies what it will read itself. The block leaves its softmax, and the last one of a head puts those of all
 * together, in order, and does what follows where that is asked for (cache_step_cuda.cuh). */
#include "ops/cache/cache_step_cuda.cuh"

enum { READ_WARPS = 8, WARP_ROWS = 8, READ_THREADS = 32 * READ_WARPS, READ_SLOTS = READ_WARPS * WARP_ROWS };

static int64_t parts_of(const struct hl_cache *a) {
    return (a->window + a->chunk + READ_SLOTS - 1) / READ_SLOTS;
}
/* How many blocks of a head are done, then their results. */
static int64_t counts_bytes(const struct hl_cache *a) { return (a->rows->n * a->HV * 4 + 255) / 256 * 256; }
int64_t HL_OP(cache_step_scratch)(const struct hl_cache *a) {
    return counts_bytes(a) + a->rows->n * a->HV * parts_of(a) * (a->V + 2) * 4;
}

/* Which slots of a head are filled: [0, kept) and [w, fresh); the new row comes to slot `fresh`. */
struct filled {
    int kept, w, fresh;
};
static __device__ __forceinline__ struct filled filled_at(const struct cache_dev &c, int64_t pos) {
    const int w = (int)c.a.window, chunk = (int)c.a.chunk;
    /* (a division of 64 bits takes longer than the rest) */
    const int into = pos < INT32_MAX ? (int)((uint32_t)pos % (uint32_t)chunk) : (int)(pos % chunk);
    const struct filled f = {(int)min(pos - into, (int64_t)w), w, w + into};
    return f;
}
static __device__ __forceinline__ bool has_row(const struct filled &f, int slot) {
    return slot < f.kept || (slot >= f.w && slot < f.fresh);
}
/* whether the slots of part i have a row, with the new one; how many parts have */
static __device__ __forceinline__ bool part_used(const struct filled &f, int i) {
    const int from = i * READ_SLOTS;
    return from < f.kept || (from + READ_SLOTS > f.w && from <= f.fresh);
}
static __device__ __forceinline__ int parts_used(const struct filled &f, int parts) {
    int n = 0;
    for (int i = 0; i < parts; i++) n += part_used(f, i);
    return n;
}

/* How a warp has its rows: LANES lanes have one, in PIECES of 16 bytes each; GROUPS rows at a time, EACH times. */
template <int D> struct reading {
    enum {
        UNITS = D / WIDE,
        LANES = UNITS < 32 ? UNITS : 32,
        PIECES = UNITS / LANES,
        GROUPS = 32 / LANES,
        EACH = WARP_ROWS / GROUPS,
        COLS = PIECES * WIDE,
        TALES = READ_WARPS * GROUPS, /* softmaxes of a block, one a group */
    };
    uint4 raw[PIECES]; /* q, as loaded */
    float q[COLS], acc[COLS], z[EACH], top, sum;
};
template <int D> static __device__ __forceinline__ int slot_of(int j) {
    typedef struct reading<D> R;
    return (threadIdx.x / 32) * WARP_ROWS + j * R::GROUPS + threadIdx.x % 32 / R::LANES;
}
/* the first number of a lane's piece i */
template <int D> static __device__ __forceinline__ int piece_at(int i) {
    return (threadIdx.x % reading<D>::LANES + i * reading<D>::LANES) * WIDE;
}
/* The lane's pieces of the rows `all` [slots][D] that there are; elsewhere zeros. */
template <int D>
static __device__ __forceinline__ void ask_rows(act *tile, const act *all, const struct filled &f,
                                                int first) {
    typedef struct reading<D> R;
#pragma unroll
    for (int j = 0; j < R::EACH; j++) {
        const int slot = slot_of<D>(j);
        const bool there = has_row(f, first + slot);
        if (first + slot == f.fresh) continue;
#pragma unroll
        for (int i = 0; i < R::PIECES; i++)
            copy_async(tile + slot * D + piece_at<D>(i),
                       there ? all + (int64_t)(first + slot) * D + piece_at<D>(i) : all, there ? 16 : 0);
    }
}
/* The new row, if it is this lane's. */
template <int D>
static __device__ __forceinline__ void ask_new(act *tile, const act *row, const struct filled &f, int first) {
    typedef struct reading<D> R;
#pragma unroll
    for (int j = 0; j < R::EACH; j++)
#pragma unroll
        for (int i = 0; i < R::PIECES; i++)
            if (first + slot_of<D>(j) == f.fresh)
                copy_async(tile + slot_of<D>(j) * D + piece_at<D>(i), row + piece_at<D>(i));
}
/* What came of it, to where it is kept. */
template <int D>
static __device__ __forceinline__ void keep_new(act *kept, const act *tile, const struct filled &f,
                                                int first) {
    typedef struct reading<D> R;
#pragma unroll
    for (int j = 0; j < R::EACH; j++)
#pragma unroll
        for (int i = 0; i < R::PIECES; i++)
            if (first + slot_of<D>(j) == f.fresh)
                *(uint4 *)(kept + (int64_t)f.fresh * D + piece_at<D>(i)) =
                    *(const uint4 *)(tile + slot_of<D>(j) * D + piece_at<D>(i));
}

/* past the first-level cache: the kernel that wrote q may have ended while this one was there */
template <int D> static __device__ __forceinline__ void load_query(struct reading<D> &r, const act *q) {
#pragma unroll
    for (int i = 0; i < reading<D>::PIECES; i++) r.raw[i] = __ldcg((const uint4 *)(q + piece_at<D>(i)));
}
template <int D> static __device__ __forceinline__ void unpack_query(struct reading<D> &r) {
#pragma unroll
    for (int i = 0; i < reading<D>::PIECES; i++) load_wide(r.q + i * WIDE, (const act *)&r.raw[i]);
}
/* The logits of the lane's rows, and their softmax. */
template <int D>
static __device__ __forceinline__ void weigh_keys(struct reading<D> &r, const act *tile,
                                                  const struct filled &f, int first, float scale) {
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
    r.top = -INFINITY, r.sum = 0.0f;
#pragma unroll
    for (int j = 0; j < R::EACH; j++) {
#pragma unroll
        for (int n = 1; n < R::LANES; n *= 2) r.z[j] += __shfl_xor_sync(0xffffffffu, r.z[j], n);
        const int slot = first + slot_of<D>(j);
        r.z[j] = has_row(f, slot) || slot == f.fresh ? r.z[j] * scale : -INFINITY;
        r.top = fmaxf(r.top, r.z[j]);
    }
#pragma unroll
    for (int j = 0; j < R::EACH; j++) {
        r.z[j] = r.z[j] == -INFINITY ? 0.0f : expf(r.z[j] - r.top);
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
/* The block's softmax from those of its groups, in order, to `result`: [D] sums, the largest logit, the denominator.
 * tales: [TALES][D + 4] */
template <int D>
static __device__ __forceinline__ void leave_part(const struct reading<D> &r, float *tales, float *result) {
    typedef struct reading<D> R;
    enum { LD = D + 4 };
    float *mine = tales + (threadIdx.x / R::LANES) * LD, top = -INFINITY, sum = 0.0f, acc = 0.0f;
#pragma unroll
    for (int i = 0; i < R::PIECES; i++)
#pragma unroll
        for (int x = 0; x < WIDE; x += 4) store_wide(mine + piece_at<D>(i) + x, r.acc + i * WIDE + x);
    if (threadIdx.x % R::LANES == 0) mine[D] = r.top, mine[D + 1] = r.sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R::TALES; i++) top = fmaxf(top, tales[i * LD + D]);
#pragma unroll
    for (int i = 0; i < R::TALES; i++) {
        const float less = expf(tales[i * LD + D] - top); /* 0: no row */
        sum += less * tales[i * LD + D + 1];
        if (threadIdx.x < D) acc += less * tales[i * LD + threadIdx.x];
    }
    if (threadIdx.x < D) result[threadIdx.x] = acc;
    if (threadIdx.x == 0) result[D] = top, result[D + 1] = sum;
}

/* two neighbours of a row */
#ifdef HL_CUDA_F32
typedef float2 pair;
#else
typedef uint32_t pair;
#endif
/* The rows of the slots -1 - id[0, n) become the kept ones, in place: a row only moves to a lower slot, so what is
 * loaded before its batch is stored is not lost. A thread has two columns of k or v, a warp the scores, another
 * one the positions. */
static __device__ __forceinline__ void keep_slots(const struct cache_dev &c, const struct memory &m,
                                                  const int32_t *id, int n, int64_t first) {
    enum { AT_ONCE = 16 };
    const int D = (int)c.a.K, lane = threadIdx.x % 32;
    for (int i0 = 0; i0 < n && threadIdx.x < 64; i0 += 32) {
        const int64_t slot = i0 + lane < n ? -1 - id[i0 + lane] : 0, w = c.a.window;
        const float score = threadIdx.x < 32 ? m.score[slot] : 0.0f;
        const int64_t pos = threadIdx.x < 32 ? 0 : slot < w ? m.pos[slot] : first + slot - w;
        __syncwarp();
        if (i0 + lane < n && threadIdx.x < 32) m.score[i0 + lane] = score;
        if (i0 + lane < n && threadIdx.x >= 32) m.pos[i0 + lane] = pos;
        __syncwarp();
    }
    for (int x = 2 * threadIdx.x; x < 2 * D; x += 2 * READ_THREADS) {
        act *at = x < D ? m.k + x : m.v + x - D;
        for (int i0 = 0; i0 < n; i0 += AT_ONCE) {
            pair row[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (i0 + i < n) row[i] = *(const pair *)(at + (int64_t)(-1 - id[i0 + i]) * D);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (i0 + i < n) *(pair *)(at + (int64_t)(i0 + i) * D) = row[i];
        }
    }
}

/* The block is full: kept = top_w(kept + block). */
static __device__ void merge_full(const struct cache_dev &c, const struct hl_seg &seg, int64_t h) {
    const struct memory m = memory_of(c, seg, h);
    const struct chooser s = chooser_at(c, shared_memory());
    const int64_t kept = kept_at(c, seg.pos), w = c.a.window, n = kept + c.a.chunk;
    for (int64_t j = threadIdx.x; j < n; j += READ_THREADS) {
        const int64_t slot = j < kept ? j : w + j - kept;
        s.id[j] = (int32_t)(-1 - slot);
        s.key[j] = c.a.evict == HOLA_EVICT_RECENCY ? (uint32_t)j : rank_of(m.score[slot]);
    }
    const int now = choose(s, (int)kept, (int)n, (int)w);
    keep_slots(c, m, s.id, now, seg.pos + 1 - c.a.chunk);
}

/* A column of the memory's read: all parts together, with the sink, over the denominator. */
static __device__ __forceinline__ float read_column(const struct cache_dev &c, const struct filled &f,
                                                    const float *result, int parts, float sink, int x) {
    enum { AT_ONCE = 8 };
    const int V = (int)c.a.V;
    float top = sink, sum = 1, acc = 0;
    for (int i0 = 0; i0 < parts; i0 += AT_ONCE) {
        float tops[AT_ONCE], sums[AT_ONCE], accs[AT_ONCE], most = top;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const bool used = i0 + i < parts && part_used(f, i0 + i);
            const float *at = result + (i0 + i) * (V + 2);
            tops[i] = used ? __ldcg(at + V) : -INFINITY, sums[i] = used ? __ldcg(at + V + 1) : 0.0f;
            accs[i] = used && x < V ? __ldcg(at + x) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) most = fmaxf(most, tops[i]);
        sum *= expf(top - most), acc *= expf(top - most), top = most;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float less = expf(tops[i] - top);
            sum += less * sums[i], acc += less * accs[i];
        }
    }
    return acc / sum;
}

/* A head's weights; loaded before others are waited for. */
struct head_weights {
    float sink, gate, norm, tau;
};
static __device__ __forceinline__ struct head_weights
head_weights_of(const struct cache_dev &c, int parts, int64_t h, const struct cache_finish &e) {
    struct head_weights w = {};
    if (parts) w.sink = c.a.sink[h], w.gate = c.a.gate[h], w.tau = c.a.tau[h];
    if (e.y.at && threadIdx.x < c.a.V) w.norm = e.norm[threadIdx.x];
    return w;
}
/* What follows the read of a head; parts 0: there is no exact memory. room: 33 floats. All threads. */
static __device__ void finish_head(const struct cache_dev &c, const struct hl_seg &seg,
                                   const struct filled &f, const float *result, int parts, int64_t h,
                                   const struct head_weights &w, const struct cache_finish &e, float *room) {
    const int V = (int)c.a.V, x = threadIdx.x;
    const int64_t row = seg.row * c.a.HV + h;
    const float z = e.y.at && e.z && x < V ? f32(e.z[seg.row * e.ld + h * V + x]) : 0.0f;
    float y = e.y.at && x < V ? e.o[row * V + x] : 0.0f, score = 0.0f;
    for (int i = x; e.y.at && parts && x < 32 && i < e.tiles; i += 32) score += e.sums[row * e.tiles + i];
    if (parts) y += read_column(c, f, result, parts, w.sink, x) / (1.0f + expf(-w.gate));
    if (!e.y.at) {
        act *out = (act *)c.a.out + row * V + x;
        if (x < V) put(out, f32(*out) + y);
        return;
    }
    if (parts && x < 32) score = warp_sum(score);
    if (parts && x == 0) memory_of(c, seg, h).score[f.fresh] = by_score(c) ? sqrtf(score) : 0.0f;
    y *= rsqrtf(block_sum(y * y, room) / (float)V + e.eps) * w.norm;
    if (x < V) put(panel_at(e.y, (int)seg.row, (int)h * V + x), e.z ? y * silu(z) : y);
}

/* grid (parts, HV, n); parts 0: (1, HV, n). What does not depend on the new row is asked for before others are waited
 * for: the kernel just before this one writes none of it. beside: nor does it write what else is read here, and the
 * one before it has ended, so it is waited for by those that finish a head. */
template <int D>
static __global__ void __launch_bounds__(READ_THREADS, 3)
    read_step(const struct cache_dev c, int *counts, float *result, int parts, bool beside,
              const struct cache_finish e) {
    const int64_t h = blockIdx.y, n = blockIdx.z, head = n * c.a.HV + h;
    const int part = blockIdx.x, first = part * READ_SLOTS;
    const struct hl_seg seg = c.rows.seg[n];
    act *K = (act *)shared_memory(), *V = K + READ_SLOTS * D;
    float *tales = (float *)(V + READ_SLOTS * D);
    __shared__ float room[33];
    __shared__ int last;
    struct filled f = {};
    struct head_weights w = {};
    result += head * parts * (D + 2);
    if (parts) {
        const struct memory m = memory_of(c, seg, h);
        struct reading<D> r;
        f = filled_at(c, seg.pos);
        if (!part_used(f, part)) {
            if (!beside) wait_for_others();
            let_others_start();
            return; /* those that finish a head have waited */
        }
        const bool has_new = f.fresh >= first && f.fresh < first + READ_SLOTS;
        const int64_t hk = (seg.row * c.a.H + h / c.group) * D;
        const act *k = (const act *)c.a.k + hk, *v = (const act *)c.a.v + (seg.row * c.a.HV + h) * D;
        /* small loads first: behind the many copies they would have to wait */
        w = head_weights_of(c, parts, h, e);
        if (beside) load_query<D>(r, (const act *)c.a.q + hk);
        if (beside && has_new) ask_new<D>(K, k, f, first), ask_new<D>(V, v, f, first);
        ask_rows<D>(K, m.k, f, first), copy_commit();
        ask_rows<D>(V, m.v, f, first), copy_commit();
        if (!beside) wait_for_others();
        let_others_start();
        if (!beside) load_query<D>(r, (const act *)c.a.q + hk);
        if (!beside && has_new) ask_new<D>(K, k, f, first), ask_new<D>(V, v, f, first), copy_commit();
        if (has_new && threadIdx.x == 0 && (c.a.score || !by_score(c)))
            m.score[f.fresh] = column(c, m, h, seg.row, 2 * D);
        if (beside) copy_wait<1>();
        else copy_wait<0>();
        unpack_query<D>(r);
        weigh_keys<D>(r, K, f, first, w.tau / sqrtf((float)D));
        copy_wait<0>();
        add_values<D>(r, V);
        if (has_new) keep_new<D>(m.k, K, f, first), keep_new<D>(m.v, V, f, first);
        leave_part<D>(r, tales, result + part * (D + 2));
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            last = atomicAdd(counts + head, 1) + 1 == parts_used(f, parts);
            if (last) counts[head] = 0;
        }
        __syncthreads();
        if (!last) return;
        __threadfence();
    } else {
        w = head_weights_of(c, parts, h, e);
        let_others_start();
    }
    if (beside) wait_for_others();
    finish_head(c, seg, f, result, parts, h, w, e, room);
    __syncthreads(); /* the rows' room */
    if (parts && c.a.window > 0 && f.fresh == f.w + (int)c.a.chunk - 1) merge_full(c, seg, h);
}

static __global__ void clear_counts(int *counts, int n) {
    wait_for_others(), let_others_start();
    for (int i = threadIdx.x; i < n; i += READ_THREADS) counts[i] = 0;
}

template <int D>
static void run(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch, int parts, bool beside,
                const struct cache_finish *e) {
    const size_t room = (size_t)chooser_bytes(&c->a), tiles = 2 * READ_SLOTS * D * sizeof(act),
                 tales = reading<D>::TALES * (D + 4) * 4, most = tiles + tales > room ? tiles + tales : room;
    launch_early(cuda, read_step<D>,
                 dim3((unsigned)(parts ? parts : 1), (unsigned)c->a.HV, (unsigned)c->a.rows->n), READ_THREADS,
                 parts ? most : 0, *c, (int *)scratch, (float *)((char *)scratch + counts_bytes(&c->a)),
                 parts, beside, *e);
}
static void run_any(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch, bool beside,
                    const struct cache_finish *e) {
    const int parts = c->a.chunk > 0 ? (int)parts_of(&c->a) : 0;
    if (c->a.K == 64) run<64>(cuda, c, scratch, parts, beside, e);
    if (c->a.K == 128) run<128>(cuda, c, scratch, parts, beside, e);
    if (c->a.K == 256) run<256>(cuda, c, scratch, parts, beside, e);
}
void HL_OP(cache_step_with)(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch,
                            const struct cache_finish *e) {
    run_any(cuda, c, scratch, true, e);
}
void HL_OP(cache_step)(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch) {
    const struct cache_finish none = {};
    launch_early(cuda, clear_counts, 1, READ_THREADS, 0, (int *)scratch, (int)(c->a.rows->n * c->a.HV));
    run_any(cuda, c, scratch, false, &none);
}
