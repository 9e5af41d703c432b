"""How an operator reaches libhola: which way a call takes, and the call itself, on pointers of torch's tensors, on
torch's current stream, in memory of torch's allocator. A failure of the library is a RuntimeError, never a silent
second try."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Optional, TypeVar, Union, cast

import torch
from torch import Tensor

from . import _raw

_torch_library: Any = torch.library  # torch does not annotate its Library
library = _torch_library.Library("hola", "FRAGMENT")

# ---- which way ----

MOST_K, MOST_V = 256, 512


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def way(q: Tensor, v: Tensor, fast_k: tuple[int, ...] = (64, 128, 256), why_not: str = "",
        most: tuple[int, int] = (MOST_K, MOST_V)) -> tuple[str, str]:
    """-> "cuda", "cuda-plain" or "torch", and why not the better one ("": it is the best for this device). fast_k:
    head sizes of the fast kernels. why_not: why there are no kernels for this call, beside its types and sizes. most:
    the largest K and V that there are kernels for."""
    if q.device.type not in _raw.device_types:
        return "torch", ""
    K, V = q.shape[-1], v.shape[-1]
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return "torch", f"there are no kernels for {name_of(q.dtype)}"
    if K > most[0] or V > most[1] or K < 1 or V < 1:
        return "torch", f"there are no kernels for heads of K {K}, V {V}; the largest are {most[0]}, {most[1]}"
    if why_not:
        return "torch", why_not
    try:
        _raw.library()
    except _raw.Missing as error:
        return "torch", str(error)
    if q.dtype != torch.bfloat16:
        return "cuda-plain", f"{name_of(q.dtype)} takes exact but slow kernels, bfloat16 fast ones"
    if K not in fast_k or V % 64 != 0:
        sizes = ", ".join(map(str, fast_k[:-1])) + f" or {fast_k[-1]}"
        return "cuda-plain", f"the fast kernels need K {sizes} and V a multiple of 64, not K {K}, V {V}"
    return "cuda", ""


_warned: set[str] = set()


def warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def taken(q: Tensor, v: Tensor, *more: Any) -> bool:
    """Whether the library computes this; on a device, a slower way is said once."""
    kind, why = way(q, v, *more)
    if why:
        warn_once(f"hola.torch: not the fast kernels: {why}")
    return kind != "torch" and q.shape[0] * q.shape[1] > 0


# ---- calls ----


def main_type(q: Tensor) -> torch.dtype:
    """What the kernels compute with. float16 becomes float32: bfloat16 would lose its digits."""
    return torch.bfloat16 if q.dtype == torch.bfloat16 else torch.float32


def code_of(dtype: torch.dtype) -> int:
    return _raw.DTYPES[name_of(dtype)]


def dense(x: Optional[Tensor], dtype: Optional[torch.dtype] = None) -> Optional[Tensor]:
    """x as a kernel needs it: of the type, dense, on 16 bytes."""
    if x is None:
        return None
    if dtype is not None and x.dtype != dtype:
        x = x.to(dtype)
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _address(x: Optional[Tensor]) -> Optional[int]:
    return None if x is None or x.numel() == 0 else x.data_ptr()


class Shape:
    """What sizes depend on: the op, its rows and its numbers. Hashable, so that sizes are counted once."""

    def __init__(self, op: str, q: Tensor, cu: Optional[Tensor], longest: int, **numbers: Any):
        B, T = q.shape[:2]
        N, bits = (B, 0) if cu is None else (cu.shape[0] - 1, 32 if cu.dtype == torch.int32 else 64)
        self.op, self.rows, self.numbers = op, (B * T, N, longest, bits), numbers
        self.key = (op, self.rows, tuple(numbers.values()))
        self.device = q.device
        self.index = q.device.index or 0

    def kept(self, keep: bool) -> Union[int, torch.SymInt]:
        """Bytes that the backward call needs, for operators' fake kernels."""
        if not keep or (isinstance(self.rows[0], int) and self.rows[0] == 0):
            return 0
        if any(isinstance(x, torch.SymInt) for x in (*self.rows, *self.numbers.values())):
            return torch.library.get_ctx().new_dynamic_size()  # the library counts for real sizes only
        return self.bytes(False)[0]

    def bytes(self, backward: bool) -> tuple[int, int]:
        return _bytes(_raw.library(), self, self.index, backward)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.key == other.key

    def new(self, shape: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def run(self, backward: bool, cu: Optional[Tensor], **tensors: Optional[Tensor]) -> None:
        """Tensors that are made for the call live until it has been made; then torch's allocator gives their memory
        only to what follows on the same stream."""
        libhola, (_, work_bytes) = _raw.library(), self.bytes(backward)
        args = _raw.shape_args(self.op, self.rows, self.numbers)
        for name, x in tensors.items():
            setattr(args, name, _address(x))
        cu = None if cu is None else cu.contiguous()
        args.rows.cu = _address(cu)
        work = self.new((work_bytes + 256,), torch.uint8)
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else None
        libhola.run(self.op, _raw.where_of(self.index, stream, work.data_ptr(), work_bytes), args, backward)


@functools.lru_cache(maxsize=512)
def _bytes(libhola: _raw.Library, shape: Shape, index: int, backward: bool) -> tuple[int, int]:
    return libhola.bytes(shape.op, _raw.shape_args(shape.op, shape.rows, shape.numbers), index, backward)


# ---- what operators share ----


MaybeTensor = TypeVar("MaybeTensor", bound=Optional[Tensor])


def none_of(q: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """An output that is not wanted."""
    return q.new_empty(0, dtype=dtype)


def flat(x: MaybeTensor) -> MaybeTensor:
    return cast(MaybeTensor, None if x is None else x.flatten(0, 1))


def like(x: Optional[Tensor], q: Tensor) -> Tensor:
    return none_of(q) if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _no_second(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError("hola.torch: second derivatives need plain PyTorch: with hola.torch.use_kernels(False)")


def _differentiable(name: str, setup: Any, gradient: Any) -> None:
    """As torch.library.register_autograd, which looks up the defaults of all arguments at every call (these operators
    have none) and takes half of a forward call's time on the host for it."""
    op = getattr(torch.ops.hola, name).default
    internals: Any = torch._C

    def below(keyset: Any, args: Any) -> Any:
        return op.redispatch(keyset & internals._after_autograd_keyset, *args)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            *inputs, keyset = args
            with internals._AutoDispatchBelowAutograd():
                output = below(keyset, inputs)
                setup(ctx, tuple(inputs), output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return *gradient(ctx, *grads), None

    def call(keyset: Any, *args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
            return Function.apply(*args, keyset)
        with internals._AutoDispatchBelowAutograd():
            return below(keyset, args)

    library.impl(name, call, "Autograd", with_keyset=True)


def register(name: str, forward: tuple[str, Any, Any], backward: tuple[str, Any, Any], setup: Any,
             autograd: Any) -> None:
    """hola::NAME_forward and hola::NAME_backward, each a schema, the function and its fake kernel."""
    for which, (schema, function, fake) in (("forward", forward), ("backward", backward)):
        library.define(f"{name}_{which}({schema}")
        library.impl(f"{name}_{which}", function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"hola::{name}_{which}", fake, lib=library)
    _differentiable(f"{name}_forward", setup, autograd)
    torch.library.register_autograd(f"hola::{name}_backward", _no_second, lib=library)
