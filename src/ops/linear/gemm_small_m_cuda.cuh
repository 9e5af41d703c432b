/* gemm_small_m_cuda.cuh -- GEMM of small M: up to 64 rows times all matrices of a linear layer, for decoding many
 * sessions in a batch. One launch for all parts, every weight is read once; a row has the same bits as from
 * gemv_cuda.cuh.
 *
 * Grid: outputs / 8 NT, one block per multiprocessor; block: GEMV_THREADS. A block owns 8 NT output rows of W and all
 * rows of x. Its warps split K (split-K within the block) and each has its own cp.async pipeline in shared memory: a
 * lane reads only what it copied itself, so no barrier is needed until the epilogue, which sums the warps' accumulators
 * in shared memory, in order. The weights of the first stages are loaded before pdl_wait. */
#ifndef HL_GEMM_SMALL_M_CUDA_CUH
#define HL_GEMM_SMALL_M_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/linear/gemv_cuda.cuh"

enum { SMALL_M_ROWS = 64, SMALL_M_SHARED = 224 << 10 };
#ifndef HL_CUDA_F32

/* Shared memory. 8 NT output rows per block, 8 EIGHTS rows of x; fragments as in gemv_mma. DEPTH stages of 32 columns
 * are in flight: more than registers could hold. */
template <int EIGHTS, int NT> struct small_m_shared {
    enum {
        WARPS = GEMV_THREADS / 32,
        ROWS = 8 * EIGHTS,
        PIECES = NT + EIGHTS, /* 16-byte pieces of a lane per step: of W, then of x */
        STEP = PIECES * 512,  /* bytes of a warp */
        MOST = SMALL_M_SHARED / (WARPS * STEP),
        DEPTH = MOST < 8 ? MOST : 8,
        LD = 8 * NT + (NT % 2 == 0 ? 8 : 0), /* of the sums: four rows in 32 banks */
        SUMS = WARPS * ROWS * LD * 4,
        PIPELINE = WARPS * DEPTH * STEP,
        BYTES = PIPELINE > SUMS ? PIPELINE : SUMS,
    };
};

