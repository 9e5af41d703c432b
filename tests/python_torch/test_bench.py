"""bench/compare_fla.py and bench/compare_flame.py: arguments, tables, files, and dry runs to their end."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

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
    for main, arguments, text in ((fla.main, ["gsa"], "gsa is not one of gdn, kda, gla, attention"),
                                  (fla.main, ["--turns", "0"], "above 0"), (flame.main, ["--steps", "0"], "above 0"),
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


def test_tables(bench):
    fla, flame = bench
    rows = [{"op": "gdn", "shape": (16, 2048, 4, 256, 256), "lengths": 0, "hola_forward_ms": 0.25,
             "other_forward_ms": 1.0, "hola_backward_ms": 1.0, "other_backward_ms": 0.5, "difference": 0.5, "same_bits": False,
             "host_us": 80.0},
            {"op": "kda", "shape": (1, 64, 1, 64, 64), "lengths": 3, "other": "fla",
             "other_failed": "OutOfResources: shared",
             "hola_forward_ms": 2.0, "hola_backward_ms": 3.0}]
    text = fla.report(rows)
    assert "| gdn | 16 x 2048, 4 x 256, 256 | 0.25 | 1 | 4 | 1 | 0.5 | 0.5 |" in text
    assert "target 0.32 / 0.65; outputs differ by 0.5; other bits on another stream; host 80 us" in text
    assert "1 x 64 in 3" in text and "fla: OutOfResources: shared" in text and "slower in 1 of 2 comparisons" in text
    ways = {"fla": dict(tokens_per_s=[1.0, 100.0, 100.0], losses=[9.0, 8.0, 7.0], device_gb=2.0, allocated_gb=1.0),
            "fla-patched": dict(tokens_per_s=[1.0, 150.0, 150.0], losses=[9.0, 8.0, 6.0], device_gb=2.0,
                                allocated_gb=1.0),
            "hola": {"failed": "no such thing"}}
    assert flame.result_of('x\n{"losses": [1]}\n{"los', "took 3 s") == {"losses": [1], "ended": "took 3 s"}
    assert flame.result_of("nonsense", "") == {"failed": "it said nothing"}
    text = flame.report(ways, 1)
    assert "| fla-patched | 150 | 1.5 | 2 | 1 | 9 | 7.67 |" in text and "no such thing" in text
    rate = [flame.learning_rate(i, 200) for i in range(200)]
    assert rate[0] == pytest.approx(flame.LR / 20) and max(rate) == pytest.approx(flame.LR) and rate[-1] < 1.02 * max(
        rate) * flame.MIN_LR


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


def fake_fla(folder):
    """A package fla whose gdn ends the process the first time, whose kda does not end, and whose gla works."""
    ops = folder / "fla" / "ops"
    ops.mkdir(parents=True)
    for path in (folder / "fla" / "__init__.py", ops / "__init__.py", folder / "fla" / "layers.py"):
        path.write_text("")
    for module, name, what in (("gated_delta_rule", "chunk_gated_delta_rule", "os.abort()"),
                               ("kda", "chunk_kda", "time.sleep(600)"), ("gla", "chunk_gla", "")):
        (ops / f"{module}.py").write_text(FAKE.format(name=name, misbehaves=bool(what), what=what or "pass"))


def test_compare_fla(tmp_path):
    """What ends a worker, or takes too long, costs its own half of a row; hola's figures of it are there."""
    out = tmp_path / "fla.json"
    fake_fla(tmp_path)
    got = subprocess.run([sys.executable, BENCH / "compare_fla.py", "--dry-run", "--json", out, "--row-limit", "12",
                          "--start-limit", "60", "--fla", tmp_path], capture_output=True, text=True,
                         env={**os.environ, "FAKE_FLA": str(tmp_path)})
    assert got.returncode == 0, got.stderr[-2000:]
    rows = json.loads(out.read_text())["rows"]
    assert [r["op"] for r in rows] == ["gdn", "kda", "gla", "attention", "gdn"] and all(r["same_bits"] for r in rows)
    assert all(r["hola_forward_ms"] > 0 and r["hola_backward_ms"] > 0 for r in rows)
    assert "ended with status -6" in rows[0]["other_failed"] and "more than 12 s" in rows[1]["other_failed"]
    for row in rows[2:]:
        assert row["other_forward_ms"] > 0 and row["other_backward_ms"] > 0 and row["difference"] < 0.01
    assert "of 6 comparisons" in got.stdout, got.stdout
    got = subprocess.run([sys.executable, BENCH / "compare_fla.py", "--dry-run", "gla", "--budget", "0.01"],
                         capture_output=True, text=True)
    assert got.returncode == 0 and got.stdout.count("| gla |") == 2  # one as it comes, and in the table


def test_compare_flame(program, tmp_path):
    """A way that cannot run is a line with its reason, and the others go on."""
    pytest.importorskip("transformers", "5.0")
    (tmp_path / "fla").mkdir()
    (tmp_path / "fla" / "__init__.py").write_text("raise ImportError('no such fla')\n")
    out = tmp_path / "flame.json"
    got = subprocess.run([sys.executable, BENCH / "compare_flame.py", "--dry-run", "--json", out, "--fla", tmp_path,
                          "--hola", program, "--ways", "fla", "hola", "hola-train"], capture_output=True, text=True)
    assert got.returncode == 0, got.stderr[-2000:]
    ways = json.loads(out.read_text())["ways"]
    assert list(ways) == ["fla", "hola", "hola-train"] and "no such fla" in ways["fla"]["failed"]
    for way in ("hola", "hola-train"):
        assert len(ways[way]["losses"]) == 4 and all(4 < x < 8 for x in ways[way]["losses"]), ways[way]
        assert all(x > 0 for x in ways[way]["tokens_per_s"])
    assert "| hola-train |" in got.stdout
    got = subprocess.run([sys.executable, BENCH / "compare_flame.py", "--dry-run", "--json", out, "--hola", program,
                          "--ways", "hola", "--limit", "1"], capture_output=True, text=True)
    assert got.returncode == 0 and "took more than 1 s" in json.loads(out.read_text())["ways"]["hola"]["failed"]
