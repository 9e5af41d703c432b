"""Times of functions on a CUDA device, or on the CPU where there is none."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable


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
