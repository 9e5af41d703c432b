/* cuda_mixers.c -- a device refuses a mixer whose op it lacks in one line that names the op. */
#include "cuda.h"
#include "mixers_case.h"

static void refused(void **state) {
    bool slow;
    (void)state;
    if (!dev_there(&slow)) skip();
    for (int i = 0; i < MIXERS; i++) {
        const hola_config c = mixer_config(i);
        hola_model *m;
        assert_int_equal(hola_model_new(&m, &c, 7, &(hola_options){.backend = "cuda"}), HOLA_ENOTSUP);
        assert_non_null(strstr(hola_last_error(), mixer_of_test[i]->host_op));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
