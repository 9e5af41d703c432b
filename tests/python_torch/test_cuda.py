"""hola.torch on a CUDA device (device.py): values and gradients against the definitions in double (reference.py)."""

import pytest
import torch
from device import BF16, DEVICE, F16, F32, calls, close, double, far, gradients, make  # noqa: F401
from device import skip_where_there_is_none
from reference import attention, delta_rule, memory, per_channel

import hola.torch as ht

skip_where_there_is_none()
pytestmark = pytest.mark.filterwarnings("ignore:hola.torch. not the fast kernels:RuntimeWarning")
NARROW, WIDE = torch.int32, torch.int64


def packed(lengths, bits):
    """-> cu_seqlens on the device"""
    return None if lengths is None else torch.tensor([0, *lengths]).cumsum(0).to(bits).to(DEVICE)


def kind(dtype, K, fast):
    return "cuda" if dtype == BF16 and K in fast else "cuda-plain"


def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


# ---- the gated delta rule ----

# type, that of the gates, B, H, HV, K, V, lengths or T, further arguments
DELTA = [
    (F32, F32, 2, 1, 2, 8, 4, 37, {}),
    (F32, F32, 1, 2, 2, 64, 64, ([70, 0, 1, 30], WIDE), dict(state_v_first=True, scale=0.4)),
    (F16, F16, 1, 1, 2, 64, 64, 70, dict(allow_neg_eigval=True)),
    (BF16, F32, 2, 1, 2, 64, 64, 130, dict(allow_neg_eigval=True, scale=0.4)),
    (BF16, BF16, 1, 1, 1, 128, 64, ([5, 0, 66, 64, 1], NARROW), dict(state_v_first=True)),
    (BF16, BF16, 1, 1, 1, 128, 128, 200, {}),
    (BF16, F32, 1, 1, 1, 256, 64, ([65, 70], WIDE), dict(max_seqlen=70)),
    (BF16, F32, 1, 1, 2, 48, 40, 40, {}),
]
FUSED = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True)


def delta_inputs(dtype, gates, B, H, HV, K, V, rows):
    T, lengths = (sum(rows[0]), rows[0]) if isinstance(rows, tuple) else (rows, None)
    x = dict(q=make(B, T, H, K, dtype=dtype), k=make(B, T, H, K, dtype=dtype), v=make(B, T, HV, V, dtype=dtype),
             g=make(B, T, HV, dtype=gates), beta=make(B, T, HV, dtype=gates))
    with torch.no_grad():
        more = dict(A_log=make(HV) - 2, dt_bias=make(HV), initial_state=make(len(lengths or [0] * B), HV, K, V))
    return x, {n: y.requires_grad_() for n, y in more.items()}, lengths


def delta_defined(x, more, lengths, neg, scale, forget=None):
    """With the norm, the gate and the sigmoid; forget: wrong."""
    g = -more["A_log"].exp() * torch.nn.functional.softplus(x["g"] + more["dt_bias"])
    o, h, m = delta_rule(unit(x["q"]), unit(x["k"]), x["v"], g, x["beta"].sigmoid() * (1 + neg), more["initial_state"],
                         lengths, scale, forget)
    return dict(o=o, state=h, score=m), gradients((o, h), [*x.values(), *more.values()])


def gate_terms(x, more, dg):
    """What is summed over rows, given the gradient of g."""
    a = x["g"].double() + more["dt_bias"].double()
    return dict(dt_bias=dg, A_log=dg * torch.nn.functional.softplus(a) / a.sigmoid())


