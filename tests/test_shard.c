/* test_shard.c -- token shards: what is written comes back, what lies is refused, nothing half-written shows. */
#define _GNU_SOURCE
#include "temp.h"
#include "data/shard.h"
#include <signal.h>
#include <sys/resource.h>

/* A shard by hand: header, then the payload. */
static void write_raw(const char *dir, const char *name, const int32_t head[3], const void *data, int64_t bytes) {
    char *file = calloc(1, (size_t)(HL_SHARD_HEADER + bytes));
    assert_non_null(file);
    memcpy(file, head, 12);
    if (bytes) memcpy(file + HL_SHARD_HEADER, data, (size_t)bytes);
    temp_write(dir, name, file, HL_SHARD_HEADER + bytes);
    free(file);
}

static hola_status open_in(const char *dir, const char *name, struct hl_shard *s) {
    char *path = hl_path_join(dir, name);
    hola_status status = hl_shard_open(s, path);
    free(path);
    return status;
}

static void roundtrip(const char *dir, int64_t vocab, int64_t total, int64_t per_file) {
    struct hl_shards w;
    struct hl_shard s;
    int32_t *ids = malloc((size_t)total * sizeof *ids), *back = malloc((size_t)total * sizeof *back);
    int64_t at = 0, step = 1;
    for (int64_t i = 0; i < total; i++) ids[i] = (int32_t)(check_mix((uint64_t)i) % (uint64_t)vocab);
    CHECK_OK(hl_shards_begin(&w, dir, "train", vocab, per_file));
    for (; at < total; at += step, step = step * 3 % 9973 + 1)
        CHECK_OK(hl_shards_write(&w, ids + at, NULL, at + step < total ? step : total - at));
    CHECK_OK(hl_shards_end(&w));
    assert_int_equal(w.tokens, total);
    assert_int_equal(w.files, (total + per_file - 1) / per_file);
    assert_int_equal(temp_entries(dir, NULL), w.files);
    at = 0;
    for (int64_t i = 0; i < w.files; i++) {
        char name[32];
        snprintf(name, sizeof name, "train_%06d.bin", (int)i);
        CHECK_OK(open_in(dir, name, &s));
        assert_int_equal(s.width, vocab > 65536 ? 4 : 2);
        CHECK_OK(hl_shard_read(&s, 0, s.n, vocab, back + at));
        CHECK_OK(hl_shard_verify(&s, vocab));
        at += s.n;
        hl_shard_close(&s);
    }
    assert_int_equal(at, total);
    assert_memory_equal(ids, back, (size_t)total * sizeof *ids);
    back[total / 2] ^= 1; /* the comparison can fail */
    assert_memory_not_equal(ids, back, (size_t)total * sizeof *ids);
    hl_shards_free(&w); /* without keep the files go */
    assert_int_equal(temp_entries(dir, NULL), 0);
    free(ids);
    free(back);
}

static void test_roundtrip(void **state) {
    char *dir = temp_new();
    (void)state;
    roundtrip(dir, 258, 1, 100);
    roundtrip(dir, 65536, 12345, 1000);
    roundtrip(dir, 65537, 12345, 12345);
    roundtrip(dir, 200000, 30000, 4096);
    roundtrip(dir, 2, 100, 1);
    temp_remove(dir);
}

/* The bytes on disk, not only what our own reader makes of them. */
static void test_bytes(void **state) {
    char *dir = temp_new(), *file;
    struct hl_shards w;
    const int32_t ids[] = {1, 256, 65535};
    int64_t size;
    (void)state;
    CHECK_OK(hl_shards_begin(&w, dir, "val", 65536, 10));
    CHECK_OK(hl_shards_write(&w, ids, NULL, 3));
    CHECK_OK(hl_shards_end(&w));
    w.keep = true;
    hl_shards_free(&w);
    file = temp_read(dir, "val_000000.bin", &size);
    assert_int_equal(size, 1024 + 6);
    assert_memory_equal(file, "\x88\xd8\x34\x01\x01\0\0\0\x03\0\0\0\0\0\0\0", 16);
    assert_memory_equal(file + 1024, "\1\0\0\1\xff\xff", 6);
    free(file);
    CHECK_OK(hl_shards_begin(&w, dir, "big", 65537, 10));
    CHECK_OK(hl_shards_write(&w, ids, NULL, 3));
    CHECK_OK(hl_shards_end(&w));
    w.keep = true;
    hl_shards_free(&w);
    file = temp_read(dir, "big_000000.bin", &size);
    assert_int_equal(size, 1024 + 12);
    assert_memory_equal(file, "\xa1\xd9\x34\x01\x07\0\0\0\x03\0\0\0\0\0\0\0", 16);
    assert_memory_equal(file + 1024, "\1\0\0\0\0\1\0\0\xff\xff\0\0", 12);
    free(file);
    temp_remove(dir);
}

