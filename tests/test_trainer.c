/* test_trainer.c -- the training form: packed documents, threads, recomputation, updates. */
#include "model/trainer.h"
#include "mixers/gdn/gdn_layer.h"
#include "models.h"

/* per-token losses of the training form */
static double *losses(hola_model *m, const int32_t *ids, int64_t n, const int64_t *starts, int64_t n_starts) {
    struct hl_seg *seg = calloc((size_t)n_starts, sizeof *seg);
    struct hl_rows rows = {.T = n, .n = n_starts, .seg = seg};
    struct hl_activations acts = {.pass = HL_TRAIN, .backend = m->backend};
    int32_t *target = malloc((size_t)n * sizeof *target);
    double *out = malloc((size_t)n * sizeof *out);
    for (int64_t i = 0; i < n_starts; i++) {
        int64_t end = i + 1 < n_starts ? starts[i + 1] : n;
        seg[i] = (struct hl_seg){.row = starts[i], .len = end - starts[i]};
        for (int64_t j = starts[i]; j < end; j++) target[j] = j + 1 < end ? ids[j + 1] : -1;
    }
    CHECK_OK(hl_model_need_master(m));
    CHECK_OK(hl_activations_reserve(&acts, &m->cfg, &rows, n));
    hl_model_forward(m, &acts, &rows, ids);
    hl_model_loss(m, &acts, n, target, 0, NULL);
    memcpy(out, acts.nll, (size_t)n * sizeof *out);
    hl_activations_free(&acts);
    free(target);
    free(seg);
    return out;
}

static void packed_is_separate(void **state) {
    const int64_t starts[] = {0, 1, 2, 66, 129, 131, 400, 657}, n = 700, docs = 8;
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 2, NULL);
        int32_t *ids = random_ids(n, m->cfg.vocab_size, 17);
        double *packed = losses(m, ids, n, starts, docs), *leaky = losses(m, ids, n, starts, 1);
        for (int64_t i = 0; i < docs; i++) {
            const int64_t zero = 0, end = i + 1 < docs ? starts[i + 1] : n, len = end - starts[i];
            double *alone = losses(m, ids + starts[i], len, &zero, 1);
            if (memcmp(alone, packed + starts[i], (size_t)len * sizeof *alone))
                fail_msg("%s: document %d packed differs from alone by %.3g", variants[v].name, (int)i,
                         farthest(alone, packed + starts[i], len));
            if (i > 1 && len > 20) assert_true(farthest(alone, leaky + starts[i], 20) > 1e-3); /* a leak shows */
            free(alone);
        }
        free(packed);
        free(leaky);
        free(ids);
        hola_model_free(m);
    }
}

static void training_form_is_streaming_form(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 2, NULL);
        const int64_t n = 500, zero = 0;
        int32_t *ids = random_ids(n, m->cfg.vocab_size, 29);
        double *train = losses(m, ids, n, &zero, 1), *stream = scores(m, ids, n, 100);
        for (int64_t i = 0; i < n - 1; i++) stream[i] = -stream[i];
        double e = farthest(train, stream, n - 1);
        if (!(e < 2e-5)) fail_msg("%s: %.3g away", variants[v].name, e);
        free(train);
        free(stream);
        free(ids);
        hola_model_free(m);
    }
}

/* one accumulate; returns the gradient block */
static real *gradient(int v, int threads, const char *backend, bool recompute, double *loss) {
    const int64_t n = 300;
    hola_model *m = variant_model(v, threads, backend);
    int32_t *ids = random_ids(n, m->cfg.vocab_size, 31);
    struct hl_seg seg[3] = {{.row = 0, .len = 100}, {.row = 100, .len = 1}, {.row = 101, .len = 199}};
    struct hl_rows rows = {.T = n, .n = 3, .seg = seg};
    struct hl_activations acts = {.pass = HL_TRAIN, .backend = m->backend, .recompute = recompute};
    int32_t target[300];
    real *g = calloc((size_t)m->params.total, sizeof *g);
    for (int64_t i = 0; i < n; i++) target[i] = i == 99 || i == 100 || i == 299 ? -1 : ids[i + 1];
    CHECK_OK(hl_model_need_master(m));
    CHECK_OK(hl_activations_reserve(&acts, &m->cfg, &rows, n));
    hl_model_forward(m, &acts, &rows, ids);
    hl_model_loss(m, &acts, n, target, 1.0 / 297, g);
    hl_model_backward(m, &acts, &rows, ids, g);
    *loss = 0;
    for (int64_t i = 0; i < n; i++) *loss += acts.nll[i] / 297;
    hl_activations_free(&acts);
    free(ids);
    hola_model_free(m);
    return g;
}

