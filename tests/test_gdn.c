/* test_gdn.c -- the fast forms of the delta rule against the reference, states carried across any cut,
 * bits that do not depend on threads or neighbours, and mistakes that must be seen. */
#include "gdn_case.h"

static const double TOL = 5e-6, GRAD_TOL = 5e-5;

static void shapes(void **state) {
    (void)state;
    compare_shapes(TOL, GRAD_TOL);
}

static void gates(void **state) {
    (void)state;
    compare_gates(TOL, GRAD_TOL);
}

/* m is beta |e|, spelled out with a state of its own */
static void score_is_the_write(void **state) {
    static const int64_t len[] = {150};
    const struct gdn_shape f = {1, 1, 32, 48, GATE_RANDOM, -0.05, 0, 1};
    struct gdn_case *c = case_new(&f, len, 1, 3);
    struct hl_backend *pool = check_backend_open(1, hl_gdn_scratch(f.K, f.V));
    const real *k = c->a.k, *v = c->a.v;
    real *m = check_new(c->T), *unscaled = check_new(c->T), *S = check_zero(f.K * f.V);
    (void)state;
    for (int64_t t = 0; t < c->T; t++) {
        double e[48], norm2 = 0;
        for (int64_t j = 0; j < f.V; j++) {
            e[j] = (double)v[t * f.V + j];
            for (int64_t i = 0; i < f.K; i++) {
                S[i * f.V + j] *= R_EXP(c->a.g[t]);
                e[j] -= (double)(k[t * f.K + i] * S[i * f.V + j]);
            }
            for (int64_t i = 0; i < f.K; i++) S[i * f.V + j] += k[t * f.K + i] * c->a.beta[t] * (real)e[j];
            norm2 += e[j] * e[j];
        }
        unscaled[t] = (real)sqrt(norm2);
        m[t] = c->a.beta[t] * unscaled[t];
    }
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        struct gdn_result r;
        if (!ops) continue;
        r = result_new(c);
        run_training(ops, pool, c, &r, false);
        CHECK_NEAR(r.m, m, c->T, 1, TOL, "%s", check_backend(b));
        CHECK_FAR(r.m, unscaled, c->T, 1, 0.1);
        result_free(c, &r);
    }
    check_free(m, c->T);
    check_free(unscaled, c->T);
    check_free(S, f.K * f.V);
    hl_backend_close(pool);
    case_free(c);
}

/* ---- sessions ---- */

/* Feeds the case's only segment in pieces; r->S carries the state. */
static void feed(const struct hl_ops *ops, struct hl_backend *pool, const struct gdn_case *c, struct gdn_result *r,
                 const int64_t *cut, int64_t cuts) {
    for (int64_t i = 0, at = 0; i <= cuts; i++) {
        int64_t end = i < cuts ? cut[i] : c->T;
        struct gdn_case piece = *c;
        piece.seg[0] = (struct hl_seg){.row = at, .len = end - at, .pos = at};
        piece.rows.seg = piece.seg;
        run_session(ops, pool, &piece, r, false);
        at = end;
    }
}

static void any_cut_is_the_whole(void **state) {
    enum { T = 200 };
    static const int64_t len[] = {T};
    static const int64_t single[] = {1, 5, 16, 17, 63, 64, 100, 199};
    const struct gdn_shape f = {1, 2, 64, 80, GATE_RANDOM, -0.02, 0, 1};
    struct gdn_case *c = case_new(&f, len, 1, 5);
    struct hl_backend *pool = check_backend_open(2, hl_gdn_scratch(f.K, f.V));
    int64_t each[T - 1];
    (void)state;
    for (int64_t i = 0; i < T - 1; i++) each[i] = i + 1;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        struct gdn_result whole;
        if (!ops) continue;
        whole = result_new(c);
        run_session(ops, pool, c, &whole, false);
        for (size_t i = 0; i <= sizeof single / sizeof *single; i++) {
            bool decode = i == sizeof single / sizeof *single; /* token by token */
            struct gdn_result r = result_new(c);
            feed(ops, pool, c, &r, decode ? each : single + i, decode ? T - 1 : 1);
            check_outputs(c, &f, &r, &whole, TOL);
            CHECK_NEAR(r.S, whole.S, f.HV * f.K, f.V, TOL, "state after a cut");
            result_free(c, &r);
        }
        result_free(c, &whole);
    }
    hl_backend_close(pool);
    case_free(c);
}

