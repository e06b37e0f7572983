"""Which tokens see each other in Gemma models that read images."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from builtin_plugins.models.vision.decoders import native_decoder
from core.model_spec.decoder import DecoderSpec
from core.model_spec.tower import LookAhead


def items(config: Any) -> LookAhead:
    """Return that the tokens of an image do (Gemma 3)."""
    del config
    return "items"


def windowed_items(config: Any) -> LookAhead:
    """Return that the tokens of an image do in layers with a window, if the config says so."""
    text = config.get_text_config()
    return "windowed_items" if text.use_bidirectional_attention == "vision" else ""


def prompt(config: Any) -> LookAhead:
    """Return that all tokens of a prompt with images do (PaliGemma, a prefix language model).

    Layers with a window keep it; PaliGemma 2's is longer than its prompts.
    """
    del config
    return "prompt"


def prefix_decoder(hf_config: Any) -> DecoderSpec:
    """Return Gemma or Gemma 2 for PaliGemma; attention ahead in its config is that of prompts."""
    read = native_decoder(hf_config.model_type)
    assert read is not None
    return read(SimpleNamespace(**{**vars(hf_config), "use_bidirectional_attention": None}))
