/* cuda_backend.h -- a CUDA device as a backend; only in builds with CUDA. */
#ifndef HL_CUDA_BACKEND_H
#define HL_CUDA_BACKEND_H
#include "backend/backend.h"

/* Fills all of *b except its threads. device: the index, f32: float activations. */
hola_status hl_cuda_backend_open(struct hl_backend *b, int device, bool f32);
struct hl_cuda *hl_cuda_of(const struct hl_backend *b);

#endif