@pytest.mark.parametrize("case", DELTA, ids=lambda c: f"{str(c[0])[6:]}-{c[5]}-{c[6]}")
def test_delta_rule(calls, case):  # noqa: F811
    """All in the kernel, with first and last states: results and every gradient."""
    dtype, gates, *shape, rows, given = case
    x, more, lengths = delta_inputs(dtype, gates, *shape, rows)
    cu, v_first = packed(lengths, rows[1] if lengths else None), given.get("state_v_first", False)
    assert ht.backend_for(x["q"], x["k"], x["v"]) == kind(dtype, shape[3], (64, 128, 256))
    turned = {**more, "initial_state": more["initial_state"].transpose(-1, -2)} if v_first else more
    o, h, m = ht.gated_delta_rule_with_score(**x, **turned, **FUSED, **given, output_final_state=True, cu_seqlens=cu)
    got = dict(o=o, state=h.transpose(-1, -2) if v_first else h, score=m)
    grads = gradients((o, got["state"]), [*x.values(), *more.values()])
    assert calls.names() == [("gdn", False), ("gdn", True)] and calls[0][2].dtype == (dtype == BF16)
    o2, h2 = ht.chunk_gated_delta_rule(**x, **turned, **FUSED, **given, output_final_state=True, cu_seqlens=cu)
    assert torch.equal(o2, o) and torch.equal(h2, h) and o.dtype == dtype and h.dtype == m.dtype == F32
    numbers = lengths, given.get("allow_neg_eigval", False), given.get("scale")
    y, z = double(x), double(more)
    want, right = delta_defined(y, z, *numbers)
    wrong, bad = delta_defined(y, z, *numbers, forget=5)
    terms = gate_terms(y, z, right[3])
    for name in got:
        close(got[name], want[name], dtype, name, name != "state")
        far(wrong[name], want[name], dtype, name)
    for a, b, c, (name, of) in zip(grads, right, bad, {**x, **more}.items()):
        assert a.dtype == of.dtype, name
        close(a, b, dtype, name, name in x, terms.get(name))
        far(c, b, dtype, name, terms.get(name))


def test_delta_rule_unfused(calls):  # noqa: F811
    """Keys that are normal already, gates as they are, no states; g None; without gradients nothing is kept."""
    x = dict(q=make(1, 70, 1, 64, dtype=BF16), k=make(1, 70, 1, 64, dtype=BF16, grad=False),
             v=make(1, 70, 1, 64, dtype=BF16), g=-0.2 * make(1, 70, 1, grad=False).abs(),
             beta=make(1, 70, 1, grad=False))
    x["k"], x["beta"] = unit(x["k"].float()).to(BF16), x["beta"].sigmoid()
    x = {n: y.detach().requires_grad_() for n, y in x.items()}
    o, h = ht.chunk_gated_delta_rule(**x)
    y = double(x)
    want = delta_rule(**y)[0]
    close(o, want, BF16, "o")
    for a, b, name in zip(gradients((o,), [*x.values()]), gradients((want,), [*y.values()]), x):
        close(a, b, BF16, name)
    with torch.no_grad():
        assert torch.equal(ht.chunk_gated_delta_rule(**x)[0], o) and h is None
        assert calls[0][2].kept and not calls[-1][2].kept
        o = ht.fused_recurrent_gated_delta_rule(x["q"], x["k"], x["v"], beta=x["beta"])[0]
    want = delta_rule(y["q"], y["k"], y["v"], torch.zeros(1, 70, 1), y["beta"])[0]
    close(o, want, BF16, "o")


LONG = [(1, 4096, 4, 128, 128, None), (32, 512, 2, 64, 64, None), (1, 3000, 2, 256, 256, [1, 1500, 0, 1000, 499])]


@pytest.mark.parametrize("B, T, H, K, V, lengths", LONG, ids=str)
def test_long(calls, B, T, H, K, V, lengths):  # noqa: F811
    """Shapes for which other kernels are chosen, against plain PyTorch in double on the same device."""
    if DEVICE == "cpu":
        B, T, H, lengths = min(B, 3), min(T, 300), 1, lengths and [1, 200, 0, 60, 39]
    x, more, _ = delta_inputs(BF16, F32, B, H, H, K, V, (lengths, WIDE) if lengths else T)
    cu = packed(lengths, WIDE)

    def run(x, more):
        o, h = ht.chunk_gated_delta_rule(**x, **more, **FUSED, output_final_state=True, cu_seqlens=cu)
        return (o, h), gradients((o, h), [*x.values(), *more.values()])

    got = run(x, more)
    assert calls.names() == [("gdn", False), ("gdn", True)]
    big = lambda x: {n: y.detach().double().requires_grad_() for n, y in x.items()}  # noqa: E731
    with ht.use_kernels(False):
        want = run(big(x), big(more))
        wrong = run({**big(x), "k": big(x)["k"].roll(1, 1)}, big(more))
    assert len(calls) == 2
    for a, b, c, name in zip(got[0], want[0], wrong[0], ("o", "state")):
        close(a, b, BF16, name, name == "o")
        far(c, b, BF16, name)
    terms = gate_terms(x, more, want[1][3])
    for a, b, name in zip(got[1], want[1], (*x, *more)):
        close(a, b, BF16, name, name in x, terms.get(name))


