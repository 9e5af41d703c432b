"""hola's kernels as PyTorch functions, and HOLA models for transformers. docs/python_torch.md shows how to use them."""

from ._fla import patch_fla, unpatch_fla
from ._functions import (
    backend_for,
    chunk_gated_delta_rule,
    chunk_gdn,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_gdn,
    gated_delta_rule_with_score,
    hola_cache_attention,
    use_kernels,
)
from ._functions_attention import flash_attn_func, flash_attn_varlen_func
from ._functions_linear import chunk_gla, chunk_kda

__all__ = [
    "backend_for",
    "chunk_gated_delta_rule",
    "chunk_gdn",
    "chunk_gla",
    "chunk_kda",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gdn",
    "gated_delta_rule_with_score",
    "hola_cache_attention",
    "patch_fla",
    "unpatch_fla",
    "use_kernels",
]

try:
    import transformers as _transformers  # noqa: F401
except ImportError:
    pass  # functions only
else:
    from ._register import HolaAttention, HolaConfig, HolaForCausalLM, HolaModel

    __all__ += ["HolaAttention", "HolaConfig", "HolaForCausalLM", "HolaModel"]
