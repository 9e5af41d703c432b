/* cache_whole_cuda.cu -- backward of the exact memory on tensor cores, one thread block for a whole block of
 * the grid: every row comes from memory once, and neither probabilities nor ds leave the chip.
 *
 * The queries stay in shared memory and a warp keeps the dq of 16 of them in registers. Keys pass 32 at a
 * time: probabilities and ds of all queries (a warp has its own queries: dq), then dk and dv of these keys
 * (a warp has its own columns). For heads of up to 128 that share their keys with no other value head and
 * blocks of up to 256 rows; cache_kv_cuda.cu has the rest. */
#include "cuda/quick.cuh"
#include "ops/cache/cache_back_cuda.cuh"
#include "ops/cache/cache_mma.cuh"

#ifndef HL_CUDA_F32
static const float LOG2E = 1.44269504f;

enum { QUERIES = 256, KEYS = 32, WARPS = 16, THREADS = 32 * WARPS, LDP = KEYS + 8 };
template <int D> struct whole_room {
    enum {
        COLUMNS = 2 * D / WARPS, /* of dk and dv beside each other: a warp's */
        X = QUERIES * tile<D>::LD,
        KV = KEYS * tile<D>::LD,
        P = QUERIES * LDP,
        BYTES = (2 * X + 4 * KV + 2 * P) * 2 + 2 * QUERIES * 4,
    };
    bf16 *q, *dout, *kv, *p, *ds; /* kv: two places for k and v; p, ds: [query][key] */
    float *lse, *R;
};
template <int D> static __device__ __forceinline__ struct whole_room<D> whole_room_at(char *shared) {
    typedef struct whole_room<D> room;
    struct whole_room<D> m;
    m.q = (bf16 *)shared, m.dout = m.q + room::X, m.kv = m.dout + room::X;
    m.p = m.kv + 4 * room::KV, m.ds = m.p + room::P;
    m.lse = (float *)(m.ds + room::P), m.R = m.lse + QUERIES;
    return m;
}

/* What a thread knows of its warp's 16 queries, rows g and g + 8 of them: the log of the denominator to base
 * 2, lambda dout.read; and their dq, which tau has yet to be multiplied with. */
template <int D> struct queries {
    int from;
    float lse[2], R[2], dq[D / 8][4];
};

/* dout.read of every row into m.R, as the rows of dout arrive. */
template <int D>
static __device__ __forceinline__ void dout_read(const struct whole_room<D> &m, const struct cache_dev &c,
                                                 const struct view &s) {
    enum { CHUNKS = tile<D>::CHUNKS, AT_ONCE = 32 / CHUNKS, EACH = QUERIES / WARPS / AT_ONCE };
    const int lane = threadIdx.x % 32, at = lane % CHUNKS * 8;
    const int first = threadIdx.x / 32 * (QUERIES / WARPS) + lane / CHUNKS;
    uint4 read[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int r = first + i * AT_ONCE;
        read[i] = make_uint4(0, 0, 0, 0);
        if (r < s.len)
            read[i] = *(const uint4 *)((const bf16 *)c.a.read + ((int64_t)(s.row + r) * c.a.HV + s.h) * D + at);
    }
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int r = first + i * AT_ONCE;
        float x[8], y[8], sum = 0;
        load_wide(x, m.dout + r * tile<D>::LD + at), load_wide(y, (const bf16 *)&read[i]);
        for (int j = 0; j < 8; j++) sum += x[j] * y[j];
        for (int j = CHUNKS / 2; j > 0; j /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, j);
        if (lane % CHUNKS == 0) m.R[r] = sum;
    }
    __syncthreads();
}

