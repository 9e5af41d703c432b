#!/usr/bin/env python3
"""The tables of docs/speed.md, from what compare_fla.py and compare_flame.py wrote with --json.

    bench/compare_tables.py fla.json flame.json
"""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
from typing import Any, Optional

NAMES = {"gdn": "delta rule", "kda": "KDA", "gla": "GLA", "gsa": "GSA", "attention": "attention"}
LIFTED = "†"  # fla refuses to compute it, and with its guard lifted the result is wrong: only the time counts


def number(x: Optional[float], mark: str = "") -> str:
    return "" if x is None else f"{x:.3f}{mark}"


def of_fla(got: dict[str, Any]) -> str:
    """Forward and backward of both sides, and how many times longer the other takes."""
    lines, fewer = [], []
    for r in got["rows"]:
        B, T, H, K, V = r["shape"]
        packed = f", packed in {r['lengths']}" if r["lengths"] else ""
        cells = [f"{NAMES[r['op']]}, {B} x {T:,}{packed}, {H} x {K}" + (f", {V}" if V != K else "")]
        for way in ("forward", "backward"):
            ours, theirs = r.get(f"hola_{way}_ms"), r.get(f"other_{way}_ms")
            lifted = got["versions"].get("lifted") and r["op"] == "gdn" and way == "backward"
            refused = "refused" if "other_backward_failed" in r and way == "backward" else ""
            cells += [number(ours), number(theirs, f" {LIFTED}" if lifted else "") or refused,
                      f"{theirs / ours:.2f}" if ours and theirs else ""]
            if ours and theirs and ours > theirs:
                fewer.append(f"{cells[0]}: {way}")
        lines.append("| " + " | ".join(cells) + " |")
    head = ["| op, sequences x length, heads x size | hola, forward | fla, or PyTorch for attention | times"
            " | hola, backward | fla | times |", "|---" * 7 + "|"]
    note = "hola is slower: " + ("; ".join(fewer) or "nowhere")
    return "\n".join(head + lines + ["", note, str(got["versions"])])


def of_flame(got: dict[str, Any]) -> str:
    warm, ways, lines = got["settings"]["warm"], got["ways"], []

    def speed(way: str) -> Optional[float]:
        steps = ways.get(way, {}).get("timed", {}).get("tokens_per_s", [])
        return statistics.median(steps[min(warm, len(steps) - 1):]) if steps else None

    for way, r in ways.items():
        small = r.get("losses", {}).get("losses", [])
        mark = f" {LIFTED}" if way == "fla" and got["settings"].get("refused") else ""
        now, base = speed(way), speed("fla")
        memory = r.get("device_gb"), r.get("timed", {}).get("allocated_gb")
        cells = [way, f"{now:,.0f}{mark}" if now else r.get("failed", ""), f"{now / base:.2f}" if now and base else "",
                 *("" if x is None else f"{x:.1f}" for x in memory),
                 *(f"{statistics.mean(small[i:i + 20]):.3f}{mark}" if len(small) >= i + 20 else "" for i in (0, 80, 180))]
        lines.append("| " + " | ".join(cells) + " |")
    head = ["| | tokens/s | times fla's | device memory, GB | PyTorch's, GB | loss, steps 1 to 20 | 81 to 100"
            " | 181 to 200 |", "|---" * 8 + "|"]
    apart = ""
    if "timed" in ways.get("hola", {}) and "timed" in ways.get("hola-compiled", {}):
        pairs = zip(ways["hola"]["timed"]["losses"], ways["hola-compiled"]["timed"]["losses"])
        most = max(abs(a - b) for a, b in pairs)
        apart = f"losses of the timed steps, eager and compiled, differ by at most {most:.4f}"
    return "\n".join(head + lines + ["", apart, str(got["settings"])])


def main(paths: list[str]) -> int:
    for path in paths:
        got = json.loads(pathlib.Path(path).read_text())
        print(of_fla(got) if "rows" in got else of_flame(got), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
