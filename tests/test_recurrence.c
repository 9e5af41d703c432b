/* test_recurrence.c -- gla, gsa and kda: every fast backend against the reference, sessions cut anywhere, results that do
 * not depend on threads or on neighbours, and wrong versions that must be caught. */
#include "recurrence_case.h"

static const struct rc_kind *const kinds[] = {&rc_kda, &rc_gla, &rc_gsa};
enum { KINDS = 3 };
static const double TOL = 5e-6;

static void shapes(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) rc_compare_shapes(kinds[k], TOL, 10);
}
static void gates(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) rc_compare_gates(kinds[k], TOL, 10);
}

/* The first token reads nothing but its own write: d_k^-1/2 beta (q.k) v, scale (q.k) v, softmax((q.k) s).s v */
static void first_token(void **state) {
    const int64_t one = 1;
    const struct rc_shape f = {1, 1, 8, 6, 5, RC_RANDOM, -1, 0.1, 1};
    (void)state;
    for (int b = -1; b < 0 || check_backend(b); b++) {
        const struct hl_ops *o = hl_ops_named(b < 0 ? "cpu-ref" : check_backend(b));
        struct hl_backend *pool = check_backend_open(1, rc_scratch(&f));
        for (int k = 0; o && k < KINDS; k++) {
            struct pw c;
            real *want = check_new(f.V);
            double qk = 0, w = 0, sum = 0;
            rc_new(&c, kinds[k], &f, &one, 1, false);
            kinds[k]->forward(o, pool, &c);
            for (int64_t i = 0; i < f.K; i++) qk += (double)(pw_get(&c, "q")->p[i] * pw_get(&c, "k")->p[i]);
            for (int64_t i = 0; k == 2 && i < f.M; i++) {
                const double s = -expm1((double)pw_get(&c, "f")->p[i]), e = exp(qk * s);
                w += e * s, sum += e;
            }
            if (k == 0) w = qk * (double)c.op.kda.beta[0] / sqrt((double)f.K);
            else if (k == 1) w = qk * (double)c.op.gla.scale;
            else w /= sum;
            for (int64_t i = 0; i < f.V; i++) want[i] = (real)(w * (double)pw_get(&c, "v")->p[i]);
            CHECK_NEAR(pw_get(&c, "out")->p, want, 1, f.V, TOL, "%s %s", o->name, kinds[k]->name);
            check_free(want, f.V);
            pw_free(&c);
        }
        hl_backend_close(pool);
    }
}

/* Rows [t, t + n) of a session's case, which goes on from the state that the rows before left. */
static void feed(const struct rc_kind *k, const struct hl_ops *o, struct hl_backend *pool, struct pw *c, int64_t t,
                 int64_t n) {
    c->seg[0].row = t, c->seg[0].len = n, c->seg[0].pos = t;
    k->forward(o, pool, c);
}

static void cuts(void **state) {
    static const int64_t pieces[][6] = {{1, 131}, {64, 68}, {15, 1, 16, 100}, {63, 2, 67}, {131, 1}, {8, 9, 64, 51}};
    const int64_t len = 132;
    const struct rc_shape f = {2, 2, 24, 20, 18, RC_RANDOM, -0.3, 0, 1};
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *o = hl_ops_named(check_backend(b));
        struct hl_backend *pool = check_backend_open(2, rc_scratch(&f));
        for (int k = 0; o && k < KINDS; k++) {
            struct pw whole, steps, got;
            const char *name;
            rc_new(&whole, kinds[k], &f, &len, 1, true);
            feed(kinds[k], o, pool, &whole, 0, len);
            rc_new(&steps, kinds[k], &f, &len, 1, true);
            for (int64_t t = 0; t < len; t++) feed(kinds[k], o, pool, &steps, t, 1);
            double e = pw_distance(&steps, &whole, &name);
            if (!(e <= TOL)) fail_msg("%s %s token by token: %s is %.3g away", o->name, kinds[k]->name, name, e);
            for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
                rc_new(&got, kinds[k], &f, &len, 1, true);
                for (int64_t i = 0, t = 0; t < len; t += pieces[p][i++]) feed(kinds[k], o, pool, &got, t, pieces[p][i]);
                e = pw_distance(&got, &whole, &name);
                if (!(e <= TOL)) fail_msg("%s %s cut %d: %s is %.3g away", o->name, kinds[k]->name, (int)p, name, e);
                pw_free(&got);
            }
            pw_free(&whole);
            pw_free(&steps);
        }
        hl_backend_close(pool);
    }
}

