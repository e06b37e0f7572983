"""Reads the config of a model that runs through transformers' own modules."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from builtin_plugins.models.generic.config import read_config
from builtin_plugins.models.generic.module_spec import GenericSpec, why_not
from builtin_plugins.models.vision import spec as vision
from builtin_plugins.models.vision.families import FAMILIES
from core.api import ModelError
from core.model_spec.decoder import DecoderSpec


def spec(hf_config: Any) -> GenericSpec | DecoderSpec:
    """Return the model of a config. Raises `ModelError` if it cannot be served."""
    names = getattr(hf_config, "architectures", None) or [""]
    if vision.is_image_text(str(names[0])):
        # A family has a native entry, so this one was chosen by --model-impl.
        return vision.spec(hf_config, own_modules=str(names[0]) in FAMILIES)
    config = read_config(hf_config)
    model_class = _class_of(getattr(hf_config, "architectures", None), config.model_type)
    reason = why_not(config, model_class)
    if reason is not None:
        raise ModelError(f"transformers has {model_class.__name__}, but {reason}.")
    return GenericSpec(config, model_class, config.get_text_config().vocab_size)


def _class_of(architectures: Any, model_type: str) -> Any:
    """Return the causal language model class of `architectures`, or of the model type."""
    usual = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    name = architectures[0] if architectures else usual
    causal = name == usual or str(name).endswith(("ForCausalLM", "LMHeadModel"))
    found = getattr(transformers, str(name), None) if causal else None
    if found is None:
        raise ModelError(
            f"transformers has no causal language model {name!r}"
            + (
                f"; of model_type {model_type!r} it has {usual!r}."
                if usual and usual != name
                else "."
            )
        )
    return found
