"""Linear attention with a decay per key channel in plain PyTorch, forward and backward: Kimi Delta Attention and,
without beta, gated linear attention. What the CUDA kernels compute, and what runs where they cannot; docs/math.md
("Decay per channel") has the formulas. Rows are as in hola_plain: [rows, heads, ...], `lengths` the lengths of the
sequences; norm: q and k are normalised first.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from .hola_plain import Blocks, blocks_of, compute_type, l2norm, norm_back

CHUNK = 16  # a chunk has a decay for each pair of its rows and each channel


class _Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Optional[Tensor]


class _Chunks(NamedTuple):
    """Of all chunks: the inputs, and what follows from a chunk alone. G: the cumulated log decay of a channel; D_ijc =
    exp(G_ic - G_jc), 0 above the diagonal; kg, qg, ke = k e^G, scale q e^G, k e^(G_last - G); last = e^(G_last).
    P_ij = scale sum_c q_ic k_jc D_ijc, M_ij = sum_c k_ic k_jc D_ijc below the diagonal, A = (I + beta M)^-1."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Optional[Tensor]
    D: Tensor
    eG: Tensor
    eL: Tensor
    last: Tensor
    kg: Tensor
    qg: Tensor
    ke: Tensor
    P: Tensor
    M: Optional[Tensor]
    A: Optional[Tensor]


def _pairs(x: Tensor, y: Tensor, D: Tensor) -> Tensor:
    return torch.einsum("bhic,bhjc,bhijc->bhij", x, y, D)


def _chunks(x: _Inputs, b: Blocks, scale: float) -> _Chunks:
    q, k, v, beta = b.cut(x.q), b.cut(x.k), b.cut(x.v), x.beta
    G = b.cut(x.g).double().clamp(min=-1e5).cumsum(-2)  # in double: gates near 0 keep their digits beside large ones
    below = torch.ones(b.size, b.size, dtype=torch.bool, device=q.device).tril().unsqueeze(-1)
    D = (G.unsqueeze(-2) - G.unsqueeze(-3)).masked_fill(~below, float("-inf")).exp().to(q.dtype)
    G_last = G[..., -1:, :]
    eG, eL, last = G.exp().to(q.dtype), (G_last - G).exp().to(q.dtype), G_last.exp().to(q.dtype).transpose(-1, -2)
    M = A = None
    if beta is not None:
        beta = b.cut(beta).unsqueeze(-1)
        M = _pairs(k, k, D).tril(-1)
        eye = torch.eye(b.size, dtype=q.dtype, device=q.device)
        A = torch.linalg.solve_triangular(eye + beta * M, eye.expand_as(M), upper=False, unitriangular=True)
    return _Chunks(q, k, v, beta, D, eG, eL, last, k * eG, scale * q * eG, k * eL, scale * _pairs(q, k, D), M, A)


def _walk(c: _Chunks, b: Blocks, h: Tensor, states: Optional[list[Tensor]] = None) -> tuple[Tensor, Tensor, Tensor]:
    """From h [N, heads, K, V], in the order of b: the reads, the writes, and the states at the end. Appends the states
    before every step to `states`."""
    outs, writes = [], []
    for lo, hi in b.steps:
        s, hj = slice(lo, hi), h[: hi - lo]
        if states is not None:
            states.append(hj)
        w = c.v[s]
        if c.beta is not None and c.A is not None:
            w = c.A[s] @ (c.beta[s] * (w - c.kg[s] @ hj))
        outs.append(c.qg[s] @ hj + c.P[s] @ w)
        writes.append(w)
        hj = c.last[s] * hj + c.ke[s].transpose(-1, -2) @ w
        h = torch.cat([hj, h[hi - lo :]]) if hi - lo < len(h) else hj
    return torch.cat(outs), torch.cat(writes), h


def _start(v: Tensor, K: int, b: Blocks, h0: Optional[Tensor]) -> Tensor:
    if h0 is None:
        return v.new_zeros(len(b.order), v.shape[1], K, v.shape[2])
    return h0.to(v.dtype)[b.ranks]


def _inputs(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], norm: bool) -> _Inputs:
    t, rep = compute_type(q.dtype), v.shape[1] // q.shape[1]
    q, k = q.to(t), k.to(t)
    if norm:
        q, k = l2norm(q)[0], l2norm(k)[0]
    if rep > 1:
        q, k = q.repeat_interleave(rep, 1), k.repeat_interleave(rep, 1)
    return _Inputs(q, k, v.to(t), g.to(t), None if beta is None else beta.to(t))


def forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], h0: Optional[Tensor],
            lengths: Sequence[int], scale: float, norm: bool = False) -> tuple[Tensor, Tensor]:
    """-> out [rows, HV, V] in q's type, the states at the end [N, HV, K, V]. Autograd can differentiate it."""
    x = _inputs(q, k, v, g, beta, norm)
    b = blocks_of(tuple(lengths), CHUNK, q.device)
    h = _start(x.v, q.shape[2], b, h0)
    out = x.v
    if b.rows > 0:
        out, _, h = _walk(_chunks(x, b, scale), b, h)
        out = b.join(out)
    return out.to(q.dtype), torch.empty_like(h).index_copy(0, b.ranks, h)


def _walk_back(c: _Chunks, b: Blocks, dO: Tensor, dh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From dh, the gradient of the states at the end: the gradient of A^-1 writes (of the values, without beta) and dh
    after every chunk, and dh at the start."""
    Xs, dhs = [], []
    for lo, hi in reversed(b.steps):
        s, dhj = slice(lo, hi), dh[: hi - lo]
        X = c.P[s].transpose(-1, -2) @ dO[s] + c.ke[s] @ dhj
        if c.A is not None:
            X = c.A[s].transpose(-1, -2) @ X
        Xs.append(X)
        dhs.append(dhj)
        dhj = c.last[s] * dhj + c.qg[s].transpose(-1, -2) @ dO[s]
        if c.beta is not None:
            dhj = dhj - c.kg[s].transpose(-1, -2) @ (c.beta[s] * X)
        dh = torch.cat([dhj, dh[hi - lo :]]) if hi - lo < len(dh) else dhj
    return torch.cat(Xs[::-1]), torch.cat(dhs[::-1]), dh


def backward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], h0: Optional[Tensor],
             lengths: Sequence[int], scale: float, dout: Tensor, dht: Optional[Tensor],
             norm: bool = False) -> tuple[Optional[Tensor], ...]:
    """-> dq, dk, dv, dg, dbeta, dh0 in their inputs' types; None where there is no such input."""
    b, H = blocks_of(tuple(lengths), CHUNK, q.device), q.shape[1]
    d: list[Any]
    x = _inputs(q, k, v, g, beta, norm)
    h = _start(x.v, q.shape[2], b, h0)
    dh = torch.zeros_like(h) if dht is None else dht.to(h.dtype)[b.ranks]
    if b.rows == 0:
        d = [y.clone() for y in (q, k, v, g)] + [None if beta is None else beta.clone()]
    else:
        c = _chunks(x, b, scale)
        states: list[Tensor] = []
        _, w, _ = _walk(c, b, h, states)
        *d, dh = _gradients(c, b, torch.cat(states), w, b.cut(dout.to(h.dtype)), dh, scale)
    dh0 = None if h0 is None else torch.empty_like(dh).index_copy(0, b.ranks, dh).to(h0.dtype)
    if b.rows > 0:
        d[0], d[1] = (y.unflatten(1, (H, -1)).sum(2) for y in d[:2])
        if norm:
            d[0], d[1] = (norm_back(y.to(dy.dtype), dy) for y, dy in ((q, d[0]), (k, d[1])))
    return (*(None if y is None or of is None else y.to(of.dtype) for y, of in zip(d, (q, k, v, g, beta))), dh0)


def _gradients(c: _Chunks, b: Blocks, h: Tensor, w: Tensor, dO: Tensor, dh: Tensor, scale: float) -> tuple[Any, ...]:
    X, dh, dh0 = _walk_back(c, b, dO, dh)
    hT, wT = h.transpose(-1, -2), w.transpose(-1, -2)
    dP = scale * (dO @ wT).tril(-1)  # the diagonal does not decay: it is added after dG
    own = scale * (dO * w).sum(-1, keepdim=True)
    rows, columns = "bhij,bhjc,bhijc->bhic", "bhij,bhic,bhijc->bhjc"
    dk_out = c.eL * (w @ dh.transpose(-1, -2))
    dq = torch.einsum(rows, dP, c.k, c.D) + scale * c.eG * (dO @ hT)
    dk = torch.einsum(columns, dP, c.q, c.D) + dk_out
    dG = c.q * dq - c.k * dk
    dq, dk, dv, dbeta = dq + own * c.k, dk + own * c.q, X, None
    if c.beta is not None and c.M is not None:
        dL = -(X @ wT).tril(-1)
        dM, read = c.beta * dL, c.eG * (-(c.beta * X) @ hT)
        dk_row, dk_column = torch.einsum(rows, dM, c.k, c.D), torch.einsum(columns, dM, c.k, c.D)
        dk = dk + dk_row + dk_column + read
        dG = dG + c.k * (dk_row + read - dk_column)
        dbeta = b.join((X * (c.v - c.kg @ h)).sum(-1) + (dL * c.M).sum(-1))
        dv = c.beta * X
    dG[..., -1, :] += (c.k * dk_out).sum(-2) + c.last[..., 0] * (h * dh).sum(-1)
    dg = dG.flip(-2).cumsum(-2).flip(-2)
    return b.join(dq), b.join(dk), b.join(dv), b.join(dg), dbeta, dh0
