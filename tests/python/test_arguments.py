"""Every class of wrong input: which exception, one line of text, and nothing changed."""

import array
import copy
import os
import pickle

import numpy as np
import pytest

import hola


def refused(kind, call, *words):
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert text and "\n" not in text
    for word in words:
        assert word in text, text
    return caught.value


# ---- errors ----


@pytest.mark.parametrize(
    "name, builtin, status",
    [
        ("InvalidArgument", ValueError, 1),
        ("FileError", OSError, 2),
        ("FormatError", ValueError, 3),
        ("OutOfMemory", MemoryError, 4),
        ("NotSupported", NotImplementedError, 5),
        ("DeviceError", RuntimeError, 6),
        ("NumericError", ArithmeticError, 7),
    ],
)
def test_classes(name, builtin, status):
    kind = getattr(hola, name)
    assert issubclass(kind, hola.Error) and issubclass(kind, RuntimeError) and issubclass(kind, builtin)
    assert kind("x").status == status and str(kind("a line")) == "a line"
    again = pickle.loads(pickle.dumps(kind("x")))
    assert type(again) is kind and again.status == status and str(again) == "x"


def test_every_status_of_the_library_has_a_class():
    from hola._errors import BY_STATUS, error_of

    assert sorted(BY_STATUS) == list(range(1, 8))
    assert type(error_of(77, "x")) is hola.Error and error_of(77, "x").status == 77


