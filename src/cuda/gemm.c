/* gemm.c -- matrix products through cuBLASLt, which is looked for when the first one is asked for: a program
 * built with CUDA starts on a machine without it. */
#include "cuda/device.h"
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE = 64 << 20, MAX_PLANS = 256 };

/* X(result, name, parameters): the functions we use */
#define LT_LIST(X)                                                                                         \
    X(cublasLtCreate, (cublasLtHandle_t *))                                                                \
    X(cublasLtDestroy, (cublasLtHandle_t))                                                                 \
    X(cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t))             \
    X(cublasLtMatmulDescSetAttribute,                                                                      \
      (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t))                        \
    X(cublasLtMatrixLayoutCreate, (cublasLtMatrixLayout_t *, cudaDataType_t, uint64_t, uint64_t, int64_t)) \
    X(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *))                                      \
    X(cublasLtMatmulPreferenceSetAttribute,                                                                \
      (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t))            \
    X(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t))                                       \
    X(cublasLtMatmulAlgoGetHeuristic,                                                                      \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,             \
       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,                    \
       cublasLtMatmulHeuristicResult_t[], int *))                                                          \
    X(cublasLtMatmul,                                                                                      \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t,         \
       const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *,   \
       cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t))                \
    X(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t))                                                   \
    X(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t))

struct lt {
    void *library, *workspace;
    cublasLtHandle_t handle;
#define LT_MEMBER(name, parameters) cublasStatus_t(*name) parameters;
    LT_LIST(LT_MEMBER)
#undef LT_MEMBER
};

struct hl_plan {
    struct hl_gemm shape; /* pointers and factors cleared */
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
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
    c->plan = calloc(MAX_PLANS, sizeof *c->plan);
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

void hl_gemm_close(struct hl_cuda *c) {
    struct lt *lt = c->lt;
    if (lt && lt->handle) {
        for (int i = 0; i < c->plans; i++) plan_drop(lt, &c->plan[i]);
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

/* cuBLAS thinks in columns: our C [M][N] is its C^T, so it multiplies our B by our A. */
static bool plan_make(struct hl_cuda *c, struct lt *lt, struct hl_plan *p, const struct hl_gemm *g) {
    const cublasOperation_t ta = g->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t tb = g->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t M = (uint64_t)g->M, N = (uint64_t)g->N, K = (uint64_t)g->K;
    const size_t room = WORKSPACE;
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    bool ok = lt->cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;
    lt->cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    lt->cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    ok = ok && !lt->cublasLtMatrixLayoutCreate(&p->a, type_of(g->in), g->b_turned ? K : N,
                                               g->b_turned ? N : K, g->ldb);
    ok = ok && !lt->cublasLtMatrixLayoutCreate(&p->b, type_of(g->in), g->a_turned ? M : K,
                                               g->a_turned ? K : M, g->lda);
    ok = ok && !lt->cublasLtMatrixLayoutCreate(&p->c, type_of(g->out), N, M, g->ldc);
    ok = ok && !lt->cublasLtMatmulPreferenceCreate(&wish);
    if (ok) {
        lt->cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                                 sizeof room);
        ok = !lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, p->op, p->a, p->b, p->c, p->c, wish, 1, &best,
                                                 &found) &&
             found > 0;
        lt->cublasLtMatmulPreferenceDestroy(wish);
    }
    if (!ok) {
        hl_cuda_fail(c, HOLA_EDEVICE, "no way to multiply %lld x %lld x %lld", (long long)g->M,
                     (long long)g->N, (long long)g->K);
        plan_drop(lt, p);
        return false;
    }
    p->algo = best.algo;
    p->workspace = best.workspaceSize;
    return true;
}

static struct hl_plan *plan_find(struct hl_cuda *c, struct lt *lt, const struct hl_gemm *g) {
    struct hl_gemm shape;
    memset(&shape, 0, sizeof shape); /* padding too: shapes are compared as bytes */
    shape.M = g->M, shape.N = g->N, shape.K = g->K;
    shape.a_turned = g->a_turned, shape.b_turned = g->b_turned;
    shape.lda = g->lda, shape.ldb = g->ldb, shape.ldc = g->ldc;
    shape.in = g->in, shape.out = g->out;
    for (int i = 0; i < c->plans; i++)
        if (!memcmp(&c->plan[i].shape, &shape, sizeof shape)) return &c->plan[i];
    if (c->plans == MAX_PLANS) /* many lengths of prompts: start over */
        while (c->plans > 0) plan_drop(lt, &c->plan[--c->plans]);
    struct hl_plan *p = &c->plan[c->plans];
    if (!plan_make(c, lt, p, g)) return NULL;
    memcpy(&p->shape, &shape, sizeof shape);
    c->plans++;
    return p;
}

void hl_cuda_gemm(struct hl_cuda *c, const struct hl_gemm *g) {
    struct lt *lt = lt_open(c);
    if (!lt || !lt->handle || g->M == 0 || g->N == 0) return;
    struct hl_plan *p = plan_find(c, lt, g);
    if (!p) return;
    cublasStatus_t s = lt->cublasLtMatmul(lt->handle, p->op, &g->alpha, g->B, p->a, g->A, p->b, &g->beta,
                                          g->add ? g->add : g->C, p->c, g->C, p->c, &p->algo, lt->workspace,
                                          p->workspace, c->stream);
    if (s != CUBLAS_STATUS_SUCCESS)
        hl_cuda_fail(c, HOLA_EDEVICE, "matrix product %lld x %lld x %lld: cuBLAS status %d", (long long)g->M,
                     (long long)g->N, (long long)g->K, (int)s);
}
