/* checkpoint.c -- see checkpoint.h. */
#define _GNU_SOURCE
#include "train/checkpoint.h"
#include "core/file.h"
#include "core/json.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "model/trainer.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static hola_status no_memory(const char *path) { return hl_fail(HOLA_ENOMEM, "%s: no memory", path); }
static hola_status fail_errno(const char *path, const char *what) {
    return hl_fail(HOLA_EIO, "%s: cannot %s: %s", path, what, strerror(errno));
}

char *hl_step_name(char buf[HL_STEP_NAME], int64_t step) {
    snprintf(buf, HL_STEP_NAME, "step-%08" PRId64, step);
    return buf;
}

/* ---- directories ---- */

hola_status hl_remove_tree(const char *path) {
    struct stat st;
    hola_status s = HOLA_OK;
    if (lstat(path, &st) != 0) return errno == ENOENT ? HOLA_OK : fail_errno(path, "remove");
    if (!S_ISDIR(st.st_mode)) return unlink(path) == 0 ? HOLA_OK : fail_errno(path, "remove");
    DIR *d = opendir(path);
    if (!d) return fail_errno(path, "remove");
    for (struct dirent *e = readdir(d); e && s == HOLA_OK; e = readdir(d)) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *below = hl_path_join(path, e->d_name);
        s = below ? hl_remove_tree(below) : no_memory(path);
        free(below);
    }
    closedir(d);
    if (s == HOLA_OK && rmdir(path) != 0) s = fail_errno(path, "remove");
    return s;
}

hola_status hl_sync_dir(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    hola_status s = HOLA_OK;
    if (fd < 0) return fail_errno(path, "open");
    if (fsync(fd) != 0 && errno != EINVAL && errno != EROFS) s = fail_errno(path, "write");
    close(fd);
    return s;
}

/* ---- training.json ---- */

static json_t *number_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static hola_status write_state(const char *dir, const struct hl_checkpoint *c) {
    const struct hl_train_state *t = &c->state;
    char *path = hl_path_join(dir, "training.json"), *text = NULL;
    json_t *root = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:I}", "hola", HOLA_VERSION,
                             "step", (json_int_t)t->step, "updates", (json_int_t)t->updates, "tokens",
                             (json_int_t)t->tokens, "cursor", (json_int_t)t->cursor, "skipped", (json_int_t)t->skipped,
                             "skipped_in_row", (json_int_t)t->skipped_in_row, "seed", (json_int_t)t->seed, "seconds",
                             t->seconds, "val_loss", number_or_null(t->val_loss), "best_val_loss",
                             number_or_null(t->best_val), "best_step", (json_int_t)t->best_step);
    if (root && c->run) json_object_set(root, "run", c->run);
    if (root && t->pending) json_object_set_new(root, "evaluation_pending", json_true());
    if (root && t->slice_rows) json_object_set_new(root, "slice_rows", json_integer((json_int_t)t->slice_rows));
    text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    hola_status s = path && text ? hl_write_file(path, text, (int64_t)strlen(text)) : no_memory(dir);
    json_decref(root);
    free(text);
    free(path);
    return s;
}

