"""What the configs of vision-language models do not say, by architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from core.model_spec.decoder import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture."""

    look_ahead: bool = False
    """Whether the tokens of an image see each other."""
    rope_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Rotary parameters that the config may leave out."""
    decoder: Callable[[Any], DecoderSpec] | None = None
    """Reads the text config; None: the native decoder of its model type."""
    rename: tuple[tuple[str, str], ...] = ()
    """Renames of the text part's tensors, before those of all families."""


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
"""Families with facts of their own, or with a native entry; `Family()` is tried for others."""