/* ---- bits ---- */

static void same_bits(const real *x, const real *y, int64_t n, const char *what) {
    if (memcmp(x, y, (size_t)n * sizeof *x)) fail_msg("%s: bits differ", what);
}

static void same_result(const struct gdn_case *c, const struct gdn_result *x, const struct gdn_result *y) {
    same_bits(x->out, y->out, c->v, "out");
    same_bits(x->m, y->m, c->b, "m");
    same_bits(x->S, y->S, c->rows.n * c->S, "S");
    same_bits(x->dq, y->dq, c->qk, "dq");
    same_bits(x->dk, y->dk, c->qk, "dk");
    same_bits(x->dv, y->dv, c->v, "dv");
    same_bits(x->dg, y->dg, c->b, "dg");
    same_bits(x->dbeta, y->dbeta, c->b, "dbeta");
}

static void check_threads(const struct hl_ops *ops, const struct gdn_shape *f, const int64_t *len, int64_t n) {
    static const int threads[] = {1, 2, 3, 7, 16};
    enum { COUNT = sizeof threads / sizeof *threads };
    struct gdn_case *c = case_new(f, len, n, 11);
    struct gdn_result session[COUNT], training[COUNT];
    for (int i = 0; i < COUNT; i++) {
        struct hl_backend *pool = check_backend_open(threads[i], hl_gdn_scratch(f->K, f->V));
        session[i] = result_new(c);
        training[i] = result_new(c);
        run_session(ops, pool, c, &session[i], false);
        run_training(ops, pool, c, &training[i], true);
        same_result(c, &session[0], &session[i]);
        same_result(c, &training[0], &training[i]);
        if (i == COUNT - 1) { /* another last chunk changes the first */
            real *dout = (real *)c->a.dout + c->v - 1;
            *dout += (real)0.5;
            run_training(ops, pool, c, &training[i], true);
            *dout -= (real)0.5;
            assert_memory_not_equal(training[0].dk, training[i].dk, (size_t)c->qk * sizeof(real));
        }
        hl_backend_close(pool);
    }
    for (int i = 0; i < COUNT; i++) {
        result_free(c, &session[i]);
        result_free(c, &training[i]);
    }
    case_free(c);
}

/* With fewer heads than threads a long sequence is also cut into tiles of V, and its gradient into windows of chunks. */
static void threads_change_no_bits(void **state) {
    static const int64_t one[] = {520}, mixed[] = {70, 1, 9, 130}; /* 520: more than one window of chunks */
    const struct gdn_shape even = {1, 1, 32, 128, GATE_RANDOM, -0.05, 0, 1};
    const struct gdn_shape odd = {1, 2, 24, 200, GATE_RANDOM, -0.05, 0, 1};
    const struct gdn_shape grouped = {1, 8, 16, 40, GATE_NONE, 0, 0, 1}; /* one chunk a window with two threads */
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        if (!ops) continue;
        check_threads(ops, &odd, one, 1);
        check_threads(ops, &grouped, one, 1);
        check_threads(ops, &even, mixed, 4);
        check_threads(ops, &odd, mixed, 4);
    }
}

