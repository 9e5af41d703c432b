"""The operators hola::attention_forward and attention_backward: causal softmax attention. q, out [B, T, H, D], k, v
[B, T, HK, D], lse [B, T, H]."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import attention_plain as plain, hola_plain
from ._call import Shape, code_of, dense, main_type, register, taken

F32 = torch.float32
FAST_D = (64, 128)
MOST_D = 512


def _way(q: Tensor) -> tuple[Any, ...]:
    """Arguments of _call.way."""
    return q, q, FAST_D, "", (MOST_D, MOST_D)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, cu: Optional[Tensor], window: int,
                    scale: float) -> tuple[Tensor, Tensor]:
    """-> out, lse; plain PyTorch, for autograd too."""
    with torch.autocast(q.device.type, enabled=False):
        lengths = hola_plain.lengths_of(q, cu)
        out, lse = plain.forward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), lengths, window, scale)
    return out.unflatten(0, q.shape[:2]), lse.unflatten(0, q.shape[:2])


def _shape(q: Tensor, k: Tensor, cu: Optional[Tensor], window: int, scale: float, longest: int) -> Shape:
    return Shape("attention", q, cu, longest, H=q.shape[2], HK=k.shape[2], D=q.shape[3], window=window,
                 dtype=code_of(main_type(q)), scale=scale)


def _forward(q: Tensor, k: Tensor, v: Tensor, cu: Optional[Tensor], window: int, scale: float,
             longest: int) -> tuple[Tensor, Tensor]:
    if not taken(*_way(q)):
        out, lse = plain_attention(q, k, v, cu, window, scale)
        return out.clone() if out.numel() == 0 else out, lse  # an operator's output is never its input
    call, main = _shape(q, k, cu, window, scale, longest), main_type(q)
    out, lse = call.new(q.shape, main), call.new(q.shape[:3])
    call.run(False, cu, q=dense(q, main), k=dense(k, main), v=dense(v, main), out=out, lse=lse)
    return out.to(q.dtype), lse


def _backward(q: Tensor, k: Tensor, v: Tensor, cu: Optional[Tensor], out: Tensor, lse: Tensor, dout: Tensor,
              window: int, scale: float, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    if not taken(*_way(q)):
        with torch.autocast(q.device.type, enabled=False):
            d = plain.backward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), out.flatten(0, 1), lse.flatten(0, 1),
                               hola_plain.lengths_of(q, cu), window, scale, dout.flatten(0, 1))
        dq, dk, dv = (x.unflatten(0, q.shape[:2]) for x in d)
        return dq, dk, dv
    call, main = _shape(q, k, cu, window, scale, longest), main_type(q)
    dq, dk, dv = call.new(q.shape, main), call.new(k.shape, main), call.new(v.shape, main)
    call.run(True, cu, q=dense(q, main), k=dense(k, main), v=dense(v, main), out=dense(out, main), lse=dense(lse, F32),
             dout=dense(dout, main), dq=dq, dk=dk, dv=dv)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, cu: Optional[Tensor], window: int, scale: float,
                  longest: int) -> tuple[Tensor, Tensor]:
    lse = torch.empty(q.shape[:3], dtype=hola_plain.compute_type(q.dtype), device=q.device)
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), lse


def _backward_fake(q: Tensor, k: Tensor, v: Tensor, *more: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, window, scale, longest = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.numbers = window, scale, longest
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _autograd(ctx: Any, dout: Optional[Tensor], dlse: None) -> tuple[Optional[Tensor], ...]:
    if dout is None:
        return (None,) * 7
    return (*torch.ops.hola.attention_backward(*ctx.saved_tensors, dout, *ctx.numbers), *(None,) * 4)


_ATTENTION = "Tensor q, Tensor k, Tensor v, Tensor? cu"
register(
    "attention",
    (f"{_ATTENTION}, int window, float scale, int longest) -> (Tensor out, Tensor lse)", _forward, _forward_fake),
    (f"{_ATTENTION}, Tensor out, Tensor lse, Tensor dout, int window, float scale, int longest)"
     " -> (Tensor dq, Tensor dk, Tensor dv)", _backward, _backward_fake),
    _setup, _autograd,
)
