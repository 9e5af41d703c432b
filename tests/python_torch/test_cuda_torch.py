"""hola.torch among PyTorch's parts on a CUDA device (device.py): compiler, graphs, streams, autocast; fla's layer and
HOLA models."""

import pytest
import torch
from device import BF16, DEVICE, EMULATED, F32, calls, captured, gdn_kernels, make  # noqa: F401
from device import other_stream, skip_where_there_is_none, without_waiting
from reference import error
from torch.library import opcheck

import hola.torch as ht

skip_where_there_is_none()
pytestmark = pytest.mark.filterwarnings("ignore:hola.torch. not the fast kernels:RuntimeWarning")
FUSED = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True)
HEADS = 2


def inputs(T=128, K=64, dtype=BF16, grad=True):
    """Of all functions below, for one row."""
    x = {n: make(1, T, HEADS, K, dtype=dtype, grad=grad) for n in "qkv"}
    x |= {n: make(1, T, HEADS, grad=grad) for n in ("g", "beta")}
    x |= dict(decay=make(1, T, HEADS, K, grad=False).sigmoid().mul(-0.5).requires_grad_(grad))
    x |= dict(write=make(1, T, HEADS, grad=False).sigmoid().requires_grad_(grad))
    x |= dict(h0=make(2, HEADS, K, K, grad=grad), A_log=make(HEADS, grad=grad), sink=make(HEADS, grad=grad))
    return x


def cut(*at):
    return torch.tensor(at, dtype=torch.int32).to(DEVICE)


def delta(x, cu):
    o, h, m = ht.gated_delta_rule_with_score(
        x["q"], x["k"], x["v"], x["g"], x["beta"], **FUSED, A_log=x["A_log"], initial_state=x["h0"],
        output_final_state=True, cu_seqlens=cu)
    read = ht.hola_cache_attention(x["q"], x["k"], x["v"], m, x["sink"], window=16, chunk=32, cu_seqlens=cu)
    return o + read, h


def channels(x, cu):
    args = x["q"] * 0.125, x["k"] * 0.125, x["v"], x["decay"]
    o, h = ht.chunk_kda(*args, x["write"], initial_state=x["h0"], output_final_state=True, cu_seqlens=cu)
    o2, h2 = ht.chunk_gla(*args, initial_state=x["h0"], output_final_state=True, cu_seqlens=cu)
    return o + o2, h + h2


def attention(x, cu):
    q, k, v = (x[n][0] for n in "qkv")
    o = ht.flash_attn_varlen_func(q, k, v, cu, causal=True, window_size=(40, 0))
    return o, ht.flash_attn_func(x["q"], x["k"], x["v"], causal=True)


ALL = [delta, channels, attention]
OPS = {delta: ["gdn", "cache"], channels: ["kda", "gla"], attention: ["attention", "attention"]}


