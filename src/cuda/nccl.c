/* nccl.c -- collectives between the devices of several ranks with NCCL, loaded (dlopen) at run time: one build works
 * with and without it. Gradients are reduced to the rank that owns their part of the array (ZeRO-1), range by range on
 * a side stream, overlapped with the backward pass of the layers below. */
#include "cuda/device.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* the parts of nccl.h used here */
typedef struct {
    char internal[128];
} nccl_id;
enum { NCCL_OK = 0, NCCL_INT8 = 0, NCCL_FLOAT = 7, NCCL_SUM = 0 };
#define NCCL_LIST(X)                                                                   \
    X(ncclGetUniqueId, (nccl_id *))                                                    \
    X(ncclCommInitRank, (void **, int, nccl_id, int))                                  \
    X(ncclCommDestroy, (void *))                                                       \
    X(ncclGroupStart, (void))                                                          \
    X(ncclGroupEnd, (void))                                                            \
    X(ncclReduce, (const void *, void *, size_t, int, int, int, void *, cudaStream_t)) \
    X(ncclAllGather, (const void *, void *, size_t, int, void *, cudaStream_t))

struct hl_link {
    void *library, *comm;
    cudaStream_t side;
    cudaEvent_t ready, done; /* the main stream has written the gradients; the side stream has reduced them */
    int rank, size;
#define NCCL_MEMBER(name, parameters) int(*name) parameters;
    NCCL_LIST(NCCL_MEMBER)
#undef NCCL_MEMBER
};

void hl_link_close(struct hl_cuda *c) {
    struct hl_link *l = c->link;
    if (!l) return;
    if (l->comm) l->ncclCommDestroy(l->comm);
    if (l->side) cudaStreamDestroy(l->side);
    if (l->ready) cudaEventDestroy(l->ready);
    if (l->done) cudaEventDestroy(l->done);
    free(l);
    c->link = NULL;
}

static bool find(struct hl_link *l) {
    bool all = true;
    l->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!l->library) l->library = dlopen("libnccl.so", RTLD_NOW | RTLD_LOCAL);
    if (!l->library) return false;
#define NCCL_FIND(name, parameters)         \
    {                                       \
        void *f = dlsym(l->library, #name); \
        memcpy(&l->name, &f, sizeof f);     \
        all = all && f;                     \
    }
    NCCL_LIST(NCCL_FIND)
#undef NCCL_FIND
    return all;
}

hola_status hl_cuda_link(struct hl_cuda *c, int rank, int size, void (*broadcast)(void *, int64_t)) {
    nccl_id id;
    struct hl_link *l = calloc(1, sizeof *l);
    hl_link_close(c);
    if (!l) return hl_fail(HOLA_ENOMEM, "ranks: no memory");
    c->link = l;
    l->rank = rank;
    l->size = size;
    memset(&id, 0, sizeof id);
    int64_t good = find(l);
    if (good && rank == 0) good = l->ncclGetUniqueId(&id) == NCCL_OK;
    if (size > 1) {
        broadcast(&good, sizeof good); /* rank 0's library decides for all ranks */
        broadcast(&id, sizeof id);
    }
    if (!good || !l->library) {
        hl_link_close(c);
        return hl_fail(HOLA_ENOTSUP, "libnccl.so.2 was not found");
    }
    int e = l->ncclCommInitRank(&l->comm, size, id, rank);
    if (e != NCCL_OK || cudaStreamCreateWithFlags(&l->side, cudaStreamNonBlocking) != cudaSuccess ||
        cudaEventCreateWithFlags(&l->ready, cudaEventDisableTiming) != cudaSuccess ||
        cudaEventCreateWithFlags(&l->done, cudaEventDisableTiming) != cudaSuccess) {
        l->comm = e == NCCL_OK ? l->comm : NULL;
        hl_link_close(c);
        return hl_fail(HOLA_EDEVICE, "NCCL: rank %d of %d could not be initialised (status %d)", rank, size, e);
    }
    return HOLA_OK;
}

static void check(struct hl_cuda *c, int e, const char *what) {
    if (e != NCCL_OK) hl_cuda_fail(c, HOLA_EDEVICE, "NCCL: %s: status %d", what, e);
}

void hl_cuda_reduce(struct hl_cuda *c, float *x, int64_t first, int64_t n, int64_t part) {
    struct hl_link *l = c->link;
    cudaEventRecord(l->ready, hl_stream(c));
    cudaStreamWaitEvent(l->side, l->ready, 0);
    check(c, l->ncclGroupStart(), "reduce");
    for (int64_t end = first + n; first < end;) {
        const int64_t owner = first / part, stop = (owner + 1) * part < end ? (owner + 1) * part : end;
        check(c,
              l->ncclReduce(x + first, x + first, (size_t)(stop - first), NCCL_FLOAT, NCCL_SUM, (int)owner, l->comm,
                            l->side),
              "reduce");
        first = stop;
    }
    check(c, l->ncclGroupEnd(), "reduce");
}

void hl_cuda_reduced(struct hl_cuda *c) {
    struct hl_link *l = c->link;
    cudaEventRecord(l->done, l->side);
    cudaStreamWaitEvent(hl_stream(c), l->done, 0);
}

void hl_cuda_share(struct hl_cuda *c, void *block, int64_t bytes) {
    struct hl_link *l = c->link;
    check(c, l->ncclAllGather((char *)block + l->rank * bytes, block, (size_t)bytes, NCCL_INT8, l->comm, hl_stream(c)),
          "gather");
}
