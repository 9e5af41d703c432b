/* cuda_raw_attention.c -- softmax attention on raw pointers (include/hola_ops.h) against a double reference: rows,
 * groups, windows, head sizes, types; every array between guard bytes, outputs and workspace poisoned. Then wrong
 * versions, wrong cu and wrong arguments. */
#include "raw_attention_ref.h"
#include "raw_case.h"

enum { MOST_SEQUENCES = 8 };
struct shape {
    const char *what;
    int64_t N, len[MOST_SEQUENCES]; /* cu_bits 0: all are len[0] */
    int64_t H, HK, D, window;
    int cu_bits;
    bool inference;
    hola_dtype dtype;
    double scale;
};
static const struct shape shapes[] = {
    {"float", 4, {9, 0, 70, 1}, 2, 1, 12, 0, 32, false, HOLA_F32, 0.5},
    {"float, window", 2, {66}, 2, 2, 20, 7, 0, false, HOLA_F32, 0},
    {"bf16, odd size", 3, {0, 30, 7}, 3, 1, 20, 0, 64, false, HOLA_BF16, 0},
    {"64", 6, {0, 65, 1, 0, 200, 3}, 2, 2, 64, 0, 32, false, HOLA_BF16, 0},
    {"64, groups, window", 3, {129, 0, 257}, 4, 2, 64, 40, 64, false, HOLA_BF16, 0.2},
    {"64, even", 2, {193}, 2, 1, 64, 0, 0, false, HOLA_BF16, 0},
    {"128", 8, {3, 130, 0, 0, 64, 2, 1, 128}, 2, 1, 128, 0, 32, false, HOLA_BF16, 0},
    {"128, window", 1, {300}, 1, 1, 128, 129, 0, false, HOLA_BF16, 0.1},
    {"128, many", 8, {20, 1, 2, 3, 4, 5, 6, 7}, 1, 1, 128, 0, 64, false, HOLA_BF16, 0},
    {"window beyond", 2, {20, 31}, 1, 1, 64, 1 << 30, 32, false, HOLA_BF16, 0},
    {"inference", 3, {66, 0, 4}, 2, 1, 128, 0, 64, true, HOLA_BF16, 0},
    {"256", 2, {20, 3}, 1, 1, 256, 0, 32, false, HOLA_BF16, 0},
    {"no rows", 2, {0, 0}, 1, 1, 64, 0, 32, false, HOLA_BF16, 0},
};

