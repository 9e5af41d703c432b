/* cuda_raw.c -- the gated delta rule on raw pointers (include/hola_ops.h) against a recurrence in double: shapes, ragged
 * rows, states and their gradients, gates, norms, types; every array between guard bytes, every output and the
 * workspace poisoned. Then wrong versions, wrong cu and wrong arguments. */
#include "raw_case.h"
#include "raw_gdn_ref.h"
#include <time.h>

enum { MOST_SEQUENCES = 100 };

struct shape {
    const char *what;
    int64_t N, len[8]; /* lengths of the sequences, repeated; cu_bits 0: all are len[0] */
    int64_t H, HV, K, V;
    int flags, cu_bits;
    hola_dtype dtype, gate_dtype;
    double scale, gate; /* 0: K^-1/2; gates between `gate` and 0 */
    bool h0, ht, m, dht, inference;
    const char *forward, *backward; /* the kernels that are meant; NULL: any */
};
enum { ALL = HOLA_GDN_NORM | HOLA_GDN_GATE | HOLA_GDN_SIGMOID };

struct raw_case {
    struct shape f;
    struct gdn_ref ref;
    int64_t cu[MOST_SEQUENCES + 1], qk, v, b, S;
};

static void case_open(struct raw_case *c, const struct shape *f, uint64_t seed) {
    struct gdn_ref *a = &c->ref;
    const bool gate = f->flags & HOLA_GDN_GATE, norm = f->flags & HOLA_GDN_NORM, sigmoid = f->flags & HOLA_GDN_SIGMOID;
    const double key = norm ? 1 : 1 / sqrt((double)f->K);
    int64_t cycle = 1;
    while (cycle < 8 && f->len[cycle] >= 0 && f->cu_bits) cycle++;
    *c = (struct raw_case){.f = *f};
    for (int64_t i = 0; i < f->N; i++) c->cu[i + 1] = c->cu[i] + f->len[i % cycle];
    *a = (struct gdn_ref){.T = c->cu[f->N], .N = f->N, .H = f->H, .HV = f->HV, .K = f->K, .V = f->V};
    a->cu = c->cu, a->flags = f->flags, a->scale = f->scale != 0 ? f->scale : 1 / sqrt((double)f->K);
    c->qk = a->T * a->H * a->K, c->v = a->T * a->HV * a->V, c->b = a->T * a->HV, c->S = a->N * a->HV * a->K * a->V;
    a->q = raw_random(c->qk, -1.7 * key, 1.7 * key, seed + 1, f->dtype);
    a->k = raw_random(c->qk, -1.7 * key, 1.7 * key, seed + 2, f->dtype);
    a->v = raw_random(c->v, -1, 1, seed + 3, f->dtype);
    a->g = raw_random(c->b, gate ? -3 : f->gate, gate ? 3 : 0, seed + 4, f->gate_dtype);
    if (!gate && f->gate < -10) /* most rows decay little, some everything */
        for (int64_t i = 0; i < c->b; i++)
            if (i * 7919 % 5) a->g[i] = (double)hl_from_bf16(hl_to_bf16((float)(a->g[i] * 1e-5)));
    a->beta = raw_random(c->b, sigmoid ? -2 : 0.05, sigmoid ? 2 : 0.95, seed + 5, f->gate_dtype);
    a->A_log = raw_random(a->HV, -3, 0, seed + 6, HOLA_F32);
    a->dt_bias = raw_random(a->HV, -1, 1, seed + 7, HOLA_F32);
    a->h0 = f->h0 ? raw_random(c->S, -0.5, 0.5, seed + 8, HOLA_F32) : NULL;
    a->dht = f->dht ? raw_random(c->S, -0.5, 0.5, seed + 9, HOLA_F32) : NULL;
    a->dout = raw_random(c->v, -1, 1, seed + 10, f->dtype);
    double **out[] = {&a->out,   &a->dv, &a->dq,  &a->dk,     &a->m,       &a->dg,
                      &a->dbeta, &a->ht, &a->dh0, &a->dA_log, &a->ddt_bias};
    const int64_t n[] = {c->v, c->v, c->qk, c->qk, c->b, c->b, c->b, c->S, c->S, a->HV, a->HV};
    for (int i = 0; i < 11; i++) *out[i] = raw_random(n[i], 0, 0, 0, HOLA_F32);
}
static void case_close(struct raw_case *c) {
    struct gdn_ref *a = &c->ref;
    double *all[] = {a->q,  a->k,  a->v,  a->g, a->beta, a->A_log, a->dt_bias, a->h0,  a->dht,    a->dout,    a->out,
                     a->dv, a->dq, a->dk, a->m, a->dg,   a->dbeta, a->ht,      a->dh0, a->dA_log, a->ddt_bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- the arrays of a call ---- */

struct call {
    hola_gdn_args a;
    struct raw_buffer q, k, v, g, beta, A_log, dt_bias, h0, dht, dout, cu, work, kept;
    struct raw_buffer out, ht, m, dq, dk, dv, dg, dbeta, dh0, dA_log, ddt_bias;
};
static void call_open(const struct dev *d, struct call *x, const struct raw_case *c) {
    const struct shape *f = &c->f;
    const struct gdn_ref *r = &c->ref;
    int32_t narrow[MOST_SEQUENCES + 1];
    for (int64_t i = 0; i <= f->N; i++) narrow[i] = (int32_t)c->cu[i];
    *x = (struct call){.a = {.size = sizeof x->a, .flags = f->flags, .H = f->H, .HV = f->HV, .K = f->K, .V = f->V}};
    x->a.rows = (hola_rows){.T = r->T, .N = r->N, .cu_bits = f->cu_bits};
    x->a.dtype = f->dtype, x->a.gate_dtype = f->gate_dtype, x->a.scale = (float)f->scale;
    x->cu = raw_bytes(d, f->cu_bits == 64 ? (void *)c->cu : (void *)narrow, (f->N + 1) * (f->cu_bits == 64 ? 8 : 4));
    if (f->cu_bits) x->a.rows.cu = x->cu.p;
    if (f->N == 3) x->a.rows.longest = f->len[0]; /* a hint; without it twice the mean is taken */
    x->q = raw_numbers(d, r->q, c->qk, f->dtype), x->k = raw_numbers(d, r->k, c->qk, f->dtype);
    x->v = raw_numbers(d, r->v, c->v, f->dtype), x->dout = raw_numbers(d, r->dout, c->v, f->dtype);
    x->g = raw_numbers(d, r->g, c->b, f->gate_dtype), x->beta = raw_numbers(d, r->beta, c->b, f->gate_dtype);
    x->A_log = raw_numbers(d, r->A_log, r->HV, HOLA_F32), x->dt_bias = raw_numbers(d, r->dt_bias, r->HV, HOLA_F32);
    x->h0 = raw_numbers(d, r->h0, c->S, HOLA_F32), x->dht = raw_numbers(d, r->dht, c->S, HOLA_F32);
    x->out = raw_numbers(d, NULL, c->v, f->dtype), x->ht = raw_numbers(d, NULL, c->S, HOLA_F32);
    x->m = raw_numbers(d, NULL, c->b, HOLA_F32);
    x->dq = raw_numbers(d, NULL, c->qk, f->dtype), x->dk = raw_numbers(d, NULL, c->qk, f->dtype);
    x->dv = raw_numbers(d, NULL, c->v, f->dtype), x->dg = raw_numbers(d, NULL, c->b, HOLA_F32);
    x->dbeta = raw_numbers(d, NULL, c->b, HOLA_F32), x->dh0 = raw_numbers(d, NULL, c->S, HOLA_F32);
    x->dA_log = raw_numbers(d, NULL, r->HV, HOLA_F32), x->ddt_bias = raw_numbers(d, NULL, r->HV, HOLA_F32);
    hola_gdn_args *a = &x->a;
    a->q = x->q.p, a->k = x->k.p, a->v = x->v.p, a->g = x->g.p, a->beta = x->beta.p;
    if (f->flags & HOLA_GDN_GATE) a->A_log = x->A_log.p, a->dt_bias = x->dt_bias.p;
    a->h0 = f->h0 ? x->h0.p : NULL;
    a->out = x->out.p, a->ht = f->ht ? x->ht.p : NULL, a->m = f->m ? x->m.p : NULL;
    a->dout = x->dout.p, a->dht = f->dht ? x->dht.p : NULL;
    a->dq = x->dq.p, a->dk = x->dk.p, a->dv = x->dv.p, a->dg = x->dg.p, a->dbeta = x->dbeta.p;
    a->dh0 = f->h0 ? x->dh0.p : NULL;
    if (f->flags & HOLA_GDN_GATE) a->dA_log = x->dA_log.p, a->ddt_bias = x->ddt_bias.p;
    x->kept = raw_bytes(d, NULL, hola_gdn_kept_bytes(a));
    a->kept = f->inference ? NULL : x->kept.p;
}
static void call_run(const struct dev *d, struct call *x, bool backward) {
    const int64_t bytes = hola_gdn_work_bytes(&x->a, 0, backward);
    assert_true(bytes >= 0);
    x->work = raw_bytes(d, NULL, bytes);
    const hola_where w = raw_where(d, &x->work);
    CHECK_OK((backward ? hola_gdn_backward : hola_gdn_forward)(&w, &x->a));
    free(raw_take(d, &x->work, "work"));
}

/* ---- comparison ---- */

/* What PYTHON callers are promised: docs/cuda.md. */
static double allowed(const char *name, hola_dtype t) {
    if (t == HOLA_F32) return 2e-4;
    if (!strcmp(name, "out") || !strcmp(name, "ht")) return 7e-3;
    if (!strcmp(name, "m")) return 8e-3;
    if (!strcmp(name, "dbeta")) return 1.2e-2;
    return name[1] == 'g' || name[1] == 'A' || name[1] == 'd' ? 2.5e-2 : 1e-2;
}
struct result {
    const char *name;
    struct raw_buffer *buffer;
    const double *want;
    int64_t rows, heads, width;
    hola_dtype type;
    bool there;
};
enum { RESULTS = 11 };
static void results_of(struct result r[RESULTS], struct call *x, const struct raw_case *c) {
    const struct gdn_ref *a = &c->ref;
    const struct shape *f = &c->f;
    const bool back = !f->inference, gate = f->flags & HOLA_GDN_GATE;
    const struct result all[RESULTS] = {
        {"out", &x->out, a->out, a->T, a->HV, a->V, f->dtype, true},
        {"ht", &x->ht, a->ht, a->N * a->K, a->HV, a->V, HOLA_F32, f->ht},
        {"m", &x->m, a->m, a->T, a->HV, 1, HOLA_F32, f->m},
        {"dq", &x->dq, a->dq, a->T, a->H, a->K, f->dtype, back},
        {"dk", &x->dk, a->dk, a->T, a->H, a->K, f->dtype, back},
        {"dv", &x->dv, a->dv, a->T, a->HV, a->V, f->dtype, back},
        {"dg", &x->dg, a->dg, a->T, a->HV, 1, HOLA_F32, back},
        {"dbeta", &x->dbeta, a->dbeta, a->T, a->HV, 1, HOLA_F32, back},
        {"dh0", &x->dh0, a->dh0, a->N * a->K, a->HV, a->V, HOLA_F32, back && f->h0},
        {"dA_log", &x->dA_log, a->dA_log, 1, 1, a->HV, HOLA_F32, back && gate},
        {"ddt_bias", &x->ddt_bias, a->ddt_bias, 1, 1, a->HV, HOLA_F32, back && gate},
    };
    memcpy(r, all, sizeof all);
}
/* Everything back to the host; got[i]: as results_of lists it, NULL where it is not wanted. */
static void call_close(const struct dev *d, struct call *x, const struct raw_case *c, double *got[RESULTS]) {
    struct result r[RESULTS];
    struct raw_buffer *inputs[] = {&x->q,       &x->k,  &x->v,   &x->g,    &x->beta, &x->A_log,
                                   &x->dt_bias, &x->h0, &x->dht, &x->dout, &x->cu,   &x->kept};
    results_of(r, x, c);
    for (int i = 0; i < RESULTS; i++) {
        const int64_t n = r[i].rows * r[i].heads * r[i].width;
        got[i] = raw_numbers_take(d, r[i].buffer, n, r[i].type, r[i].name);
        if (!r[i].there) { /* what was not asked for is not touched */
            for (int64_t j = 0; j < n; j++)
                if (got[i][j] == got[i][j]) fail_msg("%s: %s was written", c->f.what, r[i].name);
            free(got[i]);
            got[i] = NULL;
        }
    }
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) free(raw_take(d, inputs[i], "an input or kept"));
}
/* The worst result, in units of what is allowed. quiet: else a bad one fails. */
static double compare(struct call *x, const struct raw_case *c, double *const got[RESULTS], bool quiet) {
    struct result r[RESULTS];
    double worst = 0;
    results_of(r, x, c);
    for (int i = 0; i < RESULTS; i++) {
        if (!got[i]) continue;
        const double e =
            raw_distance(got[i], r[i].want, r[i].rows, r[i].heads, r[i].width, allowed(r[i].name, c->f.dtype));
        if (getenv("RAW_PRINT")) print_message("  %-22s %-8s %.3f\n", c->f.what, r[i].name, e);
        if (!quiet && !(e <= 1)) fail_msg("%s: %s is %.3g times as far off as allowed", c->f.what, r[i].name, e);
        worst = fmax(worst, e);
    }
    return worst;
}
/* Chips before Hopper take other kernels. */
static bool fast_chip(void) {
    const hola_gdn_args a = {
        .size = sizeof a, .rows = {.T = 64, .N = 1}, .H = 1, .HV = 1, .K = 64, .V = 64, .dtype = HOLA_BF16};
    return !strcmp(hola_gdn_kernels(&a, 0, true), "fused");
}
static void run_case(const struct dev *d, const struct shape *f, uint64_t seed) {
    struct raw_case c;
    struct call x;
    double *got[RESULTS];
    case_open(&c, f, seed);
    gdn_ref_run(&c.ref, !f->inference);
    call_open(d, &x, &c);
    const char *name = hola_gdn_kernels(&x.a, 0, false), *back = hola_gdn_kernels(&x.a, 0, true);
    assert_non_null(name);
    assert_non_null(back);
    if (f->forward && fast_chip() && strcmp(name, f->forward))
        fail_msg("%s: takes %s, not %s", f->what, name, f->forward);
    if (f->backward && fast_chip() && strcmp(back, f->backward))
        fail_msg("%s: takes %s, not %s", f->what, back, f->backward);
    const clock_t began = clock();
    call_run(d, &x, false);
    if (!f->inference) call_run(d, &x, true);
    call_close(d, &x, &c, got);
    if (getenv("RAW_PRINT")) print_message("%s: %.2f s\n", f->what, (double)(clock() - began) / CLOCKS_PER_SEC);
    compare(&x, &c, got, false);
    for (int i = 0; i < RESULTS; i++) free(got[i]);
    case_close(&c);
}

/* ---- cases ---- */

static const struct shape shapes[] = {
    {"float, odd sizes",
     3,
     {65, 0, 7, -1},
     1,
     2,
     20,
     12,
     ALL,
     32,
     HOLA_F32,
     HOLA_F32,
     0,
     0,
     true,
     true,
     true,
     true,
     false,
     "plain",
     "plain"},
    {"float, no states", 2, {63, -1}, 2,     2,     33,   65,    0,     0,       HOLA_F32,
     HOLA_F32,           1, -1,       false, false, true, false, false, "plain", "plain"},
    {"float, 64", 1,   {70, -1}, 2,    4,     64,    64,   HOLA_GDN_NORM, 0,       HOLA_F32,
     HOLA_BF16,   0.3, -0.1,     true, false, false, true, false,         "plain", "plain"},
    {"bf16, odd sizes",
     4,
     {5, 64, 0, 31, -1},
     1,
     3,
     36,
     20,
     ALL | HOLA_GDN_NEG,
     64,
     HOLA_BF16,
     HOLA_BF16,
     0,
     0,
     true,
     true,
     true,
     true,
     false,
     "plain",
     "plain"},
    {"chunk", 3,    {64, 0, 66, -1}, 1,       2,      64, 64, ALL, 32, HOLA_BF16, HOLA_F32, 0, 0, true, true,
     true,    true, false,           "chunk", "fused"},
    {"chunk, even", 2, {65, -1}, 1,     1,     64,    128,   0,     0,       HOLA_BF16,
     HOLA_F32,      1, -5,       false, false, false, false, false, "chunk", "fused"},
    {"chunk, wide values",
     2,
     {70, 3, -1},
     1,
     1,
     64,
     192,
     HOLA_GDN_NORM,
     64,
     HOLA_BF16,
     HOLA_F32,
     0,
     -0.1,
     true,
     true,
     false,
     true,
     false,
     "chunk",
     "chunks"},
    {"scan",    4,         {0, 65, 3, 0, -1},
     1,         2,         128,
     64,        ALL,       32,
     HOLA_BF16, HOLA_BF16, 0,
     0,         true,      true,
     true,      true,      false,
     "scan",    "fused"},
    {"scan, even", 1, {129, -1}, 1,     1,    128,   128,   ALL,   0,      HOLA_BF16,
     HOLA_F32,     0, 0,         false, true, false, false, false, "scan", "fused"},
    {"scan, 256", 2, {66, 1, -1}, 1,    1,    256,  64,   HOLA_GDN_NORM, 64,     HOLA_BF16,
     HOLA_F32,    0, -5000,       true, true, true, true, false,         "scan", "fused"},
    {"step", 3, {5, -1}, 1, 2, 64, 64, ALL, 0, HOLA_BF16, HOLA_F32, 0, 0, true, true, true, false, true, "step", NULL},
    {"step, float", 2, {1, -1}, 1,    1,    128,   64,    0,    0,      HOLA_F32,
     HOLA_F32,      1, -1,      true, true, false, false, true, "step", NULL},
    {"no rows", 2, {0, -1}, 1,    2,    64,   64,   ALL,   32,   HOLA_BF16,
     HOLA_F32,  0, 0,       true, true, true, true, false, NULL, NULL},
};

static void every_shape(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) run_case(&d, &shapes[i], 1000 * i);
    dev_close(&d);
}

