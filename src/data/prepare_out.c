/* prepare_out.c -- see prepare_out.h. */
#define _GNU_SOURCE
#include "tokenizer/byte_json.h"
#include "data/prepare_out.h"
#include "core/rng.h"
#include "data/dataset.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const split_name[HL_SPLITS] = {"train", "val"};
#define INFO "dataset.json"

/* ---- existing contents ---- */

static hola_status no_memory(const char *dir) { return hl_fail(HOLA_ENOMEM, "%s: no memory", dir); }

/* Whether dataset.json says that a run did not finish. */
static bool is_unfinished(const char *dir) {
    char *path = hl_path_join(dir, INFO);
    json_t *root = path ? json_load_file(path, 0, NULL) : NULL;
    bool unfinished = json_is_false(json_object_get(root, "complete"));
    json_decref(root);
    free(path);
    return unfinished;
}

static bool holds_shards(const char *dir) { return hl_dataset_has(dir, "train") || hl_dataset_has(dir, "val"); }

hola_status hl_out_check(const struct hl_prepare_opts *o) {
    char *info = hl_path_join(o->out, INFO);
    bool there = info && (access(info, F_OK) == 0 || holds_shards(o->out));
    struct stat st;
    free(info);
    if (stat(o->out, &st) == 0 && !S_ISDIR(st.st_mode)) return hl_fail(HOLA_EIO, "%s: not a directory", o->out);
    if (there && !o->force && !is_unfinished(o->out))
        return hl_fail(HOLA_EINVAL, "%s: already holds a dataset; --force replaces it", o->out);
    return HOLA_OK;
}

/* train_000000.bin, val_000000.bin: as hl_shards names them */
static bool is_ours(const char *name) {
    for (int i = 0; i < HL_SPLITS; i++) {
        size_t k = strlen(split_name[i]);
        if (strncmp(name, split_name[i], k) != 0 || name[k] != '_') continue;
        size_t digits = strspn(name + k + 1, "0123456789");
        if (digits >= 6 && !strcmp(name + k + 1 + digits, ".bin")) return true;
    }
    return false;
}

/* Left by a killed run of ours: ".train_000000.bin.tmp-PID-N" and so on. */
static bool is_leftover(const char *name) {
    const char *end = name[0] == '.' ? strstr(name, ".tmp-") : NULL;
    char base[256];
    if (!end || end - name > 250) return false;
    snprintf(base, sizeof base, "%.*s", (int)(end - name - 1), name + 1);
    return is_ours(base) || !strcmp(base, INFO) || !strcmp(base, HL_TEMPLATE_FILE) || !strncmp(base, "tokenizer.", 10);
}

/* Refuses shards written by others that the loader would take for ours. */
static hola_status refuse_foreign(const char *dir, const char *name) {
    size_t n = strlen(name);
    if (name[0] == '.' || n < 4 || strcmp(name + n - 4, ".bin") != 0 || is_ours(name)) return HOLA_OK;
    if (!strstr(name, split_name[HL_SPLIT_TRAIN]) && !strstr(name, split_name[HL_SPLIT_VAL])) return HOLA_OK;
    return hl_fail(HOLA_EINVAL, "%s/%s: a shard that hola did not write; it will not be replaced", dir, name);
}

static hola_status remove_old(const char *dir, const char *name) {
    char *path = is_ours(name) || is_leftover(name) ? hl_path_join(dir, name) : NULL;
    hola_status s = HOLA_OK;
    if (path && unlink(path) != 0) s = hl_fail(HOLA_EIO, "%s: cannot remove: %s", path, strerror(errno));
    free(path);
    return s;
}

static hola_status for_names(const char *dir, hola_status (*f)(const char *dir, const char *name)) {
    DIR *d = opendir(dir);
    hola_status s = HOLA_OK;
    if (!d) return hl_fail(HOLA_EIO, "%s: %s", dir, strerror(errno));
    for (struct dirent *e = readdir(d); e && s == HOLA_OK; e = readdir(d)) s = f(dir, e->d_name);
    closedir(d);
    return s;
}

/* ---- dataset.json ---- */

static hola_status write_info(const char *dir, json_t *root) {
    char *path = hl_path_join(dir, INFO);
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    hola_status s = path && text ? hl_write_file(path, text, (int64_t)strlen(text)) : no_memory(dir);
    json_decref(root);
    free(text);
    free(path);
    return s;
}

