/* cuda.h -- one CUDA device, as seen by the host code of the ops.
 *
 * All work of a model goes to one stream, in order. Ops return no errors: the first failure is recorded and reported
 * when the stream is synchronised (hl_finish). The tests also link an emulated device that uses host memory. */
#ifndef HL_CUDA_H
#define HL_CUDA_H
#include "core/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hl_cuda;

bool hl_cuda_available(void);
int hl_cuda_count(void);           /* devices */
const char *hl_cuda_version(void); /* the CUDA version of the build, "13.0" */
const char *hl_cuda_arch(void);    /* architectures with machine code in this build, "90a" */
/* device < 0: the first device. On failure one line says why ("no CUDA device: ..."). */
hola_status hl_cuda_open(struct hl_cuda **out, int device);
void hl_cuda_close(struct hl_cuda *c);
const char *hl_cuda_name(const struct hl_cuda *c);
int hl_cuda_sms(const struct hl_cuda *c);          /* multiprocessors */
int hl_cuda_shared_limit(const struct hl_cuda *c); /* maximum shared memory per thread block, in bytes */
/* Whether this device runs code of the kernel compiled for Hopper (sm_90) or later, which uses programmatic dependent
 * launch, mbarriers, bulk copies and wgmma. The driver is queried once per device and kernel; any thread may call
 * this. */
bool hl_cuda_compiled_for_sm90(struct hl_cuda *c, const void *kernel);

/* Scratch memory on the device, valid until the next op: an op asks once, for all it needs. 256-byte aligned. NULL: out
 * of memory; the failure is recorded, and the op must return. */
void *hl_cuda_scratch(struct hl_cuda *c, int64_t bytes);
/* For a borrowed device (device.h): reserves `bytes` of the scratch memory for the whole call; ops get the rest. NULL:
 * a dry run, or not enough memory, and then the failure is recorded. */
void *hl_cuda_take(struct hl_cuda *c, int64_t bytes);
bool hl_cuda_measuring(const struct hl_cuda *c);

/* Times the stream with events: stop synchronises and returns the seconds since start. */
void hl_cuda_timer_start(struct hl_cuda *c);
double hl_cuda_timer_stop(struct hl_cuda *c);

/* C [M][N] = alpha op(A) op(B) + beta C, all row-major. a_trans: A is stored [K][M]; b_trans: B is stored [N][K]. A and
 * B have one type; C may be F32 beside BF16 operands. Sums are fp32, in an order that depends on the shape alone. */
struct hl_gemm {
    int64_t M, N, K;
    bool a_trans, b_trans;
    const void *A, *B;
    void *C;
    int64_t lda, ldb, ldc; /* row lengths as stored */
    hola_dtype in, out;    /* HOLA_F32 or HOLA_BF16 */
    float alpha, beta;
    const void *add; /* the matrix that beta multiplies, laid out as C; NULL: C itself */
    /* FP8 (ops/linear/fp8.h): A [M][K] and B [N][K] are codes, in E4M3 but for A with a_e5m2, with these scales;
     * b_trans and not a_trans, without gaps between rows. b_blocks: those of B are of blocks. NULL: not FP8. */
    const float *a_scale, *b_scale;
    bool a_e5m2, b_blocks;
};
void hl_cuda_gemm(struct hl_cuda *c, const struct hl_gemm *g);
/* Whether there is a kernel for it. A product in FP8 is asked about before it is begun. */
bool hl_cuda_gemm_has(struct hl_cuda *c, const struct hl_gemm *g);

/* ---- FP8 (fp8.c) ---- */

/* A weight in FP8 and its transposed form, for one step of training. */
struct hl_fp8_weight {
    const void *W;
    int64_t rows, cols;
    uint8_t *codes, *codes_t;
    float *scale, *scale_t;
    int64_t step; /* it was filled for; compared with that of the device */
};
bool hl_cuda_fp8_on(const struct hl_cuda *c);
/* The codes of a weight at this place, with room for so many scales; *fill: they are of an earlier step, or new. NULL:
 * no memory, which is kept. */
const struct hl_fp8_weight *hl_cuda_fp8_weight(struct hl_cuda *c, const void *W, int64_t rows, int64_t cols,
                                               int64_t scales, int64_t scales_t, bool *fill);

/* How the rows of a pass are cut into chunks and blocks, in device memory (the dev of struct hl_rows). Both are listed
 * segment by segment, in order. */
struct hl_dev_span {
    int32_t row, len; /* rows [row, row + len) of the batch */
    int32_t seg;
    /* blocks: rows of this block before the segment (stored in its state); tiles: the first row's position */
    int32_t skip;
};
enum { HL_TILE = 128, HL_WIDE_TILE = 192, HL_ZEROS = 64 };
struct hl_dev_rows {
    int64_t chunks, blocks, longest; /* rows of the longest segment */
    const struct hl_seg *seg;        /* [n]; states are device pointers */
    const int32_t *row_seg;          /* [T] */
    const struct hl_dev_span *chunk; /* [chunks]: HL_CHUNK rows from each segment's first */
    const int32_t *chunk_first;      /* [n + 1] */
    const struct hl_dev_span *block; /* [blocks]: the cache's blocks, aligned to absolute positions */
    const int32_t *block_first;      /* [n + 1] */
    /* For tiled rows: each segment in tiles of HL_TILE and of HL_WIDE_TILE rows, latest positions first. key_tile: the
     * HL_TILE tiles, sorted by the number of rows to the end of their segment, most first, in groups of whole
     * segments. */
    const struct hl_dev_span *tile, *wide_tile, *key_tile;
    int64_t tiles, wide_tiles;
    int32_t *zeros; /* [n][HL_ZEROS] counters that are 0 before and after each op */
    /* The pages of segment i's session start at page_first[i]. These tables come last, so that they can grow without
     * moving the others: a captured graph reads the current ones. */
    const int32_t *page_first; /* [n + 1] */
    const char *const *page;
};

#ifdef __cplusplus
}
#endif
#endif
