/* mixer_step.cuh -- the two memories in a decoding step, second part: the delta rule and the cache's read,
 * then scores and the merge of full blocks.
 *
 * A block owns COLS columns of a value head: of the state, which it reads and writes once (the read after the
 * write needs no second pass, see gdn_step_cuda.cu), and of the cache's values, so that nothing but the
 * logits is exchanged between blocks. Lane (r, c) of a warp has column c of every fourth pair of rows. q and k come as
 * they are: their norms' factors belong to whole rows and come in with the sums. */
#ifndef HL_DECODE_STATE_CUH
#define HL_DECODE_STATE_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/weight_stream.cuh"

/* Shared floats of a task: [WARPS][2][COLS] parts of the state times k and q, [WARPS][4] of q.q, k.k, q.k and the
 * new slot's logit, [WARPS][2 + COLS] of the cache's read, then these. */
enum {
    NORMS = WARPS * 2 * COLS,
    READS = NORMS + WARPS * 4,
    READ_PART = 2 + COLS,
    ALPHA = READS + WARPS * READ_PART,
    BETA,
    NEWEST, /* logit */
    VALUES = ALPHA + 4,
    WRITE = VALUES + COLS,
    READ = WRITE + COLS,
    SMALL = READ + COLS
};
static_assert((int)SMALL <= (int)QUERY, "decode_look.cuh");
/* who does what only one warp can do; the first ones have logits to find. The one of the rule reads no slots. */
enum { GATES = WARPS - 2, RULE };
static_assert(RULE == HL_DECODE_WARPS - 1, "the others are the first ones");

/* Sum over the 4 lanes of a column. */
static __device__ __forceinline__ float over_column(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}
static __device__ __forceinline__ float softplus(float x) {
    const float e = __expf(x);
    return x > 20.0f ? x : e < 0.02f ? e - e * e * (0.5f - e * (1.0f / 3.0f)) : __logf(1.0f + e);
}

/* Decay, write strength and the tile's values, by lanes of one warp: asked for before the state is met, */
template <class D>
static __device__ __forceinline__ const uint64_t *gates_at(const D &a, const struct block &b,
                                                           const struct task &p) {
    const uint64_t *words = b.now + p.m * a.row;
    const int i = b.lane;
    if (i == 0 && a.decay) return words + a.w_ab + p.h;
    if (i == 1 && a.beta) return words + a.w_ab + a.HV + p.h;
    return i >= 4 && i < 8 ? words + a.w_in + a.qk + (p.h * a.V + p.part * COLS) / 2 + i - 4 : NULL;
}
/* ... and taken behind it. */
template <class D>
static __device__ __forceinline__ void put_gates(const D &a, const struct block &b, int l,
                                                 const struct task &p, const uint64_t *from, uint64_t word,
                                                 float *small) {
    const int i = b.lane;
    if (i >= 8) return;
    if (from && !fresh(word, b.number + l)) word = take_one(from, b.number + l);
    const uint32_t v = (uint32_t)word;
    const float *s = scalars_of(a, b, l, p.h), x = __uint_as_float(v);
    if (i == 0) small[ALPHA] = a.decay ? __expf(-s[DECAY] * softplus(x + s[BIAS])) : 1.0f;
    if (i == 1) small[BETA] = a.beta ? a.top * __fdividef(1.0f, 1.0f + __expf(-x)) : 1.0f;
    if (i < 4) return;
    small[VALUES + 2 * (i - 4)] = low(v), small[VALUES + 2 * (i - 4) + 1] = high(v);
    if (a.cache) ((uint32_t *)(values_at(a, b, l, p) + filled_of(a, b, p.m).fresh * a.V))[i - 4] = v;
}

