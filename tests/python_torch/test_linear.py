"""chunk_kda and chunk_gla: against the definition in double, on the emulated device, as operators; what is refused."""

import inspect

import pytest
import torch
from reference import error, per_channel
from test_raw import BF16, CU, F16, F32, double, gradients, limit
from torch.autograd import gradcheck
from torch.library import opcheck

import hola.torch as ht

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:hola.torch. not the fast kernels:RuntimeWarning")


def data(delta, dtype=F64, B=2, T=37, H=2, HV=2, K=8, V=4, N=None, low=-1.0, strided=False):
    make = lambda *shape: torch.randn(*shape, 2 if strided else 1)[..., 0]  # noqa: E731
    x = dict(q=make(B, T, H, K), k=torch.nn.functional.normalize(make(B, T, H, K), dim=-1), v=make(B, T, HV, V),
             g=make(B, T, HV, K).sigmoid() * low)
    x["g"] = torch.where(torch.rand(B, T, HV, K) < 0.2, x["g"], x["g"].clamp(min=-1))
    if delta:
        x["beta"] = make(B, T, HV).sigmoid()
    x = {n: y.to(dtype).requires_grad_() for n, y in x.items()}
    return x, torch.randn(N or B, HV, K, V, dtype=F64 if dtype == F64 else F32).requires_grad_()


def call(delta, **x):
    return (ht.chunk_kda if delta else ht.chunk_gla)(**x)


