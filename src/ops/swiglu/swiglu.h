/* swiglu.h -- y = silu(gate) up.   dup = dy silu(gate),  dgate = dy up s (1 + gate (1 - s)), s = sigma(gate). */
#ifndef HL_SWIGLU_H
#define HL_SWIGLU_H
#include "ops/linear/linear.h"

struct hl_swiglu {
    int64_t M, D;
    const void *gate, *up; /* [M][D] */
    int64_t ld;            /* a device: numbers from one row of gate, up and their gradients to the next; 0: D */
    void *y;
    const void *dy;
    void *dgate, *dup; /* may alias gate and up */
};

/* gate_up_backward: swiglu_backward, then linear_backward of the layer whose outputs are gate and up, to the same
 * bits. In FP8 the gradients of gate and up need not be written: then they exist only as codes. */
struct hl_gate_up {
    struct hl_swiglu swiglu;
    struct hl_linear linear; /* part 0: gate, part 1: up */
};
#endif
