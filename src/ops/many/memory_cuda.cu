/* memory_cuda.cu -- one new token of every session through both memories of a layer and its output norm (memory.cuh).
 *
 * A block has whole heads, one after another. Most of its threads take the tiles of their states (gdn_step_tile.cuh),
 * which memory alone limits; the others read the exact memory meanwhile, as fast as what is left of memory's time allows,
 * and finish a head when both are done with it: the states' threads say so at a barrier, and wait for nobody.
 *
 * Of the exact memory a warp reads every WARPS-th few rows, a lane the same columns of all of them, on their way in
 * a ring where it reads what it has copied itself; those of the next head are asked for before this one is done. */
#include "cuda/bulk.cuh"
#include "ops/cache/cache_step_cuda.cuh"
#include "ops/gdn/gdn_step_tile.cuh"
#include "ops/many/memory.cuh"

#ifndef HL_CUDA_F32
enum { TILE_COLS = 64, SETS = 4, DEPTH = 4, COLUMNS = 2048 };
enum { OF_STATES = 1, OF_READERS }; /* barriers */

struct place {  /* of a head */
    act *k, *v; /* its exact memory */
    const act *q, *new_k, *new_v;
    float scale, sink, gate;
    int kept, rows, stages; /* kept rows; all that are read, the last is the new one; steps of all warps */
    int session, row, h;
};
template <int D> struct memory_room {
    typedef struct step_tile<D, TILE_COLS> tiles;
    enum {
        STATES = tiles::THREADS,
        READERS = STATES / 4, /* threads of either kind */
        WARPS = READERS / 32,
        LANES = D / WIDE, /* of a row */
        GROUPS = 32 / LANES,
        ROWS = SETS * GROUPS, /* that a warp has at once */
        TALES = WARPS * GROUPS,
        HEADS = COLUMNS / D
    };
    struct place place[HEADS];
    uint64_t done[HEADS]; /* barriers: the states' part of the head is */
    __align__(
        16) act near[HEADS][3][D]; /* q, k, v as the delta rule takes them: loads would queue behind copies */
    tiles state;
    uint4 ring[DEPTH][2][SETS][READERS]; /* k, v */
    float tale[TALES][D + 4];            /* a group's softmax: sums, the largest logit, the denominator */
    float read[D];
};

/* Heads are dealt out to and fro, so that no block has more than others where those that take long are first. */
static __device__ __forceinline__ int heads_of_block(int heads) {
    const int b = (int)blockIdx.x, grid = (int)gridDim.x, each = heads / grid;
    return each + ((each % 2 ? grid - 1 - b : b) < heads % grid);
}
static __device__ __forceinline__ int head_of_block(int n) { /* session HV + h */
    const int b = (int)blockIdx.x, grid = (int)gridDim.x;
    return n * grid + (n % 2 ? grid - 1 - b : b);
}

/* ---- q, k and v ---- */

/* Of the own heads: by the states' warps, what is asked for first by the first ones. */
template <int D>
static __device__ __forceinline__ void find_unit(struct prepared<D> &x, int *row,
                                                 const struct many_prepare &a, int u) {
    const int head = head_of_block(u / 3);
    const struct hl_seg seg = a.seg[head / a.HV];
    x.ask(a, seg, u % 3, head % a.HV), *row = (int)seg.row;
}
template <int D>
static __device__ __forceinline__ void prepare(const struct many_prepare &a, struct memory_room<D> &m,
                                               struct prepared<D> &x, int row, int units) {
    for (int u = threadIdx.x / 32; u < units; u += memory_room<D>::STATES / 32) {
        if (u >= memory_room<D>::STATES / 32) find_unit<D>(x, &row, a, u);
        x.finish(a, row, m.near[u / 3][u % 3]);
    }
}
/* They are there already: to where the delta rule looks for them. */
template <int D>
static __device__ __forceinline__ void take(const struct gdn_step &a, struct memory_room<D> &m, int own) {
    enum { UNITS = D / WIDE };
    for (int u = threadIdx.x; u < own * 3 * UNITS; u += memory_room<D>::STATES) {
        const int n = u / (3 * UNITS), which = u / UNITS % 3, h = head_of_block(n) % a.HV,
                  row = m.state.place[n * (D / TILE_COLS)].row;
        const int64_t at = which == 2 ? (int64_t)row * a.HV + h : (int64_t)row * a.H + h / (a.HV / a.H);
        const act *from = (which == 0 ? a.q : which == 1 ? a.k : a.v) + at * D + u % UNITS * WIDE;
        *(uint4 *)(m.near[n][which] + u % UNITS * WIDE) = *(const uint4 *)from;
    }
}

/* ---- states ---- */

