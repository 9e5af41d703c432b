/* decode_cuda.cu -- see decode.h and decode_cuda.cuh: one kernel for a whole token. The emulated device runs
 * its blocks one after another, so there every part is a launch of its own. */
#include "ops/decode/decode_product.cuh"
#include "ops/decode/decode_state.cuh"

#ifndef HL_CUDA_F32

static __device__ __forceinline__ uint64_t *counter(const struct decode &a) { return a.words; }

/* Everything that is not data of this token: tables to shared memory, the stream of weights begins. */
static __device__ __forceinline__ struct block open_block(const struct decode &a, int phase, int end) {
    struct block b = {};
    b.shared = shared_memory();
    b.warp = threadIdx.x / 32, b.lane = threadIdx.x % 32, b.in_head = -1;
    const uint64_t *from = (const uint64_t *)a.layer;
    uint64_t *to = (uint64_t *)(b.shared + a.s.layers);
    for (int i = threadIdx.x; i < a.L * (int)(sizeof(struct hl_decode_layer) / 8); i += THREADS)
        to[i] = from[i];
    from = (const uint64_t *)a.seg, to = (uint64_t *)(b.shared + a.s.seg);
    for (int i = threadIdx.x; i < a.M * (int)(sizeof(struct hl_seg) / 8); i += THREADS) to[i] = from[i];
    b.passes = look(counter(a)) / gridDim.x;
    b.number = (uint32_t)(b.passes * a.L + 1);
    b.tile = task_at(a, blockIdx.x, a.tiles);
    if (a.cache) b.look = task_at(a, blockIdx.x, a.shares);
    if ((int)threadIdx.x < a.M && a.cache)
        ((struct filled *)(b.shared + a.s.filled))[threadIdx.x] = filled_at(a, a.seg[threadIdx.x].pos);
    open_stream(b, phase, end);
    __syncthreads();
    fill(a, b);
    for (int i = threadIdx.x; i < a.L * a.HV; i += THREADS) {
        const struct hl_decode_layer &y = layer_of(a, b, i / a.HV);
        const int h = i % a.HV;
        float *s = scalars_of(a, b, i / a.HV, h);
        s[DECAY] = a.decay ? expf(y.A_log[h]) : 0.0f, s[BIAS] = a.decay ? y.dt_bias[h] : 0.0f;
        if (!a.cache) continue;
        s[SCALE] = y.tau[h] / sqrtf((float)a.K), s[SINK] = y.sink[h];
        s[LAMBDA] = 1.0f / (1.0f + expf(-y.cache_gate[h]));
    }
    __syncthreads();
    return b;
}
/* Every block comes here once a token, so that the counter gives the number of tokens at any time before. */
static __device__ __forceinline__ void arrive(const struct decode &a) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd((unsigned long long *)counter(a), 1ull);
    }
}

/* A phase of a layer; the emulated device does the two parts of the memories in two launches. */
template <int M>
static __device__ __forceinline__ void run_phase(const struct decode &a, struct block &b, int phase,
                                                 bool first, bool second) {
    const int kind = kind_of(a, phase), l = phase / PHASES;
    b.now = words_of(a, l), b.before = words_of(a, l + LAPS - 1);
    if (kind == MEMORIES) {
        if (a.cache && first) look_up(a, b, l);
        if (second) remember(a, b, l);
        return;
    }
    if (!first) return;
    if (kind == IN) expect_state(a, b, l);
    if (kind == HEAD && a.cache) put_scores(a, b);
    if (kind != HEAD || a.logits) product<M>(a, b, kind, l);
}

