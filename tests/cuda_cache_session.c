/* cuda_cache_session.c -- sessions of the exact memory on a device against the reference: in pieces and
 * token by token, several at once; and how long a token takes. */
#include "cuda_cache.h"

static struct hl_cache_layout layout(const struct batch *b, int64_t size) {
    const struct shape *s = &b->s;
    return hl_cache_layout(s->K, s->V, s->window, s->chunk, size, hl_cache_factors(&b->a));
}
/* n activations, on the host, are these numbers. */
static void same_row(const void *x, int64_t size, const real *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        assert_true((size == 2 ? (real)hl_from_bf16(((const uint16_t *)x)[i]) : ((const real *)x)[i]) == y[i]);
}
/* The filled part of two states of the same position, on the host: x the device's, whose rows are activations of
 * `size` bytes, y the reference's. */
static void same_state(const struct batch *b, const char *x, int64_t size, const char *y, int64_t pos, double tol) {
    const struct shape *s = &b->s;
    const struct hl_cache_layout at = layout(b, size), l = layout(b, sizeof(real));
    const int64_t open = pos % s->chunk, kept = pos - open < s->window ? pos - open : s->window;
    for (int64_t h = 0; h < s->HV; h++, x += at.bytes, y += l.bytes)
        for (int64_t j = 0; j < kept + open; j++) {
            const int64_t slot = j < kept ? j : s->window + j - kept;
            same_row(x + at.k + slot * s->K * size, size, (const real *)(y + l.k) + slot * s->K, s->K);
            same_row(x + at.v + slot * s->V * size, size, (const real *)(y + l.v) + slot * s->V, s->V);
            if (j < kept) assert_memory_equal(x + at.pos + j * 8, y + l.pos + j * 8, 8);
            const real p = ((const real *)(x + at.score))[slot], q = ((const real *)(y + l.score))[slot];
            assert_true(p == q || (p != p && q != q) || fabs((double)(p - q)) <= tol * fabs((double)q) + tol);
            if (!hl_cache_factors(&b->a)) continue;
            const real f = ((const real *)(x + at.factor))[slot], g = ((const real *)(y + l.factor))[slot];
            assert_true(fabs((double)(f - g)) <= tol * (double)g);
        }
}

enum { OFF = 192 };
struct session {
    char *host, *dev;
    int64_t bytes; /* the device's memory and a guard behind it: there is as much or less of it */
};
/* Behind that, the delta rule's state, if rows are measured against it. */
static int64_t room_of(const struct batch *b, int64_t size) { return OFF + 64 + b->s.HV * layout(b, size).bytes; }
static int64_t rule_bytes(const struct batch *b) {
    return b->nS ? b->s.HV * b->s.K * b->s.V * (int64_t)sizeof(real) : 0;
}
static struct session session_new(const struct dev *d, const struct batch *b) {
    const int64_t most = room_of(b, sizeof(real)) + rule_bytes(b);
    struct session s = {.bytes = room_of(b, d->backend->act_size)};
    s.host = aligned_alloc(64, (size_t)((most + 63) / 64 * 64));
    assert_non_null(s.host);
    memset(s.host, 0xff, (size_t)most); /* NaN: what was not written must not be read */
    s.dev = dev_put(d, s.host, s.bytes + rule_bytes(b));
    return s;
}
static void session_check(const struct dev *d, const struct batch *b, struct session *s, int64_t pos) {
    char *got = malloc((size_t)s->bytes);
    assert_non_null(got);
    hl_get(d->backend, got, s->dev, s->bytes);
    same_state(b, got + OFF, d->backend->act_size, s->host + OFF, pos, 1e-4);
    for (int64_t i = 0; i < OFF; i++) assert_int_equal(got[i], (char)0xff);
    for (int64_t i = s->bytes - 64; i < s->bytes; i++) assert_int_equal(got[i], (char)0xff);
    free(got);
    free(s->host);
    dev_drop(d, s->dev);
}

