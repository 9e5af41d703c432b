/* test_safetensors.c -- model files: lying headers, cut files, shards, and what is written comes back. */
#define _GNU_SOURCE
#include "temp.h"
#include "core/half.h"
#include "model/safetensors.h"
#include <signal.h>
#include <sys/resource.h>

/* ---- files from text ---- */

/* Length, header, then `data` bytes 0, 1, 2, ...; exactly as large as it says, so that ASan sees overruns. */
static char *make(const char *header, int64_t data, int64_t *size) {
    uint64_t n = strlen(header);
    *size = 8 + (int64_t)n + data;
    char *p = malloc((size_t)*size);
    assert_non_null(p);
    memcpy(p, &n, 8);
    memcpy(p + 8, header, n);
    for (int64_t i = 0; i < data; i++) p[8 + (int64_t)n + i] = (char)(i & 63);
    return p;
}

static hola_status open_text(const char *header, int64_t data) {
    int64_t size;
    struct hl_stfile *f = NULL;
    char *p = make(header, data, &size);
    hola_status s = hl_st_parse(&f, p, size, "dir/m.st");
    assert_true((s == HOLA_OK) == (f != NULL));
    hl_st_close(f);
    free(p);
    return s;
}

#define GOOD                                                                                                 \
    "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]" \
    "},"                                                                                                     \
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"                                     \
    "\"e\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[24,24]},"                                    \
    "\"s\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[30,32]},"                                       \
    "\"i\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[32,48]}}"

static void test_good(void **state) {
    int64_t size;
    struct hl_stfile *f;
    char *p = make(GOOD, 48, &size), text[64];
    real x[6];
    (void)state;
    CHECK_OK(hl_st_parse(&f, p, size, "dir/m.st"));
    assert_int_equal(hl_st_count(f), 5);
    for (int i = 0; i < 5; i++) assert_memory_equal(hl_st_at(f, i)->name, &"abeis"[i], 1);
    const struct hl_st_tensor *a = hl_st_find(f, "a"), *b = hl_st_find(f, "b"), *i64 = hl_st_find(f, "i");
    assert_true(a && a->dtype == HOLA_F32 && a->ndim == 2 && a->dim[0] == 2 && a->dim[1] == 3 && a->count == 6);
    assert_true(b && b->dtype == HOLA_BF16 && b->bytes == 6);
    assert_true(hl_st_find(f, "e")->count == 0 && hl_st_find(f, "s")->count == 1 && hl_st_find(f, "s")->ndim == 0);
    assert_null(hl_st_find(f, ""));
    assert_null(hl_st_find(f, "__metadata__"));
    assert_string_equal(hl_st_metadata(f, "format"), "pt");
    assert_null(hl_st_metadata(f, "x"));
    CHECK_OK(hl_st_read(a, 0, 6, x)); /* not aligned to anything in this file */
    float want;
    for (int i = 0; i < 6; i++) {
        memcpy(&want, (const char *)a->data + 4 * i, 4);
        assert_true(x[i] == want);
    }
    CHECK_OK(hl_st_read(b, 1, 2, x));
    assert_true(x[0] == hl_from_bf16(27 << 8 | 26) && x[1] == hl_from_bf16(29 << 8 | 28));
    CHECK_OK(hl_st_read(hl_st_find(f, "s"), 0, 1, x));
    assert_true(x[0] == hl_from_f16(31 << 8 | 30));
    CHECK_FAILS(hl_st_read(i64, 0, 2, x), HOLA_ENOTSUP, "dir/m.st: i: stored as I64");
    assert_string_equal(hl_st_shape(text, sizeof text, a->ndim, a->dim), "[2,3]");
    assert_string_equal(hl_st_shape(text, sizeof text, 0, NULL), "[]");
    assert_string_equal(hl_st_shape(text, 4, a->ndim, a->dim), "[2,");
    hl_st_close(f);
    free(p);
    CHECK_OK(open_text("{}", 0));
    CHECK_OK(open_text("{}      ", 0)); /* padding as other writers leave it */
    hl_st_close(NULL);
}

#define ONE(dtype, shape, offsets) "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(offsets_t, offsets_u)                                                                                     \
    "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" offsets_t "},\"u\":{\"dtype\":\"F32\",\"shape\":[1]," \
    "\"data_offsets\":" offsets_u "}}"

