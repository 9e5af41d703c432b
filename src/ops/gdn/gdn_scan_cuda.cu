/* gdn_scan_cuda.cu -- the chunked delta rule for few, long segments (ARCHITECTURE sec. 4.1), where the
 * way from chunk to chunk is what takes the time:
 *     scan       v_new = -w S + A (beta v),  S = exp(G_last) S + (exp(G_last - G) k)^T v_new
 *     gdn_out    out = K^{-1/2} exp(G) q h + P v_new, all chunks at once; h: every S, kept in bf16
 * The scan's blocks have 16 columns of V. The left operands of its products come ready-made from
 * gdn_prep, as fragments that each warp loads straight into registers a chunk ahead. Of the first 8
 * warps, warp w has 16 rows of w and half of K in the first product, K/8 rows of S in the second; the
 * halves meet in shared memory. 4 more warps do what is not on that way: h and v_new to memory, what
 * comes next from there. Three barriers a chunk. */
#include "cuda/early.cuh"
#include "ops/gdn/gdn_prep_cuda.cuh"

#ifndef HL_CUDA_F32

enum {
    THREADS = 256,
    SCAN_THREADS = 384,
    SERVICE = SCAN_THREADS - THREADS,
    VT = 16,
    AHEAD = 4 /* chunks that are called into the L2 cache early */
};

struct args {
    const bf16 *v;
    const float *gates;
    const uint4 *w, *k_end;
    bf16 *v_new, *h; /* h: [chunks][HV][K][V] */
    float *sums;     /* [tiles][T][HV] */
    const struct hl_seg *seg;
    const int32_t *chunk_first;
    int64_t S_off, T;
    int HV, V, tiles;
};

template <int K> struct room {
    bf16 S[K * VT], v[2][CHUNK * VT], v_new[CHUNK * VT];
    float half[2][4][4][32];
};

/* One block's walk, a thread's place in it. */
struct walk {
    int64_t row, rows; /* of the segment */
    int64_t first;     /* chunk, then times HV plus the head: the index of what is kept per chunk */
    int hv, col, tile;
};

template <int N> static __device__ __forceinline__ void load_frags(uint32_t f[N][4], const uint4 *from) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        const uint4 u = __ldg(from + n * 32);
        f[n][0] = u.x, f[n][1] = u.y, f[n][2] = u.z, f[n][3] = u.w;
    }
}
/* the warp's tiles of w (then A) and of k, of the chunk's head at `at` */
template <int K> static __device__ __forceinline__ const uint4 *w_tiles(const struct args &a, int64_t at) {
    const int lane = threadIdx.x % 32, rows = threadIdx.x / 32 % 4;
    return a.w + (at * gdn_w_tiles(K) + rows * (K / 16 + 4)) * 32 + lane;
}
template <int K> static __device__ __forceinline__ const uint4 *k_tiles(const struct args &a, int64_t at) {
    return a.k_end + (at * gdn_k_tiles(K) + threadIdx.x / 32 * (K / 32)) * 32 + threadIdx.x % 32;
}
/* half of the row's tiles of w, then half of those of A */
template <int K>
static __device__ __forceinline__ void load_w(uint32_t f[K / 32 + 2][4], const uint4 *w, int half) {
    load_frags<K / 32>(f, w + half * (K / 32) * 32);
    load_frags<2>(f + K / 32, w + (K / 16 + 2 * half) * 32);
}

/* ---- the service warps: i counts their threads ---- */

static __device__ __forceinline__ void load_v(bf16 *to, const struct args &a, const struct walk &w, int c,
                                              int i) {
    const int row = i / 2, col = i % 2 * 8;
    const int64_t t = (int64_t)c * CHUNK + row;
    const bool in = t < w.rows;
    const bf16 *from = a.v + ((w.row + (in ? t : 0)) * a.HV + w.hv) * a.V + w.col + col;
    copy_async(to + tile_at<VT>(row, col), from, in ? 16 : 0);
}
/* Calls a chunk into the L2 cache: the blocks of a head share what all of them read. */
static __device__ __forceinline__ void call(const void *p, int lines, int first, int step) {
#if !defined(HL_CUDA_EMU)
    for (int n = first; n < lines; n += step)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)p + 128 * n));
