/* fp8_host.h -- products in FP8 on the CPU: a simulation, see fp8_host.c. */
#ifndef HL_FP8_HOST_H
#define HL_FP8_HOST_H
#include "backend/backend.h"

extern const struct hl_fp8_products hl_fp8_host_products;
/* A form of a quantised matrix as reals [rows][cols], or of the transposed form, in the layout of the matrix again. */
void hl_fp8_dequantise(const struct hl_fp8_quantise *q, bool transposed, real *out);

#endif