static void test_bad_headers(void **state) {
    static const struct {
        const char *header;
        int64_t data;
        const char *message; /* after "dir/m.st: " */
    } cases[] = {
        {"", 0, "line"},
        {"[]", 0, "not a JSON object"},
        {"{", 0, "line 1"},
        {"{}x", 0, "line 1"},
        {"{\"t\":1}", 0, "t: not an object"},
        {"{\"t\":{}}", 0, "t: no dtype"},
        {"{\"\":{}}", 0, ": no dtype"},
        {"{\"__metadata__\":3}", 0, "__metadata__: not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: a value"},
        {"{\"t\":{\"dtype\":\"F32\"}}", 0, "t: no shape"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "t: no data_offsets"},
        {"{\"t\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "t: no dtype"},
        {ONE("F32", "3", "[0,4]"), 4, "t: no shape"},
        {ONE("F32", "[1]", "[0,8]"), 8, "t: 8 bytes for [1] of F32"},
        {ONE("F32", "[1]", "[0,2]"), 2, "t: 2 bytes for [1] of F32"},
        {ONE("BF16", "[2,2]", "[0,16]"), 16, "t: 16 bytes for [2,2] of BF16"},
        {ONE("F32", "[-1]", "[0,4]"), 4, "t: a size that is not"},
        {ONE("F32", "[1.0]", "[0,4]"), 4, "t: a size that is not"},
        {ONE("F32", "[true]", "[0,4]"), 4, "t: a size that is not"},
        {ONE("F32", "[[1]]", "[0,4]"), 4, "t: a size that is not"},
        {ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "t: more than 8 dimensions"},
        {ONE("F32", "[4294967296,4294967296]", "[0,4]"), 4, "t: shape overflows"},
        {ONE("F32", "[4611686018427387905]", "[0,4]"), 4, "t: 4 bytes for [4611686018427387905] of F32"},
        {ONE("F32", "[9223372036854775807,3]", "[0,4]"), 4, "t: shape overflows"},
        {ONE("F32", "[99999999999999999999]", "[0,4]"), 4, "line 1: too big integer"},
        {ONE("F32", "[1]", "[0,4,4]"), 4, "t: no data_offsets"},
        {ONE("F32", "[1]", "[0]"), 4, "t: no data_offsets"},
        {ONE("F32", "[1]", "\"0,4\""), 4, "t: no data_offsets"},
        {ONE("F32", "[1]", "[0.0,4]"), 4, "t: no data_offsets"},
        {ONE("F32", "[1]", "[-4,0]"), 4, "t: data_offsets [-4,0] do not lie in the 4 bytes"},
        {ONE("F32", "[1]", "[4,0]"), 4, "t: data_offsets [4,0]"},
        {ONE("F32", "[1]", "[0,4]"), 3, "t: data_offsets [0,4] do not lie in the 3 bytes"},
        {ONE("F32", "[1]", "[9223372036854775803,9223372036854775807]"), 4, "t: data_offsets"},
        {ONE("F32", "[1]", "[0,4]"), 5, "1 bytes after the last tensor"},
        {ONE("F32", "[1]", "[1,5]"), 5, "t: a gap before"},
        {ONE("I64", "[1]", "[0,9]"), 8, "t: data_offsets"},
        {"{}", 1, "1 bytes after the last tensor"},
        {TWO("[0,4]", "[0,4]"), 4, "u: its data overlaps"},
        {TWO("[0,4]", "[2,6]"), 6, "u: its data overlaps"},
        {TWO("[4,8]", "[8,12]"), 12, "t: a gap before"},
        {TWO("[0,4]", "[8,12]"), 12, "u: a gap before"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"t\":{}}", 4, "line 1: duplicate"},
        {"{\"\xff\":{}}", 0, "line 1"},
        {"{\"t\\u0000\":{}}", 0, "line 1"},
        {"{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "line 1: duplicate"},
        {"{\"t\":NaN}", 0, "line 1"},
    };
    char message[200];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(message, sizeof message, "dir/m.st: %s", cases[i].message);
        CHECK_FAILS(open_text(cases[i].header, cases[i].data), HOLA_EFORMAT, message);
    }
    CHECK_OK(open_text(TWO("[4,8]", "[0,4]"), 8));      /* any order is fine */
    CHECK_OK(open_text(ONE("NEW", "[7]", "[0,3]"), 3)); /* a type that nobody asks for */
}

static void test_bad_lengths(void **state) {
    static const uint64_t lengths[] = {0, 1, 3, 100000001, 1u << 31, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    int64_t size;
    struct hl_stfile *f;
    char *p = make("{}", 0, &size);
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(p, &lengths[i], 8);
        CHECK_FAILS(hl_st_parse(&f, p, size, "m"), HOLA_EFORMAT, lengths[i] > 2 ? "m: a header of" : "m: line");
        assert_null(f);
    }
    free(p);
}

/* Cut anywhere, a file is refused; so is one with a byte more. */
static void test_truncated(void **state) {
    int64_t size;
    struct hl_stfile *f;
    char *p = make(GOOD, 48, &size);
    (void)state;
    for (int64_t n = 0; n < size; n++) {
        char *cut = malloc((size_t)n + 1);
        memcpy(cut, p, (size_t)n);
        cut = realloc(cut, n ? (size_t)n : 1);
        CHECK_FAILS(hl_st_parse(&f, cut, n, "m"), HOLA_EFORMAT, "m: ");
        assert_null(f);
        free(cut);
    }
    p = realloc(p, (size_t)size + 1);
    p[size] = 0;
    CHECK_FAILS(hl_st_parse(&f, p, size + 1, "m"), HOLA_EFORMAT, "m: 1 bytes after the last tensor");
    free(p);
}

/* ---- directories ---- */

static void put(const char *dir, const char *name, const char *header, int64_t data) {
    int64_t size;
    char *p = make(header, data, &size);
    temp_write(dir, name, p, size);
    free(p);
}

static void test_open(void **state) {
    char *dir = temp_new(), *none = hl_path_join(dir, "none"), *one = hl_path_join(dir, "model.safetensors");
    struct hl_stfile *f;
    (void)state;
    CHECK_FAILS(hl_st_open(&f, none), HOLA_EIO, "none: No such file");
    CHECK_FAILS(hl_st_open(&f, dir), HOLA_EIO, "neither model.safetensors nor");
    temp_write(dir, "model.safetensors", "", 0);
    CHECK_FAILS(hl_st_open(&f, dir), HOLA_EFORMAT, "model.safetensors: empty file");
    put(dir, "model.safetensors", GOOD, 48);
    CHECK_OK(hl_st_open(&f, dir));
    assert_string_equal(hl_st_find(f, "a")->path, one);
    hl_st_close(f);
    CHECK_OK(hl_st_open_file(&f, one));
    assert_int_equal(hl_st_count(f), 5);
    hl_st_close(f);
    CHECK_FAILS(hl_st_open_file(&f, none), HOLA_EIO, "none: No such file");
    assert_null(f);
    free(none), free(one);
    temp_remove(dir);
}

#define T4(name) "{\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"

static void test_shards(void **state) {
    static const char *const bad[][2] = {
        {"{}", "index.json: no weight_map"},
        {"{\"weight_map\": []}", "no weight_map"},
        {"{\"weight_map\": {\"t\": 3}}", "t: its shard is not a string"},
        {"{\"weight_map\": {\"t\": \"/etc/passwd\"}}", "\"/etc/passwd\" is no file name of a shard"},
        {"{\"weight_map\": {\"t\": \"../s1\"}}", "\"../s1\" is no file name"},
        {"{\"weight_map\": {\"t\": \"..\"}}", "\"..\" is no file name"},
        {"{\"weight_map\": {\"t\": \"\"}}", "\"\" is no file name"},
        {"{\"weight_map\": {\"t\": \"sub/s1\"}}", "is no file name"},
        {"{\"weight_map\": {\"t\": \"s1\", \"w\": \"s9\"}}", "s9: No such file"},
        {"{\"weight_map\": {\"t\": \"s1\", \"w\": \"s1\"}}", "w: not in s1"},
        {"{\"weight_map\": {\"t\": \"s2\", \"u\": \"s1\"}}", "not in s"},
        {"{\"weight_map\": {\"t\": \"s1\", \"x\": \"s3\"}}", "t: also in"},
        {"{\"weight_map\": {\"t\": \"s1\", \"x\": \".\"}}", "is a directory"},
        {"{\"weight_map\": {\"t\": \"cut\"}}", "cut: t: data_offsets"},
        {"{\"weight_map\"", "index.json: line"},
    };
    const char *good = "{\"metadata\": {\"total_size\": 8}, \"weight_map\": {\"t\": \"s1\", \"u\": \"s2\"}}";
    char *dir = temp_new();
    struct hl_stfile *f;
    (void)state;
    put(dir, "s1", T4("t"), 4);
    put(dir, "s2", T4("u"), 4);
    put(dir, "s3", T4("t"), 4);
    put(dir, "cut", T4("t"), 3);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        temp_write(dir, "model.safetensors.index.json", bad[i][0], (int64_t)strlen(bad[i][0]));
        hola_status want = strstr(bad[i][1], "No such") || strstr(bad[i][1], "directory") ? HOLA_EIO : HOLA_EFORMAT;
        CHECK_FAILS(hl_st_open(&f, dir), want, bad[i][1]);
        assert_null(f);
    }
    temp_write(dir, "model.safetensors.index.json", good, (int64_t)strlen(good));
    CHECK_OK(hl_st_open(&f, dir));
    assert_int_equal(hl_st_count(f), 2);
    assert_non_null(strstr(hl_st_find(f, "u")->path, "/s2"));
    hl_st_close(f);
    temp_remove(dir);
}