def everything(f, x, cu):
    """-> the outputs and every gradient of f"""
    outputs = f(x, cu)
    total = sum(o.float().square().mean() for o in outputs)
    return [*(o.detach() for o in outputs), *torch.autograd.grad(total, [*x.values()], materialize_grads=True)]


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("f", ALL)
def test_same_bits(calls, f, dtype):  # noqa: F811
    """On another stream beside other work, at other addresses, of strided inputs, of inputs off 16 bytes: the same."""
    x, cu = inputs(dtype=dtype), cut(0, 50, 128)
    want = everything(f, x, cu)
    assert sorted(calls.names()) == sorted((op, back) for op in OPS[f] for back in (False, True))
    assert same(everything(f, x, cu), want)
    with other_stream():
        away = [torch.empty(12345 + i, device=DEVICE) for i in range(5)]
        got = everything(f, {n: y.detach().clone().requires_grad_() for n, y in x.items()}, cu.clone())
    assert same(got, want) and len(away) == 5
    with torch.no_grad():
        strided = {n: torch.stack([y, y], -1)[..., 0] for n, y in x.items()}
        turned = {n: y.transpose(0, 1).contiguous().transpose(0, 1) if y.dim() > 1 else y for n, y in x.items()}
        shifted = {n: torch.cat([y.flatten()[:1], y.flatten()])[1:].view(y.shape) for n, y in x.items()}
    assert not strided["q"].is_contiguous() and shifted["q"].data_ptr() % 16 != 0
    for y in (strided, turned, shifted):
        assert same(everything(f, {n: z.requires_grad_() for n, z in y.items()}, cu), want)
    x["v"] = (x["v"].detach() * 1.1).requires_grad_()
    assert not torch.equal(everything(f, x, cu)[0], want[0])


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("f", ALL)
def test_no_waiting(calls, f, dtype):  # noqa: F811
    """With cu_seqlens on the device, a warm call and its gradients are only queued."""
    x, cu = inputs(dtype=dtype), cut(0, 50, 128)
    want = everything(f, x, cu)
    everything(f, x, cu)  # torch's allocator has the memory of another call now
    with without_waiting():
        got = everything(f, x, cu)
    assert same(got, want)
    if not EMULATED:
        with pytest.raises((RuntimeError, AssertionError)), without_waiting():
            cu.tolist()


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("f", ALL)
def test_graph(calls, f, dtype):  # noqa: F811
    """Captured with its gradients and replayed with other numbers and other lengths: what a call gives."""
    x, cu = inputs(dtype=dtype), cut(0, 50, 128)
    result, replay = captured(lambda: everything(f, x, cu))
    first = [y.clone() for y in result]
    assert same(first, everything(f, x, cu))
    torch.manual_seed(2)
    with torch.no_grad():
        for n, y in inputs(dtype=dtype).items():
            x[n].copy_(y)
    cu.copy_(cut(0, 99, 128))
    replay()
    assert same(result, everything(f, x, cu)) and not torch.equal(result[0], first[0])


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_opcheck(calls, dtype):  # noqa: F811
    x = inputs(70, dtype=dtype)
    q, k, v, g, beta, decay, write, h0, A_log, sink = x.values()
    ops, cu, do, dh = torch.ops.hola, cut(0, 30, 70), torch.randn_like(v), torch.randn_like(h0)
    free = lambda given: [y.detach() if isinstance(y, torch.Tensor) else y for y in given]  # noqa: E731

    def check(name, given, last, kept, d, last_back):
        opcheck(getattr(ops, f"{name}_forward").default, (*given, *last))
        out = getattr(ops, f"{name}_forward")(*free(given), *last)
        opcheck(getattr(ops, f"{name}_backward").default, (*free(given), *(out[i] for i in kept), *d, *last_back))

    check("gdn", (q, k, v, g, beta, A_log, sink, h0, cu), (0.5, 7, 0, True, True, True), [3], (do, dh), (0.5, 7, 0))
    check("cache", (q, k, v, beta, sink, None, cu), (8, 16, 0.3, True), [1], (do,), (8, 16, 0.3))
    check("linear", (q, k, v, decay, write, h0, cu), (0.3, 1, 0, True, True), [2], (do, dh), (0.3, 1, 0))
    check("linear", (q, k, v, decay, None, h0, cu), (0.3, 0, 0, True, True), [2], (do, dh), (0.3, 0, 0))
    check("attention", (q, k, v, cu), (20, 0.3, 0), [0, 1], (do,), (20, 0.3, 0))


def compiled_and_not(f, g, T):
    x, cu = inputs(T), cut(0, 50, T)
    got, want = everything(f, x, cu), everything(g, x, cu)
    for a, b in zip(got, want):
        assert a.dtype == b.dtype and error(a, b) < 1e-2  # the sums around the operators are rounded elsewhere
    x["v"] = (x["v"].detach() * 1.1).requires_grad_()
    assert error(everything(f, x, cu)[0], want[0]) > 3e-2


def test_compile(calls):  # noqa: F811
    """Inductor, one graph, forward and backward; then with lengths that change, without another compilation."""
    torch._dynamo.reset()
    both = lambda x, cu: (*delta(x, cu), *channels(x, cu))  # noqa: E731
    compiled_and_not(torch.compile(both, fullgraph=True), both, 128)
    each = lambda x, cu: (*delta(x, cu), *attention(x, cu))  # noqa: E731
    f = torch.compile(each, fullgraph=True, dynamic=True)
    compiled_and_not(f, each, 128)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled_and_not(f, each, 99)


def test_autocast(calls):  # noqa: F811
    """Sums stay as they are; nothing is cast behind the caller's back."""
    for dtype in (BF16, F32):
        x, cu = inputs(dtype=dtype), cut(0, 50, 128)
        want = delta(x, cu)
        with torch.autocast(DEVICE, BF16):
            got = delta(x, cu)
        assert torch.equal(got[1], want[1]) and got[0].dtype == dtype and torch.equal(got[0], want[0])


