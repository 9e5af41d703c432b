/* metrics.c -- see metrics.h. */
#define _GNU_SOURCE
#include "train/metrics.h"
#include "core/file.h"
#include "train/train.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- lines ---- */

/* The shortest decimal that round-trips: equal numbers give equal text. */
static const char *number(char buf[32], double x) {
    if (!isfinite(x)) return "null";
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, 32, "%.*g", digits, x);
        if (strtod(buf, NULL) == x) break;
    }
    return buf;
}

static int format_line(char *out, size_t room, const struct hl_metric *m, const struct hl_train_figures *f) {
    char loss[32], lr[32], norm[32], val[32];
    int n = snprintf(out, room,
                     "{\"step\": %" PRId64 ", \"tokens\": %" PRId64
                     ", \"loss\": %s, \"lr\": %s, \"grad_norm\": %s, \"tok_per_s\": %.1f, \"seconds\": %.3f",
                     m->step, m->tokens, number(loss, m->loss), number(lr, m->lr), number(norm, m->grad_norm),
                     m->tok_per_s, m->seconds);
    if (isfinite(m->val_loss)) n += snprintf(out + n, room - (size_t)n, ", \"val_loss\": %s", number(val, m->val_loss));
    n += snprintf(out + n, room - (size_t)n, ", \"epoch\": %" PRId64 ", \"skipped\": %" PRId64, m->epoch, m->skipped);
    for (int i = 0; f && i < f->n; i++)
        n += snprintf(out + n, room - (size_t)n, "%s\"%.*s\": %s", i ? ", " : ", \"eval\": {",
                      (int)sizeof f->at[i].name, f->at[i].name, number(val, f->at[i].value));
    return n + snprintf(out + n, room - (size_t)n, f && f->n > 0 ? "}}\n" : "}\n");
}

