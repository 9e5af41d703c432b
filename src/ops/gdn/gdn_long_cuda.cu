/* gdn_long_cuda.cu -- the chunked delta rule for few, long segments: gdn_prep for all chunks at once, then
 * the walk from chunk to chunk, one block for a part of a segment, a value head and 64 columns of V. Floor of
 * the walk: q, k, v, A, P read once, out written once. */
#include "cuda/limits.cuh"
#include "ops/gdn/gdn_walk_cuda.cuh"

#ifndef HL_CUDA_F32

template <int K, int W>
static __global__ void __launch_bounds__((W + 1) * GROUP, 1) walk_parts(const struct gdn_walk a) {
    walk_room<K, W, true> &x = *(walk_room<K, W, true> *)shared_tiles();
    const int tiles = a.V / (64 * W), group = group_of_warps(), tile = blockIdx.x % tiles;
    const int hv = blockIdx.x / tiles % a.HV, part = blockIdx.x / tiles / a.HV % a.parts,
              s = blockIdx.x / tiles / a.HV / a.parts;
    open_some();
    wait_for_others();
    let_others_start();
    struct way w = way_of(a, s, part, hv);
    w.tile = tile, w.col = tile * 64 * W;
    if (group == W) {
        registers_of_copier<K, W>();
        serve(x, a, w);
    } else {
        registers_of_walker<K, W>();
        const int64_t col = w.col + threadIdx.x / 32 * 16;
        float S[K / 8][4], *kept = kept_state(a.e, K, s, hv);
        state_in<K>(S, end_of(a.e, K, s, hv, (part + a.parts - 1) % a.parts) + col, a.V);
        walk_all(x, w, group, S);
        if (kept && part + 1 == a.parts) state_out<K>(kept + col, S, a.V);
    }
}

template <int K> static void launch_walk(struct hl_cuda *c, const struct gdn_walk *a) {
    launch_early(c, walk_parts<K, 1>, (unsigned)(a->segs * a->parts * a->HV * (a->V / 64)), 2 * GROUP,
                 sizeof(walk_room<K, 1, true>) + TILES_ROOM, *a);
}
static bool there_is_room(int64_t K) {
    const size_t room = K == 64    ? sizeof(walk_room<64, 1, true>)
                        : K == 128 ? sizeof(walk_room<128, 1, true>)
                                   : sizeof(walk_room<256, 1, true>);
    return room + TILES_ROOM <= (size_t)shared_limit();
}

/* scratch: takes `bytes` of it, on 256 */
static void *take(char **room, int64_t bytes) {
    void *p = *room;
    *room += (bytes + 255) / 256 * 256;
    return p;
}
/* Lays the scratch out from `room`; returns its end, so that from 0 on it counts. */
static char *carve(const struct hl_gdn *a, char *room, struct gdn_prep *p, struct gdn_walk *x) {
    const int64_t rows = a->rows->T * a->HV, ends = x->segs * a->HV * x->parts * a->K;
    p->P = (bf16 *)take(&room, rows * CHUNK * 2);
    p->A = a->A ? (bf16 *)a->A : (bf16 *)take(&room, rows * CHUNK * 2);
    p->gates = (float *)take(&room, a->rows->dev->chunks * a->HV * GATES * 4);
    x->sums = (float *)take(&room, a->V / 64 * rows * 4);
    x->e.ends = (float *)take(&room, ends * a->V * 4);
    x->e.moves = (float *)take(&room, ends * a->K * 4);
    return room;
}

#endif

/* As many parts as keep the chip busy, where there are enough chunks: walking them twice and joining them
 * takes as long as LEAST of gdn_scan's, which is not for K = 64. */
extern "C" bool HL_OP(gdn_long)(struct hl_pool *pool, const struct hl_gdn *a) {
#ifdef HL_CUDA_F32
    return false;
#else
    enum { LEAST = 112 };
    const int64_t K = a->K, blocks = a->rows->n * a->HV * (a->V / 64);
    const int64_t chunks = hl_pieces(a->rows->dev->longest, CHUNK);
    if (!blocks || (K != 64 && K != 128 && K != 256) || a->V % 64 || !there_is_room(K)) return false;
    struct hl_cuda *c = hl_cuda_of(pool);
    struct gdn_prep p = {};
    struct gdn_walk x = {(const bf16 *)a->q, (const bf16 *)a->k, (const bf16 *)a->v};
    x.segs = a->rows->n, x.parts = gdn_parts(GDN_BUSY / blocks, chunks);
    if (x.parts == 1 || (K != 64 && chunks < LEAST)) return false;
    char *room = (char *)hl_cuda_scratch(c, carve(a, NULL, &p, &x) - (char *)NULL);
    if (!room) return true;
    carve(a, room, &p, &x);
    HL_OP(gdn_prep)(pool, a, &p);
    x.A = p.A, x.P = p.P, x.gates = p.gates;
    x.out = (bf16 *)a->out, x.v_new = (bf16 *)a->v_new;
    x.seg = a->rows->dev->seg, x.chunk_first = a->rows->dev->chunk_first;
    x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V;
    x.e.seg = x.seg, x.e.segs = x.segs, x.e.S_off = a->S_off, x.e.HV = x.HV, x.e.V = x.V, x.e.parts = x.parts;
    HL_OP(gdn_split)(c, &x, K);
    (K == 256 ? launch_walk<256> : K == 128 ? launch_walk<128> : launch_walk<64>)(c, &x);
    HL_OP(gdn_scores)(pool, a->m, x.sums, a->V / 64, a->rows->T * a->HV);
    return true;
#endif
}
