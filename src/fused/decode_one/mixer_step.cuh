/* mixer_step.cuh -- the mixer of a decoding step, part 2: the delta rule and the cache read, then the scores and the
 * merge of full cache blocks.
 *
 * A task is COLS columns of one value head: of the state, which is read and written once (reading after the write needs
 * no second pass, see gdn_step_tile.cuh), and of the cached values. So the only exchange between blocks here is the
 * logits of part 1. Lane (r, c) of a warp has column c of every fourth pair of rows. q and k arrive unnormalised: the
 * factors of their norms apply to whole rows and are applied to the sums. */
#ifndef HL_MIXER_STEP_CUH
#define HL_MIXER_STEP_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/weight_stream.cuh"

/* A task's scratch floats: [WARPS][2][COLS] partial S^T k and S^T q, [WARPS][4] of q.q, k.k, q.k and the new slot's
 * q.k, [WARPS][2 + COLS] of the cache read, then the following. */
enum {
    NORMS = WARPS * 2 * COLS,
    READS = NORMS + WARPS * 4,
    READ_PART = 2 + COLS,
    ALPHA = READS + WARPS * READ_PART,
    BETA,
    NEWEST, /* logit of the new slot */
    VALUES = ALPHA + 4,
    WRITE = VALUES + COLS,
    READ = WRITE + COLS,
    SCRATCH_FLOATS = READ + COLS
};
static_assert((int)SCRATCH_FLOATS <= (int)QUERY, "cache_logits.cuh: QUERY");
/* Single-warp work: GATE_WARP does the gates and the new row, RULE_WARP the delta rule. RULE_WARP reads no cache
 * slots. */
enum { GATE_WARP = WARPS - 2, RULE_WARP };
static_assert(RULE_WARP == HL_DECODE_WARPS - 1, "the warps before it read the cache");

