/* cuda_raw_linear.c -- KDA and gated linear attention on raw pointers (include/hola_ops.h) against a double reference:
 * rows, states, types, scales; every array between guard bytes, outputs and workspace poisoned. Then wrong versions,
 * wrong cu and wrong arguments. */
#include "raw_case.h"
#include "raw_linear_ref.h"

enum { MOST_SEQUENCES = 6 };
struct shape {
    const char *what;
    bool kda;
    int64_t N, len[MOST_SEQUENCES]; /* cu_bits 0: all are len[0] */
    int64_t H, S, K, V;             /* heads of queries, of states */
    int cu_bits;
    bool h0, ht, inference; /* with gradients: dh0 where there is h0, dht where there is ht */
    hola_dtype dtype;
    double scale, low; /* low: gates go down to it */
};
static const struct shape shapes[] = {
    {"kda, float", true, 4, {9, 0, 70, 1}, 1, 2, 12, 20, 32, false, true, false, HOLA_F32, 0.5, -1},
    {"kda, float, even", true, 2, {66}, 2, 2, 64, 64, 0, false, false, false, HOLA_F32, 0, -0.1},
    {"kda, bf16, odd sizes", true, 3, {0, 30, 7}, 1, 3, 20, 12, 64, false, true, false, HOLA_BF16, 0, -1},
    {"kda, chunks", true, 5, {70, 0, 3, 130, 0}, 1, 1, 64, 64, 32, false, true, false, HOLA_BF16, 0, -1},
    {"kda, chunks, groups", true, 2, {65}, 1, 2, 128, 64, 0, false, true, false, HOLA_BF16, 0.3, -5},
    {"kda, chunks, states", true, 3, {66, 0, 4}, 1, 1, 64, 128, 64, true, true, true, HOLA_BF16, 0, -0.1},
    {"kda, back, states", true, 5, {70, 0, 128, 64, 3}, 1, 2, 64, 64, 32, true, true, false, HOLA_BF16, 0.2, -0.1},
    {"kda, back, wide", true, 2, {66}, 1, 1, 128, 128, 0, true, true, false, HOLA_BF16, 0, -0.05},
    {"kda, back, dh0", true, 3, {20, 0, 70}, 1, 1, 64, 64, 32, true, false, false, HOLA_BF16, 0, -1},
    {"kda, back, float", true, 4, {20, 0, 3, 67}, 2, 4, 12, 20, 64, true, true, false, HOLA_F32, 0.7, -0.2},
    {"kda, back, float dh0", true, 2, {9, 66}, 1, 1, 20, 12, 32, true, false, false, HOLA_F32, 0, -1},
    {"kda, float, states", true, 2, {20, 3}, 1, 1, 12, 8, 32, true, false, true, HOLA_F32, 2, -1},
    {"kda, step", true, 3, {5}, 1, 2, 64, 64, 0, true, true, true, HOLA_BF16, 0, -1},
    {"kda, no rows", true, 2, {0, 0}, 1, 2, 64, 64, 32, true, true, true, HOLA_BF16, 0.5, -1},
    {"kda, back, no rows", true, 2, {0, 0}, 1, 2, 64, 64, 32, true, true, false, HOLA_BF16, 0.5, -1},
    {"kda, back, no rows dh0", true, 2, {0, 0}, 1, 2, 64, 64, 32, true, false, false, HOLA_F32, 0.5, -1},
    {"gla, float", false, 4, {9, 0, 70, 1}, 2, 1, 12, 20, 32, false, true, false, HOLA_F32, 0.5, -1},
    {"gla, bf16, odd sizes", false, 3, {0, 30, 7}, 3, 1, 20, 12, 64, false, true, false, HOLA_BF16, 0, -1},
    {"gla, chunks", false, 5, {70, 0, 3, 130, 0}, 1, 1, 64, 64, 32, false, true, false, HOLA_BF16, 0, -1},
    {"gla, chunks, even", false, 2, {65}, 2, 2, 128, 128, 0, false, false, false, HOLA_BF16, 0.3, -5},
    {"gla, chunks, states", false, 3, {66, 0, 4}, 1, 1, 64, 128, 64, true, true, true, HOLA_BF16, 0, -0.1},
    {"gla, back, states", false, 5, {70, 0, 128, 64, 3}, 2, 2, 64, 64, 32, true, true, false, HOLA_BF16, 0.2, -0.1},
    {"gla, back, wide", false, 2, {66}, 1, 1, 128, 128, 0, true, true, false, HOLA_BF16, 0, -0.05},
    {"gla, back, splits", false, 1, {790}, 1, 1, 64, 64, 0, true, true, false, HOLA_BF16, 0, -0.01},
    {"gla, back, dh0", false, 3, {20, 0, 70}, 1, 1, 64, 64, 32, true, false, false, HOLA_BF16, 0, -1},
    {"gla, back, float", false, 4, {20, 0, 3, 67}, 4, 2, 12, 20, 64, true, true, false, HOLA_F32, 0.7, -0.2},
    {"gla, back, float dh0", false, 2, {9, 66}, 1, 1, 70, 12, 32, true, false, false, HOLA_F32, 0, -1},
    {"gla, back, steep", false, 2, {9, 66}, 1, 1, 64, 64, 32, true, true, false, HOLA_BF16, 0, -30},
    {"gla, float, states", false, 2, {20, 3}, 1, 1, 12, 8, 32, true, false, true, HOLA_F32, 2, -1},
    {"gla, step", false, 3, {5}, 2, 2, 64, 64, 0, true, true, true, HOLA_BF16, 0, -1},
    {"gla, no rows", false, 2, {0, 0}, 2, 2, 64, 64, 32, true, true, true, HOLA_BF16, 0.5, -1},
    {"gla, back, no rows", false, 2, {0, 0}, 1, 1, 64, 64, 32, true, true, false, HOLA_BF16, 0.5, -1},
};
static const struct shape normed[] = {
    /* with HOLA_KDA_NORM */
    {"norm", true, 3, {70, 0, 66}, 1, 2, 64, 64, 32, true, true, false, HOLA_BF16, 0, -1},
    {"norm, scale", true, 2, {66}, 2, 2, 128, 64, 0, false, false, false, HOLA_BF16, 0.3, -0.1},
    {"norm, states", true, 2, {70, 5}, 1, 2, 64, 64, 32, true, true, true, HOLA_BF16, 0.3, -1},
    {"norm, float", true, 3, {20, 0, 66}, 2, 4, 12, 20, 64, true, true, false, HOLA_F32, 0.7, -0.5},
    {"norm, odd sizes", true, 2, {30, 7}, 1, 3, 21, 12, 64, false, true, false, HOLA_BF16, 0, -1},
    {"norm, 256", true, 1, {9}, 1, 1, 256, 12, 0, false, true, false, HOLA_BF16, 0, -1},
    {"norm, step", true, 3, {5}, 1, 2, 64, 64, 0, true, true, true, HOLA_BF16, 0, -1},
    {"norm, no rows", true, 2, {0, 0}, 1, 2, 64, 64, 32, true, true, false, HOLA_BF16, 0.5, -1},
};

