/* device.h -- struct hl_cuda, and its functions for the backend only (ops: cuda.h). Everything below hl_stream has two
 * implementations: for a real device in this folder, and for the emulated one of the tests. */
#ifndef HL_DEVICE_H
#define HL_DEVICE_H
#include "cuda/cuda.h"

enum {
    HL_GRAPHS = 512,   /* one for every number of sequences and way of sampling that a server meets */
    HL_KERNELS = 1024, /* more than exist */
    HL_PARTS = 8,      /* copies to the host in flight, each through its own part of the staging buffer */
    HL_STAGE_PART = 2 << 20,
    HL_STAGE_BYTES = HL_PARTS * HL_STAGE_PART
};
struct hl_graph { /* work captured under a key; exec NULL: run once, not captured yet */
    uint64_t key;
    int64_t generation;
    void *exec;
};

enum { HL_PRELAUNCH_STOP = 1u << 31 };
struct hl_prelaunch_slot { /* of a kernel launched before its work is known (prelaunch.c) */
    uint32_t number;       /* of its piece of work */
    int32_t timeout_ns;    /* how long it waits */
    /* Words in host memory, number << 32 | value. request: the work, or HL_PRELAUNCH_STOP to exit. reply: the work was
     * accepted, or HL_PRELAUNCH_STOP if the kernel exited without work. NULL: it was launched with its work. */
    const uint64_t *request;
    uint64_t *reply;
};

struct hl_cuda {
    hola_status failure; /* the first since the last hl_finish */
    char message[256];
    char name[256];
    int index, sms, shared_limit;
    void *stream, *lt; /* the real device's stream and cuBLASLt handle */
    uint64_t *kernels; /* [HL_KERNELS]: kernels queried so far, address << 1 | compiled for sm_90; 0: free */
    void *tick[2];     /* the timer's events */
    double began;      /* the emulated device's timer */
    void *scratch;
    int64_t scratch_bytes;
    /* Borrowed for a call on a caller's stream and memory (borrow.c): scratch is the caller's and never grows.
     * measuring: a dry run that launches nothing and sums the requests in `wanted`. */
    bool borrowed, measuring;
    int64_t wanted;
    int before;              /* the previously current device */
    struct hl_dev_rows rows; /* of the last pass; one block of memory each on the host and the device */
    char *rows_host, *rows_dev;
    int64_t rows_room;    /* its size in bytes */
    char *stage;          /* the staging buffer: pinned host memory, HL_STAGE_BYTES; NULL: not allocated yet */
    void *part[HL_PARTS]; /* events: the copy to this part has completed */
    char *mapped;         /* mapped host memory that kernels write results to (mapped_output.c) */
    int64_t mapped_bytes, mapped_words;
    uint32_t mapped_tag;
    struct hl_prelaunch *prelaunch; /* prelaunch.c; NULL: no memory */
    int bulk_room;                  /* shared memory per block if there are bulk copies; 0: unknown */
    int64_t generation;             /* counts releases: older captured graphs may point to freed memory */
    struct hl_graph graph[HL_GRAPHS];
    struct hl_graph *recording;
    struct hl_link *link; /* to the devices of other ranks (nccl.c); NULL: none */
    struct hl_plan *plan; /* cuBLASLt algorithms of shapes seen before (gemm.c) */
    int plans;
    bool fp8; /* products in FP8 are on (fp8.c) */
    struct hl_fp8_weight *fp8_weight;
    int fp8_weights, fp8_room;
    int64_t fp8_step, fp8_refused; /* counts changes of the weights; kinds of products without a kernel */
};

