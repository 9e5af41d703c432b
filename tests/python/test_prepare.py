"""hola.prepare: the same shards from every kind of source."""

import gzip
import json
import lzma
import os
import sys

import numpy as np
import pytest

import hola

TEXTS = ["first text", "zweiter, mit ü", "3rd\nwith lines", 'quotes " and \\', ""]


def tokens(folder):
    found = []
    for file in sorted(folder.glob("*.bin")):
        found += np.fromfile(file, np.uint16)[512:].tolist()
    return found


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    folder = tmp_path_factory.mktemp("want")
    said = hola.prepare(TEXTS, folder / "d", "byte", val=0.0)
    assert said["documents"] == 4 and said["empty"] == 1
    ids = tokens(folder / "d")
    assert ids == [i for t in TEXTS if t for i in [256, *t.encode()]]
    return ids


def jsonl(path, column="text"):
    lines = "".join(json.dumps({column: t, "other": 1}) + "\n" for t in TEXTS)
    opened = gzip.open if path.suffix == ".gz" else lzma.open if path.suffix == ".xz" else open
    with opened(path, "wt", encoding="utf-8") as f:
        f.write(lines)
    return path


def test_iterables(want, tmp_path):
    hola.prepare((t for t in TEXTS), tmp_path / "a", hola.Tokenizer("byte"), val=0.0, threads=1)
    hola.prepare([{"body": t} for t in TEXTS], tmp_path / "b", "byte", column="body", val=0.0)
    assert tokens(tmp_path / "a") == want == tokens(tmp_path / "b")


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.xz"])
def test_files(want, tmp_path, name):
    path = jsonl(tmp_path / name, "body")
    for i, source in enumerate((path, str(path), str(tmp_path / "x.json*"))):
        hola.prepare(source, tmp_path / f"d{i}", "byte", "body", val=0.0)
        assert tokens(tmp_path / f"d{i}") == want
    (tmp_path / "folder").mkdir()
    jsonl(tmp_path / "folder" / name)
    hola.prepare(tmp_path / "folder", tmp_path / "f", "byte", val=0.0)
    assert tokens(tmp_path / "f") == want


def test_text_files(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo")
    with gzip.open(tmp_path / "b.txt.gz", "wt") as f:
        f.write("three")
    hola.prepare(tmp_path / "*.txt*", tmp_path / "d", "byte", val=0.0)
    assert tokens(tmp_path / "d") == [256, *b"one\ntwo", 256, *b"three"]


def test_tables(want, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"n": range(len(TEXTS)), "text": TEXTS})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    sources = [table, tmp_path / "t.parquet", str(tmp_path / "*.parquet"), pq.ParquetFile(tmp_path / "t.parquet")]
    sources.append(pa.RecordBatchReader.from_batches(table.schema, table.to_batches(2)))
    for i, source in enumerate(sources):
        hola.prepare(source, tmp_path / str(i), "byte", val=0.0)
        assert tokens(tmp_path / str(i)) == want, i
    for source in (table, tmp_path / "t.parquet"):
        with pytest.raises(hola.InvalidArgument, match="no column 'body'; there are n, text"):
            hola.prepare(source, tmp_path / "none", "byte", column="body")
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(hola.FormatError, match="bad.parquet"):
        hola.prepare(tmp_path / "bad.parquet", tmp_path / "none", "byte")
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(not os.environ.get("HOLA_TEST_LM_EVAL"), reason="slow: HOLA_TEST_LM_EVAL=1 runs it")
def test_hugging_face_datasets(want, tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"n": list(range(len(TEXTS))), "text": TEXTS})
    for i, source in enumerate((whole, whole.to_iterable_dataset())):
        hola.prepare(source, tmp_path / str(i), "byte", val=0.0)
        assert tokens(tmp_path / str(i)) == want
    with pytest.raises(TypeError, match="name one of train"):
        hola.prepare(datasets.DatasetDict(train=whole), tmp_path / "none", "byte")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(hola.NotSupported, match="pip install pyarrow"):
        hola.prepare(tmp_path / "t.parquet", tmp_path / "d", "byte")


