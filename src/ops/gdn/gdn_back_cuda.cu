/* gdn_back_cuda.cu -- the backward delta rule on a GPU (gdn_back_cuda.cuh): the table of its variants, of which the
 * first that fits a batch is used, the gates of all chunks, and the sum over a key head's value heads. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"

enum { WARPS = 4 };

/* One warp: the gates of one chunk and value head, two rows per lane. Rows past the chunk's end do not decay and have
 * beta = 0. exp(-128) is 0 in float, so smaller gates would only make the sums larger. */
static __device__ void gates_of(const struct gdn_back &a, const struct hl_dev_span &p, int hv, float *gates) {
    const int lane = threadIdx.x % 32;
    double G[2], last;
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        const int64_t at = (int64_t)(p.row + r) * a.HV + hv;
        G[i] = r < p.len && a.g ? (double)fmaxf(a.g[at], -128.0f) : 0.0;
        gates[BETA + r] = r < p.len ? a.beta[at] : 0.0f;
    }
    double sum = G[0] + G[1];
    for (int d = 1; d < 32; d *= 2) {
        const double up = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += up;
    }
    G[0] = sum - G[1];
    G[1] = sum;
    last = __shfl_sync(0xffffffffu, sum, 31);
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        const double by_two = G[i] * 1.4426950408889634074, whole = rint(by_two); /* log2 of e */
        gates[G_INT + r] = (float)whole;
        gates[G_FRAC + r] = (float)(by_two - whole);
        gates[EG + r] = expf((float)G[i]);
        gates[EL + r] = expf((float)(last - G[i]));
    }
}

static __global__ void __launch_bounds__(32 * WARPS) back_gates(const struct gdn_back a) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    pdl_wait();
    pdl_trigger();
    if (i >= a.chunks * a.HV) return;
    gates_of(a, a.chunk[i / a.HV], (int)(i % a.HV), a.gates + i * BACK_GATES);
}

/* dq, dk of a key head are the sums over its value heads, in order */
static __global__ void __launch_bounds__(256) back_group(const act *head, act *sum, int64_t n, int K, int group) {
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const act *from = head + i / K * group * K + i % K;
    float x = 0;
    for (int r = 0; r < group; r++) x += f32(from[(int64_t)r * K]);
    put(sum + i, x);
}
extern "C" void HL_OP(gdn_sum_heads)(struct hl_cuda *c, const act *head, act *sum, int64_t n, int K, int group) {
    launch(c, back_group, blocks_for(n, 256), 256, 0, head, sum, n, K, group);
}

/* Lays out the scratch memory for states of `size` bytes a number; returns its end. */
static char *carve(struct gdn_back *a, char *p, int64_t size) {
    const int64_t heads = a->chunks * a->HV, scans = a->segs * a->HV, splits = a->split.n, again = a->state_splits;
    const int64_t KV = (int64_t)a->K * a->V;
    a->gates = (float *)gdn_carve(&p, heads * BACK_GATES * 4);
    a->h = gdn_carve(&p, a->fused ? 0 : heads * KV * size);
    a->dh = gdn_carve(&p, heads * KV * size);
    a->X2 = gdn_carve(&p, (a->fused ? a->chunks * C : a->T) * a->HV * a->V * size);
    if (a->fused) {
        a->fused_states = (float *)gdn_carve(&p, again > 1 ? scans * again * KV * 4 : 0);
        a->sums = (float *)gdn_carve(&p, hl_pieces(a->K, 128) * heads * SUMS * 4);
    }
    a->decays = (float *)gdn_carve(&p, scans * (again > splits ? again : splits) * 4);
    if (splits > 1) {
        a->split.states = (float *)gdn_carve(&p, scans * splits * KV * 4);
        a->split.transitions = (float *)gdn_carve(&p, scans * splits * a->K * a->K * 4);
    }
    if (a->group > 1) {
        a->dq_head = (act *)gdn_carve(&p, a->T * a->HV * a->K * (int64_t)sizeof(act));
        a->dk_head = (act *)gdn_carve(&p, a->T * a->HV * a->K * (int64_t)sizeof(act));
    } else a->dq_head = a->dq, a->dk_head = a->dk;
    return p;
}
static bool reserve(struct hl_cuda *c, struct gdn_back *a, int64_t size) {
    char *scratch = (char *)hl_cuda_scratch(c, carve(a, NULL, size) - (char *)NULL);
    if (scratch) carve(a, scratch, size);
    return scratch != NULL;
}

/* ---- the variants ---- */

#ifndef HL_CUDA_F32
static bool sizes_fit(const struct hl_gdn *a) { return (a->K == 64 || a->K == 128 || a->K == 256) && a->V % 64 == 0; }
static bool chunks_fit(struct hl_cuda *c, const struct hl_gdn *a) {
    return sizes_fit(a) && HL_OP(gdn_back_scan_fits)(c, a->K);
}
static bool fused_fits(struct hl_cuda *c, const struct hl_gdn *a) {
    return chunks_fit(c, a) && HL_OP(gdn_back_fused_fits)(c, a->V);
}
/* as gdn_ring_plan_of: the reverse scan uses wide tiles if they fill the GPU */
static int scan_splits(const struct gdn_back *a, int64_t longest) {
    enum { LEAST = 8 };
    const int64_t heads = a->segs * a->HV, chunks = hl_pieces(longest, C);
    const bool wide = a->K == 128 && a->V % 128 == 0 && heads * (a->V / 128) >= LEAST;
    return gdn_num_splits(GDN_BUSY / (heads * hl_pieces(a->V, wide ? 128 : 64)), chunks);
}
/* splits of the fused scan, so that its blocks fill the GPU */
static int fused_splits(const struct gdn_back *a, int64_t longest) {
    enum { LEAST = 4 };
    const int64_t wanted = GDN_BUSY / (a->segs * a->HV * hl_pieces(a->K, 128)), most = longest / C / LEAST;
    const int64_t n = wanted < most ? wanted : most;
    return n < 2 ? 1 : (int)n;
}
/* The states between them are scanned in halves of splits if the blocks of whole ones leave room on the GPU for twice as
 * many. */
