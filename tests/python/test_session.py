"""Models and sessions against values from PyTorch, against the program, and against themselves."""

import json
import subprocess

import numpy as np
import pytest

import hola


@pytest.fixture(scope="module")
def expected(tiny_path):
    return json.loads((tiny_path / "expected.json").read_text())


def test_scores_are_those_of_pytorch(tiny, expected):
    got = tiny.score(expected["ids"])
    assert got.dtype == np.float64 and got.shape == (len(expected["ids"]) - 1,)
    assert np.abs(got - expected["logprobs"]).max() < 1e-4
    assert np.abs(tiny.score(expected["ids"][::-1]) - expected["logprobs"]).max() > 0.1


def test_scores_are_those_of_the_program(tiny, tiny_path, expected, tmp_path):
    (tmp_path / "ids.json").write_text(json.dumps(expected["ids"]))
    command = [hola.program_path(), "score", "-m", str(tiny_path), "--ids", str(tmp_path / "ids.json"), "--json"]
    said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert np.abs(tiny.score(expected["ids"]) - said["logprobs"]).max() < 1e-12


def test_scores_of_a_text(byte):
    ids = [256, *b"hello"]
    assert np.array_equal(byte.score("hello"), byte.score(ids))
    assert np.array_equal(byte.score(b"hello"), byte.score(ids))
    assert byte.score("").shape == (0,) and byte.score([7]).shape == (0,)
    assert byte.score("x").shape == (1,)


def test_long_texts_are_cut_without_a_trace(byte):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 256, 1500)
    whole = byte.session().feed_each(ids)
    s = byte.session()
    assert np.array_equal(s.feed(ids), whole[-1])
    score = byte.score(ids)
    logp = whole - whole.max(1, keepdims=True)
    logp = logp - np.log(np.exp(logp).sum(1, keepdims=True))
    assert np.abs(score - logp[np.arange(1499), ids[1:]]).max() < 1e-5


def test_feeding(tiny, expected):
    ids = expected["ids"]
    s = tiny.session()
    each = s.feed_each(ids)
    assert each.shape == (70, 61) and each.dtype == np.float32 and each.flags.c_contiguous
    t = tiny.session()
    assert t.feed(ids[:30], logits=False) is None
    last = t.feed(ids[30:])
    assert np.abs(last - each[-1]).max() < 1e-4
    assert (t.position, s.position) == (70, 70)
    assert t.recent(3).tolist() == ids[-3:] and t.recent().size == 70
    u = tiny.session()
    assert np.abs(u.score(ids[:-1], ids[1:]) - expected["logprobs"]).max() < 1e-4


def test_arrays_are_the_callers_own(tiny):
    s = tiny.session()
    first = s.feed([1, 2, 3])
    kept, logits, recent = first.copy(), s.logits, s.recent()
    first_logits = logits.copy()
    s.feed([4, 5])
    assert np.array_equal(first, kept) and np.array_equal(logits, first_logits) and recent.tolist() == [1, 2, 3]
    first[:] = 0
    logits[:] = 0
    assert np.abs(s.logits).max() > 0
    assert first.flags.owndata or first.base is None


def test_clones_marks_and_rollback(tiny):
    s = tiny.session(seed=5)
    s.feed([1, 2, 3])
    twin = s.clone()
    assert twin.seed == 5 and twin.position == 3
    s.mark()
    s.feed([9, 9])
    assert twin.position == 3
    s.rollback(2)
    assert np.array_equal(s.feed([4]), twin.feed([4]))
    assert not np.array_equal(s.feed([5]), twin.feed([6]))
    s.reset()
    assert s.position == 0 and s.seed == 5 and s.logits is None
    s.seed = 2**64 - 1
    assert s.seed == 2**64 - 1


def test_saved_sessions(tiny, tmp_path):
    s = tiny.session(seed=9)
    s.feed(range(40))
    s.save(tmp_path / "s")
    t = tiny.session()
    t.load(tmp_path / "s")
    assert t.position == 40 and t.seed == 9 and np.array_equal(s.feed([1]), t.feed([1]))
    t.save(tmp_path / "b", dtype="bf16")
    assert (tmp_path / "b").stat().st_size < (tmp_path / "s").stat().st_size


def test_steps_are_those_of_each_alone(tiny):
    prompts, ids = [[1, 2], [3], [4, 5, 6]], [7, 8, 9]
    alone, together = [], []
    for p in prompts:
        a, b = tiny.session(seed=1), tiny.session(seed=1)
        a.feed(p)
        b.feed(p)
        alone.append(a)
        together.append(b)
    want = np.stack([a.feed([i]) for a, i in zip(alone, ids)])
    got = hola.step(together, ids)
    assert got.shape == (3, 61) and np.array_equal(got, want)
    chosen = [a.sample(temperature=1.5) for a in alone]
    for s in together:
        s.reset()
    for s, p in zip(together, prompts):
        s.feed(p)
    assert hola.step_sample(together, ids, temperature=1.5).tolist() == chosen


def test_sampling(tiny):
    s = tiny.session()
    logits = s.feed([1, 2])
    assert s.sample(temperature=0) == int(logits.argmax()) == s.sample(top_k=1)
    seen = set()
    for seed in range(40):
        s.seed = seed
        seen.add(s.sample(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0))
        assert s.sample(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0) in seen
    assert len(seen) > 5 and s.position == 2


