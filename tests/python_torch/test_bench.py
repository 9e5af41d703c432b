"""bench/compare_fla.py and bench/compare_flame.py: arguments, tables, files, and dry runs to their end."""

import json
import os
import pathlib
import subprocess
import sys
import tarfile
import time

import pytest
import torch

BENCH = pathlib.Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    import compare_fla
    import compare_flame

    return compare_fla, compare_flame


def test_arguments(bench, capsys, tmp_path):
    fla, flame = bench
    for main, arguments, text in ((fla.main, ["abc"], "abc is not one of gdn, kda, gla, gsa, attention"),
                                  (fla.main, ["gdn:x"], "how many shapes is a number"),
                                  (fla.main, ["--turns", "0"], "above 0"),
                                  (fla.main, ["--tune-ms", "0"], "above 0"), (flame.main, ["--steps", "0"], "above 0"),
                                  (flame.main, ["--ways", "fla2"], "invalid choice")):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2 and text in capsys.readouterr().err
    for main in (fla.main, flame.main):
        with pytest.raises(SystemExit, match="there is no package fla in it"):
            main(["--fla", str(tmp_path), "--dry-run"])
    with pytest.raises(SystemExit, match="not a program"):
        flame.main(["--hola", str(tmp_path / "none"), "--dry-run"])
    assert len(fla.SHAPES["gdn"]) == 20 and all(len(set(s)) == len(s) for s in fla.SHAPES.values())
    sizes = [(B * max(1, n), T, H, K) for B, T, H, K, _, n in fla.SHAPES["gdn"]]
    assert {s[3] for s in sizes} == {64, 128, 256} and min(sizes)[0] == 1 and max(sizes)[0] == 64
    assert {min(s[1] for s in sizes), max(s[1] for s in sizes)} == {512, 32768}
    assert {min(s[2] for s in sizes), max(s[2] for s in sizes)} == {2, 32}


def test_tables(bench, tmp_path):
    fla, flame = bench
    rows = [{"op": "gdn", "shape": (16, 2048, 4, 256, 256), "lengths": 0, "hola_forward_ms": 0.25,
             "other_forward_ms": 1.0, "hola_backward_ms": 1.0, "other_backward_ms": 0.5, "difference": 0.5, "same_bits": False,
             "host_us": 80.0},
            {"op": "kda", "shape": (1, 64, 1, 64, 64), "lengths": 3, "other": "fla",
             "other_failed": "OutOfResources: shared",
             "hola_forward_ms": 2.0, "hola_backward_ms": 3.0}]
    rows.append({"op": "gsa", "shape": (32, 2048, 4, 128, 128), "lengths": 0, "other_backward_failed": "RuntimeError: no"})
    said = tmp_path / "gla.txt"
    said.write_text("gla  32 x   2048, 4 heads x 128, 128: forward 0.226 ms, backward 0.803 ms\n"
                    "gsa  16 x   2048, 4 heads x 256, 256, 64 slots: forward 9.1 ms, backward 9.2 ms\n"
                    "gsa  32 x   2048, 4 heads x 128, 128, 64 slots: forward 0.299 ms, backward 0.986 ms\n")
    rows[-1].update(fla.of_bench_gla(str(said), rows[-1]["shape"]))
    assert fla.of_bench_gla(str(said), (1, 2048, 4, 128, 128)) == {} == fla.of_bench_gla(None, rows[-1]["shape"])
    text = fla.report(rows)
    assert "| gsa | 32 x 2048, 4 x 128, 128 | 0.299 |  |  | 0.986 |  |  | fla backward: RuntimeError: no; " in text
    assert "| gdn | 16 x 2048, 4 x 256, 256 | 0.25 | 1 | 4 | 1 | 0.5 | 0.5 |" in text
    assert "target 0.32 / 0.65; outputs differ by 0.5; other bits on another stream; host 80 us" in text
    assert "1 x 64 in 3" in text and "fla: OutOfResources: shared" in text and "slower in 1 of 2 comparisons" in text
    timed = lambda speed: dict(tokens_per_s=[1.0] + [speed] * 3, losses=[9.0] * 4, allocated_gb=1.0)  # noqa: E731
    ways = {"fla": dict(timed=timed(100.0), device_gb=2.0),
            "fla-patched": dict(timed={**timed(150.0), "triton": {"compiled": 7}}, device_gb=2.0,
                                losses=dict(losses=[9.0, 8.0, 6.0])),
            "hola": {"failed": "no such thing"}}
    text = flame.report(ways, 1)
    assert "| fla-patched | 150 | 1.5 | 2 | 1 | 9 | 7.67 | 3 | Triton compiled 7 kernels |" in text
    assert "no such thing" in text
    import compare_tables

    way = sys.modules["compare_flame_way"]
    rate = [way.learning_rate(i, 200) for i in range(200)]
    assert rate[0] == pytest.approx(way.LR / 20) and max(rate) == pytest.approx(way.LR) and rate[-1] < 1.02 * max(
        rate) * way.MIN_LR
    text = compare_tables.of_flame({"settings": {"warm": 1, "refused": True}, "ways": ways})
    assert "| fla | 100 † | 1.00 | 2.0 | 1.0 |" in text and "| fla-patched | 150 | 1.50 |" in text
    text = compare_tables.of_fla({"versions": {"lifted": True}, "rows": rows})
    assert "| delta rule, 16 x 2,048, 4 x 256 | 0.250 | 1.000 | 4.00 | 1.000 | 0.500 † | 0.50 |" in text
    assert "hola is slower: delta rule, 16 x 2,048, 4 x 256: backward" in text and "| 0.986 | refused |" in text


