"""Reads the config of a model that runs through transformers' own modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import transformers
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from builtin_plugins.models.generic.config import read_config
from builtin_plugins.models.generic.module_spec import GenericSpec, why_not
from builtin_plugins.models.vision import spec as vision
from builtin_plugins.models.vision.families import FAMILIES
from core.api import ModelError
from core.model_spec.decoder import DecoderSpec

OF_MODEL_TYPE: Final = {
    "TransformersForCausalLM": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "TransformersMoEForCausalLM": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "TransformersMultiModalForCausalLM": MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "TransformersMultiModalMoEForCausalLM": MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}
"""vLLM's names of transformers' modules; the class is that of the config's model_type."""


def spec(hf_config: Any) -> GenericSpec | DecoderSpec:
    """Return the model of a config. Raises `ModelError` if it cannot be served."""
    hf_config = _with_class_of_model_type(hf_config)
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


def _with_class_of_model_type(hf_config: Any) -> Any:
    """Return the config; with the class of its model type for one of vLLM's names."""
    stated = (getattr(hf_config, "architectures", None) or [""])[0]
    if stated not in OF_MODEL_TYPE:
        return hf_config
    found = OF_MODEL_TYPE[stated].get(str(getattr(hf_config, "model_type", "")))
    name = found[0] if isinstance(found, tuple) else found
    return SimpleNamespace(**{**vars(hf_config), "architectures": [name or stated]})


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
