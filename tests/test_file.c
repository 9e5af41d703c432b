/* test_file.c -- mapping and the atomic writer: full disks, missing rights, killed writers. */
#define _GNU_SOURCE
#include "temp.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static char *in(const char *dir, const char *name) {
    char *p = hl_path_join(dir, name);
    assert_non_null(p);
    return p;
}

static void test_path_join(void **state) {
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}, {"a/b", "c.d", "a/b/c.d"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *p = hl_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(p, cases[i][2]);
        free(p);
    }
}

static void test_map(void **state) {
    char *dir = temp_new(), *file = in(dir, "x"), *empty = in(dir, "empty"), *none = in(dir, "none"),
         *fifo = in(dir, "fifo");
    struct hl_map m;
    (void)state;
    temp_write(dir, "x", "hello", 5);
    temp_write(dir, "empty", "", 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    CHECK_OK(hl_map_open(&m, file));
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "hello", 5);
    hl_map_close(&m);
    hl_map_close(&m); /* twice is harmless */
    CHECK_FAILS(hl_map_open(&m, none), HOLA_EIO, none);
    assert_null(m.data);
    CHECK_FAILS(hl_map_open(&m, empty), HOLA_EFORMAT, "empty: empty file");
    CHECK_FAILS(hl_map_open(&m, dir), HOLA_EIO, "is a directory");
    CHECK_FAILS(hl_map_open(&m, fifo), HOLA_EIO, "not a regular file");
    if (geteuid() != 0) {
        chmod(file, 0);
        CHECK_FAILS(hl_map_open(&m, file), HOLA_EIO, file);
    }
    free(file), free(empty), free(none), free(fifo);
    temp_remove(dir);
}

static void test_make_dirs(void **state) {
    char *dir = temp_new(), *deep = in(dir, "a/b//c/"), *file = in(dir, "f"), *below = in(dir, "f/g");
    struct stat st;
    (void)state;
    CHECK_OK(hl_make_dirs(deep));
    CHECK_OK(hl_make_dirs(deep));
    assert_int_equal(stat(deep, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    temp_write(dir, "f", "x", 1);
    CHECK_FAILS(hl_make_dirs(file), HOLA_EIO, "f: not a directory");
    CHECK_FAILS(hl_make_dirs(below), HOLA_EIO, below);
    free(deep), free(file), free(below);
    temp_remove(dir);
}

/* The file holds exactly this and is alone in its directory. */
static void check_only(const char *dir, const char *name, const char *text) {
    char found[256];
    assert_int_equal(temp_entries(dir, found), 1);
    assert_string_equal(found, name);
    char *got = temp_read(dir, name, NULL);
    assert_string_equal(got, text);
    free(got);
}

static void test_write(void **state) {
    char *dir = temp_new(), *path = in(dir, "x"), name[256];
    struct hl_writer w;
    (void)state;
    CHECK_OK(hl_write_file(path, "old", 3));
    check_only(dir, "x", "old");
    CHECK_OK(hl_writer_open(&w, path));
    CHECK_OK(hl_writer_write(&w, "new", 3));
    CHECK_OK(hl_writer_write(&w, NULL, 0));
    CHECK_OK(hl_writer_write(&w, "er", 2));
    assert_int_equal(w.written, 5);
    char *before = temp_read(dir, "x", NULL); /* not visible before the commit */
    assert_string_equal(before, "old");
    free(before);
    assert_int_equal(temp_entries(dir, name), 2);
    CHECK_OK(hl_writer_commit(&w));
    hl_writer_abort(&w);
    check_only(dir, "x", "newer");
    CHECK_OK(hl_writer_open(&w, path));
    CHECK_OK(hl_writer_write(&w, "lost", 4));
    hl_writer_abort(&w);
    hl_writer_abort(&w);
    check_only(dir, "x", "newer");
    free(path);
    temp_remove(dir);
}

/* Two writers of one file: each is whole, the last commit stays. */
static void test_two_writers(void **state) {
    char *dir = temp_new(), *path = in(dir, "x");
    struct hl_writer a, b;
    (void)state;
    CHECK_OK(hl_writer_open(&a, path));
    CHECK_OK(hl_writer_open(&b, path));
    CHECK_OK(hl_writer_write(&a, "aaaa", 4));
    CHECK_OK(hl_writer_write(&b, "bb", 2));
    CHECK_OK(hl_writer_commit(&b));
    char *got = temp_read(dir, "x", NULL);
    assert_string_equal(got, "bb");
    free(got);
    CHECK_OK(hl_writer_commit(&a));
    check_only(dir, "x", "aaaa");
    free(path);
    temp_remove(dir);
}

static void test_unwritable(void **state) {
    char *dir = temp_new(), *path = in(dir, "x"), *below = in(dir, "none/x"), *sub = in(dir, "sub");
    (void)state;
    CHECK_FAILS(hl_write_file(below, "a", 1), HOLA_EIO, "none/x: cannot write: No such file");
    assert_int_equal(mkdir(sub, 0700), 0);
    CHECK_FAILS(hl_write_file(sub, "a", 1), HOLA_EIO, "sub: cannot write");
    assert_int_equal(temp_entries(dir, NULL), 1); /* no temporary file stays */
    rmdir(sub);
    CHECK_OK(hl_write_file(path, "old", 3));
    if (geteuid() != 0) {
        chmod(dir, 0500);
        CHECK_FAILS(hl_write_file(path, "new", 3), HOLA_EIO, path);
        chmod(dir, 0700);
    }
    check_only(dir, "x", "old");
    free(path), free(below), free(sub);
    temp_remove(dir);
}

/* A disk that fills up, at every stage: in the first buffer, in the middle, at the flush of the commit. */
static void test_full_disk(void **state) {
    static const int64_t sizes[] = {5000, 70000, 3000000};
    char *dir = temp_new(), *path = in(dir, "x"), *data = calloc(1, 3000000);
    struct rlimit keep, tight = {0};
    (void)state;
    CHECK_OK(hl_write_file(path, "old", 3));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &keep), 0);
    tight.rlim_max = keep.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 3; i++) {
        tight.rlim_cur = (rlim_t)sizes[i] / 2;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
        struct hl_writer w;
        CHECK_OK(hl_writer_open(&w, path));
        hola_status s = HOLA_OK;
        for (int64_t at = 0; at < sizes[i] && s == HOLA_OK; at += 1000) s = hl_writer_write(&w, data, 1000);
        CHECK_FAILS(hl_writer_commit(&w), HOLA_EIO, "x: cannot write: File too large");
        CHECK_FAILS(hl_writer_commit(&w), HOLA_EIO, path); /* stays failed */
        CHECK_FAILS(hl_writer_write(&w, data, 1), HOLA_EIO, path);
        hl_writer_abort(&w);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &keep), 0);
        check_only(dir, "x", "old");
    }
    signal(SIGXFSZ, SIG_DFL);
    free(data), free(path);
    temp_remove(dir);
}

