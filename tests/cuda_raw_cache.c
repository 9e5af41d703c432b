/* cuda_raw_cache.c -- the exact memory on raw pointers (include/hola_ops.h) against a double reference, with guard bytes
 * and poisoned outputs as in cuda_raw.c; wrong versions and wrong cu; and what both ops refuse. */
#include "raw_cache_ref.h"
#include "raw_case.h"

enum { MOST_SEQUENCES = 8 };
struct shape {
    const char *what;
    int64_t N, len[MOST_SEQUENCES]; /* cu_bits 0: all are len[0] */
    int64_t H, HV, K, V, window, chunk;
    int cu_bits, recency, tau, gate, inference;
    hola_dtype dtype;
    double scale;
};
static const struct shape shapes[] = {
    {"float, odd sizes", 4, {9, 0, 23, 1}, 1, 2, 12, 20, 3, 4, 32, 0, 1, 0, 0, HOLA_F32, 0.5},
    {"float, even, recency", 2, {21}, 2, 2, 64, 64, 8, 8, 0, 1, 0, 1, 0, HOLA_F32, 0},
    {"float, no window", 2, {5, 12}, 1, 1, 8, 8, 0, 5, 64, 0, 1, 1, 0, HOLA_F32, 0},
    {"bf16, odd sizes", 3, {0, 30, 7}, 1, 3, 20, 12, 5, 8, 64, 0, 1, 1, 0, HOLA_BF16, 0},
    {"bf16, 64", 5, {70, 0, 3, 130, 0}, 2, 2, 64, 64, 16, 32, 32, 0, 1, 0, 0, HOLA_BF16, 0},
    {"bf16, 64, groups", 2, {100, 33}, 1, 2, 64, 64, 16, 32, 64, 0, 1, 1, 0, HOLA_BF16, 0.2},
    {"bf16, 128, even", 2, {65}, 1, 1, 128, 128, 8, 64, 0, 1, 1, 1, 0, HOLA_BF16, 0},
    {"bf16, 256", 3, {40, 0, 35}, 1, 1, 256, 256, 8, 32, 32, 0, 0, 0, 0, HOLA_BF16, 0},
    {"bf16, many blocks", 2, {150, 3}, 1, 1, 64, 64, 8, 8, 64, 0, 1, 0, 0, HOLA_BF16, 0},
    {"bf16, inference", 2, {70, 20}, 1, 1, 64, 64, 16, 32, 32, 0, 1, 0, 1, HOLA_BF16, 0},
    {"no rows", 2, {0, 0}, 1, 2, 64, 64, 8, 8, 32, 0, 1, 1, 0, HOLA_BF16, 0},
};

