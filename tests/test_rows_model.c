/* test_rows_model.c -- models whose stored weights have 16 bits or fewer, so that the exact memory's rows have 16 on a
 * CPU: any split, sessions side by side, marks and rollbacks, and session files from and to rows of reals. */
#define _GNU_SOURCE
#include "mixers/exact_memory.h"
#include "model/session.h"
#include "models.h"
#include "temp.h"

enum { N = 150 };
static const hola_dtype types[] = {HOLA_BF16, HOLA_F16, HOLA_INT8, HOLA_INT4};
/* One rounding of a sum may flip the last bit of a stored row, and products of codes round activations to 16 bits. */
static const double bound[] = {1e-3, 1e-3, 2e-3, 2e-3};

static hola_model *stored_as(const char *dir, int v, hola_dtype type) {
    hola_model *m = variant_model(v, 2, NULL), *q;
    CHECK_OK(hola_model_save(m, dir, type));
    CHECK_OK(hola_model_load(&q, dir, NULL));
    hola_model_free(m);
    return q;
}

static void any_split(void **state) {
    const int64_t pieces[] = {1, 9, 31, 32, 33, 64};
    char *dir = temp_new();
    (void)state;
    for (int v = 0; v < VARIANTS; v++)
        for (int t = 0; t < 4; t++) {
            hola_model *m = stored_as(dir, v, types[t]);
            int32_t *ids = random_ids(N, m->cfg.vocab_size, 9);
            double *whole = scores(m, ids, N, N), worst = 0;
            assert_int_equal(m->state.row, HOLA_F16);
            for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
                double *got = scores(m, ids, N, pieces[p]);
                worst = fmax(worst, farthest(got, whole, N - 1));
                free(got);
            }
            if (getenv("HOLA_VERBOSE")) print_message("%s, type %d: %.2g\n", variants[v].name, (int)types[t], worst);
            if (!(worst < bound[t])) fail_msg("%s, type %d: %.3g apart", variants[v].name, (int)types[t], worst);
            check_side_by_side(m, ids);
            free(whole), free(ids);
            hola_model_free(m);
        }
    temp_remove(dir);
}

/* Where weights are floats, or not all of the large ones are not, rows are reals. */
static void which_rows(void **state) {
    char *dir = temp_new();
    (void)state;
    hola_model *m = variant_model(0, 1, NULL), *half = stored_as(dir, 0, HOLA_BF16), *f = stored_as(dir, 0, HOLA_F32);
    hola_session *a, *b;
    CHECK_OK(hola_session_new(&a, f));
    CHECK_OK(hola_session_new(&b, half));
    const int64_t slots = 8 + 32, rows = f->cfg.num_hidden_layers * 2 * slots * (16 + 16);
    assert_int_equal(m->state.row, HOLA_F32);
    assert_int_equal(f->state.row, HOLA_F32);
    assert_int_equal(hola_session_bytes(a) - hola_session_bytes(b), rows * 2);
    half->stored[half->params.head] = HOLA_F32;
    hl_model_lay_out_states(half);
    assert_int_equal(half->state.row, HOLA_F32);
    hola_session_free(a), hola_session_free(b);
    hola_model_free(m), hola_model_free(half), hola_model_free(f);
    temp_remove(dir);
}

/* A rollback gives the bits of a session that never saw the tokens, before and after the end of a block. */
static void rollbacks(void **state) {
    char *dir = temp_new();
    float x[97], y[97];
    (void)state;
    for (int v = 0; v < VARIANTS; v++)
        for (int n = 20; n <= 45; n += 25) {
            hola_model *m = stored_as(dir, v, types[v % 4]);
            hola_session *a, *b, *c;
            int32_t *ids = random_ids(N, 97, 5);
            CHECK_OK(hola_session_new(&a, m));
            CHECK_OK(hola_session_new(&b, m));
            CHECK_OK(hola_session_feed(a, ids, 50, x));
            CHECK_OK(hola_session_feed(b, ids, 50, y));
            CHECK_OK(hola_session_mark(a));
            CHECK_OK(hola_session_feed(a, ids + 60, n, x));
            CHECK_OK(hola_session_rollback(a, n));
            CHECK_OK(hola_session_clone(&c, a));
            for (int k = 0; k < 70; k++) {
                CHECK_OK(hola_session_feed(k % 2 ? a : c, ids + 50 + k, 1, x));
                CHECK_OK(hola_session_feed(k % 2 ? c : a, ids + 50 + k, 1, x));
                CHECK_OK(hola_session_feed(b, ids + 50 + k, 1, y));
                assert_memory_equal(x, y, sizeof x);
            }
            hola_session_free(a), hola_session_free(b), hola_session_free(c);
            free(ids);
            hola_model_free(m);
        }
    temp_remove(dir);
}

