"""Typed reading of a Hugging Face config into specs; knows old and new field names, no model.

Any object with the config's fields as attributes works. A missing or malformed field raises a
`ModelError` that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from core.errors import ModelError, did_you_mean
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.config_fields import ConfigFields, items_of
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec
from core.model_spec.rope import (
    ProportionalScaling,
    RopeScaling,
    RopeSpec,
    check_rope,
    make_scaling,
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
    "relu2": "relu2",
    "xielu": "xielu",
}

MAX_LAYERS: Final = 1024
MAX_POSITIONS: Final = 1 << 24


class ModelFacts(ConfigFields):
    """The fields of one config, typed, and the specs that they describe."""

    def num_layers(self, name: str = "num_hidden_layers") -> int:
        """Return the number of layers."""
        count = self.count(name)
        if count > MAX_LAYERS:
            raise ModelError(
                f"{name} in config.json is {count}; no model has more than {MAX_LAYERS} layers."
            )
        return count

    def num_positions(self, name: str = "max_position_embeddings", default: int = 2048) -> int:
        """Return the number of positions of the model."""
        count = self.count(name, default)
        if count > MAX_POSITIONS:
            raise ModelError(
                f"{name} in config.json is {count}; no model has more than {MAX_POSITIONS} "
                "positions."
            )
        return count

    def window(self, default: int | None = None) -> int | None:
        """Return `sliding_window` in tokens; None if it is null, `default` if it is absent."""
        value = self.get("sliding_window", default)
        return None if value is None else self.count("sliding_window", default)

    def activation(self, name: str = "hidden_act", default: str = "silu") -> str:
        """Return the engine's name of an activation field."""
        value = str(self._given(name, default))
        if value.startswith("gated-"):  # T5's spelling; its gated gelu is gelu_new
            value = value.removeprefix("gated-").replace("gelu", "gelu_new")
        if value not in _ACTIVATIONS:
            hint = did_you_mean(value, _ACTIVATIONS) or "."
            raise ModelError(
                f"{name} {value!r:.100} is not known; known: "
                f"{', '.join(sorted(_ACTIVATIONS))}{hint}"
            )
        return _ACTIVATIONS[value]

    def clamped_swiglu(self) -> str:
        """Return the activation with the gain and the limit of the config, which are fixed."""
        for name, fixed in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
            if self.number(name, fixed) != fixed:
                raise ModelError(
                    f"{name}: got {self.number(name)}; expected {fixed}. Serve another checkpoint."
                )
        return "swiglu_clamped"

    def head_size(self, hidden: int, heads: int) -> int:
        """Return hidden / heads. Raises `ModelError` if it is not an integer."""
        if hidden % heads:
            raise ModelError(
                f"hidden size: got {hidden} in config.json; expected a multiple of {heads} "
                "attention heads, or head_dim. Restore the model's own config.json, or set "
                "head_dim with --hf-overrides."
            )
        return hidden // heads

    def norm(self, name: str = "rms_norm_eps", eps: float = 1e-6, **facts: Any) -> NormSpec:
        """Return an RMSNorm with the config's epsilon, changed by `facts`."""
        return NormSpec(eps=self.number(name, eps), **facts)

    def layer_norm(self, name: str = "layer_norm_eps", eps: float = 1e-5, **facts: Any) -> NormSpec:
        """Return a LayerNorm with weight, bias and the config's epsilon, changed by `facts`."""
        return NormSpec(**{"kind": "layer", "eps": self.number(name, eps), "bias": True, **facts})

    def heads(self, size: int | None = None) -> dict[str, Any]:
        """Return heads, kv_heads and head_size for `AttentionSpec`; `size` is the default
        head_dim.
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
        """Return the number of labels of a classifier; 2 by default, as in transformers."""
        labels = self.get("id2label")
        if self.get("num_labels") is None and isinstance(labels, Mapping) and labels:
            return len(labels)
        return self.count("num_labels", 2)

    def part(self, name: str) -> ModelFacts:
        """Return the fields of a nested object; empty if it is absent or null."""
        value = self.get(name)
        if value is None or isinstance(value, Mapping):
            return ModelFacts(SimpleNamespace(**(value or {})))
        return ModelFacts(value)

    def attention(self, **facts: Any) -> AttentionSpec:
        """Return attention with the config's heads and RoPE, changed by `facts`."""
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

    def moe(
        self,
        width: str = "moe_intermediate_size",
        *,
        defaults: tuple[int | None, int | None] = (None, None),
        **facts: Any,
    ) -> MoeSpec:
        """Return experts with the config's numbers, their width in field `width`, and its
        activation, changed by `facts`.

        `defaults`: number of experts, and of those chosen, where the config lacks them.
        """
        experts, top_k = defaults
        return MoeSpec(
            **{
                "experts": self.count("num_experts", self.get("num_local_experts", experts)),
                "top_k": self.count("num_experts_per_tok", top_k),
                "width": self.count(width),
                "activation": self.activation(),
                **facts,
            }
        )

    def decoder(
        self,
        layer: LayerSpec | None = None,
        *,
        tied: bool = False,
        length: int = 2048,
        hidden: str = "hidden_size",
        layers: str = "num_hidden_layers",
        positions: str = "max_position_embeddings",
    ) -> dict[str, Any]:
        """Return the common `DecoderSpec` fields, from fields of the config with these names.

        `tied` and `length` are the defaults of the config class. With `layer`, all layers are
        equal.
        """
        equal = {} if layer is None else {"layers": (layer,) * self.num_layers(layers)}
        return {
            **equal,
            "vocab_size": self.count("vocab_size"),
            "hidden_size": self.count(hidden),
            "max_positions": self.num_positions(positions, length),
            "tied_head": self.flag("tie_word_embeddings", tied),
        }

    def windows(
        self, size: int | None, *, full_every: int = 0, full_below: int = 0
    ) -> list[int | None]:
        """Return the window of each layer; None for full attention.

        Uses `layer_types` if the config has it. Otherwise every `full_every`-th layer and the first
        `full_below` layers have full attention. Without a size all layers do.
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
        """Return `layer_types`, validated; None if the config has none."""
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
        """Return the decoder's start tokens of an encoder-decoder model."""
        first = self.get("decoder_start_token_id")
        first = self.get("bos_token_id", default) if first is None else first
        forced = self.get("forced_bos_token_id")
        listed = [] if forced is None else [forced]
        for position, token in items_of(
            "forced_decoder_ids", self._given("forced_decoder_ids", [])
        ):
            if token is None or position != len(listed) + 1:
                break
            listed.append(token)
        tokens = (first, *listed)
        if any(type(token) is not int or token < 0 for token in tokens):
            raise ModelError(
                f"decoder start tokens: got {list(tokens)!r:.100}; expected token ids in "
                "decoder_start_token_id, forced_bos_token_id and forced_decoder_ids of config.json."
            )
        return tokens

    def switches(self, name: str, *, off_every: int) -> list[bool]:
        """Return a 0/1 list field as booleans per layer; if absent, every `off_every`-th is
        False.
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
        """Return a count per layer from a field that is one number or a list."""
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
        """Return the rotary embedding of one layer type.

        `theta` and `share` (the rotated share of the head) are defaults; `theta_name` and
        `share_name` are their field names in the old format. `scaled=False`: the model-wide scaling
        of the old format does not apply to these layers.
        """
        for name in (
            "rope_parameters",
            "rope_scaling",
        ):  # the field that is not used must be valid, too
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
        if parameters.get("alpha"):  # static NTK scaling of the base, independent of rope_type
            theta *= parameters.number("alpha") ** (size / (size - 2))
            return RopeSpec(size=size, theta=theta, interleaved=interleaved)
        sections = items_of("mrope_section", parameters.get("mrope_section") or [])
        return RopeSpec(
            size=size,
            theta=theta,
            interleaved=interleaved,
            scaling=self._scaling(parameters),
            sections=tuple(sections),
            interleaved_sections=parameters.flag("mrope_interleaved"),
        )

    def _scaling(self, given: ModelFacts) -> RopeScaling | None:
        kind = given.get("rope_type") or given.get("type") or "default"
        positions = self.count("max_position_embeddings", 2048)
        original = given.count("original_max_position_embeddings", positions)
        return make_scaling(
            kind, given, self.count("original_max_position_embeddings", original), positions
        )


class _Changed:
    """A config with some fields changed; the others are read from it."""

    def __init__(self, config: Any, fields: Mapping[str, Any]) -> None:
        self._config = config
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def with_fields(hf_config: Any, **fields: Any) -> object:
    """Return a config with other or further fields."""
    return _Changed(hf_config, fields)


def renamed(hf_config: Any, **names: str) -> object:
    """Return a config with its fields under present names too: present name to its own."""
    stated = {new: getattr(hf_config, old, None) for new, old in names.items()}
    return with_fields(hf_config, **{n: value for n, value in stated.items() if value is not None})


_SIZES: Final = ("vocab_size", "padded_vocab_size", "decoder_vocab_size")
_PARTS: Final = (
    "text_config",
    "llm_config",
    "language_config",
    "decoder",
    "encoder",
    "thinker_config",
)


def stated_vocabulary(stated: Mapping[str, Any]) -> int | None:
    """Return the largest vocabulary size in a config and its parts; None without one."""
    sizes = [value for name in _SIZES if type(value := stated.get(name)) is int and value > 0]
    more = stated.get("additional_vocab_size")  # tokens of prompts only (Molmo 2)
    sizes = [size + more if type(more) is int else size for size in sizes]
    for name in _PARTS:
        part = stated.get(name)
        inner = stated_vocabulary(part) if isinstance(part, Mapping) else None
        sizes += [] if inner is None else [inner]
    return max(sizes, default=None)
