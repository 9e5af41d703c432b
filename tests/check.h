/* check.h -- shared test code: random fills, guarded buffers, comparisons that can fail. */
#ifndef HL_CHECK_H
#define HL_CHECK_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above */
#include <cmocka.h>
#include "backend/backend.h"
#include "core/real.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers: the same in every run ---- */

static inline uint64_t check_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static inline double check_uniform(uint64_t *seed, double lo, double hi) {
    *seed += 0x9e3779b97f4a7c15u;
    return lo + (hi - lo) * (double)(check_mix(*seed) >> 11) * 0x1p-53;
}
static inline void check_fill(real *x, int64_t n, double lo, double hi, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) x[i] = (real)check_uniform(&seed, lo, hi);
}

/* ---- buffers: outputs start as NaN, with a guard band on both sides ---- */

enum { CHECK_GUARD = 64 };
static inline real *check_new(int64_t n) {
    real *p = malloc((size_t)(n + 2 * CHECK_GUARD) * sizeof(real));
    assert_non_null(p);
    for (int64_t i = 0; i < n + 2 * CHECK_GUARD; i++) p[i] = (real)NAN;
    for (int64_t i = 0; i < CHECK_GUARD; i++) p[i] = p[CHECK_GUARD + n + i] = (real)12345.5;
    return p + CHECK_GUARD;
}
static inline real *check_zero(int64_t n) {
    real *p = check_new(n);
    memset(p, 0, (size_t)n * sizeof(real));
    return p;
}
static inline real *check_random(int64_t n, double lo, double hi, uint64_t seed) {
    real *p = check_new(n);
    check_fill(p, n, lo, hi, seed);
    return p;
}
static inline void check_poison(real *p, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = (real)NAN;
}
/* frees; fails if the guard bands were overwritten */
static inline void check_free(real *p, int64_t n) {
    for (int64_t i = 0; i < CHECK_GUARD; i++)
        if (p[-1 - i] != (real)12345.5 || p[n + i] != (real)12345.5)
            fail_msg("write outside a buffer of %lld", (long long)n);
    free(p - CHECK_GUARD);
}

/* ---- comparisons ---- */

/* Worst relative distance |a-b| / |b| over windows of 64 rows of `width` (not the mean, so that a single wrong row
 * shows). Windows whose norm is below 1e-3 of the whole are measured against that floor. NaN counts as 1e30. */
