"""The text part of a model with several parts: it decides context length, dtype and end tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api import ModelError

PARTS: Final = ("text_config", "llm_config", "language_config", "thinker_config", "vlm_config")
"""Fields that hold the config of a text part."""


def text_part(stated: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of the text part over those of the whole; the whole without a part."""
    for name in PARTS:
        part = stated.get(name)
        if isinstance(part, Mapping):
            whole = {key: value for key, value in stated.items() if key != name}
            given = {key: value for key, value in text_part(part).items() if value is not None}
            return {**whole, **given}
    return stated


def default_of_text_part(stated: Mapping[str, Any], name: str) -> Any:
    """Return a field that the text part leaves to the default of its config class; None: unknown.

    Slow: imports transformers.
    """
    import transformers  # lazy: slow to import

    model_type = str(stated.get("model_type"))
    if model_type not in transformers.CONFIG_MAPPING:
        return None
    try:
        config = transformers.CONFIG_MAPPING[model_type].from_dict(dict(stated))
    except Exception as error:
        raise ModelError(
            f"transformers rejects config.json: {error}. Restore the original file."
        ) from error
    return getattr(config.get_text_config(), name, None)