/* Many and long sequences: kernels that fill a chip, and those that cut a sequence into parts. */
static const struct shape long_shapes[] = {
    {"ring",    48,       {1, 65, 0, 3, 2, 1, 2, 1},
     1,         2,        128,
     64,        ALL,      32,
     HOLA_BF16, HOLA_F32, 0,
     0,         true,     true,
     true,      true,     false,
     "ring",    "fused"},
    {"ring, two panels",
     24,
     {2, 66, 0, 1, 3, 0, 2, 1},
     1,
     4,
     128,
     128,
     HOLA_GDN_NORM,
     64,
     HOLA_BF16,
     HOLA_F32,
     0,
     -0.1,
     true,
     true,
     false,
     true,
     false,
     "ring",
     "fused"},
    {"ring_split", 3,     {850, 0, 70, -1}, 1,      1, 64, 64, ALL, 64, HOLA_BF16, HOLA_F32, 0, 0, true, true, true,
     true,         false, "ring_split",     "fused"},
    {"ring_split, even", 1,        {900, -1}, 1,     1,     64,    64,   0,     0,
     HOLA_BF16,          HOLA_F32, 0,         -5000, false, false, true, false, false,
     "ring_split",       "fused"},
    {"splits to memory", 2, {800, 3, -1}, 1,    1,    64,    192,  HOLA_GDN_NORM, 32,   HOLA_BF16,
     HOLA_F32,           0, -0.01,        true, true, false, true, false,         NULL, "chunks"},
};
static void long_rows(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    for (size_t i = 0; i < sizeof long_shapes / sizeof *long_shapes; i++) run_case(&d, &long_shapes[i], 77 + 1000 * i);
    dev_close(&d);
}

