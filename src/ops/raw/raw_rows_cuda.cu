/* raw_rows_cuda.cu -- splits the rows of a call into segments, chunks and blocks on the device (include/hola_ops.h,
 * hola_rows). The host does not know the contents of cu, only upper bounds; unused spans have no rows.
 *
 *   cut_segments   one thread block: processes the sequences THREADS at a time. A sequence begins at the largest
 *                  cu up to its own, each clamped to [0, T], so that segments never overlap, whatever cu holds.
 *   cut_spans      a thread per chunk, block and row: finds its segment by bisection. */
#include "ops/raw/raw_cuda.cuh"

enum { THREADS = 1024, EACH = 256 };

static __device__ __forceinline__ int cu_at(const struct raw_rows &x, int64_t i) {
    const int64_t T = x.rows.T;
    int64_t at = x.cu_bits == 64 ? ((const int64_t *)x.cu)[i] : ((const int32_t *)x.cu)[i];
    return (int)(at < 0 ? 0 : at > T ? T : at);
}
static __device__ __forceinline__ int begin_of(const struct raw_rows &x, int64_t i) {
    return x.cu ? cu_at(x, i) : (int)(x.rows.T / x.rows.n * i);
}

template <bool MAX> static __device__ __forceinline__ int join(int x, int y) { return MAX ? max(x, y) : x + y; }
/* The inclusive prefix sum (MAX: maximum) of x over the threads, starting with `before`; all: over all threads. */
template <bool MAX> static __device__ int scan(int x, int before, int *all, int *warps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = 1; d < 32; d *= 2) {
        const int y = __shfl_up_sync(0xffffffffu, x, d);
        if (lane >= d) x = join<MAX>(x, y);
    }
    __syncthreads(); /* the previous call's may still be read */
    if (lane == 31) warps[warp] = x;
    __syncthreads();
    int total = before;
    for (int i = 0; i < THREADS / 32; i++) {
        if (i < warp) x = join<MAX>(x, warps[i]);
        total = join<MAX>(total, warps[i]);
    }
    *all = total;
    return join<MAX>(x, before);
}

static __global__ void __launch_bounds__(THREADS) cut_segments(const struct raw_rows x) {
    __shared__ int warps[THREADS / 32], ends[THREADS];
    int end = begin_of(x, 0), chunks = 0, blocks = 0; /* of all segments so far */
    for (int64_t first = 0; first < x.rows.n; first += THREADS) {
        const int64_t i = first + threadIdx.x;
        const bool in = i < x.rows.n;
        int all;
        const int before = end, own_end = scan<true>(in ? begin_of(x, i + 1) : 0, before, &all, warps);
        ends[threadIdx.x] = own_end;
        __syncthreads();
        const int row = threadIdx.x ? ends[threadIdx.x - 1] : before, len = own_end - row;
        end = all;
        const int own_chunks = (int)(((int64_t)len + HL_CHUNK - 1) / HL_CHUNK);
        const int own_blocks = x.C ? (int)((len + x.C - 1) / x.C) : 0;
        const int chunk = scan<false>(in ? own_chunks : 0, chunks, &all, warps) - own_chunks;
        chunks = all;
        const int block = scan<false>(in ? own_blocks : 0, blocks, &all, warps) - own_blocks;
        blocks = all;
        if (!in) continue;
        struct hl_seg s = {row, len, 0, x.state ? (char *)(x.state + i * x.state_floats) : NULL};
        x.seg[i] = s;
        x.chunk_first[i] = chunk;
        x.block_first[i] = block;
    }
    if (threadIdx.x > 0) return;
    x.chunk_first[x.rows.n] = chunks;
    x.block_first[x.rows.n] = blocks;
}