/* Everything that is known before the first key: lse, R, and the block's shares of dgate and dsink. */
template <int D>
static __device__ __forceinline__ void open_queries(struct queries<D> &x, const struct whole_room<D> &m,
                                                    const struct cache_dev &c, const struct cache_back &b,
                                                    const struct view &s) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, row = threadIdx.x;
    const float lambda = sigmoid(c.a.gate[s.h]);
    const float lse = row < s.len ? c.a.lse[(int64_t)(s.row + row) * c.a.HV + s.h] : 0.0f;
    float *room = (float *)m.p;
    dout_read<D>(m, c, s);
    const float along = row < QUERIES ? m.R[row] : 0.0f, gate = block_sum(along, room),
                sink = block_sum(row < s.len ? expf(c.a.sink[s.h] - lse) * along : 0.0f, room);
    if (threadIdx.x == 0) {
        b.part[blockIdx.x * 2] = lambda * (1 - lambda) * gate;
        b.part[blockIdx.x * 2 + 1] = -lambda * sink;
    }
    if (row < QUERIES) m.lse[row] = lse * LOG2E, m.R[row] = lambda * along;
    __syncthreads();
    x.from = warp * 16;
    for (int e = 0; e < 2; e++) {
        x.lse[e] = m.lse[x.from + g + 8 * e];
        x.R[e] = m.R[x.from + g + 8 * e];
    }
}

/* Probabilities and ds of a warp's queries with KEYS keys, to shared memory, and dq += ds k. `edge`: of the
 * keys, those up to `last` are seen; for own ones `last` counts from the query. Returns the thread's share of
 * the sum of ds q.k. scale: tau and log2 e over sqrt(K) */
template <int D, bool edge>
static __device__ __forceinline__ float pairs(struct queries<D> &x, const struct whole_room<D> &m,
                                              const bf16 *k, float scale, float lambda, bool own, int last) {
    enum { LD = tile<D>::LD };
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const bf16 *v = k + whole_room<D>::KV;
    float s[KEYS / 8][4] = {}, dp[KEYS / 8][4] = {}, sum = 0;
    uint32_t ds[KEYS / 8][2];
    product_rows_two<D, KEYS>(s, m.q, k, dp, m.dout, v, x.from, 0);
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int query = x.from + g + 8 * e, key = n * 8 + 2 * t, end = own ? last + query : last;
            float p[2], d[2];
#pragma unroll
            for (int f = 0; f < 2; f++) {
                const float z = s[n][2 * e + f];
                p[f] = quick_exp2(z * scale - x.lse[e]);
                if (edge && key + f > end) p[f] = 0.0f;
                d[f] = p[f] * (lambda * dp[n][2 * e + f] - x.R[e]);
                sum += d[f] * z;
            }
            ds[n][e] = pack2(d[0], d[1]);
            *(uint32_t *)(m.p + query * LDP + key) = pack2(p[0], p[1]);
            *(uint32_t *)(m.ds + query * LDP + key) = ds[n][e];
        }
#pragma unroll
    for (int j = 0; j < KEYS; j += 16) {
        const uint32_t a[4] = {ds[j / 8][0], ds[j / 8][1], ds[j / 8 + 1][0], ds[j / 8 + 1][1]};
#pragma unroll
        for (int n = 0; n < D; n += 16) {
            uint32_t b[4];
            fragment_b_turned(b, k, LD, j, n);
            mma_bf16(x.dq[n / 8], a, b), mma_bf16(x.dq[n / 8 + 1], a, b + 2);
        }
    }
    return sum;
}

/* Words x and y of two lanes whose numbers differ in `bit`: the lower lane's y and the upper one's x change
 * places. */
static __device__ __forceinline__ void trade(uint32_t &x, uint32_t &y, int bit) {
    const bool upper = threadIdx.x & bit;
    const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? x : y, bit);
    x = upper ? got : x, y = upper ? y : got;
}
/* Word j of lane t of four neighbours becomes word t of lane j. */
static __device__ __forceinline__ void turn_four(uint32_t x[4]) {
    trade(x[0], x[1], 1), trade(x[2], x[3], 1);
    trade(x[0], x[2], 2), trade(x[1], x[3], 2);
}
/* Sums of 16 rows and 8 N columns (a thread: rows g and g + 8) as 16 bytes of 8 columns, the w-th of a thread's
 * N / 2: of row `row` and column `column`. */
