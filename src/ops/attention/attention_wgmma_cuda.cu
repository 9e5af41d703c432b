/* attention_wgmma_cuda.cu -- softmax attention of many rows with wgmma, D = 64 and 128: training and prefill.
 *
 * Persistent: as many blocks as the chip runs at once. An item is a tile of ROWS queries and a head. Tiles with the
 * latest positions, which have the most keys, are listed first, and blocks take items round robin, every second round
 * in reverse order, so that all have about the same number of key tiles.
 *
 * Block: two or (D = 64) three consumer warpgroups with 64 queries each, then a producer warpgroup. Keys come in tiles
 * of HL_TILE from position 0 on, first to last: a row's result does not depend on where its tile of queries begins, and
 * so not on how a text is split into calls. In iteration t a consumer issues S = Q K_t^T and O += P V_{t-1} back to
 * back, and computes the softmax of S while the second still runs; named barriers alternate the consumers, so that
 * one's products overlap the others' exponentials.
 *
 * Shared memory: Q of the item, rings of STAGES tiles of K and of V. mbarriers, by who arrives (who waits):
 *     q_full, k_full, v_full      the copies (consumers)
 *     q_empty, k_empty, v_empty   consumers have read them (the producer)
 * Copies are tensor copies by one thread. If keys are in the pages or the ring of a session (PAGED), K and V are copied
 * with cp.async by the whole producer warpgroup, and rows after the last one are zeros; otherwise they are the next
 * segment's, which are masked like later keys. */
#include "ops/attention/attention_wgmma_cuda.cuh"
#ifndef HL_CUDA_F32

template <int D> struct smem {
    enum {
        CONSUMERS = D == 64 ? 3 : 2,
        THREADS = (CONSUMERS + 1) * GROUP,
        ROWS = 64 * CONSUMERS,
        PANELS = D / 64,
        PANEL = KEYS * 64,
        Q_PANEL = ROWS * 64,
        STAGES = D == 64 ? 4 : 2,
        BYTES = KEYS * D * 2,
        Q_BYTES = ROWS * D * 2
    };
    bf16 q[PANELS * Q_PANEL], k[STAGES][PANELS * PANEL], v[STAGES][PANELS * PANEL];
    uint64_t barriers[2 + 4 * STAGES];
};
template <int STAGES> struct ring {
    mbarrier_t first;
    __device__ __forceinline__ mbarrier_t q_full() const { return mbarrier_at(first, 0); }
    __device__ __forceinline__ mbarrier_t q_empty() const { return mbarrier_at(first, 1); }
    __device__ __forceinline__ mbarrier_t k_full(int n) const { return mbarrier_at(first, 2 + n % STAGES); }
    __device__ __forceinline__ mbarrier_t k_empty(int n) const { return mbarrier_at(first, 2 + STAGES + n % STAGES); }
    __device__ __forceinline__ mbarrier_t v_full(int n) const {
        return mbarrier_at(first, 2 + 2 * STAGES + n % STAGES);
    }
    __device__ __forceinline__ mbarrier_t v_empty(int n) const {
        return mbarrier_at(first, 2 + 3 * STAGES + n % STAGES);
    }
    /* the parities with which its n-th use is waited for */
    static __device__ __forceinline__ uint32_t full_parity(int n) { return n / STAGES & 1; }
    static __device__ __forceinline__ uint32_t empty_parity(int n) { return (n / STAGES & 1) ^ 1; }
};
struct maps {
    struct tensor_map q, k, v;
};

/* Item i of this block: queries `rows`, from batch row `row` and position `pos` on, key tiles first to first +
 * tiles. */
struct item {
    int seg, head, row, rows, pos, first, tiles;
};
static __device__ __forceinline__ bool item_of(const struct attention_args &a, int i, struct item *w) {
    /* Tiles without rows come last (ops/raw): after the first one, a block has no more items. */
    const int n = gridDim.x, at = i * n + (i % 2 ? n - 1 - (int)blockIdx.x : (int)blockIdx.x);
    if (at >= a.tiles * a.H) return false;
    const struct hl_dev_span t = a.tile[at / a.H];
    if (t.len == 0) return false;
    w->head = at % a.H, w->seg = t.seg, w->row = t.row, w->rows = t.len, w->pos = t.skip;
    w->first = first_key(a, w->pos) / KEYS;
    w->tiles = (w->pos + w->rows - 1) / KEYS - w->first + 1;
    return true;
}

/* ---- producer ---- */

