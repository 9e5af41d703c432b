/* cuda_model.c -- whole models on the device against the CPU's reference: losses and gradients, sessions fed in
 * any pieces and side by side, training to the same losses, the same bits twice, weights that come home. */
#define _GNU_SOURCE
#include "cuda.h"
#include "model/trainer.h"
#include "models.h"
#include "temp.h"

static const char *const backends[] = {"cuda-f32", "cuda"};
enum { F32, BF16, BACKENDS };

static bool slow;
#define NEEDS_DEVICE() \
    if (!dev_there(&slow)) skip()

/* The emulated device takes its time: there every twelfth variant, and the last, has to do. */
static int next_variant(int v) {
    const int step = dev_least() ? VARIANTS - 1 : slow ? 12 : 1;
    return v < VARIANTS && v + step > VARIANTS ? VARIANTS : v + step;
}

static int first_backend(void) { return dev_least() ? BF16 : F32; } /* the other's kernels: cuda_eval.c */

/* Head sizes that the tensor core kernels take, in a small model. */
static const char *const wide_json = "{\"model_type\":\"hola\",\"hidden_size\":64,\"num_hidden_layers\":2,"
                                     "\"vocab_size\":97,\"intermediate_size\":96,"
                                     "\"initializer_range\":0.1,\"num_heads\":4,\"head_dim\":64,\"expand_v\":"
                                     "1,\"cache_window\":16,\"cache_chunk\":64,"
                                     "\"cache_gate_init\":0.5}";
/* KDA of the same kind, 514 outputs in a joint row, beside the variants. */
enum { WIDE_KDA = VARIANTS + 1 };
static const char *const kda_json = "{\"model_type\":\"kda\",\"hidden_size\":64,\"num_hidden_layers\":2,"
                                    "\"vocab_size\":97,\"intermediate_size\":96,"
                                    "\"initializer_range\":0.1,\"num_heads\":2,\"head_dim\":64}";

static hola_model *model_of(int variant, const char *backend) {
    hola_options opt = {.threads = 2, .backend = backend};
    hola_config cfg;
    hola_model *m;
    if (variant < VARIANTS) return variant_model(variant, 2, backend);
    const char *json = variant == WIDE_KDA ? kda_json : wide_json;
    CHECK_OK(hl_config_parse(&cfg, json, (int64_t)strlen(json), "wide"));
    CHECK_OK(hola_model_new(&m, &cfg, 7, &opt));
    return m;
}
static const char *name_of(int variant) { return variant < VARIANTS ? variants[variant].name : "wide heads"; }

/* ---- gradients ---- */

enum { DOCS = 3 };
static const int64_t doc_starts[DOCS] = {0, 70, 71};

struct gradient {
    double loss;
    int64_t n;
    real *g;
};
static struct gradient gradient_of(int variant, const char *backend, int64_t n, bool recompute) {
    hola_model *m = model_of(variant, backend);
    hola_train_opts opt = {.max_tokens = n, .recompute = recompute};
    int32_t *ids = random_ids(n, m->cfg.vocab_size, 31);
    struct gradient r = {.n = m->params.total};
    hola_trainer *t;
    int64_t targets;
    CHECK_OK(hola_trainer_new(&t, m, &opt));
    CHECK_OK(hola_trainer_accumulate(t, ids, n, doc_starts, DOCS, 1.0 / (double)n, &r.loss, &targets));
    r.loss /= (double)targets;
    CHECK_OK(hl_trainer_fetch(t, HL_GRADS));
    r.g = malloc((size_t)r.n * sizeof *r.g);
    memcpy(r.g, hl_trainer_view(t).grads, (size_t)r.n * sizeof *r.g);
    hola_trainer_free(t);
    hola_model_free(m);
    free(ids);
    return r;
}
static double apart(const struct gradient *a, const struct gradient *b) {
    double num = 0, den = 0;
    for (int64_t i = 0; i < a->n; i++) {
        num += ((double)a->g[i] - b->g[i]) * ((double)a->g[i] - b->g[i]);
        den += (double)b->g[i] * b->g[i];
    }
    double e = sqrt(num / den);
    return e == e ? e : 1e30;
}

/* bf16 changes which of two nearly equal scores is larger, hence what is remembered: these models with random
 * weights and tiny memories feel it, most where scores come from a network or likeness has a threshold. */
