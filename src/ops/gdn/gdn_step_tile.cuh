/* gdn_step_tile.cuh -- decoding: a team of threads that processes the tiles of the sessions' states in sequence
 * (docs/math.md, "The delta rule", step). The team is a block of gdn_step_cuda.cu, or most of one in
 * src/fused/decode_batch.
 *
 * A tile is COLS columns of one value head's state, read from memory once and written once for any number of tokens; a
 * thread holds 4 adjacent columns of ROWS adjacent rows. The read after the write
 * needs no second pass:  q^T S_t = alpha q^T S_{t-1} + (q.k) beta e,  so a token costs one sum over the
 * threads.
 *
 * Memory bandwidth is the limit, so loads are always in flight: the next SLOTS tiles are being copied to a ring in
 * shared memory, where a thread reads only what it has copied itself; the first of them before pdl_wait. A row of the
 * next tile is read and summed while a row of the current one is stored, since stores take as long as everything else.
 * q, k and v of a tile are loaded two tiles ahead, and before the copies, so that they do not queue behind them. */
#ifndef HL_GDN_STEP_TILE_CUH
#define HL_GDN_STEP_TILE_CUH
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_cuda.cuh"
#include "ops/gdn/gdn_step_cuda.cuh"

enum { ROWS = 8, SLOTS = 2, KNOWN = 64, SM_THREADS = 512 };

struct tile_place {
    float *state;
    int row, len, hv, column;
    float alpha, beta; /* of the current token */
};
template <int K, int COLS> struct step_tile { /* the team's shared memory */
    enum { QUADS = COLS / 4, THREADS = K / ROWS * QUADS, WARPS = THREADS / 32 };
    float4 ring[SLOTS][ROWS][THREADS];
    struct tile_place place[KNOWN];       /* location of the team's tile n: n % KNOWN */
    float warp_sums[WARPS][2 * COLS + 4]; /* k^T S, q^T S, q.k, summed over a warp's rows */
    float all[2 * COLS + 4];
};

/* N activations, not converted: conversion would stall on a load that is issued early. */
template <int N> struct acts {
    uint32_t w[N * sizeof(act) / 4];
    __device__ __forceinline__ void fetch(const act *p) {
        if constexpr (sizeof w == 8) *(uint2 *)w = *(const uint2 *)p;
        else
#pragma unroll
            for (int i = 0; i < (int)sizeof w / 16; i++) ((uint4 *)w)[i] = ((const uint4 *)p)[i];
    }
    __device__ __forceinline__ float operator[](int i) const {
        return sizeof(act) == 4 ? __uint_as_float(w[i]) : i % 2 ? high(w[i / 2]) : low(w[i / 2]);
    }
};
/* A thread's inputs for a token. */
struct token {
    __align__(16) struct acts<ROWS> k, q;
    __align__(16) struct acts<4> v;
};
static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
/* alpha and beta of a token of the tile. One thread; a barrier must follow. */
static __device__ __forceinline__ void find_gates(const struct gdn_step &a, struct tile_place *p, int64_t row) {
    const int hv = p->hv;
    const int64_t b = row * a.HV + hv;
    if (a.raw) {
        p->alpha = a.a ? expf(-expf(a.A_log[hv]) * softplus(f32(a.a[row * a.ld + hv]) + a.dt_bias[hv])) : 1.0f;
        p->beta = a.b ? a.beta_scale * sigmoid(f32(a.b[row * a.ld + hv])) : 1.0f;
    } else p->alpha = a.g ? expf(a.g[b]) : 1.0f, p->beta = a.beta[b];
}

/* x: k^T S, q^T S and q.k of the thread's rows. Their sums over all threads go to m.all, in a fixed order. */
template <int K, int COLS, class TEAM>
static __device__ __forceinline__ void sum_rows(struct step_tile<K, COLS> &m, const TEAM &team, float x[9]) {
    typedef struct step_tile<K, COLS> tile;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = tile::QUADS; n < 32; n *= 2)
#pragma unroll
        for (int j = 0; j < 9; j++) x[j] += __shfl_xor_sync(0xffffffffu, x[j], n);
    if (lane < tile::QUADS) {
        *(float4 *)(m.warp_sums[warp] + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)(m.warp_sums[warp] + COLS + 4 * lane) = make_float4(x[4], x[5], x[6], x[7]);
        if (lane == 0) m.warp_sums[warp][2 * COLS] = x[8];
    }
    team.sync();
    for (int i = threadIdx.x; i <= 2 * COLS; i += tile::THREADS) {
        float s = m.warp_sums[0][i];
#pragma unroll
        for (int w = 1; w < tile::WARPS; w++) s += m.warp_sums[w][i];
        m.all[i] = s;
    }
    team.sync();
}

