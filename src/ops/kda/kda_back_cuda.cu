/* kda_back_cuda.cu -- the backward pass of KDA on a GPU (kda_back_cuda.cuh): scratch memory, the two variants, and the
 * sum over a key head's value heads. */
#include "ops/cuda_ops.cuh"
#include "ops/kda/kda_back_cuda.cuh"

static bool chunked(struct hl_cuda *c, int64_t K, int64_t V) {
#ifndef HL_CUDA_F32
    return HL_OP(kda_scan_fits)(c, K, V) && HL_OP(kda_back_fits)(c, K, V);
#else
    return (void)c, (void)K, (void)V, false;
#endif
}
#ifndef HL_CUDA_F32
extern "C" int64_t hl_cuda_kda_kept(struct hl_backend *backend, int64_t K, int64_t V) {
    return chunked(hl_cuda_of(backend), K, V) ? kda_tiles_bytes(K) : 0;
}
#endif
/* Lays out the scratch memory; returns its end. */
static char *carve(struct kda_back *a, const struct hl_kda *x, bool chunks, char *p) {
    const int64_t heads = a->chunks * a->HV, KV = (int64_t)a->K * a->V, own = a->T * a->HV * a->K;
    if (chunks) {
        a->tiles = x->tiles ? x->tiles : gdn_carve(&p, heads * kda_tiles_bytes(a->K));
        a->h = gdn_carve(&p, heads * KV * 2);
        a->dh = gdn_carve(&p, heads * KV * 2);
        a->X2 = gdn_carve(&p, heads * HL_CHUNK * a->V * 2);
    } else {
        a->h = gdn_carve(&p, heads * KV * 4);
        a->plain = (float *)gdn_carve(&p, a->segs * a->HV * (HL_CHUNK + 1) * KV * 4);
    }
    a->dq_head = a->group > 1 ? (act *)gdn_carve(&p, own * (int64_t)sizeof(act)) : (act *)x->dq;
    a->dk_head = a->group > 1 ? (act *)gdn_carve(&p, own * (int64_t)sizeof(act)) : (act *)x->dk;
    return p;
}

extern "C" void HL_OP(kda_backward)(struct hl_backend *backend, const struct hl_kda *x) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct hl_dev_rows *rows = x->rows->dev;
    const bool chunks = chunked(c, x->K, x->V);
    struct kda_back a = {};
    HL_ASSERT(x->HV % x->H == 0 && x->v_new && x->A);
    if (x->rows->T == 0) return;
    a.T = x->rows->T, a.segs = x->rows->n, a.chunks = rows->chunks;
    a.H = (int)x->H, a.HV = (int)x->HV, a.K = (int)x->K, a.V = (int)x->V, a.group = a.HV / a.H;
    a.q = (const act *)x->q, a.k = (const act *)x->k, a.v = (const act *)x->v;
    a.dout = (const act *)x->dout, a.v_new = (const act *)x->v_new, a.A = (const act *)x->A;
    a.h0 = x->h0, a.dht = x->dht, a.dh0 = x->dh0;
    a.g = x->g, a.beta = x->beta, a.dv = (act *)x->dv, a.dg = x->dg, a.dbeta = x->dbeta;
    a.seg = rows->seg, a.chunk = rows->chunk, a.chunk_first = rows->chunk_first;
    char *scratch = (char *)hl_cuda_scratch(c, carve(&a, x, chunks, NULL) - (char *)NULL);
    if (!scratch) return;
    carve(&a, x, chunks, scratch);
#ifndef HL_CUDA_F32
    if (chunks) {
        if (!x->tiles) HL_OP(kda_prep)(backend, x, a.tiles, NULL);
        HL_OP(kda_back_states)(c, &a);
        HL_OP(kda_back_scan)(c, &a);
        HL_OP(kda_back_chunks)(c, &a);
    }
#endif
    if (!chunks) HL_OP(kda_back_plain)(c, &a);
    if (a.group == 1) return;
    HL_OP(gdn_sum_heads)(c, a.dq_head, (act *)x->dq, a.T * a.H * a.K, a.K, a.group);
    HL_OP(gdn_sum_heads)(c, a.dk_head, (act *)x->dk, a.T * a.H * a.K, a.K, a.group);
}
