"""Where test_cuda*.py run: on a CUDA device with the library that HOLA_LIBRARY names or, with HOLA_TORCH_ON=emulated,
on emulated.py's device, which has neither streams nor graphs; then those parts of the tests do nothing."""

import contextlib
import ctypes
import os

import pytest
import torch

from hola.torch import _call, _raw

EMULATED = os.environ.get("HOLA_TORCH_ON") == "emulated"
DEVICE = "cpu" if EMULATED else "cuda"
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
# relative root mean square errors that docs/cuda.md allows, of outputs and of gradients by the names of the inputs;
# sink's and tau's are sums over rows, as A_log's
LIMITS = {
    BF16: dict(o=7e-3, state=7e-3, score=8e-3, beta=1.2e-2, g=2.5e-2, A_log=2.5e-2, dt_bias=2.5e-2, sink=2.5e-2,
               tau=2.5e-2, other=1e-2),
    F32: dict(other=2e-4),
    F16: dict(o=3.5e-3, state=3.5e-3, score=4e-3, beta=6e-3, g=1.25e-2, A_log=1.25e-2, dt_bias=1.25e-2, other=5e-3),
}


def why_not():
    """Why these tests cannot run here, or None."""
    if EMULATED:
        return None if os.path.isfile(os.environ.get("HOLA_EMULATED", "")) else "HOLA_EMULATED names no library"
    if not torch.cuda.is_available():
        return "torch has no CUDA device"
    try:
        _raw.library()
    except _raw.Missing as why:
        return f"no libhola for the CUDA device: {why}"
    return None


def skip_where_there_is_none():
    """At the top of a file of tests."""
    if why_not():
        pytest.skip(why_not(), allow_module_level=True)


class Calls(list):
    """The calls of the library: the op, whether it is backward, its arguments."""

    def names(self):
        return [(op, back) for op, back, _ in self]


def gdn_kernels(call):
    """The word that libhola has for the kernels of a recorded call of the delta rule."""
    op, backward, args = call
    name = ctypes.CDLL(_raw.library().path).hola_gdn_kernels
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.POINTER(type(args)), ctypes.c_int, ctypes.c_bool]
    return name(args, 0, backward).decode()


@pytest.fixture
def calls(monkeypatch):
    """The library's calls; before each, all that it is to write and its workspace are NaN."""
    from emulated import poisoned, use

    if EMULATED:
        use(monkeypatch)
    else:
        monkeypatch.setattr(_call, "_warned", set())
        monkeypatch.setattr(_call.Shape, "new", poisoned)
    made, run = Calls(), _raw.Library.run

    def noted(self, op, where, args, backward):
        copy = type(args)()
        ctypes.pointer(copy)[0] = args
        made.append((op, backward, copy))
        run(self, op, where, args, backward)

    monkeypatch.setattr(_raw.Library, "run", noted)
    return made


# ---- comparing ----


def limit(dtype, name):
    return LIMITS[dtype].get(name, LIMITS[dtype]["other"])


def worst_piece(got, want):
    """The largest relative error in 64 rows of a head of [B, T, heads, ...]; those near zero are measured against a
    hundredth of the mean."""
    got, want = (x.detach().cpu().double().flatten(0, 1).flatten(2) if x.dim() > 3 else x.detach().cpu().double()
                 .flatten(0, 1).unsqueeze(-1) for x in (got, want))
    pad = -len(want) % 64
    got, want = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, pad)).unflatten(0, (-1, 64)) for x in (got, want))
    off, size = ((got - want).square().sum((1, 3)), want.square().sum((1, 3)))
    return float((off / size.clamp(min=1e-4 * float(size.mean()))).sqrt().max())


def distance(got, want, terms=None):
    """The relative error. terms: those that want is the sum of, over rows. Where little is left of them, it is measured
    against twice the root of the sum of their squares: errors of neighbouring rows have one sign."""
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    least = 1e-30 if terms is None else 2 * float(terms.detach().norm())
    return float((got - want).norm() / want.norm().clamp(min=least))


def close(got, want, dtype, name, pieces=True, terms=None):
    """got, of the device, is want, of a definition in double."""
    assert bool(got.isfinite().all()), f"{name} has NaN"
    assert got.shape == want.shape, (name, got.shape, want.shape)
    most, off = limit(dtype, name), distance(got, want, terms)
    assert off < most, f"{name}: error {off:.2e}, allowed are {most:.1e}"
    if pieces and got.dim() > 2 and want.any():
        off = worst_piece(got, want)
        assert off < 6 * most, f"{name}: error {off:.2e} in 64 rows, allowed are {6 * most:.1e}"


def far(wrong, want, dtype, name, terms=None):
    """close() would notice what is wrong here."""
    assert distance(wrong, want, terms) > 3 * limit(dtype, name), name


def double(x):
    """The same numbers in double on the CPU, for definitions."""
    return {n: None if y is None else y.detach().cpu().double().requires_grad_(y.requires_grad) for n, y in x.items()}


def gradients(outputs, inputs, weights=None):
    """Of sums of the outputs with random weights, the same on every device."""
    draw = torch.Generator().manual_seed(3)
    weights = [torch.randn(o.shape, generator=draw, dtype=F64).to(o.device) for o in outputs]
    total = sum((o.double() * w).sum() for o, w in zip(outputs, weights))
    return torch.autograd.grad(total, inputs, materialize_grads=True)


def make(*shape, dtype=F32, grad=True):
    """Random numbers, the same on every device."""
    return torch.randn(*shape).to(dtype).to(DEVICE).requires_grad_(grad)


# ---- streams and graphs ----


@contextlib.contextmanager
def other_stream():
    """Another stream, with work beside it on the usual one."""
    if EMULATED:
        yield
        return
    stream, busy = torch.cuda.Stream(), torch.empty(1 << 24, device=DEVICE)
    stream.wait_stream(torch.cuda.current_stream())
    for _ in range(20):
        busy.mul_(1.5)
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


@contextlib.contextmanager
def without_waiting():
    """What is called within must not wait for the device: torch raises where it would itself, and the device, busy with
    a long pause, is still busy at the end."""
    if EMULATED:
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(400_000_000)  # a fifth of a second
        yield
        assert not torch.cuda.current_stream().query(), "the host waited for the device"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


def captured(f):
    """-> f's result and a function that computes it again, in place: a CUDA graph's replay."""
    if EMULATED:
        result = f()

        def replay():
            for old, new in zip(result, f()):
                old.copy_(new)

        return result, replay
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        f()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = f()
    graph.replay()
    return result, graph.replay
