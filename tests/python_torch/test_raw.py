"""hola.torch's CUDA path on an emulated device (emulated.py): structs, pointers, strides, types, workspace, what is
kept between forward and backward; results against plain PyTorch in double. Also the operators as torch sees them."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
from reference import delta_rule, error
from torch.library import opcheck

import hola.torch as ht
from hola.torch import _call, _raw

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
pytestmark = pytest.mark.filterwarnings("ignore:hola.torch. not the fast kernels:RuntimeWarning")
# allowed errors (docs/python_torch.md), of outputs and of gradients by the names of the inputs
LIMITS = {
    BF16: dict(o=7e-3, state=7e-3, score=8e-3, beta=1.2e-2, g=2.5e-2, A_log=2.5e-2, dt_bias=2.5e-2, other=1e-2),
    F32: dict(other=2e-4),
    F16: dict(o=3.5e-3, state=3.5e-3, score=4e-3, beta=6e-3, g=1.25e-2, A_log=1.25e-2, dt_bias=1.25e-2, other=5e-3),
}


def limit(dtype, name):
    return LIMITS[dtype].get(name, LIMITS[dtype]["other"])


def data(dtype, gates=None, B=2, T=37, H=2, HV=4, K=8, V=4, N=None, strided=False):
    def make(*shape, t=dtype):
        x = torch.randn(*shape, 2 if strided else 1).to(t)[..., 0].detach()
        return x.requires_grad_()

    gates = gates or dtype
    x = dict(q=make(B, T, H, K), k=make(B, T, H, K), v=make(B, T, HV, V), g=make(B, T, HV, t=gates),
             beta=make(B, T, HV, t=gates))
    more = dict(A_log=make(HV, t=F32), dt_bias=make(HV, t=F32), initial_state=make(N or B, HV, K, V, t=F32))
    return x, more


def double(x):
    return {n: y.detach().double().requires_grad_(y.requires_grad) for n, y in x.items()}


def gradients(outputs, inputs):
    torch.manual_seed(3)
    total = sum((o.double() * torch.randn(o.shape, dtype=torch.float64)).sum() for o in outputs)
    return torch.autograd.grad(total, inputs, materialize_grads=True)


FLAGS = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
             allow_neg_eigval=True)
CU = torch.tensor([0, 5, 5, 37], dtype=torch.int32)
CASES = [
    (F32, F32, {}, None),
    (F32, F32, dict(B=1, N=3, strided=True), CU.long()),
    (F16, F16, {}, None),
    (BF16, F32, dict(B=1, N=3, strided=True), CU),
    (BF16, BF16, dict(B=1, N=3, K=64, V=64, HV=2), CU),
    (BF16, F32, dict(B=1, N=1, T=70, K=128, V=64, H=1, HV=2), None),
]


@pytest.mark.parametrize("dtype, gates, shape, cu", CASES, ids=lambda x: str(x).removeprefix("torch.")[:40])
def test_delta_rule(emulated, dtype, gates, shape, cu):
    """Forward and backward against plain PyTorch in double; the library saw the right types and numbers."""
    x, more = data(dtype, gates, **shape)

    def run(x, more):
        o, h, m = ht.gated_delta_rule_with_score(**x, **more, **FLAGS, output_final_state=True, cu_seqlens=cu,
                                                 scale=0.4, max_seqlen=32)
        return dict(o=o, state=h, score=m), gradients((o, h), [*x.values(), *more.values()])

    fast = dtype == BF16 and x["q"].shape[3] >= 64
    assert ht.backend_for(x["q"], x["k"], x["v"]) == ("cuda" if fast else "cuda-plain")
    got = run(x, more)
    codes = int(dtype == BF16), int(gates == BF16)
    assert [(op, back, a.dtype, a.gate_dtype) for op, back, a in emulated.calls] == [("gdn", False, *codes),
                                                                                      ("gdn", True, *codes)]
    a = emulated.calls[0][2]
    assert (a.rows.longest, a.flags, a.rows.cu_bits) == (32, 15, 0 if cu is None else 8 * cu.element_size())
    assert abs(a.scale - 0.4) < 1e-7 and not emulated.calls[0][2].dq and emulated.calls[1][2].dq
    with ht.use_kernels(False):
        want = run(double(x), double(more))
        wrong = run({**double(x), "k": double(x)["k"].roll(1, 1)}, double(more))
    assert len(emulated.calls) == 2
    for name in got[0]:
        assert error(got[0][name], want[0][name]) < limit(dtype, name), name
        assert error(got[0][name], wrong[0][name]) > 3 * limit(dtype, name), name
    for a, b, name, of in zip(got[1], want[1], (*x, *more), (*x.values(), *more.values())):
        assert a.dtype == of.dtype and a.shape == of.shape and error(a, b) < limit(dtype, name), name
    assert got[0]["o"].dtype == dtype and got[0]["state"].dtype == got[0]["score"].dtype == F32


def test_what_is_absent(emulated):
    """Without g, states and gradients nothing is kept, and pointers are NULL."""
    x, _ = data(F32)
    with torch.no_grad():
        o, h = ht.fused_recurrent_gated_delta_rule(x["q"] / 9, x["k"] / 9, x["v"], beta=x["beta"])
    want = delta_rule(x["q"] / 9, x["k"] / 9, x["v"], torch.zeros(2, 37, 4), x["beta"])[0]
    assert h is None and error(o, want) < 2e-5 and len(emulated.calls) == 1
    a = emulated.calls[0][2]
    assert not (a.g or a.h0 or a.ht or a.m or a.kept or a.A_log) and a.out
    empty = ht.chunk_gdn(**{n: y[:, :0] for n, y in x.items()}, output_final_state=True)
    assert empty[0].shape == (2, 0, 4, 4) and len(emulated.calls) == 1
    o, h = ht.chunk_gdn(x["q"] / 9, x["k"] / 9, x["v"], -x["g"].abs(), x["beta"].sigmoid(), output_final_state=True)
    by_state, by_out = torch.autograd.grad(h.sum(), x["k"], retain_graph=True)[0], torch.autograd.grad(o.sum(), x["k"])
    assert by_state.isfinite().all() and not emulated.calls[-1][2].dht and emulated.calls[-2][2].dht
    assert by_out[0].isfinite().all()


READS = [
    (F32, {}, None, "score", 5, 8),
    (F32, dict(B=1, strided=True), CU.long(), "recency", 3, 4),
    (F16, dict(B=1), CU, "score", 0, 16),
    (BF16, dict(B=1, K=64, V=64, HV=2, T=150), torch.tensor([0, 70, 150]), "score", 16, 32),
]


@pytest.mark.parametrize("dtype, shape, cu, evict, window, chunk", READS,
                         ids=lambda x: str(x).removeprefix("torch.")[:40])
@pytest.mark.parametrize("with_tau", [True, False], ids=["tau", "no tau"])
def test_memory(emulated, dtype, shape, cu, evict, window, chunk, with_tau):
    x, _ = data(dtype, **shape)
    heads = x["v"].shape[2]
    score = torch.rand(x["v"].shape[:3])
    more = dict(sink=torch.randn(heads, requires_grad=True))
    if with_tau:
        more["tau"] = (torch.rand(heads) + 0.5).requires_grad_()
    x = {n: x[n] for n in "qkv"}

    def run(x, more, score=score):
        o = ht.hola_cache_attention(**x, **more, score=score, window=window, chunk=chunk, cu_seqlens=cu, evict=evict)
        return o, gradients((o,), [*x.values(), *more.values()])

    got = run(x, more)
    assert [c[:2] for c in emulated.calls] == [("cache", False), ("cache", True)]
    a = emulated.calls[0][2]
    assert (a.window, a.chunk, a.evict, bool(a.score)) == (window, chunk, {"score": 0, "recency": 3}[evict],
                                                            evict == "score") and not a.gate
    with ht.use_kernels(False):
        want = run(double(x), double(more))
        wrong = run({**double(x), "k": double(x)["k"].roll(1, 1)}, double(more))
    assert got[0].dtype == dtype and error(got[0], want[0]) < limit(dtype, "o") < 0.1 * error(got[0], wrong[0])
    for a, b, name, of in zip(got[1], want[1], (*x, *more), (*x.values(), *more.values())):
        assert a.dtype == of.dtype and a.shape == of.shape and error(a, b) < limit(dtype, name), name
    if evict == "score" and window:  # other scores are other reads: the selection is the library's own
        assert error(run(x, more, 1 - score)[0], got[0]) > 10 * limit(dtype, "o")
    with torch.no_grad():
        run_again = ht.hola_cache_attention(**x, **more, score=score, window=window, chunk=chunk, cu_seqlens=cu,
                                            evict=evict)
    assert not emulated.calls[-1][2].kept and torch.equal(run_again, got[0])


def test_memory_beyond_the_kernels(emulated):
    """A window that no kernel takes is read in PyTorch, and that is said."""
    x, _ = data(F32)
    with pytest.warns(RuntimeWarning, match="windows up to 512"):
        o = ht.hola_cache_attention(x["q"], x["k"], x["v"], x["beta"], torch.zeros(4), window=513, chunk=8)
    assert not emulated.calls and o.shape == x["v"].shape


def test_failure(emulated):
    """A call that the library refuses is an error with its reason, not a second try in PyTorch."""
    emulated.refuse = True
    x, _ = data(F32)
    with pytest.raises(RuntimeError, match="hola_gdn_forward: where: size is 0"):
        ht.chunk_gdn(**x)
    with pytest.raises(RuntimeError, match="hola_cache_forward: where: size is 0"):
        ht.hola_cache_attention(x["q"], x["k"], x["v"], x["beta"], torch.zeros(4))


def test_structs(emulated, monkeypatch):
    """A struct that differs from the library's is noticed before anything is called."""

    class Short(_raw.Where):
        _fields_ = [("more", _raw.c_int32)]

    monkeypatch.setitem(_raw.STRUCTS, "hola_where", Short)
    with pytest.raises(_raw.Missing, match="hola_where has .* bytes, this package's has"):
        _raw.Library(emulated.path)


