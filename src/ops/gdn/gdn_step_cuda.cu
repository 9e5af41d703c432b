/* gdn_step_cuda.cu -- decoding: segments of a few tokens that have a state (docs/math.md).
 *
 * A block owns COLS columns of one value head's state, read from memory once and written once whatever the number of
 * tokens or of sessions; a thread holds 4 neighbouring columns of ROWS neighbouring rows. The read after the write
 * needs no second pass:  q^T S_t = alpha q^T S_{t-1} + (q.k) beta e,  so a token costs one sum over the block.
 *
 * Blocks go on from tile to tile, and memory never waits for them: the next SLOTS tiles are on their way in shared
 * memory, where a thread reads what it has copied itself, as many already before other kernels are waited for. A
 * row of the next tile is read and summed when that of the present one goes back to memory, for stores take as long
 * as all the rest. Where tiles lie is known long before; q, k, v and the gates of a tile are asked for two tiles before,
 * and before the copies, behind which they would queue. */
#include "cuda/limits.cuh"
#include "ops/gdn/gdn_prep_cuda.cuh"
#include "ops/gdn/gdn_step_cuda.cuh"

enum { STEP_ROWS = 8 }; /* tokens of a segment */
enum { ROWS = 8, SLOTS = 2, KNOWN = 64, SM_THREADS = 512 };

struct place { /* of a tile */
    float *state;
    int row, len, hv, column;
};
template <int K, int COLS> struct step_tile { /* what a block has in shared memory */
    enum { QUADS = COLS / 4, THREADS = K / ROWS * QUADS, WARPS = THREADS / 32 };
    float4 ring[SLOTS][ROWS][THREADS];
    struct place place[KNOWN];       /* of the block's tile n: n % KNOWN */
    float part[WARPS][2 * COLS + 4]; /* k^T S, q^T S, q.k over a warp's rows */
    float all[2 * COLS + 4];
};

/* N activations as they came: who asks for them early must not touch them early. */
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
/* What a thread needs of a token. */
struct token {
    __align__(16) struct acts<ROWS> k, q;
    __align__(16) struct acts<4> v;
    act a, b;
    float g, beta; /* raw: A_log and dt_bias */
};
static __device__ __forceinline__ void fetch(struct token &x, const struct gdn_step &a, int64_t row, int hv,
                                             int K, int first, int column) {
    const int64_t qk = (row * a.H + hv / (a.HV / a.H)) * K + first, b = row * a.HV + hv;
    x.k.fetch(a.k + qk);
    x.q.fetch(a.q + qk);
    x.v.fetch(a.v + b * a.V + column);
    if (a.raw && a.a) x.a = a.a[row * a.ld + hv], x.g = a.A_log[hv], x.beta = a.dt_bias[hv];
    if (a.raw && a.b) x.b = a.b[row * a.ld + hv];
    if (!a.raw) x.g = a.g ? a.g[b] : 0.0f, x.beta = a.beta[b];
}
static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
static __device__ __forceinline__ float decay_of(const struct gdn_step &a, const struct token &x) {
    if (!a.raw) return expf(x.g);
    return a.a ? expf(-expf(x.g) * softplus(f32(x.a) + x.beta)) : 1.0f;
}
static __device__ __forceinline__ float beta_of(const struct gdn_step &a, const struct token &x) {
    if (!a.raw) return x.beta;
    return a.b ? a.top * sigmoid(f32(x.b)) : 1.0f;
}

/* k^T S, q^T S and q.k of the thread's rows: over the block to m.all, in a fixed order. All threads. */
template <int K, int COLS>
static __device__ __forceinline__ void sum_rows(struct step_tile<K, COLS> &m, float x[9]) {
    typedef struct step_tile<K, COLS> tile;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = tile::QUADS; n < 32; n *= 2)
#pragma unroll
        for (int j = 0; j < 9; j++) x[j] += __shfl_xor_sync(0xffffffffu, x[j], n);
    if (lane < tile::QUADS) {
        *(float4 *)(m.part[warp] + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)(m.part[warp] + COLS + 4 * lane) = make_float4(x[4], x[5], x[6], x[7]);
        if (lane == 0) m.part[warp][2 * COLS] = x[8];
    }
    __syncthreads();
    for (int i = threadIdx.x; i <= 2 * COLS; i += tile::THREADS) {
        float s = m.part[0][i];
#pragma unroll
        for (int w = 1; w < tile::WARPS; w++) s += m.part[w][i];
        m.all[i] = s;
    }
    __syncthreads();
}

