#!/usr/bin/env python3
"""Times hola.torch's chunked operators and flash-linear-attention's in one process, in turns.

Forward: with the norm of q and k where the models use it, and with what the backward pass needs kept. Backward: all
gradients. Work is queued behind a pause of the device, so that what is timed is the device; medians of several turns.
Outputs are compared with each other (gradients are not: fla's are wrong on Hopper with Triton 3.4 to 3.7), and hola's
are computed again on another stream, at other addresses: they must have the same bits. Attention is timed against
PyTorch's scaled_dot_product_attention. With a libhola without CUDA, or without fla, the other is timed alone.

A worker process goes over the shapes. hola is timed alone first, which takes a second; then the other, whose first call
makes Triton tune, then both in turns. What is known of a shape is reported and written to --json at each step. A shape
that takes more than --row-limit seconds, or ends the worker, keeps what it had, and a new worker begins with the next;
after --budget seconds no other shape is begun. Triton's choices are kept on the disk between workers.

    bench/compare_fla.py --fla /path/to/folder/of/fla --json fla.json --budget 400 --row-limit 60

fla 0.6.0 refuses the gated backward pass on Hopper with Triton 3.4 to 3.7; --refused times it all the same.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
import warnings
from typing import Any, Callable, Iterator, Optional

import compare_common as common

# sequences, tokens, key heads, d_k, d_v; lengths: so many sequences of random lengths in one row
SHAPES = {
    "gdn": [
        (16, 2048, 4, 256, 256, 0), (32, 2048, 4, 128, 128, 0), (1, 32768, 4, 256, 256, 0), (1, 512, 2, 64, 64, 0),
        (1, 512, 32, 128, 128, 0), (64, 512, 4, 64, 64, 0), (64, 512, 8, 128, 128, 0), (8, 1024, 6, 256, 512, 0),
        (4, 4096, 16, 64, 64, 0), (2, 8192, 8, 128, 256, 0), (1, 16384, 32, 128, 128, 0), (1, 32768, 2, 64, 64, 0),
        (1, 32768, 16, 128, 128, 0), (32, 1024, 8, 64, 128, 0), (16, 2048, 8, 128, 128, 0), (2, 2048, 2, 256, 256, 0),
        (1, 8192, 4, 256, 256, 7), (1, 32768, 8, 128, 128, 32), (1, 16384, 16, 64, 64, 64), (1, 4096, 4, 256, 512, 4),
    ],
    "kda": [
        (32, 2048, 4, 128, 128, 0), (16, 2048, 8, 128, 128, 0), (1, 32768, 4, 128, 128, 0), (4, 4096, 16, 64, 64, 0),
        (1, 16384, 8, 128, 128, 16),
    ],
    "gla": [
        (32, 2048, 4, 128, 128, 0), (32, 2048, 4, 64, 128, 0), (16, 2048, 4, 128, 256, 0), (1, 32768, 8, 128, 128, 0),
        (1, 16384, 8, 64, 64, 16),
    ],
    "attention": [
        (16, 2048, 16, 64, 64, 0), (8, 2048, 16, 128, 128, 0), (2, 8192, 16, 128, 128, 0), (1, 32768, 8, 128, 128, 0),
    ],
}  # fmt: skip
TINY = {"gdn": [(2, 40, 2, 16, 16, 0), (1, 70, 1, 16, 32, 3)], "kda": [(1, 40, 2, 16, 16, 0)],
        "gla": [(1, 40, 2, 16, 16, 2)], "attention": [(1, 40, 2, 16, 16, 0)]}
TARGETS = {(16, 2048, 4, 256, 256): (0.32, 0.65), (32, 2048, 4, 128, 128): (0.37, 0.53),
           (1, 32768, 4, 256, 256): (0.58, 1.2)}  # of gdn on an H200, ms: forward, backward


def inputs(torch: Any, op: str, shape: tuple, device: str) -> tuple[list[Any], Any]:
    B, T, H, K, V, lengths = shape
    torch.manual_seed(T + K)
    make = lambda *size: torch.randn(*size, device=device, dtype=torch.bfloat16)  # noqa: E731
    x = [make(B, T, H, K), make(B, T, H, K), make(B, T, H, V)]
    if op != "attention":
        x.append(-0.1 * torch.rand(*((B, T, H) if op == "gdn" else (B, T, H, K)), device=device))
    if op in ("gdn", "kda"):
        x.append(torch.rand(B, T, H, device=device).bfloat16())
    cu = None
    if lengths:
        cuts = torch.randperm(T - 1)[: lengths - 1].sort().values + 1
        cu = torch.cat([torch.tensor([0]), cuts, torch.tensor([T])]).int().to(device)
    return [y.requires_grad_() for y in x], cu


def caller(function: Callable, op: str, x: list[Any], cu: Any) -> Callable[[], Any]:
    if op == "attention":
        return lambda: function(*x, causal=True)
    more = {} if op == "gla" else {"beta": x[4], "use_qk_l2norm_in_kernel": True}
    return lambda: function(x[0], x[1], x[2], g=x[3], cu_seqlens=cu, **more)[0]


def functions(op: str) -> tuple[Callable, str, Callable[[], Callable]]:
    """hola's function, who the other is, and what imports the other's."""
    import hola.torch as ht

    def of_fla() -> Callable:
        module, name = {"gdn": ("gated_delta_rule", "chunk_gated_delta_rule"), "kda": ("kda", "chunk_kda"),
                        "gla": ("gla", "chunk_gla")}[op]
        return getattr(__import__(f"fla.ops.{module}", fromlist=[name]), name)

    def of_torch() -> Callable:
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        return lambda q, k, v, causal: sdpa(*(y.transpose(1, 2) for y in (q, k, v)), is_causal=causal).transpose(1, 2)

    ours = {"gdn": ht.chunk_gated_delta_rule, "kda": ht.chunk_kda, "gla": ht.chunk_gla,
            "attention": ht.flash_attn_func}[op]
    return (ours, "torch", of_torch) if op == "attention" else (ours, "fla", of_fla)


class Clock:
    """Times of a device, or of the CPU where there is none."""

    def __init__(self, torch: Any, device: str, least: float):
        self.torch, self.cuda, self.least = torch, device == "cuda", least

    def run(self, f: Callable[[], Any], n: int, host_us: float = 0.0) -> float:
        """ms a call, of n queued ones, each of which takes the host so long."""
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(n):
                f()
            return 1e3 * (time.perf_counter() - start) / n
        a, b = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        pause = min(max(1e3, 1.2 * n * host_us), 1e5)  # us; while it lasts the calls are queued
        self.torch.cuda._sleep(int(2000 * pause))
        a.record()
        for _ in range(n):
            f()
        b.record()
        b.synchronize()
        return float(a.elapsed_time(b)) / n

    def calls(self, f: Callable[[], Any]) -> tuple[int, float]:
        """How many take about `least` ms; microseconds of the host for each."""
        f()
        host = self.host(f, 3) if self.cuda else 0.0
        once = max(self.run(f, 2 if self.cuda else 1, host), 1e-3)
        return max(3 if self.cuda else 1, min(60, int(self.least / once))), host

    def host(self, f: Callable[[], Any], n: int = 50) -> float:
        """Microseconds that the host takes for a call, n of which fit into the device's queue."""
        f()
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            f()
        return 1e6 * (time.perf_counter() - start) / n


