"""The decoder of Qwen3-VL-MoE: its experts are published in another layout than saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builtin_plugins.models import qwen_moe
from core.model_spec.decoder import DecoderSpec


def spec(text_config: Any) -> DecoderSpec:
    """Return Qwen3-MoE with stacked experts as [in, out] or, saved by transformers, [out, in]."""
    found = qwen_moe.qwen3_moe(text_config)
    return replace(found, names=replace(found.names, experts_layout="either"))
