/* rope.h -- rotary positions: pairs (i, i + D/2) of a head rotated by an angle proportional to the position.
 *
 *     (x_i, x_{i+D/2}) -> (x_i c - x_{i+D/2} s, x_i s + x_{i+D/2} c),  i < D/2,  c, s = cos, sin(t theta^{-2i/D})
 * t counts from the document's first token (seg->pos + the row in the segment). The angle is computed in float as
 * t * (float)theta^{-2i/D}, cos and sin stay floats. Backward: the same with the negative angle. */
#ifndef HL_ROPE_H
#define HL_ROPE_H
#include "core/rows.h"

struct hl_rope {
    const struct hl_rows *rows;
    int64_t H, D; /* heads; size of one, even */
    double theta;
    const void *x; /* [T][H][D] */
    void *y;       /* may be x */
    int64_t ld;    /* a device: numbers from one row of x, y, dy, dx to the next; 0: H D */
    const void *dy;
    void *dx; /* written; may be dy */
};
/* bytes per worker */
static inline int64_t hl_rope_scratch(int64_t D) { return (D / 2 + D) * (int64_t)sizeof(real); }
#endif
