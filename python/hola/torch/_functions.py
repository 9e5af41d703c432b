"""The functions of hola.torch: arguments are checked here, the work is _ops'."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any, Iterator, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _ops, _raw, hola_plain as plain
from ._call import warn_once

_kernels = True


@contextlib.contextmanager
def use_kernels(on: bool = True) -> Iterator[None]:
    """Within `with use_kernels(False):` all is plain PyTorch under autograd, second derivatives included. It holds for
    all threads of the process."""
    global _kernels
    before, _kernels = _kernels, bool(on)
    try:
        yield
    finally:
        _kernels = before


def backend_for(q: Tensor, k: Tensor, v: Tensor) -> str:
    """What computes these: "cuda", the fast kernels; "cuda-plain", the slow ones; "torch", plain PyTorch."""
    _qkv(q, k, v)
    return _ops.way(q, v)[0] if operators(q) else "torch"


def _transformed() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


_transformed_when_traced: Any = torch.compiler.assume_constant_result(_transformed)


def operators(q: Tensor) -> bool:
    """Whether torch.library's operators do this call. They have no rules for torch.func's transforms and no derivatives
    forward, for which PyTorch would take zeros without a word. Plain PyTorch has both."""
    if not _kernels:
        return False
    compiling = torch.compiler.is_compiling()
    transformed: bool = _transformed_when_traced() if compiling else _transformed()
    if not transformed and forward_ad._current_level < 0:
        return True
    if q.device.type in _raw.device_types and not compiling:
        warn_once("hola.torch: not the fast kernels: torch.func and derivatives forward take plain PyTorch")
    return False


# ---- checks ----


def _tensor(name: str, x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(x).__name__}")
    return x


def _shaped(name: str, given: Any, q: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
    x = _tensor(name, given)
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} must be {what} = {list(shape)}, but is {list(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"{name} must hold floating-point numbers, not {x.dtype}")
    if x.device != q.device:
        raise ValueError(f"{name} is on {x.device}, q on {q.device}")
    return x


def _alike(q: Any, k: Any, v: Any, dim: int) -> None:
    """Tensors of one floating-point type on one device, [B, T, heads, size] or, with dim 3, [T, heads, size]."""
    what = "[B, T, heads, size]" if dim == 4 else "[T, heads, size]"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if _tensor(name, x).dim() != dim:
            raise ValueError(f"{name} must have {dim} dimensions, {what}, but has {x.dim()}")
        if not x.is_floating_point():
            raise ValueError(f"{name} must hold floating-point numbers, not {x.dtype}")
        if x.dtype != q.dtype:
            raise ValueError(f"{name} is {x.dtype}, q is {q.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}, q on {q.device}")


def _qkv(q: Any, k: Any, v: Any) -> None:
    _alike(q, k, v, 4)
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"q and k must have the same number of heads, but have {q.shape[2]} and {k.shape[2]}")
    if q.shape != k.shape:
        raise ValueError(f"k must have the shape of q, {list(q.shape)}, but is {list(k.shape)}")
    if v.shape[:2] != q.shape[:2]:
        raise ValueError(f"v must begin with [B, T] = {list(q.shape[:2])}, but is {list(v.shape)}")
    if q.shape[2] == 0 or q.shape[3] == 0 or v.shape[2] == 0 or v.shape[3] == 0:
        raise ValueError("q, k and v must have heads, and heads a size")
    if v.shape[2] % q.shape[2] != 0:
        raise ValueError(f"v must have a multiple of the {q.shape[2]} heads of q, but has {v.shape[2]}")


def _cu(cu: Optional[Tensor], q: Tensor) -> Optional[Tensor]:
    if cu is None:
        return None
    if _tensor("cu_seqlens", cu).dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens must be int32 or int64, not {cu.dtype}")
    if cu.dim() != 1 or cu.shape[0] < 1:
        raise ValueError(f"cu_seqlens must have one dimension of N + 1 numbers, but is {list(cu.shape)}")
    if q.shape[0] != 1:
        raise ValueError(f"The batch size is expected to be 1 rather than {q.shape[0]} when using `cu_seqlens`. "
                         "Please flatten variable-length inputs before processing.")
    return cu if cu.device == q.device else cu.to(q.device)


def _scale(scale: Any, K: int) -> float:
    if scale is None:
        usual: float = float(K) ** -0.5
        return usual
    if isinstance(scale, Tensor) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale must be a number, not {type(scale).__name__}")
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, not {scale}")
    if abs(scale) < 1e-37:  # in float 0, which libhola takes for the usual scale
        raise ValueError(f"scale must not be 0, but is {scale}")
    return float(scale)


def _initial_state(x: Optional[Tensor], q: Tensor, N: int, sizes: tuple[int, int, int],
                   v_first: bool) -> Optional[Tensor]:
    """The states as operators take them, [N, HV, K, V]."""
    if x is None:
        return None
    if _tensor("initial_state", x).dim() == 4 and x.shape[0] != N:
        raise ValueError("The number of initial states is expected to be equal to the number of input sequences, "
                         f"i.e., {N} rather than {x.shape[0]}.")
    HV, K, V = sizes
    if not v_first:
        return _shaped("initial_state", x, q, (N, HV, K, V), "[N, HV, K, V]")
    return _shaped("initial_state", x, q, (N, HV, V, K), "[N, HV, V, K]").transpose(-1, -2)


def _keeps(*tensors: Optional[Tensor]) -> bool:
    """Whether there may be a backward call."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _state_order(state_v_first: bool, kwargs: dict[str, Any]) -> bool:
    if "transpose_state_layout" not in kwargs:
        return bool(state_v_first)
    if state_v_first:
        raise ValueError("Cannot pass both `state_v_first` and the deprecated `transpose_state_layout`.")
    warnings.warn("`transpose_state_layout` is deprecated and renamed to `state_v_first`.", DeprecationWarning,
                  stacklevel=4)
    return bool(kwargs["transpose_state_layout"])