/* Sum over the 4 lanes of a column. */
static __device__ __forceinline__ float sum_over_column(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

/* The words of decay, beta and the tile's values, one per lane of GATE_WARP: polled before the product with the
 * state */
template <class D>
static __device__ __forceinline__ const uint64_t *gates_at(const D &a, const struct block &b, const struct task &p) {
    const uint64_t *words = b.words + p.m * a.row_words;
    const int i = b.lane;
    if (i == 0 && a.decay) return words + a.w_ab + p.h;
    if (i == 1 && a.beta) return words + a.w_ab + a.HV + p.h;
    return i >= 4 && i < 8 ? words + a.w_in + a.qk + (p.h * a.V + p.part * COLS) / 2 + i - 4 : NULL;
}
/* and awaited after it. Stores alpha, beta and v, and v also in the new cache slot. */
template <class D>
static __device__ __forceinline__ void store_gates(const D &a, const struct block &b, int l, const struct task &p,
                                                   const uint64_t *from, uint64_t word, float *scratch) {
    const int i = b.lane;
    if (i >= 8) return;
    if (from && !is_current(word, b.epoch + l)) word = wait_for_one(from, b.epoch + l);
    const uint32_t v = (uint32_t)word;
    const float *s = scalars_of(a, b, l, p.h), x = __uint_as_float(v);
    if (i == 0) scratch[ALPHA] = a.decay ? __expf(-s[DECAY] * softplus(x + s[BIAS])) : 1.0f;
    if (i == 1) scratch[BETA] = a.beta ? a.beta_scale * __fdividef(1.0f, 1.0f + __expf(-x)) : 1.0f;
    if (i < 4) return;
    scratch[VALUES + 2 * (i - 4)] = low(v), scratch[VALUES + 2 * (i - 4) + 1] = high(v);
    if (a.cache) ((uint32_t *)(values_at(a, b, l, p) + filled_of(a, b, p.m).new_slot * a.V))[i - 4] = v;
}

/* This lane's column of its pairs of state rows, and k at those rows. */
enum { STATE_PAIRS = 256 / WARPS / 8 };
struct state_rows {
    float2 S[STATE_PAIRS], k[STATE_PAIRS];
};
/* The warp's part of S^T k and S^T q, and of q.q, k.k, q.k. Two sums share the shuffles: each half of the lanes reduces
 * one. */
template <class D>
static __device__ __forceinline__ void state_times_qk(const D &a, const struct block &b, const struct qk_pair &mine,
                                                      struct state_rows &y, float *scratch) {
    const int r = b.lane / COLS, pairs = a.warp_rows / 2;
    const float *S = (const float *)(b.shared + a.s.S) + (b.warp * a.warp_rows + 2 * r) * COLS + b.lane % COLS;
    float sk = 0.0f, sq = 0.0f;
#pragma unroll
    for (int i = 0; i < STATE_PAIRS; i++) {
        y.S[i] = make_float2(0.0f, 0.0f);
        if (i * 4 + r < pairs) y.S[i] = make_float2(S[i * 8 * COLS], S[i * 8 * COLS + COLS]);
        if constexpr (has_low_rank<D>) {
            if (i * 4 + r >= pairs) continue;
            const float2 alpha = *(const float2 *)(alpha_of(a, b) + b.warp * a.warp_rows + 2 * r + i * 8);
            y.S[i].x *= alpha.x, y.S[i].y *= alpha.y;
        }
    }
#pragma unroll
    for (int i = 0; i < STATE_PAIRS; i++) {
        const uint32_t q = __shfl_sync(0xffffffffu, mine.word, i * 4 + r),
                       k = __shfl_sync(0xffffffffu, mine.word, 16 + i * 4 + r);
        y.k[i] = make_float2(low(k), high(k));
        sk += y.k[i].x * y.S[i].x + y.k[i].y * y.S[i].y;
        sq += low(q) * y.S[i].x + high(q) * y.S[i].y;
    }
    sk = (r % 2 ? sq : sk) + __shfl_xor_sync(0xffffffffu, r % 2 ? sk : sq, 8);
    sk += __shfl_xor_sync(0xffffffffu, sk, 16);
    if (b.lane < 2 * COLS) scratch[b.warp * 2 * COLS + b.lane] = sk;
    const bool upper = b.lane >= 16, odd = b.lane & 8;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, mine.word, 16), q = upper ? other : mine.word,
                   k = upper ? mine.word : other;
    const float x0 = low(q) * low(k), x1 = high(q) * high(k);
    const float u = upper ? x0 + x1 : square(q),
                t = upper ? x0 * mine.q_norm.x * mine.k_norm.x + x1 * mine.q_norm.y * mine.k_norm.y : square(k);
    float s = (odd ? t : u) + __shfl_xor_sync(0xffffffffu, odd ? u : t, 8);
    for (int n = 1; n < 8; n *= 2) s += __shfl_xor_sync(0xffffffffu, s, n);
    if (b.lane % 8 == 0) scratch[NORMS + b.warp * 4 + b.lane / 8] = s;
}
/* The delta rule, by RULE_WARP; each of a column's 4 lanes sums the parts of two warps.
 *     e = v - alpha S^T k    write = beta e    read = alpha S^T q + (q.k) write
 * Per-channel decays are already applied to S: alpha is 1. GLA: write = v, with q and k unnormalised. */
