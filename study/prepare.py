"""prepare.py SHARDS NAME...: token files of the sets NAME of runs.json ("data") in DATA/NAME, from the .jsonl.xz files in
the directory SHARDS. TOKENIZER names the tokenizer (default: DATA/tokenizer). What is there already is left alone.

A set lists its files and, in "without", the values of the field "source" whose documents are left out."""
import fnmatch
import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def kept(path, without):
    """The lines of a file whose source is not among these."""
    with lzma.open(path, "rb") as lines:
        for line in lines:
            if json.loads(line)["source"] not in without:
                yield line


def inputs(files, without, folder):
    """Files for hola prepare: as they are, or filtered ones in folder."""
    for path in files:
        if not without:
            yield path
            continue
        out = Path(folder) / path.name.removesuffix(".xz")
        with open(out, "wb") as f:
            f.writelines(kept(path, without))
        yield out


def main(shards, names):
    data = Path(os.environ["DATA"])
    sets = json.loads((Path(__file__).parent / "runs.json").read_text())["data"]
    tokenizer = os.environ.get("TOKENIZER", data / "tokenizer")
    for name in names:
        if (data / name / "dataset.json").exists() and json.loads((data / name / "dataset.json").read_text())["complete"]:
            print(f"{name}: there already")
            continue
        about = sets[name]
        files = sorted(f for f in Path(shards).iterdir() if any(fnmatch.fnmatch(f.name, p) for p in about["files"]))
        if len(files) != about["count"]:
            print(f"prepare.py: {name}: {len(files)} of {about['count']} files in {shards}", file=sys.stderr)
            return 1
        with tempfile.TemporaryDirectory(dir=data) as folder:
            given = list(inputs(files, about.get("without", []), folder))
            done = subprocess.run([os.environ["HOLA"], "prepare", "-o", data / name, "--tokenizer", tokenizer, *given])
        if done.returncode != 0:
            return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
