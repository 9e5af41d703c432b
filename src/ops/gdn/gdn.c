/* gdn.c -- what callers of the delta rule must reserve. */
#include "ops/gdn/gdn_cpu.h"

int64_t hl_gdn_scratch(int64_t K, int64_t V) { return gdn_scratch_reals(K, V) * (int64_t)sizeof(real); }
