/* decode_one_cuda.cu -- see decode.h and decode_cuda.cuh: one kernel for a whole token. The emulated device runs
 * its blocks one after another, so there every part is a launch of its own. */
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/gemv.cuh"
#include "fused/decode_one/mixer_step.cuh"

#ifndef HL_CUDA_F32

/* and the warps that bring weights and tasks */
enum { WEIGHTS = WARPS, TASKS, ALL = THREADS + 64 };

template <class D> static __device__ __forceinline__ uint64_t *counter(const D &a) { return a.words; }

/* Everything that is not data of this token: tables to shared memory, the ring of weights. All threads. */
template <class D> static __device__ __forceinline__ struct block open_block(const D &a) {
    struct block b = {};
    named_barrier_init();
    b.shared = shared_memory();
    b.warp = threadIdx.x / 32, b.lane = threadIdx.x % 32;
    const uint64_t *from = (const uint64_t *)a.layer;
    uint64_t *to = (uint64_t *)(b.shared + a.s.layers);
    b.barriers = mbarrier_base((uint64_t *)(b.shared + a.s.barrier));
    if (threadIdx.x == THREADS) open_ring(a, b);
    for (int i = threadIdx.x; i < a.L * (int)(sizeof(struct hl_decode_layer) / 8); i += ALL) to[i] = from[i];
    if ((int)threadIdx.x < a.M) ((struct hl_seg *)(b.shared + a.s.seg))[threadIdx.x] = a.seg[threadIdx.x];
    if (b.lane == 0 && b.warp < WARPS) *id_of(a, b) = a.ids[0];
    b.passes = look(counter(a)) / gridDim.x;
    b.number = (uint32_t)(b.passes * a.L + 1);
    b.tile = task_at(a, blockIdx.x, a.tiles);
    if (a.cache) b.look = task_at(a, blockIdx.x, a.shares);
    if ((int)threadIdx.x < a.M && a.cache)
        ((struct filled *)(b.shared + a.s.filled))[threadIdx.x] = filled_at(a, a.seg[threadIdx.x].pos);
    __syncthreads();
    return b;
}
/* What the warps that compute need beside it. */
template <class D> static __device__ __forceinline__ void open_scalars(const D &a, const struct block &b) {
    for (int i = threadIdx.x; i < a.L * a.HV; i += THREADS) {
        const struct hl_decode_layer &y = layer_of(a, b, i / a.HV);
        const int h = i % a.HV;
        float *s = scalars_of(a, b, i / a.HV, h);
        s[DECAY] = a.decay ? expf(y.A_log[h]) : 0.0f, s[BIAS] = a.decay ? y.dt_bias[h] : 0.0f;
        if (!a.cache) continue;
        s[SCALE] = y.tau[h] / sqrtf((float)a.K), s[SINK] = y.sink[h];
        s[LAMBDA] = 1.0f / (1.0f + expf(-y.cache_gate[h]));
    }
    sync_block();
}
/* The largest logit of every row: of a block, and when all have come, to the host. All warps that compute; one
 * thread. */
template <class D> static __device__ __forceinline__ void gather_best(const D &a, const struct block &b) {
    uint64_t *parts = (uint64_t *)(b.shared + a.s.small), v = b.best; /* [ROWS][WARPS] */
    static_assert(ROWS * WARPS * 8 <= HL_DECODE_SMALL * 4, "decode.h: small");
    for (int n = 1; n < 4; n *= 2)
        v = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, (unsigned long long)v, n));
    if (b.lane % 4 == 0 && b.lane / 4 < ROWS) parts[b.lane / 4 * WARPS + b.warp] = v;
    sync_block();
    if (b.warp > 0) return;
    v = parts[b.lane];
    for (int n = 1; n < 8; n *= 2)
        v = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, (unsigned long long)v, n));
    if (b.lane % 8 == 0 && b.lane / 8 < a.M)
        atomicMax((unsigned long long *)a.best + b.lane / 8, (unsigned long long)v);
}
template <class D> static __device__ __forceinline__ void tell_best(const D &a) {
    __threadfence();
    for (int m = 0; m < a.M; m++) {
        const uint64_t v = look(a.best + m);
        a.best[m] = 0;
        const struct hl_candidate none = {0.0f, -1}, c = v == UINT64_MAX ? none : candidate_of(v);
        const uint64_t both = (uint64_t)(uint32_t)c.id << 32 | __float_as_uint(c.logit);
        *(volatile uint64_t *)(a.verdict + m) = both;
    }
}
static_assert(WARPS == 8, "a lane has one part");

