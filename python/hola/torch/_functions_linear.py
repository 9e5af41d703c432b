"""chunk_kda and chunk_gla of hola.torch: linear attention with a decay per key channel."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _functions as base, hola_plain
from ._ops_linear import plain_linear


def _linear(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], scale: Optional[float],
            initial_state: Optional[Tensor], output_final_state: bool, v_first: bool, cu_seqlens: Optional[Tensor],
            longest: Optional[int] = None, norm: bool = False) -> tuple[Tensor, Optional[Tensor]]:
    (B, _, _, K), (HV, V) = q.shape, v.shape[2:]
    cu = base._cu(cu_seqlens, q)
    h0 = base._initial_state(initial_state, q, B if cu is None else cu.shape[0] - 1, (HV, K, V), v_first)
    given = (q, k, v, g, beta, h0, cu, base._scale(scale, K), hola_plain.NORM * bool(norm))
    if not base.operators(q):
        out, ht = plain_linear(*given)
    else:
        out, ht, _ = torch.ops.hola.linear_forward(*given, int(longest or 0), bool(output_final_state),
                                                   base._keeps(q, k, v, g, beta, h0))
    if not output_final_state:
        return out, None
    return out, ht.transpose(-1, -2).contiguous() if v_first else ht


def _gate(g: Tensor, A_log: Optional[Tensor], dt_bias: Optional[Tensor], lower_bound: Optional[float]) -> Tensor:
    """The log decays of KDA from raw ones, [B, T, HV, K]."""
    HV, K = g.shape[2:]
    a = g.to(hola_plain.compute_type(g.dtype))
    if dt_bias is not None:
        dt_bias = base._shaped("dt_bias", base._tensor("dt_bias", dt_bias).flatten(), g, (HV * K,), "[HV * K]")
        a = a + dt_bias.to(a.dtype).view(HV, K)
    rate = None
    if A_log is not None:
        A_log = base._shaped("A_log", base._tensor("A_log", A_log).flatten(), g, (HV,), "[HV]")
        rate = A_log.to(a.dtype).exp().view(HV, 1)
    if lower_bound is not None:
        return float(lower_bound) * (a if rate is None else rate * a).sigmoid()
    if rate is None:
        raise ValueError("`A_log` must be provided when `use_gate_in_kernel=True` and `lower_bound` is not set.")
    return -rate * hola_plain.softplus(a)


def chunk_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
    safe_gate: bool = False, lower_bound: Optional[float] = None, disable_recompute: bool = False,
    return_intermediate_states: bool = False, state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None,
    cu_seqlens_cpu: Optional[Tensor] = None, cp_context: Any = None, use_graph: bool = False,
    max_num_seqs: Optional[int] = None, **kwargs: Any,
) -> tuple[Tensor, Optional[Tensor]]:
    """Kimi Delta Attention, fla's function of this name argument by argument: -> (o, the final state or None).

    As chunk_gated_delta_rule, with a log decay per key channel: g [B, T, HV, K]. use_gate_in_kernel: g is -exp(A_log)
    softplus(g + dt_bias), or with lower_bound lower_bound sigmoid(exp(A_log) (g + dt_bias)); A_log [HV], dt_bias
    [HV * K]. The gates are PyTorch's, around the operator. use_graph, safe_gate and disable_recompute have
    no effect: every call can be captured, with any gates, and recomputes.
    """
    known = {n: x for n, x in kwargs.items() if n not in ("A_log", "dt_bias")}
    base._known(known, "chunk_kda", ("chunk_size", "transpose_state_layout", "max_seqlen"))
    if kwargs.get("chunk_size", 64) not in (32, 64):
        raise ValueError(f"`chunk_size` must be either 32 or 64 for KDA, got {kwargs['chunk_size']}.")
    base._no_cp(cp_context)
    if return_intermediate_states:
        raise NotImplementedError("return_intermediate_states: hola.torch gives no states between chunks")
    base._qkv(q, k, v)
    (B, T, _, K), HV = q.shape, v.shape[2]
    g = base._shaped("g", g, q, (B, T, HV, K), "[B, T, HV, K]")
    beta = base._shaped("beta", beta, q, (B, T, HV), "[B, T, HV]")
    if safe_gate and use_gate_in_kernel:
        if lower_bound is None:
            raise ValueError("`lower_bound` must be specified when `safe_gate=True` and `use_gate_in_kernel=True`.")
        if not -5 <= lower_bound < 0:
            raise ValueError(f"`lower_bound` must be in the safe range [-5, 0), got {lower_bound}.")
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError("`allow_neg_eigval=True` requires `use_beta_sigmoid_in_kernel=True`.")
    v_first = base._state_order(state_v_first, kwargs)
    if use_gate_in_kernel:
        g = _gate(g, kwargs.get("A_log"), kwargs.get("dt_bias"), lower_bound)
    if use_beta_sigmoid_in_kernel:
        beta = beta.to(hola_plain.compute_type(beta.dtype)).sigmoid() * (2 if allow_neg_eigval else 1)
    return _linear(q, k, v, g, beta, scale, initial_state, output_final_state, v_first, cu_seqlens,
                   kwargs.get("max_seqlen"), use_qk_l2norm_in_kernel)


def chunk_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
    output_final_state: bool = False, state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None,
    cu_seqlens_cpu: Optional[Tensor] = None,
) -> tuple[Tensor, Optional[Tensor]]:
    """Gated linear attention, fla's function of this name argument by argument: -> (o, the final state or None).

    q, k, g (log decay) [B, T, H, K]; v, o [B, T, H, V]; states [N, H, K, V], with state_v_first [N, H, V, K]. Types and
    cu_seqlens as in chunk_gated_delta_rule."""
    base._qkv(q, k, v)
    if v.shape[2] != q.shape[2]:
        raise ValueError(f"v must have the {q.shape[2]} heads of q, but has {v.shape[2]}")
    g = base._shaped("g", g, q, tuple(q.shape), "[B, T, H, K]")
    return _linear(q, k, v, g, None, scale, initial_state, output_final_state, bool(state_v_first), cu_seqlens)
