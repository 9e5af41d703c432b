"""The package itself: what an import does and refuses, its facts, the program."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import hola


def run(code, **env):
    """A new interpreter with the same package."""
    paths = [str(Path(hola.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **env}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_version_is_that_of_the_header():
    said = re.search(r'#define HOLA_VERSION "(.*)"', (ROOT / "include" / "hola.h").read_text()).group(1)
    assert hola.__version__ == said == hola.build_info()["version"]


def test_facts():
    assert hola.devices()[-1] == "cpu"
    assert set(hola.build_info()) == {"version", "cuda", "cuda_arch"}
    assert os.path.isfile(hola.library_path())
    assert all(hasattr(hola, name) for name in hola.__all__)


def test_everything_public_is_documented():
    for name in hola.__all__:
        thing = getattr(hola, name)
        if callable(thing):
            assert thing.__doc__, name
        for member, value in vars(thing).items() if isinstance(thing, type) else ():
            if not member.startswith("_") and (callable(value) or isinstance(value, (property, classmethod))):
                if member not in ("count", "index", "add_note", "with_traceback"):
                    assert getattr(value, "__doc__", None) or getattr(value, "__func__", value).__doc__, (name, member)


def test_import_is_light_and_quick():
    done = run(
        "import sys, time; import numpy; n = time.process_time(); import hola\n"
        "print(time.process_time() - n)\n"  # of the processor: other work on the machine does not count
        "print([m for m in ('torch', 'transformers', 'lm_eval', 'pyarrow', 'matplotlib') if m in sys.modules])"
    )
    seconds, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    assert float(seconds) < 0.5


def test_a_missing_library_is_an_import_error(tmp_path):
    done = run("import hola", HOLA_LIBRARY=str(tmp_path / "none.so"))
    assert done.returncode != 0 and "ImportError" in done.stderr and "none.so" in done.stderr


def test_another_version_is_an_import_error(tmp_path):
    cc = shutil.which("cc")
    if not cc:
        pytest.skip("no C compiler")
    source = tmp_path / "other.c"
    source.write_text('const char *hola_version(void) { return "99.1"; }')
    subprocess.run([cc, "-shared", "-fPIC", "-o", str(tmp_path / "other.so"), str(source)], check=True)
    done = run("import hola", HOLA_LIBRARY=str(tmp_path / "other.so"))
    assert "ImportError" in done.stderr and "is version 99.1" in done.stderr


@pytest.mark.parametrize("struct", ["head_dim", "threads", "trained", "top_k", "most", "recompute"])
def test_a_struct_of_another_size_is_an_import_error(tmp_path, struct):
    package = tmp_path / "hola"
    shutil.copytree(Path(hola.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / "_library.py").read_text()
    wrong = re.sub(rf'\("{struct}", c_\w+\)', f'("{struct}", c_int64 * 2)', text)
    assert wrong != text
    (package / "_library.py").write_text(wrong)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "HOLA_LIBRARY": hola.library_path()}
    done = subprocess.run([sys.executable, "-c", "import hola"], env=env, capture_output=True, text=True)
    assert "ImportError" in done.stderr and "bytes" in done.stderr


def test_every_struct_of_the_header_is_compared():
    from hola import _library

    header = (ROOT / "include" / "hola.h").read_text()
    named = set(re.findall(r"typedef struct (hola_\w+) \{", header))
    assert named == set(_library.STRUCTS)
    assert all(_library.C.hola_sizeof(name.encode()) > 0 for name in named)
    assert _library.C.hola_sizeof(b"hola_nothing") == 0


def test_every_function_is_in_the_header():
    from hola import _library

    header = (ROOT / "include" / "hola.h").read_text()
    for name, (_, arguments) in _library._FUNCTIONS.items():
        found = re.search(rf"\b{name}\(([^;]*)\);", header)
        assert found, name
        given = [] if found.group(1) == "void" else found.group(1).split(",")
        assert len(given) == len(arguments), name


def test_the_program():
    done = subprocess.run(
        [sys.executable, "-m", "hola", "--version"],
        env={**os.environ, "PYTHONPATH": str(Path(hola.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and hola.__version__ in done.stdout
    done = subprocess.run([hola.program_path(), "nonsense"], capture_output=True, text=True)
    assert done.returncode != 0
