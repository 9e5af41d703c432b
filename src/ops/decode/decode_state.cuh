/* decode_state.cuh -- the two memories in a decoding step, second part: the delta rule and the cache's read,
 * then scores and the merge of full blocks.
 *
 * A block owns COLS columns of a value head: of the state, which it reads and writes once (the read after the
 * write needs no second pass, see gdn_step_cuda.cu), and of the cache's values, so that nothing but the
 * logits is exchanged between blocks. */
#ifndef HL_DECODE_STATE_CUH
#define HL_DECODE_STATE_CUH
#include "ops/decode/decode_look.cuh"

/* Shared floats of a task: [WARPS][2][8] parts of sums, then these. */
enum {
    PARTS = WARPS * 2 * 8,
    ALPHA = PARTS,
    BETA,
    QK,
    VALUES = ALPHA + 4,
    WRITE = VALUES + COLS,
    READ = WRITE + COLS,
    REDUCE = READ + COLS
};

/* Sums over the 16 lanes that hold rows of the same columns. At every step a lane gives away the half of its
 * sums that its partner keeps: 8 sums take 8 exchanges. Lane 2 i + half then has sum i (or i / 2, twice, of
 * 4). */
static __device__ __forceinline__ void leave_8(const struct block &b, const float *x, float *parts) {
    float y[4], z[2], u;
    const bool h16 = b.lane & 16, h8 = b.lane & 8, h4 = b.lane & 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float give_away = h16 ? x[i] : x[4 + i];
        y[i] = (h16 ? x[4 + i] : x[i]) + __shfl_xor_sync(0xffffffffu, give_away, 16);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float give_away = h8 ? y[i] : y[2 + i];
        z[i] = (h8 ? y[2 + i] : y[i]) + __shfl_xor_sync(0xffffffffu, give_away, 8);
    }
    const float give_away = h4 ? z[0] : z[1];
    u = (h4 ? z[1] : z[0]) + __shfl_xor_sync(0xffffffffu, give_away, 4);
    u += __shfl_xor_sync(0xffffffffu, u, 2);
    const int i = (h16 ? 4 : 0) + (h8 ? 2 : 0) + (h4 ? 1 : 0);
    if (!(b.lane & 2)) parts[(b.warp * 2 + (b.lane & 1)) * 8 + i] = u;
}
static __device__ __forceinline__ float sum_parts(const float *parts, int half, int i) {
    float s = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) s += parts[(w * 2 + half) * 8 + i];
    return s;
}
static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(__expf(x)); }

/* decay, write strength and the tile's values, by one warp; q.k by another */
static __device__ __forceinline__ void bring_gates(const struct decode &a, const struct block &b, int l,
                                                   const struct task &p, float *small) {
    const uint64_t *words = b.now + p.m * a.row;
    const uint32_t number = b.number + l;
    if (b.warp == 3) {
        const float4 *q = (const float4 *)head_of(a, b, Q_STATE), *k = (const float4 *)head_of(a, b, K_STATE);
        float dot = 0.0f;
        for (int i = b.lane; i < a.K / 4; i += 32) dot += dot4(q[i], k[i]);
        dot = warp_sum(dot);
        if (b.lane == 0) small[QK] = dot;
    } else if (b.warp == 2 && b.lane < 8) {
        const int i = b.lane;
        const uint64_t *from = words + (i == 0   ? a.w_ab + p.h
                                        : i == 1 ? a.w_ab + a.HV + p.h
                                                 : a.w_in + a.qk + (p.h * a.V + p.part * COLS) / 2 + i % 4);
        const bool there = i == 0 ? a.decay : i == 1 ? a.beta : i >= 4;
        const uint32_t v = there ? take_one(from, number) : 0;
        const float *s = scalars_of(a, b, l, p.h);
        if (i == 0)
            small[ALPHA] = a.decay ? __expf(-s[DECAY] * softplus(__uint_as_float(v) + s[BIAS])) : 1.0f;
        if (i == 1) small[BETA] = a.beta ? a.top * sigmoid(__uint_as_float(v)) : 1.0f;
        if (i >= 4) small[VALUES + 2 * (i - 4)] = low(v), small[VALUES + 2 * (i - 4) + 1] = high(v);
    }
}

