/* ops.h -- one table of functions per backend; the model is written once against it.
 *
 * Ops never allocate. Each has a header in its folder with the equation, the shapes and one struct of
 * arguments that serves forward and backward. Activations are void: `real` on the CPU. */
#ifndef HL_OPS_H
#define HL_OPS_H
#include "core/pool.h"
#include "ops/adamw/adamw.h"
#include "ops/cache/cache.h"
#include "ops/conv/conv.h"
#include "ops/decode/decode.h"
#include "ops/embed/embed.h"
#include "ops/gate/gate.h"
#include "ops/gdn/gdn.h"
#include "ops/many/many.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/norm.h"
#include "ops/swiglu/swiglu.h"
#include "ops/top/top.h"
#include "ops/xent/xent.h"

/* X(name, struct): every op of the table */
#define HL_OPS_LIST(X)              \
    X(linear_forward, hl_linear)    \
    X(linear_backward, hl_linear)   \
    X(rmsnorm_forward, hl_rmsnorm)  \
    X(rmsnorm_backward, hl_rmsnorm) \
    X(l2norm_forward, hl_l2norm)    \
    X(l2norm_backward, hl_l2norm)   \
    X(conv_forward, hl_conv)        \
    X(conv_backward, hl_conv)       \
    X(gate_forward, hl_gate)        \
    X(gate_backward, hl_gate)       \
    X(gdn_forward, hl_gdn)          \
    X(gdn_backward, hl_gdn)         \
    X(cache_score, hl_score)        \
    X(cache_forward, hl_cache)      \
    X(cache_backward, hl_cache)     \
    X(swiglu_forward, hl_swiglu)    \
    X(swiglu_backward, hl_swiglu)   \
    X(embed_forward, hl_embed)      \
    X(embed_backward, hl_embed)     \
    X(xent, hl_xent)                \
    X(adamw, hl_adamw)              \
    X(sumsq, hl_sumsq)

/* Where a backend's arrays live. put and get copy between the host and there, copy within. Calls and ops take
 * effect in order; get and finish wait. finish gives the first failure since it was last called; so does status, of
 * what is known, without waiting. */
struct hl_memory {
    void *(*alloc)(struct hl_pool *, int64_t bytes); /* on 256 bytes; NULL: no room */
    void (*release)(struct hl_pool *, void *);
    void (*zero)(struct hl_pool *, void *, int64_t bytes);
    void (*copy)(struct hl_pool *, void *to, const void *from, int64_t bytes);
    void (*put)(struct hl_pool *, void *to, const void *host, int64_t bytes);
    void (*get)(struct hl_pool *, void *host, const void *from, int64_t bytes);
    /* cuts the rows up on the device and sets rows->dev, valid until the next call; C: the cache's block */
    hola_status (*rows)(struct hl_pool *, struct hl_rows *rows, int64_t C);
    hola_status (*finish)(struct hl_pool *), (*status)(struct hl_pool *);
    /* Work done again and again with the same arrays and shapes, as in decoding. replay: true where the work of
     * this key was recorded and is now under way once more. Otherwise do it and call recorded. */
    bool (*replay)(struct hl_pool *, uint64_t key);
    void (*recorded)(struct hl_pool *, uint64_t key);
    /* Devices of several ranks that talk to each other; NULL, or link fails: their arrays meet on the host.
     * broadcast: from rank 0. reduce: x[first, first + n) summed over the ranks into that rank's copy whose part
     * of the block it is; goes on beside other work until reduced. share: every rank's `bytes` of a block, one
     * after another, to all. */
    hola_status (*link)(struct hl_pool *, int rank, int size, void (*broadcast)(void *, int64_t bytes));
    void (*reduce)(struct hl_pool *, real *x, int64_t first, int64_t n, int64_t part);
    void (*reduced)(struct hl_pool *);
    void (*share)(struct hl_pool *, void *block, int64_t bytes);
    /* bytes that could still be allocated, and bytes in use; 0: not known */
    void (*room)(struct hl_pool *, int64_t *free_bytes, int64_t *used);
    bool host;         /* arrays are the host's own: put and get could be memcpy */
    int64_t act_size;  /* bytes of an activation */
    int64_t xent_rows; /* rows of logits that xent works on at a time */
    /* Rows of `each` bytes to the host, or NULL: taken one by one by any thread when they are there, which they need not
     * be when this is called. false: nothing was done. */
    bool (*take)(struct hl_pool *, const void *from, int64_t each, int64_t n,
                 void (*row)(void *ctx, int64_t i, const void *bytes), void *ctx);
};

#define HL_OPS_MEMBER(name, arg) void (*name)(struct hl_pool *, const struct arg *);
struct hl_ops {
    const char *name;
    const struct hl_memory *mem;
    HL_OPS_LIST(HL_OPS_MEMBER)
    /* several ops in one, NULL where there is none: a decoded token; both norms of one x (one dx, written); the
     * convolution and the norms of its y, whose y, dy and r need not be written (rms NULL: the L2 norm alone) */
    bool (*decode)(struct hl_pool *,
                   const struct hl_decode *); /* false: this device cannot, nothing was done */
    bool (*decode_many)(struct hl_pool *, const struct hl_decode *);
    void (*top)(struct hl_pool *, const struct hl_top *);
    void (*twonorm_forward)(struct hl_pool *, const struct hl_l2norm *, const struct hl_rmsnorm *);
    void (*twonorm_backward)(struct hl_pool *, const struct hl_l2norm *, const struct hl_rmsnorm *);
    void (*convnorm_forward)(struct hl_pool *, const struct hl_conv *, const struct hl_l2norm *,
                             const struct hl_rmsnorm *rms);
    void (*convnorm_backward)(struct hl_pool *, const struct hl_conv *, const struct hl_l2norm *,
                              const struct hl_rmsnorm *rms);
};
#undef HL_OPS_MEMBER

/* "cpu" or NULL: the fastest this processor runs; "cpu-ref": the plain reference, which defines what is
 * correct; "cpu-base", "cpu-avx2", "cpu-avx512": one instruction set. NULL: unknown, or not on this machine. */
const struct hl_ops *hl_ops_named(const char *backend);
/* "cuda" where there is a device, else "cpu". */
const char *hl_backend_best(void);
/* The table of a backend and the pool it works with (on success yours: hl_pool_free). "cuda": the first GPU,
 * "cuda:1" the second; "cuda-f32": with float activations, for checking. */
hola_status hl_backend_open(const char *backend, int threads, const struct hl_ops **ops,
                            struct hl_pool **pool);

/* The sources of an op are compiled once per backend with -DHL_ISA=ref|base|avx2|avx512, and
 * HL_OP(gdn_forward) names that copy's function: hl_avx2_gdn_forward. */
#ifdef HL_ISA
#define HL_PASTE(isa, name) hl_##isa##_##name
#define HL_PASTE_VALUE(isa, name) HL_PASTE(isa, name)
#define HL_OP(name) HL_PASTE_VALUE(HL_ISA, name)
#define HL_OPS_DECLARE(name, arg) void HL_OP(name)(struct hl_pool *, const struct arg *);
HL_OPS_LIST(HL_OPS_DECLARE)
#undef HL_OPS_DECLARE
#endif

#endif
