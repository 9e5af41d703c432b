#!/usr/bin/env python3
"""Trains the same model five ways in one run and compares tokens/s, peak memory and losses.

    fla            fla's GatedDeltaNetForCausalLM as it is
    fla-patched    the same after hola.torch.patch_fla()
    hola           HolaForCausalLM (the exact memory included), eager
    hola-compiled  the same through torch.compile
    hola-train     the program, `hola train`, on the same kind of model as fla's

Each way is a process of its own, one after another, on the same token shards (`hola prepare`; without --data, this
tree's documents and sources as bytes), with AdamW, the learning rates of `hola train`, float32 weights and bf16
computation. One that fails is a line with its reason, and the others go on. A way begins no other step after --seconds,
and is ended after --limit; the steps that it has made count. tokens/s is the median of the steps after --warm; memory
is what the device has less of, context included, and what torch's allocator held at most.

    bench/compare_flame.py --fla /path/to/folder/of/fla --data data --json flame.json
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Optional

import compare_common as common

WAYS = ("fla", "fla-patched", "hola", "hola-compiled", "hola-train")
SIZES = {  # hola's preset 340m, and a tiny one for dry runs
    "340m": dict(hidden_size=1024, num_hidden_layers=24, intermediate_size=2816, vocab_size=32000, num_heads=4,
                 head_dim=256, expand_v=1.0, use_gate=False, tie_word_embeddings=True),
    "tiny": dict(hidden_size=32, num_hidden_layers=2, intermediate_size=64, vocab_size=300, num_heads=2, head_dim=16,
                 expand_v=1.0, use_gate=False, tie_word_embeddings=True),
}
LR, MIN_LR, DECAY, BETAS, CLIP = 4e-4, 0.1, 0.01, (0.9, 0.95), 1.0


def learning_rate(step: int, steps: int) -> float:
    """As `hola train`: a linear warmup over a tenth of the steps, then a cosine down to MIN_LR of the peak."""
    warmup = min(1000, max(1, steps // 10))
    if step < warmup:
        return LR * (step + 1) / warmup
    x = (step - warmup) / max(1, steps - warmup)
    return LR * (MIN_LR + (1 - MIN_LR) * 0.5 * (1 + math.cos(math.pi * x)))


# ---- one way, in its own process ----


def rows_of(data: pathlib.Path, seq_len: int) -> Any:
    """The rows of all training shards, [rows, seq_len] (docs/data.md has the format)."""
    import numpy

    parts = []
    for path in sorted(data.glob("train_*.bin")):
        head = numpy.fromfile(path, "<i4", 256)
        kind = {20240520: "<u2", 20240801: "<u4"}.get(int(head[0]))
        if kind is None:
            raise SystemExit(f"{path}: not a token shard")
        parts.append(numpy.fromfile(path, kind, int(head[2]), offset=1024))
    tokens = numpy.concatenate(parts) if parts else numpy.empty(0, "<u2")
    if len(tokens) < seq_len:
        raise SystemExit(f"{data}: {len(tokens)} tokens, and a row has {seq_len}")
    return tokens[: len(tokens) // seq_len * seq_len].reshape(-1, seq_len).astype("int64")


def model_of(way: str, size: str, seq_len: int, refused: bool) -> Any:
    import hola.torch as ht

    fields = dict(SIZES[size], max_position_embeddings=seq_len, use_cache=False)
    if way.startswith("fla"):
        from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM

        if refused:
            print(common.let_fla_be_wrong(), file=sys.stderr)
        if way == "fla-patched":
            print(f"patched: {len(ht.patch_fla())} places", file=sys.stderr)
        return GatedDeltaNetForCausalLM(GatedDeltaNetConfig(**fields))
    return ht.HolaForCausalLM(ht.HolaConfig(**fields))


def train(way: str, size: str, data: pathlib.Path, seq_len: int, batch: int, steps: int, most_s: float,
          refused: bool) -> dict[str, Any]:
    """Prints what is known after every step as a line of JSON: it counts if the process is ended."""
    import numpy
    import torch

    device = "cuda" if size == "340m" else "cpu"
    torch.manual_seed(0)
    if device == "cpu":
        torch.set_num_threads(1)
    model = model_of(way, size, seq_len, refused).to(device).train()
    run = torch.compile(model) if way == "hola-compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=DECAY, fused=device == "cuda")
    rows = rows_of(data, seq_len)
    order = numpy.random.default_rng(0).permutation(len(rows))
    losses, seconds, begin = [], [], time.perf_counter()
    result: dict[str, Any] = {}
    for step in range(steps):
        start = time.perf_counter()
        if step > 0 and start - begin > most_s:
            break
        ids = torch.from_numpy(rows[[order[(step * batch + i) % len(order)] for i in range(batch)]]).to(device)
        with torch.autocast(device, torch.bfloat16):
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))  # waits for the device
        seconds.append(time.perf_counter() - start)
        print(f"{way}: step {step + 1}/{steps}, loss {losses[-1]:.4f}, {batch * seq_len / seconds[-1]:,.0f} tokens/s",
              file=sys.stderr, flush=True)
        held = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None
        result = {"losses": losses, "tokens_per_s": [batch * seq_len / s for s in seconds], "allocated_gb": held,
                  "parameters": sum(p.numel() for p in model.parameters()), "versions": common.versions()}
        print(json.dumps(result), flush=True)
    return result


def train_with_program(program: str, size: str, data: pathlib.Path, seq_len: int, batch: int, steps: int,
                       out: pathlib.Path, most_s: float) -> dict[str, Any]:
    config = out / "config.json"
    config.write_text(json.dumps(dict(SIZES[size], model_type="gated_deltanet", max_position_embeddings=seq_len)))
    tokens = str(batch * seq_len)
    command = [program, "train", "--data", str(data), "--out", str(out / "run"), "--config", str(config), "--steps",
               str(steps), "--batch-tokens", tokens, "--micro-tokens", tokens, "--seq-len", str(seq_len),
               "--eval-every", str(10**9), "--eval-tokens", str(seq_len), "--save-every", str(10**9), "--lr", str(LR), "--backend",
               "cuda" if size == "340m" else "cpu", "--json"]
    why = ""
    try:
        got = subprocess.run(command, capture_output=True, text=True, timeout=most_s)
        if got.returncode != 0:
            why = (got.stderr.strip() or f"hola train ended with status {got.returncode}").splitlines()[-1]
    except subprocess.TimeoutExpired:
        pass  # the steps that it has made
    metrics = out / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
    if why or not lines:
        raise RuntimeError(why or f"hola train made no step in {most_s:g} s")
    return {"losses": [x["loss"] for x in lines], "tokens_per_s": [x["tok_per_s"] for x in lines],
            "allocated_gb": None, "parameters": None}


def one(way: str, a: Any) -> int:
    """Prints one line of JSON, the result or the reason why there is none."""
    try:
        if way == "hola-train":
            with tempfile.TemporaryDirectory() as folder:
                result = train_with_program(a.hola, a.size, pathlib.Path(a.data), a.seq_len, a.batch, a.steps,
                                            pathlib.Path(folder), a.seconds)
        else:
            result = train(way, a.size, pathlib.Path(a.data), a.seq_len, a.batch, a.steps, a.seconds,
                           a.refused)
    except (Exception, SystemExit) as error:
        result = {"failed": common.reason(error)}
    print(json.dumps(result), flush=True)
    return 0


# ---- all of them ----


class Memory(threading.Thread):
    """The most that is used of the device, in GB, beyond what was used at the start."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.done = 0.0, threading.Event()

    def run(self) -> None:
        import torch

        if not torch.cuda.is_available():
            return
        free, _ = torch.cuda.mem_get_info()
        while not self.done.wait(0.05):
            self.most = max(self.most, (free - torch.cuda.mem_get_info()[0]) / 1e9)