/* `passes` passes over n sessions: len(pass, i) rows each (0: none left), on both sides. */
static void feed(const struct dev *d, struct batch *b, int64_t (*len)(int pass, int i), int passes) {
    const int n = (int)b->rows.n;
    struct hl_cache x = upload(d, b), y = b->a;
    struct session s[8];
    int64_t at[8] = {0};
    real *got = check_new(b->nv);
    x.read = y.read = NULL, x.lse = y.lse = NULL, x.sel = y.sel = NULL;
    x.state_off = y.state_off = OFF;
    x.S_off = room_of(b, d->backend->act_size), y.S_off = room_of(b, sizeof(real));
    dev_drop(d, x.block_S);
    x.block_S = NULL;
    for (int i = 0; i < n; i++) s[i] = session_new(d, b);
    for (int pass = 0; pass < passes; pass++) {
        struct hl_seg there[8], here[8];
        struct hl_rows rows = {.T = b->T, .seg = there}, mine = {.T = b->T, .seg = here};
        for (int i = 0; i < n; i++) {
            const int64_t left = b->seg[i].len - at[i], add = len(pass, i) < left ? len(pass, i) : left;
            if (add <= 0) continue;
            here[rows.n] = (struct hl_seg){b->seg[i].row + at[i], add, at[i], s[i].host};
            there[rows.n] = here[rows.n];
            there[rows.n++].state = s[i].dev;
            at[i] += add;
        }
        if (rows.n == 0) break;
        mine.n = rows.n;
        x.rows = &rows, y.rows = &mine;
        real *rule[8], *block_S, *dev_S = NULL;
        for (int64_t i = 0; i < rows.n; i++) rule[i] = (real *)(void *)(here[i].state + y.S_off);
        y.block_S = block_S = batch_states(b, &mine, rule);
        if (block_S) dev_S = dev_real(d, block_S, hl_blocks_before(&mine, mine.n, b->s.chunk) * rule_bytes(b) / 4);
        x.block_S = dev_S;
        for (int64_t i = 0; b->nS && i < rows.n; i++)
            hl_put(d->backend, there[i].state + x.S_off, rule[i], rule_bytes(b));
        CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, b->s.chunk));
        d->ops->cache_forward(d->backend, &x);
        hl_ops_named(judge(b))->cache_forward(host, &y);
        CHECK_OK(hl_finish(d->backend));
        free(block_S);
        dev_drop(d, dev_S);
        x.block_S = NULL;
    }
    dev_act_take(d, x.out, got, b->nv);
    x.out = NULL;
    /* a tile of bf16 rounds where the reference does not */
    CHECK_NEAR(got, b->out, b->T, b->s.HV * b->s.V, tol_of(d), "%s evict %d sinks %d w %d C %d K %d in pieces",
               d->ops->name, (int)b->s.evict, (int)b->a.policy.sinks, (int)b->s.window, (int)b->s.chunk, (int)b->s.K);
    for (int i = 0; i < n; i++) session_check(d, b, &s[i], at[i]);
    check_free(got, b->nv);
    drop(d, &x);
    batch_free(b);
}
static int64_t ones(int pass, int i) { return (void)pass, (void)i, 1; }
static int64_t sevens(int pass, int i) { return (void)pass, (void)i, 7; }
static int64_t growing(int pass, int i) { return 1 + pass * 5 + i; }
static int64_t prompt_then_ones(int pass, int i) { return pass == 0 ? 37 + 11 * i : 1; }
static int64_t everything(int pass, int i) { return (void)pass, (void)i, 1 << 20; }
static int64_t mixed_lengths(int pass, int i) { return (pass + i) % 3 == 0 ? 1 : (pass * 7 + i * 5) % 23; }