struct spot {
    int row, column;
};
template <int N> static __device__ __forceinline__ struct spot spot_of(int w) {
    const int at = 4 * w + threadIdx.x % 4;
    const struct spot p = {(int)threadIdx.x % 32 / 4 + at / N * 8, at % N * 8};
    return p;
}
template <int N>
static __device__ __forceinline__ uint4 eight_columns(const float sum[N][4], int w, float by, uint4 add) {
    float old[8];
    uint32_t lo[4], hi[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int at = 4 * w + j;
        lo[j] = __float_as_uint(sum[at % N][at / N * 2]), hi[j] = __float_as_uint(sum[at % N][at / N * 2 + 1]);
    }
    turn_four(lo), turn_four(hi);
    load_wide(old, (const bf16 *)&add);
    uint32_t r[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        r[j] = pack2(old[2 * j] + by * __uint_as_float(lo[j]), old[2 * j + 1] + by * __uint_as_float(hi[j]));
    return make_uint4(r[0], r[1], r[2], r[3]);
}

/* dk and dv of the tile's keys, from the queries [from, to): a warp's columns, of dk or of dv, times tau or
 * lambda. Own rows go to their place, dv's on top of what is there; kept ones to `kept`. */
template <int D>
static __device__ __forceinline__ void back_keys(const struct whole_room<D> &m, const struct cache_dev &c,
                                                 const struct view &s, int from, int to, int keys, int row,
                                                 float tau, float lambda, float *kept) {
    enum { COLUMNS = whole_room<D>::COLUMNS, N = COLUMNS / 8 };
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const bool values = warp >= WARPS / 2;
    const bf16 *p = values ? m.p : m.ds, *x = values ? m.dout : m.q;
    const int column = warp % (WARPS / 2) * COLUMNS;
    const float by = values ? lambda : tau;
    bf16 *out = (bf16 *)(values ? c.a.dv : c.a.dk) + ((int64_t)row * c.a.HV + s.h) * D + column;
    float sum[2][N][4] = {};
    uint4 old[2][N / 2];
#pragma unroll
    for (int i = 0; i < N; i++) { /* every load before the first store: they might be the same memory */
        const struct spot at = spot_of<N>(i % (N / 2));
        const int r = i / (N / 2) * 16 + at.row;
        old[i / (N / 2)][i % (N / 2)] = make_uint4(0, 0, 0, 0);
        if (values && !kept && r < keys)
            old[i / (N / 2)][i % (N / 2)] = *(const uint4 *)(out + (int64_t)r * c.a.HV * D + at.column);
    }
#pragma unroll 2
    for (int k = from; k < to; k += 16) {
        uint32_t a[2][4], b[4];
        fragment_a_turned(a[0], p, LDP, k, 0), fragment_a_turned(a[1], p, LDP, k, 16);
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 16) {
            fragment_b_turned(b, x, tile<D>::LD, k, column + n);
#pragma unroll
            for (int i = 0; i < 2; i++)
                mma_bf16(sum[i][n / 8], a[i], b), mma_bf16(sum[i][n / 8 + 1], a[i], b + 2);
        }
    }
    if (kept) {
        kept += (values ? D : 0) + column + 2 * t;
#pragma unroll
        for (int i = 0; i < 4 * N; i++) {
            const int r = i / (2 * N) * 16 + i % 2 * 8 + g, n = i / 2 % N;
            const float *y = &sum[i / (2 * N)][n][i % 2 * 2];
            if (r < keys) *(float2 *)(kept + r * 2 * D + n * 8) = make_float2(by * y[0], by * y[1]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const struct spot at = spot_of<N>(i % (N / 2));
        const int r = i / (N / 2) * 16 + at.row;
        const uint4 y = eight_columns<N>(sum[i / (N / 2)], i % (N / 2), by, old[i / (N / 2)][i % (N / 2)]);
        if (r < keys) *(uint4 *)(out + (int64_t)r * c.a.HV * D + at.column) = y;
    }
}

template <int D>
static __device__ __forceinline__ void write_dq(const struct queries<D> &x, const struct cache_dev &c,
                                                const struct view &s, float tau) {
#pragma unroll
    for (int w = 0; w < D / 16; w++) {
        const struct spot at = spot_of<D / 8>(w);
        const int r = x.from + at.row;
        const uint4 y = eight_columns<D / 8>(x.dq, w, tau, make_uint4(0, 0, 0, 0));
        if (r < s.len)
            *(uint4 *)((bf16 *)c.a.dq + ((int64_t)(s.row + r) * c.a.H + s.hk) * D + at.column) = y;
    }
}

/* grid (blocks HV) */
template <int D>
static __global__ void __launch_bounds__(THREADS, 1) back_whole(const struct cache_dev c, const struct cache_back b) {
    const struct whole_room<D> m = whole_room_at<D>(shared_memory());
    const int64_t block = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV;
    const struct view s = view_of(c, block, h, true);
    const int kepts = (s.kept + KEYS - 1) / KEYS, all = kepts + (s.len + KEYS - 1) / KEYS;
    const float tau = c.a.tau[h] / sqrtf((float)D), lambda = sigmoid(c.a.gate[h]);
    struct queries<D> x = {};
    float dtau = 0;
    fetch_rows<D, QUERIES, THREADS>(m.dout, c.a.dout, c.a.HV, h, s.row, s.len);
    fetch_rows<D, QUERIES, THREADS>(m.q, c.a.q, c.a.H, s.hk, s.row, s.len);
    fetch_columns<D, KEYS, THREADS>(m.kv, m.kv + whole_room<D>::KV, c, s, kepts > 0, 0);
    copy_commit();
    open_queries<D>(x, m, c, b, s);
    for (int u = 0; u < all; u++) {
        const bool own = u >= kepts;
        const int from = (own ? u - kepts : u) * KEYS, keys = (own ? s.len : s.kept) - from;
        const bf16 *k = m.kv + u % 2 * 2 * whole_room<D>::KV;
        copy_wait<0>();
        __syncthreads();
        if (u + 1 < all) {
            bf16 *next = m.kv + (u + 1) % 2 * 2 * whole_room<D>::KV;
            const bool old = u + 1 < kepts;
            fetch_columns<D, KEYS, THREADS>(next, next + whole_room<D>::KV, c, s, old,
                                            (old ? u + 1 : u + 1 - kepts) * KEYS);
        }
        copy_commit();
        const int first = own ? from : 0, last = own ? -from : keys - 1;
        if (x.from >= first && x.from < s.len) {
            if (own ? x.from < from + KEYS : keys < KEYS)
                dtau += pairs<D, true>(x, m, k, tau * LOG2E, lambda, own, last);
            else dtau += pairs<D, false>(x, m, k, tau * LOG2E, lambda, own, last);
        }
        __syncthreads();
        back_keys<D>(m, c, s, first, (s.len + 15) / 16 * 16, keys, s.row + from, tau, lambda,
                     own ? (float *)NULL : b.kept + ((block * c.a.HV + h) * c.a.window + from) * 2 * D);
    }
    write_dq<D>(x, c, s, tau);
    if (!c.a.dtau) return;
    dtau = block_sum(dtau / sqrtf((float)D), m.R);
    if (threadIdx.x == 0) b.tau[blockIdx.x] = dtau;
}

template <int D> static void run(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    launch(cuda, back_whole<D>, (unsigned)(c->rows.blocks * c->a.HV), THREADS, (size_t)whole_room<D>::BYTES, *c,
           *b);
}
void HL_OP(cache_back_whole)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    run<128>(cuda, c, b);
}
bool HL_OP(cache_whole_fits)(const struct hl_cache *a) {
    return a->K == 128 && a->H == a->HV && a->chunk <= QUERIES && shared_limit() >= (int)whole_room<128>::BYTES;
}
#else /* cache_tiled() never asks for it */
void HL_OP(cache_back_whole)(struct hl_cuda *, const struct cache_dev *, const struct cache_back *) {}
bool HL_OP(cache_whole_fits)(const struct hl_cache *) { return false; }
#endif
