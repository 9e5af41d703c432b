"""The gated delta rule and the read of HOLA's exact memory in plain PyTorch: forward and backward, any device,
any float type. What the CUDA kernels compute, and what runs where they cannot; docs/math.md has the formulas.

Rows of all sequences stand one after another: q, k [rows, H, K], v [rows, HV, V], g, beta, score [rows, HV]; value head
h reads key head h // (HV / H). `lengths` are the lengths of the sequences, whose sum is rows. Sums are in float32, of
float64 inputs in float64. The forward functions can be differentiated by autograd as they stand; the backward functions
do the same with less memory and time. This file needs torch alone and is saved beside models as their code.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Optional, Sequence, TypeVar, cast

import torch
from torch import Tensor

NORM, GATE, SIGMOID, NEG = 1, 2, 4, 8  # flags, as in hola_ops.h
NORM_EPS = 1e-6
CHUNK = 64


def compute_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class Blocks:
    """The rows of all sequences in blocks of `size` rows: first the first block of every sequence, then the second, and
    so on, the longest sequences first. So the blocks of one step are neighbours, and a walk over the steps takes all
    sequences along."""

    def __init__(self, lengths: Sequence[int], size: int, device: torch.device):
        self.size, self.rows, self.lengths = size, sum(lengths), list(lengths)
        self.order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        starts, at = [], 0
        for n in lengths:
            starts.append(at)
            at += n
        first: list[int] = []  # of a block: its first row,
        left: list[int] = []  # rows from there to the end of its sequence
        self.steps: list[tuple[int, int]] = []
        for j in range(-(-max(lengths, default=0) // size)):
            here = [i for i in self.order if lengths[i] > j * size]
            self.steps.append((len(first), len(first) + len(here)))
            first += [starts[i] + j * size for i in here]
            left += [lengths[i] - j * size for i in here]
        self.count = len(first)
        i = torch.arange(size)
        index = torch.tensor(first, dtype=torch.int64)[:, None] + i
        self.valid_cpu = i < torch.tensor(left, dtype=torch.int64)[:, None]
        index = torch.where(self.valid_cpu, index, self.rows).reshape(-1)  # past the end of a sequence: a row of zeros
        back = torch.empty(self.rows + 1, dtype=torch.int64)
        back[index] = torch.arange(index.numel())
        self.index, self.back = index.to(device), back[: self.rows].to(device)
        self.ranks = torch.tensor(self.order, dtype=torch.int64, device=device)

    def cut(self, x: Tensor) -> Tensor:
        """[rows, heads, ...] -> [blocks, heads, size, ...], zeros past the end of a sequence."""
        x = torch.cat([x, x.new_zeros((1, *x.shape[1:]))])[self.index]
        y: Tensor = x.unflatten(0, (self.count, self.size)).transpose(1, 2).contiguous()
        return y

    def join(self, x: Tensor) -> Tensor:
        """The way back."""
        return x.transpose(1, 2).flatten(0, 1)[self.back]


@functools.lru_cache(maxsize=32)
def blocks_of(lengths: tuple[int, ...], size: int, device: torch.device) -> Blocks:
    return Blocks(lengths, max(1, min(size, max(lengths, default=1))), device)


# ---- the gated delta rule ----


def l2norm(x: Tensor) -> tuple[Tensor, Tensor]:
    r = (x.square().sum(-1, keepdim=True) + NORM_EPS).rsqrt()
    return x * r, r


def softplus(x: Tensor) -> Tensor:
    return torch.nn.functional.softplus(x, threshold=20.0)


class _Inputs(NamedTuple):
    """What the delta rule works on, in the type of the sums: the flags have been followed, heads are value heads."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


def _inputs(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, A_log: Optional[Tensor],
            dt_bias: Optional[Tensor], flags: int) -> _Inputs:
    t, rep = compute_type(q.dtype), v.shape[1] // q.shape[1]
    q, k, v, beta = q.to(t), k.to(t), v.to(t), beta.to(t)
    g = torch.zeros_like(beta) if g is None else g.to(t)
    if flags & NORM:
        q, k = l2norm(q)[0], l2norm(k)[0]
    if flags & GATE:
        assert A_log is not None
        g = -A_log.to(t).exp() * softplus(g if dt_bias is None else g + dt_bias.to(t))
    if flags & SIGMOID:
        beta = beta.sigmoid() * (2 if flags & NEG else 1)
    if rep > 1:
        q, k = q.repeat_interleave(rep, 1), k.repeat_interleave(rep, 1)
    return _Inputs(q, k, v, g, beta)


