/* memory.c -- see memory.h. */
#define _GNU_SOURCE
#include "train/memory.h"
#include "core/process.h"
#include "model/model.h"
#include "model/trainer.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- available memory ---- */

/* The number in a file, or with `key` the number after it, in kB; -1: none ("max" too). */
static int64_t number_in(const char *path, const char *key) {
    char line[256];
    long long x = -1;
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    while (x < 0 && fgets(line, sizeof line, f))
        if (!key) x = line[0] >= '0' && line[0] <= '9' ? atoll(line) : -1;
        else if (!strncmp(line, key, strlen(key))) x = 1024 * atoll(line + strlen(key));
    fclose(f);
    return x;
}

/* What a control group's limit leaves; its page cache is reclaimable, so it is not counted. */
static int64_t group_left(const char *limit, const char *used, const char *stat, const char *cache) {
    char line[256];
    const int64_t most = number_in(limit, NULL), now = number_in(used, NULL);
    long long file = 0;
    if (most < 0 || now < 0 || most > (int64_t)1 << 60) return INT64_MAX;
    FILE *f = fopen(stat, "r");
    const size_t n = strlen(cache);
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, cache, n) && line[n] == ' ') file = atoll(line + n);
    if (f) fclose(f);
    return most - now + file > 0 ? most - now + file : 1;
}

int64_t hl_memory_free(void) {
    const int64_t all = number_in("/proc/meminfo", "MemAvailable:");
    const int64_t two = group_left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                                   "/sys/fs/cgroup/memory.stat", "inactive_file");
    const int64_t one =
        group_left("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                   "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file");
    int64_t least = all > 0 ? all : INT64_MAX;
    if (two < least) least = two;
    if (one < least) least = one;
    return least == INT64_MAX ? 0 : least;
}

/* ---- required memory ---- */

static hola_status slice_bytes(hola_model *model, const struct hl_slice_shape *shape, int64_t *bytes) {
    struct hl_activations a = {.pass = HL_TRAIN, .backend = model->backend, .recompute = shape->recompute};
    const struct hl_fp8_sizes fp8 = hl_trainer_fp8_sizes(model, shape->tokens);
    hola_status s = hl_activations_bytes(&a, &model->cfg, shape->tokens, shape->pieces, bytes);
    if (shape->fp8) *bytes += model->backend->fp8->bytes(&fp8);
    return s;
}

hola_status hl_memory_predict(struct hl_memory *m, hola_model *model, const struct hl_slice_shape *shape, int parts,
                              int64_t batch_tokens) {
    const int64_t numbers = model->params.total, size = (int64_t)sizeof(real);
    int64_t used = 0;
    *m = (struct hl_memory){.device = !model->backend->host};
    m->fixed = numbers * size + 2 * (numbers / parts) * size;
    if (m->device) {
        model->backend->storage.free_memory(model->backend, &m->left, &used);
        m->held = used;
        m->fixed += numbers * (size + model->backend->act_size);
    } else {
        m->held = hl_resident_bytes();
        m->left = hl_memory_free();
        m->fixed += batch_tokens * (int64_t)sizeof(int32_t);
    }
    return slice_bytes(model, shape, &m->slice);
}

/* ---- what would fit ---- */

/* The largest slice of whole rows, at most the requested one, that fits in `room` bytes; 0: none. */
static int64_t fitting(hola_model *model, struct hl_slice_shape s, int64_t row, int64_t room) {
    const double pieces = (double)s.pieces / (double)s.tokens;
    for (int64_t rows = s.tokens / row; rows >= 1; rows /= 2) {
        int64_t bytes = 0;
        s.tokens = rows * row;
        s.pieces = (int64_t)(pieces * (double)s.tokens) + 1;
        if (slice_bytes(model, &s, &bytes) == HOLA_OK && bytes <= room) return s.tokens;
    }
    return 0;
}

hola_status hl_memory_check(const struct hl_memory *m, hola_model *model, const struct hl_slice_shape *shape,
                            int64_t row, int64_t most) {
    const double gb = 1e-9;
    const char *where = m->device ? "of the device " : "";
    int64_t room = m->left > 0 ? m->held + m->left : INT64_MAX; /* total for the run */
    if (most > 0 && most < room) room = most;
    if (hl_memory_total(m) <= room) return HOLA_OK;
    const double needs = gb * (double)hl_memory_total(m), there = gb * (double)room;
    struct hl_slice_shape again = *shape;
    const int64_t slice = room - m->held - m->fixed;
    int64_t tokens = slice > 0 ? fitting(model, *shape, row, slice) : 0;
    if (tokens > 0)
        return hl_fail(HOLA_ENOMEM,
                       "this run needs %.2f GB of memory, %.2f GB %sare available: --micro-tokens %" PRId64 " fits",
                       needs, there, where, tokens);
    again.recompute = true;
    tokens = slice > 0 && !shape->recompute ? fitting(model, again, row, slice) : 0;
    if (tokens > 0)
        return hl_fail(HOLA_ENOMEM,
                       "this run needs %.2f GB of memory, %.2f GB %sare available: --recompute --micro-tokens %" PRId64
                       " fits",
                       needs, there, where, tokens);
    if (slice > 0)
        for (int64_t shorter = row / 2; shorter >= 64; shorter /= 2) {
            again.tokens = shorter, again.pieces = 1;
            if (fitting(model, again, shorter, slice) > 0)
                return hl_fail(
                    HOLA_ENOMEM,
                    "this run needs %.2f GB of memory, %.2f GB %sare available: --recompute --seq-len %" PRId64
                    " --micro-tokens %" PRId64 " fits",
                    needs, there, where, shorter, shorter);
        }
    return hl_fail(
        HOLA_ENOMEM,
        "this run needs %.2f GB of memory, %.2f GB %sare available: the weights with their gradients and moments "
        "alone take %.2f GB; only a smaller model fits",
        needs, there, where, gb * (double)(m->held + m->fixed));
}
