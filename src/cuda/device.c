/* device.c -- a real CUDA device: opening it, its memory, one stream. */
#include "cuda/device.h"
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool check(struct hl_cuda *c, cudaError_t e, const char *what) {
    if (e == cudaSuccess) return true;
    hl_cuda_fail(c, HOLA_EDEVICE, "CUDA: %s: %s", what, cudaGetErrorString(e));
    return false;
}

int hl_cuda_count(void) {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}
bool hl_cuda_has_fp8(const struct hl_cuda *c) {
    int major = 0; /* later chips scale blocks of other sizes */
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->index) == cudaSuccess && major == 9;
}
bool hl_cuda_available(void) { return hl_cuda_count() > 0; }

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
const char *hl_cuda_version(void) {
    static const char text[] = {'0' + CUDART_VERSION / 10000, '0' + CUDART_VERSION / 1000 % 10, '.',
                                '0' + CUDART_VERSION / 10 % 10, 0};
    return text;
}
const char *hl_cuda_arch(void) { return TEXT_OF(HL_CUDA_ARCH); }

hola_status hl_cuda_open(struct hl_cuda **out, int device) {
    struct cudaDeviceProp prop;
    cudaStream_t stream;
    int n = 0;
    *out = NULL;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n < 1)
        return hl_fail(HOLA_EDEVICE, "no CUDA device: %s",
                       e == cudaSuccess                   ? "none is installed"
                       : e == cudaErrorInsufficientDriver ? "no NVIDIA driver, or one too old for this program's CUDA"
                                                          : cudaGetErrorString(e));
    if (device < 0) device = 0;
    if (device >= n) return hl_fail(HOLA_EDEVICE, "no CUDA device %d: %d found", device, n);
    e = cudaSetDevice(device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&prop, device);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) return hl_fail(HOLA_EDEVICE, "CUDA device %d: %s", device, cudaGetErrorString(e));
    if (prop.major < 8) {
        cudaStreamDestroy(stream);
        return hl_fail(HOLA_EDEVICE, "CUDA device %d (%s): compute capability %d.%d, 8.0 or later is needed", device,
                       prop.name, prop.major, prop.minor);
    }
    struct hl_cuda *c = calloc(1, sizeof *c);
    uint64_t *kernels = calloc(HL_KERNELS, sizeof *kernels);
    if (!c || !kernels) {
        free(c), free(kernels);
        cudaStreamDestroy(stream);
        return hl_fail(HOLA_ENOMEM, "device: %zu bytes", sizeof *c);
    }
    c->kernels = kernels;
    c->index = device;
    c->sms = prop.multiProcessorCount;
    c->shared_limit = (int)prop.sharedMemPerBlockOptin;
    c->stream = stream;
    hl_prelaunch_open(c);
    snprintf(c->name, sizeof c->name, "%s", prop.name);
    *out = c;
    return HOLA_OK;
}

void hl_cuda_close(struct hl_cuda *c) {
    if (!c) return;
    cudaSetDevice(c->index);
    cudaStreamSynchronize(hl_stream(c));
    hl_link_close(c);
    hl_graph_close(c);
    hl_cuda_fp8_close(c);
    hl_gemm_close(c);
    cudaFree(c->scratch);
    cudaFree(c->rows_dev);
    cudaFreeHost(c->rows_host);
    cudaFreeHost(c->stage);
    cudaFreeHost(c->mapped);
    hl_prelaunch_close(c);
    for (int i = 0; i < 2; i++)
        if (c->tick[i]) cudaEventDestroy(c->tick[i]);
    for (int i = 0; i < HL_PARTS; i++)
        if (c->part[i]) cudaEventDestroy(c->part[i]);
    cudaStreamDestroy(c->stream);
    free(c->kernels);
    free(c);
}

/* ---- launches (common.cuh, pdl.cuh) ---- */

cudaStream_t hl_cuda_stream(struct hl_cuda *c) { return hl_stream(c); }
void hl_cuda_allow_shared(struct hl_cuda *c, const void *kernel, size_t shared) {
    check(c, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared), "shared memory");
}
void hl_cuda_launched(struct hl_cuda *c, cudaError_t e) { check(c, e, "launch"); }

/* A lock-free hash table with linear probing: two threads that race on a new kernel both query the driver and write the
 * same entry. */
