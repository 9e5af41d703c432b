"""What the comparisons with flash-linear-attention share: where it is, tables, files of results."""

from __future__ import annotations

import argparse
import atexit
import ctypes
import importlib
import json
import os
import pathlib
import platform
import queue
import shutil
import signal
import subprocess
import sys
import threading
from typing import Any, Optional

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments(text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text.split("\n\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--fla", metavar="PATH", help="folder that holds the package fla, where it is not installed")
    parser.add_argument("--refused", action="store_true", help="time fla's backward pass even where it refuses to run")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file too")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU: that it runs to its end")
    return parser


def let_fla_be_wrong() -> str:
    """Lets fla run the backward pass that it refuses on Hopper with Triton 3.4 to 3.7.0, because its gradients are
    wrong there: its time is the same. Returns a note where it had to."""
    import fla.ops.common.chunk_o as chunk_o

    refused = chunk_o.IS_NVIDIA_HOPPER and chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1
    chunk_o.IS_NVIDIA_HOPPER = False
    return "fla refuses this backward pass (wrong gradients); timed all the same" if refused else ""


def find_packages(fla: Optional[str]) -> None:
    """Puts this tree's package and the folder of fla first on the path, here and in programs that this one starts."""
    paths = [str(ROOT / "python")]
    if fla is not None:
        if not (pathlib.Path(fla) / "fla" / "__init__.py").is_file():
            sys.exit(f"--fla {fla}: there is no package fla in it")
        paths.append(str(pathlib.Path(fla).resolve()))
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths + [p for p in [os.environ.get("PYTHONPATH")] if p])
    if "HOLA_LIBRARY" not in os.environ:
        for built in (ROOT / "build/cc/libhola.so.0", ROOT / "build/cc/wheel/libhola.so"):
            if loads(built):
                os.environ["HOLA_LIBRARY"] = str(built)
                break


def loads(path: pathlib.Path) -> bool:
    """Whether it is a library that this machine can load: that of `make` wants jansson, the wheel's brings its own."""
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def find_program(given: Optional[str]) -> str:
    """The hola program: the one that was named, else the first that runs here."""
    if given:
        return given
    for path in (str(ROOT / "build/cc/hola"), str(ROOT / "build/cc/wheel/hola"), shutil.which("hola")):
        try:
            if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
                return path
        except OSError:
            pass
    return "hola"


class Process:
    """A program whose lines are read with a time limit. It is ended with all that it started, also where this one ends
    (end_well)."""

    def __init__(self, command: list[str], waits: bool = False):
        """waits: it does not begin before go()."""
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace",
                                        stdin=subprocess.PIPE if waits else None, start_new_session=True)
        atexit.register(self.end)
        self.lines: "queue.Queue[Optional[str]]" = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def go(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.close()
        except OSError:
            pass  # it has ended already, and its lines or its status say why

    def line(self, seconds: float) -> Optional[str]:
        """None: it has ended. queue.Empty: there is none in this time."""
        return self.lines.get(timeout=max(seconds, 0.01))

    def end(self, patience: float = 0.0) -> int:
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        atexit.unregister(self.end)
        return self.process.wait()


def end_well() -> None:
    """What ends this program from outside ends the ones that it started too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))


def why_no_fla(module: str = "fla.layers") -> str:
    """"": it can be imported."""
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever its import raises, Triton's errors too
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    return ""


def versions() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "fla", "transformers"):
        module = sys.modules.get(name)
        found[name] = getattr(module, "__version__", None) if module else None
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return found


def table(columns: list[str], rows: list[list[Any]]) -> str:
    """In Markdown, for docs/speed.md."""
    show = lambda x: "" if x is None else f"{x:.3g}" if isinstance(x, float) and abs(x) < 1000 else (  # noqa: E731
        f"{x:,.0f}" if isinstance(x, (int, float)) and not isinstance(x, bool) else str(x))
    lines = [columns, ["---"] * len(columns)] + [[show(x) for x in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def save(path: Optional[str], what: dict[str, Any]) -> None:
    if path is None:
        return
    with open(path + ".part", "w") as file:
        json.dump(what, file, indent=1)
        file.write("\n")
    os.replace(path + ".part", path)


def reason(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:160]
