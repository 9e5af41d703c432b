/* test_vectors.c -- the stored vectors in float, on the reference and on every fast backend. */
#include "vectors.h"

static void reference(void **state) {
    (void)state;
    vectors_on("cpu-ref", 2e-6, 4e-6, 1e-4);
}
static void fast(void **state) {
    (void)state;
    for (int b = 0; check_backend(b); b++)
        if (hl_ops_named(check_backend(b))) vectors_on(check_backend(b), 2e-6, 4e-6, 1e-4);
}
static void wrong(void **state) {
    (void)state;
    vectors_catch(2e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reference), cmocka_unit_test(fast), cmocka_unit_test(wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