/* The whole state times k and q, then what is written and read, by the first warp, a lane per column. */
static __device__ __forceinline__ void delta_rule(const struct decode &a, const struct block &b, int l,
                                                  const struct task &p, float4 *S, float *small) {
    const int row = threadIdx.x / 2;
    const float *q = head_of(a, b, Q_STATE), *k = head_of(a, b, K_STATE);
    float x[8] = {0.0f}, kr[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int r = row + i * STRIDE;
        const float qr = r < a.K ? q[r] : 0.0f;
        kr[i] = r < a.K ? k[r] : 0.0f;
        x[0] += kr[i] * S[i].x, x[1] += kr[i] * S[i].y, x[2] += kr[i] * S[i].z, x[3] += kr[i] * S[i].w;
        x[4] += qr * S[i].x, x[5] += qr * S[i].y, x[6] += qr * S[i].z, x[7] += qr * S[i].w;
    }
    leave_8(b, x, small);
    __syncthreads();
    const float alpha = small[ALPHA];
    if (b.warp == 0) {
        const int c = b.lane % COLS;
        const float beta = small[BETA], v = small[VALUES + c];
        const float e = v - alpha * sum_parts(small, c / 4, c % 4), write = beta * e;
        const float read = alpha * sum_parts(small, c / 4, 4 + c % 4) + small[QK] * write;
        const float s = a.evict == HOLA_EVICT_E ? e : a.evict == HOLA_EVICT_BETAV ? beta * v : write;
        if (b.lane < COLS) small[WRITE + c] = write, small[READ + c] = read * rsqrtf((float)a.K);
        float squares = s * s;
        for (int n = 1; n < COLS; n *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, n);
        if (b.lane == 0 && a.cache)
            give(a.words + a.scores + ((l * ROWS + p.m) * a.HV + p.h) * a.tiles + p.part,
                 __float_as_uint(squares), b.number + l);
    }
    __syncthreads();
    const float4 w = *(const float4 *)(small + WRITE + threadIdx.x % 2 * 4);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        S[i].x = alpha * S[i].x + kr[i] * w.x, S[i].y = alpha * S[i].y + kr[i] * w.y;
        S[i].z = alpha * S[i].z + kr[i] * w.z, S[i].w = alpha * S[i].w + kr[i] * w.w;
    }
}

/* Softmax over the filled slots and the sink: weights to shared memory, what they are to be divided by comes
 * back. A thread has two neighbouring slots, or four. */
static __device__ __forceinline__ float soften(const struct decode &a, const struct block &b, int l,
                                               const struct task &p, const struct filled &f, float *small) {
    enum { LAPS2 = 2 }; /* slots <= 1024 */
    float *weights = (float *)(b.shared + a.s.p), z[LAPS2][2];
    const float sink = scalars_of(a, b, l, p.h)[SINK];
    float top = sink, sum = 0.0f;
    const uint64_t *words = b.now + p.m * a.row + a.w_z + p.h * even_slots(a);
#pragma unroll
    for (int e = 0; e < LAPS2; e++) {
        const int slot = 2 * (e * THREADS + threadIdx.x);
        const bool first = slot <= f.fresh && (slot == f.fresh || old_slot(a, f, slot));
        const bool second = slot < f.fresh && (slot + 1 == f.fresh || old_slot(a, f, slot + 1));
        z[e][0] = z[e][1] = -INFINITY;
        if (first || second) {
            struct two w = look_two(words + slot);
            while ((first && !fresh(w.x, b.number + l)) || (second && !fresh(w.y, b.number + l))) {
                look_again();
                w = look_two(words + slot);
            }
            if (first) z[e][0] = __uint_as_float((uint32_t)w.x);
            if (second) z[e][1] = __uint_as_float((uint32_t)w.y);
        }
        top = fmaxf(top, fmaxf(z[e][0], z[e][1]));
    }
    top = warp_max(top);
    if (b.lane == 0) small[REDUCE + b.warp] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, small[REDUCE + w]);
#pragma unroll
    for (int e = 0; e < LAPS2; e++) {
        const int slot = 2 * (e * THREADS + threadIdx.x);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float y = __expf(z[e][i] - top);
            sum += y;
            if (slot + i < a.slots) weights[slot + i] = y;
        }
    }
    sum = warp_sum(sum);
    if (b.lane == 0) small[REDUCE + WARPS + b.warp] = sum;
    __syncthreads();
    sum = __expf(sink - top);
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += small[REDUCE + WARPS + w];
    return sum;
}