struct cache_case {
    struct shape f;
    struct cache_ref ref;
    int64_t cu[MOST_SEQUENCES + 1], qk, v, b;
};
static void case_open(struct cache_case *c, const struct shape *f, uint64_t seed) {
    struct cache_ref *a = &c->ref;
    *c = (struct cache_case){.f = *f};
    for (int64_t i = 0; i < f->N; i++) c->cu[i + 1] = c->cu[i] + f->len[f->cu_bits ? i : 0];
    *a = (struct cache_ref){.T = c->cu[f->N], .N = f->N, .H = f->H, .HV = f->HV, .K = f->K, .V = f->V};
    a->window = f->window, a->chunk = f->chunk, a->cu = c->cu, a->recency = f->recency;
    a->scale = f->scale != 0 ? f->scale : 1 / sqrt((double)f->K);
    c->qk = a->T * a->H * a->K, c->v = a->T * a->HV * a->V, c->b = a->T * a->HV;
    a->q = raw_random(c->qk, -1.7, 1.7, seed + 1, f->dtype), a->k = raw_random(c->qk, -1.7, 1.7, seed + 2, f->dtype);
    a->v = raw_random(c->v, -1, 1, seed + 3, f->dtype), a->dout = raw_random(c->v, -1, 1, seed + 4, f->dtype);
    a->score = raw_random(c->b, 0, 1, seed + 5, HOLA_BF16); /* some are equal */
    a->sink = raw_random(a->HV, -1, 1, seed + 6, HOLA_F32);
    a->tau = f->tau ? raw_random(a->HV, 1, 2, seed + 7, HOLA_F32) : NULL;
    a->gate = f->gate ? raw_random(a->HV, -1, 1, seed + 8, HOLA_F32) : NULL;
    a->out = raw_random(c->v, 0, 0, 0, HOLA_F32), a->dv = raw_random(c->v, 0, 0, 0, HOLA_F32);
    a->dq = raw_random(c->qk, 0, 0, 0, HOLA_F32), a->dk = raw_random(c->qk, 0, 0, 0, HOLA_F32);
    a->dsink = raw_random(a->HV, 0, 0, 0, HOLA_F32), a->dtau = raw_random(a->HV, 0, 0, 0, HOLA_F32);
    a->dgate = raw_random(a->HV, 0, 0, 0, HOLA_F32);
}
static void case_close(struct cache_case *c) {
    struct cache_ref *a = &c->ref;
    double *all[] = {a->q,   a->k,  a->v,  a->dout, a->score, a->sink, a->tau,  a->gate,
                     a->out, a->dv, a->dq, a->dk,   a->dsink, a->dtau, a->dgate};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

struct call {
    hola_cache_args a;
    struct raw_buffer q, k, v, score, sink, tau, gate, dout, cu, kept;
    struct raw_buffer out, dq, dk, dv, dsink, dtau, dgate;
};
static void call_open(const struct dev *d, struct call *x, const struct cache_case *c) {
    const struct shape *f = &c->f;
    const struct cache_ref *r = &c->ref;
    int32_t narrow[MOST_SEQUENCES + 1];
    for (int64_t i = 0; i <= f->N; i++) narrow[i] = (int32_t)c->cu[i];
    *x = (struct call){.a = {.size = sizeof x->a, .H = f->H, .HV = f->HV, .K = f->K, .V = f->V}};
    hola_cache_args *a = &x->a;
    a->window = f->window, a->chunk = f->chunk, a->dtype = f->dtype, a->scale = (float)f->scale;
    a->evict = f->recency ? HOLA_EVICT_RECENCY : HOLA_EVICT_BETAE;
    a->rows = (hola_rows){.T = r->T, .N = r->N, .cu_bits = f->cu_bits};
    x->cu = raw_bytes(d, f->cu_bits == 64 ? (void *)c->cu : (void *)narrow, (f->N + 1) * (f->cu_bits == 64 ? 8 : 4));
    if (f->cu_bits) a->rows.cu = x->cu.p;
    x->q = raw_numbers(d, r->q, c->qk, f->dtype), x->k = raw_numbers(d, r->k, c->qk, f->dtype);
    x->v = raw_numbers(d, r->v, c->v, f->dtype), x->dout = raw_numbers(d, r->dout, c->v, f->dtype);
    x->score = raw_numbers(d, r->score, c->b, HOLA_F32), x->sink = raw_numbers(d, r->sink, r->HV, HOLA_F32);
    x->tau = raw_numbers(d, r->tau, r->HV, HOLA_F32), x->gate = raw_numbers(d, r->gate, r->HV, HOLA_F32);
    x->out = raw_numbers(d, NULL, c->v, f->dtype), x->dv = raw_numbers(d, NULL, c->v, f->dtype);
    x->dq = raw_numbers(d, NULL, c->qk, f->dtype), x->dk = raw_numbers(d, NULL, c->qk, f->dtype);
    x->dsink = raw_numbers(d, NULL, r->HV, HOLA_F32), x->dtau = raw_numbers(d, NULL, r->HV, HOLA_F32);
    x->dgate = raw_numbers(d, NULL, r->HV, HOLA_F32);
    a->q = x->q.p, a->k = x->k.p, a->v = x->v.p, a->dout = x->dout.p, a->score = f->recency ? NULL : x->score.p;
    a->sink = x->sink.p, a->tau = f->tau ? x->tau.p : NULL, a->gate = f->gate ? x->gate.p : NULL;
    a->out = x->out.p, a->dq = x->dq.p, a->dk = x->dk.p, a->dv = x->dv.p;
    a->dsink = x->dsink.p, a->dtau = f->tau ? x->dtau.p : NULL, a->dgate = f->gate ? x->dgate.p : NULL;
    x->kept = raw_bytes(d, NULL, hola_cache_kept_bytes(a));
    /* (0xff would be -1, no row, where there is a list of rows: other bytes show whoever reads what was not written) */
    char *fill = malloc((size_t)x->kept.bytes + 1);
    assert_non_null(fill);
    memset(fill, 0x6b, (size_t)x->kept.bytes);
    hl_put(d->backend, x->kept.p, fill, x->kept.bytes);
    CHECK_OK(hl_finish(d->backend));
    free(fill);
    a->kept = f->inference ? NULL : x->kept.p;
}
static void call_run(const struct dev *d, struct call *x, bool backward) {
    const int64_t bytes = hola_cache_work_bytes(&x->a, 0, backward);
    assert_true(bytes >= 0);
    struct raw_buffer work = raw_bytes(d, NULL, bytes);
    const hola_where w = raw_where(d, &work);
    CHECK_OK((backward ? hola_cache_backward : hola_cache_forward)(&w, &x->a));
    free(raw_take(d, &work, "work"));
}

enum { RESULTS = 7 };
static void results_of(struct raw_result r[RESULTS], struct call *x, const struct cache_case *c) {
    const struct cache_ref *a = &c->ref;
    const bool back = !c->f.inference;
    const struct raw_result all[RESULTS] = {
        {"out", &x->out, a->out, a->T, a->HV, a->V, 7e-3, true, true},
        {"dq", &x->dq, a->dq, a->T, a->H, a->K, 1e-2, true, back},
        {"dk", &x->dk, a->dk, a->T, a->H, a->K, 1e-2, true, back},
        {"dv", &x->dv, a->dv, a->T, a->HV, a->V, 1e-2, true, back},
        {"dsink", &x->dsink, a->dsink, 1, 1, a->HV, 1e-2, false, back},
        {"dtau", &x->dtau, a->dtau, 1, 1, a->HV, 2.5e-2, false, back && c->f.tau},
        {"dgate", &x->dgate, a->dgate, 1, 1, a->HV, 1e-2, false, back && c->f.gate},
    };
    memcpy(r, all, sizeof all);
}
static void call_close(const struct dev *d, struct call *x, const struct cache_case *c, double *got[RESULTS]) {
    struct raw_result r[RESULTS];
    struct raw_buffer *inputs[] = {&x->q,   &x->k,    &x->v,    &x->score, &x->sink,
                                   &x->tau, &x->gate, &x->dout, &x->cu,    &x->kept};
    results_of(r, x, c);
    raw_results_take(d, r, RESULTS, c->f.dtype, c->f.what, got);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) free(raw_take(d, inputs[i], "an input or kept"));
}
/* The worst result, in units of what is allowed. quiet: else a bad one fails. */
static double compare(struct call *x, const struct cache_case *c, double *const got[RESULTS], bool quiet) {
    struct raw_result r[RESULTS];
    results_of(r, x, c);
    return raw_results_distance(r, RESULTS, c->f.dtype, c->f.what, got, quiet);
}
static void run_case(const struct dev *d, struct cache_case *c, double *got[RESULTS], struct call *x) {
    call_open(d, x, c);
    call_run(d, x, false);
    if (!c->f.inference) call_run(d, x, true);
    call_close(d, x, c, got);
}

