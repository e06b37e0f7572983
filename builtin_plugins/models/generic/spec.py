"""Decides from a config alone whether transformers' modules of it can be served, and says why where
they cannot.

What the config does not show (masks of its own, positions counted by the model, memory besides
attention) is found by the trial that follows loading (`trial`).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Final

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from builtin_plugins.models.generic.model import GenericModel
from core.api import BuildContext, ConfigError, Model, ModelError

ATTENTION: Final = ("full_attention", "sliding_attention", "chunked_attention")
"""Kinds of layers that look back at tokens through attention alone."""
MOVING: Final = ("dynamic", "longrope")
"""Rotary positions that transformers changes with the longest text of a batch."""


@dataclass(frozen=True, slots=True)
class GenericSpec:
    """A model of transformers that can be served as it is."""

    config: Any
    model_class: Any
    vocab_size: int
    max_positions: int = 0
    """Positions that are served, where it is known."""
    learned_positions: int = 0
    """How many a table holds; found out when the model is loaded."""

    def build(self, context: BuildContext) -> Model:
        """Return the model; its modules are made when the weights come."""
        if context.quant.name != "none":
            raise ModelError(
                "the entry for any architecture reads no weights quantized by "
                f"{context.quant.name!r}; take the "
                "checkpoint without quantization."
            )
        return GenericModel(self.config, self.model_class, self.max_positions, context)

    def check_split(self, tensor: int, pipeline: int) -> None:
        """Raise `ConfigError`: these modules are whole."""
        raise ConfigError(
            f"{self.model_class.__name__} runs through transformers' own modules, which are not "
            "split over "
            f"{tensor * pipeline} ranks; leave out --tensor-parallel-size and "
            "--pipeline-parallel-size."
        )


def spec(hf_config: Any) -> GenericSpec:
    """Return the model a config describes. Raises `ModelError` saying why it cannot be served."""
    config = _read(hf_config)
    model_class = _class_of(getattr(hf_config, "architectures", None), config.model_type)
    reason = why_not(config, model_class)
    if reason is not None:
        raise ModelError(f"transformers has {model_class.__name__}, but {reason}.")
    return GenericSpec(config, model_class, config.get_text_config().vocab_size)


def why_not(config: Any, model_class: Any) -> str | None:
    """Return why a causal model's own modules cannot run on a paged cache, or None where nothing
    speaks against it.
    """
    text = config.get_text_config()
    if getattr(model_class, "_is_stateful", False):
        return "its layers keep a running state beside attention, which only an architecture of its own can carry on"
    others = sorted(set(getattr(text, "layer_types", None) or ()) - set(ATTENTION))
    if others:
        return f"it has layers of type {', '.join(others)}, and only attention layers can read from a paged cache"
    if not model_class._can_set_attn_implementation():
        return "its attention does not go through transformers' attention interface"
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        return "it counts positions by itself (its forward takes no position_ids)"
    moving = sorted(_rope_types(getattr(text, "rope_parameters", None)) & set(MOVING))
    if moving:
        return f"its rotary positions ({', '.join(moving)}) change with the longest text of a batch"
    return None


def _read(hf_config: Any) -> Any:
    """Return transformers' config object.

    Raises `ModelError` where it knows none, or refuses the values.
    """
    model_type = getattr(hf_config, "model_type", None)
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise ModelError(
            f"transformers {transformers.__version__} knows no model_type {model_type!r:.100}; "
            "code that a checkpoint "
            "brings is not run. A later transformers may know it."
        )
    try:
        return transformers.CONFIG_MAPPING[model_type].from_dict(dict(vars(hf_config)))
    except Exception as error:
        raise ModelError(
            f"transformers refuses config.json: {error}. Restore the model's own file."
        ) from error


def _class_of(architectures: Any, model_type: str) -> Any:
    """Return the causal language model that a config names, or that its type stands for."""
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


def _rope_types(parameters: Any) -> set[str]:
    """Return the kinds of rotary scaling, of a config that has one for all layers or one for each
    type of layer.
    """
    if not isinstance(parameters, dict):
        return set()
    nested = [part for part in parameters.values() if isinstance(part, dict)]
    return {str(part.get("rope_type", "default")) for part in (nested or [parameters])}
