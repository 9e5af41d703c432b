/* backend.h -- everything a model computes with: a table of ops, memory for arrays, captured graphs, collectives
 * between ranks, and the host's threads. The model is written once, against this interface. */
#ifndef HL_BACKEND_H
#define HL_BACKEND_H
#include "ops/ops.h"

/* The memory of a backend's arrays, on the host or a device. put and get copy from and to the host, copy within. Calls
 * and ops take effect in order, as on a stream; get and finish wait for all earlier ones. finish returns the first
 * failure since its last call; status returns it as far as known, without waiting. */
struct hl_storage {
    void *(*alloc)(struct hl_backend *, int64_t bytes); /* 256-byte aligned; NULL: out of memory */
    void (*release)(struct hl_backend *, void *);
    void (*zero)(struct hl_backend *, void *, int64_t bytes);
    void (*copy)(struct hl_backend *, void *to, const void *from, int64_t bytes);
    /* n copies of `bytes`, both sides `stride` bytes apart: a device takes microseconds to begin each alone. */
    void (*copy_strided)(struct hl_backend *, void *to, const void *from, int64_t bytes, int64_t stride, int64_t n);
    void (*put)(struct hl_backend *, void *to, const void *host, int64_t bytes);
    void (*get)(struct hl_backend *, void *host, const void *from, int64_t bytes);
    hola_status (*finish)(struct hl_backend *), (*status)(struct hl_backend *);
    /* Cuts a batch into chunks and blocks on the device and sets rows->dev, valid until the next call. C: cache_chunk,
     * the exact memory's block; 0: none. */
    hola_status (*cut_rows)(struct hl_backend *, struct hl_rows *rows, int64_t C);
    /* bytes that can still be allocated, and bytes in use; 0: unknown */
    void (*free_memory)(struct hl_backend *, int64_t *free_bytes, int64_t *used);
    /* May be NULL. Calls row() for n rows of `each` bytes, on any thread, as soon as each has been copied to the host.
     * false: nothing was done. */
    bool (*stream_rows)(struct hl_backend *, const void *from, int64_t each, int64_t n,
                        void (*row)(void *ctx, int64_t i, const void *bytes), void *ctx);
};

/* Graphs: work that repeats with the same arrays and shapes, as in decoding. replay: true if the work of this key was
 * captured and now runs again. Otherwise do the work and call recorded. */
struct hl_graphs {
    bool (*replay)(struct hl_backend *, uint64_t key);
    void (*recorded)(struct hl_backend *, uint64_t key);
};

/* Collectives between the devices of several ranks. link connects them, using a broadcast from rank 0 over the host
 * network; if it fails, arrays are reduced on the host. reduce: a reduce-scatter of x[first, first + n), in which rank
 * r owns elements [r part, (r + 1) part) of the array; it overlaps other work until reduced waits for it. share: an
 * all-gather in place, `bytes` of every rank. */
struct hl_collectives {
    hola_status (*link)(struct hl_backend *, int rank, int size, void (*broadcast)(void *, int64_t bytes));
    void (*reduce)(struct hl_backend *, real *x, int64_t first, int64_t n, int64_t part);
    void (*reduced)(struct hl_backend *);
    void (*share)(struct hl_backend *, void *block, int64_t bytes);
};

/* Products in FP8 (ops/linear/fp8.h), for a trainer. open: makes room, and from then on linear ops take them; stale:
 * the weights have changed; refused: how many kinds of products the device's library turned out not to have, which are
 * computed as ever; bytes: what open and the ops will allocate for such sizes. */
struct hl_fp8_products {
    hola_status (*open)(struct hl_backend *, const struct hl_fp8_sizes *s);
    void (*close)(struct hl_backend *);
    void (*stale)(struct hl_backend *);
    int64_t (*refused)(struct hl_backend *);
    int64_t (*bytes)(const struct hl_fp8_sizes *s);
};

struct hl_backend {
    struct hl_ops ops;
    struct hl_storage storage;
    struct hl_graphs graphs;                  /* replay NULL: no graphs */
    const struct hl_collectives *collectives; /* NULL: none */
    const struct hl_fp8_products *fp8;
    struct hl_fp8_host *fp8_host; /* the CPU's, while open (fp8_host.c) */
    /* What KDA's forward op keeps for its gradients, in bytes per chunk and value head (hl_kda.tiles); NULL: nothing. */
    int64_t (*kda_kept)(struct hl_backend *, int64_t K, int64_t V);
    struct hl_pool *pool; /* the host's threads; of a device's backend, too */
    void *device;         /* struct hl_cuda; NULL on the CPU */
    void (*close)(void *device);
    bool host;         /* arrays are in host memory and can be read directly */
    int64_t act_size;  /* bytes of an activation */
    int64_t xent_rows; /* rows of logits that xent processes at a time */
};

/* "cpu" or NULL: the fastest that this processor runs; "cpu-ref": the reference, plain loops that define what is
 * correct; "cpu-base", "cpu-avx2", "cpu-avx512", "cpu-neon": for one instruction set; "cuda": the first GPU, "cuda:1"
 * the second; "cuda-f32": with float activations, for checking. threads: of the host, 0: one per processor.
 * On success *out is yours: hl_backend_close() it. On failure it is NULL, and one line says why. */
hola_status hl_backend_open(struct hl_backend **out, const char *name, int threads);
void hl_backend_close(struct hl_backend *b);
/* The number of CUDA devices, and the build's CUDA version: see hola.h. */
int hl_backend_cuda_devices(void);
const char *hl_backend_cuda_version(void);
const char *hl_backend_cuda_arch(void);
/* "cuda" if there is a device, else "cpu". */
const char *hl_backend_best(void);
/* The compiled op table of a CPU backend, usable with any CPU backend. NULL: unknown, or not for this processor. */
const struct hl_ops *hl_ops_named(const char *name);
/* Fills missing ops of a CPU backend's table with the reference ops. */
void hl_ops_fall_back(struct hl_ops *ops);
/* Scratch memory for every worker (pool.h). */
static inline hola_status hl_backend_reserve(struct hl_backend *b, int64_t bytes) {
    return hl_pool_reserve(b->pool, bytes);
}
/* Fails unless the backend has all ops of a NULL-terminated list; the message names the first missing one. */
hola_status hl_backend_require(const struct hl_backend *b, const char *const *ops);

/* ---- shorthands for the storage ---- */

static inline void *hl_alloc(struct hl_backend *b, int64_t bytes) { return b->storage.alloc(b, bytes); }
static inline void hl_release(struct hl_backend *b, void *p) { b->storage.release(b, p); }
static inline void hl_zero(struct hl_backend *b, void *p, int64_t bytes) { b->storage.zero(b, p, bytes); }
static inline void hl_copy(struct hl_backend *b, void *to, const void *from, int64_t bytes) {
    b->storage.copy(b, to, from, bytes);
}
static inline void hl_copy_strided(struct hl_backend *b, void *to, const void *from, int64_t bytes, int64_t stride,
                                   int64_t n) {
    b->storage.copy_strided(b, to, from, bytes, stride, n);
}
static inline void hl_put(struct hl_backend *b, void *to, const void *host, int64_t bytes) {
    b->storage.put(b, to, host, bytes);
}
static inline void hl_get(struct hl_backend *b, void *host, const void *from, int64_t bytes) {
    b->storage.get(b, host, from, bytes);
}
static inline hola_status hl_finish(struct hl_backend *b) { return b->storage.finish(b); }

#endif
