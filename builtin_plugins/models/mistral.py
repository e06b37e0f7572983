"""Mistral, Ministral, and Mixtral's experts, with names that other models share."""

from __future__ import annotations

from typing import Final

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.mistral"
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


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("MistralForCausalLM", f"{HERE}:mistral", "Mistral 7B and its relatives"),
        Entry("MinistralForCausalLM", f"{HERE}:ministral", "Ministral 8B"),
        Entry("MixtralForCausalLM", f"{HERE}:mixtral", "Mixtral 8x7B and 8x22B"),
    ]


def mistral(hf_config: object) -> DecoderSpec:
    """Return the facts of a Mistral config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    attention = facts.attention(window=facts.window(4096))
    layer = pre_norm_layer(norm, attention=attention, mlp=facts.mlp())
    return DecoderSpec(**facts.decoder(layer), norm=norm)


def ministral(hf_config: object) -> DecoderSpec:
    """Return the facts of a Ministral config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    mlp = facts.mlp()
    layers = tuple(
        pre_norm_layer(norm, attention=facts.attention(window=window), mlp=mlp)
        for window in facts.windows(facts.window(4096))
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm)


def mixtral(hf_config: object) -> DecoderSpec:
    """Return the facts of a Mixtral config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    rope = facts.rope(facts.heads()["head_size"], theta=1e6)
    experts = facts.moe("intermediate_size", defaults=(8, 2))
    attention = facts.attention(rope=rope, window=facts.window())
    layer = pre_norm_layer(norm, attention=attention, mlp=experts)
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=MIXTRAL_NAMES)
