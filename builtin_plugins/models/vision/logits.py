"""Decoders with logits that transformers leaves unscaled in models that read images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builtin_plugins.models.vision.decoders import native_decoder
from core.model_spec.decoder import DecoderSpec


def unscaled(hf_config: Any) -> DecoderSpec:
    """Return the native decoder of a text config (Cohere 2, Granite) without a logit scale."""
    read = native_decoder(hf_config.model_type)
    assert read is not None
    return replace(read(hf_config), logit_scale=1.0)
