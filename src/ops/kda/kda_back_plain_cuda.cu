/* kda_back_plain_cuda.cu -- the backward pass of KDA with plain loops in float, for head sizes, activations and chips
 * that the other variant in kda_back_cuda.cu does not support. Token by token from last to first, like kda_ref.c.
 *
 * plain_states: the states before every chunk, from v_new; a thread per element of a head's state. plain_tokens: a
 * block per segment and value head. For each chunk, last one first, it recomputes the states before every row, then
 * processes the rows backwards. A thread has whole columns of the state where sums run over K, a warp whole rows where
 * they run over V; __syncthreads between the two. Shared memory: e, r = beta e, dr and dv of a row. */
#include "ops/cuda_ops.cuh"
#include "ops/kda/kda_back_cuda.cuh"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) plain_states(const struct kda_back a) {
    const int hv = blockIdx.x % a.HV, s = blockIdx.x / a.HV;
    const int64_t x = (int64_t)blockIdx.y * THREADS + threadIdx.x, KV = (int64_t)a.K * a.V, i = x / a.V, j = x % a.V;
    const struct hl_seg seg = a.seg[s];
    if (x >= KV) return;
    float S = a.h0 ? kda_end_state(a, a.h0, s, hv)[x] : 0.0f;
    for (int64_t t = 0; t < seg.len; t++) {
        const int64_t row = seg.row + t, b = row * a.HV + hv;
        if (t % HL_CHUNK == 0) ((float *)a.h)[((a.chunk_first[s] + t / HL_CHUNK) * (int64_t)a.HV + hv) * KV + x] = S;
        S = expf(a.g[b * a.K + i]) * S + f32(a.k[(row * a.H + hv / a.group) * a.K + i]) * f32(a.v_new[b * a.V + j]);
    }
}

struct smem {
    float *e, *r, *dr, *dv, *sum; /* [V]; sum: 33 */
};

/* e and dr of a row, and dS with the output's gradient; a thread has columns */
static __device__ void plain_columns(const struct kda_back &a, const struct smem &m, const float *S, float *dS,
                                     const act *q, const act *k, const float *g, int64_t b, float beta) {
    const float scale = 1.0f / sqrtf((float)a.K);
    for (int j = threadIdx.x; j < a.V; j += THREADS) {
        const float dout = f32(a.dout[b * a.V + j]);
        float e = f32(a.v[b * a.V + j]), dr = 0.0f;
        for (int64_t i = 0; i < a.K; i++) {
            const float d = dS[i * a.V + j] + scale * f32(q[i]) * dout, ki = f32(k[i]);
            dS[i * a.V + j] = d;
            e -= ki * expf(g[i]) * S[i * a.V + j];
            dr += ki * d;
        }
        m.e[j] = e, m.r[j] = beta * e, m.dr[j] = dr, m.dv[j] = beta * dr;
        put(a.dv + b * a.V + j, beta * dr);
    }
}
/* dq, dk and dg of a row, and dS of the row before; a warp has rows of the state */
static __device__ void plain_rows(const struct kda_back &a, const struct smem &m, const float *S, float *dS,
                                  const act *q, const act *k, const float *g, int64_t b) {
    const float scale = 1.0f / sqrtf((float)a.K);
    const int lane = threadIdx.x % 32;
    for (int64_t i = threadIdx.x / 32; i < a.K; i += THREADS / 32) {
        const float alpha = expf(g[i]), ki = f32(k[i]);
        float dq = 0.0f, dk = 0.0f, dg = 0.0f;
        for (int j = lane; j < a.V; j += 32) {
            const float decayed = alpha * S[i * a.V + j], d = dS[i * a.V + j], after = d - ki * m.dv[j];
            dq += (decayed + ki * m.r[j]) * f32(a.dout[b * a.V + j]);
            dk += d * m.r[j] - decayed * m.dv[j];
            dg += after * decayed;
            dS[i * a.V + j] = alpha * after;
        }
        dq = warp_sum(dq), dk = warp_sum(dk), dg = warp_sum(dg);
        if (lane > 0) continue;
        put(a.dq_head + b * a.K + i, scale * dq);
        put(a.dk_head + b * a.K + i, dk);
        a.dg[b * a.K + i] = dg;
    }
}

static __global__ void __launch_bounds__(THREADS) plain_tokens(const struct kda_back a) {
    float *shared = (float *)shared_memory();
    const struct smem m = {shared, shared + a.V, shared + 2 * a.V, shared + 3 * a.V, shared + 4 * a.V};
    const int hv = blockIdx.x % a.HV, s = blockIdx.x / a.HV;
    const int64_t KV = (int64_t)a.K * a.V;
    const struct hl_seg seg = a.seg[s];
    float *own = a.plain + blockIdx.x * (HL_CHUNK + 1) * KV, *dS = own + HL_CHUNK * KV; /* own: before every row */
    const float *dht = kda_end_state(a, a.dht, s, hv);
    float *dh0 = kda_end_state(a, a.dh0, s, hv);
    for (int64_t x = threadIdx.x; x < KV; x += THREADS) dS[x] = dht ? dht[x] : 0.0f;
    __syncthreads();
    for (int64_t c = a.chunk_first[s + 1] - a.chunk_first[s] - 1; c >= 0; c--) {
        const int64_t first = seg.row + c * HL_CHUNK;
        const int64_t len = min((int64_t)HL_CHUNK, seg.len - c * HL_CHUNK);
        const float *h = (const float *)a.h + ((a.chunk_first[s] + c) * a.HV + hv) * KV;
        for (int64_t x = threadIdx.x; x < KV; x += THREADS) {
            const int64_t i = x / a.V, j = x % a.V;
            float S = h[x];
            for (int64_t t = 0; t < len; t++) {
                const int64_t row = first + t, b = row * a.HV + hv;
                own[t * KV + x] = S;
                S = expf(a.g[b * a.K + i]) * S +
                    f32(a.k[(row * a.H + hv / a.group) * a.K + i]) * f32(a.v_new[b * a.V + j]);
            }
        }
        for (int64_t t = len - 1; t >= 0; t--) {
            const int64_t row = first + t, b = row * a.HV + hv, qk = (row * a.H + hv / a.group) * a.K;
            const float *g = a.g + b * a.K, *S = own + t * KV;
            float sum = 0.0f;
            __syncthreads();
            plain_columns(a, m, S, dS, a.q + qk, a.k + qk, g, b, a.beta[b]);
            __syncthreads();
            for (int j = threadIdx.x; j < a.V; j += THREADS) sum += m.dr[j] * m.e[j];
            sum = block_sum(sum, m.sum);
            if (threadIdx.x == 0) a.dbeta[b] = sum;
            plain_rows(a, m, S, dS, a.q + qk, a.k + qk, g, b);
        }
        __syncthreads();
    }
    for (int64_t x = threadIdx.x; x < KV && dh0; x += THREADS) dh0[x] = dS[x];
}

extern "C" void HL_OP(kda_back_plain)(struct hl_cuda *c, const struct kda_back *a) {
    const unsigned heads = (unsigned)(a->segs * a->HV);
    launch(c, plain_states, dim3(heads, blocks_for((int64_t)a->K * a->V, THREADS)), THREADS, 0, *a);
    launch(c, plain_tokens, heads, THREADS, (size_t)(4 * a->V + 33) * sizeof(float), *a);
}
