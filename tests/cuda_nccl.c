/* cuda_nccl.c -- one rank through NCCL: sums over one rank change nothing, parts come where they belong, and a
 * linked trainer takes the same steps as one alone. More ranks need more devices. */
#include "cuda.h"
#include "model/trainer.h"
#include "models.h"

static void nobody(void *data, int64_t bytes) { (void)data, (void)bytes; }

static void one_rank(void **state) {
    enum { N = 1000 };
    struct dev d = dev_open(false);
    (void)state;
    if (d.backend->collectives->link(d.backend, 0, 1, nobody) != HOLA_OK) {
        print_message("%s\n", hola_last_error());
        dev_close(&d);
        skip();
    }
    real *x = check_random(N, -1, 1, 3), *got = check_new(N), *p = dev_real(&d, x, N);
    d.backend->collectives->reduce(d.backend, p, 10, 900, N);
    d.backend->collectives->reduced(d.backend);
    d.backend->collectives->share(d.backend, p, N * (int64_t)sizeof(real));
    dev_real_take(&d, p, got, N);
    assert_memory_equal(got, x, N * sizeof *x);
    check_free(x, N);
    check_free(got, N);
    dev_close(&d);
}

/* Losses of three steps, through the link or without. */
static bool train(bool linked, double *loss) {
    enum { N = 128 };
    hola_model *m = variant_model(0, 1, "cuda");
    hola_train_opts opt = {.max_tokens = N};
    hola_trainer *t;
    CHECK_OK(hola_trainer_new(&t, m, &opt));
    const bool there = !linked || hl_trainer_link(t, 0, nobody) == HOLA_OK;
    for (int s = 0; there && s < 3; s++) {
        int32_t *ids = random_ids(N, m->cfg.vocab_size, (uint64_t)s);
        if (linked) hl_trainer_announce(t);
        CHECK_OK(hola_trainer_accumulate(t, ids, N, NULL, 0, 1.0 / N, &loss[s], NULL));
        if (linked) hl_trainer_reduce(t);
        hl_trainer_apply(t, 1e-3, sqrt(hl_trainer_sumsq(t)));
        if (linked) hl_trainer_share(t);
        hl_trainer_clear(t);
        free(ids);
    }
    hola_trainer_free(t);
    hola_model_free(m);
    return there;
}

static void linked_trainer(void **state) {
    double alone[3], linked[3];
    struct dev d = dev_open(false);
    (void)state;
    dev_close(&d);
    if (!train(true, linked)) {
        print_message("%s\n", hola_last_error());
        skip();
    }
    train(false, alone);
    assert_memory_equal(alone, linked, sizeof alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_rank), cmocka_unit_test(linked_trainer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
