/* decode_state.cuh -- the two memories in a decoding step, second part: the delta rule and the cache's read,
 * then scores and the merge of full blocks.
 *
 * A block owns COLS columns of a value head: of the state, which it reads and writes once (the read after the
 * write needs no second pass, see gdn_step_cuda.cu), and of the cache's values, so that nothing but the
 * logits is exchanged between blocks. */
#ifndef HL_DECODE_STATE_CUH
#define HL_DECODE_STATE_CUH
#include "ops/decode/decode_look.cuh"

/* Shared floats of a task: [WARPS][2][COLS] parts of the state times k and q, [WARPS][2 + COLS] of the cache's
 * read, then these. */
enum {
    READS = WARPS * 2 * COLS,
    READ_PART = 2 + COLS,
    ALPHA = READS + WARPS * READ_PART,
    BETA,
    QK,
    VALUES = ALPHA + 4,
    WRITE = VALUES + COLS,
    READ = WRITE + COLS,
    SMALL = READ + COLS
};
static_assert(SMALL <= 512, "decode.h: small");
/* who does what only one warp can do */
enum { GATES = WARPS - 4, DOT, RULE = WARPS - 1 };

/* Sum over the 4 lanes of a column. */
static __device__ __forceinline__ float over_column(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}
static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(__expf(x)); }

/* decay, write strength and the tile's values, by one warp; q.k by another */
template <class D>
static __device__ __forceinline__ void bring_gates(const D &a, const struct block &b, int l,
                                                   const struct task &p, float *small) {
    const uint64_t *words = b.now + p.m * a.row;
    if (b.warp == DOT) {
        const float4 *q = (const float4 *)head_of(a, b, Q_STATE), *k = (const float4 *)head_of(a, b, K_STATE);
        float dot = 0.0f;
        for (int i = b.lane; i < a.K / 4; i += 32) dot += dot4(q[i], k[i]);
        dot = warp_sum(dot);
        if (b.lane == 0) small[QK] = dot;
    } else if (b.warp == GATES && b.lane < 8) {
        const int i = b.lane;
        const uint64_t *from = words + (i == 0   ? a.w_ab + p.h
                                        : i == 1 ? a.w_ab + a.HV + p.h
                                                 : a.w_in + a.qk + (p.h * a.V + p.part * COLS) / 2 + i % 4);
        const bool there = i == 0 ? a.decay : i == 1 ? a.beta : i >= 4;
        const uint32_t v = there ? take_one(from, b.number + l) : 0;
        const float *s = scalars_of(a, b, l, p.h);
        if (i == 0)
            small[ALPHA] = a.decay ? __expf(-s[DECAY] * softplus(__uint_as_float(v) + s[BIAS])) : 1.0f;
        if (i == 1)
            small[BETA] = a.beta ? a.top * __fdividef(1.0f, 1.0f + __expf(-__uint_as_float(v))) : 1.0f;
        if (i >= 4) small[VALUES + 2 * (i - 4)] = low(v), small[VALUES + 2 * (i - 4) + 1] = high(v);
    }
}

/* This lane's column of rows of the state, and k there. */
enum { HELD = 256 / WARPS / 4 };
struct held {
    float S[HELD], k[HELD];
};
/* The state times k and q, in parts. */
template <class D>
static __device__ __forceinline__ void meet_state(const D &a, const struct block &b, struct held &y,
                                                  float *small) {
    const float *S = (const float *)(b.shared + a.s.S) + b.warp * a.rows * COLS,
                *q = head_of(a, b, Q_STATE) + b.warp * a.rows, *k = head_of(a, b, K_STATE) + b.warp * a.rows;
    float sk = 0.0f, sq = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int row = i * 4 + b.lane / COLS;
        y.S[i] = y.k[i] = 0.0f;
        if (row >= a.rows) continue;
        y.S[i] = S[i * 4 * COLS + b.lane], y.k[i] = k[row];
        sk += y.k[i] * y.S[i], sq += q[row] * y.S[i];
    }
    sk = over_column(sk), sq = over_column(sq);
    if (b.lane < COLS) small[b.warp * 2 * COLS + b.lane] = sk, small[(b.warp * 2 + 1) * COLS + b.lane] = sq;
}
/* What is written and read, by one warp; a lane of a column adds a quarter of the parts. */
template <class D>
static __device__ __forceinline__ void delta_rule(const D &a, const struct block &b, int l,
                                                  const struct task &p, float *small) {
    const int c = b.lane % COLS;
    const float *part = small + b.lane / COLS * 2 * 2 * COLS + c;
    const float alpha = small[ALPHA], beta = small[BETA], v = small[VALUES + c];
    const float sk = over_column(part[0] + part[2 * COLS]), sq = over_column(part[COLS] + part[3 * COLS]);
    const float e = v - alpha * sk, write = beta * e, read = alpha * sq + small[QK] * write;
    const float s = a.evict == HOLA_EVICT_E ? e : a.evict == HOLA_EVICT_BETAV ? beta * v : write;
    if (b.lane < COLS) small[WRITE + c] = write, small[READ + c] = read * rsqrtf((float)a.K);
    float squares = s * s;
    for (int n = 1; n < COLS; n *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, n);
    if (b.lane == 0 && a.cache)
        give(a.words + a.scores + ((l * ROWS + p.m) * a.HV + p.h) * a.tiles + p.part,
             __float_as_uint(squares), b.number + l);
}

/* The cache's read over this warp's slots, in parts: the largest logit, the sum of weights relative to it, the
 * weighted values. For the weights a lane has every 32nd slot, for the values a column of every fourth. */