template <int D> struct states_team {
    typedef struct memory_room<D> room;
    enum { TOKENS = 1, GATED = true, TILES = D / TILE_COLS };
    const room &m;
    barrier_at heads;
    __device__ __forceinline__ int number(int n) const {
        return head_of_block(n / TILES) * TILES + n % TILES;
    }
    __device__ __forceinline__ void fetch(struct token &x, const struct gdn_step &, const struct tile_place &,
                                          int n, int, int, int first, int column) const {
        const act(*near)[D] = m.near[n / TILES];
        x.q.fetch(near[0] + first), x.k.fetch(near[1] + first), x.v.fetch(near[2] + column);
    }
    __device__ __forceinline__ void sync() const { meet(OF_STATES, room::STATES); }
    __device__ __forceinline__ void done(int n) const {
        if (n % TILES + 1 == TILES && threadIdx.x < 32) warp_arrive(barrier_number(heads, n / TILES));
    }
};

/* ---- the exact memory ---- */

template <int D> static __device__ __forceinline__ int reader() {
    return threadIdx.x - memory_room<D>::STATES;
}

template <int D>
static __device__ __forceinline__ void find_head(const struct cache_dev &c, struct place &p, int head) {
    const int n = head / (int)c.a.HV, h = head % (int)c.a.HV;
    const struct hl_seg seg = c.rows.seg[n];
    p.session = n, p.row = (int)seg.row, p.h = h, p.rows = p.stages = 0;
    if (c.a.chunk == 0) return;
    const struct filled f = filled_at(c, seg.pos);
    const struct memory m = memory_of(c, seg, h);
    const int64_t qk = (seg.row * c.a.H + h / c.group) * D, v = (seg.row * c.a.HV + h) * D;
    const int stage = memory_room<D>::WARPS * memory_room<D>::ROWS;
    p.k = m.k, p.v = m.v;
    p.q = (const act *)c.a.q + qk, p.new_k = (const act *)c.a.k + qk, p.new_v = (const act *)c.a.v + v;
    p.scale = c.a.tau[h] / sqrtf((float)D), p.sink = c.a.sink[h], p.gate = c.a.gate[h];
    p.kept = f.kept, p.rows = f.kept + f.fresh - f.w + 1, p.stages = (p.rows + stage - 1) / stage;
}

/* Row number i of those that the lane reads in a stage; where its piece of a row lies; the slot of a row. */
template <int D> static __device__ __forceinline__ int row_of(int stage, int i) {
    typedef struct memory_room<D> room;
    return (stage * room::WARPS + reader<D>() / 32) * room::ROWS + i * room::GROUPS +
           threadIdx.x % 32 / room::LANES;
}
template <int D> static __device__ __forceinline__ int own_column() {
    return threadIdx.x % memory_room<D>::LANES * WIDE;
}
static __device__ __forceinline__ int64_t slot_of(const struct place &p, int w, int row) {
    return row < p.kept ? row : w + row - p.kept;
}

struct stage { /* number s of the block's head n; it lies in slot `at` of the ring */
    int n, s, at;
};
/* The stage, if there is one, and on to the next. */
template <int D>
static __device__ __forceinline__ void bring_rows(struct memory_room<D> &m, struct stage &x, int own, int w) {
    if (x.n < own && m.place[x.n].rows) {
        const struct place &p = m.place[x.n];
#pragma unroll
        for (int i = 0; i < SETS; i++) {
            const int row = row_of<D>(x.s, i);
            const bool there = row < p.rows, fresh = row + 1 == p.rows;
            const int64_t at = (there && !fresh ? slot_of(p, w, row) * D : 0) + own_column<D>();
            copy_async(&m.ring[x.at][0][i][reader<D>()], (fresh ? p.new_k : p.k) + at, there ? 16 : 0);
            copy_async(&m.ring[x.at][1][i][reader<D>()], (fresh ? p.new_v : p.v) + at, there ? 16 : 0);
        }
        if (++x.s == p.stages) x.s = 0, x.n++;
    }
    copy_commit();
    x.at = (x.at + 1) % DEPTH;
}