#ifdef HL_CUDA_EMU
static bool has_room(int bytes) { return bytes <= 227 << 10; }
template <int M> static void decode_phase(const struct decode a, int phase, int part) {
    struct block b = open_block(a, phase, phase + 1);
    run_phase<M>(a, b, phase, part == 0, part == 1);
}
static void decode_merge(const struct decode a) {
    struct block b = open_block(a, 0, 0);
    if (any_full(a, b)) merge_full(a, b);
}
static void decode_arrive(const struct decode a) { arrive(a); }
template <int M> static void start(struct hl_cuda *c, const struct decode *a) {
    const unsigned blocks = (unsigned)hl_cuda_sms(c);
    const size_t shared = (size_t)a->s.bytes;
    for (int phase = 0; phase <= PHASES * a->L; phase++)
        for (int part = 0; part < (phase % PHASES == MEMORIES ? 2 : 1); part++)
            launch(c, decode_phase<M>, blocks, THREADS, shared, *a, phase, part);
    launch(c, decode_merge, blocks, THREADS, shared, *a);
    launch(c, decode_arrive, blocks, THREADS, 0, *a);
}
#else
template <int M>
static __global__ void __launch_bounds__(THREADS, 1) decode_token(const __grid_constant__ struct decode a) {
    struct block b = open_block(a, 0, PHASES * a.L + (a.logits != NULL));
#pragma unroll 1
    for (int phase = 0; phase <= PHASES * a.L; phase++) {
        run_phase<M>(a, b, phase, true, true);
        fill(a, b);
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
/* Chips before Hopper have less shared memory. */
static bool has_room(int bytes) {
    int device = 0, most = 0, together = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, device);
    return bytes <= most && together;
}
/* All blocks must be there at once, since they wait for each other: a cooperative launch sees to it. */
template <int M> static void start(struct hl_cuda *c, const struct decode *a) {
    cudaLaunchAttribute together = {};
    cudaLaunchConfig_t config = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    config.gridDim = dim3((unsigned)hl_cuda_sms(c)), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)a->s.bytes;
    config.stream = hl_cuda_stream(c), config.attrs = &together, config.numAttrs = 1;
    hl_cuda_prepare(c, (const void *)decode_token<M>, config.dynamicSmemBytes);
    hl_cuda_launched(c, cudaLaunchKernelEx(&config, decode_token<M>, *a));
}
#endif

extern "C" bool HL_OP(decode)(struct hl_pool *pool, const struct hl_decode *p) {
    struct hl_cuda *c = hl_cuda_of(pool);
    struct decode a = {};
    a.M = (int)p->rows->T, a.d = (int)p->d, a.I = (int)p->I, a.H = (int)p->H, a.HV = (int)p->HV;
    a.K = (int)p->K, a.V = (int)p->V, a.L = (int)p->L, a.vocab = (int)p->vocab;
    a.gated = p->gated, a.decay = p->decay, a.beta = p->beta, a.cache = p->cache, a.rms = p->rms;
    a.evict = p->evict, a.top = p->neg_eigval ? 2.0f : 1.0f, a.eps = p->eps;
    a.qk = a.H * a.K, a.vv = a.HV * a.V, a.tiles = a.V / COLS;
    a.group = a.HV / a.H;
    a.a_at = 2 * a.qk + a.vv, a.b_at = a.a_at + (a.decay ? a.HV : 0), a.z_at = a.b_at + (a.beta ? a.HV : 0);
    a.in_rows = a.z_at + (a.gated ? a.vv : 0);
    a.S = p->S, a.tail_q = p->tail[0], a.tail_k = p->tail[1], a.tail_v = p->tail[2];
    a.cache_at = p->cache_at, a.layer_bytes = p->layer_bytes;
    if (a.cache) {
        a.window = (int)p->window, a.chunk = (int)p->chunk, a.slots = a.window + a.chunk;
        a.at = hl_cache_layout(p->K, p->V, p->window, p->chunk);
        a.share = min(EACH * WARPS, (int)blocks_for((int64_t)a.slots * a.HV, hl_cuda_sms(c)));
        a.shares = (int)blocks_for(a.slots, a.share);
    }
    const struct hl_decode_words w = hl_decode_words(p);
    a.w_in = (int)w.in, a.w_ab = (int)w.ab, a.w_z = (int)w.z, a.w_o = (int)w.o, a.w_h = (int)w.h,
    a.w_x = (int)w.x;
    a.w_act = (int)w.act, a.row = (int)w.row, a.scores = w.scores, a.s = hl_decode_shared(p);
    a.seg = p->rows->dev->seg, a.layer = p->layer;
    a.embed = (const bf16 *)p->embed, a.head = (const bf16 *)p->head, a.final_norm = p->final_norm;
    a.ids = p->ids, a.logits = p->logits, a.words = (uint64_t *)p->memory;
    if (!has_room(a.s.bytes)) return false;
    if (a.M == 1) start<1>(c, &a);
    else if (a.M == 2) start<2>(c, &a);
    else if (a.M <= 4) start<4>(c, &a);
    else start<8>(c, &a);
    return true;
}

#endif
