/* wgmma.cuh -- matrix products of a warpgroup (128 threads, starting at a multiple of 128) with bf16 operands in
 * swizzled tiles in shared memory:
 *     D[64][N] += A[64][16] B[16][N]
 * D is laid out as the accumulators of mma_bf16, 16 rows per warp. On Hopper (sm_90a) these are wgmma instructions,
 * which are asynchronous: wgmma_begin comes before the first of a batch (a wgmma group), wgmma_end after the last, and
 * accumulators and operands are not touched until the batch has been waited for. Threads make their own shared memory
 * writes visible to wgmma with fence_proxy_async, before the barrier. On other architectures, and in the emulator, the
 * same products use mma_bf16, synchronously.
 *
 * Tiles are [rows][WIDTH], WIDTH 16, 32 or 64, aligned to 1024 bytes (shared_tiles). The 16-byte units of a row are
 * permuted, so that 8 rows at one column are in different banks: the hardware's swizzle modes of 32, 64 and 128
 * bytes. Wider operands are panels of such tiles. */
#ifndef HL_WGMMA_CUH
#define HL_WGMMA_CUH
#include "cuda/named_barrier.cuh"

/* where element (row, col) is in a swizzled tile */
template <int WIDTH> static __device__ __forceinline__ int tile_at(int row, int col) {
    const int units = WIDTH / 8, swizzle = units >= 8 ? row % 8 : row / (8 / units) % units;
    return row * WIDTH + ((col / 8) ^ swizzle) * 8 + col % 8;
}

/* ldmatrix of the A fragments of rows r0.., columns c0.. of a tile; _trans: of the transposed tile (rows and columns
 * named as in the tile). */
template <int WIDTH>
static __device__ __forceinline__ void tile_load_a(uint32_t a[4], const bf16 *tile, int r0, int c0) {
    const int l = threadIdx.x % 32;
    ldmatrix4(a, tile + tile_at<WIDTH>(r0 + l % 16, c0 + l / 16 * 8));
}
template <int WIDTH>
static __device__ __forceinline__ void tile_load_a_trans(uint32_t a[4], const bf16 *tile, int r0, int c0) {
    const int l = threadIdx.x % 32;
    ldmatrix4_trans(a, tile + tile_at<WIDTH>(r0 + l % 8 + l / 16 * 8, c0 + l / 8 % 2 * 8));
}
/* two B fragments, of columns n0.. and n0 + 8..: the tile holds the operand as [n][k] */
template <int WIDTH>
static __device__ __forceinline__ void tile_load_b_trans(uint32_t b[4], const bf16 *tile, int n0, int k0) {
    const int l = threadIdx.x % 32;
    ldmatrix4(b, tile + tile_at<WIDTH>(n0 + l % 8 + l / 16 * 8, k0 + l / 8 % 2 * 8));
}
/* the same where the tile holds the operand as [k][n] */
template <int WIDTH>
static __device__ __forceinline__ void tile_load_b(uint32_t b[4], const bf16 *tile, int k0, int n0) {
    const int l = threadIdx.x % 32;
    ldmatrix4_trans(b, tile + tile_at<WIDTH>(k0 + l % 16, n0 + l / 16 * 8));
}

/* stmatrix, the inverse of tile_load_a: fragments to the tile */
template <int WIDTH>
static __device__ __forceinline__ void tile_store(bf16 *tile, const uint32_t a[4], int r0, int c0) {
    const int l = threadIdx.x % 32;
#if !defined(HL_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const bf16 *row = tile + tile_at<WIDTH>(r0 + l % 16, c0 + l / 16 * 8);
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"((uint32_t)__cvta_generic_to_shared(row)),
        "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
        : "memory");
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(uint32_t *)(tile + tile_at<WIDTH>(r0 + l / 4 + i % 2 * 8, c0 + l % 4 * 2 + i / 2 * 8)) = a[i];
#endif
}
/* stmatrix, the inverse of tile_load_a_trans: fragments of the transposed tile back to the tile */
template <int WIDTH>
static __device__ __forceinline__ void tile_store_trans(bf16 *tile, const uint32_t a[4], int r0, int c0) {
    const int l = threadIdx.x % 32;
#if !defined(HL_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const bf16 *row = tile + tile_at<WIDTH>(r0 + l % 8 + l / 16 * 8, c0 + l / 8 % 2 * 8);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(row)),
                 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
                 : "memory");
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = r0 + l % 4 * 2 + i / 2 * 8, col = c0 + l / 4 + i % 2 * 8;
        put(tile + tile_at<WIDTH>(row, col), low(a[i]));
        put(tile + tile_at<WIDTH>(row + 1, col), high(a[i]));
    }