/* This lane's column of pairs of rows of the state, and k there. */
enum { HELD = 256 / WARPS / 8 };
struct held {
    float2 S[HELD], k[HELD];
};
/* The state times k and q, in parts. Two sums that are spread over lanes at once: of each half of them one. */
template <class D>
static __device__ __forceinline__ void meet_state(const D &a, const struct block &b, const struct pair &mine,
                                                  struct held &y, float *small) {
    const int r = b.lane / COLS, pairs = a.rows / 2;
    const float *S = (const float *)(b.shared + a.s.S) + (b.warp * a.rows + 2 * r) * COLS + b.lane % COLS;
    float sk = 0.0f, sq = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        y.S[i] = make_float2(0.0f, 0.0f);
        if (i * 4 + r < pairs) y.S[i] = make_float2(S[i * 8 * COLS], S[i * 8 * COLS + COLS]);
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const uint32_t q = __shfl_sync(0xffffffffu, mine.word, i * 4 + r),
                       k = __shfl_sync(0xffffffffu, mine.word, 16 + i * 4 + r);
        y.k[i] = make_float2(low(k), high(k));
        sk += y.k[i].x * y.S[i].x + y.k[i].y * y.S[i].y;
        sq += low(q) * y.S[i].x + high(q) * y.S[i].y;
    }
    sk = (r % 2 ? sq : sk) + __shfl_xor_sync(0xffffffffu, r % 2 ? sk : sq, 8);
    sk += __shfl_xor_sync(0xffffffffu, sk, 16);
    if (b.lane < 2 * COLS) small[b.warp * 2 * COLS + b.lane] = sk;
    const bool upper = b.lane >= 16, odd = b.lane & 8;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, mine.word, 16), q = upper ? other : mine.word,
                   k = upper ? mine.word : other;
    const float x0 = low(q) * low(k), x1 = high(q) * high(k);
    const float u = upper ? x0 + x1 : square(q),
                t = upper ? x0 * mine.q_norm.x * mine.k_norm.x + x1 * mine.q_norm.y * mine.k_norm.y
                          : square(k);
    float s = (odd ? t : u) + __shfl_xor_sync(0xffffffffu, odd ? u : t, 8);
    for (int n = 1; n < 8; n *= 2) s += __shfl_xor_sync(0xffffffffu, s, n);
    if (b.lane % 8 == 0) small[NORMS + b.warp * 4 + b.lane / 8] = s;
}
/* What is written and read, by one warp; a lane of a column adds a quarter of the parts. */
template <class D>
static __device__ __forceinline__ void delta_rule(const D &a, const struct block &b, int l,
                                                  const struct task &p, float *small) {
    const int c = b.lane % COLS, first = b.lane / COLS * 2;
    const float *part = small + first * 2 * COLS + c;
    const float4 n0 = *(const float4 *)(small + NORMS + first * 4),
                 n1 = *(const float4 *)(small + NORMS + first * 4 + 4);
    const float alpha = small[ALPHA], beta = small[BETA], v = small[VALUES + c];
    const float qq = over_column(n0.x + n1.x), kk = over_column(n0.y + n1.y),
                rq = fast_rsqrt(qq + (float)HL_L2_EPS), rk = fast_rsqrt(kk + (float)HL_L2_EPS),
                qk = rq * rk * over_column(n0.z + n1.z), new_dot = over_column(n0.w + n1.w);
    const float sk = rk * over_column(part[0] + part[2 * COLS]),
                sq = rq * over_column(part[COLS] + part[3 * COLS]);
    const float e = v - alpha * sk, write = beta * e, read = alpha * sq + qk * write;
    const enum hl_score_kind kind = a.policy.score;
    const float s = kind == HL_SCORE_RESIDUAL ? e : kind == HL_SCORE_VALUE ? beta * v : write;
    if (b.lane < COLS) small[WRITE + c] = rk * write, small[READ + c] = read * rsqrtf((float)a.K);
    if (b.lane == 0 && a.cache)
        small[NEWEST] = new_dot * factor_of(a, qq) * factor_of(a, kk) * scalars_of(a, b, l, p.h)[SCALE];
    float squares = s * s;
    for (int n = 1; n < COLS; n *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, n);
    if (b.lane == 0 && a.cache)
        give(a.words + a.scores + ((l * ROWS + p.m) * a.HV + p.h) * a.tiles + p.part,
             __float_as_uint(squares), b.number + l);
}

/* ---- the cache's read ---- */

