/* raw_linear_ops.c -- include/hola_ops.h: Kimi Delta Attention and gated linear attention. */
#include "backend/raw_ops.h"
#include "core/status.h"

/* What both structs begin with. */
static hola_status check_common(const char *op, int32_t size, int32_t right, int32_t flags, int32_t known,
                                float scale) {
    if (size != right) return hl_fail(HOLA_EINVAL, "%s: size is %d, not %d", op, size, right);
    if (flags & ~known) return hl_fail(HOLA_EINVAL, "%s: flags = %d", op, flags);
    if (!(scale - scale == 0)) return hl_fail(HOLA_EINVAL, "%s: scale = %g", op, (double)scale);
    return HOLA_OK;
}

/* ---- Kimi Delta Attention ---- */

static hola_status kda_shapes(const hola_kda_args *a) {
    hola_status s =
        check_common("kda", a ? a->size : 0, (int32_t)sizeof *a, a ? a->flags : 0, HOLA_KDA_NORM, a ? a->scale : 0);
    if (s == HOLA_OK) s = hl_raw_check_rows(&a->rows);
    if (s == HOLA_OK) s = hl_raw_check_heads(&a->rows, a->H, a->HV, a->K, a->V);
    if (s == HOLA_OK) s = hl_raw_check_dtype("dtype", a->dtype);
    return s;
}
static hola_status kda_pointers(const hola_kda_args *a, bool backward) {
    const bool rows = a->rows.T > 0, back = rows && backward, fore = rows && !backward;
    const struct hl_raw_pointer all[] = {
        {"q", a->q, 16, rows},        {"k", a->k, 16, rows},       {"v", a->v, 16, rows},
        {"g", a->g, 16, rows},        {"beta", a->beta, 4, rows},  {"h0", a->h0, 16, false},
        {"out", a->out, 16, fore},    {"ht", a->ht, 16, false},    {"m", a->m, 4, false},
        {"kept", a->kept, 16, back},  {"dout", a->dout, 16, back}, {"dq", a->dq, 16, back},
        {"dk", a->dk, 16, back},      {"dv", a->dv, 16, back},     {"dg", a->dg, 16, back},
        {"dbeta", a->dbeta, 4, back}, {"dht", a->dht, 16, false},  {"dh0", a->dh0, 16, false},
    };
    return hl_raw_check_pointers(all, sizeof all / sizeof *all);
}

/* ---- gated linear attention ---- */

static hola_status gla_shapes(const hola_gla_args *a) {
    hola_status s = check_common("gla", a ? a->size : 0, (int32_t)sizeof *a, a ? a->flags : 0, 0, a ? a->scale : 0);
    if (s == HOLA_OK && (a->H < 1 || a->HK < 1 || a->H % a->HK))
        return hl_fail(HOLA_EINVAL, "gla: H = %lld, HK = %lld", (long long)a->H, (long long)a->HK);
    if (s == HOLA_OK) s = hl_raw_check_rows(&a->rows);
    if (s == HOLA_OK) s = hl_raw_check_heads(&a->rows, a->HK, a->H, a->K, a->V);
    if (s == HOLA_OK) s = hl_raw_check_dtype("dtype", a->dtype);
    return s;
}
static hola_status gla_pointers(const hola_gla_args *a, bool backward) {
    const bool rows = a->rows.T > 0, back = rows && backward, fore = rows && !backward;
    const struct hl_raw_pointer all[] = {
        {"q", a->q, 16, rows},      {"k", a->k, 16, rows},      {"v", a->v, 16, rows},    {"g", a->g, 16, rows},
        {"h0", a->h0, 16, false},   {"out", a->out, 16, fore},  {"ht", a->ht, 16, false}, {"dout", a->dout, 16, back},
        {"dq", a->dq, 16, back},    {"dk", a->dk, 16, back},    {"dv", a->dv, 16, back},  {"dg", a->dg, 16, back},
        {"dht", a->dht, 16, false}, {"dh0", a->dh0, 16, false},
    };
    return hl_raw_check_pointers(all, sizeof all / sizeof *all);
}

/* ---- calls ---- */

