"""One way of bench/compare_flame.py: a model, trained in this process in two phases, or `hola train`.

The phase "timed" is for tokens/s and memory. "losses" begins anew with the same weights, for the losses of small steps.
"""

from __future__ import annotations

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, Iterator

import compare_cache
import compare_common as common
import compare_compile

WAYS = ("fla", "fla-patched", "hola", "hola-compiled", "hola-train")
SIZES = {  # hola's preset 340m, and a tiny one for dry runs
    "340m": dict(hidden_size=1024, num_hidden_layers=24, intermediate_size=2816, vocab_size=32000, num_heads=4,
                 head_dim=256, expand_v=1.0, use_gate=False, tie_word_embeddings=True),
    "tiny": dict(hidden_size=32, num_hidden_layers=2, intermediate_size=64, vocab_size=300, num_heads=2, head_dim=16,
                 expand_v=1.0, use_gate=False, tie_word_embeddings=True),
}
LR, MIN_LR, DECAY, BETAS, CLIP = 4e-4, 0.1, 0.01, (0.9, 0.95), 1.0


def phases(a: Any) -> dict[str, dict[str, Any]]:
    """name: rows of a step, tokens of a row, steps, and the seconds after the first step after which none begins."""
    found = {"timed": dict(batch=a.batch, seq_len=a.seq_len, steps=a.steps, seconds=a.seconds)}
    if a.way in a.loss_ways:
        found["losses"] = dict(batch=a.loss_batch, seq_len=a.loss_seq_len, steps=a.loss_steps, seconds=a.loss_seconds)
    return {name: phase for name, phase in found.items() if phase["steps"] > 0}


def learning_rate(step: int, steps: int) -> float:
    """As `hola train`: a linear warmup over a tenth of the steps, then a cosine down to MIN_LR of the peak."""
    warmup = min(1000, max(1, steps // 10))
    if step < warmup:
        return LR * (step + 1) / warmup
    x = (step - warmup) / max(1, steps - warmup)
    return LR * (MIN_LR + (1 - MIN_LR) * 0.5 * (1 + math.cos(math.pi * x)))


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
    fields = dict(SIZES[size], max_position_embeddings=seq_len, use_cache=False)
    if way.startswith("fla"):
        from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM

        if refused:
            print(common.let_fla_be_wrong(), file=sys.stderr)
        if way == "fla-patched":
            import hola.torch as ht

            print(f"patched: {len(ht.patch_fla())} places", file=sys.stderr)
        return GatedDeltaNetForCausalLM(GatedDeltaNetConfig(**fields))
    import hola.torch as ht

    return ht.HolaForCausalLM(ht.HolaConfig(**fields))


class Trainer:
    """A model of torch, made on the CPU; the device is not touched before train()."""

    def __init__(self, a: Any):
        import torch

        self.a, self.device = a, "cuda" if a.size == "340m" else "cpu"
        torch.manual_seed(0)
        if self.device == "cpu":
            torch.set_num_threads(1)
        self.model = model_of(a.way, a.size, max(a.seq_len, a.loss_seq_len), a.refused).train()
        self.first = {name: x.clone() for name, x in self.model.state_dict().items()} if len(phases(a)) > 1 else {}
        self.rows = {name: rows_of(pathlib.Path(a.data), phase["seq_len"]) for name, phase in phases(a).items()}
        self.result: dict[str, Any] = {"parameters": sum(p.numel() for p in self.model.parameters())}

    def train(self) -> Iterator[dict[str, Any]]:
        """What is known after every step."""
        import torch

        start = time.perf_counter()
        self.counts = compare_compile.count_compiled() if self.device == "cuda" else {}
        self.model.to(self.device)
        self.run = self.model
        if self.a.way == "hola-compiled" and self.a.compile_layers:
            for layer in self.model.model.layers:
                layer.compile()
        elif self.a.way == "hola-compiled":
            self.run = torch.compile(self.model)
        self.result.update(versions=common.versions(), to_device_s=time.perf_counter() - start)
        for i, (name, phase) in enumerate(phases(self.a).items()):
            if i > 0:
                self.model.load_state_dict(self.first)
            yield from self.phase(name, **phase)
            self.result[name]["done"] = True
            yield self.result

    def phase(self, name: str, batch: int, seq_len: int, steps: int, seconds: float) -> Iterator[dict[str, Any]]:
        import numpy
        import torch

        cuda, model, rows = self.device == "cuda", self.model, self.rows[name]
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=DECAY, fused=cuda)
        order = numpy.random.default_rng(0).permutation(len(rows))
        losses, speed, begin, first = [], [], time.perf_counter(), 0.0
        for step in range(steps):
            start = time.perf_counter()
            if step == 1:
                first = start
            if step > 0 and start - first > seconds:
                break
            mine = [order[(step * batch + i) % len(order)] for i in range(batch)]
            ids = torch.from_numpy(rows[mine]).to(self.device)
            with torch.autocast(self.device, torch.bfloat16):
                loss = self.run(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss.detach()))  # waits for the device
            speed.append(batch * seq_len / (time.perf_counter() - start))
            if step < 3 or (step + 1) % 25 == 0 or step + 1 == steps:
                print(f"{self.a.way}, {name}: step {step + 1}/{steps}, loss {losses[-1]:.4f}, "
                      f"{speed[-1]:,.0f} tokens/s", file=sys.stderr, flush=True)
            self.result[name] = {"losses": losses, "tokens_per_s": speed, "triton": self.counts,
                                 "seconds": time.perf_counter() - begin,
                                 "allocated_gb": torch.cuda.max_memory_allocated() / 1e9 if cuda else None}
            yield self.result


