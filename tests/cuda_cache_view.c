/* cuda_cache_view.c -- the look into the exact memory of a model on a device: as on the CPU. */
#include "model/cache_view.h"
#include "models.h"

static void same_view(int variant, bool layer_set) {
    enum { N = 150 };
    int32_t *ids = random_ids(N, 97, 3);
    hola_model *cpu = variant_model(variant, 1, NULL), *cuda = variant_model(variant, 1, "cuda-f32");
    struct hl_cache_view a, b, other;
    bool same = true;
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
            if (!layer_set) assert_true(x->score[j] == x->m[x->pos[j]] && y->score[j] == y->m[y->pos[j]]);
        }
        same = same && !memcmp(y->pos, b.head[i / b.heads * b.heads].pos, (size_t)y->kept * sizeof *y->pos);
        assert_int_equal(x->seen, y->seen);
        for (int64_t t = 0; t < N; t++) assert_true(fabsf(x->m[t] - y->m[t]) < 1e-4f);
        for (int64_t j = 0; j < x->seen; j++) {
            assert_true(fabsf(x->p[j] - y->p[j]) < 1e-4f);
            apart += fabs((double)(other.head[i].p[j] - y->p[j]));
        }
        assert_true(apart > 1e-2); /* another query reads otherwise */
    }
    assert_true(same == layer_set); /* the same tokens in all heads of a layer */
    hl_cache_view_free(&a);
    hl_cache_view_free(&b);
    hl_cache_view_free(&other);
    free(ids);
    hola_model_free(cpu);
    hola_model_free(cuda);
}

static void test_view(void **state) {
    int layer_set = 0;
    (void)state;
    while (strcmp(variants[layer_set].name, "hola, one set per layer")) layer_set++;
    same_view(0, false);
    same_view(layer_set, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_view)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
