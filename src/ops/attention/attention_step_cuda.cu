/* attention_step_cuda.cu -- one new row of every session: attention over its past, and appending the row.
 *
 * The keys of a sequence are processed in units of UNIT positions, counted from position 0. Grid (blocks of a sequence,
 * HK, n), WARPS warps: block x reads units x, x + gridDim.x, ... of one key head, a warp every WARPS-th batch of GROUPS
 * keys, with LANES lanes per key and 16 bytes per lane; K and V of a unit are all in flight while the previous unit is
 * used. For every query head of the group a block writes the partial softmax of each unit; the last block to arrive (an
 * atomic counter) combines those of all units, in order. So the result depends only on the position, not on the grid or
 * on other sequences.
 *
 * The grid and the room for partials are set by hl_rows_reach, and positions are read on the device: a captured graph
 * serves all positions up to that limit. PDL: keys of earlier calls are loaded before pdl_wait. Shared memory: the
 * warps' partial softmaxes. */
#include "ops/attention/attention_cuda.cuh"
#include "cuda/fastmath.cuh"
#include "cuda/packed.cuh"
#include "cuda/pdl.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, EACH = 4 /* keys per group of lanes */ };

template <int D> struct reading {
    enum { LANES = D / WIDE, GROUPS = 32 / LANES, UNIT = WARPS * GROUPS * EACH, LD = D + 2 };
};
/* the key of a unit for a lane's i-th row */
template <int D> static __device__ __forceinline__ int key_of(int i) {
    typedef reading<D> R;
    return (i * WARPS + threadIdx.x / 32) * R::GROUPS + threadIdx.x % 32 / R::LANES;
}

/* The partial softmax of query head h over this unit, written to part: D sums, the largest score (base 2), the
 * denominator. */
template <int D>
static __device__ __forceinline__ void read_unit(const uint4 k[EACH], const uint4 v[EACH], const float q[WIDE],
                                                 int first, int last, float (*shared)[D + 2], float *part) {
    typedef reading<D> R;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float z[EACH], acc[WIDE] = {}, top = -INFINITY, sum = 0.0f, x[WIDE];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        unpack(x, k[i]);
        z[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < WIDE; j++) z[i] += q[j] * x[j];
#pragma unroll
        for (int n = 1; n < R::LANES; n *= 2) z[i] += __shfl_xor_sync(0xffffffffu, z[i], n);
        if (key_of<D>(i) < first || key_of<D>(i) > last) z[i] = -INFINITY;
        top = fmaxf(top, z[i]);
    }
#pragma unroll
    for (int n = R::LANES; n < 32; n *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, n));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float p = z[i] == -INFINITY ? 0.0f : fast_exp2(z[i] - top);
        unpack(x, v[i]);
        sum += p;
#pragma unroll
        for (int j = 0; j < WIDE; j++) acc[j] += p * x[j];
    }
#pragma unroll
    for (int n = R::LANES; n < 32; n *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, n);
#pragma unroll
        for (int j = 0; j < WIDE; j++) acc[j] += __shfl_xor_sync(0xffffffffu, acc[j], n);
    }
    if (lane < R::LANES)
#pragma unroll
        for (int j = 0; j < WIDE; j++) shared[warp][lane * WIDE + j] = acc[j];
    if (lane == 0) shared[warp][D] = top, shared[warp][D + 1] = sum;
    __syncthreads(); /* the buffer of the last call may still be read; this one is rewritten only after the next
                      * barrier */
    if (threadIdx.x < D) {
        float all = 0.0f, value = 0.0f;
        top = -INFINITY;
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, shared[w][D]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float by = fast_exp2(shared[w][D] - top); /* 0: no key */
            all += by * shared[w][D + 1], value += by * shared[w][threadIdx.x];
        }
        part[threadIdx.x] = value;
        if (threadIdx.x == 0) part[D] = top, part[D + 1] = all;
    }
}

/* Combines all units of a query head in order: THREADS / D runs, then these. part: of the first unit */
template <int D>
static __device__ __forceinline__ void combine(const float *part, int units, float (*shared)[D + 2], act *out) {
    enum { LD = reading<D>::LD, RUNS = THREADS / D, BATCH = 16 };
    const int run = threadIdx.x / D, x = threadIdx.x % D, each = (units + RUNS - 1) / RUNS,
              end = min((run + 1) * each, units);
    float top = -INFINITY, sum = 0.0f, acc = 0.0f;
    for (int u0 = run * each; u0 < end; u0 += BATCH) {
        float tops[BATCH], sums[BATCH], accs[BATCH], next = top;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const bool there = u0 + i < end;
            const float *at = part + (int64_t)(u0 + i) * LD;
            tops[i] = there ? __ldcg(at + D) : -INFINITY, sums[i] = there ? __ldcg(at + D + 1) : 0.0f;
            accs[i] = there ? __ldcg(at + x) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) next = fmaxf(next, tops[i]);
        const float by = fast_exp2(top - next);
        sum *= by, acc *= by, top = next;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const float each_by = fast_exp2(tops[i] - top);
            sum += each_by * sums[i], acc += each_by * accs[i];
        }
    }
    shared[run][x] = acc;
    if (x == 0) shared[run][D] = top, shared[run][D + 1] = sum;
    __syncthreads();
    if (run == 0) {
        top = -INFINITY, sum = 0.0f, acc = 0.0f;
        for (int r = 0; r < RUNS; r++) top = fmaxf(top, shared[r][D]);
        for (int r = 0; r < RUNS; r++) {
            const float by = fast_exp2(shared[r][D] - top);
            sum += by * shared[r][D + 1], acc += by * shared[r][x];
        }
        put(out + x, acc / sum);
    }
    __syncthreads();
}

