/* gla_cuda.cuh -- shared by the kernels of gated linear attention. GSA uses them too (gsa_cuda.cu), as its two halves
 * are GLA with different arrays; hence the views instead of struct hl_gla.
 *
 * The chunked form (docs/math.md, "Decay per channel") is
 *     gla_prep      every chunk at once: the operands, which include the decays
 *     gla_walk      the chunks of a segment one after another: states, with or without the outputs
 *     gla_gradient  every chunk at once: all gradients, from the states and their gradients
 * Operands are passed on in scratch memory, as tiles of 64 x 64 swizzled as in shared memory (wgmma.cuh), rows past a
 * chunk's end being 0: reading one takes a single bulk copy. */
#ifndef HL_GLA_CUDA_CUH
#define HL_GLA_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/wgmma.cuh"

enum { CHUNK = HL_CHUNK, TILE = CHUNK * 64 };

/* q, k, v, dout: row strides in ld_.., heads adjacent */
struct gla_view {
    const struct hl_rows *rows;
    int64_t H, HK, K, V;
    const act *q, *k, *v; /* k NULL: 1 - exp(g) */
    int64_t ld_q, ld_k, ld_v;
    const float *g; /* [T][HK][K] */
    float scale;
    act *out; /* [T][H][V] */
    int64_t S_off;
    bool trans;        /* the session's state is [V][K] */
    const act *dout;   /* [T][H][V] */
    act *dq, *dk, *dv; /* dq, dk of ld_q, ld_k, dv of ld_v */
    float *dg;
    const float *h0, *dht; /* [segs][HK][K][V], for gradients; NULL: empty initial states, final ones without a
                            * gradient */
    float *dh0;            /* NULL: not wanted */
};
static inline struct gla_view gla_view_of(const struct hl_gla *a) {
    struct gla_view x = {a->rows, a->H, a->HK, a->K, a->V, (const act *)a->q, (const act *)a->k, (const act *)a->v};
    x.ld_q = a->ld_q ? a->ld_q : a->H * a->K, x.ld_k = a->ld_k ? a->ld_k : a->HK * a->K;
    x.ld_v = a->ld_v ? a->ld_v : a->HK * a->V;
    x.g = a->g, x.scale = a->scale, x.out = (act *)a->out, x.S_off = a->S_off;
    x.dout = (const act *)a->dout, x.dq = (act *)a->dq, x.dk = (act *)a->dk, x.dv = (act *)a->dv, x.dg = a->dg;
    x.h0 = a->h0, x.dht = a->dht, x.dh0 = a->dh0;
    return x;
}

#ifndef HL_CUDA_F32
/* Outputs of gla_prep, per chunk and head; G: cumulative log decays in the chunk. NULL: not wanted. */
struct gla_operands {
    bf16 *qe;     /* [chunks][H][K/64] tiles: scale q exp(G) */
    bf16 *ke;     /* [chunks][H][K/64] tiles: k exp(G_last - G) */
    bf16 *A;      /* [chunks][H] tiles: scale sum_c q_ic k_jc exp(G_ic - G_jc), 0 above the diagonal */
    float *decay; /* [chunks][H][K]: exp(G_last) */
};
/* The states before every chunk, or the gradients of those after it: [chunks][H][V/64][K/64] tiles with rows of V. */
struct gla_walk {
    const bf16 *x, *y; /* S = decay S + x^T y; x: tiles, ke or qe; y: rows of v or dout */
    int64_t ld_y;
    bf16 *h;           /* NULL: the states are not stored */
    bool reverse;      /* from the last chunk to the first */
    const float *from; /* [segs][H][K][V]: initial states, NULL: empty; */
    float *to;         /* and final states, NULL: not wanted */
};
#endif

extern "C" {
void HL_OP(gla_run_step)(struct hl_backend *backend, const struct gla_view *a);
void HL_OP(gla_run_plain)(struct hl_backend *backend, const struct gla_view *a, bool sessions);
/* only dq, in float, [T][H][K], from sessions' states */
void HL_OP(gla_plain_queries)(struct hl_backend *backend, const struct gla_view *a, float *dq);
/* all gradients; dG: scratch memory, [T][HK][K], then [segs][HK][K] if dht is given. dq and dk may be NULL; they go to
 * dq_float, [T][H][K], and dk_float, [T][HK][K], if those are not NULL. */
void HL_OP(gla_run_plain_back)(struct hl_backend *backend, const struct gla_view *a, float *dG, float *dq_float,
                               float *dk_float);
bool HL_OP(gla_step_fits)(const struct gla_view *a);
#ifndef HL_CUDA_F32
bool HL_OP(gla_chunk_fits)(struct hl_cuda *c, const struct gla_view *a);
void HL_OP(gla_prep)(struct hl_cuda *c, const struct gla_view *a, const struct gla_operands *o);
/* bytes of scratch memory needed by the walk: the states between the splits of long segments */
int64_t HL_OP(gla_walk_scratch)(const struct gla_view *a);
/* the outputs; sessions: their states are read and written */
void HL_OP(gla_walk_out)(struct hl_cuda *c, const struct gla_view *a, const struct gla_operands *o, bool sessions,
                         float *scratch);
/* only the states: one walk, or two at the same time. sessions: their states are read and written (by the first) */
void HL_OP(gla_walk_states)(struct hl_cuda *c, const struct gla_view *a, const struct gla_operands *o,
                            const struct gla_walk *w, int walks, bool sessions, float *scratch);
/* all gradients. add: to dg; softmax: q is one, and dq becomes the gradient of its logits (both: only without k) */
void HL_OP(gla_gradient)(struct hl_cuda *c, const struct gla_view *a, const bf16 *ke, const bf16 *h, const bf16 *dh,
                         bool add, bool softmax);
/* the states, their gradients and the gradients, from h0 and dht; and out as well, if it is not NULL */
int64_t HL_OP(gla_chunk_back_scratch)(const struct gla_view *a);
void HL_OP(gla_chunk_back)(struct hl_cuda *c, const struct gla_view *a, char *scratch, bool add, bool softmax);
#endif
}

/* Takes `bytes` of scratch memory, rounded up to 256. From NULL on it only counts. */
static inline void *gla_carve(char **scratch, int64_t bytes) {
    void *p = *scratch;
    *scratch += (bytes + 255) / 256 * 256;
    return p;
}

#endif
