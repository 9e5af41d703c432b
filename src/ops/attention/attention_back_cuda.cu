/* attention_back_cuda.cu -- the gradient of softmax attention with wgmma, D = 64 and 128.
 *
 *     prepare     grid (chunks): dout . out and lse (of base 2) of every row and head
 *     gradients   grid (key tiles HK): see below
 *     finish      grid (chunks, H): dq from the sums of gradients, to its type
 *
 * gradients: a block owns KEYS keys and one key head. It keeps K and V, and dK and dV in registers, and walks over the
 * chunks of queries that see these keys, for each head of the group, first to last. Two consumer warpgroups have 64
 * keys each; per chunk of CHUNK rows:
 *     S^T = K Q^T, dP^T = V dO^T     P = exp(S - lse), dS = P (dP - dout . out)
 *     dV += P^T dO                   with P in registers
 *     dK += dS^T Q, dQ = dS K        with dS in shared memory, next to the other's 64 keys; each has half of dQ
 * S of the next chunk is issued before dQ is waited for.
 *
 * dQ of a chunk is the sum over the blocks of its keys. Each block adds its part to floats in global memory with a
 * reducing bulk copy, and the parts are added in key order for bitwise reproducibility: a counter per chunk and head
 * tells whose turn it is. Blocks take key tiles by ticket, in list order, so the blocks that one waits for have started
 * before it. Tiles with the most queries come first, which are the first of a document, so a block waits until it is
 * three chunks behind the previous one, and then never again.
 *
 * Producer warpgroup: one thread copies (tensor copies; rings of STAGES chunks of Q and dO), one of another warp adds
 * dQ to memory. Shared memory: K, V, the rings, two buffers of dS, dQ as floats, in the order of the accumulators.
 * mbarriers, by who arrives (who waits):
 *     kv_full, q_full, do_full    the copies (consumers)
 *     q_empty, do_empty           consumers have read them (the copying thread)
 *     dq_full                     consumers have written dQ (the adding thread)
 *     dq_empty                    it has been read (consumers)
 * A named barrier of the consumers per chunk: dS is complete. With two buffers, it also tells that both have read the
 * previous one. */
#include "ops/attention/attention_wgmma_cuda.cuh"
#ifndef HL_CUDA_F32

enum {
    CONSUMERS = 2,
    THREADS = (CONSUMERS + 1) * GROUP,
    CHUNK = HL_CHUNK,
    STATS = 2 * CHUNK /* lse and dout . out of a chunk of a head */
};

struct back_args {
    struct attention_args a;
    const int32_t *chunk_first;
    const struct hl_dev_span *chunk, *key_tile;
    int64_t chunks;
    float *stats, *sums; /* [H][chunks][2][CHUNK]; [H][chunks][CHUNK D], as accumulators */
    int *turn, *ticket;  /* [H][chunks]: parts of dQ added so far; [1]: key tiles started */
};
struct back_maps {
    struct tensor_map q, k, v, dout;
};

template <int D> struct back_smem {
    enum {
        PANELS = D / 64,
        PANEL = KEYS * 64,
        Q_PANEL = CHUNK * 64,
        STAGES = 2,
        KV_BYTES = KEYS * D * 2,
        Q_BYTES = CHUNK * D * 2,
        COLUMNS = D / CONSUMERS, /* of dQ, per consumer */
        DQ = CHUNK * COLUMNS
    };
    bf16 k[PANELS * PANEL], v[PANELS * PANEL], q[STAGES][PANELS * Q_PANEL], dout[STAGES][PANELS * Q_PANEL];
    bf16 ds[2][PANEL];
    float dq[CONSUMERS * DQ], stats[STAGES][STATS];
    uint64_t barriers[3 + 4 * STAGES];
    int ticket;
};
template <int STAGES> struct back_barriers {
    mbarrier_t first;
    __device__ __forceinline__ mbarrier_t kv_full() const { return mbarrier_at(first, 0); }
    __device__ __forceinline__ mbarrier_t dq_full() const { return mbarrier_at(first, 1); }
    __device__ __forceinline__ mbarrier_t dq_empty() const { return mbarrier_at(first, 2); }
    __device__ __forceinline__ mbarrier_t q_full(int n) const { return mbarrier_at(first, 3 + n % STAGES); }
    __device__ __forceinline__ mbarrier_t q_empty(int n) const { return mbarrier_at(first, 3 + STAGES + n % STAGES); }
    __device__ __forceinline__ mbarrier_t do_full(int n) const {
        return mbarrier_at(first, 3 + 2 * STAGES + n % STAGES);
    }
    __device__ __forceinline__ mbarrier_t do_empty(int n) const {
        return mbarrier_at(first, 3 + 3 * STAGES + n % STAGES);
    }
    static __device__ __forceinline__ uint32_t full_parity(int n) { return n / STAGES & 1; }
    static __device__ __forceinline__ uint32_t empty_parity(int n) { return (n / STAGES & 1) ^ 1; }
};

