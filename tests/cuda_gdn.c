/* cuda_gdn.c -- the forward delta rule on a GPU against the reference: shapes, gates, states carried
 * across any cut, what is kept for the backward pass, the same bits every time, mistakes that must be
 * seen; and its speed. */
#define _POSIX_C_SOURCE 200809L
#include "cuda_gdn.h"
#include "cuda_older.h"

/* bf16: rounding the operands of each product leaves 2 to 4 parts in a thousand */
static double tolerance(const struct dev *d) { return d->f32 ? 1e-5 : 6e-3; }

static double worst[2][4]; /* by build: out, m, states, what is kept */
static void note(const struct dev *d, int what, const real *got, const real *want, int64_t rows, int64_t width) {
    worst[d->f32][what] = fmax(worst[d->f32][what], check_distance(got, want, rows, width));
}

/* Row i of (I + L)^-1 from its definition, for every row of the batch; zero right of the diagonal. */
static void inverse(const struct gdn_case *c, real *A) {
    const struct hl_gdn *a = &c->a;
    for (int64_t r = 0; r < c->b; r++) {
        const int64_t row = r / a->HV, hv = r % a->HV, hk = hv / (a->HV / a->H);
        int64_t s = 0;
        while (row >= c->seg[s].row + c->seg[s].len) s++;
        const int64_t i = (row - c->seg[s].row) % HL_CHUNK;
        double sum[HL_CHUNK] = {0}, G = 0;
        for (int64_t j = i - 1; j >= 0; j--) { /* L_ij times row j; G: log-decay from j to i */
            const int64_t other = row - i + j;
            double dot = 0;
            for (int64_t n = 0; n < a->K; n++)
                dot += (double)((const real *)a->k)[(row * a->H + hk) * a->K + n] *
                       (double)((const real *)a->k)[(other * a->H + hk) * a->K + n];
            G += a->g ? (double)a->g[(other + 1) * a->HV + hv] : 0;
            for (int64_t n = 0; n <= j; n++)
                sum[n] -= (double)a->beta[r] * dot * exp(G) * (double)A[(other * a->HV + hv) * HL_CHUNK + n];
        }
        sum[i] = 1;
        for (int64_t n = 0; n < HL_CHUNK; n++) A[r * HL_CHUNK + n] = (real)sum[n];
    }
}

/* A training pass and a session's against the reference, v_new against the CPU's chunked form,
 * A against its definition. */
static void compare(const struct dev *d, const struct gdn_shape *f, const int64_t *len, int64_t n) {
    struct gdn_case *c = dev_case(d, f, len, n, 7);
    struct hl_backend *pool = check_backend_open(1, hl_gdn_scratch(f->K, f->V));
    struct gdn_result train = result_new(c), session = result_new(c), kept = result_new(c);
    double tol = tolerance(d);
    run_training(hl_ops_named("cpu-ref"), pool, c, &train, false);
    run_session(hl_ops_named("cpu-ref"), pool, c, &session, false);
    run_training(hl_ops_named("cpu"), pool, c, &kept, false);
    inverse(c, kept.A);
    for (int keep = dev_slow(d) && c->T > 60 ? 1 : 0; keep < 2; keep++) {
        struct gdn_result got = result_new(c);
        dev_gdn_forward(d, c, &got, false, keep);
        note(d, 0, got.out, train.out, c->T, f->HV * f->V);
        note(d, 1, got.m, train.m, c->T, f->HV);
        check_outputs(c, f, &got, &train, tol);
        if (keep) {
            note(d, 3, got.v_new, kept.v_new, c->T, f->HV * f->V);
            note(d, 3, got.A, kept.A, c->T, f->HV * HL_CHUNK);
            CHECK_NEAR(got.v_new, kept.v_new, c->T, f->HV * f->V, tol, SHAPE_FMT, SHAPE_ARG(f));
            CHECK_NEAR(got.A, kept.A, c->T, f->HV * HL_CHUNK, tol, SHAPE_FMT, SHAPE_ARG(f));
        }
        result_free(c, &got);
        got = result_new(c);
        dev_gdn_forward(d, c, &got, true, keep);
        note(d, 2, got.S, session.S, n * f->HV * f->K, f->V);
        check_outputs(c, f, &got, &session, tol);
        CHECK_NEAR(got.S, session.S, n * f->HV * f->K, f->V, tol, SHAPE_FMT, SHAPE_ARG(f));
        result_free(c, &got);
    }
    result_free(c, &train);
    result_free(c, &session);
    result_free(c, &kept);
    hl_backend_close(pool);
    case_free(c);
}

