/* gdn_step_cuda.cu -- decoding: segments of at most 8 tokens that have a state (gdn_step_tile.cuh). Persistent kernel:
 * block b processes every gridDim-th tile of COLS columns of a value head's state, from the b-th on. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_step_tile.cuh"

struct whole_block {
    enum { TOKENS = GDN_STEP_ROWS, GATED = false };
    __device__ __forceinline__ int number(int n) const { return (int)(blockIdx.x + n * gridDim.x); }
    __device__ __forceinline__ void sync() const { __syncthreads(); }
    __device__ __forceinline__ void fetch(struct token &x, const struct gdn_step &a, const struct tile_place &p, int,
                                          int t, int K, int first, int column) const {
        const int64_t row = p.row + t, qk = (row * a.H + p.hv / (a.HV / a.H)) * K + first;
        x.k.fetch(a.k + qk);
        x.q.fetch(a.q + qk);
        x.v.fetch(a.v + (row * a.HV + p.hv) * a.V + column);
    }
    __device__ __forceinline__ float *staged_out(int) const { return NULL; }
    __device__ __forceinline__ void done(int) const {}
    __device__ __forceinline__ void load_next(int, int) const {}
};
template <int K, int COLS>
static __global__ void __launch_bounds__(step_tile<K, COLS>::THREADS, SM_THREADS / step_tile<K, COLS>::THREADS)
    step_tokens(const struct gdn_step a, int items) {
    const int own = (items - 1 - (int)blockIdx.x) / (int)gridDim.x + 1;
    struct step_tile<K, COLS> &m = *(struct step_tile<K, COLS> *)shared_memory();
    const struct whole_block team;
    begin_tiles<K, COLS>(a, m, team, own);
    pdl_wait();
    pdl_trigger();
    step_tiles<K, COLS>(a, m, team, own);
}

template <int K, int COLS> static void launch_step(struct hl_cuda *c, const struct gdn_step *a, int64_t segments) {
    typedef struct step_tile<K, COLS> tile;
    const int items = (int)segments * a->HV * (a->V / COLS), most = SM_THREADS / tile::THREADS * hl_cuda_sms(c);
    launch_pdl(c, step_tokens<K, COLS>, (unsigned)min(items, most), tile::THREADS, sizeof(tile), *a, items);
}
template <int K> static void launch_width(struct hl_cuda *c, const struct gdn_step *a, int64_t segments) {
    const bool wide = a->V % 64 == 0 && hl_cuda_shared_limit(c) >= (int)sizeof(struct step_tile<256, 64>);
    if (wide) launch_step<K, 64>(c, a, segments);
    else launch_step<K, 32>(c, a, segments);
}
extern "C" void HL_OP(gdn_run_step)(struct hl_backend *backend, const struct hl_gdn *a) {
    const int64_t rows = a->rows->T * a->HV, tiles = a->V / GDN_STEP_COLS;
    struct hl_cuda *c = hl_cuda_of(backend);
    struct gdn_step x = {(const act *)a->q, (const act *)a->k, (const act *)a->v, a->g, a->beta, (act *)a->out};
    x.sums = (float *)hl_cuda_scratch(c, tiles * rows * (int64_t)sizeof(float));
    if (!x.sums) return;
    x.seg = a->rows->dev->seg, x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V;
    (a->K == 64 ? launch_width<64> : a->K == 128 ? launch_width<128> : launch_width<256>)(c, &x, a->rows->n);
    if (a->m) HL_OP(gdn_scores)(backend, a->m, x.sums, tiles, rows);
}