class _Chunks(NamedTuple):
    """Of all chunks: the inputs, and what follows from a chunk alone. D_ij = exp(G_i - G_j), eG, eL, last = exp of G,
    of G_last - G, of G_last; M = stril(K K^T) D, P = scale tril(Q K^T) D, A = (I + beta M)^-1."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    eG: Tensor
    eL: Tensor
    last: Tensor
    D: Tensor
    M: Tensor
    P: Tensor
    A: Tensor


def _chunks(x: _Inputs, b: Blocks, scale: float) -> _Chunks:
    q, k, v, beta = b.cut(x.q), b.cut(x.k), b.cut(x.v), b.cut(x.beta).unsqueeze(-1)
    # in double, and from differences: sums of -5000 keep the digits of gates near 0 beside them, and nothing overflows
    G = b.cut(x.g).double().clamp(min=-1e5).cumsum(-1)
    below = torch.ones(b.size, b.size, dtype=torch.bool, device=q.device).tril()
    D = (G.unsqueeze(-1) - G.unsqueeze(-2)).masked_fill(~below, float("-inf")).exp().to(q.dtype)
    G_last = G[..., -1:]
    M = (k @ k.transpose(-1, -2) * D).tril(-1)
    P = scale * (q @ k.transpose(-1, -2)) * D
    eye = torch.eye(b.size, dtype=q.dtype, device=q.device)
    A = torch.linalg.solve_triangular(eye + beta * M, eye.expand_as(M), upper=False, unitriangular=True)
    eG, eL = G.exp().to(q.dtype).unsqueeze(-1), (G_last - G).exp().to(q.dtype).unsqueeze(-1)
    return _Chunks(q, k, v, beta, eG, eL, G_last.exp().to(q.dtype).unsqueeze(-1), D, M, P, A)


def _walk(c: _Chunks, b: Blocks, h: Tensor, scale: float,
          states: Optional[list[Tensor]] = None) -> tuple[Tensor, Tensor, Tensor]:
    """From h [N, HV, K, V], in the order of b: the reads and the writes v_new of every chunk,
    and the states at the end.
    Appends the states before every step to `states`."""
    outs, writes = [], []
    for lo, hi in b.steps:
        s, hj = slice(lo, hi), h[: hi - lo]
        if states is not None:
            states.append(hj)
        r = c.beta[s] * (c.v[s] - c.eG[s] * (c.k[s] @ hj))
        w = c.A[s] @ r
        outs.append(scale * c.eG[s] * (c.q[s] @ hj) + c.P[s] @ w)
        writes.append(w)
        hj = c.last[s] * hj + c.k[s].transpose(-1, -2) @ (c.eL[s] * w)
        h = torch.cat([hj, h[hi - lo :]]) if hi - lo < len(h) else hj
    return torch.cat(outs), torch.cat(writes), h


def _start(x: _Inputs, b: Blocks, h0: Optional[Tensor]) -> Tensor:
    if h0 is None:
        return x.v.new_zeros(len(b.order), x.v.shape[1], x.q.shape[2], x.v.shape[2])
    return h0.to(x.v.dtype)[b.ranks]


def gdn_forward(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, A_log: Optional[Tensor],
                dt_bias: Optional[Tensor], h0: Optional[Tensor], lengths: Sequence[int], scale: float,
                flags: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """-> out [rows, HV, V] in q's type, the states at the end [N, HV, K, V], the scores m = beta |e| [rows, HV]."""
    x = _inputs(q, k, v, g, beta, A_log, dt_bias, flags)
    b = blocks_of(tuple(lengths), CHUNK, q.device)
    h = _start(x, b, h0)
    if b.rows == 0:
        out, writes = x.v[:0], x.v[:0]
    else:
        out, writes, h = _walk(_chunks(x, b, scale), b, h, scale)
        out, writes = b.join(out), b.join(writes)
    m = writes.detach().square().sum(-1).sqrt()
    return out.to(q.dtype), torch.empty_like(h).index_copy(0, b.ranks, h), m