SHAPES = [dict(T=1), dict(T=16), dict(T=33, B=3), dict(T=40, K=5, V=7, low=-5000.0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("delta", [True, False], ids=["kda", "gla"])
@pytest.mark.parametrize("packed", [False, True])
def test_definition(delta, shape, packed):
    x, h0 = data(delta, **{**shape, **(dict(HV=4) if delta else {})})
    lengths = cu = None
    if packed:
        x = {n: y.detach().flatten(0, 1)[None].requires_grad_() for n, y in x.items()}
        lengths = [0, x["q"].shape[1] - 1, 1]
        cu, h0 = torch.tensor([0, 0, lengths[1], lengths[1] + 1]), torch.randn(3, *h0.shape[1:], dtype=F64)
        h0.requires_grad_()
    got = call(delta, **x, initial_state=h0, output_final_state=True, cu_seqlens=cu, scale=0.3)
    want = per_channel(**x, h0=h0, lengths=lengths, scale=0.3)
    assert all(error(a, b) < 1e-11 and a.shape == b.shape for a, b in zip(got, want))
    inputs = [*x.values(), h0]
    for a, b in zip(gradients(got, inputs), gradients(want, inputs)):
        assert error(a, b) < 1e-9
    if x["q"].shape[1] > 4:
        assert error(per_channel(**x, h0=h0, lengths=lengths, scale=0.3, one_decay=True)[0], want[0]) > 1e-2
    turned = call(delta, **x, initial_state=h0.transpose(-1, -2), output_final_state=True, cu_seqlens=cu, scale=0.3,
                  state_v_first=True)
    assert torch.equal(turned[0], got[0]) and torch.equal(turned[1].transpose(-1, -2), got[1])
    assert call(delta, **x, cu_seqlens=cu)[1] is None


def test_gradcheck():
    for delta, norm in ((True, False), (True, True), (False, False)):
        x, h0 = data(delta, T=20, HV=4 if delta else 2, K=3, V=2)
        more = dict(use_qk_l2norm_in_kernel=True) if norm else {}
        for kernels in (True, False):
            with ht.use_kernels(kernels):
                def f(*a):
                    return call(delta, **dict(zip(x, a)), **more, initial_state=a[-1], output_final_state=True)

                assert gradcheck(f, (*x.values(), h0), fast_mode=True)


def test_in_kernel():
    """Norm, gates and sigmoid, as fla's layers ask for them."""
    x, _ = data(True, HV=4, T=20)
    q, k, v, g, beta = (y.detach() for y in x.values())
    g, beta, A, dt = torch.randn_like(g), torch.randn_like(beta), torch.randn(4), torch.randn(4 * 8)
    unit = lambda y: y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt()  # noqa: E731
    flags = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True)
    a, rate = g + dt.view(4, 8), A.double().exp().view(4, 1)
    for more, gate in ((dict(A_log=A), -rate * torch.nn.functional.softplus(a)),
                       (dict(A_log=A, lower_bound=-5.0, safe_gate=True), -5 * (rate * a).sigmoid()),
                       (dict(lower_bound=-2.0), -2 * a.sigmoid())):
        got = ht.chunk_kda(q, 3 * k, v, g, beta, **flags, **more, dt_bias=dt, allow_neg_eigval=True)[0]
        assert error(got, per_channel(unit(q), unit(3 * k), v, gate, 2 * beta.sigmoid())[0]) < 1e-7
    assert error(got, per_channel(unit(q), unit(3 * k), v, gate, beta.sigmoid())[0]) > 1e-2


CASES = [
    (F32, {}, None),
    (F16, dict(B=1, strided=True, N=3), CU.long()),
    (BF16, dict(B=1, K=64, V=64, N=3), CU),
    (BF16, dict(B=1, H=1, HV=1, T=130, K=128, V=64), None),
]


@pytest.mark.parametrize("dtype, shape, cu", CASES, ids=lambda x: str(x).removeprefix("torch.")[:40])
@pytest.mark.parametrize("delta", [True, False], ids=["kda", "gla"])
def test_emulated(emulated, delta, dtype, shape, cu):
    if delta:
        shape = {**shape, "HV": 2 * shape.get("H", 2)}
    x, h0 = data(delta, dtype, **shape)
    run = lambda x, **more: call(delta, **x, cu_seqlens=cu, scale=0.2, **more)  # noqa: E731
    o, _ = run(x)
    got = o, gradients((o,), [*x.values()])
    op = "kda" if delta else "gla"
    assert [c[:2] for c in emulated.calls] == [(op, False), (op, True)]
    with ht.use_kernels(False):
        y = double(x)
        want = run(y)[0]
        right, wrong = gradients((want,), [*y.values()]), run({**y, "k": y["k"].roll(1, 1)})[0]
    assert o.dtype == dtype and error(o, want) < limit(dtype, "o") < error(o, wrong) / 3
    for a, b, (name, of) in zip(got[1], right, x.items()):
        assert a.dtype == of.dtype and a.shape == of.shape and error(a, b) < limit(dtype, name), name
    with torch.no_grad():  # states in and out
        o, h = run(x, initial_state=h0, output_final_state=True)
    with ht.use_kernels(False):
        want = run(double(x), initial_state=h0.double(), output_final_state=True)
    assert emulated.calls[-1][0] == op and len(emulated.calls) == 3
    assert error(o, want[0]) < limit(dtype, "o") and error(h, want[1]) < limit(dtype, "state") and h.dtype == F32


@pytest.mark.parametrize("dtype, shape, cu", CASES, ids=lambda x: str(x).removeprefix("torch.")[:40])
def test_norm(emulated, dtype, shape, cu):
    """The norm of q and k is the library's, forward and backward: torch has no pass over them of its own."""
    x, _ = data(True, dtype, **shape)
    x["q"], x["k"] = ((3 * x[n].detach()).requires_grad_() for n in "qk")

    def run(x, norm=True):
        o = ht.chunk_kda(**x, cu_seqlens=cu, scale=0.2, use_qk_l2norm_in_kernel=norm)[0]
        return o, gradients((o,), [*x.values()])

    with torch.profiler.profile() as seen:
        o, grads = run(x)
    assert [(op, back, a.flags) for op, back, a in emulated.calls] == [("kda", False, 1), ("kda", True, 1)]
    passes = {e.key for e in seen.key_averages()} & {"aten::square", "aten::pow", "aten::rsqrt", "aten::linalg_norm"}
    assert not passes, passes
    with ht.use_kernels(False):
        y = double(x)
        unit = {n: torch.nn.functional.normalize(z, dim=-1) if n in "qk" else z for n, z in y.items()}
        (want, right), wrong = run(y), run({**y, "k": y["k"] / 3}, False)[0]
        constant = run({n: z.detach().requires_grad_() for n, z in unit.items()}, False)[1]
    assert o.dtype == dtype and error(o, want) < limit(dtype, "o") < error(o, wrong) / 3
    for a, b, c, (name, of) in zip(grads, right, constant, x.items()):
        assert a.dtype == of.dtype and a.shape == of.shape and error(a, b) < limit(dtype, name), name
        if name in "qk":  # the length counts as a constant
            c = c / of.detach().double().norm(dim=-1, keepdim=True)
            assert error(a, c) > 3 * limit(dtype, name), name


STATES = [(F32, {}, None, 0.5), (F16, dict(B=1, N=3), CU, 0.5), (BF16, dict(B=1, K=64, V=64, N=3), CU, 0.2)]


@pytest.mark.parametrize("dtype, shape, cu, scale", STATES, ids=lambda x: str(x).removeprefix("torch.")[:40])
@pytest.mark.parametrize("delta", [True, False], ids=["kda", "gla"])
def test_gradient_through_states(emulated, delta, dtype, shape, cu, scale):
    """Through the kernels: of the first states, and from the last ones, with and without the outputs."""
    x, h0 = data(delta, dtype, **shape)

    def run(x, h0, which):
        got = call(delta, **x, initial_state=h0, output_final_state=True, cu_seqlens=cu, scale=scale)
        return gradients([got[i] for i in which], [*x.values(), h0])

    for which in ((0, 1), (0,), (1,)):
        got = run(x, h0, which)
        a = emulated.calls[-1][2]
        assert emulated.calls[-1][1] and a.h0 and a.dh0 and bool(a.dht) == (1 in which)
        with ht.use_kernels(False):
            y, h = double(x), h0.detach().double().requires_grad_()
            want = run(y, h, which)
            wrong = run({**y, "g": 2 * y["g"]}, h, which)
        for a, b, name in zip(got, want, (*x, "initial_state")):
            if which == (1,) and name == "q":
                assert not a.any() and not b.any()  # the states do not depend on the queries
            else:
                assert a.dtype == (F32 if name == "initial_state" else dtype) and error(a, b) < limit(dtype, name), name
        assert error(wrong[-1], want[-1]) > 3 * limit(dtype, "initial_state")


@pytest.mark.parametrize("library", [False, True], ids=["plain", "library"])
def test_operators(library, request):
    if library:
        request.getfixturevalue("emulated")
    for delta in (True, False):
        x, h0 = data(delta, F32, T=5)
        given = (*x.values(), *(() if delta else (None,)))
        opcheck(torch.ops.hola.linear_forward.default, (*given, h0, None, 0.3, int(delta), 0, True, True))
        flat = [None if y is None else y.detach() for y in given]
        kept = torch.ops.hola.linear_forward(*flat, None, None, 0.3, int(delta), 0, True, True)[2]
        assert bool(kept.numel()) == (library and delta)
        opcheck(torch.ops.hola.linear_backward.default,
                (*flat, None, None, kept, torch.randn_like(x["v"]), None, 0.3, int(delta), 0))
    torch._dynamo.reset()
    f = lambda x, y, cu: ht.chunk_kda(**x, cu_seqlens=cu)[0] + ht.chunk_gla(**y, cu_seqlens=cu)[0]  # noqa: E731
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    for T in (9, 14):
        x, y, cu = data(True, F32, B=1, T=T)[0], data(False, F32, B=1, T=T)[0], torch.tensor([0, 3, T])
        got, want = compiled(x, y, cu), f(x, y, cu)
        inputs = [*x.values(), *y.values()]
        assert torch.equal(got, want)
        assert all(error(a, b) < 1e-6 for a, b in zip(gradients((got,), inputs), gradients((want,), inputs)))


def test_refused():
    x, h0 = data(True, HV=4)
    y = data(False)[0]

    def refused(kind, text, f, **given):
        with pytest.raises(kind, match=text):
            f(**given)

    refused(TypeError, "'nonsense'", ht.chunk_kda, **x, nonsense=1)
    refused(ValueError, r"g must be \[B, T, HV, K\]", ht.chunk_kda, **{**x, "g": x["beta"]})
    refused(ValueError, "beta must be", ht.chunk_kda, **{**x, "beta": x["g"]})
    refused(ValueError, "A_log", ht.chunk_kda, **x, use_gate_in_kernel=True)
    refused(ValueError, r"dt_bias must be \[HV \* K\]", ht.chunk_kda, **x, use_gate_in_kernel=True,
            A_log=torch.zeros(4), dt_bias=torch.zeros(4))
    refused(ValueError, "lower_bound", ht.chunk_kda, **x, use_gate_in_kernel=True, safe_gate=True)
    refused(ValueError, "chunk_size", ht.chunk_kda, **x, chunk_size=16)
    refused(ValueError, "use_beta_sigmoid", ht.chunk_kda, **x, allow_neg_eigval=True)
    refused(NotImplementedError, "cp_context", ht.chunk_kda, **x, cp_context=1)
    refused(NotImplementedError, "return_intermediate_states", ht.chunk_kda, **x, return_intermediate_states=True)
    refused(ValueError, "number of initial states", ht.chunk_kda, **x, initial_state=h0[:1])
    refused(ValueError, "heads of q", ht.chunk_gla, **{**y, "v": x["v"]})
    refused(ValueError, r"g must be \[B, T, H, K\]", ht.chunk_gla, **{**y, "g": y["v"]})
    refused(ValueError, "expected to be 1", ht.chunk_gla, **y, cu_seqlens=torch.tensor([0, 37]))


def test_arguments():
    """fla 0.6.0's, in its order."""
    assert list(inspect.signature(ht.chunk_gla).parameters) == [
        "q", "k", "v", "g", "scale", "initial_state", "output_final_state", "state_v_first", "cu_seqlens",
        "cu_seqlens_cpu"]
    assert list(inspect.signature(ht.chunk_kda).parameters) == [
        "q", "k", "v", "g", "beta", "scale", "initial_state", "output_final_state", "use_qk_l2norm_in_kernel",
        "use_gate_in_kernel", "use_beta_sigmoid_in_kernel", "allow_neg_eigval", "safe_gate", "lower_bound",
        "disable_recompute", "return_intermediate_states", "state_v_first", "cu_seqlens", "cu_seqlens_cpu",
        "cp_context", "use_graph", "max_num_seqs", "kwargs"]
