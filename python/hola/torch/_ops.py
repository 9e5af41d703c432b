"""The operators hola::gdn_forward, gdn_backward, cache_forward and cache_backward of torch.library.

Tensors are as in hola.torch's functions, [B, T, ...]; outputs that are not wanted are empty. On CUDA, libhola's kernels
run on torch's current stream, in memory of torch's allocator. Elsewhere, and where libhola has no kernel, hola_plain
does. A failure of the library is a RuntimeError, never a silent second try.
"""

from __future__ import annotations

import functools
import warnings
from typing import Optional, Union

import torch
from torch import Tensor

from . import _raw, hola_plain as plain

_library = torch.library.Library("hola", "FRAGMENT")
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor beta, Tensor? A_log, Tensor? dt_bias, Tensor? h0, Tensor? cu"
_library.define(
    f"gdn_forward({_INPUTS}, float scale, int flags, int longest, bool state, bool score, bool keep)"
    " -> (Tensor out, Tensor ht, Tensor m, Tensor kept)"
)
_library.define(
    f"gdn_backward({_INPUTS}, Tensor kept, Tensor dout, Tensor? dht, float scale, int flags, int longest)"
    " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta, Tensor dh0, Tensor dA_log, Tensor ddt_bias)"
)
_CACHE = (
    "Tensor q, Tensor k, Tensor v, Tensor? score, Tensor sink, Tensor? tau, Tensor? cu,"
    " int window, int chunk, float scale"
)
_library.define(f"cache_forward({_CACHE}) -> Tensor")
_library.define(
    f"cache_backward({_CACHE}, Tensor dout) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink, Tensor dtau)"
)

# ---- which way ----

MOST_K, MOST_V = 256, 512


def way(q: Tensor, v: Tensor) -> tuple[str, str]:
    """-> "cuda", "cuda-plain" or "torch", and why not the better one ("": it is the best for this device)."""
    if q.device.type not in _raw.device_types:
        return "torch", ""
    K, V = q.shape[-1], v.shape[-1]
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return "torch", f"there are no kernels for {str(q.dtype).removeprefix('torch.')}"
    if K > MOST_K or V > MOST_V or K < 1 or V < 1:
        return "torch", f"there are no kernels for heads of K {K}, V {V}; the largest are {MOST_K}, {MOST_V}"
    try:
        _raw.library()
    except _raw.Missing as error:
        return "torch", str(error)
    if q.dtype != torch.bfloat16:
        return "cuda-plain", f"{str(q.dtype).removeprefix('torch.')} takes exact but slow kernels, bfloat16 fast ones"
    if K not in (64, 128, 256) or V % 64 != 0:
        return "cuda-plain", f"the fast kernels need K 64, 128 or 256 and V a multiple of 64, not K {K}, V {V}"
    return "cuda", ""


_warned: set[str] = set()


def warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


# ---- the gated delta rule on pointers ----


def _dense(x: Optional[Tensor], dtype: Optional[torch.dtype] = None) -> Optional[Tensor]:
    """x as a kernel needs it: of the type, dense, on 16 bytes."""
    if x is None:
        return None
    x = (x if dtype is None else x.to(dtype)).contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _address(x: Optional[Tensor]) -> Optional[int]:
    return None if x is None or x.numel() == 0 else x.data_ptr()


def _shape_args(B: int, T: int, N: int, longest: int, bits: int, H: int, HV: int, K: int, V: int, dtype: int,
    gates: int,
                scale: float, flags: int) -> _raw.GdnArgs:
    a = _raw.GdnArgs()
    a.size, a.flags = _raw.ctypes.sizeof(a), flags
    a.rows.T, a.rows.N, a.rows.longest, a.rows.cu_bits = B * T, N, longest, bits
    a.rows.cu = 1 if bits else None  # sizes depend on whether it is there; nobody looks at it
    a.H, a.HV, a.K, a.V, a.dtype, a.gate_dtype, a.scale = H, HV, K, V, dtype, gates, scale
    return a


