/* gdn_back_cuda.cu -- backward pass of the delta rule: gates and scores of the chunks, and who does the
 * rest. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"

enum { WARPS = 4 };

/* One warp: the gates of one chunk and value head, two rows a lane. Rows past the chunk's end decay no more
 * and have beta = 0. exp(-128) is 0 in float, so a gate below that changes nothing but the size of the
 * sums. */
static __device__ void gates_of(const struct gdn_back &a, const struct hl_dev_span &p, int hv, float *gates) {
    const int lane = threadIdx.x % 32;
    double G[2], last;
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        const int64_t at = (int64_t)(p.row + r) * a.HV + hv;
        G[i] = r < p.len && a.g ? (double)fmaxf(a.g[at], -128.0f) : 0.0;
        gates[BETA + r] = r < p.len ? a.beta[at] : 0.0f;
    }
    double sum = G[0] + G[1];
    for (int d = 1; d < 32; d *= 2) {
        const double up = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += up;
    }
    G[0] = sum - G[1];
    G[1] = sum;
    last = __shfl_sync(0xffffffffu, sum, 31);
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        const double by_two = G[i] * 1.4426950408889634074, whole = rint(by_two); /* log2 of e */
        gates[WHOLE + r] = (float)whole;
        gates[PART + r] = (float)(by_two - whole);
        gates[EG + r] = expf((float)G[i]);
        gates[EL + r] = expf((float)(last - G[i]));
    }
}

static __global__ void __launch_bounds__(32 * WARPS) back_gates(const struct gdn_back a) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    pdl_wait();
    pdl_trigger();
    if (i >= a.chunks * a.HV) return;
    gates_of(a, a.chunk[i / a.HV], (int)(i % a.HV), a.gates + i * GATES);
}

#ifndef HL_CUDA_F32
/* Gates, and P = s tril(Q K^T) D. grid (chunks, H), 4 warps with 16 rows each; q and k come in slices of K,
 * while the first value head's gates are formed. */
enum { SLICE = 64, SLICES = 2 };
struct scores_room {
    bf16 q[SLICES][C * (SLICE + 8)], k[SLICES][C * (SLICE + 8)];
    float gates[GATES];
};
static __device__ __forceinline__ void copy_slice(const struct gdn_back &a, const struct hl_dev_span &p,
                                                  struct scores_room *m, int i) {
    const int64_t at = ((int64_t)p.row * a.H + blockIdx.y) * a.K + i * SLICE;
    if (i * SLICE >= a.K) return;
    copy_rows<32 * WARPS, C, SLICE>(m->q[i % SLICES], SLICE + 8, a.q + at, a.H * a.K, p.len);
    copy_rows<32 * WARPS, C, SLICE>(m->k[i % SLICES], SLICE + 8, a.k + at, a.H * a.K, p.len);
}
/* rows of P of one value head from the products of this warp's rows */
static __device__ __forceinline__ void store_P(bf16 *P, const float (*s)[4], const float *gates, float scale) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int x = 0; x < 4; x++) {
        const int i = 16 * warp + x / 2 * 8 + g, j0 = x % 2 * 32;
        uint32_t w[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int j = j0 + 8 * n + 2 * t;
            const float *d = s[j0 / 8 + n] + x / 2 * 2;
            const float2 D = decay(gates, i, j);
            w[n] = pack2(j <= i ? scale * d[0] * D.x : 0.0f, j < i ? scale * d[1] * D.y : 0.0f);
        }
        gather_columns(w);
        *(uint4 *)(P + i * C + j0 + 8 * t) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}
