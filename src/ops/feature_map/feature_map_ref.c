/* feature_map_ref.c -- the feature maps as in feature_map.h. */
#include "ops/ops.h"

void HL_OP(feature_map_forward)(struct hl_backend *backend, const struct hl_feature_map *a) {
    const real *x = a->x;
    (void)backend;
    for (int64_t i = 0; i < a->M * a->D; i++) {
        real relu = x[i] > 0 ? x[i] : 0, *y = (real *)a->y + i;
        switch (a->kind) {
        case HOLA_MAP_RELU: *y = relu; break;
        case HOLA_MAP_SQRELU: *y = relu * relu; break;
        case HOLA_MAP_SIGMOID: *y = hl_sigmoid(x[i]); break;
        default: *y = x[i] * hl_sigmoid(x[i]);
        }
    }
}

void HL_OP(feature_map_backward)(struct hl_backend *backend, const struct hl_feature_map *a) {
    const real *x = a->x, *dy = a->dy;
    (void)backend;
    for (int64_t i = 0; i < a->M * a->D; i++) {
        real s = hl_sigmoid(x[i]), slope;
        switch (a->kind) {
        case HOLA_MAP_RELU: slope = x[i] > 0; break;
        case HOLA_MAP_SQRELU: slope = x[i] > 0 ? 2 * x[i] : 0; break;
        case HOLA_MAP_SIGMOID: slope = s * (1 - s); break;
        default: slope = s * (1 + x[i] * (1 - s));
        }
        ((real *)a->dx)[i] = dy[i] * slope;
    }
}