static __device__ __forceinline__ void read_cache(const struct decode &a, const struct block &b, int l,
                                                  const struct task &p, const struct tile &x, float *small) {
    const float *weights = (const float *)(b.shared + a.s.p);
    const struct filled f = filled_of(a, b, p.m);
    const float sum = soften(a, b, l, p, f, small);
    float *v = values_at(a, b, l, p), y[8] = {0.0f};
    int slot = threadIdx.x / 2;
#pragma unroll
    for (int i = 0; i < AHEAD; i++, slot += STRIDE) {
        float4 u = x.v[i];
        if (slot > f.fresh) continue;
        if (slot == f.fresh) {
            u = *(const float4 *)(small + VALUES + threadIdx.x % 2 * 4);
            *(float4 *)(v + slot * a.V) = u;
        }
        const float w = weights[slot];
        y[0] += w * u.x, y[1] += w * u.y, y[2] += w * u.z, y[3] += w * u.w;
    }
    for (; slot <= f.fresh; slot += STRIDE) {
        float4 u = value_at(a, f, v, slot);
        if (slot == f.fresh) {
            u = *(const float4 *)(small + VALUES + threadIdx.x % 2 * 4);
            *(float4 *)(v + slot * a.V) = u;
        }
        const float w = weights[slot];
        y[0] += w * u.x, y[1] += w * u.y, y[2] += w * u.z, y[3] += w * u.w;
    }
    leave_8(b, y, small); /* the delta rule's are done with */
    __syncthreads();
    if (threadIdx.x < COLS)
        small[READ + threadIdx.x] += __fdividef(
            scalars_of(a, b, l, p.h)[LAMBDA] * sum_parts(small, threadIdx.x / 4, threadIdx.x % 4), sum);
    if (b.warp == 0) __syncwarp();
}

static __device__ __forceinline__ void remember(const struct decode &a, struct block &b, int l) {
    float *small = (float *)(b.shared + a.s.small);
    const int tasks = a.M * a.HV * a.tiles;
    struct task p = b.tile;
    struct tile next = {};
    if (p.m < a.M) next = tile_of(a, b, l, p);
    for (int t = blockIdx.x; t < tasks; t += gridDim.x) {
        const struct task now = p;
        struct tile x = next;
        bring_head(a, b, l, now.m, now.h / a.group);
        if (t >= (int)gridDim.x) __syncthreads(); /* the last task's */
        bring_gates(a, b, l, now, small);
        if (t + (int)gridDim.x < tasks) {
            p = task_at(a, t + gridDim.x, a.tiles);
            next = tile_of(a, b, l, p);
        }
        delta_rule(a, b, l, now, x.S, small);
        float *S = state_at(a, b, l, now);
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if ((int)threadIdx.x / 2 + i * STRIDE < a.K) *(float4 *)(S + i * STRIDE * a.V) = x.S[i];
        if (a.cache) read_cache(a, b, l, now, x, small);
        if (threadIdx.x < COLS / 2)
            give(b.now + now.m * a.row + a.w_o + (now.h * a.V + now.part * COLS) / 2 + threadIdx.x,
                 pack2(small[READ + 2 * threadIdx.x], small[READ + 2 * threadIdx.x + 1]), b.number + l);
    }
}

/* ---- after the layers ---- */

/* The scores of the new tokens, from the parts that the tiles left: a warp each. */
static __device__ __forceinline__ void put_scores(const struct decode &a, const struct block &b) {
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

static __device__ __forceinline__ bool any_full(const struct decode &a, const struct block &b) {
    bool any = false;
    for (int m = 0; m < a.M && a.cache && a.window > 0; m++)
        any = any || filled_of(a, b, m).fresh == a.slots - 1;
    return any;
}
/* kept = top_w(kept + block) where a block is full: a thread block per layer, row and head. The ring is
 * empty. */
static __device__ __forceinline__ void merge_full(const struct decode &a, const struct block &b) {
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
        for (int j = threadIdx.x; j < n; j += THREADS) {
            const int slot = j < f.kept ? j : a.window + j - f.kept;
            s.id[j] = -1 - slot;
            s.key[j] = a.evict == HOLA_EVICT_RECENCY ? (uint32_t)j : rank_of(m.score[slot]);
        }
        const int now = choose(s, f.kept, n, a.window);
        keep_rows(c, m, p.h, s.id, now, seg, seg.pos + 1 - a.chunk, threadIdx.x, THREADS);
    }
}

#endif
