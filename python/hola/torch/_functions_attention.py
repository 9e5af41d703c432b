"""flash_attn_func and flash_attn_varlen_func of hola.torch: causal softmax attention."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _functions as base
from ._ops_attention import plain_attention

Result = Union[Tensor, tuple[Tensor, Tensor, None]]


def _refuse(dropout_p: float, causal: bool, softcap: float, alibi_slopes: Any) -> None:
    if not causal:
        raise NotImplementedError("hola.torch has causal attention only: causal=True")
    for name, given in (("dropout_p", dropout_p), ("softcap", softcap)):
        if given:
            raise NotImplementedError(f"{name}: hola.torch's attention has none")
    if alibi_slopes is not None:
        raise NotImplementedError("alibi_slopes: hola.torch's attention has none")


def _window(window_size: Any) -> int:
    """Keys that a query sees, its own included; 0: all."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ValueError(f"window_size must be (left, right), not {window_size!r}")
    for x in window_size:
        if isinstance(x, bool) or not isinstance(x, int):
            raise TypeError(f"window_size must hold integers, not {type(x).__name__}")
    left, right = int(window_size[0]), int(window_size[1])
    if right not in (-1, 0):
        raise NotImplementedError(f"window_size {left, right}: causal attention sees nothing to the right; 0 or -1")
    if left < -1:
        raise ValueError(f"window_size {left, right}: the left side is at least 0, or -1 for all")
    return left + 1


def _attention(q: Tensor, k: Tensor, v: Tensor, cu: Optional[Tensor], softmax_scale: Optional[float], window: int,
               longest: Optional[int]) -> tuple[Tensor, Tensor]:
    """q, k, v [B, T, heads, D], checked -> out, lse [B, T, H]"""
    given = (q, k, v, cu, window, base._scale(softmax_scale, q.shape[3]))
    if not base.operators(q):
        return plain_attention(*given)
    out, lse = torch.ops.hola.attention_forward(*given, int(longest or 0))
    return out, lse


def _checked(q: Any, k: Any, v: Any, dim: int) -> None:
    base._alike(q, k, v, dim)
    if k.shape != v.shape:
        raise ValueError(f"v must have the shape of k, {list(k.shape)}, but is {list(v.shape)}")
    if k.shape[:-2] != q.shape[:-2]:
        raise ValueError(f"k must begin as q does, {list(q.shape[:-2])}, but is {list(k.shape)}: "
                         "hola.torch's attention has a key for every query")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k must have heads of q's size {q.shape[-1]}, but has {k.shape[-1]}")
    if q.shape[-1] == 0 or k.shape[-2] == 0 or q.shape[-2] == 0 or q.shape[-2] % k.shape[-2] != 0:
        raise ValueError(f"q must have a multiple of the {k.shape[-2]} heads of k, but has {q.shape[-2]}")


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None, deterministic: bool = False, return_attn_probs: bool = False,
) -> Result:
    """Causal softmax attention, with the arguments of flash-attention's function of this name: -> out [B, T, H, D].

    q [B, T, H, D]; k, v [B, T, HK, D], H a multiple of HK, query head h reads key head h // (H / HK). softmax_scale:
    D ** -0.5 by default. window_size (left, 0 or -1): a query sees its own key and `left` before it. causal must be
    True, as nothing else is here; dropout, softcap and slopes are NotImplementedError. The same input always gives the
    same bits, so `deterministic` has no effect. return_attn_probs: -> (out, the logarithms of the sums of exponentials
    [B, H, T], None)."""
    _refuse(dropout_p, causal, softcap, alibi_slopes)
    _checked(q, k, v, 4)
    out, lse = _attention(q, k, v, None, softmax_scale, _window(window_size), None)
    return (out, lse.transpose(1, 2), None) if return_attn_probs else out


def _same_rows(cu_q: Tensor, cu_k: Optional[Tensor]) -> None:
    if cu_k is None or cu_k is cu_q:
        return
    if base._tensor("cu_seqlens_k", cu_k).shape == cu_q.shape and cu_k.device.type == cu_q.device.type == "cpu":
        if torch.equal(cu_k, cu_q):
            return
        raise ValueError("cu_seqlens_k must be cu_seqlens_q: hola.torch's attention has a key for every query")
    raise ValueError("cu_seqlens_k must be cu_seqlens_q itself, or None: two tensors are not compared on a device")


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None, dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
    return_attn_probs: bool = False, block_table: Optional[Tensor] = None,
) -> Result:
    """flash_attn_func over sequences one after another: q, out [T, H, D], k, v [T, HK, D]; sequence i has the rows from
    cu_seqlens_q[i] to cu_seqlens_q[i + 1] (int32 or int64), of queries as of keys. max_seqlen_q is a hint, max_seqlen_k
    is not looked at. return_attn_probs: -> (out, [H, T], None)."""
    _refuse(dropout_p, causal, softcap, alibi_slopes)
    if block_table is not None:
        raise NotImplementedError("block_table: hola.torch's attention has no pages")
    _checked(q, k, v, 3)
    cu = base._cu(base._tensor("cu_seqlens_q", cu_seqlens_q), q.unsqueeze(0))
    _same_rows(cu_seqlens_q, cu_seqlens_k)
    out, lse = _attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), cu, softmax_scale, _window(window_size),
                          max_seqlen_q)
    out, lse = out.squeeze(0), lse.squeeze(0)
    return (out, lse.transpose(0, 1), None) if return_attn_probs else out
