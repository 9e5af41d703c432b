"""The examples of docs/python.md, from top to bottom in one program."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import hola

PAGE = (ROOT / "docs" / "python.md").read_text()


def snippets():
    torch = PAGE.find("\n## PyTorch\n")
    end = PAGE.find("\n## ", torch + 1)
    rest = PAGE[:torch] + PAGE[end:] if torch >= 0 else PAGE  # PyTorch's are run by its own tests
    return re.findall(r"^```python\n(.*?)^```$", rest, re.M | re.S)


def test_all_snippets(tmp_path):
    found = snippets()
    assert len(found) >= 12
    if importlib.util.find_spec("matplotlib") is None:
        found = [s for s in found if "matplotlib" not in s]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(found)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(hola.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "token 2: id 9999 is not in the vocabulary of 258" in done.stdout
    assert "campus keeps what" in done.stdout  # it has trained its sentence
    assert (tmp_path / "model" / "model.safetensors").exists() and (tmp_path / "data" / "dataset.json").exists()
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("all but the plot: matplotlib is not here")
    assert (tmp_path / "memory.png").stat().st_size > 1000


def test_every_public_name_is_on_the_page():
    missing = [
        n
        for n in hola.__all__
        if n not in PAGE and n not in ("Completion", "Piece", "Kept", "library_path", "program_path")
    ]
    assert not missing
