/* cache_step_cuda.cu -- one new token of every session: append, read, merge a full block.
 *
 * One launch whose size depends on the number of sessions alone; positions are read on the device, so that a recorded
 * graph can be played again. A block has READ_SLOTS slots of a head, a warp some of them, all asked for at once: each
 * lane copies what it will read itself. The block leaves its softmax, and the last one of a head puts those of all
 * together, in order. */
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_step_cuda.cuh"

enum { READ_WARPS = 8, WARP_ROWS = 8, READ_THREADS = 32 * READ_WARPS, READ_SLOTS = READ_WARPS * WARP_ROWS };

static int64_t parts_of(const struct hl_cache *a) { return (a->window + a->chunk + READ_SLOTS - 1) / READ_SLOTS; }
/* How many blocks of a head are done, then their results. */
static int64_t counts_bytes(const struct hl_cache *a) { return (a->rows->n * a->HV * 4 + 255) / 256 * 256; }
int64_t HL_OP(cache_step_scratch)(const struct hl_cache *a) {
    return counts_bytes(a) + a->rows->n * a->HV * parts_of(a) * (a->V + 2) * 4;
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
static __device__ __forceinline__ void ask_rows(act *tile, const act *all, const struct filled &f, int first) {
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
static __device__ __forceinline__ void keep_new(act *kept, const act *tile, const struct filled &f, int first) {
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
static __device__ __forceinline__ void weigh_keys(struct reading<D> &r, const act *tile, const struct filled &f,
                                                  int first, float scale) {
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

/* grid (parts, HV, n). What does not depend on the new row is asked for before others are waited for: the kernel just
 * before this one writes none of it. */
template <int D>
static __global__ void __launch_bounds__(READ_THREADS, 3)
    read_step(const struct cache_dev c, int *counts, float *result, int parts) {
    const int64_t h = blockIdx.y, n = blockIdx.z, head = n * c.a.HV + h;
    const int part = blockIdx.x, first = part * READ_SLOTS;
    const struct hl_seg seg = c.rows.seg[n];
    const struct memory m = memory_of(c, seg, h);
    const struct filled f = filled_at(c, seg.pos);
    act *K = (act *)shared_memory(), *V = K + READ_SLOTS * D;
    float *tales = (float *)(V + READ_SLOTS * D);
    __shared__ int last;
    result += head * parts * (D + 2);
    if (!part_used(f, part)) {
        pdl_wait(), pdl_trigger();
        return;
    }
    const bool has_new = f.fresh >= first && f.fresh < first + READ_SLOTS;
    const int64_t hk = (seg.row * c.a.H + h / c.group) * D, hv = (seg.row * c.a.HV + h) * D;
    /* small loads first: behind the many copies they would have to wait */
    const float sink = c.a.sink[h], gate = c.a.gate[h], tau = c.a.tau[h];
    struct reading<D> r;
    ask_rows<D>(K, m.k, f, first), ask_rows<D>(V, m.v, f, first);
    copy_commit();
    pdl_wait(), pdl_trigger();
    load_query<D>(r, (const act *)c.a.q + hk);
    if (has_new) ask_new<D>(K, (const act *)c.a.k + hk, f, first);
    if (has_new) ask_new<D>(V, (const act *)c.a.v + hv, f, first);
    copy_commit();
    if (has_new && threadIdx.x == 0) m.score[f.fresh] = column(c, m, h, seg.row, 2 * D);
    copy_wait<0>();
    unpack_query<D>(r);
    weigh_keys<D>(r, K, f, first, tau / sqrtf((float)D));
    add_values<D>(r, V);
    if (has_new) keep_new<D>(m.k, K, f, first), keep_new<D>(m.v, V, f, first);
    leave_part<D>(r, tales, result + part * (D + 2));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(counts + head, 1) + 1 == parts_used(f, parts);
    __syncthreads();
    if (!last) return;
    __threadfence();
    const float y = read_column(c, f, result, parts, sink, threadIdx.x) / (1.0f + expf(-gate));
    act *out = (act *)c.a.out + hv + threadIdx.x;
    if (threadIdx.x < D) put(out, f32(*out) + y);
    if (c.a.window > 0 && f.fresh == f.w + (int)c.a.chunk - 1) merge_full<D>(c, seg, h, shared_memory());
}

static __global__ void clear_counts(int *counts, int n) {
    pdl_wait(), pdl_trigger();
    for (int i = threadIdx.x; i < n; i += READ_THREADS) counts[i] = 0;
}

template <int D> static void run(struct hl_cuda *cuda, const struct cache_dev *c, int *counts, float *result) {
    const int parts = (int)parts_of(&c->a);
    const size_t room = (size_t)chooser_bytes(&c->a), tiles = 2 * READ_SLOTS * D * sizeof(act),
                 tales = reading<D>::TALES * (D + 4) * 4, shared = tiles + tales;
    launch_pdl(cuda, read_step<D>, dim3((unsigned)parts, (unsigned)c->a.HV, (unsigned)c->a.rows->n), READ_THREADS,
               shared > room ? shared : room, *c, counts, result, parts);
}
void HL_OP(cache_step)(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch) {
    int *counts = (int *)scratch;
    float *result = (float *)((char *)scratch + counts_bytes(&c->a));
    launch_pdl(cuda, clear_counts, 1, READ_THREADS, 0, counts, (int)(c->a.rows->n * c->a.HV));
    if (c->a.K == 64) run<64>(cuda, c, counts, result);
    if (c->a.K == 128) run<128>(cuda, c, counts, result);
    if (c->a.K == 256) run<256>(cuda, c, counts, result);
}
