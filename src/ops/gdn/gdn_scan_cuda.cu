/* gdn_scan_cuda.cu -- the chunked delta rule for few segments (docs/math.md, "The delta rule", in chunks), where the
 * latency per chunk dominates: the scan computes only what the next chunk depends on.
 *     scan       r = beta (v - exp(G) k S),  v_new = A r,  S = exp(G_last) S + k^T (exp(G_last - G) v_new)
 *     gdn_out    out = K^{-1/2} exp(G) q h + P v_new, all chunks at once; h: every S, stored in bf16
 * Grid: a block per segment, value head and VT columns of V (tiles fastest). Block: three warpgroups. The first
 * computes r and v_new. The first two hold S, K/2 rows each, in fp32 registers, with a bf16 copy in shared memory as
 * the next chunk's operand. The third loads chunks, DEPTH - 1 ahead, and stores h and v_new. k, the largest input of a
 * chunk, which every block of a head reads, is loaded once for both its products. All three synchronise at two
 * __syncthreads per chunk: v_new is complete; the next S and the next chunk are complete. When h and v_new of a window
 * of chunks are in memory the block raises `ready`, for which gdn_out, already running, polls. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/gdn/gdn_cuda.cuh"

#ifndef HL_CUDA_F32

enum { GROUP = 128, COMPUTE = 2 * GROUP, SCAN_THREADS = 3 * GROUP, PANEL = CHUNK * 64 };

struct args {
    const bf16 *k, *v, *A;
    const float *gates;
    bf16 *v_new, *h; /* h: [chunks][HV][K][V] */
    float *sums;     /* [tiles][T][HV] */
    int *ready;      /* as in gdn_out */
    const struct hl_seg *seg;
    const int32_t *chunk_first;
    int64_t S_off, T;
    int H, HV, V, tiles;
};

/* The inputs of a chunk: k in panels of 64 columns. Rows of tiles start on 1024 bytes. */
template <int K, int VT> struct stage { bf16 k[CHUNK * K], A[CHUNK * CHUNK], v[CHUNK * VT]; };
template <int K, int VT> struct smem {
    enum { DEPTH = 4 };
    stage<K, VT> s[DEPTH];
    bf16 S[K * VT], r[CHUNK * VT], v_new[CHUNK * VT], v_end[CHUNK * VT]; /* v_end: decayed to the end */
    float gates[DEPTH][GATES_READ];
};

/* The segment, head and columns that a block scans. */
struct place {
    int64_t row, rows; /* of the segment */
    int64_t first;     /* of [chunks][HV] */
    int hv, col, tile;
};

/* ---- the third warpgroup: loads and stores, by threads i of GROUP ---- */

