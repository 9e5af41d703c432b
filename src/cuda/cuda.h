/* cuda.h -- one CUDA device, as the host code of the ops sees it.
 *
 * All work of a model goes to one stream, in order. Ops do not return errors: the first failure is kept and
 * reported when the pass is waited for (hl_finish). Compiled by nvcc for a GPU, and by a C++
 * compiler with the kernels emulated (tests/emu), where "device memory" is host memory. */
#ifndef HL_CUDA_H
#define HL_CUDA_H
#include "core/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hl_cuda;

/* device < 0: the first. One line says why there is none ("no CUDA device: ..."). */
bool hl_cuda_available(void);
hola_status hl_cuda_open(struct hl_cuda **out, int device);
void hl_cuda_close(struct hl_cuda *c);
const char *hl_cuda_name(const struct hl_cuda *c);
int hl_cuda_sms(const struct hl_cuda *c); /* multiprocessors */
/* Whether the code of a kernel that this device runs was compiled for Hopper or later, and so has its waits for other
 * kernels, bulk copies and wgmma. Asked of the driver once per device and kernel; any thread may ask. */
bool hl_cuda_compiled_for_sm90(struct hl_cuda *c, const void *kernel);

/* Device memory that lives until the next op: an op asks once, for all it needs. 256-byte aligned. NULL: there is
 * no room, the failure is kept and the op must return at once. */
void *hl_cuda_scratch(struct hl_cuda *c, int64_t bytes);

/* The device's own clock: start, work, stop; stop waits and gives the seconds between. */
void hl_cuda_timer_start(struct hl_cuda *c);
double hl_cuda_timer_stop(struct hl_cuda *c);

/* C [M][N] = alpha op(A) op(B) + beta C, all row-major. a_trans: A is stored [K][M]; b_trans: B is stored [N][K].
 * A and B have one type; C may be F32 beside BF16 operands. Sums are in fp32, in an order that depends on the
 * shape alone. */
struct hl_gemm {
    int64_t M, N, K;
    bool a_trans, b_trans;
    const void *A, *B;
    void *C;
    int64_t lda, ldb, ldc; /* row lengths as stored */
    hola_dtype in, out;    /* HOLA_F32 or HOLA_BF16 */
    float alpha, beta;
    const void *add; /* what beta multiplies, laid out as C; NULL: C itself */
};
void hl_cuda_gemm(struct hl_cuda *c, const struct hl_gemm *g);

/* How the rows of a pass are cut, in device memory (struct hl_rows: dev). Chunks and blocks are listed segment by
 * segment, in order. */
struct hl_dev_span {
    int32_t row, len; /* rows [row, row + len) of the batch */
    int32_t seg;
    int32_t skip; /* blocks: rows of this block that came before the segment (they are in its state) */
};
struct hl_dev_rows {
    int64_t chunks, blocks, longest; /* rows of the longest segment */
    const struct hl_seg *seg;        /* [n]; states are device pointers */
    const int32_t *row_seg;          /* [T] */
    const struct hl_dev_span *chunk; /* [chunks]: HL_CHUNK rows from each segment's first */
    const int32_t *chunk_first;      /* [n + 1] */
    const struct hl_dev_span *block; /* [blocks]: the cache's grid of absolute positions */
    const int32_t *block_first;      /* [n + 1] */
};

#ifdef __cplusplus
}
#endif
#endif
