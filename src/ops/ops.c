/* ops.c -- picks the table of ops for this processor. */
#include "ops/ops.h"
#include <stdlib.h>
#include <string.h>
#ifdef HL_HAVE_CUDA
#include "cuda/cuda.h"
extern const struct hl_ops hl_cuda_ops, hl_cuda_f32_ops;
#endif

extern const struct hl_ops hl_ref_ops, hl_base_ops;
#if defined(__x86_64__) && !defined(HL_DOUBLE) && !defined(HL_ONE_ISA)
#define HL_HAVE_AVX
extern const struct hl_ops hl_avx2_ops, hl_avx512_ops;
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const struct hl_ops *hl_ops_named(const char *backend) {
    const struct hl_ops *have[4] = {&hl_ref_ops, &hl_base_ops};
    int n = 2;
#ifdef HL_HAVE_AVX
    if (has_avx2()) have[n++] = &hl_avx2_ops;
    if (has_avx512()) have[n++] = &hl_avx512_ops;
#endif
    if (!backend || !strcmp(backend, "cpu")) return have[n - 1];
    for (int i = 0; i < n; i++)
        if (!strcmp(backend, have[i]->name)) return have[i];
    return NULL;
}

/* "cuda", "cuda-f32", either with ":1" for the second device; NULL: not such a name */
static const char *cuda_name(const char *backend, bool *f32) {
    if (!backend || strncmp(backend, "cuda", 4) != 0) return NULL;
    *f32 = !strncmp(backend + 4, "-f32", 4);
    const char *rest = backend + (*f32 ? 8 : 4);
    return *rest == 0 || *rest == ':' ? rest : NULL;
}

static hola_status cuda_open(const char *device, bool f32, int threads, const struct hl_ops **ops,
                             struct hl_pool **pool) {
#ifdef HL_HAVE_CUDA
    struct hl_cuda *c = NULL;
    int index = 0;
    if (*device == ':') {
        char *end;
        long n = strtol(device + 1, &end, 10);
        if (end == device + 1 || *end || n < 0 || n > 1023)
            return hl_fail(HOLA_EINVAL, "backend: '%s' is not the number of a device", device + 1);
        index = (int)n;
    }
    hola_status s = hl_cuda_open(&c, index);
    if (s == HOLA_OK) s = hl_pool_new(pool, threads); /* the host has some work as well */
    if (s != HOLA_OK) {
        hl_cuda_close(c);
        return s;
    }
    hl_pool_attach(*pool, c, (void (*)(void *))hl_cuda_close);
    *ops = f32 ? &hl_cuda_f32_ops : &hl_cuda_ops;
    return HOLA_OK;
#else
    (void)device, (void)f32, (void)threads, (void)ops, (void)pool;
    return hl_fail(HOLA_ENOTSUP, "no CUDA device: this hola was built without CUDA (nvcc was not found)");
#endif
}

const char *hl_backend_best(void) {
#ifdef HL_HAVE_CUDA
    if (hl_cuda_there()) return "cuda";
#endif
    return "cpu";
}

hola_status hl_backend_open(const char *backend, int threads, const struct hl_ops **ops,
                            struct hl_pool **pool) {
    bool f32 = false;
    const char *device = cuda_name(backend, &f32);
    *ops = NULL;
    *pool = NULL;
    if (device) return cuda_open(device, f32, threads, ops, pool);
    *ops = hl_ops_named(backend);
    if (!*ops) return hl_fail(HOLA_EINVAL, "backend: '%s' is not one of this machine", backend);
    return hl_pool_new(pool, threads);
}