#endif
}
template <int K>
static __device__ __forceinline__ void call_chunk(const struct args &a, const struct walk &w, int c, int i) {
    const int64_t at = w.first + (int64_t)c * a.HV, row = (int64_t)c * CHUNK + i;
    call(a.w + at * (gdn_w_tiles(K) * 32), gdn_w_tiles(K) * 4, w.tile + i * a.tiles, SERVICE * a.tiles);
    call(a.k_end + at * (gdn_k_tiles(K) * 32), gdn_k_tiles(K) * 4, w.tile + i * a.tiles, SERVICE * a.tiles);
    if (i < CHUNK && row < w.rows) call(a.v + ((w.row + row) * a.HV + w.hv) * a.V + w.col, 1, 0, 1);
}
/* the state's copy to memory */
template <int K>
static __device__ __forceinline__ void keep_state(const struct args &a, const struct walk &w, int c,
                                                  const bf16 *S, int i) {
    bf16 *h = a.h + ((w.first + (int64_t)c * a.HV) * K + i / 2) * a.V + w.col + i % 2 * 8;
    S += tile_at<VT>(i / 2, i % 2 * 8);
#pragma unroll
    for (int n = 0; n < 2 * K / SERVICE; n++)
        *(uint4 *)(h + (int64_t)n * (SERVICE / 2) * a.V) = *(const uint4 *)(S + n * (SERVICE / 2) * VT);
}
/* v_new to memory, and the sums of its squares */
static __device__ __forceinline__ void keep_values(const struct args &a, const struct walk &w, int c,
                                                   const bf16 *v_new, int i) {
    const int64_t t = (int64_t)c * CHUNK + i / 2, at = (w.row + t) * a.HV + w.hv;
    const bf16 *from = v_new + tile_at<VT>(i / 2, i % 2 * 8);
    float x[8], sum = 0.0f;
    load_wide(x, from);
#pragma unroll
    for (int n = 0; n < 8; n++) sum += x[n] * x[n];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (t >= w.rows) return;
    *(uint4 *)(a.v_new + at * a.V + w.col + i % 2 * 8) = *(const uint4 *)from;
    if (i % 2 == 0) a.sums[w.tile * a.T * a.HV + at] = sum;
}
template <int K>
static __device__ __forceinline__ void serve(struct room<K> &x, const struct args &a, const struct walk &w,
                                             int chunks) {
    const int i = threadIdx.x - THREADS;
    load_v(x.v[0], a, w, 0, i);
    copy_commit();
    for (int c = 1; c < AHEAD && c < chunks; c++) call_chunk<K>(a, w, c, i);
    copy_wait<0>();
    __syncthreads();
    for (int c = 0; c < chunks; c++) {
        if (c + 1 < chunks) load_v(x.v[(c + 1) & 1], a, w, c + 1, i);
        copy_commit();
        keep_state<K>(a, w, c, x.S, i);
        if (c + AHEAD < chunks) call_chunk<K>(a, w, c + AHEAD, i);
        __syncthreads();
        __syncthreads();
        keep_values(a, w, c, x.v_new, i);
        copy_wait<0>();
        __syncthreads();
    }
}

/* ---- the other 8 ---- */

/* the warp's half of v_new, of its 16 rows; every second product adds to the other sum, so that two are
 * under way */
template <int K>
static __device__ __forceinline__ void read_state(const bf16 *S, const bf16 *v, uint32_t f[K / 32 + 2][4],
                                                  float acc[2][4]) {
    const int half = threadIdx.x / 128;
    float more[2][4] = {};
#pragma unroll
    for (int n = 0; n < K / 32 + 2; n++) {
        uint32_t b[4];
        if (n < K / 32) frag_b<VT>(b, S, 16 * (half * (K / 32) + n), 0);
        else frag_b<VT>(b, v, 16 * (2 * half + n - K / 32), 0);
        mma_bf16(n % 2 ? more[0] : acc[0], f[n], b);
        mma_bf16(n % 2 ? more[1] : acc[1], f[n], b + 2);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) acc[0][i] += more[0][i], acc[1][i] += more[1][i];
}