struct reading { /* a lane's columns of its rows' softmax */
    float q[WIDE], acc[WIDE], top, sum;
};
template <int D>
static __device__ __forceinline__ void read_rows(struct reading &r, const struct memory_room<D> &m,
                                                 const struct place &p, const struct stage &x, int w) {
    float z[SETS] = {}, top = r.top;
#pragma unroll
    for (int i = 0; i < SETS; i++) {
        float k[WIDE];
        load_wide(k, (const act *)&m.ring[x.at][0][i][reader<D>()]);
#pragma unroll
        for (int j = 0; j < WIDE; j++) z[i] += r.q[j] * k[j];
    }
#pragma unroll
    for (int i = 0; i < SETS; i++) {
#pragma unroll
        for (int n = 1; n < memory_room<D>::LANES; n *= 2) z[i] += __shfl_xor_sync(0xffffffffu, z[i], n);
        z[i] = row_of<D>(x.s, i) < p.rows ? z[i] * p.scale : -INFINITY;
        top = fmaxf(top, z[i]);
    }
    const float base = top == -INFINITY ? 0.0f : top, less = expf(r.top - base);
    r.top = top, r.sum *= less;
#pragma unroll
    for (int j = 0; j < WIDE; j++) r.acc[j] *= less;
#pragma unroll
    for (int i = 0; i < SETS; i++) {
        float v[WIDE];
        const float weight = expf(z[i] - base);
        load_wide(v, (const act *)&m.ring[x.at][1][i][reader<D>()]);
        r.sum += weight;
#pragma unroll
        for (int j = 0; j < WIDE; j++) r.acc[j] += weight * v[j];
        if (row_of<D>(x.s, i) + 1 != p.rows) continue; /* the new row stays */
        const int64_t at = slot_of(p, w, p.rows - 1) * D + own_column<D>();
        *(uint4 *)(p.k + at) = m.ring[x.at][0][i][reader<D>()];
        *(uint4 *)(p.v + at) = m.ring[x.at][1][i][reader<D>()];
    }
}
/* The gated read of a head: the groups' softmaxes, in order, with the sink. All readers. */
template <int D>
static __device__ __forceinline__ void join(struct memory_room<D> &m, const struct place &p,
                                            const struct reading &r) {
    typedef struct memory_room<D> room;
    float *mine = m.tale[reader<D>() / room::LANES], top = p.sink, less[room::TALES];
    meet(OF_READERS, room::READERS); /* the head before is done with */
    store_wide(mine + own_column<D>(), r.acc), store_wide(mine + own_column<D>() + 4, r.acc + 4);
    if (threadIdx.x % room::LANES == 0) mine[D] = r.top, mine[D + 1] = r.sum;
    meet(OF_READERS, room::READERS);
#pragma unroll
    for (int i = 0; i < room::TALES; i++) top = fmaxf(top, m.tale[i][D]);
    float sum = expf(p.sink - top);
#pragma unroll
    for (int i = 0; i < room::TALES; i++) {
        less[i] = expf(m.tale[i][D] - top); /* 0: no row */
        sum += less[i] * m.tale[i][D + 1];
    }
    for (int x = reader<D>(); x < D; x += room::READERS) {
        float acc = 0.0f;
#pragma unroll
        for (int i = 0; i < room::TALES; i++) acc += less[i] * m.tale[i][x];
        m.read[x] = acc / sum / (1.0f + expf(-p.gate));
    }
    meet(OF_READERS, room::READERS);
}

/* What follows, once the states' part is done. A warp. */
template <int D>
static __device__ __forceinline__ void finish(const struct cache_dev &c, const struct cache_finish &e,
                                              const struct place &p, const float *read, barrier_at done) {
    enum { N = D / 32 };
    const int lane = threadIdx.x % 32;
    const int64_t row = (int64_t)p.row * c.a.HV + p.h;
    float y[N], z[N], norm[N], score = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int x = lane + 32 * i;
        z[i] = e.z ? f32(e.z[(int64_t)p.row * e.ld + p.h * D + x]) : 0.0f, norm[i] = e.norm[x];
    }
    barrier_wait(done, 0);
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = __ldcg(e.o + row * D + lane + 32 * i);
    for (int i = lane; p.rows && i < e.tiles; i += 32) score += __ldcg(e.sums + row * e.tiles + i);
    score = warp_sum(score);
    if (p.rows && lane == 0) {
        const struct memory m = memory_of(c, c.rows.seg[p.session], p.h);
        m.score[slot_of(p, (int)c.a.window, p.rows - 1)] = by_score(c) ? sqrtf(score) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (p.rows) y[i] += read[lane + 32 * i];
        squares += y[i] * y[i];
    }
    const float factor = rsqrtf(warp_sum(squares) / (float)D + e.eps);
#pragma unroll
    for (int i = 0; i < N; i++) {
        y[i] *= factor * norm[i];
        put(panel_at(e.y, p.row, p.h * D + lane + 32 * i), e.z ? y[i] * silu(z[i]) : y[i]);
    }
}