def train_with_program(a: Any) -> Iterator[dict[str, Any]]:
    """The same, with `hola train`; a phase at a time."""
    result: dict[str, Any] = {"parameters": None}
    for name, phase in phases(a).items():
        with tempfile.TemporaryDirectory() as folder:
            result[name] = {**phase_with_program(a, pathlib.Path(folder), **phase), "done": True}
        yield result


def phase_with_program(a: Any, out: pathlib.Path, batch: int, seq_len: int, steps: int,
                       seconds: float) -> dict[str, Any]:
    config = out / "config.json"
    config.write_text(json.dumps(dict(SIZES[a.size], model_type="gated_deltanet", max_position_embeddings=seq_len)))
    tokens, never = str(batch * seq_len), str(10**9)
    command = [a.hola, "train", "--data", a.data, "--out", str(out / "run"), "--config", str(config), "--steps",
               str(steps), "--batch-tokens", tokens, "--micro-tokens", tokens, "--seq-len", str(seq_len),
               "--eval-every", never, "--eval-tokens", str(seq_len), "--save-every", never, "--lr", str(LR),
               "--backend", "cuda" if a.size == "340m" else "cpu", "--json"]
    metrics, start, lines = out / "run" / "metrics.jsonl", time.perf_counter(), []
    with open(out / "said", "w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        while len(lines) < steps and process.poll() is None and time.perf_counter() < start + seconds:
            time.sleep(0.05)
            if metrics.is_file():  # whole lines; the end of the run, which writes a checkpoint, is not waited for
                lines = [json.loads(line) for line in metrics.read_text().splitlines(True) if line.endswith("\n")]
        process.kill()
    if process.wait() not in (0, -9) or not lines:
        told = (out / "said").read_text().strip().splitlines() or [f"hola train made no step in {seconds:g} s"]
        raise RuntimeError(told[-1])
    return {"losses": [x["loss"] for x in lines], "tokens_per_s": [x["tok_per_s"] for x in lines],
            "allocated_gb": None, "seconds": time.perf_counter() - start}


def one(a: Any) -> int:
    """A line of JSON after every step, and one with the reason if it fails. With --wait it makes the model, and begins
    to train when a line comes on its standard input."""
    result: dict[str, Any] = {}
    try:
        if a.way.startswith("fla"):
            if a.tune_ms:
                compare_compile.tune_for(a.tune_ms)
            print(compare_cache.take_key(), file=sys.stderr)
        trainer = None if a.way == "hola-train" else Trainer(a)
        if a.wait:
            sys.stdin.readline()
        for result in trainer.train() if trainer else train_with_program(a):
            print(json.dumps(result), flush=True)
    except (Exception, SystemExit) as error:
        print(json.dumps({**result, "failed": common.reason(error)}), flush=True)
    return 0


def compile_kernels(a: Any) -> int:
    """One of the processes of --compile: a step of every phase of fla's model, whose kernels are not launched, and whose
    tensors hold no numbers and are said to be on the CPU."""
    import compare_pretend
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.set_num_threads(1)
    compare_pretend.pretend()
    tally = compare_compile.compile_only(pathlib.Path(a.claims))
    from fla.modules.fused_cross_entropy import ops as entropy

    def forward(self: Any, input: Any, target: Any) -> Any:
        """Without the check that its tensors are on a GPU."""
        return entropy.cross_entropy_loss(logits=input, target=target, ignore_index=self.ignore_index,
                                          inplace_backward=self.inplace_backward)[0].mean()

    entropy.FusedCrossEntropyLoss.forward = forward
    with FakeTensorMode():
        model = model_of("fla", a.size, max(a.seq_len, a.loss_seq_len), a.refused).train()
        for phase in phases(a).values():
            ids = torch.zeros(phase["batch"], phase["seq_len"], dtype=torch.long)
            torch.set_autocast_enabled("cuda", True)
            torch.set_autocast_dtype("cuda", torch.bfloat16)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss
            torch.set_autocast_enabled("cuda", False)
            try:
                loss.backward()
            except Exception as error:  # a refused backward pass
                tally.fail(error)
    print(json.dumps(tally.__dict__), flush=True)
    return 0