/* x: the contribution of a row of four columns to k^T S, q^T S and q.k */
static __device__ __forceinline__ void add_row(float x[9], const float4 &S, float k, float q) {
    x[0] += k * S.x, x[1] += k * S.y, x[2] += k * S.z, x[3] += k * S.w;
    x[4] += q * S.x, x[5] += q * S.y, x[6] += q * S.z, x[7] += q * S.w;
    x[8] += q * k;
}
/* Applies a token to the rows: S = alpha S + k r^T. */
struct change {
    float alpha, r[4];
    __device__ __forceinline__ void apply(float4 &S, float k) const {
        S.x = alpha * S.x + k * r[0], S.y = alpha * S.y + k * r[1];
        S.z = alpha * S.z + k * r[2], S.w = alpha * S.w + k * r[3];
    }
};
/* One token of tile n, from the thread's sums x: out and the sums of squares go to memory, or to staged_out.
 * All threads. */
template <int K, int COLS, class TEAM>
static __device__ __forceinline__ struct change step_token(const struct gdn_step &a, struct step_tile<K, COLS> &m,
                                                           const TEAM &team, const struct token &y,
                                                           const struct tile_place &p, int n, int64_t row, float x[9]) {
    typedef struct step_tile<K, COLS> tile;
    const int quad = threadIdx.x % tile::QUADS, column = p.column + 4 * quad;
    const int64_t b = row * a.HV + p.hv;
    const float scale = 1.0f / sqrtf((float)K);
    float sum = 0.0f, *near = team.staged_out(n);
    sum_rows<K, COLS>(m, team, x);
    const float beta = p.beta;
    struct change c = {p.alpha};
    const float4 kS = *(const float4 *)(m.all + 4 * quad), qS = *(const float4 *)(m.all + COLS + 4 * quad);
    const float kept[4] = {kS.x, kS.y, kS.z, kS.w}, read[4] = {qS.x, qS.y, qS.z, qS.w}, qk = m.all[2 * COLS];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float e = y.v[j] - c.alpha * kept[j];
        c.r[j] = beta * e;
        const float s = a.score == HL_SCORE_RESIDUAL ? e : a.score == HL_SCORE_VALUE ? beta * y.v[j] : c.r[j];
        sum += s * s;
        const float o = scale * (c.alpha * read[j] + qk * c.r[j]);
        if (threadIdx.x < tile::QUADS && near) near[column + j] = o;
        else if (threadIdx.x < tile::QUADS) put(a.out + b * a.V + column + j, o);
    }
    if (threadIdx.x < 32) { /* adjacent lanes have adjacent columns */
#pragma unroll
        for (int i = 1; i < GDN_STEP_COLS / 4; i *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
        const int at = column / GDN_STEP_COLS;
        if (threadIdx.x < tile::QUADS && column % GDN_STEP_COLS == 0)
            *(near ? near + K + at : a.sums + at * a.T * a.HV + b) = sum;
    }
    return c;
}

/* Locations of `many` of the team's tiles from n on, one by thread t; a barrier must follow. */
template <int K, int COLS, class TEAM>
static __device__ __forceinline__ void locate_tiles(const struct gdn_step &a, struct step_tile<K, COLS> &m,
                                                    const TEAM &team, int t, int n, int many, int own) {
    const int tiles = a.V / COLS, w = team.number(n + t);
    if (t < 0 || t >= many || n + t >= own) return;
    const struct hl_seg seg = a.seg[w / tiles / a.HV];
    struct tile_place *p = &m.place[(n + t) % KNOWN];
    p->row = (int)seg.row, p->len = (int)seg.len, p->hv = w / tiles % a.HV, p->column = w % tiles * COLS;
    p->state = (float *)(seg.state + a.S_off) + (int64_t)p->hv * K * a.V + p->column;
}
/* alpha and beta of their first tokens */
template <int K, int COLS>
static __device__ __forceinline__ void find_first_gates(const struct gdn_step &a, struct step_tile<K, COLS> &m, int n,
                                                        int many, int own) {
    struct tile_place *p = &m.place[(n + threadIdx.x) % KNOWN];
    if ((int)threadIdx.x < many && n + (int)threadIdx.x < own) find_gates(a, p, p->row);
}

/* Starts the copy of the team's tile n. */
template <int K, int COLS>
static __device__ __forceinline__ void bring_tile(const struct gdn_step &a, struct step_tile<K, COLS> &m, int n,
                                                  int at) {
    const float *from = m.place[n % KNOWN].state + at;
#pragma unroll
    for (int i = 0; i < ROWS; i++) copy_async(&m.ring[n % SLOTS][i][threadIdx.x], from + i * a.V);
}
/* The same if it exists, else a copy of what the team reads after its tiles; a commit group in any case. */
template <int K, int COLS, class TEAM>
static __device__ __forceinline__ void load_tile(const struct gdn_step &a, struct step_tile<K, COLS> &m,
                                                 const TEAM &team, int n, int own, int at) {
    if (n < own) bring_tile<K, COLS>(a, m, n, at);
    else team.load_next(n - own, n % SLOTS);
    copy_commit();
}
/* Starts loading token t of tile n, if it exists. */
template <int K, int COLS, class TEAM>
static __device__ __forceinline__ void ask(struct token &x, const struct gdn_step &a, const TEAM &team,
                                           const struct step_tile<K, COLS> &m, int n, int own, int t) {
    typedef struct step_tile<K, COLS> tile;
    if (n >= own) return;
    const struct tile_place &p = m.place[n % KNOWN];
    team.fetch(x, a, p, n, t, K, threadIdx.x / tile::QUADS * ROWS, p.column + threadIdx.x % tile::QUADS * 4);
}

