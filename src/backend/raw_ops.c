/* raw_ops.c -- include/hola_ops.h: checks the arguments, borrows the device for the call, and calls the op for the
 * activation type (ops/raw). */
#include "backend/raw_ops.h"
#include "backend/backend.h"
#include "cuda/device.h"

enum { MOST_K = 256, MOST_V = 512, MOST_HEADS = 65535 };
static const int64_t INDICES = INT32_MAX; /* kernels index rows, chunks and state columns with 32 bits */

/* ---- arguments ---- */

static bool on(const void *p, uintptr_t bytes) { return (uintptr_t)p % bytes == 0; }

hola_status hl_raw_check_rows(const hola_rows *r) {
    if (r->T < 0 || r->T >= INDICES) return hl_fail(HOLA_EINVAL, "rows: T = %lld", (long long)r->T);
    if (r->N < 0 || r->N >= INDICES || (r->N == 0 && r->T > 0))
        return hl_fail(HOLA_EINVAL, "rows: N = %lld", (long long)r->N);
    if (r->longest < 0) return hl_fail(HOLA_EINVAL, "rows: longest = %lld", (long long)r->longest);
    if (!r->cu && r->N > 0 && r->T % r->N)
        return hl_fail(HOLA_EINVAL, "rows: %lld rows are not %lld sequences of the same length, and there is no cu",
                       (long long)r->T, (long long)r->N);
    if (r->cu && r->cu_bits != 32 && r->cu_bits != 64) return hl_fail(HOLA_EINVAL, "rows: cu_bits = %d", r->cu_bits);
    if (r->cu && !on(r->cu, (uintptr_t)r->cu_bits / 8)) return hl_fail(HOLA_EINVAL, "rows: cu is not aligned");
    return HOLA_OK;
}
hola_status hl_raw_check_heads(const hola_rows *r, int64_t H, int64_t HV, int64_t K, int64_t V) {
    if (H < 1 || HV < 1 || HV % H) return hl_fail(HOLA_EINVAL, "H = %lld, HV = %lld", (long long)H, (long long)HV);
    if (K < 1 || V < 1) return hl_fail(HOLA_EINVAL, "K = %lld, V = %lld", (long long)K, (long long)V);
    if (K > MOST_K || V > MOST_V)
        return hl_fail(HOLA_ENOTSUP, "K = %lld, V = %lld: the maximum is %d and %d", (long long)K, (long long)V, MOST_K,
                       MOST_V);
    if (HV > MOST_HEADS) return hl_fail(HOLA_ENOTSUP, "HV = %lld: the maximum is %d", (long long)HV, MOST_HEADS);
    if (r->T > INDICES / HV || r->T / HL_CHUNK + r->N > INDICES / HV || r->N > INDICES / HV / V)
        return hl_fail(HOLA_ENOTSUP, "%lld rows of %lld sequences with %lld value heads are too many for one call",
                       (long long)r->T, (long long)r->N, (long long)HV);
    return HOLA_OK;
}
hola_status hl_raw_check_dtype(const char *name, hola_dtype t) {
    if (t == HOLA_F32 || t == HOLA_BF16) return HOLA_OK;
    return hl_fail(HOLA_EINVAL, "%s = %d: HOLA_F32 and HOLA_BF16 are known", name, (int)t);
}
hola_status hl_raw_check_where(const hola_where *w) {
    if (!w || w->size != (int32_t)sizeof *w)
        return hl_fail(HOLA_EINVAL, "where: size is %d, not %d", w ? w->size : 0, (int)sizeof *w);
    if (w->device < 0) return hl_fail(HOLA_ENOTSUP, "device %d: these ops exist on CUDA devices only", w->device);
    if (w->work_bytes < 0 || !on(w->work, 256) || (!w->work && w->work_bytes > 0))
        return hl_fail(HOLA_EINVAL, "work: NULL or not 256-byte aligned");
    return HOLA_OK;
}

hola_status hl_raw_check_pointers(const struct hl_raw_pointer *p, int n) {
    for (int i = 0; i < n; i++) {
        if (p[i].needed && !p[i].p) return hl_fail(HOLA_EINVAL, "%s is NULL", p[i].name);
        if (!on(p[i].p, (uintptr_t)p[i].align))
            return hl_fail(HOLA_EINVAL, "%s is not on %d bytes", p[i].name, p[i].align);
    }
    return HOLA_OK;
}

/* ---- the gated delta rule ---- */