/* Work of a block: keys from `key` on in segment seg, and the `tiles` chunks of queries from `first` on that see
 * them. */
struct key_item {
    int seg, hk, row, rows, key, first, tiles, chunk; /* chunk: the segment's first */
};
static __device__ __forceinline__ struct key_item key_item_of(const struct back_args &b, int ticket) {
    const struct hl_dev_span t = b.key_tile[ticket / b.a.HK];
    const int len = (int)b.a.seg[t.seg].len;
    int last = len - 1;
    struct key_item w = {t.seg, ticket % b.a.HK, t.row, t.len, t.skip};
    if (b.a.window && w.key + KEYS + b.a.window - 2 < last) last = w.key + KEYS + b.a.window - 2;
    w.first = w.key / CHUNK;
    w.tiles = last / CHUNK - w.first + 1;
    w.chunk = b.chunk_first[t.seg];
    return w;
}
/* where the sums and statistics of the segment's chunk t are, for head h */
static __device__ __forceinline__ int64_t place_of(const struct back_args &b, const struct key_item &w, int h, int t) {
    return h * b.chunks + w.chunk + t;
}

/* ---- before and after ---- */

template <int D> static __global__ void __launch_bounds__(256) prepare(const struct back_args b) {
    enum { LANES = D / 8 };
    const struct attention_args &a = b.a;
    const struct hl_dev_span t = b.chunk[blockIdx.x];
    const int lane = threadIdx.x % LANES;
    if (blockIdx.x == 0 && threadIdx.x == 0) *b.ticket = 0;
    for (int h = threadIdx.x; h < a.H; h += 256) b.turn[h * b.chunks + blockIdx.x] = 0;
    for (int i = threadIdx.x / LANES; i < a.H * CHUNK; i += 256 / LANES) {
        const int h = i % a.H, row = i / a.H;
        const int64_t at = (t.row + row) * a.H + h;
        float x[8], y[8], sum = 0.0f;
        if (row < t.len) {
            load_wide(x, a.dout + at * D + lane * 8), load_wide(y, a.out + at * D + lane * 8);
#pragma unroll
            for (int j = 0; j < 8; j++) sum += x[j] * y[j];
        }
#pragma unroll
        for (int n = 1; n < LANES; n *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
        float *stats = b.stats + (h * b.chunks + blockIdx.x) * STATS;
        if (lane == 0) stats[row] = row < t.len ? a.lse[at] * LOG2E : INFINITY, stats[CHUNK + row] = sum;
    }
}

template <int D> static __global__ void __launch_bounds__(GROUP) finish(const struct back_args b) {
    const struct attention_args &a = b.a;
    const struct hl_dev_span t = b.chunk[blockIdx.x];
    const int h = blockIdx.y, rows = threadIdx.x / 32 * 16;
    const float4 *sums = (const float4 *)(b.sums + (h * b.chunks + blockIdx.x) * CHUNK * D) + threadIdx.x;
    const float by[2] = {a.scale, a.scale};
#pragma unroll
    for (int half = 0; half < CONSUMERS; half++) {
        enum { COLUMNS = back_smem<D>::COLUMNS };
        float x[COLUMNS / 8][4];
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
            const float4 y = __ldcs(sums + (half * COLUMNS / 8 + n) * GROUP);
            x[n][0] = y.x, x[n][1] = y.y, x[n][2] = y.z, x[n][3] = y.w;
        }
        store_rows<COLUMNS>(a.dq + (t.row + rows) * a.q_ld + h * D + half * COLUMNS, a.q_ld, x, by, t.len - rows);
    }
}

/* ---- producers, one thread each ---- */

