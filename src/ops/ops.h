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
#include "ops/embed/embed.h"
#include "ops/gate/gate.h"
#include "ops/gdn/gdn.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/norm.h"
#include "ops/swiglu/swiglu.h"
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

#define HL_OPS_MEMBER(name, arg) void (*name)(struct hl_pool *, const struct arg *);
struct hl_ops {
    const char *name;
    HL_OPS_LIST(HL_OPS_MEMBER)
};
#undef HL_OPS_MEMBER

/* "cpu" or NULL: the fastest this processor runs; "cpu-ref": the plain reference, which defines what is
 * correct; "cpu-base", "cpu-avx2", "cpu-avx512": one instruction set. NULL: unknown, or not on this machine. */
const struct hl_ops *hl_ops_named(const char *backend);

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
