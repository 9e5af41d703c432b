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

/* SwiGLU together with a linear layer, to the bits of the two ops. Where that layer's products are in FP8, what passes
 * from one to the other exists only as codes.
 * gate_up_backward: swiglu_backward, then linear_backward of the layer whose outputs are gate and up. dgate and dup may
 * not be written. */
struct hl_gate_up {
    struct hl_swiglu swiglu;
    struct hl_linear linear; /* part 0: gate, part 1: up */
};
/* down_forward: swiglu_forward, then linear_forward of the layer whose x is y; down_backward: its linear_backward, with
 * dW. A pass takes both or neither: in between the memory of y may hold codes. */
struct hl_down {
    struct hl_swiglu swiglu;
    struct hl_linear linear;
    bool recompute; /* y is not kept: the backward pass computes it again */
};
#endif
