/* rope_cuda.cu -- see rope.h. Grid (ROWS rows of a tile, tiles), THREADS threads: the block computes the cosines and
 * sines of its rows once, in shared memory, and rotates all heads with them; a thread owns WIDE pairs of a head at a
 * time, 16 bytes of each half. Head sizes whose halves are not whole pieces of 16 bytes go pair by pair. PDL: the
 * angles are computed before the wait. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"

enum { THREADS = 256, ROWS = 8, MOST = 512 /* pairs of a head */ };

struct frequencies { /* theta^(-2i/D) */
    float f[MOST];
};
struct rope_args {
    const act *x;
    act *y;
    int64_t ld;
    const struct hl_dev_span *tile;
    int H, half; /* pairs of a head */
    float sign;
};

template <int wide> static __device__ __forceinline__ void load(float *x, const act *p) {
    if (wide > 1) load_wide(x, p);
    else x[0] = f32(*p);
}
template <int wide> static __device__ __forceinline__ void store(act *p, const float *x) {
    if (wide > 1) store_wide(p, x);
    else put(p, x[0]);
}

template <int wide>
static __global__ void __launch_bounds__(THREADS)
    turn(const struct rope_args a, const __grid_constant__ struct frequencies theta) {
    const struct hl_dev_span t = a.tile[blockIdx.y];
    const int first = blockIdx.x * ROWS, rows = min(t.len - first, (int)ROWS), pieces = a.half / wide;
    float *cosine = (float *)shared_memory(), *sine = cosine + ROWS * a.half;
    for (int i = threadIdx.x; i < rows * a.half; i += THREADS) {
        float s, c;
        sincosf((float)(t.skip + first + i / a.half) * theta.f[i % a.half], &s, &c);
        cosine[i] = c, sine[i] = s * a.sign;
    }
    __syncthreads();
    pdl_wait(), pdl_trigger();
    for (int i = threadIdx.x; i < rows * a.H * pieces; i += THREADS) {
        const int piece = i % pieces * wide, head = i / pieces % a.H, row = i / pieces / a.H;
        const int64_t at = (t.row + first + row) * a.ld + head * 2 * a.half + piece;
        const float *c = cosine + row * a.half + piece, *s = sine + row * a.half + piece;
        float lo[wide], hi[wide], x[wide], y[wide];
        load<wide>(lo, a.x + at), load<wide>(hi, a.x + at + a.half);
#pragma unroll
        for (int j = 0; j < wide; j++) x[j] = lo[j] * c[j] - hi[j] * s[j], y[j] = lo[j] * s[j] + hi[j] * c[j];
        store<wide>(a.y + at, x), store<wide>(a.y + at + a.half, y);
    }
}

static void run(struct hl_backend *backend, const struct hl_rope *a, const void *from, void *to, float sign) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const struct hl_dev_rows *d = a->rows->dev;
    struct rope_args x = {(const act *)from, (act *)to, a->ld ? a->ld : a->H * a->D};
    struct frequencies f;
    HL_ASSERT(a->D % 2 == 0 && a->D / 2 <= MOST && d && a->rows->tiled);
    if (d->tiles == 0) return;
    x.tile = d->tile, x.H = (int)a->H, x.half = (int)a->D / 2, x.sign = sign;
    for (int i = 0; i < x.half; i++) f.f[i] = (float)pow(a->theta, -2.0 * i / (double)a->D);
    const int64_t longest = d->longest < HL_TILE ? d->longest : HL_TILE;
    const dim3 grid(blocks_for(longest, ROWS), (unsigned)d->tiles);
    const size_t shared = 2 * ROWS * x.half * sizeof(float);
    const bool wide = x.half % WIDE == 0 && x.ld % WIDE == 0 && ((uintptr_t)from | (uintptr_t)to) % 16 == 0;
    launch_pdl(c, wide ? turn<WIDE> : turn<1>, grid, THREADS, shared, x, f);
}
extern "C" void HL_OP(rope_forward)(struct hl_backend *backend, const struct hl_rope *a) {
    run(backend, a, a->x, a->y, 1.0f);
}
extern "C" void HL_OP(rope_backward)(struct hl_backend *backend, const struct hl_rope *a) {
    run(backend, a, a->dy, a->dx, -1.0f);
}
