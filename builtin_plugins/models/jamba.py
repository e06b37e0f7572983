"""Jamba: Mamba with attention in every eighth layer, and experts in every second."""

from math import ceil
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MoeSpec
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import MambaSpec

NAMES = WeightNames(
    recurrent="mamba",
    mlp_in="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    router="feed_forward.router",
    expert="feed_forward.experts.{}",
    experts_gate_up="feed_forward.experts.gate_up_proj",
    experts_down="feed_forward.experts.down_proj",
    final_norm="model.final_layernorm",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("JambaForCausalLM", "builtin_plugins.models.jamba:spec", "Jamba")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Jamba config; attention has no RoPE."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    hidden = facts.count("hidden_size")
    rank = "mamba_dt_rank"
    mamba = MambaSpec(
        width=facts.count("mamba_expand", 2) * hidden,
        state_size=facts.count("mamba_d_state", 16),
        dt_rank=ceil(hidden / 16) if facts.get(rank, "auto") == "auto" else facts.count(rank),
        kernel=facts.count("mamba_d_conv", 4),
        bias=facts.flag("mamba_proj_bias"),
        conv_bias=facts.flag("mamba_conv_bias", True),
        norm=norm,
    )
    experts = MoeSpec(
        experts=facts.count("num_experts", facts.get("num_local_experts", 16)),
        top_k=facts.count("num_experts_per_tok", 2),
        width=facts.count("intermediate_size"),
        activation=facts.activation(),
        renormalize=False,
    )
    heads = {**facts.heads(), "kv_heads": facts.count("num_key_value_heads", 8)}
    mixers: dict[bool, dict[str, Any]] = {
        False: {"recurrent": mamba},
        True: {"attention": facts.attention(**heads, rope=None)},
    }
    attending = facts.count("attn_layer_period", 8), facts.count("attn_layer_offset", 4, least=0)
    mixing = facts.count("expert_layer_period", 2), facts.count("expert_layer_offset", 1, least=0)
    layers = tuple(
        LayerSpec(
            **mixers[index % attending[0] == attending[1]],
            mlp=experts if index % mixing[0] == mixing[1] and experts.experts > 1 else facts.mlp(),
            attention_in=norm,
            mlp_in=norm,
        )
        for index in range(facts.num_layers())
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
