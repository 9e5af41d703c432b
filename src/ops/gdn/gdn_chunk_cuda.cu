/* gdn_chunk_cuda.cu -- the chunked delta rule for keys of 64 (docs/math.md, "The delta rule", in chunks),
 * after gdn_prep. With S the state before a chunk, G the cumulated log-decay inside it, s = K^{-1/2}:
 *     [kS; qS] = [k; q] S        r = beta (v - exp(G) kS)        v_new = A r      (= beta e)
 *     out = s exp(G) qS + P v_new                 S = exp(G_last) S + k^T (exp(G_last - G) v_new)
 * Grid: a block per segment, value head and VT columns of V (tiles fastest). Block: 8 warps that scan the chunks
 * together. S stays in fp32 registers, warp w holding 16 rows from 16 (w % 4) and VT/2 columns from (w / 4) VT/2; a
 * bf16 copy in shared memory is an operand. Warp w has the same rows and columns of everything else. Two chunks are in
 * shared memory: the next one is copied during the arithmetic. Three barriers per chunk: r is complete, v_new is
 * complete, the next S is complete. Only out, m and v_new are written to memory, no states. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/gdn/gdn_cuda.cuh"

#ifndef HL_CUDA_F32

enum { K = 64, THREADS = 256 };

struct args {
    const bf16 *q, *k, *v, *A, *P;
    const float *gates;
    bf16 *out, *v_new; /* v_new NULL: not kept */
    float *m, *sums;   /* sums NULL: one tile, m is written; else [tiles][T][HV] */
    const struct hl_seg *seg;
    int64_t S_off, T;
    const int32_t *chunk_first;
    int H, HV, V, tiles;
};

template <int VT> struct smem {
    bf16 S[K * VT], k[2][CHUNK * K], q[2][CHUNK * K];
    bf16 A[2][CHUNK * CHUNK], P[2][CHUNK * CHUNK];
    bf16 v[2][CHUNK * VT];                     /* v, then r, then out */
    bf16 v_new[CHUNK * VT], v_end[CHUNK * VT]; /* v_end: decayed to the end of the chunk */
    float gates[2][GATES_READ], sums[2][CHUNK];
};

/* The segment, head and columns that a block scans. */
struct place {
    int64_t row, rows; /* of the segment */
    int hv, hk, col, tile, first;
};

static __device__ __forceinline__ int chunk_len(const struct place &w, int c) {
    const int64_t left = w.rows - (int64_t)c * CHUNK;
    return left < CHUNK ? (int)left : CHUNK;
}
static __device__ __forceinline__ int64_t head_row(const struct args &a, const struct place &w, int c) {
    return (w.row + (int64_t)c * CHUNK) * a.HV + w.hv;
}

/* ---- copies to shared memory, of chunk c ---- */

static __device__ __forceinline__ void load_key(bf16 *to, const bf16 *from, const struct args &a, const struct place &w,
                                                int c) {
    const int64_t at = ((w.row + (int64_t)c * CHUNK) * a.H + w.hk) * K;
    load_tile<K, THREADS>(to, from + at, (int64_t)a.H * K, chunk_len(w, c));
}
static __device__ __forceinline__ void load_square(bf16 *to, const bf16 *from, const struct args &a,
                                                   const struct place &w, int c) {
    load_tile<CHUNK, THREADS>(to, from + head_row(a, w, c) * CHUNK, (int64_t)a.HV * CHUNK, chunk_len(w, c));
}
static __device__ __forceinline__ void load_gates(float *to, const struct args &a, const struct place &w, int c) {
    const float *from = a.gates + ((int64_t)(w.first + c) * a.HV + w.hv) * GATES;
    if (threadIdx.x < GATES_READ / 4) copy_async(to + 4 * threadIdx.x, from + 4 * threadIdx.x);
}
/* each warp copies the rows and columns of v that it will read itself */
template <int VT>
static __device__ __forceinline__ void load_values(bf16 *to, const struct args &a, const struct place &w, int c) {
    const int warp = threadIdx.x / 32, units = VT / 16, len = chunk_len(w, c);
    const bf16 *from = a.v + head_row(a, w, c) * a.V + w.col;
#pragma unroll
    for (int i = threadIdx.x % 32; i < 16 * units; i += 32) {
        const int row = warp % 4 * 16 + i / units, col = warp / 4 * (VT / 2) + i % units * 8;
        const bool in = row < len;
        copy_async(to + tile_at<VT>(row, col), from + (in ? (int64_t)row * a.HV * a.V : 0) + col, in ? 16 : 0);
    }
}

