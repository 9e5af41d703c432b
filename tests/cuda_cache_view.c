/* cuda_cache_view.c -- the look into the exact memory of a model on a device: as on the CPU. */
#include "model/cache_view.h"
#include "models.h"

static void test_view(void **state) {
    enum { N = 150 };
    int32_t *ids = random_ids(N, 97, 3);
    hola_model *cpu = variant_model(0, 1, NULL), *cuda = variant_model(0, 1, "cuda-f32");
    struct hl_cache_view a, b, other;
    (void)state;
    CHECK_OK(hl_cache_view_make(&a, cpu, ids, N, 100));
    CHECK_OK(hl_cache_view_make(&b, cuda, ids, N, 100));
    CHECK_OK(hl_cache_view_make(&other, cpu, ids, N, 101));
    for (int64_t i = 0; i < a.layers * a.heads; i++) {
        const struct hl_cache_view_head *x = &a.head[i], *y = &b.head[i];
        double apart = 0;
        assert_int_equal(x->kept, y->kept);
        assert_memory_equal(x->pos, y->pos, (size_t)x->kept * sizeof *x->pos);
        for (int64_t j = 0; j < x->kept; j++) {
            assert_true(fabsf(x->score[j] - y->score[j]) < 1e-4f);
            assert_true(x->score[j] == x->m[x->pos[j]] && y->score[j] == y->m[y->pos[j]]);
        }
        assert_int_equal(x->seen, y->seen);
        for (int64_t t = 0; t < N; t++) assert_true(fabsf(x->m[t] - y->m[t]) < 1e-4f);
        for (int64_t j = 0; j < x->seen; j++) {
            assert_true(fabsf(x->p[j] - y->p[j]) < 1e-4f);
            apart += fabs((double)(other.head[i].p[j] - y->p[j]));
        }
        assert_true(apart > 1e-2); /* another query reads otherwise */
    }
    hl_cache_view_free(&a);
    hl_cache_view_free(&b);
    hl_cache_view_free(&other);
    free(ids);
    hola_model_free(cpu);
    hola_model_free(cuda);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_view)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
