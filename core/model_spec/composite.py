"""The text part of a composite config, for models that are served without images and sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from core.errors import ModelError
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts


def text_part(hf_config: Any, read: Callable[[Any], DecoderSpec], *unread: str) -> DecoderSpec:
    """Return the decoder of `text_config`, read by `read`.

    `unread` are patterns of tensors of the other parts, of any layout in use.
    """
    facts = ModelFacts(hf_config)
    stated = facts.required("text_config")
    fields = dict(stated) if isinstance(stated, dict) else None
    if fields is None:
        raise ModelError(
            f"text_config: got {stated!r:.100}; expected an object. Restore config.json from the "
            "model's source."
        )
    tied = facts.get("tie_word_embeddings")
    if tied is not None:
        fields["tie_word_embeddings"] = tied
    spec = read(SimpleNamespace(**fields))
    rename = ((r"^model\.language_model\.", "model."), *spec.names.rename)
    ignored = (*spec.names.ignored, *unread)
    return replace(spec, names=replace(spec.names, rename=rename, ignored=ignored))