template <int D>
static __device__ __forceinline__ void copy_tiles(back_smem<D> &m, const back_barriers<back_smem<D>::STAGES> s,
                                                  const struct back_args &b, const struct back_maps &maps,
                                                  const struct key_item &w) {
    typedef back_smem<D> M;
    const int group = b.a.H / b.a.HK, row = (int)b.a.seg[w.seg].row;
    mbarrier_arrive_expect_tx(s.kv_full(), 2 * M::KV_BYTES);
    for (int p = 0; p < M::PANELS; p++) {
        tensor_copy(m.k + p * M::PANEL, &maps.k, w.row, w.hk * D + 64 * p, s.kv_full());
        tensor_copy(m.v + p * M::PANEL, &maps.v, w.row, w.hk * D + 64 * p, s.kv_full());
    }
    for (int n = 0; n < group * w.tiles; n++) {
        const int h = w.hk * group + n / w.tiles, t = w.first + n % w.tiles, stage = n % M::STAGES;
        mbarrier_wait(s.q_empty(n), s.empty_parity(n));
        mbarrier_arrive_expect_tx(s.q_full(n), M::Q_BYTES + STATS * 4);
        bulk_copy(m.stats[stage], b.stats + place_of(b, w, h, t) * STATS, STATS * 4, s.q_full(n), true);
        for (int p = 0; p < M::PANELS; p++)
            tensor_copy(m.q[stage] + p * M::Q_PANEL, &maps.q, row + t * CHUNK, h * D + 64 * p, s.q_full(n));
        mbarrier_wait(s.do_empty(n), s.empty_parity(n));
        mbarrier_arrive_expect_tx(s.do_full(n), M::Q_BYTES);
        for (int p = 0; p < M::PANELS; p++)
            tensor_copy(m.dout[stage] + p * M::Q_PANEL, &maps.dout, row + t * CHUNK, h * D + 64 * p, s.do_full(n));
    }
}
template <int D>
static __device__ __forceinline__ void add_queries(back_smem<D> &m, const back_barriers<back_smem<D>::STAGES> s,
                                                   const struct back_args &b, const struct key_item &w) {
    typedef back_smem<D> M;
    const int group = b.a.H / b.a.HK;
    for (int n = 0; n < group * w.tiles; n++) {
        const int h = w.hk * group + n / w.tiles, t = w.first + n % w.tiles;
        const int turn = w.key / KEYS - first_key(b.a, t * CHUNK) / KEYS;
        const int64_t at = place_of(b, w, h, t);
        float *to = b.sums + at * CHUNK * D;
        mbarrier_wait(s.dq_full(), n & 1);
        if (turn > 0) spin_acquire(b.turn + at, turn), bulk_add(to, m.dq, sizeof m.dq);
        else bulk_store(to, m.dq, sizeof m.dq);
        bulk_store_wait_read<0>();
        mbarrier_arrive(s.dq_empty());
        bulk_store_wait();
        store_release(b.turn + at, turn + 1);
    }
}

/* ---- consumers ---- */

/* Keys that a query does not see have P = 0; in the transposed scores, rows are keys. */
static __device__ __forceinline__ void mask_trans(float (*s)[4], int window, int key, int query) {
    query += threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int behind = query + 8 * n + i % 2 - (key + i / 2 * 8);
            if (behind < 0 || (window && behind >= window)) s[n][i] = -INFINITY;
        }
}
/* S^T = K Q^T, or dP^T = V dO^T, of a consumer's 64 keys; the caller commits */
template <int D>
static __device__ __forceinline__ void scores_trans(float (*s)[4], const bf16 *k, const bf16 *q, int group) {
    typedef back_smem<D> M;
#pragma unroll
    for (int x = 0; x < D; x += 16) {
        const operand<64, false> A = {k + x / 64 * M::PANEL, 64 * group, x % 64},
                                 B = {q + x / 64 * M::Q_PANEL, 0, x % 64};
        if (x == 0) wgmma_ss<CHUNK, true>(s, A, B);
        else wgmma_ss<CHUNK>(s, A, B);
    }
}
/* dV += P^T dO */
template <int D>
static __device__ __forceinline__ void add_values(float (*dv)[4], const uint32_t (*p)[4], const bf16 *dout) {
    typedef back_smem<D> M;
#pragma unroll
    for (int i = 0; i < CHUNK / 16; i++) wgmma_rs<D>(dv, p[i], operand<64, true, M::Q_PANEL>{dout, 16 * i, 0});
}
/* dK += dS^T Q */
template <int D>
static __device__ __forceinline__ void add_keys(float (*dk)[4], const bf16 *ds, const bf16 *q, int group) {
    typedef back_smem<D> M;
#pragma unroll
    for (int i = 0; i < CHUNK / 16; i++)
        wgmma_ss<D>(dk, operand<64, false>{ds, 64 * group, 16 * i}, operand<64, true, M::Q_PANEL>{q, 16 * i, 0});
}
/* A consumer's columns of dQ. */
template <int D>
static __device__ __forceinline__ void queries(float (*dq)[4], const bf16 *ds, const bf16 *k, int group) {
    enum { COLUMNS = back_smem<D>::COLUMNS };
    const int col = COLUMNS * group;
#pragma unroll
    for (int x = 0; x < KEYS; x += 16) {
        const operand<64, true> A = {ds, x, 0}, B = {k + col / 64 * back_smem<D>::PANEL, x, col % 64};
        if (x == 0) wgmma_ss<COLUMNS, true>(dq, A, B);
        else wgmma_ss<COLUMNS>(dq, A, B);
    }
}