/* One tile of keys or values, from position p on, loaded by all threads i of the producer. */
template <int D>
static __device__ __forceinline__ void copy_paged(bf16 *tile, const struct attention_args &a, const struct item &w,
                                                  const struct hl_seg &seg, const bf16 *x, int64_t off, int p, int i) {
    const int last = w.pos + w.rows, col = i % 8 * 8;
#pragma unroll 1
    for (int r = i / 8; r < KEYS; r += GROUP / 8) {
        const bf16 *row = x;
        const bool filled = p + r < last;
        if (filled) row = key_row(a, w.seg, seg, p + r, x, off) + w.head / (a.H / a.HK) * D + col;
#pragma unroll
        for (int n = 0; n < D / 64; n++)
            copy_async(tile + n * smem<D>::PANEL + tile_at<64>(r, col), row + (filled ? 64 * n : 0), filled ? 16 : 0);
    }
}
template <int D, bool PAGED>
static __device__ __forceinline__ void produce(smem<D> &m, const ring<smem<D>::STAGES> b,
                                               const struct attention_args &a, const struct maps &maps, int thread) {
    typedef smem<D> M;
    struct item w;
    for (int i = 0, n = 0; item_of(a, i, &w); i++) {
        const int kv = w.head / (a.H / a.HK) * D;
        const struct hl_seg seg = a.seg[w.seg];
        if (thread == 0) {
            mbarrier_wait(b.q_empty(), (i & 1) ^ 1);
            mbarrier_arrive_expect_tx(b.q_full(), M::Q_BYTES);
            for (int p = 0; p < M::PANELS; p++)
                tensor_copy(m.q + p * M::Q_PANEL, &maps.q, w.row, w.head * D + 64 * p, b.q_full());
        }
        for (int t = w.first; t < w.first + w.tiles; t++, n++) {
            mbarrier_wait(b.k_empty(n), b.empty_parity(n));
            if (PAGED) {
                copy_paged<D>(m.k[n % M::STAGES], a, w, seg, a.k, a.k_off, t * KEYS, thread);
                copy_async_arrive(b.k_full(n));
            } else {
                mbarrier_arrive_expect_tx(b.k_full(n), M::BYTES);
                for (int p = 0; p < M::PANELS; p++)
                    tensor_copy(m.k[n % M::STAGES] + p * M::PANEL, &maps.k, seg.row + t * KEYS, kv + 64 * p,
                                b.k_full(n));
            }
            mbarrier_wait(b.v_empty(n), b.empty_parity(n));
            if (PAGED) {
                copy_paged<D>(m.v[n % M::STAGES], a, w, seg, a.v, a.v_off, t * KEYS, thread);
                copy_async_arrive(b.v_full(n));
            } else {
                mbarrier_arrive_expect_tx(b.v_full(n), M::BYTES);
                for (int p = 0; p < M::PANELS; p++)
                    tensor_copy(m.v[n % M::STAGES] + p * M::PANEL, &maps.v, seg.row + t * KEYS, kv + 64 * p,
                                b.v_full(n));
            }
        }
    }
}

/* ---- consumers ---- */

/* S = Q K^T of 64 rows and KEYS keys; the caller commits */
template <int D> static __device__ __forceinline__ void scores(float (*s)[4], const bf16 *q, const bf16 *k, int group) {
#pragma unroll
    for (int x = 0; x < D; x += 16) {
        const operand<64, false> A = {q + x / 64 * smem<D>::Q_PANEL, 64 * group, x % 64},
                                 B = {k + x / 64 * smem<D>::PANEL, 0, x % 64};
        if (x == 0) wgmma_ss<KEYS, true>(s, A, B);
        else wgmma_ss<KEYS>(s, A, B);
    }
}
/* O += P V */
template <int D> static __device__ __forceinline__ void values(float (*o)[4], const uint32_t (*p)[4], const bf16 *v) {
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) wgmma_rs<D>(o, p[i], operand<64, true, smem<D>::PANEL>{v, 16 * i, 0});
}
/* Masks keys that a query must not see: later keys, and keys before its window. */
static __device__ __forceinline__ void mask(float (*s)[4], const struct attention_args &a, int query, int key) {
    key += threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int behind = query + i / 2 * 8 - (key + 8 * n + i % 2);
            if (behind < 0 || (a.window && behind >= a.window)) s[n][i] = -INFINITY;
        }
}
/* The running softmax of a thread's two rows. */
struct softmax {
    float top[2], sum[2]; /* the largest score; the sum over this thread's columns */
};
/* Converts scores to exponentials; factor: rescales what was accumulated before. */
static __device__ __forceinline__ void exponentials(float (*s)[4], struct softmax &m, float factor[2], float scale2) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(s[0][2 * r], s[0][2 * r + 1]), sum = 0.0f;
#pragma unroll
        for (int n = 1; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        top = fmaxf(m.top[r], top);
        const float less = top == -INFINITY ? 0.0f : top * scale2; /* nothing visible yet */
        factor[r] = fast_exp2(m.top[r] * scale2 - less);
        m.top[r] = top;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            s[n][2 * r] = fast_exp2(s[n][2 * r] * scale2 - less);
            s[n][2 * r + 1] = fast_exp2(s[n][2 * r + 1] * scale2 - less);
            sum += s[n][2 * r] + s[n][2 * r + 1];
        }
        m.sum[r] = m.sum[r] * factor[r] + sum;
    }
}
template <int D>
static __device__ __forceinline__ void store_item(const struct attention_args &a, const struct item &w,
                                                  const float (*o)[4], struct softmax &m, int rows) {
    const int64_t row = w.row + rows;
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        m.sum[r] += __shfl_xor_sync(0xffffffffu, m.sum[r], 1);
        m.sum[r] += __shfl_xor_sync(0xffffffffu, m.sum[r], 2);
        by[r] = 1.0f / m.sum[r];
        const int mine = threadIdx.x % 32 / 4 + 8 * r;
        if (a.lse && threadIdx.x % 4 == 0 && rows + mine < w.rows)
            a.lse[(row + mine) * a.H + w.head] = m.top[r] * a.scale + logf(m.sum[r]);
    }
    store_rows<D>(a.out + (row * a.H + w.head) * D, (int64_t)a.H * D, o, by, w.rows - rows);
}