/* h0 alone, ht alone, dht alone, neither out nor m: every choice of optional arrays, plain kernels and fast ones. */
static void every_choice(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    for (int i = 0; i < 16; i++)
        for (int fast = 0; fast < 2; fast++) {
            if (dev_slow(&d) && fast && i > 8) continue; /* m alone */
            struct shape f = {"choice", 2, {66, 2, -1}, 1,     1,     64,    64,    HOLA_GDN_NORM, 32,   HOLA_BF16,
                              HOLA_F32, 0, -0.1,        false, false, false, false, false,         NULL, NULL};
            if (!fast) f.K = 24, f.V = 8, f.dtype = i % 2 ? HOLA_F32 : HOLA_BF16;
            f.h0 = i & 1, f.ht = i & 2, f.dht = i & 4, f.m = i & 8, f.inference = (i & 12) == 12;
            run_case(&d, &f, 5000 + (uint64_t)i);
        }
    dev_close(&d);
}

/* out NULL: it goes to more workspace, and everything else is as with it */
static void no_out(void **state) {
    struct dev d = dev_open(false);
    struct shape f = shapes[4];
    struct raw_case c;
    struct call x;
    double *got[RESULTS];
    (void)state;
    f.inference = true;
    case_open(&c, &f, 3);
    gdn_ref_run(&c.ref, 0);
    call_open(&d, &x, &c);
    x.a.out = NULL;
    struct raw_buffer work = raw_bytes(&d, NULL, hola_gdn_work_bytes(&x.a, 0, false) + hola_gdn_out_bytes(&x.a));
    hola_where w = raw_where(&d, &work);
    CHECK_OK(hola_gdn_forward(&w, &x.a));
    w.work_bytes = hola_gdn_out_bytes(&x.a);
    assert_int_equal(hola_gdn_forward(&w, &x.a), HOLA_EINVAL);
    free(raw_take(&d, &work, "work"));
    call_close(&d, &x, &c, got);
    assert_true(got[0][0] != got[0][0]); /* out was not written */
    free(got[0]);
    got[0] = NULL;
    compare(&x, &c, got, false);
    for (int i = 0; i < RESULTS; i++) free(got[i]);
    case_close(&c);
    dev_close(&d);
}