template <class D>
static __device__ __forceinline__ void delta_rule(const D &a, const struct block &b, int l, const struct task &p,
                                                  float *scratch) {
    const int c = b.lane % COLS, first = b.lane / COLS * 2;
    const float *part = scratch + first * 2 * COLS + c;
    const float4 n0 = *(const float4 *)(scratch + NORMS + first * 4),
                 n1 = *(const float4 *)(scratch + NORMS + first * 4 + 4);
    const float alpha = scratch[ALPHA], beta = scratch[BETA], v = scratch[VALUES + c];
    const float qq = sum_over_column(n0.x + n1.x), kk = sum_over_column(n0.y + n1.y),
                rq = D::rule == HL_DECODE_GLA ? 1.0f : fast_rsqrt(qq + (float)HL_L2_EPS),
                rk = D::rule == HL_DECODE_GLA ? 1.0f : fast_rsqrt(kk + (float)HL_L2_EPS),
                qk = rq * rk * sum_over_column(n0.z + n1.z), new_dot = sum_over_column(n0.w + n1.w);
    const float sk = rk * sum_over_column(part[0] + part[2 * COLS]),
                sq = rq * sum_over_column(part[COLS] + part[3 * COLS]);
    const float e = D::rule == HL_DECODE_GLA ? v : v - alpha * sk, write = beta * e, read = alpha * sq + qk * write;
    const enum hl_score_kind kind = a.policy.score;
    const float s = kind == HL_SCORE_RESIDUAL ? e : kind == HL_SCORE_VALUE ? beta * v : write;
    if (b.lane < COLS) scratch[WRITE + c] = rk * write, scratch[READ + c] = read * rsqrtf((float)a.K);
    if (b.lane == 0 && a.cache)
        scratch[NEWEST] = new_dot * factor_of(a, qq) * factor_of(a, kk) * scalars_of(a, b, l, p.h)[SCALE];
    float squares = s * s;
    for (int n = 1; n < COLS; n *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, n);
    if (b.lane == 0 && a.cache)
        publish(a.words + a.scores + ((l * ROWS + p.m) * a.HV + p.h) * a.tiles + p.part, __float_as_uint(squares),
                b.epoch + l);
}

/* ---- the cache read ---- */

/* Sums of 8 values over all lanes; lane i gets the sum of value i / 4. */
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
/* This warp's part of the cache read: the largest logit, the sum of the weights relative to it, and the weighted
 * values. A lane has pairs of adjacent slots. */
template <class D>
static __device__ __forceinline__ void read_slots(const D &a, const struct block &b, int l, const struct task &p,
                                                  float *scratch) {
    enum { N = D::warp_slots, PAIRS = (N / 2 + 31) / 32 }; /* pairs per lane */
    const struct filled f = filled_of(a, b, p.m);
    const uint64_t *words = b.words + p.m * a.row_words + a.w_logits + p.h * a.even_slots;
    const uint32_t epoch = b.epoch + l;
    uint4 v[PAIRS][2];
    struct word_pair w[PAIRS];
    bool need[PAIRS][2];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int pair = i * 32 + b.lane, slot = b.warp * N + 2 * pair;
        w[i].x = w[i].y = 0;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            need[i][k] = pair < N / 2 && old_slot(a, f, slot + k);
            v[i][k] = make_uint4(0, 0, 0, 0);
            if (need[i][k]) v[i][k] = *(const uint4 *)(b.shared + a.s.v + (slot + k) * (COLS * 2));
        }
    }
    words += b.warp * N + 2 * b.lane;
    for (;;) {
        bool there = true;
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            if ((need[i][0] && !is_current(w[i].x, epoch)) || (need[i][1] && !is_current(w[i].y, epoch)))
                w[i] = poll_pair(words + i * 64);
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            there = there && (!need[i][0] || is_current(w[i].x, epoch)) && (!need[i][1] || is_current(w[i].y, epoch));
        if (warp_all(there)) break;
        spin();
    }
    float z[PAIRS][2], y[COLS] = {}, max = -1e30f, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        z[i][0] = need[i][0] ? __uint_as_float((uint32_t)w[i].x) : -INFINITY;
        z[i][1] = need[i][1] ? __uint_as_float((uint32_t)w[i].y) : -INFINITY;
        max = fmaxf(max, fmaxf(z[i][0], z[i][1]));
    }
    max = warp_max(max);
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float s = __expf(z[i][k] - max);
            const uint32_t c[4] = {v[i][k].x, v[i][k].y, v[i][k].z, v[i][k].w};
            sum += s;
#pragma unroll
            for (int e = 0; e < 4; e++) y[2 * e] += s * low(c[e]), y[2 * e + 1] += s * high(c[e]);
        }
    sum = warp_sum(sum);
    const float all = sums_of_eight(b.lane, y);
    float *part = scratch + READS + b.warp * READ_PART;
    if (b.lane == 0) part[0] = max, part[1] = sum;
    if (b.lane % 4 == 0) part[2 + b.lane / 4] = all;
}
static_assert(COLS == 8, "sums_of_eight");
/* Combines all parts with the new slot and the sink, by one warp: 4 lanes per column, each with the parts
 * of 2 warps. */