static bool ties_matter(int variant) {
    return strstr(name_of(variant), "lte") || strstr(name_of(variant), "near-duplicates");
}
static void gradients(void **state) {
    static const double loss_tol[] = {1e-5, 2e-2};
    (void)state;
    NEEDS_DEVICE();
    for (int v = 0; v <= VARIANTS; v = next_variant(v)) {
        struct gradient want = gradient_of(v, "cpu-ref", 150, false);
        for (int b = first_backend(); b < BACKENDS; b++) {
            struct gradient got = gradient_of(v, backends[b], 150, false);
            const double e = apart(&got, &want), tol = b == F32 ? 1e-4 : ties_matter(v) ? 0.35 : 0.2;
            if (!(fabs(got.loss - want.loss) <= loss_tol[b]))
                fail_msg("%s, %s: loss %.8g, expected %.8g", name_of(v), backends[b], got.loss, want.loss);
            if (!(e <= tol)) fail_msg("%s, %s: gradients are %.3g away", name_of(v), backends[b], e);
            for (int64_t i = 0; i < got.n; i++) got.g[i] *= 1.4f; /* this must be seen */
            assert_true(apart(&got, &want) > tol);
            free(got.g);
        }
        free(want.g);
    }
}

/* The operands that KDA keeps for its gradients, and the joint product padded to a multiple of 8 outputs, in a whole
 * model; --recompute keeps none, and has the same bits. */
static void wide_kda(void **state) {
    (void)state;
    NEEDS_DEVICE();
    struct gradient want = gradient_of(WIDE_KDA, "cpu-ref", 150, false),
                    other = gradient_of(WIDE_KDA, "cpu-ref", 149, false);
    struct gradient got = gradient_of(WIDE_KDA, "cuda", 150, false), again = gradient_of(WIDE_KDA, "cuda", 150, true);
    const double tol = 0.04;
    print_message("kda: gradients are %.2g away, those without the last token %.2g\n", apart(&got, &want),
                  apart(&got, &other));
    assert_true(fabs(got.loss - want.loss) <= 1e-2);
    assert_true(apart(&got, &want) <= tol && apart(&got, &other) > tol);
    assert_memory_equal(got.g, again.g, (size_t)got.n * sizeof *got.g);
    free(want.g), free(other.g), free(got.g), free(again.g);
}

static void same_bits_twice(void **state) {
    (void)state;
    NEEDS_DEVICE();
    for (int b = first_backend(); b < BACKENDS; b++)
        for (int v = dev_least() ? VARIANTS : 0; v <= VARIANTS; v += VARIANTS) {
            struct gradient one = gradient_of(v, backends[b], 140, false);
            struct gradient two = gradient_of(v, backends[b], 140, false);
            struct gradient again = gradient_of(v, backends[b], 140, true);
            assert_memory_equal(one.g, two.g, (size_t)one.n * sizeof *one.g);
            assert_memory_equal(one.g, again.g, (size_t)one.n * sizeof *one.g);
            free(one.g);
            free(two.g);
            free(again.g);
        }
}

/* ---- sessions ---- */

static double mean_distance(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += fabs(a[i] - b[i]) / (double)n;
    return sum == sum ? sum : 1e30;
}

static void any_pieces(void **state) {
    (void)state;
    NEEDS_DEVICE();
    const int64_t n = dev_least() ? 70 : slow ? 80 : 150;
    for (int v = 0; v <= VARIANTS; v = next_variant(v)) {
        hola_model *ref = model_of(v, "cpu-ref");
        int32_t *ids = random_ids(n, ref->cfg.vocab_size, 5);
        double *want = scores(ref, ids, n, n);
        assert_true(mean_distance(want + 1, want, n - 2) > 0.4); /* one token late is farther than is allowed */
        for (int b = first_backend(); b < BACKENDS; b++) {
            hola_model *m = model_of(v, backends[b]);
            /* (token by token in the emulator: cuda_session.c, cuda_decode_one.c) */
            for (int64_t piece = slow ? 37 : 1; piece <= n; piece = piece == 1    ? 37
                                                                    : piece == 37 ? 64
                                                                                  : piece + n - 64) {
                double *got = scores(m, ids, n, piece);
                double e = b == F32 ? farthest(got, want, n - 1) : mean_distance(got, want, n - 1);
                if (!(e <= (b == F32 ? 2e-4 : ties_matter(v) ? 0.2 : 0.1)))
                    fail_msg("%s, %s, pieces of %d: a log-probability is %.3g away", name_of(v), backends[b],
                             (int)piece, e);
                free(got);
            }
            hola_model_free(m);
        }
        free(want);
        free(ids);
        hola_model_free(ref);
    }
}