FAKE = """
import os, time
from hola.torch import {name} as own

def {name}(q, *more, **given):
    mark = os.environ["FAKE_FLA"] + "/{name}"
    if {misbehaves} and not os.path.exists(mark):
        open(mark, "w").close()
        {what}
    return own(q, *more, **given)
"""


NO_BACKWARD = """
import torch

class Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *x):
        return sum(y.float().sum() for y in x) + x[2]

    @staticmethod
    def backward(ctx, d):
        raise RuntimeError("refused\\nmore")

def chunk_gsa(q, k, v, s, g, cu_seqlens):
    return Refused.apply(q, k, v, s, g), None
"""


KERNELS = """
import json, pathlib, sys
import compare_cache, compare_compile, compare_pretend
import torch, triton, triton.language as tl

compare_pretend.pretend()
assert torch.cuda.get_device_capability() == (9, 0)
print(compare_cache.take_key(), file=sys.stderr)

def refuse(arguments):
    raise RuntimeError("no")

tally = compare_compile.compile_only(pathlib.Path(sys.argv[sys.argv.index("--claims") + 1]))
configs = [triton.Config({"N": n}, num_warps=w) for n, w in ((32, 1), (64, 1), (64, 2))]

@triton.autotune(configs=configs + [triton.Config({"N": 128}, pre_hook=refuse)], key=["size"])
@triton.jit
def add(x, size, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(x + i, tl.load(x + i, i < size) + 1, i < size)

x = torch.zeros(100)
add[(4,)](x, 100)
assert x.sum() == 0
print(json.dumps(tally.__dict__))
"""


def fake_fla(folder):
    """A package fla whose gdn ends the process the first time, whose kda does not end, whose gla works, and whose gsa
    refuses the backward pass."""
    ops = folder / "fla" / "ops"
    ops.mkdir(parents=True)
    for path in (folder / "fla" / "__init__.py", ops / "__init__.py", folder / "fla" / "layers.py"):
        path.write_text("")
    for module, name, what in (("gated_delta_rule", "chunk_gated_delta_rule", "os.abort()"),
                               ("kda", "chunk_kda", "time.sleep(600)"), ("gla", "chunk_gla", "")):
        (ops / f"{module}.py").write_text(FAKE.format(name=name, misbehaves=bool(what), what=what or "pass"))
    (ops / "gsa.py").write_text(NO_BACKWARD)


