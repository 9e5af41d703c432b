/* rope_cpu.c -- rotary positions, parallel over blocks of rows: cosines and sines of a row once for all heads. */
#include "ops/ops.h"
#include "ops/simd.h"

enum {
    ROWS = 32,   /* rows of one task */
    SMALL = 4096 /* below this many numbers, use one thread */
};

struct turn {
    const struct hl_rope *a;
    struct hl_pool *pool;
    const real *x;
    real *y;
    real sign;
    int64_t tasks;
};

static inline void turn_head(const real *x, real *y, const real *cs, int64_t half) {
    int64_t i = 0;
    for (; i + VL <= half; i += VL) {
        const vr lo = v_load(x + i), hi = v_load(x + half + i), c = v_load(cs + i), s = v_load(cs + half + i);
        v_store(y + i, lo * c - hi * s);
        v_store(y + half + i, lo * s + hi * c);
    }
    if (i < half) {
        const int64_t n = half - i;
        const vr lo = v_load_n(x + i, n), hi = v_load_n(x + half + i, n);
        const vr c = v_load_n(cs + i, n), s = v_load_n(cs + half + i, n);
        v_store_n(y + i, lo * c - hi * s, n);
        v_store_n(y + half + i, lo * s + hi * c, n);
    }
}

static void task(void *ctx, int64_t i, int worker) {
    const struct turn *j = ctx;
    const struct hl_rope *a = j->a;
    const int64_t half = a->D / 2, width = a->H * a->D;
    real *speed = hl_pool_scratch(j->pool, worker, hl_rope_scratch(a->D)), *cs = speed + half;
    int64_t n = 0;
    while (i >= hl_pieces(a->rows->seg[n].len, ROWS)) i -= hl_pieces(a->rows->seg[n++].len, ROWS);
    const struct hl_seg *s = &a->rows->seg[n];
    const int64_t end = (i + 1) * ROWS < s->len ? (i + 1) * ROWS : s->len;
    for (int64_t c = 0; c < half; c++) speed[c] = (real)pow(a->theta, -2.0 * (double)c / (double)a->D);
    for (int64_t t = i * ROWS; t < end; t++) {
        for (int64_t c = 0; c < half; c++) {
            const real angle = (real)(s->pos + t) * speed[c];
            cs[c] = R_COS(angle);
            cs[half + c] = R_SIN(angle) * j->sign;
        }
        for (int64_t h = 0; h < a->H; h++) {
            const int64_t at = (s->row + t) * width + h * a->D;
            turn_head(j->x + at, j->y + at, cs, half);
        }
    }
}

static void all_tasks(void *ctx, int64_t i, int worker) {
    const struct turn *j = ctx;
    for (i = 0; i < j->tasks; i++) task(ctx, i, worker);
}

static void turn(struct hl_backend *backend, struct turn *j) {
    j->pool = hl_backend_pool(backend);
    HL_ASSERT(j->a->D % 2 == 0);
    for (int64_t n = 0; n < j->a->rows->n; n++) j->tasks += hl_pieces(j->a->rows->seg[n].len, ROWS);
    if (j->a->rows->T * j->a->H * j->a->D > SMALL) hl_pool_run(j->pool, j->tasks, task, j);
    else hl_pool_run(j->pool, 1, all_tasks, j);
}

void HL_OP(rope_forward)(struct hl_backend *backend, const struct hl_rope *a) {
    turn(backend, &(struct turn){.a = a, .x = a->x, .y = a->y, .sign = 1});
}
void HL_OP(rope_backward)(struct hl_backend *backend, const struct hl_rope *a) {
    turn(backend, &(struct turn){.a = a, .x = a->dy, .y = a->dx, .sign = -1});
}