struct attention_case {
    struct shape f;
    struct attention_ref ref;
    int64_t cu[MOST_SEQUENCES + 1], q, k, b;
};
static void case_open(struct attention_case *c, const struct shape *f, uint64_t seed) {
    struct attention_ref *a = &c->ref;
    *c = (struct attention_case){.f = *f};
    for (int64_t i = 0; i < f->N; i++) c->cu[i + 1] = c->cu[i] + f->len[f->cu_bits ? i : 0];
    *a = (struct attention_ref){.T = c->cu[f->N], .N = f->N, .H = f->H, .HK = f->HK, .D = f->D, .window = f->window};
    a->cu = c->cu, a->scale = f->scale != 0 ? f->scale : 1 / sqrt((double)f->D);
    c->q = a->T * a->H * a->D, c->k = a->T * a->HK * a->D, c->b = a->T * a->H;
    a->q = raw_random(c->q, -2, 2, seed + 1, f->dtype), a->k = raw_random(c->k, -2, 2, seed + 2, f->dtype);
    a->v = raw_random(c->k, -1, 1, seed + 3, f->dtype);
    a->dout = f->inference ? NULL : raw_random(c->q, -1, 1, seed + 4, f->dtype);
    a->out = raw_random(c->q, 0, 0, 0, HOLA_F32), a->lse = raw_random(c->b, 0, 0, 0, HOLA_F32);
    a->dq = raw_random(c->q, 0, 0, 0, HOLA_F32), a->dk = raw_random(c->k, 0, 0, 0, HOLA_F32);
    a->dv = raw_random(c->k, 0, 0, 0, HOLA_F32);
}
static void case_close(struct attention_case *c) {
    struct attention_ref *a = &c->ref;
    double *all[] = {a->q, a->k, a->v, a->dout, a->out, a->lse, a->dq, a->dk, a->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

struct call {
    hola_attention_args a;
    struct raw_buffer q, k, v, dout, cu, out, lse, dq, dk, dv;
};
static void call_open(const struct dev *d, struct call *x, const struct attention_case *c) {
    const struct shape *f = &c->f;
    const struct attention_ref *r = &c->ref;
    int32_t narrow[MOST_SEQUENCES + 1];
    hola_attention_args *a = &x->a;
    for (int64_t i = 0; i <= f->N; i++) narrow[i] = (int32_t)c->cu[i];
    *x = (struct call){.a = {.size = sizeof x->a, .H = f->H, .HK = f->HK, .D = f->D, .window = f->window}};
    a->dtype = f->dtype, a->scale = (float)f->scale;
    a->rows = (hola_rows){.T = r->T, .N = r->N, .cu_bits = f->cu_bits};
    x->cu = raw_bytes(d, f->cu_bits == 64 ? (void *)c->cu : (void *)narrow, (f->N + 1) * (f->cu_bits == 64 ? 8 : 4));
    if (f->cu_bits) a->rows.cu = x->cu.p;
    x->q = raw_numbers(d, r->q, c->q, f->dtype), x->k = raw_numbers(d, r->k, c->k, f->dtype);
    x->v = raw_numbers(d, r->v, c->k, f->dtype), x->dout = raw_numbers(d, r->dout, c->q, f->dtype);
    x->out = raw_numbers(d, NULL, c->q, f->dtype), x->lse = raw_numbers(d, NULL, c->b, HOLA_F32);
    x->dq = raw_numbers(d, NULL, c->q, f->dtype), x->dk = raw_numbers(d, NULL, c->k, f->dtype);
    x->dv = raw_numbers(d, NULL, c->k, f->dtype);
    a->q = x->q.p, a->k = x->k.p, a->v = x->v.p, a->out = x->out.p, a->lse = f->inference ? NULL : x->lse.p;
    a->dout = x->dout.p, a->dq = x->dq.p, a->dk = x->dk.p, a->dv = x->dv.p;
}
static void call_run(const struct dev *d, struct call *x, bool backward) {
    const int64_t bytes = hola_attention_work_bytes(&x->a, 0, backward);
    assert_true(bytes >= 0);
    struct raw_buffer work = raw_bytes(d, NULL, bytes);
    const hola_where w = raw_where(d, &work);
    CHECK_OK((backward ? hola_attention_backward : hola_attention_forward)(&w, &x->a));
    free(raw_take(d, &work, "work"));
}

enum { RESULTS = 5 };
static void results_of(struct raw_result r[RESULTS], struct call *x, const struct attention_case *c) {
    const struct attention_ref *a = &c->ref;
    const bool back = !c->f.inference;
    const struct raw_result all[RESULTS] = {
        {"out", &x->out, a->out, a->T, a->H, a->D, 7e-3, true, true},
        {"lse", &x->lse, a->lse, a->T, a->H, 1, 1e-3, false, back},
        {"dq", &x->dq, a->dq, a->T, a->H, a->D, 1e-2, true, back},
        {"dk", &x->dk, a->dk, a->T, a->HK, a->D, 1e-2, true, back},
        {"dv", &x->dv, a->dv, a->T, a->HK, a->D, 1e-2, true, back},
    };
    memcpy(r, all, sizeof all);
}
static void run_case(const struct dev *d, struct attention_case *c, double *got[RESULTS], struct call *x) {
    struct raw_result r[RESULTS];
    struct raw_buffer *inputs[] = {&x->q, &x->k, &x->v, &x->dout, &x->cu};
    call_open(d, x, c);
    call_run(d, x, false);
    if (!c->f.inference) call_run(d, x, true);
    results_of(r, x, c);
    raw_results_take(d, r, RESULTS, c->f.dtype, c->f.what, got);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) free(raw_take(d, inputs[i], "an input"));
}
/* The worst result, in units of what is allowed. quiet: else a bad one fails. */
static double compare(struct call *x, const struct attention_case *c, double *const got[RESULTS], bool quiet) {
    struct raw_result r[RESULTS];
    results_of(r, x, c);
    return raw_results_distance(r, RESULTS, c->f.dtype, c->f.what, got, quiet);
}

static void every_shape(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct attention_case c;
        struct call x;
        double *got[RESULTS];
        case_open(&c, &shapes[i], 1000 * i);
        attention_ref_run(&c.ref);
        run_case(&d, &c, got, &x);
        compare(&x, &c, got, false);
        raw_results_free(got, RESULTS);
        case_close(&c);
    }
    dev_close(&d);
}
/* The comparison finds every mistake of the list; the same bits come whatever a sequence is packed with. */
static void wrong_versions(void **state) {
    static const struct shape shape = {"wrong", 3, {70, 40, 66}, 2, 2, 64, 9, 32, false, HOLA_BF16, 0.2};
    struct dev d = dev_open(false);
    struct attention_case c;
    struct call x;
    double *got[RESULTS];
    (void)state;
    case_open(&c, &shape, 21);
    run_case(&d, &c, got, &x);
    for (int m = 0; m < ATTENTION_MISTAKES; m++) {
        c.ref.mistake = (enum attention_mistake)m;
        attention_ref_run(&c.ref);
        const double e = compare(&x, &c, got, true);
        if (m == ATTENTION_RIGHT ? !(e <= 1) : e <= 2) fail_msg("mistake %d is %.3g times as far off as allowed", m, e);
    }
    struct shape alone = shape;
    struct attention_case one;
    double *own[RESULTS];
    alone.N = 1;
    case_open(&one, &alone, 22);
    double *to[] = {one.ref.q, one.ref.k, one.ref.v, one.ref.dout};
    double *from[] = {c.ref.q, c.ref.k, c.ref.v, c.ref.dout};
    for (int i = 0; i < 4; i++) memcpy(to[i], from[i], (size_t)(i % 3 ? one.k : one.q) * sizeof(double));
    run_case(&d, &one, own, &x);
    assert_memory_equal(own[0], got[0], (size_t)one.q * sizeof(double));
    for (int i = 2; i < RESULTS; i++) assert_memory_equal(own[i], got[i], (size_t)one.k * sizeof(double));
    raw_results_free(own, RESULTS), raw_results_free(got, RESULTS);
    case_close(&one), case_close(&c);
    dev_close(&d);
}
/* Whatever cu says: no fault, and nothing outside of the arrays is touched. */
static void wrong_cu(void **state) {
    static const int64_t bad[][5] = {
        {-5, 10, 30, 40, 60}, {0, 30, 10, 40, 60},  {0, 10, 30, 40, 1 << 20}, {INT64_MIN, INT64_MAX, 0, 3, 60},
        {60, 60, 60, 60, 60}, {20, 25, 30, 40, 50}, {0, 0, 0, 0, 0},          {59, 0, 0, 0, INT32_MAX},
    };
    struct dev d = dev_open(false);
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            struct shape f = {"wrong cu", 4, {10, 20, 10, 20}, 1, 1, 64, 0, 32, false, HOLA_BF16, 0};
            struct attention_case c;
            struct call x;
            double *got[RESULTS];
            if (kind) f.D = 12, f.dtype = HOLA_F32, f.cu_bits = 64;
            case_open(&c, &f, 31);
            memcpy(c.cu, bad[i], sizeof bad[i]);
            run_case(&d, &c, got, &x);
            raw_results_free(got, RESULTS);
            case_close(&c);
        }
    dev_close(&d);
}

