/* mixer_step_batch_cuda.cu -- one new token of every session through both memories of a layer and its output norm (memory.cuh).
 *
 * A block has whole heads, one after another. Most of its threads take the tiles of their states (gdn_step_tile.cuh),
 * which memory alone limits; the others read the exact memory meanwhile (memory_read.cuh), as fast as what is left of
 * memory's time allows, and finish a head when both are done with it: the states' threads say so at a barrier, and wait
 * for nobody. They end sooner, so the last rows of the last head are theirs, on their way behind the last tiles. */
#include "ops/cuda_ops.cuh"
#include "fused/decode_batch/cache_read.cuh"

#ifndef HL_CUDA_F32

/* ---- q, k and v ---- */

/* Of the own heads, a warp each: what there was before is asked for first, then what is new, and only then large copies,
 * behind which all loads and stores would queue. */
template <int D>
static __device__ __forceinline__ void
find_unit(struct prepared<D> &x, int *row, const struct batch_prologue &a, const struct deal &deal, int u) {
    const int head = deal.head(u / 3);
    const struct hl_seg seg = a.seg[head / a.HV];
    x.ask(a, seg, u % 3, head % a.HV), *row = (int)seg.row;
}
/* Those behind the first ones. */
template <int D>
static __device__ __forceinline__ void prepare_more(const struct batch_prologue &a, const struct deal &deal,
                                                    struct memory_room<D> &m, int units) {
    enum { WARPS = memory_room<D>::STATES / 32 };
    for (int u = threadIdx.x / 32 + WARPS; u < units; u += WARPS) {
        struct prepared<D> x;
        int row;
        find_unit<D>(x, &row, a, deal, u), x.ask_new(a, row), x.fold();
        x.finish(a, row, m.near[u / 3][RULE_Q + u % 3], m.near[u / 3][SHARP_Q + u % 3 % 2]);
        x.keep(a);
    }
}
/* They are there already. */
template <int D>
static __device__ __forceinline__ void take(const struct gdn_step &a, const struct cache_dev &c,
                                            const struct deal &deal, struct memory_room<D> &m) {
    enum { UNITS = D / WIDE };
    for (int u = threadIdx.x; u < deal.own() * NEAR * UNITS; u += memory_room<D>::STATES) {
        const int n = u / (NEAR * UNITS), which = u / UNITS % NEAR, h = deal.head(n) % a.HV,
                  row = m.state.place[n * (D / TILE_COLS)].row;
        const int64_t at = which == NEW_V ? (int64_t)row * a.HV + h : (int64_t)row * a.H + h / (a.HV / a.H);
        const act *from = which == RULE_Q    ? a.q
                          : which == RULE_K  ? a.k
                          : which == NEW_V   ? a.v
                          : which == SHARP_Q ? (const act *)c.a.q
                                             : (const act *)c.a.k;
        *(uint4 *)(m.near[n][which] + u % UNITS * WIDE) = *(const uint4 *)(from + at * D + u % UNITS * WIDE);
    }
}

/* ---- states ---- */

template <int D> struct states_team {
    typedef struct memory_room<D> room;
    enum { TOKENS = 1, GATED = true, TILES = D / TILE_COLS };
    room &m;
    mbarrier_t heads;
    struct deal deal;
    int own, w;
    struct weights soon;
    __device__ __forceinline__ int number(int n) const { return deal.head(n / TILES) * TILES + n % TILES; }
    __device__ __forceinline__ void fetch(struct token &x, const struct gdn_step &, const struct tile_place &,
                                          int n, int, int, int first, int column) const {
        const act(*near)[D] = m.near[n / TILES];
        x.q.fetch(near[RULE_Q] + first), x.k.fetch(near[RULE_K] + first), x.v.fetch(near[NEW_V] + column);
    }
    __device__ __forceinline__ float *near_out(int n) const { return m.out[n / TILES]; }
    __device__ __forceinline__ void sync() const { named_barrier_sync(OF_STATES, room::STATES); }
    __device__ __forceinline__ void done(int n) const {
        if (n % TILES + 1 == TILES && threadIdx.x < 32) mbarrier_arrive_warp(mbarrier_at(heads, n / TILES));
    }
    __device__ __forceinline__ void bring_more(int n, int slot) const {
        const struct place &p = m.place[own - 1];
        if (n == 0 && threadIdx.x == 0) soon.ask();
        if (n < SLOTS && p.left < p.rows)
            bring_rows<D>(left_rows<D>(m, p, n, slot), p, w, LEFT_SETS - n * SETS);
    }
};