static __global__ void __launch_bounds__(32 * WARPS, 5) back_scores(const struct gdn_back a) {
    struct scores_room *m = (struct scores_room *)shared_memory();
    const struct hl_dev_span p = a.chunk[blockIdx.x];
    const int warp = threadIdx.x / 32, hv = blockIdx.y * a.group;
    for (int i = 0; i < SLICES; i++) {
        copy_slice(a, p, m, i);
        copy_commit();
    }
    if (warp == 0) gates_of(a, p, hv, m->gates); /* the warp with the fewest products */
    float s[C / 8][4] = {};
    for (int i = 0; i < a.K / SLICE; i++) {
        const bf16 *q = m->q[i % SLICES], *k = m->k[i % SLICES];
        copy_wait<SLICES - 1>();
        __syncthreads();
        for (int x = 0; x < SLICE; x += 16) {
            uint32_t f[4], y[4];
            mma_load_a(f, q, SLICE + 8, 16 * warp, x);
#pragma unroll
            for (int n = 0; n < C / 16; n++)
                if (n <= warp) {
                    mma_load_b(y, k, SLICE + 8, 16 * n, x);
                    mma_bf16(s[2 * n], f, y), mma_bf16(s[2 * n + 1], f, y + 2);
                }
        }
        if (i + 1 < a.K / SLICE) __syncthreads(); /* done with this slice */
        copy_slice(a, p, m, i + SLICES);
        copy_commit();
    }
    for (int r = 0; r < a.group; r++) {
        const int64_t item = (int64_t)blockIdx.x * a.HV + hv + r;
        if (r > 0) {
            __syncthreads();
            if (warp == 0) gates_of(a, p, hv + r, m->gates);
            __syncthreads();
        }
        for (int i = threadIdx.x; i < GATES; i += 32 * WARPS) a.gates[item * GATES + i] = m->gates[i];
        store_P(a.P + item * C * C, s, m->gates, 1.0f / sqrtf((float)a.K));
    }
}
#endif

/* dq, dk of a key head are the sums over its value heads, in order */
static __global__ void __launch_bounds__(256) back_group(const act *head, act *sum, int64_t n, int K, int group) {
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const act *from = head + i / K * group * K + i % K;
    float x = 0;
    for (int r = 0; r < group; r++) x += f32(from[(int64_t)r * K]);
    put(sum + i, x);
}

/* Takes n items off the block; room NULL: only counts. */
static void *carve(char *room, int64_t *at, int64_t n, int64_t size) {
    char *p = room ? room + *at : NULL;
    *at += (n * size + 255) / 256 * 256;
    return p;
}
/* How it is done: by plain loops, with tensor cores, with the scan of chips that have barriers in shared
 * memory, and with the walk of those. */
enum form { PLAIN, FAST, RING, WALK };
static int64_t carve_all(struct gdn_back *a, char *room, enum form form) {
    const int64_t heads = a->chunks * a->HV, size = form ? sizeof(bf16) : sizeof(float);
    const int64_t walks = a->segs * a->HV;
    int64_t at = 0;
    a->gates = (float *)carve(room, &at, heads * GATES, sizeof(float));
    a->P = (act *)carve(room, &at, form == FAST ? heads * C * C : 0, sizeof(act));
    a->h = carve(room, &at, form == WALK ? 0 : heads * a->K * a->V, size);
    a->dh = carve(room, &at, heads * a->K * a->V, size);
    a->X2 = carve(room, &at, (form == WALK ? a->chunks * C : a->T) * a->HV * a->V, size);
    if (form == WALK) {
        a->starts = (float *)carve(room, &at, a->cuts > 1 ? walks * a->cuts * a->K * a->V : 0, sizeof(float));
        a->sums = (float *)carve(room, &at, hl_pieces(a->K, 128) * heads * SUMS, sizeof(float));
    }
    a->decays = (float *)carve(room, &at, walks * (a->cuts > a->e.parts ? a->cuts : a->e.parts), sizeof(float));
    if (a->e.parts > 1) {
        const int64_t ends = walks * a->e.parts;
        a->e.ends = (float *)carve(room, &at, ends * a->K * a->V, sizeof(float));
        a->e.moves = (float *)carve(room, &at, ends * a->K * a->K, sizeof(float));
    }
    if (a->group > 1) {
        a->dq_head = (act *)carve(room, &at, a->T * a->HV * a->K, sizeof(act));
        a->dk_head = (act *)carve(room, &at, a->T * a->HV * a->K, sizeof(act));
    } else a->dq_head = a->dq, a->dk_head = a->dk;
    return at;
}

