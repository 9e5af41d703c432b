#!/usr/bin/env python3
"""Times hola.torch's chunked operators and flash-linear-attention's in one process, in turns.

Forward: with the norm of q and k where the models use it, and with what the backward pass needs kept. Backward: all
gradients. Work is queued behind a pause of the device, so that what is timed is the device; medians of several turns.
Outputs are compared with each other (gradients are not: fla's are wrong on Hopper with Triton 3.4 to 3.7.0), and
hola's are computed again on another stream, at other addresses: they must have the same bits. Attention is timed
against PyTorch's scaled_dot_product_attention. hola.torch has no gated slot attention: fla's is timed, and --bench-gla names
what bench/bench_gla printed on the same machine. Without CUDA, or without fla, the other is timed alone.

A worker process goes over the shapes. hola is timed alone first, which takes a second; then the other, whose first call
makes Triton tune, then both in turns. What is known of a shape is reported and written to --json at each step. A shape
that takes more than --row-limit seconds, or ends the worker, keeps what it had, and a new worker begins with the next;
after --budget seconds all ends, and the shape at hand keeps what it had. Triton's choices are kept on the disk.

    bench/compare_fla.py --fla /path/to/folder/of/fla --json fla.json --budget 400 --row-limit 60 gdn:3 kda:1 gsa

fla's tuning compiles each candidate before it times it, for minutes. With --compile (compare_compile.py) all candidates
of these shapes are compiled by several processes and nothing is timed, so that the next run with the same
TRITON_CACHE_DIR only times them. Of a candidate that takes Triton 125 ms; --tune-ms N makes it 1.25 N.

fla 0.6.0 refuses the gated backward pass on Hopper with Triton 3.4 to 3.7.0; --refused times it all the same.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import queue
import re
import sys
import time
import warnings
from typing import Any, Callable, Iterable, Iterator, Optional

import compare_cache
import compare_common as common
import compare_compile
import compare_pretend
from compare_clock import Clock, in_turns
from compare_shapes import SHAPES, SLOTS, TARGETS, TINY, caller, inputs, of_hola, of_other


def same_bits(torch: Any, op: str, ours: Callable, x: list[Any], cu: Any, right: Any) -> bool:
    """Again on another stream, with inputs elsewhere, beside other work."""
    if not x[0].is_cuda:
        return bool(torch.equal(caller(ours, op, x, cu)(), right))
    side = torch.cuda.Stream()
    room = torch.empty(4096 * 3 + 16, dtype=torch.uint8, device="cuda")  # moves what is allocated next
    busy = torch.randn(1024, 1024, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        moved = [y.detach().clone().requires_grad_() for y in x]
        got = caller(ours, op, moved, cu)()
    for _ in range(10):
        busy = busy @ busy * 1e-3
    torch.cuda.current_stream().wait_stream(side)
    del room
    return bool(torch.equal(got, right))


def measure(torch: Any, op: str, shape: tuple, device: str, clock: Clock, turns: int, why: str) -> Iterator[dict]:
    """What is known of a shape, each time that there is more. why: there is no fla."""
    x, cu = inputs(torch, op, shape, device)
    other = "torch" if op == "attention" else "fla"
    row: dict[str, Any] = {"op": op, "shape": shape[:5], "lengths": shape[5], "other": other}
    calls, outs, grads = {}, {}, {}

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def first(name: str, what: str, into: dict, call: Callable[[], Any]) -> None:
        """The first call of a side, which may compile and tune; into: takes what can be timed."""
        start = time.time()
        try:
            into[name] = call()
            wait()
        except Exception as error:  # a kernel that does not compile, a shape that is refused: the others go on
            into.pop(name, None)
            row[f"{name}_{what}failed"] = common.reason(error)
        row[f"{name}_first_s"] = row.get(f"{name}_first_s", 0.0) + time.time() - start

    def forward(name: str, function: Callable[[str], Callable]) -> None:
        def call() -> Callable:
            f = caller(function(op), op, x, cu)
            outs[name] = f()
            return f

        first(name, "", calls, call)
        if name not in calls:
            outs.pop(name, None)

    def backward(name: str) -> None:
        def call() -> Callable:
            out = outs[name]
            d = torch.randn_like(out)
            gradient = lambda: torch.autograd.grad(out, x, d, retain_graph=True)  # noqa: E731
            gradient()
            return gradient

        if name in outs:
            first(name, "backward_", grads, call)

    def clocked(way: str, fs: dict, many: int) -> None:
        for name, ms in in_turns(clock, fs, many).items():
            row[f"{name}_{way}_ms"] = ms

    if op != "gsa":
        forward("hola", of_hola)
        backward("hola")
    if "hola" in calls:
        clocked("forward", calls, min(2, turns))
        clocked("backward", grads, min(2, turns))
        row["same_bits"] = same_bits(torch, op, of_hola(op), x, cu, outs["hola"])
        if device == "cuda" and shape[1] * shape[0] <= 1024:
            row["host_us"] = clock.host(calls["hola"])
    yield dict(row, part="hola alone")
    if other == "fla" and why:
        row["other_failed"] = why
    else:
        forward("other", of_other)
    clocked("forward", calls, turns)
    if len(outs) == 2:
        a, b = (outs[n].detach().float() for n in ("hola", "other"))
        row["difference"] = float((a - b).norm() / b.norm())
    yield dict(row, part="forward")
    backward("other")
    clocked("backward", grads, turns)
    yield row


# ---- the worker, and who watches it ----


def rows_to_do(a: Any) -> list[tuple[str, tuple]]:
    """The first shape of each op, then the second, and so on; those with a target first."""
    shapes = TINY if a.dry_run else SHAPES
    most = {op: int(n) if n else a.only for op, _, n in (x.partition(":") for x in a.ops or SHAPES)}
    ops = list(most)
    todo = [(i, op, shape) for op in ops for i, shape in enumerate(shapes[op][: most[op]])]
    targets = [x for x in todo if x[1] == "gdn" and x[2][:5] in TARGETS and not x[2][5]]
    rest = sorted((x for x in todo if x not in targets), key=lambda x: (x[0], ops.index(x[1])))
    return [(op, shape) for _, op, shape in targets + rest]


def worker(a: Any) -> int:
    """A line of JSON for every step of every row from --from on."""
    import torch

    warnings.simplefilter("once")
    if a.dry_run:
        torch.set_num_threads(1)
    device = "cpu" if a.dry_run else "cuda"
    why = common.why_no_fla("fla.ops")
    counts: dict[str, Any] = {}
    if not why:
        print(compare_cache.take_key(), flush=True)
        counts = compare_compile.count_compiled()
    if a.tune_ms and not why:
        compare_compile.tune_for(a.tune_ms)
    lifted = common.let_fla_be_wrong() if a.refused and not why else ""
    if lifted:
        print(lifted, flush=True)
    clock = Clock(torch, device, 1.0 if a.dry_run else a.least)
    for i, (op, shape) in enumerate(rows_to_do(a)):
        if i < a.begin:
            continue
        for row in measure(torch, op, shape, device, clock, 1 if a.dry_run else a.turns, why):
            row["versions"] = {**common.versions(), "tune_ms": a.tune_ms, "triton_cache": dict(counts),
                               "lifted": bool(lifted)}
            print("ROW " + json.dumps([i, row]), flush=True)
        if counts.get("compiled"):
            print(f"Triton compiled {counts['compiled']} kernels and found {counts['found']}", flush=True)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return 0


def compiler(a: Any) -> int:
    """One of the processes of --compile: calls all that would be timed, with kernels that are not launched."""
    import torch

    torch.set_num_threads(1)
    if a.without_gpu:
        compare_pretend.pretend()
    why = common.why_no_fla("fla.ops")
    if why:
        print(f"fla: {why}", file=sys.stderr)
        return 1
    if a.refused:
        common.let_fla_be_wrong()
    tally = compare_compile.compile_only(pathlib.Path(a.claims))
    for op, shape in rows_to_do(a):
        if op != "attention":
            try:
                x, cu = inputs(torch, op, shape, "cpu" if a.without_gpu else "cuda", a.without_gpu)
                out = caller(of_other(op), op, x, cu)()
                torch.autograd.grad(out, x, torch.empty_like(out))
            except Exception as error:  # a refused backward pass
                tally.fail(error)
    print(json.dumps(tally.__dict__), flush=True)
    return 0


def watch(a: Any, argv: list[str]) -> list[dict]:
    """All rows; what ends a worker is its row's, and another begins behind it."""
    todo, rows, begin = rows_to_do(a), {}, 0
    until = time.monotonic() + a.budget
    versions: dict[str, Any] = {}

    def note(i: int, row: dict) -> None:
        versions.update(row.pop("versions", {}))
        if row["op"] == "gsa":
            row.update(of_bench_gla(a.bench_gla, row["shape"]))
        rows[i] = row
        common.save(a.json, {"versions": versions, "rows": [rows[n] for n in sorted(rows)]})

    while begin < len(todo) and (begin == 0 or time.monotonic() < until):
        w = common.Process([sys.executable, os.path.abspath(__file__), *argv, "--begin", str(begin)])
        at, why, started = begin, "", time.monotonic() + a.start_limit
        while at < len(todo):
            left = min(started + a.row_limit, until) - time.monotonic()
            try:
                line = w.line(left)
            except queue.Empty:
                why = f"took more than {a.row_limit:g} s" if time.monotonic() < until else "the time was up (--budget)"
                break
            if line is None:
                why = f"the process ended with status {w.process.wait()}"
                break
            if not line.startswith("ROW "):
                print(line, end="", flush=True)
                continue
            i, row = json.loads(line[4:])
            note(i, row)
            if "part" not in row:
                print(report([row]).splitlines()[2], flush=True)
                at, started = i + 1, time.monotonic()
                if time.monotonic() > until:
                    break
        if why and at < len(todo):
            op, shape = todo[at]
            row = rows.get(at, {"op": op, "shape": shape[:5], "lengths": shape[5]})
            what = {None: "hola_", "hola alone": "other_", "forward": "other_backward_"}[row.pop("part", None)]
            note(at, {**row, f"{what}failed": why})
            print(report([rows[at]]).splitlines()[2], flush=True)
            at += 1
        w.end(5 if at == len(todo) and not why else 0)
        begin = at
    if begin < len(todo):
        print(f"{len(todo) - begin} shapes were not begun: the time is up (--budget {a.budget:g})", flush=True)
    print(f"\n{versions}\n\n{report([rows[n] for n in sorted(rows)])}")
    return list(rows.values())


