/* fake_ops.c -- a stand-in for libhola's operations on pointers: real functions with real structs, which hand every
 * call over to the test. Built against include/hola_ops.h where that is there, else against the same structs below. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if __has_include("hola_ops.h")
#include "hola_ops.h"
#else
typedef int hola_status, hola_dtype;
#define HOLA_API
typedef struct hola_where {
    int32_t size, device;
    void *stream, *work;
    int64_t work_bytes;
} hola_where;
typedef struct hola_rows {
    int64_t T, N, longest;
    const void *cu;
    int32_t cu_bits;
} hola_rows;
typedef struct hola_gdn_args {
    int32_t size, flags;
    hola_rows rows;
    int64_t H, HV, K, V;
    hola_dtype dtype, gate_dtype;
    float scale;
    const void *q, *k, *v, *g, *beta;
    const float *A_log, *dt_bias, *h0;
    void *out;
    float *ht, *m;
    void *kept;
    const void *dout;
    const float *dht;
    void *dq, *dk, *dv;
    float *dg, *dbeta, *dh0, *dA_log, *ddt_bias;
} hola_gdn_args;
#endif

typedef int (*fake_call)(const hola_where *, const hola_gdn_args *, int backward);
static fake_call call;
HOLA_API void fake_set(fake_call f) { call = f; }

HOLA_API const char *hola_last_error(void) { return "the stand-in refuses"; }
HOLA_API int64_t hola_gdn_kept_bytes(const hola_gdn_args *a) {
    return a->size != sizeof *a ? -1 : 16 + 8 * a->rows.T * a->HV;
}
HOLA_API int64_t hola_gdn_work_bytes(const hola_gdn_args *a, int device, bool backward) {
    (void)device;
    return a->size != sizeof *a ? -1 : 100 + a->rows.N * (backward ? 3 : 1);
}
HOLA_API hola_status hola_gdn_forward(const hola_where *w, const hola_gdn_args *a) { return call(w, a, 0); }
HOLA_API hola_status hola_gdn_backward(const hola_where *w, const hola_gdn_args *a) { return call(w, a, 1); }

/* Size and offsets as the compiler has them. */
HOLA_API size_t hola_sizeof(const char *name) {
    return !strcmp(name, "hola_where")      ? sizeof(hola_where)
           : !strcmp(name, "hola_rows")     ? sizeof(hola_rows)
           : !strcmp(name, "hola_gdn_args") ? sizeof(hola_gdn_args)
                                            : 0;
}
#define AT(field) \
    if (!strcmp(name, #field)) return (int64_t)offsetof(hola_gdn_args, field)
HOLA_API int64_t fake_offset(const char *name) {
    AT(size);
    AT(flags);
    AT(rows);
    AT(H);
    AT(HV);
    AT(K);
    AT(V);
    AT(dtype);
    AT(gate_dtype);
    AT(scale);
    AT(q);
    AT(k);
    AT(v);
    AT(g);
    AT(beta);
    AT(A_log);
    AT(dt_bias);
    AT(h0);
    AT(out);
    AT(ht);
    AT(m);
    AT(kept);
    AT(dout);
    AT(dht);
    AT(dq);
    AT(dk);
    AT(dv);
    AT(dg);
    AT(dbeta);
    AT(dh0);
    AT(dA_log);
    AT(ddt_bias);
    return -1;
}
