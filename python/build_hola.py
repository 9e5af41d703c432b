"""The build backend of the Python package (PEP 517 and 660): runs make, and writes the archives.

It needs nothing but Python, make and what the Makefile needs, so that `pip install --no-index .` works. The one
description of the build is the Makefile. HOLA_WHEEL_CUDA=0 builds without CUDA; otherwise it is in where nvcc is.
"""

import base64
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import sysconfig
import tarfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = ("libhola.so", "libjansson.so.4")
SKIPPED = {".git", "build", "dist", "__pycache__", ".pytest_cache", ".mypy_cache"}


def read(path):
    with open(os.path.join(ROOT, path), "rb") as f:
        return f.read()


def version():
    found = re.search(rb'#define HOLA_VERSION "(.*)"', read("include/hola.h")).group(1).decode()
    if f'__version__ = "{found}"' not in read("python/hola/_version.py").decode():
        raise RuntimeError(f"python/hola/_version.py does not say {found}, which include/hola.h does")
    return found


def metadata():
    head = f"""Metadata-Version: 2.1
Name: hola-lm
Version: {version()}
Summary: HOLA (hippocampal linear attention) language models: train, evaluate, generate, serve
License: MIT
Classifier: License :: OSI Approved :: MIT License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Requires-Python: >=3.9
Requires-Dist: numpy>=1.21
Provides-Extra: torch
Requires-Dist: torch>=2.4; extra == "torch"
Provides-Extra: transformers
Requires-Dist: torch>=2.4; extra == "transformers"
Requires-Dist: transformers>=5.0; extra == "transformers"
Provides-Extra: eval
Requires-Dist: lm-eval>=0.4.5; extra == "eval"
Description-Content-Type: text/markdown

"""
    return head.encode() + read("README.md")


