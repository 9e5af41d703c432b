/* decode_one_kernel.cuh -- the kernel for a whole token, see decode_one.h, and its launch. Grid: one block per SM,
 * cooperative; block: 8 compute warps, WEIGHT_WARP and TASK_WARP. The emulator runs blocks sequentially, so there every
 * phase is a separate launch.
 *
 * Each decode_one_*_cuda.cu instantiates it for one rule, since each compiles slowly. */
#ifndef HL_DECODE_ONE_KERNEL_CUH
#define HL_DECODE_ONE_KERNEL_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/gemv.cuh"
#include "fused/decode_one/mixer.cuh"

/* Launches the kernel of these sizes. */
void hl_decode_one_kda(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y);
void hl_decode_one_gla(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y);
void hl_decode_one_gsa(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y);
void hl_decode_one_attention(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y);

/* the two producer warps after the compute warps */
enum { WEIGHT_WARP = WARPS, TASK_WARP, ALL_THREADS = THREADS + 64 };

template <class D> static __device__ __forceinline__ uint64_t *arrivals(const D &a) { return a.words; }

/* Token-independent set-up: tables in shared memory, mbarriers. All threads. */
template <class D> static __device__ __forceinline__ struct block init_block(const D &a) {
    struct block b = {};
    named_barrier_init();
    b.shared = shared_memory();
    b.warp = threadIdx.x / 32, b.lane = threadIdx.x % 32;
    const uint64_t *from = (const uint64_t *)a.layer;
    uint64_t *to = (uint64_t *)(b.shared + a.s.layers);
    b.barriers = mbarrier_base((uint64_t *)(b.shared + a.s.barrier));
    if (threadIdx.x == THREADS) init_ring(a, b);
    for (int i = threadIdx.x; i < a.L * (int)(sizeof(struct hl_decode_layer) / 8); i += ALL_THREADS) to[i] = from[i];
    if ((int)threadIdx.x < a.M) ((struct hl_seg *)(b.shared + a.s.seg))[threadIdx.x] = a.seg[threadIdx.x];
    if (b.lane == 0 && b.warp < WARPS) *token_id(a, b) = a.ids[0];
    b.tokens_done = poll(arrivals(a)) / gridDim.x;
    b.epoch = (uint32_t)(b.tokens_done * a.L + 1);
    b.tile_task = task_at(a, blockIdx.x, a.tiles);
    if (has_logits(a)) b.logits_task = task_at(a, blockIdx.x, a.slot_tasks);
    if ((int)threadIdx.x < a.M && a.cache)
        ((struct filled *)(b.shared + a.s.filled))[threadIdx.x] = filled_at(a, a.seg[threadIdx.x].pos);
    __syncthreads();
    return b;
}
/* The scalars of all layers, for the compute warps. */
template <class D> static __device__ __forceinline__ void init_scalars(const D &a, const struct block &b) {
    for (int i = threadIdx.x; i < a.L * a.HV; i += THREADS) {
        const struct hl_decode_layer &y = layer_of(a, b, i / a.HV);
        const int h = i % a.HV;
        float *s = scalars_of(a, b, i / a.HV, h);
        s[DECAY] = a.decay || D::rule == HL_DECODE_KDA ? expf(y.A_log[h]) : 0.0f,
        s[BIAS] = a.decay ? y.dt_bias[h] : 0.0f;
        if (!a.cache) continue;
        s[SCALE] = y.tau[h] / sqrtf((float)a.K), s[SINK] = y.sink[h];
        s[LAMBDA] = 1.0f / (1.0f + expf(-y.cache_gate[h]));
    }
    sync_block();
}
/* The argmax of every row, over the block and by an atomic over all blocks. Compute warps only. */
template <class D> static __device__ __forceinline__ void reduce_argmax(const D &a, const struct block &b) {
    uint64_t *parts = (uint64_t *)(b.shared + a.s.scratch), v = b.argmax; /* [ROWS][WARPS] */
    static_assert(ROWS * WARPS * 8 <= HL_DECODE_SCRATCH * 4, "decode_one.h: scratch");
    for (int n = 1; n < 4; n *= 2) v = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, (unsigned long long)v, n));
    if (b.lane % 4 == 0 && b.lane / 4 < ROWS) parts[b.lane / 4 * WARPS + b.warp] = v;
    sync_block();
    if (b.warp > 0) return;
    v = parts[b.lane];
    for (int n = 1; n < 8; n *= 2) v = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, (unsigned long long)v, n));
    if (b.lane % 8 == 0 && b.lane / 8 < a.M)
        atomicMax((unsigned long long *)a.argmax + b.lane / 8, (unsigned long long)v);
}
/* ... and to the host, by one thread of the last block to arrive. */
template <class D> static __device__ __forceinline__ void publish_argmax(const D &a) {
    __threadfence();
    for (int m = 0; m < a.M; m++) {
        const uint64_t v = poll(a.argmax + m);
        a.argmax[m] = 0;
        const struct hl_candidate none = {0.0f, -1}, c = v == UINT64_MAX ? none : candidate_of(v);
        const uint64_t both = (uint64_t)(uint32_t)c.id << 32 | __float_as_uint(c.logit);
        *(volatile uint64_t *)(a.host_argmax + m) = both;
    }
}
static_assert(WARPS == 8, "one part per lane");