/* x: what a row of four columns adds to k^T S, q^T S and q.k */
static __device__ __forceinline__ void add_row(float x[9], const float4 &S, float k, float q) {
    x[0] += k * S.x, x[1] += k * S.y, x[2] += k * S.z, x[3] += k * S.w;
    x[4] += q * S.x, x[5] += q * S.y, x[6] += q * S.z, x[7] += q * S.w;
    x[8] += q * k;
}
/* What a token does to the rows: S = alpha S + k r^T. */
struct change {
    float alpha, r[4];
    __device__ __forceinline__ void apply(float4 &S, float k) const {
        S.x = alpha * S.x + k * r[0], S.y = alpha * S.y + k * r[1];
        S.z = alpha * S.z + k * r[2], S.w = alpha * S.w + k * r[3];
    }
};
/* A token of a tile, from the thread's sums x: its outputs and sum of squares go to memory. All threads. */
template <int K, int COLS>
static __device__ __forceinline__ struct change
step_token(const struct gdn_step &a, struct step_tile<K, COLS> &m, const struct token &y,
           const struct place &p, int64_t row, float x[9]) {
    typedef struct step_tile<K, COLS> tile;
    const int quad = threadIdx.x % tile::QUADS, column = p.column + 4 * quad;
    const int64_t b = row * a.HV + p.hv;
    const float beta = beta_of(a, y), scale = 1.0f / sqrtf((float)K);
    struct change c = {decay_of(a, y)};
    float sum = 0.0f;
    sum_rows<K, COLS>(m, x);
    const float4 kS = *(const float4 *)(m.all + 4 * quad), qS = *(const float4 *)(m.all + COLS + 4 * quad);
    const float kept[4] = {kS.x, kS.y, kS.z, kS.w}, read[4] = {qS.x, qS.y, qS.z, qS.w}, qk = m.all[2 * COLS];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float e = y.v[j] - c.alpha * kept[j];
        c.r[j] = beta * e;
        const float s = a.evict == HOLA_EVICT_E ? e : a.evict == HOLA_EVICT_BETAV ? beta * y.v[j] : c.r[j];
        sum += s * s;
        const float o = scale * (c.alpha * read[j] + qk * c.r[j]);
        if (threadIdx.x < tile::QUADS && a.out32) a.out32[b * a.V + column + j] = o;
        else if (threadIdx.x < tile::QUADS) put(a.out + b * a.V + column + j, o);
    }
    if (threadIdx.x < 32) { /* the sums' columns are neighbouring lanes' */
#pragma unroll
        for (int n = 1; n < GDN_STEP_COLS / 4; n *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
        const int at = column / GDN_STEP_COLS;
        if (threadIdx.x < tile::QUADS && column % GDN_STEP_COLS == 0)
            a.sums[a.raw ? b * a.tiles + at : at * a.T * a.HV + b] = sum;
    }
    return c;
}

/* Places of the block's tiles from number n on, `many` of them; a barrier must follow. */
template <int K, int COLS>
static __device__ __forceinline__ void find_places(const struct gdn_step &a, struct step_tile<K, COLS> &m,
                                                   int n, int many, int items) {
    const int tiles = a.V / COLS, w = blockIdx.x + (n + threadIdx.x) * gridDim.x;
    if ((int)threadIdx.x >= many || w >= items) return;
    const struct hl_seg seg = a.seg[w / tiles / a.HV];
    struct place *p = &m.place[(n + threadIdx.x) % KNOWN];
    p->row = (int)seg.row, p->len = (int)seg.len, p->hv = w / tiles % a.HV, p->column = w % tiles * COLS;
    p->state = (float *)(seg.state + a.S_off) + (int64_t)p->hv * K * a.V + p->column;
}

/* The block's tile n, when there is one. */
template <int K, int COLS>
static __device__ __forceinline__ void bring(const struct gdn_step &a, struct step_tile<K, COLS> &m, int n,
                                             int own, int at) {
    if (n < own) {
        const float *from = m.place[n % KNOWN].state + at;
#pragma unroll
        for (int i = 0; i < ROWS; i++) copy_async(&m.ring[n % SLOTS][i][threadIdx.x], from + i * a.V);
    }
    copy_commit();
}
/* Token t of that tile, when there is one. */
template <int K, int COLS>
static __device__ __forceinline__ void ask(struct token &x, const struct gdn_step &a,
                                           const struct step_tile<K, COLS> &m, int n, int own, int t) {
    typedef struct step_tile<K, COLS> tile;
    if (n >= own) return;
    const struct place p = m.place[n % KNOWN];
    fetch(x, a, p.row + t, p.hv, K, threadIdx.x / tile::QUADS * ROWS,
          p.column + threadIdx.x % tile::QUADS * 4);
}

