/* test_lte.c -- the learned score: every backend against the reference and against its definition; blocks that a
 * session completes piece by piece; threads and neighbours in the batch. */
#include "lte_case.h"

static struct hl_backend *one, *three;
static const double tol = 2e-5;

static const struct lte_shape shapes[] = {{4, 16, 1, 1, 16, 16, 16}, {6, 7, 2, 4, 24, 40, 5},
                                          {4, 1, 1, 2, 8, 8, 3},     {64, 256, 1, 2, 64, 64, 16},
                                          {4, 33, 1, 3, 10, 6, 64},  {0, 8, 1, 2, 128, 128, 16}};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static struct lte_batch *mixed(struct lte_shape s, uint64_t seed) {
    const int64_t C = s.chunk, len[] = {2 * C + 7, 1, C - 1 + (C == 1), C, C + 1};
    return lte_new(s, len, 5, seed);
}

static void test_against_ref(void **state) {
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        struct lte_batch *want = mixed(shapes[i], 3), *got = mixed(shapes[i], 3);
        lte_run(want, "cpu-ref", one, true);
        for (int j = 0; check_backend(j); j++) {
            if (!hl_ops_named(check_backend(j))) continue;
            lte_clear(got);
            lte_run(got, check_backend(j), three, true);
            lte_near(got, want, tol, check_backend(j));
        }
        lte_free(want);
        lte_free(got);
    }
}

/* ---- the definition, channel by channel ---- */

enum wrong { RIGHT, NO_NORM, NEXT_NEIGHBOUR, ACROSS_BLOCKS, SCORES_OPEN };

static double silu(double x) { return x / (1 + exp(-x)); }
/* u, or 0 outside of what row `j` of the segment sees of a block that begins at `first` */
static double plain_u(const struct lte_batch *b, const struct hl_seg *g, int64_t h, int64_t c, int64_t first, int64_t j,
                      enum wrong wrong) {
    const struct lte_shape *s = &b->s;
    const real *k = b->k + ((g->row + j) * s->H + h * s->H / s->HV) * s->K,
               *v = b->v + ((g->row + j) * s->HV + h) * s->V;
    const real *w = b->weight[LTE_IN] + (h * s->r + c) * (s->K + s->V);
    double sum = 0, squares = 0;
    if (j < 0 || j >= g->len) return 0;
    if (wrong != ACROSS_BLOCKS && (j < first || j >= first + s->chunk)) return 0;
    for (int64_t i = 0; i < s->V; i++) squares += (double)v[i] * (double)v[i];
    const double norm = wrong == NO_NORM ? 1 : 1 / sqrt(squares / (double)s->V + 1e-5);
    for (int64_t i = 0; i < s->K; i++) sum += (double)w[i] * (double)k[i];
    for (int64_t i = 0; i < s->V; i++) sum += (double)w[s->K + i] * (double)v[i] * norm;
    return sum;
}
static double plain_a(const struct lte_batch *b, const struct hl_seg *g, int64_t h, int64_t c, int64_t first, int64_t j,
                      enum wrong wrong) {
    const int64_t step = wrong == NEXT_NEIGHBOUR ? 1 : 2, at = h * b->s.r + c;
    double x = (double)b->weight[LTE_BIAS1][at];
    if (j < first || j >= first + b->s.chunk) return 0;
    for (int64_t i = -1; i <= 1; i++)
        x += (double)b->weight[LTE_CONV1][at * 3 + i + 1] * plain_u(b, g, h, c, first, j + step * i, wrong);
    return silu(x);
}
static void plain_scores(const struct lte_batch *b, real *score, enum wrong wrong) {
    const struct lte_shape *s = &b->s;
    for (const struct hl_seg *g = b->seg; g < b->seg + b->rows.n; g++)
        for (int64_t j = 0; j < g->len; j++)
            for (int64_t h = 0; h < s->HV; h++) {
                const int64_t first = j / s->chunk * s->chunk;
                double z = (double)b->weight[LTE_BIAS_OUT][h];
                for (int64_t c = 0; c < s->r; c++) {
                    double x = (double)b->weight[LTE_BIAS2][h * s->r + c];
                    for (int64_t i = -1; i <= 1; i++)
                        x += (double)b->weight[LTE_CONV2][(h * s->r + c) * 3 + i + 1] *
                             plain_a(b, g, h, c, first, j + 2 * i, wrong);
                    z += (double)b->weight[LTE_OUT][h * s->r + c] * silu(x);
                }
                if (first + s->chunk > g->len && wrong != SCORES_OPEN) z = 0;
                score[(g->row + j) * s->HV + h] = (real)z;
            }
}
static void test_definition(void **state) {
    const struct lte_shape s = {4, 16, 1, 2, 12, 8, 5};
    struct lte_batch *b = mixed(s, 7);
    real *want = check_new(b->ns);
    (void)state;
    for (int i = -1; i < 0 || check_backend(i); i++) {
        const char *who = i < 0 ? "cpu-ref" : check_backend(i);
        if (!hl_ops_named(who)) continue;
        for (int w = RIGHT; w <= SCORES_OPEN; w++) {
            lte_clear(b);
            lte_run(b, who, one, false);
            plain_scores(b, want, (enum wrong)w);
            if (w == RIGHT) CHECK_NEAR(b->score, want, b->T, s.HV, tol, "%s", who);
            else CHECK_FAR(b->score, want, b->T, s.HV, 1e-2);
        }
    }
    check_free(want, b->ns);
    lte_free(b);
}

