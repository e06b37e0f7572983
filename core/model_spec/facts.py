"""Reads a Hugging Face config into facts. Knows the spellings of old and new config files; knows no
model by name.

Any object with the config's fields as attributes will do. A missing or misshapen field is a
`ModelError` that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from core.errors import ModelError, did_you_mean
from core.model_spec.attention import AttentionSpec
from core.model_spec.decoder import MlpSpec
from core.model_spec.parts import NormSpec
from core.model_spec.rope import ProportionalScaling, RopeScaling, RopeSpec
from core.model_spec.rope_facts import check_rope, make_scaling
from core.model_spec.values import items_of, positive

_ACTIVATIONS: Final = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}

MOST_LAYERS: Final = 10_000
MOST_POSITIONS: Final = 1 << 24
MOST: Final = 1 << 24
"""More than any model has of anything else. A number beyond these is a fault of the file, and
building would take
hours."""


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
                f"config.json has no {name!r}; restore the model's own file or set it with "
                "--hf-overrides."
            )
        return value

    def refuse(self, name: str) -> None:
        """Raise `ModelError` when a switch is on that changes the model in a way not served."""
        if self.get(name):
            raise ModelError(
                f"{name} is on in config.json, which this architecture does not serve yet."
            )

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer field of at least `least`; `default` where it is absent or null."""
        value = self._given(name, default)
        if type(value) is not int or value < least:
            wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
            raise ModelError(f"{name} in config.json is {value!r:.100}; it must be {wanted}.")
        if value > MOST:
            raise ModelError(f"{name} in config.json is {value}; no model has more than {MOST}.")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive number field; `default` where it is absent or null."""
        return positive(name, self._given(name, default))

    def number_or_none(self, name: str, default: float | None = None) -> float | None:
        """Return a positive number field; null means none, `default` holds where it is absent."""
        value = self.get(name, default)
        return None if value is None else positive(name, value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a field that is a list of positive numbers."""
        return tuple(positive(name, value) for value in items_of(name, self.required(name)))

    def indices(self, name: str) -> frozenset[int]:
        """Return a field that is a list of integers; empty where it is absent or null."""
        values = items_of(name, self._given(name, []))
        if any(type(value) is not int for value in values):
            raise ModelError(
                f"{name} in config.json is {values!r:.100}; it must be a list of integers."
            )
        return frozenset(values)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a switch; `default` where it is absent or null."""
        value = self._given(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{name} in config.json is {value!r:.100}; it must be true or false.")
        return value

    def num_layers(self, name: str = "num_hidden_layers") -> int:
        """Return the number of layers."""
        count = self.count(name)
        if count > MOST_LAYERS:
            raise ModelError(
                f"{name} in config.json is {count}; no model has more than {MOST_LAYERS} layers."
            )
        return count

    def num_positions(self, name: str = "max_position_embeddings", default: int = 2048) -> int:
        """Return the number of positions the model was made for."""
        count = self.count(name, default)
        if count > MOST_POSITIONS:
            raise ModelError(
                f"{name} in config.json is {count}; no model has more than {MOST_POSITIONS} "
                "positions."
            )
        return count

    def window(self, default: int | None = None) -> int | None:
        """Return `sliding_window`: tokens visible to a windowed layer; null means all, `default`
        where absent.
        """
        value = self.get("sliding_window", default)
        return None if value is None else self.count("sliding_window", default)

    def activation(self, name: str = "hidden_act", default: str = "silu") -> str:
        """Return the activation of a field under the engine's name for it."""
        value = str(self._given(name, default))
        if value.startswith("gated-"):  # as T5 says it, whose gelu is another then
            value = value.removeprefix("gated-").replace("gelu", "gelu_new")
        if value not in _ACTIVATIONS:
            hint = did_you_mean(value, _ACTIVATIONS) or "."
            raise ModelError(
                f"{name} {value!r:.100} is not known; known: "
                f"{', '.join(sorted(_ACTIVATIONS))}{hint}"
            )
        return _ACTIVATIONS[value]

    def head_size(self, hidden: int, heads: int) -> int:
        """Return hidden / heads. Raises `ModelError` when that is no whole number."""
        if hidden % heads:
            raise ModelError(
                f"hidden size {hidden} in config.json does not divide into {heads} attention heads "
                "and no head_dim is "
                "stated. Restore the model's own config.json, or set head_dim with --hf-overrides."
            )
        return hidden // heads

    def norm(self, name: str = "rms_norm_eps", eps: float = 1e-6, **facts: Any) -> NormSpec:
        """Return a norm with the config's epsilon: root mean square, unless `facts` say otherwise."""
        return NormSpec(eps=self.number(name, eps), **facts)

    def layer_norm(self, name: str = "layer_norm_eps", eps: float = 1e-5, **facts: Any) -> NormSpec:
        """Return a layer norm with weight and bias and the config's epsilon, changed by `facts`."""
        return NormSpec(**{"kind": "layer", "eps": self.number(name, eps), "bias": True, **facts})

    def heads(self, size: int | None = None) -> dict[str, Any]:
        """Return heads, kv_heads and head_size, as `AttentionSpec` takes them; `size` holds without
        a head_dim.
        """
        heads = self.count("num_attention_heads")
        size = self.get("head_dim", size)
        size = (
            self.head_size(self.count("hidden_size"), heads)
            if size is None
            else self.count("head_dim", size)
        )
        return {
            "heads": heads,
            "kv_heads": self.count("num_key_value_heads", heads),
            "head_size": size,
        }

    def num_labels(self) -> int:
        """Return how many labels a classifier has; two where nothing is said, as transformers has
        it.
        """
        labels = self.get("id2label")
        if self.get("num_labels") is None and isinstance(labels, Mapping) and labels:
            return len(labels)
        return self.count("num_labels", 2)

    def part(self, name: str) -> ModelFacts:
        """Return the fields of an object within the config; none where it is absent or null."""
        value = self.get(name)
        if value is None or isinstance(value, Mapping):
            return ModelFacts(SimpleNamespace(**(value or {})))
        return ModelFacts(value)

    def attention(self, **facts: Any) -> AttentionSpec:
        """Return attention with the config's heads; rotary positions over the head unless said
        otherwise.
        """
        facts = {**self.heads(), **facts}
        if "rope" not in facts:
            facts["rope"] = self.rope(facts["head_size"])
        return AttentionSpec(**facts)

    def mlp(self, **facts: Any) -> MlpSpec:
        """Return a gated MLP of `intermediate_size` with the config's activation, changed by
        `facts`.
        """
        return MlpSpec(
            **{"width": self.count("intermediate_size"), "activation": self.activation(), **facts}
        )

    def decoder(self, *, tied: bool = False) -> dict[str, Any]:
        """Return the facts every decoder has, as `DecoderSpec` takes them; `tied` is the config
        class's default.
        """
        return {
            "vocab_size": self.count("vocab_size"),
            "hidden_size": self.count("hidden_size"),
            "max_positions": self.num_positions(),
            "tied_head": self.flag("tie_word_embeddings", tied),
        }

    def windows(
        self, size: int | None, *, full_every: int = 0, full_below: int = 0
    ) -> list[int | None]:
        """Return the window of each layer, None for full attention.

        Follows `layer_types` where the config has it; otherwise every `full_every`-th layer and the
        first `full_below` layers are full. Without a size all are.
        """
        num_layers = self.num_layers()
        if size is None:
            return [None] * num_layers
        kinds = self.layer_kinds("full_attention", "sliding_attention")
        if kinds is None:
            full = [
                i < full_below or (full_every > 0 and (i + 1) % full_every == 0)
                for i in range(num_layers)
            ]
        else:
            full = [kind == "full_attention" for kind in kinds]
        return [None if is_full else size for is_full in full]

    def layer_kinds(self, *known: str) -> list[str] | None:
        """Return `layer_types`, each of them known; None where the config has none."""
        kinds = self.get("layer_types")
        if kinds is None:
            return None
        num_layers = self.num_layers()
        names = [str(kind) for kind in items_of("layer_types", kinds)]
        if len(names) != num_layers or not set(names) <= set(known):
            raise ModelError(
                f"layer_types in config.json must name {' or '.join(known)} for each of the "
                f"{num_layers} layers; it holds {len(names)}: {', '.join(sorted(set(names))):.200}."
            )
        return names

    def start_tokens(self, default: int | None = None) -> tuple[int, ...]:
        """Return what the decoder of an encoder-decoder model begins with; `default` where nothing
        is said.
        """
        first = self.get("decoder_start_token_id")
        first = self.get("bos_token_id", default) if first is None else first
        forced = self.get("forced_bos_token_id")
        listed = [] if forced is None else [forced]
        for place, token in items_of("forced_decoder_ids", self._given("forced_decoder_ids", [])):
            if token is None or place != len(listed) + 1:
                break
            listed.append(token)
        tokens = (first, *listed)
        if any(type(token) is not int or token < 0 for token in tokens):
            raise ModelError(
                f"the decoder is to begin with {list(tokens)!r:.100}; decoder_start_token_id, "
                "forced_bos_token_id and "
                "forced_decoder_ids in config.json must be token ids."
            )
        return tokens

    def switches(self, name: str, *, off_every: int) -> list[bool]:
        """Return a field that has a number for each layer, 0 for off; where absent, every
        `off_every`-th is off.
        """
        num_layers = self.num_layers()
        values = self.get(name)
        if values is None:
            return [(i + 1) % off_every != 0 for i in range(num_layers)]
        if len(items_of(name, values)) != num_layers:
            raise ModelError(
                f"{name} in config.json has {len(values)} values; there are {num_layers} layers."
            )
        return [bool(value) for value in values]

    def per_layer(self, name: str) -> list[int]:
        """Return a count for each layer, from a field that is one number or a list."""
        num_layers = self.num_layers()
        values = self.required(name)
        if not isinstance(values, (list, tuple)):
            return [self.count(name)] * num_layers
        if len(values) < num_layers or any(type(value) is not int or value < 1 for value in values):
            raise ModelError(
                f"{name} in config.json must be a positive integer for each of the {num_layers} "
                "layers."
            )
        return list(values)

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
        interleaved: bool = False,
    ) -> RopeSpec:
        """Return the rotary positions of the layers of one type.

        `theta` and `share` (of the head that turns) hold where the config says nothing;
        `theta_name` and `share_name` are their fields in the old format. `scaled=False`: the old
        format's scaling, one for the whole model, does not concern these layers.
        """
        for name in (
            "rope_parameters",
            "rope_scaling",
        ):  # the one that is not followed must be possible, too
            check_rope(name, self._object(name))
        given = self._object("rope_parameters")
        if given and all(isinstance(value, Mapping) for value in given.values()):
            given = given.get(layer_type) or {}
        elif not given and scaled:
            given = self._object("rope_scaling")
        parameters = ModelFacts(SimpleNamespace(**given))
        theta = parameters.number("rope_theta", self.number(theta_name, theta))
        share = parameters.number("partial_rotary_factor", self.number(share_name, share))
        if parameters.get("rope_type") == "proportional":
            scaling = ProportionalScaling(share, parameters.number("factor", 1.0))
            return RopeSpec(size=head_size, theta=theta, interleaved=interleaved, scaling=scaling)
        size = int(head_size * share)
        if parameters.get("alpha"):  # grown once and for all, whatever its type says
            theta *= parameters.number("alpha") ** (size / (size - 2))
            return RopeSpec(size=size, theta=theta, interleaved=interleaved)
        return RopeSpec(
            size=size, theta=theta, interleaved=interleaved, scaling=self._scaling(parameters)
        )

    def _scaling(self, given: ModelFacts) -> RopeScaling | None:
        kind = given.get("rope_type") or given.get("type") or "default"
        positions = self.count("max_position_embeddings", 2048)
        original = given.count("original_max_position_embeddings", positions)
        return make_scaling(
            kind, given, self.count("original_max_position_embeddings", original), positions
        )

    def _given(self, name: str, default: Any) -> Any:
        """Return a field, or `default` where it is absent or null; without a default it must be
        there.
        """
        value = self.get(name)
        if value is not None:
            return value
        return self.required(name) if default is None else default

    def _object(self, name: str) -> Mapping[str, Any]:
        value = self.get(name) or {}
        if not isinstance(value, Mapping):
            raise ModelError(
                f"{name} in config.json is {value!r:.100}; it must be an object, or null."
            )
        return value
