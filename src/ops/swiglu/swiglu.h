/* swiglu.h -- y = silu(gate) up.   dup = dy silu(gate),  dgate = dy up s (1 + gate (1 - s)), s = sigma(gate). */
#ifndef HL_SWIGLU_H
#define HL_SWIGLU_H
#include "core/rows.h"

struct hl_swiglu {
    int64_t M, D;
    const void *gate, *up; /* [M][D] */
    int64_t ld;            /* a device: numbers from one row of gate, up and their gradients to the next; 0: D */
    void *y;
    const void *dy;
    void *dgate, *dup; /* may alias gate and up */
};
#endif
