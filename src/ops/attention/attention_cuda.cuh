/* attention_cuda.cuh -- shared by the attention kernels: arguments, locations of keys and values, and the kernels that
 * attention_cuda.cu selects from. */
#ifndef HL_ATTENTION_CUDA_CUH
#define HL_ATTENTION_CUDA_CUH
#include "ops/cuda_ops.cuh"

#define LOG2E 1.4426950408889634f

struct attention_args {
    const act *q, *k, *v;
    act *out;
    float *lse;         /* NULL: not stored */
    int64_t q_ld, k_ld; /* row stride of q; of k and v */
    const struct hl_seg *seg;
    const struct hl_dev_span *tile;
    const int32_t *page_first;
    const char *const *page;
    int32_t *zeros;
    int64_t k_off, v_off;
    int segs, tiles, H, HK, D, window;
    float scale;
    /* backward */
    const act *dout;
    act *dq, *dk, *dv;
};
static inline struct attention_args attention_args_of(const struct hl_attention *a) {
    struct attention_args x = {};
    const struct hl_dev_rows *d = a->rows->dev;
    x.q = (const act *)a->q, x.k = (const act *)a->k, x.v = (const act *)a->v, x.out = (act *)a->out, x.lse = a->lse;
    x.q_ld = a->ld ? a->ld : a->H * a->D, x.k_ld = a->ld ? a->ld : a->HK * a->D;
    x.seg = d->seg, x.tile = d->tile, x.page_first = d->page_first, x.page = d->page, x.zeros = d->zeros;
    x.k_off = a->k_off, x.v_off = a->v_off;
    x.segs = (int)a->rows->n, x.tiles = (int)d->tiles;
    x.H = (int)a->H, x.HK = (int)a->HK, x.D = (int)a->D, x.window = (int)a->window, x.scale = a->scale;
    x.dout = (const act *)a->dout, x.dq = (act *)a->dq, x.dk = (act *)a->dk, x.dv = (act *)a->dv;
    return x;
}

/* Where the state of segment s stores the row of position p, all heads: in a page, or in a window's ring. */
static __device__ __forceinline__ act *state_row(const struct attention_args &a, int s, int p, int64_t off) {
    const int64_t width = (int64_t)a.HK * a.D;
    if (a.window) return (act *)(a.seg[s].state + off) + p % a.window * width;
    return (act *)(a.page[a.page_first[s] + p / HL_PAGE_TOKENS] + off) + p % HL_PAGE_TOKENS * width;
}
/* The key (x = a.k) or value at position p: a row of this call, or of the state. */
static __device__ __forceinline__ const act *key_row(const struct attention_args &a, int s, const struct hl_seg &seg,
                                                     int p, const act *x, int64_t off) {
    if (p < seg.pos) return state_row(a, s, p, off);
    return x + (seg.row + p - seg.pos) * a.k_ld;
}
/* the first key that the query at position t sees */
static __device__ __forceinline__ int first_key(const struct attention_args &a, int t) {
    return a.window && t >= a.window ? t - a.window + 1 : 0;
}

extern "C" {
/* Any shape and type, a warp per row and head. */
void HL_OP(attention_plain_forward)(struct hl_cuda *c, const struct hl_attention *a);
void HL_OP(attention_plain_backward)(struct hl_cuda *c, const struct hl_attention *a);
/* Appends this call's rows to the sessions' states, after all reads. */
void HL_OP(attention_append)(struct hl_cuda *c, const struct hl_attention *a);
/* One new row of every session, including the append. False: unsupported sizes. */
bool HL_OP(attention_step)(struct hl_cuda *c, const struct hl_attention *a);
#ifndef HL_CUDA_F32
/* With wgmma, D = 64 or 128. False: unsupported arguments or device. */
bool HL_OP(attention_wgmma_forward)(struct hl_cuda *c, const struct hl_attention *a);
bool HL_OP(attention_wgmma_backward)(struct hl_cuda *c, const struct hl_attention *a);
#endif
}

#endif