def test_refused(calls):  # noqa: F811
    """Wrong arguments are exceptions, whatever is wrong, and what comes after them works."""
    x, cu = inputs(), cut(0, 50, 128)
    args = [x["q"], x["k"] * 0.125, x["v"], -x["g"].abs(), x["write"]]

    def refused(kind, text, f, *args, **given):
        with pytest.raises(kind, match=text):
            f(*args, **given)

    put = lambda i, y: [*args[:i], y, *args[i + 1 :]]  # noqa: E731
    elsewhere = torch.device("meta" if EMULATED else "cpu")
    name = elsewhere.type
    f, m, sink = ht.chunk_gated_delta_rule, x["beta"], x["sink"]
    refused(ValueError, f"k is on {name}, q on {DEVICE}", f, *put(1, args[1].to(elsewhere)))
    refused(ValueError, f"beta is on {name}, q on {DEVICE}", f, *put(4, args[4].to(elsewhere)))
    refused(ValueError, f"initial_state is on {name}", f, *args, initial_state=x["h0"][:1].to(elsewhere))
    refused(ValueError, "v is torch.float32, q is torch.bfloat16", f, *put(2, args[2].float()))
    refused(ValueError, "q must hold floating-point", f, *put(0, args[0].int()))
    refused(ValueError, "k must have the shape of q", f, *put(1, args[1][..., :-1]))
    refused(ValueError, r"g must be \[B, T, HV\]", f, *put(3, args[3][:, 1:]))
    refused(ValueError, "number of initial states", f, *args, initial_state=x["h0"])
    refused(ValueError, "int32 or int64", f, *args, cu_seqlens=cu.float())
    refused(ValueError, "expected to be 1", f, *(torch.cat([y, y]) for y in args), cu_seqlens=cu)
    refused(ValueError, f"sink is on {name}", ht.hola_cache_attention, *args[:3], m, sink.to(elsewhere))
    refused(ValueError, r"g must be \[B, T, HV, K\]", ht.chunk_kda, *args)
    refused(ValueError, r"g must be \[B, T, H, K\]", ht.chunk_gla, *args[:4])
    refused(NotImplementedError, "causal=True", ht.flash_attn_func, *args[:3])
    refused(ValueError, "two tensors are not compared|must be cu_seqlens_q", ht.flash_attn_varlen_func,
            *(y[0] for y in args[:3]), cu, cu + 1, causal=True)
    assert not calls
    want = f(*args, cu_seqlens=cu)[0]
    for wrong in (cut(0, 999, 128), cut(0, -7, 1 << 30), cut(128, 50, 0)):  # wrong numbers, but no fault
        torch.autograd.grad(f(*args, cu_seqlens=wrong)[0].float().sum(), x["q"], retain_graph=True)
        ht.hola_cache_attention(*args[:3], m, sink, window=16, chunk=32, cu_seqlens=wrong)
        ht.flash_attn_varlen_func(*(y[0] for y in args[:3]), wrong, causal=True)
    assert torch.equal(f(*args, cu_seqlens=cu)[0], want)
    wide = make(1, 5, 1, 257, dtype=BF16)
    with pytest.warns(RuntimeWarning, match="no kernels for heads of K 257"):
        o = f(wide, wide, wide, make(1, 5, 1), make(1, 5, 1))[0]
    assert o.device == wide.device and ht.backend_for(wide, wide, wide) == "torch"


# ---- fla ----


def test_fla_layer(calls):  # noqa: F811
    """fla's GatedDeltaNet gives the same with hola's function in it. Gradients are not compared: fla's are wrong on
    Hopper."""
    if EMULATED:
        pytest.skip("fla's layers need a CUDA device")
    layers = pytest.importorskip("fla.layers", exc_type=ImportError)
    layer = layers.GatedDeltaNet(hidden_size=128, head_dim=64, num_heads=2, expand_v=1, allow_neg_eigval=True)
    layer, x = layer.to(DEVICE, BF16), make(2, 200, 128, dtype=BF16, grad=False)
    own = layer(x)[0]
    assert not calls
    try:
        ht.patch_fla()
        ours = layer(x)[0]
        assert calls.names() == [("gdn", False)]
        assert error(ours, own) < 1.5e-2 and error(layer(x.roll(1, 1))[0], own) > 0.1
        ours.float().sum().backward()
        assert calls.names() == [("gdn", False)] * 2 + [("gdn", True)] and layer.q_proj.weight.grad.isfinite().all()
    finally:
        ht.unpatch_fla()
    made = len(calls)
    assert error(layer(x)[0], own) < 1e-3 and len(calls) == made


# ---- HOLA models ----

MODEL = dict(hidden_size=128, num_hidden_layers=2, num_heads=2, vocab_size=301, intermediate_size=256, head_dim=64,
             expand_v=1.0, cache_window=16, cache_chunk=32, cache_gate_init=0.0, bos_token_id=None, eos_token_id=None,
             pad_token_id=0)
ONCE = [("gdn", False), ("cache", False)]
TRAINED = ONCE * 2 + [("cache", True), ("gdn", True)] * 2