bool hl_cuda_compiled_for_sm90(struct hl_cuda *c, const void *kernel) {
    const uint64_t address = (uint64_t)(uintptr_t)kernel;
    struct cudaFuncAttributes at;
    uint64_t *slot = NULL, seen = 0;
    for (uint64_t i = address / 16, n = 0; n < HL_KERNELS; i++, n++) {
        slot = &c->kernels[i % HL_KERNELS];
        seen = __atomic_load_n(slot, __ATOMIC_RELAXED);
        if (seen >> 1 == address) return seen & 1;
        if (seen == 0) break;
    }
    const bool sm90 = cudaFuncGetAttributes(&at, kernel) == cudaSuccess && at.ptxVersion >= 90;
    if (seen == 0)
        __atomic_compare_exchange_n(slot, &seen, address << 1 | sm90, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return sm90;
}

void *hl_cuda_malloc(struct hl_cuda *c, int64_t bytes) {
    void *p = NULL;
    hl_prelaunch_cancel(c);
    if (cudaMalloc(&p, (size_t)bytes) != cudaSuccess) {
        cudaGetLastError(); /* clears the error: the caller reports it */
        return NULL;
    }
    return p;
}
void hl_cuda_free(struct hl_cuda *c, void *p) {
    if (p) c->generation++;
    hl_prelaunch_cancel(c);
    check(c, cudaFree(p), "free");
}
void *hl_cuda_malloc_host(struct hl_cuda *c, int64_t bytes) {
    void *p = NULL;
    hl_prelaunch_cancel(c);
    check(c, cudaMallocHost(&p, (size_t)bytes), "pinned memory");
    return p;
}
void hl_cuda_free_host(struct hl_cuda *c, void *p) {
    hl_prelaunch_cancel(c);
    check(c, cudaFreeHost(p), "free");
}
void hl_cuda_memset(struct hl_cuda *c, void *p, int byte, int64_t bytes) {
    check(c, cudaMemsetAsync(p, byte, (size_t)bytes, hl_stream(c)), "fill");
}
void hl_cuda_memcpy(struct hl_cuda *c, void *to, const void *from, int64_t bytes, enum hl_direction way) {
    static const enum cudaMemcpyKind kind[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                               cudaMemcpyDeviceToDevice};
    check(c, cudaMemcpyAsync(to, from, (size_t)bytes, kind[way], hl_stream(c)), "copy");
    if (way == HL_TO_HOST) hl_cuda_wait(c);
}
void hl_cuda_copy_strided(struct hl_cuda *c, void *to, const void *from, int64_t bytes, int64_t stride, int64_t n) {
    const size_t ld = (size_t)stride;
    check(c, cudaMemcpy2DAsync(to, ld, from, ld, (size_t)bytes, (size_t)n, cudaMemcpyDeviceToDevice, hl_stream(c)),
          "copy");
}
void hl_cuda_get(struct hl_cuda *c, void *stage, const void *from, int64_t bytes, int i) {
    if (!c->part[i]) check(c, cudaEventCreateWithFlags((cudaEvent_t *)&c->part[i], cudaEventDisableTiming), "event");
    check(c, cudaMemcpyAsync(stage, from, (size_t)bytes, cudaMemcpyDeviceToHost, hl_stream(c)), "copy");
    check(c, cudaEventRecord(c->part[i], hl_stream(c)), "event");
}
void hl_cuda_got(struct hl_cuda *c, int i) { check(c, cudaEventSynchronize(c->part[i]), "kernel"); }
void hl_cuda_wait(struct hl_cuda *c) { check(c, cudaStreamSynchronize(hl_stream(c)), "kernel"); }
bool hl_cuda_busy(struct hl_cuda *c) {
    const cudaError_t e = cudaStreamQuery(c->stream);
    if (e == cudaErrorNotReady) return true;
    check(c, e, "kernel");
    return false;
}
void hl_cuda_free_memory(struct hl_cuda *c, int64_t *free_bytes, int64_t *used) {
    size_t left = 0, total = 0;
    check(c, cudaMemGetInfo(&left, &total), "memory");
    *free_bytes = (int64_t)left;
    *used = (int64_t)(total - left);
}

void hl_cuda_timer_start(struct hl_cuda *c) {
    for (int i = 0; i < 2; i++)
        if (!c->tick[i]) check(c, cudaEventCreate((cudaEvent_t *)&c->tick[i]), "event");
    check(c, cudaEventRecord(c->tick[0], hl_stream(c)), "event");
}
double hl_cuda_timer_stop(struct hl_cuda *c) {
    float ms = 0;
    check(c, cudaEventRecord(c->tick[1], hl_stream(c)), "event");
    check(c, cudaEventSynchronize(c->tick[1]), "event");
    check(c, cudaEventElapsedTime(&ms, c->tick[0], c->tick[1]), "event");
    return (double)ms * 1e-3;
}
