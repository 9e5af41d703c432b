/* borrow.c -- a real device for one call on a caller's stream and memory (include/hola_ops.h): a struct hl_cuda on the
 * stack of the call. Device constants are queried once per process; threads that race on a new device all query it and
 * store the same values. */
#include "cuda/device.h"
#include <cuda_runtime_api.h>
#include <stdatomic.h>

enum { DEVICES = 64 };
static struct {
    atomic_int sms, shared, major; /* sms 0: unknown; stored last */
    uint64_t kernels[HL_KERNELS];
} constants[DEVICES];

static cudaError_t learn(int device) {
    int sms = 0, shared = 0, major = 0;
    if (atomic_load(&constants[device].sms)) return cudaSuccess;
    cudaError_t e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e != cudaSuccess) return e;
    atomic_store(&constants[device].shared, shared);
    atomic_store(&constants[device].major, major);
    atomic_store(&constants[device].sms, sms);
    return cudaSuccess;
}

hola_status hl_cuda_borrow(struct hl_cuda *c, int device, void *stream, void *work, int64_t bytes, bool measuring) {
    int n = 0, before = -1;
    *c = (struct hl_cuda){.index = device, .before = -1};
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n < 1)
        return hl_fail(HOLA_EDEVICE, "no CUDA device: %s",
                       e == cudaSuccess ? "none is installed" : cudaGetErrorString(e));
    if (device < 0 || device >= n || device >= DEVICES)
        return hl_fail(HOLA_EINVAL, "no CUDA device %d: %d found", device, n);
    e = cudaGetDevice(&before);
    if (e == cudaSuccess) e = learn(device);
    if (e == cudaSuccess && before != device) e = cudaSetDevice(device);
    if (e != cudaSuccess) return hl_fail(HOLA_EDEVICE, "CUDA device %d: %s", device, cudaGetErrorString(e));
    cudaGetLastError(); /* clear an earlier error of the program, so that it is not taken for a failed launch */
    c->before = before;
    c->sms = atomic_load(&constants[device].sms);
    c->shared_limit = atomic_load(&constants[device].shared);
    c->kernels = constants[device].kernels;
    c->stream = stream;
    c->scratch = work, c->scratch_bytes = bytes, c->borrowed = true, c->measuring = measuring;
    if (atomic_load(&constants[device].major) < 8)
        hl_cuda_fail(c, HOLA_ENOTSUP, "CUDA device %d: compute capability 8.0 or later is needed", device);
    return HOLA_OK;
}

hola_status hl_cuda_give_back(struct hl_cuda *c) {
    if (c->before >= 0 && c->before != c->index) cudaSetDevice(c->before);
    return c->failure == HOLA_OK ? HOLA_OK : hl_fail(c->failure, "%s", c->message);
}