static void sessions_with(const struct dev *d, struct shape s, int64_t sinks, int which, uint64_t seed) {
    static int64_t (*const how[])(int, int) = {ones, sevens, growing, prompt_then_ones, everything, mixed_lengths};
    const int64_t C = s.chunk, len[] = {3 * C + 3, C, 2 * C - 1};
    struct batch *b = rounded(d, batch_new(s, len, 3, seed));
    feed(d, sinks ? with_sinks(b, sinks) : b, how[which], 6 * (int)C);
}
static void sessions(const struct dev *d, struct shape s, int which, uint64_t seed) {
    sessions_with(d, s, 0, which, seed);
}
static void test_sessions(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {0, 16}, {16, 4}, {5, 1}, {30, 16}};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int i = 0; i < 5; i++)
            for (int e = 0; e < KINDS; e++)
                for (int which = 0; which < 6; which++) {
                    const int64_t K = (i + e + which) % 2 ? 64 : 24, V = K == 64 ? 64 : 16;
                    if (dev_slow(&d) && (i * 3 + e * 5 + which + f) % (dev_least() ? 32 : 8)) continue;
                    sessions(&d, (struct shape){wc[i][0], wc[i][1], 1, 2, K, V, kinds[e]}, which,
                             (uint64_t)(i * 100 + e * 10 + which));
                }
        dev_close(&d);
    }
}
/* one long sequence in pieces of many blocks */
static int64_t long_pieces(int pass, int i) { return (void)i, pass == 1 ? 3 : 150 + 40 * pass; }
static void test_sessions_long(void **state) {
    (void)state;
    struct dev d = dev_open(false);
    for (int e = 0; e < KINDS; e++) {
        const struct shape s = {10, 8, 1, 1, 64, 64, kinds[e]};
        if (kinds[e] == HOLA_EVICT_H2O || (dev_least() && e > 0 && e < 5)) continue;
        const int64_t len[] = {600};
        feed(&d, rounded(&d, batch_new(s, len, 1, 60 + (uint64_t)e)), long_pieces, 5);
    }
    dev_close(&d);
}
/* a gate per token and keys with near-duplicates, at once */
static void test_sessions_variants(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {16, 4}, {5, 1}, {30, 16}};
    static int64_t (*const how[])(int, int) = {ones, prompt_then_ones, mixed_lengths};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int i = 0; i < 4; i++)
            for (int which = 0; which < 3; which++) {
                const int64_t K = (i + which) % 2 ? 64 : 24, C = wc[i][1], len[] = {3 * C + 3, C, 2 * C - 1};
                const struct shape s = {wc[i][0], C, 1, 2, K, K, kinds[(i + which) % 2 * (KINDS - 3)]};
                if (dev_slow(&d) && (i * 3 + which + f) % (dev_least() ? 5 : 2)) continue;
                struct batch *b = with_token_gate(batch_new(s, len, 3, 200 + (uint64_t)i), 7);
                feed(&d, rounded(&d, with_redundancy(b, s.window + 2, 8)), how[which], 6 * (int)C);
            }
        dev_close(&d);
    }
}
/* one set per layer */
static void test_sessions_layer_set(void **state) {
    static int64_t (*const how[])(int, int) = {ones, prompt_then_ones, mixed_lengths};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int which = 0; which < 3; which++) {
            const int64_t K = which ? 24 : 64, C = which == 2 ? 4 : 16, len[] = {3 * C + 3, C, 2 * C - 1};
            const struct shape s = {which == 1 ? 20 : 5, C, 1, 2, K, K, HOLA_EVICT_BETAE};
            if (dev_slow(&d) && dev_least() && which != f) continue;
            feed(&d, with_layer_set(rounded(&d, batch_new(s, len, 3, 210)), 9), how[which], 6 * (int)C);
        }
        dev_close(&d);
    }
}
/* order by position with a protected prefix */
static void test_sessions_first_rows(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {16, 4}, {5, 1}, {30, 16}};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int i = 0; i < 4; i++)
            for (int n = 0; n < 4; n++) {
                const int64_t w = wc[i][0], C = wc[i][1], sinks[] = {1, 4, w, w + 3}, long_len[] = {600};
                const int64_t K = (i + n) % 2 ? 64 : 24, V = K == 64 ? 64 : 16;
                for (int which = 0; which < 6; which++)
                    if (!dev_slow(&d) || (i + n * 5 + which * 3 + f) % (dev_least() ? 32 : 8) == 0)
                        sessions_with(&d, (struct shape){w, C, 1, 2, K, V, HOLA_EVICT_RECENCY}, sinks[n], which,
                                      (uint64_t)(i * 10 + n));
                const struct shape s = {w, C < 4 ? 4 : C, 1, 1, 64, 64, HOLA_EVICT_RECENCY};
                if (!f && (!dev_slow(&d) || (i + n) % (dev_least() ? 8 : 4) == 1))
                    feed(&d, with_sinks(rounded(&d, batch_new(s, long_len, 1, 90)), sinks[n]), long_pieces, 5);
            }
        dev_close(&d);
    }
}
static void test_sessions_tiles(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int which = 0; which < 6 && !dev_slow(&d); which++)
            for (int64_t K = f ? 128 : 64; K <= (f ? 128 : 256); K *= 2)
                sessions(&d, (struct shape){64, 256, 1, 2, K, K, kinds[(which + K / 64) % KINDS]}, which,
                         (uint64_t)which);
        if (dev_slow(&d) && !f)
            for (int which = 0; which < 2; which++)
                sessions(&d, (struct shape){10, 40, 1, 1, which ? 64 : 128, which ? 64 : 128, kinds[0]}, 2 + 3 * which,
                         3);
        if (dev_slow(&d)) sessions(&d, (struct shape){10, 20, 1, 1, f ? 256 : 128, f ? 256 : 128, kinds[1]}, 3, 4);
        dev_close(&d);
    }
}