/* The same call twice gives the same bits, at other addresses and in other workspace. */
static void same_bits(void **state) {
    struct dev d = dev_open(false);
    double *got[2][RESULTS];
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct raw_case c;
        struct call x;
        case_open(&c, &shapes[7], 11);
        struct raw_buffer shift = raw_bytes(&d, NULL, 1 + 4096 * i);
        call_open(&d, &x, &c);
        call_run(&d, &x, false);
        call_run(&d, &x, true);
        call_close(&d, &x, &c, got[i]);
        free(raw_take(&d, &shift, "shift"));
        if (i == 1) {
            struct result r[RESULTS];
            results_of(r, &x, &c);
            for (int j = 0; j < RESULTS; j++)
                for (int64_t k = 0; got[0][j] && k < r[j].rows * r[j].heads * r[j].width; k++)
                    if (got[0][j][k] != got[1][j][k]) fail_msg("%s differs at %lld", r[j].name, (long long)k);
        }
        case_close(&c);
    }
    for (int j = 0; j < RESULTS; j++) free(got[0][j]), free(got[1][j]);
    dev_close(&d);
}

/* The comparison finds every mistake of the list, in plain kernels' results and in those of fast ones. */
static void wrong_versions(void **state) {
    static const struct shape fast = {"wrong",       2,    {66, 70, -1}, 2,        4,    64,    64,
                                      HOLA_GDN_NORM, 32,   HOLA_BF16,    HOLA_F32, 0.2,  -0.02, true,
                                      true,          true, true,         false,    NULL, NULL};
    struct dev d = dev_open(false);
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        struct raw_case c;
        struct call x;
        double *got[RESULTS];
        struct shape f = fast;
        if (plain) f.K = 20, f.V = 12, f.dtype = HOLA_F32;
        case_open(&c, &f, 21);
        call_open(&d, &x, &c);
        call_run(&d, &x, false);
        call_run(&d, &x, true);
        call_close(&d, &x, &c, got);
        for (int m = 0; m < REF_MISTAKES; m++) {
            c.ref.mistake = (enum ref_mistake)m;
            gdn_ref_run(&c.ref, 1);
            const double e = compare(&x, &c, got, true);
            if (m == REF_RIGHT ? !(e <= 1) : e <= 2) fail_msg("mistake %d is %.3g times as far off as allowed", m, e);
        }
        for (int i = 0; i < RESULTS; i++) free(got[i]);
        case_close(&c);
    }
    dev_close(&d);
}