static json_t *describe(const struct hl_out *w, json_t *about) {
    const struct hl_prepare_result *r = w->result;
    json_t *root =
        json_pack("{s:i, s:b, s:s?, s:I, s:I, s:f}", "version", 1, "complete", 1, "tokenizer", w->called, "vocab_size",
                  (json_int_t)r->vocab, "seed", (json_int_t)(w->opts->seed & INT64_MAX), "val", w->opts->val);
    json_t *splits = json_object();
    json_object_set_new(root, "bos_token_id", r->bos < 0 ? json_null() : json_integer(r->bos));
    for (int i = 0; i < HL_SPLITS; i++) {
        if (r->split[i].tokens == 0) continue;
        json_object_set_new(splits, split_name[i],
                            json_pack("{s:I, s:I, s:I, s:I}", "documents", (json_int_t)r->split[i].documents, "bytes",
                                      (json_int_t)r->split[i].bytes, "tokens", (json_int_t)r->split[i].tokens, "shards",
                                      (json_int_t)r->split[i].shards));
        if (w->flagged)
            json_object_set_new(json_object_get(splits, split_name[i]), "trained", json_integer(r->split[i].trained));
    }
    json_object_set_new(root, "splits", splits);
    json_object_update(root, about);
    return root;
}

/* ---- lifetime of a directory ---- */

