"""Reads latent attention out of a Hugging Face config, as `core.model_spec.facts` reads the other parts
of a model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from core.model_spec.latent import LatentAttentionSpec
from core.model_spec.parts import NormSpec

if TYPE_CHECKING:
    from core.model_spec.facts import ModelFacts


def latent_attention(facts: ModelFacts, **changes: Any) -> LatentAttentionSpec:
    """Return latent attention with the config's sizes, changed by `changes`.

    Unless said otherwise, rotary positions turn the shared part, pairs of neighbours together.
    `value_size` holds where the config has none.
    """
    key = facts.count("qk_nope_head_dim")
    shared = facts.count("qk_rope_head_dim")
    plain_queries = facts.get("q_lora_rank", "absent") is None
    if "rope" not in changes:
        changes["rope"] = facts.rope(shared, interleaved=True)
    found: dict[str, Any] = {
        "heads": facts.count("num_attention_heads"),
        "key_size": key,
        "shared_size": shared,
        "value_size": facts.count("v_head_dim", changes.pop("value_size", None)),
        "rank": facts.count("kv_lora_rank"),
        "query_rank": None if plain_queries else facts.count("q_lora_rank"),
        "norm": NormSpec(),  # its epsilon is in no config
        "scale": (key + shared) ** -0.5 * _growth_of_scores(facts),
        "bias": facts.flag("attention_bias"),
    }
    return LatentAttentionSpec(**{**found, **changes})


def _growth_of_scores(facts: ModelFacts) -> float:
    """Return the factor on scores where rotary positions are stretched to a longer context."""
    given = facts.part("rope_parameters" if facts.get("rope_parameters") else "rope_scaling")
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind == "default" or not given.get("mscale_all_dim"):
        return 1.0
    factor = given.number("factor")
    return (
        1.0 if factor <= 1 else (0.1 * given.number("mscale_all_dim") * math.log(factor) + 1.0) ** 2
    )
