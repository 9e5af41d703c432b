/* gdn_step_cuda.cu -- decoding: segments of a few tokens that have a state (docs/math.md).
 *
 * A block owns COLS columns of one value head's state, read from memory once and written once whatever
 * the number of tokens or of sessions; a thread holds 4 neighbouring columns of K COLS / 1024 neighbouring rows. The
 * read after the write needs no second pass:  q^T S_t = alpha q^T S_{t-1} + (q.k) beta e,  so a token
 * costs one sum over the block. Blocks go on from tile to tile, with the next one on its way in shared memory, of
 * which a thread reads what it has copied itself: so memory is never left waiting for the sums. */
#include "ops/gdn/gdn_prep_cuda.cuh"
#include "ops/gdn/gdn_step_cuda.cuh"

enum { COLS = GDN_STEP_COLS, QUADS = COLS / 4, THREADS = 8 * COLS, WARPS = THREADS / 32 };
enum { STEP_ROWS = 8, PER_SM = 3 }; /* tokens of a segment; blocks */

/* N activations */
template <int N> static __device__ __forceinline__ void load_row(float x[N], const act *p) {
    const int wide = N % WIDE ? 0 : N;
#pragma unroll
    for (int i = 0; i < wide; i += WIDE) load_wide(x + i, p + i);
#pragma unroll
    for (int i = wide; i < N; i++) x[i] = f32(p[i]);
}