def failing():
    yield "good"
    raise KeyError("the source failed")


@pytest.mark.parametrize(
    "source, kind",
    [
        (3, TypeError),
        (None, TypeError),
        (b"text", TypeError),
        ([1, 2], TypeError),
        (["good", 2.5], TypeError),
        ({"train": ["x"], "test": ["y"]}, TypeError),
        ([{"body": "x"}], ValueError),
        (failing(), KeyError),
        ("nowhere.jsonl", OSError),
        ([], hola.Error),
    ],
)
def test_wrong_sources_leave_nothing(tmp_path, monkeypatch, source, kind):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind):
        hola.prepare(source, tmp_path / "d", "byte")
    assert not list(tmp_path.glob("**/*.bin")) and not (tmp_path / "d" / "dataset.json").exists()


def test_wrong_options(tmp_path):
    for options, kind in (
        (dict(column=3), TypeError),
        (dict(val="x"), TypeError),
        (dict(val=0.9), hola.Error),
        (dict(seed=-1), ValueError),
        (dict(force=1), TypeError),
        (dict(colour=1), TypeError),
    ):
        with pytest.raises(kind):
            hola.prepare(["x"], tmp_path / "d", "byte", **options)
    with pytest.raises(hola.Error, match="none"):
        hola.prepare(["x"], tmp_path / "d", tmp_path / "none")
    with pytest.raises(TypeError):
        hola.prepare(["x"], None, "byte")
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(hola.NotSupported, match="csv"):
        hola.prepare(tmp_path / "x.csv", tmp_path / "d", "byte")
    (tmp_path / "y.jsonl.gz").write_bytes(gzip.compress(b'{"text": 3}\n'))
    with pytest.raises(hola.FormatError, match="y.jsonl.gz:1"):
        hola.prepare(tmp_path / "y.jsonl.gz", tmp_path / "d", "byte")
    assert not (tmp_path / "d").exists()


def test_an_existing_dataset_is_replaced_only_by_force(tmp_path):
    hola.prepare(["one"], tmp_path / "d", "byte", val=0.0)
    with pytest.raises(hola.Error):
        hola.prepare(["two"], tmp_path / "d", "byte", val=0.0)
    assert tokens(tmp_path / "d") == [256, *b"one"]
    hola.prepare(["two"], tmp_path / "d", "byte", val=0.0, force=True)
    assert tokens(tmp_path / "d") == [256, *b"two"]


def test_conversations(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": "ü?"}, {"role": "assistant", "content": "ja"}]},
        {"prompt": "Q", "completion": "A"},
        {"messages": [{"role": "user", "content": "nobody answers"}]},
    ]
    said = hola.prepare(rows, tmp_path / "a", "byte", chat=True, val=0.0)
    assert (said["documents"], said["answers"], said["without_answer"]) == (2, 2, 1)
    assert said["chat_template"] == "plain" and said["train"]["trained"] == len("ja\n\nUser:") + len("A\n\nUser:")
    want = (tmp_path / "a" / "train_000000.bin").read_bytes()
    for name, opened in (("x.jsonl", open), ("x.jsonl.gz", gzip.open)):
        with opened(tmp_path / name, "wt", encoding="utf-8") as f:
            f.write("".join(json.dumps(r) + "\n" for r in rows))
        hola.prepare(tmp_path / name, tmp_path / "b", "byte", chat=True, val=0.0, force=True)
        assert (tmp_path / "b" / "train_000000.bin").read_bytes() == want
    everything = hola.prepare(rows, tmp_path / "c", "byte", chat_template="chatml", loss_on="all", val=0.0)
    assert everything["train"]["trained"] == everything["tokens"]
    with pytest.raises(TypeError, match="row 0: a mapping is expected, not str"):
        hola.prepare(["x"], tmp_path / "d", "byte", chat=True)
    with pytest.raises(hola.Error, match="line 1: messages.0.: no .role."):
        hola.prepare([{"messages": [{"content": "x"}]}], tmp_path / "d", "byte", chat=True)
    assert not (tmp_path / "d").exists()