/* n sessions of one token each, at position `pos` */
static void time_step(const struct dev *d, int64_t n, int64_t K, int64_t pos) {
    const int64_t bytes = hl_cache_state_bytes(4, K, K, 64, 256, d->backend->act_size, false);
    struct hl_seg *seg = calloc((size_t)n, sizeof *seg);
    struct hl_rows rows = {.T = n, .n = n, .seg = seg};
    real *fill = check_random(n * bytes / 4, 0.01, 1, 9);
    char *states = dev_put(d, fill, n * bytes);
    struct hl_cache x = {.rows = &rows, .H = 4, .HV = 4, .K = K, .V = K, .window = 64, .chunk = 256};
    for (int64_t i = 0; i < n; i++)
        seg[i] = (struct hl_seg){.row = i, .len = 1, .pos = pos, .state = states + i * bytes};
    x.q = dev_act(d, fill, n * 4 * K), x.k = dev_act(d, fill, n * 4 * K), x.v = dev_act(d, fill, n * 4 * K);
    x.out = dev_act(d, fill, n * 4 * K);
    x.score = dev_real(d, fill, n * 4), x.tau = dev_real(d, fill, 4), x.sink = dev_real(d, fill, 4);
    x.gate = dev_real(d, fill, 4);
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, 256));
    print_message("%s step of %lld sessions, 4 heads x %lld, position %lld: %.1f us\n", d->ops->name, (long long)n,
                  (long long)K, (long long)pos, 1e3 * milliseconds(d, &x, d->ops->cache_forward));
    CHECK_OK(hl_finish(d->backend));
    drop(d, &x);
    dev_drop(d, states);
    check_free(fill, n * bytes / 4);
    free(seg);
}
static void test_speed(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (int64_t K = 128; K <= 256 && !dev_slow(&d); K *= 2) {
            time_step(&d, 1, K, 5000);
            time_step(&d, 1, K, 256 * 20 + 255); /* a block gets full */
            time_step(&d, 32, K, 5000);
        }
        dev_close(&d);
    }
}

/* [test] [repeats of what is timed; 1 for a profiler] */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_sessions_long),
        cmocka_unit_test(test_sessions_variants),
        cmocka_unit_test(test_sessions_first_rows),
        cmocka_unit_test(test_sessions_tiles),
        cmocka_unit_test(test_sessions_layer_set),
        cmocka_unit_test(test_speed),
    };
    int failed;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (argc > 2) repeats = atoi(argv[2]), warm = repeats > 1 ? 3 : 0;
    host = check_backend_open(1, hl_cache_scratch(256, 256, 600, 700));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    hl_backend_close(host);
    return failed;
}
