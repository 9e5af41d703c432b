/* cuda_decode_one.c -- a token through all layers in one kernel (fused/decode_one), against the ops one
 * after another: in bf16 and in float, from any position, alone and side by side, over many blocks of the
 * cache. */
#define _GNU_SOURCE
#include "decode_case.h"

extern int hl_emu_sms __attribute__((weak)); /* the emulated device's multiprocessors */

/* The logits of `steps` tokens after a prompt of `lead`, one token at a time. */
static float *decode(hola_model *m, const int32_t *ids, int64_t lead, int64_t steps) {
    const int64_t vocab = m->cfg.vocab_size;
    float *y = malloc((size_t)(steps * vocab) * sizeof *y);
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    if (lead > 1) CHECK_OK(hola_session_feed(s, ids, lead, NULL));
    for (int64_t i = 0; i < steps; i++) CHECK_OK(hola_session_step(&s, 1, ids + lead + i, y + i * vocab));
    assert_int_equal(hola_session_position(s), lead + steps);
    hola_session_free(s);
    return y;
}
static float *decode_by(int kind, const char *backend, bool unfused, const int32_t *ids, int64_t lead, int64_t steps) {
    hola_model *m = model_of(kind, backend, unfused);
    float *y = decode(m, ids, lead, steps);
    assert_true((m->decoder.block != NULL) == (!unfused && !strcmp(backend, "cuda")));
    hola_model_free(m);
    return y;
}
/* The fused result may be as far from float as the unfused bf16 result is, or little more. */
static void compare(int kind, int64_t lead, int64_t steps) {
    int32_t *ids = random_ids(lead + steps, 101, (uint64_t)(17 + kind));
    float *exact = decode_by(kind, "cuda-f32", true, ids, lead, steps);
    float *unfused = decode_by(kind, "cuda", true, ids, lead, steps);
    float *fast = decode_by(kind, "cuda", false, ids, lead, steps);
    const double e = distance(fast, exact, steps * 101), base = distance(unfused, exact, steps * 101),
                 apart = distance(fast, unfused, steps * 101);
    if (getenv("VERBOSE"))
        print_message("%-22s %4d + %3d: %.2e from float, unfused bf16 %.2e, apart %.2e\n", kinds[kind].name, (int)lead,
                      (int)steps, e, base, apart);
    const double most = 2 * base + 1e-3, late = distance(fast + 101, exact, (steps - 1) * 101);
    if (!(e <= most))
        fail_msg("%s, %d + %d tokens: %.3g away, unfused bf16 %.3g", kinds[kind].name, (int)lead, (int)steps, e, base);
    if (!(late > 2 * most)) /* a wrong version, the tokens of one step later, must be seen */
        fail_msg("%s, %d + %d tokens: one step late is only %.3g away, allowed are %.3g", kinds[kind].name, (int)lead,
                 (int)steps, late, most);
    free(exact), free(unfused), free(fast), free(ids);
}

static void every_kind(void **state) {
    (void)state;
    NEEDS_DEVICE();
    for (int k = 0; k < KINDS; k += dev_least() ? KINDS : slow ? 5 : 1) compare(k, 0, slow ? 3 : 40);
    for (int k = 0; k < ALL_KINDS - 1 - slow; k++)
        if (!dev_least() || k == 1 || k == 10 || k == KINDS) compare(k, 30, slow ? 3 : 80);
}
static void after_blocks(void **state) {
    (void)state;
    NEEDS_DEVICE();
    for (int k = 0; k < KINDS; k += dev_least() ? KINDS : slow ? 4 : 1) compare(k, 126, slow ? 3 : 300);
    for (int k = 0; k < KINDS && !slow; k++) compare(k, 700, 600);
}

