"""What hola.torch hands to libhola, tried on the CPU with a stand-in for it (fake_ops.c): structs, pointers, strides,
types, workspace, what is kept between forward and backward. Also the operators as torch sees them."""

import concurrent.futures
import ctypes
import os
import pathlib
import shutil
import subprocess
import warnings

import pytest
import torch
from reference import delta_rule, error
from torch.library import opcheck

import hola.torch as ht
from hola.torch import _ops, _raw

HERE = pathlib.Path(__file__).parent
TYPES = {0: torch.float32, 1: torch.bfloat16}


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    cc = os.environ.get("CC", "cc").split()[-1]
    if shutil.which(cc) is None:
        pytest.skip("there is no C compiler")
    out = tmp_path_factory.mktemp("fake") / "libfake.so"
    subprocess.run([cc, "-std=gnu11", "-shared", "-fPIC", "-fvisibility=default", f"-I{HERE}/../../../include", "-o",
        out,
                    HERE / "fake_ops.c"], check=True)
    return str(out)


class Fake:
    """Reads every pointer of a call, computes by the definition in double, writes every pointer."""

    def __init__(self, path):
        self.lib, self.calls, self.status, self.wrong = ctypes.CDLL(path), [], 0, None
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_raw.Where), ctypes.POINTER(_raw.GdnArgs), ctypes.c_int)
        self.callback = kind(self.answer)
        self.lib.fake_set(self.callback)

    def answer(self, where, args, backward):
        # in a thread of its own: inside of an operator, autograd records nothing
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            try:
                return thread.submit(self.compute, where[0], args[0], bool(backward)).result()
            except Exception as error:  # ctypes would swallow it
                self.wrong = error
                return 1

    @staticmethod
    def at(address, shape, dtype=torch.float32):
        n = int(torch.Size(shape).numel()) * torch.empty(0, dtype=dtype).element_size()
        assert address and n
        return torch.frombuffer((ctypes.c_char * n).from_address(address), dtype=dtype).view(shape)

    def compute(self, w, a, backward):
        assert a.size == ctypes.sizeof(_raw.GdnArgs) and w.size == ctypes.sizeof(_raw.Where)
        assert w.work % 256 == 0 and w.work_bytes == 100 + a.rows.N * (3 if backward else 1) and w.device == -1
        ctypes.memset(w.work, 0xEE, w.work_bytes)
        T, H, HV, K, V, N = a.rows.T, a.H, a.HV, a.K, a.V, a.rows.N
        main, gates = TYPES[a.dtype], TYPES[a.gate_dtype]
        shapes = dict(q=(T, H, K), k=(T, H, K), v=(T, HV, V))
        x = {n: self.at(getattr(a, n), s, main) for n, s in shapes.items()}
        assert all(getattr(a, n) % 16 == 0 for n in "qkv")
        x.update({n: self.at(getattr(a, n), (T, HV), gates) for n in ("g", "beta") if getattr(a, n)})
        optional = dict(A_log=(HV,), dt_bias=(HV,), h0=(N, HV, K, V))
        x.update({n: self.at(getattr(a, n), s) for n, s in optional.items() if getattr(a, n)})
        if a.rows.cu:
            cu = self.at(a.rows.cu, (N + 1,), {32: torch.int32, 64: torch.int64}[a.rows.cu_bits]).tolist()
            lengths = [q - p for p, q in zip(cu, cu[1:])]
        else:
            assert a.rows.cu_bits == 0
            lengths = [T // N] * N
        self.calls.append((backward, a.dtype, a.gate_dtype, a.rows.longest, a.flags))
        if self.status:
            return self.status
        d = {n: y.double().requires_grad_() for n, y in x.items()}
        with torch.enable_grad():
            out, ht_, m = self.rule(a, d, lengths)
        if not backward:
            self.at(a.out, (T, HV, V), main).copy_(out[0].detach())
            if a.ht:
                self.at(a.ht, (N, HV, K, V)).copy_(ht_.detach())
            if a.m:
                self.at(a.m, (T, HV)).copy_(m[0].detach())
            if a.kept:
                self.at(a.kept, (2 + T * HV,), torch.int64).copy_(torch.arange(2 + T * HV) * 7)
            return 0
        assert torch.equal(self.at(a.kept, (2 + T * HV,), torch.int64), torch.arange(2 + T * HV) * 7)
        total = (out[0] * self.at(a.dout, (T, HV, V), main).double()).sum()
        if a.dht:
            total = total + (ht_ * self.at(a.dht, (N, HV, K, V)).double()).sum()
        grads = dict(zip(d, torch.autograd.grad(total, list(d.values()))))
        for n, grad in grads.items():
            address = getattr(a, "d" + n)
            assert address, f"d{n}: nowhere to write"
            self.at(address, grad.shape, main if n in "qkv" else torch.float32).copy_(grad)
        return 0

    @staticmethod
    def rule(a, d, lengths):
        q, k, g, beta = d["q"], d["k"], d.get("g"), d["beta"]
        if a.flags & 1:
            q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
        if a.flags & 2:
            g = -d["A_log"].exp() * torch.nn.functional.softplus(g + (d["dt_bias"] if "dt_bias" in d else 0))
        if a.flags & 4:
            beta = beta.sigmoid() * (2 if a.flags & 8 else 1)
        g = torch.zeros_like(beta) if g is None else g
        return delta_rule(*(y[None] for y in (q, k, d["v"], g, beta)), d.get("h0"), lengths, a.scale)


@pytest.fixture
def fake(built, monkeypatch):
    f = Fake(built)
    monkeypatch.setattr(_raw, "device_types", {"cpu"})
    monkeypatch.setattr(_raw, "_found", _raw.Library(built))
    monkeypatch.setattr(_ops, "_warned", set())
    yield f
    if f.wrong is not None:
        raise f.wrong


def test_layout(built):
    lib = ctypes.CDLL(built)
    lib.fake_offset.restype, lib.hola_sizeof.restype = ctypes.c_int64, ctypes.c_size_t
    for name, struct in _raw.STRUCTS.items():
        assert lib.hola_sizeof(name.encode()) == ctypes.sizeof(struct), name
    for name, _ in _raw.GdnArgs._fields_:
        assert lib.fake_offset(name.encode()) == getattr(_raw.GdnArgs, name).offset, name


def data(dtype, gates, B=2, T=37, H=2, HV=4, K=8, V=4, N=None, strided=False):
    def make(*shape, t=dtype):
        x = torch.randn(*shape, 2 if strided else 1).to(t)[..., 0].detach()
        return x.requires_grad_()

    x = dict(q=make(B, T, H, K), k=make(B, T, H, K), v=make(B, T, HV, V), g=make(B, T, HV, t=gates),
             beta=make(B, T, HV, t=gates))
    more = dict(A_log=make(HV, t=torch.float32), dt_bias=make(HV, t=torch.float32),
                initial_state=make(N or B, HV, K, V, t=torch.float32))
    return x, more


FLAGS = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
             allow_neg_eigval=True)