_KWARGS = ("use_gate_in_kernel", "A_log", "dt_bias", "chunk_size", "transpose_state_layout", "max_seqlen")


def _known(kwargs: dict[str, Any], name: str, names: tuple[str, ...] = _KWARGS) -> None:
    for key in kwargs:
        if key not in names:
            raise TypeError(f"{name}() got an unexpected keyword argument '{key}'")
    if kwargs.get("chunk_size", 64) not in (16, 32, 64):
        raise ValueError(f"`chunk_size` must be 16, 32, or 64 for Gated Delta Rule, got {kwargs['chunk_size']}.")


# ---- the gated delta rule ----


def _gdn(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, scale: Optional[float],
         initial_state: Optional[Tensor], output_final_state: bool, norm: bool, sigmoid: bool, neg: bool, v_first: bool,
         cu_seqlens: Optional[Tensor], gate: bool, A_log: Optional[Tensor], dt_bias: Optional[Tensor],
         longest: Optional[int], score: bool) -> tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    _qkv(q, k, v)
    (B, T, H, K), (HV, V) = q.shape, v.shape[2:]
    beta = _shaped("beta", beta, q, (B, T, HV), "[B, T, HV]")
    if g is not None:
        g = _shaped("g", g, q, (B, T, HV), "[B, T, HV]")
    if neg and not sigmoid:
        raise ValueError("`allow_neg_eigval=True` requires `use_beta_sigmoid_in_kernel=True`.")
    if gate:
        if A_log is None:
            raise ValueError("`A_log` must be provided when `use_gate_in_kernel=True`.")
        if g is None:
            raise ValueError("`g` (raw pre-activation) must be provided when `use_gate_in_kernel=True`.")
        A_log = _shaped("A_log", _tensor("A_log", A_log).flatten(), q, (HV,), "[HV]")
        if dt_bias is not None:
            dt_bias = _shaped("dt_bias", _tensor("dt_bias", dt_bias).flatten(), q, (HV,), "[HV]")
    else:
        A_log = dt_bias = None
    cu = _cu(cu_seqlens, q)
    initial_state = _initial_state(initial_state, q, B if cu is None else cu.shape[0] - 1, (HV, K, V), v_first)
    flags = (plain.NORM if norm else 0) | (plain.GATE if gate else 0) | (plain.SIGMOID if sigmoid else 0)
    flags |= plain.NEG if neg else 0
    tensors = (q, k, v, g, beta, A_log, dt_bias, initial_state)
    if not operators(q):
        out, ht, m = _ops.plain_gdn(*tensors, cu, _scale(scale, K), flags)
    else:
        out, ht, m, _ = torch.ops.hola.gdn_forward(*tensors, cu, _scale(scale, K), flags, int(longest or 0),
                                                   bool(output_final_state), score, _keeps(*tensors))
    if v_first:
        ht = ht.transpose(-1, -2).contiguous() if output_final_state else ht
    return out, ht if output_final_state else None, m if score else None


def _no_cp(cp_context: Any) -> None:
    if cp_context is not None:
        raise NotImplementedError("cp_context: hola.torch has no context parallelism")


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, state_v_first: bool = False,
    cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None,
    chunk_indices: Optional[Tensor] = None, cp_context: Any = None, **kwargs: Any,
) -> tuple[Tensor, Optional[Tensor]]:
    """The gated delta rule, fla's function of this name argument by argument: -> (o, the final state or None).

    q, k [B, T, H, K]; v, o [B, T, HV, V], HV a multiple of H, value head h reads key head h // (HV / H); g (log decay),
    beta [B, T, HV]; states [N, HV, K, V], with state_v_first [N, HV, V, K]. o has q's type; the final state is float32,
    of float64 inputs float64; gradients have their inputs' types. cu_seqlens [N + 1] with B = 1: sequence i has the
    rows from cu_seqlens[i] to cu_seqlens[i + 1].

    Further arguments: use_gate_in_kernel, A_log [HV], dt_bias [HV]: g is -exp(A_log) softplus(g + dt_bias);
    max_seqlen: a hint, about how long the longest sequence is; chunk_size: checked, without effect.
    """
    _known(kwargs, "chunk_gated_delta_rule")
    _no_cp(cp_context)
    out, ht, _ = _gdn(q, k, v, _tensor("g", g), beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
                      use_beta_sigmoid_in_kernel, allow_neg_eigval, _state_order(state_v_first, kwargs), cu_seqlens,
                      kwargs.get("use_gate_in_kernel", False), kwargs.get("A_log"), kwargs.get("dt_bias"),
                      kwargs.get("max_seqlen"), False)
    return out, ht


