/* rundir.c -- see rundir.h. */
#define _GNU_SOURCE
#include "train/rundir.h"
#include "core/file.h"
#include "core/json.h"
#include "train/checkpoint.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static hola_status no_memory(const char *path) { return hl_fail(HOLA_ENOMEM, "%s: no memory", path); }
static hola_status fail_errno(const char *path, const char *what) {
    return hl_fail(HOLA_EIO, "%s: cannot %s: %s", path, what, strerror(errno));
}
static bool exists(const char *dir, const char *name) {
    struct stat st;
    char *path = hl_path_join(dir, name);
    bool there = path && lstat(path, &st) == 0;
    free(path);
    return there;
}

/* The step of "step-00000012", -1 for other names. */
static int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step-", 5) != 0 || strspn(name + 5, "0123456789") < 8) return -1;
    errno = 0;
    int64_t step = strtoll(name + 5, &end, 10);
    return *end || errno ? -1 : step;
}

/* ---- names in a directory ---- */

typedef hola_status (*name_fn)(void *ctx, const char *dir, const char *name);
static hola_status for_names(const char *dir, name_fn f, void *ctx) {
    hola_status s = HOLA_OK;
    struct dirent **list = NULL;
    int n = scandir(dir, &list, NULL, NULL); /* list them all first: f may rename and remove */
    if (n < 0) return errno == ENOENT ? HOLA_OK : fail_errno(dir, "read");
    for (int i = 0; i < n; i++) {
        if (s == HOLA_OK) s = f(ctx, dir, list[i]->d_name);
        free(list[i]);
    }
    free(list);
    return s;
}

/* A step that was being replaced is moved back if its replacement is missing. */
static hola_status clean_checkpoint(void *ctx, const char *dir, const char *name) {
    char step[256];
    const char *end = name[0] == '.' ? strrchr(name, '.') : NULL;
    (void)ctx;
    if (!end || end == name || end - name > 200) return HOLA_OK;
    snprintf(step, sizeof step, "%.*s", (int)(end - name - 1), name + 1);
    if (step_of(step) < 0 || (strcmp(end, ".tmp") != 0 && strcmp(end, ".old") != 0)) return HOLA_OK;
    char *path = hl_path_join(dir, name), *whole = hl_path_join(dir, step);
    hola_status s = path && whole ? HOLA_OK : no_memory(dir);
    if (s == HOLA_OK && strcmp(end, ".old") == 0 && !exists(dir, step) && exists(path, "training.json"))
        s = rename(path, whole) == 0 ? HOLA_OK : fail_errno(path, "rename");
    else if (s == HOLA_OK) s = hl_remove_tree(path);
    free(path);
    free(whole);
    return s;
}

static hola_status clean_file(void *ctx, const char *dir, const char *name) {
    static const char *const ours[] = {".run.json.tmp-", ".metrics.jsonl.tmp-", ".plot.html.tmp-",
                                       ".latest.tmp",    ".best.tmp",           ".settings.json.tmp-"};
    (void)ctx;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        if (strncmp(name, ours[i], strlen(ours[i])) != 0) continue;
        char *path = hl_path_join(dir, name);
        hola_status s = !path ? no_memory(dir) : unlink(path) == 0 ? HOLA_OK : fail_errno(path, "remove");
        free(path);
        return s;
    }
    return HOLA_OK;
}

hola_status hl_rundir_open(struct hl_rundir *d, const char *out) {
    *d = (struct hl_rundir){.lock = -1};
    d->out = strdup(out);
    d->checkpoints = hl_path_join(out, "checkpoints");
    d->metrics = hl_path_join(out, "metrics.jsonl");
    d->plot = hl_path_join(out, "plot.html");
    if (!d->out || !d->checkpoints || !d->metrics || !d->plot) return no_memory(out);
    hola_status s = hl_make_dirs(out);
    if (s != HOLA_OK) return s;
    d->lock = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->lock < 0) return fail_errno(out, "open");
    if (flock(d->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return hl_fail(HOLA_EIO, "%s: another hola is training in it", out);
    s = for_names(out, clean_file, NULL);
    return s == HOLA_OK ? for_names(d->checkpoints, clean_checkpoint, NULL) : s;
}

void hl_rundir_close(struct hl_rundir *d) {
    if (d->lock > 0) close(d->lock);
    free(d->out);
    free(d->checkpoints);
    free(d->metrics);
    free(d->plot);
    *d = (struct hl_rundir){.lock = -1};
}

/* ---- run.json ---- */

static hola_status differ(const char *what, const char *key, json_t *there, json_t *given, const char *advice) {
    const size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6);
    char *a = there ? json_dumps(there, flags) : NULL, *b = given ? json_dumps(given, flags) : NULL;
    hola_status s =
        hl_fail(HOLA_EINVAL, "%s has %s %.100s, not %.100s%s", what, key, a ? a : "unset", b ? b : "unset", advice);
    free(a);
    free(b);
    return s;
}

