/* emu.h -- CUDA C kernels on a CPU: only the parts of CUDA used by the kernels of this project.
 *
 * Every CUDA thread is a fiber; the blocks of a grid run sequentially. A fiber runs until it waits at a barrier or in a
 * warp-wide operation, so a kernel that lacks a barrier reads data too early: shared memory starts as NaN, asynchronous
 * copies happen only when they are waited for, and EMU_ORDER=reverse reverses the order of the fibers. A barrier that
 * not all threads reach is reported. EMU_WATCH: with a race detector (watch.cpp). Slow, exact, and enough to test every
 * kernel where there is no GPU. */
#ifndef HL_EMU_H
#define HL_EMU_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "watch.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __constant__ static
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
#define EMU_VECTOR(type, name, size)                                        \
    struct __align__(size) name##2 {                                        \
        type x, y;                                                          \
    };                                                                      \
    struct __align__(2 * size) name##4 {                                    \
        type x, y, z, w;                                                    \
    };                                                                      \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMU_VECTOR(float, float, 8)
EMU_VECTOR(int, int, 8)
EMU_VECTOR(unsigned, uint, 8)
#undef EMU_VECTOR

/* ---- the threads ---- */

struct emu_place {
    dim3 tid, bid, bdim, gdim;
};
extern const struct emu_place *emu_now; /* of the fiber that runs */
#define threadIdx (emu_now->tid)
#define blockIdx (emu_now->bid)
#define blockDim (emu_now->bdim)
#define gridDim (emu_now->gdim)
enum { warpSize = 32 };

extern char *emu_shared; /* dynamic shared memory of the block */
void emu_run(dim3 grid, dim3 block, size_t shared, void (*body)(void *), void *ctx);
void __syncthreads(void);
void emu_sync_warp(void);
/* Gives every lane's `bytes` to the whole warp; the result, [32][stride 64], is valid until the next call. The last
 * lane to arrive applies `whole` first. */
enum { EMU_SLOT = 64 };
const char *emu_share(const void *mine, size_t bytes, void (*whole)(char (*slot)[EMU_SLOT]) = NULL);
unsigned emu_lane(void);

static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    (void)mask;
    emu_sync_warp();
}
static inline int __syncthreads_or(int v) {
    extern int emu_block_or(int v);
    return emu_block_or(v);
}
template <class T> static inline T emu_from(T v, unsigned lane) {
    const char *all = emu_share(&v, sizeof v);
    T r;
    memcpy(&r, all + (lane & 31) * EMU_SLOT, sizeof r);
    return r;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int lane, int width = 32) {
    unsigned me = emu_lane(), base = me & ~(unsigned)(width - 1);
    return emu_from(v, base + ((unsigned)lane & (unsigned)(width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask, int width = 32) {
    (void)width;
    return emu_from(v, emu_lane() ^ (unsigned)mask);
}
template <class T> static inline T __shfl_down_sync(unsigned, T v, int d, int width = 32) {
    unsigned me = emu_lane();
    T r = emu_from(v, me + (unsigned)d);
    return (me & (unsigned)(width - 1)) + (unsigned)d < (unsigned)width ? r : v;
}
template <class T> static inline T __shfl_up_sync(unsigned, T v, int d, int width = 32) {
    unsigned me = emu_lane();
    T r = emu_from(v, me - (unsigned)d);
    return (me & (unsigned)(width - 1)) >= (unsigned)d ? r : v;
}
static inline unsigned __ballot_sync(unsigned, int p) {
    const char *all = emu_share(&p, sizeof p);
    unsigned r = 0;
    for (int i = 0; i < 32; i++) {
        int one;
        memcpy(&one, all + i * EMU_SLOT, sizeof one);
        r |= (unsigned)(one != 0) << i;
    }
    return r;
}
static inline int __any_sync(unsigned m, int p) { return __ballot_sync(m, p) != 0; }
static inline int __all_sync(unsigned m, int p) { return __ballot_sync(m, p) == 0xffffffffu; }

/* ---- arithmetic ---- */

template <class T> static inline T min(T a, T b) { return a < b ? a : b; }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }
#define __expf expf
#define __exp2f exp2f
#define __logf logf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __float_as_uint(float x) {
    unsigned u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float __uint_as_float(unsigned u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline int __float_as_int(float x) {
    int u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float __int_as_float(int u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
#ifdef EMU_WATCH
#define EMU_ATOMIC __attribute__((noinline, no_sanitize("thread")))
#else
#define EMU_ATOMIC
#endif
template <class T> EMU_ATOMIC static inline T atomicAdd(T *p, T v) {
    WATCH(atomic(p));
    T r = *p;
    *p += v;
    return r;
}
template <class T> EMU_ATOMIC static inline T atomicMax(T *p, T v) {
    WATCH(atomic(p));
    T r = *p;
    if (v > r) *p = v;
    return r;
}
static inline void __threadfence(void) { WATCH(atomic(NULL)); }

struct __nv_bfloat16 {
    uint16_t bits;
};
static inline __nv_bfloat16 __float2bfloat16(float x) { /* to nearest, ties to even */
    unsigned u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {(uint16_t)(u >> 16 | 0x40)};
    return {(uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16)};
}
static inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }

/* ---- tensor cores and asynchronous copies (the wrappers are in src/cuda/common.cuh) ---- */

void emu_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void emu_mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]);
void emu_ldmatrix(uint32_t *r, int n, const void *row, bool trans);
void emu_copy_async(void *shared, const void *global, int bytes, int filled);
void emu_copy_commit(void);
void emu_copy_wait(int groups);

/* ---- bulk copies, mbarriers, named barriers (the wrappers are in src/cuda/mbarrier.cuh, named_barrier.cuh) ---- */

void emu_mbarrier_init(uint64_t *b, int arrivals);
void emu_mbarrier_arrive(uint64_t *b, int bytes);
void emu_mbarrier_wait(uint64_t *b, uint32_t parity);
void emu_bulk_copy(void *shared, const void *global, int bytes, uint64_t *b);
/* rows of 128 bytes, `pitch` bytes apart, to a tile with the swizzle of 128 bytes; those from `filled` on become 0 */
void emu_tensor_copy(void *shared, const void *global, int64_t pitch, int rows, int filled, uint64_t *b);
EMU_ATOMIC static inline void emu_bulk_store(void *global, const void *shared, int bytes, bool add) {
    WATCH(reads(1, shared, (size_t)bytes));
    WATCH(commit(1));
    WATCH(access(global, (size_t)bytes, 1, 1));
    if (!add) memcpy(global, shared, (size_t)bytes);
    for (int i = 0; add && i < bytes / 4; i++) ((float *)global)[i] += ((const float *)shared)[i];
}
static inline void emu_bulk_store_wait(int left) { (void)left, WATCH(wait(1, left)); }
static inline void emu_fence_proxy(void) { WATCH(fence_proxy()); }
static inline void emu_wgmma(bool begins) { (void)begins, WATCH(wgmma(begins)); }
static inline void emu_wgmma_commit_wait(int left) { (void)left, WATCH(commit(0)), WATCH(wait(0, left)); }
/* ---- programmatic dependent launch (src/cuda/pdl.cuh) ---- */
static inline void emu_pdl_launch(void) { WATCH(pdl_launch()); }
static inline void emu_pdl_wait(void) { WATCH(pdl_wait()); }
static inline void emu_pdl_trigger(void) { WATCH(pdl_trigger()); }
void emu_named_barrier_init(void); /* before the first of these in a block */
void emu_named_barrier(int id, int threads, bool wait);

#endif
