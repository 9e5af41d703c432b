"""What bench/compare_fla.py compares: shapes, inputs, and the functions of both sides."""

from __future__ import annotations

from typing import Any, Callable

# sequences, tokens, key heads, d_k, d_v; lengths: so many sequences of random lengths in one row
SHAPES = {
    "gdn": [
        (16, 2048, 4, 256, 256, 0), (32, 2048, 4, 128, 128, 0), (1, 32768, 4, 256, 256, 0), (1, 512, 2, 64, 64, 0),
        (1, 512, 32, 128, 128, 0), (64, 512, 4, 64, 64, 0), (64, 512, 8, 128, 128, 0), (8, 1024, 6, 256, 512, 0),
        (4, 4096, 16, 64, 64, 0), (2, 8192, 8, 128, 256, 0), (1, 16384, 32, 128, 128, 0), (1, 32768, 2, 64, 64, 0),
        (1, 32768, 16, 128, 128, 0), (32, 1024, 8, 64, 128, 0), (16, 2048, 8, 128, 128, 0), (2, 2048, 2, 256, 256, 0),
        (1, 8192, 4, 256, 256, 7), (1, 32768, 8, 128, 128, 32), (1, 16384, 16, 64, 64, 64), (1, 4096, 4, 256, 512, 4),
    ],
    "kda": [
        (32, 2048, 4, 128, 128, 0), (16, 2048, 8, 128, 128, 0), (1, 32768, 4, 128, 128, 0), (4, 4096, 16, 64, 64, 0),
        (1, 16384, 8, 128, 128, 16),
    ],
    "gla": [
        (32, 2048, 4, 128, 128, 0), (32, 2048, 4, 64, 128, 0), (16, 2048, 4, 128, 256, 0), (1, 32768, 8, 128, 128, 0),
        (1, 16384, 8, 64, 64, 16),
    ],
    "gsa": [(32, 2048, 4, 128, 128, 0), (16, 2048, 4, 256, 256, 0)],
    "attention": [
        (16, 2048, 16, 64, 64, 0), (8, 2048, 16, 128, 128, 0), (2, 8192, 16, 128, 128, 0), (1, 32768, 8, 128, 128, 0),
    ],
}  # fmt: skip
TINY = {"gdn": [(2, 40, 2, 16, 16, 0), (1, 70, 1, 16, 32, 3)], "kda": [(1, 40, 2, 16, 16, 0)],
        "gla": [(1, 40, 2, 16, 16, 2)], "gsa": [(1, 40, 2, 16, 16, 0)], "attention": [(1, 40, 2, 16, 16, 0)]}
SLOTS = 64  # of gsa
TARGETS = {(16, 2048, 4, 256, 256): (0.32, 0.65), (32, 2048, 4, 128, 128): (0.37, 0.53),
           (1, 32768, 4, 256, 256): (0.58, 1.2)}  # of gdn on an H200, ms: forward, backward


def inputs(torch: Any, op: str, shape: tuple, device: str, empty: bool = False) -> tuple[list[Any], Any]:
    """empty: q, k and v hold no numbers, where only their shapes count."""
    B, T, H, K, V, lengths = shape
    torch.manual_seed(T + K)
    fill = torch.empty if empty else torch.randn
    make = lambda *size: fill(*size, device=device, dtype=torch.bfloat16)  # noqa: E731
    x = [make(B, T, H, K), make(B, T, H, K), make(B, T, H, V)]
    if op != "attention":
        per = {"gdn": (), "gsa": (SLOTS,)}.get(op, (K,))
        x.append(-0.1 * torch.rand(B, T, H, *per, device=device))
    if op == "gsa":
        x.append((1 - x[3].exp()).bfloat16())
    if op in ("gdn", "kda"):
        x.append(torch.rand(B, T, H, device=device).bfloat16())
    cu = None
    if lengths:
        cuts = torch.randperm(T - 1)[: lengths - 1].sort().values + 1
        cu = torch.cat([torch.tensor([0]), cuts, torch.tensor([T])]).int().to(device)
    return [y.requires_grad_() for y in x], cu


def caller(function: Callable, op: str, x: list[Any], cu: Any) -> Callable[[], Any]:
    if op == "attention":
        return lambda: function(*x, causal=True)
    if op == "gsa":
        return lambda: function(x[0], x[1], x[2], s=x[4], g=x[3], cu_seqlens=cu)[0]
    more = {} if op == "gla" else {"beta": x[4], "use_qk_l2norm_in_kernel": True}
    return lambda: function(x[0], x[1], x[2], g=x[3], cu_seqlens=cu, **more)[0]


def of_hola(op: str) -> Callable:
    import hola.torch as ht

    if op == "gsa":
        raise NotImplementedError("hola.torch has no gsa")
    return {"gdn": ht.chunk_gated_delta_rule, "kda": ht.chunk_kda, "gla": ht.chunk_gla,
            "attention": ht.flash_attn_func}[op]


def of_other(op: str) -> Callable:
    """fla's function, or PyTorch's attention."""
    if op == "attention":
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        return lambda q, k, v, causal: sdpa(*(y.transpose(1, 2) for y in (q, k, v)), is_causal=causal).transpose(1, 2)
    name = "chunk_" + {"gdn": "gated_delta_rule"}.get(op, op)
    return getattr(__import__(f"fla.ops.{name[6:]}", fromlist=[name]), name)