template <int K, int COLS>
static __global__ void __launch_bounds__(step_tile<K, COLS>::THREADS,
                                         SM_THREADS / step_tile<K, COLS>::THREADS)
    step_tokens(const struct gdn_step a, int items) {
    typedef struct step_tile<K, COLS> tile;
    tile &m = *(tile *)shared_memory();
    const int own = (items - 1 - (int)blockIdx.x) / (int)gridDim.x + 1; /* tiles */
    const int at = threadIdx.x / tile::QUADS * ROWS * a.V + threadIdx.x % tile::QUADS * 4;
    find_places<K, COLS>(a, m, 0, KNOWN * 3 / 4, items);
    __syncthreads();
    for (int i = 0; i < SLOTS; i++) bring<K, COLS>(a, m, i, own, at);
    wait_for_others(); /* no kernel right before this one writes states */
    let_others_start();
    struct token now, next, then;
    float4 S[ROWS] = {};
    float x[9] = {0.0f};
    ask<K, COLS>(now, a, m, 0, own, 0);
    ask<K, COLS>(next, a, m, 1, own, 0);
    copy_wait<SLOTS - 1>();
#pragma unroll
    for (int i = 0; i < ROWS; i++) S[i] = m.ring[0][i][threadIdx.x], add_row(x, S[i], now.k[i], now.q[i]);
    bring<K, COLS>(a, m, SLOTS, own, at);
    for (int n = 0; n < own; n++) {
        const struct place p = m.place[n % KNOWN];
        struct change c = {1.0f};
        for (int t = 0; t < p.len; t++) {
            if (t) {
                const struct token was = now;
                ask<K, COLS>(now, a, m, n, own, t);
#pragma unroll
                for (int i = 0; i < 9; i++) x[i] = 0.0f;
#pragma unroll
                for (int i = 0; i < ROWS; i++) c.apply(S[i], was.k[i]), add_row(x, S[i], now.k[i], now.q[i]);
            }
            c = step_token<K, COLS>(a, m, now, p, p.row + t, x);
        }
        ask<K, COLS>(then, a, m, n + 2, own, 0);
        if (n % (KNOWN / 2) == 0 && n) /* those of long ago make room */
            find_places<K, COLS>(a, m, n + KNOWN / 4, KNOWN / 2, items);
        copy_wait<SLOTS - 1>();
#pragma unroll
        for (int i = 0; i < 9; i++) x[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) { /* a row goes and the next tile's comes */
            c.apply(S[i], now.k[i]);
            __stcs((float4 *)(p.state + at + i * a.V), S[i]); /* not read again soon */
            if (n + 1 < own)
                S[i] = m.ring[(n + 1) % SLOTS][i][threadIdx.x], add_row(x, S[i], next.k[i], next.q[i]);
        }
        bring<K, COLS>(a, m, n + 1 + SLOTS, own, at);
        now = next, next = then;
    }
}

template <int K, int COLS>
static void start_tiles(struct hl_cuda *c, const struct gdn_step *a, int64_t segments) {
    typedef struct step_tile<K, COLS> tile;
    const int items = (int)segments * a->HV * (a->V / COLS),
              most = SM_THREADS / tile::THREADS * hl_cuda_sms(c);
    launch_early(c, step_tokens<K, COLS>, (unsigned)min(items, most), tile::THREADS, sizeof(tile), *a, items);
}
template <int K> static void start(struct hl_cuda *c, const struct gdn_step *a, int64_t segments) {
    const bool wide = a->V % 64 == 0 && shared_limit() >= (int)sizeof(struct step_tile<256, 64>);
    if (wide) start_tiles<K, 64>(c, a, segments);
    else start_tiles<K, 32>(c, a, segments);
}
void HL_OP(gdn_step_start)(struct hl_cuda *c, const struct gdn_step *a, int64_t K, int64_t segments) {
    if (K == 64) start<64>(c, a, segments);
    else if (K == 128) start<128>(c, a, segments);
    else start<256>(c, a, segments);
}

extern "C" bool HL_OP(gdn_step)(struct hl_pool *pool, const struct hl_gdn *a) {
    const int64_t rows = a->rows->T * a->HV, tiles = a->V / GDN_STEP_COLS;
    if (!gdn_step_knows(a->K, a->V) || a->A || a->v_new || a->rows->dev->longest > STEP_ROWS) return false;
    for (int64_t s = 0; s < a->rows->n; s++)
        if (!a->rows->seg[s].state || (uintptr_t)(a->rows->seg[s].state + a->S_off) % 16) return false;
    struct hl_cuda *c = hl_cuda_of(pool);
    struct gdn_step x = {(const act *)a->q, (const act *)a->k, (const act *)a->v, a->g,
                         a->beta,           (act *)a->out};
    x.sums = (float *)hl_cuda_scratch(c, tiles * rows * (int64_t)sizeof(float));
    if (!x.sums) return true;
    x.seg = a->rows->dev->seg, x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V, x.tiles = (int)tiles;
    HL_OP(gdn_step_start)(c, &x, a->K, a->rows->n);
    HL_OP(gdn_scores)(pool, a->m, x.sums, tiles, rows);
    return true;
}