static void shapes(void **state) {
    static const int64_t size[][2] = {{16, 16},   {24, 24},  {64, 64},   {80, 100}, {128, 128},
                                      {256, 256}, {64, 128}, {128, 192}, {300, 20}};
    static const int64_t few[] = {1, 63, 65 + 64}, lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 200};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = 0; i < sizeof size / sizeof *size; i++)
            for (int64_t group = 1; group <= (size[i][0] <= 64 ? 2 : 1); group++) {
                bool big = dev_slow(&d) && size[i][0] >= 64, huge = big && size[i][1] > 128;
                struct gdn_shape f = {1, group, size[i][0], size[i][1], GATE_RANDOM, -0.1, 0, 1};
                if (big && (group > 1 || (f32 && i % 3))) continue;
                if (dev_least() && (f32 || group > 1) && i) continue;
                big = big || dev_least();
                compare(&d, &f, big ? few : lengths, huge ? 2 : big ? 3 : (int64_t)(sizeof lengths / sizeof *lengths));
            }
        dev_close(&d);
    }
}

/* Every width of a tile: the more sequences, the wider. One sequence is longer than the rings of buffers. */
static void tiles(void **state) {
    static const int64_t len[12] = {330, 66, 2, 3, 1, 1, 1, 1, 1, 1, 1, 1}, segments[] = {1, 3, 6, 12};
    (void)state;
    struct dev d = dev_open(false);
    for (int64_t K = 64; K <= (dev_slow(&d) ? 128 : 256); K *= 2)
        for (int i = dev_slow(&d) && K > 64 ? 2 : 0; i < 4; i++) {
            struct gdn_shape f = {1, 8, K, 128, GATE_RANDOM, -0.1, 0, 1};
            compare(&d, &f, len, segments[i]);
        }
    dev_close(&d);
}

/* Chips before Hopper: the plain form, of every head size that the tensor-core forms take. */
static void older(void **state) {
    static const int64_t len[3] = {66, 1, 130};
    static const struct gdn_shape shape[] = {{1, 2, 64, 64, GATE_RANDOM, -0.1, 0, 1},
                                             {1, 1, 128, 128, GATE_RANDOM, -0.1, 0, 1},
                                             {1, 1, 256, 64, GATE_RANDOM, -0.1, 0, 1}};
    (void)state;
    struct dev d = dev_open_older();
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) compare(&d, &shape[i], len, 3);
    dev_close_older(&d);
}

/* Which form which shape takes, on Hopper and before. */
static void forms(void **state) {
    static const struct {
        int64_t n, len, HV, K, V;
        bool keep;
        const char *bf16, *older, *f32;
    } want[] = {{2, 4, 2, 128, 64, false, "step", "step", "step"},
                {2, 4, 2, 128, 64, true, "scan", "plain", "plain"},
                {1, 800, 1, 64, 64, true, "ring_split", "plain", "plain"},
                {1, 112 * 64, 1, 128, 64, true, "ring_split", "plain", "plain"},
                {1, 111 * 64, 1, 128, 64, true, "scan", "plain", "plain"},
                {12, 2, 8, 128, 64, true, "ring", "plain", "plain"},
                {12, 2, 8, 64, 64, true, "chunk", "plain", "plain"},
                {1, 66, 1, 64, 64, true, "chunk", "plain", "plain"},
                {1, 66, 1, 64, 100, true, "plain", "plain", "plain"},
                {1, 66, 1, 80, 64, true, "plain", "plain", "plain"}};
    (void)state;
    for (int chip = 0; chip < 3; chip++) { /* the last one is only emulated */
        struct dev d = chip == 2 ? dev_open_older() : dev_open(chip == 1);
        for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
            const int64_t n = want[i].n;
            struct hl_seg seg[12];
            struct hl_rows rows = {.T = n * want[i].len, .n = n, .seg = seg};
            real m, *states = hl_alloc(d.backend, 64);
            for (int64_t s = 0; s < n; s++)
                seg[s] = (struct hl_seg){.row = s * want[i].len, .len = want[i].len, .state = (char *)states};
            CHECK_OK(d.backend->storage.cut_rows(d.backend, &rows, 0));
            struct hl_gdn a = {.rows = &rows, .H = 1, .HV = want[i].HV, .K = want[i].K, .V = want[i].V};
            if (want[i].keep) a.A = a.v_new = &m; /* not touched */
            assert_string_equal(dev_gdn_form(&d, &a, false), chip == 0   ? want[i].bf16
                                                             : chip == 1 ? want[i].older
                                                                         : want[i].f32);
            hl_release(d.backend, states);
        }
        if (chip == 2) dev_close_older(&d);
        else dev_close(&d);
    }
}

