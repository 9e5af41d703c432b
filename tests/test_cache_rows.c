/* test_cache_rows.c -- rows of the exact memory in F16: every backend against the reference on rounded rows, whatever
 * is in the batch and whatever in the state; numbers out of range; threads and neighbours; what a session stores. */
#include "cache_case.h"

static struct hl_backend *one, *three;
static const hola_evict kinds[] = {HOLA_EVICT_BETAE, HOLA_EVICT_RECENCY, HOLA_EVICT_H2O,
                                   HOLA_EVICT_LOLA,  HOLA_EVICT_LTE,     HOLA_EVICT_STREAMING};
enum { KINDS = sizeof kinds / sizeof *kinds };
static const double tol = 2e-5;

static struct batch *in_f16(struct batch *b) {
    b->a.row_dtype = HOLA_F16;
    b->a.read = NULL, b->a.lse = NULL, b->a.sel = NULL;
    return b;
}
static void round_rows(struct batch *b) {
    for (int64_t i = 0; i < b->nq; i++) b->k[i] = (real)hl_from_f16(hl_cache_to_f16(b->k[i]));
    for (int64_t i = 0; i < b->nv; i++) b->v[i] = (real)hl_from_f16(hl_cache_to_f16(b->v[i]));
}

/* A sequence in F16 rows, whole and in pieces, gives what the reference computes in reals from rounded rows, and not
 * what it computes from the others, as a prompt would that reads its own rows before they are rounded. Frees both. */
static void streams(struct batch *b, struct batch *rounded) {
    const struct shape *s = &b->s;
    real *out = check_new(b->nv), *raw = check_zero(b->nv);
    static const int64_t sizes[] = {1, 7, 17, 1 << 20};
    b->a.sel = NULL;
    batch_feed(b, "cpu-ref", one, 1 << 20, false, raw);
    round_rows(rounded);
    memset(rounded->out, 0, (size_t)b->nv * sizeof(real));
    batch_run(rounded, "cpu-ref", one, false);
    in_f16(b);
    for (int i = -1; i < 0 || check_backend(i); i++) {
        const char *who = i < 0 ? "cpu-ref" : check_backend(i);
        for (int c = 0; c < 4 && hl_ops_named(who); c++) {
            memset(out, 0, (size_t)b->nv * sizeof(real));
            batch_feed(b, who, one, sizes[c], false, out);
            CHECK_NEAR(out, rounded->out, b->T, s->HV * s->V, tol, "%s evict %d w %d C %d K %d V %d in pieces of %d",
                       who, (int)s->evict, (int)s->window, (int)s->chunk, (int)s->K, (int)s->V, (int)sizes[c]);
            CHECK_FAR(out, raw, b->T, s->HV * s->V, 3 * tol);
        }
    }
    check_free(out, b->nv), check_free(raw, b->nv);
    batch_free(b), batch_free(rounded);
}
static struct batch *single(struct shape s, int64_t T, uint64_t seed) { return batch_new(s, &T, 1, seed); }

static void test_streaming(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {0, 16}, {16, 4}, {5, 1}, {30, 16}};
    static const int64_t kv[][2] = {{24, 24}, {10, 6}, {64, 128}, {128, 128}, {40, 300}};
    (void)state;
    for (int e = 0; e < KINDS; e++) {
        for (int i = 0; i < 5; i++) {
            const struct shape s = {wc[i][0], wc[i][1], 1, 2, kv[i][0], kv[i][1], kinds[e]};
            const uint64_t seed = 60 + (uint64_t)(10 * e + i);
            streams(single(s, 9 * s.chunk + 5, seed), single(s, 9 * s.chunk + 5, seed));
        }
        const struct shape large = {64, 256, 1, 1, 16, 16, kinds[e]};
        streams(single(large, 700, 70), single(large, 700, 70));
    }
    for (int64_t groups = 3; groups < 60; groups *= 4) {
        const struct shape s = {6, 16, 1, 2, 24, 24, HOLA_EVICT_BETAE};
        streams(with_redundancy(single(s, 150, 67), groups, 8), with_redundancy(single(s, 150, 67), groups, 8));
    }
}

