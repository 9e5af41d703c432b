/* qkv.h -- q, k and v of gla and gsa between their projections and the recurrence: an optional short convolution with
 * SiLU, then an optional feature map. */
#ifndef HL_QKV_H
#define HL_QKV_H
#include "mixers/mixer.h"

struct hl_qkv_acts { /* of q, k, v; NULL where there is no such step */
    void *projected[3], *convolved[3], *mapped[3];
};
struct hl_qkv_grads {
    void *dprojected[3], *d[3]; /* d: of what the recurrence reads; NULL where that is the projection */
};

struct hl_qkv {
    const struct hl_layer *l;
    int64_t width[3];
    hola_feature_map map[3];
    int conv_tensor, conv_state; /* the first of three */
    int64_t joint;               /* row stride of the projections; 0: dense */
    const struct hl_qkv_acts *a;
    const struct hl_qkv_grads *d; /* NULL in a forward pass */
};

/* What the recurrence reads, its gradient, and their row stride. */
struct hl_qkv_end {
    void *x, *dx;
    int64_t ld;
};
struct hl_qkv_end hl_qkv_end(const struct hl_qkv *y, int i);
void hl_qkv_forward(const struct hl_qkv *y);
void hl_qkv_backward(const struct hl_qkv *y);

/* The convolutions' tensors and states, and the buffers behind the projections. */
void hl_qkv_tensors(const hola_config *c, const int64_t width[3], struct hl_tensor_spec *out);
void hl_qkv_state(const hola_config *c, const int64_t width[3], struct hl_state_part *out);
void hl_qkv_buffers(const struct hl_buffers_for *f, const int64_t width[3], const hola_feature_map map[3],
                    struct hl_buffers *acts, size_t acts_field, struct hl_buffers *grads, size_t grads_field);

/* What gla and gsa check: num_kv_heads divides num_heads. */
hola_status hl_qkv_check(const hola_config *c, const char *where);

#endif
