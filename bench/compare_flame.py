#!/usr/bin/env python3
"""Trains the same model five ways in one run and compares tokens/s, peak memory and losses.

    fla            fla's GatedDeltaNetForCausalLM as it is
    fla-patched    the same after hola.torch.patch_fla()
    hola           HolaForCausalLM (the exact memory included), eager
    hola-compiled  the same through torch.compile
    hola-train     the program, `hola train`, on the same kind of model as fla's

Each way is a process of its own, one after another, on the same token shards (`hola prepare`; without --data, this
tree's documents and sources as bytes), with AdamW, the learning rates of `hola train`, float32 weights and bf16
computation. It trains --steps steps of --batch rows, for tokens/s (the median of the steps after --warm) and memory
(what the device has less of, context included, and what torch's allocator held at most); then, from the same first
weights, --loss-steps steps of --loss-batch rows for their losses, in the ways of --loss-ways. While these run, the next
way's process imports and makes its model on the CPU, and then waits.

A way that fails is a line with its reason, and the others go on. A phase begins no other step --seconds or
--loss-seconds after its first, which may compile and tune; a way is ended after --limit, and all after --budget; the
steps that were made count, and are in --json.

    bench/compare_flame.py --fla /path/to/folder/of/fla --data data --json flame.json

fla's kernels are compiled before by --compile, as those of bench/compare_fla.py; --tune-ms is the same, too.
fla 0.6.0 refuses the gated backward pass on Hopper with Triton 3.4 to 3.7.0, whose gradients are wrong there; --refused
trains all the same. Only the time of the way fla counts then, and not its losses.
"""

from __future__ import annotations

import json
import os
import pathlib
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Optional

import compare_common as common
import compare_compile
import compare_flame_way
from compare_flame_way import SIZES, WAYS


class Memory(threading.Thread):
    """The most that is used of the device, in GB, beyond what was used before the first way."""

    free: Optional[int] = None

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.done = 0.0, threading.Event()

    def run(self) -> None:
        import torch

        if not torch.cuda.is_available():
            return
        if Memory.free is None:
            Memory.free = torch.cuda.mem_get_info()[0]
        while not self.done.wait(0.05):
            self.most = max(self.most, (Memory.free - torch.cuda.mem_get_info()[0]) / 1e9)


def start(a: Any, argv: list[str], way: str, data: str) -> common.Process:
    return common.Process([sys.executable, os.path.abspath(__file__), *argv, "--way", way, "--wait", "--data", data],
                          waits=True)


def follow(process: common.Process, limit: float, memory: Memory, note: Any, timed: Any) -> dict[str, Any]:
    """Lets it train. -> what it has said last, a line of JSON at a time. note: called with it now and then; timed: when
    the first phase is over."""
    until, noted, result = time.monotonic() + limit, 0.0, {}
    process.go()
    while True:
        try:
            line = process.line(until - time.monotonic())
        except queue.Empty:
            result["ended" if result else "failed"] = f"took more than {limit:.1f} s"
            break
        if line is None:
            if process.process.wait() != 0 or not result:
                result["ended" if result else "failed"] = f"ended with status {process.process.returncode}"
            break
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if not isinstance(said, dict):
            continue
        result = said
        if result.get("timed", {}).get("done") and not memory.done.is_set():
            memory.done.set()
            timed()
        if time.monotonic() > noted + 1:
            noted = time.monotonic()
            note(result)
    memory.done.set()
    process.end()
    return result


def compare(a: Any, argv: list[str], data: str) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    started: dict[str, common.Process] = {}
    until = time.monotonic() + a.budget
    for i, way in enumerate(a.ways):
        if time.monotonic() > until:
            results[way] = {"failed": "not begun: the time was up (--budget)"}
            continue

        def next_one() -> None:
            if i + 1 < len(a.ways):
                started[a.ways[i + 1]] = start(a, argv, a.ways[i + 1], data)

        process = started.pop(way, None) or start(a, argv, way, data)
        memory, begin = Memory(), time.monotonic()
        memory.start()

        def note(result: dict[str, Any]) -> None:
            results[way] = {**result, "device_gb": memory.most or None, "seconds": time.monotonic() - begin}
            common.save(a.json, {"settings": settings(a), "ways": results})

        result = follow(process, min(a.limit, until - begin), memory, note, next_one)
        memory.join()
        note(result)
        print(report({way: results[way]}, a.warm).splitlines()[2], flush=True)
    for process in started.values():
        process.end()
    common.save(a.json, {"settings": settings(a), "ways": results})
    return results


def settings(a: Any) -> dict[str, Any]:
    names = ("size", "steps", "batch", "seq_len", "warm", "loss_steps", "loss_batch", "loss_seq_len", "tune_ms",
             "compile_layers", "refused")
    return {name: getattr(a, name) for name in names}


