/* grad_recurrent_models.c -- gradients through whole models of gla, gsa and kda, with and without the exact memory,
 * against finite differences: every tensor of every variant, plain and recomputed, reference and fast forms. */
#include "model/trainer.h"
#include "models.h"

enum { N = 90 };
static const int64_t starts[] = {0, 1, 18};
struct loss {
    hola_trainer *t;
    const int32_t *ids;
};
static double loss_of(void *ctx) {
    const struct loss *x = ctx;
    double sum;
    CHECK_OK(hola_trainer_evaluate(x->t, x->ids, N, starts, 3, &sum, NULL));
    return sum;
}

static bool is_recurrent(const hola_config *c) {
    return c->model_type == HOLA_TYPE_GLA || c->model_type == HOLA_TYPE_GSA || c->model_type == HOLA_TYPE_KDA;
}

static void check_variant(int v, const char *backend, bool recompute) {
    hola_model *m = variant_model(v, 1, backend);
    const hola_train_opts opt = {.recompute = recompute};
    int32_t *ids = random_ids(N, m->cfg.vocab_size, 3);
    hola_trainer *t;
    int64_t tensors = 0;
    CHECK_OK(hola_trainer_new(&t, m, &opt));
    CHECK_OK(hola_trainer_accumulate(t, ids, N, starts, 3, 1, NULL, NULL));
    const struct hl_trainer_view view = hl_trainer_view(t);
    struct loss x = {t, ids};
    for (int64_t k = 0; k < m->params.n; k++) {
        const struct hl_tensor *w = &m->params.tensor[k];
        if (!strstr(w->name, "layers.0.attn.") || !w->trained) continue;
        const double e = check_directions(loss_of, &x, view.params + w->offset, view.grads + w->offset, w->count, 3);
        if (!(e <= 2e-6)) fail_msg("%s on %s: %s is off by %.3g", variants[v].name, backend, w->name, e);
        tensors++;
    }
    assert_true(tensors >= 6);
    /* a wrong one is seen */
    const struct hl_tensor *q = &m->params.tensor[hl_params_find(&m->params, "model.layers.0.attn.q_proj.weight")];
    view.grads[q->offset + q->count / 2] += (real)0.05;
    assert_true(check_directions(loss_of, &x, view.params + q->offset, view.grads + q->offset, q->count, 1) > 1e-4);
    free(ids);
    hola_trainer_free(t);
    hola_model_free(m);
}

static void reference(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        const hola_config c = variant_config(v);
        if (is_recurrent(&c)) check_variant(v, "cpu-ref", false);
    }
}
static void fast(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        const hola_config c = variant_config(v);
        if (is_recurrent(&c)) check_variant(v, "cpu-base", true);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reference), cmocka_unit_test(fast)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
