/* cuda_runtime.h -- found instead of CUDA's own where kernels are compiled for the emulator (src/cuda/cuda.mk). */
#include "../emu.h"
