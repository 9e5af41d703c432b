/* cuda_transformer.c -- whole transformers on the device, with heads that the tensor-core kernels take, against the
 * CPU's reference: gradients over packed documents, sessions in any pieces over the end of a page and around a window,
 * side by side, cloned, rolled back and saved. */
#define _GNU_SOURCE
#include "cuda.h"
#include "model/trainer.h"
#include "models.h"
#include "temp.h"

#define BODY                                                                                        \
    "\"model_type\":\"transformer\",\"hidden_size\":128,\"num_hidden_layers\":2,\"vocab_size\":97," \
    "\"intermediate_size\":96,\"initializer_range\":0.1,\"num_heads\":2"
static const struct variant wide[] = {{"pages", "{" BODY "}"},
                                      {"window", "{" BODY ",\"num_kv_heads\":1,\"window_size\":60,\"qkv_bias\":true}"},
                                      {"norm", "{" BODY ",\"qk_norm\":true}"}};
enum { WIDE_MODELS = sizeof wide / sizeof *wide, VOCAB = 97 };
static const char *const backends[] = {"cuda-f32", "cuda"};

static bool slow;
#define NEEDS_DEVICE() \
    if (!dev_there(&slow)) skip()
static hola_model *model_on(int i, const char *backend) {
    hola_options opt = {.threads = 2, .backend = backend};
    hola_config cfg;
    hola_model *m;
    CHECK_OK(hl_config_parse(&cfg, wide[i].json, (int64_t)strlen(wide[i].json), wide[i].name));
    CHECK_OK(hola_model_new(&m, &cfg, 7, &opt));
    return m;
}

/* ---- gradients ---- */

static real *gradient_of(int i, const char *backend, int64_t n, bool recompute, double *loss, int64_t *count) {
    static const int64_t starts[] = {0, 70, 71};
    hola_model *m = model_on(i, backend);
    hola_train_opts opt = {.max_tokens = n, .recompute = recompute};
    int32_t *ids = random_ids(n, VOCAB, 31);
    hola_trainer *t;
    int64_t targets;
    CHECK_OK(hola_trainer_new(&t, m, &opt));
    CHECK_OK(hola_trainer_accumulate(t, ids, n, starts, 3, 1.0 / (double)n, loss, &targets));
    *loss /= (double)targets;
    CHECK_OK(hl_trainer_fetch(t, HL_GRADS));
    *count = m->params.total;
    real *g = check_new(*count);
    memcpy(g, hl_trainer_view(t).grads, (size_t)*count * sizeof *g);
    hola_trainer_free(t);
    hola_model_free(m);
    free(ids);
    return g;
}
static void gradients(void **state) {
    static const double loss_tol[] = {1e-5, 1e-2}, tol[] = {1e-4, 0.03};
    (void)state;
    NEEDS_DEVICE();
    for (int i = 0; i < WIDE_MODELS; i++) {
        double loss, got_loss;
        int64_t n;
        real *want = gradient_of(i, "cpu-ref", 210, false, &loss, &n);
        for (int b = slow && i ? 1 : 0; b < 2; b++) {
            real *got = gradient_of(i, backends[b], 210, false, &got_loss, &n),
                 *again = gradient_of(i, backends[b], 210, true, &got_loss, &n);
            assert_memory_equal(got, again, (size_t)n * sizeof *got);
            assert_true(fabs(loss - got_loss) <= loss_tol[b]);
            CHECK_NEAR(got, want, 1, n, tol[b], "%s, %s", wide[i].name, backends[b]);
            for (int64_t j = 0; j < n; j++) got[j] *= 1.1f;
            CHECK_FAR(got, want, 1, n, tol[b]);
            check_free(got, n), check_free(again, n);
        }
        check_free(want, n);
    }
}

/* ---- sessions ---- */

