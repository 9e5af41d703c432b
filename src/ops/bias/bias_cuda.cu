/* bias_cuda.cu -- see bias.h.
 *
 * Rows are processed VEC adjacent numbers at a time: 16 bytes, if they are aligned for it, or one.
 * bias_fwd: grid over all pieces, a thread owns one.
 * bias_sum: grid (columns / (32 VEC), parts), block (32, 8): a part is ROWS rows, a thread sums every eighth of them in
 *   VEC columns, the block adds its eight sums in order in 1 KB VEC of shared memory. sum_partials adds the parts in
 *   order. Nothing depends on timing. */
#include "ops/cuda_ops.cuh"
#include "cuda/reduce.cuh"

enum { THREADS = 256, COLUMNS = 32, LINES = 8, ROWS = 256 };

template <int VEC> static __device__ __forceinline__ void load(float x[VEC], const act *p) {
    if (VEC == 1) x[0] = f32(*p);
    else load_wide(x, p);
}

/* pieces: of a row; 32 bits, because a division of 64 takes longer than the memory access */
template <int VEC>
static __global__ void __launch_bounds__(THREADS)
    bias_fwd(act *x, const float *b, int64_t M, unsigned pieces, int64_t ld) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= M * pieces) return;
    const int64_t row = M * pieces <= UINT32_MAX ? (unsigned)i / pieces : i / pieces;
    const int column = (int)(i - row * pieces) * VEC;
    act *at = x + row * ld + column;
    float y[VEC], add[VEC];
    load<VEC>(y, at);
    if (VEC > 1 && (uintptr_t)b % 16 == 0) {
#pragma unroll
        for (int j = 0; j + 4 <= VEC; j += 4) {
            const float4 u = *(const float4 *)(b + column + j);
            add[j] = u.x, add[j + 1] = u.y, add[j + 2] = u.z, add[j + 3] = u.w;
        }
    } else
#pragma unroll
        for (int j = 0; j < VEC; j++) add[j] = b[column + j];
#pragma unroll
    for (int j = 0; j < VEC; j++) y[j] += add[j];
    if (VEC == 1) put(at, y[0]);
    else store_wide(at, y);
}

template <int VEC>
static __global__ void __launch_bounds__(COLUMNS *LINES)
    bias_sum(const act *dx, float *part, int64_t M, int64_t N, int64_t ld) {
    __shared__ float sums[LINES][VEC][COLUMNS];
    const int64_t column = ((int64_t)blockIdx.x * COLUMNS + threadIdx.x) * VEC, first = (int64_t)blockIdx.y * ROWS;
    const int64_t end = first + ROWS < M ? first + ROWS : M;
    float sum[VEC] = {};
    if (column < N) {
#pragma unroll 4
        for (int64_t m = first + threadIdx.y; m < end; m += LINES) {
            float x[VEC];
            load<VEC>(x, dx + m * ld + column);
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] += x[j];
        }
    }
#pragma unroll
    for (int j = 0; j < VEC; j++) sums[threadIdx.y][j][threadIdx.x] = sum[j];
    __syncthreads();
    if (threadIdx.y > 0 || column >= N) return;
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        for (int i = 1; i < LINES; i++) sum[j] += sums[i][j][threadIdx.x];
        part[(int64_t)blockIdx.y * N + column + j] = sum[j];
    }
}

static bool wide(const void *x, int64_t N, int64_t ld) {
    return N % WIDE == 0 && ld % WIDE == 0 && (uintptr_t)x % 16 == 0;
}

extern "C" void HL_OP(bias_forward)(struct hl_backend *backend, const struct hl_bias *a) {
    const int64_t ld = a->ld ? a->ld : a->N;
    const int vec = wide(a->x, a->N, ld) ? WIDE : 1;
    launch(hl_cuda_of(backend), vec > 1 ? bias_fwd<WIDE> : bias_fwd<1>, blocks_for(a->M * (a->N / vec), THREADS),
           THREADS, 0, (act *)a->x, a->b, a->M, (unsigned)(a->N / vec), ld);
}

extern "C" void HL_OP(bias_backward)(struct hl_backend *backend, const struct hl_bias *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const int64_t parts = hl_pieces(a->M, ROWS), ld = a->ld ? a->ld : a->N;
    const int vec = wide(a->dx, a->N, ld) ? WIDE : 1;
    float *part = (float *)hl_cuda_scratch(c, parts * a->N * (int64_t)sizeof(float));
    if (!part) return;
    launch(c, vec > 1 ? bias_sum<WIDE> : bias_sum<1>, dim3((unsigned)hl_pieces(a->N, COLUMNS * vec), (unsigned)parts),
           dim3(COLUMNS, LINES), 0, (const act *)a->dx, part, a->M, a->N, ld);
    sum_partials(c, a->db, part, parts, a->N);
}
