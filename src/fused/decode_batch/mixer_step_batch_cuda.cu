/* mixer_step_batch_cuda.cu -- one new token of every session through a layer's mixer and output norm.
 *
 * Grid: mixer_blocks(); a block has whole heads, one after another (head_schedule.cuh). Its first STATES threads
 * process the tiles of their states (gdn_step_tile.cuh), limited only by memory. Meanwhile the other READERS threads
 * read the cache (cache_read.cuh) with the remaining memory bandwidth, and finish a head when both of its parts are
 * done; the state threads signal this on an mbarrier and never wait. They finish sooner, so the last cache rows of the
 * block's last head are offloaded to them and copied after the last tiles. Shared memory: mixer_smem. */
#include "ops/cuda_ops.cuh"
#include "fused/decode_batch/cache_read.cuh"

#ifndef HL_CUDA_F32

/* ---- q, k and v ---- */

/* A warp has one of q, k, v of one of the block's heads. Old inputs are loaded first, then the new ones, and large
 * copies are issued last, since all later loads and stores queue behind them. */
template <int D>
static __device__ __forceinline__ void load_old_unit(struct conv_head<D> &x, int *row, const struct batch_prologue &a,
                                                     const struct head_schedule &schedule, int u) {
    const int head = schedule.head(u / 3);
    const struct hl_seg seg = a.seg[head / a.HV];
    x.load_old(a, seg, u % 3, head % a.HV), *row = (int)seg.row;
}
/* The units after the first of each warp. */
template <int D>
static __device__ __forceinline__ void prologue_rest(const struct batch_prologue &a,
                                                     const struct head_schedule &schedule, struct mixer_smem<D> &m,
                                                     int units) {
    enum { WARPS = mixer_smem<D>::STATES / 32 };
    for (int u = threadIdx.x / 32 + WARPS; u < units; u += WARPS) {
        struct conv_head<D> x;
        int row;
        load_old_unit<D>(x, &row, a, schedule, u), x.load_new(a, row), x.fold_old();
        x.finish(a, row, m.staged[u / 3][RULE_Q + u % 3], m.staged[u / 3][CACHE_Q + u % 3 % 2]);
        x.store_tail(a);
    }
}
/* Loads q, k and v computed by prologue_kernel. */
template <int D>
static __device__ __forceinline__ void stage_qkv(const struct gdn_step &a, const struct cache_dev &c,
                                                 const struct head_schedule &schedule, struct mixer_smem<D> &m) {
    enum { UNITS = D / WIDE };
    for (int u = threadIdx.x; u < schedule.count() * STAGED * UNITS; u += mixer_smem<D>::STATES) {
        const int n = u / (STAGED * UNITS), which = u / UNITS % STAGED, h = schedule.head(n) % a.HV,
                  row = m.state.place[n * (D / TILE_COLS)].row;
        const int64_t at = which == NEW_V ? (int64_t)row * a.HV + h : (int64_t)row * a.H + h / (a.HV / a.H);
        const act *from = which == RULE_Q    ? a.q
                          : which == RULE_K  ? a.k
                          : which == NEW_V   ? a.v
                          : which == CACHE_Q ? (const act *)c.a.q
                                             : (const act *)c.a.k;
        *(uint4 *)(m.staged[n][which] + u % UNITS * WIDE) = *(const uint4 *)(from + at * D + u % UNITS * WIDE);
    }
}

/* ---- states ---- */

template <int D> struct states_team {
    typedef struct mixer_smem<D> smem;
    enum { TOKENS = 1, GATED = true, TILES = D / TILE_COLS };
    smem &m;
    mbarrier_t heads;
    struct head_schedule schedule;
    int own, w;
    struct weight_prefetch prefetch;
    __device__ __forceinline__ int number(int n) const { return schedule.head(n / TILES) * TILES + n % TILES; }
    __device__ __forceinline__ void fetch(struct token &x, const struct gdn_step &, const struct tile_place &, int n,
                                          int, int, int first, int column) const {
        const act(*staged)[D] = m.staged[n / TILES];
        x.q.fetch(staged[RULE_Q] + first), x.k.fetch(staged[RULE_K] + first), x.v.fetch(staged[NEW_V] + column);
    }
    __device__ __forceinline__ float *staged_out(int n) const { return m.out[n / TILES]; }
    __device__ __forceinline__ void sync() const { named_barrier_sync(STATE_BARRIER, smem::STATES); }
    __device__ __forceinline__ void done(int n) const {
        if (n % TILES + 1 == TILES && threadIdx.x < 32) mbarrier_arrive_warp(mbarrier_at(heads, n / TILES));
    }
    __device__ __forceinline__ void load_next(int n, int slot) const {
        const struct head_place &p = m.place[own - 1];
        if (n == 0 && threadIdx.x == 0) prefetch.issue();
        if (n < SLOTS && p.offload < p.rows)
            load_rows<D>(offloaded_rows<D>(m, p, n, slot), p, w, OFFLOAD_SETS - n * SETS);
    }
};

