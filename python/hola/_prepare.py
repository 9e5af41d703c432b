"""hola.prepare: text from Python's world to token shards, by the program ``hola prepare``."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from ._convert import Path, boolean, integer, path_bytes, real
from ._errors import Error, FileError, FormatError, InvalidArgument, NotSupported
from ._program import program_path
from ._tokenizer import Tokenizer

if TYPE_CHECKING:
    import subprocess

_PLAIN = (".txt", ".jsonl")
_PACKED = (".gz", ".xz", ".zst")


def prepare(
    source: Any,
    out: Path,
    tokenizer: Tokenizer | Path,
    column: str = "text",
    *,
    val: float | None = None,
    seed: int = 0,
    threads: int = 0,
    force: bool = False,
    chat: bool = False,
    chat_template: str | None = None,
    loss_on: str = "answers",
) -> dict[str, Any]:
    """Writes a dataset for ``hola train``; what ``hola prepare --json`` prints, as a dict.

    source: a path or a glob of .parquet, .jsonl and .txt files, also of a directory of them; a pyarrow table, dataset
    or reader; a Hugging Face dataset; or any iterable of str. column: the one that holds the text. val: the fraction of
    the documents for validation; force: replace an existing dataset. Parquet needs pyarrow.

    chat: the rows are conversations, with ``messages`` or with ``prompt`` and ``completion``; so it is with a
    chat_template, which says how they look. loss_on: "answers", or "all".
    """
    if not isinstance(column, str):
        raise TypeError(f"column: a string is expected, not {type(column).__name__}")
    to = os.fsdecode(path_bytes(out, "out"))
    words = tokenizer.path if isinstance(tokenizer, Tokenizer) else os.fsdecode(path_bytes(tokenizer, "tokenizer"))
    command = [program_path(), "prepare", "--json", "-o", to, "--tokenizer", words]
    command += ["--seed", str(integer(seed, "seed", 0))]
    if integer(threads, "threads", 0) > 0:
        command += ["--threads", str(threads)]
    if val is not None:
        command += ["--val", repr(real(val, "val"))]
    if boolean(force, "force"):
        command.append("--force")
    talk = boolean(chat, "chat") or chat_template is not None
    if talk:
        command += ["--format", "chat", "--loss-on", loss_on]
        if chat_template is not None:
            command += ["--chat-template", chat_template]
        return _run([*command, "-"], _conversations(source), _row)
    if isinstance(source, (str, os.PathLike)):
        files = _files(os.fspath(source))
        if all(name.endswith(_PLAIN) for name in files):  # the program reads these by itself
            return _run([*command, "--field", column, "--", *files], None)
        return _run([*command, "--format", "jsonl", "-"], _of_files(files, column))
    if not isinstance(source, Iterable) or isinstance(source, (bytes, bytearray)):
        if not hasattr(source, "to_batches") and not hasattr(source, "iter_batches"):
            raise TypeError(f"source: a path or texts are expected, not {type(source).__name__}")
    return _run([*command, "--format", "jsonl", "-"], _texts(source, column))


def _conversations(source: Any) -> Iterator[Any]:
    """The rows of files, of pyarrow objects and datasets, of an iterable of mappings."""
    if isinstance(source, (str, os.PathLike)):
        for name in _files(os.fspath(source)):
            if name.endswith(".parquet"):
                yield from _batches(_parquet(name).iter_batches())
                continue
            with _opened(name) as f:
                for number, line in enumerate(f, 1):
                    if line.strip():
                        yield _json(line, f"{name}:{number}")
        return
    if isinstance(source, Mapping):
        raise TypeError(f"source: rows are expected, not one {type(source).__name__}")
    batches = getattr(source, "iter_batches", None) or getattr(source, "to_batches", None)
    if batches is not None and type(source).__module__.startswith("pyarrow"):
        yield from _batches(batches())
    elif isinstance(source, Iterable):
        yield from source
    else:
        raise TypeError(f"source: a path or rows are expected, not {type(source).__name__}")


def _batches(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield from batch.to_pylist()


def _row(i: int, row: Any) -> bytes:
    if not isinstance(row, Mapping):
        raise TypeError(f"row {i}: a mapping is expected, not {type(row).__name__}")
    # a table has a cell for every column, also where a row has nothing in it
    return json.dumps({k: v for k, v in row.items() if v is not None}).encode()


def _files(path: str) -> list[str]:
    """The files of a path, a directory or a glob, in sorted order."""
    known = (*_PLAIN, ".parquet", *(p + z for p in _PLAIN for z in _PACKED))
    if os.path.isdir(path):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        found = sorted(f for f in found if f.endswith(known) and not os.path.basename(f).startswith("."))
    elif os.path.exists(path):
        found = [path]
    else:
        found = sorted(glob.glob(path, recursive=True))
    if not found:
        raise FileError(f"{path}: there is no such file")
    for name in found:
        if not name.endswith(known):
            raise NotSupported(f"{name}: none of {', '.join(known)}")
    return found


def _of_files(files: list[str], column: str) -> Iterator[str]:
    for name in files:
        if name.endswith(".parquet"):
            yield from _of_parquet(name, column)
            continue
        with _opened(name) as f:
            if ".jsonl" not in os.path.basename(name):
                yield f.read().decode("utf-8", "replace")
                continue
            for number, line in enumerate(f, 1):
                if line.strip():
                    yield _of_json(line, column, f"{name}:{number}")


def _json(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as e:
        raise FormatError(f"{where}: {e}") from None


def _of_json(line: bytes, column: str, where: str) -> str:
    row = _json(line, where)
    text = row.get(column) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise FormatError(f"{where}: no text in {column!r}")
    return text


def _opened(name: str) -> IO[bytes]:
    try:
        if name.endswith(".gz"):
            import gzip

            return gzip.open(name)  # type: ignore[return-value]
        if name.endswith(".xz"):
            import lzma

            return lzma.open(name)
        if name.endswith(".zst"):
            try:
                import zstandard
            except ImportError:
                raise NotSupported(f"{name}: reading .zst needs the package zstandard: pip install zstandard") from None
            return zstandard.open(name)  # type: ignore[no-any-return]
        return open(name, "rb")
    except OSError as e:
        raise FileError(f"{name}: {e.strerror or e}") from None


def _parquet(name: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise NotSupported(f"{name}: reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        return pyarrow.parquet.ParquetFile(name)
    except (pyarrow.ArrowInvalid, OSError) as e:
        raise FormatError(f"{name}: {str(e).splitlines()[0]}") from None


def _of_parquet(name: str, column: str) -> Iterator[str]:
    with _parquet(name) as file:
        if column not in file.schema_arrow.names:
            raise InvalidArgument(f"{name}: no column {column!r}; there are {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(columns=[column]):
            yield from batch.column(0).to_pylist()


def _texts(source: Any, column: str) -> Iterator[Any]:
    """The texts of a pyarrow object, a dataset, or an iterable of str or of rows."""
    if isinstance(source, Mapping):
        raise TypeError(
            f"source: a {type(source).__name__} has several parts; name one of {', '.join(map(str, source))}"
        )
    batches = getattr(source, "iter_batches", None) or getattr(source, "to_batches", None)
    if batches is None and type(source).__module__.startswith("pyarrow") and hasattr(source, "read_next_batch"):
        batches = source.__iter__
    if type(source).__module__.startswith("pyarrow") and batches is not None:
        for batch in batches():
            if column not in batch.schema.names:
                raise InvalidArgument(f"source: no column {column!r}; there are {', '.join(batch.schema.names)}")
            yield from batch.column(batch.schema.names.index(column)).to_pylist()
        return
    for i, row in enumerate(source):
        if isinstance(row, Mapping):
            if column not in row:
                raise InvalidArgument(f"row {i}: no column {column!r}; there are {', '.join(map(str, row))}")
            row = row[column]
        yield row


def _run(
    command: list[str], texts: Iterator[Any] | None, line: Callable[[int, Any], bytes] | None = None
) -> dict[str, Any]:
    """Runs the program over texts as JSONL, each as ``line`` writes it. What fails here fails there too, so that nothing is written."""
    import subprocess  # here, as most programs that import this package do not need it
    import tempfile

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        stdin = subprocess.DEVNULL if texts is None else subprocess.PIPE
        with subprocess.Popen(command, stdin=stdin, stdout=out, stderr=said) as program:
            try:
                if texts is not None:
                    _send(program, texts, line or _text)
            except BaseException:
                program.wait()
                raise
        out.seek(0), said.seek(0)
        if program.returncode != 0:
            lines = said.read().decode("utf-8", "replace").strip().splitlines()
            text = lines[-1] if lines else f"hola prepare ended with status {program.returncode}"
            raise Error(text[len("hola: ") :] if text.startswith("hola: ") else text)
        result: dict[str, Any] = json.loads(out.read())
        return result


def _text(i: int, text: Any) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"text {i}: a str is expected, not {type(text).__name__}")
    return json.dumps({"text": text}).encode()


def _send(program: subprocess.Popen[bytes], texts: Iterator[Any], line: Callable[[int, Any], bytes]) -> None:
    pipe = program.stdin
    assert pipe is not None
    try:
        for i, text in enumerate(texts):
            if text is None:  # an empty cell of a table
                continue
            pipe.write(line(i, text) + b"\n")
        pipe.close()
    except BrokenPipeError:
        pass  # the program failed, and says why
    except BaseException:
        try:
            pipe.write(b'{"\n')  # not JSON: the program ends and takes back what it has written
            pipe.close()
        except OSError:
            pass
        raise