static int state_parts(const struct gdn_back *a) {
    return a->segs * a->HV * (a->fused_splits - 1) * hl_pieces(a->V, 128) * hl_pieces(a->K, 128) <= GDN_BUSY ? 2 : 1;
}
static bool run_fused(struct hl_cuda *c, struct gdn_back *a, int64_t longest) {
    a->fused = true;
    a->split.n = scan_splits(a, longest), a->fused_splits = fused_splits(a, longest);
    a->state_splits = a->fused_splits > 1 ? a->fused_splits * state_parts(a) : 1;
    if (!reserve(c, a, sizeof(bf16))) return false;
    launch_pdl(c, back_gates, blocks_for(a->chunks * a->HV, WARPS), 32 * WARPS, 0, *a);
    HL_OP(gdn_back_scan)(c, a);
    if (a->fused_splits > 1) HL_OP(gdn_back_fused_states)(c, a);
    HL_OP(gdn_back_fused)(c, a);
    return true;
}
static bool run_chunks(struct hl_cuda *c, struct gdn_back *a, int64_t longest) {
    a->split.n = scan_splits(a, longest), a->fused_splits = a->state_splits = 1;
    if (!reserve(c, a, sizeof(bf16))) return false;
    launch_pdl(c, back_gates, blocks_for(a->chunks * a->HV, WARPS), 32 * WARPS, 0, *a);
    HL_OP(gdn_back_states)(c, a);
    HL_OP(gdn_back_scan)(c, a);
    HL_OP(gdn_back_chunks)(c, a);
    return true;
}
#endif
static bool any(struct hl_cuda *, const struct hl_gdn *) { return true; }
static bool run_plain(struct hl_cuda *c, struct gdn_back *a, int64_t) {
    a->split.n = a->fused_splits = a->state_splits = 1;
    if (!reserve(c, a, sizeof(float))) return false;
    launch(c, back_gates, blocks_for(a->chunks * a->HV, WARPS), 32 * WARPS, 0, *a);
    HL_OP(gdn_back_plain)(c, a);
    return true;
}

static const struct back_form {
    struct hl_gdn_form form;
    bool (*fits)(struct hl_cuda *, const struct hl_gdn *);
    bool (*run)(struct hl_cuda *, struct gdn_back *, int64_t longest); /* false: out of memory */
} forms[] = {
#ifndef HL_CUDA_F32
    {{"fused", "values of 64, 128 or 256: states are recomputed in registers and never go to memory"},
     fused_fits,
     run_fused},
    {{"chunks", "other multiples of 64: states go to memory, then all chunks run in parallel"}, chunks_fit, run_chunks},
#endif
    {{"plain", "any head size, float activations and chips before Hopper: plain loops in float"}, any, run_plain},
};
static const struct back_form *form_of(struct hl_cuda *c, const struct hl_gdn *a) {
    const struct back_form *f = forms;
    while (!f->fits(c, a)) f++; /* the last one fits any */
    return f;
}
extern "C" struct hl_gdn_form HL_OP(gdn_back_form)(struct hl_cuda *c, const struct hl_gdn *a) {
    return form_of(c, a)->form;
}

extern "C" void HL_OP(gdn_backward)(struct hl_backend *backend, const struct hl_gdn *x) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct hl_dev_rows *rows = x->rows->dev;
    struct gdn_back a = {};
    HL_ASSERT(x->HV % x->H == 0 && x->v_new && x->A);
    if (x->rows->T == 0) return;
    a.T = x->rows->T, a.segs = x->rows->n, a.chunks = rows->chunks;
    a.H = (int)x->H, a.HV = (int)x->HV, a.K = (int)x->K, a.V = (int)x->V, a.group = a.HV / a.H;
    a.items = (int)(a.chunks * a.HV);
    a.q = (const act *)x->q, a.k = (const act *)x->k, a.v = (const act *)x->v;
    a.dout = (const act *)x->dout, a.v_new = (const act *)x->v_new, a.A = (const act *)x->A;
    a.g = x->g, a.beta = x->beta;
    a.dq = (act *)x->dq, a.dk = (act *)x->dk, a.dv = (act *)x->dv, a.dg = x->dg, a.dbeta = x->dbeta;
    a.h0 = x->h0, a.dht = x->dht, a.dh0 = x->dh0;
    a.seg = rows->seg, a.chunk = rows->chunk, a.chunk_first = rows->chunk_first;
    a.split.segs = a.segs, a.split.HV = a.HV, a.split.V = a.V;
    if (!form_of(c, x)->run(c, &a, rows->longest) || a.group == 1) return;
    const int64_t n = a.T * a.H * a.K;
    HL_OP(gdn_sum_heads)(c, a.dq_head, a.dq, n, a.K, a.group);
    HL_OP(gdn_sum_heads)(c, a.dk_head, a.dk, n, a.K, a.group);
}