/* The warps of a row exchange halves of 8 columns each, and leave v_new of their own. */
static __device__ __forceinline__ void give_half(float half[2][4][4][32], const float acc[2][4]) {
    const int lane = threadIdx.x % 32, rows = threadIdx.x / 32 % 4, mine = threadIdx.x / 128;
#pragma unroll
    for (int i = 0; i < 4; i++) half[mine][rows][i][lane] = mine ? acc[0][i] : acc[1][i];
}
static __device__ __forceinline__ void leave_values(bf16 *v_new, const float half[2][4][4][32],
                                                    const float acc[2][4]) {
    const int lane = threadIdx.x % 32, rows = threadIdx.x / 32 % 4, mine = threadIdx.x / 128;
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = (mine ? acc[1][i] : acc[0][i]) + half[1 - mine][rows][i][lane];
    *(uint32_t *)(v_new + tile_at<VT>(16 * rows + lane / 4, 8 * mine + lane % 4 * 2)) = pack2(x[0], x[1]);
    *(uint32_t *)(v_new + tile_at<VT>(16 * rows + lane / 4 + 8, 8 * mine + lane % 4 * 2)) = pack2(x[2], x[3]);
}

/* where a thread's pair (m, n, h) of S is: row of K, column of the tile */
template <int K> static __device__ __forceinline__ int state_row(int m, int h) {
    return threadIdx.x / 32 * (K / 8) + 16 * m + 8 * h + threadIdx.x % 32 / 4;
}
template <int K> static __device__ __forceinline__ void state_copy(bf16 *tile, const float S[K / 128][2][4]) {
#pragma unroll
    for (int m = 0; m < K / 128; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(uint32_t *)(tile + tile_at<VT>(state_row<K>(m, i % 2), i / 2 * 8 + threadIdx.x % 4 * 2)) =
                pack2(S[m][i / 2][2 * (i % 2)], S[m][i / 2][2 * (i % 2) + 1]);
}
/* out of or into a session's state; in: S is read */
template <int K>
static __device__ __forceinline__ void state_memory(float *kept, float S[K / 128][2][4], int64_t V, bool in) {
#pragma unroll
    for (int m = 0; m < K / 128; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *s = &S[m][i / 2][2 * (i % 2)];
            float2 *p = (float2 *)(kept + state_row<K>(m, i % 2) * V + i / 2 * 8 + threadIdx.x % 4 * 2);
            if (in) s[0] = kept ? p->x : 0.0f, s[1] = kept ? p->y : 0.0f;
            else *p = make_float2(s[0], s[1]);
        }
}

/* S += k_end v_new */
template <int K>
static __device__ __forceinline__ void write_state(const bf16 *v_new, uint32_t f[K / 32][4],
                                                   float S[K / 128][2][4]) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint32_t b[4];
        frag_b<VT>(b, v_new, 16 * n, 0);
#pragma unroll
        for (int m = 0; m < K / 128; m++) {
            mma_bf16(S[m][0], f[4 * m + n], b);
            mma_bf16(S[m][1], f[4 * m + n], b + 2);
        }
    }
}

template <int K> static __global__ void __launch_bounds__(SCAN_THREADS) scan_chunks(const struct args a) {
    struct room<K> &x = *(struct room<K> *)shared_memory();
    const int tile = blockIdx.x % a.tiles, hv = blockIdx.x / a.tiles % a.HV, s = blockIdx.x / a.tiles / a.HV;
    const struct hl_seg seg = a.seg[s];
    const struct walk w = {seg.row, seg.len, (int64_t)a.chunk_first[s] * a.HV + hv, hv, tile * VT, tile};
    const int chunks = a.chunk_first[s + 1] - a.chunk_first[s], half = threadIdx.x / 128;
    wait_for_others();
    let_others_start();
    if (threadIdx.x >= THREADS) {
        serve<K>(x, a, w, chunks);
        return;
    }
    float *kept = seg.state ? (float *)(seg.state + a.S_off) + (int64_t)hv * K * a.V + w.col : NULL;
    const uint4 *wp = w_tiles<K>(a, w.first), *kp = k_tiles<K>(a, w.first);
    const float *ep = a.gates + w.first * GATES + 2 * CHUNK - 1;
    uint32_t wf[K / 32 + 2][4], kf[K / 32][4];
    float S[K / 128][2][4], end = *ep;
    load_w<K>(wf, wp, half);
    load_frags<K / 32>(kf, kp);
    state_memory<K>(kept, S, a.V, true);
    state_copy<K>(x.S, S);
    __syncthreads();
    for (int c = 0; c < chunks; c++) {
        const int64_t step = c + 1 < chunks ? a.HV : 0; /* the last chunk is loaded twice */
        float acc[2][4] = {};
        read_state<K>(x.S, x.v[c & 1], wf, acc);
        give_half(x.half, acc);
        wp += step * (gdn_w_tiles(K) * 32);
        load_w<K>(wf, wp, half);
        __syncthreads(); /* both halves are there */
        leave_values(x.v_new, x.half, acc);
#pragma unroll
        for (int m = 0; m < K / 128; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) S[m][i / 4][i % 4] *= end;
        ep += step * GATES;
        end = *ep;
        __syncthreads(); /* v_new is there; nobody reads S any more */
        write_state<K>(x.v_new, kf, S);
        kp += step * (gdn_k_tiles(K) * 32);
        load_frags<K / 32>(kf, kp);
        state_copy<K>(x.S, S);
        __syncthreads(); /* the next S is there */
    }
    if (kept) state_memory<K>(kept, S, a.V, false);
}