static void threads_and_recompute(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_config cfg = variant_config(v);
        struct hl_params p;
        double l1, l2;
        CHECK_OK(hl_params_new(&p, &cfg));
        real *one = gradient(v, 1, NULL, false, &l1);
        for (int i = 0; i < 3; i++) {
            real *g = gradient(v, i == 0 ? 3 : 1, NULL, i > 0, &l2);
            assert_true(l1 == l2);
            if (memcmp(one, g, (size_t)p.total * sizeof *g))
                fail_msg("%s: gradients differ (%s)", variants[v].name, i ? "recompute" : "threads");
            free(g);
        }
        /* the fast backends against the reference, tensor by tensor */
        real *want = gradient(v, 1, "cpu-ref", false, &l2);
        for (int b = 0; check_backend(b); b++) {
            if (!hl_ops_named(check_backend(b))) continue;
            real *g = gradient(v, 2, check_backend(b), false, &l1);
            assert_true(fabs(l1 - l2) < 5e-6);
            for (int64_t t = 0; t < p.n; t++)
                CHECK_NEAR(g + p.tensor[t].offset, want + p.tensor[t].offset, 1, p.tensor[t].count, 2e-4, "%s, %s, %s",
                           variants[v].name, check_backend(b), p.tensor[t].name);
            free(g);
        }
        free(one);
        free(want);
        hl_params_free(&p);
    }
}

/* Documents in one call: the losses, targets and gradients of each alone. */
static void documents_are_apart(void **state) {
    const int64_t starts[] = {0, 70, 71, 171}, n = 240, docs = 4;
    (void)state;
    for (int v = 0; v < VARIANTS; v += 4) {
        hola_model *m = variant_model(v, 2, NULL);
        const hola_train_opts opt = {.max_tokens = n};
        int32_t *ids = random_ids(n, m->cfg.vocab_size, 23);
        real *want = malloc((size_t)m->params.total * sizeof *want);
        double sum = 0, loss, packed;
        int64_t count = 0, targets;
        hola_trainer *t;
        CHECK_OK(hola_trainer_new(&t, m, &opt));
        const real *grads = hl_trainer_view(t).grads;
        for (int64_t i = 0; i < docs; i++) {
            const int64_t end = i + 1 < docs ? starts[i + 1] : n, len = end - starts[i];
            CHECK_OK(hola_trainer_accumulate(t, ids + starts[i], len, NULL, 0, 1.0 / 236, &loss, &targets));
            assert_int_equal(targets, len - 1);
            sum += loss, count += targets;
        }
        memcpy(want, grads, (size_t)m->params.total * sizeof *want);
        hl_trainer_clear(t);
        CHECK_OK(hola_trainer_evaluate(t, ids, n, starts, docs, &loss, &targets));
        CHECK_OK(hola_trainer_accumulate(t, ids, n, starts, docs, 1.0 / 236, &packed, NULL));
        assert_int_equal(targets, count);
        /* without gradients the loss is summed in another order */
        assert_true(fabs(loss - packed) < 1e-6 * sum && fabs(packed - sum) < 1e-9 * sum);
        CHECK_NEAR(grads, want, 1, m->params.total, 1e-5, "%s", variants[v].name);
        hl_trainer_clear(t); /* as one document it is another loss */
        CHECK_OK(hola_trainer_accumulate(t, ids, n, NULL, 0, 1.0 / 236, &loss, NULL));
        assert_true(fabs(loss - sum) > 1e-3 * sum);
        CHECK_FAR(grads, want, 1, m->params.total, 1e-3);
        hola_trainer_free(t);
        free(want), free(ids);
        hola_model_free(m);
    }
}

/* Three updates of which the first is clipped, against AdamW by hand in double; what is frozen stays. */
static void updates_are_adamw(void **state) {
    enum { N = 120 };
    const double lr = 1e-2, b1 = 0.8, b2 = 0.9, eps = 1e-6, decay = 0.2, weight[] = {0.05, 0.002, 0.01};
    hola_model *m = variant_model(0, 2, NULL);
    const struct hl_params *p = &m->params;
    int32_t *ids = random_ids(N, m->cfg.vocab_size, 3);
    double *x = calloc((size_t)p->total, sizeof *x), *m1 = calloc((size_t)p->total, sizeof *m1),
           *m2 = calloc((size_t)p->total, sizeof *m2), norm, worst = 0;
    hola_trainer *t;
    (void)state;
    CHECK_OK(hola_trainer_new(&t, m, NULL));
    CHECK_OK(hola_trainer_accumulate(t, ids, N, NULL, 0, weight[0], NULL, NULL));
    const double first = sqrt(hl_trainer_sumsq(t));
    hola_trainer_free(t);
    const hola_train_opts opt = {.beta1 = b1, .beta2 = b2, .eps = eps, .weight_decay = decay, .clip = first / 1.5};
    CHECK_OK(hola_trainer_new(&t, m, &opt));
    for (int64_t i = 0; i < p->total; i++) x[i] = (double)m->rows[i];
    for (int step = 0; step < 3; step++) {
        CHECK_OK(hola_trainer_accumulate(t, ids, N, NULL, 0, weight[step], NULL, NULL));
        const real *g = hl_trainer_view(t).grads;
        const double length = sqrt(hl_trainer_sumsq(t)), scale = length > opt.clip ? opt.clip / length : 1;
        assert_true((scale < 1) == (step == 0));
        for (int64_t k = 0; k < p->n; k++)
            for (int64_t j = 0; p->tensor[k].trained && j < p->tensor[k].count; j++) {
                const int64_t i = p->tensor[k].offset + j;
                const double d = scale * (double)g[i];
                m1[i] = b1 * m1[i] + (1 - b1) * d;
                m2[i] = b2 * m2[i] + (1 - b2) * d * d;
                x[i] -= lr * (m1[i] / (1 - pow(b1, step + 1)) / (sqrt(m2[i] / (1 - pow(b2, step + 1))) + eps) +
                              decay * x[i]);
            }
        CHECK_OK(hola_trainer_update(t, lr, &norm));
        assert_true(fabs(norm - length) < 1e-9 * length);
    }
    for (int64_t i = 0; i < p->total; i++) worst = fmax(worst, fabs(x[i] - (double)m->rows[i]));
    if (!(worst < 1e-5)) fail_msg("a weight is %g away after three updates of %g", worst, lr);
    hola_trainer_free(t);
    free(x), free(m1), free(m2), free(ids);
    hola_model_free(m);
}

