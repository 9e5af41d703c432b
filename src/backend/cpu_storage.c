/* cpu_storage.c -- the host's memory as a backend's storage. */
#include "backend/cpu_storage.h"
#include <stdlib.h>
#include <string.h>

static void *cpu_alloc(struct hl_backend *b, int64_t bytes) {
    (void)b;
    return aligned_alloc(256, (size_t)((bytes + 255) / 256 * 256));
}
static void cpu_release(struct hl_backend *b, void *p) {
    (void)b;
    free(p);
}
static void cpu_zero(struct hl_backend *b, void *p, int64_t bytes) {
    (void)b;
    if (bytes > 0) memset(p, 0, (size_t)bytes);
}
static void cpu_copy(struct hl_backend *b, void *to, const void *from, int64_t bytes) {
    (void)b;
    if (bytes > 0) memcpy(to, from, (size_t)bytes);
}
static hola_status cpu_finish(struct hl_backend *b) {
    (void)b;
    return HOLA_OK;
}
static hola_status cpu_cut_rows(struct hl_backend *b, struct hl_rows *rows, int64_t C) {
    (void)b, (void)rows, (void)C;
    return HOLA_OK;
}
static void cpu_free_memory(struct hl_backend *b, int64_t *free_bytes, int64_t *used) {
    (void)b;
    *free_bytes = *used = 0;
}

const struct hl_storage hl_cpu_storage = {.alloc = cpu_alloc,
                                          .release = cpu_release,
                                          .zero = cpu_zero,
                                          .copy = cpu_copy,
                                          .put = cpu_copy,
                                          .get = cpu_copy,
                                          .finish = cpu_finish,
                                          .status = cpu_finish,
                                          .cut_rows = cpu_cut_rows,
                                          .free_memory = cpu_free_memory};
