/* gdn_chunk_cuda.cu -- the sequential half of the chunked delta rule (ARCHITECTURE sec. 4.1).
 *
 * With S the state before a chunk, G the cumulated log-decay inside it, s = K^{-1/2}, A and P from
 * gdn_prep:
 *     [kS; qS] = [k; q] S        r = beta (v - exp(G) kS)        v_new = A r      (= beta e)
 *     out = s exp(G) qS + P v_new                 S = exp(G_last) S + k^T (exp(G_last - G) v_new)
 * One block of 8 warps walks the chunks of a segment for one value head and VT columns of V. S stays in
 * fp32 registers, warp w holding K/4 rows from (w % 4) K/4 and VT/2 columns from (w / 4) VT/2; a bf16
 * copy in shared memory is an operand. Of everything with 64 rows warp w has 16 from 16 (w % 4), and the
 * same columns. Three barriers a chunk: r is there, v_new is there, the next S is there. What comes next
 * is copied in behind the arithmetic. Nothing but v_new leaves: no state is ever stored. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/gdn/gdn_prep_cuda.cuh"

#ifndef HL_CUDA_F32

enum { THREADS = 256 };

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

/* BUF: copies of what a chunk reads. 2: all of the next chunk is on its way during this one. 1 (big
 * tiles): only k, the others follow as soon as this chunk is done with them. */
template <int K, int VT, int BUF> struct room {
    bf16 S[K * VT], k[2][CHUNK * K], q[BUF][CHUNK * K];
    bf16 A[BUF][CHUNK * CHUNK], P[BUF][CHUNK * CHUNK];
    bf16 v[BUF][CHUNK * VT];                   /* v, then r, then out on its way to memory */
    bf16 v_new[CHUNK * VT], v_end[CHUNK * VT]; /* v_end: decayed to the end of the chunk */
    float gates[2][GATES], sums[2][CHUNK];
};

/* One block's walk: where its rows are. */
struct walk {
    int64_t row, rows; /* of the segment */
    int hv, hk, col, tile, first;
};

static __device__ __forceinline__ int chunk_len(const struct walk &w, int c) {
    const int64_t left = w.rows - (int64_t)c * CHUNK;
    return left < CHUNK ? (int)left : CHUNK;
}
static __device__ __forceinline__ int64_t head_row(const struct args &a, const struct walk &w, int c) {
    return (w.row + (int64_t)c * CHUNK) * a.HV + w.hv;
}

/* ---- copies to shared memory, of chunk c ---- */

template <int K>
static __device__ __forceinline__ void load_key(bf16 *to, const bf16 *from, const struct args &a, const struct walk &w,
                                                int c) {
    const int64_t at = ((w.row + (int64_t)c * CHUNK) * a.H + w.hk) * K;
    load_tile<K, THREADS>(to, from + at, (int64_t)a.H * K, chunk_len(w, c));
}
static __device__ __forceinline__ void load_square(bf16 *to, const bf16 *from, const struct args &a,
                                                   const struct walk &w, int c) {
    load_tile<CHUNK, THREADS>(to, from + head_row(a, w, c) * CHUNK, (int64_t)a.HV * CHUNK, chunk_len(w, c));
}
static __device__ __forceinline__ void load_gates(float *to, const struct args &a, const struct walk &w, int c) {
    const float *from = a.gates + ((int64_t)(w.first + c) * a.HV + w.hv) * GATES;
    if (threadIdx.x < GATES / 4) copy_async(to + 4 * threadIdx.x, from + 4 * threadIdx.x);
}
/* each warp copies the part of v that it will read itself */
template <int VT>
static __device__ __forceinline__ void load_values(bf16 *to, const struct args &a, const struct walk &w, int c) {
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
template <int K, int VT>
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
template <int K, int VT>
static __device__ __forceinline__ void write_state(const bf16 *k, const bf16 *v_end, float end,
                                                   float S[K / 64][VT / 16][4]) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < K / 64; m++)
#pragma unroll
        for (int n = 0; n < VT / 16; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) S[m][n][i] *= end;