def in_turns(clock: Clock, fs: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    n = {name: clock.calls(f) for name, f in fs.items()}
    times: dict[str, list[float]] = {name: [] for name in fs}
    for _ in range(turns):
        for name, f in fs.items():
            times[name].append(clock.run(f, *n[name]))
    return {name: statistics.median(t) for name, t in times.items()}


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
    ours, other, imported = functions(op)
    row: dict[str, Any] = {"op": op, "shape": shape[:5], "lengths": shape[5], "other": other}
    calls, outs, grads = {}, {}, {}

    def prepare(name: str, function: Callable[[], Callable]) -> None:
        """The first call of a side, which may compile and tune."""
        try:
            start = time.time()
            f = caller(function(), op, x, cu)
            out = f()
            d = torch.randn_like(out)
            gradient = lambda: torch.autograd.grad(out, x, d, retain_graph=True)  # noqa: E731
            gradient()
            if device == "cuda":
                torch.cuda.synchronize()
            row[f"{name}_first_s"] = time.time() - start
            calls[name], outs[name], grads[name] = f, out, gradient
        except Exception as error:  # a kernel that does not compile, a shape that is refused: the others go on
            row[f"{name}_failed"] = common.reason(error)

    def clocked(many: int) -> None:
        for way, fs in (("forward", calls), ("backward", grads)):
            for name, ms in in_turns(clock, fs, many).items():
                row[f"{name}_{way}_ms"] = ms

    prepare("hola", lambda: ours)
    if "hola" in calls:
        clocked(min(2, turns))
        row["same_bits"] = same_bits(torch, op, ours, x, cu, outs["hola"])
        if device == "cuda" and shape[1] * shape[0] <= 1024:
            row["host_us"] = clock.host(calls["hola"])
    yield dict(row, part="hola alone")
    if other == "fla" and why:
        row["other_failed"] = why
    else:
        prepare("other", imported)
        yield dict(row, part="prepared")
    if calls:
        clocked(turns)
    if len(outs) == 2:
        a, b = (outs[n].detach().float() for n in ("hola", "other"))
        row["difference"] = float((a - b).norm() / b.norm())
    yield row


# ---- the worker, and who watches it ----


def rows_to_do(a: Any) -> list[tuple[str, tuple]]:
    """The first shape of each op, then the second, and so on; those with a target first."""
    shapes = TINY if a.dry_run else SHAPES
    ops = a.ops or list(SHAPES)
    todo = [(i, op, shape) for op in ops for i, shape in enumerate(shapes[op][: a.only])]
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
    why = common.why_no_fla()
    if a.refused and not why:
        print(common.let_fla_be_wrong(), flush=True)
    clock = Clock(torch, device, 1.0 if a.dry_run else a.least)
    for i, (op, shape) in enumerate(rows_to_do(a)):
        if i < a.begin:
            continue
        for row in measure(torch, op, shape, device, clock, 1 if a.dry_run else a.turns, why):
            row["versions"] = common.versions()
            print("ROW " + json.dumps([i, row]), flush=True)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return 0


class Worker:
    """A process whose lines are read with a time limit."""

    def __init__(self, begin: int, argv: list[str]):
        command = [sys.executable, os.path.abspath(__file__), *argv, "--begin", str(begin)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace")
        self.lines: "queue.Queue[Optional[str]]" = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def end(self) -> int:
        if self.process.poll() is None:
            try:
                self.process.wait(5 if self.lines.empty() else 0.1)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def watch(a: Any, argv: list[str]) -> list[dict]:
    """All rows; what ends a worker is its row's, and another begins behind it."""
    todo, rows, begin = rows_to_do(a), {}, 0
    start = time.monotonic()
    versions: dict[str, Any] = {}

    def note(i: int, row: dict) -> None:
        versions.update(row.pop("versions", {}))
        rows[i] = row
        common.save(a.json, {"versions": versions, "rows": [rows[n] for n in sorted(rows)]})

    while begin < len(todo) and time.monotonic() - start < a.budget:
        w, at, why, started = Worker(begin, argv), begin, "", time.monotonic() + a.start_limit
        while at < len(todo):
            left = min(started + a.row_limit, start + a.budget + a.row_limit) - time.monotonic()
            try:
                line = w.lines.get(timeout=max(left, 0.01))
            except queue.Empty:
                why = f"took more than {a.row_limit:g} s"
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
                if time.monotonic() - start > a.budget:
                    break
        if why and at < len(todo):
            op, shape = todo[at]
            row = rows.get(at, {"op": op, "shape": shape[:5], "lengths": shape[5]})
            side = "hola" if "part" not in row else "other"  # hola is timed first
            note(at, {**{k: v for k, v in row.items() if k != "part"}, f"{side}_failed": why})
            print(report([rows[at]]).splitlines()[2], flush=True)
            at += 1
            w.process.kill()
        elif at < len(todo):
            w.process.kill()
        w.end()
        begin = at
    if begin < len(todo):
        print(f"{len(todo) - begin} shapes were not begun: the time is up (--budget {a.budget:g})", flush=True)
    print(f"\n{versions}\n\n{report([rows[n] for n in sorted(rows)])}")
    return list(rows.values())


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
        failed = "; ".join(f"{name}: {r[n + '_failed']}" for n, name in names.items() if n + "_failed" in r)
        target = TARGETS.get(tuple(r["shape"])) if r["op"] == "gdn" and not r["lengths"] else None
        notes = [f"target {target[0]} / {target[1]}"] if target else []
        notes += [f"outputs differ by {r['difference']:.2g}"] if r.get("difference", 0) > 0.02 else []
        notes += ["other bits on another stream"] if not r.get("same_bits", True) else []
        notes += [f"host {r['host_us']:.0f} us"] if "host_us" in r else []
        lines.append(line + ["; ".join([failed] * bool(failed) + notes)])
    columns = ["op", "sequences x tokens, heads x d_k, d_v", "hola forward, ms", "fla (attention: torch)", "ratio",
               "hola backward, ms", "fla", "ratio", ""]
    return common.table(columns, lines) + f"\n\nhola is slower in {slower} of {compared} comparisons."


def main(argv: Optional[list[str]] = None) -> int:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("ops", nargs="*", metavar="OP", help="of gdn, kda, gla and attention; none: all")
    parser.add_argument("--turns", type=int, default=7, help="how often each side is timed")
    parser.add_argument("--least", type=float, default=30.0, metavar="MS", help="how long a turn takes, about")
    parser.add_argument("--only", type=int, metavar="N", help="the first N shapes of each op")
    parser.add_argument("--budget", type=float, default=3600, metavar="SECONDS", help="begin no shape after so long")
    parser.add_argument("--row-limit", type=float, default=300, metavar="SECONDS", help="the most of one shape")
    parser.add_argument("--start-limit", type=float, default=120, metavar="SECONDS",
                        help="what the first shape of a process may take beyond: imports")
    parser.add_argument("--begin", type=int, help="the worker itself, from this shape on")
    argv = sys.argv[1:] if argv is None else argv
    a = parser.parse_args(argv)
    for op in a.ops:
        if op not in SHAPES:
            parser.error(f"{op} is not one of {', '.join(SHAPES)}")
    numbers = (a.turns - 1, a.budget, a.row_limit, a.least, 1 if a.only is None else a.only)
    if numbers[0] < 0 or min(numbers[1:]) <= 0:
        parser.error("--turns, --least, --only and limits take numbers above 0")
    common.find_packages(a.fla)
    os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")  # a worker that follows another does not tune again
    if a.begin is not None:
        return worker(a)
    import torch

    if not a.dry_run and not torch.cuda.is_available():
        sys.exit("compare_fla: torch sees no CUDA device; --dry-run tries everything with tiny shapes on the CPU")
    watch(a, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
