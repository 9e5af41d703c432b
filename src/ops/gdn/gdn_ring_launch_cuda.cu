/* gdn_ring_launch_cuda.cu -- the chunked delta rule with the walk of gdn_ring_cuda.cu: gdn_prep for all chunks at
 * once, then the walk from chunk to chunk, one block for a segment, or a part of it, a value head and 64 or
 * 128 columns of V. Floor of the walk: q, k, v, A, P read once, out written once. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_walk_cuda.cuh"

#ifndef HL_CUDA_F32

/* scratch: takes `bytes` of it, on 256 */
static void *take(char **room, int64_t bytes) {
    void *p = *room;
    *room += (bytes + 255) / 256 * 256;
    return p;
}
/* Lays the scratch out from `room`; returns its end, so that from 0 on it counts. */
static char *carve(const struct hl_gdn *a, int64_t tiles, char *room, struct gdn_prep *p, struct gdn_walk *x) {
    const int64_t rows = a->rows->T * a->HV, ends = x->parts > 1 ? x->segs * a->HV * x->parts * a->K : 0;
    p->P = (bf16 *)take(&room, rows * CHUNK * 2);
    p->A = a->A ? (bf16 *)a->A : (bf16 *)take(&room, rows * CHUNK * 2);
    p->gates = (float *)take(&room, a->rows->dev->chunks * a->HV * GATES * 4);
    x->sums = tiles > 1 ? (float *)take(&room, tiles * rows * 4) : NULL;
    x->e.ends = (float *)take(&room, ends * a->V * 4);
    x->e.moves = (float *)take(&room, ends * a->K * 4);
    return room;
}
static void walk(struct hl_backend *backend, const struct hl_gdn *a, int parts, int W) {
    const int64_t tiles = a->V / (64 * W);
    struct hl_cuda *c = hl_cuda_of(backend);
    struct gdn_prep p = {};
    struct gdn_walk x = {(const bf16 *)a->q, (const bf16 *)a->k, (const bf16 *)a->v};
    x.segs = a->rows->n, x.parts = parts;
    char *room = (char *)hl_cuda_scratch(c, carve(a, tiles, NULL, &p, &x) - (char *)NULL);
    if (!room) return;
    carve(a, tiles, room, &p, &x);
    HL_OP(gdn_prep)(backend, a, &p);
    x.A = p.A, x.P = p.P, x.gates = p.gates;
    x.out = (bf16 *)a->out, x.v_new = (bf16 *)a->v_new, x.m = a->m;
    x.seg = a->rows->dev->seg, x.chunk_first = a->rows->dev->chunk_first;
    x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V;
    x.e.seg = x.seg, x.e.segs = x.segs, x.e.S_off = a->S_off, x.e.HV = x.HV, x.e.V = x.V, x.e.parts = parts;
    if (parts > 1) HL_OP(gdn_split)(c, &x, a->K);
    HL_OP(gdn_ring)(c, &x, a->K, W);
    if (tiles > 1) HL_OP(gdn_scores)(backend, a->m, x.sums, tiles, a->rows->T * a->HV);
}

#endif

/* Where there are enough segments to keep the chip busy: wide tiles while they do, as q and k are read once
 * per tile. */
extern "C" bool HL_OP(gdn_many)(struct hl_backend *backend, const struct hl_gdn *a) {
#ifdef HL_CUDA_F32
    return false;
#else
    const int64_t tiles = a->rows->n * a->HV * (a->V / 64);
    if (a->K == 64 || tiles < GDN_FULL || !HL_OP(gdn_ring_fits)(hl_cuda_of(backend), a->K, a->V)) return false;
    walk(backend, a, 1, a->V % 128 || tiles / 2 < GDN_FULL ? 1 : 2);
    return true;
#endif
}

/* As many parts as keep the chip busy, where there are enough chunks: walking them twice and joining them
 * takes as long as LEAST of gdn_scan's, which is not for K = 64. */
extern "C" bool HL_OP(gdn_long)(struct hl_backend *backend, const struct hl_gdn *a) {
#ifdef HL_CUDA_F32
    return false;
#else
    enum { LEAST = 112 };
    const int64_t blocks = a->rows->n * a->HV * (a->V / 64), chunks = hl_pieces(a->rows->dev->longest, CHUNK);
    if (!blocks || !HL_OP(gdn_ring_fits)(hl_cuda_of(backend), a->K, a->V)) return false;
    const int parts = gdn_parts(GDN_BUSY / blocks, chunks);
    if (parts == 1 || (a->K != 64 && chunks < LEAST)) return false;
    walk(backend, a, parts, 1);
    return true;
#endif
}
