#define _POSIX_C_SOURCE 200809L
/* device.c -- the emulated device: host memory, products as plain loops. See emu.h. */
#include "core/half.h"
#include "cuda/device.h"
#include "emu/watch.h"
#include "ops/linear/fp8.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int hl_emu_sms = 4; /* tests may change it */
bool hl_cuda_available(void) { return true; }
int hl_cuda_count(void) { return 1; }
const char *hl_cuda_version(void) { return "emulated"; }
const char *hl_cuda_arch(void) { return "emulated"; }
/* It behaves like Hopper, unless a test requests an older GPU. */
bool hl_cuda_compiled_for_sm90(struct hl_cuda *c, const void *kernel) {
    (void)c, (void)kernel;
    return !getenv("EMU_OLDER");
}
hola_status hl_cuda_open(struct hl_cuda **out, int device) {
    struct hl_cuda *c = calloc(1, sizeof *c);
    *out = c;
    if (!c) return hl_fail(HOLA_ENOMEM, "device: %zu bytes", sizeof *c);
    c->index = device;
    c->sms = hl_emu_sms;
    c->shared_limit = 227 << 10; /* as on Hopper */
    hl_prelaunch_open(c);
    snprintf(c->name, sizeof c->name, "emulated");
    return HOLA_OK;
}
void hl_cuda_close(struct hl_cuda *c) {
    if (!c) return;
    hl_cuda_fp8_close(c);
    free(c->scratch);
    free(c->rows_host);
    free(c->stage);
    free(c->mapped);
    hl_prelaunch_close(c);
    free(c->rows_dev);
    free(c);
}

hola_status hl_cuda_borrow(struct hl_cuda *c, int device, void *stream, void *work, int64_t bytes, bool measuring) {
    *c = (struct hl_cuda){.index = device, .sms = hl_emu_sms, .shared_limit = 227 << 10, .stream = stream};
    if (device < 0 || device > 1) return hl_fail(HOLA_EINVAL, "no CUDA device %d", device);
    c->scratch = work, c->scratch_bytes = bytes, c->borrowed = true, c->measuring = measuring;
    return HOLA_OK;
}
hola_status hl_cuda_give_back(struct hl_cuda *c) {
    return c->failure == HOLA_OK ? HOLA_OK : hl_fail(c->failure, "%s", c->message);
}

/* Memory starts as NaN, as it may on a device. */
void *hl_cuda_malloc(struct hl_cuda *c, int64_t bytes) {
    void *p = aligned_alloc(256, (size_t)((bytes + 255) / 256 * 256));
    if (p) memset(p, 0xff, (size_t)bytes);
    (void)c;
    return p;
}
void hl_cuda_free(struct hl_cuda *c, void *p) {
    (void)c;
    free(p);
}
void *hl_cuda_malloc_host(struct hl_cuda *c, int64_t bytes) { return hl_cuda_malloc(c, bytes); }
void hl_cuda_free_host(struct hl_cuda *c, void *p) { hl_cuda_free(c, p); }
void hl_cuda_memset(struct hl_cuda *c, void *p, int byte, int64_t bytes) {
    (void)c;
    WATCH(operation());
    memset(p, byte, (size_t)bytes);
}
void hl_cuda_memcpy(struct hl_cuda *c, void *to, const void *from, int64_t bytes, enum hl_direction way) {
    (void)c, (void)way;
    WATCH(operation());
    memcpy(to, from, (size_t)bytes);
}
void hl_cuda_copy_strided(struct hl_cuda *c, void *to, const void *from, int64_t bytes, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        hl_cuda_memcpy(c, (char *)to + i * stride, (const char *)from + i * stride, bytes, HL_ON_DEVICE);
}
void hl_cuda_get(struct hl_cuda *c, void *stage, const void *from, int64_t bytes, int i) {
    c->part[i] = stage;
    memcpy(stage, from, (size_t)bytes);
}
void hl_cuda_got(struct hl_cuda *c, int i) { HL_ASSERT(c->part[i]); }
void hl_cuda_wait(struct hl_cuda *c) { (void)c; }
atomic_int hl_emu_busy; /* a test's thread that stands in for a kernel is running */
bool hl_cuda_busy(struct hl_cuda *c) {
    (void)c;
    sched_yield();
    return atomic_load(&hl_emu_busy);
}
void hl_cuda_free_memory(struct hl_cuda *c, int64_t *free_bytes, int64_t *used) {
    (void)c;
    *free_bytes = (int64_t)1 << 32;
    *used = 0;
}

