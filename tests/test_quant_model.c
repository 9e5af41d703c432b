/* test_quant_model.c -- models whose weights are 8-bit and 4-bit codes: through files and back, in sessions, and files
 * that cannot be. */
#define _GNU_SOURCE
#include "models.h"
#include "temp.h"

static const hola_dtype types[] = {HOLA_INT8, HOLA_INT4};

/* Saved as codes and loaded: what the floats give that the codes stand for, and not what the first ones gave; all
 * at once, token by token and side by side agree. Allowed: x rounded to 16 bits, through a model whose random weights
 * forgive little. */
static void test_sessions(void **state) {
    enum { N = 150 };
    char *dir = temp_new();
    (void)state;
    for (int v = 0; v < VARIANTS; v += 3)
        for (int t = 0; t < 2; t++) {
            hola_model *m = variant_model(v, 2, NULL), *q, *f;
            int32_t *ids = random_ids(N, m->cfg.vocab_size, 9);
            CHECK_OK(hola_model_save(m, dir, types[t]));
            CHECK_OK(hola_model_load(&q, dir, NULL));
            CHECK_OK(hola_model_save(q, dir, HOLA_F32));
            CHECK_OK(hola_model_load(&f, dir, NULL));
            q->state = f->state; /* the exact memory's rows as reals: those in F16 are test_rows_model.c's */
            double *first = scores(m, ids, N, N), *want = scores(f, ids, N, N);
            double *all = scores(q, ids, N, N), *single = scores(q, ids, N, 1);
            if (farthest(all, want, N - 1) > 2e-3 || farthest(single, want, N - 1) > 2e-3)
                fail_msg("%s: %g and %g from the floats", variants[v].name, farthest(all, want, N - 1),
                         farthest(single, want, N - 1));
            assert_true(farthest(all, first, N - 1) > 2e-2);
            check_side_by_side(q, ids);
            free(first);
            free(want);
            free(all);
            free(single);
            free(ids);
            hola_model_free(m);
            hola_model_free(q);
            hola_model_free(f);
        }
    temp_remove(dir);
}

/* Types as stored; back to floats the values that the codes stand for; from there on floats. */
static void test_back(void **state) {
    char *dir = temp_new();
    (void)state;
    for (int t = 0; t < 2; t++) {
        hola_model *m = variant_model(0, 1, NULL), *q, *f;
        hola_trainer *trainer;
        const hola_train_opts opt = {.max_tokens = 8};
        int64_t codes = 0;
        CHECK_OK(hola_model_save(m, dir, types[t]));
        CHECK_OK(hola_model_load(&q, dir, NULL));
        CHECK_OK(hola_model_save(q, dir, HOLA_F32));
        CHECK_OK(hola_model_load(&f, dir, NULL));
        for (int64_t i = 0; i < hola_model_tensor_count(q); i++) {
            hola_tensor_info info, plain;
            CHECK_OK(hola_model_tensor(q, i, &info));
            CHECK_OK(hola_model_tensor(f, i, &plain));
            const bool small = info.ndim != 2 || strstr(info.name, "a_proj") || strstr(info.name, "b_proj");
            assert_int_equal(info.dtype, small ? HOLA_F32 : types[t]);
            assert_int_equal(plain.dtype, HOLA_F32);
            codes += !small;
            float *a = malloc((size_t)info.count * 4), *b = malloc((size_t)info.count * 4);
            CHECK_OK(hola_model_tensor_read(q, i, a));
            CHECK_OK(hola_model_tensor_read(f, i, b));
            assert_memory_equal(a, b, (size_t)info.count * 4);
            free(a);
            free(b);
        }
        assert_int_equal(codes, 2 + 2 * 8);
        CHECK_OK(hola_trainer_new(&trainer, q, &opt)); /* training takes them as floats */
        hola_trainer_free(trainer);
        hola_tensor_info info;
        CHECK_OK(hola_model_tensor(q, 0, &info));
        assert_int_equal(info.dtype, HOLA_F32);
        hola_model_free(m);
        hola_model_free(q);
        hola_model_free(f);
    }
    temp_remove(dir);
}

/* ---- files from elsewhere ---- */

/* Replaces the first `from` in the header with as many bytes. */
static void patch(char *bytes, const char *near, const char *from, const char *to) {
    char *at = strstr(bytes + 8, near);
    at = at ? strstr(at, from) : NULL;
    assert_true(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
}

static void test_hostile(void **state) {
    static const struct {
        const char *near, *from, *to, *says;
        hola_status status;
    } bad[] = {
        {"k_proj.weight\"", "I8", "U8", "k_proj.weight: U8 [32,48], expected [32,24]", HOLA_EFORMAT},
        {"k_proj.weight\"", "I8", "I7", "k_proj.weight: stored as I7", HOLA_ENOTSUP},
        {"k_proj.weight\"", "[32,48]", "[48,32]", "k_proj.weight: I8 [48,32], expected [32,48]", HOLA_EFORMAT},
        {"k_proj.weight_scale\"", "BF16", "F16 ", "k_proj.weight_scale: stored as F16 , expected BF16", HOLA_EFORMAT},
        {"k_proj.weight_scale\"", "[32,1]", "[16,2]", "k_proj.weight_scale: BF16 [16,2], expected [32,1]",
         HOLA_EFORMAT},
        {"k_proj.weight_scale\"", "scale", "skale", "k_proj.weight_scale: missing", HOLA_EFORMAT},
        {"a_proj.weight\"", "F32", "I8 ", "a_proj.weight: stored as I8", HOLA_ENOTSUP},
    };
    static const uint16_t scales[] = {0, 0x8000, 0x7fc0, 0x7f80, 0xff80};
    hola_model *m = variant_model(0, 1, NULL), *q = NULL;
    char *dir = temp_new(), *good;
    int64_t size;
    (void)state;
    CHECK_OK(hola_model_save(m, dir, HOLA_INT8));
    good = temp_read(dir, "model.safetensors", &size);
    char *bytes = malloc((size_t)size);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(bytes, good, (size_t)size);
        patch(bytes, bad[i].near, bad[i].from, bad[i].to);
        temp_write(dir, "model.safetensors", bytes, size);
        CHECK_FAILS(hola_model_load(&q, dir, NULL), bad[i].status, bad[i].says);
    }
    const char *header = strstr(good + 8, "v_proj.weight_scale\"");
    const int64_t at = 8 + *(const int64_t *)(const void *)good + strtoll(strstr(header, "offsets\":[") + 10, NULL, 10);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        memcpy(bytes, good, (size_t)size);
        memcpy(bytes + at + 6, &scales[i], 2);
        temp_write(dir, "model.safetensors", bytes, size);
        CHECK_FAILS(hola_model_load(&q, dir, NULL), HOLA_ENUMERIC, i < 2 ? "scale 3 is zero" : "scale 3 is not finite");
    }
    const uint16_t large = 0x7f7f; /* 127 times it is infinite */
    memcpy(bytes, good, (size_t)size);
    memcpy(bytes + at + 6, &large, 2);
    temp_write(dir, "model.safetensors", bytes, size);
    CHECK_FAILS(hola_model_load(&q, dir, NULL), HOLA_ENUMERIC, "v_proj.weight: holds values that are not finite");
    free(bytes);
    free(good);
    hola_model_free(m);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sessions), cmocka_unit_test(test_back),
                                       cmocka_unit_test(test_hostile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