static hola_status gdn_shapes(const hola_gdn_args *a) {
    const int flags = HOLA_GDN_NORM | HOLA_GDN_GATE | HOLA_GDN_SIGMOID | HOLA_GDN_NEG;
    if (!a || a->size != (int32_t)sizeof *a)
        return hl_fail(HOLA_EINVAL, "gdn: size is %d, not %d", a ? a->size : 0, (int)sizeof *a);
    if (a->flags & ~flags) return hl_fail(HOLA_EINVAL, "gdn: flags = %d", a->flags);
    if (a->flags & HOLA_GDN_NEG && !(a->flags & HOLA_GDN_SIGMOID))
        return hl_fail(HOLA_EINVAL, "gdn: HOLA_GDN_NEG without HOLA_GDN_SIGMOID");
    if (!(a->scale - a->scale == 0)) return hl_fail(HOLA_EINVAL, "gdn: scale = %g", (double)a->scale);
    hola_status s = hl_raw_check_rows(&a->rows);
    if (s == HOLA_OK) s = hl_raw_check_heads(&a->rows, a->H, a->HV, a->K, a->V);
    if (s == HOLA_OK) s = hl_raw_check_dtype("dtype", a->dtype);
    if (s == HOLA_OK) s = hl_raw_check_dtype("gate_dtype", a->gate_dtype);
    return s;
}
static hola_status gdn_pointers(const hola_gdn_args *a, bool backward) {
    const bool rows = a->rows.T > 0, gate = a->flags & HOLA_GDN_GATE, back = rows && backward;
    const int half = a->gate_dtype == HOLA_F32 ? 4 : 2;
    const struct hl_raw_pointer all[] = {
        {"q", a->q, 16, rows},
        {"k", a->k, 16, rows},
        {"v", a->v, 16, rows},
        {"g", a->g, half, rows && gate},
        {"beta", a->beta, half, rows},
        {"A_log", a->A_log, 4, rows && gate},
        {"dt_bias", a->dt_bias, 4, false},
        {"h0", a->h0, 16, false},
        {"kept", a->kept, 16, back},
    };
    const struct hl_raw_pointer to[] = {{"out", a->out, 16, false}, {"ht", a->ht, 16, false}, {"m", a->m, 4, false}};
    const struct hl_raw_pointer grad[] = {
        {"dout", a->dout, 16, back},     {"dht", a->dht, 16, false},
        {"dq", a->dq, 16, back},         {"dk", a->dk, 16, back},
        {"dv", a->dv, 16, back},         {"dg", a->dg, 4, back && a->g},
        {"dbeta", a->dbeta, 4, back},    {"dh0", a->dh0, 16, false},
        {"dA_log", a->dA_log, 4, false}, {"ddt_bias", a->ddt_bias, 4, false},
    };
    hola_status s = hl_raw_check_pointers(all, sizeof all / sizeof *all);
    if (s != HOLA_OK) return s;
    return backward ? hl_raw_check_pointers(grad, sizeof grad / sizeof *grad)
                    : hl_raw_check_pointers(to, sizeof to / sizeof *to);
}

int64_t hola_gdn_out_bytes(const hola_gdn_args *a) {
    if (gdn_shapes(a) != HOLA_OK) return -1;
    return hl_pieces(a->rows.T * a->HV * a->V * (a->dtype == HOLA_F32 ? 4 : 2), 256) * 256;
}

/* ---- the exact memory ---- */

enum { MOST_WINDOW = 512, MOST_CHUNK = 1024 };