def run_limited(command: list[str], limit: float) -> tuple[str, str]:
    """-> what it printed, why it was ended or how it ended ("": well). It is ended with all that it started."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return said, f"took more than {limit:g} s"
    return said, "" if process.returncode == 0 else f"ended with status {process.returncode}"


def result_of(said: str, why: str) -> dict[str, Any]:
    """The last whole line of JSON; why: how its process ended, if not well."""
    for line in reversed(said.splitlines()):
        try:
            result = json.loads(line)
        except ValueError:
            continue
        if isinstance(result, dict):
            return {**result, "ended": why} if why else result
    return {"failed": why or "it said nothing"}


def compare(a: Any, data: str) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    for way in a.ways:
        command = [sys.executable, __file__, "--way", way, "--data", data, "--size", a.size, "--steps", str(a.steps),
                   "--batch", str(a.batch), "--seq-len", str(a.seq_len), "--hola", a.hola, "--seconds", str(a.seconds)]
        if a.fla:
            command += ["--fla", a.fla]
        if a.refused:
            command.append("--refused")
        memory = Memory()
        memory.start()
        result = result_of(*run_limited(command, a.limit))
        memory.done.set()
        memory.join()
        result["device_gb"] = memory.most or None
        results[way] = result
        common.save(a.json, {"settings": settings(a), "ways": results})
    return results


def settings(a: Any) -> dict[str, Any]:
    return {"size": a.size, "steps": a.steps, "batch": a.batch, "seq_len": a.seq_len, "warm": a.warm}


def report(results: dict[str, dict[str, Any]], warm: int) -> str:
    speed = {}
    for way, r in results.items():
        if "failed" not in r:
            speed[way] = statistics.median(r["tokens_per_s"][min(warm, len(r["tokens_per_s"]) - 1):])
    rows, most = [], max((len(r["losses"]) for r in results.values() if "failed" not in r), default=0)
    for way, r in results.items():
        if "failed" in r:
            rows.append([way, None, None, None, None, None, None, r["failed"]])
            continue
        last, steps = statistics.mean(r["losses"][-20:]), len(r["losses"])
        notes = [f"{steps} steps"] * (steps < most) + ([r["ended"]] if "ended" in r else [])
        ratio = speed[way] / speed["fla"] if "fla" in speed else None
        rows.append([way, speed[way], ratio, r["device_gb"], r["allocated_gb"], r["losses"][0], last,
                     "; ".join(notes)])
    columns = ["way", "tokens/s", "of fla's", "device memory, GB", "torch's, GB", "first loss", "last 20 losses", ""]
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


def main(argv: Optional[list[str]] = None) -> int:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--data", metavar="DIR", help="token shards written by hola prepare")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="which, in this order")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="rows of a step")
    parser.add_argument("--seq-len", type=int, default=2048, help="tokens of a row")
    parser.add_argument("--warm", type=int, default=20, help="steps that are not timed: tuning and compiling")
    parser.add_argument("--limit", type=float, default=1800, metavar="SECONDS", help="the most that one way may take")
    parser.add_argument("--seconds", type=float, default=1500, help="a way begins no other step after so many")
    parser.add_argument("--hola", metavar="FILE", help="the program; default: build/cc/hola, or the one on the path")
    parser.add_argument("--size", choices=list(SIZES), default="340m")
    parser.add_argument("--way", choices=WAYS, help="run this one here and print its result as JSON")
    a = parser.parse_args(argv)
    if min(a.steps, a.batch, a.seq_len, a.limit, a.seconds) < 1 or a.warm < 0:
        parser.error("--steps, --batch, --seq-len, --limit and --seconds take numbers above 0")
    common.find_packages(a.fla)
    a.hola = common.find_program(a.hola)
    os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")  # a way that follows another does not tune again
    if a.way:
        return one(a.way, a)
    if a.dry_run:
        a.size, a.steps, a.batch, a.seq_len, a.warm = "tiny", min(a.steps, 4), 2, 32, 1
    else:
        import torch

        if not torch.cuda.is_available():
            sys.exit("compare_flame: torch sees no CUDA device; --dry-run tries it with a tiny model on the CPU")
    if a.data is None and shutil.which(a.hola) is None:
        sys.exit(f"compare_flame: {a.hola} is not a program, and there is no --data")
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.abspath(a.data) if a.data else own_text(a.hola, pathlib.Path(folder))
        results = compare(a, data)
    print(f"\n{settings(a)}\n\n{report(results, a.warm)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
