/* clock.h -- a monotonic clock. Define _POSIX_C_SOURCE 200809L before including it. */
#ifndef HL_CLOCK_H
#define HL_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline int64_t hl_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* seconds */
static inline double hl_clock(void) { return 1e-9 * (double)hl_clock_ns(); }

#endif
