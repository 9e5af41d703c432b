/* gemm_peak.c -- speed of a large matrix product on this machine, the reference for a step's speed. */
#define _POSIX_C_SOURCE 200809L
#include "core/clock.h"
#include "core/half.h"
#include "model/model.h"
#include "train/train.h"
#include <stdlib.h>
#include <string.h>

double hl_gemm_peak(hola_model *m) {
    const int64_t N = m->backend->host ? 1024 : 8192, bytes = N * N * m->backend->act_size;
    char *x = hl_alloc(m->backend, 3 * bytes);
    unsigned char *pattern = malloc((size_t)bytes); /* the same for both operands */
    double best = 0;
    if (x && pattern && strcmp(m->backend->ops.name, "cpu-ref") != 0) {
        struct hl_linear a = {.M = N, .K = N, .x = x, .n = 1};
        a.part[0].W = (struct hl_weight){.data = x + bytes, .layout = HL_ROWS, .rows = N, .cols = N};
        a.part[0].W.dtype = m->backend->act_size == 2 ? HOLA_BF16 : HOLA_F32;
        a.part[0].out = x + 2 * bytes;
        for (int64_t i = 0; i < N * N; i++)
            if (m->backend->act_size == 2) ((uint16_t *)pattern)[i] = hl_to_bf16((float)(i % 251) * 0.01f - 1);
            else ((real *)pattern)[i] = (real)(i % 251) * (real)0.01 - 1;
        hl_put(m->backend, x, pattern, bytes);
        hl_put(m->backend, x + bytes, pattern, bytes);
        const double begun = hl_clock();
        for (int i = 0; i < 4 && (i == 0 || hl_clock() - begun < 0.2); i++) { /* a slow machine runs it once */
            hl_finish(m->backend);
            double t = hl_clock();
            m->backend->ops.linear_forward(m->backend, &a);
            hl_finish(m->backend);
            t = hl_clock() - t;
            if (2.0 * (double)(N * N * N) / t > best) best = 2.0 * (double)(N * N * N) / t;
        }
    }
    hl_release(m->backend, x);
    free(pattern);
    return best;
}
