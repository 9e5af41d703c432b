/* tensorboard.c -- see tensorboard.h. The messages (event.proto, summary.proto) are few and flat, so their bytes are
 * written here: a tag is field * 8 + type, type 0 a varint, 1 eight bytes, 2 a length and bytes, 5 four bytes. */
#define _GNU_SOURCE
#include "train/tensorboard.h"
#include "core/file.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint32_t hl_crc32c(const void *data, int64_t n) {
    const unsigned char *p = data;
    uint32_t c = ~(uint32_t)0;
    for (int64_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++) c = (c >> 1) ^ (0x82f63b78u & (0u - (c & 1))); /* a few hundred bytes per step */
    }
    return ~c;
}
/* A CRC over data that contains CRCs is weak, so files store it rotated and offset. */
static uint32_t masked(const void *data, int64_t n) {
    const uint32_t c = hl_crc32c(data, n);
    return ((c >> 15) | (c << 17)) + 0xa282ead8u;
}

/* ---- bytes of messages ---- */

enum { MOST = 128 * (HL_TRAIN_FIGURES + 8) };
struct bytes {
    int64_t n;
    unsigned char at[MOST];
};
static void put(struct bytes *b, const void *p, int64_t n) {
    HL_ASSERT(b->n + n <= MOST);
    memcpy(b->at + b->n, p, (size_t)n);
    b->n += n;
}
static void put_little(struct bytes *b, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) put(b, &(unsigned char){(unsigned char)(x >> (8 * i))}, 1);
}
static void put_varint(struct bytes *b, uint64_t x) {
    for (; x > 127; x >>= 7) put_little(b, (x & 127) | 128, 1);
    put_little(b, x, 1);
}
static void put_bytes(struct bytes *b, int field, const void *p, int64_t n) {
    put_varint(b, (uint64_t)(field * 8 + 2));
    put_varint(b, (uint64_t)n);
    put(b, p, n);
}

/* Summary.Value: tag = 1, simple_value = 2; in Summary.value = 1 */
static void put_value(struct bytes *summary, const char *prefix, const char *name, double x) {
    struct bytes v;
    char tag[96];
    const float single = (float)x;
    uint32_t bits;
    if (!isfinite(x)) return;
    memcpy(&bits, &single, sizeof bits);
    snprintf(tag, sizeof tag, "%s%s", prefix, name);
    v.n = 0;
    put_bytes(&v, 1, tag, (int64_t)strlen(tag));
    put_varint(&v, 2 * 8 + 5);
    put_little(&v, bits, 4);
    put_bytes(summary, 1, v.at, v.n);
}

/* Event: wall_time = 1 (double), step = 2, then one of file_version = 3, summary = 5, session_log = 7 */
static hola_status write_event(struct hl_tensorboard *t, int64_t step, int field, const void *p, int64_t n) {
    struct bytes *e = calloc(2, sizeof *e), *record = e + 1;
    struct timespec now;
    double wall;
    uint64_t bits;
    if (!e) return hl_fail(HOLA_ENOMEM, "%s: no memory", t->path);
    clock_gettime(CLOCK_REALTIME, &now);
    wall = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    memcpy(&bits, &wall, sizeof bits);
    put_varint(e, 1 * 8 + 1);
    put_little(e, bits, 8);
    put_varint(e, 2 * 8 + 0);
    put_varint(e, (uint64_t)step);
    put_bytes(e, field, p, n);
    put_little(record, (uint64_t)e->n, 8);
    put_little(record, masked(record->at, 8), 4);
    put(record, e->at, e->n);
    put_little(record, masked(e->at, e->n), 4);
    const bool good = fwrite(record->at, 1, (size_t)record->n, t->f) == (size_t)record->n && fflush(t->f) == 0;
    free(e);
    return good ? HOLA_OK : hl_fail(HOLA_EIO, "%s: cannot write: %s", t->path, strerror(errno));
}

/* ---- files ---- */

/* TensorBoard reads the files of a directory in name order: a new file must sort last. */
static int64_t next_seconds(const char *dir) {
    int64_t latest = (int64_t)time(NULL) - 1;
    DIR *d = opendir(dir);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        static const char head[] = "events.out.tfevents.";
        if (strncmp(e->d_name, head, sizeof head - 1) != 0) continue;
        const int64_t x = strtoll(e->d_name + sizeof head - 1, NULL, 10);
        if (x > latest && x < INT64_MAX) latest = x;
    }
    if (d) closedir(d);
    return latest + 1;
}

hola_status hl_tensorboard_open(struct hl_tensorboard *t, const char *out, int64_t done) {
    char host[128] = "localhost", name[256];
    char *dir = hl_path_join(out, "tb");
    *t = (struct hl_tensorboard){0};
    hola_status s = dir ? hl_make_dirs(dir) : hl_fail(HOLA_ENOMEM, "%s: no memory", out);
    if (s == HOLA_OK) {
        gethostname(host, sizeof host - 1);
        snprintf(name, sizeof name, "events.out.tfevents.%" PRId64 ".%s.%d.0", next_seconds(dir), host, (int)getpid());
        t->path = hl_path_join(dir, name);
        t->f = t->path ? fopen(t->path, "wbe") : NULL;
        if (!t->f) s = hl_fail(HOLA_EIO, "%s: %s", t->path ? t->path : dir, strerror(errno));
    }
    free(dir);
    static const char version[] = "brain.Event:2";
    if (s == HOLA_OK) s = write_event(t, 0, 3, version, sizeof version - 1);
    /* SessionLog: status = 1, START = 1 */
    if (s == HOLA_OK && done > 0) s = write_event(t, done + 1, 7, (const unsigned char[]){1 * 8 + 0, 1}, 2);
    if (s != HOLA_OK) hl_tensorboard_close(t);
    return s;
}

hola_status hl_tensorboard_add(struct hl_tensorboard *t, const struct hl_metric *m, const struct hl_train_figures *f) {
    struct bytes *b = calloc(1, sizeof *b);
    if (!b) return hl_fail(HOLA_ENOMEM, "%s: no memory", t->path);
    put_value(b, "train/", "loss", m->loss);
    put_value(b, "train/", "lr", m->lr);
    put_value(b, "train/", "grad_norm", m->grad_norm);
    put_value(b, "train/", "tok_per_s", m->tok_per_s);
    put_value(b, "val/", "loss", m->val_loss);
    for (int i = 0; f && i < f->n; i++) put_value(b, "eval/", f->at[i].name, f->at[i].value);
    hola_status s = write_event(t, m->step, 5, b->at, b->n);
    free(b);
    return s;
}

void hl_tensorboard_close(struct hl_tensorboard *t) {
    if (t->f) fclose(t->f);
    free(t->path);
    *t = (struct hl_tensorboard){0};
}
