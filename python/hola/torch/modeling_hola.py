"""HOLA language models for transformers: HolaConfig, HolaAttention (the layer), HolaModel, HolaForCausalLM.

One file to copy and change. With hola installed its kernels do the work; without, hola_plain.py and hola_memory.py
beside this file do the same in plain PyTorch. Weights and config.json are those of the hola program: each loads what
the other saved.

    x1 = x  + o_proj(norm(o) silu(g_proj n))       n = RMSNorm(x); o = state's read + sigmoid(gate) memory's read
    x2 = x1 + down_proj(silu(gate_proj n) up_proj n)     n = RMSNorm(x1)
"""

from __future__ import annotations

import math
from typing import Any, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

try:
    from hola.torch import gated_delta_rule_with_score, hola_cache_attention
    from hola.torch.hola_memory import HolaCache, IN_ORDER, LayerState, Logits, Memory, Policy, Rows, Scorer, block_states
    from hola.torch.hola_memory import choose_rows, read_in_order, unit_keys, value_heads
    from hola.torch.hola_plain import GATE, NEG, NORM, SIGMOID, compute_type, l2norm
except ImportError:
    from .hola_memory import HolaCache, IN_ORDER, LayerState, Logits, Memory, Policy, Rows, Scorer, block_states
    from .hola_memory import choose_rows, read_in_order, unit_keys, value_heads
    from .hola_plain import GATE, NEG, NORM, SIGMOID, compute_type, gated_delta_rule_with_score
    from .hola_plain import hola_cache_attention, l2norm

MEMORY_EPS = 1e-6
# what the exact memory keeps: the name of a score below, or nothing at all
EVICT = ("betae", "e", "betav", "recency", "streaming", "h2o", "lola", "lte", "none")


