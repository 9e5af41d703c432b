/* test_topk.c -- the k largest logits: the reference against sorting all of them, every fast backend against the
 * reference. Any size, equal logits, rows with a NaN or an infinity; mistakes are seen. */
#include "check.h"

enum { M = 3 };
static int by_logit(const void *a, const void *b) {
    const struct hl_candidate *x = a, *y = b;
    return x->logit > y->logit || (x->logit == y->logit && x->id < y->id) ? -1 : 1;
}
static int by_logit_last_id(const void *a, const void *b) { /* a mistake: of equals the highest id */
    const struct hl_candidate *x = a, *y = b;
    return x->logit > y->logit || (x->logit == y->logit && x->id > y->id) ? -1 : 1;
}
static void sort_rows(const struct hl_topk *a, int (*order)(const void *, const void *)) {
    struct hl_candidate *all = malloc((size_t)a->V * sizeof *all);
    assert_non_null(all);
    for (int64_t m = 0; m < a->M; m++) {
        const real *x = a->logits + m * a->V;
        bool finite = true;
        for (int64_t v = 0; v < a->V; v++) {
            all[v] = (struct hl_candidate){(float)x[v], (int32_t)v};
            finite = finite && isfinite(x[v]);
        }
        qsort(all, (size_t)a->V, sizeof *all, order);
        memcpy(a->out + m * a->k, all, (size_t)a->k * sizeof *all);
        if (!finite) a->out[m * a->k].id = -1;
    }
    free(all);
}

/* distinct 0: all different, else so many values */
static real *logits_new(int64_t V, int distinct) {
    real *x = check_random(M * V, -3, 3, (uint64_t)V);
    for (int64_t i = 0; i < M * V && distinct; i++) x[i] = (real)(check_mix((uint64_t)i) % (uint64_t)distinct) - 1;
    if (distinct == 2) x[V / 2] = -(real)0.0; /* equal to 0 */
    return x;
}
static bool same(const struct hl_candidate *a, const struct hl_candidate *b, int64_t k) {
    for (int64_t m = 0; m < M; m++, a += k, b += k) {
        if (a[0].id < 0 || b[0].id < 0) {
            if (a[0].id != b[0].id) return false;
            continue;
        }
        for (int64_t i = 0; i < k; i++)
            if (a[i].id != b[i].id || a[i].logit != b[i].logit) return false;
    }
    return true;
}

struct list { /* the results of one op, with one candidate more that nobody writes */
    struct hl_candidate c[M * HL_TOPK_MOST + 1];
};
static void poison(struct list *l) {
    for (int i = 0; i <= M * HL_TOPK_MOST; i++) l->c[i] = (struct hl_candidate){NAN, -7};
}
static void run(const struct hl_ops *ops, struct hl_backend *b, struct hl_topk a, struct list *out) {
    poison(out);
    a.out = out->c;
    ops->topk(b, &a);
    assert_int_equal(out->c[M * a.k].id, -7);
}
static void compare(struct hl_backend *b, real *x, int64_t V, int64_t k, const char *what) {
    struct list want, got;
    struct hl_topk a = {.M = M, .V = V, .k = k, .logits = x};
    run(hl_ops_named("cpu-ref"), b, a, &want);
    a.out = got.c;
    if (V < 2000) sort_rows(&a, by_logit);
    if (V < 2000 && !same(want.c, got.c, k)) fail_msg("cpu-ref: %d of %d, %s", (int)k, (int)V, what);
    for (int i = 0; check_backend(i); i++) {
        const struct hl_ops *ops = hl_ops_named(check_backend(i));
        if (ops) run(ops, b, a, &got);
        if (!same(got.c, want.c, k)) fail_msg("%s: %d of %d, %s", check_backend(i), (int)k, (int)V, what);
    }
}

static const int64_t sizes[] = {1, 2, 7, 15, 16, 17, 64, 101, 128, 129, 300, 1023, 5000, 32000, 70001};
static const int64_t ks[] = {1, 2, 3, 17, 40, 100, HL_TOPK_MOST};
static void backends_agree(void **state) {
    (void)state;
    struct hl_backend *b = check_backend_open(3, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int distinct = 0; distinct < 5; distinct++) { /* 1: all equal */
            real *x = logits_new(sizes[i], distinct);
            for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                if (ks[j] <= sizes[i]) compare(b, x, sizes[i], ks[j], "random");
            if (sizes[i] <= HL_TOPK_MOST) compare(b, x, sizes[i], sizes[i], "all of them");
            check_free(x, M * sizes[i]);
        }
    hl_backend_close(b);
}

static void rows_that_are_not_finite(void **state) {
    (void)state;
    static const real bad[] = {(real)NAN, (real)INFINITY, -(real)INFINITY};
    struct hl_backend *b = check_backend_open(3, 0);
    for (int64_t V = 5; V < 1000; V = V * 3 + 1)
        for (int kind = 0; kind < 3; kind++)
            for (int at = 0; at < 5; at++) {
                real *x = logits_new(V, 0);
                x[V + at * (V - 1) / 4] = bad[kind]; /* of the second row */
                compare(b, x, V, 1, "not finite");
                compare(b, x, V, 5, "not finite");
                check_free(x, M * V);
            }
    hl_backend_close(b);
}

static void mistakes_are_seen(void **state) {
    (void)state;
    struct list good, bad;
    real *x = logits_new(400, 30), most = x[0];
    struct hl_topk a = {.M = M, .V = 400, .k = 20, .logits = x, .out = good.c};
    poison(&good), poison(&bad);
    sort_rows(&a, by_logit);
    a.out = bad.c;
    sort_rows(&a, by_logit_last_id);
    assert_false(same(bad.c, good.c, a.k));
    bad = good;
    bad.c[a.k + 7] = good.c[a.k + 8], bad.c[a.k + 8] = good.c[a.k + 7]; /* two of a row change places */
    assert_false(same(bad.c, good.c, a.k));
    for (int64_t i = 0; i < M * a.V; i++) most = x[i] > most ? x[i] : most;
    x[a.V - 1] = most + 1; /* the last of a row is not looked at */
    a.out = good.c;
    sort_rows(&a, by_logit);
    x[a.V - 1] = -9, a.out = bad.c;
    sort_rows(&a, by_logit);
    assert_false(same(bad.c, good.c, a.k));
    check_free(x, M * a.V);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(backends_agree), cmocka_unit_test(rows_that_are_not_finite),
                                       cmocka_unit_test(mistakes_are_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
