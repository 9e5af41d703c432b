"""flash_attn_func and flash_attn_varlen_func: against the definition in double, on the emulated device, as operators;
what is refused."""

import inspect

import pytest
import torch
from reference import attention, error
from test_raw import BF16, CU, F16, F32, double, gradients, limit
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import hola.torch as ht

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:hola.torch. not the fast kernels:RuntimeWarning")


def data(dtype=F64, B=2, T=37, H=4, HK=2, D=8, strided=False):
    make = lambda *shape: torch.randn(*shape, 2 if strided else 1)[..., 0].to(dtype).requires_grad_()  # noqa: E731
    return dict(q=make(B, T, H, D), k=make(B, T, HK, D), v=make(B, T, HK, D))


def packed(x):
    return {n: y.detach().flatten(0, 1).requires_grad_() for n, y in x.items()}


SHAPES = [dict(T=1), dict(T=40, B=3, H=2), dict(T=300, B=1, D=3), dict(T=20, H=6, HK=1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("left", [-1, 0, 6])
@pytest.mark.parametrize("varlen", [False, True])
def test_definition(shape, left, varlen):
    x, cu = data(**shape), None
    if varlen:
        x = packed(x)
        T = x["q"].shape[0]
        lengths = [0, T - 1, 1]
        cu = torch.tensor([0, 0, T - 1, T])
        run = lambda **y: ht.flash_attn_varlen_func(**y, cu_seqlens_q=cu, cu_seqlens_k=cu.clone(), causal=True,  # noqa
                                                    softmax_scale=0.3, window_size=(left, 0))
        want = attention(*(y[None] for y in x.values()), 0.3, left, lengths)[0]
    else:
        run = lambda **y: ht.flash_attn_func(**y, causal=True, softmax_scale=0.3, window_size=(left, -1))  # noqa: E731
        want = attention(**x, scale=0.3, left=left)
    inputs = [*x.values()]
    expected = gradients((want,), inputs)
    for kernels in (True, False):
        with ht.use_kernels(kernels):
            got = run(**x)
        assert got.shape == want.shape and got.dtype == F64 and error(got, want) < 1e-12
        for a, b in zip(gradients((got,), inputs), expected):
            assert (a - b).abs().max() < 1e-11
    if x["q"].shape[-3] > 10:
        wide = attention(*((y[None] for y in x.values()) if varlen else x.values()), 0.3, left, lengths if varlen else
                         None, sees_next=True)
        assert error(wide[0] if varlen else wide, want) > 1e-2


def test_gradcheck():
    x = data(T=9, D=3)
    f = lambda q, k, v: ht.flash_attn_func(q, k, v, causal=True, window_size=(4, 0))  # noqa: E731
    assert gradcheck(f, tuple(x.values()))
    with ht.use_kernels(False):
        assert gradcheck(f, tuple(x.values())) and gradgradcheck(f, tuple(x.values()), fast_mode=True)


def test_log_sums():
    x = data(T=7)
    out, lse, _ = ht.flash_attn_func(**x, causal=True, return_attn_probs=True)
    z = torch.einsum("bthd,bshd->bhts", x["q"], x["k"].repeat_interleave(2, 2)) * 8**-0.5
    want = z.masked_fill(torch.ones(7, 7).triu(1).bool(), float("-inf")).logsumexp(-1)
    assert lse.shape == (2, 4, 7) and error(lse, want) < 1e-12 and not lse.requires_grad
    y = packed(x)
    lse2 = ht.flash_attn_varlen_func(**y, cu_seqlens_q=torch.tensor([0, 7, 14]), causal=True, return_attn_probs=True)[1]
    assert lse2.shape == (4, 14) and error(lse2.unflatten(1, (2, 7)).transpose(0, 1), want) < 1e-12


CASES = [
    (F32, {}, None, -1),
    (F32, dict(strided=True), CU.long(), 4),
    (F16, {}, CU, -1),
    (BF16, dict(D=20), None, 3),
    (BF16, dict(D=64, T=70), CU, -1),
    (BF16, dict(D=128, B=1, T=140, strided=True), None, 63),
]


@pytest.mark.parametrize("dtype, shape, cu, left", CASES, ids=lambda x: str(x).removeprefix("torch.")[:40])
def test_emulated(emulated, dtype, shape, cu, left):
    x = data(dtype, **shape)
    if cu is not None:
        x = packed(x)
        cu = torch.tensor([0, 5, 5, x["q"].shape[0]], dtype=cu.dtype)

    def run(x):
        more = dict(causal=True, window_size=(left, 0), softmax_scale=0.4)
        if cu is None:
            return ht.flash_attn_func(**x, **more)
        return ht.flash_attn_varlen_func(**x, cu_seqlens_q=cu, max_seqlen_q=32, **more)

    o = run(x)
    got = gradients((o,), [*x.values()])
    assert [c[:2] for c in emulated.calls] == [("attention", False), ("attention", True)]
    a = emulated.calls[1][2]
    assert (a.window, a.rows.cu_bits, a.rows.longest) == (left + 1, 0 if cu is None else 8 * cu.element_size(),
                                                          0 if cu is None else 32)
    with ht.use_kernels(False):
        y = double(x)
        want = run(y)
        right, wrong = gradients((want,), [*y.values()]), run({**y, "k": y["k"].roll(1, -3)})
    assert len(emulated.calls) == 2
    assert o.dtype == dtype and error(o, want) < limit(dtype, "o") < error(o, wrong) / 3
    for a, b, (name, of) in zip(got, right, x.items()):
        assert a.dtype == of.dtype and a.shape == of.shape and error(a, b) < limit(dtype, name), name
    with torch.no_grad():
        assert torch.equal(run(x), o)


def test_sizes(emulated):
    """Heads that no kernel takes are PyTorch's, and that is said."""
    x = data(F32, B=1, T=3, H=1, HK=1, D=513)
    with pytest.warns(RuntimeWarning, match="no kernels for heads of K 513"):
        ht.flash_attn_func(**x, causal=True)
    assert not emulated.calls
    empty = ht.flash_attn_func(**{n: y[:, :0] for n, y in x.items()}, causal=True)
    assert empty.shape == (1, 0, 1, 513)
    emulated.refuse = True
    with pytest.raises(RuntimeError, match="hola_attention_forward: where: size is 0"):
        ht.flash_attn_func(**data(F32), causal=True)


@pytest.mark.parametrize("library", [False, True], ids=["plain", "library"])
def test_operators(library, request):
    if library:
        request.getfixturevalue("emulated")
    x = data(F32, B=1, T=5)
    for cu in (None, torch.tensor([0, 2, 5])):
        opcheck(torch.ops.hola.attention_forward.default, (*x.values(), cu, 3, 0.3, 0))
        flat = [y.detach() for y in x.values()]
        out, lse = torch.ops.hola.attention_forward(*flat, cu, 3, 0.3, 0)
        opcheck(torch.ops.hola.attention_backward.default,
                (*flat, cu, out, lse, torch.randn_like(out), 3, 0.3, 0))
    torch._dynamo.reset()

    def f(x, cu):
        y = {n: z[0] for n, z in x.items()}
        return (ht.flash_attn_func(**x, causal=True)[0] +
                ht.flash_attn_varlen_func(**y, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True, window_size=(2, 0)))

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    for T in (9, 14, 7):
        x, cu = data(F32, B=1, T=T), torch.tensor([0, 3, T])
        got, want = compiled(x, cu), f(x, cu)
        assert torch.equal(got, want)
        inputs = [*x.values()]
        assert all(error(a, b) < 1e-6 for a, b in zip(gradients((got,), inputs), gradients((want,), inputs)))


def test_refused():
    x = data()
    y, cu = packed(x), torch.tensor([0, 37, 74])

    def refused(kind, text, f, *args, **given):
        with pytest.raises(kind, match=text):
            f(*args, **given)

    one, many = ht.flash_attn_func, ht.flash_attn_varlen_func
    refused(NotImplementedError, "causal=True", one, **x)
    refused(NotImplementedError, "dropout_p", one, **x, causal=True, dropout_p=0.1)
    refused(NotImplementedError, "softcap", one, **x, causal=True, softcap=3.0)
    refused(NotImplementedError, "alibi_slopes", one, **x, causal=True, alibi_slopes=torch.ones(4))
    refused(NotImplementedError, "window_size", one, **x, causal=True, window_size=(3, 2))
    refused(ValueError, "window_size", one, **x, causal=True, window_size=(-2, 0))
    refused(ValueError, "window_size", one, **x, causal=True, window_size=3)
    refused(TypeError, "integers", one, **x, causal=True, window_size=(1.0, 0))
    refused(ValueError, "4 dimensions", one, **y, causal=True)
    refused(ValueError, "shape of k", one, **{**x, "v": x["v"][:, 1:]}, causal=True)
    refused(ValueError, "a key for every query", one, x["q"][:, 1:], x["k"], x["v"], causal=True)
    refused(ValueError, "heads of q's size", one, x["q"][..., 1:], x["k"], x["v"], causal=True)
    refused(ValueError, "multiple of the 2 heads", one, x["q"][:, :, :3], x["k"], x["v"], causal=True)
    refused(ValueError, "k is torch.float32", one, x["q"], x["k"].float(), x["v"], causal=True)
    refused(ValueError, "floating-point", one, *(z.long() for z in x.values()), causal=True)
    refused(TypeError, "q must be a tensor", one, 1, x["k"], x["v"], causal=True)
    refused(TypeError, "scale must be a number", one, **x, causal=True, softmax_scale="1")
    refused(ValueError, "3 dimensions", many, **x, cu_seqlens_q=cu, causal=True)
    refused(ValueError, "int32 or int64", many, **y, cu_seqlens_q=cu.float(), causal=True)
    refused(ValueError, "cu_seqlens_k must be", many, **y, cu_seqlens_q=cu, cu_seqlens_k=cu + 1, causal=True)
    refused(NotImplementedError, "block_table", many, **y, cu_seqlens_q=cu, causal=True, block_table=cu)
    for q in x.values():
        assert torch.isfinite(q).all()


def test_arguments():
    """flash-attention's, in its order."""
    tail = ["dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic",
            "return_attn_probs"]
    assert list(inspect.signature(ht.flash_attn_func).parameters) == ["q", "k", "v", *tail]
    assert list(inspect.signature(ht.flash_attn_varlen_func).parameters) == [
        "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", *tail, "block_table"]
