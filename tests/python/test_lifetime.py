"""Closing, copying, dropping; threads, forks, Ctrl-C."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import hola


def make(config, **options):
    return hola.Model.new(config, seed=3, threads=1, tokenizer="byte", **options)


def test_use_after_close(config, tmp_path):
    m = make(config)
    s = m.session()
    h = hola.History(m.session())
    t = hola.Trainer(m)
    tok = hola.Tokenizer("byte")
    calls = {
        m: [
            lambda: m.config,
            lambda: m.score("x"),
            lambda: m.generate("x"),
            lambda: m.stream("x"),
            m.session,
            lambda: m.backend,
        ]
        + [m.tensor_names, lambda: m.tensor("x"), lambda: m.save(tmp_path / "m"), lambda: hola.Trainer(m)]
        + [lambda: m.tokenizer, lambda: m.generate_batch(["x"]), lambda: m.astream("x"), lambda: copy.copy(m)]
        + [lambda: m.loglikelihood([([1], [2])]), lambda: m.num_parameters, m.__enter__],
        s: [lambda: s.feed([1]), lambda: s.position, lambda: s.logits, s.clone, s.reset, s.mark, lambda: s.rollback(1)]
        + [lambda: s.save(tmp_path / "s"), lambda: s.load(tmp_path / "s"), lambda: s.sample(), lambda: s.nbytes]
        + [lambda: s.seed, lambda: setattr(s, "seed", 1), lambda: s.recent(1), lambda: hola.step([s], [1])]
        + [lambda: s.kept(0, 0), lambda: hola.History(s), lambda: s.feed_each([1]), lambda: s.score([1], [2])],
        h: [lambda: h.feed([1]), h.keep, lambda: h.prompt([1]), lambda: h.rollback(1)],
        t: [lambda: t.accumulate([1, 2]), lambda: t.evaluate([1, 2]), lambda: t.update(1.0)],
        tok: [lambda: tok.encode("x"), lambda: tok.decode([1]), lambda: tok.vocab_size, lambda: tok.bos_id],
    }
    for thing in (t, h, s, m, tok):
        assert not thing.closed
        thing.close()
        thing.close()
        assert thing.closed
        for i, call in enumerate(calls[thing]):
            with pytest.raises(hola.InvalidArgument, match="closed"):
                call()
                pytest.fail(f"{thing}: {i}")
    assert not (tmp_path / "m").exists() and "closed" in repr(m)


def test_sessions_outlive_their_model(config):
    with make(config) as m:
        s, want = m.session(), m.session().feed([1, 2, 3])
        h = hola.History(m.session())
        stream = m.stream("x", max_tokens=5)
        with pytest.raises(hola.Error):
            raise hola.Error("x")
    assert m.closed
    assert np.array_equal(s.feed([1, 2, 3]), want) and np.array_equal(s.clone().feed([1]), s.feed([1]))
    assert np.array_equal(h.feed([1, 2, 3]), want)
    assert len(list(stream)) == 5
    del m
    gc.collect()
    assert s.position == 4


def test_copies(config, tiny):
    s = tiny.session(seed=2)
    s.feed([1, 2])
    for twin in (copy.copy(s), copy.deepcopy(s), s.clone()):
        assert twin is not s and twin.position == 2 and twin.seed == 2
        twin.feed([3])
    assert s.position == 2
    m = make(config)
    twin = copy.deepcopy(m)
    with hola.Trainer(m) as t:
        t.accumulate([1, 2, 3])
        t.update(0.1)
        for thing in (m, s, t, hola.History(tiny.session()), m.tokenizer):
            with pytest.raises(TypeError):
                pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.copy(t)
    assert np.array_equal(twin.score("abc"), make(config).score("abc")) and twin.tokenizer is m.tokenizer
    assert not np.array_equal(twin.score("abc"), m.score("abc"))


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_dropped_models_leave_no_memory():
    c = hola.Config(hidden_size=128, num_heads=2, head_dim=32, num_hidden_layers=1, vocab_size=3000)
    size = 4 * c.num_parameters

    def once():
        m = hola.Model.new(c, threads=1)
        s = m.session()
        s.feed([1, 2, 3])
        hola.History(m.session()).feed([1, 2])
        m.generate([1, 2], max_tokens=2)

    for _ in range(4):
        once()
    before = resident()
    for _ in range(40):
        once()
    assert resident() - before < 4 * size  # of 40: a leak of one in ten would show


def test_a_session_makes_threads_wait(tiny):
    s = tiny.session()
    errors = []

    def feed(k):
        try:
            for _ in range(30):
                s.feed([k, k])
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=feed, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and s.position == 240
    ids = s.recent(240).reshape(-1, 2)
    assert (ids[:, 0] == ids[:, 1]).all() and set(ids[:, 0]) == {0, 1, 2, 3}


def test_steps_do_not_block_each_other(tiny):
    a, b = tiny.session(), tiny.session()

    def run(sessions):
        for _ in range(60):
            hola.step(sessions, [1, 2])

    threads = [threading.Thread(target=run, args=(x,), daemon=True) for x in ([a, b], [b, a], [a, b], [b, a])]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    assert a.position == b.position == 240


def test_threads_get_their_own_errors(tiny):
    s = [tiny.session() for _ in range(4)]
    wrong = []

    def run(k):
        for _ in range(50):
            try:
                s[k].feed([61 + k])
                wrong.append("no error")
            except hola.InvalidArgument as e:
                if f"id {61 + k} " not in str(e):
                    wrong.append(str(e))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_training_beside_sessions(config):
    m = make(config)
    s, trainer = m.session(), hola.Trainer(m, max_tokens=64)
    stop = threading.Event()

    def chat():
        while not stop.is_set():
            s.feed([1, 2, 3])

    thread = threading.Thread(target=chat)
    thread.start()
    losses = [(trainer.accumulate(range(64)), trainer.update(1e-3))[0][0] for _ in range(15)]
    stop.set()
    thread.join()
    assert losses[-1] < losses[0] and s.position > 0


def python(code, **more):
    env = {**os.environ, "PYTHONPATH": str(Path(hola.__file__).parents[1]), **more}
    return [sys.executable, "-c", code], env


FORK = """
import os, sys, hola
c = hola.Config(hidden_size=32, num_heads=2, head_dim=16, num_hidden_layers=1, vocab_size=258)
m = hola.Model.new(c, threads=2, tokenizer="byte")
s = m.session()
s.feed([1, 2, 3])
trainer, tokenizer = hola.Trainer(m), m.tokenizer
child = os.fork()
if child == 0:
    said = []
    for call in (lambda: s.feed([1]), lambda: m.generate("x"), lambda: m.score("x"), lambda: s.position, m.session,
                 lambda: trainer.update(1.0), lambda: hola.step([s], [1]), lambda: m.config):
        try:
            call()
        except hola.Error as e:
            said.append("fork" in str(e))
    assert said == [True] * 8, said
    assert tokenizer.encode("hi").tolist() == [104, 105]
    new = hola.Model.new(c, threads=2, tokenizer="byte")   # its own works
    assert len(new.generate("x", max_tokens=3).ids) == 3
    s.close(), m.close()
    del s, m, trainer
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
s.feed([4])
assert s.position == 4
print("both")
"""


def test_fork():
    command, env = python(FORK)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "both", done.stderr


INTERRUPT = """
import sys, time, hola, numpy
class Endless(hola.Tokenizer):
    eos_id = -1
