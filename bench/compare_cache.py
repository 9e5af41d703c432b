#!/usr/bin/env python3
"""Takes Triton's cache from the machine that compiled to the one that measures.

    bench/compare_cache.py pack FILE.tar.xz      what a run needs of TRITON_CACHE_DIR: binaries, their descriptions and
                                                 launchers; not the texts of each stage, nor what was tuned here
    bench/compare_cache.py unpack FILE.tar.xz    into TRITON_CACHE_DIR, which may be another folder

A kernel's key in the cache is a hash of Triton's own files, too. KEY.json holds that hash; where the same version of
Triton has other files (another build of it), take_key() makes this process look under the packed one.
"""

from __future__ import annotations

import argparse
import io
import json
import pathlib
import sys
import tarfile
import time
from typing import Optional

KEPT = (".cubin", ".json", ".so")
TUNED = ".autotune.json"  # times of candidates, which are a device's
GROUP = "__grp__"  # names the files of a kernel by their absolute paths: written anew where they are unpacked


def folder() -> pathlib.Path:
    from triton import knobs

    return pathlib.Path(knobs.cache.dir)


def key() -> dict[str, str]:
    """What the keys of all kernels have in common."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime import build, cache

    return {"version": triton.__version__, "triton": cache.triton_key(), "platform": build.platform_key(),
            "backend": make_backend(GPUTarget("cuda", 90, 32)).hash()}


def take_key() -> str:
    """Triton finds what was unpacked, though its own files are others. -> a note where that was needed."""
    path = folder() / "KEY.json"
    if not path.is_file():
        return ""
    packed, here = json.loads(path.read_text()), key()
    if packed == here:
        return ""
    if packed["version"] != here["version"]:
        return f"the cache is of Triton {packed['version']}, and this is {here['version']}: all is compiled anew"
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime import autotuner, build, cache

    cache.triton_key = autotuner.triton_key = lambda: packed["triton"]
    build.platform_key = lambda: packed["platform"]
    CUDABackend.hash = lambda self: packed["backend"]
    other = ", ".join(x for x in here if here[x] != packed[x])
    return f"the cache is another build's ({other}), and is used all the same"


def pack(source: pathlib.Path, out: pathlib.Path) -> int:
    """-> how many kernels. Kernels of one name follow each other: they have much in common."""
    files = [x for x in source.glob("*/*")
             if x.suffix in KEPT and not x.name.startswith(GROUP) and not x.name.endswith(TUNED)]
    with tarfile.open(out, "w:xz", preset=6) as tar:
        one = tarfile.TarInfo("KEY.json")
        text = json.dumps(key()).encode()
        one.size = len(text)
        tar.addfile(one, io.BytesIO(text))
        for path in sorted(files, key=lambda x: (x.suffix, x.name, x.stat().st_size, x.parent.name)):
            one = tarfile.TarInfo(f"{path.parent.name}/{path.name}")
            one.size, one.mode = path.stat().st_size, 0o755 if path.suffix == ".so" else 0o644
            with open(path, "rb") as file:
                tar.addfile(one, file)
    return sum(x.suffix == ".cubin" for x in files)


def unpack(archive: pathlib.Path, to: pathlib.Path) -> int:
    """-> how many kernels."""
    to.mkdir(parents=True, exist_ok=True)
    kernels: dict[pathlib.Path, dict[str, str]] = {}
    with tarfile.open(archive, "r:xz") as tar:
        for one in tar:
            parts = pathlib.PurePosixPath(one.name).parts
            if len(parts) > 2 or ".." in parts or not one.isfile():
                raise SystemExit(f"{archive}: {one.name} does not belong into a cache")
            path = to.joinpath(*parts).absolute()
            path.parent.mkdir(exist_ok=True)
            content = tar.extractfile(one)
            assert content is not None
            path.write_bytes(content.read())
            path.chmod(one.mode)
            if len(parts) == 2 and path.suffix in (".cubin", ".json"):
                kernels.setdefault(path.parent, {})[path.name] = str(path)
    for where, group in kernels.items():
        name = next(x for x in group if x.endswith(".json"))
        (where / f"{GROUP}{name}").write_text(json.dumps({"child_paths": group}))
    return len(kernels)


def main(argv: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=["pack", "unpack"])
    parser.add_argument("file", type=pathlib.Path)
    a = parser.parse_args(argv)
    start = time.monotonic()
    n = (pack if a.what == "pack" else lambda to, file: unpack(file, to))(folder(), a.file)
    size, seconds = a.file.stat().st_size / 1e6, time.monotonic() - start
    print(f"{a.what}ed {n} kernels, {size:.1f} MB, in {seconds:.1f} s: {folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