/* Of 8 numbers of each lane the sums over all lanes: number lane / 4. */
static __device__ __forceinline__ float sums_of_eight(int lane, float (&y)[8]) {
#pragma unroll
    for (int n = 4; n > 0; n /= 2) {
        const bool upper = lane & 4 * n;
#pragma unroll
        for (int i = 0; i < n; i++)
            y[i] = (upper ? y[i + n] : y[i]) + __shfl_xor_sync(0xffffffffu, upper ? y[i] : y[i + n], 4 * n);
    }
    y[0] += __shfl_xor_sync(0xffffffffu, y[0], 2);
    return y[0] + __shfl_xor_sync(0xffffffffu, y[0], 1);
}
/* The read over this warp's slots, in parts: the largest logit, the sum of weights relative to it, the weighted
 * values. A lane has pairs of neighbouring slots. */
template <class D>
static __device__ __forceinline__ void read_slots(const D &a, const struct block &b, int l,
                                                  const struct task &p, float *small) {
    enum { N = D::each, EACH = (2 * N + 31) / 32 }; /* pairs of a lane */
    const struct filled f = filled_of(a, b, p.m);
    const uint64_t *words = b.now + p.m * a.row + a.w_z + p.h * a.even_slots;
    const uint32_t number = b.number + l;
    uint4 v[EACH][2];
    struct two w[EACH];
    bool need[EACH][2];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int pair = i * 32 + b.lane, slot = b.warp * 4 * N + 2 * pair;
        w[i].x = w[i].y = 0;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            need[i][k] = pair < 2 * N && old_slot(a, f, slot + k);
            v[i][k] = make_uint4(0, 0, 0, 0);
            if (need[i][k]) v[i][k] = *(const uint4 *)(b.shared + a.s.v + (slot + k) * (COLS * 2));
        }
    }
    words += b.warp * 4 * N + 2 * b.lane;
    for (;;) {
        bool there = true;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if ((need[i][0] && !fresh(w[i].x, number)) || (need[i][1] && !fresh(w[i].y, number)))
                w[i] = look_two(words + i * 64);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            there = there && (!need[i][0] || fresh(w[i].x, number)) && (!need[i][1] || fresh(w[i].y, number));
        if (all_lanes(there)) break;
        look_again();
    }
    float z[EACH][2], y[COLS] = {}, top = -1e30f, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        z[i][0] = need[i][0] ? __uint_as_float((uint32_t)w[i].x) : -INFINITY;
        z[i][1] = need[i][1] ? __uint_as_float((uint32_t)w[i].y) : -INFINITY;
        top = fmaxf(top, fmaxf(z[i][0], z[i][1]));
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float s = __expf(z[i][k] - top);
            const uint32_t c[4] = {v[i][k].x, v[i][k].y, v[i][k].z, v[i][k].w};
            sum += s;
#pragma unroll
            for (int e = 0; e < 4; e++) y[2 * e] += s * low(c[e]), y[2 * e + 1] += s * high(c[e]);
        }
    sum = warp_sum(sum);
    const float all = sums_of_eight(b.lane, y);
    float *part = small + READS + b.warp * READ_PART;
    if (b.lane == 0) part[0] = top, part[1] = sum;
    if (b.lane % 4 == 0) part[2 + b.lane / 4] = all;
}
static_assert(COLS == 8, "sums_of_eight");
/* All parts, the new slot and the sink together, by one warp: 4 lanes a column, each with 2 warps' parts. */
template <class D>
static __device__ __forceinline__ float read_cache(const D &a, const struct block &b, int l,
                                                   const struct task &p, const float *small) {
    const float *s = scalars_of(a, b, l, p.h), *part = small + READS + b.lane / COLS * 2 * READ_PART;
    const float newest = small[NEWEST];
    float top = fmaxf(s[SINK], newest), sum, y;
    const bool both = b.lane / COLS * 2 + 1 < RULE;
    const float t0 = part[0], t1 = both ? part[READ_PART] : -1e30f;
    top = fmaxf(top, fmaxf(t0, t1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 8));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 16));
    const float share = __expf(t0 - top);
    sum = share * part[1], y = share * part[2 + b.lane % COLS];
    if (both) {
        const float other = __expf(t1 - top);
        sum += other * part[READ_PART + 1], y += other * part[READ_PART + 2 + b.lane % COLS];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 8), y += __shfl_xor_sync(0xffffffffu, y, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16), y += __shfl_xor_sync(0xffffffffu, y, 16);
    const float w = __expf(newest - top);
    y += w * small[VALUES + b.lane % COLS];
    return __fdividef(s[LAMBDA] * y, sum + w + __expf(s[SINK] - top));
}

