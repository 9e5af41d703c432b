"""Causal softmax attention in plain PyTorch, forward and backward. What the CUDA kernels compute, and what runs where
they cannot. Rows of all sequences stand one after another: q [rows, H, D], k, v [rows, HK, D], query head h reads key head
h // (H / HK); `lengths` are the lengths of the sequences. window: keys that a query sees, its own included; 0: all.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple, Sequence

import torch
from torch import Tensor

from .hola_plain import compute_type

QUERIES = 256  # of a piece: their logits are in memory together


class _Piece(NamedTuple):
    """Queries q of rows of some sequences of one length, and the keys k that they see: [sequences, rows]."""

    q: Tensor
    k: Tensor
    unseen: Tensor  # [queries, keys]: not for this query


def _pieces(lengths: Sequence[int], window: int, device: torch.device) -> Iterator[_Piece]:
    starts: dict[int, list[int]] = {}
    at = 0
    for n in lengths:
        starts.setdefault(n, []).append(at)
        at += n
    for n, first in starts.items():
        begin = torch.tensor(first, device=device)[:, None]
        for lo in range(0, n, QUERIES):
            hi = min(lo + QUERIES, n)
            key = max(0, lo - window + 1) if window else 0
            q, k = torch.arange(lo, hi, device=device), torch.arange(key, hi, device=device)
            behind = q[:, None] - k
            yield _Piece(begin + q, begin + k, (behind < 0) | (behind >= window) if window else behind < 0)


def _heads(x: Tensor, rows: Tensor, times: int) -> Tensor:
    """[sequences, heads x times, rows, D]"""
    x = x[rows].transpose(1, 2)
    return x.repeat_interleave(times, 1) if times > 1 else x


def _group(g: Tensor, times: int) -> Tensor:
    """The sum over the query heads of a key head, as rows."""
    rows: Tensor = g.unflatten(1, (-1, times)).sum(2).transpose(1, 2).flatten(0, 1)
    return rows


def _logits(q: Tensor, k: Tensor, unseen: Tensor, scale: float) -> Tensor:
    return (scale * q @ k.transpose(-1, -2)).masked_fill(unseen, float("-inf"))


def forward(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], window: int,
            scale: float) -> tuple[Tensor, Tensor]:
    """-> out [rows, H, D] in q's type, the logarithm of the sum of exponentials [rows, H]. Autograd can differentiate
    it."""
    t, times = compute_type(q.dtype), q.shape[1] // k.shape[1]
    x, y, z = q.to(t), k.to(t), v.to(t)
    rows, outs, sums = [], [], []
    for p in _pieces(lengths, window, q.device):
        logits = _logits(_heads(x, p.q, 1), _heads(y, p.k, times), p.unseen, scale)
        rows.append(p.q.flatten())
        outs.append((logits.softmax(-1) @ _heads(z, p.k, times)).transpose(1, 2).flatten(0, 1))
        sums.append(logits.logsumexp(-1).transpose(1, 2).flatten(0, 1))
    if not rows:
        return x.to(q.dtype), x.new_empty(x.shape[:2])
    back = torch.empty(q.shape[0], dtype=torch.int64, device=q.device)
    at = torch.cat(rows)
    back[at] = torch.arange(at.numel(), device=q.device)
    return torch.cat(outs)[back].to(q.dtype), torch.cat(sums)[back]


def backward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, lengths: Sequence[int], window: int,
             scale: float, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """-> dq, dk, dv, in their inputs' types."""
    t, times = compute_type(q.dtype), q.shape[1] // k.shape[1]
    x, y, z, d = q.to(t), k.to(t), v.to(t), dout.to(t)
    along = (d * out.to(t)).sum(-1)
    dq, dk, dv = torch.zeros_like(x), torch.zeros_like(y), torch.zeros_like(z)

    for p in _pieces(lengths, window, q.device):
        xi, yi, di = _heads(x, p.q, 1), _heads(y, p.k, times), _heads(d, p.q, 1)
        w = (_logits(xi, yi, p.unseen, scale) - lse[p.q].transpose(1, 2).unsqueeze(-1)).exp()
        dz = scale * w * (di @ _heads(z, p.k, times).transpose(-1, -2) - along[p.q].transpose(1, 2).unsqueeze(-1))
        dq[p.q.flatten()] = (dz @ yi).transpose(1, 2).flatten(0, 1)
        dk.index_add_(0, p.k.flatten(), _group(dz.transpose(-1, -2) @ xi, times))
        dv.index_add_(0, p.k.flatten(), _group(w.transpose(-1, -2) @ di, times))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
