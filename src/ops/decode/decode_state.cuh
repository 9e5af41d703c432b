/* decode_state.cuh -- the two memories in a decoding step, second part: the delta rule and the cache's read,
 * then scores and the merge of full blocks.
 *
 * A block owns COLS columns of a value head: of the state, which it reads and writes once (the read after the
 * write needs no second pass, see gdn_step_cuda.cu), and of the cache's values, so that nothing but the
 * logits is exchanged between blocks. Lane (r, c) of a warp has column c of every fourth row. q and k come as
 * they are: their norms' factors belong to whole rows and come in with the sums. */
#ifndef HL_DECODE_STATE_CUH
#define HL_DECODE_STATE_CUH
#include "ops/decode/decode_stream.cuh"

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
static_assert(SMALL <= 512, "decode.h: small");
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

/* This lane's column of rows of the state, and k there. */
enum { HELD = 256 / WARPS / 4 };
struct held {
    float S[HELD], k[HELD];
};
/* The state times k and q, in parts. Half of the lanes take a word of q each, the others the same one of k. */
template <class D>
static __device__ __forceinline__ void meet_state(const D &a, const struct block &b, int l,
                                                  const struct task &p, struct held &y, float *small) {
    const struct hl_decode_layer &w = layer_of(a, b, l);
    const int r = b.lane / COLS, j = b.lane % 16, n = j < a.rows / 2 ? 1 : 0;
    const float *S = (const float *)(b.shared + a.s.S) + b.warp * a.rows * COLS + b.lane;
    const uint64_t *words = b.now + p.m * a.row + a.w_in + (p.h / a.group * a.K + b.warp * a.rows) / 2 + j +
                            b.lane / 16 * (a.qk / 2);
    float sk = 0.0f, sq = 0.0f;
    float2 gq = make_float2(1.0f, 1.0f), gk = gq;
    uint32_t v[1];
    if (a.cache && a.rms && n) {
        gq = ((const float2 *)(w.q_norm + b.warp * a.rows))[j];
        gk = ((const float2 *)(w.k_norm + b.warp * a.rows))[j];
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) y.S[i] = i * 4 < a.rows ? S[i * 4 * COLS] : 0.0f;
    if (D::sparing) take_missing(v, words, 0, n, b.number + l);
    else take<1>(v, words, 0, n, b.number + l);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const uint32_t q = __shfl_sync(0xffffffffu, v[0], 2 * i + r / 2),
                       k = __shfl_sync(0xffffffffu, v[0], 16 + 2 * i + r / 2);
        y.k[i] = r % 2 ? high(k) : low(k);
        sk += y.k[i] * y.S[i], sq += (r % 2 ? high(q) : low(q)) * y.S[i];
    }
    sk = over_column(sk), sq = over_column(sq);
    if (b.lane < COLS) small[b.warp * 2 * COLS + b.lane] = sk, small[(b.warp * 2 + 1) * COLS + b.lane] = sq;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, v[0], 16), q = b.lane < 16 ? v[0] : other,
                   k = b.lane < 16 ? other : v[0];
    const float x0 = low(q) * low(k), x1 = high(q) * high(k);
    const float4 all = make_float4(over_half(low(q) * low(q) + high(q) * high(q)),
                                   over_half(low(k) * low(k) + high(k) * high(k)), over_half(x0 + x1),
                                   over_half(x0 * gq.x * gk.x + x1 * gq.y * gk.y));
    if (b.lane == 0) *(float4 *)(small + NORMS + b.warp * 4) = all;
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
                rq = rsqrtf(qq + (float)HL_L2_EPS), rk = rsqrtf(kk + (float)HL_L2_EPS),
                qk = rq * rk * over_column(n0.z + n1.z), new_dot = over_column(n0.w + n1.w);
    const float sk = rk * over_column(part[0] + part[2 * COLS]),
                sq = rq * over_column(part[COLS] + part[3 * COLS]);
    const float e = v - alpha * sk, write = beta * e, read = alpha * sq + qk * write;
    const float s = a.evict == HOLA_EVICT_E ? e : a.evict == HOLA_EVICT_BETAV ? beta * v : write;
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

static __device__ __forceinline__ uint32_t bits_below(int n) {
    return n <= 0 ? 0u : n >= 32 ? 0xffffffffu : (1u << n) - 1;
}
/* The logits of this lane's slots; `need`: those that there are. */
template <int N>
static __device__ __forceinline__ void take_logits(float (&z)[N], const uint64_t *words, uint32_t need,
                                                   uint32_t number) {
    for (;;) {
        struct two w[N / 2];
        bool there = true;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            w[i].x = w[i].y = 0;
            if (need >> 2 * i & 3) w[i] = look_two(words + 2 * i);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint64_t word = i % 2 ? w[i / 2].y : w[i / 2].x;
            const bool needed = need >> i & 1;
            z[i] = needed ? __uint_as_float((uint32_t)word) : -INFINITY;
            there = there && (!needed || fresh(word, number));
        }
        if (all_lanes(there)) return;
        look_again();
    }
}
/* The read over this warp's slots, in parts: the largest logit, the sum of weights relative to it, the weighted
 * values. A lane has one column of some neighbouring slots. */
