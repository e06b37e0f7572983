"""Mixtral: Mistral with MoE layers, and Mixtral's expert names, which other models share."""

from __future__ import annotations

from typing import Final

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MoeSpec
from core.model_spec.names import WeightNames


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry("MixtralForCausalLM", "builtin_plugins.models.mixtral:spec", "Mixtral 8x7B and 8x22B")
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Mixtral config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-5))
    rope = facts.rope(facts.heads()["head_size"], theta=1e6)
    experts = MoeSpec(
        experts=facts.count("num_local_experts", 8),
        top_k=facts.count("num_experts_per_tok", 2),
        width=facts.count("intermediate_size"),
        activation=facts.activation(),
    )
    attention = facts.attention(rope=rope, window=facts.window())
    layer = LayerSpec(attention=attention, mlp=experts, attention_in=norm, mlp_in=norm)
    layers = (layer,) * facts.num_layers()
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=MIXTRAL_NAMES)


EXPERTS_IN_MEMORY: Final = tuple(
    (rf"(\.experts\.\d+)\.{there}\.", rf"\1.{here}.")
    for there, here in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
)
"""Renames for checkpoints with transformers' in-memory names of expert matrices."""
IN_MEMORY: Final = (
    (r"\.mlp\.(?:gate|router)\.", ".block_sparse_moe.gate."),
    (r"\.mlp\.(experts\.|e_score_correction_bias$)", r".block_sparse_moe.\1"),
    *EXPERTS_IN_MEMORY,
)
MIXTRAL_NAMES: Final = WeightNames(
    router="block_sparse_moe.gate",
    correction_bias="block_sparse_moe.e_score_correction_bias",
    expert="block_sparse_moe.experts.{}",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
    experts_gate_up="block_sparse_moe.experts.gate_up_proj",
    experts_down="block_sparse_moe.experts.down_proj",
    rename=IN_MEMORY,
)
