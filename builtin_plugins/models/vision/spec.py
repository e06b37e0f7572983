"""Reads the config of a vision-language model: the decoder of its text config, and its tower."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import transformers

from builtin_plugins.models.generic.spec import read_config
from builtin_plugins.models.vision.families import DECODERS, FAMILIES, Family
from builtin_plugins.models.vision.tower import TransformersTowerSpec
from core.api import ModelError
from core.model_spec.decoder import DecoderSpec
from core.model_spec.tower import TowerFacts

TEXT_NAMES: Final = (
    (r"^(model\.)?language_model\.lm_head\.", "lm_head."),
    (r"^(model\.)?language_model\.(model\.)?", "model."),
)
"""Renames of the text part's tensors, from every layout in use to that of a text model."""


def spec(hf_config: Any) -> DecoderSpec:
    """Return the decoder with its tower. Raises `ModelError` if its text part is not served."""
    architecture = hf_config.architectures[0]
    family = FAMILIES[architecture]
    config = read_config(hf_config)
    decoder = _decoder(config, family, architecture)
    names = replace(decoder.names, rename=(*TEXT_NAMES, *decoder.names.rename))
    facts = TowerFacts(placeholders=_placeholders(config), look_ahead=family.look_ahead)
    tower = TransformersTowerSpec(config, getattr(transformers, architecture), facts)
    return replace(decoder, names=names, tower=tower)


def _decoder(config: Any, family: Family, architecture: str) -> DecoderSpec:
    """Return the decoder of the text config."""
    text = config.get_text_config()
    read = DECODERS.get(text.model_type)
    if read is None:
        raise ModelError(
            f"text_config.model_type: got {text.model_type!r}; expected one of "
            f"{', '.join(DECODERS)} for {architecture}. Serve another checkpoint."
        )
    fields = text.to_dict()
    rope = dict(fields.get("rope_parameters") or {})
    fields["rope_parameters"] = {**family.rope_defaults, **rope} if rope else None
    tied = getattr(config, "tie_word_embeddings", None)
    if tied is not None:
        fields["tie_word_embeddings"] = tied
    return read(SimpleNamespace(**fields))


def _placeholders(config: Any) -> dict[str, int]:
    """Return the placeholder token of each modality that the config names."""
    names = {"image": ("image_token_id", "image_token_index")}
    found = {
        modality: next((getattr(config, name) for name in fields if hasattr(config, name)), None)
        for modality, fields in names.items()
    }
    missing = [modality for modality, token in found.items() if type(token) is not int]
    if missing:
        raise ModelError(
            f"{missing[0]}_token_id: got {found[missing[0]]!r} in config.json; expected a token "
            "id. Restore the model's own config.json."
        )
    return {modality: token for modality, token in found.items() if token is not None}