def test_ways(emulated):
    """The table of types and sizes; what is slow says so, once."""
    make = lambda K, V, t: (torch.empty(1, 1, 1, K, dtype=t),) * 2 + (torch.empty(1, 1, 1, V, dtype=t),)  # noqa: E731
    for K, V, t, want in ((64, 64, BF16, "cuda"), (256, 512, BF16, "cuda"), (96, 64, BF16, "cuda-plain"),
                          (64, 65, BF16, "cuda-plain"), (64, 64, F32, "cuda-plain"), (64, 64, F16, "cuda-plain"),
                          (64, 64, torch.float64, "torch"), (257, 64, BF16, "torch"), (64, 513, BF16, "torch")):
        assert ht.backend_for(*make(K, V, t)) == want, (K, V, t)
        with ht.use_kernels(False):
            assert ht.backend_for(*make(K, V, t)) == "torch"
    x, _ = data(F32)
    with pytest.warns(RuntimeWarning, match="float32"):
        ht.chunk_gdn(**x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ht.chunk_gdn(**x)


def test_no_library(monkeypatch, tmp_path):
    """Without the library, or with one that has no such functions, plain PyTorch does it and says why."""
    monkeypatch.setattr(_raw, "device_types", {"cpu"})
    monkeypatch.setattr(_call, "_warned", set())
    monkeypatch.setattr(_raw, "library_path", lambda: str(tmp_path / "none.so"))
    _raw.forget()
    x, _ = data(F32)
    try:
        with pytest.warns(RuntimeWarning, match="none.so"):
            o, _ = ht.chunk_gdn(**x)
    finally:
        _raw.forget()
    with ht.use_kernels(False):
        assert torch.equal(o, ht.chunk_gdn(**x)[0])


@pytest.mark.parametrize("version", ["4.57.6", None])
def test_no_models(version, tmp_path):
    """With transformers 4, or none, the functions are there, and who asks for the models is told why they are not."""
    if version:
        (tmp_path / "transformers.py").write_text(f"__version__ = {version!r}\n")
    else:
        (tmp_path / "transformers.py").write_text("raise ImportError\n")
    script = """
import hola.torch as ht
assert ht.chunk_gdn and "HolaConfig" not in ht.__all__ and not hasattr(ht, "nothing")
try: from hola.torch import HolaForCausalLM
except ImportError: pass
print(getattr(ht, "HolaConfig", None))
ht.HolaConfig
"""
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    out = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
                         text=True)
    why = f"not {version}" if version else "not installed"
    assert out.stdout == "None\n" and "AttributeError: module 'hola.torch' has no HolaConfig" in out.stderr, out.stderr
    assert why in out.stderr