/* The state threads. */
template <int D>
static __device__ __forceinline__ void step_states(const struct batch_prologue &p, const struct gdn_step &a,
                                                   const struct cache_dev &c, const struct mixer_epilogue &e,
                                                   struct mixer_smem<D> &m, mbarrier_t done,
                                                   const struct head_schedule &schedule) {
    typedef struct mixer_smem<D> smem;
    const int own = schedule.count(), tiles = own * (D / TILE_COLS), units = p.units ? 3 * own : 0;
    const struct states_team<D> team = { m, done, schedule, own, (int)c.a.window, e.prefetch };
    const int unit = threadIdx.x / 32, at = place_in_tile<D, TILE_COLS>(a);
    struct conv_head<D> x;
    int row = 0;
    if (unit < units) load_old_unit<D>(x, &row, p, schedule, unit);
    locate_tiles<D, TILE_COLS>(a, m.state, team, (int)threadIdx.x - (smem::STATES - KNOWN / 2), 0, KNOWN / 2, tiles);
    team.sync();
    pdl_wait();
    if (unit < units) x.load_new(p, row), x.fold_old();
    const int tile = (int)threadIdx.x - (smem::STATES - 32);
    if (tile >= 0 && tile < tiles) find_gates(a, &m.state.place[tile], m.state.place[tile].row);
    bring_tile<D, TILE_COLS>(a, m.state, 0, at), copy_commit();
    if (unit < units)
        x.finish(p, row, m.staged[unit / 3][RULE_Q + unit % 3], m.staged[unit / 3][CACHE_Q + unit % 3 % 2]);
    if (unit < units) x.store_tail(p);
    if constexpr (3 * smem::HEADS > smem::STATES / 32) prologue_rest<D>(p, schedule, m, units);
    if (!p.units) stage_qkv<D>(a, c, schedule, m);
    named_barrier_arrive(ALL_BARRIER, smem::STATES + smem::READERS); /* q, k and v are staged */
    team.sync();
    mbarrier_wait(mbarrier_at(done, own + 1), 0); /* the readers have located the heads */
    for (int i = 1; i < SLOTS; i++) load_tile<D, TILE_COLS>(a, m.state, team, i, tiles, at);
    step_tiles<D, TILE_COLS>(a, m.state, team, tiles);
    const struct head_place &last = m.place[own - 1];
    if (last.offload < last.rows)
        read_offloaded<D>(m, last, tiles % SLOTS, m.staged[own - 1][CACHE_Q], mbarrier_at(done, own));
}
/* The reader threads. */
template <int D>
static __device__ __forceinline__ void step_cache(const struct cache_dev &c, const struct mixer_epilogue &e,
                                                  struct mixer_smem<D> &m, mbarrier_t done,
                                                  const struct head_schedule &schedule) {
    typedef struct mixer_smem<D> smem;
    const int own = schedule.count(), r = reader<D>();
    struct stage next = {};
    if (r < own) locate_head<D>(c, m.place[r], schedule.head(r), r + 1 == own);
    if (r < 32) mbarrier_arrive_warp(mbarrier_at(done, own + 1));
    named_barrier_sync(READER_BARRIER, smem::READERS);
#pragma unroll 1 /* (unrolled, every iteration would fetch new instructions) */
    for (int i = 0; i < DEPTH; i++) load_stage<D>(m, next, own, (int)c.a.window);
    pdl_wait();
    named_barrier_sync(ALL_BARRIER, smem::STATES + smem::READERS); /* q, k and v are staged */
    read_heads<D>(c, e, m, done, own, next);
}

template <int D>
static __global__ void __launch_bounds__(mixer_smem<D>::STATES + mixer_smem<D>::READERS,
                                         SM_THREADS / mixer_smem<D>::STATES)
    mixer_kernel(const struct batch_prologue p, const struct gdn_step a, const struct cache_dev c,
                 const struct mixer_epilogue e, int heads, bool first) {
    typedef struct mixer_smem<D> smem;
    smem &m = *(smem *)shared_memory();
    const mbarrier_t done = mbarrier_base(m.done);
    const struct head_schedule schedule = {(int)blockIdx.x, (int)gridDim.x, heads};
    const int own = schedule.count();
    named_barrier_init();
    if (first) pdl_wait(); /* the segments */
    if ((int)threadIdx.x < own + 2)
        mbarrier_init_warps(mbarrier_at(done, threadIdx.x), (int)threadIdx.x == own ? smem::STATES / 32 : 1);
    if (reader<D>() >= 0 && reader<D>() < DEPTH * smem::WARPS)
        mbarrier_init(mbarrier_at(mbarrier_base(m.full), reader<D>()), 1);
    __syncthreads();
    pdl_trigger();
    if (threadIdx.x < smem::STATES) step_states<D>(p, a, c, e, m, done, schedule);
    else step_cache<D>(c, e, m, done, schedule);
    __syncthreads(); /* the ring is free; the scores are stored */
    for (int n = 0; n < own; n++) {
        const struct head_place &x = m.place[n];
        if (c.a.window > 0 && x.cached && x.rows + 1 - x.kept == (int)c.a.chunk)
            merge_full<D>(c, c.rows.seg[x.session], x.h, (char *)&m.state);
        __syncthreads();
    }
}

template <int D>
static void launch_mixer(struct hl_cuda *cuda, const struct batch_prologue *p, const struct gdn_step *a,
                         const struct cache_dev *c, const struct mixer_epilogue *e, bool first) {
    typedef struct mixer_smem<D> smem;
    const int heads = (int)(c->a.rows->n * c->a.HV), grid = mixer_blocks(cuda, D, heads);
    const size_t selector = offsetof(smem, state) + (size_t)selector_bytes(&c->a),
                 shared = selector > sizeof(smem) ? selector : sizeof(smem);
    launch_pdl(cuda, mixer_kernel<D>, (unsigned)grid, smem::STATES + smem::READERS, shared + NAMED_BARRIER_BYTES, *p,
               *a, *c, *e, heads, first);
}
void HL_OP(mixer_step_batch)(struct hl_cuda *cuda, const struct batch_prologue *p, const struct gdn_step *a,
                             const struct cache_dev *c, const struct mixer_epilogue *e, bool first) {
    if (c->a.K == 64) launch_mixer<64>(cuda, p, a, c, e, first);
    if (c->a.K == 128) launch_mixer<128>(cuda, p, a, c, e, first);
    if (c->a.K == 256) launch_mixer<256>(cuda, p, a, c, e, first);
}
#endif