/* One sequence of many chunks: errors of the state would add up. */
static void long_sequence(void **state) {
    (void)state;
    struct dev d = dev_open(false);
    const int64_t len = dev_slow(&d) ? 330 : 9000;
    for (int64_t K = 128; K <= 256; K *= 2) {
        struct gdn_shape f = {1, 2, K, 64, GATE_RANDOM, -0.1, 0, 1};
        if (!dev_slow(&d) || K == 128) compare(&d, &f, &len, 1);
    }
    dev_close(&d);
}

/* A sequence that is scanned in splits, beside one too short for that; little decay, so that the states
 * between the splits matter: with empty ones the result is far off. */
static void splits(void **state) {
    static const int64_t whole[] = {800, 70}, cut[] = {256, 256, 288, 70};
    static const struct gdn_shape f = {1, 1, 64, 64, GATE_RANDOM, -0.001, 0, 0.3};
    (void)state;
    struct dev d = dev_open(false);
    compare(&d, &f, whole, 2);
    struct gdn_case *c = dev_case(&d, &f, whole, 2, 7), *other = dev_case(&d, &f, cut, 4, 7);
    struct gdn_result right = result_new(c), wrong = result_new(other);
    dev_gdn_forward(&d, c, &right, false, false);
    dev_gdn_forward(&d, other, &wrong, false, false);
    CHECK_FAR(wrong.out + 256 * f.V, right.out + 256 * f.V, 544, f.V, 0.05);
    result_free(c, &right);
    result_free(other, &wrong);
    case_free(c);
    case_free(other);
    dev_close(&d);
}

/* The same with heads of 128 and so many that blocks are wide. */
static void wide_splits(void **state) {
    static const int64_t len[] = {112 * 64 + 30, 70, 64, 1};
    static const struct gdn_shape f = {1, 2, 128, 128, GATE_RANDOM, -0.001, 0, 0.3};
    (void)state;
    struct dev d = dev_open(false);
    compare(&d, &f, len, 4);
    dev_close(&d);
}

/* Splits whose transition is 0 before they end, and such that are as long but keep theirs. */
static void vanishing(void **state) {
    static const int64_t len[] = {36 * 64, 3};
    static const struct gdn_shape f = {2, 16, 64, 64, GATE_RANDOM, -3, 0, 1},
                                  kept = {2, 16, 64, 64, GATE_RANDOM, -0.001, 0, 0.05};
    (void)state;
    struct dev d = dev_open(false);
    compare(&d, &f, len, 2);
    compare(&d, &kept, len, 2);
    dev_close(&d);
}

/* A segment's results do not depend on the others, even where their inputs are not numbers: its last chunk is copied
 * together with the next segment's first rows. */
static void neighbours(void **state) {
    static const struct {
        struct gdn_shape f;
        int64_t len[12], n;
    } batch[] = {{{1, 1, 64, 64, GATE_RANDOM, -0.001, 0, 0.3}, {801, 70, 30}, 3},
                 {{1, 8, 128, 64, GATE_RANDOM, -0.1, 0, 1}, {3, 66, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1}, 12},
                 {{1, 1, 128, 64, GATE_RANDOM, -0.1, 0, 1}, {67, 66, 2}, 3}};
    (void)state;
    struct dev d = dev_open(false);
    for (size_t i = 0; i < sizeof batch / sizeof *batch; i++) {
        const struct gdn_shape *f = &batch[i].f;
        struct gdn_case *c = dev_case(&d, f, batch[i].len, batch[i].n, 7);
        struct gdn_result want = result_new(c), got = result_new(c);
        const int64_t rows = batch[i].len[0];
        dev_gdn_forward(&d, c, &want, false, true);
        for (int64_t r = rows; r < c->T; r++) {
            for (int64_t z = 0; z < f->H * f->K; z++)
                ((real *)c->a.q)[r * f->H * f->K + z] = ((real *)c->a.k)[r * f->H * f->K + z] = NAN;
            for (int64_t z = 0; z < f->HV * f->V; z++) ((real *)c->a.v)[r * f->HV * f->V + z] = NAN;
        }
        dev_gdn_forward(&d, c, &got, false, true);
        assert_memory_equal(got.out, want.out, (size_t)(rows * f->HV * f->V) * sizeof(real));
        assert_memory_equal(got.v_new, want.v_new, (size_t)(rows * f->HV * f->V) * sizeof(real));
        assert_memory_equal(got.A, want.A, (size_t)(rows * f->HV * HL_CHUNK) * sizeof(real));
        assert_memory_equal(got.m, want.m, (size_t)(rows * f->HV) * sizeof(real));
        assert_true(isnan(got.out[rows * f->HV * f->V]));
        result_free(c, &want), result_free(c, &got);
        case_free(c);
    }
    dev_close(&d);
}