/* Processes the scores of a tile of keys from position `key` on, while products run. */
static __device__ __forceinline__ void attend(float (*s)[4], struct softmax &x, float factor[2],
                                              const struct attention_args &a, const struct item &w, int rows, int key) {
    const int first = w.pos + rows / 64 * 64; /* the warpgroup's first query */
    if (key + KEYS > first + 1 || (a.window && key + a.window <= first + 63))
        mask(s, a, w.pos + rows + threadIdx.x % 32 / 4, key);
    exponentials(s, x, factor, a.scale * LOG2E);
}

template <int D, bool PAGED>
static __device__ __forceinline__ void consume(smem<D> &m, const ring<smem<D>::STAGES> b,
                                               const struct attention_args &a, int group) {
    typedef smem<D> M;
    const int rows = threadIdx.x / 32 * 16; /* the warp's first row of the tile */
    float o[D / 8][4], s[KEYS / 8][4], factor[2];
    uint32_t p[KEYS / 16][4];
    struct item w;
    const int turn = 1 + group, next = 1 + (group + 1) % M::CONSUMERS; /* named barriers */
    if (next == 1) named_barrier_arrive(1, 2 * GROUP);                 /* the first consumer starts */
    for (int i = 0, n = 0; item_of(a, i, &w); i++) {
        struct softmax x = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
        mbarrier_wait(b.q_full(), i & 1);
        mbarrier_wait(b.k_full(n), b.full_parity(n));
        if (PAGED) fence_proxy_async();
        named_barrier_sync(turn, 2 * GROUP);
        wgmma_begin<KEYS / 8>(s);
        scores<D>(s, m.q, m.k[n % M::STAGES], group);
        named_barrier_arrive(next, 2 * GROUP);
        wgmma_end<KEYS / 8>(s);
        mbarrier_arrive_warp(b.k_empty(n));
        if (w.tiles == 1) mbarrier_arrive_warp(b.q_empty());
        attend(s, x, factor, a, w, rows, w.first * KEYS);
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) pack_a(p[j], s + 2 * j);
#pragma unroll
        for (int j = 0; j < D / 2; j++) o[j / 4][j % 4] = 0.0f;
        for (int t = 1; t < w.tiles; t++) {
            n++;
            mbarrier_wait(b.k_full(n), b.full_parity(n));
            mbarrier_wait(b.v_full(n - 1), b.full_parity(n - 1));
            if (PAGED) fence_proxy_async();
            named_barrier_sync(turn, 2 * GROUP);
            wgmma_begin<KEYS / 8>(s);
            scores<D>(s, m.q, m.k[n % M::STAGES], group);
            wgmma_commit_wait<1>();
            wgmma_hold_a<KEYS / 16>(p);
            wgmma_begin<D / 8>(o);
            values<D>(o, p, m.v[(n - 1) % M::STAGES]);
            named_barrier_arrive(next, 2 * GROUP);
            wgmma_end<KEYS / 8, 1>(s);
            mbarrier_arrive_warp(b.k_empty(n));
            if (t + 1 == w.tiles) mbarrier_arrive_warp(b.q_empty());
            attend(s, x, factor, a, w, rows, (w.first + t) * KEYS);
            wgmma_wait_all<D / 8>(o);
            wgmma_hold_a<KEYS / 16>(p);
            mbarrier_arrive_warp(b.v_empty(n - 1));
            if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f))