class HolaConfig(PretrainedConfig):
    """The fields of config.json, as in hola's docs/format.md."""

    model_type = "hola"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(
        self,
        hidden_size: int = 2048,
        num_hidden_layers: int = 21,
        vocab_size: int = 32000,
        num_heads: int = 6,
        num_v_heads: Optional[int] = None,
        head_dim: int = 256,
        expand_v: float = 2.0,
        hidden_ratio: Optional[float] = 4,
        intermediate_size: Optional[int] = None,
        use_short_conv: bool = True,
        conv_size: int = 4,
        use_gate: bool = True,
        allow_neg_eigval: bool = False,
        norm_eps: float = 1e-6,
        initializer_range: float = 0.02,
        max_position_embeddings: Optional[int] = 2048,
        cache_evict: str = "betae",
        cache_window: int = 64,
        cache_chunk: int = 256,
        cache_norm: str = "rms",
        cache_gate_init: float = -4.0,
        cache_tau_init: float = 1.0,
        cache_tau_freeze: bool = True,
        cache_gate_linear: bool = False,
        cache_gate_token: bool = False,
        cache_redundancy: float = 0.0,
        cache_layer_set: bool = False,
        cache_sinks: int = 4,
        cache_lte_dim: int = 16,
        use_cache: bool = True,
        bos_token_id: Any = 1,
        eos_token_id: Any = 2,
        pad_token_id: Optional[int] = None,
        tie_word_embeddings: bool = False,
        **kwargs: Any,
    ):
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.vocab_size = vocab_size
        self.num_heads = num_heads
        self.num_v_heads = num_v_heads
        self.head_dim = head_dim
        self.expand_v = expand_v
        self.hidden_ratio = hidden_ratio
        self.intermediate_size = intermediate_size
        self.use_short_conv = use_short_conv
        self.conv_size = conv_size
        self.use_gate = use_gate
        self.allow_neg_eigval = allow_neg_eigval
        self.norm_eps = norm_eps
        self.initializer_range = initializer_range
        self.max_position_embeddings = max_position_embeddings
        self.cache_evict = cache_evict
        self.cache_window = cache_window
        self.cache_chunk = cache_chunk
        self.cache_norm = cache_norm
        self.cache_gate_init = cache_gate_init
        self.cache_tau_init = cache_tau_init
        self.cache_tau_freeze = cache_tau_freeze
        self.cache_gate_linear = cache_gate_linear
        self.cache_gate_token = cache_gate_token
        self.cache_redundancy = cache_redundancy
        self.cache_layer_set = cache_layer_set
        self.cache_sinks = cache_sinks
        self.cache_lte_dim = cache_lte_dim
        self.use_cache = use_cache
        self._check(kwargs)
        super().__init__(bos_token_id=bos_token_id, eos_token_id=eos_token_id, pad_token_id=pad_token_id,
                         tie_word_embeddings=tie_word_embeddings, **kwargs)

    def _check(self, other: dict[str, Any]) -> None:
        def need(ok: bool, field: str, what: str) -> None:
            if not ok:
                raise ValueError(f"{field}: {other.get(field, getattr(self, field, None))!r} {what}")

        for field, least, most in (("hidden_size", 1, 65536), ("num_hidden_layers", 1, 1024),
                                   ("vocab_size", 1, 1 << 24),
                                   ("num_heads", 1, 1024), ("head_dim", 1, 512), ("conv_size", 1, 8),
                                   ("cache_window", 0, 4096), ("cache_chunk", 1, 4096), ("cache_sinks", 0, 4096),
                                   ("cache_lte_dim", 1, 64)):
            x = getattr(self, field)
            need(isinstance(x, int) and least <= x <= most, field, f"is not between {least} and {most}")
        need(self.value_heads >= 1 and self.value_heads % self.num_heads == 0, "num_v_heads",
             "is not a multiple of num_heads")
        need(self.head_v_dim >= 1 and self.head_v_dim == self.head_dim * self.expand_v, "expand_v",
             "gives no whole size of value heads")
        need(self.cache_evict in EVICT, "cache_evict", f"is not one of {', '.join(EVICT)}")
        need(0 <= self.cache_redundancy <= 1, "cache_redundancy", "is not between 0 and 1")
        need(not self.cache_redundancy or self.cache_evict not in ("recency", "streaming"), "cache_redundancy",
             f"is not for cache_evict {self.cache_evict}")
        need(not self.cache_layer_set or self.cache_evict not in IN_ORDER, "cache_layer_set",
             f"is not for cache_evict {self.cache_evict}")
        need(not self.cache_layer_set or not self.cache_redundancy or self.cache_evict == "none", "cache_layer_set",
             "is not for cache_redundancy")
        need(self.cache_norm in ("rms", "l2"), "cache_norm", "is not rms or l2")
        for field in ("attn", "attnres_block_size"):
            need(other.get(field) is None, field, "is not supported")
        need(not other.get("conv_bias"), "conv_bias", "is not supported")
        need(other.get("hidden_act", "swish") in ("swish", "silu"), "hidden_act", "is not swish or silu")

    @property
    def value_heads(self) -> int:
        return self.num_heads if self.num_v_heads is None else self.num_v_heads

    @property
    def head_v_dim(self) -> int:
        return int(self.head_dim * self.expand_v)

    @property
    def mlp_size(self) -> int:
        if self.intermediate_size is not None:
            return self.intermediate_size
        ratio = 4 if self.hidden_ratio is None else self.hidden_ratio
        return 256 * -(-int(self.hidden_size * ratio * 2 / 3) // 256)

    def to_diff_dict(self) -> dict[str, Any]:
        """What is saved: transformers leaves out what equals its own defaults, which are not those of the format."""
        kept = super().to_diff_dict()
        for field in ("tie_word_embeddings", "bos_token_id", "eos_token_id", "use_cache"):
            kept[field] = getattr(self, field)
        return kept

    @property
    def policy(self) -> Policy:
        return Policy(self.cache_evict, self.cache_window, self.cache_chunk, self.cache_redundancy)


# ---- parts ----


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float, frozen: bool = False):
        super().__init__()
        self.eps = eps
        if frozen:
            self.register_buffer("weight", torch.ones(size))
        else:
            self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, gate: Optional[Tensor] = None) -> Tensor:
        y = x.to(compute_type(x.dtype))
        y = y * (y.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight.to(y.dtype)
        if gate is not None:
            y = y * F.silu(gate.to(y.dtype))
        return y.to(x.dtype)


class ShortConv(nn.Module):
    """Causal, one filter per channel, then SiLU; weight[c, 0, -1] multiplies the current token."""

    def __init__(self, channels: int, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, size))

    def forward(self, x: Tensor, position: Optional[Tensor], tail: Optional[Tensor] = None) -> Tensor:
        """x [B, T, channels]; position [B, T]: tokens before a token in its sequence (None: t); tail [B, size - 1,
        channels]: what came before x."""
        t, W, T = compute_type(x.dtype), self.weight.shape[2], x.shape[1]
        w, y = self.weight[:, 0].to(t), x.to(t)
        past = F.pad(y, (0, 0, W - 1, 0)) if tail is None else torch.cat([tail.to(t), y], 1)
        out = y * w[:, W - 1]
        for s in range(1, W):
            before = past[:, W - 1 - s : W - 1 - s + T]
            if position is not None and tail is None:
                before = before * (position >= s).unsqueeze(-1)
            out = out + before * w[:, W - 1 - s]
        return F.silu(out).to(x.dtype)