def test_files(tmp_path):
    refused(hola.FileError, lambda: hola.Model.load(tmp_path / "none"), "none")
    refused(OSError, lambda: hola.Tokenizer(tmp_path))
    (tmp_path / "config.json").write_text("{")
    refused(hola.FormatError, lambda: hola.Model.load(tmp_path), "config.json")
    refused(hola.FormatError, lambda: hola.Config.from_pretrained(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    refused(hola.NotSupported, lambda: hola.Config.from_pretrained(tmp_path), "mamba")
    (tmp_path / "tokenizer.json").write_text("[")
    refused(hola.FormatError, lambda: hola.Tokenizer(tmp_path))
    refused(hola.InvalidArgument, lambda: hola.Tokenizer("a\0b"), "NUL")
    for bad in (None, 3, 1.5, ["x"]):
        refused(TypeError, lambda: hola.Tokenizer(bad))
        refused(TypeError, lambda: hola.Model.load(bad))


def test_model_options(tiny_path, config, tmp_path):
    refused(hola.InvalidArgument, lambda: hola.Model.load(tiny_path, backend="abacus"))
    refused(TypeError, lambda: hola.Model.load(tiny_path, backend=3))
    refused(TypeError, lambda: hola.Model.load(tiny_path, threads="2"))
    refused(TypeError, lambda: hola.Model.load(tiny_path, threads=1.5))
    refused(hola.InvalidArgument, lambda: hola.Model.load(tiny_path, threads=-1))
    refused(TypeError, lambda: hola.Model.load(tiny_path, colour="red"))
    refused(TypeError, lambda: hola.Model.load(tiny_path, "cpu"))
    refused(TypeError, lambda: hola.Model.new({"hidden_size": 4}))
    refused(TypeError, lambda: hola.Model())
    for seed, kind in ((-1, ValueError), (2**64, ValueError), ("1", TypeError), (0.5, TypeError), (None, TypeError)):
        refused(kind, lambda: hola.Model.new(config, seed=seed), "seed")
    if not hola.build_info()["cuda"]:
        refused(hola.NotSupported, lambda: hola.Model.load(tiny_path, backend="cuda"), "CUDA")


def test_save_options(tiny, tmp_path):
    refused(hola.InvalidArgument, lambda: tiny.save(tmp_path / "m", dtype="f64"), "f64")
    refused(TypeError, lambda: tiny.save(tmp_path / "m", dtype=16))
    refused(TypeError, lambda: tiny.save(None))
    assert not (tmp_path / "m").exists()
    (tmp_path / "file").write_text("x")
    refused(hola.FileError, lambda: tiny.save(tmp_path / "file" / "m"))
    refused(hola.InvalidArgument, lambda: tiny.tensor("nothing"), "nothing")
    refused(TypeError, lambda: tiny.tensor(3))


# ---- config ----


def test_config():
    refused(TypeError, lambda: hola.Config(colour=3), "colour")
    refused(TypeError, lambda: hola.Config(hidden_size="64"), "hidden_size")
    refused(TypeError, lambda: hola.Config(hidden_size=64.0), "hidden_size")
    refused(TypeError, lambda: hola.Config(use_gate=1), "use_gate")
    refused(TypeError, lambda: hola.Config(norm_eps="x"), "norm_eps")
    refused(TypeError, lambda: hola.Config(model_type=None))
    refused(hola.InvalidArgument, lambda: hola.Config(model_type="mamba"), "mamba")
    refused(hola.InvalidArgument, lambda: hola.Config(hidden_size=-1), "hidden_size")
    refused(hola.InvalidArgument, lambda: hola.Config(hidden_size=2**70))
    refused(hola.InvalidArgument, lambda: hola.Config(hidden_ratio=float("nan")))
    refused(hola.InvalidArgument, lambda: hola.Config(norm_eps=float("inf")))
    refused(hola.InvalidArgument, lambda: hola.Config(cache_evict="luck"), "luck")
    refused(hola.InvalidArgument, lambda: hola.Config.preset("9b"))
    refused(hola.InvalidArgument, lambda: hola.Config.preset("46m", "mamba"))
    refused(TypeError, lambda: hola.Config.preset(46))
    c = hola.Config(hidden_size=64, num_heads=2)
    with pytest.raises(AttributeError):
        c.colour
    with pytest.raises(AttributeError):
        c.colour = 3
    refused(TypeError, lambda: setattr(c, "vocab_size", "x"))
    assert c.vocab_size == hola.Config(hidden_size=64, num_heads=2).vocab_size


def test_config_fields():
    c = hola.Config(hidden_size=64, num_heads=2, head_dim=24, cache_evict="recency", conv_size=0)
    assert (c.hidden_size, c.num_v_heads, c.head_v_dim, c.cache_evict, c.conv_size) == (64, 2, 48, "recency", 0)
    assert hola.Config(**c.to_dict()) == c == copy.copy(c) == copy.deepcopy(c) == pickle.loads(pickle.dumps(c))
    d = copy.copy(c)
    d.cache_window = 7
    assert c.cache_window != 7 and d != c and "cache_window=7" in repr(d)
    assert "hidden_size" in dir(c)


@pytest.mark.parametrize("kind", ["hola", "gated_deltanet", "delta_net", "transformer", "gla", "gsa", "kda"])
def test_config_presets(kind):
    for name, millions in (("46m", 46), ("340m", 340)):
        c = hola.Config.preset(name, kind)
        assert c.model_type == kind and hola.Config(**c.to_dict()) == c
        assert 0.5 < c.num_parameters / (millions * 1e6) < 2


# ---- ids ----


class Tensor:
    """What a PyTorch tensor on a GPU looks like."""

    def __init__(self, values, device="cpu"):
        self.values, self.device = values, device

    def detach(self):
        return Tensor(self.values, self.device)

    def cpu(self):
        return Tensor(self.values)

    def numpy(self):
        assert self.device == "cpu"
        return self.values

    def __array__(self, *a, **k):
        raise TypeError("can't convert cuda tensor to numpy")


def test_ids_of_all_kinds(tiny):
    want = tiny.score([1, 2, 3, 4])
    wide = np.array([[1, 9], [2, 9], [3, 9], [4, 9]])
    kinds = [(1, 2, 3, 4), range(1, 5), array.array("q", [1, 2, 3, 4]), wide[:, 0], wide.astype(">i8")[:, 0]]
    kinds += [np.array([4, 3, 2, 1])[::-1], [np.int8(1), 2, np.uint64(3), 4], Tensor(np.array([1, 2, 3, 4]), "cuda")]
    kinds += [np.array([1, 2, 3, 4], dtype=t) for t in "bBhHiIlLqQ"]
    for ids in kinds:
        assert np.array_equal(tiny.score(ids), want), ids
    assert not np.array_equal(tiny.score([1, 2, 4, 3]), want)


@pytest.mark.parametrize(
    "ids, kind",
    [
        ("12", TypeError),
        (b"12", TypeError),
        (None, TypeError),
        (3, TypeError),
        (3.5, TypeError),
        ([1.0, 2.0], TypeError),
        ([1, 2.5], TypeError),
        (["1"], TypeError),
        ([1, None], TypeError),
        ([1, "2"], TypeError),
        ([True, False], TypeError),
        ({1: 2}, TypeError),
        ({1, 2}, TypeError),
        (iter([1, 2]), TypeError),
        (object(), TypeError),
        ([[1, 2], [3]], TypeError),
        (np.array([1.0]), TypeError),
        (np.array([]), TypeError),
        (np.array([True]), TypeError),
        (np.array(["1"]), TypeError),
        (np.array([1, None]), TypeError),
        ([[1, 2]], ValueError),
        (np.array(1), ValueError),
        (np.zeros((2, 2), int), ValueError),
        ([], ValueError),
        ([-1], ValueError),
        ([61], ValueError),
        ([1, 2**31], ValueError),
        ([1, 2**63], ValueError),
        ([-1, 2**63], ValueError),
        ([1, 2**70], ValueError),
        (np.array([2**40]), ValueError),
        (np.array([2**63], np.uint64), ValueError),
    ],
)
def test_wrong_ids(tiny, ids, kind):
    with tiny.session() as s:
        s.feed([1, 2, 3])
        before = s.logits
        refused(kind, lambda: s.feed(ids))
        refused(kind, lambda: s.feed_each(ids))
        refused(kind, lambda: s.score(ids, ids))
        assert s.position == 3 and np.array_equal(s.logits, before)
        assert s.recent().tolist() == [1, 2, 3]
    if not isinstance(ids, (str, bytes)):
        refused(kind, lambda: tiny.score(ids))
        refused(kind, lambda: tiny.generate(ids))
        refused(kind, lambda: list(tiny.stream(ids)))


def test_a_wrong_id_at_the_end_of_a_long_text_changes_nothing(tiny):
    ids = np.ones(5000, int)
    ids[-1] = 61
    with tiny.session() as s:
        refused(hola.InvalidArgument, lambda: s.feed(ids), "token 4999", "61")
        refused(hola.InvalidArgument, lambda: s.score(np.ones(5000, int), ids), "token 4999")
        assert s.position == 0


# ---- options of sampling and generation ----


@pytest.mark.parametrize(
    "options, kind",
    [
        (dict(temperature=-1), ValueError),
        (dict(temperature=float("nan")), ValueError),
        (dict(temperature="hot"), TypeError),
        (dict(temperature=None), TypeError),
        (dict(top_k=-1), ValueError),
        (dict(top_k=1.5), TypeError),
        (dict(top_k=2**70), ValueError),
        (dict(top_p=0), ValueError),
        (dict(top_p=1.5), ValueError),
        (dict(min_p=-0.1), ValueError),
        (dict(repeat_penalty=0), ValueError),
        (dict(repeat_penalty=10**400), ValueError),
        (dict(repeat_last_n=-1), ValueError),
        (dict(repeat_last_n=1025), ValueError),
        (dict(temp=0.5), TypeError),
    ],
)
def test_wrong_sampling(tiny, options, kind):
    with tiny.session() as s, tiny.session() as other:
        s.feed([1, 2])
        other.feed([1])
        refused(kind, lambda: s.sample(**options))
        refused(kind, lambda: hola.step_sample([s, other], [1, 2], **options))
        assert (s.position, other.position) == (2, 1)
    refused(kind, lambda: tiny.generate([1], **options))
    refused(kind, lambda: tiny.generate_batch([[1]], **options))
    refused(kind, lambda: list(tiny.stream([1], **options)))


@pytest.mark.parametrize(
    "options, kind",
    [
        (dict(max_tokens=-1), ValueError),
        (dict(max_tokens="9"), TypeError),
        (dict(max_tokens=1.0), TypeError),
        (dict(max_tokens=None), TypeError),
        (dict(seed=-1), ValueError),
        (dict(seed="x"), TypeError),
        (dict(stop=3), TypeError),
        (dict(stop=None), TypeError),
        (dict(stop=[None]), TypeError),
        (dict(stop=""), ValueError),
        (dict(stop=["a", ""]), ValueError),
        (dict(stop="\ud800"), ValueError),
        (dict(banana=1), TypeError),
    ],
)
def test_wrong_generation(byte, options, kind):
    refused(kind, lambda: byte.generate("x", **options))
    refused(kind, lambda: byte.generate_batch(["x"], **options))
    refused(kind, lambda: byte.stream("x", **options))
    refused(kind, lambda: byte.astream("x", **options))


def test_wrong_prompts(byte, tiny):
    refused(TypeError, lambda: byte.generate(None))
    refused(TypeError, lambda: byte.generate(3.5))
    refused(TypeError, lambda: byte.generate_batch("one text"))
    refused(TypeError, lambda: byte.generate_batch(3))
    refused(ValueError, lambda: byte.generate_batch([[1], []]))
    refused(ValueError, lambda: byte.generate("\ud800"))
    refused(hola.InvalidArgument, lambda: tiny.generate("text"), "tokenizer")
    refused(hola.InvalidArgument, lambda: tiny.score("text"), "tokenizer")
    refused(hola.InvalidArgument, lambda: tiny.generate([1], stop="x"), "tokenizer")


# ---- sessions ----


def test_session_calls(tiny, byte, tmp_path):
    s = tiny.session()
    refused(hola.InvalidArgument, lambda: s.sample(), "")
    refused(hola.InvalidArgument, lambda: s.score([1, 2], [1]), "targets")
    refused(TypeError, lambda: s.feed([1], logits=1))
    refused(ValueError, lambda: s.recent(-1))
    refused(TypeError, lambda: s.recent("x"))
    refused(ValueError, lambda: s.rollback(1))
    refused(TypeError, lambda: s.rollback(1.5))
    refused(ValueError, lambda: setattr(s, "seed", -1))
    refused(TypeError, lambda: setattr(s, "seed", "x"))
    refused(TypeError, lambda: tiny.session("x"))
    refused(hola.FileError, lambda: s.load(tmp_path / "none"))
    (tmp_path / "junk").write_bytes(os.urandom(999))
    refused(hola.FormatError, lambda: s.load(tmp_path / "junk"))
    other = byte.session()
    other.feed([1])
    other.save(tmp_path / "other")
    s.feed([1, 2])
    refused(hola.Error, lambda: s.load(tmp_path / "other"))
    refused(hola.InvalidArgument, lambda: s.save(tmp_path / "x", dtype="text"))
    refused(ValueError, lambda: s.kept(2, 0))
    refused(ValueError, lambda: s.kept(0, -1))
    refused(TypeError, lambda: s.kept("a", 0))
    assert s.position == 2


def test_steps(tiny, byte):
    a, b, other = tiny.session(), tiny.session(), byte.session()
    refused(TypeError, lambda: hola.step(3, [1]))
    refused(TypeError, lambda: hola.step([a, None], [1, 2]))
    refused(ValueError, lambda: hola.step([], []))
    refused(ValueError, lambda: hola.step([a, b], [1]), "2 sessions and 1 ids")
    refused(ValueError, lambda: hola.step([a, b, a], [1, 2, 3]), "0 and 2 are the same")
    refused(ValueError, lambda: hola.step([a, other], [1, 2]), "another model")
    refused(ValueError, lambda: hola.step([a, b], [1, 61]), "61")
    refused(TypeError, lambda: hola.step([a, b], [1, 2.5]))
    assert (a.position, b.position) == (0, 0)


def test_history(tiny):
    s = tiny.session()
    refused(TypeError, lambda: hola.History(tiny))
    refused(ValueError, lambda: hola.History(s, every=-1))
    refused(TypeError, lambda: hola.History(s, colour=3))
    h = hola.History(s)
    refused(ValueError, lambda: h.rollback(1))
    refused(TypeError, lambda: h.feed("x"))
    refused(ValueError, lambda: h.prompt([]))
    s.feed([1])
    refused(ValueError, lambda: hola.History(s))


def test_trainer(config, tiny):
    m = hola.Model.new(config, threads=1)
    refused(TypeError, lambda: hola.Trainer(config))
    refused(TypeError, lambda: hola.Trainer(m, max_tokens="x"))
    refused(TypeError, lambda: hola.Trainer(m, colour=1))
    refused(TypeError, lambda: hola.Trainer(m, recompute=1))
    refused(ValueError, lambda: hola.Trainer(m, max_tokens=0))
    refused(ValueError, lambda: hola.Trainer(m, beta1=1.0))
    refused(ValueError, lambda: hola.Trainer(m, beta1=0))
    refused(ValueError, lambda: hola.Trainer(m, eps=float("nan")))
    refused(ValueError, lambda: hola.Trainer(m, weight_decay=-1))
    refused(ValueError, lambda: hola.Trainer(m, clip=-1))
    with hola.Trainer(m, max_tokens=8) as t:
        refused(ValueError, lambda: hola.Trainer(m), "already")
        refused(ValueError, lambda: t.accumulate(range(9)), "9 tokens")
        refused(ValueError, lambda: t.accumulate([]))
        refused(ValueError, lambda: t.accumulate([1, 300]))
        refused(ValueError, lambda: t.accumulate([1, 2, 3], starts=[1]))
        refused(ValueError, lambda: t.accumulate([1, 2, 3], starts=[0, 3]))
        refused(ValueError, lambda: t.accumulate([1, 2, 3], starts=[]))
        refused(TypeError, lambda: t.accumulate([1, 2, 3], starts="0"))
        refused(TypeError, lambda: t.accumulate([1, 2], weight="x"))
        refused(TypeError, lambda: t.update("x"))
        refused(ValueError, lambda: t.update(float("nan")))
        refused(ValueError, lambda: t.update(-1.0))
        assert t.update(0.1) == 0.0  # nothing of the above left a gradient


def test_tokenizer():
    t = hola.Tokenizer("byte")
    refused(TypeError, lambda: t.encode(3))
    refused(TypeError, lambda: t.encode(None))
    refused(TypeError, lambda: t.encode("x", bos=1))
    refused(ValueError, lambda: t.encode("\ud800"))
    refused(TypeError, lambda: t.decode("x"))
    refused(TypeError, lambda: t.decode([1.5]))
    refused(ValueError, lambda: t.decode([258]))
    refused(ValueError, lambda: t.decode([-1]))