#ifdef __cplusplus
extern "C" {
#endif
/* Makes *c a device for one call on any thread, on the caller's stream and memory; allocates nothing. measuring: a dry
 * run to learn how much memory a call needs. give_back: restores the current device; returns the first failure. */
hola_status hl_cuda_borrow(struct hl_cuda *c, int device, void *stream, void *work, int64_t bytes, bool measuring);
hola_status hl_cuda_give_back(struct hl_cuda *c);
void hl_cuda_fail(struct hl_cuda *c, hola_status s, const char *format, ...) __attribute__((format(printf, 3, 4)));
void *hl_cuda_malloc(struct hl_cuda *c, int64_t bytes); /* NULL: out of memory; no failure is recorded */
void hl_cuda_free(struct hl_cuda *c, void *p);
void *hl_cuda_malloc_host(struct hl_cuda *c, int64_t bytes); /* pinned */
void hl_cuda_free_host(struct hl_cuda *c, void *p);
void *hl_cuda_stage(struct hl_cuda *c, int64_t bytes); /* pinned host memory, until the next get; NULL: too large */
/* Host memory for that many 4-byte words, which the next kernel writes with the tag as their lowest bit; NULL: no
 * memory. wait: copies `words` of them from word `first` on as they arrive, lowest bits cleared, and calls on_words for
 * each range; false: they will not arrive. */
void *hl_mapped_words(struct hl_cuda *c, int64_t words, uint32_t *tag);
bool hl_mapped_words_wait(struct hl_cuda *c, void *to, int64_t first, int64_t words,
                          void (*on_words)(void *ctx, int64_t from, int64_t to), void *ctx);
/* The same for up to 8 values, none of them UINT64_MAX. */
uint64_t *hl_mapped_values(struct hl_cuda *c, int n);
bool hl_mapped_values_wait(struct hl_cuda *c, uint64_t *to, int n);
/* Kernels launched before their work is known (prelaunch.c). number: of the next piece of work. submit: offers it to
 * the waiting kernel, if any; true: accepted; false: launch one. `work` holds the parameters that must equal those of
 * the last piece; subtract the number from those that count up per piece. arm: after a submit; true: launch a kernel
 * for the next piece with this slot. done: the result has arrived. */
uint32_t hl_prelaunch_number(const struct hl_cuda *c);
bool hl_prelaunch_submit(struct hl_cuda *c, const void *work, int64_t size, uint32_t value);
bool hl_prelaunch_arm(struct hl_cuda *c, struct hl_prelaunch_slot *out);
void hl_prelaunch_done(struct hl_cuda *c);
int64_t hl_prelaunch_submitted(const struct hl_cuda *c); /* number accepted */
void hl_prelaunch_cancel(struct hl_cuda *c);             /* tells a waiting kernel to exit */
void hl_prelaunch_open(struct hl_cuda *c);
void hl_prelaunch_close(struct hl_cuda *c);
/* The stream, for issuing work or waiting; cancels a prelaunched kernel, which would block it. */
static inline void *hl_stream(struct hl_cuda *c) {
    hl_prelaunch_cancel(c);
    return c->stream;
}
void hl_cuda_memset(struct hl_cuda *c, void *p, int byte, int64_t bytes);
enum hl_direction { HL_TO_DEVICE, HL_TO_HOST, HL_ON_DEVICE };
void hl_cuda_memcpy(struct hl_cuda *c, void *to, const void *from, int64_t bytes, enum hl_direction way);
/* On the device: n copies of `bytes`, both sides `stride` bytes apart. */
void hl_cuda_copy_strided(struct hl_cuda *c, void *to, const void *from, int64_t bytes, int64_t stride, int64_t n);
void hl_cuda_wait(struct hl_cuda *c); /* synchronises the stream */
bool hl_cuda_busy(struct hl_cuda *c); /* whether the stream has work */
/* An asynchronous copy to the staging buffer, as part i; _got waits for part i. */
void hl_cuda_get(struct hl_cuda *c, void *stage, const void *from, int64_t bytes, int i);
void hl_cuda_got(struct hl_cuda *c, int i);
void hl_cuda_free_memory(struct hl_cuda *c, int64_t *free_bytes, int64_t *used);
void hl_gemm_close(struct hl_cuda *c);
hola_status hl_cuda_fp8_open(struct hl_cuda *c);
void hl_cuda_fp8_close(struct hl_cuda *c);
bool hl_cuda_has_fp8(const struct hl_cuda *c); /* the chip: Hopper */
bool hl_cuda_replay(struct hl_cuda *c, uint64_t key);
void hl_cuda_recorded(struct hl_cuda *c, uint64_t key);
void hl_graph_close(struct hl_cuda *c);
hola_status hl_cuda_link(struct hl_cuda *c, int rank, int size, void (*broadcast)(void *, int64_t));
void hl_cuda_reduce(struct hl_cuda *c, float *x, int64_t first, int64_t n, int64_t part);
void hl_cuda_reduced(struct hl_cuda *c);
void hl_cuda_share(struct hl_cuda *c, void *block, int64_t bytes);
void hl_link_close(struct hl_cuda *c);
#ifdef __cplusplus
}
#endif
#endif