/* 1 and 1.0 are equal. */
static bool same_value(json_t *a, json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b) == 1;
}

hola_status hl_json_same(const char *what, json_t *there, json_t *given, const char *advice) {
    const char *key;
    json_t *value;
    json_object_foreach(given, key, value) {
        json_t *old = json_object_get(there, key);
        hola_status s = HOLA_OK;
        if (json_is_object(value) && json_is_object(old)) s = hl_json_same(what, old, value, advice);
        else if (!same_value(old, value)) s = differ(what, key, old, value, advice);
        if (s != HOLA_OK) return s;
    }
    json_object_foreach(there, key, value) {
        if (!json_object_get(given, key)) return differ(what, key, value, NULL, advice);
    }
    return HOLA_OK;
}

/* More steps are allowed if the schedule does not depend on their number. */
static hola_status check_same(struct hl_rundir *d, json_t *there, json_t *run, bool *grew) {
    json_t *old = json_object_get(there, "steps"), *now = json_object_get(run, "steps");
    const char *kind = json_string_value(json_object_get(run, "schedule"));
    char what[512];
    *grew =
        json_is_integer(old) && kind && !strcmp(kind, "constant") && json_integer_value(now) > json_integer_value(old);
    if (*grew) json_object_set(there, "steps", now);
    snprintf(what, sizeof what, "%.400s: the run there", d->out);
    return hl_json_same(what, there, run, "; --restart starts a new one");
}

static hola_status write_run(struct hl_rundir *d, json_t *run, json_t *options) {
    json_t *root = json_pack("{s:s, s:O, s:O}", "hola", HOLA_VERSION, "run", run, "options", options);
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    char *path = hl_path_join(d->out, "run.json");
    hola_status s = text && path ? hl_write_file(path, text, (int64_t)strlen(text)) : no_memory(d->out);
    json_decref(root);
    free(text);
    free(path);
    return s;
}

static hola_status read_run(struct hl_rundir *d, json_t **root) {
    struct hl_map map = {0};
    char *path = hl_path_join(d->out, "run.json");
    hola_status s = path ? hl_map_open(&map, path) : no_memory(d->out);
    *root = NULL;
    if (s == HOLA_OK) s = hl_json_object(root, map.data, map.size, 16 << 20, path);
    if (s == HOLA_OK && !json_is_object(json_object_get(*root, "run")))
        s = hl_fail(HOLA_EFORMAT, "%s: not a run.json of hola", path);
    hl_map_close(&map);
    free(path);
    return s;
}

/* ---- starting ---- */

static const char *const parts[] = {"run.json",  "latest",      "best",          "metrics.jsonl",
                                    "plot.html", "checkpoints", "settings.json", "tb"};
enum { PARTS = sizeof parts / sizeof *parts };

/* run.json first: the remains of an interrupted move are then refused, not mistaken for a run. */
static hola_status move_aside(struct hl_rundir *d) {
    char name[32];
    bool any = false;
    hola_status s = HOLA_OK;
    for (int i = 0; i < PARTS; i++) any = any || exists(d->out, parts[i]);
    if (!any) return HOLA_OK;
    for (int n = 1; n < 1000000; n++) {
        snprintf(name, sizeof name, "old-%d", n);
        if (!exists(d->out, name)) break;
    }
    char *old = hl_path_join(d->out, name);
    if (!old) return no_memory(d->out);
    if (mkdir(old, 0777) != 0) s = fail_errno(old, "create");
    for (int i = 0; i < PARTS && s == HOLA_OK; i++) {
        char *from = hl_path_join(d->out, parts[i]), *to = hl_path_join(old, parts[i]);
        if (!from || !to) s = no_memory(d->out);
        else if (exists(d->out, parts[i]) && rename(from, to) != 0) s = fail_errno(from, "move");
        free(from);
        free(to);
    }
    if (s == HOLA_OK) s = hl_sync_dir(d->out);
    free(old);
    return s;
}

static hola_status newest(void *ctx, const char *dir, const char *name) {
    int64_t *best = ctx, step = step_of(name);
    (void)dir;
    if (step > *best) *best = step;
    return HOLA_OK;
}

