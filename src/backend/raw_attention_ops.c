/* raw_attention_ops.c -- include/hola_ops.h: causal softmax attention. */
#include "backend/raw_ops.h"
#include "core/status.h"
#include "cuda/cuda.h"

enum { MOST_D = 512, MOST_HEADS = 65535 };

static hola_status shapes(const hola_attention_args *a) {
    if (!a || a->size != (int32_t)sizeof *a)
        return hl_fail(HOLA_EINVAL, "attention: size is %d, not %d", a ? a->size : 0, (int)sizeof *a);
    if (a->flags) return hl_fail(HOLA_EINVAL, "attention: flags = %d", a->flags);
    if (!(a->scale - a->scale == 0)) return hl_fail(HOLA_EINVAL, "attention: scale = %g", (double)a->scale);
    if (a->H < 1 || a->HK < 1 || a->H % a->HK)
        return hl_fail(HOLA_EINVAL, "attention: H = %lld, HK = %lld", (long long)a->H, (long long)a->HK);
    if (a->D < 1) return hl_fail(HOLA_EINVAL, "attention: D = %lld", (long long)a->D);
    if (a->window < 0) return hl_fail(HOLA_EINVAL, "attention: window = %lld", (long long)a->window);
    if (a->D > MOST_D) return hl_fail(HOLA_ENOTSUP, "attention: D = %lld: the most is %d", (long long)a->D, MOST_D);
    if (a->H > MOST_HEADS)
        return hl_fail(HOLA_ENOTSUP, "attention: H = %lld: the most is %d", (long long)a->H, MOST_HEADS);
    hola_status s = hl_raw_check_rows(&a->rows);
    if (s != HOLA_OK) return s;
    /* kernels number tiles and heads together with 32 bits */
    if ((a->rows.T / HL_TILE + a->rows.N) > INT32_MAX / a->H || a->rows.T / HL_TILE + a->rows.N > INT32_MAX / HL_TILE)
        return hl_fail(HOLA_ENOTSUP, "attention: %lld rows of %lld sequences with %lld heads are too many for one call",
                       (long long)a->rows.T, (long long)a->rows.N, (long long)a->H);
    return hl_raw_check_dtype("dtype", a->dtype);
}
static hola_status pointers(const hola_attention_args *a, bool backward) {
    const bool rows = a->rows.T > 0, back = rows && backward;
    const struct hl_raw_pointer all[] = {
        {"q", a->q, 16, rows},     {"k", a->k, 16, rows},    {"v", a->v, 16, rows},
        {"out", a->out, 16, rows}, {"lse", a->lse, 4, back}, {"dout", a->dout, 16, back},
        {"dq", a->dq, 16, back},   {"dk", a->dk, 16, back},  {"dv", a->dv, 16, back},
    };
    return hl_raw_check_pointers(all, sizeof all / sizeof *all);
}

#ifdef HL_HAVE_CUDA
static void run(struct hl_backend *b, const struct hl_raw_call *x) {
    (x->f32 ? hl_cuda_f32_raw_attention : hl_cuda_raw_attention)(b, x->args, x->backward);
}
int64_t hola_attention_work_bytes(const hola_attention_args *a, int device, bool backward) {
    if (shapes(a) != HOLA_OK) return -1;
    hola_attention_args x = *a;
    const struct hl_raw_call one = {run, &x, a->dtype == HOLA_F32, backward};
    x.q = x.k = x.v = x.dout = NULL; /* of shapes alone */
    x.out = x.dq = x.dk = x.dv = NULL, x.lse = NULL;
    return hl_raw_more(0, &one, device);
}
#else
#define run NULL
int64_t hola_attention_work_bytes(const hola_attention_args *a, int device, bool backward) {
    (void)device, (void)backward;
    if (shapes(a) == HOLA_OK) hl_raw_call(NULL, NULL);
    return -1;
}
#endif

static hola_status call(const hola_where *w, const hola_attention_args *a, bool backward) {
    hola_status s = hl_raw_check_where(w);
    if (s == HOLA_OK) s = shapes(a);
    if (s == HOLA_OK) s = pointers(a, backward);
    if (s != HOLA_OK) return s;
    const struct hl_raw_call x = {run, a, a->dtype == HOLA_F32, backward};
    return hl_raw_call(w, &x);
}
hola_status hola_attention_forward(const hola_where *w, const hola_attention_args *a) { return call(w, a, false); }
hola_status hola_attention_backward(const hola_where *w, const hola_attention_args *a) { return call(w, a, true); }