/* k^T S, q^T S of the thread's 4 columns and q.k, summed over the block in a fixed order */
static __device__ __forceinline__ void sum_rows(float x[9], float (*part)[QUADS][WARPS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % QUADS;
#pragma unroll
    for (int i = 0; i < 9; i++) {
#pragma unroll
        for (int n = QUADS; n < 32; n *= 2) x[i] += __shfl_xor_sync(0xffffffffu, x[i], n);
        if (lane < QUADS) part[i][quad][warp] = x[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 9; i++) {
        x[i] = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w += 4) {
            const float4 p = *(const float4 *)(part[i][quad] + w);
            x[i] += (p.x + p.y) + (p.z + p.w);
        }
    }
}

static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* Where a thread's part of tile w lies. */
struct place {
    int tile, hv;
    struct hl_seg seg;
    float *kept;
};
template <int K> static __device__ __forceinline__ struct place place_of(const struct gdn_step &a, int w) {
    struct place p = {w % a.tiles, w / a.tiles % a.HV, a.seg[w / a.tiles / a.HV]};
    const int first = threadIdx.x / QUADS * (K * QUADS / THREADS);
    p.kept = (float *)(p.seg.state + a.S_off) + ((int64_t)p.hv * K + first) * a.V + p.tile * COLS +
             threadIdx.x % QUADS * 4;
    return p;
}

template <int K>
static __global__ void __launch_bounds__(THREADS, PER_SM) step_tokens(const struct gdn_step a, int items) {
    const int R = K * QUADS / THREADS, quad = threadIdx.x % QUADS, first = threadIdx.x / QUADS * R;
    __shared__ __align__(16) float part[2][9][QUADS][WARPS];
    float4 *ring = (float4 *)shared_memory() + threadIdx.x; /* [2][R][THREADS] */
    struct place next = place_of<K>(a, blockIdx.x);
    int turn = 0;
#pragma unroll
    for (int i = 0; i < R; i++) copy_async(ring + i * THREADS, next.kept + (int64_t)i * a.V);
    copy_commit();
    wait_for_others(); /* no kernel right before this one writes states */
    let_others_start();
    for (int w = blockIdx.x, slot = 0; w < items; w += gridDim.x, slot ^= 1) {
        const struct place now = next;
        const struct hl_seg seg = now.seg;
        const int tile = now.tile, hv = now.hv, hk = hv / (a.HV / a.H);
        float *kept = now.kept;
        float4 S[R]; /* rows from `first` */
        if (w + (int)gridDim.x < items) {
            next = place_of<K>(a, w + gridDim.x);
#pragma unroll
            for (int i = 0; i < R; i++)
                copy_async(ring + ((slot ^ 1) * R + i) * THREADS, next.kept + (int64_t)i * a.V);
        }
        copy_commit();
        copy_wait<1>();
#pragma unroll
        for (int i = 0; i < R; i++) S[i] = ring[(slot * R + i) * THREADS];
        for (int t = 0; t < (int)seg.len; t++) {
            const int64_t row = seg.row + t, b = row * a.HV + hv, at = b * a.V + tile * COLS + 4 * quad;
            const int64_t qk = (row * a.H + hk) * K + first;
            const float scale = 1.0f / sqrtf((float)K);
            float alpha = 1.0f, beta = 1.0f;
            if (a.raw && a.a)
                alpha = expf(-expf(a.A_log[hv]) * softplus(f32(a.a[row * a.ld + hv]) + a.dt_bias[hv]));
            if (a.raw && a.b) beta = a.top * sigmoid(f32(a.b[row * a.ld + hv]));
            if (!a.raw) alpha = a.g ? expf(a.g[b]) : 1.0f, beta = a.beta[b];
            float k[R], q[R], v[4], r[4], x[9] = {0.0f};
            load_row<R>(k, a.k + qk);
            load_row<R>(q, a.q + qk);
            load_row<4>(v, a.v + at);
#pragma unroll
            for (int i = 0; i < R; i++) {
                x[0] += k[i] * S[i].x, x[1] += k[i] * S[i].y, x[2] += k[i] * S[i].z, x[3] += k[i] * S[i].w;
                x[4] += q[i] * S[i].x, x[5] += q[i] * S[i].y, x[6] += q[i] * S[i].z, x[7] += q[i] * S[i].w;
                x[8] += q[i] * k[i];
            }
            sum_rows(x, part[turn]), turn ^= 1;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float e = v[j] - alpha * x[j];
                r[j] = beta * e;
                const float s = a.evict == HOLA_EVICT_E       ? e
                                : a.evict == HOLA_EVICT_BETAV ? beta * v[j]
                                                              : r[j];
                sum += s * s;
                const float o = scale * (alpha * x[4 + j] + x[8] * r[j]);
                if (first == 0 && a.out32) a.out32[at + j] = o;
                else if (first == 0) put(a.out + at + j, o);
            }
#pragma unroll
            for (int n = 1; n < QUADS; n *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
            if (threadIdx.x == 0) a.sums[a.raw ? b * a.tiles + tile : tile * a.T * a.HV + b] = sum;
#pragma unroll
            for (int i = 0; i < R; i++) {
                S[i].x = alpha * S[i].x + k[i] * r[0], S[i].y = alpha * S[i].y + k[i] * r[1];
                S[i].z = alpha * S[i].z + k[i] * r[2], S[i].w = alpha * S[i].w + k[i] * r[3];
            }
        }
#pragma unroll
        for (int i = 0; i < R; i++)
            __stcs((float4 *)(kept + (int64_t)i * a.V), S[i]); /* not read again soon */
    }
}

void HL_OP(gdn_step_start)(struct hl_cuda *c, const struct gdn_step *a, int64_t K, int64_t segments) {
    const int items = (int)segments * a->HV * a->tiles, most = PER_SM * hl_cuda_sms(c);
    void (*kernel)(struct gdn_step, int) = K == 64    ? step_tokens<64>
                                           : K == 128 ? step_tokens<128>
                                                      : step_tokens<256>;
    launch_early(c, kernel, (unsigned)(items < most ? items : most), THREADS, (size_t)(2 * K * COLS * 4), *a,
                 items);
}

extern "C" bool HL_OP(gdn_step)(struct hl_pool *pool, const struct hl_gdn *a) {
    const int64_t rows = a->rows->T * a->HV, tiles = a->V / COLS;
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