chunk_gdn = chunk_gated_delta_rule


def fused_recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, gk: Optional[Tensor] = None,
        gv: Optional[Tensor] = None,
    beta: Optional[Tensor] = None, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
    A_log: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False, state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None, **kwargs: Any,
) -> tuple[Tensor, Optional[Tensor]]:
    """As chunk_gated_delta_rule, with the arguments of fla's recurrent function; g None: no decay, beta None: 1. Unlike
    fla's it has a gradient. gk and gv, decays per channel, are not supported."""
    if gk is not None or gv is not None:
        raise NotImplementedError("gk, gv: hola.torch has no decay per channel")
    _known({n: x for n, x in kwargs.items() if n != "max_seqlen"}, "fused_recurrent_gated_delta_rule")
    if beta is None:
        beta = _tensor("v", v).new_ones(v.shape[:3])
    out, ht, _ = _gdn(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
                      use_beta_sigmoid_in_kernel, allow_neg_eigval, _state_order(state_v_first, kwargs), cu_seqlens,
                      use_gate_in_kernel, A_log, dt_bias, kwargs.get("max_seqlen"), False)
    return out, ht


fused_recurrent_gdn = fused_recurrent_gated_delta_rule


def gated_delta_rule_with_score(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, state_v_first: bool = False,
    cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None,
    chunk_indices: Optional[Tensor] = None, cp_context: Any = None, **kwargs: Any,
) -> tuple[Tensor, Optional[Tensor], Tensor]:
    """As chunk_gated_delta_rule, -> (o, the final state or None, m): m = beta |e| [B, T, HV], the size of what each
    token wrote into the state, which HOLA ranks tokens by. It is float32 (float64) and carries no gradient."""
    _known(kwargs, "gated_delta_rule_with_score")
    _no_cp(cp_context)
    out, ht, m = _gdn(q, k, v, _tensor("g", g), beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
                      use_beta_sigmoid_in_kernel, allow_neg_eigval, _state_order(state_v_first, kwargs), cu_seqlens,
                      kwargs.get("use_gate_in_kernel", False), kwargs.get("A_log"), kwargs.get("dt_bias"),
                      kwargs.get("max_seqlen"), True)
    assert m is not None
    return out, ht, m


# ---- the exact memory ----


def hola_cache_attention(
    q: Tensor, k: Tensor, v: Tensor, score: Optional[Tensor], sink: Tensor, tau: Optional[Tensor] = None, *,
    window: int = 64, chunk: int = 256, scale: Optional[float] = None, cu_seqlens: Optional[Tensor] = None,
    evict: str = "score",
) -> Tensor:
    """The read of HOLA's exact memory [B, T, HV, V], before its gate.

    A token sees the tokens of its own block of `chunk` up to itself, the `window` tokens of earlier blocks with the
    largest score [B, T, HV] (ties: the older; evict="recency": the latest, score is not looked at), and a sink of value
    0. Logits are tau q.k scale, with tau [HV] (None: 1) and scale K ** -0.5 by default, and sink [HV]. q and k come
    normalised for this read. Gradients go to q, k, v, sink and tau; none to the score."""
    _qkv(q, k, v)
    (B, T, _, K), HV = q.shape, v.shape[2]
    if evict not in ("score", "recency"):
        raise ValueError(f'evict must be "score" or "recency", not {evict!r}')
    for name, x, least in (("window", window, 0), ("chunk", chunk, 1)):
        if isinstance(x, bool) or not isinstance(x, int):
            raise TypeError(f"{name} must be an integer, not {type(x).__name__}")
        if x < least:
            raise ValueError(f"{name} must be at least {least}, not {x}")
    if evict == "score":
        score = _shaped("score", score, q, (B, T, HV), "[B, T, HV]").detach()
    else:
        score = None
    sink = _shaped("sink", sink, q, (HV,), "[HV]")
    if tau is not None:
        tau = _shaped("tau", tau, q, (HV,), "[HV]")
    given = (q, k, v, score, sink, tau, _cu(cu_seqlens, q), window, chunk, _scale(scale, K))
    if not operators(q):
        return _ops.plain_cache(*given)
    out: Tensor = torch.ops.hola.cache_forward(*given, _keeps(q, k, v, sink, tau))[0]
    return out