template <int K, int VT>
static __device__ __forceinline__ void load_chunk(smem<K, VT> &x, const struct args &a, const struct place &w, int c,
                                                  int i) {
    const int64_t t = (int64_t)c * CHUNK, left = w.rows - t, row = w.row + t, at = row * a.HV + w.hv;
    const int len = left < CHUNK ? (int)left : CHUNK, n = c % smem<K, VT>::DEPTH;
    const bf16 *k = a.k + (row * a.H + w.hv / (a.HV / a.H)) * K;
#pragma unroll
    for (int p = 0; p < K / 64; p++)
        copy_panel<64, CHUNK, GROUP>(x.s[n].k + p * PANEL, k + 64 * p, (int64_t)a.H * K, len, i);
    copy_panel<CHUNK, CHUNK, GROUP>(x.s[n].A, a.A + at * CHUNK, (int64_t)a.HV * CHUNK, len, i);
    copy_panel<VT, CHUNK, GROUP>(x.s[n].v, a.v + at * a.V + w.col, (int64_t)a.HV * a.V, len, i);
    if (i < GATES_READ / 4) copy_async(x.gates[n] + 4 * i, a.gates + (w.first + (int64_t)c * a.HV) * GATES + 4 * i);
}
/* h: the state's bf16 copy to memory */
template <int K, int VT>
static __device__ __forceinline__ void store_h(const struct args &a, const struct place &w, int c, const bf16 *S,
                                               int i) {
    const int units = VT / 8, pass = GROUP / units, row = i / units, col = i % units * 8;
    bf16 *h = a.h + ((w.first + (int64_t)c * a.HV) * K + row) * a.V + w.col + col;
    S += tile_at<VT>(row, col);
#pragma unroll
    for (int n = 0; n < K / pass; n++) *(uint4 *)(h + (int64_t)n * pass * a.V) = *(const uint4 *)(S + n * pass * VT);
}
/* v_new to memory, and the sums of its squares */
template <int VT>
static __device__ __forceinline__ void store_v_new(const struct args &a, const struct place &w, int c,
                                                   const bf16 *v_new, int i) {
    const int units = VT / 8, pass = GROUP / units, col = i % units * 8;
#pragma unroll
    for (int row = i / units; row < CHUNK; row += pass) {
        const int64_t t = (int64_t)c * CHUNK + row, at = (w.row + t) * a.HV + w.hv;
        const bf16 *from = v_new + tile_at<VT>(row, col);
        float x[8], sum = 0.0f;
        load_wide(x, from);
#pragma unroll
        for (int n = 0; n < 8; n++) sum += x[n] * x[n];
#pragma unroll
        for (int n = 1; n < units; n *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
        if (t >= w.rows) continue;
        *(uint4 *)(a.v_new + at * a.V + w.col + col) = *(const uint4 *)from;
        if (i % units == 0) a.sums[w.tile * a.T * a.HV + at] = sum;
    }
}
/* By one thread, after a barrier that follows the block's stores of all chunks before c; once per window, as the fence
 * is slow. */
static __device__ __forceinline__ void signal_ready(const struct args &a, const struct place &w, int c) {
    __threadfence();
    atomicAdd(a.ready + w.first + (int64_t)gdn_window(c - 1) * a.HV, 1);
}
template <int K, int VT>
static __device__ __forceinline__ void load_and_store(smem<K, VT> &x, const struct args &a, const struct place &w,
                                                      int chunks) {
    enum { AHEAD = smem<K, VT>::DEPTH - 1 };
    const int i = threadIdx.x - COMPUTE;
    for (int c = 0; c < AHEAD; c++) {
        if (c < chunks) load_chunk(x, a, w, c, i);
        copy_commit();
    }
    copy_wait<AHEAD - 1>();
    fence_proxy_async();
    __syncthreads();
    for (int c = 0; c < chunks; c++) {
        if (c + AHEAD < chunks) load_chunk(x, a, w, c + AHEAD, i);
        copy_commit();
        store_h<K, VT>(a, w, c, x.S, i);
        __syncthreads();
        store_v_new<VT>(a, w, c, x.v_new, i);
        copy_wait<AHEAD - 1>();
        fence_proxy_async();
        __syncthreads();
    }
}

/* ---- the first two: lane 4g + t holds columns 2t, 2t + 1 of every 8, of the warp's rows g and g + 8 ---- */

static __device__ __forceinline__ int own_row(int h) {
    return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * h;
}

/* r = beta (v - exp(G) k S) */
template <int K, int VT>
static __device__ __forceinline__ void residual(smem<K, VT> &x, const stage<K, VT> &s, const float *gates) {
    const int t = threadIdx.x % 4;
    float acc[VT / 8][4] = {};
    wgmma_begin<VT / 8>(acc);
#pragma unroll
    for (int n = 0; n < K / 16; n++)
        wgmma_ss<VT>(acc, operand<64, false>{s.k + n / 4 * PANEL, 0, n % 4 * 16}, operand<VT, true>{x.S, 16 * n, 0});
    wgmma_end<VT / 8>(acc);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float beta = gates[own_row(h)], eG = gates[CHUNK + own_row(h)];
#pragma unroll
        for (int n = 0; n < VT / 8; n++) {
            const int at = tile_at<VT>(own_row(h), 8 * n + 2 * t);
            const uint32_t v = *(const uint32_t *)(s.v + at);
            *(uint32_t *)(x.r + at) =
                pack2(beta * (low(v) - eG * acc[n][2 * h]), beta * (high(v) - eG * acc[n][2 * h + 1]));
        }
    }
    fence_proxy_async();
}
/* v_new = A r, plain and decayed */
template <int K, int VT>
static __device__ __forceinline__ void values(smem<K, VT> &x, const stage<K, VT> &s, const float *gates) {
    const int t = threadIdx.x % 4;
    float acc[VT / 8][4] = {};
    wgmma_begin<VT / 8>(acc);
#pragma unroll
    for (int n = 0; n < CHUNK / 16; n++)
        wgmma_ss<VT>(acc, operand<CHUNK, false>{s.A, 0, 16 * n}, operand<VT, true>{x.r, 16 * n, 0});
    wgmma_end<VT / 8>(acc);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float eL = gates[2 * CHUNK + own_row(h)];
#pragma unroll
        for (int n = 0; n < VT / 8; n++) {
            const int at = tile_at<VT>(own_row(h), 8 * n + 2 * t);
            *(uint32_t *)(x.v_new + at) = pack2(acc[n][2 * h], acc[n][2 * h + 1]);
            *(uint32_t *)(x.v_end + at) = pack2(eL * acc[n][2 * h], eL * acc[n][2 * h + 1]);
        }
    }
    fence_proxy_async();
}

