"""patch_fla() on a stand-in for fla, and on fla itself where it can be imported."""

import os
import subprocess
import sys
import types

import pytest
import torch

import hola.torch as ht


@pytest.fixture
def fla(monkeypatch):
    """Modules that hold fla's names as fla's do: defined in one, imported by name in others."""
    calls = []

    def chunk_gated_delta_rule(*args, **kwargs):
        calls.append("chunk")
        return "fla's"

    def fused_recurrent_gated_delta_rule(*args, **kwargs):
        calls.append("recurrent")
        return "fla's"

    def chunk_kda(*args, **kwargs):
        return "fla's"

    names = dict(chunk_kda=chunk_kda, chunk_gated_delta_rule=chunk_gated_delta_rule, chunk_gdn=chunk_gated_delta_rule,
                 fused_recurrent_gated_delta_rule=fused_recurrent_gated_delta_rule,
                 fused_recurrent_gdn=fused_recurrent_gated_delta_rule)
    gdn = [n for n in names if n != "chunk_kda"]
    for module, held in (("fla", ()), ("fla.ops", ()), ("fla.ops.gated_delta_rule", gdn),
                         ("fla.ops.kda", ("chunk_kda",)), ("fla.ops.gla", ()),
                         ("fla.layers", ("chunk_gated_delta_rule",)), ("flash", ("chunk_gdn",))):
        m = types.ModuleType(module)
        m.__path__ = []
        vars(m).update({n: names[n] for n in held})
        monkeypatch.setitem(sys.modules, module, m)
    sys.modules["fla.layers"].chunk_gdn = len  # another thing of that name
    yield calls
    ht.unpatch_fla()


def test_patch(fla):
    x = [torch.randn(1, 5, 1, 4) for _ in range(3)] + [-torch.rand(1, 5, 1), torch.rand(1, 5, 1)]
    home, layers = sys.modules["fla.ops.gated_delta_rule"], sys.modules["fla.layers"]
    own = layers.chunk_gated_delta_rule
    assert sorted(ht.patch_fla()) == ["fla.layers.chunk_gated_delta_rule",
                                      "fla.ops.gated_delta_rule.chunk_gated_delta_rule",
                                      "fla.ops.gated_delta_rule.chunk_gdn",
                                      "fla.ops.gated_delta_rule.fused_recurrent_gated_delta_rule",
                                      "fla.ops.gated_delta_rule.fused_recurrent_gdn", "fla.ops.kda.chunk_kda"]
    assert layers.chunk_gdn is len and sys.modules["flash"].chunk_gdn is own
    assert home.chunk_gdn is home.chunk_gated_delta_rule is layers.chunk_gated_delta_rule is not own
    assert torch.equal(layers.chunk_gated_delta_rule(*x)[0], ht.chunk_gdn(*x)[0]) and not fla
    late = types.ModuleType("fla.late")
    late.chunk_gdn = own
    sys.modules["fla.late"] = late
    try:
        assert len(ht.patch_fla()) == 7 and late.chunk_gdn is home.chunk_gdn
    finally:
        del sys.modules["fla.late"]
    with pytest.warns(RuntimeWarning, match="cp_context") as caught:
        assert home.chunk_gdn(*x, cp_context=object()) == "fla's"
        assert home.chunk_gdn(*x, cp_context=object()) == "fla's"
    assert len(caught) == 1 and fla == ["chunk", "chunk"]
    with pytest.warns(RuntimeWarning, match="gk"):
        assert home.fused_recurrent_gdn(*x[:3], gk=x[0]) == "fla's"
    kda = sys.modules["fla.ops.kda"].chunk_kda
    g = x[3].unsqueeze(-1).expand(1, 5, 1, 4)
    assert torch.equal(kda(*x[:3], g, x[4])[0], ht.chunk_kda(*x[:3], g, x[4])[0])
    ht.unpatch_fla()
    assert sys.modules["fla.ops.kda"].chunk_kda() == "fla's"
    assert home.chunk_gdn is own and layers.chunk_gated_delta_rule is own and late.chunk_gdn is own


def test_real_fla():
    """fla 0.6.0 holds the names in 17 places. Importing it takes long: only where FLA_TESTS asks for it."""
    if not os.environ.get("FLA_TESTS"):
        pytest.skip("FLA_TESTS is not set")
    pytest.importorskip("fla")
    script = """
import fla, fla.layers, fla.models, hola.torch
own = fla.layers.gated_deltanet.chunk_gated_delta_rule
places = hola.torch.patch_fla()
assert len(places) >= 17, places
assert fla.layers.gated_deltanet.chunk_gated_delta_rule is not own
hola.torch.unpatch_fla()
assert fla.layers.gated_deltanet.chunk_gated_delta_rule is own
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