static void every_shape(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct cache_case c;
        struct call x;
        double *got[RESULTS];
        case_open(&c, &shapes[i], 1000 * i);
        cache_ref_run(&c.ref, 1);
        run_case(&d, &c, got, &x);
        compare(&x, &c, got, false);
        raw_results_free(got, RESULTS);
        case_close(&c);
    }
    dev_close(&d);
}
/* The comparison finds every mistake of the list. */
static void wrong_versions(void **state) {
    static const struct shape f = {"wrong", 2, {66, 30}, 2, 4, 64, 64, 16, 16, 32, 0, 1, 1, 0, HOLA_BF16, 0.2};
    struct dev d = dev_open(false);
    struct cache_case c;
    struct call x;
    double *got[RESULTS];
    (void)state;
    case_open(&c, &f, 21);
    run_case(&d, &c, got, &x);
    for (int m = 0; m < CACHE_MISTAKES; m++) {
        c.ref.mistake = (enum cache_mistake)m;
        cache_ref_run(&c.ref, 1);
        const double e = compare(&x, &c, got, true);
        if (m == CACHE_RIGHT ? !(e <= 1) : e <= 2) fail_msg("mistake %d is %.3g times as far off as allowed", m, e);
    }
    raw_results_free(got, RESULTS);
    case_close(&c);
    dev_close(&d);
}
/* Whatever cu says: no fault, nothing outside of the arrays is touched, and the gradients of scalars are numbers. */
static void wrong_cu(void **state) {
    static const int64_t bad[][5] = {
        {-5, 10, 30, 40, 60}, {0, 30, 10, 40, 60},  {0, 10, 30, 40, 1 << 20}, {INT64_MIN, INT64_MAX, 0, 3, 60},
        {60, 60, 60, 60, 60}, {20, 25, 30, 40, 50}, {0, 0, 0, 0, 0},          {59, 0, 0, 0, INT32_MAX},
    };
    struct dev d = dev_open(false);
    (void)state;
    for (size_t kind = 0; kind < 4; kind++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            struct shape f = {"wrong cu", 4, {10, 20, 10, 20}, 1, 1, 64, 64, 8, 8, 32, 0, 1, 0, 0, HOLA_BF16, 0};
            struct cache_case c;
            struct call x;
            double *got[RESULTS];
            if (dev_slow(&d) && (i + kind) % 2) continue;
            if (kind == 1) f.K = 12, f.V = 20, f.dtype = HOLA_F32, f.cu_bits = 64;
            if (kind == 2) f.HV = 2, f.cu_bits = 64;
            if (kind == 3) f.K = f.V = 256, f.chunk = 32;
            case_open(&c, &f, 31);
            memcpy(c.cu, bad[i], sizeof bad[i]);
            run_case(&d, &c, got, &x);
            for (int j = 4; j < RESULTS; j++) /* sums over rows: those that no sequence has are not among them */
                for (int64_t h = 0; h < f.HV && (j != 6 || f.gate); h++) assert_false(isnan(got[j][h]));
            raw_results_free(got, RESULTS);
            case_close(&c);
        }
    dev_close(&d);
}