/* The warpgroup's rows of S: [K / 128] times 64, those of the panels of k that it multiplies */
template <int K> static __device__ __forceinline__ int panel_of(int m) { return threadIdx.x / GROUP * (K / 128) + m; }
template <int K, int VT>
static __device__ __forceinline__ void copy_state(bf16 *tile, const float S[K / 128][VT / 8][4]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < K / 128; m++)
#pragma unroll
        for (int n = 0; n < VT / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(uint32_t *)(tile + tile_at<VT>(64 * panel_of<K>(m) + own_row(h), 8 * n + 2 * t)) =
                    pack2(S[m][n][2 * h], S[m][n][2 * h + 1]);
    fence_proxy_async();
}
/* in: loads S from a session's state, NULL: empty; otherwise stores S */
template <int K, int VT>
static __device__ __forceinline__ void session_state(float *session, float S[K / 128][VT / 8][4], int64_t V, bool in) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < K / 128; m++)
#pragma unroll
        for (int n = 0; n < VT / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float *s = &S[m][n][2 * h];
                float2 *p = (float2 *)(session + (64 * panel_of<K>(m) + own_row(h)) * V + 8 * n + 2 * t);
                if (in) s[0] = session ? p->x : 0.0f, s[1] = session ? p->y : 0.0f;
                else *p = make_float2(s[0], s[1]);
            }
}
/* S += k^T v_end */
template <int K, int VT>
static __device__ __forceinline__ void write_state(const stage<K, VT> &s, const bf16 *v_end,
                                                   float S[K / 128][VT / 8][4]) {
    wgmma_begin<K / 128 * VT / 8>(S[0]);
#pragma unroll
    for (int m = 0; m < K / 128; m++)
#pragma unroll
        for (int n = 0; n < CHUNK / 16; n++)
            wgmma_ss<VT>(S[m], operand<64, true>{s.k + panel_of<K>(m) * PANEL, 16 * n, 0},
                         operand<VT, true>{v_end, 16 * n, 0});
    wgmma_end<K / 128 * VT / 8>(S[0]);
}

