/* gemm.c -- matrix products, including FP8, through cuBLASLt, which is loaded (dlopen) on first use: a program built
 * with CUDA also starts on a machine without it. */
#include "cuda/device.h"
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE = 64 << 20, CANDIDATES = 8, ROUNDS = 6, ROUND = 64, LONG = 2048 };
enum { SLOTS = 2048, MOST_PLANS = SLOTS / 2 };

/* X(name, parameters): the functions we use */
#define LT_LIST(X)                                                                                                     \
    X(cublasLtCreate, (cublasLtHandle_t *))                                                                            \
    X(cublasLtDestroy, (cublasLtHandle_t))                                                                             \
    X(cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t))                         \
    X(cublasLtMatmulDescSetAttribute, (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t))    \
    X(cublasLtMatrixLayoutCreate, (cublasLtMatrixLayout_t *, cudaDataType_t, uint64_t, uint64_t, int64_t))             \
    X(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *))                                                  \
    X(cublasLtMatmulPreferenceSetAttribute,                                                                            \
      (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t))                        \
    X(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t))                                                   \
    X(cublasLtMatmulAlgoGetHeuristic,                                                                                  \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
       cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t[], int *))             \
    X(cublasLtMatmulAlgoCheck,                                                                                         \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
       cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, cublasLtMatmulHeuristicResult_t *))                       \
    X(cublasLtMatmul, (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t,     \
                       const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t,       \
                       void *, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t))    \
    X(cublasLtMatmulAlgoConfigGetAttribute,                                                                            \
      (const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t, void *, size_t, size_t *))                  \
    X(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t))                                                               \
    X(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t))

struct lt {
    void *library, *workspace;
    cublasLtHandle_t handle;
#define LT_MEMBER(name, parameters) cublasStatus_t(*name) parameters;
    LT_LIST(LT_MEMBER)
#undef LT_MEMBER
};

struct shape { /* what a plan depends on */
    int64_t M, N, K, lda, ldb, ldc;
    int32_t in, out;
    bool a_trans, b_trans, fp8, a_e5m2, b_blocks;
};
struct hl_plan { /* a slot of a hash table with linear probing */
    struct shape shape;
    bool used;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    bool none; /* known to have no kernel */
};

static void *open_library(void) {
    static const char *const names[] = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13",
                                        "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.12",
                                        "libcublasLt.so"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *l = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (l) return l;
    }
    return NULL;
}

static struct lt *lt_open(struct hl_cuda *c) {
    if (c->lt) return c->lt;
    struct lt *lt = calloc(1, sizeof *lt);
    c->plan = calloc(SLOTS, sizeof *c->plan);
    c->lt = lt;
    if (!lt || !c->plan) {
        hl_cuda_fail(c, HOLA_ENOMEM, "matrix products: no memory");
        return lt;
    }
    lt->library = open_library();
    if (!lt->library) {
        hl_cuda_fail(c, HOLA_EDEVICE, "libcublasLt.so was not found: %s", dlerror());
        return lt;
    }
    bool all = true;
#define LT_FIND(name, parameters)            \
    {                                        \
        void *f = dlsym(lt->library, #name); \
        memcpy(&lt->name, &f, sizeof f);     \
        all = all && f;                      \
    }
    LT_LIST(LT_FIND)
#undef LT_FIND
    lt->workspace = hl_cuda_malloc(c, WORKSPACE);
    if (!all || !lt->workspace || lt->cublasLtCreate(&lt->handle) != CUBLAS_STATUS_SUCCESS) {
        hl_cuda_fail(c, HOLA_EDEVICE, "libcublasLt.so does not work here");
        lt->handle = NULL;
    }
    return lt;
}

static void plan_drop(struct lt *lt, struct hl_plan *p) {
    if (p->op) lt->cublasLtMatmulDescDestroy(p->op);
    if (p->a) lt->cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) lt->cublasLtMatrixLayoutDestroy(p->b);
    if (p->c) lt->cublasLtMatrixLayoutDestroy(p->c);
    memset(p, 0, sizeof *p);
}
static void drop_all(struct hl_cuda *c) {
    for (int i = 0; i < SLOTS; i++) plan_drop(c->lt, &c->plan[i]);
    c->plans = 0;
}