/* ---- products ---- */

/* kS and qS of the warp's rows and columns */
template <int VT>
static __device__ __forceinline__ void read_state(const bf16 *k, const bf16 *q, const bf16 *S, float kS[VT / 16][4],
                                                  float qS[VT / 16][4]) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < VT / 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) kS[n][i] = qS[n][i] = 0.0f;
#pragma unroll 2
    for (int c = 0; c < K; c += 16) {
        uint32_t ak[4], aq[4], b[VT / 16][2];
        tile_load_a<K>(ak, k, warp % 4 * 16, c);
        tile_load_a<K>(aq, q, warp % 4 * 16, c);
        frags<VT>(b, S, c, warp / 4 * (VT / 2));
#pragma unroll
        for (int n = 0; n < VT / 16; n++) {
            mma_bf16(kS[n], ak, b[n]);
            mma_bf16(qS[n], aq, b[n]);
        }
    }
}

/* S = end S + k^T v_end */
template <int VT>
static __device__ __forceinline__ void write_state(const bf16 *k, const bf16 *v_end, float end, float S[VT / 16][4]) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < VT / 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] *= end;
#pragma unroll
    for (int c = 0; c < CHUNK; c += 16) {
        uint32_t a[4], b[VT / 16][2];
        frags<VT>(b, v_end, c, warp / 4 * (VT / 2));
        tile_load_a_trans<K>(a, k, c, warp % 4 * 16);
#pragma unroll
        for (int n = 0; n < VT / 16; n++) mma_bf16(S[n], a, b[n]);
    }
}

/* ---- element by element: lane 4g + t holds columns 2t, 2t + 1 of every 8, of rows g and g + 8 ---- */

/* r = beta (v - exp(G) kS), over v */
template <int VT> static __device__ __forceinline__ void residual(bf16 *v, const float *gates, float kS[VT / 16][4]) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = warp % 4 * 16 + g + 8 * h;
        const float beta = gates[row], eG = gates[CHUNK + row];
#pragma unroll
        for (int n = 0; n < VT / 16; n++) {
            uint32_t *p = (uint32_t *)(v + tile_at<VT>(row, warp / 4 * (VT / 2) + 8 * n + 2 * t));
            *p = pack2(beta * (low(*p) - eG * kS[n][2 * h]), beta * (high(*p) - eG * kS[n][2 * h + 1]));
        }
    }
}

/* v_new to shared memory, plain and decayed, and the warp's share of the sums of its squares */
template <int VT>
static __device__ __forceinline__ void store_values(bf16 *v_new, bf16 *v_end, const float *gates, float (*sums)[CHUNK],
                                                    float acc[VT / 16][4]) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = warp % 4 * 16 + g + 8 * h;
        const float eL = gates[2 * CHUNK + row];
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < VT / 16; n++) {
            const float x = acc[n][2 * h], y = acc[n][2 * h + 1];
            const int at = tile_at<VT>(row, warp / 4 * (VT / 2) + 8 * n + 2 * t);
            *(uint32_t *)(v_new + at) = pack2(x, y);
            *(uint32_t *)(v_end + at) = pack2(eL * x, eL * y);
            sum += x * x + y * y;
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (t == 0) sums[warp / 4][row] = sum;
    }
}

/* The state between registers and memory (float [K][V], at the tile's columns; NULL: empty), and its bf16
 * copy in shared memory */
