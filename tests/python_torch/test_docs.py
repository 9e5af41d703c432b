"""Every snippet of docs/python_torch.md runs, one after another."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python_torch.md"


def test_snippets():
    pytest.importorskip("transformers", "5.0")
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(found) >= 3
    names = {}
    for code in found:
        exec(compile(code, PAGE.name, "exec"), names)


def test_shown_only():
    """What cannot run everywhere (fla) at least names things that are there."""
    import hola.torch

    shown = re.findall(r"```python no-run\n(.*?)```", PAGE.read_text(), re.S)
    names = re.findall(r"hola\.torch\.(\w+)", "".join(shown))
    assert set(names) == {"patch_fla", "unpatch_fla"} and all(hasattr(hola.torch, n) for n in names)