/* The epilogue: sums the warps' accumulators in order. All threads. */
template <int EIGHTS, int NT>
static __device__ __forceinline__ void small_m_epilogue(const struct gemv &a, float d[][NT][4], float *sums) {
    typedef struct small_m_shared<EIGHTS, NT> layout;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    __syncthreads(); /* the pipeline's memory is reused */
#pragma unroll
    for (int i = 0; i < EIGHTS; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
            *(float2 *)(sums + (warp * layout::ROWS + 8 * i + g) * layout::LD + 8 * n + 2 * t) =
                make_float2(d[i / 2][n][i % 2 * 2], d[i / 2][n][i % 2 * 2 + 1]);
    __syncthreads();
    for (int j = threadIdx.x; j < layout::ROWS * 8 * NT; j += GEMV_THREADS) {
        const int64_t m = j / (8 * NT), row = (int64_t)blockIdx.x * 8 * NT + j % (8 * NT);
        if (m >= a.M || row >= a.end[a.n - 1]) continue;
        float s = 0.0f;
#pragma unroll
        for (int w = 0; w < layout::WARPS; w++) s += sums[(w * layout::ROWS + m) * layout::LD + j % (8 * NT)];
        int p = 0;
        while (row >= a.end[p]) p++;
        gemv_put(a, p, m * a.rows[p] + row - (a.end[p] - a.rows[p]), s);
    }
}

template <int EIGHTS, int NT> static __global__ void __launch_bounds__(GEMV_THREADS, 1) small_m_mma(struct gemv a) {
    typedef struct small_m_shared<EIGHTS, NT> layout;
    enum { DEPTH = layout::DEPTH };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int64_t steps = (a.K + 31) / 32;
    const int from = (int)(steps * warp / layout::WARPS), to = (int)(steps * (warp + 1) / layout::WARPS);
    const act *W[NT], *x = a.x + g * a.K + 8 * t;
    char *ring = shared_memory() + warp * DEPTH * layout::STEP + lane * 16;
    float d[EIGHTS / 2][NT][4] = {};
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int64_t i = min((int64_t)blockIdx.x * 8 * NT + n * 8 + g, a.end[a.n - 1] - 1);
        int p = 0;
        while (i >= a.end[p]) p++;
        W[n] = a.W[p] + (i - (a.end[p] - a.rows[p])) * a.K + 8 * t;
    }
    auto fetch =
        [&](int k, bool weights) { /* stage k: columns 32 k .. of W, or of x */
                                   char *to_ring = ring + (k - from) % DEPTH * layout::STEP + (weights ? 0 : NT * 512);
                                   const bool in = k < to && k * 32 + 8 * t < a.K;
#pragma unroll
                                   for (int i = 0; i < (weights ? NT : EIGHTS); i++) {
                                       const bool there = in && (weights || g + 8 * i < a.M);
                                       const act *global = weights ? W[i % NT] : x + 8 * i * a.K;
                                       copy_async(to_ring + i * 512, there ? global + k * 32 : a.x, there ? 16 : 0);
                                   }
        };
    for (int k = from; k < from + DEPTH; k++) fetch(k, true);
    pdl_wait(), pdl_trigger();
    for (int k = from; k < from + DEPTH; k++) fetch(k, false), copy_commit();
    for (int k = from; k < to; k++) {
        const char *now = ring + (k - from) % DEPTH * layout::STEP;
        uint4 w[NT];
        copy_wait<DEPTH - 1>();
#pragma unroll
        for (int n = 0; n < NT; n++) w[n] = *(const uint4 *)(now + n * 512);
#pragma unroll
        for (int i = 0; i < EIGHTS / 2; i++) {
            const uint4 y = *(const uint4 *)(now + (NT + 2 * i) * 512),
                        z = *(const uint4 *)(now + (NT + 2 * i + 1) * 512);
            const uint32_t one[4] = {y.x, z.x, y.y, z.y}, two[4] = {y.z, z.z, y.w, z.w};
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint32_t b1[2] = {w[n].x, w[n].y}, b2[2] = {w[n].z, w[n].w};
                mma_bf16(d[i][n], one, b1);
                mma_bf16(d[i][n], two, b2);
            }
        }
        fetch(k + DEPTH, true), fetch(k + DEPTH, false), copy_commit();
    }
    copy_wait<0>();
    small_m_epilogue<EIGHTS, NT>(a, d, (float *)shared_memory());
}

template <int EIGHTS, int NT> static void small_m_launch(struct hl_cuda *c, const struct gemv *a) {
    launch_pdl(c, small_m_mma<EIGHTS, NT>, blocks_for(a->end[a->n - 1], 8 * NT), GEMV_THREADS,
               (size_t)small_m_shared<EIGHTS, NT>::BYTES, *a);
}
/* Enough outputs per block for one block per multiprocessor, because each block reads all of x. */
template <int EIGHTS> static void small_m_tiles(struct hl_cuda *c, const struct gemv *a) {
    const int64_t each = hl_pieces(a->end[a->n - 1], hl_cuda_sms(c) * 8);
    if (each <= 1) small_m_launch<EIGHTS, 1>(c, a);
    else if (each == 2) small_m_launch<EIGHTS, 2>(c, a);
    else if (each == 3) small_m_launch<EIGHTS, 3>(c, a);
    else if (each == 4) small_m_launch<EIGHTS, 4>(c, a);
    else small_m_launch<EIGHTS, 6>(c, a);
}
#endif

static bool small_m_fits(const struct hl_cuda *c, const struct hl_linear *l) {
    return HL_ACT_DTYPE == HOLA_BF16 && l->K % WIDE == 0 && l->M <= SMALL_M_ROWS &&
           hl_cuda_shared_limit(c) >= SMALL_M_SHARED;
}
static void small_m(struct hl_cuda *c, const struct hl_linear *l) {
#ifndef HL_CUDA_F32
    const struct gemv a = gemv_open(l);
    if (a.end[a.n - 1] == 0) return;
    if (l->M <= 32) small_m_tiles<4>(c, &a);
    else small_m_tiles<8>(c, &a);
#endif
    (void)c, (void)l;
}

#endif
