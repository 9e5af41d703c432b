"""The functions of hola.torch against the definition, in double and in the small types; arguments that are refused."""

import inspect
import warnings

import pytest
import torch
from reference import delta_rule, error, memory
from torch.autograd import gradcheck

import hola.torch as ht

F64 = torch.float64


def inputs(B=1, T=70, H=2, HV=2, K=8, V=8, dtype=F64, low=-1.0, N=None, grad=False):
    x = dict(q=torch.randn(B, T, H, K), k=torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1),
             v=torch.randn(B, T, HV, V), g=torch.rand(B, T, HV) * low, beta=torch.rand(B, T, HV))
    x = {n: y.to(dtype).requires_grad_(grad) for n, y in x.items()}
    h0 = torch.randn(B if N is None else N, HV, K, V, dtype=F64 if dtype == F64 else torch.float32)
    return x, h0.requires_grad_(grad)


SHAPES = [dict(T=1), dict(T=63), dict(T=64), dict(T=65, B=2), dict(T=199, H=1, HV=3, K=5, V=7), dict(T=130, HV=4, V=3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_definition(shape):
    x, h0 = inputs(**shape)
    want = delta_rule(**x, h0=h0)
    o, h = ht.chunk_gated_delta_rule(**x, initial_state=h0, output_final_state=True)
    o2, h2, m = ht.gated_delta_rule_with_score(**x, initial_state=h0, output_final_state=True)
    o3, h3 = ht.fused_recurrent_gated_delta_rule(**x, initial_state=h0, output_final_state=True)
    for got, right in ((o, want[0]), (o2, want[0]), (o3, want[0]), (h, want[1]), (h2, want[1]), (h3, want[1]),
                       (m, want[2])):
        assert got.shape == right.shape and error(got, right) < 1e-13
    if shape["T"] > 4:
        assert error(delta_rule(**x, h0=h0, forget=4)[0], want[0]) > 1e-2
    assert ht.chunk_gdn(**x)[1] is None


LENGTHS = [[70], [5, 0, 70, 64, 1, 129], [0, 0], [1, 1, 1]]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("bits", [torch.int32, torch.int64], ids=str)
def test_packed(lengths, bits):
    x, h0 = inputs(T=sum(lengths), HV=4, N=len(lengths), grad=True)
    cu = torch.tensor([0] + lengths).cumsum(0).to(bits)
    o, h = ht.chunk_gdn(**x, initial_state=h0, output_final_state=True, cu_seqlens=cu)
    for i, n in enumerate(lengths):
        part = {name: y[:, cu[i] : cu[i] + n] for name, y in x.items()}
        if n == 0:
            assert torch.equal(h[i], h0[i])
            continue
        want = delta_rule(**part, h0=h0[i : i + 1])
        assert error(o[:, cu[i] : cu[i] + n], want[0]) < 1e-13 and error(h[i : i + 1], want[1]) < 1e-13
    do, dh = torch.randn_like(o), torch.randn_like(h)
    got = torch.autograd.grad((o * do).sum() + (h * dh).sum(), [*x.values(), h0])
    want = delta_rule(**x, h0=h0, lengths=lengths)
    if sum(lengths):
        right = torch.autograd.grad((want[0] * do).sum() + (want[1] * dh).sum(), [*x.values(), h0])
        assert all(error(a, b) < 1e-12 for a, b in zip(got, right))
    else:
        assert torch.equal(got[-1], dh) and o.shape == (1, 0, 4, 8)


def test_hard_gates():
    """From 0 to -5000: nothing overflows, and gates near 0 keep their digits beside large ones."""
    x, h0 = inputs(T=150)
    x["g"] = torch.where(torch.rand_like(x["g"]) < 0.2, -5000.0, 0.0) + x["g"] * 0.01
    want, got = delta_rule(**x, h0=h0), ht.gated_delta_rule_with_score(**x, initial_state=h0, output_final_state=True)
    assert all(error(a, b) < 1e-9 for a, b in zip(got, want))  # sums of -150,000 in double
    single = {n: y.float() for n, y in x.items()}
    got = ht.gated_delta_rule_with_score(**single, initial_state=h0.float(), output_final_state=True)
    assert all(error(a, b) < 2e-4 for a, b in zip(got, want))


def test_in_kernel():
    """Norm, gate, sigmoid and negative eigenvalues, as fla's layers ask for them."""
    x, h0 = inputs(HV=4, T=66)
    q, k, v, g, beta = x["q"], 3 * x["k"], x["v"], torch.randn_like(x["g"]), torch.randn_like(x["beta"])
    A, dt = torch.randn(4, dtype=F64), torch.randn(4, dtype=F64)
    unit = lambda y: y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt()  # noqa: E731
    for neg in (False, True):
        got = ht.chunk_gdn(q, k, v, g, beta, initial_state=h0.transpose(-1, -2), output_final_state=True,
                           use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True, allow_neg_eigval=neg,
                           state_v_first=True, use_gate_in_kernel=True, A_log=A, dt_bias=dt, scale=0.7)
        want = delta_rule(unit(q), unit(k), v, -A.exp() * torch.nn.functional.softplus(g + dt),
                          beta.sigmoid() * (1 + neg), h0, scale=0.7)
        assert error(got[0], want[0]) < 1e-13 and error(got[1].transpose(-1, -2), want[1]) < 1e-13
        assert got[1].is_contiguous()
    assert error(delta_rule(q, k, v, g, beta, h0)[0], want[0]) > 1e-2


@pytest.mark.parametrize("plain", [False, True], ids=["operator", "autograd"])
def test_gradcheck(plain):
    x, h0 = inputs(B=2, T=5, HV=4, K=3, V=2, grad=True)
    A, dt = (torch.randn(4, dtype=F64, requires_grad=True) for _ in range(2))
    more = dict(use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True, use_gate_in_kernel=True,
                output_final_state=True)
    with ht.use_kernels(not plain):
        assert gradcheck(lambda q, k, v, g, b, h, A, dt: ht.chunk_gdn(q, k, v, g, b, initial_state=h, A_log=A,
            dt_bias=dt,
                                                                      **more), (*x.values(), h0, A, dt), fast_mode=True)
        sink, tau = (torch.randn(4, dtype=F64, requires_grad=True) for _ in range(2))
        score = torch.rand(2, 5, 4, dtype=F64)
        assert gradcheck(lambda *a: ht.hola_cache_attention(*a[:3], score, *a[3:], window=1, chunk=2),
                         (x["q"], x["k"], x["v"], sink, tau), fast_mode=True)


def test_long_gradients():
    """Over several chunks: the operator's backward is autograd's of the definition; one that stops at a chunk is
    not."""
    x, h0 = inputs(T=140, HV=4, grad=True)
    o, h = ht.chunk_gdn(**x, initial_state=h0, output_final_state=True)
    do, dh = torch.randn_like(o), torch.randn_like(h)
    got = torch.autograd.grad((o * do).sum() + (h * dh).sum(), [*x.values(), h0])
    want = delta_rule(**x, h0=h0)
    right = torch.autograd.grad((want[0] * do).sum() + (want[1] * dh).sum(), [*x.values(), h0])
    assert all(error(a, b) < 1e-12 for a, b in zip(got, right))
    wrong = torch.autograd.grad((delta_rule(**x, h0=h0, forget=64)[0] * do).sum(), list(x.values()))
    assert all(error(a, b) > 1e-3 for a, b in zip(wrong, right))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_types(dtype):
    x, h0 = inputs(T=100, dtype=dtype, grad=True)
    want = delta_rule(**x, h0=h0)
    o, h, m = ht.gated_delta_rule_with_score(**x, initial_state=h0, output_final_state=True)
    assert (o.dtype, h.dtype, m.dtype) == (dtype, torch.float32, torch.float32) and not m.requires_grad
    limit = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
    assert error(o, want[0]) < limit and error(h, want[1]) < 2e-6 and error(m, want[2]) < 2e-6
    o.float().sum().backward()
    assert all(y.grad.dtype == dtype for y in x.values())
    with torch.autocast("cpu", dtype=torch.bfloat16):  # sums stay in float32 under autocast
        assert torch.equal(ht.chunk_gdn(**x, initial_state=h0)[0], o)


def test_no_tokens():
    for B, T in ((2, 0), (0, 5)):
        x, h0 = inputs(B=B, T=T)
        o, h = ht.chunk_gdn(**x, initial_state=h0, output_final_state=True)
        assert o.shape == (B, T, 2, 8) and torch.equal(h, h0)
        assert ht.hola_cache_attention(x["q"], x["k"], x["v"], x["beta"], torch.zeros(2, dtype=F64)).shape == o.shape
    x, _ = inputs(T=0, grad=True)
    ht.chunk_gdn(**x)[0].sum().backward()
    assert x["q"].grad.shape == x["q"].shape


def test_views():
    """Strided and transposed inputs give what dense ones give."""
    x, h0 = inputs(T=67, HV=4)
    strided = {n: torch.stack([y, y], -1)[..., 0] for n, y in x.items()}
    assert not strided["q"].is_contiguous()
    assert torch.equal(ht.chunk_gdn(**strided, initial_state=h0)[0], ht.chunk_gdn(**x, initial_state=h0)[0])


# ---- the exact memory ----


@pytest.mark.parametrize("case", [dict(T=50, window=4, chunk=16), dict(T=33, window=0, chunk=8),
                                  dict(T=40, window=30, chunk=8, B=2, HV=4), dict(T=20, window=4, chunk=64)], ids=str)
def test_memory(case):
    window, chunk = case["window"], case["chunk"]
    x, _ = inputs(**{n: y for n, y in case.items() if n not in ("window", "chunk")}, grad=True)
    HV = x["v"].shape[2]
    sink, tau = torch.randn(HV, dtype=F64, requires_grad=True), (1 + torch.rand(HV, dtype=F64)).requires_grad_()
    score = torch.randint(0, 4, x["beta"].shape).double()  # many ties
    args = (x["q"], x["k"], x["v"])
    want = memory(*args, score, sink, tau, window, chunk)
    got = ht.hola_cache_attention(*args, score, sink, tau, window=window, chunk=chunk)
    assert error(got, want) < 1e-13
    d = torch.randn_like(got)
    every = (*args, sink, tau)
    for a, b in zip(torch.autograd.grad((got * d).sum(), every), torch.autograd.grad((want * d).sum(), every)):
        assert error(a, b) < 1e-12
    if 0 < window < case["T"] - chunk:
        assert error(memory(*args, score, sink, tau, window, chunk, newer=True), want) > 1e-3
    if case.get("B", 1) == 1:
        cu = torch.tensor([0, 3, 3, case["T"]])
        got = ht.hola_cache_attention(*args, score, sink, tau, window=window, chunk=chunk, cu_seqlens=cu)
        assert error(got, memory(*args, score, sink, tau, window, chunk, [3, 0, case["T"] - 3])) < 1e-13
    latest = torch.arange(case["T"], dtype=F64).view(1, -1, 1).expand_as(score)
    got = ht.hola_cache_attention(*args, None, sink, window=window, chunk=chunk, evict="recency")
    assert error(got, memory(*args, latest, sink, torch.ones(HV), window, chunk)) < 1e-13


# ---- arguments ----


def refused(kind, text, f, *args, **kwargs):
    with pytest.raises(kind) as caught:
        f(*args, **kwargs)
    assert text in str(caught.value), caught.value
    assert "\n" not in str(caught.value)


def test_signature():
    names = list(inspect.signature(ht.chunk_gated_delta_rule).parameters)
    assert names == ["q", "k", "v", "g", "beta", "scale", "initial_state", "output_final_state",
                     "use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel", "allow_neg_eigval", "state_v_first",
                     "cu_seqlens", "cu_seqlens_cpu", "chunk_indices", "cp_context", "kwargs"]
    assert ht.chunk_gdn is ht.chunk_gated_delta_rule


def test_refused():
    x, h0 = inputs(HV=4)
    f = ht.chunk_gdn
    change = lambda **y: {**x, **y}  # noqa: E731
    cut = lambda n: x[n][..., :-1]  # noqa: E731
    refused(TypeError, "'head_first'", f, **x, head_first=True)
    refused(TypeError, "'nonsense'", f, **x, nonsense=1)
    refused(TypeError, "q must be a tensor", f, **change(q=3))
    refused(TypeError, "g must be a tensor", f, **change(g=None))
    refused(ValueError, "k must have the shape of q", f, **change(k=cut("k")))
    refused(ValueError, "same number of heads", f, **change(k=x["k"][:, :, :1]))
    refused(ValueError, "v must have a multiple", f, **change(v=x["v"][:, :, :3]))
    refused(ValueError, "v must begin with", f, **change(v=x["v"][:, 1:]))
    refused(ValueError, "v is torch.float32", f, **change(v=x["v"].float()))
    refused(ValueError, "q must hold floating-point", f, **change(q=x["q"].long()))
    refused(ValueError, "g must be [B, T, HV]", f, **change(g=cut("g")))
    refused(ValueError, "beta must be [B, T, HV]", f, **change(beta=cut("beta")))
    refused(ValueError, "chunk_size", f, **x, chunk_size=48)
    refused(ValueError, "A_log", f, **x, use_gate_in_kernel=True)
    refused(ValueError, "dt_bias must be [HV]", f, **x, use_gate_in_kernel=True, A_log=torch.zeros(4),
            dt_bias=torch.zeros(3))
    refused(ValueError, "use_beta_sigmoid_in_kernel", f, **x, allow_neg_eigval=True)
    refused(ValueError, "number of initial states", f, **x, initial_state=h0.repeat(2, 1, 1, 1))
    refused(ValueError, "initial_state must be [N, HV, K, V]", f, **x, initial_state=h0[..., 1:])
    refused(ValueError, "k is on meta, q on cpu", f, **change(k=x["k"].to("meta")))
    refused(ValueError, "g is on meta, q on cpu", f, **change(g=x["g"].to("meta")))
    refused(ValueError, "beta must hold floating-point", f, **change(beta=x["beta"].int()))
    refused(ValueError, "initial_state is on meta", f, **x, initial_state=h0.to("meta"))
    refused(ValueError, "cu_seqlens must be int32", f, **x, cu_seqlens=torch.tensor([0.0, 70]))
    refused(ValueError, "cu_seqlens must begin", f, **x, cu_seqlens=torch.tensor([0, 71]))
    refused(ValueError, "cu_seqlens must begin", f, **x, cu_seqlens=torch.tensor([0, 60, 50, 70]))
    refused(ValueError, "expected to be 1", f, **{n: torch.cat([y, y]) for n, y in x.items()},
            cu_seqlens=torch.tensor([0, 70]))
    refused(ValueError, "Cannot pass both", f, **x, state_v_first=True, transpose_state_layout=True)
    refused(TypeError, "scale", f, **x, scale="1")
    refused(ValueError, "scale must not be 0", f, **x, scale=0.0)
    refused(NotImplementedError, "cp_context", f, **x, cp_context=object())
    refused(NotImplementedError, "gk", ht.fused_recurrent_gated_delta_rule, x["q"], x["k"], x["v"], gk=x["v"])
    with pytest.warns(DeprecationWarning):
        h = f(**x, initial_state=h0.transpose(-1, -2), output_final_state=True, transpose_state_layout=True)[1]
    assert h.shape == (1, 4, 8, 8)
    m, sink = x["beta"], torch.zeros(4)
    read = ht.hola_cache_attention
    args = (x["q"], x["k"], x["v"])
    refused(ValueError, "evict", read, *args, m, sink, evict="lru")
    refused(ValueError, "sink must be [HV]", read, *args, m, sink[1:])
    refused(ValueError, "tau must be [HV]", read, *args, m, sink, sink[1:])
    refused(TypeError, "score must be a tensor", read, *args, None, sink)
    refused(ValueError, "window", read, *args, m, sink, window=-1)
    refused(TypeError, "chunk", read, *args, m, sink, chunk=2.0)


def test_recurrent_defaults():
    x, _ = inputs(HV=4)
    got = ht.fused_recurrent_gated_delta_rule(x["q"], x["k"], x["v"])[0]
    want = delta_rule(x["q"], x["k"], x["v"], torch.zeros(1, 70, 4), torch.ones(1, 70, 4))[0]
    assert error(got, want) < 1e-13


def test_plain_and_second_derivatives():
    x, h0 = inputs(T=6, K=3, V=2, grad=True)
    assert ht.backend_for(x["q"], x["k"], x["v"]) == "torch"
    f = lambda *a: ht.chunk_gdn(*a)[0]  # noqa: E731
    with ht.use_kernels(False):
        assert torch.autograd.gradgradcheck(f, tuple(x.values()), fast_mode=True)
    first = torch.autograd.grad(f(*x.values()).square().sum(), x["q"], create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="use_kernels"):
        torch.autograd.grad(first.sum(), x["k"])


def test_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, _ = inputs()
        ht.chunk_gdn(**x)