/* Locks the directory; before that, nothing in it may be removed. */
static hola_status take(struct hl_out *w) {
    const char *dir = w->opts->out;
    struct stat st;
    hola_status s;
    w->made_dir = stat(dir, &st) != 0;
    s = hl_make_dirs(dir);
    if (s != HOLA_OK) return s;
    w->lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->lock < 0) return hl_fail(HOLA_EIO, "%s: %s", dir, strerror(errno));
    if (flock(w->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return hl_fail(HOLA_EIO, "%s: another hola is writing it", dir);
    s = hl_out_check(w->opts); /* check again: only now can no other run interfere */
    return s == HOLA_OK ? for_names(dir, refuse_foreign) : s;
}

static void remove_from(const char *dir, const char *name) {
    char *path = hl_path_join(dir, name);
    if (path) unlink(path);
    free(path);
}

static hola_status start(struct hl_out *w) {
    const char *dir = w->opts->out;
    hola_status s = take(w);
    if (s != HOLA_OK) return s;
    w->started = true;
    if (is_unfinished(dir) || holds_shards(dir)) remove_from(dir, HL_TEMPLATE_FILE); /* of the dataset being replaced */
    s = write_info(dir, json_pack("{s:i, s:b}", "version", 1, "complete", 0));
    if (s == HOLA_OK) s = for_names(dir, remove_old);
    for (int i = 0; i < HL_SPLITS && s == HOLA_OK; i++)
        s = hl_shards_begin(&w->shards[i], dir, split_name[i], w->result->vocab, w->opts->shard_tokens);
    for (int i = 0; i < HL_SPLITS; i++) w->shards[i].flagged = w->flagged;
    return s;
}

/* Writes n tokens of a document to a split, including the token before it. */
static hola_status put(struct hl_out *w, enum hl_split split, const struct hl_document *d, int64_t from, int64_t n,
                       int64_t bytes) {
    const uint8_t *flags = d->flags ? d->flags + from : NULL;
    hola_status s = w->front >= 0 ? hl_shards_write(&w->shards[split], &w->front, NULL, 1) : HOLA_OK;
    if (s == HOLA_OK) s = hl_shards_write(&w->shards[split], d->ids + from, flags, n);
    for (int64_t i = 0; flags && i < n; i++) w->result->split[split].trained += flags[i] & HL_TOKEN_TRAINED;
    w->result->split[split].documents++;
    w->result->split[split].bytes += bytes;
    w->result->split[split].tokens = w->shards[split].tokens;
    w->result->all.tokens = w->shards[HL_SPLIT_TRAIN].tokens + w->shards[HL_SPLIT_VAL].tokens;
    return s;
}

/* Tokens that still fit in val. */
static int64_t val_room(const struct hl_out *w) {
    return w->opts->val_tokens > 0 ? w->opts->val_tokens - w->shards[HL_SPLIT_VAL].tokens : INT64_MAX;
}

/* Chosen by the document's number, so that adding input does not change earlier choices. */
static enum hl_split choose(const struct hl_out *w, int64_t number, int64_t n) {
    if (hl_rng_uniform(w->opts->seed, hl_fnv1a("val"), (uint64_t)number) >= w->opts->val) return HL_SPLIT_TRAIN;
    return n + 1 <= val_room(w) ? HL_SPLIT_VAL : HL_SPLIT_TRAIN;
}

/* Writes the held-back document; `final`: it is the last one, and both splits must get something. */
static hola_status release(struct hl_out *w, bool final) {
    struct hl_document d = w->last;
    const double val = w->opts->val;
    const int64_t train = w->shards[HL_SPLIT_TRAIN].tokens, all = train + d.n;
    int64_t room = val_room(w), tail = 0;
    enum hl_split split = choose(w, w->result->all.documents - 1, d.n);
    hola_status s = HOLA_OK;
    w->last = (struct hl_document){0};
    if (!d.ids) return HOLA_OK;
    if (final && train == 0) split = HL_SPLIT_TRAIN;
    if (final && split == HL_SPLIT_TRAIN && val > 0 && w->shards[HL_SPLIT_VAL].tokens == 0) {
        if (train > 0 && (d.n <= all / 10 || w->flagged) && d.n < room) split = HL_SPLIT_VAL;
        else if (!w->flagged) { /* a conversation is never split */ tail = llrint(val * (double)all);
            if (tail < 1) tail = 1;
            if (tail >= room) tail = room - 1;
            if (tail >= d.n) tail = d.n - 1;
        }
    }
    if (tail > 0) {
        int64_t bytes = llrint((double)d.bytes * (double)tail / (double)d.n);
        s = put(w, HL_SPLIT_VAL, &d, d.n - tail, tail, bytes);
        d.n -= tail, d.bytes -= bytes;
    }
    if (s == HOLA_OK) s = put(w, split, &d, 0, d.n, d.bytes);
    free(d.ids);
    free(d.flags);
    return s;
}

hola_status hl_out_add(struct hl_out *w, struct hl_document *d) {
    hola_status s = w->started ? release(w, false) : start(w);
    if (s != HOLA_OK) {
        free(d->ids);
        free(d->flags);
        *d = (struct hl_document){0};
        return s;
    }
    w->last = *d;
    *d = (struct hl_document){0};
    w->result->all.documents++;
    w->result->all.bytes += w->last.bytes;
    return HOLA_OK;
}

/* Copies the tokenizer, so that training finds it with the tokens. */
static hola_status copy_tokenizer(struct hl_out *w) {
    if (w->called && !strcmp(w->called, "byte")) {
        char *path = hl_path_join(w->opts->out, "tokenizer.json");
        hola_status st = path ? hl_byte_json_write(path) : no_memory(w->opts->out);
        w->copied = st == HOLA_OK;
        free(path);
        return st;
    }
    char *to = w->tokenizer ? hl_path_join(w->opts->out, w->called) : NULL;
    struct hl_map m = {0};
    hola_status s = !w->tokenizer ? HOLA_OK : to ? hl_map_open(&m, w->tokenizer) : no_memory(w->opts->out);
    if (s == HOLA_OK && to) {
        struct stat a, b;
        bool same = stat(to, &a) == 0 && stat(w->tokenizer, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
        if (!same) s = hl_write_file(to, m.data, m.size);
        w->copied = !same && s == HOLA_OK;
    }
    hl_map_close(&m);
    free(to);
    return s;
}

/* Writes the chat template, so that the trained model answers in it. */
static hola_status write_look(struct hl_out *w) {
    char *path = hl_path_join(w->opts->out, HL_TEMPLATE_FILE);
    const hola_status s = path ? hl_template_write(w->look, path) : no_memory(w->opts->out);
    w->copied_look = s == HOLA_OK;
    free(path);
    return s;
}

hola_status hl_out_end(struct hl_out *w, json_t *about) {
    hola_status s = release(w, true);
    for (int i = 0; i < HL_SPLITS && s == HOLA_OK; i++) {
        s = hl_shards_end(&w->shards[i]);
        w->result->split[i].shards = w->shards[i].files;
    }
    if (s == HOLA_OK) s = copy_tokenizer(w);
    if (s == HOLA_OK && w->look) s = write_look(w);
    if (s == HOLA_OK) s = write_info(w->opts->out, describe(w, about));
    w->done = s == HOLA_OK;
    return s;
}

void hl_out_free(struct hl_out *w) {
    const char *dir = w->opts->out;
    free(w->last.ids);
    free(w->last.flags);
    for (int i = 0; i < HL_SPLITS; i++) {
        w->shards[i].keep = w->done;
        hl_shards_free(&w->shards[i]);
    }
    if (w->started && !w->done) {
        if (w->copied) remove_from(dir, strcmp(w->called, "byte") ? w->called : "tokenizer.json");
        if (w->copied_look) remove_from(dir, HL_TEMPLATE_FILE);
        remove_from(dir, INFO);
    }
    if (w->made_dir && !w->done) rmdir(dir);
    if (w->lock >= 0) close(w->lock);
    free(w->tokenizer);
}
