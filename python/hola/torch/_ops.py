"""The operators hola::gdn_forward, gdn_backward, cache_forward and cache_backward of torch.library.

Tensors are as in hola.torch's functions, [B, T, ...]; outputs that are not wanted are empty. On CUDA, libhola's kernels
run (_call). Elsewhere, and where libhola has no kernel, hola_plain does.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _raw, hola_plain as plain
from ._call import Shape, code_of, dense, flat, like, main_type, none_of, register, taken, way

__all__ = ["cache_why_not", "plain_cache", "plain_gdn", "way"]

F32 = torch.float32

# ---- the gated delta rule ----


def plain_gdn(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, A_log: Optional[Tensor],
              dt_bias: Optional[Tensor], h0: Optional[Tensor], cu: Optional[Tensor], scale: float,
              flags: int) -> tuple[Tensor, Tensor, Tensor]:
    """-> out, the states at the end, the scores; plain PyTorch, for autograd too."""
    with torch.autocast(q.device.type, enabled=False):
        lengths = plain.lengths_of(q, cu)
        out, ht, m = plain.gdn_forward(flat(q), flat(k), flat(v), flat(g), flat(beta), A_log, dt_bias, h0, lengths,
                                       scale, flags)
    return out.unflatten(0, q.shape[:2]), ht, m.unflatten(0, q.shape[:2])


def _gate_type(g: Optional[Tensor], beta: Tensor) -> torch.dtype:
    narrow = beta.dtype == torch.bfloat16 and (g is None or g.dtype == torch.bfloat16)
    return torch.bfloat16 if narrow else F32


def _gdn_shape(q: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, cu: Optional[Tensor], scale: float, flags: int,
               longest: int) -> Shape:
    return Shape("gdn", q, cu, longest, H=q.shape[2], HV=v.shape[2], K=q.shape[3], V=v.shape[3],
                 dtype=code_of(main_type(q)), gate_dtype=code_of(_gate_type(g, beta)), scale=scale, flags=flags)


def _gdn_inputs(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, A_log: Optional[Tensor],
                dt_bias: Optional[Tensor], h0: Optional[Tensor]) -> dict[str, Optional[Tensor]]:
    main, gates = main_type(q), _gate_type(g, beta)
    return {"q": dense(q, main), "k": dense(k, main), "v": dense(v, main), "g": dense(g, gates),
            "beta": dense(beta, gates), "A_log": dense(A_log, F32), "dt_bias": dense(dt_bias, F32),
            "h0": dense(h0, F32)}


def _gdn_forward(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, A_log: Optional[Tensor],
                 dt_bias: Optional[Tensor], h0: Optional[Tensor], cu: Optional[Tensor], scale: float, flags: int,
                 longest: int, state: bool, score: bool, keep: bool) -> tuple[Tensor, ...]:
    if not taken(q, v):
        out, ht, m = plain_gdn(q, k, v, g, beta, A_log, dt_bias, h0, cu, scale, flags)
        return out, ht if state else none_of(q), m if score else none_of(q), none_of(q, torch.uint8)
    call, main = _gdn_shape(q, v, g, beta, cu, scale, flags, longest), main_type(q)
    B, T, HV, V = v.shape
    out = call.new((B, T, HV, V), main)
    ht = call.new((call.rows[1], HV, q.shape[3], V)) if state else none_of(q)
    m = call.new((B, T, HV)) if score else none_of(q)
    kept = call.new((call.bytes(False)[0] if keep else 0,), torch.uint8)
    call.run(False, cu, **_gdn_inputs(q, k, v, g, beta, A_log, dt_bias, h0), out=out, ht=ht, m=m, kept=kept)
    return out if main == q.dtype else out.to(q.dtype), ht, m, kept


def _gdn_backward(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, A_log: Optional[Tensor],
                  dt_bias: Optional[Tensor], h0: Optional[Tensor], cu: Optional[Tensor], kept: Tensor, dout: Tensor,
                  dht: Optional[Tensor], scale: float, flags: int, longest: int) -> tuple[Tensor, ...]:
    d: list[Optional[Tensor]]
    if not taken(q, v):
        with torch.autocast(q.device.type, enabled=False):
            x = plain.gdn_backward(flat(q), flat(k), flat(v), flat(g), flat(beta), A_log, dt_bias, h0,
                                   plain.lengths_of(q, cu), scale, flags, flat(dout), dht)
        d = [y if i > 4 or y is None else y.unflatten(0, q.shape[:2]) for i, y in enumerate(x)]
    else:
        call, main = _gdn_shape(q, v, g, beta, cu, scale, flags, longest), main_type(q)
        d = [call.new(x.shape, main) for x in (q, k, v)]
        d += [None if x is None else call.new(x.shape) for x in (g, beta, h0)]
        d += [None if x is None or not flags & plain.GATE else call.new(x.shape) for x in (A_log, dt_bias)]
        names = ("dq", "dk", "dv", "dg", "dbeta", "dh0", "dA_log", "ddt_bias")
        call.run(True, cu, **_gdn_inputs(q, k, v, g, beta, A_log, dt_bias, h0), kept=kept, dout=dense(dout, main),
                 dht=dense(dht, F32), **dict(zip(names, d)))
    inputs = (q, k, v, g, beta, h0, A_log, dt_bias)
    return tuple(none_of(q) if x is None or y is None else x.to(y.dtype) for x, y in zip(d, inputs))


def _gdn_forward_fake(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, A_log: Optional[Tensor],
                      dt_bias: Optional[Tensor], h0: Optional[Tensor], cu: Optional[Tensor], scale: float, flags: int,
                      longest: int, state: bool, score: bool, keep: bool) -> tuple[Tensor, ...]:
    B, T, HV, V = v.shape
    N, t = B if cu is None else cu.shape[0] - 1, plain.compute_type(q.dtype)
    out = torch.empty((B, T, HV, V), dtype=q.dtype, device=q.device)
    ht = torch.empty((N, HV, q.shape[3], V), dtype=t, device=q.device) if state else none_of(q)
    m = torch.empty((B, T, HV), dtype=t, device=q.device) if score else none_of(q)
    n = 0 if way(q, v)[0] == "torch" else _gdn_shape(q, v, g, beta, cu, scale, flags, longest).kept(keep)
    return out, ht, m, torch.empty((n,), dtype=torch.uint8, device=q.device)


def _gdn_backward_fake(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, A_log: Optional[Tensor],
                       dt_bias: Optional[Tensor], h0: Optional[Tensor], cu: Optional[Tensor], kept: Tensor,
                       dout: Tensor, dht: Optional[Tensor], scale: float, flags: int,
                       longest: int) -> tuple[Tensor, ...]:
    gate = bool(flags & plain.GATE)
    return tuple(like(x, q) for x in (q, k, v, g, beta, h0, A_log if gate else None, dt_bias if gate else None))


def _gdn_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, scale, flags, longest, _, _, _ = inputs
    _, ht, m, kept = output
    ctx.save_for_backward(*tensors, kept)
    ctx.numbers = scale, flags, longest
    ctx.mark_non_differentiable(m, kept)
    ctx.set_materialize_grads(False)


def _gdn_autograd(ctx: Any, dout: Optional[Tensor], dht: Optional[Tensor], dm: None,
                  dkept: None) -> tuple[Optional[Tensor], ...]:
    *tensors, kept = ctx.saved_tensors
    q, v = tensors[0], tensors[2]
    if dout is None and dht is None:
        return (None,) * 15
    if dout is None:
        dout = torch.zeros(v.shape, dtype=q.dtype, device=q.device)
    d = torch.ops.hola.gdn_backward(*tensors, kept, dout, dht, *ctx.numbers)
    g, A_log, dt_bias, h0 = tensors[3], tensors[5], tensors[6], tensors[7]
    gate = ctx.numbers[1] & plain.GATE
    order = (d[0], d[1], d[2], d[3] if g is not None else None, d[4], d[6] if gate and A_log is not None else None,
             d[7] if gate and dt_bias is not None else None, d[5] if h0 is not None else None)
    return (*order, *(None,) * 7)


_GDN = "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor beta, Tensor? A_log, Tensor? dt_bias, Tensor? h0, Tensor? cu"
register(
    "gdn",
    (f"{_GDN}, float scale, int flags, int longest, bool state, bool score, bool keep)"
     " -> (Tensor out, Tensor ht, Tensor m, Tensor kept)", _gdn_forward, _gdn_forward_fake),
    (f"{_GDN}, Tensor kept, Tensor dout, Tensor? dht, float scale, int flags, int longest)"
     " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta, Tensor dh0, Tensor dA_log, Tensor ddt_bias)",
     _gdn_backward, _gdn_backward_fake),
    _gdn_setup, _gdn_autograd,
)

# ---- the exact memory ----

MOST_WINDOW, MOST_CHUNK = 512, 1024


def cache_why_not(window: int, chunk: int) -> str:
    if window <= MOST_WINDOW and chunk <= MOST_CHUNK:
        return ""
    return f"the memory's kernels take windows up to {MOST_WINDOW} and chunks up to {MOST_CHUNK}, not {window}, {chunk}"


def _cache_way(q: Tensor, v: Tensor, window: int, chunk: int) -> tuple[Any, ...]:
    return q, v, (64, 128, 256), cache_why_not(window, chunk)


def plain_cache(q: Tensor, k: Tensor, v: Tensor, score: Optional[Tensor], sink: Tensor, tau: Optional[Tensor],
                cu: Optional[Tensor], window: int, chunk: int, scale: float) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):
        rows = plain.cache_forward(flat(q), flat(k), flat(v), flat(score), sink, tau, plain.lengths_of(q, cu), window,
                                   chunk, scale)
    out: Tensor = rows.unflatten(0, q.shape[:2])
    return out


def _cache_shape(q: Tensor, v: Tensor, score: Optional[Tensor], cu: Optional[Tensor], window: int, chunk: int,
                 scale: float) -> Shape:
    return Shape("cache", q, cu, 0, H=q.shape[2], HV=v.shape[2], K=q.shape[3], V=v.shape[3], window=window, chunk=chunk,
                 dtype=code_of(main_type(q)), evict=_raw.EVICT["recency" if score is None else "score"], scale=scale)


def _cache_inputs(q: Tensor, k: Tensor, v: Tensor, score: Optional[Tensor], sink: Tensor,
                  tau: Optional[Tensor]) -> dict[str, Optional[Tensor]]:
    main = main_type(q)
    return {"q": dense(q, main), "k": dense(k, main), "v": dense(v, main), "score": dense(score, F32),
            "sink": dense(sink, F32), "tau": dense(tau, F32)}


def _cache_forward(q: Tensor, k: Tensor, v: Tensor, score: Optional[Tensor], sink: Tensor, tau: Optional[Tensor],
                   cu: Optional[Tensor], window: int, chunk: int, scale: float, keep: bool) -> tuple[Tensor, ...]:
    if not taken(*_cache_way(q, v, window, chunk)):
        out = plain_cache(q, k, v, score, sink, tau, cu, window, chunk, scale)
        out = out.clone() if out.numel() == 0 else out  # an operator's output is never its input
        return out, none_of(q, torch.uint8)
    call = _cache_shape(q, v, score, cu, window, chunk, scale)
    out = call.new(v.shape, main_type(q))
    kept = call.new((call.bytes(False)[0] if keep else 0,), torch.uint8)
    call.run(False, cu, **_cache_inputs(q, k, v, score, sink, tau), out=out, kept=kept)
    return out.to(q.dtype), kept


def _cache_backward(q: Tensor, k: Tensor, v: Tensor, score: Optional[Tensor], sink: Tensor, tau: Optional[Tensor],
                    cu: Optional[Tensor], kept: Tensor, dout: Tensor, window: int, chunk: int,
                    scale: float) -> tuple[Tensor, ...]:
    if not taken(*_cache_way(q, v, window, chunk)):
        with torch.autocast(q.device.type, enabled=False):
            x = plain.cache_backward(flat(q), flat(k), flat(v), flat(score), sink, tau, plain.lengths_of(q, cu), window,
                                     chunk, scale, flat(dout))
        return tuple(none_of(q) if y is None else y.unflatten(0, q.shape[:2]) if i < 3 else y for i, y in enumerate(x))
    call, main = _cache_shape(q, v, score, cu, window, chunk, scale), main_type(q)
    d: list[Optional[Tensor]] = [call.new(x.shape, main) for x in (q, k, v)]
    d += [None if x is None else call.new(x.shape) for x in (sink, tau)]
    call.run(True, cu, **_cache_inputs(q, k, v, score, sink, tau), kept=kept, dout=dense(dout, main),
             **dict(zip(("dq", "dk", "dv", "dsink", "dtau"), d)))
    inputs = (q, k, v, sink, tau)
    return tuple(none_of(q) if x is None or y is None else x.to(y.dtype) for x, y in zip(d, inputs))


def _cache_forward_fake(q: Tensor, k: Tensor, v: Tensor, score: Optional[Tensor], sink: Tensor, tau: Optional[Tensor],
                        cu: Optional[Tensor], window: int, chunk: int, scale: float, keep: bool) -> tuple[Tensor, ...]:
    n: Union[int, torch.SymInt] = 0
    if way(*_cache_way(q, v, window, chunk))[0] != "torch":
        n = _cache_shape(q, v, score, cu, window, chunk, scale).kept(keep)
    return (torch.empty(v.shape, dtype=q.dtype, device=q.device),
            torch.empty((n,), dtype=torch.uint8, device=q.device))


def _cache_backward_fake(q: Tensor, k: Tensor, v: Tensor, score: Optional[Tensor], sink: Tensor, tau: Optional[Tensor],
                         cu: Optional[Tensor], kept: Tensor, dout: Tensor, window: int, chunk: int,
                         scale: float) -> tuple[Tensor, ...]:
    return tuple(like(x, q) for x in (q, k, v, sink, tau))


def _cache_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, window, chunk, scale, _ = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.numbers = window, chunk, scale
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _cache_autograd(ctx: Any, dout: Optional[Tensor], dkept: None) -> tuple[Optional[Tensor], ...]:
    *tensors, kept = ctx.saved_tensors
    if dout is None:
        return (None,) * 11
    dq, dk, dv, dsink, dtau = torch.ops.hola.cache_backward(*tensors, kept, dout, *ctx.numbers)
    return dq, dk, dv, None, dsink, dtau if tensors[5] is not None else None, *(None,) * 5


_CACHE = "Tensor q, Tensor k, Tensor v, Tensor? score, Tensor sink, Tensor? tau, Tensor? cu"
register(
    "cache",
    (f"{_CACHE}, int window, int chunk, float scale, bool keep) -> (Tensor out, Tensor kept)", _cache_forward,
     _cache_forward_fake),
    (f"{_CACHE}, Tensor kept, Tensor dout, int window, int chunk, float scale)"
     " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink, Tensor dtau)", _cache_backward, _cache_backward_fake),
    _cache_setup, _cache_autograd,
)
