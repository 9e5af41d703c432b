/* cuda_kda.c -- KDA on a device against the reference: shapes, lengths, gates, states carried across any cut, what is
 * kept for the backward pass, gradients, the same bits every time, mistakes that must be seen. */
#define _POSIX_C_SOURCE 200809L
#include "cuda_kda.h"
#include "cuda_older.h"

/* bf16: rounding the operands of each product leaves 2 to 4 parts in a thousand, 6 where beta reaches 2; dg is a small
 * difference of large sums in some windows */
static double tolerance(const struct dev *d, const char *name) {
    const bool gradient = name[0] == 'd';
    if (d->f32) return gradient ? 1e-4 : 1e-5;
    return !strcmp(name, "dg") ? 2e-2 : 8e-3;
}

static struct {
    const char *name;
    double far[2]; /* by build */
} worst[MAX_ARRAYS];
static void note(const struct dev *d, const char *name, double far) {
    int i = 0;
    while (worst[i].name && strcmp(worst[i].name, name)) i++;
    worst[i].name = name;
    worst[i].far[d->f32] = fmax(worst[i].far[d->f32], far);
}
static void check_arrays(const struct dev *d, const struct rc_shape *f, struct pw *got, struct pw *want,
                         bool gradients) {
    for (int i = 0; i < got->n; i++) {
        const struct array *x = &got->v[i], *y = &want->v[i];
        if (x->own || (x->name[0] == 'd' && !gradients)) continue;
        note(d, x->name, check_distance(x->p, y->p, x->rows, x->width));
        CHECK_NEAR(x->p, y->p, x->rows, x->width, tolerance(d, x->name), "%s " RC_FMT, x->name, RC_ARG(f));
    }
}

/* v_new (rows beta e) and A = (I + L)^-1 by their definitions */
static void keep_head(const struct pw *c, int64_t s, int64_t hv, real *v_new, real *A) {
    const struct hl_kda *a = &c->op.kda;
    const int64_t K = a->K, V = a->V, hk = hv / (a->HV / a->H);
    double *S = calloc((size_t)(K * V), sizeof *S), L[HL_CHUNK];
    assert_non_null(S);
    for (int64_t t = 0; t < c->seg[s].len; t++) {
        const int64_t row = c->seg[s].row + t, at = row * a->HV + hv, i = t % HL_CHUNK;
        const real *k = (const real *)a->k + (row * a->H + hk) * K;
        const double beta = (double)a->beta[at];
        double *decay = calloc((size_t)K, sizeof *decay);
        assert_non_null(decay);
        for (int64_t x = 0; x < K * V; x++) S[x] *= exp((double)a->g[at * K + x / V]);
        for (int64_t j = 0; j < V; j++) {
            double e = (double)((const real *)a->v)[at * V + j];
            for (int64_t x = 0; x < K; x++) e -= (double)k[x] * S[x * V + j];
            for (int64_t x = 0; x < K; x++) S[x * V + j] += beta * e * (double)k[x];
            v_new[at * V + j] = (real)(beta * e);
        }
        for (int64_t j = i - 1; j >= 0; j--) { /* L_ij, decays summed from i down */
            const real *kj = (const real *)a->k + ((row - i + j) * a->H + hk) * K;
            L[j] = 0;
            for (int64_t x = 0; x < K; x++) {
                decay[x] += (double)a->g[(at - (i - j - 1) * a->HV) * K + x];
                L[j] += beta * (double)k[x] * (double)kj[x] * exp(decay[x]);
            }
        }
        for (int64_t x = 0; x < HL_CHUNK; x++) {
            double sum = x == i;
            for (int64_t j = x; j < i; j++) sum -= L[j] * (double)A[(at - (i - j) * a->HV) * HL_CHUNK + x];
            A[at * HL_CHUNK + x] = (real)sum;
        }
        free(decay);
    }
    free(S);
}
static void check_kept(const struct dev *d, const struct rc_shape *f, struct pw *got, const struct pw *want,
                       bool chunks) {
    static const char *const names[] = {"v_new", "A"};
    const struct hl_kda *a = &want->op.kda;
    for (int64_t s = 0; s < want->rows.n; s++)
        for (int64_t hv = 0; hv < f->G; hv++) keep_head(want, s, hv, a->v_new, a->A);
    for (int i = 0; i < (chunks ? 2 : 1); i++) { /* the plain form keeps no A */
        const struct array *x = pw_get(got, names[i]), *y = pw_get((struct pw *)want, names[i]);
        note(d, x->name, check_distance(x->p, y->p, x->rows, x->width));
        CHECK_NEAR(x->p, y->p, x->rows, x->width, tolerance(d, x->name), "%s " RC_FMT, x->name, RC_ARG(f));
    }
}