#endif
}
/* accumulators of 16 columns, packed: the A fragments of the next product */
static __device__ __forceinline__ void pack_a(uint32_t a[4], const float d[2][4]) {
    a[0] = pack2(d[0][0], d[0][1]), a[1] = pack2(d[0][2], d[0][3]);
    a[2] = pack2(d[1][0], d[1][1]), a[3] = pack2(d[1][2], d[1][3]);
}
/* The block's dynamic shared memory, aligned for tiles. A launch requests TILES_ROOM bytes more than are used. */
enum { TILES_ROOM = 1024 };
static __device__ __forceinline__ char *shared_tiles() {
#ifdef HL_CUDA_EMU
    return (char *)(((uintptr_t)shared_memory() + TILES_ROOM - 1) / TILES_ROOM * TILES_ROOM);
#else
    extern __shared__ __align__(1024) char hl_tiles[]; /* a compile-time address, so the operands' are too */
    return hl_tiles;
#endif
}

/* cp.async of rows [0, n) of WIDTH elements into a tile, the rest of ROWS filled with zeros (a copy of no bytes reads
 * nothing), by threads i of THREADS; the caller calls copy_commit. */
template <int WIDTH, int ROWS, int THREADS>
static __device__ __forceinline__ void copy_panel(bf16 *tile, const bf16 *from, int64_t stride, int n, int i) {
    const int units = WIDTH / 8, step = THREADS / units, row = i / units, col = i % units * 8;
    static_assert(step % 8 == 0 && ROWS % step == 0, "steps of whole groups of 8 rows");
    tile += tile_at<WIDTH>(row, col), from += row * stride + col;
#pragma unroll
    for (int r = 0; r < ROWS; r += step) {
        copy_async(tile + r * WIDTH, from, row + r < n ? 16 : 0);
        from += step * stride;
    }
}

/* ---- operands: 16 x 64 or 16 x N of a tile, from row r0 (of 8) and column c0 (of 16) on ---- */

/* TRANS: the tile is [k][64 or N] (transposed), else [64 or N][k]. PANEL: of a transposed tile with N > WIDTH, the
 * elements from one panel to the next. */