@pytest.fixture
def model(calls):  # noqa: F811
    pytest.importorskip("transformers", "5.0")
    torch.manual_seed(4)
    m = ht.HolaForCausalLM(ht.HolaConfig(**MODEL, initializer_range=0.2))
    ids = torch.randint(1, 301, (2, 100))
    return m.eval(), ids


def trained(m, ids, **given):
    m.zero_grad()
    loss = m(ids, labels=ids, **given).loss
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in m.named_parameters()}


def test_model(calls, model):  # noqa: F811
    """float32: logits, loss and gradients are those of plain PyTorch on the CPU, packed rows too."""
    m, ids = model
    row, cu = ids.flatten()[None], torch.tensor([0, 37, 37, 200], dtype=torch.int32)
    with ht.use_kernels(False), torch.no_grad():
        want, other = m(ids).logits, m(ids.roll(1, 0)).logits
    with ht.use_kernels(False):
        loss, grads = trained(m, row, cu_seqlens=cu)
    assert not calls
    m = m.to(DEVICE)
    with torch.no_grad():
        got = m(ids.to(DEVICE)).logits
    assert calls.names() == ONCE * 2 and got.device.type == DEVICE and gdn_kernels(calls[0]) == "plain"
    assert error(got.cpu(), want) < 3e-4 < 0.1 * error(got.cpu(), other)
    calls.clear()
    loss2, grads2 = trained(m, row.to(DEVICE), cu_seqlens=cu.to(DEVICE))
    assert calls.names() == TRAINED and abs(float(loss2) - float(loss)) < 1e-4
    for n, want in grads.items():
        assert error(grads2[n].cpu(), want) < 2e-3, n


def test_training_in_bf16(calls, model):  # noqa: F811
    """Under autocast, and as a bf16 model, training takes the fast kernels, forward and backward, the memory's too."""
    m, ids = model[0].to(DEVICE).train(), model[1].to(DEVICE)
    x = make(1, 1, 2, 64, dtype=BF16)
    assert ht.backend_for(x, x, x) == "cuda"
    with ht.use_kernels(False):
        want, grads = trained(m, ids)
    with torch.autocast(DEVICE, BF16):
        loss, grads2 = trained(m, ids)
    assert calls.names() == TRAINED and all(a.dtype == 1 for _, _, a in calls)
    assert all(gdn_kernels(call) != "plain" for call in calls if call[0] == "gdn")
    assert abs(float(loss) - float(want)) < 5e-3 * float(want)
    for n, grad in grads.items():
        assert error(grads2[n], grad) < (0.15 if grad.numel() > 2 else 0.5), n  # bf16's noise, in all layers
    calls.clear()
    trained(m.to(BF16), ids)
    assert calls.names() == TRAINED and all(a.dtype == 1 for _, _, a in calls)


def test_learning(calls, model):  # noqa: F811
    """A few steps learn a text by heart."""
    m, ids, losses = model[0].to(DEVICE).train(), model[1].to(DEVICE), []
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
    for _ in range(12):
        with torch.autocast(DEVICE, BF16):
            loss = trained(m, ids)[0]
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0], losses
    assert len(calls) == len(losses) * len(TRAINED)


def test_generation(calls, model):  # noqa: F811
    """With the cache, token by token: the tokens that full passes give; and the CPU's."""
    m, ids = model
    n, ask = 8, dict(do_sample=False)
    with ht.use_kernels(False):
        want = m.generate(ids[:, :40], max_new_tokens=n, **ask)
    m, ids = m.to(DEVICE), ids[:, :40].to(DEVICE)
    texts = [m.generate(ids, max_new_tokens=n, use_cache=cache, **ask) for cache in (True, False)]
    assert torch.equal(*texts) and torch.equal(texts[0].cpu(), want) and ("cache", False) in calls.names()
    with torch.no_grad():
        out = m(texts[0][:, :40], use_cache=True)
        steps = m(texts[0][:, 40:], past_key_values=out.past_key_values, use_cache=True).logits
        assert error(torch.cat([out.logits, steps], 1), m(texts[0]).logits) < 1e-4


def test_compiled_model(calls, model):  # noqa: F811
    torch._dynamo.reset()
    m, ids = model[0].to(DEVICE).train(), model[1].to(DEVICE)
    want, grads = trained(m, ids)
    calls.clear()
    m.compile()
    loss, grads2 = trained(m, ids)
    assert sorted(calls.names()) == sorted(TRAINED) and abs(float(loss) - float(want)) < 1e-4
    for n, grad in grads.items():
        assert error(grads2[n], grad) < 1e-3, n
