"""What HOLA's exact memory keeps under every policy, for whole sequences and token by token, in plain PyTorch.

With betae, e, betav, recency and streaming, a row's score is known when it is written, and hola_cache_attention reads
by it. With the others the blocks are gone through in order (docs/math.md, "The exact memory"): h2o adds up what a row
was read, lola measures rows against the state at the end of every block, lte scores a block when it is complete, and
with `redundancy` rows that are like a better one are kept last. The choice has no gradient; the read after it has.

Rows are as in hola_plain: of all sequences, one after another, [rows, heads, ...]. This file is saved beside models.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .hola_plain import Blocks, blocks_of, compute_type, delta_states, l2norm, read, read_of

IN_ORDER = ("h2o", "lola", "lte")  # with redundancy the others too


class Policy(NamedTuple):
    evict: str
    window: int
    chunk: int
    redundancy: float = 0.0

    @property
    def in_order(self) -> bool:
        return self.evict in IN_ORDER or self.redundancy > 0


class Logits(NamedTuple):
    """What the logits of a read depend on beside q and k."""

    sink: Tensor  # [HV]
    tau: Tensor  # [HV]
    scale: float


def keep(score: Tensor, keys: Tensor, p: Policy) -> Tensor:
    """Which of the candidates [..., n] stay: the `window` best ones, ties to the older, in ascending order. Those that
    are like a better one come last. keys [..., n, K]. A score of -inf (or NaN): there is no such row."""
    n = score.shape[-1]
    score = torch.where(score.isnan(), float("-inf"), score)
    if n <= p.window:
        return torch.arange(n, device=score.device).expand(score.shape)
    best = score.sort(dim=-1, descending=True, stable=True).indices
    if p.redundancy > 0:
        k = keys.gather(-2, best.unsqueeze(-1).expand(*best.shape, keys.shape[-1]))
        k = k.to(compute_type(k.dtype))
        dots = k @ k.transpose(-1, -2)
        squares = dots.diagonal(dim1=-2, dim2=-1)
        alike = dots > p.redundancy * (squares.unsqueeze(-1) * squares.unsqueeze(-2)).sqrt()
        there = score.gather(-1, best) > float("-inf")
        taken = there.clone()
        for i in range(1, n):
            taken[..., i] &= ~(alike[..., i, :i] & taken[..., :i]).any(-1)
        last = (~taken).long() + (~there).long()
        best = best.gather(-1, last.sort(dim=-1, stable=True).indices)
    return best[..., : p.window].sort(dim=-1).values


class Scorer(NamedTuple):
    """The network of lte for HV heads: w_in [HV, r, K + V], conv1, conv2 [HV, r, 3], bias1, bias2, w_out [HV, r],
    b_out [HV]."""

    w_in: Tensor
    conv1: Tensor
    bias1: Tensor
    conv2: Tensor
    bias2: Tensor
    w_out: Tensor
    b_out: Tensor
    eps: float

    def __call__(self, k: Tensor, v: Tensor) -> Tensor:
        """Blocks k [n, HV, C, K], v [n, HV, C, V] -> scores [n, HV, C]."""
        t = compute_type(k.dtype)
        w_in, conv1, bias1, conv2, bias2, w_out, b_out = (x.to(t) for x in self[:7])
        k, v = k.to(t), v.to(t)
        x = torch.cat([k, v * (v.square().mean(-1, keepdim=True) + self.eps).rsqrt()], -1)
        u = x @ w_in.transpose(-1, -2)
        for conv, bias in ((conv1, bias1), (conv2, bias2)):
            u = F.pad(u, (0, 0, 2, 2))  # beside the block there is nothing
            taps = [u[:, :, 2 * i : u.shape[2] - 4 + 2 * i] * conv[:, None, :, i] for i in range(3)]
            u = F.silu(bias.unsqueeze(1) + taps[0] + taps[1] + taps[2])
        out: Tensor = (u * w_out.unsqueeze(1)).sum(-1) + b_out.unsqueeze(-1)
        return out


class Rows(NamedTuple):
    """Of the rows of all sequences, what the memory works on."""

    q: Tensor  # [rows, H, K], normalised for the read, as k
    k: Tensor
    v: Tensor  # [rows, HV, V]
    score: Tensor  # [rows, HV]; h2o, lola: not looked at
    unit: Optional[Tensor] = None  # lola: the keys of the state, [rows, H, K]


def value_heads(x: Tensor, v: Tensor) -> Tensor:
    """[..., H, K] -> [..., HV, K]."""
    return x.repeat_interleave(v.shape[-2] // x.shape[-2], -2)


class Chosen(NamedTuple):
    sel: Tensor  # what every block reads of those before it, [blocks, HV, window] row numbers; -1: nothing
    kept: Tensor  # what is kept after the complete blocks of every sequence, [N, HV, window]
    score: Tensor  # [rows + 1, HV], as it is at the end


def choose_rows(x: Rows, lengths: Sequence[int], p: Policy, logits: Logits,
                states: Callable[[int], Tensor]) -> Chosen:
    """states(j): those after block j of the sequences that complete it, [n, HV, K, V], in the order of the blocks."""
    with torch.no_grad():
        return _choose(x, blocks_of(tuple(lengths), p.chunk, x.q.device), p, logits, states)


def _choose(x: Rows, b: Blocks, p: Policy, logits: Logits, states: Callable[[int], Tensor]) -> Chosen:
    HV, w = x.v.shape[1], p.window
    t = compute_type(x.q.dtype)
    score = F.pad(x.score.to(t), (0, 0, 0, 1))
    k, v = (F.pad(value_heads(y, x.v).to(t), (0, 0, 0, 0, 0, 1)) for y in (x.k, x.v))
    unit = None if x.unit is None else F.pad(value_heads(x.unit, x.v).to(t), (0, 0, 0, 0, 0, 1))
    if p.evict in ("h2o", "lola"):
        score.zero_()
    sel = score.new_full((b.count, HV, w), -1, dtype=torch.int64)
    after = score.new_full((len(b.order), HV, w), -1, dtype=torch.int64)
    index, head = b.index.view(b.count, b.size), torch.arange(HV, device=score.device).view(1, HV, 1)
    kept, lengths = sel[:0, :, :0], b.lengths
    for j, (lo, hi) in enumerate(b.steps):
        here = kept[: hi - lo] if j else sel[lo:hi, :, :0]
        sel[lo:hi, :, : here.shape[-1]] = here
        if p.evict == "h2o":
            r = read_of(x.q, x.k, x.v, index[lo:hi], here, *logits)
            read_by_rows = (index[lo:hi] < b.rows).view(hi - lo, 1, -1, 1) * r.p[..., :-1]
            score.index_put_((r.rows, head.expand_as(r.rows)), read_by_rows.sum(-2), accumulate=True)
        n = sum(lengths[i] >= (j + 1) * p.chunk for i in b.order[: hi - lo])  # the longest are the first
        if n == 0 or w == 0:
            break
        rows = torch.cat([here[:n], index[lo : lo + n].unsqueeze(1).expand(n, HV, b.size)], -1)
        if unit is not None:
            score[rows, head] = (v[rows, head] - unit[rows, head] @ states(j)[:n].to(t)).square().sum(-1).sqrt()
        kept = rows.gather(-1, keep(score[rows, head], k[rows, head], p))
        after[:n] = -1
        after[:n, :, : kept.shape[-1]] = kept
    return Chosen(sel, torch.empty_like(after).index_copy(0, b.ranks, after), score)


def block_states(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, flags: int,
                 lengths: Sequence[int], chunk: int) -> Callable[[int], Tensor]:
    """What `choose_rows` asks for. The states are those of chunks whose size divides a block."""
    size = next(n for n in range(min(chunk, 64), 0, -1) if chunk % n == 0)
    found: list[Tensor] = []

    def states(j: int) -> Tensor:
        if not found:
            with torch.no_grad():
                found.extend(delta_states(k, v, g, beta, A_log, dt_bias, lengths, size, flags))
        *before, last = found
        step = (j + 1) * (chunk // size)
        here = before[step] if step < len(before) else last[:0]
        return torch.cat([here, last[len(here) :]])  # of those that end with the block: after their last row

    return states


def read_in_order(x: Rows, lengths: Sequence[int], p: Policy, logits: Logits, states: Callable[[int], Tensor],
                  scorer: Optional[Scorer]) -> tuple[Tensor, Chosen]:
    """-> the read [rows, HV, V] in q's type, and what was chosen. scorer: lte's; it has a gradient."""
    b, bias = blocks_of(tuple(lengths), p.chunk, x.q.device), None
    if scorer is not None and b.rows:
        score = b.join(scorer(b.cut(value_heads(x.k, x.v)), b.cut(x.v)))
        x, bias = x._replace(score=score.detach()), F.logsigmoid(score)
    chosen = choose_rows(x, lengths, p, logits, states)
    return read(x.q, x.k, x.v, chosen.sel, logits.sink, logits.tau, b, logits.scale, bias), chosen


class Memory:
    """Of one layer and B sequences: `window` slots of kept rows, then `chunk` slots of the open block. A kept slot that
    is still empty has the score -inf. With lola, `unit` are the keys of the state."""

    def __init__(self, p: Policy, slots: list[Tensor]):
        self.p = p
        self.slots = slots  # k [B, HV, w + C, K], v [B, HV, w + C, V], score [B, HV, w + C], and with lola unit

    @classmethod
    def after(cls, p: Policy, x: Rows, lengths: Sequence[int], chosen: Chosen) -> Memory:
        """What the first rows of the sequences leave behind."""
        w, C, N, HV = p.window, p.chunk, len(lengths), x.v.shape[1]
        index = chosen.kept.new_full((N, HV, w + C), -1)
        index[:, :, :w] = chosen.kept
        end = 0
        for i, n in enumerate(lengths):
            end += n
            index[i, :, w : w + n % C] = torch.arange(end - n % C, end, device=index.device)
        head = torch.arange(HV, device=index.device).view(1, HV, 1)
        empty, rows = index < 0, index.clamp(min=0)
        given = [value_heads(x.k, x.v), x.v, chosen.score[:-1], *([] if x.unit is None else [value_heads(x.unit, x.v)])]
        if end == 0:
            return cls(p, [y.new_zeros((N, HV, w + C, *y.shape[2:])) for y in given]).emptied()
        slots = [y.detach()[rows, head] for y in given]
        slots = [y.masked_fill(empty.view(*empty.shape, *(1,) * (y.dim() - 3)), 0) for y in slots]
        slots[2][:, :, :w].masked_fill_(empty[:, :, :w], float("-inf"))
        return cls(p, slots)

    def emptied(self) -> Memory:
        self.slots[2][:, :, : self.p.window] = float("-inf")
        return self

    def map(self, f: Callable[[Tensor], Tensor]) -> None:
        self.slots = [f(x) for x in self.slots]

    def step(self, q: Tensor, new: list[Tensor], position: Tensor, fed: Tensor, logits: Logits, S: Tensor,
             scorer: Optional[Scorer]) -> Tensor:
        """The read [B, HV, V] of one more row of every sequence, in the type of sums: q [B, HV, K]; new: k, v, score
        (unit) of the row, [B, HV, ...]; S: the state after it. Where `fed` is false nothing is written."""
        p, t, w = self.p, compute_type(q.dtype), self.p.window
        at, B = position % p.chunk, torch.arange(len(position), device=q.device)
        self.slots = [x.clone() for x in self.slots]
        for slot, x in zip(self.slots, new):
            old = slot[B, :, w + at]
            slot[B, :, w + at] = torch.where(fed.view(-1, *(1,) * (x.dim() - 1)), x.to(slot.dtype), old)
        k, v, score = (x.to(t) for x in self.slots[:3])
        open_ = (torch.arange(p.chunk, device=q.device) <= at[:, None])[:, None].expand(-1, k.shape[1], -1)
        seen = torch.cat([score[:, :, :w] > float("-inf"), open_], 2)
        z = (k @ q.to(t).unsqueeze(-1)).squeeze(-1) * (logits.scale * logits.tau.to(t)).view(-1, 1)
        if p.evict == "lte":
            z = z + F.pad(F.logsigmoid(score[:, :, :w]), (0, p.chunk))
        z = z.masked_fill(~seen, float("-inf"))
        shares = torch.cat([z, logits.sink.to(t).view(1, -1, 1).expand(len(z), -1, 1)], 2).softmax(-1)[..., :-1]
        if p.evict == "h2o":
            self.slots[2] = self.slots[2] + torch.where(fed.view(-1, 1, 1), shares.detach(), 0)
        full = (at == p.chunk - 1) & fed
        if w and bool(full.any()):
            with torch.no_grad():
                self._merge(full, S, scorer)
        return (shares.unsqueeze(-2) @ v).squeeze(-2)

    def _merge(self, full: Tensor, S: Tensor, scorer: Optional[Scorer]) -> None:
        """The open blocks of the sequences `full` are complete: their rows compete with the kept ones."""
        p, w = self.p, self.p.window
        k, v, score = self.slots[:3]
        if p.evict == "lola":
            error = v.to(S.dtype) - self.slots[3].to(S.dtype) @ S
            score = torch.where(score > float("-inf"), error.square().sum(-1).sqrt().to(score.dtype), score)
        if scorer is not None:
            score = torch.cat([score[:, :, :w], scorer(k[:, :, w:], v[:, :, w:]).to(score.dtype)], 2)
        best = keep(score, k, p)
        for i, x in enumerate((k, v, score, *self.slots[3:])):
            index = best if x.dim() == 3 else best.unsqueeze(-1).expand(*best.shape, x.shape[-1])
            kept = torch.where(full.view(-1, *(1,) * (x.dim() - 1)), x.gather(2, index), x[:, :, :w])
            self.slots[i] = torch.cat([kept, x[:, :, w:]], 2)


def unit_keys(k: Tensor) -> Tensor:
    """The keys that write the state, from those before their norm."""
    y: Tensor = l2norm(k.to(compute_type(k.dtype)))[0]
    return y


# ---- what sequences leave behind, of all layers ----


class LayerState:
    """Of one layer and B sequences: the state S, the last inputs of the convolutions, and the exact memory."""

    def __init__(self, S: Tensor, tails: list[Tensor]):
        self.S, self.tails = S, tails
        self.memory: Optional[Memory] = None

    def map(self, f: Callable[[Tensor], Tensor]) -> None:
        self.S, self.tails = f(self.S), [f(x) for x in self.tails]
        if self.memory is not None:
            self.memory.map(f)


class HolaCache:
    """past_key_values of HolaForCausalLM, made from its config. Its size does not grow with the text."""

    is_compileable = False

    def __init__(self, config: Any):
        self.layers: list[Optional[LayerState]] = [None] * config.num_hidden_layers
        self.position: Optional[Tensor] = None  # [B]: tokens fed, padding not counted
        self.columns = 0  # tokens fed, padding counted
        self.fed = self.starts = torch.empty(0)  # of the tokens being fed, [B, T]: are they real, their positions

    def feed(self, B: int, T: int, real: Optional[Tensor], device: torch.device) -> None:
        """Announces T more tokens of B sequences; real [B, T]: which of them are no padding (None: all)."""
        if self.position is None:
            self.position = torch.zeros(B, dtype=torch.int64, device=device)
        if len(self.position) != B:
            raise ValueError(f"past_key_values holds {len(self.position)} sequences, not {B}")
        self.fed = torch.ones(B, T, dtype=torch.bool, device=device) if real is None else real
        n = self.fed.to(torch.int64)
        self.starts = self.position.unsqueeze(1) + n.cumsum(1) - n
        self.position = self.position + n.sum(1)
        self.columns += T

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        for layer in self.layers:
            if layer is not None:
                layer.map(lambda x: x.index_select(0, indices.to(x.device)))
        if self.position is not None:
            self.position = self.position.index_select(0, indices.to(self.position.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.position is not None:
            self.batch_select_indices(torch.arange(len(self.position)).repeat_interleave(repeats))

    def reset(self) -> None:
        self.layers, self.position, self.columns = [None] * len(self.layers), None, 0
