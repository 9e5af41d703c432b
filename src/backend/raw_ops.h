/* raw_ops.h -- shared by the functions of include/hola_ops.h: argument checks, and calls on a borrowed device. */
#ifndef HL_RAW_OPS_H
#define HL_RAW_OPS_H
#include "ops/raw/raw.h"

hola_status hl_raw_check_rows(const hola_rows *r);
hola_status hl_raw_check_heads(const hola_rows *r, int64_t H, int64_t HV, int64_t K, int64_t V);
hola_status hl_raw_check_dtype(const char *name, hola_dtype t);
hola_status hl_raw_check_where(const hola_where *w);

struct hl_raw_pointer {
    const char *name;
    const void *p;
    int align;
    bool needed;
};
hola_status hl_raw_check_pointers(const struct hl_raw_pointer *p, int n);

/* One call of an op. */
struct hl_raw_call {
    void (*run)(struct hl_backend *b, const struct hl_raw_call *x);
    const void *args; /* the op's struct */
    bool f32, backward;
};
/* Measures the call, checks the workspace size, and runs it. HOLA_ENOTSUP in builds without CUDA. */
hola_status hl_raw_call(const hola_where *w, const struct hl_raw_call *x);
/* With CUDA only. The larger of `most` and the workspace bytes of x; -1: most was -1, or it failed. */
int64_t hl_raw_more(int64_t most, const struct hl_raw_call *x, int device);
extern const char hl_raw_there[16]; /* placeholder for an array that is not read */
#endif