#pragma unroll
                for (int j = 0; j < D / 2; j++) o[j / 4][j % 4] *= factor[j % 4 / 2];
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) pack_a(p[j], s + 2 * j);
        }
        mbarrier_wait(b.v_full(n), b.full_parity(n));
        if (PAGED) fence_proxy_async();
        wgmma_hold_a<KEYS / 16>(p);
        wgmma_begin<D / 8>(o);
        values<D>(o, p, m.v[n % M::STAGES]);
        wgmma_end<D / 8>(o);
        mbarrier_arrive_warp(b.v_empty(n++));
        store_item<D>(a, w, o, x, rows);
    }
    if (group == 0) named_barrier_sync(1, 2 * GROUP); /* the last arrival */
}

template <int D, bool PAGED>
static __global__ void __launch_bounds__(smem<D>::THREADS, 1)
    attention_forward_kernel(const __grid_constant__ struct attention_args a,
                             const __grid_constant__ struct maps maps) {
    smem<D> &m = *(smem<D> *)shared_tiles();
    const ring<smem<D>::STAGES> b = {mbarrier_base(m.barriers)};
    enum { CONSUMERS = smem<D>::CONSUMERS };
    const int group = warpgroup_index();
    if (threadIdx.x == 0) {
        mbarrier_init(b.q_full(), 1), mbarrier_init_warps(b.q_empty(), 4 * CONSUMERS);
        for (int i = 0; i < smem<D>::STAGES; i++) {
            mbarrier_init(b.k_full(i), PAGED ? GROUP : 1), mbarrier_init(b.v_full(i), PAGED ? GROUP : 1);
            mbarrier_init_warps(b.k_empty(i), 4 * CONSUMERS), mbarrier_init_warps(b.v_empty(i), 4 * CONSUMERS);
        }
    }
    named_barrier_init();
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    if (group == CONSUMERS) {
        setmaxnreg_dec<PAGED && D == 128 ? 40 : 24 + 8 * PAGED>();
        if (PAGED || threadIdx.x == CONSUMERS * GROUP)
            produce<D, PAGED>(m, b, a, maps, threadIdx.x - CONSUMERS * GROUP);
    } else {
        setmaxnreg_inc<D == 64 ? 160 : PAGED ? 232 : 240>();
        consume<D, PAGED>(m, b, a, group);
    }
}

template <int D, bool PAGED>
static bool forward(struct hl_cuda *c, const struct hl_attention *a, const struct attention_args &x) {
    const size_t shared = sizeof(smem<D>) + TILES_ROOM;
    const int64_t rows = a->rows->T, items = x.tiles * a->H, sms = hl_cuda_sms(c);
    struct maps maps = {};
    if (!hl_cuda_compiled_for_sm90(c, (const void *)attention_forward_kernel<D, PAGED>) ||
        shared > (size_t)hl_cuda_shared_limit(c) ||
        !tensor_map_make(&maps.q, a->q, rows, a->H * D, x.q_ld, smem<D>::ROWS))
        return false;
    if (PAGED) {
        if ((uintptr_t)a->k % 16 || (uintptr_t)a->v % 16 || x.k_ld % 8 || a->k_off % 16 || a->v_off % 16) return false;
    } else if (!tensor_map_make(&maps.k, a->k, rows, a->HK * D, x.k_ld, KEYS) ||
               !tensor_map_make(&maps.v, a->v, rows, a->HK * D, x.k_ld, KEYS))
        return false;
    if ((uintptr_t)a->out % 16) return false;
    launch_pdl(c, attention_forward_kernel<D, PAGED>, (unsigned)(items < sms ? items : sms), smem<D>::THREADS, shared,
               x, maps);
    return true;
}
/* Batched sessions must not even read each other's rows, and sessions with a past have it elsewhere. */
static bool paged(const struct hl_rows *rows) {
    for (int64_t i = 0; i < rows->n && !rows->on_device; i++)
        if (rows->seg[i].state && (rows->n > 1 || rows->seg[i].pos > 0)) return true;
    return false;
}
extern "C" bool HL_OP(attention_wgmma_forward)(struct hl_cuda *c, const struct hl_attention *a) {
    struct attention_args x = attention_args_of(a);
    if (a->D == 64) x.tile = a->rows->dev->wide_tile, x.tiles = (int)a->rows->dev->wide_tiles;
    const bool p = paged(a->rows);
    if (a->D == 128) return (p ? forward<128, true> : forward<128, false>)(c, a, x);
    if (a->D == 64) return (p ? forward<64, true> : forward<64, false>)(c, a, x);
    return false;
}
#endif