/* The kernels for devices with as many SMs as a preset needs give the same bits as those for any device. */
static void wide_chip(void **state) {
    const int64_t lead = 3, steps = 3;
    (void)state;
    NEEDS_DEVICE();
    if (!&hl_emu_sms) skip();
    for (int kind = KINDS; kind < ALL_KINDS; kind++) {
        int32_t *ids = random_ids(lead + steps, 101, 5);
        float *narrow = decode_by(kind, "cuda", false, ids, lead, steps);
        const int before = hl_emu_sms;
        hl_emu_sms = 132;
        float *wide = decode_by(kind, "cuda", false, ids, lead, steps);
        ids[lead] ^= 1; /* a wrong version must be seen */
        float *other = decode_by(kind, "cuda", false, ids, lead, 1);
        hl_emu_sms = before;
        assert_memory_equal(narrow, wide, (size_t)(steps * 101) * sizeof *wide);
        assert_memory_not_equal(narrow, other, 101 * sizeof *other);
        free(narrow), free(wide), free(other), free(ids);
    }
}

/* Sessions side by side give the same bits as each alone, at any positions. */
static void side_by_side(void **state) {
    static const int64_t leads[HL_DECODE_ONE_ROWS] = {30, 2, 63, 29};
    const int counts[] = {3, 4, 2};
    (void)state;
    NEEDS_DEVICE();
    for (int kind = 0; kind < KINDS; kind += slow ? 3 : 1) {
        if (slow && kind > (dev_least() ? 0 : 3)) break;
        hola_model *m = model_of(kind, "cuda", false);
        const int64_t vocab = m->cfg.vocab_size;
        int32_t *ids = random_ids(300, vocab, 9);
        for (int c = slow && kind == 0; c < (slow ? 1 + (kind == 0) : 3); c++) {
            const int n = counts[c], steps = dev_least() ? 1 : slow ? 3 : 40;
            hola_session *alone[HL_DECODE_ONE_ROWS], *together[HL_DECODE_ONE_ROWS];
            float *x = calloc((size_t)(n * vocab), sizeof *x), *y = calloc((size_t)(n * vocab), sizeof *y);
            for (int i = 0; i < n; i++) {
                CHECK_OK(hola_session_new(&alone[i], m));
                CHECK_OK(hola_session_new(&together[i], m));
                CHECK_OK(hola_session_feed(alone[i], ids + i, leads[i], NULL));
                CHECK_OK(hola_session_feed(together[i], ids + i, leads[i], NULL));
            }
            for (int s = 0; s < steps; s++) {
                int32_t next[HL_DECODE_ONE_ROWS];
                for (int i = 0; i < n; i++) next[i] = ids[100 + s + 7 * i];
                for (int i = 0; i < n; i++) CHECK_OK(hola_session_step(&alone[i], 1, &next[i], x + i * vocab));
                CHECK_OK(hola_session_step(together, n, next, y));
                if (memcmp(x, y, (size_t)(n * vocab) * sizeof *x))
                    fail_msg("%s, %d sessions, step %d: %.3g away", kinds[kind].name, n, s, distance(y, x, n * vocab));
            }
            assert_true(distance(x, x + vocab, vocab) > 0.1); /* the sessions do differ */
            for (int i = 0; i < n; i++) hola_session_free(alone[i]), hola_session_free(together[i]);
            free(x), free(y);
        }
        free(ids);
        hola_model_free(m);
    }
}

struct turns {
    double fast, unfused, late; /* summed distances from float; late: if a turn had been lost */
    int n;
};
/* Feeds one text of n tokens in pieces of 1 and 27 to three models: fused, unfused bf16 and float. */
static void take_turns(hola_model *const m[3], const int32_t *ids, int64_t n, struct turns *t) {
    hola_session *s[3];
    float x[3][101] = {{0}}, last[101];
    for (int j = 0; j < 3; j++) CHECK_OK(hola_session_new(&s[j], m[j]));
    for (int64_t i = 0, turn = 0; i < n; turn++) {
        const int64_t piece = turn % 3 == 1 ? 27 : 1, some = piece < n - i ? piece : n - i;
        m[0]->decoder.off = turn % 5 == 3;
        memcpy(last, x[0], sizeof last);
        for (int j = 0; j < 3; j++) CHECK_OK(hola_session_feed(s[j], ids + i, some, x[j]));
        i += some;
        t->n++;
        t->fast += distance(x[0], x[2], 101), t->unfused += distance(x[1], x[2], 101);
        t->late += distance(last, x[2], 101);
    }
    for (int j = 0; j < 3; j++) hola_session_free(s[j]);
}

