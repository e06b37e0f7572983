"""What the configs of vision-language models do not say: their decoder, and how it reads images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from builtin_plugins.models import gemma3, llama, mistral, qwen2, qwen3
from core.model_spec.decoder import DecoderSpec

DECODERS: Final[Mapping[str, Callable[[Any], DecoderSpec]]] = MappingProxyType(
    {
        "gemma3_text": gemma3.spec,
        "llama": llama.spec,
        "mistral": mistral.spec,
        "qwen2": qwen2.spec,
        "qwen2_5_vl_text": qwen2.spec,
        "qwen2_vl_text": qwen2.spec,
        "qwen3": qwen3.spec,
        "qwen3_vl_text": qwen3.spec,
    }
)
"""Decoder by the model type of the text config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture."""

    look_ahead: bool = False
    """Whether the tokens of an image see each other."""
    rope_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Rotary parameters that the config may leave out."""


FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "Gemma3ForConditionalGeneration": Family(look_ahead=True),
        "LlavaForConditionalGeneration": Family(),
        "Qwen2_5_VLForConditionalGeneration": Family(rope_defaults={"mrope_section": [16, 24, 24]}),
        "Qwen2VLForConditionalGeneration": Family(rope_defaults={"mrope_section": [16, 24, 24]}),
        "Qwen3VLForConditionalGeneration": Family(
            rope_defaults={"mrope_section": [24, 20, 20], "mrope_interleaved": True}
        ),
    }
)
"""Facts by architecture."""