template <int WIDTH_, bool TRANS_, int PANEL_ = 0> struct operand {
    enum { WIDTH = WIDTH_, TRANS = TRANS_, PANEL = PANEL_ };
    const bf16 *tile;
    int row, col;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HL_WGMMA 1
/* the matrix descriptor of an operand in shared memory */
template <class O> static __device__ __forceinline__ uint64_t descriptor(O o) {
    const uint32_t tile = (uint32_t)__cvta_generic_to_shared(o.tile); /* hoisted: one conversion for all products */
    const uint64_t swizzle = O::WIDTH == 64 ? 1 : O::WIDTH == 32 ? 2 : 3;
    return (tile >> 4) + (uint32_t)((o.row * O::WIDTH + o.col) * 2 >> 4) | (uint64_t)(O::PANEL * 2 >> 4) << 16 |
           (uint64_t)(O::WIDTH * 16 >> 4) << 32 | swizzle << 62;
}
#else
#define HL_WGMMA 0
#endif

/* makes this thread's writes to shared memory visible to the asynchronous proxy: wgmma and bulk copies */
static __device__ __forceinline__ void fence_proxy_async() {
#ifdef HL_CUDA_EMU
    emu_fence_proxy();
#elif HL_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* A compiler fence for `tiles` times 8 columns of accumulators: no access to them is moved across it. */
template <int tiles> static __device__ __forceinline__ void wgmma_hold(float (*d)[4]) {
#if HL_WGMMA
#pragma unroll
    for (int n = 0; n < tiles; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
#endif
}
/* begins a batch of products that accumulate into `tiles` times 8 columns */
template <int tiles> static __device__ __forceinline__ void wgmma_begin(float (*d)[4]) {
    wgmma_hold<tiles>(d);
#if HL_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/* begins another batch into accumulators that may still be in flight, with A in registers */
static __device__ __forceinline__ void wgmma_fence() {
#if HL_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/* Commits the batch as a group and waits for all groups but the last `left`. Accumulators still in flight are not held:
 * each hold may become a copy. */
template <int left> static __device__ __forceinline__ void wgmma_commit_wait() {
#ifdef HL_CUDA_EMU
    emu_wgmma_commit_wait(left);
#elif HL_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
#endif
}
/* the same, and holds the accumulators of the batch, or of the one before it */
template <int tiles, int left = 0> static __device__ __forceinline__ void wgmma_end(float (*d)[4]) {
    wgmma_commit_wait<left>();
    wgmma_hold<tiles>(d);
}
/* waits for all groups */
template <int tiles> static __device__ __forceinline__ void wgmma_wait_all(float (*d)[4]) {
#ifdef HL_CUDA_EMU
    emu_wgmma_commit_wait(0);
#elif HL_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
    wgmma_hold<tiles>(d);
}
/* holds operands in registers, which must not change until the batch has completed */
template <int n> static __device__ __forceinline__ void wgmma_hold_a(uint32_t (*a)[4]) {
#if HL_WGMMA
#pragma unroll
    for (int i = 0; i < n; i++) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
#endif
}
/* setmaxnreg: registers per thread from here on, by a whole warpgroup. What a producer releases a consumer takes. */
template <int n> static __device__ __forceinline__ void setmaxnreg_dec() {
#if HL_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
#endif
}
template <int n> static __device__ __forceinline__ void setmaxnreg_inc() {
#if HL_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
#endif
}
/* the index of this warpgroup in the block, known to the compiler to be uniform over a warp */
static __device__ __forceinline__ int warpgroup_index() { return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0); }

/* FIRST: of the products below, D = A B: what the accumulators held does not count.
 * The text of a wgmma: accumulators d, then operand numbers: two descriptors (_TILES: A and B in shared memory), or
 * four registers and a descriptor (_REGS: A in registers); z: FIRST. */
#if HL_WGMMA
#define HL_D4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define HL_D16 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define HL_D32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define HL_D48 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}"
#define HL_D64                                                                                        \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
    "%26,%27,%28,%29,%30,%31}"
#define HL_D96                                                                                    \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
    "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}"
#define HL_D128                                                                                        \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"  \
    "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49," \
    "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define HL_D16_OF(d, i) HL_D4(d, i), HL_D4(d, i + 1)
#define HL_D32_OF(d, i) HL_D16_OF(d, i), HL_D16_OF(d, i + 2)
#define HL_D48_OF(d, i) HL_D32_OF(d, i), HL_D16_OF(d, i + 4)
#define HL_D64_OF(d, i) HL_D32_OF(d, i), HL_D32_OF(d, i + 4)
#define HL_D96_OF(d, i) HL_D64_OF(d, i), HL_D32_OF(d, i + 8)
#define HL_D128_OF(d, i) HL_D64_OF(d, i), HL_D64_OF(d, i + 8)
#define HL_WGMMA_TEXT(N, z)                                                                    \
    "{\n\t.reg .pred p;\n\tsetp.eq.u32 p, %" #z ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #N \
    "k16.f32.bf16.bf16 " HL_D##N
#define HL_WGMMA_TILES(N, x, y, ta, tb, z)                                                   \
    asm volatile(HL_WGMMA_TEXT(N, z) ", %" #x ", %" #y ", p, 1, 1, %" #ta ", %" #tb ";\n\t}" \
                 : HL_D##N##_OF(d, 0)                                                        \
                 : "l"(descriptor(a)), "l"(descriptor(b)), "n"((int)A::TRANS), "n"((int)B::TRANS), "n"((int)FIRST))
#define HL_WGMMA_REGS(N, x0, x1, x2, x3, y, tb, z)                                                               \
    asm volatile(HL_WGMMA_TEXT(N, z) ", {%" #x0 ",%" #x1 ",%" #x2 ",%" #x3 "}, %" #y ", p, 1, 1, %" #tb ";\n\t}" \
                 : HL_D##N##_OF(d, 0)                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(b)), "n"((int)B::TRANS),           \
                   "n"((int)FIRST))
#endif

#ifdef HL_CUDA_EMU
#define HL_BY_WGMMA(begins) emu_wgmma(begins)
#else
#define HL_BY_WGMMA(begins) (void)0
#endif
/* the same of mma_bf16: d += A B of the warp's 16 rows */
template <int N, bool FIRST, class B>
static __device__ __forceinline__ void wgmma_rs_step(float (*d)[4], const uint32_t a[4], B b) {
#pragma unroll
    for (int i = 0; FIRST && i < N / 2; i++) d[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int n = 0; n < N; n += 16) {
        uint32_t y[4];
        if (B::TRANS) {
            const int col = b.col + n;
            tile_load_b<B::WIDTH>(y, b.tile + col / B::WIDTH * B::PANEL, b.row, col % B::WIDTH);
        } else tile_load_b_trans<B::WIDTH>(y, b.tile, b.row + n, b.col);
        mma_bf16(d[n / 8], a, y), mma_bf16(d[n / 8 + 1], a, y + 2);
    }
}

/* d += A B, A in registers ("rs"), as fragments of mma_bf16: 16 rows per warp */
template <int N, bool FIRST = false, class B>
static __device__ __forceinline__ void wgmma_rs(float (*d)[4], const uint32_t a[4], B b) {
#if HL_WGMMA
    if constexpr (N == 16) HL_WGMMA_REGS(16, 8, 9, 10, 11, 12, 13, 14);
    else if constexpr (N == 32) HL_WGMMA_REGS(32, 16, 17, 18, 19, 20, 21, 22);
    else if constexpr (N == 64) HL_WGMMA_REGS(64, 32, 33, 34, 35, 36, 37, 38);
    else if constexpr (N == 128) HL_WGMMA_REGS(128, 64, 65, 66, 67, 68, 69, 70);
    static_assert(N == 16 || N == 32 || N == 64 || N == 128, "a width that is spelled out above");
#else
    HL_BY_WGMMA(true);
    wgmma_rs_step<N, FIRST>(d, a, b);
    HL_BY_WGMMA(false);
#endif
}
/* d += A B, both in shared memory ("ss") */
template <int N, bool FIRST = false, class A, class B>
static __device__ __forceinline__ void wgmma_ss(float (*d)[4], A a, B b) {
#if HL_WGMMA
    if constexpr (N == 16) HL_WGMMA_TILES(16, 8, 9, 10, 11, 12);
    else if constexpr (N == 32) HL_WGMMA_TILES(32, 16, 17, 18, 19, 20);
    else if constexpr (N == 48) HL_WGMMA_TILES(48, 24, 25, 26, 27, 28);
    else if constexpr (N == 64) HL_WGMMA_TILES(64, 32, 33, 34, 35, 36);
    else if constexpr (N == 96) HL_WGMMA_TILES(96, 48, 49, 50, 51, 52);
    else if constexpr (N == 128) HL_WGMMA_TILES(128, 64, 65, 66, 67, 68);
    static_assert(N == 16 || N == 32 || N == 48 || N == 64 || N == 96 || N == 128, "a width that is spelled out above");
#else
    const int rows = threadIdx.x / 32 % 4 * 16;
    uint32_t x[4];
    HL_BY_WGMMA(true);
    if (A::TRANS) tile_load_a_trans<A::WIDTH>(x, a.tile, a.row, a.col + rows);
    else tile_load_a<A::WIDTH>(x, a.tile, a.row + rows, a.col);
    wgmma_rs_step<N, FIRST>(d, x, b);
    HL_BY_WGMMA(false);
#endif
}
#endif
