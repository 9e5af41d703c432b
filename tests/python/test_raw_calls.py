"""hola.torch's binding of include/hola_ops.h (hola/torch/_raw.py, which needs no torch) on an emulated device, with
NumPy's arrays for device memory: structs, sizes, workspace, forward and backward calls of every op."""

import ctypes
import importlib.util
import os
import pathlib

import numpy as np
import pytest

FILE = pathlib.Path(__file__).parents[2] / "python" / "hola" / "torch" / "_raw.py"


@pytest.fixture(scope="module")
def raw():
    spec = importlib.util.spec_from_file_location("hola_raw", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def library(raw):
    path = os.environ.get("HOLA_EMULATED", "")
    if not os.path.isfile(path):
        pytest.skip("libhola-emu.so is not built (HOLA_EMULATED)")
    return raw.Library(path)


def aligned(n):
    """n bytes of poison on 256 bytes, guarded behind."""
    memory = np.full(n + 512, 0xFF, np.uint8)
    at = -memory.ctypes.data % 256
    memory[at + n :] = 0xA5
    return memory, at


def call(raw, library, op, backward, rows, numbers, arrays):
    args = raw.shape_args(op, rows, numbers)
    kept, work = library.bytes(op, args, 0, backward)
    memory, at = aligned(work)
    for name, x in arrays.items():
        assert x.ctypes.data % 16 == 0
        setattr(args, name, x.ctypes.data)
    library.run(op, raw.where_of(0, None, memory.ctypes.data + at, work), args, backward)
    assert (memory[at + work :] == 0xA5).all(), "written past the workspace"
    return kept


def numbers_of(K, V, HV, **more):
    return dict(H=1, K=K, V=V, dtype=0, scale=0.5, **more, **({"HV": HV} if HV else {}))


def recurrence(q, k, v, g, beta, scale):
    T, HV, V = v.shape
    K = q.shape[2]
    S, out = np.zeros((HV, K, V)), np.zeros((T, HV, V))
    for t in range(T):
        decay = np.exp(g[t].astype(float))
        S = S * (decay[:, None, None] if g.ndim == 2 else decay[:, :, None])
        w = v[t].astype(float)
        if beta is not None:
            w = beta[t][:, None] * (w - np.einsum("k,hkv->hv", k[t, 0], S))
        S = S + k[t, 0][None, :, None] * w[:, None, :]
        out[t] = scale * np.einsum("k,hkv->hv", q[t, 0], S)
    return out, S


@pytest.mark.parametrize("op", ["gdn", "kda", "gla"])
def test_recurrences(raw, library, op):
    T, HV, K, V = 20, 1 if op == "gla" else 2, 8, 12
    random = np.random.default_rng(1)
    make = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    x = dict(q=make(T, 1, K), k=make(T, 1, K) / 4, v=make(T, HV, V))
    x["g"] = -np.abs(make(T, HV) if op == "gdn" else make(T, HV, K))
    numbers = numbers_of(K, V, None if op == "gla" else HV, **({"HK": 1} if op == "gla" else {}))
    if op != "gla":
        x["beta"] = np.abs(make(T, HV)) / 2
    fill = lambda *shape: np.full(shape, np.nan, np.float32)  # noqa: E731
    got = dict(out=fill(T, HV, V), ht=fill(1, HV, K, V))
    size = library.bytes(op, raw.shape_args(op, (T, 1, 0, 0), numbers), 0, False)[0]
    memory, at = aligned(size)
    kept = {} if op == "gla" else {"kept": memory[at:]}
    assert (size == 0) == (op == "gla")
    call(raw, library, op, False, (T, 1, 0, 0), numbers, {**x, **got, **kept})
    out, state = recurrence(*(x[n] for n in "qkvg"), x.get("beta"), 0.5)
    assert np.abs(got["out"] - out).max() < 1e-4 and np.abs(got["ht"][0] - state).max() < 1e-4
    assert np.abs(recurrence(x["q"], -x["k"], x["v"], x["g"], None, 0.5)[0] - out).max() > 1e-2
    grads = {f"d{n}": fill(*y.shape) for n, y in x.items()}
    dout = make(T, HV, V)
    call(raw, library, op, True, (T, 1, 0, 0), numbers, {**x, **kept, **grads, "dout": dout})
    assert all(np.isfinite(y).all() for y in grads.values())
    dv = np.zeros_like(x["v"])
    for t, h, i in ((0, 0, 0), (T - 1, HV - 1, V - 1)):  # two of them by differences
        sums = []
        for step in (1e-3, -1e-3):
            moved = x["v"].astype(float)
            moved[t, h, i] += step
            sums.append((recurrence(x["q"], x["k"], moved, x["g"], x.get("beta"), 0.5)[0] * dout).sum())
        dv[t, h, i] = (sums[0] - sums[1]) / 2e-3
        assert abs(grads["dv"][t, h, i] - dv[t, h, i]) < 1e-3 * (1 + abs(dv[t, h, i]))
    if size:
        assert (memory[at + size :] == 0xA5).all(), "written past kept"


def test_memory(raw, library):
    """Without scores, keys of 0 and a sink of 0: the mean of the block's values up to the row, and of the sink's 0."""
    T, V, chunk = 7, 4, 16
    x = dict(q=np.zeros((T, 1, 4), np.float32), k=np.zeros((T, 1, 4), np.float32),
             v=np.random.default_rng(2).standard_normal((T, 1, V)).astype(np.float32), sink=np.zeros(4, np.float32))
    out = np.full((T, 1, V), np.nan, np.float32)
    numbers = numbers_of(4, V, 1, window=2, chunk=chunk, evict=raw.EVICT["recency"])
    call(raw, library, "cache", False, (T, 1, 0, 0), numbers, {**x, "out": out})
    want = x["v"].cumsum(0) / (np.arange(T)[:, None, None] + 2)
    assert np.abs(out - want).max() < 1e-6


def test_lengths(raw, library):
    """cu of either width; sizes depend on whether it is there, and nobody looks at its stand-in."""
    for bits, kind in ((32, np.int32), (64, np.int64)):
        T, cu = 6, np.array([0, 2, 2, 6], kind)
        args = raw.shape_args("gla", (T, 3, 0, bits), numbers_of(4, 4, None, HK=1))
        _, work = library.bytes("gla", args, 0, False)
        memory, at = aligned(work)
        x = [np.ones((T, 1, 4), np.float32) for _ in range(3)] + [np.zeros((T, 1, 4), np.float32)]
        out = np.full((T, 1, 4), np.nan, np.float32)
        for name, y in zip(("q", "k", "v", "g", "out"), (*x, out)):
            setattr(args, name, y.ctypes.data)
        args.rows.cu = cu.ctypes.data
        library.run("gla", raw.where_of(0, None, memory.ctypes.data + at, work), args, False)
        assert out[:, 0, 0].tolist() == [2, 4, 2, 4, 6, 8]


def test_refused(raw, library, tmp_path):
    args = raw.shape_args("gdn", (5, 2, 0, 0), numbers_of(4, 4, 1, gate_dtype=0))
    with pytest.raises(RuntimeError, match="hola_gdn_kept_bytes: rows: 5 rows are not 2 sequences"):
        library.bytes("gdn", args, 0, False)
    args = raw.shape_args("gdn", (4, 2, 0, 0), numbers_of(4, 4, 1, gate_dtype=0))
    with pytest.raises(RuntimeError, match="hola_gdn_forward: q is NULL"):
        library.run("gdn", raw.where_of(0, None, 0, 0), args, False)
    with pytest.raises(raw.Missing, match="none.so"):
        raw.Library(str(tmp_path / "none.so"))
    assert {n: ctypes.sizeof(s) for n, s in raw.STRUCTS.items()}["hola_where"] == 32
