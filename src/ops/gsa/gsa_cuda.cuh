/* gsa_cuda.cuh -- shared by the kernels of gated slot attention. With s = 1 - exp(f), GSA is GLA twice (gla_cuda.cuh),
 * with M as the key size, so both states are [M][..].
 *     first    state of (s, k, f): z = S q, which is GLA's dq for dout = q; p = softmax(z)
 *     second   out = GLA of (p, s, v, f)
 * Backward, D being the gradient of z:
 *     second   GLA's gradients of (p, s, v, f): dp and from it D, dv, df
 *     first    GLA's output of (D, s, k, f) is dq, and its gradients for dout = q are dk and more of df */
#ifndef HL_GSA_CUDA_CUH
#define HL_GSA_CUDA_CUH
#include "ops/gla/gla_cuda.cuh"

static inline struct gla_view gsa_second(const struct hl_gsa *a) {
    struct gla_view x = {a->rows, a->H, a->HK, a->M, a->V, (const act *)a->p, NULL, (const act *)a->v};
    x.ld_q = a->H * a->M, x.ld_k = a->HK * a->M, x.ld_v = a->HK * a->V;
    x.g = a->f, x.scale = 1.0f, x.out = (act *)a->out, x.S_off = a->Vt_off;
    x.dout = (const act *)a->dout, x.dv = (act *)a->dv, x.dg = a->df;
    return x;
}
/* D: its queries; NULL in the forward pass */
static inline struct gla_view gsa_first(const struct hl_gsa *a, const act *D) {
    struct gla_view x = {a->rows, a->H, a->HK, a->M, a->K, D, NULL, (const act *)a->k};
    x.ld_q = a->H * a->M, x.ld_k = a->HK * a->M, x.ld_v = a->HK * a->K;
    x.g = a->f, x.scale = 1.0f, x.out = (act *)a->dq, x.S_off = a->Kt_off, x.trans = true;
    x.dout = (const act *)a->q, x.dv = (act *)a->dk, x.dg = a->df;
    return x;
}

extern "C" {
bool HL_OP(gsa_step_fits)(const struct hl_gsa *a);
void HL_OP(gsa_run_step)(struct hl_backend *backend, const struct hl_gsa *a);
#ifndef HL_CUDA_F32
/* p and, for the second half, the operands qe and A; h: the first half's states */
void HL_OP(gsa_weigh)(struct hl_cuda *c, const struct hl_gsa *a, const bf16 *h, bf16 *p, const struct gla_operands *o);
#endif
}

#endif
