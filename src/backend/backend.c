/* backend.c -- opens a backend by name; picks the op table for this processor. */
#include "backend/backend.h"
#include "backend/fp8_host.h"
#include "core/process.h"
#include <stdlib.h>
#include <string.h>
#ifdef HL_HAVE_CUDA
#include "backend/cuda_backend.h"
#include "cuda/cuda.h"
#endif

/* ---- the ops for this processor ---- */

extern const struct hl_ops hl_ref_ops, hl_base_ops;
#if defined(__x86_64__) && !defined(HL_DOUBLE) && !defined(HL_ONE_ISA)
#define HL_HAVE_AVX
extern const struct hl_ops hl_avx2_ops, hl_avx512_ops;
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#elif defined(__aarch64__) && !defined(HL_DOUBLE) && !defined(HL_ONE_ISA)
#define HL_HAVE_NEON /* always present on these processors */
extern const struct hl_ops hl_neon_ops;
#endif

const struct hl_ops *hl_ops_named(const char *name) {
    const struct hl_ops *have[4] = {&hl_ref_ops, &hl_base_ops};
    int n = 2;
#ifdef HL_HAVE_AVX
    if (has_avx2()) have[n++] = &hl_avx2_ops;
    if (has_avx512()) have[n++] = &hl_avx512_ops;
#endif
#ifdef HL_HAVE_NEON
    have[n++] = &hl_neon_ops;
#endif
    if (!name || !strcmp(name, "cpu")) return have[n - 1];
    for (int i = 0; i < n; i++)
        if (!strcmp(name, have[i]->name)) return have[i];
    return NULL;
}

void hl_ops_fall_back(struct hl_ops *ops) {
#define FALL_BACK(op, arg, need, where) \
    if (!ops->op) ops->op = hl_ref_ops.op;
    HL_OPS_LIST(FALL_BACK)
#undef FALL_BACK
}

/* ---- the host's memory ---- */

static void *cpu_alloc(struct hl_backend *b, int64_t bytes) {
    (void)b;
    return hl_large_alloc(bytes);
}
static void cpu_release(struct hl_backend *b, void *p) {
    (void)b;
    free(p);
}
static void cpu_zero(struct hl_backend *b, void *p, int64_t bytes) {
    (void)b;
    if (bytes > 0) memset(p, 0, (size_t)bytes);
}
static void cpu_copy(struct hl_backend *b, void *to, const void *from, int64_t bytes) {
    (void)b;
    if (bytes > 0) memcpy(to, from, (size_t)bytes);
}
static void cpu_copy_strided(struct hl_backend *b, void *to, const void *from, int64_t bytes, int64_t stride,
                             int64_t n) {
    for (int64_t i = 0; i < n; i++) cpu_copy(b, (char *)to + i * stride, (const char *)from + i * stride, bytes);
}
static hola_status cpu_finish(struct hl_backend *b) {
    (void)b;
    return HOLA_OK;
}
static hola_status cpu_cut_rows(struct hl_backend *b, struct hl_rows *rows, int64_t C) {
    (void)b, (void)rows, (void)C;
    return HOLA_OK;
}
static void cpu_free_memory(struct hl_backend *b, int64_t *free_bytes, int64_t *used) {
    (void)b;
    *free_bytes = *used = 0;
}

static const struct hl_storage cpu_storage = {.alloc = cpu_alloc,
                                              .release = cpu_release,
                                              .zero = cpu_zero,
                                              .copy = cpu_copy,
                                              .copy_strided = cpu_copy_strided,
                                              .put = cpu_copy,
                                              .get = cpu_copy,
                                              .finish = cpu_finish,
                                              .status = cpu_finish,
                                              .cut_rows = cpu_cut_rows,
                                              .free_memory = cpu_free_memory};

/* ---- opening ---- */

static hola_status cpu_open(struct hl_backend *b, const char *name) {
    const struct hl_ops *ops = hl_ops_named(name);
    if (!ops) return hl_fail(HOLA_EINVAL, "backend: '%s' is unknown, or not for this processor", name);
    b->ops = *ops;
    hl_ops_fall_back(&b->ops);
    b->storage = cpu_storage;
    b->fp8 = &hl_fp8_host_products;
    b->host = true;
    b->act_size = (int64_t)sizeof(real);
    b->xent_rows = HL_XENT_ROWS;
    return HOLA_OK;
}

/* "cuda" or "cuda-f32", either with ":1" for the second device: returns what follows the name. NULL: not a CUDA
 * name. */
static const char *cuda_name(const char *name, bool *f32) {
    if (!name || strncmp(name, "cuda", 4) != 0) return NULL;
    const char *rest = name + 4;
    *f32 = *rest == '-' && !strncmp(rest, "-f32", 4);
    if (*f32) rest += 4;
    return *rest == 0 || *rest == ':' ? rest : NULL;
}

static hola_status cuda_open(struct hl_backend *b, const char *device, bool f32) {
#ifdef HL_HAVE_CUDA
    int index = 0;
    if (*device == ':') {
        char *end;
        long n = strtol(device + 1, &end, 10);
        if (end == device + 1 || *end || n < 0 || n > 1023)
            return hl_fail(HOLA_EINVAL, "backend: '%s' is not a device number", device + 1);
        index = (int)n;
    }
    return hl_cuda_backend_open(b, index, f32);
#else
    (void)b, (void)device, (void)f32;
    return hl_fail(HOLA_ENOTSUP, "no CUDA device: this hola was built without CUDA (nvcc was not found)");
#endif
}

const char *hl_backend_best(void) {
#ifdef HL_HAVE_CUDA
    if (hl_cuda_available()) return "cuda";
#endif
    return "cpu";
}

#ifdef HL_HAVE_CUDA
int hl_backend_cuda_devices(void) { return hl_cuda_count(); }
const char *hl_backend_cuda_version(void) { return hl_cuda_version(); }
const char *hl_backend_cuda_arch(void) { return hl_cuda_arch(); }
#else
int hl_backend_cuda_devices(void) { return 0; }
const char *hl_backend_cuda_version(void) { return NULL; }
const char *hl_backend_cuda_arch(void) { return NULL; }
#endif

hola_status hl_backend_open(struct hl_backend **out, const char *name, int threads) {
    bool f32 = false;
    if (name && !strcmp(name, "auto")) name = hl_backend_best();
    const char *device = cuda_name(name, &f32);
    struct hl_backend *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) return hl_fail(HOLA_ENOMEM, "backend: no memory");
    hola_status s = device ? cuda_open(b, device, f32) : cpu_open(b, name);
    if (s == HOLA_OK) s = hl_pool_new(&b->pool, threads);
    if (s == HOLA_OK) *out = b;
    else hl_backend_close(b);
    return s;
}

struct hl_pool *hl_backend_pool(const struct hl_backend *b) {
    return b ? b->pool : NULL;
}

void hl_backend_get(struct hl_backend *b, void *host, const void *from, int64_t bytes) { hl_get(b, host, from, bytes); }

void hl_backend_close(struct hl_backend *b) {
    if (!b) return;
    if (b->close) b->close(b->device);
    hl_pool_free(b->pool);
    free(b);
}

hola_status hl_backend_require(const struct hl_backend *b, const char *const *ops) {
    for (; *ops; ops++) {
        bool has = false;
#define LOOK(op, arg, need, where) \
    if (!strcmp(*ops, #op)) has = b->ops.op != NULL;
        HL_OPS_LIST(LOOK)
#undef LOOK
        if (!has) return hl_fail(HOLA_ENOTSUP, "%s: the op %s is not available", b->ops.name, *ops);
    }
    return HOLA_OK;
}
