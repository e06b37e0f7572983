"""Reads the config of a vision-language model: the decoder of its text config, and its tower."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import transformers
from transformers.models.auto import modeling_auto

from builtin_plugins.models.generic.config import read_config
from builtin_plugins.models.generic.module_spec import why_not as why_not_generic
from builtin_plugins.models.vision.decoders import FIXED_FIELDS, native_decoder
from builtin_plugins.models.vision.families import FAMILIES, Family
from builtin_plugins.models.vision.image_text import ImageTextSpec
from builtin_plugins.models.vision.refusals import check_timm, why_not
from builtin_plugins.models.vision.tower import TransformersTowerSpec
from core.api import ModelError
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.tower import TowerFacts

TEXT_NAMES: Final = (
    # Saved by transformers, which takes the text part's layers for those of its tower.
    (r"^language_model\.model\.(blocks|encoder\.layers)\.", "language_model.model.layers."),
    (r"^(model\.)?language_model\.lm_head\.", "lm_head."),
    (r"^(model\.)?(language_model|text_model)\.(model\.)?", "model."),
)
"""Renames of the text part's tensors, from every layout in use to that of a text model."""
MAX_CROSS_ITEMS: Final = 4
"""Images of a prompt that cross attention reads; with text between them, some lie there twice."""


def spec(hf_config: Any, *, own_modules: bool = False) -> DecoderSpec | ImageTextSpec:
    """Return the decoder with its tower; transformers' own modules without a native decoder.

    `own_modules` takes those in any case. Raises `ModelError` for a model that is not served.
    """
    architecture = str(ModelFacts(hf_config).required("architectures")[0])
    check_timm(hf_config)
    config = read_config(hf_config)
    model_class = getattr(transformers, architecture)
    family = FAMILIES.get(architecture)
    if family is None:
        reason = why_not(model_class, config)
        if reason is not None:
            raise ModelError(f"transformers has {architecture}, but {reason}.")
        family = Family()
    read = family.decoder or native_decoder(_text_config(config).model_type)
    vision = getattr(config, "vision_config", None)
    levels = len(getattr(vision, "deepstack_visual_indexes", None) or ())
    states = 0 if family.cross_positions is None else family.cross_positions(config)
    facts = TowerFacts(
        placeholders=_placeholders(config, family),
        look_ahead=family.look_ahead(config),
        embedding_width=0 if states else _text_config(config).hidden_size * (1 + levels),
        marks={} if family.marks is None else {"image": family.marks(config)},
        in_encoder=family.in_encoder,
        cross_positions=states,
        max_cross_positions=MAX_CROSS_ITEMS * 2 * states,
    )
    tower = TransformersTowerSpec(
        config, model_class, facts, family.arrange, family.features, unused=family.unused
    )
    if read is None or own_modules:
        return _image_text(config, model_class, tower, family)
    decoder = read(_text_fields(config, family))
    if family.scaled_images:
        tower = replace(tower, scale=decoder.embed_scale)
    rename = (*family.rename, *TEXT_NAMES, *decoder.names.rename)
    return replace(decoder, names=replace(decoder.names, rename=rename), tower=tower)


def is_image_text(architecture: str) -> bool:
    """Return whether transformers has a class of this name that reads images and writes text."""
    auto: Any = modeling_auto
    names = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()
    model_class = getattr(transformers, architecture, None)
    return architecture in names and getattr(model_class, "input_modalities", "text") != "text"


def _image_text(
    config: Any, model_class: Any, tower: TransformersTowerSpec, family: Family
) -> ImageTextSpec:
    """Return a model that runs through transformers' modules. Raises `ModelError`."""
    text = config.get_text_config()
    reason = why_not_generic(config, model_class)
    if reason is not None:
        raise ModelError(
            f"text_config.model_type: got {text.model_type!r}; expected the type of a native "
            f"decoder for {model_class.__name__}, because in transformers {reason}. Serve another "
            "checkpoint."
        )
    counted = family.text.vocab_size
    vocab_size = text.vocab_size if counted is None else counted(config)
    return ImageTextSpec(config, model_class, vocab_size, tower=tower, text=family.text)


def _text_config(config: Any) -> Any:
    """Return the config of the text part."""
    text = config.get_text_config()
    if not hasattr(text, "model_type"):
        raise ModelError(
            f"text_config: got {text!r:.100}; expected the config of a decoder, with its "
            "model_type. Restore config.json from the model's source."
        )
    return text


def _text_fields(config: Any, family: Family) -> Any:
    """Return the fields of the text config, with what the family and the whole config add."""
    text = _text_config(config)
    fields = {**text.to_dict(), **FIXED_FIELDS.get(text.model_type, {})}
    rope = dict(fields.get("rope_parameters") or {})
    fields["rope_parameters"] = {**family.rope_defaults, **rope} if rope else None
    tied = getattr(config, "tie_word_embeddings", None)
    if tied is not None:
        fields["tie_word_embeddings"] = tied
    return SimpleNamespace(**fields)


def _placeholders(config: Any, family: Family) -> dict[str, int]:
    """Return the placeholder token of each modality."""
    if family.placeholder is not None:
        return {"image": family.placeholder(config)}
    names = ("image_token_id", "image_token_index")
    token = next((getattr(config, name) for name in names if hasattr(config, name)), None)
    if type(token) is not int:
        raise ModelError(
            f"image_token_id: got {token!r} in config.json; expected a token id. Restore the "
            "model's own config.json."
        )
    return {"image": token}