CASES = [
    (torch.float32, torch.float32, {}, (0, 0), 1e-5),
    (torch.bfloat16, torch.float32, {}, (1, 0), 1e-2),
    (torch.bfloat16, torch.bfloat16, {}, (1, 1), 1e-2),
    (torch.float16, torch.float16, {}, (0, 0), 2e-3),
    (torch.float32, torch.float32, dict(strided=True), (0, 0), 1e-5),
    (torch.bfloat16, torch.float32, dict(B=1, N=3, strided=True), (1, 0), 1e-2),
]


@pytest.mark.parametrize("dtype, gates, shape, codes, limit", CASES, ids=lambda x: str(x).removeprefix("torch."))
def test_call(fake, dtype, gates, shape, codes, limit):
    """Through the stand-in, forward and backward give what plain PyTorch gives, and the library saw the right types."""
    x, more = data(dtype, gates, **shape)
    cu = torch.tensor([0, 5, 5, 37], dtype=torch.int32) if "N" in shape else None
    args = dict(**x, **more, **FLAGS, output_final_state=True, cu_seqlens=cu, state_v_first=False, scale=0.4,
                max_seqlen=32)
    every = [*x.values(), *more.values()]

    def run():
        o, h, m = ht.gated_delta_rule_with_score(**args)
        torch.manual_seed(3)
        do, dh = torch.randn_like(o), torch.randn_like(h)
        return [o, h, m], torch.autograd.grad((o * do).sum() + (h * dh).sum(), every)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert ht.backend_for(x["q"], x["k"], x["v"]) == "cuda-plain"
        got = run()
    assert [c[:3] for c in fake.calls] == [(False, *codes), (True, *codes)] and fake.calls[0][3:] == (32, 15)
    with ht.use_kernels(False):
        want = run()
    assert len(fake.calls) == 2
    for a, b, of in zip(got[1], want[1], every):
        assert a.dtype == b.dtype == of.dtype and a.shape == of.shape and error(a, b) < limit
    assert all(a.dtype == b.dtype and error(a, b) < limit for a, b in zip(got[0], want[0]))
    x["beta"].data += 1  # another input is caught
    with ht.use_kernels(False):
        assert error(run()[0][0], got[0][0]) > limit


def test_what_is_absent(fake):
    """Without g, states and gradients nothing is kept, and pointers are NULL."""
    x, _ = data(torch.float32, torch.float32)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", RuntimeWarning)
        o, h = ht.fused_recurrent_gated_delta_rule(x["q"] / 9, x["k"] / 9, x["v"], beta=x["beta"])
    want = delta_rule(x["q"] / 9, x["k"] / 9, x["v"], torch.zeros(2, 37, 4), x["beta"])[0]
    assert h is None and error(o, want) < 1e-6 and len(fake.calls) == 1
    empty = ht.chunk_gdn(**{n: y[:, :0] for n, y in x.items()}, output_final_state=True)
    assert empty[0].shape == (2, 0, 4, 4) and len(fake.calls) == 1