/* Segment s alone must give the rows it gave in the batch. */
static void check_alone(const struct hl_ops *ops, struct hl_backend *pool, const struct gdn_case *c,
                        const struct gdn_result *batch, int64_t s, bool training) {
    struct gdn_case x = *c;
    struct gdn_result r, part = *batch;
    int64_t row = c->seg[s].row, qk = c->a.H * c->a.K, v = c->a.HV * c->a.V, b = c->a.HV;
    x.seg[0] = (struct hl_seg){.len = c->seg[s].len};
    x.T = x.seg[0].len;
    x.rows = (struct hl_rows){.T = x.T, .n = 1, .seg = x.seg};
    x.qk = qk * x.T, x.v = v * x.T, x.b = b * x.T;
    x.chunks = hl_pieces(x.T, HL_CHUNK);
    x.a.rows = &x.rows;
    x.a.q = (const real *)c->a.q + row * qk;
    x.a.k = (const real *)c->a.k + row * qk;
    x.a.v = (const real *)c->a.v + row * v;
    x.a.dout = (const real *)c->a.dout + row * v;
    x.a.g = c->a.g + row * b;
    x.a.beta = c->a.beta + row * b;
    part.out += row * v, part.m += row * b, part.S += s * c->S;
    part.dq += row * qk, part.dk += row * qk, part.dv += row * v, part.dg += row * b, part.dbeta += row * b;
    r = result_new(&x);
    run_session(ops, pool, &x, &r, false);
    if (training) run_training(ops, pool, &x, &r, true);
    same_result(&x, &r, &part);
    result_free(&x, &r);
}

static void neighbours_change_no_bits(void **state) {
    const struct gdn_shape f = {1, 2, 64, 96, GATE_RANDOM, -0.1, 0, 1};
    struct gdn_case *c = case_new(&f, case_lengths, CASE_LENGTHS, 13);
    struct hl_backend *pool = check_backend_open(2, hl_gdn_scratch(f.K, f.V));
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        struct gdn_result batch;
        if (!ops) continue;
        batch = result_new(c);
        run_session(ops, pool, c, &batch, false);
        for (int64_t s = 0; s < CASE_LENGTHS; s++) check_alone(ops, pool, c, &batch, s, false);
        run_training(ops, pool, c, &batch, true);
        for (int64_t s = 0; s < CASE_LENGTHS; s++) check_alone(ops, pool, c, &batch, s, true);
        result_free(c, &batch);
    }
    hl_backend_close(pool);
    case_free(c);
}

/* ---- mistakes ---- */

/* The recurrence, but the prediction reads the state before it decays. */
static void undecayed(const struct gdn_case *c, real *out) {
    int64_t K = c->a.K, V = c->a.V;
    const real *q = c->a.q, *k = c->a.k, *v = c->a.v;
    real *S = check_zero(K * V), scale = 1 / R_SQRT((real)K);
    for (int64_t t = 0; t < c->T; t++)
        for (int64_t j = 0; j < V; j++) {
            real e = v[t * V + j], read = 0;
            for (int64_t i = 0; i < K; i++) e -= k[t * K + i] * S[i * V + j];
            for (int64_t i = 0; i < K; i++) {
                S[i * V + j] = R_EXP(c->a.g[t]) * S[i * V + j] + k[t * K + i] * c->a.beta[t] * e;
                read += q[t * K + i] * S[i * V + j];
            }
            out[t * V + j] = scale * read;
        }
    check_free(S, K * V);
}

/* The case cut into pieces that know nothing of each other: states and gradients stop at every cut. */
static struct gdn_case cut_up(const struct gdn_case *c, struct hl_seg *seg, int64_t piece) {
    struct gdn_case x = *c;
    x.rows.n = hl_pieces(c->T, piece);
    for (int64_t s = 0; s < x.rows.n; s++) {
        int64_t left = c->T - s * piece;
        seg[s] = (struct hl_seg){.row = s * piece, .len = left < piece ? left : piece};
    }
    x.rows.seg = seg;
    return x;
}

