/* bias_cpu.c -- a bias, parallel over blocks of rows; its gradient, parallel over blocks of columns. */
#include "ops/ops.h"
#include "ops/simd.h"

enum {
    ROWS = 64,    /* rows per task; rows summed in float before adding to a double */
    COLUMNS = 64, /* columns of a task of the backward pass */
    SMALL = 8192  /* below this many numbers, use one thread */
};

static void run(struct hl_backend *backend, const struct hl_bias *a, int64_t tasks, hl_task task) {
    if (a->M * a->N > SMALL) hl_pool_run(hl_backend_pool(backend), tasks, task, (void *)a);
    else
        for (int64_t i = 0; i < tasks; i++) task((void *)a, i, 0);
}

static void add_rows(void *ctx, int64_t block, int worker) {
    const struct hl_bias copy = *(const struct hl_bias *)ctx, *a = &copy;
    const int64_t end = (block + 1) * ROWS < a->M ? (block + 1) * ROWS : a->M;
    (void)worker;
    for (int64_t m = block * ROWS; m < end; m++) {
        real *x = (real *)a->x + m * a->N;
        int64_t i = 0;
        for (; i + VL <= a->N; i += VL) v_store(x + i, v_load(x + i) + v_load(a->b + i));
        for (; i < a->N; i++) x[i] += a->b[i];
    }
}

static void sum_columns(void *ctx, int64_t block, int worker) {
    const struct hl_bias *a = ctx;
    const int64_t first = block * COLUMNS, n = a->N - first < COLUMNS ? a->N - first : COLUMNS;
    double all[COLUMNS] = {0};
    (void)worker;
    for (int64_t m = 0; m < a->M; m += ROWS) {
        const int64_t end = m + ROWS < a->M ? m + ROWS : a->M;
        real sum[COLUMNS] = {0};
        for (int64_t r = m; r < end; r++) {
            const real *dx = (const real *)a->dx + r * a->N + first;
            for (int64_t i = 0; i < n; i++) sum[i] += dx[i];
        }
        for (int64_t i = 0; i < n; i++) all[i] += (double)sum[i];
    }
    for (int64_t i = 0; i < n; i++) a->db[first + i] += (real)all[i];
}

void HL_OP(bias_forward)(struct hl_backend *backend, const struct hl_bias *a) {
    run(backend, a, hl_pieces(a->M, ROWS), add_rows);
}
void HL_OP(bias_backward)(struct hl_backend *backend, const struct hl_bias *a) {
    run(backend, a, hl_pieces(a->N, COLUMNS), sum_columns);
}