static hola_session *fed(hola_model *m, const int32_t *ids, int64_t n) {
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_feed(s, ids, n, NULL));
    return s;
}
static double apart(const float *x, const float *y, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
    return worst;
}

/* Session files: of this model, exact as F32 and F16. With rows of reals, as hola wrote them before it had others, and
 * as a model of floats still does: read with rows rounded; and theirs is read there without loss. A state without its
 * memory is farther off. */
static void files(void **state) {
    char *dir = temp_new(), *path = hl_path_join(dir, "session");
    float x[97], y[97];
    (void)state;
    for (int v = 0; v < VARIANTS; v += 3) {
        hola_model *m = stored_as(dir, v, HOLA_INT8), *before = stored_as(dir, v, HOLA_INT8);
        int32_t *ids = random_ids(N, 97, 6);
        before->state = hl_state_layout(&before->cfg, HOLA_F32, HOLA_F32);
        hola_session *a = fed(m, ids, 100), *b = fed(before, ids, 100), *c, *d;
        CHECK_OK(hola_session_new(&c, m));
        CHECK_OK(hola_session_new(&d, before));
        for (int type = HOLA_F32; type <= HOLA_F16; type++) {
            CHECK_OK(hola_session_save(a, path, (hola_dtype)type));
            CHECK_OK(hola_session_load(c, path));
            for (int64_t l = 0; l < m->state.layers; l++) /* parts of rows are the same bytes; as BF16, near */
                for (int i = 0; i < m->state.n; i++)
                    if (m->state.part[i].kind == HL_STATE_ROW && type != HOLA_BF16) {
                        const int64_t at = l * m->state.layer + m->state.at[i];
                        assert_memory_equal(a->now.state.fixed + at, c->now.state.fixed + at,
                                            (size_t)m->state.part[i].count * 2);
                    }
            if (type == HOLA_F32) assert_memory_equal(a->now.state.fixed, c->now.state.fixed, (size_t)m->state.bytes);
        }
        CHECK_OK(hola_session_save(b, path, HOLA_F32));
        CHECK_OK(hola_session_load(c, path));
        CHECK_OK(hola_session_feed(b, ids + 100, 1, x));
        CHECK_OK(hola_session_feed(c, ids + 100, 1, y));
        if (!(apart(x, y, 97) < 0.02)) fail_msg("%s: %g from rows of reals", variants[v].name, apart(x, y, 97));
        hola_session_reset(c);
        CHECK_OK(hola_session_feed(c, ids + 100, 1, y));
        assert_true(apart(x, y, 97) > 0.05);
        CHECK_OK(hola_session_save(a, path, HOLA_F32));
        CHECK_OK(hola_session_load(d, path));
        CHECK_OK(hola_session_feed(a, ids + 100, 1, x));
        CHECK_OK(hola_session_feed(d, ids + 100, 1, y));
        if (!(apart(x, y, 97) < 0.02)) fail_msg("%s: %g to rows of reals", variants[v].name, apart(x, y, 97));
        hola_session_free(a), hola_session_free(b), hola_session_free(c), hola_session_free(d);
        free(ids);
        hola_model_free(m), hola_model_free(before);
    }
    free(path);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_split), cmocka_unit_test(which_rows),
                                       cmocka_unit_test(rollbacks), cmocka_unit_test(files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