/* Three sessions at different positions stepped together, against each alone. */
static void side_by_side(void **state) {
    enum { N = 3 };
    const int steps = dev_least() ? 4 : 34;
    const int64_t lead[N] = {1, 70, 33}; /* the last comes across a block's end */
    (void)state;
    NEEDS_DEVICE();
    for (int b = first_backend(); b < BACKENDS; b++) {
        hola_model *m = model_of(VARIANTS, backends[b]);
        const int64_t vocab = m->cfg.vocab_size;
        hola_session *alone[N], *together[N];
        int32_t *ids = random_ids(200, vocab, 9);
        float *x = calloc((size_t)(N * vocab), sizeof *x), *y = calloc((size_t)(N * vocab), sizeof *y);
        for (int i = 0; i < N; i++) {
            CHECK_OK(hola_session_new(&alone[i], m));
            CHECK_OK(hola_session_new(&together[i], m));
            CHECK_OK(hola_session_feed(alone[i], ids, lead[i], NULL));
            CHECK_OK(hola_session_feed(together[i], ids, lead[i], NULL));
        }
        for (int s = 0; s < steps; s++) {
            const int32_t next[N] = {ids[s], ids[s + 3], ids[s + 11]};
            for (int i = 0; i < N; i++) CHECK_OK(hola_session_step(&alone[i], 1, &next[i], x + i * vocab));
            CHECK_OK(hola_session_step(together, N, next, y));
            CHECK_NEAR(y, x, N, vocab, b == F32 ? 1e-4 : 2e-2, "%s, step %d", backends[b], s);
        }
        CHECK_FAR(x, x + vocab, 1, vocab, 0.1); /* sessions do differ */
        for (int i = 0; i < N; i++) hola_session_free(alone[i]), hola_session_free(together[i]);
        free(ids);
        free(x);
        free(y);
        hola_model_free(m);
    }
}

/* ---- training ---- */

static void train(hola_model *m, int steps, double *loss) {
    const int64_t n = 128;
    hola_train_opts opt = {.max_tokens = n};
    hola_trainer *t;
    CHECK_OK(hola_trainer_new(&t, m, &opt));
    for (int s = 0; s < steps; s++) {
        int32_t *ids = random_ids(n, m->cfg.vocab_size / 4, (uint64_t)s % 2);
        int64_t targets;
        CHECK_OK(hola_trainer_accumulate(t, ids, n, NULL, 0, 1.0 / (double)n, &loss[s], &targets));
        CHECK_OK(hola_trainer_update(t, 3e-3, NULL));
        loss[s] /= (double)targets;
        free(ids);
    }
    hola_trainer_free(t);
}

static void training(void **state) {
    enum { STEPS = 8, AGAIN = 3 };
    static const double tol[] = {1e-3, 3e-2};
    const int steps = dev_least() ? AGAIN : STEPS;
    double want[STEPS], got[STEPS], again[AGAIN];
    (void)state;
    NEEDS_DEVICE();
    hola_model *ref = model_of(VARIANTS, "cpu-ref");
    train(ref, STEPS, want);
    assert_true(want[STEPS - 1] < want[0] - 0.3);
    for (int b = first_backend(); b < BACKENDS; b++) {
        hola_model *m = model_of(VARIANTS, backends[b]), *twin = model_of(VARIANTS, backends[b]), *home;
        char *dir = temp_new();
        train(m, steps, got);
        train(twin, AGAIN, again);
        for (int s = 0; s < steps; s++)
            if (!(fabs(got[s] - want[s]) <= tol[b] * want[s]))
                fail_msg("%s, step %d: loss %.6g, expected %.6g", backends[b], s, got[s], want[s]);
        assert_memory_equal(got, again, sizeof again);
        /* what was trained: on the host, in a file, and in sessions of both backends */
        CHECK_OK(hola_model_save(m, dir, HOLA_F32));
        CHECK_OK(hola_model_load(&home, dir, NULL));
        assert_memory_equal(m->rows, home->rows, (size_t)m->params.total * sizeof(real));
        int32_t *ids = random_ids(100, m->cfg.vocab_size / 4, 0);
        double *x = scores(m, ids, 100, 100), *y = scores(home, ids, 100, 100);
        assert_true(farthest(x, y, 99) <= (b == F32 ? 1e-3 : 0.2));
        free(x);
        free(y);
        free(ids);
        hola_model_free(home);
        hola_model_free(twin);
        hola_model_free(m);
        temp_remove(dir);
    }
    hola_model_free(ref);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(wide_kda),        cmocka_unit_test(gradients),
                                       cmocka_unit_test(same_bits_twice), cmocka_unit_test(any_pieces),
                                       cmocka_unit_test(side_by_side),    cmocka_unit_test(training)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
