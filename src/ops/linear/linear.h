/* linear.h -- linear layers: out_i = x W_i^T for up to six matrices with a shared input x.
 *
 * x [M][K], W_i [N_i][K], out_i [M][N_i]. The summation order over K depends only on K: a row's result does not depend
 * on M, on the other rows, or on the number of threads.
 * `from` adds the residual stream. Quantised weights (quant.h) multiply x rounded to 16 bits (quant_dot.h). Backward:
 * dx = sum_i dout_i W_i, dW_i += dout_i^T x. */
#ifndef HL_LINEAR_H
#define HL_LINEAR_H
#include "core/rows.h"
struct hl_pool;

enum { HL_LINEAR_MAX = 6 };
struct hl_linear_part {
    struct hl_weight W;
    void *out;        /* forward */
    const void *from; /* forward: out = from + x W^T, may be out itself; NULL: out = x W^T */
    const void *dout; /* backward */
    real *dW;         /* backward, accumulated; NULL: not wanted */
};
struct hl_linear {
    int64_t M, K;
    const void *x;
    int n;
    struct hl_linear_part part[HL_LINEAR_MAX];
    /* On a device: the row stride of every out, from and dout; 0: each one's width. Parts with adjacent weights and
     * outputs are then computed as one product. */
    int64_t ld;
    bool room;     /* with ld: nothing is in a row after the last part; the op may write there, in dout too */
    int64_t ldx;   /* on a device: the row stride of x and dx; 0: K */
    bool out_real; /* forward: out and from are real even if activations are not (logits) */
    void *dx;      /* backward; NULL: not wanted */
    bool dx_add;
};

int64_t hl_linear_scratch(void); /* bytes per worker */

/* A block of x W^T for an op that consumes it while it is in cache: columns [n0, n0 + n) of M rows, n0 a multiple of
 * HL_PANEL, n at most HL_LINEAR_COLUMNS. The bits are those of the whole product. */
enum { HL_LINEAR_COLUMNS = 512 };
struct hl_linear_block {
    int64_t M, K, n0, n;
    const real *x;      /* [M][K] */
    const real *strips; /* these rows packed by linear_strips; NULL: packed here */
    struct hl_weight W;
    real *C; /* [M][ldc] */
    int64_t ldc;
};

/* Packs a [rows][cols] matrix of reals as panels; out has hl_panel_bytes() bytes. For quantised types (quant.h) all
 * numbers must be finite. */
int64_t hl_panel_bytes(int64_t rows, int64_t cols, hola_dtype dtype);
void hl_panel_pack(void *out, hola_dtype dtype, const real *rows_in, int64_t rows, int64_t cols);

#endif