static enum form form_of(struct hl_cuda *c, const struct hl_gdn *a) {
#ifndef HL_CUDA_F32
    if ((a->K == 64 || a->K == 128 || a->K == 256) && a->V % 64 == 0)
        return !HL_OP(gdn_back_fits)(c, a->K) ? FAST : HL_OP(gdn_back_walks)(c, a->V) ? WALK : RING;
#endif
    return PLAIN;
}
/* into how many parts segments are cut for the walk forward, so that blocks keep the chip busy */
static int cuts_of(const struct gdn_back *a, int64_t longest) {
    enum { LEAST = 4 };
    const int64_t wanted = GDN_BUSY / (a->segs * a->HV * hl_pieces(a->K, 128)), most = longest / C / LEAST;
    const int64_t n = wanted < most ? wanted : most;
    return n < 2 ? 1 : (int)n;
}

extern "C" void HL_OP(gdn_backward)(struct hl_backend *backend, const struct hl_gdn *x) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct hl_dev_rows *rows = x->rows->dev;
    const enum form form = form_of(c, x);
    struct gdn_back a = {};
    HL_ASSERT(x->HV % x->H == 0 && x->v_new && x->A);
    if (x->rows->T == 0) return;
    a.T = x->rows->T, a.segs = x->rows->n, a.chunks = rows->chunks;
    a.H = (int)x->H, a.HV = (int)x->HV, a.K = (int)x->K, a.V = (int)x->V, a.group = a.HV / a.H;
    a.items = (int)(a.chunks * a.HV);
    a.q = (const act *)x->q, a.k = (const act *)x->k, a.v = (const act *)x->v;
    a.dout = (const act *)x->dout, a.v_new = (const act *)x->v_new, a.A = (const act *)x->A;
    a.g = x->g, a.beta = x->beta;
    a.dq = (act *)x->dq, a.dk = (act *)x->dk, a.dv = (act *)x->dv, a.dg = x->dg, a.dbeta = x->dbeta;
    a.seg = rows->seg, a.chunk = rows->chunk, a.chunk_first = rows->chunk_first;
    a.e.segs = a.segs, a.e.HV = a.HV, a.e.V = a.V;
    a.e.parts =
        form < RING ? 1 : gdn_parts(GDN_BUSY / (a.segs * a.HV * hl_pieces(a.V, 64)), hl_pieces(rows->longest, C));
    a.cuts = form == WALK ? cuts_of(&a, rows->longest) : 1;
    a.walks = form == WALK;
    char *room = (char *)hl_cuda_scratch(c, carve_all(&a, NULL, form));
    if (!room) return;
    carve_all(&a, room, form);
#ifndef HL_CUDA_F32
    if (form != PLAIN) {
        const dim3 grid((unsigned)a.chunks, (unsigned)a.H);
        if (form != FAST) launch_pdl(c, back_gates, blocks_for(a.chunks * a.HV, WARPS), 32 * WARPS, 0, a);
        else launch(c, back_scores, grid, 32 * WARPS, sizeof(struct scores_room), a);
        if (form != WALK) HL_OP(gdn_back_states)(c, &a);
        (form != FAST ? HL_OP(gdn_back_parts) : HL_OP(gdn_back_scan))(c, &a);
        if (a.cuts > 1) HL_OP(gdn_back_starts)(c, &a);
        (form == WALK ? HL_OP(gdn_back_walk) : HL_OP(gdn_back_rest))(c, &a);
    } else
#endif
    {
        launch(c, back_gates, blocks_for(a.chunks * a.HV, WARPS), 32 * WARPS, 0, a);
        HL_OP(gdn_back_plain)(c, &a);
    }
    if (a.group > 1) {
        const int64_t n = a.T * a.H * a.K;
        launch(c, back_group, blocks_for(n, 256), 256, 0, (const act *)a.dq_head, a.dq, n, a.K, a.group);
        launch(c, back_group, blocks_for(n, 256), 256, 0, (const act *)a.dk_head, a.dk, n, a.K, a.group);
    }
}