template <class D>
static __device__ __forceinline__ void read_slots(const D &a, const struct block &b, int l,
                                                  const struct task &p, float *small) {
    enum { N = D::each };
    const struct filled f = filled_of(a, b, p.m);
    const int first = (b.warp * 4 + b.lane / COLS) * N;
    const uint32_t need =
        bits_below(f.kept - first) | (bits_below(f.fresh - first) & ~bits_below(a.window - first));
    const bf16 *values = (const bf16 *)(b.shared + a.s.v) + first * COLS + b.lane % COLS;
    float v[N], z[N], top = -1e30f, sum = 0.0f, y = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = need >> i & 1 ? f32(values[i * COLS]) : 0.0f;
    const uint64_t *words = b.now + p.m * a.row + a.w_z + p.h * a.even_slots + first;
    if (D::sparing) take_missing(z, words, need, b.number + l);
    else take_logits<N>(z, words, need, b.number + l);
#pragma unroll
    for (int i = 0; i < N; i++) top = fmaxf(top, z[i]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 8));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 16));
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float w = __expf(z[i] - top);
        sum += w, y += w * v[i];
    }
    sum = over_column(sum), y = over_column(y);
    float *part = small + READS + b.warp * READ_PART;
    if (b.lane == 0) part[0] = top, part[1] = sum;
    if (b.lane < COLS) part[2 + b.lane] = y;
}
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

/* A task of both memories; the logits are on their way. */
template <class D>
static __device__ __forceinline__ void remember(const D &a, const struct block &b, int l,
                                                const struct task &p) {
    float *small = (float *)(b.shared + a.s.small);
    struct held y;
    const uint64_t *gates = b.warp == GATES ? gates_at(a, b, p) : NULL, word = gates ? look(gates) : 0;
    meet_state(a, b, l, p, y, small);
    if (b.warp == GATES) put_gates(a, b, l, p, gates, word, small);
    if (b.warp == RULE) {
        sync_some<2, THREADS>();
        delta_rule(a, b, l, p, small);
    } else {
        __syncwarp();
        arrive_some<2, THREADS>();
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
    float *S = state_at(a, b, l, p) + (b.warp * a.rows + b.lane / COLS) * a.V + b.lane % COLS;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (i * 4 < a.rows) S[i * 4 * a.V] = alpha * y.S[i] + y.k[i] * w;
    if (a.cache && p.part == 0 && b.warp == GATES) keep_key(a, b, l, p);
}

/* The two memories of a layer: all logits first, then the rest. The emulated device does them in two launches. */
template <class D>
static __device__ __forceinline__ void memories(const D &a, struct block &b, int l, int from, int to) {
    const bool ahead = has_task(a, b);
    if (ahead) barrier_wait(tasks_full(a, b), b.tasks);
#pragma unroll 1
    for (int part = from; part < to; part++) {
        const int parts = part ? a.tiles : a.shares, tasks = a.M * a.HV * parts;
        struct task p = part ? b.tile : b.look;
#pragma unroll 1
        for (int t = blockIdx.x; t < tasks; t += gridDim.x) {
            if (!D::once && t >= (int)gridDim.x) {
                sync_block(); /* the last one's numbers are no longer in use */
                p = task_at(a, t, parts);
                if (part) fetch_tile(a, b, l, p, threadIdx.x, THREADS);
                else fetch_keys(a, b, l, p, threadIdx.x, THREADS);
                copy_commit();
                copy_wait<0>();
                sync_block();
            }
            if (part) remember(a, b, l, p);
            else look_up(a, b, l, p);
            if (D::once) break;
        }
    }
    if (!ahead) return;
    warp_arrive(tasks_empty(a, b), b.lane);
    b.tasks ^= 1;
}

/* ---- after the layers ---- */

/* The scores of the new tokens, from the parts that the tiles left: a warp each. */
template <class D> static __device__ __forceinline__ void put_scores(const D &a, const struct block &b) {
    const bool ranked = a.evict != HOLA_EVICT_RECENCY;
    for (int t = blockIdx.x * WARPS + b.warp; t < a.L * a.M * a.HV; t += gridDim.x * WARPS) {
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
    c.a.evict = a.evict, c.at = a.at, c.group = a.group;
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
            s.key[j] = a.evict == HOLA_EVICT_RECENCY ? (uint32_t)j : rank_of(m.score[slot]);
        }
        const int now = choose(s, f.kept, n, a.window);
        keep_rows(c, m, p.h, s.id, now, seg, seg.pos + 1 - a.chunk, threadIdx.x, blockDim.x);
    }
}

#endif