static float read_at(const void *p, hola_dtype t, int64_t i) {
    return t == HOLA_BF16 ? (float)hl_from_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
/* the rows of a matrix, for the race detector */
static void touch_rows(const void *p, int64_t rows, int64_t cols, int64_t ld, hola_dtype t, int write) {
    const int64_t size = t == HOLA_BF16 ? 2 : 4;
    for (int64_t i = 0; i < rows; i++) WATCH(host_touch((const char *)p + i * ld * size, (size_t)(cols * size), write));
    (void)p, (void)cols, (void)ld, (void)size, (void)write;
}
/* FP8: code products are summed over a block, then that sum times both scales is added. */
static float fp8_sum(const struct hl_gemm *g, int64_t i, int64_t j) {
    const uint8_t *A = (const uint8_t *)g->A + i * g->lda, *B = (const uint8_t *)g->B + j * g->ldb;
    float sum = 0;
    for (int64_t first = 0; first < g->K; first += HL_FP8_BLOCK) {
        float block = 0;
        for (int64_t k = first; k < g->K && k < first + HL_FP8_BLOCK; k++)
            block += hl_from_fp8(A[k], g->a_e5m2 ? HL_E5M2 : HL_E4M3) * hl_from_fp8(B[k], HL_E4M3);
        sum += block * (g->a_scale[hl_fp8_scale_at(false, g->M, g->K, i, first)] *
                        g->b_scale[hl_fp8_scale_at(g->b_blocks, g->N, g->K, j, first)]);
    }
    return sum;
}
bool hl_cuda_has_fp8(const struct hl_cuda *c) {
    (void)c;
    return !getenv("EMU_OLDER");
}
int hl_emu_no_fp8; /* set by tests: which products the library lacks; bit 0: with blocks of weights, bit 1: without */
bool hl_cuda_gemm_has(struct hl_cuda *c, const struct hl_gemm *g) {
    const bool lacks = g->a_scale && hl_emu_no_fp8 & (g->b_blocks ? 1 : 2);
    if (lacks) c->fp8_refused++;
    return !lacks;
}
void hl_cuda_gemm(struct hl_cuda *c, const struct hl_gemm *g) {
    (void)c;
    HL_ASSERT(!g->a_scale || (g->b_trans && !g->a_trans && g->lda == g->K && g->ldb == g->K));
    WATCH(operation());
    if (!g->a_scale) touch_rows(g->A, g->a_trans ? g->K : g->M, g->a_trans ? g->M : g->K, g->lda, g->in, 0);
    if (!g->a_scale) touch_rows(g->B, g->b_trans ? g->N : g->K, g->b_trans ? g->K : g->N, g->ldb, g->in, 0);
    touch_rows(g->C, g->M, g->N, g->ldc, g->out, 1);
    for (int64_t i = 0; i < g->M; i++)
        for (int64_t j = 0; j < g->N; j++) {
            float sum = g->a_scale ? fp8_sum(g, i, j) : 0;
            for (int64_t k = 0; k < g->K && !g->a_scale; k++)
                sum += read_at(g->A, g->in, g->a_trans ? k * g->lda + i : i * g->lda + k) *
                       read_at(g->B, g->in, g->b_trans ? j * g->ldb + k : k * g->ldb + j);
            sum *= g->alpha;
            if (g->beta != 0) sum += g->beta * read_at(g->add ? g->add : g->C, g->out, i * g->ldc + j);
            if (g->out == HOLA_BF16) ((uint16_t *)g->C)[i * g->ldc + j] = hl_to_bf16(sum);
            else ((float *)g->C)[i * g->ldc + j] = sum;
        }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
void hl_cuda_timer_start(struct hl_cuda *c) { c->began = now(); }
double hl_cuda_timer_stop(struct hl_cuda *c) { return now() - c->began; }

bool hl_cuda_replay(struct hl_cuda *c, uint64_t key) {
    (void)c, (void)key;
    return false;
}
void hl_cuda_recorded(struct hl_cuda *c, uint64_t key) { (void)c, (void)key; }

hola_status hl_cuda_link(struct hl_cuda *c, int rank, int size, void (*broadcast)(void *, int64_t)) {
    (void)c, (void)rank, (void)size, (void)broadcast;
    return hl_fail(HOLA_ENOTSUP, "the emulated device has no others to talk to");
}
void hl_cuda_reduce(struct hl_cuda *c, float *x, int64_t first, int64_t n, int64_t part) {
    (void)c, (void)x, (void)first, (void)n, (void)part;
}
void hl_cuda_reduced(struct hl_cuda *c) { (void)c; }
void hl_cuda_share(struct hl_cuda *c, void *block, int64_t bytes) { (void)c, (void)block, (void)bytes; }