static void gates(void **state) {
    static const struct {
        enum case_gate gate;
        double lo;
    } gates[] = {{GATE_RANDOM, -0.001}, {GATE_RANDOM, -5}, {GATE_RANDOM, -60}, {GATE_RESETS, -0.01},
                 {GATE_RANDOM, -1e30},  {GATE_ZERO, 0},    {GATE_NONE, 0}};
    static const double beta[][2] = {{0, 1}, {0, 1e-4}, {0.999, 1}, {0, 2}};
    static const int64_t len[] = {150, 3, 65};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t g = 0; g < sizeof gates / sizeof *gates; g++)
            for (size_t b = 0; b < sizeof beta / sizeof *beta; b++) {
                int64_t size = f32 ? 40 : 64;
                struct gdn_shape f = {1, 1, size, size, gates[g].gate, gates[g].lo, beta[b][0], beta[b][1]};
                if ((dev_slow(&d) && g && b && (g + b) % 4) || (dev_least() && g + b)) continue;
                compare(&d, &f, len, 3);
            }
        dev_close(&d);
    }
}

/* Many sessions of a few tokens: wide and narrow tiles; and so many heads that a block looks up the places of
 * its tiles more than once. */
static void short_segments(void **state) {
    static const int64_t len[] = {1, 8, 2, 1, 1, 5, 1};
    static const struct gdn_shape shape[] = {{2, 4, 64, 64, GATE_RANDOM, -0.1, 0, 1},
                                             {2, 4, 128, 96, GATE_RANDOM, -0.1, 0, 1},
                                             {1, 2, 256, 256, GATE_RANDOM, -0.1, 0, 1},
                                             {8, 32, 256, 64, GATE_RANDOM, -0.1, 0, 1}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) compare(&d, &shape[i], len, 7);
        dev_close(&d);
    }
}

/* A session: many tokens, then a few and one by one; the same as the whole at once. */
static void decode(void **state) {
    enum { T = 80 };
    static const int64_t cut[] = {0, 70, 71, 72, 76, 77, T}, len[] = {T};
    static const struct gdn_shape shape[] = {{2, 2, 64, 64, GATE_RANDOM, -0.05, 0, 1},
                                             {1, 2, 128, 128, GATE_RANDOM, -0.05, 0, 1},
                                             {1, 1, 256, 256, GATE_NONE, 0, 0, 1},
                                             {1, 1, 40, 24, GATE_RANDOM, -0.05, 0, 1}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = dev_least() && f32 ? 3 : 0; i < sizeof shape / sizeof *shape; i++) {
            const struct gdn_shape *f = &shape[i];
            struct gdn_case *c = dev_case(&d, f, len, 1, 11);
            struct gdn_result want = result_new(c), got = result_new(c);
            struct dev_gdn x;
            run_session(hl_ops_named("cpu-ref"), NULL, c, &want, false);
            dev_gdn_open(&d, &x, c, got.S, false);
            for (size_t p = 0; p + 1 < sizeof cut / sizeof *cut; p++) {
                const int64_t t = cut[p], qk = t * f->H * f->K * d.backend->act_size;
                const int64_t v = t * f->HV * f->V * d.backend->act_size, b = t * f->HV;
                struct hl_gdn a = x.a;
                x.rows.T = x.seg[0].len = cut[p + 1] - t, x.seg[0].pos = t;
                CHECK_OK(d.backend->storage.cut_rows(d.backend, &x.rows, 64));
                a.q = (const char *)a.q + qk, a.k = (const char *)a.k + qk;
                a.v = (const char *)a.v + v, a.out = (char *)a.out + v;
                a.g = a.g ? a.g + b : NULL, a.beta += b, a.m += b;
                d.ops->gdn_forward(d.backend, &a);
            }
            dev_gdn_close(&d, &x, c, &got);
            check_outputs(c, f, &got, &want, tolerance(&d));
            CHECK_NEAR(got.S, want.S, f->HV * f->K, f->V, tolerance(&d), SHAPE_FMT, SHAPE_ARG(f));
            result_free(c, &want);
            result_free(c, &got);
            case_free(c);
        }
        dev_close(&d);
    }
}