/* ---- what is refused, before anything is launched: all pointers are of the host ---- */

static char memory[1 << 14] __attribute__((aligned(256)));
static hola_attention_args good(void) {
    hola_attention_args a = {.size = sizeof a, .rows = {.T = 6, .N = 2}, .H = 1, .HK = 1, .D = 4};
    a.q = a.k = a.v = a.dout = memory, a.lse = (float *)memory;
    a.out = a.dq = a.dk = a.dv = memory;
    return a;
}
#define REFUSES(status, way, change)                                                                     \
    do {                                                                                                 \
        hola_attention_args a = good();                                                                  \
        hola_where w = {.size = sizeof w, .work = memory, .work_bytes = 0};                              \
        change;                                                                                          \
        const hola_status got = hola_attention_##way(&w, &a);                                            \
        if (got != (status)) fail_msg("%s: %s (%s)", #change, hola_status_text(got), hola_last_error()); \
        assert_true(strlen(hola_last_error()) > 0 && !strchr(hola_last_error(), '\n'));                  \
    } while (0)

static void refused(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    REFUSES(HOLA_EINVAL, forward, a.size--);
    REFUSES(HOLA_EINVAL, forward, w.size = 0);
    REFUSES(HOLA_EINVAL, forward, (void)0); /* no workspace */
    REFUSES(HOLA_EINVAL, backward, (void)0);
    REFUSES(HOLA_EINVAL, forward, a.flags = 1);
    REFUSES(HOLA_EINVAL, forward, a.scale = NAN);
    REFUSES(HOLA_EINVAL, forward, a.rows.T = 7);
    REFUSES(HOLA_EINVAL, forward, a.rows.N = 0);
    REFUSES(HOLA_EINVAL, forward, a.H = 0);
    REFUSES(HOLA_EINVAL, forward, a.HK = 2);
    REFUSES(HOLA_EINVAL, forward, a.D = 0);
    REFUSES(HOLA_EINVAL, forward, a.window = -1);
    REFUSES(HOLA_EINVAL, forward, a.dtype = HOLA_F16);
    REFUSES(HOLA_EINVAL, forward, a.q = NULL);
    REFUSES(HOLA_EINVAL, forward, a.k = memory + 8);
    REFUSES(HOLA_EINVAL, forward, a.out = NULL);
    REFUSES(HOLA_EINVAL, forward, a.lse = (float *)(memory + 2));
    REFUSES(HOLA_EINVAL, forward, w.device = 77);
    REFUSES(HOLA_EINVAL, backward, a.dout = NULL);
    REFUSES(HOLA_EINVAL, backward, a.lse = NULL);
    REFUSES(HOLA_EINVAL, backward, a.dv = NULL);
    REFUSES(HOLA_ENOTSUP, forward, w.device = -1);
    REFUSES(HOLA_ENOTSUP, forward, a.D = 513);
    REFUSES(HOLA_ENOTSUP, forward, a.H = 65536);
    REFUSES(HOLA_ENOTSUP, forward, a.rows.T = 2000000000; a.H = 1000);
    assert_int_equal(hola_attention_work_bytes(NULL, 0, false), -1);
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