#pragma unroll
    for (int c = 0; c < CHUNK; c += 16) {
        uint32_t b[VT / 16][2];
        frags<VT>(b, v_end, c, warp / 4 * (VT / 2));
#pragma unroll
        for (int m = 0; m < K / 64; m++) {
            uint32_t a[4];
            tile_load_a_trans<K>(a, k, c, warp % 4 * (K / 4) + 16 * m);
#pragma unroll
            for (int n = 0; n < VT / 16; n++) mma_bf16(S[m][n], a, b[n]);
        }
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

/* v_new to shared memory, plain and decayed, and the warp's part of the sums of its squares */
template <int VT>
static __device__ __forceinline__ void leave_values(bf16 *v_new, bf16 *v_end, const float *gates, float (*sums)[CHUNK],
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

/* The state between registers and memory (kept: float [K][V], at the tile's columns), and its copy in
 * shared memory */
template <int K, int VT>
static __device__ __forceinline__ void state_in(float S[K / 64][VT / 16][4], const float *kept, int64_t V) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (kept) kept += (warp % 4 * (K / 4) + g) * V + warp / 4 * (VT / 2) + 2 * t;
#pragma unroll
    for (int m = 0; m < K / 64; m++)
#pragma unroll
        for (int n = 0; n < VT / 16; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float2 x = make_float2(0.0f, 0.0f);
                if (kept) x = *(const float2 *)(kept + (16 * m + 8 * h) * V + 8 * n);
                S[m][n][2 * h] = x.x, S[m][n][2 * h + 1] = x.y;
            }
}
template <int K, int VT>
static __device__ __forceinline__ void state_out(float *kept, const float S[K / 64][VT / 16][4], int64_t V) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    kept += (warp % 4 * (K / 4) + g) * V + warp / 4 * (VT / 2) + 2 * t;
#pragma unroll
    for (int m = 0; m < K / 64; m++)
#pragma unroll
        for (int n = 0; n < VT / 16; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2 *)(kept + (16 * m + 8 * h) * V + 8 * n) = make_float2(S[m][n][2 * h], S[m][n][2 * h + 1]);
}
template <int K, int VT>
static __device__ __forceinline__ void state_copy(bf16 *tile, const float S[K / 64][VT / 16][4]) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row = warp % 4 * (K / 4) + g, col = warp / 4 * (VT / 2) + 2 * t;
#pragma unroll
    for (int m = 0; m < K / 64; m++)
#pragma unroll
        for (int n = 0; n < VT / 16; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(uint32_t *)(tile + tile_at<VT>(row + 16 * m + 8 * h, col + 8 * n)) =
                    pack2(S[m][n][2 * h], S[m][n][2 * h + 1]);
}

/* ---- the walk ---- */

