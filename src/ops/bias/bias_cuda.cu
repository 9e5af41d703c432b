/* bias_cuda.cu -- see bias.h.
 *
 * bias_fwd: grid over all numbers, a thread owns one.
 * bias_sum: grid (columns / 32, parts), block (32, 8): a part is ROWS rows, a thread sums every eighth of them in one
 *   column, the block adds its eight sums in order in 1 KB of shared memory. bias_add: a thread owns a column and adds the
 *   parts in order. Nothing depends on timing. */
#include "ops/cuda_ops.cuh"

enum { THREADS = 256, COLUMNS = 32, LINES = 8, ROWS = 1024 };

static __global__ void bias_fwd(act *x, const float *b, int64_t M, int64_t N, int64_t ld) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= M * N) return;
    act *at = x + i / N * ld + i % N;
    put(at, f32(*at) + b[i % N]);
}

static __global__ void bias_sum(const act *dx, float *part, int64_t M, int64_t N, int64_t ld) {
    __shared__ float sums[LINES][COLUMNS];
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x, first = (int64_t)blockIdx.y * ROWS;
    const int64_t end = first + ROWS < M ? first + ROWS : M;
    float sum = 0;
    if (column < N)
        for (int64_t m = first + threadIdx.y; m < end; m += LINES) sum += f32(dx[m * ld + column]);
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= N) return;
    for (int i = 1; i < LINES; i++) sum += sums[i][threadIdx.x];
    part[(int64_t)blockIdx.y * N + column] = sum;
}

static __global__ void bias_add(const float *part, float *db, int64_t parts, int64_t N) {
    const int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0;
    if (column >= N) return;
    for (int64_t i = 0; i < parts; i++) sum += part[i * N + column];
    db[column] += sum;
}

extern "C" void HL_OP(bias_forward)(struct hl_backend *backend, const struct hl_bias *a) {
    launch(hl_cuda_of(backend), bias_fwd, blocks_for(a->M * a->N, THREADS), THREADS, 0, (act *)a->x, a->b, a->M, a->N,
           a->ld ? a->ld : a->N);
}

extern "C" void HL_OP(bias_backward)(struct hl_backend *backend, const struct hl_bias *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const int64_t parts = hl_pieces(a->M, ROWS);
    float *part = (float *)hl_cuda_scratch(c, parts * a->N * (int64_t)sizeof(float));
    if (!part) return;
    launch(c, bias_sum, dim3((unsigned)hl_pieces(a->N, COLUMNS), (unsigned)parts), dim3(COLUMNS, LINES), 0,
           (const act *)a->dx, part, a->M, a->N, a->ld ? a->ld : a->N);
    launch(c, bias_add, blocks_for(a->N, THREADS), THREADS, 0, part, a->db, parts, a->N);
}
