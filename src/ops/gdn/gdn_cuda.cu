/* gdn_cuda.cu -- the forward delta rule on a GPU (gdn.h): the table of its variants, of which the first that fits a
 * batch is used. The choice depends on the shapes and the architecture alone, so the same batch gives the same bits on
 * every GPU of a model. GPUs before Hopper use `step` and `plain`. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_ring_cuda.cuh"
#include "ops/gdn/gdn_step_cuda.cuh"

static bool step_fits(struct hl_cuda *, const struct hl_gdn *a) {
    if (!gdn_step_knows(a->K, a->V) || a->A || a->v_new || a->rows->dev->longest > GDN_STEP_ROWS) return false;
    if (a->rows->on_device) return a->rows->states && !a->rows->ragged;
    for (int64_t s = 0; s < a->rows->n; s++)
        if (!a->rows->seg[s].state || (uintptr_t)(a->rows->seg[s].state + a->S_off) % 16) return false;
    return true;
}
static bool any(struct hl_cuda *, const struct hl_gdn *) { return true; }

#ifndef HL_CUDA_F32
/* Thread blocks of a scan with 64 columns of V each. Below GDN_FULL most of the GPU is idle. */
static int64_t scan_blocks(const struct hl_gdn *a) { return a->rows->n * a->HV * (a->V / 64); }

static bool ring_split_fits(struct hl_cuda *c, const struct hl_gdn *a) {
    enum { LEAST = 112 }; /* chunks from which split scans and joining are faster than `scan` */
    const int64_t chunks = hl_pieces(a->rows->dev->longest, CHUNK), blocks = scan_blocks(a);
    return blocks > 0 && blocks < GDN_FULL && HL_OP(gdn_ring_fits)(c, a->K, a->V) && gdn_ring_plan_of(a).splits > 1 &&
           (a->K == 64 || chunks >= LEAST);
}
static bool scan_fits(struct hl_cuda *c, const struct hl_gdn *a) {
    return scan_blocks(a) < GDN_FULL && a->K != 64 && HL_OP(gdn_ring_fits)(c, a->K, a->V);
}
static bool ring_fits(struct hl_cuda *c, const struct hl_gdn *a) {
    return scan_blocks(a) >= GDN_FULL && a->K != 64 && HL_OP(gdn_ring_fits)(c, a->K, a->V);
}
static bool chunk_fits(struct hl_cuda *c, const struct hl_gdn *a) {
    return a->K == 64 && HL_OP(gdn_ring_fits)(c, a->K, a->V);
}
#endif

static const struct {
    struct hl_gdn_form form;
    bool (*fits)(struct hl_cuda *, const struct hl_gdn *);
    void (*run)(struct hl_backend *, const struct hl_gdn *);
} forms[] = {
    {{"step", "decoding: at most 8 tokens a session, every state is read and written once"},
     step_fits,
     HL_OP(gdn_run_step)},
#ifndef HL_CUDA_F32
    {{"ring_split", "few long segments: splits of a segment are scanned at the same time"},
     ring_split_fits,
     HL_OP(gdn_run_ring_split)},
    {{"scan", "few segments, too short to split: only the state is scanned, outputs follow for all chunks at once"},
     scan_fits,
     HL_OP(gdn_run_scan)},
    {{"ring", "enough segments to fill the chip: one scan that writes the outputs as well"},
     ring_fits,
     HL_OP(gdn_run_ring)},
    {{"chunk", "keys of 64: the state is small, and narrow tiles of V fill the chip"},
     chunk_fits,
     HL_OP(gdn_run_chunk)},
#endif
    {{"plain", "any head size, float activations and chips before Hopper: token by token"}, any, HL_OP(gdn_run_plain)},
};

static int form_of(struct hl_backend *backend, const struct hl_gdn *a) {
    int i = 0;
    while (!forms[i].fits(hl_cuda_of(backend), a)) i++; /* the last one fits any */
    return i;
}
extern "C" void HL_OP(gdn_forward)(struct hl_backend *backend, const struct hl_gdn *a) {
    struct hl_gdn x = *a;
    bool inside = false, states = false; /* blocks that end inside segments; sessions */
    HL_ASSERT(a->HV % a->H == 0 && !a->v_new == !a->A && a->rows->dev);
    for (int64_t n = 0; a->block_S && n < a->rows->n; n++) {
        inside = inside || hl_seg_blocks(&a->rows->seg[n], a->block) > 1;
        states = states || a->rows->seg[n].state;
    }
    if (a->block_S && !inside && states) x.v_new = x.A = NULL; /* sessions need them only for block_S */
    if (inside && states) HL_OP(gdn_keep_start)(backend, a);
    forms[form_of(backend, &x)].run(backend, &x);
    if (inside) HL_OP(gdn_block_states)(backend, a);
}
extern "C" struct hl_gdn_form HL_OP(gdn_form)(struct hl_backend *backend, const struct hl_gdn *a, bool backward) {
    return backward ? HL_OP(gdn_back_form)(hl_cuda_of(backend), a) : forms[form_of(backend, a)].form;
}