/* A training pass with its gradients, and a session's pass. */
static void compare(const struct dev *d, const struct rc_shape *f, const int64_t *len, int64_t n, bool gradients) {
    for (int session = 0; session < 2; session++) {
        struct pw *want = kda_case(d, f, len, n, session), *got = kda_case(d, f, len, n, session);
        struct dev_kda x;
        dev_kda_open(d, &x, got, !session);
        d->ops->kda_forward(d->backend, &x.a);
        const bool chunks = !strcmp(dev_kda_form(d, &x.a), "scan");
        if (!session && gradients) d->ops->kda_backward(d->backend, &x.a);
        dev_kda_close(d, &x, got);
        kda_forward(hl_ops_named("cpu-ref"), NULL, want);
        if (!session && gradients) kda_backward(hl_ops_named("cpu-ref"), NULL, want);
        check_arrays(d, f, got, want, gradients);
        if (!session) check_kept(d, f, got, want, chunks);
        kda_drop(want);
        kda_drop(got);
    }
}

static void shapes(void **state) {
    static const int64_t size[][2] = {{64, 64},  {128, 128}, {16, 16},  {24, 40}, {64, 128},
                                      {128, 64}, {128, 256}, {80, 100}, {256, 64}};
    static const int64_t few[] = {1, 17, 65 + 64}, lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 200};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = 0; i < sizeof size / sizeof *size; i++)
            for (int64_t group = 1; group <= (size[i][0] <= 64 ? 2 : 1); group++) {
                const bool big = dev_slow(&d) && size[i][0] >= 64, huge = big && (size[i][1] > 128 || size[i][0] > 128);
                const struct rc_shape f = {1, group, size[i][0], size[i][1], 1, RC_RANDOM, -0.3, 0, 1};
                if (big && (group > 1 || f32) && i) continue;
                if (dev_least() && (f32 || group > 1) && i) continue;
                compare(&d, &f, big ? few : lengths,
                        huge  ? 2
                        : big ? 3
                              : (int64_t)(sizeof lengths / sizeof *lengths),
                        true);
            }
        dev_close(&d);
    }
}

/* decays of exactly 1, of next to nothing, and both together, which only the terms that are summed one by one get right
 */
static void gates(void **state) {
    static const struct {
        enum rc_gate gate;
        double lo;
    } gates[] = {{RC_CONSTANT, 0},   {RC_RANDOM, -0.001}, {RC_RANDOM, -5},     {RC_RANDOM, -60},
                 {RC_RESETS, -0.01}, {RC_RANDOM, -1e30},  {RC_CONSTANT, -200}, {RC_RANDOM, -12}};
    static const double beta[][2] = {{0, 1}, {0, 1e-4}, {0.999, 1}, {0, 2}};
    static const int64_t len[] = {150, 3, 65};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t g = 0; g < sizeof gates / sizeof *gates; g++)
            for (size_t b = 0; b < sizeof beta / sizeof *beta; b++) {
                const int64_t size = f32 ? 40 : 64;
                const struct rc_shape f = {1, 1, size, size, 1, gates[g].gate, gates[g].lo, beta[b][0], beta[b][1]};
                if ((dev_slow(&d) && b && (g + b) % 4) || (dev_least() && g + b)) continue;
                compare(&d, &f, len, 3, true);
            }
        dev_close(&d);
    }
}

/* Wide tiles of V need many segments; one of them is longer than the rings of buffers. */
static void tiles(void **state) {
    static const int64_t len[12] = {330, 66, 2, 3, 1, 1, 1, 1, 1, 1, 1, 1};
    (void)state;
    struct dev d = dev_open(false);
    for (int64_t K = 64; K <= 128; K *= 2) {
        const struct rc_shape f = {1, 8, K, 128, 1, RC_RANDOM, -0.1, 0, 1};
        if (!dev_slow(&d) || K == 64) compare(&d, &f, len, 12, !dev_slow(&d));
    }
    dev_close(&d);
}