/* The state after pieces of any size: the rows are hl_cache_to_f16 of what was fed, to the bit. */
static void test_state(void **state) {
    const struct shape s = {6, 16, 1, 2, 24, 40, HOLA_EVICT_RECENCY};
    const int64_t T = 70, size = 2;
    (void)state;
    for (int i = -1; i < 0 || check_backend(i); i++)
        for (int64_t piece = 1; piece < 100; piece += 23) {
            const char *who = i < 0 ? "cpu-ref" : check_backend(i);
            if (!hl_ops_named(who)) continue;
            struct batch *b = in_f16(single(s, T, 5));
            const struct hl_cache_layout l = hl_cache_layout(s.K, s.V, s.window, s.chunk, size, false);
            char *st = calloc(1, (size_t)batch_state_bytes(b, size));
            assert_non_null(st);
            for (int64_t t = 0; t < T; t += piece) {
                struct hl_seg g = {.row = t, .len = piece < T - t ? piece : T - t, .pos = t, .state = st};
                struct hl_rows rows = {.T = T, .n = 1, .seg = &g};
                b->a.rows = &rows;
                hl_ops_named(who)->cache_forward(one, &b->a);
            }
            for (int64_t h = 0; h < s.HV; h++)
                for (int64_t slot = 0; slot < s.window + T % s.chunk; slot++) { /* the latest rows of earlier blocks */
                    const int64_t row = T - T % s.chunk - s.window + slot;
                    const uint16_t *k = (const uint16_t *)(void *)(st + h * l.bytes + l.k) + slot * s.K;
                    const uint16_t *v = (const uint16_t *)(void *)(st + h * l.bytes + l.v) + slot * s.V;
                    for (int64_t x = 0; x < s.K; x++) assert_int_equal(k[x], hl_cache_to_f16(b->k[row * s.K + x]));
                    for (int64_t x = 0; x < s.V; x++)
                        assert_int_equal(v[x], hl_cache_to_f16(b->v[(row * s.HV + h) * s.V + x]));
                }
            free(st);
            batch_free(b);
        }
}

/* Values beyond what F16 holds are read as its largest number; NaN stays NaN. */
static void test_range(void **state) {
    const struct shape s = {4, 16, 1, 1, 24, 16, HOLA_EVICT_BETAE};
    static const real odd[] = {1e30f, -1e30f, 65504, 65519.9f, 65536, 1e-8f, 5e-8f, 0, -0.0f, 6e-5f};
    (void)state;
    for (int i = -1; i < 0 || check_backend(i); i++)
        for (int64_t piece = 1; piece < 60; piece += 29) {
            const char *who = i < 0 ? "cpu-ref" : check_backend(i);
            if (!hl_ops_named(who)) continue;
            struct batch *b = in_f16(single(s, 40, 9)), *rounded = single(s, 40, 9);
            real *out = check_zero(b->nv);
            for (int64_t x = 0; x < 5 * s.V; x++) b->v[x] = rounded->v[x] = odd[x % 10];
            round_rows(rounded);
            for (int64_t x = 0; x < 5 * s.V; x++) assert_true(fabs((double)rounded->v[x]) <= 65504);
            memset(rounded->out, 0, (size_t)b->nv * sizeof(real));
            batch_run(rounded, "cpu-ref", one, false);
            batch_feed(b, who, one, piece, false, out);
            CHECK_NEAR(out, rounded->out, b->T, s.V, tol, "%s", who);
            b->v[3] = NAN;
            batch_feed(b, who, one, piece, false, out);
            assert_true(out[3] != out[3] && out[4] == out[4]);
            check_free(out, b->nv);
            batch_free(b), batch_free(rounded);
        }
}

/* Sessions beside each other on three threads: the bits of each alone on one. */
static void test_bits(void **state) {
    (void)state;
    for (int e = 0; e < KINDS; e++)
        for (int i = 0; check_backend(i); i++) {
            const struct shape s = {6, 8, 1, 2, 24, 16, kinds[e]};
            const int64_t len[] = {30, 41, 24}, add[][3] = {{7, 23, 16}, {1, 1, 1}, {1, 17, 1}};
            const struct hl_ops *ops = hl_ops_named(check_backend(i));
            if (!ops) continue;
            struct batch *b = in_f16(batch_new(s, len, 3, 31));
            const int64_t S = batch_state_bytes(b, 2), bytes = S + s.HV * s.K * s.V * (int64_t)sizeof(real);
            char *st = calloc(6, (size_t)bytes);
            real *out[] = {check_zero(b->nv), check_zero(b->nv)};
            struct hl_seg g[3];
            assert_non_null(st);
            for (int alone = 0; alone < 2; alone++) {
                int64_t at[3] = {0};
                b->a.out = out[alone];
                for (int step = 0; step < 3; step++) {
                    for (int n = 0; n < 3; at[n] += add[step][n], n++)
                        g[n] =
                            (struct hl_seg){b->seg[n].row + at[n], add[step][n], at[n], st + (3 * alone + n) * bytes};
                    forward_three(ops, b, g, S, alone ? one : three, alone);
                }
            }
            assert_memory_equal(out[0], out[1], (size_t)b->nv * sizeof(real));
            assert_memory_equal(st, st + 3 * bytes, (size_t)(3 * bytes));
            check_free(out[0], b->nv), check_free(out[1], b->nv);
            free(st);
            batch_free(b);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_streaming), cmocka_unit_test(test_state),
                                       cmocka_unit_test(test_range), cmocka_unit_test(test_bits)};
    const int64_t scratch = hl_cache_scratch(128, 300, 600, 700);
    one = check_backend_open(1, scratch), three = check_backend_open(3, scratch);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hl_backend_close(one), hl_backend_close(three);
    return failed;
}
