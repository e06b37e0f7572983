"""How checkpoints of Mixtral, and of mixtures after it, name their experts. Knows names, no model."""

from typing import Final

from core.api import WeightNames

EXPERTS_IN_MEMORY: Final = tuple(
    (rf"(\.experts\.\d+)\.{there}\.", rf"\1.{here}.")
    for there, here in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
)
"""transformers calls an expert's matrices so once they are loaded, and some tools write what they
find there.
"""
IN_MEMORY: Final = (
    (r"\.mlp\.(?:gate|router)\.", ".block_sparse_moe.gate."),
    (r"\.mlp\.(experts\.|e_score_correction_bias$)", r".block_sparse_moe.\1"),
    *EXPERTS_IN_MEMORY,
)
MIXTRAL_NAMES: Final = WeightNames(
    router="block_sparse_moe.gate",
    choice_bias="block_sparse_moe.e_score_correction_bias",
    expert="block_sparse_moe.experts.{}",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
    experts_gate_up="block_sparse_moe.experts.gate_up_proj",
    experts_down="block_sparse_moe.experts.down_proj",
    rename=IN_MEMORY,
)
