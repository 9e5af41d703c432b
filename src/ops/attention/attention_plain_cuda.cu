/* attention_plain_cuda.cu -- attention of any shape: a warp per row and head, each lane with every 32nd number of a
 * head; for head sizes without a specialized kernel, float activations and chips before Hopper.
 *
 * forward      grid (tiles BLOCKS, H), WARPS warps: a query each, over its keys, with an online softmax dq
 * the same grid: a query each, over its keys, with the lse of the forward pass
 * dk, dv       the same grid with HK for H: a key each, over the heads of its group and the queries that see it append
 * grid (tiles, 2): k, then v of a tile's rows to the states of sessions
 * Registers hold the numbers of a lane, LANE of them at most; no shared memory, no barriers. */
#include "ops/attention/attention_cuda.cuh"

enum { WARPS = 4, BLOCKS = HL_TILE / WARPS /* of a tile */ };

/* the lane's part of x [D] */
template <int LANE> static __device__ __forceinline__ void load(float *y, const act *x, int D) {
#pragma unroll
    for (int i = 0; i < LANE; i++) {
        const int at = threadIdx.x % 32 + 32 * i;
        y[i] = at < D ? f32(x[at]) : 0.0f;
    }
}
template <int LANE> static __device__ __forceinline__ void store(act *y, const float *x, int D, float by) {
#pragma unroll
    for (int i = 0; i < LANE; i++) {
        const int at = threadIdx.x % 32 + 32 * i;
        if (at < D) put(y + at, x[i] * by);
    }
}
template <int LANE> static __device__ __forceinline__ float dot(const float *x, const float *y) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < LANE; i++) sum += x[i] * y[i];
    return warp_sum(sum);
}
/* the warp's row of the tile; false: none */
static __device__ __forceinline__ bool own_row(const struct attention_args &a, struct hl_dev_span *t, int *i) {
    *t = a.tile[blockIdx.x / BLOCKS];
    *i = blockIdx.x % BLOCKS * WARPS + threadIdx.x / 32;
    return *i < t->len;
}

template <int LANE> static __global__ void __launch_bounds__(32 * WARPS) plain_forward(const struct attention_args a) {
    struct hl_dev_span t;
    int i;
    if (!own_row(a, &t, &i)) return;
    const int h = blockIdx.y, head = h / (a.H / a.HK) * a.D, last = t.skip + i;
    const struct hl_seg seg = a.seg[t.seg];
    const int64_t row = t.row + i;
    float q[LANE], o[LANE] = {}, x[LANE], top = -INFINITY, sum = 0.0f;
    load<LANE>(q, a.q + row * a.q_ld + h * a.D, a.D);
    for (int j = first_key(a, last); j <= last; j++) {
        load<LANE>(x, key_row(a, t.seg, seg, j, a.k, a.k_off) + head, a.D);
        const float z = a.scale * dot<LANE>(q, x), next = fmaxf(top, z), factor = expf(top - next), p = expf(z - next);
        load<LANE>(x, key_row(a, t.seg, seg, j, a.v, a.v_off) + head, a.D);
        sum = sum * factor + p, top = next;
#pragma unroll
        for (int n = 0; n < LANE; n++) o[n] = o[n] * factor + p * x[n];
    }
    store<LANE>(a.out + (row * a.H + h) * a.D, o, a.D, 1.0f / sum);
    if (a.lse && threadIdx.x % 32 == 0) a.lse[row * a.H + h] = top + logf(sum);
}

template <int LANE> static __global__ void __launch_bounds__(32 * WARPS) plain_dq(const struct attention_args a) {
    struct hl_dev_span t;
    int i;
    if (!own_row(a, &t, &i)) return;
    const int h = blockIdx.y, head = h / (a.H / a.HK) * a.D, last = t.skip + i;
    const struct hl_seg seg = a.seg[t.seg];
    const int64_t row = t.row + i, at = (row * a.H + h) * a.D;
    float q[LANE], dout[LANE], k[LANE], x[LANE], dq[LANE] = {};
    load<LANE>(q, a.q + row * a.q_ld + h * a.D, a.D);
    load<LANE>(dout, a.dout + at, a.D);
    load<LANE>(x, a.out + at, a.D);
    const float along = dot<LANE>(dout, x), lse = a.lse[row * a.H + h];
    for (int j = first_key(a, last); j <= last; j++) {
        load<LANE>(k, a.k + (seg.row + j) * a.k_ld + head, a.D);
        load<LANE>(x, a.v + (seg.row + j) * a.k_ld + head, a.D);
        const float p = expf(a.scale * dot<LANE>(q, k) - lse), ds = p * (dot<LANE>(dout, x) - along);
#pragma unroll
        for (int n = 0; n < LANE; n++) dq[n] += ds * k[n];
    }
    store<LANE>(a.dq + row * a.q_ld + h * a.D, dq, a.D, a.scale);
}