static void same_bits(const struct pw *a, const struct pw *b, int64_t from, const char *what, const char *kind) {
    for (int i = 0; i < a->n; i++) {
        const struct array *x = &a->v[i], *y = &b->v[i];
        if (x->own || (from && x->rows != a->rows.T)) continue;
        if (memcmp(x->p, y->p + from * y->width, (size_t)(x->rows * x->width) * sizeof(real)))
            fail_msg("%s %s: %s differs", kind, what, x->name);
    }
}

/* The same bits with 1 and 3 threads, alone and packed between other documents, in sessions and in training. */
static void neighbours(void **state) {
    static const int64_t alone[] = {70}, packed[] = {33, 70, 5};
    const struct rc_shape f = {2, 2, 32, 24, 16, RC_RANDOM, -0.3, 0, 1};
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *o = hl_ops_named(check_backend(b));
        struct hl_backend *one = check_backend_open(1, rc_scratch(&f)), *three = check_backend_open(3, rc_scratch(&f));
        for (int k = 0; o && k < KINDS; k++)
            for (int session = 0; session < 2; session++) {
                struct pw x, y, z;
                rc_new(&x, kinds[k], &f, packed, 3, session);
                rc_run(kinds[k], o, one, &x, session);
                rc_new(&y, kinds[k], &f, packed, 3, session);
                rc_run(kinds[k], o, three, &y, session);
                same_bits(&x, &y, 0, "3 threads", kinds[k]->name);
                rc_new(&z, kinds[k], &f, alone, 1, session);
                for (int i = 0; i < z.n; i++) /* the inputs of the packed document */
                    if (!z.v[i].out && z.v[i].rows == 70)
                        memcpy(z.v[i].p, x.v[i].p + 33 * x.v[i].width, (size_t)(70 * z.v[i].width) * sizeof(real));
                rc_run(kinds[k], o, one, &z, session);
                same_bits(&z, &x, 33, "packed", kinds[k]->name);
                pw_free(&x);
                pw_free(&y);
                pw_free(&z);
            }
        hl_backend_close(one);
        hl_backend_close(three);
    }
}

/* A state that leaks into the next document, a decay that comes a token late, keys of the wrong head. */
static void wrong(void **state) {
    static const int64_t two[] = {40, 40}, whole[] = {80};
    const struct rc_shape f = {2, 2, 16, 16, 16, RC_RANDOM, -1, 0, 1};
    const struct hl_ops *ref = hl_ops_named("cpu-ref");
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        struct pw want, got;
        rc_new(&want, kinds[k], &f, two, 2, false);
        rc_run(kinds[k], ref, NULL, &want, false);
        for (int mistake = 0; mistake < 3; mistake++) {
            rc_new(&got, kinds[k], &f, mistake == 0 ? whole : two, mistake == 0 ? 1 : 2, false);
            struct array *g = pw_get(&got, k == 2 ? "f" : "g"), *key = pw_get(&got, "k");
            if (mistake == 1) memmove(g->p + g->width, g->p, (size_t)((g->rows - 1) * g->width) * sizeof(real));
            for (int64_t i = 0; mistake == 2 && i < key->rows * key->width; i += key->width)
                memcpy(key->p + i, key->p + i + 16, 16 * sizeof(real));
            rc_run(kinds[k], ref, NULL, &got, false);
            CHECK_FAR(pw_get(&got, "out")->p, pw_get(&want, "out")->p, 80, 32, 1e-2);
            CHECK_FAR(pw_get(&got, "dq")->p, pw_get(&want, "dq")->p, 80, 32, 1e-2);
            pw_free(&got);
        }
        pw_free(&want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes), cmocka_unit_test(gates),      cmocka_unit_test(first_token),
        cmocka_unit_test(cuts),   cmocka_unit_test(neighbours), cmocka_unit_test(wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