/* ---- sessions: the rows of the open block are in the state, as the exact memory leaves them there ---- */

static void put_row(char *rows, int64_t slot, int64_t n, const real *from, hola_dtype type) {
    uint16_t *half = (uint16_t *)(void *)rows + slot * n;
    if (type != HOLA_F16) memcpy((real *)(void *)rows + slot * n, from, (size_t)n * sizeof(real));
    else
        for (int64_t i = 0; i < n; i++) half[i] = hl_cache_to_f16(from[i]);
}
/* Returns the largest distance from `want`. */
static double feed(const struct lte_batch *b, const char *who, int64_t size, const real *want) {
    const struct lte_shape *s = &b->s;
    const struct hl_cache_layout l =
        hl_cache_layout(s->K, s->V, s->window, s->chunk, hl_cache_row_size(b->a.row_dtype), false);
    double worst = 0;
    char *state = aligned_alloc(64, (size_t)(s->HV * l.bytes));
    struct hl_lte a = b->a;
    assert_non_null(state);
    memset(state, 0xff, (size_t)(s->HV * l.bytes));
    for (int64_t t = 0; t < b->T; t += size) {
        struct hl_seg g = {.row = t, .len = size < b->T - t ? size : b->T - t, .pos = t, .state = state};
        struct hl_rows rows = {.T = b->T, .n = 1, .seg = &g};
        const int64_t end = t + g.len, last = end / s->chunk * s->chunk, open = t / s->chunk * s->chunk;
        a.rows = &rows;
        check_poison(b->score + t * s->HV, g.len * s->HV);
        hl_ops_named(who)->lte_forward(one, &a);
        for (int64_t j = last > t ? open : end; j < last; j++) /* all rows of complete blocks, wherever they are */
            for (int64_t h = 0; h < s->HV; h++) {
                const real *slots = (const real *)(const void *)(state + h * l.bytes + l.score) + s->window;
                const real got = j < t ? slots[j - open] : b->score[j * s->HV + h], x = want[j * s->HV + h];
                worst = fmax(worst, fabs((double)(got - x)) / (1 + fabs((double)x)));
                assert_true(got == got);
            }
        for (int64_t j = last > t ? last : t; j < end; j++) /* rows that stay open */
            for (int64_t h = 0; h < s->HV; h++) {
                const int64_t slot = s->window + j % s->chunk, hk = h * s->H / s->HV;
                char *head = state + h * l.bytes;
                assert_true(b->score[j * s->HV + h] == 0);
                put_row(head + l.k, slot, s->K, b->k + (j * s->H + hk) * s->K, a.row_dtype);
                put_row(head + l.v, slot, s->V, b->v + (j * s->HV + h) * s->V, a.row_dtype);
            }
    }
    free(state);
    return worst;
}
static void round_rows(real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = (real)hl_from_f16(hl_cache_to_f16(x[i]));
}
/* Rows of reals; rows in F16, which give the scores of rounded rows, and not those of the others. */
static void test_sessions(void **state) {
    static const int64_t sizes[] = {1, 3, 7, 17, 1 << 20};
    (void)state;
    for (int n = 0; n < SHAPES; n++) {
        const int64_t T = 4 * shapes[n].chunk + 3;
        struct lte_batch *b = lte_new(shapes[n], &T, 1, 23);
        struct lte_batch *rounded = lte_new(shapes[n], &T, 1, 23);
        real *want[] = {check_new(b->ns), check_new(b->ns)};
        round_rows(rounded->k, b->nk), round_rows(rounded->v, b->nv);
        for (int half = 0; half < 2; half++) {
            lte_run(half ? rounded : b, "cpu-ref", one, false);
            memcpy(want[half], half ? rounded->score : b->score, (size_t)b->ns * sizeof(real));
        }
        for (int i = -1; i < 0 || check_backend(i); i++)
            for (int c = 0; c < 10; c++) {
                const char *who = i < 0 ? "cpu-ref" : check_backend(i);
                const int half = c >= 5;
                if (!hl_ops_named(who)) continue;
                b->a.row_dtype = half ? HOLA_F16 : HOLA_F32;
                const double e = feed(b, who, sizes[c % 5], want[half]),
                             other = feed(b, who, sizes[c % 5], want[!half]);
                if (!(e <= tol))
                    fail_msg("%s: %s, pieces of %d: %g away", who, half ? "F16" : "reals", (int)sizes[c % 5], e);
                if (!(other > tol && other > 4 * e)) fail_msg("%s: unrounded rows pass: %g away", who, other);
            }
        check_free(want[0], b->ns), check_free(want[1], b->ns);
        lte_free(b), lte_free(rounded);
    }
}