template <class D>
static __device__ __forceinline__ float combine_reads(const D &a, const struct block &b, int l, const struct task &p,
                                                      const float *scratch) {
    const float *s = scalars_of(a, b, l, p.h), *part = scratch + READS + b.lane / COLS * 2 * READ_PART;
    const float newest = scratch[NEWEST];
    float max = fmaxf(s[SINK], newest), sum, y;
    const bool both = b.lane / COLS * 2 + 1 < RULE_WARP;
    const float t0 = part[0], t1 = both ? part[READ_PART] : -1e30f;
    max = fmaxf(max, fmaxf(t0, t1));
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 8));
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 16));
    const float w0 = __expf(t0 - max);
    sum = w0 * part[1], y = w0 * part[2 + b.lane % COLS];
    if (both) {
        const float w1 = __expf(t1 - max);
        sum += w1 * part[READ_PART + 1], y += w1 * part[READ_PART + 2 + b.lane % COLS];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 8), y += __shfl_xor_sync(0xffffffffu, y, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16), y += __shfl_xor_sync(0xffffffffu, y, 16);
    const float w = __expf(newest - max);
    y += w * scratch[VALUES + b.lane % COLS];
    return __fdividef(s[LAMBDA] * y, sum + w + __expf(s[SINK] - max));
}

/* Stores the new token's key, normalised and rounded like an activation, in its slot. */
template <class D>
static __device__ __forceinline__ void append_key(const D &a, const struct block &b, int l, const struct task &p) {
    enum { N = 4 }; /* words of a lane: K <= 256 */
    const int n = (a.K / 2 - b.lane + 31) / 32;
    const float2 *gamma = (const float2 *)layer_of(a, b, l).k_norm + b.lane;
    uint32_t *to = (uint32_t *)(cache_of(a, b, l, p).k + filled_of(a, b, p.m).new_slot * a.K) + b.lane;
    uint32_t v[N];
    float s = 0.0f;
    const uint64_t *words = b.words + p.m * a.row_words + a.w_in + (a.qk + p.h / a.group * a.K) / 2 + b.lane;
    wait_for<D>(v, words, 32, n, b.epoch + l);
#pragma unroll
    for (int e = 0; e < N; e++) s += low(v[e]) * low(v[e]) + high(v[e]) * high(v[e]);
    const float r = factor_of(a, warp_sum(s));
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (e >= n) continue;
        const float2 y = a.rms ? gamma[e * 32] : make_float2(1.0f, 1.0f);
        to[e * 32] = pack2(r * low(v[e]) * y.x, r * high(v[e]) * y.y);
    }
}