def test_compare_fla(tmp_path):
    """What ends a worker, or takes too long, costs its own half of a row; hola's figures of it are there."""
    out = tmp_path / "fla.json"
    fake_fla(tmp_path)
    got = subprocess.run([sys.executable, BENCH / "compare_fla.py", "--dry-run", "--json", out, "--row-limit", "12",
                          "--start-limit", "60", "--fla", tmp_path], capture_output=True, text=True,
                         env={**os.environ, "FAKE_FLA": str(tmp_path)})
    assert got.returncode == 0, got.stderr[-2000:]
    rows = json.loads(out.read_text())["rows"]
    assert [r["op"] for r in rows] == ["gdn", "kda", "gla", "gsa", "attention", "gdn"]
    gsa = rows.pop(3)
    assert gsa["other_backward_failed"] == "RuntimeError: refused" and "other_backward_ms" not in gsa
    assert gsa["other_forward_ms"] > 0 and "other_failed" not in gsa and not any(k.startswith("hola_") for k in gsa)
    assert all(r["same_bits"] and r["hola_forward_ms"] > 0 and r["hola_backward_ms"] > 0 for r in rows)
    assert "ended with status -6" in rows[0]["other_failed"] and "more than 12 s" in rows[1]["other_failed"]
    for row in rows[2:]:
        assert row["other_forward_ms"] > 0 and row["other_backward_ms"] > 0 and row["difference"] < 0.01
    assert "of 6 comparisons" in got.stdout, got.stdout


def test_budget(tmp_path):
    """All ends when it is spent: the shape at hand keeps what it had, and the others are not begun."""
    out = tmp_path / "fla.json"
    fake_fla(tmp_path)
    start = time.monotonic()
    got = subprocess.run([sys.executable, BENCH / "compare_fla.py", "--dry-run", "--json", out, "--budget", "20", "--fla",
                          tmp_path, "kda", "gla:1"], capture_output=True, text=True,
                         env={**os.environ, "FAKE_FLA": str(tmp_path)})
    assert got.returncode == 0 and 20 < time.monotonic() - start < 50, got.stderr[-2000:]
    row, = json.loads(out.read_text())["rows"]
    assert row["op"] == "kda" and row["hola_forward_ms"] > 0 and row["other_failed"] == "the time was up (--budget)"
    assert "1 shapes were not begun" in got.stdout and got.stdout.count("| kda |") == 2  # as it comes, and in the table