static hola_status cache_shapes(const hola_cache_args *a) {
    if (!a || a->size != (int32_t)sizeof *a)
        return hl_fail(HOLA_EINVAL, "cache: size is %d, not %d", a ? a->size : 0, (int)sizeof *a);
    if (a->flags) return hl_fail(HOLA_EINVAL, "cache: flags = %d", a->flags);
    if (a->evict != HOLA_EVICT_BETAE && a->evict != HOLA_EVICT_RECENCY)
        return hl_fail(HOLA_EINVAL, "cache: evict = %d: HOLA_EVICT_BETAE and HOLA_EVICT_RECENCY are known",
                       (int)a->evict);
    if (a->window < 0 || a->chunk < 1)
        return hl_fail(HOLA_EINVAL, "cache: window = %lld, chunk = %lld", (long long)a->window, (long long)a->chunk);
    if (a->window > MOST_WINDOW || a->chunk > MOST_CHUNK)
        return hl_fail(HOLA_ENOTSUP, "cache: window = %lld, chunk = %lld: the maximum is %d and %d",
                       (long long)a->window, (long long)a->chunk, MOST_WINDOW, MOST_CHUNK);
    if (!(a->scale - a->scale == 0)) return hl_fail(HOLA_EINVAL, "cache: scale = %g", (double)a->scale);
    hola_status s = hl_raw_check_rows(&a->rows);
    if (s == HOLA_OK) s = hl_raw_check_heads(&a->rows, a->H, a->HV, a->K, a->V);
    if (s == HOLA_OK) s = hl_raw_check_dtype("dtype", a->dtype);
    if (s != HOLA_OK) return s;
    const int64_t blocks = a->rows.T / a->chunk + a->rows.N;
    if (blocks > INDICES / (a->window + a->chunk) / a->HV)
        return hl_fail(HOLA_ENOTSUP, "cache: %lld blocks of %lld rows with %lld value heads are too many for one call",
                       (long long)blocks, (long long)a->chunk, (long long)a->HV);
    return HOLA_OK;
}
static hola_status cache_pointers(const hola_cache_args *a, bool backward) {
    const bool rows = a->rows.T > 0, back = rows && backward;
    const struct hl_raw_pointer all[] = {
        {"q", a->q, 16, rows},
        {"k", a->k, 16, rows},
        {"v", a->v, 16, rows},
        {"score", a->score, 4, rows && a->evict != HOLA_EVICT_RECENCY && a->window > 0},
        {"sink", a->sink, 4, rows},
        {"tau", a->tau, 4, false},
        {"gate", a->gate, 4, false},
        {"kept", a->kept, 16, back},
        {"out", a->out, 16, rows && !backward},
        {"dout", a->dout, 16, back},
        {"dq", a->dq, 16, back},
        {"dk", a->dk, 16, back},
        {"dv", a->dv, 16, back},
        {"dsink", a->dsink, 4, false},
        {"dtau", a->dtau, 4, false},
        {"dgate", a->dgate, 4, false},
    };
    return hl_raw_check_pointers(all, sizeof all / sizeof *all);
}

/* ---- calls ---- */

#ifdef HL_HAVE_CUDA
/* A dry run: the bytes of workspace that the call needs. */
static hola_status measure(const struct hl_raw_call *x, int device, int64_t *bytes) {
    struct hl_cuda c;
    struct hl_backend b = {.device = &c};
    hola_status s = hl_cuda_borrow(&c, device, NULL, NULL, 0, true);
    if (s != HOLA_OK) return s;
    x->run(&b, x);
    *bytes = c.wanted;
    return hl_cuda_give_back(&c);
}
hola_status hl_raw_call(const hola_where *w, const struct hl_raw_call *x) {
    struct hl_cuda c;
    struct hl_backend b = {.device = &c};
    int64_t bytes = 0;
    hola_status s = measure(x, w->device, &bytes);
    if (s != HOLA_OK) return s;
    if (bytes > w->work_bytes)
        return hl_fail(HOLA_EINVAL, "work: %lld bytes are needed, %lld given", (long long)bytes,
                       (long long)w->work_bytes);
    s = hl_cuda_borrow(&c, w->device, w->stream, w->work, w->work_bytes, false);
    if (s != HOLA_OK) return s;
    x->run(&b, x);
    return hl_cuda_give_back(&c);
}
int64_t hl_raw_more(int64_t most, const struct hl_raw_call *x, int device) {
    int64_t bytes = 0;
    if (most < 0 || measure(x, device, &bytes) != HOLA_OK) return -1;
    return bytes > most ? bytes : most;
}
const _Alignas(16) char hl_raw_there[16];

static void run_gdn(struct hl_backend *b, const struct hl_raw_call *x) {
    (x->f32 ? hl_cuda_f32_raw_gdn : hl_cuda_raw_gdn)(b, x->args, x->backward);
}
static void run_cache(struct hl_backend *b, const struct hl_raw_call *x) {
    (x->f32 ? hl_cuda_f32_raw_cache : hl_cuda_raw_cache)(b, x->args, x->backward);
}