/* Every block comes here once a token, so that the counter gives the number of tokens at any time before. */
template <class D> static __device__ __forceinline__ void arrive(const D &a) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const uint64_t before = atomicAdd((unsigned long long *)counter(a), 1ull);
        if (a.verdict && (before + 1) % gridDim.x == 0) tell_best(a);
    }
}

/* What a phase makes of these is made again in the next one: kept through a layer, the addresses of all phases
 * would take the registers that weights need. */
static __device__ __forceinline__ void forget(struct block &b) {
#ifndef HL_CUDA_EMU
    asm volatile("" : "+r"(b.warp), "+r"(b.lane), "+r"(b.barriers));
    __builtin_assume(b.warp >= 0 && b.warp < WARPS && b.lane >= 0 && b.lane < 32); /* to divide is to shift */
#endif
}

/* A phase of a layer; the emulated device does the two parts of the memories in two launches. */
template <int kind, class D>
static __device__ __forceinline__ void run_phase(const D &a, struct block &b, int l, bool first = true,
                                                 bool second = true) {
    forget(b);
    b.now = words_of(a, l), b.before = words_of(a, l + LAPS - 1);
    if (kind == MEMORIES) memories(a, b, l, first && a.cache, second);
    else if (first) {
        gemv<kind>(a, b, l);
        if (kind == HEAD && a.verdict) gather_best(a, b);
    }
    next_phase();
    next_groups(b);
}

#ifdef HL_CUDA_EMU
static bool has_room(struct hl_cuda *, int bytes) { return bytes <= 227 << 10; }
template <class D> static void decode_phase(const D a, int phase, int part) {
    struct block b = open_block(a);
    open_groups(b, phase);
    const int kind = kind_of(a, phase);
    if (b.warp == WEIGHTS && part == 0) stream(a, b, phase, phase + 1);
    if (b.warp == TASKS && kind == MEMORIES) stream_tasks(a, b, phase / PHASES, phase / PHASES + 1);
    if (b.warp == TASKS && kind == HEAD && a.cache) put_scores(a, b);
    if (b.warp >= WARPS) return;
    open_scalars(a, b);
    const int l = phase / PHASES;
    switch (kind) {
    case IN: run_phase<IN>(a, b, l, part == 0, part == 1); break;
    case MEMORIES: run_phase<MEMORIES>(a, b, l, part == 0, part == 1); break;
    case OUT: run_phase<OUT>(a, b, l, part == 0, part == 1); break;
    case MLP: run_phase<MLP>(a, b, l, part == 0, part == 1); break;
    case DOWN: run_phase<DOWN>(a, b, l, part == 0, part == 1); break;
    default: run_phase<HEAD>(a, b, l, part == 0, part == 1);
    }
}
template <class D> static void decode_merge(const D a) {
    struct block b = open_block(a);
    if (any_full(a, b)) merge_full(a, b);
}
template <class D> static void decode_arrive(const D a) { arrive(a); }
template <class D> static void start(struct hl_cuda *c, const D *a) {
    const unsigned blocks = (unsigned)hl_cuda_sms(c);
    const size_t shared = (size_t)a->s.bytes;
    for (int phase = 0; phase <= PHASES * a->L; phase++)
        for (int part = 0; part < (phase % PHASES == MEMORIES ? 2 : 1); part++)
            launch(c, decode_phase<D>, blocks, ALL, shared, *a, phase, part);
    launch(c, decode_merge<D>, blocks, ALL, shared, *a);
    launch(c, decode_arrive<D>, blocks, ALL, 0, *a);
}
#else
template <class D>
static __global__ void __launch_bounds__(ALL, 1) decode_token(const __grid_constant__ D a) {
    struct block b = open_block(a);
    open_groups(b, 0);
    if (b.warp >= WARPS) {
        await_token(a, b);
        if (b.warp == WEIGHTS) stream(a, b, 0, PHASES * a.L + 1);
        else {
            stream_tasks(a, b, 0, a.L);
            if (a.cache) put_scores(a, b);
        }
    } else {
        open_scalars(a, b);
        await_token(a, b);
#pragma unroll 1
        for (int l = 0; l < a.L; l++) {
            run_phase<IN>(a, b, l);
            run_phase<MEMORIES>(a, b, l);
            run_phase<OUT>(a, b, l);
            run_phase<MLP>(a, b, l);
            run_phase<DOWN>(a, b, l);
        }
        run_phase<HEAD>(a, b, a.L);
    }
    arrive(a);
    if (!any_full(a, b)) return;
    if (threadIdx.x == 0) { /* for all appended rows and scores */
        while (look(counter(a)) < (b.passes + 1) * gridDim.x) __nanosleep(100);
        __threadfence();
    }
    __syncthreads();
    merge_full(a, b);
}
/* Chips before Hopper have less shared memory, and no copy engine. */
static bool has_room(struct hl_cuda *c, int bytes) {
    int device = 0, most = 0, together = 0;
    if (!c->bulk_room) {
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, device);
        c->bulk_room = together && hl_cuda_compiled_for_sm90(
                                       c, (const void *)decode_token<struct decode<struct any_some>>)
                           ? most
                           : -1;
    }
    return bytes <= c->bulk_room;
}
/* All blocks must be there at once, since they wait for each other: a cooperative launch sees to it. A kernel that was
 * launched ahead is not told to go here: it has left, or it is this one. */