static inline double check_distance(const real *a, const real *b, int64_t rows, int64_t width) {
    double worst = 0, all = 0;
    for (int64_t i = 0; i < rows * width; i++) all += (double)b[i] * (double)b[i];
    double floor2 = all * 1e-6 / (double)((rows + 63) / 64) + 1e-300;
    for (int64_t r = 0; r < rows; r += 64) {
        double num = 0, den = 0;
        int64_t end = (r + 64 < rows ? r + 64 : rows) * width;
        for (int64_t i = r * width; i < end; i++) {
            double d = (double)a[i] - (double)b[i];
            num += d * d;
            den += (double)b[i] * (double)b[i];
        }
        double e = sqrt(num / (den > floor2 ? den : floor2));
        if (!(e <= worst)) worst = e == e ? e : 1e30;
    }
    return worst;
}
#define CHECK_NEAR(got, want, rows, width, tol, ...)                                                   \
    do {                                                                                               \
        double check_e = check_distance(got, want, rows, width);                                       \
        if (!(check_e <= (tol))) {                                                                     \
            print_error(__VA_ARGS__);                                                                  \
            fail_msg(": %s is %.3g away from %s (allowed %.3g)", #got, check_e, #want, (double)(tol)); \
        }                                                                                              \
    } while (0)
/* a deliberately wrong version must be caught */
#define CHECK_FAR(got, want, rows, width, tol)                                         \
    do {                                                                               \
        double check_e = check_distance(got, want, rows, width);                       \
        if (check_e <= (tol)) fail_msg("a wrong %s passes: %.3g away", #got, check_e); \
    } while (0)
#define CHECK_OK(call)                                                                                       \
    do {                                                                                                     \
        hola_status check_s = (call);                                                                        \
        if (check_s != HOLA_OK) fail_msg("%s: %s: %s", #call, hola_status_text(check_s), hola_last_error()); \
    } while (0)

/* ---- finite differences (double builds) ---- */

typedef double (*check_fn)(void *ctx);
/* Compares dx with central differences of f over x, at at most 64 evenly spread entries; the error is measured against
 * the largest derivative seen. Returns the worst one. */
static inline double check_gradient(check_fn f, void *ctx, real *x, const real *dx, int64_t n, double step) {
    int64_t stride = n > 64 ? n / 64 : 1;
    double worst = 0, scale = 1e-8;
    for (int64_t i = 0; i < n; i++) scale = fmax(scale, fabs((double)dx[i]));
    for (int64_t i = 0; i < n; i += stride) {
        real keep = x[i];
        double hi, lo, h = step * fmax(1.0, fabs((double)keep));
        x[i] = (real)(keep + h);
        hi = f(ctx);
        x[i] = (real)(keep - h);
        lo = f(ctx);
        x[i] = keep;
        double e = fabs((hi - lo) / (2 * h) - (double)dx[i]) / scale;
        if (!(e <= worst)) worst = e == e ? e : 1e30;
    }
    return worst;
}
#define CHECK_GRADIENT(f, ctx, x, dx, n, tol)                                                  \
    do {                                                                                       \
        double check_e = check_gradient(f, ctx, x, dx, n, 1e-5);                               \
        if (!(check_e <= (tol))) fail_msg("%s: off finite differences by %.3g", #dx, check_e); \
    } while (0)

/* The same along random directions of +1 and -1: two evaluations detect an error in any of the n numbers, whereas
 * check_gradient, at two per number, samples some. Relative to the typical derivative along such a direction. */
static inline double check_directions(check_fn f, void *ctx, real *x, const real *dx, int64_t n, int directions) {
    const double step = 1e-4 / sqrt((double)n);
    real *keep = malloc((size_t)n * sizeof *keep);
    double worst = 0, norm = 0;
    uint32_t random = 1;
    assert_non_null(keep);
    memcpy(keep, x, (size_t)n * sizeof *keep);
    for (int64_t i = 0; i < n; i++) norm += (double)dx[i] * (double)dx[i];
    for (int d = 0; d < directions; d++) {
        const uint32_t seed = random;
        double value[2], want = 0;
        for (int side = 0; side < 2; side++) {
            random = seed;
            for (int64_t i = 0; i < n; i++) {
                random = random * 1664525u + 1013904223u;
                const double sign = random >> 31 ? 1 : -1;
                x[i] = (real)(keep[i] + (side ? -sign : sign) * step);
                if (side == 0) want += sign * (double)dx[i];
            }
            value[side] = f(ctx);
        }
        const double e = fabs((value[0] - value[1]) / (2 * step) - want) / fmax(sqrt(norm), 1e-8);
        if (!(e <= worst)) worst = e == e ? e : 1e30;
    }
    memcpy(x, keep, (size_t)n * sizeof *keep);
    free(keep);
    return worst;
}

/* ---- threads, and a backend for CPU ops ---- */

static inline struct hl_pool *check_pool(int threads, int64_t scratch) {
    struct hl_pool *p = NULL;
    CHECK_OK(hl_pool_new(&p, threads));
    CHECK_OK(hl_pool_reserve(p, scratch));
    return p;
}

static inline struct hl_backend *check_backend_open(int threads, int64_t scratch) {
    struct hl_backend *b = NULL;
    CHECK_OK(hl_backend_open(&b, "cpu-ref", threads));
    CHECK_OK(hl_backend_reserve(b, scratch));
    return b;
}

/* the fast backends of this machine, to loop over: for (int b = 0; check_backend(b); b++) */
static inline const char *check_backend(int i) {
#ifdef HL_DOUBLE
    static const char *const names[] = {"cpu-base", NULL};
#else
    static const char *const names[] = {"cpu-base", "cpu-avx2", "cpu-avx512", "cpu-neon", NULL};
#endif
    return names[i];
}

#endif