/* ---- writing ---- */

static void test_write(void **state) {
    static const real special[] = {0, -0.0f, 1, -1.5f, 1e-45f, -1e-39f, 3.4028234e38f, 1.17549435e-38f};
    char *dir = temp_new(), *path = hl_path_join(dir, "m");
    const char *meta[] = {"step", "17", "note", "a \"quoted\" one", NULL};
    enum { N = 20001 };
    real *x = check_random(N, -3, 3, 1), *back = check_new(N);
    struct hl_stfile *f;
    (void)state;
    memcpy(x, special, sizeof special);
    const struct hl_st_entry e[] = {{"z", HOLA_F32, 1, {N}, x, NULL},
                                    {"a.weight", HOLA_BF16, 3, {6660, 1, 3}, x + 8, NULL}, /* crosses pieces */
                                    {"empty", HOLA_F32, 2, {0, 4}, x, NULL},
                                    {"half", HOLA_F16, 1, {101}, x + 8, NULL},
                                    {"scalar", HOLA_F32, 0, {0}, x + 3, NULL}};
    CHECK_OK(hl_st_write(path, e, 5, meta));
    CHECK_OK(hl_st_open_file(&f, path));
    assert_int_equal(hl_st_count(f), 5);
    assert_string_equal(hl_st_metadata(f, "step"), "17");
    assert_string_equal(hl_st_metadata(f, "note"), meta[3]);
    assert_string_equal(hl_st_metadata(f, "format"), "pt");
    CHECK_OK(hl_st_read(hl_st_find(f, "z"), 0, N, back));
    assert_memory_equal(back, x, N * sizeof(real)); /* bit for bit */
    assert_int_equal((uintptr_t)hl_st_find(f, "z")->data % 8, 0);
    CHECK_OK(hl_st_read(hl_st_find(f, "a.weight"), 0, 19980, back));
    for (int i = 0; i < 19980; i++) assert_true(back[i] == hl_from_bf16(hl_to_bf16(x[8 + i])));
    CHECK_NEAR(back, x + 8, 19980, 1, 0x1p-8, "bf16");
    CHECK_FAR(back, x + 8, 19980, 1, 0x1p-12); /* it was rounded */
    CHECK_OK(hl_st_read(hl_st_find(f, "half"), 0, 101, back));
    for (int i = 0; i < 101; i++) assert_true(back[i] == hl_from_f16(hl_to_f16(x[8 + i])));
    assert_true(hl_st_find(f, "empty")->count == 0 && hl_st_find(f, "scalar")->ndim == 0);
    hl_st_close(f);
    CHECK_OK(hl_st_write(path, NULL, 0, NULL));
    CHECK_OK(hl_st_open_file(&f, path));
    assert_int_equal(hl_st_count(f), 0);
    hl_st_close(f);
    check_free(x, N);
    check_free(back, N);
    free(path);
    temp_remove(dir);
}