template <class D> static void start(struct hl_cuda *c, const D *a) {
    cudaLaunchAttribute together = {};
    cudaLaunchConfig_t config = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    config.gridDim = dim3((unsigned)hl_cuda_sms(c)), config.blockDim = dim3(ALL);
    config.dynamicSmemBytes = (size_t)a->s.bytes + NAMED_BARRIER_BYTES;
    config.stream = (cudaStream_t)c->stream, config.attrs = &together, config.numAttrs = 1;
    hl_cuda_allow_shared(c, (const void *)decode_token<D>, config.dynamicSmemBytes);
    hl_cuda_launched(c, cudaLaunchKernelEx(&config, decode_token<D>, *a));
}
#endif

/* As the sizes say: those of a preset are constants. */
template <class sizes>
static bool start_preset(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    struct decode<sizes> a = {};
    const bool kind = p->cache && p->rms && p->decay && p->beta && p->gated == a.gated;
    if (p->rows->T != 1 || !kind || p->d != a.d || p->I != a.I || p->K != a.K || p->V != a.V || p->H != a.H ||
        p->HV != a.HV || y.slots > a.each * 4 * (WARPS - 1))
        return false;
    if (a.once && (hl_cuda_sms(c) < SMS || a.HV * y.shares > SMS)) return false;
    (struct arguments &)a = y;
    start(c, &a);
    return true;
}
static struct any_sizes sizes_of(const struct hl_decode *p, const struct hl_decode_shared &s) {
    struct any_sizes a = {};
    a.d = (int)p->d, a.I = (int)p->I, a.H = (int)p->H, a.HV = (int)p->HV, a.K = (int)p->K, a.V = (int)p->V;
    a.gated = p->gated, a.decay = p->decay, a.beta = p->beta, a.cache = p->cache, a.rms = p->rms;
    a.qk = a.H * a.K, a.vv = a.HV * a.V, a.tiles = a.V / COLS, a.group = a.HV / a.H, a.rows = a.K / WARPS;
    a.one_d = 1.0f / (float)a.d, a.one_K = 1.0f / (float)a.K, a.one_V = 1.0f / (float)a.V;
    a.a_at = 2 * a.qk + a.vv, a.b_at = a.a_at + (a.decay ? a.HV : 0), a.z_at = a.b_at + (a.beta ? a.HV : 0);
    a.in_rows = a.z_at + (a.gated ? a.vv : 0);
    a.width = s.chunk, a.apart = s.stride, a.part = s.each, a.whole = a.V % (32 * a.part) == 0;
    return a;
}
static struct arguments arguments_of(struct hl_cuda *c, const struct hl_decode *p) {
    struct arguments a = {};
    a.L = (int)p->L, a.vocab = (int)p->vocab;
    a.policy = p->policy, a.top = p->neg_eigval ? 2.0f : 1.0f, a.eps = p->eps;
    a.S = p->S, a.tail_q = p->tail[0], a.tail_k = p->tail[1], a.tail_v = p->tail[2];
    a.cache_at = p->cache_at, a.layer_bytes = p->layer_bytes;
    if (p->cache) {
        a.window = (int)p->window, a.chunk = (int)p->chunk, a.slots = a.window + a.chunk;
        a.at = hl_cache_layout(p->K, p->V, p->window, p->chunk, sizeof(bf16));
        a.share = min(2 * (int)WARPS, (int)blocks_for((int64_t)a.slots * p->HV, hl_cuda_sms(c)));
        a.shares = (int)blocks_for(a.slots, a.share);
        a.even_slots = (a.slots + 1) / 2 * 2;
    }
    const struct hl_decode_words w = hl_decode_words(p);
    a.w_in = (int)w.in, a.w_ab = (int)w.ab, a.w_z = (int)w.z, a.w_o = (int)w.o, a.w_h = (int)w.h;
    a.w_x = (int)w.x, a.w_act = (int)w.act, a.row = (int)w.row, a.scores = w.scores,
    a.s = hl_decode_shared(p);
    for (int64_t m = 0; m < p->rows->T; m++) a.seg[m] = p->rows->seg[m], a.ids[m] = p->host_ids[m];
    a.layer = p->layer;
    a.embed = (const bf16 *)p->embed, a.head = (const bf16 *)p->head, a.final_norm = p->final_norm;
    a.words = (uint64_t *)p->memory, a.best = a.words + BEST;
    return a;
}

