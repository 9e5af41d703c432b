/* temp.h -- a scratch directory for a test, and small files in it. Needs _GNU_SOURCE defined first. */
#ifndef HL_TEMP_H
#define HL_TEMP_H
#include "check.h"
#include "core/file.h"
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static inline char *temp_new(void) {
    const char *base = getenv("TMPDIR");
    char *dir = hl_path_join(base && *base ? base : "/tmp", "hola-test-XXXXXX");
    assert_non_null(dir);
    if (!mkdtemp(dir)) fail_msg("%s: cannot create", dir);
    return dir;
}

/* Entries of a directory; where not NULL, last receives the name of one of them. */
static inline int temp_entries(const char *dir, char last[256]) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (last) snprintf(last, 256, "%s", e->d_name);
        n++;
    }
    closedir(d);
    return n;
}

/* Removes the directory, its files and directories in it, and frees the name. */
static inline void temp_remove(char *dir) {
    char name[256];
    chmod(dir, 0700);
    while (temp_entries(dir, name) > 0) {
        char *path = hl_path_join(dir, name);
        struct stat st;
        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
            temp_remove(path);
            continue;
        }
        if (unlink(path) != 0) fail_msg("%s: cannot remove", path);
        free(path);
    }
    rmdir(dir);
    free(dir);
}

/* Writes dir/name, plainly. */
static inline void temp_write(const char *dir, const char *name, const void *data, int64_t size) {
    char *path = hl_path_join(dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, (size_t)size, f), size);
    assert_int_equal(fclose(f), 0);
    free(path);
}

/* The file's bytes, NUL-terminated; *size if not NULL. */
static inline char *temp_read(const char *dir, const char *name, int64_t *size) {
    char *path = hl_path_join(dir, name);
    struct hl_map m;
    CHECK_OK(hl_map_open(&m, path));
    char *text = malloc((size_t)m.size + 1);
    assert_non_null(text);
    memcpy(text, m.data, (size_t)m.size);
    text[m.size] = 0;
    if (size) *size = m.size;
    hl_map_close(&m);
    free(path);
    return text;
}

/* The call must fail with this status and a one-line message that contains the text. */
#define CHECK_FAILS(call, status, text)                                                                 \
    do {                                                                                                \
        hola_status check_s = (call);                                                                   \
        if (check_s != (status) || !strstr(hola_last_error(), text) || strchr(hola_last_error(), '\n')) \
            fail_msg("%s: %s: \"%s\", expected %s: \"...%s...\"", #call, hola_status_text(check_s),     \
                     check_s ? hola_last_error() : "", hola_status_text(status), text);                 \
    } while (0)

#endif