/* the last i < n with first[i] <= at; 0 if none */
static __device__ __forceinline__ int segment_of(const int32_t *first, int64_t n, int64_t at) {
    int64_t low = 0, high = n;
    while (low + 1 < high) {
        const int64_t mid = (low + high) / 2;
        if (first[mid] <= at) low = mid;
        else high = mid;
    }
    return (int)low;
}
static __device__ __forceinline__ struct hl_dev_span span_of(const struct raw_rows &x, const int32_t *first, int64_t i,
                                                             int64_t size) {
    const int64_t n = x.rows.n;
    if (i >= first[n]) return {(int32_t)x.seg[0].row, 0, 0, 0}; /* unused: empty, at the start of the first */
    const int s = segment_of(first, n, i);
    const struct hl_seg seg = x.seg[s];
    const int64_t at = (i - first[s]) * size, left = seg.len - at;
    return {(int32_t)(seg.row + at), (int32_t)(left < size ? left : size), s, 0};
}
static __global__ void __launch_bounds__(EACH) cut_spans(const struct raw_rows x) {
    int64_t i = (int64_t)blockIdx.x * EACH + threadIdx.x;
    if (i < x.dev.chunks) x.chunk[i] = span_of(x, x.chunk_first, i, HL_CHUNK);
    if (x.C == 0) return;
    if (i < x.dev.blocks) x.block[i] = span_of(x, x.block_first, i, x.C);
    if (i >= x.rows.T) return;
    int64_t low = 0, high = x.rows.n; /* the last segment that begins at or before the row */
    while (low + 1 < high) {
        const int64_t mid = (low + high) / 2;
        if (x.seg[mid].row <= i) low = mid;
        else high = mid;
    }
    x.row_seg[i] = (int32_t)low;
}

static __global__ void __launch_bounds__(EACH) copy(float *to, const float *from, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * EACH + threadIdx.x;
    if (i < n) to[i] = from ? from[i] : 0.0f;
}
extern "C" void HL_OP(raw_copy)(struct hl_cuda *c, float *to, const float *from, int64_t n) {
    if (n > 0 && to != from) launch(c, copy, blocks_for(n, EACH), EACH, 0, to, from, n);
}

/* An estimate of the longest sequence if unknown: twice the mean. Never so short that kernels for few rows would be
 * chosen, because it may be wrong. */
static int64_t guess_longest(const hola_rows *r) {
    const int64_t least = 64;
    int64_t n = r->longest > 0 ? r->longest : 2 * (r->T / r->N) + 1;
    n = n < least ? least : n;
    return n > r->T && r->T >= least ? r->T : n;
}
extern "C" void HL_OP(raw_rows_layout)(struct raw_rows *x, const hola_rows *r, int64_t C, char **p) {
    const int64_t n = r->N, T = r->T, each = r->cu || n == 0 ? 0 : T / n;
    struct hl_dev_rows *d = &x->dev;
    d->chunks = r->cu ? T / HL_CHUNK + n : n * hl_pieces(each, HL_CHUNK);
    d->blocks = C == 0 ? 0 : r->cu ? T / C + n : n * hl_pieces(each, C);
    d->longest = r->cu && n > 0 ? guess_longest(r) : each;
    x->seg = (struct hl_seg *)raw_carve(p, n * (int64_t)sizeof *x->seg);
    x->chunk_first = (int32_t *)raw_carve(p, (n + 1) * 4);
    x->block_first = (int32_t *)raw_carve(p, (n + 1) * 4);
    x->chunk = (struct hl_dev_span *)raw_carve(p, d->chunks * (int64_t)sizeof *x->chunk);
    x->block = (struct hl_dev_span *)raw_carve(p, d->blocks * (int64_t)sizeof *x->block);
    x->row_seg = (int32_t *)raw_carve(p, C ? T * 4 : 0);
    d->seg = x->seg, d->row_seg = x->row_seg;
    d->chunk = x->chunk, d->chunk_first = x->chunk_first, d->block = x->block, d->block_first = x->block_first;
    x->cu = r->cu, x->cu_bits = r->cu_bits, x->C = C;
    x->rows.T = T, x->rows.n = n, x->rows.dev = d;
    x->rows.on_device = true, x->rows.ragged = r->cu != NULL;
}
extern "C" void HL_OP(raw_cut_segments)(struct hl_cuda *c, const struct raw_rows *x) {
    launch(c, cut_segments, 1, THREADS, 0, *x);
}
extern "C" void HL_OP(raw_cut_spans)(struct hl_cuda *c, const struct raw_rows *x) {
    int64_t most = x->dev.chunks > x->dev.blocks ? x->dev.chunks : x->dev.blocks;
    if (x->C && x->rows.T > most) most = x->rows.T;
    launch(c, cut_spans, blocks_for(most, EACH), EACH, 0, *x);
}

static __global__ void settle() {}
extern "C" void HL_OP(raw_settle)(struct hl_cuda *c) { launch(c, settle, 1, 32, 0); }
