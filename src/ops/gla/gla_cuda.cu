/* gla_cuda.cu -- gated linear attention on a GPU (gla.h): which kernels a batch uses. The choice depends only on the
 * shapes and the chip's architecture.
 *     step    decoding: at most 8 tokens a session
 *     chunk   the chunked form: bf16, as many query as key heads, keys of 64 or 128, Hopper
 *     plain   anything: token by token */
#include "ops/gla/gla_cuda.cuh"

#ifndef HL_CUDA_F32
/* Lays out the outputs of gla_prep; returns their end. */
static char *carve(const struct gla_view *a, char *scratch, struct gla_operands *o, float **walk) {
    const int64_t heads = a->rows->dev->chunks * a->HK;
    o->qe = (bf16 *)gla_carve(&scratch, heads * CHUNK * a->K * 2);
    o->ke = (bf16 *)gla_carve(&scratch, heads * CHUNK * a->K * 2);
    o->A = (bf16 *)gla_carve(&scratch, heads * TILE * 2);
    o->decay = (float *)gla_carve(&scratch, heads * a->K * 4);
    *walk = (float *)gla_carve(&scratch, HL_OP(gla_walk_scratch)(a));
    return scratch;
}
static void run_chunks(struct hl_backend *backend, const struct gla_view *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct gla_operands o;
    float *walk;
    char *scratch = (char *)hl_cuda_scratch(c, carve(a, NULL, &o, &walk) - (char *)NULL);
    if (!scratch) return;
    carve(a, scratch, &o, &walk);
    HL_OP(gla_prep)(c, a, &o);
    HL_OP(gla_walk_out)(c, a, &o, true, walk);
}

/* the same for the backward pass */
struct back {
    struct gla_operands o;
    bf16 *h, *dh;
    float *walk;
};
static char *carve_back(const struct gla_view *a, char *scratch, struct back *b) {
    const int64_t heads = a->rows->dev->chunks * a->HK, states = heads * a->K * a->V * 2;
    b->o.qe = (bf16 *)gla_carve(&scratch, heads * CHUNK * a->K * 2);
    b->o.ke = (bf16 *)gla_carve(&scratch, heads * CHUNK * a->K * 2);
    b->o.A = a->out ? (bf16 *)gla_carve(&scratch, heads * TILE * 2) : NULL;
    b->o.decay = (float *)gla_carve(&scratch, heads * a->K * 4);
    b->h = (bf16 *)gla_carve(&scratch, states), b->dh = (bf16 *)gla_carve(&scratch, states);
    b->walk = (float *)gla_carve(&scratch, HL_OP(gla_walk_scratch)(a));
    return scratch;
}
extern "C" int64_t HL_OP(gla_chunk_back_scratch)(const struct gla_view *a) {
    struct back b;
    return carve_back(a, NULL, &b) - (char *)NULL;
}
extern "C" void HL_OP(gla_chunk_back)(struct hl_cuda *c, const struct gla_view *a, char *scratch, bool add,
                                      bool softmax) {
    struct back b;
    carve_back(a, scratch, &b);
    const struct gla_walk walks[2] = {{b.o.ke, a->v, a->ld_v, b.h, false, a->h0, NULL},
                                      {b.o.qe, a->dout, a->H * a->V, b.dh, true, a->dht, a->dh0}};
    HL_OP(gla_prep)(c, a, &b.o);
    HL_OP(gla_walk_states)(c, a, &b.o, walks, 2, false, b.walk);
    if (a->out) HL_OP(gla_walk_out)(c, a, &b.o, false, b.walk);
    HL_OP(gla_gradient)(c, a, b.o.ke, b.h, b.dh, add, softmax);
}
#endif

extern "C" void HL_OP(gla_forward)(struct hl_backend *backend, const struct hl_gla *a) {
    const struct gla_view x = gla_view_of(a);
    const bool launches = !hl_cuda_measuring(hl_cuda_of(backend)); /* these two need no scratch memory */
    HL_ASSERT(a->H % a->HK == 0 && a->rows->dev);
    if (a->rows->T == 0) return;
    if (HL_OP(gla_step_fits)(&x)) {
        if (launches) HL_OP(gla_run_step)(backend, &x);
    }
#ifndef HL_CUDA_F32
    else if (HL_OP(gla_chunk_fits)(hl_cuda_of(backend), &x))
        run_chunks(backend, &x);
#endif
    else if (launches) HL_OP(gla_run_plain)(backend, &x, true);
}
extern "C" void HL_OP(gla_backward)(struct hl_backend *backend, const struct hl_gla *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct gla_view x = gla_view_of(a);
    HL_ASSERT(a->H % a->HK == 0 && a->rows->dev);
    if (a->rows->T == 0) return;
    x.out = NULL;
#ifndef HL_CUDA_F32
    if (HL_OP(gla_chunk_fits)(c, &x)) {
        char *scratch = (char *)hl_cuda_scratch(c, HL_OP(gla_chunk_back_scratch)(&x));
        if (scratch) HL_OP(gla_chunk_back)(c, &x, scratch, false, false);
        return;
    }
#endif
    /* plus an end for each segment, even without dht: scratch size depends only on shapes */
    float *dG = (float *)hl_cuda_scratch(c, (a->rows->T + a->rows->n) * a->HK * a->K * (int64_t)sizeof(float));
    if (dG) HL_OP(gla_run_plain_back)(backend, &x, dG, NULL, NULL);
}