/* The states' threads. */
template <int D>
static __device__ __forceinline__ void step_states(const struct batch_prologue &p, const struct gdn_step &a,
                                                   const struct cache_dev &c, const struct cache_finish &e,
                                                   struct memory_room<D> &m, mbarrier_t done,
                                                   const struct deal &deal) {
    typedef struct memory_room<D> room;
    const int own = deal.own(), tiles = own * (D / TILE_COLS), units = p.units ? 3 * own : 0;
    const struct states_team<D> team = { m, done, deal, own, (int)c.a.window, e.soon };
    const int unit = threadIdx.x / 32, at = place_in_tile<D, TILE_COLS>(a);
    struct prepared<D> x;
    int row = 0;
    if (unit < units) find_unit<D>(x, &row, p, deal, unit);
    find_places<D, TILE_COLS>(a, m.state, team, (int)threadIdx.x - (room::STATES - KNOWN / 2), 0, KNOWN / 2,
                              tiles);
    team.sync();
    pdl_wait();
    if (unit < units) x.ask_new(p, row), x.fold();
    const int last = (int)threadIdx.x - (room::STATES - 32);
    if (last >= 0 && last < tiles) find_gates(a, &m.state.place[last], m.state.place[last].row);
    bring_tile<D, TILE_COLS>(a, m.state, 0, at), copy_commit();
    if (unit < units)
        x.finish(p, row, m.near[unit / 3][RULE_Q + unit % 3], m.near[unit / 3][SHARP_Q + unit % 3 % 2]);
    if (unit < units) x.keep(p);
    if constexpr (3 * room::HEADS > room::STATES / 32) prepare_more<D>(p, deal, m, units);
    if (!p.units) take<D>(a, c, deal, m);
    named_barrier_arrive(OF_ALL, room::STATES + room::READERS); /* q, k and v are there */
    team.sync();
    mbarrier_wait(mbarrier_at(done, own + 1), 0); /* so are the readers' places */
    for (int i = 1; i < SLOTS; i++) bring<D, TILE_COLS>(a, m.state, team, i, tiles, at);
    walk_tiles<D, TILE_COLS>(a, m.state, team, tiles);
    const struct place &left = m.place[own - 1];
    if (left.left < left.rows)
        read_left<D>(m, left, tiles % SLOTS, m.near[own - 1][SHARP_Q], mbarrier_at(done, own));
}
/* The others. */
template <int D>
static __device__ __forceinline__ void step_exact(const struct cache_dev &c, const struct cache_finish &e,
                                                  struct memory_room<D> &m, mbarrier_t done,
                                                  const struct deal &deal) {
    typedef struct memory_room<D> room;
    const int own = deal.own(), r = reader<D>();
    struct stage next = {};
    if (r < own) find_head<D>(c, m.place[r], deal.head(r), r + 1 == own);
    if (r < 32) mbarrier_arrive_warp(mbarrier_at(done, own + 1));
    named_barrier_sync(OF_READERS, room::READERS);
#pragma unroll 1 /* (it is all new code each time) */
    for (int i = 0; i < DEPTH; i++) bring_stage<D>(m, next, own, (int)c.a.window);
    pdl_wait();
    named_barrier_sync(OF_ALL, room::STATES + room::READERS); /* q, k and v */
    read_heads<D>(c, e, m, done, own, next);
}

template <int D>
static __global__ void __launch_bounds__(memory_room<D>::STATES + memory_room<D>::READERS,
                                         SM_THREADS / memory_room<D>::STATES)
    step_memory(const struct batch_prologue p, const struct gdn_step a, const struct cache_dev c,
                const struct cache_finish e, int heads, bool first) {
    typedef struct memory_room<D> room;
    room &m = *(room *)shared_memory();
    const mbarrier_t done = mbarrier_base(m.done);
    const struct deal deal = {(int)blockIdx.x, (int)gridDim.x, heads};
    const int own = deal.own();
    named_barrier_init();
    if (first) pdl_wait(); /* the sessions */
    if ((int)threadIdx.x < own + 2)
        mbarrier_init_warps(mbarrier_at(done, threadIdx.x), (int)threadIdx.x == own ? room::STATES / 32 : 1);
    if (reader<D>() >= 0 && reader<D>() < DEPTH * room::WARPS)
        mbarrier_init(mbarrier_at(mbarrier_base(m.came), reader<D>()), 1);
    __syncthreads();
    pdl_trigger();
    if (threadIdx.x < room::STATES) step_states<D>(p, a, c, e, m, done, deal);
    else step_exact<D>(c, e, m, done, deal);
    __syncthreads(); /* the rows' room; the scores */
    for (int n = 0; n < own; n++) {
        const struct place &x = m.place[n];
        if (c.a.window > 0 && x.exact && x.rows + 1 - x.kept == (int)c.a.chunk)
            merge_full<D>(c, c.rows.seg[x.session], x.h, (char *)&m.state);
        __syncthreads();
    }
}

template <int D>
static void run(struct hl_cuda *cuda, const struct batch_prologue *p, const struct gdn_step *a,
                const struct cache_dev *c, const struct cache_finish *e, bool first) {
    typedef struct memory_room<D> room;
    const int heads = (int)(c->a.rows->n * c->a.HV), grid = memory_blocks(cuda, D, heads);
    const size_t chooser = offsetof(room, state) + (size_t)chooser_bytes(&c->a),
                 shared = chooser > sizeof(room) ? chooser : sizeof(room);
    launch_pdl(cuda, step_memory<D>, (unsigned)grid, room::STATES + room::READERS,
               shared + NAMED_BARRIER_BYTES, *p, *a, *c, *e, heads, first);
}
void HL_OP(memory_step)(struct hl_cuda *cuda, const struct batch_prologue *p, const struct gdn_step *a,
                        const struct cache_dev *c, const struct cache_finish *e, bool first) {
    if (c->a.K == 64) run<64>(cuda, p, a, c, e, first);
    if (c->a.K == 128) run<128>(cuda, p, a, c, e, first);
    if (c->a.K == 256) run<256>(cuda, p, a, c, e, first);
}
#endif