template <class D>
static __device__ __forceinline__ void read_slots(const D &a, const struct block &b, int l,
                                                  const struct task &p, float *small) {
    enum { EACH = 512 / WARPS / 32 };
    const struct filled f = filled_of(a, b, p.m);
    const int first = b.warp * a.each, count = max(0, min(a.each, f.fresh + 1 - first));
    const uint64_t *words = b.now + p.m * a.row;
    bf16 *values = (bf16 *)(b.shared + a.s.v) + first * COLS;
    float *weights = (float *)(b.shared + a.s.p) + first;
    float z[EACH], y = 0.0f, top = -INFINITY, sum = 0.0f;
    if (f.fresh >= first && f.fresh < first + a.each && b.lane < COLS / 2) { /* the new one's */
        const uint32_t v =
            take_one(words + a.w_in + a.qk + (p.h * a.V + p.part * COLS) / 2 + b.lane, b.number + l);
        *(uint32_t *)(values + (f.fresh - first) * COLS + 2 * b.lane) = v;
        *(uint32_t *)(values_at(a, b, l, p) + f.fresh * a.V + 2 * b.lane) = v;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int slot = first + i * 32 + b.lane;
        z[i] = -INFINITY;
        if (i * 32 + b.lane < a.each && (slot == f.fresh || old_slot(a, f, slot)))
            z[i] = __uint_as_float(take_one(words + a.w_z + p.h * a.slots + slot, b.number + l));
        top = fmaxf(top, z[i]);
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float w = z[i] > -INFINITY ? __expf(z[i] - top) : 0.0f;
        if (i * 32 + b.lane < a.each) weights[i * 32 + b.lane] = w;
        sum += w;
    }
    __syncwarp();
#pragma unroll 5
    for (int i = b.lane / COLS; i < count; i += 4) {
        const float w = weights[i];
        if (w > 0.0f) y += w * f32(values[i * COLS + b.lane % COLS]);
    }
    sum = warp_sum(sum), y = over_column(y);
    float *part = small + READS + b.warp * READ_PART;
    if (b.lane == 0) part[0] = top, part[1] = sum;
    if (b.lane < COLS) part[2 + b.lane] = y;
}
/* All parts together, by one warp: 4 lanes a column, each with 2 warps' parts. */
template <class D>
static __device__ __forceinline__ float read_cache(const D &a, const struct block &b, int l,
                                                   const struct task &p, const float *small) {
    const float *s = scalars_of(a, b, l, p.h), *part = small + READS + b.lane / COLS * 2 * READ_PART;
    float top = s[SINK], sum = 0.0f, y = 0.0f;
#pragma unroll
    for (int w = 0; w < 2; w++) top = fmaxf(top, part[w * READ_PART]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 8));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 16));
#pragma unroll
    for (int w = 0; w < 2; w++) {
        const float share = __expf(part[w * READ_PART] - top);
        sum += share * part[w * READ_PART + 1];
        y += share * part[w * READ_PART + 2 + b.lane % COLS];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 8), y += __shfl_xor_sync(0xffffffffu, y, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16), y += __shfl_xor_sync(0xffffffffu, y, 16);
    return __fdividef(s[LAMBDA] * y, sum + __expf(s[SINK] - top));
}

/* A task of both memories; q and k are there, the logits on their way. */
template <class D>
static __device__ __forceinline__ void remember(const D &a, const struct block &b, int l,
                                                const struct task &p) {
    float *small = (float *)(b.shared + a.s.small);
    struct held y;
    bring_gates(a, b, l, p, small);
    meet_state(a, b, y, small);
    if (b.warp == RULE) {
        sync_some<2, THREADS>();
        delta_rule(a, b, l, p, small);
    } else arrive_some<2, THREADS>();
    if (a.cache) read_slots(a, b, l, p, small);
    sync_block();
    if (b.warp == 0) {
        const float o = small[READ + b.lane % COLS] + (a.cache ? read_cache(a, b, l, p, small) : 0.0f),
                    other = __shfl_xor_sync(0xffffffffu, o, 1);
        if (b.lane < COLS && b.lane % 2 == 0)
            give(b.now + p.m * a.row + a.w_o + swapped((p.h * a.V + p.part * COLS + b.lane) / 2),
                 pack2(o, other), b.number + l);
    }
    const float alpha = small[ALPHA], w = small[WRITE + b.lane % COLS];
    float *S = state_at(a, b, l, p) + b.lane / COLS * a.V + b.lane % COLS;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (i * 4 + b.lane / COLS < a.rows) S[i * 4 * a.V] = alpha * y.S[i] + y.k[i] * w;
}

/* The two memories of a layer: all logits first, then the rest. The emulated device does them in two launches. */
template <class D>
static __device__ __forceinline__ void memories(const D &a, struct block &b, int l, int from, int to) {
#pragma unroll 1
    for (int part = from; part < to; part++) {
        const int parts = part ? a.tiles : a.shares, tasks = a.M * a.HV * parts;
        struct task p = part ? b.tile : b.look;
#pragma unroll 1
        for (int t = blockIdx.x; t < tasks; t += gridDim.x) {
            if (t >= (int)gridDim.x) {
                sync_block(); /* the last one's numbers are no longer in use */
                p = task_at(a, t, parts);
                if (part) fetch_tile(a, b, l, p);
                else fetch_keys(a, b, l, p);
            }
            bring_head(a, b, l, p.m, p.h / a.group);
            fetched();
            if (part) remember(a, b, l, p);
            else look_up(a, b, l, p);
        }
    }
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