/* The same bits again; and a pass that starts empty where there is a state, or that does not decay, is
 * far off. */
static void bits_and_mistakes(void **state) {
    static const int64_t len[] = {130, 20};
    static const struct gdn_shape f = {1, 1, 64, 64, GATE_RANDOM, -0.1, 0, 1};
    (void)state;
    struct dev d = dev_open(false);
    struct gdn_case *c = dev_case(&d, &f, len, 2, 13);
    struct gdn_result one = result_new(c), two = result_new(c), wrong = result_new(c);
    dev_gdn_forward(&d, c, &one, true, true);
    dev_gdn_forward(&d, c, &two, true, true);
    assert_memory_equal(one.out, two.out, (size_t)c->v * sizeof(real));
    assert_memory_equal(one.m, two.m, (size_t)c->b * sizeof(real));
    assert_memory_equal(one.S, two.S, (size_t)(2 * c->S) * sizeof(real));
    assert_memory_equal(one.A, two.A, (size_t)(c->b * HL_CHUNK) * sizeof(real));
    dev_gdn_forward(&d, c, &wrong, false, false);
    CHECK_FAR(wrong.out, one.out, c->T, f.V, 0.02);
    const real *g = c->a.g;
    c->a.g = NULL;
    dev_gdn_forward(&d, c, &wrong, true, false);
    c->a.g = g;
    CHECK_FAR(wrong.out, one.out, c->T, f.V, 0.02);
    CHECK_FAR(wrong.m, one.m, c->T, 1, 0.02);
    result_free(c, &one);
    result_free(c, &two);
    result_free(c, &wrong);
    case_free(c);
    dev_close(&d);
}

/* ---- speed, on a real device; aim: ms, 0 where there is none ---- */

static void time_one(const struct dev *d, int64_t n, int64_t len, int64_t H, int64_t K, bool session, double aim) {
    enum { REPEATS = 20, ROUNDS = 4 };
    const int64_t T = n * len, S = n * H * K * K, qk = T * H * K;
    struct hl_seg *seg = calloc((size_t)n, sizeof *seg);
    struct hl_rows rows = {.T = T, .n = n, .seg = seg};
    real *x = check_random(qk, -1, 1, 3), *b = check_random(T * H, 0, 1, 4), *g = check_random(T * H, -0.1, 0, 5);
    real *host = session ? check_random(S, -0.1, 0.1, 7) : NULL, *states = session ? dev_real(d, host, S) : NULL;
    double best = 1e9;
    for (int64_t s = 0; s < n; s++)
        seg[s] =
            (struct hl_seg){.row = s * len, .len = len, .state = session ? (char *)(states + s * H * K * K) : NULL};
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, 64));
    struct hl_gdn a = {.rows = &rows, .H = H, .HV = H, .K = K, .V = K};
    for (int64_t i = 0; i < qk; i++) x[i] *= (real)sqrt(3.0 / (double)K); /* rows of length 1 */
    a.q = dev_act(d, x, qk), a.v = dev_act(d, x, qk);
    check_fill(x, qk, -sqrt(3.0 / (double)K), sqrt(3.0 / (double)K), 6);
    a.k = dev_act(d, x, qk), a.g = dev_real(d, g, T * H), a.beta = dev_real(d, b, T * H);
    a.out = dev_act(d, NULL, qk), a.m = dev_real(d, NULL, T * H);
    if (!session) a.v_new = dev_act(d, NULL, qk), a.A = dev_act(d, NULL, T * H * HL_CHUNK);
    for (int round = 0; round < ROUNDS; round++) {
        hl_cuda_timer_start(hl_cuda_of(d->backend));
        for (int i = 0; i < REPEATS; i++) d->ops->gdn_forward(d->backend, &a);
        double s = hl_cuda_timer_stop(hl_cuda_of(d->backend)) / REPEATS;
        if (round && s < best) best = s; /* the first one warms up */
    }
    print_message("%3d x %5d, %d x %3d: %.4f ms", (int)n, (int)len, (int)H, (int)K, 1e3 * best);
    if (aim > 0) print_message(" (aim %.3f)", aim);
    print_message("\n");
    const void *all[] = {a.q, a.k, a.v, a.g, a.beta, a.out, a.m, a.v_new, a.A, states};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) dev_drop(d, all[i]);
    if (host) check_free(host, S);
    check_free(x, qk);
    check_free(b, T * H);
    check_free(g, T * H);
    free(seg);
}

