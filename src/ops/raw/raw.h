/* raw.h -- the ops behind include/hola_ops.h, on a borrowed device (cuda/device.h). Arguments have been validated. Only
 * in CUDA builds; each op exists for bf16 and for float activations. */
#ifndef HL_RAW_H
#define HL_RAW_H
#include "hola_ops.h"

struct hl_backend;

#define HL_RAW_DECLARE(isa)                                                                           \
    void hl_##isa##_raw_gdn(struct hl_backend *b, const hola_gdn_args *a, bool backward);             \
    const char *hl_##isa##_raw_gdn_form(struct hl_backend *b, const hola_gdn_args *a, bool backward); \
    int64_t hl_##isa##_raw_gdn_kept(const hola_gdn_args *a);                                          \
    void hl_##isa##_raw_cache(struct hl_backend *b, const hola_cache_args *a, bool backward);         \
    int64_t hl_##isa##_raw_cache_kept(const hola_cache_args *a);                                      \
    void hl_##isa##_raw_kda(struct hl_backend *b, const hola_kda_args *a, bool backward);             \
    int64_t hl_##isa##_raw_kda_kept(const hola_kda_args *a);                                          \
    void hl_##isa##_raw_gla(struct hl_backend *b, const hola_gla_args *a, bool backward);             \
    void hl_##isa##_raw_attention(struct hl_backend *b, const hola_attention_args *a, bool backward);
HL_RAW_DECLARE(cuda)
HL_RAW_DECLARE(cuda_f32)
#undef HL_RAW_DECLARE
#endif
