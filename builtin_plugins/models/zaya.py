"""ZAYA: convolved queries and keys, one expert a token or none, routers that read earlier ones."""

from collections.abc import Mapping
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.compressed import ConvolvedAttentionSpec, RouterMlpSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields
from core.model_spec.layer import pre_norm_layer
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    embed_norm="model.input_hidden_states",
    correction_bias="mlp.gate.balancing_biases",
    rename=(
        (r"(hidden_states|residual)_scale$", r"\1.weight"),
        (r"(hidden_states|residual)_bias$", r"\1.bias"),
    ),
)
BASES = {"hybrid": 5_000_000.0, "hybrid_sliding": 10_000.0}
"""Kinds of layers, with their rotary base."""


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("ZayaForCausalLM", "builtin_plugins.models.zaya:spec", "ZAYA 1")]


def spec(hf_config: Any) -> DecoderSpec:
    """Return the facts of a ZAYA config; published ones also state a type next to each kind's."""
    given = getattr(hf_config, "rope_parameters", None) or {}
    nested = {kind: value for kind, value in given.items() if isinstance(value, Mapping)}
    facts = ModelFacts(with_fields(hf_config, rope_parameters=nested))
    norm = facts.norm(eps=1e-5)
    heads = facts.heads(128)
    kinds = facts.layer_kinds(*BASES) or ["hybrid"] * facts.num_layers()
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=ConvolvedAttentionSpec(
                **heads,
                rope=facts.rope(heads["head_size"], layer_type=kind, theta=BASES[kind], share=0.5),
                kernels=(facts.count("cca_time0", 2), facts.count("cca_time1", 2)),
                window=facts.window() if kind == "hybrid_sliding" else None,
                bias=facts.flag("attention_bias"),
            ),
            mlp=facts.moe(
                renormalize=False,
                correction_bias=True,
                skips=True,
                router_mlp=RouterMlpSpec(
                    size=facts.count("router_hidden_size", 256), norm=norm, adds_previous=i > 0
                ),
            ),
            affine_sums=True,
        )
        for i, kind in enumerate(kinds)
    )
    return DecoderSpec(
        **facts.decoder(tied=True),
        layers=layers,
        norm=norm,
        embed_norm=NormSpec("affine"),
        head_bias=facts.flag("lm_head_bias"),
        names=NAMES,
    )