/* TEAM:
 *   number(n)            of the team's tile n among all tiles, segments slowest, columns fastest
 *   sync()               a barrier of the team
 *   fetch()              loads this thread's share of token t of tile n
 *   staged_out(n)          shared memory for out (V numbers of its head, K = V) and the sums; NULL: global
 *   done(n)              called when some threads of the first warp have stored the results of tile n
 *   load_next(n, slot)  starts copy number n after the tiles, into a slot of the ring
 *   TOKENS               1: of every segment       GATED   alpha and beta of all tiles are there already */
template <int K, int COLS> static __device__ __forceinline__ int place_in_tile(const struct gdn_step &a) {
    typedef struct step_tile<K, COLS> tile;
    return threadIdx.x / tile::QUADS * ROWS * a.V + threadIdx.x % tile::QUADS * 4;
}
/* Before pdl_wait: the previous kernel does not write states. */
template <int K, int COLS, class TEAM>
static __device__ __forceinline__ void begin_tiles(const struct gdn_step &a, struct step_tile<K, COLS> &m,
                                                   const TEAM &team, int own) {
    locate_tiles<K, COLS>(a, m, team, threadIdx.x, 0, KNOWN * 3 / 4, own);
    team.sync();
    for (int i = 0; i < SLOTS; i++) load_tile<K, COLS>(a, m, team, i, own, place_in_tile<K, COLS>(a));
}
/* All tiles of the team, which consists of the first threads of the block. */
template <int K, int COLS, class TEAM>
static __device__ __forceinline__ void step_tiles(const struct gdn_step &a, struct step_tile<K, COLS> &m,
                                                  const TEAM &team, int own) {
    const int at = place_in_tile<K, COLS>(a);
    struct token now, next, then;
    float4 S[ROWS] = {};
    float x[9] = {0.0f};
    ask<K, COLS>(now, a, team, m, 0, own, 0);
    ask<K, COLS>(next, a, team, m, 1, own, 0);
    if (!TEAM::GATED) find_first_gates<K, COLS>(a, m, 0, KNOWN * 3 / 4, own);
    copy_wait<SLOTS - 1>();
#pragma unroll
    for (int i = 0; i < ROWS; i++) S[i] = m.ring[0][i][threadIdx.x], add_row(x, S[i], now.k[i], now.q[i]);
    load_tile<K, COLS>(a, m, team, SLOTS, own, at);
    for (int n = 0; n < own; n++) {
        struct tile_place &p = m.place[n % KNOWN];
        struct change c = {1.0f};
        for (int t = 0; t < (TEAM::TOKENS == 1 ? 1 : p.len); t++) {
            if (t) {
                const struct token was = now;
                team.sync(); /* all have read alpha and beta */
                if (threadIdx.x == 0) find_gates(a, &p, p.row + t);
                ask<K, COLS>(now, a, team, m, n, own, t);
#pragma unroll
                for (int i = 0; i < 9; i++) x[i] = 0.0f;
#pragma unroll
                for (int i = 0; i < ROWS; i++) c.apply(S[i], was.k[i]), add_row(x, S[i], now.k[i], now.q[i]);
            }
            c = step_token<K, COLS>(a, m, team, now, p, n, p.row + t, x);
        }
        team.done(n);
        ask<K, COLS>(then, a, team, m, n + 2, own, 0);
        if (n % (KNOWN / 2) == 0 && n) { /* places of finished tiles are overwritten */
            locate_tiles<K, COLS>(a, m, team, threadIdx.x, n + KNOWN / 4, KNOWN / 2, own);
            find_first_gates<K, COLS>(a, m, n + KNOWN / 4, KNOWN / 2, own);
        }
        copy_wait<SLOTS - 1>();
#pragma unroll
        for (int i = 0; i < 9; i++) x[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) { /* a row of this tile is stored, one of the next is read */
            c.apply(S[i], now.k[i]);
            __stcs((float4 *)(p.state + at + i * a.V), S[i]); /* not read again soon */
            if (n + 1 < own) S[i] = m.ring[(n + 1) % SLOTS][i][threadIdx.x], add_row(x, S[i], next.k[i], next.q[i]);
        }
        load_tile<K, COLS>(a, m, team, n + 1 + SLOTS, own, at);
        now = next, next = then;
    }
}

#endif
