/* gdn_back_cuda.cu -- backward pass of the delta rule: gates and scores of every chunk, and who does the rest. */
#include "ops/gdn/gdn_back_cuda.cuh"

enum { WARPS = 4 };

/* One warp: the gates of one chunk and value head, two rows a lane. Rows past the chunk's end decay no more and
 * have beta = 0. exp(-128) is 0 in float, so a gate below that changes nothing but the size of the sums. */
static __device__ void gates_of(const struct gdn_back &a, const struct hl_piece &p, int hv, float *gates) {
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
        const double whole = rint(G[i]);
        gates[WHOLE + r] = (float)whole;
        gates[PART + r] = (float)(G[i] - whole);
        gates[EG + r] = expf((float)G[i]);
        gates[EL + r] = expf((float)(last - G[i]));
    }
}

static __global__ void __launch_bounds__(32 * WARPS) back_gates(const struct gdn_back a) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (i >= a.chunks * a.HV) return;
    gates_of(a, a.chunk[i / a.HV], (int)(i % a.HV), a.gates + i * GATES);
}

#ifndef HL_CUDA_F32
/* P = s tril(Q K^T) D. grid (chunks, H), 4 warps with 16 rows each; q and k in shared memory. */
static __global__ void __launch_bounds__(32 * WARPS) back_scores(const struct gdn_back a) {
    const struct hl_piece p = a.chunk[blockIdx.x];
    const int hk = blockIdx.y, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int K = a.K, ld = K + 8;
    bf16 *q = (bf16 *)shared_memory(), *k = q + C * ld;
    float *gates = (float *)(k + C * ld);
    const int64_t at = ((int64_t)p.row * a.H + hk) * K;
    copy_rows<32 * WARPS>(q, ld, a.q + at, a.H * K, C, K, p.len);
    copy_rows<32 * WARPS>(k, ld, a.k + at, a.H * K, C, K, p.len);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    float s[C / 8][4] = {};
    for (int k0 = 0; k0 < K; k0 += 16) {
        uint32_t x[4], y[4];
        frag_a(x, q, ld, 16 * warp, k0);
#pragma unroll
        for (int n = 0; n < C / 16; n++)
            if (n <= warp) {
                frag_b_turned(y, k, ld, k0, 16 * n);
                mma_bf16(s[2 * n], x, y), mma_bf16(s[2 * n + 1], x, y + 2);
            }
    }
    const float scale = 1.0f / sqrtf((float)K);
    for (int r = 0; r < a.group; r++) {
        const int64_t head = (int64_t)blockIdx.x * a.HV + hk * a.group + r;
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * C; i += 32 * WARPS) gates[i] = a.gates[head * GATES + i];
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 16 * warp + 8 * half + g;
#pragma unroll
            for (int n = 0; n < C / 32; n++) {
                uint32_t w[4];
#pragma unroll
                for (int m = 0; m < 4; m++) {
                    const int j = 32 * n + 8 * m + 2 * t;
                    const float *x = s[4 * n + m] + 2 * half;
                    w[m] = pack2(j <= i ? scale * x[0] * decay(gates, i, j) : 0.0f,
                                 j < i ? scale * x[1] * decay(gates, i, j + 1) : 0.0f);
                }
                gather_columns(w);
                *(uint4 *)(a.P + (head * C + i) * C + 32 * n + 8 * t) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
    }
}
#endif

/* dq, dk of a key head are the sums over its value heads, in order */
static __global__ void __launch_bounds__(256)
    back_group(const act *head, act *sum, int64_t n, int K, int group) {
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
static int64_t carve_all(struct gdn_back *a, char *room, bool fast) {
    const int64_t heads = a->chunks * a->HV, size = fast ? sizeof(bf16) : sizeof(float);
    int64_t at = 0;
    a->gates = (float *)carve(room, &at, heads * GATES, sizeof(float));
    a->P = (act *)carve(room, &at, fast ? heads * C * C : 0, sizeof(act));
    a->h = carve(room, &at, heads * a->K * a->V, size);
    a->dh = carve(room, &at, heads * a->K * a->V, size);
    a->X2 = carve(room, &at, a->T * a->HV * a->V, size);
    if (a->group > 1) {
        a->dq_head = (act *)carve(room, &at, a->T * a->HV * a->K, sizeof(act));
        a->dk_head = (act *)carve(room, &at, a->T * a->HV * a->K, sizeof(act));
    } else a->dq_head = a->dq, a->dk_head = a->dk;
    return at;
}

static bool is_fast(const struct hl_gdn *a) {
#ifdef HL_CUDA_F32
    return false;
#else
    return (a->K == 64 || a->K == 128 || a->K == 256) && a->V % 64 == 0;
#endif
}

extern "C" void HL_OP(gdn_backward)(struct hl_pool *pool, const struct hl_gdn *x) {
    struct hl_cuda *c = hl_cuda_of(pool);
    const struct hl_dev_rows *rows = x->rows->dev;
    const bool fast = is_fast(x);
    struct gdn_back a = {};
    HL_ASSERT(x->HV % x->H == 0 && x->v_new && x->A);
    if (x->rows->T == 0) return;
    a.T = x->rows->T, a.segs = x->rows->n, a.chunks = rows->chunks;
    a.H = (int)x->H, a.HV = (int)x->HV, a.K = (int)x->K, a.V = (int)x->V, a.group = a.HV / a.H;
    a.q = (const act *)x->q, a.k = (const act *)x->k, a.v = (const act *)x->v;
    a.dout = (const act *)x->dout, a.v_new = (const act *)x->v_new, a.A = (const act *)x->A;
    a.g = x->g, a.beta = x->beta;
    a.dq = (act *)x->dq, a.dk = (act *)x->dk, a.dv = (act *)x->dv, a.dg = x->dg, a.dbeta = x->dbeta;
    a.chunk = rows->chunk, a.chunk_first = rows->chunk_first;
    char *room = (char *)hl_cuda_scratch(c, carve_all(&a, NULL, fast));
    if (!room) return;
    carve_all(&a, room, fast);
    launch(c, back_gates, blocks_for(a.chunks * a.HV, WARPS), 32 * WARPS, 0, a);
#ifndef HL_CUDA_F32
    if (fast) {
        const size_t shared = 2 * C * (a.K + 8) * sizeof(bf16) + 2 * C * sizeof(float);
        launch(c, back_scores, dim3((unsigned)a.chunks, (unsigned)a.H), 32 * WARPS, shared, a);
        HL_OP(gdn_back_states)(c, &a);
        HL_OP(gdn_back_scan)(c, &a);
        HL_OP(gdn_back_rest)(c, &a);
    } else
#endif
        HL_OP(gdn_back_plain)(c, &a);
    if (a.group > 1) {
        const int64_t n = a.T * a.H * a.K;
        launch(c, back_group, blocks_for(n, 256), 256, 0, (const act *)a.dq_head, a.dq, n, a.K, a.group);
        launch(c, back_group, blocks_for(n, 256), 256, 0, (const act *)a.dk_head, a.dk, n, a.K, a.group);
    }
}
