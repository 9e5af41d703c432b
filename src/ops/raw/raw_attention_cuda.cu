/* raw_attention_cuda.cu -- softmax attention on raw pointers (include/hola_ops.h): the op's tables of tiles, built on
 * the device from cu.
 *
 *   cut_tiles   a thread per possible tile. Segment s owns the slots from row / size + s on, which are enough for its
 *               tiles and do not overlap; a thread finds its segment by bisection, then counts the tiles that come
 *               before its own: those with the most work first, as in cuda_backend.c. Unused slots come last, without
 *               rows. */
#include "ops/raw/raw_cuda.cuh"

enum {
    EACH = 256,
    GROUP_ROWS = 16384 /* of key tiles: segments that begin in the same range of this many rows are sorted together */
};

/* Tiles of `size` rows. work: for queries, the tiles up to it; for keys, those from it on. */
static __global__ void __launch_bounds__(EACH)
    cut_tiles(const struct raw_rows x, struct hl_dev_span *tile, int64_t tiles, int size, bool keys) {
    const int64_t i = (int64_t)blockIdx.x * EACH + threadIdx.x, n = x.rows.n;
    if (i >= tiles) return;
    int64_t low = 0, high = n;
    while (low + 1 < high) {
        const int64_t mid = (low + high) / 2;
        if (x.seg[mid].row / size + mid <= i) low = mid;
        else high = mid;
    }
    const struct hl_seg own = x.seg[low];
    const int64_t at = i - (own.row / size + low), many = (own.len + size - 1) / size, group = own.row / GROUP_ROWS;
    const bool is = at >= 0 && at < many;
    const int64_t work = keys ? many - at : at + 1;
    int64_t all = 0, place = 0;
    for (int64_t s = 0; s < n; s++) {
        const int64_t theirs = (x.seg[s].len + size - 1) / size, there = keys ? x.seg[s].row / GROUP_ROWS : group;
        all += theirs;
        if (there < group) place += theirs;
        else if (there == group) place += (theirs > work ? theirs - work : 0) + (s < low && theirs >= work);
    }
    if (i >= all) tile[i] = {(int32_t)x.seg[0].row, 0, 0, 0};
    if (!is) return;
    const int64_t left = own.len - at * size;
    tile[place] = {(int32_t)(own.row + at * size), (int32_t)(left < size ? left : size), (int32_t)low,
                   (int32_t)(at * size)};
}

struct raw_attention {
    struct raw_rows rows;
    struct hl_dev_span *tile, *wide, *key;
};
static void lay_out(struct raw_attention *x, const hola_attention_args *a, char **p) {
    const hola_rows *r = &a->rows;
    struct hl_dev_rows *d = &x->rows.dev;
    const int64_t each = r->cu || r->N == 0 ? 0 : r->T / r->N;
    HL_OP(raw_rows_layout)(&x->rows, r, 0, p);
    d->tiles = r->cu ? r->T / HL_TILE + r->N : r->N * hl_pieces(each, HL_TILE);
    d->wide_tiles = r->cu ? r->T / HL_WIDE_TILE + r->N : r->N * hl_pieces(each, HL_WIDE_TILE);
    x->tile = (struct hl_dev_span *)raw_carve(p, (r->T / HL_TILE + r->N) * (int64_t)sizeof *x->tile);
    x->wide = (struct hl_dev_span *)raw_carve(p, (r->T / HL_WIDE_TILE + r->N) * (int64_t)sizeof *x->wide);
    x->key = (struct hl_dev_span *)raw_carve(p, (r->T / HL_TILE + r->N) * (int64_t)sizeof *x->key);
    d->tile = x->tile, d->wide_tile = x->wide, d->key_tile = x->key;
    x->rows.rows.tiled = true;
}
static void launch_cut(struct hl_cuda *c, const struct raw_attention *x, struct hl_dev_span *tile, int size,
                       bool keys) {
    const int64_t places = x->rows.rows.T / size + x->rows.rows.n;
    launch(c, cut_tiles, blocks_for(places, EACH), EACH, 0, x->rows, tile, places, size, keys);
}
extern "C" void HL_OP(raw_attention)(struct hl_backend *backend, const hola_attention_args *a, bool backward) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct raw_attention x = {};
    char *p = NULL;
    lay_out(&x, a, &p);
    p = (char *)hl_cuda_take(c, p - (char *)NULL);
    if ((!p && !hl_cuda_measuring(c)) || a->rows.T == 0) return;
    if (p) {
        lay_out(&x, a, &p);
        HL_OP(raw_cut_segments)(c, &x.rows);
        if (backward) HL_OP(raw_cut_spans)(c, &x.rows);
        launch_cut(c, &x, x.tile, HL_TILE, false);
        if (backward) launch_cut(c, &x, x.key, HL_TILE, true);
        else launch_cut(c, &x, x.wide, HL_WIDE_TILE, false);
    }
    struct hl_attention op = {};
    op.rows = &x.rows.rows;
    op.H = a->H, op.HK = a->HK, op.D = a->D, op.window = a->window < a->rows.T ? a->window : 0;
    op.scale = a->scale == 0.0f ? 1.0f / sqrtf((float)a->D) : a->scale;
    op.q = a->q, op.k = a->k, op.v = a->v, op.out = a->out, op.lse = a->lse;
    op.dout = a->dout, op.dq = a->dq, op.dk = a->dk, op.dv = a->dv;
    (backward ? HL_OP(attention_backward) : HL_OP(attention_forward))(backend, &op);
}