#ifdef HL_HAVE_CUDA
static void run_kda(struct hl_backend *b, const struct hl_raw_call *x) {
    (x->f32 ? hl_cuda_f32_raw_kda : hl_cuda_raw_kda)(b, x->args, x->backward);
}
static void run_gla(struct hl_backend *b, const struct hl_raw_call *x) {
    (x->f32 ? hl_cuda_f32_raw_gla : hl_cuda_raw_gla)(b, x->args, x->backward);
}
int64_t hola_kda_kept_bytes(const hola_kda_args *a) {
    if (kda_shapes(a) != HOLA_OK) return -1;
    return (a->dtype == HOLA_F32 ? hl_cuda_f32_raw_kda_kept : hl_cuda_raw_kda_kept)(a);
}
/* The maximum over all choices of optional arrays. */
int64_t hola_kda_work_bytes(const hola_kda_args *a, int device, bool backward) {
    int64_t most = 0;
    if (kda_shapes(a) != HOLA_OK) return -1;
    for (int i = 0; i < 8; i++) {
        hola_kda_args x = *a;
        const struct hl_raw_call one = {run_kda, &x, a->dtype == HOLA_F32, backward};
        x.kept = backward || i & 1 ? (void *)hl_raw_there : NULL;
        x.h0 = i & 2 ? (const float *)hl_raw_there : NULL;
        x.ht = i & 4 ? (float *)hl_raw_there : NULL;
        x.m = NULL;
        most = hl_raw_more(most, &one, device);
    }
    return most;
}
int64_t hola_gla_work_bytes(const hola_gla_args *a, int device, bool backward) {
    int64_t most = 0;
    if (gla_shapes(a) != HOLA_OK) return -1;
    for (int i = 0; i < 4; i++) {
        hola_gla_args x = *a;
        const struct hl_raw_call one = {run_gla, &x, a->dtype == HOLA_F32, backward};
        x.h0 = i & 1 ? (const float *)hl_raw_there : NULL;
        x.ht = i & 2 ? (float *)hl_raw_there : NULL;
        most = hl_raw_more(most, &one, device);
    }
    return most;
}
#else
#define run_kda NULL
#define run_gla NULL
int64_t hola_kda_kept_bytes(const hola_kda_args *a) {
    if (kda_shapes(a) == HOLA_OK) hl_raw_call(NULL, NULL);
    return -1;
}
int64_t hola_kda_work_bytes(const hola_kda_args *a, int device, bool backward) {
    (void)device, (void)backward;
    return hola_kda_kept_bytes(a);
}
int64_t hola_gla_work_bytes(const hola_gla_args *a, int device, bool backward) {
    (void)device, (void)backward;
    if (gla_shapes(a) == HOLA_OK) hl_raw_call(NULL, NULL);
    return -1;
}
#endif

static hola_status kda_call(const hola_where *w, const hola_kda_args *a, bool backward) {
    hola_status s = hl_raw_check_where(w);
    if (s == HOLA_OK) s = kda_shapes(a);
    if (s == HOLA_OK) s = kda_pointers(a, backward);
    if (s != HOLA_OK) return s;
    const struct hl_raw_call x = {run_kda, a, a->dtype == HOLA_F32, backward};
    return hl_raw_call(w, &x);
}
static hola_status gla_call(const hola_where *w, const hola_gla_args *a, bool backward) {
    hola_status s = hl_raw_check_where(w);
    if (s == HOLA_OK) s = gla_shapes(a);
    if (s == HOLA_OK) s = gla_pointers(a, backward);
    if (s != HOLA_OK) return s;
    const struct hl_raw_call x = {run_gla, a, a->dtype == HOLA_F32, backward};
    return hl_raw_call(w, &x);
}
hola_status hola_kda_forward(const hola_where *w, const hola_kda_args *a) { return kda_call(w, a, false); }
hola_status hola_kda_backward(const hola_where *w, const hola_kda_args *a) { return kda_call(w, a, true); }
hola_status hola_gla_forward(const hola_where *w, const hola_gla_args *a) { return gla_call(w, a, false); }
hola_status hola_gla_backward(const hola_where *w, const hola_gla_args *a) { return gla_call(w, a, true); }