/* The new token's key: normed, rounded as activations are, to its slot. */
template <class D>
static __device__ __forceinline__ void keep_key(const D &a, const struct block &b, int l,
                                                const struct task &p) {
    enum { EACH = 4 }; /* K <= 256 */
    const int n = (a.K / 2 - b.lane + 31) / 32;
    const float2 *gamma = (const float2 *)layer_of(a, b, l).k_norm + b.lane;
    uint32_t *place = (uint32_t *)(cache_of(a, b, l, p).k + filled_of(a, b, p.m).fresh * a.K) + b.lane;
    uint32_t v[EACH];
    float s = 0.0f;
    const uint64_t *words = b.now + p.m * a.row + a.w_in + (a.qk + p.h / a.group * a.K) / 2 + b.lane;
    if (D::sparing) take_missing(v, words, 32, n, b.number + l);
    else take<EACH>(v, words, 32, n, b.number + l);
#pragma unroll
    for (int e = 0; e < EACH; e++) s += low(v[e]) * low(v[e]) + high(v[e]) * high(v[e]);
    const float r = factor_of(a, warp_sum(s));
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (e >= n) continue;
        const float2 y = a.rms ? gamma[e * 32] : make_float2(1.0f, 1.0f);
        place[e * 32] = pack2(r * low(v[e]) * y.x, r * high(v[e]) * y.y);
    }
}

/* A task of both memories; the logits are on their way; mine: take_rows(). */
template <class D>
static __device__ __forceinline__ void remember(const D &a, const struct block &b, int l,
                                                const struct task &p, const struct pair &mine) {
    float *small = (float *)(b.shared + a.s.small);
    struct held y;
    const uint64_t *gates = b.warp == GATES ? gates_at(a, b, p) : NULL, word = gates ? look(gates) : 0;
    meet_state(a, b, mine, y, small);
    if (b.warp == GATES) put_gates(a, b, l, p, gates, word, small);
    if (b.warp == RULE) {
        named_barrier_sync<2, THREADS>();
        delta_rule(a, b, l, p, small);
    } else {
        __syncwarp();
        named_barrier_arrive<2, THREADS>();
        if (a.cache) read_slots(a, b, l, p, small);
    }
    sync_block();
    if (b.warp == 0) {
        const float o = small[READ + b.lane % COLS] + (a.cache ? read_cache(a, b, l, p, small) : 0.0f),
                    other = __shfl_xor_sync(0xffffffffu, o, 1);
        if (b.lane < COLS && b.lane % 2 == 0)
            give(b.now + p.m * a.row + a.w_o + swapped((p.h * a.V + p.part * COLS + b.lane) / 2),
                 pack2(o, other), b.number + l);
    }
    const float alpha = small[ALPHA], w = small[WRITE + b.lane % COLS];
    float *S = state_at(a, b, l, p) + (b.warp * a.rows + b.lane / COLS * 2) * a.V + b.lane % COLS;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        if (i * 4 + b.lane / COLS >= a.rows / 2) continue;
        S[i * 8 * a.V] = alpha * y.S[i].x + y.k[i].x * w;
        S[i * 8 * a.V + a.V] = alpha * y.S[i].y + y.k[i].y * w;
    }
    if (a.cache && p.part == 0 && b.warp == GATES) keep_key(a, b, l, p);
}

