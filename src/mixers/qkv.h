/* qkv.h -- shared handling of q, k and v: their tensors and states, and, for gla and gsa, the sizes and the path from
 * the projections to the recurrence: an optional short convolution with SiLU, then an optional feature map. */
#ifndef HL_QKV_H
#define HL_QKV_H
#include "mixers/mixer.h"

/* ---- tables; width: numbers per row of q, k and v ---- */

/* q_proj, k_proj and v_proj. */
void hl_qkv_projection_tensors(int64_t hidden_size, const int64_t width[3], struct hl_tensor_spec *out);
/* The convolution weights, if any, and the rows before the next token. */
void hl_qkv_conv_tensors(const hola_config *c, const int64_t width[3], struct hl_tensor_spec *out);
void hl_qkv_conv_state(const hola_config *c, const int64_t width[3], struct hl_state_part *out);
/* The check of mixers with fewer key heads than query heads: num_kv_heads divides num_heads. */
hola_status hl_qkv_check(const hola_config *c, const char *where);

/* ---- gla and gsa ---- */

struct hl_qkv_dims {
    int64_t d, H, HK, K, V; /* hidden size; query heads; key and value heads; d_k, d_v */
    int64_t width[3], out;  /* of q, k, v; of the head outputs */
    hola_feature_map map[3];
};
/* map: feature_map of the config for q and k, none for v. */
struct hl_qkv_dims hl_qkv_dims(const hola_config *c);

struct hl_qkv_acts { /* of q, k, v; NULL where the step is absent */
    void *projected[3], *convolved[3], *mapped[3];
};
struct hl_qkv_grads {
    void *dprojected[3], *d[3]; /* d: of the recurrence's inputs; NULL if they are the projections */
};
/* The buffers after the projections. */
void hl_qkv_buffers(const struct hl_buffers_for *f, const struct hl_qkv_dims *s, struct hl_buffers *acts,
                    size_t acts_field, struct hl_buffers *grads, size_t grads_field);

/* q, k and v of a layer in a pass. */
struct hl_qkv {
    const struct hl_layer *l;
    struct hl_qkv_dims s;
    int projection, conv_tensor, conv_state; /* the first of three each */
    int64_t joint;                           /* row stride of the projections; 0: dense */
    const struct hl_qkv_acts *a;
    const struct hl_qkv_grads *d; /* NULL in a forward pass */
};
/* The projections of q, k and v; the mixer adds those that share their input. */
struct hl_linear hl_qkv_projections(const struct hl_qkv *y);
void hl_qkv_forward(const struct hl_qkv *y);
void hl_qkv_backward(const struct hl_qkv *y);
/* The inputs of the recurrence, their gradients, and the row stride. */
struct hl_qkv_end {
    void *x, *dx;
    int64_t ld;
};
struct hl_qkv_end hl_qkv_end(const struct hl_qkv *y, int i);

#endif