/* A tile task. Part 1 published the logits; mine: from wait_for_qk(). */
template <class D>
static __device__ __forceinline__ void mixer_tile(const D &a, const struct block &b, int l, const struct task &p,
                                                  const struct qk_pair &mine) {
    float *scratch = (float *)(b.shared + a.s.scratch);
    struct state_rows y;
    const uint64_t *gates = b.warp == GATE_WARP ? gates_at(a, b, p) : NULL, word = gates ? poll(gates) : 0;
    if constexpr (has_low_rank<D>) low_rank_gates(a, b, l, p);
    state_times_qk(a, b, mine, y, scratch);
    if (b.warp == GATE_WARP) store_gates(a, b, l, p, gates, word, scratch);
    if (b.warp == RULE_WARP) {
        named_barrier_sync<2, THREADS>();
        delta_rule(a, b, l, p, scratch);
    } else {
        __syncwarp();
        named_barrier_arrive<2, THREADS>();
        if (a.cache) read_slots(a, b, l, p, scratch);
    }
    sync_block();
    if (b.warp == 0) {
        const float o = scratch[READ + b.lane % COLS] + (a.cache ? combine_reads(a, b, l, p, scratch) : 0.0f),
                    other = __shfl_xor_sync(0xffffffffu, o, 1);
        if (b.lane < COLS && b.lane % 2 == 0)
            publish(b.words + p.m * a.row_words + a.w_o + swizzled((p.h * a.V + p.part * COLS + b.lane) / 2),
                    pack2(o, other), b.epoch + l);
    }
    const float alpha = scratch[ALPHA], w = scratch[WRITE + b.lane % COLS];
    float *S = state_at(a, b, l, p) + (b.warp * a.warp_rows + b.lane / COLS * 2) * a.V + b.lane % COLS;
#pragma unroll
    for (int i = 0; i < STATE_PAIRS; i++) {
        if (i * 4 + b.lane / COLS >= a.warp_rows / 2) continue;
        S[i * 8 * a.V] = alpha * y.S[i].x + y.k[i].x * w;
        S[i * 8 * a.V + a.V] = alpha * y.S[i].y + y.k[i].y * w;
    }
    if (a.cache && p.part == 0 && b.warp == GATE_WARP) append_key(a, b, l, p);
}

/* ---- after the layers ---- */

/* The scores of the new tokens, from the tiles' parts. TASK_WARP. */
template <class D> static __device__ __forceinline__ void store_scores(const D &a, const struct block &b) {
    const bool ranked = a.policy.score != HL_SCORE_NONE;
    for (int t = blockIdx.x; t < a.L * a.M * a.HV; t += gridDim.x) {
        const int l = t / (a.M * a.HV);
        const struct task p = task_at(a, t % (a.M * a.HV), 1);
        const uint64_t *words = a.words + a.scores + ((l * ROWS + p.m) * a.HV + p.h) * a.tiles;
        float s = 0.0f;
        for (int i = b.lane; i < a.tiles; i += 32) s += __uint_as_float(wait_for_one(words + i, b.epoch + l));
        s = warp_sum(s);
        if (b.lane == 0) cache_of(a, b, l, p).score[filled_of(a, b, p.m).new_slot] = ranked ? sqrtf(s) : 0.0f;
    }
}

template <class D> static __device__ __forceinline__ bool any_full(const D &a, const struct block &b) {
    bool any = false;
    for (int m = 0; m < a.M && a.cache && a.window > 0; m++) any = any || filled_of(a, b, m).new_slot == a.slots - 1;
    return any;
}
/* kept = top_w(kept + block) for full cache blocks: one thread block per layer, row and head. The weight ring is free
 * by now. */
template <class D> static __device__ __forceinline__ void merge_full(const D &a, const struct block &b) {
    struct cache_dev c = {};
    c.a.H = a.H, c.a.HV = a.HV, c.a.K = a.K, c.a.V = a.V, c.a.window = a.window, c.a.chunk = a.chunk;
    c.a.policy = a.policy, c.at = a.at, c.group = a.group;
    const struct selector s = selector_at(c, b.shared + a.s.ring);
    for (int t = blockIdx.x; t < a.L * a.M * a.HV; t += gridDim.x) {
        const int l = t / (a.M * a.HV);
        const struct task p = task_at(a, t % (a.M * a.HV), 1);
        const struct hl_seg seg = seg_of(a, b, p.m);
        const struct filled f = filled_of(a, b, p.m);
        if (f.new_slot < a.slots - 1) continue;
        const struct cache_slots m = cache_of(a, b, l, p);
        const int n = f.kept + a.chunk;
        __syncthreads();
        for (int j = threadIdx.x; j < n; j += blockDim.x) {
            const int slot = j < f.kept ? j : a.window + j - f.kept;
            s.id[j] = -1 - slot;
            s.key[j] = rank_of(a.policy, j, m.score + slot);
        }
        const int kept = select_top(s, f.kept, n, a.window);
        keep_rows(c, m, p.h, s.id, kept, seg, seg.pos + 1 - a.chunk, threadIdx.x, blockDim.x);
    }
}

#endif
