"""Decides from the config alone whether transformers' modules of a model can be served.

The trial after loading (`trial`) finds what the config does not show: custom masks, positions
counted by the model, state besides attention.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Final

from builtin_plugins.models.generic.model import GenericModel
from core.api import ConfigError, ModelError
from core.api.models import BuildContext, Model

ATTENTION: Final = ("full_attention", "sliding_attention", "chunked_attention")
"""Types of layers with the KV cache as their only state."""
LENGTH_DEPENDENT: Final = ("dynamic", "longrope")
"""RoPE types with frequencies that depend on the longest sequence of a batch."""


@dataclass(frozen=True, slots=True)
class GenericSpec:
    """A transformers model that can be served through its own modules."""

    config: Any
    model_class: Any
    vocab_size: int
    max_positions: int = 0
    """Number of served positions, if known; 0 if not."""
    learned_positions: int = 0
    """Rows of a position embedding; 0, since it is known only after loading."""
    limited_by: str = "keep_window_size: with more, attention drops keys by their values"
    """Reason of `context_limit`, for messages."""

    @property
    def context_limit(self) -> int:
        """Longest context with results equal to transformers; 0: no limit."""
        limit = getattr(self.config.get_text_config(), "keep_window_size", None)
        return limit if isinstance(limit, int) else 0

    def build(self, context: BuildContext) -> Model:
        """Return the model; `load_weights` constructs its modules."""
        if context.quant.name != "none":
            raise ModelError(
                "the transformers entry does not read weights quantized by "
                f"{context.quant.name!r}; "
                "use an unquantized checkpoint."
            )
        model = self._model(context)
        if context.device == "meta":
            model.sketch()
        return model

    def _model(self, context: BuildContext) -> GenericModel:
        return GenericModel(self.config, self.model_class, self.max_positions, context)

    def check_split(self, tensor: int, pipeline: int) -> None:
        """Raise `ConfigError`: transformers' modules cannot be sharded."""
        raise ConfigError(
            f"{self.model_class.__name__} runs through transformers' modules, which are not split "
            f"over {tensor * pipeline} ranks. Remove --tensor-parallel-size and "
            "--pipeline-parallel-size."
        )


def why_not(config: Any, model_class: Any) -> str | None:
    """Return why a causal model's modules cannot run on a paged cache; None if they can."""
    text = config.get_text_config()
    if getattr(model_class, "_is_stateful", False):
        return (
            "its layers have recurrent state besides attention, which only a native architecture "
            "supports"
        )
    others = sorted(set(getattr(text, "layer_types", None) or ()) - set(ATTENTION))
    if others:
        return (
            f"it has layers of type {', '.join(others)}, and only attention layers can read from "
            "a paged cache"
        )
    if not model_class._can_set_attn_implementation():
        return "its attention does not use transformers' attention interface"
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        return "it counts positions itself (its forward has no position_ids)"
    if getattr(text, "is_moe", False) and hasattr(text, "keep_window_size"):
        return "its router mixes the scores of a text's tokens, later ones included"
    rope_types = sorted(_rope_types(getattr(text, "rope_parameters", None)) & set(LENGTH_DEPENDENT))
    if rope_types:
        return f"its RoPE ({', '.join(rope_types)}) depends on the longest text of a batch"
    return None


def _rope_types(parameters: Any) -> set[str]:
    """Return the kinds of rotary scaling, of a config that has one for all layers or one for each
    type of layer. One with a fixed `alpha` (HunYuan) is of no kind: it stretches the base.
    """
    if not isinstance(parameters, dict):
        return set()
    nested = [part for part in parameters.values() if isinstance(part, dict)]
    return {
        str(part.get("rope_type", "default"))
        for part in (nested or [parameters])
        if not part.get("alpha")
    }