static void pieces(void **state) {
    static const int64_t piece[] = {1000, 1, 37, 129};
    (void)state;
    NEEDS_DEVICE();
    for (int i = 0; i < WIDE_MODELS; i++) {
        const int64_t n = i == 0 ? (slow ? 1 : 2) * HL_PAGE_TOKENS + 5 : slow ? 100 : 140;
        hola_model *ref = model_on(i, "cpu-ref");
        int32_t *ids = random_ids(n, VOCAB, 5);
        double *want = scores(ref, ids, n, n);
        for (int b = slow && i != 1 ? 1 : 0; b < 2; b++) {
            hola_model *m = model_on(i, backends[b]);
            for (int j = 0; j < 4; j++) {
                if (slow && piece[j] == 1 && i != 1) continue; /* side_by_side takes single tokens over a page's end */
                double *got = scores(m, ids, n, piece[j]), e = farthest(got, want, n - 1);
                if (!(e <= (b ? 0.1 : 2e-4)))
                    fail_msg("%s, %s, pieces of %d: a log-probability is %.3g away", wide[i].name, backends[b],
                             (int)piece[j], e);
                free(got);
            }
            hola_model_free(m);
        }
        free(want), free(ids);
        hola_model_free(ref);
    }
}

/* Sessions at different positions stepped together, against each alone; one of them goes over the end of a page. */
static void side_by_side(void **state) {
    enum { N = 3, STEPS = 5 };
    const int64_t lead[N] = {1, 70, HL_PAGE_TOKENS - 3};
    (void)state;
    NEEDS_DEVICE();
    for (int k = 0; k < WIDE_MODELS; k++) {
        hola_model *m = model_on(k, "cuda");
        hola_session *alone[N], *together[N];
        int32_t *ids = random_ids(400, VOCAB, 9);
        float x[N * VOCAB], y[N * VOCAB];
        for (int i = 0; i < N; i++) {
            CHECK_OK(hola_session_new(&alone[i], m));
            CHECK_OK(hola_session_feed(alone[i], ids, lead[i], NULL));
            CHECK_OK(hola_session_clone(&together[i], alone[i]));
        }
        for (int s = 0; s < STEPS; s++) {
            const int32_t next[N] = {ids[s], ids[s + 3], ids[s + 11]};
            for (int i = 0; i < N; i++) CHECK_OK(hola_session_step(&alone[i], 1, &next[i], x + i * VOCAB));
            CHECK_OK(hola_session_step(together, N, next, y));
            CHECK_NEAR(y, x, N, VOCAB, 2e-2, "%s, step %d", wide[k].name, s);
        }
        CHECK_FAR(x, x + VOCAB, 1, VOCAB, 0.1); /* sessions do differ */
        for (int i = 0; i < N; i++) hola_session_free(alone[i]), hola_session_free(together[i]);
        free(ids);
        hola_model_free(m);
    }
}

static void copies(void **state) {
    char *dir = temp_new(), *path = hl_path_join(dir, "session");
    (void)state;
    NEEDS_DEVICE();
    for (int k = 0; k < 2; k++) {
        hola_model *m = model_on(k, "cuda");
        hola_session *a, *b, *c;
        int32_t *ids = random_ids(400, VOCAB, 3);
        float x[VOCAB], y[VOCAB], z[VOCAB];
        const int64_t n = HL_PAGE_TOKENS - 2;
        CHECK_OK(hola_session_new(&a, m));
        CHECK_OK(hola_session_new(&c, m));
        CHECK_OK(hola_session_feed(a, ids, n, NULL));
        CHECK_OK(hola_session_clone(&b, a));
        CHECK_OK(hola_session_save(a, path, HOLA_F32));
        CHECK_OK(hola_session_load(c, path));
        CHECK_OK(hola_session_mark(b));
        CHECK_OK(hola_session_feed(b, ids + 300, 7, x)); /* over the end of a page */
        CHECK_OK(hola_session_rollback(b, 7));
        for (int i = 0; i < 5; i++) {
            CHECK_OK(hola_session_feed(a, ids + n + i, 1, x));
            CHECK_OK(hola_session_feed(b, ids + n + i, 1, y));
            CHECK_OK(hola_session_feed(c, ids + n + i, 1, z));
            assert_memory_equal(x, y, sizeof x);
            assert_memory_equal(x, z, sizeof x);
        }
        CHECK_OK(hola_session_feed(a, ids + 7, 1, x));
        CHECK_OK(hola_session_feed(b, ids + 8, 1, y));
        assert_memory_not_equal(x, y, sizeof x);
        hola_session_free(a), hola_session_free(b), hola_session_free(c);
        free(ids);
        hola_model_free(m);
    }
    free(path);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients), cmocka_unit_test(pieces),
                                       cmocka_unit_test(side_by_side), cmocka_unit_test(copies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
