"""The operators hola::linear_forward and linear_backward: Kimi Delta Attention; without beta, gated linear attention.
Tensors are as in chunk_kda and chunk_gla; outputs that are not wanted are empty."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import hola_plain, linear_plain as plain
from ._call import Shape, code_of, dense, flat, like, main_type, none_of, register, taken, way

F32 = torch.float32
FAST_K = (64, 128)
NORM = hola_plain.NORM  # of KDA, as in hola_ops.h


def plain_linear(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], h0: Optional[Tensor],
                 cu: Optional[Tensor], scale: float, flags: int) -> tuple[Tensor, Tensor]:
    """-> out, the states at the end; plain PyTorch, for autograd too."""
    with torch.autocast(q.device.type, enabled=False):
        out, ht = plain.forward(flat(q), flat(k), flat(v), flat(g), flat(beta), h0, hola_plain.lengths_of(q, cu), scale,
                                bool(flags & NORM))
    return out.unflatten(0, q.shape[:2]), ht


def _shape(q: Tensor, v: Tensor, beta: Optional[Tensor], cu: Optional[Tensor], scale: float, flags: int,
           longest: int) -> Shape:
    op, heads = ("gla", "HK") if beta is None else ("kda", "HV")
    return Shape(op, q, cu, longest, H=q.shape[2], **{heads: v.shape[2]}, K=q.shape[3], V=v.shape[3],
                 dtype=code_of(main_type(q)), scale=scale, flags=flags)


def _inputs(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor]) -> dict[str, Optional[Tensor]]:
    main = main_type(q)
    x = {"q": dense(q, main), "k": dense(k, main), "v": dense(v, main), "g": dense(g, F32)}
    return x if beta is None else {**x, "beta": dense(beta, F32)}


def _forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], h0: Optional[Tensor],
             cu: Optional[Tensor], scale: float, flags: int, longest: int, state: bool,
             keep: bool) -> tuple[Tensor, ...]:
    if not taken(q, v, FAST_K):
        out, ht = plain_linear(q, k, v, g, beta, h0, cu, scale, flags)
        out = out.clone() if out.numel() == 0 else out  # an operator's output is never its input
        return out, ht if state else none_of(q), none_of(q, torch.uint8)
    call = _shape(q, v, beta, cu, scale, flags, longest)
    out = call.new(v.shape, main_type(q))
    ht = call.new((call.rows[1], v.shape[2], q.shape[3], v.shape[3])) if state else none_of(q)
    kept = call.new((call.bytes(False)[0] if keep else 0,), torch.uint8)
    more = {} if beta is None else {"kept": kept}
    call.run(False, cu, **_inputs(q, k, v, g, beta), h0=dense(h0, F32), out=out, ht=ht, **more)
    return out.to(q.dtype), ht, kept


def _backward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], h0: Optional[Tensor],
              cu: Optional[Tensor], kept: Tensor, dout: Tensor, dht: Optional[Tensor], scale: float,
              flags: int, longest: int) -> tuple[Tensor, ...]:
    if not taken(q, v, FAST_K):
        with torch.autocast(q.device.type, enabled=False):
            all_d = plain.backward(flat(q), flat(k), flat(v), flat(g), flat(beta), h0, hola_plain.lengths_of(q, cu),
                                   scale, flat(dout), dht, bool(flags & NORM))
        return tuple(none_of(q) if x is None else x if i > 4 else x.unflatten(0, q.shape[:2])
                     for i, x in enumerate(all_d))
    call, main = _shape(q, v, beta, cu, scale, flags, longest), main_type(q)
    d = {"dq": call.new(q.shape, main), "dk": call.new(k.shape, main), "dv": call.new(v.shape, main),
         "dg": call.new(g.shape)}
    more: dict[str, Tensor] = {}
    if beta is not None:
        d["dbeta"], more = call.new(beta.shape), {"kept": kept}
    if h0 is not None:
        d["dh0"] = call.new(h0.shape)
    call.run(True, cu, **_inputs(q, k, v, g, beta), h0=dense(h0, F32), dout=dense(dout, main), dht=dense(dht, F32), **d,
             **more)
    inputs = {"dq": q, "dk": k, "dv": v, "dg": g, "dbeta": beta, "dh0": h0}
    return tuple(none_of(q) if x is None else d[name].to(x.dtype) for name, x in inputs.items())


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], h0: Optional[Tensor],
                  cu: Optional[Tensor], scale: float, flags: int, longest: int, state: bool,
                  keep: bool) -> tuple[Tensor, ...]:
    N, t = q.shape[0] if cu is None else cu.shape[0] - 1, hola_plain.compute_type(q.dtype)
    n: Union[int, torch.SymInt] = 0
    ht = torch.empty((N, v.shape[2], q.shape[3], v.shape[3]), dtype=t, device=q.device) if state else none_of(q)
    if way(q, v, FAST_K)[0] != "torch" and beta is not None:
        n = _shape(q, v, beta, cu, scale, flags, longest).kept(keep)
    out = torch.empty(v.shape, dtype=q.dtype, device=q.device)
    return out, ht, torch.empty((n,), dtype=torch.uint8, device=q.device)


def _backward_fake(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], h0: Optional[Tensor],
                   cu: Optional[Tensor], kept: Tensor, dout: Tensor, dht: Optional[Tensor], scale: float,
                   flags: int, longest: int) -> tuple[Tensor, ...]:
    return tuple(like(x, q) for x in (q, k, v, g, beta, h0))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, scale, flags, longest, _, _ = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.numbers = scale, flags, longest
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _autograd(ctx: Any, dout: Optional[Tensor], dht: Optional[Tensor], dkept: None) -> tuple[Optional[Tensor], ...]:
    *tensors, kept = ctx.saved_tensors
    q, v, beta, h0 = tensors[0], tensors[2], tensors[4], tensors[5]
    if dout is None and dht is None:
        return (None,) * 12
    if dout is None:
        dout = torch.zeros(v.shape, dtype=q.dtype, device=q.device)
    d = torch.ops.hola.linear_backward(*tensors, kept, dout, dht, *ctx.numbers)
    return (*d[:4], d[4] if beta is not None else None, d[5] if h0 is not None else None, *(None,) * 6)


_LINEAR = "Tensor q, Tensor k, Tensor v, Tensor g, Tensor? beta, Tensor? h0, Tensor? cu"
register(
    "linear",
    (f"{_LINEAR}, float scale, int flags, int longest, bool state, bool keep)"
     " -> (Tensor out, Tensor ht, Tensor kept)", _forward, _forward_fake),
    (f"{_LINEAR}, Tensor kept, Tensor dout, Tensor? dht, float scale, int flags, int longest)"
     " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta, Tensor dh0)", _backward, _backward_fake),
    _setup, _autograd,
)