static void test_lies(void **state) {
    char *dir = temp_new();
    struct hl_shard s;
    const uint16_t ids[4] = {1, 2, 3, 4};
    static const struct {
        int32_t head[3];
        int64_t bytes;
        const char *text;
    } lies[] = {
        {{20240520, 1, 5}, 8, "truncated: 4 of 5 tokens"},
        {{20240520, 1, 4}, 7, "truncated: 3 of 4"},
        {{20240520, 1, 3}, 8, "2 bytes after the last"},
        {{20240520, 1, -1}, 8, "count of -1"},
        {{20240520, 1, INT32_MAX}, 8, "truncated"},
        {{20240520, 2, 4}, 8, "version 2, not 1"},
        {{20240520, 7, 4}, 8, "version 7, not 1"},
        {{20240801, 1, 2}, 8, "version 1, not 7"},
        {{20240801, 7, 4}, 8, "truncated: 2 of 4"},
        {{20240521, 1, 4}, 8, "magic number 20240521"},
        {{0, 0, 0}, 0, "magic number 0"},
        {{20240520, 1, INT32_MIN}, 0, "count of"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        write_raw(dir, "x.bin", lies[i].head, ids, lies[i].bytes);
        CHECK_FAILS(open_in(dir, "x.bin", &s), HOLA_EFORMAT, lies[i].text);
        assert_non_null(strstr(hola_last_error(), "/x.bin: ")); /* the file is named */
        assert_null(s.path);
    }
    temp_write(dir, "x.bin", "", 0);
    CHECK_FAILS(open_in(dir, "x.bin", &s), HOLA_EFORMAT, "empty file");
    temp_write(dir, "x.bin", "\x88\xd8\x34\x01", 4);
    CHECK_FAILS(open_in(dir, "x.bin", &s), HOLA_EFORMAT, "only 4 bytes");
    CHECK_FAILS(open_in(dir, "none.bin", &s), HOLA_EIO, "none.bin");
    CHECK_FAILS(hl_shard_open(&s, dir), HOLA_EIO, "directory");
    write_raw(dir, "x.bin", (const int32_t[]){20240520, 1, 0}, ids, 0);
    CHECK_OK(open_in(dir, "x.bin", &s)); /* no tokens is not a lie */
    CHECK_OK(hl_shard_verify(&s, 5));
    hl_shard_close(&s);
    temp_remove(dir);
}

static void test_vocabulary(void **state) {
    char *dir = temp_new();
    struct hl_shard s;
    uint16_t ids[5000] = {0};
    uint32_t wide[4] = {0, 70000, INT32_MAX, 0x80000000u};
    int32_t out[5000];
    (void)state;
    ids[4321] = 61, ids[4322] = 65535;
    write_raw(dir, "x.bin", (const int32_t[]){20240520, 1, 5000}, ids, sizeof ids);
    CHECK_OK(open_in(dir, "x.bin", &s));
    CHECK_OK(hl_shard_read(&s, 0, 5000, 0, out));
    CHECK_OK(hl_shard_read(&s, 0, 4321, 61, out)); /* checked as it is read, no further */
    CHECK_FAILS(hl_shard_read(&s, 4000, 1000, 61, out), HOLA_EFORMAT,
                "token 4321 is 61, not below the vocabulary of 61");
    CHECK_FAILS(hl_shard_verify(&s, 62), HOLA_EFORMAT, "token 4322 is 65535");
    CHECK_OK(hl_shard_verify(&s, 65536));
    hl_shard_close(&s);
    write_raw(dir, "x.bin", (const int32_t[]){20240801, 7, 4}, wide, sizeof wide);
    CHECK_OK(open_in(dir, "x.bin", &s));
    CHECK_FAILS(hl_shard_verify(&s, 0), HOLA_EFORMAT, "token 3 is 2147483648");
    CHECK_FAILS(hl_shard_verify(&s, 70000), HOLA_EFORMAT, "token 1 is 70000");
    hl_shard_close(&s);
    temp_remove(dir);
}

static void test_writer_refuses(void **state) {
    char *dir = temp_new();
    struct hl_shards w;
    (void)state;
    CHECK_OK(hl_shards_begin(&w, dir, "train", 100, 10));
    CHECK_FAILS(hl_shards_write(&w, (const int32_t[]){65536}, NULL, 1), HOLA_EINVAL, "65536");
    CHECK_FAILS(hl_shards_write(&w, (const int32_t[]){-1}, NULL, 1), HOLA_EINVAL, "-1");
    hl_shards_free(&w);
    assert_int_equal(temp_entries(dir, NULL), 0);
    CHECK_OK(hl_shards_begin(&w, dir, "train", 100, 10));
    CHECK_OK(hl_shards_end(&w)); /* nothing written: no file */
    hl_shards_free(&w);
    assert_int_equal(temp_entries(dir, NULL), 0);
    CHECK_OK(hl_shards_begin(&w, "/nonexistent-dir", "train", 100, 10));
    CHECK_FAILS(hl_shards_write(&w, (const int32_t[]){1}, NULL, 1), HOLA_EIO, "/nonexistent-dir");
    hl_shards_free(&w);
    temp_remove(dir);
}

/* The disk fills up: a message, and no file that a reader could see. */
static void test_disk_full(void **state) {
    char *dir = temp_new();
    struct hl_shards w;
    struct rlimit old, tight;
    static int32_t ids[200000];
    hola_status s = HOLA_OK;
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight = (struct rlimit){.rlim_cur = 100000, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    CHECK_OK(hl_shards_begin(&w, dir, "train", 100, 1000000));
    s = hl_shards_write(&w, ids, NULL, 200000);
    if (s == HOLA_OK) s = hl_shards_end(&w);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_FAILS(s, HOLA_EIO, "train_000000.bin: cannot write");
    hl_shards_free(&w);
    assert_int_equal(temp_entries(dir, NULL), 0);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roundtrip),  cmocka_unit_test(test_bytes),          cmocka_unit_test(test_lies),
        cmocka_unit_test(test_vocabulary), cmocka_unit_test(test_writer_refuses), cmocka_unit_test(test_disk_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