/* Many sessions of a few tokens. */
static void short_segments(void **state) {
    static const int64_t len[] = {1, 8, 2, 1, 1, 5, 1};
    static const struct rc_shape shape[] = {{2, 4, 64, 64, 1, RC_RANDOM, -0.1, 0, 1},
                                            {2, 4, 128, 96, 1, RC_RANDOM, -2, 0, 1},
                                            {1, 2, 256, 256, 1, RC_RANDOM, -0.1, 0, 1}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) compare(&d, &shape[i], len, 7, false);
        dev_close(&d);
    }
}

/* A session: many tokens, then a few and one by one; the same as the whole at once. */
static void decode(void **state) {
    enum { T = 150 };
    static const int64_t cuts[][7] = {{0, 70, 71, 72, 76, 77, T}, {0, 1, 2, 66, 129, 130, T}}, len[] = {T};
    static const struct rc_shape shape[] = {{1, 2, 64, 64, 1, RC_RANDOM, -0.05, 0, 1},
                                            {1, 1, 128, 128, 1, RC_RANDOM, -0.5, 0, 1},
                                            {1, 1, 40, 24, 1, RC_RANDOM, -0.05, 0, 1}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = 0; i < 2 * sizeof shape / sizeof *shape; i++) {
            const struct rc_shape *f = &shape[i / 2];
            const int64_t *cut = cuts[i % 2];
            if (dev_slow(&d) && (f32 ? i != 4 : i == 3)) continue;
            struct pw *want = kda_case(&d, f, len, 1, true), *got = kda_case(&d, f, len, 1, true);
            struct dev_kda x;
            kda_forward(hl_ops_named("cpu-ref"), NULL, want);
            dev_kda_open(&d, &x, got, false);
            for (size_t p = 0; p < 6; p++) {
                const int64_t t = cut[p], qk = t * f->H * f->K * d.backend->act_size;
                const int64_t v = t * f->G * f->V * d.backend->act_size, b = t * f->G;
                struct hl_kda a = x.a;
                x.rows.T = x.seg[0].len = cut[p + 1] - t, x.seg[0].pos = t;
                CHECK_OK(d.backend->storage.cut_rows(d.backend, &x.rows, 64));
                a.q = (const char *)a.q + qk, a.k = (const char *)a.k + qk;
                a.v = (const char *)a.v + v, a.out = (char *)a.out + v;
                a.g += b * f->K, a.beta += b, a.m += b;
                d.ops->kda_forward(d.backend, &a);
            }
            dev_kda_close(&d, &x, got);
            check_arrays(&d, f, got, want, false);
            kda_drop(want);
            kda_drop(got);
        }
        dev_close(&d);
    }
}

/* Chips before Hopper: the plain form, of the head sizes that the chunked one takes. */
static void older(void **state) {
    static const int64_t len[3] = {66, 1, 30};
    static const struct rc_shape f = {1, 2, 64, 64, 1, RC_RANDOM, -0.1, 0, 1};
    (void)state;
    struct dev d = dev_open_older();
    compare(&d, &f, len, 3, true);
    dev_close_older(&d);
}

/* Decays of the neighbouring channel. */
static void shift_decays(const struct pw *c, const struct rc_shape *f) {
    real *g = (real *)c->op.kda.g, first = g[0];
    const int64_t n = c->rows.T * f->G * f->K;
    memmove(g, g + 1, (size_t)(n - 1) * sizeof *g);
    g[n - 1] = first;
}
/* The same bits again; and a pass with the decays of the neighbouring channel is far off. */
static void bits_and_mistakes(void **state) {
    static const int64_t len[] = {130, 20};
    static const struct rc_shape f = {1, 1, 64, 64, 1, RC_RANDOM, -1, 0, 1};
    (void)state;
    struct dev d = dev_open(false);
    struct pw *c[3];
    for (int i = 0; i < 3; i++) {
        struct dev_kda x;
        c[i] = kda_case(&d, &f, len, 2, false);
        if (i == 2) shift_decays(c[i], &f);
        dev_kda_open(&d, &x, c[i], true);
        d.ops->kda_forward(d.backend, &x.a);
        d.ops->kda_backward(d.backend, &x.a);
        dev_kda_close(&d, &x, c[i]);
    }
    for (int i = 0; i < c[0]->n; i++) {
        const struct array *x = &c[0]->v[i], *y = &c[1]->v[i], *z = &c[2]->v[i];
        if (!strcmp(x->name, "h")) continue;
        assert_memory_equal(x->p, y->p, (size_t)(x->rows * x->width) * sizeof(real));
        /* m is mostly the length of v */
        if (x->out) CHECK_FAR(z->p, x->p, x->rows, x->width, !strcmp(x->name, "m") ? 2e-3 : 0.02);
    }
    for (int i = 0; i < 3; i++) kda_drop(c[i]);
    dev_close(&d);
}