def test_kept_positions(tiny):
    s = tiny.session()
    s.feed(np.arange(60))
    c = tiny.config
    got = s.kept(1, c.num_v_heads - 1)
    assert got.positions.dtype == np.int64 and got.scores.dtype == np.float32
    assert len(got.positions) == c.cache_window == len(got.scores)
    assert (np.diff(got.positions) > 0).all() and got.positions.max() < 60 // c.cache_chunk * c.cache_chunk
    assert len(tiny.session().kept(0, 0).positions) == 0
    plain = hola.Model.new(hola.Config(model_type="gated_deltanet", hidden_size=32, num_heads=2, head_dim=16,
                                       num_hidden_layers=1, vocab_size=64))  # fmt: skip
    with pytest.raises(hola.InvalidArgument):
        plain.session().kept(0, 0)


def test_history(tiny):
    ids = np.random.default_rng(1).integers(0, 61, 300)
    s = tiny.session()
    h = hola.History(s, every=64, most=8)
    h.feed(ids, logits=False)
    h.keep()
    logits, reused = h.prompt(np.concatenate([ids[:200], [5, 6]]))
    assert 100 < reused <= 200 and s.position == 202
    fresh = tiny.session()
    want = fresh.feed(np.concatenate([ids[:200], [5, 6]]))
    assert np.abs(logits - want).max() < 1e-4
    h.rollback(52)
    assert s.position == 150 and h.session is s


def test_history_of_long_texts(byte):
    """What is read in pieces gives what one call gives, and a wrong id changes nothing."""
    ids = np.random.default_rng(2).integers(0, 256, 1600)
    other = np.concatenate([ids[:1300], ids[:700]])
    h = hola.History(byte.session())
    for text, most in ((ids, 0), (other, 1300), (other, 2000), (ids[:1200], 1200)):
        logits, reused = h.prompt(text)
        assert np.abs(logits - byte.session().feed(text)).max() < 1e-4
        assert max(0, most - 512) <= reused <= most and h.session.position == text.size
    with pytest.raises(hola.InvalidArgument, match="token 2000: id 9999"):
        h.prompt(np.append(other, 9999))
    assert h.session.position == 1200


def test_models(tiny, tmp_path):
    names = tiny.tensor_names()
    assert len(names) == len(set(names)) and "model.embeddings.weight" in names
    w = tiny.tensor("model.embeddings.weight")
    assert w.shape == (61, 32) and w.dtype == np.float32
    assert tiny.num_parameters == tiny.config.num_parameters == 23232
    assert tiny.backend in hola.devices() and tiny.tokenizer is None and "23,232" in repr(tiny)
    tiny.save(tmp_path / "a")
    again = hola.Model.from_pretrained(tmp_path / "a", threads=1)
    assert np.array_equal(again.score(range(50)), tiny.score(range(50)))
    tiny.save(tmp_path / "b", dtype="bf16")
    rounded = hola.Model.load(str(tmp_path / "b")).score(range(50))
    assert 0 < np.abs(rounded - tiny.score(range(50))).max() < 1
    assert hola.Model.new(tiny.config, seed=1).tensor(names[0]).std() > 0
    a, b, c = (hola.Model.new(tiny.config, seed=i).tensor(names[0]) for i in (1, 1, 2))
    assert np.array_equal(a, b) and not np.array_equal(a, c)


def test_a_saved_model_keeps_its_tokenizer(byte, tmp_path):
    hola.prepare(["some text"], tmp_path / "data", "byte")
    m = hola.Model.new(byte.config, tokenizer=tmp_path / "data")
    m.save(tmp_path / "m")
    again = hola.Model.load(tmp_path / "m")
    assert again.tokenizer is not None and again.tokenizer.encode("hi").tolist() == [104, 105]


def test_loglikelihoods(tiny):
    pairs = [([1, 2, 3], [4, 5]), ([1, 2, 3], [6]), ([7], [8, 9, 10])]
    scores, greedy = tiny.loglikelihood(pairs)
    for (a, b), score in zip(pairs, scores):
        assert abs(tiny.score(a + b)[-len(b) :].sum() - score) < 1e-5
    best = int(tiny.session().feed([1, 2, 3]).argmax())
    assert tiny.loglikelihood([([1, 2, 3], [best]), ([1, 2, 3], [(best + 1) % 61])])[1].tolist() == [True, False]
    assert tiny.loglikelihood([])[0].shape == (0,)
    for bad in ([([], [1])], [([1], [])], [([1], [61])]):
        with pytest.raises(hola.InvalidArgument):
            tiny.loglikelihood(bad)


def test_not_finite(tiny, tmp_path):
    tiny.save(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    data = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    first, last = json.loads(data[8:begin])["model.norm.weight"]["data_offsets"]

    def write(value):
        data[begin + first : begin + last] = np.full((last - first) // 4, value, np.float32).tobytes()
        file.write_bytes(data)

    write(np.nan)
    with pytest.raises(hola.NumericError, match="not finite"):
        hola.Model.load(tmp_path / "m", threads=1)
    write(3e38)  # logits overflow
    m = hola.Model.load(tmp_path / "m", threads=1)
    with pytest.raises(hola.NumericError):
        m.session().feed([1, 2])
    with pytest.raises(ArithmeticError, match="token 1 "):
        m.score([1, 2, 3])
    with pytest.raises(hola.NumericError):
        m.generate([1, 2])