@functools.lru_cache(maxsize=256)
def _bytes(library: _raw.Library, device: int, backward: bool, *shape) -> tuple[int, int]:
    a = _shape_args(*shape)
    return library.kept_bytes(a), library.work_bytes(a, device, backward)


def _types(q: Tensor, g: Optional[Tensor], beta: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """Types that the kernels compute with. float16 becomes float32: bfloat16 would lose its digits."""
    main = torch.bfloat16 if q.dtype == torch.bfloat16 else torch.float32
    narrow = beta.dtype == torch.bfloat16 and (g is None or g.dtype == torch.bfloat16)
    return main, torch.bfloat16 if narrow else torch.float32


def _shape(q: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, cu: Optional[Tensor], scale: float, flags: int,
           longest: int) -> tuple:
    main, gates = (_raw.DTYPES[str(t).removeprefix("torch.")] for t in _types(q, g, beta))
    B, T, H, K = q.shape
    N, bits = (B, 0) if cu is None else (cu.numel() - 1, 32 if cu.dtype == torch.int32 else 64)
    return (B, T, N, longest, bits, H, v.shape[2], K, v.shape[3], main, gates, scale, flags)


class _Call:
    """One call of the library: the inputs as it needs them, and its memory. Tensors that this makes live until the call
    has been made; then torch's allocator gives their memory only to what follows on the same stream."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, A_log: Optional[Tensor],
                 dt_bias: Optional[Tensor], h0: Optional[Tensor], cu: Optional[Tensor], scale: float, flags: int,
                 longest: int, backward: bool):
        self.backward, self.device, self.library = backward, q.device, _raw.library()
        self.main, gates = _types(q, g, beta)
        shape = _shape(q, v, g, beta, cu, scale, flags, longest)
        index = -1 if q.device.index is None else q.device.index
        self.kept, self.work_bytes = _bytes(self.library, index, backward, *shape)
        self.args = _shape_args(*shape)
        self.given = {"q": _dense(q, self.main), "k": _dense(k, self.main), "v": _dense(v, self.main),
                      "g": _dense(g, gates), "beta": _dense(beta, gates)}
        self.given.update({n: _dense(x, torch.float32) for n, x in
                           (("A_log", A_log), ("dt_bias", dt_bias), ("h0", h0))})
        self.cu = None if cu is None else cu.contiguous()
        self.index = index

    def new(self, shape, dtype: Optional[torch.dtype] = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or torch.float32, device=self.device)

    def run(self, **more: Optional[Tensor]) -> None:
        for name, x in {**self.given, **more}.items():
            setattr(self.args, name, _address(x))
        self.args.rows.cu = _address(self.cu)
        work = self.new((self.work_bytes + 256,), torch.uint8)
        where = _raw.Where()
        where.size, where.device, where.work_bytes = _raw.ctypes.sizeof(where), self.index, self.work_bytes
        where.work = (work.data_ptr() + 255) // 256 * 256
        if self.device.type == "cuda":
            where.stream = torch.cuda.current_stream(self.device).cuda_stream
        self.library.run(where, self.args, self.backward)


# ---- the gated delta rule ----


def _none(q: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    return q.new_empty(0, dtype=dtype or plain.compute_type(q.dtype))


def _flat(x: Optional[Tensor]) -> Optional[Tensor]:
    return None if x is None else x.flatten(0, 1)


def plain_gdn(q, k, v, g, beta, A_log, dt_bias, h0, cu, scale: float, flags: int):
    """-> out, the states at the end, the scores; plain PyTorch, for autograd too."""
    with torch.autocast(q.device.type, enabled=False):
        lengths = plain.lengths_of(q, cu)
        out, ht, m = plain.gdn_forward(_flat(q), _flat(k), _flat(v), _flat(g), _flat(beta), A_log, dt_bias, h0, lengths,
                                       scale, flags)
    return out.unflatten(0, q.shape[:2]), ht, m.unflatten(0, q.shape[:2])


def _gdn_forward(q, k, v, g, beta, A_log, dt_bias, h0, cu, scale, flags, longest, state, score, keep):
    kind, why = way(q, v)
    if why:
        warn_once(f"hola.torch: not the fast kernels: {why}")
    if kind == "torch" or q.shape[0] * q.shape[1] == 0:
        out, ht, m = plain_gdn(q, k, v, g, beta, A_log, dt_bias, h0, cu, scale, flags)
        return out, ht if state else _none(q), m if score else _none(q), _none(q, torch.uint8)
    call = _Call(q, k, v, g, beta, A_log, dt_bias, h0, cu, scale, flags, longest, False)
    B, T, HV, V = v.shape
    out = call.new((B, T, HV, V), call.main)
    ht = call.new((call.args.rows.N, HV, q.shape[3], V)) if state else _none(q)
    m = call.new((B, T, HV)) if score else _none(q)
    kept = call.new((call.kept if keep else 0,), torch.uint8)
    call.run(out=out, ht=ht, m=m, kept=kept)
    return out.to(q.dtype), ht, m, kept


def _gdn_backward(q, k, v, g, beta, A_log, dt_bias, h0, cu, kept, dout, dht, scale, flags, longest):
    if way(q, v)[0] == "torch" or q.shape[0] * q.shape[1] == 0:
        with torch.autocast(q.device.type, enabled=False):
            d = plain.gdn_backward(_flat(q), _flat(k), _flat(v), _flat(g), _flat(beta), A_log, dt_bias, h0,
                                   plain.lengths_of(q, cu), scale, flags, _flat(dout), dht)
        d = [x if i > 4 or x is None else x.unflatten(0, q.shape[:2]) for i, x in enumerate(d)]
    else:
        call = _Call(q, k, v, g, beta, A_log, dt_bias, h0, cu, scale, flags, longest, True)
        d = [call.new(x.shape, call.main) for x in (q, k, v)]
        d += [None if x is None else call.new(x.shape) for x in (g, beta, h0)]
        d += [None if x is None or not flags & plain.GATE else call.new(x.shape) for x in (A_log, dt_bias)]
        names = ("dq", "dk", "dv", "dg", "dbeta", "dh0", "dA_log", "ddt_bias")
        call.run(kept=kept, dout=_dense(dout, call.main), dht=_dense(dht, torch.float32), **dict(zip(names, d)))
    inputs = (q, k, v, g, beta, h0, A_log, dt_bias)
    return tuple(_none(q) if x is None or y is None else x.to(y.dtype) for x, y in zip(d, inputs))


def _kept_size(q, v, g, beta, cu, scale, flags, longest, keep) -> Union[int, torch.SymInt]:
    if not keep or way(q, v)[0] == "torch":
        return 0
    shape = _shape(q, v, g, beta, cu, scale, flags, longest)
    if any(isinstance(x, torch.SymInt) for x in shape):  # the library counts for real sizes only
        return torch.library.get_ctx().new_dynamic_size()
    if shape[0] * shape[1] == 0:
        return 0
    return _bytes(_raw.library(), -1 if q.device.index is None else q.device.index, False, *shape)[0]


def _gdn_forward_fake(q, k, v, g, beta, A_log, dt_bias, h0, cu, scale, flags, longest, state, score, keep):
    B, T, HV, V = v.shape
    N, t = B if cu is None else cu.shape[0] - 1, plain.compute_type(q.dtype)
    out = torch.empty((B, T, HV, V), dtype=q.dtype, device=q.device)
    ht = torch.empty((N, HV, q.shape[3], V), dtype=t, device=q.device) if state else _none(q)
    m = torch.empty((B, T, HV), dtype=t, device=q.device) if score else _none(q)
    n = _kept_size(q, v, g, beta, cu, scale, flags, longest, keep)
    return out, ht, m, torch.empty((n,), dtype=torch.uint8, device=q.device)


def _like(x: Optional[Tensor], q: Tensor) -> Tensor:
    return _none(q) if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _gdn_backward_fake(q, k, v, g, beta, A_log, dt_bias, h0, cu, kept, dout, dht, scale, flags, longest):
    gate = bool(flags & plain.GATE)
    return tuple(_like(x, q) for x in (q, k, v, g, beta, h0, A_log if gate else None, dt_bias if gate else None))


def _gdn_setup(ctx, inputs, output) -> None:
    *tensors, scale, flags, longest, _, _, _ = inputs
    _, ht, m, kept = output
    ctx.save_for_backward(*tensors, kept)
    ctx.numbers = scale, flags, longest
    ctx.mark_non_differentiable(m, kept)
    ctx.set_materialize_grads(False)


def _gdn_autograd(ctx, dout, dht, dm, dkept):
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


# ---- the exact memory ----


def plain_cache(q, k, v, score, sink, tau, cu, window: int, chunk: int, scale: float) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):
        out = plain.cache_forward(_flat(q), _flat(k), _flat(v), _flat(score), sink, tau, plain.lengths_of(q, cu),
            window, chunk,
                                  scale)
    return out.unflatten(0, q.shape[:2])


def _cache_forward(q, k, v, score, sink, tau, cu, window, chunk, scale):
    if q.device.type in _raw.device_types:
        warn_once("hola.torch: hola_cache_attention has no kernels yet: plain PyTorch")
    out = plain_cache(q, k, v, score, sink, tau, cu, window, chunk, scale)
    return out.clone() if out.numel() == 0 else out  # an operator's output is never its input


def _cache_backward(q, k, v, score, sink, tau, cu, window, chunk, scale, dout):
    with torch.autocast(q.device.type, enabled=False):
        dq, dk, dv, dsink, dtau = plain.cache_backward(_flat(q), _flat(k), _flat(v), _flat(score), sink, tau,
                                                       plain.lengths_of(q, cu), window, chunk, scale, _flat(dout))
    d = [x.unflatten(0, q.shape[:2]) for x in (dq, dk, dv)]
    return (*d, dsink, _none(q) if dtau is None else dtau)


def _cache_forward_fake(q, k, v, score, sink, tau, cu, window, chunk, scale):
    return torch.empty(v.shape, dtype=q.dtype, device=q.device)


def _cache_backward_fake(q, k, v, score, sink, tau, cu, window, chunk, scale, dout):
    return tuple(_like(x, q) for x in (q, k, v, sink, tau))


def _cache_setup(ctx, inputs, output) -> None:
    *tensors, window, chunk, scale = inputs
    ctx.save_for_backward(*tensors)
    ctx.numbers = window, chunk, scale


def _cache_autograd(ctx, dout):
    tensors = ctx.saved_tensors
    dq, dk, dv, dsink, dtau = torch.ops.hola.cache_backward(*tensors, *ctx.numbers, dout)
    return dq, dk, dv, None, dsink, dtau if tensors[5] is not None else None, *(None,) * 4


def _no_second(ctx, *grads):
    raise NotImplementedError("hola.torch: second derivatives need plain PyTorch: with hola.torch.use_kernels(False)")


for _name, _impl, _fake in (("gdn_forward", _gdn_forward, _gdn_forward_fake),
                            ("gdn_backward", _gdn_backward, _gdn_backward_fake),
                            ("cache_forward", _cache_forward, _cache_forward_fake),
                            ("cache_backward", _cache_backward, _cache_backward_fake)):
    _library.impl(_name, _impl, "CompositeExplicitAutograd")
    torch.library.register_fake(f"hola::{_name}", _fake, lib=_library)
torch.library.register_autograd("hola::gdn_forward", _gdn_autograd, setup_context=_gdn_setup, lib=_library)
torch.library.register_autograd("hola::cache_forward", _cache_autograd, setup_context=_cache_setup, lib=_library)
for _name in ("gdn_backward", "cache_backward"):
    torch.library.register_autograd(f"hola::{_name}", _no_second, lib=_library)
