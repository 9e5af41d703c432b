/* gsa_cuda.cu -- gated slot attention on a GPU (gsa.h): the choice of kernels, as for GLA (gla_cuda.cu), and the small
 * kernels that the plain variant adds to GLA's. */
#include "ops/gsa/gsa_cuda.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* ---- the plain form: a warp has a row of M numbers ---- */

/* p = softmax(z) */
static __global__ void __launch_bounds__(THREADS) softmax_row(act *p, const float *z, int64_t rows, int M) {
    const int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    float most = -INFINITY, sum = 0.0f;
    if (r >= rows) return;
    p += r * M, z += r * M;
    for (int m = threadIdx.x % 32; m < M; m += 32) most = fmaxf(most, z[m]);
    most = warp_max(most);
    for (int m = threadIdx.x % 32; m < M; m += 32) sum += expf(z[m] - most);
    sum = warp_sum(sum);
    for (int m = threadIdx.x % 32; m < M; m += 32) put(p + m, expf(z[m] - most) / sum);
}
/* D = p (dp - p.dp) */
static __global__ void __launch_bounds__(THREADS)
    softmax_row_back(act *D, const act *p, const float *dp, int64_t rows, int M) {
    const int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    float sum = 0.0f;
    if (r >= rows) return;
    D += r * M, p += r * M, dp += r * M;
    for (int m = threadIdx.x % 32; m < M; m += 32) sum += f32(p[m]) * dp[m];
    sum = warp_sum(sum);
    for (int m = threadIdx.x % 32; m < M; m += 32) put(D + m, f32(p[m]) * (dp[m] - sum));
}
/* df += df1 - exp(f) (ds + ds1) */
static __global__ void __launch_bounds__(THREADS)
    add_slots(float *df, const float *df1, const float *ds, const float *ds1, const float *f, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) df[i] += df1[i] - expf(f[i]) * (ds[i] + ds1[i]);
}

static void run_plain(struct hl_backend *backend, const struct hl_gsa *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const int64_t rows = a->rows->T * a->H, n = rows * a->M;
    char *scratch = (char *)hl_cuda_scratch(c, n * 8);
    if (!scratch) return;
    float *z = (float *)scratch;
    const struct gla_view first = gsa_first(a, NULL);
    struct gla_view second = gsa_second(a);
    act *p = a->p ? (act *)a->p : (act *)(scratch + n * 4);
    HL_OP(gla_plain_queries)(backend, &first, z);
    launch(c, softmax_row, blocks_for(rows, WARPS), THREADS, 0, p, (const float *)z, rows, (int)a->M);
    second.q = p;
    HL_OP(gla_run_plain)(backend, &second, true);
}
static void run_plain_back(struct hl_backend *backend, const struct hl_gsa *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const int64_t rows = a->rows->T * a->H, n = rows * a->M, slots = a->rows->T * a->HK * a->M;
    char *scratch = (char *)hl_cuda_scratch(c, n * 8 + slots * 16);
    if (!scratch) return;
    float *dp = (float *)scratch, *ds = dp + n, *ds1 = ds + slots, *df1 = ds1 + slots, *dG = df1 + slots;
    act *D = (act *)(dG + slots);
    const struct gla_view second = gsa_second(a);
    struct gla_view first = gsa_first(a, D);
    HL_OP(gla_run_plain_back)(backend, &second, dG, dp, ds);
    launch(c, softmax_row_back, blocks_for(rows, WARPS), THREADS, 0, D, (const act *)a->p, (const float *)dp, rows,
           (int)a->M);
    first.dg = df1;
    HL_OP(gla_run_plain_back)(backend, &first, dG, NULL, ds1);
    HL_OP(gla_run_plain)(backend, &first, false);
    launch(c, add_slots, blocks_for(slots, THREADS), THREADS, 0, a->df, (const float *)df1, (const float *)ds,
           (const float *)ds1, a->f, slots);
}

/* ---- the chunked form ---- */