static double number_or_nan(json_t *root, const char *key) {
    json_t *x = json_object_get(root, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* A required count. */
static hola_status count(json_t *root, const char *path, const char *key, int64_t *out) {
    json_t *x = json_object_get(root, key);
    if (!json_is_integer(x) || json_integer_value(x) < 0)
        return hl_fail(HOLA_EFORMAT, "%s: %s is missing or not a count", path, key);
    *out = json_integer_value(x);
    return HOLA_OK;
}

hola_status hl_checkpoint_state(const char *dir, struct hl_train_state *out) {
    struct hl_train_state t = {0};
    const struct {
        const char *key;
        int64_t *value;
    } counts[] = {{"step", &t.step},
                  {"updates", &t.updates},
                  {"tokens", &t.tokens},
                  {"cursor", &t.cursor},
                  {"skipped", &t.skipped},
                  {"skipped_in_row", &t.skipped_in_row},
                  {"seed", (int64_t *)&t.seed},
                  {"best_step", &t.best_step}};
    struct hl_map map = {0};
    json_t *root = NULL;
    char *path = hl_path_join(dir, "training.json");
    if (!path) return no_memory(dir);
    hola_status s = hl_map_open(&map, path);
    if (s == HOLA_OK) s = hl_json_object(&root, map.data, map.size, 1 << 20, path);
    for (size_t i = 0; i < sizeof counts / sizeof *counts && s == HOLA_OK; i++)
        s = count(root, path, counts[i].key, counts[i].value);
    if (s == HOLA_OK && json_object_get(root, "slice_rows")) s = count(root, path, "slice_rows", &t.slice_rows);
    t.seconds = number_or_nan(root, "seconds");
    t.val_loss = number_or_nan(root, "val_loss");
    t.best_val = number_or_nan(root, "best_val_loss");
    t.pending = json_is_true(json_object_get(root, "evaluation_pending"));
    if (s == HOLA_OK && !(t.seconds >= 0)) s = hl_fail(HOLA_EFORMAT, "%s: bad seconds", path);
    if (s == HOLA_OK && (t.updates > t.step || t.step > ((int64_t)1 << 53)))
        s = hl_fail(HOLA_EFORMAT, "%s: %" PRId64 " updates in %" PRId64 " steps", path, t.updates, t.step);
    if (s == HOLA_OK) *out = t;
    json_decref(root);
    hl_map_close(&map);
    free(path);
    return s;
}

/* ---- moments ---- */

enum { NAME = 96 };

static hola_status write_moments(const char *dir, const struct hl_checkpoint *c) {
    const struct hl_params *p = &c->model->params;
    char *path = hl_path_join(dir, "training.safetensors");
    struct hl_st_entry *e = calloc((size_t)(2 * p->n), sizeof *e);
    char(*name)[NAME] = calloc((size_t)(2 * p->n), NAME);
    hola_status s = HOLA_OK;
    int64_t n = 0;
    if (!path || !e || !name) s = no_memory(dir);
    for (int64_t i = 0; i < 2 * p->n && s == HOLA_OK; i++) {
        const struct hl_tensor *t = &p->tensor[i % p->n];
        const bool second = i >= p->n;
        if (!t->trained) continue;
        snprintf(name[n], NAME, "%c.%s", second ? 'v' : 'm', t->name);
        e[n] = (struct hl_st_entry){
            .name = name[n], .dtype = HOLA_F32, .ndim = t->ndim, .src = (second ? c->v : c->m) + t->offset};
        memcpy(e[n++].dim, t->dim, sizeof t->dim);
    }
    if (s == HOLA_OK) s = hl_st_write(path, e, n, NULL);
    free(name);
    free(e);
    free(path);
    return s;
}

/* Reads the elements of one tensor that are in the trainer's part. */
static hola_status read_moment(const struct hl_stfile *f, const char *path, char which, const struct hl_tensor *t,
                               const struct hl_trainer_view *v) {
    char name[NAME];
    int64_t from = t->offset > v->first ? t->offset : v->first, to = t->offset + t->count;
    if (to > v->first + v->n) to = v->first + v->n;
    snprintf(name, sizeof name, "%c.%s", which, t->name);
    const struct hl_st_tensor *st = hl_st_find(f, name);
    if (!st) return hl_fail(HOLA_EFORMAT, "%s: no tensor %s", path, name);
    if (st->count != t->count)
        return hl_fail(HOLA_EFORMAT, "%s: %s: %" PRId64 " numbers, not %" PRId64, path, name, st->count, t->count);
    if (from >= to) return HOLA_OK;
    real *out = (which == 'm' ? v->m : v->v) + (from - v->first);
    hola_status s = hl_st_read(st, from - t->offset, to - from, out);
    for (int64_t i = 0; i < to - from && s == HOLA_OK; i++)
        if (!isfinite((double)out[i]) || (which == 'v' && out[i] < 0))
            s = hl_fail(HOLA_EFORMAT, "%s: %s: holds values that no moment can have", path, name);
    return s;
}

hola_status hl_checkpoint_moments(const char *dir, const hola_model *model, const struct hl_trainer_view *t) {
    char *path = hl_path_join(dir, "training.safetensors");
    struct hl_stfile *f = NULL;
    if (!path) return no_memory(dir);
    hola_status s = hl_st_open_file(&f, path);
    for (int64_t i = 0; i < model->params.n && s == HOLA_OK; i++) {
        const struct hl_tensor *tensor = &model->params.tensor[i];
        if (!tensor->trained) continue;
        s = read_moment(f, path, 'm', tensor, t);
        if (s == HOLA_OK) s = read_moment(f, path, 'v', tensor, t);
    }
    hl_st_close(f);
    free(path);
    return s;
}

/* ---- whole checkpoints ---- */

static hola_status copy_into(const char *dir, const char *file) {
    const char *slash = strrchr(file, '/');
    char *to = hl_path_join(dir, slash ? slash + 1 : file);
    struct hl_map map;
    hola_status s = to ? hl_map_open(&map, file) : no_memory(dir);
    if (s == HOLA_OK) {
        s = hl_write_file(to, map.data, map.size);
        hl_map_close(&map);
    }
    free(to);
    return s;
}

static hola_status fill(const char *temp, const struct hl_checkpoint *c) {
    hola_status s = hola_model_save(c->model, temp, HOLA_F32);
    for (int i = 0; c->files && c->files[i] && s == HOLA_OK; i++) s = copy_into(temp, c->files[i]);
    if (s == HOLA_OK) s = write_moments(temp, c);
    if (s == HOLA_OK) s = write_state(temp, c);
    return s == HOLA_OK ? hl_sync_dir(temp) : s;
}

/* Renames temp to path. An existing step (from a run that was rolled back) is removed first. */
static hola_status put_in_place(const char *temp, const char *path, const char *old) {
    hola_status s;
    if (rename(temp, path) == 0) return HOLA_OK;
    if (errno != EEXIST && errno != ENOTEMPTY) return fail_errno(path, "write");
    s = hl_remove_tree(old);
    if (s == HOLA_OK && rename(path, old) != 0) s = fail_errno(path, "replace");
    if (s == HOLA_OK && rename(temp, path) != 0) s = fail_errno(path, "write");
    if (s == HOLA_OK) (void)hl_remove_tree(old);
    return s;
}

hola_status hl_checkpoint_write(const char *dir, const struct hl_checkpoint *c) {
    char name[HL_STEP_NAME], hidden[HL_STEP_NAME + 8], spare[HL_STEP_NAME + 8];
    hl_step_name(name, c->state.step);
    snprintf(hidden, sizeof hidden, ".%s.tmp", name);
    snprintf(spare, sizeof spare, ".%s.old", name);
    char *temp = hl_path_join(dir, hidden), *path = hl_path_join(dir, name), *old = hl_path_join(dir, spare);
    hola_status s = temp && path && old ? hl_make_dirs(dir) : no_memory(dir);
    if (s == HOLA_OK) s = hl_remove_tree(temp);
    if (s == HOLA_OK) s = fill(temp, c);
    if (s == HOLA_OK) s = put_in_place(temp, path, old);
    if (s == HOLA_OK) s = hl_sync_dir(dir);
    else if (temp) {
        char why[512]; /* the cleanup may fail too, but this is the error to report */
        snprintf(why, sizeof why, "%s", hola_last_error());
        (void)hl_remove_tree(temp);
        hl_fail(s, "%s", why);
    }
    free(temp);
    free(path);
    free(old);
    return s;
}