/* A task that was not fetched ahead. */
template <int part, class D>
static __device__ __forceinline__ void fetch_now(const D &a, const struct block &b, int l,
                                                 const struct task &p) {
    sync_block(); /* the last one's numbers are no longer in use */
    if (part) fetch_tile(a, b, l, p, threadIdx.x, THREADS);
    else fetch_keys(a, b, l, p, threadIdx.x, THREADS);
    copy_commit();
    copy_wait<0>();
    sync_block();
}
/* The two memories of a layer: all logits first, then the rest. The emulated device does them in two launches. */
template <class D>
static __device__ __forceinline__ void memories(const D &a, struct block &b, int l, bool first, bool second) {
    const bool ahead = has_task(a, b);
    const int looks = first ? a.M * a.HV * a.shares : 0, tiles = second ? a.M * a.HV * a.tiles : 0;
    bool have = false; /* what the tile needs of q and k came with its block's logits */
    struct pair mine = {};
    if (ahead) mbarrier_wait(tasks_full(a, b), b.tasks);
#pragma unroll 1
    for (int t = blockIdx.x; t < looks; t += gridDim.x) {
        const struct task p = t == (int)blockIdx.x ? b.look : task_at(a, t, a.shares);
        if (!D::once && t >= (int)gridDim.x) fetch_now<0>(a, b, l, p);
        mine = look_up(a, b, l, p);
        have = D::once && p.h == b.tile.h;
        if (D::once) break;
    }
#pragma unroll 1
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
        const struct task p = t == (int)blockIdx.x ? b.tile : task_at(a, t, a.tiles);
        if (!D::once && t >= (int)gridDim.x) fetch_now<1>(a, b, l, p);
        if (!have) mine = take_rows(a, b, l, p);
        remember(a, b, l, p, mine);
        if (D::once) break;
    }
    if (!ahead) return;
    mbarrier_arrive_warp(tasks_empty(a, b), b.lane);
    b.tasks ^= 1;
}

/* ---- after the layers ---- */

/* The scores of the new tokens, from the parts that the tiles left. One warp of a block. */
template <class D> static __device__ __forceinline__ void put_scores(const D &a, const struct block &b) {
    const bool ranked = a.policy.score != HL_SCORE_NONE;
    for (int t = blockIdx.x; t < a.L * a.M * a.HV; t += gridDim.x) {
        const int l = t / (a.M * a.HV);
        const struct task p = task_at(a, t % (a.M * a.HV), 1);
        const uint64_t *words = a.words + a.scores + ((l * ROWS + p.m) * a.HV + p.h) * a.tiles;
        float s = 0.0f;
        for (int i = b.lane; i < a.tiles; i += 32) s += __uint_as_float(take_one(words + i, b.number + l));
        s = warp_sum(s);
        if (b.lane == 0) cache_of(a, b, l, p).score[filled_of(a, b, p.m).fresh] = ranked ? sqrtf(s) : 0.0f;
    }
}

template <class D> static __device__ __forceinline__ bool any_full(const D &a, const struct block &b) {
    bool any = false;
    for (int m = 0; m < a.M && a.cache && a.window > 0; m++)
        any = any || filled_of(a, b, m).fresh == a.slots - 1;
    return any;
}
/* kept = top_w(kept + block) where a block is full: a thread block per layer, row and head. The ring is
 * empty. */
template <class D> static __device__ __forceinline__ void merge_full(const D &a, const struct block &b) {
    struct cache_dev c = {};
    c.a.H = a.H, c.a.HV = a.HV, c.a.K = a.K, c.a.V = a.V, c.a.window = a.window, c.a.chunk = a.chunk;
    c.a.policy = a.policy, c.at = a.at, c.group = a.group;
    const struct chooser s = chooser_at(c, b.shared + a.s.ring);
    for (int t = blockIdx.x; t < a.L * a.M * a.HV; t += gridDim.x) {
        const int l = t / (a.M * a.HV);
        const struct task p = task_at(a, t % (a.M * a.HV), 1);
        const struct hl_seg seg = seg_of(a, b, p.m);
        const struct filled f = filled_of(a, b, p.m);
        if (f.fresh < a.slots - 1) continue;
        const struct memory m = cache_of(a, b, l, p);
        const int n = f.kept + a.chunk;
        __syncthreads();
        for (int j = threadIdx.x; j < n; j += blockDim.x) {
            const int slot = j < f.kept ? j : a.window + j - f.kept;
            s.id[j] = -1 - slot;
            s.key[j] = rank_of(a.policy, j, m.score + slot);
        }
        const int now = choose(s, f.kept, n, a.window);
        keep_rows(c, m, p.h, s.id, now, seg, seg.pos + 1 - a.chunk, threadIdx.x, blockDim.x);
    }
}

#endif