template <int VT> static __device__ __forceinline__ void load_state(float S[VT / 16][4], const float *from, int64_t V) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (from) from += (warp % 4 * 16 + g) * V + warp / 4 * (VT / 2) + 2 * t;
#pragma unroll
    for (int n = 0; n < VT / 16; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 x = make_float2(0.0f, 0.0f);
            if (from) x = *(const float2 *)(from + 8 * h * V + 8 * n);
            S[n][2 * h] = x.x, S[n][2 * h + 1] = x.y;
        }
}
template <int VT> static __device__ __forceinline__ void store_state(float *to, const float S[VT / 16][4], int64_t V) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    to += (warp % 4 * 16 + g) * V + warp / 4 * (VT / 2) + 2 * t;
#pragma unroll
    for (int n = 0; n < VT / 16; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) *(float2 *)(to + 8 * h * V + 8 * n) = make_float2(S[n][2 * h], S[n][2 * h + 1]);
}
template <int VT> static __device__ __forceinline__ void copy_state(bf16 *tile, const float S[VT / 16][4]) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row = warp % 4 * 16 + g, col = warp / 4 * (VT / 2) + 2 * t;
#pragma unroll
    for (int n = 0; n < VT / 16; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(uint32_t *)(tile + tile_at<VT>(row + 8 * h, col + 8 * n)) = pack2(S[n][2 * h], S[n][2 * h + 1]);
}

/* ---- the scan ---- */

/* out of the chunk, through `stage`, of which the warp uses its own rows and columns */
template <int VT>
static __device__ __forceinline__ void write_out(const struct args &a, const struct place &w, int c, const float *gates,
                                                 const bf16 *P, const bf16 *v_new, bf16 *stage, float qS[VT / 16][4]) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int64_t stride = (int64_t)a.HV * a.V;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float s = gates[CHUNK + warp % 4 * 16 + g + 8 * h] / sqrtf((float)K);
#pragma unroll
        for (int n = 0; n < VT / 16; n++) qS[n][2 * h] *= s, qS[n][2 * h + 1] *= s;
    }
    triangle<VT>(P, v_new, qS);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int n = 0; n < VT / 16; n++)
            *(uint32_t *)(stage + tile_at<VT>(warp % 4 * 16 + g + 8 * h, warp / 4 * (VT / 2) + 8 * n + 2 * t)) =
                pack2(qS[n][2 * h], qS[n][2 * h + 1]);
    __syncwarp();
    store_rows<VT>(a.out + head_row(a, w, c) * a.V + w.col, stage, stride, chunk_len(w, c));
}

/* the sums of squares of the chunk's rows of v_new */
static __device__ __forceinline__ void write_sums(const struct args &a, const struct place &w, int c,
                                                  const float (*sums)[CHUNK]) {
    const int i = threadIdx.x;
    if (i >= chunk_len(w, c)) return;
    const float sum = sums[0][i] + sums[1][i];
    const int64_t at = head_row(a, w, c) + (int64_t)i * a.HV;
    if (a.sums) a.sums[w.tile * a.T * a.HV + at] = sum;
    else a.m[at] = sqrtf(sum);
}

/* all inputs of a chunk */
template <int VT>
static __device__ __forceinline__ void load_chunk(struct smem<VT> &x, const struct args &a, const struct place &w,
                                                  int c) {
    load_key(x.k[c & 1], a.k, a, w, c);
    load_gates(x.gates[c & 1], a, w, c);
    load_key(x.q[c & 1], a.q, a, w, c);
    load_square(x.A[c & 1], a.A, a, w, c);
    load_square(x.P[c & 1], a.P, a, w, c);
    load_values<VT>(x.v[c & 1], a, w, c);
}

