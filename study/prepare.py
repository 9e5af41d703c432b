"""prepare.py SHARDS NAME...: token files of the sets NAME of runs.json ("data") in DATA/NAME, from the .jsonl.xz files in
the directory SHARDS. TOKENIZER names the tokenizer (default: DATA/tokenizer). What is there already is left alone.

A set lists its files and, in "without", the values of the field "source" whose documents are left out. With "quotes":
"straight", typographic quotes become those of a keyboard. "tokenizer" is one of this repository, instead of TOKENIZER."""
import fnmatch
import json
import lzma
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent


STRAIGHT = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})


def kept(path, about):
    """The documents of a file that the set takes, as lines."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            if document["source"] in about.get("without", []):
                continue
            if about.get("quotes") == "straight":
                line = json.dumps({"text": document["text"].translate(STRAIGHT)}, ensure_ascii=False) + "\n"
            yield line


def filtered(path, about, folder):
    """A file for hola prepare in folder, with what the set takes of this one."""
    out = Path(folder) / path.name.removesuffix(".xz")
    with open(out, "w", encoding="utf-8") as f:
        f.writelines(kept(path, about))
    return out


def inputs(files, about, folder):
    """Files for hola prepare: as they are, or filtered ones."""
    if "without" not in about and "quotes" not in about:
        return files
    with ProcessPoolExecutor() as pool:
        return list(pool.map(filtered, files, [about] * len(files), [folder] * len(files)))


def main(shards, names):
    data = Path(os.environ["DATA"])
    sets = json.loads((HERE / "runs.json").read_text())["data"]
    given = os.environ.get("TOKENIZER", data / "tokenizer")
    for name in names:
        if (data / name / "dataset.json").exists() and json.loads((data / name / "dataset.json").read_text())["complete"]:
            print(f"{name}: there already")
            continue
        about = sets[name]
        files = sorted(f for f in Path(shards).iterdir() if any(fnmatch.fnmatch(f.name, p) for p in about["files"]))
        if len(files) != about["count"]:
            print(f"prepare.py: {name}: {len(files)} of {about['count']} files in {shards}", file=sys.stderr)
            return 1
        tokenizer = HERE.parent / about["tokenizer"] if "tokenizer" in about else given
        with tempfile.TemporaryDirectory(dir=data) as folder:
            done = subprocess.run([os.environ["HOLA"], "prepare", "-o", data / name, "--tokenizer", tokenizer,
                                   *inputs(files, about, folder)])
        if done.returncode != 0:
            return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
