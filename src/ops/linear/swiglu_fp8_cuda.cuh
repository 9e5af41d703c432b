/* swiglu_fp8_cuda.cuh -- SwiGLU's output, and its gradients, as both forms of FP8 (fp8.h) and as nothing else: what is
 * computed is not written in bf16 and not read again. The codes are those of the results rounded to bf16.
 *
 * Grid: tiles of 128 x 128 of gate; 512 threads, each with 4 x 8 numbers of gate and up, for the gradients of dy, too. In
 * the matrix of both gradients, gate's are the first half of a row. */
#ifndef HL_SWIGLU_FP8_CUDA_CUH
#define HL_SWIGLU_FP8_CUDA_CUH
#include "ops/linear/fp8_tile_cuda.cuh"
#include "ops/swiglu/swiglu_cuda.cuh"

struct swiglu_source {
    const act *gate, *up, *dy;
    uint32_t ld, D, row0; /* ld: of gate and up; row0: the first row of this launch */
};

enum { SWIGLU_ROWS = 4, SWIGLU_THREADS = fp8_tile<SWIGLU_ROWS>::THREADS }; /* rows of a patch */

static __global__ void __launch_bounds__(SWIGLU_THREADS, 2)
    swiglu_output_fp8(struct swiglu_source a, struct fp8_forms f) {
    __shared__ struct fp8_tile<SWIGLU_ROWS> s;
    const struct fp8_place at = fp8_place_of<SWIGLU_ROWS>(a.row0);
    const int64_t first = (int64_t)at.i * a.ld + at.j;
    const bool in = at.i < f.rows && at.j < f.cols;
    uint32_t g[SWIGLU_ROWS][FP8_PAIRS], u[SWIGLU_ROWS][FP8_PAIRS];
    fp8_load<SWIGLU_ROWS>(g, a.gate + first, a.ld, in);
    fp8_load<SWIGLU_ROWS>(u, a.up + first, a.ld, in);
#pragma unroll
    for (int p = 0; p < SWIGLU_ROWS; p++)
#pragma unroll
        for (int k = 0; k < FP8_PAIRS; k++)
            g[p][k] = pack2(swiglu(low(g[p][k]), low(u[p][k])), swiglu(high(g[p][k]), high(u[p][k])));
    fp8_make_tile<SWIGLU_ROWS, HL_E4M3>(g, &s, at.i0, at.j0, f);
}

static __global__ void __launch_bounds__(SWIGLU_THREADS, 2)
    swiglu_gradients_fp8(struct swiglu_source a, struct fp8_forms f) {
    __shared__ struct fp8_tile<SWIGLU_ROWS> s;
    const struct fp8_place at = fp8_place_of<SWIGLU_ROWS>(a.row0);
    const int64_t first = (int64_t)at.i * a.ld + at.j;
    uint32_t g[SWIGLU_ROWS][FP8_PAIRS], u[SWIGLU_ROWS][FP8_PAIRS], dy[SWIGLU_ROWS][FP8_PAIRS];
    fp8_load<SWIGLU_ROWS>(g, a.gate + first, a.ld, at.i < f.rows);
    fp8_load<SWIGLU_ROWS>(u, a.up + first, a.ld, at.i < f.rows);
    fp8_load<SWIGLU_ROWS>(dy, a.dy + (int64_t)at.i * a.D + at.j, a.D, at.i < f.rows);
#pragma unroll
    for (int p = 0; p < SWIGLU_ROWS; p++)
#pragma unroll
        for (int k = 0; k < FP8_PAIRS; k++) {
            float g0 = low(g[p][k]), g1 = high(g[p][k]), u0 = low(u[p][k]), u1 = high(u[p][k]);
            swiglu_gradients(&g0, &u0, low(dy[p][k])), swiglu_gradients(&g1, &u1, high(dy[p][k]));
            g[p][k] = pack2(g0, g1), u[p][k] = pack2(u0, u1);
        }
    fp8_make_tile<SWIGLU_ROWS, HL_FP8_GRADIENTS>(g, &s, at.i0, at.j0, f);
    fp8_make_tile<SWIGLU_ROWS, HL_FP8_GRADIENTS>(u, &s, at.i0, (int)a.D + at.j0, f);
}

/* ---- launches ---- */

static bool swiglu_is_wide(const struct hl_swiglu *s) {
    return s->ld % WIDE == 0 && s->D % WIDE == 0 &&
           ((uintptr_t)s->gate | (uintptr_t)s->up | (uintptr_t)s->dy) % 16 == 0;
}
static void swiglu_launch(struct hl_cuda *c, const struct hl_swiglu *s,
                          void (*kernel)(struct swiglu_source, struct fp8_forms), int64_t cols, struct fp8_form by_rows,
                          struct fp8_form by_columns) {
    const struct fp8_forms f = {(int)s->M, (int)cols, by_rows.codes, by_columns.codes, by_rows.scale, by_columns.scale};
    const struct swiglu_source from = {(const act *)s->gate, (const act *)s->up,
                                       (const act *)s->dy,   (uint32_t)(s->ld ? s->ld : s->D),
                                       (uint32_t)s->D,       0};
    fp8_launch(c, kernel, SWIGLU_THREADS, FP8_SIDE, hl_pieces(s->D, FP8_SIDE), from, &f);
}
static void swiglu_output(struct hl_cuda *c, const struct hl_swiglu *s, struct fp8_form by_rows,
                          struct fp8_form by_columns) {
    swiglu_launch(c, s, swiglu_output_fp8, s->D, by_rows, by_columns);
}
/* D: a multiple of 128 */
static void swiglu_gradients(struct hl_cuda *c, const struct hl_swiglu *s, struct fp8_form by_rows,
                             struct fp8_form by_columns) {
    swiglu_launch(c, s, swiglu_gradients_fp8, 2 * s->D, by_rows, by_columns);
}

#endif