/* block_S, from empty states and from sessions' */
static void block_states(void **state) {
    static const int64_t blocks[] = {3, 16, 64, 100}, len[] = {200, 1, 7, 64, 129};
    static const struct gdn_shape shape[] = {{1, 2, 24, 40, GATE_RANDOM, -0.1, 0, 1},
                                             {2, 2, 64, 64, GATE_RANDOM, -0.1, 0, 1}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (int i = 0; i < 16; i++) {
            const struct gdn_shape *f = &shape[i / 2 % 2];
            const int64_t block = blocks[i / 4];
            const bool session = i % 2;
            if (dev_slow(&d) && (i + f32) % 3) continue;
            struct gdn_case *c = dev_case(&d, f, len, 5, 3);
            if (session) place_in_blocks(c);
            const int64_t count = block_count(c, block) * c->S;
            struct hl_backend *pool = check_backend_open(1, hl_gdn_scratch(f->K, f->V));
            real *want = check_new(count), *got = check_new(count), *zero = check_zero(5 * c->S);
            struct gdn_result r = result_new(c);
            struct dev_gdn x;
            plain_block_states(hl_ops_named("cpu-ref"), pool, c, block, session ? r.S : zero, want);
            dev_gdn_open(&d, &x, c, session ? r.S : NULL, true);
            CHECK_OK(d.backend->storage.cut_rows(d.backend, &x.rows, block));
            x.a.block = block, x.a.block_S = dev_real(&d, NULL, count);
            d.ops->gdn_forward(d.backend, &x.a);
            dev_real_take(&d, x.a.block_S, got, count);
            check_block_states(c, block, got, want, tolerance(&d), d.ops->name);
            CHECK_FAR(got, want + c->S, f->HV * f->K, f->V, 5e-2); /* a block early */
            dev_gdn_close(&d, &x, c, &r);
            result_free(c, &r);
            check_free(want, count), check_free(got, count), check_free(zero, 5 * c->S);
            hl_backend_close(pool);
            case_free(c);
        }
        dev_close(&d);
    }
}

static void speed(void **state) {
    (void)state;
    struct dev d = dev_open(false);
    if (!dev_slow(&d)) {
        time_one(&d, 16, 2048, 4, 256, false, 0.316);
        time_one(&d, 32, 2048, 4, 128, false, 0.396);
        time_one(&d, 1, 32768, 4, 256, false, 0.715);
        time_one(&d, 1, 8192, 4, 256, true, 0);
        time_one(&d, 1, 32768, 4, 128, false, 0);
        time_one(&d, 1, 1, 4, 256, true, 0);
        time_one(&d, 64, 1, 4, 256, true, 0);
    }
    dev_close(&d);
}

static int report(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++)
        print_message("%s: worst distance of out %.2g, m %.2g, states %.2g, v_new and A %.2g\n", f ? "f32" : "bf16",
                      worst[f][0], worst[f][1], worst[f][2], worst[f][3]);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shapes),        cmocka_unit_test(tiles),
                                       cmocka_unit_test(long_sequence), cmocka_unit_test(splits),
                                       cmocka_unit_test(wide_splits),   cmocka_unit_test(neighbours),
                                       cmocka_unit_test(vanishing),

                                       cmocka_unit_test(gates),         cmocka_unit_test(short_segments),
                                       cmocka_unit_test(decode),        cmocka_unit_test(bits_and_mistakes),
                                       cmocka_unit_test(older),         cmocka_unit_test(forms),
                                       cmocka_unit_test(block_states),  cmocka_unit_test(speed)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, report);
}
