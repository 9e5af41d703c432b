/* ops.c -- picks the table of ops for this processor. */
#include "ops/ops.h"
#include <string.h>

extern const struct hl_ops hl_ref_ops, hl_base_ops;
#ifndef HL_DOUBLE
#if defined(__x86_64__)
extern const struct hl_ops hl_avx2_ops, hl_avx512_ops;
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif
#endif

const struct hl_ops *hl_ops_named(const char *backend) {
    const struct hl_ops *have[4] = {&hl_ref_ops, &hl_base_ops};
    int n = 2;
#if defined(__x86_64__) && !defined(HL_DOUBLE)
    if (has_avx2()) have[n++] = &hl_avx2_ops;
    if (has_avx512()) have[n++] = &hl_avx512_ops;
#endif
    if (!backend || !strcmp(backend, "cpu")) return have[n - 1];
    for (int i = 0; i < n; i++)
        if (!strcmp(backend, have[i]->name)) return have[i];
    return NULL;
}
