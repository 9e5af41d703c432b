/* cuda.h -- arrays on the device, for tests that run an op there and compare with the reference on the host.
 * The tests are linked twice: with the emulated device (make test) and with a real one (make test-cuda). */
#ifndef HL_TEST_CUDA_H
#define HL_TEST_CUDA_H
#include "check.h"
#include "core/half.h"
#include "backend/cuda_backend.h"
#include "cuda/cuda.h"
#include "backend/backend.h"

struct dev {
    const struct hl_ops *ops; /* the backend's */
    struct hl_backend *backend;
    bool f32;
};
/* Skips the test if there is no device. f32: the backend with float activations. */
static inline struct dev dev_open(bool f32) {
    struct dev d = {.f32 = f32};
    if (hl_backend_open(&d.backend, f32 ? "cuda-f32" : "cuda", 1) != HOLA_OK) {
        print_message("%s\n", hola_last_error());
        skip();
    }
    d.ops = &d.backend->ops;
    return d;
}
static inline void dev_close(struct dev *d) {
    CHECK_OK(hl_finish(d->backend));
    hl_backend_close(d->backend);
}
static inline bool dev_emulated(const struct hl_backend *b) { return !strcmp(hl_cuda_name(b->device), "emulated"); }
/* whether a big case would take too long: the emulated device is about 10,000 times slower. HOLA_SMALL=1: the same
 * shapes on a real device, for compute-sanitizer. */
static inline bool dev_slow_backend(struct hl_backend *b) { return getenv("HOLA_SMALL") || dev_emulated(b); }
static inline bool dev_slow(const struct dev *d) { return dev_slow_backend(d->backend); }
/* HOLA_SMALL=2: the minimum that reaches every kernel, for racecheck, where a launch takes about 10 ms. */
static inline bool dev_least(void) {
    const char *small = getenv("HOLA_SMALL");
    return small && atoi(small) > 1;
}
/* For tests that open models, not ops: prints why there is no device. */
static inline bool dev_there(bool *slow) {
    struct hl_backend *b = NULL;
    const bool there = hl_backend_open(&b, "cuda", 1) == HOLA_OK;
    if (!there) print_message("%s\n", hola_last_error());
    else *slow = dev_slow_backend(b);
    hl_backend_close(b);
    return there;
}

/* Rounds host values to activations, so that both sides start equal. */
static inline void dev_round(const struct dev *d, real *x, int64_t n) {
    for (int64_t i = 0; i < n && !d->f32; i++) x[i] = hl_from_bf16(hl_to_bf16((float)x[i]));
}
/* n activations or reals on the device; host NULL: NaN */
static inline void *dev_act(const struct dev *d, const real *host, int64_t n) {
    void *p = hl_alloc(d->backend, n * d->backend->act_size);
    uint16_t *half = malloc((size_t)n * 2);
    float *full = malloc((size_t)n * 4);
    assert_true(p && half && full);
    for (int64_t i = 0; i < n; i++) {
        full[i] = host ? (float)host[i] : NAN;
        half[i] = hl_to_bf16(full[i]);
    }
    hl_put(d->backend, p, d->f32 ? (void *)full : (void *)half, n * d->backend->act_size);
    CHECK_OK(hl_finish(d->backend));
    free(half);
    free(full);
    return p;
}
static inline void *dev_put(const struct dev *d, const void *host, int64_t bytes) {
    void *p = hl_alloc(d->backend, bytes);
    assert_non_null(p);
    hl_put(d->backend, p, host, bytes);
    CHECK_OK(hl_finish(d->backend));
    return p;
}
static inline real *dev_real(const struct dev *d, const real *host, int64_t n) {
    real *nan = host ? NULL : malloc((size_t)n * sizeof *nan);
    for (int64_t i = 0; nan && i < n; i++) nan[i] = (real)NAN;
    real *p = dev_put(d, host ? host : nan, n * (int64_t)sizeof(real));
    free(nan);
    return p;
}
/* Back to the host, into out [n]; and the device's copy is freed. */
static inline void dev_act_take(const struct dev *d, void *p, real *out, int64_t n) {
    uint16_t *half = malloc((size_t)n * 4);
    assert_non_null(half);
    hl_get(d->backend, half, p, n * d->backend->act_size);
    CHECK_OK(hl_finish(d->backend));
    for (int64_t i = 0; i < n; i++) out[i] = d->f32 ? ((float *)half)[i] : hl_from_bf16(half[i]);
    free(half);
    hl_release(d->backend, p);
}
static inline void dev_real_take(const struct dev *d, real *p, real *out, int64_t n) {
    hl_get(d->backend, out, p, n * (int64_t)sizeof(real));
    CHECK_OK(hl_finish(d->backend));
    hl_release(d->backend, p);
}
static inline void dev_drop(const struct dev *d, const void *p) { hl_release(d->backend, (void *)p); }

#endif