def report(results: dict[str, dict[str, Any]], warm: int) -> str:
    speed, rows = {}, []
    for way, r in results.items():
        steps = r.get("timed", {}).get("tokens_per_s", [])
        if steps:
            speed[way] = statistics.median(steps[min(warm, len(steps) - 1):])
    for way, r in results.items():
        timed, small = r.get("timed", {}), r.get("losses", {}).get("losses", [])
        ratio = speed[way] / speed["fla"] if way in speed and "fla" in speed else None
        notes = [r[x] for x in ("failed", "ended") if x in r]
        notes += [f"{len(timed['losses'])} steps timed"] if timed and len(timed["losses"]) <= warm + 2 else []
        compiled = timed.get("triton", {}).get("compiled")
        notes += [f"Triton compiled {compiled} kernels"] if compiled else []
        rows.append([way, speed.get(way), ratio, r.get("device_gb"), timed.get("allocated_gb"),
                     small[0] if small else None, statistics.mean(small[-20:]) if small else None, len(small) or None,
                     "; ".join(notes)])
    columns = ["way", "tokens/s", "of fla's", "device memory, GB", "torch's, GB", "first loss", "last 20 losses",
               "of steps", ""]
    return common.table(columns, rows)


def own_text(program: str, folder: pathlib.Path) -> str:
    """This tree's documents and sources as a dataset of bytes."""
    with open(folder / "tree.txt", "wb") as file:
        for pattern in ("docs/**/*.md", "include/*.h", "src/**/*.[ch]", "src/**/*.cu", "tests/*.c"):
            for path in sorted(common.ROOT.glob(pattern)):
                file.write(path.read_bytes())
    out = str(folder / "data")
    got = subprocess.run([program, "prepare", "-o", out, "--tokenizer", "byte", str(folder / "tree.txt")],
                         capture_output=True, text=True)
    if got.returncode != 0:
        sys.exit(f"compare_flame: {(got.stderr.strip() or 'hola prepare failed').splitlines()[-1]}")
    return out


def arguments() -> Any:
    parser = common.arguments(__doc__ or "")
    number = lambda name, value, text: parser.add_argument(  # noqa: E731
        f"--{name}", type=type(value), default=value, metavar="SECONDS" if isinstance(value, float) else "N", help=text)
    parser.add_argument("--data", metavar="DIR", help="token shards written by hola prepare")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="which, in this order")
    number("steps", 60, "steps that are timed, and those before")
    number("batch", 16, "rows of such a step")
    number("seq-len", 2048, "tokens of such a row")
    number("warm", 20, "of them, steps that are not timed: tuning and compiling")
    number("loss-steps", 200, "steps whose losses are compared; 0: none")
    number("loss-batch", 2, "rows of such a step")
    number("loss-seq-len", 1024, "tokens of such a row")
    parser.add_argument("--loss-ways", nargs="*", choices=WAYS, default=[x for x in WAYS if x != "hola-compiled"],
                        help="which have these steps, too; hola-compiled would compile for another shape")
    number("seconds", 600.0, "a way begins no other timed step so many after the first")
    number("loss-seconds", 600.0, "and no other of the steps for losses")
    number("limit", 1800.0, "the most that one way may take")
    number("budget", 7200.0, "all ends after so long")
    parser.add_argument("--compile-layers", action="store_true",
                        help="torch.compile layer by layer: once for all layers")
    parser.add_argument("--hola", metavar="FILE", help="the program; default: build/cc/hola, or the one on the path")
    parser.add_argument("--size", choices=list(SIZES), default="340m")
    parser.add_argument("--way", choices=WAYS, help="run this one here and print its results as JSON")
    parser.add_argument("--wait", action="store_true",
                        help="with --way: for a line on standard input, once it could begin")
    compare_compile.arguments(parser)
    return parser


def main(argv: Optional[list[str]] = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = arguments()
    a = parser.parse_args(argv)
    above = a.steps, a.batch, a.seq_len, a.loss_batch, a.loss_seq_len, a.limit, a.seconds, a.budget, a.loss_seconds
    if min(above) <= 0 or min(a.warm, a.loss_steps) < 0:
        parser.error("numbers of rows, tokens, timed steps and seconds are above 0")
    if a.dry_run:
        a.size, a.steps, a.batch, a.seq_len, a.warm = "tiny", min(a.steps, 4), 2, 32, 1
        a.loss_steps, a.loss_batch, a.loss_seq_len = min(a.loss_steps, 3), 1, 16
    common.find_packages(a.fla)
    a.hola = common.find_program(a.hola)
    os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")  # a way that follows another does not tune again
    if a.way:
        return compare_flame_way.one(a)
    if a.claims:
        a.way = "fla"
        return compare_flame_way.compile_kernels(a)
    if a.compile:
        command = [sys.executable, os.path.abspath(__file__), *argv]
        return compare_compile.in_processes(command, a.processes, a.budget)
    common.end_well()
    if not a.dry_run:
        import torch

        if not torch.cuda.is_available():
            sys.exit("compare_flame: torch sees no CUDA device; --dry-run tries it with a tiny model on the CPU")
    if a.data is None and shutil.which(a.hola) is None:
        sys.exit(f"compare_flame: {a.hola} is not a program, and there is no --data")
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.abspath(a.data) if a.data else own_text(a.hola, pathlib.Path(folder))
        results = compare(a, argv, data)
    print(f"\n{settings(a)}\n\n{report(results, a.warm)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