/* A pipe is written to, not replaced by a file; one that nobody reads is refused. */
static void test_stream(void **state) {
    char *dir = temp_new(), *fifo = in(dir, "fifo"), got[8] = {0};
    struct stat st;
    (void)state;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    CHECK_FAILS(hl_write_file(fifo, "hello", 5), HOLA_EIO, "fifo: cannot write");
    int reader = open(fifo, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    CHECK_OK(hl_write_file(fifo, "hello", 5));
    assert_int_equal(read(reader, got, sizeof got), 5);
    assert_string_equal(got, "hello");
    assert_int_equal(stat(fifo, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(temp_entries(dir, NULL), 1);
    close(reader);
    free(fifo);
    temp_remove(dir);
}

/* A writer killed in the middle leaves the old file, and a temporary file that disturbs nobody. */
static void test_killed(void **state) {
    char *dir = temp_new(), *path = in(dir, "x"), name[256], mark[64];
    int status;
    (void)state;
    CHECK_OK(hl_write_file(path, "old", 3));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static char data[200000];
        struct hl_writer w;
        if (hl_writer_open(&w, path) == HOLA_OK) hl_writer_write(&w, data, sizeof data);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    char *got = temp_read(dir, "x", NULL);
    assert_string_equal(got, "old");
    free(got);
    assert_int_equal(temp_entries(dir, NULL), 2);
    snprintf(mark, sizeof mark, ".x.tmp-%ld-", (long)child);
    unlink(path);
    assert_int_equal(temp_entries(dir, name), 1);
    assert_memory_equal(name, mark, strlen(mark));
    CHECK_OK(hl_write_file(path, "new", 3));
    free(path);
    temp_remove(dir);
}

/* A leftover with our own process id (ids come round again) is stepped over. */
static void test_leftover(void **state) {
    char *dir = temp_new(), *path = in(dir, "x"), name[256], number[32];
    struct hl_writer w;
    (void)state;
    CHECK_OK(hl_writer_open(&w, path));
    assert_int_equal(temp_entries(dir, name), 1);
    hl_writer_abort(&w);
    char *dash = strrchr(name, '-');
    int next = atoi(dash + 1) + 1;
    snprintf(number, sizeof number, "%d", next);
    snprintf(dash + 1, 32, "%s", number);
    temp_write(dir, name, "leftover", 8);
    CHECK_OK(hl_write_file(path, "new", 3));
    assert_int_equal(temp_entries(dir, NULL), 2);
    char *got = temp_read(dir, name, NULL);
    assert_string_equal(got, "leftover");
    free(got), free(path);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path_join), cmocka_unit_test(test_map),         cmocka_unit_test(test_make_dirs),
        cmocka_unit_test(test_write),     cmocka_unit_test(test_two_writers), cmocka_unit_test(test_unwritable),
        cmocka_unit_test(test_full_disk), cmocka_unit_test(test_killed),      cmocka_unit_test(test_leftover),
        cmocka_unit_test(test_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