void hl_gemm_close(struct hl_cuda *c) {
    struct lt *lt = c->lt;
    if (lt && lt->handle) {
        drop_all(c);
        lt->cublasLtDestroy(lt->handle);
    }
    if (lt) hl_cuda_free(c, lt->workspace);
    free(c->plan);
    free(lt);
    c->lt = NULL;
    c->plan = NULL;
    c->plans = 0;
}

static cudaDataType_t type_of(hola_dtype t) { return t == HOLA_BF16 ? CUDA_R_16BF : CUDA_R_32F; }
static cudaDataType_t type_of_a(const struct hl_gemm *g) {
    return !g->a_scale ? type_of(g->in) : g->a_e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}
static cudaDataType_t type_of_b(const struct hl_gemm *g) { return g->a_scale ? CUDA_R_8F_E4M3 : type_of(g->in); }

/* ---- choosing a kernel ---- */

static int config(const struct lt *lt, const cublasLtMatmulHeuristicResult_t *r,
                  cublasLtMatmulAlgoConfigAttributes_t what) {
    int32_t v = 0;
    size_t written;
    lt->cublasLtMatmulAlgoConfigGetAttribute(&r->algo, what, &v, sizeof v, &written);
    return v;
}
/* Up to CANDIDATES kernels within a workspace limit, in the order of cuBLAS's heuristic. */
static int candidates(struct lt *lt, const struct hl_plan *p, size_t workspace,
                      cublasLtMatmulHeuristicResult_t out[CANDIDATES]) {
    cublasLtMatmulPreference_t preference = NULL;
    int found = 0;
    if (lt->cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    lt->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof workspace);
    if (lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, p->op, p->a, p->b, p->c, p->c, preference, CANDIDATES, out,
                                           &found) != CUBLAS_STATUS_SUCCESS)
        found = 0;
    lt->cublasLtMatmulPreferenceDestroy(preference);
    return found;
}
/* Estimated time of a kernel with this tile: waves over all multiprocessors, times the tile's size, times the measured
 * cost per element on an H200 (below ROUNDS waves cuBLAS's first choice is good; above, smaller tiles are 5 to 20 %
 * faster, except for K of LONG and more). 0: a tile that was not measured. full: one wave that nearly fills the device,
 * which beats split-K. */
static double tile_cost(int tile, const struct hl_gemm *g, int sms, bool *full) {
    const struct {
        int id;
        int64_t n, m; /* our N and M */
        double each;
    } known[] = {
        {CUBLASLT_MATMUL_TILE_256x128, 256, 128, g->K < LONG ? 1.1 : 1},
        {CUBLASLT_MATMUL_TILE_128x256, 128, 256, 1.1},
        {CUBLASLT_MATMUL_TILE_128x160, 128, 160, 1},
        {CUBLASLT_MATMUL_TILE_176x128, 176, 128, 0.98},
        {CUBLASLT_MATMUL_TILE_256x96, 256, 96, 1.1},
        {CUBLASLT_MATMUL_TILE_64x128, 64, 128, 1.3},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].id != tile) continue;
        const int64_t tiles = hl_pieces(g->N, known[i].n) * hl_pieces(g->M, known[i].m);
        *full = tiles <= sms && tiles * 100 >= sms * 96;
        return (double)(hl_pieces(tiles, sms) * known[i].n * known[i].m) * known[i].each;
    }
    return 0;
}

static bool layouts(struct lt *lt, struct hl_plan *p, const struct hl_gemm *g) {
    const uint64_t M = (uint64_t)g->M, N = (uint64_t)g->N, K = (uint64_t)g->K;
    return !lt->cublasLtMatrixLayoutCreate(&p->a, type_of_b(g), g->b_trans ? K : N, g->b_trans ? N : K, g->ldb) &&
           !lt->cublasLtMatrixLayoutCreate(&p->b, type_of_a(g), g->a_trans ? M : K, g->a_trans ? K : M, g->lda) &&
           !lt->cublasLtMatrixLayoutCreate(&p->c, type_of(g->out), N, M, g->ldc);
}
/* Kernels that need no workspace. Those for N rounded up to a multiple of ROUND also work for this N, but the heuristic
 * does not return them. */
