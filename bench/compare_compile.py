"""Compiles what Triton's autotuner could choose from, without running or timing any of it.

On the first call of a kernel Triton compiles each candidate when its turn to be timed comes, one after another. Here the
functions that will be timed are called with kernels that are compiled and not launched: every candidate goes into
Triton's cache on the disk (TRITON_CACHE_DIR), with the C code that launches it. Several processes make the same calls, and a
kernel is compiled by the one that claims it first. A run that tunes afterwards finds all of it there, and the times that
it chooses by are its own. This pass allocates tensors and launches little, so it can run beside other work.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess
import tempfile
import time
from typing import Any, Callable


class Tally:
    """What this process has done."""

    def __init__(self) -> None:
        self.compiled, self.found, self.launchers, self.seconds = 0, 0, 0, 0.0  # found: in the cache already
        self.failed: dict[str, int] = {}  # a reason, and how often

    def fail(self, error: BaseException) -> None:
        name = type(error).__name__
        self.failed[name] = self.failed.get(name, 0) + 1


def arguments(parser: Any) -> None:
    """What the comparisons that tune have in common."""
    parser.add_argument("--tune-ms", type=int, metavar="MS", help="for so long Triton times a candidate; none: 100")
    parser.add_argument("--compile", action="store_true", help="compile what fla's kernels could be, and time nothing")
    parser.add_argument("--without-gpu", action="store_true", help="with --compile: for an H200 that is not there")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="that compile")
    parser.add_argument("--claims", help="a process that compiles: what it shares with the others")


def compile_only(claims: pathlib.Path) -> Tally:
    """From here on, kernels of this process are compiled and not launched; claims: a folder that processes share."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    tally, counts = Tally(), count_compiled()
    run, compile_one = JITFunction.run, JITFunction._do_compile

    def every_candidate(self: Any, *args: Any, **kwargs: Any) -> None:
        """For Autotuner.run: the same candidates, in the same order."""
        self.nargs = dict(zip(self.arg_names, args))
        for config in self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs:
            now = {**kwargs, **config.all_kwargs()}
            try:
                if config.pre_hook:
                    config.pre_hook({**self.nargs, **now})
                self.fn.run(*args, **now)
            except Exception as error:  # too much shared memory, or what does not compile: tuning leaves it out
                tally.fail(error)
        self.nargs = None

    def not_launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(self, *map(address, args), **{**{name: address(x) for name, x in kwargs.items()}, "warmup": True})

    def claimed(self: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, attrs: Any,
                warmup: bool) -> Any:
        _, _, _, backend, _ = self.device_caches[device]
        src = self.ASTSource(self, signature, constants, attrs)
        name = hashlib.sha256(f"{src.hash()} {options.hash()}".encode()).hexdigest()
        if not claim(claims / name):
            return None  # another process compiles it; JITFunction.run takes this for "not now"
        kernel = compile_one(self, key, signature, device, constants, options, attrs, warmup)
        tally.compiled, tally.found, tally.seconds = counts["compiled"], counts["found"], counts["seconds"]
        if claim(claims / hashlib.sha256(f"{self.cache_key} {signature}".encode()).hexdigest()):
            driver.active.launcher_cls(kernel.src, kernel.metadata)  # compiles the launcher, and keeps it on the disk
            tally.launchers += 1
        return kernel

    Autotuner.run, JITFunction.run, JITFunction._do_compile = every_candidate, not_launched, claimed
    return tally


class Address:
    """What a kernel's key needs of a tensor that holds no numbers."""

    def __init__(self, x: Any):
        self.dtype, self.offset = x.dtype, x.storage_offset() * x.element_size()

    def data_ptr(self) -> int:
        return self.offset


def address(x: Any) -> Any:
    return Address(x) if type(x).__name__ == "FakeTensor" else x


def claim(path: pathlib.Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def in_processes(command: list[str], n: int, budget: float) -> int:
    """Runs this command n times with --claims; all end after `budget` seconds, and what is compiled stays."""
    start, total, failed = time.monotonic(), Tally(), 0
    with tempfile.TemporaryDirectory() as claims:
        processes = [subprocess.Popen(["nice", *command, "--claims", claims], stdout=subprocess.PIPE, text=True)
                     for _ in range(n)]
        for process in processes:
            try:
                said, _ = process.communicate(timeout=max(0.1, start + budget - time.monotonic()))
                one = json.loads(said.splitlines()[-1])
            except (subprocess.TimeoutExpired, IndexError, ValueError):
                process.kill()
                process.wait()
                failed += 1
                continue
            for name in ("compiled", "found", "launchers", "seconds"):
                setattr(total, name, getattr(total, name) + one[name])
            for reason, many in one["failed"].items():
                total.failed[reason] = total.failed.get(reason, 0) + many
    print(f"compiled {total.compiled} kernels and {total.launchers} launchers in {time.monotonic() - start:.0f} s, "
          f"{total.seconds:.0f} s of {n} processes; {total.found} were there; not: {total.failed or 'none'}"
          + f"; {failed} processes did not reach their end" * (failed > 0), flush=True)
    return 1 if failed == n else 0


def count_compiled() -> dict[str, Any]:
    """What Triton found in its cache and what it had to compile from here on, and the seconds of that; it goes on
    counting. Many kernels compiled after --compile mean that the cache is another Triton's, or of other shapes."""
    from triton import knobs

    counts: dict[str, Any] = {"found": 0, "compiled": 0, "seconds": 0.0}

    def listen(*, times: Any, cache_hit: bool, **_: Any) -> None:
        counts["found" if cache_hit else "compiled"] += 1
        if not cache_hit:
            counts["seconds"] += times.total / 1e6

    knobs.compilation.listener = listen
    return counts


def tune_for(ms: float) -> None:
    """Triton times each candidate for so long, after a quarter of it to warm up, and not for 100 ms after 25."""
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    def for_ms(call: Callable[[], Any], quantiles: Any) -> Any:
        return do_bench(call, warmup=max(1, ms / 4), rep=ms, quantiles=quantiles)

    Autotuner.do_bench = property(lambda self: self._do_bench or for_ms)
