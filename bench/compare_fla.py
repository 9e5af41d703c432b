#!/usr/bin/env python3
"""Times hola.torch's chunked operators and flash-linear-attention's in one process, in turns.

Forward: with the norm of q and k where the models use it, and with what the backward pass needs kept. Backward: all
gradients. Work is queued without waiting, so that what is timed is the device; medians of several turns. Outputs are
compared with each other (gradients are not: fla's are wrong on Hopper with Triton 3.4 to 3.7), and hola's are computed
again on another stream, at other addresses: they must have the same bits. The first call of each shape makes Triton
tune, which can take minutes. With a libhola without CUDA, or without fla, the other is timed alone.

    bench/compare_fla.py --fla /path/to/folder/of/fla --json fla.json
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import warnings
from typing import Any, Callable, Optional

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
}  # fmt: skip
TINY = {"gdn": [(2, 40, 2, 16, 16, 0), (1, 70, 1, 16, 32, 3)], "kda": [(1, 40, 2, 16, 16, 0)],
        "gla": [(1, 40, 2, 16, 16, 2)]}
TARGETS = {(16, 2048, 4, 256, 256): (0.32, 0.65), (32, 2048, 4, 128, 128): (0.37, 0.53),
           (1, 32768, 4, 256, 256): (0.58, 1.2)}  # of gdn on an H200, ms: forward, backward


def inputs(torch: Any, op: str, shape: tuple, device: str) -> tuple[list[Any], Any]:
    B, T, H, K, V, lengths = shape
    torch.manual_seed(T + K)
    make = lambda *size: torch.randn(*size, device=device, dtype=torch.bfloat16)  # noqa: E731
    gates = (B, T, H) if op == "gdn" else (B, T, H, K)
    x = [make(B, T, H, K), make(B, T, H, K), make(B, T, H, V), -0.1 * torch.rand(*gates, device=device)]
    if op != "gla":
        x.append(torch.rand(B, T, H, device=device).bfloat16())
    cu = None
    if lengths:
        cuts = torch.randperm(T - 1)[: lengths - 1].sort().values + 1
        cu = torch.cat([torch.tensor([0]), cuts, torch.tensor([T])]).int().to(device)
    return [y.requires_grad_() for y in x], cu


def caller(functions: dict[str, Callable], op: str, x: list[Any], cu: Any) -> Callable[[], Any]:
    more = {} if op == "gla" else {"beta": x[4], "use_qk_l2norm_in_kernel": True}
    return lambda: functions[op](x[0], x[1], x[2], g=x[3], cu_seqlens=cu, **more)[0]


class Clock:
    """Times of a device, or of the CPU where there is none."""

    def __init__(self, torch: Any, device: str, least: float):
        self.torch, self.cuda, self.least = torch, device == "cuda", least

    def run(self, f: Callable[[], Any], n: int) -> float:
        """ms a call, of n queued ones."""
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(n):
                f()
            return 1e3 * (time.perf_counter() - start) / n
        a, b = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(2_000_000)  # about a millisecond, while the first calls are queued
        a.record()
        for _ in range(n):
            f()
        b.record()
        b.synchronize()
        return float(a.elapsed_time(b)) / n

    def calls(self, f: Callable[[], Any]) -> int:
        """How many take about `least` ms."""
        f()
        once = max(self.run(f, 2 if self.cuda else 1), 1e-3)
        return max(3 if self.cuda else 1, min(200, int(self.least / once)))

    def host(self, f: Callable[[], Any], n: int = 50) -> float:
        """Microseconds that the host takes for a call."""
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
            times[name].append(clock.run(f, n[name]))
    return {name: statistics.median(t) for name, t in times.items()}


def same_bits(torch: Any, op: str, ours: dict, x: list[Any], cu: Any, right: Any) -> bool:
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


def measure(torch: Any, op: str, shape: tuple, sides: dict[str, dict], device: str, clock: Clock, turns: int) -> dict:
    x, cu = inputs(torch, op, shape, device)
    row: dict[str, Any] = {"op": op, "shape": shape[:5], "lengths": shape[5]}
    calls, outs = {}, {}
    for name, functions in sides.items():
        try:
            f = caller(functions, op, x, cu)
            start = time.time()
            outs[name] = f()
            d = torch.randn_like(outs[name])
            torch.autograd.grad(outs[name], x, d, retain_graph=True)
            if device == "cuda":
                torch.cuda.synchronize()
            row[f"{name}_first_s"] = time.time() - start
            calls[name] = f
        except Exception as error:  # a kernel that does not compile, a shape that is refused: the others go on
            outs.pop(name, None)
            row[f"{name}_failed"] = common.reason(error)
    forward = in_turns(clock, calls, turns)
    graphs = {name: (outs[name], torch.randn_like(outs[name])) for name in calls}
    backward = in_turns(clock, {name: (lambda o=o, d=d: torch.autograd.grad(o, x, d, retain_graph=True))
                                for name, (o, d) in graphs.items()}, turns)
    for name in calls:
        row[f"{name}_forward_ms"], row[f"{name}_backward_ms"] = forward[name], backward[name]
    if "hola" in outs:
        row["same_bits"] = same_bits(torch, op, sides["hola"], x, cu, outs["hola"])
        if device == "cuda" and shape[1] * shape[0] <= 1024:
            row["host_us"] = clock.host(calls["hola"])
    if len(outs) == 2:
        a, b = (outs[n].detach().float() for n in sides)
        row["difference"] = float((a - b).norm() / b.norm())
    return row


def report(rows: list[dict]) -> str:
    lines, slower, compared = [], 0, 0
    for r in rows:
        B, T, H, K, V = r["shape"]
        packed = f" in {r['lengths']}" if r["lengths"] else ""
        line = [r["op"], f"{B} x {T}{packed}, {H} x {K}, {V}"]
        for way in ("forward", "backward"):
            ours, theirs = r.get(f"hola_{way}_ms"), r.get(f"fla_{way}_ms")
            ratio = theirs / ours if ours and theirs else None
            compared += ratio is not None
            slower += ratio is not None and ratio < 1
            line += [ours, theirs, ratio]
        failed = "; ".join(f"{n}: {r[n + '_failed']}" for n in ("hola", "fla") if n + "_failed" in r)
        target = TARGETS.get(tuple(r["shape"])) if r["op"] == "gdn" and not r["lengths"] else None
        notes = [f"target {target[0]} / {target[1]}"] if target else []
        notes += [f"outputs differ by {r['difference']:.2g}"] if r.get("difference", 0) > 0.02 else []
        notes += ["other bits on another stream"] if not r.get("same_bits", True) else []
        notes += [f"host {r['host_us']:.0f} us"] if "host_us" in r else []
        lines.append(line + ["; ".join([failed] * bool(failed) + notes)])
    columns = ["op", "sequences x tokens, heads x d_k, d_v", "hola forward, ms", "fla", "ratio", "hola backward, ms",
               "fla", "ratio", ""]
    return common.table(columns, lines) + f"\n\nhola is slower in {slower} of {compared} comparisons."


def main(argv: Optional[list[str]] = None) -> int:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("ops", nargs="*", metavar="OP", help="of gdn, kda and gla; none: all")
    parser.add_argument("--turns", type=int, default=7, help="how often each side is timed")
    parser.add_argument("--least", type=float, default=30.0, metavar="MS", help="how long a turn takes, about")
    parser.add_argument("--only", type=int, metavar="N", help="the first N shapes of each op")
    a = parser.parse_args(argv)
    for op in a.ops:
        if op not in SHAPES:
            parser.error(f"{op} is not one of {', '.join(SHAPES)}")
    if a.turns < 1 or a.least <= 0 or (a.only is not None and a.only < 1):
        parser.error("--turns, --least and --only take numbers above 0")
    common.find_packages(a.fla)
    import torch

    import hola.torch as ht

    warnings.simplefilter("once")
    if not a.dry_run and not torch.cuda.is_available():
        sys.exit("compare_fla: torch sees no CUDA device; --dry-run tries everything with tiny shapes on the CPU")
    device = "cpu" if a.dry_run else "cuda"
    if a.dry_run:
        torch.set_num_threads(1)
    sides: dict[str, dict] = {"hola": {"gdn": ht.chunk_gated_delta_rule, "kda": ht.chunk_kda, "gla": ht.chunk_gla}}
    why = "a dry run" if a.dry_run else common.why_no_fla()
    if not why:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
        from fla.ops.gla import chunk_gla
        from fla.ops.kda import chunk_kda

        sides["fla"] = {"gdn": chunk_gated_delta_rule, "kda": chunk_kda, "gla": chunk_gla}
    else:
        print(f"fla is not timed: {why}", flush=True)
    clock, rows = Clock(torch, device, 1.0 if a.dry_run else a.least), []
    for op in a.ops or SHAPES:
        for shape in (TINY if a.dry_run else SHAPES)[op][: a.only]:
            rows.append(measure(torch, op, shape, sides, device, clock, 1 if a.dry_run else a.turns))
            print(report(rows[-1:]).splitlines()[2], flush=True)
            common.save(a.json, {"versions": common.versions(), "rows": rows})
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    print(f"\n{common.versions()}\n\n{report(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