def make():
    """The folder with the library, what it needs, and the program."""
    cuda = os.environ.get("HOLA_WHEEL_CUDA", "1") != "0"
    build = "build/python" if cuda else "build/python-cpu"
    command = ["make", "--no-print-directory", f"BUILD={build}", "MPI=", *([] if cuda else ["NVCC="]), "wheel-files"]
    env = {k: v for k, v in os.environ.items() if k not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    if subprocess.run(command, cwd=ROOT, env=env).returncode != 0:
        raise RuntimeError("make failed: see above")
    return os.path.join(ROOT, build, "wheel")


def tag(folder):
    """What the binaries need: the highest version of glibc that they name."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    needs = []
    for name in (*LIBRARIES, "hola"):
        with open(os.path.join(folder, name), "rb") as f:
            needs += [(int(a), int(b)) for a, b in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", f.read())]
    if not needs:
        return f"py3-none-{platform}"
    return "py3-none-" + platform.replace("linux", "manylinux_%d_%d" % max(needs), 1)


def sources():
    """(name in the wheel, path) of the Python files, those of sub-packages too."""
    package = os.path.join(ROOT, "python", "hola")
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(set(folders) - SKIPPED - ({"lib"} if folder == package else set()))
        for name in sorted(names):
            if not name.endswith(".pyc"):
                path = os.path.join(folder, name)
                yield os.path.relpath(path, os.path.join(ROOT, "python")), path


class Wheel:
    """A zip with a RECORD. Entries carry their mode: without S_IFREG pip drops the x bit of the program."""

    def __init__(self, directory, wheel_tag):
        self.info = f"hola_lm-{version()}.dist-info"
        self.name = f"hola_lm-{version()}-{wheel_tag}.whl"
        os.makedirs(directory, exist_ok=True)
        self.path = os.path.join(directory, self.name)
        self.zip = zipfile.ZipFile(self.path + ".tmp", "w", zipfile.ZIP_DEFLATED)
        self.record = ""
        for name, data in info_files().items():
            self.add(f"{self.info}/{name}", data)
        text = f"Wheel-Version: 1.0\nGenerator: build_hola\nRoot-Is-Purelib: false\nTag: {wheel_tag}\n"
        self.add(f"{self.info}/WHEEL", text.encode())

    def add(self, name, data, mode=0o644):
        entry = zipfile.ZipInfo(name)  # of 1980, so that equal contents are equal files
        entry.external_attr = (stat.S_IFREG | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record += f"{name},sha256={digest},{len(data)}\n"

    def finish(self):
        record = f"{self.info}/RECORD"
        self.add(record, (self.record + f"{record},,\n").encode())
        self.zip.close()
        os.replace(self.path + ".tmp", self.path)
        return self.name


def info_files():
    files = {
        "METADATA": metadata(),
        "entry_points.txt": b"[lm_eval.models]\nhola = hola.lm_eval:HolaLM\n",
        "licenses/LICENSE": read("LICENSE"),
    }
    jansson = "/usr/share/doc/libjansson4/copyright"
    if os.path.exists(jansson):
        files["licenses/LICENSE.jansson"] = read(jansson)
    return files


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    folder = make()
    wheel = Wheel(wheel_directory, tag(folder))
    for name, path in sources():
        wheel.add(name, read(path))
    for name in LIBRARIES:
        wheel.add(f"hola/lib/{name}", read(os.path.join(folder, name)), 0o755)
    wheel.add(f"hola_lm-{version()}.data/scripts/hola", read(os.path.join(folder, "hola")), 0o755)
    return wheel.finish()


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    folder = make()
    lib = os.path.join(ROOT, "python", "hola", "lib")
    os.makedirs(lib, exist_ok=True)
    for name in (*LIBRARIES, "hola"):
        shutil.copy2(os.path.join(folder, name), os.path.join(lib, name + ".tmp"))
        os.replace(os.path.join(lib, name + ".tmp"), os.path.join(lib, name))
    wheel = Wheel(wheel_directory, tag(folder))
    wheel.add("hola_lm.pth", (os.path.join(ROOT, "python") + "\n").encode())
    wheel.add(f"hola_lm-{version()}.data/scripts/hola", read(os.path.join(folder, "hola")), 0o755)
    return wheel.finish()


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = f"hola_lm-{version()}.dist-info"
    for name, data in info_files().items():
        path = os.path.join(metadata_directory, info, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
    return info


def tree():
    """The files of a source distribution: those of git, or all of an unpacked one, without the models (79 MB), which are
    not in the wheel either."""
    git = ["git", "-C", ROOT]
    top = subprocess.run([*git, "rev-parse", "--show-toplevel"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if top.returncode == 0 and os.path.realpath(top.stdout.decode().strip()) == os.path.realpath(ROOT):
        names = subprocess.run([*git, "ls-files", "-zco", "--exclude-standard"], stdout=subprocess.PIPE, check=True)
        found = set(names.stdout.decode().split("\0"))
        return sorted(n for n in found if os.path.isfile(os.path.join(ROOT, n)) and not n.startswith("models/"))
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = set(folders) - SKIPPED
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in files if not name.endswith(".pyc")]
    return sorted(n for n in found if n not in ("hola", "PKG-INFO") and not n.startswith(("models/", "python/hola/lib/")))


def build_sdist(sdist_directory, config_settings=None):
    base = f"hola_lm-{version()}"
    with tarfile.open(os.path.join(sdist_directory, base + ".tar.gz"), "w:gz", format=tarfile.PAX_FORMAT) as out:
        entry = tarfile.TarInfo(f"{base}/PKG-INFO")
        entry.size = len(metadata())
        out.addfile(entry, io.BytesIO(metadata()))
        for name in tree():
            out.add(os.path.join(ROOT, name), f"{base}/{name}", recursive=False)
    return base + ".tar.gz"


get_requires_for_build_wheel = get_requires_for_build_sdist = get_requires_for_build_editable = lambda settings=None: []
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel
