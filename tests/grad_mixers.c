/* grad_mixers.c -- the gradients of mixers that are defined in tests, through whole models, against finite
 * differences. */
#include "mixers_case.h"
#include "model/trainer.h"

enum { N = 40 };
struct loss {
    hola_trainer *t;
    const int32_t *ids;
};
static const int64_t starts[] = {0, 17};
static double loss_of(void *ctx) {
    const struct loss *x = ctx;
    double sum;
    CHECK_OK(hola_trainer_evaluate(x->t, x->ids, N, starts, 2, &sum, NULL));
    return sum;
}

static void gradients(void **state) {
    (void)state;
    for (int i = 0; i < MIXERS; i++)
        for (int recompute = 0; recompute < 2; recompute++) {
            hola_model *m = mixer_model(i, 1, "cpu-ref");
            const hola_train_opts opt = {.recompute = recompute};
            int32_t *ids = random_ids(N, m->cfg.vocab_size, 3);
            hola_trainer *t;
            CHECK_OK(hola_trainer_new(&t, m, &opt));
            CHECK_OK(hola_trainer_accumulate(t, ids, N, starts, 2, 1, NULL, NULL));
            const struct hl_trainer_view v = hl_trainer_view(t);
            struct loss x = {t, ids};
            for (int64_t k = 0; k < m->params.n; k++) {
                const struct hl_tensor *w = &m->params.tensor[k];
                const double e = check_directions(loss_of, &x, v.params + w->offset, v.grads + w->offset, w->count, 3);
                if (!(e <= 1e-6)) fail_msg("mixer %d: %s is off by %.3g", i, w->name, e);
            }
            const struct hl_tensor *q = &m->params.tensor[m->params.layer[0].mixer[Q]];
            v.grads[q->offset + q->count / 2] += (real)0.05; /* a wrong one is seen */
            assert_true(check_directions(loss_of, &x, v.params + q->offset, v.grads + q->offset, q->count, 1) > 1e-4);
            free(ids);
            hola_trainer_free(t);
            hola_model_free(m);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