/* A session may change between prompts, fused tokens and unfused tokens at any time. bf16 may keep another
 * token in the cache than float does, and then differs for long; so the yardstick is unfused bf16, over
 * several texts. */
static void mixed(void **state) {
    (void)state;
    NEEDS_DEVICE();
    for (int kind = 0; kind < (slow ? 1 : KINDS); kind++) {
        const int64_t n = dev_least() ? 32 : slow ? 75 : 300;
        hola_model *m[3] = {model_of(kind, "cuda", false), model_of(kind, "cuda", true),
                            model_of(kind, "cuda-f32", true)};
        struct turns t = {0};
        for (int text = 0; text < (slow ? 1 : 4); text++) {
            int32_t *ids = random_ids(n, 101, (uint64_t)(4 + text));
            take_turns(m, ids, n, &t);
            free(ids);
        }
        if (getenv("VERBOSE"))
            print_message("%-22s mixed: %.2e from float, unfused bf16 %.2e\n", kinds[kind].name, t.fast / t.n,
                          t.unfused / t.n);
        const double most = 3 * t.unfused + 1e-3 * t.n;
        if (!(t.fast <= most))
            fail_msg("%s: %.3g away on average, unfused bf16 %.3g", kinds[kind].name, t.fast / t.n, t.unfused / t.n);
        assert_true(t.late > most);
        for (int j = 0; j < 3; j++) hola_model_free(m[j]);
    }
}

/* Without logits the state is the same; run twice, the bits are the same. */
static void silent_and_again(void **state) {
    const int64_t n = dev_least() ? 1 : 4;
    (void)state;
    NEEDS_DEVICE();
    hola_model *m = model_of(0, "cuda", false);
    int32_t *ids = random_ids(n + 1, 101, 21);
    float *want = decode(m, ids, 0, n + 1), *again = decode(m, ids, 0, n + 1), got[101];
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    for (int64_t i = 0; i <= n; i++) CHECK_OK(hola_session_step(&s, 1, ids + i, i < n ? NULL : got));
    assert_memory_equal(want, again, (size_t)((n + 1) * 101) * sizeof *want);
    assert_memory_equal(want + n * 101, got, sizeof got);
    hola_session_free(s);
    free(want), free(again), free(ids);
    hola_model_free(m);
}

/* Logits that are not finite are reported, wherever they are read; the next token of another session is
 * not affected. */
static void not_finite(void **state) {
    const hola_sampling likeliest = {.repeat_penalty = 1, .top_p = 1};
    float logits[101], want[101];
    int32_t id = 5, next = 77;
    hola_session *s[2];
    (void)state;
    NEEDS_DEVICE();
    hola_model *m = model_of(0, "cuda", false);
    for (int i = 0; i < 2; i++) CHECK_OK(hola_session_new(&s[i], m));
    CHECK_OK(hola_session_step(&s[0], 1, &id, want));
    const float nan = NAN;
    char *state_of = s[0]->now.state.fixed; /* S comes first */
    hl_put(m->backend, state_of, &nan, sizeof nan);
    assert_int_equal(hola_session_step(&s[0], 1, &id, logits), HOLA_ENUMERIC);
    assert_null(hola_session_logits(s[0]));
    assert_int_equal(hola_session_step_sample(&s[0], 1, &id, &likeliest, &next), HOLA_ENUMERIC);
    CHECK_OK(hola_session_step(&s[1], 1, &id, logits));
    assert_memory_equal(logits, want, sizeof want);
    for (int i = 0; i < 2; i++) hola_session_free(s[i]);
    hola_model_free(m);
}
int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind), cmocka_unit_test(after_blocks),
                                       cmocka_unit_test(wide_chip),  cmocka_unit_test(side_by_side),
                                       cmocka_unit_test(mixed),      cmocka_unit_test(silent_and_again),
                                       cmocka_unit_test(not_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
