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

_MODELS = ["HolaAttention", "HolaConfig", "HolaForCausalLM", "HolaModel"]
try:
    import transformers as _transformers
except ImportError:
    _why = "they need transformers 5, which is not installed"
else:
    _why = f"they need transformers 5, not {_transformers.__version__}"
    if int(_transformers.__version__.partition(".")[0]) >= 5:
        from ._register import HolaAttention, HolaConfig, HolaForCausalLM, HolaModel

        __all__ += _MODELS


def __getattr__(name: str) -> object:
    if name in _MODELS:
        raise AttributeError(f"module 'hola.torch' has no {name}: HOLA's models are not here, {_why}")
    raise AttributeError(f"module 'hola.torch' has no attribute {name!r}")
