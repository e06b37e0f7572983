"""Reads the config of a vision-language model: the decoder of its text config, and its tower."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import transformers
from transformers.models.auto import modeling_auto

from builtin_plugins.models.generic.config import read_config
from builtin_plugins.models.vision.decoders import native_decoder
from builtin_plugins.models.vision.families import FAMILIES, Family
from builtin_plugins.models.vision.tower import TransformersTowerSpec
from core.api import ModelError
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.tower import TowerFacts

TEXT_NAMES: Final = (
    (r"^(model\.)?language_model\.lm_head\.", "lm_head."),
    (r"^(model\.)?language_model\.(model\.)?", "model."),
)
"""Renames of the text part's tensors, from every layout in use to that of a text model."""
REFUSED_MARKS: Final = {
    "block_sequence_ids": "tokens of its images see each other, which is known for no such model",
    "or_mask_function": "it has an attention mask of its own",
    "get_rope_index": "it counts positions in several axes in a way that is not known",
    "deepstack": "its tower adds to several layers in a way that is not known",
}
"""Texts in a model's source that tell what only an entry in `FAMILIES` can vouch for."""


def spec(hf_config: Any) -> DecoderSpec:
    """Return the decoder with its tower. Raises `ModelError` for a model that is not served."""
    architecture = str(ModelFacts(hf_config).required("architectures")[0])
    config = read_config(hf_config)
    model_class = getattr(transformers, architecture)
    family = FAMILIES.get(architecture)
    if family is None:
        reason = why_not(model_class)
        if reason is not None:
            raise ModelError(f"transformers has {architecture}, but {reason}.")
        family = Family()
    decoder = _decoder(config, family, architecture)
    rename = (*family.rename, *TEXT_NAMES, *decoder.names.rename)
    names = replace(decoder.names, rename=rename)
    levels = len(
        getattr(getattr(config, "vision_config", None), "deepstack_visual_indexes", None) or ()
    )
    facts = TowerFacts(
        placeholders=_placeholders(config),
        look_ahead=family.look_ahead,
        embedding_width=decoder.hidden_size * (1 + levels),
    )
    return replace(decoder, names=names, tower=TransformersTowerSpec(config, model_class, facts))


def is_image_text(architecture: str) -> bool:
    """Return whether transformers has a class of this name that reads images and writes text."""
    auto: Any = modeling_auto
    names = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()
    return architecture in names and hasattr(transformers, architecture)


def why_not(model_class: Any) -> str | None:
    """Return why a model without facts in `FAMILIES` cannot be served; None if it can."""
    if not hasattr(model_class, "get_image_features"):
        return "it has no get_image_features: images are not embeddings of its prompt"
    source = inspect.getsource(inspect.getmodule(model_class) or model_class)
    for mark, reason in REFUSED_MARKS.items():
        if mark in source:
            return reason
    return None


def _decoder(config: Any, family: Family, architecture: str) -> DecoderSpec:
    """Return the decoder of the text config."""
    text = config.get_text_config()
    if not hasattr(text, "model_type"):
        raise ModelError(
            f"text_config: got {text!r:.100}; expected the config of a decoder, with its "
            "model_type. Restore config.json from the model's source."
        )
    read = family.decoder or native_decoder(text.model_type)
    if read is None:
        raise ModelError(
            f"text_config.model_type: got {text.model_type!r}; expected the type of a native "
            f"decoder, for the images of {architecture}. Serve another checkpoint."
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