/* Starts loading the lane's rows of the unit from key0 on: rows of earlier calls, zeros for others. */
template <int D>
static __device__ __forceinline__ void load_unit(uint4 k[EACH], uint4 v[EACH], const struct attention_args &a, int s,
                                                 int at, int key0, int first, int t) {
    const act *keys = state_row(a, s, key0, a.k_off) + at, *values = state_row(a, s, key0, a.v_off) + at;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int key = key0 + key_of<D>(i);
        const bool past = key >= first && key < t;
        /* a unit lies in one page, but may wrap around in a ring */
        const int64_t row = (a.window ? key % a.window - key0 % a.window : key - key0) * (int64_t)(a.HK * D);
        k[i] = v[i] = make_uint4(0, 0, 0, 0);
        if (past) k[i] = __ldcs((const uint4 *)(keys + row)), v[i] = __ldcs((const uint4 *)(values + row));
    }
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 2)
    attention_step_kernel(const struct attention_args a, float *parts, int room) {
    typedef reading<D> R;
    const int s = blockIdx.z, hk = blockIdx.y, group = a.H / a.HK, lane = threadIdx.x % 32;
    const int at = hk * D + lane % R::LANES * WIDE; /* the lane's part of a row */
    const struct hl_seg seg = a.seg[s];
    const int t = (int)seg.pos, first = first_key(a, t), unit0 = first / R::UNIT, units = t / R::UNIT - unit0 + 1;
    __shared__ float shared[2][WARPS][D + 2];
    __shared__ int last;
    uint4 k[EACH], v[EACH], k_next[EACH], v_next[EACH];
    int buffer = 0;
    if ((int)blockIdx.x < units) load_unit<D>(k, v, a, s, at, (unit0 + blockIdx.x) * R::UNIT, first, t);
    pdl_wait(), pdl_trigger();
    for (int u = blockIdx.x; u < units; u += gridDim.x) {
        const int key0 = (unit0 + u) * R::UNIT, next = u + gridDim.x;
        if (next < units) load_unit<D>(k_next, v_next, a, s, at, (unit0 + next) * R::UNIT, first, t);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (key0 + key_of<D>(i) == t) {
                k[i] = __ldcg((const uint4 *)(a.k + seg.row * a.k_ld + at));
                v[i] = __ldcg((const uint4 *)(a.v + seg.row * a.k_ld + at));
                *(uint4 *)(state_row(a, s, t, a.k_off) + at) = k[i];
                *(uint4 *)(state_row(a, s, t, a.v_off) + at) = v[i];
            }
        for (int h = hk * group; h < (hk + 1) * group; h++, buffer ^= 1) {
            float q[WIDE];
            unpack(q, __ldcg((const uint4 *)(a.q + seg.row * a.q_ld + h * D + lane % R::LANES * WIDE)));
#pragma unroll
            for (int j = 0; j < WIDE; j++) q[j] *= a.scale * LOG2E;
            read_unit<D>(k, v, q, first - key0, t - key0, shared[buffer],
                         parts + (((int64_t)s * a.H + h) * room + u) * R::LD);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) k[i] = k_next[i], v[i] = v_next[i];
    }
    __threadfence();
    __syncthreads();
    int32_t *count = a.zeros + s * HL_ZEROS + hk;
    if (threadIdx.x == 0) last = atomicAdd(count, 1) + 1 == (int)gridDim.x;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) *count = 0;
    for (int h = hk * group; h < (hk + 1) * group; h++)
        combine<D>(parts + ((int64_t)s * a.H + h) * room * R::LD, units, shared[0], a.out + (seg.row * a.H + h) * D);
}

template <int D> static bool step(struct hl_cuda *c, const struct hl_attention *a, const struct attention_args &x) {
    typedef reading<D> R;
    const int64_t reach = hl_rows_reach(a->rows), window = a->window + R::UNIT,
                  room = (a->window && window < reach ? window : reach) / R::UNIT + 1,
                  fill = 2 * hl_cuda_sms(c) / (a->HK * a->rows->n) + 1, blocks = room < fill ? room : fill;
    float *parts = (float *)hl_cuda_scratch(c, a->rows->n * a->H * room * R::LD * 4);
    if (!parts) return true;
    launch_pdl(c, attention_step_kernel<D>, dim3((unsigned)blocks, (unsigned)a->HK, (unsigned)a->rows->n), THREADS, 0,
               x, parts, (int)room);
    return true;
}
extern "C" bool HL_OP(attention_step)(struct hl_cuda *c, const struct hl_attention *a) {
    const struct attention_args x = attention_args_of(a);
    const uintptr_t aligned = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | a->k_off | a->v_off;
    for (int64_t i = 0; i < a->rows->n; i++)
        if (!a->rows->seg[i].state || a->rows->seg[i].len != 1) return false;
    if (aligned % 16 || x.q_ld % WIDE || x.k_ld % WIDE || a->HK > HL_ZEROS || a->lse || a->rows->n > 65535)
        return false;
    if (a->D == 64) return step<64>(c, a, x);
    if (a->D == 128) return step<128>(c, a, x);
    return false;
}
