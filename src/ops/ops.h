/* ops.h -- the list of all ops, and the table of functions that every backend fills.
 *
 * An op has a header in its folder, with the equation, the shapes and one struct of arguments for forward and backward;
 * then x_ref.c, plain loops that define what is correct, x_cpu.c and x_cuda.cu. Activations are void: `real` on the
 * CPU, bf16 or float on a device. Memory beside its arguments an op takes from the backend: a worker's scratch memory
 * on the CPU, hl_cuda_scratch on a device. */
#ifndef HL_OPS_H
#define HL_OPS_H
#include "core/pool.h"
#include "ops/adamw/adamw.h"
#include "ops/attention/attention.h"
#include "ops/bias/bias.h"
#include "ops/cache/cache.h"
#include "ops/conv/conv.h"
#include "ops/decay/decay.h"
#include "ops/embed/embed.h"
#include "ops/feature_map/feature_map.h"
#include "ops/gate/gate.h"
#include "ops/gdn/gdn.h"
#include "ops/gla/gla.h"
#include "ops/gsa/gsa.h"
#include "ops/kda/kda.h"
#include "ops/linear/fp8.h"
#include "ops/linear/linear.h"
#include "ops/lte/lte.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"
#include "ops/topk/topk.h"
#include "ops/xent/xent.h"

/* X(name, struct, NEEDED | OPTIONAL, where it is implemented).
 * Where: ALL backends; HOST: all CPU backends; REF: the reference alone; PLAIN: the reference and CUDA; DEVICE: CUDA;
 * BF16: CUDA with bf16 activations. A backend's table holds NULL where it has no implementation; a CPU backend then
 * takes the reference's. NEEDED ops exist on all backends: call them. OPTIONAL ones may be missing: test the pointer
 * and do without, as with a fused form, or refuse to run (hl_backend_require), as with an op that a model cannot do
 * without. A new op begins as OPTIONAL, REF. */
#define HL_OPS_LIST(X)                                   \
    X(linear_forward, hl_linear, NEEDED, ALL)            \
    X(linear_backward, hl_linear, NEEDED, ALL)           \
    X(fp8_quantise, hl_fp8_quantise, NEEDED, PLAIN)      \
    X(rmsnorm_forward, hl_rmsnorm, NEEDED, ALL)          \
    X(rmsnorm_backward, hl_rmsnorm, NEEDED, ALL)         \
    X(l2norm_forward, hl_l2norm, NEEDED, ALL)            \
    X(l2norm_backward, hl_l2norm, NEEDED, ALL)           \
    X(conv_forward, hl_conv, NEEDED, ALL)                \
    X(conv_backward, hl_conv, NEEDED, ALL)               \
    X(gate_forward, hl_gate, NEEDED, ALL)                \
    X(gate_backward, hl_gate, NEEDED, ALL)               \
    X(gdn_forward, hl_gdn, NEEDED, ALL)                  \
    X(gdn_backward, hl_gdn, NEEDED, ALL)                 \
    X(cache_score, hl_score, NEEDED, ALL)                \
    X(cache_forward, hl_cache, NEEDED, ALL)              \
    X(cache_backward, hl_cache, NEEDED, ALL)             \
    X(swiglu_forward, hl_swiglu, NEEDED, ALL)            \
    X(swiglu_backward, hl_swiglu, NEEDED, ALL)           \
    X(embed_forward, hl_embed, NEEDED, ALL)              \
    X(embed_backward, hl_embed, NEEDED, ALL)             \
    X(xent, hl_xent, NEEDED, ALL)                        \
    X(adamw, hl_adamw, NEEDED, ALL)                      \
    X(sumsq, hl_sumsq, NEEDED, ALL)                      \
    X(topk, hl_topk, NEEDED, ALL)                        \
    X(feature_map_forward, hl_feature_map, NEEDED, ALL)  \
    X(feature_map_backward, hl_feature_map, NEEDED, ALL) \
    X(logsigmoid_forward, hl_logsigmoid, NEEDED, ALL)    \
    X(logsigmoid_backward, hl_logsigmoid, NEEDED, ALL)   \
    X(kda_gate_forward, hl_kda_gate, NEEDED, ALL)        \
    X(kda_gate_backward, hl_kda_gate, NEEDED, ALL)       \
    X(kda_forward, hl_kda, NEEDED, ALL)                  \
    X(kda_backward, hl_kda, NEEDED, ALL)                 \
    X(gla_forward, hl_gla, NEEDED, ALL)                  \
    X(gla_backward, hl_gla, NEEDED, ALL)                 \
    X(gsa_forward, hl_gsa, NEEDED, ALL)                  \
    X(gsa_backward, hl_gsa, NEEDED, ALL)                 \
    X(rope_forward, hl_rope, NEEDED, ALL)                \
    X(rope_backward, hl_rope, NEEDED, ALL)               \
    X(attention_forward, hl_attention, NEEDED, ALL)      \
    X(attention_backward, hl_attention, NEEDED, ALL)     \
    X(bias_forward, hl_bias, NEEDED, ALL)                \
    X(bias_backward, hl_bias, NEEDED, ALL)               \
    X(lte_forward, hl_lte, NEEDED, ALL)                  \
    X(lte_backward, hl_lte, NEEDED, ALL)                 \
    X(twonorm_forward, hl_twonorm, OPTIONAL, DEVICE)     \
    X(twonorm_backward, hl_twonorm, OPTIONAL, DEVICE)    \
    X(convnorm_forward, hl_convnorm, OPTIONAL, DEVICE)   \
    X(convnorm_backward, hl_convnorm, OPTIONAL, DEVICE)  \
    X(gate_up_backward, hl_gate_up, OPTIONAL, BF16)      \
    X(down_forward, hl_down, OPTIONAL, BF16)             \
    X(down_backward, hl_down, OPTIONAL, BF16)            \
    X(decode_one, hl_decode, OPTIONAL, BF16)             \
    X(decode_batch, hl_decode, OPTIONAL, BF16)

struct hl_backend; /* backend/backend.h */
struct hl_decode;  /* fused/decode_one/decode_one.h */
/* What ops use of a backend: the host's threads; a copy to the host, completed on return. */
struct hl_pool *hl_backend_pool(const struct hl_backend *b);
void hl_backend_get(struct hl_backend *b, void *host, const void *from, int64_t bytes);
#define HL_OPS_MEMBER(name, arg, need, where) void (*name)(struct hl_backend *, const struct arg *);
struct hl_ops {
    const char *name;
    HL_OPS_LIST(HL_OPS_MEMBER)
};
#undef HL_OPS_MEMBER

/* ---- for the sources of ops ---- */

/* A source is compiled once per backend, with -DHL_ISA=ref|base|avx2|avx512|cuda|cuda_f32, and HL_OP(gdn_forward) is
 * the name of that copy's function: hl_avx2_gdn_forward. */
#ifdef HL_ISA
#define HL_PASTE(isa, name) hl_##isa##_##name
#define HL_PASTE_VALUE(isa, name) HL_PASTE(isa, name)
#define HL_OP(name) HL_PASTE_VALUE(HL_ISA, name)
#define HL_OPS_DECLARE(name, arg, need, where) void HL_OP(name)(struct hl_backend *, const struct arg *);
HL_OPS_LIST(HL_OPS_DECLARE)
#undef HL_OPS_DECLARE
#endif

#endif