c = hola.Config(hidden_size=256, num_heads=4, head_dim=64, num_hidden_layers=4, vocab_size=258, eos_token_id=-1)
m = hola.Model.new(c, threads=1, tokenizer=Endless("byte"))
s = m.session()
ids = numpy.ones(4_000_000, int)
def stream():
    for piece in m.stream("x", max_tokens=10**9, min_p=0.0):
        pass
what = dict(feed=lambda: s.feed(ids), score=lambda: m.score(ids), stream=stream,
            generate=lambda: m.generate("x", max_tokens=10**9, stop="\\0\\1\\2\\3\\4\\5"),
            prompt=lambda: m.generate(ids, max_tokens=1),
            history=lambda: hola.History(s).prompt(ids))[sys.argv[1]]
print("begin", flush=True)
try:
    what()
    print("done 0 0", flush=True)
except KeyboardInterrupt:
    print("interrupted", s.position, time.process_time(), flush=True)
"""


def processor_seconds(pid):
    """Of a process so far: other work on the machine does not count."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("what", ["feed", "score", "generate", "stream", "prompt", "history"])
def test_interrupt(what):
    command, env = python(INTERRUPT)
    with subprocess.Popen([*command, what], env=env, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline() == "begin\n"
            begin = processor_seconds(program.pid)
            while program.poll() is None and processor_seconds(program.pid) < begin + 0.5:
                time.sleep(0.05)
            begin = processor_seconds(program.pid)
            program.send_signal(signal.SIGINT)
            said = program.stdout.readline().split()
            took = float(said[2]) - begin
        finally:
            program.kill()
    assert said[0] == "interrupted" and took < 1, (said, took)
    if what == "feed":
        assert 0 < int(said[1]) < 4_000_000