#ifndef HL_CUDA_F32
static bool chunk_fits(struct hl_cuda *c, const struct hl_gsa *a) {
    const struct gla_view first = gsa_first(a, NULL), second = gsa_second(a);
    return (uintptr_t)a->q % 16 == 0 && HL_OP(gla_chunk_fits)(c, &first) && HL_OP(gla_chunk_fits)(c, &second);
}
struct forward {
    struct gla_operands o;
    bf16 *h, *p;
    float *walk;
};
static char *carve(const struct hl_gsa *a, char *scratch, struct forward *x) {
    const int64_t heads = a->rows->dev->chunks * a->HK, operand = heads * CHUNK * a->M * 2;
    const struct gla_view first = gsa_first(a, NULL), second = gsa_second(a);
    const int64_t walk1 = HL_OP(gla_walk_scratch)(&first), walk2 = HL_OP(gla_walk_scratch)(&second);
    x->o.qe = (bf16 *)gla_carve(&scratch, operand), x->o.ke = (bf16 *)gla_carve(&scratch, operand);
    x->o.A = (bf16 *)gla_carve(&scratch, heads * TILE * 2);
    x->o.decay = (float *)gla_carve(&scratch, heads * a->M * 4);
    x->h = (bf16 *)gla_carve(&scratch, heads * a->M * a->K * 2);
    x->p = a->p ? (bf16 *)a->p : (bf16 *)gla_carve(&scratch, a->rows->T * a->H * a->M * 2);
    x->walk = (float *)gla_carve(&scratch, walk1 > walk2 ? walk1 : walk2);
    return scratch;
}
static void run_chunks(struct hl_backend *backend, const struct hl_gsa *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct forward x;
    char *scratch = (char *)hl_cuda_scratch(c, carve(a, NULL, &x) - (char *)NULL);
    if (!scratch) return;
    carve(a, scratch, &x);
    const struct gla_view first = gsa_first(a, NULL), second = gsa_second(a);
    const struct gla_operands slots = {NULL, x.o.ke, NULL, x.o.decay};
    const struct gla_walk walk = {x.o.ke, first.v, first.ld_v, x.h, false};
    HL_OP(gla_prep)(c, &first, &slots);
    HL_OP(gla_walk_states)(c, &first, &slots, &walk, 1, true, x.walk);
    HL_OP(gsa_weigh)(c, a, x.h, x.p, &x.o);
    HL_OP(gla_walk_out)(c, &second, &x.o, true, x.walk);
}
static void run_chunks_back(struct hl_backend *backend, const struct hl_gsa *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct gla_view second = gsa_second(a), first = gsa_first(a, NULL);
    second.out = NULL;
    const int64_t D = (a->rows->T * a->H * a->M * 2 + 255) / 256 * 256;
    const int64_t bytes1 = HL_OP(gla_chunk_back_scratch)(&first), bytes2 = HL_OP(gla_chunk_back_scratch)(&second);
    char *scratch = (char *)hl_cuda_scratch(c, D + (bytes1 > bytes2 ? bytes1 : bytes2));
    if (!scratch) return;
    second.dq = (act *)scratch, first.q = (const act *)scratch;
    HL_OP(gla_chunk_back)(c, &second, scratch + D, false, true);
    HL_OP(gla_chunk_back)(c, &first, scratch + D, true, false);
}
#endif

extern "C" void HL_OP(gsa_forward)(struct hl_backend *backend, const struct hl_gsa *a) {
    HL_ASSERT(a->H % a->HK == 0 && a->rows->dev);
    if (a->rows->T == 0) return;
    if (HL_OP(gsa_step_fits)(a)) HL_OP(gsa_run_step)(backend, a);
#ifndef HL_CUDA_F32
    else if (chunk_fits(hl_cuda_of(backend), a)) run_chunks(backend, a);
#endif
    else run_plain(backend, a);
}
extern "C" void HL_OP(gsa_backward)(struct hl_backend *backend, const struct hl_gsa *a) {
    HL_ASSERT(a->H % a->HK == 0 && a->rows->dev && a->p);
    if (a->rows->T == 0) return;
#ifndef HL_CUDA_F32
    if (chunk_fits(hl_cuda_of(backend), a)) {
        run_chunks_back(backend, a);
        return;
    }
#endif
    run_plain_back(backend, a);
}