template <int VT>
static __global__ void __launch_bounds__(THREADS, sizeof(struct smem<VT>) <= (112 << 10) ? 2 : 1)
    scan_chunks(const struct args a) {
    struct smem<VT> &x = *(struct smem<VT> *)shared_memory();
    const int tile = blockIdx.x % a.tiles, hv = blockIdx.x / a.tiles % a.HV, s = blockIdx.x / a.tiles / a.HV;
    const struct hl_seg seg = a.seg[s];
    const struct place w = {seg.row, seg.len, hv, hv / (a.HV / a.H), tile * VT, tile, a.chunk_first[s]};
    const int chunks = a.chunk_first[s + 1] - w.first;
    float *session = seg.state ? (float *)(seg.state + a.S_off) + (int64_t)hv * K * a.V + w.col : NULL;
    float S[VT / 16][4];
    pdl_wait();
    pdl_trigger();
    load_chunk(x, a, w, 0);
    copy_commit();
    load_state<VT>(S, session, a.V);
    copy_state<VT>(x.S, S);
    copy_wait<0>();
    __syncthreads();
    for (int c = 0; c < chunks; c++) {
        const int now = c & 1;
        const float *gates = x.gates[now];
        float kS[VT / 16][4], qS[VT / 16][4];
        if (c + 1 < chunks) load_chunk(x, a, w, c + 1);
        copy_commit();
        read_state<VT>(x.k[now], x.q[now], x.S, kS, qS);
        residual<VT>(x.v[now], gates, kS);
        __syncthreads(); /* r is complete; S has been read */
#pragma unroll
        for (int n = 0; n < VT / 16; n++)
            for (int i = 0; i < 4; i++) kS[n][i] = 0.0f;
        triangle<VT>(x.A[now], x.v[now], kS);
        store_values<VT>(x.v_new, x.v_end, gates, x.sums, kS);
        __syncthreads(); /* v_new is complete; r has been read */
        write_out<VT>(a, w, c, gates, x.P[now], x.v_new, x.v[now], qS);
        if (a.v_new)
            store_rows<VT>(a.v_new + head_row(a, w, c) * a.V + w.col, x.v_new, (int64_t)a.HV * a.V, chunk_len(w, c));
        write_sums(a, w, c, x.sums);
        write_state<VT>(x.k[now], x.v_end, gates[2 * CHUNK - 1], S);
        copy_state<VT>(x.S, S);
        copy_wait<0>();
        __syncthreads(); /* the next S and the next chunk are complete */
    }
    if (session) store_state<VT>(session, S, a.V);
}

template <int VT> static void launch_scan(struct hl_cuda *c, const struct args *a, int64_t segments) {
    launch_pdl(c, scan_chunks<VT>, (unsigned)(segments * a->HV * a->tiles), THREADS, sizeof(struct smem<VT>), *a);
}

/* Wide tiles as long as they fill the GPU: q and k are read once per tile. */
extern "C" void HL_OP(gdn_run_chunk)(struct hl_backend *backend, const struct hl_gdn *a) {
    const int64_t pairs = a->rows->n * a->HV, rows = a->rows->T * a->HV;
    int VT = a->V % 128 ? 64 : 128;
    while (VT > 16 && pairs * (a->V / VT) < 96) VT /= 2;
    const int64_t tiles = a->V / VT, square = rows * CHUNK * (int64_t)sizeof(bf16);
    const int64_t gates = a->rows->dev->chunks * a->HV * GATES * (int64_t)sizeof(float);
    const int64_t sums = tiles > 1 || !a->m ? tiles * rows * (int64_t)sizeof(float) : 0;
    struct hl_cuda *c = hl_cuda_of(backend);
    char *scratch = (char *)hl_cuda_scratch(c, (a->A ? 1 : 2) * square + gates + sums);
    if (!scratch) return;
    struct gdn_prep p = {(bf16 *)a->A, (bf16 *)scratch, (float *)(scratch + square)};
    scratch += square + gates;
    if (!p.A) p.A = (bf16 *)scratch, scratch += square;
    HL_OP(gdn_prep)(backend, a, &p);
    struct args x = {(const bf16 *)a->q, (const bf16 *)a->k, (const bf16 *)a->v, p.A, p.P, p.gates};
    x.out = (bf16 *)a->out, x.v_new = (bf16 *)a->v_new;
    x.m = a->m, x.sums = sums ? (float *)scratch : NULL;
    x.seg = a->rows->dev->seg, x.chunk_first = a->rows->dev->chunk_first;
    x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V, x.tiles = (int)tiles;
    if (VT == 128) launch_scan<128>(c, &x, a->rows->n);
    else if (VT == 64) launch_scan<64>(c, &x, a->rows->n);
    else if (VT == 32) launch_scan<32>(c, &x, a->rows->n);
    else launch_scan<16>(c, &x, a->rows->n);
    if (sums && a->m) HL_OP(gdn_scores)(backend, a->m, x.sums, tiles, rows);
}
#endif