template <int D>
static __device__ __forceinline__ void consume(back_smem<D> &m, const back_barriers<back_smem<D>::STAGES> b,
                                               const struct back_args &args, const struct key_item &w, int group) {
    typedef back_smem<D> M;
    enum { TILES = CHUNK / 8, STEPS = CHUNK / 16, DQ_TILES = M::COLUMNS / 8 };
    const struct attention_args &a = args.a;
    const int thread = threadIdx.x % GROUP, rows = 64 * group + thread / 32 * 16; /* the warp's first key */
    const int key = w.key + rows + thread % 32 / 4, n_all = a.H / a.HK * w.tiles;
    const float scale2 = a.scale * LOG2E;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {}, s[TILES][4];
    mbarrier_wait(b.kv_full(), 0);
    mbarrier_wait(b.q_full(0), 0);
    wgmma_begin<TILES>(s);
    scores_trans<D>(s, m.k, m.q[0], group);
    wgmma_commit_wait<1>();
    for (int n = 0; n < n_all; n++) {
        const int stage = n % M::STAGES, query = (w.first + n % w.tiles) * CHUNK;
        const float *stats = m.stats[stage] + thread % 4 * 2;
        float dp[TILES][4], dq[DQ_TILES][4];
        uint32_t p[STEPS][4];
        mbarrier_wait(b.do_full(n), b.full_parity(n));
        wgmma_begin<TILES>(dp);
        scores_trans<D>(dp, m.v, m.dout[stage], group);
        wgmma_commit_wait<1>();
        wgmma_hold<TILES>(s);
        if (query < w.key + 64 * group + 63 || (a.window && query + CHUNK - 1 - (w.key + 64 * group) >= a.window))
            mask_trans(s, a.window, key, query);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const float2 lse = *(const float2 *)(stats + 8 * i);
#pragma unroll
            for (int j = 0; j < 4; j++) s[i][j] = fast_exp2(s[i][j] * scale2 - (j % 2 ? lse.y : lse.x));
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) pack_a(p[i], s + 2 * i);
        wgmma_hold_a<STEPS>(p);
        wgmma_begin<D / 8>(dv);
        add_values<D>(dv, p, m.dout[stage]);
        wgmma_commit_wait<1>();
        wgmma_hold<TILES>(dp);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const float2 along = *(const float2 *)(stats + CHUNK + 8 * i);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t pair = p[i / 2][i % 2 * 2 + j];
                dp[i][2 * j] = low(pair) * (dp[i][2 * j] - along.x);
                dp[i][2 * j + 1] = high(pair) * (dp[i][2 * j + 1] - along.y);
            }
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t ds[4];
            pack_a(ds, dp + 2 * i);
            tile_store<64>(m.ds[n % 2], ds, rows, 16 * i);
        }
        fence_proxy_async();
        named_barrier_sync<1, CONSUMERS * GROUP>();
        wgmma_begin<DQ_TILES>(dq);
        queries<D>(dq, m.ds[n % 2], m.k, group);
        wgmma_commit_wait<2>();
        wgmma_begin<D / 8>(dk);
        add_keys<D>(dk, m.ds[n % 2], m.q[stage], group);
        wgmma_commit_wait<3>();
        if (n + 1 < n_all) {
            mbarrier_wait(b.q_full(n + 1), b.full_parity(n + 1));
            wgmma_begin<TILES>(s);
            scores_trans<D>(s, m.k, m.q[(n + 1) % M::STAGES], group);
        }
        wgmma_commit_wait<1>();
        wgmma_hold<DQ_TILES>(dq), wgmma_hold<D / 8>(dv), wgmma_hold<D / 8>(dk);
        wgmma_hold_a<STEPS>(p);
        mbarrier_arrive_warp(b.q_empty(n)), mbarrier_arrive_warp(b.do_empty(n));
        mbarrier_wait(b.dq_empty(), (n & 1) ^ 1);