static void mistakes_are_seen(void **state) {
    enum { T = 256 };
    static const int64_t len[] = {T};
    const struct gdn_shape hold = {1, 1, 64, 64, GATE_RANDOM, -0.001, 0, 1};
    const struct gdn_shape decay = {1, 1, 64, 64, GATE_RANDOM, -0.1, 0, 1};
    const struct hl_ops *ref = hl_ops_named("cpu-ref");
    struct hl_backend *pool = check_backend_open(2, hl_gdn_scratch(64, 64));
    struct hl_seg seg[T];
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(b));
        struct gdn_case *c, *d, x;
        struct gdn_result good, bad;
        if (!ops) continue;
        c = case_new(&hold, len, 1, 17);
        d = case_new(&decay, len, 1, 19);
        good = result_new(c);
        bad = result_new(c);
        run_training(ops, pool, c, &good, true);
        x = cut_up(c, seg, 4); /* forgets every 4 tokens */
        x.a.rows = &x.rows;
        run_training(ref, pool, &x, &bad, false);
        CHECK_FAR(bad.out, good.out, T, 64, 0.1);
        CHECK_FAR(bad.m, good.m, T, 1, 0.01);
        /* dv needs nothing of the forward states, so cutting at the chunks drops dh alone */
        x = cut_up(c, seg, HL_CHUNK);
        x.a.rows = &x.rows;
        run_training(ops, pool, &x, &bad, true);
        CHECK_FAR(bad.dv, good.dv, T, 64, 0.1);
        CHECK_FAR(bad.dk, good.dk, T, 64, 0.1);
        run_training(ops, pool, d, &good, false);
        undecayed(d, bad.out);
        CHECK_FAR(bad.out, good.out, T, 64, 1e-3);
        result_free(c, &good);
        result_free(c, &bad);
        case_free(c);
        case_free(d);
    }
    hl_backend_close(pool);
}

/* block_S: blocks shorter and longer than chunks, in sessions and from empty states, however short the segment */
static void block_states(void **state) {
    static const int64_t blocks[] = {1, 3, 16, 64, 100, 256}, len[] = {300, 1, 7, 64, 129, 9};
    static const struct gdn_shape shapes[] = {{1, 2, 24, 40, GATE_RANDOM, -0.1, 0, 1},
                                              {2, 2, 64, 130, GATE_NONE, 0, 0, 1}};
    (void)state;
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 6; i++)
            for (int session = 0; session < 2; session++) {
                const struct gdn_shape *f = &shapes[n];
                struct gdn_case *c = case_new(f, len, 6, 3);
                const int64_t count = block_count(c, blocks[i]) + 8; /* later positions may take more */
                struct hl_backend *pool = check_backend_open(3, hl_gdn_scratch(f->K, f->V));
                real *want = check_new(count * c->S), *got = check_new(count * c->S), *zero = check_zero(6 * c->S);
                struct gdn_result start = result_new(c);
                if (session) place_in_blocks(c);
                plain_block_states(hl_ops_named("cpu-ref"), pool, c, blocks[i], session ? start.S : zero, want);
                for (int b = -1; b < 0 || check_backend(b); b++) {
                    const char *who = b < 0 ? "cpu-ref" : check_backend(b);
                    if (!hl_ops_named(who)) continue;
                    struct gdn_result r = result_new(c);
                    check_poison(got, count * c->S);
                    c->a.block_S = got, c->a.block = blocks[i];
                    if (session) run_session(hl_ops_named(who), pool, c, &r, false);
                    else run_training(hl_ops_named(who), pool, c, &r, false);
                    check_block_states(c, blocks[i], got, want, 1e-5, who);
                    result_free(c, &r);
                }
                c->a.block_S = NULL;
                if (blocks[i] == 16) /* one block late must be seen */
                    CHECK_FAR(got + c->S, want, f->HV * f->K, f->V, 1e-2);
                result_free(c, &start);
                check_free(want, count * c->S), check_free(got, count * c->S), check_free(zero, 6 * c->S);
                hl_backend_close(pool);
                case_free(c);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),
        cmocka_unit_test(gates),
        cmocka_unit_test(score_is_the_write),
        cmocka_unit_test(any_cut_is_the_whole),
        cmocka_unit_test(threads_change_no_bits),
        cmocka_unit_test(neighbours_change_no_bits),
        cmocka_unit_test(mistakes_are_seen),
        cmocka_unit_test(block_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