/* Every block arrives once per token, so until then the counter gives the number of tokens. */
template <class D> static __device__ __forceinline__ void arrive(const D &a) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const uint64_t before = atomicAdd((unsigned long long *)arrivals(a), 1ull);
        if (a.host_argmax && (before + 1) % gridDim.x == 0) publish_argmax(a);
    }
}

/* Hides these values from the compiler, which would otherwise keep the addresses of all phases in registers through a
 * layer; the weights need those registers. They are recomputed in the next phase. */
static __device__ __forceinline__ void drop_addresses(struct block &b) {
#ifndef HL_CUDA_EMU
    asm volatile("" : "+r"(b.warp), "+r"(b.lane), "+r"(b.barriers));
    /* so that divisions become shifts */
    __builtin_assume(b.warp >= 0 && b.warp < WARPS && b.lane >= 0 && b.lane < 32);
#endif
}

/* A phase of a layer. first, second: the parts of MIXER to run; the emulator runs them in two launches. */
template <int kind, class D>
static __device__ __forceinline__ void run_phase(const D &a, struct block &b, int l, bool first = true,
                                                 bool second = true) {
    drop_addresses(b);
    b.words = words_of(a, l), b.last_words = words_of(a, l + LAYER_BUFFERS - 1);
    if (kind == MIXER) mixer(a, b, l, first && has_logits(a), second);
    else if (first) {
        gemv<kind>(a, b, l);
        if (kind == HEAD && a.host_argmax) reduce_argmax(a, b);
    }
    next_phase();
    next_units(b);
}

#ifdef HL_CUDA_EMU
template <class D> static void decode_phase(const D a, int phase, int part) {
    struct block b = init_block(a);
    first_units(b, phase);
    const int kind = phase_kind(a, phase);
    if (b.warp == WEIGHT_WARP && part == 0) stream_weights(a, b, phase, phase + 1);
    if (b.warp == TASK_WARP && kind == MIXER) stream_task_data(a, b, phase / PHASES, phase / PHASES + 1);
    if (b.warp == TASK_WARP && kind == HEAD && a.cache) store_scores(a, b);
    if (b.warp >= WARPS) return;
    init_scalars(a, b);
    const int l = phase / PHASES;
    switch (kind) {
    case IN: run_phase<IN>(a, b, l, part == 0, part == 1); break;
    case MIXER: run_phase<MIXER>(a, b, l, part == 0, part == 1); break;
    case OUT: run_phase<OUT>(a, b, l, part == 0, part == 1); break;
    case MLP: run_phase<MLP>(a, b, l, part == 0, part == 1); break;
    case DOWN: run_phase<DOWN>(a, b, l, part == 0, part == 1); break;
    default: run_phase<HEAD>(a, b, l, part == 0, part == 1);
    }
}
template <class D> static void decode_merge(const D a) {
    struct block b = init_block(a);
    if (any_full(a, b)) merge_full(a, b);
}
template <class D> static void decode_arrive(const D a) { arrive(a); }
template <class D> static void launch_token(struct hl_cuda *c, const D *a) {
    const unsigned blocks = (unsigned)hl_cuda_sms(c);
    const size_t shared = (size_t)a->s.bytes;
    for (int phase = 0; phase <= PHASES * a->L; phase++)
        for (int part = 0; part < (phase % PHASES == MIXER ? 2 : 1); part++)
            launch(c, decode_phase<D>, blocks, ALL_THREADS, shared, *a, phase, part);
    launch(c, decode_merge<D>, blocks, ALL_THREADS, shared, *a);
    launch(c, decode_arrive<D>, blocks, ALL_THREADS, 0, *a);
}
#else
template <class D> static __global__ void __launch_bounds__(ALL_THREADS, 1) decode_token(const __grid_constant__ D a) {
    struct block b = init_block(a);
    first_units(b, 0);
    if (b.warp >= WARPS) {
        wait_for_token(a, b);
        if (b.warp == WEIGHT_WARP) stream_weights(a, b, 0, PHASES * a.L + 1);
        else {
            stream_task_data(a, b, 0, a.L);
            if (a.cache) store_scores(a, b);
        }
    } else {
        init_scalars(a, b);
        wait_for_token(a, b);
#pragma unroll 1
        for (int l = 0; l < a.L; l++) {
            run_phase<IN>(a, b, l);
            run_phase<MIXER>(a, b, l);
            run_phase<OUT>(a, b, l);
            run_phase<MLP>(a, b, l);
            run_phase<DOWN>(a, b, l);
        }
        run_phase<HEAD>(a, b, a.L);
    }
    arrive(a);
    if (!any_full(a, b)) return;
    if (threadIdx.x == 0) { /* waits until all new rows and scores are stored */
        while (poll(arrivals(a)) < (b.tokens_done + 1) * gridDim.x) __nanosleep(100);
        __threadfence();
    }
    __syncthreads();
    merge_full(a, b);
}
/* Cooperative, because blocks wait for each other and must all be resident. This does not cancel a prelaunched kernel:
 * either none is left, or it is this one. */