static int without_workspace(struct lt *lt, const struct hl_plan *p, const struct hl_gemm *g,
                             cublasLtMatmulHeuristicResult_t out[CANDIDATES]) {
    struct hl_gemm even = *g;
    struct hl_plan q = {.op = p->op};
    even.N = hl_pieces(g->N, ROUND) * ROUND;
    if (even.N == g->N || g->N < 8 * ROUND) return candidates(lt, p, 0, out);
    if (!g->b_trans && even.ldb < even.N) even.ldb = even.N;
    if (even.ldc < even.N) even.ldc = even.N;
    const int n = layouts(lt, &q, &even) ? candidates(lt, &q, 0, out) : 0;
    q.op = NULL; /* owned by the plan */
    plan_drop(lt, &q);
    return n;
}

/* On Hopper the heuristic's first choice is often not the fastest for large products; there we take the cheapest kernel
 * among those that need no cleared workspace. The choice depends only on the shape: timing could choose differently in
 * the next run and change the bits. */
static bool choose(struct hl_cuda *c, struct lt *lt, struct hl_plan *p, const struct hl_gemm *g) {
    cublasLtMatmulHeuristicResult_t r[CANDIDATES], checked;
    double least = 0;
    int major = 0, n = 0;
    bool full = false;
    if (candidates(lt, p, WORKSPACE, r) == 0) return false;
    p->algo = r[0].algo;
    p->workspace = r[0].workspaceSize;
    if (g->a_scale) return true; /* the table of tiles was measured for bf16 */
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->index);
    const bool split = config(lt, &r[0], CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1;
    if (!split && g->M * g->N < ROUNDS * 128 * 160 * (int64_t)c->sms) return true;
    if (major == 9 && g->in == HOLA_BF16) n = without_workspace(lt, p, g, r);
    for (int i = 0; i < n; i++) {
        const double cost = tile_cost(config(lt, &r[i], CUBLASLT_ALGO_CONFIG_TILE_ID), g, c->sms, &full);
        if (cost == 0 || (split && !full) || (least > 0 && cost >= least)) continue;
        if (config(lt, &r[i], CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1) continue;
        if (lt->cublasLtMatmulAlgoCheck(lt->handle, p->op, p->a, p->b, p->c, p->c, &r[i].algo, &checked) !=
            CUBLAS_STATUS_SUCCESS)
            continue;
        least = cost;
        p->algo = r[i].algo;
        p->workspace = g->N % ROUND ? checked.workspaceSize : r[i].workspaceSize;
    }
    return true;
}

static bool set(struct lt *lt, const struct hl_plan *p, cublasLtMatmulDescAttributes_t what, const void *value,
                size_t size) {
    return lt->cublasLtMatmulDescSetAttribute(p->op, what, value, size) == CUBLAS_STATUS_SUCCESS;
}
/* cuBLAS is column-major: our C [M][N] is its C^T, so it multiplies our B by our A. */
static bool scale_pointers(struct lt *lt, const struct hl_plan *p, const struct hl_gemm *g) {
    return set(lt, p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->b_scale, sizeof g->b_scale) &&
           set(lt, p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->a_scale, sizeof g->a_scale);
}
static bool scale_modes(struct lt *lt, const struct hl_plan *p, const struct hl_gemm *g) {
    const int32_t row = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const int32_t b = g->b_blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : row;
    return set(lt, p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &b, sizeof b) &&
           set(lt, p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &row, sizeof row) && scale_pointers(lt, p, g);
}

/* ---- plans ---- */

/* Choosing a kernel takes a fraction of a millisecond, and prompts have any number of rows: a product has the kernel of
 * the rounded number. */
static int64_t rounded_rows(const struct hl_gemm *g) {
    const int64_t step = g->M <= 1024 ? 64 : g->M <= 16384 ? 256 : 1024;
    return g->a_trans || g->a_scale ? g->M : hl_pieces(g->M, step) * step;
}

/* other: the plan of the rounded product, NULL: none */
static bool choose_as(struct hl_cuda *c, struct lt *lt, struct hl_plan *p, const struct hl_gemm *g,
                      const struct hl_plan *other) {
    cublasLtMatmulHeuristicResult_t checked;
    if (!other || lt->cublasLtMatmulAlgoCheck(lt->handle, p->op, p->a, p->b, p->c, p->c, &other->algo, &checked) !=
                      CUBLAS_STATUS_SUCCESS)
        return choose(c, lt, p, g);
    p->algo = other->algo;
    p->workspace = checked.workspaceSize;
    return p->workspace <= WORKSPACE || choose(c, lt, p, g);
}

static bool plan_make(struct hl_cuda *c, struct lt *lt, struct hl_plan *p, const struct hl_gemm *g,
                      const struct hl_plan *other) {
    const cublasOperation_t ta = g->b_trans ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t tb = g->a_trans ? CUBLAS_OP_T : CUBLAS_OP_N;
    bool ok = lt->cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;
    ok = ok && set(lt, p, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    ok = ok && set(lt, p, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    ok = ok && (!g->a_scale || scale_modes(lt, p, g));
    ok = ok && layouts(lt, p, g) && choose_as(c, lt, p, g, other);
    if (!ok) plan_drop(lt, p);
    return ok;
}

static struct shape shape_of(const struct hl_gemm *g) {
    struct shape s;
    memset(&s, 0, sizeof s); /* including padding: shapes are compared bytewise */
    s.M = g->M, s.N = g->N, s.K = g->K;
    s.lda = g->lda, s.ldb = g->ldb, s.ldc = g->ldc;
    s.in = g->in, s.out = g->out;
    s.a_trans = g->a_trans, s.b_trans = g->b_trans;
    s.fp8 = g->a_scale != NULL, s.a_e5m2 = g->a_e5m2, s.b_blocks = g->b_blocks;
    return s;
}
/* The shape's slot, or the free one where it belongs. */
static struct hl_plan *slot_of(struct hl_cuda *c, const struct shape *s) {
    const unsigned char *byte = (const unsigned char *)s;
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *s; i++) h = (h ^ byte[i]) * 1099511628211u;
    struct hl_plan *p = &c->plan[h % SLOTS];
    while (p->used && memcmp(&p->shape, s, sizeof *s)) p = p + 1 < c->plan + SLOTS ? p + 1 : c->plan;
    return p;
}

/* NULL: no kernel, which is an error unless quiet. */
static struct hl_plan *plan_find(struct hl_cuda *c, struct lt *lt, const struct hl_gemm *g, bool quiet) {
    const struct shape shape = shape_of(g);
    struct hl_plan *p = slot_of(c, &shape), *other = NULL;
    struct hl_gemm even = *g;
    if (p->used && (!p->none || quiet)) return p->none ? NULL : p;
    even.M = rounded_rows(g);
    if (even.M != g->M) {
        if (c->plans + 2 > MOST_PLANS) drop_all(c);
        other = plan_find(c, lt, &even, true);
    } else if (c->plans + 1 > MOST_PLANS) drop_all(c);
    p = slot_of(c, &shape);
    c->plans += !p->used;
    const bool made = plan_make(c, lt, p, g, other);
    p->shape = shape, p->used = true, p->none = !made;
    c->fp8_refused += !made && shape.fp8 && quiet;
    if (!made && !quiet)
        hl_cuda_fail(c, HOLA_EDEVICE, "cuBLAS has no kernel for a product of %lld x %lld x %lld", (long long)g->M,
                     (long long)g->N, (long long)g->K);
    return made ? p : NULL;
}

bool hl_cuda_gemm_has(struct hl_cuda *c, const struct hl_gemm *g) {
    struct lt *lt = lt_open(c);
    return lt && lt->handle && plan_find(c, lt, g, true) != NULL;
}

void hl_cuda_gemm(struct hl_cuda *c, const struct hl_gemm *g) {
    struct lt *lt = lt_open(c);
    if (!lt || !lt->handle || g->M == 0 || g->N == 0) return;
    struct hl_plan *p = plan_find(c, lt, g, false);
    if (!p) return;
    if (g->a_scale && !scale_pointers(lt, p, g)) {
        hl_cuda_fail(c, HOLA_EDEVICE, "cuBLAS takes no scales for a product in FP8");
        return;
    }
    cublasStatus_t s =
        lt->cublasLtMatmul(lt->handle, p->op, &g->alpha, g->B, p->a, g->A, p->b, &g->beta, g->add ? g->add : g->C, p->c,
                           g->C, p->c, &p->algo, lt->workspace, p->workspace, hl_stream(c));
    if (s != CUBLAS_STATUS_SUCCESS)
        hl_cuda_fail(c, HOLA_EDEVICE, "matrix product %lld x %lld x %lld: cuBLAS status %d", (long long)g->M,
                     (long long)g->N, (long long)g->K, (int)s);
}