# ---- operators ----


@pytest.mark.parametrize("library", [False, True], ids=["plain", "library"])
def test_opcheck(library, request):
    if library:
        request.getfixturevalue("emulated")
    x, more = data(F32, T=5)
    given = (*x.values(), *more.values(), None)
    numbers = (0.5, 7, 0)
    opcheck(torch.ops.hola.gdn_forward.default, (*given, *numbers, True, True, True))
    flat = [y if y is None else y.detach() for y in given]
    kept = torch.ops.hola.gdn_forward(*flat, *numbers, True, True, True)[3]
    assert bool(kept.numel()) == library
    opcheck(torch.ops.hola.gdn_backward.default,
            (*flat, kept, torch.randn_like(x["v"]), torch.randn_like(more["initial_state"]), *numbers))
    sink, score = torch.zeros(4, requires_grad=True), torch.rand(2, 5, 4)
    read = (x["q"], x["k"], x["v"], score, sink, None, None)
    opcheck(torch.ops.hola.cache_forward.default, (*read, 1, 2, 0.3, True))
    flat = [y.detach() if isinstance(y, torch.Tensor) else y for y in read]
    kept = torch.ops.hola.cache_forward(*flat, 1, 2, 0.3, True)[1]
    opcheck(torch.ops.hola.cache_backward.default, (*flat, kept, torch.randn_like(x["v"]), 1, 2, 0.3))


@pytest.mark.parametrize("library", [False, True], ids=["plain", "library"])
def test_compile(library, request):
    """One graph, with lengths that change; what runs is what runs without compiling."""
    if library:
        request.getfixturevalue("emulated")
    sink = torch.zeros(4, requires_grad=True)

    def f(x, cu):
        o, h, m = ht.gated_delta_rule_with_score(**x, **FLAGS, A_log=sink, output_final_state=True, cu_seqlens=cu)
        return (o + ht.hola_cache_attention(x["q"], x["k"], x["v"], m, sink, window=2, chunk=4, cu_seqlens=cu)), h

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    for T in (9, 14, 7):
        x, _ = data(F32, B=1, T=T)
        cu = torch.tensor([0, 3, T])
        got, want = compiled(x, cu), f(x, cu)
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
        for a, b in zip(torch.autograd.grad(got[0].sum(), list(x.values())),
                        torch.autograd.grad(want[0].sum(), list(x.values()))):
            assert error(a, b) < 1e-6
