/* peak.c -- what this machine makes of a large matrix product: the yardstick of a step's speed. */
#define _POSIX_C_SOURCE 200809L
#include "model/model.h"
#include "train/train.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double hl_train_peak(hola_model *m) {
    enum { N = 1024 };
    const size_t bytes = (size_t)N * N * sizeof(real);
    real *x = aligned_alloc(64, bytes), *W = aligned_alloc(64, bytes), *y = aligned_alloc(64, bytes);
    double best = 0;
    if (x && W && y && strcmp(m->ops->name, "cpu-ref") != 0) {
        struct hl_linear a = {.M = N, .K = N, .x = x, .n = 1};
        for (int64_t i = 0; i < N * N; i++) x[i] = W[i] = (real)(i % 251) * (real)0.01 - 1;
        a.part[0].W = (struct hl_weight){.data = W, .layout = HL_ROWS, .rows = N, .cols = N};
        a.part[0].out = y;
        for (int i = 0; i < 4; i++) {
            double t = now();
            m->ops->linear_forward(m->pool, &a);
            t = now() - t;
            if (2.0 * N * N * N / t > best) best = 2.0 * N * N * N / t;
        }
    }
    free(x);
    free(W);
    free(y);
    return best;
}