/* RAGGED: a segment may have no rows; its first chunk index then belongs to another one. */
template <int K, int VT, bool RAGGED>
static __global__ void __launch_bounds__(SCAN_THREADS) scan_chunks(const struct args a) {
    smem<K, VT> &x = *(smem<K, VT> *)shared_tiles();
    const int tile = blockIdx.x % a.tiles, hv = blockIdx.x / a.tiles % a.HV, s = blockIdx.x / a.tiles / a.HV;
    const struct hl_seg seg = a.seg[s];
    const struct place w = {seg.row, seg.len, (int64_t)a.chunk_first[s] * a.HV + hv, hv, tile * VT, tile};
    const int chunks = a.chunk_first[s + 1] - a.chunk_first[s], group = warpgroup_index();
    named_barrier_init();
    pdl_wait();
    pdl_trigger();
    if (group == 2) {
        load_and_store<K, VT>(x, a, w, chunks);
        return;
    }
    float *session = seg.state ? (float *)(seg.state + a.S_off) + (int64_t)hv * K * a.V + w.col : NULL;
    float S[K / 128][VT / 8][4];
    session_state<K, VT>(session, S, a.V, true);
    copy_state<K, VT>(x.S, S);
    __syncthreads();
    for (int c = 0; c < chunks; c++) {
        const int n = c % smem<K, VT>::DEPTH;
        const float *gates = x.gates[n], end = gates[2 * CHUNK - 1];
        if (group == 0) {
            residual(x, x.s[n], gates);
            named_barrier_sync(1, GROUP); /* r is complete */
            values(x, x.s[n], gates);
        } else if (c > 0 && c % GDN_WINDOW == 0 && threadIdx.x == GROUP) signal_ready(a, w, c);
#pragma unroll
        for (int m = 0; m < K / 128; m++)
#pragma unroll
            for (int i = 0; i < VT / 2; i++) S[m][i / 4][i % 4] *= end;
        __syncthreads(); /* v_new and v_end are complete; S has been read */
        write_state<K, VT>(x.s[n], x.v_end, S);
        copy_state<K, VT>(x.S, S);
        __syncthreads(); /* the next S and the next chunk are complete */
    }
    if (threadIdx.x == GROUP && (!RAGGED || chunks > 0)) signal_ready(a, w, chunks);
    if (session) session_state<K, VT>(session, S, a.V, false);
}

template <int K, int VT> static void launch_scan(struct hl_cuda *c, struct args *a, const struct hl_rows *rows) {
    a->tiles = a->V / VT;
    launch_pdl(c, rows->ragged ? scan_chunks<K, VT, true> : scan_chunks<K, VT, false>,
               (unsigned)(rows->n * a->HV * a->tiles), SCAN_THREADS, sizeof(smem<K, VT>) + TILES_ROOM, *a);
}
/* Lays out the scratch memory; returns its end. */
static char *carve(const struct hl_gdn *a, char *scratch, struct gdn_prep *p, struct args *x) {
    const int64_t rows = a->rows->T * a->HV, heads = a->rows->dev->chunks * a->HV, K = a->K;
    p->P = (bf16 *)gdn_carve(&scratch, rows * CHUNK * 2);
    p->A = a->A ? (bf16 *)a->A : (bf16 *)gdn_carve(&scratch, rows * CHUNK * 2);
    p->gates = (float *)gdn_carve(&scratch, heads * GATES * 4);
    p->ready = (int *)gdn_carve(&scratch, heads * 4);
    x->h = (bf16 *)gdn_carve(&scratch, heads * K * a->V * 2);
    x->v_new = a->v_new ? (bf16 *)a->v_new : (bf16 *)gdn_carve(&scratch, rows * a->V * 2);
    x->sums = (float *)gdn_carve(&scratch, a->V / 16 * rows * 4);
    return scratch;
}

extern "C" void HL_OP(gdn_run_scan)(struct hl_backend *backend, const struct hl_gdn *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct gdn_prep p = {};
    struct args x = {};
    char *scratch = (char *)hl_cuda_scratch(c, carve(a, NULL, &p, &x) - (char *)NULL);
    if (!scratch) return;
    carve(a, scratch, &p, &x);
    x.k = (const bf16 *)a->k, x.v = (const bf16 *)a->v, x.A = p.A, x.gates = p.gates, x.ready = p.ready;
    x.seg = a->rows->dev->seg, x.chunk_first = a->rows->dev->chunk_first;
    x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V;
    HL_OP(gdn_prep)(backend, a, &p);
    if (a->K == 128) launch_scan<128, 16>(c, &x, a->rows);
    else launch_scan<256, 16>(c, &x, a->rows);
    struct gdn_out o = {x.h, x.v_new, p.P, p.gates, x.ready, x.tiles};
    HL_OP(gdn_out)(backend, a, &o);
    if (a->m) HL_OP(gdn_scores)(backend, a->m, x.sums, x.tiles, a->rows->T * a->HV);
}
#endif
