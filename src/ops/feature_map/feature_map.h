/* feature_map.h -- y = f(x), element by element; dx = f'(x) dy. The feature maps of gla and gsa: relu, swish (SiLU),
 * sigmoid, sqrelu (relu squared). */
#ifndef HL_FEATURE_MAP_H
#define HL_FEATURE_MAP_H
#include "core/rows.h"

struct hl_feature_map {
    int64_t M, D;
    hola_feature_map kind; /* not HOLA_MAP_NONE */
    const void *x;         /* [M][D] */
    int64_t ld;            /* a device: numbers from one row of x and dx to the next; 0: D */
    void *y;
    const void *dy;
    void *dx; /* may be dy if rows of x are dense */
};
#endif