#pragma unroll
        for (int i = 0; i < DQ_TILES; i++)
            *(float4 *)(m.dq + group * M::DQ + (i * GROUP + thread) * 4) =
                make_float4(dq[i][0], dq[i][1], dq[i][2], dq[i][3]);
        fence_proxy_async();
        mbarrier_arrive_warp(b.dq_full());
    }
    const float by[2] = {a.scale, a.scale}, one[2] = {1.0f, 1.0f};
    const int64_t to = (w.row + rows) * a.k_ld + w.hk * D;
    store_rows<D>(a.dk + to, a.k_ld, dk, by, w.rows - rows);
    store_rows<D>(a.dv + to, a.k_ld, dv, one, w.rows - rows);
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 1)
    gradients(const __grid_constant__ struct back_args a, const __grid_constant__ struct back_maps maps) {
    back_smem<D> &m = *(back_smem<D> *)shared_tiles();
    const back_barriers<back_smem<D>::STAGES> b = {mbarrier_base(m.barriers)};
    const int group = warpgroup_index();
    if (threadIdx.x == 0) {
        mbarrier_init(b.kv_full(), 1);
        mbarrier_init_warps(b.dq_full(), 4 * CONSUMERS), mbarrier_init(b.dq_empty(), 1);
        for (int i = 0; i < back_smem<D>::STAGES; i++) {
            mbarrier_init(b.q_full(i), 1), mbarrier_init(b.do_full(i), 1);
            mbarrier_init_warps(b.q_empty(i), 4 * CONSUMERS), mbarrier_init_warps(b.do_empty(i), 4 * CONSUMERS);
        }
        m.ticket = atomicAdd(a.ticket, 1);
    }
    named_barrier_init();
    __syncthreads();
    const struct key_item w = key_item_of(a, m.ticket);
    if (w.rows == 0) return; /* ops/raw: an upper bound; no tile here */
    if (group == CONSUMERS) {
        setmaxnreg_dec<24>();
        if (threadIdx.x == CONSUMERS * GROUP) copy_tiles<D>(m, b, a, maps, w);
        if (threadIdx.x == CONSUMERS * GROUP + 32) add_queries<D>(m, b, a, w);
    } else {
        setmaxnreg_inc<240>();
        consume<D>(m, b, a, w, group);
    }
}

/* ---- launches ---- */

static char *carve(char **at, int64_t bytes) {
    char *p = *at;
    *at += (bytes + 255) / 256 * 256;
    return p;
}
static char *lay_out(struct back_args *b, char *at) {
    const int64_t all = b->a.H * b->chunks;
    b->sums = (float *)carve(&at, all * CHUNK * b->a.D * 4);
    b->stats = (float *)carve(&at, all * STATS * 4);
    b->turn = (int *)carve(&at, all * 4);
    b->ticket = (int *)carve(&at, 4);
    return at;
}
template <int D> static bool backward(struct hl_cuda *c, const struct hl_attention *a) {
    typedef back_smem<D> M;
    const size_t shared = sizeof(M) + TILES_ROOM;
    const int64_t rows = a->rows->T;
    const struct hl_dev_rows *d = a->rows->dev;
    struct back_args b = {attention_args_of(a), d->chunk_first, d->chunk, d->key_tile, d->chunks};
    struct back_maps maps;
    const uintptr_t aligned = (uintptr_t)a->dq | (uintptr_t)a->dk | (uintptr_t)a->dv | (uintptr_t)a->out;
    if (!hl_cuda_compiled_for_sm90(c, (const void *)gradients<D>) || shared > (size_t)hl_cuda_shared_limit(c) ||
        aligned % 16)
        return false;
    char *scratch = (char *)hl_cuda_scratch(c, lay_out(&b, NULL) - (char *)NULL);
    if (!scratch) return true;
    if (!tensor_map_make(&maps.q, a->q, rows, a->H * D, b.a.q_ld, CHUNK) ||
        !tensor_map_make(&maps.k, a->k, rows, a->HK * D, b.a.k_ld, KEYS) ||
        !tensor_map_make(&maps.v, a->v, rows, a->HK * D, b.a.k_ld, KEYS) ||
        !tensor_map_make(&maps.dout, a->dout, rows, a->H * D, a->H * D, CHUNK))
        return false;
    lay_out(&b, scratch);
    launch(c, prepare<D>, (unsigned)d->chunks, 256, 0, b);
    launch(c, gradients<D>, (unsigned)(d->tiles * a->HK), THREADS, shared, b, maps);
    launch(c, finish<D>, dim3((unsigned)d->chunks, (unsigned)a->H), GROUP, 0, b);
    return true;
}
extern "C" bool HL_OP(attention_wgmma_backward)(struct hl_cuda *c, const struct hl_attention *a) {
    if (a->D == 128) return backward<128>(c, a);
    return a->D == 64 && backward<64>(c, a);
}
#endif
