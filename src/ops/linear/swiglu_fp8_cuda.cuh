/* swiglu_fp8_cuda.cuh -- the gradients of SwiGLU as both forms of FP8 (fp8.h), and as nothing else: gate, up and dy are
 * read once and the gradients not written in bf16. Their codes are those of the gradients rounded to bf16.
 *
 * Grid: tiles of 128 x 128 of gate; 512 threads, each with 4 x 8 numbers of gate, up and dy, then of both gradients. In
 * the matrix of both gradients, gate's are the first half of a row. */
#ifndef HL_SWIGLU_FP8_CUDA_CUH
#define HL_SWIGLU_FP8_CUDA_CUH
#include "ops/linear/fp8_tile_cuda.cuh"
#include "ops/swiglu/swiglu_cuda.cuh"

extern "C" int hl_fp8_design;

struct swiglu_source {
    const act *gate, *up, *dy;
    uint32_t ld, D, row0; /* ld: of gate and up; row0: the first row of this launch */
};

template <int ROWS, int format>
static __global__ void __launch_bounds__(fp8_tile<ROWS>::THREADS, 2)
    swiglu_fp8(struct swiglu_source a, struct fp8_forms f) {
    __shared__ struct fp8_tile<ROWS> s;
    const struct fp8_lane l = fp8_lane_of();
    const int i0 = a.row0 + blockIdx.y * FP8_SIDE, j0 = blockIdx.x * FP8_SIDE;
    const int i = i0 + l.ty * ROWS, j = j0 + l.tx * FP8_EACH;
    const int64_t at = (int64_t)i * a.ld + j;
    uint32_t g[ROWS][FP8_PAIRS], u[ROWS][FP8_PAIRS], dy[ROWS][FP8_PAIRS];
    fp8_load<ROWS>(g, a.gate + at, a.ld, i < f.rows);
    fp8_load<ROWS>(u, a.up + at, a.ld, i < f.rows);
    fp8_load<ROWS>(dy, a.dy + (int64_t)i * a.D + j, a.D, i < f.rows);
#pragma unroll
    for (int p = 0; p < ROWS; p++)
#pragma unroll
        for (int k = 0; k < FP8_PAIRS; k++) {
            float g0 = low(g[p][k]), g1 = high(g[p][k]), u0 = low(u[p][k]), u1 = high(u[p][k]);
            swiglu_gradients(&g0, &u0, low(dy[p][k])), swiglu_gradients(&g1, &u1, high(dy[p][k]));
            g[p][k] = pack2(g0, g1), u[p][k] = pack2(u0, u1);
        }
    fp8_make_tile<ROWS, format>(g, &s, i0, j0, f);
    fp8_make_tile<ROWS, format>(u, &s, i0, (int)a.D + j0, f);
}

/* Whether the gradients of these parts, merged, are such a matrix. */
static bool fp8_fits_swiglu(const struct hl_linear *a, const bool *is_fp8, const struct hl_swiglu *s) {
    return a->n == 1 && is_fp8[0] && a->part[0].dout == s->dgate && a->part[0].W.rows == 2 * s->D && a->ld == s->ld &&
           s->dup == (act *)s->dgate + s->D && s->D % FP8_SIDE == 0 && s->ld % WIDE == 0 &&
           ((uintptr_t)s->gate | (uintptr_t)s->up | (uintptr_t)s->dy) % 16 == 0;
}
static void fp8_make_swiglu(struct hl_cuda *c, const struct hl_swiglu *s, const struct fp8_form *form,
                            const struct fp8_form *transposed) {
    const struct fp8_forms f = {(int)s->M,         2 * (int)s->D, form->codes,
                                transposed->codes, form->scale,   transposed->scale};
    const struct swiglu_source from = {(const act *)s->gate, (const act *)s->up, (const act *)s->dy,
                                       (uint32_t)s->ld,      (uint32_t)s->D,     0};
    if (hl_fp8_design == 0) fp8_launch(c, swiglu_fp8<4, HL_FP8_GRADIENTS>, 512, FP8_SIDE, s->D / FP8_SIDE, from, &f);
    else fp8_launch(c, swiglu_fp8<8, HL_FP8_GRADIENTS>, 256, FP8_SIDE, s->D / FP8_SIDE, from, &f);
}

#endif