/* Nothing that could not be read back replaces a good file. */
static void test_write_fails(void **state) {
    char *dir = temp_new(), *path = hl_path_join(dir, "m"), name[256];
    enum { N = 10000 };
    real *x = check_random(N, -1, 1, 2);
    struct hl_st_entry e = {"w", HOLA_F32, 1, {N}, x, NULL};
    struct rlimit keep, tight;
    int64_t before, after;
    (void)state;
    CHECK_OK(hl_st_write(path, &e, 1, NULL));
    char *old = temp_read(dir, "m", &before);
    x[N - 1] = (real)NAN;
    CHECK_FAILS(hl_st_write(path, &e, 1, NULL), HOLA_ENUMERIC, "m: w: holds values that are not finite as F32");
    x[N - 1] = (real)-INFINITY;
    e.dtype = HOLA_BF16;
    CHECK_FAILS(hl_st_write(path, &e, 1, NULL), HOLA_ENUMERIC, "not finite as BF16");
    x[N - 1] = 65520;
    e.dtype = HOLA_F16;
    CHECK_FAILS(hl_st_write(path, &e, 1, NULL), HOLA_ENUMERIC, "not finite as F16");
    x[N - 1] = 65519;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &keep), 0);
    tight = (struct rlimit){.rlim_cur = 9000, .rlim_max = keep.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    CHECK_FAILS(hl_st_write(path, &e, 1, NULL), HOLA_EIO, "m: cannot write: File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &keep), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(temp_entries(dir, name), 1);
    char *now = temp_read(dir, "m", &after);
    assert_int_equal(before, after);
    assert_memory_equal(old, now, before);
    free(now);
    CHECK_OK(hl_st_write(path, &e, 1, NULL));
    free(old), free(path);
    check_free(x, N);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),      cmocka_unit_test(test_bad_headers), cmocka_unit_test(test_bad_lengths),
        cmocka_unit_test(test_truncated), cmocka_unit_test(test_open),        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_write),     cmocka_unit_test(test_write_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