/* out of the chunk: by way of `stage`, of which the warp uses its own part */
template <int K, int VT>
static __device__ __forceinline__ void write_out(const struct args &a, const struct walk &w, int c, const float *gates,
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
static __device__ __forceinline__ void write_sums(const struct args &a, const struct walk &w, int c,
                                                  const float (*sums)[CHUNK]) {
    const int i = threadIdx.x;
    if (i >= chunk_len(w, c)) return;
    const float sum = sums[0][i] + sums[1][i];
    const int64_t at = head_row(a, w, c) + (int64_t)i * a.HV;
    if (a.sums) a.sums[w.tile * a.T * a.HV + at] = sum;
    else a.m[at] = sqrtf(sum);
}

/* everything of a chunk that is read ahead as a whole */
template <int K, int VT, int BUF>
static __device__ __forceinline__ void load_chunk(struct room<K, VT, BUF> &x, const struct args &a,
                                                  const struct walk &w, int c) {
    load_key<K>(x.k[c & 1], a.k, a, w, c);
    load_gates(x.gates[c & 1], a, w, c);
    load_key<K>(x.q[c & (BUF - 1)], a.q, a, w, c);
    load_square(x.A[c & (BUF - 1)], a.A, a, w, c);
    if (BUF == 1) return;
    load_square(x.P[c & (BUF - 1)], a.P, a, w, c);
    load_values<VT>(x.v[c & (BUF - 1)], a, w, c);
}

template <int K, int VT, int BUF>
static __global__ void __launch_bounds__(THREADS, sizeof(struct room<K, VT, BUF>) <= (112 << 10) ? 2 : 1)
    walk_chunks(const struct args a) {
    struct room<K, VT, BUF> &x = *(struct room<K, VT, BUF> *)shared_memory();
    const int tile = blockIdx.x % a.tiles, hv = blockIdx.x / a.tiles % a.HV, s = blockIdx.x / a.tiles / a.HV;
    const struct hl_seg seg = a.seg[s];
    const struct walk w = {seg.row, seg.len, hv, hv / (a.HV / a.H), tile * VT, tile, a.chunk_first[s]};
    const int chunks = a.chunk_first[s + 1] - w.first;
    float *kept = seg.state ? (float *)(seg.state + a.S_off) + (int64_t)hv * K * a.V + w.col : NULL;
    float S[K / 64][VT / 16][4];
    pdl_wait();
    pdl_trigger();
    load_chunk(x, a, w, 0);
    copy_commit();
    state_in<K, VT>(S, kept, a.V);
    state_copy<K, VT>(x.S, S);
    copy_wait<0>();
    __syncthreads();
    for (int c = 0; c < chunks; c++) {
        const int now = c & (BUF - 1);
        const float *gates = x.gates[c & 1];
        const bool more = c + 1 < chunks;
        float kS[VT / 16][4], qS[VT / 16][4];
        if (BUF == 1) {
            load_values<VT>(x.v[0], a, w, c);
            load_square(x.P[0], a.P, a, w, c);
            copy_commit();
            if (more) load_key<K>(x.k[(c + 1) & 1], a.k, a, w, c + 1), load_gates(x.gates[(c + 1) & 1], a, w, c + 1);
        } else if (more) load_chunk(x, a, w, c + 1);
        copy_commit();
        read_state<K, VT>(x.k[c & 1], x.q[now], x.S, kS, qS);
        if (BUF == 1) {
            copy_wait<1>(); /* v and P, and A before them */
            __syncwarp();
        }
        residual<VT>(x.v[now], gates, kS);
        __syncthreads(); /* r is there; nobody reads q or S any more */
        if (BUF == 1) {
            if (more) load_key<K>(x.q[0], a.q, a, w, c + 1);
            copy_commit();
        }
#pragma unroll
        for (int n = 0; n < VT / 16; n++)
            for (int i = 0; i < 4; i++) kS[n][i] = 0.0f;
        triangle<VT>(x.A[now], x.v[now], kS);
        leave_values<VT>(x.v_new, x.v_end, gates, x.sums, kS);
        __syncthreads(); /* v_new is there; nobody reads A or r any more */
        if (BUF == 1) {
            if (more) load_square(x.A[0], a.A, a, w, c + 1);
            copy_commit();
        }
        write_out<K, VT>(a, w, c, gates, x.P[now], x.v_new, x.v[now], qS);
        if (a.v_new)
            store_rows<VT>(a.v_new + head_row(a, w, c) * a.V + w.col, x.v_new, (int64_t)a.HV * a.V, chunk_len(w, c));
        write_sums(a, w, c, x.sums);
        write_state<K, VT>(x.k[c & 1], x.v_end, gates[2 * CHUNK - 1], S);
        state_copy<K, VT>(x.S, S);
        copy_wait<BUF == 1>();
        __syncthreads(); /* the next S, k and q are there */
    }
    if (kept) state_out<K, VT>(kept, S, a.V);
}

template <int K, int VT, int BUF> static void launch_walk(struct hl_cuda *c, const struct args *a, int64_t segments) {
    launch_pdl(c, walk_chunks<K, VT, BUF>, (unsigned)(segments * a->HV * a->tiles), THREADS,
               sizeof(struct room<K, VT, BUF>), *a);
}

#endif

/* Wide tiles while they fill the chip: q and k are read once per tile. Chips before Hopper have not the
 * shared memory for the widest. */
extern "C" bool HL_OP(gdn_chunk)(struct hl_backend *backend, const struct hl_gdn *a) {
#ifdef HL_CUDA_F32
    return false;
#else
    const int64_t pairs = a->rows->n * a->HV, rows = a->rows->T * a->HV, K = a->K;
    struct hl_cuda *c = hl_cuda_of(backend);
    const bool roomy = hl_cuda_shared_limit(c) >= (int64_t)sizeof(struct room<256, 128, 1>);
    if ((K != 64 && K != 128 && K != 256) || a->V % 64 || (K == 256 && !roomy)) return false;
    int VT = a->V % 128 || (K == 128 && !roomy) ? 64 : 128;
    while (VT > (K == 64 ? 16 : 64) && pairs * (a->V / VT) < 96) VT /= 2;
    const int64_t tiles = a->V / VT, square = rows * CHUNK * (int64_t)sizeof(bf16);
    const int64_t gates = a->rows->dev->chunks * a->HV * GATES * (int64_t)sizeof(float);
    const int64_t sums = tiles > 1 ? tiles * rows * (int64_t)sizeof(float) : 0;
    char *room = (char *)hl_cuda_scratch(c, (a->A ? 1 : 2) * square + gates + sums);
    if (!room) return true;
    struct gdn_prep p = {(bf16 *)a->A, (bf16 *)room, (float *)(room + square)};
    room += square + gates;
    if (!p.A) p.A = (bf16 *)room, room += square;
    HL_OP(gdn_prep)(backend, a, &p);
    struct args x = {(const bf16 *)a->q, (const bf16 *)a->k, (const bf16 *)a->v, p.A, p.P, p.gates};
    x.out = (bf16 *)a->out, x.v_new = (bf16 *)a->v_new;
    x.m = a->m, x.sums = sums ? (float *)room : NULL;
    x.seg = a->rows->dev->seg, x.chunk_first = a->rows->dev->chunk_first;
    x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V, x.tiles = (int)tiles;
    if (K == 256 && VT == 128) launch_walk<256, 128, 1>(c, &x, a->rows->n);
    else if (K == 256) launch_walk<256, 64, 2>(c, &x, a->rows->n);
    else if (K == 128 && VT == 128) launch_walk<128, 128, 2>(c, &x, a->rows->n);
    else if (K == 128) launch_walk<128, 64, 1>(c, &x, a->rows->n);
    else if (VT == 128) launch_walk<64, 128, 2>(c, &x, a->rows->n);
    else if (VT == 64) launch_walk<64, 64, 2>(c, &x, a->rows->n);
    else if (VT == 32) launch_walk<64, 32, 2>(c, &x, a->rows->n);
    else launch_walk<64, 16, 2>(c, &x, a->rows->n);
    if (sums) HL_OP(gdn_scores)(backend, a->m, x.sums, tiles, rows);
    return true;
#endif
}