static double real_of(json_t *root, const char *key) {
    json_t *x = json_object_get(root, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

static bool parse_line(const char *text, size_t n, struct hl_metric *m) {
    json_t *root = memchr(text, 0, n) ? NULL : json_loadb(text, n, 0, NULL);
    json_t *step = json_object_get(root, "step");
    bool good = json_is_integer(step) && json_integer_value(step) >= 0;
    *m = (struct hl_metric){.step = json_integer_value(step),
                            .tokens = json_integer_value(json_object_get(root, "tokens")),
                            .epoch = json_integer_value(json_object_get(root, "epoch")),
                            .skipped = json_integer_value(json_object_get(root, "skipped")),
                            .loss = real_of(root, "loss"),
                            .lr = real_of(root, "lr"),
                            .grad_norm = real_of(root, "grad_norm"),
                            .tok_per_s = real_of(root, "tok_per_s"),
                            .seconds = real_of(root, "seconds"),
                            .val_loss = real_of(root, "val_loss")};
    json_decref(root);
    return good;
}

/* Calls f for every line, complete or not; ok: it could be parsed. */
typedef hola_status (*line_fn)(void *ctx, const char *line, int64_t n, bool ok, const struct hl_metric *m);
static hola_status for_lines(const struct hl_map *map, line_fn f, void *ctx) {
    hola_status s = HOLA_OK;
    for (int64_t at = 0; at < map->size && s == HOLA_OK;) {
        const char *line = map->data + at, *end = memchr(line, '\n', (size_t)(map->size - at));
        int64_t n = end ? end + 1 - line : map->size - at;
        struct hl_metric m = {0};
        bool ok = end && parse_line(line, (size_t)n, &m);
        s = f(ctx, line, n, ok, &m);
        at += n;
    }
    return s;
}

/* An empty or missing file gives an empty map. */
static hola_status map_lines(struct hl_map *map, const char *path) {
    *map = (struct hl_map){0};
    if (access(path, F_OK) != 0 && errno == ENOENT) return HOLA_OK;
    hola_status s = hl_map_open(map, path);
    return s == HOLA_EFORMAT ? HOLA_OK : s;
}

/* ---- writing ---- */

struct cut {
    struct hl_writer out;
    int64_t last, dropped;
};
static hola_status keep_line(void *ctx, const char *line, int64_t n, bool ok, const struct hl_metric *m) {
    struct cut *c = ctx;
    if (ok && m->step <= c->last) return hl_writer_write(&c->out, line, n);
    c->dropped++;
    return HOLA_OK;
}

static hola_status drop_after(const char *path, int64_t last) {
    struct cut c = {.last = last};
    struct hl_map map;
    hola_status s = map_lines(&map, path);
    if (s == HOLA_OK && map.size > 0) {
        s = hl_writer_open(&c.out, path);
        if (s == HOLA_OK) s = for_lines(&map, keep_line, &c);
        if (s == HOLA_OK && c.dropped > 0) s = hl_writer_commit(&c.out);
        hl_writer_abort(&c.out);
    }
    hl_map_close(&map);
    return s;
}

hola_status hl_metrics_open(struct hl_metrics_log *w, const char *path, int64_t last_step) {
    hola_status s = drop_after(path, last_step);
    *w = (struct hl_metrics_log){.fd = -1};
    if (s != HOLA_OK) return s;
    w->path = strdup(path);
    if (!w->path) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    w->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (w->fd >= 0) w->size = lseek(w->fd, 0, SEEK_END);
    if (w->fd < 0 || w->size < 0) {
        s = hl_fail(HOLA_EIO, "%s: %s", path, strerror(errno));
        hl_metrics_close(w);
    }
    return s;
}

/* Writes the pending lines: all of them, or, judging by the file size, none. */
static hola_status flush(struct hl_metrics_log *w) {
    for (int64_t done = 0; done < w->n;) {
        ssize_t k = pwrite(w->fd, w->pending + done, (size_t)(w->n - done), w->size + done);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            int error = k < 0 ? errno : EIO;
            (void)!ftruncate(w->fd, w->size);
            return hl_fail(HOLA_EIO, "%s: cannot write: %s", w->path, strerror(error));
        }
        done += k;
    }
    w->size += w->n;
    w->n = 0;
    return HOLA_OK;
}

hola_status hl_metrics_add(struct hl_metrics_log *w, const struct hl_metric *m,
                           const struct hl_train_figures *figures) {
    const int64_t line =
        512 + (figures ? 128 * figures->n : 0); /* names are short, numbers have at most 32 characters */
    if (w->n + line > w->room) {
        char *p = realloc(w->pending, (size_t)(2 * w->room + line));
        if (!p) return hl_fail(HOLA_ENOMEM, "%s: no memory", w->path);
        w->pending = p;
        w->room = 2 * w->room + line;
    }
    w->n += format_line(w->pending + w->n, (size_t)line, m, figures);
    return flush(w);
}

hola_status hl_metrics_sync(struct hl_metrics_log *w) {
    hola_status s = flush(w);
    if (s == HOLA_OK && fsync(w->fd) != 0 && errno != EINVAL)
        s = hl_fail(HOLA_EIO, "%s: cannot write: %s", w->path, strerror(errno));
    return s;
}

void hl_metrics_close(struct hl_metrics_log *w) {
    if (w->fd >= 0) close(w->fd);
    free(w->path);
    free(w->pending);
    *w = (struct hl_metrics_log){.fd = -1};
}

/* ---- reading ---- */

struct reader {
    struct hl_metrics_history *h;
    int64_t room;
};
static hola_status take_line(void *ctx, const char *line, int64_t n, bool ok, const struct hl_metric *m) {
    struct reader *r = ctx;
    struct hl_metrics_history *h = r->h;
    (void)line, (void)n;
    if (!ok) {
        h->bad++;
        return HOLA_OK;
    }
    if (h->n == r->room) {
        struct hl_metric *p = realloc(h->at, (size_t)(2 * r->room + 256) * sizeof *p);
        if (!p) return hl_fail(HOLA_ENOMEM, "%lld lines of metrics", (long long)h->n);
        h->at = p;
        r->room = 2 * r->room + 256;
    }
    h->at[h->n++] = *m;
    return HOLA_OK;
}

hola_status hl_metrics_history_read(struct hl_metrics_history *h, const char *path) {
    struct reader r = {.h = h};
    struct hl_map map = {0};
    *h = (struct hl_metrics_history){0};
    hola_status s = hl_map_open(&map, path);
    if (s == HOLA_EFORMAT) return HOLA_OK; /* empty: a run without a step */
    if (s == HOLA_OK) s = for_lines(&map, take_line, &r);
    hl_map_close(&map);
    if (s != HOLA_OK) hl_metrics_history_free(h);
    return s;
}

void hl_metrics_history_free(struct hl_metrics_history *h) {
    free(h->at);
    *h = (struct hl_metrics_history){0};
}