# ---- the exact memory ----

READS = [
    (F32, 2, 1, 2, 8, 4, 30, "score", 5, 8),
    (F32, 1, 1, 1, 64, 64, ([40, 0, 50], WIDE), "recency", 7, 16),
    (F16, 1, 1, 2, 64, 64, 40, "score", 8, 16),
    (BF16, 1, 1, 2, 64, 64, ([60, 70], NARROW), "score", 16, 32),
    (BF16, 2, 1, 1, 128, 64, 70, "recency", 8, 32),
    (BF16, 1, 1, 1, 256, 128, 140, "score", 64, 64),
]


@pytest.mark.parametrize("case", READS, ids=lambda c: f"{str(c[0])[6:]}-{c[4]}-{c[7]}")
def test_memory(calls, case):  # noqa: F811
    dtype, B, H, HV, K, V, rows, evict, window, chunk = case
    T, lengths = (sum(rows[0]), rows[0]) if isinstance(rows, tuple) else (rows, None)
    x = dict(q=make(B, T, H, K, dtype=dtype), k=make(B, T, H, K, dtype=dtype), v=make(B, T, HV, V, dtype=dtype))
    more = dict(sink=make(HV), tau=make(HV, grad=False).abs().add(0.5).requires_grad_())
    score = make(B, T, HV, grad=False).mul(4).round()  # with ties
    o = ht.hola_cache_attention(**x, **more, score=None if evict == "recency" else score, window=window, chunk=chunk,
                                cu_seqlens=packed(lengths, rows[1] if lengths else None), evict=evict)
    grads = gradients((o,), [*x.values(), *more.values()])
    assert calls.names() == [("cache", False), ("cache", True)] and o.dtype == dtype
    if evict == "recency":
        score = torch.arange(T).view(1, -1, 1).expand(B, -1, HV)
    y, z = double(x), double(more)

    def defined(window):
        o = memory(*y.values(), score.cpu(), z["sink"], z["tau"], window, chunk, lengths)
        return o, gradients((o,), [*y.values(), *z.values()])

    want, wrong = defined(window), defined(window // 2)
    close(o, want[0], dtype, "o")
    far(wrong[0], want[0], dtype, "o")
    terms = dict(tau=(y["q"] * want[1][0]).sum(-1) / z["tau"].min())
    for a, b, c, (name, of) in zip(grads, want[1], wrong[1], {**x, **more}.items()):
        assert a.dtype == of.dtype, name
        close(a, b, dtype, name, name in x, terms.get(name))
        if name != "tau":  # of little is left of its sum
            far(c, b, dtype, name)


# ---- a decay per channel ----

CHANNELS = [
    (F32, 2, 1, 2, 8, 4, 37, {}),
    (F16, 1, 1, 1, 64, 64, 40, {}),
    (BF16, 1, 1, 2, 64, 64, ([5, 0, 66, 50], NARROW), dict(scale=0.3)),
    (BF16, 2, 1, 1, 128, 64, 130, dict(state_v_first=True)),
    (BF16, 1, 1, 1, 128, 128, ([130, 20], WIDE), {}),
]


@pytest.mark.parametrize("case", CHANNELS, ids=lambda c: f"{str(c[0])[6:]}-{c[4]}-{c[5]}")
@pytest.mark.parametrize("delta", [True, False], ids=["kda", "gla"])
def test_channels(calls, delta, case):  # noqa: F811
    """chunk_kda with the norm, the gate and the sigmoid, chunk_gla; with first and last states."""
    dtype, B, H, HV, K, V, rows, given = case
    T, lengths = (sum(rows[0]), rows[0]) if isinstance(rows, tuple) else (rows, None)
    cu, v_first = packed(lengths, rows[1] if lengths else None), given.get("state_v_first", False)
    H = H if delta else HV
    x = dict(q=make(B, T, H, K, dtype=dtype), k=make(B, T, H, K, dtype=dtype), v=make(B, T, HV, V, dtype=dtype))
    h0 = make(len(lengths or [0] * B), HV, K, V)
    if delta:
        more = dict(beta=make(B, T, HV), g=make(B, T, HV, K), A_log=make(HV, grad=False).sub(2).requires_grad_(),
                    dt_bias=make(HV * K))
    else:
        x["k"] = (x["k"].detach() * 0.1).requires_grad_()
        more = dict(g=make(B, T, HV, K, grad=False).sigmoid().mul(-0.5).requires_grad_())
    f, flags = (ht.chunk_kda, FUSED) if delta else (ht.chunk_gla, {})
    o, h = f(**x, **more, **flags, **given, initial_state=h0.transpose(-1, -2) if v_first else h0,
             output_final_state=True, cu_seqlens=cu)
    h = h.transpose(-1, -2) if v_first else h
    inputs = {**x, **more, "initial_state": h0}
    grads = gradients((o, h), [*inputs.values()])
    op = "kda" if delta else "gla"
    assert calls.names() == [(op, False), (op, True)] and o.dtype == dtype and h.dtype == F32
    y = double(inputs)

    def defined(one_decay=False):
        q, k, g, beta = y["q"], y["k"], y["g"], None
        if delta:
            a = g + y["dt_bias"].view(HV, K)
            g = -y["A_log"].exp().view(HV, 1) * torch.nn.functional.softplus(a)
            q, k, beta = unit(q), unit(k), y["beta"].sigmoid()
        got = per_channel(q, k, y["v"], g, beta, y["initial_state"], lengths, given.get("scale"), one_decay)
        return got, gradients(got, [*y.values()])

    want, wrong = defined(), defined(one_decay=True)
    for a, b, c, name in zip((o, h), want[0], wrong[0], ("o", "state")):
        close(a, b, dtype, name, name == "o")
        far(c, b, dtype, name)
    for a, b, c, (name, of) in zip(grads, want[1], wrong[1], inputs.items()):
        assert a.dtype == of.dtype, name
        close(a, b, dtype, name, name in (*x, "g", "beta"))
        far(c, b, dtype, name)


# ---- softmax attention ----

ATTENTION = [
    (F32, 2, 4, 2, 8, 37, -1),
    (F16, 1, 2, 1, 64, 40, 9),
    (BF16, 2, 2, 1, 64, 130, -1),
    (BF16, 1, 2, 1, 64, ([5, 0, 70, 100], NARROW), 20),
    (BF16, 1, 1, 1, 128, ([130, 20], WIDE), -1),
    (BF16, 1, 2, 2, 20, 40, 3),
]


@pytest.mark.parametrize("case", ATTENTION, ids=lambda c: f"{str(c[0])[6:]}-{c[4]}-{c[6]}")
def test_attention(calls, case):  # noqa: F811
    dtype, B, H, HK, D, rows, left = case
    T, lengths = (sum(rows[0]), rows[0]) if isinstance(rows, tuple) else (rows, None)
    x = {n: make(B, T, heads, D, dtype=dtype) for n, heads in (("q", H), ("k", HK), ("v", HK))}
    given = dict(causal=True, window_size=(left, 0), softmax_scale=0.2)
    if lengths:
        o = ht.flash_attn_varlen_func(*(y[0] for y in x.values()), packed(lengths, rows[1]), **given)[None]
    else:
        o = ht.flash_attn_func(**x, **given)
    grads = gradients((o,), [*x.values()])
    assert calls.names() == [("attention", False), ("attention", True)] and o.dtype == dtype
    y = double(x)

    def defined(sees_next=False):
        o = attention(*y.values(), 0.2, left, lengths, sees_next)
        return o, gradients((o,), [*y.values()])

    want, wrong = defined(), defined(sees_next=True)
    close(o, want[0], dtype, "o")
    far(wrong[0], want[0], dtype, "o")
    for a, b, c, name in zip(grads, want[1], wrong[1], x):
        close(a, b, dtype, name)
        far(c, b, dtype, name)