/* All heads of the block. */
template <int D>
static __device__ __forceinline__ void read_heads(const struct cache_dev &c, const struct cache_finish &e,
                                                  struct memory_room<D> &m, barrier_at done, int own) {
    typedef struct memory_room<D> room;
    const int w = (int)c.a.window;
    struct stage now = {}, next = {};
    if (reader<D>() < own) find_head<D>(c, m.place[reader<D>()], head_of_block(reader<D>()));
    meet(OF_READERS, room::READERS);
    wait_for_others();
    __syncthreads(); /* q, k and v */
    uint4 q = make_uint4(0, 0, 0, 0), then = q;
    if (c.a.chunk > 0) then = __ldcg((const uint4 *)(m.place[0].q + own_column<D>()));
    for (int i = 0; i < DEPTH; i++) bring_rows<D>(m, next, own, w);
    for (int n = 0; n < own; n++) {
        const struct place &p = m.place[n];
        struct reading r = {};
        r.top = -INFINITY, q = then;
        if (n + 1 < own && p.rows) then = __ldcg((const uint4 *)(m.place[n + 1].q + own_column<D>()));
        load_wide(r.q, (const act *)&q);
        for (now.n = n, now.s = 0; now.s < p.stages; now.s++, now.at = (now.at + 1) % DEPTH) {
            copy_wait<DEPTH - 1>();
            read_rows<D>(r, m, p, now, w);
            bring_rows<D>(m, next, own, w);
        }
        if (p.rows) join<D>(m, p, r);
        if (reader<D>() / 32 == n % room::WARPS) finish<D>(c, e, p, m.read, barrier_number(done, n));
    }
    copy_wait<0>();
}

template <int D>
static __global__ void __launch_bounds__(memory_room<D>::STATES + memory_room<D>::READERS,
                                         SM_THREADS / memory_room<D>::STATES)
    step_memory(const struct many_prepare p, const struct gdn_step a, const struct cache_dev c,
                const struct cache_finish e, int heads, bool first) {
    typedef struct memory_room<D> room;
    room &m = *(room *)shared_memory();
    const barrier_at done = barriers_of(m.done);
    const int own = heads_of_block(heads);
    open_some();
    if (first) wait_for_others(); /* the sessions */
    if ((int)threadIdx.x < own) barrier_open_warps(barrier_number(done, threadIdx.x), 1);
    __syncthreads();
    let_others_start();
    if (threadIdx.x < room::STATES) {
        const struct states_team<D> team = { m, done };
        const int units = p.units ? 3 * own : 0, tiles = own * team.TILES;
        struct prepared<D> x;
        int row = 0;
        if ((int)threadIdx.x / 32 < units) find_unit<D>(x, &row, p, threadIdx.x / 32);
        begin_tiles<D, TILE_COLS>(a, m.state, team, tiles);
        wait_for_others();
        const int last = (int)threadIdx.x - (room::STATES - 32);
        if (last >= 0 && last < tiles) find_gates(a, &m.state.place[last], m.state.place[last].row);
        prepare<D>(p, m, x, row, units);
        if (!p.units) take<D>(a, m, own);
        __syncthreads();
        walk_tiles<D, TILE_COLS>(a, m.state, team, tiles);
    } else read_heads<D>(c, e, m, done, own);
    __syncthreads(); /* the rows' room; the scores */
    for (int n = 0; n < own; n++) {
        const struct place &x = m.place[n];
        if (c.a.window > 0 && x.rows && x.rows - x.kept == (int)c.a.chunk)
            merge_full<D>(c, c.rows.seg[x.session], x.h, (char *)&m.state);
        __syncthreads();
    }
}

template <int D>
static void run(struct hl_cuda *cuda, const struct many_prepare *p, const struct gdn_step *a,
                const struct cache_dev *c, const struct cache_finish *e, bool first) {
    typedef struct memory_room<D> room;
    const int heads = (int)(c->a.rows->n * c->a.HV), few = (heads + room::HEADS - 1) / room::HEADS;
    const int most = SM_THREADS / room::STATES * hl_cuda_sms(cuda), grid = max(min(heads, most), few);
    const size_t chooser = offsetof(room, state) + (size_t)chooser_bytes(&c->a),
                 shared = chooser > sizeof(room) ? chooser : sizeof(room);
    launch_early(cuda, step_memory<D>, (unsigned)grid, room::STATES + room::READERS, shared + SOME_ROOM, *p,
                 *a, *c, *e, heads, first);
}
void HL_OP(memory_step)(struct hl_cuda *cuda, const struct many_prepare *p, const struct gdn_step *a,
                        const struct cache_dev *c, const struct cache_finish *e, bool first) {
    if (c->a.K == 64) run<64>(cuda, p, a, c, e, first);
    if (c->a.K == 128) run<128>(cuda, p, a, c, e, first);
    if (c->a.K == 256) run<256>(cuda, p, a, c, e, first);
}
#endif
