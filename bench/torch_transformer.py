#!/usr/bin/env python3
"""Times a training step of Transformer++ in PyTorch on a GPU, compiled, with each of SDPA's backends, beside
`hola bench --model-type transformer --train-only` (same sizes, same tokens a step).

    bench/torch_transformer.py [46m|340m] [sequences] [tokens]     default: 46m 32 2048

bf16 by autocast with fp32 weights, fused AdamW, gradient clipping at 1, torch.compile of the model with its loss: what
a training script in PyTorch would do. One line per backend: the median of 10 steps."""
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SIZES = {"46m": (512, 12, 8, 960), "340m": (1024, 24, 16, 2816)}  # d, layers, heads, intermediate size
VOCAB = 32000


class Layer(nn.Module):
    def __init__(self, d, heads, inner):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(d, eps=1e-6), nn.RMSNorm(d, eps=1e-6)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 2 * inner, bias=False), nn.Linear(inner, d, bias=False)

    def forward(self, x, cos, sin):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)

        def rotate(y):
            a, b = y.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

        o = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).reshape(n, t, d))
        gate, up = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, d, layers, heads, inner, length):
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCAB, d), nn.RMSNorm(d, eps=1e-6)
        self.layers = nn.ModuleList(Layer(d, heads, inner) for _ in range(layers))
        size = d // heads
        angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("cos", angle.cos().bfloat16())
        self.register_buffer("sin", angle.sin().bfloat16())
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, ids, targets):
        x = self.embed(ids).bfloat16()
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(F.linear(self.norm(x), self.embed.weight).view(-1, VOCAB).float(), targets.reshape(-1))


def step_time(name, n, length, backend):
    torch.manual_seed(1)
    model = Model(*SIZES[name], length).cuda()
    run = torch.compile(model)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(VOCAB, (n, length + 1), device="cuda")
    times = []
    with sdpa_kernel(backend):
        for _ in range(14):
            torch.cuda.synchronize()
            begin = time.time()
            with torch.autocast("cuda", torch.bfloat16):
                loss = run(ids[:, :-1], ids[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adamw.step()
            adamw.zero_grad()
            torch.cuda.synchronize()
            times.append(time.time() - begin)
    return sorted(times[4:])[5], loss.item()


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "46m"
    n, length = (int(x) for x in (sys.argv[2:] + ["32", "2048"][len(sys.argv[2:]):]))
    if name not in SIZES:
        sys.exit(f"torch_transformer: {name} is not one of {', '.join(SIZES)}")
    if not torch.cuda.is_available():
        sys.exit("torch_transformer: torch sees no CUDA device")
    for label, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        begin = time.time()
        seconds, loss = step_time(name, n, length, backend)
        print(f"torch {torch.__version__}, {name}, {n} x {length}, {label}: {seconds * 1e3:.1f} ms a step, "
              f"{n * length / seconds:.0f} tokens/s, loss {loss:.3f} ({time.time() - begin:.0f} s)", flush=True)
        torch.cuda.empty_cache()


main()