/* Whatever cu says, no fault, nothing outside of the arrays is touched, and the gradients of scalars are numbers. */
static void wrong_cu(void **state) {
    static const int64_t bad[][5] = {
        {-5, 30, 70, 90, 140},     {0, 70, 30, 90, 140},
        {0, 30, 70, 90, 1 << 20},  {INT64_MIN, INT64_MAX, 0, 3, INT64_MAX},
        {140, 140, 140, 140, 140}, {20, 30, 70, 90, 100},
        {0, 0, 0, 0, 0},           {INT32_MAX, INT32_MIN, 7, INT32_MIN, INT32_MAX},
    };
    struct dev d = dev_open(false);
    (void)state;
    for (int kind = 0; kind < 4; kind++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            if (dev_slow(&d) && (i + (size_t)kind) % 2) continue;
            struct shape f = {"wrong cu", 4,        {30, 40, 20, 50, -1},
                              1,          1,        64,
                              64,         ALL,      kind % 2 ? 64 : 32,
                              HOLA_BF16,  HOLA_F32, 0,
                              0,          true,     true,
                              true,       true,     false,
                              NULL,       NULL};
            struct raw_case c;
            struct call x;
            double *got[RESULTS];
            if (kind == 1) f.K = 128;
            if (kind == 2) f.K = 20, f.V = 12, f.dtype = HOLA_F32;
            if (kind == 3) f.V = 192;
            case_open(&c, &f, 31);
            memcpy(c.cu, bad[i], sizeof bad[i]);
            call_open(&d, &x, &c);
            call_run(&d, &x, false);
            call_run(&d, &x, true);
            for (int j = 0; j < RESULTS; j++) got[j] = NULL;
            call_close(&d, &x, &c, got);
            for (int j = RESULTS - 2; j < RESULTS; j++) /* dA_log, ddt_bias: sums over the rows of sequences */
                for (int64_t h = 0; h < f.HV; h++) assert_false(isnan(got[j][h]));
            for (int j = 0; j < RESULTS; j++) free(got[j]);
            case_close(&c);
        }
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape), cmocka_unit_test(long_rows), cmocka_unit_test(every_choice),
        cmocka_unit_test(no_out),      cmocka_unit_test(same_bits), cmocka_unit_test(wrong_versions),
        cmocka_unit_test(wrong_cu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
