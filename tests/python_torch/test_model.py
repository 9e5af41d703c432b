"""HolaForCausalLM: against the test vectors and the hola program; rows that are packed or padded; generate."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from reference import error, weight

transformers = pytest.importorskip("transformers", "5.0")
from safetensors.torch import load_file, save_file  # noqa: E402

import hola.torch as ht  # noqa: E402

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_heads=2, vocab_size=61, intermediate_size=64, head_dim=16,
             expand_v=1.0, tie_word_embeddings=True, cache_window=4, cache_chunk=8, bos_token_id=None,
                 eos_token_id=None,
             pad_token_id=0)


def model(dtype=torch.float64, **fields):
    """With weights that are functions of their names."""
    m = ht.HolaForCausalLM(ht.HolaConfig(**{**SMALL, **fields})).to(dtype).eval()
    l2 = m.config.cache_norm == "l2"
    m.load_state_dict({n: weight(n, tuple(x.shape), l2).to(dtype) for n, x in stored(m).items()})
    return m


def stored(m):
    """What a file of this model holds: a tied head is the embeddings."""
    tied = m.config.tie_word_embeddings
    return {n: x for n, x in m.state_dict().items() if not (tied and n == "lm_head.weight")}


def ids(*shape):
    return torch.randint(1, 61, shape, generator=torch.Generator().manual_seed(5))


def logprobs(m, row):
    z = m(row[None]).logits[0].double().log_softmax(-1)
    return z[:-1].gather(1, row[1:, None])[:, 0]


NAMES = ("betae_rms", "betae_l2", "betae_rms_nogate", "betav_rms", "e_rms", "recency_rms", "streaming_rms", "lola_rms",
         "lte_rms", "lte_packed")


@pytest.mark.parametrize("name", NAMES)
def test_vector(name, vectors):
    d = json.loads((vectors / f"hola_{name}.json").read_text())
    fields = {n: x for n, x in d["config"].items() if n != "model_type"}
    m, row = model(**fields), torch.tensor(d["ids"])
    cu = torch.tensor([*d["starts"], len(row)]) if "starts" in d else None

    def loss_of(m):
        z = m(row[None], cu_seqlens=cu).logits[0].double().log_softmax(-1)
        first = set(d.get("starts", [0]))
        targets = torch.tensor([t for t in range(len(row)) if t not in first])
        return -z[targets - 1, row[targets]].mean()

    loss = loss_of(m)
    assert abs(loss.item() - d["loss"]) < 1e-10
    loss.backward()
    grads = {n: p.grad for n, p in m.named_parameters()}
    seen = 0
    for n, want in d["grad_l2"].items():
        if n in grads:
            seen += 1
            assert abs(float(grads[n].norm()) - want) < 1e-9 * max(1.0, want), n
    assert seen == len(grads)
    other = model(**{**fields, "cache_window": 3})
    assert abs(loss_of(other).item() - d["loss"]) > 1e-6


# ---- the program ----


def run(program, *args):
    out = subprocess.run([program, *map(str, args), "--json"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


@pytest.mark.parametrize("fields", [dict(), dict(tie_word_embeddings=False, num_v_heads=4, expand_v=0.5, use_gate=False,
                                                 allow_neg_eigval=True, cache_norm="l2", cache_evict="e"),
                                    dict(cache_evict="none", use_short_conv=False),
                                    dict(cache_evict="streaming", cache_gate_linear=True),
                                    dict(cache_gate_token=True, num_v_heads=4),
                                    dict(cache_evict="h2o", num_v_heads=4),
                                    dict(cache_evict="lola", cache_norm="l2", cache_chunk=6),
                                    dict(cache_evict="lola", num_v_heads=4, cache_redundancy=0.3),
                                    dict(cache_evict="lte", num_v_heads=4, cache_lte_dim=5),
                                    dict(cache_redundancy=0.2),
                                    dict(cache_layer_set=True, num_v_heads=4),
                                    dict(cache_layer_set=True, cache_evict="e", cache_gate_token=True),
                                    dict(cache_layer_set=True, cache_evict="betav")], ids=str)
def test_saved_here_and_there(fields, program, tmp_path):
    m, row = model(torch.float32, **fields), ids(40)
    m.save_pretrained(tmp_path / "here")
    (tmp_path / "ids.json").write_text(json.dumps(row.tolist()))
    want = logprobs(m, row)
    got = torch.tensor(run(program, "score", "-m", tmp_path / "here", "--ids", tmp_path / "ids.json")["logprobs"])
    assert (got - want).abs().max() < 2e-4
    assert (got - logprobs(model(torch.float32, **{**fields, "norm_eps": 1e-3}), row)).abs().max() > 1e-3
    subprocess.run([program, "convert", "-m", tmp_path / "here", "-o", tmp_path / "there", "--dtype", "f32"],
        check=True,
                   capture_output=True)
    back, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "there", output_loading_info=True)
    assert type(back) is ht.HolaForCausalLM and not any(info.values()), info
    files = [load_file(tmp_path / d / "model.safetensors") for d in ("here", "there")]
    assert files[0].keys() == files[1].keys() == stored(m).keys()
    assert all(torch.equal(files[0][n], x) and torch.equal(back.state_dict()[n], x) for n, x in stored(m).items())
    assert ("lm_head.weight" in files[0]) == (not m.config.tie_word_embeddings)
    assert torch.equal(logprobs(back.eval(), row), want)


def test_greedy_text_is_the_programs(program, tmp_path):
    m, row = model(torch.float32), ids(1, 11)
    m.save_pretrained(tmp_path)
    (tmp_path / "ids.json").write_text(json.dumps(row[0].tolist()))
    want = run(program, "generate", "-m", tmp_path, "--ids", tmp_path / "ids.json", "-n", 40, "--temp", 0, "-q")["ids"]
    for cache in (True, False):
        got = m.generate(row, max_new_tokens=40, do_sample=False, use_cache=cache)[0, 11:].tolist()
        assert got == want
    other = model(torch.float32, cache_window=1)
    assert other.generate(row, max_new_tokens=40, do_sample=False)[0, 11:].tolist() != want


# ---- rows ----


def test_packed_and_padded():
    """Every row gives what it gives alone: logits, loss and the gradients of the loss."""
    m, lengths = model(), [13, 1, 26, 8]
    rows = [ids(n) for n in lengths]
    alone = [m(r[None]).logits[0] for r in rows]
    loss = torch.cat([torch.nn.functional.cross_entropy(z[:-1], r[1:], reduction="none") for z, r in zip(alone, rows)])
    cu = torch.tensor([0] + lengths).cumsum(0)
    packed = torch.cat(rows)[None]
    out = m(packed, cu_seqlens=cu, labels=packed)
    assert error(out.logits[0], torch.cat(alone)) < 1e-12 and abs(out.loss - loss.mean()) < 1e-5
    assert error(m(packed).logits[0], torch.cat(alone)) > 1e-2  # without the marks
    places = torch.cat([torch.arange(n) for n in lengths])[None]
    assert torch.equal(m(packed, position_ids=places).logits, out.logits)
    left = torch.stack([torch.nn.functional.pad(r, (26 - len(r), 0)) for r in rows])
    mask = torch.stack([torch.nn.functional.pad(torch.ones_like(r), (26 - len(r), 0)) for r in rows])
    padded = m(left, attention_mask=mask, labels=left)
    for z, want in zip(padded.logits, alone):
        assert error(z[26 - len(want) :], want) < 1e-12
    assert abs(padded.loss - loss.mean()) < 1e-5
    keep = m(left, attention_mask=mask, logits_to_keep=2).logits
    assert torch.equal(keep, padded.logits[:, -2:])
    grads = lambda x: torch.autograd.grad(x, list(m.parameters()))  # noqa: E731
    for a, b, c in zip(grads(loss.mean()), grads(out.loss), grads(padded.loss)):
        assert error(b, a) < 1e-5 and error(c, a) < 1e-5  # transformers computes the loss in float32
    with pytest.raises(ValueError, match="cu_seqlens"):
        m(left, cu_seqlens=cu)
    with pytest.raises(ValueError, match="attention_mask"):
        m(left, attention_mask=mask[:, 1:])


@pytest.mark.parametrize("evict, more", [("betae", {}), ("e", {}), ("betav", {}), ("recency", {}), ("streaming", {}),
                                         ("h2o", {}), ("lola", {}), ("lte", {}), ("none", {}),
                                         ("betae", {"cache_redundancy": 0.2}), ("h2o", {"cache_redundancy": 0.2}),
                                         ("betae", {"cache_layer_set": True}), ("betav", {"cache_layer_set": True})])
def test_cache(evict, more):
    """Token by token, in pieces, padded or not: the logits are those of one forward pass."""
    m, rows, lengths = model(cache_evict=evict, **more), ids(3, 45), [45, 40, 33]
    left = torch.stack([torch.nn.functional.pad(r[:n], (45 - n, 0)) for r, n in zip(rows, lengths)])
    mask = torch.stack([torch.nn.functional.pad(torch.ones(n), (45 - n, 0)) for n in lengths]).long()
    with torch.no_grad():
        want = m(left, attention_mask=mask).logits
        for cut in (17, 24):  # with blocks of 8, the three rows are at different places of the grid
            out = m(left[:, :cut], attention_mask=mask[:, :cut], use_cache=True)
            parts, at = [out.logits], cut
            for n in (1, 7, 45 - cut - 8):
                out = m(left[:, at : at + n], attention_mask=mask[:, : at + n], past_key_values=out.past_key_values,
                        use_cache=True)
                parts.append(out.logits)
                at += n
            assert out.past_key_values.get_seq_length() == 45
            got = torch.cat(parts, 1)
            for i, n in enumerate(lengths):
                assert error(got[i, 45 - n :], want[i, 45 - n :]) < 1e-12
        fresh = m(left[:, 24:], use_cache=False).logits
    assert error(fresh[0], want[0, 24:]) > 1e-2  # what came before matters


def test_generate():
    m, rows = model(torch.float32), ids(2, 12)
    short = rows.clone()
    short[1, :5] = 0
    mask = torch.ones_like(short)
    mask[1, :5] = 0
    alone = m.generate(rows[1:, 5:], max_new_tokens=12, do_sample=False)[0, 7:]
    together = m.generate(short, attention_mask=mask, max_new_tokens=12, do_sample=False)[1, 12:]
    assert torch.equal(alone, together)


def test_beams(monkeypatch):
    """Beams follow their states: with the cache and without it, texts have the same probability."""
    m, rows = model(torch.float32), ids(2, 12)
    ask = dict(max_new_tokens=10, num_beams=4, do_sample=False, return_dict_in_generate=True, output_scores=True)
    with_cache, without = (m.generate(rows, use_cache=c, **ask) for c in (True, False))
    assert torch.equal(with_cache.sequences, without.sequences)
    assert (with_cache.sequences_scores - without.sequences_scores).abs().max() < 1e-4
    cache = type(with_cache.past_key_values)
    assert cache.__name__ == "HolaCache"
    monkeypatch.setattr(cache, "reorder_cache", lambda self, beam_idx: None)
    wrong = m.generate(rows, **ask)
    assert (wrong.sequences_scores - without.sequences_scores).abs().max() > 1e-3


def test_gradient_checkpointing():
    m, row = model().train(), ids(1, 30)
    grads = []
    for on in (False, True):
        if on:
            m.gradient_checkpointing_enable()
        m.zero_grad()
        m(row, labels=row).loss.backward()
        grads.append([p.grad.clone() for p in m.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads)) and m.model.layers[0].gradient_checkpointing


def test_training():
    """A fresh model learns a short text by heart; a frozen tau stays."""
    m = ht.HolaForCausalLM(ht.HolaConfig(**SMALL)).train()
    assert "model.layers.0.attn.cache_tau" not in dict(m.named_parameters())
    opt, row, losses = torch.optim.AdamW(m.parameters(), lr=1e-2), ids(2, 24), []
    for _ in range(25):
        loss = m(row, labels=row).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    assert abs(losses[0] - 4.11) < 0.1 and losses[-1] < 0.5 * losses[0]
    assert torch.equal(m.model.layers[0].attn.cache_tau, torch.ones(2))
    assert ht.HolaAttention(ht.HolaConfig(**SMALL))(torch.randn(2, 5, 32)).shape == (2, 5, 32)


# ---- files ----


def test_missing_tau(tmp_path):
    """A file without cache_tau takes cache_tau_init, frozen or not; other tensors are as in the file."""
    for freeze in (True, False):
        m = model(torch.float32, cache_tau_init=1.75, cache_tau_freeze=freeze)
        m.save_pretrained(tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        save_file({n: x for n, x in tensors.items() if not n.endswith("cache_tau")}, tmp_path / "model.safetensors",
                  metadata={"format": "pt"})
        back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        for n, x in stored(back).items():
            assert torch.equal(x, torch.full((2,), 1.75) if n.endswith("cache_tau") else tensors[n]), n
        trained = {n for n, p in back.named_parameters() if p.requires_grad}
        assert ("model.layers.1.attn.cache_tau" in trained) == (not freeze)


def test_config():
    c = ht.HolaConfig(**SMALL)
    saved = json.loads(c.to_json_string())
    assert saved["model_type"] == "hola" and saved["tie_word_embeddings"] is True and saved["cache_evict"] == "betae"
    assert json.loads(ht.HolaConfig().to_json_string())["tie_word_embeddings"] is False
    assert ht.HolaConfig(hidden_size=1024).mlp_size == 2816
    assert ht.HolaConfig(hidden_size=512, hidden_ratio=2).mlp_size == 768
    for field, value in (("cache_evict", "lru"), ("num_heads", 0), ("num_v_heads", 7), ("expand_v", 0.3),
                         ("attn", {"layers": [1]}), ("hidden_act", "gelu"), ("cache_chunk", 0), ("cache_lte_dim", 65),
                         ("cache_redundancy", 1.5)):
        with pytest.raises(ValueError, match=f"^{field}: "):
            ht.HolaConfig(**{field: value})
    with pytest.raises(ValueError, match="^cache_redundancy: "):
        ht.HolaConfig(cache_evict="recency", cache_redundancy=0.5)
    for more in (dict(cache_evict="h2o"), dict(cache_evict="lola"), dict(cache_evict="lte"), dict(cache_redundancy=0.5)):
        with pytest.raises(ValueError, match="^cache_layer_set: "):
            ht.HolaConfig(cache_layer_set=True, **more)
    for evict in ("recency", "none"):
        assert ht.HolaConfig(cache_evict=evict, cache_layer_set=True).cache_layer_set


def test_layer_set():
    """The heads of a layer keep the same tokens: those with the largest norm of what the heads alone rank by."""
    row, score, kept = ids(1, 40), {}, {}
    for on in (False, True):
        m = model(cache_layer_set=on)
        attn = m.model.layers[0].attn
        own = attn._score
        attn._score = lambda *x: score.setdefault(on, own(*x))
        with torch.no_grad():
            memory = m(row, use_cache=True).past_key_values.layers[0].memory
        kept[on] = memory.slots[2][0, :, : SMALL["cache_window"]].sort(-1, descending=True).values
    best = lambda x: x.sort(0, descending=True).values[: SMALL["cache_window"]].T  # noqa: E731
    alone = score[False][0]
    assert torch.equal(kept[False], best(alone))
    assert torch.equal(kept[True], best(alone.norm(dim=-1, keepdim=True).expand(alone.shape)))
    assert not torch.equal(kept[False][0], kept[False][1])


def test_as_remote_code(tmp_path):
    """The code that is saved with a model runs where hola is not installed, with the same numbers."""
    m, row = model(torch.float32), ids(1, 20)
    m.save_pretrained(tmp_path / "m")
    assert {p.name for p in (tmp_path / "m").glob("*.py")} == {"modeling_hola.py", "hola_memory.py", "hola_plain.py"}
    torch.save((row, m(row).logits.detach(), m.generate(row, max_new_tokens=9, do_sample=False)), tmp_path / "want")
    script = """
