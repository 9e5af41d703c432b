/* rope_ref.c -- rotary positions as in rope.h: each pair separately. */
#include "ops/ops.h"

static void turn_row(const struct hl_rope *a, const real *x, real *y, int64_t t, int sign) {
    const int64_t half = a->D / 2;
    for (int64_t i = 0; i < half; i++) {
        const real angle = (real)t * (real)pow(a->theta, -2.0 * (double)i / (double)a->D);
        const real c = R_COS(angle), s = R_SIN(angle) * (real)sign;
        for (int64_t h = 0; h < a->H; h++) {
            const int64_t at = h * a->D + i;
            const real lo = x[at], hi = x[at + half]; /* y may be x */
            y[at] = lo * c - hi * s;
            y[at + half] = lo * s + hi * c;
        }
    }
}

static void turn(const struct hl_rope *a, const real *x, real *y, int sign) {
    const int64_t width = a->H * a->D;
    HL_ASSERT(a->D % 2 == 0);
    for (int64_t n = 0; n < a->rows->n; n++) {
        const struct hl_seg *s = &a->rows->seg[n];
        for (int64_t t = 0; t < s->len; t++)
            turn_row(a, x + (s->row + t) * width, y + (s->row + t) * width, s->pos + t, sign);
    }
}

void HL_OP(rope_forward)(struct hl_backend *backend, const struct hl_rope *a) {
    (void)backend;
    turn(a, a->x, a->y, 1);
}

void HL_OP(rope_backward)(struct hl_backend *backend, const struct hl_rope *a) {
    (void)backend;
    turn(a, a->dy, a->dx, -1);
}