/* The target of `latest`; the newest checkpoint if it has no valid target (a run killed before the first link). */
static hola_status find_latest(struct hl_rundir *d, int64_t *step) {
    char target[256], *path = hl_path_join(d->out, "latest");
    ssize_t n = path ? readlink(path, target, sizeof target - 1) : -1;
    *step = -1;
    if (n > 0) {
        target[n] = 0;
        const char *slash = strrchr(target, '/');
        *step = step_of(slash ? slash + 1 : target);
        char name[HL_STEP_NAME];
        if (*step >= 0 && !exists(d->checkpoints, hl_step_name(name, *step))) *step = -1;
    }
    free(path);
    return *step >= 0 ? HOLA_OK : for_names(d->checkpoints, newest, step);
}

hola_status hl_rundir_begin(struct hl_rundir *d, json_t *run, json_t *options, bool restart, int64_t *step) {
    json_t *root = NULL;
    bool grew = false;
    hola_status s = restart ? move_aside(d) : HOLA_OK;
    *step = -1;
    if (s != HOLA_OK) return s;
    if (!exists(d->out, "run.json")) {
        for (int i = 0; i < PARTS; i++)
            if (exists(d->out, parts[i]))
                return hl_fail(HOLA_EINVAL, "%s: holds %s but no run.json; --restart moves it aside", d->out, parts[i]);
        d->made = true;
        return write_run(d, run, options);
    }
    s = read_run(d, &root);
    if (s == HOLA_OK) s = check_same(d, json_object_get(root, "run"), run, &grew);
    if (s == HOLA_OK) s = find_latest(d, step);
    if (s == HOLA_OK && grew) s = write_run(d, run, options);
    json_decref(root);
    return s;
}

void hl_rundir_undo(struct hl_rundir *d) {
    static const char *const ours[] = {"run.json", "settings.json"};
    for (int i = 0; d->made && i < 2; i++) {
        char *path = hl_path_join(d->out, ours[i]);
        if (path) unlink(path);
        free(path);
    }
    if (d->made) rmdir(d->out);
    d->made = false;
}

/* ---- checkpoints ---- */

char *hl_rundir_step(const struct hl_rundir *d, int64_t step) {
    char name[HL_STEP_NAME];
    return hl_path_join(d->checkpoints, hl_step_name(name, step));
}

hola_status hl_rundir_point(const struct hl_rundir *d, const char *link, int64_t step) {
    char name[HL_STEP_NAME], target[64], hidden[64];
    snprintf(target, sizeof target, "checkpoints/%s", hl_step_name(name, step));
    snprintf(hidden, sizeof hidden, ".%s.tmp", link);
    char *temp = hl_path_join(d->out, hidden), *path = hl_path_join(d->out, link);
    hola_status s = temp && path ? HOLA_OK : no_memory(d->out);
    if (s == HOLA_OK && unlink(temp) != 0 && errno != ENOENT) s = fail_errno(temp, "remove");
    if (s == HOLA_OK && symlink(target, temp) != 0) s = fail_errno(temp, "create");
    if (s == HOLA_OK && rename(temp, path) != 0) s = fail_errno(path, "replace");
    if (s == HOLA_OK) s = hl_sync_dir(d->out);
    free(temp);
    free(path);
    return s;
}

struct prune {
    int64_t step[4096], n; /* the steps found, up to the current one */
    int64_t current;
};
static hola_status list_step(void *ctx, const char *dir, const char *name) {
    struct prune *p = ctx;
    int64_t step = step_of(name);
    (void)dir;
    if (step >= 0 && step <= p->current && p->n < 4096) p->step[p->n++] = step;
    return HOLA_OK;
}
static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

hola_status hl_rundir_prune(const struct hl_rundir *d, int64_t keep, int64_t step, int64_t best_step) {
    struct prune *p = calloc(1, sizeof *p);
    if (!p) return no_memory(d->out);
    p->current = step;
    hola_status s = for_names(d->checkpoints, list_step, p);
    qsort(p->step, (size_t)p->n, sizeof *p->step, newest_first);
    for (int64_t i = keep; i < p->n && s == HOLA_OK; i++) {
        char name[HL_STEP_NAME], hidden[HL_STEP_NAME + 8];
        if (p->step[i] == best_step) continue;
        /* rename first: a kill must not leave a half-removed step-N */
        snprintf(hidden, sizeof hidden, ".%s.tmp", hl_step_name(name, p->step[i]));
        char *path = hl_path_join(d->checkpoints, name), *gone = hl_path_join(d->checkpoints, hidden);
        if (!path || !gone) s = no_memory(d->out);
        else if (rename(path, gone) != 0) s = fail_errno(path, "remove");
        else s = hl_remove_tree(gone);
        free(path);
        free(gone);
    }
    free(p);
    return s;
}
