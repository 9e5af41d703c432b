"""Makes HolaConfig and HolaForCausalLM known to transformers' Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from .modeling_hola import HolaAttention, HolaConfig, HolaForCausalLM, HolaModel

AutoConfig.register(HolaConfig.model_type, HolaConfig, exist_ok=True)
AutoModel.register(HolaConfig, HolaModel, exist_ok=True)
AutoModelForCausalLM.register(HolaConfig, HolaForCausalLM, exist_ok=True)

__all__ = ["HolaAttention", "HolaConfig", "HolaForCausalLM", "HolaModel"]
