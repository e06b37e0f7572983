"""Reads a Hugging Face config into facts. Knows the spellings of old and new config files; knows no model by name.

Any object with the config's fields as attributes will do. A missing or misshapen field is a `ModelError` that
names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from core.errors import ModelError, did_you_mean
from core.model_spec import (
    AttentionSpec,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    MlpSpec,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)

_ACTIVATIONS: Final = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


class ModelFacts:
    """The fields of one config, typed."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or `default` where it is absent (null counts as given)."""
        return getattr(self._config, name, default)

    def required(self, name: str) -> Any:
        """Return a field that must be there."""
        value = self.get(name)
        if value is None:
            raise ModelError(
                f"config.json has no {name!r}; restore the model's own file or set it with --hf-overrides."
            )
        return value

    def refuse(self, name: str) -> None:
        """Raise `ModelError` when a switch is on that changes the model in a way not served."""
        if self.get(name):
            raise ModelError(f"{name} is on in config.json, which this architecture does not serve yet.")

    def count(self, name: str, default: int | None = None) -> int:
        """Return a positive integer field."""
        value = self.get(name)
        value = self.required(name) if value is None and default is None else default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{name} in config.json is {value!r}; it must be a positive integer.")
        return value

    def activation(self, name: str = "hidden_act", default: str = "silu") -> str:
        """Return the activation of a field under the engine's name for it."""
        value = self.get(name) or default
        if value not in _ACTIVATIONS:
            hint = did_you_mean(str(value), _ACTIVATIONS)
            raise ModelError(f"{name} {value!r} is not known; known: {', '.join(sorted(_ACTIVATIONS))}{hint}.")
        return _ACTIVATIONS[value]

    def head_size(self, hidden: int, heads: int) -> int:
        """Return hidden / heads. Raises `ModelError` when that is no whole number."""
        if hidden % heads:
            raise ModelError(
                f"hidden size {hidden} in config.json does not divide into {heads} attention heads and no head_dim is "
                "stated. Restore the model's own config.json, or set head_dim with --hf-overrides."
            )
        return hidden // heads

    def heads(self) -> dict[str, Any]:
        """Return heads, kv_heads and head_size, as `AttentionSpec` takes them."""
        heads = self.count("num_attention_heads")
        size = self.get("head_dim")
        size = self.head_size(self.count("hidden_size"), heads) if size is None else self.count("head_dim")
        return {"heads": heads, "kv_heads": self.count("num_key_value_heads", heads), "head_size": size}

    def attention(self, **facts: Any) -> AttentionSpec:
        """Return attention with the config's heads; rotary positions over the head unless said otherwise."""
        heads = self.heads()
        if "rope" not in facts:
            facts["rope"] = self.rope(heads["head_size"])
        return AttentionSpec(**heads, **facts)

    def mlp(self, **facts: Any) -> MlpSpec:
        """Return a gated MLP of `intermediate_size` with the config's activation, changed by `facts`."""
        return MlpSpec(**{"width": self.count("intermediate_size"), "activation": self.activation(), **facts})

    def decoder(self, *, tied: bool = False) -> dict[str, Any]:
        """Return the facts every decoder has, as `DecoderSpec` takes them; `tied` is the config class's default."""
        return {
            "vocab_size": self.count("vocab_size"),
            "hidden_size": self.count("hidden_size"),
            "max_positions": self.count("max_position_embeddings", 2048),
            "tied_head": bool(self.get("tie_word_embeddings", tied)),
        }

    def windows(self, size: int | None, *, full_every: int = 0, full_below: int = 0) -> list[int | None]:
        """Return the window of each layer, None for full attention.

        Follows `layer_types` where the config has it; otherwise every `full_every`-th layer and the first
        `full_below` layers are full. Without a size all are.
        """
        num_layers = self.count("num_hidden_layers")
        if not size:
            return [None] * num_layers
        kinds = self.get("layer_types")
        if kinds is None:
            full = [i < full_below or (full_every > 0 and (i + 1) % full_every == 0) for i in range(num_layers)]
        elif len(kinds) == num_layers and set(kinds) <= {"full_attention", "sliding_attention"}:
            full = [kind == "full_attention" for kind in kinds]
        else:
            raise ModelError(
                f"layer_types in config.json must name full_attention or sliding_attention for each of the "
                f"{num_layers} layers; it holds {len(kinds)}: {', '.join(sorted(map(str, set(kinds))))}."
            )
        return [None if is_full else size for is_full in full]

    def rope(
        self,
        head_size: int,
        *,
        layer_type: str = "",
        theta: float = 10_000.0,
        share: float = 1.0,
        theta_name: str = "rope_theta",
        share_name: str = "partial_rotary_factor",
        scaled: bool = True,
    ) -> RopeSpec:
        """Return the rotary positions of the layers of one type.

        `theta` and `share` (of the head that turns) hold where the config says nothing; `theta_name` and
        `share_name` are their fields in the old format. `scaled=False`: the old format's scaling, one for the
        whole model, does not concern these layers.
        """
        given = self.get("rope_parameters") or {}
        if given and all(isinstance(value, Mapping) for value in given.values()):
            given = given.get(layer_type) or {}
        elif not given and scaled:
            given = self.get("rope_scaling") or {}
        theta = given.get("rope_theta") or self.get(theta_name) or theta
        share = given.get("partial_rotary_factor") or self.get(share_name) or share
        return RopeSpec(size=int(head_size * share), theta=float(theta), scaling=self._scaling(given))

    def _scaling(self, parameters: Mapping[str, Any]) -> RopeScaling | None:
        kind = parameters.get("rope_type") or parameters.get("type") or "default"
        original = self.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
        original = int(original or self.count("max_position_embeddings", 2048))
        try:
            return _make_scaling(kind, parameters, original, self.count("max_position_embeddings", 2048))
        except KeyError as error:
            raise ModelError(f"the {kind} rotary scaling in config.json has no {error.args[0]!r}.") from error


def _make_scaling(kind: str, given: Mapping[str, Any], original: int, positions: int) -> RopeScaling | None:
    match kind:
        case "default" | "mrope":
            return None
        case "linear":
            return LinearScaling(float(given["factor"]))
        case "dynamic":
            return DynamicScaling(float(given["factor"]), positions)
        case "llama3":
            return Llama3Scaling(given["factor"], given["low_freq_factor"], given["high_freq_factor"], original)
        case "yarn":
            factor = given.get("factor") or positions / original
            return YarnScaling(
                factor,
                original,
                _yarn_attention_factor(given, factor),
                given.get("beta_fast") or 32.0,
                given.get("beta_slow") or 1.0,
                given.get("truncate", True),
            )
        case "longrope" | "su":
            factor = given.get("factor") or positions / original
            attention = given.get("attention_factor")
            if attention is None:
                attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
            return LongScaling(tuple(given["short_factor"]), tuple(given["long_factor"]), original, attention)
    known = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
    raise ModelError(f"rotary scaling {kind!r} is not known; known: {', '.join(known)}{did_you_mean(kind, known)}.")


def _yarn_attention_factor(given: Mapping[str, Any], factor: float) -> float:
    stated = given.get("attention_factor")
    if stated is not None:
        return float(stated)

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    over, under = given.get("mscale"), given.get("mscale_all_dim")
    return mscale(over) / mscale(under) if over and under else mscale(1.0)
