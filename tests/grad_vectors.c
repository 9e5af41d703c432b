/* grad_vectors.c -- the stored vectors in double: the formulas themselves, free of rounding. */
#include "vectors.h"

static void reference(void **state) {
    (void)state;
    vectors_on("cpu-ref", 1e-9, 1e-9, 1e-9);
}
static void fast(void **state) {
    (void)state;
    vectors_on("cpu-base", 1e-9, 1e-9, 1e-9);
}
static void wrong(void **state) {
    (void)state;
    vectors_catch(1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reference), cmocka_unit_test(fast), cmocka_unit_test(wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