/* ---- what is refused, before anything is launched: all pointers are of the host ---- */

static char memory[1 << 14] __attribute__((aligned(256)));
static hola_gdn_args good_gdn(void) {
    hola_gdn_args a = {.size = sizeof a, .rows = {.T = 6, .N = 2}, .H = 1, .HV = 1, .K = 4, .V = 4};
    a.q = a.k = a.v = a.g = a.beta = a.dout = memory;
    a.out = a.dq = a.dk = a.dv = a.kept = memory;
    a.dg = a.dbeta = (float *)memory;
    return a;
}
static hola_cache_args good_cache(void) {
    hola_cache_args a = {.size = sizeof a, .rows = {.T = 6, .N = 2}, .H = 1, .HV = 1, .K = 4, .V = 4, .chunk = 2};
    a.q = a.k = a.v = a.dout = memory, a.window = 2, a.score = a.sink = (float *)memory;
    a.out = a.dq = a.dk = a.dv = a.kept = memory;
    return a;
}
#define REFUSES(status, make, both, change)                                                              \
    do {                                                                                                 \
        make;                                                                                            \
        hola_where w = {.size = sizeof w, .work = memory, .work_bytes = 0};                              \
        change;                                                                                          \
        const hola_status got = both;                                                                    \
        if (got != (status)) fail_msg("%s: %s (%s)", #change, hola_status_text(got), hola_last_error()); \
        assert_true(strlen(hola_last_error()) > 0 && !strchr(hola_last_error(), '\n'));                  \
    } while (0)
#define NO_GDN(change) REFUSES(HOLA_EINVAL, hola_gdn_args a = good_gdn(), hola_gdn_forward(&w, &a), change)
#define NO_BACK(change) REFUSES(HOLA_EINVAL, hola_gdn_args a = good_gdn(), hola_gdn_backward(&w, &a), change)
#define NO_CACHE(change) REFUSES(HOLA_EINVAL, hola_cache_args a = good_cache(), hola_cache_forward(&w, &a), change)

static void refused(void **state) {
    struct dev d = dev_open(false);
    hola_gdn_args g = good_gdn();
    hola_cache_args c = good_cache();
    (void)state;
    NO_GDN(a.size--);
    NO_GDN(w.size = 0);
    NO_GDN(w.work = memory + 16);
    NO_GDN(w.work = NULL; w.work_bytes = 5);
    NO_GDN((void)0); /* no workspace */
    NO_GDN(a.flags = 16);
    NO_GDN(a.flags = HOLA_GDN_NEG);
    NO_GDN(a.flags = HOLA_GDN_GATE); /* without A_log */
    NO_GDN(a.flags = HOLA_GDN_GATE; a.A_log = (float *)memory; a.g = NULL);
    NO_GDN(a.rows.T = -1);
    NO_GDN(a.rows.T = (int64_t)1 << 31);
    NO_GDN(a.rows.T = 7);
    NO_GDN(a.rows.N = 0);
    NO_GDN(a.rows.N = -1);
    NO_GDN(a.rows.longest = -1);
    NO_GDN(a.rows.cu = memory; a.rows.cu_bits = 16);
    NO_GDN(a.rows.cu = memory + 4; a.rows.cu_bits = 64);
    NO_GDN(a.H = 0);
    NO_GDN(a.H = 2);
    NO_GDN(a.K = 0);
    NO_GDN(a.V = -4);
    NO_GDN(a.dtype = HOLA_F16);
    NO_GDN(a.gate_dtype = HOLA_INT8);
    NO_GDN(a.scale = NAN);
    NO_GDN(a.q = NULL);
    NO_GDN(a.k = memory + 8);
    NO_GDN(a.beta = NULL);
    NO_GDN(a.h0 = (float *)(memory + 4));
    NO_GDN(a.ht = (float *)(memory + 4));
    NO_GDN(w.device = 77);
    NO_BACK(a.kept = NULL);
    NO_BACK(a.dout = NULL);
    NO_BACK(a.dg = NULL);
    NO_BACK(a.dbeta = NULL);
    NO_BACK(a.dh0 = (float *)(memory + 8));
    NO_CACHE(a.size = 0);
    NO_CACHE(a.flags = 1);
    NO_CACHE(a.evict = HOLA_EVICT_H2O);
    NO_CACHE(a.window = -1);
    NO_CACHE(a.chunk = 0);
    NO_CACHE(a.score = NULL);
    NO_CACHE(a.sink = NULL);
    NO_CACHE(a.out = NULL);
    NO_CACHE((void)0);
    REFUSES(HOLA_ENOTSUP, g = good_gdn(), hola_gdn_forward(&w, &g), w.device = -1);
    REFUSES(HOLA_ENOTSUP, g = good_gdn(), hola_gdn_forward(&w, &g), g.K = 257);
    REFUSES(HOLA_ENOTSUP, g = good_gdn(), hola_gdn_forward(&w, &g), g.V = 513);
    REFUSES(HOLA_ENOTSUP, g = good_gdn(), hola_gdn_forward(&w, &g), g.rows.T = 2000000000; g.H = g.HV = 8);
    REFUSES(HOLA_ENOTSUP, c = good_cache(), hola_cache_backward(&w, &c), c.window = 513);
    REFUSES(HOLA_ENOTSUP, c = good_cache(), hola_cache_backward(&w, &c), c.chunk = 1025);
    assert_int_equal(hola_gdn_forward(NULL, &g), HOLA_EINVAL);
    g = good_gdn();
    g.K = 0;
    assert_int_equal(hola_gdn_work_bytes(&g, 0, false), -1);
    assert_int_equal(hola_gdn_kept_bytes(&g), -1);
    assert_int_equal(hola_gdn_out_bytes(NULL), -1);
    assert_null(hola_gdn_kernels(&g, 0, true));
    assert_int_equal(hola_cache_work_bytes(NULL, 0, false), -1);
    for (size_t i = 0; i < sizeof memory; i++) assert_int_equal(memory[i], 0);
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape),
        cmocka_unit_test(wrong_versions),
        cmocka_unit_test(wrong_cu),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