def of_bench_gla(path: Optional[str], shape: Iterable[int]) -> dict[str, Any]:
    """hola's times of gsa, of a line that bench/bench_gla.c printed for this shape."""
    line = r"gsa\s+(\d+) x\s+(\d+), (\d+) heads x\s+(\d+),\s+(\d+), (\d+) slots: forward ([\d.]+) ms, backward ([\d.]+)"
    for found in re.finditer(line, pathlib.Path(path).read_text() if path else ""):
        if [int(found[i]) for i in range(1, 7)] == [*shape, SLOTS]:
            return {"hola_forward_ms": float(found[7]), "hola_backward_ms": float(found[8]), "hola_of": "bench_gla"}
    return {}


def report(rows: list[dict]) -> str:
    lines, slower, compared = [], 0, 0
    for r in rows:
        B, T, H, K, V = r["shape"]
        packed = f" in {r['lengths']}" if r["lengths"] else ""
        line = [r["op"], f"{B} x {T}{packed}, {H} x {K}, {V}"]
        for way in ("forward", "backward"):
            ours, theirs = r.get(f"hola_{way}_ms"), r.get(f"other_{way}_ms")
            ratio = theirs / ours if ours and theirs else None
            compared += ratio is not None
            slower += ratio is not None and ratio < 1
            line += [ours, theirs, ratio]
        names = {"hola": "hola", "other": r.get("other", "fla")}
        failed = [f"{name} {way.strip('_')}: {r[n + '_' + way + 'failed']}".replace(" :", ":") for n, name in names.items()
                  for way in ("", "backward_") if f"{n}_{way}failed" in r]
        target = TARGETS.get(tuple(r["shape"])) if r["op"] == "gdn" and not r["lengths"] else None
        notes = failed + ([f"target {target[0]} / {target[1]}"] if target else [])
        notes += [f"hola: of {r['hola_of']}"] if "hola_of" in r else []
        notes += [f"outputs differ by {r['difference']:.2g}"] if r.get("difference", 0) > 0.02 else []
        notes += ["other bits on another stream"] if not r.get("same_bits", True) else []
        notes += [f"host {r['host_us']:.0f} us"] if "host_us" in r else []
        lines.append(line + ["; ".join(notes)])
    columns = ["op", "sequences x tokens, heads x d_k, d_v", "hola forward, ms", "fla (attention: torch)", "ratio",
               "hola backward, ms", "fla", "ratio", ""]
    return common.table(columns, lines) + f"\n\nhola is slower in {slower} of {compared} comparisons."