class HolaMLP(nn.Module):
    def __init__(self, config: HolaConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.mlp_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.mlp_size, bias=False)
        self.down_proj = nn.Linear(config.mlp_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


# ---- rows ----


class Packing:
    """Where the sequences lie in the rows [B, T] that the layers work on."""

    def __init__(self, B: int, T: int, device: torch.device, cu: Optional[Tensor] = None,
                 lengths: Optional[list[int]] = None):
        self.B, self.T, self.cu, self.lengths = B, T, cu, lengths
        if cu is None:
            self.position = None
        else:
            at = torch.arange(T, device=device)
            self.position = (at - cu[torch.searchsorted(cu, at, right=True) - 1]).unsqueeze(0)

    def positions(self, device: torch.device) -> Tensor:
        return torch.arange(self.T, device=device).expand(self.B, -1) if self.position is None else self.position

    def sequence(self, x: Tensor, i: int) -> Tensor:
        """Sequence i of x [B, T, ...]."""
        if self.lengths is None:
            return x[i]
        start = sum(self.lengths[:i])
        return x[0, start : start + self.lengths[i]]

    def count(self) -> int:
        return self.B if self.lengths is None else len(self.lengths)

    def all_lengths(self) -> list[int]:
        if self.lengths is None and self.cu is not None:
            self.lengths = self.cu.diff().tolist()
        return [self.T] * self.B if self.lengths is None else self.lengths


# ---- the layer ----


class ScorerPart(nn.Module):
    """One of the parts of lte's network."""

    def __init__(self, *shape: int, bias: int = 0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        if bias:
            self.bias = nn.Parameter(torch.empty(bias))


class HolaAttention(nn.Module):
    """Gated DeltaNet with HOLA's exact memory: rows [B, T, hidden_size] -> the same."""

    def __init__(self, config: HolaConfig, layer_idx: int = 0):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        d, H, HV, K, V = (config.hidden_size, config.num_heads, config.value_heads, config.head_dim, config.head_v_dim)
        linear = lambda n, m: nn.Linear(n, m, bias=False)  # noqa: E731
        self.q_proj, self.k_proj, self.v_proj = linear(d, H * K), linear(d, H * K), linear(d, HV * V)
        self.a_proj, self.b_proj, self.o_proj = linear(d, HV), linear(d, HV), linear(HV * V, d)
        if config.use_gate:
            self.g_proj = linear(d, HV * V)
        if config.use_short_conv:
            self.q_conv1d, self.k_conv1d = ShortConv(H * K, config.conv_size), ShortConv(H * K, config.conv_size)
            self.v_conv1d = ShortConv(HV * V, config.conv_size)
        self.A_log, self.dt_bias = nn.Parameter(torch.empty(HV)), nn.Parameter(torch.empty(HV))
        self.o_norm = RMSNorm(V, config.norm_eps)
        # Loading does not keep requires_grad: what is not trained is a buffer.
        none = config.cache_evict == "none"
        if config.cache_norm == "rms":
            self.cache_q_norm, self.cache_k_norm = (RMSNorm(K, MEMORY_EPS, frozen=none) for _ in range(2))
        for name in ("cache_sink", "cache_gate", "cache_tau"):
            if none or (name == "cache_tau" and config.cache_tau_freeze):
                self.register_buffer(name, torch.empty(HV))
            else:
                setattr(self, name, nn.Parameter(torch.empty(HV)))
        if config.cache_gate_token:
            self.cache_gate_proj = linear(d, HV)
        if config.cache_evict == "lte":
            r = config.cache_lte_dim
            self.cache_lte_in, self.cache_lte_out = ScorerPart(HV, r, K + V), ScorerPart(HV, r, bias=HV)
            self.cache_lte_conv1, self.cache_lte_conv2 = (ScorerPart(HV * r, 1, 3, bias=HV * r) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh A_log, dt_bias and cache_ tensors; those that were loaded are left alone."""
        c, HV = self.config, self.config.value_heads
        u = torch.rand(HV).clamp(min=1e-6) * 16
        dt = torch.exp(torch.rand(HV) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)).clamp(min=1e-4)
        init.copy_(self.A_log, u.log())
        init.copy_(self.dt_bias, dt + torch.log(-torch.expm1(-dt)))
        init.zeros_(self.cache_sink)
        init.constant_(self.cache_gate, c.cache_gate_init)
        init.constant_(self.cache_tau, c.cache_tau_init)
        if c.cache_gate_token:
            init.zeros_(self.cache_gate_proj.weight)
        for part in self.children():
            if isinstance(part, ScorerPart):
                init.normal_(part.weight, std=math.sqrt(2 / part.weight.shape[-1]))
                if hasattr(part, "bias"):
                    init.zeros_(part.bias)

    def _conv(self, x: Tensor, name: str, packing: Packing, tail: Optional[Tensor]) -> Tensor:
        if not self.config.use_short_conv:
            return F.silu(x)
        return getattr(self, f"{name}_conv1d")(x, packing.position, tail)

    def _heads(self, x: Tensor, packing: Packing, tails: Optional[list[Tensor]]):
        """-> q, k, v [B, T, heads, size], the gates' inputs a, b, and the inputs of the convolutions."""
        c, raw = self.config, [self.q_proj(x), self.k_proj(x), self.v_proj(x)]
        q, k, v = (self._conv(r, n, packing, tails and tails[i]) for i, (n, r) in enumerate(zip("qkv", raw)))
        return (q.unflatten(-1, (c.num_heads, -1)), k.unflatten(-1, (c.num_heads, -1)),
                v.unflatten(-1, (c.value_heads, -1)), self.a_proj(x), self.b_proj(x), raw)

    def _for_memory(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.config.cache_norm == "rms":
            return self.cache_q_norm(q), self.cache_k_norm(k)
        t = compute_type(q.dtype)
        return l2norm(q.to(t))[0].to(q.dtype), l2norm(k.to(t))[0].to(k.dtype)

    def _score(self, m: Tensor, b: Tensor, v: Tensor, position: Tensor) -> Tensor:
        """What the memory ranks tokens by, [B, T, HV]; nothing flows back through it. h2o, lola and lte rank by what
        comes later: m stands for it."""
        evict = self.config.cache_evict
        beta = b.detach().to(m.dtype).sigmoid() * (2 if self.config.allow_neg_eigval else 1)
        if evict in ("recency", "streaming"):
            age = position.to(m.dtype)
            if evict == "streaming":
                age = age.masked_fill(position < self.config.cache_sinks, float("inf"))
            return age.unsqueeze(-1).expand(m.shape)
        score = m
        if evict == "e":
            score = m / beta
        if evict == "betav":
            score = beta * v.detach().to(m.dtype).norm(dim=-1)
        return score.norm(dim=-1, keepdim=True).expand(m.shape) if self.config.cache_layer_set else score

    def _logits(self) -> Logits:
        return Logits(self.cache_sink, self.cache_tau, self.config.head_dim**-0.5)

    def _scorer(self) -> Optional[Scorer]:
        """lte's network."""
        if self.config.cache_evict != "lte":
            return None
        HV, one, two, out = self.config.value_heads, self.cache_lte_conv1, self.cache_lte_conv2, self.cache_lte_out
        return Scorer(self.cache_lte_in.weight, one.weight.view(HV, -1, 3), one.bias.view(HV, -1),
                             two.weight.view(HV, -1, 3), two.bias.view(HV, -1), out.weight, out.bias,
                             self.config.norm_eps)

    def _states(self, k: Tensor, v: Tensor, a: Tensor, b: Tensor, lengths: list[int]):
        """The states at the ends of blocks, for lola."""
        rows = [x.detach().flatten(0, 1) for x in (k, v, a, b)]
        flags = NORM | GATE | SIGMOID | (NEG if self.config.allow_neg_eigval else 0)
        return block_states(*rows, self.A_log.detach(), self.dt_bias.detach(), flags, lengths,
                                   self.config.cache_chunk)

    def _read(self, x: Tensor, qkvab: tuple[Tensor, ...], m: Tensor, packing: Packing,
              leave: bool) -> tuple[Tensor, Optional[Memory]]:
        """-> what the memory adds, and, if asked for, what the sequences leave behind in it."""
        q, k, v, a, b = qkvab
        c, policy, lola = self.config, self.config.policy, self.config.cache_evict == "lola"
        qt, kt = self._for_memory(q, k)
        score = self._score(m, b, v, packing.positions(x.device))
        read = kept = None
        if not policy.in_order:
            read = hola_cache_attention(qt, kt, v, score, self.cache_sink, self.cache_tau, window=c.cache_window,
                                        chunk=c.cache_chunk, cu_seqlens=packing.cu)
        if policy.in_order or leave:
            lengths = packing.all_lengths()
            with torch.autocast(x.device.type, enabled=False):
                rows = Rows(*(y.flatten(0, 1) for y in (qt, kt, v, score)),
                                   unit_keys(k.detach()).flatten(0, 1) if lola else None)
                states = self._states(k, v, a, b, lengths)
                if policy.in_order:
                    read, chosen = read_in_order(rows, lengths, policy, self._logits(), states, self._scorer())
                    read = read.unflatten(0, x.shape[:2])
                else:
                    chosen = choose_rows(rows, lengths, policy, self._logits(), states)
                kept = Memory.after(policy, rows, lengths, chosen) if leave else None
        return self._gate(x) * read, kept

    def _gate(self, x: Tensor) -> Tensor:
        """What the reads are multiplied with, [HV, 1] or, a gate per token, [B, T, HV, 1]."""
        gate = self.cache_gate.to(compute_type(self.cache_gate.dtype))
        if self.config.cache_gate_token:
            gate = gate + self.cache_gate_proj(x).to(gate.dtype)
        gate = gate.unsqueeze(-1)
        if self.config.cache_gate_linear:  # the slope is 1 below 0 too, so that a closed gate can open
            return gate + (gate.clamp(min=0) - gate).detach()
        return gate.sigmoid()

    def _delta_rule(self, q, k, v, a, b, packing: Packing, S: Optional[Tensor], state: bool):
        return gated_delta_rule_with_score(
            q, k, v, a, b, initial_state=S, output_final_state=state, use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, allow_neg_eigval=self.config.allow_neg_eigval, cu_seqlens=packing.cu,
            use_gate_in_kernel=True, A_log=self.A_log, dt_bias=self.dt_bias)

    def _finish(self, x: Tensor, o: Tensor) -> Tensor:
        z = self.g_proj(x).unflatten(-1, o.shape[2:]) if self.config.use_gate else None
        return self.o_proj(self.o_norm(o, z).flatten(2))

    def forward(self, x: Tensor, packing: Optional[Packing] = None,
        past_key_values: Optional[HolaCache] = None) -> Tensor:
        if packing is None:
            packing = Packing(x.shape[0], x.shape[1], x.device)
        if past_key_values is not None and past_key_values.layers[self.layer_idx] is not None:
            steps = [self._step(x[:, t : t + 1], past_key_values, t) for t in range(x.shape[1])]
            return torch.cat(steps, 1)
        q, k, v, a, b, raw = self._heads(x, packing, None)
        caching, kept = past_key_values is not None, None
        o, S, m = self._delta_rule(q, k, v, a, b, packing, None, caching)
        if self.config.cache_evict != "none":
            read, kept = self._read(x, (q, k, v, a, b), m, packing, caching)
            o = (o + read).to(o.dtype)
        if caching:
            past_key_values.layers[self.layer_idx] = state = LayerState(S, self._tails(packing, raw))
            state.memory = kept
        return self._finish(x, o)

    # -- token by token --

    def _tails(self, packing: Packing, raw: list[Tensor]) -> list[Tensor]:
        """The last inputs of the convolutions, after the first rows of the sequences."""
        n, back = packing.count(), self.config.conv_size - 1 if self.config.use_short_conv else 0
        if not back:
            return []
        rows = [[packing.sequence(x, i).detach() for i in range(n)] for x in raw]
        return [torch.stack([F.pad(r, (0, 0, back, 0))[len(r) :] for r in x]) for x in rows]

    def _step(self, x: Tensor, past: HolaCache, t: int) -> Tensor:
        """One token of every sequence; those where `past.fed` is false stay as they are."""
        c, state = self.config, past.layers[self.layer_idx]
        fed, position = past.fed[:, t], past.starts[:, t]
        packing = Packing(x.shape[0], 1, x.device)
        q, k, v, a, b, raw = self._heads(x, packing, state.tails or None)
        o, S, m = self._delta_rule(q, k, v, a, b, packing, state.S, True)
        keep = lambda new, old: torch.where(fed.view(-1, *(1,) * (new.dim() - 1)), new, old)  # noqa: E731
        state.S = keep(S.to(state.S.dtype), state.S)
        state.tails = [keep(torch.cat([old[:, 1:], r.detach()], 1), old) for old, r in zip(state.tails, raw)]
        if c.cache_evict != "none":
            qt, kt = (value_heads(y, v) for y in self._for_memory(q, k))
            score = self._score(m, b, v, position.unsqueeze(1))
            new = [kt, v, torch.zeros_like(score) if c.cache_evict in IN_ORDER else score]
            if c.cache_evict == "lola":
                new.append(value_heads(unit_keys(k), v))
            read = state.memory.step(qt[:, 0], [y.detach()[:, 0] for y in new], position, fed, self._logits(), state.S,
                                     self._scorer())
            o = (o + self._gate(x) * read.unsqueeze(1)).to(o.dtype)
        return self._finish(x, o)


# ---- the model ----


class HolaBlock(GradientCheckpointingLayer):
    def __init__(self, config: HolaConfig, layer_idx: int):
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attn = HolaAttention(config, layer_idx)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = HolaMLP(config)

    def forward(self, x: Tensor, packing: Packing, past_key_values: Optional[HolaCache] = None) -> Tensor:
        x = x + self.attn(self.attn_norm(x), packing, past_key_values)
        return x + self.mlp(self.mlp_norm(x))


class HolaPreTrainedModel(PreTrainedModel):
    config_class = HolaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["HolaBlock"]
    _skip_keys_device_placement = ["past_key_values"]
    _is_stateful = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding, ShortConv)):
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)
        elif isinstance(module, RMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, HolaAttention):
            module.reset_parameters()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # forward makes the cache


class HolaModel(HolaPreTrainedModel):
    def __init__(self, config: HolaConfig):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([HolaBlock(config, i) for i in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings = value

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        past_key_values: Optional[HolaCache] = None,
        inputs_embeds: Optional[Tensor] = None,
        use_cache: Optional[bool] = None,
        cu_seqlens: Optional[Tensor] = None,
        output_hidden_states: Optional[bool] = None,
        return_dict: Optional[bool] = None,
        **kwargs: Any,
    ) -> Union[tuple, BaseModelOutputWithPast]:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        x = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        B, T = x.shape[:2]
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        if cu_seqlens is None:
            cu_seqlens = documents(kwargs, B, past_key_values)
        elif B != 1:
            raise ValueError(f"cu_seqlens: the batch size must be 1, not {B}")
        if cu_seqlens is not None and past_key_values is not None:
            raise ValueError("cu_seqlens: packed rows cannot continue past_key_values")
        if self.gradient_checkpointing and self.training or cu_seqlens is not None:
            use_cache = False
        if past_key_values is None and use_cache:
            past_key_values = HolaCache(self.config)
        past = past_key_values if use_cache or (past_key_values is not None and past_key_values.columns) else None
        mask = real_tokens(attention_mask, B, T, past.columns if past else 0)
        if mask is not None and cu_seqlens is not None:
            raise ValueError("cu_seqlens: padding is not supported beside it")
        started = past is not None and past.columns > 0
        if past is not None:
            past.feed(B, T, mask, x.device)
        if mask is not None and not started:  # padding is left out: rows of all sequences, one after another
            lengths, at = mask.sum(1), mask.flatten().nonzero()[:, 0]
            cu = F.pad(lengths.cumsum(0), (1, 0))
            x = x.flatten(0, 1)[at].unsqueeze(0)
            packing = Packing(1, x.shape[1], x.device, cu, lengths.tolist())
        else:
            packing = Packing(B, T, x.device, cu_seqlens)
        states = []
        for layer in self.layers:
            states.append(x)
            x = layer(x, packing, past_key_values=past)
        x = self.norm(x)
        states.append(x)
        if mask is not None and not started:
            put = lambda y: y.new_zeros((B * T, y.shape[-1])).index_copy(0, at, y[0]).unflatten(0, (B, T))  # noqa: E731
            x, states = put(x), [put(y) for y in states] if output_hidden_states else []
        out = BaseModelOutputWithPast(last_hidden_state=x, past_key_values=past if use_cache else None,
                                      hidden_states=tuple(states) if output_hidden_states else None)
        return out if return_dict is None or return_dict else out.to_tuple()


def documents(kwargs: dict[str, Any], B: int, past: Optional[HolaCache]) -> Optional[Tensor]:
    """Packed documents as transformers' collators mark them: cu_seq_lens_q, or position_ids that begin again."""
    if past is not None or B != 1:
        return None
    if kwargs.get("cu_seq_lens_q") is not None:
        return kwargs["cu_seq_lens_q"].flatten()
    ids = kwargs.get("position_ids")
    if ids is None:
        return None
    starts = (ids[0] == 0).nonzero()[:, 0]
    if len(starts) < 2:
        return None
    return torch.cat([starts.new_zeros(1), starts[1:], starts.new_full((1,), ids.shape[1])])


def real_tokens(attention_mask: Optional[Tensor], B: int, T: int, past: int) -> Optional[Tensor]:
    """Which of the T new tokens are no padding, [B, T]; None: all."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2 or attention_mask.shape[0] != B or attention_mask.shape[1] not in (T, past + T):
        raise ValueError(f"attention_mask must be [{B}, {past + T}], but is {list(attention_mask.shape)}")
    mask = attention_mask[:, -T:] != 0 if T else attention_mask[:, :0] != 0
    return None if bool(mask.all()) else mask


def fill_in_tied_head(model: nn.Module, state: dict[str, Any], prefix: str, *args: Any) -> None:
    """A tied head is stored once, as the embeddings."""
    name = prefix + "model.embeddings.weight"
    if model.config.tie_word_embeddings and name in state:
        state.setdefault(prefix + "lm_head.weight", state[name])


class HolaForCausalLM(HolaPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}

    def __init__(self, config: HolaConfig):
        super().__init__(config)
        self.model = HolaModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.register_load_state_dict_pre_hook(fill_in_tied_head)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embeddings = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        past_key_values: Optional[HolaCache] = None,
        inputs_embeds: Optional[Tensor] = None,
        use_cache: Optional[bool] = None,
        labels: Optional[Tensor] = None,
        cu_seqlens: Optional[Tensor] = None,
        logits_to_keep: Union[int, Tensor] = 0,
        output_hidden_states: Optional[bool] = None,
        return_dict: Optional[bool] = None,
        **kwargs: Any,
    ) -> Union[tuple, CausalLMOutputWithPast]:
        if cu_seqlens is None:
            cu_seqlens = documents(kwargs, (input_ids if inputs_embeds is None else inputs_embeds).shape[0],
                                   past_key_values)
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=past_key_values,
                         inputs_embeds=inputs_embeds, use_cache=use_cache, cu_seqlens=cu_seqlens,
                         output_hidden_states=output_hidden_states, return_dict=True)
        x = out.last_hidden_state
        if isinstance(logits_to_keep, Tensor):
            x = x[:, logits_to_keep]
        elif logits_to_keep:
            x = x[:, -logits_to_keep:]
        logits = self.lm_head(x)
        loss = None
        if labels is not None:
            if attention_mask is not None:  # padding has no target, and nothing predicts a first token
                real = attention_mask[:, -labels.shape[1] :] != 0
                labels = labels.masked_fill(~(real & F.pad(real, (1, 0))[:, :-1]), -100)
            if cu_seqlens is not None:
                first = cu_seqlens[:-1].long()
                labels = labels.index_fill(1, first[first < labels.shape[1]], -100)
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size,
                                      **{k: v for k, v in kwargs.items() if k in ("num_items_in_batch",
                                          "shift_labels")})
        result = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=out.past_key_values,
                                        hidden_states=out.hidden_states)
        return result if return_dict is None or return_dict else result.to_tuple()


HolaConfig.register_for_auto_class()
HolaModel.register_for_auto_class("AutoModel")
HolaForCausalLM.register_for_auto_class("AutoModelForCausalLM")
