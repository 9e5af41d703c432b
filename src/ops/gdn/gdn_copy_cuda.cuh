/* gdn_copy_cuda.cuh -- the inputs of a chunk by tensor copies (tensor_map.cuh), which one thread starts: the scans over a
 * segment's chunks. A box is 64 rows and 64 columns, a panel in shared memory. The rows after a segment's last one are
 * another segment's and need not be numbers: where a chunk has fewer than 64 rows, the copies complete on a separate
 * mbarrier, and the warp that started them clears those rows before it passes the chunk on. */
#ifndef HL_GDN_COPY_CUDA_CUH
#define HL_GDN_COPY_CUDA_CUH
#include "cuda/tensor_map.cuh"
#include "ops/gdn/gdn_cuda.cuh"

/* The map of x, [T][heads][width], for boxes of a chunk's rows. The callers' kernels require what can fail here. */
static inline struct tensor_map gdn_map(const void *x, int64_t T, int64_t columns) {
    struct tensor_map m = {};
    HL_ASSERT(tensor_map_make(&m, x, T > 0 ? T : 1, columns, columns, CHUNK));
    return m;
}
/* rows from `first` on of `panels` panels become 0; by the lanes of a warp */
static __device__ __forceinline__ void clear_rows(bf16 *tile, int panels, int first, int lane) {
    for (int p = 0; p < panels; p++)
        for (int i = first * 8 + lane; i < CHUNK * 8; i += 32)
            *(uint4 *)(tile + p * CHUNK * 64 + i * 8) = make_uint4(0, 0, 0, 0);
}

#endif