def test_failure(fake):
    """A call that the library refuses is an error with its reason, not a second try in PyTorch."""
    fake.status = 1
    x, _ = data(torch.float32, torch.float32)
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="hola_gdn_forward: the stand-in refuses"):
        warnings.simplefilter("ignore", RuntimeWarning)
        ht.chunk_gdn(**x)


def test_ways(fake):
    """The table of types and sizes; what is slow says so, once."""
    make = lambda K, V, t: (torch.empty(1, 1, 1, K, dtype=t),) * 2 + (torch.empty(1, 1, 1, V, dtype=t),)  # noqa: E731
    for K, V, t, want in ((64, 64, torch.bfloat16, "cuda"), (256, 512, torch.bfloat16, "cuda"),
                          (96, 64, torch.bfloat16, "cuda-plain"), (64, 65, torch.bfloat16, "cuda-plain"),
                          (64, 64, torch.float32, "cuda-plain"), (64, 64, torch.float16, "cuda-plain"),
                          (64, 64, torch.float64, "torch"), (257, 64, torch.bfloat16, "torch"),
                          (64, 513, torch.bfloat16, "torch")):
        assert ht.backend_for(*make(K, V, t)) == want, (K, V, t)
        with ht.use_kernels(False):
            assert ht.backend_for(*make(K, V, t)) == "torch"
    x, _ = data(torch.float32, torch.float32)
    with pytest.warns(RuntimeWarning, match="float32"):
        ht.chunk_gdn(**x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ht.chunk_gdn(**x)


def test_no_library(monkeypatch, tmp_path):
    """Without the library, or with one that has no such functions, plain PyTorch does it and says why."""
    monkeypatch.setattr(_raw, "device_types", {"cpu"})
    monkeypatch.setattr(_ops, "_warned", set())
    monkeypatch.setattr(_raw, "library_path", lambda: str(tmp_path / "none.so"))
    _raw.forget()
    x, _ = data(torch.float32, torch.float32)
    try:
        with pytest.warns(RuntimeWarning, match="none.so"):
            o, _ = ht.chunk_gdn(**x)
    finally:
        _raw.forget()
    with ht.use_kernels(False):
        assert torch.equal(o, ht.chunk_gdn(**x)[0])


# ---- operators ----


@pytest.mark.parametrize("library", [False, True], ids=["plain", "library"])
def test_opcheck(library, request):
    if library:
        request.getfixturevalue("fake")
    x, more = data(torch.float32, torch.float32, T=5)
    given = (*x.values(), *more.values(), None)
    numbers = (0.5, 7, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        opcheck(torch.ops.hola.gdn_forward.default, (*given, *numbers, True, True, True))
        flat = [y if y is None else y.detach() for y in given]
        kept = torch.ops.hola.gdn_forward(*flat, *numbers, True, True, True)[3]
        assert kept.numel() == (16 + 8 * 10 * 4 if library else 0)
        opcheck(torch.ops.hola.gdn_backward.default,
                (*flat, kept, torch.randn_like(x["v"]), torch.randn_like(more["initial_state"]), *numbers))
        if not library:
            sink, score = torch.zeros(4, requires_grad=True), torch.rand(2, 5, 4)
            read = (x["q"], x["k"], x["v"], score, sink, None, None, 1, 2, 0.3)
            opcheck(torch.ops.hola.cache_forward.default, read)
            flat = [y.detach() if isinstance(y, torch.Tensor) else y for y in read]
            opcheck(torch.ops.hola.cache_backward.default, (*flat, torch.randn_like(x["v"])))


@pytest.mark.parametrize("library", [False, True], ids=["plain", "library"])
def test_compile(library, request):
    """One graph, with lengths that change; what runs is what runs without compiling."""
    if library:
        request.getfixturevalue("fake")
    sink = torch.zeros(4, requires_grad=True)

    def f(x, cu):
        o, h, m = ht.gated_delta_rule_with_score(**x, **FLAGS, A_log=sink, output_final_state=True, cu_seqlens=cu)
        return (o + ht.hola_cache_attention(x["q"], x["k"], x["v"], m, sink, window=2, chunk=4, cu_seqlens=cu)), h

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for T in (9, 14, 7):
            x, _ = data(torch.float32, torch.float32, B=1, T=T)
            cu = torch.tensor([0, 3, T])
            got, want = compiled(x, cu), f(x, cu)
            assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
            for a, b in zip(torch.autograd.grad(got[0].sum(), list(x.values())),
                            torch.autograd.grad(want[0].sum(), list(x.values()))):
                assert error(a, b) < 1e-6
