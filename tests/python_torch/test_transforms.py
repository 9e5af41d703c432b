"""hola.torch's functions under torch.func: grad, vmap, jvp and what is made of them; derivatives forward."""

import pytest
import torch
from reference import error
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

import hola.torch as ht

F64 = torch.float64


def functions(dtype):
    """Of q, k and v [1, 6, 2, 4]."""
    torch.manual_seed(6)
    one, each = torch.rand(1, 6, 2, dtype=dtype), -torch.rand(1, 6, 2, 4, dtype=dtype)
    cu, sink = torch.tensor([0, 2, 6]), torch.rand(2, dtype=dtype)
    return dict(
        gdn=lambda q, k, v: ht.chunk_gdn(q, k, v, -one, one, use_qk_l2norm_in_kernel=True, cu_seqlens=cu)[0],
        recurrent=lambda q, k, v: ht.fused_recurrent_gdn(q, k, v, output_final_state=True)[1] + 0 * q.sum(),
        memory=lambda q, k, v: ht.hola_cache_attention(q, k, v, one, sink, window=1, chunk=2),
        kda=lambda q, k, v: ht.chunk_kda(q, k, v, each, one, cu_seqlens=cu)[0],
        kda_alone=lambda q, k, v: ht.chunk_kda(q, k, v, each, one)[0],
        gla=lambda q, k, v: ht.chunk_gla(q, k, v, each)[0],
        attention=lambda q, k, v: ht.flash_attn_func(q, k, v, causal=True, window_size=(2, 0)),
    )


NAMES = [*functions(F64)]


@pytest.mark.parametrize("name", NAMES)
def test_transforms(name):
    f, x = functions(F64)[name], [torch.randn(1, 6, 2, 4, dtype=F64).requires_grad_() for _ in range(3)]
    loss = lambda *x: f(*x).square().sum()  # noqa: E731
    want = torch.autograd.grad(loss(*x), x)
    every = (0, 1, 2)
    assert all(error(a, b) < 1e-12 for a, b in zip(grad(loss, every)(*x), want))
    assert all(error(a, b) < 1e-12 for a, b in zip(jacrev(loss, every)(*x), want))
    out, back = vjp(f, *x)
    assert all(error(a, b) < 1e-12 for a, b in zip(back(2 * out), want))
    two = [torch.stack([y, y.flip(1)]) for y in x]
    flipped = [y.flip(1) for y in x]
    assert error(vmap(f)(*two), torch.stack([f(*x), f(*flipped)])) < 1e-12
    right = torch.autograd.grad(loss(*flipped), x)
    for a, b, c in zip(vmap(grad(loss, every))(*two), want, right):
        assert error(a[0], b) < 1e-12 and error(a[1].flip(1), c) < 1e-12
    # forward: along a direction, against differences
    d, h = [torch.randn_like(y) for y in x], 1e-5
    moved = [f(*(y.detach() + s * h * z for y, z in zip(x, d))) for s in (1, -1)]
    slope = (moved[0] - moved[1]) / (2 * h)
    assert slope.norm() > 1e-2  # an operator without a rule would give 0
    assert error(jvp(f, tuple(x), tuple(d))[1], slope) < 1e-7
    with forward_ad.dual_level():
        o = f(*(forward_ad.make_dual(y.detach(), z) for y, z in zip(x, d)))
        assert error(forward_ad.unpack_dual(o).tangent, slope) < 1e-7


def test_second_derivatives():
    for name, f in functions(F64).items():
        q, k, v = (torch.randn(1, 6, 2, 4, dtype=F64) for _ in range(3))
        loss = lambda s: f(s * q, k, s * v).square().sum()  # noqa: B023, E731
        one, h = torch.ones((), dtype=F64), 1e-4
        slope = (grad(loss)(one + h) - grad(loss)(one - h)) / (2 * h)
        assert error(hessian(loss)(one), slope) < 1e-5, name


@pytest.mark.filterwarnings("ignore:hola.torch. not the fast kernels. float32:RuntimeWarning")
def test_on_the_emulated_device(emulated):
    """Plain PyTorch does it, and says so once; before and after, the kernels do what they can."""
    f = functions(torch.float32)["gla"]
    q, k, v = (torch.randn(1, 6, 2, 4) for _ in range(3))
    loss = lambda q: f(q, k, v).sum()  # noqa: E731
    with pytest.warns(RuntimeWarning, match="torch.func and derivatives forward take plain PyTorch"):
        got = grad(loss)(q)
    assert not emulated.calls
    want = torch.autograd.grad(loss(q.requires_grad_()), q)[0]
    assert [c[:2] for c in emulated.calls] == [("gla", False), ("gla", True)] and error(got, want) < 2e-4
    backends = []
    vmap(lambda q: backends.append(ht.backend_for(q, k, v)) or q)(q[None])
    assert backends == ["torch"] and ht.backend_for(q, k, v) == "cuda-plain"


def test_compiled():
    """A transform within a compiled function is one graph; not with cu_seqlens, whose numbers plain PyTorch reads."""
    torch._dynamo.reset()
    f = functions(F64)["kda_alone"]
    q, k, v, d = (torch.randn(1, 6, 2, 4, dtype=F64) for _ in range(4))
    for transform in (lambda q: grad(lambda q: f(q, k, v).square().sum())(q),
                      lambda q: jvp(lambda q: f(q, k, v), (q,), (d,))[1]):
        got = torch.compile(transform, fullgraph=True, backend="aot_eager")(q)
        assert error(got, transform(q)) < 1e-12 and got.norm() > 1e-2
    ran = []  # beside them, operators stay operators
    torch.compile(lambda q: f(q, k, v), fullgraph=True, backend=lambda m, _: ran.append(m) or m.forward)(q)
    assert [n.target for m in ran for n in m.graph.nodes if "hola" in str(n.target)] == [torch.ops.hola.linear_forward]
