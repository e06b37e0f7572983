"""Bamba: Mamba 2, with attention in the layers that the config lists."""

from typing import Any

from builtin_plugins.models.state_spaces import HYBRID_NAMES, mamba2
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("BambaForCausalLM", "builtin_plugins.models.bamba:spec", "Bamba")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Bamba config: RoPE on half of each attention head."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    heads = {**facts.heads(), "kv_heads": facts.count("num_key_value_heads", 8)}
    rope = facts.rope(heads["head_size"], share=0.5)
    attention = facts.attention(**heads, rope=rope, qkv_bias=bias, out_bias=bias)
    mixers: dict[bool, dict[str, Any]] = {
        False: {"recurrent": mamba2(facts, norm=norm)},
        True: {"attention": attention},
    }
    attending = facts.indices("attn_layer_indices")
    mlp = facts.mlp(bias=facts.flag("mlp_bias"))
    layers = tuple(
        LayerSpec(**mixers[index in attending], mlp=mlp, attention_in=norm, mlp_in=norm)
        for index in range(facts.num_layers())
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=HYBRID_NAMES)
