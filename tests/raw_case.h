/* raw_case.h -- arrays for the tests of the raw calls: on the device, with guard bytes on both sides, and as doubles on
 * the host; comparisons of the two. */
#ifndef HL_RAW_CASE_H
#define HL_RAW_CASE_H
#include "cuda.h"
#include "cuda/device.h"
#include "hola_ops.h"

enum { RAW_GUARD = 256, RAW_GUARD_BYTE = 0xa5, RAW_POISON = 0xff /* NaN */ };

/* `bytes` of device memory between guards. */
struct raw_buffer {
    char *all;
    void *p; /* the pointer passed to a call */
    int64_t bytes;
};
static inline struct raw_buffer raw_bytes(const struct dev *d, const void *host, int64_t bytes) {
    struct raw_buffer b = {.bytes = bytes};
    char *image = malloc((size_t)(bytes + 2 * RAW_GUARD));
    assert_non_null(image);
    memset(image, RAW_GUARD_BYTE, (size_t)(bytes + 2 * RAW_GUARD));
    if (host) memcpy(image + RAW_GUARD, host, (size_t)bytes);
    else memset(image + RAW_GUARD, RAW_POISON, (size_t)bytes);
    b.all = dev_put(d, image, bytes + 2 * RAW_GUARD);
    b.p = b.all + RAW_GUARD;
    free(image);
    return b;
}
/* Back to the host; the device's copy is freed. Fails where a guard was overwritten. Free what it returns. */
static inline void *raw_take(const struct dev *d, struct raw_buffer *b, const char *name) {
    char *image = malloc((size_t)(b->bytes + 2 * RAW_GUARD));
    assert_non_null(image);
    hl_get(d->backend, image, b->all, b->bytes + 2 * RAW_GUARD);
    CHECK_OK(hl_finish(d->backend));
    for (int64_t i = 0; i < RAW_GUARD; i++)
        if ((unsigned char)image[i] != RAW_GUARD_BYTE ||
            (unsigned char)image[b->bytes + RAW_GUARD + i] != RAW_GUARD_BYTE)
            fail_msg("%s: a write outside of its %lld bytes", name, (long long)b->bytes);
    memmove(image, image + RAW_GUARD, (size_t)b->bytes);
    dev_drop(d, b->all);
    b->all = NULL;
    return image;
}

/* n numbers as float or bf16; host NULL: poison */
static inline struct raw_buffer raw_numbers(const struct dev *d, const double *host, int64_t n, hola_dtype t) {
    float *full = malloc((size_t)(n + 1) * 4);
    assert_non_null(full);
    for (int64_t i = 0; host && i < n; i++) {
        full[i] = (float)host[i];
        if (t == HOLA_BF16) ((uint16_t *)full)[i] = hl_to_bf16((float)host[i]);
    }
    struct raw_buffer b = raw_bytes(d, host ? full : NULL, n * (t == HOLA_BF16 ? 2 : 4));
    free(full);
    return b;
}
static inline double *raw_numbers_take(const struct dev *d, struct raw_buffer *b, int64_t n, hola_dtype t,
                                       const char *name) {
    void *x = raw_take(d, b, name);
    double *to = malloc((size_t)(n + 1) * sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < n; i++)
        to[i] = t == HOLA_BF16 ? (double)hl_from_bf16(((uint16_t *)x)[i]) : (double)((float *)x)[i];
    free(x);
    return to;
}

/* Uniform numbers, exactly as `t` holds them. */
static inline double *raw_random(int64_t n, double lo, double hi, uint64_t seed, hola_dtype t) {
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        const float y = (float)check_uniform(&seed, lo, hi);
        x[i] = t == HOLA_BF16 ? (double)hl_from_bf16(hl_to_bf16(y)) : (double)y;
    }
    return x;
}

/* The distance of `got` from `want`, both [rows][heads][width], in units of the tolerance: relative and root mean
 * square, over everything (allowed: tol) and over any 64 rows of one head (6 tol). Heads and windows near zero are
 * measured against a hundredth of the mean. 1 or less is good; NaN is not. */
static inline double raw_distance(const double *got, const double *want, int64_t rows, int64_t heads, int64_t width,
                                  double tol) {
    double all = 0, off = 0, worst = 0;
    const int64_t windows = (rows + 63) / 64;
    for (int64_t i = 0; i < rows * heads * width; i++) {
        const double e = got[i] - want[i];
        if (e != e) return 1e30;
        all += want[i] * want[i], off += e * e;
    }
    if (all == 0) return off == 0 ? 0 : 1e30;
    const double least = 1e-4 * all / (double)(windows * heads);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t w = 0; w < windows; w++) {
            double x = 0, y = 0;
            for (int64_t r = 64 * w; r < rows && r < 64 * (w + 1); r++)
                for (int64_t i = 0; i < width; i++) {
                    const int64_t at = (r * heads + h) * width + i;
                    x += want[at] * want[at], y += (got[at] - want[at]) * (got[at] - want[at]);
                }
            worst = fmax(worst, sqrt(y / fmax(x, least)));
        }
    return fmax(sqrt(off / all) / tol, worst / (6 * tol));
}

/* One result of a call, [rows][heads][width], and what it should be. */
struct raw_result {
    const char *name;
    struct raw_buffer *buffer;
    const double *want;
    int64_t rows, heads, width;
    double tol; /* of bf16 */
    bool half;  /* of the call's type; else float */
    bool there; /* asked for */
};

/* Takes n results of a call of type t; one that was not asked for must be untouched. */
static inline void raw_results_take(const struct dev *d, const struct raw_result *r, int n, hola_dtype t,
                                    const char *what, double **got) {
    for (int i = 0; i < n; i++) {
        const int64_t size = r[i].rows * r[i].heads * r[i].width;
        got[i] = raw_numbers_take(d, r[i].buffer, size, r[i].half ? t : HOLA_F32, r[i].name);
        for (int64_t j = 0; j < size && !r[i].there; j++)
            if (got[i][j] == got[i][j]) fail_msg("%s: %s was written", what, r[i].name);
    }
}
/* The distance of the worst result, in units of the tolerance. quiet: else one that is too far off fails. */
static inline double raw_results_distance(const struct raw_result *r, int n, hola_dtype t, const char *what,
                                          double *const *got, bool quiet) {
    double worst = 0;
    for (int i = 0; i < n; i++) {
        if (!r[i].there) continue;
        const double tol = t == HOLA_F32 ? 2e-4 : r[i].tol;
        const double e = raw_distance(got[i], r[i].want, r[i].rows, r[i].heads, r[i].width, tol);
        if (getenv("RAW_PRINT")) print_message("  %-22s %-8s %.3f\n", what, r[i].name, e);
        if (!quiet && !(e <= 1)) fail_msg("%s: %s is %.3g times as far off as allowed", what, r[i].name, e);
        worst = fmax(worst, e);
    }
    return worst;
}
static inline void raw_results_free(double **got, int n) {
    for (int i = 0; i < n; i++) free(got[i]);
}

static inline hola_where raw_where(const struct dev *d, const struct raw_buffer *work) {
    struct hl_cuda *c = d->backend->device;
    return (hola_where){.size = sizeof(hola_where),
                        .device = c->index < 0 ? 0 : c->index,
                        .stream = c->stream,
                        .work = work->p,
                        .work_bytes = work->bytes};
}
#endif
