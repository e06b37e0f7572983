"""Towers that timm has: without it, transformers cannot even read their configs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from core.api import ModelError

TYPES: Final = ("timm_wrapper", "gemma3n_vision")
"""Model types of the configs of such towers."""


def check_timm(hf_config: Any) -> None:
    """Raise `ModelError` if a model needs timm, and it is not installed."""
    vision = getattr(hf_config, "vision_config", None)
    fields = vision if isinstance(vision, Mapping) else vars(vision or object)
    model_type = fields.get("model_type")
    if model_type in TYPES and find_spec("timm") is None:
        raise ModelError(
            f"vision_config.model_type: got {model_type!r}; expected timm to be installed, which "
            "has this tower. Run `pip install timm`."
        )