/* Operands kept by the forward pass give the bits of operands computed again; those of other decays are far off. */
static void kept_operands(void **state) {
    enum { AGAIN, KEPT, WRONG, WAYS };
    static const int64_t len[] = {130, 20};
    (void)state;
    struct dev d = dev_open(false);
    for (int64_t K = 64; K <= 128; K *= 2) {
        const struct rc_shape f = {1, 2, K, 64, 1, RC_RANDOM, -1, 0, 1};
        struct pw *c[WAYS];
        for (int i = 0; i < WAYS; i++) {
            struct dev_kda x, other;
            struct pw *shifted = kda_case(&d, &f, len, 2, false);
            shift_decays(shifted, &f);
            c[i] = kda_case(&d, &f, len, 2, false);
            dev_kda_open(&d, &other, shifted, true);
            d.ops->kda_forward(d.backend, &other.a);
            dev_kda_open(&d, &x, c[i], true);
            assert_true(x.a.tiles && x.rows.dev->chunks == 4);
            if (i != KEPT) x.a.tiles = NULL;
            d.ops->kda_forward(d.backend, &x.a);
            if (i == WRONG) x.a.tiles = other.a.tiles;
            d.ops->kda_backward(d.backend, &x.a);
            dev_kda_close(&d, &x, c[i]);
            dev_kda_close(&d, &other, shifted);
            kda_drop(shifted);
        }
        for (int i = 0; i < c[0]->n; i++) {
            const struct array *x = &c[AGAIN]->v[i], *y = &c[KEPT]->v[i], *z = &c[WRONG]->v[i];
            if (!strcmp(x->name, "h")) continue; /* a device has none */
            assert_memory_equal(x->p, y->p, (size_t)(x->rows * x->width) * sizeof(real));
            if (x->name[0] == 'd' && x->out) CHECK_FAR(z->p, x->p, x->rows, x->width, 0.02);
        }
        for (int i = 0; i < WAYS; i++) kda_drop(c[i]);
    }
    dev_close(&d);
}

/* Which form which shape takes, on Hopper and before. */
static void forms(void **state) {
    static const struct {
        int64_t n, len, K, V;
        bool keep;
        const char *bf16, *older, *f32;
    } want[] = {{2, 4, 128, 64, false, "step", "step", "step"},
                {2, 4, 128, 64, true, "scan", "plain", "plain"},
                {1, 66, 64, 64, false, "scan", "plain", "plain"},
                {1, 66, 64, 100, true, "plain", "plain", "plain"},
                {1, 66, 256, 64, true, "plain", "plain", "plain"}};
    (void)state;
    for (int chip = 0; chip < 3; chip++) { /* the last one is only emulated */
        struct dev d = chip == 2 ? dev_open_older() : dev_open(chip == 1);
        for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
            struct hl_seg seg[2];
            struct hl_rows rows = {.T = want[i].n * want[i].len, .n = want[i].n, .seg = seg};
            real m, *states = hl_alloc(d.backend, 64);
            for (int64_t s = 0; s < want[i].n; s++)
                seg[s] = (struct hl_seg){.row = s * want[i].len, .len = want[i].len, .state = (char *)states};
            CHECK_OK(d.backend->storage.cut_rows(d.backend, &rows, 0));
            struct hl_kda a = {.rows = &rows, .H = 1, .HV = 1, .K = want[i].K, .V = want[i].V};
            if (want[i].keep) a.A = a.v_new = &m; /* not touched */
            assert_string_equal(dev_kda_form(&d, &a), chip == 0   ? want[i].bf16
                                                      : chip == 1 ? want[i].f32
                                                                  : want[i].older);
            hl_release(d.backend, states);
        }
        if (chip == 2) dev_close_older(&d);
        else dev_close(&d);
    }
}

static int report(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        print_message("%s: worst distances", f ? "f32" : "bf16");
        for (int i = 0; worst[i].name; i++) print_message(" %s %.2g", worst[i].name, worst[i].far[f]);
        print_message("\n");
    }
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),         cmocka_unit_test(gates),  cmocka_unit_test(tiles),
        cmocka_unit_test(short_segments), cmocka_unit_test(decode), cmocka_unit_test(bits_and_mistakes),
        cmocka_unit_test(older),          cmocka_unit_test(forms),  cmocka_unit_test(kept_operands)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, report);
}