static void start_any(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    if (start_preset<struct preset<512, 768, 128, true, true, false>>(c, p, y)) return;
    if (start_preset<struct preset<1024, 2816, 256, false, true, true>>(c, p, y)) return;
    if (start_preset<struct preset<512, 768, 128, true, false, false>>(c, p, y)) return;
    if (start_preset<struct preset<1024, 2816, 256, false, false, true>>(c, p, y)) return;
    if (p->rows->T == 1) {
        struct decode<struct any_one> a = {};
        (struct arguments &)a = y, (struct any_sizes &)a = sizes_of(p, y.s);
        start(c, &a);
    } else {
        struct decode<struct any_some> a = {};
        (struct arguments &)a = y, (struct any_sizes &)a = sizes_of(p, y.s), a.M = (int)p->rows->T;
        start(c, &a);
    }
}

struct coming {
    const struct hl_decode *p;
    int64_t row;
};
static void came(void *ctx, int64_t from, int64_t to) {
    const struct coming *y = (const struct coming *)ctx;
    if (y->p->came) y->p->came(y->p->ctx, y->row, from, to);
}
/* To the kernel that was launched for it, or to a new one; then one more for the next token, where the host is told
 * when a token is done. (The emulated device's would not end before there is one.) */
static void hand_over(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    const bool told = p->rows->T == 1 && (p->host_logits || p->host_best);
    const uint32_t number = hl_prelaunch_number(c), flips = p->host_logits ? 1 : 0;
    struct arguments what = y, next = y; /* what: all but what counts on from token to token */
    static_assert(sizeof what <= 1024, "prelaunch.c: ROOM");
    what.ids[0] = 0, what.seg[0].pos -= number, what.tag ^= number & flips;
    next.seg[0].pos++, next.tag ^= flips;
    if (!told) hl_prelaunch_cancel(c);
    if (!told || !hl_prelaunch_submit(c, &what, sizeof what, (uint32_t)y.ids[0])) start_any(c, p, y);
#ifndef HL_CUDA_EMU
    if (told && hl_prelaunch_arm(c, &next.request)) start_any(c, p, next);
#endif
}
/* What the kernel writes to the host's memory itself is taken while the rest is under way. */
extern "C" void HL_OP(decode_one)(struct hl_backend *backend, const struct hl_decode *p) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const int64_t M = p->rows->T;
    struct arguments y = arguments_of(c, p);
    *p->refused = !has_room(c, y.s.bytes);
    if (*p->refused) return;
    y.logits = p->host_logits ? (float *)hl_mapped_words(c, M * p->vocab, &y.tag) : p->logits;
    if (p->host_best) y.verdict = hl_mapped_values(c, (int)M);
    *p->refused = (p->host_logits && !y.logits) || (p->host_best && !y.verdict);
    if (*p->refused) return;
    hand_over(c, p, y);
    for (struct coming k = {p, 0}; p->host_logits && k.row < M; k.row++)
        if (!hl_mapped_words_wait(c, p->host_logits + k.row * p->vocab, k.row * p->vocab, p->vocab, came, &k))
            break;
    static_assert(sizeof *p->host_best == sizeof *y.verdict, "a logit and its id");
    uint64_t best[ROWS];
    if (p->host_best && hl_mapped_values_wait(c, best, (int)M))
        memcpy(p->host_best, best, (size_t)M * sizeof *best);
    hl_prelaunch_done(c);
}

#endif
