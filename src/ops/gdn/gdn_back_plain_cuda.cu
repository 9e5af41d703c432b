/* gdn_back_plain_cuda.cu -- the backward pass for any head sizes with plain loops in float (gdn_back_cuda.cuh): float
 * activations, odd head sizes and GPUs before Hopper, and the reference for the other variants on a GPU. Of the forward
 * pass's outputs it uses v_new, not A. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"

enum { THREADS = 256, COLS = 32, SHARE = THREADS / COLS };

/* h, transposed: S_t = exp(g_t) S_{t-1} + k_t v_new_t^T. A thread has one element of one state. */
static __global__ void __launch_bounds__(THREADS) plain_states(const struct gdn_back a) {
    const int seg = blockIdx.x / a.HV, hv = blockIdx.x % a.HV;
    const int64_t KV = (int64_t)a.K * a.V, at = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (at >= KV) return;
    const int i = (int)(at % a.K), j = (int)(at / a.K);
    const float *h0 = end_state(a, a.h0, seg, hv);
    float S = h0 ? h0[(int64_t)i * a.V + j] : 0.0f;
    for (int c = a.chunk_first[seg]; c < a.chunk_first[seg + 1]; c++) {
        const struct hl_dev_span p = a.chunk[c];
        ((float *)a.h)[((int64_t)c * a.HV + hv) * KV + at] = S;
        for (int64_t t = p.row; t < p.row + p.len; t++) {
            const float alpha = a.g ? expf(a.g[t * a.HV + hv]) : 1.0f;
            S = alpha * S + f32(a.k[(t * a.H + hv / a.group) * a.K + i]) * f32(a.v_new[(t * a.HV + hv) * a.V + j]);
        }
    }
}

/* dh and X2, token by token; columns of dh are independent. Grid (segments x HV, V / COLS); a thread has
 * every SHARE-th row of one column. */
static __global__ void __launch_bounds__(THREADS) plain_scan(const struct gdn_back a) {
    const int seg = blockIdx.x / a.HV, hv = blockIdx.x % a.HV, hk = hv / a.group;
    const int x = threadIdx.x % COLS, first = threadIdx.x / COLS, j = blockIdx.y * COLS + x;
    const bool mine = j < a.V;
    const float scale = 1.0f / sqrtf((float)a.K);
    float *dh = (float *)shared_memory() + x, *sums = dh + (int64_t)a.K * COLS;
    const float *dht = end_state(a, a.dht, seg, hv);
    float *dh0 = end_state(a, a.dh0, seg, hv);
    for (int i = first; i < a.K; i += SHARE) dh[i * COLS] = dht && mine ? dht[(int64_t)i * a.V + j] : 0.0f;
    for (int c = a.chunk_first[seg + 1] - 1; c >= a.chunk_first[seg]; c--) {
        const struct hl_dev_span p = a.chunk[c];
        float *to = (float *)a.dh + (((int64_t)c * a.HV + hv) * a.V + j) * a.K;
        for (int i = first; i < a.K && mine; i += SHARE) to[i] = dh[i * COLS];
        for (int64_t t = p.row + p.len - 1; t >= p.row; t--) {
            const int64_t row = t * a.HV + hv;
            const act *q = a.q + (t * a.H + hk) * a.K, *k = a.k + (t * a.H + hk) * a.K;
            const float dO = mine ? scale * f32(a.dout[row * a.V + j]) : 0.0f, beta = a.beta[row];
            const float alpha = a.g ? expf(a.g[row]) : 1.0f;
            float dr = 0;
            for (int i = first; i < a.K; i += SHARE) {
                dh[i * COLS] += f32(q[i]) * dO;
                dr += f32(k[i]) * dh[i * COLS];
            }
            sums[first * COLS] = dr;
            __syncthreads();
            dr = 0;
            for (int i = 0; i < SHARE; i++) dr += sums[i * COLS];
            __syncthreads();
            for (int i = first; i < a.K; i += SHARE) dh[i * COLS] = alpha * (dh[i * COLS] - f32(k[i]) * (beta * dr));
            if (first == 0 && mine) {
                ((float *)a.X2)[row * a.V + j] = dr;
                put(a.dv + row * a.V + j, beta * dr);
            }
        }
    }
    for (int i = first; i < a.K && dh0 && mine; i += SHARE) dh0[(int64_t)i * a.V + j] = dh[i * COLS];
}

/* shared memory of plain_chunks */
struct smem {
    float dS[C][C + 1], N[C][C + 1]; /* the diagonal of dS: s (dO.v_new) */
    float gates[BACK_GATES], up[C], down[C], vx[C], sum[33];
};

/* dS and N, strictly below the diagonal; V.X2 */
static __device__ void plain_scores(const struct gdn_back &a, const struct hl_dev_span &p, int hv, struct smem *m) {
    const float scale = 1.0f / sqrtf((float)a.K);
    const int64_t first = (int64_t)p.row * a.HV + hv;
    const float *X2 = (const float *)a.X2;
    for (int x = threadIdx.x; x < C * C; x += THREADS) {
        const int i = x / C, j = x % C;
        if (i >= p.len || j > i) continue;
        const int64_t at = (first + (int64_t)i * a.HV) * a.V, to = (first + (int64_t)j * a.HV) * a.V;
        float s = 0, l = 0;
        for (int v = 0; v < a.V; v++) {
            const float y = f32(a.v_new[to + v]);
            s += f32(a.dout[at + v]) * y;
            l += X2[at + v] * y;
        }
        const float D =
            exp2f((m->gates[G_INT + i] - m->gates[G_INT + j]) + (m->gates[G_FRAC + i] - m->gates[G_FRAC + j]));
        m->dS[i][j] = scale * s * D;
        m->N[i][j] = -l * D;
    }
    for (int i = threadIdx.x / 32; i < p.len; i += THREADS / 32) {
        const int64_t at = (first + (int64_t)i * a.HV) * a.V;
        float s = 0;
        for (int v = threadIdx.x % 32; v < a.V; v += 32) s += f32(a.v[at + v]) * X2[at + v];
        s = warp_sum(s);
        if (threadIdx.x % 32 == 0) m->vx[i] = s;
    }
}

