/* row_pieces.cuh -- arrays [M][D] for elementwise kernels: 16-byte pieces and a remainder. Some arrays may be strided
 * (rows `ld` numbers apart); the others are dense. */
#ifndef HL_ROW_PIECES_CUH
#define HL_ROW_PIECES_CUH
#include "cuda/common.cuh"

/* n numbers in pieces of `wide`, `pieces` per row; strided rows are ld numbers apart. */
struct cut {
    int64_t n, ld;
    unsigned pieces;
};
/* the index in a strided array of the piece at i of a dense one */
template <int wide> static __device__ __forceinline__ int64_t place(const struct cut &c, int64_t i) {
    const unsigned p = (unsigned)(i / wide), row = p / c.pieces;
    return row * c.ld + (p - row * c.pieces) * wide;
}

/* The part in 16-byte pieces, and the remainder. Dense rows count as one row. */
struct cuts {
    struct cut wide, narrow;
    int64_t whole; /* first number of the remainder */
};
static inline struct cuts cuts_of(int64_t M, int64_t D, int64_t ld) {
    const int64_t n = M * D;
    struct cuts c = {};
    if (ld == 0 || ld == D) {
        c.whole = n / WIDE * WIDE;
        c.wide.n = c.whole, c.wide.pieces = (unsigned)(n / WIDE);
        c.narrow.n = n - c.whole, c.narrow.pieces = (unsigned)c.narrow.n;
    } else if (D % WIDE == 0 && ld % WIDE == 0) {
        c.wide.n = c.whole = n, c.wide.ld = ld, c.wide.pieces = (unsigned)(D / WIDE);
    } else c.narrow.n = n, c.narrow.ld = ld, c.narrow.pieces = (unsigned)D;
    return c;
}
#endif
