"""The native decoder for the text config of a vision-language model, and changes of some."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from transformers.models.auto import modeling_auto

from builtin_plugins.models import qwen_moe
from core.model_spec.decoder import DecoderSpec

PACKAGE: Final = "builtin_plugins.models"
ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "glm4v_moe_text": "Glm4MoeForCausalLM",
        "glm4v_text": "Glm4ForCausalLM",
        "glm_ocr_text": "Glm4ForCausalLM",
        "mistral_large4_text": "MistralLarge4ForCausalLM",
        "paddleocr_vl_text": "LlamaForCausalLM",
        "phi4_multimodal": "Phi3ForCausalLM",
        "qwen2_5_vl_text": "Qwen2ForCausalLM",
        "qwen2_vl_text": "Qwen2ForCausalLM",
        "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
        "qwen3_vl_text": "Qwen3ForCausalLM",
    }
)
"""Architecture by model type, for text parts that transformers has no class of their own for."""
FIXED_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "glm4v_text": {"attention_bias": True},
        "glm_ocr_text": {"attention_bias": False},
        "qwen3_vl_moe_text": {"norm_topk_prob": True},
    }
)
"""Fields of the native decoder's config that a text part fixes, by model type."""

Read = Callable[[Any], DecoderSpec]


def architecture_of(model_type: str) -> str | None:
    """Return the architecture of a text part; None without one."""
    auto: Any = modeling_auto
    name = ALIASES.get(model_type) or auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    return name if isinstance(name, str) else None


def native_decoder(model_type: str) -> Read | None:
    """Return the function that reads a text config; None without a native decoder."""
    target = _native_targets().get(architecture_of(model_type) or "")
    if target is None:
        return None
    module, _, function = target.partition(":")
    read: Read = getattr(importlib.import_module(module), function)
    return read


@cache
def _native_targets() -> Mapping[str, str]:
    """Return the targets of the builtin architectures, by name."""
    found: dict[str, str] = {}
    folders = importlib.import_module(PACKAGE).__path__
    for module in pkgutil.iter_modules(folders, f"{PACKAGE}."):
        if module.ispkg:
            continue  # encoders, and those that build on this one
        plugin = importlib.import_module(module.name)
        for entry in getattr(plugin, "engine_models", list)():
            found[entry.name] = entry.target
    return found


def unscaled(hf_config: Any) -> DecoderSpec:
    """Return the native decoder of a text config (Cohere 2, Granite) without a logit scale, as in
    transformers.
    """
    read = native_decoder(hf_config.model_type)
    assert read is not None
    return replace(read(hf_config), logit_scale=1.0)


def qwen3_vl_moe(text_config: Any) -> DecoderSpec:
    """Return Qwen3-MoE with stacked experts as [in, out] or, saved by transformers, [out, in]."""
    found = qwen_moe.qwen3_moe(text_config)
    return replace(found, names=replace(found.names, experts_layout="either"))