int64_t hola_gdn_kept_bytes(const hola_gdn_args *a) {
    if (gdn_shapes(a) != HOLA_OK) return -1;
    return (a->dtype == HOLA_F32 ? hl_cuda_f32_raw_gdn_kept : hl_cuda_raw_gdn_kept)(a);
}
/* The maximum over all choices of optional arrays. */
int64_t hola_gdn_work_bytes(const hola_gdn_args *a, int device, bool backward) {
    int64_t most = 0;
    if (gdn_shapes(a) != HOLA_OK) return -1;
    for (int i = 0; i < 16; i++) {
        hola_gdn_args x = *a;
        const struct hl_raw_call one = {run_gdn, &x, a->dtype == HOLA_F32, backward};
        x.out = (void *)hl_raw_there;
        x.kept = backward || i & 1 ? (void *)hl_raw_there : NULL;
        x.h0 = i & 2 ? (const float *)hl_raw_there : NULL;
        x.dht = x.ht = i & 4 ? (float *)hl_raw_there : NULL;
        x.m = i & 8 ? (float *)hl_raw_there : NULL;
        most = hl_raw_more(most, &one, device);
    }
    return most;
}
const char *hola_gdn_kernels(const hola_gdn_args *a, int device, bool backward) {
    struct hl_cuda c;
    struct hl_backend b = {.device = &c};
    if (gdn_shapes(a) != HOLA_OK || hl_cuda_borrow(&c, device, NULL, NULL, 0, true) != HOLA_OK) return NULL;
    const char *name = (a->dtype == HOLA_F32 ? hl_cuda_f32_raw_gdn_form : hl_cuda_raw_gdn_form)(&b, a, backward);
    return hl_cuda_give_back(&c) == HOLA_OK ? name : NULL;
}
int64_t hola_cache_kept_bytes(const hola_cache_args *a) {
    if (cache_shapes(a) != HOLA_OK) return -1;
    return (a->dtype == HOLA_F32 ? hl_cuda_f32_raw_cache_kept : hl_cuda_raw_cache_kept)(a);
}
int64_t hola_cache_work_bytes(const hola_cache_args *a, int device, bool backward) {
    int64_t most = 0;
    if (cache_shapes(a) != HOLA_OK) return -1;
    for (int i = 0; i < 2; i++) {
        hola_cache_args x = *a;
        const struct hl_raw_call one = {run_cache, &x, a->dtype == HOLA_F32, backward};
        x.kept = (void *)hl_raw_there;
        x.dtau = i ? (float *)hl_raw_there : NULL;
        most = hl_raw_more(most, &one, device);
    }
    return most;
}
#else
hola_status hl_raw_call(const hola_where *w, const struct hl_raw_call *x) {
    (void)w, (void)x;
    return hl_fail(HOLA_ENOTSUP, "this libhola was built without CUDA");
}
#define run_gdn NULL
#define run_cache NULL
int64_t hola_gdn_kept_bytes(const hola_gdn_args *a) {
    if (gdn_shapes(a) == HOLA_OK) hl_raw_call(NULL, NULL);
    return -1;
}
int64_t hola_gdn_work_bytes(const hola_gdn_args *a, int device, bool backward) {
    (void)device, (void)backward;
    return hola_gdn_kept_bytes(a);
}
const char *hola_gdn_kernels(const hola_gdn_args *a, int device, bool backward) {
    hola_gdn_work_bytes(a, device, backward);
    return NULL;
}
int64_t hola_cache_kept_bytes(const hola_cache_args *a) {
    if (cache_shapes(a) == HOLA_OK) hl_raw_call(NULL, NULL);
    return -1;
}
int64_t hola_cache_work_bytes(const hola_cache_args *a, int device, bool backward) {
    (void)device, (void)backward;
    return hola_cache_kept_bytes(a);
}
#endif

static hola_status gdn_call(const hola_where *w, const hola_gdn_args *a, bool backward) {
    hola_status s = hl_raw_check_where(w);
    if (s == HOLA_OK) s = gdn_shapes(a);
    if (s == HOLA_OK) s = gdn_pointers(a, backward);
    if (s != HOLA_OK) return s;
    const struct hl_raw_call x = {run_gdn, a, a->dtype == HOLA_F32, backward};
    return hl_raw_call(w, &x);
}
static hola_status cache_call(const hola_where *w, const hola_cache_args *a, bool backward) {
    hola_status s = hl_raw_check_where(w);
    if (s == HOLA_OK) s = cache_shapes(a);
    if (s == HOLA_OK) s = cache_pointers(a, backward);
    if (s != HOLA_OK) return s;
    const struct hl_raw_call x = {run_cache, a, a->dtype == HOLA_F32, backward};
    return hl_raw_call(w, &x);
}
hola_status hola_gdn_forward(const hola_where *w, const hola_gdn_args *a) { return gdn_call(w, a, false); }
hola_status hola_gdn_backward(const hola_where *w, const hola_gdn_args *a) { return gdn_call(w, a, true); }
hola_status hola_cache_forward(const hola_where *w, const hola_cache_args *a) { return cache_call(w, a, false); }
hola_status hola_cache_backward(const hola_where *w, const hola_cache_args *a) { return cache_call(w, a, true); }