def delta_states(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor,
                 lengths: Sequence[int], size: int, flags: int) -> list[Tensor]:
    """The states before every chunk of `size` rows, [sequences that reach it, HV, K, V], the longest sequences first;
    the last ones are those after the last chunk of all sequences, also of those that ended before it."""
    x = _inputs(k, k, v, g, beta, A_log, dt_bias, flags)
    b = blocks_of(tuple(lengths), size, k.device)
    states: list[Tensor] = []
    h = _start(x, b, None)
    if b.rows:
        h = _walk(_chunks(x, b, 1.0), b, h, 1.0, states)[2]
    return [*states, h]


def _walk_back(c: _Chunks, b: Blocks, dO: Tensor, dh: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """From dh, the gradient of the states at the end: A^T dv_new and dh after every chunk, and dh at the start."""
    X2s, dhs = [], []
    for lo, hi in reversed(b.steps):
        s, dhj = slice(lo, hi), dh[: hi - lo]
        X2 = c.A[s].transpose(-1, -2) @ (c.P[s].transpose(-1, -2) @ dO[s] + c.eL[s] * (c.k[s] @ dhj))
        X2s.append(X2)
        dhs.append(dhj)
        dhj = c.last[s] * dhj + c.q[s].transpose(-1, -2) @ (scale * c.eG[s] * dO[s])
        dhj = dhj - c.k[s].transpose(-1, -2) @ (c.beta[s] * c.eG[s] * X2)
        dh = torch.cat([dhj, dh[hi - lo :]]) if hi - lo < len(dh) else dhj
    return torch.cat(X2s[::-1]), torch.cat(dhs[::-1]), dh


def _core_back(x: _Inputs, b: Blocks, h0: Optional[Tensor], dout: Tensor, dht: Optional[Tensor],
               scale: float) -> tuple[_Inputs, Tensor]:
    """-> gradients of x and of the states at the start."""
    c = _chunks(x, b, scale)
    states: list[Tensor] = []
    _, w, _ = _walk(c, b, _start(x, b, h0), scale, states)
    h, dO = torch.cat(states), b.cut(dout.to(x.v.dtype))
    X2, dh, dh0 = _walk_back(c, b, dO, torch.zeros_like(_start(x, b, h0)) if dht is None else
                             dht.to(x.v.dtype)[b.ranks], scale)
    hT, wT = h.transpose(-1, -2), w.transpose(-1, -2)
    dOw = dO @ wT
    dL = -(X2 @ wT).tril(-1)
    dS, N = scale * dOw * c.D, c.beta * dL * c.D
    Y1, Y2 = scale * c.eG * (dO @ hT), -c.eG * (X2 @ hT)
    U = (c.eL * w) @ dh.transpose(-1, -2)
    dq = Y1 + dS @ c.k
    dk = c.beta * Y2 + U + dS.transpose(-1, -2) @ c.q + N @ c.k + N.transpose(-1, -2) @ c.k
    dbeta = (c.v * X2).sum(-1) + (c.k * Y2).sum(-1) + (dL * c.M).sum(-1)
    # dg_t: the parts of the chunk's products that span t, those of rows from t on, those of rows before t, and the
    # state's
    F = (dOw * c.P + c.beta * dL * c.M).tril(-1)
    spans = F.flip(-2).cumsum(-2).flip(-2).tril(-1).sum(-1)
    after = ((c.q * Y1).sum(-1) + (c.beta * c.k * Y2).sum(-1)).flip(-1).cumsum(-1).flip(-1)
    kU = (c.k * U).sum(-1)
    dg = spans + after + (kU.cumsum(-1) - kU) + (c.last[..., 0] * (h * dh).sum((-1, -2)).unsqueeze(-1))
    dv = c.beta * X2
    dh0 = torch.empty_like(dh0).index_copy(0, b.ranks, dh0)
    return _Inputs(b.join(dq), b.join(dk), b.join(dv), b.join(dg), b.join(dbeta)), dh0


def norm_back(x: Tensor, dy: Tensor) -> Tensor:
    y, r = l2norm(x)
    return r * (dy - y * (y * dy).sum(-1, keepdim=True))


def gdn_backward(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor], beta: Tensor, A_log: Optional[Tensor],
                 dt_bias: Optional[Tensor], h0: Optional[Tensor], lengths: Sequence[int], scale: float, flags: int,
                 dout: Tensor, dht: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    """-> dq, dk, dv in their inputs' types; dg, dbeta, dh0, dA_log, ddt_bias in the type of the sums,
    None where there is
    no such input."""
    t, H = compute_type(q.dtype), q.shape[1]
    b = blocks_of(tuple(lengths), CHUNK, q.device)
    x = _inputs(q, k, v, g, beta, A_log, dt_bias, flags)
    if b.rows == 0:
        d = x
        dh0 = torch.zeros_like(_start(x, b, h0)) if dht is None else dht.to(t).clone()
    else:
        d, dh0 = _core_back(x, b, h0, dout, dht, scale)
    dq, dk = d.q.unflatten(1, (H, -1)).sum(2), d.k.unflatten(1, (H, -1)).sum(2)
    if flags & NORM:
        dq, dk = norm_back(q.to(t), dq), norm_back(k.to(t), dk)
    dg, dbeta, dA, ddt = d.g, d.beta, None, None
    if flags & GATE:
        assert g is not None and A_log is not None
        dA = (dg * x.g).sum(0)
        a = g.to(t) if dt_bias is None else g.to(t) + dt_bias.to(t)
        dg = -A_log.to(t).exp() * torch.where(a > 20, torch.ones_like(a), a.sigmoid()) * dg
        ddt = dg.sum(0) if dt_bias is not None else None
    if flags & SIGMOID:
        s = beta.to(t).sigmoid()
        dbeta = (2 if flags & NEG else 1) * s * (1 - s) * dbeta
    return (dq.to(q.dtype), dk.to(k.dtype), d.v.to(v.dtype), dg if g is not None else None, dbeta,
            dh0 if h0 is not None else None, dA, ddt)


# ---- the exact memory ----


def select(score: Tensor, rows: Tensor, window: int) -> Tensor:
    """Of candidate rows [.., n] in ascending order, with scores of the same shape: the `window` best ones, ties to the
    older one, in ascending order."""
    if rows.shape[-1] <= window:
        return rows
    best = score.sort(dim=-1, descending=True, stable=True).indices[..., :window]
    return rows.gather(-1, best.sort(dim=-1).values)


def cache_select(score: Tensor, b: Blocks, window: int) -> Tensor:
    """What every block reads of the blocks before it, [blocks, HV, window] row numbers; -1: nothing."""
    HV = score.shape[1]
    sel = score.new_full((b.count, HV, window), -1, dtype=torch.int64)
    if window == 0:
        return sel
    index = b.index.view(b.count, b.size)
    head = torch.arange(HV, device=score.device).view(1, HV, 1)
    kept = sel[:, :, :0]
    for j in range(1, len(b.steps)):
        (was, _), (lo, hi) = b.steps[j - 1], b.steps[j]
        n = hi - lo  # the blocks before these are full
        rows = torch.cat([kept[:n], index[was : was + n].unsqueeze(1).expand(n, HV, b.size)], -1)
        kept = select(score[rows, head], rows, window)
        sel[lo:hi, :, : kept.shape[-1]] = kept
    return sel


class _Read(NamedTuple):
    q: Tensor  # [blocks, HV, size, K], times tau and scale
    k: Tensor  # [blocks, HV, window + size, K]
    v: Tensor
    p: Tensor  # [blocks, HV, size, window + size + 1], the sink last
    rows: Tensor  # [blocks, HV, window + size]; rows past the end: the number of rows


def read_of(q: Tensor, k: Tensor, v: Tensor, index: Tensor, sel: Tensor, sink: Tensor, tau: Optional[Tensor],
            scale: float, bias: Optional[Tensor] = None) -> _Read:
    """Of the blocks with the rows `index` [blocks, size], which see the rows `sel` [blocks, HV, n] too.
    bias [rows, HV]: added to the logits of these."""
    t, H, HV = compute_type(q.dtype), q.shape[1], v.shape[1]
    (count, size), rows_in_all = index.shape, q.shape[0]

    def pad(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros((1, *x.shape[1:]))])

    rows = torch.cat([torch.where(sel < 0, rows_in_all, sel), index.unsqueeze(1).expand(count, HV, size)], -1)
    head = torch.arange(HV, device=q.device).view(1, HV, 1)
    kk, vv = pad(k.to(t))[rows, head // (HV // H)], pad(v.to(t))[rows, head]
    qq = pad(q.to(t).repeat_interleave(HV // H, 1))[index].transpose(1, 2) * scale
    if tau is not None:
        qq = qq * tau.to(t).view(1, HV, 1, 1)
    z = qq @ kk.transpose(-1, -2)
    if bias is not None:
        z = z + torch.cat([pad(bias.to(t))[rows[..., : sel.shape[-1]], head],
                           z.new_zeros((count, HV, size))], -1).unsqueeze(-2)
    causal = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    seen = torch.cat([(sel >= 0).unsqueeze(-2).expand(-1, -1, size, -1), causal.expand(count, HV, -1, -1)], -1)
    z = z.masked_fill(~seen, float("-inf"))
    z = torch.cat([z, sink.to(t).view(1, HV, 1, 1).expand(count, HV, size, 1)], -1)
    return _Read(qq, kk, vv, z.softmax(-1), rows)


def _read(q: Tensor, k: Tensor, v: Tensor, sel: Tensor, sink: Tensor, tau: Optional[Tensor], b: Blocks,
          scale: float) -> _Read:
    return read_of(q, k, v, b.index.view(b.count, b.size), sel, sink, tau, scale)


def positions(lengths: Sequence[int], heads: int, device: torch.device) -> Tensor:
    """Scores that keep the latest rows."""
    p = [torch.arange(n, dtype=torch.float64, device=device) for n in lengths]
    return (torch.cat(p) if p else torch.empty(0, dtype=torch.float64, device=device)).unsqueeze(-1).expand(-1, heads)


def cache_forward(q: Tensor, k: Tensor, v: Tensor, score: Optional[Tensor], sink: Tensor, tau: Optional[Tensor],
                  lengths: Sequence[int], window: int, chunk: int, scale: float) -> Tensor:
    """The read [rows, HV, V] in q's type. score None: the latest rows are kept."""
    b = blocks_of(tuple(lengths), chunk, q.device)
    if b.rows == 0:
        return v.to(q.dtype)
    score = positions(lengths, v.shape[1], q.device) if score is None else score.detach()
    return read(q, k, v, cache_select(score, b, window), sink, tau, b, scale)


def read(q: Tensor, k: Tensor, v: Tensor, sel: Tensor, sink: Tensor, tau: Optional[Tensor], b: Blocks, scale: float,
         bias: Optional[Tensor] = None) -> Tensor:
    """The read [rows, HV, V] in q's type, of blocks that see the rows `sel` of those before them."""
    if b.rows == 0:
        return v.to(q.dtype)
    r = read_of(q, k, v, b.index.view(b.count, b.size), sel, sink, tau, scale, bias)
    return b.join(r.p[..., :-1] @ r.v).to(q.dtype)


def _put(like: Tensor, rows: Tensor, head: Tensor, x: Tensor) -> Tensor:
    out = x.new_zeros((like.shape[0] + 1, *like.shape[1:]))
    return out.index_put_((rows, head.expand_as(rows)), x, accumulate=True)[:-1].to(like.dtype)


def cache_backward(q: Tensor, k: Tensor, v: Tensor, score: Optional[Tensor], sink: Tensor, tau: Optional[Tensor],
                   lengths: Sequence[int], window: int, chunk: int, scale: float,
                   dout: Tensor) -> tuple[Optional[Tensor], ...]:
    """-> dq, dk, dv, dsink, dtau (None without tau), in their inputs' types."""
    b, H, HV = blocks_of(tuple(lengths), chunk, q.device), q.shape[1], v.shape[1]
    if b.rows == 0:
        return q.clone(), k.clone(), v.clone(), torch.zeros_like(sink), None if tau is None else torch.zeros_like(tau)
    score = positions(lengths, HV, q.device) if score is None else score
    r = _read(q, k, v, cache_select(score, b, window), sink, tau, b, scale)
    dO, p = b.cut(dout.to(r.q.dtype)), r.p[..., :-1]
    dp = dO @ r.v.transpose(-1, -2)
    R = (dp * p).sum(-1, keepdim=True)
    ds = p * (dp - R)
    dsink = -(r.p[..., -1:] * R).sum((0, 2, 3))
    dq = ds @ r.k
    head = torch.arange(HV, device=q.device).view(1, HV, 1)
    dtau = None
    if tau is not None:
        dtau = (dq * b.cut(q.to(dq.dtype).repeat_interleave(HV // H, 1))).sum((0, 2, 3)) * scale
        dq = dq * tau.to(dq.dtype).view(1, HV, 1, 1)
    dq = b.join(dq * scale).unflatten(1, (H, -1)).sum(2)
    dk = _put(k, r.rows, head // (HV // H), ds.transpose(-1, -2) @ r.q)
    dv = _put(v, r.rows, head, p.transpose(-1, -2) @ dO)
    return dq.to(q.dtype), dk, dv, dsink.to(sink.dtype), None if tau is None or dtau is None else dtau.to(tau.dtype)


# ---- the two functions of hola.torch that a model needs, with as many of their arguments ----


MaybeTensor = TypeVar("MaybeTensor", bound=Optional[Tensor])


def _rows(x: MaybeTensor) -> MaybeTensor:
    return cast(MaybeTensor, None if x is None else x.flatten(0, 1))


def lengths_of(q: Tensor, cu_seqlens: Optional[Tensor]) -> list[int]:
    """The lengths of the sequences in q [B, T, ...]."""
    B, T = q.shape[:2]
    if cu_seqlens is None:
        return [T] * B
    at = cu_seqlens.tolist()
    if not at or at[0] != 0 or at[-1] != T or any(a > b for a, b in zip(at, at[1:])):
        raise ValueError(f"cu_seqlens must begin with 0, not descend, and end with the number of rows, {T}")
    return [b - a for a, b in zip(at, at[1:])]


def gated_delta_rule_with_score(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *,
                                scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
                                output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
                                use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
                                cu_seqlens: Optional[Tensor] = None, use_gate_in_kernel: bool = False,
                                A_log: Optional[Tensor] = None,
                                dt_bias: Optional[Tensor] = None) -> tuple[Tensor, Optional[Tensor], Tensor]:
    flags = NORM * use_qk_l2norm_in_kernel | GATE * use_gate_in_kernel | SIGMOID * use_beta_sigmoid_in_kernel
    flags |= NEG * allow_neg_eigval
    with torch.autocast(q.device.type, enabled=False):
        out, ht, m = gdn_forward(_rows(q), _rows(k), _rows(v), _rows(g), _rows(beta), A_log, dt_bias, initial_state,
                                 lengths_of(q, cu_seqlens), q.shape[-1] ** -0.5 if scale is None else scale, flags)
    return out.unflatten(0, q.shape[:2]), ht if output_final_state else None, m.unflatten(0, q.shape[:2])


def hola_cache_attention(q: Tensor, k: Tensor, v: Tensor, score: Optional[Tensor], sink: Tensor,
                         tau: Optional[Tensor] = None, *, window: int = 64, chunk: int = 256,
                         scale: Optional[float] = None, cu_seqlens: Optional[Tensor] = None) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):
        rows = cache_forward(_rows(q), _rows(k), _rows(v), _rows(score), sink, tau, lengths_of(q, cu_seqlens), window,
                             chunk, q.shape[-1] ** -0.5 if scale is None else scale)
    out: Tensor = rows.unflatten(0, q.shape[:2])
    return out