def test_compile(tmp_path, bench, monkeypatch):
    """Every candidate is compiled by one of two processes, with its launcher, and none is launched."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(BENCH))
    (tmp_path / "kernels.py").write_text(KERNELS)
    import compare_compile

    def compiled(n):
        said = tmp_path / "said"
        with open(said, "w") as file:
            monkeypatch.setattr(compare_compile, "print", lambda *x, **_: print(*x, file=file), raising=False)
            assert compare_compile.in_processes([sys.executable, str(tmp_path / "kernels.py")], n, 300) == 0
        return said.read_text(), len(list(tmp_path.glob("cache/*/add.cubin")))

    said, cubins = compiled(2)
    assert cubins == 3 and "compiled 3 kernels and 1 launchers" in said and "of 2 processes; 0 were there" in said, said
    assert "not: {'RuntimeError': 2}" in said, said  # a candidate that is refused, in each process
    before = {x: x.stat().st_mtime_ns for x in tmp_path.glob("cache/*/*.cubin")}
    assert compiled(1)[1] == 3 and before == {x: x.stat().st_mtime_ns for x in before}  # all are found


def test_cache(tmp_path, bench, monkeypatch):
    """What is packed is found in another folder, also by another build of Triton; the text of the stages is left out."""
    pytest.importorskip("triton")
    import compare_cache

    monkeypatch.setenv("PYTHONPATH", str(BENCH))
    (tmp_path / "kernels.py").write_text(KERNELS)

    def compiled(cache):
        got = subprocess.run([sys.executable, tmp_path / "kernels.py", "--claims", tmp_path / cache.name[0]],
                             capture_output=True, text=True, env={**os.environ, "TRITON_CACHE_DIR": str(cache)})
        assert got.returncode == 0, got.stderr[-2000:]
        return json.loads(got.stdout.splitlines()[-1]), got.stderr

    for name in "abcd":
        (tmp_path / name).mkdir()
    assert compiled(tmp_path / "a-first")[0]["compiled"] == 3
    archive = tmp_path / "cache.tar.xz"
    next(tmp_path.glob("a-first/*/add.cubin")).with_name("add.autotune.json").write_text("{}")  # of another device
    assert compare_cache.pack(tmp_path / "a-first", archive) == 3
    assert compare_cache.unpack(archive, tmp_path / "b-second") == 3
    kinds = sorted(x.name for x in tmp_path.glob("b-second/*/*"))
    assert kinds == ["__grp__add.json"] * 3 + ["add.cubin"] * 3 + ["add.json"] * 3
    tally, _ = compiled(tmp_path / "b-second")
    assert tally["found"] == 3 and tally["compiled"] == 0
    for number, (name, change, found, said) in enumerate((("c-build", "triton", 0, "another build's (triton)"),
                                                          ("d-version", "version", 0, "all is compiled anew"))):
        compare_cache.unpack(archive, tmp_path / name)
        key = json.loads((tmp_path / name / "KEY.json").read_text())
        (tmp_path / name / "KEY.json").write_text(json.dumps({**key, change: "other"}))
        tally, note = compiled(tmp_path / name)
        assert said in note and tally["found"] == (0, 3)[number], (note, tally)
    with pytest.raises(SystemExit, match="does not belong"):
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(tmp_path / "kernels.py", "../x")
        compare_cache.unpack(archive, tmp_path / "b-second")


def test_tune_for(bench, monkeypatch):
    """Triton's own timing of a candidate, for fewer milliseconds; a kernel's own is left alone."""
    pytest.importorskip("triton")
    import compare_compile
    import triton.testing
    from triton.runtime.autotuner import Autotuner

    monkeypatch.setattr(triton.testing, "do_bench", lambda f, **given: (f(), given))
    monkeypatch.setattr(Autotuner, "do_bench", Autotuner.__dict__["do_bench"])  # and back afterwards
    compare_compile.tune_for(20)
    tuner = Autotuner.__new__(Autotuner)
    tuner._do_bench = None
    assert tuner.do_bench(lambda: 7, quantiles=(0.5,)) == (7, {"warmup": 5, "rep": 20, "quantiles": (0.5,)})
    tuner._do_bench = len
    assert tuner.do_bench("abc") == 3


def test_compare_flame(program, tmp_path):
    """A way that cannot run is a line with its reason, and the others go on; each begins from the same weights twice."""
    pytest.importorskip("transformers", "5.0")
    (tmp_path / "fla").mkdir()
    (tmp_path / "fla" / "__init__.py").write_text("raise ImportError('no such fla')\n")
    out = tmp_path / "flame.json"

    def run(*arguments):
        got = subprocess.run([sys.executable, BENCH / "compare_flame.py", "--dry-run", "--json", out, "--hola", program,
                              *arguments], capture_output=True, text=True)
        assert got.returncode == 0, got.stderr[-2000:]
        return json.loads(out.read_text())["ways"], got.stdout

    ways, said = run("--fla", tmp_path, "--ways", "fla", "hola", "hola-train", "--loss-steps", "2", "--loss-batch", "1")
    assert list(ways) == ["fla", "hola", "hola-train"] and "no such fla" in ways["fla"]["failed"]
    for way in ("hola", "hola-train"):
        for phase, steps in (("timed", 4), ("losses", 2)):
            assert len(ways[way][phase]["losses"]) == steps and all(4 < x < 8 for x in ways[way][phase]["losses"])
            assert all(x > 0 for x in ways[way][phase]["tokens_per_s"]) and ways[way][phase]["done"]
    assert said.count("| hola-train |") == 2  # as it comes, and in the table
    again, _ = run("--ways", "hola", "--loss-ways")
    assert again["hola"]["timed"]["losses"] == ways["hola"]["timed"]["losses"] and "losses" not in again["hola"]
    ways, _ = run("--ways", "hola", "hola-train", "--budget", "1")
    assert "took more than 1.0 s" in ways["hola"]["failed"] and "not begun" in ways["hola-train"]["failed"]


def test_second_phase(tmp_path, bench, monkeypatch):
    """The losses are those of a model that has made no steps before."""
    pytest.importorskip("transformers", "5.0")
    import numpy

    way = sys.modules["compare_flame_way"]
    head = numpy.zeros(256, "<i4")
    head[:3] = 20240520, 1, 4000
    with open(tmp_path / "train_0.bin", "wb") as file:
        file.write(head.tobytes() + numpy.random.default_rng(0).integers(0, 300, 4000).astype("<u2").tobytes())

    def losses(steps):
        a = bench[1].arguments().parse_args(["--way", "hola", "--size", "tiny", "--data", str(tmp_path), "--batch", "2",
                                             "--seq-len", "32", "--loss-batch", "1", "--loss-seq-len", "16",
                                             "--loss-steps", "3", "--steps", str(steps)])
        return list(way.Trainer(a).train())[-1]["losses"]["losses"]

    one = losses(1)
    assert len(one) == 3 and one == losses(6)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", lambda self, state: None)  # goes on with the trained weights
    assert one != losses(6)
