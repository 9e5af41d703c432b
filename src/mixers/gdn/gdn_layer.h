/* gdn_layer.h -- a layer's delta rule, with a decay per head or per channel (kda): shared by Gated DeltaNet, DeltaNet,
 * HOLA and KDA. */
#ifndef HL_GDN_LAYER_H
#define HL_GDN_LAYER_H
#include "mixers/exact_memory.h"
#include "mixers/qkv.h"

enum gdn_tensor { /* in file order */
                  Q_PROJ,
                  K_PROJ,
                  V_PROJ,
                  F_DOWN, /* kda: low-rank projections of raw decay and output gate, completed by F_UP and G_UP */
                  G_DOWN,
                  A_PROJ, /* raw decay; none in delta_net and kda */
                  B_PROJ, /* raw write strength; none without use_beta */
                  G_PROJ, /* output gate, with use_gate */
                  F_UP,
                  G_UP,
                  G_BIAS,
                  O_PROJ,
                  Q_CONV,
                  K_CONV,
                  V_CONV,
                  A_LOG,
                  DT_BIAS,
                  O_NORM,
                  MEMORY, /* from here on: the exact memory */
                  GDN_TENSORS = MEMORY + HL_MEMORY_TENSORS
};
enum gdn_part { STATE_S, TAIL_Q, TAIL_K, TAIL_V, STATE_MEMORY };

struct gdn_dims {
    int64_t d, H, HV, K, V, qk, vv; /* hidden size; key and value heads and their sizes; H K, HV V */
    int64_t width[3];               /* of q, k, v: qk, qk, vv */
    int64_t low;                    /* kda: channels of F_DOWN and G_DOWN; 0: not kda */
    int64_t decays;                 /* log decays per value head: 0, 1, or K with kda */
    bool beta, gated, memory, rms;
};
struct gdn_dims hl_gdn_dims(const hola_config *c);

struct gdn_acts {
    /* Training on a device: one row holds a token's q0, k0, v0, a, b, z, in the order of their weights, and another
     * their gradients: one product computes them, one reads them. */
    void *row;
    void *q0, *k0, *v0; /* projections, before the convolution */
    void *f0, *g0;      /* kda: outputs of F_DOWN and G_DOWN */
    void *a, *b;        /* raw decay and write strength; a and z of kda are separate arrays */
    void *z;            /* output gate */
    void *q1, *k1, *v1; /* after convolution and SiLU */
    void *q, *k;        /* L2-normalised, for the state */
    real *r_q, *r_k;
    real *beta, *g; /* write strength, log decay */
    real *m;        /* write magnitude */
    void *v_new, *A;
    real *S;     /* [chunks][HV][K][V]; NULL on a device */
    void *tiles; /* kda on a device: operands of the chunks; NULL under --recompute */
    void *o;     /* state read + gated read of the exact memory */
    real *r_o;
    void *y; /* output norm and gate */
    struct hl_memory_acts memory;
};
struct gdn_grads {
    void *row;
    void *dq0, *dk0, *dv0, *df0, *dg0, *da, *db, *dz;
    void *dy, *dout;
    void *dq, *dk, *dv, *dq1, *dk1;
    real *dg, *dbeta;
    struct hl_memory_grads memory;
};

/* A layer in a pass, with its buffers resolved. */
struct gdn_layer {
    const struct hl_layer *l;
    struct gdn_dims s;
    struct gdn_acts *a;
    struct gdn_grads *d;
    int64_t joint; /* numbers per joint row of all projections; 0: separate arrays */
    struct hl_exact_memory memory;
};
struct gdn_layer hl_gdn_open(const struct hl_layer *l);
/* All projections of the layer's input. */
struct hl_linear hl_gdn_projections(const struct gdn_layer *g);
/* Short convolution of q, k, v; norms of q and k. */
void hl_gdn_convolve_and_norm(const struct gdn_layer *g);
void hl_gdn_convolve_and_norm_backward(const struct gdn_layer *g);
/* RMSNorm of the head outputs, times the gate, if any. */
struct hl_rmsnorm hl_gdn_output_norm(const struct gdn_layer *g);

/* Members of struct hl_mixer that they share. */
void hl_gdn_recompute(const struct hl_layer *l);
void hl_gdn_memory(const struct hl_layer *l, struct hl_exact_memory *out);
void hl_gdn_tensors(const hola_config *c, struct hl_tensor_spec *out);
int hl_gdn_state(const hola_config *c, struct hl_state_part *out);
void hl_gdn_buffers(const struct hl_buffers_for *f, struct hl_buffers *acts, struct hl_buffers *grads);
/* Bytes per worker: the larger need of rule and memory. */
int64_t hl_gdn_layer_scratch(const hola_config *c, int64_t rule);
/* num_v_heads is a multiple of num_heads. */
hola_status hl_gdn_check_heads(const hola_config *c, const char *where);
/* Heads of 128, as many as fill hidden_size. */
void hl_gdn_heads_of_128(hola_config *c);
int64_t hl_gdn_joint_row(const struct gdn_dims *s, enum hl_pass pass, bool host);

/* gdn_decode.c: the fused decoders' view; for a layer, all but its input projections. */
void hl_gdn_decode_sizes(const struct hl_layer *l, struct hl_decode *out);
void hl_gdn_decode_common(const struct hl_layer *l, struct hl_decode_layer *out);
bool hl_gdn_decode_layer(const struct hl_layer *l, struct hl_decode_layer *out);

#endif