template <int K> static void launch_scan(struct hl_cuda *c, const struct args *a, int64_t segments) {
    launch_early(c, scan_chunks<K>, (unsigned)(segments * a->HV * a->tiles), SCAN_THREADS,
                 sizeof(struct room<K>), *a);
}
/* scratch: takes `bytes` of it, on 256 */
static void *take(char **room, int64_t bytes) {
    void *p = *room;
    *room += (bytes + 255) / 256 * 256;
    return p;
}
/* Lays the scratch out from `room`; returns its end, so that from 0 on it counts. */
static char *carve(const struct hl_gdn *a, char *room, struct gdn_prep *p, struct args *x) {
    const int64_t rows = a->rows->T * a->HV, heads = a->rows->dev->chunks * a->HV, K = a->K;
    p->P = (bf16 *)take(&room, rows * CHUNK * 2);
    p->A = a->A ? (bf16 *)a->A : (bf16 *)take(&room, rows * CHUNK * 2);
    p->gates = (float *)take(&room, heads * GATES * 4);
    p->w = (uint4 *)take(&room, heads * gdn_w_tiles((int)K) * 512);
    p->k_end = (uint4 *)take(&room, heads * gdn_k_tiles((int)K) * 512);
    x->h = (bf16 *)take(&room, heads * K * a->V * 2);
    x->v_new = a->v_new ? (bf16 *)a->v_new : (bf16 *)take(&room, rows * a->V * 2);
    x->sums = (float *)take(&room, a->V / VT * rows * 4);
    return room;
}

#endif

extern "C" bool HL_OP(gdn_scan)(struct hl_pool *pool, const struct hl_gdn *a) {
#ifdef HL_CUDA_F32
    return false;
#else
    struct hl_cuda *c = hl_cuda_of(pool);
    struct gdn_prep p = {};
    struct args x = {};
    if ((a->K != 128 && a->K != 256) || a->V % 64) return false;
    const int64_t bytes = carve(a, NULL, &p, &x) - (char *)NULL;
    char *room = (char *)hl_cuda_scratch(c, bytes);
    if (!room) return true;
    carve(a, room, &p, &x);
    x.v = (const bf16 *)a->v, x.gates = p.gates, x.w = p.w, x.k_end = p.k_end;
    x.seg = a->rows->dev->seg, x.chunk_first = a->rows->dev->chunk_first;
    x.S_off = a->S_off, x.T = a->rows->T;
    x.HV = (int)a->HV, x.V = (int)a->V, x.tiles = (int)(a->V / VT);
    struct gdn_out o = {x.h, x.v_new, p.P, p.gates};
    HL_OP(gdn_prep)(pool, a, &p);
    if (a->K == 128) launch_scan<128>(c, &x, a->rows->n);
    else launch_scan<256>(c, &x, a->rows->n);
    HL_OP(gdn_out)(pool, a, &o);
    HL_OP(gdn_scores)(pool, a->m, x.sums, x.tiles, a->rows->T * a->HV);
    return true;
#endif
}
