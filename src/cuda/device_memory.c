/* device_memory.c -- code shared by the real and the emulated device: scratch memory, the staging buffer, the first
 * failure. */
#include "cuda/device.h"
#include <stdarg.h>
#include <stdio.h>

const char *hl_cuda_name(const struct hl_cuda *c) { return c->name; }
int hl_cuda_sms(const struct hl_cuda *c) { return c->sms; }
int hl_cuda_shared_limit(const struct hl_cuda *c) { return c->shared_limit; }

void hl_cuda_fail(struct hl_cuda *c, hola_status s, const char *format, ...) {
    va_list args;
    if (c->failure != HOLA_OK) return;
    c->failure = s;
    va_start(args, format);
    vsnprintf(c->message, sizeof c->message, format, args);
    va_end(args);
}

bool hl_cuda_measuring(const struct hl_cuda *c) { return c->measuring; }

/* (Cannot be too small: the size given by the caller was checked against the required one.) */
static bool borrowed_has(struct hl_cuda *c, int64_t bytes) {
    if (c->measuring) return false;
    if (bytes <= c->scratch_bytes) return true;
    hl_cuda_fail(c, HOLA_EINVAL, "work: %lld bytes more are needed", (long long)(bytes - c->scratch_bytes));
    return false;
}
void *hl_cuda_take(struct hl_cuda *c, int64_t bytes) {
    char *p = c->scratch;
    bytes = (bytes + 255) / 256 * 256;
    if (c->measuring) c->wanted += bytes;
    if (!borrowed_has(c, bytes)) return NULL;
    c->scratch = p + bytes;
    c->scratch_bytes -= bytes;
    return p;
}

void *hl_cuda_scratch(struct hl_cuda *c, int64_t bytes) {
    if (c->measuring) c->wanted += bytes;
    if (c->borrowed) return borrowed_has(c, bytes) ? c->scratch : NULL;
    if (bytes > c->scratch_bytes) {
        hl_cuda_wait(c);
        hl_cuda_free(c, c->scratch);
        c->scratch_bytes = 0;
        c->scratch = hl_cuda_malloc(c, bytes);
        if (!c->scratch) {
            int64_t left, used;
            hl_cuda_free_memory(c, &left, &used);
            hl_cuda_fail(c, HOLA_ENOMEM, "device memory: %.1f MB of scratch memory do not fit with %.1f MB in use",
                         (double)bytes * 1e-6, (double)used * 1e-6);
            return NULL;
        }
        c->scratch_bytes = bytes;
    }
    return c->scratch;
}

void *hl_cuda_stage(struct hl_cuda *c, int64_t bytes) {
    if (!c->stage) c->stage = hl_cuda_malloc_host(c, HL_STAGE_BYTES);
    return bytes <= HL_STAGE_BYTES ? c->stage : NULL;
}