template <int LANE> static __global__ void __launch_bounds__(32 * WARPS) plain_dkv(const struct attention_args a) {
    struct hl_dev_span t;
    int i;
    if (!own_row(a, &t, &i)) return;
    const int hk = blockIdx.y, group = a.H / a.HK, key = t.skip + i;
    const struct hl_seg seg = a.seg[t.seg];
    const int64_t row = t.row + i, to = row * a.k_ld + hk * a.D;
    const int end = a.window && key + a.window < seg.len ? key + a.window : (int)seg.len;
    float k[LANE], v[LANE], q[LANE], dout[LANE], x[LANE], dk[LANE] = {}, dv[LANE] = {};
    load<LANE>(k, a.k + to, a.D);
    load<LANE>(v, a.v + to, a.D);
    for (int h = hk * group; h < (hk + 1) * group; h++)
        for (int j = key; j < end; j++) {
            const int64_t query = seg.row + j, at = (query * a.H + h) * a.D;
            load<LANE>(q, a.q + query * a.q_ld + h * a.D, a.D);
            load<LANE>(dout, a.dout + at, a.D);
            load<LANE>(x, a.out + at, a.D);
            const float p = expf(a.scale * dot<LANE>(q, k) - a.lse[query * a.H + h]),
                        ds = p * (dot<LANE>(dout, v) - dot<LANE>(dout, x));
#pragma unroll
            for (int n = 0; n < LANE; n++) dk[n] += ds * q[n], dv[n] += p * dout[n];
        }
    store<LANE>(a.dk + to, dk, a.D, a.scale);
    store<LANE>(a.dv + to, dv, a.D, 1.0f);
}

static __global__ void __launch_bounds__(256) append(const struct attention_args a) {
    const struct hl_dev_span t = a.tile[blockIdx.x];
    const struct hl_seg seg = a.seg[t.seg];
    const int width = a.HK * a.D, end = (int)(seg.pos + seg.len);
    const act *from = blockIdx.y ? a.v : a.k;
    const int64_t off = blockIdx.y ? a.v_off : a.k_off;
    if (!seg.state) return;
    for (int i = threadIdx.x; i < t.len * width; i += blockDim.x) {
        const int p = t.skip + i / width;
        if (a.window && p < end - a.window) continue; /* a later row overwrites its slot */
        state_row(a, t.seg, p, off)[i % width] = from[(t.row + i / width) * a.k_ld + i % width];
    }
}

/* ---- launches ---- */

typedef void kernel(struct attention_args);
static void run(struct hl_cuda *c, const struct attention_args &x, int heads, kernel *const by_lane[3]) {
    HL_ASSERT(x.D <= 1024);
    launch(c, by_lane[x.D <= 128 ? 0 : x.D <= 256 ? 1 : 2], dim3((unsigned)x.tiles * BLOCKS, heads), 32 * WARPS, 0, x);
}
extern "C" void HL_OP(attention_plain_forward)(struct hl_cuda *c, const struct hl_attention *a) {
    static kernel *const f[] = {plain_forward<4>, plain_forward<8>, plain_forward<32>};
    run(c, attention_args_of(a), (int)a->H, f);
}
extern "C" void HL_OP(attention_plain_backward)(struct hl_cuda *c, const struct hl_attention *a) {
    static kernel *const dq[] = {plain_dq<4>, plain_dq<8>, plain_dq<32>};
    static kernel *const dkv[] = {plain_dkv<4>, plain_dkv<8>, plain_dkv<32>};
    run(c, attention_args_of(a), (int)a->H, dq);
    run(c, attention_args_of(a), (int)a->HK, dkv);
}
extern "C" void HL_OP(attention_append)(struct hl_cuda *c, const struct hl_attention *a) {
    const struct attention_args x = attention_args_of(a);
    launch(c, append, dim3(x.tiles, 2), 256, 0, x);
}