/* Row i by one warp: dQ and dK, and its terms of dbeta and dg */
static __device__ void plain_row(const struct gdn_back &a, const struct hl_dev_span &p, int hv, int64_t head, int i,
                                 struct smem *m) {
    const int lane = threadIdx.x % 32, hk = hv / a.group;
    const float scale = 1.0f / sqrtf((float)a.K), eG = m->gates[EG + i], eL = m->gates[EL + i];
    const float beta = m->gates[BETA + i], diagonal = m->dS[i][i];
    const int64_t row = (int64_t)(p.row + i) * a.HV + hv, qk = ((int64_t)p.row * a.H + hk) * a.K;
    const int64_t stride = (int64_t)a.H * a.K;
    const float *h = (const float *)a.h + head * a.K * a.V, *dh = (const float *)a.dh + head * a.K * a.V;
    const float *X2 = (const float *)a.X2 + row * a.V;
    float qdq = 0, ke = 0, ku = 0, kw = 0;
    for (int x = lane; x < a.K; x += 32) {
        float dQ = 0, E = 0, U = 0, W = 0;
        for (int v = 0; v < a.V; v++) {
            const float S = h[(int64_t)v * a.K + x];
            dQ += f32(a.dout[row * a.V + v]) * S;
            E += X2[v] * S;
            U += f32(a.v_new[row * a.V + v]) * dh[(int64_t)v * a.K + x];
        }
        dQ *= scale * eG, E *= -eG, U *= eL;
        for (int j = 0; j < i; j++) {
            const float k = f32(a.k[qk + j * stride + x]);
            dQ += m->dS[i][j] * k;
            E += m->N[i][j] * k;
        }
        for (int j = i + 1; j < p.len; j++) {
            const float k = f32(a.k[qk + j * stride + x]), q = f32(a.q[qk + j * stride + x]);
            W += m->dS[j][i] * q + m->gates[BETA + j] * m->N[j][i] * k;
        }
        const float k = f32(a.k[qk + i * stride + x]), q = f32(a.q[qk + i * stride + x]);
        qdq += q * dQ, ke += k * E, ku += k * U, kw += k * W;
        put(a.dq_head + row * a.K + x, dQ + diagonal * k);
        put(a.dk_head + row * a.K + x, beta * E + U + W + diagonal * q);
    }
    qdq = warp_sum(qdq), ke = warp_sum(ke), ku = warp_sum(ku), kw = warp_sum(kw);
    if (lane > 0) return;
    m->up[i] = qdq + beta * ke - kw;
    m->down[i] = ku;
    a.dbeta[row] = m->vx[i] + ke;
}

/* Everything else. Grid: a block per chunk and value head. */
static __global__ void __launch_bounds__(THREADS) plain_chunks(const struct gdn_back a) {
    struct smem *m = (struct smem *)shared_memory();
    const int64_t head = blockIdx.x, KV = (int64_t)a.K * a.V;
    const int hv = (int)(head % a.HV);
    const struct hl_dev_span p = a.chunk[head / a.HV];
    for (int i = threadIdx.x; i < BACK_GATES; i += THREADS) m->gates[i] = a.gates[head * BACK_GATES + i];
    __syncthreads();
    plain_scores(a, p, hv, m);
    __syncthreads();
    for (int i = threadIdx.x / 32; i < p.len; i += THREADS / 32) plain_row(a, p, hv, head, i, m);
    float hdh = 0;
    for (int64_t i = threadIdx.x; i < KV; i += THREADS)
        hdh += ((const float *)a.h)[head * KV + i] * ((const float *)a.dh)[head * KV + i];
    hdh = block_sum(hdh, m->sum); /* and a barrier */
    if (threadIdx.x > 0 || !a.dg) return;
    double after = 0, before = (double)hdh * (double)m->gates[EG + C - 1];
    for (int i = p.len - 1; i >= 0; i--) m->up[i] = (float)(after += (double)m->up[i]);
    for (int i = 0; i < p.len; i++) {
        a.dg[(int64_t)(p.row + i) * a.HV + hv] = (float)((double)m->up[i] + before);
        before += (double)m->down[i];
    }
}

extern "C" void HL_OP(gdn_back_plain)(struct hl_cuda *c, const struct gdn_back *a) {
    const unsigned scans = (unsigned)(a->segs * a->HV);
    const size_t tile = (size_t)(a->K + SHARE) * COLS * sizeof(float);
    launch(c, plain_states, dim3(scans, blocks_for((int64_t)a->K * a->V, THREADS)), THREADS, 0, *a);
    launch(c, plain_scan, dim3(scans, blocks_for(a->V, COLS)), THREADS, tile, *a);
    launch(c, plain_chunks, (unsigned)(a->chunks * a->HV), THREADS, sizeof(struct smem), *a);
}