def main(argv: Optional[list[str]] = None) -> int:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("ops", nargs="*", metavar="OP[:N]",
                        help="of gdn, kda, gla, gsa and attention, and how many shapes of it; none: all")
    parser.add_argument("--turns", type=int, default=7, help="how often each side is timed")
    parser.add_argument("--least", type=float, default=30.0, metavar="MS", help="how long a turn takes, about")
    parser.add_argument("--only", type=int, metavar="N", help="the first N shapes of each op")
    parser.add_argument("--budget", type=float, default=3600, metavar="SECONDS", help="all ends after so long")
    parser.add_argument("--row-limit", type=float, default=300, metavar="SECONDS", help="the most of one shape")
    parser.add_argument("--start-limit", type=float, default=120, metavar="SECONDS",
                        help="what the first shape of a process may take beyond: imports")
    parser.add_argument("--bench-gla", metavar="FILE", help="what bench_gla printed: hola's times of gsa")
    compare_compile.arguments(parser)
    parser.add_argument("--begin", type=int, help="the worker itself, from this shape on")
    argv = sys.argv[1:] if argv is None else argv
    a = parser.parse_args(argv)
    for op, colon, n in (x.partition(":") for x in a.ops):
        if op not in SHAPES:
            parser.error(f"{op} is not one of {', '.join(SHAPES)}")
        if colon and not n.isdecimal():
            parser.error(f"{op}:{n}: how many shapes is a number")
    some = [1 if x is None else x for x in (a.only, a.tune_ms)]
    if a.turns < 1 or min(a.budget, a.row_limit, a.least, a.processes, *some) <= 0:
        parser.error("--turns, --least, --only, --tune-ms, --processes and limits take numbers above 0")
    common.find_packages(a.fla)
    os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")  # a worker that follows another does not tune again
    if a.begin is not None:
        return worker(a)
    if a.claims:
        return compiler(a)
    common.end_well()
    import torch

    if not a.dry_run and not torch.cuda.is_available() and not (a.compile and a.without_gpu):
        sys.exit("compare_fla: torch sees no CUDA device; --dry-run tries everything with tiny shapes on the CPU")
    if a.compile:
        return compare_compile.in_processes([sys.executable, os.path.abspath(__file__), *argv], a.processes, a.budget)
    watch(a, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