import sys, torch, transformers
try:
    import hola.torch
    sys.exit("hola is here")
except ImportError: pass
row, logits, text = torch.load(sys.argv[2])
m = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
assert "transformers_modules" in type(m).__module__
assert (m(row).logits - logits).abs().max() < 1e-5
assert torch.equal(m.generate(row, max_new_tokens=9, do_sample=False), text)
"""
    env = {**os.environ, "PYTHONPATH": "", "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    out = subprocess.run([sys.executable, "-c", script, tmp_path / "m", tmp_path / "want"], env=env,
        capture_output=True,
                         text=True, cwd=pathlib.Path("/"))
    assert out.returncode == 0, out.stderr[-2000:]


def test_one_file_to_copy(tmp_path):
    """modeling_hola.py alone, where hola is installed; it and its two neighbours, where it is not."""
    source = pathlib.Path(ht.__file__).parent
    m, row = model(torch.float32, cache_evict="lola"), ids(1, 20)
    torch.save((m.config.to_dict(), m.state_dict(), row, m(row).logits.detach()), tmp_path / "want")
    script = """
import sys, torch
config, weights, row, logits = torch.load(sys.argv[1], weights_only=False)
from mine.modeling_hola import HolaConfig, HolaForCausalLM
assert ("hola.torch" in sys.modules) == bool(int(sys.argv[2]))
m = HolaForCausalLM(HolaConfig(**config)).eval()
m.load_state_dict(weights)
assert (m(row).logits - logits).abs().max() < 1e-5
"""
    for files, paths in ((("modeling_hola.py",), [str(tmp_path), os.environ["PYTHONPATH"]]),
                         (("modeling_hola.py", "hola_plain.py", "hola_memory.py"), [str(tmp_path)])):
        mine = tmp_path / "mine"
        mine.mkdir(exist_ok=True)
        for name in ("__init__.py", *files):
            (mine / name).write_text((source / name).read_text() if name in files else "")
        out = subprocess.run([sys.executable, "-c", script, tmp_path / "want", str(len(paths) - 1)],
                             capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, cwd="/")
        assert out.returncode == 0, out.stderr[-2000:]


def test_on_the_emulated_device(emulated):
    """The whole model through libhola's kernels, packed and with gradients: what plain PyTorch gives, in bf16."""
    fields = dict(hidden_size=64, num_heads=1, head_dim=64, num_hidden_layers=1)
    m = model(torch.float32, **fields).train()
    row, cu = ids(1, 40), torch.tensor([0, 17, 40], dtype=torch.int32)

    def run():
        m.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = m(row, labels=row, cu_seqlens=cu).loss
        loss.backward()
        return float(loss.detach()), {n: p.grad.clone() for n, p in m.named_parameters() if p.grad is not None}

    got = run()
    assert [c[:2] for c in emulated.calls] == [("gdn", False), ("cache", False), ("cache", True), ("gdn", True)]
    assert all(a.dtype == 1 for _, _, a in emulated.calls)  # bf16: autocast does not lead to the slow kernels
    with ht.use_kernels(False):
        want = run()
    assert len(emulated.calls) == 4 and abs(got[0] - want[0]) < 5e-3 * want[0] and got[1].keys() == want[1].keys()
    for name, grad in got[1].items():
        assert error(grad, want[1][name]) < (0.05 if grad.numel() > 1 else 0.3), name  # both have bf16's noise