/* the bits of a segment do not depend on threads or on the others */
static void test_bits(void **state) {
    (void)state;
    for (int i = 0; check_backend(i); i++) {
        const struct lte_shape s = {6, 20, 2, 4, 24, 40, 5};
        const char *who = check_backend(i);
        if (!hl_ops_named(who)) continue;
        struct lte_batch *x = mixed(s, 5), *y = mixed(s, 5), *alone = lte_new(s, &x->seg[4].len, 1, 5);
        lte_run(x, who, one, true);
        lte_run(y, who, three, true);
        assert_memory_equal(x->score, y->score, (size_t)x->ns * sizeof(real));
        assert_memory_equal(x->dk, y->dk, (size_t)x->nk * sizeof(real));
        assert_memory_equal(x->dv, y->dv, (size_t)x->nv * sizeof(real));
        for (int n = 0; n < LTE_WEIGHTS; n++)
            assert_memory_equal(x->grad[n], y->grad[n], (size_t)lte_count(x, n) * sizeof(real));
        const int64_t at = x->seg[4].row;
        memcpy(alone->k, x->k + at * s.H * s.K, (size_t)alone->nk * sizeof(real));
        memcpy(alone->v, x->v + at * s.HV * s.V, (size_t)alone->nv * sizeof(real));
        lte_run(alone, who, three, false);
        assert_memory_equal(alone->score, x->score + at * s.HV, (size_t)alone->ns * sizeof(real));
        lte_free(x), lte_free(y), lte_free(alone);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_ref), cmocka_unit_test(test_definition),
                                       cmocka_unit_test(test_sessions), cmocka_unit_test(test_bits)};
    int failed;
    one = check_backend_open(1, hl_lte_scratch(256, 64, 128, 128));
    three = check_backend_open(3, hl_lte_scratch(256, 64, 128, 128));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    hl_backend_close(one);
    hl_backend_close(three);
    return failed;
}