template <class D> static void launch_token(struct hl_cuda *c, const D *a) {
    cudaLaunchAttribute cooperative = {};
    cudaLaunchConfig_t config = {};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    config.gridDim = dim3((unsigned)hl_cuda_sms(c)), config.blockDim = dim3(ALL_THREADS);
    config.dynamicSmemBytes = (size_t)a->s.bytes + NAMED_BARRIER_BYTES;
    config.stream = (cudaStream_t)c->stream, config.attrs = &cooperative, config.numAttrs = 1;
    hl_cuda_allow_shared(c, (const void *)decode_token<D>, config.dynamicSmemBytes);
    hl_cuda_launched(c, cudaLaunchKernelEx(&config, decode_token<D>, *a));
}
#endif

/* ATTENTION: the angles of the new tokens, in float as rope.h has them. */
template <class D> static void set_angles(D *a, const struct hl_decode *p) {
    if constexpr (D::rule == HL_DECODE_ATTENTION)
        for (int64_t i = 0; i < p->rows->T * p->K / 2; i++) {
            const double frequency = pow(p->theta, -2.0 * (double)(i % (p->K / 2)) / (double)p->K);
            const float angle = (float)p->rows->seg[i / (p->K / 2)].pos * (float)frequency;
            a->angle[i] = make_float2(cosf(angle), sinf(angle));
        }
}
/* The kernel of a preset, if the sizes match. */
template <class sizes>
static bool launch_preset(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    struct decode_args<sizes> a = {};
    const bool kind = p->rule == a.rule && (p->rule != HL_DECODE_ATTENTION || p->kv == p->H) && p->low == a.low &&
                      p->cache == a.cache && (p->rms || !p->cache) && p->decay == a.decay && p->beta == a.beta &&
                      p->gated == a.gated;
    if (p->rows->T != 1 || !kind || p->d != a.d || p->I != a.I || p->K != a.K || p->V != a.V || p->H != a.H ||
        p->HV != a.HV || y.slots > a.warp_slots * (WARPS - 1))
        return false;
    if (a.one_task && (hl_cuda_sms(c) < SMS || a.HV * y.slot_tasks > SMS)) return false;
    (struct arguments &)a = y;
    set_angles(&a, p);
    launch_token(c, &a);
    return true;
}
template <int rule>
static struct runtime_sizes<rule> sizes_of(const struct hl_decode *p, const struct hl_decode_shared &s) {
    struct runtime_sizes<rule> a = {};
    a.low = (int)p->low;
    a.d = (int)p->d, a.I = (int)p->I, a.H = (int)p->H, a.HV = (int)p->HV, a.K = (int)p->K, a.V = (int)p->V;
    a.gated = p->gated, a.decay = p->decay, a.beta = p->beta, a.cache = p->cache, a.rms = p->rms;
    a.qk = a.H * a.K, a.vv = a.HV * a.V, a.tiles = a.V / COLS, a.group = a.HV / a.H, a.warp_rows = a.K / WARPS;
    a.inv_d = 1.0f / (float)a.d, a.inv_K = 1.0f / (float)a.K, a.inv_V = 1.0f / (float)a.V;
    a.a_at = 2 * a.qk + a.vv, a.b_at = a.a_at + (a.decay ? a.HV : 0), a.z_at = a.b_at + (a.beta ? a.HV : 0);
    a.in_rows = a.z_at + (a.gated ? a.vv : 0);
    if (rule == HL_DECODE_ATTENTION) {
        a.kv = (int)p->kv, a.group = a.H / a.kv;
        a.a_at = a.z_at = a.b_at = a.in_rows = (a.H + 2 * a.kv) * a.K;
    } else if (rule == HL_DECODE_GSA) a.z_at = a.b_at = a.in_rows = a.a_at + a.HV * HL_DECODE_SLOTS;
    else if (rule != HL_DECODE_DELTA) {
        a.z_at = a.a_at + a.low, a.b_at = a.z_at + (rule == HL_DECODE_KDA ? a.low : a.gated ? a.vv : 0);
        a.in_rows = a.b_at + (a.beta ? a.HV : 0);
    }
    a.width = s.width, a.stride = s.stride, a.warp_steps = s.warp_steps,
    a.head_per_warp = a.V % (32 * a.warp_steps) == 0;
    return a;
} template <int rule>
static void launch_sizes(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    if (p->rows->T == 1) {
        struct decode_args<struct runtime_one_row<rule>> a = {};
        (struct arguments &)a = y, (struct runtime_sizes<rule> &)a = sizes_of<rule>(p, y.s);
        set_angles(&a, p);
        launch_token(c, &a);
    } else {
        struct decode_args<struct runtime_rows<rule>> a = {};
        (struct arguments &)a = y, (struct runtime_sizes<rule> &)a = sizes_of<rule>(p, y.s), a.M = (int)p->rows->T;
        set_angles(&a, p);
        launch_token(c, &a);
    }
}

#endif