struct linear_case {
    struct shape f;
    struct linear_ref ref;
    int64_t cu[MOST_SEQUENCES + 1], q, k, v, o, g, b, states;
};
static void case_open(struct linear_case *c, const struct shape *f, bool norm, uint64_t seed) {
    struct linear_ref *a = &c->ref;
    *c = (struct linear_case){.f = *f};
    for (int64_t i = 0; i < f->N; i++) c->cu[i + 1] = c->cu[i] + f->len[f->cu_bits ? i : 0];
    *a = (struct linear_ref){.T = c->cu[f->N], .N = f->N, .H = f->H, .S = f->S, .K = f->K, .V = f->V, .cu = c->cu};
    a->scale = f->scale != 0 ? f->scale : 1 / sqrt((double)f->K);
    c->b = a->T * a->S;
    a->beta = f->kda ? raw_random(c->b, 0, 1, seed + 5, HOLA_F32) : NULL;
    c->q = a->T * a->H * a->K, c->k = a->T * linear_keys(a) * a->K, c->v = a->T * a->S * a->V;
    c->o = a->T * linear_heads(a) * a->V, c->g = a->T * a->S * a->K, c->states = a->N * a->S * a->K * a->V;
    const double unit = (norm ? 3 : 1) * sqrt(3.0 / (double)a->K); /* keys of length 1 or so; 3: without the norm */
    a->norm = norm;
    a->q = raw_random(c->q, -unit, unit, seed + 1, f->dtype), a->k = raw_random(c->k, -unit, unit, seed + 2, f->dtype);
    a->v = raw_random(c->v, -1, 1, seed + 3, f->dtype), a->g = raw_random(c->g, f->low, 0, seed + 4, HOLA_F32);
    a->h0 = f->h0 ? raw_random(c->states, -1, 1, seed + 6, HOLA_F32) : NULL;
    a->dht = f->ht && !f->inference ? raw_random(c->states, -1, 1, seed + 8, HOLA_F32) : NULL;
    a->dh0 = raw_random(c->states, 0, 0, 0, HOLA_F32);
    a->dout = f->inference ? NULL : raw_random(c->o, -1, 1, seed + 7, f->dtype);
    a->out = raw_random(c->o, 0, 0, 0, HOLA_F32), a->ht = raw_random(c->states, 0, 0, 0, HOLA_F32);
    a->m = raw_random(c->b, 0, 0, 0, HOLA_F32), a->dq = raw_random(c->q, 0, 0, 0, HOLA_F32);
    a->dk = raw_random(c->k, 0, 0, 0, HOLA_F32), a->dv = raw_random(c->v, 0, 0, 0, HOLA_F32);
    a->dg = raw_random(c->g, 0, 0, 0, HOLA_F32), a->dbeta = raw_random(c->b, 0, 0, 0, HOLA_F32);
}
static void case_close(struct linear_case *c) {
    struct linear_ref *a = &c->ref;
    double *all[] = {a->q, a->k,  a->v,  a->g,  a->beta, a->h0,    a->dout, a->out, a->ht,
                     a->m, a->dq, a->dk, a->dv, a->dg,   a->dbeta, a->dht,  a->dh0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* The arguments of both ops, of which a call takes its own. */
struct call {
    hola_kda_args kda;
    hola_gla_args gla;
    struct raw_buffer q, k, v, g, beta, h0, dout, dht, cu, kept;
    struct raw_buffer out, ht, m, dq, dk, dv, dg, dbeta, dh0;
};
static void call_open(const struct dev *d, struct call *x, const struct linear_case *c) {
    const struct shape *f = &c->f;
    const struct linear_ref *r = &c->ref;
    int32_t narrow[MOST_SEQUENCES + 1];
    for (int64_t i = 0; i <= f->N; i++) narrow[i] = (int32_t)c->cu[i];
    *x = (struct call){.kda = {.size = sizeof x->kda, .H = f->H, .HV = f->S, .K = f->K, .V = f->V},
                       .gla = {.size = sizeof x->gla, .H = f->H, .HK = f->S, .K = f->K, .V = f->V}};
    hola_kda_args *a = &x->kda;
    hola_gla_args *b = &x->gla;
    a->flags = r->norm ? HOLA_KDA_NORM : 0, a->dtype = b->dtype = f->dtype, a->scale = b->scale = (float)f->scale;
    a->rows = (hola_rows){.T = r->T, .N = r->N, .cu_bits = f->cu_bits};
    x->cu = raw_bytes(d, f->cu_bits == 64 ? (void *)c->cu : (void *)narrow, (f->N + 1) * (f->cu_bits == 64 ? 8 : 4));
    if (f->cu_bits) a->rows.cu = x->cu.p;
    b->rows = a->rows;
    x->q = raw_numbers(d, r->q, c->q, f->dtype), x->k = raw_numbers(d, r->k, c->k, f->dtype);
    x->v = raw_numbers(d, r->v, c->v, f->dtype), x->g = raw_numbers(d, r->g, c->g, HOLA_F32);
    x->beta = raw_numbers(d, r->beta, c->b, HOLA_F32), x->h0 = raw_numbers(d, r->h0, c->states, HOLA_F32);
    x->dout = raw_numbers(d, r->dout, c->o, f->dtype), x->out = raw_numbers(d, NULL, c->o, f->dtype);
    x->ht = raw_numbers(d, NULL, c->states, HOLA_F32), x->m = raw_numbers(d, NULL, c->b, HOLA_F32);
    x->dq = raw_numbers(d, NULL, c->q, f->dtype), x->dk = raw_numbers(d, NULL, c->k, f->dtype);
    x->dv = raw_numbers(d, NULL, c->v, f->dtype), x->dg = raw_numbers(d, NULL, c->g, HOLA_F32);
    x->dbeta = raw_numbers(d, NULL, c->b, HOLA_F32);
    a->q = b->q = x->q.p, a->k = b->k = x->k.p, a->v = b->v = x->v.p, a->g = b->g = x->g.p, a->beta = x->beta.p;
    a->h0 = b->h0 = f->h0 ? x->h0.p : NULL, a->out = b->out = x->out.p, a->ht = b->ht = f->ht ? x->ht.p : NULL;
    a->m = f->ht ? x->m.p : NULL, a->dout = b->dout = x->dout.p;
    a->dq = b->dq = x->dq.p, a->dk = b->dk = x->dk.p, a->dv = b->dv = x->dv.p, a->dg = b->dg = x->dg.p;
    a->dbeta = x->dbeta.p;
    x->dht = raw_numbers(d, r->dht, c->states, HOLA_F32), x->dh0 = raw_numbers(d, NULL, c->states, HOLA_F32);
    a->dht = b->dht = r->dht ? x->dht.p : NULL, a->dh0 = b->dh0 = f->h0 && !f->inference ? x->dh0.p : NULL;
    x->kept = raw_bytes(d, NULL, f->kda ? hola_kda_kept_bytes(a) : 0);
    a->kept = f->inference ? NULL : x->kept.p;
}
static void call_run(const struct dev *d, struct call *x, bool kda, bool backward) {
    const int64_t bytes = kda ? hola_kda_work_bytes(&x->kda, 0, backward) : hola_gla_work_bytes(&x->gla, 0, backward);
    assert_true(bytes >= 0);
    struct raw_buffer work = raw_bytes(d, NULL, bytes);
    const hola_where w = raw_where(d, &work);
    if (kda) CHECK_OK((backward ? hola_kda_backward : hola_kda_forward)(&w, &x->kda));
    else CHECK_OK((backward ? hola_gla_backward : hola_gla_forward)(&w, &x->gla));
    free(raw_take(d, &work, "work"));
}

enum { RESULTS = 9 };
static void results_of(struct raw_result r[RESULTS], struct call *x, const struct linear_case *c) {
    const struct linear_ref *a = &c->ref;
    const bool back = !c->f.inference, kda = c->f.kda, ht = c->f.ht;
    const struct raw_result all[RESULTS] = {
        {"out", &x->out, a->out, a->T, linear_heads(a), a->V, 7e-3, true, true},
        {"ht", &x->ht, a->ht, a->N * a->S, 1, a->K * a->V, 7e-3, false, ht},
        {"m", &x->m, a->m, a->T, a->S, 1, 8e-3, false, ht && kda},
        {"dq", &x->dq, a->dq, a->T, a->H, a->K, 1e-2, true, back},
        {"dk", &x->dk, a->dk, a->T, linear_keys(a), a->K, 1e-2, true, back},
        {"dv", &x->dv, a->dv, a->T, a->S, a->V, 1e-2, true, back},
        {"dg", &x->dg, a->dg, a->T, a->S, a->K, 2.5e-2, false, back},
        {"dbeta", &x->dbeta, a->dbeta, a->T, a->S, 1, 1.2e-2, false, back && kda},
        {"dh0", &x->dh0, a->dh0, a->N * a->S, 1, a->K * a->V, 1e-2, false, back && c->f.h0},
    };
    memcpy(r, all, sizeof all);
}
static void run_case(const struct dev *d, struct linear_case *c, double *got[RESULTS], struct call *x) {
    struct raw_result r[RESULTS];
    struct raw_buffer *inputs[] = {&x->q, &x->k, &x->v, &x->g, &x->beta, &x->h0, &x->dout, &x->dht, &x->cu, &x->kept};
    call_open(d, x, c);
    call_run(d, x, c->f.kda, false);
    if (!c->f.inference) call_run(d, x, c->f.kda, true);
    results_of(r, x, c);
    raw_results_take(d, r, RESULTS, c->f.dtype, c->f.what, got);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) free(raw_take(d, inputs[i], "an input or kept"));
}
/* The worst result, in units of what is allowed. quiet: else a bad one fails. */
static double compare(struct call *x, const struct linear_case *c, double *const got[RESULTS], bool quiet) {
    struct raw_result r[RESULTS];
    results_of(r, x, c);
    return raw_results_distance(r, RESULTS, c->f.dtype, c->f.what, got, quiet);
}

static void every_shape(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    const size_t plain = sizeof shapes / sizeof *shapes, all = plain + sizeof normed / sizeof *normed;
    for (size_t i = 0; i < all; i++) {
        struct linear_case c;
        struct call x;
        double *got[RESULTS];
        case_open(&c, i < plain ? &shapes[i] : &normed[i - plain], i >= plain, 1000 * i);
        linear_ref_run(&c.ref);
        run_case(&d, &c, got, &x);
        compare(&x, &c, got, false);
        raw_results_free(got, RESULTS);
        case_close(&c);
    }
    dev_close(&d);
}
/* The comparison finds every mistake of the list. */
static void wrong_versions(void **state) {
    static const struct shape shape = {"wrong", true,  2,     {70, 66}, 2,         4,   64,  64,
                                       32,      false, false, false,    HOLA_BF16, 0.2, -0.5};
    struct dev d = dev_open(false);
    (void)state;
    for (int way = 0; way < 8; way++) { /* kda and gla; with gradients, with states, with both; kda with the norm */
        struct shape f = shape;
        struct linear_case c;
        struct call x;
        double *got[RESULTS];
        const bool norm = way > 5;
        f.kda = way % 2 || norm, f.inference = way / 2 == 1 || way == 7, f.h0 = f.ht = way > 1;
        if (!f.kda) f.H = 4, f.S = 4;
        case_open(&c, &f, norm, 21);
        run_case(&d, &c, got, &x);
        for (int m = 0; m < LINEAR_MISTAKES; m++) {
            const bool same[LINEAR_MISTAKES] = {
                [LINEAR_STOPS] = f.inference, [LINEAR_NO_START] = !f.h0,
                [LINEAR_RUNS_ON] = f.h0,      [LINEAR_NO_END] = f.inference || !f.ht,
                [LINEAR_NO_NORM] = !norm,     [LINEAR_CONST_NORM] = !norm || f.inference};
            if (same[m]) continue; /* there is no difference */
            c.ref.mistake = (enum linear_mistake)m;
            linear_ref_run(&c.ref);
            const double e = compare(&x, &c, got, true);
            if (m == LINEAR_RIGHT ? !(e <= 1) : e <= 2)
                fail_msg("%d: mistake %d is %.3g times as far off as allowed", way, m, e);
        }
        raw_results_free(got, RESULTS);
        case_close(&c);
    }
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
    for (size_t kind = 0; kind < 4; kind++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            struct shape f = {"wrong cu", kind % 2, 4,     {10, 20, 10, 20}, 1, 1, 64, 64, 32,
                              false,      true,     false, HOLA_BF16,        0, -1};
            struct linear_case c;
            struct call x;
            double *got[RESULTS];
            if (dev_slow(&d) && (i + kind) % 2) continue;
            if (kind > 1) f.K = 12, f.V = 20, f.dtype = HOLA_F32, f.cu_bits = 64;
            case_open(&c, &f, false, 31);
            memcpy(c.cu, bad[i], sizeof bad[i]);
            run_case(&d, &c, got, &x);
            raw_results_free(got, RESULTS);
            case_close(&c);
        }
    dev_close(&d);
}

/* ---- what is refused, before anything is launched: all pointers are of the host ---- */

static char memory[1 << 14] __attribute__((aligned(256)));
static hola_kda_args good_kda(void) {
    hola_kda_args a = {.size = sizeof a, .rows = {.T = 6, .N = 2}, .H = 1, .HV = 1, .K = 4, .V = 4};
    a.q = a.k = a.v = a.dout = memory, a.g = a.beta = (float *)memory;
    a.out = a.dq = a.dk = a.dv = a.kept = memory, a.dg = a.dbeta = (float *)memory;
    return a;
}
static hola_gla_args good_gla(void) {
    hola_gla_args a = {.size = sizeof a, .rows = {.T = 6, .N = 2}, .H = 1, .HK = 1, .K = 4, .V = 4};
    a.q = a.k = a.v = a.dout = memory, a.g = (float *)memory;
    a.out = a.dq = a.dk = a.dv = memory, a.dg = (float *)memory;
    return a;
}
#define REFUSES(status, op, way, change)                                                                 \
    do {                                                                                                 \
        hola_##op##_args a = good_##op();                                                                \
        hola_where w = {.size = sizeof w, .work = memory, .work_bytes = 0};                              \
        change;                                                                                          \
        const hola_status got = hola_##op##_##way(&w, &a);                                               \
        if (got != (status)) fail_msg("%s: %s (%s)", #change, hola_status_text(got), hola_last_error()); \
        assert_true(strlen(hola_last_error()) > 0 && !strchr(hola_last_error(), '\n'));                  \
    } while (0)
#define BOTH(way, change)                   \
    REFUSES(HOLA_EINVAL, kda, way, change); \
    REFUSES(HOLA_EINVAL, gla, way, change)

static void refused(void **state) {
    struct dev d = dev_open(false);
    (void)state;
    BOTH(forward, a.size--);
    BOTH(forward, w.size = 0);
    BOTH(forward, (void)0); /* no workspace */
    BOTH(backward, (void)0);
    BOTH(forward, a.flags = 2);
    REFUSES(HOLA_EINVAL, gla, forward, a.flags = 1);
    BOTH(forward, a.scale = NAN);
    BOTH(forward, a.rows.T = 7);
    BOTH(forward, a.rows.N = 0);
    BOTH(forward, a.H = 0);
    BOTH(forward, a.K = 0);
    BOTH(forward, a.dtype = HOLA_F16);
    BOTH(forward, a.q = NULL);
    BOTH(forward, a.k = memory + 8);
    BOTH(forward, a.g = NULL);
    BOTH(forward, a.out = NULL);
    BOTH(forward, a.h0 = (float *)(memory + 4));
    BOTH(forward, w.device = 77);
    BOTH(backward, a.dout = NULL);
    BOTH(backward, a.dg = NULL);
    REFUSES(HOLA_EINVAL, kda, forward, a.H = 2);
    REFUSES(HOLA_EINVAL, gla, forward, a.HK = 2);
    REFUSES(HOLA_EINVAL, kda, backward, a.kept = NULL);
    REFUSES(HOLA_EINVAL, kda, backward, a.dbeta = NULL);
    BOTH(backward, a.dht = (float *)(memory + 4));
    BOTH(backward, a.dh0 = (float *)(memory + 8));
    REFUSES(HOLA_ENOTSUP, kda, forward, w.device = -1);
    REFUSES(HOLA_ENOTSUP, gla, forward, a.K = 257);
    REFUSES(HOLA_ENOTSUP, gla, forward, a.rows.T = 2000000000; a.H = a.HK = 8);
    assert_int_equal(hola_kda_work_bytes(NULL, 0, false), -1);
    assert_int_equal(hola_kda_kept_bytes(NULL), -1);
    assert_int_equal(hola_gla_work_bytes(NULL, 0, false), -1);
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