static void training_lowers_the_loss(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v += 3) {
        hola_model *m = variant_model(v, 2, NULL);
        hola_trainer *t;
        int32_t ids[240];
        double first = 0, last = 0, norm;
        int64_t targets;
        for (int i = 0; i < 240; i++) ids[i] = (int32_t)((i * i) % 13);
        CHECK_OK(hola_trainer_new(&t, m, NULL));
        const int64_t tau = m->params.layer[0].mixer[MEMORY + HL_MEMORY_TAU];
        const real before = tau >= 0 ? m->rows[m->params.tensor[tau].offset] : 0;
        for (int step = 0; step < 30; step++) {
            CHECK_OK(hola_trainer_accumulate(t, ids, 240, NULL, 0, 1.0 / 239, &last, &targets));
            assert_int_equal(targets, 239);
            if (step == 0) first = last;
            CHECK_OK(hola_trainer_update(t, 3e-3, &norm));
            assert_true(norm > 0);
        }
        assert_true(last < 0.5 * first);
        if (tau >= 0 && m->cfg.cache_tau_freeze) assert_true(m->rows[m->params.tensor[tau].offset] == before);
        /* a session opened now sees the trained weights */
        double *lp = scores(m, ids, 240, 240), sum = 0, loss;
        CHECK_OK(hola_trainer_evaluate(t, ids, 240, NULL, 0, &loss, NULL));
        for (int i = 0; i < 239; i++) sum -= lp[i];
        assert_true(fabs(sum - loss) < 1e-3);
        free(lp);
        hola_trainer_free(t);
        hola_model_free(m);
    }
}

static void bad_gradients_change_nothing(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    hola_trainer *t, *second;
    int32_t ids[20] = {1, 2, 3};
    double norm;
    (void)state;
    CHECK_OK(hola_trainer_new(&t, m, NULL));
    assert_int_equal(hola_trainer_new(&second, m, NULL), HOLA_EINVAL);
    real *before = malloc((size_t)m->params.total * sizeof *before);
    memcpy(before, m->rows, (size_t)m->params.total * sizeof *before);
    CHECK_OK(hola_trainer_accumulate(t, ids, 20, NULL, 0, (double)INFINITY, NULL, NULL));
    assert_int_equal(hola_trainer_update(t, 1e-3, &norm), HOLA_ENUMERIC);
    assert_memory_equal(before, m->rows, (size_t)m->params.total * sizeof *before);
    CHECK_OK(hola_trainer_accumulate(t, ids, 20, NULL, 0, 0.05, NULL, NULL)); /* and it goes on */
    CHECK_OK(hola_trainer_update(t, 1e-3, &norm));
    assert_true(memcmp(before, m->rows, (size_t)m->params.total * sizeof *before) != 0);

    const int64_t late[] = {1}, falling[] = {0, 5, 5}, far[] = {0, 20};
    assert_int_equal(hola_trainer_accumulate(t, ids, 20, late, 1, 1, NULL, NULL), HOLA_EINVAL);
    assert_int_equal(hola_trainer_accumulate(t, ids, 20, falling, 3, 1, NULL, NULL), HOLA_EINVAL);
    assert_int_equal(hola_trainer_accumulate(t, ids, 20, far, 2, 1, NULL, NULL), HOLA_EINVAL);
    assert_int_equal(hola_trainer_accumulate(t, ids, 0, NULL, 0, 1, NULL, NULL), HOLA_EINVAL);
    assert_int_equal(hola_trainer_accumulate(t, ids, 5000, NULL, 0, 1, NULL, NULL), HOLA_EINVAL);
    assert_int_equal(hola_trainer_update(t, -1, &norm), HOLA_EINVAL);
    ids[4] = 97;
    assert_int_equal(hola_trainer_accumulate(t, ids, 20, NULL, 0, 1, NULL, NULL), HOLA_EINVAL);
    free(before);
    hola_trainer_free(t);
    hola_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_is_separate),          cmocka_unit_test(training_form_is_streaming_form),
        cmocka_unit_test(threads_and_recompute),       cmocka_unit_test(documents_are_apart),
        cmocka_unit_test(updates_are_adamw),           cmocka_unit_test(training_lowers_the_loss),
        cmocka_unit_test(bad_gradients_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
